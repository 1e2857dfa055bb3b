//! The visits of a getter: which member it reads, and what its board shows.

use std::time::Duration;

use crate::board::mirror::{MIRROR_AT, MirrorLine};
use crate::board::{self, BoardIdentity, Freshness, LINE_SIZE, Progress};
use crate::config::{Configuration, MemberRef};
use crate::follower::{LOOK_INTERVAL, STALE_AFTER, Visit};
use crate::ids::{Epoch, Lsn};

use super::{Getter, Output, PATIENCE, Stage, Turn};

/// Pause between two looks while nothing waits for one.
const IDLE_INTERVAL: Duration = Duration::from_millis(25);
/// Pause before the next visit after one that has failed; doubled with each until a get can be read for.
pub(super) const REVISIT_MIN: Duration = Duration::from_millis(25);
/// The longest such pause.
const REVISIT_MAX: Duration = Duration::from_millis(250);
/// A member that has not answered within so many of these pauses is left: within 300 ms to 3 s.
const ANSWER_PAUSES: u32 = 12;

#[derive(Clone, Debug)]
pub(super) struct Visiting {
    visit: Visit,
    member: MemberRef,
    task: Task,
    /// When the task began.
    since: Duration,
    board: Option<Board>,
    freshness: Freshness,
    /// When the beat last grew, and when the mirror last came nearer to what is acknowledged; before, when the visit began.
    moved: Duration,
    published: Duration,
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Connect,
    Look,
    /// Look again then.
    Rest(Duration),
}

/// What a board shows, with a mirror that is live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Board {
    pub(super) identity: BoardIdentity,
    pub(super) progress: Progress,
    pub(super) mirror: MirrorLine,
}

/// How much of the past this visit's view covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covered {
    pub(super) visit: Visit,
    /// Everything acknowledged before this moment is within `acked`.
    pub(super) covers: Option<Duration>,
    pub(super) acked: Lsn,
}

impl Getter {
    pub(super) fn visit(&self) -> Option<Visit> {
        self.visiting.as_ref().map(|visiting| visiting.visit)
    }

    /// What the last completed look of this visit has found.
    pub(super) fn board(&self) -> Option<&Board> {
        self.visiting.as_ref()?.board.as_ref()
    }

    pub(super) fn covered(&self) -> Option<Covered> {
        let visiting = self.visiting.as_ref()?;
        let acked = visiting.board.as_ref()?.progress.acked;
        Some(Covered { visit: visiting.visit, covers: visiting.freshness.covers(), acked })
    }

    pub(super) fn visit_at(&self) -> Option<Duration> {
        let Some(visiting) = &self.visiting else { return self.config.as_ref().map(|_| self.revisit.0) };
        Some(match visiting.task {
            Task::Rest(until) => until,
            Task::Look | Task::Connect => visiting.since + self.patience(visiting.task),
        })
    }

    fn patience(&self, task: Task) -> Duration {
        if task == Task::Connect { self.revisit.1 * ANSWER_PAUSES } else { STALE_AFTER }
    }

    pub(super) fn on_config(&mut self, config: &Configuration, turn: &mut Turn<'_>) {
        let known = self.config.as_ref().filter(|known| known.log == config.log);
        if known.is_some_and(|known| known.stamp() >= config.stamp()) {
            return;
        }
        if known.is_none() {
            self.epoch = Epoch(0);
        }
        self.config = Some(config.clone());
        self.without.retain(|(member, _)| config.members.iter().any(|other| other.is_same(member)));
        self.revisit = (turn.now, REVISIT_MIN);
        if let Some(visiting) = &self.visiting {
            let superseded = visiting.board.is_some_and(|board| board.identity.epoch < config.epoch);
            if superseded || !config.members.iter().any(|member| member.is_same(&visiting.member)) {
                self.leave("the configuration has changed", turn);
            }
        }
    }

    pub(super) fn on_connected(&mut self, visit: Visit, connected: Result<(), &str>, turn: &mut Turn<'_>) {
        if self.awaits(visit, Task::Connect) {
            match connected {
                Ok(()) => {
                    self.forget_no_memory();
                    self.look(turn);
                }
                Err(why) => self.leave(why, turn),
            }
        }
    }

    pub(super) fn on_no_memory(&mut self, visit: Visit, turn: &mut Turn<'_>) {
        if self.awaits(visit, Task::Connect) {
            self.forget_no_memory();
            self.without.extend(self.visiting.iter().map(|visiting| (visiting.member.clone(), turn.now)));
            self.leave("it has no memory for a mirror", turn);
        }
    }

    fn forget_no_memory(&mut self) {
        let Some(visiting) = &self.visiting else { return };
        self.without.retain(|(member, _)| !member.is_same(&visiting.member));
    }

    /// Each member has said so not long ago: one that is started again may have other options, and the same incarnation.
    pub(super) fn no_member_has_memory(&self, now: Duration) -> bool {
        let Some(config) = &self.config else { return false };
        let has_none = |member: &MemberRef| {
            self.without.iter().any(|(other, said)| other.is_same(member) && now < *said + PATIENCE)
        };
        !config.members.is_empty() && config.members.iter().all(has_none)
    }

    pub(super) fn on_broken(&mut self, visit: Visit, why: &str, turn: &mut Turn<'_>) {
        if self.visit() == Some(visit) {
            self.leave(why, turn);
        }
    }

    pub(super) fn on_looked(&mut self, visit: Visit, posted: Duration, lines: &[u8], turn: &mut Turn<'_>) {
        if !self.awaits(visit, Task::Look) {
            return;
        }
        let (Some(visiting), Some(config)) = (&mut self.visiting, &self.config) else { return };
        let (first, second) = lines.split_at(MIRROR_AT as usize);
        let Some((identity, progress)) = board::decode(first) else { return self.rest_unless_still(turn) };
        let cut = config.cuts.last().is_some_and(|cut| identity.epoch < cut.epoch);
        if identity.log != config.log || identity.epoch < self.epoch || cut {
            return self.leave("its board is of an earlier epoch", turn);
        }
        // Where the log was cut when this epoch was won is not known yet.
        if identity.epoch > config.won {
            return self.rest_unless_still(turn);
        }
        let before = visiting.board;
        if before.is_some_and(|before| before.identity != identity) {
            return self.leave("its board has been replaced", turn);
        }
        let line = second.first_chunk::<LINE_SIZE>().expect("three lines are read");
        let Ok(mirror) = MirrorLine::decode(line, &identity) else { return self.rest_unless_still(turn) };
        let Some(mirror) = mirror.filter(|mirror| mirror.live) else {
            return self.leave("it has no mirror, or one that is being filled", turn);
        };
        let goes_back = |before: Board| {
            let old = (before.progress.beat, before.progress.acked, before.mirror.published);
            progress.beat < old.0 || progress.acked < old.1 || mirror.published < old.2
        };
        // An older line that came late.
        if before.is_some_and(goes_back) {
            return self.rest_unless_still(turn);
        }
        if before.is_some_and(|before| before.progress.version != progress.version) {
            // The member may have been out of the set in between, and its board without beats.
            visiting.freshness = Freshness::default();
        }
        visiting.freshness.observe(posted, progress.beat);
        if before.is_none_or(|before| progress.beat > before.progress.beat) {
            visiting.moved = turn.now;
        }
        if mirror.published >= progress.acked {
            let covers = visiting.freshness.covers().map(|moment| (moment, mirror.published));
            if covers.map(|(moment, _)| moment) > self.covers.map(|(moment, _)| moment) {
                self.covers = covers;
            }
            visiting.published = turn.now;
        }
        if before.is_none_or(|before| mirror.published > before.mirror.published) {
            visiting.published = turn.now;
        }
        visiting.board = Some(Board { identity, progress, mirror });
        (self.epoch, self.revisit.1) = (identity.epoch, REVISIT_MIN);
        self.rest_unless_still(turn);
    }

    fn awaits(&self, visit: Visit, task: Task) -> bool {
        self.visiting.as_ref().is_some_and(|visiting| visiting.visit == visit && visiting.task == task)
    }

    /// Looks again in a moment; leaves if nothing has moved for too long.
    fn rest_unless_still(&mut self, turn: &mut Turn<'_>) {
        let waits = self.waits_for_look();
        let Some(visiting) = &mut self.visiting else { return };
        if turn.now >= visiting.moved + STALE_AFTER {
            return self.leave("its board stands still", turn);
        }
        if turn.now >= visiting.published + STALE_AFTER {
            return self.leave("its mirror stands still", turn);
        }
        let pause = if waits { LOOK_INTERVAL } else { IDLE_INTERVAL };
        (visiting.task, visiting.since) = (Task::Rest(turn.now + pause), turn.now);
    }

    fn waits_for_look(&self) -> bool {
        self.gets.iter().any(|get| !get.is_active())
    }

    /// What time brings: the next visit, the next look, the end of patience.
    pub(super) fn go_on_visiting(&mut self, turn: &mut Turn<'_>) {
        let (waits, patience) = (self.waits_for_look(), self.patience_now());
        let Some(visiting) = &mut self.visiting else {
            if turn.now >= self.revisit.0 {
                self.begin_visit(turn);
            }
            return;
        };
        match visiting.task {
            Task::Rest(until) if turn.now >= until => self.look(turn),
            // A get has come since: it shall not wait for a pause that was for none.
            Task::Rest(until) if waits => visiting.task = Task::Rest(until.min(turn.now + LOOK_INTERVAL)),
            Task::Rest(_) => {}
            Task::Connect | Task::Look if turn.now < visiting.since + patience => {}
            Task::Connect => self.leave("it does not answer", turn),
            Task::Look => self.leave("it cannot be read from", turn),
        }
    }

    fn patience_now(&self) -> Duration {
        self.visiting.as_ref().map_or(Duration::ZERO, |visiting| self.patience(visiting.task))
    }

    fn begin_visit(&mut self, turn: &mut Turn<'_>) {
        let Some(config) = self.config.as_ref().filter(|config| !config.members.is_empty()) else { return };
        let member = config.members[self.turn % config.members.len()].clone();
        self.visits += 1;
        let (visit, now) = (Visit(self.visits), turn.now);
        turn.out.push(Output::Connect(visit, config.log, member.clone()));
        let (task, board, freshness) = (Task::Connect, None, Freshness::default());
        self.visiting =
            Some(Visiting { visit, member, task, since: now, board, freshness, moved: now, published: now });
    }

    fn look(&mut self, turn: &mut Turn<'_>) {
        let Some(visiting) = &mut self.visiting else { return };
        (visiting.task, visiting.since) = (Task::Look, turn.now);
        turn.out.push(Output::Look(visiting.visit));
    }

    /// The visit is over, and gets that were read for begin again at the next member.
    pub(super) fn leave(&mut self, why: &str, turn: &mut Turn<'_>) {
        let Some(visiting) = self.visiting.take() else { return };
        turn.out.push(Output::Leave(visiting.visit, why.to_owned()));
        for get in &mut self.gets {
            (get.stage, get.unsound, get.failed) = (Stage::Waiting, 0, None);
        }
        self.turn = self.turn.wrapping_add(1);
        let (at, pause) = self.revisit;
        self.revisit = (at.max(turn.now + pause), (pause * 2).min(REVISIT_MAX));
    }
}
