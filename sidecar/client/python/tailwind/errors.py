"""Errors, named by what the caller does next. Their text names the socket.

A wrong argument is a `TypeError` or `ValueError`, and a call in the wrong place a `RuntimeError`: nothing was sent, and the
program has to be corrected.
"""

from __future__ import annotations

import enum
from typing import Dict, Optional, Type

RETRY_AFTER_DEFAULT = 0.1
"""Seconds before another attempt where the sidecar gives no advice."""


class ErrorCode(enum.Enum):
    """Why the sidecar refused. The class of an error says what to do about it."""

    BAD_FRAME = 1
    UNSUPPORTED_VERSION = 2
    NOT_PRIMARY = 3
    TOO_LARGE = 4
    TRIMMED = 5
    BEYOND_END = 6
    NOT_ALLOWED = 7
    UNKNOWN_OUTCOME = 8
    READING = 9
    BUSY = 10
    SHUTTING_DOWN = 11
    UNAVAILABLE = 12
    TABLE_FULL = 13
    WRONG_KIND = 14


class Error(Exception):
    """Why a call failed."""

    code: Optional[ErrorCode]
    """The sidecar's reason; None if the sidecar did not say this."""

    def __init__(self, message: str, code: Optional[ErrorCode] = None) -> None:
        super().__init__(message)
        self.code = code


class CannotConnect(Error, ConnectionError):
    """No sidecar behind this path, or not yet: try again later. `errno` is the system's."""


class Disconnected(Error, ConnectionError):
    """The connection is over. Appends in flight have an unknown outcome: connect again, then as after `UnknownOutcome`."""


class ProtocolError(Disconnected):
    """The other end does not keep to the protocol: an administrator must look."""


class TimedOut(Error, TimeoutError):
    """`timeout` passed without a word from the sidecar. Nothing is lost: what was in flight still is, and `flush` waits for it;
    a read, tail or follow continues with its next event."""

    in_flight: Optional[int]
    """The ticket of the append that the call waited for. None for every other call, and if there was no room to take the
    record: then it is not in flight, and will not be in the log."""

    def __init__(self, message: str, in_flight: Optional[int] = None) -> None:
        super().__init__(message)
        self.in_flight = in_flight


class NotPrimary(Error):
    """Nothing was done: go to the primary, or follow here until it is this sidecar's turn. Before that, a connection takes no
    append behind one that was refused, even if the sidecar becomes primary."""

    primary: Optional[str]
    """Name of the primary's sidecar, if known."""

    def __init__(self, message: str, code: Optional[ErrorCode] = None, primary: Optional[str] = None) -> None:
        super().__init__(message, code)
        self.primary = primary


class UnknownOutcome(Error):
    """The append may or may not be in the log: connect again, and read from the last acknowledged LSN + 1 to find out."""


class TooLarge(Error):
    """Nothing was appended: split the record or batch."""


class Trimmed(Error):
    """The records have been trimmed: load a snapshot that covers them, and read from there."""


class BeyondEnd(Error):
    """The log ends before this LSN. The state is of another log, or of records whose loss was accepted: load a snapshot that this
    log covers."""


class Mismatch(Error):
    """Nothing was done, because a condition of a table's request did not hold: look at the key, and decide again."""

    operation: int
    """The first operation whose condition did not hold; they count from 0."""
    revision: Optional[int]
    """The revision that its key has instead; None: it is absent."""

    def __init__(self, message: str, operation: int, revision: Optional[int]) -> None:
        super().__init__(message)
        self.operation, self.revision = operation, revision


class TableFull(Error):
    """Nothing was done, because the table has no room for what the request adds: delete keys, put smaller values, or have the
    table enlarged. The text says which bound was reached."""


class WrongKind(Error):
    """Nothing was done, because the group keeps a table and this is a call for a log, or the other way round."""


class Retry(Error):
    """Nothing was done: the same call may succeed later."""

    retry_after: float
    """Seconds to wait before that."""

    def __init__(
        self, message: str, code: Optional[ErrorCode] = None, retry_after: float = RETRY_AFTER_DEFAULT
    ) -> None:
        super().__init__(message, code)
        self.retry_after = retry_after


class NotAllowed(Error):
    """This user may not use the socket: an administrator must allow it."""


class Refused(Error):
    """The sidecar will not do this, now or later: `code` and the text say why."""


_CLASSES: Dict[ErrorCode, Type[Error]] = {
    ErrorCode.NOT_PRIMARY: NotPrimary,
    ErrorCode.TOO_LARGE: TooLarge,
    ErrorCode.TRIMMED: Trimmed,
    ErrorCode.BEYOND_END: BeyondEnd,
    ErrorCode.NOT_ALLOWED: NotAllowed,
    ErrorCode.UNKNOWN_OUTCOME: UnknownOutcome,
    ErrorCode.BUSY: Retry,
    ErrorCode.UNAVAILABLE: Retry,
    ErrorCode.SHUTTING_DOWN: Disconnected,
    ErrorCode.TABLE_FULL: TableFull,
    ErrorCode.WRONG_KIND: WrongKind,
}


def refusal(peer: str, code: ErrorCode, message: str, retry_after: float, primary: Optional[str]) -> Error:
    """The error for what the sidecar behind `peer` answered. `retry_after` is 0 without advice."""
    kind = _CLASSES.get(code, Refused)
    message = "%s: %s" % (peer, message)
    if kind is Retry:
        retry_after = retry_after or RETRY_AFTER_DEFAULT
        return Retry("%s; try again in %g s" % (message, retry_after), code, retry_after)
    if kind is NotPrimary:
        return NotPrimary(message + " (nothing was done)", code, primary)
    if kind is UnknownOutcome:
        return UnknownOutcome(message + " (the append may be in the log: connect again, and read to find out)", code)
    return kind(message, code)
