//! One segment's copy at a backup: where its bytes are, and its stage.
//!
//! Held by [`Backup`](super::Backup); its [`SlotRow`] survives a restart of the process.

use serde::{Deserialize, Serialize};

use crate::config::Durability;
use crate::ids::{Epoch, Offset};
use crate::layout::{Closure, SegmentIdentity};
use crate::rpc::{CopyReport, CopyState, Purpose};
use crate::scan::Tail;

/// A buffer of the backup's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u32);

/// Where a copy's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In a buffer.
    Memory(Slot),
    /// In a file named after the segment.
    Disk,
    /// In a file, and in a buffer that is a cache of it: what fetches are told of a resident. Its copy's place is `Disk`.
    Both(Slot),
}

/// The stages of a copy: `Lent` → `Closed`, or `Lent` → `Recovered` → `Closed` if its epoch was fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A writer may write to it; the closure is unknown.
    Lent,
    /// Its writer is fenced; the closure is what the scan found.
    Recovered,
    /// Whole.
    Closed,
    /// Was whole, but its bytes are missing or no longer match.
    Corrupt,
}

/// What a slot is used for. Survives a restart of the process, beside the memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotRow {
    /// The segment in it.
    pub identity: SegmentIdentity,
    /// What it was lent for.
    pub purpose: Purpose,
    /// The epoch it was lent to; 0 for a resident, which is nobody's.
    pub lender: Epoch,
    /// Where it ends, once closed.
    pub closed: Option<Closure>,
}

impl SlotRow {
    /// For a slot that is being moved into quarantine, where its bytes end. Such a row has purpose `Install` and is closed; no
    /// other row is, because a closed image becomes an ordinary copy.
    pub(super) fn leaving(&self) -> Option<Closure> {
        self.closed.filter(|_| self.purpose == Purpose::Install)
    }
}

/// One segment's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    /// The segment.
    pub identity: SegmentIdentity,
    /// Where its bytes are.
    pub place: Place,
    /// Its stage.
    pub stage: Stage,
    /// Where its valid bytes end, unless it is lent.
    pub closure: Closure,
    /// For an open copy: everything before was acknowledged; see [`Tail`].
    pub acked: Offset,
    /// For an open copy: everything before was on this backup's disk.
    pub(super) flushed: Offset,
    pub(super) purpose: Purpose,
    pub(super) lender: Epoch,
    /// For an image that is being written: ticks since its buffer was lent.
    pub(super) ticks: u32,
    /// A flush is under way.
    pub(super) flushing: bool,
    /// The ledger records that this backup owes it.
    pub(super) owed: bool,
    /// This process has recorded that the copy has a file, though it is open.
    pub(super) has_file: bool,
}

impl Copy {
    pub(super) fn lent(slot: Slot, row: &SlotRow) -> Copy {
        Copy {
            identity: row.identity,
            place: Place::Memory(slot),
            stage: Stage::Lent,
            closure: Closure::default(),
            acked: Offset(0),
            flushed: Offset(0),
            purpose: row.purpose,
            lender: row.lender,
            ticks: 0,
            flushing: false,
            owed: false,
            has_file: false,
        }
    }

    pub(super) fn closed_in(slot: Slot, row: &SlotRow, closure: Closure) -> Copy {
        Copy { stage: Stage::Closed, closure, flushing: true, ..Copy::lent(slot, row) }
    }

    pub(super) fn on_disk(identity: SegmentIdentity, closure: Closure) -> Copy {
        Copy {
            identity,
            place: Place::Disk,
            stage: Stage::Closed,
            closure,
            acked: Offset(0),
            flushed: Offset(0),
            purpose: Purpose::Append,
            lender: identity.epoch,
            ticks: 0,
            flushing: false,
            owed: true,
            has_file: true,
        }
    }

    /// A closed copy that is owed and missing.
    pub(super) fn lost(identity: SegmentIdentity, closure: Closure) -> Copy {
        Copy { stage: Stage::Corrupt, ..Copy::on_disk(identity, closure) }
    }

    /// True if its end was fixed, even if its bytes have been lost or damaged since.
    pub(super) fn was_closed(&self) -> bool {
        matches!(self.stage, Stage::Closed | Stage::Corrupt)
    }

    /// True if a scan found that it ends before what was acknowledged or flushed.
    pub(super) fn is_damaged(&self) -> bool {
        self.stage == Stage::Recovered && self.tail().is_damaged()
    }

    /// Of an open copy: where it ends, and where it must at least end.
    pub(super) fn tail(&self) -> Tail {
        Tail { closure: self.closure, acked: self.acked.max(self.flushed) }
    }

    /// True if dropping this copy, or replacing it by `image`, may remove records that are held nowhere else. A longer image
    /// should contain all bytes of a whole copy, but nothing verifies that, so both are kept.
    pub(super) fn holds_more_than(&self, image: Option<(&SegmentIdentity, &Closure)>) -> bool {
        let same = |(identity, closure): (&SegmentIdentity, &Closure)| {
            let whole = self.stage == Stage::Closed;
            self.identity == *identity && (self.closure == *closure || !whole && self.closure.last <= closure.last)
        };
        self.closure.records() > 0 && !image.is_some_and(same)
    }

    /// Its buffer, while it is not on disk.
    pub(super) fn slot(&self) -> Option<Slot> {
        match self.place {
            Place::Memory(slot) => Some(slot),
            Place::Disk | Place::Both(_) => None,
        }
    }

    /// The row that lets a restart find this lending.
    pub(super) fn row(&self) -> SlotRow {
        SlotRow { identity: self.identity, purpose: self.purpose, lender: self.lender, closed: None }
    }

    /// The same for a closed copy.
    pub(super) fn row_closed(&self) -> SlotRow {
        SlotRow { closed: Some(self.closure), ..self.row() }
    }

    /// True when this is the lending that `row` describes.
    pub(super) fn is_lending(&self, row: &SlotRow) -> bool {
        self.stage == Stage::Lent
            && (self.identity, self.purpose, self.lender) == (row.identity, row.purpose, row.lender)
    }

    /// Its entry in the inventory. Under durability `Flushed` a copy counts as closed once it is on disk.
    pub(super) fn report(&self, durability: Durability) -> CopyReport {
        let memory_only = durability == Durability::Flushed && self.slot().is_some();
        let state = match self.stage {
            Stage::Recovered if self.is_damaged() => CopyState::Damaged,
            Stage::Lent | Stage::Recovered => CopyState::Open,
            Stage::Closed if memory_only => CopyState::Open,
            Stage::Closed => CopyState::Closed,
            Stage::Corrupt => CopyState::Corrupt,
        };
        CopyReport { identity: self.identity, state, closure: self.closure, acked: self.acked }
    }
}
