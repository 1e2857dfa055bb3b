"""What is the asyncio client's alone, and the asyncio tables': tasks, cancellation and the event loop."""

import asyncio
import gc
import threading
import time
import unittest

import fake
from fake import Sidecar
from tailwind import (Apply, AsyncClient, AsyncLocalTable, AsyncTable, CannotConnect, CaughtUp, Disconnected, Entry, Mismatch,
                      NotPrimary, Put, UnknownOutcome)


def acknowledges(count):
    """A script that acknowledges so many appends, and returns nothing before the last one has come."""

    def script(peer):
        peer.welcome(inflight_max=max(count, 1))
        requests = [peer.expect(fake.APPEND, b"%d" % n) for n in range(count)]
        for lsn, request in enumerate(requests, 1):
            peer.ack(request, lsn)
        peer.expect_end()

    return script


class Asyncio(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.logged = []

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.logged.append(context))

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.logged, [])

    async def test_appends_of_tasks_are_pipelined_in_order(self):
        with Sidecar(acknowledges(100)) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                lsns = await asyncio.gather(*(client.append(b"%d" % n) for n in range(100)))
                self.assertEqual(lsns, list(range(1, 101)))

    async def test_tasks_wait_for_room_in_order(self):
        def script(peer):
            peer.welcome(inflight_max=3)
            for lsn in range(1, 100, 3):
                requests = [peer.expect(fake.APPEND, b"%d" % (lsn + n)) for n in range(3)]
                for n, request in enumerate(requests):
                    peer.ack(request, lsn + n)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                lsns = await asyncio.gather(*(client.append(b"%d" % n) for n in range(1, 100)))
                self.assertEqual(lsns, list(range(1, 100)))

    async def test_submit_returns_a_future(self):
        with Sidecar(acknowledges(3)) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                futures = [await client.submit(b"%d" % n) for n in range(3)]
                self.assertEqual([future.done() for future in futures], [False] * 3)
                self.assertEqual(await asyncio.gather(*futures), [1, 2, 3])
                self.assertEqual(await client.flush(), 3)

    async def test_flush_tells_what_nobody_has_awaited(self):
        def script(peer):
            peer.welcome()
            for _ in range(4):
                peer.error(peer.expect(fake.APPEND), fake.UNKNOWN_OUTCOME)
            peer.error(peer.expect(fake.APPEND), fake.NOT_PRIMARY)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                first, second, third, fourth, _ = [await client.submit(b"x") for _ in range(5)]
                with self.assertRaises(UnknownOutcome):
                    await first
                with self.assertRaises(UnknownOutcome):
                    await asyncio.wait_for(second, fake.DEADLINE)
                self.assertIsInstance((await asyncio.gather(third, return_exceptions=True))[0], UnknownOutcome)
                for _ in (third, fourth):  # of the third the client cannot know whether anybody has heard
                    with self.assertRaises(UnknownOutcome):
                        await client.flush()
                with self.assertRaises(NotPrimary):
                    await client.flush()
                self.assertIsNone(await client.flush())

    async def test_flush_tells_what_a_shield_has_given_up(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.APPEND)
            assert late.wait(fake.DEADLINE)
            peer.error(request, fake.UNKNOWN_OUTCOME)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                future = await client.submit(b"x")
                future.add_done_callback(lambda done: done.exception())  # as the shield itself does in some versions
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(future), 0.05)
                late.set()
                with self.assertRaises(UnknownOutcome):
                    await client.flush()
                self.assertIsNone(await client.flush())

    async def test_a_cancelled_append_leaves_the_client_as_it_was(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.APPEND, b"cancelled")
            assert late.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.ack(peer.expect(fake.APPEND, b"next"), 11)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.append(b"cancelled"), 0.05)
                self.assertEqual(client.in_flight, 1)
                late.set()
                self.assertEqual(await client.append(b"next"), 11)

    async def test_a_cancelled_wait_for_room_sends_nothing(self):
        late = threading.Event()

        def script(peer):
            peer.welcome(inflight_max=1)
            request = peer.expect(fake.APPEND, b"first")
            assert late.wait(fake.DEADLINE)
            peer.ack(request, 10)
            peer.ack(peer.expect(fake.APPEND, b"third"), 11)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                first = asyncio.create_task(client.append(b"first"))
                second = asyncio.create_task(client.append(b"second"))
                third = asyncio.create_task(client.append(b"third"))
                while client.in_flight == 0:
                    await asyncio.sleep(0)
                second.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await second
                late.set()
                self.assertEqual((await first, await third), (10, 11))

    async def test_a_cancelled_question_is_nobodys(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.STATUS)
            assert late.wait(fake.DEADLINE)
            peer.send(fake.REPORT, request, b'{"late": true}')
            peer.send(fake.REPORT, peer.expect(fake.STATUS), b'{"late": false}')
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.status(), 0.05)
                late.set()
                self.assertEqual(await client.status(), {"late": False})

    async def test_questions_of_tasks_are_pipelined(self):
        def script(peer):
            peer.welcome()
            requests = [peer.expect(fake.STATUS) for _ in range(3)]
            for n, request in reversed(list(enumerate(requests))):
                peer.send(fake.REPORT, request, b'{"n": %d}' % n)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                reports = await asyncio.gather(*(client.status() for _ in range(3)))
                self.assertEqual([report["n"] for report in reports], [0, 1, 2])

    async def test_waiting_for_an_event_may_be_cancelled(self):
        late = threading.Event()

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.FOLLOW)
            assert late.wait(fake.DEADLINE)
            peer.records(request, 1, b"one")
            assert peer.expect(fake.STOP) == request
            peer.end(request, 2)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client, client.follow(1) as follow:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(follow.__anext__(), 0.05)
                late.set()
                self.assertEqual(await follow.__anext__(), (1, b"one"))

    async def test_a_follow_beside_another_task(self):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.FOLLOW)
            assert refused.wait(fake.DEADLINE)
            peer.turn(request, 5, 1)
            peer.expect_end()

        refused = threading.Event()
        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                async def follow():
                    return [event async for event in client.follow(1)]

                task = asyncio.create_task(follow())
                await asyncio.sleep(0)
                with self.assertRaisesRegex(RuntimeError, "a follow is running on this client"):
                    await client.append(b"x")
                refused.set()
                self.assertEqual(len(await task), 1)

    async def test_a_follow_that_nobody_has_any_more_is_stopped(self):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, b"one")
            assert peer.expect(fake.STOP) == request  # although nothing else is asked for
            peer.end(request, 2)
            stopped.set()
            peer.expect_end()

        stopped = threading.Event()
        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                async for _ in client.follow(1):
                    break
                await asyncio.get_running_loop().run_in_executor(None, stopped.wait, fake.DEADLINE)

    async def test_an_append_right_after_a_break(self):
        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ)
            peer.records(request, 1, b"one")
            assert peer.expect(fake.STOP) == request
            peer.end(request, 2)
            peer.ack(peer.expect(fake.APPEND), 2)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                async for _ in client.read(1):
                    break
                self.assertEqual(await client.append(b"x"), 2)

    async def test_a_slow_reader_makes_the_sidecar_wait(self):
        count, size = 64, 1 << 20
        sent = []

        def script(peer):
            peer.welcome()
            request = peer.expect(fake.READ)
            for lsn in range(1, count + 1):
                peer.records(request, lsn, bytes(size))
                sent.append(lsn)
            peer.end(request, count + 1)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                read = client.read(1)
                self.assertEqual((await read.__anext__()).lsn, 1)
                # In this time a client that takes everything would take it. No machine is too slow for one that does not.
                patience = time.monotonic() + 0.5
                while time.monotonic() < patience:
                    self.assertLess(len(sent), count // 2)
                    await asyncio.sleep(0)
                self.assertEqual([record.lsn async for record in read], list(range(2, count + 1)))

    async def test_requests_to_a_table_are_pipelined(self):
        def script(peer):
            peer.welcome(table=True)
            requests = [peer.expect(fake.APPLY, fake.apply((fake.PUT, b"%d" % n, b"v", None))) for n in range(100)]
            for lsn, request in enumerate(requests, 1):
                peer.ack(request, lsn)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncTable(sidecar.path) as table:
                revisions = await asyncio.gather(*(table.put(b"%d" % n, b"v") for n in range(100)))
                self.assertEqual(revisions, list(range(1, 101)))

    async def test_a_mismatch_comes_after_later_acks(self):
        def script(peer):
            peer.welcome(table=True)
            mismatch, acked, lost = (peer.expect(fake.APPLY) for _ in range(3))
            peer.ack(acked, 10)
            peer.mismatch(mismatch, 0, 7)
            peer.mismatch(lost, 0, 0)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            table = await AsyncTable(sidecar.path)
            two = Apply().put(b"a", b"1").require(b"b", None).delete(b"c")
            answers = [await table.submit(request) for request in (Apply().delete_if(b"k", 3), two, Apply().delete_if(b"l", 3))]
            self.assertEqual(two.applied(await answers[1]), [9, 10])
            with self.assertRaises(Mismatch):
                await answers[0]
            with self.assertRaises(Mismatch):
                await table.client.flush()  # tells what nobody has awaited
            table.close()

    async def test_a_table_has_to_be_connected_first(self):
        with self.assertRaisesRegex(RuntimeError, "is not connected"):
            await AsyncTable("x").put(b"k", b"v")

    async def test_waiting_for_a_change_may_be_cancelled(self):
        late = threading.Event()

        def script(peer):
            peer.expect(fake.HELLO)  # given up
            peer.expect_end()
            peer.accept().welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, fake.keyed(fake.PUT, b"k", b"v"))
            assert late.wait(fake.DEADLINE)
            peer.caught_up(request, 2)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            async with AsyncLocalTable.follow(sidecar.path) as table:
                for _ in range(3):
                    with self.assertRaises(asyncio.TimeoutError):
                        await asyncio.wait_for(table.next_change(), 0.05)
                late.set()
                self.assertEqual([await table.next_change(), await table.next_change()], [Put(b"k", b"v", 1), CaughtUp(2)])

    async def test_closing_a_local_table_ends_the_wait(self):
        asked = threading.Event()

        def script(peer):
            peer.expect(fake.HELLO)
            asked.set()
            peer.expect_end()

        with Sidecar(script) as sidecar:
            table = AsyncLocalTable.follow(sidecar.path)
            task = asyncio.create_task(table.next_change())
            await asyncio.get_running_loop().run_in_executor(None, asked.wait, fake.DEADLINE)
            table.close()
            with self.assertRaisesRegex(Disconnected, "this client was closed"):
                await task
            with self.assertRaisesRegex(Disconnected, "this local table was closed"):
                await table.next_change()

    async def test_one_task_takes_changes_and_all_look_up(self):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, fake.keyed(fake.PUT, b"k", b"v"))
            peer.caught_up(request, 2)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            caught_up = asyncio.Event()
            table = AsyncLocalTable.follow(sidecar.path)

            async def take():
                async for change in table.changes():
                    if change == CaughtUp(2):
                        caught_up.set()

            task = asyncio.create_task(take())
            await caught_up.wait()
            with self.assertRaisesRegex(RuntimeError, "append.sock: another thread or task takes the changes"):
                await table.next_change()
            self.assertEqual((table[b"k"], b"k" in table, len(table), list(table)), (Entry(b"v", 1), True, 1, [b"k"]))
            table.close()
            with self.assertRaisesRegex(Disconnected, "this client was closed"):
                await task

    async def test_the_end_is_told_to_every_task(self):
        def script(peer):
            peer.welcome(inflight_max=2)
            peer.expect(fake.APPEND)
            peer.expect(fake.APPEND)

        with Sidecar(script) as sidecar:
            client = await AsyncClient(sidecar.path)
            answers = await asyncio.gather(*(client.append(b"x") for _ in range(4)), return_exceptions=True)
            self.assertEqual([type(answer) for answer in answers], [Disconnected] * 4)
            self.assertEqual(len({id(answer) for answer in answers}), 4)

    async def test_closing_tells_every_task(self):
        with Sidecar(lambda peer: peer.welcome() and peer.expect(fake.APPEND) and peer.expect_end()) as sidecar:
            client = await AsyncClient(sidecar.path)
            task = asyncio.create_task(client.append(b"x"))
            while client.in_flight == 0:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            client.close()
            with self.assertRaisesRegex(Disconnected, "this client was closed"):
                await task

    async def test_it_has_to_be_connected_first(self):
        client = AsyncClient("/nowhere/append.sock")
        for call in (client.append(b"x"), client.status(), client.flush()):
            with self.assertRaisesRegex(RuntimeError, "not connected"):
                await call
        with self.assertRaisesRegex(RuntimeError, "not connected"):
            client.follow(1)
        with self.assertRaisesRegex(RuntimeError, "not connected"):
            client.welcome
        client.close()
        for _ in range(2):
            with self.assertRaises(CannotConnect):
                await client

    async def test_it_is_connected_once(self):
        with Sidecar(lambda peer: peer.welcome().expect_end()) as sidecar:
            async with AsyncClient(sidecar.path) as client:
                with self.assertRaisesRegex(RuntimeError, "connected before"):
                    await client


class Loops(unittest.TestCase):
    def test_it_belongs_to_one_loop(self):
        with Sidecar(lambda peer: peer.welcome().expect_end()) as sidecar:
            async def connect():
                return await AsyncClient(sidecar.path)

            loop = asyncio.new_event_loop()
            client = loop.run_until_complete(connect())
            with self.assertRaisesRegex(RuntimeError, "another event loop"):
                asyncio.run(client.append(b"x"))
            loop.close()
            client.close()


if __name__ == "__main__":
    unittest.main()
