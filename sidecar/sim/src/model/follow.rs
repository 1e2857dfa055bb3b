//! A follower beside the sidecars: looks at boards and reads memory while everything else happens.
//!
//! Called by [`act`](super::act). Each thing that the machine wants is done in one step, at any later time, against what the
//! member's memory is then: torn reads are the simulator's matter, orders of events are this one's. Boards are published at
//! any time after an ack, or never.

use std::collections::VecDeque;
use std::time::Duration;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::board::{BoardIdentity, Progress};
use tailwind_protocol::follower::{Follower, Input, Output, Visit};
use tailwind_protocol::ids::{Epoch, Generation, Lsn, Position, Version};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::scan::Scanner;

use super::names::LOG;
use super::scenario::{Scenario, Wrong};
use super::state::{BUFFER_SIZE, Lead, State};
use super::step::Step;

/// Most bytes of a read: each segment of the model at once.
const LANDING: u32 = BUFFER_SIZE as u32;

/// A follower, and what it has open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Follow {
    machine: Follower,
    /// What it wants, in order: each waits for a step of its own.
    wants: VecDeque<Output>,
    host: usize,
    /// The epoch of the board that was shared.
    board: Epoch,
    shared: Option<(Slot, SegmentIdentity)>,
    /// The record that its app expects next.
    expected: Lsn,
}

impl Follow {
    pub(super) fn new() -> Follow {
        let machine = Follower::new(Duration::ZERO, Lsn(1), LANDING, 0, Visit(0));
        Follow { machine, wants: VecDeque::new(), host: 0, board: Epoch(0), shared: None, expected: Lsn(1) }
    }

    /// When it acts next, by its own clock, which stands still but for its pauses.
    fn pause(&self) -> Option<Duration> {
        self.machine.wake_at().filter(|_| self.wants.is_empty())
    }

    /// The next thing is a question, whose answer may be as old as what it has read before.
    fn asks_next(&self) -> bool {
        matches!(self.wants.front(), Some(Output::Survey(_) | Output::Share(..)))
    }

    /// It does nothing any more, once no visit is left.
    pub(super) fn is_idle(&self) -> bool {
        self.wants.is_empty() && self.machine.visit().is_none()
    }

    fn connects_next(&self) -> bool {
        matches!(self.wants.front(), Some(Output::Connect(..))) || self.is_idle()
    }
}

/// What a follower may do: see a newer configuration, go on, give a member up.
pub(super) fn may_see(state: &State) -> bool {
    let Some(follow) = state.follow.as_ref() else { return false };
    state.store.as_ref().is_some_and(|config| follow.machine.knows().is_none_or(|known| known < config.stamp()))
}

pub(super) fn may_go_on(state: &State) -> bool {
    let Some(follow) = state.follow.as_ref() else { return false };
    if follow.connects_next() && state.left.visits == 0 {
        return false;
    }
    !follow.wants.is_empty() || follow.pause().is_some()
}

pub(super) fn may_leave(state: &State) -> bool {
    state.left.visits > 0 && state.follow.as_ref().is_some_and(|follow| follow.machine.from().is_some())
}

/// The primary has news for this member's board.
pub(super) fn may_publish(scenario: &Scenario, state: &State, side: usize, host: usize) -> bool {
    let Some(lead) = state.sides[side].lead().filter(|_| state.follow.is_some()) else { return false };
    let life = |channel: &super::state::Channel| channel.host == host && channel.life == Some(state.hosts[host].life);
    let in_set = lead.machine.config().member(&state.hosts[host].name).is_some();
    let news = state.hosts[host]
        .board()
        .is_some_and(|(epoch, shown)| epoch == lead.epoch && shown != Some(shows(scenario, lead)));
    in_set && news && lead.channels.values().any(life)
}

/// What a board names: the last acknowledged record, and where its append ends.
fn shows(scenario: &Scenario, lead: &Lead) -> (Lsn, Position) {
    match &lead.writer {
        Some(writer) if scenario.wrong == Wrong::BoardBeforeAck => {
            (writer.closure().last, Position::new(writer.identity().segment, writer.closure().end))
        }
        _ => lead.acked,
    }
}

impl Step<'_> {
    pub(super) fn publish(&mut self, side: usize, host: usize) {
        let Some(lead) = self.state.sides[side].lead() else { return };
        let ((lsn, end), epoch) = (shows(self.scenario, lead), lead.epoch);
        self.state.hosts[host].publish((lsn, end));
        let name = self.names.members[host].clone();
        self.trace(|| format!("the board of {name} names record {lsn}, up to {end}, in epoch {epoch}"));
    }

    pub(super) fn follower_sees(&mut self) {
        let Some(config) = self.state.store.as_ref().cloned() else { return };
        self.follower_input(Duration::ZERO, Input::Config(&config));
    }

    pub(super) fn follower_leaves(&mut self) {
        let Some(visit) = self.state.follow.as_ref().and_then(|follow| follow.machine.visit()) else { return };
        self.follower_input(Duration::ZERO, Input::Broken(visit, "it has had enough".to_owned()));
    }

    /// Does the next thing that it wants, and all that follows up to the next look at memory.
    pub(super) fn follower_goes_on(&mut self) {
        self.follower_does_next();
        while self.state.follow.as_ref().is_some_and(Follow::asks_next) {
            self.follower_does_next();
        }
    }

    fn follower_does_next(&mut self) {
        let Some(follow) = self.state.follow.as_mut() else { return };
        let Some(output) = follow.wants.pop_front() else {
            let at = follow.pause().unwrap_or_default();
            return self.follower_input(at, Input::Tick);
        };
        let now = Duration::ZERO;
        let host = follow.host;
        match output {
            Output::Connect(visit, _, member) => {
                self.state.left.visits -= 1;
                let at = self.host_of(&member.id);
                let found = &self.state.hosts[at];
                let promised = found.machine().map(|machine| machine.promise().epoch);
                let board = found.board().map(|(epoch, _)| epoch).filter(|epoch| Some(*epoch) == promised);
                let same = found.boot == member.boot;
                if let Some(follow) = self.state.follow.as_mut() {
                    (follow.host, follow.board) = (at, board.unwrap_or_default());
                }
                let answer = board.filter(|_| same).map(drop).ok_or_else(|| "no board".to_owned());
                self.follower_input(now, Input::Connected(visit, answer));
            }
            Output::Look(visit) => match self.state.hosts[host].board().filter(|(epoch, _)| *epoch == follow.board) {
                Some((epoch, shown)) => {
                    let lines = lines(epoch, shown);
                    self.follower_input(now, Input::Looked(visit, now, &lines));
                }
                None => self.follower_input(now, Input::Broken(visit, "the board is gone".to_owned())),
            },
            Output::Survey(visit) => {
                let copies = self.state.hosts[host].machine().map(|machine| machine.inventory().copies);
                let answer = copies.as_deref().ok_or_else(|| "no answer".to_owned());
                self.follower_input(now, Input::Surveyed(visit, answer));
            }
            Output::Share(visit, segment) => {
                let shared = self.state.hosts[host].machine().map(|machine| machine.shareable(&[segment]));
                let answer = match shared {
                    Some(Ok(mut shared)) => Ok(shared.pop()),
                    _ => Err("no answer".to_owned()),
                };
                if let (Some(follow), Ok(Some((slot, identity, _)))) = (self.state.follow.as_mut(), &answer) {
                    follow.shared = Some((*slot, *identity));
                }
                let answer = answer.map(|shared| shared.map(|(_, identity, closure)| (identity, closure)));
                self.follower_input(now, Input::Shared(visit, answer));
            }
            Output::Read(visit, range) => {
                let bytes = follow.shared.and_then(|(slot, identity)| self.state.hosts[host].shared(slot, &identity));
                match bytes {
                    Some(mut bytes) => {
                        bytes.resize(bytes.len().max(range.end as usize), 0);
                        let bytes = &bytes[range.start as usize..range.end as usize];
                        self.follower_input(now, Input::Read(visit, bytes));
                    }
                    None => self.follower_input(now, Input::Broken(visit, "the share has ended".to_owned())),
                }
            }
            Output::Fetch(visit, identity, closure, wanted) => {
                let image = self.state.hosts.iter().find_map(|host| host.image(&identity, &closure));
                let Some(image) = image else {
                    return self.follower_input(now, Input::Fetched(visit, Err("nobody has it".to_owned())));
                };
                let mut records = Vec::new();
                let mut scanner = Scanner::new(&image, &identity).expect("verified a moment ago");
                while let Ok(append) = scanner.next_append() {
                    let wanted = append.records().filter(|record| wanted.contains(&record.lsn));
                    records.extend(wanted.map(|record| (record.lsn, record.payload.to_vec())));
                }
                records.into_iter().for_each(|(lsn, payload)| self.hand_out(lsn, &payload));
                self.follower_input(now, Input::Fetched(visit, Ok(())));
            }
            Output::Leave(..) | Output::CaughtUp => {}
            Output::Trimmed(first) => self.breaks(format!("S1: a follower is told that the log begins with {first}")),
            Output::BeyondEnd(last) => self.breaks(format!("S14: a follower is told that the log ends with {last}")),
            Output::Parted(why) => self.breaks(format!("S15: a follower is told: {why}")),
        }
    }

    fn follower_input(&mut self, now: Duration, input: Input<'_>) {
        let Some(mut follow) = self.state.follow.as_ref().cloned() else { return };
        let (mut out, mut records) = (Vec::new(), Vec::new());
        follow.machine.step(now, input, &mut out, |record| records.push((record.lsn, record.payload.to_vec())));
        // What it wanted on an earlier visit it wants no more.
        let left = out.iter().any(|output| matches!(output, Output::Leave(..)));
        if left {
            follow.wants.clear();
        }
        follow.wants.extend(out.into_iter().filter(|output| !matches!(output, Output::Leave(..) | Output::CaughtUp)));
        *self.state.follow = Some(follow);
        records.into_iter().for_each(|(lsn, payload)| self.hand_out(lsn, &payload));
    }

    fn hand_out(&mut self, lsn: Lsn, payload: &[u8]) {
        self.trace(|| format!("the follower hands out record {lsn}"));
        let Some(follow) = self.state.follow.as_mut() else { return };
        let expected = std::mem::replace(&mut follow.expected, lsn.next());
        let verdict = self.state.judge.handed_out(expected, lsn, payload);
        self.judge(verdict);
    }
}

/// A board's lines; zeros where nothing has been published.
fn lines(epoch: Epoch, shown: Option<(Lsn, Position)>) -> Vec<u8> {
    let identity = BoardIdentity { log: LOG, epoch, generation: Generation(1), segment_size: SegmentSize::MIN };
    let progress = |(acked, end)| Progress { beat: 1, acked, end, first: Lsn(1), version: Version(1) };
    match shown {
        Some(shown) => [identity.encode(), progress(shown).encode(&identity)].concat(),
        None => vec![0; 2 * identity.encode().len()],
    }
}
