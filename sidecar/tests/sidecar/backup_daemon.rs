//! The backup daemon as a process: what a primary can do with it, what outlives which death, what strangers cannot do.

mod access;
mod disk;
mod mirror;
mod primary;
mod quarantine;
mod reading;
mod reports;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::authority::{Authority, Files};
use crate::daemon::Daemon;
use primary::Primary;
use rustix::process::Signal;
use serde_json::{Value, json};
use tailwind_fabric::shm::{ShmReader, ShmSender};
use tailwind_fabric::tcp::{TcpReader, TcpSender};
use tailwind_fabric::{
    AppendBuffer, Channel, ChannelAnswer, ChannelError, FabricKind, Grant, Offer, ReadChannel, ReadError, ReadGrant,
    Reader, RemoteBuffer, Sender, SharedBuffer,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{Claim, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, ConnectReply, ConnectRequest, CopyState, DropRequest, Empty, FenceRequest, FetchRequest,
    FlushReply, FlushRequest, Inventory, MirrorReply, MirrorRequest, OpenReply, OpenRequest, Purpose, ReadConnectReply,
    ReadConnectRequest, Refusal, ShareReply, ShareRequest, TrimRequest, path,
};
use tailwind_protocol::scan;
use tailwind_protocol::segment::SegmentWriter;
use tailwind_report::report::BackupReport;
use tailwind_sidecar::access::{Access, TokenOptions};
use tailwind_sidecar::rpc::{BackupClient, CallError};
use tailwind_sidecar::tls::{PeerRole, Tls};

const TIMEOUT: Duration = Duration::from_secs(60);
/// It looks into its flush folder every 5 s, and less often where that takes long.
const LOOKS_AGAIN: Duration = Duration::from_secs(120);
const LOG: LogId = LogId(0xdb);

/// Each epoch has one claim here, its own number.
fn fence(caller: Caller) -> FenceRequest {
    FenceRequest { claim: Claim(caller.epoch.0), earlier: Vec::new(), caller, won: Epoch(0), joined: None, after: None }
}

/// What the daemon's user may show; made by the daemon at its first start.
fn token(daemon: &Daemon) -> Access {
    let options = TokenOptions { control_token: Some(daemon.token()) };
    Access::Token(options.load(&"db".parse().unwrap()).unwrap())
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn closed_file(daemon: &Daemon, segment: u64) -> std::path::PathBuf {
    daemon.flush_dir().join(format!("segment-{segment:016}.closed"))
}

fn open_file(daemon: &Daemon, segment: u64) -> std::path::PathBuf {
    daemon.flush_dir().join(format!("segment-{segment:016}.open"))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, CallError>) -> Refusal {
    match result {
        Err(CallError::Refused(refusal)) => refusal,
        other => panic!("a refusal was expected, not {other:?}"),
    }
}

/// A segment's whole life, then every kind of death and what is left after it.
async fn life(fabric: FabricKind) {
    let name = fabric.to_string();
    let mut daemon = Daemon::started(&["--fabric", &name]);
    let primary = Primary::new(&daemon, fabric, 1);
    let born = primary.fence().await;
    assert_eq!((born.promised, born.log, born.copies.len()), (Epoch(1), Some(LOG), 0));

    // Fence, connect, open, write, close, flush, fetch.
    let first = primary.write_closed(1, 1).await;
    let second = primary.write_closed(2, 11).await;
    until("closed segments reach the disk", async || {
        closed_file(&daemon, 1).exists() && closed_file(&daemon, 2).exists()
    })
    .await;
    for (identity, closure) in [first, second] {
        for check in [true, false] {
            let bytes = primary.fetch_with(identity, closure, check).await.unwrap();
            assert!(scan::verify(&bytes, &identity, &closure), "check {check}");
        }
    }

    // Some bytes of a segment are sent as the whole of it has them, checked before or not; others than it has are refused.
    let (identity, closure) = second;
    let whole = primary.fetch(identity, closure).await.unwrap();
    for check in [true, false] {
        for range in [0..1, 64..200, closure.end.0 - 1..closure.end.0, 0..closure.end.0] {
            let bytes = primary.fetch_range(identity, closure, check, range.clone()).await.unwrap();
            assert_eq!(bytes, whole[range.start as usize..range.end as usize], "check {check}");
        }
        for range in [0..0, 8..closure.end.0 + 1, u32::MAX - 1..u32::MAX] {
            let refused = refusal(primary.fetch_range(identity, closure, check, range).await);
            assert!(matches!(refused, Refusal::BadRequest { .. }), "{refused}");
        }
    }

    // Trim deletes whole closed segments, in memory and on disk, but for the last.
    let trim = TrimRequest { caller: primary.caller(), below: Lsn(11) };
    let Empty {} = primary.client.call(path::TRIM, &trim, TIMEOUT).await.unwrap();
    until("trimmed segments leave the disk", async || !closed_file(&daemon, 1).exists()).await;
    assert!(matches!(refusal(primary.fetch(first.0, first.1).await), Refusal::NoSuchCopy { .. }));
    assert!(closed_file(&daemon, 2).exists());

    // The process dies in the middle of a segment: the memory has it all.
    let mut open = primary.open(3, 21, Durability::Memory).await;
    open.append(7);
    let tail = open.writer.closure();
    daemon.kill();
    daemon.start();
    assert!(matches!(open.post(), Err(ChannelError::Revoked | ChannelError::Disconnected)), "its life is over");
    let primary = Primary::new(&daemon, fabric, 2);
    let found = primary.inventory().await;
    assert_eq!((found.boot, found.promised, found.trimmed), (born.boot, Epoch(1), Lsn(11)));
    let report: Vec<_> = found.copies.iter().map(|copy| (copy.identity.segment.0, copy.state, copy.closure)).collect();
    assert_eq!(report, [(2, CopyState::Closed, second.1), (3, CopyState::Open, tail)]);

    // An orderly end brings the open segment to disk; then the memory is not needed.
    assert_eq!(primary.fence().await.copies, found.copies);
    daemon.terminate(Signal::TERM);
    assert!(open_file(&daemon, 3).exists());
    daemon.lose_memory();
    daemon.start();
    let primary = Primary::new(&daemon, fabric, 3);
    let found_again = primary.inventory().await;
    assert_eq!((found_again.boot, found_again.promised), (born.boot, Epoch(2)));
    assert_eq!(found_again.copies, found.copies);

    // What was fenced stays fenced, over every restart.
    let stale = Primary::new(&daemon, fabric, 1);
    assert_eq!(refusal(stale.lend(9, Durability::Memory).await), Refusal::Fenced { promised: Epoch(2) });
    assert_eq!(refusal(stale.connect().await), Refusal::Fenced { promised: Epoch(2) });

    // A primary closes the tail and continues. Now the memory holds what the disk does not.
    primary.fence().await;
    let identity = found.copies[1].identity;
    let close = CloseRequest { caller: primary.caller(), identity, closure: tail };
    let Empty {} = primary.client.call(path::CLOSE, &close, TIMEOUT).await.unwrap();
    until("the tail is closed on disk", async || closed_file(&daemon, 3).exists() && !open_file(&daemon, 3).exists())
        .await;
    primary.open(4, 28, Durability::Memory).await.append(3);
    daemon.kill();
    daemon.lose_memory();
    daemon.start();
    let primary = Primary::new(&daemon, fabric, 4);
    let reborn = primary.inventory().await;
    assert_ne!(reborn.boot, born.boot, "it has lost what it held");
    assert_eq!(reborn.promised, Epoch(3), "but not what it promised");
    let segments: Vec<_> = reborn.copies.iter().map(|copy| (copy.identity.segment.0, copy.state)).collect();
    assert_eq!(segments, [(2, CopyState::Closed), (3, CopyState::Closed)]);
}

#[tokio::test]
async fn life_over_shm() {
    life(FabricKind::Shm).await;
}

#[tokio::test]
async fn life_over_tcp() {
    life(FabricKind::Tcp).await;
}

#[tokio::test]
async fn in_flushed_mode_the_disk_alone_keeps_the_identity() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Flushed).await;
    open.append(5);
    primary.flush(&open).await;
    let flushed = open.writer.closure();
    open.append(5);
    primary.flush(&open).await;
    let flushed_again = open.writer.closure();
    assert!(flushed_again.end > flushed.end);
    // Written, and not asked to be flushed: nobody has acknowledged these.
    open.append(5);

    // A restart over the memory must keep the file: the power may still fail.
    daemon.kill();
    daemon.start();
    let survived = Primary::new(&daemon, FabricKind::Shm, 1).inventory().await;
    assert_eq!((survived.boot, survived.copies[0].closure), (born.boot, open.writer.closure()));
    daemon.kill();
    daemon.lose_memory();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 1).inventory().await;
    assert_eq!(found.boot, born.boot);
    let copy = found.copies[0];
    assert_eq!((copy.state, copy.closure), (CopyState::Open, flushed_again), "everything that was flushed");
}

/// Rows that cannot be read keep their buffers, so that the files of what was in them may find none. The backup starts all the
/// same, and says so.
#[tokio::test]
async fn unreadable_rows_are_no_reason_not_to_start() {
    let mut daemon = Daemon::started(&["--buffers", "3"]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    let mut ends = Vec::new();
    for segment in 1..=2 {
        let mut open = primary.open(segment, segment * 10, Durability::Flushed).await;
        open.append(5);
        primary.flush(&open).await;
        ends.push(open.writer.closure());
    }
    daemon.kill();
    let table = daemon.pool().join("slots.table");
    let mut rows = std::fs::read(&table).unwrap();
    rows[4096..4096 + 2 * 2048].fill(0);
    std::fs::write(&table, rows).unwrap();
    daemon.start();

    let found = Primary::new(&daemon, FabricKind::Shm, 1).inventory().await;
    let closures: Vec<Closure> = found.copies.iter().map(|copy| copy.closure).collect();
    assert_eq!((found.boot, closures.as_slice()), (born.boot, &ends[..1]));
    assert!(found.damage.iter().any(|damage| damage.contains("no buffer is free for it")), "{:?}", found.damage);
    assert!((1..=2).all(|segment| open_file(&daemon, segment).exists()), "the bytes are kept");
}

#[tokio::test]
async fn dropped_segments_do_not_return() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Flushed).await;
    open.append(5);
    primary.flush(&open).await;
    let primary = Primary::new(&daemon, FabricKind::Shm, 2);
    let Inventory { copies, .. } = primary.fence().await;
    assert_eq!(copies.len(), 1);
    let request = DropRequest { caller: primary.caller(), copies };
    let Empty {} = primary.client.call(path::DROP, &request, TIMEOUT).await.unwrap();
    assert_eq!(primary.inventory().await.copies, []);
    daemon.terminate(Signal::TERM);
    daemon.lose_memory();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 2).inventory().await;
    assert_eq!(found.copies, []);
}

/// Waits for a metric; that of the quarantine looks into the folder now and then.
async fn until_metric(daemon: &Daemon, name: &str, value: u64) {
    let deadline = Instant::now() + LOOKS_AGAIN;
    while metric_if_known(daemon, name) != Some(value) {
        assert!(Instant::now() < deadline, "{name} {value}, not {:?}", metric_if_known(daemon, name));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn power_failure_is_a_shutdown() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Battery).await;
    open.append(5);
    daemon.terminate(Signal::POWER);
    assert!(open.post().is_err(), "nobody writes after the last flush");
    daemon.lose_memory();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 1).inventory().await;
    assert_eq!(found.boot, born.boot);
    assert_eq!(found.copies[0].closure.last, Lsn(5));
}

#[tokio::test]
async fn lending_is_limited_to_what_could_be_flushed() {
    // One second of two buffers.
    let daemon = Daemon::started(&["--flush-bandwidth", "128KiB", "--hold-up", "1"]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    primary.lend(1, Durability::Memory).await.unwrap();
    primary.lend(2, Durability::Memory).await.unwrap();
    match refusal(primary.lend(3, Durability::Memory).await) {
        Refusal::RetryLater { after_ms, why } => {
            assert!(after_ms > 0 && why.contains("flush bandwidth × hold-up time"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    primary.lend(2, Durability::Memory).await.expect("the same lending again");
}

#[tokio::test]
async fn a_corrupt_file_is_not_copied() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let (identity, closure) = primary.write_closed(1, 1).await;
    until("the segment leaves the memory", async || metric(&daemon, "tailwind_backup_segments_on_disk") == 1).await;
    let path = closed_file(&daemon, 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let unchecked = primary.fetch_with(identity, closure, false).await.unwrap();
    assert!(!scan::verify(&unchecked, &identity, &closure), "sent as it is, for the caller to find out");
    assert_eq!(metric(&daemon, "tailwind_backup_segments_corrupt"), 0);
    assert_eq!(refusal(primary.fetch(identity, closure).await), Refusal::Corrupt { segment: SegmentId(1) });
    assert_eq!(primary.inventory().await.copies[0].state, CopyState::Corrupt);
    assert_eq!(metric(&daemon, "tailwind_backup_segments_corrupt"), 1);
    let boot = primary.inventory().await.boot.to_string();
    let log = Some(LOG.to_string());
    let read = BackupReport { folder: None, ..read_report(&daemon) };
    let corrupt = BackupReport { boot, log, epoch: 1, damaged: 1, quarantined: Some(0), ..BackupReport::default() };
    assert_eq!(read, corrupt, "a corrupt copy is none");
}

#[tokio::test]
async fn a_file_that_is_too_short_is_corrupt_without_a_check() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let (identity, closure) = primary.write_closed(1, 1).await;
    until("the segment leaves the memory", async || metric(&daemon, "tailwind_backup_segments_on_disk") == 1).await;
    let file = fs::OpenOptions::new().write(true).open(closed_file(&daemon, 1)).unwrap();
    file.set_len(u64::from(closure.end.0) - 1).unwrap();
    let refused = refusal(primary.fetch_with(identity, closure, false).await);
    assert_eq!(refused, Refusal::Corrupt { segment: SegmentId(1) });
    assert_eq!(primary.inventory().await.copies[0].state, CopyState::Corrupt);
}

/// An end beyond the segment, in a closure that is as sound as its sender: refused, no matter what the copy is like, and
/// remembered nowhere.
#[tokio::test]
async fn an_end_beyond_the_segment_is_a_bad_request() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let (closed, _) = primary.write_closed(1, 1).await;
    let mut open = primary.open(2, 11, Durability::Memory).await;
    open.append(5);
    let (identity, closure) = (*open.writer.identity(), open.writer.closure());
    let image = primary.identity(3);
    let request = OpenRequest {
        caller: primary.caller(),
        identity: image,
        purpose: Purpose::Install,
        durability: Durability::Memory,
    };
    let _: OpenReply<Grant> = primary.client.call(path::OPEN, &request, TIMEOUT).await.unwrap();
    let nothing = Closure { end: Offset(0), ..closure };
    let beyond = [200_000, SegmentSize::MIN.bytes() + 8, u32::MAX].map(|end| Closure { end: Offset(end), ..closure });
    let unaligned = Closure { end: Offset(closure.end.0 + 1), ..closure };
    let too_many = Closure { last: Lsn(u64::MAX), ..closure };
    let bad = beyond.into_iter().chain([nothing, unaligned, too_many]);
    let bad: Vec<_> = bad.flat_map(|closure| [closed, identity, image].map(|identity| (identity, closure))).collect();
    for epoch in [1, 2] {
        for (identity, closure) in &bad {
            let caller = Primary::new(&daemon, FabricKind::Shm, epoch).caller();
            let request = CloseRequest { caller, identity: *identity, closure: *closure };
            let refused: Result<Empty, _> = primary.client.call(path::CLOSE, &request, TIMEOUT).await;
            let refused = refusal(refused);
            assert!(matches!(refused, Refusal::BadRequest { .. }), "{request:?}: {refused:?}");
        }
        // The next turn: the scan has found where the open segment ends.
        Primary::new(&daemon, FabricKind::Shm, 2).fence().await;
    }
    daemon.kill();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 2).inventory().await;
    let copies: Vec<_> = found.copies.iter().map(|copy| (copy.identity.segment.0, copy.state)).collect();
    assert_eq!(copies, [(1, CopyState::Closed), (2, CopyState::Open)]);
    assert_eq!((found.copies[1].closure, found.witness), (closure, true));
    assert_eq!(found.damage, [""; 0]);
}

/// What comes back for these bytes until the other side hangs up.
fn talk(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn get(daemon: &Daemon, path: &str) -> String {
    let token = fs::read_to_string(daemon.token()).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        token.trim()
    );
    String::from_utf8(talk(daemon.control().parse().unwrap(), request.as_bytes())).unwrap()
}

fn read_report(daemon: &Daemon) -> BackupReport {
    tailwind_report::report::read(report(&daemon.control()).as_bytes(), "db", "b0").unwrap()
}

/// The page that the operator reads, which anybody may ask for.
fn report(control: &str) -> String {
    let request = b"GET /report HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let page = String::from_utf8(talk(control.parse().unwrap(), request)).unwrap();
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("content-type: application/json"), "{page}");
    body.to_owned()
}

fn metric(daemon: &Daemon, name: &str) -> u64 {
    metric_if_known(daemon, name).expect(name)
}

fn metric_if_known(daemon: &Daemon, name: &str) -> Option<u64> {
    let page = get(daemon, "/metrics");
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}
