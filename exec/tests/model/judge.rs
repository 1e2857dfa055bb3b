//! What POSIX allows after a power failure, and a fold of the log that owes nothing to the product's.
//!
//! - A byte of a file is what it was after some step, but after no step that came before the last sync of the file that had
//!   returned; bytes of different steps may be mixed. So is the length, within its lowest and highest value since then.
//! - The paths are those after some step: no earlier than the last name step before a sync of a directory or of everything; and
//!   no earlier than the last one that changed a name of a file before the file's sync, but where it had the names that it had
//!   during the sync.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tailwind_exec::record::{Change, Fact, Kind, Name, Number, Record};

use crate::journal::{Covers, Entry, FileId, Leads, Paths};

/// The log, folded so far.
#[derive(Default)]
pub(crate) struct Fold {
    kinds: BTreeMap<Number, Kind>,
    names: BTreeMap<(Number, Name), Number>,
    bytes: BTreeMap<Number, Vec<u8>>,
    unfinished: Vec<Change>,
    facts: Vec<Fact>,
    created: BTreeSet<Number>,
}

impl Fold {
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let record = Record::decode(bytes).map_err(|error| error.to_string())?;
        match record {
            Record::Begin { .. } => self.unfinished.clear(),
            Record::Create { number, kind, .. } => {
                if !self.created.insert(number) {
                    return Err(format!("number {number} is used twice"));
                }
                self.kinds.insert(number, kind);
            }
            Record::Data { file, offset, bytes } => {
                let content = self.content(file, offset + bytes.len() as u64);
                content[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Record::Zero { file, offset, length } => {
                self.content(file, offset + length)[offset as usize..][..length as usize].fill(0);
            }
            Record::Length { file, length } => self.bytes.entry(file).or_default().resize(length as usize, 0),
            Record::State { first, last, facts, .. } => {
                if first {
                    self.facts.clear();
                }
                self.facts.extend(facts);
                // A judge that has read the earlier records knows it.
                if last && self.created.is_empty() {
                    self.begin();
                }
            }
            Record::Names { last, changes } => {
                self.unfinished.extend(changes);
                if last {
                    for change in std::mem::take(&mut self.unfinished) {
                        match change {
                            Change::Name { directory, name, number } => self.names.insert((directory, name), number),
                            Change::Unname { directory, name } => self.names.remove(&(directory, name)),
                            Change::Mode { .. } => None,
                        };
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        for fact in std::mem::take(&mut self.facts) {
            match fact {
                Fact::Node { number, kind, length, .. } => {
                    self.created.insert(number);
                    self.kinds.insert(number, kind);
                    self.bytes.insert(number, vec![0; length as usize]);
                }
                Fact::Name { directory, name, number } => drop(self.names.insert((directory, name), number)),
            }
        }
    }

    fn content(&mut self, file: Number, end: u64) -> &mut Vec<u8> {
        let content = self.bytes.entry(file).or_default();
        content.resize(content.len().max(end as usize), 0);
        content
    }

    /// Every path, with what it leads to and a file's bytes.
    pub(crate) fn tree(&self) -> Result<BTreeMap<String, (Leads, &[u8])>, String> {
        let mut tree = BTreeMap::new();
        let mut to_list = vec![(Number::ROOT, String::new())];
        while let Some((directory, above)) = to_list.pop() {
            for ((_, name), number) in self.names.range(first(directory)..).take_while(|((of, _), _)| *of == directory)
            {
                let path = format!("{above}{name}");
                let kind = self
                    .kinds
                    .get(number)
                    .ok_or_else(|| format!("{path} is number {number}, which was not created"))?;
                let (leads, bytes) = match kind {
                    Kind::File => (Leads::File(number.0), self.bytes.get(number).map_or(&[][..], Vec::as_slice)),
                    Kind::Directory => {
                        to_list.push((*number, format!("{path}/")));
                        (Leads::Directory, &[][..])
                    }
                    Kind::Link(target) => (Leads::Link(String::from_utf8_lossy(target).into_owned()), &[][..]),
                };
                tree.insert(path, (leads, bytes));
                if tree.len() > 10_000 {
                    return Err("the directories go round in a circle".into());
                }
            }
        }
        Ok(tree)
    }
}

fn first(directory: Number) -> (Number, Name) {
    (directory, Name::new(&[1]).expect("a name"))
}

/// A sync that has returned.
struct Sync {
    covers: Covers,
    called: usize,
    returned: usize,
    /// Batches that were acknowledged then.
    acked: u64,
}

/// A journal, in a form in which questions are cheap.
#[derive(Default)]
pub(crate) struct Judge {
    /// Each file's bytes after each step, and when. Before the first step there was nothing.
    contents: HashMap<FileId, Vec<(usize, Vec<u8>)>>,
    names: Vec<(usize, Paths)>,
    syncs: Vec<Sync>,
}

impl Judge {
    pub(crate) fn new(entries: Vec<Entry>) -> Result<Judge, String> {
        let mut judge = Judge::default();
        let mut called = HashMap::new();
        for (time, entry) in entries.into_iter().enumerate() {
            match entry {
                Entry::Content(file, bytes) => judge.contents.entry(file).or_default().push((time, bytes)),
                Entry::Names(paths) => judge.names.push((time, paths)),
                Entry::Calls { sync, covers } => drop(called.insert(sync, (time, covers))),
                Entry::Returned { sync, acked } => {
                    let (called, covers) = called[&sync];
                    judge.syncs.push(Sync { covers, called, returned: time, acked });
                }
                Entry::Trouble(what) => return Err(format!("the player: {what}")),
            }
        }
        Ok(judge)
    }

    pub(crate) fn syncs(&self) -> usize {
        self.syncs.len()
    }

    /// Whether a log that ends after so many batches leaves what may be left.
    pub(crate) fn allows(&self, batches: u64, fold: &Fold) -> Result<(), String> {
        let tree = fold.tree()?;
        let confirmed: Vec<_> = self.syncs.iter().filter(|sync| sync.acked <= batches).collect();
        let mut reasons = Vec::new();
        for (step, (_, paths)) in self.names.iter().enumerate() {
            match confirmed.iter().find(|sync| !self.allows_step(sync, step)) {
                Some(Sync { covers, called, .. }) => {
                    reasons.push(format!("  {step}: comes before a sync of {covers:?} at {called}"));
                }
                None => match self.allows_paths(&confirmed, paths, &tree) {
                    Ok(()) => return Ok(()),
                    Err(reason) => reasons.push(format!("  {step}: {reason}")),
                },
            }
        }
        let found: Vec<_> = tree.iter().map(|(path, (leads, _))| (path, leads)).collect();
        Err(format!("no name step allows what is left, {found:?}:\n{}", reasons.join("\n")))
    }

    /// Whether the names may be those after a step, although a sync has returned.
    fn allows_step(&self, sync: &Sync, step: usize) -> bool {
        let before = self.names.partition_point(|(time, _)| *time < sync.called);
        let Covers::File(file) = sync.covers else { return step + 1 >= before };
        let paths_at = |step: usize| -> Vec<&String> {
            let paths = self.names[step].1.iter();
            paths.filter(|(_, leads)| **leads == Leads::File(file)).map(|(path, _)| path).collect()
        };
        let Some(last) = before.checked_sub(1) else { return true };
        let now = paths_at(last);
        let changed = (0..=last).rev().take_while(|step| paths_at(*step) == now).last();
        // A file keeps a name that it had while it was synced, also if it had it before, and nothing without one.
        let until = self.names.partition_point(|(time, _)| *time < sync.returned);
        let kept = |during: usize| paths_at(during).is_empty() || paths_at(during) == paths_at(step);
        changed.is_some_and(|changed| step >= changed) || (last..=until.min(self.names.len() - 1)).any(kept)
    }

    fn allows_paths(
        &self,
        confirmed: &[&Sync],
        paths: &Paths,
        tree: &BTreeMap<String, (Leads, &[u8])>,
    ) -> Result<(), String> {
        if let Some(path) = paths.keys().find(|path| !tree.contains_key(*path)) {
            return Err(format!("{path} is missing"));
        }
        for (path, (leads, bytes)) in tree {
            match (paths.get(path), leads) {
                (None, _) => return Err(format!("{path} is there")),
                (Some(Leads::File(file)), Leads::File(_)) => {
                    let covers = |covers: Covers| covers == Covers::All || covers == Covers::File(*file);
                    let times = confirmed.iter().filter(|sync| covers(sync.covers)).map(|sync| sync.called);
                    self.allows_bytes(*file, times.max(), bytes)
                        .map_err(|why| format!("{path} (file {file}): {why}"))?;
                }
                (Some(wanted), found) if wanted != found => return Err(format!("{path} is {found:?}, not {wanted:?}")),
                _ => {}
            }
        }
        Ok(())
    }

    fn allows_bytes(&self, file: FileId, synced: Option<usize>, found: &[u8]) -> Result<(), String> {
        let steps = self.contents.get(&file).map_or(&[][..], Vec::as_slice);
        let from = synced.map_or(0, |time| steps.partition_point(|(of, _)| *of < time));
        // The step before the sync is the oldest one; without a sync, or without a step before it, the empty file is.
        let nothing = Vec::new();
        let oldest = from.checked_sub(1).filter(|_| synced.is_some()).map_or(&nothing, |index| &steps[index].1);
        let since: Vec<&Vec<u8>> =
            std::iter::once(oldest).chain(steps[from..].iter().map(|(_, bytes)| bytes)).collect();
        if since.iter().any(|bytes| *bytes == found) {
            return Ok(());
        }
        let lengths = since.iter().map(|bytes| bytes.len());
        let (shortest, longest) = (lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0));
        if !(shortest..=longest).contains(&found.len()) {
            let length = found.len();
            return Err(format!("{length} bytes, where since its last sync it had {shortest} to {longest}"));
        }
        for (at, byte) in found.iter().enumerate() {
            let may_be = |bytes: &&Vec<u8>| bytes.get(at).map_or(*byte == 0, |was| was == byte);
            if !since.iter().any(may_be) {
                return Err(format!(
                    "byte {at} is {byte}, which it was not since its last sync, {} steps ago",
                    since.len()
                ));
            }
        }
        Ok(())
    }
}
