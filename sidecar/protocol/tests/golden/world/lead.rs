//! Carries out what a [`Primary`] wants, feeds it appends and completions, and acknowledges to the app.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::{self, Request};
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Epoch, Lsn, MemberId, Offset, Position, SidecarId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Seat};
use tailwind_protocol::recovery::{ClosedSegment, Reference};
use tailwind_protocol::rpc::{Failure, FenceRequest, Refusal};
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::{SegmentWriter, append_size};

use super::host::Answer;
use super::network::{Ask, Message, Silence, Then, Whom, Write};
use super::sidecar::{Channel, Lead, Role};
use super::{World, tale};

impl World {
    /// A candidate has won: the recovered log is shown to the app, and the new epoch begins.
    pub(crate) fn begin_epoch(&mut self, name: &SidecarId, config: Configuration, reference: Reference) {
        let (set, epoch) = (tale::names(config.members.iter().map(|member| &member.id)), config.epoch);
        self.tell(format!("{name} is primary of epoch {epoch}, set {set}; recovers {}", tale::reference(&reference)));
        let Some(log) = self.read_reference(name, &config, &reference) else {
            self.tell(format!("{name} cannot read all of it: tries again"));
            return self.promote(name);
        };
        self.checker.recovered(&config, &log);
        let mut out = Vec::new();
        let rules = self.options.primary_rules();
        let machine = Primary::new(config, rules, &reference, epoch.0, self.now, &mut out);
        let lead = Lead {
            machine,
            epoch,
            memory: BTreeMap::new(),
            writer: None,
            channels: BTreeMap::new(),
            backlog: VecDeque::new(),
            unacked: VecDeque::new(),
            said_waiting: false,
        };
        self.sidecar_mut(name).become_role(Role::Primary(Box::new(lead)));
        self.carry_primary(name, out);
    }

    /// Reads the recovered log, and looks at every member, past the machines: each must hold all of it (S3).
    /// `None`: nobody can give a segment; whoever held it has found it corrupt now.
    fn read_reference(
        &mut self,
        name: &SidecarId,
        config: &Configuration,
        reference: &Reference,
    ) -> Option<Vec<(Epoch, Lsn, Vec<u8>)>> {
        let mut log = Vec::new();
        for segment in &reference.segments {
            for member in &config.members {
                let host = &self.hosts[&member.id];
                let held = host.held();
                if member.boot != host.boot || host.flipped {
                    continue;
                }
                let mut lsn = segment.closure.first;
                while lsn <= segment.closure.last {
                    assert!(held.contains_key(&(config.log, lsn)), "{} lacks recovered record {lsn} (S3)", member.id);
                    lsn = lsn.next();
                }
            }
            let Some((giver, image)) = self.image_of(segment, name, config) else {
                for member in &config.members {
                    let place = backup::Place::Disk;
                    self.host_mut(&member.id).drive(backup::Input::FoundCorrupt(segment.identity, place));
                }
                return None;
            };
            self.tell_outsider(&giver, segment.identity.segment);
            let mut scanner = Scanner::new(&image, &segment.identity).expect("a valid segment");
            while let Ok(append) = scanner.next_append() {
                log.extend(append.records().map(|r| (segment.identity.epoch, r.lsn, r.payload.to_vec())));
            }
        }
        Some(log)
    }

    /// A segment's bytes and who gave them: a member, or else any backup that can be reached.
    fn image_of(&self, segment: &ClosedSegment, by: &SidecarId, config: &Configuration) -> Option<(MemberId, Vec<u8>)> {
        let members = config.members.iter().map(|member| self.host(&member.id));
        let others = self.hosts.values().filter(|host| host.is_up() && !self.is_cut(by, &host.name));
        members.chain(others).find_map(|host| Some((host.name.clone(), host.image(segment)?)))
    }

    pub(crate) fn primary_input(&mut self, name: &SidecarId, input: Input) {
        let now = self.now;
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return };
        let mut out = Vec::new();
        lead.machine.step(now, input, &mut out);
        self.carry_primary(name, out);
    }

    pub(crate) fn lose_seat(&mut self, name: &SidecarId, seat: Seat, why: &str) {
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return };
        if let Some(channel) = lead.channels.get(&seat) {
            let member = channel.member.id.clone();
            self.tell(format!("{name} loses {member}: {why}"));
            self.primary_input(name, Input::Lost(seat));
        }
    }

    fn carry_primary(&mut self, name: &SidecarId, out: Vec<Output>) {
        for output in out {
            self.carry_primary_output(name, output);
        }
        self.pump(name);
    }

    pub(super) fn carry_primary_output(&mut self, name: &SidecarId, output: Output) {
        let durability = self.options.durability;
        let Some(lead) = self.sidecar(name).lead() else { return };
        let caller = self.caller(lead.machine.config().log, lead.epoch);
        let (group, request) = (caller.group.clone(), output.request(caller, durability));
        let lead = self.sidecar_mut(name).lead_mut().expect("just seen");
        if let Output::Connect(seat, member) = &output {
            let channel = Channel { member: member.clone(), life: None, later: Vec::new(), lendings: BTreeMap::new() };
            lead.channels.insert(*seat, channel);
        }
        let member = output.seat().and_then(|seat| lead.channels.get(&seat)).map(|channel| channel.member.clone());
        match output {
            Output::Prepare(identity) => {
                lead.memory.insert(identity.segment, vec![0; identity.size.bytes() as usize]);
                self.primary_input(name, Input::Prepared(identity.segment));
            }
            Output::Install(_, identity, closure) | Output::Repair(_, identity, closure) => {
                let Some(member) = member else { return };
                let config = lead.machine.config().clone();
                let sources = config.members.iter().map(|member| member.id.clone()).collect();
                self.install(name, &config, &member, (identity, closure), sources, Whom::Primary(Box::new(output)));
            }
            Output::Disconnect(seat) => drop(lead.channels.remove(&seat)),
            Output::Forget(segment, closure) => {
                lead.memory.remove(&segment);
                self.tell(format!("{name}: segment {segment}, {}, is closed everywhere", tale::records(&closure)));
            }
            Output::Swap(swap) => self.call_store(name, Ask::Swap(swap)),
            Output::Survey => self.survey(name),
            Output::Fence(member) => {
                let request = Request::Fence(FenceRequest::of(group, lead.machine.config()));
                self.send(name, &member.id.clone(), request, Then::Recruit(member));
            }
            Output::StepDown(why) => {
                self.tell(format!("{name} steps down: {why}"));
                self.sidecar_mut(name).become_role(Role::Standby);
            }
            output => {
                if let (Some(member), Some(request)) = (member, request) {
                    self.send(name, &member.id, request, Then::Seat(Box::new(output)));
                }
            }
        }
    }

    fn survey(&mut self, name: &SidecarId) {
        let Some(lead) = self.sidecar(name).lead() else { return };
        let reachable = |host: &&super::Host| host.is_up() && !self.is_cut(name, &host.name);
        let found: Vec<MemberRef> = self.hosts.values().filter(reachable).map(super::Host::reference).collect();
        let lost: Vec<_> =
            lead.machine.roster().filter(|(_, _, lost, _)| *lost).map(|(member, ..)| member.clone()).collect();
        for member in found.iter().filter(|found| lost.contains(found)) {
            self.tell(format!("{name} meets {} again", member.id));
        }
        self.primary_input(name, Input::Surveyed(found));
    }

    /// A primary asks its members what is corrupt there.
    pub(crate) fn look(&mut self, name: &SidecarId) {
        let Some(lead) = self.sidecar(name).lead() else { return };
        let seats: Vec<_> = lead.channels.iter().map(|(seat, channel)| (*seat, channel.member.id.clone())).collect();
        for (seat, member) in seats {
            self.send(name, &member, Request::Damage, Then::Damage(seat));
        }
    }

    pub(crate) fn on_damage_answer(&mut self, message: &Message, seat: Seat, answer: Result<Answer, Silence>) {
        let Ok(Answer::Damage(copies)) = answer else { return };
        if let Some(first) = copies.first() {
            let (count, segment) = (copies.len(), first.identity.segment);
            self.tell(format!("{} tells {}: {count} corrupt, segment {segment} first", message.to, message.from));
        }
        self.primary_input(&message.from, Input::Damaged(seat, copies));
    }

    pub(crate) fn on_recruit_answer(&mut self, message: Message, answer: Result<Answer, Silence>) {
        let Then::Recruit(member) = message.then else { return };
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => {
                self.tell(format!("{} recruits {}: {}", message.from, message.to, tale::inventory(&inventory)));
                Ok(inventory)
            }
            other => Err(super::candidate::failure(other)),
        };
        self.primary_input(&message.from, Input::Fenced(member, result));
    }

    /// A member has answered what it was asked for an output.
    pub(crate) fn on_seat_answer(&mut self, message: Message, answer: Result<Answer, Silence>) {
        let Then::Seat(output) = message.then else { return };
        let (name, member) = (&message.from, self.host(&message.to));
        let (life, boot, up) = (member.life, member.boot, member.is_up());
        let Some(seat) = output.seat() else { return };
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return };
        let Some(channel) = lead.channels.get_mut(&seat) else { return };
        let mut flushed = Offset(0);
        match (&*output, answer) {
            // Asked again.
            (_, Err(Silence::Lost)) => return self.carry_primary_output(name, *output),
            (_, Err(Silence::Gone)) => return self.lose_seat(name, seat, "no connection"),
            (_, Ok(Answer::Refused(Refusal::RetryLater { .. }))) => return channel.later.push(*output),
            (_, Ok(Answer::Refused(refusal))) => {
                let why = refusal.to_string();
                return self.seat_failed(name, &output, &refusal.into(), &why);
            }
            // With another process or another memory behind the name, this is not the member that was meant.
            (Output::Connect(_, reference), _) if reference.boot != boot || !up => {
                return self.lose_seat(name, seat, "its memory is new");
            }
            (Output::Connect(..), _) => channel.life = Some(life),
            (Output::Open(_, identity), Ok(Answer::Granted(slot, key))) => {
                channel.lendings.insert(identity.segment, (slot, key));
            }
            (_, Ok(Answer::Flushed(end))) => flushed = end,
            _ => {}
        }
        if let Some(done) = output.done(flushed) {
            self.primary_input(name, done);
        }
    }

    pub(super) fn seat_failed(&mut self, name: &SidecarId, output: &Output, failure: &Failure, why: &str) {
        match output.failed(failure) {
            Some(Input::Lost(seat)) => self.lose_seat(name, seat, why),
            Some(input) => self.primary_input(name, input),
            None => {}
        }
    }

    /// The app appends records; they are placed as soon as there is room.
    pub(crate) fn append(&mut self, name: &SidecarId, batch: Vec<Vec<u8>>) {
        let Some(lead) = self.sidecar_mut(name).lead_mut() else {
            return self.tell(format!("{name} refuses: not primary"));
        };
        lead.backlog.push_back(batch);
        self.pump(name);
    }

    /// One turn of the append path: place, post, acknowledge.
    pub(crate) fn pump(&mut self, name: &SidecarId) {
        if self.sidecar(name).paused {
            return;
        }
        let mut out = Vec::new();
        while self.place(name, &mut out) {}
        self.post(name);
        if let Some(lead) = self.sidecar_mut(name).lead_mut() {
            lead.machine.turn(&mut out);
        }
        self.acknowledge(name);
        if !out.is_empty() {
            self.carry_primary(name, out);
        }
    }

    /// Places the oldest waiting append; false when there is none, or no room for it now.
    fn place(&mut self, name: &SidecarId, out: &mut Vec<Output>) -> bool {
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return false };
        let ready = lead.machine.is_ready() || lead.writer.is_some();
        if lead.writer.is_none()
            && let (true, Some(identity)) = (ready, lead.machine.active())
        {
            let first = lead.machine.first();
            lead.open_writer(identity, first);
        }
        let Some(batch) = lead.backlog.front() else { return false };
        let size = append_size(batch.iter().map(Vec::len));
        let waits = match &lead.writer {
            None => true,
            Some(writer) if writer.room() >= size => false,
            Some(writer) => {
                let closure = writer.closure();
                match lead.machine.roll(closure, out) {
                    None => true,
                    Some(identity) => {
                        lead.open_writer(identity, closure.last.next());
                        self.tell(format!("{name} rolls to segment {}", identity.segment));
                        return true;
                    }
                }
            }
        };
        if waits {
            if !std::mem::replace(&mut lead.said_waiting, true) {
                self.tell(format!("{name} takes no appends for now: the next segment is not lent everywhere"));
            }
            return false;
        }
        lead.said_waiting = false;
        let batch = lead.backlog.pop_front().expect("just seen");
        let (epoch, first, position) = lead.write(&batch);
        let last = Lsn(first.0 + batch.len() as u64 - 1);
        for (lsn, payload) in (first.0..).map(Lsn).zip(&batch) {
            self.checker.submitted(epoch, lsn, payload);
        }
        let payloads: Vec<String> = batch.iter().map(|payload| tale::payload(payload)).collect();
        self.tell(format!("{name} appends {} {} up to {position}", tale::range(first, last), payloads.join(" ")));
        true
    }

    fn post(&mut self, name: &SidecarId) {
        let life = self.sidecar(name).life;
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return };
        let mut posted = Vec::new();
        for (seat, channel) in &lead.channels {
            while let Some((segment, from, to)) = lead.machine.next_post(usize::from(seat.index), u32::MAX) {
                let bytes = lead.memory[&segment][from.0 as usize..to.0 as usize].to_vec();
                let lending = channel.lendings[&segment];
                let write = Write { life, seat: *seat, segment, lending, from, bytes, landed: false };
                posted.push((channel.member.id.clone(), write));
            }
        }
        for (member, write) in posted {
            self.network.writes.entry((name.clone(), member)).or_default().push_back(write);
        }
    }

    fn acknowledge(&mut self, name: &SidecarId) {
        let Some(lead) = self.sidecar_mut(name).lead_mut() else { return };
        let (acked, epoch) = (lead.machine.acked(), lead.epoch);
        let mut due = Vec::new();
        while let Some((_, first, last)) = lead.unacked.pop_front_if(|(end, ..)| *end <= acked) {
            due.push((first, last));
        }
        for (first, last) in &due {
            (first.0..=last.0).for_each(|lsn| self.checker.acked(epoch, Lsn(lsn)));
        }
        if let (Some((first, _)), Some((_, last))) = (due.first(), due.last()) {
            self.tell(format!("{name} acknowledges {}", tale::range(*first, *last)));
        }
    }
}

impl Lead {
    fn open_writer(&mut self, identity: SegmentIdentity, first: Lsn) {
        let buffer = self.memory.get_mut(&identity.segment).expect("prepared");
        let (writer, end) = SegmentWriter::open(identity, first, buffer);
        self.writer = Some(writer);
        self.machine.appended(Offset(end));
    }

    fn write(&mut self, batch: &[Vec<u8>]) -> (Epoch, Lsn, Position) {
        let writer = self.writer.as_mut().expect("an open segment");
        let (segment, first, from) = (writer.identity().segment, writer.next(), writer.closure().end.0 as usize);
        let buffer = self.memory.get_mut(&segment).expect("prepared");
        writer.append(&mut buffer[from..], batch.iter().map(Vec::as_slice));
        let end = writer.closure().end;
        self.machine.appended(end);
        let position = Position::new(segment, end);
        self.unacked.push_back((position, first, Lsn(first.0 + batch.len() as u64 - 1)));
        (self.epoch, first, position)
    }
}
