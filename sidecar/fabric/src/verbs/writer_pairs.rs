//! The connected queue pairs of each writer, and why the receiver must end if one of them cannot.
//!
//! Held by [`VerbsReceiver`](super::VerbsReceiver), and by what is left to do for its channels. Steps 3 and 5 of the proof in
//! [`verbs`](super) are about this file.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::queue::{CompletionQueue, QueuePair};
use super::receiver::{Newest, destroy};
use crate::error::FabricError;
use crate::message::Writer;

/// Channels of one writer that are kept: it has one for appends, one for images, and one for the mirror of a table, of which it
/// makes eight at most before it makes another for appends. After each failure it makes a new one, and this side, which only
/// receives, does not learn that the old one is dead: the newest sixteen include all living ones, and a writer never has more
/// queue pairs, besides those that are being connected.
const CHANNELS_MAX: usize = 16;

/// Admissions add theirs when they are complete, from other threads: the lock is not held while one connects.
#[derive(Debug, Default)]
pub(super) struct WriterPairs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Of the writers that may have some.
    pairs: BTreeMap<Writer, Newest<QueuePair>>,
    /// A registration or a queue pair that could not be ended: every later call fails, so that the daemon ends and the kernel
    /// does it.
    stuck: Option<String>,
}

impl WriterPairs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on pairs of this writer are taken in.
    pub(super) fn expect(&self, writer: Writer) {
        self.state().pairs.entry(writer).or_insert_with(|| Newest::new(CHANNELS_MAX));
    }

    /// Takes a connected pair in, unless its writer has been revoked. With one too many the oldest goes: the writer has given it
    /// up long ago; if it has not, a write fails and it makes a new one. Nothing is ever acknowledged for that reason.
    pub(super) fn keep(
        &self,
        writer: Writer,
        pair: QueuePair,
        completions: &CompletionQueue,
    ) -> Result<(), FabricError> {
        let mut state = self.state();
        let State { pairs, stuck } = &mut *state;
        let kept = pairs.get_mut(&writer);
        let (over, revoked) = match kept {
            Some(kept) => {
                let oldest = kept.make_room();
                kept.push(pair);
                (oldest, false)
            }
            None => (Some(pair), true),
        };
        if let Err(error) = destroy(over, completions) {
            // It may continue to take writes, and no revocation would know of it.
            *stuck = Some(format!("a queue pair cannot be destroyed ({error})"));
            return Err(FabricError::io("destroy a queue pair")(error));
        }
        if revoked { Err(FabricError::Revoked(writer)) } else { Ok(()) }
    }

    /// The pairs of all smaller writers, which are not expected any more; and why no revocation can succeed, if so.
    pub(super) fn take_below(&self, writer: Writer) -> (Vec<QueuePair>, Option<String>) {
        let mut state = self.state();
        let kept = state.pairs.split_off(&writer);
        let revoked = std::mem::replace(&mut state.pairs, kept);
        (revoked.into_values().flatten().collect(), state.stuck.clone())
    }

    /// All pairs. None is taken in any more.
    pub(super) fn close(&self) -> Vec<QueuePair> {
        std::mem::take(&mut self.state().pairs).into_values().flatten().collect()
    }

    /// Something could not be ended.
    pub(super) fn note_stuck(&self, what: &str, error: &io::Error) {
        self.state().stuck = Some(format!("{what} could not be ended ({error})"));
    }

    /// Why nothing can be lent any more.
    pub(super) fn stuck(&self) -> Option<String> {
        self.state().stuck.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that is lost and comes back again and again within one epoch makes two channels each time.
    #[test]
    fn a_writer_may_reconnect_without_limit() {
        let mut kept = Newest::new(CHANNELS_MAX);
        for channel in 0..1000_usize {
            let oldest = kept.make_room();
            assert_eq!(oldest, channel.checked_sub(CHANNELS_MAX), "the oldest goes, and only when there is no room");
            kept.push(channel);
        }
        assert!(kept.into_iter().eq(1000 - CHANNELS_MAX..1000));
    }
}
