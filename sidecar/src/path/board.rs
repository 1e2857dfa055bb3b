//! Tells readers how far the log is acknowledged: the lines on the members' boards.
//!
//! Called by [`Path`](super::Path) once per turn, after the acks. The machine decides
//! ([`Primary::publish`](tailwind_protocol::primary::Primary::publish)), this file posts. Nothing here allocates.

use std::time::Duration;

use tailwind_protocol::config::Time;

use super::replicator::Replicator;

impl Replicator {
    /// Posts a line to each board, if it is time for it. `elapsed` is since the path began.
    pub(super) fn publish(&mut self, elapsed: Duration, now: Time) {
        let (acked, end) = self.acked;
        let Some(publication) = self.primary.publish(elapsed, acked, end) else { return };
        for index in publication.seats() {
            let member = self.members[index].as_mut().expect("a board comes with its channel");
            let board = member.board.as_ref().expect("the machine publishes on lent boards only");
            let mut failed = false;
            for (at, line) in publication.lines(index) {
                // Also when its queue is full: it counts as posted, and would never complete.
                failed |= member.channel.post_bytes(board, *at, line).is_err();
            }
            if failed {
                self.lose(index, now);
            }
        }
    }

    /// True when readers have not been told of everything that is acknowledged.
    pub(super) fn has_news(&self) -> bool {
        self.primary.has_news(self.acked.0)
    }

    /// Helps a barrier to pass that the boards wait for, if nothing is appended.
    pub(super) fn help_beat(&mut self, elapsed: Duration, now: Time) {
        if let Some(barrier) = self.primary.beat_to_probe(elapsed) {
            self.probe(barrier, now);
        }
    }
}
