//! What control does with a table's log while this sidecar leads. Its cleaner's candidates are judged and moved, and what is
//! cleaned is trimmed; its mirrors hear of changes.
//!
//! Part of [`AppendLoop`], called for commands of [`control`](crate::control) and in each turn. One batch is judged in a turn, so
//! requests wait for no more than that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tailwind_primary::Moved;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Epoch, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::RECORD_HEADER_SIZE;
use tailwind_protocol::scan::Record;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::moves::Candidate;
use tokio::sync::oneshot;

use super::AppendLoop;
use super::leading::Leading;
use super::messages::Counters;
use super::role::RoleState;
use crate::mirror::Bell;

/// A record of a cleaned segment that may be live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Where it begins in the segment.
    pub at: Offset,
    /// Its LSN.
    pub lsn: Lsn,
    /// Bytes of its payload.
    pub length: u32,
}

/// Candidates for moves, from one segment.
#[derive(Clone, Debug)]
pub struct MoveBatch {
    /// The segment.
    pub segment: SegmentId,
    /// Its bytes, which have been verified.
    pub bytes: Bytes,
    /// The candidates, in their order.
    pub offered: Vec<Offered>,
}

impl MoveBatch {
    fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> + Clone {
        self.offered.iter().map(|Offered { at, lsn, length }| {
            let payload = &self.bytes[at.0 as usize + RECORD_HEADER_SIZE..][..*length as usize];
            let record = Record { lsn: *lsn, payload };
            Candidate::of(Position::new(self.segment, *at), record).expect("control offers candidates only")
        })
    }
}

/// A batch that waits for its turn, or for room.
#[derive(Debug)]
pub(super) struct OfferedBatch {
    batch: MoveBatch,
    reply: oneshot::Sender<Moved>,
    /// There was no room: tried again at the next tick. Each try judges all of it.
    refused: bool,
}

impl AppendLoop {
    /// Judges this batch in the next turn that has room, and replies then; not at all if the term is over.
    pub(super) fn on_move(&mut self, epoch: Epoch, batch: MoveBatch, reply: oneshot::Sender<Moved>) {
        if let Some(leading) = self.leading_in(epoch) {
            assert!(leading.offered.is_none(), "a cleaner has one batch on its way");
            leading.offered = Some(OfferedBatch { batch, reply, refused: false });
        }
    }

    /// What has been appended is to be on disk at every member, so that the cleaner can trim.
    pub(super) fn sync_table(&mut self, epoch: Epoch) {
        if let Some(leading) = self.leading_in(epoch) {
            leading.log.sync_table();
        }
    }

    /// The log of a table is to begin with this record: everything before it has been cleaned, and is acknowledged.
    pub(super) fn trim_table(&mut self, epoch: Epoch, below: Lsn, now: Time) {
        let counters = Arc::clone(&self.counters);
        let Some(leading) = self.leading_in(epoch) else { return };
        let before = leading.log.primary().log_segments();
        leading.trim(below, now, &counters).expect("what is cleaned is acknowledged");
        let trimmed = before - leading.log.primary().log_segments();
        counters.cleaned_segments.fetch_add(trimmed.into(), Ordering::Relaxed);
    }

    /// The index has mirrors from now on, which are to hear of what changes in it.
    pub(super) fn note_changes(
        &mut self,
        epoch: Epoch,
        changed: Arc<ChangedLines>,
        bell: Arc<Bell>,
        reply: oneshot::Sender<()>,
    ) {
        if let Some(leading) = self.leading_in(epoch) {
            leading.log.note_changes(changed);
            leading.mirrors = Some(bell);
            // Control has gone with its term.
            let _ = reply.send(());
        }
    }

    fn leading_in(&mut self, epoch: Epoch) -> Option<&mut Leading> {
        match &mut self.state {
            RoleState::Leading(leading) if leading.log.primary().config().epoch == epoch => Some(leading),
            _ => None,
        }
    }
}

impl Leading {
    /// Judges the batch that waits, if there is room. Returns true if it has been judged.
    pub(super) fn judge_offered(&mut self, ticks: bool, counters: &Counters) -> bool {
        let Some(offered) = self.offered.as_mut().filter(|offered| ticks || !offered.refused) else { return false };
        let Some(moved) = self.log.move_live(offered.batch.candidates()) else {
            offered.refused = true;
            return false;
        };
        counters.moved_bytes.fetch_add(moved.bytes, Ordering::Relaxed);
        if let Some(OfferedBatch { reply, .. }) = self.offered.take() {
            // Control has gone with its term.
            let _ = reply.send(moved);
        }
        true
    }

    /// Tells the cleaner how far the table is.
    pub(super) fn publish_table(&self, counters: &Counters) {
        if let Some(table) = self.log.table() {
            counters.settled.store(self.log.settled().0, Ordering::Release);
            counters.live_bytes.store(table.index().live_bytes(), Ordering::Relaxed);
        }
    }
}
