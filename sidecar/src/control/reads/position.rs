//! Positions of the primary's log: who has applied the records up to one may answer a read that must see every earlier write.
//!
//! A primary takes one by a barrier ([`take`]), for its own clients within the append path and for other sidecars at
//! `/v1/position`. Others ask the primary that the config store names ([`ask`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::layout::SEGMENT_MAX;
use tailwind_protocol::rpc::{Inventory, InventoryRequest, PositionReply, PositionRequest, Refusal, path};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use crate::control::Context;
use crate::control::desired::READS_DISABLED;
use crate::control::log::Term;
use crate::path::Command;
use crate::rpc::BackupClient;
use crate::tls::PeerRole;

/// How long one primary may take: a barrier passes within a millisecond, or not at all.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client waits at most: a failover fits in.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the primary, or its successor, is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// The primary that was asked last, and how it is reached: connections are kept.
#[derive(Debug, Default)]
pub struct PrimaryClient {
    known: Mutex<Option<(PrimaryRef, BackupClient)>>,
    rounds: Rounds<Result<PositionReply, String>>,
}

impl PrimaryClient {
    fn of(&self, context: &Context, primary: &PrimaryRef) -> BackupClient {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Calls that follow one another: whoever asks while one is under way shares the next. However many ask, one call is under way,
/// and each gets the answer of a call that began after it had asked.
#[derive(Debug)]
struct Rounds<T>(Arc<Mutex<Asked<T>>>);

#[derive(Debug)]
struct Asked<T> {
    /// Those who wait for the next call.
    waiting: Vec<oneshot::Sender<T>>,
    under_way: bool,
}

impl<T> Default for Rounds<T> {
    fn default() -> Rounds<T> {
        Rounds(Arc::new(Mutex::new(Asked { waiting: Vec::new(), under_way: false })))
    }
}

impl<T: Clone + Send + 'static> Rounds<T> {
    fn ask<F>(&self, call: impl Fn() -> F + Send + 'static) -> oneshot::Receiver<T>
    where
        F: Future<Output = T> + Send,
    {
        let (reply, answer) = oneshot::channel();
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.waiting.push(reply);
        if !std::mem::replace(&mut asked.under_way, true) {
            let rounds = Arc::clone(&self.0);
            tokio::spawn(async move {
                let _rescue = Rescue(&rounds);
                while let Some(waiting) = next_round(&rounds) {
                    let answer = call().await;
                    // Who has given up waiting needs none.
                    waiting.into_iter().for_each(|waiter| drop(waiter.send(answer.clone())));
                }
            });
        }
        answer
    }
}

/// After a call that panicked, those who wait get no answer, and the next question begins another call.
struct Rescue<'a, T>(&'a Mutex<Asked<T>>);

impl<T> Drop for Rescue<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (asked.waiting, asked.under_way) = (Vec::new(), false);
        }
    }
}

/// Those who have asked since the last call began; the calls end if there are none.
fn next_round<T>(rounds: &Mutex<Asked<T>>) -> Option<Vec<oneshot::Sender<T>>> {
    let mut asked = rounds.lock().unwrap_or_else(PoisonError::into_inner);
    asked.under_way = !asked.waiting.is_empty();
    asked.under_way.then(|| std::mem::take(&mut asked.waiting))
}

/// A position that is taken after this call has begun; the error says why there is none, for people.
pub async fn ask(context: Arc<Context>) -> Result<PositionReply, String> {
    if !context.may_read() {
        return Err(READS_DISABLED.to_owned());
    }
    let deadline = Instant::now() + PATIENCE;
    let mut why = "who is primary is not known".to_owned();
    loop {
        let asks = Arc::clone(&context);
        let answer = context.primary.rounds.ask(move || {
            let context = Arc::clone(&asks);
            async move { ask_once(&context).await }
        });
        match timeout_at(deadline, answer).await {
            Ok(Ok(Ok(position))) => return Ok(position),
            Ok(Ok(Err(refusal))) => why = refusal,
            Ok(Err(_)) => return Err("this sidecar is ending".to_owned()),
            Err(_) => return Err(format!("no position of the log within {PATIENCE:?}: {why}")),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn ask_once(context: &Context) -> Result<PositionReply, String> {
    let config = context.configuration.borrow().clone();
    let config = config.ok_or("who is primary is not known")?;
    if config.primary.id == context.me.id {
        return take(context).await;
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

/// A position of this primary's log, that is taken after this call has begun.
pub(super) async fn take(context: &Context) -> Result<PositionReply, String> {
    let (reply, answer) = oneshot::channel();
    context.path.send(Command::TakePosition(reply));
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(position)) => position,
        Ok(Err(_)) => Err("the append path has ended".to_owned()),
        Err(_) => Err(format!("no barrier has passed within {ANSWER_TIMEOUT:?}")),
    }
}

/// Whether every member that acks of this term need, asked now, still keeps its promise to it: then nobody has been able to take
/// over. As good as a barrier, and slower; for a primary that cannot write yet. Who these members are its own term says: what the
/// watch of the config store has shown may be an earlier set, of which a successor fences nobody.
pub(super) async fn no_member_has_promised_more(context: &Context, term: Term) -> bool {
    let Some(members) = context.log.required(term).filter(|members| !members.is_empty()) else { return false };
    // The first page after the last segment that there can be has no copies.
    let request = InventoryRequest { after: Some(SEGMENT_MAX) };
    let answers = members.iter().map(|member| {
        let client = context.backup(&member.id, Some(&member.control));
        async move {
            let answer = client.call::<_, Inventory>(path::INVENTORY, &request, ANSWER_TIMEOUT).await;
            answer.is_ok_and(|found| {
                found.boot == member.boot && found.log == Some(term.log) && found.promised == term.epoch
            })
        }
    });
    join_all(answers).await.into_iter().all(|keeps| keeps)
}

/// Answers another sidecar.
pub async fn answer(context: &Context, request: &PositionRequest) -> Result<PositionReply, Refusal> {
    let log = context.configuration.borrow().as_ref().map(|config| config.log);
    if request.group != context.group || request.log.is_some_and(|wanted| log.is_some_and(|log| log != wanted)) {
        let why = format!("this sidecar belongs to group {}, and that is another log", context.group);
        return Err(Refusal::WrongLog { why });
    }
    let after_ms = AGAIN.as_millis() as u32;
    take(context).await.map_err(|why| Refusal::RetryLater { after_ms, why: format!("{}: {why}", context.me.id) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Each question would else be a connection, with a handshake, and a barrier at the primary.
    #[tokio::test]
    async fn many_questions_share_the_next_call() {
        let rounds = Rounds::default();
        let (calls, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let ask = || {
            let (calls, go_on) = (Arc::clone(&calls), Arc::clone(&go_on));
            rounds.ask(move || {
                let (calls, go_on) = (Arc::clone(&calls), Arc::clone(&go_on));
                async move {
                    let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
                    go_on.acquire().await.expect("not closed").forget();
                    call
                }
            })
        };
        let first = ask();
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (0..512).map(|_| ask()).collect();
        drop(ask());
        go_on.add_permits(1);
        assert_eq!(first.await, Ok(1));
        go_on.add_permits(1);
        for other in others {
            assert_eq!(other.await, Ok(2), "of a call that began after the question");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        // It begins again when somebody asks.
        go_on.add_permits(1);
        assert_eq!(ask().await, Ok(3));
    }

    #[tokio::test]
    async fn a_call_that_panics_leaves_nobody_waiting() {
        let rounds = Rounds::default();
        let ask = |panics: bool| rounds.ask(move || async move { assert!(!panics) });
        let (first, second) = (ask(true), ask(false));
        assert!(first.await.is_err() && second.await.is_err());
        assert_eq!(ask(false).await, Ok(()));
    }
}
