//! Plays random worlds with mirrors and a getter (`world/reading.rs`): nothing breaks in them, everything happens, and each planted
//! bug is found by the judge.

use super::world::{GetTally, World};

/// Worlds that are played, and steps of each.
const WORLDS: u64 = 60;
const STEPS: u32 = 3000;

fn play(seed: u64) -> (GetTally, Result<(), String>) {
    let mut world = World::with_readers(seed);
    let end = world.play_reading(STEPS);
    (world.get_tally(), end)
}

#[test]
fn mirrors_and_getters_keep_their_rules_in_random_worlds() {
    let mut sum = [0; 8];
    for seed in 0..WORLDS {
        let (tally, end) = play(seed);
        assert_eq!(end, Ok(()), "world {seed}");
        let GetTally { values, absent, older, unavailable, fetched, visits, rounds, reopened } = tally;
        let counts = [values, absent, older, unavailable, fetched, visits, rounds, reopened];
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [values, _, older, unavailable, ..] = sum;
    assert!(older > 5 && sum.iter().filter(|count| **count > 100).count() >= 7, "too little has happened: {sum:?}");
    // Those are gets whose record has rotted, or that nobody could serve before the end of their patience.
    assert!(values > 5 * unavailable, "{sum:?}");
}

#[cfg(feature = "planted-bugs")]
mod planted_bugs {
    use tailwind_protocol::planted::{Bug, plant};

    use super::{WORLDS, play};

    /// Plays worlds until one breaks the rule, first the one that did so when this was last looked at; without the bug it breaks
    /// none.
    #[expect(clippy::print_stdout, reason = "how soon a bug is found is what a reader of the test wants to see")]
    fn hunt(bug: Bug, rule: &str, known: u64) {
        let broken = |seed, planted| {
            plant(planted);
            let (_, end) = play(seed);
            plant(None);
            end.err()
        };
        let found = std::iter::once(known).chain(0..WORLDS).find_map(|seed| {
            let broken = broken(seed, Some(bug)).filter(|broken| broken.starts_with(rule))?;
            Some((seed, broken))
        });
        let Some((seed, found)) = found else { panic!("{} is not found within {WORLDS} worlds", bug.name()) };
        assert_eq!(broken(seed, None), None);
        let news = if seed == known { String::new() } else { format!(" (no longer in {known}: to be noted here)") };
        println!("{:<26} in world {seed}: {found}{news}", bug.name());
    }

    macro_rules! hunts {
        ($($test:ident $bug:ident breaks $rule:literal in $known:literal;)*) => {
            $(
                #[test]
                fn $test() {
                    hunt(Bug::$bug, $rule, $known);
                }
            )*
        };
    }

    hunts! {
        published_before_complete PublishedBeforeComplete breaks "S21: " in 0;
        round_after_bits RoundAfterBits breaks "S21: " in 0;
        filling_is_live FillingIsLive breaks "S21: " in 0;
        crc_made_when_posted CrcMadeWhenPosted breaks "S21: " in 0;
        absent_without_published AbsentWithoutPublished breaks "S20: " in 0;
        key_unchecked KeyUnchecked breaks "S20: " in 1;
        revision_unchecked RevisionUnchecked breaks "S20: " in 2;
        older_as_new OlderAsNew breaks "S20: " in 4;
    }
}
