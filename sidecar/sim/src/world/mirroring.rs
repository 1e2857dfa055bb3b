//! The mirrors of a term: production's [`Mirrors`] at a primary of a table, over this world's fabric, by channels of their own.
//!
//! Part of [`table`](super::table). Each member of the set is asked for its parts; what the machine wants written is copied
//! from the acknowledged view and posted. Its steps are late, as those of a thread beside the append path are, and now and then
//! it copies a line while something is acknowledged.
//!
//! What a lost channel has posted may land later. So after such a loss the board is told that the mirror is being filled, by
//! another channel; when that has completed, the parts are lent again under other keys, all zero, and a new mirror begins. Where
//! a line of the board was under way by the lost channel, there is no other mirror in this epoch.

mod health;
mod members;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::board::mirror::{MIRROR_AT, MirrorLine, PartSize};
use tailwind_protocol::config::{MemberRef, Time};
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::table::acked::{AckedView, LINE_SIZE, LineId};
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::mirror::{Input, LOST_AFTER_MS, MirrorId, Mirrors, Output, State};

use super::fabric::{ChannelId, Key};
use super::lead::{Lead, Log};
use super::queue::{MS, Micros};
use super::sides::PART;
use super::{HostNo, SidecarNo, World};
use crate::trace::trace;

/// Pause before a member is asked again for its parts, or for another channel.
const ASK_AGAIN: Micros = 50 * MS;

/// The mirrors of one term.
#[derive(Debug)]
pub(crate) struct Mirroring {
    machine: Mirrors,
    view: Arc<AckedView>,
    mirrors: BTreeMap<MirrorId, Mirror>,
    count: u64,
    parts: u32,
    /// Members that have left while a line of their board was under way.
    barred: Vec<MemberRef>,
}

/// One mirror, and the way to it.
#[derive(Debug)]
struct Mirror {
    member: MemberRef,
    host: HostNo,
    channel: Option<ChannelId>,
    board: Option<(Slot, Key)>,
    parts: Vec<(Slot, Key)>,
    stage: Stage,
    /// The machine knows of it.
    is_known: bool,
    /// Nothing is asked of its member before this.
    ask_at: Micros,
    /// Of each request that has not completed, what it is.
    posted: VecDeque<Posted>,
    /// Writes of the machine that have completed.
    completed: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no memory yet.
    New,
    /// The machine writes it.
    Written,
    /// Its channel has failed, and the machine knows.
    Lost,
    /// The same, and its board may change at any time.
    Barred,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    /// So many lines of the index.
    Lines(u32),
    /// A line of the board.
    Board,
    /// One that the machine knows nothing of.
    Filling,
}

impl Mirroring {
    /// No mirrors yet, of the index of this log's table.
    pub(super) fn new(log: &mut Log) -> Mirroring {
        let view = Arc::clone(log.table().expect("of a table").index().acked_view());
        let changed = Arc::new(ChangedLines::new(view.lines(), Lsn(0)));
        log.note_changes(Arc::clone(&changed));
        let part_size = PartSize::new(PART).expect("a size");
        let parts = part_size.parts(view.buckets());
        let machine = Mirrors::new(Arc::clone(&view), changed, part_size);
        Mirroring { machine, view, mirrors: BTreeMap::new(), count: 0, parts, barred: Vec::new() }
    }

    /// For the cleaner.
    pub(super) fn published(&self, now: Time) -> Option<Lsn> {
        self.machine.published(now)
    }

    fn of_channel(&mut self, channel: ChannelId) -> Option<(MirrorId, &mut Mirror)> {
        let mut mirrors = self.mirrors.iter_mut();
        mirrors.find_map(|(id, mirror)| (mirror.channel == Some(channel)).then_some((*id, mirror)))
    }

    /// Whether the mirror at this host is one of those that are written to, and that a cleaner waits for.
    pub(super) fn counts(&self, no: HostNo, now: Time) -> bool {
        let id = self.mirrors.iter().find(|(_, mirror)| mirror.host == no).map(|(id, _)| *id);
        let state = self.machine.states().find(|(known, ..)| Some(*known) == id);
        state.is_some_and(|(_, state, _)| match state {
            State::Lost(since) => now < since.plus(LOST_AFTER_MS),
            State::Filling | State::Live => true,
        })
    }
}

impl World {
    /// The mirrors of a new term, if there are any in this seed.
    pub(super) fn begin_mirrors(&mut self, epoch: Epoch, log: &mut Log) -> Option<Mirroring> {
        self.plan.mirrors.as_ref()?;
        let names = self.plan.table.as_ref().map_or(0, |plan| plan.names);
        let mirroring = Mirroring::new(log);
        self.checks.table_mirrored(epoch, *mirroring.view.hash_key(), mirroring.view.buckets(), names);
        Some(mirroring)
    }

    fn mirror_input(&mut self, of: SidecarNo, lead: &mut Lead, input: Input, torn: bool) {
        let now = self.time(of);
        let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
        let mut out = Vec::new();
        mirroring.machine.step(now, input, &mut out);
        // Lines that follow one another, to be written at once. The first ones are torn.
        let mut lines: Vec<(MirrorId, LineId)> = Vec::new();
        let mut torn = torn;
        for output in out {
            let follows = |(before, last): &(MirrorId, LineId)| match output {
                Output::Write(id, line) => *before == id && last.0 + 1 == line.0,
                Output::Publish(..) => false,
            };
            if lines.last().is_some_and(|last| !follows(last)) {
                self.post_lines(of, lead, std::mem::take(&mut lines), std::mem::take(&mut torn));
            }
            match output {
                Output::Write(id, line) => lines.push((id, line)),
                Output::Publish(id, line) => self.post_mirror_line(lead, id, &line, Posted::Board),
            }
        }
        self.post_lines(of, lead, lines, torn);
    }

    /// Copies lines that follow one another and writes them at once. `torn`: something is acknowledged in the middle of a line.
    fn post_lines(&mut self, of: SidecarNo, lead: &mut Lead, lines: Vec<(MirrorId, LineId)>, torn: bool) {
        let Some((id, first)) = lines.first().copied() else { return };
        let Some(mirroring) = lead.table.as_ref().and_then(|table| table.mirroring.as_ref()) else { return };
        let view = Arc::clone(&mirroring.view);
        let part_size = PartSize::new(PART).expect("a size");
        let words = (lines.len() * LINE_SIZE / 8) as u64;
        let mut tears_at = if torn { self.random.below(words) } else { u64::MAX };
        let mut requests: Vec<(u32, u32, Vec<u8>)> = Vec::new();
        for (_, line) in lines {
            let bytes = view.line_while(line, || {
                if tears_at == 0 {
                    self.turn(of, lead, false);
                }
                tears_at = tears_at.wrapping_sub(1);
            });
            let (part, at) = part_size.line_at(line);
            match requests.last_mut().filter(|(before, ..)| *before == part) {
                Some((.., whole)) => whole.extend(bytes),
                None => requests.push((part, at, bytes.to_vec())),
            }
        }
        trace!(self, "{} writes lines from {} on to a mirror", self.sidecars[of.0].name, first.0);
        let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
        let Some(mirror) = mirroring.mirrors.get_mut(&id) else { return };
        let Some(channel) = mirror.channel else { return };
        for (part, at, bytes) in requests {
            let (slot, key) = mirror.parts[part as usize];
            mirror.posted.push_back(Posted::Lines((bytes.len() / LINE_SIZE) as u32));
            self.post(channel, slot, key, at, Rc::from(bytes));
        }
    }

    fn post_mirror_line(&mut self, lead: &mut Lead, id: MirrorId, line: &MirrorLine, as_what: Posted) {
        let bytes = line.encode(&lead.log.primary().board_identity());
        let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
        let Some(mirror) = mirroring.mirrors.get_mut(&id) else { return };
        let (Some(channel), Some((slot, key))) = (mirror.channel, mirror.board) else { return };
        mirror.posted.push_back(as_what);
        self.tally.rounds += u64::from(line.live);
        self.post(channel, slot, key, MIRROR_AT, Rc::from(&bytes[..]));
    }

    /// The mirrors' thread gets to them.
    pub(super) fn tick_mirrors(&mut self, of: SidecarNo) {
        if self.plan.mirrors.is_none() {
            return;
        }
        self.see_members(of);
        self.with_lead(of, |world, lead| world.step_mirrors(of, lead, false));
    }

    fn step_mirrors(&mut self, of: SidecarNo, lead: &mut Lead, torn: bool) {
        let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
        let mut written = Vec::new();
        for (id, mirror) in &mut mirroring.mirrors {
            let writes = std::mem::take(&mut mirror.completed);
            if writes > 0 {
                written.push((*id, writes));
            }
        }
        for (id, writes) in written {
            self.mirror_input(of, lead, Input::Written(id, writes), torn);
        }
        self.mirror_input(of, lead, Input::Tick, torn);
    }

    /// A write has completed: true if it was a mirror's.
    pub(super) fn on_mirror_written(&mut self, of: SidecarNo, channel: ChannelId) -> bool {
        let mut is_its = false;
        self.with_lead(of, |world, lead| {
            let mirroring = lead.table.as_mut().and_then(|table| table.mirroring.as_mut());
            let Some((id, mirror)) = mirroring.and_then(|mirroring| mirroring.of_channel(channel)) else { return };
            is_its = true;
            match mirror.posted.pop_front().expect("only what was posted completes") {
                Posted::Lines(lines) => mirror.completed += lines,
                Posted::Board => mirror.completed += 1,
                Posted::Filling => world.ask_for_parts(of, lead, id),
            }
        });
        is_its
    }

    /// A channel has failed: true if it was a mirror's.
    pub(super) fn on_mirror_broken(&mut self, of: SidecarNo, channel: ChannelId) -> bool {
        let now = self.queue.now();
        let mut is_its = false;
        self.with_lead(of, |world, lead| {
            let mirroring = lead.table.as_mut().and_then(|table| table.mirroring.as_mut());
            let Some((id, mirror)) = mirroring.and_then(|mirroring| mirroring.of_channel(channel)) else { return };
            is_its = true;
            (mirror.channel, mirror.completed, mirror.ask_at) = (None, 0, now + ASK_AGAIN);
            let was_written = mirror.stage == Stage::Written;
            let line_under_way = mirror.posted.contains(&Posted::Board);
            mirror.posted.clear();
            if was_written {
                mirror.stage = if line_under_way { Stage::Barred } else { Stage::Lost };
            }
            world.close_sender(channel);
            if was_written {
                trace!(world, "{} loses the channel of a mirror", world.sidecars[of.0].name);
                world.mirror_input(of, lead, Input::Lost(id), false);
            }
        });
        is_its
    }

    /// The mirrors' thread is in the middle of a line when what has completed is acknowledged.
    pub(super) fn step_mirrors_torn(&mut self, of: SidecarNo, lead: &mut Lead) {
        if self.plan.mirrors.is_some() && self.random.one_in(2) {
            self.step_mirrors(of, lead, true);
        }
    }
}

impl Mirror {
    fn new(member: MemberRef, world: &World) -> Mirror {
        Mirror {
            host: world.host_of(&member.id),
            member,
            channel: None,
            board: None,
            parts: Vec::new(),
            stage: Stage::New,
            is_known: false,
            ask_at: 0,
            posted: VecDeque::new(),
            completed: 0,
        }
    }
}
