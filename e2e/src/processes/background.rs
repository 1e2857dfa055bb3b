//! An app that appends in a thread of its own while the test kills things under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::app::{App, AppProgress};
use super::observer::Observer;
use crate::workload::Input;

/// An app in a thread of its own, which appends up to a mark that is moved on while others kill things.
pub struct Background {
    acked: Arc<AtomicU64>,
    mark: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<AppProgress>>>,
}

impl Background {
    /// Starts it; it has nothing to do yet.
    pub fn start(observer: Observer, input: impl Input + Send + 'static, window: u64) -> Background {
        let (acked, mark) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (reached, aim) = (Arc::clone(&acked), Arc::clone(&mark));
        let body = move || {
            let mut app = App::new(&input, window);
            loop {
                match aim.load(Ordering::Acquire) {
                    END => return Ok(app.progress),
                    mark if app.progress.acked < mark => {
                        app.append_until(&observer, mark, |acked| reached.store(acked, Ordering::Release))?;
                    }
                    _ => std::thread::park(),
                }
            }
        };
        Background { acked, mark, thread: Some(std::thread::spawn(body)) }
    }

    /// Moves the mark on by so many records; the new mark.
    pub fn go_on(&self, records: u64) -> u64 {
        let mark = self.mark.fetch_add(records, Ordering::AcqRel) + records;
        self.wake();
        mark
    }

    /// Waits until record `number` is acknowledged. Fails when the app does.
    pub fn wait_for(&mut self, number: u64) -> Result<()> {
        while self.acked() < number {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                self.join()?;
                bail!("the app has ended before record {number}");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// The last record known to be acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Acquire)
    }

    /// Waits for the mark and ends the app; what it has seen.
    pub fn finish(mut self) -> Result<AppProgress> {
        self.wait_for(self.mark.load(Ordering::Acquire))?;
        self.mark.store(END, Ordering::Release);
        self.wake();
        self.join()
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn join(&mut self) -> Result<AppProgress> {
        let thread = self.thread.take().context("the app has ended already")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The mark that ends a [`Background`].
const END: u64 = u64::MAX;
