//! Random programs, run for real under the supervisor, and judged at every point at which the power could have failed.
//!
//! A *player* is a process of several threads and children that writes, seeks, truncates, maps, renames, links and syncs at
//! random, in a directory on tmpfs or a disk, and keeps a journal elsewhere: what each file and the directory were after each
//! step, and which syncs returned. The supervisor that follows it is the product's, with a log in memory whose acks come late. Then each
//! prefix of the log, batch by batch, is a power failure: the *judge* folds it by rules of its own, and says whether POSIX allows
//! that state after one, with all syncs that had returned by then. The last state has to be the directory itself, and is where
//! the next turn begins.
//!
//! With the argument `planted` it plays the bugs of `tailwind_exec::planted` instead, each until a case finds it: minutes. With
//! names of bugs behind that, only these; `bugs` lists them.
//! `TAILWIND_EXEC_CASES` plays so many cases, `TAILWIND_EXEC_SEED` begins with this one.

#![allow(clippy::print_stdout, reason = "it is its own test harness")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::available_parallelism;

mod journal;
mod judge;
mod player;
mod random;
mod turn;

/// Cases of one run: some 200 ms each.
const CASES: u64 = 40;
/// Those beside all other tests (`TAILWIND_EVERY_DAY`, which `./check` sets; it runs all of them by turns).
const CASES_EVERY_DAY: u64 = 12;
/// Turns of a case: the second one begins with a directory that was folded.
const TURNS: u32 = 2;

fn main() -> ExitCode {
    match std::env::var("TAILWIND_MODEL_ROLE").as_deref() {
        Ok("player") => player::main(),
        Ok("supervisor") => turn::main(),
        _ => {
            if std::env::args().any(|argument| argument == "--list") {
                return ExitCode::SUCCESS;
            }
            let words: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
            let passed = match words.first().map(String::as_str) {
                None | Some("programs") => {
                    let every_day = std::env::var_os("TAILWIND_EVERY_DAY").is_some();
                    let usual = if every_day { CASES_EVERY_DAY } else { CASES };
                    let cases = number("TAILWIND_EXEC_CASES").unwrap_or(usual);
                    run("programs_survive_any_power_failure", || clean(cases))
                }
                Some("planted") => run("planted_bugs_are_found", || planted_bugs(&words[1..])),
                Some("bugs") => return list_bugs(),
                // A filter that is meant for other tests.
                Some(_) => return ExitCode::SUCCESS,
            };
            let (result, counts) = if passed { ("ok", "1 passed; 0 failed") } else { ("FAILED", "0 passed; 1 failed") };
            println!("\ntest result: {result}. {counts}");
            if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
    }
}

fn run(name: &str, test: impl FnOnce() -> Result<(), String>) -> bool {
    let result = test();
    println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
    if let Err(why) = &result {
        println!("\n---- {name} ----\n{why}\n");
    }
    result.is_ok()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn clean(cases: u64) -> Result<(), String> {
    let first = number("TAILWIND_EXEC_SEED").unwrap_or(1);
    each(first..first + cases, None)?.map_or(Ok(()), |found| Err(format!("seed {}: {}", found.seed, found.told)))
}

/// What a case has found.
struct Found {
    seed: u64,
    told: String,
}

/// Plays cases beside each other. What the first one has found that found anything; an error if the test itself fails.
fn each(seeds: impl Iterator<Item = u64> + Send, bug: Option<&str>) -> Result<Option<Found>, String> {
    let seeds = std::sync::Mutex::new(seeds);
    let failure = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let next = seeds.lock().expect("no panic").next();
                    let Some(seed) = next.filter(|_| failure.lock().expect("no panic").is_none()) else { return };
                    let found = match case(seed, bug) {
                        Ok(None) => continue,
                        Ok(Some(told)) => Ok(Found { seed, told }),
                        Err(why) => Err(format!("seed {seed}: {why}")),
                    };
                    failure.lock().expect("no panic").get_or_insert(found);
                }
            });
        }
    });
    failure.into_inner().expect("no panic").transpose()
}

/// One case in processes of its own, so that its program is all that descends from them. What it found.
fn case(seed: u64, bug: Option<&str>) -> Result<Option<String>, String> {
    let (disk, memory) = (tempfile::tempdir(), tempfile::tempdir_in("/dev/shm"));
    let (disk, memory) = (disk.map_err(|e| e.to_string())?, memory.map_err(|e| e.to_string())?);
    // A file system on a disk gives an inode that is free again to the next file; tmpfs does not. The journal is on the other.
    let (folder, volume) = if seed.is_multiple_of(3) { (memory, disk) } else { (disk, memory) };
    for turn in 0..TURNS {
        let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
        command.env("TAILWIND_MODEL_ROLE", "supervisor").env("TAILWIND_MODEL_SEED", seed.to_string());
        command.env("TAILWIND_MODEL_TURN", turn.to_string());
        command.env("TAILWIND_MODEL_FOLDER", folder.path()).env("TAILWIND_MODEL_VOLUME", volume.path());
        if let Some(bug) = bug {
            command.env("TAILWIND_EXEC_PLANTED", bug);
        }
        let output = command.output().map_err(|e| e.to_string())?;
        let told = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            Some(code) if code == i32::from(turn::FOUND) => return Ok(Some(format!("turn {turn}: {told}"))),
            _ => return Err(format!("turn {turn} ends with {}: {told}", output.status)),
        }
    }
    Ok(None)
}

/// A build without bugs finds none.
#[cfg(not(feature = "planted-bugs"))]
fn planted_bugs(_: &[String]) -> Result<(), String> {
    Err("it is built without the feature `planted-bugs`".into())
}

#[cfg(not(feature = "planted-bugs"))]
fn list_bugs() -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(feature = "planted-bugs")]
fn list_bugs() -> ExitCode {
    tailwind_exec::planted::Bug::ALL.iter().for_each(|bug| println!("{}", bug.name()));
    ExitCode::SUCCESS
}

/// The case that found a bug when this was last looked at, where it is not among the first few.
#[cfg(feature = "planted-bugs")]
fn known(bug: &str) -> u64 {
    match bug {
        "seek-forgotten" => 128,
        "close-forgotten" => 15,
        "duplicate-forgotten" => 3,
        "name-before-bytes" => 5,
        "exchange-forgotten" => 2,
        "map-forgotten" => 12,
        "truncate-forgotten" => 27,
        "trimmed-before-copied" => 9,
        "overflow-ignored" => 174,
        _ => 1,
    }
}

/// Each bug is found within so many cases. The known one comes first, a few times, because races between processes are not the
/// seed's alone. Then the search begins with the first case.
#[cfg(feature = "planted-bugs")]
fn planted_bugs(only: &[String]) -> Result<(), String> {
    const WITHIN: u64 = 3000;
    const TRIES: usize = 4;
    let mut missed = Vec::new();
    let names = tailwind_exec::planted::Bug::ALL.iter().map(|bug| bug.name());
    for name in names.filter(|name| only.is_empty() || only.iter().any(|only| only == name)) {
        let known = known(name);
        let began = std::time::Instant::now();
        let found = each(std::iter::repeat_n(known, TRIES).chain(1..=WITHIN), Some(name))?;
        let Some(Found { seed, told }) = found else {
            missed.push(name);
            continue;
        };
        let search = if seed == known { "" } else { " (not the known one)" };
        println!("{name:<24} seed {seed:>4}{search}, after {:.1} s", began.elapsed().as_secs_f64());
        if std::env::var_os("TAILWIND_EXEC_VERBOSE").is_some() {
            println!("{told}");
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("not found within {WITHIN} cases: {}", missed.join(", "))) }
}

/// Where a turn keeps its things.
struct Places {
    seed: u64,
    turn: u32,
    folder: PathBuf,
    volume: PathBuf,
}

impl Places {
    fn read() -> Places {
        let get = |name: &str| std::env::var(format!("TAILWIND_MODEL_{name}")).expect("a role has its variables");
        Places {
            seed: get("SEED").parse().expect("a number"),
            turn: get("TURN").parse().expect("a number"),
            folder: get("FOLDER").into(),
            volume: get("VOLUME").into(),
        }
    }

    fn random(&self, purpose: u64) -> random::Random {
        random::Random::new(self.seed.wrapping_mul(1000).wrapping_add(u64::from(self.turn) * 100 + purpose))
    }

    fn directory(&self) -> PathBuf {
        self.volume.join(format!("data{}", self.turn))
    }

    fn journal(&self) -> PathBuf {
        self.folder.join(format!("journal{}", self.turn))
    }

    /// The number of batches that are acknowledged: eight bytes.
    fn acked(&self) -> PathBuf {
        self.folder.join("acked")
    }

    /// The log of all turns so far.
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }
}

/// A file of blocks, each with its length before it.
fn read_blocks(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut rest = &bytes[..];
    let mut blocks = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<4>() {
        let (block, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
        blocks.push(block.to_vec());
        rest = tail;
    }
    blocks
}

fn block(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}
