//! What a frame's header says, checked against the lendings.
//!
//! Used by [`rpc`](super::rpc) and [`ring`](super::ring). The header is that of [`tcp`](crate::tcp).

use std::sync::Arc;

use crate::message::Writer;
use crate::tcp::registry::{LentSlot, Registry};
use crate::tcp::wire::{HEADER_SIZE, Header};

/// One writer's frames, in order.
#[derive(Debug)]
pub(super) struct Frames {
    writer: Writer,
    /// Begun so far.
    count: u64,
    /// The lending of the last frame: the next one nearly always names the same.
    lending: Option<Arc<LentSlot>>,
}

/// A frame, and what of it is still to come.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) lending: Arc<LentSlot>,
    /// Where the next byte goes.
    pub(super) offset: u32,
    /// Bytes to come.
    pub(super) left: u32,
}

impl Frames {
    pub(super) fn new(writer: Writer) -> Frames {
        Frames { writer, count: 0, lending: None }
    }

    /// The frame that this header announces. `None`: the sender broke the rules, or its lending is over.
    pub(super) fn begin(&mut self, registry: &Registry, header: &[u8; HEADER_SIZE]) -> Option<Frame> {
        let header = Header::decode(header)?;
        if header.sequence != (self.count + 1) as u32 {
            return None;
        }
        self.count += 1;
        let lending = match self.lending.take() {
            Some(lending) if lending.key() == header.key => lending,
            _ => registry.find(self.writer, header.key)?,
        };
        if !lending.holds(header.offset, header.length) {
            return None;
        }
        self.lending = Some(Arc::clone(&lending));
        Some(Frame { lending, offset: header.offset, left: header.length })
    }
}
