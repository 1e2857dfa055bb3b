//! The judge of `world.rs`: what a table must be, by replaying what was asked of it. It knows neither index nor cleaner, and reads
//! records by itself.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tailwind_protocol::table::record::{Key, Revision};
use tailwind_protocol::table::request::{Apply, Mismatch, Operation, Revisions, Written};

/// A value and its revision.
pub(super) type Row = (Rc<[u8]>, u64);
/// A table's content.
pub(super) type State = BTreeMap<Vec<u8>, Row>;
/// What an append makes of keys.
type Changes = Vec<(Vec<u8>, Option<Row>)>;

/// A table as it must be: everything that was appended, and everything that is acknowledged.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) appended: State,
    pub(super) acked: State,
    /// What each append did, with its last record, oldest first.
    waiting: VecDeque<(u64, Changes)>,
    /// Each key's acknowledged states, with the record that made it so; absent before the first one.
    pub(super) history: BTreeMap<Vec<u8>, Vec<(u64, Option<Row>)>>,
}

fn change(state: &mut State, changes: &Changes) {
    for (key, row) in changes {
        match row {
            Some(row) => drop(state.insert(key.clone(), row.clone())),
            None => drop(state.remove(key)),
        }
    }
}

impl Model {
    /// The first operation that does not fit, and the revision found instead.
    pub(super) fn judge(&self, operations: &[Operation<'_>]) -> Option<Mismatch> {
        let revision = |key: Key<'_>| Revision::number(self.revision(key));
        operations.iter().enumerate().find_map(|(number, operation)| {
            let key = revision(operation.key());
            let wrong =
                operation.condition().filter(|expected| !expected.holds(Revision::of(key.into_lsn()))).map(|_| key);
            let missing = match operation {
                Operation::Write { written: Written::CopyOf(source), .. } if revision(*source) == 0 => Some(0),
                _ => None,
            };
            let now = Revision::of(wrong.or(missing)?.into_lsn());
            Some(Mismatch { operation: number as u16, now })
        })
    }

    /// A request was appended, with this last record.
    pub(super) fn append(&mut self, apply: &Apply<'_>, last: u64) {
        let mut revision = last - u64::from(apply.write_count());
        let mut changes = Changes::new();
        for operation in apply.operations() {
            let value: Option<Rc<[u8]>> = match operation {
                Operation::Require { .. } => continue,
                Operation::Write { written: Written::Nothing, .. } => None,
                Operation::Write { written: Written::Value(value), .. } => Some(value.as_bytes().into()),
                // Of the state before: the changes come into it below.
                Operation::Write { written: Written::CopyOf(source), .. } => {
                    Some(self.appended[source.as_bytes()].0.clone())
                }
            };
            revision += 1;
            changes.push((operation.key().as_bytes().to_vec(), value.map(|value| (value, revision))));
        }
        change(&mut self.appended, &changes);
        self.waiting.push_back((last, changes));
    }

    /// Everything up to this record is acknowledged.
    pub(super) fn ack(&mut self, acked: u64) {
        while let Some((last, changes)) = self.waiting.pop_front_if(|(last, _)| *last <= acked) {
            for (lsn, (key, row)) in (last + 1 - changes.len() as u64..).zip(&changes) {
                self.history.entry(key.clone()).or_default().push((lsn, row.clone()));
            }
            change(&mut self.acked, &changes);
        }
    }

    /// The log was recovered up to this record.
    pub(super) fn crash(&mut self, cut: u64) {
        self.ack(cut);
        self.waiting.clear();
        self.appended = self.acked.clone();
    }

    /// Keys, and bytes of log, after these operations.
    pub(super) fn sizes_after(&self, operations: &[Operation<'_>]) -> (usize, usize) {
        let mut after: BTreeMap<&[u8], usize> =
            self.appended.iter().map(|(key, row)| (&key[..], row.0.len())).collect();
        for operation in operations {
            let key = operation.key().as_bytes();
            match operation {
                Operation::Write { written: Written::Value(value), .. } => {
                    after.insert(key, value.as_bytes().len());
                }
                Operation::Write { written: Written::CopyOf(source), .. } => {
                    let length = self.appended.get(source.as_bytes()).map_or(0, |row| row.0.len());
                    after.insert(key, length);
                }
                Operation::Write { written: Written::Nothing, .. } => drop(after.remove(key)),
                Operation::Require { .. } => {}
            }
        }
        (after.len(), after.iter().map(|(key, length)| size_in_log(key.len() + length)).sum())
    }

    /// Bytes of log that live records have.
    pub(super) fn live_bytes(&self) -> usize {
        self.sizes_after(&[]).1
    }
}

impl Revisions for Model {
    fn revision(&self, key: Key<'_>) -> Option<Revision> {
        self.appended.get(key.as_bytes()).and_then(|row| Revision::of(row.1.into_lsn()))
    }
}

/// Header of the record and of its payload, and padding.
fn size_in_log(key_and_value: usize) -> usize {
    32 + (16 + key_and_value).next_multiple_of(8)
}

/// A number of a record as the crate has it.
pub(super) trait IntoLsn {
    fn into_lsn(self) -> tailwind_protocol::ids::Lsn;
}

impl IntoLsn for u64 {
    fn into_lsn(self) -> tailwind_protocol::ids::Lsn {
        tailwind_protocol::ids::Lsn(self)
    }
}

/// Key, value and revision in a record's payload, as its bytes are documented; without a value it deletes.
pub(super) fn parse(lsn: u64, payload: &[u8]) -> (&[u8], Option<(&[u8], u64)>) {
    assert_eq!(&payload[..4], b"TWK1");
    let length = usize::from(payload[6]) + 256 * usize::from(payload[7]);
    let revision = payload[8..16].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let (key, value) = payload[16..].split_at(length);
    let revision = if revision == 0 { lsn } else { revision };
    (key, (payload[4] == 1).then_some((value, revision)))
}

/// What a log says: the last record of each key.
pub(super) fn fold<'a>(records: impl Iterator<Item = (u64, &'a [u8])>) -> BTreeMap<&'a [u8], (&'a [u8], u64)> {
    let mut state = BTreeMap::new();
    for (lsn, payload) in records {
        let (key, row) = parse(lsn, payload);
        match row {
            Some(row) => drop(state.insert(key, row)),
            None => drop(state.remove(key)),
        }
    }
    state
}

/// Whether a log says what a state has.
pub(super) fn says<'a>(records: impl Iterator<Item = (u64, &'a [u8])>, state: &State) -> Result<(), String> {
    let folded = fold(records);
    for (key, row) in state {
        let found = folded.get(&key[..]);
        let agrees = found.is_some_and(|(value, revision)| **value == *row.0 && *revision == row.1);
        if !agrees {
            let revision = found.map(|found| found.1);
            return Err(format!("{} has revision {}, and in the log {revision:?}", key.escape_ascii(), row.1));
        }
    }
    match folded.keys().find(|key| !state.contains_key(**key)) {
        Some(key) => Err(format!("{} is absent, but not in the log", key.escape_ascii())),
        None => Ok(()),
    }
}
