//! A folder for tests: the real one, on a disk that can be full, and with its syncs counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::{File, Folder, OsFolder};

/// A clone is the same folder.
#[derive(Clone, Debug)]
pub(crate) struct TestFolder {
    folder: Arc<OsFolder>,
    full: Arc<AtomicBool>,
    unreadable: Arc<AtomicBool>,
    unwritable: Arc<AtomicBool>,
    unsyncable: Arc<AtomicBool>,
    syncs: Arc<AtomicUsize>,
    file_syncs: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct TestFile {
    file: Box<dyn File>,
    full: Arc<AtomicBool>,
    unwritable: Arc<AtomicBool>,
    unsyncable: Arc<AtomicBool>,
    syncs: Arc<AtomicUsize>,
}

impl TestFolder {
    pub(crate) fn open(path: &Path) -> TestFolder {
        let folder = Arc::new(OsFolder::open(path).unwrap());
        let (full, unreadable, unwritable, unsyncable) = Default::default();
        let (syncs, file_syncs) = Default::default();
        TestFolder { folder, full, unreadable, unwritable, unsyncable, syncs, file_syncs }
    }

    /// From now on there is no room for more than what is there, or there is.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// From now on no file of the disk can be opened, or each can.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::Relaxed);
    }

    /// From now on nothing can be written to a file, or it can.
    pub(crate) fn set_unwritable(&self, unwritable: bool) {
        self.unwritable.store(unwritable, Ordering::Relaxed);
    }

    /// From now on a file keeps what is written to it, and cannot be brought to disk; or it can.
    pub(crate) fn set_unsyncable(&self, unsyncable: bool) {
        self.unsyncable.store(unsyncable, Ordering::Relaxed);
    }

    /// How often a file was brought to disk.
    pub(crate) fn file_syncs(&self) -> usize {
        self.file_syncs.load(Ordering::Relaxed)
    }

    /// How often its names were brought to disk.
    pub(crate) fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }

    fn wrap(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(TestFile {
            file,
            full: Arc::clone(&self.full),
            unwritable: Arc::clone(&self.unwritable),
            unsyncable: Arc::clone(&self.unsyncable),
            syncs: Arc::clone(&self.file_syncs),
        })
    }
}

fn check(fails: &AtomicBool) -> io::Result<()> {
    if fails.load(Ordering::Relaxed) { Err(io::Error::from_raw_os_error(Errno::IO.raw_os_error())) } else { Ok(()) }
}

fn check_room(full: &AtomicBool) -> io::Result<()> {
    if full.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

impl Folder for TestFolder {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.folder.names()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        check(&self.unreadable)?;
        self.folder.open(name).map(|file| self.wrap(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        check_room(&self.full)?;
        self.folder.create(name).map(|file| self.wrap(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.folder.sync()
    }
}

impl File for TestFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(at, out)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        check(&self.unwritable)?;
        if at + bytes.len() as u64 > self.file.length()? {
            check_room(&self.full)?;
        }
        self.file.write_at(at, bytes)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        check_room(&self.full)?;
        self.file.allocate(length)
    }

    fn sync(&self) -> io::Result<()> {
        check(&self.unsyncable)?;
        self.file.sync()?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
