//! A standby app that follows the log in a thread of its own while the test kills things under it.
//!
//! Everything that it is shown is compared with what was submitted: every record once, in order, without a gap, through any
//! number of connections, roles and epochs. So at every turn it knows what a full replay would have told it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Error, FollowEvent, Lsn};

use super::app::is_outage;
use super::observer::{Observer, TIMEOUT};
use crate::wait::poll;
use crate::workload::Input;

/// How long it waits for anything before it looks whether it shall end.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pause before it connects again.
const AGAIN: Duration = Duration::from_millis(5);

/// A follower of one sidecar's socket.
pub struct Following {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What a follower has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The last record that it was shown.
    pub last: u64,
    /// How often it was told that it may append.
    pub turns: u64,
}

#[derive(Debug, Default)]
struct Shared {
    last: AtomicU64,
    turns: AtomicU64,
    /// The record before which it was told last that it has caught up.
    caught_up: AtomicU64,
    ends: AtomicBool,
}

impl Following {
    /// Begins to follow at this sidecar, from the first record on.
    pub fn start(observer: Observer, index: usize, input: impl Input + Send + 'static) -> Following {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let body = move || {
            while !seen.ends.load(Ordering::Acquire) {
                let followed = observer
                    .client_with(index, false, PATIENCE)
                    .and_then(|mut client| follow(&mut client, &input, &seen));
                match followed {
                    Err(error) if !is_outage(&error) => return Err(error.context(format!("follow at sidecar{index}"))),
                    _ => std::thread::sleep(AGAIN),
                }
            }
            Ok(())
        };
        Following { shared, thread: Some(std::thread::spawn(body)) }
    }

    /// Waits until it has been shown this record. Fails when the follower does.
    pub fn wait_for(&mut self, last: u64) -> Result<()> {
        self.wait("a record to be shown", |seen| seen.last >= last)
    }

    /// Waits until it has been told that it has caught up with this record.
    pub fn wait_for_end(&mut self, last: u64) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        self.wait("the end to be reached", move |_| shared.caught_up.load(Ordering::Acquire) > last)
    }

    /// Waits until it has had so many turns.
    pub fn wait_for_turn(&mut self, turns: u64) -> Result<()> {
        self.wait("a turn", |seen| seen.turns >= turns)
    }

    fn wait(&mut self, what: &str, such: impl Fn(Seen) -> bool) -> Result<()> {
        let over = poll(TIMEOUT, AGAIN, || {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            (ended || such(self.seen())).then_some(ended)
        });
        match over {
            Some(false) => Ok(()),
            Some(true) => {
                self.join()?;
                bail!("the follower has ended")
            }
            None => bail!("waited {TIMEOUT:?} for {what}: {:?}", self.shared),
        }
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        let Shared { last, turns, .. } = &*self.shared;
        Seen { last: last.load(Ordering::Acquire), turns: turns.load(Ordering::Acquire) }
    }

    /// Ends it; what it has seen.
    pub fn finish(mut self) -> Result<Seen> {
        self.shared.ends.store(true, Ordering::Release);
        self.join()?;
        Ok(self.seen())
    }

    fn join(&mut self) -> Result<()> {
        let thread = self.thread.take().context("the follower has ended already")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Follows over one connection until its turn, or the end.
fn follow(client: &mut Client, input: &impl Input, seen: &Shared) -> Result<()> {
    let mut expected = seen.last.load(Ordering::Acquire) + 1;
    let mut follow = client.follow(Lsn(expected))?;
    while !seen.ends.load(Ordering::Acquire) {
        match follow.next_event() {
            Ok(Some(FollowEvent::Record(lsn, payload))) => {
                ensure!(lsn.0 == expected, "record {lsn} was shown instead of {expected}");
                ensure!(payload == input.record(expected), "record {expected} is not what was submitted");
                seen.last.store(expected, Ordering::Release);
                expected += 1;
            }
            Ok(Some(FollowEvent::CaughtUp { next })) => {
                ensure!(next.0 == expected, "caught up before record {next}, not {expected}");
                seen.caught_up.store(expected, Ordering::Release);
            }
            Ok(Some(FollowEvent::Lag { acked, behind, stale })) => {
                ensure!(acked.0 + 1 >= expected || behind.is_none(), "{acked} is acknowledged, {expected} is next");
                ensure!(stale || behind.is_some(), "it is not known how far behind it is, and it is not stale");
            }
            Ok(Some(FollowEvent::Turn { next, .. })) => {
                ensure!(next.0 == expected, "the turn is at record {next} instead of {expected}");
                seen.turns.fetch_add(1, Ordering::AcqRel);
                return Ok(());
            }
            Ok(None) => return Ok(()),
            Err(Error::TimedOut { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
