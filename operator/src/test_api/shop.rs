//! A group of the shop in a [`Cluster`], with the pods that the operator makes for it. A reconcile looks, plans and applies as
//! the controller does; between these steps tests let others act.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::Method;
use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::names::{ANNOTATION_OPERATOR, LABEL_GROUP};
use tailwind_report::report::{BackupReport, Report};

use super::backup::{BOOT, Backup};
use super::cluster::Cluster;
use crate::apply::{act, apply};
use crate::cache::group_ref;
use crate::context::Context;
use crate::controller::reconcile_group;
use crate::error::Error;
use crate::observe::{Observation, observe};
use crate::observed::{Observed, is_running};
use crate::plan::{Action, plan};

pub(super) const GROUPS: &str = "/apis/replication.tailwind.dev/v1alpha1/namespaces/shop/replicagroups";
pub(super) const ORDERS: &str = "/apis/replication.tailwind.dev/v1alpha1/namespaces/shop/replicagroups/orders";
pub(super) const PODS: &str = "/api/v1/namespaces/shop/pods";
pub(super) const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";

const LOG: &str = "0123456789abcdef0123456789abcdef";
/// Pods of the app are there. Nobody listens.
const ADDRESS: &str = "127.99.7.";
/// Backups answer within milliseconds, on a machine that does nothing else.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Shop {
    pub(super) cluster: Cluster,
    context: Context,
    /// By pod.
    running: Mutex<BTreeMap<String, Backup>>,
}

impl Shop {
    /// The group `orders` of this spec, and nothing else.
    pub(super) async fn open(spec: Value) -> Shop {
        Shop::open_at(spec, false).await
    }

    /// The same. Its API server tells the time if that is wanted.
    async fn open_at(spec: Value, tells_time: bool) -> Shop {
        let cluster = Cluster::default();
        cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
        let group = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {"name": "orders", "annotations": {ANNOTATION_OPERATOR: "ops/tailwind"}, "generation": 1},
            "spec": spec,
        });
        cluster.create(GROUPS, &group);
        let clock = Arc::default();
        let (context, _) = super::context(cluster.client(&clock, tells_time).await);
        let context = Context { clock, ..context };
        Shop { cluster, context, running: Mutex::default() }
    }

    /// What there is, and what each backup that runs reports by now.
    pub(super) async fn look(&self) -> Observed {
        self.context.prober.forget();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        loop {
            let found = observe(&self.context, &group_ref("shop", "orders")).await.unwrap();
            let Observation::Complete(observed) = found else { panic!("the group is there") };
            let running = observed.backups.iter().filter(|pod| is_running(pod)).map(ResourceExt::name_any);
            let silent: Vec<String> = running.filter(|name| !observed.reports.contains_key(name)).collect();
            if silent.is_empty() {
                return *observed;
            }
            assert!(Instant::now() < deadline, "no answer from {silent:?}");
        }
    }

    /// Plans from what was observed, and does it.
    pub(super) async fn act(&self, observed: &Observed) -> Result<(), Error> {
        apply(&self.context, observed, &plan(observed)).await
    }

    /// Does a part of what was planned.
    pub(super) async fn act_on(&self, observed: &Observed, actions: &[Action]) -> Result<(), Error> {
        act(&self.context, observed, actions).await
    }

    pub(super) async fn reconcile(&self) {
        self.act(&self.look().await).await.unwrap();
    }

    /// A reconcile as the controller begins it, whatever the group is like.
    pub(super) async fn reconcile_any(&self) {
        reconcile_group(&self.context, &group_ref("shop", "orders")).await.unwrap();
    }

    /// A group of this spec whose backups all run, with disks where they have claims.
    pub(super) async fn with_backups(spec: Value) -> Shop {
        Shop::open(spec).await.started().await
    }

    /// The same, with an API server that tells the time.
    pub(super) async fn with_backups_and_time(spec: Value) -> Shop {
        Shop::open_at(spec, true).await.started().await
    }

    async fn started(self) -> Shop {
        let shop = self;
        shop.reconcile().await;
        for (number, name) in shop.backups().iter().enumerate() {
            shop.start(name, &format!("n{number}")).await;
        }
        for name in shop.cluster.names(CLAIMS) {
            shop.cluster
                .change(&format!("{CLAIMS}/{name}"), &json!({"spec": {"volumeName": format!("disk-of-{name}")}}));
        }
        shop
    }

    /// The kubelet of a node starts this backup, which holds nothing yet.
    pub(super) async fn start(&self, pod: &str, node: &str) {
        let backup = Backup::start("orders", pod).await;
        let status = json!({
            "phase": "Running", "podIP": backup.address,
            "conditions": [{"type": "ContainersReady", "status": "True"}],
        });
        self.cluster.change(&format!("{PODS}/{pod}"), &json!({"spec": {"nodeName": node}, "status": status}));
        self.running.lock().unwrap().insert(pod.to_owned(), backup);
    }

    /// Ends the backup that runs in this pod.
    pub(super) async fn stop(&self, pod: &str) {
        let backup = self.running.lock().unwrap().remove(pod);
        backup.unwrap().stop().await;
    }

    /// Changes what this backup reports.
    pub(super) fn report(&self, pod: &str, change: impl FnOnce(&mut Report<BackupReport>)) {
        self.running.lock().unwrap()[pod].report(change);
    }

    /// The report of this backup cannot be read.
    pub(super) fn withhold_report(&self, pod: &str) {
        self.running.lock().unwrap()[pod].withhold_report();
    }

    /// The app's pod writes a log to these backups, and the operator has seen it.
    pub(super) async fn write_log(&self, members: &[String]) {
        self.start_log(members);
        self.reconcile().await;
    }

    /// The app's pod writes a log to these backups.
    pub(super) fn start_log(&self, members: &[String]) {
        self.start_app("app-0", 100);
        let member = |name: &String| json!({"name": name, "boot": BOOT, "control": format!("{ADDRESS}1:7420")});
        let log = json!({
            "id": LOG, "epoch": 1, "wonEpoch": 1, "claim": "0", "version": 1,
            "primary": {"name": "app-0", "control": format!("{ADDRESS}100:7410")},
            "members": members.iter().map(member).collect::<Value>(),
        });
        self.cluster.change(ORDERS, &json!({"status": {"log": log}}));
        for member in members {
            self.report(member, |Report { content, .. }| {
                (content.log, content.epoch, content.copies) = (Some(LOG.to_owned()), 1, 1);
            });
        }
    }

    /// A pod of the app runs, at this address.
    pub(super) fn start_app(&self, name: &str, address: u8) {
        let pod = json!({
            "metadata": {"name": name, "labels": {LABEL_GROUP: "orders"}},
            "spec": {"nodeName": "n9", "containers": [{"name": "app"}]},
            "status": {"phase": "Running", "podIP": format!("{ADDRESS}{address}")},
        });
        self.cluster.create(PODS, &pod);
    }

    /// The code that the eviction of this pod is answered.
    pub(super) fn evict(&self, pod: &str) -> u16 {
        self.cluster.request(&Method::POST, &format!("{PODS}/{pod}/eviction"), "", &Value::Null).0
    }

    /// A policy admits no such request from now on.
    pub(super) fn forbid(&self, operation: &str, group: &str, resource: &str) {
        const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        let rule =
            json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]});
        let never = json!([{"expression": "false", "message": format!("nobody may {operation} {resource}")}]);
        let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": never});
        self.cluster.create(POLICIES, &json!({"metadata": {"name": "never"}, "spec": spec}));
        let spec = json!({"policyName": "never", "validationActions": ["Deny"]});
        let bindings = POLICIES.replace("policies", "policybindings");
        self.cluster.create(&bindings, &json!({"metadata": {"name": "never"}, "spec": spec}));
    }

    /// The pods that the operator has made.
    pub(super) fn backups(&self) -> Vec<String> {
        self.cluster.names(PODS).into_iter().filter(|name| name.starts_with("orders-backup-")).collect()
    }

    pub(super) fn pod(&self, name: &str) -> Option<Value> {
        self.cluster.get(&format!("{PODS}/{name}"))
    }

    /// The claim of this member.
    pub(super) fn claim(&self, member: &str) -> Option<Value> {
        self.cluster.get(&format!("{CLAIMS}/{member}-flush"))
    }
}
