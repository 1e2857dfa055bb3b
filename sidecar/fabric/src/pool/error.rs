//! What can go wrong with a pool, in words for the administrator.

use std::io;
use std::path::{Path, PathBuf};

/// How to get another pool. Removing the buffers of every member removes the log.
pub(super) const ONE_BY_ONE: &str = "Remove none: a buffer may be the only copy of records that are not flushed. For another \
                                     pool, give one backup at a time a new, empty folder, and only while `tailwind-sidecar \
                                     status` shows all others `in set`";

/// What to do about a folder that another user can have made, or can write to.
pub(super) const OWN_FOLDER: &str = "Give this backup a folder of its own with --pool, in a folder where other users cannot \
                                     make it first. To keep using this one, see to it that nobody else has changed what is \
                                     in it; then let it belong to this backup's user and have mode 0700";

/// What went wrong with a pool, in words for the administrator.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The pool cannot be set up as requested.
    #[error("pool {dir}: {problem}")]
    Config {
        /// The pool's folder.
        dir: PathBuf,
        /// What was wrong and what to do.
        problem: String,
    },
    /// Another process uses the same folder.
    #[error("pool {dir} is in use by {by}: stop that first, or give this one its own folder")]
    InUse {
        /// The pool's folder.
        dir: PathBuf,
        /// The user of the folder.
        by: &'static str,
    },
    /// The folder was made for other slots.
    #[error(
        "slot file {path} has {found} bytes, but slots of {slot_size} bytes need {expected}: set the slot size that the \
         pool was made with. {advice}",
        advice = ONE_BY_ONE
    )]
    SlotSize {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The slot size asked for.
        slot_size: u32,
        /// The length that goes with it.
        expected: u64,
    },
    /// No memory for a slot. The only error that may pass by itself: the same call may succeed once slots have been released.
    #[error(
        "no room in pool {dir}: it needs {needed} bytes more, and its file system has {free} free. Free or add space there, or \
         have fewer slots; it is tried again until then"
    )]
    NoSpace {
        /// The pool's folder.
        dir: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The operating system refused.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was being done, in the present tense.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Says what was being done to `path` when the operating system refused.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PoolError {
    let path = path.to_owned();
    move |source| PoolError::Io { action, path, source }
}
