"""What both clients do, each scenario with either of them."""

import os
import pathlib
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import fake
from driven import with_both
from fake import Sidecar
from tailwind import (BeyondEnd, CannotConnect, CaughtUp, Disconnected, Error, ErrorCode, Lag, Mismatch, NotAllowed,
                      NotPrimary, PassedBarrier, Position, ProtocolError, Record, Refused, Retry, Role, TableFull,
                      TooLarge, Trimmed, Turn, UnknownOutcome, WrongKind)

NOBODY = 65534


class Functions(unittest.TestCase):
    @with_both
    def test_every_function(self, connect):
        def script(peer):
            peer.welcome()
            peer.ack(peer.expect(fake.APPEND, b"one"), 10)
            batch = struct.pack("<III3sI", 2, 0, 3, b"two", 0)
            peer.ack(peer.expect(fake.BATCH, batch), 12)
            peer.send(fake.PASSED, peer.expect(fake.BARRIER, b""), struct.pack("<QQ", 3, 12))
            peer.send(fake.LOG_POSITION, peer.expect(fake.POSITION, b""), struct.pack("<QQ", 4, 17))
            peer.send(fake.SYNCED, peer.expect(fake.SYNC, b""), struct.pack("<Q", 12))
            peer.send(fake.TRIMMED, peer.expect(fake.TRIM, struct.pack("<Q", 5)), struct.pack("<Q", 4))
            peer.send(fake.REPORT, peer.expect(fake.STATUS, b""), b'{"role": "primary", "epoch": 3}')
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(pathlib.Path(sidecar.path)) as client:
            self.assertEqual((client.welcome.inflight_max, client.welcome.first, client.welcome.last), (1000, 1, 9))
            self.assertEqual(client.welcome.batch_size([0, 3]), 8 + 32 + 40)
            self.assertEqual((client.role, client.epoch, client.primary, client.acked), (Role.PRIMARY, 3, "db-0", None))
            self.assertEqual(client.append(b"one"), 10)
            self.assertEqual(client.append_batch(iter([b"two", b""])), 12)
            self.assertEqual(client.acked, 12)
            self.assertEqual(client.barrier(), PassedBarrier(epoch=3, last=12))
            self.assertEqual(client.position(), Position(epoch=4, last=17))
            self.assertEqual(client.sync(), 12)
            self.assertEqual(client.trim(5), 4)
            self.assertEqual(client.status(), {"role": "primary", "epoch": 3})

    @with_both
    def test_submit_pipelines(self, connect):
        def script(peer):
            peer.welcome()
            requests = [peer.expect(fake.APPEND, b"x") for _ in range(3)]
            for lsn, request in enumerate(requests, 1):
                peer.ack(request, lsn)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            tickets = [client.submit(b"x") for _ in range(3)]
            self.assertEqual(client.in_flight, 3)
            self.assertEqual((client.wait(tickets[2]), client.wait(tickets[0])), (3, 1))
            self.assertEqual(client.flush(), 3)
            self.assertEqual(client.in_flight, 0)

    @with_both
    def test_hold_waits_for_the_role(self, connect):
        with Sidecar(lambda peer: peer.welcome(hold=True).expect_end()) as sidecar, connect(sidecar.path, hold=True) as client:
            self.assertEqual(client.role, Role.PRIMARY)

    @with_both
    def test_role_is_kept_up_to_date(self, connect):
        def script(peer):
            peer.welcome(role=fake.STANDBY, primary="", epoch=0)
            request = peer.expect(fake.STATUS)
            peer.role(fake.READER, "db-1")
            peer.send(fake.REPORT, request, b"{}")
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            self.assertEqual((client.role, client.epoch, client.primary), (Role.STANDBY, 0, None))
            client.status()
            self.assertEqual((client.role, client.epoch, client.primary), (Role.READER, 4, "db-1"))

    @with_both
    def test_leaving_the_block_flushes(self, connect):
        def script(peer):
            peer.welcome()
            peer.ack(peer.expect(fake.APPEND, b"x"), 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            client.submit(b"x")

    @with_both
    def test_leaving_the_block_tells_of_a_failure(self, connect):
        def script(peer):
            peer.welcome()
            peer.error(peer.expect(fake.APPEND), fake.UNKNOWN_OUTCOME)

        with Sidecar(script) as sidecar, self.assertRaises(UnknownOutcome), connect(sidecar.path) as client:
            client.submit(b"x")

    @with_both
    def test_an_exception_leaves_the_block_at_once(self, connect):
        def script(peer):
            peer.welcome()
            while peer.next():
                pass

        with Sidecar(script) as sidecar, self.assertRaises(ZeroDivisionError), connect(sidecar.path) as client:
            client.submit(b"x")
            raise ZeroDivisionError

    @with_both
    def test_a_child_does_not_hold_the_connection(self, connect):
        reader, writer = os.pipe()

        def script(peer):
            peer.welcome().expect_end()
            os.write(writer, b"x")

        with Sidecar(script) as sidecar:
            client = connect(sidecar.path)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    signal.alarm(fake.DEADLINE)
                    os.close(writer)
                    os.read(reader, 1)
                    try:
                        client.append(b"x")
                    except Disconnected as error:
                        status = 0 if "parent process" in str(error) else 2
                finally:
                    os._exit(status)
            client.close()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        os.close(reader)
        os.close(writer)


class Reading(unittest.TestCase):
    @with_both
    def test_a_read_ends(self, connect):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ, fake.read(1, 3))
            peer.records(request, 1, b"one", b"")
            peer.records(request, 3, b"three")
            peer.end(request, 4)
            request = peer.expect(fake.READ, fake.read(0, 0, 2))
            peer.records(request, 7, b"seven")
            peer.end(request, 8)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            records = list(client.read(0, 3))
            self.assertEqual(records, [(1, b"one"), (2, b""), (3, b"three")])
            self.assertEqual(records[0], Record(lsn=1, payload=b"one"))
            self.assertEqual(list(client.read_anywhere()), [(7, b"seven")])

    @with_both
    def test_a_position_is_a_history_and_an_lsn(self, connect):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ, fake.read(1, 0, 0))
            peer.history(request, 31)
            peer.records(request, 1, b"one")
            peer.end(request, 2)
            request = peer.expect(fake.READ, fake.read(2, 1, 0, 31))
            peer.history(request, 32)
            peer.records(request, 2, b"two")
            peer.end(request, 3)
            request = peer.expect(fake.FOLLOW, fake.follow(3, 32))
            peer.error(request, fake.BEYOND_END)
            peer.expect_end()
            peer.accept().welcome(version=2)
            request = peer.expect(fake.READ, fake.read(3))
            peer.end(request, 3)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            with connect(sidecar.path) as client:
                read = client.read(1)
                self.assertEqual((read.history, list(read), read.history), (0, [(1, b"one")], 31))
                read = client.read(2, 1, history=read.history)
                self.assertEqual((list(read), read.history), ([(2, b"two")], 32))
                with self.assertRaises(BeyondEnd):
                    next(client.follow(3, read.history))
            with connect(sidecar.path) as client:  # of an earlier release
                self.assertEqual(list(client.read(3, history=32)), [])

    @with_both
    def test_a_tail_continues_until_it_is_closed(self, connect):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ, fake.read(5, 0, 1))
            peer.records(request, 5, b"five")
            peer.caught_up(request, 6)
            peer.records(request, 6, b"six")
            peer.caught_up(request, 7)
            assert peer.expect(fake.STOP) == request
            peer.records(request, 7, b"dropped")
            peer.caught_up(request, 8)
            peer.end(request, 8)
            peer.ack(peer.expect(fake.APPEND), 8)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            tail = client.tail(5)
            events = [next(tail) for _ in range(4)]
            self.assertEqual(events, [Record(5, b"five"), CaughtUp(6), Record(6, b"six"), CaughtUp(7)])
            self.assertIsInstance(events[1], CaughtUp)
            tail.close()
            self.assertEqual(list(tail), [])
            self.assertEqual(client.append(b"x"), 8)

    @with_both
    def test_a_follow_ends_with_the_turn(self, connect):
        def script(peer):
            peer.welcome(role=fake.STANDBY, epoch=4, last=0, primary="db-1")
            request = peer.expect(fake.FOLLOW, fake.follow(6))
            peer.lag(request, 0, (1 << 32) - 1, 1)
            peer.records(request, 6, b"six")
            peer.caught_up(request, 7)
            peer.lag(request, 6, 250, 0)
            peer.turn(request, 5, 7)
            peer.ack(peer.expect(fake.APPEND), 7)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            events = list(client.follow(6))
            self.assertEqual(events, [Lag(0, None, True), (6, b"six"), CaughtUp(7), Lag(6, 0.25, False), Turn(5, 7)])
            self.assertIsInstance(events[-1], Turn)
            self.assertEqual((client.role, client.epoch, client.primary), (Role.PRIMARY, 5, None))
            self.assertEqual(client.append(b"x"), 7)

    @with_both
    def test_an_old_turn_does_not_undo_a_role(self, connect):
        def script(peer):
            peer.welcome(role=fake.STANDBY, epoch=4)
            request = peer.expect(fake.FOLLOW)
            peer.role(fake.STANDBY, "db-2", epoch=6)
            peer.turn(request, 5, 7)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            self.assertEqual(list(client.follow(7)), [Turn(5, 7)])
            self.assertEqual((client.role, client.epoch, client.primary), (Role.STANDBY, 6, "db-2"))

    @with_both
    def test_a_read_that_is_left_is_stopped(self, connect):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ)
            peer.records(request, 1, b"one", b"two")
            assert peer.expect(fake.STOP) == request
            peer.records(request, 3, b"three")
            peer.end(request, 4)
            peer.ack(peer.expect(fake.APPEND), 4)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            for record in client.read(1):
                self.assertEqual(record, (1, b"one"))
                break
            self.assertEqual(client.append(b"x"), 4)

    @with_both
    def test_nothing_else_goes_during_a_read(self, connect):
        refused = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, b"one")
            assert refused.wait(fake.DEADLINE)
            peer.turn(request, 5, 2)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            follow = client.follow(1)
            self.assertEqual(next(follow), (1, b"one"))
            calls = [lambda: client.append(b"x"), client.status, lambda: next(client.read(1))]
            for call in calls:
                with self.assertRaisesRegex(RuntimeError, "a follow is running on this client"):
                    call()
            refused.set()
            self.assertEqual(list(follow), [Turn(5, 2)])

    @with_both
    def test_a_read_may_be_refused(self, connect):
        def script(peer):
            peer.welcome()
            for code in (fake.GONE, fake.BEYOND_END, fake.NOT_PRIMARY, fake.UNAVAILABLE, fake.BUSY):
                request = peer.expect(fake.READ)
                peer.records(request, 1, b"one")
                peer.error(request, code)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            reads = []
            for kind in (Trimmed, BeyondEnd, NotPrimary, Retry, Retry):
                reads.append(client.read(1))
                self.assertEqual(next(reads[-1]), (1, b"one"))
                for ended in reads[:-1]:
                    ended.close()  # disturbs nobody
                with self.assertRaises(kind):
                    next(reads[-1])
                self.assertEqual(list(reads[-1]), [])

    @with_both
    def test_an_older_sidecar_is_not_asked_to_follow(self, connect):
        def script(peer):
            peer.welcome(version=1)
            peer.ack(peer.expect(fake.APPEND), 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            for call in (client.follow, client.read_anywhere, client.position):
                with self.assertRaisesRegex(Refused, "speaks version 1") as caught:
                    call()
                self.assertIs(caught.exception.code, ErrorCode.UNSUPPORTED_VERSION)
            self.assertEqual(client.append(b"x"), 10)


class Errors(unittest.TestCase):
    @with_both
    def test_refusals_have_their_class(self, connect):
        classes = {
            fake.BAD_FRAME: Refused,
            fake.NOT_PRIMARY: NotPrimary,
            fake.TOO_LARGE: TooLarge,
            fake.UNKNOWN_OUTCOME: UnknownOutcome,
            fake.READING: Refused,
            fake.BUSY: Retry,
            fake.UNAVAILABLE: Retry,
            fake.TABLE_FULL: TableFull,
            fake.WRONG_KIND: WrongKind,
        }

        def script(peer):
            peer.welcome(role=fake.STANDBY, primary="db-1")
            for code in classes:
                peer.error(peer.expect(fake.APPEND), code, "this is why")
            peer.error(peer.expect(fake.BARRIER), fake.BUSY, retry_after_ms=250)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            for code, kind in classes.items():
                with self.assertRaises(kind) as caught:
                    client.append(b"x")
                error = caught.exception
                self.assertIs(type(error), kind)
                self.assertEqual(error.code, ErrorCode(code))
                self.assertIn("%s: this is why" % sidecar.path, str(error))
                if kind is NotPrimary:
                    self.assertEqual(error.primary, "db-1")
                if kind is Retry:
                    self.assertEqual(error.retry_after, 0.1)
                    self.assertIn("try again in 0.1 s", str(error))
            with self.assertRaises(Retry) as caught:
                client.barrier()
            self.assertEqual(caught.exception.retry_after, 0.25)

    @with_both
    def test_refused_connections_have_their_class(self, connect):
        for code, kind in {fake.NOT_ALLOWED: NotAllowed, fake.BUSY: Retry, fake.NOT_PRIMARY: NotPrimary,
                           fake.UNSUPPORTED_VERSION: Refused, fake.SHUTTING_DOWN: Disconnected}.items():
            for numbered in (True, False):
                def script(peer):
                    peer.error(peer.expect(fake.HELLO) if numbered else 0, code, "this is why", fatal=True)

                with Sidecar(script) as sidecar, self.assertRaisesRegex(kind, "append.sock: this is why"):
                    connect(sidecar.path)

    @with_both
    def test_a_fatal_error_ends_the_connection(self, connect):
        def script(peer):
            peer.welcome()
            append, status = peer.expect(fake.APPEND), peer.expect(fake.STATUS)
            peer.error(status, fake.BUSY, "the slot is needed", fatal=True)
            assert append

        with Sidecar(script) as sidecar:
            client = connect(sidecar.path)
            client.submit(b"x")
            with self.assertRaises(Retry):
                client.status()
            with self.assertRaisesRegex(Disconnected, "the slot is needed"):
                client.flush()
            with self.assertRaisesRegex(Disconnected, "the slot is needed"):
                client.append(b"y")
            client.close()

    @with_both
    def test_the_end_answers_what_is_in_flight(self, connect):
        def script(peer):
            peer.welcome()
            requests = [peer.expect(fake.APPEND) for _ in range(3)]
            peer.ack(requests[0], 10)

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            tickets = [client.submit(b"x") for _ in range(3)]
            self.assertEqual(client.wait(tickets[0]), 10)
            errors = []
            for ticket in tickets[1:]:
                with self.assertRaisesRegex(Disconnected, "append.sock: the sidecar closed the connection") as caught:
                    client.wait(ticket)
                errors.append(caught.exception)
            self.assertIsNot(errors[0], errors[1])
            self.assertIsInstance(errors[0], ConnectionError)
            self.assertEqual(client.acked, 10)
            # All of it has been told: leaving the block is quiet.

    @with_both
    def test_after_the_end_nobody_is_primary(self, connect):
        with Sidecar(lambda peer: peer.welcome().expect(fake.BARRIER)) as sidecar, connect(sidecar.path) as client:
            self.assertEqual(client.role, Role.PRIMARY)
            self.assertRaises(Disconnected, client.barrier)
            self.assertEqual(client.role, Role.STANDBY)

    def test_a_closed_socket_ends_no_process(self):
        program = (
            "import signal, sys, tailwind\n"
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
            "log = tailwind.Client(sys.argv[1])\n"
            "sys.stdin.read()\n"
            "try:\n    log.append(b'x')\n"
            "except tailwind.Disconnected:\n    print('told')\n"
        )
        with Sidecar(lambda peer: peer.welcome()) as sidecar:
            command = [sys.executable, "-c", program, sidecar.path]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
            sidecar.wait()
            self.assertEqual((child.communicate()[0], child.returncode), ("told\n", 0))

    @with_both
    def test_the_end_ends_a_read(self, connect):
        def script(peer):
            peer.welcome()
            peer.records(peer.expect(fake.READ), 1, b"one")

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            tail = client.tail(1)
            self.assertEqual(next(tail), (1, b"one"))
            with self.assertRaises(Disconnected):
                next(tail)
            self.assertEqual(list(tail), [])

    @with_both
    def test_a_closed_client_says_so(self, connect):
        with Sidecar(lambda peer: peer.welcome().expect_end()) as sidecar:
            client = connect(sidecar.path)
            client.close()
            client.close()
        for call in (lambda: client.append(b"x"), client.status, lambda: next(client.read(1))):
            with self.assertRaisesRegex(Disconnected, "append.sock: this client was closed"):
                call()

    @with_both
    def test_what_breaks_the_protocol_ends_the_connection(self, connect):
        u64 = struct.Struct("<Q").pack
        answers = {
            "unknown": fake.frame(200, 2),
            "LSN 4 where LSN 1 is next": fake.frame(fake.RECORDS, 2, struct.pack("<QIII", 4, 1, 0, 0)),
            "LSN 3 where LSN 1 is next": fake.frame(fake.TURN, 2, struct.pack("<QQ", 5, 3)),
            "unpack": fake.frame(fake.RECORDS, 2, struct.pack("<QIII", 1, 2, 0, 0)),
            "records take": fake.frame(fake.RECORDS, 2, struct.pack("<QIII", 1, 1, 0, 1)),
            "number 9 is running": fake.frame(fake.END, 9, u64(1)),
            "appended with number 2": fake.frame(fake.ACK, 2, u64(1)),
            "does not answer request 2": fake.frame(fake.TRIMMED, 2, u64(1)),
            "answer request 7": fake.frame(fake.PASSED, 7, struct.pack("<QQ", 1, 1)),
            "15 is not a valid ErrorCode": fake.frame(fake.ERROR, 2, struct.pack("<HBBI", 15, 0, 0, 0)),
            "9 is not a valid Role": fake.frame(fake.ROLE, 0, struct.pack("<B7xQQ", 9, 1, 1)),
            "can't decode": fake.frame(fake.ROLE, 0, struct.pack("<B7xQQ", 1, 1, 1) + b"\xff"),
            "frame of 33554433 bytes": struct.pack("<IBBHQ", (32 << 20) + 1, fake.RECORDS, 0, 0, 2),
        }
        for what, answer in answers.items():
            def script(peer):
                peer.welcome()
                peer.expect(fake.READ)
                peer.send_bytes(answer)
                peer.expect_end()

            with self.subTest(what), Sidecar(script) as sidecar:
                client = connect(sidecar.path)
                with self.assertRaisesRegex(ProtocolError, what) as caught:
                    next(client.tail(1))
                self.assertIsInstance(caught.exception, Disconnected)
                client.close()

    @with_both
    def test_a_report_has_to_be_an_object(self, connect):
        for report in (b"[]", b"{", b"\xff"):
            def script(peer):
                peer.welcome()
                peer.send(fake.REPORT, peer.expect(fake.STATUS), report)
                peer.expect_end()

            with Sidecar(script) as sidecar:
                client = connect(sidecar.path)
                self.assertRaises(ProtocolError, client.status)
                client.close()

    @with_both
    def test_a_welcome_that_cannot_be(self, connect):
        for fields, what in (({"version": 5}, "version 5 was not offered"), ({"role": 5}, "5 is not a valid Role"),
                             ({"inflight_max": 0}, "no append may be in flight")):
            with Sidecar(lambda peer: peer.welcome(**fields)) as sidecar:
                with self.assertRaisesRegex(ProtocolError, what):
                    connect(sidecar.path)

    @with_both
    def test_limits_that_no_frame_can_carry(self, connect):
        huge = (1 << 32) - 1
        with Sidecar(lambda peer: peer.welcome(record_size_max=huge, batch_size_max=huge).expect_end()) as sidecar:
            with connect(sidecar.path) as client:
                self.assertEqual((client.welcome.record_size_max, client.welcome.batch_size_max), (32 << 20, 32 << 20))
                self.assertRaises(TooLarge, client.append, bytes((32 << 20) + 1))


class Arguments(unittest.TestCase):
    @with_both
    def test_wrong_arguments_send_nothing(self, connect):
        def script(peer):
            peer.welcome(record_size_max=100, batch_size_max=200, batch_records_max=3)
            peer.ack(peer.expect(fake.APPEND, struct.pack("=2I", 1, 2)), 10)
            peer.ack(peer.expect(fake.APPEND, b"ab"), 11)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            wrong = [
                (TypeError, r"a record must be bytes, not str; encode it: text.encode\(\)", lambda: client.append("text")),
                (TypeError, "a record must be bytes, not int", lambda: client.submit(5)),
                (TypeError, "a record must be bytes, not NoneType", lambda: client.append(None)),
                (TypeError, "record 1 of a batch must be bytes, not str", lambda: client.append_batch([b"x", "y"])),
                (TypeError, "a batch is a list of records, not bytes", lambda: client.append_batch(b"abc")),
                (ValueError, "a batch without a record", lambda: client.submit_batch([])),
                (TooLarge, "append.sock: a record of 101 bytes: the limit is 100", lambda: client.append(bytes(101))),
                (TooLarge, "record 0 of a batch of 101 bytes", lambda: client.append_batch([bytes(101)])),
                (TooLarge, "batch of 4 records: the limit is 3", lambda: client.append_batch([b""] * 4)),
                (TooLarge, "batch takes 280 bytes of log: the limit is 200", lambda: client.append_batch([bytes(99)] * 2)),
                (TypeError, "LSN must be an int, not str", lambda: client.read("1")),
                (ValueError, "LSN -1: must be from 0", lambda: client.follow(-1)),
                (ValueError, "LSN 18446744073709551616: must be", lambda: client.trim(1 << 64)),
                (TypeError, "limit must be an int, not float", lambda: client.read(1, 2.0)),
            ]
            for kind, text, call in wrong:
                with self.subTest(text), self.assertRaisesRegex(kind, text):
                    call()
            self.assertEqual(client.in_flight, 0)
            self.assertEqual(client.append(memoryview(struct.pack("=2I", 1, 2)).cast("I")), 10)
            self.assertEqual(client.append(memoryview(b"aXbX")[::2]), 11)

    @with_both
    def test_paths_without_a_sidecar(self, connect):
        with tempfile.TemporaryDirectory() as folder:
            socket, file = os.path.join(folder, "append.sock"), os.path.join(folder, "file")
            open(file, "w").close()
            for path in (socket, os.path.join(file, "append.sock")):
                with self.assertRaisesRegex(CannotConnect, "%s: no such socket: is the sidecar running" % path) as caught:
                    connect(path)
                self.assertIsInstance(caught.exception, OSError)
            with Sidecar(lambda peer: peer.welcome()) as sidecar:
                connect(sidecar.path).close()
                os.link(sidecar.path, socket)
            with self.assertRaisesRegex(CannotConnect, "%s: no sidecar listens on this socket" % socket):
                connect(socket)
            for path in (folder, file):
                with self.assertRaisesRegex(ValueError, "%s: not a socket" % path):
                    connect(path)
            for path in ("", "x" * 108):
                with self.assertRaisesRegex(ValueError, "has 1 to 107 bytes"):
                    connect(path)
            with self.assertRaises(TypeError):
                connect(5)

    @with_both
    def test_a_user_who_may_not_open_the_socket(self, connect):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    if os.geteuid() == 0:
                        os.setuid(NOBODY)
                    connect(os.path.join(folder, "append.sock"))
                except NotAllowed as error:
                    told = "permission denied for user %d" % os.geteuid() in str(error) and "--allow-uid" in str(error)
                    status = 0 if told else 2
                finally:
                    os._exit(status)
            status = os.waitpid(child, 0)[1]
            os.chmod(folder, stat.S_IRWXU)
        self.assertEqual(status, 0)


class Pressure(unittest.TestCase):
    @with_both
    def test_pipelining_does_not_deadlock(self, connect):
        for count, group, size, inflight_max in ((20_000, 1000, 100, 1000), (40, 4, 1 << 20, 4)):
            def script(peer):
                peer.welcome(inflight_max=inflight_max)
                # Reads a group of appends, then nothing until their acks have been taken.
                for start in range(0, count, group):
                    requests = [peer.expect(fake.APPEND) for _ in range(group)]
                    for lsn, request in enumerate(requests, start + 1):
                        peer.ack(request, lsn)
                peer.expect_end()

            with Sidecar(script) as sidecar, connect(sidecar.path) as client:
                for _ in range(count):
                    client.submit(bytes(size))
                    assert client.in_flight <= inflight_max
                self.assertEqual(client.flush(), count)

    @with_both
    def test_frames_may_come_in_pieces(self, connect):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ)
            body = struct.pack("<QII", 1, 1, 0) + struct.pack("<I", 1 << 20) + bytes(1 << 20)
            for data in (fake.frame(fake.RECORDS, request, body), fake.frame(fake.END, request, struct.pack("<Q", 2))):
                for place in range(0, len(data), 9973):
                    peer.send_bytes(data[place:place + 9973])
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            self.assertEqual(list(client.read(1)), [(1, bytes(1 << 20))])


class Failover(unittest.TestCase):
    @with_both
    def test_reconnecting_settles_what_was_in_flight(self, connect):
        """The steps of "After a failover" in docs/append-socket.md."""

        def script(peer):
            peer.welcome()
            requests = [peer.expect(fake.APPEND, b"%d" % n) for n in range(4)]
            peer.ack(requests[0], 10)
            for request in requests[1:]:
                peer.error(request, fake.UNKNOWN_OUTCOME, "the role was lost")
            peer.role(fake.STANDBY, "db-1")
            peer.error(peer.expect(fake.BARRIER), fake.NOT_PRIMARY)
            peer.expect_end()
            peer.accept().welcome(hold=True, epoch=5)
            request = peer.expect(fake.READ, fake.read(11))
            peer.records(request, 11, b"1", b"2")
            peer.end(request, 13)
            peer.ack(peer.expect(fake.APPEND, b"3"), 13)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            records = [b"%d" % n for n in range(4)]
            client = connect(sidecar.path)
            tickets = [client.submit(record) for record in records]
            for number, ticket in enumerate(tickets):
                try:
                    client.wait(ticket)
                except UnknownOutcome as error:
                    self.assertIn("read to find out", str(error))
                    self.assertGreater(number, 0)
            self.assertRaises(NotPrimary, client.barrier)
            self.assertIs(client.role, Role.STANDBY)
            acked = client.acked
            client.close()
            with connect(sidecar.path, hold=True) as client:
                found = [record.payload for record in client.read(acked + 1)]
                self.assertEqual(found, [b"1", b"2"])
                self.assertEqual([client.append(record) for record in records[1 + len(found):]], [13])


class Names(unittest.TestCase):
    def test_every_error_is_an_error(self):
        for kind in (BeyondEnd, CannotConnect, Disconnected, NotAllowed, NotPrimary, ProtocolError, Refused, Retry, TooLarge,
                     Mismatch, TableFull, Trimmed, UnknownOutcome, WrongKind):
            self.assertTrue(issubclass(kind, Error))


if __name__ == "__main__":
    unittest.main()
