//! Carries out what a [`Primary`] wants, posts what is appended, and acknowledges to the app.
//!
//! As the production sidecar does: each seat takes its orders one by one, asks for buffers beside them, and images and
//! flushes run beside both.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::config::{Configuration, MemberRef, SwapOutcome};
use tailwind_protocol::ids::{Epoch, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Post, Primary, Rules, Seat};
use tailwind_protocol::promotion::Failure;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{
    Caller, CloseRequest, DropRequest, FenceRequest, FlushRequest, Inventory, OpenRequest, Purpose as Lent, Refusal,
    TrimRequest,
};
use tailwind_protocol::segment::{SegmentWriter, append_size};

use super::fabric::{ChannelId, Key};
use super::host::Running;
use super::image::{RETRY_LATER, Whom};
use super::network::{Answer, Silence};
use super::queue::Micros;
use super::sidecar::{Again, HEARTBEAT_SILENCE, Purpose, Role, failure};
use super::store::Ask;
use super::{HostNo, SidecarNo, World, group};
use crate::trace::{records, tell};

/// How long a member may hold up the next segment.
const OPEN_PATIENCE_MS: u64 = 2000;
/// Pause between two searches for a spare.
const RECRUIT_INTERVAL_MS: u64 = 250;
/// Bytes of one write request at most.
const POST_SIZE_MAX: u32 = 32 << 10;

/// The way to one member.
#[derive(Debug)]
pub(crate) struct Link {
    member: MemberRef,
    host: HostNo,
    /// The backup's process when it took its seat: with another one its connections have ended.
    life: u32,
    heard: Micros,
    channel: Option<ChannelId>,
    /// What is asked of the member, one after the other; the first one is under way while `ordering`.
    orders: VecDeque<Output>,
    ordering: bool,
    openings: VecDeque<SegmentIdentity>,
    opening: bool,
    remotes: BTreeMap<SegmentId, (Slot, Key)>,
}

/// A primary.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(crate) machine: Primary,
    pub(crate) epoch: Epoch,
    caller: Caller,
    pub(crate) memory: BTreeMap<SegmentId, (SegmentIdentity, Vec<u8>)>,
    writer: Option<SegmentWriter>,
    links: BTreeMap<Seat, Link>,
    /// Appends that wait for room.
    pub(crate) backlog: VecDeque<Vec<Rc<[u8]>>>,
    /// Appends that wait for their ack: where each ends, and its records.
    pub(crate) unacked: VecDeque<(Position, Lsn, Lsn)>,
    pub(crate) barriers: Vec<(Post, Micros)>,
    /// The swap that was sent last has had no answer.
    unanswered: bool,
}

impl World {
    /// A candidate has won: the recovered log is the app's to read, and the new epoch begins.
    pub(crate) fn begin_epoch(&mut self, of: SidecarNo, config: Configuration, reference: &Reference) {
        self.judge_win(&config, reference);
        let rules = Rules {
            backups: self.plan.backups,
            min_in_sync: self.plan.min_in_sync,
            durability: self.plan.durability,
            segment_size: tailwind_protocol::layout::SegmentSize::MIN,
            open_patience_ms: OPEN_PATIENCE_MS,
            recruit_interval_ms: RECRUIT_INTERVAL_MS,
        };
        let caller = Caller { group: group(), log: config.log, epoch: config.epoch };
        let epoch = config.epoch;
        let mut out = Vec::new();
        let seed = self.random.next();
        let machine = Primary::new(config, rules, reference, seed, self.time(of), &mut out);
        let lead = Lead {
            machine,
            epoch,
            caller,
            memory: BTreeMap::new(),
            writer: None,
            links: BTreeMap::new(),
            backlog: VecDeque::new(),
            unacked: VecDeque::new(),
            barriers: Vec::new(),
            unanswered: false,
        };
        self.change_role(of, Role::Primary(Box::new(lead)));
        self.sidecars[of.0].app.begin(reference);
        self.with_lead(of, |world, lead| world.carry_out_all(of, lead, out));
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
            self.change_role(of, Role::Standby(0));
            self.wait_a_little(of, 10);
        }
    }

    pub(crate) fn primary_input(&mut self, of: SidecarNo, input: Input) {
        let now = self.time(of);
        self.with_lead(of, |world, lead| {
            let mut out = Vec::new();
            lead.machine.step(now, input, &mut out);
            world.carry_out_all(of, lead, out);
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
            self.pass_barriers(lead);
            self.checks.bounded_primary(lead.memory.len());
            if out.is_empty() || lead.machine.is_over() {
                return self.carry_out_all(of, lead, out);
            }
            self.carry_out_all(of, lead, out);
        }
    }

    fn carry_out_all(&mut self, of: SidecarNo, lead: &mut Lead, out: Vec<Output>) {
        out.into_iter().for_each(|output| self.carry_out_one(of, lead, output));
    }

    fn carry_out_one(&mut self, of: SidecarNo, lead: &mut Lead, output: Output) {
        match output {
            Output::Connect(seat, member) => {
                let host = self.host_of(&member.id);
                let link = Link {
                    member,
                    host,
                    life: self.hosts[host.0].life,
                    heard: self.queue.now(),
                    channel: None,
                    orders: VecDeque::new(),
                    ordering: true,
                    openings: VecDeque::new(),
                    opening: true,
                    remotes: BTreeMap::new(),
                };
                lead.links.insert(seat, link);
                self.call(of, host, Request::Connect(lead.caller.clone()), Purpose::Connect(seat));
            }
            Output::Prepare(identity) => {
                lead.memory.insert(identity.segment, (identity, vec![0; identity.size.bytes() as usize]));
            }
            Output::Open(seat, identity) => {
                if let Some(link) = lead.links.get_mut(&seat) {
                    link.openings.push_back(identity);
                    self.ask_open(of, lead, seat);
                }
            }
            Output::Close(seat, ..) | Output::Drop(seat, ..) | Output::Trim(seat, ..) => {
                if let Some(link) = lead.links.get_mut(&seat) {
                    link.orders.push_back(output);
                    self.ask_order(of, lead, seat);
                }
            }
            Output::Flush(seat, identity, end) => {
                if let Some(link) = lead.links.get(&seat) {
                    let request = FlushRequest { caller: lead.caller.clone(), identity, end };
                    let purpose = Purpose::Flush(seat, identity.segment);
                    self.call(of, link.host, Request::Flush(request), purpose);
                }
            }
            Output::Install(seat, identity, closure) => {
                if let Some(link) = lead.links.get(&seat) {
                    let config = lead.machine.config().clone();
                    let holders: Vec<_> = config.members.iter().map(|member| member.id.clone()).collect();
                    let member = link.member.clone();
                    self.begin_image(of, &config, &member, (identity, closure), &holders, Whom::Seat(seat));
                }
            }
            Output::Disconnect(seat) => {
                if let Some(link) = lead.links.remove(&seat) {
                    tell!(self, "{} loses {}", self.sidecars[of.0].name, link.member.id);
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
                tell!(self, "{name}: segment {segment}, {what}, is closed everywhere");
            }
            Output::Swap(swap) => {
                let again = std::mem::take(&mut lead.unanswered);
                self.ask_store(of, Ask::Swap(swap), again);
            }
            Output::Recruit => self.survey(of),
            Output::StepDown(why) => {
                tell!(self, "{} steps down: {why}", self.sidecars[of.0].name);
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
        let Some(batch) = lead.backlog.front() else { return false };
        let size = append_size(batch.iter().map(|payload| payload.len()));
        let Some(writer) = &lead.writer else { return false };
        if writer.room() < size {
            let closure = writer.closure();
            let Some(identity) = lead.machine.roll(closure, out) else { return false };
            lead.open_writer(identity, closure.last.next());
            tell!(self, "{} rolls to segment {}", self.sidecars[of.0].name, identity.segment);
            return true;
        }
        let Some(batch) = lead.backlog.pop_front() else { return false };
        self.write_append(of, lead, &batch);
        true
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
        tell!(self, "{name} appends {} at {}:{from}..{end}", records(first, last), identity.segment);
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
        while let Some((_, first, last)) = lead.unacked.pop_front_if(|(end, ..)| *end <= acked) {
            let (start, _) = told.unwrap_or((first, last));
            told = Some((start, last));
            for lsn in first.0..=last.0 {
                self.judge_ack(lead.epoch, Lsn(lsn), lead.machine.config());
            }
        }
        if let Some((first, last)) = told {
            self.acked_now();
            self.sidecars[of.0].app.acked = last;
            tell!(self, "{} acknowledges {} up to {acked}", self.sidecars[of.0].name, records(first, last));
        }
    }

    /// An empty write at every member proves that none of them had been fenced.
    fn pass_barriers(&mut self, lead: &mut Lead) {
        for (post, _) in &lead.barriers {
            for (seat, link) in &lead.links {
                let Some(channel) = link.channel else { continue };
                if let Some(segment) = lead.machine.probe(usize::from(seat.index), *post)
                    && let Some((slot, key)) = link.remotes.get(&segment)
                {
                    self.post(channel, *slot, *key, 0, Rc::from(&[][..]));
                }
            }
        }
        let passed: Vec<Micros> =
            lead.barriers.iter().filter(|(post, _)| lead.machine.passed(*post)).map(|(_, asked)| *asked).collect();
        lead.barriers.retain(|(post, _)| !lead.machine.passed(*post));
        for asked in passed {
            self.tally.barriers += 1;
            self.checks.barrier_passed(lead.epoch, asked);
        }
    }

    fn ask_open(&mut self, of: SidecarNo, lead: &mut Lead, seat: Seat) {
        let durability = self.plan.durability;
        let Some(link) = lead.links.get_mut(&seat).filter(|link| !link.opening) else { return };
        let Some(identity) = link.openings.front().copied() else { return };
        link.opening = true;
        let request = OpenRequest { caller: lead.caller.clone(), identity, purpose: Lent::Append, durability };
        self.call(of, link.host, Request::Open(request), Purpose::Open(seat, identity));
    }

    fn ask_order(&mut self, of: SidecarNo, lead: &mut Lead, seat: Seat) {
        let Some(link) = lead.links.get_mut(&seat).filter(|link| !link.ordering) else { return };
        let caller = lead.caller.clone();
        let request = match link.orders.front() {
            Some(Output::Close(_, identity, closure)) => {
                Request::Close(CloseRequest { caller, identity: *identity, closure: *closure })
            }
            Some(Output::Drop(_, copies)) => Request::Drop(DropRequest { caller, copies: copies.clone() }),
            Some(Output::Trim(_, below)) => Request::Trim(TrimRequest { caller, below: *below }),
            _ => return,
        };
        link.ordering = true;
        self.call(of, link.host, request, Purpose::Order(seat));
    }

    pub(crate) fn ask_next_open(&mut self, of: SidecarNo, seat: Seat) {
        self.with_lead(of, |world, lead| {
            if let Some(link) = lead.links.get_mut(&seat) {
                link.opening = false;
            }
            world.ask_open(of, lead, seat);
        });
    }

    pub(crate) fn ask_next_order(&mut self, of: SidecarNo, seat: Seat) {
        self.with_lead(of, |world, lead| {
            if let Some(link) = lead.links.get_mut(&seat) {
                link.ordering = false;
            }
            world.ask_order(of, lead, seat);
        });
    }

    pub(crate) fn on_connect_answer(&mut self, of: SidecarNo, seat: Seat, answer: Result<Answer, Silence>) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Connected(boot, channel)) if boot == link.member.boot => {
                link.channel = Some(channel);
                self.ask_next_open(of, seat);
                self.ask_next_order(of, seat);
            }
            // Other memory behind the name: this is not the member that was meant.
            Ok(Answer::Connected(_, channel)) => {
                self.close_sender(channel);
                self.primary_input(of, Input::Lost(seat));
            }
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_open_answer(
        &mut self,
        of: SidecarNo,
        seat: Seat,
        identity: SegmentIdentity,
        answer: Result<Answer, Silence>,
    ) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Granted(slot, key)) => {
                link.remotes.insert(identity.segment, (slot, key));
                link.openings.pop_front();
                self.primary_input(of, Input::Opened(seat, identity.segment));
                self.ask_next_open(of, seat);
            }
            Ok(Answer::Refused(Refusal::RetryLater { .. })) => self.plan_again(of, RETRY_LATER, Again::Open(seat)),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_order_answer(&mut self, of: SidecarNo, seat: Seat, answer: Result<Answer, Silence>) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Done) => {
                if let Some(Output::Close(_, identity, _)) = link.orders.pop_front() {
                    self.primary_input(of, Input::Closed(seat, identity.segment));
                }
                self.ask_next_order(of, seat);
            }
            Ok(Answer::Refused(Refusal::RetryLater { .. })) => self.plan_again(of, RETRY_LATER, Again::Order(seat)),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_flush_answer(
        &mut self,
        of: SidecarNo,
        seat: Seat,
        segment: SegmentId,
        answer: Result<Answer, Silence>,
    ) {
        match answer {
            Ok(Answer::Flushed(end)) => self.primary_input(of, Input::Flushed(seat, Position::new(segment, end))),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    fn seat_failed(&mut self, of: SidecarNo, seat: Seat, failure: Failure) {
        match failure {
            Failure::Superseded(epoch) => self.primary_input(of, Input::Superseded(epoch)),
            Failure::Unreachable(_) => self.primary_input(of, Input::Lost(seat)),
        }
    }

    fn link(&mut self, of: SidecarNo, seat: Seat) -> Option<&mut Link> {
        match &mut self.sidecars[of.0].role {
            Role::Primary(lead) => lead.links.get_mut(&seat),
            _ => None,
        }
    }

    fn seat_of(&self, of: SidecarNo, channel: ChannelId) -> Option<Seat> {
        let lead = self.sidecars[of.0].lead()?;
        lead.links.iter().find(|(_, link)| link.channel == Some(channel)).map(|(seat, _)| *seat)
    }

    pub(crate) fn on_completed(&mut self, of: SidecarNo, channel: ChannelId) {
        if let Some(seat) = self.seat_of(of, channel) {
            self.with_lead(of, |_, lead| lead.machine.completed(usize::from(seat.index), 1));
        } else {
            self.on_image_written(of, channel);
        }
    }

    pub(crate) fn on_broken(&mut self, of: SidecarNo, channel: ChannelId) {
        self.tell_broken(channel);
        if let Some(seat) = self.seat_of(of, channel) {
            self.primary_input(of, Input::Lost(seat));
        } else {
            self.on_image_broken(of, channel);
        }
    }

    pub(crate) fn on_primary_swapped(&mut self, of: SidecarNo, outcome: SwapOutcome) {
        if let Role::Primary(lead) = &mut self.sidecars[of.0].role {
            lead.unanswered = outcome == SwapOutcome::Unknown;
        }
        self.primary_input(of, Input::Swapped(outcome));
    }

    /// The watch has shown another configuration.
    pub(crate) fn on_primary_news(&mut self, of: SidecarNo, seen: &Configuration) {
        if self.sidecars[of.0].lead().is_some_and(|lead| seen.epoch > lead.epoch) {
            self.primary_input(of, Input::Superseded(seen.epoch));
        }
    }

    pub(crate) fn on_primary_tick(&mut self, of: SidecarNo) {
        for seat in self.silent_seats(of) {
            self.primary_input(of, Input::Lost(seat));
        }
        self.primary_input(of, Input::Tick);
    }

    /// Members whose process has ended, or whose heartbeats have not come for too long.
    fn silent_seats(&mut self, of: SidecarNo) -> Vec<Seat> {
        let now = self.queue.now();
        let Role::Primary(lead) = &mut self.sidecars[of.0].role else { return Vec::new() };
        let mut silent = Vec::new();
        for (seat, link) in &mut lead.links {
            let host = &self.hosts[link.host.0];
            let reachable = self.cuts.is_whole(of, link.host) && !host.is_dark();
            if reachable && host.running == Running::Up && host.life == link.life {
                link.heard = now;
            }
            let ended = reachable && (host.life != link.life || host.running == Running::Down);
            if ended || now > link.heard + HEARTBEAT_SILENCE {
                silent.push(*seat);
            }
        }
        silent
    }

    /// Backups that answered the search for a spare: the first one outside the set is fenced under our epoch.
    pub(crate) fn on_spares_found(&mut self, of: SidecarNo, mut found: Vec<(MemberRef, Inventory)>) {
        let Some(lead) = self.sidecars[of.0].lead() else { return };
        found.retain(|(member, _)| lead.machine.config().member(&member.id).is_none());
        let caller = lead.caller.clone();
        if found.is_empty() {
            return self.primary_input(of, Input::NoSpare);
        }
        let (member, _) = self.random.pick(&found).clone();
        let host = self.host_of(&member.id);
        self.call(of, host, Request::Fence(FenceRequest { caller }), Purpose::Recruit(member));
    }

    pub(crate) fn on_recruit_answer(&mut self, of: SidecarNo, member: MemberRef, answer: Result<Answer, Silence>) {
        let input = match answer {
            Ok(Answer::Inventory(inventory)) => {
                tell!(self, "{} recruits {}", self.sidecars[of.0].name, member.id);
                Input::Recruited(MemberRef { boot: inventory.boot, ..member }, inventory)
            }
            other => match failure(other) {
                Failure::Superseded(epoch) => Input::Superseded(epoch),
                Failure::Unreachable(_) => Input::NoSpare,
            },
        };
        self.primary_input(of, input);
    }
}

impl Lead {
    fn open_writer(&mut self, identity: SegmentIdentity, first: Lsn) {
        let (_, buffer) = self.memory.get_mut(&identity.segment).expect("prepared before it was opened");
        let (writer, end) = SegmentWriter::open(identity, first, buffer);
        self.writer = Some(writer);
        self.machine.appended(Offset(end));
    }
}
