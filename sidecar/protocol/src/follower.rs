//! A follower: hands out the acknowledged log, record by record and in order, out of the memory of members whose processors
//! need not take part.
//!
//! Driven by a standby's sidecar or a reader's (and by the simulator). It visits one member at a time: looks at its board to
//! learn how far the log is acknowledged, reads the open segments one-sidedly up to there and no further, and has closed
//! segments that have left the memory fetched. When a board stands still, or anything there does not verify, it continues at
//! another member. It knows what it has handed out, so it neither goes back nor leaves a gap, through any number of members
//! and epochs. See "Followers" in `docs/protocol.md`.

use std::ops::Range;
use std::time::Duration;

use crate::board::{self, BoardIdentity, Freshness, Progress};
use crate::config::{Configuration, MemberRef, Stamp};
use crate::history::{History, Parted};
use crate::ids::{Epoch, LogId, Lsn, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, CopyState};
use crate::scan::{PiecewiseScanner, Record};

/// Pause between two looks at a board that moves.
pub const LOOK_INTERVAL: Duration = Duration::from_micros(200);
/// Pause between two looks at a board on which nothing new was for [`IDLE_AFTER`].
pub const IDLE_INTERVAL: Duration = Duration::from_millis(2);
/// See [`IDLE_INTERVAL`].
pub const IDLE_AFTER: Duration = Duration::from_millis(10);
/// A view that is older than this is stale, and a board that stands still for so long is left: its primary has died, or its
/// member is no longer written to. Twelve [beats](crate::primary::BEAT_INTERVAL).
pub const STALE_AFTER: Duration = Duration::from_millis(300);
/// Pause before the next visit after one that has failed; doubled with each until a board moves again.
const REVISIT_MIN: Duration = Duration::from_millis(25);
/// The longest such pause.
const REVISIT_MAX: Duration = Duration::from_millis(250);
/// A member that has not answered a small question within so many of these pauses is left: within 300 ms to 3 s, longer where
/// nobody has answered in time.
const ANSWER_PAUSES: u32 = 12;
/// Pause before something is asked again that was not there yet.
const AGAIN: Duration = Duration::from_millis(1);
/// So often in a row one member may give bytes that do not verify, or not have what its board names.
const DOUBTS_MAX: u32 = 3;

/// Numbers the visits, so that late answers are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Visit(pub u64);

/// Copies that a follower remembers of an inventory: 320 KiB. What is behind them it asks for when it has come so far.
pub const NEEDED_MAX: usize = 1 << 12;

/// What of a member's inventory a follower needs that wants the records from one on: not those before that are closed, which may
/// be very many, but for the newest of them; and no more than [`NEEDED_MAX`].
#[derive(Clone, Debug)]
pub struct NeededCopies {
    most: usize,
    copies: Vec<CopyReport>,
    /// The lent segments begin after it.
    newest_before: Option<CopyReport>,
}

impl Default for NeededCopies {
    fn default() -> NeededCopies {
        NeededCopies::at_most(NEEDED_MAX)
    }
}

impl NeededCopies {
    /// Keeps at most so many copies, and the one before.
    pub fn at_most(most: usize) -> NeededCopies {
        NeededCopies { most, copies: Vec::new(), newest_before: None }
    }

    /// Takes the next copy, in the order of their segments.
    pub fn take(&mut self, copy: &CopyReport, next: Lsn) {
        match is_fetched(copy) && copy.closure.last < next {
            true => self.newest_before = Some(*copy),
            false if self.is_full() => {}
            false => self.copies.push(*copy),
        }
    }

    /// True when nothing more is needed.
    pub fn is_full(&self) -> bool {
        self.copies.len() == self.most
    }

    /// The needed copies, in the order of their segments.
    pub fn finish(mut self) -> Vec<CopyReport> {
        if let Some(before) = self.newest_before {
            let at = self.copies.partition_point(|copy| copy.identity.segment < before.identity.segment);
            self.copies.insert(at, before);
        }
        self.copies
    }
}

/// What happens to a follower. Errors are for people.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// The config store shows this configuration.
    Config(&'a Configuration),
    /// Answer to [`Output::Connect`]: there is a read channel, and the board is shared.
    Connected(Visit, Result<(), String>),
    /// Answer to [`Output::Look`]: when the read was posted, by the same clock as all moments, and what it found at
    /// [`board::LINES`].
    Looked(Visit, Duration, &'a [u8]),
    /// Answer to [`Output::Survey`]: the copies that are [needed](NeededCopies), each checked by itself and in the order of their
    /// segments.
    Surveyed(Visit, Result<&'a [CopyReport], String>),
    /// Answer to [`Output::Share`]: which opening of the segment it is, and where it ends if it is closed there. `None`: it is
    /// not in the member's memory.
    Shared(Visit, Result<Option<(SegmentIdentity, Option<Closure>)>, String>),
    /// Answer to [`Output::Read`]: the bytes.
    Read(Visit, &'a [u8]),
    /// Answer to [`Output::Fetch`]: all records of the range have been handed out.
    Fetched(Visit, Result<(), String>),
    /// The read channel is over; a look or read that is on its way has no other answer.
    Broken(Visit, String),
    /// Time passes. Expected at [`Follower::wake_at`]; more often does no harm.
    Tick,
}

/// What a follower wants done. Each but the last five has one answer, and only the last of them is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Open a read channel to this member and have its board shared.
    Connect(Visit, LogId, MemberRef),
    /// Read the board.
    Look(Visit),
    /// Ask the member what it holds.
    Survey(Visit),
    /// Have this segment shared.
    Share(Visit, SegmentId),
    /// Read these bytes of the segment that was shared last.
    Read(Visit, Range<u32>),
    /// Fetch a closed segment from any backup that has it, check it against its closure, and hand out its records of this
    /// range.
    Fetch(Visit, SegmentIdentity, Closure, Range<Lsn>),
    /// The visit is over, and why: close its channel.
    Leave(Visit, String),
    /// Everything that was acknowledged when this visit began, and all that is known to be, has been handed out; or the visit is
    /// about to end, because the board that says so stands still. Once each time.
    CaughtUp,
    /// What comes next has been trimmed; the log begins with this record. The last output.
    Trimmed(Lsn),
    /// The log ends with this record, before the one that is to come next by more than one: a record that was said to be
    /// acknowledged is not. The last output.
    BeyondEnd(Lsn),
    /// The log does not continue what has been handed out. The last output.
    Parted(Parted),
}

/// How far behind a follower is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The last record that it knows to be acknowledged.
    pub acked: Lsn,
    /// Everything that was acknowledged so long ago, and before, has been handed out. `None`: nothing is known yet.
    pub behind: Option<Duration>,
}

impl Lag {
    /// Nobody knows how much there is that it has not seen: it has found no board that moves for a while.
    pub fn is_stale(&self) -> bool {
        self.behind.is_none_or(|behind| behind > STALE_AFTER)
    }
}

/// The state of a follower.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Follower {
    config: Option<Configuration>,
    /// The history that what has been handed out belongs to.
    history: History,
    /// The record to hand out next.
    next: Lsn,
    /// The same, as long as it is to be the first of the log, nothing has been handed out, and it has not caught up: a board on which
    /// nobody has looked for a while may show a first record that has been trimmed since.
    begins: Option<Lsn>,
    /// Most bytes of a read.
    landing: u32,
    /// Which member is visited next.
    turn: usize,
    visits: u64,
    /// The latest epoch of a board that verified.
    epoch: Epoch,
    /// The last record that was seen acknowledged.
    acked: Lsn,
    /// Everything acknowledged before this moment has been handed out.
    covers: Option<Duration>,
    /// The record before the next one was acknowledged by then: it was handed out, or the caller that asks for the next one
    /// says so.
    since: Duration,
    /// This has been reported, and nothing has been handed out since.
    caught_up: bool,
    visiting: Option<Visiting>,
    /// The next visit begins then, after a pause of this length.
    revisit: (Duration, Duration),
    over: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Visiting {
    visit: Visit,
    member: MemberRef,
    began: Duration,
    task: Task,
    /// When the task began.
    since: Duration,
    board: Option<(BoardIdentity, Progress)>,
    freshness: Freshness,
    /// When its beat last grew; before it did, when the visit began.
    moved: Duration,
    /// When it last named something new.
    news: Duration,
    place: Place,
    doubts: u32,
}

/// What is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Connect,
    Look,
    /// Look again then.
    Rest(Duration),
    Survey,
    Share(SegmentId),
    Read(Range<u32>),
    Fetch(SegmentIdentity, Closure, Range<Lsn>),
}

/// Where the next record is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Unknown,
    /// In one of these copies, or behind them all: then from this segment on, if the member has listed any closed one.
    Among(Vec<CopyReport>, Option<SegmentId>),
    /// In this segment; or before it, unless all before it has been handed out.
    In(SegmentId, Before),
    /// In this segment, which is shared.
    Open(Box<OpenSegment>),
}

/// Whether the next record may be in an open segment before the one that is tried: what is lent is in no inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Before {
    HandedOut,
    Unknown,
}

/// A shared segment that is being read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OpenSegment {
    identity: SegmentIdentity,
    /// Where it ends, if it was closed when it was shared: what lies behind is not of the log.
    closed_at: Option<u32>,
    scanner: PiecewiseScanner,
    /// Bytes that the scanner has been given.
    taken: u32,
    /// The first record in them.
    first: Option<Lsn>,
    before: Before,
}

impl Follower {
    /// A follower that hands out the records from `next` on; with 0 from the first that there is. The caller asserts that now,
    /// at `since`, all records before that are acknowledged. It reads at most `landing` bytes at once, and begins with the
    /// member at `turn` of the set, modulo its size. Its visits are numbered from the one after `visit` on, so that it takes no
    /// answer to an earlier follower for its own.
    pub fn new(since: Duration, next: Lsn, landing: u32, turn: usize, visit: Visit) -> Follower {
        assert!(landing > 0, "there is room for what is read");
        let revisit = (Duration::ZERO, REVISIT_MIN);
        let (visits, epoch, acked) = (visit.0, Epoch(0), Lsn(0));
        let (config, covers, caught_up, visiting, over) = (None, None, false, None, false);
        Follower {
            config,
            history: History::UNKNOWN,
            next,
            begins: (next == Lsn(0)).then_some(next),
            landing,
            turn,
            visits,
            epoch,
            acked,
            covers,
            since,
            caught_up,
            visiting,
            revisit,
            over,
        }
    }

    /// The same for a caller that has read the records before `next` in this history.
    #[must_use]
    pub fn in_history(self, history: History) -> Follower {
        Follower { history, ..self }
    }

    /// The history that what has been handed out belongs to.
    pub fn history(&self) -> History {
        self.history
    }

    /// The record that is handed out next; 0 while it is to be the first that there is, and none is known.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// The latest epoch of a board that it has believed.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The log that it follows, once it knows it.
    pub fn log(&self) -> Option<LogId> {
        self.config.as_ref().map(|config| config.log)
    }

    /// The visit that is under way.
    pub fn visit(&self) -> Option<Visit> {
        self.visiting.as_ref().map(|visiting| visiting.visit)
    }

    /// Names the configuration that it has seen last.
    pub fn knows(&self) -> Option<Stamp> {
        self.config.as_ref().map(Configuration::stamp)
    }

    /// True while it waits for what this visit fetches.
    pub fn fetches(&self, visit: Visit) -> bool {
        self.awaits(visit, |task| matches!(task, Task::Fetch(..)))
    }

    /// The member that is being visited, once its board has verified.
    pub fn from(&self) -> Option<&MemberRef> {
        self.visiting.as_ref().filter(|visiting| visiting.board.is_some()).map(|visiting| &visiting.member)
    }

    /// How far behind it is now.
    pub fn lag(&self, now: Duration) -> Lag {
        Lag { acked: self.acked, behind: self.covers.map(|covers| now.saturating_sub(covers)) }
    }

    /// Closed segments that will probably be fetched after the one that is being fetched now, for reading ahead: all of their
    /// records are acknowledged.
    pub fn upcoming(&self) -> impl Iterator<Item = (SegmentIdentity, Closure)> + '_ {
        let fetching = self.visiting.as_ref().and_then(|visiting| match (&visiting.task, &visiting.place) {
            (Task::Fetch(identity, ..), Place::Among(copies, _)) => Some((identity.segment, copies)),
            _ => None,
        });
        let acked = self.acked;
        fetching.into_iter().flat_map(move |(segment, copies)| {
            let behind = copies.iter().skip(copies.partition_point(|copy| copy.identity.segment <= segment));
            let fetched = behind.take_while(move |copy| is_fetched(copy) && copy.closure.last <= acked);
            fetched.map(|copy| (copy.identity, copy.closure))
        })
    }

    /// When to tick next.
    pub fn wake_at(&self) -> Option<Duration> {
        if self.over {
            return None;
        }
        let Some(visiting) = &self.visiting else { return self.config.as_ref().map(|_| self.revisit.0) };
        match visiting.task {
            Task::Rest(until) => Some(until),
            // The executor knows how long these may take.
            Task::Survey | Task::Fetch(..) => None,
            Task::Look | Task::Read(_) | Task::Connect | Task::Share(_) => {
                Some(visiting.since + self.patience(visiting))
            }
        }
    }

    /// How long it waits for what it awaits.
    fn patience(&self, visiting: &Visiting) -> Duration {
        match visiting.task {
            Task::Connect | Task::Share(_) => self.revisit.1 * ANSWER_PAUSES,
            _ => STALE_AFTER,
        }
    }

    /// Takes one input; appends to `out` what to do, and hands out the records that have come. Late answers are ignored.
    pub fn step(
        &mut self,
        now: Duration,
        input: Input<'_>,
        out: &mut Vec<Output>,
        mut hand_out: impl FnMut(Record<'_>),
    ) {
        if self.over {
            return;
        }
        match input {
            Input::Config(config) => self.on_config(now, config, out),
            Input::Tick => self.on_tick(now, out),
            Input::Connected(visit, answer) => {
                if self.awaits(visit, |task| *task == Task::Connect) {
                    match answer {
                        Ok(()) => self.do_next(now, Task::Look, out),
                        Err(why) => self.leave(now, why, out),
                    }
                }
            }
            Input::Looked(visit, posted, lines) => {
                if self.awaits(visit, |task| *task == Task::Look) {
                    self.on_looked(now, posted, lines, out);
                }
            }
            Input::Surveyed(visit, answer) => {
                if self.awaits(visit, |task| *task == Task::Survey) {
                    match answer {
                        Ok(copies) => self.on_surveyed(now, copies, out),
                        Err(why) => self.leave(now, why, out),
                    }
                }
            }
            Input::Shared(visit, answer) => {
                if self.awaits(visit, |task| matches!(task, Task::Share(_))) {
                    match answer {
                        Ok(shared) => self.on_shared(now, shared, out),
                        Err(why) => self.leave(now, why, out),
                    }
                }
            }
            Input::Read(visit, bytes) => {
                if self.awaits(visit, |task| matches!(task, Task::Read(_))) {
                    self.on_read(now, bytes, out, &mut hand_out);
                }
            }
            Input::Fetched(visit, answer) => {
                if self.awaits(visit, |task| matches!(task, Task::Fetch(..))) {
                    match answer {
                        Ok(()) => self.on_fetched(now, out),
                        Err(why) => self.leave(now, why, out),
                    }
                }
            }
            Input::Broken(visit, why) => {
                if self.awaits(visit, |_| true) {
                    self.leave(now, why, out);
                }
            }
        }
    }

    fn awaits(&self, visit: Visit, such: impl FnOnce(&Task) -> bool) -> bool {
        self.visiting.as_ref().is_some_and(|visiting| visiting.visit == visit && such(&visiting.task))
    }

    fn on_config(&mut self, now: Duration, config: &Configuration, out: &mut Vec<Output>) {
        let known = self.config.as_ref().filter(|known| known.log == config.log);
        if known.is_some_and(|known| known.stamp() >= config.stamp()) {
            return;
        }
        let shared = self.history.shared_up_to(config.log, &config.cuts);
        if let Err(parted) = self.history.go_on(self.next, config.log, &config.cuts) {
            return self.end(Output::Parted(parted), parted.to_string(), out);
        }
        // What was acknowledged behind a cut is lost.
        if let Some(last) = shared {
            self.acked = self.acked.min(last);
        }
        self.config = Some(config.clone());
        // A follower that waits for a board that moves may find one now.
        self.revisit = (now, REVISIT_MIN);
        if let Some(visiting) = &self.visiting {
            let superseded = visiting.board.is_some_and(|(identity, _)| identity.epoch < config.epoch);
            if superseded || !config.members.iter().any(|member| member.is_same(&visiting.member)) {
                self.leave(now, "the configuration has changed".to_owned(), out);
            }
        }
        self.on_tick(now, out);
    }

    fn on_tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        match &self.visiting {
            None if now >= self.revisit.0 => self.begin_visit(now, out),
            None => {}
            Some(visiting) => match visiting.task {
                Task::Rest(until) if now >= until => self.do_next(now, Task::Look, out),
                Task::Look | Task::Read(_) if now >= visiting.since + self.patience(visiting) => {
                    self.leave(now, "it cannot be read from".to_owned(), out);
                }
                Task::Connect | Task::Share(_) if now >= visiting.since + self.patience(visiting) => {
                    self.leave(now, "it does not answer".to_owned(), out);
                }
                _ => {}
            },
        }
    }

    fn begin_visit(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(config) = self.config.as_ref().filter(|config| !config.members.is_empty()) else { return };
        let member = config.members[self.turn % config.members.len()].clone();
        self.visits += 1;
        let visit = Visit(self.visits);
        out.push(Output::Connect(visit, config.log, member.clone()));
        let (task, board, place) = (Task::Connect, None, Place::Unknown);
        let freshness = Freshness::default();
        let (began, since, moved, news) = (now, now, now, now);
        let visiting = Visiting { visit, member, began, task, since, board, freshness, moved, news, place, doubts: 0 };
        self.visiting = Some(visiting);
    }

    /// The follower is over, with this as its last output.
    fn end(&mut self, last: Output, why: String, out: &mut Vec<Output>) {
        self.over = true;
        out.extend(self.visiting.take().map(|left| Output::Leave(left.visit, why)));
        out.push(last);
    }

    /// The visit is over; the next one is another member's.
    fn leave(&mut self, now: Duration, why: String, out: &mut Vec<Output>) {
        let Some(visiting) = self.visiting.take() else { return };
        out.push(Output::Leave(visiting.visit, why));
        self.turn = self.turn.wrapping_add(1);
        let (at, pause) = self.revisit;
        self.revisit = (at.max(now + pause), (pause * 2).min(REVISIT_MAX));
    }

    /// Something there was not as its board says: looks again, or leaves.
    fn doubt(&mut self, now: Duration, why: &str, out: &mut Vec<Output>) {
        let Some(visiting) = &mut self.visiting else { return };
        visiting.doubts += 1;
        visiting.place = Place::Unknown;
        if visiting.doubts > DOUBTS_MAX {
            self.leave(now, why.to_owned(), out);
        } else {
            self.rest(now, AGAIN);
        }
    }

    fn rest(&mut self, now: Duration, pause: Duration) {
        if let Some(visiting) = &mut self.visiting {
            (visiting.task, visiting.since) = (Task::Rest(now + pause), now);
        }
    }

    fn do_next(&mut self, now: Duration, task: Task, out: &mut Vec<Output>) {
        let Some(visiting) = &mut self.visiting else { return };
        let visit = visiting.visit;
        out.extend(match &task {
            Task::Look => Some(Output::Look(visit)),
            Task::Survey => Some(Output::Survey(visit)),
            Task::Share(segment) => Some(Output::Share(visit, *segment)),
            Task::Read(range) => Some(Output::Read(visit, range.clone())),
            Task::Fetch(identity, closure, wanted) => Some(Output::Fetch(visit, *identity, *closure, wanted.clone())),
            Task::Connect | Task::Rest(_) => None,
        });
        (visiting.task, visiting.since) = (task, now);
    }

    fn on_looked(&mut self, now: Duration, posted: Duration, lines: &[u8], out: &mut Vec<Output>) {
        let (Some(visiting), Some(config)) = (&mut self.visiting, &self.config) else { return };
        let Some((identity, progress)) = board::decode(lines) else {
            // Torn, or not written yet.
            return self.rest_unless_still(now, out);
        };
        if identity.log != config.log || identity.epoch < self.epoch {
            return self.leave(now, format!("its board is of epoch {}, {} is known", identity.epoch, self.epoch), out);
        }
        // It was on its way when the log was cut, and may name what is lost.
        if config.cuts.last().is_some_and(|cut| identity.epoch < cut.epoch) {
            return self.leave(now, format!("its board is of epoch {}, before the log was cut", identity.epoch), out);
        }
        // Where the log was cut when this epoch was won stands in the config store: before that is known, what it names may follow
        // another history.
        if identity.epoch > config.won {
            return self.rest_unless_still(now, out);
        }
        if visiting.board.is_some_and(|(known, _)| known != identity) {
            return self.leave(now, "its board has been replaced".to_owned(), out);
        }
        let before = visiting.board.map(|(_, before)| before);
        if before.is_some_and(|before| progress.beat < before.beat || progress.acked < before.acked) {
            // An older line that came late.
            return self.rest_unless_still(now, out);
        }
        if self.begins == Some(self.next) && progress.first > self.next {
            (self.next, self.begins) = (progress.first, Some(progress.first));
        }
        if before.is_some_and(|before| progress.version != before.version) {
            // The member may have been out of the set in between, and its board without beats.
            visiting.freshness = Freshness::default();
        }
        visiting.freshness.observe(posted, progress.beat);
        if before.is_none_or(|before| progress.beat > before.beat) {
            visiting.moved = now;
        }
        if before.is_none_or(|before| progress.acked > before.acked) {
            visiting.news = now;
        }
        if before.is_some_and(|before| progress.beat > before.beat) {
            self.revisit.1 = REVISIT_MIN;
        }
        visiting.board = Some((identity, progress));
        self.epoch = identity.epoch;
        self.acked = self.acked.max(progress.acked);
        if progress.acked < self.next.prev() {
            if planted::has(Bug::FollowerGoesBack) {
                self.next = progress.acked.max(Lsn(1));
            } else if visiting.freshness.covers() >= Some(self.since) {
                // Everything that was acknowledged by then is in this view.
                let why = format!("the log ends with record {}", progress.acked);
                return self.end(Output::BeyondEnd(progress.acked), why, out);
            } else {
                // Behind what has been handed out already, which another board has named: this one may follow.
                return self.rest_unless_still(now, out);
            }
        }
        if progress.first > self.next {
            let why = format!("the log begins with record {}", progress.first);
            return self.end(Output::Trimmed(progress.first), why, out);
        }
        self.go_on(now, out);
    }

    fn catch_up(&mut self, out: &mut Vec<Output>) {
        self.begins = None;
        if !std::mem::replace(&mut self.caught_up, true) {
            out.push(Output::CaughtUp);
        }
    }

    /// Looks again in a moment; leaves if nothing has moved for too long.
    fn rest_unless_still(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(visiting) = &self.visiting else { return };
        if now >= visiting.moved + STALE_AFTER {
            let Some((_, progress)) = visiting.board else {
                return self.leave(now, "its board shows nothing".to_owned(), out);
            };
            if self.next == progress.acked.next() {
                self.catch_up(out);
            }
            return self.leave(now, "its board stands still".to_owned(), out);
        }
        let busy = now < visiting.news + IDLE_AFTER;
        self.rest(now, if busy { LOOK_INTERVAL } else { IDLE_INTERVAL });
    }

    /// The board names what may be handed out: gets the next of it.
    fn go_on(&mut self, now: Duration, out: &mut Vec<Output>) {
        let landing = self.landing;
        let Some(visiting) = &mut self.visiting else { return };
        let Some((identity, progress)) = visiting.board else { return };
        if self.next > progress.acked {
            visiting.doubts = 0;
            let covers = visiting.freshness.covers();
            self.covers = self.covers.max(covers);
            // Until then the line may be of any age: where nobody has looked, nothing was written.
            if covers >= Some(visiting.began) || planted::has(Bug::AnyLineIsNew) {
                self.catch_up(out);
            }
            return self.rest_unless_still(now, out);
        }
        let wanted = self.next..progress.acked.next();
        match &mut visiting.place {
            Place::Unknown => self.do_next(now, Task::Survey, out),
            Place::In(segment, _) => {
                let segment = *segment;
                self.do_next(now, Task::Share(segment), out);
            }
            Place::Among(copies, behind) => {
                let at = copies.iter().position(|copy| !is_fetched(copy) || copy.closure.last >= self.next);
                match at.map(|at| copies[at]) {
                    Some(copy) if is_fetched(&copy) && copy.closure.first > self.next => {
                        self.doubt(now, "it lacks a part of the log", out);
                    }
                    Some(copy) if is_fetched(&copy) => {
                        let wanted = wanted.start..wanted.end.min(copy.closure.last.next());
                        self.do_next(now, Task::Fetch(copy.identity, copy.closure, wanted), out);
                    }
                    Some(copy) => self.do_next(now, Task::Share(copy.identity.segment), out),
                    None => {
                        let segment = behind.unwrap_or(progress.end.segment);
                        self.do_next(now, Task::Share(segment), out);
                    }
                }
            }
            Place::Open(open) if open.is_over(&identity, &progress) && open.begins_behind(self.next) => {
                self.go_back(now, out);
            }
            Place::Open(open) if open.is_over(&identity, &progress) => {
                let next = open.identity.segment.next();
                visiting.place = Place::In(next, Before::HandedOut);
                self.do_next(now, Task::Share(next), out);
            }
            Place::Open(open) => match open.end(&identity, &progress) {
                None => self.doubt(now, "its board names another opening of the segment", out),
                Some(end) if open.taken < end => {
                    let range = open.taken..end.min(open.taken.saturating_add(landing));
                    self.do_next(now, Task::Read(range), out);
                }
                // All of it has been read.
                Some(_) if open.begins_behind(self.next) => self.go_back(now, out),
                Some(_) => self.doubt(now, "its memory does not verify", out),
            },
        }
    }

    fn on_surveyed(&mut self, now: Duration, copies: &[CopyReport], out: &mut Vec<Output>) {
        let (Some(visiting), Some(config)) = (&mut self.visiting, &self.config) else { return };
        let of_the_log = copies.iter().filter(|copy| copy.identity.log == config.log);
        // What is lent is not listed: it lies behind what is closed.
        let closed = of_the_log.clone().rfind(|copy| is_fetched(copy));
        let behind = closed.map(|copy| copy.identity.segment.next());
        let wanted = |copy: &&CopyReport| !(is_fetched(copy) && copy.closure.last < self.next);
        visiting.place = Place::Among(of_the_log.filter(wanted).copied().collect(), behind);
        self.go_on(now, out);
    }

    fn on_shared(&mut self, now: Duration, shared: Option<(SegmentIdentity, Option<Closure>)>, out: &mut Vec<Output>) {
        let Some(visiting) = &mut self.visiting else { return };
        let Some((board, _)) = visiting.board else { return };
        let Task::Share(segment) = visiting.task else { return };
        let Some((identity, closure)) = shared else {
            // Closed and on disk by now, or not there yet: the survey tells.
            return self.doubt(now, "it does not have what its board names", out);
        };
        if identity.log != board.log || identity.segment != segment || identity.epoch > board.epoch {
            return self.leave(now, format!("it shares another segment than {segment} of this log"), out);
        }
        let before = match &visiting.place {
            Place::In(_, before) => *before,
            // Nothing is listed, so that this is but the segment in which the log ends.
            Place::Among(copies, None) if copies.is_empty() => Before::Unknown,
            _ => Before::HandedOut,
        };
        let (closed_at, scanner) = (closure.map(|closure| closure.end.0), PiecewiseScanner::new(identity));
        let open = OpenSegment { identity, closed_at, scanner, taken: 0, first: None, before };
        visiting.place = Place::Open(Box::new(open));
        self.go_on(now, out);
    }

    fn on_read(&mut self, now: Duration, bytes: &[u8], out: &mut Vec<Output>, hand_out: &mut impl FnMut(Record<'_>)) {
        let Some(visiting) = &mut self.visiting else { return };
        let (Some((identity, progress)), Place::Open(open)) = (visiting.board, &mut visiting.place) else { return };
        let Task::Read(range) = &visiting.task else { return };
        assert_eq!(bytes.len() as u32, range.end - range.start, "as much as was asked for");
        open.taken = range.end;
        let whole = open.end(&identity, &progress) == Some(open.taken);
        let (before, acked) = (self.next, progress.acked);
        let next = &mut self.next;
        let (mut gap, mut first) = (false, open.first);
        let mut take = |record: Record<'_>| {
            first.get_or_insert(record.lsn);
            gap |= record.lsn > *next && *next <= acked;
            if !gap && record.lsn == *next && (record.lsn <= acked || planted::has(Bug::ReaderPastAcked)) {
                *next = record.lsn.next();
                hand_out(record);
            }
        };
        open.scanner.push(bytes, &mut take);
        if whole {
            open.scanner.look(&mut take);
        }
        if self.next > before {
            (self.caught_up, self.since) = (false, now);
            visiting.doubts = 0;
        }
        open.first = first;
        match gap {
            true if open.begins_behind(self.next) => self.go_back(now, out),
            true => self.doubt(now, "it lacks a part of the log", out),
            false => self.go_on(now, out),
        }
    }

    /// Tries the segment before the one that has been read.
    fn go_back(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(Visiting { place, .. }) = &mut self.visiting else { return };
        let Place::Open(open) = place else { return };
        *place = Place::In(SegmentId(open.identity.segment.0 - 1), Before::Unknown);
        self.go_on(now, out);
    }

    fn on_fetched(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Some(visiting) = &mut self.visiting else { return };
        let Task::Fetch(_, _, wanted) = &visiting.task else { return };
        self.next = wanted.end;
        (self.caught_up, self.since) = (false, now);
        visiting.doubts = 0;
        // The board has moved on since the last look.
        self.do_next(now, Task::Look, out);
    }
}

impl OpenSegment {
    /// Where the last acknowledged append in this segment may end at the latest. `None` if the board is of another opening of
    /// the same segment.
    fn end(&self, board: &BoardIdentity, progress: &Progress) -> Option<u32> {
        let size = self.identity.size.bytes();
        let behind = progress.end.segment > self.identity.segment;
        if planted::has(Bug::ReaderPastAcked) {
            return Some(size);
        }
        match self.closed_at {
            _ if !behind && (progress.end.segment, board.epoch) != (self.identity.segment, self.identity.epoch) => None,
            Some(closed_at) if behind => Some(closed_at),
            // Everything in it is acknowledged: what is behind its last append is zero.
            None if behind => Some(size),
            _ => Some(progress.end.offset.0.min(self.closed_at.unwrap_or(size))),
        }
    }

    /// True when all that has been read of it lies behind this record, which may be in a segment before it.
    fn begins_behind(&self, next: Lsn) -> bool {
        self.before == Before::Unknown
            && self.identity.segment > SegmentId(1)
            && self.first.is_none_or(|first| first > next)
    }

    /// True when it has been read to its end, and the log continues after it.
    fn is_over(&self, board: &BoardIdentity, progress: &Progress) -> bool {
        let read = || self.end(board, progress) == Some(self.taken) || self.scanner.is_at_zeros();
        progress.end.segment > self.identity.segment && read()
    }
}

/// True for copies that are fetched; the others are read where they are. Corrupt ones are fetched elsewhere.
fn is_fetched(copy: &CopyReport) -> bool {
    matches!(copy.state, CopyState::Closed | CopyState::Corrupt)
}
