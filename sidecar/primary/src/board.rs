//! Tells readers how far the log is acknowledged: the lines on the members' boards.
//!
//! Part of [`PrimaryLog`]. The machine decides ([`Primary::publish`](tailwind_protocol::primary::Primary::publish)), this file
//! posts. Nothing here allocates.
//!
//! A line must not be in the way of the next append. Where it would cost the members' processors as much as one, it lingers
//! ([`Channel::post_bytes`]) and goes out with that append; with what waits for a barrier; or, where the log is idle, after
//! [`LINGER`].

use std::time::Duration;

use tailwind_protocol::config::Time;
use tailwind_protocol::follower::LOOK_INTERVAL;
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::Seat;

use crate::fabric::{Channel, Fabric};
use crate::log::PrimaryLog;

/// How long a line waits for an append: as long as a follower waits between two looks. Where the host sleeps it is up to a
/// millisecond, the grain of `epoll_wait(2)`.
const LINGER: Duration = LOOK_INTERVAL;

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// A member that had no memory for its board when it was connected has lent it.
    pub fn board_lent(&mut self, seat: Seat, board: F::Remote) {
        let member = self.members[usize::from(seat.index)].as_mut();
        if let Some(member) = member.filter(|member| member.seat == seat) {
            member.board = Some(board);
            self.primary.board_lent(seat);
        }
    }

    /// When a turn will have something to tell readers for which nothing else wakes the host.
    pub fn publish_due(&self) -> Option<Duration> {
        self.lines_due.into_iter().chain(self.primary.news_due(self.acked.0)).min()
    }

    /// Posts a line to each board, if it is time for it, and sees to those that linger. Returns how many bytes were posted.
    pub(crate) fn publish(&mut self, elapsed: Duration, now: Time) -> u64 {
        if self.lines_due.is_some_and(|due| due <= elapsed) {
            self.push_lines();
        }
        let (mut acked, mut end) = self.acked;
        if planted::has(Bug::BoardBeforeAck) {
            (acked, end) = self.waits.last_append().unwrap_or(self.acked);
        }
        let Some(publication) = self.primary.publish(elapsed, acked, end) else { return 0 };
        let mut bytes = 0;
        for index in publication.seats() {
            let member = self.members[index].as_mut().expect("a board comes with its channel");
            let board = member.board.as_ref().expect("the machine publishes on lent boards only");
            let mut failed = None;
            for (at, line) in publication.lines(index) {
                // Also when its queue is full: it counts as posted, and would never complete.
                failed = failed.or(member.channel.post_bytes(board, *at, line).err());
                bytes += line.len() as u64;
            }
            if let Some(why) = failed {
                self.lose(index, now, why);
            }
        }
        if self.lines_linger() {
            self.lines_due.get_or_insert(elapsed + LINGER);
        }
        bytes
    }

    /// Sends the lines that linger.
    pub(crate) fn push_lines(&mut self) {
        if self.lines_due.take().is_some() {
            self.members.iter_mut().flatten().for_each(|member| member.channel.push());
        }
    }

    /// Appends have been posted: lines that lingered are on their way with them.
    pub(crate) fn note_ridden(&mut self) {
        if self.lines_due.is_some() && !self.lines_linger() {
            self.lines_due = None;
        }
    }

    fn lines_linger(&self) -> bool {
        self.members.iter().flatten().any(|member| member.channel.lingers())
    }

    /// Helps a barrier to pass that the boards wait for, if nothing is appended.
    pub(crate) fn help_beat(&mut self, elapsed: Duration, now: Time) {
        if let Some(barrier) = self.primary.beat_to_probe(elapsed) {
            self.probe(barrier, now);
        }
    }
}
