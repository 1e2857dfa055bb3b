"""What both tables do, each scenario with either of them."""

import struct
import unittest

import fake
from driven import TABLES, with_both, with_each
from fake import COPY, DELETE, PUT, REQUIRE, Sidecar, apply
from tailwind import (Apply, Disconnected, ErrorCode, Mismatch, NotPrimary, ProtocolError, Refused, Retry, Role, TableFull,
                      TooLarge, UnknownOutcome, WrongKind)

with_both_tables = with_each(*TABLES)


class Requests(unittest.TestCase):
    @with_both_tables
    def test_every_call(self, connect):
        def script(peer):
            peer.welcome(table=True)
            for lsn, operation in enumerate((
                (PUT, b"k", b"value", None), (PUT, b"k", b"", 10), (PUT, b"new", b"v", 0),
                (DELETE, b"k", b"", None), (DELETE, b"new", b"", 12),
            ), 10):
                peer.ack(peer.expect(fake.APPLY, apply(operation)), lsn)
            request = peer.expect(fake.APPLY, apply(
                (REQUIRE, b"lease", b"", 7), (PUT, b"a", b"1", None), (REQUIRE, b"free", b"", 0), (DELETE, b"b", b"", None),
                (PUT, b"c", b"3", 2), (DELETE, b"d", b"", 0),
            ))
            peer.ack(request, 20)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            self.assertTrue(table.client.welcome.table)
            self.assertEqual(table.put(b"k", b"value"), 10)
            self.assertEqual(table.put_if(b"k", b"", 10), 11)
            self.assertEqual(table.put_if(b"new", b"v", None), 12)
            self.assertEqual(table.delete(b"k"), 13)
            self.assertEqual(table.delete_if(b"new", 12), 14)
            request = Apply().require(b"lease", 7).put(b"a", b"1").require(b"free", None).delete(b"b")
            request.put_if(b"c", b"3", 2).delete_if(b"d", None)
            self.assertEqual((len(request), table.apply(request)), (6, [17, 18, 19, 20]))

    @with_both_tables
    def test_gets(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.value(peer.expect(fake.GET, fake.get(b"k")), 10, 12, b"value")
            peer.value(peer.expect(fake.GET, fake.get(b"k", 12, 5)), 10, 12)
            peer.value(peer.expect(fake.GET, fake.get(b"gone", 0, 1)), 0, 12)
            peer.value(peer.expect(fake.GET, fake.get(b"k", 0, 2)), 10, 13, b"value", stale=True)
            peer.value(peer.expect(fake.GET, fake.get(b"k", 12, 3)), 0, 14, stale=True)
            peer.value(peer.expect(fake.GET, fake.get(b"k", 0, 6)), 0, 0, b"before", older=True)
            peer.error(peer.expect(fake.GET, fake.get(b"k")), fake.UNAVAILABLE)
            peer.error(peer.expect(fake.GET, fake.get(b"k")), fake.NOT_PRIMARY)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            self.assertEqual(table.get(b"k"), (b"value", 10))
            self.assertEqual(table.get(b"k", fresh=True, least=12, no_value=True), (b"", 10))
            self.assertIsNone(table.get(b"gone", fresh=True))
            self.assertEqual(table.get_with(b"k", older=True), ((b"value", 10), None, 13, True))
            self.assertEqual(table.get_with(b"k", fresh=True, least=12, older=True), (None, None, 14, True))
            self.assertEqual(table.get_with(b"k", older=True, no_value=True), (None, b"before", None, False))
            self.assertRaises(Retry, table.get, b"k")
            self.assertRaises(NotPrimary, table.get, b"k")
            for key, kind in ((b"", ValueError), ("k", TypeError), (b"k" * 1025, TooLarge)):
                self.assertRaises(kind, table.get, key)

    @with_both_tables
    def test_an_answer_that_no_key_has_ends_the_connection(self, connect):
        for found, revision, value in ((1, 0, b"v"), (0, 3, b""), (0, 0, b"v"), (2, 3, b"v"), (2, 0, b"v"), (3, 0, b"")):
            def script(peer):
                peer.welcome(table=True)
                body = struct.pack("<B7xQQ", found, revision, 9) + value
                peer.send(fake.VALUE, peer.expect(fake.GET, fake.get(b"k")), body)
                peer.expect_end()

            with Sidecar(script) as sidecar, connect(sidecar.path) as table:
                self.assertRaises(ProtocolError, table.get, b"k")

    @with_both_tables
    def test_copies(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.ack(peer.expect(fake.APPLY, apply((COPY, b"to", b"from", None))), 10)
            request = peer.expect(fake.APPLY, apply((COPY, b"to", b"from", 10), (PUT, b"from", b"v", None)))
            peer.mismatch(request, 0, 0)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            self.assertEqual(table.copy(b"to", b"from"), 10)
            self.assertRaises(Mismatch, table.apply, Apply().copy_if(b"to", b"from", 10).put(b"from", b"v"))
            self.assertRaises(TooLarge, table.copy, b"to", b"f" * 1025)
            self.assertRaises(ValueError, table.copy, b"to", b"")

    @with_both_tables
    def test_hold_waits_for_the_role(self, connect):
        with Sidecar(lambda peer: peer.welcome(hold=True, table=True).expect_end()) as sidecar:
            with connect(sidecar.path, True) as table:
                self.assertEqual(table.client.role, Role.PRIMARY)

    @with_both_tables
    def test_a_request_can_be_applied_again(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.error(peer.expect(fake.APPLY, apply((PUT, b"k", b"v", 3))), fake.UNKNOWN_OUTCOME)
            peer.mismatch(peer.expect(fake.APPLY, apply((PUT, b"k", b"v", 3))), 0, 12)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            request = Apply().put_if(b"k", b"v", 3)
            self.assertRaises(UnknownOutcome, table.apply, request)
            self.assertRaises(Mismatch, table.apply, request)

    @with_both_tables
    def test_a_mismatch_says_what_the_key_is(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.mismatch(peer.expect(fake.APPLY), 2, 50)
            peer.mismatch(peer.expect(fake.APPLY), 0, 0)
            peer.ack(peer.expect(fake.APPLY), 51)
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            with self.assertRaisesRegex(Mismatch, "append.sock: operation 2 did not find .* it has revision 50") as caught:
                table.put_if(b"k", b"v", 41)
            self.assertEqual((caught.exception.operation, caught.exception.revision), (2, 50))
            with self.assertRaisesRegex(Mismatch, "it is absent") as caught:
                table.delete_if(b"k", 41)
            self.assertEqual((caught.exception.operation, caught.exception.revision), (0, None))
            self.assertEqual(table.put(b"k", b"v"), 51)

    @with_both_tables
    def test_refusals_leave_the_connection(self, connect):
        classes = {fake.TABLE_FULL: TableFull, fake.TOO_LARGE: TooLarge, fake.NOT_PRIMARY: NotPrimary, fake.BUSY: Retry}

        def script(peer):
            peer.welcome(table=True)
            for code in classes:
                peer.error(peer.expect(fake.APPLY), code, "this is why")
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            for code, kind in classes.items():
                with self.assertRaisesRegex(kind, "append.sock: this is why") as caught:
                    table.put(b"k", b"v")
                self.assertEqual(caught.exception.code, ErrorCode(code))

    @with_both_tables
    def test_a_log_is_no_table(self, connect):
        for welcome, kind, text in (
            ({"table": False}, WrongKind, "append.sock: this group keeps a log and no table"),
            ({"version": 3}, Refused, "a table needs version 4 of the append socket, and this sidecar speaks version 3"),
        ):
            with Sidecar(lambda peer: peer.welcome(**welcome).expect_end()) as sidecar:
                with self.assertRaisesRegex(kind, text):
                    connect(sidecar.path)

    @with_both
    def test_a_table_is_no_log(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.error(peer.expect(fake.APPEND), fake.WRONG_KIND, "this group keeps a table: put keys")
            peer.expect_end()

        with Sidecar(script) as sidecar, connect(sidecar.path) as client:
            self.assertRaisesRegex(WrongKind, "keeps a table", client.append, b"x")

    @with_both_tables
    def test_the_end_leaves_the_outcome_open(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.expect(fake.APPLY)

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            self.assertRaises(Disconnected, table.put, b"k", b"v")

    @with_both
    def test_only_a_request_to_a_table_mismatches(self, connect):
        def script(peer):
            peer.welcome(table=True)
            peer.mismatch(peer.expect(fake.APPEND), 0, 7)
            peer.expect_end()

        with Sidecar(script) as sidecar:
            client = connect(sidecar.path)
            self.assertRaisesRegex(ProtocolError, "no request to a table has number 2", client.append, b"x")
            client.close()

    @with_both_tables
    def test_wrong_arguments_send_nothing(self, connect):
        def script(peer):
            peer.welcome(table=True, batch_size_max=100_000)
            peer.ack(peer.expect(fake.APPLY, apply((PUT, bytes(1024), bytes(65_536), None))), 10)
            peer.ack(peer.expect(fake.APPLY, apply((PUT, struct.pack("=2H", 1, 2), b"ab", None))), 11)
            peer.expect_end()

        def many(count, size=0):
            request = Apply()
            for number in range(count):
                request.put(b"%d" % number, bytes(size))
            return request

        def requires(count):
            request = Apply().put(b"k", bytes(60_000))
            for number in range(count):
                request.require(b"%01000d" % number, None)
            return request

        with Sidecar(script) as sidecar, connect(sidecar.path) as table:
            wrong = [
                (TypeError, r"a key must be bytes, not str; encode it: text.encode\(\)", lambda: table.put("k", b"v")),
                (TypeError, "a value must be bytes, not int", lambda: table.put(b"k", 5)),
                (TypeError, "revision must be an int, not str", lambda: table.put_if(b"k", b"v", "7")),
                (ValueError, "revision -1: must be from 0", lambda: table.delete_if(b"k", -1)),
                (ValueError, "an empty key: a key has at least one byte", lambda: table.delete(b"")),
                (ValueError, "operations 0 and 2 write the same key", lambda: many(2).delete(b"0")),
                (ValueError, "a request to a table that writes no key", lambda: table.apply(Apply().require(b"k", 7))),
                (ValueError, "a request to a table that writes no key", lambda: table.apply(Apply())),
                (TooLarge, "append.sock: operation 0: key of 1025 bytes: the limit is 1024",
                 lambda: table.apply(Apply().require(bytes(1025), None).delete(b"k"))),
                (TooLarge, "append.sock: operation 1: value of 65537 bytes: the limit is 65536",
                 lambda: table.apply(Apply().require(b"k", 7).put(b"k", bytes(65_537)))),
                (TooLarge, "append.sock: request of 257 operations: the limit is 256", lambda: table.apply(many(257))),
                (TooLarge, "request takes 100072 bytes of log: the limit is 100000", lambda: table.apply(many(2, 50_000 - 20))),
                (TooLarge, "request takes 100665 bytes in a frame: the limit is 100000", lambda: table.apply(requires(40))),
            ]
            for kind, text, call in wrong:
                with self.subTest(text), self.assertRaisesRegex(kind, text):
                    call()
            self.assertEqual(table.client.in_flight, 0)
            self.assertEqual(table.put(bytes(1024), bytes(65_536)), 10)
            self.assertEqual(table.put(memoryview(struct.pack("=2H", 1, 2)).cast("H"), memoryview(b"aXbX")[::2]), 11)

    def test_a_refused_operation_is_not_part_of_the_request(self):
        request = Apply().put(b"k", b"v")
        self.assertRaises(ValueError, request.put, b"k", b"w")
        self.assertRaises(TypeError, request.put, b"l", None)
        self.assertEqual(len(request), 1)
        request.require(b"k", 7).put(b"l", b"v")
        self.assertEqual(len(request), 3)


if __name__ == "__main__":
    unittest.main()
