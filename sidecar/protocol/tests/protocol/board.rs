//! The board's bytes: golden lines, and that no torn, foreign or damaged line is believed.

use proptest::prelude::*;
use tailwind_protocol::board::{BoardIdentity, LINE_SIZE, Line, Progress, decode};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::{FIRST_LSN_MAX, SegmentSize};

fn identity() -> BoardIdentity {
    BoardIdentity {
        log: LogId(0x100f_0e0d_0c0b_0a09_0807_0605_0403_0201),
        epoch: Epoch(0x1817_1615_1413_1211),
        generation: Generation(0x2827_2625_2423_2221),
        segment_size: SegmentSize::DEFAULT,
    }
}

fn progress() -> Progress {
    Progress {
        beat: 0x0807_0605_0403_0201,
        acked: Lsn(0x1817_1615_1413_1211),
        end: Position::new(SegmentId(0x2827_2625_2423_2221), Offset(0x0034_3231)),
        first: Lsn(0x0100_0000_0000_0041),
        version: Version(0x5857_5655_5453_5251),
    }
}

#[test]
fn golden_identity() {
    let mut expected = *b"TWBOARD1\
        \x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\
        \x11\x12\x13\x14\x15\x16\x17\x18\
        \x21\x22\x23\x24\x25\x26\x27\x28\
        \x00\x00\x80\x00\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        crc!";
    let crc = crc32fast::hash(&expected[..60]);
    expected[60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(identity().encode(), expected);
    assert_eq!(crc, GOLDEN_IDENTITY_CRC);
    assert_eq!(BoardIdentity::decode(&expected), Some(identity()));
}

const GOLDEN_IDENTITY_CRC: u32 = 0x7391_6aff;
const GOLDEN_PROGRESS_CRC: u32 = 0x8c35_81fd;

#[test]
fn golden_progress() {
    let mut expected = *b"\x01\x02\x03\x04\x05\x06\x07\x08\
        \x11\x12\x13\x14\x15\x16\x17\x18\
        \x21\x22\x23\x24\x25\x26\x27\x28\
        \x31\x32\x34\x00\
        \0\0\0\0\
        \x41\0\0\0\0\0\0\x01\
        \x51\x52\x53\x54\x55\x56\x57\x58\
        \0\0\0\0\0\0\0\0\0\0\0\0\
        crc!";
    // One CRC over both pieces.
    let crc = crc32fast::hash(&[&identity().encode()[8..40], &expected[..60]].concat());
    expected[60..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(progress().encode(&identity()), expected);
    assert_eq!(crc, GOLDEN_PROGRESS_CRC);
    assert_eq!(Progress::decode(&expected, &identity()), Some(progress()));
}

#[test]
fn memory_that_was_lent_and_not_written_is_no_board() {
    assert_eq!(decode(&[0; 2 * LINE_SIZE]), None);
    let named = [identity().encode(), [0; LINE_SIZE]].concat();
    assert_eq!(decode(&named), None, "no progress yet");
    assert_eq!(decode(&named[..LINE_SIZE + 3]), None, "cut off");
}

#[test]
fn what_is_impossible_is_not_believed() {
    let good = Progress { acked: Lsn(9), first: Lsn(10), ..progress() };
    let seen = |progress: Progress| Progress::decode(&progress.encode(&identity()), &identity());
    assert_eq!(seen(good), Some(good), "all was trimmed");
    assert_eq!(seen(Progress { first: Lsn(11), ..good }), None, "a gap");
    assert_eq!(seen(Progress { first: Lsn(0), ..good }), None, "records count from 1");
    let last = Progress { acked: FIRST_LSN_MAX, beat: u64::MAX / 2, ..good };
    assert_eq!(seen(last), Some(last));
    for acked in [FIRST_LSN_MAX.next(), Lsn(u64::MAX)] {
        assert_eq!(seen(Progress { acked, ..last }), None, "no log has so many records");
    }
    assert_eq!(seen(Progress { beat: u64::MAX / 2 + 1, ..last }), None);
    assert_eq!(seen(Progress { end: Position::new(SegmentId(0), Offset(0)), ..good }), None);
    assert_eq!(seen(Progress { end: Position::new(SegmentId(u64::MAX), Offset(0)), ..good }), None);
    let beyond = Offset(SegmentSize::DEFAULT.bytes() + 1);
    assert_eq!(seen(Progress { end: Position::new(SegmentId(1), beyond), ..good }), None);
    assert_eq!(BoardIdentity::decode(&BoardIdentity { epoch: Epoch(0), ..identity() }.encode()), None);
}

fn any_progress() -> impl Strategy<Value = Progress> {
    let half = || 0..=u64::MAX / 2;
    let numbers = (half(), half(), 1..u64::MAX / 2, 0..=SegmentSize::DEFAULT.bytes(), any::<u64>());
    numbers.prop_flat_map(|(beat, acked, segment, offset, version)| {
        (1..=acked + 1).prop_map(move |first| Progress {
            beat,
            acked: Lsn(acked),
            end: Position::new(SegmentId(segment), Offset(offset)),
            first: Lsn(first),
            version: Version(version),
        })
    })
}

/// Takes each piece of so many bytes from one line or the other.
fn torn(old: &Line, new: &Line, grain: usize, choices: &[bool]) -> Line {
    let mut line = *old;
    for (piece, _) in choices.iter().take(LINE_SIZE / grain).enumerate().filter(|(_, taken)| **taken) {
        line[piece * grain..(piece + 1) * grain].copy_from_slice(&new[piece * grain..(piece + 1) * grain]);
    }
    line
}

proptest! {
    #[test]
    fn lines_come_back_as_written(progress in any_progress(), log: u128, epoch in 1..=u64::MAX, generation: u64) {
        let identity = BoardIdentity {
            log: LogId(log), epoch: Epoch(epoch), generation: Generation(generation), segment_size: SegmentSize::DEFAULT,
        };
        let lines = [identity.encode(), progress.encode(&identity)].concat();
        prop_assert_eq!(decode(&lines), Some((identity, progress)));
    }

    #[test]
    fn a_torn_line_is_one_of_both_or_none(
        old in any_progress(),
        new in any_progress(),
        grain in prop::sample::select(vec![1, 8]),
        choices in prop::collection::vec(any::<bool>(), LINE_SIZE),
    ) {
        let (old_line, new_line) = (old.encode(&identity()), new.encode(&identity()));
        let line = torn(&old_line, &new_line, grain, &choices);
        let found = Progress::decode(&line, &identity());
        prop_assert!(found.is_none() || found == Some(old) || found == Some(new));
        prop_assert_eq!(found.is_some(), line == old_line || line == new_line);
    }

    /// As in practice, where little changes from line to line.
    #[test]
    fn a_torn_step_is_one_of_both_or_none(
        old in any_progress(),
        steps in (0..3_u64, 0..200_u64, 0..5000_u32),
        choices in prop::collection::vec(any::<bool>(), LINE_SIZE),
    ) {
        let end = Position::new(old.end.segment, Offset((old.end.offset.0 + steps.2).min(SegmentSize::DEFAULT.bytes())));
        let (beat, acked) = (old.beat.saturating_add(steps.0), Lsn(old.acked.0.saturating_add(steps.1)));
        let new = Progress { beat, acked, end, ..old };
        let line = torn(&old.encode(&identity()), &new.encode(&identity()), 1, &choices);
        let found = Progress::decode(&line, &identity());
        prop_assert!(found.is_none() || found == Some(old) || found == Some(new));
    }

    #[test]
    fn a_line_of_another_board_is_none(progress in any_progress(), log: u128, epoch in 1..=u64::MAX, generation: u64) {
        let other = BoardIdentity { log: LogId(log), epoch: Epoch(epoch), generation: Generation(generation), ..identity() };
        prop_assume!(other != identity());
        prop_assert_eq!(Progress::decode(&progress.encode(&other), &identity()), None);
    }

    #[test]
    fn a_flipped_bit_is_noticed(progress in any_progress(), bit in 0..8 * LINE_SIZE) {
        let mut line = progress.encode(&identity());
        line[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Progress::decode(&line, &identity()), None);
        let mut line = identity().encode();
        line[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(BoardIdentity::decode(&line), None);
    }
}
