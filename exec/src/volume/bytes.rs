//! Bytes: finds the writers of a file, and compares what may differ with what the log has.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs;
use tracing::warn;

use super::files::{Effect, File};
use super::{Refusal, Volume, proc};
use crate::blocks::BLOCK;
use crate::call::{Descriptor, Thread};
use crate::compare::{Changed, Compared, Plan};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::{DATA_HEADER, Kind, Mode, Number, Record};

/// Walks through `/proc` before a file counts as one that any process may have written to.
const LOOKS: usize = 16;
/// Comparisons of a file that is being cut.
const COMPARISONS: usize = 16;

impl Volume {
    /// Reads the positions of a file's writers. The names are settled.
    pub(super) fn advance(&mut self, number: Number) -> Result<(), Refusal> {
        // Each sync would walk through /proc, or compare most of the file, for the child of a shell that has long gone.
        let is_costly = |effect: &Effect| {
            let is_wide = |(of, (_, end)): &(Number, (u64, u64))| *of == number && *end == u64::MAX;
            let any_file = effect.duplicates || effect.truncates || effect.links > 0;
            any_file
                || effect.is_opening(number)
                || effect.stepped.contains(&number)
                || effect.ranges.iter().any(is_wide)
        };
        self.effects.ended(is_costly).into_iter().for_each(|thread| self.stopped(thread));
        let may_have_come =
            self.effects.all().any(|effect| effect.duplicates) || self.links.may_be_elsewhere(self.effects.links());
        for look in 0..LOOKS {
            let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
            if look == 0
                && (may_have_come || file.ragged || file.writers.is_opening() || self.effects.is_opening(number))
            {
                file.writers.look();
            }
            if file.writers.must_look() {
                self.find_writers()?;
            }
            let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
            let File { writers, doubts, .. } = file;
            writers.advance(doubts, |process, descriptor| self.infos.get(process, descriptor));
            if !writers.must_look() {
                return Ok(());
            }
            if file.ragged {
                file.doubts.add(Ranges::WHOLE);
            }
        }
        // It opens and closes the file without end.
        self.with(number, |file| file.doubts.add(Ranges::WHOLE));
        Ok(())
    }

    /// One walk for all files whose writers have to be looked for.
    fn find_writers(&mut self) -> Result<(), Refusal> {
        let began = Instant::now();
        let proc::Found { writers, complete } = match proc::writers(self.device) {
            Ok(found) => found,
            Err(hidden) => return Err(self.lose(hidden.to_string())),
        };
        let mut found: HashMap<u64, Vec<proc::Writer>> = HashMap::new();
        for writer in writers {
            found.entry(writer.info.inode).or_default().push(writer);
        }
        let is_due = |file: &&mut File| file.writers.must_look() || file.writers.has_opened(began);
        for File { inode, doubts, writers, .. } in self.files.values_mut().filter(is_due) {
            writers.found(doubts, found.remove(inode).into_iter().flatten(), began);
            if !complete {
                writers.look();
            }
        }
        Ok(())
    }

    /// Takes what the log does not have of a file.
    pub fn capture(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.settle()?;
        self.capture_settled(number, records)
    }

    /// The same, and the names stay as they are.
    pub(super) fn capture_settled(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.advance(number)?;
        self.compare(number, records)
    }

    /// A thread syncs a file by this descriptor, or moves its position back. If it writes to it and nobody has seen it come, it was
    /// opened under a name elsewhere, or was on its way from one process to another.
    pub fn uses(&mut self, thread: Thread, descriptor: Descriptor, number: Number) {
        let Some(file) = self.files.get(&number) else { return };
        if file.writers.watches(thread, descriptor) {
            return;
        }
        let Some(info) = self.infos.get(thread.0, descriptor.0) else { return self.with(number, File::suspect) };
        // A child has its parent's numbers, and each is one description with the parent's: one position tells of both.
        let parents: Vec<u32> = file.writers.processes_with(descriptor).collect();
        let is_inherited =
            |process: u32| proc::is_descendant(thread, process) && self.infos.get(process, descriptor.0) == Some(info);
        if info.writable && !parents.into_iter().any(is_inherited) {
            self.with(number, File::suspect);
        }
    }

    /// Threads that have ended make no more calls.
    pub(super) fn settle_ended(&mut self) {
        self.effects.ended(|_| true).into_iter().for_each(|thread| self.stopped(thread));
        self.effects.looked();
    }

    /// Compares all that may differ.
    fn compare(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
        let mut doubts = std::mem::take(&mut file.doubts);
        if planted::has(Bug::RangeCleanTooEarly) {
            for effect in self.effects.all_mut() {
                let mine = effect.ranges.extract_if(.., |(of, _)| *of == number);
                doubts.extend(mine.map(|(_, range)| range));
            }
        }
        for effect in self.effects.all() {
            if effect.truncates || effect.is_opening(number) {
                doubts.add(Ranges::WHOLE);
            }
            doubts.extend(effect.ranges.iter().filter(|(of, _)| *of == number).map(|(_, range)| *range));
        }
        if file.mapped || file.ragged || self.links.may_be_elsewhere(self.effects.links()) {
            doubts.add(Ranges::WHOLE);
        }
        // What happens under a name outside of the volume is not seen.
        let names = self.tree.names(number).count() as u64;
        let has_others = fs::fstat(&file.reader)?.st_nlink > names;
        if has_others {
            doubts.add(Ranges::WHOLE);
            self.modes.insert(number);
        }
        let compared = self.compare_ranges(number, &mut doubts, u64::MAX, records);
        if has_others {
            // Once that name has gone, too: it may be open still, and be opened again by that descriptor.
            self.with(number, |file| {
                file.ragged = true;
                file.suspect();
            });
        }
        self.with(number, |file| match compared {
            Ok(()) => file.synced = true,
            Err(_) => file.doubts.extend(doubts.iter()),
        });
        compared
    }

    /// Takes what differs in these ranges, and what lies between the end of what the log has and that of the file or `up_to`. If
    /// a file cannot be compared, none of its syncs is confirmed any more.
    pub(super) fn compare_ranges(
        &mut self,
        number: Number,
        ranges: &mut Ranges,
        up_to: u64,
        records: &mut Vec<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let Some(file) = self.files.get(&number) else { return Ok(()) };
        if let Some(fault) = &file.fault {
            return Err(Refusal::Lost(fault.clone()));
        }
        let compared = self.log_ranges(number, ranges, up_to, records);
        if let Err(Refusal::Lost(why)) = &compared {
            warn!(%number, %why, "cannot follow a file any more: each of its syncs fails from now on");
            self.with(number, |file| file.fault = Some(why.clone()));
        }
        compared
    }

    fn log_ranges(
        &mut self,
        number: Number,
        ranges: &mut Ranges,
        up_to: u64,
        records: &mut Vec<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
        for _ in 0..COMPARISONS {
            let mut length = (fs::fstat(&file.reader)?.st_size as u64).min(up_to);
            if length < file.blocks.length() && planted::has(Bug::LengthForgotten) {
                length = file.blocks.length();
            }
            if length < file.blocks.length() {
                // The block that is cut through has no hash any more.
                ranges.add((length.saturating_sub(1), length));
            }
            let plan = Plan::new(file.reader.as_fd(), &file.blocks, ranges, length)?;
            let (read, scan) = (plan.size(), self.bounds.scan);
            if read > scan {
                return Err(Refusal::Lost(format!("{read} bytes would have to be compared (--scan-max {scan})")));
            }
            self.compared.add(read);
            let others = self.image.size().saturating_sub(file.blocks.length());
            if length > file.blocks.length() && others.saturating_add(length) > self.bounds.bytes {
                let (bytes, number) = (others.saturating_add(length), number.0);
                let bound = self.bounds.bytes;
                return Err(Refusal::Full(format!(
                    "file {number} makes the volume {bytes} bytes (--bytes-max {bound})"
                )));
            }
            let mut made = Vec::new();
            if self.image.node(number).is_none() {
                let mode = Mode::of(fs::fstat(&file.reader)?.st_mode);
                made.push(Record::Create { number, kind: Kind::File, mode }.encode());
            }
            if length < file.blocks.length() {
                made.push(Record::Length { file: number, length }.encode());
                file.blocks.cut(length);
            }
            let largest = self.bounds.record - DATA_HEADER;
            let mut logged = file.blocks.length();
            let compared =
                self.comparison.compare(file.reader.as_fd(), &mut file.blocks, &plan, |offset, changed| {
                    let (bytes, length) = match changed {
                        Changed::Bytes(bytes) => (bytes, bytes.len() as u64),
                        Changed::Zeros(count) => (&[][..], count),
                    };
                    let end = offset + length;
                    // The last blocks may be those of a hole that was too short, or began too late, to be left out.
                    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                    let used = used.next_multiple_of(BLOCK).min(bytes.len());
                    for (at, bytes) in (offset..).step_by(largest).zip(bytes[..used].chunks(largest)) {
                        made.push(Record::Data { file: number, offset: at, bytes }.encode());
                    }
                    let zeros = offset + used as u64;
                    if zeros < end && zeros >= logged {
                        made.push(Record::Length { file: number, length: end }.encode());
                    } else if zeros < end {
                        made.push(Record::Zero { file: number, offset: zeros, length: end - zeros }.encode());
                    }
                    logged = logged.max(end);
                })?;
            if let Compared::Shorter(end) = compared {
                // What was compared before it was cut is logged as it was; the rest follows at once.
                length = end;
            }
            for record in made {
                let decoded = Record::decode(&record).map_err(|error| Refusal::Lost(error.to_string()))?;
                self.image.fold(&decoded).map_err(|error| Refusal::Lost(error.to_string()))?;
                records.push(record);
            }
            if compared == Compared::Whole {
                return Ok(());
            }
            ranges.add((length.saturating_sub(1), u64::MAX));
        }
        Err(Refusal::Lost("it is cut again and again while it is read".into()))
    }

    /// A record of which the image learns.
    pub(super) fn log(&mut self, records: &mut Vec<Vec<u8>>, record: &Record<'_>) -> Result<(), Refusal> {
        if let Err(error) = self.image.fold(record) {
            return Err(self.lose(format!("a record that the log cannot take: {error}")));
        }
        records.push(record.encode());
        Ok(())
    }
}
