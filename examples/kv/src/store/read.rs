//! What reads find in the store.

use std::ops::Bound;

use bytes::Bytes;

use super::{Store, place};
use crate::command::Read;
use crate::glob;
use crate::resp::Reply;

impl Store {
    /// Answers a read. `now` decides what has expired, unless the store's clock is ahead of it, and leaves that clock alone.
    /// `copies`: how many backups have every write that has been applied.
    pub fn read(&self, read: &Read, now: u64, copies: usize) -> Reply {
        let now = self.clock.max(now);
        let value = |key: &Bytes| self.living(&place(key), now).map(|entry| &entry.value);
        let bulk = |key: &Bytes| value(key).map_or(Reply::Nil, |value| Reply::Bulk(value.clone()));
        match read {
            Read::Get(key) => bulk(key),
            Read::GetMany(keys) => Reply::Array(keys.iter().map(bulk).collect()),
            Read::Exists(keys) => Reply::count(keys.iter().filter(|key| value(key).is_some()).count()),
            Read::Length(key) => Reply::count(value(key).map_or(0, Bytes::len)),
            Read::TimeLeft { key, millis } => self.time_left(key, *millis, now),
            Read::Type(key) => Reply::Simple(if value(key).is_some() { "string" } else { "none" }),
            Read::Keys(pattern) => {
                let wanted = self.contents(now).filter(|(key, ..)| glob::matches(pattern, key));
                Reply::Array(wanted.map(|(key, ..)| Reply::Bulk(key.clone())).collect())
            }
            Read::Scan { cursor, pattern, count, strings } => {
                self.scan(*cursor, pattern.as_ref(), *count, *strings, now)
            }
            Read::Size => Reply::count(self.len()),
            Read::Copies => Reply::count(copies),
        }
    }

    /// -2: no such key; -1: it stays.
    fn time_left(&self, key: &Bytes, millis: bool, now: u64) -> Reply {
        let Some(entry) = self.living(&place(key), now) else { return Reply::Integer(-2) };
        let Some(deadline) = entry.deadline else { return Reply::Integer(-1) };
        let left = deadline - now;
        let left = if millis { left } else { left.div_ceil(1000) };
        Reply::Integer(i64::try_from(left).unwrap_or(i64::MAX))
    }

    /// Keys in the order of their hashes. Those with one hash come in one step, regardless of the count, so that a hash is
    /// enough to continue.
    fn scan(&self, cursor: u64, pattern: Option<&Bytes>, count: u64, strings: bool, now: u64) -> Reply {
        let (mut found, mut visited, mut next) = (Vec::new(), 0, 0);
        let mut last = None;
        for ((hash, key), entry) in self.entries.range((Bound::Included((cursor, Bytes::new())), Bound::Unbounded)) {
            if visited >= count && last != Some(*hash) {
                next = *hash;
                break;
            }
            (visited, last) = (visited + 1, Some(*hash));
            let wanted = strings && pattern.is_none_or(|pattern| glob::matches(pattern, key));
            if wanted && entry.lives(now) {
                found.push(Reply::Bulk(key.clone()));
            }
        }
        Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(found)])
    }
}
