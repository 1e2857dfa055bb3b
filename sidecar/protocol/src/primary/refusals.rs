//! Members that were lost because they lent no buffer, and when they are recruited again.
//!
//! Held by [`Primary`](super::Primary). See "Membership" in `docs/protocol.md`.

use crate::config::{MemberRef, Time};

/// The first pause is `recruit_interval_ms`, each later one twice the one before: 250 ms × 2⁸ = 64 s at most.
const DOUBLINGS_MAX: u32 = 8;
/// A pause that ended so long ago is forgotten: members come and go while a primary lives.
const FORGOTTEN_AFTER_MS: u64 = 120_000;

/// At most one entry for each backup that was a member or newcomer lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Refusals(Vec<Refusal>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Refusal {
    member: MemberRef,
    /// How often, since the log was last trimmed; counted up to [`DOUBLINGS_MAX`].
    times: u32,
    /// Until then it is left alone.
    until: Time,
}

impl Refusals {
    /// This member was lost because it lent no buffer. Other memory under its name starts afresh. Without a search interval
    /// there is no pause either.
    pub(super) fn note(&mut self, member: MemberRef, recruit_interval_ms: u64, now: Time) {
        if recruit_interval_ms == 0 {
            return;
        }
        self.0.retain(|known| now < known.until.plus(FORGOTTEN_AFTER_MS));
        let known = self.0.iter().position(|known| known.member.id == member.id).map(|index| self.0.swap_remove(index));
        let before = known.filter(|known| known.member.is_same(&member)).map_or(0, |known| known.times);
        let until = now.plus(recruit_interval_ms << before);
        self.0.push(Refusal { member, times: (before + 1).min(DOUBLINGS_MAX), until });
    }

    /// True while this backup is to be left alone.
    pub(super) fn has(&self, spare: &MemberRef, now: Time) -> bool {
        self.0.iter().any(|known| known.member.is_same(spare) && now < known.until)
    }

    /// The log was trimmed: there may be room now.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
