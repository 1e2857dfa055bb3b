//! A primary's log: one turn places nothing by itself, and does all the rest once, in the order that the acks rest on.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tailwind_protocol::config::{MEMBERS_MAX, Time};
use tailwind_protocol::ids::{Lsn, Position};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::{Input, Output, Post, Primary, SEGMENTS_MAX, Seat};
use tailwind_protocol::segment::Payload;

use crate::fabric::Fabric;
use crate::members::MemberChannel;
use crate::segments::{ActiveSegment, OpenSegment, Placed};
use crate::table::Table;
use crate::waits::{APPENDS_MAX, BEHIND_MAX, QUESTIONS_MAX, SYNCS_MAX, WaitingAppend, WaitingQuestion, Waits};

/// Outputs of the machine in one turn, about: a term that begins or loses a member wants some dozens at once.
const OUTPUTS: usize = 64;

/// When a turn is taken.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// For the machine.
    pub now: Time,
    /// Since the host began, more finely: for what readers are told.
    pub elapsed: Duration,
    /// The machine is to be told of it in this turn; expected every few milliseconds.
    pub ticks: bool,
}

/// Is told what a turn brings. `A` names an append, and `Q` a question or a sync.
pub trait Listener<A, Q> {
    /// Everything up to `last`, the last record of this append, is at every member that acks need. `None`: the append was the
    /// cleaner's moves, for which nobody waits.
    fn acknowledged(&mut self, append: Option<A>, last: Lsn);
    /// This was the primary after the question came.
    fn proved(&mut self, question: Q, proof: Proof);
    /// Everything up to here is on its way to every member that acks need; this turn has posted so many bytes of the log, those
    /// for each member counted.
    fn posted(&mut self, _: Position, _bytes: u64) {}
    /// Lines of so many bytes have been posted to members' boards.
    fn published(&mut self, _bytes: u64) {}
    /// Everything up to here has completed there.
    fn completed(&mut self, _: Position) {}
}

/// What a question is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Of [`PrimaryLog::ask`]: the last acknowledged record.
    Last(Lsn),
    /// Of [`PrimaryLog::sync`]: everything up to this record is on disk at every member.
    Synced(Lsn),
    /// Of [`PrimaryLog::ask_behind`]: the last acknowledged record; everything that was appended before the question is not after
    /// it.
    Behind(Lsn),
}

/// What a turn has come to.
#[derive(Clone, Copy, Debug)]
pub struct Turned {
    /// Writes of the log have completed, or a channel has failed.
    pub progress: bool,
    /// Appends were acknowledged: up to this record, and this position.
    pub acked: Option<(Lsn, Position)>,
}

/// A primary's log, from the beginning of its epoch to its end: the machine, this side's memory, the members' channels, and
/// what waits for them.
pub struct PrimaryLog<F: Fabric, A, Q> {
    pub(crate) primary: Primary,
    /// Bytes of one work request at most.
    pub(crate) post_bytes_max: u32,
    pub(crate) active: Option<ActiveSegment<F>>,
    pub(crate) segments: VecDeque<OpenSegment<F>>,
    /// By index of the seat.
    pub(crate) members: [Option<MemberChannel<F>>; MEMBERS_MAX],
    pub(crate) waits: Waits<A, Q>,
    /// Of a log that keeps one.
    pub(crate) table: Option<Box<Table>>,
    /// The last acknowledged record, and where its append ends.
    pub(crate) acked: (Lsn, Position),
    /// When lines that linger are pushed.
    pub(crate) lines_due: Option<Duration>,
    /// What the machine wants done by others. The host drains it.
    pub outputs: Vec<Output>,
    /// Channels that have failed, each before the outputs that follow from it. The host drains them.
    pub failures: Vec<(Seat, F::Error)>,
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// Takes over a machine that has just begun its epoch. One work request has at most `post_bytes_max` bytes: enough for a
    /// newcomer's bulk, and few enough not to delay others on the wire.
    pub fn new(primary: Primary, post_bytes_max: u32) -> PrimaryLog<F, A, Q> {
        PrimaryLog {
            acked: (primary.first().prev(), primary.acked()),
            primary,
            post_bytes_max,
            active: None,
            segments: VecDeque::with_capacity(SEGMENTS_MAX),
            members: [const { None }; MEMBERS_MAX],
            waits: Waits::new(),
            table: None,
            lines_due: None,
            outputs: Vec::with_capacity(OUTPUTS),
            failures: Vec::new(),
        }
    }

    /// The machine, for questions.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// The last acknowledged record, and where its append ends.
    pub fn acked(&self) -> (Lsn, Position) {
        self.acked
    }

    /// Feeds the machine.
    pub fn step(&mut self, now: Time, input: Input) {
        self.primary.step(now, input, &mut self.outputs);
        self.release();
    }

    /// Places an append, which waits for its ack from now on. `size` is what its payloads take in the log
    /// ([`append_size`](tailwind_protocol::segment::append_size)). `None`: not now, try again in a later turn. A log that keeps a
    /// table takes requests instead ([`PrimaryLog::apply`]).
    pub fn append(&mut self, append: A, size: usize, payloads: impl Iterator<Item = impl Payload>) -> Option<Placed> {
        debug_assert!(self.table.is_none(), "a table takes requests");
        let placed = self.place(size, payloads)?;
        self.waits.add_append(placed, Some(append));
        Some(placed)
    }

    /// A question that is answered once it is proved that this was primary after it came. It needs the room that
    /// [`PrimaryLog::may_ask`] tells of.
    pub fn ask(&mut self, question: Q) {
        let barrier = if planted::has(Bug::ProvedByOldPosts) { Post::default() } else { self.primary.barrier() };
        self.waits.add_question(barrier, question);
    }

    /// Everything that was appended is to be on disk at every member. It needs the room that [`PrimaryLog::may_sync`] tells of.
    pub fn sync(&mut self, question: Q) {
        let last = self.sync_appended();
        self.waits.add_sync(last, question);
    }

    /// One more append may wait.
    pub fn may_append(&self) -> bool {
        self.waits.appends().len() < APPENDS_MAX
    }

    /// One more question may wait.
    pub fn may_ask(&self) -> bool {
        self.waits.questions.len() < QUESTIONS_MAX
    }

    /// One more sync may wait.
    pub fn may_sync(&self) -> bool {
        self.waits.syncs() < SYNCS_MAX
    }

    /// One more question may wait behind appends.
    pub fn may_ask_behind(&self) -> bool {
        self.waits.behind() < BEHIND_MAX
    }

    /// Appends that wait; `None`: moves.
    pub fn appends(&self) -> impl DoubleEndedIterator<Item = (Option<&A>, Placed)> + ExactSizeIterator {
        self.waits.appends().iter().map(|waiting| (waiting.append.as_ref(), waiting.placed))
    }

    /// Questions that wait, also those of syncs of which everything is on disk; but not those behind appends.
    pub fn questions(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.waits.questions.iter().map(|waiting| &waiting.question)
    }

    /// Syncs that wait for the members, or for their proof.
    pub fn syncs(&self) -> usize {
        self.waits.syncs() + self.waits.questions.iter().filter(|waiting| waiting.synced.is_some()).count()
    }

    /// Questions that wait behind appends.
    pub fn behind(&self) -> usize {
        self.waits.behind()
    }

    /// Questions that were answered since the beginning.
    pub fn proved(&self) -> u64 {
        self.waits.proved
    }

    /// Forgets the questions and syncs that fail the test. Appends cannot be forgotten: they are in the log.
    pub fn retain_questions(&mut self, keep: impl FnMut(&Q) -> bool) {
        self.waits.retain(keep);
    }

    /// Posts, collects what has completed, acknowledges, tells readers, answers.
    ///
    /// Nothing is acknowledged that the machine has not seen complete in this turn or before; readers are told of nothing that was
    /// not acknowledged; and a question is asked of the members after everything that was known when it came.
    pub fn turn(&mut self, moment: Moment, listener: &mut impl Listener<A, Q>) -> Turned {
        let Moment { now, elapsed, ticks } = moment;
        if let Some(bytes) = self.post(now) {
            listener.posted(self.primary.positions().posted, bytes);
            self.note_ridden();
        }
        let polled = self.poll(now);
        self.primary.turn(&mut self.outputs);
        self.release();
        if polled.completed {
            listener.completed(self.primary.positions().completed);
        }
        if ticks {
            self.mark();
            self.step(now, Input::Tick);
            self.close_for_sync();
            self.help_beat(elapsed, now);
        }
        let acked = self.acknowledge(listener);
        let lines = self.publish(elapsed, now);
        if lines > 0 {
            listener.published(lines);
        }
        self.waits.ask_for_syncs(self.primary.synced(), self.primary.barrier());
        self.answer(now, listener);
        Turned { progress: polled.completed || polled.failed, acked }
    }

    /// Acknowledges, in order, what every needed member has. The machine's own position will not do for the log's marks and the
    /// boards: a write request may end in the middle of an append, and a scan would miss what was never whole.
    fn acknowledge(&mut self, listener: &mut impl Listener<A, Q>) -> Option<(Lsn, Position)> {
        let reached = self.primary.acked();
        let (mut acked, mut awaited) = (None, Lsn(0));
        while let Some(WaitingAppend { placed, append }) = self.waits.pop_acknowledged(reached) {
            acked = Some((placed.last, placed.end));
            if append.is_some() {
                awaited = placed.last;
            }
            listener.acknowledged(append, placed.last);
        }
        let (last, end) = acked?;
        self.acked = (last, end);
        if let Some(table) = &mut self.table {
            table.acknowledged(if planted::has(Bug::MovesStayUnseen) { awaited } else { last });
        }
        if let Some(active) = &mut self.active {
            active.on_acknowledged(end);
        }
        Some((last, end))
    }

    /// Answers the questions that every needed member has proved.
    fn answer(&mut self, now: Time, listener: &mut impl Listener<A, Q>) {
        let Some(barrier) = self.waits.last_barrier() else { return };
        // A line may be the write that a member has had since the barrier.
        self.push_lines();
        self.probe(barrier, now);
        let (primary, (last, acked)) = (&self.primary, self.acked);
        while let Some(question) = self.waits.pop_behind(acked, |barrier| primary.passed(barrier)) {
            self.waits.proved += 1;
            listener.proved(question, Proof::Behind(last));
        }
        let passed =
            |waiting: &mut WaitingQuestion<Q>| primary.passed(waiting.barrier) || planted::has(Bug::EndUnproved);
        for WaitingQuestion { question, synced, .. } in self.waits.questions.extract_if(.., passed) {
            self.waits.proved += 1;
            listener.proved(question, synced.map_or(Proof::Last(last), Proof::Synced));
        }
    }

    /// The end of the term. What still waits is not answered here: appends, which may be in the log or not, and questions.
    pub fn end(self) -> (impl Iterator<Item = A>, impl Iterator<Item = Q>) {
        self.waits.into_parts()
    }
}

impl<F: Fabric, A, Q> fmt::Debug for PrimaryLog<F, A, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrimaryLog").field("primary", &self.primary).finish_non_exhaustive()
    }
}
