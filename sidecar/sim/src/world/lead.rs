//! Executes what a [`Primary`] wants, posts what is appended, and acknowledges to the app.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::{Input, Output, Post, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{Caller, FenceRequest};
use tailwind_protocol::segment::{SegmentWriter, append_size};

use super::image::Requester;
use super::queue::Micros;
use super::seats::Link;
use super::sidecar::{Again, Purpose, Role};
use super::store::Ask;
use super::{SidecarNo, World, group};
use crate::trace::{records, trace};

/// How long a member may hold up the next segment.
pub(super) const OPEN_TIMEOUT_MS: u64 = 400;
/// Pause between two searches for a spare.
const RECRUIT_INTERVAL_MS: u64 = 250;
/// Pause before a swap of unknown outcome is sent again.
const SWAP_INTERVAL_MS: u64 = 100;
/// Bytes of one write request at most.
const POST_SIZE_MAX: u32 = 32 << 10;

/// A primary.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(crate) machine: Primary,
    pub(crate) epoch: Epoch,
    pub(super) caller: Caller,
    pub(crate) memory: BTreeMap<SegmentId, (SegmentIdentity, Vec<u8>)>,
    writer: Option<SegmentWriter>,
    /// Where it ended at the last tick.
    ticked: Offset,
    pub(super) links: BTreeMap<Seat, Link>,
    /// Appends that wait for room.
    pub(crate) backlog: VecDeque<Vec<Rc<[u8]>>>,
    /// Appends that wait for their ack: where each ends, and its records.
    pub(crate) unacked: VecDeque<(Position, Lsn, Lsn)>,
    barriers: Vec<Barrier>,
    /// The last acknowledged record, and where its append ends.
    acked: (Lsn, Position),
    /// Records up to which the app wants to hear that all are on disk, and since when.
    syncs: Vec<(Lsn, Micros)>,
    /// When members were asked what is corrupt there.
    pub(super) asked: Micros,
    /// Appends pause for a newcomer.
    paused: bool,
}

/// What the app is told once a barrier has passed that began after its question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proved {
    /// That its sidecar is primary.
    Role,
    /// That it has read the whole log.
    End,
    /// That everything up to this record is on disk at every member.
    Synced(Lsn),
}

#[derive(Debug)]
struct Barrier {
    post: Post,
    /// When the app asked.
    asked: Micros,
    proves: Proved,
}

/// Barriers of an app that wait.
const BARRIERS_MAX: usize = 4;

impl World {
    /// A candidate has won: the recovered log is the app's to read, and the new epoch begins.
    pub(crate) fn begin_epoch(&mut self, of: SidecarNo, config: Configuration, reference: &Reference) {
        self.judge_win(&config, reference);
        self.end_following(of, &config, reference.last());
        let rules = Rules {
            backups: self.desired.backups,
            min_in_sync: self.desired.min_in_sync,
            durability: self.plan.durability,
            segment_size: tailwind_protocol::layout::SegmentSize::MIN,
            open_timeout_ms: OPEN_TIMEOUT_MS,
            recruit_interval_ms: RECRUIT_INTERVAL_MS,
            swap_interval_ms: SWAP_INTERVAL_MS,
        };
        let caller = Caller { group: group(), log: config.log, epoch: config.epoch };
        let epoch = config.epoch;
        let mut out = Vec::new();
        let seed = self.random.next();
        let machine = Primary::new(config, rules, reference, seed, self.time(of), &mut out);
        let lead = Lead {
            acked: (machine.first().prev(), machine.acked()),
            machine,
            epoch,
            caller,
            memory: BTreeMap::new(),
            writer: None,
            ticked: Offset(0),
            links: BTreeMap::new(),
            backlog: VecDeque::new(),
            unacked: VecDeque::new(),
            barriers: Vec::new(),
            syncs: Vec::new(),
            asked: self.queue.now(),
            paused: false,
        };
        self.change_role(of, Role::Primary(Box::new(lead)));
        self.sidecars[of.0].app.begin(reference);
        self.with_lead(of, |world, lead| world.execute_all(of, lead, out));
    }

    /// Hands the lead to `work`, takes a turn of the append path, and carries out what follows from both.
    pub(crate) fn with_lead(&mut self, of: SidecarNo, work: impl FnOnce(&mut World, &mut Lead)) {
        let role = std::mem::replace(&mut self.sidecars[of.0].role, Role::Busy);
        let Role::Primary(mut lead) = role else {
            self.sidecars[of.0].role = role;
            return;
        };
        work(self, &mut lead);
        self.turn(of, &mut lead);
        let over = lead.machine.is_over();
        self.sidecars[of.0].role = Role::Primary(lead);
        if over {
            self.rest(of, 10);
        }
    }

    pub(crate) fn primary_input(&mut self, of: SidecarNo, input: Input) {
        let now = self.time(of);
        self.with_lead(of, |world, lead| {
            let mut out = Vec::new();
            lead.machine.step(now, input, &mut out);
            world.execute_all(of, lead, out);
        });
    }

    /// One turn of the append path: place, post, acknowledge, until nothing follows any more.
    fn turn(&mut self, of: SidecarNo, lead: &mut Lead) {
        loop {
            let mut out = Vec::new();
            while self.place_append(of, lead, &mut out) {}
            self.post_all(lead);
            lead.machine.turn(&mut out);
            self.acknowledge(of, lead);
            self.publish(lead);
            self.prove_syncs(lead);
            self.pass_barriers(of, lead);
            self.checks.bounded_primary(lead.memory.len());
            if out.is_empty() || lead.machine.is_over() {
                return self.execute_all(of, lead, out);
            }
            self.execute_all(of, lead, out);
        }
    }

    fn execute_all(&mut self, of: SidecarNo, lead: &mut Lead, out: Vec<Output>) {
        out.into_iter().for_each(|output| self.execute_one(of, lead, output));
    }

    pub(super) fn execute_one(&mut self, of: SidecarNo, lead: &mut Lead, output: Output) {
        if let Output::Connect(seat, member) = &output {
            lead.links.insert(*seat, self.link_to(member.clone()));
        }
        let link = output.seat().and_then(|seat| lead.links.get(&seat));
        let request = output.request(lead.caller.clone(), self.plan.durability);
        match output {
            Output::Install(_, identity, closure, ref sources) | Output::Repair(_, identity, closure, ref sources) => {
                if let Some(link) = link {
                    let config = lead.machine.config().clone();
                    let holders: Vec<_> = config.members.iter().map(|member| member.id.clone()).collect();
                    let (member, sources) = (link.member.clone(), sources.clone());
                    let whom = Requester::Seat(Box::new(output));
                    self.begin_image(of, &config, &member, (identity, closure), &holders, &sources, whom);
                }
            }
            Output::Prepare(identity) => {
                lead.memory.insert(identity.segment, (identity, vec![0; identity.size.bytes() as usize]));
                self.plan_again(of, 1, Again::Prepared(identity.segment));
            }
            Output::Disconnect(seat) => {
                if let Some(link) = lead.links.remove(&seat) {
                    trace!(self, "{} loses {}", self.sidecars[of.0].name, link.member.id);
                    if let Some(channel) = link.channel {
                        self.close_sender(channel);
                    }
                    self.give_up_image(of, seat);
                }
            }
            Output::Forget(segment, closure) => {
                lead.memory.remove(&segment);
                let name = &self.sidecars[of.0].name;
                let what = records(closure.first, closure.last);
                trace!(self, "{name}: segment {segment}, {what}, is closed everywhere");
            }
            Output::Swap(swap) => self.ask_store(of, Ask::Swap(swap)),
            Output::Survey => self.survey(of, None),
            Output::Fence(member) => {
                let request = Request::Fence(FenceRequest::of(group(), lead.machine.config(), &member.id));
                self.call(of, self.host_of(&member.id), request, Purpose::Recruit(member));
            }
            Output::ReadConfig => self.ask_store(of, Ask::Read),
            Output::StepDown(why) => {
                self.judge_step_down(why);
                trace!(self, "{} steps down: {why}", self.sidecars[of.0].name);
            }
            output => {
                if let (Some(link), Some(request)) = (link, request) {
                    self.call(of, link.host, request, Purpose::Seat(Box::new(output)));
                }
            }
        }
    }

    /// Places the oldest append that waits; false when there is none, or no room for it now.
    fn place_append(&mut self, of: SidecarNo, lead: &mut Lead, out: &mut Vec<Output>) -> bool {
        if lead.writer.is_none()
            && lead.machine.is_ready()
            && let Some(identity) = lead.machine.active()
        {
            lead.open_writer(identity, lead.machine.first());
        }
        self.trace_pause(of, lead);
        if !lead.machine.takes_appends() {
            return false;
        }
        let Some(batch) = lead.backlog.front() else { return false };
        let size = append_size(batch.iter().map(|payload| payload.len()));
        let Some(writer) = &lead.writer else { return false };
        if writer.room() < size {
            let closure = writer.closure();
            let Some(identity) = lead.machine.roll(closure, out) else { return false };
            lead.open_writer(identity, closure.last.next());
            trace!(self, "{} rolls to segment {}", self.sidecars[of.0].name, identity.segment);
            return true;
        }
        let Some(batch) = lead.backlog.pop_front() else { return false };
        self.write_append(of, lead, &batch);
        true
    }

    fn trace_pause(&mut self, of: SidecarNo, lead: &mut Lead) {
        let paused = !lead.machine.takes_appends();
        if paused != std::mem::replace(&mut lead.paused, paused) {
            self.tally.pauses += u64::from(paused);
            let what = if paused { "takes no appends, for a newcomer" } else { "takes appends again" };
            trace!(self, "{} {what}", self.sidecars[of.0].name);
        }
    }

    fn write_append(&mut self, of: SidecarNo, lead: &mut Lead, batch: &[Rc<[u8]>]) {
        let Some(writer) = &mut lead.writer else { return };
        let (identity, first, from) = (*writer.identity(), writer.next(), writer.closure().end.0);
        let (_, buffer) = lead.memory.get_mut(&identity.segment).expect("prepared before it was opened");
        writer.append(&mut buffer[from as usize..], batch.iter().map(|payload| &payload[..]));
        let end = writer.closure().end;
        lead.machine.appended(end);
        let position = Position::new(identity.segment, end);
        let last = Lsn(first.0 + batch.len() as u64 - 1);
        lead.unacked.push_back((position, first, last));
        self.checks.submitted(identity, first, from, batch);
        let name = &self.sidecars[of.0].name;
        trace!(self, "{name} appends {} at {}:{from}..{end}", records(first, last), identity.segment);
    }

    fn post_all(&mut self, lead: &mut Lead) {
        for (seat, link) in &lead.links {
            let Some(channel) = link.channel else { continue };
            while let Some((segment, from, to)) = lead.machine.next_post(usize::from(seat.index), POST_SIZE_MAX) {
                let (_, memory) = &lead.memory[&segment];
                let (slot, key) = link.remotes[&segment];
                self.post(channel, slot, key, from.0, Rc::from(&memory[from.0 as usize..to.0 as usize]));
            }
        }
    }

    fn acknowledge(&mut self, of: SidecarNo, lead: &mut Lead) {
        let acked = lead.machine.acked();
        let mut told = None;
        while let Some((end, first, last)) = lead.unacked.pop_front_if(|(end, ..)| *end <= acked) {
            lead.acknowledged(end);
            lead.acked = (last, end);
            let (start, _) = told.unwrap_or((first, last));
            told = Some((start, last));
            for lsn in first.0..=last.0 {
                self.judge_ack(lead.epoch, Lsn(lsn), lead.machine.config());
            }
        }
        if let Some((first, last)) = told {
            self.acked_now();
            self.checks.acked_by(self.queue.now(), last);
            self.sidecars[of.0].app.acked = last;
            trace!(self, "{} acknowledges {} up to {acked}", self.sidecars[of.0].name, records(first, last));
        }
    }

    /// What is on disk at every member was there for a primary that may have been deposed since.
    fn prove_syncs(&mut self, lead: &mut Lead) {
        let synced = lead.machine.synced();
        let reached = lead.syncs.iter().filter(|(last, _)| *last <= synced).max().copied();
        if let Some((last, asked)) = reached {
            lead.syncs.retain(|(waiting, _)| *waiting > synced);
            lead.prove(asked, Proved::Synced(last));
        }
    }

    /// Tells readers how far the log is acknowledged.
    fn publish(&mut self, lead: &mut Lead) {
        let now = Duration::from_micros(self.queue.now());
        let (mut acked, mut end) = lead.acked;
        if planted::has(Bug::BoardBeforeAck) {
            (acked, end) = lead.unacked.back().map_or(lead.acked, |(end, _, last)| (*last, *end));
        }
        if let Some(publication) = lead.machine.publish(now, acked, end) {
            for index in publication.seats() {
                let mut links = lead.links.iter().filter(|(seat, _)| usize::from(seat.index) == index);
                let (_, link) = links.next().expect("a seat has a link");
                let (Some(channel), Some((slot, key))) = (link.channel, link.board) else {
                    unreachable!("the machine publishes on lent boards only")
                };
                for (at, line) in publication.lines(index) {
                    self.post(channel, slot, key, *at, Rc::from(&line[..]));
                }
            }
        }
        if let Some(barrier) = lead.machine.beat_to_probe(now) {
            self.probe(lead, barrier);
        }
    }

    fn probe(&mut self, lead: &mut Lead, barrier: Post) {
        for (seat, link) in &lead.links {
            let Some(channel) = link.channel else { continue };
            if let Some(segment) = lead.machine.probe(usize::from(seat.index), barrier)
                && let Some((slot, key)) = link.remotes.get(&segment)
            {
                self.post(channel, *slot, *key, 0, Rc::from(&[][..]));
            }
        }
    }

    /// An empty write at every member proves that none of them had been fenced.
    fn pass_barriers(&mut self, of: SidecarNo, lead: &mut Lead) {
        let barriers: Vec<Post> = lead.barriers.iter().map(|barrier| barrier.post).collect();
        barriers.into_iter().for_each(|barrier| self.probe(lead, barrier));
        let machine = &lead.machine;
        let passed = |barrier: &mut Barrier| {
            let is_said = !matches!(barrier.proves, Proved::Role) && planted::has(Bug::EndUnproved);
            is_said || machine.passed(barrier.post)
        };
        let passed: Vec<Barrier> = lead.barriers.extract_if(.., passed).collect();
        for Barrier { asked, proves, .. } in passed {
            match proves {
                Proved::Role => {
                    self.tally.barriers += 1;
                    self.checks.barrier_passed(lead.epoch, asked);
                }
                Proved::End => self.checks.end_is_told(lead.epoch, asked),
                Proved::Synced(last) => {
                    trace!(self, "{} has synced up to record {last}", self.sidecars[of.0].name);
                    self.tally.syncs += 1;
                    self.checks.end_is_told(lead.epoch, asked);
                    self.judge_sync(lead.epoch, last);
                }
            }
        }
    }
}

impl Lead {
    /// The app wants everything that it has appended on disk at every member. True if it can be had now.
    pub(crate) fn sync(&mut self, asked: Micros) -> bool {
        let Some(writer) = &self.writer else { return false };
        let closure = writer.closure();
        let last = if closure.records() > 0 { closure.last } else { writer.next().prev() };
        self.machine.sync(Position::new(writer.identity().segment, closure.end), last);
        self.syncs.push((last, asked));
        true
    }

    /// The app has asked, and is told once it is proved that this is the primary.
    pub(crate) fn prove(&mut self, asked: Micros, proves: Proved) {
        if self.barriers.len() < BARRIERS_MAX || matches!(proves, Proved::Synced(_)) {
            self.barriers.push(Barrier { post: self.machine.barrier(), asked, proves });
        }
    }

    /// Marks what is acknowledged where nothing was appended since the last tick, as the append path does.
    pub(super) fn mark(&mut self) {
        let acked = self.machine.acked();
        let Some(writer) = &mut self.writer else { return };
        let end = writer.closure().end;
        if acked == Position::new(writer.identity().segment, end) {
            writer.acknowledged(end);
        }
        if self.ticked == end && writer.wants_marks() {
            let segment = writer.identity().segment;
            let (_, buffer) = self.memory.get_mut(&segment).expect("the active segment has memory");
            writer.mark(&mut buffer[end.0 as usize..]);
            self.machine.appended(writer.closure().end);
        }
        self.ticked = end;
    }

    /// Every append up to the end of this one is acknowledged.
    fn acknowledged(&mut self, end: Position) {
        if let Some(writer) = self.writer.as_mut().filter(|writer| writer.identity().segment == end.segment) {
            writer.acknowledged(end.offset);
        }
    }

    fn open_writer(&mut self, identity: SegmentIdentity, first: Lsn) {
        let (_, buffer) = self.memory.get_mut(&identity.segment).expect("prepared before it was opened");
        let (writer, end) = SegmentWriter::open(identity, first, buffer);
        self.writer = Some(writer);
        self.machine.appended(Offset(end));
    }
}
