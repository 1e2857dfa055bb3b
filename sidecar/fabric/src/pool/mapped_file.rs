//! A small file beside the slots that is written through its mapping: hugetlbfs, where a pool may be, takes no `write(2)`.
//!
//! The backup daemon keeps its table of slots in one. Bytes are read by `pread(2)`, as everywhere in a pool, so that no
//! reference to mapped bytes is ever made.
#![allow(unsafe_code, reason = "the file may be mapped by others too: reached by raw pointers only")]

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate, fstatfs};

/// A file, mapped as a whole.
pub struct MappedFile {
    file: File,
    memory: MmapRaw,
}

impl MappedFile {
    /// Maps `file`, which is made longer where it is shorter than `length`; new bytes are zero. Its memory is allocated, so
    /// that no write can find the file system full.
    pub fn map(file: File, length: u64) -> io::Result<MappedFile> {
        // Whole blocks, which are huge pages on hugetlbfs: it maps and unmaps nothing less.
        let block = (fstatfs(&file)?.f_bsize as u64).max(1);
        let length = length.max(file.metadata()?.len()).max(1).next_multiple_of(block);
        fallocate(&file, FallocateFlags::empty(), 0, length)?;
        let memory = MmapOptions::new().len(length as usize).map_raw(&file)?;
        Ok(MappedFile { file, memory })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the file; always some.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Copies `bytes` to `offset`. A process that is killed during the copy leaves some of them written.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "a write lies within its file");
        // SAFETY: offset ≤ the mapping's length, by the assertion.
        let target = unsafe { self.memory.as_mut_ptr().add(offset as usize) };
        // SAFETY: source and target are valid for the whole length and do not overlap: no slice into the mapping is ever
        // made. Its pages exist, because the file was allocated in full and nobody cuts it.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Stores a word, whole or not at all, behind everything that was written before.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8, or beyond the end.
    pub fn store(&self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len(), "a word lies within its file");
        // SAFETY: within the mapping, by the assertion.
        let target = unsafe { self.memory.as_mut_ptr().add(offset as usize) };
        // SAFETY: aligned, as mappings start on a page; valid for as long as `self`; only ever stored to in this way.
        let target = unsafe { AtomicU64::from_ptr(target.cast()) };
        // Release: a process that is killed behind this has written what came before it, and its memory stays as it left it.
        target.store(word.to_le(), Ordering::Release);
    }

    /// Reads as many bytes as `out` has from `offset` on.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("file", &self.file).field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back_and_persist() {
        let file = tempfile::tempfile().unwrap();
        let mapped = MappedFile::map(file.try_clone().unwrap(), 5000).unwrap();
        assert!(mapped.len() >= 5000);
        mapped.write(4990, b"0123456789");
        mapped.store(8, 0x0102_0304_0506_0708);
        drop(mapped);
        let mapped = MappedFile::map(file, 10_000).unwrap();
        let (mut bytes, mut word) = ([0; 12], [0; 8]);
        mapped.read(4989, &mut bytes).unwrap();
        mapped.read(8, &mut word).unwrap();
        assert_eq!((&bytes, word), (b"\x000123456789\0", [8, 7, 6, 5, 4, 3, 2, 1]));
        assert!(mapped.len() >= 10_000);
        assert_eq!(mapped.file().metadata().unwrap().len(), mapped.len());
    }

    #[test]
    #[should_panic(expected = "within its file")]
    fn access_beyond_the_end_panics() {
        let mapped = MappedFile::map(tempfile::tempfile().unwrap(), 1).unwrap();
        mapped.write(mapped.len() - 1, b"ab");
    }
}
