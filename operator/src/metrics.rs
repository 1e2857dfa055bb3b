//! What the operator counts, and how each group is.
//!
//! Counted by [`controller`](crate::controller), [`apply`](crate::apply) and the webhook; served by [`health`](crate::health).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tailwind_crds::{Phase, ReplicaGroupStatus};
use tailwind_runtime::metrics::Snapshot;

use crate::plan::Action;
use crate::plan::removal::Removal;
use crate::rollout_turns::RolloutTurns;

/// All metrics.
#[derive(Debug, Default)]
pub struct Metrics {
    is_leader: Gauge,
    reconciles: Family<ResultLabel, Counter>,
    errors: Family<ClassLabel, Counter>,
    api_requests: Family<RequestLabels, Counter>,
    seconds: Counter<f64, AtomicU64>,
    actions: Family<ActionLabel, Counter>,
    injections: Family<ResultLabel, Counter>,
    groups: Mutex<BTreeMap<GroupLabels, Group>>,
    /// Groups that another installation manages, with its name.
    refused: Mutex<BTreeMap<GroupLabels, String>>,
    rollout_turns: OnceLock<Arc<RolloutTurns>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabel {
    action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct GroupLabels {
    namespace: String,
    group: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    #[prometheus(flatten)]
    group: GroupLabels,
    phase: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    #[prometheus(flatten)]
    group: GroupLabels,
    managed_by: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}
/// As kube-state-metrics shows conditions: one sample for each status, and 1 for the one that holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    #[prometheus(flatten)]
    group: GroupLabels,
    condition: &'static str,
    status: &'static str,
}

/// The conditions that say how a group is. The others say what was asked for, or what the operator does.
const CONDITIONS: [&str; 6] = ["Ready", "Degraded", "FailoverSafe", "LogFits", "QuarantineEmpty", "TableHasRoom"];
/// The status of a condition, and its label.
const STATUSES: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("Unknown", "unknown")];

/// What the pods of a group have reported, as far as any has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reported {
    /// Copies that backups report as damaged.
    pub damaged: Option<u64>,
    /// Readers that report that their view may be old, or cannot be heard.
    pub stale_readers: Option<u64>,
}

#[derive(Debug)]
struct Group {
    phase: Option<Phase>,
    members: Option<u8>,
    members_wanted: Option<u8>,
    readers: Option<u32>,
    certificates_end: Option<i64>,
    reported: Reported,
    /// By [`CONDITIONS`], the status as an index into [`STATUSES`].
    conditions: [Option<usize>; CONDITIONS.len()],
}

/// What a scrape shows of groups.
struct GroupSamples {
    phases: Family<PhaseLabels, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    /// Members, members wanted, the end of certificates, damaged copies, readers, and those of them that are stale.
    numbers: [Family<GroupLabels, Gauge>; 6],
}

impl Metrics {
    fn groups(&self) -> MutexGuard<'_, BTreeMap<GroupLabels, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this replica is the one that writes.
    pub fn set_leader(&self, is_leader: bool) {
        self.is_leader.set(is_leader.into());
    }

    /// A request goes to the API server.
    pub(crate) fn requested(&self, verb: &'static str, resource: String) {
        self.api_requests.get_or_create(&RequestLabels { verb, resource }).inc();
    }

    /// A reconcile has ended.
    pub fn reconciled(&self, time: Duration, error: Option<&'static str>) {
        let result = if error.is_some() { "error" } else { "ok" };
        self.reconciles.get_or_create(&ResultLabel { result }).inc();
        self.seconds.inc_by(time.as_secs_f64());
        if let Some(class) = error {
            self.errors.get_or_create(&ClassLabel { class }).inc();
        }
    }

    /// An action was carried out.
    pub fn acted(&self, action: &Action) {
        let action = match action {
            Action::Finalizer(_) => "finalizer",
            Action::ForgetSwitchover => "forget_switchover",
            Action::Certificates(_) => "certificates",
            Action::Apply(_) => "apply",
            Action::Remove(_) => "remove",
            Action::ClearEndpoints(_) => "clear_endpoints",
            Action::Claim(_) | Action::OwnClaim { .. } => "claim",
            Action::Create(_) => "create_backup",
            Action::Delete(Removal { pod: Some(_), .. }) => "delete_backup",
            Action::Delete(_) => "remove_claim",
            Action::Gate { .. } => "gate",
            Action::Role { .. } => "role",
        };
        self.actions.get_or_create(&ActionLabel { action }).inc();
    }

    /// The webhook has answered.
    pub fn injected(&self, result: &'static str) {
        self.injections.get_or_create(&ResultLabel { result }).inc();
    }

    /// Takes in the state of a group.
    pub fn saw(
        &self,
        namespace: &str,
        name: &str,
        status: &ReplicaGroupStatus,
        certificates_end: Option<i64>,
        reported: Reported,
    ) {
        let &ReplicaGroupStatus { phase, members, members_wanted, reader_count: readers, .. } = status;
        let conditions = CONDITIONS.map(|kind| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == kind)?;
            STATUSES.iter().position(|(status, _)| *status == condition.status)
        });
        let group = Group { phase, members, members_wanted, readers, certificates_end, reported, conditions };
        self.groups().insert(labels(namespace, name), group);
    }

    /// Another installation manages a group. True if that is new.
    pub fn refused(&self, namespace: &str, name: &str, owner: &str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert(labels(namespace, name), owner.to_owned()).as_deref() != Some(owner)
    }

    /// It does not, or not any more.
    pub fn not_refused(&self, namespace: &str, name: &str) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(&labels(namespace, name));
    }

    /// Where to look up how many groups are being updated.
    pub(crate) fn set_rollout_turns(&self, turns: Arc<RolloutTurns>) {
        // Set once, when this replica begins to reconcile.
        let _ = self.rollout_turns.set(turns);
    }

    /// A group is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.groups().remove(&labels(namespace, name));
    }

    /// All of them.
    pub fn snapshot(&self) -> Snapshot {
        let GroupSamples { phases, conditions, numbers } = self.of_groups();
        let [members, wanted, end, damaged, readers, stale_readers] = numbers;
        let mut now = Snapshot::new([]);
        now.process();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        now.info("tailwind_operator_info", "The version of this operator.", [("version", version)]);
        let is_leader = self.is_leader.clone();
        now.register("tailwind_operator_leader", "1 when this replica is the one that writes.", is_leader);
        now.register("tailwind_operator_reconciles_total", "Reconciles.", self.reconciles.clone());
        let errors = self.errors.clone();
        now.register("tailwind_operator_reconcile_errors_total", "Reconciles that failed, by class.", errors);
        let seconds = self.seconds.clone();
        now.register("tailwind_operator_reconcile_seconds_total", "Time spent in reconciles.", seconds);
        let requests = self.api_requests.clone();
        now.register("tailwind_operator_api_requests_total", "Requests to the API server.", requests);
        now.register("tailwind_operator_actions_total", "Actions carried out, by kind.", self.actions.clone());
        now.register("tailwind_operator_injections_total", "Answers of the webhook.", self.injections.clone());
        now.register("tailwind_group_phase", "1 for the phase that a group is in.", phases);
        let help = "1 for the status that a condition of a group has, 0 for the others.";
        now.register("tailwind_group_condition", help, conditions);
        let help = "Copies of segments that a group's backups report as damaged.";
        now.register("tailwind_group_damaged_copies", help, damaged);
        now.register("tailwind_group_members", "Copies that a group has.", members);
        now.register("tailwind_group_members_wanted", "Copies that a group wants.", wanted);
        now.register("tailwind_group_readers", "Pods that read a group's log.", readers);
        let help = "Readers, of the first 32 by name, that status.readers shows as stale.";
        now.register("tailwind_group_readers_stale", help, stale_readers);
        let name = "tailwind_group_certificates_end_timestamp_seconds";
        now.register(name, "When the first of a group's certificates expires.", end);
        let refused = Family::<RefusedLabels, Gauge>::default();
        for (group, owner) in &*self.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = RefusedLabels { group: group.clone(), managed_by: owner.clone() };
            refused.get_or_create(&labels).set(1);
        }
        let name = "tailwind_operator_group_refused";
        now.register(name, "1 for a group of this operator's class that another installation manages.", refused);
        if let Some(turns) = self.rollout_turns.get() {
            let (updating, queued) = turns.counts();
            let counts = Family::<StateLabel, Gauge>::default();
            for (state, count) in [("updating", updating), ("queued", queued)] {
                counts.get_or_create(&StateLabel { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            let help = "Groups with backups of an older spec or image, by whether these are being replaced.";
            now.register("tailwind_operator_rollouts", help, counts);
        }
        now
    }

    /// Every metric, with a sample of each: for the reference.
    pub fn example() -> Snapshot {
        let metrics = Metrics::default();
        metrics.requested("get", "pods".to_owned());
        metrics.reconciled(Duration::ZERO, Some("conflict"));
        metrics.acted(&Action::ForgetSwitchover);
        metrics.injected("injected");
        let condition = Condition {
            type_: CONDITIONS[0].to_owned(),
            status: STATUSES[0].0.to_owned(),
            reason: String::new(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        };
        let status = ReplicaGroupStatus {
            phase: Some(Phase::Ready),
            members: Some(3),
            members_wanted: Some(3),
            reader_count: Some(0),
            conditions: vec![condition],
            ..Default::default()
        };
        let reported = Reported { damaged: Some(0), stale_readers: Some(0) };
        metrics.saw("shop", "orders", &status, Some(0), reported);
        metrics.refused("shop", "stock", "other/tailwind-operator");
        let turns = RolloutTurns::new(1, Arc::default());
        metrics.set_rollout_turns(Arc::new(turns));
        metrics.snapshot()
    }

    fn of_groups(&self) -> GroupSamples {
        let (phases, numbers) = (Family::<PhaseLabels, Gauge>::default(), <[Family<GroupLabels, Gauge>; 6]>::default());
        let conditions = Family::<ConditionLabels, Gauge>::default();
        for (labels, group) in &*self.groups() {
            if let Some(phase) = group.phase {
                let labels = PhaseLabels { group: labels.clone(), phase: format!("{phase:?}") };
                phases.get_or_create(&labels).set(1);
            }
            for (condition, holds) in CONDITIONS.into_iter().zip(group.conditions) {
                for (index, (_, status)) in STATUSES.into_iter().enumerate().filter(|_| holds.is_some()) {
                    let labels = ConditionLabels { group: labels.clone(), condition, status };
                    conditions.get_or_create(&labels).set((holds == Some(index)).into());
                }
            }
            let gauge = |number: Option<u64>| number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
            let Reported { damaged, stale_readers } = group.reported;
            let (members, wanted) = (group.members.map(i64::from), group.members_wanted.map(i64::from));
            let (readers, damaged) = (group.readers.map(i64::from), gauge(damaged));
            let values = [members, wanted, group.certificates_end, damaged, readers, gauge(stale_readers)];
            for (family, value) in numbers.iter().zip(values) {
                if let Some(value) = value {
                    family.get_or_create(labels).set(value);
                }
            }
        }
        GroupSamples { phases, conditions, numbers }
    }
}

fn labels(namespace: &str, name: &str) -> GroupLabels {
    GroupLabels { namespace: namespace.to_owned(), group: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_names_and_labels() {
        let metrics = Metrics::default();
        metrics.set_leader(true);
        metrics.reconciled(Duration::from_millis(500), Some("conflict"));
        let condition = |kind: &str, status: &str| Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: String::new(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        };
        let status = ReplicaGroupStatus {
            phase: Some(Phase::Ready),
            members: Some(3),
            reader_count: Some(4),
            conditions: vec![
                condition("Ready", "Unknown"),
                condition("Placeable", "True"),
                condition("LogFits", "so so"),
            ],
            ..Default::default()
        };
        metrics.saw("shop", "orders", &status, None, Reported { damaged: Some(2), stale_readers: Some(1) });
        let text = metrics.snapshot().text();
        for line in [
            "tailwind_operator_leader 1",
            "tailwind_operator_reconciles_total{result=\"error\"} 1",
            "tailwind_operator_reconcile_errors_total{class=\"conflict\"} 1",
            "tailwind_operator_reconcile_seconds_total 0.5",
            "tailwind_group_phase{namespace=\"shop\",group=\"orders\",phase=\"Ready\"} 1",
            "# TYPE process_resident_memory_bytes gauge",
            "tailwind_group_members{namespace=\"shop\",group=\"orders\"} 3",
            "tailwind_group_damaged_copies{namespace=\"shop\",group=\"orders\"} 2",
            "tailwind_group_readers{namespace=\"shop\",group=\"orders\"} 4",
            "tailwind_group_readers_stale{namespace=\"shop\",group=\"orders\"} 1",
            "tailwind_group_condition{namespace=\"shop\",group=\"orders\",condition=\"Ready\",status=\"unknown\"} 1",
            "tailwind_group_condition{namespace=\"shop\",group=\"orders\",condition=\"Ready\",status=\"true\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        assert!(!text.contains("Placeable") && !text.contains("LogFits"), "{text}");
        assert!(metrics.refused("shop", "stock", "a/op") && !metrics.refused("shop", "stock", "a/op"));
        let refused = "tailwind_operator_group_refused{namespace=\"shop\",group=\"stock\",managed_by=\"a/op\"} 1";
        assert!(metrics.snapshot().text().lines().any(|line| line == refused));
        metrics.not_refused("shop", "stock");
        assert!(!metrics.snapshot().text().contains("stock"));
        metrics.forget("shop", "orders");
        assert!(!metrics.snapshot().text().contains("orders"));
    }
}
