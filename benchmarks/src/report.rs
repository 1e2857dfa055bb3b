//! The pages, drawn from the data in their folder: `benchmarks.md` for people, with plots, and `benchmarks/README.md`, which says
//! of each table how it was measured.
//!
//! Called at the end of a run, and by `--render` without one: a page can be changed and drawn again without measuring.

mod data_page;
mod format;
mod gate;
mod page;
mod sections;

use std::path::Path;

use anyhow::Result;

use crate::data::{make_folder, remove, write};
use crate::gate::Gate;
use crate::plots;
use crate::results::Results;

pub(crate) use gate::{headline, rows};

/// Draws the pages of a folder from the data in its folder `benchmarks`.
pub(crate) fn render(folder: &Path) -> Result<()> {
    let data = folder.join("benchmarks");
    make_folder(&data)?;
    let (results, gate) = (Results::load(&data)?, Gate::load(&data)?);
    let sections = results.as_ref().map(sections::all).unwrap_or_default();
    remove(&data, "svg", |_| true)?;
    for plot in sections.iter().map(|section| &section.plot) {
        write(&data.join(format!("{}.svg", plot.name)), &plots::draw(plot))?;
    }
    write(&data.join("README.md"), &data_page::text(results.as_ref(), gate.as_ref()))?;
    write(&folder.join("benchmarks.md"), &page::text(results.as_ref(), gate.as_ref(), &sections))
}

#[cfg(test)]
pub(crate) use tests::{committed, example};

#[cfg(test)]
mod tests;
