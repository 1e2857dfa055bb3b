"""Every function of a Python client against a real group; argv: blocking or asyncio, the sockets of the primary and of a standby."""

import os
import sys

from tailwind import (BeyondEnd, CaughtUp, Client, ErrorCode, Lag, NotPrimary, Record, Role, TooLarge, Trimmed, Turn)

# The asyncio client, called as the blocking one is.
sys.path.append(os.path.join(os.path.dirname(__file__), "../../../sidecar/client/python/tests"))
from driven import DrivenClient

kind, primary, standby = sys.argv[1:]
connect = {"blocking": Client, "asyncio": DrivenClient}[kind]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("%s expected" % kind.__name__)


with connect(primary) as client:
    assert client.primary == "sidecar0" and client.role is Role.PRIMARY
    assert client.append(b"one") == 1
    assert client.append_batch([b"two", b"", b"four"]) == 4
    for number in range(5, 50_001):
        client.submit(b"record %d" % number)
    assert client.flush() == client.acked == 50_000
    assert list(client.read(1, 5)) == [(1, b"one"), (2, b"two"), (3, b""), (4, b"four"), (5, b"record 5")]
    expected = 5
    for lsn, record in client.read(5):
        assert (lsn, record) == (expected, b"record %d" % expected), (lsn, record)
        expected += 1
    assert expected == 50_001
    assert client.barrier().last == 50_000
    assert client.sync() == 50_000
    status = client.status()
    assert status["role"] == "primary" and status["positions"]["acked"] == 50_000

    refused(TooLarge, lambda: client.append(bytes(client.welcome.record_size_max + 1)))
    assert refused(BeyondEnd, lambda: list(client.read(50_002))).code is ErrorCode.BEYOND_END
    first = client.trim(40_000)
    assert 1 < first <= 40_000
    assert "begins at LSN %d" % first in str(refused(Trimmed, lambda: list(client.read(first - 1))))
    assert next(client.read(first)).lsn == first

    tail = client.tail(49_999)
    assert [next(tail) for _ in range(3)] == [(49_999, b"record 49999"), (50_000, b"record 50000"), CaughtUp(50_001)]
    with connect(primary) as other:
        assert other.append(b"new") == 50_001
    assert next(tail) == (50_001, b"new")
    tail.close()
    assert client.append(b"after the tail") == 50_002

    end = 50_002
    for length in (0, 1, 100):
        fitting = (client.welcome.batch_size_max - 8) // (32 + (length + 7) // 8 * 8)
        refused(TooLarge, lambda: client.submit_batch([bytes(length)] * (fitting + 1)))
        end += fitting
        assert client.append_batch([bytes(length)] * fitting) == end

    events = [event for event in client.follow(end) if not isinstance(event, Lag)]
    assert events == [(end, bytes(100)), Turn(client.epoch, end + 1)], events
    end += 1
    assert client.append(b"at the turn") == end
    assert client.position() == (client.epoch, end)

with connect(standby) as client:
    assert client.role is Role.STANDBY
    error = refused(NotPrimary, lambda: client.append(b"no"))
    assert error.primary == "sidecar0" and standby in str(error), error
    assert client.primary == "sidecar0"
    refused(NotPrimary, lambda: list(client.read(1)))

    # What the standby is refused as a read it may follow, and read anywhere.
    assert client.position() == (client.epoch, end)
    follow, expected = client.follow(49_999), 49_999
    for event in follow:
        if isinstance(event, CaughtUp):
            assert event.next == expected
            if expected > end:
                break
        elif isinstance(event, Record):
            assert event.lsn == expected, event
            assert expected > 50_000 or event.payload == b"record %d" % expected, event
            expected += 1
    with connect(primary) as other:
        assert other.append(b"followed") == end + 1
    assert next(event for event in follow if isinstance(event, Record)) == (end + 1, b"followed")
    follow.close()
    assert list(client.read_anywhere(50_000, 2)) == [(50_000, b"record 50000"), (50_001, b"new")]
    assert client.position().last == end + 1
    refused(NotPrimary, lambda: client.append(b"no"))

print("ok")
