//! Fence: stop every older epoch, then report what this backup holds.
//!
//! Part of [`Backup`]. See "Fencing" in `docs/protocol.md`.

use std::ops::Bound;

use crate::config::CLAIMS_KEPT;
use crate::ids::{EPOCH_MAX, SegmentId};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, FenceRequest, INVENTORY_PAGE_MAX, Inventory, Refusal};
use crate::scan::Tail;

use super::{Backup, Copy, Output, Promise, Reply, RequestId, Slot, Stage};

/// Most epochs that one fence may skip: one claim per millisecond for seven weeks. A backup that promised an unreachable
/// epoch could never be used again.
pub const EPOCH_JUMP_MAX: u64 = 1 << 32;

/// A fence that waits for its scans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingFence {
    /// The requests that wait, each for its page.
    requests: Vec<(RequestId, Option<SegmentId>)>,
    scans: Vec<Slot>,
}

impl Backup {
    /// Persists the promise, revokes, scans, and only then replies (S4, S5).
    pub(super) fn on_fence(
        &mut self,
        id: RequestId,
        request: &FenceRequest,
        out: &mut Vec<Output>,
    ) -> Result<Option<Reply>, Refusal> {
        let caller = &request.caller;
        self.admit_log(caller)?;
        if caller.epoch < self.promise.epoch {
            return Err(Refusal::Fenced { promised: self.promise.epoch });
        }
        self.admit_claim(request)?;
        self.fenced = true;
        if caller.epoch == self.promise.epoch && self.promise.log == Some(caller.log) {
            // A repeated request: the first fence is done, or its scans are under way.
            return match &mut self.fence {
                Some(fence) => {
                    fence.requests.push((id, request.after));
                    Ok(None)
                }
                None => Ok(Some(Reply::Inventory(self.page(request.after)))),
            };
        }
        if let Some(doubt) = self.put_back(request) {
            self.promise.add_doubts(&[doubt]);
        }
        let (log, claim) = (Some(caller.log), Some(request.claim));
        self.promise = Promise { log, epoch: caller.epoch, claim, ..self.promise.clone() };
        if !planted::has(Bug::EpochNotPersisted) {
            out.push(Output::Persist(self.promise.clone()));
        }
        if !planted::has(Bug::FenceBeforeRevoke) {
            out.push(Output::RevokeBelow(caller.epoch));
        }
        self.abandon_installs(out);
        // What it reports from now on stays until its caller decides.
        self.trimming = None;
        // A caller that waits for an older fence must not receive the answer to a newer one.
        let outrun = self.fence.take().map(|fence| fence.requests).unwrap_or_default();
        let fenced = || Reply::Refused(Refusal::Fenced { promised: caller.epoch });
        out.extend(outrun.into_iter().map(|(id, _)| Output::Reply(id, fenced())));
        let lent = self.copies.values().filter(|copy| copy.stage == Stage::Lent);
        let scans: Vec<Slot> = lent.filter_map(Copy::slot).collect();
        let wanted = self.copies.values().filter(|copy| copy.stage == Stage::Lent);
        out.extend(wanted.filter_map(|copy| Some(Output::Scan(copy.slot()?, copy.identity))));
        self.fence = Some(PendingFence { requests: vec![(id, request.after)], scans });
        self.finish_fence(out);
        Ok(None)
    }

    /// An epoch belongs to the claim that it was promised to. If the store names another claim of that epoch, the store has
    /// gone back, and its set may be an old one.
    fn admit_claim(&self, request: &FenceRequest) -> Result<(), Refusal> {
        let (promised, epoch) = (self.promise.epoch, request.caller.epoch);
        if request.earlier.len() > CLAIMS_KEPT {
            let why = format!("{} earlier claims: {CLAIMS_KEPT} are kept", request.earlier.len());
            return Err(Refusal::BadRequest { why });
        }
        if epoch > EPOCH_MAX || epoch.0 - promised.0 > EPOCH_JUMP_MAX {
            let why = format!("epoch {epoch} is too far beyond epoch {promised}, which this backup has promised");
            return Err(Refusal::BadRequest { why });
        }
        let claim = match epoch.0 - promised.0 {
            0 => Some(&request.claim),
            passed => usize::try_from(passed - 1).ok().and_then(|nth| request.earlier.get(nth)),
        };
        match (self.promise.claim, claim) {
            (Some(known), Some(claim)) if known != *claim => Err(Refusal::ClaimedBefore { promised }),
            _ => Ok(()),
        }
    }

    /// Every member of the set has promised each epoch that had a primary since it joined. If this one has not, its folder was
    /// restored from a copy together with its promise: what has been acknowledged since is not here, and nothing else shows it.
    fn put_back(&self, request: &FenceRequest) -> Option<String> {
        let (promised, won) = (self.promise.epoch, request.won);
        if request.joined != Some(self.boot) || promised >= won || planted::has(Bug::PutBackIsBelieved) {
            return None;
        }
        Some(format!(
            "epoch {promised} is the last that was promised, and this backup was a member in epoch {won}: what it holds is an older copy"
        ))
    }

    pub(super) fn on_scanned(&mut self, slot: Slot, tail: Tail, out: &mut Vec<Output>) {
        if let Some(row) = self.replaced.remove(&slot) {
            self.on_replaced_scanned(slot, &row, tail.closure, out);
        }
        if let Some(copy) = self.copies.values_mut().find(|copy| copy.slot() == Some(slot)) {
            copy.stage = Stage::Recovered;
            copy.closure = tail.closure;
            let acked = if planted::has(Bug::MarksIgnored) { tail.closure.end } else { tail.acked };
            copy.acked = copy.acked.max(acked);
        }
        if let Some(fence) = &mut self.fence {
            fence.scans.retain(|waiting| *waiting != slot);
            self.finish_fence(out);
        }
        if self.ending {
            self.finish_when_flushed(out);
        }
    }

    /// Discards images that their writer can no longer finish: an image counts only once closed.
    pub(super) fn abandon_installs(&mut self, out: &mut Vec<Output>) {
        for image in std::mem::take(&mut self.installs).into_values() {
            out.extend(image.slot().into_iter().flat_map(Self::freed));
        }
    }

    fn finish_fence(&mut self, out: &mut Vec<Output>) {
        if self.fence.as_ref().is_none_or(|fence| !fence.scans.is_empty()) {
            return;
        }
        let requests = self.fence.take().map(|fence| fence.requests).unwrap_or_default();
        out.extend(requests.into_iter().map(|(id, after)| Output::Reply(id, Reply::Inventory(self.page(after)))));
    }

    /// The first page of what this backup holds.
    pub fn inventory(&self) -> Inventory {
        self.page(None)
    }

    /// What this backup holds after a segment, as much as fits on a page. The pages of one fence make up an inventory, because
    /// only the caller that fenced can add or remove a copy; see "Inventories" in `docs/protocol.md`.
    pub(super) fn page(&self, after: Option<SegmentId>) -> Inventory {
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut listed = self.copies.range(behind).map(|(_, copy)| copy).filter(|copy| copy.stage != Stage::Lent);
        let copies: Vec<CopyReport> =
            listed.by_ref().take(INVENTORY_PAGE_MAX).map(|copy| copy.report(self.promise.durability)).collect();
        Inventory {
            member: self.member.clone(),
            boot: self.boot,
            log: self.promise.log,
            promised: self.promise.epoch,
            trimmed: self.promise.trimmed,
            damage: self.damage(),
            witness: self.is_witness(),
            synced: self.promise.synced,
            former: self.promise.former.clone(),
            copies,
            more: listed.next().is_some(),
        }
    }
}
