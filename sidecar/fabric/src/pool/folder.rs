//! The folder of a pool: who may enter it, how its files are named and opened, what a crash may have left in it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::contract::SlotId;

use super::error::{PoolError, io_error};

/// The mode bit of folders like /tmp and /dev/shm, which nobody may close to others.
const STICKY: u32 = 0o1000;
/// Extension of a slot file that is being made.
pub(super) const TEMPORARY: &str = "tmp";

/// The folder, absolute, and closed to everybody else: what is in it is as secret as the log.
pub(super) fn private_folder(dir: &Path) -> Result<PathBuf, PoolError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io_error("create pool folder", dir)(error));
        }
        _ => {}
    }
    let dir = fs::canonicalize(dir).map_err(io_error("find pool folder", dir))?;
    let metadata = fs::metadata(&dir).map_err(io_error("find pool folder", &dir))?;
    if !metadata.is_dir() {
        return Err(io_error("open pool folder", &dir)(io::ErrorKind::NotADirectory.into()));
    }
    if metadata.mode() & STICKY != 0 {
        let problem = "all users share this folder: give the pool a folder of its own inside it".into();
        return Err(PoolError::Config { dir, problem });
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, Permissions::from_mode(0o700))
            .map_err(io_error("take the rights of others away from pool folder", &dir))?;
    }
    Ok(dir)
}

/// Keeps other processes out for as long as the file is open.
pub(super) fn lock(dir: &Path) -> Result<File, PoolError> {
    let path = dir.join("lock");
    let file = options().create(true).open(&path).map_err(io_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(PoolError::InUse { dir: dir.to_owned(), by: "another backup daemon" }),
        Err(TryLockError::Error(error)) => Err(io_error("lock", &path)(error)),
    }
}

/// How files of the pool are opened: for reading and writing, by the owner alone, never through a symbolic link.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// The name of a slot's file.
pub(super) fn file_name(slot: SlotId) -> String {
    format!("slot-{:04}.buf", slot.0)
}

/// Removes what a crash left half made, and counts the slots that have a file.
pub(super) fn tidy(dir: &Path, slots: u32) -> Result<u32, PoolError> {
    let mut present = 0;
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        match path.file_name().and_then(|name| parse_file_name(name.to_str()?)) {
            Some((_, TEMPORARY)) => remove_if_present(&path)?,
            Some((slot, _)) if slot.0 < slots => present += 1,
            Some((SlotId(slot), _)) => {
                let problem = format!(
                    "slot {slot} exists but only {slots} slots are wanted: have at least {} slots, or remove {}, which \
                     loses the records in it that are not flushed",
                    slot + 1,
                    path.display()
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
pub(super) fn remove_if_present(path: &Path) -> Result<(), PoolError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}
