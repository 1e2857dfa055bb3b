//! A config store in files that several hosts may share: each content is a file of its own, and the highest number rules.
//!
//! `config.json` is number 0, the first content; its successors are `config.json.1`, `config.json.2` and so on. A swap
//! writes and fsyncs a file under a unique name, and links it to the next number: link(2) fails if the
//! number is taken, on local file systems as over NFS and 9p, where flock(2) may not reach the other hosts. Superseded
//! numbers are removed, so a swap that was asleep may take a number whose successors have come and gone. Its file is
//! called stale; it must never count. Hence each file has a random tag, and names the tag of the file before, which it
//! replaces. A number *stands* while the file before is there with the tag that it names; number 0 always stands.
//!
//! What is never broken:
//! - Number n is removed only by a writer that has linked n + 2 or more, which stood: the highest that stands, and the one
//!   before, stay.
//! - Numbers are removed in ascending order, durably. Number 0 is first: in its place comes a file with another tag, so
//!   that its place is never free again.
//!
//! A stale number never stands:
//! 1. A swap links n + 1 after it has read n with tag t as the highest that stands.
//! 2. If the link is stale, another n + 1 was there before, and was removed.
//! 3. Before that, n with tag t was removed, since removal ascends. It never comes back: a tag is drawn for one file, and
//!    that file is linked once.
//! 4. So from the first moment of the stale n + 1 on there is no n with tag t. ∎
//!
//! Thus a swap whose link succeeds looks for n with tag t again. If it is there, no n + 1 was ever there before, and the swap
//! is done. If not, the swap was done and superseded at once, or its link is stale; the outcome is unknown, and a retry meets
//! the conflict. Likewise a reader takes the highest number and then looks for the one before: there it is, so what it has read
//! was the content of the group at some time. If a folder changes while it is listed, that time may be past, as with any store.
//! Stale files are removed like superseded ones.
//!
//! A damaged file is never repaired by guessing: the error names it and says what to do. An older content is never put
//! back by the program either: see `docs/config-store.md`.

mod entry;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tailwind_protocol::config::{Configuration, Swap, SwapOutcome};
use tailwind_protocol::ids::GroupName;

use crate::logging::Repeats;
use entry::{ConfigFile, ConfigFileError, FORMAT, Tag};

/// Looks at a folder that changes all the while, or swaps that lose the race for a number and then find nobody there.
const LOOKS_MAX: usize = 50;
/// Between two looks; with `LOOKS_MAX` half a second, far longer than the removal of a few files takes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// A file on its way that is older than this was left by a process that died. Ages are told by the file system's clock.
const DRAFT_LIFE: Duration = Duration::from_secs(3600);
/// Most bytes of a file: a configuration takes some kilobytes.
const SIZE_MAX: usize = 1 << 20;
/// How names of files on their way end.
const DRAFT: &str = ".new";

/// A config store in a file and its numbered successors.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
    group: GroupName,
    /// Swaps that failed, as they were logged.
    failures: Arc<Mutex<Repeats<String>>>,
    /// For a reader, which must not change the configuration, and may lack the right to.
    read_only: bool,
    /// Held by the call that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The file with the highest number, unread. While it is the same, so is the content: each swap takes a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newest {
    number: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system said no.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// The content is not what was written.
    #[error(
        "config file {} is damaged ({why}): do not put an older copy in its place, and delete nothing. Stop the group's \
         sidecars, leave its backups running, and do as docs/config-store.md says: resuming from an older copy needs \
         an operator's decision, as the backups may have promised a newer epoch",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// It is another group's: each would depose the other's primary.
    #[error("config file {} is the config store of group {found}: give each group a file of its own", path.display())]
    OtherGroup {
        /// The file.
        path: PathBuf,
        /// The group.
        found: GroupName,
    },
    /// A newer version of the program wrote it.
    #[error("config file {} has format {found}; this version reads format {FORMAT}: run the newer version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The format found.
        found: u32,
    },
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::Io { action, path: path.to_owned(), source }
}

/// A content that stood when it was looked at.
struct CurrentFile {
    number: u64,
    tag: Tag,
    configuration: Configuration,
}

/// A file on its way to a number. Its own name goes when it is dropped.
struct Draft {
    path: PathBuf,
    entry: ConfigFile,
    number: u64,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Else it is removed with those that dead processes have left.
        let _ = fs::remove_file(&self.path);
    }
}

/// The result of publishing a draft.
#[derive(Debug, PartialEq, Eq)]
enum PublishResult {
    /// It is the content, or was.
    Published,
    /// The number was taken.
    Late,
    /// The number was free, and the one before was not there any more.
    Doubtful,
}

impl FileStore {
    /// A group's store at `path`; the folder is created if need be. Fails where swaps could not work.
    pub fn new(path: &Path, group: &GroupName) -> Result<FileStore, StoreError> {
        let store = FileStore::at(path, group, false);
        let folder = store.folder();
        fs::create_dir_all(&folder).map_err(io("create folder", &folder))?;
        store.look()?;
        store.try_links()?;
        Ok(store)
    }

    /// The store at `path` for a process that only reads it: nothing is created or written, now or later. A folder that is not
    /// there yet is a group that has never been started.
    pub fn read_only(path: &Path, group: &GroupName) -> Result<FileStore, StoreError> {
        let store = FileStore::at(path, group, true);
        store.look()?;
        Ok(store)
    }

    fn at(path: &Path, group: &GroupName, read_only: bool) -> FileStore {
        let (path, group) = (path.to_owned(), group.clone());
        FileStore { path, group, failures: Arc::default(), read_only, turn: Arc::default() }
    }

    /// Makes a call where it may block, one at a time: if the folder hangs, as that of a file server that is gone, it holds one
    /// thread, however often it is asked and no longer waited for. Many would leave none to the rest of the process.
    pub async fn in_turn<T: Send + 'static>(
        &self,
        call: impl FnOnce(&FileStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, String> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let store = self.clone();
        let called = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            call(&store)
        });
        called.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// True if this failure of a swap was not logged a moment ago: a swap is tried again many times a second.
    pub fn is_new(&self, error: &str) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.is_due(error.to_owned(), Instant::now())
    }

    /// Where its first content is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content, `None` if the group has never been started.
    pub fn read(&self) -> Result<Option<Configuration>, StoreError> {
        Ok(self.look()?.map(|found| found.configuration))
    }

    /// What is to be read; an error if there is nothing.
    pub fn newest(&self) -> Result<Newest, StoreError> {
        let number = self.highest_number()?;
        let path = self.path_of(number);
        let file = fs::metadata(&path).map_err(io("look at config file", &path))?;
        Ok(Newest { number, inode: file.ino(), size: file.size(), changed: (file.ctime(), file.ctime_nsec()) })
    }

    /// Replaces the content if it is still the one that the swap expects. Never called of a store that is read only.
    pub fn swap(&self, swap: &Swap) -> Result<SwapOutcome, StoreError> {
        assert!(!self.read_only, "a reader swaps nothing");
        for _ in 0..LOOKS_MAX {
            let found = self.look()?;
            if !swap.expects(found.as_ref().map(|found| &found.configuration)) {
                return Ok(SwapOutcome::Conflict(found.map(|found| found.configuration)));
            }
            match self.publish(&self.draft(found.as_ref(), &swap.proposed)?)? {
                PublishResult::Published => return Ok(SwapOutcome::Applied),
                PublishResult::Doubtful => return Ok(SwapOutcome::Unknown),
                PublishResult::Late => {}
            }
        }
        Ok(SwapOutcome::Unknown)
    }

    /// The highest number that stands.
    fn look(&self) -> Result<Option<CurrentFile>, StoreError> {
        let mut damaged = None;
        for _ in 0..LOOKS_MAX {
            let first = self.entry(0)?;
            let number = self.highest_number()?;
            let Some(first) = first else {
                if number == 0 {
                    return Ok(None);
                }
                // Its place is never free once it was taken. Another process may have made it since it was looked for.
                let why = format!("it is missing, and {} is there", self.path_of(number).display());
                damaged = Some(self.damaged(0, &why));
                std::thread::sleep(LOOK_AGAIN);
                continue;
            };
            let entry = if number == 0 { Some(first) } else { self.entry(number)? };
            if let Some(ConfigFile { tag, after, configuration: Some(configuration), .. }) = entry
                && self.stands(number, after)?
            {
                return Ok(Some(CurrentFile { number, tag, configuration }));
            }
            // Another process has removed what the list had shown, or had not: there is a higher number by now.
            damaged = Some(self.damaged(number, "the number that belongs beside it is missing"));
            std::thread::sleep(LOOK_AGAIN);
        }
        damaged.map_or(Ok(None), Err)
    }

    /// True if the number before has the tag that it should have.
    fn stands(&self, number: u64, after: Option<Tag>) -> Result<bool, StoreError> {
        match (number, after) {
            (0, _) => Ok(true),
            (_, None) => Ok(false),
            (_, Some(tag)) => Ok(self.entry(number - 1)?.is_some_and(|entry| entry.tag == tag)),
        }
    }

    /// Writes the successor of what was found, under a name of its own.
    fn draft(&self, found: Option<&CurrentFile>, proposed: &Configuration) -> Result<Draft, StoreError> {
        let entry = self.file(found.map(|found| found.tag), Some(proposed.clone()))?;
        self.write(entry, found.map_or(0, |found| found.number + 1))
    }

    /// What a new file of this group says.
    fn file(&self, after: Option<Tag>, configuration: Option<Configuration>) -> Result<ConfigFile, StoreError> {
        Ok(ConfigFile { tag: self.tag()?, after, group: Some(self.group.clone()), configuration })
    }

    fn write(&self, entry: ConfigFile, number: u64) -> Result<Draft, StoreError> {
        let bytes = entry.to_bytes().map_err(|error| self.damaged(number, &error.to_string()))?;
        let draft = Draft { path: self.draft_path(entry.tag), entry, number };
        // Not by its own name, which is another one each time: what fails again is logged when it says something new.
        let path = self.path_of(number);
        let file = File::options().write(true).create_new(true).open(&draft.path);
        let mut file = file.map_err(io("create a draft of", &path))?;
        file.write_all(&bytes).map_err(io("write a draft of", &path))?;
        file.sync_all().map_err(io("fsync a draft of", &path))?;
        Ok(draft)
    }

    /// Links a draft to its number, and removes what is superseded then.
    fn publish(&self, draft: &Draft) -> Result<PublishResult, StoreError> {
        let target = self.path_of(draft.number);
        match fs::hard_link(&draft.path, &target) {
            Ok(()) => {}
            // NFS asks again when an answer gets lost: then it is this very file that is in the way.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if self.entry(draft.number)?.is_none_or(|entry| entry.tag != draft.entry.tag) {
                    return Ok(PublishResult::Late);
                }
            }
            Err(error) => return Err(io("link to", &target)(error)),
        }
        self.fsync_folder()?;
        if !self.stands(draft.number, draft.entry.after)? {
            return Ok(PublishResult::Doubtful);
        }
        // The swap is done, and the next one tidies up as well.
        if let Err(error) = self.tidy(draft) {
            tracing::warn!(%error, "failed to remove superseded config files");
        }
        Ok(PublishResult::Published)
    }

    /// Removes the numbers below the one before `newest`, which stood: see the rules at the top.
    fn tidy(&self, newest: &Draft) -> Result<(), StoreError> {
        if newest.number < 2 {
            return Ok(());
        }
        if self.entry(0)?.is_some_and(|first| first.configuration.is_some()) {
            let empty = self.write(self.file(None, None)?, 0)?;
            fs::rename(&empty.path, &self.path).map_err(io("rename to", &self.path))?;
            self.fsync_folder()?;
        }
        let mut superseded: Vec<u64> = self.numbers()?.into_iter().filter(|n| *n < newest.number - 1).collect();
        superseded.sort_unstable();
        let mut removed = false;
        for number in superseded {
            // The list may lack one that is there, and order matters.
            for number in [number - 1, number].into_iter().filter(|number| *number > 0) {
                if removed {
                    self.fsync_folder()?;
                }
                removed = remove(&self.path_of(number))?;
            }
        }
        self.remove_left_drafts(newest)
    }

    fn remove_left_drafts(&self, newest: &Draft) -> Result<(), StoreError> {
        let age_of = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
        let now = age_of(&newest.path).map_err(io("look at", &newest.path))?;
        for name in self.names()?.iter().filter(|name| name.ends_with(DRAFT)) {
            let path = self.with_suffix(name);
            // One that cannot be looked at has gone.
            let age = age_of(&path).ok().and_then(|written| now.duration_since(written).ok());
            if age.is_some_and(|age| age > DRAFT_LIFE) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Tells at the start, and not at the first failover, that the file system has no hard links.
    fn try_links(&self) -> Result<(), StoreError> {
        let (file, linked) = (self.draft_path(self.tag()?), self.draft_path(self.tag()?));
        File::create_new(&file).map_err(io("create", &file))?;
        let tried = fs::hard_link(&file, &linked);
        remove(&file)?;
        tried.map_err(io("make a hard link, which the config store's file system must be capable of,", &linked))?;
        remove(&linked).map(|_| ())
    }

    /// What a number's file says; `None` if there is none.
    fn entry(&self, number: u64) -> Result<Option<ConfigFile>, StoreError> {
        let path = self.path_of(number);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(io("read config file", &path)(error)),
        };
        if bytes.len() > SIZE_MAX {
            return Err(self.damaged(number, "it is larger than 1 MiB, as no configuration is"));
        }
        match ConfigFile::from_bytes(&bytes) {
            Ok(ConfigFile { group: Some(found), .. }) if found != self.group => {
                Err(StoreError::OtherGroup { path, found })
            }
            Ok(entry) => Ok(Some(entry)),
            Err(ConfigFileError::Newer(found)) => Err(StoreError::Newer { path, found }),
            Err(ConfigFileError::Damaged(why)) => Err(self.damaged(number, &why)),
        }
    }

    fn highest_number(&self) -> Result<u64, StoreError> {
        Ok(self.numbers()?.into_iter().max().unwrap_or(0))
    }

    /// The numbers that are there, without 0.
    fn numbers(&self) -> Result<Vec<u64>, StoreError> {
        let parse = |name: &String| name.parse().ok().filter(|n: &u64| *n > 0 && n.to_string() == *name);
        Ok(self.names()?.iter().filter_map(parse).collect())
    }

    /// What follows the name of number 0 and a dot in the names of files beside it.
    fn names(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.folder();
        let prefix = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
        let mut names = Vec::new();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => return Ok(names),
            Err(error) => return Err(io("list folder", &folder)(error)),
        };
        for entry in entries {
            let name = entry.map_err(io("list folder", &folder))?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_prefix(&prefix)).map(str::to_owned));
        }
        Ok(names)
    }

    fn path_of(&self, number: u64) -> PathBuf {
        if number == 0 { self.path.clone() } else { self.with_suffix(&number.to_string()) }
    }

    fn draft_path(&self, tag: Tag) -> PathBuf {
        self.with_suffix(&format!("{:016x}{DRAFT}", tag.0))
    }

    fn with_suffix(&self, suffix: &str) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(".");
        path.push(suffix);
        path.into()
    }

    fn tag(&self) -> Result<Tag, StoreError> {
        getrandom::u64().map(Tag).map_err(|error| io("draw a random tag for", &self.path)(io::Error::other(error)))
    }

    fn fsync_folder(&self) -> Result<(), StoreError> {
        let folder = self.folder();
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(io("fsync folder", &folder))
    }

    fn folder(&self) -> PathBuf {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    fn damaged(&self, number: u64, why: &str) -> StoreError {
        StoreError::Damaged { path: self.path_of(number), why: why.to_owned() }
    }
}

/// The bytes of a regular file, or its beginning if it is larger than any. Opening a FIFO would wait for a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(SIZE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// NFS says of a file that another host has removed that its handle is stale.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle)
}

/// True if the file was there.
fn remove(path: &Path) -> Result<bool, StoreError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(io("remove", path)(error)),
    }
}

#[cfg(test)]
mod tests;
