//! API servers for tests: one that answers as the test says, and a small [cluster](cluster::Cluster) that behaves as Kubernetes
//! documents, with a [shop](shop::Shop) in it whose group the operator looks after.

mod admission;
mod backup;
mod claims;
mod cluster;
mod controllers;
mod endpoints;
mod eviction;
mod holders;
mod kubelet;
mod late;
mod shop;
mod unreadable;

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::DATE;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::IntoResponse;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher::Event;
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::api_requests::unrepeating_client;
use crate::cache::{Cache, Writers};
use crate::context::{Context, Failures};
use crate::installation::Installation;
use crate::last_look::LastLooks;
use crate::options::Settings;
use crate::rollout_turns::RolloutTurns;
use crate::server_clock::ServerClock;
use crate::server_version::ServerVersion;

/// Serves on a port of this host: `answer` gets method, path with query, and body. A client of it.
pub(crate) async fn serve(
    answer: impl Fn(&Method, &str, &[u8]) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Client {
    serve_at(None, &Arc::default(), answer).await
}

/// The same. The server's clock stands at this date, if it is given; the client sets `clock` by it.
async fn serve_at(
    date: Option<&'static str>,
    clock: &Arc<ServerClock>,
    answer: impl Fn(&Method, &str, &[u8]) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Client {
    let handle = move |method: Method, uri: Uri, body: Bytes| {
        let (code, body) = answer(&method, uri.path_and_query().map_or("/", |path| path.as_str()), &body);
        let mut response = (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response();
        response.headers_mut().extend(date.map(|date| (DATE, HeaderValue::from_static(date))));
        async move { response }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(handle)).await });
    unrepeating_client(Config::new(address.parse().unwrap()), &Arc::default(), clock).unwrap()
}

/// The answer that something failed.
pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
}

/// What reconciles use, with watches that have brought nothing yet; and what brings it.
pub(crate) fn context(client: Client) -> (Context, Writers) {
    let (cache, mut writers) = Cache::new(ServerVersion::TARGET);
    writers.groups.apply_watcher_event(&Event::InitDone);
    writers.objects.iter_mut().for_each(|(_, writer)| writer.apply_watcher_event(&Event::InitDone));
    cache.nodes.apply(Event::InitDone);
    cache.pods.apply(Event::InitDone);
    let context = Context {
        recorder: Recorder::new(client.clone(), Reporter { controller: "test".to_owned(), instance: None }),
        client,
        clock: Arc::default(),
        server: ServerVersion::TARGET,
        settings: Settings { sidecar_image: "sidecar".to_owned(), ..Settings::default() },
        installation: Installation { name: "ops/tailwind".to_owned(), class: None },
        rollout_turns: Arc::new(RolloutTurns::new(3, Arc::default())),
        cache,
        last_looks: LastLooks::default(),
        metrics: Arc::default(),
        prober: Arc::default(),
        failures: Failures::default(),
    };
    (context, writers)
}
