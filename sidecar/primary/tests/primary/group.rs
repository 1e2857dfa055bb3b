//! A primary whose members do what a test tells them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tailwind_primary::{Channel, Fabric, Listener, Moment, PrimaryLog, Proof};
use tailwind_protocol::config::{Configuration, Durability, Kind, MemberRef, PrimaryRef, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Lsn, Position, SegmentId, Version};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::segment::append_size;

/// A segment's memory; its first bytes are published.
#[derive(Clone, Debug)]
pub(super) struct Memory(pub(super) Rc<RefCell<Vec<u8>>>);

#[derive(Debug)]
pub(super) struct Writing {
    bytes: Vec<u8>,
    published: Memory,
}

#[derive(Debug)]
pub(super) struct Plain;

impl Fabric for Plain {
    type Append = Writing;
    type Shared = Memory;
    type Remote = Memory;
    type Error = &'static str;
    type Channel = Link;

    fn tail(memory: &mut Writing) -> &mut [u8] {
        let from = memory.published.0.borrow().len();
        &mut memory.bytes[from..]
    }

    fn publish(memory: &mut Writing, count: u32) {
        let mut published = memory.published.0.borrow_mut();
        let from = published.len();
        published.extend_from_slice(&memory.bytes[from..from + count as usize]);
    }

    fn published<R>(memory: &Memory, read: impl FnOnce(&[u8]) -> R) -> R {
        read(&memory.0.borrow())
    }
}

/// What a test does with a channel.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Writes that have not completed: into which memory, where, what.
    writes: VecDeque<(Memory, u32, Vec<u8>)>,
    completed: u32,
    pub(super) depth: Option<u32>,
    pub(super) fails: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Link(pub(super) Rc<RefCell<Wire>>);

impl Link {
    /// Places and completes everything that was posted.
    pub(super) fn complete(&self) {
        let mut wire = self.0.borrow_mut();
        for (memory, at, bytes) in std::mem::take(&mut wire.writes) {
            let mut memory = memory.0.borrow_mut();
            let end = at as usize + bytes.len();
            if memory.len() < end {
                memory.resize(end, 0);
            }
            memory[at as usize..end].copy_from_slice(&bytes);
            wire.completed += 1;
        }
    }

    pub(super) fn posted(&self) -> usize {
        self.0.borrow().writes.len()
    }

    /// Bytes that were posted and have not completed.
    pub(super) fn bytes(&self) -> u64 {
        self.0.borrow().writes.iter().map(|(_, _, bytes)| bytes.len() as u64).sum()
    }
}

impl Channel<Plain> for Link {
    fn post(&mut self, remote: &Memory, local: &Memory, range: Range<u32>) -> Result<(), &'static str> {
        let mut wire = self.0.borrow_mut();
        if wire.fails {
            return Err("no");
        }
        let bytes = local.0.borrow()[range.start as usize..range.end as usize].to_vec();
        wire.writes.push_back((remote.clone(), range.start, bytes));
        Ok(())
    }

    fn post_bytes(&mut self, remote: &Memory, at: u32, bytes: &[u8]) -> Result<(), &'static str> {
        self.0.borrow_mut().writes.push_back((remote.clone(), at, bytes.to_vec()));
        Ok(())
    }

    fn lingers(&self) -> bool {
        false
    }

    fn push(&mut self) {}

    fn poll(&mut self) -> Result<u32, &'static str> {
        Ok(std::mem::take(&mut self.0.borrow_mut().completed))
    }

    fn depth(&self) -> u32 {
        self.0.borrow().depth.unwrap_or(u32::MAX)
    }

    fn arm(&mut self) -> bool {
        self.0.borrow().completed > 0
    }
}

/// What a turn has told.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) acks: Vec<(u32, Lsn)>,
    /// Acks of moves.
    pub(super) moves: Vec<Lsn>,
    pub(super) proofs: Vec<(&'static str, Proof)>,
    /// Bytes of the log, and of boards, that were posted.
    pub(super) log_bytes: u64,
    pub(super) board_bytes: u64,
}

impl Listener<u32, &'static str> for Heard {
    fn acknowledged(&mut self, append: Option<u32>, last: Lsn) {
        match append {
            Some(append) => self.acks.push((append, last)),
            None => self.moves.push(last),
        }
    }

    fn proved(&mut self, question: &'static str, proof: Proof) {
        self.proofs.push((question, proof));
    }

    fn posted(&mut self, _: Position, bytes: u64) {
        self.log_bytes += bytes;
    }

    fn published(&mut self, bytes: u64) {
        self.board_bytes += bytes;
    }
}

/// A primary whose members answer at once.
pub(super) struct Group {
    pub(super) log: PrimaryLog<Plain, u32, &'static str>,
    pub(super) links: Vec<(Seat, Link)>,
    /// Buffers that were lent, the latest last.
    pub(super) lent: Vec<(Seat, SegmentId, Memory)>,
    pub(super) identities: BTreeMap<SegmentId, SegmentIdentity>,
    /// Members lend no further buffer.
    pub(super) stingy: bool,
}

pub(super) const SIZE: SegmentSize = SegmentSize::MIN;
pub(super) const OPEN_TIMEOUT_MS: u64 = 1_000_000;

pub(super) fn member(number: usize) -> MemberRef {
    let id = format!("m{number}").parse().unwrap();
    MemberRef { id, boot: BootId(number as u128), control: String::new() }
}

impl Group {
    pub(super) fn new(members: usize, post_bytes_max: u32) -> Group {
        let config = Configuration {
            log: LogId(1),
            kind: Kind::Log,
            epoch: Epoch(1),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(1),
            primary: PrimaryRef { id: "s1".parse().unwrap(), control: String::new() },
            members: (1..=members).map(member).collect(),
        };
        let rules = Rules {
            backups: members as u8,
            min_in_sync: 1,
            durability: Durability::Memory,
            segment_size: SIZE,
            open_timeout_ms: OPEN_TIMEOUT_MS,
            recruit_interval_ms: 1_000_000,
            swap_interval_ms: 0,
        };
        let mut out = Vec::new();
        let primary = Primary::new(config, rules, &Reference::default(), 1, Time(0), &mut out);
        let mut log = PrimaryLog::new(primary, post_bytes_max);
        log.outputs = out;
        let mut group = Group { log, links: Vec::new(), lent: Vec::new(), identities: BTreeMap::new(), stingy: false };
        group.carry_out();
        group
    }

    pub(super) fn carry_out(&mut self) -> Vec<Output> {
        let mut others = Vec::new();
        while !self.log.outputs.is_empty() {
            for output in std::mem::take(&mut self.log.outputs) {
                match output {
                    Output::Connect(seat, _) => {
                        let link = Link::default();
                        self.links.push((seat, link.clone()));
                        self.log.connected(seat, link, None, Time(0));
                    }
                    Output::Prepare(identity) => self.prepare(identity),
                    Output::Open(seat, identity) if !self.stingy => self.lend(seat, identity.segment),
                    other => others.push(other),
                }
            }
        }
        others
    }

    fn prepare(&mut self, identity: SegmentIdentity) {
        self.identities.insert(identity.segment, identity);
        let published = Memory(Rc::default());
        let writing = Writing { bytes: vec![0; identity.size.bytes() as usize], published: published.clone() };
        self.log.prepared(identity, writing, published, Time(0));
    }

    fn lend(&mut self, seat: Seat, segment: SegmentId) {
        let memory = Memory(Rc::default());
        self.lent.push((seat, segment, memory.clone()));
        self.log.opened(seat, segment, memory, Time(0));
    }

    pub(super) fn append(&mut self, name: u32, payload: &[u8]) -> bool {
        let size = append_size(std::iter::once(payload.len()));
        self.log.append(name, size, std::iter::once(payload)).is_some()
    }

    pub(super) fn turn(&mut self) -> Heard {
        self.turn_at(Duration::ZERO)
    }

    pub(super) fn turn_at(&mut self, elapsed: Duration) -> Heard {
        let mut heard = Heard::default();
        self.log.turn(Moment { now: Time(0), elapsed, ticks: false }, &mut heard);
        heard
    }

    pub(super) fn tick(&mut self, now: Time) {
        let moment = Moment { now, elapsed: Duration::ZERO, ticks: true };
        self.log.turn(moment, &mut Heard::default());
    }

    pub(super) fn complete(&self, member: usize) {
        self.links[member].1.complete();
    }
}
