//! Judges what happens apart from the machines: what is owed to the app, who may acknowledge, what each member holds.
//!
//! Called by [`step`](super::step) at every append, ack and win, and after every step. Shares no decision with the code
//! under test; only reading valid bytes is left to the production scan.

use std::collections::BTreeMap;

use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, Lsn};

use super::host::Host;
use super::part::Part;

/// Everything the apps were told, and what they had asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Judge {
    /// What each epoch was given.
    submitted: BTreeMap<(Epoch, Lsn), Vec<u8>>,
    /// Records that were acknowledged, or shown after a win: they must stay for ever.
    owed: BTreeMap<Lsn, Vec<u8>>,
    /// The newest epoch that acknowledged or won.
    newest: Epoch,
}

impl Judge {
    pub(super) fn submitted(&mut self, epoch: Epoch, lsn: Lsn, payload: Vec<u8>) {
        self.submitted.insert((epoch, lsn), payload);
    }

    /// An epoch acknowledges a record that it was given (S1, S2, S4).
    pub(super) fn acked(&mut self, epoch: Epoch, lsn: Lsn) -> Result<(), String> {
        let payload = self.submitted.get(&(epoch, lsn)).cloned().ok_or("S2: an ack of what was never submitted")?;
        if epoch < self.newest {
            // It had completed everywhere before the fence, and its primary only says so now: then it was recovered.
            let recovered = self.owed.get(&lsn) == Some(&payload);
            let newest = self.newest;
            let wrong = || format!("S4: epoch {epoch} acknowledges {lsn}, which epoch {newest} does not have");
            return recovered.then_some(()).ok_or_else(wrong);
        }
        self.newest = epoch;
        let next = self.owed.keys().last().map_or(Lsn(1), |last| last.next());
        if lsn != next {
            return Err(format!("S2: {lsn} is acknowledged, {next} is next"));
        }
        self.owed.insert(lsn, payload);
        Ok(())
    }

    /// An epoch begins with this recovered log, which the app may read from now on (S1, S2, S3).
    pub(super) fn recovered(&mut self, epoch: Epoch, log: &[(Epoch, Lsn, Vec<u8>)]) -> Result<(), String> {
        if epoch < self.newest {
            // Outrun while it slept: what its app reads is part of what the newer epoch has.
            let stranger = log.iter().find(|(_, lsn, payload)| self.owed.get(lsn) != Some(payload));
            return match stranger {
                Some((_, lsn, _)) => Err(format!("S3: epoch {epoch} shows {lsn}, which a newer epoch does not have")),
                None => Ok(()),
            };
        }
        if epoch == self.newest {
            return Err(format!("S4: epoch {epoch} begins twice"));
        }
        self.newest = epoch;
        for (at, (of, lsn, payload)) in log.iter().enumerate() {
            if *lsn != Lsn(at as u64 + 1) {
                return Err(format!("S2: the log that epoch {epoch} recovers has {lsn} in place {}", at + 1));
            }
            if self.submitted.get(&(*of, *lsn)) != Some(payload) {
                return Err(format!("S2: record {lsn} of epoch {of} was never submitted like this"));
            }
        }
        for (lsn, payload) in &self.owed {
            if !log.iter().any(|(_, found, bytes)| found == lsn && bytes == payload) {
                return Err(format!("S1: record {lsn} was acknowledged or shown, and epoch {epoch} does not have it"));
            }
        }
        self.owed.extend(log.iter().map(|(_, lsn, payload)| (*lsn, payload.clone())));
        Ok(())
    }

    /// A follower hands out a record (S3, S15).
    pub(super) fn handed_out(&self, expected: Lsn, lsn: Lsn, payload: &[u8]) -> Result<(), String> {
        if lsn != expected {
            return Err(format!("S15: a follower hands out record {lsn}, {expected} is next"));
        }
        match self.owed.get(&lsn) {
            Some(owed) if owed == payload => Ok(()),
            _ => Err(format!("S3: a follower hands out record {lsn}, which was neither acknowledged nor recovered")),
        }
    }

    /// Every member of the set that still has the memory it joined with holds all that is owed (S7, S8).
    pub(super) fn members_hold(&self, config: &Configuration, hosts: &[Part<Host>]) -> Result<(), String> {
        if self.owed.is_empty() {
            return Ok(());
        }
        for host in hosts.iter().filter(|host| config.member(&host.name).is_some_and(|m| m.boot == host.boot)) {
            let held = host.held(config.log);
            let missing = self.owed.iter().find(|(lsn, payload)| !held.iter().any(|(l, p)| l == *lsn && p == *payload));
            if let Some((lsn, _)) = missing {
                let name = &host.name;
                return Err(format!("S8: {name} is a member and does not hold record {lsn}, which was acknowledged"));
            }
        }
        Ok(())
    }
}
