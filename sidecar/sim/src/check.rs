//! Judges apart from the code under test: one for each safety rule of the design.
//!
//! [`World`](crate::world::World) shows them every submission, ack, read, win, swap, landing, lending and answer. A rule
//! that is broken ends the run.

mod bounds;
mod history;
mod receiver;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, SegmentIdentity};

use history::History;
use receiver::Receivers;
use table::Tables;
pub(crate) use table::{AskedElsewhere, Does, ENTRY, Mismatch, Operation, Shown, State, ToldElsewhere, size_in_log};

/// Ends the run: a rule is broken.
pub(crate) fn broken(rule: &str, what: String) -> ! {
    panic!("{rule} is broken: {what}");
}

/// A record as its primary was given it.
#[derive(Clone, Debug)]
pub(crate) struct Submitted {
    pub(crate) identity: SegmentIdentity,
    pub(crate) lsn: Lsn,
    /// Where its header begins.
    pub(crate) at: u32,
    pub(crate) payload: Rc<[u8]>,
}

/// All checkers.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// What each epoch was given.
    truth: BTreeMap<(Epoch, Lsn), Submitted>,
    /// The first record of each append.
    appends: BTreeSet<(Epoch, Lsn)>,
    history: History,
    receivers: Receivers,
    tables: Tables,
}

impl Checks {
    /// A primary has placed a batch, its first record's header at this offset.
    pub(crate) fn submitted(&mut self, identity: SegmentIdentity, first: Lsn, at: u32, batch: &[Rc<[u8]>]) {
        self.appends.insert((identity.epoch, first));
        let mut at = at;
        for (lsn, payload) in (first.0..).map(Lsn).zip(batch) {
            let record = Submitted { identity, lsn, at, payload: Rc::clone(payload) };
            at += (RECORD_HEADER_SIZE + payload.len().next_multiple_of(8)) as u32;
            if self.truth.insert((identity.epoch, lsn), record).is_some() {
                broken("S2", format!("epoch {} gives LSN {lsn} twice", identity.epoch));
            }
        }
    }

    /// What the epoch was given under this number.
    pub(crate) fn truth(&self, epoch: Epoch, lsn: Lsn) -> &Submitted {
        let Some(record) = self.truth.get(&(epoch, lsn)) else {
            broken("S2", format!("record {lsn} of epoch {epoch} was never submitted"));
        };
        record
    }

    /// Records that must stay: acknowledged or read, and not trimmed.
    pub(crate) fn owed(&self) -> impl Iterator<Item = &Submitted> {
        self.history.owed().map(|(lsn, epoch)| self.truth(epoch, lsn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwind_protocol::config::{Configuration, Kind, PrimaryRef};
    use tailwind_protocol::ids::{Claim, Generation, LogId, Offset, SegmentId, Version};
    use tailwind_protocol::layout::{Chain, Closure, SegmentSize};
    use tailwind_protocol::recovery::ClosedSegment;

    pub(super) fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
        SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(segment),
            epoch: Epoch(epoch),
            generation: Generation(1),
            size: SegmentSize::MIN,
        }
    }

    pub(super) fn record(payload: &[u8]) -> Rc<[u8]> {
        Rc::from(payload)
    }

    pub(super) fn closed(identity: SegmentIdentity, first: u64, last: u64) -> ClosedSegment {
        let closure = Closure { first: Lsn(first), last: Lsn(last), end: Offset(1), chain: Chain(1) };
        ClosedSegment { identity, closure, holders: Vec::new() }
    }

    pub(super) fn configuration(epoch: u64) -> Configuration {
        Configuration {
            log: LogId(1),
            kind: Kind::Log,
            epoch: Epoch(epoch),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(epoch),
            primary: PrimaryRef { id: "s1".parse().expect("a name"), control: String::new() },
            members: Vec::new(),
        }
    }
}
