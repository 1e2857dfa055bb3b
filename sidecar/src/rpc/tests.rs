use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use futures_util::stream;
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::Empty;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = http::listen_openly((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn client(address: SocketAddr) -> BackupClient {
    BackupClient::new(address.to_string(), None, Role::Backup)
}

async fn serving(router: Router) -> BackupClient {
    let (listener, address) = listener().await;
    tokio::spawn(http::serve(listener, router, None, std::future::pending()));
    client(address)
}

fn unreachable(result: Result<Empty, CallError>) -> String {
    match result {
        Err(CallError::Unreachable(why)) => why,
        other => panic!("unreachable was expected, not {other:?}"),
    }
}

#[tokio::test]
async fn replies_and_refusals_come_back_as_types() {
    let refusal = Refusal::Fenced { promised: Epoch(7) };
    let said = refusal.clone();
    let router = Router::new()
        .route("/yes", post(|Json(Empty {})| async { Json(Empty {}) }))
        .route("/no", post(|| async { (StatusCode::CONFLICT, Json(said)) }))
        .route("/what", post(|| async { (StatusCode::BAD_GATEWAY, "a proxy") }))
        .route("/odd", post(|| async { "nonsense" }));
    let client = serving(router).await;
    assert_eq!(client.call("/yes", &Empty {}, TIMEOUT).await, Ok(Empty {}));
    assert_eq!(client.peer_ip(), Some(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(client.call::<_, Empty>("/no", &Empty {}, TIMEOUT).await, Err(CallError::Refused(refusal)));
    assert!(unreachable(client.call("/what", &Empty {}, TIMEOUT).await).contains("502"));
    assert!(unreachable(client.call("/odd", &Empty {}, TIMEOUT).await).contains("not understood"));
}

#[tokio::test]
async fn nobody_there_is_told() {
    let (listener, address) = listener().await;
    drop(listener);
    let why = unreachable(client(address).call("/yes", &Empty {}, TIMEOUT).await);
    assert!(why.contains(&format!("connect to {address}")), "{why}");
}

#[tokio::test]
async fn silence_ends_with_the_timeout() {
    let (_listener, address) = listener().await;
    let why = unreachable(client(address).call("/yes", &Empty {}, Duration::from_millis(50)).await);
    assert!(why.contains("no answer within 50ms"), "{why}");
}

/// A server that answers a first request, and hangs up on every connection's second one.
async fn forgetful(listener: TcpListener, requests: Arc<AtomicUsize>, hang_up_at_once: bool) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut bytes = [0; 4096];
            for turn in 0.. {
                let Ok(read @ 1..) = stream.read(&mut bytes).await else { return };
                assert!(bytes[..read].ends_with(b"{}"), "the request came in one piece");
                requests.fetch_add(1, Ordering::SeqCst);
                if turn == 1 {
                    return;
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                if hang_up_at_once {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn an_idle_connection_that_ended_is_replaced() {
    let (listener, address) = listener().await;
    let requests = Arc::new(AtomicUsize::new(0));
    tokio::spawn(forgetful(listener, Arc::clone(&requests), true));
    let client = client(address);
    for _ in 0..3 {
        assert_eq!(client.call("/", &Empty {}, TIMEOUT).await, Ok(Empty {}));
        // Until the client has seen the end: then it must not matter.
        while client.0.idle.lock().unwrap().iter().any(|idle| !idle.link.is_closed()) {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_repeated() {
    let (listener, address) = listener().await;
    let requests = Arc::new(AtomicUsize::new(0));
    tokio::spawn(forgetful(listener, Arc::clone(&requests), false));
    let client = client(address);
    assert_eq!(client.call("/", &Empty {}, TIMEOUT).await, Ok(Empty {}));
    unreachable(client.call("/", &Empty {}, TIMEOUT).await);
    assert_eq!(requests.load(Ordering::SeqCst), 2, "sent once, over the connection that was kept");
}

#[tokio::test]
async fn a_segment_has_the_length_of_its_closure() {
    let router = Router::new().route(path::FETCH, post(|| async { vec![7_u8; 100] }));
    let client = serving(router).await;
    let request = |end: u32| FetchRequest {
        group: "db".parse().unwrap(),
        identity: SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(1),
            epoch: Epoch(1),
            generation: Generation(1),
            size: SegmentSize::MIN,
        },
        closure: Closure { first: Lsn(1), last: Lsn(0), end: Offset(end), chain: Chain(0) },
    };
    assert_eq!(client.fetch(&request(100), TIMEOUT).await.unwrap(), vec![7; 100]);
    let why = client.fetch(&request(99_999), TIMEOUT).await.unwrap_err().to_string();
    assert!(why.contains("100 bytes instead of 99999"), "{why}");
}

#[tokio::test]
async fn heartbeats_end_with_a_reason() {
    async fn beats(State(ends): State<bool>) -> Body {
        let beats = stream::iter([Ok::<_, std::io::Error>("\n"), Ok("\n")]);
        if ends { Body::from_stream(beats) } else { Body::from_stream(beats.chain(stream::pending())) }
    }
    let router = |ends| Router::new().route(path::HEARTBEATS, get(beats)).with_state(ends);
    let silence = Duration::from_millis(200);
    let why = serving(router(true)).await.watch_heartbeats(silence).await.why;
    assert!(why.contains("connection closed"), "{why}");
    let Silence { why, heard } = serving(router(false)).await.watch_heartbeats(silence).await;
    assert!(why.contains("silent for 200ms") && heard, "{why}");
    let Silence { why, heard } = serving(Router::new()).await.watch_heartbeats(silence).await;
    assert!(why.contains("404") && !heard, "{why}");
    let (listener, address) = listener().await;
    drop(listener);
    let why = client(address).watch_heartbeats(silence).await.why;
    assert!(why.contains("connect to"), "{why}");
}

#[tokio::test]
async fn whoever_answers_at_all_can_be_told_from_the_silent() {
    let router = Router::new()
        .route(path::HEARTBEATS, get(|| async { Body::from_stream(stream::pending::<std::io::Result<&str>>()) }));
    assert_eq!(serving(router).await.answers(TIMEOUT).await, Ok(()));
    let (listener, address) = listener().await;
    let why = client(address).answers(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert!(why.contains("silent for 200ms"), "{why}");
    drop(listener);
    let why = client(address).answers(TIMEOUT).await.unwrap_err().to_string();
    assert!(why.contains("connect to"), "{why}");
}
