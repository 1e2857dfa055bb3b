//! The content of a table in an app's own memory, folded from the records of its log.
//!
//! Fed by [`Local`](crate::local::Local) with what a follow or tail hands out; asked by apps through a local table. Two maps: the
//! one that is shown, and while the log is folded from its first record on, one that takes its place when it has caught up. So an
//! app never sees a half of the table, and learns of the difference as changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::table::record::{KeyedRecord, Revision};

/// A key's value, and the revision that it has by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Arc<[u8]>,
    /// The LSN of the record that first held it.
    pub revision: Revision,
}

/// What a local table returns. The table shows a change, and all others of the same request, when it is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key has this value now.
    Put {
        /// The key.
        key: Arc<[u8]>,
        /// Its value and revision.
        entry: Entry,
    },
    /// The key is absent now.
    Deleted {
        /// The key.
        key: Arc<[u8]>,
    },
    /// Every record before `next` has been seen of which this sidecar knows that it is acknowledged; changes follow.
    CaughtUp {
        /// The record to come.
        next: Lsn,
    },
    /// How old the view is: unasked, at most twice a second, until the turn.
    Lag {
        /// The last acknowledged record that this sidecar knows.
        acked: Lsn,
        /// Everything that was acknowledged so long ago, and before, has been seen. `None` while that is unknown.
        behind: Option<Duration>,
        /// That is unknown, or longer than 300 ms.
        stale: bool,
    },
    /// The table shows every acknowledged record of earlier epochs, and this sidecar is primary. Changes follow, also its own.
    Turn {
        /// The epoch that it leads.
        epoch: Epoch,
        /// The record to come: that of the first request.
        next: Lsn,
    },
}

pub(crate) type Map = BTreeMap<Arc<[u8]>, Entry>;

/// Both maps, and the changes that have not been returned.
#[derive(Debug, Default)]
pub(crate) struct Content {
    prefix: Box<[u8]>,
    shown: Map,
    /// The last record that is shown.
    seen: Lsn,
    /// What takes the place of `shown`.
    rebuilt: Option<Map>,
    /// What a request does of which not all records have come.
    request: Vec<(Arc<[u8]>, Option<Entry>)>,
    due: VecDeque<Change>,
}

impl Content {
    /// Of the keys with this prefix, from the first record on.
    pub(crate) fn new(prefix: &[u8]) -> Content {
        Content { prefix: prefix.into(), rebuilt: Some(Map::new()), ..Content::default() }
    }

    pub(crate) fn shown(&self) -> &Map {
        &self.shown
    }

    pub(crate) fn seen(&self) -> Lsn {
        self.seen
    }

    pub(crate) fn take_change(&mut self) -> Option<Change> {
        self.due.pop_front()
    }

    /// Tells the app what is no record.
    pub(crate) fn tell(&mut self, change: Change) {
        self.due.push_back(change);
    }

    /// Begins again with the first record that there is; until that has caught up, what is shown stays.
    pub(crate) fn rebuild(&mut self) {
        self.request.clear();
        self.rebuilt = Some(Map::new());
    }

    /// The next record. What is not keyed changes no key.
    pub(crate) fn record(&mut self, lsn: Lsn, payload: &[u8]) {
        if let Ok(record) = KeyedRecord::decode(payload, lsn) {
            let key = record.key().as_bytes();
            if key.starts_with(&self.prefix) {
                let entry = record.value().zip(record.revision(lsn));
                let entry = entry.map(|(value, revision)| Entry { value: value.as_bytes().into(), revision });
                self.request.push((key.into(), entry));
            }
            if record.has_more() {
                return;
            }
        }
        match &mut self.rebuilt {
            Some(rebuilt) => {
                for (key, entry) in self.request.drain(..) {
                    match entry {
                        Some(entry) => rebuilt.insert(key, entry),
                        None => rebuilt.remove(&key),
                    };
                }
            }
            None => {
                for (key, entry) in self.request.drain(..) {
                    self.due.extend(change(&mut self.shown, key, entry));
                }
                self.seen = lsn;
            }
        }
    }

    /// Every record before `next` has come. What was rebuilt is shown from here on.
    pub(crate) fn caught_up(&mut self, next: Lsn) {
        if let Some(rebuilt) = self.rebuilt.take() {
            let gone = self.shown.keys().filter(|key| !rebuilt.contains_key(*key));
            self.due.extend(gone.map(|key| Change::Deleted { key: Arc::clone(key) }));
            // Values are compared too: after an accepted loss other records have the same LSNs.
            let new = rebuilt.iter().filter(|(key, entry)| self.shown.get(*key) != Some(entry));
            self.due.extend(new.map(|(key, entry)| Change::Put { key: Arc::clone(key), entry: entry.clone() }));
            self.shown = rebuilt;
            // After an accepted loss that may be before what was seen.
            self.seen = next.prev();
        }
        self.seen = self.seen.max(next.prev());
    }
}

/// Changes a key in the map that is shown; `None` if nothing is different: a move, or a delete of what is absent.
fn change(shown: &mut Map, key: Arc<[u8]>, entry: Option<Entry>) -> Option<Change> {
    match entry {
        Some(entry) if shown.get(&key).is_some_and(|now| now.revision == entry.revision) => None,
        Some(entry) => {
            shown.insert(Arc::clone(&key), entry.clone());
            Some(Change::Put { key, entry })
        }
        None => shown.remove(&key).map(|_| Change::Deleted { key }),
    }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::segment::Payload;
    use tailwind_protocol::table::record::{Key, Value};

    use super::*;

    /// A few keys and values, written, moved and trimmed at random, from a seed.
    struct Log {
        random: u64,
        records: Vec<(Lsn, Vec<u8>)>,
        next: Lsn,
        /// What the table has after all records.
        table: BTreeMap<String, (String, Revision)>,
    }

    impl Log {
        fn choose(&mut self, below: u64) -> u64 {
            self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.random >> 33) % below
        }

        fn append(&mut self, record: KeyedRecord<'_>) {
            let mut payload = vec![0; record.payload_size()];
            record.copy_to(&mut payload);
            self.records.push((self.next, payload));
            self.next = self.next.next();
        }

        /// A request with up to three writes of different keys.
        fn request(&mut self) {
            let (first, count) = (self.choose(6), 1 + self.choose(3));
            for nth in 0..count {
                let name = format!("{}{}", ["in/", "out/"][(first + nth) as usize % 2], (first + nth) % 6);
                let key = Key::new(name.as_bytes()).expect("short");
                let more = nth + 1 < count;
                if self.choose(3) == 0 {
                    self.table.remove(&name);
                    self.append(KeyedRecord::Delete { key, more });
                } else {
                    let text = self.next.to_string();
                    let revision = Revision::of(self.next).expect("not 0");
                    self.table.insert(name.clone(), (text.clone(), revision));
                    self.append(KeyedRecord::Put { key, value: Value::new(text.as_bytes()).expect("short"), more });
                }
            }
        }

        /// Appends live records again, and forgets what was before.
        fn clean(&mut self) {
            let behind = self.records.len();
            for (name, (text, revision)) in self.table.clone() {
                let key = Key::new(name.as_bytes()).expect("short");
                let value = Value::new(text.as_bytes()).expect("short");
                self.append(KeyedRecord::Move { key, value, revision });
            }
            self.records.drain(..behind);
        }
    }

    fn table_of(content: &Content) -> BTreeMap<String, (String, Revision)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let shown = content.shown().iter();
        shown.map(|(key, entry)| (text(key), (text(&entry.value), entry.revision))).collect()
    }

    /// Also when records were missed and all is folded again, the table is the one that the log makes. The changes make it too.
    #[test]
    fn the_content_and_its_changes_are_the_tables() {
        for seed in 0..200 {
            let mut log = Log { random: seed, records: vec![], next: Lsn(1), table: BTreeMap::new() };
            let mut content = Content::new(b"in/");
            let mut told = Map::new();
            let mut read = Lsn(1);
            for _ in 0..60 {
                match log.choose(10) {
                    0 => log.clean(),
                    1..6 => log.request(),
                    _ => {
                        let first = log.records.first().map_or(log.next, |(lsn, _)| *lsn);
                        if read < first {
                            content.rebuild();
                            read = first;
                        }
                        for (lsn, payload) in log.records.iter().filter(|(lsn, _)| *lsn >= read) {
                            content.record(*lsn, payload);
                        }
                        read = log.next;
                        content.caught_up(read);
                        let inside = log.table.iter().filter(|(key, _)| key.starts_with("in/"));
                        let expected = inside.map(|(key, value)| (key.clone(), value.clone())).collect();
                        assert_eq!(table_of(&content), expected, "seed {seed}");
                        assert_eq!(content.seen(), read.prev(), "seed {seed}");
                    }
                }
                while let Some(next) = content.take_change() {
                    match next {
                        Change::Put { key, entry } => {
                            assert_ne!(told.insert(key, entry.clone()), Some(entry), "seed {seed}");
                        }
                        Change::Deleted { key } => assert!(told.remove(&key).is_some(), "seed {seed}"),
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!(&told, content.shown(), "seed {seed}");
            }
        }
    }
}
