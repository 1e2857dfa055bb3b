//! A client of an unmodified program, in a thread of its own: it writes, and knows what was answered.
//!
//! Used by [`redis`](super::redis) and [`sqlite`](super::sqlite), each with a [`Writer`] of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::observer::TIMEOUT;

/// The connection has ended, or does not serve yet: no fault.
#[derive(Debug)]
pub struct Outage;

/// What writes, wherever the program serves. Errors are what must not be.
pub trait Writer: Send + 'static {
    /// A connection to the program.
    type Connection;
    /// How long a client pauses that finds no program which serves.
    const PAUSE: Duration = Duration::from_millis(5);

    /// What it is called in messages.
    fn name(&self) -> &str;

    /// How many programs there are.
    fn programs(&self) -> usize;

    /// Connects to one, and compares what it has with what was answered. `None` if it does not serve.
    fn connect(&mut self, index: usize) -> Result<Option<Self::Connection>>;

    /// Makes some writes; how many were answered.
    fn write(&mut self, connection: &mut Self::Connection) -> Result<Result<u64, Outage>>;
}

/// A writer in a thread of its own. Stopped when dropped.
#[derive(Debug)]
pub struct Client<W> {
    answered: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<W>>>,
}

impl<W: Writer> Client<W> {
    /// Starts it.
    pub fn start(mut writer: W) -> Client<W> {
        let (answered, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, stop) = (Arc::clone(&answered), Arc::clone(&over));
        let body = move || {
            let mut at = 0;
            while !stop.load(Ordering::Acquire) {
                let mut connection = find(&mut writer, &mut at)?;
                while !stop.load(Ordering::Acquire)
                    && let Ok(more) = writer.write(&mut connection)?
                {
                    count.fetch_add(more, Ordering::AcqRel);
                }
            }
            Ok(writer)
        };
        Client { answered, over, thread: Some(std::thread::spawn(body)) }
    }

    /// Writes that were answered.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Acquire)
    }

    /// Waits until so many more writes are answered. Fails when the client has seen what must not be, or for too long nothing.
    pub fn wait_for(&mut self, more: u64) -> Result<()> {
        let goal = self.answered() + more;
        let deadline = Instant::now() + 2 * TIMEOUT;
        while self.answered() < goal {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                self.join()?;
                bail!("the client has ended before write {goal}");
            }
            ensure!(Instant::now() < deadline, "{} of {goal} writes are answered", self.answered());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Stops it, and looks once more at everything that it knows.
    pub fn finish(mut self) -> Result<W> {
        self.over.store(true, Ordering::Release);
        let mut writer = self.join()?;
        find(&mut writer, &mut 0)?;
        Ok(writer)
    }

    fn join(&mut self) -> Result<W> {
        let thread = self.thread.take().context("the client has ended")?;
        thread.join().map_err(|_| anyhow::anyhow!("the client panicked"))?
    }
}

impl<W> Drop for Client<W> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A caller that wants the result has called `finish`.
            let _ = thread.join();
        }
    }
}

/// Looks for a program that serves, from the last one on.
fn find<W: Writer>(writer: &mut W, at: &mut usize) -> Result<W::Connection> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        for _ in 0..writer.programs() {
            if let Some(connection) = writer.connect(*at)? {
                return Ok(connection);
            }
            *at = (*at + 1) % writer.programs();
        }
        ensure!(Instant::now() < deadline, "{}: no program has answered for {TIMEOUT:?}", writer.name());
        std::thread::sleep(W::PAUSE);
    }
}
