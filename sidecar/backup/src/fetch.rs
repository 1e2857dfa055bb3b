//! Reads a closed segment for another process, from its buffer or its file. Of a resident, which is in both, the buffer is read;
//! if that does not verify, the machine is told, and the answer comes from the file.
//!
//! Called by the code that answers [`Reply::Fetch`](tailwind_protocol::backup::Reply::Fetch), and by the scrub. The copy may
//! move from memory to disk, or go, while it is read: a caller asks the machine again before it believes that the copy is
//! corrupt.

use std::io;
use std::ops::Range;

use tailwind_protocol::backup::{Place, Slot};
use tailwind_protocol::layout::{Closure, SEGMENT_HEADER_SIZE, SegmentIdentity};
use tailwind_protocol::scan;

use crate::disk::{Disk, ReadError};
use crate::files::File;
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
        Place::Memory(slot) | Place::Both(slot) => {
            let mut bytes = vec![0; closure.end.0 as usize];
            buffers.read(slot, 0, &mut bytes).map_err(|error| ReadError::Io(io::Error::other(error)))?;
            if scan::verify(&bytes, identity, closure) { Ok(bytes) } else { Err(ReadError::Corrupt) }
        }
    }
}

/// A closed segment's bytes as they are, or some of them, for a caller who checks them.
#[derive(Debug)]
pub struct Unchecked {
    from: Source,
    bytes: Range<u32>,
}

#[derive(Debug)]
enum Source {
    Buffer(Slot),
    File(Box<dyn File>),
    /// A resident's buffer, and its file for when the slot has been lent to another segment.
    Resident(Slot, SegmentIdentity, Result<Box<dyn File>, ReadError>),
}

impl Unchecked {
    /// The copy at this place. A file that is too short is corrupt; what else may be wrong is seen only when it is read. A
    /// buffer may have been given to another segment since.
    pub fn open(
        disk: &Disk,
        place: Place,
        identity: &SegmentIdentity,
        closure: &Closure,
    ) -> Result<Unchecked, ReadError> {
        let end = closure.end.0;
        let from = match place {
            _ if end > identity.size.bytes() => return Err(ReadError::Corrupt),
            Place::Memory(slot) => Source::Buffer(slot),
            Place::Disk => Source::File(disk.open_closed(identity.segment)?),
            Place::Both(slot) => Source::Resident(slot, *identity, disk.find_closed(identity.segment)),
        };
        match &from {
            Source::File(file) if file.length().map_err(ReadError::Io)? < u64::from(end) => Err(ReadError::Corrupt),
            _ => Ok(Unchecked { from, bytes: 0..end }),
        }
    }

    /// Only these bytes of the segment, which has them.
    #[must_use]
    pub fn only(self, bytes: Range<u32>) -> Unchecked {
        assert!(bytes.end <= self.bytes.end, "what is asked for is checked against the closure");
        Unchecked { bytes, ..self }
    }

    /// How many bytes they are.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks for none")]
    pub fn len(&self) -> u32 {
        self.bytes.end - self.bytes.start
    }

    /// Reads of these bytes, from `at` on.
    pub fn read(&self, buffers: &dyn Buffers, at: u32, out: &mut [u8]) -> io::Result<()> {
        let at = self.bytes.start + at;
        match &self.from {
            Source::Buffer(slot) => buffers.read(*slot, at, out),
            Source::File(file) => file.read_exact_at(at.into(), out),
            Source::Resident(slot, identity, file) => {
                let read = buffers.read(*slot, at, out);
                // Looked at behind the read: a slot that still begins like this segment has held it all the time.
                let mut header = [0; SEGMENT_HEADER_SIZE];
                let same = read.and_then(|()| buffers.read(*slot, 0, &mut header)).is_ok();
                let same = same && SegmentIdentity::from_header(&header).is_some_and(|(found, _)| found == *identity);
                match file {
                    _ if same => Ok(()),
                    Ok(file) => file.read_exact_at(at.into(), out),
                    Err(error) => Err(io::Error::other(format!("{error:?}"))),
                }
            }
        }
    }
}

/// Reads a closed segment as [`fetch`] does, from the disk itself, and its footer with it: how many bytes are sound.
pub fn scrub(
    disk: &Disk,
    buffers: &dyn Buffers,
    place: Place,
    identity: &SegmentIdentity,
    closure: &Closure,
) -> Result<u64, ReadError> {
    // What has rotted on disk shows there alone.
    let place = if let Place::Both(_) = place { Place::Disk } else { place };
    if place == Place::Disk {
        disk.forget_cached(identity.segment);
    }
    let sound = fetch(disk, buffers, place, identity, closure)?;
    if place == Place::Disk {
        let footer = disk.has_footer(identity.segment, closure);
        // Readers have more use for the cache than this.
        disk.forget_cached(identity.segment);
        if !footer? {
            return Err(ReadError::Corrupt);
        }
    }
    Ok(sound.len() as u64)
}

/// True when these bytes will not be read again: they do not match, or are not there, or the disk cannot give them.
pub fn is_rot(error: &ReadError) -> bool {
    match error {
        ReadError::Corrupt | ReadError::Missing => true,
        ReadError::Io(error) => error.raw_os_error() == Some(EIO),
    }
}

/// What `read(2)` says of a sector that cannot be read.
const EIO: i32 = 5;
