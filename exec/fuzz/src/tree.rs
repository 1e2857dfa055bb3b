//! A directory and its stage in memory, which can do what a file system can do and no more. It takes the operations of a fold,
//! and knows from the records themselves what must come of them.

use std::collections::{BTreeMap, BTreeSet};

use tailwind_exec::image::{Image, Operation};
use tailwind_exec::record::{Change, FILE_SIZE_MAX, Fact, Kind, Mode, Name, Number, Record};

type At = (Number, Name);

/// What the operations have made, and what the records have said.
pub(crate) struct Tree {
    nodes: BTreeMap<Number, (Kind, u64)>,
    entries: BTreeMap<At, Number>,
    /// Files without a name.
    stage: BTreeSet<Number>,
    said: Said,
}

/// The records' own words.
#[derive(Default)]
struct Said {
    names: BTreeMap<At, Number>,
    modes: BTreeMap<Number, Mode>,
    /// The changes of a group that has not ended.
    changes: Vec<Change>,
    /// The facts of a state with which the fold may begin.
    facts: Option<Vec<Fact>>,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree {
            nodes: BTreeMap::from([(Number::ROOT, (Kind::Directory, 0))]),
            entries: BTreeMap::new(),
            stage: BTreeSet::new(),
            said: Said { modes: BTreeMap::from([(Number::ROOT, Mode(0o755))]), ..Said::default() },
        }
    }
}

impl Tree {
    /// Does what a file system would do, and panics where that would fail.
    pub(crate) fn carry_out(&mut self, operation: &Operation<'_>) {
        match operation {
            Operation::Make { number, kind } => {
                assert_eq!(self.nodes.insert(*number, (kind.clone(), 0)), None, "{number} is there");
                self.stage.insert(*number);
            }
            Operation::Write { file, offset, bytes } => self.grow(*file, *offset, bytes.len() as u64),
            Operation::Zero { file, offset, length } => self.grow(*file, *offset, *length),
            Operation::Resize { file, length } => {
                assert!(*length <= FILE_SIZE_MAX);
                *self.length(*file) = *length;
            }
            Operation::Detach { from, number } => {
                assert_eq!(self.entries.remove(from), Some(*number), "{from:?} is another one");
                assert_eq!(self.names(*number), 0, "{number} has another name than {from:?}");
                assert!(self.stage.insert(*number), "{number} is in the stage already");
            }
            Operation::Unlink { from } => {
                let number = self.entries.remove(from).expect("nothing is there");
                assert!(!self.is_directory(number), "directory {number} had two names");
                assert_ne!(self.names(number), 0, "{number} has lost its last name and is not in the stage");
            }
            Operation::Attach { number, to } => {
                assert!(self.stage.remove(number), "{number} is not in the stage");
                assert!(!self.is_in(to.0, *number), "{number} comes into itself");
                self.name(to, *number);
            }
            Operation::Link { from, to } => {
                let number = *self.entries.get(from).expect("nothing is there");
                assert!(!self.is_directory(number), "directory {number} gets a second name");
                self.name(to, number);
            }
            Operation::Discard { number, kind } => {
                assert!(self.stage.remove(number), "{number} is not in the stage");
                let was = self.nodes.remove(number);
                assert_eq!(was.map(|(kind, _)| kind).as_ref(), Some(kind));
                assert!(self.entries.keys().all(|at| at.0 != *number), "directory {number} is not empty");
                self.said.modes.remove(number);
            }
        }
    }

    fn grow(&mut self, file: Number, offset: u64, count: u64) {
        let end = offset.checked_add(count).filter(|end| *end <= FILE_SIZE_MAX).expect("an end that files may have");
        let length = self.length(file);
        *length = end.max(*length);
    }

    fn length(&mut self, file: Number) -> &mut u64 {
        let (kind, length) = self.nodes.get_mut(&file).expect("a file that is there");
        assert_eq!(*kind, Kind::File, "{file}");
        length
    }

    fn name(&mut self, to: &At, number: Number) {
        assert!(self.is_directory(to.0), "{to:?} is in no directory");
        assert_eq!(self.entries.insert(to.clone(), number), None, "{to:?} is taken");
    }

    fn names(&self, number: Number) -> usize {
        self.entries.values().filter(|named| **named == number).count()
    }

    fn is_directory(&self, number: Number) -> bool {
        let (kind, _) = self.nodes.get(&number).expect("a number that is there");
        *kind == Kind::Directory
    }

    /// Whether a directory is another one, or lies in it.
    fn is_in(&self, directory: Number, other: Number) -> bool {
        let parent = |number: &Number| self.entries.iter().find(|(_, named)| *named == number).map(|(at, _)| at.0);
        // A circle would have to be closed by the operation that is asked about.
        std::iter::successors(Some(directory), parent).any(|number| number == other)
    }

    /// A record was folded: what it says, and not what was made of it.
    pub(crate) fn learn(&mut self, record: &Record<'_>, had_begun: bool, has_begun: bool) {
        let said = &mut self.said;
        match record {
            Record::State { .. } if had_begun => {}
            Record::State { first, last, facts, .. } => {
                if *first {
                    said.facts = Some(Vec::new());
                }
                let Some(gathered) = &mut said.facts else { return };
                gathered.extend_from_slice(facts);
                if *last {
                    let gathered = std::mem::take(gathered);
                    assert!(has_begun, "a whole state is no begin");
                    gathered.into_iter().for_each(|fact| said.take(fact));
                }
            }
            _ if !has_begun => {}
            Record::Begin { .. } => said.changes.clear(),
            Record::Create { number, mode, .. } => drop(said.modes.insert(*number, *mode)),
            Record::Names { last, changes } => {
                said.changes.extend_from_slice(changes);
                if *last {
                    std::mem::take(&mut said.changes).into_iter().for_each(|change| said.change(change));
                    // A number that has lost its last name has no mode either.
                    said.modes.retain(|number, _| self.nodes.contains_key(number));
                }
            }
            Record::Data { .. } | Record::Zero { .. } | Record::Length { .. } => {}
        }
    }

    /// A record was refused: what it would have ended is void.
    pub(crate) fn refused(&mut self, record: &Record<'_>) {
        match record {
            Record::Names { .. } => self.said.changes.clear(),
            Record::State { .. } => self.said.facts = None,
            _ => {}
        }
    }

    /// The image is what the operations have made, and what the records have said.
    pub(crate) fn check(&self, image: &Image) {
        let mut names = BTreeMap::new();
        let mut size = 0;
        for (number, node) in image.nodes() {
            let (kind, length) = self.nodes.get(&number).expect("a number that nobody made");
            assert_eq!((&node.kind, node.length), (kind, *length), "{number}");
            assert_eq!(Some(&node.mode), self.said.modes.get(&number), "{number}");
            assert_eq!(node.names.is_empty(), number == Number::ROOT || self.stage.contains(&number), "{number}");
            size += u128::from(node.length);
            for at in &node.names {
                assert_eq!(image.entry(at), Some(number));
                assert_eq!(names.insert(at.clone(), number), None);
            }
        }
        assert_eq!(image.nodes().count(), self.nodes.len());
        assert_eq!(image.size(), u64::try_from(size).unwrap_or(u64::MAX));
        assert_eq!(names, self.entries);
        assert_eq!(names, self.said.names);
        let state = image.state(usize::MAX);
        let Some(Record::State { facts, .. }) = state.first() else { panic!("no state: {state:?}") };
        let listed = facts.iter().filter_map(|fact| match fact {
            Fact::Name { directory, name, number } => Some(((*directory, name.clone()), *number)),
            Fact::Node { .. } => None,
        });
        assert!(listed.eq(names), "names that no node has");
    }
}

impl Said {
    fn take(&mut self, fact: Fact) {
        match fact {
            Fact::Node { number, mode, .. } => drop(self.modes.insert(number, mode)),
            Fact::Name { directory, name, number } => drop(self.names.insert((directory, name), number)),
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Name { directory, name, number } => drop(self.names.insert((directory, name), number)),
            Change::Unname { directory, name } => drop(self.names.remove(&(directory, name))),
            Change::Mode { number, mode } => drop(self.modes.insert(number, mode)),
        }
    }
}
