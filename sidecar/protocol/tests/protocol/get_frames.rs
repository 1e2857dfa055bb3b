//! `Get` on the append socket and its answer: golden bytes, and what is refused in them.

use proptest::prelude::*;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::*;
use tailwind_protocol::table::record::{KEY_SIZE_MAX, Key, Revision, VALUE_SIZE_MAX};

use crate::socket_frames::{decode_request_all, documented, hex, request_bytes, response_bytes};

fn get(key: &[u8], least: u64, flags: u16) -> Request<'_> {
    Request::Get { key: Key::new(key).unwrap(), least, flags }
}

fn value(revision: u64, as_of: u64, value: &[u8]) -> Response<'_> {
    Response::Value { revision: Revision::of(Lsn(revision)), as_of, value, older: false, stale: false }
}

fn stale(revision: u64, as_of: u64, value: &[u8]) -> Response<'_> {
    Response::Value { revision: Revision::of(Lsn(revision)), as_of, value, older: false, stale: true }
}

fn older(value: &[u8]) -> Response<'_> {
    Response::Value { revision: None, as_of: 0, value, older: true, stale: false }
}

/// Golden, as in `socket_frames`: flags, length of the key, reserved, least LSN, key; found, flags, reserved, revision, as of, value.
#[test]
fn gets_have_golden_bytes() {
    let requests = [
        (get(b"k", 0, 0), "11000000 0d 00 0000 0700000000000000 | 0000 0100 00000000 0000000000000000 6b"),
        (get(b"lo", 258, 5), "12000000 0d 00 0000 0700000000000000 | 0500 0200 00000000 0201000000000000 6c6f"),
        (get(b"o", 0, GET_OLDER), "11000000 0d 00 0000 0700000000000000 | 0200 0100 00000000 0000000000000000 6f"),
    ];
    for (frame, text) in requests {
        let bytes = hex(text);
        assert_eq!(request_bytes(7, &frame), bytes);
        assert_eq!(decode_request_all(&bytes), Ok(Some(Decoded { request: 7, frame, size: bytes.len() })));
    }
    let responses = [
        (
            value(258, 300, b"value"),
            "1d000000 91 00 0000 0700000000000000 | 01 00000000000000 0201000000000000 2c01000000000000 76616c7565",
        ),
        (
            value(2, 3, b""),
            "18000000 91 00 0000 0700000000000000 | 01 00000000000000 0200000000000000 0300000000000000",
        ),
        (
            value(0, 3, b""),
            "18000000 91 00 0000 0700000000000000 | 00 00000000000000 0000000000000000 0300000000000000",
        ),
        (
            stale(2, 3, b"v"),
            "19000000 91 00 0000 0700000000000000 | 01 01 000000000000 0200000000000000 0300000000000000 76",
        ),
        (
            stale(0, 3, b""),
            "18000000 91 00 0000 0700000000000000 | 00 01 000000000000 0000000000000000 0300000000000000",
        ),
        (older(b"v"), "19000000 91 00 0000 0700000000000000 | 02 00 000000000000 0000000000000000 0000000000000000 76"),
    ];
    for (frame, text) in responses {
        let bytes = hex(text);
        assert_eq!(response_bytes(7, &frame), bytes);
        assert_eq!(decode_response(&bytes), Ok(Some(Decoded { request: 7, frame, size: bytes.len() })));
    }
}

#[test]
fn a_get_has_a_key_of_the_announced_length() {
    let frame = |length: u16, key: &[u8]| {
        let mut bytes = (16 + key.len() as u32).to_le_bytes().to_vec();
        bytes.extend([13, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(length.to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(key);
        bytes
    };
    let longest = [7; KEY_SIZE_MAX + 1];
    assert!(decode_request_all(&frame(1024, &longest[1..])).unwrap().is_some());
    let other = "a key of another length than announced";
    let bad = "a key must have 1 to 1024 bytes";
    for (length, key, why) in [
        (2, &longest[..1], other),
        (1, &longest[..2], other),
        (u16::MAX, &longest[..3], other),
        (0, &longest[..0], bad),
        (1025, &longest[..], bad),
    ] {
        assert_eq!(decode_request_all(&frame(length, key)), Err(FrameError::Malformed { kind: 13, why }));
    }
    let mut short = frame(0, b"")[..FRAME_HEADER_SIZE + 15].to_vec();
    short[0] = 15;
    assert_eq!(decode_request_all(&short), Err(FrameError::Malformed { kind: 13, why: "too short" }));
}

/// A flag of a later version, and bytes that the body reserves, are ignored.
#[test]
fn unknown_flags_of_a_get_are_ignored() {
    let mut bytes = request_bytes(7, &get(b"k", 9, 1));
    bytes[FRAME_HEADER_SIZE + 4..FRAME_HEADER_SIZE + 8].fill(0xff);
    let decoded = decode_request_all(&bytes).unwrap().unwrap();
    assert_eq!(decoded.frame, get(b"k", 9, 1));
    let all = request_bytes(7, &get(b"k", 9, u16::MAX));
    assert_eq!(decode_request_all(&all).unwrap().unwrap().frame, get(b"k", 9, u16::MAX));
}

#[test]
fn an_answer_that_no_key_has_is_malformed() {
    let frame = |found: u8, revision: u64, value: &[u8]| {
        let mut bytes = (24 + value.len() as u32).to_le_bytes().to_vec();
        bytes.extend([145, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, found, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(revision.to_le_bytes());
        bytes.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(value);
        bytes
    };
    let large = vec![0; VALUE_SIZE_MAX + 1];
    assert!(decode_response(&frame(1, 3, &large[1..])).unwrap().is_some());
    let cases: [(u8, u64, &[u8], &str); 7] = [
        (0, 0, b"v", "a value that no key has"),
        (0, 3, b"", "a value that no key has"),
        (1, 0, b"v", "a value that no key has"),
        (1, 3, &large, "a value that no key has"),
        (2, 3, b"v", "a value that no key has"),
        // As of record 9.
        (2, 0, b"v", "a value that no key has"),
        (3, 3, b"v", "unknown kind of answer"),
    ];
    for (found, revision, value, why) in cases {
        assert_eq!(decode_response(&frame(found, revision, value)), Err(FrameError::Malformed { kind: 145, why }));
    }
}

#[test]
fn gets_are_of_version_4() {
    let frame = request_bytes(7, &get(b"k", 0, 0));
    for version in 0..VERSION_TABLE {
        assert_eq!(decode_request(&frame, version, FRAME_BODY_MAX), Err(FrameError::UnknownKind(13)));
    }
}

#[test]
fn encoder_writes_the_documented_get() {
    assert_eq!(documented("get"), request_bytes(5, &get(b"job/7", 52, 0)));
    assert_eq!(documented("value"), response_bytes(5, &value(51, 54, b"done")));
    assert_eq!(documented("fresh get"), request_bytes(6, &get(b"job/6", 0, 1)));
    assert_eq!(documented("absent"), response_bytes(6, &value(0, 54, b"")));
    assert_eq!(documented("older allowed"), request_bytes(7, &get(b"job/7", 0, 2)));
    assert_eq!(documented("stale value"), response_bytes(7, &stale(51, 52, b"done")));
    assert_eq!(documented("older value"), response_bytes(7, &older(b"open")));
}

proptest! {
    #[test]
    fn every_get_is_read_as_it_was_written(
        key in proptest::collection::vec(any::<u8>(), 1..40),
        numbers in any::<(u64, u64, u16)>(),
        held in proptest::collection::vec(any::<u8>(), 0..40),
        behind in any::<[u8; 3]>(),
    ) {
        let (least, as_of, flags) = numbers;
        let frame = get(&key, least, flags);
        let mut bytes = request_bytes(7, &frame);
        let size = bytes.len();
        (0..size).for_each(|size| assert_eq!(decode_request_all(&bytes[..size]), Ok(None)));
        bytes.extend(behind);
        prop_assert_eq!(decode_request_all(&bytes), Ok(Some(Decoded { request: 7, frame, size })));
        let frame = value(least.max(1), as_of, &held);
        let bytes = response_bytes(7, &frame);
        prop_assert_eq!(decode_response(&bytes), Ok(Some(Decoded { request: 7, frame, size: bytes.len() })));
    }
}
