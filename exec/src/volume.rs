//! The volume while the program runs: what of it the log has, what may differ, and what an `fsync` owes.
//!
//! The supervisor tells it of each stopped call, and asks it for the records that a sync owes. It looks at the directory, at
//! inotify and at `/proc`; what follows from what it sees is decided in the pure halves, `tree` and `files`. Each rule may name
//! too much, never too little: what may differ is compared with the hashes of what the log has, and only what really differs is
//! logged.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{self, AtFlags, CWD, FileType, Mode as Bits, OFlags};
use rustix::io::Errno;
use tracing::warn;

use crate::call::{Call, Descriptor, Thread};
use crate::compare::Comparison;
use crate::directory::Left;
use crate::image::{Image, Node};
use crate::planted::{self, Bug};
use crate::ranges::Ranges;
use crate::record::{Kind, Name, Number};
use crate::tally;

mod bytes;
mod files;
mod generation;
mod names;
mod owes;
mod proc;
mod tree;
mod watch;

use files::{Effects, File, Links, MappedElsewhere};
use proc::{Identity, Infos};
use tree::Tree;
use watch::Watch;

pub(crate) use proc::{descendants, sleeps_uninterruptibly};

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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// A file of the volume.
    File(Number),
    /// A directory of it: all names.
    Names,
    /// No file: the kernel knows what to say.
    Kernel,
    /// A file that is not in the volume.
    Outside(PathBuf),
}

/// What an `msync` concerns.
#[derive(Clone, Default, Debug)]
pub struct Mapped {
    /// Files of the volume.
    pub files: BTreeSet<Number>,
    /// Files elsewhere that may be written to.
    pub outside: BTreeSet<PathBuf>,
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
    /// Directories whose names are not known since events were lost.
    unlisted: BTreeSet<Number>,
    files: HashMap<Number, File>,
    /// Each inode that a number stands for.
    inodes: HashMap<u64, Number>,
    /// The other way, with what is needed to create the number.
    known: HashMap<Number, Known>,
    /// Numbers that have no name any more.
    leaving: BTreeSet<Number>,
    /// Numbers that are gone here and have bytes in the log, where they never had a name.
    orphans: BTreeSet<Number>,
    /// Numbers whose mode may be another one.
    modes: BTreeSet<Number>,
    effects: Effects,
    mapped_elsewhere: MappedElsewhere,
    links: Links,
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
    hold: Option<OwnedFd>,
}

impl Volume {
    /// The directory as a follower has left it, without a program. Gives everything its mode.
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
            orphans: BTreeSet::new(),
            modes: BTreeSet::new(),
            effects: Effects::default(),
            mapped_elsewhere: MappedElsewhere::default(),
            links: Links::default(),
            comparison,
            next: image.next(),
            directories: HashMap::new(),
            unlisted: BTreeSet::new(),
            image: Image::default(),
            copying: None,
            compared: tally::Compared::default(),
            fault: None,
        };
        for (number, node) in image.nodes() {
            let hold = match (&node.kind, node.names.first()) {
                (Kind::Directory, _) => {
                    let directory = directories.get(&number).ok_or(Errno::NOENT)?;
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
            volume.known.insert(number, Known { inode, kind: node.kind.clone(), hold });
        }
        volume.directories = directories;
        volume.image = image;
        volume.watch_and_set_modes()?;
        Ok(volume)
    }

    /// A mode may keep this user from reading the file or watching the directory: so it is set afterwards. Files come first, and
    /// directories from the bottom up, so that there are few events of it, and no more than the queue takes.
    fn watch_and_set_modes(&mut self) -> io::Result<()> {
        let mode = |node: &Node| Bits::from_raw_mode(node.mode.0.into());
        for (number, file) in &self.files {
            if let Some(node) = self.image.node(*number) {
                fs::fchmod(&file.reader, mode(node))?;
            }
        }
        let depth = |number: &Number| {
            let parent = |number: &Number| self.image.node(*number)?.names.first().map(|(directory, _)| *directory);
            std::iter::successors(Some(*number), parent).count()
        };
        let mut directories: Vec<_> = self.directories.iter().collect();
        directories.sort_by_cached_key(|(number, _)| std::cmp::Reverse(depth(number)));
        for (number, directory) in directories {
            self.watch.add(directory.as_fd(), *number)?;
            if let Some(node) = self.image.node(*number).filter(|_| *number != Number::ROOT) {
                fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), mode(node))?;
                // Of nobody but this.
                self.watch.read()?;
                self.watch.take();
            }
        }
        Ok(())
    }

    /// The directory has files that the log does not have: takes them for new ones.
    pub fn import(&mut self) -> Result<(), Refusal> {
        self.relist()?;
        self.settle()
    }

    /// What has been compared since this was asked last.
    pub fn take_compared(&mut self) -> tally::Compared {
        std::mem::take(&mut self.compared)
    }

    /// Nothing can be followed any more, for this reason if it is the first one.
    fn lose(&mut self, why: String) -> Refusal {
        if self.fault.is_none() {
            warn!(%why, "cannot follow the program any more: each sync fails from now on");
        }
        Refusal::Lost(self.fault.get_or_insert(why).clone())
    }

    /// Takes a step that leaves a gap if it fails: nothing is confirmed after that.
    fn or_lose(&mut self, step: impl FnOnce(&mut Volume) -> Result<(), Refusal>) -> Result<(), Refusal> {
        if let Some(fault) = &self.fault {
            return Err(Refusal::Lost(fault.clone()));
        }
        match step(self) {
            Err(Refusal::Lost(why)) => Err(self.lose(why)),
            taken => taken,
        }
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
            if let Some(File { writers, doubts, .. }) = self.files.get_mut(&number) {
                writers.settle(doubts, thread);
            }
        }
        for number in effect.opens.into_iter().flatten() {
            if let Some(file) = self.files.get_mut(&number) {
                file.suspect();
            }
        }
        self.links.made += effect.links;
        if !effect.truncates && !effect.duplicates {
            return;
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

    /// A call that goes on after this. If it cannot be followed, each sync fails from now on.
    pub fn calls(&mut self, thread: Thread, call: Call) {
        if self.effects.are_many() {
            self.settle_ended();
        }
        // Whatever went wrong, it is kept as the volume's fault.
        let _ = self.or_lose(|volume| volume.on_call(thread, call));
    }

    fn on_call(&mut self, thread: Thread, call: Call) -> Result<(), Refusal> {
        match call {
            Call::Sync(_) | Call::SyncAll | Call::SyncFileSystem(_) | Call::SyncMapping { .. } => {}
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
                // Before the others, so that what is written from here on is behind this or seen by those.
                let before = self.infos.get(thread.0, descriptor.0);
                if before.is_some_and(|info| !info.writable) {
                    // Nobody writes at this position.
                    return Ok(());
                }
                if let Some(number) = self.changes(thread, descriptor)? {
                    self.effects.of(thread, &mut self.infos).stepped.insert(number);
                    let shared = (!proc::is_alone(thread)).then(|| before.map_or(0, |info| info.position));
                    self.settle()?;
                    self.uses(thread, descriptor, number);
                    self.advance(number)?;
                    if let Some(file) = self.files.get_mut(&number) {
                        file.writers.step_back(thread, target.unwrap_or(0), shared);
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
            Call::Map(descriptor) => self.maps(thread, descriptor)?,
            Call::Link => {
                self.tree.linked();
                self.effects.of(thread, &mut self.infos).links += 1;
            }
            Call::Exchange if planted::has(Bug::ExchangeForgotten) => {}
            Call::Exchange => self.tree.exchanging(),
        }
        Ok(())
    }

    /// Memory is shared with a file: it may be changed by stores, also under a name that it gets later.
    fn maps(&mut self, thread: Thread, descriptor: Descriptor) -> Result<(), Refusal> {
        match self.target(thread, descriptor)? {
            _ if self.infos.get(thread.0, descriptor.0).is_some_and(|info| !info.writable) => {}
            Target::File(number) => self.with(number, |file| file.mapped = true),
            Target::Names | Target::Outside(_) => {
                if let Some(inode) = self.inode_here(thread, descriptor) {
                    self.mapped_elsewhere.add(inode);
                }
            }
            Target::Kernel => {}
        }
        Ok(())
    }

    /// The inode behind a descriptor, if it is on the volume's device.
    fn inode_here(&self, thread: Thread, descriptor: Descriptor) -> Option<u64> {
        let Identity { device, inode, .. } = proc::descriptor(thread, descriptor).ok()?;
        (device == self.device).then_some(inode)
    }

    fn writes(&mut self, thread: Thread, descriptor: Descriptor, range: (u64, u64)) -> Result<(), Refusal> {
        if let Some(number) = self.changes(thread, descriptor)? {
            let ranges = &mut self.effects.of(thread, &mut self.infos).ranges;
            match ranges.last_mut() {
                Some((last, (_, end))) if *last == number && *end == range.0 => *end = range.1,
                _ => ranges.push((number, range)),
            }
        }
        Ok(())
    }

    /// The file of the volume behind a descriptor by which it is changed soon. If there is none, one may get a name before that.
    fn changes(&mut self, thread: Thread, descriptor: Descriptor) -> Result<Option<Number>, Refusal> {
        match self.target(thread, descriptor)? {
            Target::File(number) => return Ok(Some(number)),
            Target::Names | Target::Outside(_) => {
                if let Some(inode) = self.inode_here(thread, descriptor) {
                    self.effects.of(thread, &mut self.infos).elsewhere.insert(inode);
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// What a descriptor leads to.
    pub fn target(&mut self, thread: Thread, descriptor: Descriptor) -> Result<Target, Refusal> {
        if let Some(target) = self.known_target(thread, descriptor) {
            return Ok(target);
        }
        let identity = match proc::descriptor(thread, descriptor) {
            Ok(identity) => identity,
            // Nobody learns of the answer, or the kernel says EBADF.
            Err(errno) if proc::is_closed(thread, errno) => return Ok(Target::Kernel),
            Err(errno) => {
                return Err(self.lose(format!("thread {thread} of the program cannot be looked at in /proc: {errno}")));
            }
        };
        let outside = || Target::Outside(proc::path(thread, descriptor).unwrap_or_default());
        if identity.device != self.device {
            let regular = matches!(identity.kind, FileType::RegularFile | FileType::Directory);
            // A file that has no name anywhere is no more than memory.
            let lasts = regular && identity.links > 0;
            return Ok(if lasts { outside() } else { Target::Kernel });
        }
        match identity.kind {
            FileType::Directory => self.directory(thread, descriptor, identity),
            FileType::RegularFile => self.number(thread, descriptor, identity),
            _ => Ok(Target::Kernel),
        }
    }

    fn directory(
        &mut self,
        thread: Thread,
        descriptor: Descriptor,
        Identity { inode, links, .. }: Identity,
    ) -> Result<Target, Refusal> {
        if links == 0 || self.inodes.contains_key(&inode) {
            return Ok(Target::Names);
        }
        // Its name may be in the queue.
        self.settle()?;
        let is_here = self.inodes.contains_key(&inode) || self.leads_here(thread, descriptor);
        let outside = || Target::Outside(proc::path(thread, descriptor).unwrap_or_default());
        Ok(if is_here { Target::Names } else { outside() })
    }

    /// Whether a descriptor leads to the file system that the volume is on, to no matter what there. Subvolumes of btrfs are devices
    /// of their own: all of them count.
    pub fn is_on_its_file_system(&mut self, thread: Thread, descriptor: Descriptor) -> Result<bool, Refusal> {
        let identity = match proc::descriptor(thread, descriptor) {
            Ok(identity) => identity,
            // As for any sync.
            Err(_) => return Ok(false),
        };
        if identity.device == self.device {
            return Ok(true);
        }
        const BTRFS: u64 = 0x9123_683e;
        let root = self.directories.get(&Number::ROOT).map(fs::fstatfs).transpose()?;
        let is_btrfs = root.is_some_and(|root| root.f_type as u64 == BTRFS);
        Ok(is_btrfs && proc::file_system(thread, descriptor) == Some(BTRFS))
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
        let outside = || Target::Outside(proc::path(thread, descriptor).unwrap_or_default());
        let known = |volume: &Volume| volume.inodes.get(&identity.inode).map(|number| Target::File(*number));
        if let Some(target) = known(self) {
            return Ok(target);
        }
        // Its name may be in the queue. Or it has none: then nothing of it survives, but what took its name away does, as if the
        // file had been there.
        let is_nameless = || match proc::descriptor(thread, descriptor) {
            Ok(identity) => identity.links == 0,
            Err(errno) => proc::is_closed(thread, errno),
        };
        self.settle()?;
        if let Some(target) = known(self) {
            return Ok(target);
        }
        if is_nameless() {
            return Ok(Target::Names);
        }
        if identity.links == 1 && !self.leads_here(thread, descriptor) {
            return Ok(outside());
        }
        // Events are missing; or one of its names is elsewhere on the device.
        self.relist()?;
        self.settle()?;
        match known(self) {
            Some(target) => Ok(target),
            None if is_nameless() => Ok(Target::Names),
            None => Ok(outside()),
        }
    }

    /// Whether the path of a descriptor is in the volume.
    fn leads_here(&self, thread: Thread, descriptor: Descriptor) -> bool {
        // What cannot be told is looked for.
        self.root_path().zip(proc::path(thread, descriptor)).is_none_or(|(root, found)| found.starts_with(root))
    }

    fn root_path(&self) -> Option<PathBuf> {
        proc::own_path(self.directories.get(&Number::ROOT)?.as_fd())
    }

    /// What a thread has mapped at an address and shares. Files are told by their paths and inodes: on btrfs a mapping names
    /// another device than the file's status.
    pub fn mapped(&mut self, thread: Thread, address: u64, length: u64) -> Result<Mapped, Refusal> {
        self.settle()?;
        let (mut mapped, root) = (Mapped::default(), self.root_path());
        for proc::Mapping { inode, writable, path } in proc::mapped(thread, address, length)? {
            let is_here = root.as_ref().is_none_or(|root| path.starts_with(root));
            let is_gone = proc::is_deleted(&path);
            match self.inodes.get(&inode).filter(|_| is_here || is_gone) {
                // The name that it was mapped under may be gone, and may have been elsewhere.
                Some(number) => drop(mapped.files.insert(*number)),
                // Nothing of it lasts.
                None if is_gone => {}
                None if writable => drop(mapped.outside.insert(path)),
                None => {}
            }
        }
        Ok(mapped)
    }
}

/// Holds what a name stands for, a file of any type, without opening it.
fn hold(directory: BorrowedFd<'_>, name: &Name) -> Result<OwnedFd, Errno> {
    fs::openat(directory, name.as_os_str(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Bits::empty())
}

/// For reading. That is an open event of its own, which costs a look for writers. It waits for nobody who has a lease on the file.
fn reopen(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK, Bits::empty())
}
