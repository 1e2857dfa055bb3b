//! Places records into the open segment, posts them to every member, learns what has completed.
//!
//! The heart of the append path: [`Primary`] decides, the fabric's channels move the bytes, this file joins the two.
//! Called by [`Path`](super::Path) once per turn; none of what it does per record allocates, locks or logs.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use tailwind_fabric::{AppendBuffer, Channel, ChannelError, RemoteBuffer, SharedBuffer};
use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Post, Primary, SEGMENTS_MAX, Seat};
use tailwind_protocol::segment::{Payload, SegmentWriter};
use tailwind_runtime::histogram::Histogram;

use super::latency::Latency;

/// Bytes of one work request at most: large enough for a newcomer's bulk, small enough not to delay others on the wire.
const POST_SIZE_MAX: u32 = 1 << 20;

/// An open segment: this side's memory, and the members' buffers.
#[derive(Debug)]
struct OpenSegment {
    identity: SegmentIdentity,
    /// The writing side; taken when the segment becomes active.
    fresh: Option<AppendBuffer>,
    shared: SharedBuffer,
    remotes: [Option<RemoteBuffer>; MEMBERS_MAX],
}

/// The segment being appended to.
#[derive(Debug)]
struct ActiveSegment {
    writer: SegmentWriter,
    buffer: AppendBuffer,
    /// Where it ended at the last tick: the log is idle when nothing has been added since.
    ticked: Offset,
}

impl ActiveSegment {
    /// Everything up to the end of this append is acknowledged.
    fn on_acknowledged(&mut self, end: Position) {
        if end.segment == self.writer.identity().segment {
            self.writer.acknowledged(end.offset);
        }
    }
}

/// A member's data channel.
#[derive(Debug)]
pub(super) struct MemberChannel {
    seat: Seat,
    pub(super) channel: Box<dyn Channel>,
    pub(super) board: Option<RemoteBuffer>,
    /// Writes that are on their way, lines of the board not counted.
    in_flight: u32,
}

impl MemberChannel {
    fn takes_more(&self) -> bool {
        self.in_flight < self.channel.depth()
    }
}

/// Joins a primary's machine with the data channels.
#[derive(Debug)]
pub(super) struct Replicator {
    pub(super) primary: Primary,
    active: Option<ActiveSegment>,
    segments: VecDeque<OpenSegment>,
    /// By index of the seat.
    pub(super) members: [Option<MemberChannel>; MEMBERS_MAX],
    /// What is posted and has not completed at every member that acks need.
    latency: Latency,
    /// The last acknowledged record, and where its append ends.
    pub(super) acked: (Lsn, Position),
    /// When lines that linger are pushed. Of the time since the path began.
    pub(super) lines_due: Option<Duration>,
    /// Something has completed in this turn.
    completed: bool,
    /// Since when appends have paused for a newcomer.
    paused: Option<Instant>,
    /// What the machine wants done by others; drained after every turn.
    pub(super) outputs: Vec<Output>,
    /// Data channels that have failed in this turn; drained before the outputs.
    pub(super) failed: Vec<(Seat, ChannelError)>,
}

/// Where an append was placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Its end in the log: acknowledged when [`Primary::acked`] reaches it.
    pub(super) end: Position,
    /// LSN of its last record.
    pub(super) last: Lsn,
}

impl Replicator {
    /// Takes over a machine that has just begun its epoch.
    pub(super) fn new(primary: Primary) -> Replicator {
        Replicator {
            acked: (primary.first().prev(), primary.acked()),
            lines_due: None,
            primary,
            active: None,
            segments: VecDeque::with_capacity(SEGMENTS_MAX),
            members: [const { None }; MEMBERS_MAX],
            latency: Latency::new(),
            completed: false,
            paused: None,
            outputs: Vec::with_capacity(64),
            failed: Vec::new(),
        }
    }

    /// The machine, for questions.
    pub(super) fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Places one append of these payloads, which take `size` bytes in all. `None`: no room until the next segment's
    /// buffers are lent, or a pause for a newcomer; try again in a later turn.
    pub(super) fn append(&mut self, size: usize, payloads: impl Iterator<Item = impl Payload>) -> Option<Placed> {
        if !self.primary.takes_appends() {
            return None;
        }
        if self.active.as_ref().is_none_or(|active| active.writer.room() < size) {
            self.activate()?;
        }
        let active = self.active.as_mut()?;
        let count = active.writer.append(active.buffer.tail_mut(), payloads);
        active.buffer.publish(count);
        let closure = active.writer.closure();
        self.primary.appended(closure.end);
        Some(Placed { end: Position::new(active.writer.identity().segment, closure.end), last: closure.last })
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
        let mut buffer = segment.fresh.take().expect("a segment becomes active once");
        let (writer, count) = SegmentWriter::open(identity, first, buffer.tail_mut());
        buffer.publish(count);
        self.primary.appended(Offset(count));
        self.active = Some(ActiveSegment { writer, buffer, ticked: Offset(0) });
        Some(())
    }

    /// Every append up to the end of this one is acknowledged. The machine's own position will not do: a write request may end
    /// in the middle of an append, and a scan would miss what was never whole.
    pub(super) fn acknowledged(&mut self, end: Position, last: Lsn) {
        self.acked = (last, end);
        if let Some(active) = &mut self.active {
            active.on_acknowledged(end);
        }
    }

    /// Time passes. Once the log is idle, marks follow what was acknowledged: a part of it that rots in a member's memory
    /// cannot look like the end of the log.
    pub(super) fn tick(&mut self, now: Time) {
        let acked = self.primary.acked();
        if let Some(active) = &mut self.active {
            let end = active.writer.closure().end;
            if acked.offset == end {
                active.on_acknowledged(acked);
            }
            if active.ticked == end && active.writer.wants_marks() {
                let count = active.writer.mark(active.buffer.tail_mut());
                active.buffer.publish(count);
                self.primary.appended(active.writer.closure().end);
            }
            active.ticked = end;
        }
        self.step(now, Input::Tick);
    }

    /// Everything that was appended is to be on disk at every member: up to the record that is returned.
    pub(super) fn sync(&mut self) -> Lsn {
        let (end, last) = match &self.active {
            Some(active) => {
                let segment = active.writer.identity().segment;
                (Position::new(segment, active.writer.closure().end), active.writer.next().prev())
            }
            // Nothing yet in this epoch: what was recovered.
            None => (self.primary.acked(), self.primary.first().prev()),
        };
        self.primary.sync(end, last);
        last
    }

    /// True when an append can be taken at once, or as soon as a roll-over is through.
    pub(super) fn is_ready(&self) -> bool {
        self.active.is_some() || self.primary.is_ready()
    }

    /// Members of the set that have a data channel now.
    pub(super) fn members_connected(&self) -> usize {
        let has_channel = |seat: &Seat| {
            let member = self.members[usize::from(seat.index)].as_ref();
            member.is_some_and(|member| member.seat == *seat)
        };
        self.primary.seats_in_set().filter(has_channel).count()
    }

    /// Posts what is not posted yet, one contiguous range per work request, as far as the channels want it now.
    pub(super) fn post(&mut self, now: Time) {
        let mut posted = false;
        for index in 0..MEMBERS_MAX {
            while self.members[index].as_ref().is_some_and(MemberChannel::takes_more)
                && let Some((segment, from, to)) = self.primary.next_post(index, POST_SIZE_MAX)
            {
                self.post_range(index, segment, from.0..to.0, now);
                posted = true;
            }
        }
        if posted {
            self.latency.begin(self.primary.positions().posted, 1, Instant::now());
            self.note_ridden();
        }
    }

    /// Counts how long what has completed in this turn has taken.
    pub(super) fn measure(&mut self, times: &Histogram) {
        if std::mem::take(&mut self.completed) {
            self.latency.finish(self.primary.positions().completed, Instant::now(), times);
        }
    }

    /// Counts how long a pause for a newcomer has taken, once it is over. `now`: when this turn began.
    pub(super) fn measure_pause(&mut self, now: Instant, times: &Histogram) {
        if !self.primary.takes_appends() {
            self.paused.get_or_insert(now);
        } else if let Some(began) = self.paused.take() {
            times.observe(now.saturating_duration_since(began), 1);
        }
    }

    /// Posts an empty write to every member that has had none since the barrier.
    pub(super) fn probe(&mut self, barrier: Post, now: Time) {
        for index in 0..MEMBERS_MAX {
            if self.members[index].is_some()
                && let Some(segment) = self.primary.probe(index, barrier)
            {
                self.post_range(index, segment, 0..0, now);
            }
        }
    }

    fn post_range(&mut self, index: usize, segment: SegmentId, range: Range<u32>, now: Time) {
        let Some(member) = &mut self.members[index] else { return };
        let segment = self.segments.iter().find(|open| open.identity.segment == segment);
        let segment = segment.expect("the machine posts from prepared memory only");
        let remote = segment.remotes[index].as_ref().expect("the machine posts to lent buffers only");
        match member.channel.post(remote, &segment.shared, range) {
            Ok(()) => member.in_flight += 1,
            Err(error) => self.lose(index, now, error),
        }
    }

    /// Collects completions. Returns true if there were any.
    pub(super) fn poll(&mut self, now: Time) -> bool {
        let mut progress = false;
        for index in 0..MEMBERS_MAX {
            let Some(member) = &mut self.members[index] else { continue };
            match member.channel.poll() {
                Ok(0) => {}
                Ok(count) => {
                    let of_log = self.primary.completed(index, count);
                    member.in_flight -= of_log;
                    (progress, self.completed) = (progress | (of_log > 0), self.completed | (of_log > 0));
                }
                Err(error) => {
                    self.lose(index, now, error);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Before sleeping: see [`Channel::arm`]. True if there is something to poll already.
    pub(super) fn arm(&mut self) -> bool {
        self.members.iter_mut().flatten().fold(false, |ready, member| member.channel.arm() | ready)
    }

    /// A data channel has failed.
    pub(super) fn lose(&mut self, index: usize, now: Time, why: ChannelError) {
        if let Some(member) = self.members[index].take() {
            self.failed.push((member.seat, why));
            self.primary.step(now, Input::Lost(member.seat), &mut self.outputs);
        }
    }

    /// What follows from completions: acks, closes, membership.
    pub(super) fn turn(&mut self) {
        self.primary.turn(&mut self.outputs);
        self.release();
    }

    /// Feeds the machine.
    pub(super) fn step(&mut self, now: Time, input: Input) {
        self.primary.step(now, input, &mut self.outputs);
        self.release();
    }

    /// Lets go of what the machine no longer needs.
    fn release(&mut self) {
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

    /// Local memory for a segment.
    pub(super) fn prepared(&mut self, identity: SegmentIdentity, fresh: AppendBuffer, shared: SharedBuffer, now: Time) {
        let remotes = [const { None }; MEMBERS_MAX];
        self.segments.push_back(OpenSegment { identity, fresh: Some(fresh), shared, remotes });
        self.step(now, Input::Prepared(identity.segment));
    }

    /// A member's data channel, and its board.
    pub(super) fn connected(&mut self, seat: Seat, channel: Box<dyn Channel>, board: Option<RemoteBuffer>, now: Time) {
        if board.is_some() {
            self.primary.board_lent(seat);
        }
        self.members[usize::from(seat.index)] = Some(MemberChannel { seat, channel, board, in_flight: 0 });
        self.step(now, Input::Connected(seat));
    }

    /// A connected member's board, if it had none.
    pub(super) fn board_lent(&mut self, seat: Seat, board: RemoteBuffer) {
        let member = self.members[usize::from(seat.index)].as_mut();
        if let Some(member) = member.filter(|member| member.seat == seat) {
            member.board = Some(board);
            self.primary.board_lent(seat);
        }
    }

    /// A member has lent its buffer for a segment.
    pub(super) fn opened(&mut self, seat: Seat, segment: SegmentId, remote: RemoteBuffer, now: Time) {
        let index = usize::from(seat.index);
        let open = self.segments.iter_mut().find(|open| open.identity.segment == segment);
        // A late answer for a seat that another member has now must not redirect that one's posts.
        let is_current = self.members[index].as_ref().is_some_and(|member| member.seat == seat);
        if let Some(open) = open.filter(|_| is_current) {
            open.remotes[index] = Some(remote);
            self.step(now, Input::Opened(seat, segment));
        }
    }
}
