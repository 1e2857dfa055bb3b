"""The bytes of both ends of these tests, beside the worked example of docs/append-socket.md."""

import pathlib
import re
import struct
import unittest
from unittest import mock

import fake
from tailwind import Apply, CaughtUp, Lag, Mismatch, Record, Role, Turn
from tailwind import _frames as frames
from tailwind._apply import get_body
from tailwind._fold import KeyedRecord, parse_keyed
from tailwind._session import Session

DOCUMENT = pathlib.Path(__file__).resolve().parents[4] / "docs/append-socket.md"


def example():
    blocks = re.findall(r"^```hex ([a-z ]+)\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    return {name: bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines())) for name, text in blocks}


class Bytes(unittest.TestCase):
    @mock.patch.object(frames, "VERSION", 3)  # that of the example
    def test_the_client_sends_the_worked_example(self):
        said = example()
        session = Session("x", hold=False)
        sent = [bytes(session.outbox)]

        def took():
            sent.append(bytes(session.outbox))

        def clear(number=None):
            session.outbox.clear()
            if number is not None:
                session._number = number - 1

        self.assertEqual(session.outbox, said["hello"])
        clear()
        session.feed(said["welcome"])
        self.assertEqual((session.welcome.version, session.role, session.welcome.inflight_max), (3, Role.PRIMARY, 4096))
        self.assertEqual(session.welcome.batch_size([5]), 8 + 32 + 8)
        self.assertEqual(session.submit(frames.APPEND, session.record(b"hello")), 2)
        self.assertEqual(session.outbox, said["append"])
        session.feed(said["ack"])
        self.assertEqual(session.answers.pop(2), 10)
        clear()
        session.submit(frames.BATCH, session.batch([b"first", b"second"]))
        self.assertEqual(session.outbox, said["batch"])
        session.feed(said["batch ack"])
        self.assertEqual(session.answers.pop(3), 12)
        clear()
        tail = session.read("tail", 11, 0, frames.TAIL, 0)
        session.start(tail)
        self.assertEqual(session.outbox, said["read"])
        session.feed(said["records"] + said["caught up"])
        self.assertEqual(list(tail.events), [Record(11, b"first"), Record(12, b"second"), CaughtUp(13)])
        clear()
        session.stop(tail)
        self.assertEqual(session.outbox, said["stop"])
        session.feed(said["end"])
        self.assertTrue(session.settled())
        session.feed(said["role"])
        self.assertEqual((session.role, session.epoch, session.primary), (Role.STANDBY, 4, "db-1"))
        clear()
        self.assertEqual(session.submit(frames.APPEND, b""), 5)
        session.feed(said["error"])
        self.assertIn("has lost its role", str(session.answers.pop(5)))
        clear(3)
        follow = session.follow(13, 0x1F2E3D4C_00000001)
        session.start(follow)
        self.assertEqual(session.outbox, said["follow"])
        follow.next, follow.history = 16, 0
        session.feed(said["history"])
        self.assertEqual(follow.history, 0x1F2E3D4C_00000001)
        session.feed(said["lag"] + said["stale lag"] + said["turn"])
        self.assertEqual(list(follow.events), [Lag(14, 0.002, False), Lag(14, 0.64, True), Turn(5, 16)])
        clear(2)
        reading = session.read("read", 11, 100, frames.ANYWHERE, 0)
        session.start(reading)
        self.assertEqual(session.outbox, said["read anywhere"])
        session.reading = None
        clear(2)
        session.ask(frames.POSITION)
        self.assertEqual(session.outbox, said["position"])
        session.feed(said["log position"])
        self.assertEqual(session.answers.pop(2), (5, 17))
        self.assertIsNone(session.end)

    @mock.patch.multiple(frames, VERSION_MIN=4, VERSION=4)
    def test_the_table_sends_the_worked_example(self):
        said = example()
        session = Session("x", hold=False)
        self.assertEqual(session.outbox, said["hello of a table"])
        session.outbox.clear()
        session.feed(said["welcome of a table"])
        session.check_table()
        request = Apply().require(b"lease", 41).put(b"job/7", b"done").delete(b"job/6")
        body = request._body("x", session.limits)
        self.assertEqual(session.submit(frames.APPLY, body), 2)
        self.assertEqual(session.outbox, said["apply"])
        session.feed(said["apply ack"])
        self.assertEqual(session.answers.pop(2), 52)
        self.assertEqual(session.submit(frames.APPLY, body), 3)
        session.feed(said["mismatch"])
        mismatch = session.answers.pop(3)
        self.assertIs(type(mismatch), Mismatch)
        self.assertEqual((mismatch.operation, mismatch.revision), (0, 50))
        session.outbox.clear()
        self.assertEqual(session.submit(frames.APPLY, Apply().copy(b"job/last", b"job/7")._body("x", session.limits)), 4)
        self.assertEqual(session.outbox, said["copy"])
        session.outbox.clear()
        self.assertEqual(session.ask(frames.GET, get_body("x", b"job/7", False, 52, False, False)), 5)
        self.assertEqual(session.outbox, said["get"])
        session.feed(said["value"])
        self.assertEqual(session.answers.pop(5), ((b"done", 51), None, 54, False))
        session.outbox.clear()
        self.assertEqual(session.ask(frames.GET, get_body("x", b"job/6", True, 0, False, False)), 6)
        self.assertEqual(session.outbox, said["fresh get"])
        session.feed(said["absent"])
        self.assertEqual(session.answers.pop(6), (None, None, 54, False))
        session.outbox.clear()
        self.assertEqual(session.ask(frames.GET, get_body("x", b"job/7", False, 0, True, False)), 7)
        self.assertEqual(session.outbox, said["older allowed"])
        session.feed(said["stale value"])
        self.assertEqual(session.answers.pop(7), ((b"done", 51), None, 52, True))
        self.assertEqual(frames.parse_value(bytes(said["older value"][16:])), (None, b"open", None, False))
        self.assertIsNone(session.end)

    def test_the_fake_sends_the_worked_example(self):
        said, sent = example(), []

        class Peer(fake.Peer):
            def __init__(self):
                pass

            def send_bytes(self, data):
                sent.append(data)

        peer = Peer()
        peer.ack(2, 10)
        peer.records(4, 11, b"first", b"second")
        peer.caught_up(4, 13)
        peer.end(4, 13)
        peer.role(fake.STANDBY, "db-1", epoch=4, last=12)
        peer.error(5, fake.NOT_PRIMARY, "this sidecar has lost its role since this connection was made, and others may have appended: connect again and read the new records")
        peer.history(3, 0x1F2E3D4C_00000001)
        peer.lag(3, 14, 2, 0)
        peer.turn(3, 5, 16)
        peer.send(fake.LOG_POSITION, 2, struct.pack("<QQ", 5, 17))
        peer.send(fake.WELCOME, 1, fake.welcome(version=3, inflight_max=4096))
        peer.send(fake.WELCOME, 1, fake.welcome(inflight_max=4096, table=True))
        operations = (fake.REQUIRE, b"lease", b"", 41), (fake.PUT, b"job/7", b"done", None), (fake.DELETE, b"job/6", b"", None)
        peer.send(fake.APPLY, 2, fake.apply(*operations))
        peer.mismatch(3, 0, 50)
        peer.send(fake.APPLY, 4, fake.apply((fake.COPY, b"job/last", b"job/7", None)))
        peer.send(fake.GET, 5, fake.get(b"job/7", 52))
        peer.value(5, 51, 54, b"done")
        peer.send(fake.GET, 6, fake.get(b"job/6", 0, 1))
        peer.value(6, 0, 54)
        names = ["ack", "records", "caught up", "end", "role", "error", "history", "lag", "turn", "log position", "welcome",
                 "welcome of a table", "apply", "mismatch", "copy", "get", "value", "fresh get", "absent"]
        self.assertEqual(sent, [said[name] for name in names])


class Keyed(unittest.TestCase):
    """The bytes of `sidecar/protocol/tests/protocol/table/record.rs`."""

    LSN = 0x0900_0000_0000_0000

    def test_keyed_records_have_golden_bytes(self):
        zeros = bytes(8)
        golden = {
            b"TWK1\x01\x00\x08\x00" + zeros + b"device/7online": (b"device/7", b"online", self.LSN, False),
            b"TWK1\x01\x01\x01\x00" + zeros + b"k": (b"k", b"", self.LSN, True),
            b"TWK1\x02\x00\x02\x00" + zeros + b"\x00\xff": (b"\x00\xff", None, self.LSN, False),
            b"TWK1\x02\x01\x01\x00" + zeros + b"k": (b"k", None, self.LSN, True),
            b"TWK1\x01\x00\x01\x00\x01\x02\x03\x04\x05\x06\x07\x08kv": (b"k", b"v", 0x0807_0605_0403_0201, False),
        }
        for payload, record in golden.items():
            self.assertEqual(parse_keyed(self.LSN, payload), KeyedRecord(*record))
            key, value, revision, more = record
            kind = fake.DELETE if value is None else fake.PUT
            revision = 0 if revision == self.LSN else revision
            self.assertEqual(fake.keyed(kind, key, value or b"", revision, more), payload)

    def test_the_longest_key_and_value_are_taken(self):
        key, value = bytes(1024), bytes(65_536)
        self.assertEqual(parse_keyed(1, fake.keyed(fake.PUT, key, value)), (key, value, 1, False))

    def test_what_is_wrong_is_named(self):
        good = fake.keyed(fake.PUT, b"key", b"value")

        def changed(place, byte):
            return good[:place] + bytes([byte]) + good[place + 1 :]

        for payload, why in (
            (b"", "it does not begin as one"),
            (b"a plain record of an app", "it does not begin as one"),
            (good[:15], "it does not begin as one"),
            (changed(3, 0x32), "it does not begin as one"),
            (changed(4, 0), "unknown kind 0"),
            (changed(4, 3), "unknown kind 3"),
            (changed(5, 2), "unknown flags 0x02"),
            (changed(6, 9), "it ends within its key"),
            (changed(7, 9), "it ends within its key"),
            (fake.keyed(fake.PUT, b"", b"x"), "key of 0 bytes: must be 1 to 1024"),
            (fake.keyed(fake.PUT, bytes(1025)), "key of 1025 bytes: must be 1 to 1024"),
            (good + bytes(65_536), "value of 65541 bytes: must be at most 65536"),
            (changed(4, 2), "it deletes, with a value"),
            (fake.keyed(fake.DELETE, b"k", revision=9), "it deletes, with a revision"),
            (fake.keyed(fake.PUT, b"k", revision=9, more=True), "it was moved, within a request"),
            (fake.keyed(fake.PUT, b"k", revision=self.LSN), "revision 648518346341351424"),
        ):
            with self.subTest(why), self.assertRaisesRegex(ValueError, "^%s$" % why):
                parse_keyed(self.LSN, payload)

    def test_a_move_is_younger_than_what_it_moves(self):
        moved = fake.keyed(fake.PUT, b"k", b"v", revision=41)
        for lsn in (0, 40, 41):
            self.assertRaises(ValueError, parse_keyed, lsn, moved)
        self.assertEqual(parse_keyed(42, moved).revision, 41)
        put = fake.keyed(fake.PUT, b"k", b"v")
        self.assertRaises(ValueError, parse_keyed, 0, put)
        self.assertEqual(parse_keyed(42, put).revision, 42)


if __name__ == "__main__":
    unittest.main()
