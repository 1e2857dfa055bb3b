//! The second connection to the sidecar: it learns of changes of role while no append is in flight, sends barriers and trims
//! beside the appends, and asks how many copies there are.
//!
//! [`turns`](crate::turns) owns one for each turn; the client is the one that has waited for the role.

use serde_json::Value;
use tailwind_client::asynchronous::Client;
use tailwind_client::{Epoch, Error, Lsn, Role};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::limits::STATUS_INTERVAL;

/// One barrier and one trim may be under way at a time.
const REQUESTS_MAX: usize = 4;
/// Answers to these, and one status.
const EVENTS_MAX: usize = 8;

/// A request to the sidecar.
#[derive(Debug)]
pub enum SidecarRequest {
    /// Prove that it is still primary.
    Barrier,
    /// Delete records below.
    Trim(Lsn),
}

/// An answer or a change of role.
#[derive(Debug)]
pub enum SidecarEvent {
    /// The barrier has passed in this epoch.
    Passed(Epoch),
    /// The first record that can still be read.
    Trimmed(Lsn),
    /// Backups that acks need.
    Copies(usize),
    /// The turn is over.
    Lost(String),
}

/// The two ends that the turn holds. Dropping them ends the task.
#[derive(Debug)]
pub struct SidecarLink {
    requests: mpsc::Sender<SidecarRequest>,
    events: mpsc::Receiver<SidecarEvent>,
}

impl SidecarLink {
    /// Starts the task. `epoch`: that of the turn.
    pub fn start(client: Client, epoch: Epoch) -> SidecarLink {
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(async move {
            let why = match run(client, epoch, received, &sender).await {
                Ok(why) => why,
                Err(error) => error.to_string(),
            };
            // A turn that has ended by itself no longer receives.
            let _ = sender.send(SidecarEvent::Lost(why)).await;
        });
        SidecarLink { requests, events }
    }

    /// Sends a request. If the task has ended, its last event has the reason.
    pub fn send(&self, request: SidecarRequest) {
        assert!(
            !matches!(self.requests.try_send(request), Err(mpsc::error::TrySendError::Full(_))),
            "one barrier and one trim at a time"
        );
    }

    /// Waits for the next event.
    pub async fn next(&mut self) -> SidecarEvent {
        self.events.recv().await.unwrap_or_else(|| SidecarEvent::Lost("the sidecar link has ended".to_owned()))
    }
}

/// Returns why the turn is over.
async fn run(
    mut client: Client,
    epoch: Epoch,
    mut received: mpsc::Receiver<SidecarRequest>,
    sender: &mpsc::Sender<SidecarEvent>,
) -> Result<String, Error> {
    let mut ticks = interval(STATUS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            request = received.recv() => match request {
                None => return Ok("the turn has ended".to_owned()),
                Some(SidecarRequest::Barrier) => SidecarEvent::Passed(client.barrier().await?.epoch),
                Some(SidecarRequest::Trim(below)) => SidecarEvent::Trimmed(client.trim(below).await?),
            },
            status = client.next_role() => {
                let status = status?;
                if status.role == Role::Primary && status.epoch == epoch {
                    continue;
                }
                return Ok(format!("the sidecar has lost the role to {}", status.primary.as_deref().unwrap_or("nobody yet")));
            }
            _ = ticks.tick() => match copies(&client.status().await?) {
                Some(copies) => SidecarEvent::Copies(copies),
                None => continue,
            },
        };
        if sender.send(event).await.is_err() {
            return Ok("the turn has ended".to_owned());
        }
    }
}

/// Members in the set, from the sidecar's status.
fn copies(status: &str) -> Option<usize> {
    let status: Value = serde_json::from_str(status).ok()?;
    let members = status["members"].as_array()?;
    Some(members.iter().filter(|member| member["state"] == "in-set").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_counts_the_members_in_the_set() {
        let status = r#"{"role":"primary","members":[{"state":"in-set"},{"state":"catching-up"},{"state":"in-set"}]}"#;
        assert_eq!(copies(status), Some(2));
        assert_eq!(copies("{}"), None);
        assert_eq!(copies("nonsense"), None);
    }
}
