//! The folder of a pool: who may enter it, how its files are named and opened, what a crash may have left in it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tailwind_folder::{Folder, FolderError, Make};

use crate::message::SlotId;

use super::error::{ONE_BY_ONE, OWN_FOLDER, PoolError, io_error};

/// The file that a process holds locked.
const LOCK: &str = "lock";
/// How long a process may take to die: it first unmaps and unpins its memory.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Extension of a slot file that is being made.
pub(super) const TEMPORARY: &str = "tmp";

/// The folder, closed to everybody else: what is in it is as secret as the log. It is made if its parent exists.
pub(super) fn private_folder(dir: &Path) -> Result<Folder, PoolError> {
    let config = |problem: String| PoolError::Config { dir: dir.to_owned(), problem };
    let folder = Folder::open(dir, Make::Last(0o700)).map_err(|error| match error {
        FolderError::Io { path, source } => PoolError::Io { action: "create pool folder", path, source },
        FolderError::Untrusted { problem, .. } => config(format!("{problem}. {OWN_FOLDER}")),
    })?;
    if folder.is_shared() {
        return Err(config("all users share this folder: give the pool a folder of its own inside it".into()));
    }
    let closed = folder.close_to_others();
    closed.map_err(io_error("take the rights of others away from pool folder", folder.path()))?;
    Ok(folder)
}

/// Keeps other processes out for as long as the file is open.
///
/// A dying process lets go of the lock before the kernel has taken its network cards' rights away. So the folder names its
/// owner, and the next one waits until that process is gone altogether.
pub(super) fn lock(folder: &Folder) -> Result<File, PoolError> {
    let dir = folder.path();
    let path = dir.join(LOCK);
    let file = folder.open_file(LOCK, OFlags::CREATE).map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(PoolError::InUse { dir: dir.to_owned(), by: "another backup daemon" });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    for before in OwnerProcess::all(folder)? {
        while before.lives() {
            if Instant::now() > deadline {
                return Err(PoolError::InUse { dir: dir.to_owned(), by: "a backup daemon that is still exiting" });
            }
            thread::sleep(Duration::from_millis(1));
        }
        remove_if_present(folder, &before.mark())?;
    }
    let mark = OwnerProcess::this().mark();
    folder.open_file(&mark, OFlags::CREATE).map_err(io_error("create", &dir.join(&mark)))?;
    Ok(file)
}

/// A process, distinguished from a later one with the same number by its start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OwnerProcess {
    pid: u32,
    /// Clock ticks since the kernel started: field 22 of `/proc/PID/stat`, proc(5).
    start: u64,
}

impl OwnerProcess {
    fn this() -> OwnerProcess {
        let pid = std::process::id();
        OwnerProcess { pid, start: start_of(pid).unwrap_or_default() }
    }

    /// An empty file that names the owner: hugetlbfs has files, but nothing can be written to them.
    fn mark(&self) -> String {
        format!("owner-{}-{}", self.pid, self.start)
    }

    /// Those that are named in a folder: the last owner, and perhaps one that died between two steps of `lock`.
    fn all(folder: &Folder) -> Result<Vec<OwnerProcess>, PoolError> {
        let mut owners = Vec::new();
        for name in names(folder)? {
            let numbers = name.to_str().and_then(|name| name.strip_prefix("owner-")?.split_once('-'));
            if let Some((pid, start)) = numbers
                && let (Ok(pid), Ok(start)) = (pid.parse(), start.parse())
            {
                owners.push(OwnerProcess { pid, start });
            }
        }
        Ok(owners)
    }

    /// Whether any of its threads may still hold what the process had. This very process does not count: the pool that it
    /// had open has been dropped.
    fn lives(&self) -> bool {
        if *self == OwnerProcess::this() || start_of(self.pid) != Some(self.start) {
            return false;
        }
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        // A thread that is a zombie has given everything back before: the kernel closes files first.
        threads.flatten().any(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        })
    }
}

fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Counted behind the name, which may hold blanks.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// The name of a slot's file.
pub(super) fn file_name(slot: SlotId) -> String {
    format!("slot-{:04}.buf", slot.0)
}

/// Removes what a crash left half made, and counts the slots that have a file.
pub(super) fn tidy(folder: &Folder, slots: u32) -> Result<u32, PoolError> {
    let (mut present, dir) = (0, folder.path());
    for name in names(folder)? {
        let Some(name) = name.to_str() else { continue };
        match parse_file_name(name) {
            Some((_, TEMPORARY)) => remove_if_present(folder, name)?,
            Some((slot, _)) if slot.0 < slots => present += 1,
            Some((SlotId(slot), _)) => {
                let problem = format!(
                    "slot {slot} exists but only {slots} slots are wanted: have at least {} slots, as long as there is {}. \
                     {ONE_BY_ONE}",
                    slot + 1,
                    dir.join(name).display()
                );
                return Err(PoolError::Config { dir: dir.to_owned(), problem });
            }
            None => {}
        }
    }
    Ok(present)
}

/// Slot and extension, of a name that [`file_name`] makes or its temporary sibling.
fn parse_file_name(name: &str) -> Option<(SlotId, &str)> {
    let (number, extension) = name.strip_prefix("slot-")?.split_once('.')?;
    let slot = SlotId(number.parse().ok()?);
    let ours = Path::new(name).with_extension("buf") == Path::new(&file_name(slot));
    (ours && matches!(extension, "buf" | TEMPORARY)).then_some((slot, extension))
}

/// Removes a file that need not be there.
pub(super) fn remove_if_present(folder: &Folder, name: &str) -> Result<(), PoolError> {
    folder.remove_if_present(name).map_err(io_error("remove", &folder.path().join(name)))
}

pub(super) fn names(folder: &Folder) -> Result<Vec<OsString>, PoolError> {
    folder.names().map_err(io_error("list", folder.path()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_lock_waits_for_the_previous_owner() {
        let dir = tempfile::tempdir().unwrap();
        let folder = private_folder(dir.path()).unwrap();
        drop(lock(&folder).unwrap());
        drop(lock(&folder).unwrap());
        assert_eq!(OwnerProcess::all(&folder).unwrap(), [OwnerProcess::this()]);

        let mut sleeper = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let owner = OwnerProcess { pid: sleeper.id(), start: start_of(sleeper.id()).unwrap() };
        assert!(owner.lives());
        assert!(!OwnerProcess { start: 1, ..owner.clone() }.lives(), "another process with the same number");
        File::create(dir.path().join(owner.mark())).unwrap();
        let exiting = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            sleeper.kill().unwrap();
            sleeper
        });
        drop(lock(&folder).unwrap());
        assert!(!owner.lives(), "the lock was given only when it was dead, though nobody has waited for it yet");
        assert_eq!(OwnerProcess::all(&folder).unwrap(), [OwnerProcess::this()]);
        exiting.join().unwrap().wait().unwrap();
    }
}
