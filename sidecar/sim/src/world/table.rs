//! A group that keeps a table: its app's requests, how they are placed, and what the app is told.
//!
//! Part of a third of all seeds. [`lead`](super::lead) places requests instead of appends, [`cleaning`](super::cleaning)
//! keeps the log short, and the checkers judge every answer.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tailwind_primary::{Applied, Given, Table, Unapplied};
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::fold::{Fold, FoldError};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Full, Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, Revision, Value};
use tailwind_protocol::table::request::{self, Apply, Expected, Written};

use super::cleaning::Cleaning;
use super::getting::Getting;
use super::lead::{About, Lead};
use super::mirroring::Mirroring;
use super::queue::Micros;
use super::scrub::has_sound;
use super::sidecar::Process;
use super::warm::segments;
use super::{RETURN_MAX, SidecarNo, World};
use crate::check::{Does, Mismatch, Operation, State, broken, size_in_log};
use crate::plan::TablePlan;
use crate::trace::{records, trace};

/// Segments of this world.
pub(super) const SIZE: SegmentSize = SegmentSize::MIN;
/// Operations of a request of an app.
const OPERATIONS: [u64; 6] = [1, 1, 1, 2, 3, 6];
/// Largest value: with the longest key a record has a sixteenth of its segment.
const VALUE_MAX: u64 = 4000;

/// What a primary of a table has beside its log.
#[derive(Debug)]
pub(crate) struct TableLead {
    /// Requests that wait for room.
    pub(super) requests: VecDeque<Request>,
    /// Mismatches that wait to be told.
    mismatches: BTreeMap<u64, Mismatched>,
    /// How many there have been.
    count: u64,
    pub(super) cleaning: Cleaning,
    pub(super) getting: Getting,
    /// Where there are mirrors.
    pub(super) mirroring: Option<Mirroring>,
    /// Requests that have been answered or placed: so the one in front has a name.
    done: u64,
}

/// A request of an app.
#[derive(Debug)]
pub(crate) struct Request {
    operations: Vec<Operation>,
    asked: Micros,
    /// What was acknowledged by then.
    since: Lsn,
}

/// A request that was not carried out.
#[derive(Debug)]
struct Mismatched {
    request: Request,
    found: Mismatch,
}

impl TableLead {
    /// The request in front has been placed, or has an answer.
    fn pop(&mut self) -> Request {
        self.done += 1;
        self.requests.pop_front().expect("it was looked at")
    }
}

impl TablePlan {
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::new(SIZE, self.segments).expect("a table's memory")
    }

    pub(super) fn limits(&self) -> Limits {
        let keys_max = self.keys_max;
        Limits { buckets: Buckets::for_keys(keys_max), keys_max, live_bytes_max: self.bounds().live_bytes_max() }
    }
}

impl World {
    /// The winner folds the recovered log, but for what it has folded as a standby, and leads with its index.
    pub(super) fn begin_table(
        &mut self,
        of: SidecarNo,
        epoch: Epoch,
        reference: &Reference,
    ) -> Option<(Table, TableLead)> {
        let plan = self.plan.table.clone()?;
        self.checks.table_won(epoch, reference);
        let mut warm = self.lead_warm(of, reference);
        let folded = loop {
            let hash_key = HashKey(std::array::from_fn(|_| self.random.next() as u8));
            let empty = || Fold::new(Index::new(hash_key, plan.limits(), Window::new(SIZE)));
            let (mut fold, rest) = warm.take().unwrap_or_else(|| (empty(), segments(reference)));
            match rest.iter().try_for_each(|segment| self.fold_segment(&mut fold, segment)) {
                Ok(()) => break fold.finish(),
                Err(FoldError::NoRoom(_)) => {}
                Err(gap) => broken("S18", gap.to_string()),
            }
        };
        self.tally.folded += u64::from(folded.last.is_some());
        trace!(self, "the log folds into {}", counted(folded.index.keys()));
        let cleaning = Cleaning::new(plan.bounds(), reference, folded.unkeyed.map(|unkeyed| unkeyed.segment));
        let (requests, mismatches) = (VecDeque::new(), BTreeMap::new());
        Some((
            Table::new(folded.index, plan.bounds()),
            TableLead {
                requests,
                mismatches,
                count: 0,
                cleaning,
                getting: Getting::default(),
                mirroring: None,
                done: 0,
            },
        ))
    }

    /// An app asks for this.
    pub(crate) fn ask_table(&mut self, of: SidecarNo, operations: Vec<Operation>) {
        let (asked, since) = (self.queue.now(), self.checks.table_reached());
        self.with_lead(of, |_, lead| {
            let table = lead.table.as_mut().expect("of a table");
            table.requests.push_back(Request { operations, asked, since });
        });
    }

    /// What the app asks for next.
    pub(super) fn request(&mut self, of: SidecarNo) -> Option<Request> {
        let plan = self.plan.table.clone()?;
        let epoch = self.sidecars[of.0].lead()?.epoch;
        let state = Rc::clone(self.checks.table_state(epoch));
        let count = if self.load { 1 } else { *self.random.pick(&OPERATIONS) };
        let mut operations: Vec<Operation> = Vec::new();
        for _ in 0..count {
            let hot = if self.random.one_in(plan.cold_one_in) { plan.names } else { plan.hot };
            let key: Rc<[u8]> = Rc::from(format!("key/{}", self.random.below(hot)).into_bytes());
            let operation = self.operation(&plan, &state, key);
            let is_new = !operations.iter().any(|before| before.key == operation.key);
            if is_new || matches!(operation.does, Does::Require) {
                operations.push(operation);
            }
        }
        if !self.load && self.random.below(64) < plan.vain {
            let key: Rc<[u8]> = Rc::from(&b"key/0"[..]);
            let only_if = state.get(&key).map_or(1, |row| row.revision + 1);
            operations.insert(0, Operation { key, does: Does::Require, only_if: Some(only_if) });
        }
        if operations.iter().all(|operation| matches!(operation.does, Does::Require)) {
            let key = Rc::from(&b"key/0"[..]);
            operations.retain(|operation| operation.key != key);
            operations.push(Operation { key, does: Does::Delete, only_if: None });
        }
        Some(Request { operations, asked: self.queue.now(), since: self.checks.table_reached() })
    }

    fn operation(&mut self, plan: &TablePlan, state: &State, key: Rc<[u8]>) -> Operation {
        let now = state.get(&key).map_or(0, |row| row.revision);
        let wrong = self.random.below(now + 4);
        let only_if = *self.random.pick(&[None, None, None, None, Some(now), Some(now), Some(now), Some(wrong)]);
        let does = match self.random.below(10) {
            _ if self.load => Does::Put(Rc::from(self.queue.now().to_le_bytes())),
            0 => return Operation { key, does: Does::Require, only_if: Some(only_if.unwrap_or(now)) },
            1 | 2 => Does::Delete,
            3 | 4 if plan.reads => {
                let names = if self.random.one_in(3) { plan.names } else { plan.hot };
                Does::Copy(Rc::from(format!("key/{}", self.random.below(names)).into_bytes()))
            }
            _ => {
                let large = self.random.one_in(plan.large_one_in);
                let size = self.random.below(if large { VALUE_MAX } else { plan.value_max } + 1);
                let one_size = self.plan.mirrors.as_ref().is_some_and(|plan| plan.one_size);
                let size = if one_size { plan.value_max } else { size };
                let mut value = vec![0; size as usize];
                let mut own = self.random.split();
                value.iter_mut().step_by(8).for_each(|byte| *byte = own.next() as u8);
                Does::Put(Rc::from(value))
            }
        };
        Operation { key, does, only_if }
    }

    /// Places the oldest request that waits; false when there is none, or no room for it now.
    pub(super) fn place_request(&mut self, of: SidecarNo, lead: &mut Lead) -> bool {
        let now = self.time(of);
        let Some(table) = &mut lead.table else { return false };
        let Some(request) = table.requests.front() else { return false };
        let (asked, front) = (request.operations.clone(), table.done);
        let operations: Vec<request::Operation<'_>> = asked.iter().map(operation).collect();
        let apply = Apply::new(&operations).expect("an app's request is well-formed");
        let (count, epoch) = (apply.write_count(), lead.epoch);
        let before = lead.log.primary().active();
        if table.getting.copies.waits(front, now) {
            return false;
        }
        let taken = table.getting.copies.take(front);
        let given = taken.as_ref().map_or_else(Given::default, |taken| taken.given.clone());
        let placed = match lead.log.apply((), &apply, &given) {
            Err(Unapplied::Later) => {
                self.tally.waits += 1;
                if let Some(taken) = taken {
                    table.getting.copies.keep(front, taken);
                }
                return false;
            }
            Err(Unapplied::Sources) => {
                let is_waiting = self.want_sources(of, lead, front, &apply, taken);
                if !is_waiting && let Some(table) = &mut lead.table {
                    table.pop();
                }
                return !is_waiting;
            }
            Err(Unapplied::Mismatch(_)) if !lead.log.may_ask_behind() => return false,
            Err(Unapplied::Mismatch(found)) => Err((found.operation, Revision::number(found.now))),
            Err(Unapplied::Full(full)) => {
                let request = table.pop();
                return self.judge_full(lead, &request, full);
            }
            Err(Unapplied::TooLarge(why)) => panic!("an app's request has room in a segment: {why}"),
            Ok(placed) => Ok(placed),
        };
        let request = table.pop();
        self.checks.table_judged(epoch, &request.operations, placed.err());
        match placed {
            Err(found) => {
                self.tally.mismatches += 1;
                let asked = request.asked;
                table.count += 1;
                table.mismatches.insert(table.count, Mismatched { request, found });
                lead.log.ask_behind(super::lead::Question { asked, about: About::Mismatch(table.count) });
            }
            Ok(Applied { placed, size }) => {
                self.tally.applied += 1;
                let (first, end) = (Lsn(placed.last.0 + 1 - u64::from(count)), placed.end);
                let identity = lead.log.primary().active().expect("a request was placed in it");
                let from = end.offset.0 - size as u32;
                self.judge_room(lead, &request);
                self.checks.table_applied(identity, first, from, &request.operations);
                let name = &self.sidecars[of.0].name;
                if before.is_some_and(|before| before != identity) {
                    trace!(self, "{name} rolls to segment {}", identity.segment);
                }
                let what = records(first, placed.last);
                trace!(self, "{name} applies {what} at {}:{from}..{}", identity.segment, end.offset);
            }
        }
        true
    }

    /// Keys, and bytes of live records: before the request, and after it.
    fn sizes(&self, lead: &Lead, request: &Request) -> [(u64, u64); 2] {
        let before = self.checks.table_state(lead.epoch);
        let mut after: BTreeMap<&[u8], u64> =
            before.iter().map(|(key, row)| (&key[..], size_in_log(key, &row.value))).collect();
        let sizes = |state: &BTreeMap<&[u8], u64>| (state.len() as u64, state.values().sum());
        let sizes_before = sizes(&after);
        for Operation { key, does, .. } in &request.operations {
            match does {
                Does::Put(value) => drop(after.insert(key, size_in_log(key, value))),
                Does::Copy(source) => drop(after.insert(key, size_in_log(key, &before[source].value))),
                Does::Delete => drop(after.remove(&key[..])),
                Does::Require => {}
            }
        }
        [sizes_before, sizes(&after)]
    }

    /// What is carried out is within the bounds of the table, or adds nothing.
    fn judge_room(&self, lead: &Lead, request: &Request) {
        let Some(limits) = self.plan.table.as_ref().map(TablePlan::limits) else { return };
        let [(keys, bytes), (keys_after, bytes_after)] = self.sizes(lead, request);
        if keys_after > keys.max(u64::from(limits.keys_max)) || bytes_after > bytes.max(limits.live_bytes_max) {
            broken("S9", format!("a table takes {keys_after} keys with {bytes_after} bytes"));
        }
        let (segments, bounds) = (lead.machine().log_segments(), self.plan.table.as_ref().map(TablePlan::bounds));
        if bounds.is_some_and(|bounds| segments > bounds.segments() - bounds.reserve()) {
            broken("S9", format!("a put is placed where only moves may be: the log has {segments} segments"));
        }
    }

    /// A table that says that it is full is.
    fn judge_full(&mut self, lead: &Lead, request: &Request, full: Full) -> bool {
        self.tally.full += 1;
        let Some(limits) = self.plan.table.as_ref().map(TablePlan::limits) else { return true };
        let [(keys, bytes), (keys_after, bytes_after)] = self.sizes(lead, request);
        trace!(self, "the table has no room: {full:?}");
        let is_full = match full {
            Full::Keys => keys_after > keys.max(u64::from(limits.keys_max)),
            Full::Memory => bytes_after > bytes.max(limits.live_bytes_max),
            Full::Buckets => keys_after > keys || keys > u64::from(limits.buckets.entries() / 2),
        };
        if !is_full {
            broken("Table", format!("{full:?} with {keys_after} keys and {bytes_after} bytes"));
        }
        true
    }

    /// A table's log has no more segments than its bounds promise (S9).
    pub(super) fn bound_table(&self, lead: &Lead) {
        let Some(table) = &lead.table else { return };
        let (segments, most) = (lead.machine().log_segments(), table.cleaning.segments_max);
        if segments > most {
            broken("S9", format!("the log of a table has {segments} segments, {most} are promised"));
        }
    }

    /// The app asks for nothing, and the cleaner comes to rest: there is room for puts, and the index is the fold of the log.
    pub(super) fn rest_table(&mut self) {
        if self.plan.table.is_none() {
            return;
        }
        self.quiet = true;
        let calm = self.queue.now();
        while let Some(why) = self.restless() {
            if self.queue.now() > calm + RETURN_MAX {
                self.quiet = false;
                return if self.lacks_copies() { self.tally.damaged_for_good = 1 } else { broken("Liveness", why) };
            }
            self.play_for(super::sidecar::TICK);
        }
        let leads = self.sidecars.iter().position(|sidecar| sidecar.lead().is_some_and(rests)).map(SidecarNo);
        self.with_lead(leads.expect("one rests"), |world, lead| {
            world.judge_whole_index(lead);
            world.judge_trimmed_table(lead);
            let index = lead.log.table().expect("of a table").index();
            if let Some(lsn) = index.unacked() {
                broken("Table", format!("the index of a table at rest waits for the ack of {lsn}"));
            }
            index.check(lead.machine().positions().appended.segment);
        });
        self.quiet = false;
    }

    fn restless(&self) -> Option<String> {
        let epoch = self.store.content().map(|config| config.epoch);
        let mut leads = self.sidecars.iter().filter(|sidecar| sidecar.process == Process::Up);
        let Some(lead) = leads.find_map(|sidecar| sidecar.lead().filter(|lead| Some(lead.epoch) == epoch)) else {
            return Some("nobody leads a table that is left alone".to_owned());
        };
        let doing = || lead.table.as_ref().map(|table| table.cleaning.doing());
        let segments = || lead.machine().log_segments();
        (!rests(lead)).then(|| format!("a table that is left alone: {:?}, {} segments", doing(), segments()))
    }

    /// Nobody has a sound copy of a closed segment: the cleaner may want it, a copy of a key's value, or a newcomer.
    pub(super) fn lacks_copies(&self) -> bool {
        let leads = self.sidecars.iter().filter_map(super::sidecar::Sidecar::lead);
        let mut closed = leads.flat_map(|lead| lead.machine().closed());
        closed.any(|(identity, closure)| !self.hosts.iter().any(|host| has_sound(host, identity, closure)))
    }

    /// The app is told that a condition does not hold.
    pub(super) fn judge_mismatch(&mut self, of: SidecarNo, lead: &mut Lead, number: u64) {
        let table = lead.table.as_mut().expect("a mismatch is a table's");
        let Mismatched { request, found } = table.mismatches.remove(&number).expect("told once");
        let (operation, now) = found;
        let key = request.operations[usize::from(operation)].key.escape_ascii();
        let is = if now == 0 { "is absent".to_owned() } else { format!("has revision {now}") };
        trace!(self, "{} changes nothing: {key} {is}", self.sidecars[of.0].name);
        self.tally.mismatches_told += 1;
        self.checks.end_is_told(lead.epoch, request.asked);
        self.checks.table_mismatched(lead.epoch, &request.operations, found, request.since);
    }

    /// Looks at one key of the index.
    pub(super) fn judge_index(&mut self, lead: &Lead) {
        let Some(plan) = &self.plan.table else { return };
        let some = self.random.below(plan.names);
        self.judge_names(lead, some..some + 1);
    }

    /// Looks at all of the index.
    pub(super) fn judge_whole_index(&self, lead: &Lead) {
        let Some(plan) = &self.plan.table else { return };
        self.judge_names(lead, 0..plan.names);
        let (keys, state) = (lead.log.table().map(|table| table.index().keys()), self.checks.table_state(lead.epoch));
        if keys.is_some_and(|keys| keys as usize != state.len()) {
            broken("Table", format!("epoch {} has {keys:?} keys, and {} is right", lead.epoch, state.len()));
        }
    }

    fn judge_names(&self, lead: &Lead, names: std::ops::Range<u64>) {
        let Some(table) = lead.log.table() else { return };
        let index = table.index();
        let (machine, acked) = (lead.machine(), lead.log.acked().0);
        let end = machine.positions().appended.segment;
        let first = machine.closed().front().map_or(SegmentId(1), |(identity, _)| identity.segment);
        for name in names {
            let key: Rc<[u8]> = Rc::from(format!("key/{name}").into_bytes());
            let name = Key::new(&key).expect("a key");
            let latest = index.latest(name).map(|latest| Revision::number(Some(latest.revision)));
            let shown = index.acknowledged(name).map(|present| {
                let at = present.word.new_place().and_then(|place| index.window().position(place, end));
                // What is trimmed must not be named: a getter would look for it.
                let at = at.filter(|at| at.segment >= first);
                let at = at.unwrap_or_else(|| broken("Table", format!("{} names no record", key.escape_ascii())));
                (Revision::number(Some(present.revision)), at.segment, at.offset.0)
            });
            self.checks.table_shows(lead.epoch, acked, &key, latest, shown);
        }
    }
}

/// Everything is placed and acknowledged, the cleaner has nothing to do, and there is room for puts.
fn rests(lead: &Lead) -> bool {
    let at_rest =
        |table: &TableLead| table.requests.is_empty() && table.getting.gets.is_empty() && table.cleaning.rests();
    let has_room = |table: &Table| table.bounds().may_put(lead.machine().log_segments());
    let at_rest = lead.table.as_deref().is_some_and(at_rest) && lead.log.appends().len() == 0;
    at_rest && lead.log.table().is_some_and(has_room)
}

fn counted(keys: u32) -> String {
    if keys == 1 { "1 key".to_owned() } else { format!("{keys} keys") }
}

fn operation(operation: &Operation) -> request::Operation<'_> {
    let key = Key::new(&operation.key).expect("a key");
    let only_if = operation.only_if.map(Expected::from_number);
    let written = match &operation.does {
        Does::Put(value) => Written::Value(Value::new(value).expect("a value")),
        Does::Copy(source) => Written::CopyOf(Key::new(source).expect("a key")),
        Does::Delete => Written::Nothing,
        Does::Require => {
            let expected = only_if.expect("a require has a condition");
            return request::Operation::Require { key, expected };
        }
    };
    request::Operation::Write { key, written, only_if }
}
