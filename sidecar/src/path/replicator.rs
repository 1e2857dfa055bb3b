//! Places records into the open segment, posts them to every member, learns what has completed.
//!
//! The heart of the append path: [`Primary`] decides, the fabric's channels move the bytes, this file joins the two.
//! Called by [`Path`](super::Path) once per turn; none of what it does per record allocates, locks or logs.

use std::collections::VecDeque;

use tailwind_fabric::{AppendBuffer, Channel, RemoteBuffer, SharedBuffer};
use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, SEGMENTS_MAX, Seat};
use tailwind_protocol::segment::{SegmentWriter, append_size};

/// Bytes of one work request at most: large enough for a newcomer's bulk, small enough not to delay others on the wire.
const POST_SIZE_MAX: u32 = 1 << 20;

/// One open segment on this side.
#[derive(Debug)]
struct Local {
    identity: SegmentIdentity,
    /// The writing side; taken when the segment becomes active.
    fresh: Option<AppendBuffer>,
    shared: SharedBuffer,
    remotes: [Option<RemoteBuffer>; MEMBERS_MAX],
}

/// The segment being appended to.
#[derive(Debug)]
struct Active {
    writer: SegmentWriter,
    buffer: AppendBuffer,
    /// Where it ended at the last tick: the log is idle when nothing has been added since.
    ticked: Offset,
}

impl Active {
    fn learn(&mut self, acked: Position) {
        if acked.segment == self.writer.identity().segment {
            self.writer.acknowledged(acked.offset);
        }
    }
}

#[derive(Debug)]
struct Link {
    seat: Seat,
    channel: Box<dyn Channel>,
}

/// A primary's log in motion.
#[derive(Debug)]
pub struct Replicator {
    primary: Primary,
    active: Option<Active>,
    locals: VecDeque<Local>,
    links: [Option<Link>; MEMBERS_MAX],
    /// What the machine wants done by others; drained after every turn.
    pub outputs: Vec<Output>,
}

/// Where an append was placed.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Its end in the log: acknowledged when [`Replicator::acked`] reaches it.
    pub end: Position,
    /// LSN of its last record.
    pub last: Lsn,
}

impl Replicator {
    /// Takes over a machine that has just begun its epoch.
    pub fn new(primary: Primary) -> Replicator {
        Replicator {
            primary,
            active: None,
            locals: VecDeque::with_capacity(SEGMENTS_MAX),
            links: [const { None }; MEMBERS_MAX],
            outputs: Vec::with_capacity(64),
        }
    }

    /// The machine, for questions.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// Places one append of these payloads, which take `size` bytes in all. `None`: no room until the next segment's
    /// buffers are lent; try again in a later turn.
    pub fn append<'a>(&mut self, size: usize, payloads: impl Iterator<Item = &'a [u8]>) -> Option<Placed> {
        if self.active.as_ref().is_none_or(|active| active.writer.room() < size) {
            self.activate()?;
        }
        let acked = self.primary.acked();
        let active = self.active.as_mut()?;
        active.learn(acked);
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
        let local = self.locals.iter_mut().find(|local| local.identity == identity);
        let local = local.expect("memory is prepared before any member reports its buffer");
        let mut buffer = local.fresh.take().expect("a segment becomes active once");
        let (writer, count) = SegmentWriter::open(identity, first, buffer.tail_mut());
        buffer.publish(count);
        self.primary.appended(Offset(count));
        self.active = Some(Active { writer, buffer, ticked: Offset(0) });
        Some(())
    }

    /// Time passes. Behind what was acknowledged since the last tick, and nothing after it, stand marks: whatever of it
    /// rots in a member's memory cannot look like the end of the log.
    pub fn tick(&mut self, now: Time) {
        let acked = self.primary.acked();
        if let Some(active) = &mut self.active {
            active.learn(acked);
            let end = active.writer.closure().end;
            if active.ticked == end && active.writer.wants_marks() {
                let count = active.writer.mark(active.buffer.tail_mut());
                active.buffer.publish(count);
                self.primary.appended(active.writer.closure().end);
            }
            active.ticked = end;
        }
        self.step(now, Input::Tick);
    }

    /// True when an append can be taken at once, or as soon as a roll-over is through.
    pub fn is_ready(&self) -> bool {
        self.active.is_some() || self.primary.is_ready()
    }

    /// Posts everything that is not posted yet, one contiguous range per work request.
    pub fn post(&mut self, now: Time) {
        for index in 0..MEMBERS_MAX {
            while let Some(link) = &mut self.links[index]
                && let Some((segment, from, to)) = self.primary.next_post(index, POST_SIZE_MAX)
            {
                let local = self.locals.iter().find(|local| local.identity.segment == segment);
                let local = local.expect("a posted segment has local memory");
                let remote = local.remotes[index].as_ref().expect("the machine posts to lent buffers only");
                if link.channel.post(remote, &local.shared, from.0..to.0).is_err() {
                    self.lose(index, now);
                }
            }
        }
    }

    /// Posts an empty write to every member that has had none since the barrier.
    pub fn probe(&mut self, barrier: tailwind_protocol::primary::Post, now: Time) {
        for index in 0..MEMBERS_MAX {
            let Some(link) = &mut self.links[index] else { continue };
            let Some(segment) = self.primary.probe(index, barrier) else { continue };
            let local = self.locals.iter().find(|local| local.identity.segment == segment);
            let local = local.expect("the active segment has local memory");
            let remote = local.remotes[index].as_ref().expect("the machine probes lent buffers only");
            if link.channel.post(remote, &local.shared, 0..0).is_err() {
                self.lose(index, now);
            }
        }
    }

    /// Collects completions. Returns true if there were any.
    pub fn poll(&mut self, now: Time) -> bool {
        let mut progress = false;
        for index in 0..MEMBERS_MAX {
            let Some(link) = &mut self.links[index] else { continue };
            match link.channel.poll() {
                Ok(0) => {}
                Ok(count) => {
                    self.primary.completed(index, count);
                    progress = true;
                }
                Err(_) => {
                    self.lose(index, now);
                    progress = true;
                }
            }
        }
        progress
    }

    /// Before sleeping: see [`Channel::arm`]. True if there is something to poll already.
    pub fn arm(&mut self) -> bool {
        self.links.iter_mut().flatten().fold(false, |ready, link| link.channel.arm() | ready)
    }

    fn lose(&mut self, index: usize, now: Time) {
        if let Some(link) = self.links[index].take() {
            self.primary.step(now, Input::Lost(link.seat), &mut self.outputs);
        }
    }

    /// What follows from completions: acks, closes, membership.
    pub fn turn(&mut self) {
        self.primary.turn(&mut self.outputs);
        self.release();
    }

    /// Feeds the machine.
    pub fn step(&mut self, now: Time, input: Input) {
        self.primary.step(now, input, &mut self.outputs);
        self.release();
    }

    /// Lets go of what the machine no longer needs.
    fn release(&mut self) {
        for output in &self.outputs {
            match output {
                Output::Forget(segment, _) => self.locals.retain(|local| local.identity.segment != *segment),
                Output::Disconnect(seat) => {
                    let index = usize::from(seat.index);
                    self.links[index].take_if(|link| link.seat == *seat);
                    self.locals.iter_mut().for_each(|local| local.remotes[index] = None);
                }
                _ => {}
            }
        }
    }

    /// Everything up to here may be acknowledged.
    pub fn acked(&self) -> Position {
        self.primary.acked()
    }

    /// Local memory for a segment.
    pub fn prepared(&mut self, identity: SegmentIdentity, fresh: AppendBuffer, shared: SharedBuffer) {
        self.locals.push_back(Local { identity, fresh: Some(fresh), shared, remotes: [const { None }; MEMBERS_MAX] });
    }

    /// A member's data channel.
    pub fn connected(&mut self, seat: Seat, channel: Box<dyn Channel>) {
        self.links[usize::from(seat.index)] = Some(Link { seat, channel });
    }

    /// A member has lent its buffer for a segment.
    pub fn opened(&mut self, seat: Seat, segment: SegmentId, remote: RemoteBuffer, now: Time) {
        let local = self.locals.iter_mut().find(|local| local.identity.segment == segment);
        // A late answer for a seat that has been given to another member must not point that one's posts astray.
        let linked = self.links[usize::from(seat.index)].as_ref().is_some_and(|link| link.seat == seat);
        if let Some(local) = local.filter(|_| linked) {
            local.remotes[usize::from(seat.index)] = Some(remote);
            self.step(now, Input::Opened(seat, segment));
        }
    }

    /// Channels whose completions can be waited for.
    pub fn channels(&self) -> impl Iterator<Item = &dyn Channel> {
        self.links.iter().flatten().map(|link| &*link.channel)
    }
}

/// Bytes that an append of these payload lengths takes in the log.
pub fn size_of(lengths: impl Iterator<Item = usize>) -> usize {
    append_size(lengths)
}
