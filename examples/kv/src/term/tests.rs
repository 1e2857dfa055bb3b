//! Turns played without a log: writes of several clients, acks at any pace, and what a replay makes of the log.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::command::{Command, parse};
use crate::replay::{Replay, ReplayError};

const RULES: Rules =
    Rules { record_size_max: 200, chunk_size: 100, compact_at: 400, memory_max: 1 << 20, strict_reads: false };
const CALM: Rules = Rules { compact_at: u64::MAX, ..RULES };

fn operation(now: u64, line: &str) -> Operation {
    let words: Vec<Bytes> = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
    match parse(&words, now).unwrap() {
        Command::Write(write) => Operation::Write(write),
        Command::Read(read) => Operation::Read(read),
        Command::Local(local) => panic!("{local:?}"),
    }
}

/// A term and the log that it writes to.
struct Fixture {
    term: Term<usize>,
    log: Vec<Vec<u8>>,
    acked: usize,
    answers: Vec<(usize, Vec<Reply>)>,
    barriers: usize,
    /// First record that can still be read.
    first: u64,
}

impl Fixture {
    fn new(rules: Rules) -> Fixture {
        let term = Term::new(rules, Store::default(), 0, 0);
        Fixture { term, log: Vec::new(), acked: 0, answers: Vec::new(), barriers: 0, first: 1 }
    }

    fn ask(&mut self, now: u64, client: usize, lines: &[&str]) {
        let operations = lines.iter().map(|line| operation(now, line)).collect();
        self.term.on_batch(now, operations, client);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.term.next_output() {
            match output {
                Output::Submit(record) => self.log.push(record),
                Output::Answer(client, replies) => self.answers.push((client, replies)),
                Output::Barrier => self.barriers += 1,
                Output::Trim(below) => {
                    self.first = below;
                    self.term.on_trimmed();
                }
            }
        }
    }

    /// Acknowledges the next record, if there is one.
    fn ack(&mut self, now: u64) -> bool {
        if self.acked == self.log.len() {
            return false;
        }
        self.acked += 1;
        self.term.on_ack(now, self.acked as u64).unwrap();
        self.carry_out();
        true
    }

    fn answer(&mut self) -> (usize, Vec<Reply>) {
        assert!(!self.answers.is_empty(), "no answer");
        self.answers.remove(0)
    }

    /// What a new primary makes of the log up to a record, if it can be read from `first` on.
    fn replay(&self, first: u64, last: usize) -> Result<Store, ReplayError> {
        let mut replay = Replay::new(first);
        for lsn in first as usize..=last {
            replay.take(lsn as u64, &self.log[lsn - 1])?;
        }
        replay.finish()
    }
}

fn contents(store: &Store, now: u64) -> Vec<(Bytes, Bytes, Option<u64>)> {
    store.contents(now).map(|(key, value, deadline)| (key.clone(), value.clone(), deadline)).collect()
}

#[test]
fn writes_are_visible_only_after_their_ack() {
    let mut fixture = Fixture::new(CALM);
    fixture.ask(1, 0, &["set a 1", "get a", "incr a"]);
    fixture.ask(1, 1, &["get a"]);
    assert_eq!(fixture.answer(), (1, vec![Reply::Nil]), "a read of another client does not wait");
    assert!(fixture.answers.is_empty());
    fixture.ack(1);
    assert!(fixture.answers.is_empty(), "the second write of the batch is on its way");
    fixture.ask(1, 1, &["get a"]);
    assert_eq!(fixture.answer(), (1, vec![Reply::text("1")]));
    fixture.ack(1);
    assert_eq!(fixture.answer(), (0, vec![Reply::OK, Reply::text("1"), Reply::Integer(2)]));
}

#[test]
fn strict_read_waits_for_a_later_barrier() {
    let mut fixture = Fixture::new(Rules { strict_reads: true, ..CALM });
    fixture.ask(1, 0, &["get a"]);
    assert_eq!(fixture.barriers, 1);
    fixture.ask(1, 1, &["get a"]);
    fixture.ask(1, 2, &["get a", "set a 1"]);
    assert_eq!(fixture.barriers, 1, "one at a time");
    fixture.term.on_barrier(1);
    fixture.carry_out();
    assert_eq!(fixture.answer(), (0, vec![Reply::Nil]));
    assert!(fixture.answers.is_empty(), "the others came after the first barrier had begun");
    assert_eq!(fixture.barriers, 2);
    fixture.ack(1);
    assert!(fixture.answers.is_empty());
    fixture.term.on_barrier(1);
    fixture.carry_out();
    assert_eq!(fixture.answer(), (1, vec![Reply::Nil]));
    assert_eq!(fixture.answer(), (2, vec![Reply::Nil, Reply::OK]));
    assert_eq!(fixture.barriers, 2);
}

#[test]
fn expired_key_does_not_reappear() {
    let mut fixture = Fixture::new(CALM);
    fixture.ask(100, 0, &["set a 1 px 50"]);
    fixture.ack(100);
    fixture.answers.clear();
    fixture.ask(149, 0, &["persist a"]);
    fixture.ask(151, 1, &["get a"]);
    assert_eq!(fixture.answer(), (1, vec![Reply::text("1")]), "an earlier write that may keep it is on its way");
    fixture.ack(152);
    assert_eq!(fixture.answer(), (0, vec![Reply::Integer(1)]));
    fixture.ask(153, 0, &["pexpire a 10"]);
    fixture.ack(153);
    fixture.answers.clear();
    fixture.ask(170, 1, &["get a"]);
    assert_eq!(fixture.answer(), (1, vec![Reply::Nil]));
    // The clock of the host goes back: the key stays gone.
    fixture.ask(155, 0, &["persist a"]);
    fixture.ack(155);
    assert_eq!(fixture.answer(), (0, vec![Reply::Integer(0)]));
}

#[test]
fn unknown_records_end_the_term() {
    let mut fixture = Fixture::new(CALM);
    fixture.ask(1, 0, &["set a 1"]);
    assert_eq!(fixture.term.on_ack(1, 2), Err(Gap { expected: 1, found: 2 }));
    let refusal = Reply::error("READONLY");
    assert_eq!(fixture.term.abandon(&refusal), vec![(0, vec![unknown_outcome()])]);
}

#[test]
fn end_of_a_term_answers_all_requests() {
    let mut fixture = Fixture::new(CALM);
    fixture.ask(1, 0, &["set a 1", "get a"]);
    fixture.ask(1, 1, &["set b 1", "set c 1"]);
    fixture.ack(1);
    fixture.ack(1);
    let refusal = Reply::error("READONLY");
    let answers = fixture.term.abandon(&refusal);
    assert_eq!(fixture.answers, vec![(0, vec![Reply::OK, Reply::text("1")])]);
    assert_eq!(answers, vec![(1, vec![Reply::OK, unknown_outcome()])]);
}

#[test]
fn oversized_values_are_refused_and_not_logged() {
    let mut fixture = Fixture::new(Rules { memory_max: 300, ..CALM });
    fixture.ask(1, 0, &[&format!("set a {}", "x".repeat(300)), "set b 1", "set c 1"]);
    assert_eq!(fixture.log.len(), 2);
    while fixture.ack(1) {}
    let (_, replies) = fixture.answer();
    assert!(matches!(&replies[0], Reply::Error(text) if text.contains("limit is 200")), "{replies:?}");
    assert_eq!(replies[1..], [Reply::OK, Reply::OK]);
    fixture.ask(1, 0, &["set d 1", "del b"]);
    while fixture.ack(1) {}
    let (_, replies) = fixture.answer();
    assert!(matches!(&replies[0], Reply::Error(text) if text.starts_with("OOM ")), "{replies:?}");
    assert_eq!(replies[1], Reply::Integer(1));
}

#[test]
fn log_is_compacted() {
    let mut fixture = Fixture::new(RULES);
    for n in 0..2000 {
        fixture.ask(1, 0, &[&format!("set k{} {n}", n % 5)]);
        while fixture.ack(1) {}
    }
    let kept: usize = fixture.log[fixture.first as usize - 1..].iter().map(Vec::len).sum();
    // At most: growth until a snapshot begins, as much as the data (5 keys) or 400 bytes, and the snapshot itself.
    assert!(kept < 5000, "{kept} bytes are kept");
    assert!(fixture.term.snapshots() > 10);
    assert!(fixture.replay(fixture.first + 1, fixture.log.len()).is_err(), "without its beginning a snapshot is none");
}

/// Mostly writes that show when they are made twice or not at all; seldom one that wipes all traces.
fn line() -> impl Strategy<Value = String> {
    let key = || (0..30u8).prop_map(|n| format!("key{n}"));
    prop_oneof![
        40 => (key(), 0..400u32).prop_map(|(key, value)| format!("set {key} {value}")),
        10 => (key(), 1..30u32).prop_map(|(key, time)| format!("set {key} v px {time}")),
        10 => key().prop_map(|key| format!("set {key} v nx keepttl")),
        10 => (key(), key()).prop_map(|(one, two)| format!("del {one} {two}")),
        40 => key().prop_map(|key| format!("incr {key}")),
        40 => key().prop_map(|key| format!("append {key} 1")),
        10 => (key(), 1..30u32).prop_map(|(key, time)| format!("pexpire {key} {time}")),
        10 => key().prop_map(|key| format!("persist {key}")),
        10 => (key(), key()).prop_map(|(one, two)| format!("mset {one} 1 {two} 2")),
        10 => key().prop_map(|key| format!("get {key}")),
        1 => Just("flushall".to_owned()),
    ]
}

proptest! {
    // Each case reads the log after every move.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whenever the primary dies, the next one reads from the log what the dead one held: from the log's beginning, and from
    /// wherever it was trimmed. Chunks are small, so that a snapshot takes many rounds and writes come between.
    #[test]
    fn replay_restores_the_primary_state(
        moves in proptest::collection::vec((line(), 0..4usize, 0..3u64), 1..300),
        chunk_size in 5..40usize,
    ) {
        let mut fixture = Fixture::new(Rules { chunk_size, ..RULES });
        let mut now = 1000;
        for (client, (line, acks, pause)) in moves.iter().enumerate() {
            now += pause;
            fixture.ask(now, client, &[line]);
            for _ in 0..*acks {
                fixture.ack(now);
            }
            let acked = fixture.acked;
            let store = fixture.term.store();
            let now = store.clock();
            let whole = fixture.replay(1, acked).unwrap();
            prop_assert_eq!(contents(&whole, now), contents(store, now));
            if fixture.first > 1 {
                let trimmed = fixture.replay(fixture.first, acked).unwrap();
                prop_assert_eq!(contents(&trimmed, now), contents(store, now));
                // Trimming goes by whole segments: less may have gone.
                let earlier = fixture.replay(fixture.first - 1, acked).unwrap();
                prop_assert_eq!(contents(&earlier, now), contents(store, now));
            }
        }
        while fixture.ack(now) {}
        prop_assert_eq!(fixture.answers.len(), moves.len());
        prop_assert!(fixture.term.abandon(&Reply::OK).is_empty());
    }
}
