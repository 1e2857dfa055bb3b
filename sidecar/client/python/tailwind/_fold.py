"""The content of a table, as the records of its log make it, without I/O.

Both local tables hold one `Fold`: they give it each event that comes, and hand out the changes that it has found. The rules
and the bytes of keyed records are in docs/append-socket.md, "Tables".
"""

from __future__ import annotations

import collections
import struct
from typing import Deque, Dict, List, NamedTuple, Optional

from . import _frames as frames
from ._apply import KEY_SIZE_MAX, KEYED_HEADER_SIZE, VALUE_SIZE_MAX
from .types import CaughtUp, Change, Deleted, Entry, FollowEvent, Put, Record, Turn

_MAGIC = b"TWK1"
_HEADER = struct.Struct("<4sBBHQ")
_MORE = 1
"""Flag of a keyed record: the next record is of the same request."""
Content = Dict[bytes, Entry]


class KeyedRecord(NamedTuple):
    """What a record of a table says."""

    key: bytes
    value: Optional[bytes]
    """None: the key is deleted."""
    revision: int
    """The revision that the key has with this value: the record's LSN, unless an earlier record was moved."""
    more: bool
    """The next record is of the same request."""


def parse_keyed(lsn: int, payload: bytes) -> KeyedRecord:
    """The keyed record with this LSN. Raises ValueError."""
    if len(payload) < KEYED_HEADER_SIZE or not payload.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    _, kind, flags, key_size, revision = _HEADER.unpack_from(payload)
    if flags & ~_MORE:
        raise ValueError("unknown flags %#04x" % flags)
    place = KEYED_HEADER_SIZE + key_size
    if place > len(payload):
        raise ValueError("it ends within its key")
    key, value = payload[KEYED_HEADER_SIZE:place], payload[place:]
    if not 1 <= len(key) <= KEY_SIZE_MAX:
        raise ValueError("key of %d bytes: must be 1 to %d" % (len(key), KEY_SIZE_MAX))
    if len(value) > VALUE_SIZE_MAX:
        raise ValueError("value of %d bytes: must be at most %d" % (len(value), VALUE_SIZE_MAX))
    if revision >= lsn:
        raise ValueError("revision %d" % revision)
    if kind == frames.DELETE:
        if value or revision:
            raise ValueError("it deletes, with a %s" % ("value" if value else "revision"))
        return KeyedRecord(key, None, lsn, bool(flags))
    if kind != frames.PUT:
        raise ValueError("unknown kind %d" % kind)
    if revision and flags:
        raise ValueError("it was moved, within a request")
    return KeyedRecord(key, value, revision or lsn, bool(flags))


class Fold:
    """The content that is shown, and where it continues. Keys without `prefix` are left out.

    While the log is read from its first record on, a second map is built, which takes the place of the first one when it has
    caught up. So nobody sees half a table; what is different is told as changes.
    """

    def __init__(self, prefix: bytes) -> None:
        self.content: Content = {}
        self.seen = 0  # LSN of the last record that it shows
        self.changes: Deque[Change] = collections.deque()  # that nobody has taken
        self.next = 0  # LSN of the record to come; 0: the first that there is
        self.history = 0  # of the records before it
        self._prefix = prefix
        self._second: Optional[Content] = {}
        self._request: List[KeyedRecord] = []  # of which more is to come

    def begin_again(self) -> None:
        """Records were missed, deletes among them."""
        self._second, self._request = {}, []
        self.next = self.history = 0

    def take(self, event: FollowEvent) -> None:
        """The next event."""
        if isinstance(event, Record):
            return self._on_record(event)
        if isinstance(event, (CaughtUp, Turn)):
            self._on_everything(event.next)
        self.changes.append(event)

    def _on_record(self, record: Record) -> None:
        try:
            keyed = parse_keyed(record.lsn, record.payload)
        except ValueError:
            more = False  # what is not keyed changes no key
        else:
            more = keyed.more
            if keyed.key.startswith(self._prefix):
                self._request.append(keyed)
        if not more:
            self._on_request(record.lsn)
        self.next = record.lsn + 1  # last: who is interrupted before reads it again, which changes nothing

    def _on_request(self, last: int) -> None:
        shown = self._second is None
        content = self.content if self._second is None else self._second
        for keyed in self._request:
            change = _fold(content, keyed)
            if change and shown:
                self.changes.append(change)
        if shown:
            self.seen = last
        self._request = []

    def _on_everything(self, next_lsn: int) -> None:
        self.next, self.seen = next_lsn, next_lsn - 1
        if self._second is not None:
            before, self.content, self._second = self.content, self._second, None
            self.changes.extend(_differences(before, self.content))


def _fold(content: Content, keyed: KeyedRecord) -> Optional[Change]:
    """What the record changes; None for a move, and for a key that is absent already."""
    key, value, revision, _ = keyed
    before = content.get(key)
    if value is None:
        return None if content.pop(key, None) is None else Deleted(key)
    if before and before.revision == revision:
        return None
    content[key] = Entry(value, revision)
    return Put(key, value, revision)


def _differences(before: Content, after: Content) -> List[Change]:
    """The changes that make one of the other: deleted keys, then puts, each in the order of their keys."""
    deleted = [Deleted(key) for key in before if key not in after]
    # Not the revisions alone: after an accepted loss other records have the same LSNs.
    puts = [Put(key, *entry) for key, entry in after.items() if before.get(key) != entry]
    return [*sorted(deleted), *sorted(puts)]
