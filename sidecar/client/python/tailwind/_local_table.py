"""The reading side of a table, blocking and asyncio: its content in this process's memory.

What both are is in `_LocalTable`: a `Fold`, and which read comes next. How they wait is their own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import AsyncIterator, Iterator, Mapping, Optional

from . import _frames as frames
from ._arguments import to_bytes
from ._asyncio import AsyncClient, AsyncReading
from ._blocking import Client, Reading
from ._connection import Path
from ._fold import Fold
from ._session import Reading as SessionReading
from ._session import Session
from .errors import BeyondEnd, Disconnected, Error, TimedOut, Trimmed
from .types import Change, Entry, FollowEvent, Turn


class _LocalTable(Mapping[bytes, Entry]):
    """The content as of the last change that was taken, and the place in the log that goes with it."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self._path = os.fspath(path)
        self._fold = Fold(to_bytes(prefix, "a prefix"))
        self._tails = False  # the turn has come: a follow would end at once
        self._taking = threading.Lock()
        self._closed = False

    def __getitem__(self, key: bytes) -> Entry:
        return self._fold.content[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._fold.content)

    def __len__(self) -> int:
        return len(self._fold.content)

    @property
    def seen(self) -> int:
        """LSN of the last record that the content shows, 0 at first. Once it is the revision of a put, the LSN of a delete, or
        greater, the content shows that write, or one after it."""
        return self._fold.seen

    @contextlib.contextmanager
    def _one_taker(self) -> Iterator[Fold]:
        if not self._taking.acquire(False):
            raise RuntimeError("%s: another thread or task takes the changes of this local table" % self._path)
        try:
            if self._closed:
                raise Disconnected("%s: this local table was closed" % self._path)
            yield self._fold
        finally:
            self._taking.release()

    def _request(self, session: Session) -> SessionReading:
        """The read that comes next."""
        fold = self._fold
        if self._tails:
            return session.read("tail", fold.next, 0, frames.TAIL | frames.ANYWHERE, fold.history)
        return session.follow(fold.next, fold.history)

    def _take(self, event: FollowEvent, history: int) -> None:
        self._fold.history = history
        self._fold.take(event)
        self._tails |= isinstance(event, Turn)

    def _begin_again(self, error: Error) -> None:
        """The log no longer has the records that come next, or lacks some before them."""
        if self._fold.next > 0:
            self._fold.begin_again()
        elif not isinstance(error, Trimmed):  # or else the log has gone on while its first record was looked for
            raise error


class LocalTable(_LocalTable):
    """The keys of a table that have a prefix, in this process's memory, at any sidecar of the group: a mapping of each key to its
    `Entry`. It is empty at first, and whole with the first `CaughtUp` or `Turn`.

    Taking its changes keeps it up to date, with `changes` or `next_change`. One thread takes them, each within 30 seconds
    (`--client-timeout-ms`). Other threads may look up single keys, but only that one sees each request as a whole, and may
    iterate.

    The first call that takes a change connects. When the connection is lost the content stays, and the next call connects again
    and continues where it was.
    """

    _client: Optional[Client] = None
    _reading: Optional[Reading[FollowEvent]] = None

    def __init__(self, path: Path, prefix: bytes, timeout: Optional[float]) -> None:
        super().__init__(path, prefix)
        self._timeout = timeout

    @classmethod
    def follow(cls, path: Path, prefix: bytes = b"", timeout: Optional[float] = None) -> LocalTable:
        """The keys that begin with this prefix; all without one. `timeout` is that of `Client`."""
        return cls(path, prefix, timeout)

    def __enter__(self) -> LocalTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection at once. The content stays."""
        self._closed = True
        self._disconnect()

    def changes(self) -> Iterator[Change]:
        """Yields each change from now on: see `next_change`."""
        return iter(self.next_change, None)

    def next_change(self) -> Optional[Change]:
        """Waits for the next change. The content shows it, with all others of the same request. None if the sidecar has ended the
        read, which the next call begins again.

        If the log no longer has the records that come next, the table is read again from the first one on; what is different is
        returned once that has caught up. `TimedOut` leaves everything as it was. After any other error, such as `Disconnected`,
        `CannotConnect` or `Retry`, call it again to connect again. `WrongKind`: the group keeps no table."""
        with self._one_taker() as fold:
            while not fold.changes:
                try:
                    if not self._read():
                        return None
                except TimedOut:
                    raise
                except (Trimmed, BeyondEnd) as error:
                    self._reading = None
                    self._begin_again(error)
                except BaseException:  # interrupts too: an event may be half taken
                    self._disconnect()
                    raise
            return fold.changes.popleft()

    def _read(self) -> bool:
        client = self._client or self._connect()
        if self._reading is None:
            self._reading = Reading(client, self._request(client._session))
        for event in self._reading:
            self._take(event, self._reading.history)
            if isinstance(event, Turn):
                self._reading = None
            return True
        self._reading = None
        return False

    def _connect(self) -> Client:
        self._client = client = Client(self._path, timeout=self._timeout)
        client._session.check_table()
        return client

    def _disconnect(self) -> None:
        if self._client:
            self._client.close()
        self._client = self._reading = None
        self._tails = False


class AsyncLocalTable(_LocalTable):
    """As `LocalTable`, for asyncio. One task takes the changes; waiting for one may be cancelled, and none is lost."""

    _client: Optional[AsyncClient] = None
    _reading: Optional[AsyncReading[FollowEvent]] = None

    @classmethod
    def follow(cls, path: Path, prefix: bytes = b"") -> AsyncLocalTable:
        """The keys that begin with this prefix; all without one."""
        return cls(path, prefix)

    async def __aenter__(self) -> AsyncLocalTable:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection at once. The content stays."""
        self._closed = True
        self._disconnect()

    def changes(self) -> AsyncIterator[Change]:
        """Yields each change from now on: see `LocalTable.next_change`."""
        return _Changes(self)

    async def next_change(self) -> Optional[Change]:
        """Waits for the next change, as `LocalTable.next_change` does."""
        with self._one_taker() as fold:
            while not fold.changes:
                try:
                    if not await self._read():
                        return None
                except (Trimmed, BeyondEnd) as error:
                    self._reading = None
                    self._begin_again(error)
                except Error:
                    self._disconnect()
                    raise
            return fold.changes.popleft()

    async def _read(self) -> bool:
        client = self._client or await self._connect()
        if self._reading is None:
            self._reading = AsyncReading(client, self._request(client._session))
        async for event in self._reading:
            self._take(event, self._reading.history)
            if isinstance(event, Turn):
                self._reading = None
            return True
        self._reading = None
        return False

    async def _connect(self) -> AsyncClient:
        self._client = client = AsyncClient(self._path)  # known before it is connected, so that `close` ends the wait
        try:
            await client
            client._session.check_table()
        except BaseException:
            self._disconnect()
            raise
        return client

    def _disconnect(self) -> None:
        if self._client:
            self._client.close()
        self._client = self._reading = None
        self._tails = False


class _Changes(AsyncIterator[Change]):
    def __init__(self, table: AsyncLocalTable) -> None:
        self._table = table

    async def __anext__(self) -> Change:
        change = await self._table.next_change()
        if change is None:
            raise StopAsyncIteration
        return change
