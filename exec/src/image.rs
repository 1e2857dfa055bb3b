//! The fold of the log: records in, operations on a directory out. Pure.
//!
//! Beside a standby [`crate::directory`] carries the operations out; at a primary the tracker folds what it appends, so that it
//! knows what the log has. What has no name lies in a *stage*, beside the directory: a file whose bytes came before its name, or
//! what is being moved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::record::{Change, FACT_MAX, Fact, Kind, Mode, Name, Number, Record, STATE_HEADER};

/// Changes in one group: each file that a volume may have gets and loses a few names. Some 100 bytes each while it is gathered.
pub const GROUP_CHANGES_MAX: usize = 1 << 20;
/// Facts of one state: a file has one, and each of its names.
pub const STATE_FACTS_MAX: usize = 1 << 20;
/// Files, directories and links of which a state can tell, with a name each.
pub const FILES_MAX: usize = STATE_FACTS_MAX / 2;

/// What the log knows of a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// Its mode.
    pub mode: Mode,
    /// Bytes of a file.
    pub length: u64,
    /// Where it is: one name at most for a directory.
    pub names: BTreeSet<(Number, Name)>,
}

/// A directory, as the log describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    nodes: BTreeMap<Number, Node>,
    /// Bytes of all of them. A hostile log may name more than 2⁶⁴.
    size: u128,
    entries: BTreeMap<(Number, Name), Number>,
    next: Number,
    /// The first that this turn may give.
    first: Number,
    begun: bool,
    /// Changes of a group that has not ended.
    unfinished: Vec<Change>,
    /// Facts of a state that has not ended, if one has begun.
    state: Option<Vec<Fact>>,
}

/// What is done to the directory. Each names what it is done to by number; where that is follows from those before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// Makes an empty one in the stage.
    Make {
        /// Its number.
        number: Number,
        /// What it is.
        kind: Kind,
    },
    /// Writes into a file.
    Write {
        /// The file.
        file: Number,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Makes zeros within a file.
    Zero {
        /// The file.
        file: Number,
        /// The offset of the first one.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Cuts a file, or lets it grow by zeros.
    Resize {
        /// The file.
        file: Number,
        /// In bytes.
        length: u64,
    },
    /// Moves a file from its only name into the stage.
    Detach {
        /// Where it is.
        from: (Number, Name),
        /// What is there.
        number: Number,
    },
    /// Removes one of several names.
    Unlink {
        /// Where it is.
        from: (Number, Name),
    },
    /// Gives a name to what is in the stage.
    Attach {
        /// What.
        number: Number,
        /// The directory and the name to move to.
        to: (Number, Name),
    },
    /// Gives another name to what has one.
    Link {
        /// Where it is.
        from: (Number, Name),
        /// The further directory and name that it gets.
        to: (Number, Name),
    },
    /// Removes from the stage what has no name any more.
    Discard {
        /// What.
        number: Number,
        /// What it is.
        kind: Kind,
    },
}

/// Why a log cannot be folded: it is damaged, or not one of ours.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FoldError {
    /// A state that is not what was folded before it.
    #[error("the state says otherwise than the records before it")]
    Differs,
    /// More changes than a volume can have names.
    #[error("more than {GROUP_CHANGES_MAX} changes of names in one group")]
    Group,
    /// A number that was not given, was given before, or is of another kind.
    #[error("number {0}: {1}")]
    Number(Number, &'static str),
    /// A change of names that no directory can make.
    #[error("name {name} in directory {directory}: {why}")]
    Name {
        /// Where.
        directory: Number,
        /// Which.
        name: Name,
        /// What is wrong.
        why: &'static str,
    },
}

impl Default for Image {
    fn default() -> Image {
        let root = Node { kind: Kind::Directory, mode: Mode(0o755), length: 0, names: BTreeSet::new() };
        Image {
            nodes: BTreeMap::from([(Number::ROOT, root)]),
            size: 0,
            entries: BTreeMap::new(),
            next: Number::FIRST,
            first: Number::FIRST,
            begun: false,
            unfinished: Vec::new(),
            state: None,
        }
    }
}

impl Image {
    /// The fold has found where it may begin: the first turn, or a state. Records before that are no longer all there.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The next number that is given.
    pub fn next(&self) -> Number {
        self.next
    }

    /// All numbers, with what they stand for.
    pub fn nodes(&self) -> impl Iterator<Item = (Number, &Node)> {
        self.nodes.iter().map(|(&number, node)| (number, node))
    }

    /// What a number stands for.
    pub fn node(&self, number: Number) -> Option<&Node> {
        self.nodes.get(&number)
    }

    /// What a name stands for.
    pub fn entry(&self, at: &(Number, Name)) -> Option<Number> {
        self.entries.get(at).copied()
    }

    /// Whether anything has a name.
    pub fn has_names(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Where a number is, from the root on, by the first of its names. `None` if it has none.
    pub fn path(&self, number: Number) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = number;
        while at != Number::ROOT {
            let (directory, name) = self.node(at)?.names.first()?;
            names.push(name.as_os_str());
            at = *directory;
        }
        Some(names.into_iter().rev().collect())
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        u64::try_from(self.size).unwrap_or(u64::MAX)
    }

    /// Folds one record. An error leaves all that is there as it was; a group or a state that the record would have ended is
    /// void.
    pub fn fold<'a>(&mut self, record: &Record<'a>) -> Result<Vec<Operation<'a>>, FoldError> {
        match *record {
            Record::State { first, last, next, ref facts } => return self.take_state(first, last, next, facts),
            Record::Begin { next } if self.begun || next == Number::FIRST => return self.begin(next),
            _ if !self.begun => return Ok(Vec::new()),
            _ => {}
        }
        match *record {
            Record::Begin { .. } | Record::State { .. } => Ok(Vec::new()),
            Record::Create { number, ref kind, mode } => self.create(number, kind, mode),
            Record::Data { file, offset, bytes } => {
                self.grow(file, offset + bytes.len() as u64)?;
                Ok(vec![Operation::Write { file, offset, bytes }])
            }
            Record::Zero { file, offset, length } => {
                self.grow(file, offset + length)?;
                Ok(vec![Operation::Zero { file, offset, length }])
            }
            Record::Length { file, length } => {
                self.resize(file, |_| length)?;
                Ok(vec![Operation::Resize { file, length }])
            }
            Record::Names { last, ref changes } => {
                if self.unfinished.len() + changes.len() > GROUP_CHANGES_MAX {
                    return Err(FoldError::Group);
                }
                self.unfinished.extend(changes.iter().cloned());
                if !last {
                    return Ok(Vec::new());
                }
                let changes = std::mem::take(&mut self.unfinished);
                self.rename(&changes)
            }
        }
    }

    /// An earlier turn may have ended in the midst of a group, and may have given numbers whose names never came.
    fn begin<'a>(&mut self, next: Number) -> Result<Vec<Operation<'a>>, FoldError> {
        if next < self.next {
            return Err(FoldError::Number(next, "a turn begins with a number that was given before"));
        }
        self.begun = true;
        (self.next, self.first) = (next, next);
        self.unfinished.clear();
        self.state = None;
        let nameless: Vec<Number> = self.nodes().filter(|(n, node)| is_nameless(*n, node)).map(|(n, _)| n).collect();
        Ok(nameless.into_iter().filter_map(|number| self.discard(number)).collect())
    }

    /// Facts of [`state`](Image::state). A fold takes no more than [`STATE_FACTS_MAX`].
    pub fn fact_count(&self) -> usize {
        // The root is none.
        self.nodes.len() - 1 + self.entries.len()
    }

    /// All that is there but bytes, in records of at most so many bytes.
    pub fn state(&self, record_max: usize) -> Vec<Record<'static>> {
        let facts = self.facts();
        let parts = facts.len().div_ceil((record_max.saturating_sub(STATE_HEADER) / FACT_MAX).max(1)).max(1);
        let mut chunks = facts.chunks(facts.len().div_ceil(parts).max(1));
        let part = |part| Record::State {
            first: part == 0,
            last: part + 1 == parts,
            next: self.next,
            facts: chunks.next().unwrap_or_default().to_vec(),
        };
        (0..parts).map(part).collect()
    }

    fn facts(&self) -> Vec<Fact> {
        let nodes = self.nodes().filter(|(number, _)| *number != Number::ROOT).map(|(number, node)| Fact::Node {
            number,
            kind: node.kind.clone(),
            mode: node.mode,
            length: node.length,
        });
        let names = self.entries.iter().map(|((directory, name), number)| Fact::Name {
            directory: *directory,
            name: name.clone(),
            number: *number,
        });
        nodes.chain(names).collect()
    }

    fn take_state<'a>(
        &mut self,
        first: bool,
        last: bool,
        next: Number,
        facts: &[Fact],
    ) -> Result<Vec<Operation<'a>>, FoldError> {
        match (first, self.state.as_mut()) {
            (true, _) => self.state = Some(facts.to_vec()),
            (false, Some(state)) if state.len() + facts.len() > STATE_FACTS_MAX => return Err(FoldError::Group),
            (false, Some(state)) => state.extend_from_slice(facts),
            // A part of a state that began before what is left of the log.
            (false, None) => return Ok(Vec::new()),
        }
        if !last {
            return Ok(Vec::new());
        }
        let facts = self.state.take().unwrap_or_default();
        if self.begun {
            // What came before is known, and the same: here two folds would show that they have parted.
            return if facts == self.facts() { Ok(Vec::new()) } else { Err(FoldError::Differs) };
        }
        let mut image = Image { begun: true, ..Image::default() };
        let mut operations = Vec::new();
        let mut names = Vec::new();
        for fact in facts {
            match fact {
                Fact::Node { number, kind, mode, length } => {
                    operations.extend(image.create(number, &kind, mode)?);
                    if length > 0 {
                        image.resize(number, |_| length)?;
                        operations.push(Operation::Resize { file: number, length });
                    }
                }
                Fact::Name { directory, name, number } => names.push(Change::Name { directory, name, number }),
            }
        }
        operations.extend(image.rename(&names)?);
        image.next = image.next.max(next);
        *self = image;
        Ok(operations)
    }

    fn create<'a>(&mut self, number: Number, kind: &Kind, mode: Mode) -> Result<Vec<Operation<'a>>, FoldError> {
        // A turn gives numbers as it finds files, and logs them as they are synced.
        if number < self.first || self.nodes.contains_key(&number) {
            return Err(FoldError::Number(number, "was given before"));
        }
        if number >= Number::END {
            return Err(FoldError::Number(number, "leaves no number for the next turn"));
        }
        self.next = self.next.max(number.next());
        self.nodes.insert(number, Node { kind: kind.clone(), mode, length: 0, names: BTreeSet::new() });
        Ok(vec![Operation::Make { number, kind: kind.clone() }])
    }

    fn file(&mut self, number: Number) -> Result<&mut Node, FoldError> {
        match self.nodes.get_mut(&number) {
            Some(node) if node.kind == Kind::File => Ok(node),
            Some(_) => Err(FoldError::Number(number, "has bytes and is no file")),
            None => Err(FoldError::Number(number, "has bytes and was not created")),
        }
    }

    fn grow(&mut self, file: Number, end: u64) -> Result<(), FoldError> {
        self.resize(file, |length| length.max(end))
    }

    fn resize(&mut self, file: Number, to: impl FnOnce(u64) -> u64) -> Result<(), FoldError> {
        let node = self.file(file)?;
        let before = node.length;
        node.length = to(before);
        let after = node.length;
        self.size = self.size - u128::from(before) + u128::from(after);
        Ok(())
    }

    fn discard<'a>(&mut self, number: Number) -> Option<Operation<'a>> {
        let node = self.nodes.remove(&number)?;
        self.size -= u128::from(node.length);
        Some(Operation::Discard { number, kind: node.kind })
    }

    /// Takes a whole group. The operations follow from what is different afterwards, not from the order of the changes: first
    /// everything leaves that has to, then it gets its new names. So directories may move into each other's places.
    fn rename<'a>(&mut self, changes: &[Change]) -> Result<Vec<Operation<'a>>, FoldError> {
        let touched = self.touched(changes)?;
        let before: BTreeMap<_, _> = touched.iter().map(|at| (at.clone(), self.entry(at))).collect();
        let undo: Vec<_> = before
            .values()
            .flatten()
            .chain(named(changes))
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter_map(|number| Some((number, self.nodes.get(&number)?.clone())))
            .collect();
        let mut staged: BTreeSet<Number> =
            undo.iter().filter(|(n, node)| is_nameless(*n, node)).map(|(n, _)| *n).collect();
        changes.iter().for_each(|change| self.change(change));
        let numbers: Vec<Number> = undo.iter().map(|(number, _)| *number).collect();
        if let Err(error) = self.check(&touched, &numbers) {
            for (at, was) in before {
                match was {
                    Some(number) => self.entries.insert(at, number),
                    None => self.entries.remove(&at),
                };
            }
            self.nodes.extend(undo);
            return Err(error);
        }

        let mut operations = Vec::new();
        // Names that are left, of those that each number had before: what keeps one only loses others.
        let mut places: BTreeMap<Number, BTreeSet<(Number, Name)>> =
            undo.into_iter().map(|(number, node)| (number, node.names)).collect();
        for (at, was) in &before {
            let now = self.entry(at);
            let Some(number) = was.filter(|_| now != *was) else { continue };
            let names = places.entry(number).or_default();
            names.remove(at);
            if names.is_empty() {
                staged.insert(number);
                operations.push(Operation::Detach { from: at.clone(), number });
            } else {
                operations.push(Operation::Unlink { from: at.clone() });
            }
        }
        for (at, was) in before {
            let Some(number) = self.entry(&at).filter(|now| Some(*now) != was) else { continue };
            let names = places.entry(number).or_default();
            operations.push(match names.first() {
                Some(from) if !staged.contains(&number) => Operation::Link { from: from.clone(), to: at.clone() },
                _ => Operation::Attach { number, to: at.clone() },
            });
            staged.remove(&number);
            names.insert(at);
        }
        let gone: Vec<Number> =
            staged.into_iter().filter(|n| self.node(*n).is_some_and(|node| is_nameless(*n, node))).collect();
        operations.extend(gone.into_iter().filter_map(|number| self.discard(number)));
        Ok(operations)
    }

    /// The names that a group changes, if each change makes sense by itself.
    fn touched(&self, changes: &[Change]) -> Result<BTreeSet<(Number, Name)>, FoldError> {
        let mut touched = BTreeSet::new();
        for change in changes {
            let (directory, name) = match change {
                Change::Name { directory, name, number } => {
                    if *number == Number::ROOT || !self.nodes.contains_key(number) {
                        return Err(FoldError::Number(*number, "gets a name and was not created"));
                    }
                    (*directory, name)
                }
                Change::Unname { directory, name } => (*directory, name),
                // The directory itself is as it was mounted: no state has its mode.
                Change::Mode { number: Number::ROOT, .. } => {
                    return Err(FoldError::Number(Number::ROOT, "gets a mode and is the root"));
                }
                Change::Mode { number, .. } => {
                    if !self.nodes.contains_key(number) {
                        return Err(FoldError::Number(*number, "gets a mode and was not created"));
                    }
                    continue;
                }
            };
            if self.node(directory).is_none_or(|node| node.kind != Kind::Directory) {
                return Err(FoldError::Name { directory, name: name.clone(), why: "it is no directory" });
            }
            touched.insert((directory, name.clone()));
        }
        Ok(touched)
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Name { directory, name, number } => {
                let at = (*directory, name.clone());
                self.unname(&at);
                if let Some(node) = self.nodes.get_mut(number) {
                    node.names.insert(at.clone());
                }
                self.entries.insert(at, *number);
            }
            Change::Unname { directory, name } => self.unname(&(*directory, name.clone())),
            Change::Mode { number, mode } => {
                if let Some(node) = self.nodes.get_mut(number) {
                    node.mode = *mode;
                }
            }
        }
    }

    fn unname(&mut self, at: &(Number, Name)) {
        if let Some(was) = self.entries.remove(at)
            && let Some(node) = self.nodes.get_mut(&was)
        {
            node.names.remove(at);
        }
    }

    /// After a group: each directory that it touched has one name, below the root, or has none and is empty.
    fn check(&self, touched: &BTreeSet<(Number, Name)>, numbers: &[Number]) -> Result<(), FoldError> {
        let wrong = |at: &(Number, Name), why| FoldError::Name { directory: at.0, name: at.1.clone(), why };
        let mut below = BTreeSet::from([Number::ROOT]);
        for at in touched {
            let Some(number) = self.entry(at) else { continue };
            if self.node(at.0).is_none_or(|node| is_nameless(at.0, node)) {
                return Err(wrong(at, "its directory has no name"));
            }
            let Some(node) = self.node(number).filter(|node| node.kind == Kind::Directory) else { continue };
            if node.names.len() > 1 {
                return Err(wrong(at, "a directory has two names"));
            }
            self.climb(number, &mut below).ok_or_else(|| wrong(at, "a directory is not below the root"))?;
        }
        for &number in numbers {
            if self.node(number).is_some_and(|node| is_nameless(number, node))
                && let Some(at) = self.first_in(number)
            {
                return Err(wrong(at, "its directory is gone"));
            }
        }
        Ok(())
    }

    fn first_in(&self, directory: Number) -> Option<&(Number, Name)> {
        let first = self.entries.range((directory, Name::least())..).next();
        first.map(|(at, _)| at).filter(|at| at.0 == directory)
    }

    /// Whether a directory lies below one that does, all the way up. All that do are added to `below`, so that a group which names
    /// many of them takes each step once.
    fn climb(&self, mut number: Number, below: &mut BTreeSet<Number>) -> Option<()> {
        let mut path = BTreeSet::new();
        while !below.contains(&number) {
            // A directory that comes twice is in a circle.
            path.insert(number).then_some(())?;
            number = self.node(number)?.names.first()?.0;
        }
        below.extend(path);
        Some(())
    }
}

fn is_nameless(number: Number, node: &Node) -> bool {
    number != Number::ROOT && node.names.is_empty()
}

fn named(changes: &[Change]) -> impl Iterator<Item = &Number> {
    changes.iter().filter_map(|change| match change {
        Change::Name { number, .. } | Change::Mode { number, .. } => Some(number),
        Change::Unname { .. } => None,
    })
}

#[cfg(test)]
mod tests;
