//! A primary's log over a fabric that does what a test tells it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use tailwind_primary::{Channel, Fabric, Listener, Moment, PrimaryLog, Proof};
use tailwind_protocol::config::{Configuration, Durability, MemberRef, PrimaryRef, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, Lsn, SegmentId, Version};
use tailwind_protocol::layout::{SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::scan::Scanner;
use tailwind_protocol::segment::append_size;

/// A segment's memory; its first bytes are published.
#[derive(Clone, Debug)]
struct Memory(Rc<RefCell<Vec<u8>>>);

#[derive(Debug)]
struct Writing {
    bytes: Vec<u8>,
    published: Memory,
}

#[derive(Debug)]
struct Plain;

impl Fabric for Plain {
    type Append = Writing;
    type Shared = Memory;
    type Remote = Memory;
    type Error = &'static str;
    type Channel = Link;

    fn tail(memory: &mut Writing) -> &mut [u8] {
        let from = memory.published.0.borrow().len();
        &mut memory.bytes[from..]
    }

    fn publish(memory: &mut Writing, count: u32) {
        let mut published = memory.published.0.borrow_mut();
        let from = published.len();
        published.extend_from_slice(&memory.bytes[from..from + count as usize]);
    }
}

/// What a test does with a channel.
#[derive(Debug, Default)]
struct Wire {
    /// Writes that have not completed: into which memory, where, what.
    writes: VecDeque<(Memory, u32, Vec<u8>)>,
    completed: u32,
    depth: Option<u32>,
    fails: bool,
}

#[derive(Clone, Debug, Default)]
struct Link(Rc<RefCell<Wire>>);

impl Link {
    /// Places and completes everything that was posted.
    fn complete(&self) {
        let mut wire = self.0.borrow_mut();
        for (memory, at, bytes) in std::mem::take(&mut wire.writes) {
            let mut memory = memory.0.borrow_mut();
            let end = at as usize + bytes.len();
            if memory.len() < end {
                memory.resize(end, 0);
            }
            memory[at as usize..end].copy_from_slice(&bytes);
            wire.completed += 1;
        }
    }

    fn posted(&self) -> usize {
        self.0.borrow().writes.len()
    }
}

impl Channel<Plain> for Link {
    fn post(&mut self, remote: &Memory, local: &Memory, range: Range<u32>) -> Result<(), &'static str> {
        let mut wire = self.0.borrow_mut();
        if wire.fails {
            return Err("no");
        }
        let bytes = local.0.borrow()[range.start as usize..range.end as usize].to_vec();
        wire.writes.push_back((remote.clone(), range.start, bytes));
        Ok(())
    }

    fn post_bytes(&mut self, remote: &Memory, at: u32, bytes: &[u8]) -> Result<(), &'static str> {
        self.0.borrow_mut().writes.push_back((remote.clone(), at, bytes.to_vec()));
        Ok(())
    }

    fn lingers(&self) -> bool {
        false
    }

    fn push(&mut self) {}

    fn poll(&mut self) -> Result<u32, &'static str> {
        Ok(std::mem::take(&mut self.0.borrow_mut().completed))
    }

    fn depth(&self) -> u32 {
        self.0.borrow().depth.unwrap_or(u32::MAX)
    }

    fn arm(&mut self) -> bool {
        self.0.borrow().completed > 0
    }
}

/// What a turn has told.
#[derive(Debug, Default)]
struct Heard {
    acks: Vec<(u32, Lsn)>,
    proofs: Vec<(&'static str, Proof)>,
}

impl Listener<u32, &'static str> for Heard {
    fn acknowledged(&mut self, append: u32, last: Lsn) {
        self.acks.push((append, last));
    }

    fn proved(&mut self, question: &'static str, proof: Proof) {
        self.proofs.push((question, proof));
    }
}

/// A primary whose members answer at once.
struct Group {
    log: PrimaryLog<Plain, u32, &'static str>,
    links: Vec<(Seat, Link)>,
    /// Buffers that were lent, the latest last.
    lent: Vec<(Seat, SegmentId, Memory)>,
    /// Members lend no further buffer.
    stingy: bool,
}

const SIZE: SegmentSize = SegmentSize::MIN;

fn member(number: usize) -> MemberRef {
    let id = format!("m{number}").parse().unwrap();
    MemberRef { id, boot: BootId(number as u128), control: String::new() }
}

impl Group {
    fn new(members: usize, post_bytes_max: u32) -> Group {
        let config = Configuration {
            log: LogId(1),
            epoch: Epoch(1),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(1),
            primary: PrimaryRef { id: "s1".parse().unwrap(), control: String::new() },
            members: (1..=members).map(member).collect(),
        };
        let rules = Rules {
            backups: members as u8,
            min_in_sync: 1,
            durability: Durability::Memory,
            segment_size: SIZE,
            open_timeout_ms: 1_000_000,
            recruit_interval_ms: 1_000_000,
            swap_interval_ms: 0,
        };
        let mut out = Vec::new();
        let primary = Primary::new(config, rules, &Reference::default(), 1, Time(0), &mut out);
        let mut log = PrimaryLog::new(primary, post_bytes_max);
        log.outputs = out;
        let mut group = Group { log, links: Vec::new(), lent: Vec::new(), stingy: false };
        group.carry_out();
        group
    }

    fn carry_out(&mut self) -> Vec<Output> {
        let mut others = Vec::new();
        while !self.log.outputs.is_empty() {
            for output in std::mem::take(&mut self.log.outputs) {
                match output {
                    Output::Connect(seat, _) => {
                        let link = Link::default();
                        self.links.push((seat, link.clone()));
                        self.log.connected(seat, link, None, Time(0));
                    }
                    Output::Prepare(identity) => self.prepare(identity),
                    Output::Open(seat, identity) if !self.stingy => self.lend(seat, identity.segment),
                    other => others.push(other),
                }
            }
        }
        others
    }

    fn prepare(&mut self, identity: SegmentIdentity) {
        let published = Memory(Rc::default());
        let writing = Writing { bytes: vec![0; identity.size.bytes() as usize], published: published.clone() };
        self.log.prepared(identity, writing, published, Time(0));
    }

    fn lend(&mut self, seat: Seat, segment: SegmentId) {
        let memory = Memory(Rc::default());
        self.lent.push((seat, segment, memory.clone()));
        self.log.opened(seat, segment, memory, Time(0));
    }

    fn append(&mut self, name: u32, payload: &[u8]) -> bool {
        let size = append_size(std::iter::once(payload.len()));
        self.log.append(name, size, std::iter::once(payload)).is_some()
    }

    fn turn(&mut self) -> Heard {
        let mut heard = Heard::default();
        let moment = Moment { now: Time(0), elapsed: Duration::ZERO, ticks: false };
        self.log.turn(moment, &mut heard);
        heard
    }

    fn complete(&self, member: usize) {
        self.links[member].1.complete();
    }
}

#[test]
fn an_append_is_acknowledged_when_every_member_has_all_of_it() {
    let mut group = Group::new(2, 64);
    assert!(group.append(7, &[1; 200]));
    // Four writes carry it, of 64 bytes each at most.
    assert!(group.turn().acks.is_empty());
    assert!(group.links.iter().all(|(_, link)| link.posted() >= 4));
    group.complete(0);
    assert!(group.turn().acks.is_empty(), "one member has it");
    group.complete(1);
    assert_eq!(group.turn().acks, [(7, Lsn(1))]);
    for (_, _, memory) in group.lent.iter().filter(|(_, segment, _)| *segment == SegmentId(1)) {
        let mut bytes = memory.0.borrow().clone();
        bytes.resize(SIZE.bytes() as usize, 0);
        let identity = group.log.primary().active().unwrap();
        let mut scanner = Scanner::new(&bytes, &identity).unwrap();
        let append = scanner.next_append().unwrap();
        assert!(append.records().all(|record| record.payload == [1; 200]));
    }
}

#[test]
fn acks_come_in_the_order_of_the_appends() {
    let mut group = Group::new(1, u32::MAX);
    assert!((1..=5).all(|name| group.append(name, b"record")));
    group.turn();
    group.complete(0);
    let names: Vec<u32> = group.turn().acks.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [1, 2, 3, 4, 5]);
    assert_eq!(group.log.acked().0, Lsn(5));
}

#[test]
fn a_channel_gets_no_more_writes_than_it_wants() {
    let mut group = Group::new(1, u32::MAX);
    group.links[0].1.0.borrow_mut().depth = Some(1);
    for name in 1..=3 {
        assert!(group.append(name, b"record"));
        group.turn();
    }
    assert_eq!(group.links[0].1.posted(), 1);
    group.complete(0);
    // What waited goes out as one.
    group.turn();
    group.turn();
    assert_eq!(group.links[0].1.posted(), 1);
    group.complete(0);
    assert_eq!(group.turn().acks.last(), Some(&(3, Lsn(3))));
}

#[test]
fn a_question_is_proved_by_writes_that_were_posted_after_it() {
    let mut group = Group::new(2, u32::MAX);
    assert!(group.append(1, b"record"));
    group.turn();
    group.log.ask("who");
    // The write was posted before the question: at both members an empty one follows.
    group.complete(0);
    group.complete(1);
    let heard = group.turn();
    assert_eq!((heard.acks.len(), heard.proofs.len()), (1, 0));
    group.complete(0);
    assert!(group.turn().proofs.is_empty(), "one member has proved it");
    group.complete(1);
    assert_eq!(group.turn().proofs, [("who", Proof::Last(Lsn(1)))]);
}

#[test]
fn a_sync_is_answered_when_it_is_on_disk_and_proved() {
    let mut group = Group::new(1, u32::MAX);
    assert!(group.append(1, b"record"));
    group.log.sync("disk");
    group.turn();
    group.complete(0);
    group.turn();
    let asked = group.carry_out();
    let Some(Output::Sync(seat, _)) = asked.into_iter().find(|output| matches!(output, Output::Sync(..))) else {
        panic!("nobody is asked to sync");
    };
    assert_eq!(group.log.syncs(), 1);
    group.log.step(Time(0), Input::Synced(seat, Lsn(1)));
    assert!(group.turn().proofs.is_empty(), "it is on disk, and this may not be the primary any more");
    group.complete(0);
    assert_eq!(group.turn().proofs, [("disk", Proof::Synced(Lsn(1)))]);
    assert_eq!(group.log.syncs(), 0);
}

#[test]
fn a_post_that_fails_loses_the_member() {
    let mut group = Group::new(2, u32::MAX);
    group.links[1].1.0.borrow_mut().fails = true;
    assert!(group.append(1, b"record"));
    group.turn();
    assert_eq!(group.log.failures, [(group.links[1].0, "no")]);
    assert_eq!(group.log.members_connected(), 1);
    group.complete(0);
    assert!(group.turn().acks.is_empty(), "the lost member is in the set still");
}

#[test]
fn a_late_lending_for_a_former_seat_is_ignored() {
    let mut group = Group::new(1, u32::MAX);
    let (seat, segment, _) = group.lent[0].clone();
    let stranger = Seat { tenancy: seat.tenancy + 1, ..seat };
    let elsewhere = Memory(Rc::default());
    group.log.opened(stranger, segment, elsewhere.clone(), Time(0));
    assert!(group.append(1, b"record"));
    group.turn();
    group.complete(0);
    assert_eq!(group.turn().acks.len(), 1);
    assert!(elsewhere.0.borrow().is_empty());
}

#[test]
fn a_full_segment_waits_for_the_next_buffer() {
    let mut group = Group::new(1, u32::MAX);
    group.stingy = true;
    let payload = vec![2; 20_000];
    let taken = (1..100).take_while(|name| group.append(*name, &payload)).count();
    let bytes = SIZE.bytes() as usize;
    assert!((2..=2 * bytes / payload.len()).contains(&taken), "{taken}");
    group.turn();
    group.complete(0);
    assert_eq!(group.turn().acks.len(), taken);
    assert!(!group.append(99, &payload), "no buffer has been lent");
}

#[test]
fn what_waits_at_the_end_is_handed_back() {
    let mut group = Group::new(1, u32::MAX);
    assert!(group.append(1, b"record"));
    group.log.ask("who");
    group.log.sync("disk");
    group.log.retain_questions(|question| *question != "who");
    let (appends, questions) = group.log.end();
    assert_eq!(appends.collect::<Vec<_>>(), [1]);
    assert_eq!(questions.collect::<Vec<_>>(), ["disk"]);
}
