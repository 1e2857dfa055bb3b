//! How far the mirrors are, for the cleaner and for the status.
//!
//! Written by the [thread](super::thread) after each turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::table::mirror::{MirrorId, Mirrors, State};

/// No mirror is written to. No record has this LSN.
const NONE: u64 = u64::MAX;

/// What the mirrors of a term show.
#[derive(Debug)]
pub struct ShownMirrors {
    published: AtomicU64,
    states: Mutex<Vec<(MirrorId, State, Lsn)>>,
}

impl Default for ShownMirrors {
    fn default() -> ShownMirrors {
        ShownMirrors { published: AtomicU64::new(NONE), states: Mutex::default() }
    }
}

impl ShownMirrors {
    /// See [`Mirrors::published`].
    pub fn published(&self) -> Option<Lsn> {
        let published = self.published.load(Ordering::Acquire);
        (published != NONE).then_some(Lsn(published))
    }

    /// What a mirror is doing, and what is published of it.
    pub fn state(&self, mirror: MirrorId) -> Option<(State, Lsn)> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().find(|(id, ..)| *id == mirror).map(|(_, state, published)| (*state, *published))
    }

    pub(super) fn show(&self, mirrors: &Mirrors, now: Time) {
        self.published.store(mirrors.published(now).map_or(NONE, |published| published.0), Ordering::Release);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.clear();
        states.extend(mirrors.states());
    }
}
