//! The mirrors: how the acknowledged index gets into the memory of members, and what their boards say of it.
//!
//! Driven by a thread of the primary's sidecar beside its append path, one for each term (and by a model). It writes lines of the
//! [acknowledged view](AckedView) one-sidedly, by channels of their own: no ack, fence or append waits for them. A mirror is
//! derived and of one epoch: no scan, inventory or promotion looks at it. See "The mirror" in `docs/protocol.md`.
//!
//! Each mirror has two sets of lines, those of this round and those of the next:
//!
//! ```text
//! Filling: now = all lines ──round over──▶ Live;     each turn: up to 128 lines of now are on their way
//! round over (now is empty, all that was written has completed): published = through; its board says so;
//!        then through = acked; the lines that have changed move into every next; now = next; next = ∅
//! every 25 ms: next gets 16 lines in turn, so that rot in a mirror is overwritten sooner or later
//! ```
//!
//! *Why a mirror shows all that is published* (S21). A round holds every change up to `through`
//! ([`ChangedLines`]); its lines are copied after they were taken, and its board's line is posted
//! when they have completed. *Why nothing that is not acknowledged:* lines are copies of the view. A slow member's changes
//! coalesce: nothing grows, and nobody waits for it but the cleaner. Ladder: published ≤ through ≤ acked.

use std::sync::Arc;

use crate::board::mirror::{MirrorLine, PartSize};
use crate::config::{MEMBERS_MAX, Time};
use crate::ids::Lsn;
use crate::planted::{self, Bug};

use super::acked::{AckedView, LINE_SIZE, LineId};
use super::changed::ChangedLines;
use super::lines::LineSet;

/// Writes to one mirror that may be on their way.
pub const IN_FLIGHT_MAX: u32 = 128;
/// Lines of a round that one turn looks at: those that are zero need not be written into memory that is zero.
const LOOKED_MAX: u32 = 4096;
/// Pause between two lots of lines that are written again although they have not changed.
pub const REFRESH_MS: u64 = 25;
/// Lines of such a lot: a mirror of a million keys is written again within 22 minutes.
pub const REFRESH_LINES: u32 = 16;
/// For so long the cleaner waits for a mirror whose channel is lost. After that getters that still read it find records that are
/// trimmed, which costs them a retry.
pub const LOST_AFTER_MS: u64 = 5000;
/// Most mirrors: while the set changes, those of both sets.
pub const MIRRORS_MAX: usize = 2 * MEMBERS_MAX;

/// A mirror's number, given by the caller; never twice in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(pub u64);

/// What happens to mirrors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A member has lent all parts of a mirror's memory, which is zero, and a channel to it is open.
    Lent(MirrorId),
    /// The mirror's channel is lost. No write of it is reported any more.
    Lost(MirrorId),
    /// A mirror whose channel was lost has another, and no write of the lost one can land any more.
    Reopened(MirrorId),
    /// The member has left the set, or its memory is gone.
    Left(MirrorId),
    /// So many writes of [`Output::Write`] and [`Output::Publish`] have completed.
    Written(MirrorId, u32),
    /// Time passes, and lines change; expected every 100 µs.
    Tick,
}

/// What mirrors want done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Copy this line of the view now, and write it. Not before in another turn: changes up to this round's record must be in it.
    Write(MirrorId, LineId),
    /// Write this line 2 into the board of the mirror's member.
    Publish(MirrorId, MirrorLine),
}

/// What a mirror is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its first round.
    Filling,
    /// It shows the index.
    Live,
    /// Its channel is lost, since then.
    Lost(Time),
}

/// One mirror. Two sets of lines: 2 bits for each, 3.6 MiB for the largest table.
#[derive(Debug)]
struct Mirror {
    id: MirrorId,
    state: State,
    now: LineSet,
    next: LineSet,
    /// Lines that are zero are zero in its memory too: of a first round in memory that was lent zero.
    skips_zeros: bool,
    in_flight: u32,
    published: Lsn,
    /// This round holds every change up to this record. `None`: there is none to be made.
    through: Option<Lsn>,
}

/// The mirrors of a term.
#[derive(Debug)]
pub struct Mirrors {
    view: Arc<AckedView>,
    changed: Arc<ChangedLines>,
    part_size: PartSize,
    mirrors: Vec<Mirror>,
    /// The next line to be written again.
    refresh: u32,
    refresh_at: Time,
}

impl Mirrors {
    /// No mirrors yet, of this view and with what changes in it.
    pub fn new(view: Arc<AckedView>, changed: Arc<ChangedLines>, part_size: PartSize) -> Mirrors {
        Mirrors { view, changed, part_size, mirrors: Vec::new(), refresh: 0, refresh_at: Time(0) }
    }

    /// Takes an input and hands out what is to be done: at most [`IN_FLIGHT_MAX`] writes for each mirror.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Lent(id) => self.on_lent(id, out),
            Input::Lost(id) => self.on_lost(id, now),
            Input::Reopened(id) => self.on_reopened(id, out),
            Input::Left(id) => self.mirrors.retain(|mirror| mirror.id != id),
            Input::Written(id, writes) => self.on_written(id, writes),
            Input::Tick => {}
        }
        self.refresh(now);
        for at in 0..self.mirrors.len() {
            self.turn(at, out);
        }
    }

    /// Everything up to this record is shown by every mirror that is written to, also by those that are being filled; see
    /// [`Progress::published`](super::cleaner::Progress::published). `None`: there is none.
    pub fn published(&self, now: Time) -> Option<Lsn> {
        let counts = |mirror: &&Mirror| match mirror.state {
            State::Lost(since) => now < since.plus(LOST_AFTER_MS),
            State::Filling | State::Live => true,
        };
        self.mirrors.iter().filter(counts).map(|mirror| mirror.published).min()
    }

    /// Nothing is under way, and nothing will be done before a line changes or is refreshed. A mirror whose channel is lost wants
    /// nothing.
    pub fn rests(&self) -> bool {
        let acked = self.changed.last();
        let rests = |mirror: &Mirror| {
            let is_idle = mirror.through.is_none() && mirror.next.is_empty() && mirror.in_flight == 0;
            matches!(mirror.state, State::Lost(_)) || is_idle && acked <= mirror.published
        };
        self.mirrors.iter().all(rests)
    }

    /// Each mirror, with what it is doing and what is published of it.
    pub fn states(&self) -> impl Iterator<Item = (MirrorId, State, Lsn)> {
        self.mirrors.iter().map(|mirror| (mirror.id, mirror.state, mirror.published))
    }

    fn on_lent(&mut self, id: MirrorId, out: &mut Vec<Output>) {
        assert!(self.mirrors.len() < MIRRORS_MAX && self.at(id).is_none(), "each mirror is lent once");
        let lines = self.view.lines();
        self.mirrors.push(Mirror {
            id,
            state: State::Filling,
            now: LineSet::new(lines),
            next: LineSet::new(lines),
            skips_zeros: true,
            in_flight: 0,
            published: Lsn(0),
            through: None,
        });
        self.fill(self.mirrors.len() - 1, out);
    }

    fn on_lost(&mut self, id: MirrorId, now: Time) {
        let at = self.at(id).expect("a mirror's channel is lost");
        let mirror = &mut self.mirrors[at];
        (mirror.state, mirror.in_flight) = (State::Lost(now), 0);
    }

    fn on_reopened(&mut self, id: MirrorId, out: &mut Vec<Output>) {
        let at = self.at(id).filter(|at| matches!(self.mirrors[*at].state, State::Lost(_)));
        let at = at.expect("only a lost channel is opened again");
        // Which of its writes have landed is not known. So zeros are written too: an entry may have been deleted since.
        self.mirrors[at].skips_zeros = false;
        self.fill(at, out);
    }

    fn on_written(&mut self, id: MirrorId, writes: u32) {
        if let Some(at) = self.at(id) {
            let mirror = &mut self.mirrors[at];
            mirror.in_flight = mirror.in_flight.checked_sub(writes).expect("only what was posted completes");
        }
    }

    /// Begins a first round, which has all lines.
    fn fill(&mut self, at: usize, out: &mut Vec<Output>) {
        let through = self.take();
        let mirror = &mut self.mirrors[at];
        mirror.now.fill();
        mirror.next.clear();
        mirror.state = State::Filling;
        mirror.through = Some(through);
        let mut line = mirror.line(&self.view, self.part_size);
        if planted::has(Bug::FillingIsLive) {
            (line.live, line.published) = (true, through);
        }
        mirror.in_flight += 1;
        out.push(Output::Publish(mirror.id, line));
    }

    /// Every now and then some lines are written again as they are.
    fn refresh(&mut self, now: Time) {
        if self.refresh_at > now {
            return;
        }
        self.refresh_at = now.plus(REFRESH_MS);
        for _ in 0..REFRESH_LINES.min(self.view.lines()) {
            let line = LineId(self.refresh);
            self.mirrors.iter_mut().for_each(|mirror| mirror.next.insert(line));
            self.refresh = (self.refresh + 1) % self.view.lines();
        }
    }

    fn turn(&mut self, at: usize, out: &mut Vec<Output>) {
        let mirror = &mut self.mirrors[at];
        if matches!(mirror.state, State::Lost(_)) {
            return;
        }
        let complete = mirror.in_flight == 0 || planted::has(Bug::PublishedBeforeComplete);
        if mirror.now.is_empty() && complete {
            self.go_on(at, out);
        }
        self.write(at, out);
    }

    /// The round is over: publishes it, and begins another if there is anything for one.
    fn go_on(&mut self, at: usize, out: &mut Vec<Output>) {
        let acked = self.changed.last();
        let mirror = &mut self.mirrors[at];
        if let Some(through) = mirror.through.take() {
            assert!(mirror.published <= through, "published ≤ through");
            mirror.published = if planted::has(Bug::RoundAfterBits) { acked } else { through };
            (mirror.state, mirror.skips_zeros) = (State::Live, false);
            mirror.in_flight += 1;
            out.push(Output::Publish(mirror.id, mirror.line(&self.view, self.part_size)));
        }
        if acked > mirror.published || !mirror.next.is_empty() {
            let through = self.take();
            let mirror = &mut self.mirrors[at];
            std::mem::swap(&mut mirror.now, &mut mirror.next);
            mirror.through = Some(through);
        }
    }

    /// Moves the lines that have changed into the next round of each mirror. All changes up to the record that it returns are in
    /// them, or in lines that were moved before.
    fn take(&mut self) -> Lsn {
        let mirrors = &mut self.mirrors;
        self.changed.take(|at, bits| mirrors.iter_mut().for_each(|mirror| mirror.next.insert_word(at, bits)))
    }

    fn write(&mut self, at: usize, out: &mut Vec<Output>) {
        let mirror = &mut self.mirrors[at];
        for _ in 0..LOOKED_MAX {
            if mirror.in_flight >= IN_FLIGHT_MAX {
                return;
            }
            let Some(line) = mirror.now.pop() else { return };
            if !mirror.skips_zeros || self.view.line(line) != [0; LINE_SIZE] {
                mirror.in_flight += 1;
                out.push(Output::Write(mirror.id, line));
            }
        }
    }

    fn at(&self, id: MirrorId) -> Option<usize> {
        self.mirrors.iter().position(|mirror| mirror.id == id)
    }
}

impl Mirror {
    fn line(&self, view: &AckedView, part_size: PartSize) -> MirrorLine {
        MirrorLine {
            published: self.published,
            hash_key: *view.hash_key(),
            buckets: view.buckets(),
            part_size,
            live: self.state == State::Live,
        }
    }
}
