//! A folder for tests: the real one, on a disk that can be full, and with its syncs counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{File, Folder, OsFolder};

/// A clone is the same folder.
#[derive(Clone, Debug)]
pub(crate) struct TestFolder {
    folder: Arc<OsFolder>,
    full: Arc<AtomicBool>,
    unreadable: Arc<AtomicBool>,
    syncs: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct TestFile(Box<dyn File>, Arc<AtomicBool>);

impl TestFolder {
    pub(crate) fn open(path: &Path) -> TestFolder {
        let folder = Arc::new(OsFolder::open(path).unwrap());
        TestFolder { folder, full: Arc::default(), unreadable: Arc::default(), syncs: Arc::default() }
    }

    /// From now on there is no room for more than what is there, or there is.
    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// From now on no file of the disk can be opened, or each can.
    pub(crate) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::Relaxed);
    }

    /// How often its names were brought to disk.
    pub(crate) fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }

    fn wrap(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(TestFile(file, Arc::clone(&self.full)))
    }
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
        if self.unreadable.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
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
        self.0.length()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(at, out)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        if at + bytes.len() as u64 > self.0.length()? {
            check_room(&self.1)?;
        }
        self.0.write_at(at, bytes)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        check_room(&self.1)?;
        self.0.allocate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
