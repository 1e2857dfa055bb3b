//! The append ring: two byte rings in memory that an app and its sidecar share, one in each direction.
//!
//! Called by the client library and by the sidecar's append path. A ring carries the bytes that the socket would carry; what
//! they mean is not known here. `memory` maps the file and is the only module with `unsafe`; `ring` holds the two ends of one
//! direction; `waiting` is how a side that sleeps is woken; `passing` sends the file over the socket. The bytes are described
//! for other languages in `docs/append-socket.md`, "The ring".
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

use memory::{ANSWERS, Memory, REQUESTS};
pub use passing::{receive, send};
pub use ring::{BadPosition, Consumer, Producer};

/// Bytes of requests that may be on their way: some 1,700 small appends. A longer frame passes in pieces.
pub const REQUESTS_SIZE: usize = 256 << 10;
/// Bytes of answers: 2,730 acks.
pub const ANSWERS_SIZE: usize = 64 << 10;
/// Bytes of the shared file: a page of control words for both rings, on machines with pages of any size, and the data.
pub const FILE_SIZE: usize = memory::CONTROL_SIZE + REQUESTS_SIZE + ANSWERS_SIZE;

/// Both rings, as the sidecar holds them.
#[derive(Debug)]
pub struct SidecarEnd {
    /// What the app asks.
    pub requests: Consumer,
    /// What it is answered.
    pub answers: Producer,
}

/// Both rings, as the app holds them.
#[derive(Debug)]
pub struct ClientEnd {
    /// What the app asks.
    pub requests: Producer,
    /// What it is answered.
    pub answers: Consumer,
}

/// Makes the memory, for [`send`] and [`open`]. Its size is sealed: no process that has it can cut it under the others.
pub fn create() -> io::Result<(OwnedFd, SidecarEnd)> {
    let file = memory::create()?;
    let memory = Arc::new(Memory::map(&file)?);
    memory.describe();
    let end =
        SidecarEnd { requests: Consumer::new(memory.ring(REQUESTS)), answers: Producer::new(memory.ring(ANSWERS)) };
    Ok((file, end))
}

/// Maps memory that was [`receive`]d, once per process.
pub fn open(file: OwnedFd) -> io::Result<ClientEnd> {
    let memory = Arc::new(Memory::map(&file)?);
    memory.check()?;
    let (requests, answers) = (memory.ring(REQUESTS), memory.ring(ANSWERS));
    Ok(ClientEnd { requests: Producer::new(requests), answers: Consumer::new(answers) })
}
