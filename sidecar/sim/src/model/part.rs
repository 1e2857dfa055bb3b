//! A part of a state: shared with the states before it until it changes, and hashed once.
//!
//! Used by [`state`](super::state). A step changes one or two parts; the others cost a reference each.

use std::hash::{DefaultHasher, Hash, Hasher};
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
            let mut hasher = DefaultHasher::new();
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
