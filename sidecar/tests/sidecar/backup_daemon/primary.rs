//! A primary of the tests: what it asks one backup for, and the segments that it writes there.

use super::*;

/// A primary as far as one backup sees it.
pub(super) struct Primary {
    pub(super) client: BackupClient,
    pub(super) epoch: Epoch,
    pub(super) sender: Box<dyn Sender>,
}

/// A segment on its way.
pub(super) struct Open {
    pub(super) writer: SegmentWriter,
    pub(super) local: AppendBuffer,
    pub(super) shared: SharedBuffer,
    pub(super) remote: RemoteBuffer,
    pub(super) channel: Box<dyn Channel>,
    pub(super) sent: u32,
}

impl Primary {
    pub(super) fn new(daemon: &Daemon, fabric: FabricKind, epoch: u64) -> Primary {
        let client = BackupClient::new(daemon.control(), &token(daemon), PeerRole::Backup);
        let sender: Box<dyn Sender> = match fabric {
            FabricKind::Shm => Box::<ShmSender>::default(),
            FabricKind::Tcp => Box::<TcpSender>::default(),
            other => unreachable!("{other} has tests elsewhere"),
        };
        Primary { client, epoch: Epoch(epoch), sender }
    }

    pub(super) fn caller(&self) -> Caller {
        Caller { group: "db".parse().unwrap(), log: LOG, epoch: self.epoch }
    }

    pub(super) fn identity(&self, segment: u64) -> SegmentIdentity {
        let generation = Generation(segment * 1000 + self.epoch.0);
        SegmentIdentity { log: LOG, segment: SegmentId(segment), epoch: self.epoch, generation, size: SegmentSize::MIN }
    }

    pub(super) async fn fence(&self) -> Inventory {
        self.client.call(path::FENCE, &fence(self.caller()), TIMEOUT).await.unwrap()
    }

    pub(super) async fn inventory(&self) -> Inventory {
        self.client.call(path::INVENTORY, &Empty {}, TIMEOUT).await.unwrap()
    }

    pub(super) async fn connect(&self) -> Result<Box<dyn Channel>, CallError> {
        self.connect_with(false).await.map(|(channel, _)| channel)
    }

    pub(super) async fn connect_with(&self, board: bool) -> Result<(Box<dyn Channel>, Option<Grant>), CallError> {
        let opening = self.sender.begin().unwrap();
        let request = ConnectRequest { caller: self.caller(), offer: opening.offer(), board };
        let ConnectReply { answer, board, .. } =
            self.client.call::<_, ConnectReply<ChannelAnswer, Grant>>(path::CONNECT, &request, TIMEOUT).await?;
        Ok((opening.connect(&answer, self.client.peer_ip().unwrap()).unwrap(), board))
    }

    pub(super) async fn lend(&self, segment: u64, durability: Durability) -> Result<Grant, CallError> {
        self.lend_with_board(segment, durability).await.map(|(grant, _)| grant)
    }

    pub(super) async fn lend_with_board(
        &self,
        segment: u64,
        durability: Durability,
    ) -> Result<(Grant, Option<Grant>), CallError> {
        let identity = self.identity(segment);
        let request = OpenRequest { caller: self.caller(), identity, purpose: Purpose::Append, durability };
        let OpenReply { grant, board } = self.client.call(path::OPEN, &request, TIMEOUT).await?;
        Ok((grant, board))
    }

    pub(super) async fn mirror(&self, part: u32) -> Result<MirrorReply<Grant>, CallError> {
        self.mirror_again(part, 0).await
    }

    /// The lending of this number.
    pub(super) async fn mirror_again(&self, part: u32, lending: u32) -> Result<MirrorReply<Grant>, CallError> {
        self.client.call(path::MIRROR, &MirrorRequest { caller: self.caller(), part, lending }, TIMEOUT).await
    }

    pub(super) async fn open(&self, segment: u64, first: u64, durability: Durability) -> Open {
        let channel = self.connect().await.unwrap();
        let grant = self.lend(segment, durability).await.unwrap();
        let remote = self.sender.attach(&grant).unwrap();
        let (mut local, shared) = self.sender.allocate(SegmentSize::MIN.bytes()).unwrap();
        let (writer, written) = SegmentWriter::open(self.identity(segment), Lsn(first), local.tail_mut());
        local.publish(written);
        Open { writer, local, shared, remote, channel, sent: 0 }
    }

    pub(super) async fn close(&self, open: &Open) {
        let request =
            CloseRequest { caller: self.caller(), identity: *open.writer.identity(), closure: open.writer.closure() };
        let Empty {} = self.client.call(path::CLOSE, &request, TIMEOUT).await.unwrap();
    }

    pub(super) async fn write_closed(&self, segment: u64, first: u64) -> (SegmentIdentity, Closure) {
        let mut open = self.open(segment, first, Durability::Memory).await;
        open.append(10);
        self.close(&open).await;
        (*open.writer.identity(), open.writer.closure())
    }

    pub(super) async fn fetch(&self, identity: SegmentIdentity, closure: Closure) -> Result<Vec<u8>, CallError> {
        self.fetch_with(identity, closure, true).await
    }

    pub(super) async fn fetch_with(
        &self,
        identity: SegmentIdentity,
        closure: Closure,
        check: bool,
    ) -> Result<Vec<u8>, CallError> {
        self.send_fetch(FetchRequest { group: "db".parse().unwrap(), identity, closure, check, range: None }).await
    }

    pub(super) async fn fetch_range(
        &self,
        identity: SegmentIdentity,
        closure: Closure,
        check: bool,
        range: Range<u32>,
    ) -> Result<Vec<u8>, CallError> {
        let range = Some(range);
        self.send_fetch(FetchRequest { group: "db".parse().unwrap(), identity, closure, check, range }).await
    }

    async fn send_fetch(&self, request: FetchRequest) -> Result<Vec<u8>, CallError> {
        let mut bytes = Vec::new();
        self.client.fetch(&request, TIMEOUT, |piece| bytes.extend_from_slice(piece)).await?;
        Ok(bytes)
    }

    pub(super) async fn flush(&self, open: &Open) {
        let request =
            FlushRequest { caller: self.caller(), identity: *open.writer.identity(), end: open.writer.closure().end };
        let FlushReply { end } = self.client.call(path::FLUSH, &request, TIMEOUT).await.unwrap();
        assert_eq!(end, request.end);
    }
}

impl Open {
    /// Appends records and waits until the backup has them.
    pub(super) fn append(&mut self, records: usize) {
        for record in 0..records {
            let payload = format!("record {record}");
            let written = self.writer.append(self.local.tail_mut(), [payload.as_bytes()].into_iter());
            self.local.publish(written);
        }
        self.post().unwrap();
    }

    pub(super) fn post(&mut self) -> Result<(), ChannelError> {
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
