//! How long things take on the append path: what begins in one turn ends together, so the clock is read once per turn and
//! not once per append.
//!
//! Kept by [`Leading`](super::leading::Leading) for appends, and for what is posted.

use std::collections::VecDeque;
use std::time::Instant;

use tailwind_protocol::ids::Position;
use tailwind_runtime::histogram::Histogram;

/// Turns whose work may be under way: 256 × 40 bytes. The work of one more turn is counted with the latest one's, from whose
/// beginning on its time is taken.
const SPANS_MAX: usize = 256;

/// The work of one turn.
#[derive(Debug)]
struct Span {
    end: Position,
    began: Instant,
    things: u64,
}

/// What is under way, oldest first.
#[derive(Debug)]
pub(super) struct Latency {
    spans: VecDeque<Span>,
    end: Position,
}

impl Latency {
    pub(super) fn new() -> Latency {
        Latency { spans: VecDeque::with_capacity(SPANS_MAX), end: Position::default() }
    }

    /// So many things have begun, which end once this position of the log is reached. What ends no later than what has begun
    /// before is part of that.
    pub(super) fn begin(&mut self, end: Position, things: u64, began: Instant) {
        if end <= self.end {
            return;
        }
        self.end = end;
        let is_full = self.spans.len() == SPANS_MAX;
        match self.spans.back_mut() {
            Some(latest) if is_full => (latest.end, latest.things) = (end, latest.things + things),
            _ => self.spans.push_back(Span { end, began, things }),
        }
    }

    /// Everything up to this position has ended.
    pub(super) fn finish(&mut self, reached: Position, now: Instant, histogram: &Histogram) {
        while let Some(span) = self.spans.pop_front_if(|span| span.end <= reached) {
            histogram.observe(now.saturating_duration_since(span.began), span.things);
        }
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Offset, SegmentId};

    use super::*;

    fn at(offset: u32) -> Position {
        Position::new(SegmentId(1), Offset(offset))
    }

    #[test]
    fn a_turns_appends_are_counted_together() {
        let (mut latency, histogram, began) = (Latency::new(), Histogram::default(), Instant::now());
        latency.begin(at(10), 3, began);
        latency.begin(at(20), 2, began);
        latency.begin(at(20), 7, began);
        latency.finish(at(19), began, &histogram);
        assert_eq!(histogram.snapshot().count(), 3);
        latency.finish(at(20), began, &histogram);
        assert_eq!(histogram.snapshot().count(), 5);
    }

    #[test]
    fn nothing_is_lost_beyond_the_bound() {
        let (mut latency, histogram, began) = (Latency::new(), Histogram::default(), Instant::now());
        let turns = SPANS_MAX + 10;
        (1..=turns).for_each(|turn| latency.begin(at(turn as u32), 1, began));
        assert_eq!(latency.spans.len(), SPANS_MAX);
        latency.finish(at(turns as u32), began, &histogram);
        assert_eq!(histogram.snapshot().count(), turns as u64);
    }
}
