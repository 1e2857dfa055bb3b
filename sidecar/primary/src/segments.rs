//! The open segments: this side's memory, and the members' buffers. Appends are placed here.
//!
//! Part of [`PrimaryLog`].

use std::fmt;

use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::{Input, Seat};
use tailwind_protocol::segment::{Payload, SegmentWriter};

use crate::fabric::Fabric;
use crate::log::PrimaryLog;

/// An open segment.
pub(crate) struct OpenSegment<F: Fabric> {
    pub(crate) identity: SegmentIdentity,
    /// The writing side; taken when the segment becomes active.
    fresh: Option<F::Append>,
    pub(crate) shared: F::Shared,
    /// By index of the seat.
    pub(crate) remotes: [Option<F::Remote>; MEMBERS_MAX],
}

/// The segment being appended to.
pub(crate) struct ActiveSegment<F: Fabric> {
    writer: SegmentWriter,
    memory: F::Append,
    /// Where it ended at the last tick: the log is idle when nothing has been added since.
    ticked: Offset,
}

/// Where an append was placed.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Its end in the log.
    pub end: Position,
    /// LSN of its last record.
    pub last: Lsn,
}

impl<F: Fabric> ActiveSegment<F> {
    /// Everything up to the end of this append is acknowledged.
    pub(crate) fn on_acknowledged(&mut self, end: Position) {
        if end.segment == self.writer.identity().segment {
            self.writer.acknowledged(end.offset);
        }
    }

    /// Once the log is idle, marks follow what was acknowledged: a part of it that rots in a member's memory cannot look like
    /// the end of the log. Returns where the segment ends if marks were placed.
    fn mark(&mut self, acked: Position) -> Option<Offset> {
        let end = self.writer.closure().end;
        if acked.offset == end || planted::has(Bug::MarkedBeforeAck) {
            self.on_acknowledged(Position::new(acked.segment, end));
        }
        let idle = std::mem::replace(&mut self.ticked, end) == end;
        (idle && self.writer.wants_marks()).then(|| {
            let count = self.writer.mark(F::tail(&mut self.memory));
            F::publish(&mut self.memory, count);
            self.writer.closure().end
        })
    }
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// Local memory for a segment.
    pub fn prepared(&mut self, identity: SegmentIdentity, fresh: F::Append, shared: F::Shared, now: Time) {
        let remotes = [const { None }; MEMBERS_MAX];
        self.segments.push_back(OpenSegment { identity, fresh: Some(fresh), shared, remotes });
        self.step(now, Input::Prepared(identity.segment));
    }

    /// A member has lent its buffer for a segment.
    pub fn opened(&mut self, seat: Seat, segment: SegmentId, remote: F::Remote, now: Time) {
        let index = usize::from(seat.index);
        let open = self.segments.iter_mut().find(|open| open.identity.segment == segment);
        // A late answer for a seat that another member has now must not redirect that one's posts.
        let is_current = self.members[index].as_ref().is_some_and(|member| member.seat == seat);
        if let Some(open) = open.filter(|_| is_current) {
            open.remotes[index] = Some(remote);
            self.step(now, Input::Opened(seat, segment));
        }
    }

    /// Places one append of these payloads, which take `size` bytes in all. `None`: no room until the next segment's buffers
    /// are lent, or a pause for a newcomer; try again in a later turn.
    pub(crate) fn place(&mut self, size: usize, payloads: impl Iterator<Item = impl Payload>) -> Option<Placed> {
        if !self.primary.takes_appends() {
            return None;
        }
        if self.active.as_ref().is_none_or(|active| active.writer.room() < size) {
            self.activate()?;
        }
        let active = self.active.as_mut()?;
        let count = active.writer.append(F::tail(&mut active.memory), payloads);
        F::publish(&mut active.memory, count);
        let closure = active.writer.closure();
        self.primary.appended(closure.end);
        Some(Placed { end: Position::new(active.writer.identity().segment, closure.end), last: closure.last })
    }

    /// Bytes for appends in the segment that takes them; `None` until the epoch's first one does.
    pub(crate) fn room(&self) -> Option<usize> {
        self.active.as_ref().map(|active| active.writer.room())
    }

    /// The last record that was appended, in this epoch or before.
    pub(crate) fn last_appended(&self) -> Lsn {
        self.active.as_ref().map_or(self.primary.first(), |active| active.writer.next()).prev()
    }

    /// The first segment of the epoch, once it is lent; later the next one, sealing the one before.
    fn activate(&mut self) -> Option<()> {
        let (identity, first) = match &self.active {
            Some(active) => (self.primary.roll(active.writer.closure(), &mut self.outputs)?, active.writer.next()),
            None if self.primary.is_ready() => (self.primary.active()?, self.primary.first()),
            None => return None,
        };
        let segment = self.segments.iter_mut().find(|segment| segment.identity == identity);
        let segment = segment.expect("memory is prepared before any member reports its buffer");
        let mut memory = segment.fresh.take().expect("a segment becomes active once");
        let (writer, count) = SegmentWriter::open(identity, first, F::tail(&mut memory));
        F::publish(&mut memory, count);
        self.primary.appended(Offset(count));
        self.active = Some(ActiveSegment { writer, memory, ticked: Offset(0) });
        Some(())
    }

    /// Seals the active segment, if a sync cannot end before it is closed and there is anything in it.
    pub(crate) fn close_for_sync(&mut self) {
        let closure = self.active.as_ref().map(|active| active.writer.closure());
        let has_records = closure.is_some_and(|closure| closure.first <= closure.last);
        if has_records && self.primary.takes_appends() && self.primary.sync_needs_close() {
            self.activate();
        }
    }

    /// True when an append can be taken at once, or as soon as a roll-over is through.
    pub fn is_ready(&self) -> bool {
        self.active.is_some() || self.primary.is_ready()
    }

    /// Marks what is acknowledged where nothing was appended since the last tick.
    pub(crate) fn mark(&mut self) {
        let acked = self.primary.acked();
        if let Some(end) = self.active.as_mut().and_then(|active| active.mark(acked)) {
            self.primary.appended(end);
        }
    }

    /// Everything that was appended is to be on disk at every member: up to the record that is returned.
    pub(crate) fn sync_appended(&mut self) -> Lsn {
        let end = match &self.active {
            Some(active) => Position::new(active.writer.identity().segment, active.writer.closure().end),
            // Nothing yet in this epoch: what was recovered.
            None => self.primary.acked(),
        };
        let last = self.last_appended();
        let end = if planted::has(Bug::SyncsAckedOnly) { self.primary.acked() } else { end };
        self.primary.sync(end, last);
        last
    }
}

impl<F: Fabric> fmt::Debug for OpenSegment<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenSegment").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl<F: Fabric> fmt::Debug for ActiveSegment<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveSegment").field("writer", &self.writer).finish_non_exhaustive()
    }
}
