//! Fetches closed segments side by side, ahead of the one that is being sent, and makes frames of their records.
//!
//! Used by [`own`](super::own) and [`follow`](super::follow) for one client. Memory: the records of [`AHEAD`] + 1 segments; of a
//! segment twice where a backup goes on that had been silent for so long that another one was asked.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan::{PiecewiseScanner, Record};
use tailwind_protocol::socket::RecordsFrames;

use crate::control::Context;
use crate::control::sources::{Fetch, Intake, Sources};

/// Closed segments fetched ahead of the one being sent, from different members.
pub(super) const AHEAD: usize = 2;

/// Some records of a closed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The segment.
    pub(super) identity: SegmentIdentity,
    /// Where it ends.
    pub(super) closure: Closure,
    /// The records.
    pub(super) records: Range<Lsn>,
}

impl Part {
    /// Those records of a segment that lie in `wanted`; `None` if there are none.
    pub(super) fn new(identity: SegmentIdentity, closure: Closure, wanted: &Range<Lsn>) -> Option<Part> {
        let records = wanted.start.max(closure.first)..wanted.end.min(closure.last.next());
        (!records.is_empty()).then_some(Part { identity, closure, records })
    }
}

/// The fetches of one client.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    fetches: VecDeque<(Part, Fetch<RecordsFrames>)>,
    recycled: Recycled,
    /// Bytes that have come.
    received: Arc<AtomicU64>,
}

impl ReadAhead {
    /// Begins to fetch the first of these parts, and up to [`AHEAD`] after it, unless they are on their way. Whatever else is on its
    /// way is given up. The fetch of the first, as frames that answer `request`.
    pub(super) fn fetch(
        &mut self,
        context: &Arc<Context>,
        sources: &Arc<Sources>,
        request: u64,
        first: Part,
        then: impl Iterator<Item = Part>,
    ) -> Fetch<RecordsFrames> {
        let then: Vec<Part> = then.take(AHEAD).collect();
        self.fetches.retain(|(part, _)| *part == first || then.contains(part));
        let begin = |part: &Part| begin(context, sources, &self.recycled, &self.received, request, part.clone());
        let at = self.fetches.iter().position(|(part, _)| *part == first);
        let fetch = match at.and_then(|at| self.fetches.remove(at)) {
            Some((_, fetch)) => fetch,
            None => begin(&first),
        };
        for part in then {
            if !self.fetches.iter().any(|(known, _)| *known == part) {
                let fetch = begin(&part);
                self.fetches.push_back((part, fetch));
            }
        }
        fetch
    }

    /// Empty frames that answer `request`.
    pub(super) fn frames(&self, request: u64) -> RecordsFrames {
        self.recycled.take(request)
    }

    /// Bytes that have come so far, whether they were sound or not.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// These frames have been sent.
    pub(super) fn keep(&self, frames: RecordsFrames) {
        self.recycled.keep(frames);
    }
}

fn begin(
    context: &Arc<Context>,
    sources: &Arc<Sources>,
    recycled: &Recycled,
    received: &Arc<AtomicU64>,
    request: u64,
    part: Part,
) -> Fetch<RecordsFrames> {
    let (context, sources) = (Arc::clone(context), Arc::clone(sources));
    let (recycled, received) = (recycled.clone(), Arc::clone(received));
    Fetch::begin(async move {
        let (identity, closure) = (part.identity, part.closure);
        let packer = || {
            let (frames, received) = (recycled.take(request), Arc::clone(&received));
            Packer::new(identity, closure, part.records.clone(), frames, received)
        };
        sources.fetch_into(&context, identity, closure, packer).await
    })
}

/// Frames that have been sent: their memory is filled again.
#[derive(Clone, Debug, Default)]
struct Recycled(Arc<Mutex<Vec<RecordsFrames>>>);

impl Recycled {
    fn take(&self, request: u64) -> RecordsFrames {
        self.lock().pop().unwrap_or_else(|| RecordsFrames::new(request))
    }

    fn keep(&self, mut frames: RecordsFrames) {
        frames.clear();
        self.lock().push(frames);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordsFrames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes frames of the wanted records of a closed segment.
struct Packer {
    scanner: PiecewiseScanner,
    closure: Closure,
    wanted: Range<Lsn>,
    frames: RecordsFrames,
    /// Counts the bytes.
    received: Arc<AtomicU64>,
}

impl Packer {
    fn new(
        identity: SegmentIdentity,
        closure: Closure,
        wanted: Range<Lsn>,
        frames: RecordsFrames,
        received: Arc<AtomicU64>,
    ) -> Packer {
        Packer { scanner: PiecewiseScanner::new(identity), closure, wanted, frames, received }
    }
}

impl Intake for Packer {
    type Taken = RecordsFrames;

    fn take(&mut self, piece: &[u8]) {
        let Packer { scanner, wanted, frames, received, .. } = self;
        received.fetch_add(piece.len() as u64, Ordering::Relaxed);
        scanner.push(piece, |record| put(record, wanted, frames));
    }

    fn finish(mut self) -> Option<RecordsFrames> {
        let closure = self.scanner.finish(|record| put(record, &self.wanted, &mut self.frames));
        (closure == self.closure).then_some(self.frames)
    }
}

/// Adds a record, if it is wanted.
pub(super) fn put(record: Record<'_>, wanted: &Range<Lsn>, frames: &mut RecordsFrames) {
    if wanted.contains(&record.lsn) {
        frames.put(record.lsn.0, record.payload);
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::{Epoch, Generation, LogId, SegmentId};
    use tailwind_protocol::layout::SegmentSize;

    use super::*;

    /// No record is whole before a large segment has come far, or all of it.
    #[test]
    fn bytes_are_counted_as_they_come() {
        let (log, segment, epoch, generation) = (LogId(1), SegmentId(1), Epoch(1), Generation(1));
        let identity = SegmentIdentity { log, segment, epoch, generation, size: SegmentSize::MIN };
        let ahead = ReadAhead::default();
        let (frames, received) = (ahead.frames(7), Arc::clone(&ahead.received));
        let mut packer = Packer::new(identity, Closure::default(), Lsn(1)..Lsn(9), frames, received);
        for piece in 1..=3 {
            packer.take(&[0; 1000]);
            assert_eq!(ahead.received(), 1000 * piece);
        }
    }
}
