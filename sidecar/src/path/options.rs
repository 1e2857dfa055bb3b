//! How the append path is set up.

use std::time::Duration;

use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::socket::{FRAME_BODY_MAX, FRAME_HEADER_SIZE};

/// Users that may connect to the socket, identified by `SO_PEERCRED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Root and the user of this process.
    Own,
    /// The listed ones.
    Listed(Vec<u32>),
    /// Everyone who reaches the socket: for pods, whose containers share nothing with others.
    Anybody,
}

impl Allowed {
    /// Whether this user may connect.
    pub(crate) fn admits(&self, uid: u32) -> bool {
        match self {
            Allowed::Own => uid == 0 || uid == rustix::process::geteuid().as_raw(),
            Allowed::Listed(listed) => listed.contains(&uid),
            Allowed::Anybody => true,
        }
    }
}

/// How the path is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Users that may connect.
    pub allowed: Allowed,
    /// Size of segments, which bounds records and batches.
    pub segment_size: SegmentSize,
    /// The group keeps a table: each term leads with its index, and clients send `Apply` in place of records.
    pub table: bool,
    /// Bytes of batches that are being received, over all connections; at least [`Options::batch_memory_min`].
    pub batch_memory: usize,
    /// How long a client may leave a large batch half sent while others wait for memory.
    pub client_timeout: Duration,
    /// Clients that may append through rings at a time; the others use the socket.
    pub rings_max: u64,
    /// How long to look for work before going to sleep.
    pub spin: Duration,
}

impl Options {
    /// What the largest batch needs: with less it would never be accepted.
    pub fn batch_memory_min(segment_size: SegmentSize) -> usize {
        frame_body_max(segment_size) + FRAME_HEADER_SIZE
    }
}

/// Largest body of a frame that a client may send: a batch's body is smaller than what it takes in the log.
pub(super) fn frame_body_max(segment_size: SegmentSize) -> usize {
    (segment_size.append_size_max() as usize).min(FRAME_BODY_MAX)
}
