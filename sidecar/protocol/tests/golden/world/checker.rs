//! Judges what happens apart from the machines: what is owed to the app, who may acknowledge, what each member holds.
//!
//! Called by [`World`](super::World) at every ack, every win and after every command; panics where a rule is broken.

use std::collections::BTreeMap;

use tailwind_protocol::config::{Configuration, Durability, Stamp};
use tailwind_protocol::ids::{Epoch, LogId, Lsn};

use super::host::Host;
use super::tale;

/// Everything the app was told.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    log: Option<LogId>,
    /// What each epoch was given, by LSN.
    submitted: BTreeMap<(Epoch, Lsn), Vec<u8>>,
    /// Records that were acknowledged or read: they must stay for ever, unless trimmed.
    owed: BTreeMap<Lsn, Vec<u8>>,
    /// The newest epoch that acknowledged or won.
    newest: Epoch,
    trimmed: Lsn,
    stamp: Option<Stamp>,
}

impl Checker {
    pub(crate) fn submitted(&mut self, epoch: Epoch, lsn: Lsn, payload: &[u8]) {
        self.submitted.insert((epoch, lsn), payload.to_vec());
    }

    /// An epoch acknowledges a record that it was given (S1, S4).
    pub(crate) fn acked(&mut self, epoch: Epoch, lsn: Lsn) {
        let payload = self.submitted[&(epoch, lsn)].clone();
        if epoch < self.newest {
            // It had completed everywhere before the fence, and its primary only says so now: then it was recovered.
            let recovered = lsn < self.trimmed || self.owed.get(&lsn) == Some(&payload);
            assert!(recovered, "epoch {epoch} acknowledges {lsn}, which epoch {} does not know (S4)", self.newest);
            return;
        }
        let next = self.owed.keys().last().map_or(Lsn(1), |last| last.next());
        assert!(lsn == next, "{lsn} is acknowledged, {next} is next (S2)");
        self.owed.insert(lsn, payload);
    }

    pub(crate) fn trimmed(&mut self, below: Lsn) {
        self.trimmed = self.trimmed.max(below);
    }

    /// An epoch begins with this recovered log, which the app may read from now on (S1, S2, S3).
    pub(crate) fn recovered(&mut self, config: &Configuration, log: &[(Epoch, Lsn, Vec<u8>)]) {
        if config.epoch < self.newest {
            // Outrun while it slept: it acknowledges nothing, and what its app reads is part of what the newer epoch has.
            for (_, lsn, payload) in log {
                let known = *lsn < self.trimmed || self.owed.get(lsn) == Some(payload);
                assert!(known, "epoch {} shows {lsn}, which epoch {} does not know (S3)", config.epoch, self.newest);
            }
            return;
        }
        assert!(config.epoch > self.newest, "epoch {} begins twice (S4)", config.epoch);
        self.newest = config.epoch;
        for pair in log.windows(2) {
            assert_eq!(pair[0].1.next(), pair[1].1, "the recovered log has a gap (S2)");
        }
        for (epoch, lsn, payload) in log {
            let submitted = self.submitted.get(&(*epoch, *lsn));
            assert_eq!(submitted, Some(payload), "record {lsn} of epoch {epoch} was never submitted like this (S2)");
        }
        let found: BTreeMap<Lsn, &Vec<u8>> = log.iter().map(|(_, lsn, payload)| (*lsn, payload)).collect();
        for (lsn, payload) in self.owed.range(self.trimmed..) {
            assert_eq!(found.get(lsn), Some(&payload), "record {lsn} was acknowledged or read and is gone (S1, S3)");
        }
        self.owed.extend(found.into_iter().map(|(lsn, payload)| (lsn, payload.clone())));
    }

    /// Every member of the committed set that still has the memory it joined with holds all that is owed (S7, S8), and
    /// under durability `flushed` has it on its disk (S1).
    pub(crate) fn check_members<'a>(
        &self,
        config: &Configuration,
        durability: Durability,
        hosts: impl Iterator<Item = &'a Host>,
    ) {
        for host in hosts {
            let member = config.member(&host.name).filter(|member| member.boot == host.boot && !host.flipped);
            if member.is_none() {
                continue;
            }
            let held = host.held();
            let on_disk = host.held_on_disk();
            for (lsn, payload) in self.owed.range(self.trimmed..) {
                let copies = held.get(&(config.log, *lsn)).map(Vec::as_slice).unwrap_or_default();
                let holds = copies.contains(&payload.as_slice());
                assert!(holds, "{} is a member and does not hold record {lsn}, which is owed (S8)", host.name);
                let flushed =
                    on_disk.get(&(config.log, *lsn)).is_some_and(|copies| copies.contains(&payload.as_slice()));
                let enough = flushed || durability != Durability::Flushed;
                assert!(enough, "{} is a member and has not flushed record {lsn}, which is owed (S1)", host.name);
            }
        }
    }

    /// The config store only moves forward (S7).
    pub(crate) fn check_store(&mut self, config: Option<&Configuration>) {
        let stamp = config.map(Configuration::stamp);
        assert!(stamp >= self.stamp, "the configuration went back from {:?} to {stamp:?}", self.stamp);
        self.stamp = stamp;
        if let Some(config) = config {
            assert_eq!(*self.log.get_or_insert(config.log), config.log, "a log keeps its name");
        }
    }

    /// The store was replaced: what it holds from now on says nothing about what it held.
    pub(crate) fn forget_store(&mut self) {
        self.stamp = None;
    }

    /// What is owed, for people.
    pub(crate) fn owed_in_words(&self) -> String {
        let records: Vec<String> =
            self.owed.range(self.trimmed..).map(|(lsn, payload)| format!("{lsn} {}", tale::payload(payload))).collect();
        if records.is_empty() { "nothing".to_owned() } else { records.join(", ") }
    }

    /// Records that were acknowledged or read so far.
    pub(crate) fn records_owed(&self) -> usize {
        self.owed.len()
    }
}
