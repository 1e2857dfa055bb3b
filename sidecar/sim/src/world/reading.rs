//! Reading one-sidedly: what a card gives of memory that is being written, and a reader that looks at boards.
//!
//! A read asks no process: it is served while a backup is frozen, too. Its bytes are taken at a few moments between its posting
//! and its completion, in pieces of the seed's grain, in any order (promise 8 of the fabric). It sees what had completed when
//! it was posted, also what the backup's processor does not see yet. If its share ends before the last piece is taken, it
//! fails (promise 10).

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use tailwind_backup::Lender;
use tailwind_protocol::backup::Slot;
use tailwind_protocol::board::{self, Freshness};
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{Epoch, Lsn, Version};

use super::fabric::Key;
use super::getter::GetterRead;
use super::host::Running;
use super::memory::Lent;
use super::pull::{PullEvent, PullNo};
use super::queue::{MS, Micros};
use super::{Event, HostNo, SidecarNo, World};
use crate::trace::trace;

/// The slot in which a backup lends its board, beside those of its pool.
pub(crate) const BOARD: Slot = Slot(u32::MAX);
/// Pieces in which reads of closed segments take their bytes: nobody writes these, but they may end under the read.
const PULL_GRAIN: u32 = 4096;
/// Moments at which a read takes its bytes, at most.
const MOMENTS_MAX: u64 = 4;
/// Pause between two looks of the reader, at most: it must see a primary that is over beat a few times before that knows it.
const LOOK_PAUSE_MAX: Micros = 15 * MS;
/// How long a backup takes a reader for one that looks at its board, after its last look. Thirty seconds in production, where a
/// reader gives signs of life; here each look is one.
const READER_SILENCE: Micros = 300 * MS;
/// Now and then the reader looks away, for so long at most.
const AWAY_MAX: Micros = 3_000 * MS;

/// Who waits for a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadFor {
    /// The reader that looks at boards.
    Looker,
    /// The follower of this sidecar's process, on this visit.
    Follower(SidecarNo, u32, Visit),
    /// The getter of this sidecar's process, on this visit.
    Getter(SidecarNo, u32, Visit, GetterRead),
    /// A pull of this backup's process, and which of its tries.
    Pull(HostNo, u32, PullNo, u32),
}

/// A read on its way.
#[derive(Debug)]
struct Read {
    reader: ReadFor,
    to: HostNo,
    slot: Slot,
    share: Key,
    at: u32,
    bytes: Vec<u8>,
    /// What is taken at each of its moments.
    moments: Vec<Vec<Range<u32>>>,
    posted: Micros,
    /// Moments that are still to come.
    left: usize,
    failed: bool,
}

/// All reads, and what the reader has seen.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    reads: BTreeMap<u64, Read>,
    count: u64,
    views: BTreeMap<(HostNo, u64), View>,
}

/// What one board has shown, under one share.
#[derive(Debug, Default)]
struct View {
    freshness: Freshness,
    beat: u64,
    version: Version,
}

impl World {
    /// Lends the board of the promised epoch, or gives its key again.
    pub(super) fn lend_board(&mut self, no: HostNo, epoch: Epoch) -> Option<(Slot, Key)> {
        if !self.plan.has_boards() {
            return None;
        }
        let known = |world: &World| world.hosts[no.0].lendings.get(&BOARD).map(|lending| (lending.writer, lending.key));
        if known(self).is_none_or(|(writer, _)| writer != epoch) {
            Lent { world: self, no }.lend(epoch, BOARD).ok()?;
        }
        known(self).map(|(_, key)| (BOARD, key))
    }

    /// The right to read a slot's present memory.
    pub(crate) fn share(&mut self, no: HostNo, slot: Slot) -> Option<Key> {
        self.hosts[no.0].lendings.get(&slot)?;
        Some(self.share_memory(no, slot))
    }

    /// The same for a slot that has memory, whether it is lent or its lending has ended.
    pub(super) fn share_memory(&mut self, no: HostNo, slot: Slot) -> Key {
        let host = &mut self.hosts[no.0];
        if !host.shares.contains_key(&slot) {
            host.keys += 1;
            host.shares.insert(slot, Key(host.keys));
        }
        host.shares[&slot]
    }

    /// A reader looks at this member's board, or is about to.
    pub(super) fn note_look(&mut self, no: HostNo) {
        self.hosts[no.0].followed_until = self.queue.now() + READER_SILENCE;
    }

    /// Posts a read.
    pub(crate) fn begin_read(&mut self, to: HostNo, slot: Slot, share: Key, at: Range<u32>, reader: ReadFor) {
        let grain = match reader {
            ReadFor::Pull(..) => PULL_GRAIN,
            ReadFor::Looker | ReadFor::Follower(..) => self.plan.read_grain.unwrap_or(1),
            ReadFor::Getter(..) => self.plan.mirrors.as_ref().map_or(1, |plan| plan.grain),
        };
        let mut moments = vec![Vec::new(); self.random.within(1, MOMENTS_MAX) as usize];
        for start in at.clone().step_by(grain as usize) {
            let moment = self.random.below(moments.len() as u64) as usize;
            moments[moment].push(start..at.end.min(start + grain));
        }
        self.reading.count += 1;
        let id = self.reading.count;
        let (least, most) = self.plan.latency;
        for nth in 0..moments.len() {
            // Now and then a read takes so long that everything changes under it.
            let slow = if self.random.one_in(8) { self.random.below(20 * MS) } else { 0 };
            let wait = self.random.within(least, most) + slow;
            self.queue.plan(wait, Event::Sample(id, nth));
        }
        let (posted, left, bytes) = (self.queue.now(), moments.len(), vec![0; at.len()]);
        let read = Read { reader, to, slot, share, at: at.start, bytes, moments, posted, left, failed: false };
        self.reading.reads.insert(id, read);
    }

    /// One of the moments of a read.
    pub(crate) fn on_sample(&mut self, id: u64, nth: usize) {
        let Some(mut read) = self.reading.reads.remove(&id) else { return };
        if self.swallows(&read) {
            if let ReadFor::Getter(of, life, visit, _) = read.reader {
                self.break_getter(of, life, visit);
            }
            return;
        }
        read.failed |= self.hosts[read.to.0].shares.get(&read.slot) != Some(&read.share);
        if let (false, Some(first), Some(last)) = (read.failed, read.moments[nth].first(), read.moments[nth].last()) {
            // All of one moment: from its first piece to its last.
            let hull = first.start as usize..last.end as usize;
            let taken = self.settled_bytes(read.to, read.slot, hull.clone());
            let at = read.at as usize;
            for piece in &read.moments[nth] {
                let here = piece.start as usize..piece.end as usize;
                read.bytes[here.start - at..here.end - at]
                    .copy_from_slice(&taken[here.start - hull.start..here.end - hull.start]);
            }
            if let ReadFor::Getter(of, _, visit, GetterRead::Bucket(get, _)) = read.reader {
                let bytes = read.at..read.at + read.bytes.len() as u32;
                self.note_zeros(of, visit, get, (read.to, read.slot), bytes);
            }
        }
        read.left -= 1;
        if read.left > 0 {
            self.reading.reads.insert(id, read);
        } else {
            self.on_read_end(read);
        }
    }

    /// A read that meets a cut link, or a host without power, never ends.
    fn swallows(&self, read: &Read) -> bool {
        let off = self.hosts[read.to.0].running == Running::Off;
        match read.reader {
            ReadFor::Looker => false,
            ReadFor::Pull(no, ..) => off || self.cuts.are_backups_apart(no, read.to),
            ReadFor::Follower(of, ..) | ReadFor::Getter(of, ..) => {
                let link = (of, read.to);
                off || self.cuts.data_there.contains(&link) || self.cuts.data_back.contains(&link)
            }
        }
    }

    fn on_read_end(&mut self, read: Read) {
        match read.reader {
            ReadFor::Looker if read.failed => {}
            ReadFor::Looker => self.on_board_read(&read),
            ReadFor::Follower(of, life, visit) => {
                let posted = (read.slot == BOARD).then_some(read.posted);
                let result = if read.failed { Err("its share has ended".to_owned()) } else { Ok(read.bytes) };
                self.on_follower_read((of, life, visit), posted, result);
            }
            ReadFor::Getter(of, life, visit, what) => {
                let result = if read.failed { Err("its share has ended".to_owned()) } else { Ok(read.bytes) };
                self.on_getter_read((of, life, visit), what, (read.to, read.slot), read.posted, result);
            }
            ReadFor::Pull(no, life, pull, attempt) => {
                let result = if read.failed { Err("its share has ended".to_owned()) } else { Ok(read.bytes) };
                self.on_pull_event(no, life, pull, PullEvent::Bytes(attempt, result));
            }
        }
    }

    /// The reader looks at some of the boards.
    pub(crate) fn look(&mut self) {
        for no in (0..self.hosts.len()).map(HostNo) {
            if self.hosts[no.0].running != Running::Off
                && self.random.one_in(2)
                && let Some(share) = self.share(no, BOARD)
            {
                self.note_look(no);
                self.begin_read(no, BOARD, share, board::LINES, ReadFor::Looker);
            }
        }
        let longest = if self.random.one_in(64) { AWAY_MAX } else { LOOK_PAUSE_MAX };
        let pause = self.random.within(50, longest);
        self.queue.plan(pause, Event::Look);
    }

    fn on_board_read(&mut self, read: &Read) {
        let Some((identity, progress)) = board::decode(&read.bytes) else {
            self.tally.boards_torn += 1;
            return;
        };
        self.tally.boards_read += 1;
        self.checks.board_shows(identity.epoch, progress.acked);
        let view = self.reading.views.entry((read.to, read.share.0)).or_default();
        if progress.version != view.version {
            // As a follower does: the member may have been out of the set in between.
            (view.freshness, view.version) = (Freshness::default(), progress.version);
        }
        view.freshness.observe(Duration::from_micros(read.posted), progress.beat);
        // A view is what the newest beat says; an older line that comes late is none.
        if progress.beat < view.beat {
            return;
        }
        view.beat = progress.beat;
        if let Some(moment) = view.freshness.covers() {
            self.tally.boards_fresh += 1;
            let moment = moment.as_micros() as Micros;
            self.checks.board_covers(identity.epoch, progress.acked, moment);
            let (host, Lsn(acked)) = (&self.hosts[read.to.0].name, progress.acked);
            trace!(self, "the board of {host} covers all before {moment}: record {acked}");
        }
    }

    /// Nobody reads this slot's memory any more through what was shared before.
    pub(super) fn end_share(&mut self, no: HostNo, slot: Slot) {
        self.hosts[no.0].shares.remove(&slot);
    }
}
