//! An app that appends its records in order through any failover, and a reader that compares.
//!
//! The app is the log's only writer, so record n of its input is LSN n. After a failover it learns from the log which of
//! its unacknowledged records are there, demands that they are the very next ones it had submitted, and goes on after them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Lsn};

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

/// An app in a thread of its own, which appends up to a mark that is moved on while others kill things.
pub struct Background {
    acked: Arc<AtomicU64>,
    mark: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<Seen>>>,
}

impl Background {
    /// Starts it; it has nothing to do yet.
    pub fn start(view: View, input: impl Input + Send + 'static, window: u64) -> Background {
        let (acked, mark) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (reached, aim) = (Arc::clone(&acked), Arc::clone(&mark));
        let body = move || {
            let mut app = App::new(&input, window);
            loop {
                match aim.load(Ordering::Acquire) {
                    END => return Ok(app.seen),
                    mark if app.seen.acked < mark => {
                        app.append_until(&view, mark, |acked| reached.store(acked, Ordering::Release))?;
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
    pub fn finish(mut self) -> Result<Seen> {
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

    fn join(&mut self) -> Result<Seen> {
        let thread = self.thread.take().context("the app has ended already")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The mark that ends a [`Background`].
const END: u64 = u64::MAX;

/// What reading the log back has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Records read.
    pub read: u64,
    /// Acknowledged records that are not in the log, or not what was submitted.
    pub lost: u64,
    /// Records beyond what was submitted, or in the log twice.
    pub duplicated: u64,
}

impl Comparison {
    /// Every record is there once, in order, as it was submitted.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicated == 0
    }
}

/// Compares a log, record by record, with what was submitted.
#[derive(Debug)]
pub struct Checker<'a, I: Input> {
    input: &'a I,
    /// LSN that must come next.
    expected: u64,
    result: Comparison,
}

impl<'a, I: Input> Checker<'a, I> {
    /// The log is read from record `first` on.
    pub fn new(input: &'a I, first: u64) -> Checker<'a, I> {
        Checker { input, expected: first, result: Comparison::default() }
    }

    /// Takes the next record of the log.
    pub fn take(&mut self, lsn: u64, payload: &[u8]) {
        self.result.read += 1;
        if lsn < self.expected {
            self.result.duplicated += 1;
            return;
        }
        self.result.lost += lsn - self.expected + u64::from(payload != self.input.record(lsn));
        self.expected = lsn + 1;
    }

    /// The log has ended; records up to `acked` must have been in it, and no others.
    pub fn finish(mut self, acked: u64) -> Comparison {
        self.result.lost += (acked + 1).saturating_sub(self.expected);
        self.result.duplicated += self.expected.saturating_sub(acked + 1);
        self.result
    }
}

/// Reads the whole log and compares it with the input: `acked` records must be there, each once, in order.
pub fn compare<I: Input>(
    client: &mut Client,
    input: &I,
    acked: u64,
    on_progress: impl FnMut(u64),
) -> Result<Comparison> {
    compare_from(client, input, 1, acked, on_progress)
}

/// As [`compare`], from record `first` on.
pub fn compare_from<I: Input>(
    client: &mut Client,
    input: &I,
    first: u64,
    acked: u64,
    mut on_progress: impl FnMut(u64),
) -> Result<Comparison> {
    let mut checker = Checker::new(input, first);
    let mut records = client.read(Lsn(first), 0)?;
    while let Some((lsn, payload)) = records.next_record()? {
        checker.take(lsn.0, payload);
        if checker.result.read.is_multiple_of(4096) {
            on_progress(checker.result.read);
        }
    }
    Ok(checker.finish(acked))
}

/// The value below which `share` of the sorted values lie.
pub fn percentile(sorted: &[u64], share: f64) -> u64 {
    let at = ((sorted.len() as f64 - 1.0) * share).round();
    sorted.get(at as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: Numbered = Numbered { seed: 7, length_max: 40 };

    type Log = Vec<(u64, Vec<u8>)>;

    fn check(log: &Log, acked: u64) -> Comparison {
        let mut checker = Checker::new(&INPUT, 1);
        log.iter().for_each(|(lsn, payload)| checker.take(*lsn, payload));
        checker.finish(acked)
    }

    fn log() -> Log {
        (1..=100).map(|number| (number, INPUT.record(number))).collect()
    }

    #[test]
    fn a_log_that_is_what_was_acknowledged_is_clean() {
        assert_eq!(check(&log(), 100), Comparison { read: 100, lost: 0, duplicated: 0 });
    }

    #[test]
    fn the_checker_notices_every_kind_of_damage() {
        let damaged = |damage: &dyn Fn(&mut Log)| {
            let mut log = log();
            damage(&mut log);
            check(&log, 100)
        };
        assert_eq!(damaged(&|log| drop(log.remove(50))).lost, 1, "a gap");
        assert_eq!(damaged(&|log| log.truncate(97)).lost, 3, "acknowledged records missing at the end");
        assert_eq!(damaged(&|log| log.push((101, INPUT.record(101)))).duplicated, 1, "a record that nobody submitted");
        assert_eq!(damaged(&|log| log.insert(51, log[50].clone())).duplicated, 1, "a record twice");
        assert!(!damaged(&|log| log.swap(50, 51)).is_clean(), "two records in the wrong order");
        assert_eq!(damaged(&|log| log[50].1.push(0)).lost, 1, "a record that is longer");
        let renumbered = damaged(&|log| {
            log.remove(50);
            log[50..].iter_mut().for_each(|(lsn, _)| *lsn -= 1);
        });
        assert!(renumbered.lost > 40, "records that have moved up into a gap");
    }
}
