//! An app that appends its records in order through any failover.
//!
//! The app is the log's only writer, so record n of its input is LSN n. After a failover it learns from the log which of
//! its unacknowledged records are there, demands that they are the very next ones it had submitted, and continues after
//! them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};

use super::observer::{Observer, TIMEOUT};
use crate::workload::Input;

/// What the app has seen.
#[derive(Debug, Default)]
pub struct AppProgress {
    /// Last record known to be acknowledged (or found in the log after a failover).
    pub acked: u64,
    /// Last record submitted.
    pub submitted: u64,
    /// Records found in the log after a failover although no ack had come.
    pub found: u64,
    /// Times from submitting a record to its ack, in nanoseconds.
    pub latencies: Vec<u64>,
}

/// The app.
pub struct App<'a, I: Input> {
    input: &'a I,
    client: Option<Client>,
    /// The sidecar that `client` is connected to.
    sidecar: usize,
    window: u64,
    in_flight: VecDeque<(u64, Instant)>,
    /// What the app has seen so far.
    pub progress: AppProgress,
}

/// How long the app waits for an answer before it looks whether another sidecar is primary.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// Records submitted between two looks at the answers.
const SUBMIT_MAX: usize = 512;

impl<'a, I: Input> App<'a, I> {
    /// An app with at most `window` records in flight.
    pub fn new(input: &'a I, window: u64) -> App<'a, I> {
        let in_flight = VecDeque::with_capacity(window as usize);
        App { input, client: None, sidecar: 0, window, in_flight, progress: AppProgress::default() }
    }

    /// Appends until record `until` is acknowledged, through any number of failovers. `on_progress` is called now and
    /// then with the number of the last acknowledged record.
    pub fn append_until(&mut self, observer: &Observer, until: u64, mut on_progress: impl FnMut(u64)) -> Result<()> {
        let mut give_up = Instant::now() + TIMEOUT;
        while self.progress.acked < until {
            let before = self.progress.acked;
            if let Err(error) = self.advance(observer, until) {
                assert!(is_outage(&error), "{error:#}");
                self.client = None;
                ensure!(
                    Instant::now() < give_up,
                    "no progress beyond record {before}: {error:#}\n{}",
                    observer.last_lines(30)
                );
            }
            if self.progress.acked > before {
                give_up = Instant::now() + TIMEOUT;
                on_progress(self.progress.acked);
            }
        }
        Ok(())
    }

    /// Submits records up to `until` at most and takes acks; returns after some progress or with what went wrong.
    fn advance(&mut self, observer: &Observer, until: u64) -> Result<()> {
        if self.client.is_none() {
            self.connect(observer)?;
        }
        let client = self.client.as_mut().context("connected")?;
        let mut count = 0;
        while self.progress.submitted < until && (self.in_flight.len() as u64) < self.window && count < SUBMIT_MAX {
            let record = self.input.record(self.progress.submitted + 1);
            client.submit(&record)?;
            self.progress.submitted += 1;
            count += 1;
            self.in_flight.push_back((self.progress.submitted, Instant::now()));
        }
        client.pump()?;
        let full = self.in_flight.len() as u64 >= self.window || self.progress.submitted == until;
        let mut ack = match client.try_next_ack() {
            None if full => match client.next_ack() {
                // The sidecar may hang. The connection is given up only for another primary: what is in this one's pipe
                // may still land in the log of the sidecar at its other end.
                Err(Error::TimedOut { .. }) if observer.primary().is_none_or(|primary| primary == self.sidecar) => None,
                answer => answer?,
            },
            ack => ack,
        };
        while let Some(answer) = ack {
            let lsn = answer.outcome?;
            let (number, at) = self.in_flight.pop_front().context("an ack for nothing")?;
            ensure!(lsn == Lsn(number), "record {number} was acknowledged as LSN {lsn}");
            self.progress.acked = number;
            self.progress.latencies.push(at.elapsed().as_nanos() as u64);
            ack = self.client.as_mut().and_then(Client::try_next_ack);
        }
        Ok(())
    }

    /// Finds the primary, learns which records in flight are in the log, and continues after them.
    fn connect(&mut self, observer: &Observer) -> Result<()> {
        let Some(primary) = observer.primary() else {
            std::thread::sleep(Duration::from_millis(2));
            bail!(NO_PRIMARY);
        };
        let mut client = observer.client_with(primary, false, ANSWER_TIMEOUT)?;
        // Without it the answer could be a zombie's, and what is absent there may be in the log.
        client.barrier()?;
        let mut next = self.progress.acked + 1;
        let mut found = 0;
        let mut records = client.read(Lsn(next), 0)?;
        while let Some((lsn, payload)) = records.next_record()? {
            assert!(lsn == Lsn(next), "a gap: expected record {next}, read {lsn}");
            assert!(next <= self.progress.submitted, "record {next} was never submitted");
            assert!(payload == self.input.record(next), "record {next} is not what was submitted");
            (next, found) = (next + 1, found + 1);
        }
        drop(records);
        self.progress.found += found;
        self.progress.acked = next - 1;
        self.progress.submitted = next - 1;
        self.in_flight.clear();
        (self.client, self.sidecar) = (Some(client), primary);
        Ok(())
    }
}

/// True for the errors of an outage: a sidecar that is gone or not primary. A wrong LSN, a log that ends too early or a
/// protocol violation is a failure of the product.
pub(crate) fn is_outage(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Error>() {
        Some(error) => matches!(
            error,
            Error::Connect { .. }
                | Error::NotPrimary { .. }
                | Error::UnknownOutcome { .. }
                | Error::Retry { .. }
                | Error::TimedOut { .. }
                | Error::Disconnected { .. }
        ),
        None => error.to_string() == NO_PRIMARY,
    }
}

const NO_PRIMARY: &str = "no primary yet";
