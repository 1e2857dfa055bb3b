//! From the root, or from the present folder, to a folder: each component is opened relative to the one before.
//!
//! Called by [`Folder::open`](crate::Folder::open). A link is followed if it is this user's or root's: administrators put
//! folders elsewhere by links. Another user's link leads wherever that user wants.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use crate::{FolderError, stranger};

/// As many links on the way as Linux follows (`path_resolution(7)`).
const LINKS_MAX: usize = 40;

/// Which parts of a path are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// The last component, with this mode.
    Last(u32),
    /// Every component, with this mode.
    All(u32),
}

/// One step of the rest of the path.
#[derive(Debug)]
enum Step {
    Root,
    Up,
    Into(OsString),
}

fn steps(path: &Path) -> impl DoubleEndedIterator<Item = Step> {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Into(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

/// A handle of the folder, for reading.
pub(crate) fn walk(path: &Path, make: Make) -> Result<OwnedFd, FolderError> {
    let failed = |errno| FolderError::io(path)(errno);
    let mut at = open(CWD, OsStr::new(".")).map_err(failed)?;
    let mut todo: VecDeque<Step> = steps(path).collect();
    let (mut passed, mut links) = (PathBuf::new(), 0);
    while let Some(step) = todo.pop_front() {
        let name = match step {
            Step::Root => {
                (at, passed) = (open(CWD, OsStr::new("/")).map_err(failed)?, PathBuf::from("/"));
                continue;
            }
            Step::Up => {
                at = open(&at, OsStr::new("..")).map_err(failed)?;
                passed.push("..");
                continue;
            }
            Step::Into(name) => name,
        };
        passed.push(&name);
        let mut next = look(&at, &name);
        if let Err(Errno::NOENT) = next {
            let mode = match make {
                Make::All(mode) => Some(mode),
                Make::Last(mode) => todo.is_empty().then_some(mode),
            };
            if let Some(mode) = mode {
                match mkdirat(&at, &name, Mode::from_raw_mode(mode)) {
                    // Another process may have made it since: it is looked at like any other.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(failed(errno)),
                }
                next = look(&at, &name);
            }
        }
        let next = next.map_err(failed)?;
        let found = fstat(&next).map_err(failed)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Symlink => {
                if let Some(owner) = stranger(&found) {
                    let problem = format!("{} is a link of user {owner}", passed.display());
                    return Err(FolderError::untrusted(path, problem));
                }
                links += 1;
                if links > LINKS_MAX {
                    return Err(failed(Errno::LOOP));
                }
                let target = readlinkat(&next, "", Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                passed.pop();
                steps(&target).rev().for_each(|step| todo.push_front(step));
            }
            FileType::Directory => at = next,
            _ => return Err(failed(Errno::NOTDIR)),
        }
    }
    // What was opened on the way allows no listing.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(&at, ".", flags, Mode::empty()).map_err(failed)
}

/// A place on the way, which need not be readable.
fn open(at: impl std::os::fd::AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Anything that has this name, a link too.
fn look(at: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
