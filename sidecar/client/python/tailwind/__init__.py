"""Client of Tailwind: records that are replicated once `append` returns, over the sidecar's Unix socket.

    from tailwind import Client

    with Client("/run/tailwind/default.sock") as log:
        lsn = log.append(b"one")                    # back once every current backup has it
        for n in range(100_000):
            log.submit(b"record %d" % n)            # pipelined
        log.flush()
        for lsn, record in log.read(lsn):           # acknowledged records only
            print(lsn, record)

`AsyncClient` has the same functions for asyncio, except `wait`, `acks` and `timeout`. A standby app follows the log, and takes over without reading it again:

    with Client("/run/tailwind/default.sock") as log:
        for event in log.follow(1):
            if isinstance(event, Record):
                print(event.lsn, event.payload)
            elif isinstance(event, Turn):           # this sidecar is primary, and every record has been seen
                break
        log.append(b"mine")

A group that keeps a table has keys in place of records: `Table` writes and gets them, and `LocalTable` follows them.

    with Table("/run/tailwind/default.sock") as table:
        revision = table.put(b"device/7", b"online")
        table.put_if(b"device/7", b"offline", revision)     # Mismatch if somebody has changed it

All are thin around one `Session` without I/O (`_session.py`); the bytes are in docs/append-socket.md. Python 3.9 or
later, Linux, no dependencies.
"""

from ._apply import Apply
from ._asyncio import AsyncClient, AsyncReading
from ._blocking import Client, Reading
from ._local_table import AsyncLocalTable, LocalTable
from ._table import AsyncTable, Table
from .errors import (
    BeyondEnd,
    CannotConnect,
    Disconnected,
    Error,
    ErrorCode,
    Mismatch,
    NotAllowed,
    NotPrimary,
    ProtocolError,
    Refused,
    Retry,
    TableFull,
    TimedOut,
    TooLarge,
    Trimmed,
    UnknownOutcome,
    WrongKind,
)
from .types import (
    CaughtUp,
    Change,
    Deleted,
    Entry,
    FollowEvent,
    Got,
    Lag,
    PassedBarrier,
    Position,
    Put,
    Record,
    Role,
    TailEvent,
    Ticket,
    Turn,
    Welcome,
)

__version__ = "0.1.0"  # that of the workspace

__all__ = [
    "Apply",
    "AsyncClient",
    "AsyncLocalTable",
    "AsyncReading",
    "AsyncTable",
    "BeyondEnd",
    "CannotConnect",
    "CaughtUp",
    "Change",
    "Client",
    "Deleted",
    "Disconnected",
    "Entry",
    "Error",
    "ErrorCode",
    "FollowEvent",
    "Got",
    "Lag",
    "LocalTable",
    "Mismatch",
    "NotAllowed",
    "NotPrimary",
    "PassedBarrier",
    "Position",
    "ProtocolError",
    "Put",
    "Reading",
    "Record",
    "Refused",
    "Retry",
    "Role",
    "Table",
    "TableFull",
    "TailEvent",
    "Ticket",
    "TimedOut",
    "TooLarge",
    "Trimmed",
    "Turn",
    "UnknownOutcome",
    "Welcome",
    "WrongKind",
]
