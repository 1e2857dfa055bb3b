//! Carries out what a [`Promotion`] wants and brings it the answers; decides nothing.

use std::collections::BTreeMap;

use tailwind_protocol::config::MemberRef;
use tailwind_protocol::ids::{Epoch, LogId, MemberId};
use tailwind_protocol::promotion::{Input, Output, Promotion, Rules, Task};
use tailwind_protocol::rpc::{Inventory, TermId};

use super::image::Requester;
use super::network::{Answer, Silence};
use super::queue::MS;
use super::sidecar::{Again, Purpose, Role, failure};
use super::store::{Ask, StoreReply};
use super::{SidecarNo, World, group};
use crate::trace::{self, names, trace};

/// How long a promotion waits for slower members once enough are fenced.
const FENCE_WAIT_MS: u64 = 150;
/// Pause between two tries of whatever failed.
const RETRY_MS: u64 = 50;
/// Patience with members whose repair gets no further.
const REPAIR_TIMEOUT_MS: u64 = 2000;

/// A candidate.
#[derive(Debug)]
pub(crate) struct Candidacy {
    machine: Promotion,
    /// What it has claimed last.
    term: Option<TermId>,
    /// What it said last while it waits.
    waiting: String,
    /// What each backup answered last, if anybody listens: told once.
    heard: BTreeMap<MemberId, String>,
}

impl World {
    pub(crate) fn become_candidate(&mut self, of: SidecarNo) {
        let rules = Rules {
            kind: self.plan.kind(),
            accept_loss: None,
            recover_from_disk: self.desired.recover_from_disk,
            backups: self.desired.backups,
            min_in_sync: self.desired.min_in_sync,
            fence_wait_ms: FENCE_WAIT_MS,
            retry_ms: RETRY_MS,
            repair_timeout_ms: REPAIR_TIMEOUT_MS,
        };
        let mut out = Vec::new();
        let log = LogId(u128::from(self.random.next()) << 64 | u128::from(self.random.next()));
        let machine = Promotion::start(self.sidecars[of.0].reference(), rules, log, self.random.next(), &mut out);
        let candidacy = Candidacy { machine, term: None, waiting: String::new(), heard: BTreeMap::new() };
        self.change_role(of, Role::Candidate(Box::new(candidacy)));
        self.execute_promotion(of, out);
    }

    pub(crate) fn promotion_input(&mut self, of: SidecarNo, input: Input) {
        let now = self.time(of);
        let Role::Candidate(candidacy) = &mut self.sidecars[of.0].role else { return };
        let mut out = Vec::new();
        candidacy.machine.step(now, input, &mut out);
        let term = candidacy.term.filter(|_| !candidacy.machine.is_cut_off(now));
        self.sidecars[of.0].tenure = term;
        self.execute_promotion(of, out);
    }

    fn execute_promotion(&mut self, of: SidecarNo, out: Vec<Output>) {
        for output in out {
            match output {
                Output::ReadConfig => self.ask_store(of, Ask::Read),
                Output::Survey(after) => {
                    let pause = if self.by_hand { 0 } else { RETRY_MS * MS };
                    self.plan_again(of, pause, Again::Survey(after));
                }
                Output::Swap(swap) => {
                    let term = Some(TermId::of(&swap.proposed));
                    self.sidecars[of.0].tenure = term;
                    if let Role::Candidate(candidacy) = &mut self.sidecars[of.0].role {
                        candidacy.term = term;
                    }
                    self.ask_store(of, Ask::Swap(Box::new(swap)));
                }
                Output::Install(ref config, ref member, identity, closure, ref holders) => {
                    if let Some((epoch, task)) = output.task() {
                        let whom = Requester::Candidate(epoch, task);
                        self.begin_image(of, config, member, (identity, closure), holders, &[], whom);
                    }
                }
                Output::Waiting(why) => {
                    let why = why.to_string();
                    let Role::Candidate(candidacy) = &mut self.sidecars[of.0].role else { return };
                    if candidacy.waiting != why {
                        candidacy.waiting.clone_from(&why);
                        trace!(self, "{} waits: {why}", self.sidecars[of.0].name);
                    }
                }
                Output::Won(config, reference) => {
                    let last = reference.last();
                    let first = reference.segments.first().map_or(last.next(), |segment| segment.closure.first);
                    trace!(
                        self,
                        "{} is primary of epoch {}, version {}, set {}; recovers {}",
                        self.sidecars[of.0].name,
                        config.epoch,
                        config.version,
                        names(config.members.iter().map(|member| &member.id)),
                        trace::records(first, last)
                    );
                    return self.begin_epoch(of, config, &reference);
                }
                Output::Lost(epoch) => {
                    trace!(self, "{} gives up: epoch {epoch} is claimed by another", self.sidecars[of.0].name);
                    return self.rest(of, 40);
                }
                Output::OtherKind(_) => unreachable!("all sidecars of a world say the same kind"),
                Output::Fence(..) | Output::Trim(..) | Output::Drop(..) | Output::Close(..) => {
                    let Some((member, request)) = output.request(group()) else { continue };
                    let purpose = match (&output, output.task()) {
                        (_, Some((epoch, task))) => Purpose::Repair(epoch, task),
                        (Output::Fence(config, _), None) => Purpose::Fence(config.epoch, member.id.clone()),
                        _ => continue,
                    };
                    self.call(of, self.host_of(&member.id), request, purpose);
                }
            }
        }
    }

    pub(crate) fn on_candidate_tick(&mut self, of: SidecarNo) {
        self.promotion_input(of, Input::Tick);
    }

    pub(crate) fn on_candidate_store_reply(&mut self, of: SidecarNo, reply: StoreReply) {
        let input = match reply {
            StoreReply::Read(result) => Input::Read(result),
            StoreReply::Swapped(outcome) => Input::Swapped(outcome),
        };
        self.promotion_input(of, input);
    }

    pub(crate) fn on_candidate_surveyed(&mut self, of: SidecarNo, found: Vec<(MemberRef, Inventory)>) {
        self.promotion_input(of, Input::Surveyed(found));
    }

    pub(crate) fn on_fence_answer(
        &mut self,
        of: SidecarNo,
        epoch: Epoch,
        member: MemberId,
        answer: Result<Answer, Silence>,
    ) {
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => {
                self.trace_inventory(of, &member, &inventory);
                self.believe(inventory, epoch, epoch.before())
            }
            other => Err(failure(other)),
        };
        self.promotion_input(of, Input::Fenced(epoch, member, result));
    }

    /// A member that is fenced again and again with the same answer is worth a word once.
    fn trace_inventory(&mut self, of: SidecarNo, member: &MemberId, inventory: &Inventory) {
        let Role::Candidate(candidacy) = &mut self.sidecars[of.0].role else { return };
        if !self.trace.is_on() {
            return;
        }
        let heard = trace::inventory(inventory);
        if candidacy.heard.insert(member.clone(), heard.clone()).as_ref() != Some(&heard) {
            trace!(self, "{} hears from {member}: {heard}", self.sidecars[of.0].name);
        }
    }

    pub(crate) fn on_repair_answer(
        &mut self,
        of: SidecarNo,
        epoch: Epoch,
        task: Task,
        answer: Result<Answer, Silence>,
    ) {
        let name = &self.sidecars[of.0].name;
        let result = match answer {
            Ok(Answer::Done) => {
                match &task {
                    Task::Trim(member) => trace!(self, "{name} trims {member}"),
                    Task::Drop(member) => trace!(self, "{name} drops what is not part of the log at {member}"),
                    Task::Close(member, segment) => trace!(self, "{name} closes segment {segment} at {member}"),
                    Task::Install(..) => {}
                }
                Ok(())
            }
            // The control asks again while a close is told to come later; a promotion's own retry does the same.
            other => Err(failure(other)),
        };
        self.promotion_input(of, Input::Repaired(epoch, task, result));
    }
}
