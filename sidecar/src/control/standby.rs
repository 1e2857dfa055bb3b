//! A standby: listens to the primary's heartbeats and returns when it is time to become a candidate.
//!
//! Called by [`control::run`](super::run). A dead process is noticed at once (its connections close), a dead or cut-off
//! host after the heartbeat silence.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tailwind_crds::readiness::WaitsFor;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::socket::Role;
use tokio::task::JoinSet;

use super::{Context, random_below};
use crate::logging::Repeats;
use crate::path::Command;
use crate::rpc::{BackupClient, Silence};
use crate::tls::Role as PeerRole;

/// Standbys that notice at the same moment spread over this time, so that one of them usually wins at once.
const SPREAD_MS: u64 = 8;
/// Pause of a standby that finds its primary gone and too few members to take over with.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Pause of a standby that was asked to take over and finds too few members.
const SWITCHOVER_AGAIN: Duration = Duration::from_secs(1);
/// Pause before the config store is asked again after it failed.
const STORE_RETRY: Duration = Duration::from_millis(200);
/// The same trouble with the config store is logged at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// Returns when this sidecar should try to become primary.
pub async fn wait_for_turn(context: &Context) {
    let mut config = read(context).await;
    // What has been told once, of this configuration.
    let mut told = None;
    // A sidecar that restarted at another address finds its former self as primary, at each look.
    let mut same_name = Repeats::default();
    // Too few members answered the last time.
    let mut alone = false;
    loop {
        let Some(known) = config else { return };
        let mine = known.primary == context.me;
        if mine {
            return;
        }
        if known.primary.id == context.me.id && same_name.is_due(known.stamp(), Instant::now()) {
            tracing::warn!(
                name = %known.primary.id, control = %known.primary.control,
                "the primary has this sidecar's name: if it is another sidecar, give each a name of its own"
            );
        }
        context.path.send(Command::Wait {
            role: Role::Standby,
            epoch: known.epoch.0,
            primary: known.primary.id.to_string(),
        });
        let client = BackupClient::new(known.primary.control.clone(), &context.access, PeerRole::Sidecar);
        let silence = context.rules.heartbeat_silence;
        config = tokio::select! {
            changed = context.store.changed(Some(known.stamp())) => {
                context.waits.over();
                Some(changed)
            }
            never = forget_wait(context, silence * 3) => match never {},
            () = context.wished(|wishes| wishes.fenced || wishes.calls(&context.me.id, known.epoch)) => {
                if context.wishes().fenced {
                    return;
                }
                match enough_answer(context, &known).await {
                    Ok(()) => {
                        tracing::info!(group = %context.group, primary = %known.primary.id, epoch = %known.epoch, "taking over, as asked");
                        return;
                    }
                    Err(why) => tracing::warn!(group = %context.group, %why, "asked to take over, and cannot"),
                }
                tokio::time::sleep(SWITCHOVER_AGAIN).await;
                read(context).await
            }
            Silence { why, heard } = client.watch_heartbeats(silence) => {
                let news = told.replace(known.stamp()) != Some(known.stamp());
                if news {
                    tracing::warn!(primary = %known.primary.id, epoch = %known.epoch, %why, "primary is gone");
                }
                tokio::time::sleep(Duration::from_millis(random_below(SPREAD_MS))).await;
                // It may be this side that is, or has just been, cut off. Then it would depose a primary that is well.
                let asked = Instant::now();
                let answer = enough_answer(context, &known).await;
                let in_doubt = alone || !heard || asked.elapsed() > silence / 2;
                alone = answer.is_err();
                let is_well = answer.is_ok() && in_doubt && answers_in_time(&client, silence).await;
                let now = read(context).await;
                if now.as_ref().map(Configuration::stamp) == Some(known.stamp()) {
                    match answer {
                        Ok(()) if is_well => {
                            told = None;
                            context.waits.over();
                        }
                        Ok(()) => return,
                        Err(why) => {
                            if news {
                                tracing::warn!(group = %context.group, %why, "waiting");
                            }
                            context.waits.wait(WaitsFor::Members, why);
                        }
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                now
            }
        };
    }
}

/// A primary that has been listened to for so long is heard, and nobody waits to take its place.
async fn forget_wait(context: &Context, patience: Duration) -> Infallible {
    tokio::time::sleep(patience).await;
    context.waits.over();
    std::future::pending().await
}

/// Whether the primary answers after all. A network that is coming back refuses connections for a moment.
async fn answers_in_time(client: &BackupClient, silence: Duration) -> bool {
    let deadline = Instant::now() + silence;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if client.answers(left).await.is_ok() {
            return true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whether as many members can be reached as a promotion needs; otherwise says why not. A sidecar that reaches the config
/// store but not the backups must not claim an epoch: it would depose one primary after the other and win nothing.
async fn enough_answer(context: &Context, config: &Configuration) -> Result<(), String> {
    let needed = usize::from(context.wishes().min_in_sync).min(config.members.len());
    let mut asked = JoinSet::new();
    for member in &config.members {
        let client = context.backup(&member.id, Some(&member.control));
        let patience = context.rules.heartbeat_silence;
        asked.spawn(async move { client.answers(patience).await });
    }
    let (mut answered, mut missing) = (0, Vec::new());
    while answered < needed {
        match asked.join_next().await {
            Some(Ok(Ok(()))) => answered += 1,
            Some(Ok(Err(error))) => missing.push(error.to_string()),
            Some(Err(error)) => missing.push(error.to_string()),
            None => {
                let missing = missing.join(", ");
                return Err(format!(
                    "{answered} of the last set's members answer, {needed} needed; missing: {missing}"
                ));
            }
        }
    }
    Ok(())
}

async fn read(context: &Context) -> Option<Configuration> {
    let mut said: Option<Instant> = None;
    loop {
        match context.store.read().await {
            Ok(config) => return config,
            Err(error) if said.is_none_or(|at| at.elapsed() > SAY_AGAIN) => {
                tracing::warn!(%error, "read the configuration");
                said = Some(Instant::now());
            }
            Err(_) => {}
        }
        tokio::time::sleep(STORE_RETRY).await;
    }
}
