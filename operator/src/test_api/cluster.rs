//! A small cluster for tests: an API server that stores objects, and does what Kubernetes documents, also where the version of
//! the cluster tests does not yet. Each behaviour names its page.
//!
//! Used by the tests beside it, which drive [`apply`](crate::apply) against it. Policies are in [`admission`](super::admission),
//! evictions in [`eviction`](super::eviction), and what happens by itself after every request in
//! [`controllers`](super::controllers).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};

use super::admission::{self, Operation};
use super::{eviction, failure, serve_at};
use crate::server_clock::ServerClock;

/// The resource of claims.
pub(super) const CLAIMS: &str = "persistentvolumeclaims";
/// The resource of budgets.
pub(super) const BUDGETS: &str = "poddisruptionbudgets";
/// Keeps a claim while a pod uses it.
pub(super) const IN_USE: &str = "kubernetes.io/pvc-protection";
const NOW: &str = "2026-06-01T12:00:00Z";
/// The same, as HTTP has it.
const DATE_NOW: &str = "Mon, 01 Jun 2026 12:00:00 GMT";

/// What a request is about: `…/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE`.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: Option<String>,
    pub(super) resource: String,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    /// The path of the objects of this resource and namespace.
    collection: String,
}

impl Target {
    pub(super) fn of(path: &str) -> Target {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, mut rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => panic!("{path}: no path of the API"),
        };
        let mut namespace = None;
        if let ["namespaces", of, after @ ..] = rest
            && !after.is_empty()
        {
            (namespace, rest) = (Some((*of).to_owned()), after);
        }
        let text = |at: usize| rest.get(at).map(|part| (*part).to_owned());
        let collection = parts[..parts.len() - rest.len() + 1].join("/");
        Target {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace,
            resource: text(0).expect("a path of the API has a resource"),
            name: text(1),
            subresource: text(2),
            collection: format!("/{collection}"),
        }
    }

    /// Whether it is of a kind that goes when nothing is left in it.
    pub(super) fn has_contents(&self) -> bool {
        matches!(self.resource.as_str(), "namespaces" | "customresourcedefinitions")
    }

    fn object(&self) -> Option<String> {
        Some(format!("{}/{}", self.collection, self.name.as_ref()?))
    }
}

/// The objects, by path.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) all: BTreeMap<String, Value>,
    /// The last `resourceVersion`; uids are counted with it.
    version: u64,
    /// The disruption controller has not come to what happens from now on.
    pub(super) disruption_lags: bool,
    /// Fields that the definition of ReplicaGroup lacks: of the status, and of what is listed there.
    undeclared: &'static [&'static str],
    /// The object whose next deletion is put off; and what is changed by then: an object, and the patch.
    put_off: Option<(String, (String, Value))>,
    /// The resource whose deletions a webhook with side effects is asked about.
    untried: Option<String>,
    /// The object whose next deletion takes its time; and with what options it was asked for, once it was.
    delayed: Option<(String, Option<Value>)>,
}

/// A cluster. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Cluster(Arc<Mutex<Objects>>);

impl Cluster {
    /// A client, which sets `clock`. If the cluster tells the time, it is [`NOW`].
    pub(super) async fn client(&self, clock: &Arc<ServerClock>, tells_time: bool) -> Client {
        let cluster = self.clone();
        serve_at(tells_time.then_some(DATE_NOW), clock, move |method, path, body| {
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let body = serde_json::from_slice(body).unwrap_or(Value::Null);
            cluster.request(method, path, query, &body)
        })
        .await
    }

    /// A request of any client: status code and body of its answer.
    pub(super) fn request(&self, method: &Method, path: &str, query: &str, body: &Value) -> (u16, Value) {
        let mut objects = self.0.lock().unwrap();
        let is_deletion = method == Method::DELETE && body["dryRun"].is_null();
        if let Some((object, options @ None)) = &mut objects.delayed
            && is_deletion
            && object == path
        {
            *options = Some(body.clone());
            return failure(504, "Timeout");
        }
        let is_put_off = |(object, _): &mut (String, _)| method == Method::DELETE && object == path;
        let answer = match objects.put_off.take_if(is_put_off) {
            // <https://kubernetes.io/docs/concepts/cluster-administration/flow-control/>
            Some((_, (changed, patch))) => {
                objects.patch(&Target::of(&changed), "", &patch);
                failure(429, "TooManyRequests")
            }
            None => objects.request(method, &Target::of(path), query, body),
        };
        objects.settle();
        answer
    }

    /// The API server has too much to do for the next deletion of this object, and says so. By then a user has made a change.
    pub(super) fn put_off_deletion(&self, object: &str, (changed, patch): (&str, Value)) {
        self.0.lock().unwrap().put_off = Some((object.to_owned(), (changed.to_owned(), patch)));
    }

    /// The next deletion of this object is on its way for so long that its sender gives up.
    pub(super) fn delay_deletion(&self, object: &str) {
        self.0.lock().unwrap().delayed = Some((object.to_owned(), None));
    }

    /// It arrives after all.
    pub(super) fn deliver_deletion(&self) -> (u16, Value) {
        let (object, options) = self.0.lock().unwrap().delayed.take().unwrap();
        self.request(&Method::DELETE, &object, "", &options.unwrap())
    }

    /// Deletions of this resource cannot be tried: a webhook that may have side effects is asked about them.
    /// <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#side-effects>
    pub(super) fn refuse_trials(&self, resource: &str) {
        self.0.lock().unwrap().untried = Some(resource.to_owned());
    }

    /// A user creates this object.
    pub(super) fn create(&self, collection: &str, object: &Value) -> Value {
        let (code, answer) = self.request(&Method::POST, collection, "", object);
        assert_eq!(code, 201, "{answer}");
        answer
    }

    /// A user changes this object.
    pub(super) fn change(&self, path: &str, patch: &Value) {
        let (code, answer) = self.request(&Method::PATCH, path, "", patch);
        assert_eq!(code, 200, "{answer}");
    }

    /// A user deletes this object.
    pub(super) fn delete(&self, path: &str) -> (u16, Value) {
        self.request(&Method::DELETE, path, "", &Value::Null)
    }

    /// The definition of ReplicaGroup lacks these fields of the status, and of what is listed there.
    pub(super) fn undeclare(&self, fields: &'static [&'static str]) {
        self.0.lock().unwrap().undeclared = fields;
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().all.get(path).cloned()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.get(path).is_some()
    }

    /// The names of the objects of a collection.
    pub(super) fn names(&self, collection: &str) -> Vec<String> {
        let objects = self.0.lock().unwrap();
        objects.of(&Target::of(collection)).map(|object| text(&object["metadata"]["name"])).collect()
    }

    /// The disruption controller falls behind, or catches up.
    pub(super) fn let_disruption_lag(&self, lags: bool) {
        let mut objects = self.0.lock().unwrap();
        objects.disruption_lags = lags;
        objects.settle();
    }

    /// Kubelets have stopped the containers of the pods that were deleted.
    pub(super) fn stop_deleted_pods(&self) {
        let mut objects = self.0.lock().unwrap();
        objects.all.retain(|path, object| Target::of(path).resource != "pods" || !is_ending(object));
        objects.settle();
    }
}

impl Objects {
    fn request(&mut self, method: &Method, target: &Target, query: &str, body: &Value) -> (u16, Value) {
        match (method.as_str(), target.subresource.as_deref()) {
            ("GET", None) if target.name.is_none() => self.list(target, query),
            ("GET", None) => self.stored(target).map_or_else(not_found, |object| (200, object.clone())),
            ("POST", None) => self.create(target, query, body),
            ("POST", Some("eviction")) => self.evict(target),
            ("PATCH", None | Some("status")) => self.patch(target, query, body),
            ("DELETE", None) if target.name.is_none() => self.delete_all(target, body),
            ("DELETE", None) => self.delete(target, body),
            _ => failure(405, "MethodNotAllowed"),
        }
    }

    fn stored(&self, target: &Target) -> Option<&Value> {
        self.all.get(&target.object()?)
    }

    fn of<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a Value> {
        let is_in = |path: &str| Target::of(path).collection == target.collection;
        self.all.iter().filter(move |(path, _)| is_in(path)).map(|(_, object)| object)
    }

    pub(super) fn of_namespace(&self, resource: &str, namespace: Option<&String>) -> Vec<(&str, &Value)> {
        let is_of = |path: &str| {
            let other = Target::of(path);
            other.resource == resource && other.namespace.as_ref() == namespace
        };
        self.all.iter().filter(|(path, _)| is_of(path)).map(|(path, object)| (path.as_str(), object)).collect()
    }

    fn list(&self, target: &Target, query: &str) -> (u16, Value) {
        let query = query.replace("%2F", "/").replace("%3D", "=");
        let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector=")?.split_once('='));
        let is_selected =
            |object: &&Value| selector.is_none_or(|(label, value)| object["metadata"]["labels"][label] == value);
        let items: Vec<&Value> = self.of(target).filter(is_selected).collect();
        (200, json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}))
    }

    /// A name is given once. <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#names>
    pub(super) fn create(&mut self, target: &Target, query: &str, body: &Value) -> (u16, Value) {
        let mut object = body.clone();
        let name = text(&object["metadata"]["name"]);
        let target = Target { name: Some(name), ..target.clone() };
        let path = target.object().unwrap_or_default();
        if self.all.contains_key(&path) {
            return failure(409, "AlreadyExists");
        }
        if let Err(refusal) = admission::admit(self, Operation::Create, &target, Some(&object), None) {
            return refusal;
        }
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(format!("uid-{}", self.version));
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["creationTimestamp"] = json!(NOW);
        metadata["namespace"] = json!(target.namespace);
        if target.resource == BUDGETS {
            metadata["generation"] = json!(1);
        }
        if target.resource == CLAIMS {
            metadata["finalizers"] = json!([IN_USE]);
        }
        // <https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run>
        if !query.contains("dryRun=All") {
            self.all.insert(path, object.clone());
        }
        (201, object)
    }

    /// A merge patch (RFC 7386). What is applied is merged as well, which is the same as long as nobody takes out what he has
    /// applied before; so are strategic patches, but for a pod's conditions.
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply>
    fn patch(&mut self, target: &Target, query: &str, patch: &Value) -> (u16, Value) {
        let Some(old) = self.stored(target).cloned() else {
            let is_apply = query.contains("force=true") && target.subresource.is_none();
            let collection = Target { name: None, ..target.clone() };
            return if is_apply { self.create(&collection, query, patch) } else { not_found() };
        };
        if query.contains("force=true")
            && let Some(refusal) = self.refuse_undeclared(&patch["status"])
        {
            return refusal;
        }
        let named = |field: &str| patch["metadata"][field].as_str();
        // <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>
        if named("resourceVersion").is_some_and(|version| old["metadata"]["resourceVersion"] != version) {
            return failure(409, "Conflict");
        }
        // Unlike that of a deletion, the uid in a patch is no precondition but a field that cannot change:
        // <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#uids>, `BeforeUpdate` of the API server.
        if named("uid").is_some_and(|uid| old["metadata"]["uid"] != uid) {
            return failure(422, "Invalid");
        }
        let mut patch = patch.clone();
        if target.resource == "pods" {
            with_other_conditions(&mut patch, &old);
        }
        let mut object = old.clone();
        json_patch::merge(&mut object, &patch);
        if let Err(refusal) = admission::admit(self, Operation::Update, target, Some(&object), Some(&old)) {
            return refusal;
        }
        if object == old {
            return (200, old);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        // <https://kubernetes.io/docs/concepts/overview/working-with-objects/#object-spec-and-status>
        if target.resource == BUDGETS && object["spec"] != old["spec"] {
            object["metadata"]["generation"] = json!(old["metadata"]["generation"].as_u64().unwrap() + 1);
        }
        self.all.insert(target.object().unwrap_or_default(), object.clone());
        (200, object)
    }

    /// <https://github.com/kubernetes/kubernetes/issues/139253>
    fn refuse_undeclared(&self, status: &Value) -> Option<(u16, Value)> {
        let is_undeclared = |field: &&String| self.undeclared.contains(&field.as_str());
        let mut paths = Vec::new();
        for (field, value) in status.as_object().into_iter().flatten() {
            paths.extend(is_undeclared(&field).then(|| format!(".status.{field}")));
            for item in list(value) {
                let fields = item.as_object().into_iter().flat_map(|item| item.keys()).filter(is_undeclared);
                paths.extend(fields.map(|of_item| format!(".status.{field}[name={}].{of_item}", item["name"])));
            }
        }
        let errors: Vec<String> =
            paths.iter().map(|path| format!("\n  {path}: field not declared in schema")).collect();
        let message = format!("failed to create typed patch object (shop/orders): errors:{}", errors.concat());
        let status = json!({"kind": "Status", "status": "Failure", "code": 500, "message": message});
        (!paths.is_empty()).then_some((500, status))
    }

    /// <https://kubernetes.io/docs/concepts/overview/working-with-objects/finalizers/>
    pub(super) fn delete(&mut self, target: &Target, options: &Value) -> (u16, Value) {
        self.delete_as(target, target, options)
    }

    /// One after the other, until one is refused. Each is admitted by the request as it came, which names none of them.
    /// <https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/endpoints/handlers/delete.go>
    fn delete_all(&mut self, target: &Target, options: &Value) -> (u16, Value) {
        let names: Vec<String> = self.of(target).map(|object| text(&object["metadata"]["name"])).collect();
        for name in names {
            let refused = self.delete_as(target, &Target { name: Some(name), ..target.clone() }, options);
            if refused.0 != 200 {
                return refused;
            }
        }
        (200, json!({"kind": "Status", "status": "Success"}))
    }

    fn delete_as(&mut self, asked: &Target, target: &Target, options: &Value) -> (u16, Value) {
        let Some(old) = self.stored(target).cloned() else { return not_found() };
        // <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/delete-options/>
        let uid = options["preconditions"]["uid"].as_str();
        if uid.is_some_and(|uid| old["metadata"]["uid"] != uid) {
            return failure(409, "Conflict");
        }
        let version = options["preconditions"]["resourceVersion"].as_str();
        if version.is_some_and(|version| old["metadata"]["resourceVersion"] != version) {
            return failure(409, "Conflict");
        }
        let is_trial = !options["dryRun"].is_null();
        if is_trial && self.untried.as_ref() == Some(&target.resource) {
            return failure(400, "BadRequest");
        }
        if let Err(refusal) = admission::admit(self, Operation::Delete, asked, None, Some(&old)) {
            return refusal;
        }
        if !is_trial {
            self.mark_deleted(&target.object().unwrap_or_default());
        }
        (200, old)
    }

    fn evict(&mut self, target: &Target) -> (u16, Value) {
        let Some(pod) = self.stored(target) else { return not_found() };
        let budgets = self.of_namespace(BUDGETS, target.namespace.as_ref());
        match eviction::decide(pod, &budgets) {
            Ok(budget) => {
                if let Some(budget) = budget.map(str::to_owned) {
                    let status = &mut self.all.get_mut(&budget).unwrap()["status"];
                    status["disruptionsAllowed"] = json!(status["disruptionsAllowed"].as_u64().unwrap() - 1);
                    status["disruptedPods"][text(&json!(target.name))] = json!(NOW);
                }
                self.mark_deleted(&target.object().unwrap_or_default());
                (201, json!({"kind": "Status", "status": "Success"}))
            }
            Err(refusal) => refusal,
        }
    }

    /// What has a finalizer stays until it is taken off, and a pod until its kubelet has stopped it.
    /// <https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination>
    pub(super) fn mark_deleted(&mut self, path: &str) {
        let Some(object) = self.all.get_mut(path) else { return };
        let target = Target::of(path);
        let runs = target.resource == "pods" && object["spec"]["nodeName"].is_string() && !eviction::has_ended(object);
        if runs || has_finalizers(object) || target.has_contents() {
            object["metadata"]["deletionTimestamp"] = json!(NOW);
        } else {
            self.all.remove(path);
        }
    }
}

/// Conditions are merged by their types.
/// <https://kubernetes.io/docs/tasks/manage-kubernetes-objects/update-api-object-kubectl-patch/>
pub(super) fn with_other_conditions(patch: &mut Value, old: &Value) {
    let Some(changed) = patch["status"]["conditions"].as_array_mut() else { return };
    let is_other = |condition: &&Value| changed.iter().all(|other| other["type"] != condition["type"]);
    let others: Vec<Value> = list(&old["status"]["conditions"]).filter(is_other).cloned().collect();
    changed.extend(others);
    changed.sort_by_key(|condition| text(&condition["type"]));
}

pub(super) fn is_ending(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub(super) fn has_finalizers(object: &Value) -> bool {
    list(&object["metadata"]["finalizers"]).next().is_some()
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn not_found() -> (u16, Value) {
    failure(404, "NotFound")
}
