//! Plays seeds, one or many, and adds up what happened.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tailwind_protocol::config::Kind;

use crate::plan::Fixed;
use crate::tally::Tally;
use crate::world::{Lie, World};

/// How a seed ended.
#[derive(Clone, Debug)]
pub struct Played {
    /// The seed.
    pub seed: u64,
    /// What happened, line by line; empty if nobody listened.
    pub story: String,
    /// How the line begins that keeps it among the [`kept`] seeds.
    pub kept_as: String,
    /// What happened in numbers, or which rule was broken.
    pub end: Result<Tally, String>,
}

/// Plays one seed, but for what is fixed. `listening`: whether its story is wanted.
pub fn play(seed: u64, listening: bool, fixed: Fixed) -> Played {
    play_in(seed, World::new(seed, listening, fixed))
}

/// Plays one seed, in a group in which a member likes this lie.
pub fn play_lying(seed: u64, lie: Lie) -> Played {
    play_in(seed, World::lying(seed, lie))
}

fn play_in(seed: u64, mut world: World) -> Played {
    let end = catch_unwind(AssertUnwindSafe(|| world.play()));
    let end = end.map_err(|broken| {
        let text = broken.downcast_ref::<String>().cloned();
        text.or_else(|| broken.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    });
    let kept_as =
        std::iter::once(seed.to_string()).chain(world.kind_words().map(str::to_owned)).collect::<Vec<_>>().join(" ");
    Played { seed, story: world.story(), kept_as, end }
}

/// A line of the kept seeds: the seed, and how it is to be played. Tables say so in the second word, groups with residents in the
/// next one, and tables with mirrors in the one after it. All others had none of these when they were kept. `None`: a comment.
pub fn kept(line: &str) -> Option<Result<(u64, Fixed), std::num::ParseIntError>> {
    let mut words = line.split_whitespace();
    let seed = words.next().filter(|word| !word.starts_with('#'))?;
    let mut words = words.peekable();
    let kind = if words.next_if_eq(&"table:").is_some() { Kind::Table } else { Kind::Log };
    let residents = Some(words.next_if_eq(&"residents:").is_some());
    let mirrors = Some(words.next_if_eq(&"mirrors:").is_some());
    Some(seed.parse().map(|seed| (seed, Fixed { kind: Some(kind), residents, mirrors, ..Fixed::default() })))
}

/// Which seeds to play.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The first one.
    pub first: u64,
    /// How many at most.
    pub count: u64,
    /// How long at most; a seed that has begun is played to its end.
    pub time: Duration,
    /// Threads.
    pub jobs: usize,
    /// What no seed draws.
    pub fixed: Fixed,
    /// Stop after so many broken seeds.
    pub broken_max: usize,
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// All that ended well, added up.
    pub tally: Tally,
    /// The others: the seed, and which rule was broken.
    pub broken: Vec<(u64, String)>,
}

/// Plays seeds on all threads until there are no more, time is up, or too many are broken. `progress` is told now and then.
pub fn play_many(wanted: &Wanted, progress: impl Fn(&Outcome) + Sync) -> Outcome {
    let next = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let outcome = Mutex::new(Outcome::default());
    let started = Instant::now();
    let work = || {
        while !over.load(Ordering::Relaxed) && started.elapsed() < wanted.time {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= wanted.count {
                return;
            }
            let played = play(wanted.first.wrapping_add(nth), false, wanted.fixed);
            let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match played.end {
                Ok(tally) => outcome.tally.add(&tally),
                Err(rule) => outcome.broken.push((played.seed, rule)),
            }
            if outcome.broken.len() >= wanted.broken_max {
                over.store(true, Ordering::Relaxed);
            }
            progress(&outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..wanted.jobs {
            scope.spawn(work);
        }
    });
    outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}
