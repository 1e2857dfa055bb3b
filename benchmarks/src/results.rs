//! What a run has measured, as plain data.
//!
//! Filled by [`run`](crate::run), kept in files by [`data`](crate::data), read by [`report`](crate::report). A figure is never
//! stored as a summary: each round's own value is kept, so that ratios can be made of two figures of the same round.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::comparisons;
use crate::machine::Machine;

/// Everything that one run has measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Results {
    pub(crate) about: About,
    pub(crate) comparisons: Vec<Comparison>,
}

/// When, where and how it ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) command: String,
    pub(crate) date: String,
    /// The commit that was measured; empty if nobody knows.
    #[serde(default)]
    pub(crate) revision: String,
    pub(crate) rounds: u32,
    /// How long each measurement took, in percent of the usual time.
    pub(crate) effort: u32,
    /// Whether cases were left out.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
}

/// One comparison: its contestants took turns in each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) name: String,
    /// When, where and how, if not with the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) apart: Option<About>,
    /// Share of all processors that others used just before it began, 0 to 1.
    pub(crate) busy_before: f64,
    /// Load average (one minute) at the beginning of each round.
    pub(crate) load: Vec<f64>,
    pub(crate) contestants: Vec<Contestant>,
    /// What could not take part, and why.
    pub(crate) absent: Vec<Absent>,
    /// Kept in a file of their own.
    #[serde(skip)]
    pub(crate) samples: Vec<Sample>,
}

/// One way of doing it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Which copies it claims to have when it answers.
    pub(crate) claim: String,
    pub(crate) configuration: String,
}

/// A contestant that could not run here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) why: String,
}

/// What one contestant did in one case of one round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) contestant: String,
    pub(crate) case: String,
    /// Where the case stands on the axis of its plot, if it has one.
    pub(crate) at: Option<f64>,
    pub(crate) round: u32,
    pub(crate) figures: Figures,
}

/// What one measurement shows.
pub(crate) type Figures = BTreeMap<Metric, f64>;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::EnumIter)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    P50,
    P90,
    P99,
    P999,
    /// Records per second.
    Rate,
    /// Open loop: of the records that were due, the share that was answered, in percent.
    Kept,
    SidecarUser,
    SidecarKernel,
    BackupsUser,
    BackupsKernel,
    BackupPerByte,
    /// CPU time of all backups, user and kernel.
    BackupsCpu,
    /// The same beyond what they take at rest, with the finer clock of the scheduler.
    BackupsBeyondRest,
    /// CPU time of the sidecar and all backups.
    Cpu,
    /// The same, as processors in use.
    Processors,
    SidecarMemory,
    BackupMemory,
    FirstAck,
    WholeLog,
    /// From the first ack of a new primary until members' memory shows the whole index.
    MirrorsLive,
    ReadRate,
    PerByte,
    /// Mebibytes of log per second that a newcomer gets.
    CopyRate,
    /// CPU time of the primary's sidecar, for each byte of the log.
    SidecarPerByte,
    Joined,
    JoinedAfterCopy,
    LongestGapBefore,
    LongestGap,
    /// All pauses of appends in which a newcomer could join.
    JoinPause,
    /// Bytes that a record has written into the memory of one member.
    Written,
}

impl Metric {
    /// The heading of its column, with the unit.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Metric::P50 => "p50, µs",
            Metric::P90 => "p90, µs",
            Metric::P99 => "p99, µs",
            Metric::P999 => "p99.9, µs",
            Metric::Rate => "records/s",
            Metric::Kept => "answered, %",
            Metric::SidecarUser => "sidecar, user, ns/record",
            Metric::SidecarKernel => "sidecar, kernel, ns/record",
            Metric::BackupsUser => "all backups, user, ns/record",
            Metric::BackupsKernel => "all backups, kernel, ns/record",
            Metric::BackupPerByte => "one backup, ns/byte of log",
            Metric::BackupsCpu => "all backups, ns/record",
            Metric::BackupsBeyondRest => "all backups beyond rest, ns/record",
            Metric::Cpu => "sidecar and backups, ns/record",
            Metric::Processors => "processors in use",
            Metric::SidecarMemory => "sidecar, MiB",
            Metric::BackupMemory => "one backup, MiB",
            Metric::FirstAck => "kill to first ack, ms",
            Metric::WholeLog => "kill to whole log read, ms",
            Metric::MirrorsLive => "first ack to live mirrors, ms",
            Metric::ReadRate => "read, MiB/s",
            Metric::PerByte => "ns/byte",
            Metric::CopyRate => "copied, MiB/s",
            Metric::SidecarPerByte => "sidecar, ns/byte of log",
            Metric::Joined => "in the set after, ms",
            Metric::JoinedAfterCopy => "after the last copied segment, ms",
            Metric::LongestGapBefore => "longest gap between acks before, ms",
            Metric::LongestGap => "longest gap while it joins, ms",
            Metric::JoinPause => "appends paused for it, ms",
            Metric::Written => "written at a member, B/record",
        }
    }
}

impl Metric {
    /// True of rates; times and costs are better if they are less.
    pub(crate) fn more_is_better(self) -> bool {
        matches!(self, Metric::Rate | Metric::Kept | Metric::ReadRate | Metric::CopyRate)
    }
}

impl Comparison {
    /// A figure of a contestant in a case, in each round that has one.
    pub(crate) fn figures(&self, contestant: &str, case: &str, metric: Metric) -> BTreeMap<u32, f64> {
        let wanted = |s: &&Sample| s.contestant == contestant && s.case == case;
        self.samples.iter().filter(wanted).filter_map(|s| Some((s.round, *s.figures.get(&metric)?))).collect()
    }
}

impl Results {
    /// A comparison by name, if it was run.
    pub(crate) fn comparison(&self, name: &str) -> Option<&Comparison> {
        self.comparisons.iter().find(|comparison| comparison.name == name)
    }

    /// The comparisons in the order in which they run.
    pub(crate) fn sort(&mut self) {
        self.comparisons.sort_by_key(|comparison| comparisons::ALL.iter().position(|c| c.name == comparison.name));
    }

    /// With the comparisons of a later run in place of those of the same names.
    pub(crate) fn updated(mut self, later: Results) -> Results {
        for mut comparison in later.comparisons {
            comparison.apart = Some(later.about.clone());
            self.comparisons.retain(|earlier| earlier.name != comparison.name);
            self.comparisons.push(comparison);
        }
        self.sort();
        self
    }

    /// True if nothing was left out or shortened.
    pub(crate) fn are_whole(&self) -> bool {
        let about = &self.about;
        !about.quick && about.effort >= 100 && comparisons::ALL.iter().all(|c| self.comparison(c.name).is_some())
    }
}
