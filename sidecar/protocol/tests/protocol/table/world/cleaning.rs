//! What the cleaner asks for is carried out: segments are read, their records judged and moved, and the log is trimmed.

use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::CHECKSUM_SIZE;
use tailwind_protocol::scan::Record;
use tailwind_protocol::table::cleaner::{GRACE_MS, Input, Output};
use tailwind_protocol::table::moves::{Candidate, batch};
use tailwind_protocol::table::record::KeyedRecord;

use super::{World, unless};
use crate::table::log::{Log, Segment};

impl World {
    /// Answers one thing that the cleaner waits for.
    pub(super) fn work(&mut self) -> Result<(), String> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.pending.len() as u64) as usize;
        match self.pending.swap_remove(at) {
            Output::Fetch(segment) if self.random.below(10) == 0 => self.step(Input::NotFetched(segment)),
            Output::Fetch(segment) => self.step(Input::Fetched(segment)),
            Output::Move(segment, from) => self.judge_moves(segment, from),
            Output::Forget(_) | Output::Sync | Output::Trim(_) => Ok(()),
        }
    }

    fn judge_moves(&mut self, id: SegmentId, from: Lsn) -> Result<(), String> {
        let segment = self.log.segments.iter().find(|segment| segment.id() == id).expect("not trimmed yet");
        let after = segment.closed().last.next();
        let bytes = segment.records(u64::MAX);
        let owned: Vec<_> = bytes.into_iter().map(|(at, record)| (at, record.lsn, record.payload.to_vec())).collect();
        let all = owned.iter().filter(|(_, lsn, _)| *lsn >= from && *lsn < after);
        let record = |lsn, payload| Record { lsn, payload };
        let all: Vec<Candidate<'_>> =
            all.filter_map(|(at, lsn, payload)| Candidate::of(*at, record(*lsn, payload))).collect();
        let at_once = self.judged_at_once;
        let candidates = || batch(all.iter().copied()).take(at_once);

        let room = |log: &Log| log.open().room().saturating_sub(CHECKSUM_SIZE);
        let mut staged = self.index.stage_moves(candidates(), room(&self.log));
        if staged.judged() == 0 && !all.is_empty() {
            if !self.bounds.may_move(self.log.len() + 1, self.at_first) {
                self.pending.push(Output::Move(id, from));
                return Ok(());
            }
            self.log.roll();
            drop(staged);
            staged = self.index.stage_moves(candidates(), room(&self.log));
        }
        let (judged, moved) = (staged.judged(), staged.moved());
        if moved > 0 {
            let records: Vec<KeyedRecord<'_>> = staged.records(candidates()).collect();
            unless(records.len() == moved, || format!("views: {moved} moves, {} records", records.len()))?;
            let (first, at) = self.log.append(&records);
            staged.appended(first, at);
        } else {
            drop(staged);
        }
        self.tally.moved += moved as u64;
        self.tally.dropped += (judged - moved) as u64;
        let next = all.get(judged).map_or(after, |candidate| candidate.lsn);
        let appended = Lsn(self.log.last());
        self.step(Input::Moved { segment: id, next, moved: moved as u32, appended })
    }

    pub(super) fn trim(&mut self, below: u64) -> Result<(), String> {
        let open = self.log.open().id();
        let goes = |segment: &&Segment| segment.closed().last.0 < below && segment.id() < open;
        let gone: Vec<SegmentId> = self.log.segments.iter().filter(goes).map(Segment::id).collect();
        self.log.trim(below);
        self.check_log(self.log.acked)?;
        for id in gone {
            unless(!self.mirror.values().any(|named| *named == id), || format!("S19: a mirror names segment {id}"))?;
            let since = self.named.get(&id).map(|named| self.now.0 - named.0);
            unless(since.is_none_or(|ms| ms >= GRACE_MS), || format!("S19: segment {id} was named {since:?} ms ago"))?;
            self.check_trimmed(id)?;
            self.tally.trimmed += 1;
        }
        Ok(())
    }
}
