//! `./bench`: measures Tailwind beside the limits of the machine, beside what else one would take, and beside an earlier commit.
//!
//! Started by the script of that name, which builds first and cleans up afterwards in any case. [`comparisons`] are
//! [`run`] one after the other; each starts its contestants ([`ours`], [`peers`]) and puts [`load`] on them in turns. The
//! [`gate`] does that with two builds. What they show is kept as [`data`], and the [`report`] is drawn from that.

mod affinity;
mod comparisons;
mod costs;
mod cpu;
mod data;
mod gate;
mod keys;
mod load;
mod machine;
mod mix;
mod options;
mod ours;
mod peers;
mod plots;
mod report;
mod results;
mod run;
mod statistics;
mod targets;
mod workload;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::gate::{Answer, Commit, Earlier, Gate, Today};
use crate::options::{Options, choose};
use crate::results::{About, Results};

fn main() -> ExitCode {
    let options = Options::parse();
    bench(&options).unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "Error: {error:?}");
        // One says that something became worse.
        ExitCode::from(if options.gate { 2 } else { 1 })
    })
}

fn bench(options: &Options) -> Result<ExitCode> {
    if let Some(socket) = &options.echo {
        return comparisons::echo(socket, options.spin).map(|()| ExitCode::SUCCESS);
    }
    if options.neighbour {
        comparisons::spin();
    }
    let names: Vec<&str> = comparisons::ALL.iter().map(|definition| definition.name).collect();
    if options.list {
        return say(&names.join("\n")).map(|()| ExitCode::SUCCESS);
    }
    if options.render {
        return render(&[options.output(true)]).map(|()| ExitCode::SUCCESS);
    }
    let program = options.program.clone().map_or_else(tailwind_e2e::processes::process::program, Ok)?;
    if options.probe {
        return gate::serve(&program, &options.memory).map(|()| ExitCode::SUCCESS);
    }
    let chosen = choose(&names, &options.only)?;
    for program in [&program].into_iter().chain(&options.two_sided) {
        ensure!(program.is_file(), "{} is not a program", program.display());
    }
    ensure!(options.memory.is_dir(), "{} is not a folder", options.memory.display());
    let mut folders = Vec::new();
    if !options.gate {
        let mut results = measure(options, &chosen, &program)?;
        let folder = options.output(options.update || results.are_whole());
        let data = folder.join("benchmarks");
        if options.update {
            let missing = || format!("{} has no data that could be updated: run ./bench", data.display());
            results = Results::load(&data)?.with_context(missing)?.updated(results);
        }
        results.save(&data)?;
        folders.push(folder);
    }
    let mut code = ExitCode::SUCCESS;
    if options.compares_with_earlier() {
        let gate = compare(options, &program)?;
        let folder = options.output(gate.is_whole());
        gate.save(&folder.join("benchmarks"))?;
        folders.push(folder);
        say(&format!("{}\n{}\n", report::rows(&gate), report::headline(Some(&gate))))?;
        code = match gate.answer() {
            _ if !options.gate => code,
            Answer::NoWorse => code,
            Answer::Worse => ExitCode::from(1),
            Answer::None => ExitCode::from(2),
        };
    }
    folders.dedup();
    render(&folders).map(|()| code)
}

fn render(folders: &[PathBuf]) -> Result<()> {
    for folder in folders {
        report::render(folder)?;
        say(&format!("the page is {}", folder.join("benchmarks.md").display()))?;
    }
    Ok(())
}

/// Runs the comparisons. What has been measured is saved after each, so that a failure of a later one loses nothing.
fn measure(options: &Options, names: &[&str], program: &Path) -> Result<Results> {
    let (raw, about) = (options.raw(), about(options, options.rounds()));
    let mut results = match options.resume {
        true => interrupted(&raw, about)?,
        false => Results { about, comparisons: Vec::new() },
    };
    let lacks = |name: &&&str| results.comparison(name).is_none();
    let missing: Vec<&str> = names.iter().filter(lacks).copied().collect();
    let progress = run::progress(missing.len() as u64 * u64::from(options.rounds()));
    for definition in missing.iter().filter_map(|name| comparisons::find(name)) {
        let measured = run::run(definition, program.to_owned(), options, &progress);
        let measured = measured.with_context(|| match results.comparisons.len() {
            0 => "nothing was measured".to_owned(),
            count => format!("the first {count} of {} comparisons are in {}", names.len(), raw.display()),
        })?;
        results.comparisons.push(measured);
        results.sort();
        results.save(&raw)?;
    }
    progress.finish_and_clear();
    Ok(results)
}

/// This build beside an earlier commit, as the script has built it.
fn compare(options: &Options, program: &Path) -> Result<Gate> {
    let missing = "no earlier commit is given: run ./bench, which builds it";
    let commit = Commit::parse(options.earlier_commit.as_ref().context(missing)?)?;
    let earlier = Earlier { commit, folder: options.earlier.clone().context(missing)? };
    let pairs = options.pairs()?;
    let progress = run::progress(u64::from(pairs));
    let bench = std::env::current_exe().context("find this program")?;
    let today = Today { bench: &bench, sidecar: program, memory: &options.memory };
    let gate = gate::run(about(options, pairs), &earlier, &today, &progress)?;
    progress.finish_and_clear();
    Ok(gate)
}

fn about(options: &Options, rounds: u32) -> About {
    About {
        command: command(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        revision: options.revision.clone(),
        rounds,
        effort: options.effort(),
        quick: options.quick,
        machine: machine::Machine::find(),
    }
}

/// What an interrupted run has measured, if it was one of this kind.
fn interrupted(raw: &Path, about: About) -> Result<Results> {
    let results = Results::load(raw)?.with_context(|| format!("{} has no data of an earlier run", raw.display()))?;
    let kind = |about: &About| (about.rounds, about.effort, about.quick, about.machine.clone(), about.revision.clone());
    ensure!(
        kind(&results.about) == kind(&about),
        "{} is of a run with other options, of another commit, or on another machine: run ./bench without --resume",
        raw.display()
    );
    Ok(results)
}

/// The command line that runs this again: the script stands for this program and for what it sets itself.
fn command() -> String {
    let mut command = "./bench".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--program" | "--two-sided" | "--memory" | "--revision" | "--earlier" | "--earlier-commit" => {
                drop(arguments.next());
            }
            "--resume" => {}
            _ => command.extend([" ", &argument]),
        }
    }
    command
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("write to standard output")
}
