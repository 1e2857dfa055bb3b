//! One step: takes a state and an action, carries out all that follows at once, and judges the result.
//!
//! Called by [`explore`](super::explore) for every transition, and once more for each line of a trace. What follows at
//! once are a process's own steps between two events; everything on its way waits for an action of its own.

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, Swap, SwapOutcome};
use tailwind_protocol::ids::{Epoch, LogId, MemberId, SidecarId};
use tailwind_protocol::primary;
use tailwind_protocol::promotion;
use tailwind_protocol::rpc::Caller;

use super::host::{Drive, Host};
use super::names::Names;
use super::part::Part;
use super::scenario::{Scenario, Wrong};
use super::state::{Answer, Ask, Call, Message, Role, Silence, State, StoreReply, Then};
use super::words;

/// A state being changed.
pub(super) struct Step<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) names: &'a Names,
    pub(super) state: State,
    /// Lines for a trace, when one is wanted.
    pub(super) story: Option<Vec<String>>,
}

/// Answers that may be taken as soon as they are given: they only let the sidecar send more, and what it sends may come
/// late anyhow. A fence's answer is not one of them: what a candidate chooses depends on the order of those.
fn is_local(then: &Then) -> bool {
    matches!(then, Then::Seat(_) | Then::Repair(..) | Then::Fetched(_) | Then::Granted(_) | Then::Sealed(_))
}

impl Step<'_> {
    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }

    pub(super) fn breaks(&mut self, rule: String) {
        self.state.broken.get_or_insert(rule);
    }

    pub(super) fn judge(&mut self, verdict: Result<(), String>) {
        if let Err(rule) = verdict {
            self.breaks(rule);
        }
    }

    pub(super) fn side_name(&self, side: usize) -> &SidecarId {
        &self.names.sidecars[side].id
    }

    pub(super) fn host_of(&self, member: &MemberId) -> usize {
        self.names.members.iter().position(|name| name == member).expect("a backup of the model")
    }

    pub(super) fn caller(&self, log: LogId, epoch: Epoch) -> Caller {
        Caller { group: self.names.group.clone(), log, epoch }
    }

    /// Drives a backup; returns its answer.
    pub(super) fn drive(
        &mut self,
        host: usize,
        fuse: Option<u8>,
        act: impl FnOnce(&mut Host, &mut Drive<'_>),
    ) -> (Option<Answer>, Option<u8>) {
        let (group, wrong) = (&self.names.group, self.scenario.wrong);
        let story = self.story.as_mut();
        let mut drive = Drive { group, wrong, fuse, answer: None, story, broken: None };
        act(&mut self.state.hosts[host], &mut drive);
        let Drive { answer, fuse, broken, .. } = drive;
        if let Some(rule) = broken {
            self.breaks(rule);
        }
        (answer, fuse)
    }

    // Control messages.

    pub(super) fn send(&mut self, side: usize, to: usize, request: Request, then: Then) {
        let from = Some((side, self.state.sides[side].life));
        self.state.messages.push(Part::new(Message { from, to, request, then, answer: None }));
    }

    /// A request arrives. With a fuse the process dies on it; false when it lived.
    pub(super) fn deliver(&mut self, at: usize, fuse: Option<u8>) -> bool {
        let mut message = self.state.messages.remove(at).into_inner();
        let to = message.to;
        if !self.state.hosts[to].is_up() {
            message.answer = Some(Err(Silence::Gone));
        } else {
            let (names, request) = (self.names, message.request.clone());
            let from = message.from.map_or("nobody any more", |(side, _)| names.sidecars[side].id.as_str());
            self.trace(|| format!("{} gets the {} from {from}", names.members[to], words::request(&request)));
            let (answer, _) = self.drive(to, fuse, |host, drive| host.ask(request, drive));
            if fuse.is_some() && self.state.hosts[to].is_up() {
                return false;
            }
            if let Some(Answer::Refused(refusal)) = &answer {
                let names = self.names;
                self.trace(|| format!("{} refuses: {refusal}", names.members[to]));
            }
            message.answer = Some(answer.ok_or(Silence::Gone));
        }
        let at_once = !self.scenario.slow_answers && is_local(&message.then);
        self.state.messages.push(Part::new(message));
        if at_once {
            self.answer(self.state.messages.len() - 1);
        }
        true
    }

    /// An answer arrives.
    pub(super) fn answer(&mut self, at: usize) {
        let message = self.state.messages.remove(at).into_inner();
        let (Some((side, _)), Some(answer)) = (message.from, message.answer) else { return };
        self.hand_over(side, message.to, message.request, message.then, answer);
    }

    /// The sender hears nothing. A request that has not arrived yet still may.
    pub(super) fn silence(&mut self, at: usize) {
        let message = self.state.messages.remove(at).into_inner();
        let Some((side, _)) = message.from else { return };
        let (names, to) = (self.names, message.to);
        self.trace(|| {
            let (name, to) = (&names.sidecars[side].id, &names.members[to]);
            format!("{name} hears nothing from {to} about the {}", words::request(&message.request))
        });
        if message.answer.is_none() {
            let orphan = Message { from: None, then: Then::Nothing, ..message.clone() };
            self.state.messages.push(Part::new(orphan));
        }
        self.hand_over(side, message.to, message.request, message.then, Err(Silence::Lost));
    }

    fn hand_over(&mut self, side: usize, to: usize, request: Request, then: Then, answer: Result<Answer, Silence>) {
        match then {
            Then::Fence(epoch, member) => self.on_fence_answer(side, epoch, member, answer),
            Then::Repair(epoch, task) => self.on_repair_answer(side, epoch, task, answer),
            Then::Recruit(member) => self.on_recruit_answer(side, member, answer),
            Then::Seat(output) => self.on_seat_answer(side, *output, answer),
            Then::Fetched(image) => self.on_fetched(side, *image, answer),
            Then::Granted(image) => self.on_granted(side, *image, answer),
            Then::Sealed(image) => self.on_sealed(side, *image, answer),
            Then::Nothing => unreachable!("nobody waits for the {} at {to}", words::request(&request)),
        }
    }

    // The config store.

    pub(super) fn call(&mut self, side: usize, ask: Ask) {
        let from = Some((side, self.state.sides[side].life));
        self.state.calls.push(Part::new(Call { from, ask, reply: None }));
    }

    /// The store carries a call out.
    pub(super) fn carry_out(&mut self, at: usize) {
        let mut call = self.state.calls.remove(at).into_inner();
        let reply = match &call.ask {
            Ask::Read => StoreReply::Read(Ok(self.state.store.as_ref().cloned())),
            Ask::Survey => {
                let up = |host: &Part<Host>| Some((host.reference(), host.machine()?.inventory()));
                StoreReply::Surveyed(self.state.hosts.iter().filter_map(up).collect())
            }
            Ask::Swap(swap) => StoreReply::Swapped(self.swap(call.from, swap)),
        };
        if call.from.is_some() {
            // A candidate that reads or claims hears and does nothing else meanwhile: when it learns of it is all one,
            // because what it sends then may come late anyhow.
            let claims = |swap: &Swap| swap.expected.is_none_or(|found| found.epoch < swap.proposed.epoch);
            let waits_for_it = match &call.ask {
                Ask::Read | Ask::Survey => true,
                Ask::Swap(swap) => claims(swap),
            };
            call.reply = Some(reply);
            self.state.calls.push(Part::new(call));
            if waits_for_it && !self.scenario.slow_answers {
                self.reply(self.state.calls.len() - 1);
            }
        }
    }

    fn swap(&mut self, from: Option<(usize, u8)>, swap: &Swap) -> SwapOutcome {
        let found = self.state.store.as_ref().map(Configuration::stamp);
        let applies = found == swap.expected || self.scenario.wrong == Wrong::SwapWithoutCompare;
        let names = self.names;
        let who = from.map_or("nobody any more", |(side, _)| names.sidecars[side].id.as_str());
        let end = if applies { "done" } else { "refused, something else is there" };
        self.trace(|| format!("{who} swaps to {}: {end}", words::configuration(&swap.proposed)));
        if !applies {
            return SwapOutcome::Conflict(self.state.store.as_ref().cloned());
        }
        if self.state.store.as_ref().is_some_and(|found| found.stamp() >= swap.proposed.stamp()) {
            self.breaks("S7: the configuration goes back".to_owned());
        }
        *self.state.store = Some(swap.proposed.clone());
        SwapOutcome::Applied
    }

    /// The store's answer arrives.
    pub(super) fn reply(&mut self, at: usize) {
        let call = self.state.calls.remove(at).into_inner();
        if let (Some((side, _)), Some(reply)) = (call.from, call.reply) {
            self.hand_reply(side, reply);
        }
    }

    /// The caller hears nothing. A swap that was not carried out yet still may be.
    pub(super) fn unknown(&mut self, at: usize) {
        let call = self.state.calls.remove(at).into_inner();
        let Some((side, _)) = call.from else { return };
        let name = self.side_name(side).clone();
        self.trace(|| format!("{name} hears nothing from the config store"));
        let reply = match &call.ask {
            Ask::Read => StoreReply::Read(Err("no answer".to_owned())),
            Ask::Survey => StoreReply::Surveyed(Vec::new()),
            Ask::Swap(_) => StoreReply::Swapped(SwapOutcome::Unknown),
        };
        if call.reply.is_none() && matches!(call.ask, Ask::Swap(_)) {
            self.state.calls.push(Part::new(Call { from: None, ..call }));
        }
        self.hand_reply(side, reply);
    }

    fn hand_reply(&mut self, side: usize, reply: StoreReply) {
        let candidate = matches!(self.state.sides[side].role, Role::Candidate(_));
        match reply {
            StoreReply::Read(found) if candidate => self.promotion_input(side, promotion::Input::Read(found)),
            StoreReply::Read(found) => self.primary_input(side, primary::Input::Read(found)),
            StoreReply::Surveyed(found) => self.promotion_input(side, promotion::Input::Surveyed(found)),
            StoreReply::Swapped(outcome) if candidate => self.promotion_input(side, promotion::Input::Swapped(outcome)),
            StoreReply::Swapped(outcome) => self.primary_input(side, primary::Input::Swapped(outcome)),
        }
    }

    pub(super) fn become_role(&mut self, side: usize, role: Role) {
        let side = &mut *self.state.sides[side];
        side.role = role;
        side.life += 1;
    }
}
