//! Who may ask a backup for what.

use super::reading::Follower;
use super::*;

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
        (path::MIRROR, false),
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
        // It may move to the disk while it is sent. A backup verifies what has come, and asks again.
        let is_sound = async || {
            let bytes = of_a_backup.fetch_with(identity, closure, check).await.unwrap();
            scan::verify(&bytes, &identity, &closure)
        };
        until(&format!("a sound copy comes, check {check}"), is_sound).await;
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
