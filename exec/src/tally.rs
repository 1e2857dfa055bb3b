//! What following a program has cost, and what it has failed at. Counted by the supervisor, told by a dry run.

use std::collections::BTreeMap;
use std::time::Duration;

/// Reasons that are kept; others are counted together.
const REASONS_MAX: usize = 100;

/// Counts from the start of the program on.
#[derive(Default, Debug)]
pub struct Tally {
    /// Syncs that were confirmed.
    pub syncs: u64,
    /// Syncs that failed, by why.
    pub failures: BTreeMap<String, u64>,
    /// How long captures took.
    pub captures: Durations,
}

impl Tally {
    /// Counts syncs that have failed.
    pub(crate) fn failed(&mut self, why: &str, syncs: u64) {
        let known = self.failures.len() < REASONS_MAX || self.failures.contains_key(why);
        let why = if known { why } else { "for other reasons" };
        *self.failures.entry(why.to_owned()).or_default() += syncs;
    }
}

/// Bytes that were read to find what has changed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Compared {
    /// Bytes of all comparisons.
    pub bytes: u64,
    /// Bytes of the largest one.
    pub largest: u64,
}

impl Compared {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
    }
}

/// Steps in each power of two: a quantile is off by an eighth at most.
const STEPS: u32 = 8;

/// A histogram of durations, up to some ten minutes.
#[derive(Debug)]
pub struct Durations {
    /// By octave and step of the nanoseconds.
    counts: Vec<u64>,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations { counts: vec![0; Durations::index(u64::MAX) + 1] }
    }
}

impl Durations {
    /// Counts one.
    pub(crate) fn add(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[Durations::index(nanoseconds)] += 1;
    }

    /// Each below `STEPS` has a place of its own; from there on each octave has `STEPS` of them.
    fn index(nanoseconds: u64) -> usize {
        match nanoseconds.checked_ilog2() {
            Some(octave) if octave >= STEPS.ilog2() => {
                let shift = octave - STEPS.ilog2();
                ((shift * STEPS) as u64 + (nanoseconds >> shift)) as usize
            }
            _ => nanoseconds as usize,
        }
    }

    /// The shortest that has a place.
    fn shortest(index: usize) -> u64 {
        let (octave, step) = (index as u64 / u64::from(STEPS), index as u64 % u64::from(STEPS));
        match octave {
            0 => step,
            octave => (u64::from(STEPS) + step) << (octave - 1),
        }
    }

    /// What this part of them (0 to 1) is no longer than, about; `None` if there is none.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let all: u64 = self.counts.iter().sum();
        let wanted = ((all as f64 * part).ceil() as u64).max(1);
        let mut counted = 0;
        let index = self.counts.iter().position(|count| {
            counted += count;
            counted >= wanted
        })?;
        Some(Duration::from_nanos(Durations::shortest(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_ascend_and_are_found_again() {
        for nanoseconds in (0..5000).chain([1 << 40, u64::MAX]) {
            let index = Durations::index(nanoseconds);
            let (shortest, next) = (Durations::shortest(index), Durations::index(nanoseconds.saturating_add(1)));
            assert!(shortest <= nanoseconds && nanoseconds - shortest <= nanoseconds / 8, "{nanoseconds}");
            assert!(next == index || next == index + 1, "{nanoseconds}");
        }
    }

    #[test]
    fn quantiles_are_those_of_what_was_counted() {
        let mut durations = Durations::default();
        assert_eq!(durations.quantile(0.5), None);
        (1..=1000).for_each(|microseconds| durations.add(Duration::from_micros(microseconds)));
        let about = |part, microseconds: u64| {
            let found = durations.quantile(part).unwrap().as_micros() as u64;
            assert!(found <= microseconds && found >= microseconds * 7 / 8, "{found}");
        };
        about(0.5, 500);
        about(0.99, 990);
        about(1.0, 1000);
    }

    #[test]
    fn reasons_are_bounded() {
        let mut tally = Tally::default();
        (0..1000).for_each(|number| tally.failed(&format!("file {number}"), 2));
        assert_eq!(tally.failures.len(), REASONS_MAX + 1);
        assert_eq!(tally.failures.values().sum::<u64>(), 2000);
    }
}
