//! What the files of a flush folder are together: a line for each, the gaps between them, and a verdict. No I/O.
//!
//! Called by [`scan`](super), which reads the files one by one. What a single file is worth [`examine`](mod@super::examine)
//! says; this compares the files with each other: a log has no gap, neither in segments nor in LSNs, and its epochs rise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use indicatif::{HumanBytes, HumanCount};
use tailwind_protocol::ids::{Epoch, LogId, Lsn, SegmentId};

use super::examine::{Content, FileKind, SegmentFileName, SegmentReport, State};
use crate::commands::counted;
use crate::rpc::printable;

/// All that is known of a folder so far.
#[derive(Debug, Default)]
pub struct Folder {
    /// Sound files in their place, closed or open.
    held: BTreeMap<(LogId, SegmentId), Summary>,
    /// Segments whose files are damaged, whichever log they are of.
    damaged: BTreeSet<SegmentId>,
    /// Files that are damaged or cannot be read.
    bad_files: u64,
    /// Copies that a backup does not look at.
    aside: u64,
    /// Buffers of a pool.
    buffers: u64,
}

/// One segment, as its best file shows it.
#[derive(Clone, Copy, Debug)]
struct Summary {
    kind: FileKind,
    epoch: Epoch,
    first: Lsn,
    /// The one before `first` when there is no record.
    last: Lsn,
    records: u64,
    payload_size: u64,
}

/// The verdict on a folder.
#[derive(Debug, PartialEq, Eq)]
pub struct FolderReport {
    /// Facts, one for each line.
    facts: Vec<String>,
    /// What must not be, one for each line.
    problems: Vec<String>,
    /// The last line.
    summary: String,
}

impl Folder {
    /// Takes in what a file holds. Returns its line.
    pub fn add(&mut self, name: &str, content: &Content<'_>) -> String {
        let Content::Segment(report) = content else {
            self.buffers += 1;
            return line(name, "unused", &content.to_string());
        };
        let shown = describe(report);
        let sound = report.sound();
        let is_in_place = SegmentFileName::parse(name).is_some_and(|named| named.is_in_place);
        match (&sound, is_in_place) {
            (State::Damaged(why), true) => {
                self.bad_files += 1;
                self.damaged.extend(report.named);
                line(name, "DAMAGED", &format!("{why}; {shown}"))
            }
            (State::Damaged(why), false) => {
                self.aside += 1;
                line(name, "aside", &format!("damaged: {why}; {shown}"))
            }
            (_, false) if report.kind == FileKind::Buffer => {
                self.buffers += 1;
                line(name, "buffer", &shown)
            }
            (_, false) => {
                self.aside += 1;
                line(name, "aside", &shown)
            }
            (_, true) => {
                self.hold(report);
                line(name, if sound == State::Closed { "sound" } else { "open" }, &shown)
            }
        }
    }

    /// Takes in a file that cannot be read, or that is no segment although its name says so. Returns its line.
    pub fn add_bad(&mut self, name: &str, why: &str) -> String {
        self.bad_files += 1;
        self.damaged.extend(SegmentFileName::parse(name).filter(|named| named.is_in_place).map(|named| named.segment));
        line(name, "DAMAGED", why)
    }

    /// The line of something that is no copy of a segment.
    pub fn add_other(&self, name: &str, what: &str) -> String {
        line(name, "-", what)
    }

    fn hold(&mut self, report: &SegmentReport<'_>) {
        let (identity, closure) = (&report.identity, &report.closure);
        let held = Summary {
            kind: report.kind,
            epoch: identity.epoch,
            first: report.first,
            last: Lsn((report.first.0 + report.count()).saturating_sub(1)),
            records: report.count(),
            payload_size: report.payload_size,
        };
        debug_assert!(held.records == 0 || held.last == closure.last, "a segment's LSNs have no gap");
        let known = self.held.entry((identity.log, identity.segment)).or_insert(held);
        // A crash between the closed file's appearance and the open one's removal leaves both.
        if held.kind == FileKind::Closed {
            *known = held;
        }
    }

    /// What the files are together; `None` if there is neither a segment's file nor a buffer.
    pub fn verdict(&self) -> Option<FolderReport> {
        if self.held.is_empty() && self.bad_files == 0 && self.buffers == 0 && self.aside == 0 {
            return None;
        }
        let mut files_of = BTreeMap::<LogId, usize>::new();
        for (log, _) in self.held.keys() {
            *files_of.entry(*log).or_default() += 1;
        }
        // The folder's log is the one that most of its files are of.
        let log = files_of.iter().max_by_key(|(_, files)| **files).map(|(log, _)| *log);
        let segments: Vec<(SegmentId, Summary)> = self
            .held
            .iter()
            .filter(|((of, _), _)| Some(*of) == log)
            .map(|((_, segment), held)| (*segment, *held))
            .collect();

        let mut problems = Vec::new();
        for (other, files) in files_of.iter().filter(|(other, _)| Some(**other) != log) {
            problems.push(format!("{} of another log, {other}", counted(*files as u64, "segment")));
        }
        for pair in segments.windows(2) {
            problems.extend(self.compare(pair[0], pair[1]));
        }
        // Behind the last file, and before the first one, a damaged file is no gap between others.
        let inside = |segment: &SegmentId| {
            segments.first().is_some_and(|(first, _)| first < segment)
                && segments.last().is_some_and(|(last, _)| segment < last)
        };
        let has_copy = |segment: &SegmentId| segments.iter().any(|(held, _)| held == segment);
        for segment in self.damaged.iter().filter(|segment| !inside(segment) && !has_copy(segment)) {
            problems.push(format!("segment {segment} is damaged, and no other file in this folder has it"));
        }
        Some(FolderReport { facts: self.facts(log, &segments), summary: self.say(&segments, problems.len()), problems })
    }

    /// What is wrong between two segments that follow each other in the folder.
    fn compare(&self, (a, before): (SegmentId, Summary), (b, after): (SegmentId, Summary)) -> Option<String> {
        let lost = after.first.0.saturating_sub(before.last.0 + 1);
        let lsns = match lost {
            0 => String::new(),
            1 => format!(": LSN {} is missing", before.last.0 + 1),
            _ => format!(": LSN {} to {} are missing", before.last.0 + 1, after.first.0 - 1),
        };
        let open = if before.kind == FileKind::Open { ", of which only the open file is here," } else { "" };
        if b > a.next() {
            let (from, to) = (a.next(), SegmentId(b.0 - 1));
            let what = if from == to { format!("segment {from}") } else { format!("segments {from} to {to}") };
            let damaged = self.damaged.range(from..=to).count() as u64;
            let verb = match (damaged, to.0 - from.0 + 1) {
                (0, 1) => "is missing".to_owned(),
                (0, _) => "are missing".to_owned(),
                (_, 1) => "is damaged".to_owned(),
                (some, all) if some == all => "are damaged".to_owned(),
                (some, _) => format!("are missing or damaged ({some} damaged)"),
            };
            Some(format!("{what} {verb}{lsns}"))
        } else if lost > 0 {
            Some(format!(
                "segment {a}{open} ends at LSN {}, segment {b} begins at LSN {}{lsns}",
                before.last, after.first
            ))
        } else if after.first.0 <= before.last.0 {
            Some(format!(
                "segment {b} begins at LSN {}, although segment {a} reaches to LSN {}",
                after.first, before.last
            ))
        } else {
            let fallen = after.epoch < before.epoch;
            fallen.then(|| format!("segment {b} is of epoch {}, segment {a} of epoch {}", after.epoch, before.epoch))
        }
    }

    fn facts(&self, log: Option<LogId>, segments: &[(SegmentId, Summary)]) -> Vec<String> {
        let mut facts = Vec::new();
        let mut fact = |name: &str, what: String| facts.push(format!("{name:<9} {what}"));
        if let Some(log) = log {
            fact("log", log.to_string());
        }
        if let (Some((first, begin)), Some((last, _))) = (segments.first(), segments.last()) {
            let closed = segments.iter().filter(|(_, held)| held.kind == FileKind::Closed).count();
            fact("segments", format!("{first} to {last}: {closed} closed, {} open", segments.len() - closed));
            let records: u64 = segments.iter().map(|(_, held)| held.records).sum();
            let size: u64 = segments.iter().map(|(_, held)| held.payload_size).sum();
            let end = segments.iter().map(|(_, held)| held.last).max().unwrap_or_default();
            let range = if records == 0 { String::new() } else { format!(", LSN {} to {end}", begin.first) };
            let noun = if records == 1 { "record" } else { "records" };
            fact("total", format!("{} {noun}{range}, {} of payload", HumanCount(records), HumanBytes(size)));
            if begin.first > Lsn(1) {
                fact("begin", format!("records before LSN {} are trimmed or missing", begin.first));
            }
        }
        if self.buffers > 0 {
            fact("buffers", format!("{}; their contents are not compared with each other", self.buffers));
        }
        if self.aside > 0 {
            fact(
                "aside",
                format!("{}, which the backup does not use", counted(self.aside, "copy").replace("copys", "copies")),
            );
        }
        facts
    }

    fn say(&self, segments: &[(SegmentId, Summary)], problems: usize) -> String {
        if self.bad_files > 0 || problems > 0 {
            return format!(
                "DAMAGED: {}, {} in the log. Remove nothing: other members may need what is sound here, see \
                 docs/runbooks/TailwindMemberDamaged.md",
                counted(self.bad_files, "damaged file"),
                counted(problems as u64, "fault")
            );
        }
        if segments.is_empty() {
            return "no segment has a file in its place here".to_owned();
        }
        "sound: no file is damaged, no segment and no LSN is missing between the first and the last. Whether the log ends \
         here, only the other members can tell"
            .to_owned()
    }
}

impl FolderReport {
    /// True if nothing is damaged and nothing is missing in between.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && !self.summary.starts_with("DAMAGED")
    }
}

impl fmt::Display for FolderReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts.iter().try_for_each(|fact| writeln!(f, "  {fact}"))?;
        self.problems.iter().try_for_each(|trouble| writeln!(f, "  {:<9} {trouble}", "FAULT"))?;
        write!(f, "  {:<9} {}", "verdict", self.summary)
    }
}

fn line(name: &str, state: &str, what: &str) -> String {
    format!("{:<32} {state:<8} {what}", printable(name))
}

/// What a segment's file holds, in one line.
pub(in crate::commands) fn describe(report: &SegmentReport<'_>) -> String {
    let (segment, epoch) = (report.identity.segment, report.identity.epoch);
    let records = match report.count() {
        0 => "no records".to_owned(),
        _ => format!("LSN {} to {}", report.closure.first, report.closure.last),
    };
    let footer = if report.footer.is_none() && report.kind == FileKind::Open { ", no footer" } else { "" };
    let tail = match &report.tail {
        Some(tail) => format!(
            ", {} behind offset {} that the scan does not accept",
            counted(tail.bytes, "byte"),
            report.closure.end
        ),
        None => String::new(),
    };
    format!(
        "segment {segment}, epoch {epoch}, {records}, {} valid{footer}{tail}",
        counted(report.closure.end.0.into(), "byte")
    )
}

#[cfg(test)]
mod tests;
