//! Every order of events around one key, in a log of ten segments of which the oldest is cleaned: puts, a delete, acknowledgements,
//! syncs, the cleaner's steps, and crashes.
//!
//! S18 is judged after each event, and for each place at which the log could end by then: from what is on every disk, which is all
//! that a loss of all memory leaves, up to what was appended last. The judge knows which revision and value the key had after each
//! append, and reads records by itself. A state that was seen before is not gone through again; it is made again by replaying its events.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::CHECKSUM_SIZE;
use tailwind_protocol::segment::Payload;
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::cleaner::{Cleaner, Input, Output, Progress};
use tailwind_protocol::table::fold::Fold;
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::moves::{Candidate, batch};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Apply, Operation, Written};

use super::log::{Log, SIZE};
use super::model::{fold, parse};

/// The key that it is about. Other segments than the first have another one's records.
const NAME: &[u8] = b"a";
const OTHER: &[u8] = b"other";
/// As many closed segments as make the oldest one due, and no second one.
const CLOSED: u64 = 9;
/// How often each of these happens at most.
const PUTS: u32 = 2;
const DELETES: u32 = 1;
const CRASHES: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    Put,
    Delete,
    /// The oldest append that waits is acknowledged.
    Ack,
    /// All that is acknowledged is on disk at every member.
    Sync,
    /// What the cleaner waits for is carried out.
    Work,
    /// The primary dies; the log is recovered up to this record, and folded.
    Crash(u64),
}

struct Scene {
    log: Log,
    index: Index,
    cleaner: Cleaner,
    pending: Vec<Output>,
    synced: u64,
    /// The key's revision and value after each append, under its last record.
    states: BTreeMap<u64, Option<(u64, u8)>>,
    left: (u32, u32, u32),
    moved: u64,
    trimmed: bool,
}

fn bounds() -> Bounds {
    Bounds::new(SIZE, 16).unwrap()
}

fn empty_index() -> Index {
    let limits = Limits { buckets: Buckets::MIN, keys_max: 16, live_bytes_max: bounds().live_bytes_max() };
    Index::new(HashKey([5; 16]), limits, Window::new(SIZE))
}

fn write(name: &'static [u8], written: Written<'static>) -> Operation<'static> {
    Operation::Write { key: Key::new(name).unwrap(), written, only_if: None }
}

/// No two puts have the same value.
const VALUES: [&[u8]; PUTS as usize + 1] = [b"0", b"1", b"2"];

fn put(name: &'static [u8], nth: u32) -> Operation<'static> {
    write(name, Written::Value(Value::new(VALUES[nth as usize]).unwrap()))
}

impl Scene {
    fn new() -> Scene {
        let cleaner = Cleaner::new(bounds(), std::iter::empty(), None);
        let (log, index, left) = (Log::new(), empty_index(), (PUTS, DELETES, CRASHES));
        let (pending, states) = (Vec::new(), BTreeMap::from([(0, None)]));
        let mut scene = Scene { log, index, cleaner, pending, synced: 0, states, left, moved: 0, trimmed: false };
        for segment in 0..=CLOSED {
            scene.append(&put(if segment == 0 { NAME } else { OTHER }, 0));
            if segment < CLOSED {
                scene.log.roll();
            }
        }
        scene.acknowledge(scene.log.last());
        scene.synced = scene.log.acked;
        scene.states = scene.states.split_off(&scene.synced);
        scene.close();
        scene.progress();
        scene
    }

    /// What may happen next.
    fn events(&self) -> Vec<Event> {
        let (puts, deletes, crashes) = self.left;
        let acked = self.log.acked;
        let ends = self.states.range(acked..).map(|(end, _)| Event::Crash(*end)).filter(|_| crashes > 0);
        let plain = [
            (puts > 0, Event::Put),
            (deletes > 0, Event::Delete),
            (self.log.last() > acked, Event::Ack),
            (acked > self.synced, Event::Sync),
            (!self.pending.is_empty(), Event::Work),
        ];
        plain.into_iter().filter_map(|(may, event)| may.then_some(event)).chain(ends).collect()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Put => {
                self.append(&put(NAME, self.left.0));
                self.left.0 -= 1;
            }
            Event::Delete => {
                self.left.1 -= 1;
                self.append(&write(NAME, Written::Nothing));
            }
            Event::Ack => self.acknowledge(self.log.ends()[1]),
            Event::Sync => {
                self.synced = self.log.acked;
                self.progress();
            }
            Event::Work => self.work(),
            Event::Crash(cut) => {
                self.left.2 -= 1;
                self.crash(cut);
            }
        }
    }

    fn append(&mut self, operation: &Operation<'static>) {
        let operations = [*operation];
        let apply = Apply::new(&operations).unwrap();
        let staged = self.index.stage(&apply, |_| None).unwrap();
        let (key, written) = (operation.key(), apply.writes().next().unwrap().written);
        let record = match written {
            Written::Value(value) => KeyedRecord::Put { key, value, more: false },
            _ => KeyedRecord::Delete { key, more: false },
        };
        let (first, at) = self.log.append(&[record]);
        staged.appended(first, at);
        let before = *self.states.last_key_value().unwrap().1;
        let state = match written {
            _ if key.as_bytes() != NAME => before,
            Written::Value(value) => Some((first.0, value.as_bytes()[0])),
            _ => None,
        };
        self.states.insert(self.log.last(), state);
    }

    fn acknowledge(&mut self, acked: u64) {
        self.log.ack(acked);
        self.index.acked(Lsn(acked), |_| {});
    }

    /// Every segment but the open one is closed.
    fn close(&mut self) {
        let open = self.log.open().id();
        let closed: Vec<_> = self.log.segments.iter().map(super::log::Segment::closed).collect();
        closed.into_iter().filter(|closed| closed.segment < open).for_each(|closed| self.step(Input::Closed(closed)));
    }

    fn progress(&mut self) {
        let progress = Progress { synced: Lsn(self.synced), published: None, live_bytes: self.index.live_bytes() };
        self.step(Input::Progress(progress));
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        self.cleaner.step(Time(0), input, &mut out);
        for output in out {
            match output {
                Output::Trim(below) => {
                    self.log.trim(below.0);
                    self.trimmed = true;
                }
                Output::Fetch(_) | Output::Move(..) => self.pending.push(output),
                // Syncs come at any time.
                Output::Sync | Output::Forget(_) => {}
            }
        }
    }

    fn work(&mut self) {
        match self.pending.remove(0) {
            Output::Fetch(segment) => self.step(Input::Fetched(segment)),
            Output::Move(segment, from) => self.judge_moves(segment, from),
            other => unreachable!("{other:?} waits for nobody"),
        }
    }

    fn judge_moves(&mut self, id: SegmentId, from: Lsn) {
        let segment = self.log.segments.iter().find(|segment| segment.id() == id).unwrap();
        let after = segment.closed().last.next();
        let records = segment.records(u64::MAX);
        let candidates: Vec<Candidate<'_>> =
            records.into_iter().filter_map(|(at, record)| Candidate::of(at, record)).collect();
        let candidates = || batch(candidates.iter().filter(|candidate| candidate.lsn >= from).copied());
        let room = self.log.open().room() - CHECKSUM_SIZE;
        let staged = self.index.stage_moves(candidates(), room);
        let moved = staged.moved() as u64;
        // Of the key, whose only record is there, or of the other one.
        let bytes: Vec<Vec<u8>> = staged
            .records(candidates())
            .map(|record| {
                let mut bytes = vec![0; record.len()];
                record.copy_to(&mut bytes);
                bytes
            })
            .collect();
        let lsn = Lsn(self.log.last() + 1);
        let records: Vec<KeyedRecord<'_>> =
            bytes.iter().map(|bytes| KeyedRecord::decode(bytes, lsn).unwrap()).collect();
        if moved == 0 {
            drop(staged);
        } else {
            let (first, at) = self.log.append(&records);
            staged.appended(first, at);
            let before = *self.states.last_key_value().unwrap().1;
            self.states.insert(self.log.last(), before);
        }
        self.moved += moved;
        let appended = Lsn(self.log.last());
        self.step(Input::Moved { segment: id, next: after, moved: moved as u32, appended });
    }

    fn crash(&mut self, cut: u64) {
        self.log.crash(cut);
        self.states.split_off(&(cut + 1));
        let mut fold = Fold::new(empty_index());
        for segment in &self.log.segments {
            for (at, record) in segment.records(segment.closed().last.0) {
                fold.record(at, record).unwrap();
            }
        }
        self.index = fold.finish().index;
        self.index.check(self.log.open().id());
        self.cleaner = Cleaner::new(bounds(), std::iter::empty(), None);
        self.pending.clear();
        self.close();
        self.progress();
    }

    /// What must hold after each event.
    fn judge(&self) -> Result<(), String> {
        for (end, state) in self.states.range(self.synced..) {
            let found = fold(self.log.payloads(*end)).get(NAME).map(|(value, revision)| (*revision, value[0]));
            if found != *state {
                return Err(format!("S18: up to record {end} the log has {found:?}, not {state:?}"));
            }
        }
        let key = Key::new(NAME).unwrap();
        let end = self.log.open().id();
        let shown = self.index.acknowledged(key).map(|shown| (shown.revision.lsn().0, shown.word.new_place()));
        let latest = self.index.latest(key).map(|latest| (latest.revision.lsn().0, Some(latest.place)));
        for (view, at, seen) in [("acknowledged", self.log.acked, shown), ("appended", self.log.last(), latest)] {
            let there = seen.map(|(revision, place)| {
                let at = place.and_then(|place| self.index.window().position(place, end));
                let found = at.and_then(|at| self.log.record_at(at)).map(|(lsn, payload)| parse(lsn, payload));
                let row = found.filter(|(key, _)| *key == NAME).and_then(|(_, row)| row);
                (revision, row.map(|(value, revision)| (revision, value[0])))
            });
            let right = self.states[&at].map(|state| (state.0, Some(state)));
            if there != right {
                return Err(format!("views: {view} is {there:?}, not {right:?}"));
            }
        }
        Ok(())
    }

    /// All that decides what can happen from here on.
    fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let segments: Vec<_> = self.log.segments.iter().map(super::log::Segment::closed).collect();
        let records: Vec<_> = self.log.payloads(u64::MAX).collect();
        (segments, records, self.log.epoch, self.log.ends(), self.synced).hash(&mut hasher);
        (&self.cleaner, &self.pending, &self.states, self.left).hash(&mut hasher);
        hasher.finish()
    }
}

/// How much was gone through.
#[derive(Debug, Default, PartialEq, Eq)]
struct Explored {
    states: usize,
    steps: usize,
    /// States in which the oldest segment is trimmed, and of these the ones to which its record was moved.
    trimmed: usize,
    after_a_move: usize,
}

/// Goes through every order of events, the shortest first.
fn explore() -> Result<Explored, (String, Vec<Event>)> {
    let (mut explored, mut seen) = (Explored::default(), HashSet::from([Scene::new().signature()]));
    let mut paths: Vec<Vec<Event>> = vec![Vec::new()];
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            let replay = || {
                let mut scene = Scene::new();
                path.iter().for_each(|event| scene.happen(*event));
                scene
            };
            let scene = replay();
            explored.states += 1;
            explored.trimmed += usize::from(scene.trimmed);
            explored.after_a_move += usize::from(scene.trimmed && scene.moved > 0);
            for event in scene.events() {
                let mut next = replay();
                next.happen(event);
                explored.steps += 1;
                let path: Vec<Event> = path.iter().copied().chain([event]).collect();
                if let Err(broken) = next.judge() {
                    return Err((broken, path));
                }
                if seen.insert(next.signature()) {
                    longer.push(path);
                }
            }
        }
        paths = longer;
    }
    Ok(explored)
}

/// Two puts, a delete and a crash at most: 7,531 states, 15,858 steps.
#[test]
fn no_order_of_events_loses_a_key() {
    let explored = explore().unwrap_or_else(|(broken, path)| panic!("{broken}, after {path:?}"));
    assert_eq!(explored, Explored { states: 7531, steps: 15_858, trimmed: 3084, after_a_move: 2285 });
}

#[cfg(feature = "planted-bugs")]
mod planted_bugs {
    use tailwind_protocol::planted::{Bug, plant};

    use super::explore;

    /// The shortest way to break a rule.
    fn found(bug: Bug) -> (String, usize) {
        plant(Some(bug));
        let explored = explore();
        plant(None);
        let (broken, path) = explored.expect_err("it is found");
        (broken[..broken.find(':').unwrap()].to_owned(), path.len())
    }

    #[test]
    fn bugs_of_the_cleaner_are_found_in_few_steps() {
        let bugs = [
            (Bug::TrimBeforeMoved, "S18", 2),
            (Bug::DropsUnacked, "S18", 3),
            (Bug::MoveWithoutRecheck, "S18", 3),
            (Bug::MoveRenewsRevision, "S18", 2),
            (Bug::FoldIgnoresDeletes, "views", 2),
            (Bug::IndexBeforeAck, "views", 1),
        ];
        let known = bugs.map(|(bug, rule, steps)| (bug, (rule.to_owned(), steps)));
        assert_eq!(bugs.map(|(bug, ..)| (bug, found(bug))), known);
    }
}
