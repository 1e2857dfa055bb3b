//! The keys and values, and what each write does to them.
//!
//! [`term`](crate::term) applies acknowledged writes, [`replay`](crate::replay) those of the log: the same writes in the same
//! order give the same keys and the same replies. Pure: no clock, no I/O.
//!
//! # Time
//! Whether a key has expired is decided by the store's clock, which writes set forward: each record holds the time at which
//! it was made, and the clock is the latest so far. At the primary reads set it forward too, but only while no record is on its
//! way (see [`term`](crate::term)), so that a key that was seen as gone is not there again for a later write. A standby never
//! knows which records are on their way, so it does not: its reads look at the keys as of now, and the keys stay what the log
//! makes of them. After a failover the new primary's own clock counts: a key may live longer or shorter by as much as the
//! clocks of two hosts differ.

mod read;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::command::{Condition, Write, number};
use crate::limits::{ENTRY_COST, SWEEP_PER_WRITE, VALUE_SIZE_MAX};
use crate::resp::Reply;

pub use snapshot::Gather;
use snapshot::Snapshot;

/// Where a key stands: by its hash, so that a number says how far a `SCAN` is, even if keys are added or removed during it.
type Place = (u64, Bytes);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Bytes,
    deadline: Option<u64>,
}

/// Keys and values.
#[derive(Debug, Default)]
pub struct Store {
    entries: BTreeMap<Place, Entry>,
    /// The keys that have a deadline, by it.
    deadlines: BTreeSet<(u64, Place)>,
    bytes: usize,
    clock: u64,
    /// The snapshot that is being written, if one is.
    snapshot: Option<Snapshot>,
}

impl Store {
    /// How many keys there are, expired ones that have not been removed yet included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What they take, with [`ENTRY_COST`] for each.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The time that decides what has expired.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Sets the clock forward. The caller knows that no write with an earlier time is to come.
    pub fn set_clock(&mut self, now: u64) {
        self.clock = self.clock.max(now);
    }

    /// Removes up to `max` expired keys. Nobody can tell: they counted as absent already.
    pub fn sweep(&mut self, max: usize) {
        for _ in 0..max {
            match self.deadlines.first() {
                Some((deadline, place)) if *deadline <= self.clock => {
                    let place = place.clone();
                    self.remove(&place);
                }
                _ => return,
            }
        }
    }

    /// What a client sees: the keys that live at this time, with values and deadlines, in order.
    pub fn contents(&self, now: u64) -> impl Iterator<Item = (&Bytes, &Bytes, Option<u64>)> {
        let living = self.entries.iter().filter(move |(_, entry)| entry.lives(now));
        living.map(|((_, key), entry)| (key, &entry.value, entry.deadline))
    }

    /// Carries out one write that the log holds. `stamp`: when it was made.
    pub fn apply(&mut self, stamp: u64, write: &Write) -> Reply {
        self.set_clock(stamp);
        self.sweep(SWEEP_PER_WRITE);
        match write {
            Write::Set { .. } => self.set(write),
            Write::SetMany(pairs) => {
                for (key, value) in pairs {
                    self.put(place(key), Entry { value: owned(value), deadline: None });
                }
                Reply::OK
            }
            Write::Delete(keys) => Reply::count(keys.iter().filter(|key| self.delete(key)).count()),
            Write::Add { key, amount } => self.add(key, *amount),
            Write::Append { key, value } => self.append(key, value),
            Write::Expire { key, deadline } => self.expire(key, *deadline),
            Write::Persist(key) => self.persist(key),
            Write::Flush => {
                self.flush();
                Reply::OK
            }
        }
    }

    fn set(&mut self, write: &Write) -> Reply {
        let Write::Set { key, value, deadline, keep_deadline, condition, get } = write else {
            unreachable!("called for a set")
        };
        let place = place(key);
        let old = self.living(&place, self.clock);
        let fits = match condition {
            Condition::Always => true,
            Condition::IfAbsent => old.is_none(),
            Condition::IfPresent => old.is_some(),
        };
        let reply = match (get, old) {
            (true, Some(old)) => Reply::Bulk(old.value.clone()),
            (false, _) if fits => Reply::OK,
            _ => Reply::Nil,
        };
        if fits {
            let kept = old.and_then(|old| old.deadline).filter(|_| *keep_deadline);
            self.put(place, Entry { value: owned(value), deadline: deadline.or(kept) });
        }
        reply
    }

    fn delete(&mut self, key: &Bytes) -> bool {
        let place = place(key);
        let lived = self.living(&place, self.clock).is_some();
        self.remove(&place);
        lived
    }

    fn add(&mut self, key: &Bytes, amount: i64) -> Reply {
        let place = place(key);
        let (before, deadline) = match self.living(&place, self.clock) {
            None => (Some(0), None),
            Some(old) => (number(&old.value), old.deadline),
        };
        let Some(before) = before else { return Reply::error("ERR value is not an integer or out of range") };
        let Some(after) = before.checked_add(amount) else {
            return Reply::error("ERR increment or decrement would overflow");
        };
        self.put(place, Entry { value: Bytes::from(after.to_string()), deadline });
        Reply::Integer(after)
    }

    fn append(&mut self, key: &Bytes, value: &Bytes) -> Reply {
        let place = place(key);
        let (before, deadline) = match self.living(&place, self.clock) {
            None => (Bytes::new(), None),
            Some(old) => (old.value.clone(), old.deadline),
        };
        let size = before.len() + value.len();
        if size > VALUE_SIZE_MAX {
            return Reply::error(format!("ERR value would have {size} bytes: the limit is {VALUE_SIZE_MAX}"));
        }
        self.put(place, Entry { value: [before, value.clone()].concat().into(), deadline });
        Reply::count(size)
    }

    fn expire(&mut self, key: &Bytes, deadline: u64) -> Reply {
        let place = place(key);
        let Some(old) = self.living(&place, self.clock) else { return Reply::flag(false) };
        let value = old.value.clone();
        if deadline <= self.clock {
            self.remove(&place);
        } else {
            self.put(place, Entry { value, deadline: Some(deadline) });
        }
        Reply::flag(true)
    }

    fn persist(&mut self, key: &Bytes) -> Reply {
        let place = place(key);
        let Some(Entry { value, deadline: Some(_) }) = self.living(&place, self.clock) else {
            return Reply::flag(false);
        };
        let value = value.clone();
        self.put(place, Entry { value, deadline: None });
        Reply::flag(true)
    }

    /// A snapshot under way need not keep what goes here: its reader will come to this write and forget it too.
    fn flush(&mut self) {
        self.entries.clear();
        self.deadlines.clear();
        self.bytes = 0;
    }

    /// The entry that a client sees at this time.
    fn living(&self, place: &Place, now: u64) -> Option<&Entry> {
        self.entries.get(place).filter(|entry| entry.lives(now))
    }

    /// All entries come in through here.
    fn put(&mut self, place: Place, entry: Entry) {
        self.remove(&place);
        // The key may be a part of a client's command, which would stay in memory as a whole.
        let place = (place.0, owned(&place.1));
        if let Some(deadline) = entry.deadline {
            self.deadlines.insert((deadline, place.clone()));
        }
        self.bytes += cost(&place, &entry);
        self.entries.insert(place, entry);
    }

    /// And go out through here.
    fn remove(&mut self, place: &Place) {
        let old = self.entries.remove(place);
        if let Some(old) = &old {
            self.bytes -= cost(place, old);
            if let Some(deadline) = old.deadline {
                self.deadlines.remove(&(deadline, place.clone()));
            }
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.keep(place, old);
        }
    }
}

impl Entry {
    fn lives(&self, now: u64) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

fn cost((_, key): &Place, entry: &Entry) -> usize {
    key.len() + entry.value.len() + ENTRY_COST
}

fn owned(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// FNV-1a, and a last mixing because keys often differ in their last byte only. The same on every host and in every
/// version, so that a `SCAN` may continue at another primary.
fn place(key: &Bytes) -> Place {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    // The highest number is left out, because a scan continues with the next one.
    ((hash ^ (hash >> 32)).min(u64::MAX - 1), key.clone())
}

#[cfg(test)]
mod tests;
