//! Bytes that begin on a page, so that a disk can take them from where they are ([`File::write_direct`](crate::File)).

use std::ops::{Deref, DerefMut};

/// What direct I/O asks of addresses, offsets and lengths: on every disk and file system a page suffices (`open(2)`).
pub(crate) const PAGE: usize = 4096;

/// A buffer that is filled again and again.
#[derive(Debug, Default)]
pub(crate) struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    /// Makes it `length` bytes long. What they are is left over from before.
    pub(crate) fn resize(&mut self, length: usize) {
        if self.memory.len() < self.start + length {
            self.memory = vec![0; length + PAGE];
            self.start = self.memory.as_ptr().addr().next_multiple_of(PAGE) - self.memory.as_ptr().addr();
        }
        self.length = length;
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_begins_on_a_page() {
        let mut buffer = PageBuffer::default();
        assert!(buffer.is_empty());
        for length in [1, 5000, 0, 4096, 1 << 20, 7] {
            buffer.resize(length);
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % PAGE), (length, 0));
            buffer.fill(length as u8);
        }
        buffer.resize(3);
        assert_eq!(*buffer, [7; 3], "it only grows by moving");
    }
}
