//! Index, fold and cleaner together over a small log: random requests, acknowledgements in random delay, moves, trims, mirrors that
//! lag, and crashes at any moment, judged after each step by a model that has none of their code.
//!
//! What is checked, and what each message begins with: *judged* (conditions and bounds), *views* (the index names each key's last
//! record, appended and acknowledged), *S18* (the fold of the log has every key's acknowledged state), *S19* (nothing is trimmed
//! that a mirror named within the grace), *torn* (an entry copied while it changed is one of both or none), *C* (the log's length),
//! *stuck* (a table that is left alone gets room).

mod checks;
mod cleaning;
mod crash;
mod judge;
mod reading;
mod scenes;

use std::collections::BTreeMap;

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::table::acked::{LINE_ENTRIES, LINE_SIZE, LineId};
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::cleaner::{Cleaner, Doing, GRACE_MS, Input, Output, Progress};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Apply, Expected, Operation, Revisions, Written};
use tailwind_protocol::table::staged::{Refused, Source};

pub(super) use self::reading::GetTally;

use self::checks::{check_full, entry};
use super::log::{Log, SIZE};
use super::model::Model;

/// The smallest table.
const SEGMENTS: u32 = 16;

/// SplitMix64: the same numbers for a seed on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What has happened, so that a test can see that its world was no idle one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) applied: u64,
    pub(super) mismatches: u64,
    pub(super) full: u64,
    pub(super) waits: u64,
    pub(super) moved: u64,
    pub(super) dropped: u64,
    pub(super) trimmed: u64,
    pub(super) crashes: u64,
}

pub(super) struct World {
    random: Random,
    now: Time,
    names: Vec<Vec<u8>>,
    value_size: u64,
    limits: Limits,
    bounds: Bounds,
    log: Log,
    index: Index,
    cleaner: Cleaner,
    /// Segments at the beginning of the term.
    at_first: u32,
    /// Appends that an acknowledgement covers at most, most of the time.
    acked_at_once: usize,
    /// Candidates that are judged in one turn at most.
    judged_at_once: usize,
    /// Keys that nearly all requests are about.
    hot: u64,
    /// The newest so many appends are not acknowledged yet, whenever something is.
    lag: usize,
    /// Whether its primary ever dies.
    crashes: bool,
    pending: Vec<Output>,
    model: Model,
    /// Each line as a mirror would have it that copies every change at once.
    lines: Vec<[u8; LINE_SIZE]>,
    /// Of a table with mirrors: up to where they have published, which segment each of their keys names, and when a segment was
    /// named last.
    published: Option<u64>,
    mirror: BTreeMap<Vec<u8>, SegmentId>,
    named: BTreeMap<SegmentId, Time>,
    /// All values have one size.
    same_size: bool,
    /// Mirrors in members' memory and a getter, instead of that mirror.
    reading: Option<Box<reading::Reading>>,
    pub(super) tally: Tally,
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes).expect("a key")
}

fn unless(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let names = random.pick(&[3, 30, 200]);
        World::with(random, names)
    }

    /// With so many keys.
    pub(super) fn of_keys(names: usize) -> World {
        World::with(Random(1), names)
    }

    fn with(mut random: Random, names: usize) -> World {
        let names: Vec<Vec<u8>> = (0..names).map(|number| format!("key/{number}").into_bytes()).collect();
        let value_size = random.pick(&[30, 700, 4000]);
        let bounds = Bounds::new(SIZE, SEGMENTS).expect("the smallest table");
        let keys_max = random.pick(&[names.len(), names.len() * 9 / 10]) as u32;
        let limits = Limits { buckets: Buckets::for_keys(keys_max), keys_max, live_bytes_max: bounds.live_bytes_max() };
        let index = Index::new(HashKey(std::array::from_fn(|_| random.next() as u8)), limits, Window::new(SIZE));
        let lines = vec![[0; LINE_SIZE]; index.acked_view().lines() as usize];
        let published = (random.below(2) == 0).then_some(0);
        // In some worlds much waits for its acknowledgement, for long.
        let acked_at_once = random.pick(&[2, 10, usize::MAX]);
        let judged_at_once = random.pick(&[1, 5, usize::MAX]);
        let hot = random.pick(&[3, names.len() as u64]);
        let lag = random.pick(&[0, 20, 60]);
        let crashes = random.below(4) > 0;
        World {
            random,
            now: Time(0),
            names,
            value_size,
            limits,
            bounds,
            log: Log::new(),
            index,
            cleaner: Cleaner::new(bounds, std::iter::empty(), None),
            at_first: 1,
            acked_at_once,
            judged_at_once,
            hot,
            lag,
            crashes,
            pending: Vec::new(),
            model: Model::default(),
            lines,
            published,
            mirror: BTreeMap::new(),
            named: BTreeMap::new(),
            same_size: false,
            reading: None,
            tally: Tally::default(),
        }
    }

    /// Plays so many steps, and then leaves the table alone until all has settled.
    pub(super) fn play(&mut self, steps: u32) -> Result<(), String> {
        for step in 0..steps {
            match self.random.below(100) {
                0..50 => self.apply()?,
                50..64 => self.ack()?,
                64..72 => self.publish(),
                72..84 => self.pass(300)?,
                84..99 => {
                    for _ in 0..self.random.below(8) {
                        self.work()?;
                    }
                }
                // Failovers alone can make a log longer than any bound: no two while a table is full.
                _ if self.crashes && self.log.len() <= SEGMENTS && self.random.below(3) == 0 => self.crash()?,
                _ => {}
            }
            self.check_views(step % 16 == 0)?;
            let most = SEGMENTS.max(self.at_first + self.bounds.reserve());
            assert!(self.at_first <= SEGMENTS + 1 && (self.crashes || most == SEGMENTS));
            unless(self.log.len() <= most, || format!("C: the log has {} segments", self.log.len()))?;
        }
        self.rest()
    }

    fn turn(&mut self) -> Result<(), String> {
        self.acknowledge(self.log.last())?;
        self.publish();
        self.settle_mirrors()?;
        self.now = self.now.plus(GRACE_MS);
        self.progress()?;
        self.work()
    }

    fn step(&mut self, input: Input) -> Result<(), String> {
        let mut out = Vec::new();
        self.cleaner.step(self.now, input, &mut out);
        for output in out {
            match output {
                Output::Trim(below) => self.trim(below.0)?,
                Output::Forget(_) | Output::Sync => {}
                Output::Fetch(_) | Output::Move(..) => self.pending.push(output),
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> Result<(), String> {
        // Here all that is acknowledged is on disk.
        let (synced, published) = (Lsn(self.log.acked), self.shown_by_mirrors());
        self.step(Input::Progress(Progress { synced, published, live_bytes: self.index.live_bytes() }))
    }

    // ---- Requests -------------------------------------------------------------------------------------------------------

    fn name(&mut self, all: u64) -> u64 {
        let among = if self.random.below(20) > 0 { self.hot } else { all };
        self.random.below(among)
    }

    fn condition(&mut self, of: &[u8]) -> Option<Expected> {
        let now = self.model.revision(key(of)).map_or(Expected::Absent, Expected::At);
        let wrong = Expected::from_number(self.random.below(5));
        self.random.pick(&[None, None, None, None, Some(now), Some(now), Some(now), Some(wrong)])
    }

    fn apply(&mut self) -> Result<(), String> {
        let count = self.random.pick(&[1, 1, 1, 2, 3, 6]);
        let size = |random: &mut Random, most| if self.same_size { 30 } else { random.below(most) as usize };
        let values: Vec<Vec<u8>> =
            (0..count).map(|_| vec![self.random.next() as u8; size(&mut self.random, self.value_size)]).collect();
        let names = std::mem::take(&mut self.names);
        let mut operations = Vec::new();
        for value in &values {
            let (name, other) = (self.name(names.len() as u64), self.name(names.len() as u64));
            let (of, other) = (&names[name as usize][..], &names[other as usize][..]);
            let only_if = self.condition(of);
            operations.push(match self.random.below(10) {
                0 => Operation::Require { key: key(of), expected: only_if.unwrap_or(Expected::Absent) },
                1 => Operation::Write { key: key(of), written: Written::CopyOf(key(other)), only_if },
                2 | 3 => Operation::Write { key: key(of), written: Written::Nothing, only_if },
                _ => Operation::Write {
                    key: key(of),
                    written: Written::Value(Value::new(value).expect("a value")),
                    only_if,
                },
            });
        }
        let result = Apply::new(&operations).map_or(Ok(()), |apply| self.carry_out(&apply));
        drop(operations);
        self.names = names;
        result
    }

    fn carry_out(&mut self, apply: &Apply<'_>) -> Result<(), String> {
        let model = &self.model;
        let source = |from: Key<'_>| {
            let (value, _) = model.appended.get(from.as_bytes())?;
            Some(Source { revision: model.revision(from)?, length: value.len() as u32 })
        };
        if apply.size(SIZE, |from| source(from).map_or(0, |source| source.length as usize)).is_err() {
            return Ok(());
        }
        let expected = model.judge(apply.operations());
        let staged = match self.index.stage(apply, source) {
            Ok(staged) => staged,
            Err(Refused::Mismatch(found)) => {
                self.tally.mismatches += 1;
                return unless(expected == Some(found), || format!("judged: {found:?}, but {expected:?}"));
            }
            Err(Refused::Full(full)) => {
                self.tally.full += 1;
                return check_full(full, model, apply, &self.limits);
            }
            Err(Refused::Wait) => return Ok(()),
            Err(Refused::Source(operation)) => return Err(format!("judged: operation {operation} has its source")),
        };
        unless(expected.is_none(), || format!("judged: carried out, but {expected:?}"))?;
        let size = staged.append_size();
        let rolls = self.log.open().room() < size;
        if !self.bounds.may_put(self.log.len() + u32::from(rolls)) {
            self.tally.waits += 1;
            return Ok(());
        }
        if rolls {
            self.log.roll();
        }
        let copied = |from: Key<'_>| Value::new(&model.appended[from.as_bytes()].0).expect("a value");
        let records: Vec<KeyedRecord<'_>> = apply.writes().map(|write| write.record(copied)).collect();
        let (first, at) = self.log.append(&records);
        staged.appended(first, at);
        self.model.append(apply, self.log.last());
        self.tally.applied += 1;
        Ok(())
    }

    // ---- Acknowledgements, mirrors, time ---------------------------------------------------------------------------------

    fn ack(&mut self) -> Result<(), String> {
        let mut ends = self.log.ends();
        ends.truncate(ends.len().saturating_sub(self.lag).max(1));
        if self.random.below(8) > 0 {
            ends.truncate(self.acked_at_once);
        }
        let acked = self.random.pick(&ends);
        self.acknowledge(acked)
    }

    fn acknowledge(&mut self, acked: u64) -> Result<(), String> {
        self.log.ack(acked);
        self.model.ack(acked);
        let mut changed = Vec::new();
        self.index.acked(Lsn(acked), |line| changed.push(line));
        self.tell_mirrors(&changed, acked);
        for line in changed {
            let new = self.index.acked_view().line(line);
            let old = std::mem::replace(&mut self.lines[line.0 as usize], new);
            self.check_torn(&old, &new)?;
        }
        self.close()
    }

    /// Closes what is acknowledged as a whole.
    fn close(&mut self) -> Result<(), String> {
        let open = self.log.open().id();
        let acked = self.log.acked;
        let mut closed = Vec::new();
        for segment in self.log.segments.iter_mut().filter(|segment| !segment.told && segment.id() < open) {
            if segment.closed().last.0 <= acked {
                segment.told = true;
                closed.push(segment.closed());
            }
        }
        closed.into_iter().try_for_each(|segment| self.step(Input::Closed(segment)))
    }

    fn publish(&mut self) {
        let Some(published) = &mut self.published else { return };
        *published = self.log.acked;
        let end = self.log.open().id();
        self.named.extend(std::mem::take(&mut self.mirror).into_values().map(|segment| (segment, self.now)));
        for name in &self.names {
            let place = self.index.acknowledged(key(name)).and_then(|present| present.word.new_place());
            if let Some(at) = place.and_then(|place| self.index.window().position(place, end)) {
                self.mirror.insert(name.clone(), at.segment);
            }
        }
    }

    fn pass(&mut self, most: u64) -> Result<(), String> {
        self.now = self.now.plus(self.random.below(most));
        self.progress()?;
        self.step(Input::Tick)
    }

    // ---- The end ---------------------------------------------------------------------------------------------------------

    /// Nobody asks for anything more: everything is acknowledged and published, and what is due is cleaned.
    fn rest(&mut self) -> Result<(), String> {
        self.judged_at_once = usize::MAX;
        for _ in 0..1000 {
            self.turn()?;
            if self.pending.is_empty() && self.cleaner.doing() == Doing::Idle && self.cleaner.settling() == 0 {
                break;
            }
        }
        let doing = (self.cleaner.doing(), self.cleaner.settling());
        unless(doing == (Doing::Idle, 0), || format!("stuck: {doing:?}, {} segments", self.log.len()))?;
        unless(self.bounds.may_put(self.log.len() + 1), || format!("stuck: {} segments", self.log.len()))?;
        self.check_log(self.log.acked)?;
        self.check_views(true)?;
        unless(self.index.unacked().is_none(), || "views: all is acknowledged".to_owned())?;
        self.index.check(self.log.open().id());
        // A mirror that copied each line that was said to have changed has the same keys as the view.
        let seed = self.index.acked_view().hash_key().seed();
        for (number, line) in self.lines.iter().enumerate() {
            let view = self.index.acked_view().line(LineId(number as u32));
            for at in 0..LINE_ENTRIES as usize {
                let present =
                    |line: &[u8; LINE_SIZE]| entry(line, at, seed).ok().flatten().and_then(|entry| entry.present);
                unless(present(line) == present(&view), || format!("views: line {number} changed without a word"))?;
            }
        }
        Ok(())
    }
}
