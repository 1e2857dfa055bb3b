//! What waits for what: of all that a primary wants done, only what may start now is handed out.
//!
//! Part of [`Primary`](super::Primary): outputs pass through here on their way out, answers on their way in. Whoever executes
//! outputs may therefore run all of them side by side.
//!
//! 1. Everything that a member is asked waits for its channel.
//! 2. Closes, drops and trims of one member go one at a time, in the order in which the machine wanted them.
//! 3. Opens of one member go one at a time too, since a later one counts as proof of all before; but in a lane of their own.
//!    A member without a free buffer may have to be asked for long, and the close that frees one must not wait behind that.
//! 4. An open waits until local memory for the segment is there.
//! 5. Flushes go at once: the machine has one under way for each member.
//! 6. Copies of closed segments go beside everything else, but only so many at a time over all members.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::SegmentId;

use super::{Input, Output, Seat};

/// Images copied to newcomers at once: each holds a segment in memory twice, and shares the wire with appends.
pub const INSTALLS_MAX: usize = 2;
/// Copies mended at once, beside the images for newcomers, which must not wait for them.
pub const MENDS_AT_ONCE: usize = 1;

/// What is under way, and what waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lanes {
    seats: BTreeMap<Seat, SeatLanes>,
    /// Segments whose local memory is being made ready.
    preparing: BTreeSet<SegmentId>,
    installs: Copies,
    mends: Copies,
}

/// One member's lanes. Bounded by what the machine can want: an open for each open segment, a close for each segment, a drop,
/// and at most one trim between two of those.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct SeatLanes {
    connected: bool,
    orders: VecDeque<Output>,
    ordering: bool,
    opens: VecDeque<Output>,
    opening: bool,
}

/// Copies of closed segments: at most one for each closed segment and member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Copies {
    waiting: VecDeque<(Seat, Output)>,
    under_way: Vec<(Seat, SegmentId)>,
}

impl Lanes {
    /// An answer ends what it answers.
    pub(super) fn settle(&mut self, input: &Input) {
        match input {
            Input::Connected(seat) => self.with(*seat, |lanes| lanes.connected = true),
            Input::Prepared(segment) => drop(self.preparing.remove(segment)),
            Input::Opened(seat, _) => self.with(*seat, |lanes| lanes.opening = false),
            Input::Closed(seat, _) | Input::Tidied(seat) => self.with(*seat, |lanes| lanes.ordering = false),
            Input::Installed(seat, segment) => self.installs.end(*seat, *segment),
            Input::Mended(seat, segment) | Input::Unmended(seat, segment) => self.mends.end(*seat, *segment),
            _ => {}
        }
    }

    /// Keeps back what has to wait of the outputs from `start` on, and adds what need not wait any more.
    pub(super) fn pass(&mut self, out: &mut Vec<Output>, start: usize) {
        for output in out.split_off(start) {
            self.admit(output, out);
        }
        self.release(out);
    }

    fn admit(&mut self, output: Output, out: &mut Vec<Output>) {
        match &output {
            Output::Connect(seat, _) => drop(self.seats.insert(*seat, SeatLanes::default())),
            Output::Prepare(identity) => drop(self.preparing.insert(identity.segment)),
            Output::Disconnect(seat) => self.forget(*seat),
            Output::Open(seat, _) => return self.with(*seat, |lanes| lanes.opens.push_back(output)),
            Output::Close(seat, ..) | Output::Drop(seat, _) => {
                return self.with(*seat, |lanes| lanes.orders.push_back(output));
            }
            Output::Trim(seat, _) => return self.with(*seat, |lanes| lanes.trim(output)),
            Output::Install(seat, ..) => return self.installs.waiting.push_back((*seat, output)),
            Output::Mend(seat, ..) => return self.mends.waiting.push_back((*seat, output)),
            _ => {}
        }
        out.push(output);
    }

    fn release(&mut self, out: &mut Vec<Output>) {
        for lanes in self.seats.values_mut().filter(|lanes| lanes.connected) {
            lanes.release(&self.preparing, out);
        }
        let connected = |seat: &Seat| self.seats.get(seat).is_some_and(|lanes| lanes.connected);
        self.installs.release(INSTALLS_MAX, connected, out);
        self.mends.release(MENDS_AT_ONCE, connected, out);
    }

    fn forget(&mut self, seat: Seat) {
        self.seats.remove(&seat);
        self.installs.forget(seat);
        self.mends.forget(seat);
    }

    /// Nothing is wanted of a seat that is gone.
    fn with(&mut self, seat: Seat, work: impl FnOnce(&mut SeatLanes)) {
        self.seats.get_mut(&seat).map(work);
    }
}

impl SeatLanes {
    /// A trim covers the one before it, unless something stands between the two: a buffer that was left behind is given back
    /// by the trim that follows a close.
    fn trim(&mut self, output: Output) {
        match self.orders.back_mut() {
            Some(last @ Output::Trim(..)) => *last = output,
            _ => self.orders.push_back(output),
        }
    }

    fn release(&mut self, preparing: &BTreeSet<SegmentId>, out: &mut Vec<Output>) {
        if !self.ordering
            && let Some(next) = self.orders.pop_front()
        {
            self.ordering = true;
            out.push(next);
        }
        let prepared = |output: &mut Output| match output {
            Output::Open(_, identity) => !preparing.contains(&identity.segment),
            _ => true,
        };
        if !self.opening
            && let Some(next) = self.opens.pop_front_if(prepared)
        {
            self.opening = true;
            out.push(next);
        }
    }
}

impl Copies {
    fn release(&mut self, most: usize, connected: impl Fn(&Seat) -> bool, out: &mut Vec<Output>) {
        while self.under_way.len() < most
            && let Some(at) = self.waiting.iter().position(|(seat, _)| connected(seat))
            && let Some((seat, copy)) = self.waiting.remove(at)
        {
            if let Output::Install(_, identity, _) | Output::Mend(_, identity, _) = &copy {
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
