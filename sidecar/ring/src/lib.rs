//! The append ring: two byte rings in memory that an app and its sidecar share, one in each direction.
//!
//! Called by the client library and by the sidecar's append path. A ring carries the bytes that the socket would carry; what
//! they mean is not known here. `memory` maps the file and is the only module with `unsafe`; `ring` holds the two ends of one
//! direction; `waiting` is how a side that sleeps is woken; `passing` sends the file over the socket. The bytes are described
//! for other languages in `docs/append-ring.md`.
//!
//! The other process may write anything to the memory at any time. So each end keeps its own position to itself, reads the
//! other's once and checks it, and copies bytes out before it looks at them.

mod memory;
mod passing;
mod ring;
mod waiting;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::{Layout, Memory};
pub use passing::{receive, send};
pub use ring::{BadPosition, Consumer, Producer};

/// Bytes of requests that may be on their way: some 1,700 small appends. A longer frame passes in pieces.
pub const REQUESTS_SIZE: usize = 256 << 10;
/// Bytes of answers: 2,730 acks.
pub const ANSWERS_SIZE: usize = 64 << 10;
/// Bytes of the shared file: a page of control words for both rings, on machines with pages of any size, and the data.
pub const FILE_SIZE: usize = Sizes::APPENDS.file();

/// Bytes that either ring holds: powers of two, and multiples of 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// In one direction.
    pub requests: usize,
    /// In the other.
    pub answers: usize,
}

impl Sizes {
    /// The sizes of the append ring.
    pub const APPENDS: Sizes = Sizes { requests: REQUESTS_SIZE, answers: ANSWERS_SIZE };

    /// Bytes of the shared file.
    const fn file(self) -> usize {
        memory::CONTROL_SIZE + self.requests + self.answers
    }

    /// As the file states them.
    fn word(self) -> u64 {
        self.requests as u64 | (self.answers as u64) << 32
    }

    /// # Panics
    /// When they are not what they must be.
    const fn check(self) {
        let unit = memory::CONTROL_SIZE;
        let whole = self.requests.is_multiple_of(unit) && self.answers.is_multiple_of(unit);
        let powers = self.requests.is_power_of_two() && self.answers.is_power_of_two();
        // The file states each in 32 bits.
        let small = self.requests <= u32::MAX as usize && self.answers <= u32::MAX as usize;
        assert!(whole && powers && small, "a ring's size is a power of two and a multiple of 64 KiB, below 4 GiB");
    }
}

const _: () = Sizes::APPENDS.check();

/// Both rings, as the sidecar holds them.
#[derive(Debug)]
pub struct SidecarEnd {
    /// What the app asks.
    pub requests: Consumer,
    /// The answers to it.
    pub answers: Producer,
}

/// Both rings, as the app holds them.
#[derive(Debug)]
pub struct ClientEnd {
    /// What the app asks.
    pub requests: Producer,
    /// The answers to it.
    pub answers: Consumer,
}

/// Makes the memory, for [`send`] and [`open`]. Its size is sealed: no process that has it can cut it under the others.
pub fn create() -> io::Result<(OwnedFd, SidecarEnd)> {
    create_sized(Sizes::APPENDS)
}

/// The same, with rings of these sizes, for [`open_sized`].
///
/// # Panics
/// When the sizes are not what [`Sizes`] says.
pub fn create_sized(sizes: Sizes) -> io::Result<(OwnedFd, SidecarEnd)> {
    let file = memory::create(sizes)?;
    let memory = Arc::new(Memory::map(&file, sizes)?);
    memory.describe();
    let (requests, answers) = (memory.ring(Layout::requests(sizes)), memory.ring(Layout::answers(sizes)));
    Ok((file, SidecarEnd { requests: Consumer::new(requests), answers: Producer::new(answers) }))
}

/// Maps memory that was [`receive`]d, once per process.
pub fn open(file: OwnedFd) -> io::Result<ClientEnd> {
    open_sized(file, Sizes::APPENDS)
}

/// The same for memory that [`create_sized`] has made with these sizes.
///
/// # Panics
/// When the sizes are not what [`Sizes`] says.
pub fn open_sized(file: OwnedFd, sizes: Sizes) -> io::Result<ClientEnd> {
    let memory = Arc::new(Memory::map(&file, sizes)?);
    memory.check()?;
    let (requests, answers) = (memory.ring(Layout::requests(sizes)), memory.ring(Layout::answers(sizes)));
    Ok(ClientEnd { requests: Producer::new(requests), answers: Consumer::new(answers) })
}
