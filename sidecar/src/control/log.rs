//! The log as readers see it: open segments in this process's memory, closed ones at the members.
//!
//! Filled by [`roles`](super::roles), read by [`reads`](super::reads). The primary keeps only the open end in memory;
//! everything before is fetched when it is wanted, from its [`Sources`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use tailwind_fabric::SharedBuffer;
use tailwind_protocol::config::{Cut, MemberRef};
use tailwind_protocol::ids::{Epoch, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SEGMENT_HEADER_SIZE, SegmentIdentity};
use tokio::sync::watch;

use super::sources::Sources;
use crate::path::Counters;

/// Where a record is.
pub enum Location {
    /// In a closed segment.
    Closed(SegmentIdentity, Closure),
    /// In this process's memory.
    Open(SegmentIdentity, SharedBuffer),
}

/// A term of leading. What a reader knew of the open end holds for one term only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The log that it leads.
    pub log: LogId,
    /// Its epoch: no two terms of a log have the same.
    pub epoch: Epoch,
    /// The first record that could be read when it began.
    pub first: Lsn,
    /// The last record of the recovered log, which is acknowledged.
    pub last: Lsn,
}

/// What readers find when a term begins.
pub struct TermStart {
    /// The term.
    pub term: Term,
    /// The member set.
    pub required: Vec<MemberRef>,
    /// The closed segments of the recovered log.
    pub closed: VecDeque<(SegmentIdentity, Closure)>,
    /// Where the log has been cut.
    pub cuts: Vec<Cut>,
    /// The members to fetch closed segments from: each of them holds the log.
    pub sources: Sources,
}

/// What readers look at.
#[derive(Default)]
pub struct LogView {
    inner: RwLock<Inner>,
    /// The term, once the append path has been told to lead it.
    leading: watch::Sender<Option<Term>>,
}

#[derive(Default)]
struct Inner {
    term: Option<Term>,
    closed: VecDeque<(SegmentIdentity, Closure)>,
    open: VecDeque<(SegmentIdentity, SharedBuffer)>,
    sources: Option<Arc<Sources>>,
    cuts: Vec<Cut>,
    /// The set that the config store has, and while a swap is in flight the proposed one.
    required: Vec<MemberRef>,
}

impl LogView {
    /// Begins a term. `command_to_lead` queues the append path's command to lead. Each step relies on the one before it:
    ///
    /// 1. The counters. What the append path last acknowledged may belong to a longer log whose end an administrator has given
    ///    up: a reader that finds the term would take it for this log's. The path leads nothing yet, so it writes none of them.
    /// 2. The term. Once the path leads, it hands reads over: one that found no term would end as if the role were lost.
    /// 3. The command to lead.
    /// 4. The announcement. It ends a follow whose client may append at once: its connection comes back to the path behind the
    ///    command, so the client finds a primary.
    pub fn begin(&self, start: TermStart, counters: &Counters, command_to_lead: impl FnOnce()) {
        let TermStart { term, required, closed, cuts, sources } = start;
        counters.first.store(term.first.0, Ordering::Release);
        counters.acked.store(term.last.0, Ordering::Release);
        let (term, open, sources) = (Some(term), VecDeque::new(), Some(Arc::new(sources)));
        self.change(|inner| *inner = Inner { term, closed, open, sources, cuts, required });
        command_to_lead();
        self.leading.send_replace(term);
    }

    /// A swap to this set is about to be sent: until its outcome is known, a successor may take over from either set.
    pub fn propose(&self, set: &[MemberRef]) {
        self.change(|inner| {
            let joins = |member: &&MemberRef| !inner.required.contains(member);
            let joining: Vec<MemberRef> = set.iter().filter(joins).cloned().collect();
            inner.required.extend(joining);
        });
    }

    /// The config store has this set.
    pub fn settle(&self, set: Vec<MemberRef>) {
        self.change(|inner| inner.required = set);
    }

    /// The members of which a successor fences some before it leads; `None` if this term is over.
    pub fn required(&self, term: Term) -> Option<Vec<MemberRef>> {
        self.look(|inner| (inner.term == Some(term)).then(|| inner.required.clone()))
    }

    /// Where the log of the present term has been cut.
    pub fn cuts(&self) -> Vec<Cut> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).cuts.clone()
    }

    /// This sidecar is no longer primary.
    pub fn end(&self) {
        self.change(|inner| *inner = Inner::default());
        self.leading.send_replace(None);
    }

    /// The present term, if this sidecar leads.
    pub fn term(&self) -> Option<Term> {
        self.look(|inner| inner.term)
    }

    /// True while this is the present term.
    pub fn lasts(&self, term: Term) -> bool {
        self.term() == Some(term)
    }

    /// The present term for those who may append once they have read everything: each change is seen.
    pub fn leading(&self) -> watch::Receiver<Option<Term>> {
        self.leading.subscribe()
    }

    /// Closed segments are fetched from these members from now on.
    pub fn set_sources(&self, sources: Sources) {
        self.change(|inner| inner.sources = Some(Arc::new(sources)));
    }

    /// The members.
    pub fn sources(&self) -> Option<Arc<Sources>> {
        self.look(|inner| inner.sources.clone())
    }

    /// A segment is about to be opened.
    pub fn opened(&self, identity: SegmentIdentity, memory: SharedBuffer) {
        self.change(|inner| {
            let at = inner.open.partition_point(|(known, _)| known.segment < identity.segment);
            inner.open.insert(at, (identity, memory));
        });
    }

    /// A segment is closed at every member; its memory may go.
    pub fn closed(&self, segment: SegmentId, closure: Closure) {
        self.change(|inner| {
            let at = inner.open.iter().position(|(identity, _)| identity.segment == segment);
            if let Some((identity, _)) = at.and_then(|at| inner.open.remove(at)) {
                inner.closed.push_back((identity, closure));
            }
        });
    }

    /// Records below are no longer needed.
    pub fn trim(&self, below: Lsn) {
        self.change(|inner| {
            while inner.closed.front().is_some_and(|(_, closure)| closure.last < below) {
                inner.closed.pop_front();
            }
        });
    }

    /// Closed segments, those still in memory, and the bytes of these; for status.
    pub fn sizes(&self) -> (usize, usize, usize) {
        self.look(|inner| {
            let bytes = inner.open.iter().map(|(_, memory)| memory.capacity() as usize).sum();
            (inner.closed.len(), inner.open.len(), bytes)
        })
    }

    /// The segment that holds a record; `None` if it was trimmed, or is not there yet.
    pub fn locate(&self, lsn: Lsn) -> Option<Location> {
        self.look(|inner| {
            let at = inner.closed.partition_point(|(_, closure)| closure.last < lsn);
            if let Some((identity, closure)) = inner.closed.get(at) {
                return (closure.first <= lsn).then_some(Location::Closed(*identity, *closure));
            }
            let holds =
                |(_, memory): &&(SegmentIdentity, SharedBuffer)| first_of(memory).is_some_and(|first| first <= lsn);
            let (identity, memory) = inner.open.iter().rev().find(holds)?;
            Some(Location::Open(*identity, memory.clone()))
        })
    }

    /// A segment by its number; `None` if it was trimmed, or is not there yet.
    pub fn segment(&self, segment: SegmentId) -> Option<Location> {
        self.look(|inner| {
            let at = inner.closed.partition_point(|(identity, _)| identity.segment < segment);
            let closed = inner.closed.get(at).filter(|(identity, _)| identity.segment == segment);
            if let Some((identity, closure)) = closed {
                return Some(Location::Closed(*identity, *closure));
            }
            let (identity, memory) = inner.open.iter().find(|(identity, _)| identity.segment == segment)?;
            Some(Location::Open(*identity, memory.clone()))
        })
    }

    /// The closed segments that follow `segment`, for reading ahead.
    pub fn following(&self, segment: SegmentId, count: usize) -> Vec<(SegmentIdentity, Closure)> {
        self.look(|inner| {
            let at = inner.closed.partition_point(|(identity, _)| identity.segment <= segment);
            inner.closed.iter().skip(at).take(count).copied().collect()
        })
    }

    fn look<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner));
    }
}

/// LSN of the first record of an open segment; `None` until its header is written.
fn first_of(memory: &SharedBuffer) -> Option<Lsn> {
    let header = memory.published().first_chunk::<SEGMENT_HEADER_SIZE>()?;
    SegmentIdentity::from_header(header).map(|(_, first)| first)
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::BootId;

    use super::*;

    const TERM: Term = Term { log: LogId(1), epoch: Epoch(5), first: Lsn(1), last: Lsn(0) };

    fn members(numbers: &[u128]) -> Vec<MemberRef> {
        let member = |number: &u128| MemberRef {
            id: format!("m{number}").parse().unwrap(),
            boot: BootId(*number),
            control: String::new(),
        };
        numbers.iter().map(member).collect()
    }

    fn start(term: Term, required: Vec<MemberRef>) -> TermStart {
        TermStart { term, required, closed: VecDeque::new(), cuts: Vec::new(), sources: Sources::new([]) }
    }

    /// See [`LogView::begin`]: each order is a safety argument.
    #[test]
    fn a_term_is_found_before_the_path_leads_and_announced_after() {
        let (log, counters) = (LogView::default(), Counters::default());
        counters.acked.store(9, Ordering::Release);
        let leading = log.leading();
        let term = Term { first: Lsn(3), last: Lsn(7), ..TERM };
        let mut commanded = false;
        log.begin(start(term, members(&[1, 2])), &counters, || {
            let (first, acked) = (counters.first.load(Ordering::Acquire), counters.acked.load(Ordering::Acquire));
            assert_eq!((first, acked), (3, 7));
            assert_eq!(log.term(), Some(term));
            assert!(log.sources().is_some());
            assert_eq!(*leading.borrow(), None);
            commanded = true;
        });
        assert!(commanded);
        assert_eq!(*leading.borrow(), Some(term));
    }

    /// A refill replaces all members but one at once. The watch of the config store plays no part: it may be late.
    #[test]
    fn a_successor_may_take_over_from_either_set_while_a_swap_is_in_flight() {
        let log = LogView::default();
        assert_eq!(log.required(TERM), None);
        log.begin(start(TERM, members(&[1, 2])), &Counters::default(), || ());
        assert_eq!(log.required(TERM), Some(members(&[1, 2])));
        log.propose(&members(&[2, 3, 4]));
        log.propose(&members(&[2, 3, 4]));
        assert_eq!(log.required(TERM), Some(members(&[1, 2, 3, 4])));
        log.settle(members(&[2, 3, 4]));
        assert_eq!(log.required(TERM), Some(members(&[2, 3, 4])));
        assert_eq!(log.required(Term { epoch: Epoch(6), ..TERM }), None);
        log.end();
        assert_eq!(log.required(TERM), None);
    }
}
