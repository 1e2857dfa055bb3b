//! Protection domains and registered memory.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::Context;
use super::{check, ffi};

/// What a card may do with registered memory. Never `IBV_ACCESS_RELAXED_ORDERING`, with which the bytes of one write reach
/// memory in any order, nor atomics, and never remote reads and writes by one key: readers write nothing, and writers read
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Send from it.
    Local,
    /// Have what this side reads land in it.
    LocalWrite,
    /// Let the holder of its key write it.
    RemoteWrite,
    /// Let the holder of its key read it.
    RemoteRead,
}

impl Access {
    pub(super) fn flags(self) -> u32 {
        match self {
            Access::Local => 0,
            Access::LocalWrite => ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0,
            Access::RemoteRead => ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            // Remote write asks for local write too: ibv_reg_mr(3).
            Access::RemoteWrite => {
                ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            }
        }
    }
}

/// A protection domain: queue pairs and memory of one domain go together, those of two never.
#[derive(Debug)]
pub(super) struct Domain {
    raw: NonNull<ffi::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe: ibv_open_device(3).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(context: Arc<Context>) -> io::Result<Domain> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.raw()) };
        Ok(Domain { raw: NonNull::new(raw).ok_or_else(io::Error::last_os_error)?, context })
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }

    /// Tells it from every other domain that is alive.
    pub(super) fn id(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; queue pairs and regions hold an Arc and so are gone. If one of them could not
        // be destroyed this fails too, and the kernel does it when the process ends.
        let _ = unsafe { ffi::ibv_dealloc_pd(self.raw()) };
    }
}

/// Memory that a card may reach: `ibv_reg_mr(3)`. The kernel pins its pages, so that even a card that outlives this object
/// writes to them and nothing else.
pub(super) struct Region {
    raw: NonNull<ffi::ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs is thread safe: ibv_open_device(3). The structure itself is never changed after registration.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length` bytes at `address`.
    ///
    /// # Safety
    /// The bytes are mapped, and stay mapped until the region is gone. With [`Access::RemoteWrite`] no reference to them exists
    /// during that time: the holder of the key may change them at any time. With [`Access::LocalWrite`] none exists to those
    /// that a read on its way lands in.
    pub(super) unsafe fn register(
        domain: &Arc<Domain>,
        address: *mut u8,
        length: usize,
        access: Access,
    ) -> io::Result<Region> {
        // SAFETY: the domain lives; the caller vouches for the memory. The variant for a caller-given IOVA is the symbol that
        // takes flags as they are; the IOVA is the address itself.
        let raw =
            unsafe { ffi::ibv_reg_mr_iova2(domain.raw(), address.cast(), length, address as u64, access.flags()) };
        let refused = || match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => io::Error::new(
                io::ErrorKind::OutOfMemory,
                "the kernel may not pin so much memory: raise the limit of locked memory (ulimit -l) or give the container \
                 the capability IPC_LOCK",
            ),
            error => error,
        };
        Ok(Region { raw: NonNull::new(raw).ok_or_else(refused)?, domain: Arc::clone(domain) })
    }

    /// Names the memory in this side's work requests.
    pub(super) fn local_key(&self) -> u32 {
        self.attributes().lkey
    }

    /// Names it in the other side's.
    pub(super) fn remote_key(&self) -> u32 {
        self.attributes().rkey
    }

    /// Where it begins.
    pub(super) fn address(&self) -> u64 {
        self.attributes().addr as u64
    }

    /// The barrier of `ibv_dereg_mr(3)`: when it returns without an error the card does not reach the memory any more.
    pub(super) fn deregister(self) -> io::Result<()> {
        let this = ManuallyDrop::new(self);
        // SAFETY: registered once, deregistered once: `drop` does not run.
        let result = check(unsafe { ffi::ibv_dereg_mr(this.raw.as_ptr()) });
        // SAFETY: `this` is not used any more, so that the Arc is taken out of it once.
        drop(unsafe { std::ptr::read(&this.domain) });
        result
    }

    fn attributes(&self) -> &ffi::ibv_mr {
        // SAFETY: libibverbs' structure lives until deregistration, and nobody changes it.
        unsafe { self.raw.as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered once: `deregister` forgets itself. An error leaves the pages pinned until the
        // process ends; where it matters `deregister` is called instead.
        let _ = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No keys: they are rights.
        f.debug_struct("Region").field("length", &self.attributes().length).finish()
    }
}
