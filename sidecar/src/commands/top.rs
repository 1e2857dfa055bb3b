//! `top`: a group on the whole terminal, as its sidecars report it, until the user quits.
//!
//! Everything is drawn by [`tailwind_screen`]; this chooses which sidecars to ask.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tailwind_runtime::usage;
use tailwind_screen::poll::Sidecars;
use tailwind_screen::show::{self, End};
use tailwind_screen::terminal::{self, Screen};

use super::target::Sockets;
use crate::options::number;

const TIMEOUT: &str = "Timeout for a reply: a sidecar that takes longer is shown as one that does not answer";

/// Watch a group on the whole terminal: members, log, rates, and what happens.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("timeout_ms", |timeout| timeout.default_value("1000").help(TIMEOUT)))]
pub struct TopOptions {
    /// Pause between two rounds of questions to the sidecars
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = number::<u64>(50, 60_000))]
    interval_ms: u64,
    /// Which sidecars: the primary's report is shown, and what the others say of themselves.
    #[command(flatten)]
    sockets: Sockets,
}

/// Shows it until the user quits.
pub fn run(options: &TopOptions) -> anyhow::Result<()> {
    if !terminal::is_usable() {
        usage!("standard output is no terminal that can be drawn on: use `tailwind-sidecar status --watch`");
    }
    let screen = Screen::enter().context("take over the terminal; `tailwind-sidecar status --watch` needs none")?;
    let (_nothing, inputs) = show::nothing_to_tell();
    let interval = Duration::from_millis(options.interval_ms);
    let sidecars = Sidecars::new(options.sockets.paths(), options.sockets.timeout());
    match show::show(screen, sidecars, interval, &inputs).context("draw on the terminal")? {
        End::Wish(_) | End::Done => Ok(()),
    }
}
