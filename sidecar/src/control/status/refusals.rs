//! Which members lend no buffer for appends, and why: what appends may be waiting for.
//!
//! Written by [`member`](crate::control::roles::member), told by [`status`](super).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tailwind_protocol::ids::MemberId;
use tokio::time::Instant;

/// A shorter refusal belongs to every busy disk.
const WORTH_TELLING: Duration = Duration::from_secs(1);
/// A refusal whose words change is logged again, but not more often than this.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Members that say "retry later".
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<BTreeMap<MemberId, Refused>>>);

#[derive(Debug)]
struct Refused {
    since: Instant,
    why: String,
    /// What was logged last, and when.
    logged: Option<(String, Instant)>,
}

impl Refused {
    /// True if this refusal is to be logged now; then it counts as logged.
    fn is_due(&mut self) -> bool {
        let is_due = match &self.logged {
            None => self.since.elapsed() >= WORTH_TELLING,
            Some((logged, at)) => *logged != self.why && at.elapsed() >= LOG_AGAIN,
        };
        if is_due {
            self.logged = Some((self.why.clone(), Instant::now()));
        }
        is_due
    }
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
    /// It has refused, perhaps again. Logged once it has for a while, and when the reason changes.
    pub fn refused(&self, why: &str) {
        let mut refusals = self.refusals.lock();
        let fresh = || Refused { since: Instant::now(), why: String::new(), logged: None };
        let refused = refusals.entry(self.member.clone()).or_insert_with(fresh);
        why.clone_into(&mut refused.why);
        if refused.is_due() {
            let member = &self.member;
            tracing::warn!(%member, %why, "a member lends no buffer: appends wait once the open segment is full");
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let refused = self.refusals.lock().remove(&self.member);
        if refused.is_some_and(|refused| refused.logged.is_some()) {
            tracing::info!(member = %self.member, "the wait for a member's buffer is over");
        }
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

    #[tokio::test(start_paused = true)]
    async fn a_long_refusal_is_logged_once_for_each_reason() {
        let mut refused = Refused { since: Instant::now(), why: "the disk is full".to_owned(), logged: None };
        assert!(!refused.is_due(), "every busy disk refuses for a moment");
        tokio::time::advance(WORTH_TELLING).await;
        assert!(refused.is_due());
        for _ in 0..100 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!refused.is_due(), "it refuses ten times a second, for the same reason");
        }
        refused.why = "the flush folder is full".to_owned();
        assert!(refused.is_due());
        refused.why = "the disk is full".to_owned();
        assert!(!refused.is_due(), "reasons that take turns");
        tokio::time::advance(LOG_AGAIN).await;
        assert!(refused.is_due());
    }
}
