//! The roles of a sidecar, and its way from one to the next: standby → candidate → primary → standby.
//!
//! Entered by [`control`](super) at [`run`], for as long as the process lives. After any failure the sidecar goes back to a
//! named role and takes the ordinary way again. In the order in which one meets them:
//!
//! - [`standby`] watches the primary, and says when it is this sidecar's turn;
//! - [`fit`] asks before that whether backups can take what this sidecar writes;
//! - [`promote`] executes what the promotion machine wants, with [`tenure`], the term that is claimed;
//! - [`lead`] executes what the primary machine wants, for one term; [`seat`] what of it concerns one member;
//! - [`member`] speaks to one backup, within one epoch;
//! - [`other_kind`] keeps one apart whose options say another kind of group;
//! - [`read_only`] is the role of a sidecar that only reads, instead of all these.

mod fit;
pub(super) mod lead;
pub(super) mod member;
mod other_kind;
mod promote;
mod read_only;
mod seat;
mod standby;
pub mod tenure;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::socket::Role;
use tokio::sync::mpsc;

use super::rebuild::Ended;
use super::warm::Warming;
use super::{Context, Rules, random_below, rebuild};
use crate::path::{Command, FromTerm};
use fit::FitCheck;
use lead::TermEnd;
use standby::NoTurn;

/// A term that ends sooner is followed by a pause, longer after each such term.
const TERM_SHORT: Duration = Duration::from_secs(1);
/// The first such pause: members that were restarted a moment ago are back by then.
const TERM_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest: an administrator who has mended the cause should not wait for long.
const TERM_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs the roles until the process ends. Returns only with an error that an administrator must deal with.
pub(super) async fn run(context: &Arc<Context>, outputs: mpsc::Receiver<FromTerm>) -> anyhow::Result<()> {
    match context.rules.reader {
        true => read_only::stay(context).await,
        false => change_roles(context, outputs).await,
    }
}

async fn change_roles(context: &Arc<Context>, mut outputs: mpsc::Receiver<FromTerm>) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    // A promotion that is disturbed is still part of the same failover.
    let mut missed: Option<Instant> = None;
    let mut fit = FitCheck::default();
    let mut warming: Option<Warming> = None;
    loop {
        warming = warming.or_else(|| Warming::begin(context));
        stay_fenced(context).await;
        let turn = match standby::wait_for_turn(context).await {
            Ok(turn) => turn,
            Err(NoTurn::Fenced) => continue,
            Err(NoTurn::OtherKind(found)) => {
                other_kind::stay_apart(context, found).await;
                continue;
            }
        };
        missed = turn.missed.or(missed);
        if context.desired().fenced || !turn.has_asked && !fit.passes(context).await {
            continue;
        }
        context.path.send(Command::Wait { role: Role::Recovering, epoch: 0, primary: String::new() });
        let outcome = promote::promote(context, turn.founding).await;
        if !matches!(outcome, promote::Outcome::Won(..)) {
            context.tenure.end();
        }
        context.waits.over();
        match outcome {
            promote::Outcome::Won(config, reference) => {
                let table = match rebuild::rebuild(context, &config, &reference, warming.take()).await {
                    Ok(table) => table,
                    Err(ended) => {
                        context.tenure.end();
                        missed = None;
                        if let Ended::Superseded(epoch) = ended {
                            tracing::info!(%epoch, "another sidecar claimed a newer epoch");
                        }
                        continue;
                    }
                };
                if let Some(missed) = missed.take() {
                    context.times.failed_over(missed.elapsed());
                }
                let began = Instant::now();
                let TermEnd { why, was_cut_off } = lead::lead(context, config, &reference, table, &mut outputs).await?;
                context.tenure.end();
                tracing::warn!(%why, "stepped down");
                // Whatever ends one term after the other is not mended by the next: backups of another size, full disks.
                pause = match began.elapsed() {
                    short if short < TERM_SHORT => (pause * 2).clamp(TERM_PAUSE_MIN, TERM_PAUSE_MAX),
                    _ => Duration::ZERO,
                };
                let others_first = if was_cut_off { time_to_take_over(&context.rules) } else { Duration::ZERO };
                tokio::time::sleep(pause.max(others_first)).await;
            }
            promote::Outcome::OtherKind(found) => {
                missed = None;
                other_kind::stay_apart(context, Some(found)).await;
            }
            promote::Outcome::Disturbed => {
                tracing::info!("the group's desired state has changed")
            }
            promote::Outcome::Lost(epoch) => {
                tracing::info!(%epoch, "another sidecar claimed a newer epoch");
                missed = None;
                // Candidates that race back off at random.
                tokio::time::sleep(Duration::from_millis(random_below(40))).await;
            }
        }
    }
}

/// How long standbys take to find this sidecar gone, and to ask once more; those without an app wait until the others have.
fn time_to_take_over(rules: &Rules) -> Duration {
    2 * rules.heartbeat_silence + rules.app_wait
}

/// Returns at once, unless the group is to have no primary.
async fn stay_fenced(context: &Context) {
    if context.desired().fenced {
        tracing::warn!("fenced: no appends until spec.fenced is cleared");
        context.waits.over();
        context.path.send(Command::Wait { role: Role::Standby, epoch: 0, primary: String::new() });
        context.desires(|desired| !desired.fenced).await;
        tracing::info!("no longer fenced");
    }
}
