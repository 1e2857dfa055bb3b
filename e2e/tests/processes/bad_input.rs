//! Bad input from clients: a clear answer, and no effect on other clients.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use tailwind_client::{Error, Lsn};
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::observer::TIMEOUT;
use tailwind_e2e::processes::process::{resident_memory, run_to_end};
use tailwind_e2e::processes::steps::primary;
use tailwind_protocol::socket::{ErrorCode, Request, Response, decode_response, encode_batch};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";
const HELLO: Request<'_> = Request::Hello { version_min: 1, version_max: 1, flags: 0 };

/// A client that may violate the protocol.
struct RawClient {
    stream: UnixStream,
    received: Vec<u8>,
}

/// A frame from the sidecar, or the end of the connection.
#[derive(Debug, PartialEq, Eq)]
enum RawResponse {
    Welcome { record_size_max: u32, batch_size_max: u32 },
    Ack(u64),
    Error { code: ErrorCode, fatal: bool, message: String },
    Other,
    Closed,
}

impl RawClient {
    fn connect(group: &Group) -> RawClient {
        let stream = UnixStream::connect(group.socket(0)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        RawClient { stream, received: Vec::new() }
    }

    fn welcomed(group: &Group) -> (RawClient, usize, usize) {
        let mut raw = RawClient::connect(group);
        raw.send(&frame(1, &HELLO));
        let RawResponse::Welcome { record_size_max, batch_size_max } = raw.receive() else { panic!("no welcome") };
        (raw, record_size_max as usize, batch_size_max as usize)
    }

    /// The sidecar may have closed the connection already; what it has sent can still be received.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn receive(&mut self) -> RawResponse {
        loop {
            if let Some(decoded) = decode_response(&self.received).unwrap() {
                let response = match decoded.frame {
                    Response::Welcome(welcome) => RawResponse::Welcome {
                        record_size_max: welcome.record_size_max,
                        batch_size_max: welcome.batch_size_max,
                    },
                    Response::Ack { lsn } => RawResponse::Ack(lsn),
                    Response::Error { code, fatal, message, .. } => {
                        RawResponse::Error { code, fatal, message: message.to_owned() }
                    }
                    _ => RawResponse::Other,
                };
                let size = decoded.size;
                self.received.drain(..size);
                return response;
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return RawResponse::Closed,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return RawResponse::Closed,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive_error(&mut self) -> (ErrorCode, bool, String) {
        match self.receive() {
            RawResponse::Error { code, fatal, message } => (code, fatal, message),
            other => panic!("{other:?} instead of an error"),
        }
    }

    /// An error that ends the connection.
    fn receive_fatal(&mut self, expected: ErrorCode) -> String {
        let (code, fatal, message) = self.receive_error();
        assert_eq!((code, fatal), (expected, true), "{message}");
        assert_eq!(self.receive(), RawResponse::Closed);
        message
    }
}

fn frame(request: u64, what: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    what.encode(request, &mut bytes);
    bytes
}

fn batch(request: u64, records: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_batch(request, records.iter().copied(), &mut bytes);
    bytes
}

#[test]
fn record_lengths_up_to_the_limit_are_accepted() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    let (mut raw, largest, batch_size_max) = RawClient::welcomed(&group);
    let mut lsn = 0;
    for length in [0, 1, 7, 8, largest - 1, largest] {
        raw.send(&frame(2, &Request::Append { payload: &vec![9; length] }));
        lsn += 1;
        assert_eq!(raw.receive(), RawResponse::Ack(lsn), "{length} bytes");
    }
    let limit = "the limit is 16384";
    raw.send(&frame(3, &Request::Append { payload: &vec![9; largest + 1] }));
    let (code, fatal, message) = raw.receive_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false));
    assert_eq!(message, format!("record of 16385 bytes: {limit}"));
    raw.send(&batch(4, &[b"small", &vec![9; largest + 1]]));
    let (code, fatal, message) = raw.receive_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false));
    assert_eq!(message, format!("record of 16385 bytes in a batch: {limit}"));
    // As large as a frame may be; with what the log adds to it, one byte too large.
    let record = vec![9; largest];
    raw.send(&batch(5, &[&record, &vec![9; batch_size_max - largest - 16]]));
    let (code, fatal, message) = raw.receive_error();
    assert_eq!((code, fatal), (ErrorCode::TooLarge, false), "{message}");
    assert!(message.contains("split it"), "{message}");
    // The connection continues, and nothing of the above is in the log.
    raw.send(&frame(6, &Request::Append { payload: b"next" }));
    assert_eq!(raw.receive(), RawResponse::Ack(lsn + 1));
    let (mut raw, ..) = RawClient::welcomed(&group);
    raw.send(&frame(2, &Request::Append { payload: &vec![9; batch_size_max + 1] }));
    let message = raw.receive_fatal(ErrorCode::BadFrame);
    assert_eq!(message, format!("frame of {} bytes: the limit is {batch_size_max}", batch_size_max + 1));
    group.check_logs(&[]).unwrap();
}

#[test]
fn malformed_frames_are_rejected_and_slow_ones_accepted() {
    let mut test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    for _ in 0..rounds(20) {
        let garbage: Vec<u8> = (0..16 + test.random.below(500)).map(|_| test.random.next() as u8).collect();
        let mut raw = RawClient::connect(&group);
        // A frame of a small length, so that the sidecar does not just wait for its rest.
        raw.send(&[&16_u32.to_le_bytes()[..], &garbage].concat());
        raw.receive_fatal(ErrorCode::BadFrame);
        let (mut raw, ..) = RawClient::welcomed(&group);
        raw.send(&[&0_u32.to_le_bytes()[..], &[200], &garbage].concat());
        raw.receive_fatal(ErrorCode::BadFrame);
        // Cut off in the middle of a frame: nothing of it counts.
        let (mut raw, ..) = RawClient::welcomed(&group);
        let whole = frame(2, &Request::Append { payload: &garbage });
        raw.send(&whole[..1 + test.random.below(whole.len() as u64 - 1) as usize]);
    }
    let (mut raw, ..) = RawClient::welcomed(&group);
    for byte in frame(2, &Request::Append { payload: b"slow but sound" }) {
        raw.send(&[byte]);
        std::thread::yield_now();
    }
    assert_eq!(raw.receive(), RawResponse::Ack(1), "something else has been appended");
    group.check_logs(&[]).unwrap();
}

#[test]
fn unsupported_versions_and_first_frames_are_rejected() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    let hello = |version_min, version_max| frame(1, &Request::Hello { version_min, version_max, flags: 0 });
    for (first, code, words) in [
        (
            hello(5, 9),
            ErrorCode::UnsupportedVersion,
            "this sidecar supports versions 1 to 4; the client supports 5 to 9",
        ),
        (
            hello(0, 0),
            ErrorCode::UnsupportedVersion,
            "this sidecar supports versions 1 to 4; the client supports 0 to 0",
        ),
        (frame(1, &Request::Append { payload: b"x" }), ErrorCode::BadFrame, "the first frame must be a hello"),
        (frame(1, &Request::Status), ErrorCode::BadFrame, "the first frame must be a hello"),
    ] {
        let mut raw = RawClient::connect(&group);
        raw.send(&first);
        assert_eq!(raw.receive_fatal(code), words);
    }
    let mut raw = RawClient::connect(&group);
    raw.send(&[hello(1, 7), hello(1, 1)].concat());
    assert!(matches!(raw.receive(), RawResponse::Welcome { .. }), "a range that holds version 1 will do");
    assert_eq!(raw.receive_fatal(ErrorCode::BadFrame), "a second hello");
    group.check_logs(&[]).unwrap();
}

#[test]
fn unread_acks_do_not_block_other_clients() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    let pid = group.pid(Process::Sidecar(0)).unwrap();
    let mut client = primary(&group).unwrap();
    client.append(b"warm").unwrap();
    let before = resident_memory(pid).unwrap();
    let (mut raw, ..) = RawClient::welcomed(&group);
    raw.stream.set_nonblocking(true).unwrap();
    let many = frame(2, &Request::Append { payload: b"unread" }).repeat(1000);
    let (mut place, mut others) = (0, 0);
    // It counts as blocked if it stays so while so many others are served.
    while others < 500 {
        match raw.stream.write(&many[place..]) {
            Ok(count) => (place, others) = ((place + count) % many.len(), 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                client.append(b"others go on").unwrap();
                others += 1;
            }
        }
    }
    let last = client.append(b"the last").unwrap();
    assert!(last > Lsn(8000), "the client that does not read was stopped after {last} records already");
    let grown = resident_memory(pid).unwrap().saturating_sub(before);
    assert!(grown < 32 << 20, "the sidecar has grown by {grown} bytes");
    assert_eq!(client.read(last, 0).unwrap().count(), 1);
    group.check_logs(&[]).unwrap();
}

#[test]
fn excess_clients_are_rejected() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    let mut clients: Vec<RawClient> = (0..64).map(|_| RawClient::welcomed(&group).0).collect();
    let (mut late, ..) = RawClient::welcomed(&group);
    late.send(&frame(2, &Request::Append { payload: b"no" }));
    let message = late.receive_fatal(ErrorCode::Busy);
    assert_eq!(message, "64 clients are already connected; only status requests are accepted now");
    // The status is always answered.
    for _ in 0..20 {
        let mut status = Command::new(&group.setup().program);
        let output = run_to_end(status.arg("status").arg("--socket").arg(group.socket(0))).unwrap();
        assert!(output.out.contains("sidecar0: primary, epoch 1"), "{output:?}");
        assert!(output.out.contains("clients    64;"), "{output:?}");
    }
    clients[63].send(&frame(2, &Request::Append { payload: b"connected clients go on" }));
    assert_eq!(clients[63].receive(), RawResponse::Ack(1));
    clients.pop();
    group.wait("the free place to be given", |group| appends(group, b"in it")).unwrap();
    group.check_logs(&[]).unwrap();
}

fn appends(group: &Group, record: &[u8]) -> bool {
    group.client(0, false).is_ok_and(|mut client| client.append(record).is_ok())
}

#[test]
fn stalled_readers_do_not_block_other_readers() {
    const READERS: usize = 16;
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecar_options.push(("--client-timeout-ms", "3000".into()));
    let group = test.start_group(setup).unwrap();
    let mut client = primary(&group).unwrap();
    // More than a socket holds.
    let count = 400;
    for _ in 0..count {
        client.submit(&[7; 4096]).unwrap();
    }
    let last = client.flush().unwrap().unwrap();
    let reading: Vec<RawClient> = (0..READERS)
        .map(|_| {
            let (mut raw, ..) = RawClient::welcomed(&group);
            raw.send(&frame(2, &Request::Read { from: 1, limit: 0, flags: 0, history: 0 }));
            assert_eq!(raw.receive(), RawResponse::Other, "the read has begun");
            raw
        })
        .collect();
    let refused = client.read(last, 1).unwrap().next().unwrap().unwrap_err();
    assert!(matches!(&refused, Error::Retry { code: ErrorCode::Busy, .. }), "{refused:?}");
    group.wait("a place for a reader", |group| reads(group, last)).unwrap();
    let log = group.log("sidecar0");
    assert!(log.contains("disconnected a reader that read nothing for too long"), "{log}");
    drop(reading);
    group.check_logs(&["disconnected a reader that read nothing for too long"]).unwrap();
}

fn reads(group: &Group, lsn: Lsn) -> bool {
    let client = group.client(0, false);
    client.is_ok_and(|mut client| client.read(lsn, 1).is_ok_and(|mut records| matches!(records.next(), Some(Ok(_)))))
}

#[test]
fn log_lines_name_their_group_and_process() {
    const HALF_SENT: &str = "disconnected a client that left a batch half sent";
    for format in ["text", "json"] {
        let test = TestContext::start();
        let mut setup = test.setup(FABRIC).unwrap();
        (setup.backups, setup.copies, setup.sidecars, setup.buffers) = (1, 1, 1, 6);
        setup.segment_size = "8MiB".into();
        setup.backup_options.push(("--log-format", format.into()));
        let batch_memory = [("--batch-memory", "5MiB"), ("--client-timeout-ms", "100"), ("--log-format", format)];
        setup.sidecar_options.extend(batch_memory.map(|(flag, value)| (flag, value.to_owned())));
        let group = test.start_group(setup).unwrap();
        let whole = batch(2, &[&[9; 1 << 20][..]; 3]);
        let mut clients = [(); 2].map(|()| RawClient::welcomed(&group).0);
        for _ in 0..3 {
            clients[0].send(&whole);
            assert!(matches!(clients[0].receive(), RawResponse::Ack(_)));
        }
        clients.iter_mut().for_each(|raw| raw.send(&whole[..100]));
        // Log lines of control, of the thread that appends, and of the one that flushes.
        for (process, words) in
            [("sidecar0", "control::roles::lead"), ("sidecar0", HALF_SENT), ("backup0", "backup::flusher")]
        {
            group.wait(words, |group| group.log(process).contains(words)).unwrap();
        }
        group.check_logs(&[HALF_SENT]).unwrap();
    }
}

#[test]
fn incomplete_batches_use_bounded_memory() {
    const CLIENTS: usize = 20;
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    (setup.backups, setup.copies, setup.buffers) = (1, 1, 6);
    setup.segment_size = "16MiB".into();
    setup.sidecar_options.push(("--batch-memory", "16MiB".into()));
    let group = test.start_group(setup).unwrap();
    let pid = group.pid(Process::Sidecar(0)).unwrap();
    let mut client = primary(&group).unwrap();
    client.append(b"warm").unwrap();
    let before = resident_memory(pid).unwrap();
    // Nearly 8 MiB each, of which the last byte is missing.
    let whole = batch(2, &[&[9; 1 << 20][..]; 7]);
    let mut clients: Vec<(RawClient, usize)> = (0..CLIENTS)
        .map(|_| {
            let (raw, ..) = RawClient::welcomed(&group);
            raw.stream.set_nonblocking(true).unwrap();
            (raw, 0)
        })
        .collect();
    // Until nothing more is taken of any of them, while so many others are served.
    let mut others = 0;
    while others < 500 {
        for (raw, sent) in &mut clients {
            if let Ok(count @ 1..) = raw.stream.write(&whole[*sent..whole.len() - 1]) {
                (*sent, others) = (*sent + count, 0);
            }
        }
        client.append(b"small ones go on").unwrap();
        others += 1;
    }
    let grown = resident_memory(pid).unwrap().saturating_sub(before);
    // The memory for batches, and of each connection its own inbox and what it is owed.
    let bound = (16 << 20) + CLIENTS as u64 * (3 << 19);
    assert!(grown < bound, "the sidecar has grown by {grown} bytes, {bound} are allowed");
    // All get through: those that have memory first, then the others.
    let batches: Vec<_> = clients
        .into_iter()
        .map(|(mut raw, sent)| {
            raw.stream.set_nonblocking(false).unwrap();
            let rest = whole[sent..].to_vec();
            thread::spawn(move || {
                raw.send(&rest);
                raw.receive()
            })
        })
        .collect();
    for batch in batches {
        let response = batch.join().unwrap();
        assert!(matches!(response, RawResponse::Ack(_)), "{response:?}");
    }
    group.check_logs(&[]).unwrap();
}
