//! Signals that arrive while a backup starts, which a disk or a file server that hangs can hold up.
//!
//! Used by [`run`](super::run) and [`room`](super::room). What touches disks is done on another thread, so that signals are heard
//! all the same. The first one does not end the start: a buffer may hold records that only an orderly end brings to disk.

use std::time::Duration;

use anyhow::{Context, bail};
use tailwind_runtime::process::Signals;
use tokio::time::Instant;
use tracing::info;

/// Signals, and the one that has arrived during the start.
#[derive(Debug)]
pub(super) struct StartSignals {
    signals: Signals,
    /// How long a start may take after a signal.
    patience: Duration,
    /// Its name, and until when the start is waited for.
    told: Option<(&'static str, Instant)>,
}

impl StartSignals {
    pub(super) fn new(signals: Signals, patience: Duration) -> StartSignals {
        StartSignals { signals, patience, told: None }
    }

    /// A step of the start. An error if it does not end in time after a signal, or before a second one.
    pub(super) async fn step<T: Send + 'static>(
        &mut self,
        step: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let mut step = tokio::task::spawn_blocking(step);
        loop {
            let told = self.told;
            let too_late = async move {
                match told {
                    Some((name, until)) => {
                        tokio::time::sleep_until(until).await;
                        name
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                done = &mut step => return done.context("a step of the start has panicked")?,
                name = too_late => bail!(
                    "the start took longer than --hold-up ({:?}) after {name}: does the disk of --flush-dir hang? Unflushed \
                     segments are only in the pool",
                    self.patience
                ),
                name = self.signals.next() => match told {
                    None => {
                        info!(signal = name, "will end after the start");
                        self.told = Some((name, Instant::now() + self.patience));
                    }
                    Some(_) => bail!(
                        "ended by a second signal before the start was complete: unflushed segments are only in the pool"
                    ),
                },
            }
        }
    }

    /// The signal of the start, or else the next one.
    pub(super) async fn next(&mut self) -> &'static str {
        match self.told.take() {
            Some((name, _)) => name,
            None => self.signals.next().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::process::{Signal, getpid, kill_process};
    use tokio::signal::unix::SignalKind;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Signals reach the whole process: each test has one of its own.
    fn signals(kind: SignalKind, patience: Duration) -> StartSignals {
        StartSignals::new(Signals::new().unwrap().and("the signal", kind).unwrap(), patience)
    }

    #[tokio::test]
    async fn a_signal_during_the_start_ends_the_process_after_it() {
        let mut signals = signals(SignalKind::user_defined1(), LONG);
        signals.step(|| Ok(kill_process(getpid(), Signal::USR1)?)).await.unwrap();
        signals.step(|| Ok(())).await.unwrap();
        assert_eq!(tokio::time::timeout(LONG, signals.next()).await, Ok("the signal"));
    }

    #[tokio::test]
    async fn a_start_that_hangs_ends_with_the_hold_up_time() {
        let mut signals = signals(SignalKind::alarm(), Duration::ZERO);
        let (finish, hung) = mpsc::channel::<()>();
        let step = signals.step(move || {
            kill_process(getpid(), Signal::ALARM)?;
            Ok(hung.recv()?)
        });
        let error = tokio::time::timeout(LONG, step).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("longer than --hold-up"), "{error}");
        drop(finish);
    }

    #[tokio::test]
    async fn a_second_signal_ends_a_start_that_hangs() {
        let mut signals = signals(SignalKind::user_defined2(), LONG);
        let (finish, hung) = mpsc::channel::<()>();
        let step = signals.step(move || {
            while hung.try_recv() == Err(mpsc::TryRecvError::Empty) {
                kill_process(getpid(), Signal::USR2)?;
                std::thread::yield_now();
            }
            Ok(())
        });
        let error = tokio::time::timeout(LONG, step).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("second signal"), "{error}");
        drop(finish);
    }
}
