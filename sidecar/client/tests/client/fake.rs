//! The other end of the socket: a peer that a test scripts frame by frame, and a small sidecar that keeps its log in a vector.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use tailwind_protocol::socket::*;
use tailwind_ring::SidecarEnd;

/// A listening socket in a folder of its own, and the script that answers its one connection.
pub struct Server {
    folder: tempfile::TempDir,
    script: Option<JoinHandle<()>>,
}

impl Server {
    pub fn new(script: impl FnOnce(Peer) + Send + 'static) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("append.sock")).unwrap();
        let script = std::thread::spawn(move || {
            script(Peer::accept(listener));
        });
        Server { folder, script: Some(script) }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("append.sock")
    }

    /// Waits for the script: its assertions count. Drop the client first.
    pub fn join(mut self) {
        if let Err(panic) = self.script.take().unwrap().join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// One connection, from the sidecar's side.
pub struct Peer {
    listener: UnixListener,
    stream: UnixStream,
    bytes: Vec<u8>,
    start: usize,
    ring: Option<SidecarEnd>,
    /// What comes through the socket beside a ring.
    aside: Vec<u8>,
}

pub const WELCOME: Welcome<'static> = Welcome {
    version: VERSION,
    role: Role::Primary,
    ring: false,
    table: false,
    record_size_max: 1 << 20,
    batch_size_max: 4 << 20,
    batch_records_max: 65_536,
    inflight_max: 1000,
    record_cost: 32,
    batch_cost: 8,
    epoch: 3,
    first: 1,
    last: 9,
    primary: "db-0",
};

impl Peer {
    fn accept(listener: UnixListener) -> Peer {
        let (stream, _) = listener.accept().unwrap();
        Peer { listener, stream, bytes: Vec::new(), start: 0, ring: None, aside: Vec::new() }
    }

    /// The client's next connection, in place of this one.
    pub fn next_connection(self) -> Peer {
        Peer::accept(self.listener)
    }

    /// The next request; `None` once the client has gone.
    pub fn next<T>(&mut self, take: impl FnOnce(u64, Request<'_>) -> T) -> Option<T> {
        loop {
            if let Some(decoded) = decode_request(&self.bytes[self.start..], VERSION, FRAME_BODY_MAX).unwrap() {
                self.start += decoded.size;
                return Some(take(decoded.request, decoded.frame));
            }
            self.bytes.drain(..self.start);
            self.start = 0;
            let mut chunk = [0; 64 << 10];
            if let Some(ring) = &mut self.ring {
                let size = ring.requests.read(&mut chunk).unwrap();
                self.bytes.extend_from_slice(&chunk[..size]);
                if ring.requests.release() {
                    self.stream.write_all(&WAKE_CLIENT_FRAME).unwrap();
                }
                // A stop comes behind everything that was in the ring before it.
                if size == 0 && self.aside.len() >= FRAME_HEADER_SIZE {
                    self.bytes.extend(self.aside.drain(..FRAME_HEADER_SIZE));
                }
                if size > 0 || !self.bytes.is_empty() || !ring.requests.may_sleep() {
                    continue;
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(size) if self.ring.is_some() => {
                    self.aside.extend(
                        chunk[..size].chunks(FRAME_HEADER_SIZE).filter(|f| **f != WAKE_SIDECAR_FRAME).flatten(),
                    );
                }
                Ok(size) => self.bytes.extend_from_slice(&chunk[..size]),
            }
        }
    }

    /// Takes a request that must be `expected`, and returns its number.
    pub fn expect(&mut self, expected: Request<'_>) -> u64 {
        self.next(|request, frame| {
            assert_eq!(frame, expected);
            request
        })
        .expect("the client has gone")
    }

    pub fn send(&mut self, request: u64, frame: Response<'_>) {
        let mut bytes = Vec::new();
        frame.encode(request, &mut bytes);
        self.send_bytes(&bytes);
    }

    pub fn send_bytes(&mut self, mut bytes: &[u8]) {
        // What answers a read or follow goes through the socket.
        let Some(ring) = self.ring.as_mut().filter(|_| !matches!(bytes.get(4), Some(132 | 133 | 139 | 140))) else {
            return self.stream.write_all(bytes).unwrap();
        };
        while !bytes.is_empty() {
            let size = ring.answers.write(bytes).unwrap();
            bytes = &bytes[size..];
            if ring.answers.publish() {
                self.stream.write_all(&WAKE_CLIENT_FRAME).unwrap();
            }
            if size == 0 && ring.answers.may_sleep() {
                // The client makes room, and wakes this.
                let mut chunk = [0; FRAME_HEADER_SIZE];
                self.stream.read_exact(&mut chunk).unwrap();
                self.aside.extend(chunk.iter().filter(|_| chunk != WAKE_SIDECAR_FRAME));
            }
        }
    }

    pub fn refuse(&mut self, request: u64, code: ErrorCode, message: &str) {
        self.send(request, Response::Error { code, fatal: false, retry_after_ms: 0, message });
    }

    pub fn fatal(&mut self, request: u64, code: ErrorCode, message: &str) {
        self.send(request, Response::Error { code, fatal: true, retry_after_ms: 0, message });
    }

    pub fn records(&mut self, request: u64, first: u64, records: &[&str]) {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| put_batch_record(&mut bytes, record.as_bytes()));
        self.send(request, Response::Records { first, records: Batch::new(records.len() as u32, &bytes).unwrap() });
    }

    /// Sends these records of a log, a frame for each.
    fn send_log(&mut self, request: u64, log: &[Vec<u8>], lsns: RangeInclusive<u64>) {
        for lsn in lsns {
            let mut bytes = Vec::new();
            put_batch_record(&mut bytes, &log[lsn as usize - 1]);
            self.send(request, Response::Records { first: lsn, records: Batch::new(1, &bytes).unwrap() });
        }
    }

    pub fn end(&mut self, request: u64, next: u64, tailing: bool) {
        self.send(request, Response::End { next, tailing });
    }

    pub fn role(&mut self, role: Role, primary: &str) {
        self.send(0, Response::Role { role, epoch: 4, last: 9, primary });
    }

    /// Takes the hello and sends the welcome.
    pub fn welcome(&mut self) {
        self.welcome_with(WELCOME);
    }

    /// Takes the hello and sends this welcome.
    pub fn welcome_with(&mut self, welcome: Welcome<'_>) {
        let request = self.hello();
        self.send(request, Response::Welcome(welcome));
    }

    /// Takes the hello and sends the welcome, with a ring for all that follows.
    pub fn welcome_with_ring(&mut self) {
        self.hand_ring_with(WELCOME);
    }

    /// The same with this welcome.
    pub fn hand_ring_with(&mut self, welcome: Welcome<'_>) {
        let request = self.hello();
        let (file, ring) = tailwind_ring::create().unwrap();
        let mut bytes = Vec::new();
        Response::Welcome(Welcome { ring: true, ..welcome }).encode(request, &mut bytes);
        assert_eq!(tailwind_ring::send(&self.stream, &bytes, file).unwrap(), bytes.len());
        self.ring = Some(ring);
    }

    /// The Python client does not ask for a ring.
    fn hello(&mut self) -> u64 {
        let take = |request, frame: Request<'_>| {
            assert!(
                matches!(frame, Request::Hello { version_min: 1, version_max: VERSION, flags: 0 | HELLO_RING }),
                "{frame:?}"
            );
            request
        };
        self.next(take).expect("the client has gone")
    }
}

/// What a request asks of the small sidecar, owned.
enum OwnedRequest {
    Append(Vec<Vec<u8>>),
    Read { from: u64, limit: u64, tail: bool },
    Follow { from: u64 },
    Stop,
    Barrier,
    Sync,
    Trim(u64),
    Status,
    Position,
}

/// A sidecar with one connection, which acknowledges each append at once.
pub fn sidecar(mut peer: Peer) {
    peer.welcome();
    serve(peer);
}

/// The same, with a ring.
pub fn sidecar_with_ring(mut peer: Peer) {
    peer.welcome_with_ring();
    serve(peer);
}

fn serve(mut peer: Peer) {
    let mut log: Vec<Vec<u8>> = Vec::new();
    let mut tailing = None;
    while let Some((request, requested)) = peer.next(|request, frame| {
        let requested = match frame {
            Request::Append { payload } => OwnedRequest::Append(vec![payload.to_vec()]),
            Request::Batch(batch) => OwnedRequest::Append(batch.iter().map(<[u8]>::to_vec).collect()),
            Request::Read { from, limit, flags, .. } => {
                OwnedRequest::Read { from, limit, tail: flags & READ_TAIL != 0 }
            }
            Request::Follow { from, .. } => OwnedRequest::Follow { from },
            Request::Position => OwnedRequest::Position,
            Request::Stop => OwnedRequest::Stop,
            Request::Barrier => OwnedRequest::Barrier,
            Request::Sync => OwnedRequest::Sync,
            Request::Trim { below } => OwnedRequest::Trim(below),
            Request::Status => OwnedRequest::Status,
            Request::Apply(_) | Request::Get { .. } => panic!("nothing for a sidecar without a table: {frame:?}"),
            Request::Hello { .. } | Request::Wake => panic!("nothing for a sidecar without a ring: {frame:?}"),
        };
        (request, requested)
    }) {
        let last = log.len() as u64;
        match requested {
            OwnedRequest::Stop if tailing == Some(request) => {
                tailing = None;
                peer.end(request, last + 1, false);
            }
            // It has crossed the end of its read, and with a ring may come when the next one runs.
            OwnedRequest::Stop => {}
            _ if tailing.is_some() => peer.refuse(request, ErrorCode::Reading, "a read runs: stop it first"),
            OwnedRequest::Append(records) => {
                log.extend(records);
                peer.send(request, Response::Ack { lsn: log.len() as u64 });
            }
            OwnedRequest::Read { from, limit, tail } => {
                let limit = if limit == 0 { last } else { limit };
                let end = last.min(from.saturating_add(limit).saturating_sub(1));
                peer.send_log(request, &log, from..=end);
                tailing = tail.then_some(request);
                peer.end(request, end.max(from.saturating_sub(1)) + 1, tail);
            }
            // It is primary, so that each follow ends as soon as it has caught up.
            OwnedRequest::Follow { from } => {
                peer.send_log(request, &log, from..=last);
                peer.send(request, Response::Lag { acked: last, behind_ms: 0, stale: false });
                peer.send(request, Response::Turn { epoch: 3, next: last + 1 });
            }
            OwnedRequest::Position => peer.send(request, Response::Position { epoch: 3, last }),
            OwnedRequest::Barrier => peer.send(request, Response::BarrierPassed { epoch: 3, last }),
            OwnedRequest::Sync => peer.send(request, Response::Synced { lsn: last }),
            OwnedRequest::Trim(below) => peer.send(request, Response::Trimmed { first: below.min(last + 1) }),
            OwnedRequest::Status => peer.send(request, Response::StatusReport { json: r#"{"role":"primary"}"# }),
        }
    }
}

/// A sidecar with back-pressure at its hardest: reads `group` appends, then nothing until their acks have been taken.
pub fn with_backpressure(mut peer: Peer, group: usize, ring: bool) {
    if ring {
        peer.welcome_with_ring()
    } else {
        peer.welcome()
    }
    let mut lsn = 0;
    loop {
        let mut requested = Vec::with_capacity(group);
        while requested.len() < group {
            match peer.next(|request, _| request) {
                Some(request) => requested.push(request),
                None => return,
            }
        }
        for request in requested {
            lsn += 1;
            peer.send(request, Response::Ack { lsn });
        }
    }
}
