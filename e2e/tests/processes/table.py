"""Every function of a Python table against a real group, whose log is cleaned under it; argv: blocking or asyncio, the sockets of
the primary and of a standby."""

import os
import random
import sys

from tailwind import Apply, CaughtUp, Deleted, Entry, Mismatch, NotPrimary, Put, Retry, Role
from tailwind import TableFull, TooLarge, Turn, WrongKind

# The asyncio tables, called as the blocking ones are.
sys.path.append(os.path.join(os.path.dirname(__file__), "../../../sidecar/client/python/tests"))
from driven import LOCAL_TABLES, TABLES

kind, primary, standby = sys.argv[1:]
number = {"blocking": 0, "asyncio": 1}[kind]
Table, LocalTable = TABLES[number], LOCAL_TABLES[number]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("%s expected" % kind.__name__)


class Follower:
    """A local table, and the content that its changes make."""

    def __init__(self, path):
        self.table, self.told = LocalTable.follow(path, b"in/"), {}

    def until(self, lsn):
        """Takes changes until it shows this record and everything else there is."""
        while True:
            change = self.table.next_change()
            if isinstance(change, Put):
                entry = Entry(change.value, change.revision)
                assert self.told.get(change.key) != entry, change
                self.told[change.key] = entry
            elif isinstance(change, Deleted):
                del self.told[change.key]
            elif isinstance(change, (CaughtUp, Turn)) and self.table.seen >= lsn:
                assert dict(self.table.items()) == self.told
                return


dice, expected = random.Random(7), {}


def write(table, count):
    """Writes at random, so much that the log is cleaned; returns the last LSN."""
    for _ in range(count):
        request = Apply()
        written = [b"in/%d" % n for n in dice.sample(range(30), dice.randint(1, 4))]
        values = [None if dice.random() < 0.3 else bytes([dice.randrange(256)]) * dice.randrange(1000) for _ in written]
        for key, value in zip(written, values):
            now = expected[key].revision if key in expected else None
            if value is None:
                request.delete(key) if dice.random() < 0.5 else request.delete_if(key, now)
            else:
                request.put(key, value) if dice.random() < 0.5 else request.put_if(key, value, now)
        for key, value, revision in zip(written, values, table.apply(request)):
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = Entry(value, revision)
    return revision


with Table(primary) as table:
    assert table.client.role is Role.PRIMARY and table.client.welcome.table
    assert table.put(b"out", b"1") == 1
    assert table.put_if(b"out", b"2", 1) == 2
    assert refused(Mismatch, lambda: table.put_if(b"out", b"3", 1)).revision == 2
    assert refused(Mismatch, lambda: table.put_if(b"out", b"3", None)).revision == 2
    assert table.delete_if(b"out", 2) == 3
    error = refused(Mismatch, lambda: table.apply(Apply().put(b"in/0", b"").require(b"out", 2)))
    assert (error.operation, error.revision) == (1, None)
    assert table.apply(Apply().put(b"out", b"4").require(b"out", None).delete(b"never")) == [4, 5]

    refused(TooLarge, lambda: table.put(b"in/0", bytes(10_000)))  # for a group of these segments
    refused(WrongKind, lambda: table.client.append(b"x"))
    refused(WrongKind, lambda: table.client.trim(1))
    assert table.client.barrier().last == 5
    assert table.get(b"out") == (b"4", 4) and table.get(b"never", fresh=True) is None
    assert table.get(b"out", least=5, no_value=True) == (b"", 4)
    assert table.copy(b"copied", b"out") == 6
    assert table.get(b"copied", least=6) == (b"4", 6)
    assert refused(Mismatch, lambda: table.copy(b"copied", b"never")).revision is None
    assert table.delete(b"copied") == 7

    followers = [Follower(path) for path in (primary, standby)]
    for _ in range(3):
        last = write(table, 1000)
        for follower in followers:
            follower.until(last)
            assert follower.told == expected
    assert table.client.status()["positions"]["first"] > 5

    # Both lose their connection, and what they miss is trimmed before they are back.
    seen = last
    for follower in followers:
        follower.table._disconnect()
    last = write(table, 3000)
    assert table.client.status()["positions"]["first"] > seen
    for follower in followers:
        follower.until(last)
        assert follower.told == expected
        follower.table.close()

    # Most of what they have is in closed segments.
    for key, entry in expected.items():
        assert table.get(key) == entry
        revision = table.copy(b"copied", key)
        assert table.get(b"copied", fresh=True) == (entry.value, revision)
    table.delete(b"copied")

    for start in range(0, 750, 250):
        request = Apply()
        for key in range(start, start + 250):
            request.put(b"many/%d" % key, b"")
        table.apply(request)
    request = Apply()
    for key in range(750, 1000):
        request.put(b"many/%d" % key, b"")
    assert "keys" in str(refused(TableFull, lambda: table.apply(request)))
    table.delete(b"many/0")
    table.put(b"many/0", b"again")

with Table(standby) as table:
    # Until each backup has been asked a get waits, in vain.
    while "no backup has memory for a mirror" not in str(refused(Retry, lambda: table.get(b"k"))):
        pass
    assert refused(NotPrimary, lambda: table.put(b"k", b"v")).primary == "sidecar0"

print("ok")
