//! A config store in one file: a lock file beside it, compare under the lock, write anew, fsync, rename, fsync the folder.
//!
//! The file is JSON of two lines: a header with format version and CRC, and the configuration. It is never repaired by
//! guessing: a damaged file is an error that names it and says what to do.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tailwind_protocol::config::{Configuration, Swap, SwapOutcome};

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// A config store in a file.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
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
        "config file {} is damaged ({why}): restore it from a copy; if every sidecar and backup of the group is stopped \
         and its log is no longer needed, delete it together with the backups' folders", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
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

#[derive(Serialize, Deserialize)]
struct Header {
    tailwind_config: u32,
    crc32: u32,
}

impl FileStore {
    /// A store at `path`; the folder is created if need be.
    pub fn new(path: &Path) -> Result<FileStore, StoreError> {
        let store = FileStore { path: path.to_owned() };
        let folder = store.folder();
        fs::create_dir_all(&folder).map_err(io("create folder", &folder))?;
        store.lock()?;
        store.read_unlocked()?;
        Ok(store)
    }

    /// The content, `None` if the group has never been started.
    pub fn read(&self) -> Result<Option<Configuration>, StoreError> {
        // A rename replaces the file as a whole, so a reader needs no lock.
        self.read_unlocked()
    }

    /// Replaces the content if it is still the one that the swap expects.
    pub fn swap(&self, swap: &Swap) -> Result<SwapOutcome, StoreError> {
        let _lock = self.lock()?;
        let found = self.read_unlocked()?;
        if found.as_ref().map(Configuration::stamp) != swap.expected {
            return Ok(SwapOutcome::Conflict(found));
        }
        self.write(&swap.proposed)?;
        Ok(SwapOutcome::Applied)
    }

    fn read_unlocked(&self) -> Result<Option<Configuration>, StoreError> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(self.damaged("not text")),
            Err(source) => return Err(io("read config file", &self.path)(source)),
        };
        let (header, body) = text.split_once('\n').ok_or_else(|| self.damaged("no header"))?;
        let header: Header = serde_json::from_str(header).map_err(|_| self.damaged("not a header"))?;
        if header.tailwind_config > FORMAT {
            return Err(StoreError::Newer { path: self.path.clone(), found: header.tailwind_config });
        }
        if crc32fast::hash(body.as_bytes()) != header.crc32 {
            return Err(self.damaged("its CRC does not match"));
        }
        serde_json::from_str(body).map(Some).map_err(|error| self.damaged(&error.to_string()))
    }

    fn write(&self, config: &Configuration) -> Result<(), StoreError> {
        let mut body = serde_json::to_string_pretty(config).map_err(|e| self.damaged(&e.to_string()))?;
        body.push('\n');
        let header = Header { tailwind_config: FORMAT, crc32: crc32fast::hash(body.as_bytes()) };
        let header = serde_json::to_string(&header).map_err(|e| self.damaged(&e.to_string()))?;
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh).map_err(io("create", &fresh))?;
        file.write_all(format!("{header}\n{body}").as_bytes()).map_err(io("write", &fresh))?;
        file.sync_all().map_err(io("fsync", &fresh))?;
        fs::rename(&fresh, &self.path).map_err(io("rename to", &self.path))?;
        let folder = self.folder();
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(io("fsync folder", &folder))
    }

    /// Held until dropped; other processes and tasks wait.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.with_extension("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(io("open lock file", &path))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| io("lock", &path)(e.into()))?;
        Ok(file)
    }

    fn folder(&self) -> PathBuf {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    fn damaged(&self, why: &str) -> StoreError {
        StoreError::Damaged { path: self.path.clone(), why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwind_protocol::config::PrimaryRef;
    use tailwind_protocol::ids::{Claim, Epoch, LogId, Version};

    fn config(epoch: u64) -> Configuration {
        Configuration {
            log: LogId(7),
            epoch: Epoch(epoch),
            claim: Claim(1),
            version: Version(epoch),
            primary: PrimaryRef { id: "a".parse().unwrap(), control: "127.0.0.1:1".into() },
            members: Vec::new(),
        }
    }

    #[test]
    fn swaps_only_what_was_expected() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(&folder.path().join("deep/config.json")).unwrap();
        assert_eq!(store.read().unwrap(), None);
        let first = Swap { expected: None, proposed: config(1) };
        assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Applied);
        assert_eq!(store.swap(&first).unwrap(), SwapOutcome::Conflict(Some(config(1))));
        let second = Swap { expected: Some(config(1).stamp()), proposed: config(2) };
        assert_eq!(store.swap(&second).unwrap(), SwapOutcome::Applied);
        assert_eq!(store.read().unwrap(), Some(config(2)));
    }

    #[test]
    fn only_one_of_many_racing_swaps_wins() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(&folder.path().join("config.json")).unwrap();
        let racers: Vec<_> = (1..=8)
            .map(|epoch| {
                let store = store.clone();
                std::thread::spawn(move || store.swap(&Swap { expected: None, proposed: config(epoch) }).unwrap())
            })
            .collect();
        let won = racers.into_iter().map(|r| r.join().unwrap());
        assert_eq!(won.filter(|outcome| *outcome == SwapOutcome::Applied).count(), 1);
    }

    #[test]
    fn says_what_is_wrong_with_a_file_that_it_cannot_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let store = FileStore::new(&path).unwrap();
        store.swap(&Swap { expected: None, proposed: config(1) }).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        for damage in [good.replace("\"epoch\": 1", "\"epoch\": 9"), good[..good.len() - 9].to_owned(), String::new()] {
            fs::write(&path, damage).unwrap();
            assert!(matches!(store.read(), Err(StoreError::Damaged { .. })));
            assert!(store.swap(&Swap { expected: None, proposed: config(2) }).is_err(), "nothing is overwritten");
        }
        fs::write(&path, good.replace("\"tailwind_config\":1", "\"tailwind_config\":2")).unwrap();
        let error = store.read().unwrap_err().to_string();
        assert!(error.contains("format 2"), "{error}");
    }
}
