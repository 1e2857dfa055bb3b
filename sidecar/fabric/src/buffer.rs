//! Local memory that writes are posted from: one side appends, any number of readers see what has been published.
//!
//! Made by [`Sender::allocate`](crate::Sender::allocate). The append path owns the [`AppendBuffer`]; channels, and
//! tasks that read the log, hold clones of the [`SharedBuffer`]. Nothing but the first and the last of them allocates or
//! locks: the last one puts the memory back into the [`BufferPool`] that it came from, for the next buffer. Mapping a segment
//! again costs a page fault for every page, and with RDMA a registration.
//!
//! # Why a writer and readers may share the memory
//!
//! 1. One counter `published` splits the memory in two. It only grows, and never beyond the capacity.
//! 2. Readers get `&[u8]` of bytes below a value of `published` that they have loaded, so below every later value too.
//! 3. There is one [`AppendBuffer`] and it cannot be cloned. It hands out `&mut [u8]` of the bytes from `published` on,
//!    borrowed from `&mut self`, so that nothing can be published while that slice lives.
//! 4. So a byte is in reach of the writer or of readers, never of both, and it changes sides once, from the former to
//!    the latter: by a Release store, which the reader's Acquire load sees together with the bytes written before it.
//! 5. Memory goes back into its pool when nobody holds it any more; the next buffer begins with step 1.
#![allow(unsafe_code, reason = "two disjoint slices of one mapping, handed to two owners")]

use std::fmt;
use std::io;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapOptions, MmapRaw};

/// The writing side: exactly one per piece of memory.
#[derive(Debug)]
pub struct AppendBuffer {
    shared: SharedBuffer,
}

/// The reading side. Cheap to clone; the memory lives as long as any side does.
#[derive(Clone)]
pub struct SharedBuffer {
    memory: Arc<BufferMemory>,
}

struct BufferMemory {
    /// `None` only while it is dropped.
    memory: Option<LocalMemory>,
    capacity: u32,
    /// published ≤ capacity; only [`AppendBuffer::publish`] stores it.
    published: AtomicU32,
    pool: Weak<Spares>,
}

/// Mapped memory, registered where the fabric wants it.
struct LocalMemory {
    /// Goes before the mapping: a card must let go of memory before the kernel takes it back.
    #[cfg(feature = "verbs")]
    registration: Option<Registration>,
    map: MmapRaw,
}

/// Where the memory of buffers comes from, and where it goes when nobody holds it any more.
#[derive(Debug, Default)]
pub struct BufferPool {
    spares: Arc<Spares>,
}

/// Memory that nobody holds: as much as a log that turns from segment to segment needs, and not what a burst once took.
#[derive(Default)]
struct Spares(Mutex<Vec<LocalMemory>>);

/// The segment that is being opened and the one after it.
const SPARES_MAX: usize = 2;

/// What a card knows of the memory.
#[cfg(feature = "verbs")]
pub(crate) struct Registration {
    pub(crate) local_key: u32,
    /// The protection domain, which lives as long as the region.
    pub(crate) domain: usize,
    /// Ends the registration when it is dropped.
    pub(crate) _region: Box<dyn Send + Sync>,
}

impl BufferPool {
    /// Zeroed and prefaulted memory of `capacity` bytes, and its reading side.
    pub fn allocate(&self, capacity: u32) -> io::Result<(AppendBuffer, SharedBuffer)> {
        self.take(capacity, || {
            Ok(LocalMemory {
                #[cfg(feature = "verbs")]
                registration: None,
                map: LocalMemory::map(capacity)?,
            })
        })
    }

    /// The same, registered: `register` gets the memory's address and its length, which is at least 1. The memory stays
    /// mapped until the region is gone.
    #[cfg(feature = "verbs")]
    pub(crate) fn allocate_registered(
        &self,
        capacity: u32,
        register: impl FnOnce(*mut u8, usize) -> io::Result<Registration>,
    ) -> io::Result<(AppendBuffer, SharedBuffer)> {
        self.take(capacity, || {
            let map = LocalMemory::map(capacity)?;
            let registration = Some(register(map.as_mut_ptr(), map.len())?);
            Ok(LocalMemory { registration, map })
        })
    }

    fn take(
        &self,
        capacity: u32,
        make: impl FnOnce() -> io::Result<LocalMemory>,
    ) -> io::Result<(AppendBuffer, SharedBuffer)> {
        let memory = match self.spares.take(length(capacity)) {
            Some(spare) => {
                spare.clear();
                spare
            }
            None => make()?,
        };
        let (published, pool) = (AtomicU32::new(0), Arc::downgrade(&self.spares));
        let shared =
            SharedBuffer { memory: Arc::new(BufferMemory { memory: Some(memory), capacity, published, pool }) };
        Ok((AppendBuffer { shared: shared.clone() }, shared))
    }
}

/// Bytes that are mapped for a buffer: the kernel maps nothing less than one.
fn length(capacity: u32) -> usize {
    (capacity as usize).max(1)
}

impl LocalMemory {
    fn map(capacity: u32) -> io::Result<MmapRaw> {
        Ok(MmapOptions::new().len(length(capacity)).populate().map_anon()?.into())
    }

    fn clear(&self) {
        // SAFETY: the whole of one mapping, writable. No reference to its bytes exists: it comes from the spares, so every
        // buffer over it is gone (step 5 above).
        unsafe { ptr::write_bytes(self.map.as_mut_ptr(), 0, self.map.len()) }
    }
}

impl Spares {
    fn take(&self, length: usize) -> Option<LocalMemory> {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = spares.iter().position(|spare| spare.map.len() == length)?;
        Some(spares.swap_remove(index))
    }

    /// Keeps it, or gives the oldest back to the kernel for it.
    fn put(&self, memory: LocalMemory) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (spares.len() == SPARES_MAX).then(|| spares.remove(0));
        spares.push(memory);
        drop(spares);
        drop(oldest);
    }
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spares").finish_non_exhaustive()
    }
}

impl BufferMemory {
    fn map(&self) -> &MmapRaw {
        &self.local().map
    }

    fn local(&self) -> &LocalMemory {
        self.memory.as_ref().expect("memory is there until the buffer is dropped")
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        if let (Some(memory), Some(pool)) = (self.memory.take(), self.pool.upgrade()) {
            pool.put(memory);
        }
    }
}

impl AppendBuffer {
    /// Everything not yet published, for writing. Zero where it has never been written.
    pub fn tail_mut(&mut self) -> &mut [u8] {
        let published = self.published() as usize;
        let length = self.capacity() as usize - published;
        // SAFETY: published ≤ capacity (asserted in `publish`), so that the result points into the mapping or just past
        // it.
        let start = unsafe { self.shared.memory.map().as_mut_ptr().add(published) };
        // SAFETY: `start` is non-null, and u8 needs no alignment. The `length` bytes from it lie in one mapping of
        // `capacity` ≤ u32::MAX bytes, initialised by the kernel, which `self` keeps alive. No other reference to them
        // exists: readers stay below `published`, and this is the only writer, borrowed mutably (steps 2 and 3 above).
        unsafe { slice::from_raw_parts_mut(start, length) }
    }

    /// Makes the next `count` bytes of [`AppendBuffer::tail_mut`] immutable and visible to readers.
    ///
    /// # Panics
    /// When the tail is shorter than `count`.
    pub fn publish(&mut self, count: u32) {
        let published = self.published();
        assert!(count <= self.capacity() - published, "published ≤ capacity");
        self.shared.memory.published.store(published + count, Ordering::Release);
    }

    fn published(&self) -> u32 {
        // Only this side stores the counter, so that it needs no ordering to read its own value.
        self.shared.memory.published.load(Ordering::Relaxed)
    }

    fn capacity(&self) -> u32 {
        self.shared.capacity()
    }
}

impl SharedBuffer {
    /// The bytes published so far; they never change again.
    pub fn published(&self) -> &[u8] {
        let published = self.len();
        // SAFETY: the pointer is non-null, and u8 needs no alignment. The bytes below `published` ≤ capacity lie in one
        // mapping, initialised, which `self` keeps alive. Nobody writes them any more (steps 2 and 3 above), and the
        // Acquire load in `len` makes what was written to them before visible (step 4).
        unsafe { slice::from_raw_parts(self.memory.map().as_ptr(), published as usize) }
    }

    /// Bytes published so far.
    #[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> u32 {
        self.memory.published.load(Ordering::Acquire)
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u32 {
        self.memory.capacity
    }

    /// Where the memory begins.
    #[cfg(feature = "verbs")]
    pub(crate) fn address(&self) -> u64 {
        self.memory.map().as_ptr() as u64
    }

    /// Names the memory in work requests of this protection domain, if it is registered there.
    #[cfg(feature = "verbs")]
    pub(crate) fn key_in(&self, domain: usize) -> Option<u32> {
        let registration =
            self.memory.local().registration.as_ref().filter(|registration| registration.domain == domain);
        registration.map(|registration| registration.local_key)
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("published", &self.len()).field("capacity", &self.capacity()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn starts_zeroed_and_unpublished() {
        let (mut writer, reader) = BufferPool::default().allocate(5000).unwrap();
        assert_eq!((writer.published(), writer.capacity(), reader.capacity()), (0, 5000, 5000));
        assert!(reader.published().is_empty());
        assert_eq!(writer.tail_mut(), vec![0; 5000]);
    }

    #[test]
    fn published_bytes_leave_the_tail_and_reach_readers() {
        let (mut writer, reader) = BufferPool::default().allocate(10).unwrap();
        writer.tail_mut()[..4].copy_from_slice(b"abcd");
        assert!(reader.published().is_empty(), "not before publish");
        writer.publish(3);
        assert_eq!(reader.published(), b"abc");
        assert_eq!(writer.tail_mut(), b"d\0\0\0\0\0\0");
        writer.publish(7);
        assert!(writer.tail_mut().is_empty());
        assert_eq!(reader.len(), 10);
    }

    #[test]
    #[should_panic(expected = "published ≤ capacity")]
    fn publishing_beyond_the_end_panics() {
        let (mut writer, _) = BufferPool::default().allocate(10).unwrap();
        writer.publish(6);
        writer.publish(5);
    }

    #[test]
    fn a_slice_stays_valid_after_the_writer_is_gone() {
        let (mut writer, reader) = BufferPool::default().allocate(4).unwrap();
        writer.tail_mut().copy_from_slice(b"keep");
        writer.publish(4);
        drop(writer);
        assert_eq!(reader.clone().published(), b"keep");
    }

    #[test]
    fn memory_is_reused_when_nobody_holds_it() {
        let pool = BufferPool::default();
        let address = |buffer: &SharedBuffer| buffer.memory.map().as_ptr() as usize;
        let (mut writer, reader) = pool.allocate(8192).unwrap();
        writer.tail_mut().fill(7);
        writer.publish(8192);
        drop(writer);
        let (mut other, _) = pool.allocate(8192).unwrap();
        assert_eq!(other.tail_mut(), vec![0; 8192]);
        assert_eq!(reader.published(), vec![7; 8192], "a reader still holds the first");

        let first = address(&reader);
        drop(reader);
        let (mut again, reader) = pool.allocate(8192).unwrap();
        assert_eq!((address(&reader), reader.len()), (first, 0));
        assert_eq!(again.tail_mut(), vec![0; 8192], "written before");
        drop((again, reader));
        assert_ne!(address(&pool.allocate(4096).unwrap().1), first, "of another size");
        assert_eq!(address(&pool.allocate(8192).unwrap().1), first);
    }

    #[test]
    fn a_pool_keeps_little_and_need_not_outlive_its_buffers() {
        let pool = BufferPool::default();
        let many: Vec<_> = (0..5).map(|_| pool.allocate(4096).unwrap()).collect();
        drop(many);
        assert_eq!(pool.spares.0.lock().unwrap().len(), SPARES_MAX);
        let (mut writer, reader) = pool.allocate(4096).unwrap();
        drop(pool);
        writer.publish(1);
        assert_eq!(reader.published(), [0]);
    }

    #[test]
    fn a_reader_in_another_thread_sees_whole_publications() {
        let (mut writer, reader) = BufferPool::default().allocate(8 * 10_000).unwrap();
        let watching = thread::spawn(move || {
            while reader.len() < reader.capacity() {
                let bytes = reader.published();
                assert_eq!(bytes.len() % 8, 0);
                if let Some(last) = bytes.last_chunk::<8>() {
                    assert_eq!(u64::from_le_bytes(*last), bytes.len() as u64 / 8);
                }
            }
        });
        for count in 1..=10_000u64 {
            writer.tail_mut()[..8].copy_from_slice(&count.to_le_bytes());
            writer.publish(8);
        }
        watching.join().unwrap();
    }
}
