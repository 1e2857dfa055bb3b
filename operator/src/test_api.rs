//! An API server for tests, which answers as the test says.

use axum::body::Bytes;
use axum::http::{Method, StatusCode, Uri};
use kube::{Client, Config};
use serde_json::{Value, json};

/// Serves on a port of this host: `answer` gets method, path with query, and body. A client of it.
pub(crate) async fn serve(
    answer: impl Fn(&Method, &str, &[u8]) -> (u16, Value) + Clone + Send + Sync + 'static,
) -> Client {
    let handle = move |method: Method, uri: Uri, body: Bytes| {
        let (code, body) = answer(&method, uri.path_and_query().map_or("/", |path| path.as_str()), &body);
        async move { (StatusCode::from_u16(code).unwrap(), axum::Json(body)) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(handle)).await });
    Client::try_from(Config::new(address.parse().unwrap())).unwrap()
}

/// The answer that something failed.
pub(crate) fn failure(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
}
