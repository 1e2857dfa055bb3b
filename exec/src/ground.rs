//! The ground on which a volume stands: a directory that may be emptied, and a folder of ours beside it.
//!
//! Claimed by `life` at the start; `doctor` and dry runs make the same checks.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use tailwind_client::History;

use crate::directory::Directory;
use crate::own_folder::{self, OwnFolder};
use crate::readiness::Readiness;

/// Names the directory that may be emptied.
const MARK: &str = "directory";

/// In the mark of a directory that was empty and has not been filled from a log.
const EMPTY: &str = "empty";

/// The directory, and the folder of ours beside it.
pub(crate) struct Ground {
    pub(crate) directory: PathBuf,
    root: OwnedFd,
    own: OwnFolder,
    /// Held as long as this process lives, or one of the program.
    pub(crate) lock: OwnedFd,
    /// The directory has files of which no log knows.
    pub(crate) foreign: bool,
}

impl Ground {
    /// Makes sure that the directory is locked, and has nothing in it that we may not remove. Nothing is removed yet.
    pub(crate) fn claim(directory: &Path, import: bool) -> Result<Ground> {
        fs::create_dir_all(directory).with_context(|| format!("make the directory {}", directory.display()))?;
        let directory = directory.canonicalize().with_context(|| format!("find {}", directory.display()))?;
        let parent = directory.parent().context("--dir is the root of the file system: give a folder of its own")?;
        check_mount(&directory, parent)?;
        check_file_system(&directory)?;
        let own = OwnFolder::make(parent)?;
        let lock = own.lock()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &directory, flags, Mode::empty())
            .with_context(|| format!("open the directory {}", directory.display()))?;

        let mut ground = Ground { directory, root, own, lock, foreign: false };
        // Another directory of the same name is not ours.
        let is_filled = ground.mark_of_log()?.is_some_and(|log| log != EMPTY);
        ground.foreign = !is_filled && ground.has_files()?;
        ensure!(
            !ground.foreign || import,
            "--dir {} has files, and nothing says that tailwind-exec has put them there: empty it; or, to take them into a \
             log that is still empty, give --import",
            ground.directory.display(),
        );
        // What an earlier process has left is not so any more.
        ground.tell(Readiness::Starts)?;
        if !is_filled && !ground.foreign {
            ground.mark_as(EMPTY)?;
        }
        Ok(ground)
    }

    /// Whether there is anything in the directory.
    pub(crate) fn has_files(&self) -> Result<bool> {
        let is_empty = own_folder::is_empty(&self.root);
        Ok(!is_empty.with_context(|| format!("list {}", self.directory.display()))?)
    }

    /// From now on the directory has nothing but what this log has, and may be emptied for it.
    pub(crate) fn mark(&mut self, history: History) -> Result<()> {
        self.foreign = false;
        self.mark_as(&log_of(history))
    }

    fn mark_as(&self, log: &str) -> Result<()> {
        self.write_mark(&format!("{} {log}", self.identity()?))
    }

    /// The directory has files that the log does not have: until the log has all of them, nobody may remove them.
    pub(crate) fn unmark(&mut self) -> Result<()> {
        self.foreign = true;
        self.write_mark("files of another log")
    }

    fn write_mark(&self, mark: &str) -> Result<()> {
        self.own.write(MARK, mark)?;
        self.own.keep(MARK)
    }

    /// The log that the directory was filled from, by the mark, or [`EMPTY`]. `None` if this directory is not marked.
    fn mark_of_log(&self) -> Result<Option<String>> {
        let mark = self.own.read(MARK).unwrap_or_default();
        let identity = self.identity()?;
        Ok(mark.strip_prefix(&identity).and_then(|log| log.strip_prefix(' ')).map(str::to_owned))
    }

    /// The inode, and when it was made: file systems give the number of a removed one away again.
    fn identity(&self) -> Result<String> {
        let found = statx(&self.root, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
        Ok(format!("{} {}.{:09}", found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
    }

    /// Leaves word for probes.
    pub(crate) fn tell(&self, readiness: Readiness) -> Result<()> {
        readiness.write(&self.own)
    }

    /// The directory as it is, and an empty stage.
    pub(crate) fn open(&self) -> Result<Directory> {
        let stage = self.own.empty_stage()?;
        Ok(Directory::new(self.root.try_clone()?, stage)?)
    }

    /// Removes what an earlier process has left of the same log, which has records. The directory is filled from them.
    pub(crate) fn make_room(&mut self, history: History) -> Result<()> {
        if self.foreign {
            return Ok(());
        }
        if self.has_files()? {
            let (marked, now, unknown) =
                (self.mark_of_log()?.unwrap_or_default(), log_of(history), log_of(History::UNKNOWN));
            ensure!(
                marked != EMPTY,
                "--dir {} was empty at the start and has files now that are not the log's: move them away",
                self.directory.display(),
            );
            ensure!(
                marked == now || marked == unknown || now == unknown,
                "--dir {} has files of another log, maybe the last copy of them: move them away, or remove \
                 them if nobody needs them",
                self.directory.display(),
            );
            own_folder::remove_contents(&self.root).with_context(|| format!("empty {}", self.directory.display()))?;
        }
        self.mark(history)
    }
}

/// Which log a history is of: its upper half, which is the same after a loss.
fn log_of(history: History) -> String {
    format!("{:08x}", history.0 >> 32)
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
