"""The blocking client: waits in `poll`. Everything else is in the session."""

from __future__ import annotations

import select
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Generic, Iterable, Iterator, Optional, Tuple, Type, TypeVar, Union, cast

from . import _frames as frames
from ._connection import Connection, Path
from ._session import Reading as SessionReading
from .errors import Error, TimedOut
from .types import FollowEvent, PassedBarrier, Position, Record, TailEvent, Ticket

E = TypeVar("E", bound=FollowEvent)
TIMEOUT_MAX = (2**31 - 1) // 1000
"""Seconds that poll(2) can wait: 24 days."""
OUTSTANDING_MAX = 1 << 20
"""Answers that may wait to be taken: some 100 bytes each, so 100 MiB."""


class Client(Connection):
    """One connection to a sidecar, for one thread at a time.

    `hold`: return only once the sidecar is primary. `timeout`: longest wait in seconds without a word from the sidecar, then
    `TimedOut`; None waits for as long as the connection lives. Left without an exception, a `with` block flushes.

    Raises `CannotConnect`, `NotAllowed`, `Retry` (all connections are taken), `NotPrimary` (`hold` at a reader) or `TimedOut`.
    """

    def __init__(self, path: Path, hold: bool = False, timeout: Optional[float] = None) -> None:
        super().__init__(path, hold)
        self._one_call = _OneCall(self)
        self._poll = select.poll()
        self.timeout = timeout
        self._open()
        try:
            with self._one_call:
                self._wait_for(self._session.hello)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection at once. Appends in flight have an unknown outcome."""
        self._socket.close()
        self._session.disconnected("this client was closed")

    @property
    def timeout(self) -> Optional[float]:
        """Longest wait in seconds without a word from the sidecar; None waits for as long as the connection lives."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: Optional[float]) -> None:
        if seconds is not None and not 0 < seconds <= TIMEOUT_MAX:
            raise ValueError("timeout %r: must be a number of seconds above 0 and at most %d, or None" % (seconds, TIMEOUT_MAX))
        self._timeout = seconds

    # Appending.

    def append(self, record: bytes) -> int:
        """Appends one record; returns its LSN once every current backup has it.

        Raises `NotPrimary`, `Retry` or `TooLarge`: not appended. `UnknownOutcome`, `Disconnected`: it may be in the log.
        `TimedOut`: in flight, if its `in_flight` is a ticket; with None it was not taken, and will not be in the log."""
        return self.wait(self.submit(record))

    def append_batch(self, records: Iterable[bytes]) -> int:
        """Appends several records, of which all or none survive; returns the last one's LSN. Raises as `append`."""
        return self.wait(self.submit_batch(records))

    def submit(self, record: bytes) -> Ticket:
        """Takes one record without waiting for its ack. Records gather until 64 KiB have come together or a call waits. Waits
        while as many as the welcome's `inflight_max` are in flight."""
        return self._submit(frames.APPEND, self._session.record(record))

    def submit_batch(self, records: Iterable[bytes]) -> Ticket:
        """Takes a batch without waiting for its ack."""
        return self._submit(frames.BATCH, self._session.batch(records))

    def wait(self, ticket: Ticket) -> int:
        """The LSN of one submitted append, or its error. Answers to others are kept."""
        session = self._session
        with self._one_call:
            if ticket not in session.in_flight and ticket not in session.answers:
                raise ValueError("ticket %d: its answer was taken, or it is not of this client" % ticket)
            try:
                return cast(int, self._wait_for(ticket))
            except TimedOut as error:
                error.in_flight = ticket
                raise

    def acks(self, wait: bool = False) -> Iterator[Tuple[Ticket, Union[int, Error]]]:
        """Yields each ticket whose answer was not taken, with its LSN or error: those received or, with `wait`, all in flight."""
        session = self._session
        while session.answers or (wait and session.in_flight):
            with self._one_call:
                self._wait(lambda: bool(session.answers))
            for ticket in list(session.answers):
                if ticket in session.answers:
                    yield Ticket(ticket), session.answers.pop(ticket)

    def flush(self) -> Optional[int]:
        """Waits until nothing is in flight and takes all answers. Raises the first error met; call again for the rest. Returns the
        last LSN acknowledged to this client, None if there is none."""
        for _, answer in self.acks(wait=True):
            if isinstance(answer, Error):
                raise answer
        return self.acked

    # Reading and the rest.

    def read(self, first: int, limit: int = 0, history: int = 0) -> Reading[Record]:
        """Yields acknowledged records from an LSN on: all there are now, or as many as `limit`. `history`: in which the app has read
        the records before; then `BeyondEnd` if the log was cut and lacks one of them.

        Raises `NotPrimary`, `Trimmed`, `BeyondEnd`, `Retry` or `Disconnected`, as its first event or later."""
        return Reading(self, self._session.read("read", first, limit, 0, history))

    def read_anywhere(self, first: int = 0, limit: int = 0, history: int = 0) -> Reading[Record]:
        """As `read`, in any role of the sidecar, and with 0 from the first record that there is. Off the primary, what was
        acknowledged last may be missing."""
        return Reading(self, self._session.read("read", first, limit, frames.ANYWHERE, history))

    def tail(self, first: int, history: int = 0) -> Reading[TailEvent]:
        """As `read`, then continues with new records; yields `CaughtUp` whenever it has caught up."""
        return Reading(self, self._session.read("tail", first, 0, frames.TAIL, history))

    def follow(self, first: int = 0, history: int = 0) -> Reading[FollowEvent]:
        """As `tail`, in any role of the sidecar, and with 0 from the first record that there is. Yields a `Lag` at most twice a
        second; ends with `Turn` when this sidecar is primary and every record has been seen. Append then."""
        return Reading(self, self._session.follow(first, history))

    def position(self) -> Position:
        """A position of the primary's log, taken after the call began and asked through any sidecar. Raises `Retry` if the primary
        cannot be asked."""
        self._session.check_version("a position")
        return cast(Position, self._ask(frames.POSITION))

    def barrier(self) -> PassedBarrier:
        """Proves that this sidecar was still primary after the call began. Raises `NotPrimary`."""
        return cast(PassedBarrier, self._ask(frames.BARRIER))

    def sync(self) -> int:
        """Waits until everything appended before the call is on disk at every member, in any durability of the group; returns the
        last LSN of which that is true. Raises `NotPrimary`."""
        return cast(int, self._ask(frames.SYNC))

    def trim(self, below: int) -> int:
        """Lets go of records below an LSN, in whole segments; returns the first that can still be read. Raises `NotPrimary`."""
        return cast(int, self._ask(frames.TRIM, self._session.lsn(below)))

    def status(self) -> Dict[str, Any]:
        """The sidecar's report: what `tailwind-sidecar status --json` prints."""
        return cast(Dict[str, Any], self._ask(frames.STATUS))

    # Waiting.

    def _submit(self, kind: int, body: bytes) -> Ticket:
        session = self._session
        with self._one_call:
            if not session.may_submit():
                self._wait(session.may_submit)
            if len(session.answers) >= OUTSTANDING_MAX:
                raise RuntimeError("%d answers wait to be taken: call flush, wait or acks" % OUTSTANDING_MAX)
            return Ticket(session.submit(kind, body))

    def _ask(self, kind: int, body: bytes = b"") -> object:
        session = self._session
        with self._one_call:
            session.check()
            self._wait(session.settled)
            number = session.ask(kind, body)
            try:
                return self._wait_for(number)
            except BaseException:
                session.forget(number)
                raise

    def _wait_for(self, number: int) -> object:
        answers = self._session.answers
        self._wait(lambda: number in answers)
        answer = answers.pop(number)
        if isinstance(answer, Error):
            raise answer
        return answer

    def _wait(self, done: Callable[[], bool]) -> None:
        """Exchanges bytes until `done()`. Never waits in one direction alone: a sidecar whose acks are not read stops reading."""
        session = self._session
        while not done():
            session.check()
            if self._transmit():
                continue
            self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if session.outbox else 0))
            self._one_call.sleeps = True
            ready = self._poll.poll(None if self._timeout is None else self._timeout * 1000)
            self._one_call.sleeps = False
            if not ready:
                raise TimedOut(
                    "%s: no answer within %g s; what is in flight stays in flight" % (session.peer, self._timeout or 0)
                )
            if ready[0][1] & ~select.POLLOUT:
                self._receive()


class Reading(Generic[E]):
    """The events of a read, tail or follow, as they come. It is asked for with its first event; until it ends, the client can do
    nothing else. A `TimedOut` leaves it as it was. Left with `break`, closed or no longer referred to, it is stopped."""

    def __init__(self, client: Client, reading: SessionReading) -> None:
        self._client, self._reading = client, reading

    @property
    def history(self) -> int:
        """The history of the records that were yielded, 0 if unknown: name it to continue after them later."""
        return self._reading.history

    def __iter__(self) -> Reading[E]:
        return self

    def __next__(self) -> E:
        client, reading = self._client, self._reading
        if reading.events:
            return cast(E, reading.events.popleft())
        with client._one_call:
            session = client._session
            if not reading.request and not reading.ended:
                session.check()
                client._wait(session.settled)
                session.start(reading)
            client._wait(reading.ready)
            event = reading.take()
        if event is None:
            raise StopIteration
        return cast(E, event)

    def __enter__(self) -> Reading[E]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops it, and waits until the sidecar has confirmed that."""
        client = self._client
        with client._one_call:
            session = client._session
            session.stop(self._reading)
            client._wait(lambda: session.reading is not self._reading)

    def __del__(self) -> None:
        client, reading = self._client, self._reading
        reading.abandoned = True
        if client._session.reading is reading and client._one_call.try_enter():
            # Does not wait: that is left to the next call.
            client._session.stop(reading)
            client._transmit()
            client._one_call.leave()


_REFUSALS = (Error, TypeError, ValueError, RuntimeError)
"""What a call raises by itself. Anything else comes from outside: from a signal, or for want of memory."""


class _OneCall:
    """Lets one call at a time into a client. A client whose call was interrupted while it counted bytes is lost: whether they were
    sent is not known."""

    def __init__(self, client: Client) -> None:
        self._client, self._lock = client, threading.Lock()
        self.sleeps = False  # nothing is half done

    def try_enter(self) -> bool:
        return self._lock.acquire(False)

    def leave(self) -> None:
        self.sleeps = False
        self._lock.release()

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            raise RuntimeError(
                "%s: another thread, or what a signal has interrupted, is in a call of this client: give each its own"
                % self._client._session.peer
            )

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        if kind is not None and not self.sleeps and not issubclass(kind, _REFUSALS):
            self._client._session.disconnected("a call was interrupted half-way (%s)" % kind.__name__)
        self.leave()
