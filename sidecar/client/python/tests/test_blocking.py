"""What is the blocking client's alone, and the blocking tables': time-outs, tickets, threads and signals."""

import os
import signal
import threading
import unittest
from unittest import mock

import fake
from fake import Sidecar
from tailwind import (Apply, CaughtUp, Client, Disconnected, Entry, LocalTable, Mismatch, NotPrimary, Put, Table, TimedOut,
                      UnknownOutcome)

QUIET = 0.05
"""A time-out that has to pass."""


class Timeouts(unittest.TestCase):
    def test_an_append_stays_in_flight(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.APPEND)
            assert late.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path, timeout=QUIET) as client:
            with self.assertRaisesRegex(TimedOut, "append.sock: no answer within 0.05 s") as caught:
                client.append(b"x")
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertEqual((client.in_flight, caught.exception.in_flight), (1, 2))
            late.set()
            client.timeout = None
            self.assertEqual(client.flush(), 10)

    def test_a_record_without_room_is_not_in_flight(self):
        late = threading.Event()

        def script(peer):
            peer.welcome(inflight_max=1)
            request = peer.expect(fake.APPEND)
            assert late.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path, timeout=QUIET) as client:
            client.submit(b"x")
            with self.assertRaises(TimedOut) as caught:
                client.append(b"y")
            self.assertIsNone(caught.exception.in_flight)
            late.set()
            client.timeout = None
            self.assertEqual(client.flush(), 10)

    def test_a_late_answer_is_nobodys(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.STATUS)
            assert late.wait(fake.DEADLINE)
            peer.send(fake.REPORT, request, b'{"late": true}')
            peer.send(fake.REPORT, peer.expect(fake.STATUS), b'{"late": false}')
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path, timeout=QUIET) as client:
            self.assertRaises(TimedOut, client.status)
            late.set()
            client.timeout = None
            self.assertEqual(client.status(), {"late": False})
            self.assertEqual(list(client.acks()), [])

    def test_a_tail_stays_as_it_was(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ)
            peer.caught_up(request, 5)
            assert late.wait(fake.DEADLINE)
            peer.records(request, 5, b"five")
            assert peer.expect(fake.STOP) == request
            peer.end(request, 6)
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path, timeout=QUIET) as client:
            with client.tail(5) as tail:
                client.timeout = None
                self.assertEqual(next(tail), CaughtUp(5))
                client.timeout = QUIET
                for _ in range(2):
                    self.assertRaises(TimedOut, next, tail)
                late.set()
                client.timeout = None
                self.assertEqual(next(tail), (5, b"five"))

    def test_connecting_may_time_out(self):
        with Sidecar(lambda peer: peer.expect(fake.HELLO) and peer.expect_end()) as sidecar:
            self.assertRaises(TimedOut, Client, sidecar.path, hold=True, timeout=QUIET)

    def test_a_timeout_is_above_zero(self):
        for timeout in (0, -1, float("nan"), float("inf"), 1e9):
            self.assertRaisesRegex(ValueError, "must be a number of seconds above 0", Client, "x", timeout=timeout)


class Tables(unittest.TestCase):
    def test_requests_are_pipelined(self):
        def script(peer):
            peer.welcome(table=True)
            requests = [peer.expect(fake.APPLY) for _ in range(3)]
            peer.ack(requests[0], 10)
            peer.ack(requests[2], 12)
            peer.mismatch(requests[1], 0, 7)  # comes last
            peer.ack(peer.expect(fake.APPLY), 13)
            peer.expect_end()

        with Sidecar(script) as sidecar, Table(sidecar.path) as table:
            two = Apply().put(b"a", b"1").require(b"b", None).delete(b"c")
            tickets = [table.submit(request) for request in (Apply().delete(b"k"), Apply().delete_if(b"k", 3), two)]
            self.assertEqual(table.client.in_flight, 3)
            self.assertEqual(two.applied(table.client.wait(tickets[2])), [11, 12])
            self.assertRaises(Mismatch, table.client.wait, tickets[1])
            self.assertEqual(table.client.flush(), 12)
            table.submit(Apply().delete(b"k"))  # leaving the block waits for it

    def test_leaving_the_block_tells_of_a_failure(self):
        def script(peer):
            peer.welcome(table=True)
            peer.mismatch(peer.expect(fake.APPLY), 0, 7)

        with Sidecar(script) as sidecar, self.assertRaises(Mismatch), Table(sidecar.path) as table:
            table.submit(Apply().put_if(b"k", b"v", 3))

    def test_a_request_stays_in_flight(self):
        late = threading.Event()

        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.APPLY)
            assert late.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, Table(sidecar.path, timeout=QUIET) as table:
            with self.assertRaises(TimedOut) as caught:
                table.put(b"k", b"v")
            late.set()
            table.client.timeout = None
            self.assertEqual(table.client.wait(caught.exception.in_flight), 10)

    def test_a_local_table_stays_as_it_was(self):
        late = threading.Event()

        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, fake.keyed(fake.PUT, b"k", b"v"))
            assert late.wait(fake.DEADLINE)
            peer.caught_up(request, 2)
            peer.expect_end()

        with Sidecar(script) as sidecar, LocalTable.follow(sidecar.path, timeout=QUIET) as table:
            for _ in range(2):
                self.assertRaises(TimedOut, table.next_change)
            late.set()
            table._client.timeout = None
            self.assertEqual([table.next_change(), table.next_change()], [Put(b"k", b"v", 1), CaughtUp(2)])

    def test_one_thread_takes_changes_and_all_look_up(self):
        follows, done = threading.Event(), threading.Event()

        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, fake.keyed(fake.PUT, b"k", b"v"))
            peer.caught_up(request, 2)
            assert done.wait(fake.DEADLINE)

        with Sidecar(script) as sidecar:
            table = LocalTable.follow(sidecar.path)
            taken = []

            def take():
                with self.assertRaises(Disconnected):
                    for change in table.changes():
                        taken.append(change)
                        if change == CaughtUp(2):
                            follows.set()

            thread = threading.Thread(target=take)
            thread.start()
            self.assertTrue(follows.wait(fake.DEADLINE))
            self.assertRaisesRegex(RuntimeError, "append.sock: another thread or task takes the changes", table.next_change)
            self.assertEqual((table[b"k"], b"k" in table, len(table), list(table)), (Entry(b"v", 1), True, 1, [b"k"]))
            done.set()
            thread.join()
            self.assertEqual(taken, [Put(b"k", b"v", 1), CaughtUp(2)])

    def test_an_interrupted_change_is_read_again(self):
        def script(peer):
            for first in (0, 3):
                peer.welcome(table=True)
                request = peer.expect(fake.FOLLOW, fake.follow(first))
                if first == 0:
                    peer.caught_up(request, 1)
                    peer.records(request, 1, *(fake.keyed(fake.PUT, b"%d" % n, b"v") for n in range(3)))
                    peer.expect_end()
                    peer.accept()
                else:
                    peer.records(request, 3, fake.keyed(fake.PUT, b"2", b"v"))
            peer.expect_end()

        with Sidecar(script) as sidecar, LocalTable.follow(sidecar.path) as table:
            self.assertEqual([table.next_change() for _ in range(3)], [CaughtUp(1), Put(b"0", b"v", 1), Put(b"1", b"v", 2)])
            with mock.patch.object(table._fold, "take", side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, table.next_change)
            self.assertEqual((table.next_change(), len(table)), (Put(b"2", b"v", 3), 3))


class Tickets(unittest.TestCase):
    def test_answers_are_taken_once(self):
        def script(peer):
            peer.welcome()
            requests = [peer.expect(fake.APPEND) for _ in range(4)]
            peer.error(requests[1], fake.UNKNOWN_OUTCOME)
            peer.error(requests[3], fake.NOT_PRIMARY)
            peer.ack(requests[0], 10)
            peer.ack(requests[2], 11)
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path) as client:
            tickets = [client.submit(b"x") for _ in range(4)]
            self.assertEqual(list(client.acks()), [])
            self.assertEqual(client.wait(tickets[2]), 11)
            self.assertRaisesRegex(ValueError, "ticket %d: its answer was taken" % tickets[2], client.wait, tickets[2])
            self.assertRaises(UnknownOutcome, client.flush)
            (refused, error), (acked, lsn) = client.acks(wait=True)
            self.assertEqual((refused, type(error), acked, lsn), (tickets[3], NotPrimary, tickets[0], 10))
            self.assertEqual(client.flush(), 11)

    def test_too_many_answers_wait(self):
        def script(peer):
            peer.welcome()
            for lsn in range(1, 4):
                peer.ack(peer.expect(fake.APPEND), lsn)
            peer.expect_end()

        with Sidecar(script) as sidecar, Client(sidecar.path) as client:
            import tailwind._blocking as blocking
            bound, blocking.OUTSTANDING_MAX = blocking.OUTSTANDING_MAX, 2
            self.addCleanup(setattr, blocking, "OUTSTANDING_MAX", bound)
            self.assertLess([client.submit(b"x"), client.submit(b"x")][0], client.wait(client.submit(b"x")) + 100)
            self.assertRaisesRegex(RuntimeError, "2 answers wait to be taken", client.submit, b"x")
            client.flush()


class Threads(unittest.TestCase):
    def held(self, interrupt):
        """A client whose append is answered after `interrupt`."""
        done = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.APPEND)
            interrupt()
            assert done.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.expect_end()

        return Sidecar(script), done

    def test_another_thread_is_told(self):
        appends = threading.Event()
        sidecar, done = self.held(appends.set)
        with sidecar, Client(sidecar.path) as client:
            thread = threading.Thread(target=client.append, args=(b"x",))
            thread.start()
            self.assertTrue(appends.wait(fake.DEADLINE))
            for call in (lambda: client.append(b"y"), client.flush, lambda: next(client.read(1))):
                with self.assertRaisesRegex(RuntimeError, "append.sock: another thread"):
                    call()
            done.set()
            thread.join()
            self.assertEqual((client.acked, client.in_flight), (10, 0))

    def handle(self, handler):
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, lambda *_: handler()))

    def test_an_interrupted_wait_leaves_the_client_as_it_was(self):
        class Poll:
            """What is waited with; the signal comes while it waits."""

            def __init__(self, poll):
                self.register, self._poll = poll.register, poll.poll

            def poll(self, timeout):
                signal.raise_signal(signal.SIGUSR1)
                return self._poll(timeout)

        for kind in (TimeoutError, KeyboardInterrupt):
            def handler():
                raise kind

            self.handle(handler)
            sidecar, done = self.held(lambda: None)
            with sidecar, Client(sidecar.path) as client:
                poll, client._poll = client._poll, Poll(client._poll)
                self.assertRaises(kind, client.append, b"x")
                client._poll = poll
                done.set()
                self.assertEqual(client.flush(), 10)

    def test_a_signal_handler_may_not_call_it(self):
        said = []

        def handler():
            try:
                client.append(b"y")
            except RuntimeError as error:
                said.append(str(error))
            done.set()

        self.handle(handler)
        sidecar, done = self.held(lambda: os.kill(os.getpid(), signal.SIGUSR1))
        with sidecar, Client(sidecar.path) as client:
            self.assertEqual(client.append(b"x"), 10)
            self.assertIn("another thread, or what a signal has interrupted", said[0])

    def test_an_interrupt_half_way_ends_the_connection(self):
        def script(peer):
            peer.welcome()
            while peer.next():
                pass

        for kind in (KeyboardInterrupt, TimeoutError, MemoryError):
            with Sidecar(script) as sidecar:
                client = Client(sidecar.path)
                send = client._transmit

                def interrupted():
                    send()
                    raise kind

                client._transmit = interrupted
                self.assertRaises(kind, client.append, b"x")
                with self.assertRaisesRegex(Disconnected, "a call was interrupted half-way"):
                    client.append(b"y")
                client.close()


if __name__ == "__main__":
    unittest.main()
