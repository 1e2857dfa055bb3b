//! What the append path does with requests to a table, turn by turn: judged, appended, refused, and told in the right order.

use std::sync::atomic::Ordering;

use crate::loop_harness::{Client, LoopHarness, ack};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::socket::{
    Batch, HELLO_HOLD, Operations, READ_TAIL, Request, VERSION, VERSION_TABLE, put_batch_record, put_operation,
};
use tailwind_protocol::table::record::{Key, KeyedRecord, Revision, Value};
use tailwind_protocol::table::request::{Expected, Operation, Written};

pub(super) fn put<'a>(key: &'a str, value: &'a [u8]) -> Operation<'a> {
    let written = Written::Value(Value::new(value).unwrap());
    Operation::Write { key: Key::new(key.as_bytes()).unwrap(), written, only_if: None }
}

fn put_if<'a>(key: &'a str, value: &'a [u8], revision: u64) -> Operation<'a> {
    let Operation::Write { key, written, .. } = put(key, value) else { unreachable!() };
    Operation::Write { key, written, only_if: Some(Expected::from_number(revision)) }
}

fn delete(key: &str) -> Operation<'_> {
    Operation::Write { key: Key::new(key.as_bytes()).unwrap(), written: Written::Nothing, only_if: None }
}

fn require(key: &str, revision: u64) -> Operation<'_> {
    Operation::Require { key: Key::new(key.as_bytes()).unwrap(), expected: Expected::from_number(revision) }
}

/// Sends an `Apply` of these operations.
pub(super) fn apply(client: &mut Client, operations: &[Operation<'_>]) {
    let mut bytes = Vec::new();
    operations.iter().for_each(|operation| put_operation(&mut bytes, operation));
    client.send(&[Request::Apply(Operations::new(operations.len() as u16, &bytes).unwrap())]);
}

pub(super) fn mismatch(operation: u16, now: u64) -> String {
    format!("Mismatch(Mismatch {{ operation: {operation}, now: {:?} }})", Revision::of(Lsn(now)))
}

pub(super) fn table() -> LoopHarness {
    LoopHarness::of_table(SegmentSize::DEFAULT, 1000)
}

#[test]
fn a_request_becomes_one_batch_of_keyed_records() {
    let mut harness = table();
    let mut client = harness.client();
    apply(&mut client, &[put("a", b"1"), require("c", 0), put("b", b"2")]);
    assert_eq!(harness.hear(&mut client), ack(2));
    apply(&mut client, &[delete("a"), put_if("b", b"3", 2), require("a", 1)]);
    assert_eq!(harness.hear(&mut client), ack(4));
    apply(&mut client, &[put_if("a", b"again", 0)]);
    assert_eq!(harness.hear(&mut client), ack(5));

    let records = harness.records();
    let said = |(lsn, payload): &(Lsn, Vec<u8>)| format!("{lsn} {:?}", KeyedRecord::decode(payload, *lsn).unwrap());
    assert_eq!(
        records.iter().map(said).collect::<Vec<_>>(),
        [
            "1 Put { key: Key(a), value: Value(1 bytes), more: true }",
            "2 Put { key: Key(b), value: Value(1 bytes), more: false }",
            "3 Delete { key: Key(a), more: true }",
            "4 Put { key: Key(b), value: Value(1 bytes), more: false }",
            "5 Put { key: Key(a), value: Value(5 bytes), more: false }",
        ]
    );
    let [appends, records] = [&harness.counters.appends, &harness.counters.records];
    assert_eq!([appends, records].map(|count| count.load(Ordering::Relaxed)), [3, 5]);
}

#[test]
fn requests_come_through_a_ring_too() {
    let mut harness = table();
    let mut client = harness.ring_client();
    apply(&mut client, &[put("a", b"1")]);
    assert_eq!(harness.hear(&mut client), ack(1));
    apply(&mut client, &[put_if("a", b"2", 7)]);
    assert_eq!(harness.hear(&mut client), mismatch(0, 1));
    client.send(&[Request::Append { payload: b"x" }, Request::Trim { below: 1 }]);
    for _ in 0..2 {
        let refused = harness.hear(&mut client);
        assert!(refused.starts_with("Error { code: WrongKind, fatal: false"), "{refused}");
    }
}

/// What the condition was judged by may be lost: it is not told before that is acknowledged, and a barrier has passed.
#[test]
fn a_mismatch_waits_for_what_it_was_judged_by() {
    let mut harness = table();
    let (mut client, mut other) = (harness.client(), harness.client());
    harness.settle();
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut other, &[put("a", b"1")]);
    harness.settle();
    apply(&mut client, &[require("a", 0), put("b", b"2")]);
    harness.settle();
    assert_eq!((client.heard(), other.heard()), (None, None), "nothing is confirmed");
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), mismatch(0, 1));
    assert_eq!(other.heard(), Some(ack(1)), "acknowledged before");

    // Nothing is in flight now, and still a member has to confirm that this is the primary.
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut client, &[require("a", 0), put("b", b"2")]);
    harness.settle();
    assert_eq!(client.heard(), None);
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), mismatch(0, 1));
}

/// What comes behind a mismatch on its connection is judged for itself.
#[test]
fn a_read_waits_for_a_mismatch_and_others_do_not() {
    let mut harness = table();
    let mut client = harness.client();
    harness.settle();
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut client, &[require("a", 9), put("a", b"1")]);
    apply(&mut client, &[put("b", b"2")]);
    client.send(&[Request::Read { from: 1, limit: 0, flags: READ_TAIL, history: 0 }]);
    harness.settle();
    assert!(harness.handed_over().is_none(), "answers are owed");
    harness.shut.store(false, Ordering::Relaxed);
    let mut answers = [harness.hear(&mut client), harness.hear(&mut client)];
    answers.sort();
    assert_eq!(answers, [ack(1), mismatch(0, 0)]);
    harness.until("the read", |harness| harness.handed_over());
}

/// Of what was appended nobody knows; of a mismatch nothing was appended.
#[test]
fn a_lost_role_ends_requests_by_what_they_did() {
    let mut harness = table();
    let mut client = harness.client();
    harness.settle();
    harness.shut.store(true, Ordering::Relaxed);
    apply(&mut client, &[put("a", b"1")]);
    apply(&mut client, &[require("a", 0), put("b", b"2")]);
    harness.settle();
    harness.stand_by(2);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: UnknownOutcome, fatal: false"), "{answer}");
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
    assert!(harness.hear(&mut client).starts_with("Role { role: Standby, epoch: 2"));

    // This connection takes no more, in the next term either: its app may have missed what others did.
    harness.shut.store(false, Ordering::Relaxed);
    harness.lead(3);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary, epoch: 3"));
    apply(&mut client, &[put("a", b"1")]);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: NotPrimary") && answer.contains("connect again"), "{answer}");
    let mut fresh = harness.client();
    apply(&mut fresh, &[put_if("a", b"1", 0)]);
    assert_eq!(harness.hear(&mut fresh), ack(1));
}

#[test]
fn only_a_primary_takes_requests() {
    let mut harness = table();
    harness.stand_by(2);
    let mut client = harness.client();
    apply(&mut client, &[put("a", b"1")]);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
    // An earlier one was not taken: a later one of the same connection is neither, once this is the primary.
    harness.lead(3);
    assert!(harness.hear(&mut client).starts_with("Role { role: Primary, epoch: 3"));
    apply(&mut client, &[put("a", b"1")]);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
}

#[test]
fn a_table_and_a_log_refuse_each_others_requests() {
    let mut log = LoopHarness::new();
    let mut client = log.client();
    apply(&mut client, &[put("a", b"1")]);
    let answer = log.hear(&mut client);
    assert!(answer.starts_with("Error { code: WrongKind, fatal: false"), "{answer}");
    assert!(answer.contains("this group keeps a log and no table"), "{answer}");
    client.send(&[Request::Append { payload: b"x" }]);
    assert_eq!(log.hear(&mut client), ack(1), "the connection takes records as before");

    // In each role, so that an app learns of it before it is needed.
    let mut table = table();
    for standby in [false, true] {
        if standby {
            table.stand_by(2);
        }
        let mut client = table.client();
        let mut record = Vec::new();
        put_batch_record(&mut record, b"x");
        let batch = Request::Batch(Batch::new(1, &record).unwrap());
        client.send(&[Request::Append { payload: b"x" }, batch, Request::Trim { below: 1 }]);
        for words in ["put and delete keys", "put and delete keys", "trims its log itself"] {
            let answer = table.hear(&mut client);
            assert!(answer.starts_with("Error { code: WrongKind, fatal: false"), "{answer}");
            assert!(answer.contains("this group keeps a table") && answer.contains(words), "{answer}");
        }
    }
}

#[test]
fn the_welcome_says_in_each_role_that_there_is_a_table() {
    let mut harness = table();
    for _ in 0..2 {
        for version in 1..=VERSION {
            let mut client = harness.stranger();
            client.send(&[Request::Hello { version_min: version, version_max: version, flags: 0 }]);
            let welcome = harness.hear(&mut client);
            let said = format!("table: {}", version >= VERSION_TABLE);
            assert!(welcome.starts_with("Welcome") && welcome.contains(&said), "version {version}: {welcome}");
        }
        harness.stand_by(2);
    }
    let mut held = harness.stranger();
    held.send(&[Request::Hello { version_min: VERSION, version_max: VERSION, flags: HELLO_HOLD }]);
    harness.settle();
    harness.lead(3);
    let welcome = harness.hear(&mut held);
    assert!(welcome.contains("role: Primary, ring: false, table: true"), "{welcome}");
    let mut log = LoopHarness::new();
    let mut client = log.stranger();
    client.send(&[Request::Hello { version_min: VERSION, version_max: VERSION, flags: 0 }]);
    assert!(log.hear(&mut client).contains("table: false"));
}

/// A client of an earlier version does not know what a table refuses it with.
#[test]
fn earlier_clients_are_told_to_be_updated() {
    for request in [Request::Append { payload: b"x" }, Request::Trim { below: 1 }] {
        let mut harness = table();
        let mut client = harness.client_of(VERSION_TABLE - 1);
        client.send(&[Request::Barrier]);
        assert_eq!(harness.hear(&mut client), "BarrierPassed { epoch: 1, last: 0 }");
        client.send(&[request]);
        let answer = harness.hear(&mut client);
        assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
        assert!(answer.contains("keeps a table") && answer.contains("update the client"), "{answer}");
        assert_eq!(harness.hear(&mut client), "Closed");
    }
}

#[test]
fn a_full_table_says_which_bound_and_takes_deletes() {
    let mut harness = LoopHarness::of_table(SegmentSize::DEFAULT, 2);
    let mut client = harness.client();
    apply(&mut client, &[put("a", b"1"), put("b", b"2")]);
    assert_eq!(harness.hear(&mut client), ack(2));
    apply(&mut client, &[put("c", b"3")]);
    let full = harness.hear(&mut client);
    assert!(full.starts_with("Error { code: TableFull, fatal: false"), "{full}");
    assert!(full.contains("it has 2 keys, and may have 2: delete some, or give the table more keys"), "{full}");
    apply(&mut client, &[put("a", b"instead"), delete("b")]);
    assert_eq!(harness.hear(&mut client), ack(4));
    apply(&mut client, &[put("c", b"3")]);
    assert_eq!(harness.hear(&mut client), ack(5), "there is room for one more");
}

#[test]
fn a_table_whose_memory_is_full_says_so() {
    let mut harness = LoopHarness::of_table_with(SegmentSize::DEFAULT, 1000, 4150);
    let mut client = harness.client();
    apply(&mut client, &[put("a", &[7; 2000]), put("b", &[7; 2000])]);
    assert_eq!(harness.hear(&mut client), ack(2));
    apply(&mut client, &[put("c", &[7; 20])]);
    let full = harness.hear(&mut client);
    assert!(full.starts_with("Error { code: TableFull, fatal: false"), "{full}");
    let words = "take 4112 bytes of the log, and may take 4150: delete some, or give the table more memory";
    assert!(full.contains(words), "{full}");
    apply(&mut client, &[put("a", b"smaller")]);
    assert_eq!(harness.hear(&mut client), ack(3));
}

#[test]
fn what_no_table_of_this_kind_takes_is_too_large() {
    let mut harness = LoopHarness::of_table(SegmentSize::MIN, 1000);
    let mut client = harness.client();
    apply(&mut client, &[delete("a"), put("b", &[0; 4096])]);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: TooLarge, fatal: false"), "{answer}");
    assert!(answer.contains("operation 1 makes a record of 4113 bytes: must be at most 4064"), "{answer}");
    let keys: Vec<_> = (0..256).map(|n| format!("{n:04}")).collect();
    let operations: Vec<_> = keys.iter().map(|key| put(key, &[0; 100])).collect();
    apply(&mut client, &operations);
    let answer = harness.hear(&mut client);
    assert!(answer.contains("the request takes") && answer.contains("bytes of log: must be at most"), "{answer}");

    // A value that is too long everywhere, in segments that might hold the record.
    let mut operations = vec![1, 0, 1, 0];
    operations.extend((64_u32 << 10 | 1).to_le_bytes());
    operations.extend([0; 8]);
    operations.extend(vec![b'k'; (64 << 10) + 2]);
    let mut harness = LoopHarness::of_table(SegmentSize::DEFAULT, 1000);
    let mut client = harness.client();
    client.send(&[Request::Apply(Operations::new(1, &operations).unwrap())]);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: TooLarge, fatal: false"), "{answer}");
    assert!(answer.contains("operation 0: value of 65537 bytes: must be at most 65536"), "{answer}");
}

/// Neither is more than a batch may have, so both may be larger than the inbox of their connection.
#[test]
fn a_large_request_takes_memory_as_a_batch_does() {
    let mut harness = table();
    let mut client = harness.client();
    let keys: Vec<_> = (0..40).map(|n| format!("{n}")).collect();
    let value = [7; 50_000];
    let operations: Vec<_> = keys.iter().map(|key| put(key, &value)).collect();
    let mut bytes = Vec::new();
    operations.iter().for_each(|operation| put_operation(&mut bytes, operation));
    let mut frame = Vec::new();
    Request::Apply(Operations::new(40, &bytes).unwrap()).encode(2, &mut frame);
    let mut sent = 0;
    harness.until("room for the whole frame", |_| {
        use std::io::Write;
        sent += client.stream.write(&frame[sent..]).unwrap_or(0);
        (sent == frame.len()).then_some(())
    });
    assert_eq!(harness.hear(&mut client), ack(40));
}

#[test]
fn malformed_operations_end_the_connection() {
    let mut harness = table();
    let mut client = harness.client();
    let mut frame = Vec::new();
    let mut bytes = Vec::new();
    put_operation(&mut bytes, &put("a", b"1"));
    Request::Apply(Operations::new(1, &bytes).unwrap()).encode(2, &mut frame);
    frame[24] = 9;
    client.send_bytes(&frame);
    let answer = harness.hear(&mut client);
    assert!(answer.starts_with("Error { code: BadFrame, fatal: true"), "{answer}");
    assert!(answer.contains("operation 0: unknown kind 9"), "{answer}");
    assert_eq!(harness.hear(&mut client), "Closed");
}

/// A request that finds no room waits in its connection, as an append does.
#[test]
fn a_request_without_room_waits() {
    let mut harness = table();
    harness.stand_by(2);
    harness.lead_without_room(3);
    let mut client = harness.client();
    apply(&mut client, &[put("a", b"1")]);
    apply(&mut client, &[require("a", 9), put("b", b"1")]);
    harness.settle();
    assert_eq!(client.heard(), None);
    harness.stand_by(4);
    assert!(harness.hear(&mut client).starts_with("Role"), "it was not taken, so it has no outcome yet");
    for _ in 0..2 {
        let answer = harness.hear(&mut client);
        assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
    }
}
