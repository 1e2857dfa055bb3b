//! An app that appends its records in order through any failover.
//!
//! The app is the log's only writer, so record n of its input is LSN n. After a failover it learns from the log which of
//! its unacknowledged records are there, demands that they are the very next ones it had submitted, and goes on after them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};

pub use crate::checker::compare;
use crate::view::{PATIENCE, View};

/// The records that the app appends, by their number from 1.
pub trait Input {
    /// Record `number`.
    fn record(&self, number: u64) -> Vec<u8>;
}

/// Numbered records of varied lengths, made from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    /// The seed.
    pub seed: u64,
    /// Longest record.
    pub length_max: u64,
}

impl Input for Numbered {
    fn record(&self, number: u64) -> Vec<u8> {
        let mut random = Random(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let length = random.below(self.length_max + 1);
        let mut record: Vec<u8> =
            number.to_le_bytes().into_iter().chain((0..length).map(|_| random.next() as u8)).collect();
        // Now and then an empty record: it is a record like any other.
        if random.below(64) == 0 {
            record.clear();
        }
        record
    }
}

/// What a log holds when one app after the other has gone on with it: each from some record on.
#[derive(Clone, Debug, Default)]
pub struct Chapters(Vec<(u64, Numbered)>);

impl Chapters {
    /// From record `first` on the log holds these records.
    pub fn begin(&mut self, first: u64, input: Numbered) {
        self.0.push((first, input));
    }
}

impl Input for Chapters {
    fn record(&self, number: u64) -> Vec<u8> {
        let chapter = self.0.iter().rev().find(|(first, _)| *first <= number);
        chapter.map(|(_, input)| input.record(number)).unwrap_or_default()
    }
}

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "an endless sequence needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// What the app has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Last record known to be acknowledged (or found in the log after a failover).
    pub acked: u64,
    /// Last record submitted.
    pub submitted: u64,
    /// Records found in the log after a failover although no ack had come.
    pub found: u64,
    /// Times from submitting a record to its ack, in nanoseconds.
    pub latencies: Vec<u64>,
    /// For each failover: from the moment that the connection was lost to the first ack after it.
    pub outages: Vec<Duration>,
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
    pub seen: Seen,
    lost_at: Option<Instant>,
}

/// How long the app waits for a word from its sidecar before it looks whether another one is primary.
const SILENCE: Duration = Duration::from_millis(300);
/// Records submitted between two looks at the answers.
const GULP: usize = 512;

impl<'a, I: Input> App<'a, I> {
    /// An app with at most `window` records in flight.
    pub fn new(input: &'a I, window: u64) -> App<'a, I> {
        let in_flight = VecDeque::with_capacity(window as usize);
        App { input, client: None, sidecar: 0, window, in_flight, seen: Seen::default(), lost_at: None }
    }

    /// Appends until record `until` is acknowledged, through any number of failovers. `on_progress` is called now and
    /// then with the number of the last acknowledged record.
    pub fn append_until(&mut self, view: &View, until: u64, mut on_progress: impl FnMut(u64)) -> Result<()> {
        let mut give_up = Instant::now() + PATIENCE;
        while self.seen.acked < until {
            let before = self.seen.acked;
            if let Err(error) = self.advance(view, until) {
                self.lose(&error);
                ensure!(Instant::now() < give_up, "no progress beyond record {before}: {error:#}\n{}", view.logs(30));
            }
            if self.seen.acked > before {
                give_up = Instant::now() + PATIENCE;
                on_progress(self.seen.acked);
            }
        }
        Ok(())
    }

    /// Submits records up to `until` at most and takes acks; returns after some progress or with what went wrong.
    fn advance(&mut self, view: &View, until: u64) -> Result<()> {
        if self.client.is_none() {
            self.connect(view)?;
        }
        let client = self.client.as_mut().context("connected")?;
        let mut taken = 0;
        while self.seen.submitted < until && (self.in_flight.len() as u64) < self.window && taken < GULP {
            let record = self.input.record(self.seen.submitted + 1);
            client.submit(&record)?;
            self.seen.submitted += 1;
            taken += 1;
            self.in_flight.push_back((self.seen.submitted, Instant::now()));
        }
        client.pump()?;
        let full = self.in_flight.len() as u64 >= self.window || self.seen.submitted == until;
        let mut ack = match client.try_next_ack() {
            None if full => match client.next_ack() {
                // The sidecar may hang. The connection is given up only for another primary: what is in this one's pipe
                // may still land in the log of the sidecar at its other end.
                Err(Error::TimedOut { .. }) if view.primary().is_none_or(|primary| primary == self.sidecar) => None,
                answer => answer?,
            },
            ack => ack,
        };
        while let Some(answer) = ack {
            let lsn = answer.outcome?;
            let (number, at) = self.in_flight.pop_front().context("an ack for nothing")?;
            ensure!(lsn == Lsn(number), "record {number} was acknowledged as LSN {lsn}");
            self.seen.acked = number;
            self.seen.latencies.push(at.elapsed().as_nanos() as u64);
            if let Some(lost_at) = self.lost_at.take() {
                self.seen.outages.push(lost_at.elapsed());
            }
            ack = self.client.as_mut().and_then(Client::try_next_ack);
        }
        Ok(())
    }

    fn lose(&mut self, error: &anyhow::Error) {
        assert!(is_outage(error), "{error:#}");
        self.client = None;
        self.lost_at.get_or_insert_with(Instant::now);
    }

    /// Finds the primary, learns the fate of what was in flight, and goes on after it.
    fn connect(&mut self, view: &View) -> Result<()> {
        let Some(primary) = view.primary() else {
            std::thread::sleep(Duration::from_millis(2));
            bail!(NO_PRIMARY);
        };
        let mut client = view.client_with(primary, false, SILENCE)?;
        // Without it the answer could be a zombie's, and what is absent there may be in the log.
        client.barrier()?;
        let mut next = self.seen.acked + 1;
        let mut found = 0;
        let mut records = client.read(Lsn(next), 0)?;
        while let Some((lsn, payload)) = records.next_record()? {
            assert!(lsn == Lsn(next), "a gap: expected record {next}, read {lsn}");
            assert!(next <= self.seen.submitted, "record {next} was never submitted");
            assert!(payload == self.input.record(next), "record {next} is not what was submitted");
            (next, found) = (next + 1, found + 1);
        }
        drop(records);
        self.seen.found += found;
        self.seen.acked = next - 1;
        self.seen.submitted = next - 1;
        self.in_flight.clear();
        (self.client, self.sidecar) = (Some(client), primary);
        Ok(())
    }
}

/// True for what is part of life: a sidecar that is gone or not primary. A wrong LSN, a log that ends too early or a
/// protocol violated is a broken promise, and must not be papered over.
pub fn is_outage(error: &anyhow::Error) -> bool {
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

/// The value below which `share` of the sorted values lie.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let at = ((sorted.len() as f64 - 1.0) * share).round();
    sorted.get(at as usize).copied().unwrap_or_default()
}
