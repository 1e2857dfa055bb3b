//! Standbys of a table fold what members have closed, so that little is left to fold when one of them wins.
//!
//! Called by [`sidecar`](super::sidecar) with each tick of one that does not lead, and by [`table`](super::table) at a win. A look
//! at a member takes no time, and no random number. So what a seed plays depends on how far its standbys are only where the index
//! of one has no room for a key: each has a hash key of its own.

use tailwind_protocol::ids::{Lsn, Offset, Position};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::scan::Record;
use tailwind_protocol::table::fold::{Fold, FoldError};
use tailwind_protocol::table::hash::HashKey;
use tailwind_protocol::table::index::Index;
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::warm::{Next, Segment, Warm};

use super::host::Running;
use super::scrub::has_sound;
use super::sidecar::TICK;
use super::table::SIZE;
use super::{SidecarNo, World};
use crate::check::broken;
use crate::trace::trace;

/// Ticks between two looks of one standby, so that some are far behind when they win.
const LOOK_TICKS: u64 = 3;

impl World {
    /// It looks at the next member, and folds a segment.
    pub(super) fn fold_ahead(&mut self, of: SidecarNo) {
        let Some(plan) = &self.plan.table else { return };
        let look = self.queue.now() / TICK + of.0 as u64;
        let Some(config) = self.sidecars[of.0].view.as_ref().filter(|config| !config.members.is_empty()) else {
            return;
        };
        if !look.is_multiple_of(LOOK_TICKS) {
            return;
        }
        let member = &config.members[(look / LOOK_TICKS) as usize % config.members.len()];
        let host = &self.hosts[self.host_of(&member.id).0];
        let is_reached = host.running == Running::Up && self.cuts.is_whole(of, host.no);
        let Some(machine) = host.machine().filter(|_| is_reached) else { return };
        let page = machine.inventory();
        if page.log != Some(config.log) || page.boot != member.boot {
            return;
        }
        let limits = plan.limits();
        let mut warm = self.sidecars[of.0].warm.take().unwrap_or_else(|| {
            let hash_key = HashKey(std::array::from_fn(|at| (look >> (8 * (at % 8))) as u8));
            Warm::new(Index::new(hash_key, limits, Window::new(SIZE)))
        });
        let warm = match warm.next(&page) {
            Next::Fold(segment) if self.is_given(&segment) => {
                let folded = warm.take(segment, |fold| self.fold_segment(fold, &segment));
                match folded {
                    Err(gap @ FoldError::Gap { .. }) => broken("S18", gap.to_string()),
                    other => other.ok(),
                }
            }
            Next::Fold(_) | Next::Nothing => Some(warm),
            Next::Again => {
                trace!(self, "{} folds again from the first record on", self.sidecars[of.0].name);
                None
            }
        };
        self.sidecars[of.0].warm = warm;
    }

    /// What the winner has folded already of this log, and the segments that follow.
    pub(super) fn lead_warm(&mut self, of: SidecarNo, reference: &Reference) -> Option<(Fold, Vec<Segment>)> {
        let warm = self.sidecars[of.0].warm.take()?;
        warm.last()?;
        let led = warm.lead(&segments(reference));
        let (used, not) = (u64::from(led.is_some()), u64::from(led.is_none()));
        (self.tally.warm, self.tally.warm_in_vain) = (self.tally.warm + used, self.tally.warm_in_vain + not);
        led
    }

    pub(super) fn fold_segment(&self, fold: &mut Fold, (identity, closure): &Segment) -> Result<(), FoldError> {
        for lsn in (closure.first.0..=closure.last.0).map(Lsn) {
            let record = self.checks.truth(identity.epoch, lsn);
            let at = Position::new(identity.segment, Offset(record.at));
            fold.record(at, Record { lsn, payload: &record.payload })?;
        }
        Ok(())
    }

    fn is_given(&self, (identity, closure): &(SegmentIdentity, Closure)) -> bool {
        self.hosts.iter().any(|host| has_sound(host, identity, closure))
    }
}

/// The log's segments.
pub(super) fn segments(reference: &Reference) -> Vec<Segment> {
    reference.segments.iter().map(|segment| (segment.identity, segment.closure)).collect()
}
