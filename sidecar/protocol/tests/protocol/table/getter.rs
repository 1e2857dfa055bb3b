//! The getter, input by input: what it waits for, what it reads again, and when it goes to the next member.

mod age;

use std::time::Duration;

use tailwind_protocol::board::mirror::{MirrorLine, PartSize};
use tailwind_protocol::board::{BoardIdentity, Progress};
use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::follower::{STALE_AFTER, Visit};
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::{RecordHeader, SegmentSize};
use tailwind_protocol::segment::Payload;
use tailwind_protocol::table::acked::LineId;
use tailwind_protocol::table::getter::{
    Answer, ConnectionId, Get, GetId, Getter, Input, Output, PATIENCE, RECORD_WITHIN, UNSOUND_MAX,
};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, KeyedRecord, Value};
use tailwind_protocol::table::request::{Apply, Operation, Written};

const KEY: &[u8] = b"key";

/// A primary's index with one key, and a getter.
struct Fixture {
    index: Index,
    last: u64,
    getter: Getter,
    now: Duration,
    beat: u64,
    answers: Vec<(u64, String)>,
}

fn config() -> Configuration {
    let member =
        |at: u128| MemberRef { id: format!("b{at}").parse().unwrap(), boot: BootId(at), control: format!("b{at}") };
    Configuration {
        log: LogId(1),
        kind: Kind::Table,
        epoch: Epoch(1),
        claim: Claim(1),
        earlier: Vec::new(),
        won: Epoch(1),
        cuts: Vec::new(),
        version: Version(1),
        primary: PrimaryRef { id: "s1".parse().unwrap(), control: "s1:1".to_owned() },
        members: (0..2).map(member).collect(),
    }
}

/// The record with this LSN: key and LSN.
fn record(lsn: u64) -> Vec<u8> {
    let text = lsn.to_string();
    let record =
        KeyedRecord::Put { key: Key::new(KEY).unwrap(), value: Value::new(text.as_bytes()).unwrap(), more: false };
    let mut payload = vec![0; record.len()];
    record.copy_to(&mut payload);
    let (length, payload_crc) = (payload.len() as u32, crc32fast::hash(&payload));
    let header = RecordHeader { length, payload_crc, lsn: Lsn(lsn), epoch: Epoch(1) };
    [&header.to_bytes()[..], &payload].concat()
}

fn described(answer: &Answer<'_>) -> String {
    let text = |value: &Value<'_>| String::from_utf8(value.as_bytes().to_vec()).unwrap();
    match answer {
        Answer::Value { value, as_of, .. } => format!("{} as of {as_of}", text(value)),
        Answer::Absent { as_of, .. } => format!("absent as of {as_of}"),
        Answer::Older(value) => format!("older {}", text(value)),
        Answer::Unavailable(_) => "unavailable".to_owned(),
    }
}

impl Fixture {
    fn new() -> Fixture {
        let limits = Limits { buckets: Buckets::MIN, keys_max: 10, live_bytes_max: 1 << 30 };
        let index = Index::new(HashKey([7; 16]), limits, Window::new(SegmentSize::MIN));
        let getter = Getter::new(0, Visit(0));
        Fixture { index, last: 0, getter, now: Duration::from_secs(1), beat: 0, answers: Vec::new() }
    }

    /// A getter that visits a member at which so much is published.
    fn visiting(published: u64) -> Fixture {
        let mut fixture = Fixture::new();
        let out = fixture.step(Input::Config(&config()));
        fixture.arrive(&out, published);
        fixture
    }

    /// A visit begins, and its first look finds so much published.
    fn arrive(&mut self, out: &[Output], published: u64) -> Vec<Output> {
        let [.., Output::Connect(visit, ..)] = out else { panic!("{out:?}") };
        assert_eq!(self.step(Input::Connected(*visit, Ok(()))), [Output::Look(*visit)]);
        self.looked(*visit, published, true)
    }

    fn step(&mut self, input: Input<'_>) -> Vec<Output> {
        let mut out = Vec::new();
        let answers = &mut self.answers;
        self.getter.step(self.now, input, &mut out, |id, answer| answers.push((id.0, described(&answer))));
        out
    }

    fn looked(&mut self, visit: Visit, published: u64, live: bool) -> Vec<Output> {
        self.beat += 1;
        let identity =
            BoardIdentity { log: LogId(1), epoch: Epoch(1), generation: Generation(1), segment_size: SegmentSize::MIN };
        let end = Position::new(SegmentId(1), Offset(0));
        let acked = Lsn(self.last.max(published));
        let progress = Progress { beat: self.beat, acked, end, first: Lsn(1), version: Version(1) };
        let line = MirrorLine {
            published: Lsn(published),
            hash_key: HashKey([7; 16]),
            buckets: Buckets::MIN,
            part_size: PartSize::new(4096).unwrap(),
            live,
        };
        let lines = [identity.encode(), progress.encode(&identity), line.encode(&identity)].concat();
        self.step(Input::Looked(visit, self.now, &lines))
    }

    /// Time passes until the next look, which finds so much published.
    fn next_look(&mut self, visit: Visit, published: u64) -> Vec<Output> {
        self.now += Duration::from_millis(25);
        assert_eq!(self.step(Input::Tick), [Output::Look(visit)]);
        self.looked(visit, published, true)
    }

    /// Time passes until the next visit begins.
    fn next_visit(&mut self) -> Visit {
        self.now = self.getter.wake_at().expect("a visit is to come");
        let out = self.step(Input::Tick);
        let [Output::Connect(visit, ..)] = out[..] else { panic!("{out:?}") };
        visit
    }

    fn write(&mut self, written: Written<'_>) {
        let operations = [Operation::Write { key: Key::new(KEY).unwrap(), written, only_if: None }];
        let staged = self.index.stage(&Apply::new(&operations).unwrap(), |_| None).unwrap();
        self.last += 1;
        staged.appended(Lsn(self.last), Position::new(SegmentId(1), Offset(at(self.last))));
        self.index.acked(Lsn(self.last), |_| {});
    }

    fn put(&mut self) {
        let text = (self.last + 1).to_string();
        self.write(Written::Value(Value::new(text.as_bytes()).unwrap()));
    }

    /// Both buckets, as a mirror has them that has written everything.
    fn buckets(&self) -> Vec<u8> {
        (0..8).flat_map(|line| self.index.acked_view().line(LineId(line))).collect()
    }

    fn get(&mut self, id: u64, least: u64) -> Vec<Output> {
        self.get_as(id, least, false, false)
    }

    fn get_as(&mut self, id: u64, least: u64, fresh: bool, older: bool) -> Vec<Output> {
        let (id, connection, key) = (GetId(id), ConnectionId(1), Key::new(KEY).unwrap());
        let (least, floor) = (Lsn(least), Lsn(0));
        self.step(Input::Get(Get { id, connection, key, least, floor, fresh, older, no_value: false }))
    }

    fn answered(&mut self, expected: &[(u64, &str)]) {
        let answers = std::mem::take(&mut self.answers);
        let answers: Vec<_> = answers.iter().map(|(id, text)| (*id, &text[..])).collect();
        assert_eq!(answers, expected);
    }
}

/// Where the record with this LSN is.
fn at(lsn: u64) -> u32 {
    72 + 64 * lsn as u32
}

const V1: Visit = Visit(1);
const V2: Visit = Visit(2);
const G1: GetId = GetId(1);
const G2: GetId = GetId(2);

fn reads(visit: Visit, get: GetId) -> Output {
    Output::Buckets(visit, get, [(0, 0), (0, 256)])
}

fn is_reading(out: &[Output], visit: Visit, get: GetId) -> bool {
    matches!(out, [Output::Buckets(of, id, _)] if (*of, *id) == (visit, get))
}

/// The read of the record with this LSN.
fn reads_record(get: GetId, visit: Visit, lsn: u64) -> Output {
    Output::Record(visit, get, SegmentId(1), at(lsn)..at(lsn) + record(lsn).len() as u32)
}

#[test]
fn a_get_reads_both_buckets_and_then_the_record() {
    let mut fixture = Fixture::visiting(5);
    fixture.last = 5;
    fixture.put();
    let out = fixture.get(1, 0);
    assert!(is_reading(&out, V1, G1), "{out:?} is not {:?}, in either order", reads(V1, G1));
    let buckets = fixture.buckets();
    assert_eq!(fixture.step(Input::Buckets(V1, G1, &buckets)), [reads_record(G1, V1, 6)]);
    fixture.step(Input::Record(V1, G1, Some(&record(6))));
    fixture.answered(&[(1, "6 as of 6")]);
    assert!(fixture.getter.is_empty());
}

#[test]
fn a_key_without_an_entry_is_absent() {
    let mut fixture = Fixture::visiting(5);
    fixture.get(1, 0);
    let buckets = fixture.buckets();
    fixture.step(Input::Buckets(V1, G1, &buckets));
    fixture.answered(&[(1, "absent as of 5")]);
}

#[test]
fn a_get_waits_until_enough_is_published() {
    let mut fixture = Fixture::visiting(5);
    assert_eq!(fixture.get(1, 7), []);
    assert_eq!(fixture.next_look(V1, 6), []);
    assert!(is_reading(&fixture.next_look(V1, 7), V1, G1));
}

#[test]
fn a_fresh_get_waits_for_a_position() {
    let mut fixture = Fixture::visiting(5);
    assert_eq!(fixture.get_as(1, 0, true, false), [Output::Ask(1)]);
    assert_eq!(fixture.get_as(2, 0, true, false), [], "it came after the question");
    assert_eq!(fixture.step(Input::Told(1, Ok(Lsn(6)))), [Output::Ask(2)]);
    let out = fixture.next_look(V1, 6);
    assert!(is_reading(&out, V1, G1), "{out:?}");
    fixture.step(Input::Told(2, Err("no")));
    fixture.now += Duration::from_millis(99);
    assert!(!fixture.step(Input::Tick).contains(&Output::Ask(3)));
    fixture.now += Duration::from_millis(1);
    assert!(fixture.step(Input::Tick).contains(&Output::Ask(3)));
}

#[test]
fn a_connection_sees_nothing_older() {
    let mut fixture = Fixture::visiting(5);
    fixture.last = 8;
    fixture.put();
    fixture.get(1, 0);
    let buckets = fixture.buckets();
    fixture.step(Input::Buckets(V1, G1, &buckets));
    fixture.step(Input::Record(V1, G1, Some(&record(9))));
    fixture.answered(&[(1, "9 as of 9")]);
    assert_eq!(fixture.get(2, 0), [], "record 9 was shown, and 5 is published");
    assert!(is_reading(&fixture.next_look(V1, 9), V1, G2));
}

#[test]
fn gets_of_one_key_and_connection_are_read_in_turn() {
    let mut fixture = Fixture::visiting(5);
    assert!(is_reading(&fixture.get(1, 0), V1, G1));
    assert_eq!(fixture.get(2, 0), []);
    let buckets = fixture.buckets();
    let out = fixture.step(Input::Buckets(V1, G1, &buckets));
    assert!(is_reading(&out, V1, G2), "{out:?}");
}

#[test]
fn what_was_absent_stays_so_at_the_next_member() {
    let mut fixture = Fixture::visiting(5);
    fixture.get(1, 0);
    let buckets = fixture.buckets();
    fixture.step(Input::Buckets(V1, G1, &buckets));
    fixture.answered(&[(1, "absent as of 5")]);
    fixture.step(Input::Broken(V1, "over"));
    fixture.now += Duration::from_millis(25);
    let out = fixture.step(Input::Tick);
    fixture.last = 6;
    fixture.arrive(&out, 5);
    assert_eq!(fixture.get(2, 0), [], "a delete that was shown there may be missing here");
    for _ in 0..2 {
        assert_eq!(fixture.next_look(V2, 5), []);
    }
    // The third beat: the view covers the answer, and names record 6.
    assert_eq!(fixture.next_look(V2, 5), []);
    assert!(is_reading(&fixture.next_look(V2, 6), V2, G2));
}

#[test]
fn an_entry_that_does_not_verify_is_read_again() {
    let mut fixture = Fixture::visiting(5);
    fixture.put();
    let mut torn = fixture.buckets();
    let entry = torn.iter().position(|byte| *byte != 0).unwrap();
    torn[entry + 8] ^= 1;
    fixture.get(1, 0);
    for _ in 1..UNSOUND_MAX {
        let out = fixture.step(Input::Buckets(V1, G1, &torn));
        assert!(is_reading(&out, V1, G1), "{out:?}");
    }
    let out = fixture.step(Input::Buckets(V1, G1, &torn));
    assert!(matches!(&out[..], [Output::Leave(V1, _)]), "{out:?}");
    fixture.now += Duration::from_millis(25);
    let out = fixture.step(Input::Tick);
    assert!(matches!(&out[..], [Output::Connect(V2, _, member)] if member.control == "b1"), "{out:?}");
    assert!(is_reading(&fixture.arrive(&out, 5), V2, G1));
}

#[test]
fn a_record_that_is_not_in_memory_is_fetched() {
    let mut fixture = Fixture::visiting(5);
    fixture.put();
    fixture.get(1, 0);
    let buckets = fixture.buckets();
    fixture.step(Input::Buckets(V1, G1, &buckets));
    let fetch = Output::Fetch(V1, G1, SegmentId(1), at(1)..at(1) + record(1).len() as u32);
    assert_eq!(fixture.step(Input::Record(V1, G1, None)), [fetch]);
    fixture.now += RECORD_WITHIN * 2;
    fixture.step(Input::Fetched(V1, G1, Ok(&record(1))));
    fixture.answered(&[(1, "1 as of 5")]);
}

#[test]
fn what_comes_late_is_read_again() {
    let mut fixture = Fixture::visiting(5);
    fixture.put();
    fixture.get(1, 0);
    let buckets = fixture.buckets();
    fixture.now += RECORD_WITHIN + Duration::from_millis(1);
    let out = fixture.step(Input::Buckets(V1, G1, &buckets));
    assert!(out.contains(&reads(V1, G1)) || out.contains(&Output::Buckets(V1, G1, [(0, 256), (0, 0)])), "{out:?}");
    fixture.step(Input::Buckets(V1, G1, &buckets));
    fixture.now += RECORD_WITHIN + Duration::from_millis(1);
    fixture.step(Input::Record(V1, G1, Some(&record(1))));
    fixture.answered(&[]);
}

/// Has a record found unsound at both members.
fn without_a_record(older: bool) -> Fixture {
    let mut fixture = Fixture::visiting(5);
    fixture.put();
    fixture.put();
    fixture.get_as(1, 0, false, older);
    let (buckets, mut rotten) = (fixture.buckets(), record(2));
    rotten[40] ^= 1;
    for visit in [V1, V2] {
        for _ in 0..2 {
            fixture.step(Input::Buckets(visit, G1, &buckets));
            let out = fixture.step(Input::Record(visit, G1, Some(&rotten)));
            if matches!(&out[..], [Output::Leave(..)]) {
                fixture.now += Duration::from_millis(25);
                let out = fixture.step(Input::Tick);
                fixture.arrive(&out, 5);
            }
        }
    }
    fixture
}

#[test]
fn without_a_sound_record_a_get_is_unavailable() {
    without_a_record(false).answered(&[(1, "unavailable")]);
}

#[test]
fn the_record_before_will_do_if_that_is_allowed() {
    let mut fixture = without_a_record(true);
    fixture.answered(&[]);
    // Its header says how long it is.
    let first = record(1);
    let out = fixture.step(Input::Record(V2, G1, Some(&first[..32])));
    assert_eq!(out, [reads_record(G1, V2, 1)]);
    fixture.step(Input::Record(V2, G1, Some(&first)));
    fixture.answered(&[(1, "older 1")]);
}

#[test]
fn a_mirror_that_is_being_filled_is_passed_by() {
    let mut fixture = Fixture::new();
    fixture.step(Input::Config(&config()));
    fixture.step(Input::Connected(V1, Ok(())));
    let out = fixture.looked(V1, 5, false);
    assert!(matches!(&out[..], [Output::Leave(V1, _)]), "{out:?}");
}

#[test]
fn a_mirror_that_stands_still_is_left() {
    let mut fixture = Fixture::visiting(5);
    fixture.last = 6;
    for _ in 1..12 {
        assert_eq!(fixture.next_look(V1, 5), []);
    }
    let out = fixture.next_look(V1, 5);
    assert!(matches!(&out[..], [Output::Leave(V1, _)]), "{out:?} after {STALE_AFTER:?}");
}

#[test]
fn a_get_that_cannot_be_answered_ends() {
    let mut fixture = Fixture::new();
    fixture.get(1, 0);
    assert_eq!(fixture.getter.wake_at(), Some(fixture.now + PATIENCE));
    fixture.now += PATIENCE;
    fixture.step(Input::Tick);
    fixture.answered(&[(1, "unavailable")]);
}

/// A getter at whose two members there is no memory for a mirror, as both have said; get 1 has been told.
fn without_mirrors() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.step(Input::Config(&config()));
    fixture.get(1, 0);
    let out = fixture.step(Input::NoMemory(V1));
    assert!(matches!(&out[..], [Output::Leave(V1, _)]), "{out:?}");
    fixture.answered(&[]);
    assert_eq!(fixture.next_visit(), V2);
    fixture.step(Input::NoMemory(V2));
    fixture.answered(&[(1, "unavailable")]);
    fixture.get(2, 0);
    fixture.answered(&[(2, "unavailable")]);
    fixture
}

#[test]
fn a_get_ends_at_once_where_no_member_has_memory() {
    let mut fixture = without_mirrors();
    let visit = fixture.next_visit();
    fixture.step(Input::Connected(visit, Ok(())));
    fixture.get(3, 0);
    fixture.answered(&[]);
    fixture.looked(visit, 5, true);
    fixture.step(Input::Buckets(visit, GetId(3), &fixture.buckets()));
    fixture.answered(&[(3, "absent as of 5")]);
}

#[test]
fn that_a_member_has_no_memory_holds_for_its_incarnation() {
    let mut fixture = without_mirrors();
    let mut config = config();
    (config.version, config.members[1].boot) = (Version(2), BootId(2));
    fixture.step(Input::Config(&config));
    fixture.get(3, 0);
    fixture.answered(&[]);
}

#[test]
fn that_a_member_has_no_memory_holds_for_a_while() {
    let mut fixture = without_mirrors();
    fixture.now += PATIENCE;
    fixture.get(3, 0);
    fixture.answered(&[]);
}

#[test]
fn gets_of_a_connection_that_is_gone_are_forgotten() {
    let mut fixture = Fixture::visiting(5);
    fixture.get(1, 0);
    fixture.step(Input::Gone(ConnectionId(1)));
    assert!(fixture.getter.is_empty());
    let buckets = fixture.buckets();
    assert_eq!(fixture.step(Input::Buckets(V1, G1, &buckets)), []);
    fixture.answered(&[]);
}
