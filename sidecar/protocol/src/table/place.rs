//! Where a record is in the log, in 31 bits.
//!
//! Used by entries of an index ([`entry`](super::entry)), which have room for two places in one word of 8 bytes (Erda 3.2.3).
//! A place is the record's position in a *window* of 16 GiB of the log, counted in units of 8 bytes. A table has 12 GiB of log
//! at most, so there is one segment that a place can mean, given any segment near the log's end.

use std::num::NonZeroU32;

use crate::ids::{Offset, Position, SegmentId};
use crate::layout::{ALIGNMENT, SEGMENT_MAX, SEGMENT_OVERHEAD, SegmentSize};

/// Bits of a place.
pub const PLACE_BITS: u32 = 31;
/// Bytes of log in a window: as many as 31 bits count in units of [`ALIGNMENT`].
pub const WINDOW_SIZE: u64 = (1 << PLACE_BITS) * ALIGNMENT as u64;
/// Most bytes of log that a table has: three quarters of a window. The last quarter is for readers: their view of the log's end
/// may be so much older than an entry that they read.
pub const TABLE_SIZE_MAX: u64 = WINDOW_SIZE / 4 * 3;

const _: () = assert!(WINDOW_SIZE == 16 << 30 && TABLE_SIZE_MAX == 12 << 30);

/// A record's place within a window. Never 0: no record begins at the start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(NonZeroU32);

impl Place {
    /// The place in these bits; `None`: none is there, or there are too many bits.
    pub fn from_bits(bits: u32) -> Option<Place> {
        NonZeroU32::new(bits).filter(|bits| bits.get() >> PLACE_BITS == 0).map(Place)
    }

    /// Its bits; 0 for none.
    pub fn bits(place: Option<Place>) -> u32 {
        place.map_or(0, |place| place.0.get())
    }
}

/// How places count in a log with segments of one size. A window has *W* of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    size: SegmentSize,
}

impl Window {
    /// The window of a log with segments of this size.
    pub const fn new(size: SegmentSize) -> Window {
        Window { size }
    }

    /// The segments' size.
    pub const fn segment_size(self) -> SegmentSize {
        self.size
    }

    /// Segments of a window: a power of two from 256 to 262,144.
    pub const fn segments(self) -> u64 {
        WINDOW_SIZE / self.size.bytes() as u64
    }

    /// The place of a record that begins here. `None`: none begins here.
    pub fn place(self, at: Position) -> Option<Place> {
        let offset = at.offset.0 as usize;
        let begins = offset >= SEGMENT_OVERHEAD && offset < self.size.bytes() as usize;
        if !begins || !offset.is_multiple_of(ALIGNMENT) || at.segment < SegmentId(1) {
            return None;
        }
        let units = u64::from(self.size.bytes()) / ALIGNMENT as u64;
        let bits = (at.segment.0 % self.segments()) * units + (offset / ALIGNMENT) as u64;
        Place::from_bits(bits as u32)
    }

    /// Which position a place means, if the log's end is in or near the segment `end`: of the segments with the place's remainder
    /// the one in (`end` − ¾*W*, `end` + ¼*W*]. `None`: there is none, or no record begins there.
    pub fn position(self, place: Place, end: SegmentId) -> Option<Position> {
        let units = self.size.bytes() / ALIGNMENT as u32;
        let (remainder, unit) = (u64::from(place.0.get() / units), place.0.get() % units);
        let last = end.0.min(SEGMENT_MAX.0) + self.segments() / 4;
        let back = last.wrapping_sub(remainder) % self.segments();
        let segment = SegmentId(last.checked_sub(back)?);
        let at = Position::new(segment, Offset(unit * ALIGNMENT as u32));
        (self.place(at) == Some(place)).then_some(at)
    }
    /// The same for a place in the segment `last` or less than *W* before it.
    pub(super) fn position_up_to(self, place: Place, last: SegmentId) -> Option<Position> {
        self.position(place, SegmentId(last.0.saturating_sub(self.segments() / 4)))
    }
}
