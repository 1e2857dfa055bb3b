//! Plays random worlds of `world.rs`: nothing breaks in them, everything happens, and each planted bug is found by the judge.

use super::world::{Tally, World};

/// Worlds that are played, and steps of each.
const WORLDS: u64 = 100;
const STEPS: u32 = 3000;

fn play(seed: u64) -> (Tally, Result<(), String>) {
    let mut world = World::new(seed);
    let end = world.play(STEPS);
    (world.tally, end)
}

#[test]
fn a_table_keeps_its_rules_in_random_worlds() {
    let mut sum = Tally::default();
    for seed in 0..WORLDS {
        let (tally, end) = play(seed);
        assert_eq!(end, Ok(()), "world {seed}");
        sum.applied += tally.applied;
        sum.mismatches += tally.mismatches;
        sum.full += tally.full;
        sum.waits += tally.waits;
        sum.moved += tally.moved;
        sum.dropped += tally.dropped;
        sum.trimmed += tally.trimmed;
        sum.crashes += tally.crashes;
    }
    let Tally { applied, mismatches, full, waits, moved, dropped, trimmed, crashes } = sum;
    for count in [applied, mismatches, full, waits, moved, dropped, trimmed, crashes] {
        assert!(count > 100, "too little has happened: {sum:?}");
    }
}

#[test]
fn a_table_that_is_full_of_old_keys_takes_puts() {
    let mut world = World::of_keys(200);
    assert_eq!(world.churn(), Ok(()));
    let Tally { full, waits, moved, trimmed, .. } = world.tally;
    assert!(full == 1 && waits > 100 && moved > 1000 && trimmed > 100, "{:?}", world.tally);
}

#[test]
fn a_put_is_kept_until_its_delete_is_acknowledged() {
    let mut world = World::of_keys(30);
    assert_eq!(world.delete_late(), Ok(()));
    assert!(world.tally.trimmed > 0);
}

#[cfg(feature = "planted-bugs")]
mod planted_bugs {
    use tailwind_protocol::planted::{Bug, plant};

    use super::{WORLDS, World, play};

    /// Plays worlds until one breaks the rule; without the bug it breaks none.
    #[expect(clippy::print_stdout, reason = "how soon a bug is found is what a reader of the test wants to see")]
    fn hunt(bug: Bug, rule: &str) {
        let broken = |seed, planted| {
            plant(planted);
            let (_, end) = play(seed);
            plant(None);
            end.err()
        };
        // A bug may break another rule first, in worlds with mirrors for example.
        let found = (0..WORLDS).find_map(|seed| {
            let broken = broken(seed, Some(bug)).filter(|broken| broken.starts_with(rule))?;
            Some((seed, broken))
        });
        let Some((seed, found)) = found else { panic!("{} is not found within {WORLDS} worlds", bug.name()) };
        assert_eq!(broken(seed, None), None);
        println!("{:<24} in world {seed}: {found}", bug.name());
    }

    macro_rules! hunts {
        ($($test:ident $bug:ident breaks $rule:literal;)*) => {
            $(
                #[test]
                fn $test() {
                    hunt(Bug::$bug, $rule);
                }
            )*

            #[test]
            fn every_planted_bug_of_tables_has_a_test() {
                // Those of a primary's log, of standbys and of disks, which are not in these worlds, are found by the simulator.
                let of_logs = [
                    Bug::MismatchTellsUnacked,
                    Bug::MismatchWithoutBarrier,
                    Bug::PutsFillReserve,
                    Bug::MovesStayUnseen,
                    Bug::TrimBeforeSynced,
                    Bug::WarmIndexIsBelieved,
                    Bug::FreshWithoutBarrier,
                    Bug::RecordUnchecked,
                    Bug::GetNotLookedAgain,
                ];
                // Those of mirrors and getters are found in worlds that have them (`readers.rs`).
                let of_readers = [
                    Bug::PublishedBeforeComplete,
                    Bug::RoundAfterBits,
                    Bug::FillingIsLive,
                    Bug::CrcMadeWhenPosted,
                    Bug::AbsentWithoutPublished,
                    Bug::KeyUnchecked,
                    Bug::RevisionUnchecked,
                    Bug::OlderAsNew,
                ];
                // Those of what carries the machines out, and of memory, are the simulator's.
                let elsewhere = [Bug::CleanerIgnoresMirrors, Bug::PartNotZeroed, Bug::PartsLentOnce];
                let hunted = [&[$(Bug::$bug,)* Bug::DropsUnacked][..], &of_logs, &of_readers, &elsewhere].concat();
                assert!(Bug::ALL.into_iter().filter(|bug| bug.is_of_tables()).all(|bug| hunted.contains(&bug)));
            }
        };
    }

    /// Too rare at random: nothing may be moved out of a segment, and what has replaced its last live record must wait long.
    #[test]
    fn drops_unacked() {
        plant(Some(Bug::DropsUnacked));
        let end = World::of_keys(30).delete_late();
        plant(None);
        assert!(end.is_err_and(|broken| broken.starts_with("S18: key/29 has revision 1, and in the log None")));
    }

    hunts! {
        index_before_ack IndexBeforeAck breaks "views: ";
        entry_without_crc EntryWithoutCrc breaks "torn: ";
        move_without_recheck MoveWithoutRecheck breaks "views: ";
        move_renews_revision MoveRenewsRevision breaks "views: ";
        trim_before_moved TrimBeforeMoved breaks "S18: ";
        trim_without_grace TrimWithoutGrace breaks "S19: ";
        fold_ignores_deletes FoldIgnoresDeletes breaks "views: ";
    }
}
