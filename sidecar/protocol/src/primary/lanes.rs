//! The order of outputs: of all that a primary wants done, only what may start now is handed out.
//!
//! Part of [`Primary`](super::Primary): its outputs and the answers to them pass through here, so all outputs that are handed
//! out may be executed concurrently.
//!
//! 1. All requests to a member wait for its channel.
//! 2. Closes, drops and trims at one member go one at a time, in the order in which the machine issued them.
//! 3. Opens at one member also go one at a time, since a later one proves all before it, but in a lane of their own. A member
//!    may be out of buffers for long, and the close that frees one must not wait behind its open; nor must the next segment
//!    wait for a close that waits for a disk. Opens do wait for the drops and trims before them, which free buffers.
//! 4. An open waits until the local memory for the segment is ready.
//! 5. Copies of closed segments wait for the closes, drops and trims before them. They run beside everything else, but only a
//!    few at a time over all members.
//! 6. Flushes and syncs go at once; the machine keeps at most one of each in flight per member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::SegmentId;

use super::{Input, Output, Seat};

/// Images copied to newcomers at once: each holds a segment in memory twice, and shares the wire with appends.
pub const INSTALLS_MAX: usize = 2;
/// Repairs at once over all members, beside the images for newcomers, which must not wait for them.
pub const REPAIRS_AT_ONCE: usize = 1;

/// The outputs under way, and those that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lanes {
    seats: BTreeMap<Seat, SeatLanes>,
    /// Segments whose local memory is not ready yet.
    preparing: BTreeSet<SegmentId>,
    installs: Copies,
    repairs: Copies,
}

/// One member's lanes. Bounded by what the machine can issue: an open, a flush, a close and an image for each segment, a drop,
/// and at most one trim between two of those.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct SeatLanes {
    connected: bool,
    /// Waiting for the channel, or for a close, drop or trim.
    orders: VecDeque<Output>,
    under_way: Option<Order>,
    opens: VecDeque<Output>,
    opening: bool,
}

/// An output that goes one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Order {
    Close,
    /// A drop or a trim: nothing but a flush overtakes it.
    Tidy,
}

/// Copies of closed segments: at most one for each closed segment and member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Copies {
    waiting: VecDeque<(Seat, Output)>,
    under_way: Vec<(Seat, SegmentId)>,
}

impl Lanes {
    /// An answer completes its output.
    pub(super) fn settle(&mut self, input: &Input) {
        match input {
            Input::Connected(seat) => self.with(*seat, |lanes| lanes.connected = true),
            Input::Prepared(segment) => drop(self.preparing.remove(segment)),
            Input::Opened(seat, _) => self.with(*seat, |lanes| lanes.opening = false),
            Input::Closed(seat, _) | Input::Tidied(seat) => self.with(*seat, |lanes| lanes.under_way = None),
            Input::Installed(seat, segment) | Input::InstallFailed(seat, segment) => self.installs.end(*seat, *segment),
            Input::Repaired(seat, segment) | Input::RepairFailed(seat, segment) => self.repairs.end(*seat, *segment),
            _ => {}
        }
    }

    /// Withholds those of the outputs from `start` on that must wait, and adds those that no longer need to.
    pub(super) fn pass(&mut self, out: &mut Vec<Output>, start: usize) {
        for output in out.split_off(start) {
            self.admit(output, out);
        }
        self.release(out);
    }

    fn admit(&mut self, output: Output, out: &mut Vec<Output>) {
        match &output {
            Output::Connect(seat, _) => drop(self.seats.insert(*seat, SeatLanes::default())),
            Output::Disconnect(seat) => self.forget(*seat),
            Output::Prepare(identity) => drop(self.preparing.insert(identity.segment)),
            other => {
                if let Some(seat) = other.seat() {
                    // Outputs for a former seat are discarded.
                    return self.with(seat, |lanes| lanes.push(output));
                }
            }
        }
        out.push(output);
    }

    fn release(&mut self, out: &mut Vec<Output>) {
        let Lanes { seats, preparing, installs, repairs } = self;
        for (seat, lanes) in seats.iter_mut().filter(|(_, lanes)| lanes.connected) {
            for next in lanes.take_due() {
                match next {
                    Output::Open(..) => lanes.opens.push_back(next),
                    Output::Install(..) => installs.waiting.push_back((*seat, next)),
                    Output::Repair(..) => repairs.waiting.push_back((*seat, next)),
                    next => out.push(next),
                }
            }
            let prepared = |open: &mut Output| match open {
                Output::Open(_, identity) => !preparing.contains(&identity.segment),
                _ => true,
            };
            if !lanes.opening
                && let Some(open) = lanes.opens.pop_front_if(prepared)
            {
                lanes.opening = true;
                out.push(open);
            }
        }
        installs.release(INSTALLS_MAX, out);
        repairs.release(REPAIRS_AT_ONCE, out);
    }

    /// After so many answers to trims and drops, one that is sent to this seat now will have been answered.
    pub(super) fn tidied_with_a_trim(&self, seat: Seat) -> u8 {
        let Some(SeatLanes { orders, under_way, .. }) = self.seats.get(&seat) else { return 0 };
        let waiting = orders.iter().filter(|output| Order::of(output) == Some(Order::Tidy)).count();
        let merged = matches!(orders.back(), Some(Output::Trim(..)));
        let before = waiting + usize::from(*under_way == Some(Order::Tidy));
        u8::try_from(before + usize::from(!merged)).unwrap_or(u8::MAX)
    }

    /// Nobody needs images of segments below this one any more.
    pub(super) fn forget_images_below(&mut self, first: SegmentId) {
        let needed = |output: &Output| !matches!(output, Output::Install(_, identity, ..) if identity.segment < first);
        self.installs.waiting.retain(|(_, install)| needed(install));
        self.seats.values_mut().for_each(|lanes| lanes.orders.retain(needed));
    }

    fn forget(&mut self, seat: Seat) {
        self.seats.remove(&seat);
        self.installs.forget(seat);
        self.repairs.forget(seat);
    }

    fn with(&mut self, seat: Seat, work: impl FnOnce(&mut SeatLanes)) {
        self.seats.get_mut(&seat).map(work);
    }
}

impl SeatLanes {
    /// A trim replaces the one directly before it. One that follows a close stays: a backup frees an unclosed older buffer
    /// only at a trim after a later close.
    fn push(&mut self, output: Output) {
        match (self.orders.back_mut(), &output) {
            (Some(last @ Output::Trim(..)), Output::Trim(..)) => *last = output,
            _ => self.orders.push_back(output),
        }
    }

    /// Takes out what no longer needs to wait.
    fn take_due(&mut self) -> Vec<Output> {
        let mut due = Vec::new();
        let mut blocked = self.under_way;
        for output in std::mem::take(&mut self.orders) {
            let order = Order::of(&output);
            let waits = match (&output, blocked) {
                (_, None) => false,
                (Output::Open(..), Some(order)) => order == Order::Tidy,
                (Output::Flush(..) | Output::Sync(..), _) => false,
                (_, Some(_)) => true,
            };
            if waits {
                blocked = blocked.max(order);
                self.orders.push_back(output);
                continue;
            }
            if order.is_some() {
                (self.under_way, blocked) = (order, order);
            }
            due.push(output);
        }
        due
    }
}

impl Order {
    fn of(output: &Output) -> Option<Order> {
        match output {
            Output::Close(..) => Some(Order::Close),
            Output::Drop(..) | Output::Trim(..) => Some(Order::Tidy),
            _ => None,
        }
    }
}

impl Copies {
    fn release(&mut self, most: usize, out: &mut Vec<Output>) {
        while self.under_way.len() < most
            && let Some((seat, copy)) = self.waiting.pop_front()
        {
            if let Output::Install(_, identity, ..) | Output::Repair(_, identity, ..) = &copy {
                self.under_way.push((seat, identity.segment));
            }
            out.push(copy);
        }
    }

    fn end(&mut self, seat: Seat, segment: SegmentId) {
        self.under_way.retain(|copy| *copy != (seat, segment));
    }

    fn forget(&mut self, seat: Seat) {
        self.waiting.retain(|(of, _)| *of != seat);
        self.under_way.retain(|(of, _)| *of != seat);
    }
}
