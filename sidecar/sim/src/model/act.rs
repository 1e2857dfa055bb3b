//! What may happen next: every event that a state allows, and carrying one out.
//!
//! Called by [`explore`](super::explore). Events are of two kinds. *Free* ones happen by themselves sooner or later:
//! arrivals, completions, restarts, ticks. The others are choices of the outside: appends, rivals and faults, each with a
//! budget.

use tailwind_protocol::config::{Configuration, Time};
use tailwind_protocol::ids::{Epoch, MemberId};
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::promotion::{self, Promotion};

use super::fabric::Tear;
use super::follow;
use super::names::Names;
use super::reduce;
use super::scenario::{Scenario, Wrong};
use super::state::{Answer, Ask, Call, HOSTS, Lead, Role, SIDES, State, Then, WriteState};
use super::step::Step;

/// The moment at which everything happens, apart from what needs patience to have run out.
pub(super) const SOON: Time = Time(0);
/// A moment at which all patience has run out.
pub(super) const LATE: Time = Time(1);
/// Most outputs of one request after which a process may die: a fence persists, revokes, scans two buffers, replies.
const FUSE_MAX: u8 = 6;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A request arrives at a backup.
    Deliver(usize),
    /// An answer arrives at its sidecar.
    Answer(usize),
    /// The config store carries out a call.
    CarryOut(usize),
    /// The store's answer arrives.
    Reply(usize),
    /// A write lands whole: sidecar, backup, place in the queue.
    Land(usize, usize, usize),
    /// The sidecar learns how a write has ended.
    Complete(usize, usize, usize),
    /// A backup's process starts.
    Start(usize),
    /// A primary notices that the process behind a channel has gone.
    Notice(usize, Seat),
    /// Time passes for a sidecar: a little, or until its patience is over.
    Tick(usize, bool),
    /// A standby becomes a candidate.
    Promote(usize),
    /// The app appends a record.
    Append(usize),
    /// A primary loses patience with members that have not lent in time.
    Impatience(usize),
    /// A sidecar dies.
    Crash(usize),
    /// A backup's process dies; its memory stays.
    Kill(usize),
    /// A backup's process dies on a request, after this many outputs; its memory stays.
    DieOn(usize, u8),
    /// A backup's process dies and its memory is gone.
    LoseMemory(usize),
    /// The sender of a request hears nothing.
    Silence(usize),
    /// The caller of the store hears nothing.
    Unknown(usize),
    /// What is acknowledged is shown on a member's board.
    Publish(usize, usize),
    /// The follower sees the configuration.
    FollowerSees,
    /// The follower does the next thing that it wants.
    FollowerGoesOn,
    /// The follower has enough of the member that it visits.
    FollowerLeaves,
    /// A part of a write is visible before the rest.
    Tear(usize, usize, usize, Tear),
}

/// Every event that a state needs to be tried with.
pub(super) fn events(scenario: &Scenario, names: &Names, state: &State, out: &mut Vec<Action>) {
    free(scenario, names, state, out);
    if let Some(alone) = reduce::alone(scenario, state, out) {
        out.clear();
        return out.push(alone);
    }
    let last = out.iter().copied().find(|event| reduce::is_last(scenario, state, event));
    out.retain(|event| !reduce::is_last(scenario, state, event));
    if out.is_empty() {
        out.extend(last);
    }
    chosen(scenario, state, out);
}

/// Events that happen by themselves.
pub(super) fn free(scenario: &Scenario, names: &Names, state: &State, out: &mut Vec<Action>) {
    if state.broken.is_some() {
        return;
    }
    for (at, message) in state.messages.iter().enumerate() {
        if at == 0 || *message != state.messages[at - 1] {
            out.push(if message.answer.is_none() { Action::Deliver(at) } else { Action::Answer(at) });
        }
    }
    for (at, call) in state.calls.iter().enumerate() {
        match call.reply {
            Some(_) => out.push(Action::Reply(at)),
            None if !beyond(scenario, call) => out.push(Action::CarryOut(at)),
            None => {}
        }
    }
    each_write(state, |side, host, at| {
        let queue = &state.writes[side][host];
        let write = &queue[at];
        let earlier = || queue.iter().take(at).filter(|earlier| earlier.lane.same(&write.lane));
        let in_turn = scenario.reorder || earlier().all(|earlier| earlier.flight != WriteState::Flying);
        if write.flight == WriteState::Flying && in_turn {
            out.push(Action::Land(side, host, at));
        }
        let ended = write.flight != WriteState::Flying || scenario.wrong == Wrong::CompletionBeforeLanding;
        if ended && !write.counted && state.sides[side].life == write.life && earlier().all(|earlier| earlier.counted) {
            out.push(Action::Complete(side, host, at));
        }
    });
    out.extend((0..HOSTS).filter(|host| !state.hosts[*host].is_up()).map(Action::Start));
    for side in 0..SIDES {
        match &state.sides[side].role {
            Role::Primary(lead) => {
                let gone = |host: usize, life: u8| !state.hosts[host].is_up() || state.hosts[host].life != life;
                let channels = lead.channels.iter();
                let noticed = channels.filter(|(_, channel)| channel.life.is_some_and(|life| gone(channel.host, life)));
                out.extend(noticed.map(|(seat, _)| Action::Notice(side, *seat)));
                if recruits(names, state, lead) {
                    out.push(Action::Tick(side, false));
                }
            }
            Role::Candidate(machine) => {
                let late = [true, false].into_iter().filter(|late| ticks(state, side, machine, *late));
                out.extend(late.map(|late| Action::Tick(side, late)));
            }
            Role::Down | Role::Standby => {}
        }
    }
    if (0..SIDES).all(|side| !stands(state, side)) {
        out.extend((0..SIDES).filter(|side| may_stand(scenario, state, *side)).map(Action::Promote));
    }
}

/// Events that the outside chooses.
fn chosen(scenario: &Scenario, state: &State, out: &mut Vec<Action>) {
    if state.broken.is_some() {
        return;
    }
    let left = &state.left;
    for side in 0..SIDES {
        let lead = state.sides[side].lead();
        if left.appends > 0 && lead.is_some_and(|lead| lead.writer.is_some() && lead.backlog.is_none()) {
            out.push(Action::Append(side));
        }
        if left.impatience > 0 && lead.is_some_and(loses_patience) {
            out.push(Action::Impatience(side));
        }
        if left.crashes > 0 && stands(state, side) {
            out.push(Action::Crash(side));
        }
        let rivals = scenario.rival && (0..SIDES).any(|other| stands(state, other));
        if rivals && may_stand(scenario, state, side) {
            out.push(Action::Promote(side));
        }
    }
    for host in 0..HOSTS {
        if left.kills > 0 && state.hosts[host].is_up() {
            out.push(Action::Kill(host));
        }
        if left.memory_losses > 0 && others_survive(state, host) {
            out.push(Action::LoseMemory(host));
        }
    }
    for (at, message) in state.messages.iter().enumerate() {
        if left.kills > 0 && message.answer.is_none() && state.hosts[message.to].is_up() {
            out.extend((1..=FUSE_MAX).map(|fuse| Action::DieOn(at, fuse)));
        }
        let gone = matches!(message.answer, Some(Err(_)));
        if left.silences > 0 && message.from.is_some() && !gone {
            out.push(Action::Silence(at));
        }
    }
    for side in 0..SIDES {
        let published = (0..HOSTS).filter(|host| follow::may_publish(scenario, state, side, *host));
        out.extend(published.map(|host| Action::Publish(side, host)));
    }
    if follow::may_see(state) {
        out.push(Action::FollowerSees);
    }
    if follow::may_go_on(state) {
        out.push(Action::FollowerGoesOn);
    }
    if follow::may_leave(state) {
        out.push(Action::FollowerLeaves);
    }
    if left.unknowns > 0 {
        let waited_for = state.calls.iter().enumerate().filter(|(_, call)| call.from.is_some());
        out.extend(waited_for.map(|(at, _)| Action::Unknown(at)));
    }
    if left.tears > 0 {
        each_write(state, |side, host, at| {
            if state.writes[side][host][at].flight == WriteState::Flying {
                out.extend(Tear::ALL.map(|tear| Action::Tear(side, host, at, tear)));
            }
        });
    }
}

fn each_write(state: &State, mut act: impl FnMut(usize, usize, usize)) {
    for side in 0..SIDES {
        for host in 0..HOSTS {
            (0..state.writes[side][host].len()).for_each(|at| act(side, host, at));
        }
    }
}

/// True for a claim beyond the bound of epochs: it is never carried out.
pub(super) fn beyond(scenario: &Scenario, call: &Call) -> bool {
    matches!(&call.ask, Ask::Swap(swap) if swap.proposed.epoch > Epoch(scenario.epoch_max))
}

/// A candidate or a primary.
pub(super) fn stands(state: &State, side: usize) -> bool {
    matches!(state.sides[side].role, Role::Candidate(_) | Role::Primary(_))
}

fn may_stand(scenario: &Scenario, state: &State, side: usize) -> bool {
    let epoch = state.store.as_ref().map_or(Epoch(0), |config| config.epoch);
    matches!(state.sides[side].role, Role::Standby) && epoch < Epoch(scenario.epoch_max)
}

/// Somebody else of every set that counts, or may yet count, still has the memory it joined with: S1 speaks of no other.
fn others_survive(state: &State, host: usize) -> bool {
    let survives = |config: &Configuration| {
        let others = state.hosts.iter().enumerate().filter(|(other, _)| *other != host).map(|(_, host)| host);
        others.into_iter().any(|other| config.member(&other.name).is_some_and(|member| member.boot == other.boot))
    };
    let proposed = state.calls.iter().filter_map(|call| match &call.ask {
        Ask::Swap(swap) => Some(&swap.proposed),
        Ask::Read | Ask::Survey => None,
    });
    state.store.is_some() && state.store.as_ref().into_iter().chain(proposed).all(survives)
}

/// A tick of a primary counts when it sends for a spare that is there.
fn recruits(names: &Names, state: &State, lead: &Lead) -> bool {
    if lead.machine.roster().count() >= HOSTS {
        return false;
    }
    let seated = |name: &MemberId| lead.machine.roster().any(|(member, ..)| member.id == *name);
    let spare = (0..HOSTS).any(|host| state.hosts[host].is_up() && !seated(&names.members[host]));
    let mut out = Vec::new();
    lead.machine.clone().step(SOON, primary::Input::Tick, &mut out);
    spare && out.contains(&primary::Output::Survey)
}

/// A tick of a candidate counts when it changes anything, and waits until what it would ask again has been answered.
fn ticks(state: &State, side: usize, machine: &Promotion, late: bool) -> bool {
    let (mut after, mut out) = (machine.clone(), Vec::new());
    after.step(if late { LATE } else { SOON }, promotion::Input::Tick, &mut out);
    let asked = |output: &promotion::Output| match output {
        promotion::Output::Fence(_, member) => state.messages.iter().any(|message| {
            let mine = message.from.is_some_and(|(from, _)| from == side);
            mine && matches!(&message.then, Then::Fence(_, of) if *of == member.id)
        }),
        _ => false,
    };
    (!out.is_empty() || after != *machine) && !out.iter().any(asked)
}

fn loses_patience(lead: &Lead) -> bool {
    let (mut machine, mut out) = (lead.machine.clone(), Vec::new());
    machine.step(SOON, primary::Input::Tick, &mut out);
    machine.step(LATE, primary::Input::Tick, &mut out);
    out.iter().any(|output| matches!(output, primary::Output::Disconnect(_)))
}

impl Step<'_> {
    /// Carries out one event and what follows at once; false when it turns out not to be one.
    pub(super) fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Deliver(at) => return self.deliver(at, None),
            Action::Answer(at) => self.answer(at),
            Action::CarryOut(at) => self.carry_out(at),
            Action::Reply(at) => self.reply(at),
            Action::Land(side, host, at) => {
                self.land(side, host, at, None);
                if !self.scenario.slow_completions {
                    self.complete_all(side, host);
                }
            }
            Action::Complete(side, host, at) => self.complete(side, host, at),
            Action::Start(host) => drop(self.drive(host, None, |host, drive| host.start(drive))),
            Action::Notice(side, seat) => self.lose_seat(side, seat, "the connection ended"),
            Action::Tick(side, late) => self.tick(side, late),
            Action::Promote(side) => self.promote(side),
            Action::Append(side) => self.append(side),
            Action::Impatience(side) => {
                self.state.left.impatience -= 1;
                self.tick(side, false);
                self.tick(side, true);
            }
            Action::Crash(side) => {
                self.state.left.crashes -= 1;
                let name = self.side_name(side).clone();
                self.trace(|| format!("{name} dies"));
                self.become_role(side, Role::Down);
            }
            Action::Kill(host) => {
                self.state.left.kills -= 1;
                let name = self.names.members[host].clone();
                self.trace(|| format!("{name} dies"));
                self.state.hosts[host].kill();
            }
            Action::DieOn(at, fuse) => {
                self.state.left.kills -= 1;
                return self.deliver(at, Some(fuse));
            }
            Action::LoseMemory(host) => {
                self.state.left.memory_losses -= 1;
                let name = self.names.members[host].clone();
                self.trace(|| format!("{name} dies, and its memory is gone"));
                self.state.hosts[host].kill();
                self.state.hosts[host].lose_memory(self.scenario.wrong);
            }
            Action::Silence(at) => {
                self.state.left.silences -= 1;
                self.silence(at);
            }
            Action::Unknown(at) => {
                self.state.left.unknowns -= 1;
                self.unknown(at);
            }
            Action::Publish(side, host) => self.publish(side, host),
            Action::FollowerSees => self.follower_sees(),
            Action::FollowerGoesOn => self.follower_goes_on(),
            Action::FollowerLeaves => self.follower_leaves(),
            Action::Tear(side, host, at, tear) => {
                self.state.left.tears -= 1;
                self.land(side, host, at, Some(tear));
            }
        }
        true
    }

    fn tick(&mut self, side: usize, late: bool) {
        let now = if late { LATE } else { SOON };
        if late {
            let name = self.side_name(side).clone();
            self.trace(|| format!("{name} has waited long enough"));
        }
        match &mut self.state.sides[side].role {
            Role::Candidate(_) => self.promotion_input_at(side, now, promotion::Input::Tick),
            Role::Primary(lead) => {
                let mut out = Vec::new();
                lead.machine.step(now, primary::Input::Tick, &mut out);
                self.execute_primary(side, out);
            }
            Role::Down | Role::Standby => {}
        }
    }

    /// Every record is different from every other, whoever appends it.
    fn append(&mut self, side: usize) {
        let left = self.state.left.appends;
        self.state.left.appends = left - 1;
        if let Some(lead) = self.state.sides[side].lead_mut() {
            lead.backlog =
                Some(vec![b's', b'1' + side as u8, b'e', b'0' + lead.epoch.0 as u8, b'n', b'0' + left, 1, 1]);
        }
        self.pump(side);
    }
}

/// True for an answer that is a refusal.
pub(super) fn is_refusal(answer: &Answer) -> bool {
    matches!(answer, Answer::Refused(_))
}
