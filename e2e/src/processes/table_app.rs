//! An app that changes a table in a thread of its own while the test kills things under it, and knows what each key must have.
//!
//! Most of its keys are its own: so it knows their revisions exactly, whether a condition holds, and what a mismatch has to tell.
//! After an answer that it has missed it asks for each key's revision, and finds the request carried out as a whole or not at
//! all. A few keys it shares with others, and [`Races`] judges those.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::{LocalTable, Table};
use tailwind_client::{Applied, Apply, Error, Get, Lsn, Options, Revision};

use super::app::is_outage;
use super::observer::{Observer, TIMEOUT};
use super::races::Races;
use crate::workload::Random;

/// Keys of one app.
const KEYS: u64 = 40;
/// Keys that all apps share.
const RACED: u64 = 3;
/// Longest value. Keys and values of four apps take a third of what a table of a MiB may have in live records.
const VALUE_MAX: u64 = 1200;
/// Most writes in a request.
const WRITES_MAX: u64 = 4;
/// Pause before it connects again.
const AGAIN: Duration = Duration::from_millis(5);

/// What keys have: revision and value.
pub type Content = BTreeMap<Vec<u8>, (Revision, Vec<u8>)>;

/// An app in a thread of its own.
pub struct TableApp {
    progress: Arc<AppCounters>,
    thread: Option<JoinHandle<Result<TableEnd>>>,
}

#[derive(Debug, Default)]
struct AppCounters {
    ends: AtomicBool,
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// What an app knows at its end.
#[derive(Debug)]
pub struct TableEnd {
    /// What its own keys must have; all others are absent.
    pub content: Content,
    /// The last record that it knows of.
    pub last: Lsn,
    /// Mismatches that it has been told of its own keys, each of which was right.
    pub mismatches: u64,
    /// Requests whose answer it has missed.
    pub missed: u64,
    /// Gets that were answered, each rightly.
    pub gets: u64,
}

impl TableApp {
    /// Starts app number `number`.
    pub fn start(observer: Observer, number: u64, seed: u64, races: Arc<Races>) -> TableApp {
        let progress = Arc::new(AppCounters::default());
        let end = TableEnd { content: Content::new(), last: Lsn(0), mismatches: 0, missed: 0, gets: 0 };
        let random = Random(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let told = Arc::clone(&progress);
        let mut app = App { observer, number, random, table: None, sequence: 0, end, races, told };
        let thread = std::thread::spawn(move || {
            while !app.told.ends.load(Ordering::Acquire) {
                app.step()?;
            }
            Ok(app.end)
        });
        TableApp { progress, thread: Some(thread) }
    }

    /// Requests that were acknowledged.
    pub fn requests(&self) -> u64 {
        self.progress.requests.load(Ordering::Acquire)
    }

    /// Bytes of keys and values that were acknowledged.
    pub fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Acquire)
    }

    /// Waits until so many more requests are acknowledged. Fails when the app does.
    pub fn wait_for(&mut self, more: u64) -> Result<()> {
        let until = self.requests() + more;
        while self.requests() < until {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                self.join()?;
                bail!("the app has ended");
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// Ends it; what it knows.
    pub fn finish(mut self) -> Result<TableEnd> {
        self.progress.ends.store(true, Ordering::Release);
        self.join()
    }

    fn join(&mut self) -> Result<TableEnd> {
        let thread = self.thread.take().context("the app has ended already")?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

struct App {
    observer: Observer,
    number: u64,
    random: Random,
    table: Option<Table>,
    /// Numbers the values.
    sequence: u64,
    end: TableEnd,
    races: Arc<Races>,
    told: Arc<AppCounters>,
}

/// A request, and what must come of it.
#[derive(Default)]
struct Request {
    apply: Apply,
    operations: u16,
    writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The first condition that does not hold, and what its key has.
    mismatch: Option<(u16, Option<Revision>)>,
}

impl Request {
    fn bytes(&self) -> u64 {
        let bytes = |(key, value): &(Vec<u8>, Option<Vec<u8>>)| key.len() + value.as_ref().map_or(0, Vec::len);
        self.writes.iter().map(|write| bytes(write) as u64).sum()
    }
}

impl App {
    fn step(&mut self) -> Result<()> {
        if self.sequence >= KEYS && self.random.below(8) == 0 {
            return self.race();
        }
        if self.sequence >= KEYS && self.random.below(16) == 0 {
            return self.look();
        }
        let request = self.request();
        let give_up = Instant::now() + TIMEOUT;
        loop {
            match self.with_table(|table| table.apply(&request.apply)) {
                Ok(applied) => {
                    ensure!(request.mismatch.is_none(), "a condition did not hold: {:?}", request.mismatch);
                    return self.acknowledged(&request, applied);
                }
                Err(Error::Mismatch { operation, revision }) => {
                    let (told, right) = (Some((operation, revision)), request.mismatch);
                    ensure!(told == right, "the mismatch is {told:?}, and should be {right:?}");
                    self.end.mismatches += 1;
                    return Ok(());
                }
                Err(error) => {
                    self.after_outage(error, give_up)?;
                    if request.mismatch.is_none() && self.has_happened(&request, give_up)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A request about the app's own keys, at random.
    fn request(&mut self) -> Request {
        let mut request = Request::default();
        // At first every key is put once.
        if self.sequence < KEYS {
            let (key, value) = (self.nth_key(self.sequence), self.value());
            request.apply = std::mem::take(&mut request.apply).put(&key, &value);
            request.writes.push((key, Some(value)));
            return request;
        }
        for _ in 0..=self.random.below(WRITES_MAX) {
            let key = self.key();
            if request.writes.iter().any(|(written, _)| *written == key) {
                continue;
            }
            let condition = self.condition(&key, &mut request);
            let apply = std::mem::take(&mut request.apply);
            if self.random.below(8) == 0 {
                request.apply = match condition {
                    Some(revision) => apply.require(&key, revision),
                    None => apply.require(&key, self.revision(&key)),
                };
            } else if self.random.below(5) == 0 {
                request.apply = match condition {
                    Some(revision) => apply.delete_if(&key, revision),
                    None => apply.delete(&key),
                };
                request.writes.push((key, None));
            } else if self.random.below(5) == 0 {
                let source = self.key();
                let copied = self.end.content.get(&source).map(|(_, value)| value.clone());
                if copied.is_none() {
                    request.mismatch.get_or_insert((request.operations, None));
                }
                request.apply = match condition {
                    Some(revision) => apply.copy_if(&key, &source, revision),
                    None => apply.copy(&key, &source),
                };
                request.writes.push((key, copied));
            } else {
                let value = self.value();
                request.apply = match condition {
                    Some(revision) => apply.put_if(&key, &value, revision),
                    None => apply.put(&key, &value),
                };
                request.writes.push((key, Some(value)));
            }
            request.operations += 1;
        }
        if request.writes.is_empty() {
            let (key, value) = (self.key(), self.value());
            request.apply = std::mem::take(&mut request.apply).put(&key, &value);
            request.writes.push((key, Some(value)));
        }
        request
    }

    /// Now and then a condition of the next operation; now and then one that does not hold.
    fn condition(&mut self, key: &[u8], request: &mut Request) -> Option<Option<Revision>> {
        let now = self.revision(key);
        match self.random.below(16) {
            0..=9 => None,
            10..=14 => Some(now),
            _ => {
                request.mismatch.get_or_insert((request.operations, now));
                Some(match now {
                    Some(now) if self.random.below(2) == 0 => Revision::of(now.lsn().next()),
                    Some(_) => None,
                    None => Revision::of(Lsn(1 + self.random.below(1000))),
                })
            }
        }
    }

    fn acknowledged(&mut self, request: &Request, applied: Applied) -> Result<()> {
        ensure!(applied.last > self.end.last, "record {} after {}", applied.last, self.end.last);
        self.end.last = applied.last;
        let revisions: Vec<Revision> = applied.revisions().collect();
        ensure!(revisions.len() == request.writes.len(), "{} writes, {revisions:?}", request.writes.len());
        for ((key, value), revision) in request.writes.iter().zip(revisions) {
            match value {
                Some(value) => drop(self.end.content.insert(key.clone(), (revision, value.clone()))),
                None => drop(self.end.content.remove(key)),
            }
        }
        self.told.requests.fetch_add(1, Ordering::AcqRel);
        self.told.bytes.fetch_add(request.bytes(), Ordering::AcqRel);
        Ok(())
    }

    /// Whether a request whose answer was missed was carried out: as a whole, or not at all.
    fn has_happened(&mut self, request: &Request, give_up: Instant) -> Result<bool> {
        self.end.missed += 1;
        let now: Vec<Option<Revision>> =
            request.writes.iter().map(|(key, _)| self.ask(key, give_up)).collect::<Result<_>>()?;
        let unchanged = request.writes.iter().zip(&now).all(|((key, _), now)| self.revision(key) == *now);
        if unchanged && request.writes.iter().any(|(key, value)| value.is_some() || self.revision(key).is_some()) {
            return Ok(false);
        }
        // All revisions follow from that of any put.
        let put = request.writes.iter().zip(&now).enumerate().find_map(|(nth, ((_, value), now))| {
            let first = now.filter(|_| value.is_some())?.lsn().0.checked_sub(nth as u64)?;
            Some(Lsn(first + request.writes.len() as u64 - 1))
        });
        let applied = put.map(|last| request.apply.applied(last));
        for (nth, ((key, value), now)) in request.writes.iter().zip(&now).enumerate() {
            let right = match value {
                Some(_) => applied.and_then(|applied| applied.revision(nth)),
                None => None,
            };
            ensure!(*now == right, "key {} has {now:?} after half a request: {right:?}", key.escape_ascii());
        }
        match applied {
            Some(applied) => self.acknowledged(request, applied)?,
            None => request.writes.iter().for_each(|(key, _)| drop(self.end.content.remove(key))),
        }
        Ok(true)
    }

    /// A key's revision, proved: by a condition that no key fulfils.
    fn ask(&mut self, key: &[u8], give_up: Instant) -> Result<Option<Revision>> {
        let never = Revision::of(Lsn(u64::MAX));
        let question = Apply::new().require(key, never).put(b"never", b"");
        loop {
            match self.with_table(|table| table.apply(&question)) {
                Ok(applied) => bail!("a condition that cannot hold did: {applied:?}"),
                Err(Error::Mismatch { operation: 0, revision }) => return Ok(revision),
                Err(error) => self.after_outage(error, give_up)?,
            }
        }
    }

    /// Gets one of its own keys, of which it knows what it has; or one that others change too.
    fn look(&mut self) -> Result<()> {
        let fresh = Get { fresh: true, ..Get::default() };
        if self.random.below(4) == 0 {
            let key = format!("raced/{}", self.random.below(RACED)).into_bytes();
            let newest = self.races.newest(&key);
            let revision = self.get(&key, &fresh)?.map(|(revision, _)| revision);
            ensure!(revision >= newest, "a fresh get shows {revision:?}, and {newest:?} had been acknowledged");
            self.races.tell(&key, revision);
            return Ok(());
        }
        let (key, least) = (self.key(), Get { least: Some(self.end.last), ..Get::default() });
        let get = if self.random.below(2) == 0 { fresh } else { least };
        let found = self.get(&key, &get)?;
        let right = self.end.content.get(&key);
        ensure!(found.as_ref() == right, "key {} is got as {found:?}, not {right:?}", key.escape_ascii());
        Ok(())
    }

    fn get(&mut self, key: &[u8], get: &Get) -> Result<Option<(Revision, Vec<u8>)>> {
        let give_up = Instant::now() + TIMEOUT;
        loop {
            match self.with_table(|table| table.get_with(key, get)) {
                Ok(got) => {
                    self.end.gets += 1;
                    return Ok(got.entry.map(|entry| (entry.revision, entry.value.to_vec())));
                }
                Err(error) => self.after_outage(error, give_up)?,
            }
        }
    }

    /// Changes a key that others change too, from the revision that it seems to have.
    fn race(&mut self) -> Result<()> {
        let key = format!("raced/{}", self.random.below(RACED)).into_bytes();
        let (value, give_up) = (self.value(), Instant::now() + TIMEOUT);
        let mut expected = self.races.newest(&key);
        loop {
            let newest = self.races.newest(&key);
            let races = Arc::clone(&self.races);
            match self.with_table(|table| table.put_if(&key, &value, expected)) {
                Ok(made) => {
                    races.win(&key, expected, made);
                    self.end.last = self.end.last.max(made.lsn());
                    return Ok(());
                }
                Err(Error::Mismatch { operation: 0, revision }) => {
                    ensure!(revision != expected, "the key has what was expected: {revision:?}");
                    ensure!(revision >= newest, "told {revision:?}, and {newest:?} had been acknowledged");
                    races.tell(&key, revision);
                    expected = revision;
                }
                Err(error) => {
                    if !matches!(error, Error::NotPrimary { .. } | Error::Connect { .. }) {
                        races.lose_sight(&key, expected);
                    }
                    self.after_outage(error, give_up)?;
                    return Ok(());
                }
            }
        }
    }

    /// Some keys are written all the time, and some so seldom that the cleaner has to move them.
    fn key(&mut self) -> Vec<u8> {
        let below = 1 + self.random.below(KEYS);
        let nth = self.random.below(below);
        self.nth_key(nth)
    }

    fn nth_key(&self, nth: u64) -> Vec<u8> {
        format!("app{}/{nth}", self.number).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        self.sequence += 1;
        let length = self.random.below(VALUE_MAX) as usize;
        self.sequence.to_le_bytes().into_iter().cycle().take(length).collect()
    }

    fn revision(&self, key: &[u8]) -> Option<Revision> {
        self.end.content.get(key).map(|(revision, _)| *revision)
    }

    /// Asks the primary, on a new connection if there is none.
    fn with_table<T>(&mut self, ask: impl FnOnce(&mut Table) -> Result<T, Error>) -> Result<T, Error> {
        if self.table.is_none() {
            let primary = self.observer.primary().unwrap_or(0);
            self.table = Some(table(&self.observer, primary)?);
        }
        let table = self.table.as_mut().expect("it is connected");
        ask(table)
    }

    /// An error of an outage is waited out; any other is a failure of the product.
    fn after_outage(&mut self, error: Error, give_up: Instant) -> Result<()> {
        self.table = None;
        let error = anyhow::Error::new(error);
        ensure!(is_outage(&error), "{error:#}");
        ensure!(Instant::now() < give_up, "no progress: {error:#}\n{}", self.observer.last_lines(30));
        std::thread::sleep(AGAIN);
        Ok(())
    }
}

/// A client of a table, at this sidecar.
pub fn table(observer: &Observer, index: usize) -> Result<Table, Error> {
    Table::connect_with(observer.socket(index), &Options { timeout: Some(TIMEOUT), ..Options::default() })
}

/// The table as it is after this record, read by a local table at this sidecar.
pub fn read_table(observer: &Observer, index: usize, last: Lsn) -> Result<Content> {
    let mut local = LocalTable::over(observer.client(index, false)?, b"")?;
    while local.seen() < last {
        local.next_change()?;
    }
    let entry = |(key, entry): (&[u8], &tailwind_client::Entry)| (key.to_vec(), (entry.revision, entry.value.to_vec()));
    Ok(local.range(b"").map(entry).collect())
}
