//! The ground on which a volume stands: a directory that may be emptied, and a folder of ours beside it.
//!
//! Claimed by `life` at the start; `doctor` and dry runs make the same checks.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, StatxFlags, chmodat, flock, openat,
    renameat_with, statat, statx, unlinkat,
};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::readiness::{self, Readiness};

/// The folder beside the directory that says whose it is and how far `life` is, and holds what has no name yet.
pub(crate) const OWN_FOLDER: &str = ".tailwind-exec";

/// The directory, and the folder of ours beside it.
pub(crate) struct Ground {
    pub(crate) directory: PathBuf,
    stage: PathBuf,
    /// Held as long as this process lives.
    _lock: fs::File,
    /// The directory has files of which no log knows.
    pub(crate) foreign: bool,
}

impl Ground {
    /// Makes sure that the directory is ours: locked, and with nothing in it that we may not remove.
    pub(crate) fn claim(directory: &Path, import: bool) -> Result<Ground> {
        fs::create_dir_all(directory).with_context(|| format!("make the directory {}", directory.display()))?;
        let directory = directory.canonicalize().with_context(|| format!("find {}", directory.display()))?;
        let parent = directory.parent().context("--dir is the root of the file system: give a folder of its own")?;
        check_mount(&directory, parent)?;
        check_file_system(&directory)?;
        let own = parent.join(OWN_FOLDER);
        fs::create_dir_all(&own).with_context(|| format!("make the folder {}", own.display()))?;
        let lock = fs::File::create(own.join("lock")).context("open the lock")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another tailwind-exec uses {}", directory.display()))?;

        // The mark names the directory's inode: another directory of the same name is not ours.
        let mark = own.join("directory");
        let inode = fs::metadata(&directory)?.ino().to_string();
        let ours = fs::read_to_string(&mark).is_ok_and(|text| text == inode);
        let empty = fs::read_dir(&directory)?.next().is_none();
        let foreign = !ours && !empty;
        ensure!(
            !foreign || import,
            "--dir {} has files, and nothing says that tailwind-exec has put them there: empty it; or, to take them into a \
             log that is still empty, give --import",
            directory.display(),
        );
        let stage = own.join("stage");
        remove_contents(&stage).context("empty the stage")?;
        fs::create_dir_all(&stage)?;
        let ground = Ground { directory, stage, _lock: lock, foreign };
        // What an earlier process has left is not so any more.
        ground.tell(Readiness::Starts)?;
        if !foreign {
            ground.mark()?;
        }
        Ok(ground)
    }

    /// From now on the directory is filled from the log, and may be emptied.
    pub(crate) fn mark(&self) -> Result<()> {
        let inode = fs::metadata(&self.directory)?.ino().to_string();
        let mark = self.stage.with_file_name("directory");
        fs::write(&mark, inode).with_context(|| format!("write {}", mark.display()))
    }

    /// Leaves word for probes.
    pub(crate) fn tell(&self, readiness: Readiness) -> Result<()> {
        readiness.write(self.stage.with_file_name(readiness::FILE))
    }

    /// An empty directory and stage.
    pub(crate) fn open(&self) -> Result<Directory> {
        remove_contents(&self.stage).context("empty the stage")?;
        if !self.foreign {
            remove_contents(&self.directory).with_context(|| format!("empty {}", self.directory.display()))?;
        }
        let open = |path: &Path| -> io::Result<OwnedFd> { Ok(fs::File::open(path)?.into()) };
        Ok(Directory::new(open(&self.directory)?, open(&self.stage)?)?)
    }
}

/// A rename into the directory from the stage beside it must be possible, and one from elsewhere not.
pub(crate) fn check_mount(directory: &Path, parent: &Path) -> Result<()> {
    let mount = |path: &Path| -> Result<u64> {
        let found = statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
        Ok(found.stx_mnt_id)
    };
    ensure!(
        mount(directory)? == mount(parent)?,
        "--dir {} is a mount itself: give a folder inside of it, such as {}/data, so that what is being moved has a place \
         beside it",
        directory.display(),
        directory.display(),
    );
    Ok(())
}

/// Checks that files and inodes of this file system behave as POSIX says, and that inotify reports what happens to them.
pub(crate) fn check_file_system(directory: &Path) -> Result<&'static str> {
    const KNOWN: [(u32, &str); 4] =
        [(0x0102_1994, "tmpfs"), (0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs")];
    let found = rustix::fs::statfs(directory)?.f_type as u32;
    let Some((_, name)) = KNOWN.iter().find(|(magic, _)| *magic == found) else {
        bail!(
            "--dir {} is on a file system of type {found:#x}: it has to be tmpfs, ext4, xfs or btrfs (in Kubernetes an \
             emptyDir)",
            directory.display(),
        );
    };
    Ok(name)
}

/// Folders come up to the top, one after another, before they are emptied: so no path gets too long, however deep they were.
fn remove_contents(directory: &Path) -> io::Result<()> {
    let top = match fs::File::open(directory) {
        Ok(top) => top,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut moved = 0_u64;
    loop {
        // What comes up while this is listed may be missing from the list.
        let entries = list(&top)?;
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            if !is_folder(&top, &entry)? {
                unlinkat(&top, &entry, AtFlags::empty())?;
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = openat(&top, &entry, flags, Mode::empty())?;
            for inner in list(&folder)? {
                if !is_folder(&folder, &inner)? {
                    unlinkat(&folder, &inner, AtFlags::empty())?;
                    continue;
                }
                loop {
                    moved += 1;
                    match renameat_with(&folder, &inner, &top, moved.to_string(), RenameFlags::NOREPLACE) {
                        Err(Errno::EXIST) => {}
                        renamed => break renamed?,
                    }
                }
            }
            unlinkat(&top, &entry, AtFlags::REMOVEDIR)?;
        }
    }
}

fn list(directory: impl AsFd) -> io::Result<Vec<CString>> {
    let names = Dir::read_from(directory)?.map(|entry| Ok(entry?.file_name().to_owned()));
    let is_inside = |name: &io::Result<CString>| !matches!(name, Ok(name) if [c".", c".."].contains(&name.as_c_str()));
    names.filter(is_inside).collect()
}

/// A folder that a program has made read-only can be emptied and moved after this.
fn is_folder(directory: impl AsFd, name: &CStr) -> io::Result<bool> {
    let found = statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    if is_folder {
        chmodat(&directory, name, Mode::RWXU, AtFlags::empty())?;
    }
    Ok(is_folder)
}
