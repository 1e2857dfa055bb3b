"""What the clients return. All of these are tuples with names: they compare, unpack and print as such."""

from __future__ import annotations

import enum
from typing import Iterable, NamedTuple, NewType, Optional, Union

Ticket = NewType("Ticket", int)
"""Names one submitted append (a record or a batch) on its connection. Later ones are greater."""


class Role(enum.Enum):
    """What a sidecar is."""

    PRIMARY = 1
    """It accepts appends."""
    STANDBY = 2
    """It may become primary; until then it can be followed."""
    RECOVERING = 3
    """It is about to become primary."""
    READER = 4
    """It can be followed, and never becomes primary."""


class Welcome(NamedTuple):
    """What the sidecar said when the client connected."""

    version: int
    """Version of the append socket that both speak."""
    role: Role
    """The sidecar's role then; a client's `role` is the role now."""
    record_size_max: int
    """Largest record, in bytes."""
    batch_size_max: int
    """Largest batch, in bytes of log: see `batch_size`."""
    batch_records_max: int
    """Most records in a batch."""
    inflight_max: int
    """Most appends without an ack."""
    record_cost: int
    """Bytes of log that a record takes besides its payload, which is padded to a multiple of 8."""
    batch_cost: int
    """Bytes of log that a batch takes besides its records."""
    epoch: int
    """The epoch then, 0 if unknown."""
    first: int
    """First LSN that could be read, 0 if unknown."""
    last: int
    """Last acknowledged LSN, 0 if there was none or it was unknown."""
    primary: Optional[str]
    """Name of the primary's sidecar, if known."""
    table: bool
    """The group keeps a table, and not a log of plain records."""

    def batch_size(self, lengths: Iterable[int]) -> int:
        """Bytes of log that a batch of records of these lengths takes."""
        return self.batch_cost + sum(self.record_cost + (length + 7) // 8 * 8 for length in lengths)


class Record(NamedTuple):
    """A record of the log. It is acknowledged, and never disappears."""

    lsn: int
    """Its number in the log, from 1 on, without gaps."""
    payload: bytes
    """What was appended."""


class CaughtUp(NamedTuple):
    """Everything that the sidecar knows to be acknowledged has been seen."""

    next: int
    """LSN of the record to come."""


class Lag(NamedTuple):
    """How old the view of a follow is. Comes unasked, at most twice a second."""

    acked: int
    """Last LSN that the sidecar knows to be acknowledged."""
    behind: Optional[float]
    """Everything acknowledged this many seconds ago, and before, has been seen. None: unknown."""
    stale: bool
    """`behind` is unknown or above 0.3."""


class Turn(NamedTuple):
    """The end of a follow: every acknowledged record has been seen, and this sidecar is primary. Append now."""

    epoch: int
    """The epoch that this sidecar leads."""
    next: int
    """LSN of the record to come."""


class Position(NamedTuple):
    """A position of the primary's log: everything acknowledged before the question is at or before `last`."""

    epoch: int
    """The epoch of that primary."""
    last: int
    """The last acknowledged LSN there."""


class PassedBarrier(NamedTuple):
    """Proof that this sidecar was primary after the question."""

    epoch: int
    """The epoch that it led."""
    last: int
    """The last acknowledged LSN then."""


TailEvent = Union[Record, CaughtUp]
"""What a tail yields."""
FollowEvent = Union[Record, CaughtUp, Lag, Turn]
"""What a follow yields."""


class Entry(NamedTuple):
    """What a key of a table has."""

    value: bytes
    """Its value."""
    revision: int
    """LSN of the record that gave it this value: what a condition names."""


class Got(NamedTuple):
    """What a get has found."""

    entry: Optional[Entry]
    """The key's value and revision. None: the key is absent, or only an older value can be had."""
    older: Optional[bytes]
    """A value that the key had some time before the one that cannot be had; which revision it had is not known. Only where the
    get allows it."""
    as_of: Optional[int]
    """The entry, or that there is none, is the state after this LSN or after a later one. A get of another connection sees nothing
    older if it asks for this `least`. None with an older value."""
    stale: bool
    """What was acknowledged in the last 300 ms may be missing, or nobody knows how much. Never at the primary."""


class Put(NamedTuple):
    """A key of a table has this value from here on."""

    key: bytes
    """The key."""
    value: bytes
    """Its value."""
    revision: int
    """LSN of the record that gave it this value."""


class Deleted(NamedTuple):
    """A key of a table is absent from here on."""

    key: bytes
    """The key."""


Change = Union[Put, Deleted, CaughtUp, Lag, Turn]
"""What a local table tells."""
