//! Boards and readers: what a backup shares, with whom, and for how long.

use super::*;

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
pub(super) struct Follower<'a> {
    primary: &'a Primary,
    pub(super) number: u64,
    reader: Box<dyn Reader>,
    channel: Box<dyn ReadChannel>,
}

impl<'a> Follower<'a> {
    pub(super) async fn connect(
        primary: &'a Primary,
        fabric: FabricKind,
        number: u64,
    ) -> Result<Follower<'a>, CallError> {
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
        let segments = segments.iter().map(|segment| SegmentId(*segment)).collect();
        self.ask(ShareRequest { board, segments, ..self.nothing() }).await
    }

    /// The parts of the mirror.
    pub(super) async fn share_mirror(&self) -> Result<Vec<ReadGrant>, CallError> {
        self.ask(ShareRequest { mirror: true, ..self.nothing() }).await.map(|shared| shared.mirror)
    }

    /// How many parts it has for a mirror, lent or not.
    pub(super) async fn mirror_parts(&self) -> Option<u32> {
        self.ask(ShareRequest { mirror: true, ..self.nothing() }).await.unwrap().mirror_parts
    }

    fn nothing(&self) -> ShareRequest {
        let Caller { group, log, .. } = self.primary.caller();
        ShareRequest { group, log, reader: self.number, board: false, mirror: false, segments: Vec::new() }
    }

    async fn ask(&self, request: ShareRequest) -> Result<ShareReply<ReadGrant>, CallError> {
        self.primary.client.call(path::SHARE, &request, TIMEOUT).await
    }

    fn read(&mut self, grant: &ReadGrant, length: u32) -> Result<Vec<u8>, ReadError> {
        self.read_at(grant, 0..length)
    }

    pub(super) fn read_at(&mut self, grant: &ReadGrant, at: Range<u32>) -> Result<Vec<u8>, ReadError> {
        let length = at.end - at.start;
        let shared = self.reader.attach(grant).map_err(|_| ReadError::Ended)?;
        self.channel.read(&shared, at, 0)?;
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
