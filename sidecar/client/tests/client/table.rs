//! The clients of a table against a scripted sidecar: requests and their answers, and the table in the app's memory.

use std::time::Duration;

use crate::fake::{Peer, Server, WELCOME};
use tailwind_client::blocking::{Client, LocalTable, Table};
use tailwind_client::{Apply, Change, Epoch, Error, Get, Got, Lsn, Options, Revision};
use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{
    Batch, ErrorCode, GET_FRESH, GET_NO_VALUE, GET_OLDER, Operations, READ_ANYWHERE, READ_TAIL, Request, Response,
    Welcome, put_batch_record, put_operation,
};
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Expected, Mismatch, Operation, Written};

pub(crate) const TABLE: Welcome<'static> = Welcome { table: true, ..WELCOME };

/// A server whose script begins after the welcome of a table.
fn server(script: impl FnOnce(Peer) + Send + 'static) -> Server {
    Server::new(|mut peer| {
        peer.welcome_with(TABLE);
        script(peer);
    })
}

fn revision(lsn: u64) -> Option<Revision> {
    Revision::of(Lsn(lsn))
}

pub(crate) fn put<'a>(key: &'a [u8], value: &'a [u8], only_if: Option<u64>) -> Operation<'a> {
    let written = Written::Value(Value::new(value).unwrap());
    Operation::Write { key: Key::new(key).unwrap(), written, only_if: only_if.map(Expected::from_number) }
}

pub(crate) fn delete(key: &[u8], only_if: Option<u64>) -> Operation<'_> {
    let only_if = only_if.map(Expected::from_number);
    Operation::Write { key: Key::new(key).unwrap(), written: Written::Nothing, only_if }
}

pub(crate) fn require(key: &[u8], revision: u64) -> Operation<'_> {
    Operation::Require { key: Key::new(key).unwrap(), expected: Expected::from_number(revision) }
}

impl Peer {
    /// Takes an `Apply` that must have these operations, and returns its number.
    pub(crate) fn expect_apply(&mut self, operations: &[Operation<'_>]) -> u64 {
        let mut bytes = Vec::new();
        operations.iter().for_each(|operation| put_operation(&mut bytes, operation));
        self.expect(Request::Apply(Operations::new(operations.len() as u16, &bytes).unwrap()))
    }

    pub(crate) fn ack(&mut self, request: u64, lsn: u64) {
        self.send(request, Response::Ack { lsn });
    }

    /// Sends these records in one frame.
    pub(crate) fn keyed(&mut self, request: u64, first: u64, records: &[KeyedRecord<'_>]) {
        let mut bytes = Vec::new();
        for record in records {
            let mut payload = vec![0; record.payload_size()];
            record.copy_to(&mut payload);
            put_batch_record(&mut bytes, &payload);
        }
        self.send(request, Response::Records { first, records: Batch::new(records.len() as u32, &bytes).unwrap() });
    }
}

#[test]
fn each_function_sends_its_operations() {
    let server = server(|mut peer| {
        let lease = b"lease";
        let requests = [
            vec![put(b"a", b"1", None)],
            vec![put(b"a", b"2", Some(1))],
            vec![put(b"b", b"", Some(0))],
            vec![delete(b"a", None)],
            vec![delete(b"b", Some(3))],
            vec![require(lease, 7), put(b"x", b"1", None), require(b"no", 0), delete(b"y", Some(0))],
        ];
        for (operations, lsn) in requests.iter().zip([1, 2, 3, 4, 5, 7]) {
            let request = peer.expect_apply(operations);
            peer.ack(request, lsn);
        }
    });
    let mut table = Table::connect(server.path()).unwrap();
    let first = table.put(b"a", b"1").unwrap();
    assert_eq!(Some(first), revision(1));
    assert_eq!(table.put_if(b"a", b"2", Some(first)).ok(), revision(2));
    let b = table.put_if(b"b", b"", None).unwrap();
    assert_eq!(table.delete(b"a").unwrap(), Lsn(4));
    assert_eq!(table.delete_if(b"b", Some(b)).unwrap(), Lsn(5));
    let apply = Apply::new().require(b"lease", revision(7)).put(b"x", b"1").require(b"no", None).delete_if(b"y", None);
    let applied = table.apply(&apply).unwrap();
    assert_eq!((applied.last, applied.revision(0), applied.revision(1)), (Lsn(7), revision(6), revision(7)));
    assert!(table.client().welcome().table);
    drop(table);
    server.join();
}

#[test]
fn each_get_sends_what_it_asks_for() {
    let get = |key: &'static [u8], least, flags| Request::Get { key: Key::new(key).unwrap(), least, flags };
    let server = server(move |mut peer| {
        let request = peer.expect(get(b"a", 0, 0));
        let value =
            |number, value| Response::Value { revision: revision(number), as_of: 9, value, older: false, stale: false };
        peer.send(request, value(7, b"one"));
        let request = peer.expect(get(b"a", 9, GET_FRESH | GET_NO_VALUE));
        peer.send(request, value(7, b""));
        let request = peer.expect(get(b"b", 0, GET_FRESH));
        peer.send(request, value(0, b""));
        for (as_of, older) in [(9, false), (0, true)] {
            let request = peer.expect(get(b"c", 0, GET_OLDER));
            let value = if older { &b"two"[..] } else { b"" };
            peer.send(request, Response::Value { revision: None, as_of, value, older, stale: !older });
        }
        for code in [ErrorCode::NotPrimary, ErrorCode::Unavailable] {
            let request = peer.expect(get(b"a", 0, 0));
            peer.refuse(request, code, "words");
        }
    });
    let mut table = Table::connect(server.path()).unwrap();
    let entry = table.get(b"a").unwrap().unwrap();
    assert_eq!((&*entry.value, Some(entry.revision)), (&b"one"[..], revision(7)));
    let known = Get { fresh: true, least: Some(Lsn(9)), no_value: true, ..Get::default() };
    let got = table.get_with(b"a", &known).unwrap();
    assert_eq!((got.as_of, got.stale, got.older), (Some(Lsn(9)), false, None));
    let entry = got.entry.unwrap();
    assert_eq!((entry.value.len(), Some(entry.revision)), (0, revision(7)));
    let absent = Got { as_of: Some(Lsn(9)), ..Got::default() };
    assert_eq!(table.get_with(b"b", &Get { fresh: true, ..Get::default() }).unwrap(), absent);
    let allows = Get { older: true, ..Get::default() };
    assert_eq!(table.get_with(b"c", &allows).unwrap(), Got { stale: true, ..absent });
    assert_eq!(table.get_with(b"c", &allows).unwrap(), Got { older: Some(b"two"[..].into()), ..Got::default() });
    assert!(matches!(table.get(b"a"), Err(Error::NotPrimary { .. })));
    assert!(matches!(table.get(b"a"), Err(Error::Retry { code: ErrorCode::Unavailable, .. })));
    assert!(matches!(table.get(b""), Err(Error::Misuse(_))));
    assert!(matches!(table.get(&[0; 1025]), Err(Error::TooLarge { .. })));
    drop(table);
    server.join();
}

#[test]
fn a_copy_names_its_source() {
    let copy = |only_if: Option<u64>| Operation::Write {
        key: Key::new(b"to").unwrap(),
        written: Written::CopyOf(Key::new(b"from").unwrap()),
        only_if: only_if.map(Expected::from_number),
    };
    let server = server(move |mut peer| {
        let request = peer.expect_apply(&[copy(None)]);
        peer.ack(request, 5);
        let request = peer.expect_apply(&[copy(Some(5)), delete(b"from", None)]);
        peer.send(request, Response::Mismatch(Mismatch { operation: 0, now: None }));
    });
    let mut table = Table::connect(server.path()).unwrap();
    let copied = table.copy(b"to", b"from").unwrap();
    assert_eq!(Some(copied), revision(5));
    let error = table.apply(Apply::new().copy_if(b"to", b"from", Some(copied)).delete(b"from")).unwrap_err();
    assert!(matches!(error, Error::Mismatch { operation: 0, revision: None }), "{error:?}");
    assert!(matches!(table.copy(b"to", b""), Err(Error::Misuse(_))));
    assert!(matches!(table.copy(b"to", &[0; 1025]), Err(Error::TooLarge { .. })));
    drop(table);
    server.join();
}

#[test]
fn refusals_say_what_to_do_next() {
    let server = server(|mut peer| {
        let request = peer.expect_apply(&[put(b"a", b"1", Some(3)), delete(b"b", None)]);
        peer.send(request, Response::Mismatch(Mismatch { operation: 0, now: revision(9) }));
        let request = peer.expect_apply(&[put(b"a", b"1", Some(3))]);
        peer.send(request, Response::Mismatch(Mismatch { operation: 0, now: None }));
        for code in [ErrorCode::TableFull, ErrorCode::WrongKind, ErrorCode::NotPrimary, ErrorCode::UnknownOutcome] {
            let request = peer.expect_apply(&[put(b"a", b"1", None)]);
            peer.refuse(request, code, "words");
        }
        let request = peer.expect_apply(&[put(b"a", b"1", None)]);
        peer.ack(request, 10);
    });
    let mut table = Table::connect(server.path()).unwrap();
    let error = table.apply(Apply::new().put_if(b"a", b"1", revision(3)).delete(b"b")).unwrap_err();
    assert!(matches!(error, Error::Mismatch { operation: 0, revision: now } if now == revision(9)), "{error:?}");
    assert_eq!(error.to_string(), "operation 0 did not find its key as expected: it has revision 9");
    let error = table.put_if(b"a", b"1", revision(3)).unwrap_err();
    assert!(matches!(error, Error::Mismatch { operation: 0, revision: None }), "{error:?}");
    assert!(error.to_string().ends_with("it is absent"), "{error}");
    assert!(matches!(table.put(b"a", b"1"), Err(Error::TableFull { message }) if message == "words"));
    assert!(matches!(table.put(b"a", b"1"), Err(Error::WrongKind { message }) if message == "words"));
    assert!(matches!(table.put(b"a", b"1"), Err(Error::NotPrimary { .. })));
    assert!(matches!(table.put(b"a", b"1"), Err(Error::UnknownOutcome { .. })));
    assert_eq!(table.put(b"a", b"1").ok(), revision(10), "the connection lives");
    drop(table);
    server.join();
}

/// A mismatch waits for a proof, and acks of later requests do not.
#[test]
fn acks_may_overtake_a_mismatch() {
    let server = server(|mut peer| {
        let requests = [(); 3].map(|()| peer.expect_apply(&[put(b"a", b"1", Some(9))]));
        peer.ack(requests[1], 4);
        peer.ack(requests[2], 5);
        peer.send(requests[0], Response::Mismatch(Mismatch { operation: 0, now: None }));
        let requests = [(); 2].map(|()| peer.expect_apply(&[delete(b"a", None)]));
        peer.ack(requests[0], 6);
        peer.ack(requests[0], 6);
    });
    let mut table = Table::connect(server.path()).unwrap();
    let apply = Apply::new().put_if(b"a", b"1", revision(9));
    let tickets = [(); 3].map(|()| table.submit(&apply).unwrap());
    assert_eq!(table.client().wait_for(tickets[2]).unwrap(), Lsn(5));
    assert!(matches!(table.client().wait_for(tickets[0]), Err(Error::Mismatch { .. })));
    assert_eq!(apply.applied(table.client().wait_for(tickets[1]).unwrap()).revision(0), revision(4));
    let tickets = [(); 2].map(|()| table.submit(Apply::new().delete(b"a")).unwrap());
    assert_eq!(table.client().wait_for(tickets[0]).unwrap(), Lsn(6));
    assert!(matches!(table.client().wait_for(tickets[1]), Err(Error::Protocol { .. })), "an answer that came twice");
    drop(table);
    server.join();
}

#[test]
fn only_a_table_is_connected_to() {
    let log = Server::new(|mut peer| peer.welcome());
    let error = Table::connect(log.path()).err().unwrap();
    assert!(matches!(error, Error::WrongKind { .. }) && error.to_string().contains("keeps a log"), "{error}");
    log.join();
    let old = Server::new(|mut peer| peer.welcome_with(Welcome { version: 3, ..WELCOME }));
    let error = LocalTable::follow(old.path(), b"").err().unwrap();
    assert!(matches!(error, Error::Refused { code: ErrorCode::UnsupportedVersion, .. }), "{error}");
    assert!(error.to_string().contains("speaks version 3: update it"), "{error}");
    old.join();
    // A connection that there is already, and one that takes the place of another.
    let log = Server::new(|mut peer| peer.welcome());
    assert!(matches!(Table::over(Client::connect(log.path()).unwrap()), Err(Error::WrongKind { .. })));
    log.join();
    let (of_table, log) =
        (server(|mut peer| assert!(peer.next(|_, _| ()).is_none())), Server::new(|mut p| p.welcome()));
    let mut table = LocalTable::follow(of_table.path(), b"").unwrap();
    let error = table.continue_over(Client::connect(log.path()).unwrap()).unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    drop(table);
    of_table.join();
    log.join();
}

/// What would end the connection, or be refused, is not sent.
#[test]
fn too_large_a_request_is_not_sent() {
    let server = Server::new(|mut peer| {
        peer.welcome_with(Welcome { batch_size_max: 100, ..TABLE });
        let request = peer.expect_apply(&[put(b"a", &[7; 75], None)]);
        peer.ack(request, 1);
    });
    let mut table = Table::connect(server.path()).unwrap();
    let error = table.put(b"a", &[7; 76]).unwrap_err();
    assert_eq!(error.to_string(), "too large: apply of 101 bytes: the limit is 100");
    assert!(matches!(table.put(b"", b"1"), Err(Error::Misuse(_))));
    assert!(table.put(b"a", &[7; 75]).is_ok());
    drop(table);
    server.join();
}

fn key(name: &str) -> Key<'_> {
    Key::new(name.as_bytes()).unwrap()
}

fn value(text: &str) -> Value<'_> {
    Value::new(text.as_bytes()).unwrap()
}

pub(crate) fn puts<'a>(name: &'a str, text: &'a str) -> KeyedRecord<'a> {
    KeyedRecord::Put { key: key(name), value: value(text), more: false }
}

pub(crate) fn deletes(name: &str) -> KeyedRecord<'_> {
    KeyedRecord::Delete { key: key(name), more: false }
}

pub(crate) fn moves<'a>(name: &'a str, text: &'a str, of: u64) -> KeyedRecord<'a> {
    KeyedRecord::Move { key: key(name), value: value(text), revision: revision(of).unwrap() }
}

/// The same, and more of its request follows.
pub(crate) fn more(record: KeyedRecord<'_>) -> KeyedRecord<'_> {
    match record {
        KeyedRecord::Put { key, value, .. } => KeyedRecord::Put { key, value, more: true },
        KeyedRecord::Delete { key, .. } => KeyedRecord::Delete { key, more: true },
        record @ KeyedRecord::Move { .. } => record,
    }
}

/// A change in a few letters: `a=1@5`, `-a`, `end 6`, `turn 6`, `lag 5`.
fn said(change: Option<Change>) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match change {
        Some(Change::Put { key, entry }) => format!("{}={}@{}", text(&key), text(&entry.value), entry.revision),
        Some(Change::Deleted { key }) => format!("-{}", text(&key)),
        Some(Change::CaughtUp { next }) => format!("end {next}"),
        Some(Change::Turn { epoch: Epoch(4), next }) => format!("turn {next}"),
        Some(Change::Lag { acked, behind: Some(Duration::ZERO), stale: false }) => format!("lag {acked}"),
        other => format!("{other:?}"),
    }
}

/// The next changes.
fn changes<const N: usize>(table: &mut LocalTable) -> [String; N] {
    [(); N].map(|()| said(table.next_change().unwrap()))
}

/// What the table shows.
fn shown(table: &LocalTable) -> String {
    let entry = |(key, entry): (&[u8], &tailwind_client::Entry)| {
        format!("{}={}@{}", key.escape_ascii(), entry.value.escape_ascii(), entry.revision)
    };
    table.range(b"").map(entry).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_local_table_begins_whole_and_shows_each_request_at_once() {
    let server = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 77 });
        // The log begins in the middle of the table's life: what came before record 5 is trimmed.
        peer.keyed(request, 5, &[moves("d/a", "1", 2), puts("d/b", "2"), puts("other", "x"), deletes("d/gone")]);
        peer.keyed(request, 9, &[puts("d/b", "3"), puts("d/c", "4"), deletes("d/c")]);
        peer.end(request, 12, true);
        peer.send(request, Response::Lag { acked: 11, behind_ms: 0, stale: false });
        peer.keyed(request, 12, &[more(puts("d/a", "5")), more(puts("other", "y"))]);
        peer.keyed(request, 14, &[deletes("d/b"), moves("d/a", "5", 12), deletes("d/none"), puts("other", "z")]);
        peer.keyed(request, 18, &[puts("d/b", "6")]);
        peer.end(request, 19, true);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = LocalTable::follow(server.path(), b"d/").unwrap();
    assert!(table.is_empty());
    assert_eq!(changes(&mut table), ["d/a=1@2", "d/b=3@9", "end 12"]);
    assert_eq!((shown(&table).as_str(), table.len(), table.seen()), ("d/a=1@2 d/b=3@9", 2, Lsn(11)));
    assert_eq!(changes(&mut table), ["lag 11", "d/a=5@12"]);
    assert_eq!(shown(&table), "d/a=5@12", "the delete of the same request is done too");
    assert_eq!(table.seen(), Lsn(14));
    assert_eq!(changes(&mut table), ["-d/b", "d/b=6@18"], "moves, and deletes of absent keys, change nothing");
    assert_eq!(changes(&mut table), ["end 19"]);
    let entry = table.get(b"d/a").unwrap();
    assert_eq!((&*entry.value, entry.revision.lsn()), (&b"5"[..], Lsn(12)));
    assert!(table.get(b"other").is_none() && table.get(b"d/none").is_none());
    assert_eq!(table.range(b"d/b").count(), 1);
    drop(table);
    server.join();
}

/// After the turn the app is at the primary, where a follow would end at once.
#[test]
fn a_local_table_goes_on_after_the_turn() {
    let server = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 77 });
        peer.keyed(request, 1, &[puts("a", "1")]);
        peer.send(request, Response::Turn { epoch: 4, next: 2 });
        let flags = READ_TAIL | READ_ANYWHERE;
        let request = peer.expect(Request::Read { from: 2, limit: 0, flags, history: 77 });
        peer.send(request, Response::History { history: 77 });
        peer.keyed(request, 2, &[puts("a", "2")]);
        peer.end(request, 3, true);
        peer.end(request, 3, false);
        let request = peer.expect(Request::Read { from: 3, limit: 0, flags, history: 77 });
        peer.keyed(request, 3, &[deletes("a")]);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = LocalTable::follow(server.path(), b"").unwrap();
    assert_eq!(changes(&mut table), ["a=1@1", "turn 2"]);
    assert_eq!(changes(&mut table), ["a=2@2", "end 3", "None", "-a"], "the read that was ended is begun again");
    drop(table);
    server.join();
}

/// What was deleted while this was behind is not in the log any more.
#[test]
fn a_local_table_that_fell_behind_is_made_again() {
    let server = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 77 });
        peer.keyed(request, 1, &[puts("a", "1"), puts("b", "1"), puts("c", "1"), more(puts("half", "1"))]);
        peer.end(request, 5, true);
        peer.refuse(request, ErrorCode::Trimmed, "LSN 5 has been trimmed");
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 78 });
        peer.keyed(request, 20, &[moves("a", "1", 1), moves("c", "2", 9), puts("d", "1")]);
        peer.send(request, Response::Lag { acked: 23, behind_ms: 0, stale: false });
        peer.keyed(request, 23, &[puts("d", "2")]);
        peer.end(request, 24, true);
        peer.keyed(request, 24, &[puts("a", "2")]);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = LocalTable::follow(server.path(), b"").unwrap();
    assert_eq!(changes(&mut table), ["a=1@1", "b=1@2", "c=1@3", "end 5"]);
    assert_eq!(changes(&mut table), ["lag 23"]);
    assert_eq!((shown(&table).as_str(), table.seen()), ("a=1@1 b=1@2 c=1@3", Lsn(4)), "as it was, until it is whole");
    assert_eq!(changes(&mut table), ["-b", "c=2@9", "d=2@23", "end 24"]);
    assert_eq!((shown(&table).as_str(), table.seen()), ("a=1@1 c=2@9 d=2@23", Lsn(23)));
    assert_eq!(changes(&mut table), ["a=2@24"]);
    drop(table);
    server.join();
}

#[test]
fn a_log_that_is_trimmed_while_it_is_found_is_read_again() {
    let server = server(|mut peer| {
        for first in [3, 7] {
            let request = peer.expect(Request::Follow { from: 0, history: 0 });
            peer.refuse(request, ErrorCode::Trimmed, &format!("LSN {first} has been trimmed"));
        }
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.keyed(request, 9, &[puts("a", "1")]);
        peer.end(request, 10, true);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = LocalTable::follow(server.path(), b"").unwrap();
    assert_eq!(changes(&mut table), ["a=1@9", "end 10"]);
    drop(table);
    server.join();
}

/// After an accepted loss other records have the same LSNs: a key's revision alone does not tell that it is the same.
#[test]
fn a_log_that_was_cut_is_folded_again() {
    let server = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 77 });
        peer.keyed(request, 1, &[puts("a", "lost"), puts("b", "lost")]);
        peer.end(request, 3, true);
        peer.refuse(request, ErrorCode::BeyondEnd, "the log was cut");
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.keyed(request, 1, &[puts("a", "kept")]);
        peer.end(request, 2, true);
        peer.refuse(request, ErrorCode::BeyondEnd, "the log was cut again");
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.refuse(request, ErrorCode::BeyondEnd, "and has nothing");
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.end(request, 1, true);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = LocalTable::follow(server.path(), b"").unwrap();
    assert_eq!(changes(&mut table), ["a=lost@1", "b=lost@2", "end 3"]);
    assert_eq!(changes(&mut table), ["-b", "a=kept@1", "end 2"]);
    let error = table.next_change().unwrap_err();
    assert!(error.to_string().contains("and has nothing"), "it is not asked without end: {error}");
    assert_eq!(changes(&mut table), ["-a", "end 1"]);
    drop(table);
    server.join();
}

#[test]
fn a_local_table_continues_on_another_connection() {
    let server = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(request, Response::History { history: 77 });
        peer.keyed(request, 1, &[puts("a", "1")]);
        peer.end(request, 2, true);
        peer.keyed(request, 2, &[more(puts("a", "2"))]);
        peer.fatal(0, ErrorCode::ShuttingDown, "this sidecar is ending");
        let mut peer = peer.next_connection();
        peer.welcome_with(TABLE);
        let request = peer.expect(Request::Follow { from: 3, history: 77 });
        peer.keyed(request, 3, &[puts("b", "2")]);
        peer.end(request, 4, true);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let options = Options { timeout: Some(Duration::from_secs(60)), ..Options::default() };
    let mut table = LocalTable::over(Client::connect_with(server.path(), &options).unwrap(), b"").unwrap();
    assert_eq!(changes(&mut table), ["a=1@1", "end 2"]);
    assert!(matches!(table.next_change(), Err(Error::Disconnected { .. })));
    assert_eq!(shown(&table), "a=1@1", "half of a request is not shown");
    table.continue_over(Client::connect_with(server.path(), &options).unwrap()).unwrap();
    assert_eq!(changes(&mut table), ["a=2@2", "b=2@3", "end 4"]);
    drop(table);
    server.join();
}

#[cfg(feature = "async")]
#[tokio::test]
async fn the_asynchronous_clients_do_the_same() {
    use tailwind_client::asynchronous;
    let tables = server(|mut peer| {
        let request = peer.expect_apply(&[put(b"a", b"1", None)]);
        peer.ack(request, 1);
        let request = peer.expect_apply(&[put(b"a", b"2", Some(1))]);
        peer.ack(request, 2);
        let request = peer.expect_apply(&[delete(b"a", Some(1))]);
        peer.send(request, Response::Mismatch(Mismatch { operation: 0, now: revision(2) }));
        let request = peer.expect_apply(&[delete(b"a", None)]);
        peer.ack(request, 3);
        let request = peer.expect_apply(&[put(b"b", b"1", Some(0)), require(b"a", 0)]);
        peer.ack(request, 4);
    });
    let mut table = asynchronous::Table::connect(tables.path()).await.unwrap();
    let first = table.put(b"a", b"1").await.unwrap();
    assert_eq!(table.put_if(b"a", b"2", Some(first)).await.ok(), revision(2));
    assert!(matches!(table.delete_if(b"a", Some(first)).await, Err(Error::Mismatch { operation: 0, .. })));
    assert_eq!(table.delete(b"a").await.unwrap(), Lsn(3));
    let applied = table.apply(Apply::new().put_if(b"b", b"1", None).require(b"a", None)).await.unwrap();
    assert_eq!(applied.revisions().collect::<Vec<_>>(), [revision(4).unwrap()]);
    drop(table);
    tables.join();

    let followed = server(|mut peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.keyed(request, 1, &[puts("a", "1"), puts("b", "2")]);
        peer.end(request, 3, true);
        peer.fatal(0, ErrorCode::ShuttingDown, "this sidecar is ending");
        let mut peer = peer.next_connection();
        peer.welcome_with(TABLE);
        let request = peer.expect(Request::Follow { from: 3, history: 0 });
        peer.keyed(request, 3, &[deletes("a")]);
        assert!(peer.next(|_, _| ()).is_none());
    });
    let mut table = asynchronous::LocalTable::follow(followed.path(), b"").await.unwrap();
    for expected in ["a=1@1", "b=2@2", "end 3"] {
        assert_eq!(said(table.next_change().await.unwrap()), expected);
    }
    assert!(table.next_change().await.is_err());
    table.continue_over(asynchronous::Client::connect(followed.path()).await.unwrap()).unwrap();
    assert_eq!(said(table.next_change().await.unwrap()), "-a");
    assert_eq!((table.len(), table.is_empty(), table.seen()), (1, false, Lsn(3)));
    assert!(table.get(b"a").is_none());
    assert_eq!(table.range(b"").map(|(key, _)| key.to_vec()).collect::<Vec<_>>(), [b"b".to_vec()]);
    drop(table);
    followed.join();
}
