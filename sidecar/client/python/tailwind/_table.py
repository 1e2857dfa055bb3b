"""Changes and gets of a table, blocking and asyncio: thin around the clients of the same kind."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generator, List, Optional, Type, cast

from . import _frames as frames
from ._apply import Apply, get_body
from ._asyncio import AsyncClient
from ._blocking import Client
from ._connection import Path
from .types import Entry, Got, Ticket


class Table:
    """A table, through one connection to a sidecar: for one thread at a time.

    `hold` and `timeout` are those of `Client`; left without an exception, a `with` block flushes. `get` reads one key; to keep many at hand, have a `LocalTable`.

    Connecting raises as `Client` does, and `WrongKind` at a group that keeps a log. Each call that changes keys raises
    `NotPrimary`, `Retry`, `TooLarge` or `TableFull`: nothing was done. `Mismatch`: nothing was done, because a condition did not
    hold. `UnknownOutcome`, `Disconnected`: all of it was done, or nothing. `TimedOut`: as `Client.append`.
    """

    client: Client
    """The connection, for what was submitted, for its role, and for barriers, syncs and status."""

    def __init__(self, path: Path, hold: bool = False, timeout: Optional[float] = None) -> None:
        self.client = Client(path, hold, timeout)
        try:
            self.client._session.check_table()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Table:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        self.client.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Closes the connection at once. Requests in flight have an unknown outcome."""
        self.client.close()

    def put(self, key: bytes, value: bytes) -> int:
        """Gives the key this value; returns its revision."""
        return self.apply(Apply().put(key, value))[0]

    def put_if(self, key: bytes, value: bytes, revision: Optional[int]) -> int:
        """As `put`, if the key has this revision; None: if it is absent."""
        return self.apply(Apply().put_if(key, value, revision))[0]

    def get(
        self, key: bytes, *, fresh: bool = False, least: int = 0, no_value: bool = False
    ) -> Optional[Entry]:
        """What the key has: its value and revision; None: it is absent. What is acknowledged is seen, and on one connection nothing
        older than before. Off the primary that is a moment behind: it is read from a backup's mirror of the index. `fresh`:
        everything that was acknowledged to anybody before the call; the primary has proved then that it still is. `least`: the
        state after this LSN or later. `no_value`: the value is left empty.

        Raises `Retry` if that cannot be had within 5 seconds, as off the primary of a group without mirrors; `NotPrimary` if the
        sidecar has lost the role since: ask again."""
        return self.get_with(key, fresh=fresh, least=least, no_value=no_value).entry

    def get_with(
        self, key: bytes, *, fresh: bool = False, least: int = 0, older: bool = False, no_value: bool = False
    ) -> Got:
        """As `get`, with more to learn. `older`: off the primary, if no member has a sound copy of the key's newest value, the one
        before will do."""
        client = self.client
        body = get_body(client._session.peer, key, fresh, least, older, no_value)
        return cast(Got, client._ask(frames.GET, body))

    def copy(self, key: bytes, source: bytes) -> int:
        """Gives the key the value that another key has; returns the key's revision. `Mismatch` if the source is absent."""
        return self.apply(Apply().copy(key, source))[0]

    def delete(self, key: bytes) -> int:
        """Removes the key, which may be absent already; returns the LSN of the record that says so."""
        return self.apply(Apply().delete(key))[0]

    def delete_if(self, key: bytes, revision: Optional[int]) -> int:
        """As `delete`, if the key has this revision; None: if it is absent."""
        return self.apply(Apply().delete_if(key, revision))[0]

    def apply(self, request: Apply) -> List[int]:
        """Carries out all operations of the request, or none. Returns the LSNs of its writes, in their order: that of a put is
        the key's revision."""
        return request.applied(self.client.wait(self.submit(request)))

    def submit(self, request: Apply) -> Ticket:
        """Takes a request without waiting for its answer, as `Client.submit` does. `client.wait` returns the LSN for
        `Apply.applied`, and `client.flush` waits for all. A mismatch may arrive after the acks of later requests."""
        client = self.client
        return client._submit(frames.APPLY, request._body(client._session.peer, client.welcome))


class AsyncTable:
    """As `Table`, for all tasks of one event loop: `async with AsyncTable(path) as table`, or `table = await AsyncTable(path)`.

    Requests of several tasks are pipelined, in the order of their calls. A call that is cancelled has an unknown outcome."""

    client: AsyncClient
    """The connection, for its role, and for barriers, syncs, status and `flush`."""

    def __init__(self, path: Path, hold: bool = False) -> None:
        self.client = AsyncClient(path, hold)

    def __await__(self) -> Generator[object, None, AsyncTable]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncTable:
        return await self._connect()

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], traceback: Optional[TracebackType]
    ) -> None:
        await self.client.__aexit__(kind, error, traceback)

    async def _connect(self) -> AsyncTable:
        await self.client
        try:
            self.client._session.check_table()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Closes the connection at once. Requests in flight have an unknown outcome, and raise `Disconnected`."""
        self.client.close()

    async def put(self, key: bytes, value: bytes) -> int:
        """Gives the key this value; returns its revision."""
        return (await self.apply(Apply().put(key, value)))[0]

    async def put_if(self, key: bytes, value: bytes, revision: Optional[int]) -> int:
        """As `put`, if the key has this revision; None: if it is absent."""
        return (await self.apply(Apply().put_if(key, value, revision)))[0]

    async def get(
        self, key: bytes, *, fresh: bool = False, least: int = 0, no_value: bool = False
    ) -> Optional[Entry]:
        """As `Table.get`."""
        return (await self.get_with(key, fresh=fresh, least=least, no_value=no_value)).entry

    async def get_with(
        self, key: bytes, *, fresh: bool = False, least: int = 0, older: bool = False, no_value: bool = False
    ) -> Got:
        """As `Table.get_with`."""
        client = self.client
        client._check()
        body = get_body(client._session.peer, key, fresh, least, older, no_value)
        return cast(Got, await client._ask(frames.GET, body))

    async def copy(self, key: bytes, source: bytes) -> int:
        """Gives the key the value that another key has; returns the key's revision. `Mismatch` if the source is absent."""
        return (await self.apply(Apply().copy(key, source)))[0]

    async def delete(self, key: bytes) -> int:
        """Removes the key, which may be absent already; returns the LSN of the record that says so."""
        return (await self.apply(Apply().delete(key)))[0]

    async def delete_if(self, key: bytes, revision: Optional[int]) -> int:
        """As `delete`, if the key has this revision; None: if it is absent."""
        return (await self.apply(Apply().delete_if(key, revision)))[0]

    async def apply(self, request: Apply) -> List[int]:
        """Carries out all operations of the request, or none. Returns the LSNs of its writes, in their order: that of a put is
        the key's revision."""
        client = self.client
        client._check()
        body = request._body(client._session.peer, client.welcome)
        return request.applied(await (await client._submit(frames.APPLY, body)))

    async def submit(self, request: Apply) -> asyncio.Future[int]:
        """Takes a request without waiting for its answer, as `AsyncClient.submit` does. The future's result is the LSN for
        `Apply.applied`."""
        client = self.client
        client._check()
        body = request._body(client._session.peer, client.welcome)
        return await client._submit(frames.APPLY, body, client._failed)
