//! What the scan must never get wrong. A write that died half-way may leave any part of itself in a backup's memory, a
//! buffer may hold an earlier life, memory may flip a bit: of all that the scan accepts exactly the appends that are
//! whole, up to the first that is not.
//!
//! The judge is [`Log::intact`]. Small logs are damaged exhaustively, large ones at random.

use crate::logs::{FIRST, Log, Payload, Payloads, identity, read};
use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{
    CHECKSUM_SIZE, Chain, Closure, FIRST_LSN_MAX, Lag, MARKS_SIZE, RECORD_HEADER_SIZE, RecordHeader,
    SEGMENT_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize, record_size,
};
use tailwind_protocol::scan::{PiecewiseScanner, Record, Scanner, StopReason, scan, scan_on, verify};
use tailwind_protocol::segment::SegmentWriter;

/// What one PCIe write or one cache line carries: a torn write is made of whole ones.
const LINE: usize = 64;

/// Bytes without zeros, so that every byte that is missing shows.
fn payload(length: usize) -> Payload {
    (0..length).map(|i| (i % 251 + 1) as u8).collect()
}

/// Four appends of every shape: one record, a batch with an empty record, nothing but an empty record, a long one.
fn small_log_of(identity: SegmentIdentity) -> Log {
    Log::write(
        identity,
        vec![vec![payload(12)], vec![payload(6), vec![], payload(40)], vec![vec![]], vec![payload(200)]],
    )
}

fn small_log() -> Log {
    small_log_of(identity())
}

/// Identities of other lives that the same buffer may have had, each different in one thing only.
fn other_lives() -> Vec<SegmentIdentity> {
    let now = identity();
    vec![
        SegmentIdentity { generation: Generation(now.generation.0 ^ 1), ..now },
        SegmentIdentity { epoch: Epoch(now.epoch.0 - 1), ..now },
        SegmentIdentity { segment: SegmentId(now.segment.0 - 1), ..now },
        SegmentIdentity { log: LogId(now.log.0 ^ 1), ..now },
    ]
}

// ---- The paper's torn states (ATC'18, Figure 5), and the one that it leaves out -------------------------------------

/// The second append of a log, of which `missing` bytes at the end have not landed, and what the scan says of it.
fn tear(missing: usize) -> (usize, StopReason) {
    let log = Log::write(identity(), vec![vec![payload(100)], vec![payload(100)]]);
    let mut torn = log.bytes.clone();
    torn[log.end() - missing..].fill(0);
    let why = log.check(&torn).why;
    (read(&torn, &log.identity).len(), why)
}

#[test]
fn torn_state_complete() {
    assert_eq!(tear(0), (2, StopReason::Unwritten));
}

#[test]
fn torn_state_checksum_torn() {
    (1..=CHECKSUM_SIZE).for_each(|missing| assert_eq!(tear(missing), (1, StopReason::Checksum), "{missing} missing"));
}

#[test]
fn torn_state_object_torn() {
    let padding = 4;
    assert_eq!(tear(CHECKSUM_SIZE + padding), (1, StopReason::Checksum), "padding is zero anyway");
    for missing in 1..=100 {
        assert_eq!(tear(CHECKSUM_SIZE + padding + missing), (1, StopReason::PayloadCrc), "{missing} missing");
    }
}

#[test]
fn torn_state_header_torn() {
    let body = record_size(100) - RECORD_HEADER_SIZE + CHECKSUM_SIZE;
    let header = |landed: usize| tear(body + RECORD_HEADER_SIZE - landed).1;
    assert_eq!(header(0), StopReason::Unwritten);
    (1..12).for_each(|landed| assert_eq!(header(landed), StopReason::LengthEcho, "{landed} landed"));
    (12..17).for_each(|landed| assert!(matches!(header(landed), StopReason::Lsn { .. }), "{landed} landed"));
    // LSN and epoch are small numbers: after their first bytes the zeros that are missing are there.
    (17..25).for_each(|landed| assert!(matches!(header(landed), StopReason::Epoch { .. }), "{landed} landed"));
    (25..=32).for_each(|landed| assert_eq!(header(landed), StopReason::PayloadCrc, "{landed} landed"));
}

// ---- Parts of a write ----------------------------------------------------------------------------------------------

#[test]
fn every_prefix_yields_the_appends_that_it_holds() {
    let log = small_log();
    let mut landed = vec![0; log.bytes.len()];
    for prefix in 0..=log.end() {
        landed[..prefix].copy_from_slice(&log.bytes[..prefix]);
        let held = log.closures.iter().filter(|closure| closure.end.0 as usize <= prefix).count();
        assert_eq!(log.intact(&landed), held.checked_sub(1), "the judge itself, prefix {prefix}");
        log.check(&landed);
        log.check(&landed[..prefix]);
    }
}

#[test]
fn every_subset_of_cache_lines_yields_a_prefix() {
    let shapes: [&[&[usize]]; 4] = [
        &[&[500]],
        &[&[100], &[128], &[100]],
        &[&[0, 0, 0, 0, 0, 0], &[64, 8, 64], &[0]],
        &[&[16; 5], &[96, 0, 17, 30]],
    ];
    // Eight alignments of the write within its first line, over memory that was zeroed and over an earlier life.
    for (shape, shift) in shapes.iter().flat_map(|shape| (0..8).map(move |shift| (*shape, shift * 8))) {
        let last = shape.iter().map(|lengths| lengths.iter().map(|length| payload(*length)).collect());
        let appends: Vec<Payloads> = std::iter::once(vec![payload(shift)]).chain(last).collect();
        let log = Log::write(identity(), appends.clone());
        let lives = other_lives().into_iter().map(|identity| Log::write(identity, appends.clone()).bytes);
        for background in std::iter::once(vec![0; log.bytes.len()]).chain(lives) {
            every_subset_of_lines(&log, log.end_of(1), background);
        }
    }
}

/// Lays every subset of the 64-byte lines from `start` to the end of `log` over `memory`.
fn every_subset_of_lines(log: &Log, start: usize, mut memory: Vec<u8>) {
    let background = memory.clone();
    memory[..start].copy_from_slice(&log.bytes[..start]);
    let lines: Vec<_> = (start / LINE..log.end().div_ceil(LINE))
        .map(|line| (line * LINE).max(start)..((line + 1) * LINE).min(log.end()))
        .collect();
    assert!((8..=10).contains(&lines.len()), "{} lines: too few to tell, or too many to try", lines.len());
    for subset in 0..1_u32 << lines.len() {
        for (number, line) in lines.iter().enumerate() {
            let source = if subset >> number & 1 == 1 { &log.bytes } else { &background };
            memory[line.clone()].copy_from_slice(&source[line.clone()]);
        }
        log.check(&memory);
    }
}

#[test]
fn every_hole_ends_the_log_before_it() {
    let log = small_log();
    let mut holed = log.bytes.clone();
    for start in 0..log.end() {
        for end in start..log.end() {
            holed[end] = 0;
            log.check(&holed);
        }
        holed[start..log.end()].copy_from_slice(&log.bytes[start..log.end()]);
    }
}

#[test]
fn batch_is_accepted_whole_or_not_at_all() {
    let batch: Payloads = (0..20).map(payload).collect();
    let log = Log::write(identity(), vec![vec![payload(8)], batch.clone()]);
    for landed in log.end_of(1)..log.end() {
        let mut torn = log.bytes.clone();
        torn[landed..].fill(0);
        assert_eq!(read(&torn, &log.identity), [vec![payload(8)]], "{landed} bytes landed");
    }
    assert_eq!(read(&log.bytes, &log.identity), [vec![payload(8)], batch]);
}

// ---- Bits that flip ------------------------------------------------------------------------------------------------

#[test]
fn every_bit_flip_ends_the_log_before_its_append() {
    let log = small_log();
    let mut flipped = log.bytes.clone();
    for bit in 0..log.end() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        let before = log.closures.iter().filter(|closure| closure.end.0 as usize <= bit / 8).count();
        assert_eq!(log.intact(&flipped), before.checked_sub(1), "the judge itself, bit {bit}");
        log.check(&flipped);
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn bit_flip_in_the_segment_header_leaves_nothing() {
    let log = small_log();
    for bit in 0..SEGMENT_OVERHEAD * 8 {
        let mut flipped = log.bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let report = scan(&flipped, &log.identity);
        assert_eq!(report.closure, Closure::default());
        // The first LSN is all that the reader does not know beforehand: there the checksum entry tells.
        match report.stop.why {
            StopReason::SegmentHeader => assert_eq!(report.stop.at, Offset(0)),
            why => assert_eq!((report.stop.at, why), (Offset(SEGMENT_HEADER_SIZE as u32), StopReason::Checksum)),
        }
    }
}

#[test]
fn bit_flip_beyond_the_end_changes_nothing() {
    let log = small_log();
    let whole = scan(&log.bytes, &log.identity);
    let mut flipped = log.bytes.clone();
    for bit in log.end() * 8..log.bytes.len() * 8 {
        flipped[bit / 8] ^= 1 << (bit % 8);
        let report = scan(&flipped, &log.identity);
        assert_eq!(report.closure, whole.closure, "bit {bit}");
        assert_eq!(report.stop.at, whole.stop.at, "bit {bit}");
        flipped[bit / 8] ^= 1 << (bit % 8);
    }
}

// ---- Bytes that belong elsewhere -----------------------------------------------------------------------------------

#[test]
fn old_records_in_the_buffer_are_never_accepted() {
    let log = small_log();
    for earlier in other_lives().into_iter().map(small_log_of) {
        assert_eq!(log.intact(&earlier.bytes), None);
        log.check(&earlier.bytes);
        // The new log has landed up to any byte, the old one shows behind it: same sizes, so every entry is in its place.
        let mut memory = earlier.bytes.clone();
        for landed in 0..log.end() {
            memory[landed] = log.bytes[landed];
            log.check(&memory);
        }
    }
}

#[test]
fn append_is_accepted_in_its_own_place_only() {
    let appends = vec![vec![payload(24)]; 4];
    let log = Log::write(identity(), appends);
    let size = log.end_of(1) - SEGMENT_OVERHEAD;
    let place = |append: usize| SEGMENT_OVERHEAD + append * size..SEGMENT_OVERHEAD + (append + 1) * size;
    for (from, to) in (0..4).flat_map(|from| (0..5).map(move |to| (from, to))).filter(|(from, to)| from != to) {
        let mut moved = log.bytes.clone();
        moved.copy_within(place(from), place(to).start);
        assert_eq!(log.intact(&moved), Some(to), "append {from} in the place of {to}");
        log.check(&moved);
    }
    let mut shifted = log.bytes.clone();
    shifted.copy_within(SEGMENT_OVERHEAD..log.end(), SEGMENT_OVERHEAD + 8);
    log.check(&shifted);
}

// ---- Each check alone ----------------------------------------------------------------------------------------------

/// A segment with one append that a hand forged: these records, sealed by the chain that fits them.
fn forged(records: &[([u8; RECORD_HEADER_SIZE], &[u8])]) -> Vec<u8> {
    let opening = Log::write(identity(), vec![]);
    let mut bytes = opening.bytes[..SEGMENT_OVERHEAD].to_vec();
    let mut chain = opening.closures[0].chain;
    for (header, body) in records {
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(body);
        chain = chain.extend(header);
    }
    bytes.extend_from_slice(&chain.seal(Lag::UNKNOWN).1);
    bytes.resize(identity().size.bytes() as usize, 0);
    bytes
}

/// Asserts that forged records are refused, for this reason and at the first of them.
fn assert_refused(records: &[([u8; RECORD_HEADER_SIZE], &[u8])], why: StopReason) {
    let report = scan(&forged(records), &identity());
    assert_eq!((report.closure.end, report.stop.why), (Offset(SEGMENT_OVERHEAD as u32), why));
}

#[test]
fn each_check_rejects_what_the_others_accept() {
    let body = *b"payload\0";
    let good =
        RecordHeader { length: 7, payload_crc: crc32fast::hash(b"payload"), lsn: FIRST, epoch: identity().epoch };
    let whole = scan(&forged(&[(good.to_bytes(), &body)]), &identity());
    assert_eq!(whole.closure.last, FIRST, "the forger knows how");

    let patched = |at: usize, byte: u8| {
        let mut header = good.to_bytes();
        header[at] = byte;
        header
    };
    let found = Lsn(42);
    assert_refused(
        &[(RecordHeader { lsn: found, ..good }.to_bytes(), &body)],
        StopReason::Lsn { found, expected: Lsn(41) },
    );
    let found = Epoch(1);
    let older = RecordHeader { epoch: found, ..good };
    assert_refused(&[(older.to_bytes(), &body)], StopReason::Epoch { found, expected: Epoch(2) });
    assert_refused(&[(RecordHeader { payload_crc: 1, ..good }.to_bytes(), &body)], StopReason::PayloadCrc);
    assert_refused(&[(good.to_bytes(), b"payload!")], StopReason::Padding);
    assert_refused(&[(patched(4, 6), &body)], StopReason::LengthEcho);
    (1..4).for_each(|at| assert_refused(&[(patched(at, 1), &body)], StopReason::Reserved));
    (1..=255).filter(|kind| !b"RC".contains(kind)).for_each(|kind| {
        assert_refused(&[(patched(0, kind), &body)], StopReason::UnknownType(kind));
    });
    assert_refused(&[(patched(0, 0), &body)], StopReason::Unwritten);
    let again = scan(&forged(&[(good.to_bytes(), &body), (good.to_bytes(), &body)]), &identity());
    assert!(matches!(again.stop.why, StopReason::Lsn { .. }), "the second record of an append is checked too");
    assert_eq!(again.closure.end, Offset(SEGMENT_OVERHEAD as u32));
}

#[test]
fn lengths_up_to_the_largest_number_stay_within_bounds() {
    let header = RecordHeader { length: 0, payload_crc: 0, lsn: FIRST, epoch: identity().epoch };
    let room = identity().size.bytes() - (SEGMENT_OVERHEAD + RECORD_HEADER_SIZE) as u32;
    for length in [room + 1, room + 8, identity().size.bytes(), i32::MAX as u32, u32::MAX - 7, u32::MAX] {
        assert_refused(&[(RecordHeader { length, ..header }.to_bytes(), &[])], StopReason::Bounds);
    }
    // Fits to the last byte, but leaves no room for a checksum entry.
    let mut bytes = vec![0; room as usize];
    bytes.fill(7);
    let greedy = RecordHeader { length: room, payload_crc: crc32fast::hash(&bytes), ..header };
    let full = &forged(&[(greedy.to_bytes(), &bytes)])[..identity().size.bytes() as usize];
    assert_eq!(scan(full, &identity()).stop.why, StopReason::Bounds);
}

// ---- Ends of a segment ---------------------------------------------------------------------------------------------

#[test]
fn empty_record_is_a_record() {
    let log = Log::write(identity(), vec![vec![vec![]], vec![vec![], vec![]]]);
    assert_eq!(log.check(&log.bytes).why, StopReason::Unwritten);
    assert_eq!(log.closures[2].last, Lsn(43));
}

#[test]
fn records_may_fill_a_segment_up_to_the_room_for_marks() {
    let room = identity().size.bytes() as usize - SEGMENT_OVERHEAD - MARKS_SIZE;
    let largest = room - CHECKSUM_SIZE - RECORD_HEADER_SIZE;
    let rest = |used: usize| room - used - 2 * (CHECKSUM_SIZE + RECORD_HEADER_SIZE);
    let unpadded: Vec<Payloads> = vec![vec![payload(largest - 7)]];
    for appends in [vec![vec![payload(largest)]], unpadded, vec![vec![payload(16)], vec![payload(rest(16))]]] {
        let log = Log::write(identity(), appends);
        assert_eq!(log.end(), log.bytes.len() - MARKS_SIZE);
        assert_eq!(log.check(&log.bytes).why, StopReason::Unwritten);
        for missing in 1..=CHECKSUM_SIZE {
            let mut torn = log.bytes.clone();
            torn[log.end() - missing..].fill(0);
            assert_eq!(log.check(&torn).why, StopReason::Checksum);
        }
    }
}

#[test]
fn marks_fill_a_segment_to_the_last_byte() {
    let size = identity().size.bytes();
    let mut bytes = vec![0; size as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity(), FIRST, &mut bytes);
    let largest = payload(writer.room() - CHECKSUM_SIZE - RECORD_HEADER_SIZE);
    end += writer.append(&mut bytes[end as usize..], std::iter::once(largest.as_slice()));
    assert_eq!(writer.room(), 0);
    writer.acknowledged(Offset(end));
    writer.mark(&mut bytes[end as usize..]);
    let report = scan(&bytes, &identity());
    assert_eq!((report.closure, report.stop.why), (writer.closure(), StopReason::Full));
    assert_eq!((report.closure.end, writer.room()), (Offset(size), 0));
}

#[test]
fn bytes_beyond_the_segment_are_ignored() {
    let size = identity().size.bytes() as usize;
    let log = Log::write(
        identity(),
        vec![vec![payload(size - SEGMENT_OVERHEAD - CHECKSUM_SIZE - RECORD_HEADER_SIZE - MARKS_SIZE)]],
    );
    let mut longer = log.bytes.clone();
    longer.extend_from_slice(&log.bytes);
    assert_eq!(log.check(&longer).why, StopReason::Unwritten);
}

#[test]
fn stopped_scan_stops_there_again() {
    let log = small_log();
    let mut scanner = Scanner::new(&log.bytes, &log.identity).unwrap();
    while scanner.next_append().is_ok() {}
    let closure = scanner.closure();
    assert_eq!(scanner.next_append().unwrap_err(), scanner.next_append().unwrap_err());
    assert_eq!(scanner.closure(), closure);
}

#[test]
fn scan_resumes_with_the_tail_alone() {
    let log = small_log();
    let whole = scan(&log.bytes, &log.identity);
    for cut in 0..=log.end() {
        let known = scan(&log.bytes[..cut], &log.identity).closure;
        let tail = &log.bytes[known.end.0 as usize..];
        assert_eq!(scan_on(tail, &log.identity, known), whole, "cut at {cut}");
        let mut unseen = tail.to_vec();
        unseen.truncate(log.end() - known.end.0 as usize);
        if let Some(last) = unseen.last_mut() {
            *last = 0;
            let rest = scan_on(&unseen, &log.identity, known);
            assert_eq!(rest, scan(&[&log.bytes[..known.end.0 as usize], &unseen].concat(), &log.identity));
            assert!(rest.closure.end < whole.closure.end, "cut at {cut}");
        }
    }
}

#[test]
fn verify_compares_end_lsn_and_chain() {
    let log = small_log();
    let whole = log.closures[4];
    assert!(verify(&log.bytes, &log.identity, &whole));
    let near = [
        Closure { end: Offset(whole.end.0 + 8), ..whole },
        Closure { end: Offset(whole.end.0 - 8), ..whole },
        Closure { end: Offset(u32::MAX), ..whole },
        Closure { last: whole.last.next(), ..whole },
        Closure { chain: Chain(whole.chain.0 ^ 1), ..whole },
    ];
    near.iter().for_each(|closure| assert!(!verify(&log.bytes, &log.identity, closure), "{closure:?}"));
    other_lives().iter().for_each(|other| assert!(!verify(&log.bytes, other, &whole), "{other:?}"));
}

// ---- At random -----------------------------------------------------------------------------------------------------

fn any_identity() -> impl Strategy<Value = SegmentIdentity> {
    let size = prop_oneof![Just(SegmentSize::MIN), Just(SegmentSize::try_from(128 << 10).expect("a power of two"))];
    (any::<u128>(), 1..=u64::MAX, 1..=u64::MAX, any::<u64>(), size).prop_map(
        |(log, segment, epoch, generation, size)| SegmentIdentity {
            log: LogId(log),
            segment: SegmentId(segment),
            epoch: Epoch(epoch),
            generation: Generation(generation),
            size,
        },
    )
}

/// Logs of a few kilobytes; zeros, which hide what is missing, are frequent.
fn any_log() -> impl Strategy<Value = Log> {
    let byte = prop_oneof![Just(0), any::<u8>()];
    let record = prop_oneof![3 => vec(byte.clone(), 0..40), 1 => vec(byte, 0..600)];
    (1..=FIRST_LSN_MAX.0, any_identity(), vec(vec(record, 1..5), 0..12))
        .prop_map(|(first, identity, appends)| Log::write_from(Lsn(first), identity, appends))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_log_is_read_back_whole(log in any_log()) {
        let stop = log.check(&log.bytes);
        prop_assert_eq!(log.intact(&log.bytes), Some(log.appends.len()));
        prop_assert_eq!((stop.at.0 as usize, stop.why), (log.end(), StopReason::Unwritten));
        let header = log.bytes.first_chunk().unwrap();
        prop_assert_eq!(SegmentIdentity::from_header(header), Some((log.identity, log.closures[0].first)));
    }

    #[test]
    fn any_prefix_of_any_log(log in any_log(), at in any::<prop::sample::Index>()) {
        let mut landed = log.bytes.clone();
        landed[at.index(log.end())..].fill(0);
        log.check(&landed);
    }

    #[test]
    fn any_words_missing(log in any_log(), missing in vec(any::<prop::sample::Index>(), 1..20)) {
        let mut torn = log.bytes.clone();
        for word in missing {
            let at = word.index(log.end() / 8) * 8;
            torn[at..at + 8].fill(0);
        }
        log.check(&torn);
    }

    #[test]
    fn pieces_hold_what_the_whole_holds(
        log in any_log(),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
        hit in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = log.bytes[..log.end() - end.index(log.end() / 4)].to_vec();
        if let Some((at, byte)) = hit {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut whole = Vec::new();
        if let Ok(mut scanner) = Scanner::new(&bytes, &log.identity) {
            while let Ok(append) = scanner.next_append() {
                whole.extend(append.records().map(|record| (record.lsn, record.payload.to_vec())));
            }
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut found = Vec::new();
        let mut take = |record: Record<'_>| found.push((record.lsn, record.payload.to_vec()));
        let mut scanner = PiecewiseScanner::new(log.identity);
        cuts.windows(2).for_each(|cut| scanner.push(&bytes[cut[0]..cut[1]], &mut take));
        let closure = scanner.finish(&mut take);
        prop_assert_eq!(found, whole);
        prop_assert_eq!(closure, scan(&bytes, &log.identity).closure);
    }

    #[test]
    fn any_bytes_overwritten(log in any_log(), hits in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 1..64)), 1..4)) {
        let mut hit = log.bytes.clone();
        for (at, bytes) in hits {
            let at = at.index(log.end());
            let bytes = &bytes[..bytes.len().min(hit.len() - at)];
            hit[at..at + bytes.len()].copy_from_slice(bytes);
        }
        log.check(&hit);
    }

    #[test]
    fn any_old_records_in_the_buffer(now in any_log(), before in any_identity(), landed in any::<prop::sample::Index>()) {
        prop_assume!(now.identity != SegmentIdentity { size: now.identity.size, ..before });
        let identity = SegmentIdentity { size: now.identity.size, ..before };
        let before = Log::write_from(now.closures[0].first, identity, now.appends.clone());
        let mut memory = before.bytes;
        let landed = landed.index(now.end() + 1);
        memory[..landed].copy_from_slice(&now.bytes[..landed]);
        now.check(&memory);
    }

    #[test]
    fn garbage_is_rejected(garbage in vec(any::<u8>(), 0..4096), identity in any_identity()) {
        prop_assert_eq!(scan(&garbage, &identity).closure.end, Offset(0));
        if let Some(header) = garbage.first_chunk() {
            prop_assert_eq!(SegmentIdentity::from_header(header), None);
        }
    }

    #[test]
    fn garbage_after_a_log_is_rejected(log in any_log(), garbage in vec(any::<u8>(), 0..4096), kind in any::<u8>()) {
        let mut bytes = log.bytes.clone();
        for (to, from) in bytes[log.end()..].iter_mut().zip(std::iter::once(&kind).chain(&garbage)) {
            *to = *from;
        }
        log.check(&bytes);
    }

    /// Headers that pass every cheap check, so that garbage gets as far as the CRC.
    #[test]
    fn plausible_headers_with_garbage_are_rejected(
        log in any_log(), length in 0..200_u32, payload_crc in any::<u32>(), garbage in vec(any::<u8>(), 0..300),
    ) {
        let lsn = log.closures[log.appends.len()].last.next();
        let header = RecordHeader { length, payload_crc, lsn, epoch: log.identity.epoch }.to_bytes();
        let mut bytes = log.bytes.clone();
        for (to, from) in bytes[log.end()..].iter_mut().zip(header.iter().chain(&garbage)) {
            *to = *from;
        }
        log.check(&bytes);
    }
}
