//! The steps from candidate to primary: claim the epoch, fence the members, choose the log, repair every member, and swap
//! unreachable members out of the set.
//!
//! Driven by the sidecar (and by the simulator). Every step can be repeated: after any failure the machine goes back to
//! reading the configuration and runs the ordinary path again under a higher epoch; there are no repair branches.
//! Nothing of the recovered log may be shown to the app before [`Output::Won`]. See "Promotion" in `docs/protocol.md`.

mod choosing;
mod fencing;
mod messages;
mod repairing;
mod rules;
mod words;

use std::collections::BTreeSet;

use crate::config::{Configuration, MEMBERS_MAX, MemberRef, PrimaryRef, Swap, SwapOutcome, Time};
use crate::ids::{Claim, Epoch, LogId, Lsn, MemberId, SegmentId, Version};
use crate::planted::{self, Bug};
use crate::recovery::Damage;
use crate::rpc::{Failure, Inventory};

use fencing::{Absence, Fencing};
pub use messages::{Input, Output, Task, Waiting};
use repairing::{Recovered, Repairing};
pub use rules::{AcceptedLoss, DiskRecovery, Rules};
use words::Words;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Reading,
    /// Until the next try.
    Pausing(Time),
    Surveying(Survey),
    Claiming(Swap),
    Fencing(Fencing),
    Repairing(Repairing),
    /// Every member of the proposed set holds the log; the config store is to say so.
    Winning(Recovered, Swap),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Survey {
    since: Time,
    /// When to ask again after too few answers.
    retry_at: Option<Time>,
}

/// The state of a promotion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promotion {
    me: PrimaryRef,
    rules: Rules,
    /// The log's identity, for a new group.
    new_log: LogId,
    /// The claim to use next.
    next_claim: Claim,
    state: State,
    /// When a swap of unknown outcome is sent again.
    swap_again: Option<Time>,
    /// Since when the config store has not answered what it was asked.
    unanswered_since: Option<Time>,
    /// Since when repairs have failed, in this attempt and those before it, and none has succeeded.
    unrepaired_since: Option<Time>,
    /// The epoch that this candidate last claimed; a later one of another claimant means that the race is lost.
    claimed: Option<Epoch>,
    words: Words,
    /// Epochs up to here are skipped: members have promised them, and an administrator has accepted a store without them.
    skipped: Epoch,
    /// There was no configuration yet: this candidate races for a new group. Once another sidecar has created one, the race is
    /// lost, and a standby judges whether its primary is alive.
    founding: bool,
    /// Members that were fenced and could not be repaired. They are left out of the set as long as enough others remain: each
    /// of those holds everything that was acknowledged.
    unfit: BTreeSet<MemberId>,
    /// Members that have shown, after the others were fenced, that more was acknowledged than those hold. The promotion has started
    /// again for each of them, once.
    late: BTreeSet<MemberId>,
}

/// True where another claimant has taken this candidate's place, by what the config store has now.
fn is_beaten(mine: &Configuration, found: &Configuration) -> bool {
    found.epoch > mine.epoch || found.epoch == mine.epoch && found.claim != mine.claim
}

impl Promotion {
    /// Starts a promotion. `new_log` names the log if there is none yet; `seed` generates the claims. Both are drawn at random
    /// for each promotion.
    pub fn start(me: PrimaryRef, rules: Rules, new_log: LogId, seed: u64, out: &mut Vec<Output>) -> Promotion {
        out.push(Output::ReadConfig);
        let (state, next_claim, unfit, late) = (State::Reading, Claim(seed), BTreeSet::new(), BTreeSet::new());
        let (swap_again, claimed, founding) = (None, None, false);
        let (words, skipped) = (Words::default(), Epoch(0));
        let (unanswered_since, unrepaired_since) = (None, None);
        Promotion {
            me,
            rules,
            new_log,
            next_claim,
            state,
            swap_again,
            unanswered_since,
            unrepaired_since,
            claimed,
            words,
            skipped,
            founding,
            unfit,
            late,
        }
    }

    /// The caller has seen no configuration. If there is one by now, the race for the new group is lost.
    pub fn expect_to_found(&mut self) {
        self.founding = true;
    }

    /// Takes one input; appends to `out` what to do. Answers to requests of an earlier attempt are ignored.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match &input {
            Input::Read(Ok(_)) => self.unanswered_since = None,
            Input::Swapped(outcome) if *outcome != SwapOutcome::Unknown => self.unanswered_since = None,
            _ => {}
        }
        let before = out.len();
        self.take(now, input, out);
        if out[before..].iter().any(|output| matches!(output, Output::ReadConfig | Output::Swap(_))) {
            self.unanswered_since.get_or_insert(now);
        }
    }

    fn take(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Read(result) => self.on_read(now, result, out),
            Input::Surveyed(found) => self.on_surveyed(now, found, out),
            Input::Swapped(outcome) => self.on_swapped(now, outcome, out),
            Input::Fenced(epoch, member, result) => self.on_fenced(now, epoch, member, result, out),
            Input::Repaired(epoch, task, result) => self.on_repaired(now, epoch, &task, result, out),
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// True if too few members, or the config store, have not answered this candidate for too long, or no repair has succeeded:
    /// it may be cut off, perhaps only from the members' memory, and a standby that reaches them must not take it for a primary
    /// that is well. It goes on trying.
    pub fn is_cut_off(&self, now: Time) -> bool {
        let is_too_long = |since: &Time| now >= since.plus(self.rules.long_wait_ms());
        let since = [self.unanswered_since, self.unrepaired_since];
        since.iter().flatten().any(is_too_long) || self.misses_members(now)
    }

    fn misses_members(&self, now: Time) -> bool {
        let State::Fencing(fencing) = &self.state else { return false };
        let needed = if self.rules.recover_from_disk.is_some() { 1 } else { self.rules.needed() };
        let needed = needed.min(fencing.config.members.len());
        now >= fencing.since.plus(self.rules.long_wait_ms()) && fencing.reached() < needed
    }

    fn on_read(&mut self, now: Time, result: Result<Option<Configuration>, String>, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Reading => {}
            State::Fencing(fencing) => {
                fencing.comparing = false;
                let config = fencing.config.clone();
                return self.compare(now, &config, result, out);
            }
            // Because of a late word.
            State::Repairing(Repairing { recovered, .. }) => {
                if let Ok(Some(found)) = result
                    && is_beaten(&recovered.config, &found)
                {
                    self.lose(found.epoch, out);
                }
                return;
            }
            _ => return,
        }
        match result {
            Err(why) => self.wait(now, Waiting::ConfigStore(why), out),
            Ok(None) => {
                self.founding = true;
                self.state = State::Surveying(Survey { since: now, retry_at: None });
                out.push(Output::Survey(None));
            }
            Ok(Some(found)) => {
                if found.kind != self.rules.kind {
                    self.state = State::Over;
                    return out.push(Output::OtherKind(found));
                }
                let beaten = self.claimed.is_some_and(|claimed| found.epoch > claimed);
                if (beaten || self.founding) && found.primary != self.me {
                    return self.lose(found.epoch, out);
                }
                let claim = self.draw_claim();
                let mut proposed = found.claimed_by(self.me.clone(), claim);
                // Skips every promised epoch, and with it every claim.
                if self.skipped >= proposed.epoch {
                    (proposed.epoch, proposed.earlier) = (self.skipped.next().next(), Vec::new());
                }
                self.swap(Some(&found), proposed, out);
            }
        }
    }

    /// A member of the set that is being fenced has given its word. Every epoch that a member promises was in the config store
    /// before: either the store has it now, and another sidecar leads or will, or the store has gone back, and its set may be an
    /// old one, or the word is false. As long as it stands, the promotion waits.
    fn compare(
        &mut self,
        now: Time,
        mine: &Configuration,
        result: Result<Option<Configuration>, String>,
        out: &mut Vec<Output>,
    ) {
        let word = self.words.standing(now, self.rules.long_wait_ms());
        match (result, word) {
            (Err(why), _) => out.push(Output::Waiting(Waiting::ConfigStore(why))),
            (Ok(Some(found)), _) if is_beaten(mine, &found) => self.lose(found.epoch, out),
            (Ok(Some(found)), Some((member, promised))) if found.epoch == mine.epoch => {
                out.push(Output::Waiting(Waiting::StoreIsOlder { epoch: found.epoch, member, promised }));
            }
            (Ok(Some(found)), _) if found.epoch == mine.epoch => {}
            (Ok(_), _) => self.pause(now),
        }
    }

    /// Starts again at once, and claims an epoch beyond these.
    fn skip(&mut self, promised: Epoch, out: &mut Vec<Output>) {
        self.skipped = self.skipped.max(promised);
        self.words.forget();
        self.state = State::Reading;
        out.push(Output::ReadConfig);
    }

    fn on_surveyed(&mut self, now: Time, found: Vec<(MemberRef, Inventory)>, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Surveying(Survey { since, .. }) => {
                let since = *since;
                self.found(now, since, &found, out);
            }
            State::Fencing(fencing) if fencing.surveying => {
                fencing.surveying = false;
                fencing.take_others(found.into_iter().map(|(_, inventory)| inventory));
                self.choose(now, out);
            }
            _ => {}
        }
    }

    /// Founds a new group: its first members are backups that have never belonged to a log.
    fn found(&mut self, now: Time, since: Time, found: &[(MemberRef, Inventory)], out: &mut Vec<Output>) {
        if let Some((member, log)) = found.iter().find_map(|(member, i)| Some((member, i.log?))) {
            return self.wait(now, Waiting::StoreForgot { member: member.id.clone(), log }, out);
        }
        let patient = now < since.plus(self.rules.fence_wait_ms);
        let needed = if patient { self.rules.backups } else { self.rules.needed() as u8 };
        if found.len() < usize::from(needed) {
            if !patient {
                return self.wait(now, Waiting::Backups { empty: found.len() as u8, needed }, out);
            }
            // The backups of a new group start one after the other.
            self.state = State::Surveying(Survey { since, retry_at: Some(now.plus(self.rules.retry_ms)) });
            return;
        }
        let wanted = usize::from(self.rules.backups).min(MEMBERS_MAX);
        let proposed = Configuration {
            log: self.new_log,
            kind: self.rules.kind,
            epoch: Epoch(1),
            claim: self.draw_claim(),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(1),
            primary: self.me.clone(),
            members: found.iter().map(|(member, _)| member.clone()).take(wanted).collect(),
        };
        self.swap(None, proposed, out);
    }

    fn draw_claim(&mut self) -> Claim {
        let next = Claim(self.next_claim.0.wrapping_add(1));
        std::mem::replace(&mut self.next_claim, next)
    }

    fn swap(&mut self, found: Option<&Configuration>, proposed: Configuration, out: &mut Vec<Output>) {
        let swap = Swap { expected: found.map(Configuration::stamp), proposed };
        self.state = State::Claiming(swap.clone());
        out.push(Output::Swap(swap));
    }

    fn on_swapped(&mut self, now: Time, outcome: SwapOutcome, out: &mut Vec<Output>) {
        let swap = match &self.state {
            State::Claiming(swap) | State::Winning(_, swap) => swap.clone(),
            _ => return,
        };
        match outcome.settle(&swap.proposed) {
            SwapOutcome::Unknown => {
                self.swap_again = Some(now.plus(self.rules.retry_ms));
                self.on_tick(now, out);
            }
            SwapOutcome::Conflict(Some(found)) if found.epoch >= swap.proposed.epoch => self.lose(found.epoch, out),
            SwapOutcome::Conflict(_) => self.pause(now),
            SwapOutcome::Applied => match std::mem::replace(&mut self.state, State::Over) {
                State::Winning(recovered, swap) => out.push(Output::Won(swap.proposed, recovered.reference)),
                _ => self.fence(now, swap.proposed, out),
            },
        }
    }

    fn fence(&mut self, now: Time, config: Configuration, out: &mut Vec<Output>) {
        self.claimed = Some(config.epoch);
        out.extend(config.members.iter().map(|member| Output::Fence(config.clone(), member.clone())));
        self.state = State::Fencing(Fencing::start(config, now, now.plus(self.rules.retry_ms)));
    }

    fn on_fenced(
        &mut self,
        now: Time,
        epoch: Epoch,
        member: MemberId,
        result: Result<Inventory, Failure>,
        out: &mut Vec<Output>,
    ) {
        if matches!(self.state, State::Repairing(_)) {
            return self.on_fenced_late(epoch, &member, result, now, out);
        }
        let State::Fencing(fencing) = &mut self.state else { return };
        let Some(known) = fencing.config.member(&member).filter(|_| fencing.config.epoch == epoch) else { return };
        let answer = match result {
            Err(Failure::Unreachable(why)) => Err(Absence::Silent(why)),
            Err(failure) => return self.on_refused(now, epoch, member, &failure, out),
            // It has come back with other memory, so it may lack acknowledged records.
            Ok(inventory) if inventory.boot != known.boot && !planted::has(Bug::StrangerTrusted) => {
                let was_member = inventory.former.contains(&known.boot) && inventory.log == Some(fencing.config.log);
                let synced = inventory.synced.map_or(Lsn(0), |synced| synced.last);
                if was_member && self.rules.recover_from_disk.is_some_and(|order| order.is_for(&fencing.config)) {
                    fencing.from_disk.insert(member.clone(), inventory);
                }
                Err(Absence::Reborn(was_member.then_some(synced)))
            }
            Ok(inventory) => Ok(inventory),
        };
        if answer.is_ok() {
            self.words.take_back(&member);
        }
        fencing.answers.insert(member, answer);
        fencing.damage = None;
        self.choose(now, out);
    }

    /// A member of the set has promised an epoch to another claimant, or says so: the config store tells which.
    fn on_refused(&mut self, now: Time, mine: Epoch, member: MemberId, failure: &Failure, out: &mut Vec<Output>) {
        let promised = self.words.note(now, mine, &member, failure);
        let State::Fencing(fencing) = &mut self.state else { return };
        let accepted = self.rules.accept_loss.is_some_and(|accepted| accepted.is_for(&fencing.config));
        let answer = match promised {
            Some(promised) => Absence::Promised(promised),
            None => Absence::Silent(format!("it refuses epoch {mine}, and what it says of others cannot be true")),
        };
        fencing.answers.insert(member, Err(answer));
        match promised {
            Some(promised) if accepted => self.skip(promised.max(mine), out),
            Some(_) if std::mem::replace(&mut fencing.comparing, true) => {}
            Some(_) => out.push(Output::ReadConfig),
            None => self.choose(now, out),
        }
    }

    /// A member of the set was fenced late, while the others are being repaired. It stays in the set if it holds the log in
    /// time, as any member does. If it holds evidence of more than was recovered, the promotion starts again, once, and waits for
    /// it. A refusal only has the config store read: had the member been silent, nobody would have waited for it either. So one
    /// that lies, always too late, does not keep the others from going on.
    fn on_fenced_late(
        &mut self,
        epoch: Epoch,
        member: &MemberId,
        result: Result<Inventory, Failure>,
        now: Time,
        out: &mut Vec<Output>,
    ) {
        let accepted = self.rules.accept_loss;
        let State::Repairing(Repairing { recovered, .. }) = &mut self.state else { return };
        let Recovered { config, fenced, reference, plans, .. } = recovered;
        let known = config.member(member).filter(|known| config.epoch == epoch && !fenced.contains(known)).cloned();
        let (known, inventory) = match (known, result) {
            (Some(known), Ok(inventory)) => (known, inventory),
            (Some(_), Err(Failure::Superseded(_) | Failure::ClaimedBefore(_))) => return out.push(Output::ReadConfig),
            _ => return,
        };
        if inventory.boot != known.boot || self.unfit.contains(member) {
            return;
        }
        let short = accepted.is_none_or(|accepted| !accepted.is_for(config))
            && inventory.copies.iter().any(|copy| reference.falls_short_of(copy) || reference.ends_before(copy));
        if short {
            if self.late.insert(known.id) {
                self.pause(now);
            }
            return;
        }
        reference.synced = reference.synced.min(reference.synced_at(&inventory));
        plans.push((known.clone(), reference.plan_for(&inventory)));
        fenced.push(known);
        self.go_on_repairing(out);
    }

    /// Goes on to the repairs once what the members have answered is the log. While a member's word stands, it waits.
    fn choose(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.words.standing(now, self.rules.long_wait_ms()).is_some() {
            return;
        }
        let State::Fencing(fencing) = &mut self.state else { return };
        if let Some(recovered) = fencing.choose(now, &self.rules, &mut self.unfit, &self.late) {
            self.repair(now, recovered, out);
        }
    }

    fn repair(&mut self, now: Time, recovered: Recovered, out: &mut Vec<Output>) {
        self.state = State::Repairing(Repairing { recovered, tasks: Vec::new(), progress: now });
        self.go_on_repairing(out);
    }

    fn on_repaired(
        &mut self,
        now: Time,
        epoch: Epoch,
        task: &Task,
        result: Result<(), Failure>,
        out: &mut Vec<Output>,
    ) {
        let State::Repairing(repairing) = &mut self.state else { return };
        if repairing.recovered.config.epoch != epoch {
            return;
        }
        match result {
            Ok(()) => {
                repairing.tasks.retain(|waiting| waiting != task);
                repairing.progress = now;
                self.unrepaired_since = None;
                self.go_on_repairing(out);
            }
            Err(failure) => {
                let word = self.words.note(now, epoch, task.member(), &failure);
                self.try_without([task.member().clone()], now);
                // Another sidecar may lead by now: there is nothing to wait for.
                if word.is_some() {
                    self.state = State::Reading;
                    out.push(Output::ReadConfig);
                }
            }
        }
    }

    /// These members answer but cannot be repaired: start again, without them if enough others remain.
    fn try_without(&mut self, unfit: impl IntoIterator<Item = MemberId>, now: Time) {
        self.unfit.extend(unfit);
        self.unrepaired_since.get_or_insert(now);
        self.pause(now);
    }

    /// Starts the next tasks of all members. After the last one the config store learns of the win, and of the set that holds the log;
    /// then it is won.
    fn go_on_repairing(&mut self, out: &mut Vec<Output>) {
        let State::Repairing(Repairing { recovered, tasks, .. }) = &mut self.state else { return };
        recovered.hand_out(tasks, out);
        if !tasks.is_empty() && !planted::has(Bug::TailExposedEarly) {
            return;
        }
        let State::Repairing(Repairing { recovered, .. }) = std::mem::replace(&mut self.state, State::Over) else {
            return;
        };
        let proposed = recovered.won();
        if planted::has(Bug::ShrinkAssumed) {
            return out.push(Output::Won(proposed, recovered.reference));
        }
        let swap = Swap { expected: Some(recovered.config.stamp()), proposed };
        out.push(Output::Swap(swap.clone()));
        self.state = State::Winning(recovered, swap);
    }

    fn on_tick(&mut self, now: Time, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Claiming(swap) | State::Winning(_, swap) if self.swap_again.take_if(|at| now >= *at).is_some() => {
                out.push(Output::Swap(swap.clone()));
            }
            State::Pausing(until) if now >= *until => {
                self.state = State::Reading;
                out.push(Output::ReadConfig);
            }
            State::Surveying(survey) if survey.retry_at.is_some_and(|retry_at| now >= retry_at) => {
                survey.retry_at = None;
                out.push(Output::Survey(None));
            }
            State::Fencing(fencing) if now >= fencing.retry_at => {
                fencing.retry_at = now.plus(self.rules.retry_ms);
                if let Some(damage) = &fencing.damage {
                    out.push(Output::Waiting(Waiting::Damage(damage.clone())));
                    if let Damage::Missing { segment, .. } = damage
                        && !std::mem::replace(&mut fencing.surveying, true)
                    {
                        out.push(Output::Survey(Some(SegmentId(segment.0.saturating_sub(1)))));
                    }
                }
                out.extend(fencing.to_ask_again().map(|member| Output::Fence(fencing.config.clone(), member.clone())));
                self.choose(now, out);
                self.report_missing(now, out);
                self.look_for_a_successor(now, out);
            }
            State::Fencing(fencing) if fencing.damage.is_none() => self.choose(now, out),
            State::Repairing(repairing) if now >= repairing.progress.plus(self.rules.repair_timeout_ms) => {
                let stuck: Vec<MemberId> = repairing.tasks.iter().map(|task| task.member().clone()).collect();
                self.try_without(stuck, now);
            }
            _ => {}
        }
    }

    /// Another sidecar may have claimed a later epoch, and the members that know of it are out of reach.
    fn look_for_a_successor(&mut self, now: Time, out: &mut Vec<Output>) {
        let misses_members = self.misses_members(now);
        let State::Fencing(fencing) = &mut self.state else { return };
        if misses_members && now >= fencing.look_at && !std::mem::replace(&mut fencing.comparing, true) {
            fencing.look_at = now.plus(self.rules.long_wait_ms());
            out.push(Output::ReadConfig);
        }
    }

    fn report_missing(&mut self, now: Time, out: &mut Vec<Output>) {
        let State::Fencing(fencing) = &self.state else { return };
        let waits = now < fencing.since.plus(self.rules.fence_wait_ms);
        if !waits && fencing.damage.is_none() && self.words.is_empty() {
            out.extend(fencing.missing(self.rules.needed()).map(Output::Waiting));
        }
    }

    fn wait(&mut self, now: Time, why: Waiting, out: &mut Vec<Output>) {
        out.push(Output::Waiting(why));
        self.pause(now);
    }

    /// Back to the start, after a pause.
    fn pause(&mut self, now: Time) {
        self.state = State::Pausing(now.plus(self.rules.retry_ms));
    }

    fn lose(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        self.state = State::Over;
        out.push(Output::Lost(epoch));
    }
}
