"""A request to a table, as an app makes it. The tables call this; it knows the bytes, and no connection."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from . import _frames as frames
from ._arguments import to_bytes, to_number
from .errors import TooLarge
from .types import Welcome

OPERATIONS_MAX = 256
KEY_SIZE_MAX = 1024
VALUE_SIZE_MAX = 64 << 10
KEYED_HEADER_SIZE = 16
"""Bytes of a keyed record before its key."""


class _Operation(NamedTuple):
    kind: int
    flags: int
    key: bytes
    value: bytes
    revision: int


class Apply:
    """A request to a table: operations of which all are carried out or none.

        table.apply(Apply().require(b"lease", revision).put(b"job/7", b"done").delete(b"job/6"))

    Conditions name the revision that a key must have; None: it must be absent. All are judged against the state before the
    request. A key may be written once, and at least one is. Each call adds one operation; a wrong one is a `TypeError` or
    `ValueError`. The same request may be applied again.
    """

    def __init__(self) -> None:
        self._operations: List[_Operation] = []
        self._written: Dict[bytes, int] = {}  # which operation writes a key

    def __len__(self) -> int:
        return len(self._operations)

    def put(self, key: bytes, value: bytes) -> Apply:
        """The key gets this value."""
        return self._write(frames.PUT, key, to_bytes(value, "a value"))

    def put_if(self, key: bytes, value: bytes, revision: Optional[int]) -> Apply:
        """The key gets this value, if it has this revision."""
        return self._write(frames.PUT, key, to_bytes(value, "a value"), frames.ONLY_IF, _revision(revision))

    def copy(self, key: bytes, source: bytes) -> Apply:
        """The key gets the value that another key has before the request. Nothing is done if that key is absent."""
        return self._write(frames.COPY, key, _key(source))

    def copy_if(self, key: bytes, source: bytes, revision: Optional[int]) -> Apply:
        """As `copy`, if the key, not the source, has this revision."""
        return self._write(frames.COPY, key, _key(source), frames.ONLY_IF, _revision(revision))

    def delete(self, key: bytes) -> Apply:
        """Removes the key, which may be absent already."""
        return self._write(frames.DELETE, key, b"")

    def delete_if(self, key: bytes, revision: Optional[int]) -> Apply:
        """Removes the key, if it has this revision."""
        return self._write(frames.DELETE, key, b"", frames.ONLY_IF, _revision(revision))

    def require(self, key: bytes, revision: Optional[int]) -> Apply:
        """Writes nothing: the key must have this revision."""
        return self._add(_Operation(frames.REQUIRE, 0, _key(key), b"", _revision(revision)))

    def _write(self, kind: int, key: object, value: bytes, flags: int = 0, revision: int = 0) -> Apply:
        operation = _Operation(kind, flags, _key(key), value, revision)
        number = self._written.setdefault(operation.key, len(self))
        if number != len(self):
            raise ValueError("operations %d and %d write the same key" % (number, len(self)))
        return self._add(operation)

    def _add(self, operation: _Operation) -> Apply:
        self._operations.append(operation)
        return self

    def applied(self, last: int) -> List[int]:
        """What the request has done, if it was acknowledged with this LSN: the LSNs of its writes, in their order. That of a
        put is the revision of its key; a `require` has none."""
        return list(range(last - len(self._written) + 1, last + 1))

    def _body(self, peer: str, limits: Welcome) -> bytes:
        """The body of an `APPLY` that the sidecar behind `peer` would take."""
        if not self._written:
            raise ValueError("a request to a table that writes no key")
        if len(self) > OPERATIONS_MAX:
            raise TooLarge("%s: request of %d operations: the limit is %d; split it" % (peer, len(self), OPERATIONS_MAX))
        for number, operation in enumerate(self._operations):
            is_copy = operation.kind == frames.COPY
            second = ("source", operation.value, KEY_SIZE_MAX) if is_copy else ("value", operation.value, VALUE_SIZE_MAX)
            for what, data, most in (("key", operation.key, KEY_SIZE_MAX), second):
                if len(data) > most:
                    told = (peer, number, what, len(data), most)
                    raise TooLarge("%s: operation %d: %s of %d bytes: the limit is %d" % told)
        body = frames.apply([frames.operation(*operation) for operation in self._operations])
        records = (self._operations[number] for number in self._written.values())
        # What a copy takes over, only the sidecar knows.
        log_size = limits.batch_size(
            KEYED_HEADER_SIZE + len(record.key) + (0 if record.kind == frames.COPY else len(record.value)) for record in records
        )
        for what, size in (("of log", log_size), ("in a frame", len(body))):
            if size > limits.batch_size_max:
                raise TooLarge(
                    "%s: request takes %d bytes %s: the limit is %d; split it" % (peer, size, what, limits.batch_size_max)
                )
        return body


def get_body(peer: str, key: object, fresh: bool, least: object, older: bool, no_value: bool) -> bytes:
    """The body of a `GET` that the sidecar behind `peer` would take."""
    data = _key(key)
    if len(data) > KEY_SIZE_MAX:
        raise TooLarge("%s: key of %d bytes: the limit is %d" % (peer, len(data), KEY_SIZE_MAX))
    flags = (frames.FRESH if fresh else 0) | (frames.OLDER if older else 0) | (frames.NO_VALUE if no_value else 0)
    return frames.get(data, to_number("least", least), flags)


def _key(key: object) -> bytes:
    data = to_bytes(key, "a key")
    if not data:
        raise ValueError("an empty key: a key has at least one byte")
    return data


def _revision(revision: object) -> int:
    return 0 if revision is None else to_number("revision", revision)
