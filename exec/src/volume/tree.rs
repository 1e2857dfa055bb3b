//! Which name stands for which number now: the events of inotify, folded in their order. Pure.
//!
//! An event names a file by a name that it had when the event was queued; by the time it is read, the name may be another
//! file's. So events are followed one by one, and what they leave open (a file that was made, one that comes from elsewhere) is
//! *unsure* until it is looked at. A look shows the present, of which the events that are still queued know nothing. So a name
//! that was looked at is *ahead* of the others until those events have been followed. Names that are all of one moment are in
//! the tree when no event that was queued before the looks [contradicts](Tree::contradicts) them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::record::{Name, Number};

/// A name in a directory.
pub(crate) type At = (Number, Name);

/// Names whose files are gone and may still be open: a program has no more descriptors. At the bound all are forgotten, and the
/// next event of one of them is an unknown name.
const DEPARTED_MAX: usize = 65_536;

/// What happened to a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Opened,
    /// A description that could write is gone.
    Closed,
    Created,
    Deleted,
    MovedFrom {
        cookie: u32,
    },
    MovedTo {
        cookie: u32,
    },
    /// Mode, owner, times or number of links.
    Attributes,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    Known(Number),
    /// Nobody has looked yet.
    Unknown {
        /// It may have had bytes before it came here: the name brings them.
        moved: bool,
    },
    /// A socket, a pipe, a device: not kept.
    Ignored,
}

/// What an event says about files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// A file may have another writer.
    Opened(Number),
    /// What a description wrote last is unknown.
    Closed(Number),
    /// A file that may never have been synced got another name.
    Moved(Number),
    /// A mode may be another one.
    Attributes(Number),
    /// A file that still exists has lost a name: events may come under it that belong to the file.
    Ragged(Number),
    /// Any file may have been opened or closed: look at everything.
    Lost,
}

#[derive(Default, Debug)]
pub(crate) struct Tree {
    entries: BTreeMap<At, Entry>,
    names: HashMap<Number, BTreeSet<At>>,
    /// Names that may not be in the log as they are now.
    touched: BTreeSet<At>,
    /// Names to look at.
    unsure: BTreeSet<At>,
    /// Names that were seen later than the events that were followed.
    seen: BTreeSet<At>,
    /// Directories that were listed later than those.
    listed: BTreeSet<Number>,
    /// On the way from one name to another.
    floating: Vec<Floating>,
    /// Numbers that have lost a name to a rename, and have others.
    fewer: BTreeSet<Number>,
    /// Names that were the last ones of their files.
    departed: HashSet<At>,
    /// Numbers that have lost their last name. They may get another one as long as events are missing.
    nameless: BTreeSet<Number>,
    /// A file may have several names.
    linked: bool,
    /// Two names may change places, which looks like two renames.
    exchanging: bool,
}

#[derive(Debug)]
struct Floating {
    cookie: u32,
    entry: Entry,
    /// It is what had the name when it was moved.
    certain: bool,
    since: Instant,
}

impl Tree {
    /// As the log has it.
    pub(crate) fn new(entries: impl IntoIterator<Item = (At, Number)>) -> Tree {
        let mut tree = Tree::default();
        for (at, number) in entries {
            tree.put(at, Entry::Known(number));
        }
        tree.linked = tree.names.values().any(|names| names.len() > 1);
        tree.touched.clear();
        tree
    }

    /// A file has a second name, or gets one.
    pub(crate) fn linked(&mut self) {
        self.linked = true;
    }

    /// The program exchanges names, or has done so.
    pub(crate) fn exchanging(&mut self) {
        self.exchanging = true;
    }

    pub(crate) fn entry(&self, at: &At) -> Option<Entry> {
        self.entries.get(at).copied()
    }

    /// The number that a name stands for.
    pub(crate) fn number(&self, at: &At) -> Option<Number> {
        match self.entry(at) {
            Some(Entry::Known(number)) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn names(&self, number: Number) -> impl Iterator<Item = &At> {
        self.names.get(&number).into_iter().flatten()
    }

    pub(crate) fn touched(&self) -> &BTreeSet<At> {
        &self.touched
    }

    /// The log has all names as they are, but for those that are left.
    pub(crate) fn logged(&mut self, left: BTreeSet<At>) {
        self.touched = left;
    }

    pub(crate) fn take_unsure(&mut self) -> BTreeSet<At> {
        std::mem::take(&mut self.unsure)
    }

    /// Something that has a number has left its name and has not come to another: the other event is on its way, or it has left
    /// the volume. What went to a directory that was not watched yet has been found there.
    pub(crate) fn is_floating(&mut self) -> bool {
        let (names, fewer) = (&self.names, &mut self.fewer);
        self.floating.retain(|floating| match floating.entry {
            Entry::Known(number) if names.contains_key(&number) => {
                fewer.insert(number);
                false
            }
            Entry::Known(_) => true,
            _ => false,
        });
        !self.floating.is_empty()
    }

    /// Numbers that have others of their names still, and one on its way that may have left the volume.
    pub(crate) fn take_fewer(&mut self) -> BTreeSet<Number> {
        std::mem::take(&mut self.fewer)
    }

    /// Those that have been on their way for so long.
    pub(crate) fn floating(&self, time: Duration) -> impl Iterator<Item = Number> {
        let due = self.floating.iter().filter(move |floating| floating.since.elapsed() >= time);
        due.filter_map(|floating| if let Entry::Known(number) = floating.entry { Some(number) } else { None })
    }

    /// It has left the volume.
    pub(crate) fn leaves(&mut self, number: Number) {
        self.floating.retain(|floating| floating.entry != Entry::Known(number));
    }

    /// Numbers that have no name any more.
    pub(crate) fn take_nameless(&mut self) -> Vec<Number> {
        let nameless = std::mem::take(&mut self.nameless);
        nameless.into_iter().filter(|number| self.names.get(number).is_none_or(BTreeSet::is_empty)).collect()
    }

    /// Forgets all names, before they are listed again.
    pub(crate) fn forget_entries(&mut self) {
        let entries: Vec<At> = self.entries.keys().cloned().collect();
        self.floating.clear();
        self.departed.clear();
        self.unsure.clear();
        for at in entries {
            self.take(&at);
            self.touched.insert(at);
        }
    }

    /// Somebody has to look what this name stands for. If nothing tells, it has come by a rename.
    pub(crate) fn doubt(&mut self, at: At) {
        self.entries.entry(at.clone()).or_insert(Entry::Unknown { moved: true });
        self.touched.insert(at.clone());
        self.unsure.insert(at);
    }

    /// It has been looked up.
    pub(crate) fn set(&mut self, at: At, found: Option<Entry>) {
        self.seen.insert(at.clone());
        if self.entry(&at) == found {
            return;
        }
        self.take(&at);
        self.touched.insert(at.clone());
        if let Some(entry) = found {
            self.put(at, entry);
        }
    }

    /// Somebody has to look at all other names of a number: it has fewer.
    pub(crate) fn doubt_others(&mut self, number: Number, at: &At) {
        let others = self.names.get(&number).into_iter().flatten().filter(|other| *other != at);
        self.unsure.extend(others.cloned());
    }

    /// The names of a directory are listed.
    pub(crate) fn list(&mut self, directory: Number) {
        self.listed.insert(directory);
    }

    /// Whether names have been looked at since the last event was followed.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.seen.is_empty() || !self.listed.is_empty()
    }

    fn is_name_ahead(&self, at: &At) -> bool {
        self.seen.contains(at) || self.listed.contains(&at.0)
    }

    /// Whether an event that has not been followed is of a name that may have been seen after it. With a list, any name may
    /// have come from the directory before it was watched.
    pub(crate) fn contradicts(&self, at: &At, what: What) -> bool {
        let names = !matches!(what, What::Opened | What::Closed | What::Attributes);
        names && (self.is_name_ahead(at) || !self.listed.is_empty())
    }

    /// All events that were queued before the last look have been followed.
    pub(crate) fn followed(&mut self) {
        self.seen.clear();
        self.listed.clear();
    }

    /// Takes one event.
    pub(crate) fn on_event(&mut self, at: At, what: What) -> impl Iterator<Item = Note> + use<> {
        let (mut left, mut moved) = (None, None);
        match what {
            What::Opened => left = self.user(&at).map(|user| user.map_or(Note::Lost, Note::Opened)),
            What::Closed => left = self.user(&at).map(|user| user.map_or(Note::Lost, Note::Closed)),
            What::Attributes => left = self.user(&at).map(|user| user.map_or(Note::Lost, Note::Attributes)),
            What::Created => {
                left = self.leave(&at);
                // No event tells a name that a file was given later from that of a new file.
                self.entries.insert(at.clone(), Entry::Unknown { moved: self.linked });
                self.doubt(at);
            }
            What::Deleted => {
                if self.is_name_ahead(&at) {
                    self.unsure.insert(at.clone());
                }
                left = self.leave(&at);
                self.touched.insert(at);
            }
            What::MovedFrom { cookie } => {
                let certain = !self.is_name_ahead(&at) && !self.unsure.contains(&at) && !self.exchanging;
                if !certain {
                    // What was seen there may have come later.
                    self.unsure.insert(at.clone());
                }
                let entry = self.take(&at).unwrap_or(Entry::Unknown { moved: true });
                self.floating.push(Floating { cookie, entry, certain, since: Instant::now() });
                self.touched.insert(at);
            }
            What::MovedTo { cookie } => {
                left = self.leave(&at);
                let place = self.floating.iter().position(|floating| floating.cookie == cookie);
                let (entry, certain) = match place.map(|place| self.floating.remove(place)) {
                    Some(Floating { entry: Entry::Unknown { .. }, .. }) | None => {
                        (Entry::Unknown { moved: true }, false)
                    }
                    Some(Floating { entry, certain, .. }) => (entry, certain),
                };
                if let Entry::Known(number) = entry {
                    moved = Some(Note::Moved(number));
                }
                self.put(at.clone(), entry);
                if !certain {
                    self.doubt(at);
                }
            }
        }
        left.into_iter().chain(moved)
    }

    /// The number behind a name that an event names: `None` if that concerns no file that is kept, `Some(None)` if it may be
    /// any.
    fn user(&self, at: &At) -> Option<Option<Number>> {
        match self.entry(at) {
            Some(Entry::Known(number)) => Some(Some(number)),
            // Whoever looks at it finds out all of it.
            Some(Entry::Unknown { .. } | Entry::Ignored) => None,
            // It was the only name of its file, which nobody misses; it went before a list was made, or while it was.
            None if !self.linked && (self.departed.contains(at) || self.listed.contains(&at.0)) => None,
            None => Some(None),
        }
    }

    /// The name ceases to stand for what it stood for.
    fn leave(&mut self, at: &At) -> Option<Note> {
        let entry = self.take(at);
        if self.departed.len() >= DEPARTED_MAX {
            self.departed.clear();
        }
        self.departed.insert(at.clone());
        match entry? {
            // Where no file has several names, one has been seen before the event of its move.
            Entry::Known(number) if self.linked && self.names(number).next().is_some() => Some(Note::Ragged(number)),
            // It may have been another name of any file, and opened under it.
            Entry::Unknown { .. } if self.linked => Some(Note::Lost),
            _ => None,
        }
    }

    fn take(&mut self, at: &At) -> Option<Entry> {
        let entry = self.entries.remove(at)?;
        if let Entry::Known(number) = entry {
            let names = self.names.entry(number).or_default();
            names.remove(at);
            if names.is_empty() {
                self.names.remove(&number);
                self.nameless.insert(number);
            }
        }
        Some(entry)
    }

    fn put(&mut self, at: At, entry: Entry) {
        self.departed.remove(&at);
        if let Entry::Known(number) = entry {
            self.names.entry(number).or_default().insert(at.clone());
        }
        self.touched.insert(at.clone());
        self.entries.insert(at, entry);
    }
}

#[cfg(test)]
mod tests;
