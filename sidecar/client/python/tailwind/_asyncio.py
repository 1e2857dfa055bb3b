"""The asyncio client: waits in the event loop. Everything else is in the session."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Callable, Dict, Generator, Generic, Iterable, Optional, Set, Type, TypeVar, cast

from . import _frames as frames
from ._connection import Connection, Path
from ._session import SEND_AT
from ._session import Reading as SessionReading
from .errors import Error
from .types import FollowEvent, PassedBarrier, Position, Record, TailEvent

E = TypeVar("E", bound=FollowEvent)
Failures = Dict[int, Error]
"""Why appends of `submit` failed, by number, as long as nobody knows: `flush` tells."""
FAILURES_MAX = 1024
"""Beyond it, only the first ones are told."""


class AsyncClient(Connection):
    """One connection to a sidecar, for all tasks of one event loop: `async with AsyncClient(path) as log`, or
    `log = await AsyncClient(path)`.

    `hold`: be connected only once the sidecar is primary. Appends of several tasks are pipelined, in the order of their calls.
    While a read, tail or follow runs, the client can do nothing else: give it a client of its own. Left without an exception, an
    `async with` block flushes.

    A call that is cancelled (`asyncio.wait_for`, `asyncio.timeout`) leaves the client as it was, but a cancelled append has an
    unknown outcome: it may be in flight.

    Connecting raises `CannotConnect`, `NotAllowed`, `Retry` (all connections are taken) or `NotPrimary` (`hold` at a reader).
    """

    def __init__(self, path: Path, hold: bool = False) -> None:
        super().__init__(path, hold)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._asked: Dict[int, asyncio.Future[Any]] = {}  # the waiter for each answer
        self._failed: Failures = {}
        self._waiters: Set[asyncio.Future[None]] = set()
        self._send_is_due = self._writes = self._reads = False

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncClient:
        return await self._connect()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self.close()

    async def _connect(self) -> AsyncClient:
        if self._loop is not None:
            raise RuntimeError("this client was connected before: make another one")
        loop = asyncio.get_running_loop()
        self._open()
        self._loop = loop
        self._turn = asyncio.Lock()  # first come, first served, among tasks that wait for room
        self._watch()
        self._send_soon()
        try:
            await self._answer_to(self._session.hello)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Closes the connection at once. Appends in flight have an unknown outcome, and raise `Disconnected`."""
        if self._loop is not None:
            self._session.disconnected("this client was closed")
            self._deliver()

    # Appending.

    async def append(self, record: bytes) -> int:
        """Appends one record; returns its LSN once every current backup has it.

        Raises `NotPrimary`, `Retry` or `TooLarge`: not appended. `UnknownOutcome`, `Disconnected`, or cancelled: it may be in the
        log."""
        self._check()
        return await (await self._submit(frames.APPEND, self._session.record(record)))

    async def append_batch(self, records: Iterable[bytes]) -> int:
        """Appends several records, of which all or none survive; returns the last one's LSN. Raises as `append`."""
        self._check()
        return await (await self._submit(frames.BATCH, self._session.batch(records)))

    async def submit(self, record: bytes) -> asyncio.Future[int]:
        """Takes one record without waiting for its ack, which comes as the future's result: its LSN, or what `append` raises. Waits
        while as many as the welcome's `inflight_max` are in flight. Await the future, or `flush`."""
        self._check()
        return await self._submit(frames.APPEND, self._session.record(record), self._failed)

    async def submit_batch(self, records: Iterable[bytes]) -> asyncio.Future[int]:
        """Takes a batch without waiting for its ack, as `submit` does."""
        self._check()
        return await self._submit(frames.BATCH, self._session.batch(records), self._failed)

    async def flush(self) -> Optional[int]:
        """Waits until everything that was submitted before the call is answered. Raises the first error of a `submit` whose
        future nobody has awaited (what `asyncio.gather` or `asyncio.shield` awaits does not count); call again for the rest.
        Returns the last LSN acknowledged to this client, None if there is none."""
        self._check()
        in_flight = self._session.in_flight
        last = next(reversed(in_flight), 0)
        await self._until(lambda: next(iter(in_flight), last + 1) > last)
        for number in self._failed:
            raise self._failed.pop(number)
        return self.acked

    # Reading and the rest.

    def read(self, first: int, limit: int = 0, history: int = 0) -> AsyncReading[Record]:
        """Yields acknowledged records from an LSN on: all there are now, or as many as `limit`. `history`: in which the app has read
        the records before; then `BeyondEnd` if the log was cut and lacks one of them.

        Raises `NotPrimary`, `Trimmed`, `BeyondEnd`, `Retry` or `Disconnected`, as its first event or later."""
        self._check()
        return AsyncReading(self, self._session.read("read", first, limit, 0, history))

    def read_anywhere(self, first: int = 0, limit: int = 0, history: int = 0) -> AsyncReading[Record]:
        """As `read`, in any role of the sidecar, and with 0 from the first record that there is. Off the primary, what was
        acknowledged last may be missing."""
        self._check()
        return AsyncReading(self, self._session.read("read", first, limit, frames.ANYWHERE, history))

    def tail(self, first: int, history: int = 0) -> AsyncReading[TailEvent]:
        """As `read`, then continues with new records; yields `CaughtUp` whenever it has caught up."""
        self._check()
        return AsyncReading(self, self._session.read("tail", first, 0, frames.TAIL, history))

    def follow(self, first: int = 0, history: int = 0) -> AsyncReading[FollowEvent]:
        """As `tail`, in any role of the sidecar, and with 0 from the first record that there is. Yields a `Lag` at most twice a
        second; ends with `Turn` when this sidecar is primary and every record has been seen. Append then."""
        self._check()
        return AsyncReading(self, self._session.follow(first, history))

    async def position(self) -> Position:
        """A position of the primary's log, taken after the call began and asked through any sidecar. Raises `Retry` if the primary
        cannot be asked."""
        self._check()
        self._session.check_version("a position")
        return cast(Position, await self._ask(frames.POSITION))

    async def barrier(self) -> PassedBarrier:
        """Proves that this sidecar was still primary after the call began. Raises `NotPrimary`."""
        return cast(PassedBarrier, await self._ask(frames.BARRIER))

    async def sync(self) -> int:
        """Waits until everything appended before the call is on disk at every member, in any durability of the group; returns the
        last LSN of which that is true. Raises `NotPrimary`."""
        return cast(int, await self._ask(frames.SYNC))

    async def trim(self, below: int) -> int:
        """Lets go of records below an LSN, in whole segments; returns the first that can still be read. Raises `NotPrimary`."""
        self._check()
        return cast(int, await self._ask(frames.TRIM, self._session.lsn(below)))

    async def status(self) -> Dict[str, Any]:
        """The sidecar's report: what `tailwind-sidecar status --json` prints."""
        return cast(Dict[str, Any], await self._ask(frames.STATUS))

    # Waiting.

    def _check(self) -> None:
        if self._loop is None:
            raise RuntimeError("this client is not connected: use it in `async with`, or await it first")
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this client belongs to another event loop: connect one in each")

    async def _submit(self, kind: int, body: bytes, failures: Optional[Failures] = None) -> asyncio.Future[int]:
        assert self._loop is not None
        async with self._turn:
            await self._until(self._session.may_submit)
            number = self._session.submit(kind, body)
            future = self._loop.create_future() if failures is None else _Submitted(number, failures, self._loop)
            self._asked[number] = future
        self._send_soon()
        return future

    async def _ask(self, kind: int, body: bytes = b"") -> object:
        self._check()
        async with self._turn:
            self._session.check()
            await self._until(self._session.settled)
            number = self._session.ask(kind, body)
        self._send_soon()
        return await self._answer_to(number)

    async def _answer_to(self, number: int) -> object:
        assert self._loop is not None
        self._asked[number] = future = self._loop.create_future()
        return await future

    async def _until(self, done: Callable[[], bool]) -> None:
        assert self._loop is not None
        while not done():
            self._session.check()
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Bytes.

    def _send_soon(self) -> None:
        """What is submitted in one turn of the loop leaves in one system call."""
        assert self._loop is not None
        if len(self._session.outbox) >= SEND_AT:
            self._send()
        elif not self._send_is_due:
            self._send_is_due = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        assert self._loop is not None
        self._send_is_due = False
        if self._session.end:
            return
        self._transmit()
        writes = bool(self._session.outbox)
        if writes and not self._writes:
            self._loop.add_writer(self._socket, self._send)
        elif self._writes and not writes:
            self._loop.remove_writer(self._socket)
        self._writes = writes
        self._wake()

    def _on_readable(self) -> None:
        self._receive()
        self._deliver()

    def _deliver(self) -> None:
        assert self._loop is not None
        session = self._session
        if self._loop.is_closed():
            return self._socket.close()  # nobody waits any more
        answers, session.answers = session.answers, {}
        for number, answer in answers.items():
            future = self._asked.pop(number)
            if isinstance(answer, Error) and isinstance(future, _Submitted) and len(self._failed) < FAILURES_MAX:
                self._failed[number] = answer
            if future.done():
                continue  # cancelled
            if isinstance(answer, Error):
                future.set_exception(answer)
                future.exception()  # not to be logged if nobody waits any more: flush tells
            else:
                future.set_result(answer)
        if session.end:
            self._unwatch()
            self._socket.close()
        else:
            self._watch()
        self._wake()

    def _watch(self) -> None:
        """Takes in what comes, except while the app has events that it has not taken: the sidecar waits then."""
        assert self._loop is not None
        reading = self._session.reading
        reads = reading is None or not reading.events
        if reads and not self._reads:
            self._loop.add_reader(self._socket, self._on_readable)
        elif self._reads and not reads:
            self._loop.remove_reader(self._socket)
        self._reads = reads

    def _unwatch(self) -> None:
        assert self._loop is not None
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._reads = self._writes = False


class _Submitted(asyncio.Future):  # type: ignore[type-arg]  # Python 3.9
    """The answer to a `submit`. Its failure is reported once the result is taken; `exception` does not count, which
    `asyncio.shield` calls by itself when nobody waits any more."""

    def __init__(self, number: int, failures: Failures, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._number, self._failures = number, failures

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from super().__await__())
        finally:
            self._failures.pop(self._number, None)

    def result(self) -> Any:
        self._failures.pop(self._number, None)
        return super().result()


class AsyncReading(Generic[E]):
    """The events of a read, tail or follow, as they come. It is asked for with its first event; until it ends, the client can do
    nothing else. Waiting for an event may be cancelled. Left with `break`, closed or no longer referred to, it is stopped."""

    def __init__(self, client: AsyncClient, reading: SessionReading) -> None:
        self._client, self._reading = client, reading

    @property
    def history(self) -> int:
        """The history of the records that were yielded, 0 if unknown: name it to continue after them later."""
        return self._reading.history

    def __aiter__(self) -> AsyncReading[E]:
        return self

    async def __anext__(self) -> E:
        client, reading = self._client, self._reading
        if not reading.events:
            await self._wait()
        event = reading.take()
        if not reading.events and not client._reads and not client._session.end:
            client._watch()
        if event is None:
            raise StopAsyncIteration
        return cast(E, event)

    async def _wait(self) -> None:
        client, reading = self._client, self._reading
        client._check()
        session = client._session
        if not reading.request and not reading.ended:
            async with client._turn:
                session.check()
                await client._until(session.settled)
                session.start(reading)
            client._send_soon()
        await client._until(reading.ready)

    async def __aenter__(self) -> AsyncReading[E]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops it, and waits until the sidecar has confirmed that."""
        client = self._client
        client._check()
        self._stop()
        await client._until(lambda: client._session.reading is not self._reading)

    def _stop(self) -> None:
        client = self._client
        client._session.stop(self._reading)
        if not client._session.end:
            client._watch()
            client._send_soon()

    def __del__(self) -> None:
        client, reading = self._client, self._reading
        reading.abandoned = True
        if client._loop is not None and client._session.reading is reading and not client._session.end:
            try:
                client._loop.call_soon_threadsafe(self._stop)  # the garbage collector may run in another thread
            except RuntimeError:
                pass  # the loop is closed
