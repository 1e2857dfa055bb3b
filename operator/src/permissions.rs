//! What the operator needs to be allowed to do, each with its reason; nothing else is in its roles.
//!
//! Printed by `tailwind-operator permissions`; the chart's roles are checked against it.

use std::fmt::Write;

/// Some verbs on some resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// Where.
    pub scope: Scope,
    /// API group.
    pub group: &'static str,
    /// Resource, perhaps with a subresource.
    pub resource: &'static str,
    /// What.
    pub verbs: &'static [&'static str],
    /// The reason for the permission.
    pub reason: &'static str,
}

/// Where something is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In all namespaces, or in that of --watch-namespace.
    Groups,
    /// In the whole cluster, also with --watch-namespace.
    Cluster,
    /// In the operator's own namespace.
    Own,
    /// The one MutatingWebhookConfiguration, by its name.
    Webhook,
}

/// All of them.
pub const PERMISSIONS: &[Permission] = &[
    allow(
        Scope::Groups,
        "replication.tailwind.dev",
        "replicagroups",
        &["get", "list", "watch", "patch"],
        "reads specs; records in an annotation that it manages the group; patches the finalizer and removes the switchover \
         annotation. It also grants the first three verbs to sidecars and readers, and can grant only what it has",
    ),
    allow(
        Scope::Groups,
        "replication.tailwind.dev",
        "replicagroups/status",
        &["patch"],
        "writes status, and grants this to each group's sidecars",
    ),
    allow(
        Scope::Groups,
        "replication.tailwind.dev",
        "replicagroups/finalizers",
        &["update"],
        "creates objects that block the deletion of their group; some clusters check this",
    ),
    allow(
        Scope::Cluster,
        "",
        "pods",
        &["list", "watch"],
        "reads what all pods request, to know which devices are free; finds the app's pods and its own",
    ),
    allow(
        Scope::Groups,
        "",
        "pods",
        &["create", "delete", "patch"],
        "creates and deletes backup pods; labels the primary's pod",
    ),
    allow(
        Scope::Groups,
        "",
        "pods/status",
        &["patch"],
        "sets the readiness gate of backup pods, and says on one that it is about to be deleted",
    ),
    allow(
        Scope::Cluster,
        "",
        "nodes",
        &["list", "watch"],
        "finds nodes for backups, and reports why others cannot take one; moves backups off nodes that are being drained",
    ),
    allow(
        Scope::Groups,
        "",
        "secrets",
        &["get", "create", "update", "patch"],
        "creates and renews the certificates of groups, by name: it cannot list or watch secrets",
    ),
    allow(
        Scope::Groups,
        "",
        "services",
        &["get", "list", "watch", "create", "patch", "delete"],
        "maintains the service that leads to the primary; recreates it if a change requires that",
    ),
    allow(
        Scope::Groups,
        "",
        "persistentvolumeclaims",
        &["get", "list", "watch", "create", "patch", "delete"],
        "creates the claims of members' flush volumes, and deletes them when others hold the log and the spec does not retain \
         them",
    ),
    allow(
        Scope::Groups,
        "discovery.k8s.io",
        "endpointslices",
        &["get", "list", "watch", "create", "patch", "delete"],
        "creates the primary's EndpointSlice, takes out addresses of pods that are gone, and grants each group's sidecars to \
         write theirs",
    ),
    allow(
        Scope::Groups,
        "discovery.k8s.io",
        "endpointslices/restricted",
        &["create"],
        "grants it to sidecars: OpenShift requires it of every writer of pod addresses",
    ),
    allow(
        Scope::Groups,
        "rbac.authorization.k8s.io",
        "roles",
        &["get", "list", "watch", "create", "patch"],
        "maintains the roles of each group's sidecars and readers",
    ),
    allow(
        Scope::Groups,
        "rbac.authorization.k8s.io",
        "rolebindings",
        &["get", "list", "watch", "create", "patch", "delete"],
        "binds these roles to the service accounts of the pods",
    ),
    allow(
        Scope::Groups,
        "policy",
        "poddisruptionbudgets",
        &["get", "list", "watch", "create", "patch", "delete"],
        "keeps drains from evicting two backups at a time; deletes the budget where it could block a drain forever",
    ),
    allow(
        Scope::Groups,
        "events.k8s.io",
        "events",
        &["create", "patch"],
        "reports what it does; patches the count of repeated events",
    ),
    allow(Scope::Own, "coordination.k8s.io", "leases", &["get", "create", "update"], "elects the replica that writes"),
    allow(Scope::Own, "", "secrets", &["get", "create", "update"], "stores the webhook's certificate"),
    allow(
        Scope::Webhook,
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        &["get", "patch"],
        "writes the CA by which API servers trust the webhook",
    ),
];

const fn allow(
    scope: Scope,
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Permission {
    Permission { scope, group, resource, verbs, reason }
}

/// The rules as YAML: for each scope a list as in a Role, each rule below its reason.
pub fn yaml() -> String {
    let mut text = String::new();
    let scopes = [
        (Scope::Groups, "groups", "in all namespaces, or in that of --watch-namespace"),
        (Scope::Cluster, "cluster", "in the whole cluster, also with --watch-namespace"),
        (Scope::Own, "own", "in the operator's own namespace"),
        (Scope::Webhook, "webhook", "of the MutatingWebhookConfiguration alone (resourceNames)"),
    ];
    // Writing to a string cannot fail.
    for (scope, name, place) in scopes {
        let _ = writeln!(text, "# {place}\n{name}:");
        for permission in PERMISSIONS.iter().filter(|permission| permission.scope == scope) {
            let Permission { group, resource, verbs, reason, .. } = permission;
            let _ = writeln!(text, "# {reason}");
            let _ = writeln!(text, "- apiGroups: [{group:?}]\n  resources: [{resource:?}]\n  verbs: {verbs:?}");
        }
    }
    text
}
