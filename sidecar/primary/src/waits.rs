//! What waits for the members: appends for their acks, questions for proof that this still is the primary, syncs for the disks.
//!
//! Part of [`PrimaryLog`](crate::PrimaryLog).

use std::collections::VecDeque;

use tailwind_protocol::ids::{Lsn, Position};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::Post;

use crate::segments::Placed;

/// Appends that may wait for their ack; room for them is allocated at the start.
pub(crate) const APPENDS_MAX: usize = 64 << 10;
/// Questions that may wait.
pub(crate) const QUESTIONS_MAX: usize = 64;
/// Syncs that may wait.
pub(crate) const SYNCS_MAX: usize = 64;
/// Questions that may wait behind appends: one for each client that has lost a race for a key.
pub(crate) const BEHIND_MAX: usize = 1024;

/// An append that waits for its ack.
#[derive(Debug)]
pub(crate) struct WaitingAppend<A> {
    pub(crate) placed: Placed,
    /// `None`: the cleaner's moves, for which no client waits.
    pub(crate) append: Option<A>,
}

/// A question that waits for a barrier.
#[derive(Debug)]
pub(crate) struct WaitingQuestion<Q> {
    pub(crate) barrier: Post,
    /// Of a sync: what is on disk at every member.
    pub(crate) synced: Option<Lsn>,
    pub(crate) question: Q,
}

/// A sync, up to a record.
#[derive(Debug)]
struct WaitingSync<Q> {
    last: Lsn,
    question: Q,
}

/// A question that waits for a barrier, and for the acks of what was appended before it.
#[derive(Debug)]
struct WaitingBehind<Q> {
    end: Position,
    barrier: Post,
    question: Q,
}

/// All that waits, in the order in which it was taken.
#[derive(Debug)]
pub(crate) struct Waits<A, Q> {
    appends: VecDeque<WaitingAppend<A>>,
    pub(crate) questions: Vec<WaitingQuestion<Q>>,
    syncs: Vec<WaitingSync<Q>>,
    behind: VecDeque<WaitingBehind<Q>>,
    /// Questions that were answered.
    pub(crate) proved: u64,
}

impl<A, Q> Waits<A, Q> {
    pub(crate) fn new() -> Waits<A, Q> {
        Waits {
            appends: VecDeque::with_capacity(APPENDS_MAX),
            questions: Vec::with_capacity(QUESTIONS_MAX),
            syncs: Vec::with_capacity(SYNCS_MAX),
            behind: VecDeque::with_capacity(BEHIND_MAX),
            proved: 0,
        }
    }

    pub(crate) fn add_append(&mut self, placed: Placed, append: Option<A>) {
        self.appends.push_back(WaitingAppend { placed, append });
    }

    pub(crate) fn add_question(&mut self, barrier: Post, question: Q) {
        self.questions.push(WaitingQuestion { barrier, synced: None, question });
    }

    pub(crate) fn add_sync(&mut self, last: Lsn, question: Q) {
        self.syncs.push(WaitingSync { last, question });
    }

    /// A question behind everything up to `end`.
    pub(crate) fn add_behind(&mut self, end: Position, barrier: Post, question: Q) {
        self.behind.push_back(WaitingBehind { end, barrier, question });
    }

    /// The oldest question behind appends, if those are acknowledged and its barrier has passed.
    pub(crate) fn pop_behind(&mut self, acked: Position, passed: impl Fn(Post) -> bool) -> Option<Q> {
        let waiting = self.behind.pop_front_if(|waiting| waiting.end <= acked && passed(waiting.barrier))?;
        Some(waiting.question)
    }

    /// The latest barrier that a question waits for.
    pub(crate) fn last_barrier(&self) -> Option<Post> {
        let asked = self.questions.last().map(|waiting| waiting.barrier);
        asked.max(self.behind.back().map(|waiting| waiting.barrier))
    }

    /// The oldest append, if everything up to its end is acknowledged.
    pub(crate) fn pop_acknowledged(&mut self, acked: Position) -> Option<WaitingAppend<A>> {
        let early = planted::has(Bug::AckedBeforeWhole);
        self.appends.pop_front_if(|append| {
            let end = append.placed.end;
            end <= acked || (early && end.segment == acked.segment)
        })
    }

    /// Turns the syncs of which everything is on disk at every member into questions: where nothing new had to be brought to
    /// disk, nothing else has shown that this still is the primary.
    pub(crate) fn ask_for_syncs(&mut self, synced: Lsn, barrier: Post) {
        if self.syncs.is_empty() {
            return;
        }
        let room = QUESTIONS_MAX.saturating_sub(self.questions.len());
        let reached = self.syncs.extract_if(.., |sync| sync.last <= synced).take(room);
        let asked = reached.map(|sync| WaitingQuestion { barrier, synced: Some(synced), question: sync.question });
        self.questions.extend(asked);
    }

    /// Forgets the questions and syncs that fail the test. Appends stay: they are in the log.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Q) -> bool) {
        self.questions.retain(|waiting| keep(&waiting.question));
        self.syncs.retain(|sync| keep(&sync.question));
        self.behind.retain(|waiting| keep(&waiting.question));
    }

    pub(crate) fn appends(&self) -> &VecDeque<WaitingAppend<A>> {
        &self.appends
    }

    pub(crate) fn syncs(&self) -> usize {
        self.syncs.len()
    }

    pub(crate) fn behind(&self) -> usize {
        self.behind.len()
    }

    /// The last record that waits, and where its append ends.
    pub(crate) fn last_append(&self) -> Option<(Lsn, Position)> {
        self.appends.back().map(|waiting| (waiting.placed.last, waiting.placed.end))
    }

    /// Everything that waits: it will not be answered here.
    pub(crate) fn into_parts(self) -> (impl Iterator<Item = A>, impl Iterator<Item = Q>) {
        let questions = self.questions.into_iter().map(|waiting| waiting.question);
        let syncs = self.syncs.into_iter().map(|sync| sync.question);
        let behind = self.behind.into_iter().map(|waiting| waiting.question);
        (self.appends.into_iter().filter_map(|waiting| waiting.append), questions.chain(syncs).chain(behind))
    }
}
