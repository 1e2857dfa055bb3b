//! Does what a plan says: each action is one call to the API server, and each can be repeated.
//!
//! Called by [`controller`](crate::controller). An action that fails does not keep the others, nor the status, from being
//! written, but for what [follows](Action::follows) it; what has failed is written there.

mod definition;
pub(crate) mod leaving;
mod recheck;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use rcgen::SanType;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tailwind_crds::names::{
    ANNOTATION_ATTEMPT, ANNOTATION_SWITCHOVER, CLAIM_SUFFIX, FINALIZER, GATE_CAUGHT_UP, LABEL_BACKUP_OF,
    LABEL_RETAINED_OF, LABEL_ROLE, LEFT_THE_SET, ROLE_PRIMARY, ca_secret, flush_claim,
};
use tailwind_crds::{ReplicaGroup, ReplicaGroupStatus};
use tracing::info;

use crate::authority;
use crate::cache::group_ref;
use crate::context::Context;
use crate::error::{Cause, Doing, Error};
use crate::objects::claim::{ClaimEnd, ClaimStep};
use crate::objects::{Kind, LABEL_INSTANCE, Owned, owner, stored};
use crate::observed::Observed;
use crate::plan::certificates::{CertificateRole, CertificateStep};
use crate::plan::news::news;
use crate::plan::{Action, Notice, Plan, status};
use crate::secrets::{self, CaSecret};

/// The field manager: the name under which the API server records the operator's writes.
pub(crate) const MANAGER: &str = "tailwind-operator";

/// Carries out a plan. The first error comes back, when all else is done.
pub(crate) async fn apply(context: &Context, observed: &Observed, plan: &Plan) -> Result<(), Error> {
    let executor = Executor::new(context, observed);
    let Done { mut notices, failures } = executor.act_all(&plan.actions).await;
    let mut status = plan.status.clone();
    let texts = failures.iter().map(|(action, error)| failure_text(action, error)).collect();
    status::with_failures(&mut status, observed, &texts);
    let written = executor.write_status(&status).await;
    if written.is_ok() {
        notices.extend(plan.notices.iter().cloned());
    }
    crate::events::publish(&context.recorder, &observed.group, &notices).await;
    failures.into_iter().next().map_or(written, |(_, error)| Err(error))
}

/// Carries out what is done to a group whose status is not written. The first error comes back, when all else is done.
pub(crate) async fn act(context: &Context, observed: &Observed, actions: &[Action]) -> Result<(), Error> {
    let Done { failures, .. } = Executor::new(context, observed).act_all(actions).await;
    failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// What has become of actions.
#[derive(Default)]
struct Done<'a> {
    /// Of those that were done.
    notices: Vec<Notice>,
    failures: Vec<(&'a Action, Error)>,
}

/// A failure as it stands in the status. The next try has another name for the pod, which means nothing to people.
fn failure_text(action: &Action, error: &Error) -> String {
    let text = error.to_string();
    let name = match action {
        Action::Claim(claim) => claim.object.name_any(),
        Action::Create(pod) => pod.name_any(),
        _ => return text,
    };
    let member = name.strip_suffix(CLAIM_SUFFIX).unwrap_or(&name);
    let stem = member.rsplit_once('-').map_or(member, |(stem, _)| stem);
    text.replace(member, &format!("{stem}-…"))
}

struct Executor<'a> {
    context: &'a Context,
    observed: &'a Observed,
    group: &'a ReplicaGroup,
    name: String,
    namespace: String,
    pods: Api<Pod>,
    groups: Api<ReplicaGroup>,
}

impl<'a> Executor<'a> {
    fn new(context: &'a Context, observed: &'a Observed) -> Executor<'a> {
        let group = &observed.group;
        let (name, namespace) = (group.name_any(), group.namespace().unwrap_or_default());
        Executor {
            pods: Api::namespaced(context.client.clone(), &namespace),
            groups: Api::namespaced(context.client.clone(), &namespace),
            context,
            observed,
            group,
            name,
            namespace,
        }
    }

    /// One after the other. One that fails keeps only those undone that [follow](Action::follows) it.
    async fn act_all<'b>(&self, actions: &'b [Action]) -> Done<'b> {
        let mut done = Done::default();
        let mut undone: Vec<&Action> = Vec::new();
        for action in actions {
            if let Some(before) = undone.iter().find(|before| action.follows(before)) {
                info!(%action, %before, "not done, since it follows what could not be done");
                undone.push(action);
                continue;
            }
            match self.act(action).await {
                Ok(()) => {
                    self.context.metrics.acted(action);
                    info!(%action, "done");
                    done.notices.extend(action.notice());
                }
                Err(error) => {
                    undone.push(action);
                    done.failures.push((action, error));
                }
            }
        }
        done
    }

    async fn act(&self, action: &Action) -> Result<(), Error> {
        let doing = || action.to_string();
        let edit = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match action {
            Action::Finalizer(wanted) => {
                let mut finalizers = self.group.finalizers().to_vec();
                finalizers.retain(|finalizer| finalizer != FINALIZER);
                finalizers.extend(wanted.then(|| FINALIZER.to_owned()));
                // With the version that was seen: a list is replaced as a whole.
                let patch = json!({"metadata": {
                    "finalizers": finalizers,
                    "resourceVersion": self.group.metadata.resource_version,
                }});
                // The answer may be one that this operator cannot read.
                let groups = groups(self.context, &self.namespace);
                groups.patch(&self.name, &edit, &Patch::Merge(patch)).await.doing(doing)?;
            }
            Action::ForgetSwitchover => {
                let patch = json!({"metadata": {"annotations": {ANNOTATION_SWITCHOVER: null}}});
                self.groups.patch(&self.name, &edit, &Patch::Merge(patch)).await.doing(doing)?;
            }
            Action::Certificates(step) => self.certificates(*step).await?,
            Action::Apply(owned) => recheck::put(&self.api_of(owned.kind), owned).await?,
            Action::Remove(owned) => {
                let Owned { kind, object } = &**owned;
                let deleted = self.api_of(*kind).delete(&object.name_any(), &of_uid(object.uid())).await;
                gone(deleted.map(drop)).doing(doing)?;
            }
            Action::ClearEndpoints(owned) => {
                let Owned { kind, object } = &**owned;
                let patch = json!({
                    "metadata": {"resourceVersion": object.metadata.resource_version},
                    "endpoints": [],
                });
                let cleared = self.api_of(*kind).patch(&object.name_any(), &edit, &Patch::Merge(patch)).await;
                gone(cleared.map(drop)).doing(doing)?;
            }
            Action::Claim(owned) => self.create_claim(owned, doing).await?,
            Action::OwnClaim { name, uid, owned } => {
                let owners = if *owned { json!([owner(self.group)]) } else { json!([]) };
                recheck::own(&self.api_of(Kind::Claim), (name, uid), owners, doing).await?;
            }
            Action::Create(pod) => create(&self.pods, &**pod, stored::lost_of_pod, doing).await?,
            Action::Delete(removal) => {
                recheck::still_claimed(&self.api_of(Kind::Claim), self.observed, &removal.licence, doing).await?;
                // Before the others are looked at: of two removals that rest on each other, one sees the mark of the other.
                let leaver = leaving::announce(&self.pods, removal, self.observed.now).await.doing(doing)?;
                let apis = (&self.api_of(Kind::DisruptionBudget), &self.pods);
                recheck::still_held(&self.context.prober, apis, self.observed, removal, doing).await?;
                // Last, since a member that the primary has let go does not know it, and reports what it did before.
                recheck::same_log(&self.groups, &self.name, self.observed.log(), doing).await?;
                let delete_pod = async |dry_run: bool| {
                    let Some(preconditions) = leaver.clone() else { return Ok(()) };
                    let preconditions = Some(preconditions);
                    let params = DeleteParams { dry_run, preconditions, ..DeleteParams::default() };
                    found(self.pods.delete(&removal.name, &params).await).map(drop)
                };
                // The claim first: it goes when its pod has gone, and no other pod takes it up in between. But it stays the
                // group's while its pod may not be deleted.
                if let Some(claim) = &removal.claim {
                    match delete_pod(true).await {
                        // Where a webhook may have side effects, no deletion can be tried.
                        Err(kube::Error::Api(status)) if status.code == 400 => {}
                        tried => tried.doing(doing)?,
                    }
                    self.end_claim(&removal.name, claim).await.doing(doing)?;
                }
                delete_pod(false).await.doing(doing)?;
            }
            Action::Gate { pod, caught_up, left } => {
                let (status, reason) = match (caught_up, left) {
                    (true, _) => ("True", "Member"),
                    (false, true) => ("False", LEFT_THE_SET),
                    (false, false) => ("False", "NotInTheSet"),
                };
                let now = jiff::Timestamp::from_second(self.observed.now.as_second()).unwrap_or(self.observed.now);
                let patch = json!({"status": {"conditions": [{
                    "type": GATE_CAUGHT_UP,
                    "status": status,
                    "reason": reason,
                    "lastTransitionTime": now.to_string(),
                }]}});
                gone(self.pods.patch_status(pod, &edit, &Patch::Strategic(patch)).await.map(drop)).doing(doing)?;
            }
            Action::Role { pod, primary } => {
                let role = primary.then_some(ROLE_PRIMARY);
                let patch = json!({"metadata": {"labels": {LABEL_ROLE: role}}});
                gone(self.pods.patch(pod, &edit, &Patch::Merge(patch)).await.map(drop)).doing(doing)?;
            }
        }
        Ok(())
    }

    /// One that is there already keeps its disk.
    async fn create_claim(&self, Owned { kind, object }: &Owned, doing: impl Fn() -> String) -> Result<(), Error> {
        let lost = |written: &DynamicObject, stored: &DynamicObject| stored::lost(&written.metadata, &stored.metadata);
        match create(&self.api_of(*kind), object, lost, doing).await {
            Err(Error { source: Cause::Api(kube::Error::Api(status)), .. }) if status.is_already_exists() => Ok(()),
            created => created,
        }
    }

    /// Deletes a member's claim, or leaves it to administrators: then it is no longer one of the group's. Or keeps it for the
    /// next pod.
    async fn end_claim(&self, member: &str, ClaimStep { uid, end }: &ClaimStep) -> Result<(), kube::Error> {
        let (api, name) = (self.api_of(Kind::Claim), flush_claim(member));
        let change = match end {
            ClaimEnd::Delete => return gone(api.delete(&name, &of_uid(Some(uid.clone()))).await.map(drop)),
            ClaimEnd::Retain => {
                let labels = json!({LABEL_BACKUP_OF: null, LABEL_INSTANCE: null, LABEL_RETAINED_OF: self.name});
                json!({"labels": labels, "ownerReferences": []})
            }
            ClaimEnd::Keep { attempt } => json!({"annotations": {ANNOTATION_ATTEMPT: attempt.to_string()}}),
        };
        let edit = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let mut patch = json!({"metadata": change});
        patch["metadata"]["uid"] = json!(uid);
        gone(api.patch(&name, &edit, &Patch::Merge(patch)).await.map(drop))
    }

    fn api_of(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.context.client.clone(), &self.namespace, &kind.resource(self.context.server))
    }

    async fn certificates(&self, step: CertificateStep) -> Result<(), Error> {
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.namespace);
        let name = ca_secret(&self.name);
        let now = Timestamp::now();
        // Read again at each step: the step before may have changed it.
        let secret = secrets.get_opt(&name).await.doing(|| format!("read secret {name}"))?;
        let version = secret.as_ref().and_then(|secret| secret.metadata.resource_version.clone());
        let ca = secret.as_ref().and_then(CaSecret::read);
        match (step, ca) {
            (CertificateStep::MakeAuthority, _) | (CertificateStep::RenewAuthority, None) => {
                let current = self.new_authority(now)?;
                self.write_ca(&secrets, &CaSecret { current, previous: None, resource_version: version }).await
            }
            (CertificateStep::RenewAuthority, Some(ca)) => {
                let current = self.new_authority(now)?;
                let previous = Some(ca.current.certificate);
                self.write_ca(&secrets, &CaSecret { current, previous, ..ca }).await
            }
            (CertificateStep::ForgetPrevious, Some(ca)) => {
                self.write_ca(&secrets, &CaSecret { previous: None, ..ca }).await
            }
            (CertificateStep::Issue(role), Some(ca)) => self.issue(&secrets, role, &ca, now).await,
            (CertificateStep::Bundle(role), Some(ca)) => {
                let name = secrets::secret_name(&self.name, role);
                let patch = Patch::Merge(secrets::bundle_patch(&ca.bundle(), now));
                let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                secrets.patch(&name, &params, &patch).await.doing(|| format!("write secret {name}"))?;
                Ok(())
            }
            // Gone between two looks: the next reconcile makes it.
            (CertificateStep::ForgetPrevious | CertificateStep::Issue(_) | CertificateStep::Bundle(_), None) => Ok(()),
        }
    }

    fn new_authority(&self, now: Timestamp) -> Result<authority::Pair, Error> {
        authority::authority(&authority::name(&self.namespace, &self.name), now)
            .map_err(|error| self.no_certificate(error))
    }

    async fn issue(
        &self,
        secrets: &Api<Secret>,
        role: CertificateRole,
        ca: &CaSecret,
        now: Timestamp,
    ) -> Result<(), Error> {
        let uri = authority::identity(&self.name, secrets::role_name(role));
        let uri = uri.as_str().try_into().map_err(|error| self.no_certificate(error))?;
        let authority_name = authority::name(&self.namespace, &self.name);
        let pair = authority::leaf(&authority_name, &ca.current.key, vec![SanType::URI(uri)], now)
            .map_err(|error| self.no_certificate(error))?;
        let name = secrets::secret_name(&self.name, role);
        let secret = secrets::leaf(self.group, role, &pair, &ca.bundle(), now);
        let params = PatchParams::apply(MANAGER).force();
        secrets.patch(&name, &params, &Patch::Apply(secret)).await.doing(|| format!("write secret {name}"))?;
        Ok(())
    }

    /// Creates the secret if there was none, and replaces it if it has not changed since it was read. Otherwise another writer
    /// was faster, and its secret stays.
    async fn write_ca(&self, secrets: &Api<Secret>, ca: &CaSecret) -> Result<(), Error> {
        let name = ca_secret(&self.name);
        let doing = || format!("write secret {name}");
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let secret: Secret =
            serde_json::from_value(ca.secret(self.group)).map_err(kube::Error::SerdeError).doing(doing)?;
        if ca.resource_version.is_some() {
            secrets.replace(&name, &params, &secret).await.doing(doing)?;
        } else {
            secrets.create(&params, &secret).await.doing(doing)?;
        }
        Ok(())
    }

    fn no_certificate(&self, error: rcgen::Error) -> Error {
        Error {
            doing: format!("make a certificate for {}/{}", self.namespace, self.name),
            source: Cause::Certificate(error),
        }
    }

    /// Writes the status if it is time to tell what is new in it.
    async fn write_status(&self, status: &ReplicaGroupStatus) -> Result<(), Error> {
        let (group, news) = (group_ref(&self.namespace, &self.name), news(self.observed, status));
        match self.context.last_looks.wait(&group, news, Instant::now()) {
            Some(Duration::ZERO) => {
                write_status(self.context, &self.namespace, json!({"name": self.name}), status).await
            }
            _ => Ok(()),
        }
    }
}

/// Writes a status in which nothing is new but what people read, to the very version of the group that it was made from: that
/// came from a cache, and what is written must not put anything back.
pub(crate) async fn write_texts(
    context: &Context,
    group: &ReplicaGroup,
    status: &ReplicaGroupStatus,
) -> Result<(), Error> {
    let metadata = json!({"name": group.name_any(), "resourceVersion": group.metadata.resource_version});
    write_status(context, &group.namespace().unwrap_or_default(), metadata, status).await
}

/// Writes what the operator has to say in a status, and takes out what it no longer says.
async fn write_status(
    context: &Context,
    namespace: &str,
    metadata: Value,
    status: &ReplicaGroupStatus,
) -> Result<(), Error> {
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let mut body = json!({
        "apiVersion": ReplicaGroup::api_version(&()),
        "kind": ReplicaGroup::kind(&()),
        "metadata": metadata,
        "status": status,
    });
    let params = PatchParams::apply(MANAGER).force();
    let written = patch_status(context, namespace, &name, &params, &Patch::Apply(&body)).await;
    match written {
        Err(error) if definition::take_out_undeclared(&mut body, &error) => {
            patch_status(context, namespace, &name, &params, &Patch::Apply(&body)).await?;
        }
        written => written?,
    }
    context.last_looks.status_written(&group_ref(namespace, &name), Instant::now());
    Ok(())
}

/// Changes these fields of a status, and leaves the others as they are.
pub(crate) async fn merge_status(context: &Context, namespace: &str, name: &str, patch: &Value) -> Result<(), Error> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    patch_status(context, namespace, name, &params, &Patch::Merge(patch)).await
}

async fn patch_status<P: Serialize + Debug>(
    context: &Context,
    namespace: &str,
    name: &str,
    params: &PatchParams,
    patch: &Patch<P>,
) -> Result<(), Error> {
    groups(context, namespace).patch_status(name, params, patch).await.doing(|| "write status".to_owned())?;
    Ok(())
}

/// Groups, whether they can be read or not.
fn groups(context: &Context, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<ReplicaGroup>(&());
    Api::namespaced_with(context.client.clone(), namespace, &resource)
}

fn of_uid(uid: Option<String>) -> DeleteParams {
    DeleteParams { preconditions: Some(Preconditions { uid, resource_version: None }), ..DeleteParams::default() }
}

/// Creates an object, unless admission takes away what the operator knows it by: then the next plan would make another one. That
/// is tried first. What is created and deleted again wakes the group, which would do the same at once, without end.
async fn create<K>(
    api: &Api<K>,
    object: &K,
    lost: impl Fn(&K, &K) -> Option<String>,
    doing: impl Fn() -> String,
) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    let params = |dry_run| PostParams { dry_run, field_manager: Some(MANAGER.to_owned()) };
    // Where a webhook has side effects, the trial alone may be refused.
    let tried = api.create(&params(true), object).await.ok();
    if let Some(lost) = tried.and_then(|tried| lost(object, &tried)) {
        return Err(Error { doing: doing(), source: Cause::Altered(lost) });
    }
    let made = api.create(&params(false), object).await.doing(&doing)?;
    match lost(object, &made) {
        Some(lost) => withdraw(api, &made, lost, doing).await,
        None => Ok(()),
    }
}

/// Deletes what was created a moment ago, and differs from the trial: nobody has used it yet.
async fn withdraw<K>(api: &Api<K>, made: &K, lost: String, doing: impl Fn() -> String) -> Result<(), Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let parameters = DeleteParams { grace_period_seconds: Some(0), ..of_uid(made.uid()) };
    gone(api.delete(&made.name_any(), &parameters).await.map(drop)).doing(&doing)?;
    Err(Error { doing: doing(), source: Cause::Altered(lost) })
}

/// What a request has met; nothing if that is gone.
fn found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        met => met.map(Some),
    }
}

/// What is gone, or another of the same name by now, needs nothing more.
fn gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        other => other,
    }
}
