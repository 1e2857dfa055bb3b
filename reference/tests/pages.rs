//! The committed pages are those that the programs of this build make.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

use tailwind_reference::{commands, kubernetes, metrics, report};

fn committed(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_commands_are_generated() {
    assert!(committed("commands.md") == commands::page(), "run: scripts/manifests.sh");
}

#[test]
fn the_page_about_kubernetes_is_generated() {
    assert!(committed("kubernetes.md") == kubernetes::page().unwrap(), "run: scripts/manifests.sh");
}

#[test]
fn the_metrics_are_generated() {
    assert!(committed("metrics.md") == metrics::page().unwrap(), "run: scripts/manifests.sh");
}

#[test]
fn the_reports_are_generated() {
    assert!(committed("report.md") == report::page().unwrap(), "run: scripts/manifests.sh");
}
