//! `status`: whether the log is safe and what a sidecar knows of its group, as text for people or as its JSON.
//!
//! The sidecar's report says it all, and [`render`] lays it out: nothing is judged here.

mod render;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use tailwind_report::report::{self, Report};
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::verdict::VerdictState;
use tailwind_runtime::exit::Exit;
use tailwind_runtime::logging::explain;

use super::target::Sockets;
use super::{Output, tell};

/// Between two looks of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal; then the cursor goes home for each look, and what is written over is cleared line by line.
const CLEAR: &str = "\x1b[2J";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";

/// Show whether the log is safe, and the group as a sidecar knows it.
#[derive(Args, Clone, Debug)]
pub struct StatusOptions {
    /// Print the sidecars' JSON, one line each: for scripts
    #[arg(long)]
    json: bool,
    /// Show it again every second, until interrupted. On a terminal in the same place
    #[arg(long)]
    watch: bool,
    /// Exit with 0 for OK, 3 for DEGRADED and 4 for WAITING; the worst of several sidecars. Without it, only a sidecar that does
    /// not answer is a failure
    #[arg(long, conflicts_with = "watch")]
    check: bool,
    /// Which sidecars: every given socket is queried, primary or not.
    #[command(flatten)]
    sockets: Sockets,
}

/// Asks and prints.
pub fn run(options: &StatusOptions) -> anyhow::Result<Exit> {
    if options.watch {
        return watch(options);
    }
    let sockets = options.sockets.paths();
    let (mut failed, mut worst) = (0, VerdictState::Ok);
    for (place, socket) in sockets.iter().enumerate() {
        match ask(options, socket) {
            Ok((text, state)) => {
                worst = worst.max(state);
                let gap = if place > 0 && !options.json { "\n" } else { "" };
                write!(Output::lock(), "{gap}{text}").context("write to standard output")?;
            }
            Err(error) if sockets.len() == 1 => return Err(error),
            Err(error) => {
                failed += 1;
                tell(format_args!("status: {}: {}", socket.display(), explain(&error)));
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} sidecars did not answer", sockets.len());
    }
    Ok(match worst {
        VerdictState::Degraded if options.check => Exit::Degraded,
        VerdictState::Waiting if options.check => Exit::Waiting,
        _ => Exit::Success,
    })
}

/// Asks again and again. What cannot be asked now may be there later.
fn watch(options: &StatusOptions) -> anyhow::Result<Exit> {
    let on_terminal = io::stdout().is_terminal() && !options.json;
    let mut before = if on_terminal { CLEAR } else { "" };
    loop {
        let texts = options.sockets.paths().into_iter().map(|socket| match ask(options, &socket) {
            Ok((text, _)) => text,
            Err(error) if options.json => {
                tell(format_args!("status: {}: {}", socket.display(), explain(&error)));
                String::new()
            }
            Err(error) => format!("{}: {}\n", socket.display(), explain(&error)),
        });
        let text = texts.collect::<Vec<_>>().join(if options.json { "" } else { "\n" });
        let text = match on_terminal {
            true => format!("{before}{HOME}{}{CLEAR_BELOW}", text.replace('\n', CLEAR_LINE)),
            false => format!("{before}{text}"),
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write to standard output")?;
        drop(out);
        before = if on_terminal || options.json { "" } else { "\n" };
        sleep(WATCH_INTERVAL);
    }
}

/// What one sidecar says, as it is to be printed, and its verdict.
fn ask(options: &StatusOptions, socket: &Path) -> anyhow::Result<(String, VerdictState)> {
    let mut client = options.sockets.connect_to(socket)?;
    let json = client.status().context("ask for the status")?;
    // Another version's JSON is for scripts that may know it.
    let report = match report::parse::<SidecarReport>(json.as_bytes()) {
        Err(_) if options.json && !options.check => return Ok((json + "\n", VerdictState::Ok)),
        Err(why) => return Err(anyhow!("{why} (--json shows what it says)")),
        Ok(report) => report,
    };
    let state = report.content.verdict.state;
    Ok((if options.json { json + "\n" } else { text(&report) }, state))
}

fn text(report: &Report<SidecarReport>) -> String {
    render::Rendered(report).to_string()
}
