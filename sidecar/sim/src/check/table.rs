//! What a table must be, by replaying what was asked of it: the judge of requests, of mismatches, of the index, and of S18.
//!
//! Has none of the machines' code: the rules stand in "Tables" of `docs/protocol.md`. A table is in one state after each
//! append of each epoch. Requests change it, in the order of LSNs; the cleaner's moves do not.

mod readers;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::rc::Rc;

use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::recovery::Reference;

use super::{Checks, broken};

pub(crate) use readers::{AskedElsewhere, ENTRY, ToldElsewhere};
pub(crate) use records::{Does, Operation, State, size_in_log};
use records::{Row, fold, parse};

/// The rule that an answer or an index breaks which does not follow from the requests.
const RULE: &str = "Table";

/// A condition that does not hold: the operation's number, and the revision that its key has instead; 0: it is absent.
pub(crate) type Mismatch = (u16, u64);

/// What an app is shown of a key that is there: its revision, and its value.
pub(crate) type Shown = (u64, Rc<[u8]>);

/// All states of a table.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// After each append; and of each epoch, under the last recovered record, before its first one.
    states: BTreeMap<(Epoch, Lsn), Rc<State>>,
    /// How far each epoch has acknowledged.
    acked: BTreeMap<Epoch, Lsn>,
    /// The latest epoch that has begun.
    newest: Epoch,
    /// The last record that was acknowledged, or shown as recovered.
    reached: Lsn,
    /// Which records were placed there.
    places: BTreeMap<(SegmentId, u32), Vec<(Epoch, Lsn)>>,
    readers: readers::Readers,
}

impl Tables {
    /// The state after everything that the epoch has appended.
    fn appended(&self, epoch: Epoch) -> &Rc<State> {
        let states = self.states.range((epoch, Lsn(0))..(epoch.next(), Lsn(0)));
        states.map(|(_, state)| state).next_back().expect("an epoch begins with a state")
    }

    /// The states of the log that an epoch has recovered.
    fn recovered(&self, epoch: Epoch, reference: &Reference) -> Vec<(Lsn, Rc<State>)> {
        let states = |epoch, first: Lsn, last: Lsn| self.states.range((epoch, first)..(epoch, last.next()));
        let segments = reference.segments.iter();
        let segments =
            segments.flat_map(|segment| states(segment.identity.epoch, segment.closure.first, segment.closure.last));
        let last = states(epoch, reference.last(), reference.last());
        segments.chain(last).map(|((_, lsn), state)| (*lsn, Rc::clone(state))).collect()
    }

    fn at(&self, epoch: Epoch, lsn: Lsn) -> Option<&Rc<State>> {
        self.states.get(&(epoch, lsn))
    }
}

impl Checks {
    /// A candidate has won and shows its app this log: its fold is the state after its last record (S18).
    pub(crate) fn table_won(&mut self, epoch: Epoch, reference: &Reference) {
        let last = reference.last();
        let holds = |lsn: Lsn| {
            let mut segments = reference.segments.iter();
            segments.find(|segment| segment.closure.first <= lsn && lsn <= segment.closure.last)
        };
        let state = match holds(last) {
            _ if last == Lsn(0) => Some(Rc::default()),
            Some(segment) => self.tables.at(segment.identity.epoch, last).cloned(),
            // Nothing but empty segments: it was in what is trimmed.
            None => self.tables.states.iter().rfind(|((_, lsn), _)| *lsn == last).map(|(_, state)| Rc::clone(state)),
        };
        let state = state.expect("a log ends where an append ended");
        let log = reference.segments.iter().map(|segment| (segment.identity.epoch, segment.closure));
        let log = log.flat_map(|(epoch, closure)| (closure.first.0..=closure.last.0).map(move |lsn| (epoch, Lsn(lsn))));
        self.table_says(log, &state, "recovered");
        self.tables.states.insert((epoch, last), state);
        self.tables.acked.insert(epoch, last);
        let recovered = self.tables.recovered(epoch, reference);
        self.tables.readers.won(epoch, last, recovered.into_iter());
        if epoch > self.tables.newest {
            // What was lost with an excuse is not asked for again.
            (self.tables.newest, self.tables.reached) = (epoch, last);
        }
    }

    /// The epoch has trimmed its log, and these records are left that it knows to be acknowledged (S18).
    pub(crate) fn table_trimmed(&self, epoch: Epoch, log: impl Iterator<Item = (Epoch, Lsn)>) {
        let acked = self.tables.acked[&epoch];
        let state = self.tables.at(epoch, acked).expect("an append ends with what is acknowledged");
        self.table_says(log.filter(|(_, lsn)| *lsn <= acked), state, "trimmed");
    }

    fn table_says(&self, log: impl Iterator<Item = (Epoch, Lsn)>, state: &State, what: &str) {
        let records = log.map(|(epoch, lsn)| (lsn, &self.truth(epoch, lsn).payload[..]));
        let folded = fold(records);
        let told = |row: Option<&Row>| row.map_or_else(|| "absent".to_owned(), |row| format!("at {}", row.revision));
        let keys = state.keys().chain(folded.keys());
        for key in keys {
            let (found, row) = (folded.get(key), state.get(key));
            if found != row {
                let (name, found, row) = (key.escape_ascii(), told(found), told(row));
                broken("S18", format!("in the {what} log {name} is {found}, and was acknowledged {row}"));
            }
        }
    }

    /// What the state says of a request that the epoch is about to judge: what it has appended is decisive, acknowledged or not.
    pub(crate) fn table_expects(&self, epoch: Epoch, request: &[Operation]) -> Option<Mismatch> {
        records::judge(self.tables.appended(epoch), request)
    }

    /// The state after everything that the epoch has appended.
    pub(crate) fn table_state(&self, epoch: Epoch) -> &Rc<State> {
        self.tables.appended(epoch)
    }

    /// A key's value and revision after everything that was acknowledged.
    pub(crate) fn table_row(&self, key: &[u8]) -> Option<(Rc<[u8]>, u64)> {
        let row = self.tables.at(self.tables.newest, self.tables.reached)?.get(key)?;
        Some((Rc::clone(&row.value), row.revision))
    }

    /// The epoch has judged a request.
    pub(crate) fn table_judged(&self, epoch: Epoch, request: &[Operation], found: Option<Mismatch>) {
        let expected = self.table_expects(epoch, request);
        if found != expected {
            broken(RULE, format!("epoch {epoch} judges {found:?}, and {expected:?} is right"));
        }
    }

    /// The epoch has placed a request's batch: what is in the log follows from the request alone. Its first record's header is at
    /// this offset.
    pub(crate) fn table_applied(&mut self, identity: SegmentIdentity, first: Lsn, at: u32, request: &[Operation]) {
        let epoch = identity.epoch;
        let (state, batch) = records::carry_out(self.tables.appended(epoch), request, first);
        self.table_placed(identity, first, at, &batch);
        self.tables.states.insert((epoch, Lsn(first.0 + batch.len() as u64 - 1)), Rc::new(state));
    }

    /// The epoch has moved records.
    pub(crate) fn table_moved(&mut self, identity: SegmentIdentity, first: Lsn, at: u32, batch: &[Rc<[u8]>]) {
        let state = Rc::clone(self.tables.appended(identity.epoch));
        self.table_placed(identity, first, at, batch);
        self.tables.states.insert((identity.epoch, Lsn(first.0 + batch.len() as u64 - 1)), state);
    }

    fn table_placed(&mut self, identity: SegmentIdentity, first: Lsn, at: u32, batch: &[Rc<[u8]>]) {
        self.submitted(identity, first, at, batch);
        for lsn in (first.0..).map(Lsn).take(batch.len()) {
            let record = self.truth(identity.epoch, lsn);
            let place = (identity.segment, record.at);
            self.tables.places.entry(place).or_default().push((identity.epoch, lsn));
        }
    }

    /// An app was told that everything up to here is safe.
    pub(crate) fn table_acked(&mut self, epoch: Epoch, last: Lsn) {
        let before = self.tables.acked.insert(epoch, last).unwrap_or_default();
        for ((_, lsn), state) in self.tables.states.range((epoch, before.next())..(epoch, last.next())) {
            self.tables.readers.acked(epoch, *lsn, state);
        }
        if epoch == self.tables.newest {
            self.tables.reached = last;
        }
    }

    /// The last record that was acknowledged to anybody, or shown.
    pub(crate) fn table_reached(&self) -> Lsn {
        self.tables.reached
    }

    /// An app was told of a mismatch, by the sidecar of this epoch: of a state that was acknowledged between the request, when
    /// everything up to `since` was, and the answer.
    pub(crate) fn table_mismatched(&self, epoch: Epoch, request: &[Operation], found: Mismatch, since: Lsn) {
        let acked = self.tables.acked[&epoch];
        let mut states = self.tables.states.range((epoch, since)..(epoch, acked.next()));
        if states.all(|(_, state)| records::judge(state, request) != Some(found)) {
            let states = format!("from record {since} to {acked}");
            broken(RULE, format!("epoch {epoch} tells {found:?}, which no state is that was acknowledged {states}"));
        }
    }

    /// An app was shown a key as of a record: that one is acknowledged, not before what was shown or asked for, and the key was so
    /// after it, or after a later one that is acknowledged (S20).
    pub(crate) fn table_got(
        &self,
        epoch: Epoch,
        key: &Rc<[u8]>,
        (as_of, least): (Lsn, Lsn),
        shown: Option<&Shown>,
        no_value: bool,
    ) {
        let (acked, name) = (self.tables.acked[&epoch], key.escape_ascii());
        if as_of < least || as_of > acked {
            let bounds = format!("{least} was shown or asked for, {acked} is acknowledged");
            broken("S20", format!("epoch {epoch} shows {name} as of {as_of}, and {bounds}"));
        }
        let is_so = |state: &Rc<State>| match (state.get(key), shown) {
            (None, None) => true,
            (Some(row), Some((revision, value))) => {
                let is_value = if no_value { value.is_empty() } else { row.value == *value };
                row.revision == *revision && is_value
            }
            _ => false,
        };
        let mut states = self.tables.states.range((epoch, as_of)..(epoch, acked.next()));
        if !states.any(|(_, state)| is_so(state)) {
            let told = shown.map_or_else(|| "absent".to_owned(), |(revision, _)| format!("at {revision}"));
            broken("S20", format!("epoch {epoch} shows {name} {told} as of {as_of}, which it is not up to {acked}"));
        }
    }

    /// That get was fresh: everything up to `since` was acknowledged to somebody when it was asked for, and no later epoch had
    /// begun by then (S20, S16).
    pub(crate) fn table_got_fresh(&self, epoch: Epoch, asked: u64, since: Lsn, as_of: Lsn) {
        self.end_is_told(epoch, asked);
        if as_of < since {
            broken(
                "S20",
                format!("epoch {epoch} shows a key fresh as of {as_of}, and {since} was acknowledged before"),
            );
        }
    }

    /// The index of this epoch has these revisions and, in its acknowledged view, this place for a key.
    pub(crate) fn table_shows(
        &self,
        epoch: Epoch,
        acked: Lsn,
        key: &Rc<[u8]>,
        latest: Option<u64>,
        shown: Option<(u64, SegmentId, u32)>,
    ) {
        let name = key.escape_ascii();
        let appended = self.tables.appended(epoch).get(key);
        if latest != appended.map(|row| row.revision) {
            let right = appended.map(|row| row.revision);
            broken(RULE, format!("epoch {epoch} has appended {name} at {latest:?}, and {right:?} is right"));
        }
        let state = self.tables.at(epoch, acked).expect("an append ends with what is acknowledged");
        let row = state.get(key);
        // An earlier epoch that does not know that it is over may have another segment of that number, with the same key and LSN.
        let is_there = |(revision, segment, at)| {
            let mut placed = self.tables.places.get(&(segment, at)).into_iter().flatten();
            placed.any(|(wrote, lsn)| {
                let (of, found) = parse(*lsn, &self.truth(*wrote, *lsn).payload);
                *wrote <= epoch
                    && of == *key
                    && found.as_ref() == row
                    && row.is_some_and(|row| row.revision == revision)
            })
        };
        if shown.is_some() != row.is_some() || !shown.is_none_or(is_there) {
            let right = row.map(|row| row.revision);
            broken(
                RULE,
                format!("epoch {epoch} shows {name} as {shown:?}, and {right:?} is acknowledged up to {acked}"),
            );
        }
    }
}
