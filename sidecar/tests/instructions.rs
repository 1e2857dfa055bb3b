//! Work for `scripts/instructions.sh`, which has callgrind count the instructions of the append path and of the scan.
//!
//! Each piece is repeated `TAILWIND_REPEAT` times. What a repetition costs is the difference between two runs, so that
//! neither the start nor the test runner counts. Among the other tests each piece is done once.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

#[path = "support/loop_harness.rs"]
mod loop_harness;

use std::hint::black_box;
use std::io::{Read, Write};

use loop_harness::LoopHarness;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::scan;
use tailwind_protocol::segment::SegmentWriter;
use tailwind_protocol::socket::{
    ACK_FRAME_SIZE, Batch, Operations, Request, Response, decode_response, put_batch_record, put_operation,
};
use tailwind_protocol::table::record::{Key, Value};
use tailwind_protocol::table::request::{Operation, Written};

const PAYLOAD: [u8; 100] = [7; 100];
/// As many as a script may repeat without a second segment.
const REPEAT_MAX: u64 = 100;

fn repeat() -> u64 {
    let repeat = std::env::var("TAILWIND_REPEAT").map_or(1, |repeat| repeat.parse().unwrap());
    assert!(repeat <= REPEAT_MAX, "the log must fit into one segment");
    repeat
}

/// Sends the frame that `encode` makes of each request's number, and turns until its `acks` are there.
fn appends(acks: usize, encode: impl FnMut(u64, &mut Vec<u8>)) {
    exchange(LoopHarness::new(), acks, encode);
}

fn exchange(mut harness: LoopHarness, acks: usize, mut encode: impl FnMut(u64, &mut Vec<u8>)) {
    let mut client = harness.client();
    let (mut frames, mut answers) = (Vec::new(), vec![0; acks * ACK_FRAME_SIZE]);
    let mut request = 1;
    for _ in 0..repeat() {
        frames.clear();
        for _ in 0..acks {
            encode(request, &mut frames);
            request += 1;
        }
        client.stream.write_all(&frames).unwrap();
        harness.settle();
        client.stream.read_exact(&mut answers).unwrap();
    }
    let last = decode_response(&answers[(acks - 1) * ACK_FRAME_SIZE..]).unwrap().unwrap();
    assert!(matches!(last.frame, Response::Ack { lsn } if lsn >= request - 1), "{:?}", last.frame);
}

/// One append at a time.
#[test]
fn one_append() {
    appends(1, |request, frames| Request::Append { payload: &PAYLOAD }.encode(request, frames));
}

/// As many in flight as fit into one read.
#[test]
fn five_hundred_appends() {
    appends(500, |request, frames| Request::Append { payload: &PAYLOAD }.encode(request, frames));
}

#[test]
fn batch_of_a_hundred() {
    let mut records = Vec::new();
    (0..100).for_each(|_| put_batch_record(&mut records, &PAYLOAD));
    let batch = Batch::new(100, &records).unwrap();
    appends(1, |request, frames| Request::Batch(batch).encode(request, frames));
}

/// One put to a table at a time.
#[test]
fn one_apply() {
    applies(1);
}

/// Puts to a table, each of a request of its own.
#[test]
fn a_hundred_applies() {
    applies(100);
}

fn applies(acks: usize) {
    exchange(LoopHarness::of_table(SegmentSize::DEFAULT, 1000), acks, |request, frames| {
        let key = (request % 100).to_le_bytes();
        let written = Written::Value(Value::new(&PAYLOAD).unwrap());
        let mut put = Vec::new();
        put_operation(&mut put, &Operation::Write { key: Key::new(&key).unwrap(), written, only_if: None });
        Request::Apply(Operations::new(1, &put).unwrap()).encode(request, frames);
    });
}

#[test]
fn scan_of_a_megabyte() {
    let identity = SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(1),
        epoch: Epoch(1),
        generation: Generation(1),
        size: SegmentSize::try_from(1 << 20).unwrap(),
    };
    let mut bytes = vec![0; 1 << 20];
    let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(1), &mut bytes);
    while writer.room() >= 200 {
        end += writer.append(&mut bytes[end as usize..], std::iter::once(&PAYLOAD[..]));
    }
    for _ in 0..repeat() {
        let report = scan::scan(black_box(&bytes), &identity);
        assert_eq!(report.closure.end.0, end);
    }
}
