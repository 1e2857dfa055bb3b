//! Line 2 of the board: golden bytes, and that no torn, foreign, damaged or impossible line is believed.

use proptest::prelude::*;
use tailwind_protocol::board::mirror::{BUCKET_SIZE, LINES_WITH_MIRROR, MIRROR_AT, MirrorLine, PartSize, UnsoundLine};
use tailwind_protocol::board::{BoardIdentity, LINE_SIZE, Line};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn};
use tailwind_protocol::layout::{FIRST_LSN_MAX, SegmentSize};
use tailwind_protocol::table::acked::LineId;
use tailwind_protocol::table::hash::{Buckets, HashKey, KEYS_MAX};

fn identity() -> BoardIdentity {
    BoardIdentity { log: LogId(1), epoch: Epoch(2), generation: Generation(3), segment_size: SegmentSize::DEFAULT }
}

fn size(bytes: u32) -> PartSize {
    PartSize::new(bytes).expect("a size")
}

fn mirror() -> MirrorLine {
    MirrorLine {
        published: Lsn(0x0807_0605_0403_0201),
        hash_key: HashKey(std::array::from_fn(|at| 0x11 + at as u8)),
        buckets: Buckets::from_number(0x0033_3231).expect("buckets"),
        part_size: size(0x0080_0000),
        live: true,
    }
}

const GOLDEN_CRC: u32 = 0xe335_6119;

#[test]
fn golden_line() {
    let mut expected = *b"\x01\x02\x03\x04\x05\x06\x07\x08\
        \x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x20\
        \x31\x32\x33\x00\
        \x00\x00\x80\x00\
        \x02\x01\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        crc!";
    // One CRC over both pieces.
    let crc = crc32fast::hash(&[&identity().encode()[8..40], &expected[..60]].concat());
    expected[60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(mirror().encode(&identity()), expected);
    assert_eq!(crc, GOLDEN_CRC);
    assert_eq!(MirrorLine::decode(&expected, &identity()), Ok(Some(mirror())));
    assert_eq!((MIRROR_AT, LINES_WITH_MIRROR), (128, 0..192));
    assert_eq!(MirrorLine { live: false, ..mirror() }.encode(&identity())[32..34], [1, 1]);
}

#[test]
fn zeros_are_no_mirror() {
    assert_eq!(MirrorLine::decode(&[0; LINE_SIZE], &identity()), Ok(None));
}

/// A line whose bytes from `at` on are these, with a right CRC.
fn forged(at: usize, bytes: &[u8]) -> Line {
    let mut line = mirror().encode(&identity());
    line[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32fast::hash(&[&identity().encode()[8..40], &line[..60]].concat());
    line[60..].copy_from_slice(&crc.to_le_bytes());
    line
}

#[test]
fn what_is_impossible_is_not_believed() {
    let seen = |at, bytes: &[u8]| MirrorLine::decode(&forged(at, bytes), &identity());
    assert_eq!(seen(32, &[2]), Ok(Some(mirror())));
    for (at, bytes) in [
        (0, &FIRST_LSN_MAX.next().0.to_le_bytes()[..]),
        (24, &1_u32.to_le_bytes()),
        (24, &(Buckets::for_keys(KEYS_MAX).number() + 1).to_le_bytes()),
        (28, &2048_u32.to_le_bytes()),
        (28, &5000_u32.to_le_bytes()),
        (28, &(128_u32 << 20).to_le_bytes()),
        (32, &[0]),
        (32, &[3]),
        (33, &[0]),
        (33, &[2]),
        (34, &[1]),
        (59, &[1]),
    ] {
        assert_eq!(seen(at, bytes), Err(UnsoundLine), "{bytes:?} at {at}");
    }
}

#[test]
fn buckets_and_lines_have_a_place_in_a_part() {
    let (part, buckets) = (size(4096), Buckets::from_number(33).expect("buckets"));
    assert_eq!((BUCKET_SIZE, part.parts(buckets)), (256, 3));
    assert_eq!((part.bucket_at(0), part.bucket_at(15), part.bucket_at(16)), ((0, 0), (0, 3840), (1, 0)));
    assert_eq!(
        (part.line_at(LineId(63)), part.line_at(LineId(64)), part.line_at(LineId(65))),
        ((0, 4032), (1, 0), (1, 64))
    );
    assert_eq!(size(8 << 20).parts(Buckets::for_keys(KEYS_MAX)), 107);
}

fn any_mirror() -> impl Strategy<Value = MirrorLine> {
    let numbers =
        (0..=FIRST_LSN_MAX.0, any::<[u8; 16]>(), 2..=Buckets::for_keys(KEYS_MAX).number(), 12..27_u32, any::<bool>());
    numbers.prop_map(|(published, key, buckets, shift, live)| MirrorLine {
        published: Lsn(published),
        hash_key: HashKey(key),
        buckets: Buckets::from_number(buckets).expect("buckets"),
        part_size: size(1 << shift),
        live,
    })
}

proptest! {
    #[test]
    fn lines_come_back_as_written(mirror in any_mirror()) {
        prop_assert_eq!(MirrorLine::decode(&mirror.encode(&identity()), &identity()), Ok(Some(mirror)));
    }

    /// As in practice: another LSN, perhaps another state, in pieces of any size.
    #[test]
    fn a_torn_step_is_one_of_both_or_none(
        old in any_mirror(),
        step in 0..1000_u64,
        choices in prop::collection::vec(any::<bool>(), LINE_SIZE),
        grain in prop::sample::select(vec![1, 8]),
    ) {
        let new = MirrorLine { published: Lsn((old.published.0 + step).min(FIRST_LSN_MAX.0)), live: true, ..old };
        let (mut line, new_line) = (old.encode(&identity()), new.encode(&identity()));
        for (piece, _) in choices.iter().take(LINE_SIZE / grain).enumerate().filter(|(_, taken)| **taken) {
            line[piece * grain..(piece + 1) * grain].copy_from_slice(&new_line[piece * grain..(piece + 1) * grain]);
        }
        let found = MirrorLine::decode(&line, &identity());
        prop_assert!(found == Err(UnsoundLine) || found == Ok(Some(old)) || found == Ok(Some(new)));
    }

    #[test]
    fn a_line_of_another_board_is_none(mirror in any_mirror(), log: u128, epoch in 1..=u64::MAX, generation: u64) {
        let other = BoardIdentity { log: LogId(log), epoch: Epoch(epoch), generation: Generation(generation), ..identity() };
        prop_assume!(other != identity());
        prop_assert_eq!(MirrorLine::decode(&mirror.encode(&other), &identity()), Err(UnsoundLine));
    }

    #[test]
    fn a_flipped_bit_is_noticed(mirror in any_mirror(), bit in 0..8 * LINE_SIZE) {
        let mut line = mirror.encode(&identity());
        line[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(MirrorLine::decode(&line, &identity()), Err(UnsoundLine));
    }
}
