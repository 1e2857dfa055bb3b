//! Memory for a mirror: lent in parts, written, shared and read one-sidedly, and gone with its epoch.

use super::disk::pool_of;
use super::reading::Follower;
use super::*;

const PART: u32 = 8 << 20;
const FABRICS: [FabricKind; 2] = [FabricKind::Shm, FabricKind::Tcp];

fn started(fabric: FabricKind, mirror: &str) -> Daemon {
    Daemon::started(&["--fabric", &fabric.to_string(), "--mirror", mirror])
}

/// The grant of a part that can be lent.
async fn part(primary: &Primary, part: u32) -> Grant {
    primary.mirror(part).await.unwrap().grant.expect("there is memory for it")
}

fn attach(primary: &Primary, grant: &Grant) -> RemoteBuffer {
    grant.check_length(PART).unwrap();
    primary.sender.attach(grant).unwrap()
}

/// Writes a line, and waits until that has completed or failed.
fn write(channel: &mut dyn Channel, remote: &RemoteBuffer, at: u32, line: &[u8]) -> Result<(), ChannelError> {
    channel.post_bytes(remote, at, line)?;
    channel.push();
    let deadline = Instant::now() + TIMEOUT;
    while channel.poll()? == 0 {
        assert!(Instant::now() < deadline, "it completes or fails");
        std::thread::yield_now();
    }
    Ok(())
}

/// Files of parts in the pool.
fn parts(daemon: &Daemon) -> usize {
    let names = fs::read_dir(daemon.pool()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("part-")).count()
}

#[tokio::test]
async fn a_mirror_is_lent_and_shared_until_the_next_fence() {
    for fabric in FABRICS {
        let daemon = started(fabric, "17MiB");
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let mut channel = primary.connect().await.unwrap();
        let mut getter = Follower::connect(&primary, fabric, 7).await.unwrap();
        assert_eq!(getter.share_mirror().await.unwrap(), [], "nothing is lent");
        assert_eq!(getter.mirror_parts().await, Some(3), "which is not: it has none");

        let first = primary.mirror(0).await.unwrap();
        assert_eq!((first.parts, first.part_size), (3, PART));
        let (first, second) = (first.grant.unwrap(), part(&primary, 1).await);
        let json = |grant: &Grant| serde_json::to_string(grant).unwrap();
        assert_eq!(json(&part(&primary, 0).await), json(&first), "a new lending would wipe what was written");
        let lent = [attach(&primary, &first), attach(&primary, &second)];
        write(&mut *channel, &lent[0], 64, b"a line").unwrap();
        write(&mut *channel, &lent[1], PART - 64, &[7; 64]).unwrap();

        let shared = getter.share_mirror().await.unwrap();
        assert_eq!(shared.len(), 2, "the third part is not lent");
        assert_eq!(getter.read_at(&shared[0], 60..80).unwrap(), *b"\0\0\0\0a line\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(getter.read_at(&shared[1], PART - 65..PART - 63).unwrap(), [0, 7]);
        part(&primary, 2).await;
        let again = getter.share_mirror().await.unwrap();
        assert_eq!((again.len(), &again[..2]), (3, &shared[..]));
        assert_eq!(metric(&daemon, "tailwind_backup_mirror_parts_lent"), 3);

        // Deposed, its rights are over, and so is what was shared.
        let next = Primary::new(&daemon, fabric, 2);
        let inventory = next.fence().await;
        assert!(inventory.copies.is_empty() && inventory.witness, "a mirror is no copy");
        write(&mut *channel, &lent[0], 64, b"too late").unwrap_err();
        assert!(getter.read_at(&shared[0], 64..70).is_err());
        assert!(matches!(refusal(primary.mirror(0).await), Refusal::Fenced { promised: Epoch(2) }));
        let getter = Follower::connect(&primary, fabric, 7).await.unwrap();
        assert_eq!(getter.share_mirror().await.unwrap(), [], "of an earlier epoch");
        until("the memory is given back", async || parts(&daemon) == 0).await;
        assert_eq!(metric(&daemon, "tailwind_backup_mirror_parts_lent"), 0);
    }
}

/// Whether the memory of the part has been given back since the fence or not.
#[tokio::test]
async fn the_next_epoch_gets_zeros() {
    for fabric in FABRICS {
        let daemon = started(fabric, "8MiB");
        for epoch in 1..6 {
            let primary = Primary::new(&daemon, fabric, epoch);
            primary.fence().await;
            if epoch % 2 == 0 {
                until("the memory is given back", async || parts(&daemon) == 0).await;
            }
            let mut channel = primary.connect().await.unwrap();
            let remote = attach(&primary, &part(&primary, 0).await);
            let mut getter = Follower::connect(&primary, fabric, 7).await.unwrap();
            let shared = getter.share_mirror().await.unwrap();
            for at in [0, PART / 2, PART - 64] {
                assert_eq!(getter.read_at(&shared[0], at..at + 64).unwrap(), [0; 64]);
                write(&mut *channel, &remote, at, &[9; 64]).unwrap();
                assert_eq!(getter.read_at(&shared[0], at..at + 64).unwrap(), [9; 64]);
            }
        }
    }
}

/// As after the loss of a channel.
#[tokio::test]
async fn the_next_lending_is_out_of_reach_of_the_one_before() {
    for fabric in FABRICS {
        let daemon = started(fabric, "8MiB");
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let (mut lost, mut channel) = (primary.connect().await.unwrap(), primary.connect().await.unwrap());
        let first = part(&primary, 0).await;
        let before = attach(&primary, &first);
        write(&mut *lost, &before, 0, &[7; 64]).unwrap();
        let mut getter = Follower::connect(&primary, fabric, 7).await.unwrap();
        let shared = getter.share_mirror().await.unwrap();

        let second = primary.mirror_again(0, 1).await.unwrap().grant.unwrap();
        assert_ne!(second, first);
        assert_eq!(primary.mirror_again(0, 1).await.unwrap().grant.unwrap(), second, "a request that is repeated");
        let why = refusal(primary.mirror(0).await).to_string();
        assert_eq!(why, "lending 1 of this part has been asked for since");
        let remote = attach(&primary, &second);
        write(&mut *channel, &remote, 64, &[8; 64]).unwrap();
        write(&mut *lost, &before, 0, &[9; 64]).unwrap_err();
        assert!(getter.read_at(&shared[0], 0..64).is_err(), "what was shared is over");
        let mut getter = Follower::connect(&primary, fabric, 8).await.unwrap();
        let shared = getter.share_mirror().await.unwrap();
        assert_eq!(getter.read_at(&shared[0], 0..128).unwrap(), [[0; 64], [8; 64]].concat());
        assert_eq!(metric(&daemon, "tailwind_backup_mirror_parts_lent"), 1);
    }
}

#[tokio::test]
async fn parts_are_lent_to_the_promised_epoch_alone() {
    let fabric = FabricKind::Tcp;
    let daemon = started(fabric, "16MiB");
    let primary = Primary::new(&daemon, fabric, 2);
    assert!(matches!(refusal(primary.mirror(0).await), Refusal::NotFenced { .. }));
    primary.fence().await;
    let older = Primary::new(&daemon, fabric, 1);
    assert!(matches!(refusal(older.mirror(0).await), Refusal::Fenced { .. }));
    let newer = Primary::new(&daemon, fabric, 3);
    assert!(matches!(refusal(newer.mirror(0).await), Refusal::NotFenced { .. }));
    let call = async |caller: Caller| -> Result<MirrorReply<Grant>, CallError> {
        primary.client.call(path::MIRROR, &MirrorRequest { caller, part: 0, lending: 0 }, TIMEOUT).await
    };
    let another_log = Caller { log: LogId(1), ..primary.caller() };
    assert!(matches!(refusal(call(another_log).await), Refusal::WrongLog { .. }));
    let another_group = Caller { group: "evil".parse().unwrap(), ..primary.caller() };
    assert!(matches!(refusal(call(another_group).await), Refusal::WrongLog { .. }));
    for beyond in [2, 3, u32::MAX] {
        let MirrorReply { parts, part_size, grant } = primary.mirror(beyond).await.unwrap();
        assert!((parts, part_size) == (2, PART) && grant.is_none(), "part {beyond} of two");
    }
    assert_eq!(parts(&daemon), 0, "nothing was lent");

    // A mirror with a hole has no part behind it.
    part(&primary, 1).await;
    let getter = Follower::connect(&primary, fabric, 7).await.unwrap();
    assert_eq!(getter.share_mirror().await.unwrap(), []);
    part(&primary, 0).await;
    assert_eq!(getter.share_mirror().await.unwrap().len(), 2);
    let mut stranger = Follower::connect(&primary, fabric, 7).await.unwrap();
    stranger.number = 8;
    assert!(matches!(refusal(stranger.share_mirror().await), Refusal::BadRequest { .. }), "it has no channel");
}

#[tokio::test]
async fn a_backup_without_memory_for_a_mirror_says_so() {
    let daemon = Daemon::started(&[]);
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let MirrorReply { parts, grant, .. } = primary.mirror(0).await.unwrap();
    assert!(parts == 0 && grant.is_none());
    let getter = Follower::connect(&primary, FabricKind::Shm, 7).await.unwrap();
    assert_eq!((getter.share_mirror().await.unwrap(), getter.mirror_parts().await), (vec![], Some(0)));
    let (code, said) = daemon.refuses(&daemon.pool(), &daemon.flush_dir(), &["--mirror", "2GiB"]);
    assert!(code == 2 && said.contains("--mirror 2 GiB is more than"), "{code}: {said}");
}

/// It is derived: the next process has nothing of it, and lends it to the same epoch again.
#[tokio::test]
async fn a_mirror_does_not_survive_its_process() {
    for fabric in FABRICS {
        let mut daemon = started(fabric, "16MiB");
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let mut channel = primary.connect().await.unwrap();
        let stale = attach(&primary, &part(&primary, 0).await);
        part(&primary, 1).await;
        write(&mut *channel, &stale, 0, b"of an earlier life").unwrap();
        let mut getter = Follower::connect(&primary, fabric, 7).await.unwrap();
        let shared = getter.share_mirror().await.unwrap();
        daemon.kill();
        // As if there had been more parts.
        fs::copy(daemon.pool().join("part-0000.buf"), daemon.pool().join("part-0009.buf")).unwrap();
        daemon.start();
        assert_eq!(parts(&daemon), 0);
        write(&mut *channel, &stale, 0, b"late").unwrap_err();
        assert!(getter.read_at(&shared[0], 0..4).is_err());

        let primary = Primary::new(&daemon, fabric, 1);
        let mut channel = primary.connect().await.unwrap();
        let remote = attach(&primary, &part(&primary, 0).await);
        write(&mut *channel, &remote, 64, b"again").unwrap();
        let mut getter = Follower::connect(&primary, fabric, 7).await.unwrap();
        let shared = getter.share_mirror().await.unwrap();
        assert_eq!(getter.read_at(&shared[0], 0..4).unwrap(), [0; 4]);
        assert_eq!(getter.read_at(&shared[0], 64..69).unwrap(), *b"again");
    }
}

/// They are shared a few at a time, and answered together.
#[tokio::test]
async fn a_large_mirror_is_shared_as_a_whole() {
    let daemon = started(FabricKind::Shm, "136MiB");
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    let mut channel = primary.connect().await.unwrap();
    for nth in 0..17 {
        let remote = attach(&primary, &part(&primary, nth).await);
        write(&mut *channel, &remote, 0, &[nth as u8; 8]).unwrap();
    }
    let mut getter = Follower::connect(&primary, FabricKind::Shm, 7).await.unwrap();
    let shared = getter.share_mirror().await.unwrap();
    assert_eq!(shared.len(), 17);
    for (nth, grant) in (0..).zip(&shared) {
        assert_eq!(getter.read_at(grant, 0..8).unwrap(), [nth; 8]);
    }
}

/// Where there is no memory for a part it comes later, and one warning says so.
#[tokio::test]
async fn a_part_comes_later_if_it_must() {
    for fabric in FABRICS {
        let daemon = started(fabric, "16MiB");
        let primary = Primary::new(&daemon, fabric, 1);
        primary.fence().await;
        let in_the_way = daemon.pool().join("part-0001.buf");
        fs::create_dir(&in_the_way).unwrap();
        part(&primary, 0).await;
        for _ in 0..3 {
            let MirrorReply { parts, grant, .. } = primary.mirror(1).await.unwrap();
            assert!(parts == 2 && grant.is_none());
        }
        assert_eq!(daemon.log().matches("no memory is lent for a mirror").count(), 1);
        fs::remove_dir(&in_the_way).unwrap();
        part(&primary, 1).await;
    }
}

/// A pool without room for both has buffers, and appends continue.
#[tokio::test]
async fn a_mirror_takes_no_room_that_buffers_need() {
    let mut daemon = Daemon::new(&["--mirror", "16MiB"]);
    // Room for four buffers of 64 KiB, the two that a fence needs beside them, the table and one part; and not quite for another.
    let Some(_disk) = pool_of(&daemon, "16700k", "a_mirror_takes_no_room_that_buffers_need") else { return };
    daemon.start();
    let primary = Primary::new(&daemon, FabricKind::Shm, 1);
    primary.fence().await;
    part(&primary, 0).await;
    assert!(primary.mirror(1).await.unwrap().grant.is_none());
    assert!(daemon.log().contains("no room in pool"), "{}", daemon.log());
    assert!(get(&daemon, "/readyz").starts_with("HTTP/1.1 200"), "it lends buffers");
    let mut open = primary.open(1, 1, Durability::Memory).await;
    open.append(3);
    primary.open(2, 11, Durability::Memory).await;
    let next = Primary::new(&daemon, FabricKind::Shm, 2);
    assert_eq!(next.fence().await.copies.len(), 2, "nor does a fence wait");
    part(&next, 0).await;
}
