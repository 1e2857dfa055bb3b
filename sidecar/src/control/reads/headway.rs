//! How far a read that is to end has come, and when it is given up.
//!
//! Used by [`follow`](super::follow). Bytes of the log count as records do, so that a large segment may come over a slow network.
//! But where nothing verifies, every visit brings the same bytes again. So a visit counts only once it has brought more than any
//! other since the last record; and what one visit can bring is bounded.

use std::time::{Duration, Instant};

/// A read that is to end is given up when members have shown neither the next record nor more of the log for so long, which is
/// longer than any failover takes. Bytes that are fetched are counted only then: so it may be twice as long.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How far a read has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headway {
    /// When it came further last.
    at: Instant,
    /// Bytes that had come before this visit, or by its last record.
    before: u64,
    /// Most bytes that a visit has brought since the last record.
    most: u64,
}

impl Headway {
    /// It begins. `bytes` have come in all, here and below.
    pub(super) fn new(now: Instant, bytes: u64) -> Headway {
        Headway { at: now, before: bytes, most: 0 }
    }

    /// Records have been handed out.
    pub(super) fn on_records(&mut self, now: Instant, bytes: u64) {
        *self = Headway::new(now, bytes);
    }

    /// Another visit begins.
    pub(super) fn on_visit(&mut self, now: Instant, bytes: u64) {
        self.on_bytes(now, bytes);
        self.before = bytes;
    }

    /// Perhaps more bytes have come.
    pub(super) fn on_bytes(&mut self, now: Instant, bytes: u64) {
        let brought = bytes - self.before;
        if brought > self.most {
            (self.at, self.most) = (now, brought);
        }
    }

    /// When the read is given up, unless it comes further.
    pub(super) fn ends_at(&self) -> Instant {
        self.at + PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn bytes_that_come_keep_a_read_waiting() {
        let began = Instant::now();
        let mut headway = Headway::new(began, 0);
        for seconds in 1..60 {
            headway.on_bytes(began + after(seconds), 1000 * seconds);
            assert_eq!(headway.ends_at(), began + after(seconds) + PATIENCE);
        }
        headway.on_bytes(began + after(60), 59_000);
        assert_eq!(headway.ends_at(), began + after(59) + PATIENCE, "nothing more has come");
        headway.on_records(began + after(61), 59_000);
        assert_eq!(headway.ends_at(), began + after(61) + PATIENCE);
    }

    /// A segment of which no member has a sound copy would be read without end.
    #[test]
    fn bytes_that_come_again_do_not() {
        let began = Instant::now();
        let (mut headway, mut bytes) = (Headway::new(began, 500), 500);
        for visit in 0..10 {
            headway.on_visit(began + after(3 * visit), bytes);
            bytes += 1000;
            headway.on_bytes(began + after(3 * visit + 1), bytes);
            assert_eq!(headway.ends_at(), began + after(1) + PATIENCE, "visit {visit}");
        }
        headway.on_bytes(began + after(40), bytes + 1);
        assert_eq!(headway.ends_at(), began + after(40) + PATIENCE, "the last has brought more than the others");
    }

    #[test]
    fn what_came_before_a_record_does_not_count() {
        let began = Instant::now();
        let mut headway = Headway::new(began, 0);
        headway.on_bytes(began + after(1), 9000);
        headway.on_records(began + after(2), 9000);
        headway.on_bytes(began + after(3), 9001);
        assert_eq!(headway.ends_at(), began + after(3) + PATIENCE);
    }
}
