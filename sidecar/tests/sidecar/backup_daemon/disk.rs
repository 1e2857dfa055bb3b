//! Disks and pools that are full, cut or slow.

use super::*;

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
pub(super) struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// `None` where this user may mount nothing, as root in most containers.
    fn mount(path: &std::path::Path, size: &str) -> Option<SmallDisk> {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tailwind"]).arg(path).status();
        mounted.unwrap().success().then(|| SmallDisk(path.to_owned()))
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
        let _ =
            writeln!(std::io::stderr(), "cannot run: a_backup_starts_again_on_a_full_disk: needs root that may mount");
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
    pool_of(daemon, "1m", test)
}

/// The same, of this size.
pub(super) fn pool_of(daemon: &Daemon, size: &str, test: &str) -> Option<SmallDisk> {
    let disk = SmallDisk::mount(&daemon.pool(), size);
    if disk.is_none() {
        let _ = writeln!(std::io::stderr(), "cannot run: {test}: needs root that may mount");
    }
    disk
}

/// The kubelet gives the pool's volume no byte more than its `sizeLimit`.
#[test]
fn a_pool_of_the_size_that_the_operator_gives_has_room() {
    const TABLE_HEAD: u64 = 4096;
    const TABLE_ROW: u64 = 2048;
    for (buffers, segment) in [(6, 64 << 10), (16, 8 << 20), (64, 64 << 20), (4096, 1 << 20)] {
        let folder = tempfile::tempdir().unwrap();
        let size = tailwind_report::memory::pool(buffers.into(), u64::from(segment), 4096);
        let Some(disk) = SmallDisk::mount(folder.path(), &size.to_string()) else {
            let test = "a_pool_of_the_size_that_the_operator_gives_has_room";
            let _ = writeln!(std::io::stderr(), "cannot run: {test}: needs root that may mount");
            return;
        };
        // It is made first.
        let table = vec![1; (TABLE_HEAD + u64::from(buffers) * TABLE_ROW) as usize];
        fs::write(disk.0.join("slots.table"), table).unwrap();
        let pool = tailwind_fabric::Pool::open(&disk.0, buffers, segment);
        assert!(pool.as_ref().is_ok_and(|pool| pool.has_room()), "{buffers} buffers of {segment} bytes: {pool:?}");
    }
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
