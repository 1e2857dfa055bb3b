//! Keys that several apps change at once, each under the condition that nobody else has changed them: who won, and what the
//! others were told.
//!
//! Filled by [`table_app`](super::table_app). At the end [`Races::check`] puts each key's revisions into one chain: every change
//! that was acknowledged is a link of it, no two begin at the same revision, and what a mismatch told was true.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, ensure};
use tailwind_client::Revision;

/// What happened to the raced keys.
#[derive(Debug, Default)]
pub struct Races(Mutex<BTreeMap<Vec<u8>, Race>>);

#[derive(Clone, Debug, Default)]
struct Race {
    /// Changes that were acknowledged: the revision that each expected, and the one that it made.
    won: Vec<(Option<Revision>, Revision)>,
    /// Revisions that changes of unknown outcome expected.
    unknown: Vec<Option<Revision>>,
    /// Revisions that mismatches told.
    told: Vec<Option<Revision>>,
}

impl Races {
    /// The latest revision of a key that was acknowledged to anybody.
    pub fn newest(&self, key: &[u8]) -> Option<Revision> {
        self.lock().get(key).and_then(|race| race.won.iter().map(|(_, made)| *made).max())
    }

    pub(crate) fn win(&self, key: &[u8], expected: Option<Revision>, made: Revision) {
        self.lock().entry(key.to_vec()).or_default().won.push((expected, made));
    }

    pub(crate) fn lose_sight(&self, key: &[u8], expected: Option<Revision>) {
        self.lock().entry(key.to_vec()).or_default().unknown.push(expected);
    }

    pub(crate) fn tell(&self, key: &[u8], now: Option<Revision>) {
        self.lock().entry(key.to_vec()).or_default().told.push(now);
    }

    /// Checks each key, of which this says what it has at the end. Returns the changes that were acknowledged.
    pub fn check(&self, at_the_end: impl Fn(&[u8]) -> Option<Revision>) -> Result<usize> {
        let races = self.lock();
        for (key, race) in races.iter() {
            check(race, at_the_end(key)).map_err(|error| error.context(format!("key {}", key.escape_ascii())))?;
        }
        Ok(races.values().map(|race| race.won.len()).sum())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Race>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(race: &Race, end: Option<Revision>) -> Result<()> {
    let mut won: BTreeMap<Option<Revision>, Revision> = BTreeMap::new();
    for (expected, made) in &race.won {
        let other = won.insert(*expected, *made);
        ensure!(other.is_none(), "both {other:?} and {made} replaced {expected:?}");
        ensure!(Some(*made) > *expected, "{made} replaced {expected:?}");
    }
    // A change of unknown outcome made a revision that is known only if somebody expected it, or if it is the last one.
    let known: BTreeSet<_> = won.keys().chain(&race.unknown).copied().chain([end]).collect();
    let (mut chain, mut at, mut unknown) = (BTreeSet::from([None]), None, race.unknown.clone());
    loop {
        let next = match won.remove(&at) {
            Some(made) => Some(made),
            None => match unknown.iter().position(|expected| *expected == at) {
                Some(position) => {
                    unknown.swap_remove(position);
                    known.range(at..).copied().find(|known| *known > at).flatten()
                }
                None => None,
            },
        };
        let Some(next) = next else { break };
        at = Some(next);
        chain.insert(at);
    }
    ensure!(at == end, "the changes end with {at:?}, and the key has {end:?}");
    ensure!(won.is_empty(), "acknowledged, and not part of the chain: {won:?}");
    let untrue: Vec<_> = race.told.iter().filter(|told| !chain.contains(told)).collect();
    ensure!(untrue.is_empty(), "mismatches told of {untrue:?}, which the key has never had");
    Ok(())
}

#[cfg(test)]
mod tests {
    use tailwind_client::Lsn;

    use super::*;

    fn at(number: u64) -> Option<Revision> {
        Revision::of(Lsn(number))
    }

    fn checked(won: &[(u64, u64)], unknown: &[u64], told: &[u64], end: u64) -> Result<(), String> {
        let won = won.iter().map(|(expected, made)| (at(*expected), at(*made).unwrap())).collect();
        let all = |numbers: &[u64]| numbers.iter().copied().map(at).collect();
        let race = Race { won, unknown: all(unknown), told: all(told) };
        check(&race, at(end)).map_err(|error| error.to_string())
    }

    #[test]
    fn revisions_of_a_raced_key_are_one_chain() {
        assert_eq!(checked(&[(0, 3), (3, 7), (7, 9)], &[], &[3, 0, 9], 9), Ok(()));
        assert_eq!(checked(&[(0, 3), (6, 9)], &[3], &[6], 9), Ok(()), "a change of unknown outcome was carried out");
        assert_eq!(checked(&[(0, 3), (3, 9)], &[3, 9], &[], 9), Ok(()), "two were not");
        assert_eq!(checked(&[(0, 3)], &[3, 5], &[5], 8), Ok(()), "two in a row were");
        assert!(checked(&[(0, 3), (0, 4)], &[], &[], 4).unwrap_err().contains("both"));
        assert!(checked(&[(0, 3), (6, 9)], &[], &[], 9).is_err(), "nobody made revision 6");
        assert!(checked(&[(0, 3)], &[], &[], 0).is_err(), "what was acknowledged is gone");
        assert!(checked(&[(0, 3)], &[], &[4], 3).unwrap_err().contains("never had"));
    }
}
