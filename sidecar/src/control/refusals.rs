//! Which members lend no buffer for appends, and why: what appends may be waiting for.
//!
//! Written by [`member`](super::member), told by [`status`](super::status).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tailwind_protocol::ids::MemberId;
use tokio::time::Instant;

/// A shorter refusal belongs to every busy disk.
const WORTH_TELLING: Duration = Duration::from_secs(1);

/// Members that say "retry later".
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<MemberId, Refused>>>);

#[derive(Debug)]
struct Refused {
    since: Instant,
    why: String,
}

/// A member's refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberRefusal {
    /// Who.
    pub member: MemberId,
    /// What it says.
    pub why: String,
}

/// One question to a member. The refusal is over when this is dropped.
#[derive(Debug)]
pub struct Question {
    refusals: Refusals,
    member: MemberId,
}

impl Refusals {
    /// This member is being asked.
    pub fn ask(&self, member: &MemberId) -> Question {
        Question { refusals: self.clone(), member: member.clone() }
    }

    /// Who has refused for a while.
    pub fn told(&self) -> Vec<MemberRefusal> {
        let refusals = self.lock();
        let long = refusals.iter().filter(|(_, refused)| refused.since.elapsed() >= WORTH_TELLING);
        long.map(|(member, refused)| MemberRefusal { member: member.clone(), why: refused.why.clone() }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, Refused>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Question {
    /// It has refused, perhaps again.
    pub fn refused(&self, why: &str) {
        let mut refusals = self.refusals.lock();
        let since = refusals.get(&self.member).map_or_else(Instant::now, |refused| refused.since);
        refusals.insert(self.member.clone(), Refused { since, why: why.to_owned() });
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.refusals.lock().remove(&self.member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_refusal_is_told_until_it_is_over() {
        let refusals = Refusals::default();
        let member: MemberId = "b0".parse().unwrap();
        let question = refusals.ask(&member);
        question.refused("the disk is slow");
        assert_eq!(refusals.told(), []);
        tokio::time::advance(WORTH_TELLING).await;
        question.refused("the flush folder is full");
        assert_eq!(refusals.told(), [MemberRefusal { member, why: "the flush folder is full".to_owned() }]);
        drop(question);
        assert_eq!(refusals.told(), []);
    }
}
