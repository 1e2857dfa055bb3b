//! A primary: production's [`PrimaryLog`] over this world's fabric, and the app that it acknowledges to. Executes what its
//! machine wants done.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tailwind_primary::{Listener, Moment, PrimaryLog, Proof};
use tailwind_protocol::backup::Request;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{Caller, FenceRequest};
use tailwind_protocol::segment::append_size;

use super::image::Requester;
use super::queue::Micros;
use super::seats::Link;
use super::sender::{Published, SegmentMemory, SimFabric, Wire};
use super::sidecar::{Again, Purpose, Role};
use super::store::Ask;
use super::table::TableLead;
use super::{SidecarNo, World, group};
use crate::trace::{records, trace};

/// How long a member may hold up the next segment.
pub(super) const OPEN_TIMEOUT_MS: u64 = 400;
/// Pause between two searches for a spare.
const RECRUIT_INTERVAL_MS: u64 = 250;
/// Pause before a swap of unknown outcome is sent again.
const SWAP_INTERVAL_MS: u64 = 100;
/// Questions of an app that wait.
const QUESTIONS_MAX: usize = 4;

/// A primary's log. Appends need no names: acks come in their order, and without a gap.
pub(super) type Log = PrimaryLog<SimFabric, (), Question>;

/// A primary.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(super) log: Log,
    pub(crate) epoch: Epoch,
    pub(super) caller: Caller,
    pub(super) wire: Wire,
    /// What is published of the open segments.
    pub(super) memory: BTreeMap<SegmentId, (SegmentIdentity, Published)>,
    /// The writing sides of those that are being prepared.
    fresh: BTreeMap<SegmentId, SegmentMemory>,
    pub(super) links: BTreeMap<Seat, Link>,
    /// Appends that wait for room.
    pub(crate) backlog: VecDeque<Vec<Rc<[u8]>>>,
    /// Of a group that keeps a table.
    pub(super) table: Option<Box<TableLead>>,
    /// When members were asked what is corrupt there.
    pub(super) asked: Micros,
    /// Appends pause for a newcomer.
    paused: bool,
}

/// What the app is told once it is proved that its sidecar was primary after the question.
#[derive(Clone, Copy, Debug)]
pub(crate) enum About {
    /// That it is.
    Role,
    /// That the app has read the whole log.
    End,
    /// That what it has appended is on disk at every member.
    Sync,
    /// That a condition of this request did not hold.
    Mismatch(u64),
    /// What keys have that were got fresh.
    Gets(u64),
    /// How far the log is acknowledged, to the getter of this sidecar's process that has asked this.
    Position(SidecarNo, u32, u64),
}

/// A question of the app.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) asked: Micros,
    pub(super) about: About,
}

/// What a turn tells the app, in its order.
#[derive(Debug)]
enum Told {
    Acknowledged(Lsn),
    Proved(Question, Proof),
}

#[derive(Debug, Default)]
struct Heard(Vec<Told>);

impl Listener<(), Question> for Heard {
    fn acknowledged(&mut self, _: Option<()>, last: Lsn) {
        self.0.push(Told::Acknowledged(last));
    }

    fn proved(&mut self, question: Question, proof: Proof) {
        self.0.push(Told::Proved(question, proof));
    }
}

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
        let table = self.begin_table(of, epoch, reference);
        let mut out = Vec::new();
        let seed = self.random.next();
        let machine = Primary::new(config, rules, reference, seed, self.time(of), &mut out);
        let mut log = PrimaryLog::new(machine, self.plan.sending.post_bytes_max);
        log.outputs = out;
        let table = table.map(|(table, mut lead)| {
            log.keep_table(Box::new(table));
            lead.mirroring = self.begin_mirrors(epoch, &mut log);
            Box::new(lead)
        });
        let mut lead = Lead {
            log,
            epoch,
            caller,
            wire: Wire::default(),
            memory: BTreeMap::new(),
            fresh: BTreeMap::new(),
            links: BTreeMap::new(),
            backlog: VecDeque::new(),
            table,
            asked: self.queue.now(),
            paused: false,
        };
        self.hand_gets_over(of, &mut lead);
        self.change_role(of, Role::Primary(Box::new(lead)));
        self.sidecars[of.0].app.begin(reference);
        self.with_lead(of, |world, lead| world.judge_whole_index(lead));
    }

    /// Hands the lead to `work`, takes turns of its log until nothing follows any more, and carries out what the machine wants.
    pub(crate) fn with_lead(&mut self, of: SidecarNo, work: impl FnOnce(&mut World, &mut Lead)) {
        self.with_lead_at(of, false, work);
    }

    /// The same, in a turn of which the machine is told.
    pub(super) fn tick_lead(&mut self, of: SidecarNo) {
        self.with_lead_at(of, true, |_, _| {});
    }

    fn with_lead_at(&mut self, of: SidecarNo, ticks: bool, work: impl FnOnce(&mut World, &mut Lead)) {
        let role = std::mem::replace(&mut self.sidecars[of.0].role, Role::Busy);
        let Role::Primary(mut lead) = role else {
            self.sidecars[of.0].role = role;
            return;
        };
        work(self, &mut lead);
        self.turn(of, &mut lead, ticks);
        let over = lead.machine().is_over();
        self.sidecars[of.0].role = Role::Primary(lead);
        if over {
            self.rest(of, 10);
        }
    }

    pub(crate) fn primary_input(&mut self, of: SidecarNo, input: Input) {
        let now = self.time(of);
        self.with_lead(of, |_, lead| lead.log.step(now, input));
    }

    pub(super) fn turn(&mut self, of: SidecarNo, lead: &mut Lead, mut ticks: bool) {
        loop {
            self.execute_all(of, lead);
            if lead.machine().is_over() {
                return;
            }
            while self.place_append(of, lead) || self.place_request(of, lead) {}
            let elapsed = Duration::from_micros(self.queue.now());
            let moment = Moment { now: self.time(of), elapsed, ticks: std::mem::take(&mut ticks) };
            let mut heard = Heard::default();
            self.prepare_wire(lead);
            lead.log.turn(moment, &mut heard);
            self.tell_app(of, lead, heard);
            self.turn_gets(of, lead);
            self.judge_index(lead);
            self.send_posted(lead);
            self.count_failures(lead);
            self.checks.bounded_primary(lead.memory.len());
            self.bound_table(lead);
            if lead.log.outputs.is_empty() {
                return;
            }
        }
    }

    fn execute_all(&mut self, of: SidecarNo, lead: &mut Lead) {
        for output in std::mem::take(&mut lead.log.outputs) {
            self.execute_one(of, lead, output);
        }
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
                    let config = lead.machine().config().clone();
                    let holders: Vec<_> = config.members.iter().map(|member| member.id.clone()).collect();
                    let (member, sources) = (link.member.clone(), sources.clone());
                    let whom = Requester::Seat(Box::new(output));
                    self.begin_image(of, &config, &member, (identity, closure), &holders, &sources, whom);
                }
            }
            Output::Prepare(identity) => {
                let (fresh, published) = SegmentMemory::new(&identity);
                lead.memory.insert(identity.segment, (identity, published));
                lead.fresh.insert(identity.segment, fresh);
                self.plan_again(of, 1, Again::Prepared(identity));
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
                self.cleaner_hears_of(of, lead, segment, closure);
            }
            Output::Swap(swap) => self.ask_store(of, Ask::Swap(Box::new(swap))),
            Output::Survey => self.survey(of, None),
            Output::Fence(member) => {
                let request = Request::Fence(FenceRequest::of(group(), lead.machine().config(), &member.id));
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

    /// Local memory for a segment is ready.
    pub(super) fn on_prepared(&mut self, of: SidecarNo, identity: SegmentIdentity) {
        let now = self.time(of);
        self.with_lead(of, |_, lead| {
            let Some(fresh) = lead.fresh.remove(&identity.segment) else { return };
            let (_, published) = &lead.memory[&identity.segment];
            lead.log.prepared(identity, fresh, published.clone(), now);
        });
    }

    /// Places the oldest append that waits; false when there is none, or no room for it now.
    fn place_append(&mut self, of: SidecarNo, lead: &mut Lead) -> bool {
        self.trace_pause(of, lead);
        let Some(batch) = lead.backlog.front() else { return false };
        let size = append_size(batch.iter().map(|payload| payload.len()));
        let (count, before) = (batch.len() as u64, lead.machine().active());
        let Some(placed) = lead.log.append((), size, batch.iter().map(|payload| &payload[..])) else {
            return false;
        };
        let (first, end) = (Lsn(placed.last.0 + 1 - count), placed.end.offset);
        let identity = lead.machine().active().expect("an append was placed in it");
        let batch = lead.backlog.pop_front().expect("it was looked at");
        let name = &self.sidecars[of.0].name;
        if before.is_some_and(|before| before != identity) {
            trace!(self, "{name} rolls to segment {}", identity.segment);
        }
        let from = end.0 - size as u32;
        self.checks.submitted(identity, first, from, &batch);
        trace!(self, "{name} appends {} at {}:{from}..{end}", records(first, placed.last), identity.segment);
        true
    }

    fn trace_pause(&mut self, of: SidecarNo, lead: &mut Lead) {
        let paused = !lead.machine().takes_appends();
        if paused != std::mem::replace(&mut lead.paused, paused) {
            self.tally.pauses += u64::from(paused);
            let what = if paused { "takes no appends, for a newcomer" } else { "takes appends again" };
            trace!(self, "{} {what}", self.sidecars[of.0].name);
        }
    }

    fn tell_app(&mut self, of: SidecarNo, lead: &mut Lead, heard: Heard) {
        let first = self.sidecars[of.0].app.acked.next();
        for told in heard.0 {
            match told {
                Told::Acknowledged(last) => {
                    let next = self.sidecars[of.0].app.acked.next();
                    for lsn in (next.0..=last.0).map(Lsn) {
                        self.judge_ack(lead.epoch, lsn, lead.machine().config());
                    }
                    self.sidecars[of.0].app.acked = last;
                    if lead.table.is_some() {
                        self.checks.table_acked(lead.epoch, last);
                    }
                }
                Told::Proved(question, proof) => self.judge_proof(of, lead, question, proof),
            }
        }
        let last = self.sidecars[of.0].app.acked;
        if last >= first {
            self.acked_now();
            self.checks.acked_by(self.queue.now(), last);
            let (name, end) = (&self.sidecars[of.0].name, lead.machine().acked());
            trace!(self, "{name} acknowledges {} up to {end}", records(first, last));
        }
    }

    fn judge_proof(&mut self, of: SidecarNo, lead: &mut Lead, Question { asked, about }: Question, proof: Proof) {
        match (about, proof) {
            (About::Role, Proof::Last(_)) => {
                self.tally.barriers += 1;
                self.checks.barrier_passed(lead.epoch, asked);
            }
            (About::End, Proof::Last(_)) => self.checks.end_is_told(lead.epoch, asked),
            (About::Sync, Proof::Synced(last)) => {
                trace!(self, "{} has synced up to record {last}", self.sidecars[of.0].name);
                self.tally.syncs += 1;
                self.checks.end_is_told(lead.epoch, asked);
                self.judge_sync(lead.epoch, last);
            }
            (About::Position(to, life, question), Proof::Last(last)) => {
                self.checks.end_is_told(lead.epoch, asked);
                self.tell_position(to, life, question, last);
            }
            (About::Mismatch(number), Proof::Behind(_)) => self.judge_mismatch(of, lead, number),
            (About::Gets(number), Proof::Behind(_)) => {
                lead.table.as_mut().expect("of a table").getting.gets.proved(number);
            }
            other => unreachable!("an answer to another question: {other:?}"),
        }
    }
}

impl Lead {
    /// The machine, for questions.
    pub(crate) fn machine(&self) -> &Primary {
        self.log.primary()
    }

    /// Appends that wait for room or for their ack.
    pub(crate) fn waiting(&self) -> usize {
        let requests = self.table.as_ref().map_or(0, |table| table.requests.len());
        self.backlog.len() + requests + self.log.appends().len()
    }

    /// The app wants everything that it has appended on disk at every member. True if it can be had now.
    pub(crate) fn sync(&mut self, asked: Micros) -> bool {
        let takes = self.log.is_ready() && self.log.may_sync();
        if takes {
            self.log.sync(Question { asked, about: About::Sync });
        }
        takes
    }

    /// The app has asked, and is told once it is proved that this is the primary.
    pub(crate) fn prove(&mut self, asked: Micros, about: About) {
        if self.log.is_ready() && self.log.questions().len() < QUESTIONS_MAX {
            self.log.ask(Question { asked, about });
        }
    }
}
