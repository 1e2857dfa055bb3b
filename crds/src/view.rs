//! What a sidecar reads of its `ReplicaGroup`, and nothing else.
//!
//! A sidecar is as old as its pod, and the operator may be newer: fields that it does not use are not read, and a word that it
//! does not know concerns only the code that needs that word. A typed read of the whole object would fail on the first new
//! value of any field, and with it failover.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::{Durability, Reads, ReplicaGroup, SegmentSize, Transport, TransportChoice, spec};

/// A `ReplicaGroup`, as its sidecars see it.
#[derive(Resource, Clone, Debug, Deserialize)]
#[resource(inherit = ReplicaGroup)]
pub struct GroupView {
    /// Name, namespace and version.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: SpecView,
    /// The observed state; absent until it is first written.
    pub status: Option<StatusView>,
}

/// A value that this build knows, or any other value, which a newer operator has written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Lenient<T> {
    /// As it is known here.
    Known(T),
    /// Something else.
    Unknown(Value),
}

impl<T: Default> Default for Lenient<T> {
    fn default() -> Lenient<T> {
        Lenient::Known(T::default())
    }
}

impl<T> Lenient<T> {
    /// The value, if it is known here.
    pub fn known(&self) -> Option<&T> {
        match self {
            Lenient::Known(value) => Some(value),
            Lenient::Unknown(_) => None,
        }
    }

    /// The value, or an error that says which is not known here.
    ///
    /// # Errors
    /// A sentence for people.
    pub fn value(&self, field: &str) -> Result<&T, String> {
        match self {
            Lenient::Known(value) => Ok(value),
            Lenient::Unknown(value) => {
                Err(format!("{field} is {value}, which this sidecar does not know: it is older than the ReplicaGroup"))
            }
        }
    }
}

/// What sidecars read of a spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpecView {
    /// What an ack promises.
    pub durability: Lenient<Durability>,
    /// Size of segments.
    pub segment_size: Lenient<SegmentSize>,
    transport: Lenient<TransportChoice>,
    rdma: Option<IgnoredAny>,
    backups: Option<u8>,
    min_in_sync: Option<u8>,
    table: Option<IgnoredAny>,
    reads: Lenient<Reads>,
    /// Nobody may append.
    pub fenced: bool,
    /// An administrator's decision, as LOG/LSN.
    pub accept_loss_up_to: Option<String>,
    /// An administrator's order: the log's id.
    pub recover_from_disk: Option<String>,
}

impl SpecView {
    /// How bytes reach backups.
    ///
    /// # Errors
    /// See [`Lenient::value`].
    pub fn transport(&self) -> Result<Transport, String> {
        Ok(spec::transport(*self.transport.value("spec.transport")?, self.rdma.is_some()))
    }

    /// Copies wanted.
    pub fn backups(&self) -> u8 {
        self.backups.unwrap_or_else(spec::three)
    }

    /// Copies needed to acknowledge appends.
    pub fn min_in_sync(&self) -> u8 {
        spec::min_in_sync(self.min_in_sync, self.backups())
    }

    /// Whether the group keeps a table. Its size is told by the sidecar's options, which came with the memory for it.
    pub fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// Whether pods that are not the app's may follow the log. A word that is not known here is a new restriction.
    pub fn may_read(&self) -> bool {
        matches!(self.reads, Lenient::Known(Reads::Enabled))
    }
}

/// What sidecars read of a status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusView {
    /// Copies that the primary recruits up to.
    pub members_wanted: Option<u8>,
    /// Every backup pod.
    pub backups: Vec<BackupView>,
    /// A change of primary that was asked for.
    pub switchover: Option<Lenient<crate::Switchover>>,
    /// The config store: a [`LogStatus`](crate::LogStatus), unless somebody has edited it.
    pub log: Option<Value>,
}

/// What sidecars read of a backup pod.
#[derive(Clone, Debug, Deserialize)]
pub struct BackupView {
    /// The pod.
    pub name: String,
    /// `host:port` of its control RPC.
    pub control: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(spec: &Value, status: &Value) -> GroupView {
        let object = json!({"metadata": {"name": "orders"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What the operator of tomorrow may write.
    #[test]
    fn unknown_words_hide_nothing_else() {
        let spec = json!({
            "backups": 5, "durability": "Mirrored", "segmentSize": "1Gi", "transport": "Cxl", "deletion": "Never",
            "placement": "anywhere", "reads": "Filtered", "somethingNew": {"a": [1]},
        });
        let status = json!({
            "phase": "Hibernating", "membersWanted": 6, "transport": "Cxl", "conditions": "none",
            "backups": [{"name": "b1", "control": "h:1", "state": "Dreaming", "node": 7}],
            "switchover": {"toWhom": "app-1"}, "positions": "far", "log": {"epoch": "many"},
        });
        let view = view(&spec, &status);
        assert_eq!((view.spec.backups(), view.spec.min_in_sync()), (5, 3));
        let error = view.spec.durability.value("spec.durability").unwrap_err();
        assert!(error.contains("spec.durability is \"Mirrored\", which this sidecar does not know"), "{error}");
        assert!(!view.spec.may_read());
        assert!(view.spec.transport().is_err() && view.spec.segment_size.known().is_none());
        let status = view.status.unwrap_or_default();
        assert_eq!((status.members_wanted, status.backups[0].control.as_deref()), (Some(6), Some("h:1")));
        assert_eq!(status.switchover.as_ref().and_then(Lenient::known), None);
    }

    #[test]
    fn the_view_agrees_with_the_typed_object() {
        for spec in [
            json!({}),
            json!({"backups": 4, "rdma": {"resource": {"name": "rdma/hca"}}, "segmentSize": "64Ki"}),
            json!({"minInSync": 1, "transport": "Rdma", "durability": "Flushed", "reads": "Disabled"}),
            json!({"table": {"memory": "2Gi"}}),
        ] {
            let typed: crate::ReplicaGroupSpec = serde_json::from_value(spec.clone()).unwrap_or_else(|e| panic!("{e}"));
            let view = view(&spec, &json!({})).spec;
            assert_eq!(view.transport(), Ok(typed.transport()));
            assert_eq!((view.backups(), view.min_in_sync()), (typed.backups, typed.min_in_sync()));
            assert_eq!(view.may_read(), typed.reads == Reads::Enabled);
            assert_eq!(view.has_table(), typed.table.is_some());
            assert_eq!(view.durability, Lenient::Known(typed.durability));
            assert_eq!(view.segment_size, Lenient::Known(typed.segment_size));
        }
    }
}
