//! The commands of a table as a shell sees them, against a scripted sidecar.

use std::io::Write;
use std::process::Stdio;

use crate::follow_command::{Peer, Sidecar};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{
    Batch, ErrorCode, GET_FRESH, GET_OLDER, Operations, READ_ANYWHERE, READ_TAIL, Request, Response, put_batch_record,
    put_operation,
};
use tailwind_protocol::table::record::{Key, KeyedRecord, Revision, Value};
use tailwind_protocol::table::request::{Expected, Mismatch, Operation, Written};

fn write<'a>(key: &'a str, value: Option<&'a [u8]>, only_if: Option<Expected>) -> Operation<'a> {
    let written = value.map_or(Written::Nothing, |value| Written::Value(Value::new(value).unwrap()));
    Operation::Write { key: Key::new(key.as_bytes()).unwrap(), written, only_if }
}

fn copy<'a>(key: &'a str, source: &'a str, only_if: Option<Expected>) -> Operation<'a> {
    let written = Written::CopyOf(Key::new(source.as_bytes()).unwrap());
    Operation::Write { key: Key::new(key.as_bytes()).unwrap(), written, only_if }
}

/// Takes an `Apply` with this operation alone, and returns its number.
fn expect_apply(peer: &mut Peer, operation: &Operation<'_>) -> u64 {
    let mut bytes = Vec::new();
    put_operation(&mut bytes, operation);
    peer.expect(Request::Apply(Operations::new(1, &bytes).unwrap()))
}

fn puts<'a>(key: &'a str, value: &'a [u8]) -> KeyedRecord<'a> {
    KeyedRecord::Put { key: Key::new(key.as_bytes()).unwrap(), value: Value::new(value).unwrap(), more: false }
}

fn deletes(key: &str) -> KeyedRecord<'_> {
    KeyedRecord::Delete { key: Key::new(key.as_bytes()).unwrap(), more: false }
}

fn keyed(peer: &mut Peer, request: u64, first: u64, records: &[KeyedRecord<'_>]) {
    let mut bytes = Vec::new();
    for record in records {
        let mut payload = vec![0; record.payload_size()];
        record.copy_to(&mut payload);
        put_batch_record(&mut bytes, &payload);
    }
    peer.send(request, Response::Records { first, records: Batch::new(records.len() as u32, &bytes).unwrap() });
}

#[test]
fn changes_print_the_lsn_of_their_record() {
    let at = |revision| Some(Expected::from_number(revision));
    let cases: [(&[&str], _); 8] = [
        (&["put", "a", "one"], write("a", Some(b"one"), None)),
        (&["put", "a", "two", "--if-revision", "7"], write("a", Some(b"two"), at(7))),
        (&["put", "a", "", "--if-absent"], write("a", Some(b""), at(0))),
        (&["copy", "a", "b"], copy("a", "b", None)),
        (&["copy", "a", "b", "--if-revision", "7"], copy("a", "b", at(7))),
        (&["copy", "a", "b", "--if-absent"], copy("a", "b", at(0))),
        (&["delete", "a"], write("a", None, None)),
        (&["delete", "a", "--if-revision", "7"], write("a", None, at(7))),
    ];
    for (args, operation) in cases {
        let sidecar = Sidecar::of_table(move |peer| {
            let request = expect_apply(peer, &operation);
            peer.send(request, Response::Ack { lsn: 12 });
        });
        let ended = sidecar.run(&[&["table"], args].concat());
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(0), "12\n", ""), "{args:?}");
    }
}

#[test]
fn put_takes_its_value_from_standard_input() {
    let sidecar = Sidecar::of_table(|peer| {
        let request = expect_apply(peer, &write("a", Some(b"line\n\xff"), None));
        peer.send(request, Response::Ack { lsn: 12 });
    });
    let mut command = sidecar.command(&["table", "put", "a"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"line\n\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    sidecar.join();
    assert_eq!((output.status.code(), output.stdout), (Some(0), b"12\n".to_vec()));
}

#[test]
fn changes_that_are_not_made_say_why() {
    let mismatch =
        |now| move |peer: &mut Peer, request| peer.send(request, Response::Mismatch(Mismatch { operation: 0, now }));
    let refuse = |code, message: &'static str| {
        move |peer: &mut Peer, request| {
            peer.send(request, Response::Error { code, fatal: false, retry_after_ms: 0, message });
        }
    };
    type Answer = Box<dyn FnOnce(&mut Peer, u64) + Send>;
    let cases: [(Answer, &str); 3] = [
        (Box::new(mismatch(Revision::of(Lsn(9)))), "table: put a: it has revision 9: nothing was done\n"),
        (Box::new(mismatch(None)), "table: put a: it is absent: nothing was done\n"),
        (Box::new(refuse(ErrorCode::TableFull, "no more keys")), "table: put a: the table is full: no more keys\n"),
    ];
    for (answer, said) in cases {
        let sidecar = Sidecar::of_table(move |peer| {
            let request = expect_apply(peer, &write("a", Some(b"1"), Some(Expected::from_number(7))));
            answer(peer, request);
        });
        let ended = sidecar.run(&["table", "put", "a", "1", "--if-revision", "7"]);
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(1), "", said));
    }
}

#[test]
fn copies_that_are_not_made_name_what_is_absent() {
    let cases: [(&[&str], _, _, &str); 3] = [
        (&[], None, None, "table: copy b to a: b is absent: nothing was done\n"),
        (&["--if-revision", "7"], Some(7), None, "table: copy b to a: it or b is absent: nothing was done\n"),
        (&["--if-absent"], Some(0), Some(9), "table: copy b to a: it has revision 9: nothing was done\n"),
    ];
    for (args, only_if, now, said) in cases {
        let sidecar = Sidecar::of_table(move |peer| {
            let request = expect_apply(peer, &copy("a", "b", only_if.map(Expected::from_number)));
            let now = now.and_then(|lsn| Revision::of(Lsn(lsn)));
            peer.send(request, Response::Mismatch(Mismatch { operation: 0, now }));
        });
        let ended = sidecar.run(&[&["table", "copy", "a", "b"], args].concat());
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(1), "", said));
    }
}

/// A log with `a`, `b` and one whose key and value are no text, of which `gone` was deleted.
fn serve_table(peer: &mut Peer) -> u64 {
    let request = peer.expect(Request::Follow { from: 0, history: 0 });
    keyed(peer, request, 5, &[puts("a/1", b"one"), puts("a/gone", b""), puts("b", b"\xff\n"), puts("a/1", b"two")]);
    peer.send(request, Response::Lag { acked: 9, behind_ms: 0, stale: false });
    keyed(peer, request, 9, &[deletes("a/gone"), puts("a/2\t", b"three")]);
    request
}

#[test]
fn list_shows_the_table_as_it_is() {
    let cases: [(&[&str], _); 3] = [
        (&["list"], "8\ta/1\ttwo\n10\ta/2\\t\tthree\n7\tb\t\\xff\\n\n"),
        (&["list", "a/"], "8\ta/1\ttwo\n10\ta/2\\t\tthree\n"),
        (&["list", "c"], ""),
    ];
    for (nth, (args, out)) in cases.into_iter().enumerate() {
        let sidecar = Sidecar::of_table(move |peer| {
            let request = serve_table(peer);
            // The same at a primary, where a follow ends at once.
            match nth % 2 {
                0 => peer.send(request, Response::End { next: 11, tailing: true }),
                _ => peer.send(request, Response::Turn { epoch: 5, next: 11 }),
            }
        });
        let ended = sidecar.run(&[&["table"], args].concat());
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(0), out, ""), "{args:?}");
    }
}

#[test]
fn append_refuses_a_table_before_it_sends_anything() {
    let ended = Sidecar::of_table(Peer::wait_for_end).run(&["append"]);
    assert_eq!(ended.errors, "append: this group keeps a table and no plain records; use `table put`\n");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""));
}

fn get(key: &str, flags: u16) -> Request<'_> {
    Request::Get { key: Key::new(key.as_bytes()).unwrap(), least: 0, flags }
}

fn value(revision: u64, value: &[u8]) -> Response<'_> {
    Response::Value { revision: Revision::of(Lsn(revision)), as_of: 9, value, older: false, stale: false }
}

#[test]
fn get_says_if_a_value_is_stale_or_older() {
    let stale = Response::Value { revision: None, as_of: 9, value: b"", older: false, stale: true };
    let older = Response::Value { revision: None, as_of: 0, value: b"one", older: true, stale: false };
    let cases = [
        (value(8, b"two"), Some(0), "two\n", ""),
        (value(0, b""), Some(1), "", "table: get a/1: it is absent\n"),
        (stale, Some(1), "", "the view is stale\ntable: get a/1: it is absent\n"),
        (older, Some(0), "one\n", "no backup has a sound copy of the newest value: this is the one before\n"),
    ];
    for (answer, code, out, errors) in cases {
        let sidecar = Sidecar::of_table(move |peer| {
            let request = peer.expect(get("a/1", GET_FRESH | GET_OLDER));
            peer.send(request, answer);
        });
        let ended = sidecar.run(&["table", "get", "a/1", "--older"]);
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (code, out, errors));
    }
}

#[test]
fn get_reads_the_log_where_nothing_else_helps() {
    for (key, code, out, errors) in
        [("a/1", Some(0), "two\n", ""), ("a/gone", Some(1), "", "table: get a/gone: it is absent\n")]
    {
        let asked = move |peer: &mut Peer| {
            let request = peer.expect(get(key, GET_FRESH));
            let (code, message) = (ErrorCode::Unavailable, "no mirror");
            peer.send(request, Response::Error { code, fatal: false, retry_after_ms: 500, message });
        };
        let read = |peer: &mut Peer| {
            let request = serve_table(peer);
            peer.send(request, Response::End { next: 11, tailing: true });
        };
        let sidecar = Sidecar::of_table_twice(asked, read);
        let ended = sidecar.run(&["table", "get", key]);
        assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (code, out, errors));
    }
}

#[test]
fn get_asks_the_primary_for_one_key() {
    let get = || get("a/1", GET_FRESH);
    let sidecar = Sidecar::of_primary(move |peer| {
        let request = peer.expect(get());
        peer.send(request, value(8, b"two"));
    });
    let ended = sidecar.run(&["table", "get", "a/1"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(0), "two\n", ""));
    let sidecar = Sidecar::of_primary(move |peer| {
        let request = peer.expect(get());
        peer.send(request, value(0, b""));
    });
    let ended = sidecar.run(&["table", "get", "a/1"]);
    assert_eq!(
        (ended.code, ended.out.as_str(), ended.errors.as_str()),
        (Some(1), "", "table: get a/1: it is absent\n")
    );
}

#[test]
fn watch_goes_on_with_the_changes() {
    let sidecar = Sidecar::of_table(|peer| {
        let request = serve_table(peer);
        peer.send(request, Response::End { next: 11, tailing: true });
        peer.send(request, Response::Lag { acked: 10, behind_ms: 900, stale: true });
        peer.send(request, Response::Lag { acked: 10, behind_ms: 1, stale: false });
        keyed(peer, request, 11, &[deletes("a/1"), puts("b", b"not of the prefix")]);
        peer.send(request, Response::Turn { epoch: 5, next: 13 });
        let flags = READ_TAIL | READ_ANYWHERE;
        let request = peer.expect(Request::Read { from: 13, limit: 0, flags, history: 0 });
        keyed(peer, request, 13, &[puts("a/3", b"new")]);
        peer.send(
            request,
            Response::Error {
                code: ErrorCode::ShuttingDown,
                fatal: true,
                retry_after_ms: 0,
                message: "this sidecar is ending",
            },
        );
    });
    let ended = sidecar.run(&["table", "watch", "a/"]);
    assert_eq!(ended.out, "8\ta/1\ttwo\n10\ta/2\\t\tthree\n-\ta/1\n13\ta/3\tnew\n");
    let lines = [
        "caught up: 2 keys",
        "the view is stale",
        "the view is fresh again",
        "turn: this sidecar is primary in epoch 5",
        "table: watch the table: disconnected: this sidecar is ending",
    ];
    assert_eq!(ended.errors.lines().collect::<Vec<_>>(), lines);
    assert_eq!(ended.code, Some(1));
}
