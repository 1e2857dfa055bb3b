//! Who may have what of a backup's memory beside the buffers that it lends. Nothing here changes anything.
//!
//! Part of [`Backup`].

use crate::ids::{GroupName, LogId, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::rpc::{Caller, Purpose, Refusal, SHARES_MAX};

use super::{Backup, Slot, Stage};

impl Backup {
    /// Refuses readers of another group or log.
    pub fn admit_reader(&self, group: &GroupName, log: LogId) -> Result<(), Refusal> {
        let epoch = self.promise.epoch;
        if self.promise.log.is_none() {
            let why = format!("backup {} holds no log yet", self.member);
            return Err(Refusal::RetryLater { after_ms: super::RETRY_AFTER_MS, why });
        }
        self.admit_log(&Caller { group: group.clone(), log, epoch })
    }

    /// Refuses callers that no memory for a mirror is lent to: all but the primary of the promised epoch (S5).
    pub fn admit_mirror(&self, caller: &Caller) -> Result<(), Refusal> {
        self.admit(caller)
    }

    /// The segments among these whose bytes are in memory and part of what the promised epoch reads or writes: what it has been
    /// lent for appends, and closed copies. Not images that are being installed, nor what an older epoch has left open.
    pub fn shareable(&self, segments: &[SegmentId]) -> Result<Vec<(Slot, SegmentIdentity, Option<Closure>)>, Refusal> {
        if segments.len() > SHARES_MAX {
            let why = format!("{} segments: {SHARES_MAX} are shared at a time", segments.len());
            return Err(Refusal::BadRequest { why });
        }
        let copies = segments.iter().filter_map(|segment| self.copies.get(segment));
        let shared = copies.filter_map(|copy| {
            let slot = copy.slot().or_else(|| self.resident(copy))?;
            let lent =
                copy.stage == Stage::Lent && copy.lender == self.promise.epoch && copy.purpose == Purpose::Append;
            match copy.stage {
                Stage::Closed => Some((slot, copy.identity, Some(copy.closure))),
                _ => lent.then_some((slot, copy.identity, None)),
            }
        });
        Ok(shared.collect())
    }
}
