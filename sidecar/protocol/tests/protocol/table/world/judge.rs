//! What mirrors and answers must be. Entries are read here from their bytes, and answers are compared with the states that each
//! key has had.

use tailwind_protocol::board::LINE_SIZE as BOARD_LINE;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::table::acked::LINE_SIZE;
use tailwind_protocol::table::cleaner::GRACE_MS;
use tailwind_protocol::table::getter::GetId;
use tailwind_protocol::table::mirror::{LOST_AFTER_MS, MirrorId};
use tailwind_protocol::table::place::Place;

use super::reading::{Given, Member};
use super::{World, key, unless};
use crate::table::model::parse;

/// What 32 bytes of a mirror say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Unsound,
    /// Fingerprint, bits of the new place, revision, length.
    Entry(u64, u32, u64, u32),
}

fn int(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn crc(hash_key: &[u8; 16], entry: &[u8]) -> u32 {
    crc32fast::hash(&[&hash_key[..], &entry[..28]].concat())
}

fn seen(hash_key: &[u8; 16], entry: &[u8]) -> Seen {
    if entry.iter().all(|byte| *byte == 0) {
        return Seen::Nothing;
    }
    if int(&entry[28..]) != u64::from(crc(hash_key, entry)) {
        return Seen::Unsound;
    }
    let word = int(&entry[8..16]);
    let new = if word >> 63 == 1 { word >> 32 & 0x7fff_ffff } else { word & 0x7fff_ffff };
    Seen::Entry(int(&entry[..8]), new as u32, int(&entry[16..24]), int(&entry[24..28]) as u32)
}

impl World {
    fn hash_key(&self) -> [u8; 16] {
        self.index.acked_view().hash_key().0
    }

    fn fingerprint(&self, name: usize) -> u64 {
        self.index.acked_view().hash_key().hash(key(&self.names[name])).fingerprint().0.get()
    }

    fn entries(&self, memory: &[u8]) -> Vec<Seen> {
        let hash_key = self.hash_key();
        memory.chunks_exact(32).map(|entry| seen(&hash_key, entry)).collect()
    }

    /// Which segment an entry names.
    fn segment_of(&self, place: u32) -> Option<SegmentId> {
        let end = self.log.open().id();
        Place::from_bits(place).and_then(|place| self.index.window().position(place, end)).map(|at| at.segment)
    }

    /// In a world of twins the second key's entry has the first one's fingerprint.
    pub(super) fn make_twins(&self, line: &mut [u8; LINE_SIZE]) {
        let (hash_key, first, second) = (self.hash_key(), self.fingerprint(0), self.fingerprint(1));
        for entry in line.chunks_exact_mut(32) {
            if matches!(seen(&hash_key, entry), Seen::Entry(fingerprint, ..) if fingerprint == second) {
                entry[..8].copy_from_slice(&first.to_le_bytes());
                let crc = crc(&hash_key, entry);
                entry[28..].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }

    /// The first of a key's states, from this one on, that it had after record `as_of` or later, with this revision; 0: absent.
    fn possible(&self, name: usize, as_of: u64, from: usize, revision: u64) -> Option<usize> {
        let history = self.model.history.get(&self.names[name]).map_or(&[][..], |history| history);
        (from..=history.len()).find(|state| {
            let lasts = history.get(*state).is_none_or(|next| next.0 > as_of);
            let had = state.checked_sub(1).and_then(|state| history[state].1.as_ref()).map_or(0, |row| row.1);
            lasts && had == revision
        })
    }

    /// The value that a key had with this revision.
    fn value(&self, name: usize, revision: u64) -> Option<&[u8]> {
        let history = self.model.history.get(&self.names[name])?;
        history.iter().filter_map(|(_, row)| row.as_ref()).find(|row| row.1 == revision).map(|row| &row.0[..])
    }

    // ---- Mirrors --------------------------------------------------------------------------------------------------------

    /// Each entry of each mirror names an acknowledged record of its key.
    pub(super) fn check_mirrors(&self) -> Result<(), String> {
        let reading = self.reading.as_ref().expect("a world with readers");
        for (number, member) in reading.members.iter().enumerate() {
            for entry in self.entries(&member.memory) {
                let Seen::Entry(fingerprint, place, revision, length) = entry else { continue };
                if (place, revision, length) != (0, 0, 0) {
                    let right = self.is_acknowledged(fingerprint, place, revision, length);
                    unless(right, || format!("S21: member {number} shows {entry:?}, which was never acknowledged"))?;
                }
            }
            self.check_published(number)?;
        }
        Ok(())
    }

    fn is_acknowledged(&self, fingerprint: u64, place: u32, revision: u64, length: u32) -> bool {
        let twins = self.reading.as_ref().is_some_and(|reading| reading.nature.twins);
        let end = self.log.open().id();
        let position = Place::from_bits(place).and_then(|place| self.index.window().position(place, end));
        (0..self.names.len()).any(|name| {
            let same =
                self.fingerprint(name) == fingerprint || twins && name == 1 && self.fingerprint(0) == fingerprint;
            same && self.value(name, revision).is_some_and(|value| {
                // It may be trimmed.
                let record = position.and_then(|position| self.log.record_at(position));
                value.len() + self.names[name].len() + 16 == length as usize
                    && record.is_none_or(|(lsn, payload)| {
                        let (of, row) = parse(lsn, payload);
                        of == self.names[name] && row.is_some_and(|row| row.1 == revision)
                    })
            })
        })
    }

    /// A mirror that a board calls live shows all that is published.
    pub(super) fn check_published(&self, number: usize) -> Result<(), String> {
        let reading = self.reading.as_ref().expect("a world with readers");
        let member = &reading.members[number];
        let line = &member.board[2 * BOARD_LINE..];
        let crc = crc32fast::hash(&[&self.identity().encode()[8..40], &line[..60]].concat());
        if line[32] != 2 || int(&line[60..]) != u64::from(crc) {
            return Ok(());
        }
        let published = int(&line[..8]);
        unless(published <= self.log.acked, || "S21: published beyond what is acknowledged".to_owned())?;
        let view = self.index.acked_view();
        let first = if reading.nature.twins { 2 } else { 0 };
        for name in first..self.names.len() {
            let buckets = view.buckets().of(view.hash_key().hash(key(&self.names[name])));
            let bytes = buckets.map(|bucket| &member.memory[bucket as usize * 256..][..256]).concat();
            let entries = self.entries(&bytes);
            if entries.contains(&Seen::Unsound) {
                continue;
            }
            let of_it = entries.iter().filter_map(|entry| match entry {
                Seen::Entry(fingerprint, _, revision, _) if *fingerprint == self.fingerprint(name) => Some(*revision),
                _ => None,
            });
            let shown = of_it.max().unwrap_or(0);
            let possible = self.possible(name, published, 0, shown);
            unless(possible.is_some(), || {
                format!("S21: member {number} shows key {name} with revision {shown}, published {published}")
            })?;
        }
        Ok(())
    }

    /// What a line of a mirror names before it is written.
    pub(super) fn name_segments(&mut self, id: MirrorId, begin: usize, now: Time) {
        let reading = self.reading.as_ref().expect("a world with readers");
        let Some(member) = reading.members.iter().find(|member| member.mirror == id) else { return };
        if member.memory.is_empty() || member.stale {
            return;
        }
        self.name_all(member.memory[begin..begin + LINE_SIZE].to_vec(), now);
    }

    pub(super) fn name_all(&mut self, memory: Vec<u8>, now: Time) {
        for entry in self.entries(&memory) {
            if let Seen::Entry(_, place, ..) = entry
                && let Some(segment) = self.segment_of(place)
            {
                self.reading().named.insert(segment, now);
            }
        }
    }

    /// A segment is trimmed.
    pub(super) fn check_trimmed(&self, segment: SegmentId) -> Result<(), String> {
        let Some(reading) = &self.reading else { return Ok(()) };
        let written = |member: &&Member| {
            let lost = member.lost.is_some_and(|since| since.plus(LOST_AFTER_MS) <= self.now);
            !lost && !member.stale
        };
        for member in reading.members.iter().filter(written) {
            let names =
                |entry: &Seen| matches!(entry, Seen::Entry(_, place, ..) if self.segment_of(*place) == Some(segment));
            let named = self.entries(&member.memory).iter().any(names);
            unless(!named, || format!("S19: a member's mirror names segment {segment}, which is trimmed"))?;
        }
        let since = reading.named.get(&segment).map(|named| self.now.0 - named.0);
        unless(since.is_none_or(|ms| ms >= GRACE_MS), || {
            format!("S19: a mirror named segment {segment} {since:?} ms ago")
        })
    }

    // ---- Answers --------------------------------------------------------------------------------------------------------

    pub(super) fn check_answer(&mut self, get: GetId, given: &Given) -> Result<(), String> {
        let Some(asked) = self.reading().asked.remove(&get) else {
            return Err(format!("S20: {get:?} is answered twice, {given:?}"));
        };
        let (name, connection) = (asked.name, asked.connection);
        let (revision, as_of) = match given {
            Given::Unavailable => {
                self.reading().tally.unavailable += 1;
                return Ok(());
            }
            Given::Older { value } => {
                self.reading().tally.older += 1;
                let history = self.model.history.get(&self.names[name]).map_or(&[][..], |history| history);
                let had = history.iter().any(|(_, row)| row.as_ref().is_some_and(|row| *row.0 == **value));
                return unless(had, || format!("S20: key {name} never had the older value"));
            }
            Given::Absent { as_of } => {
                self.reading().tally.absent += 1;
                (0, *as_of)
            }
            Given::Value { revision, value, as_of } => {
                self.reading().tally.values += 1;
                let had = self.value(name, *revision) == Some(value);
                unless(had, || format!("S20: key {name} never had revision {revision} with the value given"))?;
                (*revision, *as_of)
            }
        };
        let acked = self.log.acked;
        unless(as_of >= asked.least && as_of <= acked, || {
            format!("S20: as of {as_of}, asked for {}, acknowledged {acked}", asked.least)
        })?;
        let reading = self.reading();
        let before = reading.as_of.insert(connection, as_of).unwrap_or(0);
        unless(as_of >= before, || format!("S20: as of {as_of} after {before} on one connection"))?;
        let last = self.reading().shown.get(&(connection, name)).copied().unwrap_or(0);
        let Some(state) = self.possible(name, as_of, last, revision) else {
            let history = &self.model.history.get(&self.names[name]);
            let history: Vec<_> = history.iter().flat_map(|history| history.iter()).map(|state| state.0).collect();
            return Err(format!(
                "S20: key {name} has revision {revision} as of {as_of}, after state {last} of {history:?}"
            ));
        };
        self.reading().shown.insert((connection, name), state);
        Ok(())
    }

    /// The line of a mirror that a member's board has now is a live one's.
    pub(super) fn is_live(&self, number: usize) -> bool {
        let reading = self.reading.as_ref().expect("a world with readers");
        reading.members[number].board[2 * BOARD_LINE + 32] == 2
    }
}
