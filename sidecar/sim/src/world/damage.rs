//! What happens to a backup's folders while its process is down: files lost, put back from an older copy, rotten, or
//! somebody else's.
//!
//! Struck by [`faults`](super::faults): the process is killed, its folder or its table is changed, and it comes back. What
//! would leave nobody with the log is left out, as everywhere. Which of these faults strike is decided in
//! [`plan`](crate::plan).

use std::collections::BTreeMap;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{LogId, SegmentId};
use tailwind_protocol::layout::{FOOTER_SIZE, SEGMENT_HEADER_SIZE, Sealed, SegmentIdentity};
use tailwind_protocol::rpc::Purpose;

use super::files::{Inode, Kind};
use super::host::{Host, KeptNotes};
use super::judge::bytes_on_disk;
use super::{HostNo, World};
use crate::check::Submitted;
use crate::tally::Fault;
use crate::trace::trace;

/// What can be damaged at rest.
pub(super) const AT_REST: [Fault; 7] = [
    Fault::FileLost,
    Fault::FileStale,
    Fault::NotesStale,
    Fault::PromiseStale,
    Fault::EndsBitFlip,
    Fault::SlotLost,
    Fault::TableZeroed,
];

impl World {
    /// Kills the process, damages what it leaves, and lets it come back. False where nothing was hit.
    pub(super) fn inject_folder_damage(&mut self, fault: Fault, no: HostNo) -> bool {
        if !self.hosts[no.0].is_up() || !self.may_lose(no) {
            return false;
        }
        self.damage_at_rest(fault, no)
    }

    /// As above, whoever else is well. Where the disk proves everything the power may go too; it does where notes of flushes are
    /// put back, because they tell nothing of what is in memory.
    pub(super) fn damage_at_rest(&mut self, fault: Fault, no: HostNo) -> bool {
        let goes = fault == Fault::NotesStale || !self.faults_on && self.random.one_in(2);
        match goes && self.hosts[no.0].proves_everything() {
            true => self.cut_power(no),
            false => self.kill_host(no),
        }
        self.plan_restart(no);
        let (name, what) = (self.hosts[no.0].name.clone(), self.damage(fault, no));
        trace!(self, "{name} dies; {fault}: {}", what.as_deref().unwrap_or("nothing is hit"));
        if let (Fault::PromiseStale, Some(_), Some(member_state)) =
            (fault, &what, self.hosts[no.0].files.member_state())
        {
            self.checks.goes_back(no, member_state.promise.epoch);
            let host = &mut self.hosts[no.0];
            let files: Vec<SegmentIdentity> =
                host.files.segments().iter().filter_map(|(_, node)| node.inode().identity()).collect();
            let newest = files.iter().map(|identity| identity.epoch).max();
            match member_state.promise.log {
                Some(_) => host.stale_promise = newest.filter(|newest| *newest > member_state.promise.epoch),
                // Every file is of another log then, and moved aside.
                None => host.lost.extend(files),
            }
        }
        what.is_some()
    }

    /// The host loses power, and what its folder held before is there when it comes back.
    pub(super) fn put_back(&mut self, no: HostNo, folder: Vec<(String, Vec<u8>)>) {
        self.cut_power(no);
        let owed: BTreeMap<SegmentId, SegmentIdentity> =
            self.checks.owed().map(|record| (record.identity.segment, record.identity)).collect();
        let host = &mut self.hosts[no.0];
        host.files.replace(folder);
        host.lost.extend(owed.into_values());
        host.doubtful = true;
        trace!(self, "{} loses power; its folder is put back from an older copy", host.name);
        if let Some(own) = self.hosts[no.0].files.member_state() {
            self.checks.goes_back(no, own.promise.epoch);
        }
        self.checks.finds_everything(no);
        self.tally.count(Fault::FolderStale);
    }

    /// Somebody copies promises, notes and files of open segments now and then, which may be put back later.
    pub(super) fn copy_files(&mut self) {
        let promises = self.plan.has(Fault::PromiseStale) || self.plan.has(Fault::AllButOneDamaged);
        for host in self.hosts.iter_mut().filter(|host| promises && host.kept_promise.is_none()) {
            host.kept_promise = host.files.bytes("promise");
        }
        let notes = self.plan.has(Fault::NotesStale) || self.plan.has(Fault::AllButOneDamaged);
        for host in self.hosts.iter_mut().filter(|_| notes) {
            if host.kept_notes.is_none() || self.random.one_in(4) {
                host.keep_notes();
            }
        }
        let wanted = self.plan.has(Fault::FileStale) || self.plan.has(Fault::AllButOneDamaged);
        for host in self.hosts.iter_mut().filter(|_| wanted) {
            for (name, node) in host.files.segments() {
                if name.ends_with("open") && !host.kept.contains_key(&name) {
                    host.kept.insert(name, node.inode().bytes().to_vec());
                }
            }
        }
    }

    /// What was damaged and holds all that is owed again, and says so, is excused no longer.
    pub(super) fn see_who_is_whole(&mut self) {
        for no in (0..self.hosts.len()).map(HostNo) {
            let host = &self.hosts[no.0];
            if host.lost.is_empty() && !host.doubtful {
                continue;
            }
            let gone = !host.rotten.iter().any(|node| host.files.has(node));
            let says_so =
                gone && host.machine().is_some_and(|machine| machine.is_witness() && machine.damage().is_empty());
            // An older promise was of no `flushed`: until it takes part again, what it holds need not be on its disk.
            let promised = host.files.member_state().is_some_and(|own| own.promise.durability == self.plan.durability);
            // Nor does it know, before a candidate asks it, whether an epoch that it had promised before has a primary.
            let own = host.files.member_state().map(|own| own.promise.epoch);
            let config = self.store.content().filter(|config| config.members.contains(&host.reference()));
            let behind = config.is_some_and(|config| own < Some(config.epoch));
            // What a primary has not acknowledged yet may have been here all the same, and be acknowledged late.
            let newest = self.checks.owed().map(|record| record.identity.segment).max();
            let unfinished = |lost: &SegmentIdentity| newest <= Some(lost.segment);
            let was_here = host.lost.iter().any(unfinished);
            // A sound buffer makes up for a damaged file until the power goes, and nobody has synced anew what is in it.
            let is_here = |record: &Submitted| match host.lost.contains(&record.identity) {
                true => bytes_on_disk(host, record),
                false => self.is_here(host, record),
            };
            if says_so && promised && !behind && !was_here && self.checks.owed().all(is_here) {
                let host = &mut self.hosts[no.0];
                (host.lost, host.rotten, host.doubtful) = (Vec::new(), Vec::new(), false);
            }
        }
    }

    fn damage(&mut self, fault: Fault, no: HostNo) -> Option<String> {
        let (random, host) = (&mut self.random, &mut self.hosts[no.0]);
        let mut segments = host.files.segments();
        if self.quiet {
            // Nothing behind it tells of the newest one.
            segments.sort_by_key(|(_, node)| node.inode().identity().map(|identity| identity.segment));
            segments.drain(..segments.len().saturating_sub(1));
        }
        match fault {
            Fault::FileLost => {
                let of_all = *random.pick(&["ledger", "flushed"]);
                if random.one_in(6) && host.files.bytes(of_all).is_some() {
                    host.files.lose(of_all);
                    host.doubtful = true;
                    return Some(of_all.to_owned());
                }
                let (name, node) = random.pick_one(&segments)?;
                host.lost.extend(node.inode().identity());
                if !matches!(self.plan.durability, Durability::Flushed) {
                    host.missed.extend(node.inode().closed());
                }
                host.files.lose(name);
                Some(name.clone())
            }
            Fault::FileStale => {
                // What was copied the last time is put back, if it is another file by now.
                let now = segments.iter().map(|(name, node)| (name.clone(), node.inode().bytes().to_vec())).collect();
                let kept = std::mem::replace(&mut host.kept, now);
                let differs = |(name, bytes): &&(String, Vec<u8>)| host.kept.get(name).is_some_and(|now| now != bytes);
                let kept: Vec<(String, Vec<u8>)> = kept.into_iter().collect();
                let stale: Vec<(String, Vec<u8>)> = kept.iter().filter(differs).cloned().collect();
                let (name, bytes) = random.pick_one(&stale)?.clone();
                let hit = segments.iter().find(|(own, _)| *own == name);
                host.lost.extend(hit.and_then(|(_, node)| node.inode().identity()));
                host.files.put(&name, Inode::of(bytes));
                let put_back = host.files.segments().into_iter().find(|(own, _)| *own == name);
                let put_back = put_back.and_then(|(_, node)| node.inode().identity());
                put_back.into_iter().for_each(|identity| self.checks.takes(no, identity));
                Some(name)
            }
            Fault::NotesStale => {
                let now = host.files.bytes("flushed")?;
                let before = host.kept_notes.take().filter(|before| before.notes != now);
                host.keep_notes();
                let KeptNotes { notes, open } = before?;
                host.files.put("flushed", Inode::of(notes));
                host.doubtful = true;
                host.stale_notes = host.files.notes_are_older();
                segments.retain(|(name, _)| name.ends_with("open"));
                let Some((name, node)) = random.pick_one(&segments).cloned() else {
                    return Some("the notes".to_owned());
                };
                let identity = node.inode().identity();
                // Where the ledger knows nothing newer than both of them, an older file beside older notes is a window.
                let older = open.get(&name).filter(|_| host.stale_notes && random.one_in(2));
                match older {
                    Some(older) => {
                        host.files.put(&name, Inode::of(older.clone()));
                        let put_back = host.files.segments().into_iter().find(|(own, _)| *own == name);
                        let put_back = put_back.and_then(|(_, node)| node.inode().identity());
                        put_back.into_iter().for_each(|identity| self.checks.takes(no, identity));
                    }
                    None => {
                        host.files.lose(&name);
                        let in_memory = |lost: &&SegmentIdentity| host.rows.values().any(|row| row.identity == **lost);
                        host.missed_files.extend(identity.iter().filter(|lost| !in_memory(lost)));
                    }
                }
                host.lost.extend(identity);
                Some(format!("the notes, and {name}"))
            }
            Fault::PromiseStale => {
                let now = host.files.bytes("promise")?;
                let stale = host.kept_promise.replace(now.clone()).filter(|before| *before != now)?;
                host.files.put("promise", Inode::of(stale));
                host.doubtful = true;
                Some("the promise".to_owned())
            }
            Fault::PromiseBitFlip => {
                // One of its two blocks, while the other one is sound: more is one fault too many.
                if host.files.sound_promises() < 2 {
                    return None;
                }
                let at = random.below(8192) as usize;
                host.files.flip("promise", at, random.below(8) as u8).then(|| format!("byte {at}"))
            }
            Fault::EndsBitFlip => {
                let (name, node) = random.pick_one(&segments)?;
                let length = node.inode().bytes().len();
                host.lost.extend(node.inode().identity());
                host.rotten.push(node.clone());
                let in_header = random.below(SEGMENT_HEADER_SIZE as u64) as usize;
                let in_footer = length.checked_sub(FOOTER_SIZE)? + random.below(FOOTER_SIZE as u64 - 4) as usize;
                // A file that still grows has no footer.
                let at = if random.one_in(2) || node.inode().closed().is_none() { in_header } else { in_footer };
                host.files.flip(name, at, random.below(8) as u8).then(|| format!("{name}, byte {at}"))
            }
            Fault::StrangerInTheWay => {
                // Under the name of a segment that is still to come.
                let newest =
                    segments.iter().filter_map(|(_, node)| node.inode().identity()).map(|own| own.segment).max();
                let segment = SegmentId(newest.map_or(1, |newest| newest.0) + random.within(1, 4));
                let sealed = *random.pick(&[Sealed::Closed, Sealed::Open]);
                let temporary = random.one_in(4);
                let name = tailwind_backup::FileName { segment, sealed, temporary }.to_string();
                if host.files.bytes(&name).is_some() {
                    return None;
                }
                let of_another_log =
                    |own: SegmentIdentity| SegmentIdentity { log: LogId(own.log.0 ^ 1), segment, ..own };
                let model = segments.first().and_then(|(_, node)| node.inode().identity()).map(of_another_log);
                let stranger = match (random.below(3), model) {
                    (0, Some(identity)) => Inode::of(identity.header(tailwind_protocol::ids::Lsn(1)).to_vec()),
                    (0 | 1, _) => Inode::special(Kind::Fifo),
                    _ => Inode::of(b"somebody's notes".to_vec()),
                };
                host.files.put(&name, stranger);
                // It may be all that is left of that segment.
                host.doubtful |= sealed == Sealed::Open && !temporary;
                Some(name)
            }
            Fault::SlotLost => {
                let slots: Vec<Slot> = host.rows.keys().copied().collect();
                let slot = *random.pick_one(&slots)?;
                host.lose_buffer(slot, self.plan.durability);
                host.pool.forget(slot);
                Some(format!("buffer {}", slot.0))
            }
            Fault::TableZeroed => {
                let slots: Vec<Slot> = host.rows.keys().copied().collect();
                let slot = *random.pick_one(&slots)?;
                host.lose_buffer(slot, self.plan.durability);
                host.pool.zero_row(slot);
                Some(format!("entry of buffer {}", slot.0))
            }
            _ => None,
        }
    }
}

impl Host {
    /// Somebody copies the notes, and the files of open segments with them.
    fn keep_notes(&mut self) {
        let open = self.files.segments().into_iter().filter(|(name, _)| name.ends_with("open"));
        let open = open.map(|(name, node)| (name, node.inode().bytes().to_vec())).collect();
        self.kept_notes = self.files.bytes("flushed").map(|notes| KeptNotes { notes, open });
    }

    /// What is in a buffer is lost to this backup, which must miss it; under `flushed`, and as long as nothing was lent since
    /// it ended in good order, it has its disk.
    fn lose_buffer(&mut self, slot: Slot, durability: Durability) {
        let row = self.rows.get(&slot);
        self.lost.extend(row.map(|row| row.identity));
        let complete = self.files.member_state().is_some_and(|member_state| member_state.complete);
        if durability != Durability::Flushed && !complete {
            let open = row.filter(|row| row.purpose == Purpose::Append && row.closed.is_none());
            self.missed_open.extend(open.map(|row| row.identity));
        }
    }
}
