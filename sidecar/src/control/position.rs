//! Positions of the primary's log: who has applied the records up to one may answer a read that must see every earlier write.
//!
//! A primary takes one by a barrier ([`own`]), for its own clients within the append path and for other sidecars at
//! `/v1/position`. Others ask the primary that the config store names ([`ask`]).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::rpc::{PositionReply, PositionRequest, Refusal, path};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::Context;
use super::desired::READS_DISABLED;
use crate::path::Command;
use crate::rpc::BackupClient;
use crate::tls::PeerRole;

/// How long one primary may take: a barrier passes within a millisecond, or not at all.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client waits at most: a failover fits in.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the primary, or its successor, is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// The primary that was asked last, and how it is reached: connections are kept.
#[derive(Debug, Default)]
pub struct PrimaryClient(Mutex<Option<(PrimaryRef, BackupClient)>>);

impl PrimaryClient {
    fn of(&self, context: &Context, primary: &PrimaryRef) -> BackupClient {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((same, client)) if same == primary => client.clone(),
            _ => {
                let client = BackupClient::new(primary.control.clone(), &context.access, PeerRole::Sidecar);
                *known = Some((primary.clone(), client.clone()));
                client
            }
        }
    }
}

/// A position that is taken after this call has begun; the error says why there is none, for people.
pub async fn ask(context: &Context) -> Result<PositionReply, String> {
    if !context.may_read() {
        return Err(READS_DISABLED.to_owned());
    }
    let deadline = Instant::now() + PATIENCE;
    let mut why = "who is primary is not known".to_owned();
    loop {
        match timeout_at(deadline, ask_once(context)).await {
            Ok(Ok(position)) => return Ok(position),
            Ok(Err(refusal)) => why = refusal,
            Err(_) => return Err(format!("no position of the log within {PATIENCE:?}: {why}")),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn ask_once(context: &Context) -> Result<PositionReply, String> {
    let config = context.configuration.borrow().clone();
    let config = config.ok_or("who is primary is not known")?;
    if config.primary.id == context.me.id {
        return own(context).await;
    }
    let client = context.primary.of(context, &config.primary);
    let request = PositionRequest { group: context.group.clone(), log: Some(config.log) };
    let reply: PositionReply =
        client.call(path::POSITION, &request, ANSWER_TIMEOUT).await.map_err(|error| error.to_string())?;
    if reply.epoch < config.epoch {
        return Err(format!(
            "sidecar {} is primary of epoch {}, {} is known",
            config.primary.id, reply.epoch, config.epoch
        ));
    }
    Ok(reply)
}

/// A position of this primary's log.
async fn own(context: &Context) -> Result<PositionReply, String> {
    let (reply, answer) = oneshot::channel();
    context.path.send(Command::TakePosition(reply));
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(position)) => position,
        Ok(Err(_)) => Err("the append path has ended".to_owned()),
        Err(_) => Err(format!("no barrier has passed within {ANSWER_TIMEOUT:?}")),
    }
}

/// Answers another sidecar.
pub async fn answer(context: &Context, request: &PositionRequest) -> Result<PositionReply, Refusal> {
    let log = context.configuration.borrow().as_ref().map(|config| config.log);
    if request.group != context.group || request.log.is_some_and(|wanted| log.is_some_and(|log| log != wanted)) {
        let why = format!("this sidecar belongs to group {}, and that is another log", context.group);
        return Err(Refusal::WrongLog { why });
    }
    let after_ms = AGAIN.as_millis() as u32;
    own(context).await.map_err(|why| Refusal::RetryLater { after_ms, why: format!("{}: {why}", context.me.id) })
}
