//! The backup daemon as a process: what a primary can do with it, what outlives which death, what strangers cannot do.

mod access;
mod disk;
mod reading;
mod reports;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::authority::{Authority, Files};
use crate::daemon::Daemon;
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
    FlushReply, FlushRequest, Inventory, OpenReply, OpenRequest, Purpose, ReadConnectReply, ReadConnectRequest,
    Refusal, ShareReply, ShareRequest, TrimRequest, path,
};
use tailwind_protocol::scan;
use tailwind_protocol::segment::SegmentWriter;
use tailwind_report::report::BackupReport;
use tailwind_sidecar::access::{Access, TokenOptions};
use tailwind_sidecar::rpc::{BackupClient, CallError};
use tailwind_sidecar::tls::{PeerRole, Tls};

const TIMEOUT: Duration = Duration::from_secs(10);
/// It looks into its flush folder every 5 s, and less often where that takes long.
const LOOKS_AGAIN: Duration = Duration::from_secs(120);
const LOG: LogId = LogId(0xdb);

/// A primary as far as one backup sees it.
struct Primary {
    client: BackupClient,
    epoch: Epoch,
    sender: Box<dyn Sender>,
}

/// A segment on its way.
struct Open {
    writer: SegmentWriter,
    local: AppendBuffer,
    shared: SharedBuffer,
    remote: RemoteBuffer,
    channel: Box<dyn Channel>,
    sent: u32,
}

/// Each epoch has one claim here, its own number.
fn fence(caller: Caller) -> FenceRequest {
    FenceRequest { claim: Claim(caller.epoch.0), earlier: Vec::new(), caller, won: Epoch(0), joined: None, after: None }
}

/// What the daemon's user may show; made by the daemon at its first start.
fn token(daemon: &Daemon) -> Access {
    let options = TokenOptions { control_token: Some(daemon.token()) };
    Access::Token(options.load(&"db".parse().unwrap()).unwrap())
}

impl Primary {
    fn new(daemon: &Daemon, fabric: FabricKind, epoch: u64) -> Primary {
        let client = BackupClient::new(daemon.control(), &token(daemon), PeerRole::Backup);
        let sender: Box<dyn Sender> = match fabric {
            FabricKind::Shm => Box::<ShmSender>::default(),
            FabricKind::Tcp => Box::<TcpSender>::default(),
            other => unreachable!("{other} has tests elsewhere"),
        };
        Primary { client, epoch: Epoch(epoch), sender }
    }

    fn caller(&self) -> Caller {
        Caller { group: "db".parse().unwrap(), log: LOG, epoch: self.epoch }
    }

    fn identity(&self, segment: u64) -> SegmentIdentity {
        let generation = Generation(segment * 1000 + self.epoch.0);
        SegmentIdentity { log: LOG, segment: SegmentId(segment), epoch: self.epoch, generation, size: SegmentSize::MIN }
    }

    async fn fence(&self) -> Inventory {
        self.client.call(path::FENCE, &fence(self.caller()), TIMEOUT).await.unwrap()
    }

    async fn inventory(&self) -> Inventory {
        self.client.call(path::INVENTORY, &Empty {}, TIMEOUT).await.unwrap()
    }

    async fn connect(&self) -> Result<Box<dyn Channel>, CallError> {
        self.connect_with(false).await.map(|(channel, _)| channel)
    }

    async fn connect_with(&self, board: bool) -> Result<(Box<dyn Channel>, Option<Grant>), CallError> {
        let opening = self.sender.begin().unwrap();
        let request = ConnectRequest { caller: self.caller(), offer: opening.offer(), board };
        let ConnectReply { answer, board, .. } =
            self.client.call::<_, ConnectReply<ChannelAnswer, Grant>>(path::CONNECT, &request, TIMEOUT).await?;
        Ok((opening.connect(&answer, self.client.peer_ip().unwrap()).unwrap(), board))
    }

    async fn lend(&self, segment: u64, durability: Durability) -> Result<Grant, CallError> {
        self.lend_with_board(segment, durability).await.map(|(grant, _)| grant)
    }

    async fn lend_with_board(&self, segment: u64, durability: Durability) -> Result<(Grant, Option<Grant>), CallError> {
        let identity = self.identity(segment);
        let request = OpenRequest { caller: self.caller(), identity, purpose: Purpose::Append, durability };
        let OpenReply { grant, board } = self.client.call(path::OPEN, &request, TIMEOUT).await?;
        Ok((grant, board))
    }

    async fn open(&self, segment: u64, first: u64, durability: Durability) -> Open {
        let channel = self.connect().await.unwrap();
        let grant = self.lend(segment, durability).await.unwrap();
        let remote = self.sender.attach(&grant).unwrap();
        let (mut local, shared) = self.sender.allocate(SegmentSize::MIN.bytes()).unwrap();
        let (writer, written) = SegmentWriter::open(self.identity(segment), Lsn(first), local.tail_mut());
        local.publish(written);
        Open { writer, local, shared, remote, channel, sent: 0 }
    }

    async fn close(&self, open: &Open) {
        let request =
            CloseRequest { caller: self.caller(), identity: *open.writer.identity(), closure: open.writer.closure() };
        let Empty {} = self.client.call(path::CLOSE, &request, TIMEOUT).await.unwrap();
    }

    async fn write_closed(&self, segment: u64, first: u64) -> (SegmentIdentity, Closure) {
        let mut open = self.open(segment, first, Durability::Memory).await;
        open.append(10);
        self.close(&open).await;
        (*open.writer.identity(), open.writer.closure())
    }

    async fn fetch(&self, identity: SegmentIdentity, closure: Closure) -> Result<Vec<u8>, CallError> {
        self.fetch_with(identity, closure, true).await
    }

    async fn fetch_with(&self, identity: SegmentIdentity, closure: Closure, check: bool) -> Result<Vec<u8>, CallError> {
        let request = FetchRequest { group: "db".parse().unwrap(), identity, closure, check };
        let mut bytes = Vec::new();
        self.client.fetch(&request, TIMEOUT, |piece| bytes.extend_from_slice(piece)).await?;
        Ok(bytes)
    }

    async fn flush(&self, open: &Open) {
        let request =
            FlushRequest { caller: self.caller(), identity: *open.writer.identity(), end: open.writer.closure().end };
        let FlushReply { end } = self.client.call(path::FLUSH, &request, TIMEOUT).await.unwrap();
        assert_eq!(end, request.end);
    }
}

impl Open {
    /// Appends records and waits until the backup has them.
    fn append(&mut self, records: usize) {
        for record in 0..records {
            let payload = format!("record {record}");
            let written = self.writer.append(self.local.tail_mut(), [payload.as_bytes()].into_iter());
            self.local.publish(written);
        }
        self.post().unwrap();
    }

    fn post(&mut self) -> Result<(), ChannelError> {
        let end = self.shared.len();
        self.channel.post(&self.remote, &self.shared, self.sent..end)?;
        self.sent = end;
        let deadline = Instant::now() + TIMEOUT;
        while self.channel.poll()? == 0 {
            assert!(Instant::now() < deadline, "the write completes");
            std::thread::yield_now();
        }
        Ok(())
    }
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

async fn until_quarantined(daemon: &Daemon, count: u64) {
    until_metric(daemon, "tailwind_backup_quarantined", count).await;
}

#[tokio::test]
async fn quarantined_files_are_counted_listed_and_released() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    until_quarantined(&daemon, 0).await;
    for segment in [1, 2] {
        primary.write_closed(segment, segment * 10).await;
    }
    // A copy that is dropped in the middle of its flush may go into quarantine twice, from memory and as a file.
    until_metric(&daemon, "tailwind_backup_segments_on_disk", 2).await;
    let primary = Primary::new(&daemon, FabricKind::Shm, 2);
    let Inventory { copies, .. } = primary.fence().await;
    let request = DropRequest { caller: primary.caller(), copies };
    // A repetition moves nothing.
    for _ in 0..2 {
        let Empty {} = primary.client.call(path::DROP, &request, TIMEOUT).await.unwrap();
    }
    until_quarantined(&daemon, 2).await;
    assert_ne!(metric_if_known(&daemon, "tailwind_backup_quarantined_bytes"), Some(0));
    let status = get(&daemon, "/status");
    assert!(status.contains("\"files\": 2"), "{status}");
    let reported = read_report(&daemon);
    assert_eq!((reported.epoch, reported.copies, reported.damaged, reported.quarantined), (2, 0, 0, Some(2)));

    // An administrator lists and releases files while the backup runs.
    let listed = quarantine(&daemon, &["list"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    for line in listed.lines() {
        let (name, what) = line.split_once("  ").unwrap();
        assert!(status.contains(&format!("\"name\": \"{name}\"")), "{name} in {status}");
        assert!(what.starts_with("sound ") && what.contains(", epoch 1, LSN "), "{what}");
    }
    let (first, _) = listed.split_once("  ").unwrap();
    let refused = command(&daemon, &["release", first, "promise"]).output().unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && why.contains("`promise`"), "{why}");
    assert_eq!(quarantine(&daemon, &["list"]), listed, "nothing was released");
    assert!(quarantine(&daemon, &["release", first]).starts_with(&format!("released {first}, ")));
    assert_eq!(quarantine(&daemon, &["list"]).lines().count(), 1);
    quarantine(&daemon, &["release", "--all"]);
    assert_eq!(quarantine(&daemon, &["list"]), "");
    until_quarantined(&daemon, 0).await;
    daemon.terminate(Signal::TERM);
    daemon.start();
    until_quarantined(&daemon, 0).await;
}

/// In the environment of the backup's container, which names the folder.
fn command(daemon: &Daemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.arg("quarantine").args(arguments).env("TAILWIND_FLUSH_DIR", daemon.flush_dir());
    command
}

/// Standard output of a command that must succeed.
fn quarantine(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = command(daemon, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
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
