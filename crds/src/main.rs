//! Prints what is generated from the types: the definition of `ReplicaGroup`, or its reference for people.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints")]

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: tailwind-crds            prints the definition, crds/replicagroups.yaml
       tailwind-crds reference  prints the reference, docs/reference/kubernetes.md; reads the sources that it was built from";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let printed = match arguments.as_slice() {
        [] => Ok(tailwind_crds::definition()),
        ["reference"] => tailwind_crds::reference::reference(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))),
        _ => Err(USAGE.to_owned()),
    };
    match printed {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
