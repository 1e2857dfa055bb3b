//! A sidecar in Kubernetes whose options do not fit the `ReplicaGroup`: it says so, and founds no group.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// An API server with this one group, which nobody has started yet. It counts what would change the group.
async fn serve(group: Value, writes: Arc<AtomicUsize>) -> String {
    let answer = move |method: Method, uri: Uri, Query(query): Query<Value>| {
        let (group, writes) = (group.clone(), Arc::clone(&writes));
        async move { answer(&group, &writes, &method, &uri, &query) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    format!("http://{address}")
}

fn answer(group: &Value, writes: &AtomicUsize, method: &Method, uri: &Uri, query: &Value) -> Response {
    if method != Method::GET {
        writes.fetch_add(1, Ordering::SeqCst);
        return StatusCode::FORBIDDEN.into_response();
    }
    if uri.path().ends_with("/replicagroups/orders") {
        return axum::Json(group.clone()).into_response();
    }
    if query["watch"].is_null() {
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": [group]});
        return axum::Json(list).into_response();
    }
    Body::from_stream(futures_util::stream::pending::<Result<String, Infallible>>()).into_response()
}

/// The first line of a sidecar's log that names the kind, and how often it has tried to write.
async fn says(spec: Value, options: &[&str]) -> (String, usize) {
    let group = json!({
        "apiVersion": "replication.tailwind.dev/v1alpha1", "kind": "ReplicaGroup", "spec": spec,
        "metadata": {"name": "orders", "namespace": "shop", "uid": "1", "resourceVersion": "1"},
    });
    let writes = Arc::new(AtomicUsize::new(0));
    let server = serve(group, Arc::clone(&writes)).await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}], "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.args(["run", "--replica-group", "shop/orders", "--name", "a", "--listen", "127.0.0.1:0"]).args(options);
    command.arg("--socket").arg(folder.path().join("socket"));
    command.arg("--control-token").arg(folder.path().join("token"));
    command.env("KUBECONFIG", &path).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut sidecar = command.spawn().unwrap();
    let log = BufReader::new(sidecar.stderr.take().unwrap());
    let read = tokio::task::spawn_blocking(move || {
        let mut seen = Vec::new();
        for line in log.lines().map_while(Result::ok) {
            if line.contains("this ReplicaGroup keeps") {
                return line;
            }
            seen.push(line);
        }
        panic!("it has ended: {}", seen.join("\n"));
    });
    let line = tokio::time::timeout(std::time::Duration::from_secs(60), read).await;
    sidecar.kill().unwrap();
    sidecar.wait().unwrap();
    (line.expect("it says nothing of the kind").unwrap(), writes.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_founds_no_group_of_another_kind() {
    let (line, writes) = says(json!({"table": {"memory": "1Gi"}}), &[]).await;
    assert!(line.contains("keeps a table") && line.contains("recreate its pod"), "{line}");
    assert_eq!(writes, 0);
    let (line, writes) = says(json!({}), &["--table", "1Gi"]).await;
    assert!(line.contains("keeps a log") && line.contains("recreate its pod"), "{line}");
    assert_eq!(writes, 0);
}
