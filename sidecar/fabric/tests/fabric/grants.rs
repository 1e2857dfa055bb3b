//! Grants over `shm` that a lying receiver makes up: no matter which file they name, the sender's and the reader's memory stays
//! as it was.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tailwind_fabric::shm::{ShmReader, ShmSender};
use tailwind_fabric::{Grant, ReadGrant, Reader, SLOT_SIZE_MAX, Sender};
use tempfile::TempDir;

const KEY: u64 = 0x0102_0304_0506_0708;
const SLOT_SIZE: u32 = 8 << 20;
const PAGE: u64 = 4096;

/// A file of so many bytes that has memory for its trailer alone, which says that a slot of `slot_size` bytes is lent and shared.
fn slot_file(length: u64, slot_size: u32) -> (TempDir, PathBuf, File) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() };
    let path = dir.path().join("slot-0000.buf");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(length).unwrap();
    for (offset, word) in [(0, 1), (8, KEY), (24, KEY)] {
        file.write_all_at(&word.to_ne_bytes(), u64::from(slot_size) + offset).unwrap();
    }
    (dir, path, file)
}

/// Why neither is believed; the file has no more memory than before.
fn refused(path: &Path, file: &File, length: u32) -> String {
    let path = path.to_str().unwrap().to_owned();
    let before = file.metadata().unwrap().blocks();
    let written = ShmSender::default().attach(&Grant::Shm { path: path.clone(), key: KEY, length });
    let read = ShmReader.attach(&ReadGrant::Shm { path, key: KEY, length });
    assert_eq!(file.metadata().unwrap().blocks(), before, "nothing was mapped");
    let (written, read) = (written.unwrap_err().to_string(), read.unwrap_err().to_string());
    let why = |text: &str| text.rsplit(": ").next().unwrap().to_owned();
    assert_eq!(why(&written), why(&read));
    written
}

#[test]
fn a_grant_of_more_than_the_largest_slot_is_refused() {
    let length = SLOT_SIZE_MAX + PAGE as u32;
    let (_dir, path, file) = slot_file(u64::from(length) + PAGE, length);
    let why = refused(&path, &file, length);
    assert!(why.contains("at most 67108864"), "{why}");
    for odd in [0, 100, SLOT_SIZE - 1] {
        refused(&path, &file, odd);
    }
}

/// Mapped as a whole, two gigabytes would come with a slot of eight megabytes.
#[test]
fn a_file_longer_than_its_slot_is_refused() {
    for length in [2 << 30, u64::from(SLOT_SIZE) + 2 * PAGE + (2 << 20), u64::from(SLOT_SIZE)] {
        let (_dir, path, file) = slot_file(length.max(u64::from(SLOT_SIZE) + 32), SLOT_SIZE);
        file.set_len(length).unwrap();
        let why = refused(&path, &file, SLOT_SIZE);
        assert!(why.contains(&format!("it has {length} bytes")), "{why}");
    }
}

/// A pool's files have all of their memory: one that has not is written all the same, and takes no more than what is written.
#[test]
fn a_file_without_memory_is_not_given_any() {
    let (_dir, path, file) = slot_file(u64::from(SLOT_SIZE) + PAGE, SLOT_SIZE);
    let grant = Grant::Shm { path: path.to_str().unwrap().to_owned(), key: KEY, length: SLOT_SIZE };
    let sender = ShmSender::default();
    let remote = sender.attach(&grant).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 <= 4 * PAGE);
    let answer = tailwind_fabric::ChannelAnswer::Shm;
    let mut channel = sender.begin().unwrap().connect(&answer, [127, 0, 0, 1].into()).unwrap();
    channel.post_bytes(&remote, 64, b"bytes").unwrap();
    assert_eq!(channel.poll(), Ok(1));
    let mut found = [0; 5];
    file.read_exact_at(&mut found, 64).unwrap();
    assert_eq!(&found, b"bytes");
}

#[test]
fn a_grant_whose_lending_is_over_is_refused() {
    let (_dir, path, file) = slot_file(u64::from(SLOT_SIZE) + PAGE, SLOT_SIZE);
    for offset in [8, 24] {
        file.write_all_at(&7_u64.to_ne_bytes(), u64::from(SLOT_SIZE) + offset).unwrap();
    }
    let path = path.to_str().unwrap().to_owned();
    let written = ShmSender::default().attach(&Grant::Shm { path, key: KEY, length: SLOT_SIZE });
    assert!(written.unwrap_err().to_string().contains("the lending is over"));
    assert!(file.metadata().unwrap().blocks() * 512 <= 4 * PAGE, "nothing was mapped");
}

/// A channel panics at a write behind the end of its slot: the writer checks the grant first.
#[test]
fn a_grant_of_too_few_bytes_is_refused_on_every_fabric() {
    let grants = [
        Grant::Verbs { address: 1, key: 1, length: SLOT_SIZE },
        Grant::Shm { path: "x".to_owned(), key: 1, length: SLOT_SIZE },
        Grant::Tcp { key: 1, length: SLOT_SIZE },
    ];
    for grant in grants {
        grant.check_length(SLOT_SIZE).unwrap();
        let why = grant.check_length(SLOT_SIZE + 1).unwrap_err().to_string();
        assert!(why.contains("8388608 bytes is lent where there should be 8388609"), "{why}");
    }
}
