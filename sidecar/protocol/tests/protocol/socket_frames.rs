//! The append socket's bytes: every frame kind as a golden literal, then what no input may do to the decoders.
//!
//! A golden literal that changes is a new version of the protocol: see "Versions" in `docs/append-socket.md`.

use proptest::prelude::*;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout;
use tailwind_protocol::segment::append_size;
use tailwind_protocol::socket::*;
use tailwind_protocol::table::record::{Key, Revision};
use tailwind_protocol::table::request::Mismatch;

/// Bytes of a hexadecimal text; spaces, bars and line ends are for the reader.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    assert!(digits.len().is_multiple_of(2), "half a byte in `{text}`");
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

pub(crate) fn request_bytes(request: u64, frame: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(request, &mut bytes);
    bytes
}

pub(crate) fn response_bytes(request: u64, frame: &Response<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(request, &mut bytes);
    bytes
}

/// The length-prefixed form of `records`, for [`Batch::new`].
fn run(records: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    records.iter().for_each(|record| put_batch_record(&mut bytes, record.as_ref()));
    bytes
}

pub(crate) fn decode_request_all(bytes: &[u8]) -> Result<Option<Decoded<Request<'_>>>, FrameError> {
    decode_request(bytes, VERSION, FRAME_BODY_MAX)
}

pub(crate) const WELCOME: Welcome<'static> = Welcome {
    version: 1,
    role: Role::Primary,
    ring: false,
    table: false,
    record_size_max: 1 << 20,
    batch_size_max: 4 << 20,
    batch_records_max: 65_536,
    inflight_max: 4096,
    record_cost: 32,
    batch_cost: 8,
    epoch: 3,
    first: 1,
    last: 9,
    primary: "db-0",
};

// Header of each literal: length, kind, flags, reserved, request. Then, behind the bar, the body field by field.

#[test]
fn requests_have_golden_bytes() {
    let records = run(&["a", "", "bcd"]);
    let golden = [
        (
            Request::Hello { version_min: 1, version_max: 3, flags: HELLO_HOLD },
            "10000000 01 00 0000 0100000000000000 | 5457415050454e44 0100 0300 01000000",
        ),
        (Request::Append { payload: b"hello" }, "05000000 02 00 0000 0200000000000000 | 68656c6c6f"),
        (Request::Append { payload: b"" }, "00000000 02 00 0000 0200000000000000 |"),
        (
            Request::Batch(Batch::new(3, &records).unwrap()),
            "18000000 03 00 0000 0300000000000000 | 03000000 00000000 01000000 61 00000000 03000000 626364",
        ),
        (
            Request::Read { from: 7, limit: 100, flags: READ_TAIL, history: 0 },
            "18000000 04 00 0000 0400000000000000 | 0700000000000000 6400000000000000 01000000 00000000",
        ),
        (
            Request::Read { from: 7, limit: 0, flags: READ_ANYWHERE, history: 0x0102_0304_0506_0708 },
            "20000000 04 00 0000 0400000000000000 | 0700000000000000 0000000000000000 02000000 00000000 0807060504030201",
        ),
        (
            Request::Follow { from: 259, history: 0 },
            "10000000 0a 00 0000 0400000000000000 | 0301000000000000 0000000000000000",
        ),
        (
            Request::Follow { from: 259, history: 258 },
            "10000000 0a 00 0000 0400000000000000 | 0301000000000000 0201000000000000",
        ),
        (Request::Position, "00000000 0b 00 0000 0900000000000000 |"),
        (Request::Barrier, "00000000 05 00 0000 0500000000000000 |"),
        (Request::Sync, "00000000 10 00 0000 0600000000000000 |"),
        (Request::Trim { below: 258 }, "08000000 06 00 0000 0600000000000000 | 0201000000000000"),
        (Request::Status, "00000000 07 00 0000 0700000000000000 |"),
        (Request::Stop, "00000000 08 00 0000 0807060504030201 |"),
        (Request::Wake, "00000000 09 00 0000 0807060504030201 |"),
    ];
    for (frame, text) in golden {
        let bytes = hex(text);
        let request = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(request_bytes(request, &frame), bytes, "{frame:?}");
        assert_eq!(decode_request_all(&bytes), Ok(Some(Decoded { request, frame, size: bytes.len() })));
    }
}

#[test]
fn responses_have_golden_bytes() {
    let records = run(&["x", "yz"]);
    let golden = [
        (
            Response::Welcome(WELCOME),
            "34000000 81 00 0000 0100000000000000 | 0100 01 00 00001000 00004000 00000100 00100000 2000 0800
             0300000000000000 0100000000000000 0900000000000000 64622d30",
        ),
        (
            Response::Welcome(Welcome { ring: true, primary: "", ..WELCOME }),
            "30000000 81 00 0000 0100000000000000 | 0100 01 01 00001000 00004000 00000100 00100000 2000 0800
             0300000000000000 0100000000000000 0900000000000000",
        ),
        (
            Response::Welcome(Welcome { version: 4, table: true, primary: "", ..WELCOME }),
            "30000000 81 00 0000 0100000000000000 | 0400 01 02 00001000 00004000 00000100 00100000 2000 0800
             0300000000000000 0100000000000000 0900000000000000",
        ),
        (
            Response::Mismatch(Mismatch { operation: 258, now: Revision::of(Lsn(300)) }),
            "10000000 90 00 0000 0700000000000000 | 0201 000000000000 2c01000000000000",
        ),
        (
            Response::Mismatch(Mismatch { operation: 0, now: None }),
            "10000000 90 00 0000 0700000000000000 | 0000 000000000000 0000000000000000",
        ),
        (
            Response::Error { code: ErrorCode::TableFull, fatal: false, retry_after_ms: 0, message: "full" },
            "0c000000 83 00 0000 0300000000000000 | 0d00 00 00 00000000 66756c6c",
        ),
        (
            Response::Error { code: ErrorCode::WrongKind, fatal: false, retry_after_ms: 0, message: "" },
            "08000000 83 00 0000 0300000000000000 | 0e00 00 00 00000000",
        ),
        (Response::Wake, "00000000 8a 00 0000 0000000000000000 |"),
        (
            Response::Turn { epoch: 5, next: 260 },
            "10000000 8b 00 0000 0400000000000000 | 0500000000000000 0401000000000000",
        ),
        (
            Response::Lag { acked: 259, behind_ms: 258, stale: false },
            "10000000 8c 00 0000 0400000000000000 | 0301000000000000 02010000 00000000",
        ),
        (
            Response::Lag { acked: 0, behind_ms: BEHIND_UNKNOWN, stale: true },
            "10000000 8c 00 0000 0400000000000000 | 0000000000000000 ffffffff 01000000",
        ),
        (
            Response::Position { epoch: 3, last: 300 },
            "10000000 8d 00 0000 0900000000000000 | 0300000000000000 2c01000000000000",
        ),
        (Response::History { history: 258 }, "08000000 8e 00 0000 0400000000000000 | 0201000000000000"),
        (Response::Ack { lsn: 10 }, "08000000 82 00 0000 0200000000000000 | 0a00000000000000"),
        (
            Response::Error { code: ErrorCode::Busy, fatal: true, retry_after_ms: 250, message: "full" },
            "0c000000 83 00 0000 0300000000000000 | 0a00 01 00 fa000000 66756c6c",
        ),
        (
            Response::Records { first: 5, records: Batch::new(2, &records).unwrap() },
            "1b000000 84 00 0000 0400000000000000 | 0500000000000000 02000000 00000000 01000000 78 02000000 797a",
        ),
        (Response::End { next: 7, tailing: false }, "08000000 85 00 0000 0400000000000000 | 0700000000000000"),
        (Response::End { next: 7, tailing: true }, "08000000 85 01 0000 0400000000000000 | 0700000000000000"),
        (
            Response::BarrierPassed { epoch: 3, last: 9 },
            "10000000 86 00 0000 0500000000000000 | 0300000000000000 0900000000000000",
        ),
        (Response::Synced { lsn: 300 }, "08000000 8f 00 0000 0600000000000000 | 2c01000000000000"),
        (Response::Trimmed { first: 200 }, "08000000 87 00 0000 0600000000000000 | c800000000000000"),
        (Response::StatusReport { json: "{}" }, "02000000 88 00 0000 0700000000000000 | 7b7d"),
        (
            Response::Role { role: Role::Standby, epoch: 4, last: 9, primary: "db-1" },
            "1c000000 89 00 0000 0000000000000000 | 02 00000000000000 0400000000000000 0900000000000000 64622d31",
        ),
        (
            Response::Role { role: Role::Reader, epoch: 4, last: 9, primary: "" },
            "18000000 89 00 0000 0000000000000000 | 04 00000000000000 0400000000000000 0900000000000000",
        ),
    ];
    for (frame, text) in golden {
        let bytes = hex(text);
        let request = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(response_bytes(request, &frame), bytes, "{frame:?}");
        assert_eq!(decode_response(&bytes), Ok(Some(Decoded { request, frame, size: bytes.len() })));
    }
}

#[test]
fn an_append_may_be_written_in_place() {
    let frame = request_bytes(7, &Request::Append { payload: b"hello" });
    assert_eq!(append_header(7, 5), frame[..FRAME_HEADER_SIZE]);
    assert_eq!(read_append_header(frame.first_chunk().unwrap()), Some((7, 5)));
    for (byte, value) in [(4, 3), (6, 1), (7, 1)] {
        let mut other = append_header(7, 5);
        other[byte] = value;
        assert_eq!(read_append_header(&other), None, "byte {byte} is {value}");
    }
}

#[test]
fn wake_frames_are_what_the_encoder_writes() {
    assert_eq!(request_bytes(0, &Request::Wake), WAKE_SIDECAR_FRAME);
    assert_eq!(response_bytes(0, &Response::Wake), WAKE_CLIENT_FRAME);
}

#[test]
fn ack_has_the_announced_size() {
    assert_eq!(response_bytes(1, &Response::Ack { lsn: 1 }).len(), ACK_FRAME_SIZE);
}

#[test]
fn every_error_code_and_role_keeps_its_number() {
    for (place, code) in ErrorCode::ALL.into_iter().enumerate() {
        assert_eq!(code as usize, place + 1);
        let frame = Response::Error { code, fatal: false, retry_after_ms: 0, message: "" };
        assert_eq!(decode_response(&response_bytes(1, &frame)).unwrap().unwrap().frame, frame);
    }
    for (number, role) in [(1, Role::Primary), (2, Role::Standby), (3, Role::Recovering), (4, Role::Reader)] {
        assert_eq!(role as u8, number);
        assert_eq!(role.in_version(VERSION), role);
        assert_eq!(role.in_version(1) as u8, if number == 4 { 2 } else { number }, "to clients of version 1");
        let frame = Response::Role { role, epoch: 1, last: 1, primary: "" };
        assert_eq!(decode_response(&response_bytes(0, &frame)).unwrap().unwrap().frame, frame);
    }
}

/// The blocks of `docs/append-socket.md` marked ```` ```hex <name> ````, without what stands behind a `#`.
pub(crate) fn documented(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/append-socket.md");
    let text = std::fs::read_to_string(path).unwrap();
    let start = text.find(&format!("```hex {name}\n")).unwrap_or_else(|| panic!("no example `{name}` in {path}"));
    let block = text[start..].lines().skip(1).take_while(|line| *line != "```");
    hex(&block.map(|line| line.split('#').next().unwrap_or_default()).collect::<String>())
}

#[test]
fn encoder_writes_the_documented_example() {
    let two = run(&["first", "second"]);
    let requests = [
        ("hello", 1, Request::Hello { version_min: 1, version_max: 3, flags: 0 }),
        ("append", 2, Request::Append { payload: b"hello" }),
        ("batch", 3, Request::Batch(Batch::new(2, &two).unwrap())),
        ("read", 4, Request::Read { from: 11, limit: 0, flags: READ_TAIL, history: 0 }),
        ("stop", 4, Request::Stop),
        ("read anywhere", 2, Request::Read { from: 11, limit: 100, flags: READ_ANYWHERE, history: 0 }),
        ("follow", 3, Request::Follow { from: 13, history: 0x1f2e_3d4c_0000_0001 }),
        ("position", 2, Request::Position),
    ];
    for (name, request, frame) in requests {
        assert_eq!(documented(name), request_bytes(request, &frame), "{name}");
    }
    let not_primary = "this sidecar has lost its role since this connection was made, and others may have appended: connect again and read the new records";
    let responses = [
        ("welcome", 1, Response::Welcome(Welcome { version: 3, ..WELCOME })),
        ("ack", 2, Response::Ack { lsn: 10 }),
        ("batch ack", 3, Response::Ack { lsn: 12 }),
        ("records", 4, Response::Records { first: 11, records: Batch::new(2, &two).unwrap() }),
        ("caught up", 4, Response::End { next: 13, tailing: true }),
        ("end", 4, Response::End { next: 13, tailing: false }),
        ("role", 0, Response::Role { role: Role::Standby, epoch: 4, last: 12, primary: "db-1" }),
        (
            "error",
            5,
            Response::Error { code: ErrorCode::NotPrimary, fatal: false, retry_after_ms: 0, message: not_primary },
        ),
        ("history", 3, Response::History { history: 0x1f2e_3d4c_0000_0001 }),
        ("lag", 3, Response::Lag { acked: 14, behind_ms: 2, stale: false }),
        ("stale lag", 3, Response::Lag { acked: 14, behind_ms: 640, stale: true }),
        ("turn", 3, Response::Turn { epoch: 5, next: 16 }),
        ("log position", 2, Response::Position { epoch: 5, last: 17 }),
    ];
    for (name, request, frame) in responses {
        assert_eq!(documented(name), response_bytes(request, &frame), "{name}");
    }
}

#[test]
fn frame_above_the_limit_is_refused_by_its_header() {
    let at_limit = hex("64000000 02 00 0000 0100000000000000");
    assert_eq!(decode_request(&at_limit, VERSION, 100), Ok(None));
    let above = hex("65000000 02 00 0000 0100000000000000");
    assert_eq!(decode_request(&above, VERSION, 100), Err(FrameError::TooLong { length: 101, max: 100 }));
    let huge = hex("ffffffff 82 00 0000 0100000000000000");
    assert_eq!(decode_response(&huge), Err(FrameError::TooLong { length: u32::MAX, max: FRAME_BODY_MAX }));
}

#[test]
fn unknown_and_wrong_direction_kinds_are_refused() {
    for kind in 0..=u8::MAX {
        let header = [0, 0, 0, 0, kind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let unknown = FrameError::UnknownKind(kind);
        for (version, newest) in [(0, 9), (1, 9), (2, 11), (3, 11), (4, 13)] {
            let error = decode_request(&header, version, FRAME_BODY_MAX).err();
            let known = (1..=newest).contains(&kind) || kind == 16;
            assert_eq!(error == Some(unknown.clone()), !known, "request {kind} in version {version}");
        }
        let known = (129..=145).contains(&kind);
        assert_eq!(decode_response(&header).err() == Some(unknown), !known, "response {kind}");
    }
}

#[test]
fn reserved_header_bytes_must_be_zero() {
    for place in [6, 7] {
        let mut bytes = request_bytes(1, &Request::Barrier);
        bytes[place] = 1;
        assert_eq!(decode_request_all(&bytes), Err(FrameError::Reserved));
        assert_eq!(decode_response(&bytes), Err(FrameError::Reserved));
    }
}

#[test]
fn reserved_body_bytes_and_undefined_flags_are_ignored() {
    let read = hex("18000000 04 ff 0000 0100000000000000 | 0700000000000000 0000000000000000 00000000 ffffffff");
    let frame = Request::Read { from: 7, limit: 0, flags: 0, history: 0 };
    assert_eq!(decode_request_all(&read).unwrap().unwrap().frame, frame);
    let end = hex("08000000 85 fe 0000 0100000000000000 | 0700000000000000");
    assert_eq!(decode_response(&end).unwrap().unwrap().frame, Response::End { next: 7, tailing: false });
}

/// As a sidecar that knows no later version takes it.
#[test]
fn read_anywhere_is_an_undefined_flag_in_version_1() {
    let flags = READ_TAIL | READ_ANYWHERE;
    let bytes = request_bytes(4, &Request::Read { from: 7, limit: 0, flags, history: 0 });
    for (version, expected) in [(1, READ_TAIL), (2, flags), (3, flags), (4, flags)] {
        let decoded = decode_request(&bytes, version, FRAME_BODY_MAX).unwrap().unwrap();
        assert_eq!(decoded.frame, Request::Read { from: 7, limit: 0, flags: expected, history: 0 });
    }
}

/// What is reserved in version 2 is the history since.
#[test]
fn histories_are_named_since_version_3() {
    let follow = request_bytes(4, &Request::Follow { from: 7, history: 9 });
    for (version, expected) in [(2, 0), (3, 9), (4, 9)] {
        let decoded = decode_request(&follow, version, FRAME_BODY_MAX).unwrap().unwrap();
        assert_eq!(decoded.frame, Request::Follow { from: 7, history: expected });
    }
    let read = request_bytes(4, &Request::Read { from: 7, limit: 0, flags: 0, history: 9 });
    let why = "bytes left over";
    assert_eq!(decode_request(&read, 2, FRAME_BODY_MAX), Err(FrameError::Malformed { kind: 4, why }));
}

#[test]
fn malformed_bodies_are_refused() {
    let requests = [
        ("08000000 0a 00 0000 0100000000000000 | 0100000000000000", "too short"),
        ("11000000 0a 00 0000 0100000000000000 | 0100000000000000 0000000000000000 00", "bytes left over"),
        ("01000000 0b 00 0000 0100000000000000 | 00", "bytes left over"),
        ("10000000 01 00 0000 0100000000000000 | 5457415050454e45 0100 0100 00000000", "not an append-socket hello"),
        ("0f000000 01 00 0000 0100000000000000 | 5457415050454e44 0100 0100 000000", "too short"),
        ("01000000 05 00 0000 0100000000000000 | 00", "bytes left over"),
        ("09000000 06 00 0000 0100000000000000 | 010000000000000000", "bytes left over"),
        ("07000000 03 00 0000 0100000000000000 | 01000000 000000", "too short"),
        ("08000000 03 00 0000 0100000000000000 | 00000000 00000000", "a batch without a record"),
        ("08000000 03 00 0000 0100000000000000 | 01000000 00000000", "a record's length is cut off"),
        ("0d000000 03 00 0000 0100000000000000 | 01000000 00000000 02000000 61", "a record is cut off"),
        (
            "0d000000 03 00 0000 0100000000000000 | 01000000 00000000 00000000 61",
            "bytes left over after the last record",
        ),
        ("0c000000 03 00 0000 0100000000000000 | 01000000 00000000 ffffffff", "a record is cut off"),
        ("08000000 03 00 0000 0100000000000000 | 01000100 00000000", "more records than a batch may have"),
        ("08000000 03 00 0000 0100000000000000 | ffffffff 00000000", "more records than a batch may have"),
    ];
    for (text, expected) in requests {
        let error = decode_request_all(&hex(text)).unwrap_err();
        assert!(matches!(error, FrameError::Malformed { why, .. } if why == expected), "{text}: {error}");
    }
    let responses = [
        ("0f000000 8b 00 0000 0100000000000000 | 0100000000000000 01000000000000", "too short"),
        ("0c000000 8c 00 0000 0100000000000000 | 0100000000000000 01000000", "too short"),
        ("11000000 8d 00 0000 0100000000000000 | 0100000000000000 0100000000000000 00", "bytes left over"),
        ("18000000 89 00 0000 0000000000000000 | 05 00000000000000 0000000000000000 0000000000000000", "unknown role"),
        ("07000000 82 00 0000 0100000000000000 | 01000000000000", "too short"),
        ("08000000 83 00 0000 0100000000000000 | 0000 00 00 00000000", "unknown error code"),
        ("08000000 83 00 0000 0100000000000000 | 0f00 00 00 00000000", "unknown error code"),
        ("0f000000 90 00 0000 0100000000000000 | 0000 000000000000 00000000000000", "too short"),
        ("11000000 90 00 0000 0100000000000000 | 0000 000000000000 0000000000000000 00", "bytes left over"),
        ("09000000 83 00 0000 0100000000000000 | 0100 00 00 00000000 ff", "text is not UTF-8"),
        ("02000000 88 00 0000 0100000000000000 | c328", "text is not UTF-8"),
        ("18000000 89 00 0000 0000000000000000 | 00 00000000000000 0000000000000000 0000000000000000", "unknown role"),
        (
            "19000000 89 00 0000 0000000000000000 | 01 00000000000000 0000000000000000 0000000000000000 80",
            "text is not UTF-8",
        ),
        (
            "11000000 84 00 0000 0100000000000000 | 0100000000000000 00000000 00000000 00",
            "bytes left over after the last record",
        ),
    ];
    for (text, expected) in responses {
        let error = decode_response(&hex(text)).unwrap_err();
        assert!(matches!(error, FrameError::Malformed { why, .. } if why == expected), "{text}: {error}");
    }
}

#[test]
fn batch_written_record_by_record_is_the_same_frame() {
    let records: [&[u8]; 3] = [b"a", b"", b"bcd"];
    let mut bytes = Vec::new();
    encode_batch(3, records.into_iter(), &mut bytes);
    assert_eq!(bytes, request_bytes(3, &Request::Batch(Batch::new(3, &run(&records)).unwrap())));
    assert_eq!(frame_size(&bytes), Some(bytes.len()));
    assert_eq!(frame_size(&bytes[..FRAME_HEADER_SIZE - 1]), None);
    let announced = [&bytes[..FRAME_HEADER_SIZE], &bytes[..FRAME_HEADER_SIZE - 1], &request_bytes(1, &Request::Status)];
    assert_eq!(announced.map(announced_append), [Some(3), None, None]);
    bytes[4] = 12;
    assert_eq!(announced_append(&bytes), Some(3), "an `Apply` may be as large");
}

/// The formula of the document against the log's own bytes, and against the frame's: a client that keeps to it is never
/// refused.
#[test]
fn batch_size_matches_the_document() {
    let (record_cost, batch_cost) = (layout::RECORD_HEADER_SIZE as u16, layout::CHECKSUM_SIZE as u16);
    for lengths in [&[0][..], &[1, 7, 8, 9], &[0; 100], &[1 << 20, 3]] {
        let size = batch_log_size(record_cost, batch_cost, lengths.iter().copied());
        assert_eq!(size, append_size(lengths.iter().copied()), "{lengths:?}");
        let records: Vec<Vec<u8>> = lengths.iter().map(|length| vec![7; *length]).collect();
        let mut bytes = Vec::new();
        encode_batch(1, records.iter().map(Vec::as_slice), &mut bytes);
        assert!(bytes.len() - FRAME_HEADER_SIZE <= size, "{lengths:?}");
    }
}

#[test]
fn largest_batch_count_is_accepted() {
    let bytes = vec![0; 4 * BATCH_RECORDS_MAX as usize];
    let batch = Batch::new(BATCH_RECORDS_MAX, &bytes).unwrap();
    assert_eq!((batch.len(), batch.payload_size(), batch.iter().count()), (65_536, 0, 65_536));
    let frame = request_bytes(1, &Request::Batch(batch));
    assert_eq!(decode_request_all(&frame).unwrap().unwrap().frame, Request::Batch(batch));
}

/// A frame with everything that it borrows, for proptest.
#[derive(Clone, Debug)]
struct Arbitrary {
    choice: u8,
    numbers: [u64; 3],
    text: String,
    records: Vec<Vec<u8>>,
}

impl Arbitrary {
    fn request<'a>(&'a self, run: &'a [u8]) -> Request<'a> {
        let [a, b, c] = self.numbers;
        match self.choice % 13 {
            0 => Request::Hello { version_min: a as u16, version_max: b as u16, flags: c as u32 },
            1 => Request::Append { payload: self.text.as_bytes() },
            2 if !self.records.is_empty() => Request::Batch(Batch::new(self.records.len() as u32, run).unwrap()),
            2 | 3 => Request::Read { from: a, limit: b, flags: c as u32, history: a ^ b },
            4 => Request::Barrier,
            5 => Request::Trim { below: a },
            6 => Request::Status,
            7 => Request::Stop,
            8 => Request::Sync,
            9 => Request::Follow { from: a, history: b },
            10 => Request::Position,
            11 => Request::Get { key: Key::new(b"key").unwrap(), least: a, flags: b as u16 },
            _ => Request::Wake,
        }
    }

    fn response<'a>(&'a self, run: &'a [u8]) -> Response<'a> {
        let [a, b, c] = self.numbers;
        let role = [Role::Primary, Role::Standby, Role::Recovering, Role::Reader][(a % 4) as usize];
        match self.choice % 17 {
            0 => Response::Welcome(Welcome {
                version: a as u16,
                role,
                ring: c % 2 == 0,
                table: c % 3 == 0,
                record_size_max: b as u32,
                batch_size_max: c as u32,
                batch_records_max: a as u32,
                inflight_max: b as u32,
                record_cost: c as u16,
                batch_cost: a as u16,
                epoch: a,
                first: b,
                last: c,
                primary: &self.text,
            }),
            1 => Response::Ack { lsn: a },
            2 => Response::Error {
                code: ErrorCode::ALL[(a % 14) as usize],
                fatal: b % 2 == 0,
                retry_after_ms: c as u32,
                message: &self.text,
            },
            3 => Response::Records { first: a, records: Batch::new(self.records.len() as u32, run).unwrap() },
            4 => Response::End { next: a, tailing: b % 2 == 0 },
            5 => Response::BarrierPassed { epoch: a, last: b },
            6 => Response::Trimmed { first: a },
            7 => Response::StatusReport { json: &self.text },
            9 => Response::Synced { lsn: a },
            8 => Response::Role { role, epoch: b, last: c, primary: &self.text },
            10 => Response::Turn { epoch: a, next: b },
            11 => Response::Lag { acked: a, behind_ms: b as u32, stale: c % 2 == 0 },
            12 => Response::Position { epoch: a, last: b },
            13 => Response::History { history: a },
            14 => Response::Mismatch(Mismatch { operation: b as u16, now: Revision::of(Lsn(a % 3)) }),
            15 if a.is_multiple_of(4) => {
                Response::Value { revision: None, as_of: b, value: &[], older: false, stale: c % 2 == 0 }
            }
            15 if a.is_multiple_of(3) => {
                let value = self.text.as_bytes();
                Response::Value { revision: None, as_of: 0, value, older: true, stale: c % 2 == 0 }
            }
            15 => Response::Value {
                revision: Revision::of(Lsn(a)),
                as_of: b,
                value: self.text.as_bytes(),
                older: false,
                stale: c % 2 == 0,
            },
            _ => Response::Wake,
        }
    }
}

fn arbitrary() -> impl Strategy<Value = Arbitrary> {
    let records = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6);
    (any::<u8>(), any::<[u64; 3]>(), ".{0,20}", records).prop_map(|(choice, numbers, text, records)| Arbitrary {
        choice,
        numbers,
        text,
        records,
    })
}

/// Bytes that look like a frame often enough to get past the header.
fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let body = proptest::collection::vec(prop_oneof![Just(0), 0..4u8, any::<u8>()], 0..80);
    (prop_oneof![0..17u8, 128..146u8], any::<u8>(), -3..4i32, body).prop_map(|(kind, flags, error, body)| {
        let length = (body.len() as i32 + error).max(0) as u32;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([kind, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(body);
        bytes
    })
}

#[test]
fn records_frames_are_those_of_single_responses() {
    let two = run(&["first", "second"]);
    let mut frames = RecordsFrames::new(4);
    frames.put(11, b"first");
    frames.put(12, b"second");
    let single = response_bytes(4, &Response::Records { first: 11, records: Batch::new(2, &two).unwrap() });
    let pieces: Vec<_> = frames.pieces(1).collect();
    assert_eq!(pieces, [(&single[..], 13)]);
}

proptest! {
    #[test]
    fn records_frames_hold_all_records_in_pieces_of_whole_frames(
        sizes in proptest::collection::vec(prop_oneof![0..200_usize, 0..100_000_usize], 0..40),
        first in 1..1_000_000_u64,
        piece_size in 1..200_000_usize,
    ) {
        let payload = |nth: usize| vec![nth as u8; sizes[nth]];
        let mut frames = RecordsFrames::new(7);
        // What was put before is forgotten, several frames of it too.
        (5..8).for_each(|lsn| frames.put(lsn, &[1; RECORDS_FRAME_TARGET]));
        frames.clear();
        for nth in 0..sizes.len() {
            frames.put(first + nth as u64, &payload(nth));
        }
        let mut taken = 0;
        let mut pieces = frames.pieces(piece_size).peekable();
        while let Some((mut piece, next)) = pieces.next() {
            prop_assert!(piece.len() >= piece_size || pieces.peek().is_none(), "only the last piece is smaller");
            while !piece.is_empty() {
                let Decoded { request, frame, size } = decode_response(piece).unwrap().unwrap();
                let Response::Records { first: found, records } = frame else { panic!("{frame:?}") };
                prop_assert_eq!((request, found), (7, first + taken as u64));
                let fits = records.payload_size() <= RECORDS_FRAME_TARGET;
                prop_assert!(fits || records.len() == 1, "only a single record may be larger than a frame");
                for record in records.iter() {
                    prop_assert_eq!(record, &payload(taken));
                    taken += 1;
                }
                piece = &piece[size..];
            }
            prop_assert_eq!(next, first + taken as u64);
        }
        prop_assert_eq!(taken, sizes.len());
    }

    #[test]
    fn frames_round_trip_and_truncations_need_more(case in arbitrary(), request: u64, behind in any::<[u8; 5]>()) {
        let run = run(&case.records);
        let (asked, answered) = (case.request(&run), case.response(&run));

        let mut bytes = request_bytes(request, &asked);
        for size in 0..bytes.len() {
            prop_assert_eq!(decode_request_all(&bytes[..size]), Ok(None));
        }
        let size = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(decode_request_all(&bytes), Ok(Some(Decoded { request, frame: asked, size })));

        let mut bytes = response_bytes(request, &answered);
        for size in 0..bytes.len() {
            prop_assert_eq!(decode_response(&bytes[..size]), Ok(None));
        }
        let size = bytes.len();
        bytes.extend(behind);
        prop_assert_eq!(decode_response(&bytes), Ok(Some(Decoded { request, frame: answered, size })));
    }

    #[test]
    fn batches_return_their_records(records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20)) {
        let bytes = run(&records);
        let batch = Batch::new(records.len() as u32, &bytes).unwrap();
        prop_assert_eq!(batch.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), records.clone());
        prop_assert_eq!(batch.payload_size(), records.concat().len());
        prop_assert!(Batch::new(records.len() as u32 + 1, &bytes).is_err());
    }

    // A panic or a size beyond the input fails; so does a frame whose bytes do not say the same when written again.
    #[test]
    fn decoders_never_panic_or_read_beyond_the_input(bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..100), frame_like()], version in 0..=VERSION, body_max in 0..200usize) {
        if let Ok(Some(decoded)) = decode_request(&bytes, version, body_max) {
            prop_assert!(decoded.size <= bytes.len() && decoded.size <= FRAME_HEADER_SIZE + body_max);
            let again = request_bytes(decoded.request, &decoded.frame);
            prop_assert_eq!(decode_request_all(&again), Ok(Some(decoded)));
        }
        if let Ok(Some(decoded)) = decode_response(&bytes) {
            prop_assert!(decoded.size <= bytes.len());
            let again = response_bytes(decoded.request, &decoded.frame);
            prop_assert_eq!(decode_response(&again), Ok(Some(decoded)));
        }
    }
}
