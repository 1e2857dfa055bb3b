//! What members say that they have promised to other claimants.
//!
//! Part of the [`Promotion`](super::Promotion), which waits while such a word stands, because the config store may have gone back.

use std::collections::BTreeMap;

use crate::backup::EPOCH_JUMP_MAX;
use crate::config::Time;
use crate::ids::{Epoch, MemberId};
use crate::planted::{self, Bug};
use crate::rpc::Failure;

/// A member's word that it has promised an epoch to another claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word {
    promised: Epoch,
    /// When it was last given. A member that stands by its word repeats it.
    heard: Time,
}

/// What members have said last, of those that refused this candidate because of an epoch that the store does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Words {
    last: BTreeMap<MemberId, Word>,
}

impl Words {
    /// Notes the word of a member that refuses the epoch `mine`; returns what it says that it has promised. `None` if it gives
    /// none, or one that no backup can have reason to give.
    pub(super) fn note(&mut self, now: Time, mine: Epoch, member: &MemberId, failure: &Failure) -> Option<Epoch> {
        let (promised, possible) = match failure {
            Failure::Superseded(promised) => (*promised, *promised > mine && promised.0 - mine.0 <= EPOCH_JUMP_MAX),
            Failure::ClaimedBefore(promised) => (*promised, *promised <= mine),
            Failure::Unreachable(_) => return None,
        };
        possible.then(|| {
            self.last.insert(member.clone(), Word { promised, heard: now });
            promised
        })
    }

    /// A member that stands by its word, and the latest epoch that any member names. A word that is not repeated for `patience`
    /// milliseconds counts no more than that of a member that was silent all the time.
    pub(super) fn standing(&mut self, now: Time, patience: u64) -> Option<(MemberId, Epoch)> {
        self.last.retain(|_, word| now < word.heard.plus(patience) || planted::has(Bug::WordIsLatched));
        let latest = self.last.iter().max_by_key(|(_, word)| word.promised);
        latest.map(|(member, word)| (member.clone(), word.promised))
    }

    /// The member has promised this candidate's epoch, so it had promised no later one.
    pub(super) fn take_back(&mut self, member: &MemberId) {
        if !planted::has(Bug::WordIsLatched) {
            self.last.remove(member);
        }
    }

    pub(super) fn forget(&mut self) {
        self.last.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}
