//! Follows, reads anywhere and positions against a scripted sidecar, with the blocking client: the session is the same in both.

use std::time::Duration;

use crate::fake::{Peer, Server, WELCOME};
use tailwind_client::blocking::Client;
use tailwind_client::{Epoch, Error, FollowEvent, History, Lsn, Options, Position, Role};
use tailwind_protocol::socket::{BEHIND_UNKNOWN, ErrorCode, READ_ANYWHERE, Request, Response, Welcome};

const APPEND: Request<'static> = Request::Append { payload: b"x" };
/// What a standby says of itself.
const STANDBY: Welcome<'static> = Welcome { role: Role::Standby, epoch: 4, last: 0, primary: "db-1", ..WELCOME };

/// Connects to a standby's script that begins after the welcome.
fn connect(script: impl FnOnce(&mut Peer) + Send + 'static) -> (Client, Server) {
    let server = Server::new(|mut peer| {
        peer.welcome_with(STANDBY);
        script(&mut peer);
    });
    (Client::connect(server.path()).unwrap(), server)
}

fn lag(peer: &mut Peer, request: u64, acked: u64, behind_ms: u32, stale: bool) {
    peer.send(request, Response::Lag { acked, behind_ms, stale });
}

/// A standby's app from its start to its first append.
#[test]
fn a_follow_ends_with_the_turn() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        lag(peer, request, 0, BEHIND_UNKNOWN, true);
        peer.records(request, 5, &["five", "six"]);
        peer.end(request, 7, true);
        lag(peer, request, 6, 2, false);
        peer.records(request, 7, &["seven"]);
        peer.send(request, Response::Turn { epoch: 5, next: 8 });
        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 8 });
    });
    let mut follow = client.follow(Lsn(5)).unwrap();
    let mut next = || -> String { format!("{:?}", follow.next_event().unwrap()) };
    assert_eq!(next(), "Some(Lag { acked: Lsn(0), behind: None, stale: true })");
    assert_eq!(next(), r#"Some(Record(Lsn(5), [102, 105, 118, 101]))"#);
    assert!(next().starts_with("Some(Record(Lsn(6), "));
    assert_eq!(next(), "Some(CaughtUp { next: Lsn(7) })");
    assert_eq!(next(), "Some(Lag { acked: Lsn(6), behind: Some(2ms), stale: false })");
    assert!(next().starts_with("Some(Record(Lsn(7), "));
    assert_eq!(next(), "Some(Turn { epoch: Epoch(5), next: Lsn(8) })");
    assert_eq!((next(), next()), ("None".to_owned(), "None".to_owned()));
    assert_eq!(follow.next_lsn(), Lsn(8));
    drop(follow);
    let role_info = client.role_info();
    assert_eq!((role_info.role, role_info.epoch, role_info.last), (Role::Primary, Epoch(5), Lsn(7)));
    assert_eq!(role_info.primary, None, "no longer the earlier one");
    assert_eq!(client.append(b"x").unwrap(), Lsn(8));
    server.join();
}

/// What is read belongs to a history, which the next request names, whatever kind of request it is.
#[test]
fn a_position_is_a_history_and_an_lsn() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        peer.send(request, Response::History { history: 31 });
        peer.records(request, 5, &["five"]);
        peer.send(request, Response::History { history: 32 });
        peer.records(request, 6, &["six"]);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.end(request, 7, false);
        let request = peer.expect(Request::Read { from: 7, limit: 1, flags: 0, history: 32 });
        peer.send(request, Response::History { history: 33 });
        peer.records(request, 7, &["seven"]);
        peer.end(request, 8, false);
        let request = peer.expect(Request::Follow { from: 8, history: 33 });
        peer.refuse(request, ErrorCode::BeyondEnd, "the log was cut after LSN 6");
    });
    let mut follow = client.follow(Lsn(5)).unwrap();
    assert_eq!(follow.history(), History::UNKNOWN);
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(5), b"five")));
    assert_eq!(follow.history(), History(31));
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(6), b"six")));
    let position = (follow.history(), follow.next_lsn());
    assert_eq!(position, (History(32), Lsn(7)));
    follow.stop().unwrap();
    let mut records = client.read(position, 1).unwrap();
    assert_eq!(records.next_record().unwrap(), Some((Lsn(7), &b"seven"[..])));
    assert_eq!(records.next_record().unwrap(), None);
    let history = records.history();
    drop(records);
    let error = client.follow((history, Lsn(8))).unwrap().next_event().unwrap_err();
    assert!(matches!(error, Error::Refused { code: ErrorCode::BeyondEnd, .. }), "{error:?}");
    server.join();
}

/// A sidecar of an earlier release would take a history for a mistake.
#[test]
fn a_history_is_not_named_to_a_sidecar_that_knows_none() {
    let server = Server::new(|mut peer| {
        peer.welcome_with(Welcome { version: 2, ..STANDBY });
        let request = peer.expect(Request::Read { from: 5, limit: 0, flags: 0, history: 0 });
        peer.end(request, 5, false);
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        peer.send(request, Response::Turn { epoch: 5, next: 5 });
    });
    let mut client = Client::connect(server.path()).unwrap();
    let position = (History(31), Lsn(5));
    assert_eq!(client.read(position, 0).unwrap().next_record().unwrap(), None);
    let mut follow = client.follow(position).unwrap();
    assert!(matches!(follow.next_event().unwrap(), Some(FollowEvent::Turn { .. })));
    assert_eq!(follow.history(), History(31));
    server.join();
}

#[test]
fn a_turn_keeps_what_a_role_frame_has_told() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.send(0, Response::Role { role: Role::Primary, epoch: 5, last: 0, primary: "db-0" });
        peer.send(request, Response::Turn { epoch: 5, next: 1 });
    });
    let mut follow = client.follow(Lsn(0)).unwrap();
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Turn { epoch: Epoch(5), next: Lsn(1) }));
    drop(follow);
    assert_eq!(client.role_info().primary.as_deref(), Some("db-0"));
    server.join();
}

/// The sidecar has won epoch 5 and lost it again before its client took the records: the turn waits behind these in the
/// socket, and the news of the loss is in the ring.
#[test]
fn a_turn_that_a_later_role_overtakes_does_not_undo_it() {
    for lost in [4, 5] {
        let server = Server::new(move |mut peer| {
            peer.hand_ring_with(STANDBY);
            let request = peer.expect(Request::Follow { from: 1, history: 0 });
            peer.send(0, Response::Role { role: Role::Standby, epoch: 5, last: 1, primary: "db-2" });
            peer.records(request, 1, &["one"]);
            peer.send(request, Response::Turn { epoch: lost, next: 2 });
            let request = peer.expect(APPEND);
            peer.refuse(request, ErrorCode::NotPrimary, "appends go to db-2");
        });
        let mut client = Client::connect(server.path()).unwrap();
        assert!(client.welcome().ring);
        let mut follow = client.follow(Lsn(1)).unwrap();
        assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(1), b"one")));
        assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Turn { epoch: Epoch(lost), next: Lsn(2) }));
        drop(follow);
        let role_info = client.role_info();
        assert_eq!((role_info.role, role_info.epoch), (Role::Standby, Epoch(5)));
        assert_eq!(role_info.primary.as_deref(), Some("db-2"));
        assert!(matches!(client.append(b"x"), Err(Error::NotPrimary { .. })));
        server.join();
    }
}

/// What comes between the stop and its answer is of nobody's interest; a turn may take the answer's place.
#[test]
fn a_stopped_follow_leaves_the_client_usable() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        peer.records(request, 5, &["five"]);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.records(request, 6, &["six"]);
        lag(peer, request, 6, 2, false);
        peer.end(request, 7, true);
        peer.end(request, 7, false);

        let request = peer.expect(Request::Follow { from: 6, history: 0 });
        peer.records(request, 6, &["six"]);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.records(request, 7, &["seven"]);
        peer.send(request, Response::Turn { epoch: 5, next: 8 });

        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 8 });
    });
    let mut follow = client.follow(Lsn(5)).unwrap();
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(5), b"five")));
    assert_eq!(follow.stop().unwrap(), Lsn(6));
    let mut follow = client.follow(Lsn(6)).unwrap();
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(6), b"six")));
    drop(follow);
    assert_eq!(client.append(b"x").unwrap(), Lsn(8));
    assert_eq!(client.role_info().role, Role::Primary);
    server.join();
}

#[test]
fn an_error_ends_a_follow() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        peer.refuse(request, ErrorCode::Trimmed, "the log begins at LSN 9");
        let request = peer.expect(Request::Follow { from: 9, history: 0 });
        peer.records(request, 9, &["nine"]);
        peer.refuse(request, ErrorCode::Busy, "16 reads are running");
        let request = peer.expect(APPEND);
        peer.refuse(request, ErrorCode::NotPrimary, "appends go to db-1");
    });
    let mut follow = client.follow(Lsn(5)).unwrap();
    assert!(matches!(follow.next_event(), Err(Error::Trimmed { .. })));
    assert_eq!(follow.next_event().unwrap(), None);
    drop(follow);
    let mut follow = client.follow(Lsn(9)).unwrap();
    assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(9), b"nine")));
    assert!(matches!(follow.next_event(), Err(Error::Retry { .. })));
    drop(follow);
    assert!(matches!(client.append(b"x"), Err(Error::NotPrimary { .. })));
    server.join();
}

/// An app that misses a record and is told to append would write over what others know.
#[test]
fn a_turn_that_leaves_a_gap_is_a_violation() {
    type Violation = fn(&mut Peer, u64);
    let violations: [(Violation, &str); 5] = [
        (
            |peer, request| peer.send(request, Response::Turn { epoch: 5, next: 7 }),
            "a turn: record 7 where record 6 is next",
        ),
        (
            |peer, request| peer.send(request, Response::Turn { epoch: 5, next: 5 }),
            "a turn: record 5 where record 6 is next",
        ),
        (|peer, request| peer.records(request, 7, &["seven"]), "record 7 where record 6 is next"),
        (
            |peer, _| peer.send(77, Response::Turn { epoch: 5, next: 6 }),
            "an answer to request 77, which was never sent",
        ),
        (|peer, _| lag(peer, 77, 5, 0, false), "an answer to request 77, which was never sent"),
    ];
    for (violate, words) in violations {
        let (mut client, server) = connect(move |peer| {
            let request = peer.expect(Request::Follow { from: 5, history: 0 });
            peer.records(request, 5, &["five"]);
            violate(peer, request);
        });
        let mut follow = client.follow(Lsn(5)).unwrap();
        assert_eq!(follow.next_event().unwrap(), Some(FollowEvent::Record(Lsn(5), b"five")));
        let error = follow.next_event().unwrap_err();
        assert!(matches!(&error, Error::Protocol { what } if what == words), "{error}");
        drop(follow);
        assert_eq!(client.role_info().role, Role::Standby);
        assert!(matches!(client.append(b"x"), Err(Error::Disconnected { .. })));
        server.join();
    }
}

#[test]
fn a_read_has_no_lag_and_no_turn() {
    let frames = [Response::Lag { acked: 5, behind_ms: 0, stale: false }, Response::Turn { epoch: 5, next: 5 }];
    for frame in frames {
        let (mut client, server) = connect(move |peer| {
            let request = peer.expect(Request::Read { from: 5, limit: 0, flags: READ_ANYWHERE, history: 0 });
            peer.send(request, frame);
        });
        let error = client.read_anywhere(Lsn(5), 0).unwrap().next_record().unwrap_err();
        assert!(matches!(&error, Error::Protocol { what } if what.contains("in a read that is no follow")), "{error}");
        assert_eq!(client.role_info().role, Role::Standby);
        server.join();
    }
}

#[test]
fn a_timeout_leaves_the_follow_as_it_was() {
    let (sender, late) = std::sync::mpsc::channel();
    let server = Server::new(move |mut peer| {
        peer.welcome_with(STANDBY);
        let request = peer.expect(Request::Follow { from: 1, history: 0 });
        late.recv().unwrap();
        peer.records(request, 1, &["one"]);
        assert!(peer.next(|_, _| ()).is_some(), "the stop");
    });
    let mut client = Client::connect(server.path()).unwrap();
    client.set_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut follow = client.follow(Lsn(1)).unwrap();
    assert!(matches!(follow.next_event(), Err(Error::TimedOut { .. })));
    sender.send(()).unwrap();
    let found = loop {
        match follow.next_event() {
            Err(Error::TimedOut { .. }) => {}
            found => break format!("{found:?}"),
        }
    };
    assert_eq!(found, "Ok(Some(Record(Lsn(1), [111, 110, 101])))");
    drop(follow);
    client.pump().unwrap();
    drop(client);
    server.join();
}

/// Nothing is sent that a sidecar of an earlier release would end the connection for.
#[test]
fn an_older_sidecar_is_not_asked_to_follow() {
    let server = Server::new(|mut peer| {
        peer.welcome_with(Welcome { version: 1, ..WELCOME });
        let request = peer.expect(APPEND);
        peer.send(request, Response::Ack { lsn: 10 });
    });
    let mut client = Client::connect_with(server.path(), &Options::default()).unwrap();
    assert_eq!(client.welcome().version, 1);
    let refusals = [
        (client.follow(Lsn(1)).err(), "a follow needs version 2"),
        (client.read_anywhere(Lsn(1), 0).err(), "a read anywhere needs version 2"),
        (client.position().err(), "a position needs version 2"),
    ];
    for (error, words) in refusals {
        let error = error.expect("refused");
        assert!(matches!(error, Error::Refused { code: ErrorCode::UnsupportedVersion, .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(words) && message.contains("this sidecar speaks version 1"), "{message}");
    }
    assert_eq!(client.append(b"x").unwrap(), Lsn(10));
    server.join();
}

#[test]
fn positions_are_answered_in_any_role() {
    let (mut client, server) = connect(|peer| {
        let request = peer.expect(Request::Position);
        peer.send(request, Response::Position { epoch: 4, last: 17 });
        let request = peer.expect(Request::Position);
        peer.refuse(request, ErrorCode::Unavailable, "the primary cannot be reached");
    });
    assert_eq!(client.position().unwrap(), Position { epoch: Epoch(4), last: Lsn(17) });
    assert!(matches!(client.position(), Err(Error::Retry { .. })));
    server.join();
}
