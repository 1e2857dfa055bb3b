use std::net::Ipv4Addr;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// A server that stops when the sender is dropped.
async fn start() -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    start_with(Limits::default()).await
}

async fn start_with(limits: Limits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/length", post(|body: Bytes| async move { body.len().to_string() }));
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server { limits, ..Server::new(router) };
    (address, stop, tokio::spawn(server.serve(listener, async { drop(stopped.await) })))
}

/// Everything that comes back for these bytes until the connection ends.
async fn send(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may hang up in the middle of it.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_port_in_use_is_reported() {
    let (address, _stop, _) = start().await;
    let error = listen(address).await.unwrap_err();
    assert!(error.to_string().contains("the port is in use"), "{error}");
}

#[tokio::test]
async fn an_open_endpoint_takes_small_bodies() {
    let (address, _stop, _) = start().await;
    let max = Limits::default().guest_body_bytes;
    let head = |length: usize| {
        format!("POST /length HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes()
    };
    let fits = send(address, &[head(max), vec![b'x'; max]].concat()).await;
    assert!(fits.ends_with(&max.to_string()), "{fits}");
    let too_long = send(address, &head(max + 1)).await;
    assert!(too_long.starts_with("HTTP/1.1 413") && too_long.contains("16 KiB"), "{too_long}");
}

#[tokio::test]
async fn heads_are_bounded() {
    let (address, _stop, _) = start().await;
    let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(2 * HEAD_SIZE_MAX));
    let answer = send(address, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn slow_peers_are_disconnected() {
    let (address, _stop, _) = start().await;
    let started = Instant::now();
    assert_eq!(send(address, b"GET / HTTP/1.1\r\nhost").await, "");
    assert!(started.elapsed() >= IDLE_TIMEOUT, "not before its time");
    let answer = send(address, b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn silent_connections_do_not_block_an_open_endpoint() {
    let (address, _stop, _) = start().await;
    let mut silent = Vec::new();
    for _ in 0..6 * Limits::default().unauthenticated {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(send(address, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.ends_with("hello"));
    // The first of them has been closed.
    assert_eq!(silent[0].read(&mut [0; 8]).await.unwrap_or_default(), 0);
}

#[tokio::test]
async fn a_server_that_stops_closes_its_connections() {
    let limits = Limits { idle_timeout: Duration::from_secs(3600), ..Limits::default() };
    let (address, stop, ended) = start_with(limits).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut some = [0; 8];
    stream.read_exact(&mut some).await.unwrap();
    drop(stop);
    ended.await.unwrap();
    timeout(Duration::from_secs(60), stream.read_to_end(&mut Vec::new())).await.expect("it is closed").unwrap();
}
