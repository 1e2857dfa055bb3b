//! A log that keeps a table: requests are judged and appended, and so are the cleaner's moves.
//!
//! Part of [`PrimaryLog`]. The [index](tailwind_protocol::table::index) judges by what was appended, and shows what is
//! acknowledged; the [bounds](tailwind_protocol::table::bounds) say how long the log may be. One thread judges and appends both
//! requests and moves, so neither can pass the other. See "Tables" in `docs/protocol.md`.
//!
//! Nothing here allocates after [`PrimaryLog::keep_table`].

use std::sync::Arc;

use tailwind_protocol::ids::{Lsn, Offset, Position};
use tailwind_protocol::layout::{CHECKSUM_SIZE, MARKS_SIZE, SEGMENT_OVERHEAD};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary::Post;
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::index::{Full, Index};
use tailwind_protocol::table::moves::Candidate;
use tailwind_protocol::table::request::{Apply, Mismatch, TooLarge};
use tailwind_protocol::table::staged::Refused;

use crate::copies::{Copied, Given, copies};
use crate::fabric::Fabric;
use crate::log::PrimaryLog;
use crate::segments::Placed;

/// What a primary of a table has beside its log.
#[derive(Debug)]
pub struct Table {
    index: Index,
    bounds: Bounds,
    /// Segments that the log had when the term began.
    at_first: u32,
    /// The last request that was judged found the log as long as requests may make it.
    waits_for_trim: bool,
    /// What the copies of the last request take over.
    copied: Copied,
    /// Which lines of the index change, for its mirrors, if there are any.
    changed: Option<Arc<ChangedLines>>,
}

/// A request that was appended.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Where.
    pub placed: Placed,
    /// Bytes of log that it takes.
    pub size: usize,
}

/// Why a request was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unapplied {
    /// No room now; try again in a later turn.
    Later,
    /// A condition does not hold. To be told by [`PrimaryLog::ask_behind`]: what it was judged by may not be acknowledged yet.
    Mismatch(Mismatch),
    /// The table takes nothing more, except for deletes and smaller values.
    Full(Full),
    /// No log of this segment size can take it.
    TooLarge(TooLarge),
    /// Values that it takes over have to be fetched: [`PrimaryLog::sources`] says which. Ask again with them.
    Sources,
}

/// What has become of candidates of the cleaner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// So many of them were judged: offer the others again.
    pub judged: usize,
    /// So many of those were live, and are appended.
    pub moved: u32,
    /// Bytes of log that these take.
    pub bytes: u64,
    /// The last record of the log then, moves included.
    pub appended: Lsn,
}

impl Table {
    /// A table whose index is the fold of the recovered log.
    pub fn new(index: Index, bounds: Bounds) -> Table {
        let copied = Copied::new(&index);
        Table { index, bounds, at_first: 0, waits_for_trim: false, copied, changed: None }
    }

    /// Its index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The bounds of its log.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Requests find no room until the cleaner has trimmed. Otherwise they wait for members, as appends do.
    pub fn waits_for_trim(&self) -> bool {
        self.waits_for_trim
    }

    /// Everything up to this record is acknowledged.
    pub(crate) fn acknowledged(&mut self, last: Lsn) {
        match &self.changed {
            None => self.index.acked(last, |_| {}),
            Some(changed) => {
                // In this order: see `ChangedLines`.
                self.index.acked(last, |line| changed.set(line));
                changed.acked(last);
            }
        }
    }
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// This log keeps a table. To be called before anything is appended.
    pub fn keep_table(&mut self, mut table: Box<Table>) {
        assert!(self.active.is_none(), "nothing has been appended in this epoch");
        table.at_first = self.primary.log_segments();
        self.table = Some(table);
    }

    /// The table that it keeps, if it does.
    pub fn table(&self) -> Option<&Table> {
        self.table.as_deref()
    }

    /// From now on the lines of the index that change are noted in `changed`, which has as many lines and is at the last
    /// acknowledged record when this returns. What has changed before, a mirror that is filled from now on shows anyway.
    pub fn note_changes(&mut self, changed: Arc<ChangedLines>) {
        let table = self.table.as_mut().expect("a table is mirrored");
        changed.acked(self.acked.0);
        table.changed = Some(changed);
    }

    /// Judges a request, and appends its writes as one batch, which waits for its ack from now on. Its copies take over what is in
    /// memory, or `given`. It needs the room that [`PrimaryLog::may_append`] tells of.
    pub fn apply(&mut self, append: A, apply: &Apply<'_>, given: &Given) -> Result<Applied, Unapplied> {
        let mut table = self.table.take().expect("a request comes to a table");
        let applied = self.judge_and_place(&mut table, apply, given);
        self.table = Some(table);
        self.waits.add_append(applied?.placed, Some(append));
        applied
    }

    fn judge_and_place(&mut self, table: &mut Table, apply: &Apply<'_>, given: &Given) -> Result<Applied, Unapplied> {
        if copies(apply) {
            self.gather(&table.index, &mut table.copied, apply, given);
        }
        let (segment_size, copied) = (table.index.window().segment_size(), &table.copied);
        let size = apply.size(segment_size, |source| copied.length(source)).map_err(Unapplied::TooLarge)?;
        let staged = table.index.stage(apply, |source| copied.source(source)).map_err(|refused| match refused {
            Refused::Mismatch(mismatch) => Unapplied::Mismatch(mismatch),
            Refused::Full(full) => Unapplied::Full(full),
            Refused::Wait => Unapplied::Later,
            Refused::Source(_) => Unapplied::Sources,
        })?;
        let fits = planted::has(Bug::PutsFillReserve) && self.room().is_some_and(|room| room >= size);
        table.waits_for_trim = !fits && !table.bounds.may_put(self.segments_with(size));
        if table.waits_for_trim {
            return Err(Unapplied::Later);
        }
        let records = apply.writes().map(|write| write.record(|source| copied.value(source)));
        let placed = self.place(size, records).ok_or(Unapplied::Later)?;
        let first = Lsn(placed.last.0 + 1 - u64::from(apply.write_count()));
        staged.appended(first, begin(placed, size));
        Ok(Applied { placed, size })
    }

    /// Judges candidates of the oldest segment, in their order, and appends those that are live as one batch. No client waits for it.
    /// `None`: no room now, and nothing is judged; offer them again in a later turn.
    pub fn move_live<'c>(&mut self, candidates: impl Iterator<Item = Candidate<'c>> + Clone) -> Option<Moved> {
        if !self.may_append() {
            return None;
        }
        let mut table = self.table.take().expect("a table is cleaned");
        let moved = self.judge_and_move(&mut table, candidates);
        self.table = Some(table);
        moved
    }

    fn judge_and_move<'c>(
        &mut self,
        table: &mut Table,
        candidates: impl Iterator<Item = Candidate<'c>> + Clone,
    ) -> Option<Moved> {
        let size = table.index.window().segment_size().bytes() as usize;
        let whole = size - SEGMENT_OVERHEAD - MARKS_SIZE;
        let room = self.room().unwrap_or(whole).saturating_sub(CHECKSUM_SIZE);
        let mut staged = table.index.stage_moves(candidates.clone(), room);
        if staged.judged() == 0 && candidates.clone().next().is_some() {
            drop(staged);
            staged = table.index.stage_moves(candidates.clone(), whole - CHECKSUM_SIZE);
            if staged.judged() == 0 {
                // As many changes wait for their acks as may.
                return None;
            }
        }
        let (judged, moved) = (staged.judged(), staged.moved() as u32);
        let size = if moved > 0 { staged.size() + CHECKSUM_SIZE } else { 0 };
        if moved > 0 {
            if !table.bounds.may_move(self.segments_with(size), table.at_first) {
                return None;
            }
            let placed = self.place(size, staged.records(candidates))?;
            staged.appended(Lsn(placed.last.0 + 1 - u64::from(moved)), begin(placed, size));
            self.waits.add_append(placed, None);
        }
        Some(Moved { judged, moved, bytes: size as u64, appended: self.last_appended() })
    }

    /// Everything that has been appended is to be on disk at every member; [`PrimaryLog::settled`] tells.
    pub fn sync_table(&mut self) {
        if !planted::has(Bug::TrimBeforeSynced) {
            self.sync_appended();
        }
    }

    /// Up to this record, a trim may rest on what has replaced the records that it takes: all is acknowledged, and on disk at every
    /// member.
    pub fn settled(&self) -> Lsn {
        if planted::has(Bug::TrimBeforeSynced) { self.acked.0 } else { self.primary.synced() }
    }

    /// A question that is answered once it is proved that this was primary after it came, and everything is acknowledged that was
    /// appended before it. It needs the room that [`PrimaryLog::may_ask_behind`] tells of.
    ///
    /// So a mismatch is told. What it was judged by is in every later log then; and while it was judged no later primary had
    /// begun, which might have changed the key.
    pub fn ask_behind(&mut self, question: Q) {
        let unproved = planted::has(Bug::MismatchWithoutBarrier);
        let barrier = if unproved { Post::default() } else { self.primary.barrier() };
        let appended = self.waits.last_append().filter(|_| !planted::has(Bug::MismatchTellsUnacked));
        let (_, end) = appended.unwrap_or(self.acked);
        self.waits.add_behind(end, barrier, question);
    }

    /// Segments of the log, if this many bytes are appended.
    fn segments_with(&self, size: usize) -> u32 {
        self.primary.log_segments() + u32::from(self.room().is_some_and(|room| room < size))
    }
}

/// Where an append of this size begins.
fn begin(placed: Placed, size: usize) -> Position {
    Position::new(placed.end.segment, Offset(placed.end.offset.0 - size as u32))
}
