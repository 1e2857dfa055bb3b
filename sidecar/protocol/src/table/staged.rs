//! From a request, or a batch of moves, to a change of the index: in two steps, with the append between them.
//!
//! Part of [`Index`]. Called by the append path: what is *staged* is judged and has its entries. The caller appends the batch, and
//! tells where; or it does not, because there is no room, and then what was reserved is given back as soon as the stage is
//! dropped. Nothing else can happen to the index in between: the stage borrows it.

use crate::ids::{Lsn, Offset, Position};
use crate::layout::record_size;
use crate::planted::{self, Bug};

use super::acked::EntryId;
use super::index::{CHANGES_MAX, Full, Index, NoEntry};
use super::moves::{Candidate, MOVES_MAX};
use super::place::Place;
use super::record::{Key, KeyedRecord, Revision};
use super::request::{Apply, Mismatch, OPERATIONS_MAX, Written};

/// Most records of a batch.
pub(super) const STAGED_MAX: usize = if MOVES_MAX > OPERATIONS_MAX { MOVES_MAX } else { OPERATIONS_MAX };

/// What a key has after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct To {
    pub(super) revision: Revision,
    pub(super) place: Place,
    /// Bytes of the record's payload.
    pub(super) length: u32,
}

impl To {
    pub(super) fn size_in_log(&self) -> u64 {
        record_size(self.length as usize) as u64
    }
}

/// A change of one entry, by one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) lsn: Lsn,
    pub(super) entry: EntryId,
    /// `None`: the key is absent.
    pub(super) to: Option<To>,
}

/// A record to be appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    /// Of its key; `None`: a delete of a key that is absent changes nothing.
    entry: Option<EntryId>,
    /// Bytes of its payload.
    length: u32,
    kind: Kind,
    /// Of a move: which candidate it is.
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Put,
    Delete,
    Move(Revision),
}

/// What a copy takes over, as the caller has it at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The revision of which it is the value.
    pub revision: Revision,
    /// Bytes of the value.
    pub length: u32,
}

/// Why a request is not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A condition does not hold. Told once what was judged is acknowledged: see "Tables" in `docs/protocol.md`.
    Mismatch(Mismatch),
    /// The table takes nothing more, but for deletes and smaller values.
    Full(Full),
    /// Try again after the next acknowledgement: too many changes wait for theirs, or the entries of deleted keys do.
    Wait,
    /// Try again with the present value of the source of this copy.
    Source(u16),
}

/// Records that are about to be appended as one batch.
#[derive(Debug)]
pub struct Staged<'i> {
    index: &'i mut Index,
}

/// Live records that are about to be moved as one batch.
#[derive(Debug)]
pub struct StagedMoves<'i> {
    staged: Staged<'i>,
    /// Candidates that were judged.
    judged: usize,
    /// Bytes of their append, without its checksum entry.
    size: usize,
}

impl Index {
    /// Judges a request and takes entries for its new keys. `source` has what the copies of the request take over, as far as the
    /// caller has it.
    pub fn stage(
        &mut self,
        apply: &Apply<'_>,
        source: impl Fn(Key<'_>) -> Option<Source>,
    ) -> Result<Staged<'_>, Refused> {
        if self.changes.len() + usize::from(apply.write_count()) > CHANGES_MAX {
            return Err(Refused::Wait);
        }
        apply.judge(self).map_err(Refused::Mismatch)?;
        let staged = Staged::begin(self);
        staged.index.plan(apply, source)?;
        Ok(staged)
    }

    /// Plans each write. What is reserved when it fails is given back by the stage.
    fn plan(&mut self, apply: &Apply<'_>, source: impl Fn(Key<'_>) -> Option<Source>) -> Result<(), Refused> {
        let (mut keys, mut live) = (i64::from(self.keys()), self.live_bytes() as i64);
        for write in apply.writes() {
            if let Written::CopyOf(from) = write.written {
                let known = source(from).map(|source| source.revision);
                if known.is_none() || known != self.latest(from).map(|latest| latest.revision) {
                    return Err(Refused::Source(write.operation));
                }
            }
            let length = write.payload_size(|from| source(from).map_or(0, |source| source.length as usize));
            let deletes = write.written == Written::Nothing;
            let hash = self.hash(write.key);
            let entry = match self.find(hash) {
                Some(entry) => Some(entry),
                None if deletes => None,
                None => Some(self.reserve(hash).map_err(|none| match none {
                    NoEntry::ForNow => Refused::Wait,
                    NoEntry::AtAll => Refused::Full(Full::Buckets),
                })?),
            };
            let (revision, size) = entry.map_or((None, 0), |entry| self.now(entry));
            keys += i64::from(!deletes) - i64::from(revision.is_some());
            live += if deletes { 0 } else { record_size(length) as i64 } - size as i64;
            let kind = if deletes { Kind::Delete } else { Kind::Put };
            self.staged.push(Planned { entry, length: length as u32, kind, number: 0 });
        }
        // At a bound, what does not add is taken: otherwise a full table could not be emptied.
        if keys > i64::from(self.limits.keys_max.max(self.keys())) {
            return Err(Refused::Full(Full::Keys));
        }
        if live > self.limits.live_bytes_max.max(self.live_bytes()) as i64 {
            return Err(Refused::Full(Full::Memory));
        }
        Ok(())
    }

    /// Judges which of the cleaner's candidates are live: those whose place is their key's last one. Takes as many, in their order,
    /// as fit `room` bytes of one segment, behind which the checksum entry has room too. Those that are not live are judged on the
    /// way and stay where they are.
    ///
    /// Moves and puts cannot pass each other: one thread judges and appends both, in one order.
    pub fn stage_moves<'c>(&mut self, candidates: impl Iterator<Item = Candidate<'c>>, room: usize) -> StagedMoves<'_> {
        let staged = Staged::begin(self);
        let (mut judged, mut size) = (0, 0);
        for (number, candidate) in candidates.enumerate() {
            let index = &mut *staged.index;
            if let Some((entry, revision)) = index.live(&candidate) {
                let length = candidate.payload_size();
                let queued = index.changes.len() + index.staged.len();
                if size + record_size(length) > room || index.staged.len() == MOVES_MAX || queued == CHANGES_MAX {
                    break;
                }
                size += record_size(length);
                let (length, number) = (length as u32, number as u32);
                index.staged.push(Planned { entry: Some(entry), length, kind: Kind::Move(revision), number });
            }
            judged = number + 1;
        }
        StagedMoves { staged, judged, size }
    }

    /// The entry and revision of a record's key, if it is its key's last one.
    fn live(&self, candidate: &Candidate<'_>) -> Option<(EntryId, Revision)> {
        let entry = self.find(self.hash(candidate.key))?;
        let revision = self.now(entry).0?;
        let place = self.window().place(candidate.at)?;
        (self.is_latest(entry, place) || planted::has(Bug::MoveWithoutRecheck)).then_some((entry, revision))
    }
}

impl<'i> Staged<'i> {
    fn begin(index: &'i mut Index) -> Staged<'i> {
        index.staged.clear();
        Staged { index }
    }

    /// Bytes that the batch takes in the log, its checksum entry included.
    pub fn append_size(&self) -> usize {
        crate::segment::append_size(self.index.staged.iter().map(|planned| planned.length as usize))
    }

    /// The batch was appended: its first record has this LSN and begins here.
    pub fn appended(self, first: Lsn, at: Position) {
        let (mut lsn, mut at) = (first, at);
        // What is taken out is not given back when this stage is dropped.
        let staged = std::mem::take(&mut self.index.staged);
        for planned in &staged {
            let put = |revision| {
                let revision = revision?;
                Some(To { revision, place: self.index.place(at), length: planned.length })
            };
            let to = match planned.kind {
                Kind::Put => put(Revision::of(lsn)),
                Kind::Move(_) if planted::has(Bug::MoveRenewsRevision) => put(Revision::of(lsn)),
                Kind::Move(revision) => put(Some(revision)),
                Kind::Delete => None,
            };
            if let Some(entry) = planned.entry {
                self.index.append(Change { lsn, entry, to });
            }
            lsn = lsn.next();
            at.offset = Offset(at.offset.0 + record_size(planned.length as usize) as u32);
        }
        self.index.staged = staged;
        self.index.staged.clear();
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        while let Some(planned) = self.index.staged.pop() {
            if let Some(entry) = planned.entry {
                self.index.release(entry);
            }
        }
    }
}

impl StagedMoves<'_> {
    /// So many of the candidates were judged. There was no room for the next one: offer the rest again.
    pub fn judged(&self) -> usize {
        self.judged
    }

    /// How many are moved. 0: there is nothing to append.
    pub fn moved(&self) -> usize {
        self.staged.index.staged.len()
    }

    /// Bytes of their records in the log, without the checksum entry of their append.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Their records, given the same candidates again.
    pub fn records<'c>(
        &self,
        candidates: impl Iterator<Item = Candidate<'c>>,
    ) -> impl Iterator<Item = KeyedRecord<'c>> {
        let mut planned = self.staged.index.staged.iter().peekable();
        candidates.enumerate().filter_map(move |(number, Candidate { key, value, .. })| {
            let planned = planned.next_if(|planned| planned.number as usize == number)?;
            match planned.kind {
                Kind::Move(revision) if !planted::has(Bug::MoveRenewsRevision) => {
                    Some(KeyedRecord::Move { key, value, revision })
                }
                _ => Some(KeyedRecord::Put { key, value, more: false }),
            }
        })
    }

    /// As [`Staged::appended`]. Only if something is moved.
    pub fn appended(self, first: Lsn, at: Position) {
        self.staged.appended(first, at);
    }
}
