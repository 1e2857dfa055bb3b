//! What the group wants of a promotion, and what an administrator may have ordered.
//!
//! Given to [`Promotion::start`](super::Promotion::start); the orders are options of the sidecar, or stand in the group's spec.

use std::fmt;
use std::str::FromStr;

use crate::config::{Configuration, Kind};
use crate::ids::{Epoch, LogId, Lsn};

/// How long a recovery from disk waits for members that have not answered, in units of `fence_wait_ms`: 32 × 150 ms = 4.8 s.
/// Their hosts may be booting, and what another disk alone holds is left behind once the log has ended before it. A member that has
/// given its word, or has come late with evidence, is waited for as long, and a candidate that reaches too few members for as
/// long, or repairs none, is cut off.
const DISK_PATIENCE: u64 = 32;

/// What the group wants of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// What a new group keeps in its log. A group that keeps something else is not this sidecar's to lead.
    pub kind: Kind,
    /// Members that a new group should have.
    pub backups: u8,
    /// Members that must be fenced, and hold the log, before there is a primary.
    pub min_in_sync: u8,
    /// How long to wait for the slower members once enough have been fenced.
    pub fence_wait_ms: u64,
    /// Pause before a failed step is retried.
    pub retry_ms: u64,
    /// How long repairs may continue without finishing any task before the promotion tries to continue without the members that
    /// it waits for.
    pub repair_timeout_ms: u64,
    /// An administrator has accepted that this log may end at this LSN, even if more was acknowledged.
    pub accept_loss: Option<AcceptedLoss>,
    /// An administrator has ordered that this log be recovered from disks, even if more was acknowledged since it was last
    /// synced.
    pub recover_from_disk: Option<DiskRecovery>,
}

impl Rules {
    /// Members that must be fenced.
    pub(super) fn needed(&self) -> usize {
        usize::from(self.min_in_sync.max(1))
    }

    /// [`DISK_PATIENCE`] in milliseconds.
    pub(super) fn long_wait_ms(&self) -> u64 {
        DISK_PATIENCE * self.fence_wait_ms
    }
}

/// An administrator's explicit acceptance that a log may end early. Valid for that log only, for no end before the LSN, and
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcceptedLoss {
    /// The log.
    pub log: LogId,
    /// Records up to here must be there.
    pub last: Lsn,
}

impl AcceptedLoss {
    /// Whether it is for this log, and has not been used.
    pub fn is_for(&self, config: &Configuration) -> bool {
        self.log == config.log && config.cuts.iter().all(|cut| cut.ordered != Some(self.last))
    }
}

/// An administrator's order to recover a log from disks. It ends by itself: the next primary has another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskRecovery {
    /// The log.
    pub log: LogId,
    /// The last epoch that had a primary: [`Configuration::won`].
    pub after: Epoch,
}

impl DiskRecovery {
    /// Whether it is for this log as it is.
    pub fn is_for(&self, config: &Configuration) -> bool {
        self.log == config.log && self.after == config.won
    }
}

impl fmt::Display for DiskRecovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.log, self.after)
    }
}

impl FromStr for DiskRecovery {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskRecovery, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(log, after)| Some(DiskRecovery { log: log.parse().ok()?, after: Epoch(after.parse().ok()?) }));
        parsed.ok_or_else(|| {
            format!(
                "`{text}`: must be LOG/EPOCH, the log's 32 hexadecimal digits and the last epoch that had a primary: the log and \
                 `won` in the config store, status.log.id and status.log.wonEpoch of the ReplicaGroup"
            )
        })
    }
}

impl fmt::Display for AcceptedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.log, self.last)
    }
}

impl FromStr for AcceptedLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<AcceptedLoss, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(log, last)| Some(AcceptedLoss { log: log.parse().ok()?, last: Lsn(last.parse().ok()?) }));
        parsed
            .ok_or_else(|| format!("`{text}`: must be LOG/LSN, the log's 32 hexadecimal digits and a record's number"))
    }
}
