//! Clients of the API server, made by [`run`](crate::run). Their requests are counted: what the operator costs its cluster. From
//! the answers they know its clock.
//!
//! Both are layers around the client. A request that the client repeats, since the server has asked it to wait, counts once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use axum::http::header::DATE;
use axum::http::{Method, Request, Response};
use kube::client::{Body, DynBody};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::{MapFutureLayer, MapRequestLayer};

use crate::metrics::Metrics;
use crate::server_clock::ServerClock;

/// An answer of the API server, before it is read.
type Answer = Pin<Box<dyn Future<Output = Result<Response<Box<DynBody>>, BoxError>> + Send>>;

/// A client whose requests are counted, and whose answers set the clock.
pub(crate) fn counted_client(
    config: Config,
    metrics: &Arc<Metrics>,
    clock: &Arc<ServerClock>,
) -> Result<Client, kube::Error> {
    let clock = Arc::clone(clock);
    let time = MapFutureLayer::new(move |answer: Answer| {
        let (clock, asked) = (Arc::clone(&clock), Instant::now());
        async move {
            let answer = answer.await?;
            answer.headers().get(DATE).into_iter().for_each(|date| clock.heard(date, asked.elapsed()));
            Ok::<_, BoxError>(answer)
        }
    });
    let metrics = Arc::clone(metrics);
    let count = MapRequestLayer::new(move |request: Request<Body>| {
        let (verb, resource) = attributes(request.method(), request.uri().path(), request.uri().query());
        metrics.requested(verb, resource);
        request
    });
    Ok(kube::client::ClientBuilder::try_from(config)?.with_layer(&time).with_layer(&count).build())
}

/// The same, and no request is repeated. What the API server puts off is decided again: while the client waited to repeat a
/// deletion, those could die that it rests on.
pub(crate) fn unrepeating_client(
    mut config: Config,
    metrics: &Arc<Metrics>,
    clock: &Arc<ServerClock>,
) -> Result<Client, kube::Error> {
    config.default_retry = false;
    counted_client(config, metrics, clock)
}

/// Verb and resource of a request, as roles have them: `patch`, `replicagroups/status`.
/// See <https://kubernetes.io/docs/reference/access-authn-authz/authorization/#determine-the-request-verb>.
fn attributes(method: &Method, path: &str, query: Option<&str>) -> (&'static str, String) {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    // What comes before the resource: `api/VERSION` or `apis/GROUP/VERSION`.
    let skipped = match parts.clone().next() {
        Some("api") => 2,
        Some("apis") => 3,
        // Such as `/version`, which is no resource.
        _ => 0,
    };
    let mut rest: Vec<&str> = parts.by_ref().skip(skipped).collect();
    if let ["namespaces", _, _, ..] = rest.as_slice() {
        rest.drain(..2);
    }
    let resource = match rest.as_slice() {
        [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
        [resource, ..] => (*resource).to_owned(),
        [] => "none".to_owned(),
    };
    let is_one = skipped == 0 || rest.len() > 1;
    let is_watch = query.is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")));
    let verb = match *method {
        Method::GET if is_watch => "watch",
        Method::GET if is_one => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if is_one => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    };
    (verb, resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_verbs_and_resources_of_roles() {
        const API: &str = "/apis/replication.tailwind.dev/v1alpha1";
        for (method, uri, expected) in [
            (Method::GET, "/version", "get version"),
            (Method::GET, "/api/v1/pods?&limit=500", "list pods"),
            (Method::GET, "/api/v1/pods?&watch=true&timeoutSeconds=290", "watch pods"),
            (Method::GET, "/api/v1/namespaces/shop/pods?&labelSelector=watch%3Dtrue", "list pods"),
            (Method::GET, "/api/v1/namespaces/shop/secrets/orders-tailwind-ca", "get secrets"),
            (Method::POST, "/api/v1/namespaces/shop/pods?", "create pods"),
            (Method::DELETE, "/api/v1/namespaces/shop/pods/b", "delete pods"),
            (Method::PATCH, "/api/v1/namespaces/shop/pods/b/status?", "patch pods/status"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/t/leases/o", "update leases"),
            (Method::GET, &format!("{API}/replicagroups?watch=1"), "watch replicagroups"),
            (Method::PATCH, &format!("{API}/namespaces/s/replicagroups/o/status"), "patch replicagroups/status"),
            // No names of objects become labels.
            (Method::GET, "/api/v1/namespaces/shop", "get namespaces"),
            (Method::GET, "/", "get none"),
        ] {
            let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
            let (verb, resource) = attributes(&method, path, query);
            assert_eq!(format!("{verb} {resource}"), expected, "{method} {uri}");
        }
    }

    #[tokio::test]
    async fn each_request_of_the_client_is_counted() {
        let metrics = Arc::new(Metrics::default());
        // Nobody answers there: requests that fail count as well.
        let config = Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = counted_client(config, &metrics, &Arc::default()).unwrap();
        client.apiserver_version().await.unwrap_err();
        let text = metrics.snapshot().text();
        let line = "tailwind_operator_api_requests_total{verb=\"get\",resource=\"version\"} 1";
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
