//! The blocking client against a scripted sidecar: the session's edges, seen through its first user.

use std::io::ErrorKind::WouldBlock;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::fake::{Peer, Server, WELCOME, sidecar, sidecar_with_ring, with_backpressure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Signal, kill_process};
use tailwind_client::blocking::Client;
use tailwind_client::{Epoch, Error, Event, FollowEvent, Lsn, Options, PassedBarrier, Position, Role};
use tailwind_protocol::socket::{ErrorCode, HELLO_HOLD, HELLO_RING, READ_TAIL, Request, Response, VERSION, Welcome};

const APPEND: Request<'static> = Request::Append { payload: b"x" };

/// Connects to a script that begins after the welcome.
fn connect(script: impl FnOnce(&mut Peer) + Send + 'static) -> (Client, Server) {
    let server = Server::new(|mut peer| {
        peer.welcome();
        script(&mut peer);
    });
    (Client::connect(server.path()).unwrap(), server)
}

/// The error of a connection whose script ends with its answer to the hello.
fn refused_hello(script: impl FnOnce(&mut Peer) + Send + 'static) -> Error {
    let server = Server::new(|mut peer| script(&mut peer));
    let error = Client::connect(server.path()).err().expect("the hello must be refused");
    server.join();
    error
}

#[test]
fn all_functions_work() {
    all_functions(Server::new(sidecar), false);
}

#[test]
fn all_functions_work_with_a_ring() {
    all_functions(Server::new(sidecar_with_ring), true);
}

fn all_functions(server: Server, ring: bool) {
    let mut client = Client::connect(server.path()).unwrap();
    let welcome = client.welcome();
    assert_eq!(welcome.ring, ring);
    assert_eq!((welcome.role, welcome.epoch, welcome.first, welcome.last), (Role::Primary, Epoch(3), Lsn(1), Lsn(9)));
    assert_eq!((welcome.limits.record_size_max, welcome.limits.inflight_max), (1 << 20, 1000));
    assert_eq!(welcome.primary.as_deref(), Some("db-0"));

    assert_eq!(client.append(b"one").unwrap(), Lsn(1));
    assert_eq!(client.append(b"").unwrap(), Lsn(2));
    assert_eq!(client.append_batch(&["three", "four"]).unwrap(), Lsn(4));
    assert_eq!(client.append(&vec![7; 1 << 20]).unwrap(), Lsn(5));

    let read: Vec<_> = client.read(Lsn(1), 4).unwrap().map(Result::unwrap).collect();
    let expected: [&[u8]; 4] = [b"one", b"", b"three", b"four"];
    assert_eq!(read, (1..).map(Lsn).zip(expected.map(<[u8]>::to_vec)).collect::<Vec<_>>());
    assert_eq!(client.read(Lsn(5), 0).unwrap().next().unwrap().unwrap().1.len(), 1 << 20);
    assert!(client.read(Lsn(6), 0).unwrap().next().is_none());

    assert_eq!(client.barrier().unwrap(), PassedBarrier { epoch: Epoch(3), last: Lsn(5) });
    assert_eq!(client.sync().unwrap(), Lsn(5));
    assert_eq!(client.trim(Lsn(3)).unwrap(), Lsn(3));
    assert_eq!(client.status().unwrap(), r#"{"role":"primary"}"#);

    let mut tail = client.tail(Lsn(4)).unwrap();
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(4), b"four")));
    assert!(matches!(tail.next_event().unwrap(), Some(Event::Record(Lsn(5), _))));
    assert_eq!(tail.next_event().unwrap(), Some(Event::CaughtUp { next: Lsn(6) }));
    assert_eq!(tail.stop().unwrap(), Lsn(6));
    assert_eq!(client.append(b"six").unwrap(), Lsn(6));
    drop(client.tail(Lsn(1)).unwrap());
    assert_eq!(client.append(b"seven").unwrap(), Lsn(7));

    let mut follow = client.follow(Lsn(6)).unwrap();
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(6), b"six")));
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(7), b"seven")));
    let lag = FollowEvent::Lag { acked: Lsn(7), behind: Some(Duration::ZERO), stale: false };
    assert_eq!(follow.next_event().unwrap(), Some(lag));
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Turn { epoch: Epoch(3), next: Lsn(8) }));
    assert_eq!(follow.next_event().unwrap(), None);
    drop(follow);
    assert_eq!(client.append(b"eight").unwrap(), Lsn(8));
    let read: Vec<_> = client.read_anywhere(Lsn(7), 1).unwrap().map(Result::unwrap).collect();
    assert_eq!(read, [(Lsn(7), b"seven".to_vec())]);
    assert_eq!(client.position().unwrap(), Position { epoch: Epoch(3), last: Lsn(8) });
    drop(client);
    server.join();
}

/// Records that are made in place, small and larger than any ring, among others and dropped.
#[test]
fn reserved_records_are_appended_in_order() {
    for script in [sidecar, sidecar_with_ring] {
        let server = Server::new(script);
        let mut client = Client::connect(server.path()).unwrap();
        let mut expected = Vec::new();
        for n in 0..5000_u32 {
            let length = if n % 1000 == 0 { 1 << 20 } else { n as usize % 300 };
            let mut reserved = client.reserve(length).unwrap();
            assert_eq!(reserved.bytes_mut().len(), length);
            reserved.bytes_mut().fill(n as u8);
            if n % 7 == 0 {
                continue;
            }
            reserved.submit();
            expected.push(vec![n as u8; length]);
            if n % 5 == 0 {
                client.submit(&n.to_le_bytes()).unwrap();
                expected.push(n.to_le_bytes().to_vec());
            }
        }
        assert!(matches!(client.reserve((1 << 20) + 1), Err(Error::TooLarge { .. })));
        assert_eq!(client.flush().unwrap(), Some(Lsn(expected.len() as u64)));
        let read: Vec<_> = client.read(Lsn(1), 0).unwrap().map(|record| record.unwrap().1).collect();
        assert!(read == expected, "every record is as it was filled in");
        drop(client);
        server.join();
    }
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(APPEND);
        let mut bytes = Vec::new();
        Response::Ack { lsn: 10 }.encode(request, &mut bytes);
        bytes.iter().for_each(|byte| peer.send_bytes(&[*byte]));
    });
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    server.join();
}

/// Submits records of this size to a sidecar that reads nothing while acks of `group` appends are not taken.
fn pipeline(group: usize, count: u64, size: usize, ring: bool) {
    let server = Server::new(move |peer| with_backpressure(peer, group, ring));
    let mut client = Client::connect(server.path()).unwrap();
    for _ in 0..count {
        client.submit(&vec![1; size]).unwrap();
    }
    assert_eq!(client.flush().unwrap(), Some(Lsn(count)));
    assert_eq!((client.in_flight(), client.flush().unwrap()), (0, None));
    drop(client);
    server.join();
}

#[test]
fn pipelining_does_not_deadlock() {
    pipeline(1000, 100_000, 100, false);
    pipeline(1000, 100_000, 100, true);
}

#[test]
fn large_records_do_not_deadlock() {
    pipeline(4, 40, 1 << 20, false);
    pipeline(4, 40, 1 << 20, true);
}

#[test]
fn tickets_can_be_waited_for_in_any_order() {
    let server = Server::new(sidecar);
    let mut client = Client::connect(server.path()).unwrap();
    let tickets: Vec<_> = (0..5).map(|_| client.submit(b"x").unwrap()).collect();
    assert_eq!(client.in_flight(), 5);
    assert_eq!(client.wait_for(tickets[3]).unwrap(), Lsn(4));
    assert_eq!(client.wait_for(tickets[0]).unwrap(), Lsn(1));
    let ack = client.next_ack().unwrap().unwrap();
    assert_eq!((ack.ticket, ack.outcome.unwrap()), (tickets[1], Lsn(2)));
    assert!(matches!(client.wait_for(tickets[3]), Err(Error::Misuse(_))));
    assert_eq!(client.flush().unwrap(), Some(Lsn(5)));
    assert!(client.next_ack().unwrap().is_none());
    assert!(client.try_next_ack().is_none());
    drop(client);
    server.join();
}

#[test]
fn lost_role_leaves_outcomes_unknown() {
    let (mut client, server) = connect(|peer| {
        let requests = [peer.expect(APPEND), peer.expect(APPEND), peer.expect(APPEND)];
        peer.send(requests[0], Response::Ack { lsn: 10 });
        requests[1..].iter().for_each(|r| peer.refuse(*r, ErrorCode::UnknownOutcome, "the role was lost"));
        peer.role(Role::Standby, "db-1");
        let request = peer.expect(APPEND);
        peer.refuse(request, ErrorCode::NotPrimary, "appends go to db-1");
        let request = peer.expect(Request::Status);
        peer.send(request, Response::StatusReport { json: "{}" });
    });
    let tickets = [(); 3].map(|()| client.submit(b"x").unwrap());
    assert_eq!(client.wait_for(tickets[0]).unwrap(), Lsn(10));
    assert!(matches!(client.flush(), Err(Error::UnknownOutcome { .. })));
    assert!(matches!(client.flush(), Err(Error::UnknownOutcome { .. })), "the second flush tells of the rest");
    assert_eq!(client.flush().unwrap(), None);
    let error = client.append(b"x").unwrap_err();
    assert!(matches!(&error, Error::NotPrimary { primary: Some(p), .. } if p == "db-1"), "{error}");
    assert_eq!((client.role_info().role, client.role_info().epoch), (Role::Standby, Epoch(4)));
    assert_eq!(client.next_role().unwrap().primary.as_deref(), Some("db-1"));
    assert_eq!(client.status().unwrap(), "{}");
    server.join();
}

#[test]
fn role_frames_can_be_waited_for() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(APPEND);
        peer.role(Role::Recovering, "");
        peer.send(request, Response::Ack { lsn: 10 });
        peer.expect(Request::Status);
        peer.role(Role::Primary, "db-0");
    });
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    let role_info = client.next_role().unwrap();
    assert_eq!((role_info.role, role_info.primary), (Role::Recovering, None));
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(client.next_role(), Err(Error::TimedOut { .. })));
    client.set_timeout(None).unwrap();
    assert!(matches!(client.status(), Err(Error::Disconnected { .. })));
    assert_eq!(client.next_role().unwrap().role, Role::Primary, "what came before the end can still be taken");
    server.join();
}

#[test]
fn refusal_may_overtake_acks() {
    let (mut client, server) = connect(|peer| {
        let requests = [peer.expect(APPEND), peer.expect(APPEND), peer.expect(APPEND)];
        peer.refuse(requests[1], ErrorCode::TooLarge, "too large");
        peer.send(requests[0], Response::Ack { lsn: 10 });
        peer.send(requests[2], Response::Ack { lsn: 11 });
    });
    let tickets = [(); 3].map(|()| client.submit(b"x").unwrap());
    assert_eq!(client.wait_for(tickets[2]).unwrap(), Lsn(11));
    assert_eq!(client.wait_for(tickets[0]).unwrap(), Lsn(10));
    assert!(matches!(client.wait_for(tickets[1]), Err(Error::TooLarge { .. })));
    server.join();
}

#[test]
fn error_codes_map_to_errors() {
    use ErrorCode::*;
    for code in ErrorCode::ALL {
        let (mut client, server) = connect(move |peer| {
            let request = peer.expect(Request::Trim { below: 5 });
            peer.send(request, Response::Error { code, fatal: false, retry_after_ms: 70, message: "words" });
        });
        let error = client.trim(Lsn(5)).unwrap_err();
        let fits = match (&error, code) {
            (Error::NotPrimary { primary, .. }, NotPrimary) => primary.as_deref() == Some("db-0"),
            (Error::Retry { after, .. }, Busy | Unavailable) => *after == Duration::from_millis(70),
            (Error::Refused { code: told, .. }, BadFrame | UnsupportedVersion | BeyondEnd | NotAllowed | Reading) => {
                *told == code
            }
            (Error::UnknownOutcome { .. }, UnknownOutcome)
            | (Error::TooLarge { .. }, TooLarge)
            | (Error::Trimmed { .. }, Trimmed)
            | (Error::TableFull { .. }, TableFull)
            | (Error::WrongKind { .. }, WrongKind)
            | (Error::Disconnected { .. }, ShuttingDown) => true,
            _ => false,
        };
        assert!(fits, "{code:?}: {error:?}");
        assert!(error.to_string().contains("words"), "{error}");
        server.join();
    }
}

#[test]
fn refused_hello_gives_the_reason() {
    let error = refused_hello(|peer| peer.fatal(1, ErrorCode::NotAllowed, "user 5 is not on the list"));
    assert!(matches!(error, Error::Refused { code: ErrorCode::NotAllowed, .. }), "{error}");
    let error = refused_hello(|peer| peer.fatal(0, ErrorCode::Busy, "64 connections"));
    assert!(matches!(error, Error::Retry { .. }), "{error}");
    let error = refused_hello(|_| {});
    assert!(matches!(error, Error::Disconnected { .. }), "{error}");
    for version in [0, VERSION + 1] {
        let error = refused_hello(move |peer| peer.send(1, Response::Welcome(Welcome { version, ..WELCOME })));
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }
    let error = refused_hello(|peer| peer.send(1, Response::Trimmed { first: 1 }));
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    let error = Client::connect("/nonexistent/append.sock").err().unwrap();
    assert!(
        matches!(error, Error::Connect { .. }) && error.to_string().contains("/nonexistent/append.sock"),
        "{error}"
    );
}

#[test]
fn timeout_bounds_hold() {
    let server = Server::new(|mut peer| {
        peer.expect(Request::Hello { version_min: 1, version_max: VERSION, flags: HELLO_HOLD | HELLO_RING });
        assert!(peer.next(|_, _| ()).is_none());
    });
    let options = Options { hold: true, timeout: Some(Duration::from_millis(20)), ..Options::default() };
    assert!(matches!(Client::connect_with(server.path(), &options), Err(Error::TimedOut { .. })));
    server.join();
}

/// No error that ends a connection says anything of requests without an answer.
#[test]
fn disconnect_preserves_earlier_answers() {
    for code in [ErrorCode::ShuttingDown, ErrorCode::Busy, ErrorCode::BadFrame] {
        let (mut client, server) = connect(move |peer| {
            let request = peer.expect(APPEND);
            peer.expect(APPEND);
            peer.send(request, Response::Ack { lsn: 10 });
            peer.fatal(0, code, "the pod ends");
        });
        let tickets = [(); 2].map(|()| client.submit(b"x").unwrap());
        let error = client.wait_for(tickets[1]).unwrap_err();
        assert!(matches!(&error, Error::Disconnected { why } if why.contains("the pod ends")), "{error}");
        assert_eq!(client.wait_for(tickets[0]).unwrap(), Lsn(10));
        assert!(matches!(client.submit(b"x"), Err(Error::Disconnected { .. })));
        assert!(matches!(client.barrier(), Err(Error::Disconnected { .. })));
        assert!(matches!(client.read(Lsn(1), 0).unwrap().next(), Some(Err(Error::Disconnected { .. }))));
        server.join();
    }
}

/// Accepts nobody, and its queue has room for one.
fn deaf_listener(path: &Path) -> OwnedFd {
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    listener
}

/// The system queues connections until somebody accepts them, and has those wait for which the queue has no room.
#[test]
fn connections_that_nobody_accepts_are_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("append.sock");
    let _listener = deaf_listener(&path);
    let options = Options { timeout: Some(Duration::from_millis(20)), ..Options::default() };
    for _ in 0..4 {
        let error = Client::connect_with(&path, &options).err().unwrap();
        assert!(matches!(error, Error::TimedOut { .. } | Error::Connect { .. }), "{error}");
    }
}

/// With a timer's signals, each wait of the system is cut short and begins again.
#[test]
fn signals_do_not_prolong_a_connect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("append.sock");
    let _listener = deaf_listener(&path);
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::default()).unwrap();
    let options = Options { timeout: Some(Duration::from_millis(100)), ..Options::default() };
    let thread = rustix::thread::gettid();
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // Named by its own number, a thread is the first to which the system gives a signal of its process.
            while ended.recv_timeout(Duration::from_millis(20)) == Err(RecvTimeoutError::Timeout) {
                kill_process(thread, Signal::USR1).unwrap();
            }
        });
        // The first waits for the welcome, and is left in the listener's queue, which has no room for the second.
        let error = Client::connect_with(&path, &options).err().unwrap();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        let error = Client::connect_with(&path, &options).err().unwrap();
        assert!(matches!(&error, Error::Connect { source, .. } if source.kind() == WouldBlock), "{error}");
        drop(end);
    });
}

/// What was not taken is not in flight: `flush` would say nothing of it.
#[test]
fn a_timeout_tells_whether_the_append_is_in_flight() {
    let (late, wait) = mpsc::channel();
    let (mut client, server) = connect(move |peer| {
        wait.recv().unwrap();
        let mut taken = 0;
        while peer.next(|request, _| request).is_some() {
            taken += 1;
        }
        assert!(taken > 1, "{taken}");
    });
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    let error = client.append(b"x").unwrap_err();
    assert!(matches!(error, Error::TimedOut { in_flight: Some(_), .. }), "{error:?}");
    // Until neither the socket nor the client has room for more.
    let record = vec![7; 32 << 10];
    while matches!(client.append(&record), Err(Error::TimedOut { in_flight: Some(_), .. })) {}
    let error = client.submit(&record).unwrap_err();
    assert!(matches!(error, Error::TimedOut { in_flight: None, .. }), "{error:?}");
    late.send(()).unwrap();
    drop(client);
    server.join();
}

#[test]
fn a_tail_that_is_left_is_stopped_at_once() {
    for welcome in [Peer::welcome, Peer::welcome_with_ring] {
        let (stopped, is_stopped) = mpsc::channel();
        let server = Server::new(move |mut peer| {
            welcome(&mut peer);
            let request = peer.expect(Request::Read { from: 1, limit: 0, flags: READ_TAIL, history: 0 });
            peer.end(request, 1, true);
            peer.next(|number, frame| assert_eq!((number, frame), (request, Request::Stop))).unwrap();
            stopped.send(()).unwrap();
        });
        let mut client = Client::connect(server.path()).unwrap();
        let mut tail = client.tail(Lsn(1)).unwrap();
        assert_eq!(tail.next_event().unwrap(), Some(Event::CaughtUp { next: Lsn(1) }));
        drop(tail);
        is_stopped.recv_timeout(Duration::from_secs(60)).unwrap();
        server.join();
    }
}

#[test]
fn failed_read_ends_its_iterator() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Read { from: 1, limit: 0, flags: 0, history: 0 });
        peer.records(request, 1, &["a"]);
    });
    let records: Vec<_> = client.read(Lsn(1), 0).unwrap().collect();
    assert!(matches!(&records[..], [Ok((Lsn(1), _)), Err(Error::Disconnected { .. })]), "{records:?}");
    server.join();
}

#[test]
fn protocol_violations_end_the_connection() {
    let violations: [fn(&mut Peer, u64); 4] = [
        |peer, _| peer.send(77, Response::Ack { lsn: 1 }),
        |peer, _| peer.send(1, Response::Ack { lsn: 1 }),
        |peer, _| peer.send_bytes(&[0; 16]),
        |peer, _| peer.send_bytes(&[0xff; 16]),
    ];
    for violate in violations {
        let (mut client, server) = connect(move |peer| {
            let request = peer.expect(APPEND);
            violate(peer, request);
        });
        let error = client.append(b"x").unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        assert!(matches!(client.append(b"x"), Err(Error::Disconnected { .. })));
        server.join();
    }
}

#[test]
fn gap_in_a_read_is_a_violation() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Read { from: 1, limit: 0, flags: 0, history: 0 });
        peer.records(request, 1, &["a", "b"]);
        peer.records(request, 4, &["d"]);
    });
    let records: Vec<_> = client.read(Lsn(0), 0).unwrap().collect();
    assert!(matches!(&records[..], [Ok(_), Ok(_), Err(Error::Protocol { .. })]), "{records:?}");
    server.join();
}

#[test]
fn limits_are_checked_before_sending() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 10 });
    });
    assert!(matches!(client.submit(&vec![0; (1 << 20) + 1]), Err(Error::TooLarge { .. })));
    assert!(matches!(client.submit_batch(&[vec![0; (1 << 20) + 1]]), Err(Error::TooLarge { .. })));
    assert!(matches!(client.submit_batch(&vec![[0; 1 << 10]; 4096]), Err(Error::TooLarge { .. })));
    assert!(matches!(client.submit_batch(&vec![b""; 65_537]), Err(Error::TooLarge { .. })));
    assert!(matches!(client.submit_batch::<&[u8]>(&[]), Err(Error::Misuse(_))));
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    server.join();
}

#[test]
fn client_is_usable_after_a_dropped_read() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Read { from: 1, limit: 0, flags: READ_TAIL, history: 0 });
        peer.records(request, 1, &["a", "b", "c"]);
        peer.records(request, 4, &["d"]);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.end(request, 5, true);
        peer.records(request, 5, &["e"]);
        peer.end(request, 6, false);
        // The end of the second read crosses with its stop, which a sidecar may even answer.
        let request = peer.expect(Request::Read { from: 1, limit: 0, flags: 0, history: 0 });
        peer.records(request, 1, &["a"]);
        peer.end(request, 2, false);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.end(request, 2, false);
        let append = peer.expect(APPEND);
        peer.send(append, Response::Ack { lsn: 10 });
    });
    let mut tail = client.tail(Lsn(1)).unwrap();
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(1), b"a")));
    drop(tail);
    let mut read = client.read(Lsn(1), 0).unwrap();
    assert_eq!(read.next_record().unwrap(), Some((Lsn(1), &b"a"[..])));
    drop(read);
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    server.join();
}

#[test]
fn acks_arrive_during_a_read() {
    let (mut client, server) = connect(|peer| {
        let append = peer.expect(APPEND);
        let read = peer.expect(Request::Read { from: 1, limit: 0, flags: READ_TAIL, history: 0 });
        peer.records(read, 1, &["a"]);
        peer.send(append, Response::Ack { lsn: 2 });
        peer.end(read, 2, true);
        peer.refuse(read, ErrorCode::NotPrimary, "the role was lost");
    });
    let ticket = client.submit(b"x").unwrap();
    let mut tail = client.tail(Lsn(1)).unwrap();
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(1), b"a")));
    assert_eq!(tail.next_event().unwrap(), Some(Event::CaughtUp { next: Lsn(2) }));
    assert!(matches!(tail.next_event(), Err(Error::NotPrimary { .. })));
    assert_eq!(tail.next_event().unwrap(), None);
    drop(tail);
    assert_eq!(client.wait_for(ticket).unwrap(), Lsn(2));
    server.join();
}

#[test]
fn timeout_loses_nothing() {
    let (sender, late) = std::sync::mpsc::channel();
    let (mut client, server) = connect(move |peer| {
        let append = peer.expect(APPEND);
        let barrier = peer.expect(Request::Barrier);
        late.recv().unwrap();
        peer.send(append, Response::Ack { lsn: 10 });
        peer.send(barrier, Response::BarrierPassed { epoch: 3, last: 10 });
        let status = peer.expect(Request::Status);
        peer.send(status, Response::StatusReport { json: "{}" });
    });
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(matches!(client.append(b"x"), Err(Error::TimedOut { .. })));
    assert!(matches!(client.barrier(), Err(Error::TimedOut { .. })));
    client.set_timeout(None).unwrap();
    sender.send(()).unwrap();
    assert_eq!(client.status().unwrap(), "{}", "the late answer to the barrier is not the status");
    assert_eq!(client.flush().unwrap(), Some(Lsn(10)));
    server.join();
}

#[test]
fn spinning_gives_the_same_results() {
    for script in [sidecar, sidecar_with_ring] {
        let server = Server::new(script);
        let options = Options { spin: Duration::from_micros(50), ..Options::default() };
        let mut client = Client::connect_with(server.path(), &options).unwrap();
        for lsn in 1..=100 {
            assert_eq!(client.append(b"x").unwrap(), Lsn(lsn));
        }
        drop(client);
        server.join();
    }
}

#[test]
fn a_client_may_do_without_a_ring() {
    let server = Server::new(|mut peer| {
        let request = peer.expect(Request::Hello { version_min: 1, version_max: VERSION, flags: 0 });
        peer.send(request, Response::Welcome(WELCOME));
    });
    let options = Options { socket_only: true, ..Options::default() };
    assert!(!Client::connect_with(server.path(), &options).unwrap().welcome().ring);
    server.join();
}

/// The sidecar dies with its last words in the ring: they come before the end.
#[test]
fn answers_in_the_ring_survive_their_sidecar() {
    let server = Server::new(|mut peer| {
        peer.welcome_with_ring();
        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 10 });
        peer.fatal(0, ErrorCode::ShuttingDown, "this sidecar is ending");
    });
    let mut client = Client::connect(server.path()).unwrap();
    client.submit(b"x").unwrap();
    let lost = client.submit(b"y").unwrap();
    assert_eq!(client.next_ack().unwrap().unwrap().outcome.unwrap(), Lsn(10));
    let error = client.wait_for(lost).unwrap_err();
    assert!(matches!(&error, Error::Disconnected { why } if why == "this sidecar is ending"), "{error}");
    server.join();
}

/// The welcome speaks of a ring, and none comes with it.
#[test]
fn a_ring_that_cannot_be_mapped_is_done_without() {
    let server = Server::new(|mut peer| {
        let request = peer.expect(Request::Hello { version_min: 1, version_max: VERSION, flags: HELLO_RING });
        peer.send(request, Response::Welcome(Welcome { ring: true, ..WELCOME }));
        let mut peer = peer.next_connection();
        let request = peer.expect(Request::Hello { version_min: 1, version_max: VERSION, flags: 0 });
        peer.send(request, Response::Welcome(WELCOME));
        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 10 });
    });
    let mut client = Client::connect(server.path()).unwrap();
    assert!(!client.welcome().ring);
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    drop(client);
    server.join();
}

#[test]
fn pump_does_not_wait() {
    for script in [sidecar, sidecar_with_ring] {
        let server = Server::new(script);
        let mut client = Client::connect(server.path()).unwrap();
        client.pump().unwrap();
        for size in [1, 1 << 20] {
            let ticket = client.submit(&vec![7; size]).unwrap();
            client.pump().unwrap();
            // The answer is on its way, or the sidecar makes room: readable is the sign to pump again.
            while client.in_flight() == 1 {
                let out = if client.welcome().ring { PollFlags::empty() } else { PollFlags::OUT };
                let mut fds = [PollFd::new(&client, PollFlags::IN | out)];
                assert_eq!(poll(&mut fds, None).unwrap(), 1);
                client.pump().unwrap();
            }
            assert_eq!(client.try_next_ack().unwrap().ticket, ticket);
        }
        drop(client);
        server.join();
    }
}
