"""The asyncio client, called as the blocking one is: one scenario tests both."""

import asyncio
import inspect

from tailwind import AsyncClient, AsyncReading, Client


class DrivenClient:
    """An `AsyncClient` whose event loop runs during each call."""

    def __init__(self, path, hold=False):
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(path, hold)
        self._run(self._client.__aenter__)

    def _run(self, call, *given, **named):
        async def run():
            value = call(*given, **named)
            return await value if inspect.iscoroutine(value) else value

        value = self._loop.run_until_complete(run())
        return DrivenReading(self, value) if isinstance(value, AsyncReading) else value

    def __getattr__(self, name):
        value = getattr(self._client, name)
        return (lambda *given, **named: self._run(value, *given, **named)) if callable(value) else value

    def wait(self, ticket):
        async def wait():
            return await ticket

        return self._run(wait)

    def __enter__(self):
        return self

    def __exit__(self, *how):
        self._run(self._client.__aexit__, *how)

    def __del__(self):
        self._loop.close()


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
