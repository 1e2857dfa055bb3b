//! What the scan knows about a tail that is no longer what it was: damage to what was acknowledged must never look like
//! the end of the log, and a write that only broke off must never look like damage.

use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{
    CHECKSUM_SIZE, MARKS_SIZE, RecordHeader, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize,
};
use tailwind_protocol::scan::{Tail, scan};
use tailwind_protocol::segment::SegmentWriter;

const FIRST: Lsn = Lsn(41);

fn identity() -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(3),
        epoch: Epoch(2),
        generation: Generation(0x1122_3344_5566_7788),
        size: SegmentSize::MIN,
    }
}

/// A segment as a primary wrote it, each append acknowledged `behind` appends later, and marked at the end if `idle`.
struct Written {
    bytes: Vec<u8>,
    /// Where each append ended.
    ends: Vec<usize>,
    end: usize,
}

fn write(payloads: &[Vec<u8>], behind: usize, idle: bool) -> Written {
    let mut bytes = vec![0; identity().size.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity(), FIRST, &mut bytes);
    let mut ends = vec![end as usize];
    for payload in payloads {
        if let Some(acked) = ends.len().checked_sub(behind + 1) {
            writer.acknowledged(Offset(ends[acked] as u32));
        }
        end += writer.append(&mut bytes[end as usize..], std::iter::once(payload.as_slice()));
        ends.push(end as usize);
    }
    if idle {
        writer.acknowledged(Offset(end));
        end += writer.mark(&mut bytes[end as usize..]);
    }
    Written { bytes, ends, end: end as usize }
}

fn tail(bytes: &[u8]) -> Tail {
    scan(bytes, &identity()).tail()
}

fn some_payloads(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|nth| (0..nth * 13 % 90).map(|byte| (byte * 7 + nth) as u8).collect()).collect()
}

#[test]
fn any_flipped_bit_before_the_marks_is_damage() {
    let Written { bytes, ends, .. } = write(&some_payloads(12), 1, true);
    let acked = ends[12];
    assert!(!tail(&bytes).is_damaged());
    for bit in 0..acked * 8 {
        let mut rotten = bytes.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        let found = tail(&rotten);
        assert!(found.is_damaged(), "bit {bit}: {found:?}");
        assert!(found.acked.0 as usize <= acked + CHECKSUM_SIZE, "bit {bit}: no more than was acknowledged: {found:?}");
    }
}

#[test]
fn flipped_bit_in_a_mark_loses_nothing() {
    let Written { bytes, ends, end } = write(&some_payloads(5), 1, true);
    for bit in ends[5] * 8..end * 8 {
        let mut rotten = bytes.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        let found = tail(&rotten);
        assert_eq!(found.closure.last, Lsn(FIRST.0 + 4), "bit {bit}");
    }
}

/// If the writer waits for each ack before the next append, the entry after next vouches for it, without any mark.
#[test]
fn all_but_the_last_two_appends_are_proven_under_load() {
    let Written { bytes, ends, .. } = write(&some_payloads(12), 0, false);
    for bit in 0..ends[10] * 8 {
        let mut rotten = bytes.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        assert!(tail(&rotten).is_damaged(), "bit {bit}");
    }
}

#[test]
fn lost_sector_is_damage() {
    let Written { bytes, ends, .. } = write(&some_payloads(60), 2, true);
    for sector in 0..ends[60] / 512 {
        for filling in [0, 0xff, b'C', b'R'] {
            let mut rotten = bytes.clone();
            rotten[sector * 512..(sector + 1) * 512].fill(filling);
            assert!(tail(&rotten).is_damaged(), "sector {sector}, filled with {filling}");
        }
    }
}

#[test]
fn interrupted_write_is_no_damage() {
    let Written { bytes, end, .. } = write(&some_payloads(12), 3, true);
    for cut in 0..end {
        let mut torn = bytes.clone();
        torn[cut..].fill(0);
        assert!(!tail(&torn).is_damaged(), "cut at {cut}");
    }
}

/// What is in flight may land in any order, and nothing of it was acknowledged when it was written.
#[test]
fn hole_in_unacknowledged_bytes_is_no_damage() {
    let behind = 4;
    let Written { bytes, ends, end } = write(&some_payloads(20), behind, false);
    for hole in (ends[20 - behind]..end).step_by(8) {
        for size in [8, 64, 128] {
            let mut torn = bytes.clone();
            torn[hole..(hole + size).min(end)].fill(0);
            assert!(!tail(&torn).is_damaged(), "hole of {size} at {hole}");
        }
    }
}

/// An app may put anything into its payloads, also what looks like entries. Where nothing else is wrong they mean nothing.
#[test]
fn entries_inside_payloads_are_ignored_in_a_whole_log() {
    let inner = write(&some_payloads(8), 0, true);
    let payload = inner.bytes[SEGMENT_OVERHEAD - CHECKSUM_SIZE..inner.end].to_vec();
    let Written { bytes, end, .. } = write(&[payload.clone(), payload], 2, false);
    let found = tail(&bytes);
    assert_eq!((found.closure.end.0 as usize, found.is_damaged()), (end, false));
}

/// The worst that an app can write: every word of a segment looks like a checksum entry with a long record behind it.
#[test]
fn adversarial_payloads_do_not_slow_the_scan() {
    let size = identity().size.bytes() as usize;
    let mut bytes = vec![0; size];
    let (_, end) = SegmentWriter::open(identity(), FIRST, &mut bytes);
    let header = RecordHeader { length: 30_000, payload_crc: 1, lsn: Lsn(FIRST.0 + 9), epoch: identity().epoch };
    let mut bait = header.to_bytes().to_vec();
    bait.extend_from_slice(b"C1234567C12345\0\xe7");
    for (place, byte) in bytes[end as usize + 8..].iter_mut().zip(bait.iter().cycle()) {
        *place = *byte;
    }
    assert!(!tail(&bytes).is_damaged());
}

proptest! {
    #[test]
    fn corruption_anywhere_is_found_or_harmless(
        lengths in vec(0_usize..300, 1..40),
        at in 0.0..1.0_f64,
        garbage in vec(any::<u8>(), 1..700),
    ) {
        let payloads: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0xa5; *length]).collect();
        let Written { bytes, ends, end } = write(&payloads, 1, true);
        let acked = ends[payloads.len()];
        let mut rotten = bytes.clone();
        let from = (at * (end - MARKS_SIZE) as f64) as usize;
        // The marks themselves are left alone: see the window in docs/protocol.md.
        let to = (from + garbage.len()).min(acked);
        rotten[from..to].copy_from_slice(&garbage[..to - from]);
        let found = tail(&rotten);
        let whole = found.closure.end.0 as usize >= acked;
        prop_assert!(whole || found.is_damaged(), "{found:?}");
    }
}
