//! The operating system's folder: what a backup on a real host writes to.

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::{File, Folder};
use crate::page_buffer::PAGE;

/// A flush folder, locked against other daemons for as long as this lives.
#[derive(Debug)]
pub struct OsFolder {
    dir: PathBuf,
    _lock: fs::File,
}

impl OsFolder {
    /// Opens the folder, which is made if need be, and makes sure that it can be written.
    pub fn open(dir: &Path) -> anyhow::Result<OsFolder> {
        let shown = dir.display();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| {
            format!("create flush folder {shown}: use a --flush-dir that this user may create or write")
        })?;
        let unwritable = || format!("write to flush folder {shown}: use a --flush-dir that this user may write");
        let lock = options().create(true).open(dir.join("lock")).with_context(unwritable)?;
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
        // The folder's own name.
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_folder(parent).with_context(unwritable)?;
        Ok(OsFolder { dir: dir.to_owned(), _lock: lock })
    }
}

impl Folder for OsFolder {
    fn path(&self) -> &Path {
        &self.dir
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            // A name that is no text is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let path = self.dir.join(name);
        // Before it is opened: opening a FIFO waits, and opening a device may do anything.
        check_regular(&fs::symlink_metadata(&path)?)?;
        let file = options().open(&path)?;
        check_regular(&file.metadata()?)?;
        Ok(Box::new(OsFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.remove_if_present(name)?;
        Ok(Box::new(OsFile(options().create_new(true).open(self.dir.join(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.dir.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        sync_folder(&self.dir)
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
        // Of a file's attributes, the ones that its bytes are found by come along: fdatasync(2).
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

/// For the owner alone, and never through a link. A FIFO or a device that takes a file's name must not make anybody wait.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    options.read(true).write(true).mode(0o600).custom_flags(flags);
    options
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

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
