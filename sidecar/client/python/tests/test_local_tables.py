"""What both local tables do, each scenario with either of them. What a log makes of a table is in `test_fold.py`."""

import unittest

import fake
from driven import LOCAL_TABLES, with_each
from fake import DELETE, PUT, Sidecar, keyed
from tailwind import BeyondEnd, CaughtUp, Deleted, Disconnected, Entry, Lag, Put, Retry, Turn, WrongKind

with_both_local_tables = with_each(*LOCAL_TABLES)


class LocalTables(unittest.TestCase):
    def changes(self, table, count):
        """The next changes, and the values that go with the last one."""
        return [table.next_change() for _ in range(count)], {key: value for key, (value, _) in table.items()}

    @with_both_local_tables
    def test_records_become_content(self, connect):
        def script(peer):
            peer.welcome(role=fake.STANDBY, table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.lag(request, 0, 1000, 1)
            peer.records(request, 7, keyed(DELETE, b"gone"), keyed(PUT, b"b", b"1"), keyed(PUT, b"a", b"2"),
                         keyed(PUT, b"b", b"3"))
            peer.caught_up(request, 11)
            peer.lag(request, 10, 250, 0)
            peer.records(request, 11, keyed(PUT, b"a", b"4"), keyed(DELETE, b"b"), keyed(DELETE, b"b"))
            peer.caught_up(request, 14)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertEqual((dict(table.items()), table.seen), ({}, 0))
            # Empty until it is whole.
            self.assertEqual(self.changes(table, 1), ([Lag(0, 1.0, True)], {}))
            self.assertEqual(self.changes(table, 1), ([Put(b"a", b"2", 9)], {b"a": b"2", b"b": b"3"}))
            self.assertEqual((table.get(b"a"), table.get(b"b"), table.get(b"gone")), (Entry(b"2", 9), Entry(b"3", 10), None))
            self.assertEqual(self.changes(table, 2)[0], [Put(b"b", b"3", 10), CaughtUp(11)])
            self.assertEqual(table.seen, 10)
            self.assertEqual(self.changes(table, 2)[0], [Lag(10, 0.25, False), Put(b"a", b"4", 11)])
            self.assertEqual((table.get(b"a"), table.seen), (Entry(b"4", 11), 11))
            self.assertEqual(self.changes(table, 2), ([Deleted(b"b"), CaughtUp(14)], {b"a": b"4"}))
            self.assertEqual(table.seen, 13)

    @with_both_local_tables
    def test_a_move_is_no_change(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            # The first record is a move, whose original has been trimmed.
            peer.records(request, 20, keyed(PUT, b"old", b"1", 3), keyed(PUT, b"a", b"2"))
            peer.caught_up(request, 22)
            peer.records(request, 22, keyed(PUT, b"a", b"2", 21), keyed(PUT, b"old", b"1", 3))
            peer.caught_up(request, 24)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            changes = [Put(b"a", b"2", 21), Put(b"old", b"1", 3), CaughtUp(22), CaughtUp(24)]
            self.assertEqual(self.changes(table, 4)[0], changes)
            self.assertEqual((table.get(b"old"), table.get(b"a"), table.seen), (Entry(b"1", 3), Entry(b"2", 21), 23))

    @with_both_local_tables
    def test_a_request_is_shown_as_a_whole(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.caught_up(request, 1)
            peer.records(request, 1, keyed(PUT, b"a", b"1"), keyed(PUT, b"b", b"2", more=True))
            peer.lag(request, 1, 0, 0)
            peer.records(request, 3, keyed(DELETE, b"a", more=True), keyed(PUT, b"c", b"3"), keyed(PUT, b"d", b"4"))
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertEqual(self.changes(table, 3), ([CaughtUp(1), Put(b"a", b"1", 1), Lag(1, 0.0, False)], {b"a": b"1"}))
            self.assertEqual(table.seen, 1)
            self.assertEqual(self.changes(table, 1), ([Put(b"b", b"2", 2)], {b"b": b"2", b"c": b"3"}))
            self.assertEqual(table.seen, 4)
            self.assertEqual(self.changes(table, 2)[0], [Deleted(b"a"), Put(b"c", b"3", 4)])
            self.assertEqual(self.changes(table, 1), ([Put(b"d", b"4", 5)], {b"b": b"2", b"c": b"3", b"d": b"4"}))

    @with_both_local_tables
    def test_other_prefixes_are_left_out(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, keyed(PUT, b"other", b"1", more=True), keyed(PUT, b"device/7", b"2", more=True),
                         keyed(PUT, b"device", b"3"), keyed(DELETE, b"other"))
            peer.caught_up(request, 5)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path, b"device/") as table:
            self.assertEqual(self.changes(table, 2), ([Put(b"device/7", b"2", 2), CaughtUp(5)], {b"device/7": b"2"}))

    @with_both_local_tables
    def test_what_is_not_keyed_changes_no_key(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.caught_up(request, 1)
            peer.records(request, 1, b"plain", keyed(PUT, b"a", b"1"), b"TWK2" + keyed(PUT, b"a", b"2")[4:])
            peer.caught_up(request, 4)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertEqual(self.changes(table, 3), ([CaughtUp(1), Put(b"a", b"1", 2), CaughtUp(4)], {b"a": b"1"}))
            self.assertEqual(table.seen, 3)

    @with_both_local_tables
    def test_after_a_trim_a_second_map_is_built(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.records(request, 1, keyed(PUT, b"kept", b"1"), keyed(PUT, b"gone", b"2"), keyed(PUT, b"new", b"3"))
            peer.caught_up(request, 4)
            peer.error(request, fake.GONE, "LSN 4 has been trimmed")
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.records(request, 50, keyed(PUT, b"never shown", b"4", more=True))
            peer.error(request, fake.GONE, "LSN 51 has been trimmed too")
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.records(request, 60, keyed(PUT, b"new", b"5", 40), keyed(PUT, b"b", b"6"), keyed(DELETE, b"c"),
                         keyed(PUT, b"kept", b"1", 1))
            peer.lag(request, 63, 900, 1)
            peer.caught_up(request, 64)
            peer.records(request, 64, keyed(DELETE, b"b"))
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            before = {b"kept": b"1", b"gone": b"2", b"new": b"3"}
            self.assertEqual(self.changes(table, 4)[1], before)
            self.assertEqual(self.changes(table, 1), ([Lag(63, 0.9, True)], before))
            self.assertEqual(table.seen, 3)
            changes = [Deleted(b"gone"), Put(b"b", b"6", 61), Put(b"new", b"5", 40), CaughtUp(64)]
            self.assertEqual(self.changes(table, 4), (changes, {b"kept": b"1", b"new": b"5", b"b": b"6"}))
            self.assertEqual(table.seen, 63)
            self.assertEqual(self.changes(table, 1), ([Deleted(b"b")], {b"kept": b"1", b"new": b"5"}))

    @with_both_local_tables
    def test_after_a_loss_of_records_a_second_map_is_built(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.records(request, 1, keyed(PUT, b"a", b"1"), keyed(PUT, b"b", b"2"), keyed(PUT, b"c", b"3"))
            peer.caught_up(request, 4)
            peer.error(request, fake.BEYOND_END, "the log was cut at LSN 2")
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 32)
            peer.records(request, 1, keyed(PUT, b"a", b"1"), keyed(PUT, b"b", b"other"))
            peer.caught_up(request, 3)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.changes(table, 4)
            changes = [Deleted(b"c"), Put(b"b", b"other", 2), CaughtUp(3)]
            self.assertEqual(self.changes(table, 3), (changes, {b"a": b"1", b"b": b"other"}))
            self.assertEqual(table.seen, 2)

    @with_both_local_tables
    def test_a_log_trimmed_while_it_is_found_is_read_again(self, connect):
        def script(peer):
            peer.welcome(table=True)
            for _ in range(2):
                peer.error(peer.expect(fake.FOLLOW, fake.follow(0)), fake.GONE, "LSN 3 has been trimmed")
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.records(request, 9, keyed(PUT, b"a", b"1"))
            peer.caught_up(request, 10)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertEqual(self.changes(table, 2), ([Put(b"a", b"1", 9), CaughtUp(10)], {b"a": b"1"}))

    @with_both_local_tables
    def test_a_refused_first_record_is_an_error(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.error(peer.expect(fake.FOLLOW), fake.BEYOND_END)
            peer.turn(peer.expect(fake.FOLLOW), 5, 1)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertRaises(BeyondEnd, table.next_change)
            self.assertEqual(table.next_change(), Turn(5, 1))

    @with_both_local_tables
    def test_it_continues_after_a_loss_of_the_connection(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.caught_up(request, 1)
            peer.records(request, 1, keyed(PUT, b"a", b"1"), keyed(PUT, b"b", b"2", more=True))
            peer.accept()
            peer.error(peer.expect(fake.HELLO), fake.BUSY, fatal=True)
            peer.accept().welcome(table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(3, 31))
            peer.error(request, fake.UNAVAILABLE, retry_after_ms=10)
            peer.expect_end()
            peer.accept().welcome(table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(3, 31))
            peer.records(request, 3, keyed(PUT, b"c", b"3"))
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            self.assertEqual(self.changes(table, 2), ([CaughtUp(1), Put(b"a", b"1", 1)], {b"a": b"1"}))
            for kind in (Disconnected, Retry, Retry):
                self.assertRaises(kind, table.next_change)
                self.assertEqual((dict(table.items()), table.seen), ({b"a": Entry(b"1", 1)}, 1))
            self.assertEqual(self.changes(table, 1), ([Put(b"b", b"2", 2)], {b"a": b"1", b"b": b"2", b"c": b"3"}))

    @with_both_local_tables
    def test_after_its_turn_it_tails(self, connect):
        def script(peer):
            peer.welcome(role=fake.STANDBY, table=True)
            request = peer.expect(fake.FOLLOW, fake.follow(0))
            peer.history(request, 31)
            peer.records(request, 4, keyed(PUT, b"a", b"1"))
            peer.turn(request, 5, 5)
            request = peer.expect(fake.READ, fake.read(5, 0, 3, 31))
            peer.history(request, 31)
            peer.caught_up(request, 5)
            peer.records(request, 5, keyed(PUT, b"own", b"2"))
            peer.end(request, 6)
            request = peer.expect(fake.READ, fake.read(6, 0, 3, 31))
            peer.accept().welcome(role=fake.STANDBY, table=True)
            peer.turn(peer.expect(fake.FOLLOW, fake.follow(6, 31)), 7, 6)
            peer.expect(fake.READ, fake.read(6, 0, 3, 31))

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            changes = [Put(b"a", b"1", 4), Turn(5, 5), CaughtUp(5), Put(b"own", b"2", 5)]
            self.assertEqual(list(table.changes()), changes)
            self.assertEqual(table.seen, 5)
            self.assertRaises(Disconnected, table.next_change)
            self.assertEqual(table.next_change(), Turn(7, 6))
            self.assertRaises(Disconnected, table.next_change)

    @with_both_local_tables
    def test_changes_continue_after_an_error(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.error(peer.expect(fake.FOLLOW), fake.UNAVAILABLE)
            peer.expect_end()
            peer.accept().welcome(table=True)
            peer.caught_up(peer.expect(fake.FOLLOW), 1)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect.follow(sidecar.path) as table:
            changes = iter(table.changes())
            self.assertRaises(Retry, next, changes)
            self.assertEqual(next(changes), CaughtUp(1))

    @with_both_local_tables
    def test_a_log_is_no_local_table(self, connect):
        with Sidecar(lambda peer: peer.welcome().expect_end()) as sidecar, connect.follow(sidecar.path) as table:
            self.assertRaisesRegex(WrongKind, "this group keeps a log and no table", table.next_change)

    @with_both_local_tables
    def test_a_closed_local_table_keeps_its_content(self, connect):
        def script(peer):
            peer.welcome(table=True)
            request = peer.expect(fake.FOLLOW)
            peer.records(request, 1, keyed(PUT, b"a", b"1"), keyed(PUT, b"b", b"2"))
            peer.caught_up(request, 3)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            table = connect.follow(sidecar.path)
            self.assertEqual(table.next_change(), Put(b"a", b"1", 1))
            table.close()
            table.close()
            self.assertRaisesRegex(Disconnected, "this local table was closed", table.next_change)
            self.assertEqual(dict(table.items()), {b"a": Entry(b"1", 1), b"b": Entry(b"2", 2)})

    @with_both_local_tables
    def test_a_prefix_is_bytes(self, connect):
        self.assertRaisesRegex(TypeError, "a prefix must be bytes, not str", connect.follow, "x", "device/")


if __name__ == "__main__":
    unittest.main()
