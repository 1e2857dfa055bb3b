//! The board: a small piece of each member's memory in which the primary says how far the log is acknowledged.
//!
//! Written by the primary with one-sided writes ([`Primary::publish`](crate::primary::Primary::publish)), read by readers
//! with one-sided reads. A board is derived: it belongs to one epoch, is lent with the data channel and freed at a fence;
//! no scan, inventory or promotion looks at it. See "The board" in `docs/protocol.md`.
//!
//! It consists of lines of [`LINE_SIZE`] bytes. Each ends in a CRC-32, so a line that was read while it was written does not
//! verify, and is read again. The CRC of the progress line covers the identity too: a line of another epoch's board, or of
//! another lending of the same memory, never verifies.
//!
//! ```text
//! line 0, identity                      line 1, progress
//!  0..8   TWBOARD1, magic and format     0..8   beat
//!  8..24  log id                         8..16  last acknowledged LSN
//! 24..32  epoch                         16..24  segment of its end
//! 32..40  generation                    24..28  offset of its end
//! 40..44  segment size                  28..32  zero
//! 44..60  zero                          32..40  first LSN that can be read
//! 60..64  CRC-32 of 0..60               40..48  version of the member set
//!                                       48..60  zero
//!                                       60..64  CRC-32 of line 0's 8..40, then of 0..60
//! ```
//! Line 2 is of a table's mirror: [`mirror`].

pub mod mirror;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::ids::{Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use crate::layout::{FIRST_LSN_MAX, SEGMENT_MAX, SegmentSize};

/// Bytes of a line: what a card places at once, mostly.
pub const LINE_SIZE: usize = 64;
/// A line.
pub type Line = [u8; LINE_SIZE];
/// Bytes of a board's memory: one page. Three lines are in use.
pub const BOARD_SIZE: u32 = 4096;
/// Where the identity's line is.
pub const IDENTITY_AT: u32 = 0;
/// Where the progress line is.
pub const PROGRESS_AT: u32 = LINE_SIZE as u32;
/// Where both are: what a follower reads at once.
pub const LINES: Range<u32> = IDENTITY_AT..PROGRESS_AT + LINE_SIZE as u32;

/// First bytes of a board; the last one is the format's version.
const MAGIC: [u8; 8] = *b"TWBOARD1";
/// Where a line's CRC is.
const CRC_AT: usize = LINE_SIZE - 4;

const _: () = assert!(mirror::LINES_WITH_MIRROR.end <= BOARD_SIZE && BOARD_SIZE.is_multiple_of(4096));

/// The log and epoch of a board; written once, before the first progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoardIdentity {
    /// The log.
    pub log: LogId,
    /// The epoch whose primary writes it.
    pub epoch: Epoch,
    /// Drawn at random by that primary for its boards.
    pub generation: Generation,
    /// Size of the epoch's segments.
    pub segment_size: SegmentSize,
}

/// How far the log is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Grows by one whenever a barrier has passed that began after its last growth was posted to every board of the set.
    pub beat: u64,
    /// Everything up to this record is acknowledged.
    pub acked: Lsn,
    /// Where that record's append ends. At the start of an epoch, the start of its first segment.
    pub end: Position,
    /// First record that can be read.
    pub first: Lsn,
    /// The version of the member set, as last known to be in the config store.
    pub version: Version,
}

impl BoardIdentity {
    /// Line 0.
    pub fn encode(&self) -> Line {
        let mut line = [0; LINE_SIZE];
        line[..8].copy_from_slice(&MAGIC);
        line[8..24].copy_from_slice(&self.log.0.to_le_bytes());
        line[24..32].copy_from_slice(&self.epoch.0.to_le_bytes());
        line[32..40].copy_from_slice(&self.generation.0.to_le_bytes());
        line[40..44].copy_from_slice(&self.segment_size.bytes().to_le_bytes());
        seal(&mut line, 0);
        line
    }

    /// The identity in a line 0; `None` if it is torn, not written yet, or of another format.
    pub fn decode(line: &Line) -> Option<BoardIdentity> {
        let size = SegmentSize::new(u32_at(line, 40).into()).ok()?;
        let epoch = Epoch(u64_at(line, 24));
        let identity = BoardIdentity {
            log: LogId(u128::from(u64_at(line, 8)) | u128::from(u64_at(line, 16)) << 64),
            epoch,
            generation: Generation(u64_at(line, 32)),
            segment_size: size,
        };
        // If any byte differs from what would be written, padding included, it is of another format.
        (epoch >= Epoch(1) && identity.encode() == *line).then_some(identity)
    }

    /// What the CRC of this board's other lines begins with.
    pub(crate) fn seed(&self) -> u32 {
        crc32fast::hash(&self.encode()[8..40])
    }
}

impl Progress {
    /// Line 1 of the board with this identity.
    pub fn encode(&self, of: &BoardIdentity) -> Line {
        self.encode_seeded(of.seed())
    }

    /// The same, for a writer that has kept the [seed](BoardIdentity::seed).
    pub(crate) fn encode_seeded(&self, seed: u32) -> Line {
        let mut line = [0; LINE_SIZE];
        line[..8].copy_from_slice(&self.beat.to_le_bytes());
        line[8..16].copy_from_slice(&self.acked.0.to_le_bytes());
        line[16..24].copy_from_slice(&self.end.segment.0.to_le_bytes());
        line[24..28].copy_from_slice(&self.end.offset.0.to_le_bytes());
        line[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        line[40..48].copy_from_slice(&self.version.0.to_le_bytes());
        seal(&mut line, seed);
        line
    }

    /// The progress in a line 1 of the board with this identity; `None` if it is torn, not written yet, of another board, or
    /// impossible.
    pub fn decode(line: &Line, of: &BoardIdentity) -> Option<Progress> {
        let progress = Progress {
            beat: u64_at(line, 0),
            acked: Lsn(u64_at(line, 8)),
            end: Position::new(SegmentId(u64_at(line, 16)), Offset(u32_at(line, 24))),
            first: Lsn(u64_at(line, 32)),
            version: Version(u64_at(line, 40)),
        };
        let possible = (SegmentId(1)..=SEGMENT_MAX).contains(&progress.end.segment)
            && progress.end.offset.0 <= of.segment_size.bytes()
            && progress.beat <= BEAT_MAX
            && progress.acked <= FIRST_LSN_MAX
            && progress.first.0 >= 1
            && progress.first.0 - 1 <= progress.acked.0;
        (possible && progress.encode(of) == *line).then_some(progress)
    }
}

/// What was read from a board's [`LINES`].
pub fn decode(lines: &[u8]) -> Option<(BoardIdentity, Progress)> {
    let identity = BoardIdentity::decode(lines.get(..LINE_SIZE)?.first_chunk()?)?;
    let progress = Progress::decode(lines.get(LINE_SIZE..)?.first_chunk()?, &identity)?;
    Some((identity, progress))
}

/// Puts the CRC at the end of a line.
fn seal(line: &mut Line, seed: u32) {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&line[..CRC_AT]);
    line[CRC_AT..].copy_from_slice(&hasher.finalize().to_le_bytes());
}

fn u64_at(line: &Line, at: usize) -> u64 {
    u64::from(u32_at(line, at)) | u64::from(u32_at(line, at + 4)) << 32
}

fn u32_at(line: &Line, at: usize) -> u32 {
    u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
}

/// Beats that are believed: so many will never be, and sums with them cannot overflow.
const BEAT_MAX: u64 = u64::MAX / 2;
/// Growths of the beat that prove something: see [`Freshness`].
pub const BEATS: u64 = 3;

/// How much of the past a reader's view of one board covers, without comparing clocks.
///
/// If a read that was posted at moment p finds beat b, and a later one b + [`BEATS`] or more, then the later one's view covers
/// everything that was acknowledged before p, in any epoch:
///
/// 1. A read sees every write that had completed before it was posted (promise 8 of the fabric). So at p the line with
///    beat b + 1 had not completed at this member.
/// 2. The line with b + 2 is posted once a barrier has passed that began with the posting of b + 1: at this member, which is
///    in the set, that line has completed by then. So b + 2 is posted after p.
/// 3. The line with b + 3 is posted once a barrier has passed that began with the posting of b + 2, so after p. So at p no
///    member of the set had been fenced, and nobody else had acknowledged anything (S4); and what this primary had
///    acknowledged before p is in the line.
///
/// From another board nothing follows: its member may have left the set. Start over for another board, and whenever
/// [`Progress::version`] has changed: the member may have left and come back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Freshness {
    /// Beats seen, ascending, each with the posting of the last read that found it; at most [`BEATS`].
    seen: VecDeque<(u64, Duration)>,
    covers: Option<Duration>,
}

impl Freshness {
    /// A read that was posted at this moment, of the reader's own clock, found this beat. Beats that go back are of a late
    /// write, and prove nothing.
    pub fn observe(&mut self, posted: Duration, beat: u64) {
        match self.seen.back_mut() {
            Some((last, _)) if beat < *last => return,
            Some((last, moment)) if beat == *last => *moment = (*moment).max(posted),
            _ => self.seen.push_back((beat, posted)),
        }
        while let Some((_, moment)) = self.seen.pop_front_if(|(before, _)| *before + BEATS <= beat) {
            self.covers = self.covers.max(Some(moment));
        }
    }

    /// Everything that was acknowledged before this moment is in the view; `None` while nothing is known.
    pub fn covers(&self) -> Option<Duration> {
        self.covers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_view_covers_what_was_before_three_beats() {
        let mut view = Freshness::default();
        for (posted, beat, covers) in [
            (10, 5, None),
            (11, 5, None),
            (12, 6, None),
            (13, 7, None),
            (14, 8, Some(11)),
            (15, 8, Some(11)),
            (16, 9, Some(12)),
            // Some were missed in between.
            (17, 20, Some(16)),
            (18, 20, Some(16)),
        ] {
            view.observe(at(posted), beat);
            assert_eq!(view.covers(), covers.map(at), "at {posted}");
            assert!(view.seen.len() <= BEATS as usize);
        }
    }

    #[test]
    fn a_beat_that_goes_back_proves_nothing() {
        let mut view = Freshness::default();
        for (posted, beat) in [(1, 7), (2, 4), (3, 8), (4, 7), (5, 9)] {
            view.observe(at(posted), beat);
        }
        assert_eq!(view.covers(), None);
        view.observe(at(6), 10);
        assert_eq!(view.covers(), Some(at(1)));
    }
}
