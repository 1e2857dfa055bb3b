//! What writes do and reads find; snapshots are tested with [`replay`](crate::replay).

use super::*;
use crate::command::{Command, Read, parse};

/// A store that takes commands as people write them. The clock stands at `now` for each.
#[derive(Default)]
struct Shell(Store);

impl Shell {
    fn ask(&mut self, now: u64, line: &str) -> Reply {
        let words: Vec<Bytes> = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        match parse(&words, now).unwrap() {
            Command::Write(write) => self.0.apply(now, &write),
            Command::Read(read) => self.0.read(&read, now, 3),
            Command::Local(local) => panic!("{local:?}"),
        }
    }

    fn check(&mut self, now: u64, line: &str, expected: Reply) {
        assert_eq!(self.ask(now, line), expected, "{line}");
    }
}

#[test]
fn values_can_be_set_read_and_deleted() {
    let mut shell = Shell::default();
    shell.check(1, "get a", Reply::Nil);
    shell.check(1, "set a 1", Reply::OK);
    shell.check(1, "get a", Reply::text("1"));
    shell.check(1, "set a 2 nx", Reply::Nil);
    shell.check(1, "set a 2 xx get", Reply::text("1"));
    shell.check(1, "set b 2 xx", Reply::Nil);
    shell.check(1, "set b 2 nx get", Reply::Nil);
    shell.check(1, "get b", Reply::text("2"));
    shell.check(1, "mset c 3 d 4", Reply::OK);
    shell.check(1, "mget a x d", Reply::Array(vec![Reply::text("2"), Reply::Nil, Reply::text("4")]));
    shell.check(1, "exists a a x", Reply::Integer(2));
    shell.check(1, "dbsize", Reply::Integer(4));
    shell.check(1, "del a x a", Reply::Integer(1));
    shell.check(1, "type a", Reply::Simple("none"));
    shell.check(1, "type b", Reply::Simple("string"));
    shell.check(1, "wait 1 0", Reply::Integer(3));
    shell.check(1, "flushall", Reply::OK);
    shell.check(1, "dbsize", Reply::Integer(0));
    assert_eq!(shell.0.bytes(), 0);
}

#[test]
fn incr_and_append_change_values() {
    let mut shell = Shell::default();
    shell.check(1, "incr n", Reply::Integer(1));
    shell.check(1, "incrby n 9", Reply::Integer(10));
    shell.check(1, "decrby n 11", Reply::Integer(-1));
    shell.check(1, "set n 9223372036854775807", Reply::OK);
    shell.check(1, "incr n", Reply::error("ERR increment or decrement would overflow"));
    shell.check(1, "append n x", Reply::Integer(20));
    shell.check(1, "incr n", Reply::error("ERR value is not an integer or out of range"));
    shell.check(1, "strlen n", Reply::Integer(20));
    let half = "x".repeat(VALUE_SIZE_MAX / 2 + 1);
    shell.check(1, &format!("append big {half}"), Reply::count(half.len()));
    assert!(matches!(shell.ask(1, &format!("append big {half}")), Reply::Error(_)));
    shell.check(1, "strlen big", Reply::count(half.len()));
}

#[test]
fn keys_expire_by_the_store_clock() {
    let mut shell = Shell::default();
    shell.check(1000, "set a 1 px 500", Reply::OK);
    shell.check(1000, "pttl a", Reply::Integer(500));
    shell.check(1000, "ttl a", Reply::Integer(1));
    shell.check(1499, "get a", Reply::text("1"));
    shell.check(1500, "get a", Reply::Nil);
    shell.check(1500, "ttl a", Reply::Integer(-2));
    shell.check(1500, "persist a", Reply::Integer(0));
    shell.check(1500, "incr a", Reply::Integer(1));
    shell.check(1500, "ttl a", Reply::Integer(-1));
    shell.check(1500, "expire a 1", Reply::Integer(1));
    shell.check(1500, "incr a", Reply::Integer(2));
    shell.check(1500, "pttl a", Reply::Integer(1000));
    shell.check(1500, "set a 3 keepttl", Reply::OK);
    shell.check(1500, "pttl a", Reply::Integer(1000));
    shell.check(1500, "persist a", Reply::Integer(1));
    shell.check(1500, "persist a", Reply::Integer(0));
    shell.check(1500, "expire a -1", Reply::Integer(1));
    shell.check(1500, "exists a", Reply::Integer(0));
    shell.check(1500, "expire a 10", Reply::Integer(0));
}

#[test]
fn expired_keys_are_freed() {
    let mut shell = Shell::default();
    for n in 0..100 {
        shell.check(1, &format!("set k{n} v px 10"), Reply::OK);
    }
    shell.0.set_clock(50);
    shell.0.sweep(1000);
    assert_eq!((shell.0.len(), shell.0.bytes(), shell.0.deadlines.len()), (0, 0, 0));
}

/// Every key that is there from the first step to the last is found, no matter what else comes and goes.
#[test]
fn scan_finds_every_lasting_key() {
    let mut shell = Shell::default();
    for n in 0..500 {
        shell.check(1, &format!("set stay{n} v"), Reply::OK);
    }
    let (mut cursor, mut found, mut steps) = (0, std::collections::BTreeSet::new(), 0);
    loop {
        let scan = Read::Scan { cursor, pattern: Some(Bytes::from_static(b"stay*")), count: 7, strings: true };
        let Reply::Array(parts) = shell.0.read(&scan, 1, 0) else { panic!("an array") };
        let (Reply::Bulk(next), Reply::Array(keys)) = (&parts[0], &parts[1]) else { panic!("cursor and keys") };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = std::str::from_utf8(next).unwrap().parse().unwrap();
        steps += 1;
        if cursor == 0 {
            break;
        }
        shell.check(1, &format!("set passing{steps} v"), Reply::OK);
        shell.check(1, &format!("del passing{}", steps - 1), Reply::Integer(i64::from(steps > 1)));
    }
    assert_eq!(found.len(), 500);
    assert!(steps > 50, "{steps} steps");
    shell.check(1, "scan 0 type list count 9999", Reply::Array(vec![Reply::text("0"), Reply::Array(vec![])]));
    let Reply::Array(keys) = shell.ask(1, "keys stay1?") else { panic!("an array") };
    assert_eq!(keys.len(), 10);
}
