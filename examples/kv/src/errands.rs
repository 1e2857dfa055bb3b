//! The second connection to the sidecar: it hears of changes of role while no record is on its way, carries barriers and
//! trims past the appends, and asks how many copies there are.
//!
//! [`turns`](crate::turns) owns one for each turn; the client is the one that has waited for the role.

use serde_json::Value;
use tailwind_client::asynchronous::Client;
use tailwind_client::{Epoch, Error, Lsn, Role};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::limits::STATUS_INTERVAL;

/// One barrier and one trim may be under way at a time.
const ERRANDS_MAX: usize = 4;
/// Answers to these, and one status.
const NEWS_MAX: usize = 8;

/// What is to be asked of the sidecar.
#[derive(Debug)]
pub enum Errand {
    /// Prove that it is still primary.
    Barrier,
    /// Let go of records below.
    Trim(Lsn),
}

/// What it said.
#[derive(Debug)]
pub enum News {
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
pub struct Errands {
    errands: mpsc::Sender<Errand>,
    news: mpsc::Receiver<News>,
}

impl Errands {
    /// Starts the task. `epoch`: that of the turn.
    pub fn start(client: Client, epoch: Epoch) -> Errands {
        let (errands, to_do) = mpsc::channel(ERRANDS_MAX);
        let (tell, news) = mpsc::channel(NEWS_MAX);
        tokio::spawn(async move {
            let why = match run(client, epoch, to_do, &tell).await {
                Ok(why) => why,
                Err(error) => error.to_string(),
            };
            // A turn that has ended by itself does not listen.
            let _ = tell.send(News::Lost(why)).await;
        });
        Errands { errands, news }
    }

    /// Gives an errand. If the task is gone, its last news say why.
    pub fn give(&self, errand: Errand) {
        assert!(
            !matches!(self.errands.try_send(errand), Err(mpsc::error::TrySendError::Full(_))),
            "one barrier and one trim at a time"
        );
    }

    /// Waits for news.
    pub async fn next(&mut self) -> News {
        self.news.recv().await.unwrap_or_else(|| News::Lost("the errands' task has ended".to_owned()))
    }
}

/// Returns why the turn is over.
async fn run(
    mut client: Client,
    epoch: Epoch,
    mut to_do: mpsc::Receiver<Errand>,
    tell: &mpsc::Sender<News>,
) -> Result<String, Error> {
    let mut ticks = interval(STATUS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let news = tokio::select! {
            errand = to_do.recv() => match errand {
                None => return Ok("the turn has ended".to_owned()),
                Some(Errand::Barrier) => News::Passed(client.barrier().await?.epoch),
                Some(Errand::Trim(below)) => News::Trimmed(client.trim(below).await?),
            },
            standing = client.next_role() => {
                let standing = standing?;
                if standing.role == Role::Primary && standing.epoch == epoch {
                    continue;
                }
                return Ok(format!("the sidecar has lost the role to {}", standing.primary.as_deref().unwrap_or("nobody yet")));
            }
            _ = ticks.tick() => match copies(&client.status().await?) {
                Some(copies) => News::Copies(copies),
                None => continue,
            },
        };
        if tell.send(news).await.is_err() {
            return Ok("the turn has ended".to_owned());
        }
    }
}

/// Members in the set, from the sidecar's status.
fn copies(status: &str) -> Option<usize> {
    let status: Value = serde_json::from_str(status).ok()?;
    let members = status["members"].as_array()?;
    Some(members.iter().filter(|member| member["standing"] == "in set").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_counts_the_members_in_the_set() {
        let status =
            r#"{"role":"primary","members":[{"standing":"in set"},{"standing":"catching up"},{"standing":"in set"}]}"#;
        assert_eq!(copies(status), Some(2));
        assert_eq!(copies("{}"), None);
        assert_eq!(copies("nonsense"), None);
    }
}
