use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use futures_util::stream;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::inventory::PAGES_MAX;
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{Caller, CopyReport, CopyState, Empty};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::access::{Token, TokenOptions};
use crate::http::{self, Rights};

const TIMEOUT: Duration = Duration::from_secs(60);

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = tailwind_runtime::http::listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The token of these tests' group.
fn token() -> Token {
    static FOLDER: std::sync::LazyLock<tempfile::TempDir> = std::sync::LazyLock::new(|| tempfile::tempdir().unwrap());
    let options = TokenOptions { control_token: Some(FOLDER.path().join("token")) };
    options.load(&"db".parse().unwrap()).unwrap()
}

fn client(address: SocketAddr) -> BackupClient {
    BackupClient::new(address.to_string(), &Access::Token(token()), PeerRole::Backup)
}

fn serve(listener: TcpListener, router: Router) {
    tokio::spawn(
        http::server(router, &Access::Token(token()), Rights { readers: &[], backups: &[] })
            .serve(listener, std::future::pending()),
    );
}

async fn serving(router: Router) -> BackupClient {
    let (listener, address) = listener().await;
    serve(listener, router);
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

/// A lying backup must not write to the terminal on which an administrator looks at the group.
#[tokio::test]
async fn a_refusal_has_no_control_characters() {
    let said = Refusal::RetryLater { after_ms: 1, why: "full\u{1b}]0;mine\u{7}\r\n".to_owned() };
    let client = serving(Router::new().route("/no", post(|| async { (StatusCode::CONFLICT, Json(said)) }))).await;
    let told = Refusal::RetryLater { after_ms: 1, why: "full?]0;mine???".to_owned() };
    assert_eq!(client.call::<_, Empty>("/no", &Empty {}, TIMEOUT).await, Err(CallError::Refused(told)));
}

/// A lying backup must not fill the memory of a caller.
#[tokio::test]
async fn only_inventories_are_large() {
    let large = || async { Json([" ".repeat(2 << 20)]) };
    let too_large = || async { Json([" ".repeat(INVENTORY_SIZE_MAX)]) };
    let router = Router::new()
        .route(path::SHARE, post(large))
        .route(path::INVENTORY, post(large))
        .route(path::FENCE, post(too_large));
    let client = serving(router).await;
    let why = unreachable(client.call(path::SHARE, &Empty {}, TIMEOUT).await);
    assert!(why.contains("its answer is larger than 1048576 bytes"), "{why}");
    let page: Result<Vec<String>, _> = client.call(path::INVENTORY, &Empty {}, TIMEOUT).await;
    assert_eq!(page.unwrap()[0].len(), 2 << 20);
    let why = unreachable(client.call(path::FENCE, &Empty {}, TIMEOUT).await);
    assert!(why.contains(&format!("its answer is larger than {INVENTORY_SIZE_MAX} bytes")), "{why}");
}

#[tokio::test]
async fn an_absent_server_is_unreachable() {
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

/// Proves to a caller that it knows the token, as any server of the group does.
async fn prove(stream: &mut tokio::net::TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(!head.contains("authorization"), "the token is shown before the proof");
    let nonce = head.lines().find_map(|line| line.strip_prefix("tailwind-nonce: ")).unwrap();
    let proof = token().proof(nonce, stream.local_addr().unwrap()).unwrap();
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{proof}", proof.len());
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// A server that answers a first request, and hangs up on every connection's second one.
async fn forgetful(listener: TcpListener, requests: Arc<AtomicUsize>, hang_up_at_once: bool) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let requests = Arc::clone(&requests);
        tokio::spawn(async move {
            let mut bytes = [0; 4096];
            prove(&mut stream).await;
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
async fn a_closed_idle_connection_is_replaced() {
    let (listener, address) = listener().await;
    let requests = Arc::new(AtomicUsize::new(0));
    tokio::spawn(forgetful(listener, Arc::clone(&requests), true));
    let client = client(address);
    for _ in 0..3 {
        assert_eq!(client.call("/", &Empty {}, TIMEOUT).await, Ok(Empty {}));
        // Until the client has seen the end: then it must not matter.
        while client.0.idle.lock().unwrap().iter().any(|idle| !idle.link.sender.is_closed()) {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_sent_request_is_not_retried() {
    let (listener, address) = listener().await;
    let requests = Arc::new(AtomicUsize::new(0));
    tokio::spawn(forgetful(listener, Arc::clone(&requests), false));
    let client = client(address);
    assert_eq!(client.call("/", &Empty {}, TIMEOUT).await, Ok(Empty {}));
    unreachable(client.call("/", &Empty {}, TIMEOUT).await);
    assert_eq!(requests.load(Ordering::SeqCst), 2, "sent once, over the connection that was kept");
}

/// For a segment that ends there.
fn request_of(end: u32) -> FetchRequest {
    FetchRequest {
        group: "db".parse().unwrap(),
        identity: SegmentIdentity {
            log: LogId(1),
            segment: SegmentId(1),
            epoch: Epoch(1),
            generation: Generation(1),
            size: SegmentSize::MIN,
        },
        closure: Closure { first: Lsn(1), last: Lsn(0), end: Offset(end), chain: Chain(0) },
        check: false,
        range: None,
    }
}

#[tokio::test]
async fn a_segment_has_the_length_of_its_closure() {
    let router = Router::new().route(path::FETCH, post(|| async { vec![7_u8; 100] }));
    let client = serving(router).await;
    let mut bytes = Vec::new();
    client.fetch(&request_of(100), TIMEOUT, |piece| bytes.extend_from_slice(piece)).await.unwrap();
    assert_eq!(bytes, vec![7; 100]);
    for wanted in [99, 99_999] {
        bytes.clear();
        let fetched = client.fetch(&request_of(wanted), TIMEOUT, |piece| bytes.extend_from_slice(piece)).await;
        assert_eq!(fetched.unwrap_err().to_string(), format!("{}: 100 bytes instead of {wanted}", client.whom()));
        assert!(bytes.len() <= wanted as usize, "{} bytes handed on", bytes.len());
    }
}

#[tokio::test]
async fn a_segment_may_take_longer_than_a_silence() {
    let slow = |pieces: u64| async move {
        let piece = move |number: u64| async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            if number == pieces {
                std::future::pending::<()>().await;
            }
            Ok::<_, std::io::Error>(vec![7; 25])
        };
        Body::from_stream(stream::iter(0..4).then(piece))
    };
    let request = request_of(100);
    // Four pieces take 2.8 s.
    let whole = serving(Router::new().route(path::FETCH, post(move || slow(u64::MAX)))).await;
    let mut bytes = 0;
    whole.fetch(&request, Duration::from_millis(2500), |piece| bytes += piece.len()).await.unwrap();
    assert_eq!(bytes, 100);
    let stops = serving(Router::new().route(path::FETCH, post(move || slow(1)))).await;
    let error = stops.fetch(&request, Duration::from_millis(2500), |_| ()).await.unwrap_err().to_string();
    assert!(error.ends_with("silent for 2.5s"), "{error}");
}

#[tokio::test]
async fn heartbeats_end_with_a_reason() {
    async fn beats(State(ends): State<bool>) -> Body {
        let beats = stream::iter([Ok::<_, std::io::Error>("\n"), Ok("\n")]);
        if ends { Body::from_stream(beats) } else { Body::from_stream(beats.chain(stream::pending())) }
    }
    let router = |ends| Router::new().route(path::HEARTBEATS, get(beats)).with_state(ends);
    let silence = Duration::from_millis(200);
    let why = serving(router(true)).await.watch_heartbeats(silence, |_| {}).await;
    assert!(why.ends_with("closed its connection"), "{why}");
    let why = serving(router(false)).await.watch_heartbeats(silence, |_| {}).await;
    assert!(why.contains("silent for 200ms"), "{why}");
    let why = serving(Router::new()).await.watch_heartbeats(silence, |_| {}).await;
    assert!(why.contains("404"), "{why}");
    let (listener, address) = listener().await;
    drop(listener);
    let why = client(address).watch_heartbeats(silence, |_| {}).await;
    assert!(why.contains("connect to"), "{why}");
}

/// If several come together, the last one counts; a foreign byte says nothing.
#[tokio::test]
async fn heartbeats_say_whether_readers_look() {
    async fn beats() -> Body {
        let beats = ["\n", "+", "+\n", "\n+", "x", ""].map(Ok::<_, std::io::Error>);
        // One at a time: what is sent together arrives together.
        let beats = stream::iter(beats).then(|beat| async {
            tokio::task::yield_now().await;
            beat
        });
        Body::from_stream(beats)
    }
    let mut heard = Vec::new();
    let client = serving(Router::new().route(path::HEARTBEATS, get(beats))).await;
    client.watch_heartbeats(TIMEOUT, |followed| heard.push(followed)).await;
    assert_eq!(heard, [false, true, false, true, false]);
}

#[tokio::test]
async fn a_responding_server_is_distinguished_from_a_silent_one() {
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

#[tokio::test]
async fn the_token_is_sent_only_to_a_server_that_proves_it() {
    // It answers everything with what it was asked, and keeps what it hears.
    let (listener, address) = listener().await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
                let proof = "0".repeat(64);
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{proof}", proof.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    let why = unreachable(client(address).call("/yes", &Empty {}, TIMEOUT).await);
    assert!(why.contains("does not know the control token in"), "{why}");
    let heard = String::from_utf8(heard.lock().unwrap().clone()).unwrap();
    assert!(heard.contains("tailwind-nonce") && !heard.to_lowercase().contains("bearer"), "{heard}");
}

#[tokio::test]
async fn a_proof_cannot_be_relayed() {
    // It hands every byte on to a server of the group, and back.
    let (behind, server) = listener().await;
    serve(behind, Router::new());
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut onward = tokio::net::TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut stream, &mut onward).await) });
        }
    });
    let why = unreachable(client(address).call("/yes", &Empty {}, TIMEOUT).await);
    assert!(why.contains("does not know the control token in"), "{why}");
}

#[tokio::test]
async fn a_wrong_token_error_names_the_right_file() {
    let server = serving(Router::new().route("/yes", post(|| async { Json(Empty {}) }))).await;
    let folder = tempfile::tempdir().unwrap();
    let other = TokenOptions { control_token: Some(folder.path().join("other")) }.load(&"db".parse().unwrap()).unwrap();
    let address = (server.0.addresses)().remove(0);
    let stranger = BackupClient::new(address, &Access::Token(other.clone()), PeerRole::Backup);
    let why = unreachable(stranger.call("/yes", &Empty {}, TIMEOUT).await);
    assert!(why.contains(&other.path().display().to_string()) && why.contains("--control-token"), "{why}");
}

/// A backup as far as its name goes: refuses what is for others, as `backup::routes` does, and counts what it does.
async fn named(name: &'static str, done: Arc<AtomicUsize>) -> SocketAddr {
    let answer = move |headers: axum::http::HeaderMap| async move {
        let wanted = headers[MEMBER_HEADER].to_str().unwrap();
        if wanted != name {
            let (found, wanted) = (name.parse().unwrap(), wanted.parse().unwrap());
            return Err((StatusCode::MISDIRECTED_REQUEST, Json(Refusal::OtherMember { found, wanted })));
        }
        done.fetch_add(1, Ordering::SeqCst);
        Ok(Json(Empty {}))
    };
    let (listener, address) = listener().await;
    let router = Router::new().route("/do", post(answer));
    serve(listener, router);
    address
}

fn of_member(name: &str, addresses: Vec<SocketAddr>) -> BackupClient {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    BackupClient::of_member(name.parse().unwrap(), &Access::Token(token()), move || addresses.clone())
}

#[tokio::test]
async fn a_member_is_found_at_any_address_that_has_its_name() {
    let (done, elsewhere) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (here, other) = (named("b0", Arc::clone(&done)).await, named("b1", Arc::clone(&elsewhere)).await);
    let (silent, silent_address) = listener().await;
    let (gone, gone_address) = listener().await;
    drop(gone);
    for addresses in
        [vec![here], vec![gone_address, here], vec![silent_address, here], vec![other, here], vec![here, other]]
    {
        let client = of_member("b0", addresses.clone());
        assert_eq!(client.call("/do", &Empty {}, TIMEOUT).await, Ok(Empty {}), "{addresses:?}");
        assert_eq!(client.call("/do", &Empty {}, TIMEOUT).await, Ok(Empty {}), "{addresses:?}");
    }
    assert_eq!((done.load(Ordering::SeqCst), elsewhere.load(Ordering::SeqCst)), (10, 0));
    for addresses in [vec![other], vec![other, gone_address]] {
        let error = of_member("b0", addresses).call::<_, Empty>("/do", &Empty {}, TIMEOUT).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the backup at {other} is named b1"));
    }
    let why = unreachable(of_member("b0", vec![]).call("/do", &Empty {}, TIMEOUT).await);
    assert!(why.contains("no address is known"), "{why}");
    drop(silent);
}

#[tokio::test]
async fn what_came_back_does_not_repeat_the_address() {
    let other = named("b1", Arc::default()).await;
    let (gone, gone_address) = listener().await;
    drop(gone);
    let (_silent, silent_address) = listener().await;
    let short = Duration::from_millis(50);
    for (address, time, words) in [
        (other, TIMEOUT, "the backup there is named b1"),
        (gone_address, TIMEOUT, "connection refused"),
        (silent_address, short, "no answer within 50ms"),
    ] {
        let client = of_member("b0", vec![address]);
        let error = client.call::<_, Empty>("/do", &Empty {}, time).await.unwrap_err();
        assert_eq!(client.what_came_back(&error), words);
        assert!(!client.at_address(&error).contains("b0"), "{error}");
    }
}

/// A primary that dies in the middle of a message: what HTTP makes of that is no news for people.
#[tokio::test]
async fn a_broken_connection_is_told_in_plain_words() {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 4096];
        prove(&mut stream).await;
        let _ = stream.read(&mut bytes).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\n\r\n").await.unwrap();
    });
    let primary = PrimaryRef { id: "first".parse().unwrap(), control: address.to_string() };
    let client = BackupClient::of_primary(&primary, &Access::Token(token()));
    let mut heartbeats = client.heartbeats().await.unwrap();
    assert_eq!(heartbeats.next().await, Ok(false));
    assert_eq!(heartbeats.next().await, Err(format!("first ({address}) closed its connection")));
}

#[tokio::test]
async fn a_backup_says_what_it_can_take() {
    let headers = [(FABRIC_HEADER, "tcp"), (BUFFER_HEADER, "65536")];
    let router = Router::new().route("/do", post(move || async move { (headers, Json(Empty {})) }));
    let client = serving(router).await;
    assert_eq!(client.traits(), None);
    client.call::<_, Empty>("/do", &Empty {}, TIMEOUT).await.unwrap();
    assert_eq!(client.traits(), Some(BackupTraits { fabric: "tcp".to_owned(), buffer_bytes: 65536 }));
}

#[tokio::test]
async fn addresses_are_resolved_for_every_connection() {
    let done = Arc::new(AtomicUsize::new(0));
    let (gone, gone_address) = listener().await;
    drop(gone);
    let known = Arc::new(Mutex::new(gone_address));
    let told = Arc::clone(&known);
    let client = BackupClient::of_member("b0".parse().unwrap(), &Access::Token(token()), move || {
        vec![told.lock().unwrap().to_string()]
    });
    unreachable(client.call("/do", &Empty {}, TIMEOUT).await);
    *known.lock().unwrap() = named("b0", Arc::clone(&done)).await;
    assert_eq!(client.call("/do", &Empty {}, TIMEOUT).await, Ok(Empty {}));
}

#[tokio::test]
async fn a_client_disconnected_before_its_request_retries() {
    let (listener, address) = listener().await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        for _ in 0..3 {
            drop(listener.accept().await.unwrap());
        }
        forgetful(listener, counted, true).await;
    });
    assert_eq!(client(address).call("/", &Empty {}, TIMEOUT).await, Ok(Empty {}));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
}

fn copy(segment: u64) -> CopyReport {
    let (log, epoch, generation, size) = (LogId(1), Epoch(2), Generation(segment), SegmentSize::MIN);
    let identity = SegmentIdentity { log, segment: SegmentId(segment), epoch, generation, size };
    let closure = Closure { first: Lsn(segment), last: Lsn(segment), end: Offset(112), chain: Chain(1) };
    CopyReport { identity, state: CopyState::Closed, closure, acked: Offset(0) }
}

/// What a backup says of itself in each page.
fn head(request: &FenceRequest) -> Inventory {
    Inventory {
        member: "m1".parse().unwrap(),
        boot: BootId(1),
        log: Some(request.caller.log),
        promised: request.caller.epoch,
        trimmed: Lsn(0),
        damage: vec![],
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: Vec::new(),
        more: false,
    }
}

/// What a backup with seven copies answers that tells two at a time, and forgets a trim from `trims` calls on.
fn pages(calls: Arc<Mutex<Vec<Option<SegmentId>>>>, trims: usize) -> Router {
    let answer = async move |Json(request): Json<FenceRequest>| {
        let mut calls = calls.lock().unwrap();
        calls.push(request.after);
        let after = request.after.map_or(0, |segment| segment.0);
        let copies: Vec<CopyReport> = (after + 1..=7).take(2).map(copy).collect();
        let more = after + 2 < 7;
        Json(Inventory { trimmed: Lsn(u64::from(calls.len() >= trims)), copies, more, ..head(&request) })
    };
    Router::new().route(path::FENCE, post(answer))
}

#[tokio::test]
async fn an_inventory_is_read_page_by_page() {
    let caller = Caller { group: "db".parse().unwrap(), log: LogId(1), epoch: Epoch(3) };
    let request = FenceRequest { caller, claim: Claim(3), earlier: vec![], won: Epoch(0), joined: None, after: None };
    let ask = async |trims, newest| {
        let calls = Arc::new(Mutex::default());
        let client = serving(pages(Arc::clone(&calls), trims)).await;
        let answer = client.fence(&request, newest, TIMEOUT).await;
        let calls: Vec<u64> = calls.lock().unwrap().iter().map(|after| after.map_or(0, |after| after.0)).collect();
        (answer, calls)
    };
    let seven: Vec<CopyReport> = (1..=7).map(copy).collect();
    let (answer, calls) = ask(0, Epoch(2)).await;
    assert_eq!((answer.unwrap().copies, calls), (seven.clone(), vec![0, 2, 4, 6]));
    // It has trimmed something since: what was read before may be gone.
    let (answer, calls) = ask(3, Epoch(2)).await;
    assert_eq!((answer.unwrap().copies, calls), (seven, vec![0, 2, 4, 0, 2, 4, 6]));
    let (answer, calls) = ask(0, Epoch(1)).await;
    assert!(matches!(answer, Err(FenceError::Unbelievable(Unbelievable::Nonsense(_)))), "{answer:?}");
    assert_eq!(calls, [0]);
}

/// A lying backup sends pages without end. The caller stops where no backup can have more.
#[tokio::test]
async fn an_endless_inventory_is_not_read_to_its_end() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let answer = async move |Json(request): Json<FenceRequest>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let after = request.after.map_or(0, |segment| segment.0);
        let copies = (after + 1..=after + INVENTORY_PAGE_MAX as u64).map(copy).collect();
        Json(Inventory { copies, more: true, ..head(&request) })
    };
    let client = serving(Router::new().route(path::FENCE, post(answer))).await;
    let caller = Caller { group: "db".parse().unwrap(), log: LogId(1), epoch: Epoch(3) };
    let request = FenceRequest { caller, claim: Claim(3), earlier: vec![], won: Epoch(0), joined: None, after: None };
    let answer = client.fence(&request, Epoch(2), TIMEOUT).await;
    assert!(matches!(answer, Err(FenceError::Unbelievable(Unbelievable::Nonsense(_)))), "{answer:?}");
    assert_eq!(asked.load(Ordering::SeqCst), PAGES_MAX);
}
