//! What backups let happen to their memory: S4 (no byte of an older epoch after a fence was reported), S5 (the promise is
//! on disk before it is given, and kept), S6 (a buffer is zero, and nobody else's, when it is lent), S10 (what the answer to a
//! fence showed as absent stays absent until it is lent anew), S12 (what it has closed and lost it misses).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tailwind_protocol::backup::{Backup, Reply, Request, RequestId, Slot};
use tailwind_protocol::ids::{Epoch, Lsn, Offset};
use tailwind_protocol::layout::{Sealed, SegmentIdentity};
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};

use super::{Checks, broken};
use crate::world::{Host, HostNo, Key};

/// What each backup has said.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    /// The newest fence that it has reported.
    reported: BTreeMap<HostNo, Epoch>,
    /// Those of which an older promise has been put back.
    went_back: BTreeSet<HostNo>,
    /// Requests that were taken and not answered.
    asked: BTreeMap<RequestId, Asked>,
    /// What each may hold: shown by the last answer to a fence, or lent since.
    known: BTreeMap<HostNo, HashSet<SegmentIdentity>>,
    /// What each has ever held.
    ever: BTreeMap<HostNo, HashSet<SegmentIdentity>>,
    /// What each has said to be closed.
    closed: BTreeMap<HostNo, HashSet<SegmentIdentity>>,
    /// Open segments of which each has said that a part is on its disk, and that nobody has asked it to drop.
    flushed: BTreeMap<HostNo, HashSet<SegmentIdentity>>,
}

/// A request that a backup has taken.
#[derive(Clone, Copy, Debug)]
struct Asked {
    epoch: Epoch,
    fence: bool,
    close: Option<SegmentIdentity>,
    flush: Option<SegmentIdentity>,
    /// What the backup had reported by then.
    reported: Epoch,
}

impl Checks {
    pub(crate) fn asked(&mut self, host: &Host, id: RequestId, request: &Request) {
        let reported = self.receivers.reported.get(&host.no).copied().unwrap_or_default();
        let (epoch, fence) = match request {
            Request::Fence(request) => (request.caller.epoch, true),
            Request::Connect(caller) => (caller.epoch, false),
            Request::Open(request) => (request.caller.epoch, false),
            Request::Close(request) => (request.caller.epoch, false),
            Request::Flush(request) => (request.caller.epoch, false),
            Request::Sync(request) => (request.caller.epoch, false),
            Request::Trim(request) => (request.caller.epoch, false),
            Request::Drop(request) => (request.caller.epoch, false),
            Request::Inventory(_) | Request::Damage | Request::Fetch(_) => return,
        };
        let close = if let Request::Close(request) = request { Some(request.identity) } else { None };
        let flush = if let Request::Flush(request) = request { Some(request.identity) } else { None };
        if let (Request::Drop(request), Some(flushed)) = (request, self.receivers.flushed.get_mut(&host.no)) {
            flushed.retain(|identity| !request.copies.iter().any(|copy| copy.identity == *identity));
        }
        self.receivers.asked.insert(id, Asked { epoch, fence, close, flush, reported });
    }

    /// A backup takes a segment into a buffer.
    pub(crate) fn takes(&mut self, host: HostNo, identity: SegmentIdentity) {
        self.receivers.known.entry(host).or_default().insert(identity);
        self.receivers.ever.entry(host).or_default().insert(identity);
    }

    /// A backup's process begins. What it must not believe it must doubt now: what it is asked later may hide it.
    pub(crate) fn starts(&self, host: &Host) {
        Checks::doubts_the_promise(host, host.machine().is_some_and(Backup::is_witness));
    }

    fn doubts_the_promise(host: &Host, is_witness: bool) {
        if let Some(epoch) = host.stale_promise.filter(|_| is_witness) {
            let name = &host.name;
            broken("S12", format!("{name} believes a promise that is older than its segment of epoch {epoch}"));
        }
    }

    /// A backup tells what it holds.
    fn shows(&mut self, host: &Host, inventory: &Inventory, first_of_epoch: bool) {
        // A file that was trimmed away may outlive its removal. The promise on the same disk says that it is not needed, unless an
        // older one has been put back.
        let went_back = self.receivers.went_back.contains(&host.no);
        let trimmed = if went_back { self.trimmed_below() } else { inventory.trimmed };
        let known = self.receivers.known.entry(host.no).or_default();
        let needed = inventory.copies.iter().filter(|copy| copy.closure.last >= trimmed);
        let mut shown = needed.map(|copy| copy.identity);
        if let Some(SegmentIdentity { segment, epoch, .. }) = shown.find(|identity| !known.contains(identity)) {
            let name = &host.name;
            broken(
                "S10",
                format!("{name} shows segment {segment} of epoch {epoch}, which it has shown as absent before"),
            );
        }
        if first_of_epoch {
            *known = inventory.copies.iter().map(|copy| copy.identity).collect();
        }
    }

    /// A backup that says it can tell where its log ends misses what was taken from it.
    fn misses(&self, host: &Host, inventory: &Inventory) {
        if !inventory.witness || inventory.more {
            return;
        }
        let name = &host.name;
        Checks::doubts_the_promise(host, inventory.witness);
        if host.stale_notes {
            broken("S12", format!("{name} believes notes of flushes that are older than its ledger"));
        }
        let closed = |identity: &SegmentIdentity| {
            self.receivers.closed.get(&host.no).is_some_and(|closed| closed.contains(identity))
        };
        let shown = |segment| inventory.copies.iter().any(|copy| copy.identity.segment == segment);
        // A file of an open segment is shorter than its buffer was.
        let shown_whole = |segment| {
            inventory.copies.iter().any(|copy| copy.identity.segment == segment && copy.state != CopyState::Open)
        };
        if let Some(open) = host.missed_open.iter().find(|open| !shown_whole(open.segment)) {
            broken("S12", format!("{name} has lost the buffer of segment {}, and does not say so", open.segment));
        }
        let flushed = |identity: &SegmentIdentity| {
            self.receivers.flushed.get(&host.no).is_some_and(|flushed| flushed.contains(identity))
        };
        // Where a later one is closed, the log does not end before it.
        let beyond = |segment| {
            let closed = |copy: &&CopyReport| matches!(copy.state, CopyState::Closed | CopyState::Corrupt);
            inventory.copies.iter().filter(closed).any(|copy| copy.identity.segment > segment)
        };
        let unseen = |lost: &&SegmentIdentity| flushed(lost) && !shown(lost.segment) && !beyond(lost.segment);
        if let Some(SegmentIdentity { segment, .. }) = host.missed_files.iter().find(unseen) {
            broken("S12", format!("{name} has lost the file of open segment {segment}, and does not say so"));
        }
        let hidden = |(identity, last): &&(SegmentIdentity, Lsn)| {
            *last >= inventory.trimmed && closed(identity) && !shown(identity.segment)
        };
        if let Some((SegmentIdentity { segment, .. }, last)) = host.missed.iter().find(hidden) {
            broken(
                "S12",
                format!("{name} has closed segment {segment} up to LSN {last}, lost it, and does not say so"),
            );
        }
        // A buffer that was not flushed yet, or an image, is another copy; a resident is none.
        let here = |identity: &SegmentIdentity| {
            let row = host.rows.values().any(|row| row.identity == *identity && row.closed.is_some());
            row || host.files.segment(identity.segment, Sealed::Closed).is_some()
        };
        let whole = |(identity, _): &&(SegmentIdentity, Lsn)| {
            let shown = |copy: &CopyReport| copy.identity == *identity && copy.state == CopyState::Closed;
            !here(identity) && inventory.copies.iter().any(shown)
        };
        if let Some((SegmentIdentity { segment, .. }, _)) = host.missed.iter().find(whole) {
            broken("S12", format!("{name} has lost the file of closed segment {segment}, and calls it whole"));
        }
    }

    pub(crate) fn replies(&mut self, host: &Host, id: RequestId, reply: &Reply) {
        if let Reply::Inventory(inventory) = reply {
            // A repeated answer does not list what the same epoch has been lent since.
            let before = self.receivers.reported.get(&host.no).copied().unwrap_or_default();
            let first = |asked: &Asked| asked.fence && asked.epoch > before;
            self.shows(host, inventory, self.receivers.asked.get(&id).is_some_and(first));
            self.misses(host, inventory);
        }
        let Some(Asked { epoch, fence, close, flush, reported: before }) = self.receivers.asked.remove(&id) else {
            return;
        };
        if let (Some(identity), Reply::Flushed(end)) = (flush, reply)
            && *end > Offset(0)
        {
            self.receivers.flushed.entry(host.no).or_default().insert(identity);
        }
        if let (Some(identity), Reply::Done) = (close, reply) {
            self.receivers.closed.entry(host.no).or_default().insert(identity);
        }
        let reported = self.receivers.reported.entry(host.no).or_default();
        match reply {
            Reply::Inventory(_) if fence => {
                let on_disk =
                    host.files.member_state().map(|member_state| member_state.promise.epoch).unwrap_or_default();
                if on_disk < epoch {
                    let name = &host.name;
                    broken("S5", format!("{name} reports the fence of epoch {epoch}; its disk says {on_disk}"));
                }
                if let Some(old) = host.lendings.values().find(|lending| lending.writer < epoch) {
                    let (name, writer) = (&host.name, old.writer);
                    broken("S4", format!("{name} reports the fence of epoch {epoch}; epoch {writer} can still write"));
                }
                *reported = (*reported).max(epoch);
            }
            Reply::Refused(_) => {}
            // What was taken before a fence may end after it; what came after it must have been refused.
            Reply::Done | Reply::Flushed(_) if epoch < before => {
                let name = &host.name;
                broken("S5", format!("{name} serves epoch {epoch}, asked after it has reported the fence of {before}"));
            }
            Reply::Connect(_) | Reply::Opened(_) if epoch < *reported => {
                let name = &host.name;
                broken("S5", format!("{name} serves epoch {epoch} after it has reported the fence of {reported}"));
            }
            _ => {}
        }
    }

    /// A byte reaches a backup's memory.
    pub(crate) fn lands(&self, host: &Host, slot: Slot, key: Key, epoch: Epoch) {
        let name = &host.name;
        let reported = self.receivers.reported.get(&host.no).copied().unwrap_or_default();
        if epoch < reported {
            broken(
                "S4",
                format!("a byte of epoch {epoch} lands at {name}, which has reported the fence of {reported}"),
            );
        }
        if host.lendings.get(&slot).is_none_or(|lending| lending.key != key) {
            broken("S6", format!("a byte lands in buffer {} of {name} with a key that is over", slot.0));
        }
    }

    /// A lending is about to end because its writer has finished: its memory may be lent again in place.
    pub(crate) fn finishes(&self, host: &Host, slot: Slot, writing: bool) {
        if writing {
            broken("S6", format!("buffer {} of {} is taken for finished, and is being written", slot.0, host.name));
        }
    }

    /// A buffer is about to be lent.
    pub(crate) fn lends(&self, host: &Host, slot: Slot) {
        if host.lendings.contains_key(&slot) {
            broken("S6", format!("buffer {} of {} is lent while somebody else can write it", slot.0, host.name));
        }
    }

    /// A buffer has been lent.
    pub(crate) fn lent(&self, host: &Host, slot: Slot, zero: bool) {
        if !zero {
            broken("S6", format!("buffer {} of {} is lent and not all zero", slot.0, host.name));
        }
        let reported = self.receivers.reported.get(&host.no).copied().unwrap_or_default();
        if host.lendings.get(&slot).is_some_and(|lending| lending.writer < reported) {
            broken("S5", format!("{} lends to an epoch older than {reported}, whose fence it has reported", host.name));
        }
    }

    /// An older promise has been put back: what was promised since is nobody's fault.
    pub(crate) fn goes_back(&mut self, host: HostNo, epoch: Epoch) {
        self.receivers.reported.entry(host).and_modify(|reported| *reported = (*reported).min(epoch));
        self.receivers.went_back.insert(host);
    }

    /// An older folder has been put back: what was trimmed since is there again.
    pub(crate) fn finds_everything(&mut self, host: HostNo) {
        let ever = self.receivers.ever.get(&host).cloned().unwrap_or_default();
        self.receivers.known.insert(host, ever);
    }

    /// The backup was replaced by another one of the same name.
    pub(crate) fn forgets(&mut self, host: HostNo) {
        self.receivers.reported.remove(&host);
        self.receivers.went_back.remove(&host);
        self.receivers.known.remove(&host);
        self.receivers.ever.remove(&host);
        self.receivers.closed.remove(&host);
        self.receivers.flushed.remove(&host);
    }
}
