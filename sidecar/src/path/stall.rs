//! Whether appends or barriers wait: they find no room, or are not acknowledged or passed, and nothing moves.
//!
//! Kept by [`Leading`](super::leading::Leading), which tells it of every tick; told in the [`Description`](super::Description).

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::Position;

/// A shorter wait belongs to every roll-over, swap and slow disk.
const WORTH_TELLING_MS: u64 = 1000;

/// Since when appends or barriers wait, if they do.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Since the last tick an append or a barrier has found no room.
    refused: bool,
    /// The last tick before which one did. Clients may give up after some milliseconds, and come back.
    refused_at: Option<Time>,
    progress: Progress,
    since: Option<Time>,
}

/// What moves while nothing has to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) acked: Position,
    /// Barriers that have passed.
    pub(super) passed: u64,
}

impl Stall {
    /// An append finds no room in the open segment, or a barrier none to prove itself in, and the next one is not lent yet.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Time passes. `pending`: appends have been placed, or barriers taken, that wait for their answer.
    pub(super) fn tick(&mut self, now: Time, progress: Progress, pending: bool) {
        if std::mem::take(&mut self.refused) {
            self.refused_at = Some(now);
        }
        let waits = match self.finds_no_room(now) {
            // Barriers pass in what is left of the open segment, where an append finds no room.
            true => progress.acked == self.progress.acked,
            false => pending && progress == self.progress,
        };
        self.progress = progress;
        self.since = if waits { self.since.or(Some(now)) } else { None };
        if !waits {
            self.refused_at = None;
        }
    }

    /// Whether appends have waited for a while; then, whether it is for room.
    pub(super) fn told(&self, now: Time) -> Option<bool> {
        let since = self.since?;
        (now >= since.plus(WORTH_TELLING_MS)).then_some(self.finds_no_room(now))
    }

    fn finds_no_room(&self, now: Time) -> bool {
        self.refused_at.is_some_and(|at| now < at.plus(WORTH_TELLING_MS))
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Offset, SegmentId};

    use super::*;

    fn at(offset: u32) -> Progress {
        Progress { acked: Position::new(SegmentId(1), Offset(offset)), passed: 0 }
    }

    #[test]
    fn a_wait_is_told_after_a_second_without_progress() {
        let mut stall = Stall::default();
        stall.tick(Time(0), at(8), true);
        stall.tick(Time(5), at(8), true);
        assert_eq!(stall.told(Time(1004)), None);
        assert_eq!(stall.told(Time(1005)), Some(false));
        stall.tick(Time(1010), at(9), true);
        assert_eq!(stall.told(Time(3000)), None, "an ack has come");
    }

    #[test]
    fn barriers_that_pass_do_not_wait() {
        let mut stall = Stall::default();
        (0..1000).for_each(|tick| stall.tick(Time(tick * 5), Progress { passed: tick, ..at(8) }, true));
        assert_eq!(stall.told(Time(5000)), None);
    }

    #[test]
    fn an_append_waits_for_room_although_barriers_pass() {
        let mut stall = Stall::default();
        for tick in 0..=300 {
            stall.refuse();
            stall.tick(Time(tick * 5), Progress { passed: tick, ..at(8) }, true);
        }
        assert_eq!(stall.told(Time(1500)), Some(true));
    }

    #[test]
    fn an_idle_log_does_not_wait() {
        let mut stall = Stall::default();
        (0..1000).for_each(|tick| stall.tick(Time(tick * 5), at(8), false));
        assert_eq!(stall.told(Time(5000)), None);
    }

    #[test]
    fn an_append_without_room_waits_for_room() {
        let mut stall = Stall::default();
        for tick in 0..=300 {
            stall.refuse();
            stall.tick(Time(tick * 5), at(8), false);
        }
        assert_eq!(stall.told(Time(1500)), Some(true));
        stall.tick(Time(1505), at(9), false);
        assert_eq!(stall.told(Time(9999)), None, "it has been served");
    }

    #[test]
    fn clients_that_give_up_and_come_back_wait_for_room() {
        let mut stall = Stall::default();
        for tick in 0..=300 {
            if tick % 20 == 0 {
                stall.refuse();
            }
            stall.tick(Time(tick * 5), at(8), false);
        }
        assert_eq!(stall.told(Time(1500)), Some(true));
        for tick in 301..=500 {
            stall.tick(Time(tick * 5), at(8), false);
        }
        assert_eq!(stall.told(Time(2500)), None, "they have not come back");
    }
}
