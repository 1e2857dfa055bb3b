//! Pauses of appends in which a newcomer that load keeps out of the set finds its moment to join.
//!
//! Part of [`Primary`]: ticks begin and end a pause, and the append path asks
//! [`takes_appends`](super::Primary::takes_appends). A pause decides nothing about the set: a newcomer joins under the same
//! conditions as always. See "Joining under load" in `docs/protocol.md`.

use crate::config::Time;
use crate::planted::{self, Bug};

use super::Primary;
use super::seats::Member;

/// How long a newcomer may lack nothing but the latest appends before appends pause for it. One that is about as fast as the
/// members joins sooner by itself.
const PATIENCE_MS: u64 = 200;
/// The first pause: one tick of the append path.
const PAUSE_MS: u64 = 5;
/// After a pause in vain the next one is twice as long, this many times: 5 ms × 2⁴ = 80 ms, two syncs of a slow disk.
const DOUBLINGS_MAX: u32 = 4;
/// After a pause appends continue for this many times its length, so pauses take at most a twentieth of the time.
const REST: u64 = 19;

/// The pauses for newcomers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Joining {
    /// Since when a newcomer has lacked nothing but the latest appends.
    behind_since: Option<Time>,
    /// When the pause ends at the latest, during one.
    pause_until: Option<Time>,
    /// No pause begins before.
    rest_until: Time,
    /// Pauses since then that have ended in vain.
    in_vain: u32,
}

impl Joining {
    fn length(&self) -> u64 {
        PAUSE_MS << self.in_vain.min(DOUBLINGS_MAX)
    }

    /// `may_help`: a pause now could bring a newcomer in.
    fn tick(&mut self, now: Time, may_help: bool) {
        let since = *self.behind_since.get_or_insert(now);
        match self.pause_until {
            Some(until) if now >= until => {
                self.pause_until = None;
                self.rest_until = now.plus(REST * self.length());
                self.in_vain += 1;
            }
            None if may_help && now >= since.plus(PATIENCE_MS) && now >= self.rest_until => {
                self.pause_until = Some(now.plus(self.length()));
            }
            _ => {}
        }
    }
}

impl Primary {
    /// False during a pause for a newcomer: leave appends where they are, for some milliseconds.
    pub fn takes_appends(&self) -> bool {
        self.joining.pause_until.is_none()
    }

    /// Begins a pause, or ends one that was in vain.
    pub(super) fn pause_for_newcomer(&mut self, now: Time) {
        let may_help = !planted::has(Bug::NeverPauses)
            && self.newcomers_behind().any(|newcomer| self.has_lent_what_members_have(newcomer));
        match self.is_kept_smaller_by_load() {
            true => self.joining.tick(now, may_help),
            false => self.joining = Joining { rest_until: self.joining.rest_until, ..Joining::default() },
        }
    }

    /// A pause has no purpose any more once its newcomer was proposed, or is gone.
    pub(super) fn end_needless_pause(&mut self) {
        if !self.takes_appends() && !self.is_kept_smaller_by_load() {
            self.joining.pause_until = None;
        }
    }

    /// True while a newcomer could be proposed if it were not behind. With a member lost acks stop, and the newcomer needs no
    /// pause to catch up.
    fn is_kept_smaller_by_load(&self) -> bool {
        let well = self.swap.is_none() && self.members.iter().flatten().all(|member| !member.is_lost());
        well && self.newcomers_behind().next().is_some()
    }

    /// Newcomers that lack nothing but the end of the log, in memory or on the disk that was synced.
    fn newcomers_behind(&self) -> impl Iterator<Item = &Member> {
        let newcomers = self.members.iter().flatten().filter(|member| !member.in_set() && !member.is_lost());
        newcomers.filter(|newcomer| self.has_all_copies(newcomer) && !self.has_caught_up(newcomer))
    }

    /// Where the bug is planted, a newcomer joins after the first pause in vain.
    pub(super) fn is_admitted_by_a_bug(&self, newcomer: &Member) -> bool {
        planted::has(Bug::PauseAdmits) && self.joining.in_vain > 0 && self.has_all_copies(newcomer)
    }
}
