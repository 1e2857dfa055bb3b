//! Executes what a [`Primary`] wants, feeds it appends and completions, and acknowledges to the app.
//!
//! Called by [`step`](super::step). Placing, posting and acknowledging follow every input at once, as on the append path:
//! what may come late is what the machine is told, and that has actions of its own.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Epoch, Lsn, Offset, Position};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::FenceRequest;
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::SegmentWriter;

use super::act::SOON;
use super::candidate::failure;
use super::names::PRIMARY;
use super::state::{Answer, Ask, BUFFER_SIZE, Channel, Lane, Lead, Requester, Role, Silence, Then, Write, WriteState};
use super::step::Step;
use super::words;

impl Step<'_> {
    /// A candidate has won: the recovered log is shown to the app, and the new epoch begins.
    pub(super) fn begin_epoch(&mut self, side: usize, config: Configuration, reference: &Reference) {
        let (name, epoch) = (self.side_name(side).clone(), config.epoch);
        let (set, last) = (words::configuration(&config), reference.last());
        self.trace(|| format!("{name} is primary of {set}; recovers the log up to record {last}"));
        match self.read_reference(&config, reference) {
            Ok(log) => {
                let verdict = self.state.judge.recovered(epoch, &log);
                self.judge(verdict);
            }
            Err(rule) => return self.breaks(rule),
        }
        let mut out = Vec::new();
        let machine = Primary::new(config, PRIMARY, reference, epoch.0, SOON, &mut out);
        let acked = (machine.first().prev(), machine.acked());
        let lead = Lead {
            machine,
            epoch,
            acked,
            memory: BTreeMap::new(),
            writer: None,
            channels: BTreeMap::new(),
            backlog: None,
            unacked: VecDeque::new(),
        };
        self.become_role(side, Role::Primary(Box::new(lead)));
        self.execute_primary(side, out);
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
        self.execute_primary(side, out);
    }

    pub(super) fn lose_seat(&mut self, side: usize, seat: Seat, why: &str) {
        let Some(channel) = self.state.sides[side].lead().and_then(|lead| lead.channels.get(&seat)) else { return };
        let (name, member) = (self.side_name(side).clone(), channel.member.id.clone());
        self.trace(|| format!("{name} loses {member}: {why}"));
        self.primary_input(side, Input::Lost(seat));
    }

    pub(super) fn execute_primary(&mut self, side: usize, out: Vec<Output>) {
        for output in out {
            self.execute_primary_output(side, output);
        }
        self.pump(side);
    }

    fn execute_primary_output(&mut self, side: usize, output: Output) {
        let Some(lead) = self.state.sides[side].lead() else { return };
        let caller = self.caller(lead.machine.config().log, lead.epoch);
        if let Output::Connect(seat, member) = &output {
            let (host, member, lendings) = (self.host_of(&member.id), member.clone(), BTreeMap::new());
            let channel = Channel { host, member, life: None, lendings };
            let lead = self.state.sides[side].lead_mut().expect("just seen");
            lead.channels.insert(*seat, channel);
        }
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let host = output.seat().and_then(|seat| lead.channels.get(&seat)).map(|channel| channel.host);
        let request = output.request(caller.clone(), PRIMARY.durability);
        match output {
            Output::Prepare(identity) => {
                lead.memory.insert(identity.segment, vec![0; BUFFER_SIZE]);
                self.primary_input(side, Input::Prepared(identity.segment));
            }
            Output::Flush(..) => unreachable!("durability is memory"),
            Output::Sync(..) => unreachable!("nobody syncs"),
            Output::Repair(..) => unreachable!("nobody asks what is corrupt"),
            Output::Install(seat, identity, closure, _) => {
                let holders: Vec<_> = lead.machine.config().members.iter().map(|member| member.id.clone()).collect();
                let (epoch, target) = (lead.epoch, lead.channels[&seat].member.id.clone());
                let whom = Requester::Primary(Box::new(output));
                self.install(side, epoch, &target, (identity, closure), &holders, whom);
            }
            Output::Disconnect(seat) => drop(lead.channels.remove(&seat)),
            Output::Forget(segment, _) => drop(lead.memory.remove(&segment)),
            Output::Swap(swap) => self.call(side, Ask::Swap(Box::new(swap))),
            Output::Survey => {
                let up = self.state.hosts.iter().filter(|host| host.is_up()).map(|host| host.reference());
                let found = up.collect();
                self.primary_input(side, Input::Surveyed(found));
            }
            Output::Fence(member) => {
                let fence = FenceRequest::of(caller.group, lead.machine.config(), &member.id);
                let to = self.host_of(&member.id);
                self.send(side, to, Request::Fence(fence), Then::Recruit(member));
            }
            Output::ReadConfig => self.call(side, Ask::Read),
            Output::StepDown(why) => {
                let name = self.side_name(side).clone();
                self.trace(|| format!("{name} steps down: {why}"));
                self.become_role(side, Role::Standby);
            }
            output => {
                if let (Some(host), Some(request)) = (host, request) {
                    self.send(side, host, request, Then::Seat(Box::new(output)));
                }
            }
        }
    }

    pub(super) fn on_recruit_answer(&mut self, side: usize, member: MemberRef, answer: Result<Answer, Silence>) {
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => {
                let name = self.side_name(side).clone();
                self.trace(|| format!("{name} recruits {}: {}", member.id, words::inventory(&inventory)));
                Ok(inventory)
            }
            other => Err(failure(other)),
        };
        self.primary_input(side, Input::Fenced(member, result));
    }

    /// A member has answered what it was asked for an output.
    pub(super) fn on_seat_answer(&mut self, side: usize, output: Output, answer: Result<Answer, Silence>) {
        let Some(lead) = self.state.sides[side].lead_mut() else { return };
        let Some(seat) = output.seat() else { return };
        let Some(channel) = lead.channels.get_mut(&seat) else { return };
        match (&output, answer) {
            // Asked again.
            (_, Err(Silence::Lost)) => return self.execute_primary(side, vec![output]),
            (_, Err(Silence::Gone)) => return self.lose_seat(side, seat, "no connection"),
            (_, Ok(Answer::Refused(refusal))) => {
                let why = refusal.to_string();
                return match output.failed(&refusal.into()) {
                    Some(Input::Lost(seat)) => self.lose_seat(side, seat, &why),
                    Some(input) => self.primary_input(side, input),
                    None => {}
                };
            }
            (Output::Connect(_, member), Ok(Answer::Connected(boot, life))) => {
                if member.boot != boot {
                    return self.lose_seat(side, seat, "its memory is new");
                }
                channel.life = Some(life);
            }
            (Output::Open(_, identity), Ok(Answer::Granted(slot, key, _))) => {
                channel.lendings.insert(identity.segment, (slot, key));
            }
            _ => {}
        }
        if let Some(done) = output.done(Offset(0)) {
            self.primary_input(side, done);
        }
    }

    /// One turn of the append path: place, post, acknowledge.
    pub(super) fn pump(&mut self, side: usize) {
        let mut out = Vec::new();
        while self.place(side, &mut out) {}
        self.post(side);
        if let Some(lead) = self.state.sides[side].lead_mut() {
            lead.machine.turn(&mut out);
        }
        self.acknowledge(side);
        if !out.is_empty() {
            self.execute_primary(side, out);
        }
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
        let (Some(writer), true) = (&lead.writer, lead.backlog.is_some() && lead.machine.takes_appends()) else {
            return false;
        };
        if writer.closure().records() >= records_max {
            let closure = writer.closure();
            let Some(identity) = lead.machine.roll(closure, out) else { return false };
            lead.open_writer(identity, closure.last.next());
            let name = self.side_name(side).clone();
            self.trace(|| format!("{name} rolls to segment {}", identity.segment));
            return true;
        }
        let payload = lead.backlog.take().expect("just seen");
        let (position, lsn) = lead.write(&payload);
        let epoch = lead.epoch;
        self.state.judge.submitted(epoch, lsn, payload);
        let name = self.side_name(side).clone();
        self.trace(|| format!("{name} appends record {lsn} up to {position}"));
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
                let flight = WriteState::Flying;
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
            lead.acked = (lsn, end);
            let name = self.side_name(side).clone();
            self.trace(|| format!("{name} acknowledges record {lsn}, acked up to {end}"));
            let verdict = self.state.judge.acked(epoch, lsn);
            self.judge(verdict);
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
