//! Followers: each sidecar that does not lead hands the log out to its app, as the production sidecar does, in the seeds whose
//! group has boards.
//!
//! Carries out what the machine [`Follower`] wants: control calls over the network of this world, one-sided reads by
//! [`reading`](super::reading). Judges every record: S3 (it stays), S14 (a view is as fresh as it says), S15 (in order, each
//! once).

use std::time::Duration;

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::board;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::follower::{Follower, Input, NeededCopies, Output, Visit};
use tailwind_protocol::history::{History, Parted};
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::scan::{Scanner, verify};

use super::fabric::Key;
use super::host::Running;
use super::network::{Answer, RPC_TIMEOUT, Silence};
use super::queue::{MS, Micros};
use super::reading::{BOARD, ReadFor};
use super::sidecar::{Notice, Process, Purpose, Role};
use super::{Event, HostNo, RETURN_MAX, SidecarNo, World, group};
use crate::check::broken;
use crate::trace::trace;

/// Most bytes of a read: some appends take several.
const LANDING: u32 = 4096;
/// Copies that a survey tells of: as if logs were very long.
const NEEDED: usize = 3;
/// Pause before a look is carried out, at most: a reader's thread is late now and then.
const LOOK_LATE_MAX: Micros = 4 * MS;

/// Once in so many ticks an app ends, while there are faults: an app follows again there after so long at most.
const APP_ENDS: u64 = 300;
/// See [`APP_ENDS`].
const AWAY_MAX: Micros = 2_000 * MS;
/// Apps that have ended and kept what they know; one of them comes back, at any sidecar, or a new one.
const KEPT_MAX: usize = 4;

/// More visits than one follower makes.
const VISITS_MAX: u64 = 1 << 32;

/// What an app knows of the log, and keeps when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    history: History,
    /// The record that it expects next.
    expected: Lsn,
    /// A cut after this record has taken what was handed out last.
    cut: Option<Lsn>,
}

/// That of an app which knows nothing.
const NOTHING: Position = Position { history: History::UNKNOWN, expected: Lsn(1), cut: None };

/// A follower and what it has open.
#[derive(Debug)]
pub(crate) struct Follow {
    machine: Follower,
    /// The record that its app expects next.
    expected: Lsn,
    host: HostNo,
    /// When the present visit began.
    visited: Micros,
    board: Key,
    shared: (Slot, Key),
    wakes_at: Micros,
    /// A cut after this record has taken what was handed out last.
    cut: Option<Lsn>,
}

/// What a follower asks of a backup's process beside what a backup's machine answers itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowAsk {
    Connect,
    Share(SegmentId),
}

/// What reaches a follower.
#[derive(Clone, Debug)]
pub(crate) enum FollowNotice {
    /// Its board's share.
    Connected(Visit, Result<Key, String>),
    /// Where the segment is, and the share.
    Shared(Visit, Result<Option<Shared>, String>),
    /// Its thread gets to a look.
    Look(Visit),
    /// A read of the board, with the moment of its posting; or of a segment.
    Read(Visit, Option<Micros>, Result<Vec<u8>, String>),
    Wake,
}

/// A shared segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    slot: Slot,
    key: Key,
    identity: SegmentIdentity,
    closure: Option<Closure>,
}

/// A closed segment that is being fetched for a follower.
#[derive(Clone, Debug)]
pub(crate) struct FollowFetch {
    identity: SegmentIdentity,
    closure: Closure,
    wanted: std::ops::Range<Lsn>,
    tries: usize,
}

impl Follow {
    /// The last record that it has handed out.
    pub(super) fn shown(&self) -> Lsn {
        self.expected.prev()
    }

    fn position(&self) -> Position {
        Position { history: self.machine.history(), expected: self.expected, cut: self.cut }
    }
}

impl World {
    /// A tick of a sidecar that does not lead: it follows.
    pub(super) fn follow(&mut self, of: SidecarNo) {
        if self.plan.read_grain.is_none() || self.by_hand {
            return;
        }
        let now = self.queue.now();
        if now < self.plan.fault_time && self.random.one_in(APP_ENDS) {
            let ended = self.sidecars[of.0].follow.take();
            self.positions.extend(ended.map(|follow| follow.position()));
            if self.positions.len() > KEPT_MAX {
                let lost = self.random.below(KEPT_MAX as u64) as usize;
                self.positions.remove(lost);
            }
            self.sidecars[of.0].follows_from = now + self.random.below(AWAY_MAX);
        }
        if now < self.sidecars[of.0].follows_from {
            return;
        }
        if self.sidecars[of.0].follow.is_none() {
            let returns = self.random.below(self.positions.len() as u64 + 1) as usize;
            let position = if returns < self.positions.len() { self.positions.remove(returns) } else { NOTHING };
            self.begin_to_follow(of, position);
        }
        if let Some(view) = self.sidecars[of.0].view.clone() {
            self.follow_input(of, Input::Config(&view));
        }
        self.follow_input(of, Input::Tick);
    }

    fn begin_to_follow(&mut self, of: SidecarNo, position: Position) {
        let now = Duration::from_micros(self.queue.now());
        self.followers += 1;
        let Position { history, expected, cut } = position;
        let machine =
            Follower::new(now, expected, LANDING, of.0, Visit(self.followers * VISITS_MAX)).in_history(history);
        let (host, board, shared) = (HostNo(0), Key(0), (BOARD, Key(0)));
        self.sidecars[of.0].follow =
            Some(Box::new(Follow { machine, expected, host, visited: 0, board, shared, wakes_at: 0, cut }));
    }

    /// Every app that follows ends, and keeps what it knows until the next one begins.
    pub(super) fn apps_leave(&mut self) {
        self.positions.clear();
        for sidecar in &mut self.sidecars {
            self.positions.extend(sidecar.follow.take().map(|follow| follow.position()));
            sidecar.follows_from = Micros::MAX;
        }
    }

    /// They may begin again.
    pub(super) fn apps_return(&mut self) {
        self.sidecars.iter_mut().for_each(|sidecar| sidecar.follows_from = 0);
    }

    /// Some of those that have ended know a record behind this one.
    pub(super) fn positions_beyond(&self, last: Lsn) -> bool {
        self.positions.iter().any(|position| position.expected.prev() > last)
    }

    /// What was acknowledged has been lost with an excuse: apps begin anew.
    pub(crate) fn forget_followers(&mut self) {
        self.sidecars.iter_mut().for_each(|sidecar| sidecar.follow = None);
        self.positions.clear();
    }

    /// The log was cut after this record: whoever has been handed out more must begin anew.
    pub(crate) fn cut_followers(&mut self, last: Lsn) {
        let follows = self.sidecars.iter_mut().filter_map(|sidecar| sidecar.follow.as_mut());
        let followed = follows.map(|follow| (follow.expected, &mut follow.cut));
        let kept = self.positions.iter_mut().map(|position| (position.expected, &mut position.cut));
        for (_, cut) in followed.chain(kept).filter(|(expected, _)| expected.prev() > last) {
            *cut = Some(last);
        }
    }

    /// This sidecar leads from now on, with a log that ends with this record: its app goes on there, unless it knows of a later
    /// epoch than the one that its sidecar has come to lead.
    pub(crate) fn end_following(&mut self, of: SidecarNo, config: &Configuration, last: Lsn) {
        let sidecar = &mut self.sidecars[of.0];
        let Some(follow) = sidecar.follow.take_if(|_| sidecar.followed <= config.epoch) else { return };
        // As the primary's reader does, before the app is told that it is its turn.
        let gone_on = follow.machine.history().go_on(follow.expected, config.log, &config.cuts);
        match (gone_on, follow.cut) {
            (Ok(()), Some(cut)) if config.cuts.iter().any(|known| known.last == cut) => {
                broken("S15", format!("the app of epoch {} goes on, and the log was cut after {cut}", config.epoch));
            }
            (Ok(()) | Err(Parted::NotKnown), _) | (Err(_), Some(_)) => {}
            (Err(why), None) => broken("S15", format!("an app has what the log has, and is told: {why}")),
        }
        if follow.cut.is_none() && follow.expected > last.next() {
            let shown = follow.expected.prev();
            broken("S3", format!("record {shown} was handed out by the standby, and its log ends with {last}"));
        }
        self.tally.turns += 1;
    }

    fn follow_input(&mut self, of: SidecarNo, input: Input<'_>) {
        let Some(mut follow) = self.sidecars[of.0].follow.take() else { return };
        let now = Duration::from_micros(self.queue.now());
        let (mut out, mut records) = (Vec::new(), Vec::new());
        follow.machine.step(now, input, &mut out, |record| records.push((record.lsn, record.payload.to_vec())));
        for (lsn, payload) in records {
            self.handed_out(of, &mut follow, lsn, &payload);
        }
        // One that leaves a board that stands still has seen what there is to see.
        let leaves = out.iter().any(|output| matches!(output, Output::Leave(..)));
        if out.contains(&Output::CaughtUp) && !leaves {
            self.checks.board_covers(follow.machine.epoch(), follow.expected.prev(), follow.visited);
        }
        if let Some(behind) = follow.machine.lag(now).behind {
            let covers = now - behind;
            self.checks.board_covers(follow.machine.epoch(), follow.expected.prev(), covers.as_micros() as Micros);
        }
        self.judge_lag(&follow.machine);
        let wake = follow.machine.wake_at().map(|at| at.as_micros() as Micros);
        if let Some(at) = wake.filter(|at| *at != follow.wakes_at) {
            follow.wakes_at = at;
            self.notify_follower(of, at.saturating_sub(self.queue.now()), FollowNotice::Wake);
        }
        let sidecar = &mut self.sidecars[of.0];
        sidecar.followed = sidecar.followed.max(follow.machine.epoch());
        sidecar.follow = Some(follow);
        for output in out {
            self.execute_follow(of, output);
        }
    }

    /// What its app is told to be acknowledged is, in the history that the app is in.
    fn judge_lag(&self, machine: &Follower) {
        let Some(config) = self.store.content() else { return };
        if machine.history() == History::of(config.log, &config.cuts) {
            self.checks.lag_names(machine.epoch(), machine.lag(Duration::ZERO).acked);
        }
    }

    fn handed_out(&mut self, of: SidecarNo, follow: &mut Follow, lsn: Lsn, payload: &[u8]) {
        if lsn != follow.expected {
            let name = &self.sidecars[of.0].name;
            broken("S15", format!("{name} hands out record {lsn}, {} is next", follow.expected));
        }
        if let Some(last) = follow.cut {
            let name = &self.sidecars[of.0].name;
            broken("S15", format!("{name} hands out record {lsn}, and what it handed out before was cut after {last}"));
        }
        self.tally.followed += 1;
        self.checks.read(follow.machine.epoch(), lsn, payload);
        follow.expected = lsn.next();
    }

    fn notify_follower(&mut self, of: SidecarNo, after: Micros, notice: FollowNotice) {
        let life = self.sidecars[of.0].life;
        self.queue.plan(after, Event::Sidecar(of, life, Notice::Follow(notice)));
    }

    fn execute_follow(&mut self, of: SidecarNo, output: Output) {
        match output {
            Output::Connect(visit, _, member) => {
                let host = self.host_of(&member.id);
                let Some(follow) = &mut self.sidecars[of.0].follow else { return };
                (follow.host, follow.visited) = (host, self.queue.now());
                self.ask_for_follower(of, visit, FollowAsk::Connect);
            }
            Output::Look(visit) => {
                let late = self.random.below(LOOK_LATE_MAX);
                self.notify_follower(of, late, FollowNotice::Look(visit));
            }
            Output::Survey(visit) => {
                let Some(follow) = &self.sidecars[of.0].follow else { return };
                self.call(of, follow.host, Request::Inventory(None), Purpose::FollowSurvey(visit));
            }
            Output::Share(visit, segment) => self.ask_for_follower(of, visit, FollowAsk::Share(segment)),
            Output::Read(visit, range) => {
                let Some(follow) = &self.sidecars[of.0].follow else { return };
                let (host, (slot, key)) = (follow.host, follow.shared);
                let reader = ReadFor::Follower(of, self.sidecars[of.0].life, visit);
                self.begin_read(host, slot, key, range, reader);
            }
            Output::Fetch(visit, identity, closure, wanted) => {
                self.fetch_for_follower(of, visit, FollowFetch { identity, closure, wanted, tries: 0 });
            }
            Output::Leave(_, why) => trace!(self, "{} follows elsewhere: {why}", self.sidecars[of.0].name),
            Output::CaughtUp => {}
            Output::Trimmed(first) => {
                if first > self.checks.trimmed_below() {
                    broken(
                        "S1",
                        format!("a follower is told that the log begins with record {first}, not trimmed so far"),
                    );
                }
                self.begin_to_follow(of, Position { expected: first, ..NOTHING });
            }
            // It knows of a cut that its sidecar has not read of yet.
            Output::Parted(Parted::NotKnown) => {
                let position = self.sidecars[of.0].follow.take().map(|follow| follow.position());
                self.positions.extend(position);
            }
            Output::BeyondEnd(_) | Output::Parted(Parted::Cut(_)) if self.was_cut(of) => {
                self.begin_to_follow(of, NOTHING);
            }
            Output::Parted(why) => broken("S15", format!("a follower has what the log has, and is told: {why}")),
            Output::BeyondEnd(last) => {
                broken("S14", format!("a follower is told that the log ends with record {last}, and has more of it"));
            }
        }
    }

    fn was_cut(&self, of: SidecarNo) -> bool {
        self.sidecars[of.0].follow.as_ref().is_some_and(|follow| follow.cut.is_some())
    }

    /// The question reaches the backup after a while, if it does.
    fn ask_for_follower(&mut self, of: SidecarNo, visit: Visit, ask: FollowAsk) {
        let delay = self.message_delay();
        self.queue.plan(delay, Event::FollowAsk(of, self.sidecars[of.0].life, visit, ask));
    }

    /// It has.
    pub(crate) fn on_follow_ask(&mut self, of: SidecarNo, life: u32, visit: Visit, ask: FollowAsk) {
        let Some(follow) = self.sidecars[of.0].follow.as_ref().filter(|_| self.sidecars[of.0].life == life) else {
            return;
        };
        let no = follow.host;
        let cut = !self.cuts.is_whole(of, no);
        let (delay, answered) = match self.hosts[no.0].running {
            Running::Up | Running::Down if !cut => (self.message_delay(), self.hosts[no.0].running == Running::Up),
            _ => (RPC_TIMEOUT, false),
        };
        let silent = || "no answer".to_owned();
        let notice = match ask {
            FollowAsk::Connect => {
                let board = if answered { self.share_promised_board(no) } else { None };
                FollowNotice::Connected(visit, board.ok_or_else(silent))
            }
            FollowAsk::Share(segment) => {
                let shared = if answered { Ok(self.share_segment(no, segment)) } else { Err(silent()) };
                FollowNotice::Shared(visit, shared)
            }
        };
        self.notify_follower(of, delay, notice);
    }

    /// As the production daemon does: the board of the promised epoch, or none.
    pub(super) fn share_promised_board(&mut self, no: HostNo) -> Option<Key> {
        let promised = self.hosts[no.0].process.as_ref()?.daemon.machine().promise().epoch;
        self.note_look(no);
        self.hosts[no.0].lendings.get(&BOARD).filter(|lending| lending.writer == promised)?;
        self.share(no, BOARD)
    }

    fn share_segment(&mut self, no: HostNo, segment: SegmentId) -> Option<Shared> {
        let machine = self.hosts[no.0].process.as_ref()?.daemon.machine();
        let (slot, identity, closure) = machine.shareable(&[segment]).ok()?.pop()?;
        let key = self.share(no, slot)?;
        Some(Shared { slot, key, identity, closure })
    }

    pub(super) fn on_follow_notice(&mut self, of: SidecarNo, notice: FollowNotice) {
        if self.sidecars[of.0].lead().is_some() {
            return;
        }
        let Some(follow) = &mut self.sidecars[of.0].follow else { return };
        match notice {
            FollowNotice::Connected(visit, answer) => {
                if let Ok(key) = answer {
                    follow.board = key;
                }
                self.follow_input(of, Input::Connected(visit, answer.map(|_| ())));
            }
            FollowNotice::Shared(visit, answer) => {
                if let Ok(Some(shared)) = &answer {
                    follow.shared = (shared.slot, shared.key);
                }
                let answer = answer.map(|shared| shared.map(|shared| (shared.identity, shared.closure)));
                self.follow_input(of, Input::Shared(visit, answer));
            }
            FollowNotice::Look(visit) => {
                let (host, board) = (follow.host, follow.board);
                let reader = ReadFor::Follower(of, self.sidecars[of.0].life, visit);
                self.note_look(host);
                self.begin_read(host, BOARD, board, board::LINES, reader);
            }
            FollowNotice::Read(visit, _, Err(why)) => self.follow_input(of, Input::Broken(visit, why)),
            FollowNotice::Read(visit, Some(posted), Ok(lines)) => {
                self.follow_input(of, Input::Looked(visit, Duration::from_micros(posted), &lines));
            }
            FollowNotice::Read(visit, None, Ok(bytes)) => self.follow_input(of, Input::Read(visit, &bytes)),
            FollowNotice::Wake => self.follow_input(of, Input::Tick),
        }
    }

    /// A read of a follower has ended.
    pub(super) fn on_follower_read(
        &mut self,
        (of, life, visit): (SidecarNo, u32, Visit),
        posted: Option<Micros>,
        result: Result<Vec<u8>, String>,
    ) {
        self.queue.plan(0, Event::Sidecar(of, life, Notice::Follow(FollowNotice::Read(visit, posted, result))));
    }

    pub(super) fn on_follow_survey(&mut self, of: SidecarNo, visit: Visit, answer: Result<Answer, Silence>) {
        match answer {
            Ok(Answer::Inventory(inventory)) => {
                let Some(follow) = &self.sidecars[of.0].follow else { return };
                let (mut needed, next) = (NeededCopies::at_most(NEEDED), follow.machine.next());
                inventory.copies.iter().for_each(|copy| needed.take(copy, next));
                self.follow_input(of, Input::Surveyed(visit, Ok(&needed.finish())));
            }
            _ => self.follow_input(of, Input::Surveyed(visit, Err("no inventory".to_owned()))),
        }
    }

    fn fetch_for_follower(&mut self, of: SidecarNo, visit: Visit, fetch: FollowFetch) {
        let Some(follow) = &self.sidecars[of.0].follow else { return };
        let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).collect();
        sources.sort_by_key(|no| *no != follow.host);
        let Some(source) = sources.get(fetch.tries).copied() else {
            return self.follow_input(of, Input::Fetched(visit, Err("nobody has it".to_owned())));
        };
        let FollowFetch { identity, closure, .. } = fetch;
        let request = FetchRequest { group: group(), identity, closure, check: true, range: None };
        self.call(of, source, Request::Fetch(request), Purpose::FollowFetch(visit, fetch));
    }

    pub(super) fn on_follow_fetch(
        &mut self,
        of: SidecarNo,
        visit: Visit,
        fetch: FollowFetch,
        answer: Result<Answer, Silence>,
    ) {
        let FollowFetch { identity, closure, wanted, tries } = &fetch;
        let bytes = match answer {
            Ok(Answer::Bytes(bytes)) if verify(&bytes, identity, closure) => bytes,
            _ => return self.fetch_for_follower(of, visit, FollowFetch { tries: tries + 1, ..fetch }),
        };
        // Nobody waits for it any more after a visit has ended.
        let Some(mut follow) = self.sidecars[of.0].follow.take_if(|follow| follow.machine.fetches(visit)) else {
            return;
        };
        let mut scanner = Scanner::new(&bytes, identity).expect("verified a moment ago");
        while let Ok(append) = scanner.next_append() {
            for record in append.records().filter(|record| wanted.contains(&record.lsn)) {
                self.handed_out(of, &mut follow, record.lsn, record.payload);
            }
        }
        self.sidecars[of.0].follow = Some(follow);
        self.follow_input(of, Input::Fetched(visit, Ok(())));
    }

    fn any_board_is_lent(&self) -> bool {
        let Some(config) = self.store.content() else { return false };
        let lendings = config.members.iter().map(|member| self.hosts[self.host_of(&member.id).0].lendings.get(&BOARD));
        lendings.flatten().any(|lending| lending.writer == config.epoch)
    }

    /// Everything is well: whoever follows has everything soon that is acknowledged now.
    pub(super) fn followers_catch_up(&mut self) {
        let excused = |world: &World| world.hosts.iter().any(|host| host.is_damaged());
        if self.plan.read_grain.is_none() || excused(self) {
            return;
        }
        let calm = self.queue.now();
        let last = self.checks.last_owed();
        let lacks = |world: &World| {
            let follows =
                |of: &&super::Sidecar| of.process == Process::Up && !matches!(of.role, Role::Primary(_) | Role::Busy);
            let behind = |of: &super::Sidecar| of.follow.as_ref().is_none_or(|follow| follow.expected <= last);
            world.sidecars.iter().filter(follows).find(|of| behind(of)).map(|of| of.name.clone())
        };
        while let Some(name) = lacks(self) {
            if self.queue.now() > calm + RETURN_MAX {
                // A member that had no memory for a board when the primary connected lends none in this epoch.
                if !self.any_board_is_lent() {
                    return;
                }
                broken("Liveness", format!("{name} follows, and does not get as far as record {last}"));
            }
            self.step();
            if excused(self) {
                return;
            }
        }
    }
}
