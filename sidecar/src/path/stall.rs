//! Whether appends wait: they find no room, or are placed and not acknowledged, and nothing moves.
//!
//! Kept by [`Path`](super::Path), which tells it of every tick; told in the [`Description`](super::Description).

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::Position;

/// A shorter wait belongs to every roll-over, swap and slow disk.
const WORTH_TELLING_MS: u64 = 1000;

/// Since when appends wait, if they do.
#[derive(Debug, Default)]
pub(super) struct Stall {
    /// Since the last tick an append has found no room.
    refused: bool,
    /// So it was at the last tick.
    no_room: bool,
    acked: Position,
    since: Option<Time>,
}

impl Stall {
    /// An append finds no room in the open segment, and the next one is not lent yet.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Time passes. `pending`: appends have been placed and wait for their ack.
    pub(super) fn tick(&mut self, now: Time, acked: Position, pending: bool) {
        self.no_room = std::mem::take(&mut self.refused);
        let waits = (self.no_room || pending) && acked == self.acked;
        self.acked = acked;
        self.since = if waits { self.since.or(Some(now)) } else { None };
    }

    /// Whether appends have waited for a while; then, whether it is for room.
    pub(super) fn told(&self, now: Time) -> Option<bool> {
        let since = self.since?;
        (now >= since.plus(WORTH_TELLING_MS)).then_some(self.no_room)
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
        stall.tick(Time(1505), at(8), false);
        assert_eq!(stall.told(Time(9999)), None, "the client is gone, or has been served");
    }
}
