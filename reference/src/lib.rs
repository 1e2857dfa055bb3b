//! The pages of the reference that are made from the programs themselves: [`commands`] from their command lines, [`kubernetes`]
//! from the types of the resource and of its conditions, [`metrics`] from what they serve to Prometheus, [`report`] from the types
//! of what they report.
//!
//! Called by `tailwind-reference`, which `scripts/manifests.sh` runs.

pub mod commands;
pub mod kubernetes;
pub mod metrics;
pub mod report;

/// As it may stand in a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "\\<")
}

/// Names as code, with commas between them.
fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
