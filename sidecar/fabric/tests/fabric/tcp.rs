//! The tcp receiver against writers and readers that break the protocol, are slow or stop, on raw sockets.
//!
//! Hellos and frames are written out by hand here, so that a mistake in the code that makes them cannot hide itself.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tailwind_fabric::reading::READ_CHANNELS_MAX;
use tailwind_fabric::tcp::{TcpReader, TcpReceiver, TcpSender};
use tailwind_fabric::{
    ChannelAnswer, ChannelError, FabricError, Grant, Offer, Pool, ReadError, ReadGrant, Reader, ReaderId, Receiver,
    Sender, Sharer, SlotId, Writer,
};
use tempfile::TempDir;

const SLOT_SIZE: u32 = 64 * 1024;
const DEADLINE: Duration = Duration::from_secs(30);

struct Backup {
    _dir: TempDir,
    pool: Arc<Pool>,
    receiver: TcpReceiver,
}

impl Backup {
    fn new() -> Backup {
        Backup::polling(Duration::ZERO)
    }

    fn polling(spin: Duration) -> Backup {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::open(dir.path(), 2, SLOT_SIZE).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let receiver = TcpReceiver::polling(Arc::clone(&pool), listener, spin).unwrap();
        Backup { _dir: dir, pool, receiver }
    }

    fn answer(&mut self, writer: u64) -> ChannelAnswer {
        self.receiver.accept(Writer(writer), &Offer::Tcp).unwrap().complete().unwrap()
    }

    fn secret(&mut self, writer: u64) -> String {
        serde_json::to_value(self.answer(writer)).unwrap()["secret"].as_str().unwrap().to_owned()
    }

    fn key(&mut self, writer: u64, slot: u32) -> u64 {
        match self.receiver.lend(Writer(writer), SlotId(slot)).unwrap() {
            Grant::Tcp { key, length } => {
                assert_eq!(length, SLOT_SIZE);
                key
            }
            _ => unreachable!(),
        }
    }

    /// A connection that has sent nothing.
    fn unauthenticated(&self) -> Peer {
        let stream = TcpStream::connect(self.receiver.address()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Peer { stream, sequence: 0 }
    }

    /// A connection that has presented a secret.
    fn peer(&mut self, writer: u64) -> Peer {
        let mut peer = self.unauthenticated();
        peer.send(&hello(&self.secret(writer)));
        assert_eq!(peer.ack(), 0);
        peer
    }

    fn read_secret(&mut self, reader: u64) -> String {
        let answer = self.receiver.admit(ReaderId(reader), &Offer::Tcp).unwrap().complete().unwrap();
        serde_json::to_value(answer).unwrap()["secret"].as_str().unwrap().to_owned()
    }

    fn share_key(&mut self, slot: u32) -> u64 {
        match self.receiver.share(SlotId(slot)).unwrap() {
            Some(ReadGrant::Tcp { key, length: SLOT_SIZE }) => key,
            other => panic!("{other:?}"),
        }
    }

    /// A connection that has presented a reader's secret.
    fn read_peer(&mut self, reader: u64) -> Peer {
        let mut peer = self.unauthenticated();
        peer.send(&read_hello(&self.read_secret(reader)));
        assert_eq!(peer.ack(), 0);
        peer
    }

    /// A slot that holds these bytes.
    fn filled(&mut self, slot: u32, bytes: &[u8]) {
        let key = self.key(1, slot);
        let mut peer = self.peer(1);
        peer.write(key, 0, bytes);
        assert_eq!(peer.ack(), 1);
    }

    fn contents(&self, slot: u32) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_SIZE as usize];
        self.pool.read(SlotId(slot), 0, &mut bytes).unwrap();
        bytes
    }

    fn is_untouched(&self) -> bool {
        (0..2).all(|slot| self.contents(slot).iter().all(|byte| *byte == 0))
    }

    /// A sender that behaves, to see that the receiver still serves.
    fn still_serves(&mut self) {
        let key = self.key(99, 1);
        let mut peer = self.peer(99);
        peer.write(key, 3, b"fine");
        assert_eq!(peer.ack(), 1);
        assert_eq!(&self.contents(1)[..8], b"\0\0\0fine\0");
    }
}

struct Peer {
    stream: TcpStream,
    sequence: u32,
}

impl Peer {
    /// Sends what the other side may have stopped reading.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn write(&mut self, key: u64, offset: u32, bytes: &[u8]) {
        self.sequence += 1;
        self.send(&header(key, offset, bytes.len() as u32, self.sequence));
        self.send(bytes);
    }

    fn ack(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// What arrives until the connection is closed.
    fn until_closed(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the connection stays open"),
            _ => bytes,
        }
    }
}

fn hello(secret: &str) -> Vec<u8> {
    [b"TWDATA1\n\x01\0", secret.as_bytes()].concat()
}

fn read_hello(secret: &str) -> Vec<u8> {
    [b"TWREAD1\n\x01\0", secret.as_bytes()].concat()
}

fn header(key: u64, offset: u32, length: u32, sequence: u32) -> Vec<u8> {
    let check = !(key as u32 ^ (key >> 32) as u32 ^ offset ^ length ^ sequence);
    [
        &key.to_le_bytes()[..],
        &offset.to_le_bytes(),
        &length.to_le_bytes(),
        &sequence.to_le_bytes(),
        &check.to_le_bytes(),
    ]
    .concat()
}

/// Fails instead of hanging when something that must not wait for a peer does.
fn promptly<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (done, wait) = mpsc::channel();
        scope.spawn(move || done.send(work()));
        wait.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            eprintln!("the call waits for a peer");
            std::process::abort()
        })
    })
}

/// Longer than any test: what polls never sleeps.
#[test]
fn connections_that_are_polled_are_served_and_end() {
    let mut backup = Backup::polling(Duration::from_secs(3600));
    let key = backup.key(1, 0);
    let (mut first, second) = (backup.peer(1), backup.peer(1));
    for nth in 0..20 {
        first.write(key, nth * 4, &nth.to_le_bytes());
        assert_eq!(first.ack(), u64::from(nth) + 1);
    }
    let written: Vec<u8> = (0..20_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(backup.contents(0)[..80], written);
    // A writer that goes, and a revocation of one that does not.
    drop(first);
    promptly(|| backup.receiver.revoke_below(Writer(2)).unwrap());
    assert_eq!(second.until_closed(), b"");
    backup.still_serves();
}

#[test]
fn without_a_secret_there_is_no_reply() {
    let mut backup = Backup::new();
    let key = backup.key(1, 0);
    let secret = backup.secret(1);
    let mut wrong_version = hello(&secret);
    wrong_version[8] = 2;
    let almost = format!("{}{}", &secret[..31], if secret.ends_with('0') { '1' } else { '0' });
    let greetings = [
        hello(&"0".repeat(32)),
        hello(&almost),
        wrong_version,
        b"GET / HTTP/1.1\r\nHost: backup\r\nUser-Agent: anything at all\r\n\r\n".to_vec(),
        b"x".to_vec(),
        vec![0; 100_000],
        hello(&secret.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A")),
    ];
    for greeting in greetings {
        let mut peer = backup.unauthenticated();
        peer.send(&greeting);
        peer.send(&header(key, 0, 5, 1));
        peer.send(b"bytes");
        assert_eq!(peer.until_closed(), b"");
    }
    assert!(backup.is_untouched());
    backup.still_serves();
}

#[test]
fn a_connection_without_a_hello_is_closed() {
    let mut backup = Backup::new();
    let (silent, mut slow) = (backup.unauthenticated(), backup.unauthenticated());
    slow.send(b"TWDA");
    backup.still_serves();
    assert_eq!(silent.until_closed(), b"");
    assert_eq!(slow.until_closed(), b"");
}

#[test]
fn a_connection_flood_does_not_lock_out_writers() {
    let mut backup = Backup::new();
    let mut crowd: Vec<Peer> = Vec::new();
    for _ in 0..5 {
        crowd.extend((0..60).map(|_| backup.unauthenticated()));
        backup.still_serves();
    }
    for peer in crowd {
        assert_eq!(peer.until_closed(), b"");
    }
}

#[test]
fn a_secret_is_valid_once() {
    let mut backup = Backup::new();
    let secret = backup.secret(1);
    let mut first = backup.unauthenticated();
    first.send(&hello(&secret));
    assert_eq!(first.ack(), 0);
    let mut second = backup.unauthenticated();
    second.send(&hello(&secret));
    assert_eq!(second.until_closed(), b"");
    let key = backup.key(1, 0);
    first.write(key, 0, b"!");
    assert_eq!(first.ack(), 1, "the first continues");

    let answer = backup.answer(1);
    TcpSender::default().begin().unwrap().connect(&answer, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    let refused = TcpSender::default().begin().unwrap().connect(&answer, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap_err();
    assert!(refused.to_string().starts_with("open a data connection to 127.0.0.1:"), "{refused}");
}

#[test]
fn a_hello_may_arrive_in_pieces_followed_by_frames() {
    let mut backup = Backup::new();
    let (secret, key) = (backup.secret(1), backup.key(1, 0));
    let mut peer = backup.unauthenticated();
    let hello = hello(&secret);
    let (start, end) = hello.split_at(20);
    peer.send(start);
    backup.still_serves();
    peer.send(&[end, &header(key, 0, 5, 1), b"bytes"].concat());
    assert_eq!((peer.ack(), peer.ack()), (0, 1));
}

#[test]
fn an_invalid_frame_closes_the_connection() {
    let mut backup = Backup::new();
    let (key, other) = (backup.key(1, 0), backup.key(2, 1));
    let mut bad_check = header(key, 0, 4, 1);
    bad_check[20] ^= 1;
    let frames = [
        ("a key that nobody has", header(key ^ 1, 0, 4, 1)),
        ("key zero", header(0, 0, 4, 1)),
        ("the key of another writer", header(other, 0, 4, 1)),
        ("bytes beyond the end", header(key, SLOT_SIZE - 3, 4, 1)),
        ("an offset beyond the end", header(key, SLOT_SIZE + 1, 0, 1)),
        ("an offset that overflows", header(key, u32::MAX, 4, 1)),
        ("a length that overflows", header(key, 4, u32::MAX, 1)),
        ("a sequence with a gap", header(key, 0, 4, 2)),
        ("a check that does not fit", bad_check),
    ];
    for (what, frame) in frames {
        let mut peer = backup.peer(1);
        peer.send(&frame);
        peer.send(b"evil");
        assert_eq!(peer.until_closed(), b"", "{what}");
        assert!(backup.is_untouched(), "{what}");
    }
    backup.receiver.end_lending(SlotId(0));
    let mut peer = backup.peer(1);
    peer.write(key, 0, b"late");
    assert_eq!(peer.until_closed(), b"");
    assert!(backup.is_untouched());
    backup.still_serves();
}

#[test]
fn a_truncated_frame_is_never_acknowledged() {
    let mut backup = Backup::new();
    let key = backup.key(1, 0);
    let mut peer = backup.peer(1);
    peer.write(key, 0, b"whole");
    peer.send(&header(key, 5, 100, 2));
    peer.send(b"half");
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(peer.until_closed(), 1u64.to_le_bytes());
    assert_eq!(&backup.contents(0)[..5], b"whole");
}

#[test]
fn acknowledgements_are_cumulative() {
    let mut backup = Backup::new();
    let key = backup.key(1, 0);
    let mut peer = backup.peer(1);
    let frames: Vec<u8> = (1..=500).flat_map(|n| [header(key, n * 8, 8, n), vec![n as u8; 8]].concat()).collect();
    peer.send(&frames);
    let mut acked = 0;
    while acked < 500 {
        let next = peer.ack();
        assert!(acked < next && next <= 500);
        acked = next;
    }
}

/// Promise 3 with a sender that has stopped in the worst places.
#[test]
fn revocation_waits_for_no_sender() {
    let mut backup = Backup::new();
    let key = backup.key(1, 0);
    let secret = backup.secret(1);
    let mut in_hello = backup.unauthenticated();
    in_hello.send(&hello(&secret)[..30]);
    let mut in_header = backup.peer(1);
    in_header.send(&header(key, 0, 4, 1)[..10]);
    let mut in_payload = backup.peer(1);
    in_payload.write(key, 0, b"done");
    assert_eq!(in_payload.ack(), 1);
    in_payload.send(&header(key, 4, 1000, 2));
    in_payload.send(&[7; 500]);
    let silent = backup.peer(1);
    let mut spared = backup.peer(2);
    let spared_key = backup.key(2, 1);

    promptly(|| backup.receiver.revoke_below(Writer(2))).unwrap();
    let before = backup.contents(0);
    assert_eq!(&before[..4], b"done");
    in_hello.send(&hello(&secret)[30..]);
    in_header.send(&header(key, 0, 4, 1)[10..]);
    in_header.send(b"late");
    in_payload.send(&[7; 500]);
    for peer in [in_hello, in_header, in_payload, silent] {
        assert_eq!(peer.until_closed(), b"");
    }
    assert!(backup.contents(0) == before);
    spared.write(spared_key, 0, b"on");
    assert_eq!(spared.ack(), 1);
}

/// A sender that never reads its acknowledgements fills the socket until the receiving thread sleeps in `send(2)`.
#[test]
fn revocation_wakes_a_thread_that_cannot_acknowledge() {
    let mut backup = Backup::new();
    let key = backup.key(1, 0);
    let mut peer = backup.peer(1);
    peer.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    // One small write at a time makes one acknowledgement each, until a write times out because nobody reads any more;
    // or, where sockets are very deep, until enough is enough.
    for sequence in 1..200_000 {
        if peer.stream.write_all(&header(key, 0, 0, sequence)).is_err() {
            break;
        }
    }
    promptly(|| backup.receiver.revoke_below(Writer(2))).unwrap();
    backup.still_serves();
}

#[test]
fn a_connection_racing_a_revocation_never_writes() {
    let mut backup = Backup::new();
    for round in 1..200 {
        let (secret, key) = (backup.secret(round), backup.key(round, 0));
        let mut peer = backup.unauthenticated();
        let racing = thread::spawn(move || {
            peer.send(&[hello(&secret), header(key, 0, 1, 1), b"x".to_vec()].concat());
            peer.until_closed()
        });
        if round % 2 == 0 {
            thread::yield_now();
        }
        backup.receiver.revoke_below(Writer(round + 1)).unwrap();
        let before = backup.contents(0);
        let answer = racing.join().unwrap();
        let completed = answer.ends_with(&1u64.to_le_bytes());
        assert!(before[0] == b'x' || !completed, "round {round}: completed, so it is there");
        assert!(backup.contents(0) == before, "round {round}");
    }
}

#[test]
fn dropping_the_receiver_ends_all_channels() {
    let mut backup = Backup::new();
    let (connected, silent) = (backup.peer(1), backup.unauthenticated());
    let answer = backup.answer(1);
    let Backup { _dir, pool, receiver } = backup;
    let address = receiver.address();
    promptly(move || drop(receiver));
    assert_eq!(connected.until_closed(), b"");
    assert_eq!(silent.until_closed(), b"");
    assert!(TcpSender::default().begin().unwrap().connect(&answer, address.ip()).is_err());
    TcpReceiver::new(pool, TcpListener::bind(address).unwrap()).unwrap();
}

#[test]
fn an_unspecified_address_means_the_responding_host() {
    let every_v4 = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::LOCALHOST));
    let every_v6 = (IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::LOCALHOST));
    for (address, peer) in [every_v4, every_v6] {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
        let mut receiver = TcpReceiver::new(pool, TcpListener::bind((address, 0)).unwrap()).unwrap();
        let answer = receiver.accept(Writer(1), &Offer::Tcp).unwrap().complete().unwrap();
        TcpSender::default().begin().unwrap().connect(&answer, peer).unwrap();
    }
}

#[test]
fn without_a_readers_secret_there_is_no_reply() {
    let mut backup = Backup::new();
    backup.filled(0, b"secret bytes");
    let key = backup.share_key(0);
    let secret = backup.read_secret(1);
    let mut wrong_version = read_hello(&secret);
    wrong_version[8] = 2;
    let greetings = [
        read_hello(&"0".repeat(32)),
        wrong_version,
        b"TWREAD2\n".to_vec(),
        b"TWDEAD1\n".to_vec(),
        [&read_hello("")[..], &[0xff; 32]].concat(),
        // Each side's secret is worth nothing to the other.
        read_hello(&backup.secret(1)),
        hello(&secret),
    ];
    for greeting in greetings {
        let mut peer = backup.unauthenticated();
        peer.send(&greeting);
        peer.send(&header(key, 0, 5, 1));
        assert_eq!(peer.until_closed(), b"");
    }
    let mut peer = backup.unauthenticated();
    peer.send(&read_hello(&secret));
    assert_eq!(peer.ack(), 0, "it is still good");
    let mut second = backup.unauthenticated();
    second.send(&read_hello(&secret));
    assert_eq!(second.until_closed(), b"", "once");
}

#[test]
fn an_invalid_read_request_closes_the_connection() {
    let mut backup = Backup::new();
    backup.filled(0, b"secret bytes");
    let (lent, key) = (backup.key(1, 1), backup.share_key(0));
    let mut bad_check = header(key, 0, 4, 1);
    bad_check[20] ^= 1;
    let requests = [
        ("a key that nobody has", header(key ^ 1, 0, 4, 1)),
        ("key zero", header(0, 0, 4, 1)),
        ("the key of a lending", header(lent, 0, 4, 1)),
        ("bytes beyond the end", header(key, SLOT_SIZE - 3, 4, 1)),
        ("an offset beyond the end", header(key, SLOT_SIZE, 1, 1)),
        ("an offset that overflows", header(key, u32::MAX, 4, 1)),
        ("a length that overflows", header(key, 4, u32::MAX, 1)),
        ("everything there could be", header(key, 0, u32::MAX, 1)),
        ("nothing", header(key, 0, 0, 1)),
        ("a sequence with a gap", header(key, 0, 4, 2)),
        ("a check that does not fit", bad_check),
        ("garbage", b"GET / HTTP/1.1\r\nHost: backup\r\n\r\n".to_vec()),
    ];
    for (what, request) in requests {
        let mut peer = backup.read_peer(1);
        peer.send(&request);
        assert_eq!(peer.until_closed(), b"", "{what}");
    }
    let mut peer = backup.read_peer(1);
    peer.send(&[header(key, 0, 6, 1), header(key, 7, 5, 2)].concat());
    let mut answers = [0; 8 + 6 + 8 + 5];
    peer.stream.read_exact(&mut answers).unwrap();
    assert_eq!(&answers, b"\x01\0\0\0\x06\0\0\0secret\x02\0\0\0\x05\0\0\0bytes");
    backup.receiver.end_share(SlotId(0));
    peer.send(&header(key, 0, 4, 3));
    assert_eq!(peer.until_closed(), b"", "a share that has ended");
    backup.still_serves();
}

#[test]
fn a_reader_has_a_few_connections_only() {
    let mut backup = Backup::new();
    backup.filled(0, b"bytes");
    let key = backup.share_key(0);
    let mut peers: Vec<Peer> = (0..READ_CHANNELS_MAX + 3).map(|_| backup.read_peer(1)).collect();
    let living = peers.split_off(3);
    for oldest in peers {
        assert_eq!(oldest.until_closed(), b"");
    }
    for mut peer in living {
        peer.send(&header(key, 0, 5, 1));
        let mut answer = [0; 13];
        peer.stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[8..], b"bytes");
    }
    backup.still_serves();
}

/// Promise 9 with readers that have stopped in the worst places.
#[test]
fn nothing_waits_for_a_reader() {
    let mut backup = Backup::new();
    backup.filled(0, b"bytes");
    let (key, lent) = (backup.share_key(0), backup.key(1, 1));
    let mut writer = backup.peer(1);
    let secret = backup.read_secret(9);
    let mut in_hello = backup.unauthenticated();
    in_hello.send(&read_hello(&secret)[..30]);
    let mut in_request = backup.read_peer(1);
    in_request.send(&header(key, 0, 4, 1)[..10]);
    // Takes no answer: far more than any socket holds.
    let mut full: Vec<Peer> = (2..8).map(|reader| backup.read_peer(reader)).collect();
    for peer in &mut full {
        let requests: Vec<u8> = (1..=500).flat_map(|n| header(key, 0, SLOT_SIZE, n)).collect();
        peer.send(&requests);
    }
    promptly(|| {
        backup.receiver.revoke_below(Writer(2)).unwrap();
        writer.write(lent, 0, b"late");
        assert_eq!(writer.until_closed(), b"");
        backup.receiver.dismiss(ReaderId(2));
        backup.receiver.end_share(SlotId(0));
        backup.receiver.release(SlotId(0)).unwrap();
        backup.still_serves();
    });
    in_hello.send(&read_hello(&secret)[30..]);
    in_request.send(&header(key, 0, 4, 1)[10..]);
    assert_eq!(in_request.until_closed(), b"");
    // What they had been sent is of the share.
    for peer in full {
        let bytes = peer.until_closed();
        let answers = bytes.chunks(8 + SLOT_SIZE as usize).map(|answer| &answer[8.min(answer.len())..]);
        assert!(answers.filter(|answer| answer.len() >= 5).all(|answer| answer.starts_with(b"bytes")));
    }
    let Backup { receiver, .. } = backup;
    promptly(move || drop(receiver));
}

/// How the reader reacts to a receiver that sends these bytes in answer to one read of four.
fn read_answered(answers: &'static [u8]) -> Result<ReadError, FabricError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 42]).unwrap();
        stream.write_all(answers).unwrap();
        let _ = stream.read(&mut [0; 1000]);
    });
    let answer = serde_json::json!({"fabric": "tcp", "address": address, "secret": "0".repeat(32)});
    let mut channel = TcpReader.begin(8).unwrap().connect(&serde_json::from_value(answer).unwrap(), address.ip())?;
    let shared = TcpReader.attach(&ReadGrant::Tcp { key: 1, length: 8 }).unwrap();
    let error = match channel.read(&shared, 0..4, 4) {
        Err(error) => error,
        Ok(()) => loop {
            match channel.poll() {
                Ok(completed) => assert!(completed <= 1),
                Err(error) => break error,
            }
        },
    };
    receiver.join().unwrap();
    Ok(error)
}

#[test]
fn an_invalid_answer_fails_the_read_channel() {
    let protocol = Some(ReadError::Protocol);
    assert_eq!(read_answered(b"\0\0\0\0\0\0\0\0\x02\0\0\0\x04\0\0\0byte").ok(), protocol, "another sequence");
    assert_eq!(read_answered(b"\0\0\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0bytes").ok(), protocol, "too long");
    assert_eq!(read_answered(b"\0\0\0\0\0\0\0\0\x01\0\0\0\xff\xff\xff\xff").ok(), protocol, "far too long");
    assert_eq!(read_answered(b"\0\0\0\0\0\0\0\0\x01\0\0\0\x04\0\0\0bytes").ok(), protocol, "one byte more");
    let lost = Some(ReadError::Disconnected);
    assert_eq!(read_answered(b"\0\0\0\0\0\0\0\0\x01\0\0\0\x04\0\0\0by").ok(), lost, "cut off");
    assert!(read_answered(b"HTTP/1.1 400 Bad Request").is_err());
}

/// How the sender reacts to a receiver that sends these bytes.
fn answered(answers: &'static [u8]) -> Result<ChannelError, tailwind_fabric::FabricError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 42]).unwrap();
        stream.write_all(answers).unwrap();
        let _ = stream.read(&mut [0; 1000]);
    });
    let answer = serde_json::json!({"fabric": "tcp", "address": address, "secret": "0".repeat(32)});
    let mut channel =
        TcpSender::default().begin().unwrap().connect(&serde_json::from_value(answer).unwrap(), address.ip())?;
    let (mut writer, local) = TcpSender::default().allocate(8).unwrap();
    writer.publish(8);
    let remote = TcpSender::default().attach(&Grant::Tcp { key: 1, length: 8 }).unwrap();
    channel.post(&remote, &local, 0..8).unwrap();
    let error = loop {
        match channel.poll() {
            Ok(completed) => assert!(completed <= 1),
            Err(error) => break error,
        }
    };
    receiver.join().unwrap();
    Ok(error)
}

/// What the receiver's processor has to see to goes out as one.
#[test]
fn copied_bytes_ride_with_the_next_write() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answer = serde_json::json!({"fabric": "tcp", "address": address, "secret": "0".repeat(32)});
    let answer = serde_json::from_value(answer).unwrap();
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 42]).unwrap();
        stream.write_all(&[0; 8]).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    });
    let sender = TcpSender::default();
    let mut channel = sender.begin().unwrap().connect(&answer, address.ip()).unwrap();
    let mut receiver = receiver.join().unwrap();
    let remote = sender.attach(&Grant::Tcp { key: 7, length: SLOT_SIZE }).unwrap();
    let (mut writer, local) = sender.allocate(100).unwrap();
    writer.publish(100);
    // Over loopback, what has been sent is there.
    let mut received = |expected: usize| {
        let mut bytes = [0; 4096];
        let count = receiver
            .read(&mut bytes)
            .or_else(|error| if error.kind() == std::io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) });
        assert_eq!(count.unwrap(), expected);
    };
    let (line, append) = (24 + 64, 24 + 100);
    for _ in 0..3 {
        channel.post_bytes(&remote, 0, &[1; 64]).unwrap();
        channel.post_bytes(&remote, 64, &[2; 64]).unwrap();
        assert_eq!((channel.poll(), channel.arm(), channel.lingers()), (Ok(0), false, true));
        received(0);
        channel.post(&remote, &local, 0..100).unwrap();
        assert!(!channel.lingers());
        received(2 * line + append);

        channel.post_bytes(&remote, 0, &[3; 64]).unwrap();
        channel.push();
        assert!(!channel.lingers());
        received(line);
        channel.push();
        received(0);
    }
}

#[test]
fn an_invalid_acknowledgement_fails_the_channel() {
    let protocol = Some(ChannelError::Protocol);
    assert_eq!(answered(b"\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0").ok(), protocol, "more acknowledged than sent");
    assert_eq!(answered(b"\0\0\0\0\0\0\0\0").ok(), Some(ChannelError::Disconnected));
    assert!(answered(b"HTTP/1.1 400 Bad Request").is_err());
    assert!(answered(b"\0\0\0").is_err());
}
