//! The comparisons, by name.

mod baselines;
mod cpu;
pub(crate) mod exec;
mod floors;
mod followers;
mod joining;
mod neighbours;
mod peers;
mod recovery;
mod scale;
pub(crate) mod tables;

pub(crate) use baselines::{WRITES, with_sums};
pub(crate) use floors::{BLOCKING, CASE as LONE, SPIN, echo};
pub(crate) use followers::{FOUR as FOUR_FOLLOW, NOBODY as NOBODY_FOLLOWS};
pub(crate) use neighbours::spin;
pub(crate) use recovery::{Length, fail_over};

use anyhow::Result;

use crate::run::Run;

/// A comparison that can be run.
pub(crate) struct Definition {
    pub(crate) name: &'static str,
    /// What it compares: a paragraph of the report.
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Run<'_>) -> Result<()>,
}

/// All of them, in the order in which they run and are reported.
pub(crate) const ALL: &[Definition] = &[
    Definition { name: "floors", about: floors::ABOUT, run: floors::run },
    Definition { name: "peers", about: peers::ABOUT, run: peers::run },
    Definition { name: "cpu", about: cpu::ABOUT, run: cpu::run },
    Definition { name: "scale", about: scale::ABOUT, run: scale::run },
    Definition { name: "recovery", about: recovery::ABOUT, run: recovery::run },
    Definition { name: "baselines", about: baselines::ABOUT, run: baselines::run },
    Definition { name: "followers", about: followers::ABOUT, run: followers::run },
    Definition { name: "joining", about: joining::ABOUT, run: joining::run },
    Definition { name: "neighbours", about: neighbours::ABOUT, run: neighbours::run },
    Definition { name: "exec", about: exec::ABOUT, run: exec::run },
    Definition { name: "tables", about: tables::ABOUT, run: tables::run },
    Definition { name: "written", about: tables::written::ABOUT, run: tables::written::run },
];

/// The one of this name.
pub(crate) fn find(name: &str) -> Option<&'static Definition> {
    ALL.iter().find(|definition| definition.name == name)
}
