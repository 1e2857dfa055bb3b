//! What getters may say of a table (S20), what mirrors may show (S21), and when what they name may be trimmed (S19).
//!
//! Entries are read here from their bytes, as "The index" in `docs/protocol.md` has them. Only the hash of a key is the
//! machines'.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::record::Key;

use super::records::parse;
use super::{Checks, Shown, State, broken};
use crate::world::HostNo;

#[cfg(test)]
mod tests;

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 32;
/// Entries of a bucket.
const BUCKET: usize = 8;
/// How long what no mirror names any more is not trimmed, by the primary's clock.
const GRACE_MS: u64 = 500;
/// A view that is older is called stale, microseconds.
const STALE_AFTER: u64 = 300_000;

/// What an app has asked for elsewhere than at the primary.
#[derive(Clone, Debug)]
pub(crate) struct AskedElsewhere {
    pub(crate) key: Rc<[u8]>,
    pub(crate) connection: u64,
    /// The state after this record, or later.
    pub(crate) least: Lsn,
    /// Fresh: up to this record everything was acknowledged to somebody.
    pub(crate) since: Option<Lsn>,
    /// An older value will do.
    pub(crate) older: bool,
    pub(crate) no_value: bool,
}

/// What it is told.
#[derive(Clone, Debug)]
pub(crate) enum ToldElsewhere {
    Now { as_of: Lsn, stale: bool, shown: Option<Shown> },
    Older(Rc<[u8]>),
}

/// What 32 bytes of a mirror say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Unsound,
    /// Its key is absent.
    Absent,
    Entry {
        fingerprint: u64,
        segment: SegmentId,
        at: u32,
        revision: u64,
        length: u32,
    },
}

/// What a table had after each record that was acknowledged, from the moment on at which this epoch began.
#[derive(Clone, Debug, Default)]
struct Timeline {
    from: Epoch,
    states: BTreeMap<Lsn, Rc<State>>,
}

/// An index that is mirrored.
#[derive(Debug)]
struct Mirrored {
    hash_key: HashKey,
    buckets: Buckets,
    keys: BTreeMap<u64, Rc<[u8]>>,
}

/// What a connection has been shown.
#[derive(Debug, Default)]
struct Connection {
    as_of: Lsn,
    /// Of each key, the first state that it can have been.
    states: BTreeMap<Rc<[u8]>, Lsn>,
}

/// What is known of mirrors and of who reads them.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// One, and another after each loss that was excused.
    timelines: Vec<Timeline>,
    /// What each epoch has recovered.
    bases: BTreeMap<Epoch, Lsn>,
    mirrored: BTreeMap<Epoch, Mirrored>,
    connections: BTreeMap<u64, Connection>,
    /// When a mirror of this epoch last named a segment, microseconds.
    named: BTreeMap<(Epoch, SegmentId), u64>,
    /// Which segments were trimmed, and where mirrors were written to then.
    trimmed: BTreeMap<SegmentId, BTreeSet<HostNo>>,
}

impl Readers {
    /// An epoch has recovered the log up to this record. `states`: those that the log has.
    pub(super) fn won(&mut self, epoch: Epoch, last: Lsn, states: impl Iterator<Item = (Lsn, Rc<State>)>) {
        self.bases.insert(epoch, last);
        let newest = self.timelines.last().cloned().unwrap_or_default();
        let mut kept = newest.states.clone();
        let lost = kept.split_off(&last.next());
        if self.timelines.is_empty() || !lost.is_empty() {
            self.timelines.push(Timeline { from: epoch, states: kept });
        }
        let timeline = self.timelines.last_mut().expect("one was made");
        timeline.states.extend(states.filter(|(lsn, _)| *lsn <= last));
    }

    /// An epoch has acknowledged up to an append with this state.
    pub(super) fn acked(&mut self, epoch: Epoch, lsn: Lsn, state: &Rc<State>) {
        // Late news of an epoch that is over: it was recovered.
        let recovered = self.bases.range(epoch.next()..).all(|(_, base)| lsn <= *base);
        if let (Some(timeline), true) = (self.timelines.last_mut(), recovered) {
            timeline.states.insert(lsn, Rc::clone(state));
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn seen(hash_key: &HashKey, entry: &[u8]) -> Seen {
    if entry.iter().all(|byte| *byte == 0) {
        return Seen::Nothing;
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&hash_key.0);
    hasher.update(&entry[..28]);
    if number(&entry[28..]) != u64::from(hasher.finalize()) {
        return Seen::Unsound;
    }
    let (word, revision, length) = (number(&entry[8..16]), number(&entry[16..24]), number(&entry[24..28]) as u32);
    if (word, revision, length) == (0, 0, 0) {
        return Seen::Absent;
    }
    let place = if word >> 63 == 1 { word >> 32 & 0x7fff_ffff } else { word & 0x7fff_ffff };
    // No story has as many segments as a window.
    let units = u64::from(SegmentSize::MIN.bytes()) / 8;
    let (segment, at) = (SegmentId(place / units), (place % units * 8) as u32);
    Seen::Entry { fingerprint: number(&entry[..8]), segment, at, revision, length }
}

impl Mirrored {
    fn fingerprint(&self, key: &[u8]) -> u64 {
        self.hash_key.hash(Key::new(key).expect("a key")).fingerprint().0.get()
    }
}

impl Checks {
    /// The index of an epoch is mirrored, under this hash key.
    pub(crate) fn table_mirrored(&mut self, epoch: Epoch, hash_key: HashKey, buckets: Buckets, names: u64) {
        let mut mirrored = Mirrored { hash_key, buckets, keys: BTreeMap::new() };
        for name in 0..names {
            let key: Rc<[u8]> = Rc::from(format!("key/{name}").into_bytes());
            mirrored.keys.insert(mirrored.fingerprint(&key), key);
        }
        self.tables.readers.mirrored.insert(epoch, mirrored);
    }

    // ---- Mirrors --------------------------------------------------------------------------------------------------------

    /// Bytes of a mirror are about to change, or to go: what they name is named no more from now on.
    pub(crate) fn mirror_changes(&mut self, now: u64, epoch: Epoch, entries: &[u8]) {
        let Some(mirrored) = self.tables.readers.mirrored.get(&epoch) else { return };
        for entry in entries.chunks_exact(ENTRY) {
            if let Seen::Entry { segment, .. } = seen(&mirrored.hash_key, entry) {
                self.tables.readers.named.insert((epoch, segment), now);
            }
        }
    }

    /// Bytes of a mirror have changed: each entry names an acknowledged record of its key (S21).
    pub(crate) fn mirror_shows(&self, epoch: Epoch, entries: &[u8], place: &str) {
        let Some(mirrored) = self.tables.readers.mirrored.get(&epoch) else { return };
        for entry in entries.chunks_exact(ENTRY) {
            let Seen::Entry { fingerprint, segment, at, revision, length } = seen(&mirrored.hash_key, entry) else {
                continue;
            };
            let key = mirrored.keys.get(&fingerprint);
            let placed = self.tables.places.get(&(segment, at)).into_iter().flatten();
            let right = key.is_some_and(|key| {
                placed.clone().any(|(wrote, lsn)| {
                    let payload = &self.truth(*wrote, *lsn).payload;
                    let (of, row) = parse(*lsn, payload);
                    let acked = *wrote < epoch || *lsn <= self.tables.acked[&epoch];
                    let its = of == *key && row.is_some_and(|row| row.revision == revision);
                    *wrote <= epoch && acked && its && payload.len() == length as usize
                })
            });
            if !right {
                let key = key.map_or_else(String::new, |key| key.escape_ascii().to_string());
                let what = format!("key {key} at revision {revision}, in segment {segment} at {at}");
                broken("S21", format!("{place} shows {what}: nothing of that kind is acknowledged in epoch {epoch}"));
            }
        }
    }

    /// Where the buckets of a key begin in a mirror's memory.
    pub(crate) fn buckets_of(&self, epoch: Epoch, key: &[u8]) -> Option<[u32; 2]> {
        let Mirrored { hash_key, buckets, .. } = self.tables.readers.mirrored.get(&epoch)?;
        Some(buckets.of(hash_key.hash(Key::new(key).expect("a key"))).map(|bucket| bucket * (BUCKET * ENTRY) as u32))
    }

    /// The key whose entry this is, in a mirror of this epoch.
    pub(crate) fn key_of(&self, epoch: Epoch, entry: &[u8]) -> Option<Rc<[u8]>> {
        let mirrored = self.tables.readers.mirrored.get(&epoch)?;
        let Seen::Entry { fingerprint, .. } = seen(&mirrored.hash_key, entry) else { return None };
        mirrored.keys.get(&fingerprint).cloned()
    }

    /// A board says that its mirror is live and shows everything up to `published` (S21). These are the buckets of a key.
    pub(crate) fn mirror_has(&self, epoch: Epoch, published: Lsn, key: &Rc<[u8]>, entries: &[u8], place: &str) {
        let Some(acked) = self.tables.acked.get(&epoch) else { return };
        if published > *acked {
            broken("S21", format!("{place} has published {published}, and {acked} is acknowledged"));
        }
        let Some(shown) = self.revision_in(epoch, key, entries) else { return };
        let mut states = self.tables.states.range((epoch, published)..(epoch, acked.next()));
        if states.all(|(_, state)| state.get(key).map_or(0, |row| row.revision) != shown) {
            let name = key.escape_ascii();
            broken("S21", format!("{place} shows {name} at revision {shown} and has published {published}"));
        }
    }

    /// The revision that these entries show of a key; 0: absent. `None`: one of them does not verify, and may be its.
    fn revision_in(&self, epoch: Epoch, key: &[u8], entries: &[u8]) -> Option<u64> {
        let mirrored = self.tables.readers.mirrored.get(&epoch)?;
        let its = mirrored.fingerprint(key);
        let mut shown = 0;
        for entry in entries.chunks_exact(ENTRY) {
            match seen(&mirrored.hash_key, entry) {
                Seen::Unsound => return None,
                Seen::Entry { fingerprint, revision, .. } if fingerprint == its => shown = shown.max(revision),
                _ => {}
            }
        }
        Some(shown)
    }

    /// How a mirror differs from what the log folds to, if it does.
    pub(crate) fn mirror_differs(&self, epoch: Epoch, memory: &[u8]) -> Option<String> {
        let mirrored = self.tables.readers.mirrored.get(&epoch)?;
        let state = self.tables.at(epoch, self.tables.acked[&epoch])?;
        let all = mirrored.buckets.number() as usize * BUCKET;
        let entries: Vec<Seen> =
            memory.chunks_exact(ENTRY).take(all).map(|entry| seen(&mirrored.hash_key, entry)).collect();
        if entries.contains(&Seen::Unsound) {
            return Some("an entry does not verify".to_owned());
        }
        let mut shown = BTreeMap::new();
        for entry in entries {
            if let Seen::Entry { fingerprint, revision, .. } = entry
                && shown.insert(fingerprint, revision).is_some()
            {
                return Some("a key is there twice".to_owned());
            }
        }
        let right = state.iter().map(|(key, row)| (mirrored.fingerprint(key), row.revision));
        (shown != right.collect()).then(|| format!("{} keys are shown, and {} are right", shown.len(), state.len()))
    }

    /// An epoch trims these segments (S19), its clock running at so many thousandths of the true speed. `counted`: the mirrors
    /// that are written to, and what they show.
    pub(crate) fn mirrors_name(
        &mut self,
        (now, rate): (u64, u64),
        epoch: Epoch,
        segments: &BTreeSet<SegmentId>,
        counted: &[(HostNo, Vec<u8>)],
    ) {
        let Some(mirrored) = self.tables.readers.mirrored.get(&epoch) else { return };
        for entry in counted.iter().flat_map(|(_, memory)| memory.chunks_exact(ENTRY)) {
            if let Seen::Entry { segment, .. } = seen(&mirrored.hash_key, entry)
                && segments.contains(&segment)
            {
                broken("S19", format!("epoch {epoch} trims segment {segment}, which a mirror names"));
            }
        }
        let readers = &mut self.tables.readers;
        for segment in segments {
            let since = readers.named.get(&(epoch, *segment)).map(|named| (now - named) * rate / 1_000_000);
            if let Some(ms) = since.filter(|ms| ms + 1 < GRACE_MS) {
                broken("S19", format!("epoch {epoch} trims segment {segment}, which a mirror named {ms} ms ago"));
            }
            readers.trimmed.insert(*segment, counted.iter().map(|(no, _)| *no).collect());
        }
    }

    /// A getter has read a record of this segment where a mirror has named it not long ago (S19).
    pub(crate) fn record_is_read(&self, from: HostNo, segment: SegmentId, place: &impl std::fmt::Display) {
        if self.tables.readers.trimmed.get(&segment).is_some_and(|counted| counted.contains(&from)) {
            broken("S19", format!("a getter reads segment {segment} at {place}, and that is trimmed"));
        }
    }

    // ---- Answers --------------------------------------------------------------------------------------------------------

    /// A connection is over.
    pub(crate) fn connection_ends(&mut self, connection: u64) {
        self.tables.readers.connections.remove(&connection);
    }

    /// What a connection has been shown is as of this record.
    pub(crate) fn shown_to(&self, connection: u64) -> Lsn {
        self.tables.readers.connections.get(&connection).map_or(Lsn(0), |connection| connection.as_of)
    }

    /// A getter that knows of the epochs up to `won` has told an app what a key has (S20). `zeros`: the key's entry had rotted to
    /// zeros where it was read. Until it is written again the key reads as absent.
    pub(crate) fn table_told(
        &mut self,
        now: u64,
        won: Epoch,
        asked: &AskedElsewhere,
        told: &ToldElsewhere,
        zeros: bool,
    ) {
        let name = asked.key.escape_ascii().to_string();
        let timelines = &self.tables.readers.timelines;
        let newest = timelines.last().map_or(Epoch(0), |timeline| timeline.from);
        let Some(timeline) = timelines.iter().rfind(|timeline| timeline.from <= won).or(timelines.first()) else {
            broken("S20", format!("{name} is shown before there was a table"));
        };
        let (as_of, stale, shown) = match told {
            ToldElsewhere::Now { as_of, stale, shown } => (*as_of, *stale, shown.as_ref()),
            ToldElsewhere::Older(value) => {
                let had = |state: &Rc<State>| {
                    state.get(&asked.key).is_some_and(|row| row.value == *value || asked.no_value && value.is_empty())
                };
                if !asked.older || !timelines.iter().any(|timeline| timeline.states.values().any(had)) {
                    let why = if asked.older { "it has never been" } else { "nobody asked for" };
                    broken("S20", format!("{name} is shown with an older value, which {why}"));
                }
                return;
            }
        };
        let last = timeline.states.keys().next_back().copied().unwrap_or_default();
        let connection = self.tables.readers.connections.get(&asked.connection);
        let floor = connection.map_or(Lsn(0), |connection| connection.as_of).max(asked.least);
        if as_of < floor || as_of > last {
            let bounds = format!("{floor} was shown or asked for, {last} is acknowledged");
            broken("S20", format!("{name} is shown as of {as_of}, and {bounds}"));
        }
        if let Some(since) = asked.since.filter(|since| as_of < *since && timeline.from == newest) {
            broken("S20", format!("{name} is shown fresh as of {as_of}, and {since} was acknowledged before"));
        }
        // What is not stale covers everything that was acknowledged some time ago.
        let covers =
            if stale || timeline.from != newest { Lsn(0) } else { self.reached_before(now - STALE_AFTER.min(now)) };
        let before = connection.and_then(|connection| connection.states.get(&asked.key)).copied().unwrap_or_default();
        let is_so = |state: &Rc<State>| match (state.get(&asked.key), shown) {
            (None, None) => true,
            (Some(row), Some((revision, value))) => {
                let is_value = if asked.no_value { value.is_empty() } else { row.value == *value };
                row.revision == *revision && is_value
            }
            _ => false,
        };
        let from = as_of.max(before);
        let state = timeline.states.range(from..).find(|(_, state)| is_so(state)).map(|(lsn, _)| *lsn);
        let is_new = timeline.states.range(from.max(covers)..).any(|(_, state)| is_so(state));
        let window = zeros && shown.is_none();
        if !is_new && !window {
            let told = shown.as_ref().map_or_else(|| "absent".to_owned(), |(revision, _)| format!("at {revision}"));
            let why = match state {
                Some(state) => format!("which it was at {state}, and {covers} was acknowledged long before"),
                None => format!("which it is not from {from} on"),
            };
            broken("S20", format!("{name} is shown {told} as of {as_of}, {why}"));
        }
        let connection = self.tables.readers.connections.entry(asked.connection).or_default();
        connection.as_of = as_of;
        if let Some(state) = state {
            connection.states.insert(Rc::clone(&asked.key), state);
        }
    }
}
