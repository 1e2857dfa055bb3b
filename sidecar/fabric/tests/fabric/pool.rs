//! The pool as an administrator meets it: folders, restarts, and every way in which it can say no.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::sync::Arc;

use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::tcp::TcpReceiver;
use tailwind_fabric::{
    ChannelAnswer, ChannelError, FabricError, Parts, Pool, PoolError, Receiver, SIDE_SLOT_SIZE, Sender, SlotId, Writer,
};
use tempfile::TempDir;

const SLOT_SIZE: u32 = 64 * 1024;
/// The slot and its flag page.
const FILE_SIZE: u64 = 64 * 1024 + 4096;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// The error, and its text as people read it.
fn refusal(dir: &Path, slots: u32, slot_size: u32) -> (PoolError, String) {
    let error = Pool::open(dir, slots, slot_size).unwrap_err();
    let message = error.to_string();
    (error, message)
}

/// Makes a pool and lends its first slot, as a daemon does that is then killed.
fn used_pool(dir: &Path) {
    let mut receiver = ShmReceiver::new(Pool::open(dir, 2, SLOT_SIZE).unwrap()).unwrap();
    receiver.lend(Writer(1), SlotId(0)).unwrap();
}

fn contents(pool: &Pool, slot: u32) -> Vec<u8> {
    let mut bytes = vec![0xee; pool.slot_size() as usize];
    pool.read(SlotId(slot), 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_new_pool_is_private_and_reads_as_zero() {
    let dir = folder();
    let pool = Pool::open(dir.path().join("pool"), 3, SLOT_SIZE).unwrap();
    assert_eq!((pool.slots(), pool.slot_size()), (3, SLOT_SIZE));
    assert_eq!(fs::metadata(dir.path().join("pool")).unwrap().mode() & 0o777, 0o700);
    assert!(!pool.path(SlotId(2)).exists(), "memory comes with the first lending");
    assert!(contents(&pool, 2) == vec![0; SLOT_SIZE as usize]);
}

/// Nothing in them is worth anything to the next process, so nothing in their place can keep that from starting.
#[test]
fn whatever_is_in_a_side_slots_place_is_replaced() {
    let spoil: [&dyn Fn(&Path); 4] = [
        &|file| fs::write(file, b"foreign").unwrap(),
        &|file| symlink("/etc/passwd", file).unwrap(),
        &|file| fs::write(file, vec![0xff; 2 * 4096]).unwrap(),
        &|file| drop(fs::write(file.with_extension("tmp"), b"half made")),
    ];
    for spoil in spoil {
        let dir = folder();
        for name in ["side.buf", "part-0000.buf", "part-0001.buf", "part-0002.buf"] {
            spoil(&dir.path().join(name));
        }
        let pool = Pool::open_with(dir.path(), 1, SLOT_SIZE, PARTS).unwrap();
        assert_eq!(part_files(dir.path()), [""; 0], "also of more than there are");
        let parts = (0..PARTS.count).map(|nth| (pool.part(nth).unwrap(), PARTS.size));
        let sides: Vec<_> = std::iter::once((pool.side_slot(), SIDE_SLOT_SIZE)).chain(parts).collect();
        assert_eq!(sides.iter().map(|(side, _)| side.0).collect::<Vec<_>>(), [1, 2, 3]);
        let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
        for (side, size) in sides {
            assert!(!pool.has(side));
            receiver.lend(Writer(1), side).unwrap();
            let metadata = fs::symlink_metadata(pool.path(side)).unwrap();
            assert!(metadata.is_file() && metadata.len() == u64::from(size) + 4096);
            assert!(metadata.blocks() * 512 >= u64::from(size), "no later write can find the file system full");
            let mut bytes = vec![0xee; size as usize];
            pool.read(side, 0, &mut bytes).unwrap();
            assert!(bytes == vec![0; size as usize]);
        }
    }
}

const PARTS: Parts = Parts { count: 2, size: 256 * 1024 };

/// Files of parts in a folder.
fn part_files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut parts: Vec<String> = names.filter(|name| name.starts_with("part-")).collect();
    parts.sort();
    parts
}

/// The next process may have more parts, fewer, none, or others. A writer or reader of the one before has nothing in either case.
#[test]
fn parts_of_an_earlier_process_are_given_back() {
    let others =
        [PARTS, Parts { count: 3, ..PARTS }, Parts { count: 1, ..PARTS }, Parts::NONE, Parts { size: 8192, ..PARTS }];
    for parts in others {
        let dir = folder();
        let mut receiver = ShmReceiver::new(Pool::open_with(dir.path(), 1, SLOT_SIZE, PARTS).unwrap()).unwrap();
        let sender = ShmSender::default();
        let mut stale = Vec::new();
        for part in 0..PARTS.count {
            let slot = SlotId(2 + part);
            let remote = sender.attach(&receiver.lend(Writer(1), slot).unwrap()).unwrap();
            let mut channel = sender.begin().unwrap().connect(&ChannelAnswer::Shm, LOCALHOST).unwrap();
            channel.post_bytes(&remote, 0, b"TWBUFFER in the bytes").unwrap();
            channel.post_bytes(&remote, 4096 + 16, b"TWBUFFER").unwrap();
            assert!(receiver.sharer().unwrap().share(slot).unwrap().is_some());
            let held = fs::File::open(dir.path().join(format!("part-000{part}.buf"))).unwrap();
            stale.push((channel, remote, held));
        }
        drop(receiver);
        let pool = Pool::open_with(dir.path(), 1, SLOT_SIZE, parts).unwrap();
        assert_eq!((part_files(dir.path()), pool.parts()), (Vec::<String>::new(), parts));
        for (channel, remote, held) in &mut stale {
            assert_eq!(channel.post_bytes(remote, 0, b"late"), Err(ChannelError::Revoked));
            let mut words = [0; 32];
            held.read_exact_at(&mut words, PARTS.size.into()).unwrap();
            assert_eq!((&words[..4], &words[24..]), (&[2, 0, 0, 0][..], &[0; 8][..]), "ended, and not shared");
            assert!(held.metadata().unwrap().blocks() * 512 <= 2 * 4096, "all but the flag page and the late write");
        }
    }
}

/// What is lent to a writer that has been revoked is not copied, and gives its memory back when it is released.
#[test]
fn a_fence_with_a_hundred_parts_copies_none() {
    let parts = Parts { count: 100, size: 64 * 1024 };
    let dir = folder();
    let pool = Pool::open_with(dir.path(), 1, SLOT_SIZE, parts).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    let sender = ShmSender::default();
    let slots: Vec<SlotId> = (0..parts.count).map(|nth| pool.part(nth).unwrap()).collect();
    let mut channel = sender.begin().unwrap().connect(&ChannelAnswer::Shm, LOCALHOST).unwrap();
    let mut held = Vec::new();
    for slot in &slots {
        let remote = sender.attach(&receiver.lend(Writer(1), *slot).unwrap()).unwrap();
        channel.post_bytes(&remote, 5000, b"an entry").unwrap();
        assert!(receiver.sharer().unwrap().share(*slot).unwrap().is_some());
        held.push((fs::File::open(pool.path(*slot)).unwrap(), remote));
    }
    receiver.revoke_below(Writer(2)).unwrap();
    for (slot, (file, remote)) in slots.iter().zip(&held) {
        let named = fs::metadata(pool.path(*slot)).unwrap();
        assert_eq!(named.ino(), file.metadata().unwrap().ino(), "the same memory");
        let mut late = sender.begin().unwrap().connect(&ChannelAnswer::Shm, LOCALHOST).unwrap();
        assert_eq!(late.post_bytes(remote, 0, b"late"), Err(ChannelError::Revoked));
        receiver.release(*slot).unwrap();
        assert!(!pool.has(*slot) && !pool.path(*slot).exists());
        assert!(file.metadata().unwrap().blocks() * 512 <= 4096, "all but the flag page");
    }
}

#[test]
fn impossible_parts_are_refused() {
    let dir = folder();
    for size in [0, 1000, 2048, 12 << 10, 128 << 20] {
        let error = Pool::open_with(dir.path(), 1, SLOT_SIZE, Parts { count: 1, size }).unwrap_err().to_string();
        assert!(error.contains("parts of") && error.contains("must be a power of two"), "{error}");
    }
}

#[test]
fn a_slot_file_is_private_and_allocated_in_full() {
    let dir = folder();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    ShmReceiver::new(Arc::clone(&pool)).unwrap().lend(Writer(1), SlotId(0)).unwrap();
    let metadata = fs::metadata(pool.path(SlotId(0))).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, FILE_SIZE));
    assert!(metadata.blocks() * 512 >= FILE_SIZE, "no later write can find the file system full");
}

#[test]
fn an_open_folder_is_made_private() {
    let dir = folder();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_world_shared_folder_is_left_unchanged() {
    let dir = folder();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    let (error, message) = refusal(dir.path(), 1, SLOT_SIZE);
    assert!(
        matches!(error, PoolError::Config { .. })
            && message.contains("its mode is 1777")
            && message.contains("a folder of its own"),
        "{message}"
    );
    assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o7777, 0o1777);
}

/// Says where `./check` finds it that a test needs root, if this is another user.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let _ = writeln!(std::io::stderr(), "cannot run: {test}: needs root");
    }
    root
}

/// A user that is not this one.
const STRANGER: u32 = 65534;

/// The owner of the folder may exchange what is in it, at any time.
#[test]
fn a_folder_of_another_user_is_refused() {
    if !is_root("a_folder_of_another_user_is_refused") {
        return;
    }
    let dir = folder();
    let pool = dir.path().join("pool");
    fs::create_dir(&pool).unwrap();
    chown(&pool, Some(STRANGER), None).unwrap();
    fs::set_permissions(&pool, Permissions::from_mode(0o755)).unwrap();
    let (error, message) = refusal(&pool, 1, SLOT_SIZE);
    assert!(matches!(error, PoolError::Config { .. }), "{message}");
    let words = format!("pool {}: it belongs to user {STRANGER}", pool.display());
    assert!(message.starts_with(&words) && message.contains("a folder of its own"), "{message}");
    let found = fs::metadata(&pool).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (STRANGER, 0o755), "left as it was");
    assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
}

#[test]
fn a_folder_that_others_may_write_is_refused() {
    for mode in [0o777, 0o770, 0o702] {
        let dir = folder();
        let pool = dir.path().join("pool");
        fs::create_dir(&pool).unwrap();
        fs::set_permissions(&pool, Permissions::from_mode(mode)).unwrap();
        let (_, message) = refusal(&pool, 1, SLOT_SIZE);
        assert!(message.contains(&format!("its mode is {mode:04o}, so other users may write to it")), "{message}");
        assert_eq!(fs::metadata(&pool).unwrap().mode() & 0o7777, mode, "left as it was");
    }
}

/// The link is the stranger's, and what it leads to is nobody's business here.
#[test]
fn a_link_of_another_user_is_not_followed() {
    if !is_root("a_link_of_another_user_is_not_followed") {
        return;
    }
    let dir = folder();
    let (target, link) = (dir.path().join("target"), dir.path().join("pool"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o755)).unwrap();
    symlink(&target, &link).unwrap();
    lchown(&link, Some(STRANGER), None).unwrap();
    for dir in [link.clone(), link.join("below")] {
        let (_, message) = refusal(&dir, 1, SLOT_SIZE);
        assert!(message.contains(&format!("{} is a link of user {STRANGER}", link.display())), "{message}");
    }
    assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o755, "left as it was");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

/// Administrators put folders elsewhere by links of their own.
#[test]
fn an_own_link_leads_to_the_pool() {
    let dir = folder();
    let link = dir.path().join("pool");
    fs::create_dir(dir.path().join("target")).unwrap();
    symlink("target", &link).unwrap();
    let pool = Pool::open(&link, 1, SLOT_SIZE).unwrap();
    let target = fs::canonicalize(dir.path()).unwrap().join("target");
    assert_eq!(pool.path(SlotId(0)).parent().unwrap(), target);
}

#[test]
fn a_slot_file_of_another_user_is_refused() {
    if !is_root("a_slot_file_of_another_user_is_refused") {
        return;
    }
    let dir = folder();
    used_pool(dir.path());
    let path = dir.path().join("slot-0000.buf");
    chown(&path, Some(STRANGER), None).unwrap();
    let (error, message) = refusal(dir.path(), 2, SLOT_SIZE);
    assert!(matches!(error, PoolError::Io { action: "open", .. }), "{message}");
    assert!(message.contains(&format!("it belongs to user {STRANGER}")), "{message}");
}

/// The folder's name may stand for another one by now: files are opened in the folder that was looked at.
#[test]
fn a_pool_stays_in_its_folder() {
    let dir = folder();
    let (path, moved) = (dir.path().join("pool"), dir.path().join("moved"));
    let pool = Pool::open(&path, 2, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    fs::rename(&path, &moved).unwrap();
    fs::create_dir(&path).unwrap();
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    receiver.revoke_below(Writer(2)).unwrap();
    assert!(moved.join("slot-0000.buf").exists());
    receiver.release(SlotId(0)).unwrap();
    assert!(!moved.join("slot-0000.buf").exists());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn a_second_daemon_is_refused_until_the_first_exits() {
    let dir = folder();
    let first = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let (error, message) = refusal(dir.path(), 1, SLOT_SIZE);
    assert!(matches!(error, PoolError::InUse { .. }));
    assert!(message.ends_with("in use by another backup daemon: stop that first, or give this one its own folder"));
    drop(first);
    Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
}

#[test]
fn a_second_receiver_is_refused_until_the_first_drops() {
    let dir = folder();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let first = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let second = TcpReceiver::new(Arc::clone(&pool), listener());
    assert!(matches!(second.unwrap_err(), FabricError::Pool(PoolError::InUse { .. })));
    drop(first);
    TcpReceiver::new(pool, listener()).unwrap();
}

#[test]
fn another_slot_size_or_fewer_slots_are_refused() {
    let dir = folder();
    used_pool(dir.path());
    let (error, message) = refusal(dir.path(), 2, 2 * SLOT_SIZE);
    assert!(matches!(error, PoolError::SlotSize { found: FILE_SIZE, .. }));
    assert!(message.contains("has 69632 bytes, but slots of 131072 bytes need 135168: set the slot size"), "{message}");

    let mut receiver = ShmReceiver::new(Pool::open(dir.path(), 8, SLOT_SIZE).unwrap()).unwrap();
    receiver.lend(Writer(1), SlotId(7)).unwrap();
    drop(receiver);
    let (error, message) = refusal(dir.path(), 7, SLOT_SIZE);
    assert!(matches!(error, PoolError::Config { .. }));
    assert!(message.contains("slot 7 exists but only 7 slots are wanted: have at least 8 slots"), "{message}");
}

#[test]
fn impossible_sizes_are_refused() {
    let dir = folder();
    for (slots, slot_size) in [(0, SLOT_SIZE), (1, 0), (1, 1000)] {
        let (error, message) = refusal(dir.path(), slots, slot_size);
        assert!(matches!(error, PoolError::Config { .. }) && message.contains("a multiple of 4096 bytes"), "{message}");
    }
}

#[test]
fn an_invalid_folder_is_refused() {
    let dir = folder();
    let (error, message) = refusal(&dir.path().join("missing/pool"), 1, SLOT_SIZE);
    assert!(matches!(error, PoolError::Io { .. }));
    assert!(message.starts_with("create pool folder ") && message.contains("missing/pool: No such file"), "{message}");
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(refusal(&dir.path().join("file"), 1, SLOT_SIZE).1.contains("ot a directory"));
    assert!(refusal(&dir.path().join("file/pool"), 1, SLOT_SIZE).1.contains("ot a directory"));
}

#[test]
fn a_file_system_that_is_too_small_is_refused() {
    let dir = folder();
    let (error, message) = refusal(dir.path(), 1 << 20, 1 << 31);
    assert!(matches!(error, PoolError::NoSpace { .. }));
    assert!(message.contains("bytes more, and its file system has"), "{message}");
}

#[test]
fn a_slot_that_is_not_a_plain_file_is_not_followed() {
    let dir = folder();
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, vec![1; FILE_SIZE as usize]).unwrap();
    symlink(&elsewhere, dir.path().join("slot-0000.buf")).unwrap();
    assert!(matches!(refusal(dir.path(), 1, SLOT_SIZE).0, PoolError::Io { action: "open", .. }));
}

#[test]
fn partial_files_left_by_a_crash_are_removed() {
    let dir = folder();
    used_pool(dir.path());
    fs::write(dir.path().join("slot-0001.tmp"), "half").unwrap();
    fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    assert!(!dir.path().join("slot-0001.tmp").exists());
    assert!(dir.path().join("notes.txt").exists());
}

/// Flag and copy are two steps. A daemon that died between them leaves a file that says *ended*; one that died before
/// the first leaves *lent*. Either way the next receiver makes the copy. What it has copied, the one after leaves
/// alone.
#[test]
fn an_interrupted_revocation_is_repeated() {
    for flag in [1, 2] {
        let dir = folder();
        used_pool(dir.path());
        let path = dir.path().join("slot-0000.buf");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"written by the old life", 77).unwrap();
        file.write_all_at(&[flag, 0, 0, 0], SLOT_SIZE.into()).unwrap();

        let inode = || fs::metadata(&path).unwrap().ino();
        let old = inode();
        let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
        drop(ShmReceiver::new(Arc::clone(&pool)).unwrap());
        let copy = inode();
        assert_ne!(old, copy, "the name stands for the copy");
        file.write_all_at(b"scribbled by a zombie  ", 77).unwrap();
        assert_eq!(&contents(&pool, 0)[77..100], b"written by the old life");
        let mut seen = [0; 4];
        file.read_exact_at(&mut seen, SLOT_SIZE.into()).unwrap();
        assert_eq!(seen, [2, 0, 0, 0], "and the zombie can know");

        drop(ShmReceiver::new(pool).unwrap());
        assert_eq!(inode(), copy, "no second copy of what nobody maps");
    }
}

#[test]
fn memory_is_freed_while_a_stalled_writer_maps_it() {
    let dir = folder();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    let give_back: [fn(&mut ShmReceiver); 3] = [
        |receiver| receiver.release(SlotId(0)).unwrap(),
        |receiver| drop(receiver.lend(Writer(1), SlotId(0)).unwrap()),
        |receiver| receiver.revoke_below(Writer(2)).unwrap(),
    ];
    for give_back in give_back {
        receiver.lend(Writer(1), SlotId(0)).unwrap();
        let held = fs::File::open(pool.path(SlotId(0))).unwrap();
        give_back(&mut receiver);
        assert_eq!(held.metadata().unwrap().nlink(), 0);
        assert!(held.metadata().unwrap().blocks() * 512 <= 4096, "all but the flag page");
    }
    receiver.release(SlotId(0)).unwrap();
    receiver.release(SlotId(0)).unwrap();
    assert!(!pool.has(SlotId(0)));
}

#[test]
fn a_finished_writer_gets_the_same_memory_again() {
    let dir = folder();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    let inode = || fs::metadata(pool.path(SlotId(0))).unwrap().ino();
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    let first = inode();
    let held = fs::File::open(pool.path(SlotId(0))).unwrap();
    receiver.end_lending(SlotId(0));
    receiver.release(SlotId(0)).unwrap();
    assert!(!pool.has(SlotId(0)));
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    assert_eq!(inode(), first);
    receiver.end_lending(SlotId(0));
    receiver.release(SlotId(0)).unwrap();
    receiver.revoke_below(Writer(2)).unwrap();
    assert_eq!((inode(), pool.has(SlotId(0))), (first, false), "a revocation has better things to do");

    receiver.lend(Writer(2), SlotId(0)).unwrap();
    assert_ne!(inode(), first, "the next writer gets memory of its own");
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    assert!(held.metadata().unwrap().blocks() * 512 <= 4096, "all but the flag page");
    let held = fs::File::open(pool.path(SlotId(0))).unwrap();
    receiver.release(SlotId(0)).unwrap();
    assert_eq!(held.metadata().unwrap().nlink(), 0, "its writer has not finished");
    receiver.lend(Writer(2), SlotId(0)).unwrap();
    let second = inode();
    receiver.end_lending(SlotId(0));
    receiver.release(SlotId(0)).unwrap();
    receiver.lend(Writer(3), SlotId(0)).unwrap();
    assert_ne!(inode(), second, "another writer");
}

/// Revocation is what a failover waits for.
#[test]
fn a_revoked_slot_takes_memory_only_where_it_was_written() {
    const SLOT_SIZE: u32 = 1 << 20;
    let dir = folder();
    let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    receiver.lend(Writer(1), SlotId(1)).unwrap();
    let writer = OpenOptions::new().write(true).open(pool.path(SlotId(0))).unwrap();
    writer.write_all_at(b"acknowledged", 300_000).unwrap();
    receiver.revoke_below(Writer(2)).unwrap();
    let memory = |slot| fs::metadata(pool.path(SlotId(slot))).unwrap().blocks() * 512;
    assert!(memory(0) <= u64::from(SLOT_SIZE) / 2, "{} bytes", memory(0));
    assert!(memory(1) <= 4096, "all but the flag page");
    let mut expected = vec![0; SLOT_SIZE as usize];
    expected[300_000..300_012].copy_from_slice(b"acknowledged");
    assert!(contents(&pool, 0) == expected);
    assert!(pool.has(SlotId(1)) && contents(&pool, 1) == vec![0; SLOT_SIZE as usize]);

    // What is lent after that has memory all over, which no full file system can take away.
    receiver.release(SlotId(0)).unwrap();
    receiver.lend(Writer(2), SlotId(0)).unwrap();
    assert!(memory(0) > u64::from(SLOT_SIZE));
    assert!(contents(&pool, 0) == vec![0; SLOT_SIZE as usize]);
}

/// To clear it would give it memory all over, and a full file system has none.
#[test]
fn a_copy_of_a_revoked_slot_is_never_kept() {
    const SLOT_SIZE: u32 = 1 << 20;
    let dir = folder();
    let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    for slot in 0..2 {
        receiver.lend(Writer(1), SlotId(slot)).unwrap();
        let writer = OpenOptions::new().write(true).open(pool.path(SlotId(slot))).unwrap();
        writer.write_all_at(&[7; 4096], 0).unwrap();
    }
    drop(receiver);
    let receiver = |pool: &Arc<Pool>| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        TcpReceiver::new(Arc::clone(pool), listener).unwrap()
    };
    let mut first = receiver(&pool);
    assert!(fs::metadata(pool.path(SlotId(0))).unwrap().blocks() * 512 <= u64::from(SLOT_SIZE) / 2);
    first.release(SlotId(0)).unwrap();
    assert!(!pool.path(SlotId(0)).exists() && !pool.has(SlotId(0)));
    drop((first, pool));

    // Nor by the next process.
    let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    let mut second = receiver(&pool);
    assert!(pool.has(SlotId(1)));
    second.release(SlotId(1)).unwrap();
    assert!(!pool.path(SlotId(1)).exists() && !pool.has(SlotId(1)));

    // What is lent after that has memory all over, and is kept.
    second.lend(Writer(2), SlotId(1)).unwrap();
    let inode = || fs::metadata(pool.path(SlotId(1))).unwrap().ino();
    let lent = inode();
    assert!(fs::metadata(pool.path(SlotId(1))).unwrap().blocks() * 512 > u64::from(SLOT_SIZE));
    second.release(SlotId(1)).unwrap();
    assert_eq!(inode(), lent);
    assert!(contents(&pool, 1) == vec![0; SLOT_SIZE as usize]);
}

/// A process that died while it cleared a spare, or before, leaves bytes that count for nothing.
#[test]
fn a_spare_of_an_earlier_process_is_no_memory() {
    let dir = folder();
    {
        let mut receiver = ShmReceiver::new(Pool::open(dir.path(), 2, SLOT_SIZE).unwrap()).unwrap();
        receiver.lend(Writer(1), SlotId(0)).unwrap();
        let file = OpenOptions::new().write(true).open(dir.path().join("slot-0000.buf")).unwrap();
        file.write_all_at(b"old bytes", 5).unwrap();
        receiver.end_lending(SlotId(0));
        receiver.release(SlotId(0)).unwrap();
    }
    let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    assert!(!pool.has(SlotId(0)));
    assert!(contents(&pool, 0) == vec![0; SLOT_SIZE as usize]);
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    receiver.lend(Writer(2), SlotId(0)).unwrap();
    assert!(pool.has(SlotId(0)) && contents(&pool, 0) == vec![0; SLOT_SIZE as usize]);
}

#[test]
#[should_panic(expected = "within its slot")]
fn reading_beyond_the_slot_panics() {
    let dir = folder();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let _ = pool.read(SlotId(0), SLOT_SIZE - 1, &mut [0; 2]);
}

#[test]
fn a_truncated_slot_file_is_refused() {
    let dir = folder();
    used_pool(dir.path());
    let path = dir.path().join("slot-0000.buf");
    assert!(Pool::open(dir.path(), 2, SLOT_SIZE).unwrap().has(SlotId(0)));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(FILE_SIZE).unwrap();
    let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
    assert!(!pool.has(SlotId(0)), "zeros that nobody has lent");
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    receiver.lend(Writer(2), SlotId(0)).unwrap();
    assert!(pool.has(SlotId(0)), "the next lending has memory again");
}

/// Only the group's own user can have cut it. What was in it is gone, and that is for the backup to report; a file that was made
/// for slots of another size is a mistake of options.
#[test]
fn a_cut_slot_file_is_no_memory() {
    for length in [0, 4096, 5000, u64::from(SLOT_SIZE), FILE_SIZE - 1] {
        let dir = folder();
        used_pool(dir.path());
        let path = dir.path().join("slot-0000.buf");
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
        assert!(!pool.has(SlotId(0)), "{length} bytes");
        assert!(contents(&pool, 0) == vec![0; SLOT_SIZE as usize]);
        let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
        receiver.lend(Writer(2), SlotId(0)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), FILE_SIZE, "the next lending has memory again");
    }
}
