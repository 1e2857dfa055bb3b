//! What is checked after a step.

use tailwind_protocol::table::acked::{LINE_ENTRIES, LINE_SIZE};
use tailwind_protocol::table::entry::{ENTRY_SIZE, Entry, EntryBytes, Unsound};
use tailwind_protocol::table::index::{Full, Limits};
use tailwind_protocol::table::record::Revision;
use tailwind_protocol::table::request::Apply;

use super::{World, key, unless};
use crate::table::model::{Model, parse, says};

impl World {
    pub(super) fn check_log(&self, last: u64) -> Result<(), String> {
        says(self.log.payloads(last), &self.model.acked).map_err(|why| format!("S18: {why}"))
    }

    /// What the index says of one key, or of all.
    pub(super) fn check_views(&mut self, all: bool) -> Result<(), String> {
        let some = self.random.below(self.names.len() as u64) as usize;
        let names = if all { &self.names[..] } else { &self.names[some..=some] };
        let end = self.log.open().id();
        for name in names {
            let latest = self.index.latest(key(name));
            let shown = self.index.acknowledged(key(name));
            let length = shown.map(|present| present.length as usize);
            let latest = latest.map(|latest| (latest.revision, latest.place));
            let shown = shown.and_then(|shown| Some((shown.revision, shown.word.new_place()?)));
            for (view, state, seen) in
                [("appended", &self.model.appended, latest), ("acknowledged", &self.model.acked, shown)]
            {
                let row = state.get(name).map(|(value, revision)| (&value[..], *revision));
                let found = seen.and_then(|(revision, place)| {
                    let (lsn, payload) = self.log.record_at(self.index.window().position(place, end)?)?;
                    let (of, row) = parse(lsn, payload);
                    let fits = view == "appended" || length == Some(payload.len());
                    row.filter(|row| of == name && row.1 == Revision::number(Some(revision)) && fits)
                });
                let both = |row: Option<(&[u8], u64)>| row.map(|(value, revision)| (value.len(), revision));
                unless(found == row && seen.is_some() == row.is_some(), || {
                    format!("views: {view} {}: {seen:?} is {:?}, not {:?}", name.escape_ascii(), both(found), both(row))
                })?;
            }
        }
        unless(self.index.keys() as usize == self.model.appended.len(), || "views: number of keys".to_owned())?;
        unless(!all || self.index.live_bytes() == self.model.live_bytes() as u64, || "views: live bytes".to_owned())
    }

    /// A mirror's thread, or its card, copies an entry word by word while it changes.
    pub(super) fn check_torn(&mut self, old: &[u8; LINE_SIZE], new: &[u8; LINE_SIZE]) -> Result<(), String> {
        let seed = self.index.acked_view().hash_key().seed();
        for at in 0..LINE_ENTRIES as usize {
            let mut torn = *old;
            for (to, from) in torn.chunks_exact_mut(8).zip(new.chunks_exact(8)) {
                if self.random.below(2) == 0 {
                    to.copy_from_slice(from);
                }
            }
            let found = entry(&torn, at, seed);
            let either = [entry(old, at, seed), entry(new, at, seed)];
            unless(found.is_err() || either.contains(&found), || format!("torn: {found:?} is none of {either:?}"))?;
        }
        Ok(())
    }
}

pub(super) fn entry(line: &[u8; LINE_SIZE], at: usize, seed: u32) -> Result<Option<Entry>, Unsound> {
    let bytes: &EntryBytes = line[at * ENTRY_SIZE..].first_chunk().expect("an entry");
    Entry::decode(bytes, seed)
}

/// A table that says that it is full is.
pub(super) fn check_full(full: Full, model: &Model, apply: &Apply<'_>, limits: &Limits) -> Result<(), String> {
    let (keys, bytes) = model.sizes_after(apply.operations());
    let is_full = match full {
        Full::Keys => keys > limits.keys_max as usize && keys > model.appended.len(),
        Full::Memory => bytes as u64 > limits.live_bytes_max && bytes > model.live_bytes(),
        Full::Buckets => keys > model.appended.len() || model.appended.len() > limits.buckets.entries() as usize / 2,
    };
    unless(is_full, || format!("judged: {full:?} with {keys} keys and {bytes} bytes"))
}
