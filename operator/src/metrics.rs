//! Counters and gauges in the Prometheus text format.
//!
//! Counted by [`controller`](crate::controller), [`apply`](crate::apply) and the webhook; told by [`health`](crate::health).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tailwind_crds::{Phase, ReplicaGroupStatus};

use crate::plan::Action;

type Samples = BTreeMap<String, f64>;
type Reading = fn(&Group) -> Option<f64>;

/// All metrics.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_leader: bool,
    reconciles: Samples,
    errors: Samples,
    seconds: f64,
    actions: Samples,
    injections: Samples,
    groups: BTreeMap<(String, String), Group>,
}

#[derive(Debug)]
struct Group {
    phase: Option<Phase>,
    members: Option<u8>,
    members_wanted: Option<u8>,
    certificates_end: Option<i64>,
}

impl Metrics {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this replica is the one that writes.
    pub fn leads(&self, leads: bool) {
        self.inner().is_leader = leads;
    }

    /// A reconcile has ended.
    pub fn reconciled(&self, time: Duration, error: Option<&str>) {
        let mut inner = self.inner();
        let result = if error.is_some() { "error" } else { "ok" };
        count(&mut inner.reconciles, "result", result);
        inner.seconds += time.as_secs_f64();
        if let Some(class) = error {
            count(&mut inner.errors, "class", class);
        }
    }

    /// An action was carried out.
    pub fn acted(&self, action: &Action) {
        let kind = match action {
            Action::Finalizer(_) => "finalizer",
            Action::ForgetSwitchover => "forget_switchover",
            Action::Certificates(_) => "certificates",
            Action::Apply(_) => "apply",
            Action::Remove(_) => "remove",
            Action::Create(_) => "create_backup",
            Action::Delete(_) => "delete_backup",
            Action::Gate { .. } => "gate",
            Action::Role { .. } => "role",
        };
        count(&mut self.inner().actions, "action", kind);
    }

    /// The webhook has answered.
    pub fn injected(&self, result: &str) {
        count(&mut self.inner().injections, "result", result);
    }

    /// How a group is.
    pub fn saw(&self, namespace: &str, name: &str, status: &ReplicaGroupStatus, certificates_end: Option<i64>) {
        let group = Group {
            phase: status.phase,
            members: status.members,
            members_wanted: status.members_wanted,
            certificates_end,
        };
        self.inner().groups.insert((namespace.to_owned(), name.to_owned()), group);
    }

    /// A group is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.inner().groups.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// All of them as text.
    pub fn text(&self) -> String {
        let inner = self.inner();
        let mut text = Text(String::new());
        let version = env!("CARGO_PKG_VERSION");
        text.family("tailwind_operator_info", "gauge", "Which version this is.");
        text.sample("tailwind_operator_info", &format!("version=\"{version}\""), 1.0);
        text.family("tailwind_operator_leader", "gauge", "Whether this replica is the one that writes.");
        text.sample("tailwind_operator_leader", "", f64::from(u8::from(inner.is_leader)));
        text.all("tailwind_operator_reconciles_total", "Reconciles.", &inner.reconciles);
        text.all("tailwind_operator_reconcile_errors_total", "Reconciles that failed, by class.", &inner.errors);
        text.family("tailwind_operator_reconcile_seconds_total", "counter", "Time spent in reconciles.");
        text.sample("tailwind_operator_reconcile_seconds_total", "", inner.seconds);
        text.all("tailwind_operator_actions_total", "What was done, by kind.", &inner.actions);
        text.all("tailwind_operator_injections_total", "Answers of the webhook.", &inner.injections);
        text.groups(&inner.groups);
        text.0
    }
}

fn count(samples: &mut Samples, label: &str, value: &str) {
    *samples.entry(format!("{label}=\"{value}\"")).or_default() += 1.0;
}

struct Text(String);

impl Text {
    // Writing to a string cannot fail.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn all(&mut self, name: &str, help: &str, samples: &Samples) {
        self.family(name, "counter", help);
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
    }

    fn groups(&mut self, groups: &BTreeMap<(String, String), Group>) {
        let labels = |(namespace, name): &(String, String)| format!("namespace=\"{namespace}\",group=\"{name}\"");
        self.family("tailwind_group_phase", "gauge", "1 for the phase that a group is in.");
        for (key, group) in groups {
            if let Some(phase) = group.phase {
                self.sample("tailwind_group_phase", &format!("{},phase=\"{phase:?}\"", labels(key)), 1.0);
            }
        }
        let gauges: [(&str, &str, Reading); 3] = [
            ("tailwind_group_members", "Copies that a group has.", |group| group.members.map(f64::from)),
            ("tailwind_group_members_wanted", "Copies that a group wants.", |group| {
                group.members_wanted.map(f64::from)
            }),
            (
                "tailwind_group_certificates_end_timestamp_seconds",
                "When the first of a group's certificates ends.",
                #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
                |group| group.certificates_end.map(|end| end as f64),
            ),
        ];
        for (name, help, value) in gauges {
            self.family(name, "gauge", help);
            for (key, group) in groups {
                if let Some(value) = value(group) {
                    self.sample(name, &labels(key), value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_told_as_prometheus_reads_them() {
        let metrics = Metrics::default();
        metrics.leads(true);
        metrics.reconciled(Duration::from_millis(500), Some("conflict"));
        let status = ReplicaGroupStatus { phase: Some(Phase::Ready), members: Some(3), ..Default::default() };
        metrics.saw("shop", "orders", &status, None);
        let text = metrics.text();
        for line in [
            "tailwind_operator_leader 1",
            "tailwind_operator_reconciles_total{result=\"error\"} 1",
            "tailwind_operator_reconcile_errors_total{class=\"conflict\"} 1",
            "tailwind_operator_reconcile_seconds_total 0.5",
            "tailwind_group_phase{namespace=\"shop\",group=\"orders\",phase=\"Ready\"} 1",
            "tailwind_group_members{namespace=\"shop\",group=\"orders\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        metrics.forget("shop", "orders");
        assert!(!metrics.text().contains("orders"));
    }
}
