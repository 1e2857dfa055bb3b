//! Counts what happened: faults of each kind, acks, failovers, outages. Added up over seeds for the summary.

mod faults;

use std::collections::BTreeMap;
use std::fmt;

pub use faults::Fault;

/// What happened in one seed, or in many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds.
    pub seeds: u64,
    /// Virtual time, microseconds.
    pub simulated: u64,
    /// Events.
    pub events: u64,
    /// Faults by kind; those that never struck are not listed.
    pub faults: BTreeMap<Fault, u64>,
    /// Records that were acknowledged, and so checked to the end.
    pub acked: u64,
    /// Records that were read and compared.
    pub read: u64,
    /// Epochs that began after the first.
    pub failovers: u64,
    /// Changes of the member set.
    pub swaps: u64,
    /// Times that appends have paused for a newcomer.
    pub pauses: u64,
    /// Segments that backups have pulled.
    pub pulls: u64,
    /// Pulls that no source could serve.
    pub pulls_failed: u64,
    /// Segments read from disk to be residents.
    pub loads: u64,
    /// Segments fetched from residents, and read from them one-sidedly.
    pub from_residents: u64,
    /// Residents that did not verify when they were fetched.
    pub residents_corrupt: u64,
    /// Syncs answered.
    pub syncs: u64,
    /// Barriers passed.
    pub barriers: u64,
    /// Boards that were read and verified.
    pub boards_read: u64,
    /// Boards that did not verify: torn, or not written yet.
    pub boards_torn: u64,
    /// Boards of which the reader knew how old they were.
    pub boards_fresh: u64,
    /// Records handed out by followers, and compared.
    pub followed: u64,
    /// Promotions of sidecars that followed.
    pub turns: u64,
    /// Requests of tables that were carried out.
    pub applied: u64,
    /// Requests of which a condition did not hold.
    pub mismatches: u64,
    /// Of those, the ones that were told.
    pub mismatches_told: u64,
    /// Requests that a table had no room for.
    pub full: u64,
    /// Times that a request could not be placed.
    pub waits: u64,
    /// Logs folded at a win.
    pub folded: u64,
    /// Of those, the ones of which the winner had folded a part as a standby.
    pub warm: u64,
    /// Wins of standbys that had folded another log.
    pub warm_in_vain: u64,
    /// Gets that were answered with what a key has.
    pub gets: u64,
    /// Gets that could not be answered in their time.
    pub gets_unavailable: u64,
    /// Times that a record was asked for.
    pub records_fetched: u64,
    /// Records that came and were not what they should be.
    pub records_refused: u64,
    /// Times that a request waited for the sources of its copies.
    pub copies_fetched: u64,
    /// Requests whose sources could not be had in their time.
    pub copies_given_up: u64,
    /// Rounds of mirrors that were published.
    pub rounds: u64,
    /// Mirrors whose channel was lost and opened again.
    pub reopened: u64,
    /// Visits of getters.
    pub visits: u64,
    /// Gets that getters have answered with a value.
    pub got: u64,
    /// Of absent keys.
    pub got_absent: u64,
    /// Of those, the ones that have read an entry which had become zeros.
    pub got_zeros: u64,
    /// With the value before.
    pub got_older: u64,
    /// Gets that getters could not answer.
    pub got_nothing: u64,
    /// Gets that waited when their sidecar won.
    pub handed_over: u64,
    /// Records that getters have read one-sidedly, and fetched.
    pub got_records: u64,
    /// See [`Tally::got_records`].
    pub got_fetched: u64,
    /// Records that cleaners have had judged.
    pub judged: u64,
    /// Of those, the ones that were moved.
    pub moved: u64,
    /// Bytes of log that they took.
    pub moved_bytes: u64,
    /// Trims by cleaners.
    pub cleaned: u64,
    /// Longest time in which appends waited and none was acknowledged while faults struck, microseconds.
    pub outage_max: u64,
    /// Longest time from the end of the faults to the first new ack, microseconds.
    pub return_max: u64,
    /// Longest time from the loss of a member to the full size under load, microseconds.
    pub grown_max: u64,
    /// Seeds in which too few members kept their memory for the group to go on: nothing wrong was said.
    pub lost_for_good: u64,
    /// Seeds in which a flipped bit hit the only copy that could be had.
    pub rotten_for_good: u64,
    /// Seeds in which the group waits for a person, because every copy at hand was damaged.
    pub damaged_for_good: u64,
}

impl Tally {
    /// Counts a fault.
    pub(crate) fn count(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// Adds another seed's.
    pub fn add(&mut self, other: &Tally) {
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        self.events += other.events;
        other.faults.iter().for_each(|(fault, count)| *self.faults.entry(*fault).or_default() += count);
        self.acked += other.acked;
        self.read += other.read;
        self.failovers += other.failovers;
        self.swaps += other.swaps;
        self.pauses += other.pauses;
        self.pulls += other.pulls;
        self.pulls_failed += other.pulls_failed;
        self.loads += other.loads;
        self.from_residents += other.from_residents;
        self.residents_corrupt += other.residents_corrupt;
        self.syncs += other.syncs;
        self.barriers += other.barriers;
        self.boards_read += other.boards_read;
        self.boards_torn += other.boards_torn;
        self.boards_fresh += other.boards_fresh;
        self.followed += other.followed;
        self.turns += other.turns;
        self.applied += other.applied;
        self.mismatches += other.mismatches;
        self.mismatches_told += other.mismatches_told;
        self.gets += other.gets;
        self.gets_unavailable += other.gets_unavailable;
        self.records_fetched += other.records_fetched;
        self.records_refused += other.records_refused;
        self.copies_fetched += other.copies_fetched;
        self.copies_given_up += other.copies_given_up;
        self.full += other.full;
        self.waits += other.waits;
        self.folded += other.folded;
        self.warm += other.warm;
        self.warm_in_vain += other.warm_in_vain;
        self.rounds += other.rounds;
        self.reopened += other.reopened;
        self.visits += other.visits;
        self.got += other.got;
        self.got_absent += other.got_absent;
        self.got_zeros += other.got_zeros;
        self.got_older += other.got_older;
        self.got_nothing += other.got_nothing;
        self.handed_over += other.handed_over;
        self.got_records += other.got_records;
        self.got_fetched += other.got_fetched;
        self.judged += other.judged;
        self.moved += other.moved;
        self.moved_bytes += other.moved_bytes;
        self.cleaned += other.cleaned;
        self.outage_max = self.outage_max.max(other.outage_max);
        self.return_max = self.return_max.max(other.return_max);
        self.grown_max = self.grown_max.max(other.grown_max);
        self.lost_for_good += other.lost_for_good;
        self.rotten_for_good += other.rotten_for_good;
        self.damaged_for_good += other.damaged_for_good;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated as f64 / 3.6e9;
        let seconds = |micros: u64| micros as f64 / 1e6;
        writeln!(f, "{} seeds, {hours:.1} simulated hours, {} events", self.seeds, self.events)?;
        writeln!(f, "{} records acknowledged and checked, {} read back and compared", self.acked, self.read)?;
        writeln!(
            f,
            "{} failovers, {} changes of the member set, {} pauses for newcomers, {} syncs, {} barriers",
            self.failovers, self.swaps, self.pauses, self.syncs, self.barriers
        )?;
        writeln!(f, "{} segments pulled, {} pulls that no source could serve", self.pulls, self.pulls_failed)?;
        writeln!(
            f,
            "{} residents loaded, {} read instead of their files, {} that did not verify",
            self.loads, self.from_residents, self.residents_corrupt
        )?;
        writeln!(
            f,
            "{} boards read, {} of them of a known age; {} torn or not written yet",
            self.boards_read, self.boards_fresh, self.boards_torn
        )?;
        writeln!(f, "{} records handed out by followers, {} of them promoted", self.followed, self.turns)?;
        writeln!(
            f,
            "{} requests of tables applied, {} mismatches, {} of them told, {} without room",
            self.applied, self.mismatches, self.mismatches_told, self.full
        )?;
        writeln!(
            f,
            "{} logs of tables folded, {} of them ahead; {} others were folded ahead in vain",
            self.folded, self.warm, self.warm_in_vain
        )?;
        writeln!(
            f,
            "{} gets of tables answered, {} given up; {} records fetched, {} refused; {} copies waited, {} given up",
            self.gets,
            self.gets_unavailable,
            self.records_fetched,
            self.records_refused,
            self.copies_fetched,
            self.copies_given_up
        )?;
        writeln!(
            f,
            "{} rounds of mirrors published, {} mirrors reopened; {} visits of getters; they answered {} gets with a \
             value, {} with none ({} of them at zeroed entries), {} with an older one, {} not; {} waited at a win; {} \
             records read, {} fetched",
            self.rounds,
            self.reopened,
            self.visits,
            self.got,
            self.got_absent,
            self.got_zeros,
            self.got_older,
            self.got_nothing,
            self.handed_over,
            self.got_records,
            self.got_fetched
        )?;
        writeln!(
            f,
            "{} records of tables judged by cleaners, {} of them moved with {} bytes, {} trims",
            self.judged, self.moved, self.moved_bytes, self.cleaned
        )?;
        writeln!(
            f,
            "longest outage {:.1} s while faults struck; back after {:.1} s at most once they stopped; full size under load \
             after {:.1} s at most",
            seconds(self.outage_max),
            seconds(self.return_max),
            seconds(self.grown_max)
        )?;
        writeln!(
            f,
            "{} seeds in which too few members kept their memory, {} in which a flipped bit hit the only copy at hand, {} in which \
             every copy at hand was damaged and the group waits",
            self.lost_for_good, self.rotten_for_good, self.damaged_for_good
        )?;
        writeln!(f, "faults:")?;
        for fault in Fault::ALL {
            let count = self.faults.get(&fault).unwrap_or(&0);
            writeln!(f, "  {count:>10}  {fault}")?;
        }
        Ok(())
    }
}
