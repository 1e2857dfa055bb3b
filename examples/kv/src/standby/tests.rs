//! A standby's keys are those of the log, whenever it is looked at; what reads show is as of now.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::command::{Command, parse};
use crate::record::{self, Record};
use crate::store::Store;

fn words(line: &str) -> Vec<Bytes> {
    line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

fn write(stamp: u64, line: &str) -> Vec<u8> {
    let Command::Write(write) = parse(&words(line), stamp).unwrap() else { panic!("{line}: a write") };
    record::encode(stamp, &Record::Write(write))
}

/// A standby that has read the log up to here.
fn standby(stats: &Stats) -> Standby<'_> {
    let (next, waiting) = (Lsn(1), VecDeque::new());
    Standby { replay: None, next, has_caught_up: true, waiting, count: 0, positions: None, stats }
}

fn take(standby: &mut Standby<'_>, payload: &[u8]) {
    standby.take(standby.next, payload).unwrap();
}

fn read(standby: &mut Standby<'_>, line: &str) -> Reply {
    let Command::Read(read) = parse(&words(line), 0).unwrap() else { panic!("{line}: a read") };
    let (answer, mut replies) = tokio::sync::oneshot::channel();
    standby.on_batch(Batch { operations: vec![Operation::Read(read)], answer });
    replies.try_recv().unwrap().remove(0)
}

/// The keys and values with which it would begin a turn.
fn finish(standby: Standby<'_>) -> Store {
    let next = standby.next;
    standby.finish(next, &Reply::Nil).finish().unwrap()
}

fn contents(store: &Store) -> Vec<(Bytes, Bytes, Option<u64>)> {
    store.contents(store.clock()).map(|(key, value, deadline)| (key.clone(), value.clone(), deadline)).collect()
}

/// It has begun to read a long log, say. What was answered before it got here keeps its reply.
#[test]
fn strict_reads_do_not_wait_for_ever() {
    let stats = Stats::default();
    let mut standby = standby(&stats);
    let Command::Read(get) = parse(&words("get k"), 0).unwrap() else { panic!("a read") };
    let mut wait = |since: Instant| {
        let (answer, replies) = tokio::sync::oneshot::channel();
        let batch = Batch { operations: vec![Operation::Ready(Reply::OK), Operation::Read(get.clone())], answer };
        standby.waiting.push_back(Waiting { number: 1, batch, since, wanted: Some(Lsn(100)) });
        standby.on_tick();
        standby.answer_waiting();
        replies
    };
    let long_ago = Instant::now().checked_sub(3 * POSITION_PATIENCE).unwrap();
    let replies = wait(long_ago).try_recv().unwrap();
    assert_eq!(replies[0], Reply::OK);
    assert!(format!("{:?}", replies[1]).contains("LOADING"), "{replies:?}");
    wait(Instant::now()).try_recv().expect_err("it waits");
}

/// All of this was written, and had expired, long before the standby read it.
#[test]
fn writes_take_effect_as_of_when_they_were_made() {
    let stats = Stats::default();
    let mut standby = standby(&stats);
    take(&mut standby, &write(1, "set s v ex 60"));
    standby.on_tick();
    assert_eq!(read(&mut standby, "get s"), Reply::Nil);
    take(&mut standby, &write(50_001, "expire s 60"));
    standby.on_tick();
    let value = Bytes::from_static(b"v");
    assert_eq!(contents(&finish(standby)), [(Bytes::from_static(b"s"), value, Some(110_001))]);
}

#[test]
fn reads_show_no_key_that_has_expired_by_now() {
    let stats = Stats::default();
    let mut standby = standby(&stats);
    take(&mut standby, &write(1, "mset a 1 b 1"));
    take(&mut standby, &write(1, "expire a 60"));
    let b = || Reply::Bulk(Bytes::from_static(b"b"));
    for (line, expected) in [
        ("get a", Reply::Nil),
        ("mget a b", Reply::Array(vec![Reply::Nil, Reply::text("1")])),
        ("exists a b", Reply::Integer(1)),
        ("ttl a", Reply::Integer(-2)),
        ("keys *", Reply::Array(vec![b()])),
        ("scan 0", Reply::Array(vec![Reply::text("0"), Reply::Array(vec![b()])])),
    ] {
        assert_eq!(read(&mut standby, line), expected, "{line}");
    }
}

fn line() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "set k v px 5",
        "set k v",
        "set k n nx",
        "set k x xx",
        "set k w keepttl",
        "pexpire k 5",
        "persist k",
        "incr n",
        "pexpire n 5",
        "append k +",
        "del k",
    ])
}

proptest! {
    /// Ticks and reads between the records change nothing.
    #[test]
    fn store_is_that_of_the_log_alone(
        moves in prop::collection::vec((line(), 0..5u64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let (stats, mut stamp, mut alone) = (Stats::default(), 1, Store::default());
        let mut standby = standby(&stats);
        for (line, later, ticks, reads) in moves {
            stamp += later;
            let payload = write(stamp, line);
            take(&mut standby, &payload);
            let Ok((_, Record::Write(write))) = record::decode(&payload) else { unreachable!("encoded above") };
            alone.apply(stamp, &write);
            if ticks {
                standby.on_tick();
            }
            if reads {
                read(&mut standby, "get k");
            }
        }
        let store = finish(standby);
        prop_assert_eq!(contents(&store), contents(&alone));
        prop_assert_eq!(store.clock(), alone.clock());
    }
}
