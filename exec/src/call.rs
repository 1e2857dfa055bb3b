//! The stopped system calls, as far as their register arguments say what they do.
//!
//! Made by `trap`, which takes them from the kernel; read by the tracker, which is pure.

use std::fmt;

/// A thread of the program, by the kernel's number (that of the supervisor's own namespace).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Thread(pub u32);

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number in the descriptor table of the process that a thread belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Descriptor(pub i32);

/// What a stopped call does to files. Calls that change something continue; calls that confirm something are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `fsync`, `fdatasync`: answered once the file is in the log.
    Sync(Descriptor),
    /// `sync`: answered once everything is.
    SyncAll,
    /// `syncfs`: the same, if the volume is on the file system of this.
    SyncFileSystem(Descriptor),
    /// `msync` with `MS_SYNC`: the files that are mapped there.
    SyncMapping {
        /// First byte.
        address: u64,
        /// In bytes.
        length: u64,
    },
    /// `pwrite64`, `fallocate` that makes zeros: these bytes may differ.
    Write {
        /// The descriptor of the file.
        descriptor: Descriptor,
        /// First byte.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// `pwritev`, `pwritev2` at an offset, `ftruncate`: everything from there on may differ.
    WriteFrom {
        /// The descriptor of the file.
        descriptor: Descriptor,
        /// First byte.
        offset: u64,
    },
    /// `copy_file_range` and `splice` at an offset: where in the file lies in the program's memory.
    WriteSomewhere(Descriptor),
    /// `truncate`: of a file that only the program's memory names.
    Truncate,
    /// `open` with `O_TRUNC`, `creat`: the same.
    OpenTruncating,
    /// `lseek` that may go back. The target if it is in the registers.
    Seek {
        /// A descriptor of the description whose position moves.
        descriptor: Descriptor,
        /// The new position; `None` if it depends on the file or on the old one.
        target: Option<u64>,
    },
    /// `dup` and its kin: a number may stand for another description from now on.
    Duplicate {
        /// The target of `dup2` and `dup3`, which loses its old description.
        replaced: Option<Descriptor>,
    },
    /// `link`, `linkat`: a file may have several names from now on.
    Link,
    /// `renameat2` with `RENAME_EXCHANGE`: two names may change places from now on.
    Exchange,
    /// `mmap`, shared, of a file: stores may change it from now on, without any call.
    Map(Descriptor),
}

impl Call {
    /// Answered by the supervisor, not carried out by the kernel.
    pub fn is_sync(&self) -> bool {
        matches!(self, Call::Sync(_) | Call::SyncAll | Call::SyncFileSystem(_) | Call::SyncMapping { .. })
    }
}
