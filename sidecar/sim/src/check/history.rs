//! What apps were told: S1 (nothing acknowledged is lost), S2 (a gap-free prefix, in order), S3 (what was read stays), S4
//! (one epoch acknowledges), S11 (boards name acknowledged records), S14 (a view is as fresh as it says).

use std::collections::{BTreeMap, BTreeSet};

use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::recovery::Reference;

use super::{Checks, Submitted, broken};

/// Everything that apps were told.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Records that were acknowledged or shown, and the epoch that wrote each: they must stay, unless trimmed.
    owed: BTreeMap<Lsn, Epoch>,
    trimmed: Lsn,
    /// When each epoch showed its app the recovered log.
    won: BTreeMap<Epoch, u64>,
    /// When what was acknowledged last, or shown as recovered: ascending.
    reached: Vec<(u64, Lsn)>,
    /// What an epoch acknowledged when it was over, and had rotted by then.
    disowned: BTreeSet<(Epoch, Lsn)>,
    /// Epochs before this one are excused: what they acknowledged has rotted at every member, or was given up by a person.
    excused: Epoch,
    /// An app was told that everything up to here is on disk at every member.
    synced: Lsn,
    /// A person has ordered a recovery from disk: whatever was not synced may be lost, once.
    forgives: bool,
}

impl History {
    pub(super) fn owed(&self) -> impl Iterator<Item = (Lsn, Epoch)> {
        self.owed.range(self.trimmed..).map(|(lsn, epoch)| (*lsn, *epoch))
    }

    fn last(&self) -> Lsn {
        self.owed.keys().next_back().copied().unwrap_or_default()
    }

    fn newest(&self) -> Epoch {
        self.won.keys().next_back().copied().unwrap_or_default()
    }
}

impl Checks {
    /// An app was told that a record is safe. `rotten`: whether a flipped bit excuses that a newer epoch does not have it. True
    /// if that is news.
    pub(crate) fn acked(&mut self, epoch: Epoch, lsn: Lsn, rotten: impl Fn(&Submitted) -> bool) -> bool {
        let newest = self.history.newest();
        if epoch < newest {
            // It had completed everywhere before the fence, and its primary only says so now: then it was recovered.
            let recovered = lsn < self.history.trimmed || self.history.owed.get(&lsn) == Some(&epoch);
            if !recovered {
                if !rotten(self.truth(epoch, lsn)) {
                    broken("S4", format!("epoch {epoch} acknowledges {lsn}, which epoch {newest} does not have"));
                }
                self.history.disowned.insert((epoch, lsn));
            }
            return false;
        }
        let next = self.history.owed.keys().next_back().map_or(Lsn(1), |last| last.next());
        if lsn != next {
            broken("S2", format!("{lsn} is acknowledged, {next} is next"));
        }
        self.history.owed.insert(lsn, epoch);
        true
    }

    /// An app was told that everything up to this record is on disk at every member.
    pub(crate) fn synced(&mut self, last: Lsn) {
        self.history.synced = self.history.synced.max(last);
    }

    /// What was not synced may be lost, once.
    pub(crate) fn forgive_unsynced(&mut self) {
        self.history.forgives = true;
    }

    pub(crate) fn forgives_unsynced(&self) -> bool {
        self.history.forgives
    }

    /// An app no longer needs what is below.
    pub(crate) fn trimmed(&mut self, below: Lsn) {
        self.history.trimmed = self.history.trimmed.max(below);
    }

    pub(crate) fn trimmed_below(&self) -> Lsn {
        self.history.trimmed
    }

    /// An epoch shows its app this log. `rotten`: whether a flipped bit excuses that this record is
    /// gone, and with it so many appends. True if it was
    /// excused.
    pub(crate) fn won(
        &mut self,
        now: u64,
        config: &Configuration,
        reference: &Reference,
        rotten: impl Fn(&Submitted, usize) -> bool,
    ) -> bool {
        let mut found: BTreeMap<Lsn, Epoch> = BTreeMap::new();
        let mut next = None;
        for segment in &reference.segments {
            if next.is_some_and(|next| next != segment.closure.first) {
                broken("S2", format!("the recovered log has a gap before record {}", segment.closure.first));
            }
            next = Some(segment.closure.last.next());
            for lsn in (segment.closure.first.0..=segment.closure.last.0).map(Lsn) {
                let record = self.truth(segment.identity.epoch, lsn);
                if record.identity != segment.identity {
                    broken("S2", format!("record {lsn} was submitted into another segment"));
                }
                found.insert(lsn, segment.identity.epoch);
            }
        }
        let newest = self.history.newest();
        if config.epoch <= newest {
            // Outrun while it slept: it acknowledges nothing, and what its app reads is part of what the newer epoch has.
            if config.epoch == newest {
                broken("S4", format!("epoch {newest} begins twice"));
            }
            for (lsn, epoch) in found {
                if lsn >= self.history.trimmed && self.history.owed.get(&lsn) != Some(&epoch) {
                    let older = config.epoch;
                    broken("S3", format!("epoch {older} shows {lsn}, which epoch {newest} does not have"));
                }
            }
            return false;
        }
        if std::mem::take(&mut self.history.forgives) {
            let (synced, before) = (self.history.synced, self.history.owed.len());
            self.history.owed.retain(|lsn, epoch| *lsn <= synced || found.get(lsn) == Some(epoch));
            if self.history.owed.len() < before {
                self.history.reached.clear();
                self.history.excused = config.epoch;
            }
        }
        // Trimmed or not, the last one must be there: it tells where the log goes on.
        let last = self.history.owed.last_key_value().map(|(lsn, epoch)| (*lsn, *epoch));
        let mut lost = self.history.owed().chain(last).filter(|(lsn, epoch)| found.get(lsn) != Some(epoch)).peekable();
        let first = lost.peek().copied();
        let appends: BTreeSet<(Epoch, Lsn)> =
            lost.filter_map(|(lsn, epoch)| self.appends.range(..=(epoch, lsn)).next_back().copied()).collect();
        let (lost, appends) = (first, appends.len());
        let excused = lost.is_some_and(|(lsn, epoch)| rotten(self.truth(epoch, lsn), appends));
        match lost {
            Some(_) if excused => {
                self.history.owed.clear();
                self.history.reached.clear();
                self.history.excused = config.epoch;
            }
            Some((lsn, epoch)) => {
                broken("S1", format!("record {lsn} of epoch {epoch} was acknowledged or shown, and is gone"))
            }
            None => {}
        }
        self.history.won.insert(config.epoch, now);
        self.history.owed.extend(found);
        self.acked_by(now, reference.last());
        excused
    }

    /// By now everything up to this record is acknowledged.
    pub(crate) fn acked_by(&mut self, now: u64, last: Lsn) {
        if self.history.reached.last().is_none_or(|(_, before)| *before < last) {
            self.history.reached.push((now, last));
        }
    }

    /// A board names this record as acknowledged (S11).
    pub(crate) fn board_shows(&self, epoch: Epoch, acked: Lsn) {
        let known = self.history.owed.get(&acked).is_some_and(|wrote| *wrote <= epoch);
        if !known && acked > Lsn(0) && acked >= self.history.trimmed && epoch >= self.history.excused {
            broken("S11", format!("a board of epoch {epoch} names record {acked}, which was not acknowledged"));
        }
    }

    /// A follower in the latest history, which has believed a board of this epoch, names this record as acknowledged (S11).
    pub(crate) fn lag_names(&self, epoch: Epoch, acked: Lsn) {
        let last = self.history.last();
        if acked > last && epoch >= self.history.excused {
            broken("S11", format!("a follower names record {acked} as acknowledged, and the log ends with {last}"));
        }
    }

    /// A reader takes this record for the last one that was acknowledged before a moment (S14).
    pub(crate) fn board_covers(&self, epoch: Epoch, acked: Lsn, moment: u64) {
        if epoch < self.history.excused {
            return;
        }
        if let Some((newer, won)) = self.begun_before(epoch, moment) {
            broken("S14", format!("a board of epoch {epoch} covers {moment}; epoch {newer} began at {won}"));
        }
        let last = self.reached_before(moment);
        if acked < last {
            broken("S14", format!("a board covers {moment} and names record {acked}; {last} was acknowledged before"));
        }
    }

    /// The last record that was acknowledged, or shown as recovered, before a moment.
    pub(crate) fn reached_before(&self, moment: u64) -> Lsn {
        let before = self.history.reached.partition_point(|(when, _)| *when < moment);
        self.history.reached[..before].last().map_or(Lsn(0), |(_, last)| *last)
    }

    /// What was acknowledged before this epoch has been lost, with an excuse.
    pub(crate) fn excuses_before(&self, epoch: Epoch) -> bool {
        self.history.excused == epoch
    }

    /// The last record that was acknowledged or shown.
    pub(crate) fn last_owed(&self) -> Lsn {
        self.history.last()
    }

    /// An app has read a record through the sidecar of this epoch.
    pub(crate) fn read(&mut self, reader: Epoch, lsn: Lsn, payload: &[u8]) {
        let known = match self.history.disowned.contains(&(reader, lsn)) {
            true => Some(reader),
            false => self.history.owed.get(&lsn).copied(),
        };
        let Some(epoch) = known else {
            if lsn < self.history.trimmed {
                return;
            }
            broken(
                "S3",
                format!("the app of epoch {reader} reads {lsn}, which was neither acknowledged nor recovered"),
            );
        };
        if self.truth(epoch, lsn).payload[..] != *payload {
            broken("S2", format!("the app of epoch {reader} reads other bytes in record {lsn} than were submitted"));
        }
    }

    /// An app that asked at that moment is told where the log ends, by the sidecar of this epoch: no newer epoch had begun (S16).
    pub(crate) fn end_is_told(&self, epoch: Epoch, asked: u64) {
        if let Some((newer, won)) = self.begun_before(epoch, asked) {
            broken(
                "S16",
                format!("epoch {epoch}, asked at {asked}, tells where the log ends; epoch {newer} began at {won}"),
            );
        }
    }

    /// A barrier that was asked for at that moment has passed: its caller was still primary then (S4).
    pub(crate) fn barrier_passed(&self, epoch: Epoch, asked: u64) {
        if let Some((newer, won)) = self.begun_before(epoch, asked) {
            broken("S4", format!("a barrier of epoch {epoch}, asked at {asked}, passes; epoch {newer} began at {won}"));
        }
    }

    /// A newer epoch that had begun by then, and when.
    fn begun_before(&self, epoch: Epoch, moment: u64) -> Option<(Epoch, u64)> {
        let newer = self.history.won.range(epoch.next()..).find(|(_, won)| **won < moment);
        newer.map(|(newer, won)| (*newer, *won))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{closed, configuration, identity, record};

    fn three_records() -> Checks {
        let mut checks = Checks::default();
        checks.submitted(identity(1, 1), Lsn(1), 72, &[record(b"a"), record(b"b"), record(b"c")]);
        checks.won(0, &configuration(1), &Reference::default(), |_, _| false);
        checks.acked(Epoch(1), Lsn(1), |_| false);
        checks.acked(Epoch(1), Lsn(2), |_| false);
        checks
    }

    fn recovered(last: u64) -> Reference {
        Reference { segments: vec![closed(identity(1, 1), 1, last)], ..Reference::default() }
    }

    #[test]
    fn correct_history_passes() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(3), |_, _| false);
        checks.read(Epoch(2), Lsn(3), b"c");
        checks.acked(Epoch(1), Lsn(3), |_| false);
        checks.barrier_passed(Epoch(1), 4);
        checks.end_is_told(Epoch(1), 4);
    }

    #[test]
    fn boards_that_are_right_pass() {
        let mut checks = three_records();
        checks.acked_by(3, Lsn(2));
        checks.board_shows(Epoch(1), Lsn(0));
        checks.board_shows(Epoch(1), Lsn(2));
        checks.board_covers(Epoch(1), Lsn(1), 3);
        checks.board_covers(Epoch(1), Lsn(2), 4);
        checks.won(5, &configuration(2), &recovered(3), |_, _| false);
        checks.board_shows(Epoch(1), Lsn(2));
        checks.board_covers(Epoch(1), Lsn(2), 5);
        checks.board_shows(Epoch(2), Lsn(3));
    }

    #[test]
    #[should_panic(expected = "S11 is broken: a board of epoch 1 names record 3")]
    fn a_board_that_names_what_is_not_acknowledged_is_noticed() {
        three_records().board_shows(Epoch(1), Lsn(3));
    }

    #[test]
    #[should_panic(expected = "S11 is broken: a board of epoch 1 names record 3")]
    fn a_board_that_names_a_record_of_a_later_epoch_is_noticed() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(2), |_, _| false);
        checks.submitted(identity(2, 2), Lsn(3), 72, &[record(b"d")]);
        checks.acked(Epoch(2), Lsn(3), |_| false);
        checks.board_shows(Epoch(1), Lsn(3));
    }

    #[test]
    #[should_panic(expected = "S11 is broken: a follower names record 3 as acknowledged, and the log ends with 2")]
    fn a_follower_that_names_what_is_lost_is_noticed() {
        let checks = three_records();
        checks.lag_names(Epoch(1), Lsn(2));
        checks.lag_names(Epoch(1), Lsn(3));
    }

    #[test]
    #[should_panic(expected = "S14 is broken: a board covers 4 and names record 1; 2 was acknowledged before")]
    fn a_view_that_misses_an_ack_is_noticed() {
        let mut checks = three_records();
        checks.acked_by(3, Lsn(2));
        checks.board_covers(Epoch(1), Lsn(1), 4);
    }

    #[test]
    #[should_panic(expected = "S14 is broken: a board of epoch 1 covers 6; epoch 2 began at 5")]
    fn a_view_of_a_zombie_is_noticed() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(3), |_, _| false);
        checks.board_covers(Epoch(1), Lsn(3), 6);
    }

    #[test]
    #[should_panic(expected = "S1 is broken: record 2")]
    fn a_lost_ack_is_noticed() {
        three_records().won(5, &configuration(2), &recovered(1), |_, _| false);
    }

    #[test]
    fn what_was_not_synced_may_be_lost_once() {
        let mut checks = three_records();
        checks.synced(Lsn(1));
        checks.forgive_unsynced();
        checks.won(5, &configuration(2), &recovered(1), |_, _| false);
        assert!(!checks.forgives_unsynced());
    }

    #[test]
    #[should_panic(expected = "S1 is broken: record 2")]
    fn what_was_synced_must_stay() {
        let mut checks = three_records();
        checks.synced(Lsn(2));
        checks.forgive_unsynced();
        checks.won(5, &configuration(2), &recovered(1), |_, _| false);
    }

    #[test]
    #[should_panic(expected = "S1 is broken: record 3")]
    fn what_was_once_shown_must_stay() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(3), |_, _| false);
        checks.won(6, &configuration(3), &recovered(2), |_, _| false);
    }

    #[test]
    #[should_panic(expected = "S1 is broken: record 2")]
    fn the_number_of_a_trimmed_record_is_not_used_again() {
        let mut checks = three_records();
        checks.trimmed(Lsn(3));
        checks.won(5, &configuration(2), &Reference::default(), |_, _| false);
    }

    #[test]
    fn log_restarts_if_a_bit_flip_took_all_of_it() {
        let mut checks = three_records();
        checks.trimmed(Lsn(3));
        assert!(checks.won(5, &configuration(2), &Reference::default(), |_, _| true));
        checks.submitted(identity(1, 2), Lsn(1), 72, &[record(b"d")]);
        checks.acked(Epoch(2), Lsn(1), |_| false);
    }

    #[test]
    #[should_panic(expected = "S2 is broken: 2 is acknowledged, 1 is next")]
    fn a_gap_is_noticed() {
        let mut checks = Checks::default();
        checks.submitted(identity(1, 1), Lsn(1), 72, &[record(b"a"), record(b"b")]);
        checks.acked(Epoch(1), Lsn(2), |_| false);
    }

    #[test]
    #[should_panic(expected = "S2 is broken: record 4 of epoch 1 was never submitted")]
    fn an_invented_record_is_noticed() {
        three_records().won(5, &configuration(2), &recovered(4), |_, _| false);
    }

    #[test]
    #[should_panic(expected = "S2 is broken: the app of epoch 1 reads other bytes")]
    fn a_changed_record_is_noticed() {
        three_records().read(Epoch(1), Lsn(1), b"x");
    }

    #[test]
    #[should_panic(expected = "S3 is broken: the app of epoch 1 reads 3")]
    fn a_read_of_what_may_vanish_is_noticed() {
        three_records().read(Epoch(1), Lsn(3), b"c");
    }

    #[test]
    #[should_panic(expected = "S4 is broken: epoch 1 acknowledges 3")]
    fn a_late_ack_of_an_old_epoch_is_noticed() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(2), |_, _| false);
        checks.acked(Epoch(1), Lsn(3), |_| false);
    }

    #[test]
    fn a_late_ack_of_what_has_rotted_is_excused() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(2), |_, _| false);
        assert!(!checks.acked(Epoch(1), Lsn(3), |late| late.lsn == Lsn(3)), "that is no news");
        checks.read(Epoch(1), Lsn(3), b"c");
    }

    #[test]
    #[should_panic(expected = "S4 is broken: a barrier of epoch 1")]
    fn a_barrier_of_a_zombie_is_noticed() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(2), |_, _| false);
        checks.barrier_passed(Epoch(1), 6);
    }

    #[test]
    #[should_panic(expected = "S16 is broken: epoch 1, asked at 6, tells where the log ends; epoch 2 began at 5")]
    fn an_end_told_by_a_zombie_is_noticed() {
        let mut checks = three_records();
        checks.won(5, &configuration(2), &recovered(3), |_, _| false);
        checks.end_is_told(Epoch(1), 6);
    }
}
