//! Reads a member's inventory page by page, and validates it before use.
//!
//! Called by the sidecar and the simulator with every answer to a fence. The result is safe to compute with:
//! [`recovery`](crate::recovery), [`promotion`](crate::promotion) and [`primary`](crate::primary) check no number again.
//! See "Inventories" in `docs/protocol.md`.

use crate::ids::EPOCH_MAX;
use crate::ids::{BootId, Epoch, LogId, Lsn, MemberId, SegmentId};
use crate::layout::{Closure, FIRST_LSN_MAX, SEGMENT_MAX, SegmentIdentity};
use crate::rpc::{
    BUFFERS_MAX, CopyReport, DAMAGE_DESCRIPTIONS_MAX, DAMAGE_LENGTH_MAX, FORMER_MAX, Failure, INVENTORY_MAX,
    INVENTORY_PAGE_MAX, Inventory, Synced,
};

/// Pages of a whole inventory.
pub const PAGES_MAX: usize = INVENTORY_MAX / INVENTORY_PAGE_MAX;
/// How often reading restarts because the inventory changed between two pages. Only a disk fault or a late call changes it, so
/// a second restart is rare.
pub const RESTARTS_MAX: u32 = 4;

/// Why a member's inventory is rejected as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbelievable {
    /// It holds a segment of a later epoch than the one that fenced it: that epoch was used, and must be in the config store.
    #[error("it holds a segment of epoch {0}, which is later than the epoch that has fenced it")]
    Ahead(Epoch),
    /// No backup can hold this, or it does not answer the request.
    #[error("its inventory cannot be true: {0}")]
    Nonsense(String),
    /// It changed too often while it was being read.
    #[error("its inventory has changed {RESTARTS_MAX} times while it was being read")]
    Unsteady,
}

impl From<Unbelievable> for Failure {
    fn from(why: Unbelievable) -> Failure {
        match why {
            Unbelievable::Ahead(epoch) => Failure::Superseded(epoch),
            other => Failure::Unreachable(other.to_string()),
        }
    }
}

/// An inventory that is being read under one epoch.
#[derive(Clone, Debug)]
pub struct Reading {
    log: LogId,
    epoch: Epoch,
    /// Latest epoch of which there can be segments.
    newest: Epoch,
    so_far: Option<Inventory>,
    pages: usize,
    restarts: u32,
}

impl Reading {
    /// Begins to read what a member of `log` holds that was fenced under `epoch`. Copies are of `newest` at most: of the epoch
    /// itself once it has a primary, before that of the one before.
    pub fn new(log: LogId, epoch: Epoch, newest: Epoch) -> Reading {
        Reading { log, epoch, newest, so_far: None, pages: 0, restarts: 0 }
    }

    /// The segment after which the next page begins; none for the first.
    pub fn after(&self) -> Option<SegmentId> {
        last_segment(self.so_far.as_ref()?)
    }

    /// Takes the page that was asked for; the whole inventory after the last. Everything but the copies must stay as it was on
    /// the first page, or the reading starts over: a witness at the beginning that is none at the end would be believed too
    /// much.
    pub fn take(&mut self, page: Inventory) -> Result<Option<Inventory>, Unbelievable> {
        check_page(&page)?;
        self.check_fenced(&page)?;
        if self.so_far.as_ref().is_some_and(|before| head(before) != head(&page)) {
            (self.so_far, self.pages) = (None, 0);
            self.restarts += 1;
            return if self.restarts > RESTARTS_MAX { Err(Unbelievable::Unsteady) } else { Ok(None) };
        }
        self.pages += 1;
        if page.more && (page.copies.is_empty() || self.pages == PAGES_MAX) {
            return Err(nonsense(format!("page {} is not the last, with {} copies", self.pages, page.copies.len())));
        }
        let mut whole = match self.so_far.take() {
            None => page,
            Some(mut whole) => {
                whole.copies.extend(page.copies);
                Inventory { more: page.more, ..whole }
            }
        };
        check_order(&whole.copies)?;
        let open = whole.copies.iter().filter(|copy| copy.is_open()).count();
        if open > BUFFERS_MAX as usize {
            return Err(nonsense(format!("{open} open copies, and no backup has more than {BUFFERS_MAX} buffers")));
        }
        if whole.more {
            // Once, and for all that there may be: a vector that grows piece by piece takes twice the memory that is counted on.
            whole.copies.reserve_exact(INVENTORY_MAX - whole.copies.len());
            self.so_far = Some(whole);
            return Ok(None);
        }
        whole.copies.shrink_to_fit();
        Ok(Some(whole))
    }

    fn check_fenced(&self, page: &Inventory) -> Result<(), Unbelievable> {
        if page.log != Some(self.log) || page.promised != self.epoch {
            let log = page.log.map_or_else(|| "no log".to_owned(), |log| format!("log {log}"));
            return Err(nonsense(format!("it is bound to {log} and has promised epoch {}", page.promised)));
        }
        let after = self.after().unwrap_or_default();
        for copy in &page.copies {
            let identity = &copy.identity;
            if identity.log != self.log || identity.segment <= after {
                let at = format!("segment {} of log {} behind segment {after}", identity.segment, identity.log);
                return Err(nonsense(at));
            }
            if identity.epoch > self.epoch {
                return Err(Unbelievable::Ahead(identity.epoch));
            }
            if identity.epoch > self.newest {
                let SegmentIdentity { segment, epoch, .. } = copy.identity;
                return Err(nonsense(format!("segment {segment} of epoch {epoch}, which has had no primary yet")));
            }
        }
        Ok(())
    }
}

/// What must hold for every page.
pub fn check_page(page: &Inventory) -> Result<(), Unbelievable> {
    if page.copies.len() > INVENTORY_PAGE_MAX {
        return Err(nonsense(format!("{} copies on one page", page.copies.len())));
    }
    if page.damage.len() > DAMAGE_DESCRIPTIONS_MAX || page.damage.iter().any(|text| text.len() > DAMAGE_LENGTH_MAX) {
        return Err(nonsense("too many words about damage"));
    }
    if page.promised > EPOCH_MAX || page.trimmed > FIRST_LSN_MAX {
        return Err(nonsense(format!("epoch {}, trimmed below LSN {}", page.promised, page.trimmed)));
    }
    let synced = page.synced.filter(|synced| synced.epoch > page.promised || synced.last > FIRST_LSN_MAX);
    if synced.is_some() || page.former.len() > FORMER_MAX {
        return Err(nonsense(format!("synced {:?}, {} former identities", page.synced, page.former.len())));
    }
    page.copies.iter().try_for_each(check_copy)
}

fn check_copy(copy: &CopyReport) -> Result<(), Unbelievable> {
    let CopyReport { identity, closure, acked, .. } = copy;
    let numbered = (SegmentId(1)..=SEGMENT_MAX).contains(&identity.segment);
    let led = (Epoch(1)..=EPOCH_MAX).contains(&identity.epoch);
    // In a buffer that was never written, not even the header is valid.
    let placed = closure.fits(identity.size) || copy.is_open() && *closure == Closure::default();
    if numbered && led && placed && acked.0 <= identity.size.bytes() {
        return Ok(());
    }
    let SegmentIdentity { segment, epoch, .. } = copy.identity;
    let Closure { first, last, end, .. } = closure;
    Err(nonsense(format!(
        "segment {segment} of epoch {epoch} and {} with LSN {first} to {last}, ending at byte {end}, acknowledged up to byte \
         {acked}",
        identity.size
    )))
}

/// Each segment once, in order. One primary numbers its records in the order of its segments.
fn check_order(copies: &[CopyReport]) -> Result<(), Unbelievable> {
    let mut written: Option<(Epoch, Lsn)> = None;
    for (copy, next) in copies.iter().zip(copies.iter().skip(1)) {
        if copy.identity.segment >= next.identity.segment {
            let (segment, behind) = (next.identity.segment, copy.identity.segment);
            return Err(nonsense(format!("segment {segment} behind segment {behind}")));
        }
        if copy.closure.end.0 > 0 {
            written = Some((copy.identity.epoch, copy.closure.last));
        }
        let overlaps = |(epoch, last)| epoch == next.identity.epoch && next.closure.first <= last;
        if next.closure.end.0 > 0 && written.is_some_and(overlaps) {
            let SegmentIdentity { segment, epoch, .. } = next.identity;
            let first = next.closure.first;
            return Err(nonsense(format!(
                "segment {segment} of epoch {epoch} begins with LSN {first}, which an earlier segment of that epoch holds"
            )));
        }
    }
    Ok(())
}

fn last_segment(inventory: &Inventory) -> Option<SegmentId> {
    inventory.copies.last().map(|copy| copy.identity.segment)
}

/// Everything but the copies.
type Head<'a> = (&'a MemberId, BootId, Option<LogId>, Epoch, Lsn, &'a [String], bool, Option<Synced>, &'a [BootId]);

fn head(page: &Inventory) -> Head<'_> {
    let Inventory { member, boot, log, promised, trimmed, damage, witness, synced, former, .. } = page;
    (member, *boot, *log, *promised, *trimmed, damage, *witness, *synced, former)
}

fn nonsense(why: impl Into<String>) -> Unbelievable {
    Unbelievable::Nonsense(why.into())
}
