//! Carries out what a [`Primary`] wants, feeds it appends and completions, and acknowledges to the app.
//!
//! Called by [`step`](super::step). Placing, posting and acknowledging follow every input at once, as on the append path:
//! what may come late is what the machine is told, and that has actions of its own.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Epoch, Lsn, Offset, Position};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Seat};
use tailwind_protocol::promotion::Failure;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{CloseRequest, DropRequest, FenceRequest, OpenRequest, Purpose, Refusal, TrimRequest};
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::SegmentWriter;

use super::act::SOON;
use super::candidate::failure;
use super::names::PRIMARY;
use super::state::{Answer, Ask, BUFFER_SIZE, Channel, Flight, Lane, Lead, Role, Silence, Then, Whom, Write};
use super::step::Step;
use super::words;

impl Step<'_> {
    /// A candidate has won: the recovered log is shown to the app, and the new epoch begins.
    pub(super) fn begin_epoch(&mut self, side: usize, config: Configuration, reference: &Reference) {
        let (name, epoch) = (self.side_name(side).clone(), config.epoch);
        let (set, last) = (words::configuration(&config), reference.last());
        self.tell(|| format!("{name} is primary of {set}; recovers the log up to record {last}"));
        match self.read_reference(&config, reference) {
            Ok(log) => {
                let verdict = self.state.judge.recovered(epoch, &log);
                self.judge(verdict);
            }
            Err(rule) => return self.breaks(rule),
        }
        let mut out = Vec::new();
        let machine = Primary::new(config, PRIMARY, reference, epoch.0, SOON, &mut out);
        let lead = Lead {
            machine,
            epoch,
            memory: BTreeMap::new(),
            writer: None,
            channels: BTreeMap::new(),
            backlog: None,
            unacked: VecDeque::new(),
        };
        self.become_role(side, Role::Primary(Box::new(lead)));
        self.carry_primary(side, out);
    }

    /// Reads the recovered log at every member past the machines: each must hold exactly it (S3).
    fn read_reference(
        &self,
        config: &Configuration,
        reference: &Reference,
    ) -> Result<Vec<(Epoch, Lsn, Vec<u8>)>, String> {
        let mut log = Vec::new();
        for segment in &reference.segments {
            let (identity, closure) = (&segment.identity, &segment.closure);
            let mut found = None;
            for member in &config.members {
                let host = &self.state.hosts[self.host_of(&member.id)];
                // One that has lost its memory since, or whose newer epoch has gone on, is no longer this one's member.
                let newer = host.machine().is_none_or(|machine| machine.promise().epoch > config.epoch);
                match host.image(identity, closure) {
                    Some(image) => found = Some(image),
                    None if host.boot != member.boot || newer => {}
                    None => {
                        return Err(format!("S3: {} does not hold recovered segment {}", member.id, identity.segment));
                    }
                }
            }
            let Some(image) = found else { continue };
            let mut scanner = Scanner::new(&image, identity).map_err(|stop| format!("S2: {}", stop.why))?;
            while let Ok(append) = scanner.next_append() {
                log.extend(append.records().map(|r| (identity.epoch, r.lsn, r.payload.to_vec())));
            }
        }
        Ok(log)
    }

    pub(super) fn primary_input(&mut self, side: usize, input: Input) {
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let mut out = Vec::new();
        lead.machine.step(SOON, input, &mut out);
        self.carry_primary(side, out);
    }

    pub(super) fn lose_seat(&mut self, side: usize, seat: Seat, why: &str) {
        let Some(channel) = self.state.sides[side].lead().and_then(|lead| lead.channels.get(&seat)) else { return };
        let (name, member) = (self.side_name(side).clone(), channel.member.id.clone());
        self.tell(|| format!("{name} loses {member}: {why}"));
        self.primary_input(side, Input::Lost(seat));
    }

    pub(super) fn carry_primary(&mut self, side: usize, out: Vec<Output>) {
        for output in out {
            self.carry_primary_output(side, output);
        }
        self.pump(side);
    }

    fn carry_primary_output(&mut self, side: usize, output: Output) {
        let host = match &output {
            Output::Connect(_, member) => self.host_of(&member.id),
            _ => 0,
        };
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        match output {
            Output::Connect(seat, ref member) => {
                let (member, todo) = (member.clone(), VecDeque::from([output]));
                let channel = Channel { host, member, life: None, todo, busy: false, lendings: BTreeMap::new() };
                lead.channels.insert(seat, channel);
            }
            Output::Prepare(identity) => drop(lead.memory.insert(identity.segment, vec![0; BUFFER_SIZE])),
            Output::Open(seat, ..) | Output::Close(seat, ..) | Output::Drop(seat, ..) | Output::Trim(seat, ..) => {
                let channel = lead.channels.get_mut(&seat).expect("the seat is connected");
                channel.todo.push_back(output);
            }
            Output::Flush(..) => unreachable!("durability is memory"),
            Output::Mend(..) => unreachable!("nobody asks what is corrupt"),
            Output::Install(seat, identity, closure) => {
                let holders: Vec<_> = lead.machine.config().members.iter().map(|member| member.id.clone()).collect();
                let (epoch, target) = (lead.epoch, lead.channels[&seat].member.id.clone());
                self.install(side, epoch, &target, (identity, closure), &holders, Whom::Primary(seat));
            }
            Output::Disconnect(seat) => drop(lead.channels.remove(&seat)),
            Output::Forget(segment, _) => drop(lead.memory.remove(&segment)),
            Output::Swap(swap) => self.call(side, Ask::Swap(swap)),
            Output::Recruit => self.recruit(side),
            Output::StepDown(why) => {
                let name = self.side_name(side).clone();
                self.tell(|| format!("{name} steps down: {why}"));
                self.become_role(side, Role::Standby);
            }
        }
    }

    /// A backup that is up and has no seat.
    pub(super) fn spare(&self, lead: &Lead) -> Option<usize> {
        let seated = |host: usize| lead.machine.roster().any(|(member, ..)| self.host_of(&member.id) == host);
        (0..self.state.hosts.len()).find(|host| self.state.hosts[*host].is_up() && !seated(*host))
    }

    fn recruit(&mut self, side: usize) {
        let Some(lead) = self.state.sides[side].lead() else { return };
        let Some(spare) = self.spare(lead) else { return self.primary_input(side, Input::NoSpare) };
        let request = FenceRequest::of(self.caller(lead.machine.config().log, lead.epoch).group, lead.machine.config());
        let member = self.state.hosts[spare].reference();
        self.send(side, spare, Request::Fence(request), Then::Recruit(member));
    }

    pub(super) fn on_recruit_answer(&mut self, side: usize, member: MemberRef, answer: Result<Answer, Silence>) {
        match answer {
            Ok(Answer::Inventory(inventory)) => {
                let name = self.side_name(side).clone();
                self.tell(|| format!("{name} recruits {}: {}", member.id, words::inventory(&inventory)));
                let member = MemberRef { boot: inventory.boot, ..member };
                self.primary_input(side, Input::Recruited(member, inventory));
            }
            other => match failure(other) {
                Failure::Superseded(epoch) => self.primary_input(side, Input::Superseded(epoch)),
                Failure::ClaimedBefore(_) | Failure::Unreachable(_) => self.primary_input(side, Input::NoSpare),
            },
        }
    }

    /// Sends the next request of every channel that has none under way.
    fn work_channels(&mut self, side: usize) {
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let (log, epoch) = (lead.machine.config().log, lead.epoch);
        let mut due = Vec::new();
        for (seat, channel) in lead.channels.iter_mut().filter(|(_, channel)| !channel.busy) {
            let Some(next) = channel.todo.front() else { continue };
            channel.busy = true;
            due.push((channel.host, *seat, next.clone()));
        }
        let caller = self.caller(log, epoch);
        for (to, seat, next) in due {
            self.send(side, to, request(caller.clone(), next), Then::Channel(seat));
        }
    }

    pub(super) fn on_channel_answer(&mut self, side: usize, seat: Seat, answer: Result<Answer, Silence>) {
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let Some(channel) = lead.channels.get_mut(&seat) else { return };
        channel.busy = false;
        let input = match (channel.todo.front(), answer) {
            // Asked again.
            (_, Err(Silence::Lost)) => return self.pump(side),
            (_, Err(Silence::Gone)) => return self.lose_seat(side, seat, "no connection"),
            (_, Ok(Answer::Refused(Refusal::Fenced { promised }))) => Some(Input::Superseded(promised)),
            (_, Ok(Answer::Refused(refusal))) => return self.lose_seat(side, seat, &refusal.to_string()),
            (Some(Output::Connect(_, member)), Ok(Answer::Connected(boot, life))) => {
                if member.boot != boot {
                    return self.lose_seat(side, seat, "its memory is new");
                }
                channel.life = Some(life);
                None
            }
            (Some(Output::Open(_, identity)), Ok(Answer::Granted(slot, key, _))) => {
                channel.lendings.insert(identity.segment, (slot, key));
                Some(Input::Opened(seat, identity.segment))
            }
            (Some(Output::Trim(..) | Output::Drop(..)), _) => Some(Input::Tidied(seat)),
            (Some(Output::Close(_, identity, _)), _) => Some(Input::Closed(seat, identity.segment)),
            _ => None,
        };
        channel.todo.pop_front();
        match input {
            Some(input) => self.primary_input(side, input),
            None => self.pump(side),
        }
    }

    /// One turn of the append path: place, post, acknowledge, and ask what else there is to do.
    pub(super) fn pump(&mut self, side: usize) {
        let mut out = Vec::new();
        while self.place(side, &mut out) {}
        self.post(side);
        if let Some(lead) = self.state.sides[side].lead_mut() {
            lead.machine.turn(&mut out);
        }
        self.acknowledge(side);
        if out.is_empty() { self.work_channels(side) } else { self.carry_primary(side, out) }
    }

    /// Places the record that waits; false when there is none, or no room for it now.
    fn place(&mut self, side: usize, out: &mut Vec<Output>) -> bool {
        let records_max = self.scenario.segment_records;
        let Some(lead) = self.state.sides[side].lead_mut() else { return false };
        if lead.writer.is_none()
            && let (true, Some(identity)) = (lead.machine.is_ready(), lead.machine.active())
        {
            let first = lead.machine.first();
            lead.open_writer(identity, first);
        }
        let (Some(writer), true) = (&lead.writer, lead.backlog.is_some()) else { return false };
        if writer.closure().records() >= records_max {
            let closure = writer.closure();
            let Some(identity) = lead.machine.roll(closure, out) else { return false };
            lead.open_writer(identity, closure.last.next());
            let name = self.side_name(side).clone();
            self.tell(|| format!("{name} rolls to segment {}", identity.segment));
            return true;
        }
        let payload = lead.backlog.take().expect("just seen");
        let (position, lsn) = lead.write(&payload);
        let epoch = lead.epoch;
        self.state.judge.submitted(epoch, lsn, payload);
        let name = self.side_name(side).clone();
        self.tell(|| format!("{name} appends record {lsn} up to {position}"));
        true
    }

    fn post(&mut self, side: usize) {
        let life = self.state.sides[side].life;
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let mut posted = Vec::new();
        let Lead { machine, channels, memory, .. } = lead;
        for (seat, channel) in channels.iter() {
            while let Some((segment, from, to)) = machine.next_post(usize::from(seat.index), u32::MAX) {
                let bytes = memory[&segment][from.0 as usize..to.0 as usize].to_vec();
                let (slot, key) = channel.lendings[&segment];
                let process = channel.life.expect("a channel is connected before anything is lent");
                let (lane, lending) = (Lane::Post(*seat), (process, slot, key));
                let flight = Flight::Flying;
                posted
                    .push((channel.host, Write { life, lane, lending, segment, from, bytes, flight, counted: false }));
            }
        }
        for (host, write) in posted {
            self.state.writes[side][host].push_back(write);
        }
    }

    fn acknowledge(&mut self, side: usize) {
        let waiting =
            self.state.sides[side].lead().and_then(|lead| Some((lead.machine.acked(), lead.unacked.front()?.0)));
        if waiting.is_none_or(|(acked, end)| acked < end) {
            return;
        }
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let (acked, epoch) = (lead.machine.acked(), lead.epoch);
        while let Some(lead) = self.state.sides[side].lead_mut()
            && let Some((end, lsn)) = lead.unacked.pop_front_if(|(end, _)| *end <= acked)
        {
            let name = self.side_name(side).clone();
            self.tell(|| format!("{name} acknowledges record {lsn}, acked up to {end}"));
            let verdict = self.state.judge.acked(epoch, lsn);
            self.judge(verdict);
        }
    }
}

fn request(caller: tailwind_protocol::rpc::Caller, output: Output) -> Request {
    match output {
        Output::Connect(..) => Request::Connect(caller),
        Output::Open(_, identity) => {
            let (purpose, durability) = (Purpose::Append, PRIMARY.durability);
            Request::Open(OpenRequest { caller, identity, purpose, durability })
        }
        Output::Close(_, identity, closure) => Request::Close(CloseRequest { caller, identity, closure }),
        Output::Drop(_, copies) => Request::Drop(DropRequest { caller, copies }),
        Output::Trim(_, below) => Request::Trim(TrimRequest { caller, below }),
        other => unreachable!("{other:?} is not asked of a member"),
    }
}

impl Lead {
    fn open_writer(&mut self, identity: SegmentIdentity, first: Lsn) {
        let buffer = self.memory.get_mut(&identity.segment).expect("prepared");
        let (writer, end) = SegmentWriter::open(identity, first, buffer);
        self.writer = Some(writer);
        self.machine.appended(Offset(end));
    }

    fn write(&mut self, payload: &[u8]) -> (Position, Lsn) {
        let writer = self.writer.as_mut().expect("an open segment");
        let (segment, lsn, from) = (writer.identity().segment, writer.next(), writer.closure().end.0 as usize);
        let buffer = self.memory.get_mut(&segment).expect("prepared");
        writer.append(&mut buffer[from..], std::iter::once(payload));
        let end = writer.closure().end;
        self.machine.appended(end);
        let position = Position::new(segment, end);
        self.unacked.push_back((position, lsn));
        (position, lsn)
    }
}
