//! Requests, states of a table, and the bytes of keyed records, as "Keyed records" in `docs/protocol.md` has them.

use std::collections::BTreeMap;
use std::rc::Rc;

use tailwind_protocol::ids::Lsn;

use crate::check::broken;

/// Bytes before the key.
const HEADER: usize = 16;

/// A key's value, and its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) value: Rc<[u8]>,
    pub(crate) revision: u64,
}

/// What every key has.
pub(crate) type State = BTreeMap<Rc<[u8]>, Row>;

/// What an operation does with its key.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    Put(Rc<[u8]>),
    /// The value that this key has before the request; nothing is done if it is absent.
    Copy(Rc<[u8]>),
    Delete,
    /// Nothing: its condition is all.
    Require,
}

/// An operation of a request.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) key: Rc<[u8]>,
    pub(crate) does: Does,
    /// The revision that its key must have; 0: it must be absent.
    pub(crate) only_if: Option<u64>,
}

/// The first operation whose condition does not hold, and what its key is instead.
pub(super) fn judge(before: &State, request: &[Operation]) -> Option<(u16, u64)> {
    (0..).zip(request).find_map(|(number, operation)| {
        let now = before.get(&operation.key).map_or(0, |row| row.revision);
        let lacks_source = matches!(&operation.does, Does::Copy(source) if !before.contains_key(source));
        let mismatch = operation.only_if.filter(|only_if| *only_if != now).map(|_| (number, now));
        mismatch.or(lacks_source.then_some((number, 0)))
    })
}

/// The state after a request whose first record is this one, and the payloads of its records.
pub(super) fn carry_out(before: &State, request: &[Operation], first: Lsn) -> (State, Vec<Rc<[u8]>>) {
    let writes = || request.iter().filter(|operation| !matches!(operation.does, Does::Require));
    let (mut state, mut batch, count) = (before.clone(), Vec::new(), writes().count());
    for (nth, Operation { key, does, .. }) in writes().enumerate() {
        let value = match does {
            Does::Put(value) => Some(value),
            Does::Copy(source) => Some(&before[source].value),
            Does::Delete | Does::Require => None,
        };
        match value {
            Some(value) => {
                let row = Row { value: Rc::clone(value), revision: first.0 + nth as u64 };
                state.insert(Rc::clone(key), row);
            }
            None => drop(state.remove(key)),
        }
        batch.push(payload(key, value.map(|value| &value[..]), nth + 1 < count));
    }
    (state, batch)
}

fn payload(key: &[u8], value: Option<&[u8]>, more: bool) -> Rc<[u8]> {
    let mut bytes = b"TWK1".to_vec();
    bytes.push(if value.is_some() { 1 } else { 2 });
    bytes.push(u8::from(more));
    bytes.extend((key.len() as u16).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(key);
    bytes.extend(value.unwrap_or_default());
    Rc::from(bytes)
}

/// The key of a record, and what it has from there on.
pub(super) fn parse(lsn: Lsn, payload: &[u8]) -> (Rc<[u8]>, Option<Row>) {
    if payload.len() < HEADER || payload[..4] != *b"TWK1" {
        broken("S18", format!("record {lsn} is not keyed"));
    }
    let length = usize::from(payload[6]) + 256 * usize::from(payload[7]);
    let revision = u64::from_le_bytes(std::array::from_fn(|at| payload[8 + at]));
    let (key, value) = payload[HEADER..].split_at(length);
    let revision = if revision == 0 { lsn.0 } else { revision };
    (Rc::from(key), (payload[4] == 1).then(|| Row { value: Rc::from(value), revision }))
}

/// What a log says: the last record of each key.
pub(super) fn fold<'a>(log: impl Iterator<Item = (Lsn, &'a [u8])>) -> State {
    let mut state = State::new();
    for (lsn, payload) in log {
        match parse(lsn, payload) {
            (key, Some(row)) => drop(state.insert(key, row)),
            (key, None) => drop(state.remove(&key)),
        }
    }
    state
}

/// Bytes of log that a key with a value takes: both headers, and padding.
pub(crate) fn size_in_log(key: &[u8], value: &[u8]) -> u64 {
    32 + (HEADER + key.len() + value.len()).next_multiple_of(8) as u64
}
