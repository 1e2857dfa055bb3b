//! Reads a closed segment for somebody else, from its buffer or its file.
//!
//! Called by whoever answers [`Reply::Fetch`](tailwind_protocol::backup::Reply::Fetch). The copy may move from memory to
//! disk, or go, while it is read: a caller asks the machine again before it believes that the copy is corrupt.

use std::io;

use tailwind_protocol::backup::Place;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::scan;

use crate::disk::{Disk, ReadError};
use crate::memory::Buffers;

/// The segment's bytes, every one of them checked.
pub fn fetch(
    disk: &Disk,
    buffers: &dyn Buffers,
    place: Place,
    identity: &SegmentIdentity,
    closure: &Closure,
) -> Result<Vec<u8>, ReadError> {
    if closure.end.0 > identity.size.bytes() {
        return Err(ReadError::Corrupt);
    }
    match place {
        Place::Disk => disk.read_closed(identity, closure),
        Place::Memory(slot) => {
            let mut bytes = vec![0; closure.end.0 as usize];
            buffers.read(slot, 0, &mut bytes).map_err(|error| ReadError::Io(io::Error::other(error)))?;
            if scan::verify(&bytes, identity, closure) { Ok(bytes) } else { Err(ReadError::Corrupt) }
        }
    }
}
