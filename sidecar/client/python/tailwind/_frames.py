"""Bytes of the append socket (docs/append-socket.md). The session calls this; it knows nobody."""

from __future__ import annotations

import struct
from typing import List, Optional, Sequence, Tuple

from .errors import ErrorCode
from .types import Entry, Got, Record, Role, Welcome

VERSION_MIN, VERSION = 1, 4
VERSION_FOLLOW = 2
"""Since this version sidecars know `FOLLOW`, `POSITION` and the flag `ANYWHERE`."""
VERSION_HISTORY = 3
"""Since this version sidecars know `HISTORY`."""
VERSION_TABLE = 4
"""Since this version sidecars know `APPLY`, `GET` and their answers, and say in the welcome whether the group keeps a table."""
BODY_SIZE_MAX = 32 << 20

HELLO, APPEND, BATCH, READ, BARRIER, TRIM, STATUS, STOP = range(1, 9)
FOLLOW, POSITION, APPLY, GET, SYNC = 10, 11, 12, 13, 16
WELCOME, ACK, ERROR, RECORDS, END, PASSED, TRIMMED, REPORT, ROLE = range(129, 138)
TURN, LAG, LOG_POSITION, HISTORY, SYNCED, MISMATCH, VALUE = range(139, 146)

HOLD = 1
"""Flag of `HELLO`: be welcomed only once the sidecar is primary."""
TAIL, ANYWHERE = 1, 2
"""Flags of `READ`."""
FRESH, OLDER, NO_VALUE = 1, 2, 4
"""Flags of `GET`."""
TABLE = 2
"""Flag of `WELCOME`: this group keeps a table."""
CONTINUES = 1
"""Flag of `END`: caught up, and more is to come."""
BEHIND_UNKNOWN = (1 << 32) - 1

HEADER = struct.Struct("<IBBHQ")
"""Length of the body, kind, flags, reserved, request number."""
HEADER_SIZE = HEADER.size
U32, U64, TWO_U64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<QQ")
ACK_FRAME = struct.Struct("<IBBHQQ")
"""A whole `ACK`: they come in long runs."""
LAG_BODY = struct.Struct("<QII")
_HELLO = struct.Struct("<8sHHI")
_READ = struct.Struct("<QQII")
_WELCOME = struct.Struct("<HBBIIIIHHQQQ")
_ROLE = struct.Struct("<B7xQQ")
_ERROR = struct.Struct("<HBxI")
_RUN = struct.Struct("<II")
_RECORDS = struct.Struct("<QII")
_OPERATIONS = struct.Struct("<H6x")
_OPERATION = struct.Struct("<BBHIQ")
_MISMATCH = struct.Struct("<H6xQ")
_GET = struct.Struct("<HH4xQ")
_VALUE = struct.Struct("<BB6xQQ")

PUT, DELETE, COPY, REQUIRE = 1, 2, 3, 4
"""Kinds of operations in an `APPLY`. Keyed records have the first two as well."""
ONLY_IF = 1
"""Flag of an operation: only if the key has the revision."""


def hello(hold: bool) -> bytes:
    """Body of a `HELLO`."""
    return _HELLO.pack(b"TWAPPEND", VERSION_MIN, VERSION, HOLD if hold else 0)


def batch(records: Sequence[bytes]) -> bytes:
    """Body of a `BATCH`."""
    parts = [_RUN.pack(len(records), 0)]
    for record in records:
        parts += U32.pack(len(record)), record
    return b"".join(parts)


def read(first: int, limit: int, flags: int, history: int) -> bytes:
    """Body of a `READ`."""
    return _READ.pack(first, limit, flags, 0) + (U64.pack(history) if history else b"")


def follow(first: int, history: int) -> bytes:
    """Body of a `FOLLOW`."""
    return TWO_U64.pack(first, history)


def operation(kind: int, flags: int, key: bytes, value: bytes, revision: int) -> bytes:
    """One operation of an `APPLY`."""
    return _OPERATION.pack(kind, flags, len(key), len(value), revision) + key + value


def apply(operations: Sequence[bytes]) -> bytes:
    """Body of an `APPLY`."""
    return _OPERATIONS.pack(len(operations)) + b"".join(operations)


def get(key: bytes, least: int, flags: int) -> bytes:
    """Body of a `GET`."""
    return _GET.pack(flags, len(key), least) + key


def parse_welcome(body: bytes) -> Welcome:
    """What a `WELCOME` says. Raises ValueError or struct.error, as all of these do."""
    fields = _WELCOME.unpack_from(body)
    if not VERSION_MIN <= fields[0] <= VERSION:
        raise ValueError("version %d was not offered" % fields[0])
    if fields[6] == 0:
        raise ValueError("no append may be in flight")
    sizes = (min(size, BODY_SIZE_MAX) for size in fields[3:5])  # no frame can carry more
    name, table = _name(body[_WELCOME.size :]), fields[2] & TABLE != 0
    return Welcome._make((fields[0], Role(fields[1]), *sizes, *fields[5:], name, table))


class ParsedRole:
    """What a `ROLE` says."""

    def __init__(self, body: bytes) -> None:
        role, self.epoch, _last = _ROLE.unpack_from(body)
        self.role = Role(role)
        self.primary = _name(body[_ROLE.size :])


class ParsedError:
    """What an `ERROR` says."""

    def __init__(self, body: bytes) -> None:
        code, fatal, retry_after_ms = _ERROR.unpack_from(body)
        self.code, self.fatal, self.retry_after = ErrorCode(code), fatal != 0, retry_after_ms / 1000
        self.message = body[_ERROR.size :].decode()


def parse_records(body: bytes) -> List[Record]:
    """The records of a `RECORDS`."""
    first, count, _ = _RECORDS.unpack_from(body)
    place, length_of = _RECORDS.size, U32.unpack_from
    records = []
    for lsn in range(first, first + count):
        start = place + 4
        place = start + length_of(body, place)[0]
        records.append(Record(lsn, body[start:place]))
    if place != len(body):
        raise ValueError("its records take %d bytes of %d" % (place, len(body)))
    return records


def parse_mismatch(body: bytes) -> Tuple[int, Optional[int]]:
    """What a `MISMATCH` says: the operation, and the revision that its key has; None: the key is absent."""
    number, revision = _MISMATCH.unpack(body)
    return number, revision or None


def parse_value(body: bytes) -> Got:
    """What a `VALUE` says."""
    found, flags, revision, as_of = _VALUE.unpack_from(body)
    value = body[_VALUE.size :]
    is_older = found == 2
    if found not in (0, 1, 2) or (found == 1) != (revision != 0) or (found == 0 and value) or (is_older and as_of):
        raise ValueError("a value that no key has")
    entry = Entry(value, revision) if revision else None
    return Got(entry, value if is_older else None, None if is_older else as_of, bool(flags & 1))


def _name(text: bytes) -> Optional[str]:
    return text.decode() or None
