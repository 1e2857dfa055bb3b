//! A program from its start to its exit code, and the signals that end it.
//!
//! Called by each `main` ([`run`]), and by what runs until a signal arrives ([`Signals`]).

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, Write};
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::Span;
use tracing::span::EnteredSpan;

use crate::exit::Exit;
use crate::logging::{LogOptions, explain};

/// How long the end waits for calls that block, such as one to a file server that is gone. None of them matters by then: what a
/// program has to finish it waits for itself.
const END_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    static ENTERED: Cell<Option<EnteredSpan>> = const { Cell::new(None) };
}

/// Starts logging, runs `program` on a new tokio runtime, and logs the error that it ends with. All of it is in `span`: each
/// thread of the runtime enters it once, so that no task can miss it and none pays for it at each poll. Threads that the
/// program starts itself enter [`Span::current`].
pub fn run(
    log: &LogOptions,
    span: impl FnOnce() -> Span,
    program: impl Future<Output = anyhow::Result<()>>,
) -> ExitCode {
    if let Err(error) = log.start() {
        // There is no log yet. If standard error is closed, nobody can be told.
        let _ = writeln!(io::stderr(), "error: {}", explain(&error));
        return Exit::of(&error).into();
    }
    let span = span();
    let _entered = span.clone().entered();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(move || ENTERED.set(Some(span.clone().entered())))
        .on_thread_stop(|| drop(ENTERED.take()))
        .build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let ended = runtime.block_on(program);
        runtime.shutdown_timeout(END_TIMEOUT);
        ended
    });
    match ended {
        Ok(()) => Exit::Success.into(),
        Err(error) => {
            tracing::error!("{}", explain(&error));
            Exit::of(&error).into()
        }
    }
}

/// Signals that ask the process to end. From [`Signals::new`] on they no longer kill it.
#[derive(Debug)]
pub struct Signals(Vec<(&'static str, Signal)>);

impl Signals {
    /// Catches SIGTERM and SIGINT.
    pub fn new() -> io::Result<Signals> {
        Signals(Vec::new()).and("SIGTERM", SignalKind::terminate())?.and("SIGINT", SignalKind::interrupt())
    }

    /// Catches one more.
    pub fn and(mut self, name: &'static str, kind: SignalKind) -> io::Result<Signals> {
        self.0.push((name, signal(kind)?));
        Ok(self)
    }

    /// Waits for the next signal; returns its name.
    pub async fn next(&mut self) -> &'static str {
        poll_fn(|context| {
            let mut signals = self.0.iter_mut();
            let arrived = signals.find_map(|(name, signal)| signal.poll_recv(context).is_ready().then_some(*name));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use crate::logging::LogFormat;

    use super::*;

    #[test]
    fn a_call_that_blocks_does_not_hold_up_the_end() {
        let (ended, end) = std::sync::mpsc::channel();
        let (_kept, never) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let log = LogOptions { log: "off".to_owned(), log_format: LogFormat::Text };
            let program = async {
                tokio::task::spawn_blocking(move || never.recv());
                Ok(())
            };
            ended.send(run(&log, Span::none, program)).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_secs(60)).is_ok(), "the end waits for the call");
    }

    #[tokio::test]
    async fn each_signal_is_reported_by_name() {
        let mut signals = Signals::new().unwrap().and("SIGUSR1", SignalKind::user_defined1()).unwrap();
        for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
            kill_process(getpid(), signal).unwrap();
            assert_eq!(signals.next().await, name);
        }
    }
}
