"""The tally of tally.py with asyncio.

    PYTHONPATH=sidecar/client/python python3 examples/tally/tally_async.py /run/tailwind/default.sock
"""

import asyncio
import collections
import sys
import time

from tailwind import AsyncClient, CannotConnect, Disconnected, NotPrimary, ProtocolError, Record, Retry, Turn, UnknownOutcome


async def connect(socket):
    """Waits until this sidecar is there, primary or not."""
    while True:
        try:
            return await AsyncClient(socket)
        except ProtocolError:
            raise  # another program listens there
        except (CannotConnect, Disconnected, Retry):
            await asyncio.sleep(0.1)


class Tally:
    def __init__(self, socket):
        self.socket, self.log = socket, None
        self.run = b"%d" % time.time_ns()  # begins the records of this run: what nobody else writes
        self.own = 0  # how many of them are in the log
        self.next = 1  # the first record that has not been counted
        self.history = 0  # of those that have
        self.counts = collections.Counter()

    async def add(self, word):
        """Appends a word. Where the outcome is unknown, the log tells whether it is there."""
        wanted = self.own + 1
        while self.own < wanted:
            try:
                await self.log.append(b"%s %s" % (self.run, word))
            except Retry as error:
                await asyncio.sleep(error.retry_after)
            except ProtocolError:
                raise
            except (NotPrimary, UnknownOutcome, Disconnected):
                await self.reconnect()
            await self.catch_up()

    async def catch_up(self):
        """Follows the log until it is this app's turn. Then every record that is in the log has been counted."""
        while True:
            try:
                follow = self.log.follow(self.next, self.history)
                async for event in follow:
                    self.history = follow.history
                    if isinstance(event, Record):
                        self.count(event.lsn, event.payload)
                    elif isinstance(event, Turn):
                        return
            except Retry as error:
                await asyncio.sleep(error.retry_after)
            except ProtocolError:
                raise
            except Disconnected:
                await self.reconnect()

    def count(self, lsn, record):
        self.next = lsn + 1
        run, _, word = record.partition(b" ")
        self.own += run == self.run
        self.counts[word] += 1

    async def reconnect(self):
        if self.log:
            self.log.close()
        self.log = await connect(self.socket)


async def main(socket):
    tally = Tally(socket)
    await tally.reconnect()
    await tally.catch_up()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        word = line.rstrip(b"\n")
        await tally.add(word)
        print(word.decode(errors="replace"), tally.counts[word], flush=True)


if len(sys.argv) != 2:
    sys.exit("usage: tally_async.py SOCKET")
asyncio.run(main(sys.argv[1]))
