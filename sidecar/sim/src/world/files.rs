//! A backup's flush folder on a file system that fails: what has been written, what of that would outlive the power, and
//! what goes wrong at single calls.
//!
//! Implements [`tailwind_backup::Folder`] for the production shells; owned by [`Host`](super::host::Host). Bytes are safe
//! once their file is synced, names once the folder is. When the power goes, every sector of 512 bytes and every change of
//! a name that was not synced is there or is not. A sync that fails drops what it should have written: the bytes can be
//! read until the power goes, and no later sync brings them to disk (`fsync(2)`; Rebello et al., ATC 2020).

mod evidence;
mod inode;
mod promise;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailwind_backup::{File, FileName, Folder, Mapped, MemberState};
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::Sealed;

use crate::plan::Plan;
use crate::random::Random;
use crate::tally::Fault;

pub(crate) use inode::{Inode, Kind};

/// The error of every call after the one at which the process died. Nobody lives to see it.
const KILLED: &str = "killed";

/// A folder of files. Clones are the same folder.
#[derive(Clone, Debug)]
pub(crate) struct Files(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: Random,
    /// What names stand for.
    names: BTreeMap<String, Node>,
    /// What they stand for on disk.
    durable: BTreeMap<String, Node>,
    /// What has happened to names since the folder was synced.
    changes: Vec<Change>,
    full: bool,
    /// Faults that strike at single calls, once in so many of a thousand.
    faults: Vec<(Fault, u64)>,
    injected: Vec<Fault>,
    /// Calls that the process still makes before it dies.
    fuse: Option<u32>,
    killed: bool,
}

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) struct Node(Arc<Mutex<Inode>>);

#[derive(Debug)]
enum Change {
    Made(String, Node),
    /// From, to; happens as a whole or not at all.
    Renamed(String, String, Node),
    Removed(String),
}

/// What a process does at its disk, as far as it fails in different ways.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Look,
    Read,
    Write,
    Sync,
    Rename,
    Remove,
}

impl Node {
    pub(crate) fn inode(&self) -> MutexGuard<'_, Inode> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    pub(crate) fn new(random: Random, plan: &Plan) -> Files {
        let struck_at_calls = [
            Fault::ShortWrite,
            Fault::ReadFails,
            Fault::WriteFails,
            Fault::SyncFails,
            Fault::RenameFails,
            Fault::RemoveFails,
        ];
        let faults = struck_at_calls.into_iter().filter(|fault| plan.has(*fault));
        Files(Arc::new(Mutex::new(State {
            random,
            names: BTreeMap::new(),
            durable: BTreeMap::new(),
            changes: Vec::new(),
            full: false,
            faults: faults.map(|fault| (fault, if fault == Fault::ShortWrite { 100 } else { 10 })).collect(),
            injected: Vec::new(),
            fuse: None,
            killed: false,
        })))
    }

    /// Where nothing ever goes wrong.
    pub(crate) fn untroubled() -> Files {
        let mut random = Random::new(0);
        let plan = Plan { faults: Vec::new(), ..Plan::draw(&mut random) };
        Files::new(random, &plan)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process dies at one of its next calls.
    pub(crate) fn light(&self, calls: u32) {
        self.state().fuse = Some(calls);
    }

    /// The process lives on.
    pub(crate) fn clear_fuse(&self) {
        self.state().fuse = None;
    }

    /// True once the fuse has burnt down.
    pub(crate) fn process_died(&self) -> bool {
        self.state().killed
    }

    /// Another process begins.
    pub(crate) fn begin_process(&self) {
        let mut state = self.state();
        (state.fuse, state.killed) = (None, false);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state().full
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Nothing fails any more.
    pub(crate) fn stop_faults(&self) {
        let mut state = self.state();
        (state.full, state.fuse) = (false, None);
        state.faults.clear();
    }

    /// Nothing but this fault strikes, at four calls in ten.
    #[cfg(test)]
    pub(crate) fn make_frequent(&self, fault: Fault) {
        self.state().faults = vec![(fault, 400)];
    }

    /// Faults that have struck since this was asked last.
    pub(crate) fn take_injected(&self) -> Vec<Fault> {
        std::mem::take(&mut self.state().injected)
    }

    /// A segment's file as processes see it.
    pub(crate) fn segment(&self, segment: SegmentId, sealed: Sealed) -> Option<Node> {
        self.state().names.get(&name(segment, sealed)).cloned()
    }

    /// Every file that a segment's name may stand for once the power has gone; `None`: no file.
    pub(crate) fn segment_after_power_loss(&self, segment: SegmentId, sealed: Sealed) -> Vec<Option<Node>> {
        let state = self.state();
        let name = name(segment, sealed);
        let now = state.durable.get(&name).cloned();
        let changes = state.changes.iter().filter(|change| change.concerns(&name));
        std::iter::once(now).chain(changes.map(|change| change.leaves(&name))).collect()
    }

    /// Every closed segment's file.
    pub(crate) fn closed(&self) -> Vec<Node> {
        let state = self.state();
        let closed = state.names.iter().filter(|(name, _)| name.ends_with(".closed"));
        closed.map(|(_, node)| node.clone()).collect()
    }

    /// Every segment's file.
    pub(crate) fn segments(&self) -> Vec<(String, Node)> {
        let state = self.state();
        let ours = |name: &str| FileName::parse(name).is_some_and(|name| !name.temporary);
        let segments = state.names.iter().filter(|(name, node)| ours(name) && node.inode().is_file());
        segments.map(|(name, node)| (name.clone(), node.clone())).collect()
    }

    /// True while this file has a segment's name.
    pub(crate) fn has(&self, node: &Node) -> bool {
        self.segments().iter().any(|(_, own)| Arc::ptr_eq(&own.0, &node.0))
    }

    /// Every file as it is on disk.
    pub(crate) fn copy(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state();
        let files = state.durable.iter().filter(|(_, node)| node.inode().is_file());
        files.map(|(name, node)| (name.clone(), node.inode().bytes().to_vec())).collect()
    }

    /// These files are there in place of all others.
    pub(crate) fn replace(&self, files: Vec<(String, Vec<u8>)>) {
        {
            let mut state = self.state();
            state.names.retain(|_, node| !node.inode().is_file());
            state.durable.retain(|_, node| !node.inode().is_file());
            state.changes.clear();
        }
        files.into_iter().for_each(|(name, bytes)| self.put(&name, Inode::of(bytes)));
    }

    /// The bytes under a name.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.state().names.get(name).map(|node| node.inode().bytes().to_vec())
    }

    /// A name is gone, on disk too.
    pub(crate) fn lose(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name);
        state.durable.remove(name);
        state.changes.retain(|change| !change.concerns(name));
    }

    /// Somebody puts a file there, for good.
    pub(crate) fn put(&self, name: &str, inode: Inode) {
        self.lose(name);
        let (mut state, node) = (self.state(), Node(Arc::new(Mutex::new(inode))));
        state.names.insert(name.to_owned(), node.clone());
        state.durable.insert(name.to_owned(), node);
    }

    /// A bit flips; false where there is no such byte.
    pub(crate) fn flip(&self, name: &str, at: usize, bit: u8) -> bool {
        let state = self.state();
        let Some(mut inode) = state.names.get(name).map(|node| node.inode()) else { return false };
        let here = at < inode.bytes().len();
        if here {
            inode.flip(at, bit);
        }
        here
    }

    /// What the promise file says, as far as that outlives the power for certain.
    pub(crate) fn member_state(&self) -> Option<MemberState> {
        let newest = self.promises().into_iter().flatten().max_by_key(|(sequence, _)| *sequence)?;
        Some(newest.1)
    }

    /// Sound blocks of the promise file.
    pub(crate) fn sound_promises(&self) -> usize {
        self.promises().iter().flatten().count()
    }

    /// True when the ledger knows of newer notes of flushes than there are.
    pub(crate) fn notes_are_older(&self) -> bool {
        let (ledger, notes) = (self.bytes("ledger"), self.bytes("flushed"));
        ledger.zip(notes).is_some_and(|(ledger, notes)| evidence::recorded(&ledger) > evidence::newest(&notes))
    }

    fn promises(&self) -> [Option<(u64, MemberState)>; 2] {
        let Some(node) = self.state().durable.get("promise").cloned() else { return [None, None] };
        let inode = node.inode();
        [0, 1].map(|nth| promise::read(inode.on_disk(nth * promise::BLOCK..(nth + 1) * promise::BLOCK)?))
    }

    /// An empty folder under the same faults.
    pub(crate) fn wipe(&self) {
        let mut state = self.state();
        state.names.clear();
        state.durable.clear();
        state.changes.clear();
    }

    /// The power goes. Unless `torn`, the disk has by chance got everything before. Returns true if anything was lost.
    pub(crate) fn lose_power(&self, torn: bool) -> bool {
        let state = &mut *self.state();
        let changes = std::mem::take(&mut state.changes);
        let mut lost = false;
        // As a journal does it: nothing behind what is missing. Or in any order.
        let in_order = state.random.one_in(2);
        let mut missing = false;
        for change in changes {
            let kept = !torn || !(in_order && missing || state.random.one_in(3));
            missing |= !kept;
            match kept {
                true => change.apply(&mut state.durable),
                false => lost = true,
            }
        }
        state.names = state.durable.clone();
        for node in state.names.values() {
            lost |= node.inode().lose_power(torn.then_some(&mut state.random));
        }
        lost
    }

    /// Of so many bytes, how many a process still copies within its memory: it can die there too.
    fn copies(&self, bytes: usize) -> usize {
        let mut state = self.state();
        if state.killed {
            return 0;
        }
        match state.call(Call::Look) {
            Ok(()) => bytes,
            Err(_) => state.random.below(bytes as u64) as usize,
        }
    }
}

impl Change {
    fn concerns(&self, of: &str) -> bool {
        match self {
            Change::Made(name, _) | Change::Removed(name) => name == of,
            Change::Renamed(from, to, _) => from == of || to == of,
        }
    }

    /// What a name that it concerns stands for afterwards.
    fn leaves(&self, of: &str) -> Option<Node> {
        match self {
            Change::Made(_, node) => Some(node.clone()),
            Change::Renamed(_, to, node) => (to == of).then(|| node.clone()),
            Change::Removed(_) => None,
        }
    }

    fn apply(self, names: &mut BTreeMap<String, Node>) {
        match self {
            Change::Made(name, node) => drop(names.insert(name, node)),
            Change::Renamed(from, to, node) => {
                names.remove(&from);
                names.insert(to, node);
            }
            Change::Removed(name) => drop(names.remove(&name)),
        }
    }
}

impl State {
    fn call(&mut self, call: Call) -> io::Result<()> {
        if self.killed || self.fuse == Some(0) {
            self.killed = true;
            return Err(io::Error::other(KILLED));
        }
        self.fuse = self.fuse.map(|left| left - 1);
        let fault = match call {
            Call::Look => return Ok(()),
            Call::Read => Fault::ReadFails,
            Call::Write => Fault::WriteFails,
            Call::Sync => Fault::SyncFails,
            Call::Rename => Fault::RenameFails,
            Call::Remove => Fault::RemoveFails,
        };
        match self.fault_occurs(fault) {
            true => Err(io::Error::other("I/O error")),
            false => Ok(()),
        }
    }

    fn fault_occurs(&mut self, fault: Fault) -> bool {
        let chance = self.faults.iter().find(|(of, _)| *of == fault).map_or(0, |(_, chance)| *chance);
        let fault_occurs = chance > 0 && self.random.per_mille(chance);
        if fault_occurs {
            self.injected.push(fault);
        }
        fault_occurs
    }

    fn change(&mut self, change: Change) {
        self.changes.push(change);
    }
}

fn name(segment: SegmentId, sealed: Sealed) -> String {
    FileName { segment, sealed, temporary: false }.to_string()
}

fn no_space() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Folder for Files {
    fn path(&self) -> &Path {
        Path::new("flush")
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.call(Call::Look)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.call(Call::Look)?;
        let node = state.names.get(name).cloned().ok_or_else(not_found)?;
        if !node.inode().is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Box::new(OpenFile { files: self.clone(), node }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.call(Call::Look)?;
        let node = Node(Arc::default());
        state.names.insert(name.to_owned(), node.clone());
        state.change(Change::Made(name.to_owned(), node.clone()));
        Ok(Box::new(OpenFile { files: self.clone(), node }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.call(Call::Rename)?;
        let node = state.names.remove(from).ok_or_else(not_found)?;
        state.names.insert(to.to_owned(), node.clone());
        state.change(Change::Renamed(from.to_owned(), to.to_owned(), node));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if !state.names.contains_key(name) {
            return state.call(Call::Look).and(Err(not_found()));
        }
        state.call(Call::Remove)?;
        state.names.remove(name);
        state.change(Change::Removed(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.state();
        state.call(Call::Sync)?;
        std::mem::take(&mut state.changes).into_iter().for_each(|change| change.apply(&mut state.durable));
        Ok(())
    }
}

#[derive(Debug)]
struct OpenFile {
    files: Files,
    node: Node,
}

impl File for OpenFile {
    fn length(&self) -> io::Result<u64> {
        self.files.state().call(Call::Look)?;
        Ok(self.node.inode().bytes().len() as u64)
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.files.state().call(Call::Read)?;
        let inode = self.node.inode();
        let rest = inode.bytes().get(at as usize..).unwrap_or_default();
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        let state = &mut *self.files.state();
        let mut inode = self.node.inode();
        // Of a call that fails, or at which the process dies, a part may have been carried out.
        let result = state.call(Call::Write);
        let short = result.is_err() || (bytes.len() > 1 && state.fault_occurs(Fault::ShortWrite));
        let mut count = if short { state.random.within(1, bytes.len() as u64) as usize } else { bytes.len() };
        if state.full {
            count = count.min(inode.bytes().len().saturating_sub(at as usize));
        }
        inode.write(at as usize, &bytes[..count]);
        result?;
        if count == 0 && !bytes.is_empty() { Err(no_space()) } else { Ok(count) }
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let mut state = self.files.state();
        state.call(Call::Write)?;
        let mut inode = self.node.inode();
        if state.full && inode.bytes().len() < length as usize {
            return Err(no_space());
        }
        inode.allocate(length as usize);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let result = self.files.state().call(Call::Sync);
        let mut inode = self.node.inode();
        match &result {
            Ok(()) => inode.sync(),
            // A process that dies before it calls changes nothing.
            Err(_) if self.files.process_died() => {}
            Err(_) => inode.fail_to_sync(),
        }
        result
    }
}

/// A file in memory, beside the slots. It stays when the process dies, and goes with the power.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    pub(crate) bytes: Arc<Mutex<Vec<u8>>>,
    pub(crate) files: Files,
}

impl Beside {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mapped for Beside {
    fn length(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn grow(&mut self, length: u64) -> io::Result<()> {
        let mut bytes = self.bytes();
        let length = bytes.len().max(length as usize);
        bytes.resize(length, 0);
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        out.copy_from_slice(&self.bytes()[at as usize..][..out.len()]);
        Ok(())
    }

    fn write(&self, at: u64, new: &[u8]) {
        let count = self.files.copies(new.len());
        self.bytes()[at as usize..][..count].copy_from_slice(&new[..count]);
    }

    fn store(&self, at: u64, word: u64) {
        // Whole or not at all.
        if self.files.copies(8) == 8 {
            self.bytes()[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
