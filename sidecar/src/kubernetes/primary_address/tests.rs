//! Against a small API server that keeps one slice, checks resource versions and answers watches; that a real one does so is
//! shown by the cluster's tests.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kube::Config;
use std::collections::HashMap;
use tailwind_protocol::config::Kind;
use tailwind_protocol::ids::{Claim, Version};
use tokio::sync::watch;

use super::*;

const LOG: &str = "0000000000000000000000000000000a";

fn config(epoch: u64) -> Configuration {
    Configuration {
        log: LOG.parse().unwrap(),
        kind: Kind::Log,
        epoch: Epoch(epoch),
        claim: Claim(epoch),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(1),
        primary: PrimaryRef { id: "app-0".parse().unwrap(), control: "10.0.0.1:7410".to_owned() },
        members: Vec::new(),
    }
}

fn term(epoch: u64) -> SliceTerm {
    SliceTerm(LOG.parse().unwrap(), Epoch(epoch))
}

/// The slice, and the only API version that it is served under.
#[derive(Clone)]
struct Server {
    slice: watch::Sender<Value>,
    version: &'static str,
}

impl Server {
    fn new(version: &'static str) -> Server {
        let metadata = json!({"name": "orders-primary", "namespace": "shop", "resourceVersion": "1"});
        let slice = json!({
            "apiVersion": format!("discovery.k8s.io/{version}"), "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4",
        });
        Server { slice: watch::channel(slice).0, version }
    }

    /// A sidecar of this pod.
    async fn sidecar(&self, pod: &str, ip: &str) -> Arc<PrimaryAddress> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(handle).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let client = Client::try_from(Config::new(address.parse().unwrap())).unwrap();
        let me = PrimaryRef { id: pod.parse().unwrap(), control: format!("{ip}:7410") };
        Arc::new(PrimaryAddress::new(client, "shop".to_owned(), "orders-primary".to_owned(), &me).unwrap())
    }

    /// Another client writes.
    fn write(&self, patch: &Value) {
        self.slice.send_modify(|slice| {
            json_patch::merge(slice, patch);
            let version: u64 = slice["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            slice["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        });
    }

    async fn wait_for(&self, such: impl FnMut(&Value) -> bool) {
        let mut slice = self.slice.subscribe();
        timeout(Duration::from_secs(60), slice.wait_for(such)).await.unwrap().unwrap();
    }

    fn leads_to(&self) -> Value {
        self.slice.borrow()["endpoints"][0]["targetRef"]["name"].clone()
    }
}

async fn handle(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    let Some(path) = uri.path().strip_prefix(&format!("/apis/discovery.k8s.io/{}", server.version)) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let now = server.slice.borrow().clone();
    let version = now["metadata"]["resourceVersion"].clone();
    match (method, path) {
        (Method::GET, "") => {
            axum::Json(json!({"kind": "APIResourceList", "groupVersion": "", "resources": []})).into_response()
        }
        (Method::GET, "/namespaces/shop/endpointslices/orders-primary") => axum::Json(now).into_response(),
        (Method::GET, "/namespaces/shop/endpointslices") => {
            assert_eq!(query["fieldSelector"], "metadata.name=orders-primary", "more is not allowed");
            if !query.contains_key("watch") {
                let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": [now]});
                return axum::Json(list).into_response();
            }
            let from = query["resourceVersion"].clone();
            let changes =
                futures_util::stream::unfold((server.slice.subscribe(), from), |(mut slice, seen)| async move {
                    let now =
                        slice.wait_for(|slice| slice["metadata"]["resourceVersion"] != json!(seen)).await.ok()?.clone();
                    let seen = now["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                    let line = format!("{}\n", json!({"type": "MODIFIED", "object": now}));
                    Some((Ok::<_, Infallible>(line), (slice, seen)))
                });
            Body::from_stream(changes).into_response()
        }
        (Method::PATCH, "/namespaces/shop/endpointslices/orders-primary") => {
            let patch: Value = serde_json::from_slice(&body).unwrap();
            if patch["metadata"]["resourceVersion"] != version {
                let status = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "changed"});
                return (StatusCode::CONFLICT, axum::Json(status)).into_response();
            }
            server.write(&patch);
            axum::Json(server.slice.borrow().clone()).into_response()
        }
        (method, path) => panic!("{method} {path}: a sidecar is not allowed to do that"),
    }
}

fn publish(sidecar: &Arc<PrimaryAddress>, config: Configuration) -> tokio::task::JoinHandle<Infallible> {
    let sidecar = Arc::clone(sidecar);
    tokio::spawn(async move { sidecar.publish(&config).await })
}

#[tokio::test]
async fn the_slice_leads_to_the_primary_and_stays_so() {
    for version in ["v1", "v1beta1"] {
        let server = Server::new(version);
        let sidecar = server.sidecar("app-0", "10.0.0.5").await;
        let task = publish(&sidecar, config(3));
        server.wait_for(|slice| slice["endpoints"][0]["addresses"] == json!(["10.0.0.5"])).await;
        assert_eq!(server.leads_to(), "app-0");
        assert_eq!(server.slice.borrow()["metadata"]["annotations"][ANNOTATION_TERM], format!("{LOG}/3"));
        // The operator believed the pod gone, or an administrator has edited it.
        server.write(&json!({"endpoints": []}));
        server.wait_for(|slice| slice["endpoints"][0]["addresses"] == json!(["10.0.0.5"])).await;
        task.abort();
    }
}

#[tokio::test]
async fn an_older_term_never_replaces_a_newer_one() {
    let server = Server::new("v1");
    let (old, new) = (server.sidecar("app-0", "10.0.0.5").await, server.sidecar("app-1", "10.0.0.6").await);
    let new = publish(&new, config(10));
    server.wait_for(|slice| slice["endpoints"][0]["targetRef"]["name"] == "app-1").await;
    let late = publish(&old, config(9));
    // It looks again after any change.
    for n in 0..50 {
        server.write(&json!({"metadata": {"labels": {"n": n.to_string()}}}));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(server.leads_to(), "app-1");
    }
    old.withdraw(&config(9)).await;
    assert_eq!(server.leads_to(), "app-1");
    // Once it wins again it stands there.
    late.abort();
    new.abort();
    let again = publish(&old, config(11));
    server.wait_for(|slice| slice["endpoints"][0]["targetRef"]["name"] == "app-0").await;
    again.abort();
    drop(again.await);
    old.withdraw(&config(11)).await;
    assert_eq!(server.slice.borrow()["endpoints"], json!([]));
}

#[tokio::test]
async fn the_term_of_another_log_or_garbage_is_replaced() {
    for written in [&format!("{}/99", LOG.replace('a', "b")), "99", "", "x/y"] {
        let server = Server::new("v1");
        let somebody = json!([{"addresses": ["10.9.9.9"], "conditions": {"ready": true}}]);
        server.write(&json!({"metadata": {"annotations": {ANNOTATION_TERM: written}}, "endpoints": somebody}));
        let task = publish(&server.sidecar("app-0", "10.0.0.5").await, config(1));
        server.wait_for(|slice| slice["endpoints"][0]["addresses"] == json!(["10.0.0.5"])).await;
        task.abort();
    }
}

#[test]
fn terms_of_one_log_are_ordered() {
    let other = SliceTerm("0000000000000000000000000000000b".parse().unwrap(), Epoch(9));
    assert!(term(9).is_before(term(10)) && !term(10).is_before(term(9)) && !term(9).is_before(term(9)));
    assert!(!term(1).is_before(other) && !other.is_before(term(99)));
}
