//! A part of a state: shared with the states before it until it changes, and hashed once.
//!
//! Used by [`state`](super::state). A step changes one or two parts; the others cost a reference each.

use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

/// One part. Taking it mutably copies it if another state holds it too.
#[derive(Clone, Debug)]
pub(super) struct Part<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    value: T,
    digest: OnceLock<u64>,
}

impl<T: Clone> Clone for Inner<T> {
    fn clone(&self) -> Inner<T> {
        Inner { value: self.value.clone(), digest: OnceLock::new() }
    }
}

impl<T> Part<T> {
    pub(super) fn new(value: T) -> Part<T> {
        Part(Arc::new(Inner { value, digest: OnceLock::new() }))
    }
}

impl<T: Hash> Part<T> {
    /// 64 bits that stand for the content; the order in which equal things in flight are kept.
    pub(super) fn digest(&self) -> u64 {
        *self.0.digest.get_or_init(|| {
            let mut hasher = Digest::default();
            self.0.value.hash(&mut hasher);
            hasher.finish()
        })
    }
}

impl<T: Clone> Part<T> {
    pub(super) fn into_inner(self) -> T {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.value.clone(), |inner| inner.value)
    }
}

impl<T> Deref for Part<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        let inner = Arc::make_mut(&mut self.0);
        inner.digest = OnceLock::new();
        &mut inner.value
    }
}

impl<T: PartialEq> PartialEq for Part<T> {
    fn eq(&self, other: &Part<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for Part<T> {}

impl<T: Hash> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// A quick hasher for small machines: each word is mixed in by a multiplication to 128 bits, folded (as wyhash does).
/// Nobody chooses these bytes to make them collide.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digest(u64);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23) ^ word.wrapping_mul(0xa076_1d64_78bd_642f);
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        let mut last = *self;
        last.write_u64(0x2545_f491_4f6c_dd1d);
        last.0
    }
}
