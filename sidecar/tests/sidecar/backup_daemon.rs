//! The backup daemon as a process: what a primary can do with it, what outlives which death, what strangers cannot do.

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

/// Where there is no memory for it when the channel is opened, it comes with a later segment.
#[tokio::test]
async fn the_board_comes_later_if_it_must() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let daemon = Daemon::started(&["--fabric", &fabric.to_string()]);
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let in_the_way = daemon.pool().join("side.buf");
        fs::create_dir(&in_the_way).unwrap();
        let (mut channel, none) = primary.connect_with(true).await.unwrap();
        assert!(none.is_none(), "there is no memory for it");
        let (_, none) = primary.lend_with_board(1, Durability::Memory).await.unwrap();
        assert!(none.is_none(), "nor is there now");
        fs::remove_dir(&in_the_way).unwrap();
        let (_, board) = primary.lend_with_board(2, Durability::Memory).await.unwrap();
        let remote = primary.sender.attach(&board.unwrap()).unwrap();
        channel.post_bytes(&remote, 0, b"progress").unwrap();
        channel.push();
        let deadline = Instant::now() + TIMEOUT;
        while channel.poll().unwrap() == 0 {
            assert!(Instant::now() < deadline, "it completes");
        }
        assert_eq!(fs::read(&in_the_way).unwrap()[..9], *b"progress\0");
    }
}

/// The board is lent with the channel, once for each epoch, and is gone with it.
#[tokio::test]
async fn the_board_is_lent_until_the_next_fence() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let mut daemon = Daemon::started(&["--fabric", &fabric.to_string()]);
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let (_, none) = primary.connect_with(false).await.unwrap();
        assert!(none.is_none(), "nobody asked for it");
        let (mut channel, board) = primary.connect_with(true).await.unwrap();
        let (_, again) = primary.connect_with(true).await.unwrap();
        let grant = |board: &Option<Grant>| serde_json::to_string(board).unwrap();
        assert_eq!(grant(&board), grant(&again), "a new lending would wipe what was written");
        let remote = primary.sender.attach(&board.unwrap()).unwrap();
        let post = |channel: &mut Box<dyn Channel>| {
            channel.post_bytes(&remote, 0, b"progress")?;
            channel.push();
            let deadline = Instant::now() + TIMEOUT;
            loop {
                match channel.poll() {
                    Ok(0) => assert!(Instant::now() < deadline, "it completes or fails"),
                    result => return result,
                }
            }
        };
        assert_eq!(post(&mut channel), Ok(1));
        let file = daemon.pool().join("side.buf");
        assert_eq!(fs::read(&file).unwrap()[..9], *b"progress\0");

        let next = Primary::new(&daemon, fabric, 2);
        let inventory = next.fence().await;
        assert!(inventory.copies.is_empty() && inventory.witness, "a board is no copy");
        post(&mut channel).unwrap_err();
        assert!(!fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"progress")), "freed at the fence");
        assert!(matches!(refusal(primary.connect_with(true).await), Refusal::Fenced { .. }));

        let (mut channel, board) = next.connect_with(true).await.unwrap();
        let remote = next.sender.attach(&board.unwrap()).unwrap();
        channel.post_bytes(&remote, 0, b"and the next").unwrap();
        channel.push();
        assert_eq!(channel.poll().map(|_| ()), Ok(()));
        daemon.kill();
        daemon.start();
        assert!(!file.exists(), "what it says is of an earlier life");
    }
}

/// A reader of a group: its own channel, and what the backup shares with it.
struct Follower<'a> {
    primary: &'a Primary,
    number: u64,
    reader: Box<dyn Reader>,
    channel: Box<dyn ReadChannel>,
}

impl<'a> Follower<'a> {
    async fn connect(primary: &'a Primary, fabric: FabricKind, number: u64) -> Result<Follower<'a>, CallError> {
        let reader: Box<dyn Reader> = match fabric {
            FabricKind::Shm => Box::<ShmReader>::default(),
            _ => Box::<TcpReader>::default(),
        };
        let opening = reader.begin(SegmentSize::MIN.bytes()).unwrap();
        let Caller { group, log, .. } = primary.caller();
        let request = ReadConnectRequest { group, log, reader: number, offer: opening.offer() };
        let ReadConnectReply { answer, .. } =
            primary.client.call::<_, ReadConnectReply<ChannelAnswer>>(path::READ_CONNECT, &request, TIMEOUT).await?;
        let channel = opening.connect(&answer, primary.client.peer_ip().unwrap()).unwrap();
        Ok(Follower { primary, number, reader, channel })
    }

    async fn share(&self, segments: &[u64]) -> Result<ShareReply<ReadGrant>, CallError> {
        self.share_with(true, segments).await
    }

    async fn share_with(&self, board: bool, segments: &[u64]) -> Result<ShareReply<ReadGrant>, CallError> {
        let Caller { group, log, .. } = self.primary.caller();
        let segments = segments.iter().map(|segment| SegmentId(*segment)).collect();
        let request = ShareRequest { group, log, reader: self.number, board, segments };
        self.primary.client.call(path::SHARE, &request, TIMEOUT).await
    }

    fn read(&mut self, grant: &ReadGrant, length: u32) -> Result<Vec<u8>, ReadError> {
        let shared = self.reader.attach(grant).map_err(|_| ReadError::Ended)?;
        self.channel.read(&shared, 0..length, 0)?;
        let deadline = Instant::now() + TIMEOUT;
        while self.channel.poll()? == 0 {
            assert!(Instant::now() < deadline, "it completes or fails");
            std::thread::yield_now();
        }
        Ok(self.channel.landed(0..length).to_vec())
    }
}

/// A board and an open segment are read while they are written; what is over is shared no more.
#[tokio::test]
async fn readers_read_what_is_lent() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        let daemon = Daemon::started(&["--fabric", &fabric.to_string()]);
        let primary = Primary::new(&daemon, fabric, 1);
        let early = Follower::connect(&primary, fabric, 7).await;
        assert!(matches!(early.err(), Some(CallError::Refused(Refusal::RetryLater { .. }))), "no log yet");
        primary.fence().await;
        let (mut channel, board) = primary.connect_with(true).await.unwrap();
        let board = primary.sender.attach(&board.unwrap()).unwrap();
        let mut open = primary.open(1, 1, Durability::Memory).await;
        open.append(10);
        channel.post_bytes(&board, 64, b"a line").unwrap();
        channel.push();
        let deadline = Instant::now() + TIMEOUT;
        while channel.poll().unwrap() == 0 {
            assert!(Instant::now() < deadline, "it completes");
        }

        let mut follower = Follower::connect(&primary, fabric, 7).await.unwrap();
        let shared = follower.share(&[1, 2]).await.unwrap();
        assert_eq!((shared.promised, shared.segments.len()), (Epoch(1), 1), "segment 2 is not there");
        assert_eq!((shared.segments[0].identity, shared.segments[0].closure), (primary.identity(1), None));
        let end = open.writer.closure().end.0;
        assert!(follower.read(&shared.segments[0].grant, end).unwrap() == open.shared.published()[..end as usize]);
        let line = follower.read(&shared.board.clone().unwrap(), 128).unwrap();
        assert_eq!(line[64..71], *b"a line\0");
        let again = follower.share(&[1]).await.unwrap();
        assert_eq!((again.board, &again.segments[0].grant), (shared.board.clone(), &shared.segments[0].grant));

        // Closed, it goes to disk, and the memory is given up.
        primary.close(&open).await;
        let deadline = Instant::now() + TIMEOUT;
        while !follower.share(&[1]).await.unwrap().segments.is_empty() {
            assert!(Instant::now() < deadline, "it is flushed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(follower.read(&shared.segments[0].grant, end).is_err());

        let next = Primary::new(&daemon, fabric, 2);
        next.fence().await;
        let mut follower = Follower::connect(&primary, fabric, 7).await.unwrap();
        let after = follower.share(&[1]).await.unwrap();
        assert_eq!((after.promised, after.board), (Epoch(2), None), "the board went with its epoch");
        assert!(follower.read(&shared.board.unwrap(), 128).is_err());

        let many: Vec<u64> = (1..=17).collect();
        assert!(matches!(refusal(follower.share(&many).await), Refusal::BadRequest { .. }));
        let stranger = Follower { number: 8, ..Follower::connect(&primary, fabric, 7).await.unwrap() };
        assert!(matches!(refusal(stranger.share(&[1]).await), Refusal::BadRequest { .. }), "it has no channel");
        for number in 100..131 {
            Follower::connect(&primary, fabric, number).await.unwrap();
        }
        let full = Follower::connect(&primary, fabric, 200).await.err().unwrap();
        assert!(matches!(full, CallError::Refused(Refusal::RetryLater { .. })), "{full}");
    }
}

/// A backup that copies segments does not look at the board.
#[tokio::test]
async fn heartbeats_say_that_readers_look_at_the_board() {
    let fabric = FabricKind::Shm;
    let daemon = Daemon::started(&["--fabric", "shm"]);
    let primary = Primary::new(&daemon, fabric, 1);
    primary.fence().await;
    primary.connect_with(true).await.unwrap();
    let mut heartbeats = primary.client.heartbeats().await.unwrap();
    assert_eq!(heartbeats.next().await, Ok(false));

    let copies = Follower::connect(&primary, fabric, 7).await.unwrap();
    copies.share_with(false, &[1]).await.unwrap();
    assert_eq!(primary.client.heartbeats().await.unwrap().next().await, Ok(false), "the first says how it is");
    let follower = Follower::connect(&primary, fabric, 8).await.unwrap();
    follower.share(&[]).await.unwrap();
    assert_eq!(primary.client.heartbeats().await.unwrap().next().await, Ok(true));
    let told = async { while !heartbeats.next().await.unwrap() {} };
    tokio::time::timeout(TIMEOUT, told).await.expect("an earlier listener hears it, too");
}

#[tokio::test]
async fn unauthenticated_requests_change_nothing() {
    let daemon = Daemon::started(&["--fabric", "tcp"]);
    let primary = Primary::new(&daemon, FabricKind::Tcp, 1);
    primary.fence().await;
    primary.write_closed(1, 1).await;
    let request = ConnectRequest { caller: primary.caller(), offer: Offer::Tcp, board: false };
    let ConnectReply::<ChannelAnswer, Grant> { answer, .. } =
        primary.client.call(path::CONNECT, &request, TIMEOUT).await.unwrap();
    let ChannelAnswer::Tcp { address, .. } = answer else { panic!("tcp was asked for") };
    let before = (primary.inventory().await, fs::read(daemon.flush_dir().join("promise")).unwrap());

    // The data port, with a secret that nobody was given.
    let mut wrong = serde_json::to_value(&answer).unwrap();
    wrong["secret"] = "0".repeat(32).into();
    let wrong: ChannelAnswer = serde_json::from_value(wrong).unwrap();
    let stranger = TcpSender::default().begin().unwrap().connect(&wrong, address.ip());
    if let Ok(mut channel) = stranger {
        let (mut local, shared) = TcpSender::default().allocate(4096).unwrap();
        local.publish(4096);
        let remote = TcpSender::default().attach(&Grant::Tcp { key: 1, length: 4096 }).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let _ = channel.post(&remote, &shared, 0..4096);
        while channel.poll() == Ok(0) {
            assert!(Instant::now() < deadline, "a stranger is sent away");
            std::thread::yield_now();
        }
        assert!(channel.poll().is_err());
    }
    assert_eq!(talk(address, b"GET / HTTP/1.1\r\n\r\n"), b"", "not a byte in answer");

    // The control port, with another log and nonsense.
    let thief = Caller { log: LogId(1), epoch: Epoch(9), ..primary.caller() };
    let stolen: Result<Inventory, _> = primary.client.call(path::FENCE, &fence(thief), TIMEOUT).await;
    assert!(matches!(refusal(stolen), Refusal::WrongLog { .. }));
    let nonsense: Result<Empty, _> = primary.client.call(path::CLOSE, &"nonsense", TIMEOUT).await;
    assert!(matches!(refusal(nonsense), Refusal::BadRequest { .. }));
    let huge: Result<Empty, _> = primary.client.call(path::CLOSE, &"x".repeat(2 << 20), TIMEOUT).await;
    assert!(huge.is_err());

    let after = (primary.inventory().await, fs::read(daemon.flush_dir().join("promise")).unwrap());
    assert_eq!(before, after);
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

#[tokio::test]
async fn only_certificates_of_the_group_are_accepted() {
    let authority = Authority::new();
    let Files { ca, cert, key } = authority.issue("tailwind://db/backup/b0");
    let paths = [&ca, &cert, &key].map(|path| path.to_str().unwrap().to_owned());
    let tls = ["--tls-ca", &paths[0], "--tls-cert", &paths[1], "--tls-key", &paths[2]];
    let daemon = Daemon::started(&tls);
    let load = |authority: &Authority, uri: &str, group: &str, role| {
        let Files { ca, cert, key } = authority.issue(uri);
        Tls::load(&ca, &cert, &key, &group.parse().unwrap(), role).unwrap()
    };
    let ours = load(&authority, "tailwind://db/sidecar/app-0", "db", PeerRole::Sidecar);
    let mut primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.client = BackupClient::new(daemon.control(), &Access::Tls(ours), PeerRole::Backup);
    primary.fence().await;
    primary.write_closed(1, 1).await;
    let before = primary.inventory().await;

    let other = Authority::new();
    let strangers = [
        ("another group", load(&authority, "tailwind://evil/sidecar/app-0", "evil", PeerRole::Sidecar)),
        ("another group's backup", load(&authority, "tailwind://evil/backup/b1", "evil", PeerRole::Backup)),
        ("another CA", load(&other, "tailwind://db/sidecar/app-0", "db", PeerRole::Sidecar)),
    ];
    let fence = fence(Caller { epoch: Epoch(9), ..primary.caller() });
    for (name, tls) in strangers {
        let stranger = BackupClient::new(daemon.control(), &Access::Tls(tls), PeerRole::Backup);
        let result: Result<Inventory, _> = stranger.call(path::FENCE, &fence, TIMEOUT).await;
        assert!(matches!(result, Err(CallError::Unreachable(_))), "{name}: {result:?}");
    }
    let plain: Result<Inventory, _> =
        BackupClient::new(daemon.control(), &token(&daemon), PeerRole::Backup).call(path::FENCE, &fence, TIMEOUT).await;
    assert!(matches!(plain, Err(CallError::Unreachable(_))), "{plain:?}");
    let answer = talk(daemon.control().parse().unwrap(), b"GET /status HTTP/1.1\r\n\r\n");
    assert!(!answer.windows(4).any(|bytes| bytes == b"HTTP"), "{answer:?}");
    assert_eq!(primary.inventory().await, before);
}

#[tokio::test]
async fn readers_and_backups_read_and_change_nothing() {
    let authority = Authority::new();
    let issue = |uri: &str| {
        let Files { ca, cert, key } = authority.issue(uri);
        [ca, cert, key].map(|path| path.to_str().unwrap().to_owned())
    };
    let [ca, cert, key] = issue("tailwind://db/backup/b0");
    let daemon = Daemon::started(&["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key]);
    let client = |role: PeerRole| {
        let [ca, cert, key] = issue(&format!("tailwind://db/{role}/app-0"));
        let tls = Tls::load(ca.as_ref(), cert.as_ref(), key.as_ref(), &"db".parse().unwrap(), role).unwrap();
        BackupClient::new(daemon.control(), &Access::Tls(tls), PeerRole::Backup)
    };
    let (sidecar, reader) = (client(PeerRole::Sidecar), client(PeerRole::Reader));
    let backup = client(PeerRole::Backup);
    let mut primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.client = sidecar.clone();
    primary.fence().await;
    let (identity, closure) = primary.write_closed(1, 1).await;
    let before = primary.inventory().await;

    for (path, is_reading) in [
        (path::FENCE, false),
        (path::INVENTORY, true),
        (path::DAMAGE, false),
        (path::CONNECT, false),
        (path::OPEN, false),
        (path::CLOSE, false),
        (path::FLUSH, false),
        (path::SYNC, false),
        (path::FETCH, true),
        (path::PULL, false),
        (path::TRIM, false),
        (path::DROP, false),
        (path::READ_CONNECT, true),
        (path::SHARE, true),
        (path::HEARTBEATS, true),
        (path::POSITION, false),
        ("/status", false),
    ] {
        // The requests are empty, so that even those that the role permits are refused or change nothing.
        let refused = async |client: &BackupClient| {
            let answer: Result<serde_json::Value, _> = client.call(path, &Empty {}, TIMEOUT).await;
            matches!(answer, Err(CallError::Refused(Refusal::Forbidden { .. })))
        };
        assert_eq!(refused(&reader).await, !is_reading, "a reader asks for {path}");
        assert!(!refused(&sidecar).await, "a sidecar asks for {path}");
        let is_copying = [path::READ_CONNECT, path::SHARE, path::FETCH].contains(&path);
        assert_eq!(refused(&backup).await, !is_copying, "another backup asks for {path}");
    }
    let found: Inventory = reader.call(path::INVENTORY, &Empty {}, TIMEOUT).await.unwrap();
    assert_eq!(found, before);
    let of_a_backup = Primary { client: backup.clone(), ..Primary::new(&daemon, FabricKind::Shm, 1) };
    for check in [true, false] {
        let bytes = of_a_backup.fetch_with(identity, closure, check).await.unwrap();
        assert!(scan::verify(&bytes, &identity, &closure), "check {check}");
    }
    reader.heartbeats().await.unwrap().next().await.unwrap();
    assert_eq!(primary.inventory().await, before);

    // However many readers there are, a standby and a backup find places.
    let connect = async |client: &BackupClient, number: u64| {
        let mut follower = Primary::new(&daemon, FabricKind::Shm, 1);
        follower.client = client.clone();
        Follower::connect(&follower, FabricKind::Shm, number).await.map(|_| ())
    };
    for number in 0..16 {
        connect(&reader, number).await.unwrap();
    }
    assert!(matches!(refusal(connect(&reader, 16).await), Refusal::RetryLater { .. }));
    connect(&reader, 3).await.expect("one that is known");
    for (client, number) in [(&sidecar, 17), (&backup, 18)] {
        connect(client, number).await.unwrap();
    }

    // A reader checks what it fetches by itself, even if it asks for a check: a check takes memory and a scan.
    let path = closed_file(&daemon, 1);
    until("the segment is on disk", async || path.exists()).await;
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let fetching = Primary { client: reader, ..Primary::new(&daemon, FabricKind::Shm, 1) };
    let is_unsound = async || !scan::verify(&fetching.fetch(identity, closure).await.unwrap(), &identity, &closure);
    until("the segment leaves the memory", is_unsound).await;
    assert_eq!(primary.inventory().await, before);
    assert_eq!(refusal(primary.fetch(identity, closure).await), Refusal::Corrupt { segment: SegmentId(1) });
}

#[tokio::test]
async fn probes_metrics_and_heartbeats() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 3);
    primary.fence().await;
    for path in ["/healthz", "/readyz"] {
        assert!(get(&daemon, path).starts_with("HTTP/1.1 200"), "{path}");
    }
    assert_eq!(metric(&daemon, "tailwind_backup_promised_epoch"), 3);
    assert_eq!(metric(&daemon, "tailwind_backup_fences_total"), 1);
    let status = get(&daemon, "/status");
    assert!(status.contains("\"role\": \"backup\"") && status.contains("\"unflushed_bytes\": 0"), "{status}");
    assert!(get(&daemon, "/nothing").starts_with("HTTP/1.1 404"));

    let watching = tokio::spawn({
        let client = primary.client.clone();
        async move { client.watch_heartbeats(Duration::from_secs(5), |_| {}).await }
    });
    let beaten = tokio::time::timeout(Duration::from_millis(100), async {
        while !watching.is_finished() {
            tokio::task::yield_now().await
        }
    });
    assert!(beaten.await.is_err(), "it lives, so nobody stops watching");
    drop(daemon);
    let why = tokio::time::timeout(TIMEOUT, watching).await.unwrap().unwrap();
    assert!(why.contains("connection"), "{why}");
}

/// Killed when dropped.
struct Sidecar(Child);

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_primary_reports_its_positions() {
    let daemon = Daemon::started(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    command.args(["run", "--group", "db", "--name", "app-0", "--listen", "127.0.0.1:0", "--segment-size", "64KiB"]);
    command.args(["--backups", "1", "--backup", &format!("b0={}", daemon.control())]);
    command.arg("--control-token").arg(daemon.token()).arg("--port-file").arg(path("port"));
    command.arg("--config").arg(path("config.json")).arg("--socket").arg(path("socket"));
    let _sidecar = Sidecar(command.stderr(fs::File::create(path("log")).unwrap()).spawn().unwrap());
    until("the sidecar listens", async || path("port").exists()).await;
    let control = fs::read_to_string(path("port")).unwrap().trim().to_owned();
    let is_one_of = |found: &Value, wanted: &[Value]| {
        wanted.iter().any(|wanted| wanted.as_object().unwrap().iter().all(|(field, value)| &found[field] == value))
    };
    let primary = |connected: u8| json!({"role": "primary", "epoch": 1, "positions": {"first": 1, "acked": 0}, "connected": connected});
    let before = [json!({"role": "standby", "epoch": 0}), json!({"role": "recovering", "epoch": 0}), primary(0)];
    until("the positions", async || {
        let found: Value = serde_json::from_str(&report(&control)).unwrap();
        assert_eq!((&found["version"], &found["group"], &found["name"]), (&json!(1), &json!("db"), &json!("app-0")));
        let is_there = is_one_of(&found, &[primary(1)]);
        assert!(is_there || is_one_of(&found, &before), "{found}");
        is_there
    })
    .await;
}

#[tokio::test]
async fn a_hung_process_stops_sending_heartbeats() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    daemon.signal(Signal::STOP);
    let why = primary.client.watch_heartbeats(Duration::from_millis(100), |_| {}).await;
    assert!(why.contains("silent"), "{why}");
    daemon.signal(Signal::CONT);
    primary.inventory().await;
}

#[test]
fn impossible_options_are_explained_at_start() {
    let mut daemon = Daemon::started(&[]);
    let other = tempfile::tempdir().unwrap();
    let (pool, flush) = (other.path().join("pool"), other.path().join("flush"));
    let says = |pool: &std::path::Path, flush: &std::path::Path, arguments: &[&str], expected: i32, words: &[&str]| {
        let (code, said) = daemon.refuses(pool, flush, arguments);
        assert_eq!(code, expected, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in:\n{said}");
        }
    };
    says(&daemon.pool(), &flush, &[], 1, &["is in use by another backup daemon", "--pool"]);
    let _ = fs::remove_dir_all(&flush);
    says(&pool, &daemon.flush_dir(), &[], 1, &["is in use by another backup daemon", "--flush-dir"]);
    let control = daemon.control();
    says(&pool, &flush, &["--listen", &control], 1, &["the port is in use"]);
    says(&pool, &flush, &["--listen", "0.0.0.0:0"], 2, &["without TLS", "--tls-ca"]);
    says(&pool, &flush, &["--fabric", "tcp", "--data-listen", "0.0.0.0:0"], 2, &["without TLS"]);
    let _ = fs::remove_dir_all(&flush);
    let _ = fs::remove_dir_all(&pool);
    says(&pool, &flush, &["--flush-bandwidth", "1KiB", "--hold-up", "1"], 2, &["no buffer could be lent"]);
    says(&pool, std::path::Path::new("/proc/nowhere"), &[], 1, &["flush folder /proc/nowhere"]);
    says(&other.path().join("a/b"), &flush, &[], 1, &["pool folder", "--pool"]);

    daemon.terminate(Signal::INT);
    let says = |arguments: &[&str], words: &[&str]| {
        let (code, said) = daemon.refuses(&daemon.pool(), &daemon.flush_dir(), arguments);
        assert_eq!(code, 1, "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in:\n{said}");
        }
    };
    let promise = daemon.flush_dir().join("promise");
    let sound = fs::read(&promise).unwrap();
    fs::write(&promise, "?").unwrap();
    says(&[], &["promise file", "is damaged"]);
    fs::remove_file(&promise).unwrap();
    says(&[], &["holds no promise"]);
    fs::write(&promise, &sound).unwrap();
    daemon.start();
}

/// Bytes that were acknowledged as flushed are on disk: several requests at once are served, none is lost.
#[tokio::test]
async fn concurrent_flushes_are_all_answered() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Flushed).await;
    for _ in 0..5 {
        open.append(20);
        futures_util::future::join_all((0..16).map(|_| primary.flush(&open))).await;
        let on_disk = fs::read(open_file(&daemon, 1)).unwrap();
        assert!(scan::verify(&on_disk, open.writer.identity(), &open.writer.closure()));
    }
    // Closed by now: the whole file answers for it.
    primary.close(&open).await;
    primary.flush(&open).await;
    until("the open file gives way to the closed one", async || {
        closed_file(&daemon, 1).exists() && !open_file(&daemon, 1).exists()
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_delays_lending_and_loses_nothing() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    // A folder in the way of the file that is written first: the disk refuses, for root too.
    let obstacle = daemon.flush_dir().join("segment-0000000000000001.closed.tmp");
    fs::create_dir(&obstacle).unwrap();
    let (identity, closure) = primary.write_closed(1, 1).await;
    until("the flush is tried again", async || metric(&daemon, "tailwind_backup_flush_failures_total") >= 2).await;
    for check in [true, false] {
        let bytes = primary.fetch_with(identity, closure, check).await.unwrap();
        assert!(scan::verify(&bytes, &identity, &closure), "served from memory until then");
    }
    // The fourth and last buffer is for images.
    for segment in 2..=3 {
        primary.lend(segment, Durability::Memory).await.unwrap();
    }
    assert!(matches!(refusal(primary.lend(4, Durability::Memory).await), Refusal::RetryLater { .. }));
    fs::remove_dir(&obstacle).unwrap();
    until("the flush succeeds in the end", async || closed_file(&daemon, 1).exists()).await;
    daemon.kill();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 1).inventory().await;
    assert_eq!((found.boot, found.copies[0].closure), (born.boot, closure));
}

/// A small file system in memory, in place of a disk.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` where nobody may mount anything.
    fn mount(path: &std::path::Path, size: &str) -> Option<SmallDisk> {
        fs::create_dir_all(path).unwrap();
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tailwind"]).arg(path).status();
        assert!(mounted.unwrap().success(), "mount a tmpfs on {}", path.display());
        Some(SmallDisk(path.to_owned()))
    }

    /// Other files leave no room at all.
    fn fill(&self) {
        fs::create_dir_all(self.0.join("others")).unwrap();
        let mut filler = fs::File::create(self.0.join("others/filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn relieve(&self) {
        fs::remove_file(self.0.join("others/filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the daemon still holds files of it and is killed a moment later.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Its memory holds what was acknowledged, and there is no room to measure how fast the disk is.
#[tokio::test]
async fn a_backup_starts_again_on_a_full_disk() {
    let mut daemon = Daemon::measuring(&[]);
    let Some(disk) = SmallDisk::mount(&daemon.flush_dir(), "16m") else {
        let _ = writeln!(std::io::stderr(), "cannot run: a_backup_starts_again_on_a_full_disk: needs root");
        return;
    };
    daemon.start();
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    disk.fill();
    let (_, closure) = primary.write_closed(1, 1).await;
    primary.open(2, 11, Durability::Memory).await.append(3);
    until("the disk to refuse", async || metric(&daemon, "tailwind_backup_flush_failures_total") > 0).await;
    daemon.kill();
    daemon.start();
    assert!(daemon.log().contains("the disk of the flush folder is full: cannot measure its bandwidth"));
    let primary = Primary::new(&daemon, FabricKind::Shm, 2);
    let found = primary.fence().await;
    assert_eq!(found.boot, born.boot);
    let copies: Vec<_> = found.copies.iter().map(|copy| (copy.identity.segment.0, copy.state)).collect();
    assert_eq!(copies, [(1, CopyState::Closed), (2, CopyState::Open)]);
    primary.lend(3, Durability::Memory).await.expect("the group continues");
    disk.relieve();
    until("the flush succeeds in the end", async || closed_file(&daemon, 1).exists()).await;
    assert_eq!(primary.inventory().await.copies[0].closure, closure);
}

/// A pool in a file system that can be filled; `None` where nobody may mount one.
fn small_pool(daemon: &Daemon, test: &str) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(&daemon.pool(), "1m");
    if disk.is_none() {
        let _ = writeln!(std::io::stderr(), "cannot run: {test}: needs root");
    }
    disk
}

/// What anybody may ask for.
fn probe(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    String::from_utf8(talk(address, request.as_bytes())).unwrap()
}

/// Any user can fill /dev/shm, and a failover copies what was lent.
#[tokio::test]
async fn a_fence_waits_for_room_in_the_pool() {
    let mut daemon = Daemon::new(&[]);
    let Some(disk) = small_pool(&daemon, "a_fence_waits_for_room_in_the_pool") else { return };
    daemon.start();
    let first = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = first.fence().await;
    let mut open = first.open(1, 1, Durability::Memory).await;
    open.append(3);
    let tail = open.writer.closure();
    disk.fill();

    let second = Primary::new(&daemon, FabricKind::Shm, 2);
    let address: SocketAddr = daemon.control().parse().unwrap();
    for _ in 0..3 {
        let fenced: Result<Inventory, CallError> =
            second.client.call(path::FENCE, &fence(second.caller()), TIMEOUT).await;
        let Refusal::RetryLater { why, .. } = refusal(fenced) else { panic!("it must be asked again") };
        assert!(why.contains("no room in pool") && why.contains(daemon.pool().to_str().unwrap()), "{why}");
    }
    assert!(open.post().is_err(), "the old epoch is over all the same");
    assert!(probe(address, "/healthz").starts_with("HTTP/1.1 200"));
    let unready = probe(address, "/readyz");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("no room in pool"), "{unready}");
    assert!(get(&daemon, "/status").contains("no room in pool"));
    assert_eq!(daemon.log().matches("no room in pool").count(), 1, "{}", daemon.log());

    disk.relieve();
    until("it has room again", async || probe(address, "/readyz").starts_with("HTTP/1.1 200")).await;
    let found = second.fence().await;
    assert_eq!((found.boot, found.copies[0].state, found.copies[0].closure), (born.boot, CopyState::Open, tail));
    second.lend(2, Durability::Memory).await.expect("the group continues");
    daemon.terminate(Signal::TERM);
}

#[tokio::test]
async fn a_start_waits_for_room_in_the_pool() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut daemon = Daemon::new(&["--metrics-listen", &free.to_string()]);
    let Some(disk) = small_pool(&daemon, "a_start_waits_for_room_in_the_pool") else { return };
    daemon.start();
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Memory).await;
    open.append(3);
    let tail = open.writer.closure();
    daemon.kill();
    disk.fill();
    daemon.spawn();
    until("it to say that it waits", async || daemon.log().contains("no room in pool")).await;
    assert!(probe(free, "/healthz").starts_with("HTTP/1.1 200"));
    let unready = probe(free, "/readyz");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("no room in pool"), "{unready}");
    disk.relieve();
    daemon.wait_until_ready();
    assert_eq!(daemon.log().matches("no room in pool").count(), 1, "{}", daemon.log());
    let found = Primary::new(&daemon, FabricKind::Shm, 2).fence().await;
    assert_eq!((found.boot, found.copies[0].closure), (born.boot, tail));
    assert!(probe(free, "/readyz").starts_with("HTTP/1.1 200"));

    // It ends when it is told to, too.
    daemon.kill();
    disk.fill();
    daemon.spawn();
    until("it to say that it waits", async || daemon.log().matches("no room in pool").count() == 2).await;
    daemon.terminate(Signal::TERM);
}

/// A new identity is drawn for memory that is lost; the ones before it are what a recovery from disk goes by.
#[tokio::test]
async fn waiting_for_room_draws_one_identity() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    primary.write_closed(1, 1).await;
    daemon.kill();
    daemon.lose_memory();
    let Some(disk) = small_pool(&daemon, "waiting_for_room_draws_one_identity") else { return };
    disk.fill();
    for nth in 1..=3 {
        daemon.spawn();
        until("it to wait", async || daemon.log().matches("no room in pool").count() == nth).await;
        daemon.kill();
    }
    disk.relieve();
    daemon.start();
    let found = Primary::new(&daemon, FabricKind::Shm, 2).fence().await;
    assert_ne!(found.boot, born.boot);
    assert_eq!(found.former, [born.boot]);
}

fn slot_files(daemon: &Daemon) -> Vec<std::path::PathBuf> {
    let files = fs::read_dir(daemon.pool()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("slot-")).collect()
}

fn cut(path: &std::path::Path, length: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[tokio::test]
async fn cut_slot_files_are_reported_as_damage() {
    let mut daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    let born = primary.fence().await;
    primary.open(1, 1, Durability::Memory).await.append(3);
    daemon.kill();
    slot_files(&daemon).iter().for_each(|file| cut(file, 5000));
    daemon.start();
    let primary = Primary::new(&daemon, FabricKind::Shm, 2);
    let found = primary.fence().await;
    assert_eq!((found.boot, found.witness), (born.boot, false));
    assert!(!found.damage.is_empty());
    primary.lend(2, Durability::Memory).await.expect("the group continues");
}

#[tokio::test]
async fn a_cut_slot_table_is_reported_as_damage() {
    // The owner and a row; the owner and a part of a row; the owner's entry alone.
    for length in [4096 + 2048, 4096 + 100, 4096] {
        let mut daemon = Daemon::started(&[]);
        let primary = Primary::new(&daemon, FabricKind::Shm, 1);
        let born = primary.fence().await;
        primary.open(1, 1, Durability::Memory).await.append(3);
        primary.open(2, 4, Durability::Memory).await.append(3);
        daemon.kill();
        cut(&daemon.pool().join("slots.table"), length);
        daemon.start();
        let primary = Primary::new(&daemon, FabricKind::Shm, 2);
        let found = primary.fence().await;
        assert_eq!((found.boot, found.witness), (born.boot, false), "cut to {length}");
        assert!(!found.damage.is_empty(), "cut to {length}");
        primary.lend(3, Durability::Memory).await.expect("the group continues");
        daemon.terminate(Signal::TERM);
        daemon.start();
    }
}

/// The kernel ends a process that writes to what a file does not have any more.
#[tokio::test]
async fn a_file_that_is_cut_in_use_is_named() {
    let mut daemon = Daemon::started(&["--fabric", "tcp"]);
    let primary = Primary::new(&daemon, FabricKind::Tcp, 1);
    primary.fence().await;
    let mut open = primary.open(1, 1, Durability::Memory).await;
    slot_files(&daemon).iter().for_each(|file| cut(file, 0));
    let payload = [7; 100];
    let written = open.writer.append(open.local.tail_mut(), [&payload[..]].into_iter());
    open.local.publish(written);
    assert!(open.post().is_err());
    let status = daemon.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(7), "SIGBUS, {status}");
    let log = daemon.log();
    assert!(log.contains("SIGBUS") && log.contains(daemon.pool().to_str().unwrap()), "{log}");
}
