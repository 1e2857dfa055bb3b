//! The planted bugs of the log bytes have the effect that they are meant to have.
#![cfg(feature = "planted-bugs")]

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{Bug, plant};
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::SegmentWriter;

/// Three appends of one record each; the payload of the second starts at byte 152.
fn written(memory: &mut [u8], generation: u64, first: Lsn, appends: usize) -> SegmentIdentity {
    let (log, segment, epoch) = (LogId(1), SegmentId(1), Epoch(1));
    let identity = SegmentIdentity { log, segment, epoch, generation: Generation(generation), size: SegmentSize::MIN };
    let (mut writer, mut end) = SegmentWriter::open(identity, first, memory);
    for payload in [b"a", b"b", b"c"].into_iter().take(appends) {
        end += writer.append(&mut memory[end as usize..], std::iter::once(payload.as_slice()));
    }
    identity
}

fn read(memory: &[u8], identity: &SegmentIdentity) -> Vec<(u64, Vec<u8>)> {
    let mut scanner = Scanner::new(memory, identity).expect("a segment header");
    let appends = std::iter::from_fn(|| scanner.next_append().ok());
    appends.flat_map(|append| append.records()).map(|r| (r.lsn.0, r.payload.to_vec())).collect()
}

#[test]
fn bad_payload_is_accepted_or_skipped() {
    for (bug, expected) in [
        (None, vec![(1, b"a")]),
        (Some(Bug::NoPayloadCrc), vec![(1, b"a"), (2, b"x"), (3, b"c")]),
        (Some(Bug::HeaderCrcOnly), vec![(1, b"a"), (2, b"x"), (3, b"c")]),
        (Some(Bug::ScanSkipsBadEntry), vec![(1, b"a"), (3, b"c")]),
    ] {
        plant(bug);
        let mut memory = vec![0; SegmentSize::MIN.bytes() as usize];
        let identity = written(&mut memory, 1, Lsn(1), 3);
        memory[SEGMENT_OVERHEAD + 48 + RECORD_HEADER_SIZE] = b'x';
        let expected: Vec<(u64, Vec<u8>)> = expected.into_iter().map(|(lsn, p)| (lsn, p.to_vec())).collect();
        assert_eq!(read(&memory, &identity), expected, "{bug:?}");
    }
    plant(None);
}

#[test]
fn old_records_in_the_buffer_are_accepted_as_new() {
    for (bug, records) in [(None, 1), (Some(Bug::UnseededChain), 3)] {
        plant(bug);
        let mut memory = vec![0; SegmentSize::MIN.bytes() as usize];
        written(&mut memory, 1, Lsn(1), 3);
        let identity = written(&mut memory, 2, Lsn(40), 1);
        assert_eq!(read(&memory, &identity).len(), records, "{bug:?}");
    }
    plant(None);
}
