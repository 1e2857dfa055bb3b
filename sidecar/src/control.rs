//! Moves a sidecar between its roles: standby → candidate → primary → standby.
//!
//! Started by [`run`](crate::run) on the tokio runtime; not on the append path. What all parts share is in the [`Context`].
//! [`standby`] watches the primary, [`promote`] executes what the promotion machine wants, [`lead`] and [`seat`] what the
//! primary machine wants, [`member`] speaks to one backup, [`fit`] asks whether backups can take what this sidecar writes.
//! [`status`], [`waits`], [`follows`], [`refusals`], [`contacts`], [`peers`] and [`rates`] tell how it goes. After any failure
//! the sidecar goes back to a named role and takes the ordinary way again; one that only reads stays [`read_only`].
//!
//! Clients are served beside the roles: [`client_read`] sends them records, from this primary's [`own`] [`log`] or, by a
//! [`follow`], from what members hold; [`position`] asks the primary how far the log is.

pub mod ahead;
pub mod alarm;
pub mod client_read;
pub mod client_stream;
pub mod configuration;
pub mod contacts;
mod context;
pub mod desired;
pub mod fit;
mod follow;
pub mod follows;
mod handle;
pub mod lead;
pub mod log;
pub mod measured;
pub mod member;
mod own;
pub mod peers;
pub mod position;
pub mod promote;
pub mod rates;
mod read_only;
mod readiness;
pub mod refusals;
pub mod seat;
pub mod sources;
pub mod standby;
pub mod status;
pub mod tenure;
pub mod times;
pub mod visit;
pub mod waits;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::socket::Role;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::path::{ClientRequest, Command, ControlReceivers, FromTerm};

pub use context::{Context, Rules};
use fit::FitCheck;
pub use handle::AppendLoopHandle;

/// A term that ends sooner is followed by a pause, longer after each such term.
const TERM_SHORT: Duration = Duration::from_secs(1);
/// The first such pause: members that were restarted a moment ago are back by then.
const TERM_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest: a person who has mended the cause should not wait for long.
const TERM_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs the roles and serves clients for ever. Returns only with an error that a person must see to.
pub async fn run(context: Arc<Context>, from_path: ControlReceivers) -> anyhow::Result<()> {
    let ControlReceivers { outputs, requests } = from_path;
    let roles = async {
        match context.rules.reader {
            true => read_only::stay(&context).await,
            false => change_roles(&context, outputs).await,
        }
    };
    tokio::select! {
        end = roles => end,
        () = serve_clients(&context, requests) => Err(anyhow::anyhow!("the append path has ended")),
        // What is told of the group beside what the roles know.
        never = contacts::watch(&context) => match never {},
        never = peers::tell(&context) => match never {},
        never = context.rates.watch(&context.shared) => match never {},
    }
}

async fn change_roles(context: &Arc<Context>, mut outputs: mpsc::Receiver<FromTerm>) -> anyhow::Result<()> {
    let mut pause = Duration::ZERO;
    // A promotion that is disturbed is still part of the same failover.
    let mut missed: Option<Instant> = None;
    let mut fit = FitCheck::default();
    loop {
        stay_fenced(context).await;
        let Some(turn) = standby::wait_for_turn(context).await else { continue };
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
                if let Some(missed) = missed.take() {
                    context.times.failed_over(missed.elapsed());
                }
                let began = Instant::now();
                let why = lead::lead(context, config, &reference, &mut outputs).await?;
                context.tenure.end();
                tracing::warn!(%why, "stepped down");
                // Whatever ends one term after the other is not mended by the next: backups of another size, full disks.
                pause = match began.elapsed() {
                    short if short < TERM_SHORT => (pause * 2).clamp(TERM_PAUSE_MIN, TERM_PAUSE_MAX),
                    _ => Duration::ZERO,
                };
                tokio::time::sleep(pause).await;
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

/// Reads and questions for the status are served in every role, each in a task of its own: at most as many as there are clients,
/// and a few questions of each.
async fn serve_clients(context: &Arc<Context>, mut requests: mpsc::Receiver<ClientRequest>) {
    let mut tasks = JoinSet::new();
    while let Some(request) = requests.recv().await {
        while tasks.try_join_next().is_some() {}
        let context = Arc::clone(context);
        match request {
            ClientRequest::Read { detached, request, start, kind } => {
                let wanted = client_read::Wanted { request, start, kind };
                tasks.spawn(client_read::serve(context, detached, wanted));
            }
            ClientRequest::Position(client, request) => {
                tasks.spawn(async move {
                    let position = position::ask(Arc::clone(&context)).await;
                    context.path.send(Command::AnswerPosition(client, request, position));
                });
            }
            ClientRequest::Status(client, request) => {
                tasks.spawn(async move {
                    let json = status::json(&context).await;
                    context.path.send(Command::Answer(client, request, json));
                });
            }
        }
    }
}

/// A random number below `bound`; 0 where the system has no randomness to give.
fn random_below(bound: u64) -> u64 {
    getrandom::u64().unwrap_or(0) % bound
}
