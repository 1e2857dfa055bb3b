//! `./bench`: measures Tailwind beside the limits of the machine and beside what else one would take.
//!
//! Started by the script of that name, which builds first and cleans up afterwards whatever happens. [`comparisons`] are
//! [`run`] one after the other; each starts its contestants ([`ours`], [`peers`]) and puts [`load`] on them in turns. What they
//! show is kept as [`results`], which become the [`report`].

mod affinity;
mod comparisons;
mod costs;
mod cpu;
mod load;
mod machine;
mod options;
mod ours;
mod peers;
mod plots;
mod report;
mod results;
mod run;
mod statistics;
mod targets;
mod uplink;
mod workload;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::options::{Options, choose};
use crate::results::{About, FORMAT, Results};

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(socket) = &options.echo {
        return comparisons::echo(socket, options.spin);
    }
    if options.neighbour {
        comparisons::spin();
    }
    let names: Vec<&str> = comparisons::ALL.iter().map(|definition| definition.name).collect();
    if options.list {
        return say(&names.join("\n"));
    }
    let results = match &options.report_from {
        Some(path) => Results::load(path)?,
        None => {
            let raw = options.raw();
            make_folder(&raw)?;
            measure(&options, &choose(&names, &options.only)?, &raw)?
        }
    };
    let output = options.output(results.are_whole());
    report::write(&results, &output)?;
    say(&format!("the report is in {}", output.join("benchmarks.md").display()))
}

/// Runs the comparisons. What has been measured is saved after each, so that a failure of a later one loses nothing.
fn measure(options: &Options, names: &[&str], raw: &Path) -> Result<Results> {
    let program = options.program.clone().map_or_else(tailwind_e2e::processes::process::program, Ok)?;
    for program in [&program].into_iter().chain(&options.beside).chain(&options.two_sided) {
        ensure!(program.is_file(), "{} is not a program", program.display());
    }
    ensure!(options.memory.is_dir(), "{} is not a folder", options.memory.display());
    let about = About {
        command: command(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
        rounds: options.rounds(),
        effort: options.effort(),
        quick: options.quick,
        machine: machine::Machine::find(),
    };
    let mut results = match options.resume {
        true => interrupted(raw, &about)?,
        false => Results { format: FORMAT, about, comparisons: Vec::new() },
    };
    let lacks = |name: &&&str| !results.comparisons.iter().any(|comparison| comparison.name == **name);
    let missing: Vec<&str> = names.iter().filter(lacks).copied().collect();
    let progress = run::progress(missing.len() as u64 * u64::from(options.rounds()));
    for definition in missing.iter().filter_map(|name| comparisons::find(name)) {
        let measured = run::run(definition, program.clone(), options, &progress);
        let measured = measured.with_context(|| match results.comparisons.len() {
            0 => "nothing was measured".to_owned(),
            count => format!("the first {count} of {} comparisons are in {}", names.len(), raw.display()),
        })?;
        results.comparisons.push(measured);
        results.comparisons.sort_by_key(|comparison| comparisons::ALL.iter().position(|c| c.name == comparison.name));
        results.save(raw)?;
    }
    progress.finish_and_clear();
    Ok(results)
}

/// What an interrupted run has measured, if it was one of this kind.
fn interrupted(raw: &Path, about: &About) -> Result<Results> {
    let results = Results::load(raw)?;
    let kind = |about: &About| (about.rounds, about.effort, about.quick, about.machine.clone());
    ensure!(
        kind(&results.about) == kind(about),
        "{} is of a run with other options, or on another machine: run ./bench without --resume",
        raw.display()
    );
    Ok(results)
}

/// What a person types to run this again: the script stands for this program and for what it sets itself.
fn command() -> String {
    let mut command = "./bench".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--program" | "--two-sided" | "--memory" => drop(arguments.next()),
            "--resume" => {}
            _ => command.extend([" ", &argument]),
        }
    }
    command
}

fn make_folder(file: &Path) -> Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("make the folder {}", folder.display()))
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("write to standard output")
}
