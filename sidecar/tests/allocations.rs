//! The record path allocates nothing: an append through the socket, placed, posted to three backups in shared memory,
//! completed and acknowledged, counted by an allocator that counts.
#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::{Opening, Pool, Receiver, Sender, SlotId, Writer};
use tailwind_protocol::config::{Configuration, Durability, MemberRef, PrimaryRef, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Version};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{Output, Primary, Rules};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::socket::{ACK_FRAME_SIZE, Request, Response, VERSION, decode_response};
use tailwind_sidecar::path::{Allowed, Command, Options, Path, Shared, Waker};

const BACKUPS: usize = 3;

fn configuration() -> Configuration {
    let member = |n: usize| MemberRef {
        id: format!("b{n}").parse().unwrap(),
        boot: BootId(n as u128),
        control: format!("127.0.0.1:{n}"),
    };
    Configuration {
        log: LogId(1),
        epoch: Epoch(1),
        claim: Claim(1),
        earlier: Vec::new(),
        version: Version(1),
        primary: PrimaryRef { id: "a".parse().unwrap(), control: "127.0.0.1:9".into() },
        members: (0..BACKUPS).map(member).collect(),
    }
}

/// A path that leads, with three backups' memory behind it, and a client that has been welcomed.
struct Bench {
    path: Path,
    client: UnixStream,
    _receivers: Vec<ShmReceiver>,
    _commands: std::sync::mpsc::Sender<Command>,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (commands, inbox) = std::sync::mpsc::channel();
        let (events, _outbox) = tokio::sync::mpsc::unbounded_channel();
        let segment_size = SegmentSize::DEFAULT;
        let options = Options { allowed: Allowed::Own, segment_size, spin: Duration::ZERO };
        let waker = Waker::new().unwrap();
        let mut path =
            Path::new(options, "a".into(), listener, inbox, events, Arc::new(Shared::default()), &waker).unwrap();

        let rules = Rules {
            backups: BACKUPS as u8,
            min_in_sync: 2,
            durability: Durability::Memory,
            segment_size,
            open_patience_ms: 60_000,
            recruit_interval_ms: 60_000,
        };
        let epoch = configuration().epoch;
        let mut outputs = Vec::new();
        let primary = Primary::new(configuration(), rules, &Reference::default(), 7, Time(0), &mut outputs);
        commands.send(Command::Lead(Box::new(primary), 0)).unwrap();
        let mut receivers = Vec::new();
        for n in 0..BACKUPS {
            let pool = Pool::open(folder.path().join(format!("pool{n}")), 4, segment_size.bytes()).unwrap();
            receivers.push(ShmReceiver::new(pool).unwrap());
        }
        for output in outputs {
            match output {
                Output::Connect(seat, _) => {
                    let answer = receivers[usize::from(seat.index)].accept(Writer(1), &ShmSender.offer()).unwrap();
                    let channel = Box::new(ShmSender).connect(&answer, [127, 0, 0, 1].into()).unwrap();
                    commands.send(Command::Connected(epoch, seat, channel)).unwrap();
                }
                Output::Prepare(identity) => {
                    let (fresh, shared) = ShmSender.allocate(identity.size.bytes()).unwrap();
                    commands.send(Command::Prepared(identity, fresh, shared)).unwrap();
                }
                Output::Open(seat, identity) => {
                    let slot = SlotId(identity.segment.0 as u32);
                    let grant = receivers[usize::from(seat.index)].lend(Writer(1), slot).unwrap();
                    let remote = ShmSender.attach(&grant).unwrap();
                    commands.send(Command::Opened(epoch, seat, identity.segment, remote)).unwrap();
                }
                other => panic!("unexpected at the start: {other:?}"),
            }
        }
        let mut client = UnixStream::connect(&socket).unwrap();
        let mut hello = Vec::new();
        Request::Hello { version_min: VERSION, version_max: VERSION, flags: 0 }.encode(1, &mut hello);
        client.write_all(&hello).unwrap();
        path.sleep(Duration::ZERO).unwrap();
        while path.turn().unwrap() {}
        let mut bytes = [0; 256];
        let count = client.read(&mut bytes).unwrap();
        let welcome = decode_response(&bytes[..count]).unwrap().unwrap();
        assert!(matches!(welcome.frame, Response::Welcome(_)));
        Bench { path, client, _receivers: receivers, _commands: commands, _folder: folder }
    }

    /// Sends these frames, turns until every ack is there, reads the acks into `acks`.
    fn exchange(&mut self, frames: &[u8], acks: &mut [u8]) {
        self.client.write_all(frames).unwrap();
        self.path.sleep(Duration::ZERO).unwrap();
        while self.path.turn().unwrap() {}
        self.client.read_exact(acks).unwrap();
    }
}

#[test]
fn an_append_allocates_nothing() {
    let mut bench = Bench::new();
    const APPENDS: usize = 500;
    let mut frames = Vec::new();
    for request in 0..APPENDS as u64 {
        Request::Append { payload: &[7; 100] }.encode(request, &mut frames);
    }
    let mut acks = vec![0; APPENDS * ACK_FRAME_SIZE];
    bench.exchange(&frames, &mut acks);
    let counted = allocation_counter::measure(|| {
        for _ in 0..20 {
            bench.exchange(&frames, &mut acks);
        }
    });
    let last = decode_response(&acks[(APPENDS - 1) * ACK_FRAME_SIZE..]).unwrap().unwrap();
    assert_eq!(last.frame, Response::Ack { lsn: 21 * APPENDS as u64 }, "every append was acknowledged");
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn a_batch_allocates_nothing() {
    let mut bench = Bench::new();
    let mut records = Vec::new();
    for _ in 0..100 {
        tailwind_protocol::socket::put_batch_record(&mut records, &[7; 100]);
    }
    let batch = tailwind_protocol::socket::Batch::new(100, &records).unwrap();
    let mut frame = Vec::new();
    Request::Batch(batch).encode(1, &mut frame);
    let mut ack = [0; ACK_FRAME_SIZE];
    bench.exchange(&frame, &mut ack);
    let counted = allocation_counter::measure(|| (0..20).for_each(|_| bench.exchange(&frame, &mut ack)));
    assert_eq!(decode_response(&ack).unwrap().unwrap().frame, Response::Ack { lsn: 2100 });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
