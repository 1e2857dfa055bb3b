//! Folders and files that only this user, or root, can have put there: what other users of a host made is refused.
//!
//! Opened by a backup for its pool (`tailwind_fabric::Pool`) and its flush folder (`tailwind_backup::OsFolder`), and by
//! processes without TLS for the folder of the control token. Calls the file system and nothing else.
//!
//! The names of these folders can be guessed, and some lie where every user may make folders (`/dev/shm`). So a path is
//! walked component by component, and links of other users are not followed; the folder itself is
//! [looked at](Folder::open) through its handle; and everything in it is reached relative to that handle, even if its path
//! stands for something else later. See "Folders on a host" in `docs/security.md`.

mod walk;

use std::ffi::OsString;
use std::fs::{File, read_link};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags, fchmod, fstat, fsync, openat, renameat,
    statat, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

pub use walk::Make;

/// Bits of a mode that let other users write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The mode bit of folders like /tmp and /dev/shm, in which each user's files are his own.
const STICKY: u32 = 0o1000;

/// A folder that has been looked at, by its handle.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
    mode: u32,
    is_own: bool,
}

/// Why a folder is not used. The texts say what was found; what to do depends on what it was for.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The operating system said no.
    #[error("{path}: {source}")]
    Io {
        /// The folder, or the part of its path at which it failed.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another user can have made it, or can change what is in it.
    #[error("{path}: {problem}")]
    Untrusted {
        /// The folder.
        path: PathBuf,
        /// What was found.
        problem: String,
    },
}

impl FolderError {
    fn io(path: &Path) -> impl FnOnce(Errno) -> FolderError {
        move |errno| FolderError::Io { path: path.to_owned(), source: errno.into() }
    }

    fn untrusted(path: &Path, problem: String) -> FolderError {
        FolderError::Untrusted { path: path.to_owned(), problem }
    }
}

impl Folder {
    /// Opens the folder, which is made first if need be and `make` says so. Refused are links of other users on the way, a
    /// folder of another user, and one that other users may write to. The root of a mounted volume may have any mode if it is
    /// this user's or root's: kubelets mount volumes with mode 0777, and the user who mounts a volume decides who can reach it.
    pub fn open(path: &Path, make: Make) -> Result<Folder, FolderError> {
        let handle = walk::walk(path, make)?;
        let io = |errno| FolderError::io(path)(errno);
        let found = fstat(&handle).map_err(io)?;
        let mode = found.st_mode & 0o7777;
        if let Some(owner) = stranger(&found) {
            let problem = format!("it belongs to user {owner}, who may change everything in it at any time");
            return Err(FolderError::untrusted(path, problem));
        }
        if mode & WRITABLE_BY_OTHERS != 0 && !is_mount_root(&handle, &found).map_err(io)? {
            let problem = format!("its mode is {mode:04o}, so other users may write to it");
            return Err(FolderError::untrusted(path, problem));
        }
        // Where it is, without links.
        let real = read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        let real = real.map_err(|source| FolderError::Io { path: path.to_owned(), source })?;
        Ok(Folder { handle, path: real, mode, is_own: found.st_uid == geteuid().as_raw() })
    }

    /// Where it was when it was opened: absolute, and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for folders like /tmp, in which every user may make files.
    pub fn is_shared(&self) -> bool {
        self.mode & STICKY != 0
    }

    /// Takes the rights of everybody else away, where this user may.
    pub fn close_to_others(&self) -> io::Result<()> {
        if self.is_own && self.mode & 0o077 != 0 {
            fchmod(&self.handle, Mode::from_raw_mode(0o700))?;
        }
        Ok(())
    }

    /// Opens a regular file of this user, or of root, for reading and writing. Anything else under that name is an error at
    /// once: a link is not followed, and a FIFO or a device makes nobody wait. `OFlags::CREATE` makes it, with mode 0600.
    pub fn open_file(&self, name: &str, more: OFlags) -> io::Result<File> {
        // Before it is opened: opening a device may do anything.
        match statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if !more.contains(OFlags::EXCL) => check_file(&found)?,
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
        let file = File::from(openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?);
        check_file(&fstat(&file)?)?;
        Ok(file)
    }

    /// Gives a file another name, and replaces the file that had it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.handle, from, &self.handle, to)?)
    }

    /// Removes a name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
    }

    /// Removes a name that need not be there.
    pub fn remove_if_present(&self, name: &str) -> io::Result<()> {
        match self.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The names in it, in any order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Brings the names to disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.handle)?)
    }

    /// Brings its name to disk, and the names above it in folders of this user: a process that made them may have been killed
    /// before.
    pub fn sync_parents(&self) -> io::Result<()> {
        let up = |at: &OwnedFd| openat(at, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let mut at = up(&self.handle)?;
        sync_names(&at)?;
        loop {
            let above = up(&at)?;
            let (found, below) = (fstat(&above)?, fstat(&at)?);
            if (found.st_dev, found.st_ino) == (below.st_dev, below.st_ino) {
                return Ok(());
            }
            if found.st_uid == geteuid().as_raw() {
                match sync_names(&above) {
                    // It need not be readable, and not every file system is on a disk that can be written.
                    Ok(()) | Err(Errno::ACCESS | Errno::INVAL | Errno::ROFS) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            at = above;
        }
    }
}

/// Brings the names in a folder to disk, which was opened without the right to read it.
fn sync_names(folder: &OwnedFd) -> rustix::io::Result<()> {
    fsync(openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn check_file(found: &Stat) -> io::Result<()> {
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    match stranger(found) {
        Some(owner) => Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it belongs to user {owner}"))),
        None => Ok(()),
    }
}

/// The owner, if that is neither this user nor root, who may do everything anyway.
fn stranger(found: &Stat) -> Option<u32> {
    Some(found.st_uid).filter(|owner| ![0, geteuid().as_raw()].contains(owner))
}

fn is_mount_root(handle: impl AsFd, found: &Stat) -> rustix::io::Result<bool> {
    let told = statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    if let Ok(told) = told
        && told.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
    {
        return Ok(told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    }
    // Before Linux 5.8: another file system than the one it lies in. A bind mount of the same one is not recognized.
    let parent = statat(&handle, "..", AtFlags::empty())?;
    Ok(parent.st_dev != found.st_dev)
}

#[cfg(test)]
mod tests;
