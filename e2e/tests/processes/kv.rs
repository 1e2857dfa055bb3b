//! The example app through failovers: everything that it has answered is there afterwards, at the server that serves then.
//!
//! A server stands beside each sidecar. Segments are of 64 KiB and snapshots frequent, so that logs are trimmed under it.

use rustix::process::Signal;
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::kv::Servers;
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::processes::steps::wait_for_standby;
use tailwind_e2e::workload::Random;

/// A snapshot after so many bytes: several in each round.
const OPTIONS: [&str; 2] = ["--compact-at", "32KiB"];
/// Counters, so that every write of a test is one that a lost or repeated one would show.
const KEYS: u64 = 50;

mod shm {
    #[test]
    fn pods_are_killed_under_load() {
        super::pods_are_killed_under_load("shm");
    }
}

mod tcp {
    #[test]
    fn pods_are_killed_under_load() {
        super::pods_are_killed_under_load("tcp");
    }
}

/// What a client knows of one counter: it cannot be below `acked`, nor above `sent`.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    acked: i64,
    sent: i64,
}

/// A client that increments counters through a pipeline.
struct Client {
    counters: Vec<Counter>,
}

impl Client {
    fn new() -> Client {
        Client { counters: vec![Counter::default(); KEYS as usize] }
    }

    /// Sends increments, of which only the first `awaited` are waited for.
    fn increment(&mut self, random: &mut Random, connection: &mut RespClient, count: u64, awaited: u64) {
        let mut sent = Vec::new();
        for _ in 0..count {
            let key = random.below(KEYS) as usize;
            connection.send(&["INCR", &format!("counter{key}")]).unwrap();
            self.counters[key].sent += 1;
            sent.push(key);
        }
        for key in sent.into_iter().take(awaited as usize) {
            let RespValue::Integer(value) = connection.reply().unwrap() else { panic!("no number") };
            let counter = &mut self.counters[key];
            assert!(counter.acked < value && value <= counter.sent, "counter{key} is {value}, known is {counter:?}");
            counter.acked = value;
        }
    }

    /// Everything that was answered is there, and nothing that was never asked for.
    fn check(&mut self, connection: &mut RespClient) {
        for (key, counter) in self.counters.iter_mut().enumerate() {
            let value = match connection.ask(&["GET", &format!("counter{key}")]).unwrap() {
                RespValue::Nil => 0,
                RespValue::Bulk(text) => String::from_utf8(text).unwrap().parse().unwrap(),
                other => panic!("{other:?}"),
            };
            assert!(counter.acked <= value && value <= counter.sent, "counter{key} is {value}, known is {counter:?}");
            // What was in flight at a kill has been made or never will be.
            *counter = Counter { acked: value, sent: value };
        }
    }
}

fn pods_are_killed_under_load(fabric: &str) {
    let mut test = TestContext::start();
    let mut group = test.start_group(test.setup_with_default_timeouts(fabric).unwrap()).unwrap();
    let mut servers = Servers::start(&group, &OPTIONS).unwrap();
    let mut client = Client::new();
    for _ in 0..rounds(8) {
        let primary = group.wait_for_primary().unwrap();
        let mut connection = servers.wait_for_primary(primary).unwrap();
        client.check(&mut connection);
        for _ in 0..6 {
            client.increment(&mut test.random, &mut connection, 500, 500);
        }
        connection.ask(&["SET", "moment", "v", "PX", "3600000"]).unwrap();
        let awaited = test.random.below(500);
        client.increment(&mut test.random, &mut connection, 500, awaited);

        // The whole pod at once, or the app alone, or the sidecar alone.
        match test.random.below(3) {
            0 => {
                servers.kill(primary).unwrap();
                group.kill_sidecar(primary).unwrap();
            }
            1 => servers.kill(primary).unwrap(),
            _ => group.kill_sidecar(primary).unwrap(),
        }
        if !group.runs(Process::Sidecar(primary)) {
            let other = 1 - primary;
            let mut connection = servers.wait_for_primary(other).unwrap();
            client.check(&mut connection);
            assert_eq!(connection.ask(&["EXISTS", "moment"]).unwrap(), RespValue::Integer(1));
            group.start_sidecar(primary).unwrap();
        }
        // A server that was not killed continues.
        let _ = servers.kill(primary);
        servers.start_one(primary).unwrap();
        group.wait_for_full_set().unwrap();
    }
    let primary = group.wait_for_primary().unwrap();
    let mut connection = servers.wait_for_primary(primary).unwrap();
    client.check(&mut connection);
    // This one is not killed: its metrics are as old as its last tick.
    for _ in 0..6 {
        client.increment(&mut test.random, &mut connection, 500, 500);
    }
    servers.wait("a snapshot", || servers.metric(primary, "snapshots_total").filter(|count| *count > 0)).unwrap();
    let first = || group.client(primary, true).unwrap().welcome().first;
    servers.wait("a trimmed log", || (first().0 > 1).then_some(())).unwrap();
}

fn group_and_servers(test: &TestContext, options: &[&str]) -> (Group, Servers) {
    let group = test.group("shm").unwrap();
    let servers = Servers::start(&group, options).unwrap();
    (group, servers)
}

#[test]
fn standby_answers_reads_and_names_the_primary_for_writes() {
    let test = TestContext::start();
    let (mut group, mut servers) = group_and_servers(&test, &OPTIONS);
    let primary = group.wait_for_primary().unwrap();
    let standby = 1 - primary;
    let mut serving = servers.wait_for_primary(primary).unwrap();
    assert_eq!(serving.ask(&["SET", "a", "1"]).unwrap(), RespValue::Simple("OK".into()));
    let copies = || (servers.metric(primary, "copies")? == 3).then_some(());
    servers.wait("the copies to be known", copies).unwrap();
    assert_eq!(serving.ask(&["WAIT", "2", "0"]).unwrap(), RespValue::Integer(3));

    wait_for_standby(&group, standby, primary).unwrap();
    let ready = |index| servers.probe(index, "/readyz").filter(|reply| reply.status == 200).map(|reply| reply.body);
    assert_eq!(servers.wait("a ready standby", || ready(standby)).unwrap(), b"standby\n");
    assert_eq!(servers.wait("a ready primary", || ready(primary)).unwrap(), b"primary\n");
    let mut refusing = servers.connect(standby).unwrap();
    // Before, there is no value, or not even an empty store.
    let followed = || (servers.connect(standby).ok()?.ask(&["GET", "a"]).ok()? == RespValue::text("1")).then_some(());
    servers.wait("the standby to have the value", followed).unwrap();
    assert_eq!(refusing.ask(&["DBSIZE"]).unwrap(), RespValue::Integer(1));
    // Only the writes of a pipeline are refused.
    for command in [&["GET", "a"][..], &["DEL", "a"], &["EXISTS", "a"]] {
        refusing.send(command).unwrap();
    }
    assert_eq!(refusing.reply().unwrap(), RespValue::text("1"));
    assert!(refusing.reply().unwrap().is_error("READONLY"));
    assert_eq!(refusing.reply().unwrap(), RespValue::Integer(1));
    for command in [&["SET", "a", "2"][..], &["INCR", "a"]] {
        let answer = refusing.ask(command).unwrap();
        assert!(answer.is_error("READONLY"), "{answer:?}");
        assert!(matches!(&answer, RespValue::Error(text) if text.contains(&format!("sidecar{primary}"))), "{answer:?}");
    }
    assert_eq!(refusing.ask(&["PING"]).unwrap(), RespValue::Simple("PONG".into()));

    group.kill_sidecar(standby).unwrap();
    let unready = || servers.probe(standby, "/readyz").filter(|reply| reply.status == 503);
    servers.wait("a server without a sidecar to be unready", unready).unwrap();
    assert!(refusing.ask(&["GET", "a"]).unwrap().is_error("LOADING"));
    assert_eq!(servers.probe(standby, "/healthz").unwrap().status, 200);
    assert_eq!(servers.terminate(primary).unwrap(), Some(0));
    assert!(serving.has_ended());
}

/// The clients of a primary that was cut off and replaced. The server still believes in its role, and its reads are strict.
#[test]
fn strict_reads_are_never_stale() {
    let test = TestContext::start();
    let mut setup = test.setup("shm").unwrap();
    setup.sidecar_options = vec![("--fence-wait-ms", "10000".to_owned()), ("--rpc-timeout-ms", "10000".to_owned())];
    let group = test.start_group(setup).unwrap();
    let servers = Servers::start(&group, &["--strict-reads"]).unwrap();
    let old = group.wait_for_primary().unwrap();
    let new = 1 - old;
    let mut old_connection = servers.wait_for_primary(old).unwrap();
    old_connection.ask(&["SET", "a", "old"]).unwrap();
    assert_eq!(old_connection.ask(&["GET", "a"]).unwrap(), RespValue::text("old"));

    group.freeze(Process::Sidecar(old)).unwrap();
    old_connection.send(&["GET", "a"]).unwrap();
    let mut serving = servers.wait_for_primary(new).unwrap();
    assert_eq!(serving.ask(&["SET", "a", "new"]).unwrap(), RespValue::Simple("OK".into()));
    old_connection.send(&["GET", "a"]).unwrap();
    old_connection.send(&["SET", "a", "stale"]).unwrap();
    group.signal(Process::Sidecar(old), Signal::CONT).unwrap();
    let refused =
        |answer: &RespValue| ["LOADING", "READONLY", "UNKNOWNOUTCOME"].iter().any(|word| answer.is_error(word));
    for _ in 0..2 {
        // As a standby it may know the new value by now.
        let answer = old_connection.reply().unwrap();
        let right = refused(&answer) || answer == RespValue::text("new");
        assert!(right, "answered by a server that had been replaced: {answer:?}");
    }
    let answer = old_connection.reply().unwrap();
    assert!(refused(&answer), "taken by a server that had been replaced: {answer:?}");
    assert_eq!(serving.ask(&["GET", "a"]).unwrap(), RespValue::text("new"));
}

/// A standby's strict read shows everything that the primary has answered: also right afterwards, and while the log is trimmed.
#[test]
fn strict_reads_of_a_standby_see_every_write() {
    let test = TestContext::start();
    let (group, servers) = group_and_servers(&test, &["--strict-reads", "--compact-at", "32KiB"]);
    let primary = group.wait_for_primary().unwrap();
    let mut serving = servers.wait_for_primary(primary).unwrap();
    let mut reading = servers.wait_for_role(1 - primary, "standby").unwrap();
    let long = "x".repeat(500);
    for round in 0..200 {
        let value = format!("{round}{long}");
        serving.ask(&["SET", "a", &value]).unwrap();
        let answer = reading.ask(&["GET", "a"]).unwrap();
        assert!(answer == RespValue::text(&value), "round {round}: {answer:?}");
    }
    servers.wait("a snapshot", || servers.metric(primary, "snapshots_total").filter(|count| *count > 0)).unwrap();
    // The standby takes over with what it has, and lacks nothing.
    let mut group = group;
    group.kill_sidecar(primary).unwrap();
    let mut serving = servers.wait_for_primary(1 - primary).unwrap();
    assert_eq!(serving.ask(&["GET", "a"]).unwrap(), RespValue::text(&format!("199{long}")));
}

#[test]
fn bad_input_affects_no_other_client() {
    let mut test = TestContext::start();
    let (group, servers) = group_and_servers(&test, &OPTIONS);
    let primary = group.wait_for_primary().unwrap();
    let mut good = servers.wait_for_primary(primary).unwrap();
    good.ask(&["SET", "a", "1"]).unwrap();

    for bytes in [&b"*x\r\n"[..], b"*1\r\n:1\r\n", b"*1\r\n$99999999999\r\n", b"*1\r\n$1\r\nabc\r\n", b"\"open\r\n"] {
        let mut bad = servers.connect(primary).unwrap();
        bad.send_bytes(bytes).unwrap();
        assert!(bad.reply().unwrap().is_error("ERR"), "{bytes:?}");
        assert!(bad.has_ended(), "{bytes:?}");
    }
    let mut random = || test.random.next() as u8;
    for _ in 0..100 {
        let mut bad = servers.connect(primary).unwrap();
        let bytes: Vec<u8> = (0..1000).map(|_| b"*$12\r\nget \"x"[usize::from(random()) % 12]).collect();
        // It may have been refused, and the connection closed, before all is sent.
        let _ = bad.send_bytes(&bytes);
    }
    // A value that the log cannot take, then one that it can: segments of 64 KiB take records of 16 KiB.
    let long = "x".repeat(100_000);
    assert!(good.ask(&["SET", "b", &long]).unwrap().is_error("ERR"));
    for piece in 0..10 {
        let size = RespValue::Integer((piece + 1) * 10_000);
        assert_eq!(good.ask(&["APPEND", "b", &long[..10_000]]).unwrap(), size);
    }
    assert_eq!(good.ask(&["STRLEN", "b"]).unwrap(), RespValue::Integer(100_000));
    assert_eq!(good.ask(&["GET", "a"]).unwrap(), RespValue::text("1"));
}
