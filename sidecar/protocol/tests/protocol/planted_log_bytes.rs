//! The planted bugs of the log bytes have the effect that they are meant to have.

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize};
use tailwind_protocol::planted::{Bug, plant};
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::SegmentWriter;

/// One append of one record for each letter; the payload of the second starts at byte 152.
fn write(memory: &mut [u8], generation: u64, first: Lsn, letters: &[u8]) -> SegmentIdentity {
    let (log, segment, epoch) = (LogId(1), SegmentId(1), Epoch(1));
    let identity = SegmentIdentity { log, segment, epoch, generation: Generation(generation), size: SegmentSize::MIN };
    let (mut writer, mut end) = SegmentWriter::open(identity, first, memory);
    for payload in letters.chunks(1) {
        end += writer.append(&mut memory[end as usize..], std::iter::once(payload));
    }
    identity
}

fn read(memory: &[u8], identity: &SegmentIdentity) -> String {
    let mut scanner = Scanner::new(memory, identity).expect("a segment header");
    let appends = std::iter::from_fn(|| scanner.next_append().ok());
    appends.flat_map(|append| append.records()).map(|r| format!("{}{}", r.lsn, char::from(r.payload[0]))).collect()
}

#[test]
fn bad_payload_is_accepted_or_skipped() {
    for (bug, expected) in [
        (None, "1a"),
        (Some(Bug::NoPayloadCrc), "1a2x3c"),
        (Some(Bug::HeaderCrcOnly), "1a2x3c"),
        (Some(Bug::ScanSkipsBadEntry), "1a3c"),
    ] {
        plant(bug);
        let mut memory = vec![0; SegmentSize::MIN.bytes() as usize];
        let identity = write(&mut memory, 1, Lsn(1), b"abc");
        memory[SEGMENT_OVERHEAD + 48 + RECORD_HEADER_SIZE] = b'x';
        assert_eq!(read(&memory, &identity), expected, "{bug:?}");
    }
}

#[test]
fn old_records_in_the_buffer_are_accepted_as_new() {
    for (bug, expected) in [(None, "40a"), (Some(Bug::UnseededChain), "40a41b42c")] {
        plant(bug);
        let mut memory = vec![0; SegmentSize::MIN.bytes() as usize];
        write(&mut memory, 1, Lsn(1), b"abc");
        let identity = write(&mut memory, 2, Lsn(40), b"a");
        assert_eq!(read(&memory, &identity), expected, "{bug:?}");
    }
}
