//! The promise file: what a backup must remember through the loss of all memory, and through a full disk.
//!
//! Read at the start by [`start`](crate::start()), written by the [`daemon`](crate::daemon) before a fence is reported.
//!
//! # Bytes
//! Two [blocks](crate::blocks) of magic `TWPROMIS`, allocated when the file is made, so that writing needs no space. Every
//! write goes to both blocks, one after the other, each brought to disk before the next is begun. So one damaged block
//! never matters: if a crash tore it, the other one holds the newest content that was reported (or a newer one); if the
//! disk damaged it at rest, the other one is its equal. With two damaged blocks the promise is unknown.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tailwind_protocol::backup::Promise;
use tailwind_protocol::ids::{BootId, GroupName, MemberId};
use tailwind_protocol::rpc::FORMER_MAX;

use crate::blocks::{BLOCK_SIZE, Block, Kind};
use crate::disk::PROMISE;
use crate::files::{File, Folder};

const VERSION: u32 = 2;
/// Two names of at most 253 bytes, a doubt of at most [`DOUBT_LENGTH_MAX`](tailwind_protocol::backup::DOUBT_LENGTH_MAX),
/// twice that where all of it must be escaped, eight identities of 36 bytes, and numbers.
const KIND: Kind = Kind { magic: *b"TWPROMIS", version: VERSION };
/// Its name while it is being made.
const TEMPORARY: &str = "promise.tmp";

/// What a backup is and has promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberState {
    /// The group that the folder belongs to.
    pub group: GroupName,
    /// The backup that the folder belongs to.
    pub member: MemberId,
    /// Its memory's identity.
    pub boot: BootId,
    /// What it promised.
    pub promise: Promise,
    /// Nothing is in memory only: a clean shutdown brought everything to disk, and nothing was lent since.
    pub complete: bool,
}

impl MemberState {
    /// Gives it a new identity. What is on disk was written under the one before, and an administrator may want to recover from
    /// it.
    pub(crate) fn renew(&mut self, boot: BootId) {
        let before = std::mem::replace(&mut self.boot, boot);
        self.complete = false;
        // Doubts are void: no primary expects their segments from this backup.
        self.promise.doubt = None;
        let former = &mut self.promise.former;
        former.push(before);
        former.drain(..former.len().saturating_sub(FORMER_MAX));
    }
}

/// Why the promise file cannot be used, for people.
#[derive(Debug, thiserror::Error)]
pub enum PromiseError {
    /// The disk said no.
    #[error("{action} promise file {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the disk said.
        source: io::Error,
    },
    /// A newer version wrote it.
    #[error(
        "promise file {path} has format {found}, written by a newer version; this one reads up to {VERSION}: run the newer \
         version"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Neither block is sound.
    #[error(
        "promise file {path} is damaged ({first}; {second}): which epoch this backup has promised is unknown, so it must \
         not serve its log again. If the group is well without this backup, start it with an empty pool and flush folder. \
         The group copies the log to it; keep the old folders until it has, and never do this at two backups at once"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with the first block.
        first: String,
        /// What is wrong with the second block.
        second: String,
    },
}

/// The open file.
#[derive(Debug)]
pub struct PromiseFile {
    file: Box<dyn File>,
    path: PathBuf,
    sequence: u64,
}

impl PromiseFile {
    /// Opens the file, if there is one. Both blocks are synced to disk, whatever they contain.
    pub fn open(folder: &dyn Folder) -> Result<Option<(PromiseFile, MemberState)>, PromiseError> {
        let path = folder.path().join(PROMISE);
        let io_error = |action| io_error(action, &path);
        let file = match folder.open(PROMISE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open")(error)),
        };
        let blocks = [KIND.read::<MemberState>(&*file, 0), KIND.read(&*file, 1)];
        let [first, second] = blocks.map(|block| block.map_err(io_error("read")));
        let (sequence, member_state, good) = match (first?, second?) {
            (Block::Newer(found), _) | (_, Block::Newer(found)) => {
                return Err(PromiseError::Newer { path, found });
            }
            (Block::Damaged(first), Block::Damaged(second)) => {
                return Err(PromiseError::Damaged { path, first, second });
            }
            (Block::Sound(sequence, member_state), Block::Damaged(_)) => (sequence, member_state, 0),
            (Block::Damaged(_), Block::Sound(sequence, member_state)) => (sequence, member_state, 1),
            (Block::Sound(a, first), Block::Sound(b, _)) if a >= b => (a, first, 0),
            (Block::Sound(..), Block::Sound(b, second)) => (b, second, 1),
        };
        let mut promise = PromiseFile { file, path, sequence };
        // The other one first: a write that is torn may leave nothing of its block, and this may be the only good one.
        promise.write_block(1 - good, sequence, &member_state)?;
        // The process before may have died of a sync that failed: then what was read here is perhaps not on disk, and no later
        // sync would bring it there (`fsync(2)`).
        promise.write_block(good, sequence, &member_state)?;
        promise.write(&member_state)?;
        Ok(Some((promise, member_state)))
    }

    /// Makes the file: whole or not at all.
    pub fn create(folder: &dyn Folder, member_state: &MemberState) -> Result<PromiseFile, PromiseError> {
        let path = folder.path().join(PROMISE);
        let io_error = |action| io_error(action, &path);
        let file = folder.create(TEMPORARY).map_err(io_error("create"))?;
        file.allocate(2 * BLOCK_SIZE as u64).map_err(io_error("allocate"))?;
        let mut promise = PromiseFile { file, path: path.clone(), sequence: 0 };
        promise.write(member_state)?;
        folder.rename(TEMPORARY, PROMISE).map_err(io_error("rename"))?;
        folder.sync().map_err(io_error("write the folder of"))?;
        Ok(promise)
    }

    /// Brings `member_state` to disk, twice. When it returns, no single fault can lose it.
    pub fn write(&mut self, member_state: &MemberState) -> Result<(), PromiseError> {
        let sequence = self.sequence + 1;
        // The block that holds the older content goes first: until the new one is whole, the newest stays readable.
        for index in [sequence % 2, (sequence + 1) % 2] {
            self.write_block(index, sequence, member_state)?;
        }
        self.sequence = sequence;
        Ok(())
    }

    fn write_block(&self, index: u64, sequence: u64, member_state: &MemberState) -> Result<(), PromiseError> {
        KIND.write(&*self.file, index, sequence, member_state).map_err(io_error("write", &self.path))
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PromiseError + use<> {
    let path = path.to_owned();
    move |source| PromiseError::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::Epoch;

    use super::*;
    use crate::files::OsFolder;

    fn member_state(epoch: u64) -> MemberState {
        MemberState {
            group: "db".parse().unwrap(),
            member: "b0".parse().unwrap(),
            boot: BootId(7),
            promise: Promise { epoch: Epoch(epoch), ..Promise::default() },
            complete: false,
        }
    }

    /// A folder whose file has promised epochs 1, 2 and 3.
    fn promised() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = OsFolder::open(dir.path()).unwrap();
        let mut file = PromiseFile::create(&folder, &member_state(1)).unwrap();
        file.write(&member_state(2)).unwrap();
        file.write(&member_state(3)).unwrap();
        let path = dir.path().join(PROMISE);
        (dir, path)
    }

    fn open(path: &Path) -> Result<Option<(PromiseFile, MemberState)>, PromiseError> {
        PromiseFile::open(&OsFolder::open(path.parent().unwrap()).unwrap())
    }

    fn read(path: &Path) -> Result<MemberState, PromiseError> {
        open(path).map(|found| found.expect("the file is there").1)
    }

    fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(path).unwrap();
        change(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn the_newest_promise_is_read_back() {
        let (_dir, path) = promised();
        assert_eq!(read(&path).unwrap(), member_state(3));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * BLOCK_SIZE as u64);
    }

    #[test]
    fn no_file_is_no_promise() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(&dir.path().join(PROMISE)).unwrap().is_none());
    }

    #[test]
    fn any_torn_write_leaves_the_old_or_the_new_promise() {
        let (_dir, path) = promised();
        let before = std::fs::read(&path).unwrap();
        let (mut file, _) = open(&path).unwrap().unwrap();
        file.write(&member_state(4)).unwrap();
        let after = std::fs::read(&path).unwrap();
        let new = KIND.to_block(5, &member_state(4));
        assert_eq!(after, [new, new].concat(), "both blocks are equal at rest");
        for cut in (0..BLOCK_SIZE).step_by(97) {
            // The first block to be written is torn: only what was reported may be read.
            std::fs::write(&path, [&after[..cut], &before[cut..]].concat()).unwrap();
            let found = read(&path).unwrap();
            assert!(found == member_state(3) || (cut > 24 && found == member_state(4)), "cut at {cut}: {found:?}");
            // The first is whole, the second torn.
            let torn = [&after[..BLOCK_SIZE], &after[BLOCK_SIZE..][..cut], &before[BLOCK_SIZE..][cut..]].concat();
            std::fs::write(&path, torn).unwrap();
            assert_eq!(read(&path).unwrap(), member_state(4), "cut at {cut}");
        }
    }

    #[test]
    fn damage_to_one_block_is_repaired_without_loss() {
        for block in 0..2 {
            let (_dir, path) = promised();
            change(&path, |bytes| bytes[block * BLOCK_SIZE + 100] ^= 1);
            assert_eq!(read(&path).unwrap(), member_state(3));
            change(&path, |bytes| bytes[(1 - block) * BLOCK_SIZE + 100] ^= 1);
            assert_eq!(read(&path).unwrap(), member_state(3), "the first start has mended it");
        }
    }

    /// A folder whose first write is torn, as by a loss of power: what was there is gone.
    #[derive(Debug)]
    struct Torn(OsFolder);

    #[derive(Debug)]
    struct TornFile(Box<dyn File>);

    impl Folder for Torn {
        fn path(&self) -> &Path {
            self.0.path()
        }

        fn names(&self) -> io::Result<Vec<String>> {
            self.0.names()
        }

        fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
            Ok(Box::new(TornFile(self.0.open(name)?)))
        }

        fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
            self.0.create(name)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.0.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }

        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
    }

    impl File for TornFile {
        fn length(&self) -> io::Result<u64> {
            self.0.length()
        }

        fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<usize> {
            self.0.read_at(at, out)
        }

        fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<usize> {
            self.0.write_at(at, &vec![0xee; bytes.len()])?;
            Err(io::Error::other("the power is gone"))
        }

        fn allocate(&self, length: u64) -> io::Result<()> {
            self.0.allocate(length)
        }

        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
    }

    #[test]
    fn the_only_sound_block_is_not_touched_first() {
        for block in 0..2 {
            let (_dir, path) = promised();
            change(&path, |bytes| bytes[block * BLOCK_SIZE + 100] ^= 1);
            let torn = Torn(OsFolder::open(path.parent().unwrap()).unwrap());
            let error = PromiseFile::open(&torn).unwrap_err().to_string();
            assert!(error.contains("the power is gone"), "{error}");
            drop(torn);
            assert_eq!(read(&path).unwrap(), member_state(3), "block {block} was damaged");
        }
    }

    #[test]
    fn damage_to_both_blocks_is_an_error_and_changes_nothing() {
        let (_dir, path) = promised();
        change(&path, |bytes| {
            bytes[100] ^= 1;
            bytes.truncate(BLOCK_SIZE + 17);
        });
        let before = std::fs::read(&path).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("is damaged") && error.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_newer_version_is_an_error_and_left_unchanged() {
        let (_dir, path) = promised();
        change(&path, |bytes| {
            bytes[8] = 3;
            let crc = crc32fast::hash(&bytes[..BLOCK_SIZE - 4]);
            bytes[BLOCK_SIZE - 4..BLOCK_SIZE].copy_from_slice(&crc.to_le_bytes());
        });
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("written by a newer version"), "{error}");
    }
}
