//! Mirrors in members' memory, written line by line in any order and in pieces, and a getter that reads them, in pieces too, while
//! they change. Channels are lost, members cut off, bits flipped, and epochs end.

mod faults;
mod gets;
mod mirrors;
mod transfers;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tailwind_protocol::board::LINE_SIZE as BOARD_LINE;
use tailwind_protocol::board::mirror::PartSize;
use tailwind_protocol::config::Time;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::getter::{ConnectionId, GetId, Getter};
use tailwind_protocol::table::mirror::{MirrorId, Mirrors};

pub(super) use self::gets::Given;
use super::{Random, SEGMENTS, World};

const MEMBERS: usize = 3;
const CONNECTIONS: u64 = 4;
const PART: u32 = 4096;

/// What makes this world special.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    /// Bytes that a read takes at once.
    grain: usize,
    /// The first two keys have the same fingerprint, and nobody asks for the second.
    pub(super) twins: bool,
    /// Reads of records find what else is in the memory, now and then.
    foreign: bool,
    /// Records rot, at some members or at all.
    rots: bool,
}

pub(super) struct Member {
    pub(super) mirror: MirrorId,
    pub(super) memory: Vec<u8>,
    pub(super) board: [u8; 3 * BOARD_LINE],
    /// Its mirror's channel is lost; since when.
    pub(super) lost: Option<Time>,
    /// Its board is not written.
    cut: bool,
    /// It was lost for so long that nobody waits for it, and is not live again yet.
    pub(super) stale: bool,
    rotten: BTreeSet<(SegmentId, u32)>,
}

/// What is on its way to a member's memory or from there; of each piece whether it has passed.
struct Transfer {
    what: What,
    member: usize,
    pieces: Vec<bool>,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
enum What {
    /// A line of this mirror to this byte of its memory.
    Line(MirrorId, usize),
    Publish(MirrorId),
    Connect(Visit),
    Look(Visit, Duration),
    Buckets(Visit, GetId, [usize; 2]),
    Record(Visit, GetId, SegmentId, Range<u32>),
    Fetch(Visit, GetId, SegmentId, Range<u32>),
    Ask(u64),
}

/// A get that is not answered.
pub(super) struct Asked {
    pub(super) name: usize,
    pub(super) connection: ConnectionId,
    /// The state after this record, or later.
    pub(super) least: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct GetTally {
    pub(in super::super) values: u64,
    pub(in super::super) absent: u64,
    pub(in super::super) older: u64,
    pub(in super::super) unavailable: u64,
    pub(in super::super) fetched: u64,
    pub(in super::super) visits: u64,
    pub(in super::super) rounds: u64,
    pub(in super::super) reopened: u64,
}

pub(super) struct Reading {
    pub(super) nature: Nature,
    changed: Arc<ChangedLines>,
    mirrors: Mirrors,
    pub(super) members: Vec<Member>,
    mirror_ids: u64,
    beat: u64,
    version: u64,
    getter: Getter,
    told: u64,
    visiting: usize,
    /// Nothing is put until then, so that a key whose record has rotted keeps it.
    quiet_until: Time,
    transfers: Vec<Transfer>,
    pub(super) asked: BTreeMap<GetId, Asked>,
    gets: u64,
    /// What connections were shown: as of which record, and of each key which of its states.
    pub(super) as_of: BTreeMap<ConnectionId, u64>,
    pub(super) shown: BTreeMap<(ConnectionId, usize), usize>,
    /// When a mirror has last named a segment that it names no more.
    pub(super) named: BTreeMap<SegmentId, Time>,
    pub(in super::super) tally: GetTally,
}

impl World {
    /// A world with mirrors and a getter.
    pub(in super::super) fn with_readers(seed: u64) -> World {
        let mut random = Random(seed ^ 0x6765_7474);
        let nature = Nature {
            grain: random.pick(&[1, 8, 64]),
            twins: random.below(4) == 0,
            foreign: random.below(3) == 0,
            rots: random.below(2) == 0,
        };
        let names = random.pick(&[3, 8, 40]);
        let mut world = World::with(random, names);
        world.published = None;
        world.lag = world.random.pick(&[0, 3]);
        if nature.foreign {
            world.same_size = true;
        }
        world.reading = Some(Box::new(Reading::new(&world, nature)));
        world.end_epoch();
        world
    }

    pub(super) fn reading(&mut self) -> &mut Reading {
        self.reading.as_mut().expect("a world with readers")
    }

    pub(in super::super) fn get_tally(&self) -> GetTally {
        self.reading.as_ref().expect("a world with readers").tally
    }

    fn since_start(&self) -> Duration {
        Duration::from_millis(self.now.0)
    }

    /// Plays so many steps, and then leaves all alone until every get is answered.
    pub(in super::super) fn play_reading(&mut self, steps: u32) -> Result<(), String> {
        for step in 0..steps {
            let now = self.now;
            match self.random.below(1000) {
                0..150 if self.reading().quiet_until > now => {}
                0..150 => self.apply()?,
                150..250 => self.ack()?,
                250..300 => {
                    let ms = self.random.pick(&[2, 5, 30, 30, 200]);
                    self.pass(ms)?;
                }
                300..340 => self.work()?,
                340..440 => self.write_boards(),
                440..800 => {
                    for _ in 0..self.random.below(12) {
                        self.transfer()?;
                    }
                }
                800..900 => self.ask()?,
                900..996 if self.random.below(8) == 0 => self.fault()?,
                996.. if self.crashes && self.log.len() <= SEGMENTS => self.crash()?,
                _ => self.now = self.now.plus(1),
            }
            self.tick()?;
            if step % 16 == 0 {
                self.check_mirrors()?;
            }
        }
        self.rest_reading()
    }
}

impl Reading {
    fn new(world: &World, nature: Nature) -> Reading {
        let view = world.index.acked_view();
        let changed = Arc::new(ChangedLines::new(view.lines(), Lsn(0)));
        let mirrors = Mirrors::new(Arc::clone(view), Arc::clone(&changed), PartSize::new(PART).expect("a size"));
        let member = |_| Member {
            mirror: MirrorId(0),
            memory: Vec::new(),
            board: [0; 3 * BOARD_LINE],
            lost: None,
            cut: false,
            stale: false,
            rotten: BTreeSet::new(),
        };
        Reading {
            nature,
            changed,
            mirrors,
            members: (0..MEMBERS).map(member).collect(),
            mirror_ids: 0,
            beat: 0,
            version: 1,
            getter: Getter::new(0, Visit(0)),
            told: 0,
            visiting: 0,
            quiet_until: Time(0),
            transfers: Vec::new(),
            asked: BTreeMap::new(),
            gets: 0,
            as_of: BTreeMap::new(),
            shown: BTreeMap::new(),
            named: BTreeMap::new(),
            tally: GetTally::default(),
        }
    }

    /// The visit that is under way.
    fn visit(&self) -> Option<Visit> {
        (self.tally.visits > 0).then_some(Visit(self.tally.visits))
    }

    fn member_of(&self, id: MirrorId) -> Option<usize> {
        self.members.iter().position(|member| member.mirror == id && !member.memory.is_empty())
    }
}
