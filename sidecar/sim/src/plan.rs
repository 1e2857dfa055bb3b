//! What a seed decides before anything happens: the group's shape, how its hardware behaves, which faults strike and how
//! often.
//!
//! Drawn by [`World::new`](crate::world::World::new). Every fault is on in some seeds and off in others (swarm testing:
//! Groce et al., ISSTA 2012): a fault that strikes all the time hides what the others would show.

mod mirrors;

use tailwind_protocol::config::{Durability, Kind};
use tailwind_protocol::table::bounds;

use crate::random::Random;
use crate::tally::Fault;
pub use mirrors::MirrorPlan;

/// In which order the bytes of writes reach a backup's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Everything in the order in which it was posted: one queue pair on older hardware.
    InOrder,
    /// The lines of one request in order, requests in any.
    InOrderWithinRequest,
    /// Every line at any time: relaxed ordering, adaptive routing, multiple paths.
    Arbitrary,
}

/// How a primary's ends of its queue pairs behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Bytes of one write request at most.
    pub post_bytes_max: u32,
    /// Writes of the log that it is worth having on their way.
    pub depth: u32,
    /// Lines of a board wait for the next post.
    pub lingers: bool,
    /// Completions are reported bit by bit.
    pub bit_by_bit: bool,
}

impl Sending {
    /// As over shared memory.
    const PLAIN: Sending = Sending { post_bytes_max: 1 << 20, depth: u32::MAX, lingers: false, bit_by_bit: false };

    fn draw(random: &mut Random) -> Sending {
        // Small requests with few of them on their way would be a link that no newcomer catches up over.
        let (post_bytes_max, depth) =
            *random.pick(&[(1 << 10, u32::MAX), (4 << 10, 8), (32 << 10, 1), (1 << 20, 1), (1 << 20, u32::MAX)]);
        let (lingers, bit_by_bit) = (random.one_in(2), random.one_in(2));
        Sending { post_bytes_max, depth, lingers, bit_by_bit }
    }
}

/// What a seed does not draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// What an ack promises.
    pub durability: Option<Durability>,
    /// What the group keeps.
    pub kind: Option<Kind>,
    /// Whether backups have residents.
    pub residents: Option<bool>,
    /// Whether a table's index is mirrored.
    pub mirrors: Option<bool>,
}

/// A group that keeps a table.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// Segments of its memory.
    pub segments: u32,
    /// Keys that it takes.
    pub keys_max: u32,
    /// Keys that its app knows.
    pub names: u64,
    /// Those of them that most operations are about.
    pub hot: u64,
    /// One operation in so many is about any key.
    pub cold_one_in: u64,
    /// Of 64 requests, those that ask in vain whether a key has changed, as an app does that waits for a lock.
    pub vain: u64,
    /// Largest value of most puts, bytes.
    pub value_max: u64,
    /// One put in so many has a value of up to the largest size.
    pub large_one_in: u64,
    /// Its app gets and copies keys too. In two of five seeds; what the others play stays as it was before there were gets.
    pub reads: bool,
}

impl TablePlan {
    /// The smallest table, of an app that is told what to ask for.
    fn still() -> TablePlan {
        let (segments, keys_max) = (bounds::SEGMENTS_MIN, 100);
        TablePlan {
            segments,
            keys_max,
            names: 1,
            hot: 1,
            cold_one_in: 1,
            vain: 0,
            value_max: 0,
            large_one_in: 1,
            reads: false,
        }
    }

    /// A third of all seeds are tables. Drawn apart, so that the others play as they did before there were any.
    pub(crate) fn draw(seed: u64, kind: Option<Kind>) -> Option<TablePlan> {
        let mut random = Random::new(seed ^ TABLES);
        let is_table = random.one_in(3);
        if !kind.map_or(is_table, |kind| kind == Kind::Table) {
            return None;
        }
        let names = *random.pick(&[3, 40, 400]);
        Some(TablePlan {
            segments: bounds::SEGMENTS_MIN,
            keys_max: *random.pick(&[names, names * 9 / 10]) as u32,
            names,
            hot: *random.pick(&[3, names]),
            cold_one_in: *random.pick(&[3, 20]),
            vain: *random.pick(&[0, 0, 0, 63]),
            value_max: *random.pick(&[30, 700, 4000]),
            large_one_in: random.within(2, 10),
            reads: matches!(seed % 5, 2 | 4),
        })
    }
}

/// Residents, and what befalls them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResidentPlan {
    /// Of each backup at most.
    pub(crate) count: u32,
    /// Faults that strike beside the others.
    pub(crate) faults: Vec<Fault>,
}

impl ResidentPlan {
    /// In a third of all seeds. Drawn apart, so that the others play as they did before there were any.
    pub(crate) fn draw(seed: u64, wanted: Option<bool>) -> ResidentPlan {
        let mut random = Random::new(seed ^ RESIDENTS);
        let has_residents = random.one_in(3);
        if !wanted.unwrap_or(has_residents) {
            return ResidentPlan::default();
        }
        let faults = [Fault::ResidentRots, Fault::ResidentLost, Fault::LoadRefused];
        let faults = faults.into_iter().filter(|_| random.one_in(2)).collect();
        ResidentPlan { count: *random.pick(&[1, 2, 4, 100]), faults }
    }
}

/// The group of a script.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Members wanted.
    pub backups: u8,
    /// Backups beyond those.
    pub spares: u8,
    /// Sidecars, each with an app.
    pub sidecars: u8,
    /// Members needed.
    pub min_in_sync: u8,
    /// Buffers of each backup.
    pub slots: u32,
    /// Bytes that the flush folder of each backup may hold.
    pub flush_bytes_max: Option<u64>,
    /// What an ack promises.
    pub durability: Durability,
    /// Backups know how to pull.
    pub pulls: bool,
    /// What the group keeps in its log.
    pub kind: Kind,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            backups: 3,
            spares: 0,
            sidecars: 2,
            min_in_sync: 1,
            slots: 8,
            flush_bytes_max: None,
            durability: Durability::Memory,
            pulls: false,
            kind: Kind::Log,
        }
    }
}

/// What a seed decides at the start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Members wanted.
    pub backups: u8,
    /// Backups beyond those.
    pub spares: u8,
    /// Sidecars, each with an app.
    pub sidecars: u8,
    /// Members needed.
    pub min_in_sync: u8,
    /// What an ack promises.
    pub durability: Durability,
    /// Buffers of each backup.
    pub slots: u32,
    /// Buffers of which nothing is on disk yet, at most.
    pub unflushed_slots_max: u32,
    /// Bytes that the flush folder of each backup may hold.
    pub flush_bytes_max: Option<u64>,
    /// How bytes are placed.
    pub placement: Placement,
    /// Bytes of one packet.
    pub packet_size: u32,
    /// Microseconds from one end of a link to the other, at least and at most.
    pub latency: (u64, u64),
    /// Pause of an app between two looks at its socket, microseconds.
    pub app_pause: u64,
    /// Largest payload, bytes.
    pub payload_max: u64,
    /// One batch in so many is large enough to fill segments quickly.
    pub large_one_in: u64,
    /// How long faults strike, microseconds.
    pub fault_time: u64,
    /// Mean pause between two strikes, microseconds.
    pub fault_pause: u64,
    /// Pieces in which one-sided reads take their bytes; `None`: the group has no boards.
    pub read_grain: Option<u32>,
    /// Backups know how to pull; otherwise they are of an earlier build.
    pub pulls: bool,
    /// How a primary's ends of its queue pairs behave.
    pub sending: Sending,
    /// Residents of each backup at most, in the buffers that it has.
    pub residents: u32,
    /// Of a group that keeps a table.
    pub table: Option<TablePlan>,
    /// Of a table whose index is mirrored.
    pub mirrors: Option<MirrorPlan>,
    /// Faults that strike in this seed.
    pub faults: Vec<Fault>,
}

/// Faults that the simulator learned later, and in how many of a thousand seeds each strikes. They are drawn apart, so that
/// seeds without them play as they did before.
const DRAWN_APART: [(Fault, u64); 12] = [
    (Fault::ClosedFlushFails, 250),
    (Fault::AllButOneEmptied, 150),
    (Fault::AllButOneDamaged, 150),
    (Fault::ReadFails, 200),
    (Fault::FileLost, 150),
    (Fault::FileStale, 150),
    (Fault::PromiseStale, 300),
    (Fault::EndsBitFlip, 200),
    (Fault::SlotLost, 150),
    (Fault::TableZeroed, 150),
    (Fault::MemberEmptiedUnderLoad, 150),
    (Fault::SyncedAndDark, 200),
];
/// Tells those random numbers from all others of a seed.
const APART: u64 = 0x6c61_7465_7221;
/// The same of those that decide on tables.
const TABLES: u64 = 0x7461_626c_6573;
/// The same of those that decide on residents.
const RESIDENTS: u64 = 0x7265_7369_6465;

impl Plan {
    /// Draws a plan.
    pub fn draw(random: &mut Random) -> Plan {
        let mut apart = Random::new(random.clone().next() ^ APART);
        let backups = random.within(1, 3) as u8;
        let slots = random.within(6, 14) as u32;
        let near = random.within(3, 60);
        let planned = Fault::ALL.into_iter().filter(|fault| fault.chance() > 0);
        let mut faults: Vec<Fault> = planned.filter(|fault| random.per_mille(fault.chance())).collect();
        faults.extend(DRAWN_APART.iter().filter(|(_, chance)| apart.per_mille(*chance)).map(|(fault, _)| *fault));
        // Later than all others, for the same reason.
        let read_grain = apart.one_in(3).then(|| *apart.pick(&[1, 8, 64]));
        let pulls = apart.one_in(2);
        if pulls && apart.one_in(3) {
            faults.push(Fault::BackupsApart);
        }
        if apart.one_in(5) {
            faults.push(Fault::NotesStale);
        }
        if apart.one_in(4) {
            faults.push(Fault::PostFails);
        }
        Plan {
            backups,
            spares: random.below(3) as u8,
            sidecars: random.within(2, 3) as u8,
            min_in_sync: random.within(1, u64::from(backups.min(2))) as u8,
            durability: *random.pick(&[
                Durability::Memory,
                Durability::Memory,
                Durability::Memory,
                Durability::Flushed,
                Durability::Battery,
            ]),
            slots,
            unflushed_slots_max: random.within(3, u64::from(slots) + 4) as u32,
            flush_bytes_max: None,
            placement: *random.pick(&[Placement::InOrder, Placement::InOrderWithinRequest, Placement::Arbitrary]),
            packet_size: *random.pick(&[256, 1024, 4096]),
            latency: (near, near * random.within(2, 40)),
            app_pause: *random.pick(&[500, 2000, 8000]),
            payload_max: *random.pick(&[40, 300, 3000]),
            large_one_in: random.within(3, 20),
            fault_time: random.within(300_000, 4_000_000),
            fault_pause: random.within(5_000, 150_000),
            read_grain,
            pulls,
            sending: Sending::draw(&mut apart),
            residents: 0,
            table: None,
            mirrors: None,
            faults,
        }
    }

    /// A group in which nothing goes wrong by itself. Closed copies are scrubbed when somebody asks for it.
    pub(crate) fn still(shape: Shape) -> Plan {
        Plan {
            backups: shape.backups,
            spares: shape.spares,
            sidecars: shape.sidecars,
            min_in_sync: shape.min_in_sync,
            durability: shape.durability,
            slots: shape.slots,
            unflushed_slots_max: shape.slots,
            flush_bytes_max: shape.flush_bytes_max,
            placement: Placement::Arbitrary,
            packet_size: 4096,
            latency: (0, 0),
            app_pause: 1,
            payload_max: 0,
            large_one_in: 1,
            fault_time: 0,
            fault_pause: 0,
            read_grain: None,
            pulls: shape.pulls,
            sending: Sending::PLAIN,
            residents: 0,
            table: (shape.kind == Kind::Table).then(TablePlan::still),
            mirrors: None,
            faults: vec![Fault::ClosedBitFlip],
        }
    }

    /// Members lend boards.
    pub(crate) fn has_boards(&self) -> bool {
        self.read_grain.is_some() || self.mirrors.is_some()
    }

    /// What the group keeps.
    pub(crate) fn kind(&self) -> Kind {
        if self.table.is_some() { Kind::Table } else { Kind::Log }
    }

    /// True when this fault strikes in this seed.
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
