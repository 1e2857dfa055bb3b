"""The asyncio client and tables, called as the blocking ones are: one scenario tests both."""

import asyncio
import functools
import inspect

from tailwind import AsyncClient, AsyncLocalTable, AsyncReading, AsyncTable, Client, LocalTable, Table


class Driven:
    """Something asynchronous whose event loop runs during each call."""

    def __init__(self, make, *given):
        self._loop = asyncio.new_event_loop()
        self._client = make(*given)
        self._run(self._client.__aenter__)

    def _run(self, call, *given, **named):
        async def run():
            value = call(*given, **named)
            return await value if inspect.iscoroutine(value) else value

        value = self._loop.run_until_complete(run())
        return DrivenReading(self, value) if isinstance(value, AsyncReading) else value

    def _drive(self, value):
        return (lambda *given, **named: self._run(value, *given, **named)) if callable(value) else value

    def __getattr__(self, name):
        return self._drive(getattr(self._client, name))

    def __enter__(self):
        return self

    def __exit__(self, *how):
        self._run(self._client.__aexit__, *how)

    def __del__(self):
        self._loop.close()


class DrivenClient(Driven):
    """An `AsyncClient`."""

    def __init__(self, path, hold=False):
        super().__init__(AsyncClient, path, hold)

    def wait(self, ticket):
        async def wait():
            return await ticket

        return self._run(wait)


class DrivenTable(Driven):
    """An `AsyncTable`."""

    def __init__(self, path, hold=False):
        super().__init__(AsyncTable, path, hold)

    @property
    def client(self):
        return DrivenPart(self, self._client.client)


class DrivenPart:
    """What belongs to something driven, in the same event loop."""

    def __init__(self, driven, part):
        self._driven, self._part = driven, part

    def __getattr__(self, name):
        return self._driven._drive(getattr(self._part, name))


class DrivenLocalTable(Driven):
    """An `AsyncLocalTable`."""

    @classmethod
    def follow(cls, path, prefix=b""):
        return cls(AsyncLocalTable.follow, path, prefix)

    def changes(self):
        return DrivenReading(self, self._client.changes())


class DrivenReading:
    def __init__(self, client, reading):
        self._client, self._reading = client, reading

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._client._run(self._reading.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def history(self):
        return self._reading.history

    def close(self):
        self._client._run(self._reading.aclose)


CLIENTS = [Client, DrivenClient]
TABLES = [Table, DrivenTable]
LOCAL_TABLES = [LocalTable, DrivenLocalTable]


def with_each(*connects):
    """Runs a test once with each of these, as its second argument."""

    def decorate(test):
        @functools.wraps(test)
        def run(self):
            for connect in connects:
                with self.subTest(connect.__qualname__):
                    test(self, connect)

        return run

    return decorate


with_both = with_each(*CLIENTS)
