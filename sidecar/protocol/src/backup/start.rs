//! Start: compares what is present with what is owed.
//!
//! Part of [`Backup`]. The daemon lists what its folders hold, without judging it. Anything missing, unsound, foreign or newer
//! than the promise makes this backup *damaged*, never shorter (S12). See "Evidence" in `docs/protocol.md`.

use std::collections::BTreeMap;

use crate::config::Durability;
use crate::ids::{BootId, Epoch, GroupName, MemberId, Offset, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::Purpose;

use super::folder::{OtherFiles, file_bytes};
use super::{Backup, Copy, Limits, Output, Promise, Slot, SlotRow, Stage};

/// What a process finds when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Found {
    /// The promise on disk.
    pub promise: Promise,
    /// Slots in use, from memory that survived or from files of open segments loaded into slots.
    pub rows: Vec<(Slot, SlotRow)>,
    /// Slots of residents whose memory survived. They prove nothing.
    pub residents: Vec<(Slot, SlotRow)>,
    /// Slots in use whose memory is lost.
    pub missing: Vec<(Slot, SlotRow)>,
    /// Slots whose rows cannot be read; what was in them is in `doubts`. If there are fewer slots now, they may be beyond those.
    pub unreadable: Vec<Slot>,
    /// Closed segments on disk whose header and footer are sound.
    pub files: Vec<(SegmentIdentity, Closure)>,
    /// Closed segments that this backup owes, by its ledger.
    pub owed: Vec<(SegmentIdentity, Closure)>,
    /// How far open segments have been flushed or acknowledged at least, by the notes and the ledger; 0 if one was open and
    /// nothing of it was.
    pub flushed: Vec<(SegmentIdentity, Offset)>,
    /// Open segments whose files are not understood. They are still in their place.
    pub not_understood: Vec<SegmentId>,
    /// Bytes of the files that are no segments of the log; see [`Input::OtherFiles`](super::Input::OtherFiles).
    pub other_bytes: u64,
    /// Damage that does not show which records it hit, such as an unreadable ledger entry.
    pub doubts: Vec<String>,
    /// The disk alone holds everything that this backup has acknowledged: under `Flushed`, or when it ended in good order and
    /// nothing was lent since.
    pub disk_suffices: bool,
}

impl Backup {
    /// Starts a backup from what its memory and disk hold. A restarted backup counts as fenced: everything that was lent is
    /// revoked (a new receiver of the fabric is a barrier) and scanned. Carry out the returned outputs before any input.
    pub fn start(
        group: GroupName,
        member: MemberId,
        boot: BootId,
        limits: Limits,
        found: Found,
    ) -> (Backup, Vec<Output>) {
        let Found { promise, rows, missing, unreadable, files, owed, mut flushed, not_understood, .. } = found;
        let Found { residents, other_bytes, doubts, disk_suffices, .. } = found;
        let mut backup = Backup {
            group,
            member,
            boot,
            limits,
            promise,
            copies: BTreeMap::new(),
            residents: BTreeMap::new(),
            installs: BTreeMap::new(),
            fence: None,
            fenced: false,
            closing: None,
            unflushed: BTreeMap::new(),
            syncs: BTreeMap::new(),
            leaving: BTreeMap::new(),
            replaced: BTreeMap::new(),
            missing: None,
            gone: Vec::new(),
            other_files: OtherFiles::new(other_bytes),
            deleting: BTreeMap::new(),
            undeleted: BTreeMap::new(),
            trimming: None,
            ending: false,
            finished: false,
        };
        let mut out = Vec::new();
        let mut doubts = doubts;
        let here = owed.iter().map(|(identity, _)| identity).chain(files.iter().map(|(identity, _)| identity));
        let here = here.chain(rows.iter().chain(&missing).map(|(_, row)| &row.identity));
        backup.doubt_the_promise(here, &mut doubts);
        for (identity, closure) in owed.into_iter().filter(|_| !planted::has(Bug::OwedFileIgnored)) {
            backup.copies.insert(identity.segment, Copy::lost(identity, closure));
        }
        let trimmed = backup.take_files(files, &mut out);
        let (leaving, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, row)| row.leaving().is_some());
        // Nothing of them is owed any more: that was recorded before their rows were.
        flushed.retain(|(identity, _)| !leaving.iter().any(|(_, row)| row.identity == *identity));
        let left: Vec<SegmentId> = leaving.iter().map(|(_, row)| row.identity.segment).collect();
        for (slot, row) in leaving {
            backup.take_out(slot, row.identity, row.leaving().unwrap_or_default(), &mut out);
        }
        let (rows, needless) = newest_of_each_segment(rows);
        for (slot, row) in needless {
            backup.on_needless(slot, &row, &mut out);
        }
        for (slot, row) in rows {
            backup.on_found(slot, row, &mut out);
        }
        // The process died before it had seen to their files.
        let left = left.into_iter().filter(|segment| !backup.copies.contains_key(segment));
        out.extend(left.map(Output::Quarantine));
        let mut doubted = unreadable;
        for (slot, row) in missing.into_iter().filter(|_| !planted::has(Bug::LostBufferIsFree)) {
            doubted.extend(backup.on_missing(slot, &row, disk_suffices, &mut doubts, &mut out));
        }
        // One of their rows raises the doubt again: a promise that is restored from an older copy would not contain it. The
        // others' buffers are free: without them there may be none for the images that repair this backup.
        let mut doubted = doubted.into_iter();
        backup.missing = doubted.next();
        out.extend(doubted.map(|slot| Output::SaveSlot(slot, None)));
        flushed.retain(|(identity, end)| *end > Offset(0) && !trimmed.contains(&identity.segment));
        backup.compare_flushed(&flushed, &mut doubts);
        backup.move_aside(&not_understood, &mut doubts, &mut out);
        backup.take_residents(residents, &mut out);
        backup.doubt(&doubts, &mut out);
        backup.note_quarantined(&out);
        (backup, out)
    }

    /// Takes in the closed files. One that matches what is owed is that copy. One that is not owed was being flushed or trimmed
    /// when the process died, and is a copy unless it was trimmed. One of another opening or end than what is owed goes into
    /// quarantine, and the owed copy is lost. Returns the trimmed ones.
    fn take_files(&mut self, files: Vec<(SegmentIdentity, Closure)>, out: &mut Vec<Output>) -> Vec<SegmentId> {
        let (mut unrecorded, mut trimmed) = (Vec::new(), Vec::new());
        for (identity, closure) in files {
            let segment = identity.segment;
            match self.copies.get_mut(&segment) {
                Some(owed) if (owed.identity, owed.closure) == (identity, closure) => owed.stage = Stage::Closed,
                Some(_) => out.push(Output::Quarantine(segment)),
                None if closure.last < self.promise.trimmed => {
                    trimmed.push((segment, file_bytes(closure.end)));
                }
                None => {
                    self.copies.insert(segment, Copy::on_disk(identity, closure));
                    unrecorded.push((identity, closure));
                }
            }
        }
        if !unrecorded.is_empty() {
            out.push(Output::Owe(unrecorded));
        }
        let segments = trimmed.iter().map(|(segment, _)| *segment).collect();
        self.delete_trimmed(trimmed, out);
        segments
    }

    /// Adds a doubt if anything present or owed was written under an epoch that was not promised.
    fn doubt_the_promise<'a>(&self, here: impl Iterator<Item = &'a SegmentIdentity>, doubts: &mut Vec<String>) {
        let promised = if planted::has(Bug::StalePromiseBelieved) { Epoch(u64::MAX) } else { self.promise.epoch };
        if let Some(SegmentIdentity { segment, epoch, .. }) =
            here.filter(|identity| identity.epoch > promised).max_by_key(|identity| identity.epoch)
        {
            doubts.push(format!(
                "segment {segment} is of epoch {epoch}, and epoch {promised} is the last that was promised: the promise is \
                 older than the segments"
            ));
        }
    }

    /// Frees the older of two slots for one segment. What is there may be held nowhere else: of an open copy, a scan tells.
    fn on_needless(&mut self, slot: Slot, row: &SlotRow, out: &mut Vec<Output>) {
        match row.closed {
            Some(closure) => {
                let old = Copy::closed_in(slot, row, closure);
                self.leave(&old, old.holds_more_than(None), out);
            }
            None if row.purpose == Purpose::Append => {
                self.replaced.insert(slot, *row);
                out.push(Output::Scan(slot, row.identity));
            }
            None => out.extend(Self::freed(slot)),
        }
    }

    /// What a close does with the copy that its image replaces: the process died in the middle of it.
    pub(super) fn on_replaced_scanned(&mut self, slot: Slot, row: &SlotRow, closure: Closure, out: &mut Vec<Output>) {
        let old = Copy { stage: Stage::Recovered, closure, ..Copy::lent(slot, row) };
        let image = self.copies.get(&row.identity.segment).filter(|copy| copy.stage == Stage::Closed);
        let more = old.holds_more_than(image.map(|image| (&image.identity, &image.closure)));
        self.leave(&old, more, out);
    }

    fn on_found(&mut self, slot: Slot, row: SlotRow, out: &mut Vec<Output>) {
        let known = self.copies.get(&row.identity.segment);
        let same = known.filter(|copy| copy.identity == row.identity);
        let on_disk = same.is_some_and(|copy| copy.stage == Stage::Closed && Some(copy.closure) == row.closed);
        // Closed, although its row does not say so: its file was not written, or is lost.
        let owed = same.filter(|copy| copy.stage == Stage::Corrupt).map(|copy| copy.closure);
        let closed_anyway = row.closed.is_none() && same.is_some_and(|copy| copy.stage == Stage::Closed);
        match (row.purpose, row.closed.or(owed)) {
            // Closed and flushed, or an image that was never closed: nothing to keep.
            _ if on_disk || closed_anyway => out.extend(Self::freed(slot)),
            (Purpose::Install, None) => out.extend(Self::freed(slot)),
            (_, Some(closure)) => {
                let row = SlotRow { purpose: Purpose::Append, closed: Some(closure), ..row };
                // Under `Flushed` a close is answered once the copy is on disk, and until then it is not owed.
                let recorded = same.is_some_and(|copy| copy.owed && copy.closure == closure);
                let owed = recorded || self.promise.durability != Durability::Flushed;
                let copy = Copy { owed, ..Copy::closed_in(slot, &row, closure) };
                let old = self.copies.insert(row.identity.segment, copy);
                // The process died after it had accepted an image and before the file was in quarantine.
                if let Some(old) = old {
                    self.leave(&old, old.holds_more_than(Some((&row.identity, &closure))), out);
                }
                out.push(Output::SaveSlot(slot, Some(row)));
                if owed && !recorded {
                    out.push(Output::Owe(vec![(row.identity, closure)]));
                }
                out.push(Output::Verify(slot, row.identity, closure));
                out.push(Output::StartFlush(slot, row.identity, closure));
            }
            // A closed copy of a later opening takes precedence; see `comes_late`.
            (Purpose::Append, None) if known.is_some_and(|copy| copy.identity.epoch > row.identity.epoch) => {
                out.extend(Self::freed(slot));
            }
            (Purpose::Append, None) => {
                self.copies.insert(row.identity.segment, Copy::lent(slot, &row));
                out.push(Output::Scan(slot, row.identity));
            }
        }
    }

    /// A slot that is in use and whose memory is gone. Returns it if its row says what is missing.
    fn on_missing(
        &mut self,
        slot: Slot,
        row: &SlotRow,
        disk_suffices: bool,
        doubts: &mut Vec<String>,
        out: &mut Vec<Output>,
    ) -> Option<Slot> {
        let segment = row.identity.segment;
        // What an open segment's file shows of the buffer ends where it was last flushed. Where that is all that counts, the
        // notes of flushes tell whether it is there.
        // A copy of an earlier opening of the segment, which was dropped, is not what the buffer held.
        let stands_in = |copy: &Copy| copy.identity == row.identity && (copy.stage != Stage::Lent || disk_suffices);
        if row.purpose == Purpose::Append && !self.copies.get(&segment).is_some_and(stands_in) {
            let Some(closure) = row.closed else {
                doubts.push(format!("buffer {} was lent for segment {segment}, and its memory is gone", slot.0));
                return Some(slot);
            };
            let part = self.copies.insert(segment, Copy::lost(row.identity, closure));
            out.push(Output::Owe(vec![(row.identity, closure)]));
            if let Some(part) = part {
                self.leave(&part, false, out);
            }
        }
        out.push(Output::SaveSlot(slot, None));
        None
    }

    /// Compares the open segments with what was confirmed to be on disk of them: it must be in their slots by now.
    fn compare_flushed(&mut self, flushed: &[(SegmentIdentity, Offset)], doubts: &mut Vec<String>) {
        for (identity, end) in flushed {
            // Segments are closed in order: if a later one is closed, this one was closed and is owed, or was removed since.
            let later = self.copies.range(identity.segment.next()..).map(|(_, copy)| copy);
            if later.filter(|copy| copy.owed).any(|copy| copy.identity.epoch >= identity.epoch) {
                continue;
            }
            match self.copies.get_mut(&identity.segment) {
                Some(copy) if copy.identity == *identity => copy.flushed = *end,
                Some(copy) if copy.identity.epoch > identity.epoch || copy.stage != Stage::Lent => {}
                _ => {
                    let segment = identity.segment;
                    doubts.push(format!(
                        "segment {segment} reached byte {end} while it was open, and there is no sound file of it"
                    ));
                    // The note stays as long as the doubt, like the row of a lost buffer. A promise without a log is an older
                    // copy: it does not show whose file this was, so the file stays expected.
                    if self.promise.log.is_some() {
                        self.gone.push(segment);
                    }
                }
            }
        }
    }

    /// A file that has the name of an open segment and is not understood may have been that segment's. It is not missed if the
    /// segment is here all the same, or a later one is closed: then the log does not end before that.
    fn move_aside(&self, not_understood: &[SegmentId], doubts: &mut Vec<String>, out: &mut Vec<Output>) {
        for segment in not_understood {
            let mut later = self.copies.range(segment.next()..).map(|(_, copy)| copy);
            if !self.copies.contains_key(segment) && !later.any(|copy| copy.owed) {
                doubts.push(format!("the file of segment {segment}, which was open, cannot be read"));
            }
            out.push(Output::MoveAside(*segment));
        }
    }

    /// Persists doubts, because their causes are gone after the next restart.
    fn doubt(&mut self, doubts: &[String], out: &mut Vec<Output>) {
        if doubts.is_empty() {
            return;
        }
        self.promise.add_doubts(doubts);
        // Persisted before anything that was found is changed.
        out.insert(0, Output::Persist(self.promise.clone()));
    }
}

/// Slots and what they are used for.
type Rows = Vec<(Slot, SlotRow)>;

/// If a segment has two slots, keeps the one that was lent later and got further: the process died after it had accepted
/// an image and before it freed the older copy's slot. Returns the rows to keep and the needless ones.
fn newest_of_each_segment(mut rows: Rows) -> (Rows, Rows) {
    rows.sort_by_key(|(_, row)| (row.purpose == Purpose::Append, row.lender, row.closed.is_some()));
    let mut newest: BTreeMap<SegmentId, (Slot, SlotRow)> = BTreeMap::new();
    let mut needless = Vec::new();
    for (slot, row) in rows {
        let older = newest.insert(row.identity.segment, (slot, row));
        needless.extend(older);
    }
    (newest.into_values().collect(), needless)
}
