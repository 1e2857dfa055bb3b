//! `Apply` on the append socket: its golden bytes, what is refused in it, and what the primary gets of it.

use proptest::prelude::*;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::*;
use tailwind_protocol::table::record::{BadValue, KEY_SIZE_MAX, Key, Revision, VALUE_SIZE_MAX, Value};
use tailwind_protocol::table::request::{Apply, BadApply, Expected, Mismatch, OPERATIONS_MAX, Operation, Written};

use crate::socket_frames::{WELCOME, decode_request_all, documented, hex, request_bytes, response_bytes};

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes).unwrap()
}

fn put<'a>(name: &'a [u8], value: &'a [u8], only_if: Option<Expected>) -> Operation<'a> {
    Operation::Write { key: key(name), written: Written::Value(Value::new(value).unwrap()), only_if }
}

fn delete(name: &[u8], only_if: Option<Expected>) -> Operation<'_> {
    Operation::Write { key: key(name), written: Written::Nothing, only_if }
}

fn copy<'a>(name: &'a [u8], source: &'a [u8], only_if: Option<Expected>) -> Operation<'a> {
    Operation::Write { key: key(name), written: Written::CopyOf(key(source)), only_if }
}

fn require(name: &[u8], expected: Expected) -> Operation<'_> {
    Operation::Require { key: key(name), expected }
}

fn at(revision: u64) -> Expected {
    Expected::from_number(revision)
}

fn bytes(operations: &[Operation<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    operations.iter().for_each(|operation| put_operation(&mut bytes, operation));
    bytes
}

/// The frame of these operations, number 7.
fn frame(operations: &[Operation<'_>]) -> Vec<u8> {
    let bytes = bytes(operations);
    request_bytes(7, &Request::Apply(Operations::new(operations.len() as u16, &bytes).unwrap()))
}

/// The frame of these bytes of operations, which may be malformed.
fn raw_frame(count: u16, operations: &[u8]) -> Vec<u8> {
    let mut frame = (operations.len() as u32 + 8).to_le_bytes().to_vec();
    frame.extend([12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend(count.to_le_bytes());
    frame.extend([0; 6]);
    frame.extend(operations);
    frame
}

/// What the decoder says of this frame, which is malformed.
fn refusal(count: u16, operations: &[u8]) -> String {
    decode_request_all(&raw_frame(count, operations)).expect_err("it is malformed").to_string()
}

/// Golden, as in `socket_frames`. Each operation: kind, flags, lengths of key and value, revision, key, value.
#[test]
fn apply_has_golden_bytes() {
    let golden = [
        (
            vec![put(b"k", b"value", None)],
            "1e000000 0c 00 0000 0700000000000000 | 0100 000000000000 | 01 00 0100 05000000 0000000000000000 6b 76616c7565",
        ),
        (
            vec![put(b"k", b"", Some(at(258))), delete(b"lo", Some(Expected::Absent)), require(b"m", at(3))],
            "3c000000 0c 00 0000 0700000000000000 | 0300 000000000000
             | 01 01 0100 00000000 0201000000000000 6b
             | 02 01 0200 00000000 0000000000000000 6c6f
             | 04 00 0100 00000000 0300000000000000 6d",
        ),
        (
            vec![delete(b"k", None), require(b"m", Expected::Absent)],
            "2a000000 0c 00 0000 0700000000000000 | 0200 000000000000
             | 02 00 0100 00000000 0000000000000000 6b
             | 04 00 0100 00000000 0000000000000000 6d",
        ),
        (
            vec![copy(b"to", b"from", None), copy(b"k", b"k", Some(at(9)))],
            "30000000 0c 00 0000 0700000000000000 | 0200 000000000000
             | 03 00 0200 04000000 0000000000000000 746f 66726f6d
             | 03 01 0100 01000000 0900000000000000 6b 6b",
        ),
    ];
    for (operations, text) in golden {
        let bytes = hex(text);
        assert_eq!(frame(&operations), bytes, "{operations:?}");
        let decoded = decode_request_all(&bytes).unwrap().unwrap();
        let Request::Apply(found) = decoded.frame else { panic!("{:?}", decoded.frame) };
        assert_eq!((decoded.request, decoded.size, usize::from(found.count())), (7, bytes.len(), operations.len()));
        assert_eq!(found.act(|apply| apply.operations() == operations), Ok(true));
    }
}

/// Bytes that the body reserves are ignored, as everywhere.
#[test]
fn reserved_bytes_of_an_apply_are_ignored() {
    let plain = frame(&[put(b"k", b"v", None)]);
    let mut filled = plain.clone();
    filled[FRAME_HEADER_SIZE + 2..FRAME_HEADER_SIZE + 8].fill(0xff);
    let [plain, filled] = [&plain, &filled].map(|bytes| decode_request_all(bytes).unwrap().unwrap());
    assert_eq!(plain, filled);
}

#[test]
fn malformed_operations_are_named() {
    let good = bytes(&[put(b"k", b"v", None)]);
    let header = |kind, flags, key: u16, value: u32, revision: u64| {
        let mut bytes = good.clone();
        bytes.extend([kind, flags]);
        bytes.extend(key.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes.extend(revision.to_le_bytes());
        bytes.extend([b'a'; 1]);
        bytes
    };
    let long = {
        let mut bytes = header(2, 0, 1025, 0, 0);
        bytes.resize(bytes.len() + 1024, b'a');
        bytes
    };
    let long_source = {
        let mut bytes = header(3, 0, 1, 1025, 0);
        bytes.resize(bytes.len() + 1025, b'a');
        bytes
    };
    let cases = [
        (2, header(1, 0, 0, 1, 0), "operation 1: key of 0 bytes: must be 1 to 1024"),
        (2, long, "operation 1: key of 1025 bytes: must be 1 to 1024"),
        (2, header(0, 0, 1, 0, 0), "operation 1: unknown kind 0"),
        (2, header(5, 0, 1, 0, 0), "operation 1: unknown kind 5"),
        (2, header(3, 0, 1, 0, 0), "operation 1: source: key of 0 bytes: must be 1 to 1024"),
        (2, header(3, 0, 1, 1, 0), "operation 1: cut off"),
        (2, header(3, 0, 1, 0, 9), "operation 1: a revision without the flag `only if`"),
        (2, long_source, "operation 1: source: key of 1025 bytes: must be 1 to 1024"),
        (2, header(1, 2, 1, 0, 0), "operation 1: unknown flags 0x02"),
        (2, header(4, 1, 1, 0, 0), "operation 1: unknown flags 0x01"),
        (2, header(1, 0, 1, 0, 9), "operation 1: a revision without the flag `only if`"),
        (2, header(2, 0, 1, 0, 9), "operation 1: a revision without the flag `only if`"),
        (2, header(1, 0, 1, 1, 0), "operation 1: cut off"),
        (2, header(1, 0, 1, u32::MAX, 0), "operation 1: cut off"),
        (2, header(1, 0, u16::MAX, 0, 0), "operation 1: cut off"),
        (2, good.clone(), "operation 1: cut off"),
        (2, header(2, 0, 1, 0, 0)[..good.len() + 15].to_vec(), "operation 1: cut off"),
        (2, [header(2, 0, 1, 1, 0), vec![0]].concat(), "operation 1: a value, which only a put has"),
        (2, [header(4, 0, 1, 1, 0), vec![0]].concat(), "operation 1: a value, which only a put has"),
        (2, [header(2, 0, 1, 0, 0), vec![0]].concat(), "bytes left over after the last operation"),
        (2, bytes(&[put(b"k", b"", None), delete(b"k", None)]), "operations 0 and 1 write the same key"),
        (1, bytes(&[require(b"k", at(1))]), "no operation writes a key"),
        (0, vec![], "0 operations: must be 1 to 256"),
        (257, vec![], "257 operations: must be 1 to 256"),
    ];
    for (count, operations, why) in cases {
        assert_eq!(refusal(count, &operations), format!("body of frame kind 12 is malformed: {why}"));
    }
    let short = raw_frame(1, &good);
    let mut short = short[..FRAME_HEADER_SIZE + 7].to_vec();
    short[0] = 7;
    assert_eq!(decode_request_all(&short), Err(FrameError::Malformed { kind: 12, why: "too short" }));
}

/// An app may be told its limit without losing its connection.
#[test]
fn too_long_a_value_is_too_large_and_not_malformed() {
    let mut operations = bytes(&[delete(b"other", None)]);
    operations.extend([1, 0, 1, 0]);
    operations.extend((VALUE_SIZE_MAX as u32 + 1).to_le_bytes());
    operations.extend([0; 8]);
    operations.extend(vec![b'k'; VALUE_SIZE_MAX + 2]);
    let frame = raw_frame(2, &operations);
    let Request::Apply(found) = decode_request_all(&frame).unwrap().unwrap().frame else { panic!("no apply") };
    let large = LargeValue { operation: 1, value: BadValue(VALUE_SIZE_MAX + 1) };
    assert_eq!(found.act(|_| ()), Err(large));
}

#[test]
fn the_largest_request_is_taken() {
    let keys: Vec<Vec<u8>> =
        (0..OPERATIONS_MAX).map(|n| [vec![7; KEY_SIZE_MAX - 2], vec![(n / 256) as u8, n as u8]].concat()).collect();
    let value = vec![9; VALUE_SIZE_MAX];
    let operations: Vec<_> = keys.iter().map(|key| put(key, &value, None)).collect();
    let frame = frame(&operations);
    let Request::Apply(found) = decode_request_all(&frame).unwrap().unwrap().frame else { panic!("no apply") };
    assert_eq!(found.act(|apply| (apply.operations() == operations, apply.write_count())), Ok((true, 256)));
}

/// To a version that has no tables an `Apply` is an unknown kind, and the flag of the welcome an undefined one.
#[test]
fn tables_are_of_version_4() {
    let frame = frame(&[put(b"k", b"v", None)]);
    for version in 0..VERSION_TABLE {
        assert_eq!(decode_request(&frame, version, FRAME_BODY_MAX), Err(FrameError::UnknownKind(12)));
    }
    assert!(decode_request(&frame, VERSION_TABLE, FRAME_BODY_MAX).unwrap().is_some());
}

#[test]
fn encoder_writes_the_documented_apply() {
    let operations = bytes(&[require(b"lease", at(41)), put(b"job/7", b"done", None), delete(b"job/6", None)]);
    let requests = [
        ("hello of a table", 1, Request::Hello { version_min: 4, version_max: 4, flags: 0 }),
        ("apply", 2, Request::Apply(Operations::new(3, &operations).unwrap())),
    ];
    for (name, request, frame) in requests {
        assert_eq!(documented(name), request_bytes(request, &frame), "{name}");
    }
    let copied = bytes(&[copy(b"job/last", b"job/7", None)]);
    let copied = Request::Apply(Operations::new(1, &copied).unwrap());
    assert_eq!(documented("copy"), request_bytes(4, &copied));
    let mismatch = Mismatch { operation: 0, now: Revision::of(Lsn(50)) };
    let responses = [
        ("welcome of a table", 1, Response::Welcome(Welcome { version: 4, table: true, ..WELCOME })),
        ("apply ack", 2, Response::Ack { lsn: 52 }),
        ("mismatch", 3, Response::Mismatch(mismatch)),
    ];
    for (name, request, frame) in responses {
        assert_eq!(documented(name), response_bytes(request, &frame), "{name}");
    }
}

/// An operation with everything that it borrows.
#[derive(Clone, Debug)]
struct Arbitrary {
    choice: u8,
    key: Vec<u8>,
    source: Vec<u8>,
    value: Vec<u8>,
    revision: u64,
}

impl Arbitrary {
    fn operation(&self) -> Operation<'_> {
        let only_if = self.choice.is_multiple_of(2).then(|| at(self.revision));
        match self.choice / 2 {
            0 => put(&self.key, &self.value, only_if),
            1 => delete(&self.key, only_if),
            2 => copy(&self.key, &self.source, only_if),
            _ => require(&self.key, at(self.revision)),
        }
    }
}

fn arbitrary(most: usize) -> impl Strategy<Value = Vec<Arbitrary>> {
    let bytes = |least, most| proptest::collection::vec(any::<u8>(), least..most);
    let key = prop_oneof![bytes(1, 3), bytes(1, 9)];
    let one = (0..8_u8, key, bytes(1, 9), bytes(0, 20), 0..4_u64);
    let one = one.prop_map(|(choice, key, source, value, revision)| Arbitrary { choice, key, source, value, revision });
    proptest::collection::vec(one, 0..most)
}

proptest! {
    // Taken if and only if the operations make a request, which then comes out as it went in; cut anywhere it is not there yet.
    #[test]
    fn what_makes_a_request_is_taken(
        operations in prop_oneof![arbitrary(6), arbitrary(40)],
        behind in any::<[u8; 3]>(),
    ) {
        let operations: Vec<_> = operations.iter().map(Arbitrary::operation).collect();
        let bytes = bytes(&operations);
        match (Operations::new(operations.len() as u16, &bytes), Apply::new(&operations)) {
            (Err(found), Err(expected)) => prop_assert_eq!(found, BadOperations::Together(expected)),
            (Ok(found), Ok(expected)) => {
                prop_assert_eq!(found.act(|apply| *apply == expected), Ok(true));
                let mut frame = request_bytes(7, &Request::Apply(found));
                let size = frame.len();
                (0..size).for_each(|size| assert_eq!(decode_request_all(&frame[..size]), Ok(None)));
                frame.extend(behind);
                prop_assert_eq!(decode_request_all(&frame), Ok(Some(Decoded { request: 7, frame: Request::Apply(found), size })));
            }
            (found, expected) => panic!("{found:?}, and {expected:?}"),
        }
    }

    // A count that is one too high or too low is never believed.
    #[test]
    fn operations_must_be_as_many_as_announced(operations in arbitrary(12), more: bool) {
        let operations: Vec<_> = operations.iter().map(Arbitrary::operation).collect();
        let bytes = bytes(&operations);
        prop_assume!(Apply::new(&operations).is_ok());
        let count = if more { operations.len() as u16 + 1 } else { operations.len() as u16 - 1 };
        let expected = match (more, count) {
            (true, _) => BadOperations::One { operation: count - 1, why: BadOperation::CutOff },
            (false, 0) => BadApply::Operations(0).into(),
            (false, _) => BadOperations::LeftOver,
        };
        prop_assert_eq!(Operations::new(count, &bytes), Err(expected));
    }
}
