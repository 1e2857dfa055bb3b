//! Carries out what a [`Promotion`] wants and brings it the answers.

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{LogId, SidecarId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::promotion::{Input, Output, Promotion, Task};
use tailwind_protocol::rpc::{CloseRequest, DropRequest, Failure, FenceRequest, TrimRequest};

use super::host::Answer;
use super::network::{Ask, Image, Message, Silence, Then, Whom};
use super::sidecar::Role;
use super::{World, tale};

impl World {
    /// A standby becomes a candidate.
    pub(crate) fn promote(&mut self, name: &SidecarId) {
        let rules = self.options.promotion_rules();
        self.claims += 1;
        let seed = self.claims << 32;
        let sidecar = self.sidecar_mut(name);
        let mut out = Vec::new();
        let promotion = Promotion::start(sidecar.reference(), rules, LogId(1), seed, &mut out);
        sidecar.become_role(Role::Candidate(Box::new(promotion)));
        self.tell(format!("{name} is a candidate"));
        self.carry_promotion(name, out);
    }

    pub(crate) fn promotion_input(&mut self, name: &SidecarId, input: Input) {
        let now = self.now;
        let Role::Candidate(machine) = &mut self.sidecar_mut(name).role else { return };
        let mut out = Vec::new();
        machine.step(now, input, &mut out);
        self.carry_promotion(name, out);
    }

    fn carry_promotion(&mut self, name: &SidecarId, out: Vec<Output>) {
        for output in out {
            match output {
                Output::ReadConfig => self.call_store(name, Ask::Read),
                Output::Survey => {
                    let up =
                        self.hosts.values().filter_map(|host| Some((host.reference(), host.machine()?.inventory())));
                    let found = up.collect();
                    self.promotion_input(name, Input::Surveyed(found));
                }
                Output::Swap(swap) => self.call_store(name, Ask::Swap(swap)),
                Output::Fence(config, member) => {
                    let request = FenceRequest::of(self.caller(config.log, config.epoch).group, &config);
                    self.send(name, &member.id, Request::Fence(request), Then::Fence(config.epoch));
                }
                Output::Trim(config, member, below) => {
                    let request = TrimRequest { caller: self.caller(config.log, config.epoch), below };
                    let then = Then::Repair(config.epoch, Task::Trim(member.id.clone()));
                    self.send(name, &member.id, Request::Trim(request), then);
                }
                Output::Drop(config, member, copies) => {
                    let request = DropRequest { caller: self.caller(config.log, config.epoch), copies };
                    let then = Then::Repair(config.epoch, Task::Drop(member.id.clone()));
                    self.send(name, &member.id, Request::Drop(request), then);
                }
                Output::Close(config, member, identity, closure) => {
                    let request = CloseRequest { caller: self.caller(config.log, config.epoch), identity, closure };
                    let then = Then::Repair(config.epoch, Task::Close(member.id.clone(), identity.segment));
                    self.send(name, &member.id, Request::Close(request), then);
                }
                Output::Install(config, member, identity, closure, sources) => {
                    let whom = Whom::Candidate(config.epoch, Task::Install(member.id.clone(), identity.segment));
                    self.install(name, &config, &member, (identity, closure), sources, whom);
                }
                Output::Waiting(why) => self.say_waiting(name, &why.to_string()),
                Output::Won(config, reference) => self.begin_epoch(name, config, reference),
                Output::Lost(epoch) => {
                    self.tell(format!("{name} gives up: epoch {epoch} is claimed by another"));
                    self.sidecar_mut(name).become_role(Role::Standby);
                }
            }
        }
    }

    pub(crate) fn install(
        &mut self,
        by: &SidecarId,
        config: &Configuration,
        member: &MemberRef,
        (identity, closure): (SegmentIdentity, Closure),
        sources: Vec<tailwind_protocol::ids::MemberId>,
        whom: Whom,
    ) {
        let (epoch, target) = (config.epoch, member.id.clone());
        // Whoever should have it first, then every other backup: the closure vouches for the bytes.
        let others = self.hosts.keys().filter(|name| !sources.contains(name));
        let sources = sources.iter().chain(others).filter(|source| **source != target).cloned().collect();
        self.fetch_image(by, Image { identity, closure, epoch, target, sources, bytes: Vec::new(), whom });
    }

    pub(crate) fn on_fence_answer(&mut self, message: Message, answer: Result<Answer, Silence>) {
        let Then::Fence(epoch) = message.then else { return };
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => {
                self.tell_fence(&message, tale::inventory(&inventory));
                Ok(inventory)
            }
            other => Err(failure(other)),
        };
        self.promotion_input(&message.from, Input::Fenced(epoch, message.to, result));
    }

    pub(crate) fn on_repair_answer(&mut self, message: Message, answer: Result<Answer, Silence>) {
        let Then::Repair(epoch, task) = message.then else { return };
        let result = match answer {
            Ok(Answer::Done) => {
                if let Request::Close(close) = &message.request {
                    let what = format!("segment {}, {}", close.identity.segment, tale::records(&close.closure));
                    self.tell(format!("{} closes {what} at {}", message.from, message.to));
                }
                if let Request::Drop(drop) = &message.request {
                    let segments = tale::names(drop.copies.iter().map(|copy| &copy.identity.segment));
                    self.tell(format!("{} drops segment {segments} at {}", message.from, message.to));
                }
                Ok(())
            }
            other => Err(failure(other)),
        };
        self.promotion_input(&message.from, Input::Repaired(epoch, task, result));
    }

    /// A member that is fenced again and again with the same answer is worth a word once.
    fn tell_fence(&mut self, message: &Message, inventory: String) {
        let heard = &mut self.sidecar_mut(&message.from).heard;
        if heard.insert(message.to.clone(), inventory.clone()).as_ref() != Some(&inventory) {
            self.tell(format!("{} fences {}: {inventory}", message.from, message.to));
        }
    }

    fn say_waiting(&mut self, name: &SidecarId, why: &str) {
        let sidecar = self.sidecar_mut(name);
        if sidecar.waiting != why {
            sidecar.waiting = why.to_owned();
            self.tell(format!("{name} waits: {why}"));
        }
    }
}

/// What a candidate makes of anything but success.
pub(crate) fn failure(answer: Result<Answer, Silence>) -> Failure {
    match answer {
        Ok(Answer::Refused(refusal)) => refusal.into(),
        Ok(other) => panic!("{other:?} is no answer to this"),
        Err(Silence::Lost) => Failure::Unreachable("no answer in time".to_owned()),
        Err(Silence::Gone) => Failure::Unreachable("no connection".to_owned()),
    }
}
