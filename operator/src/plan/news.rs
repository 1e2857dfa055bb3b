//! How much of a status is news: what asks for a look at the API server before anything is done, what is written at once, and
//! what may wait.
//!
//! Called by [`controller`](crate::controller) about plans that were made from caches, and by [`apply`](crate::apply) about
//! what it is to write.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use tailwind_crds::ReplicaGroupStatus;

use super::action::Plan;
use crate::observed::Observed;

/// From least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum News {
    /// Nothing is to be done, and the status is as it was.
    Nothing,
    /// Positions, how far readers are, and other words about the same pods and nodes, for the same reasons. They change with
    /// each append, with what other pods request, and from one refusal to the next. Every sidecar watches the object that
    /// contains the status, so they are written together, after a pause.
    Figures,
    /// Texts about other pods or nodes than before. They are for people alone.
    Texts,
    /// Something is to be done, or the status says something that sidecars or programs go by, the reason of a condition among
    /// it.
    Facts,
}

impl Plan {
    /// What is new in this plan about what was observed.
    pub(crate) fn news(&self, observed: &Observed) -> News {
        if self.actions.is_empty() && self.notices.is_empty() { news(observed, &self.status) } else { News::Facts }
    }
}

/// What is new in a status.
pub(crate) fn news(observed: &Observed, now: &ReplicaGroupStatus) -> News {
    let Some(before) = &observed.group.status else { return News::Facts };
    let pods = observed.backups.iter().chain(&observed.app).chain(&observed.readers).filter_map(name);
    let nodes = observed.nodes.iter().map(|node| node.name.as_str());
    // Some of those that the status named before may be gone.
    let backups = before.backups.iter().map(|backup| backup.name.as_str());
    let primary = observed.log().map(|log| log.primary.name.as_str());
    compare(before.clone(), now.clone(), &pods.chain(nodes).chain(backups).chain(primary).collect())
}

fn name(pod: &Pod) -> Option<&str> {
    pod.metadata.name.as_deref()
}

/// `names` are those of pods and nodes.
fn compare(before: ReplicaGroupStatus, now: ReplicaGroupStatus, names: &BTreeSet<&str>) -> News {
    let before = ReplicaGroupStatus { log: None, ..before };
    if before == now {
        return News::Nothing;
    }
    let ((facts, remarks), (facts_before, remarks_before)) = (split(now), split(before));
    let subjects = |remarks: Vec<Remark>| remarks.into_iter().map(|remark| remark.subjects(names)).collect::<Vec<_>>();
    match () {
        () if facts != facts_before => News::Facts,
        () if subjects(remarks) != subjects(remarks_before) => News::Texts,
        () => News::Figures,
    }
}

/// A text at its place in a status, if there is one there. The place of a reader is its name and whether it is stale.
#[derive(Debug, PartialEq, Eq)]
struct Remark {
    reader: Option<(String, bool)>,
    text: Option<String>,
}

impl Remark {
    /// The objects that a text names, in order; the rest of the text is ignored.
    fn subjects(self, names: &BTreeSet<&str>) -> Remark {
        let named = |text: String| {
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'));
            let words = words.map(|word| word.trim_end_matches('.'));
            words.filter(|word| names.contains(word)).collect::<Vec<_>>().join(" ")
        };
        Remark { text: self.text.map(named), ..self }
    }
}

/// A status without texts and figures, and the texts. Nothing goes by readers.
fn split(mut status: ReplicaGroupStatus) -> (ReplicaGroupStatus, Vec<Remark>) {
    status.positions = None;
    status.table = None;
    status.reader_count = None;
    let mut texts = vec![status.phase_reason.take()];
    texts.extend(status.conditions.iter_mut().map(|condition| Some(std::mem::take(&mut condition.message))));
    texts.extend(status.backups.iter_mut().map(|backup| backup.message.take()));
    let texts = texts.into_iter().map(|text| Remark { reader: None, text });
    let readers = std::mem::take(&mut status.readers).into_iter();
    let readers = readers.map(|reader| Remark { reader: Some((reader.pod, reader.stale)), text: reader.message });
    let remarks = texts.chain(readers).collect();
    (status, remarks)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(change: &Value) -> ReplicaGroupStatus {
        let mut status = json!({
            "phase": "Ready", "phaseReason": "kv-0 is primary, with 2 copies", "membersWanted": 2,
            "conditions": [{
                "type": "LogFits", "status": "False", "reason": "NearlyFull", "message": "b-0 is 81 % full",
                "lastTransitionTime": "2026-06-01T12:00:00Z",
            }],
            "backups": [{"name": "b", "state": "Member", "control": "10.0.0.1:7420"}],
            "positions": {"first": 1, "acked": 5},
            "table": {"keys": 3, "keysMax": 9, "liveBytes": 300, "liveBytesMax": 900, "logBytes": 500, "memoryBytes": 1000},
            "readers": [{"pod": "r-0", "from": "b", "lsn": 5, "lagMs": 200, "stale": false}], "readerCount": 1,
        });
        json_patch::merge(&mut status, change);
        serde_json::from_value(status).unwrap()
    }

    fn compared(before: &Value, now: &Value) -> News {
        compare(status(before), status(now), &["kv-0", "kv-1", "b-0", "b-1", "r-0", "10.1.2.3"].into())
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
            (json!({"table": {"keys": 4, "liveBytes": 400}}), News::Figures),
            (condition("False", "b-0 is 82 % full"), News::Figures),
            (condition("False", "b-0 on 10.9.9.9 is not full any more"), News::Figures),
            (condition("False", "b-1 is 81 % full"), News::Texts),
            (condition("False", "b-0 is 81 % full, b-1 is 81 % full"), News::Texts),
            (condition("False", "b-0 on 10.1.2.3. is 81 % full"), News::Texts),
            (condition("True", "b-0 is 81 % full"), News::Facts),
            (backup(Some("why")), News::Texts),
            (backup(None), News::Nothing),
            (json!({"phaseReason": "kv-0 is primary, with 3 copies"}), News::Figures),
            (json!({"phaseReason": "kv-1 is primary, with 2 copies"}), News::Texts),
            (json!({"phase": "Degraded"}), News::Facts),
            (json!({"membersWanted": 3}), News::Facts),
            (json!({"backups": [{"name": "b", "state": "Member", "control": "10.0.0.2:7420"}]}), News::Facts),
            (json!({"backups": []}), News::Facts),
            (json!({"switchover": {"to": "kv-1", "fromEpoch": 1}}), News::Facts),
            (json!({"readers": [{"pod": "r-0", "from": "b", "lsn": 9, "lagMs": 100, "stale": false}]}), News::Figures),
            (json!({"readers": [{"pod": "r-1", "from": "b", "lsn": 5, "lagMs": 200, "stale": false}]}), News::Texts),
            (json!({"readers": [{"pod": "r-0", "stale": true}]}), News::Texts),
            (json!({"readers": [{"pod": "r-0", "stale": false, "message": "why"}]}), News::Texts),
            (json!({"readers": []}), News::Texts),
        ] {
            assert_eq!(compared(&json!({}), &change), news, "{change}");
        }
    }

    #[test]
    fn the_log_is_not_the_operators_to_write() {
        let log = json!({"log": {
            "id": "0", "epoch": 1, "claim": "0", "version": 1, "primary": {"name": "kv-0", "control": "h:1"}, "members": [],
        }});
        assert_eq!(compared(&log, &json!({})), News::Nothing);
    }
}
