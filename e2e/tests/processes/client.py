"""Every function of the Python client against a real group; argv: the sockets of the primary and of a standby."""

import json
import sys

from tailwind import CaughtUp, Client, Error, Lag, NotPrimary, TooLarge, Turn

primary, standby = sys.argv[1:]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("%s expected" % kind.__name__)


with Client(primary, timeout=30) as client:
    assert client.role.primary == "sidecar0" and client.role.role == 1
    assert client.append(b"one") == 1
    assert client.append_batch([b"two", b"", b"four"]) == 4
    for number in range(5, 50_001):
        client.submit(b"record %d" % number)
    assert client.flush() == 50_000
    assert list(client.read(1, 5)) == [(1, b"one"), (2, b"two"), (3, b""), (4, b"four"), (5, b"record 5")]
    expected = 5
    for lsn, record in client.read(5):
        assert (lsn, record) == (expected, b"record %d" % expected), (lsn, record)
        expected += 1
    assert expected == 50_001
    assert client.barrier().last == 50_000
    status = json.loads(client.status())
    assert status["role"] == "primary" and status["acked"] == 50_000

    refused(TooLarge, lambda: client.append(bytes(client.welcome.record_size_max + 1)))
    assert refused(Error, lambda: list(client.read(50_002))).code == "BeyondEnd"
    first = client.trim(40_000)
    assert 1 < first <= 40_000
    assert refused(Error, lambda: list(client.read(first - 1))).code == "Trimmed"
    assert next(iter(client.read(first)))[0] == first

    tail = client.tail(49_999)
    assert [next(tail) for _ in range(3)] == [(49_999, b"record 49999"), (50_000, b"record 50000"), CaughtUp(50_001)]
    with Client(primary, timeout=30) as other:
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
    assert events == [(end, bytes(100)), Turn(client.role.epoch, end + 1)], events
    end += 1
    assert client.append(b"at the turn") == end
    assert client.position() == (client.role.epoch, end)

with Client(standby, timeout=30) as client:
    assert client.role.role == 2
    assert "sidecar0" in refused(NotPrimary, lambda: client.append(b"no")).message
    assert client.role.primary == "sidecar0"
    refused(NotPrimary, lambda: list(client.read(1)))

    # What the standby is refused as a read it may follow, and read anywhere.
    assert client.position() == (client.role.epoch, end)
    follow, expected = client.follow(49_999), 49_999
    for event in follow:
        if isinstance(event, CaughtUp):
            assert event.next == expected
            if expected > end:
                break
        elif not isinstance(event, Lag):
            assert event[0] == expected, event
            assert expected > 50_000 or event[1] == b"record %d" % expected, event
            expected += 1
    with Client(primary, timeout=30) as other:
        assert other.append(b"followed") == end + 1
    assert next(event for event in follow if not isinstance(event, (CaughtUp, Lag))) == (end + 1, b"followed")
    follow.close()
    assert list(client.read_anywhere(50_000, 2)) == [(50_000, b"record 50000"), (50_001, b"new")]
    assert client.position().last == end + 1
    refused(NotPrimary, lambda: client.append(b"no"))

print("ok")
