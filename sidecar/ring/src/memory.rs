//! The shared file mapped into this process: control words, and the data of both rings.
//!
//! Used by `ring`. Each ring's data is mapped twice, one mapping behind the other, so that any range of up to its size is in
//! one piece, also where it wraps.
//!
//! # Why memory that another process scribbles on does no harm
//!
//! 1. The file's size is sealed before anybody else has it, so that no access can meet a page that is not there.
//! 2. Control words are touched by atomic operations only.
//! 3. Data are copied to private memory, and only the copy is looked at. A copy that races with a write holds some mixture of
//!    bytes. The compiler fence behind the copy keeps a later look at the copy from becoming a second look at the source.
//! 4. Addresses come from positions and lengths that are this process's own; masks and assertions keep every value within the
//!    mapping.
//! 5. Data are written by the one `Producer` of a ring, in a range that the other process has given up, if it is honest. If it
//!    is not, it spoils its own messages.
#![allow(unsafe_code, reason = "memory that another process writes too: reached by raw pointers")]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::Sizes;

/// Bytes before the data: a multiple of every machine's page size.
pub(crate) const CONTROL_SIZE: usize = 64 << 10;
/// First bytes of the file.
const MAGIC: u64 = u64::from_le_bytes(*b"TWRINGS1");
/// A word has two cache lines of its own: neighbouring lines are fetched together.
const WORD_SPACING: usize = 128;

/// Where a ring lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Its control words: tail, head, the consumer's wish to be woken, the producer's; and, four words on, the end.
    words: usize,
    /// Where its data lie in the file.
    data: usize,
    /// Where they are mapped in this process, twice.
    mapped: usize,
    size: usize,
}

impl Layout {
    /// From the app to the sidecar.
    pub(crate) fn requests(sizes: Sizes) -> Layout {
        Layout { words: WORD_SPACING, data: CONTROL_SIZE, mapped: CONTROL_SIZE, size: sizes.requests }
    }

    /// From the sidecar to the app.
    pub(crate) fn answers(sizes: Sizes) -> Layout {
        let (data, mapped) = (CONTROL_SIZE + sizes.requests, CONTROL_SIZE + 2 * sizes.requests);
        Layout { words: 5 * WORD_SPACING, data, mapped, size: sizes.answers }
    }
}

/// Bytes in this process: the control words, the requests twice, the answers twice.
fn mapped_size(sizes: Sizes) -> usize {
    CONTROL_SIZE + 2 * sizes.requests + 2 * sizes.answers
}

/// A new file of the right size, which nobody can change any more.
pub(crate) fn create(sizes: Sizes) -> io::Result<OwnedFd> {
    let name = "tailwind-append-ring";
    // Kernels before 6.3 do not know the first way.
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))?;
    ftruncate(&file, sizes.file() as u64)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

/// The mapped file.
pub(crate) struct Memory {
    start: NonNull<u8>,
    sizes: Sizes,
}

// SAFETY: the mapping belongs to no thread; what is done with it through `&self` is atomic or, for data, a raw copy whose
// range the single owner of a `Ring` chooses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn map(file: &OwnedFd, sizes: Sizes) -> io::Result<Memory> {
        sizes.check();
        if fstat(file)?.st_size != sizes.file() as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the ring's file has another size"));
        }
        // SAFETY: a fresh mapping, wherever the kernel finds room for it.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped_size(sizes), ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let start = NonNull::new(start.cast()).expect("a mapping never begins at address 0");
        let memory = Memory { start, sizes };
        let mut at = 0;
        let (requests, answers) = (Layout::requests(sizes), Layout::answers(sizes));
        let control = [(0, CONTROL_SIZE)];
        let data = [(requests.data, requests.size); 2].into_iter().chain([(answers.data, answers.size); 2]);
        for (offset, size) in control.into_iter().chain(data) {
            let (both, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            let target = memory.address(at).cast();
            // SAFETY: replaces a part of the mapping above, which nothing refers to yet: the sizes add up to its own.
            unsafe { mmap(target, size, both, shared, file, offset as u64) }?;
            at += size;
        }
        assert_eq!(at, mapped_size(sizes), "every part is mapped");
        Ok(memory)
    }

    /// Writes what the file is.
    pub(crate) fn describe(&self) {
        self.word(8).store(self.sizes.word(), Ordering::Relaxed);
        self.word(0).store(MAGIC, Ordering::Release);
    }

    /// Whether the file is what [`Memory::describe`] has written.
    pub(crate) fn check(&self) -> io::Result<()> {
        let found = (self.word(0).load(Ordering::Acquire), self.word(8).load(Ordering::Relaxed));
        if found == (MAGIC, self.sizes.word()) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the file holds no rings of this version"))
    }

    /// One ring of the two, for its one owner in this process.
    pub(crate) fn ring(self: &Arc<Memory>, layout: Layout) -> Ring {
        Ring { memory: Arc::clone(self), layout }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < CONTROL_SIZE, "a control word");
        // SAFETY: within the control page by the assertion and aligned, as the mapping begins on a page; mapped for as long
        // as `self`; touched by nothing but atomic operations of this width.
        unsafe { AtomicU64::from_ptr(self.address(offset).cast()) }
    }

    fn address(&self, offset: usize) -> *mut u8 {
        assert!(offset <= mapped_size(self.sizes), "within the mapping");
        // SAFETY: the mapping has as many bytes.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which only `self` and what borrows from it refer to.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), mapped_size(self.sizes)) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}

/// One ring.
pub(crate) struct Ring {
    memory: Arc<Memory>,
    layout: Layout,
}

impl Ring {
    /// Bytes ever written: stored by the producer.
    pub(crate) fn tail(&self) -> &AtomicU64 {
        self.memory.word(self.layout.words)
    }

    /// Bytes ever taken: stored by the consumer.
    pub(crate) fn head(&self) -> &AtomicU64 {
        self.memory.word(self.layout.words + WORD_SPACING)
    }

    /// 1 while the consumer sleeps until there is more to take.
    pub(crate) fn consumer_waits(&self) -> &AtomicU64 {
        self.memory.word(self.layout.words + 2 * WORD_SPACING)
    }

    /// 1 while the producer sleeps until there is more room.
    pub(crate) fn producer_waits(&self) -> &AtomicU64 {
        self.memory.word(self.layout.words + 3 * WORD_SPACING)
    }

    /// 1 once the consumer counts nothing any more that is written.
    pub(crate) fn closed(&self) -> &AtomicU64 {
        self.memory.word(self.layout.words + 8 * WORD_SPACING)
    }

    pub(crate) fn size(&self) -> usize {
        self.layout.size
    }

    /// Copies the bytes at this position.
    ///
    /// # Panics
    /// When they are more than the ring has.
    pub(crate) fn copy_out(&self, position: u64, target: &mut [u8]) {
        let source = self.data(position, target.len());
        // SAFETY: `target.len()` bytes are mapped from `source` on (`data`). The target is private, so that they do not
        // overlap. See "Why memory that another process scribbles on does no harm", 3.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        compiler_fence(Ordering::SeqCst);
    }

    /// Writes bytes to this position.
    ///
    /// # Panics
    /// When they are more than the ring has.
    pub(crate) fn copy_in(&mut self, position: u64, bytes: &[u8]) {
        let target = self.data(position, bytes.len());
        // SAFETY: as above, the other way round; the ring has one producer in this process, which `&mut self` stands for.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Room to write to, for a producer that trusts its consumer to leave it alone until it is published.
    ///
    /// # Panics
    /// When it is more than the ring has.
    pub(crate) fn bytes_mut(&mut self, position: u64, length: usize) -> &mut [u8] {
        let start = self.data(position, length);
        // SAFETY: `length` bytes are mapped and initialised from `start` on, and no byte appears twice in them, as they are no
        // more than one round. No other reference to them exists in this process: only the ring's one producer makes any,
        // and borrows it from `&mut self`. Any bytes are valid.
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    fn data(&self, position: u64, length: usize) -> *mut u8 {
        assert!(length <= self.layout.size, "no more than one round");
        // The size is a power of two. Where the range passes the end, it continues in the second mapping.
        self.memory.address(self.layout.mapped + (position as usize & (self.layout.size - 1)))
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tail, head) = (self.tail().load(Ordering::Relaxed), self.head().load(Ordering::Relaxed));
        f.debug_struct("Ring").field("tail", &tail).field("head", &head).finish_non_exhaustive()
    }
}
