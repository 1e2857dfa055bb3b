use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tailwind_backup::{BackupConfig, MemberState, OsFolder, SlotTable, Started, start};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity};

use super::*;

/// A backup's two folders.
struct Folders {
    dir: tempfile::TempDir,
    home: BackupConfig,
}

fn folders() -> Folders {
    let dir = tempfile::tempdir().unwrap();
    let home = BackupConfig {
        group: "db".parse().unwrap(),
        member: "b0".parse().unwrap(),
        pool: dir.path().join("pool"),
        buffers: 2,
        segment_size: SegmentSize::MIN,
        kernel: "this boot".to_owned(),
    };
    Folders { dir, home }
}

impl Folders {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self) -> anyhow::Result<Started> {
        self.start_as(&self.home, &self.path("flush"))
    }

    fn start_as(&self, home: &BackupConfig, flush_dir: &Path) -> anyhow::Result<Started> {
        let mut memory = PoolMemory::new(home.pool.clone(), home.buffers, home.segment_size);
        start(home, Box::new(OsFolder::open(flush_dir)?), &mut memory, fresh_boot_id()?)
    }

    /// A new pool, and what lends it over `shm`.
    fn lent(&self) -> (Lent, Arc<Pool>) {
        let mut memory = PoolMemory::new(self.path("pool"), 2, SegmentSize::MIN);
        memory.folder().unwrap();
        memory.open().unwrap();
        let pool = Arc::clone(memory.pool().unwrap());
        (Lent::new(Box::new(ShmReceiver::new(Arc::clone(&pool)).unwrap()), Arc::clone(&pool)), pool)
    }

    /// Starts, returns its identity, and changes what it has promised.
    fn live(&self, change: impl FnOnce(&mut MemberState)) -> BootId {
        let mut started = self.start().unwrap();
        let boot = started.member_state.boot;
        change(&mut started.member_state);
        started.promise_file.write(&started.member_state).unwrap();
        boot
    }
}

fn nothing(_: &mut MemberState) {}

#[test]
fn memory_that_survives_keeps_the_identity() {
    let folders = folders();
    let born = folders.live(|member_state| member_state.promise.epoch = Epoch(5));
    assert_eq!(folders.live(nothing), born);
    assert_eq!(folders.start().unwrap().member_state.promise.epoch, Epoch(5));
}

#[test]
fn memory_from_before_a_reboot_is_discarded() {
    let folders = folders();
    let born = folders.live(|member_state| member_state.promise.epoch = Epoch(5));
    fs::write(folders.path("pool/slot-0000.buf"), "of any size").unwrap();
    let rebooted = BackupConfig { kernel: "another boot".to_owned(), ..folders.home.clone() };
    let started = folders.start_as(&rebooted, &folders.path("flush")).unwrap();
    assert_ne!(started.member_state.boot, born);
    assert_eq!(started.member_state.promise.epoch, Epoch(5));
}

/// For each: whether the shutdown was complete, the durability, and whether the identity outlives the memory.
#[test]
fn identity_survives_memory_loss_only_if_disk_is_complete() {
    for (complete, durability, keeps) in [
        (false, Durability::Memory, false),
        (false, Durability::Battery, false),
        (false, Durability::Flushed, true),
        (true, Durability::Memory, true),
        (true, Durability::Battery, true),
        (true, Durability::Flushed, true),
    ] {
        let folders = folders();
        let born = folders.live(|member_state| {
            member_state.complete = complete;
            member_state.promise.durability = durability;
        });
        fs::remove_dir_all(folders.path("pool")).unwrap();
        assert_eq!(folders.live(nothing) == born, keeps, "complete {complete}, {durability}");
    }
}

#[test]
fn folders_of_another_backup_are_refused() {
    let folders = folders();
    folders.live(nothing);
    let somebody_else = BackupConfig { member: "b1".parse().unwrap(), ..folders.home.clone() };
    let error = folders.start_as(&somebody_else, &folders.path("flush")).unwrap_err().to_string();
    assert!(error.contains("belongs to backup b0 of group db"), "{error}");
    let error = folders.start_as(&folders.home, &folders.path("elsewhere")).unwrap_err().to_string();
    assert!(error.contains("holds no promise"), "{error}");
    assert!(!folders.path("elsewhere/promise").exists(), "nothing was reset");
}

#[test]
fn segments_without_a_promise_are_refused() {
    let folders = folders();
    folders.live(nothing);
    fs::remove_dir_all(folders.path("pool")).unwrap();
    fs::remove_file(folders.path("flush/promise")).unwrap();
    fs::write(folders.path("flush/segment-0000000000000001.closed"), "").unwrap();
    let error = folders.start().unwrap_err().to_string();
    assert!(error.contains("holds segments but no promise file"), "{error}");
}

#[test]
fn a_second_daemon_cannot_use_the_pool() {
    let folders = folders();
    let mut memory = PoolMemory::new(folders.home.pool.clone(), 2, SegmentSize::MIN);
    let table = SlotTable::open(memory.table().unwrap(), &folders.home.pool).unwrap();
    let error = memory.table().unwrap_err().to_string();
    assert!(error.contains("in use by another backup daemon"), "{error}");
    drop(table);
    memory.table().unwrap();
}

/// Restoring an older ledger or truncating it loses what only the ledger can name.
#[test]
fn an_older_ledger_raises_a_doubt() {
    let folders = folders();
    folders.live(|member_state| member_state.promise.log = Some(LogId(7)));
    let ledger = folders.path("flush/ledger");
    let older = fs::read(&ledger).unwrap();
    let mut started = folders.start().unwrap();
    let identity = SegmentIdentity {
        log: LogId(7),
        segment: SegmentId(1),
        epoch: Epoch(1),
        generation: Generation(1),
        size: SegmentSize::MIN,
    };
    let closure = Closure { first: Lsn(1), last: Lsn(1), end: Offset(8000), chain: Chain(5) };
    started.ledger.owe(started.disk.folder(), &[(identity, closure)]).unwrap();
    started.flushed.write().unwrap();
    drop(started);
    assert_eq!(folders.start().unwrap().found.doubts, [""; 0]);
    fs::write(&ledger, older).unwrap();
    let doubts = folders.start().unwrap().found.doubts;
    assert!(matches!(&doubts[..], [doubt] if doubt.contains("entries of the ledger")), "{doubts:?}");
}

/// Its note may have outlived it, if the disk refused to write the notes when it was dropped.
#[test]
fn a_dropped_empty_open_segment_does_not_return() {
    let identity = SegmentIdentity {
        log: LogId(7),
        segment: SegmentId(3),
        epoch: Epoch(2),
        generation: Generation(1),
        size: SegmentSize::MIN,
    };
    let folders = folders();
    folders.live(|MemberState { promise, .. }| {
        (promise.log, promise.epoch, promise.durability) = (Some(LogId(7)), Epoch(2), Durability::Flushed);
    });
    let mut flushed = folders.start().unwrap().flushed;
    flushed.note(&identity, Offset(0));
    flushed.write().unwrap();
    let lose_memory = || fs::remove_dir_all(folders.path("pool")).unwrap();
    lose_memory();
    let started = folders.start().unwrap();
    assert_eq!(
        started.found.rows.iter().map(|(_, row)| row.identity).collect::<Vec<_>>(),
        [identity],
        "open and empty"
    );
    started.table.save(started.found.rows[0].0, None).unwrap();
    drop(started);
    assert_eq!(folders.start().unwrap().found.rows, [], "dropped");
    lose_memory();
    assert_eq!(folders.start().unwrap().found.rows, [], "it is back");
}

/// It used to wait for a writer on the FIFO.
#[test]
fn a_fifo_named_like_a_segment_does_not_block_start() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folders = folders();
    folders.live(nothing);
    for name in ["flush/segment-0000000000000001.closed", "flush/segment-0000000000000002.open"] {
        mknodat(CWD, folders.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    assert_eq!(folders.start().unwrap().unexpected_files, 2);
}

/// A request that was given up may still be copying into the memory: it is not lent again in place.
#[test]
fn memory_that_was_granted_twice_is_not_lent_again() {
    let folders = folders();
    let (mut lent, pool) = folders.lent();
    let file = || fs::File::open(pool.path(SlotId(0))).unwrap();
    let inode = |file: &fs::File| file.metadata().unwrap().ino();
    for (grants, is_kept) in [(1, true), (2, false)] {
        lent.lend(Epoch(1), Slot(0)).unwrap();
        let before = file();
        (0..grants).for_each(|_| drop(lent.grant(Slot(0)).cloned().unwrap()));
        lent.end_lending(Slot(0));
        lent.release(Slot(0)).unwrap();
        lent.lend(Epoch(1), Slot(0)).unwrap();
        assert_eq!(inode(&file()) == inode(&before), is_kept, "granted {grants} times");
        lent.release(Slot(0)).unwrap();
    }
}

/// The primary writes boards only while a reader looks at one.
#[test]
fn a_backup_knows_whether_it_is_followed() {
    let folders = folders();
    let (mut lent, _) = folders.lent();
    let followed = lent.watch_followed();
    let [one, two, copies] = [1, 2, 3].map(ReaderId);
    for reader in [one, two, copies] {
        drop(lent.admit_reader(reader, &Offer::Shm, false).unwrap());
    }
    lent.note_reader(copies, false).unwrap();
    assert!(!*followed.borrow(), "a channel alone looks at nothing");
    lent.note_reader(one, true).unwrap();
    lent.note_reader(two, true).unwrap();
    lent.note_reader(one, false).unwrap();
    drop(lent.admit_reader(two, &Offer::Shm, false).unwrap());
    lent.dismiss_reader(one);
    assert!(*followed.borrow(), "the second one looks, and asks for other things as well");
    lent.dismiss_silent_readers();
    assert!(*followed.borrow(), "nobody has been silent for long");
    lent.dismiss_reader(two);
    assert!(!*followed.borrow());
    assert!(lent.note_reader(one, true).is_err() && !*followed.borrow(), "it has no channel");
}
