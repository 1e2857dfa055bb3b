//! The program: threads and children that change files at random and write down what became of them.
//!
//! Steps on one file exclude each other, and so do steps on names; syncs exclude nobody. What a file or the directory is after
//! a step is read back from the kernel, so this knows nothing of how calls work.
//!
//! Some programs do without some kinds of steps, since what the supervisor has to do after one kind hides what it forgets after another
//! (swarm testing: Groce, Zhang, Eide, Chen, Regehr, ISSTA 2012).
#![allow(unsafe_code, reason = "system calls, fork and memory that children share, as programs use them")]

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use rustix::fs::{self, AtFlags, CWD, Mode, OFlags, RenameFlags, SeekFrom};
use rustix::io::{self, Errno};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};

use crate::Places;
use crate::journal::{Covers, Entry, FileId, Leads, Paths};
use crate::random::Random;

mod aimed;

const THREADS: u64 = 3;
const STEPS: u64 = 70;
const CHILD_STEPS: u64 = 12;
/// Files are small, so that writes meet each other.
const LENGTH_MAX: u64 = 12_000;
const LOCKS: usize = 64;
/// One of so many such steps: it takes a tenth of a second and more.
const OVERFLOWS: u64 = 24;

/// Steps that a program may do without.
#[derive(Clone, Copy)]
enum Kind {
    Reopen,
    Descriptors,
    Map,
    Fork,
    Overflow,
    Link,
    Exchange,
    Nameless,
    Outside,
    Truncate,
    Allocate,
    Seek,
}

/// The kinds of steps that a program takes: one bit each.
struct Kinds(u32);

impl Kinds {
    /// Half of the programs take all, a quarter takes none.
    fn new(random: &mut Random) -> Kinds {
        match random.below(4) {
            0 => Kinds(0),
            1 => Kinds(random.next() as u32),
            _ => Kinds(u32::MAX),
        }
    }

    fn has(&self, kind: Kind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

/// Memory that children share.
struct Shared {
    locks: [AtomicU32; LOCKS],
    syncs: AtomicU64,
}

/// A file, as long as its bytes may be asked for.
struct Played {
    id: FileId,
    reader: File,
}

struct Open {
    descriptor: OwnedFd,
    file: Arc<Played>,
    writes: bool,
}

struct Mapping {
    at: *mut u8,
    length: usize,
    file: Arc<Played>,
}

// SAFETY: the memory is a mapping of a file, reached by raw pointers under the file's lock only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[derive(Default)]
struct Table {
    open: Vec<Open>,
    mappings: Vec<Mapping>,
}

impl Played {
    /// By the descriptor: its names change.
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.reader.as_raw_fd()).into()
    }
}

impl Table {
    fn add(&mut self, open: Open) {
        self.open.push(open);
        if self.open.len() > 12 {
            self.open.remove(0);
        }
    }

    /// Two that write to the same file.
    fn two_of_one_file(&self) -> Option<(usize, usize)> {
        let writers = || (0..self.open.len()).filter(|&index| self.open[index].writes);
        let mut pairs = writers().flat_map(|one| writers().map(move |other| (one, other)));
        pairs.find(|(one, other)| one != other && Arc::ptr_eq(&self.open[*one].file, &self.open[*other].file))
    }
}

#[derive(Default)]
struct Names {
    /// By inode, as long as the file has a name or is kept.
    files: HashMap<u64, Arc<Played>>,
    next: FileId,
}

struct World {
    root: PathBuf,
    journal: File,
    acked: File,
    kinds: Kinds,
    shared: &'static Shared,
    table: RwLock<Table>,
    names: Mutex<Names>,
}

pub(crate) fn main() -> ExitCode {
    let places = Places::read();
    let journal = File::options().append(true).open(places.journal()).expect("open the journal");
    let acked = File::open(places.acked()).expect("open the number of acks");
    let root = places.directory();
    let (kinds, table, names) = (Kinds::new(&mut places.random(0)), RwLock::default(), Mutex::default());
    let world = World { root, journal, acked, kinds, shared: share(), table, names };
    world.begin();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, mut random) = (&world, places.random(10 + thread));
            let mut files = Vec::new();
            scope.spawn(move || (0..STEPS).for_each(|_| world.step(&mut random, &mut files)));
        }
    });
    // Children continue after the threads, and nothing may write after the end.
    wait_for_children();
    // A name elsewhere has all files compared at each sync, for good.
    if !world.kinds.has(Kind::Outside) {
        world.end(places.turn, &mut places.random(3));
    }
    ExitCode::SUCCESS
}

fn wait_for_children() {
    while rustix::process::wait(rustix::process::WaitOptions::empty()).is_ok() {}
}

fn share() -> &'static Shared {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: new memory, wherever the kernel likes.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), size_of::<Shared>(), protection, flags) };
    // SAFETY: it is of the right size, aligned to a page, all zeros, which are valid atomics, and never unmapped.
    unsafe { &*at.expect("shared memory").cast::<Shared>() }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL")
}

impl World {
    fn write_down(&self, entry: &Entry) {
        // One write: entries of threads and children do not mix.
        let bytes = entry.encode();
        assert_eq!((&self.journal).write(&bytes).expect("write to the journal"), bytes.len());
    }

    fn trouble(&self, what: String) {
        self.write_down(&Entry::Trouble(what));
    }

    /// What the last turn has left counts as synced.
    fn begin(&self) {
        let mut names = self.names.lock().expect("no panic");
        let mut found = Vec::new();
        walk(&self.root, &mut |path, metadata| {
            if metadata.is_file() {
                found.push((path.to_owned(), metadata.ino()));
            }
        });
        for (path, inode) in found {
            if !names.files.contains_key(&inode) {
                names.add(&path).expect("open what is there");
                self.content(&names.files[&inode]);
            }
        }
        self.write_down(&Entry::Names(self.list(&names)));
        self.write_down(&Entry::Calls { sync: 0, covers: Covers::All });
        self.write_down(&Entry::Returned { sync: 0, acked: self.acked() });
        self.shared.syncs.store(1, Ordering::Relaxed);
    }

    fn acked(&self) -> u64 {
        let mut bytes = [0; 8];
        self.acked.read_exact_at(&mut bytes, 0).expect("read the number of acks");
        u64::from_le_bytes(bytes)
    }

    /// `files` are those that this thread knows of.
    fn step(&self, random: &mut Random, files: &mut Vec<Arc<Played>>) {
        match random.below(100) {
            0..40 => self.write_somewhere(random),
            40..58 => self.sync(random, files),
            58..66 => self.open(random),
            66..72 if self.kinds.has(Kind::Descriptors) => self.change_descriptors(random),
            72..75 if self.kinds.has(Kind::Map) => self.map(random),
            75..79 if self.kinds.has(Kind::Fork) => self.fork(random),
            79 if self.kinds.has(Kind::Overflow) && random.one_in(OVERFLOWS) => self.overflow(random),
            66..79 => self.write_somewhere(random),
            _ => self.change_names(random),
        }
    }

    /// Until the file's lock is held.
    fn exclusive<R>(&self, file: &Played, step: impl FnOnce() -> R) -> R {
        let lock = &self.shared.locks[file.id as usize % LOCKS];
        while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        let result = step();
        lock.store(0, Ordering::Release);
        result
    }

    /// Writes down what a file is. The caller has its lock, or it is new.
    fn content(&self, file: &Played) {
        let length = file.reader.metadata().expect("a file has a length").len();
        let mut bytes = vec![0; length as usize];
        file.reader.read_exact_at(&mut bytes, 0).expect("read a file");
        self.write_down(&Entry::Content(file.id, bytes));
    }

    fn write_somewhere(&self, random: &mut Random) {
        let table = self.table.read().expect("no panic");
        if !table.mappings.is_empty() && random.one_in(6) {
            let mapping = random.pick(&table.mappings).expect("there is one");
            self.exclusive(&mapping.file, || store(mapping, random));
            self.exclusive(&mapping.file, || self.content(&mapping.file));
            if random.one_in(3) {
                // SAFETY: within the mapping, which nobody takes away while the table is held.
                let call = || unsafe { msync(mapping.at.cast(), mapping.length, MsyncFlags::SYNC) };
                self.sync_by(Covers::File(mapping.file.id), call);
            }
            return;
        }
        let writers: Vec<&Open> = table.open.iter().filter(|open| open.writes).collect();
        let Some(open) = random.pick(&writers) else { return };
        self.exclusive(&open.file, || {
            self.write_with(open.descriptor.as_fd(), random);
            self.content(&open.file);
        });
    }

    fn sync(&self, random: &mut Random, files: &mut Vec<Arc<Played>>) {
        // While another thread opens a file, it syncs one of those that it knows.
        if let Ok(names) = self.names.try_lock() {
            *files = names.files.values().cloned().collect();
        }
        let (covers, file) = match random.below(10) {
            0 => (Covers::All, File::open(&self.root).expect("open the root")),
            1 | 2 => (Covers::Names, File::open(&self.root).expect("open the root")),
            _ => {
                let Some(file) = random.pick(files) else { return };
                (Covers::File(file.id), file.reader.try_clone().expect("clone a descriptor"))
            }
        };
        self.sync_by(covers, || match covers {
            Covers::All if random.one_in(2) => fs::syncfs(&file),
            Covers::All => {
                fs::sync();
                Ok(())
            }
            _ if random.one_in(2) => fs::fdatasync(&file),
            _ => fs::fsync(&file),
        });
    }

    fn sync_by(&self, covers: Covers, call: impl FnOnce() -> io::Result<()>) {
        let sync = self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        self.write_down(&Entry::Calls { sync, covers });
        let result = call();
        let acked = self.acked();
        match result {
            Ok(()) => self.write_down(&Entry::Returned { sync, acked }),
            Err(error) => self.trouble(format!("a sync of {covers:?} fails: {error}")),
        }
    }

    fn open(&self, random: &mut Random) {
        let mut names = self.names.lock().expect("no panic");
        let path = self.path(random);
        let access = *random.pick(&[OFlags::RDWR, OFlags::RDWR, OFlags::WRONLY, OFlags::RDONLY]).expect("some");
        let writes = access != OFlags::RDONLY;
        let mut flags = access | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        flags.set(OFlags::APPEND, random.one_in(3));
        flags.set(OFlags::TRUNC, writes && self.kinds.has(Kind::Truncate) && random.one_in(4));
        let found = std::fs::symlink_metadata(&path).ok();
        let known = found.as_ref().and_then(|found| names.files.get(&found.ino()).cloned());
        let is_written = |file: &Arc<Played>| {
            let table = self.table.read().expect("no panic");
            table.open.iter().any(|open| open.writes && Arc::ptr_eq(&open.file, file))
        };
        if !self.kinds.has(Kind::Reopen) && known.as_ref().is_some_and(is_written) {
            return;
        }
        let call = || fs::open(&path, flags, Mode::from_raw_mode(0o644));
        let opened = match &known {
            Some(file) => {
                // The others continue with theirs. First the table, as everywhere.
                let table = self.table.read().expect("no panic");
                let writer = table.open.iter().find(|open| open.writes && Arc::ptr_eq(&open.file, file));
                let writer = writer.filter(|_| flags.contains(OFlags::TRUNC));
                self.exclusive(file, || {
                    let opened = std::thread::scope(|scope| {
                        if let Some(writer) = writer {
                            scope.spawn(|| hold_inode(writer.descriptor.as_fd()));
                            std::thread::sleep(Duration::from_micros(300));
                        }
                        call()
                    });
                    self.content(file);
                    opened
                })
            }
            None => call(),
        };
        // A directory or a link is there.
        let Ok(descriptor) = opened else { return };
        let file = known.unwrap_or_else(|| names.add(&path).expect("open what was made"));
        if writes && found.is_some() && random.one_in(3) {
            // Nothing but the opening tells of what this writes.
            self.exclusive(&file, || {
                io::write(&descriptor, &vec![random.below(255) as u8 + 1; 300]).expect("write");
                self.content(&file);
            });
            self.sync_by(Covers::File(file.id), || fs::fdatasync(&file.reader));
        }
        let mut table = self.table.write().expect("no panic");
        table.add(Open { descriptor, file, writes });
        if found.is_none() {
            self.write_down(&Entry::Names(self.list(&names)));
        }
    }

    fn change_descriptors(&self, random: &mut Random) {
        let mut table = self.table.write().expect("no panic");
        let count = table.open.len() as u64;
        if count == 0 {
            return;
        }
        let (from, to) = (random.below(count) as usize, random.below(count) as usize);
        let Open { ref descriptor, ref file, writes } = table.open[from];
        let file = file.clone();
        match random.below(6) {
            5 => {
                if let Some((from, to)) = table.two_of_one_file() {
                    self.replace_number(&mut table, from, to, random);
                }
            }
            // By a name that may be gone, or elsewhere.
            4 => {
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                let reopened = fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("open it again");
                table.add(Open { descriptor: reopened, file, writes: true });
            }
            0 => {
                let descriptor = io::dup(descriptor).expect("dup");
                table.open.push(Open { descriptor, file, writes });
            }
            1 if from != to => {
                let descriptor = descriptor.try_clone().expect("F_DUPFD_CLOEXEC");
                io::dup2(&descriptor, &mut table.open[to].descriptor).expect("dup2");
                (table.open[to].file, table.open[to].writes) = (file, writes);
            }
            _ => drop(table.open.remove(from)),
        }
    }

    fn map(&self, random: &mut Random) {
        let mut table = self.table.write().expect("no panic");
        if table.mappings.len() > 2 {
            let mapping = table.mappings.remove(0);
            // SAFETY: the mapping leaves the table, and nobody else has its address.
            unsafe { munmap(mapping.at.cast(), mapping.length) }.expect("unmap");
        }
        let mapping = random.pick(&table.open).and_then(map_beginning);
        table.mappings.extend(mapping);
    }

    /// A child that continues with the descriptors that it inherits.
    fn fork(&self, random: &mut Random) {
        let mut table = self.table.write().expect("no panic");
        // SAFETY: the child uses the table, of which this thread has the lock, the shared memory and the allocator, which the C
        // library makes usable after a fork, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child != 0 {
            // The child keeps a description that the parent gives up for another one of the same file, by the same number.
            if let Some((from, to)) = table.two_of_one_file() {
                let descriptor = table.open[from].descriptor.try_clone().expect("F_DUPFD_CLOEXEC");
                io::dup2(&descriptor, &mut table.open[to].descriptor).expect("dup2");
            }
            return;
        }
        let mut random = Random::new(random.next());
        let mut open: Vec<&Open> = table.open.iter().collect();
        for _ in 0..CHILD_STEPS {
            if random.one_in(5) && open.len() > 1 {
                let closed = open.swap_remove(random.below(open.len() as u64) as usize);
                // SAFETY: the child's own copy of a descriptor.
                unsafe { io::close(closed.descriptor.as_raw_fd()) };
            }
            let Some(Open { descriptor, file, writes }) = random.pick(&open) else { break };
            if random.one_in(3) {
                self.sync_by(Covers::File(file.id), || fs::fsync(descriptor));
            } else if *writes {
                self.exclusive(file, || {
                    self.write_with(descriptor.as_fd(), &mut random);
                    self.content(file);
                });
            }
        }
        // SAFETY: ends the child at once, without its parent's destructors.
        unsafe { libc::_exit(0) }
    }

    /// One change by a descriptor that may write. What it refuses changes nothing.
    fn write_with(&self, descriptor: BorrowedFd<'_>, random: &mut Random) {
        let bytes = vec![random.below(255) as u8 + 1; random.below(700) as usize + 1];
        let offset = random.below(LENGTH_MAX - 1000);
        let result = match random.below(18) {
            6..9 => io::pwrite(descriptor, &bytes, offset).map(drop),
            9 => io::pwritev(descriptor, &[IoSlice::new(&bytes), IoSlice::new(&bytes)], offset).map(drop),
            // A file that only grows would hide everything behind its end.
            10 if self.kinds.has(Kind::Truncate) => {
                fs::ftruncate(descriptor, if random.one_in(3) { offset / 64 } else { offset })
            }
            11 if self.kinds.has(Kind::Seek) => fs::seek(descriptor, SeekFrom::Start(offset)).map(drop),
            12 | 16 | 17 if self.kinds.has(Kind::Seek) => {
                let back = random.below(500);
                let sought = fs::seek(descriptor, SeekFrom::Current(-(back as i64))).map(drop);
                // Mostly over what it wrote before, to beyond that: its position is not lower than it was.
                match random.one_in(4) {
                    true => sought,
                    false => sought.and_then(|()| io::write(descriptor, &vec![bytes[0]; back as usize + 1]).map(drop)),
                }
            }
            13 if self.kinds.has(Kind::Seek) => fs::seek(descriptor, SeekFrom::End(0)).map(drop),
            14 if self.kinds.has(Kind::Allocate) => {
                let mode = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
                fs::fallocate(descriptor, mode, offset, 3000)
            }
            15 => io::read(descriptor, &mut [0u8; 300][..]).map(drop),
            _ => io::write(descriptor, &bytes).map(drop),
        };
        // Before the first byte of a file; or it reads where it may only write.
        assert!(matches!(result, Ok(()) | Err(Errno::INVAL | Errno::BADF)), "{result:?}");
    }

    fn change_names(&self, random: &mut Random) {
        self.change_name(&mut self.names.lock().expect("no panic"), random);
    }

    /// More events than the kernel keeps, if all others wait for long enough, and then changes of which none tells.
    fn overflow(&self, random: &mut Random) {
        let mut names = self.names.lock().expect("no panic");
        let table = self.table.write().expect("no panic");
        let bound = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("read the bound");
        let is_named = |file: &&Arc<Played>| file.reader.metadata().is_ok_and(|found| found.nlink() > 0);
        let paths: Vec<PathBuf> = names.files.values().filter(is_named).take(2).map(|file| file.path()).collect();
        for _ in 0..bound.trim().parse::<u64>().expect("a number") {
            // The same event twice would count once.
            paths.iter().for_each(|path| drop(File::open(path)));
        }
        drop(table);
        (0..5).for_each(|_| self.change_name(&mut names, random));
    }

    fn change_name(&self, names: &mut Names, random: &mut Random) {
        let (from, to) = (self.path(random), self.path(random));
        let rename = |flags| fs::renameat_with(CWD, &from, CWD, &to, flags).is_ok();
        // Most fail now and then: the names are not there, or lead into each other.
        let done = match random.below(18) {
            6 if self.kinds.has(Kind::Exchange) => rename(RenameFlags::EXCHANGE),
            7 if self.kinds.has(Kind::Link) => std::fs::hard_link(&from, &to).is_ok(),
            8..11 => std::fs::remove_file(&from).is_ok(),
            11 => std::fs::remove_dir(&from).is_ok(),
            12 => std::fs::create_dir(&to).is_ok(),
            13 => std::os::unix::fs::symlink("nowhere", &to).is_ok(),
            14 => std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o600 + random.below(64) as u32))
                .is_ok(),
            15 if self.kinds.has(Kind::Nameless) => self.link_nameless(names, &to, random),
            16 if self.kinds.has(Kind::Outside) => self.name_outside(names, &from, random),
            17 if self.kinds.has(Kind::Truncate) => self.truncate(names, &from, random),
            _ => rename(RenameFlags::empty()),
        };
        if done {
            let paths = self.list(names);
            self.write_down(&Entry::Names(paths));
            names.drop_unused();
        }
    }

    /// A file that has bytes, and perhaps a sync, before it has a name.
    fn link_nameless(&self, names: &mut Names, to: &Path, random: &mut Random) -> bool {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let descriptor = fs::open(&self.root, flags, Mode::from_raw_mode(0o644)).expect("make a file without a name");
        let path = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        let file = names.add(&path).expect("open what was made");
        self.exclusive(&file, || {
            self.write_with(descriptor.as_fd(), random);
            self.content(&file);
        });
        if random.one_in(2) {
            self.sync_by(Covers::File(file.id), || fs::fsync(&descriptor));
        }
        let open = Open { descriptor, file, writes: true };
        let maps = self.kinds.has(Kind::Map) && random.one_in(3);
        let mapping = if maps { map_beginning(&open) } else { None };
        let linked = fs::linkat(CWD, &path, CWD, to, AtFlags::SYMLINK_FOLLOW).is_ok();
        let mut table = self.table.write().expect("no panic");
        table.mappings.extend(mapping);
        table.add(open);
        linked
    }

    /// A name elsewhere comes and goes, with a sync in between. What was opened under it stays open.
    fn name_outside(&self, names: &Names, path: &Path, random: &mut Random) -> bool {
        let found = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file);
        let Some(file) = found.and_then(|found| names.files.get(&found.ino()).cloned()) else { return false };
        let outside = self.root.with_file_name("outside");
        std::fs::hard_link(path, &outside).expect("give it another name");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let descriptor = fs::open(&outside, flags, Mode::empty()).expect("open it by that");
        self.exclusive(&file, || {
            self.write_with(descriptor.as_fd(), random);
            self.content(&file);
        });
        self.sync_by(Covers::File(file.id), || fs::fsync(&descriptor));
        std::fs::remove_file(&outside).expect("remove that name");
        self.table.write().expect("no panic").add(Open { descriptor, file, writes: true });
        false
    }

    fn truncate(&self, names: &Names, path: &Path, random: &mut Random) -> bool {
        let found = std::fs::symlink_metadata(path).ok().filter(std::fs::Metadata::is_file);
        if let Some(file) = found.and_then(|found| names.files.get(&found.ino())) {
            self.exclusive(file, || {
                // SAFETY: a path that ends with NUL.
                unsafe { libc::truncate(c_path(path).as_ptr(), random.below(LENGTH_MAX) as i64) };
                self.content(file);
            });
        }
        false
    }

    /// A path below the root, of few enough that they meet.
    fn path(&self, random: &mut Random) -> PathBuf {
        let mut directories = vec![self.root.clone()];
        walk(&self.root, &mut |path, metadata| {
            if metadata.is_dir() {
                directories.push(path.to_owned());
            }
        });
        let directory = random.pick(&directories).expect("the root is one");
        directory.join(random.pick(&["a", "b", "c", "d"]).expect("some"))
    }

    fn list(&self, names: &Names) -> Paths {
        let mut paths = Paths::new();
        walk(&self.root, &mut |path, metadata| {
            let leads = if metadata.is_dir() {
                Leads::Directory
            } else if metadata.is_symlink() {
                Leads::Link("nowhere".into())
            } else {
                Leads::File(names.files[&metadata.ino()].id)
            };
            let below = path.strip_prefix(&self.root).expect("it is below");
            paths.insert(below.display().to_string(), leads);
        });
        paths
    }
}

impl Names {
    fn add(&mut self, path: &Path) -> std::io::Result<Arc<Played>> {
        let reader = File::open(path)?;
        let inode = reader.metadata()?.ino();
        self.next += 1;
        let file = Arc::new(Played { id: self.next, reader });
        self.files.insert(inode, file.clone());
        Ok(file)
    }

    /// Files without a name and a descriptor. Their inodes may be given to others now.
    fn drop_unused(&mut self) {
        self.files.retain(|_, file| {
            Arc::strong_count(file) > 1 || file.reader.metadata().is_ok_and(|found| found.nlink() > 0)
        });
    }
}

/// The beginning of a file, if the descriptor may read and write.
fn map_beginning(open: &Open) -> Option<Mapping> {
    let (length, protection) = (4096, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: a new mapping of an open file, wherever the kernel likes.
    let at = unsafe { mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &open.descriptor, 0) };
    Some(Mapping { at: at.ok()?.cast(), length, file: open.file.clone() })
}

fn walk(directory: &Path, see: &mut dyn FnMut(&Path, &std::fs::Metadata)) {
    for entry in std::fs::read_dir(directory).expect("list a directory") {
        let path = entry.expect("an entry").path();
        let metadata = std::fs::symlink_metadata(&path).expect("names change under a lock");
        see(&path, &metadata);
        if metadata.is_dir() {
            walk(&path, see);
        }
    }
}

/// Allocates beyond the end of a file, which changes neither its bytes nor its length. For as long the kernel has the inode's lock:
/// a call that opens the file and cuts it waits with the cut, when it has told of the opening already.
fn hold_inode(descriptor: BorrowedFd<'_>) {
    // A disk may be full.
    let _ = fs::fallocate(descriptor, fs::FallocateFlags::KEEP_SIZE, 0, 16 << 20);
}

/// Stores into a mapping, within the file: beyond its end is a signal.
fn store(mapping: &Mapping, random: &mut Random) {
    let length = mapping.file.reader.metadata().expect("a file has a length").len().min(mapping.length as u64);
    if length == 0 {
        return;
    }
    let at = random.below(length);
    let count = (random.below(200) + 1).min(length - at);
    // SAFETY: within the mapping.
    let to = unsafe { mapping.at.add(at as usize) };
    // SAFETY: within the mapping, and within the file, which does not change its length while its lock is held.
    unsafe { to.write_bytes(random.below(255) as u8 + 1, count as usize) };
}
