//! How much of a plan is news: what asks for a look at the API server before anything is done, what is written at once, and
//! what may wait.
//!
//! Called by [`controller`](crate::controller) about plans that were made from caches.

use tailwind_crds::ReplicaGroupStatus;

use super::action::Plan;
use super::status::words;
use crate::observed::Observed;

/// From least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum News {
    /// Nothing is to be done, and the status is as it was.
    Nothing,
    /// Positions, how far readers are, and numbers in texts. They move with each append, or with whatever other pods ask for.
    Figures,
    /// Texts, which are for people alone.
    Texts,
    /// Something is to be done, or the status says something that sidecars or programs go by.
    Facts,
}

impl Plan {
    /// What is new in this plan about what was observed.
    pub(crate) fn news(&self, observed: &Observed) -> News {
        let Some(before) = observed.group.status.clone() else { return News::Facts };
        if self.actions.is_empty() && self.notices.is_empty() {
            compare(before, self.status.clone())
        } else {
            News::Facts
        }
    }
}

fn compare(before: ReplicaGroupStatus, now: ReplicaGroupStatus) -> News {
    let before = ReplicaGroupStatus { log: None, ..before };
    if before == now {
        return News::Nothing;
    }
    let ((facts, texts), (facts_before, texts_before)) = (split(now), split(before));
    if facts != facts_before {
        return News::Facts;
    }
    let words = |texts: &[String]| texts.iter().flat_map(|text| words(text)).map(str::to_owned).collect::<Vec<_>>();
    if words(&texts) == words(&texts_before) { News::Figures } else { News::Texts }
}

/// A status without texts and figures, and the texts. Readers are figures and texts: nothing goes by them.
fn split(mut status: ReplicaGroupStatus) -> (ReplicaGroupStatus, Vec<String>) {
    status.positions = None;
    let mut texts: Vec<String> = status.phase_reason.take().into_iter().collect();
    texts.extend(status.conditions.iter_mut().map(|condition| std::mem::take(&mut condition.message)));
    texts.extend(status.backups.iter_mut().filter_map(|backup| backup.message.take()));
    status.reader_count = None;
    for reader in std::mem::take(&mut status.readers) {
        texts.push(format!("{} stale: {}", reader.pod, reader.stale));
        texts.extend(reader.message);
    }
    (status, texts)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(change: &Value) -> ReplicaGroupStatus {
        let mut status = json!({
            "phase": "Ready", "phaseReason": "kv-0 is primary, with 2 copies", "membersWanted": 2,
            "conditions": [{
                "type": "LogFits", "status": "False", "reason": "NearlyFull", "message": "b is 81 % full",
                "lastTransitionTime": "2026-06-01T12:00:00Z",
            }],
            "backups": [{"name": "b", "state": "Member", "control": "10.0.0.1:7420"}],
            "positions": {"first": 1, "acked": 5},
            "readers": [{"pod": "r-0", "from": "b", "lsn": 5, "lagMs": 200, "stale": false}], "readerCount": 1,
        });
        json_patch::merge(&mut status, change);
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn only_facts_need_a_look_at_the_api_server() {
        let condition = |status: &str, message: &str| {
            json!({"conditions": [{
                "type": "LogFits", "status": status, "reason": "NearlyFull", "message": message,
                "lastTransitionTime": "2026-06-01T12:00:00Z",
            }]})
        };
        let backup = |message: Option<&str>| json!({"backups": [{"name": "b", "state": "Member", "control": "10.0.0.1:7420", "message": message}]});
        for (change, news) in [
            (json!({}), News::Nothing),
            (json!({"positions": {"acked": 6}}), News::Figures),
            (condition("False", "b is 82 % full"), News::Figures),
            (condition("False", "c is 81 % full"), News::Texts),
            (condition("True", "b is 81 % full"), News::Facts),
            (backup(Some("why")), News::Texts),
            (backup(None), News::Nothing),
            (json!({"phaseReason": "another is primary, with 2 copies"}), News::Texts),
            (json!({"phase": "Degraded"}), News::Facts),
            (json!({"membersWanted": 3}), News::Facts),
            (json!({"backups": [{"name": "b", "state": "Member", "control": "10.0.0.2:7420"}]}), News::Facts),
            (json!({"backups": []}), News::Facts),
            (json!({"switchover": {"to": "kv-1", "fromEpoch": 1}}), News::Facts),
            (json!({"readers": [{"pod": "r-1", "from": "b", "lsn": 9, "lagMs": 100, "stale": false}]}), News::Figures),
            (json!({"readers": [{"pod": "r-0", "stale": true}]}), News::Texts),
            (json!({"readers": [{"pod": "r-0", "stale": false, "message": "why"}]}), News::Texts),
            (json!({"readers": []}), News::Texts),
        ] {
            assert_eq!(compare(status(&json!({})), status(&change)), news, "{change}");
        }
    }

    #[test]
    fn the_log_is_not_the_operators_to_write() {
        let log = json!({"log": {
            "id": "0", "epoch": 1, "claim": "0", "version": 1, "primary": {"name": "kv-0", "control": "h:1"}, "members": [],
        }});
        assert_eq!(compare(status(&log), status(&json!({}))), News::Nothing);
    }
}
