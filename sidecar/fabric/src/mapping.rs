//! One slot file mapped into this process: bytes to write, and behind them the page with the lending's flag and key, the
//! mark that distinguishes a slot file from one that has lost its bytes, and the key of the share.
//!
//! [`pool`](crate::pool) makes the files; [`shm`](crate::shm) writes them from the sending process, [`tcp`](crate::tcp)
//! from the receiving one. Bytes are only ever *written* through a mapping: reads go through `pread(2)`, so that no
//! load in this program can race with a writer in another process.
#![allow(unsafe_code, reason = "memory that other processes write too: reached by raw pointers only")]

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::fstatvfs;

/// Bytes behind a slot's own: room for the flag, the key and the mark. They have a page of their own so that giving back the
/// slot's memory leaves them alone.
pub(crate) const FLAG_PAGE_SIZE: u32 = 4096;
/// Largest slot: the largest segment, 64 MiB.
pub const SLOT_SIZE_MAX: u32 = 64 << 20;
/// Offset of the key within the flag page; the flag is at its start.
const KEY_OFFSET: usize = 8;
/// Offset of the mark.
const MARK_OFFSET: usize = 16;
/// Offset of the share's key.
pub(crate) const SHARE_OFFSET: usize = 24;
/// In each slot file from before it gets its name on. Without it the file reads as zeros, or is another's.
const MARK: u64 = u64::from_le_bytes(*b"TWBUFFER");

/// What a lending's writer may do, as the flag says it. A file made by an unknown version counts as `Ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// No other process has ever had a grant for this file.
    NeverLent,
    /// A write that finds this after its bytes are in place has completed.
    Lent,
    /// No write completes any more.
    Ended,
}

const NEVER_LENT: u32 = 0;
const LENT: u32 = 1;
const ENDED: u32 = 2;

/// A mapped slot file.
pub(crate) struct Mapping {
    memory: MmapRaw,
    slot_size: u32,
}

/// Refuses a file that cannot be a slot of this size, before any of it is mapped: a path that came over the network may name a
/// file of any length, and a mapping takes as much memory. Whole blocks, as the pool makes them: on hugetlbfs huge pages.
pub(crate) fn check_slot_file(file: &File, slot_size: u32) -> io::Result<Metadata> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file"));
    }
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if slot_size == 0 || slot_size > SLOT_SIZE_MAX || !slot_size.is_multiple_of(FLAG_PAGE_SIZE) {
        let most = SLOT_SIZE_MAX;
        return Err(invalid(format!("{slot_size} bytes are no slot: a multiple of {FLAG_PAGE_SIZE}, at most {most}")));
    }
    let least = u64::from(slot_size) + u64::from(FLAG_PAGE_SIZE);
    let most = least.next_multiple_of(fstatvfs(file)?.f_bsize.max(1));
    let length = metadata.len();
    if !(least..=most).contains(&length) {
        return Err(invalid(format!("it has {length} bytes, and the file of a slot of {slot_size} bytes has {most}")));
    }
    Ok(metadata)
}

/// True for the file of a slot that is lent under this key, by its bytes: nothing is mapped.
pub(crate) fn is_lent_under(file: &File, slot_size: u32, key: u64) -> io::Result<bool> {
    let mut page = [0; KEY_OFFSET + 8];
    file.read_exact_at(&mut page, slot_size.into())?;
    let (flag, here) = page.split_at(KEY_OFFSET);
    Ok(key != 0 && here == key.to_ne_bytes() && flag[..4] == LENT.to_ne_bytes())
}

impl Mapping {
    /// Maps `file`, which holds `slot_size` bytes and the flag page.
    pub(crate) fn new(file: &File, slot_size: u32) -> io::Result<Mapping> {
        Mapping::with(MmapOptions::new(), file, slot_size)
    }

    /// The same, with every page in place, so that no write has to wait for a page fault.
    pub(crate) fn prefaulted(file: &File, slot_size: u32) -> io::Result<Mapping> {
        let mut options = MmapOptions::new();
        options.populate();
        Mapping::with(options, file, slot_size)
    }

    fn with(mut options: MmapOptions, file: &File, slot_size: u32) -> io::Result<Mapping> {
        let length = file.metadata()?.len();
        if !slot_size.is_multiple_of(FLAG_PAGE_SIZE) || length < u64::from(slot_size) + u64::from(FLAG_PAGE_SIZE) {
            let message = format!("{length} bytes cannot hold a slot of {slot_size} bytes and its flag page");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        // The whole file, because hugetlbfs maps and unmaps whole huge pages only.
        let memory = options.len(length as usize).map_raw(file)?;
        Ok(Mapping { memory, slot_size })
    }

    /// Bytes of the slot.
    pub(crate) fn slot_size(&self) -> u32 {
        self.slot_size
    }

    /// Where the slot begins in this process. No reference to its bytes may be made.
    #[cfg(feature = "verbs")]
    pub(crate) fn address(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// When they do not fit into the slot.
    pub(crate) fn write(&self, offset: u32, bytes: &[u8]) {
        let end = u64::from(offset) + bytes.len() as u64;
        assert!(end <= u64::from(self.slot_size), "a write lies within its slot");
        // SAFETY: offset ≤ slot_size < length of the mapping, by the assertion and by `with`.
        let target = unsafe { self.memory.as_mut_ptr().add(offset as usize) };
        // SAFETY: source and target are valid for the whole length (the assertion; `bytes` is a slice), and they do not
        // overlap: no slice into a mapped slot is ever made. The pages exist: slot files are allocated in full when
        // they are made (a copy for readers where it is written) and never cut. Another process, or another channel of the same writer, may write the same bytes
        // at the same time; as on RDMA, the outcome is then some mixture of both. Nothing here can trip over it,
        // because no reference to these bytes exists and no load of them is ever made: the kernel reads them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Makes the slot all zero. Nobody else writes it, and its file was allocated in full.
    pub(crate) fn clear(&self) {
        // SAFETY: slot_size < length of the mapping, by `with`; the pages exist, as `Claim::keep` clears no sparse file; no
        // reference to them does, as in `write`.
        unsafe { ptr::write_bytes(self.memory.as_mut_ptr(), 0, self.slot_size as usize) }
    }

    /// The flag. For the order of this load against a write's bytes, see [`shm`](crate::shm).
    pub(crate) fn flag(&self) -> Flag {
        match self.flag_word().load(Ordering::SeqCst) {
            NEVER_LENT => Flag::NeverLent,
            LENT => Flag::Lent,
            _ => Flag::Ended,
        }
    }

    /// The key of the lending; zero if there never was one.
    pub(crate) fn key(&self) -> u64 {
        self.word(KEY_OFFSET).load(Ordering::SeqCst)
    }

    /// Opens the file to holders of a grant with `key`.
    pub(crate) fn lend(&self, key: u64) {
        self.word(KEY_OFFSET).store(key, Ordering::SeqCst);
        self.flag_word().store(LENT, Ordering::SeqCst);
    }

    /// Stops writes through other processes' mappings from completing, if there can be any. A read of the bytes after this
    /// returns sees every write that has completed: the receiver's half of the proof in [`shm`](crate::shm).
    pub(crate) fn end(&self) {
        if self.flag() != Flag::NeverLent {
            self.flag_word().store(ENDED, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }

    /// The key of the share; zero if the memory is not shared.
    pub(crate) fn share_key(&self) -> u64 {
        self.word(SHARE_OFFSET).load(Ordering::SeqCst)
    }

    /// Lets holders of a read grant with `key` read the file.
    pub(crate) fn share(&self, key: u64) {
        self.word(SHARE_OFFSET).store(key, Ordering::SeqCst);
    }

    /// Ends the share, if there is one. No read of the share completes with bytes that are written after this returns: the
    /// receiver's half of the last proof in [`shm`](crate::shm).
    pub(crate) fn end_share(&self) {
        self.word(SHARE_OFFSET).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Makes this a slot file.
    pub(crate) fn mark(&self) {
        self.word(MARK_OFFSET).store(MARK, Ordering::SeqCst);
    }

    /// Makes this a file whose bytes do not count.
    pub(crate) fn unmark(&self) {
        self.word(MARK_OFFSET).store(0, Ordering::SeqCst);
    }

    /// True for a slot file whose bytes are still there.
    pub(crate) fn is_marked(&self) -> bool {
        self.word(MARK_OFFSET).load(Ordering::SeqCst) == MARK
    }

    /// The sizes of slots whose file this can be, by the mark; the largest first, since what is in a slot may look like a mark.
    /// Powers of two, as all that backups are made with.
    pub(crate) fn marked_sizes(file: &File, length: u64) -> impl Iterator<Item = u32> {
        let sizes = (FLAG_PAGE_SIZE.ilog2()..u32::BITS).rev().map(|bits| 1_u32 << bits);
        sizes.filter(move |size| u64::from(*size) + u64::from(FLAG_PAGE_SIZE) <= length).filter(|size| {
            let mut mark = [0; 8];
            let read = file.read_exact_at(&mut mark, u64::from(*size) + MARK_OFFSET as u64);
            read.is_ok() && u64::from_ne_bytes(mark) == MARK
        })
    }

    fn flag_word(&self) -> &AtomicU32 {
        // SAFETY: the flag page lies behind the slot and within the mapping (`with`).
        let word = unsafe { self.memory.as_mut_ptr().add(self.slot_size as usize) };
        // SAFETY: aligned, as the mapping starts on a page and slot_size is a multiple of the page size; valid for as
        // long as `self`; touched by nothing but atomic operations of this width, in every process.
        unsafe { AtomicU32::from_ptr(word.cast()) }
    }

    /// One of the two keys, or the mark.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(matches!(offset, KEY_OFFSET | MARK_OFFSET | SHARE_OFFSET), "a word of the flag page");
        // SAFETY: as for the flag, `offset` bytes into the same page.
        let word = unsafe { self.memory.as_mut_ptr().add(self.slot_size as usize + offset) };
        // SAFETY: as for the flag; all three offsets keep the alignment of eight bytes.
        unsafe { AtomicU64::from_ptr(word.cast()) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("slot_size", &self.slot_size).field("flag", &self.flag()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u64) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        file
    }

    #[test]
    fn writes_land_in_the_file_and_nowhere_else() {
        let file = file(3 * 4096);
        let mapping = Mapping::prefaulted(&file, 2 * 4096).unwrap();
        mapping.write(5, b"bytes");
        mapping.write(2 * 4096 - 1, b"!");
        let mut found = vec![0xee; 3 * 4096];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found[..11], b"\0\0\0\0\0bytes\0");
        assert_eq!(found[2 * 4096 - 1], b'!');
        assert!(found[2 * 4096..].iter().all(|byte| *byte == 0), "the flag page is untouched");
    }

    #[test]
    #[should_panic(expected = "within its slot")]
    fn the_flag_page_cannot_be_written() {
        Mapping::new(&file(2 * 4096), 4096).unwrap().write(4095, b"ab");
    }

    #[test]
    fn the_flag_goes_from_never_to_lent_to_ended() {
        let file = file(2 * 4096);
        let (one, other) = (Mapping::new(&file, 4096).unwrap(), Mapping::new(&file, 4096).unwrap());
        one.end();
        assert_eq!((other.flag(), other.key()), (Flag::NeverLent, 0), "what was never lent cannot end");
        one.lend(7);
        assert_eq!((other.flag(), other.key(), other.is_marked()), (Flag::Lent, 7, false));
        one.end();
        one.mark();
        assert_eq!((other.flag(), other.is_marked()), (Flag::Ended, true));
        one.share(9);
        let mut page = [0; 32];
        file.read_exact_at(&mut page, 4096).unwrap();
        assert_eq!(
            page, *b"\x02\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0TWBUFFER\x09\0\0\0\0\0\0\0",
            "golden: processes of two versions share it"
        );
        assert_eq!(other.share_key(), 9);
        one.end_share();
        assert_eq!(other.share_key(), 0);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        assert!(Mapping::new(&file(4096), 4096).is_err());
        assert!(Mapping::new(&file(8192), 100).is_err());
    }
}
