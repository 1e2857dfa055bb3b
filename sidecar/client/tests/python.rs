//! The Python client against the same small sidecars.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod fake;

use std::process::Command;

use fake::{Server, WELCOME, sidecar, with_backpressure};
use tailwind_protocol::socket::{BEHIND_UNKNOWN, ErrorCode, READ_ANYWHERE, Request, Response, Role, Welcome};

/// Runs `script` with `client` connected to the server. Without Python on this machine there is nothing to test.
fn python(server: Server, script: &str) {
    let script =
        format!("from tailwind import *\nimport sys\nclient = Client(sys.argv[1])\n{script}\nclient.close()\n");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/python");
    let mut command = Command::new("python3");
    command.args(["-B", "-c", &script]).arg(server.path()).env("PYTHONPATH", folder);
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.join();
}

#[test]
fn all_functions_work() {
    python(
        Server::new(sidecar),
        r#"
assert client.welcome.inflight_max == 1000 and client.role.primary == "db-0"
assert client.append(b"one") == 1
assert client.append_batch([b"two", b""]) == 3
tickets = [client.submit(b"x") for _ in range(3)]
assert client.wait(tickets[2]) == 6 and client.wait(tickets[0]) == 4
assert list(client.acks(wait=True)) == [(tickets[1], 5)]
assert list(client.read(1, 3)) == [(1, b"one"), (2, b"two"), (3, b"")]
assert client.barrier() == (3, 6) and client.trim(2) == 2 and client.status() == '{"role":"primary"}'
events = []
for event in client.tail(5):
    events.append(event)
    if isinstance(event, CaughtUp):
        break
assert events == [(5, b"x"), (6, b"x"), CaughtUp(7)]
quiet, client._timeout = client.tail(5), 0.05
assert [next(quiet) for _ in range(3)] == events
for _ in range(2):
    try:
        next(quiet)
        raise AssertionError("nothing comes")
    except TimeoutError:
        pass
quiet.close()
assert list(quiet) == [] and client.status() == '{"role":"primary"}'
client._timeout = None
left = client.tail(1)
assert next(left) == (1, b"one")
assert client.append(b"seven") == 7
try:
    next(left)
    raise AssertionError("a stopped read must not look like a finished one")
except RuntimeError:
    pass
try:
    client.append(bytes((1 << 20) + 1))
    raise AssertionError("too large")
except TooLarge:
    pass
events = list(client.follow(6))
assert events == [(6, b"x"), (7, b"seven"), Lag(7, 0.0, False), Turn(3, 8)]
assert list(client.read_anywhere(7)) == [(7, b"seven")] and client.position() == Position(3, 7)
with client as same:
    assert same.append(bytes(1 << 20)) == 8
"#,
    );
}

#[test]
fn pipelining_does_not_deadlock() {
    python(
        Server::new(|peer| with_backpressure(peer, 1000, false)),
        "for _ in range(100_000): client.submit(bytes(100))\nassert client.flush() == 100_000",
    );
}

#[test]
fn large_records_do_not_deadlock() {
    python(
        Server::new(|peer| with_backpressure(peer, 4, false)),
        "for _ in range(40): client.submit(bytes(1 << 20))\nassert client.flush() == 40",
    );
}

#[test]
fn errors_carry_their_codes() {
    let server = Server::new(|mut peer| {
        peer.welcome();
        let requests = [(); 2].map(|()| peer.expect(Request::Append { payload: b"x" }));
        requests.iter().for_each(|r| peer.refuse(*r, ErrorCode::UnknownOutcome, "the role was lost"));
        peer.role(Role::Standby, "db-1");
        let request = peer.expect(Request::Barrier);
        peer.refuse(request, ErrorCode::NotPrimary, "appends go to db-1");
        let request = peer.expect(Request::Status);
        let busy = Response::Error { code: ErrorCode::Busy, fatal: true, retry_after_ms: 250, message: "later" };
        peer.send(request, busy);
    });
    python(
        server,
        r#"
def fails(call, kind, code):
    try:
        call()
    except kind as error:
        assert error.code == code, error
        return error
    raise AssertionError(code)
tickets = [client.submit(b"x"), client.submit(b"x")]
fails(client.flush, UnknownOutcome, "UnknownOutcome")
fails(client.flush, UnknownOutcome, "UnknownOutcome")
assert client.flush() is None
fails(client.barrier, NotPrimary, "NotPrimary")
assert client.role.role == 2 and client.role.primary == "db-1"
assert fails(client.status, Retry, "Busy").retry_after == 0.25
fails(client.status, Disconnected, "Busy")
"#,
    );
}

/// A standby's app from its start to its first append, with a follow that is left half-way before.
#[test]
fn a_follow_ends_with_the_turn() {
    let server = Server::new(|mut peer| {
        peer.welcome_with(Welcome { role: Role::Standby, epoch: 4, last: 0, primary: "db-1", ..WELCOME });
        let request = peer.expect(Request::Follow { from: 5 });
        peer.records(request, 5, &["five", "six"]);
        assert_eq!(peer.expect(Request::Stop), request);
        peer.send(request, Response::Lag { acked: 6, behind_ms: 1, stale: false });
        peer.records(request, 7, &["seven"]);
        peer.end(request, 8, false);
        let request = peer.expect(Request::Follow { from: 6 });
        peer.send(request, Response::Lag { acked: 0, behind_ms: BEHIND_UNKNOWN, stale: true });
        peer.records(request, 6, &["six"]);
        peer.end(request, 7, true);
        peer.send(request, Response::Lag { acked: 6, behind_ms: 250, stale: false });
        peer.send(request, Response::Turn { epoch: 5, next: 7 });
        let request = peer.expect(Request::Append { payload: b"x" });
        peer.send(request, Response::Ack { lsn: 7 });
        let request = peer.expect(Request::Read { from: 7, limit: 1, flags: READ_ANYWHERE });
        peer.records(request, 7, &["x"]);
        peer.end(request, 8, false);
    });
    python(
        server,
        r#"
follow = client.follow(5)
assert next(follow) == (5, b"five")
follow.close()
events = list(client.follow(6))
assert events == [Lag(0, None, True), (6, b"six"), CaughtUp(7), Lag(6, 0.25, False), Turn(5, 7)], events
assert isinstance(events[-1], Turn) and client.role.role == 1 and client.role.primary == ""
assert client.append(b"x") == 7
assert list(client.read_anywhere(7, 1)) == [(7, b"x")]
"#,
    );
}

#[test]
fn a_turn_that_leaves_a_gap_is_a_violation() {
    let server = Server::new(|mut peer| {
        peer.welcome();
        let request = peer.expect(Request::Follow { from: 5 });
        peer.records(request, 5, &["five"]);
        peer.send(request, Response::Turn { epoch: 5, next: 7 });
    });
    python(
        server,
        r#"
events = client.follow(5)
assert next(events) == (5, b"five")
try:
    next(events)
    raise AssertionError("a gap")
except Disconnected as error:
    assert "LSN 7 where LSN 6 is next" in str(error), error
"#,
    );
}

#[test]
fn an_older_sidecar_is_not_asked_to_follow() {
    let server = Server::new(|mut peer| {
        peer.welcome_with(Welcome { version: 1, ..WELCOME });
        let request = peer.expect(Request::Append { payload: b"x" });
        peer.send(request, Response::Ack { lsn: 10 });
    });
    python(
        server,
        r#"
for call in (lambda: client.follow(1), lambda: client.read_anywhere(1), client.position):
    try:
        call()
        raise AssertionError("an older sidecar")
    except Error as error:
        assert error.code == "UnsupportedVersion" and "speaks version 1" in str(error), error
assert client.append(b"x") == 10
"#,
    );
}
