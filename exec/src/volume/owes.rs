//! What a sync owes: of a file, of names, of everything.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs;

use super::files::File;
use super::tree::At;
use super::{Refusal, Volume};
use crate::planted::{self, Bug};
use crate::record::{CHANGE_MAX, Change, Kind, Mode, Name, Number, Record};

impl Volume {
    /// Takes all that the log does not have: of every file, and all names. What can be followed is taken even if something else
    /// cannot: the first refusal comes back.
    pub fn capture_all<E>(
        &mut self,
        mut send: impl FnMut(&[Vec<u8>]) -> Result<(), E>,
    ) -> Result<Result<(), Refusal>, E> {
        let files = self.capture_files(&mut send)?;
        let mut records = Vec::new();
        let names = self.capture_names(&mut records);
        send(&records)?;
        Ok(files.and(names))
    }

    /// Takes the bytes of every file. `send` gets the records of each before the next one is read: together they may be more than
    /// fits into memory.
    pub fn capture_files<E>(
        &mut self,
        mut send: impl FnMut(&[Vec<u8>]) -> Result<(), E>,
    ) -> Result<Result<(), Refusal>, E> {
        if let Err(refusal) = self.settle() {
            return Ok(Err(refusal));
        }
        let mut result = Ok(());
        let mut numbers: Vec<Number> = self.files.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            let mut records = Vec::new();
            let captured = self.capture_settled(number, &mut records);
            send(&records)?;
            result = result.and(captured);
            if self.fault.is_some() {
                break;
            }
        }
        Ok(result)
    }

    /// Takes a file, and all names if its own are not in the log. False if it has just lost its name: what its descriptor leads to
    /// has to be told again.
    pub fn capture_file(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<bool, Refusal> {
        self.capture(number, records)?;
        if self.owes_names(number) {
            let only = planted::has(Bug::OwnNamesOnly).then_some(number);
            self.capture_names_of(only, records)?;
        }
        Ok(self.files.contains_key(&number))
    }

    fn owes_names(&self, number: Number) -> bool {
        let pending = || {
            self.tree.touched().iter().any(|at| {
                let (now, logged) = (self.tree.number(at), self.image.entry(at));
                now != logged && (now == Some(number) || logged == Some(number))
            })
        };
        if self.modes.contains(&number) || pending() {
            return true;
        }
        // A directory that was made or moved above it is a name that it has. And what is held of a removed file takes room on the
        // disk until its removal is in the log.
        !planted::has(Bug::OwnNamesOnly) && (self.has_new_parent(number) || self.holds_removed())
    }

    /// Whether a removed file is held that the log would remove with the next names.
    fn holds_removed(&self) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        let held_back = self.held_back();
        let stays = |at| self.tree.number(at).is_some_and(|now| held_back.contains_key(&now));
        self.leaving.iter().any(|number| self.image.node(*number).is_none_or(|node| !node.names.iter().any(stays)))
    }

    /// Whether a directory on the way to a file is not in the log where it is.
    fn has_new_parent(&self, number: Number) -> bool {
        let moved: BTreeSet<Number> = self
            .tree
            .touched()
            .iter()
            .filter(|at| self.tree.number(at) != self.image.entry(at))
            .filter_map(|at| self.tree.number(at))
            .filter(|number| self.directories.contains_key(number))
            .collect();
        if moved.is_empty() {
            return false;
        }
        let mut at: Vec<Number> = self.tree.names(number).map(|at| at.0).collect();
        let mut seen = BTreeSet::new();
        while let Some(directory) = at.pop() {
            if moved.contains(&directory) {
                return true;
            }
            if seen.insert(directory) {
                at.extend(self.tree.names(directory).map(|at| at.0));
            }
        }
        false
    }

    /// Takes all names that the log does not have, in one group.
    pub fn capture_names(&mut self, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.capture_names_of(None, records)
    }

    /// For a planted bug, of one file only.
    fn capture_names_of(&mut self, only: Option<Number>, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.capture_moved(records)?;
        let held_back = self.held_back();
        self.or_lose(|volume| volume.log_names(only, &held_back, records))?;
        match held_back.into_iter().next() {
            Some((number, why)) => Err(Refusal::Lost(format!("the name of file {number} is not logged: {why}"))),
            None => Ok(()),
        }
    }

    /// Takes the bytes that names bring: a file that replaces another one by a rename brings its bytes, as file systems have it.
    fn capture_moved(&mut self, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.settle()?;
        let unsynced = |file: &File| file.moved && !file.synced && file.fault.is_none();
        let moved = self.tree.touched().iter().filter_map(|at| self.tree.number(at));
        let moved = moved.filter(|number| self.files.get(number).is_some_and(unsynced));
        for number in moved.collect::<BTreeSet<Number>>() {
            self.capture_settled(number, records)?;
        }
        Ok(())
    }

    /// Files whose new names would stand for fewer bytes than they bring, or for an empty file instead of the one that the log has
    /// there; and why they cannot be followed.
    fn held_back(&self) -> BTreeMap<Number, String> {
        let touched = self.tree.touched().iter().filter_map(|at| Some((at, self.tree.number(at)?)));
        let held_back = touched.filter_map(|(at, now)| {
            let (file, logged) = (self.files.get(&now)?, self.image.entry(at));
            let replaces = logged.is_some_and(|logged| !self.is_directory(logged));
            let is_held_back = logged != Some(now) && !file.synced && (file.moved || replaces);
            Some((now, file.fault.clone().filter(|_| is_held_back)?))
        });
        held_back.collect()
    }

    /// Whether the log has a directory of this number.
    fn is_directory(&self, number: Number) -> bool {
        self.image.node(number).is_some_and(|node| node.kind == Kind::Directory)
    }

    /// Logs the names as they are now: none of them comes again, but those of files that are held back.
    fn log_names(
        &mut self,
        only: Option<Number>,
        held_back: &BTreeMap<Number, String>,
        records: &mut Vec<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let (mut changes, mut left) = (BTreeMap::new(), BTreeSet::new());
        for at in self.tree.touched() {
            let (mut now, logged) = (self.tree.number(at), self.image.entry(at));
            // As long as it has not got its new name, it keeps the one before, if there is still such a directory.
            let has_directory = || at.0 == Number::ROOT || self.tree.names(at.0).next().is_some();
            let keeps = |number| held_back.contains_key(&number);
            if now.is_some_and(keeps) || now.is_none() && logged.is_some_and(keeps) && has_directory() {
                left.insert(at.clone());
                // A directory was not replaced: it has another name by now, and can have only one, or is gone.
                if !logged.is_some_and(|logged| self.is_directory(logged)) {
                    continue;
                }
                now = None;
            }
            let forgotten = now.is_none() && planted::has(Bug::UnlinkLost);
            if now != logged && !forgotten && only.is_none_or(|only| now == Some(only) || logged == Some(only)) {
                changes.insert(at.clone(), now);
            }
        }
        let numbers: BTreeSet<Number> = changes.values().flatten().copied().collect();
        for number in numbers {
            if self.image.node(number).is_none() {
                let Some(known) = self.known.get(&number) else { continue };
                let create = Record::Create { number, kind: known.kind.clone(), mode: self.mode(number)? };
                self.log(records, &create)?;
            }
        }
        let mut group = self.removes_orphans();
        group.extend(changes.into_iter().map(|(at, now)| change(at, now)));
        for number in std::mem::take(&mut self.modes) {
            let logged =
                self.image.node(number).filter(|node| !matches!(node.kind, Kind::Link(_))).map(|node| node.mode);
            if let Some(logged) = logged.filter(|_| self.known.contains_key(&number)) {
                let mode = self.mode(number)?;
                if mode != logged {
                    group.push(Change::Mode { number, mode });
                }
            }
        }
        if only.is_none() {
            self.tree.logged(left);
        }
        if group.is_empty() {
            return Ok(());
        }
        let in_record = ((self.bounds.record - 3) / CHANGE_MAX).max(1);
        let parts = group.chunks(in_record).count();
        for (part, changes) in group.chunks(in_record).enumerate() {
            self.log(records, &Record::Names { last: part + 1 == parts, changes: changes.to_vec() })?;
        }
        self.forget_gone();
        Ok(())
    }

    /// A file that has lost its name between its bytes and its name has none in the log either, and would stay there until the
    /// next turn. What gets a name and loses it within a group is gone.
    fn removes_orphans(&mut self) -> Vec<Change> {
        let at = || (Number::ROOT, Name::orphan());
        let orphans = std::mem::take(&mut self.orphans);
        let mut changes: Vec<Change> = orphans.into_iter().map(|number| change(at(), Some(number))).collect();
        if !changes.is_empty() {
            // Whatever has that name keeps it.
            changes.push(change(at(), self.image.entry(&at())));
        }
        changes
    }

    fn mode(&self, number: Number) -> Result<Mode, Refusal> {
        let bits = match (self.files.get(&number), self.directories.get(&number)) {
            (Some(file), _) => fs::fstat(&file.reader)?.st_mode,
            (_, Some(directory)) => fs::fstat(directory)?.st_mode,
            _ => 0o777,
        };
        Ok(Mode::of(bits))
    }
}

fn change((directory, name): At, now: Option<Number>) -> Change {
    match now {
        Some(number) => Change::Name { directory, name, number },
        None => Change::Unname { directory, name },
    }
}
