//! The append path alone: it leads over three backups' shared memory, and the test turns it by hand.
//!
//! Every channel has a gate: while it is shut, writes land and their completions wait, so that nothing is acknowledged.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::{
    Channel, ChannelError, Offer, Pool, Receiver, RemoteBuffer, Sender, SharedBuffer, SlotId, Writer,
};
use tailwind_primary::Table;
use tailwind_protocol::board::{self, BoardIdentity, Progress};
use tailwind_protocol::config::{Configuration, Cut, Durability, Time};
use tailwind_protocol::ids::{BootId, Epoch, Lsn, Offset};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::Inventory;
use tailwind_protocol::scan::{ScanReport, Scanner, scan};
use tailwind_protocol::socket::{HELLO_RING, Request, Response, Role, VERSION, decode_response};
use tailwind_protocol::table::bounds::{self, Bounds};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_ring::ClientEnd;
use tailwind_sidecar::path::{
    Allowed, AppendLoop, COMMANDS_MAX, ClientRequest, Command, ControlReceivers, Counters, FromTerm, Options, Waker,
    control_channels,
};

use configuration::{BACKUPS, configuration};

#[path = "configuration.rs"]
pub mod configuration;

/// A condition that is not met after so many turns is not going to be.
const TURNS_MAX: usize = 100_000;

/// A path that leads, with three backups' memory behind it.
pub struct LoopHarness {
    pub path: AppendLoop,
    pub from_path: ControlReceivers,
    pub shut: Arc<AtomicBool>,
    /// The same for the spare alone.
    pub spare_shut: Arc<AtomicBool>,
    /// The depth of every data channel: see `Channel::depth`.
    pub depth: Arc<AtomicU32>,
    /// Writes posted to backups.
    pub posts: Arc<AtomicU32>,
    /// Whether lines linger in every data channel: see `Channel::lingers`.
    pub lingers: Arc<AtomicBool>,
    /// Lines that have gone out with a post.
    pub ridden: Arc<AtomicU32>,
    pub counters: Arc<Counters>,
    segment_size: SegmentSize,
    /// Of the table, if there is one.
    table: Option<Limits>,
    receivers: Vec<ShmReceiver>,
    pools: Vec<Arc<Pool>>,
    /// The segments of the first term, of which the backups hold copies.
    segments: Vec<SegmentIdentity>,
    terms: u64,
    /// Losses that were accepted before the next term.
    pub cuts: Vec<Cut>,
    /// The seats of the present term's members.
    seats: Vec<Seat>,
    commands: std::sync::mpsc::SyncSender<Command>,
    listener: UnixListener,
    folder: tempfile::TempDir,
}

/// Of the table with the least memory.
fn table_bounds(segment_size: SegmentSize) -> Bounds {
    Bounds::new(segment_size, bounds::SEGMENTS_MIN).unwrap()
}

/// A shared-memory channel whose completions wait while the gate is shut.
#[derive(Debug)]
struct Gated {
    channel: Box<dyn Channel>,
    shut: Arc<AtomicBool>,
    depth: Arc<AtomicU32>,
    posts: Arc<AtomicU32>,
    lingers: Arc<AtomicBool>,
    ridden: Arc<AtomicU32>,
    lingering: Vec<(RemoteBuffer, u32, Vec<u8>)>,
}

impl Channel for Gated {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        self.ridden.fetch_add(self.lingering.len() as u32, Ordering::Relaxed);
        self.push();
        self.posts.fetch_add(1, Ordering::Relaxed);
        self.channel.post(remote, local, range)
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        if self.lingers.load(Ordering::Relaxed) {
            self.lingering.push((remote.clone(), at, bytes.to_vec()));
            return Ok(());
        }
        self.channel.post_bytes(remote, at, bytes)
    }

    fn lingers(&self) -> bool {
        !self.lingering.is_empty()
    }

    fn push(&mut self) {
        for (remote, at, bytes) in self.lingering.drain(..) {
            self.channel.post_bytes(&remote, at, &bytes).unwrap();
        }
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        if self.shut.load(Ordering::Relaxed) { Ok(0) } else { self.channel.poll() }
    }

    fn depth(&self) -> u32 {
        self.depth.load(Ordering::Relaxed)
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.channel.readiness()
    }

    fn waits_for_room(&self) -> bool {
        self.channel.waits_for_room()
    }

    fn arm(&mut self) -> bool {
        self.channel.arm()
    }
}

impl LoopHarness {
    /// A path that leads epoch 1.
    pub fn new() -> LoopHarness {
        LoopHarness::with(LoopHarness::options())
    }

    /// The options of [`LoopHarness::new`].
    pub fn options() -> Options {
        Options {
            allowed: Allowed::Own,
            segment_size: SegmentSize::DEFAULT,
            table: false,
            batch_memory: 64 << 20,
            client_timeout: Duration::from_secs(60),
            rings_max: 64,
            spin: Duration::ZERO,
        }
    }

    /// A path that leads epoch 1 of a group that keeps a table of so many keys, in segments of this size.
    pub fn of_table(segment_size: SegmentSize, keys_max: u32) -> LoopHarness {
        LoopHarness::of_table_with(segment_size, keys_max, table_bounds(segment_size).live_bytes_max())
    }

    /// The same, with room for so many bytes of live records.
    pub fn of_table_with(segment_size: SegmentSize, keys_max: u32, live_bytes_max: u64) -> LoopHarness {
        let options = Options { table: true, segment_size, ..LoopHarness::options() };
        LoopHarness::new_with(options, Some(Limits { buckets: Buckets::for_keys(keys_max), keys_max, live_bytes_max }))
    }

    /// A path with other options that leads epoch 1.
    pub fn with(options: Options) -> LoopHarness {
        LoopHarness::new_with(options, None)
    }

    fn new_with(options: Options, table: Option<Limits>) -> LoopHarness {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (commands, inbox) = std::sync::mpsc::sync_channel(COMMANDS_MAX);
        let (to_control, from_path) = control_channels();
        let segment_size = options.segment_size;
        let listening = listener.try_clone().unwrap();
        let waker = Waker::new().unwrap();
        let counters = Arc::new(Counters::default());
        let path = AppendLoop::new(options, "a".into(), listener, inbox, to_control, Arc::clone(&counters), &waker);
        let pool = |n| Pool::open(folder.path().join(format!("pool{n}")), 8, segment_size.bytes()).unwrap();
        // The last one is the spare's.
        let pools: Vec<_> = (0..=BACKUPS).map(pool).collect();
        let receivers = pools.iter().map(|pool| ShmReceiver::new(Arc::clone(pool)).unwrap());
        let mut harness = LoopHarness {
            path: path.unwrap(),
            from_path,
            shut: Arc::new(AtomicBool::new(false)),
            spare_shut: Arc::new(AtomicBool::new(false)),
            depth: Arc::new(AtomicU32::new(u32::MAX)),
            posts: Arc::default(),
            lingers: Arc::default(),
            ridden: Arc::default(),
            seats: Vec::new(),
            counters,
            segment_size,
            table,
            receivers: receivers.collect(),
            pools,
            segments: Vec::new(),
            terms: 0,
            cuts: Vec::new(),
            commands,
            listener: listening,
            folder,
        };
        harness.lead(1);
        harness
    }

    /// Has the path lead `epoch`, over a log that is empty.
    pub fn lead(&mut self, epoch: u64) {
        self.begin(epoch, true);
    }

    /// As `lead`, in a group whose members have no room for the first segment.
    pub fn lead_without_room(&mut self, epoch: u64) {
        self.begin(epoch, false);
    }

    fn begin(&mut self, epoch: u64, room: bool) {
        let rules = Rules {
            backups: BACKUPS as u8,
            min_in_sync: 2,
            durability: Durability::Memory,
            segment_size: self.segment_size,
            open_timeout_ms: 60_000,
            recruit_interval_ms: 60_000,
            swap_interval_ms: 60_000,
        };
        let mut outputs = Vec::new();
        let config = Configuration { cuts: self.cuts.clone(), ..configuration(epoch) };
        let primary = Primary::new(config, rules, &Reference::default(), 7, Time(0), &mut outputs);
        let (window, bounds) = (Window::new(self.segment_size), table_bounds(self.segment_size));
        let empty = |limits| Box::new(Table::new(Index::new(HashKey([7; 16]), limits, window), bounds));
        let table = self.table.map(empty);
        self.command(Command::Lead(Box::new(primary), 0, table));
        // Slots that an earlier term was lent are not used again.
        let (writer, slots) = (Writer(epoch), 2 * self.terms as u32);
        self.terms += 1;
        self.seats.clear();
        while !outputs.is_empty() {
            for output in outputs.drain(..).filter(|output| room || !matches!(output, Output::Open(..))) {
                self.execute(writer, slots, output);
            }
            self.path.turn().unwrap();
            outputs.extend(std::iter::from_fn(|| self.wanted()));
        }
    }

    /// What the machine wants done next.
    pub fn wanted(&mut self) -> Option<Output> {
        loop {
            match self.from_path.outputs.try_recv().ok()? {
                FromTerm::Do(output) => return Some(output),
                FromTerm::ChannelFailed(..) => {}
            }
        }
    }

    /// Carries out what the machine wants in the first term, closes included, as members do.
    pub fn carry_out(&mut self) {
        while let Some(output) = self.wanted() {
            match output {
                Output::Prepare(_) | Output::Open(..) => self.execute(Writer(1), 0, output),
                output => {
                    output.done(Offset(0)).into_iter().for_each(|done| self.command(Command::Input(Epoch(1), done)));
                }
            }
            self.settle();
        }
    }

    fn execute(&mut self, writer: Writer, slots: u32, output: Output) {
        let epoch = Epoch(writer.0);
        match output {
            Output::Connect(seat, _) => {
                let receiver = &mut self.receivers[usize::from(seat.index)];
                let answer = receiver.accept(writer, &Offer::Shm).unwrap().complete().unwrap();
                let channel = ShmSender::default().begin().unwrap().connect(&answer, [127, 0, 0, 1].into()).unwrap();
                let shut = if usize::from(seat.index) == BACKUPS { &self.spare_shut } else { &self.shut };
                let (shut, depth, posts) = (Arc::clone(shut), Arc::clone(&self.depth), Arc::clone(&self.posts));
                let (lingers, ridden) = (Arc::clone(&self.lingers), Arc::clone(&self.ridden));
                let gated = Gated { channel, shut, depth, posts, lingers, ridden, lingering: Vec::new() };
                let gated = Box::new(gated);
                self.seats.push(seat);
                let side = self.pools[usize::from(seat.index)].side_slot();
                let board = ShmSender::default().attach(&receiver.lend(writer, side).unwrap()).unwrap();
                self.command(Command::Connected(epoch, seat, gated, Some(board)));
            }
            Output::Prepare(identity) => {
                let (fresh, shared) = ShmSender::default().allocate(identity.size.bytes()).unwrap();
                self.command(Command::Prepared(identity, fresh, shared));
                self.segments.push(identity);
            }
            Output::Open(seat, identity) => {
                let slot = SlotId(slots + identity.segment.0 as u32);
                let grant = self.receivers[usize::from(seat.index)].lend(writer, slot).unwrap();
                let remote = ShmSender::default().attach(&grant).unwrap();
                self.command(Command::Opened(epoch, seat, identity.segment, remote));
            }
            other => panic!("unexpected at the start: {other:?}"),
        }
    }

    /// Readers look at a member's board, or no longer.
    pub fn tell_followed(&self, followed: bool) {
        self.command(Command::Input(Epoch(self.terms), Input::Followed(self.seats[0], followed)));
    }

    /// The path wants one more member, and gets the spare as its newcomer.
    pub fn recruit(&mut self) {
        let epoch = Epoch(self.terms);
        let (backups, min_in_sync) = (BACKUPS as u8 + 1, 2);
        self.command(Command::Input(epoch, Input::Wanted { backups, min_in_sync }));
        let mut spare = configuration(epoch.0).members[0].clone();
        spare.id = "spare".parse().unwrap();
        spare.boot = BootId(99);
        let (mut opened, slots) = (0, 2 * (self.terms as u32 - 1));
        while opened < 2 {
            let output = self.until("the next output", LoopHarness::wanted);
            match output {
                Output::Survey => self.command(Command::Input(epoch, Input::Surveyed(vec![spare.clone()]))),
                Output::Fence(member) => {
                    let inventory = Inventory {
                        member: spare.id.clone(),
                        boot: spare.boot,
                        log: None,
                        promised: epoch,
                        trimmed: Lsn(0),
                        damage: Vec::new(),
                        witness: true,
                        synced: None,
                        former: Vec::new(),
                        copies: Vec::new(),
                        more: false,
                    };
                    self.command(Command::Input(epoch, Input::Fenced(member, Ok(inventory))));
                }
                output => {
                    opened += u32::from(matches!(output, Output::Open(..)));
                    self.execute(Writer(epoch.0), slots, output);
                }
            }
        }
    }

    /// What a scan finds in each backup's copy of the first segment.
    pub fn scan(&self) -> Vec<ScanReport> {
        let identity = &self.segments[0];
        let scan = |pool: &Arc<Pool>| {
            let mut bytes = vec![0; identity.size.bytes() as usize];
            pool.read(SlotId(identity.segment.0 as u32), 0, &mut bytes).unwrap();
            scan(&bytes, identity)
        };
        self.pools[..BACKUPS].iter().map(scan).collect()
    }

    /// The records in the first backup's copy of the first segment.
    pub fn records(&self) -> Vec<(Lsn, Vec<u8>)> {
        let identity = &self.segments[0];
        let mut bytes = vec![0; identity.size.bytes() as usize];
        self.pools[0].read(SlotId(identity.segment.0 as u32), 0, &mut bytes).unwrap();
        let mut scanner = Scanner::new(&bytes, identity).unwrap();
        let appends = std::iter::from_fn(|| scanner.next_append().ok());
        appends.flat_map(|append| append.records().map(|r| (r.lsn, r.payload.to_vec())).collect::<Vec<_>>()).collect()
    }

    /// What readers find on each backup's board; the spare's is not one of them.
    pub fn boards(&self) -> Vec<Option<(BoardIdentity, Progress)>> {
        let read = |pool: &Arc<Pool>| {
            let mut bytes = [0; board::LINES.end as usize];
            pool.read(pool.side_slot(), board::LINES.start, &mut bytes).unwrap();
            board::decode(&bytes)
        };
        self.pools[..BACKUPS].iter().map(read).collect()
    }

    /// Another sidecar leads `epoch` now.
    pub fn stand_by(&mut self, epoch: u64) {
        self.command(Command::Wait { role: Role::Standby, epoch, primary: "b".into() });
    }

    pub fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// From now on no client can be accepted, as for want of file descriptors.
    pub fn refuse_clients(&self) {
        rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read).unwrap();
        // Only a call that may wait finds out.
        self.listener.set_nonblocking(false).unwrap();
    }

    /// Looks at everything until there is nothing more to do.
    pub fn settle(&mut self) {
        self.path.sleep(Duration::ZERO).unwrap();
        while self.path.turn().unwrap() {}
    }

    /// Turns until `met` finds what it looks for.
    pub fn until<T>(&mut self, what: &str, mut met: impl FnMut(&mut LoopHarness) -> Option<T>) -> T {
        for _ in 0..TURNS_MAX {
            self.path.sleep(Duration::ZERO).unwrap();
            self.path.turn().unwrap();
            if let Some(found) = met(self) {
                return found;
            }
        }
        panic!("{what} has not come");
    }

    /// A client that has been welcomed.
    pub fn client(&mut self) -> Client {
        self.client_of(VERSION)
    }

    /// The same, of this version.
    pub fn client_of(&mut self, version: u16) -> Client {
        let mut client = self.stranger();
        client.send(&[Request::Hello { version_min: version, version_max: version, flags: 0 }]);
        let welcome = self.hear(&mut client);
        assert!(welcome.starts_with("Welcome"), "{welcome}");
        client
    }

    /// A client that has said nothing yet.
    pub fn stranger(&self) -> Client {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client { stream, ring: None, received: Vec::new(), aside: Vec::new(), next: 1 }
    }

    /// A client that has been welcomed with a ring.
    pub fn ring_client(&mut self) -> Client {
        let (client, file) = self.ring_client_and_file();
        drop(file);
        client
    }

    /// The same, and the ring's file.
    pub fn ring_client_and_file(&mut self) -> (Client, File) {
        let mut client = self.stranger();
        client.send(&[Request::Hello { version_min: VERSION, version_max: VERSION, flags: HELLO_RING }]);
        let mut bytes = vec![0; 4096];
        let (size, file) = self.until("a ring", |_| {
            tailwind_ring::receive(&client.stream, &mut bytes, rustix::net::RecvFlags::DONTWAIT).ok()
        });
        let welcome = format!("{:?}", decode_response(&bytes[..size]).unwrap().unwrap().frame);
        assert!(welcome.contains("ring: true"), "{welcome}");
        let file = file.unwrap();
        client.ring = Some(tailwind_ring::open(file.try_clone().unwrap()).unwrap());
        (client, file.into())
    }

    /// Turns until the path has something to say to this client: the frame, or `Closed`.
    pub fn hear(&mut self, client: &mut Client) -> String {
        self.until("a frame", |_| client.heard())
    }

    /// A client's read that the path has handed over, if it has.
    pub fn handed_over(&mut self) -> Option<ClientRequest> {
        let requests = &mut self.from_path.requests;
        std::iter::from_fn(|| requests.try_recv().ok()).find(|request| matches!(request, ClientRequest::Read(..)))
    }
}

/// One client, which never blocks: the path runs in the same thread.
pub struct Client {
    pub stream: UnixStream,
    pub ring: Option<ClientEnd>,
    received: Vec<u8>,
    /// What comes through the socket beside a ring.
    aside: Vec<u8>,
    next: u64,
}

impl Client {
    /// Sends these requests, numbered on from the last one.
    pub fn send(&mut self, requests: &[Request<'_>]) {
        let mut bytes = Vec::new();
        for request in requests {
            request.encode(self.next, &mut bytes);
            self.next += 1;
        }
        self.send_bytes(&bytes);
    }

    /// Through the ring, if there is one, which has to have room.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        match &mut self.ring {
            Some(ring) => {
                assert_eq!(ring.requests.write(bytes).unwrap(), bytes.len(), "no room in the ring");
                ring.requests.publish();
            }
            None => self.stream.write_all(bytes).unwrap(),
        }
    }

    /// The next frame as its `Debug` text, if it is there.
    pub fn heard(&mut self) -> Option<String> {
        if let Some(ring) = &mut self.ring {
            let mut bytes = [0; 4096];
            let size = ring.answers.read(&mut bytes).unwrap();
            ring.answers.release();
            self.received.extend_from_slice(&bytes[..size]);
            let said = self.decode();
            if said.is_some() {
                return said;
            }
            std::mem::swap(&mut self.received, &mut self.aside);
            let heard = self.heard_through_socket();
            std::mem::swap(&mut self.received, &mut self.aside);
            return heard;
        }
        self.heard_through_socket()
    }

    fn decode(&mut self) -> Option<String> {
        let decoded = decode_response(&self.received).unwrap()?;
        let said = format!("{:?}", decoded.frame);
        let size = decoded.size;
        self.received.drain(..size);
        Some(said)
    }

    fn heard_through_socket(&mut self) -> Option<String> {
        loop {
            if let Some(said) = self.decode() {
                return Some(said);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Some("Closed".to_owned()),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some("Closed".to_owned()),
            }
        }
    }

    /// Every frame that is there, `Response` by its text.
    pub fn heard_all(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.heard()).collect()
    }
}

/// A dead client is gone at once. Without this its socket stays open for as long as a process that another test is
/// just starting still has a copy of it.
impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// How an acknowledgement looks in [`Client::heard`].
pub fn ack(lsn: u64) -> String {
    format!("{:?}", Response::Ack { lsn })
}
