//! The folder beside the directory: who uses the directory, how far `life` is, and what has no name yet.
//!
//! The program may write there as well. So nothing in it is followed as a link, waited for, or emptied elsewhere.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, StatxFlags, chmodat, flock, fstat, fsync,
    ftruncate, mkdirat, openat, renameat_with, statx, unlinkat,
};
use rustix::io::Errno;

const NAME: &str = ".tailwind-exec";
const LOCK: &str = "lock";
const STAGE: &str = "stage";
/// How long the lock is waited for, and between two tries.
const LOCK_TIME: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// The longest word in a file.
const WORD_MAX: u64 = 256;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The folder, open.
pub(crate) struct OwnFolder {
    folder: OwnedFd,
    path: PathBuf,
}

impl OwnFolder {
    /// That of a directory in this folder.
    pub(crate) fn open(parent: &Path) -> Result<OwnFolder> {
        let path = parent.join(NAME);
        let folder = openat(CWD, &path, FOLDER, Mode::empty()).with_context(|| format!("open {}", path.display()))?;
        Ok(OwnFolder { folder, path })
    }

    /// The same; made if it is not there.
    pub(crate) fn make(parent: &Path) -> Result<OwnFolder> {
        let path = parent.join(NAME);
        made(mkdirat(CWD, &path, Mode::from(0o777))).with_context(|| format!("make {}", path.display()))?;
        OwnFolder::open(parent)
    }

    /// Locks it until nobody has this descriptor any more, nor any process that has inherited it.
    pub(crate) fn lock(&self) -> Result<OwnedFd> {
        let began = Instant::now();
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let lock = openat(&self.folder, LOCK, flags, Mode::from(0o666)).with_context(|| self.about(LOCK))?;
        self.ensure_is_file(&lock, LOCK)?;
        // A process that was killed a moment ago may have it still.
        let mut locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        while locked.is_err() && began.elapsed() < LOCK_TIME {
            std::thread::sleep(LOCK_PAUSE);
            locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
        }
        locked.with_context(|| {
            format!(
                "{} is locked: another tailwind-exec uses the directory, or processes of a program have outlived theirs \
                 (`fuser -v` names them)",
                self.path.join(LOCK).display(),
            )
        })?;
        Ok(lock)
    }

    /// Gives a file this content; where the disk is full, too, if it is there already.
    pub(crate) fn write(&self, name: &str, word: &str) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| openat(&self.folder, name, flags, Mode::from(0o666));
        let replace = || -> io::Result<()> {
            let file = match open(flags) {
                Ok(file) if is_file(&file)? => file,
                Ok(_) | Err(Errno::LOOP | Errno::NXIO) => {
                    unlinkat(&self.folder, name, AtFlags::empty())?;
                    open(flags | OFlags::EXCL)?
                }
                Err(errno) => return Err(errno.into()),
            };
            fs::File::from(file.try_clone()?).write_all(word.as_bytes())?;
            Ok(ftruncate(&file, word.len() as u64)?)
        };
        replace().with_context(|| format!("write {}", self.path.join(name).display()))
    }

    /// A file's content, if there is such a file and it can be read.
    pub(crate) fn read(&self, name: &str) -> Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty()).with_context(|| self.about(name))?;
        self.ensure_is_file(&file, name)?;
        let mut word = String::new();
        fs::File::from(file).take(WORD_MAX).read_to_string(&mut word).with_context(|| self.about(name))?;
        Ok(word)
    }

    /// What was written outlives a failure of the host's power.
    pub(crate) fn keep(&self, name: &str) -> Result<()> {
        let keep = || {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            fsync(openat(&self.folder, name, flags, Mode::empty())?)?;
            fsync(&self.folder)
        };
        keep().with_context(|| self.about(name))
    }

    /// The folder of what has no name yet, empty.
    pub(crate) fn empty_stage(&self) -> Result<OwnedFd> {
        let stage = || {
            made(mkdirat(&self.folder, STAGE, Mode::from(0o777)))?;
            let stage = openat(&self.folder, STAGE, FOLDER, Mode::empty())?;
            remove_contents(&stage).map(|()| stage)
        };
        stage().with_context(|| format!("empty {}", self.path.join(STAGE).display()))
    }

    fn ensure_is_file(&self, file: &OwnedFd, name: &str) -> Result<()> {
        ensure!(is_file(file)?, "{} is no file: remove it", self.path.join(name).display());
        Ok(())
    }

    fn about(&self, name: &str) -> String {
        format!("open {}", self.path.join(name).display())
    }
}

/// And nobody else's.
fn is_file(file: &OwnedFd) -> io::Result<bool> {
    let found = fstat(file)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::RegularFile && found.st_nlink == 1)
}

fn made(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn is_empty(directory: impl AsFd) -> io::Result<bool> {
    Ok(list(directory)?.is_empty())
}

/// Folders come up to the top, one after another, before they are emptied: so no path gets too long, however deep they were.
pub(crate) fn remove_contents(top: &OwnedFd) -> io::Result<()> {
    let mut moved = 0_u64;
    let mount = statx(top, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id;
    loop {
        // What comes up while this is listed may be missing from the list.
        let entries = list(top)?;
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            if !is_folder(top, &entry, mount)? {
                unlinkat(top, &entry, AtFlags::empty())?;
                continue;
            }
            let folder = openat(top, &entry, FOLDER, Mode::empty())?;
            for inner in list(&folder)? {
                if !is_folder(&folder, &inner, mount)? {
                    unlinkat(&folder, &inner, AtFlags::empty())?;
                    continue;
                }
                loop {
                    moved += 1;
                    match renameat_with(&folder, &inner, top, moved.to_string(), RenameFlags::NOREPLACE) {
                        Err(Errno::EXIST) => {}
                        renamed => break renamed?,
                    }
                }
            }
            unlinkat(top, &entry, AtFlags::REMOVEDIR)?;
        }
    }
}

fn list(directory: impl AsFd) -> io::Result<Vec<CString>> {
    let names = Dir::read_from(directory)?.map(|entry| Ok(entry?.file_name().to_owned()));
    let is_inside = |name: &io::Result<CString>| !matches!(name, Ok(name) if [c".", c".."].contains(&name.as_c_str()));
    names.filter(is_inside).collect()
}

/// A folder that a program has made read-only can be emptied and moved after this. What is mounted there is another's.
fn is_folder(directory: impl AsFd, name: &CStr, mount: u64) -> io::Result<bool> {
    let found = statx(&directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE | StatxFlags::MNT_ID)?;
    let is_folder = FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory;
    if found.stx_mnt_id != mount {
        let name = name.to_string_lossy();
        return Err(io::Error::other(format!("{name} is a mount: nothing of it is removed; mount it elsewhere")));
    }
    if is_folder {
        chmodat(&directory, name, Mode::RWXU, AtFlags::empty())?;
    }
    Ok(is_folder)
}
