//! The volume while the program runs: what of it the log has, what may differ, and what an `fsync` owes.
//!
//! The supervisor tells it of each stopped call, and asks it for the records that a sync owes. It looks at the directory, at
//! inotify and at `/proc`; what follows from what it sees is decided in the pure halves, `tree` and `files`. Each rule may name
//! too much, never too little: what may differ is compared with the hashes of what the log has, and only what does is logged.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode as Bits, OFlags};
use rustix::io::Errno;
use tracing::{info, warn};

use crate::call::{Call, Descriptor, Thread};
use crate::compare::{Compared, Comparison};
use crate::directory::Left;
use crate::image::Image;
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::{CHANGE_MAX, Change, DATA_HEADER, Kind, Mode, Name, Number, Record};
use crate::tally;

mod files;
mod generation;
mod proc;
mod tree;
mod watch;

use files::{Effects, File};
use proc::{Identity, Infos};
use tree::{At, Entry, Note, Tree};
use watch::{Event, Watch};

/// Looks at the queue of events before the names are taken as they are: a program that renames without end must not hold up a
/// sync for ever.
const SETTLE_ROUNDS: usize = 1000;
/// Walks through `/proc` before a file counts as one that anybody may have written to.
const LOOKS: usize = 16;
/// Comparisons of a file that is being cut.
const COMPARISONS: usize = 16;
/// The second event of a rename follows the first one at once, unless the thread between them has to wait for a processor.
const RENAME_TIME: Duration = Duration::from_secs(1);
/// Threads whose calls are not known to have run. Beyond that those that have ended are looked for.
const EFFECTS: usize = 64;

pub(crate) use proc::descendants;

/// What a volume may have.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: usize,
    /// Bytes that one sync compares.
    pub scan: u64,
    /// Bytes of one record.
    pub record: usize,
    /// Bytes of log since its last state at which a new generation begins, if they are more than twice those of the files.
    pub trim: u64,
}

/// Why a sync fails.
#[derive(Debug)]
pub enum Refusal {
    /// What the program wrote cannot be followed. EIO, now and ever after.
    Lost(String),
    /// The volume has more bytes than it may have. ENOSPC.
    Full(String),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Lost(error.to_string())
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        io::Error::from(errno).into()
    }
}

/// What a descriptor that is synced leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// A file of the volume.
    File(Number),
    /// A directory of it: all names.
    Names,
    /// No file: the kernel knows what to say.
    Kernel,
    /// A file that is not in the volume.
    Outside,
}

/// The volume.
pub struct Volume {
    bounds: Bounds,
    device: u64,
    /// Where each inode that is seen through one mount is another file: that of the volume.
    mount: Option<u64>,
    infos: Infos,
    watch: Watch,
    tree: Tree,
    directories: HashMap<Number, OwnedFd>,
    files: HashMap<Number, File>,
    /// Each inode that a number stands for.
    inodes: HashMap<u64, Number>,
    /// The other way, with what is needed to create the number.
    known: HashMap<Number, Known>,
    /// Numbers that have no name any more.
    leaving: BTreeSet<Number>,
    /// Numbers whose mode may be another one.
    modes: BTreeSet<Number>,
    effects: Effects,
    comparison: Comparison,
    /// What the log has.
    image: Image,
    next: Number,
    /// What a new generation of the log still lacks.
    copying: Option<generation::Copying>,
    /// What has been compared.
    compared: tally::Compared,
    /// Why nothing can be followed any more.
    fault: Option<String>,
}

/// What a number stands for here.
struct Known {
    inode: u64,
    kind: Kind,
    /// Keeps the inode of a link or a directory from being another's; a file has its reader.
    _hold: Option<OwnedFd>,
}

impl Volume {
    /// The directory as a follower has left it, without a program.
    pub fn new(bounds: Bounds, image: Image, left: Left) -> io::Result<Volume> {
        let Left { directories, mut blocks, comparison } = left;
        let root = directories.get(&Number::ROOT).ok_or(Errno::NOENT)?;
        let device = proc::identity("", root, AtFlags::EMPTY_PATH)?.device;
        let entries = image.nodes().flat_map(|(number, node)| node.names.iter().map(move |at| (at.clone(), number)));
        let mut volume = Volume {
            bounds,
            device,
            mount: proc::mount(root)?,
            infos: Infos::default(),
            watch: Watch::new()?,
            tree: Tree::new(entries),
            files: HashMap::new(),
            inodes: HashMap::new(),
            known: HashMap::new(),
            leaving: BTreeSet::new(),
            modes: BTreeSet::new(),
            effects: Effects::default(),
            comparison,
            next: image.next(),
            directories: HashMap::new(),
            image: Image::default(),
            copying: None,
            compared: tally::Compared::default(),
            fault: None,
        };
        for (number, node) in image.nodes() {
            let hold = match (&node.kind, node.names.first()) {
                (Kind::Directory, _) => {
                    let directory = directories.get(&number).ok_or(Errno::NOENT)?;
                    volume.watch.add(directory.as_fd(), number)?;
                    directory.try_clone()?
                }
                (_, Some((parent, name))) => {
                    let parent = directories.get(parent).ok_or(Errno::NOENT)?;
                    hold(parent.as_fd(), name)?
                }
                // It goes with the turn's first record.
                (_, None) => continue,
            };
            let inode = proc::identity("", &hold, AtFlags::EMPTY_PATH)?.inode;
            volume.inodes.insert(inode, number);
            if node.kind == Kind::File {
                let file = File::known(inode, reopen(&hold)?, blocks.remove(&number).unwrap_or_default());
                volume.files.insert(number, File { synced: true, ..file });
            }
            let hold = (node.kind != Kind::File).then_some(hold);
            volume.known.insert(number, Known { inode, kind: node.kind.clone(), _hold: hold });
        }
        volume.directories = directories;
        volume.image = image;
        Ok(volume)
    }

    /// The directory has files that the log does not have: takes them for new ones.
    pub fn import(&mut self) -> Result<(), Refusal> {
        self.relist()?;
        self.settle()?;
        self.files.values_mut().for_each(|file| file.moved = true);
        Ok(())
    }

    /// What has been compared since this was asked last.
    pub fn take_compared(&mut self) -> tally::Compared {
        std::mem::take(&mut self.compared)
    }

    /// Why nothing can be followed any more.
    fn lose(&mut self, why: String) -> Refusal {
        warn!(%why, "cannot follow the program any more: each sync fails from now on");
        Refusal::Lost(self.fault.get_or_insert(why).clone())
    }
}

/// Stopped calls.
impl Volume {
    /// A thread is stopped: what its earlier calls bring about, they have brought about.
    pub fn stopped(&mut self, thread: Thread) {
        self.infos.next_call();
        let Some(effect) = self.effects.take(thread) else { return };
        for (number, range) in effect.ranges {
            if let Some(file) = self.files.get_mut(&number) {
                file.doubts.add(range);
            }
        }
        for number in effect.stepped {
            if let Some(file) = self.files.get_mut(&number) {
                file.writers.settle(thread);
            }
        }
        for number in effect.opens.into_iter().flatten() {
            if let Some(file) = self.files.get_mut(&number) {
                file.suspect();
            }
        }
        for file in self.files.values_mut() {
            if effect.truncates {
                file.doubts.add(Ranges::WHOLE);
            }
            if effect.duplicates {
                file.writers.look();
            }
        }
    }

    /// A call that goes on after this.
    pub fn calls(&mut self, thread: Thread, call: Call) -> Result<(), Refusal> {
        match call {
            Call::Sync(_) | Call::SyncAll | Call::SyncMapping { .. } => {}
            Call::Write { .. } if planted::has(Bug::RangeForgotten) => {}
            Call::Write { descriptor, offset, length } => {
                self.writes(thread, descriptor, (offset, offset.saturating_add(length)))?;
            }
            Call::WriteFrom { descriptor, offset } => self.writes(thread, descriptor, (offset, u64::MAX))?,
            Call::WriteSomewhere(descriptor) => self.writes(thread, descriptor, Ranges::WHOLE)?,
            Call::Truncate if planted::has(Bug::TruncateForgotten) => {}
            Call::Truncate => self.effects.of(thread, &mut self.infos).truncates = true,
            Call::OpenTruncating if planted::has(Bug::CutByOpenForgotten) => {}
            Call::OpenTruncating => {
                self.effects.of(thread, &mut self.infos).opens.get_or_insert_default();
            }
            Call::Seek { .. } if planted::has(Bug::SeekForgotten) => {}
            Call::Seek { descriptor, target } => {
                if let Some(number) = self.file_of(thread, descriptor)? {
                    self.effects.of(thread, &mut self.infos).stepped.insert(number);
                    self.advance(number)?;
                    if let Some(file) = self.files.get_mut(&number) {
                        file.writers.step_back(thread, target.unwrap_or(0));
                    }
                }
            }
            Call::Duplicate { .. } if planted::has(Bug::DuplicateForgotten) => {}
            Call::Duplicate { replaced } => {
                // What is replaced is closed by that, and its event comes after it has left the table.
                if let Some(replaced) = replaced {
                    self.writes(thread, replaced, Ranges::WHOLE)?;
                }
                self.files.values_mut().for_each(|file| file.writers.look());
                self.effects.of(thread, &mut self.infos).duplicates = true;
            }
            Call::Map(_) if planted::has(Bug::MapForgotten) => {}
            Call::Map(descriptor) => {
                if let Some(number) = self.file_of(thread, descriptor)?
                    && self.infos.get(thread.0, descriptor.0).is_none_or(|info| info.writable)
                    && let Some(file) = self.files.get_mut(&number)
                {
                    file.mapped = true;
                }
            }
            Call::Link => self.tree.linked(),
        }
        Ok(())
    }

    fn writes(&mut self, thread: Thread, descriptor: Descriptor, range: (u64, u64)) -> Result<(), Refusal> {
        if let Some(number) = self.file_of(thread, descriptor)? {
            let ranges = &mut self.effects.of(thread, &mut self.infos).ranges;
            match ranges.last_mut() {
                Some((last, (_, end))) if *last == number && *end == range.0 => *end = range.1,
                _ => ranges.push((number, range)),
            }
        }
        Ok(())
    }

    /// The file of the volume behind a descriptor.
    fn file_of(&mut self, thread: Thread, descriptor: Descriptor) -> Result<Option<Number>, Refusal> {
        match self.target(thread, descriptor)? {
            Target::File(number) => Ok(Some(number)),
            _ => Ok(None),
        }
    }

    /// What a descriptor leads to.
    pub fn target(&mut self, thread: Thread, descriptor: Descriptor) -> Result<Target, Refusal> {
        if let Some(target) = self.known_target(thread, descriptor) {
            return Ok(target);
        }
        let Some(identity) = proc::descriptor(thread, descriptor) else {
            return match descriptor.0 {
                // Not open, or its thread has ended: nobody learns of the answer, or the kernel says EBADF.
                _ if proc::began(thread).is_none() || proc::can_look(thread) => Ok(Target::Kernel),
                _ => Err(self.lose(format!("thread {thread} of the program cannot be looked at in /proc"))),
            };
        };
        if identity.device != self.device {
            let regular = matches!(identity.kind, FileType::RegularFile | FileType::Directory);
            // A file that has no name anywhere is no more than memory.
            let lasts = regular && identity.links > 0;
            return Ok(if lasts { Target::Outside } else { Target::Kernel });
        }
        match identity.kind {
            FileType::Directory => Ok(Target::Names),
            FileType::RegularFile => self.number(thread, descriptor, identity),
            _ => Ok(Target::Kernel),
        }
    }

    /// The same without a walk along a path, for what has a number.
    fn known_target(&mut self, thread: Thread, descriptor: Descriptor) -> Option<Target> {
        let mount = self.mount?;
        let info = self.infos.get(thread.0, descriptor.0).filter(|info| info.mount == mount)?;
        let number = *self.inodes.get(&info.inode)?;
        match self.known.get(&number)?.kind {
            Kind::File => Some(Target::File(number)),
            Kind::Directory => Some(Target::Names),
            Kind::Link(_) => None,
        }
    }

    fn number(&mut self, thread: Thread, descriptor: Descriptor, identity: Identity) -> Result<Target, Refusal> {
        let known = |volume: &Volume| volume.inodes.get(&identity.inode).map(|number| Target::File(*number));
        if let Some(target) = known(self) {
            return Ok(target);
        }
        // Its name may be in the queue. Or it has none: then nothing of it survives, but what took its name away does, as if the
        // file had been there.
        let is_nameless = || proc::descriptor(thread, descriptor).is_none_or(|identity| identity.links == 0);
        self.settle()?;
        if let Some(target) = known(self) {
            return Ok(target);
        }
        if is_nameless() {
            return Ok(Target::Names);
        }
        if identity.links == 1 && !self.leads_here(thread, descriptor) {
            return Ok(Target::Outside);
        }
        // Events are missing; or one of its names is elsewhere on the device.
        self.relist()?;
        self.settle()?;
        match known(self) {
            Some(target) => Ok(target),
            None if is_nameless() => Ok(Target::Names),
            None => Ok(Target::Outside),
        }
    }

    /// Whether the path of a descriptor is in the volume.
    fn leads_here(&self, thread: Thread, descriptor: Descriptor) -> bool {
        let path = |of: &str, descriptor: i32| std::fs::read_link(format!("/proc/{of}/fd/{descriptor}")).ok();
        let root = self.directories.get(&Number::ROOT).and_then(|root| path("self", root.as_raw_fd()));
        let found = path(&thread.to_string(), descriptor.0);
        // What cannot be told is looked for.
        root.zip(found).is_none_or(|(root, found)| found.starts_with(root))
    }

    /// The files that a thread has mapped at an address.
    pub fn mapped(&mut self, thread: Thread, address: u64, length: u64) -> Result<Vec<Number>, Refusal> {
        self.settle()?;
        let inodes = proc::mapped(thread, self.device, address, length)?;
        Ok(inodes.into_iter().filter_map(|inode| self.inodes.get(&inode).copied()).collect())
    }
}

/// Names.
impl Volume {
    /// Follows the queue of events until it is empty and each name is known.
    pub fn settle(&mut self) -> Result<(), Refusal> {
        for _ in 0..SETTLE_ROUNDS {
            let any = self.drain()?;
            let unsure = self.tree.take_unsure();
            if !any && unsure.is_empty() {
                break;
            }
            for at in unsure {
                self.look(at)?;
            }
        }
        if self.tree.is_floating() {
            self.wait_for_renames()?;
        }
        self.leaving.extend(self.tree.take_nameless());
        self.forget_gone();
        Ok(())
    }

    fn drain(&mut self) -> Result<bool, Refusal> {
        let mut notes = Vec::new();
        let (mut lost, mut unmounted) = (false, false);
        let tree = &mut self.tree;
        let any = self.watch.drain(|event| match event {
            Event::At(at, what) => notes.extend(tree.follow(at, what)),
            Event::Overflow => lost = true,
            Event::Unmounted => unmounted = true,
        })?;
        if unmounted {
            return Err(self.lose("the volume was unmounted".into()));
        }
        for note in notes {
            match note {
                Note::Opened(_) if planted::has(Bug::OpenForgotten) => {}
                Note::Opened(number) => self.opened(number),
                Note::Closed(_) if planted::has(Bug::CloseForgotten) => {}
                Note::Closed(number) => self.with(number, |file| file.doubts.add(Ranges::WHOLE)),
                Note::Moved(number) => self.with(number, |file| file.moved = true),
                Note::Ragged(number) => self.with(number, |file| file.ragged = true),
                Note::Attributes(number) => drop(self.modes.insert(number)),
                Note::Lost => lost = true,
            }
        }
        if lost {
            self.relist()?;
        }
        Ok(any)
    }

    fn with(&mut self, number: Number, change: impl FnOnce(&mut File)) {
        if let Some(file) = self.files.get_mut(&number) {
            change(file);
        }
    }

    fn opened(&mut self, number: Number) {
        for opens in self.effects.all_mut().filter_map(|effect| effect.opens.as_mut()) {
            opens.insert(number);
        }
        self.with(number, File::suspect);
    }

    /// One of the two events of a rename is missing. It follows; or what was renamed has left the volume.
    fn wait_for_renames(&mut self) -> Result<(), Refusal> {
        let deadline = Instant::now() + RENAME_TIME;
        while self.tree.is_floating() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(50));
            self.drain()?;
            for at in self.tree.take_unsure() {
                self.look(at)?;
            }
        }
        for number in self.tree.take_floating() {
            if self.directories.contains_key(&number) {
                return Err(self.lose(format!("directory {number} was moved out of the volume")));
            }
        }
        Ok(())
    }

    /// Lists the whole directory anew, and takes nothing for sure.
    fn relist(&mut self) -> Result<(), Refusal> {
        info!("lists the volume anew and compares all of it");
        self.tree.forget_entries();
        self.files.values_mut().for_each(File::suspect);
        self.list(Number::ROOT)?;
        let mut listed = BTreeSet::from([Number::ROOT]);
        loop {
            let unsure = self.tree.take_unsure();
            if unsure.is_empty() {
                return Ok(());
            }
            for at in unsure {
                self.look(at.clone())?;
                let directory = self.tree.number(&at).filter(|number| self.directories.contains_key(number));
                if let Some(number) = directory.filter(|number| listed.insert(*number)) {
                    self.list(number)?;
                }
            }
        }
    }

    fn list(&mut self, number: Number) -> Result<(), Refusal> {
        let Some(directory) = self.directories.get(&number) else { return Ok(()) };
        let directory = match reopen_directory(directory) {
            // Just removed: its parent's events will say so.
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for entry in Dir::new(directory)? {
            let name = entry?.file_name().to_owned();
            if let Some(name) = Name::new(name.to_bytes()) {
                self.tree.doubt((number, name));
            }
        }
        Ok(())
    }

    /// Looks what a name stands for.
    fn look(&mut self, at: At) -> Result<(), Refusal> {
        let found = match self.directories.get(&at.0) {
            Some(directory) => match hold(directory.as_fd(), &at.1) {
                Ok(found) => found,
                Err(Errno::NOENT) => {
                    self.tree.set(at, None);
                    return Ok(());
                }
                Err(errno) => return Err(self.lose(format!("cannot look at {}: {errno}", at.1))),
            },
            None => {
                self.tree.set(at, None);
                return Ok(());
            }
        };
        let identity = proc::identity("", &found, AtFlags::EMPTY_PATH)?;
        if identity.device != self.device {
            return Err(self.lose(format!("{} is on another device", at.1)));
        }
        if let Some(&number) = self.inodes.get(&identity.inode) {
            if self.tree.entry(&at) != Some(Entry::Known(number)) {
                // Whatever came under this name may have been meant for it, and what came under its other names for others.
                if let Some(Entry::Known(other)) = self.tree.entry(&at) {
                    self.with(other, File::suspect);
                }
                self.with(number, |file| {
                    file.suspect();
                    file.moved = true;
                });
                self.tree.set(at, Some(Entry::Known(number)));
            }
            return Ok(());
        }
        let entry = match identity.kind {
            FileType::RegularFile => Entry::Known(self.adopt(identity, Kind::File, found)?),
            FileType::Directory => Entry::Known(self.adopt(identity, Kind::Directory, found)?),
            FileType::Symlink => {
                let target = fs::readlinkat(&found, "", Vec::new())?.into_bytes();
                Entry::Known(self.adopt(identity, Kind::Link(target.into()), found)?)
            }
            _ => Entry::Ignored,
        };
        self.tree.set(at, Some(entry));
        Ok(())
    }

    /// Gives a number to what has none.
    fn adopt(&mut self, identity: Identity, kind: Kind, found: OwnedFd) -> Result<Number, Refusal> {
        if self.known.len() >= self.bounds.files {
            return Err(self.lose(format!("the volume has more than {} files (--files-max)", self.bounds.files)));
        }
        let reused = if planted::has(Bug::NumberUsedTwice) { self.first_free() } else { None };
        let number = reused.unwrap_or(self.next);
        self.next = self.next.max(number.next());
        self.inodes.insert(identity.inode, number);
        let mut hold = Some(found);
        match (&kind, &hold) {
            (Kind::File, Some(found)) => {
                let file = match reopen(found) {
                    Ok(reader) => File::new(identity.inode, reader),
                    Err(errno) => {
                        let mut file = File::new(identity.inode, found.try_clone()?);
                        file.fault = Some(format!("file {number} cannot be read: {errno}"));
                        file
                    }
                };
                self.files.insert(number, file);
                hold = None;
            }
            (Kind::Directory, Some(found)) => {
                match self.watch.add(found.as_fd(), number) {
                    // Likewise.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    added => added?,
                }
                self.directories.insert(number, found.try_clone()?);
                // What it had before it was watched.
                self.list(number)?;
            }
            _ => {}
        }
        self.known.insert(number, Known { inode: identity.inode, kind, _hold: hold });
        Ok(number)
    }

    /// For a planted bug.
    fn first_free(&self) -> Option<Number> {
        (1..self.next.0)
            .map(Number)
            .find(|number| !self.known.contains_key(number) && self.image.node(*number).is_none())
    }

    /// Forgets what has no name, here and in the log. Until a removed name is gone there too, a power failure may bring it back:
    /// then the file has to be as its last sync left it.
    fn forget_gone(&mut self) {
        let leaving = std::mem::take(&mut self.leaving);
        for number in leaving {
            if self.tree.names(number).next().is_some() {
                continue;
            }
            if self.image.node(number).is_some_and(|node| !node.names.is_empty()) {
                self.leaving.insert(number);
            } else {
                self.forget(number);
            }
        }
    }

    fn forget(&mut self, number: Number) {
        self.files.remove(&number);
        self.directories.remove(&number);
        self.modes.remove(&number);
        if let Some(known) = self.known.remove(&number)
            && !planted::has(Bug::InodeReused)
        {
            self.inodes.remove(&known.inode);
        }
    }
}

/// Bytes.
impl Volume {
    /// Reads the positions of a file's writers.
    fn advance(&mut self, number: Number) -> Result<(), Refusal> {
        self.settle()?;
        let any_duplicates = |effects: &Effects| effects.all().any(|effect| effect.duplicates);
        if any_duplicates(&self.effects) {
            // Each sync would walk through /proc for the child of a shell that has long gone.
            self.settle_ended();
        }
        let duplicates = any_duplicates(&self.effects);
        for look in 0..LOOKS {
            let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
            if look == 0 && (duplicates || file.ragged || file.writers.is_opening() || self.effects.is_opening(number))
            {
                file.writers.look();
            }
            if file.writers.must_look() {
                self.find_writers()?;
            }
            let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
            let File { writers, doubts, .. } = file;
            writers.advance(doubts, |process, descriptor| self.infos.get(process, descriptor));
            if !writers.must_look() {
                return Ok(());
            }
            if file.ragged {
                file.doubts.add(Ranges::WHOLE);
            }
        }
        // It opens and closes the file without end.
        self.with(number, |file| file.doubts.add(Ranges::WHOLE));
        Ok(())
    }

    /// One walk for all files whose writers have to be looked for.
    fn find_writers(&mut self) -> Result<(), Refusal> {
        let began = Instant::now();
        let writers = match proc::writers(self.device) {
            Ok(writers) => writers,
            Err(hidden) => return Err(self.lose(hidden.to_string())),
        };
        let mut found: HashMap<u64, Vec<proc::Writer>> = HashMap::new();
        for writer in writers {
            found.entry(writer.info.inode).or_default().push(writer);
        }
        let is_due = |file: &&mut File| file.writers.must_look() || file.writers.has_opened(began);
        for File { inode, doubts, writers, .. } in self.files.values_mut().filter(is_due) {
            writers.found(doubts, found.remove(inode).into_iter().flatten(), began);
        }
        Ok(())
    }

    /// Takes what the log does not have of a file.
    pub fn capture(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        if let Some(fault) = &self.fault {
            return Err(Refusal::Lost(fault.clone()));
        }
        if self.effects.len() > EFFECTS {
            self.settle_ended();
        }
        self.advance(number)?;
        let result = self.compare(number, records);
        if let (Err(Refusal::Lost(why)), Some(file)) = (&result, self.files.get_mut(&number)) {
            warn!(%number, %why, "cannot follow a file any more: each of its syncs fails from now on");
            file.fault = Some(why.clone());
        }
        result
    }

    /// Threads that have ended make no more calls.
    fn settle_ended(&mut self) {
        self.effects.ended().into_iter().for_each(|thread| self.stopped(thread));
    }

    fn compare(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        let Some(file) = self.files.get_mut(&number) else { return Ok(()) };
        if let Some(fault) = &file.fault {
            return Err(Refusal::Lost(fault.clone()));
        }
        let mut doubts = std::mem::take(&mut file.doubts);
        if planted::has(Bug::RangeCleanTooEarly) {
            for effect in self.effects.all_mut() {
                let mine = effect.ranges.extract_if(.., |(of, _)| *of == number);
                doubts.extend(mine.map(|(_, range)| range));
            }
        }
        for effect in self.effects.all() {
            if effect.truncates || effect.is_opening(number) {
                doubts.add(Ranges::WHOLE);
            }
            doubts.extend(effect.ranges.iter().filter(|(of, _)| *of == number).map(|(_, range)| *range));
        }
        if file.mapped || file.ragged {
            doubts.add(Ranges::WHOLE);
        }
        for _ in 0..COMPARISONS {
            let mut length = fs::fstat(&file.reader)?.st_size as u64;
            let ranges = Comparison::ranges(&file.blocks, &doubts, length);
            if ranges.size() > self.bounds.scan {
                let scan = self.bounds.scan;
                return Err(Refusal::Lost(format!(
                    "{} bytes would have to be compared (--scan-max {scan})",
                    ranges.size()
                )));
            }
            self.compared.add(ranges.size());
            let others = self.image.size().saturating_sub(file.blocks.length());
            if others.saturating_add(length) > self.bounds.bytes {
                file.doubts = doubts;
                let (bytes, number) = (others.saturating_add(length), number.0);
                let bound = self.bounds.bytes;
                return Err(Refusal::Full(format!(
                    "file {number} makes the volume {bytes} bytes (--bytes-max {bound})"
                )));
            }
            let mut made = Vec::new();
            if self.image.node(number).is_none() {
                let mode = Mode::of(fs::fstat(&file.reader)?.st_mode);
                made.push(Record::Create { number, kind: Kind::File, mode }.encode());
            }
            if length < file.blocks.length() && planted::has(Bug::LengthForgotten) {
                length = file.blocks.length();
            }
            if length < file.blocks.length() {
                made.push(Record::Length { file: number, length }.encode());
                // The block that is cut through has no hash any more.
                doubts.add((length.saturating_sub(1), length));
                file.blocks.cut(length);
            }
            let largest = self.bounds.record - DATA_HEADER;
            let compared =
                self.comparison.compare(file.reader.as_fd(), &mut file.blocks, &doubts, length, |offset, bytes| {
                    if bytes.iter().all(|&byte| byte == 0) {
                        let zero = Record::Zero { file: number, offset, length: bytes.len() as u64 };
                        made.push(zero.encode());
                        return;
                    }
                    let mut offset = offset;
                    for bytes in bytes.chunks(largest) {
                        made.push(Record::Data { file: number, offset, bytes }.encode());
                        offset += bytes.len() as u64;
                    }
                })?;
            if let Compared::Shorter(end) = compared {
                // What was compared before it was cut is logged as it was; the rest follows at once.
                length = end;
            }
            for record in made {
                let decoded = Record::decode(&record).map_err(|error| Refusal::Lost(error.to_string()))?;
                self.image.fold(&decoded).map_err(|error| Refusal::Lost(error.to_string()))?;
                records.push(record);
            }
            if compared == Compared::Whole {
                file.synced = true;
                return Ok(());
            }
            doubts.add((length.saturating_sub(1), u64::MAX));
        }
        Err(Refusal::Lost("it is cut again and again while it is read".into()))
    }

    /// A record of which the image learns.
    fn log(&mut self, records: &mut Vec<Vec<u8>>, record: &Record<'_>) -> Result<(), Refusal> {
        if let Err(error) = self.image.fold(record) {
            return Err(self.lose(format!("a record that the log cannot take: {error}")));
        }
        records.push(record.encode());
        Ok(())
    }
}

/// What a sync owes.
impl Volume {
    /// Takes all that the log does not have, of every file that was ever synced or has been written to, and all names.
    pub fn capture_all(&mut self, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.settle()?;
        let mut numbers: Vec<Number> = self.files.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.capture(number, records)?;
        }
        self.capture_names(records)
    }

    /// Takes a file, and all names if its own are not in the log.
    pub fn capture_file(&mut self, number: Number, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        self.capture(number, records)?;
        if !self.files.contains_key(&number) {
            // It has just lost its name, and the log never had it. What took the name away survives instead.
            return self.capture_names(records);
        }
        let mode = self.modes.contains(&number);
        let pending = || {
            self.tree.touched().iter().any(|at| {
                let (now, logged) = (self.tree.number(at), self.image.entry(at));
                now != logged && (now == Some(number) || logged == Some(number))
            })
        };
        // A directory that was made or moved above it is a name that it has.
        if planted::has(Bug::OwnNamesOnly) {
            return if mode || pending() { self.capture_names_of(Some(number), records) } else { Ok(()) };
        }
        if mode || pending() || self.has_new_parent(number) { self.capture_names(records) } else { Ok(()) }
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
        // A file that replaces another one by a rename brings its bytes, as file systems have it. Meanwhile names may change, so
        // they are taken when no such file is left.
        for _ in 0..SETTLE_ROUNDS {
            self.settle()?;
            let unsynced = |file: &File| file.moved && !file.synced && file.fault.is_none();
            let moved = self.tree.touched().iter().filter_map(|at| self.tree.number(at));
            let Some(number) = moved.into_iter().find(|number| self.files.get(number).is_some_and(unsynced)) else {
                break;
            };
            self.capture(number, records)?;
        }
        let mut changes = BTreeMap::new();
        for at in self.tree.touched() {
            let (now, logged) = (self.tree.number(at), self.image.entry(at));
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
        let mut group: Vec<Change> = changes
            .into_iter()
            .map(|((directory, name), now)| match now {
                Some(number) => Change::Name { directory, name, number },
                None => Change::Unname { directory, name },
            })
            .collect();
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
            self.tree.logged();
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

    fn mode(&self, number: Number) -> Result<Mode, Refusal> {
        let bits = match (self.files.get(&number), self.directories.get(&number)) {
            (Some(file), _) => fs::fstat(&file.reader)?.st_mode,
            (_, Some(directory)) => fs::fstat(directory)?.st_mode,
            _ => 0o777,
        };
        Ok(Mode::of(bits))
    }
}

/// Holds what a name stands for, whatever it is, without opening it.
fn hold(directory: BorrowedFd<'_>, name: &Name) -> Result<OwnedFd, Errno> {
    fs::openat(directory, name.as_os_str(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Bits::empty())
}

/// For reading. That is an open event of its own, which costs a look for writers.
fn reopen(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Bits::empty())
}

fn reopen_directory(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    fs::openat(held, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Bits::empty())
}
