//! Labels, annotations, ports, paths and object names that operator, sidecars, backups and apps agree on.
//!
//! Those that people meet are in lists with what their comments say: docs/reference/kubernetes.md is made from these.

/// Constants or functions that make names, as they stand here, and a list of them with their comments.
macro_rules! listed {
    ($list:ident: $($(#[doc = $about:literal])+ pub const $name:ident: $type:ty = $value:literal;)+) => {
        $($(#[doc = $about])+ pub const $name: $type = $value;)+
        #[doc = "Each, and what it is."]
        pub const $list: &[(listed!(@type $($type,)+), &str)] = &[$(($name, concat!($($about),+))),+];
    };
    ($list:ident: $($(#[doc = $about:literal])+ pub fn $name:ident($owner:ident: &str) -> String $body:block)+) => {
        $($(#[doc = $about])+ pub fn $name($owner: &str) -> String $body)+
        #[doc = "Each, what has such an object, and what it is."]
        pub const $list: &[(fn(&str) -> String, &str, &str)] =
            &[$(($name, stringify!($owner), concat!($($about),+))),+];
    };
    (@type $first:ty, $($more:ty,)*) => { $first };
}

/// API group of the resource, and prefix of labels and annotations.
pub const API_GROUP: &str = "replication.tailwind.dev";
/// API group of EndpointSlices.
pub const DISCOVERY_GROUP: &str = "discovery.k8s.io";

listed! { LABELS:
    /// On app pods, by their author: belongs to this group, and is given a sidecar.
    pub const LABEL_GROUP: &str = "replication.tailwind.dev/group";
    /// On pods, by their author: reads the log of this group, and is given a sidecar that only reads. Never together with
    /// `replication.tailwind.dev/group`.
    pub const LABEL_READS: &str = "replication.tailwind.dev/reads";
    /// On app pods, by the operator: `primary` on the primary alone.
    pub const LABEL_ROLE: &str = "replication.tailwind.dev/role";
    /// On backup pods: their group.
    pub const LABEL_BACKUP_OF: &str = "replication.tailwind.dev/backup-of";
    /// On a claim that its member has left, in place of the label of the group's backups.
    pub const LABEL_RETAINED_OF: &str = "replication.tailwind.dev/retained-of";
}
pub use tailwind_report::{ROLE_PRIMARY, ROLE_READER, ROLE_STANDBY};

listed! { ANNOTATIONS:
    /// On app pods: `"false"` for pods that bring their own sidecar container.
    pub const ANNOTATION_INJECT: &str = "replication.tailwind.dev/inject";
    /// On app pods, by the webhook: the image of the sidecar that was injected.
    pub const ANNOTATION_INJECTED: &str = "replication.tailwind.dev/injected";
    /// On app pods: users that may connect to the socket, such as `1000,1001`; any user of the pod if absent.
    pub const ANNOTATION_ALLOW_UID: &str = "replication.tailwind.dev/allow-uid";
    /// On a `ReplicaGroup`: its own name, before it is deleted with its log. Without it the API server refuses.
    pub const ANNOTATION_DELETE_LOG: &str = "replication.tailwind.dev/delete-log";
    /// On the definition of `ReplicaGroup`: its own name, before it is deleted with every group. Without it the API server refuses.
    pub const ANNOTATION_DELETE_DEFINITION: &str = "replication.tailwind.dev/delete-definition";
    /// On a `ReplicaGroup`: the app pod that shall become primary.
    pub const ANNOTATION_SWITCHOVER: &str = "replication.tailwind.dev/switchover";
    /// On a `ReplicaGroup`, by the operator: the installation that manages it, as the NAMESPACE/NAME of its Lease. No other touches
    /// the group while it is there.
    pub const ANNOTATION_OPERATOR: &str = "replication.tailwind.dev/operator";
    /// On backup pods: what they were made from.
    pub const ANNOTATION_TEMPLATE: &str = "replication.tailwind.dev/template-hash";
    /// On backup pods: what of the spec cannot be changed while they hold a log.
    pub const ANNOTATION_SHAPE: &str = "replication.tailwind.dev/shape";
    /// On backup pods: how many before them failed one after the other, without ever having been a member.
    pub const ANNOTATION_ATTEMPT: &str = "replication.tailwind.dev/attempt";
    /// On backup pods: the claim that the pod uses. One of another spec may use none, and have the name of a member that has one.
    pub const ANNOTATION_CLAIM: &str = "replication.tailwind.dev/claim";
    /// On the primary's EndpointSlice, by sidecars: log and epoch of the primary that it names, as `LOG/EPOCH`.
    pub const ANNOTATION_TERM: &str = "replication.tailwind.dev/term";
}

listed! { GATES:
    /// Readiness gate of backup pods: in the member set.
    pub const GATE_CAUGHT_UP: &str = "replication.tailwind.dev/caught-up";
}

listed! { CONDITIONS:
    /// Condition of backup pods, by the operator: True from the moment before it deletes the pod. False once an operator has looked
    /// again, since when no deletion from before can succeed.
    pub const CONDITION_LEAVING: &str = "replication.tailwind.dev/leaving";
}

/// Reason of the gate's condition for a pod that was in the member set and has left it. For one that was never in it, it is
/// another.
pub const LEFT_THE_SET: &str = "LeftTheSet";

listed! { FINALIZERS:
    /// Finalizer of groups whose spec asks for it.
    pub const FINALIZER: &str = "replication.tailwind.dev/retire";
}

/// Name of the sidecar's container in app pods.
pub const SIDECAR_CONTAINER: &str = "tailwind-sidecar";
/// Name of the backup's container.
pub const BACKUP_CONTAINER: &str = "backup";
/// User of sidecars and backups where they need not be root.
pub const USER: i64 = 65_532;

listed! { PORTS:
    /// Control endpoint of a sidecar, mutual TLS.
    pub const PORT_SIDECAR: u16 = 7410;
    /// Probes and metrics of a sidecar.
    pub const PORT_SIDECAR_PROBES: u16 = 7411;
    /// Control RPC of a backup, mutual TLS.
    pub const PORT_BACKUP: u16 = 7420;
    /// Probes and metrics of a backup.
    pub const PORT_BACKUP_PROBES: u16 = 7421;
    /// Where a backup takes records over TCP.
    pub const PORT_BACKUP_DATA: u16 = 7422;
}

/// Folder of the append socket, shared between sidecar and app containers.
pub const SOCKET_FOLDER: &str = "/run/tailwind";
/// The append socket; what `TAILWIND_SOCKET` says in app containers.
pub const SOCKET: &str = "/run/tailwind/log.sock";
/// Where TLS material is mounted.
pub const TLS_FOLDER: &str = "/etc/tailwind/tls";

/// Ends the name of a claim, which begins with that of its member.
pub const CLAIM_SUFFIX: &str = "-flush";

listed! { OBJECTS:
    /// Secret with the group's CA and its key; only the operator reads it.
    pub fn ca_secret(group: &str) -> String {
        format!("{group}-tailwind-ca")
    }

    /// Secret with the sidecars' certificate; also the name of their Role and its binding.
    pub fn sidecar_secret(group: &str) -> String {
        format!("{group}-tailwind-sidecar")
    }

    /// Secret with the readers' certificate; also the name of their Role and its binding.
    pub fn reader_secret(group: &str) -> String {
        format!("{group}-tailwind-reader")
    }

    /// Secret with the backups' certificate.
    pub fn backup_secret(group: &str) -> String {
        format!("{group}-tailwind-backup")
    }

    /// The claim of a member's flush volume.
    pub fn flush_claim(member: &str) -> String {
        format!("{member}{CLAIM_SUFFIX}")
    }

    /// Service that follows the primary, and the EndpointSlice in which sidecars say who that is.
    pub fn primary_service(group: &str) -> String {
        format!("{group}-primary")
    }
}
