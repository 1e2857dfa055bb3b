//! A folder of files, as narrow as a backup needs it: the trait that the operating system and the simulator implement.
//!
//! Called by [`disk`](crate::disk) and [`promise`](crate::promise). [`OsFolder`] is the real one.
//!
//! What is promised is what POSIX promises, no more. Bytes written are safe once [`File::sync`] has returned without an
//! error; names made, changed or removed, once [`Folder::sync`] has. Until then a loss of power leaves any of it. After an
//! error of [`File::sync`] nobody knows what is on disk, even if a later call succeeds (`fsync(2)`): recreate the file.

mod os;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::io;
use std::path::Path;

pub use os::OsFolder;

/// A flat folder that belongs to this process alone while it lives.
pub trait Folder: fmt::Debug + Send + Sync {
    /// Where it is, for people.
    fn path(&self) -> &Path;

    /// The names in it, in any order, of entries of every type.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens a regular file. Anything else under that name (a FIFO, a device, a link, a folder) is an error at once.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Makes a new, empty file, which replaces any file of that name.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Gives a file another name, and replaces any file that had it: at no moment does the new name stand for nothing.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Brings the names to disk.
    fn sync(&self) -> io::Result<()>;

    /// Removes a name that need not be there. True if it was.
    fn remove_if_present(&self, name: &str) -> io::Result<bool> {
        match self.remove(name) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// True for errors that say that the disk, or what this user may have of it, is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The wanted name, or if that is taken the first free one of `….-1`, `….-2` and so on.
pub fn free_name(folder: &dyn Folder, wanted: &str) -> io::Result<String> {
    let names = folder.names()?;
    let numbered = |nth: u64| if nth == 0 { wanted.to_owned() } else { format!("{wanted}-{nth}") };
    let free = (0..).map(numbered).find(|name| !names.contains(name));
    Ok(free.unwrap_or_else(|| wanted.to_owned()))
}

/// An open file. Its calls take `&self`: one owner uses it at a time.
pub trait File: fmt::Debug + Send + Sync {
    /// Bytes in it.
    fn length(&self) -> io::Result<u64>;

    /// Reads some of the bytes from `at` on; none at the end.
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize>;

    /// Writes some of `bytes` to `at`, making the file longer if need be.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Writes to a new file as many of its first bytes as the disk can take from where they are, without a copy in the
    /// cache; how many that were. Perhaps none.
    fn write_direct(&self, _bytes: &[u8]) -> io::Result<usize> {
        Ok(0)
    }

    /// Makes the file `length` bytes long, with space on disk for each of them, so that writing them later needs none. A
    /// file system that cannot says [`io::ErrorKind::Unsupported`].
    fn allocate(&self, length: u64) -> io::Result<()>;

    /// Brings bytes and length to disk.
    fn sync(&self) -> io::Result<()>;

    /// All of it will be read soon: has the disk bring it in a few large reads. A hint: where it fails nothing is said.
    fn will_be_read(&self) {}

    /// Has what is cached of it dropped, so that the next read is of the disk. A hint: where it fails nothing is said.
    fn forget_cached(&self) {}
}

impl dyn File + '_ {
    /// Reads as many bytes as `out` has; a file that ends before is [`io::ErrorKind::UnexpectedEof`].
    pub fn read_exact_at(&self, mut at: u64, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            match self.read_at(at, out) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => (at, out) = (at + count as u64, &mut out[count..]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes the first bytes of a new file, which nobody will read for a while: most segments are never read again. After
    /// an error any of them may be there.
    pub fn write_first(&self, bytes: &[u8]) -> io::Result<()> {
        let written = self.write_direct(bytes)?;
        self.write_all_at(written as u64, &bytes[written..])
    }

    /// Writes all of `bytes`. After an error any of them may be there.
    pub fn write_all_at(&self, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(at, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => (at, bytes) = (at + count as u64, &bytes[count..]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
