//! `follow`: acknowledged records to standard output, at a sidecar of any role, until that sidecar is primary.
//!
//! What a standby app does all its life, for people and scripts. Records go to standard output; that it has caught up, how
//! old its view is, and its turn go to standard error.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use tailwind_client::blocking::Client;
use tailwind_client::{self as client, Error, FollowEvent, Lsn};

use super::interruption::Interruption;
use super::read::{
    LOOK_UP_EVERY, Output, OutputOptions, Start, WRITE, copy_tail, finish, is_abandoned, nothing_written,
};
use super::target::{FIRST_OF_SOCKETS, Target, WAIT_FOR_ANY};
use super::tell;

/// How long a sidecar may be silent that says how old its view is: it does so twice a second.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Write records to standard output as they are acknowledged, at a sidecar of any role, until it becomes primary.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  What a standby app does all its life:\n    tailwind-sidecar follow --wait --go-on | app\n\n\
                  Exit codes: 0 once the sidecar is primary and every acknowledged record has been written, or when the \
                  output is closed; 1 if something failed, or SIGINT or SIGTERM has ended it: standard error says how far \
                  it came and how to resume; 2 if the command line is invalid",
    mut_arg("socket", |socket| socket.help(FIRST_OF_SOCKETS)),
    mut_arg("wait", |wait| wait.help(WAIT_FOR_ANY))
)]
pub struct FollowOptions {
    /// First record to read: an LSN (HISTORY/LSN to continue after what was written before), `first` (the first that has not been trimmed, as far as the sidecar knows) or `end` (the
    /// next one to come)
    #[arg(long, default_value_t = Start::First, value_name = "LSN")]
    from: Start,
    /// Continue once the sidecar is primary, and after it has lost the role again
    #[arg(long)]
    go_on: bool,
    /// Report the lag on standard error, at most twice a second; otherwise only when the view becomes stale or fresh
    #[arg(long)]
    print_lag: bool,
    /// Output format.
    #[command(flatten)]
    looks: OutputOptions,
    /// Which sidecar: the first that answers, if several sockets are given.
    #[command(flatten)]
    target: Target,
}

/// Why following has ended without an error.
enum End {
    /// This sidecar is primary.
    Turn,
    /// Nobody reads the output any more.
    Abandoned,
}

/// Follows until this sidecar is primary, or without end.
pub fn run(options: &FollowOptions) -> anyhow::Result<()> {
    let mut out = options.looks.writer()?;
    let interruption = Interruption::listen("follow", nothing_written(options.from))?;
    let mut client = options.target.connect_to_any()?;
    let mut next = options.from.resolve_anywhere(&mut client)?;
    client.set_timeout(Some(LOOK_UP_EVERY)).context("set the socket's time-out")?;
    interruption.connected(&client)?;
    let copied = copy(options, &mut client, &mut next, &mut out);
    finish(copied, &mut out, next, &interruption)
}

fn copy(
    options: &FollowOptions,
    client: &mut Client,
    next: &mut client::Start,
    out: &mut Output,
) -> anyhow::Result<()> {
    loop {
        match copy_follow(options.print_lag, client, next, out)? {
            End::Turn if options.go_on => {}
            End::Turn | End::Abandoned => return Ok(()),
        }
        match copy_tail(client, next, out) {
            Err(error) if matches!(error.downcast_ref(), Some(Error::NotPrimary { .. })) => {
                tell("role lost: following")
            }
            ended => return ended,
        }
    }
}

/// Copies a follow from `next` on. `next` moves on with it.
fn copy_follow(
    print_lag: bool,
    client: &mut Client,
    next: &mut client::Start,
    out: &mut Output,
) -> anyhow::Result<End> {
    let mut follow = client.follow(*next)?;
    let (mut has_caught_up, mut was_stale, mut heard) = (false, false, Instant::now());
    loop {
        let event = follow.next_event();
        if event.is_ok() {
            heard = Instant::now();
        }
        match event {
            Ok(Some(FollowEvent::Record(lsn, payload))) => {
                out.write(lsn, payload).context(WRITE)?;
                *next = (follow.history(), lsn.next()).into();
                continue;
            }
            Ok(Some(FollowEvent::CaughtUp { next })) => {
                if !std::mem::replace(&mut has_caught_up, true) {
                    tell(format_args!("caught up: LSN {next} is next"));
                }
            }
            Ok(Some(FollowEvent::Lag { acked, behind, stale })) => {
                if std::mem::replace(&mut was_stale, stale) != stale || print_lag {
                    tell(lag(acked, behind, stale));
                }
            }
            Ok(Some(FollowEvent::Turn { epoch, next: to_come })) => {
                *next = (follow.history(), to_come).into();
                // The last line tells its reader that every record is written.
                out.flush().context(WRITE)?;
                tell(format_args!("turn: this sidecar is primary in epoch {epoch}, and LSN {to_come} is next"));
                return Ok(End::Turn);
            }
            Ok(None) => bail!("the sidecar has ended the follow"),
            Err(Error::TimedOut { .. }) if heard.elapsed() >= SILENCE_MAX => {
                if !std::mem::replace(&mut was_stale, true) {
                    tell(format_args!("lag: stale: the sidecar has been silent for {SILENCE_MAX:?}"));
                }
            }
            Err(Error::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Nothing more for now: readers must not wait for the buffer to fill.
        out.flush().context(WRITE)?;
        if is_abandoned() {
            return Ok(End::Abandoned);
        }
    }
}

/// How old the view is, for people.
fn lag(acked: Lsn, behind: Option<Duration>, stale: bool) -> String {
    let freshness = if stale { "stale" } else { "fresh" };
    let age = match behind {
        Some(behind) => format!("{} ms behind at most", behind.as_millis()),
        None => "behind by an unknown time".to_owned(),
    };
    format!("lag: {freshness}, {age}; LSN {acked} is known to be acknowledged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_says_how_old_the_view_is() {
        let behind = Some(Duration::from_millis(1200));
        let words = "lag: stale, 1200 ms behind at most; LSN 7 is known to be acknowledged";
        assert_eq!(lag(Lsn(7), behind, true), words);
        let words = "lag: stale, behind by an unknown time; LSN 0 is known to be acknowledged";
        assert_eq!(lag(Lsn(0), None, true), words);
    }
}
