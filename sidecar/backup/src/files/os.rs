//! The operating system's folder: what a backup on a real host writes to.

use std::fs::{self, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tailwind_folder::{FolderError, Make};

use super::{File, Folder};
use crate::page_buffer::PAGE;

/// What to do about a folder that another user can have made, or can write to.
const OWN_FOLDER: &str = "Give this backup a --flush-dir of its own, in a folder where other users cannot make it first. To go \
                          on with this one, see to it that nobody else has changed what is in it; then let it belong to this \
                          backup's user and have mode 0700";
/// The file that a daemon holds locked.
const LOCK: &str = "lock";

/// A flush folder, locked against other daemons for as long as this lives.
#[derive(Debug)]
pub struct OsFolder {
    folder: tailwind_folder::Folder,
    _lock: fs::File,
}

impl OsFolder {
    /// Opens the folder, which is made if need be, and makes sure that it can be written, and by no other user.
    pub fn open(dir: &Path) -> anyhow::Result<OsFolder> {
        let shown = dir.display();
        let folder = match tailwind_folder::Folder::open(dir, Make::All(0o700)) {
            Ok(folder) => folder,
            Err(FolderError::Untrusted { problem, .. }) => bail!("flush folder {shown}: {problem}. {OWN_FOLDER}"),
            Err(FolderError::Io { source, .. }) => {
                return Err(source).with_context(|| {
                    format!("create flush folder {shown}: use a --flush-dir that this user may create or write")
                });
            }
        };
        let unwritable = || format!("write to flush folder {shown}: use a --flush-dir that this user may write");
        let lock = folder.open_file(LOCK, OFlags::CREATE).with_context(unwritable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "flush folder {shown} is in use by another backup daemon: stop that first, or give this one its own \
                 --flush-dir"
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock flush folder {shown}"));
            }
        }
        // The folder's own name, and those of the folders that were made for it.
        folder.sync_parents().with_context(unwritable)?;
        Ok(OsFolder { folder, _lock: lock })
    }
}

impl Folder for OsFolder {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        // A name that is no text is none of ours.
        Ok(self.folder.names()?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(OsFile(self.folder.open_file(name, OFlags::empty())?)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.remove_if_present(name)?;
        Ok(Box::new(OsFile(self.folder.open_file(name, OFlags::CREATE | OFlags::EXCL)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

#[derive(Debug)]
struct OsFile(fs::File);

impl File for OsFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(out, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(bytes, at)
    }

    fn write_direct(&self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len() - bytes.len() % PAGE];
        let flags = fcntl_getfl(&self.0)?;
        if !bytes.as_ptr().addr().is_multiple_of(PAGE) || fcntl_setfl(&self.0, flags | OFlags::DIRECT).is_err() {
            return Ok(0);
        }
        let written = self.write_while_direct(bytes);
        fcntl_setfl(&self.0, flags)?;
        written
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        Ok(fallocate(&self.0, FallocateFlags::empty(), 0, length)?)
    }

    fn sync(&self) -> io::Result<()> {
        // This also syncs the attributes by which the file's bytes are found: fdatasync(2).
        self.0.sync_data()
    }

    fn will_be_read(&self) {
        // Without it the kernel reads ahead by itself, but not as far.
        let _ = fadvise(&self.0, 0, None, Advice::WillNeed);
    }

    fn forget_cached(&self) {
        // Without it the cache is read, and that has not rotted.
        let _ = fadvise(&self.0, 0, None, Advice::DontNeed);
    }
}

impl OsFile {
    /// Writes until the end, or until the file system wants no more of it: some take the flag and then no bytes.
    fn write_while_direct(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match self.0.write_at(&bytes[at..], at as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::page_buffer::PageBuffer;

    fn folder() -> (tempfile::TempDir, OsFolder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::open(&dir.path().join("flush")).unwrap();
        (dir, folder)
    }

    #[test]
    fn only_regular_files_are_opened_without_blocking() {
        let (_dir, folder) = folder();
        let path = |name: &str| folder.path().join(name);
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("file"), "bytes").unwrap();
        symlink(path("file"), path("link")).unwrap();
        for name in ["fifo", "folder", "link"] {
            let error = folder.open(name).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{name}");
        }
        assert_eq!(folder.open("file").unwrap().length().unwrap(), 5);
        assert_eq!(folder.open("nothing").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn first_bytes_arrive_whole_whatever_their_length() {
        let (_dir, folder) = folder();
        let mut bytes = PageBuffer::default();
        for length in [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, 40 * PAGE + 77] {
            bytes.resize(length + 1);
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
            for bytes in [&bytes[..length], &bytes[1..]] {
                let file = folder.create("file").unwrap();
                file.allocate(length as u64 + 5).unwrap();
                file.write_first(bytes).unwrap();
                file.write_all_at(length as u64, b"after").unwrap();
                file.sync().unwrap();
                assert_eq!(fs::read(folder.path().join("file")).unwrap(), [bytes, b"after"].concat());
            }
        }
        bytes.resize(2 * PAGE);
        let file = folder.create("file").unwrap();
        let direct = file.write_direct(&bytes[..2 * PAGE - 1]).unwrap();
        assert!(direct == PAGE || direct == 0, "whole pages, if this file system allows it: {direct}");
        assert_eq!(file.write_direct(&bytes[1..]).unwrap(), 0, "not from between two pages");
    }

    #[test]
    fn a_new_file_replaces_anything_but_a_folder() {
        let (_dir, folder) = folder();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "older bytes").unwrap();
        symlink(path("file"), path("link")).unwrap();
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for name in ["link", "fifo"] {
            folder.create(name).unwrap().write_all_at(0, b"new").unwrap();
            assert_eq!(fs::read(path(name)).unwrap(), b"new");
        }
        assert_eq!(fs::read(path("file")).unwrap(), b"older bytes", "nothing was written through the link");
        fs::create_dir(path("folder")).unwrap();
        folder.create("folder").unwrap_err();
    }

    #[test]
    fn only_one_daemon_may_own_the_folder() {
        let (_dir, folder) = folder();
        let error = OsFolder::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("in use by another backup daemon"), "{error}");
    }

    /// Anybody who may write to it may exchange segments and promises.
    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let flush = dir.path().join("flush");
        fs::create_dir(&flush).unwrap();
        for mode in [0o777, 0o770, 0o1777] {
            fs::set_permissions(&flush, fs::Permissions::from_mode(mode)).unwrap();
            let error = format!("{:#}", OsFolder::open(&flush).unwrap_err());
            let words =
                format!("flush folder {}: its mode is {mode:04o}, so other users may write to it", flush.display());
            assert!(error.contains(&words) && error.contains("--flush-dir"), "{error}");
            assert_eq!(fs::read_dir(&flush).unwrap().count(), 0, "left as it was");
        }
        fs::set_permissions(&flush, fs::Permissions::from_mode(0o755)).unwrap();
        OsFolder::open(&flush).unwrap();
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        const STRANGER: u32 = 65534;
        if !rustix::process::geteuid().is_root() {
            let _ = writeln!(io::stderr(), "cannot run: what_belongs_to_another_user_is_refused: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (flush, link) = (dir.path().join("flush"), dir.path().join("link"));
        fs::create_dir(&flush).unwrap();
        symlink(&flush, &link).unwrap();
        lchown(&link, Some(STRANGER), None).unwrap();
        let error = format!("{:#}", OsFolder::open(&link).unwrap_err());
        assert!(error.contains(&format!("{} is a link of user {STRANGER}", link.display())), "{error}");

        let folder = OsFolder::open(&flush).unwrap();
        fs::write(flush.join("promise"), "his").unwrap();
        chown(flush.join("promise"), Some(STRANGER), None).unwrap();
        let error = folder.open("promise").unwrap_err().to_string();
        assert_eq!(error, format!("it belongs to user {STRANGER}"));
        drop(folder);

        chown(&flush, Some(STRANGER), None).unwrap();
        let error = format!("{:#}", OsFolder::open(&flush).unwrap_err());
        assert!(error.contains(&format!("flush folder {}: it belongs to user {STRANGER}", flush.display())), "{error}");
    }

    #[test]
    fn files_stay_in_the_folder_that_was_opened() {
        let (_dir, folder) = folder();
        let moved = folder.path().with_extension("moved");
        fs::rename(folder.path(), &moved).unwrap();
        fs::create_dir(folder.path()).unwrap();
        folder.create("a").unwrap().write_all_at(0, b"bytes").unwrap();
        folder.rename("a", "b").unwrap();
        assert_eq!(folder.open("b").unwrap().length().unwrap(), 5);
        assert_eq!(fs::read(moved.join("b")).unwrap(), b"bytes");
        assert!(folder.names().unwrap().contains(&"b".to_owned()));
        folder.remove("b").unwrap();
        folder.sync().unwrap();
        assert!(!moved.join("b").exists());
    }

    #[test]
    fn a_read_only_folder_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            // To root every folder is writable; a file in the way is not.
            fs::write(dir.path().join("file"), "").unwrap();
            let error = format!("{:#}", OsFolder::open(&dir.path().join("file")).unwrap_err());
            assert!(error.contains("--flush-dir"), "{error}");
            return;
        }
        let locked = dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
        let error = format!("{:#}", OsFolder::open(&locked).unwrap_err());
        assert!(error.contains("--flush-dir"), "{error}");
    }
}
