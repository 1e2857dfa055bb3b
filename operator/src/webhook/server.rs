//! Answers API servers over TLS: a pod that wants a sidecar gets one, and the creator of a pod that cannot have one is told
//! why.
//!
//! Run by [`webhook`](super). Each answer reads the pod's group, since the device that it asks for stands there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tailwind_crds::ReplicaGroup;
use tailwind_runtime::http::{self, Authentication, Limits, Server};
use tokio::time::timeout;
use tracing::info;

use super::certificate::ServingCertificate;
use super::inject;
use crate::installation::{Installation, Ownership};
use crate::metrics::Metrics;
use crate::options::Settings;
use crate::server_version::ServerVersion;

/// Where API servers send pods.
pub const PATH: &str = "/inject";
/// API servers show no certificate, and all of them may come from the address of one proxy. Each keeps a few connections.
const LIMITS: Limits = Limits {
    unauthenticated: 256,
    unauthenticated_per_source: 256,
    guests: 0,
    authenticated: 0,
    // A pod and its review; etcd takes no object beyond 1.5 MiB.
    body_bytes: 4 << 20,
    guest_body_bytes: 0,
    idle_timeout: Duration::from_secs(120),
};
/// Less than the ten seconds that API servers wait at most by default.
const LOOKUP: Duration = Duration::from_secs(5);

/// What answers are made from.
#[derive(Clone)]
pub struct Webhook {
    /// To read groups.
    pub client: Client,
    /// The sidecar's image.
    pub settings: Settings,
    /// The installation whose groups' pods get a sidecar.
    pub installation: Installation,
    /// Whether it can be a native one.
    pub version: ServerVersion,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Serves until the process ends.
pub async fn serve(address: SocketAddr, webhook: Webhook, certificate: Arc<ServingCertificate>) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choose TLS versions")?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    let listener = http::listen(address).await.context("--webhook-listen")?;
    info!(%address, "webhook listens");
    let router = Router::new().route(PATH, post(answer)).with_state(webhook);
    let authentication = Authentication::Tls(Arc::new(Arc::new(config)));
    Server { authentication, limits: LIMITS, ..Server::new(router) }.serve(listener, std::future::pending()).await;
    Ok(())
}

async fn answer(State(webhook): State<Webhook>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    let mut response = json!({"uid": request["uid"], "allowed": true});
    let result = match webhook.decide(request).await {
        Ok(Admitted::Unchanged { warning }) => {
            if let Some(warning) = warning {
                response["warnings"] = json!([warning]);
            }
            "left_alone"
        }
        Ok(Admitted::Patched { patch, warnings }) => {
            let bytes = k8s_openapi::ByteString(patch.to_string().into_bytes());
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(bytes);
            if !warnings.is_empty() {
                response["warnings"] = json!(warnings);
            }
            "injected"
        }
        Err(why) => {
            response["allowed"] = json!(false);
            response["status"] = json!({"code": 403, "message": why});
            "refused"
        }
    };
    webhook.metrics.injected(result);
    Json(json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}))
}

/// What becomes of a pod that is let in.
#[derive(Debug)]
enum Admitted {
    Unchanged { warning: Option<String> },
    Patched { patch: Value, warnings: Vec<String> },
}

impl Webhook {
    /// The error is for the user who creates the pod: without its sidecar it would start and never work.
    async fn decide(&self, request: &Value) -> Result<Admitted, String> {
        let pod = &request["object"];
        let Some((name, kind)) = inject::wanted(pod)? else { return Ok(Admitted::Unchanged { warning: None }) };
        let namespace = request["namespace"].as_str().unwrap_or_default();
        let resource = ApiResource::erase::<ReplicaGroup>(&());
        let groups: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let object = match timeout(LOOKUP, groups.get_opt(name)).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => {
                return Err(format!(
                    "ReplicaGroup {namespace}/{name} does not exist: create it first, or remove the pod's label"
                ));
            }
            Ok(Err(error)) => return Err(format!("ReplicaGroup {namespace}/{name} cannot be read: {error}")),
            Err(_) => {
                return Err(format!("ReplicaGroup {namespace}/{name} cannot be read: the API server does not answer"));
            }
        };
        match self.installation.ownership(&object) {
            Ownership::Ours | Ownership::Unclaimed => {}
            Ownership::OtherClass | Ownership::GivenUp => return Ok(Admitted::Unchanged { warning: None }),
            // Its webhook adds the sidecar, if it is still there.
            Ownership::Other(owner) => {
                let us = &self.installation.name;
                let warning = format!(
                    "operator {owner} manages ReplicaGroup {namespace}/{name} and has to add the sidecar; operator {us} does not"
                );
                return Ok(Admitted::Unchanged { warning: (!inject::has_sidecar(pod)).then_some(warning) });
            }
        }
        let group: ReplicaGroup = match serde_json::to_value(&object).and_then(serde_json::from_value) {
            Ok(group) => group,
            Err(error) => return Err(format!("ReplicaGroup {namespace}/{name} cannot be read: {error}")),
        };
        let problems = tailwind_crds::problems(&group, None);
        if !problems.is_empty() {
            return Err(format!("ReplicaGroup {namespace}/{name} has an invalid spec: {}", problems.join("; ")));
        }
        if let Some(why) = inject::refusal(&group, kind) {
            return Err(why);
        }
        let injected = inject::inject(pod, &group, kind, &self.settings, self.version)?;
        let patch = json!(json_patch::diff(pod, &injected));
        let name = ["name", "generateName"].iter().find_map(|key| pod["metadata"][key].as_str()).unwrap_or_default();
        info!(%namespace, group = group.name_any(), ?kind, pod = name, "sidecar injected");
        Ok(Admitted::Patched { patch, warnings: inject::warnings(pod, &group, kind) })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use tailwind_crds::names::{ANNOTATION_OPERATOR, LABEL_GROUP, LABEL_READS, SIDECAR_CONTAINER};

    use super::*;

    /// The webhook of an operator without a class, before an API server with this one group.
    async fn webhook(group: Value) -> Webhook {
        let handle = move || std::future::ready((StatusCode::OK, Json(group.clone())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handle)).await });
        Webhook {
            client: Client::try_from(kube::Config::new(address.parse().unwrap())).unwrap(),
            settings: Settings { sidecar_image: "image:1".to_owned(), ..Settings::default() },
            installation: Installation { name: "a/op".to_owned(), class: None },
            version: ServerVersion::TARGET,
            metrics: Arc::default(),
        }
    }

    /// What becomes of a pod of the app whose first container has this name.
    async fn admitted(container: &str, owner: Value, spec: Value) -> Result<Admitted, String> {
        labelled(json!({LABEL_GROUP: "orders"}), container, owner, spec).await
    }

    /// The same of a pod with these labels.
    async fn labelled(labels: Value, container: &str, owner: Value, spec: Value) -> Result<Admitted, String> {
        let group = json!({
            "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup",
            "metadata": {"name": "orders", "namespace": "shop", "annotations": {ANNOTATION_OPERATOR: owner}},
            "spec": spec,
        });
        let pod = json!({
            "metadata": {"name": "app-0", "labels": labels},
            "spec": {"containers": [{"name": container}]},
        });
        webhook(group).await.decide(&json!({"namespace": "shop", "object": pod})).await
    }

    #[tokio::test]
    async fn our_pods_get_the_image_of_their_group() {
        for (spec, image) in [(json!({}), "image:1"), (json!({"image": "image:pinned"}), "image:pinned")] {
            let patched = admitted("app", json!("a/op"), spec).await.unwrap();
            let Admitted::Patched { patch, .. } = patched else { panic!("{patched:?}") };
            assert!(patch.to_string().contains(&format!("\"image\":\"{image}\"")), "{patch}");
        }
    }

    #[tokio::test]
    async fn readers_get_a_sidecar_that_only_reads() {
        let reads = json!({LABEL_READS: "orders"});
        let patched = labelled(reads, "app", json!("a/op"), json!({})).await.unwrap();
        let Admitted::Patched { patch, .. } = patched else { panic!("{patched:?}") };
        let patch = patch.to_string();
        assert!(patch.contains("\"--reader\"") && patch.contains("orders-tailwind-reader"), "{patch}");
        for right in ["orders-tailwind-sidecar", "--primary-service", "--app-wait-ms"] {
            assert!(!patch.contains(right), "{right} in {patch}");
        }
    }

    #[tokio::test]
    async fn readers_are_refused_where_nobody_may_read() {
        let disabled = || json!({"reads": "Disabled"});
        let why = labelled(json!({LABEL_READS: "orders"}), "app", json!("a/op"), disabled()).await.unwrap_err();
        assert!(why.contains("ReplicaGroup shop/orders has spec.reads: Disabled"), "{why}");
        assert!(matches!(admitted("app", json!("a/op"), disabled()).await, Ok(Admitted::Patched { .. })));
        let both = json!({LABEL_READS: "orders", LABEL_GROUP: "orders"});
        let why = labelled(both, "app", json!("a/op"), json!({})).await.unwrap_err();
        assert!(why.contains("remove one of them"), "{why}");
    }

    #[tokio::test]
    async fn pods_of_other_operators_are_left_alone() {
        // Nothing but the class is read of it: its backups are no number.
        let other_class = json!({"operatorClass": "blue", "backups": "many"});
        let unchanged = admitted("app", json!("b/op"), other_class).await.unwrap();
        assert!(matches!(unchanged, Admitted::Unchanged { warning: None }), "{unchanged:?}");
        let unchanged = admitted("app", json!("b/op"), json!({})).await.unwrap();
        let Admitted::Unchanged { warning: Some(warning) } = unchanged else { panic!("{unchanged:?}") };
        assert!(warning.contains("operator b/op manages") && warning.contains("operator a/op does not"), "{warning}");
        let has_it = admitted(SIDECAR_CONTAINER, json!("b/op"), json!({})).await.unwrap();
        assert!(matches!(has_it, Admitted::Unchanged { warning: None }), "{has_it:?}");
    }
}
