//! The simulator's command line: tells the story of one seed, plays many and adds up what happened, or runs the
//! exhaustive model.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, Subcommand};
use tailwind_protocol::config::{Durability, Kind};
use tailwind_sim::model::{self, Progress, SCENARIOS, Scenario};
use tailwind_sim::plan::Fixed;
use tailwind_sim::runner::{self, Outcome, Wanted};

/// How often progress is shown.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// Plays whole Tailwind groups in virtual time, breaks everything that can break, and judges what the groups did.
#[derive(Debug, Parser)]
#[command(name = "tailwind-sim", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Play this seed and tell its story
    #[arg(conflicts_with_all = ["seeds", "minutes", "kept"])]
    seed: Option<u64>,
    /// Play so many seeds
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Play seeds for so many minutes
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// The first seed of many
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// Play the seeds in this file first: one in a line, and behind it what it found
    #[arg(long, value_name = "FILE")]
    kept: Option<PathBuf>,
    /// Stop after so many seeds that break a rule
    #[arg(long, value_name = "N", default_value_t = 20)]
    broken_max: usize,
    /// Threads; by default one for each processor
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Durability of every group, whatever its seed draws
    #[arg(long, value_name = "memory|battery|flushed")]
    durability: Option<Durability>,
    /// What every group keeps, instead of what its seed draws
    #[arg(long, value_name = "log|table", value_parser = kind)]
    kind: Option<Kind>,
    /// Whether backups have residents, instead of what each seed draws
    #[arg(long, value_name = "true|false")]
    residents: Option<bool>,
    /// Whether the index of a table is mirrored
    #[arg(long)]
    mirrors: Option<bool>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Try every order of events of a small group: 2 sidecars, 2 backups, 2 epochs, 2 records
    Exhaust {
        /// Only this scenario
        scenario: Option<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A broken rule is told below, with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("tailwind-sim: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// True if no rule was broken.
fn run(args: &Args) -> anyhow::Result<bool> {
    if let Some(Command::Exhaust { scenario }) = &args.command {
        return exhaust(scenario.as_deref());
    }
    let fixed =
        Fixed { durability: args.durability, kind: args.kind, residents: args.residents, mirrors: args.mirrors };
    if let Some(seed) = args.seed {
        return tell(seed, fixed);
    }
    let mut good = true;
    if let Some(file) = &args.kept {
        for (seed, fixed) in kept(file)? {
            good &= judge(&runner::play(seed, false, fixed))?;
        }
    }
    if args.seeds.is_none() && args.minutes.is_none() {
        anyhow::ensure!(args.kept.is_some(), "nothing to play: give a seed, --seeds, --minutes or --kept");
        return Ok(good);
    }
    let time = args.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs_f64(minutes * 60.0));
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let wanted = Wanted {
        first: args.first,
        count: args.seeds.unwrap_or(u64::MAX),
        time,
        jobs,
        broken_max: args.broken_max,
        fixed,
    };
    let outcome = play_many(&wanted);
    let mut out = std::io::stdout().lock();
    write!(out, "{}", outcome.tally)?;
    for (seed, rule) in &outcome.broken {
        writeln!(out, "seed {seed}: {rule}")?;
    }
    if let Some((seed, _)) = outcome.broken.first() {
        let durability = args.durability.map(|durability| format!(" --durability {durability}")).unwrap_or_default();
        let kind = args.kind.map(|kind| format!(" --kind {kind}")).unwrap_or_default();
        writeln!(out, "replay: cargo run -p tailwind-sim -- {seed}{durability}{kind}")?;
    }
    Ok(good && outcome.broken.is_empty())
}

fn kind(word: &str) -> Result<Kind, String> {
    let found = [Kind::Log, Kind::Table].into_iter().find(|kind| kind.to_string() == word);
    found.ok_or_else(|| "must be log or table".to_owned())
}

fn exhaust(name: Option<&str>) -> anyhow::Result<bool> {
    let scenarios = match name {
        None => SCENARIOS.to_vec(),
        Some(name) => {
            let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            let known = Scenario::named(name);
            vec![known.with_context(|| format!("scenario `{name}`: must be one of {}", names.join(" | ")))?]
        }
    };
    let outcomes = model::run(&scenarios, |progress| {
        let mut out = std::io::stdout().lock();
        // A reader that has gone ends the run by itself.
        let _ = match progress {
            Progress::Begun(scenario) => writeln!(out, "{}: {}", scenario.name, scenario.about),
            Progress::Ended(outcome) => writeln!(out, "{outcome}"),
        };
    });
    let states: usize = outcomes.iter().map(|outcome| outcome.states).sum();
    writeln!(std::io::stdout(), "{states} states in all")?;
    Ok(outcomes.iter().all(|outcome| outcome.counterexample.is_none() && outcome.exhausted))
}

fn tell(seed: u64, fixed: Fixed) -> anyhow::Result<bool> {
    let played = runner::play(seed, true, fixed);
    std::io::stdout().write_all(played.story.as_bytes())?;
    judge(&played)
}

fn judge(played: &runner::Played) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match &played.end {
        Ok(tally) => writeln!(out, "seed {}: no rule is broken; {} records acknowledged", played.seed, tally.acked)?,
        Err(rule) => {
            writeln!(out, "seed {}: {rule}", played.seed)?;
            writeln!(out, "to keep it, a line that begins: {}", played.kept_as)?;
        }
    }
    Ok(played.end.is_ok())
}

fn play_many(wanted: &Wanted) -> Outcome {
    let terminal = std::io::stderr().is_terminal();
    let (started, shown) = (Instant::now(), Mutex::new(Instant::now()));
    let progress = |outcome: &Outcome| {
        let Ok(mut shown) = shown.lock() else { return };
        if terminal && shown.elapsed() > PROGRESS_PAUSE {
            *shown = Instant::now();
            let (seeds, broken) = (outcome.tally.seeds, outcome.broken.len());
            let seconds = started.elapsed().as_secs();
            // A progress line that cannot be written is no loss.
            let _ = write!(std::io::stderr(), "\r{seeds} seeds, {broken} broken, {seconds} s ");
        }
    };
    let outcome = runner::play_many(wanted, progress);
    if terminal {
        say("");
    }
    outcome
}

fn kept(file: &Path) -> anyhow::Result<Vec<(u64, Fixed)>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read kept seeds {}", file.display()))?;
    let mut seeds = Vec::new();
    for (nth, line) in text.lines().enumerate() {
        let Some(kept) = runner::kept(line) else { continue };
        seeds.push(kept.with_context(|| format!("{}:{}: it does not begin with a seed", file.display(), nth + 1))?);
    }
    Ok(seeds)
}

fn say(what: &str) {
    // Nobody to tell it to.
    let _ = writeln!(std::io::stderr(), "{what}");
}
