//! The bytes on their way: an outbox of frames to send and an inbox of frames received. Used by `session`, and by `ring`.

use tailwind_protocol::socket::{FRAME_BODY_MAX, FRAME_HEADER_SIZE};

/// First size of the inbox: 2,730 acks or one `Records` frame to a system call.
const INBOX_SIZE: usize = 64 << 10;
/// The inbox grows up to twice the largest frame, in doublings, and only when a frame needs it.
const INBOX_SIZE_MAX: usize = 2 * (FRAME_HEADER_SIZE + FRAME_BODY_MAX);

/// Frames to send.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// What is still to be sent.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Where frames are appended.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The first `size` unsent bytes have been taken by the socket.
    pub(crate) fn mark_sent(&mut self, size: usize) {
        self.sent += size;
        assert!(self.sent <= self.bytes.len(), "more sent than there was");
        if self.sent == self.bytes.len() {
            self.clear();
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }
}

/// Bytes received and not yet consumed: `start ≤ end ≤ bytes.len()`.
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox { bytes: vec![0; INBOX_SIZE], start: 0, end: 0 }
    }

    /// What has been received and not consumed.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `size` unread bytes are done with.
    pub(crate) fn consume(&mut self, size: usize) {
        self.start += size;
        assert!(self.start <= self.end, "more consumed than received");
    }

    /// Room for more bytes, never empty. Moves what is unread to the front when the end is near, and grows when even that
    /// leaves no room: then a single frame is larger than the inbox.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.start == self.end || self.bytes.len() - self.end < INBOX_SIZE / 4 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            let grown = (2 * self.bytes.len()).min(INBOX_SIZE_MAX);
            assert!(grown > self.bytes.len(), "a frame above the limit was not refused");
            self.bytes.resize(grown, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// The first `size` bytes of the room have been filled.
    pub(crate) fn mark_received(&mut self, size: usize) {
        self.end += size;
        assert!(self.end <= self.bytes.len(), "more received than there was room for");
    }
}
