//! The example app through failovers: everything that it has answered is there afterwards, at the server that serves then.
//!
//! A server stands beside each sidecar, of a group that keeps a table of the least size, so that it is cleaned under them.

use tailwind_client::blocking::Client;
use tailwind_e2e::context::{TestContext, repeats};
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::kv::Servers;
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::processes::steps::wait_for_standby;
use tailwind_e2e::workload::Random;

use crate::tables::{group_with_table, with_table};

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
struct Counting {
    counters: Vec<Counter>,
}

impl Counting {
    fn new() -> Counting {
        Counting { counters: vec![Counter::default(); KEYS as usize] }
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
            let value = number(connection.reply().unwrap());
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

fn number(reply: RespValue) -> i64 {
    let RespValue::Integer(value) = reply else { panic!("no number: {reply:?}") };
    value
}

fn pods_are_killed_under_load(fabric: &str) {
    let mut test = TestContext::start();
    let setup = with_table(test.setup_with_default_timeouts(fabric).unwrap(), "1000");
    let mut group = test.start_group(setup).unwrap();
    let mut servers = Servers::start(&group).unwrap();
    let mut counting = Counting::new();
    let mut moment = 0;
    for _ in 0..repeats(8) {
        let primary = group.wait_for_primary().unwrap();
        let mut connection = servers.wait_for_primary(primary).unwrap();
        counting.check(&mut connection);
        for _ in 0..6 {
            counting.increment(&mut test.random, &mut connection, 500, 500);
        }
        moment += 1;
        let value = format!("{moment} {}", "x".repeat(1000));
        assert_eq!(connection.ask(&["SET", "moment", &value]).unwrap(), RespValue::Simple("OK".into()));
        let awaited = test.random.below(500);
        counting.increment(&mut test.random, &mut connection, 500, awaited);

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
            counting.check(&mut connection);
            assert_eq!(connection.ask(&["GET", "moment"]).unwrap(), RespValue::text(&value));
            group.start_sidecar(primary).unwrap();
        }
        // A server that was not killed continues.
        let _ = servers.kill(primary);
        servers.start_one(primary).unwrap();
        group.wait_for_full_set().unwrap();
    }
    let primary = group.wait_for_primary().unwrap();
    counting.check(&mut servers.wait_for_primary(primary).unwrap());
    // The servers have read tables whose first records were gone.
    let first = |group: &Group| group.client(primary, true).map(|client: Client| client.welcome().first.0).ok();
    group.wait("a cleaned log", |group| first(group).is_some_and(|first| first > 1)).unwrap();
}

fn group_and_servers() -> (TestContext, Group, Servers) {
    let (test, group) = group_with_table("1000");
    let servers = Servers::start(&group).unwrap();
    (test, group, servers)
}

#[test]
fn standby_answers_reads_and_names_the_primary_for_writes() {
    let (_test, mut group, mut servers) = group_and_servers();
    let primary = group.wait_for_primary().unwrap();
    let standby = 1 - primary;
    let mut serving = servers.wait_for_primary(primary).unwrap();
    assert_eq!(serving.ask(&["SET", "a", "1"]).unwrap(), RespValue::Simple("OK".into()));

    let ready = |index| servers.probe(index, "/readyz").filter(|reply| reply.status == 200).map(|reply| reply.body);
    assert_eq!(servers.wait("a ready standby", || ready(standby)).unwrap(), b"standby\n");
    assert_eq!(servers.wait("a ready primary", || ready(primary)).unwrap(), b"primary\n");
    let mut refusing = servers.wait_for_role(standby, "standby").unwrap();
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
    for command in [&["SET", "a", "2"][..], &["INCR", "a"], &["DEL", "absent"]] {
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

/// Conditions decide between clients that change the same keys, and a write is read by all once it is answered.
#[test]
fn clients_of_the_same_keys_do_not_lose_writes() {
    const CLIENTS: i64 = 8;
    const TIMES: i64 = 100;
    let (_test, group, servers) = group_and_servers();
    let primary = group.wait_for_primary().unwrap();
    let mut reading = servers.wait_for_primary(primary).unwrap();
    let taken: i64 = std::thread::scope(|scope| {
        let client = || {
            let mut client = servers.connect(primary).unwrap();
            let deleted = |client: &mut RespClient| number(client.ask(&["DEL", "turn", "turn", "absent"]).unwrap());
            (0..TIMES).fold(0, |taken, _| {
                client.ask(&["INCR", "shared"]).unwrap();
                client.ask(&["SET", "turn", "x"]).unwrap();
                taken + deleted(&mut client)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(reading.ask(&["GET", "shared"]).unwrap(), RespValue::text(&(CLIENTS * TIMES).to_string()));
    // A key that several have set is deleted once.
    assert!((1..=CLIENTS * TIMES).contains(&taken), "{taken}");
    assert_eq!(reading.ask(&["EXISTS", "turn", "shared", "shared"]).unwrap(), RespValue::Integer(1));
    reading.ask(&["SET", "shared", "a word"]).unwrap();
    assert!(reading.ask(&["INCR", "shared"]).unwrap().is_error("ERR"));
    reading.ask(&["SET", "shared", &i64::MAX.to_string()]).unwrap();
    assert!(reading.ask(&["INCR", "shared"]).unwrap().is_error("ERR"));
}

#[test]
fn bad_input_affects_no_other_client() {
    let (mut test, group, servers) = group_and_servers();
    let primary = group.wait_for_primary().unwrap();
    let mut good = servers.wait_for_primary(primary).unwrap();
    good.send_bytes(b"  set  a  1\nGET a\r\n\r\n").unwrap();
    assert_eq!(good.reply().unwrap(), RespValue::Simple("OK".into()));
    assert_eq!(good.reply().unwrap(), RespValue::text("1"));

    let large = format!("*2\r\n$131072\r\n{}\r\n$1\r\n", "x".repeat(131_072));
    let long = "x".repeat(16 << 10);
    for text in [
        "*x\r\n",
        "*258\r\n",
        "*-1\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n$99999999999\r\n",
        "*1\r\n$131073\r\n",
        "*1\r\n$1\r\nabc\r\n",
        &large,
        &long,
    ] {
        let mut bad = servers.connect(primary).unwrap();
        bad.send_bytes(text.as_bytes()).unwrap();
        let answer = bad.reply().unwrap();
        assert!(matches!(&answer, RespValue::Error(why) if why.starts_with("ERR Protocol error")), "{answer:?}");
        assert!(bad.has_ended(), "{answer:?}");
    }
    let mut random = || test.random.next() as u8;
    for _ in 0..100 {
        let mut bad = servers.connect(primary).unwrap();
        let bytes: Vec<u8> = (0..1000).map(|_| b"*$12\r\nget \"x"[usize::from(random()) % 12]).collect();
        // It may have been refused, and the connection closed, before all is sent.
        let _ = bad.send_bytes(&bytes);
    }
    // What the table cannot take: segments of 64 KiB take records of 4 KiB.
    for command in [
        &["SET", "b", &"x".repeat(5000)][..],
        &["SET", "", "1"],
        &["GET"],
        &["SET", "b", "1", "PX", "1"],
        &["a\r\n+OK"],
    ] {
        let answer = good.ask(command).unwrap();
        assert!(answer.is_error("ERR"), "{command:?}: {answer:?}");
    }
    assert_eq!(good.ask(&["GET", "a"]).unwrap(), RespValue::text("1"));
    assert_eq!(good.ask(&["QUIT"]).unwrap(), RespValue::Simple("OK".into()));
    assert!(good.has_ended());
}

#[test]
fn a_full_table_refuses_keys_and_takes_deletes() {
    let (_test, group, servers) = group_and_servers();
    let mut client = servers.wait_for_primary(group.wait_for_primary().unwrap()).unwrap();
    for key in 0..1000 {
        client.send(&["SET", &key.to_string(), ""]).unwrap();
    }
    (0..1000).for_each(|_| assert_eq!(client.reply().unwrap(), RespValue::Simple("OK".into())));
    assert!(client.ask(&["SET", "another", ""]).unwrap().is_error("OOM"));
    assert_eq!(client.ask(&["DEL", "7", "8"]).unwrap(), RespValue::Integer(2));
    assert_eq!(client.ask(&["SET", "another", ""]).unwrap(), RespValue::Simple("OK".into()));
    assert_eq!(client.ask(&["DBSIZE"]).unwrap(), RespValue::Integer(999));
}

#[test]
fn a_server_beside_a_log_ends_and_says_why() {
    let test = TestContext::start();
    let group = test.group("shm").unwrap();
    wait_for_standby(&group, 1, group.wait_for_primary().unwrap()).unwrap();
    let mut servers = Servers::start(&group).unwrap();
    for index in 0..group.sidecars() {
        let (code, log) = servers.wait_for_end(index).unwrap();
        assert!(code == Some(1) && log.contains("keeps a log"), "{code:?}: {log}");
    }
}
