//! The members' channels: posts what was placed, collects completions.
//!
//! Part of [`PrimaryLog`].

use std::ops::Range;

use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::primary::{Input, Output, Post, Seat};

use crate::fabric::{Channel, Fabric};
use crate::log::PrimaryLog;

/// A member's data channel.
#[derive(Debug)]
pub(crate) struct MemberChannel<F: Fabric> {
    pub(crate) seat: Seat,
    pub(crate) channel: F::Channel,
    pub(crate) board: Option<F::Remote>,
    /// Writes that are on their way, lines of the board not counted.
    in_flight: u32,
}

impl<F: Fabric> MemberChannel<F> {
    fn takes_more(&self) -> bool {
        self.in_flight < self.channel.depth()
    }
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// A member's data channel, and its board.
    pub fn connected(&mut self, seat: Seat, channel: F::Channel, board: Option<F::Remote>, now: Time) {
        if board.is_some() {
            self.primary.board_lent(seat);
        }
        self.members[usize::from(seat.index)] = Some(MemberChannel { seat, channel, board, in_flight: 0 });
        self.step(now, Input::Connected(seat));
    }

    /// Members of the set that have a data channel now.
    pub fn members_connected(&self) -> usize {
        let has_channel = |seat: &Seat| {
            let member = self.members[usize::from(seat.index)].as_ref();
            member.is_some_and(|member| member.seat == *seat)
        };
        self.primary.seats_in_set().filter(has_channel).count()
    }

    /// Before sleeping: see [`Channel::arm`]. True if there is something to poll already.
    pub fn arm(&mut self) -> bool {
        self.members.iter_mut().flatten().fold(false, |ready, member| member.channel.arm() | ready)
    }

    /// Posts what is not posted yet, one contiguous range per work request, as far as the channels want it now. Returns
    /// how many bytes the channels have taken; `None`: there was nothing.
    pub(crate) fn post(&mut self, now: Time) -> Option<u64> {
        let mut posted = None;
        for index in 0..MEMBERS_MAX {
            while self.members[index].as_ref().is_some_and(MemberChannel::takes_more)
                && let Some((segment, from, to)) = self.primary.next_post(index, self.post_bytes_max)
            {
                let bytes = self.post_range(index, segment, from.0..to.0, now);
                posted = Some(posted.unwrap_or(0) + bytes);
            }
        }
        posted
    }

    /// Posts an empty write to every member that has had none since the barrier.
    pub(crate) fn probe(&mut self, barrier: Post, now: Time) {
        for index in 0..MEMBERS_MAX {
            if self.members[index].is_some()
                && let Some(segment) = self.primary.probe(index, barrier)
            {
                self.post_range(index, segment, 0..0, now);
            }
        }
    }

    /// How many bytes the channel has taken.
    fn post_range(&mut self, index: usize, segment: SegmentId, range: Range<u32>, now: Time) -> u64 {
        let Some(member) = &mut self.members[index] else { return 0 };
        let segment = self.segments.iter().find(|open| open.identity.segment == segment);
        let segment = segment.expect("the machine posts from prepared memory only");
        let remote = segment.remotes[index].as_ref().expect("the machine posts to lent buffers only");
        let bytes = u64::from(range.end - range.start);
        match member.channel.post(remote, &segment.shared, range) {
            Ok(()) => {
                member.in_flight += 1;
                bytes
            }
            Err(error) => {
                self.lose(index, now, error);
                0
            }
        }
    }

    /// Collects completions. Returns true if there were any of the log.
    pub(crate) fn poll(&mut self, now: Time) -> Polled {
        let mut polled = Polled::default();
        for index in 0..MEMBERS_MAX {
            let Some(member) = &mut self.members[index] else { continue };
            match member.channel.poll() {
                Ok(0) => {}
                Ok(count) => {
                    let of_log = self.primary.completed(index, count);
                    member.in_flight -= of_log;
                    polled.completed |= of_log > 0;
                }
                Err(error) => {
                    self.lose(index, now, error);
                    polled.failed = true;
                }
            }
        }
        polled
    }

    /// A data channel has failed.
    pub(crate) fn lose(&mut self, index: usize, now: Time, why: F::Error) {
        if let Some(member) = self.members[index].take() {
            self.failures.push((member.seat, why));
            self.primary.step(now, Input::Lost(member.seat), &mut self.outputs);
        }
    }

    /// Lets go of what the machine no longer needs.
    pub(crate) fn release(&mut self) {
        for output in &self.outputs {
            match output {
                Output::Forget(segment, _) => self.segments.retain(|open| open.identity.segment != *segment),
                Output::Disconnect(seat) => {
                    let index = usize::from(seat.index);
                    self.members[index].take_if(|member| member.seat == *seat);
                    self.segments.iter_mut().for_each(|segment| segment.remotes[index] = None);
                }
                _ => {}
            }
        }
    }
}

/// What a poll has brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    /// Writes of the log have completed.
    pub(crate) completed: bool,
    pub(crate) failed: bool,
}
