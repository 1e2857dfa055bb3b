//! Prints a page of the reference.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::process::ExitCode;

const USAGE: &str = "usage: tailwind-reference commands    prints docs/reference/commands.md
       tailwind-reference kubernetes  prints docs/reference/kubernetes.md
       tailwind-reference metrics     prints docs/reference/metrics.md
       tailwind-reference report      prints docs/reference/report.md";

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    let page = match argument.as_str() {
        "commands" => Ok(tailwind_reference::commands::page()),
        "kubernetes" => tailwind_reference::kubernetes::page(),
        "metrics" => tailwind_reference::metrics::page(),
        "report" => tailwind_reference::report::page(),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match page {
        Ok(page) => {
            print!("{page}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
