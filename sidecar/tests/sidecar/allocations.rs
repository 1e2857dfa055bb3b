//! The record path allocates nothing: an append through the socket, placed, posted to three backups in shared memory,
//! completed and acknowledged, counted by an allocator that counts.

use std::io::{Read, Write};
use std::sync::Arc;

use bytes::Bytes;

use crate::loop_harness::{Client, LoopHarness};
use tailwind_protocol::ids::{Epoch, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentSize, record_size};
use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{ACK_FRAME_SIZE, Operations, Request, Response, decode_response, put_operation};
use tailwind_protocol::table::acked::LINE_ENTRIES;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::hash::Buckets;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Expected, Mismatch, Operation, Written};
use tailwind_sidecar::path::{Command, MoveBatch, Offered};

/// Sends these frames, turns until every ack is there, reads the acks into `acks`.
fn exchange(harness: &mut LoopHarness, client: &mut Client, frames: &[u8], acks: &mut [u8]) {
    client.stream.write_all(frames).unwrap();
    harness.settle();
    client.stream.read_exact(acks).unwrap();
}

#[test]
fn an_append_allocates_nothing() {
    let mut harness = LoopHarness::new();
    harness.tell_followed(true);
    let mut client = harness.client();
    const APPENDS: usize = 500;
    let mut frames = Vec::new();
    for request in 0..APPENDS as u64 {
        Request::Append { payload: &[7; 100] }.encode(request, &mut frames);
    }
    let mut acks = vec![0; APPENDS * ACK_FRAME_SIZE];
    exchange(&mut harness, &mut client, &frames, &mut acks);
    let counted = allocation_counter::measure(|| {
        for _ in 0..20 {
            exchange(&mut harness, &mut client, &frames, &mut acks);
        }
    });
    let last = decode_response(&acks[(APPENDS - 1) * ACK_FRAME_SIZE..]).unwrap().unwrap();
    assert_eq!(last.frame, Response::Ack { lsn: 21 * APPENDS as u64 }, "every append was acknowledged");
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// Puts of many keys, also more in a request than most have.
#[test]
fn an_apply_allocates_nothing() {
    apply(&mut LoopHarness::of_table(SegmentSize::DEFAULT, 2000));
}

#[test]
fn an_apply_that_mirrors_hear_of_allocates_nothing() {
    let mut harness = LoopHarness::of_table(SegmentSize::DEFAULT, 2000);
    let changed = Arc::new(ChangedLines::new(Buckets::for_keys(2000).entries() / LINE_ENTRIES, Lsn(0)));
    let (reply, mut noted) = tokio::sync::oneshot::channel();
    harness.command(Command::NoteChanges(Epoch(1), Arc::clone(&changed), Arc::default(), reply));
    harness.settle();
    assert_eq!(noted.try_recv(), Ok(()));
    apply(&mut harness);
    let mut lines = 0;
    let acked = changed.take(|_, bits| lines += bits.count_ones());
    assert_eq!((acked, lines > 100), (Lsn(2 * 1050), true), "{lines} lines have changed");
}

fn apply(harness: &mut LoopHarness) {
    let mut client = harness.client();
    let mut frames = Vec::new();
    const APPLIES: u64 = 100;
    for request in 0..APPLIES {
        let keys: Vec<_> = (0..=request % 20).map(|n| [request as u8, n as u8]).collect();
        let write = |key| Operation::Write {
            key: Key::new(key).unwrap(),
            written: Written::Value(Value::new(&[7; 20]).unwrap()),
            only_if: None,
        };
        let mut operations = Vec::new();
        keys.iter().for_each(|key| put_operation(&mut operations, &write(key)));
        Request::Apply(Operations::new(keys.len() as u16, &operations).unwrap()).encode(request, &mut frames);
    }
    let mut acks = vec![0; APPLIES as usize * ACK_FRAME_SIZE];
    exchange(harness, &mut client, &frames, &mut acks);
    let counted = allocation_counter::measure(|| exchange(harness, &mut client, &frames, &mut acks));
    let last = decode_response(&acks[(APPLIES as usize - 1) * ACK_FRAME_SIZE..]).unwrap().unwrap();
    assert_eq!(last.frame, Response::Ack { lsn: 2 * 1050 }, "every request was acknowledged");
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// They wait for acks and for a barrier, each with an answer of its own.
#[test]
fn a_mismatch_allocates_nothing() {
    let mut harness = LoopHarness::of_table(SegmentSize::DEFAULT, 1000);
    let mut client = harness.client();
    const APPLIES: u64 = 20;
    let mut frames = Vec::new();
    let mut told = Vec::new();
    for request in 0..APPLIES {
        let key = Key::new(b"absent").unwrap();
        let mut operations = Vec::new();
        put_operation(&mut operations, &Operation::Require { key, expected: Expected::from_number(7) });
        let written = Written::Value(Value::new(b"v").unwrap());
        put_operation(&mut operations, &Operation::Write { key, written, only_if: None });
        Request::Apply(Operations::new(2, &operations).unwrap()).encode(request, &mut frames);
        Response::Mismatch(Mismatch { operation: 0, now: None }).encode(request, &mut told);
    }
    let mut answers = vec![0; told.len()];
    let mut exchange = || {
        client.stream.write_all(&frames).unwrap();
        let mut taken = 0;
        harness.until("every answer", |_| {
            taken += client.stream.read(&mut answers[taken..]).unwrap_or(0);
            (taken == told.len()).then_some(())
        });
        assert!(answers == told, "each request was answered");
    };
    exchange();
    let counted = allocation_counter::measure(|| (0..20).for_each(|_| exchange()));
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// Each batch of candidates has a record that is its key's last one, and one that no key has.
#[test]
fn a_move_allocates_nothing() {
    const KEYS: u8 = 50;
    let mut harness = LoopHarness::of_table(SegmentSize::DEFAULT, 1000);
    let mut client = harness.client();
    let value = Value::new(&[7; 100]).unwrap();
    let record = |key| KeyedRecord::Put { key, value, more: false };
    let (mut operations, mut segment) = (Vec::new(), vec![0; SEGMENT_OVERHEAD]);
    let names: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    for name in &names {
        let key = Key::new(name).unwrap();
        put_operation(&mut operations, &Operation::Write { key, written: Written::Value(value), only_if: None });
        let at = segment.len();
        segment.resize(at + record_size(record(key).len()), 0);
        record(key).copy_to(&mut segment[at + RECORD_HEADER_SIZE..][..record(key).len()]);
    }
    let mut frame = Vec::new();
    Request::Apply(Operations::new(KEYS.into(), &operations).unwrap()).encode(1, &mut frame);
    exchange(&mut harness, &mut client, &frame, &mut [0; ACK_FRAME_SIZE]);

    let length = record(Key::new(&names[0]).unwrap()).len() as u32;
    let offered = |nth: u32| {
        let at = Offset(SEGMENT_OVERHEAD as u32 + nth * record_size(length as usize) as u32);
        Offered { at, lsn: Lsn(u64::from(nth) + 1), length }
    };
    let bytes = Bytes::from(segment);
    // The one before has been moved.
    let batch = |nth: u32| {
        let offered = (nth.saturating_sub(1)..=nth).map(offered).collect();
        MoveBatch { segment: SegmentId(1), bytes: bytes.clone(), offered }
    };
    let (replies, moves): (Vec<_>, Vec<_>) = (0..KEYS.into())
        .map(|nth| {
            let (reply, answer) = tokio::sync::oneshot::channel();
            (answer, Command::Move(Epoch(1), batch(nth), reply))
        })
        .unzip();
    let mut moves = moves.into_iter();
    let mut move_some = |count: usize| {
        for command in moves.by_ref().take(count) {
            harness.command(command);
            harness.settle();
        }
    };
    move_some(10);
    let counted = allocation_counter::measure(|| move_some(KEYS.into()));
    for (nth, mut reply) in replies.into_iter().enumerate() {
        let moved = reply.try_recv().unwrap();
        assert_eq!((moved.judged, moved.moved), (1 + usize::from(nth > 0), 1), "candidate {nth}");
    }
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn an_append_through_a_ring_allocates_nothing() {
    let mut harness = LoopHarness::new();
    let mut client = harness.ring_client();
    const APPENDS: usize = 500;
    let mut frames = Vec::new();
    for request in 0..APPENDS as u64 {
        Request::Append { payload: &[7; 100] }.encode(request, &mut frames);
    }
    let mut acks = vec![0; APPENDS * ACK_FRAME_SIZE];
    let mut exchange = |sleeps: bool| {
        let ring = client.ring.as_mut().unwrap();
        ring.answers.pending().unwrap();
        // A client that sleeps is woken through its socket, which allocates nothing either.
        assert!(!sleeps || ring.answers.may_sleep());
        assert_eq!(ring.requests.write(&frames).unwrap(), frames.len());
        ring.requests.publish();
        harness.settle();
        assert_eq!(ring.answers.read(&mut acks).unwrap(), acks.len());
        ring.answers.release();
        let woken = client.stream.read(&mut [0; 100]).is_ok();
        assert_eq!(woken, sleeps);
    };
    exchange(true);
    let counted = allocation_counter::measure(|| (0..20).for_each(|round| exchange(round % 2 == 0)));
    let last = decode_response(&acks[(APPENDS - 1) * ACK_FRAME_SIZE..]).unwrap().unwrap();
    assert_eq!(last.frame, Response::Ack { lsn: 21 * APPENDS as u64 }, "every append was acknowledged");
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn a_batch_allocates_nothing() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    let mut records = Vec::new();
    for _ in 0..100 {
        tailwind_protocol::socket::put_batch_record(&mut records, &[7; 100]);
    }
    let batch = tailwind_protocol::socket::Batch::new(100, &records).unwrap();
    let mut frame = Vec::new();
    Request::Batch(batch).encode(1, &mut frame);
    let mut ack = [0; ACK_FRAME_SIZE];
    exchange(&mut harness, &mut client, &frame, &mut ack);
    let counted =
        allocation_counter::measure(|| (0..20).for_each(|_| exchange(&mut harness, &mut client, &frame, &mut ack)));
    assert_eq!(decode_response(&ack).unwrap().unwrap().frame, Response::Ack { lsn: 2100 });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
