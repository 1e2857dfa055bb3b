//! Bytes of a table that others may have written: payloads of keyed records, entries of a mirrored index, and operations.

use tailwind_protocol::board::mirror::MirrorLine;
use tailwind_protocol::board::{BoardIdentity, LINE_SIZE, Line};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::segment::Payload;
use tailwind_protocol::socket::{Operations, put_operation};
use tailwind_protocol::table::entry::{ENTRY_SIZE, Entry, EntryBytes};
use tailwind_protocol::table::hash::HashKey;
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{KEYED_MAGIC, KeyedRecord, Revision};
use tailwind_protocol::table::request::Operation;

/// Any bytes as the payload of a record, whose LSN the first 8 have: what is believed is byte by byte what would be written. Half
/// of the inputs get the right first bytes, or few would ever come past them.
pub fn keyed_record(data: &[u8]) {
    let Some((lsn, payload)) = data.split_first_chunk::<8>() else { return };
    let lsn = Lsn(u64::from_le_bytes(*lsn));
    let mut payload = payload.to_vec();
    if lsn.0.is_multiple_of(2)
        && let Some(magic) = payload.first_chunk_mut()
    {
        *magic = KEYED_MAGIC;
    }
    let Ok(record) = KeyedRecord::decode(&payload, lsn) else { return };
    let mut written = vec![0xAA; record.len()];
    record.copy_to(&mut written);
    assert_eq!(written, payload);
    assert!((1..=1024).contains(&record.key().as_bytes().len()));
    match record {
        KeyedRecord::Put { .. } => assert_eq!(record.revision(lsn), Revision::of(lsn)),
        KeyedRecord::Delete { .. } => assert_eq!((record.revision(lsn), record.value()), (None, None)),
        KeyedRecord::Move { revision, .. } => assert!(revision.lsn() < lsn && !record.has_more()),
    }
}

/// Any bytes as an entry: what is believed is byte by byte what a primary would have written, and its places mean positions that
/// have them. Half of the inputs get a right CRC.
pub fn entry(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let mut bytes: EntryBytes = [0; ENTRY_SIZE];
    let count = data.len().min(ENTRY_SIZE);
    bytes[..count].copy_from_slice(&data[..count]);
    let seed = HashKey([*choice; 16]).seed();
    if choice % 2 == 1 {
        let mut hasher = crc32fast::Hasher::new_with_initial(seed);
        hasher.update(&bytes[..ENTRY_SIZE - 4]);
        bytes[ENTRY_SIZE - 4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
    let Ok(found) = Entry::decode(&bytes, seed) else { return };
    let Some(entry) = found else { return assert_eq!(bytes, [0; ENTRY_SIZE]) };
    assert_eq!(entry.encode(seed), bytes);
    let Some(present) = entry.present else { return };
    let window = Window::new(SegmentSize::DEFAULT);
    let end = SegmentId(present.revision.lsn().0);
    assert!(present.word.new_place().is_some());
    for place in [present.word.new_place(), present.word.old_place()].into_iter().flatten() {
        if let Some(position) = window.position(place, end) {
            assert_eq!(window.place(position), Some(place));
        }
        assert_eq!(present.word.publish(place).new_place(), Some(place));
        assert_eq!(present.word.publish(place).old_place(), present.word.new_place());
    }
}

/// Any bytes as the line of a mirror: what is believed is byte by byte what a primary would have written, and each bucket has a
/// place in a part of the memory. Half of the inputs get a right CRC.
pub fn line_2(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let mut line: Line = [0; LINE_SIZE];
    let count = data.len().min(LINE_SIZE);
    line[..count].copy_from_slice(&data[..count]);
    let (log, generation) = (LogId(u128::from(*choice)), Generation(7));
    let identity = BoardIdentity { log, epoch: Epoch(1), generation, segment_size: SegmentSize::DEFAULT };
    if choice % 2 == 1 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&identity.encode()[8..40]);
        hasher.update(&line[..LINE_SIZE - 4]);
        line[LINE_SIZE - 4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
    let Ok(found) = MirrorLine::decode(&line, &identity) else { return };
    let Some(mirror) = found else { return assert_eq!(line, [0; LINE_SIZE]) };
    assert_eq!(mirror.encode(&identity), line);
    let (size, last) = (mirror.part_size, mirror.buckets.number() - 1);
    let (part, at) = size.bucket_at(last);
    assert!(part + 1 == size.parts(mirror.buckets) && at + 256 <= size.bytes());
    assert_eq!(u64::from(part) * u64::from(size.bytes()) + u64::from(at), u64::from(last) * 256);
}

/// Operations that were believed: written again they are the same bytes, and they make a request with a write.
pub(crate) fn check_operations(operations: &Operations<'_>) {
    assert_eq!(Operations::new(operations.count(), operations.as_bytes()).as_ref(), Ok(operations));
    let acted = operations.act(|apply| {
        assert_eq!(apply.operations().len(), usize::from(operations.count()));
        let mut bytes = vec![];
        apply.operations().iter().for_each(|operation| put_operation(&mut bytes, operation));
        assert_eq!(bytes, operations.as_bytes());
        let writes = apply.operations().iter().filter(|operation| matches!(operation, Operation::Write { .. }));
        assert_eq!(writes.count(), usize::from(apply.write_count()));
        assert!(apply.write_count() > 0);
    });
    acted.expect("no frame as short as these has a value that is too long");
}
