//! Tells readers how far the log is acknowledged: the lines on the members' boards.
//!
//! Called by [`Path`](super::Path) once per turn, after the acks. The machine decides
//! ([`Primary::publish`](tailwind_protocol::primary::Primary::publish)), this file posts. Nothing here allocates.
//!
//! A line must not be in the way of the next append. Where it would cost the members' processors as much as one, it lingers
//! ([`Channel::post_bytes`](tailwind_fabric::Channel::post_bytes)) and goes out with that append; with what waits for a barrier;
//! or, where the log is idle, after [`LINGER`].

use std::time::Duration;

use tailwind_protocol::config::Time;
use tailwind_protocol::follower::LOOK_INTERVAL;

use super::replicator::Replicator;

/// How long a line waits for an append: as long as a follower waits between two looks. Where the path sleeps it is up to a
/// millisecond, the grain of `epoll_wait(2)`.
const LINGER: Duration = LOOK_INTERVAL;

impl Replicator {
    /// Posts a line to each board, if it is time for it, and sees to those that linger. `elapsed` is since the path began.
    pub(super) fn publish(&mut self, elapsed: Duration, now: Time) {
        if self.lines_due.is_some_and(|due| due <= elapsed) {
            self.push_lines();
        }
        let (acked, end) = self.acked;
        let Some(publication) = self.primary.publish(elapsed, acked, end) else { return };
        for index in publication.seats() {
            let member = self.members[index].as_mut().expect("a board comes with its channel");
            let board = member.board.as_ref().expect("the machine publishes on lent boards only");
            let mut failed = None;
            for (at, line) in publication.lines(index) {
                // Also when its queue is full: it counts as posted, and would never complete.
                failed = failed.or(member.channel.post_bytes(board, *at, line).err());
            }
            if let Some(why) = failed {
                self.lose(index, now, why);
            }
        }
        if self.lines_linger() {
            self.lines_due.get_or_insert(elapsed + LINGER);
        }
    }

    /// Sends the lines that linger.
    pub(super) fn push_lines(&mut self) {
        if self.lines_due.take().is_some() {
            self.members.iter_mut().flatten().for_each(|member| member.channel.push());
        }
    }

    /// Appends have been posted: lines that lingered are on their way with them.
    pub(super) fn note_ridden(&mut self) {
        if self.lines_due.is_some() && !self.lines_linger() {
            self.lines_due = None;
        }
    }

    fn lines_linger(&self) -> bool {
        self.members.iter().flatten().any(|member| member.channel.lingers())
    }

    /// When [`Replicator::publish`] will have something to do for which nothing else wakes the path.
    pub(super) fn publish_due(&self) -> Option<Duration> {
        self.lines_due.into_iter().chain(self.primary.news_due(self.acked.0)).min()
    }

    /// Helps a barrier to pass that the boards wait for, if nothing is appended.
    pub(super) fn help_beat(&mut self, elapsed: Duration, now: Time) {
        if let Some(barrier) = self.primary.beat_to_probe(elapsed) {
            self.probe(barrier, now);
        }
    }
}
