//! A follower beside members that tell the truth, stand still, rot, or lie.

use std::ops::Range;
use std::time::Duration;

use crate::logs::{Log, Payloads, identity};
use proptest::prelude::*;
use tailwind_protocol::board::{BoardIdentity, Progress};
use tailwind_protocol::config::{Configuration, Cut, Kind, MemberRef, PrimaryRef};
use tailwind_protocol::follower::{
    Follower, IDLE_INTERVAL, Input, LOOK_INTERVAL, NEEDED_MAX, NeededCopies, Output, STALE_AFTER, Visit,
};
use tailwind_protocol::history::Parted;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::{Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{CopyReport, CopyState};

const BEAT: Duration = Duration::from_millis(25);

/// A segment at a member.
#[derive(Clone)]
struct Copy {
    log: Log,
    closed: bool,
    in_memory: bool,
    /// Closed, and counts as open until it is on disk: durability `flushed`.
    unflushed: bool,
    corrupt: bool,
}

/// A member as a follower sees it.
#[derive(Clone)]
struct Member {
    reference: MemberRef,
    epoch: Epoch,
    progress: Progress,
    copies: Vec<Copy>,
    /// Its board moves.
    lives: bool,
    /// Its process answers; its memory can be read all the same.
    answers: bool,
}

impl Member {
    fn new(number: u8, copies: Vec<Copy>) -> Member {
        let name = format!("m{number}");
        let reference = MemberRef { id: name.parse().unwrap(), boot: BootId(number.into()), control: name };
        let last = copies.last().unwrap();
        let closure = last.log.closures.last().unwrap();
        let progress = Progress {
            beat: 1,
            acked: closure.last,
            end: Position::new(last.log.identity.segment, closure.end),
            first: copies[0].log.closures[0].first,
            version: Version(1),
        };
        Member { reference, epoch: last.log.identity.epoch, progress, copies, lives: true, answers: true }
    }

    fn board(&self) -> Vec<u8> {
        let identity = BoardIdentity {
            log: identity().log,
            epoch: self.epoch,
            generation: Generation(7),
            segment_size: SegmentSize::MIN,
        };
        [identity.encode(), self.progress.encode(&identity)].concat()
    }

    /// Everything up to this append of the last segment is acknowledged.
    fn ack(&mut self, appends: usize) {
        let last = &self.copies.last().unwrap().log;
        self.progress.acked = last.closures[appends].last;
        self.progress.end = Position::new(last.identity.segment, last.closures[appends].end);
    }

    fn copy(&self, segment: SegmentId) -> Option<&Copy> {
        self.copies.iter().find(|copy| copy.log.identity.segment == segment)
    }

    fn reports(&self) -> Vec<CopyReport> {
        let report = |copy: &Copy| CopyReport {
            identity: copy.log.identity,
            state: match copy.closed && !copy.unflushed {
                true if copy.corrupt => CopyState::Corrupt,
                true => CopyState::Closed,
                false => CopyState::Open,
            },
            closure: if copy.closed { *copy.log.closures.last().unwrap() } else { Closure::default() },
            acked: Offset(0),
        };
        // As a backup's inventory, which leaves out what is lent.
        self.copies.iter().filter(|copy| copy.closed).map(report).collect()
    }
}

/// A follower, its members, and what it has handed out.
#[derive(Clone)]
struct Scene {
    now: Duration,
    follower: Follower,
    members: Vec<Member>,
    visited: Option<usize>,
    shared: SegmentId,
    shown: Vec<(Lsn, Vec<u8>)>,
    caught_up: usize,
    trimmed: Option<Lsn>,
    beyond: Option<Lsn>,
    parted: Option<Parted>,
    left: Vec<String>,
    visits: Vec<usize>,
    fetched: Vec<SegmentId>,
    /// Copies that a survey brings at most.
    listed: usize,
}

impl Scene {
    fn new(next: u64, landing: u32, members: Vec<Member>) -> Scene {
        let now = Duration::from_secs(5);
        let follower = Follower::new(now, Lsn(next), landing, 0, Visit(0));
        let mut scene = Scene {
            now,
            follower,
            members,
            visited: None,
            shared: SegmentId(0),
            shown: Vec::new(),
            caught_up: 0,
            trimmed: None,
            beyond: None,
            parted: None,
            left: Vec::new(),
            visits: Vec::new(),
            fetched: Vec::new(),
            listed: NEEDED_MAX,
        };
        scene.beat();
        let epochs = scene.members.iter().map(|member| member.epoch.0);
        let latest = epochs.max().unwrap_or(1);
        scene.configure(latest);
        scene
    }

    fn beat(&mut self) {
        let beats = (self.now.as_micros() / BEAT.as_micros()) as u64;
        for member in self.members.iter_mut().filter(|member| member.lives) {
            member.progress.beat = beats;
        }
    }

    fn configure(&mut self, epoch: u64) {
        self.configure_for(identity().log, epoch);
    }

    fn configure_for(&mut self, log: LogId, epoch: u64) {
        let config = self.configuration(log, epoch);
        self.see(&config);
    }

    /// Everybody is in the set, and the epoch is won.
    fn configuration(&self, log: LogId, epoch: u64) -> Configuration {
        Configuration {
            log,
            kind: Kind::Log,
            epoch: Epoch(epoch),
            claim: Claim(1),
            earlier: Vec::new(),
            won: Epoch(epoch),
            cuts: Vec::new(),
            version: Version(epoch),
            primary: PrimaryRef { id: "s1".parse().unwrap(), control: "s1:1".to_owned() },
            members: self.members.iter().map(|member| member.reference.clone()).collect(),
        }
    }

    fn see(&mut self, config: &Configuration) {
        self.step(|follower, now, out, shown| follower.step(now, Input::Config(config), out, shown));
    }

    fn step(
        &mut self,
        step: impl FnOnce(&mut Follower, Duration, &mut Vec<Output>, &mut dyn FnMut(tailwind_protocol::scan::Record<'_>)),
    ) {
        let mut out = Vec::new();
        let shown = &mut self.shown;
        step(&mut self.follower, self.now, &mut out, &mut |record| shown.push((record.lsn, record.payload.to_vec())));
        out.into_iter().for_each(|output| self.execute(output));
    }

    fn input(&mut self, input: Input<'_>) {
        self.step(|follower, now, out, shown| follower.step(now, input, out, shown));
    }

    fn member(&self) -> Member {
        self.members[self.visited.expect("somebody is visited")].clone()
    }

    fn execute(&mut self, output: Output) {
        match output {
            Output::Connect(visit, log, member) => {
                assert_eq!(log, identity().log);
                let at = self.members.iter().position(|known| known.reference == member).unwrap();
                self.visits.push(at);
                self.visited = Some(at);
                if self.members[at].answers {
                    self.input(Input::Connected(visit, Ok(())));
                }
            }
            Output::Look(visit) => {
                let posted = self.now;
                let board = self.member().board();
                self.input(Input::Looked(visit, posted, &board));
            }
            Output::Survey(visit) => {
                let (mut needed, next) = (NeededCopies::at_most(self.listed), self.follower.next());
                self.member().reports().iter().for_each(|copy| needed.take(copy, next));
                self.input(Input::Surveyed(visit, Ok(&needed.finish())));
            }
            Output::Share(visit, segment) => {
                self.shared = segment;
                let member = self.member();
                if !member.answers {
                    return;
                }
                let copy = member.copy(segment).filter(|copy| copy.in_memory);
                let shared = copy.map(|copy| {
                    let closure = copy.closed.then(|| *copy.log.closures.last().unwrap());
                    (copy.log.identity, closure)
                });
                self.input(Input::Shared(visit, Ok(shared)));
            }
            Output::Read(visit, range) => {
                let bytes = self.bytes(range);
                self.input(Input::Read(visit, &bytes));
            }
            Output::Fetch(visit, identity, closure, wanted) => self.fetch(visit, identity, closure, wanted),
            Output::Leave(_, why) => {
                self.visited = None;
                self.left.push(why);
            }
            Output::CaughtUp => self.caught_up += 1,
            Output::Trimmed(first) => self.trimmed = Some(first),
            Output::BeyondEnd(last) => self.beyond = Some(last),
            Output::Parted(why) => self.parted = Some(why),
        }
    }

    fn bytes(&self, range: Range<u32>) -> Vec<u8> {
        let member = self.member();
        member.copy(self.shared).unwrap().log.bytes[range.start as usize..range.end as usize].to_vec()
    }

    fn fetch(&mut self, visit: Visit, identity: SegmentIdentity, closure: Closure, wanted: Range<Lsn>) {
        let copy = self.member().copy(identity.segment).unwrap().clone();
        assert_eq!((copy.log.identity, copy.log.closures.last()), (identity, Some(&closure)));
        self.fetched.push(identity.segment);
        let mut lsn = closure.first;
        for payload in copy.log.appends.concat() {
            if wanted.contains(&lsn) {
                self.shown.push((lsn, payload));
            }
            lsn = lsn.next();
        }
        self.input(Input::Fetched(visit, Ok(())));
    }

    /// Time passes, and boards that live beat.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.follower.wake_at().filter(|at| *at <= end) {
            let before = self.now;
            self.now = self.now.max(at);
            self.beat();
            self.input(Input::Tick);
            if self.follower.wake_at().is_some_and(|next| next <= self.now) && self.now == before {
                panic!("it wants to be woken at once, without end");
            }
        }
        self.now = end;
    }

    fn shows(&self, logs: &[&Log]) {
        let mut expected = Vec::new();
        for log in logs {
            let first = log.closures[0].first.0;
            expected.extend(log.appends.concat().into_iter().enumerate().map(|(i, p)| (Lsn(first + i as u64), p)));
        }
        assert_eq!(self.shown.len(), expected.len(), "left: {:?}", self.left);
        assert!(self.shown == expected);
    }
}

fn appends(count: usize, seed: u8) -> Vec<Payloads> {
    (0..count)
        .map(|i| (0..=i % 3).map(|j| vec![seed.wrapping_add((i * 3 + j) as u8); (i * 37 + j) % 300]).collect())
        .collect()
}

/// Segments of one log, one behind the other.
fn segments(counts: &[usize]) -> Vec<Log> {
    let mut first = Lsn(1);
    let each = counts.iter().enumerate().map(|(i, count)| {
        let identity = SegmentIdentity { segment: SegmentId(i as u64 + 1), epoch: Epoch(1), ..identity() };
        let log = Log::write_from(first, identity, appends(*count, i as u8));
        first = log.closures.last().unwrap().last.next();
        log
    });
    each.collect()
}

fn open(log: &Log) -> Copy {
    Copy { log: log.clone(), closed: false, in_memory: true, unflushed: false, corrupt: false }
}

fn on_disk(log: &Log) -> Copy {
    Copy { log: log.clone(), closed: true, in_memory: false, unflushed: false, corrupt: false }
}

#[test]
fn hands_out_everything_in_order() {
    let logs = segments(&[20, 7, 30]);
    for landing in [72, 100, 4096, 1 << 20] {
        let member = Member::new(1, vec![on_disk(&logs[0]), open(&logs[1]), open(&logs[2])]);
        let mut scene = Scene::new(1, landing, vec![member]);
        scene.pass(4 * BEAT);
        scene.shows(&[&logs[0], &logs[1], &logs[2]]);
        assert_eq!((scene.caught_up, &scene.fetched[..]), (1, &[SegmentId(1)][..]), "landing {landing}");
        assert!(scene.left.is_empty(), "{:?}", scene.left);
    }
}

/// Nobody has looked for a while, so the line that is there may be of any age. What it names is acknowledged all the same.
#[test]
fn has_not_caught_up_with_a_line_that_it_finds() {
    let logs = segments(&[20]);
    let mut member = Member::new(1, vec![open(&logs[0])]);
    member.ack(5);
    member.lives = false;
    member.progress.beat = 200;
    let mut scene = Scene::new(1, 4096, vec![member]);
    scene.pass(BEAT);
    let found = logs[0].closures[5].last.0 as usize;
    assert_eq!((scene.shown.len(), scene.caught_up), (found, 0));

    // The primary has heard that a reader looks.
    scene.members[0].ack(20);
    scene.members[0].lives = true;
    let mut beats = 0;
    while scene.caught_up == 0 {
        assert!(beats < 5, "three beats, and what is left of the one in which it looked first");
        scene.pass(BEAT);
        beats += 1;
        scene.shows(&[&logs[0]]);
    }
    assert!(beats >= 3);
    assert!(scene.follower.lag(scene.now).behind.is_some() && scene.left.is_empty());
}

/// The same with the first record: it has been trimmed since.
#[test]
fn begins_with_the_first_record_that_there_is_now() {
    let logs = segments(&[20, 9]);
    let first = logs[1].closures[0].first;
    let mut member = Member::new(1, vec![open(&logs[1])]);
    (member.progress.first, member.lives) = (Lsn(1), false);
    let mut scene = Scene::new(0, 4096, vec![member]);
    scene.pass(BEAT);
    (scene.members[0].progress.first, scene.members[0].lives) = (first, true);
    scene.pass(8 * BEAT);
    assert_eq!(scene.trimmed, None);
    scene.shows(&[&logs[1]]);
    assert_eq!(scene.caught_up, 1);

    // Who has caught up lacks what was trimmed from then on.
    let mut empty = Member::new(1, vec![open(&logs[0])]);
    empty.ack(0);
    let mut scene = Scene::new(0, 4096, vec![empty]);
    scene.pass(8 * BEAT);
    assert_eq!(scene.caught_up, 1);
    let later = Member::new(1, vec![open(&logs[1])]);
    scene.members[0].copies = later.copies;
    (scene.members[0].progress.first, scene.members[0].progress.acked) = (first, later.progress.acked);
    scene.members[0].progress.end = later.progress.end;
    scene.pass(8 * BEAT);
    assert_eq!((scene.trimmed, scene.shown.len()), (Some(first), 0));
}

/// There is no primary: nobody can say whether there is more.
#[test]
fn has_caught_up_with_a_board_that_stands_still() {
    let logs = segments(&[20]);
    let mut member = Member::new(1, vec![open(&logs[0])]);
    member.lives = false;
    let mut scene = Scene::new(1, 4096, vec![member]);
    scene.pass(STALE_AFTER - LOOK_INTERVAL);
    scene.shows(&[&logs[0]]);
    assert_eq!((scene.caught_up, scene.left.len()), (0, 0));
    scene.pass(STALE_AFTER);
    assert_eq!(scene.caught_up, 1);
    assert_eq!(scene.left[0], "its board stands still");
    assert!(scene.follower.lag(scene.now).is_stale());
}

/// Its close at this member is under way: it is neither in the inventory nor the segment that the board names.
#[test]
fn begins_in_a_full_segment_that_is_not_closed_yet() {
    let logs = segments(&[20, 7, 30, 9]);
    let copies = vec![on_disk(&logs[0]), open(&logs[1]), open(&logs[2]), open(&logs[3])];
    for (from, shown) in [(0, &logs[..]), (1, &logs[1..]), (2, &logs[2..]), (3, &logs[3..])] {
        let next = logs[from].closures[0].first.0;
        let mut scene = Scene::new(next, 4096, vec![Member::new(1, copies.clone())]);
        scene.pass(4 * BEAT);
        scene.shows(&shown.iter().collect::<Vec<_>>());
        assert!(scene.left.is_empty(), "{:?}", scene.left);
        assert_eq!(scene.caught_up, 1);
    }
}

/// It is listed, and so is the newest sound copy, but for which the open end would seem to begin behind the corrupt one.
#[test]
fn a_corrupt_copy_of_long_ago_is_in_nobodys_way() {
    let logs = segments(&[20, 7, 30, 9, 5]);
    let corrupt = Copy { corrupt: true, ..on_disk(&logs[0]) };
    let copies = vec![corrupt, on_disk(&logs[1]), on_disk(&logs[2]), open(&logs[3]), open(&logs[4])];
    let next = logs[3].closures[0].first.0;
    let mut scene = Scene::new(next, 4096, vec![Member::new(1, copies)]);
    scene.pass(BEAT);
    scene.shows(&[&logs[3], &logs[4]]);
    assert!(scene.left.is_empty(), "{:?}", scene.left);
}

/// It remembers a part of a long list, and asks again when it has come to the end of that.
#[test]
fn a_long_log_is_listed_piece_by_piece() {
    let logs = segments(&[4, 3, 5, 2, 6, 3, 4]);
    let (closed, lent) = logs.split_at(6);
    let corrupt = |log: &Log| Copy { corrupt: true, ..on_disk(log) };
    for (listed, copy) in [(1, on_disk as fn(&Log) -> Copy), (2, on_disk), (4, on_disk), (1, corrupt)] {
        let copies: Vec<Copy> = closed.iter().map(copy).chain(lent.iter().map(open)).collect();
        let mut scene = Scene::new(1, 4096, vec![Member::new(1, copies)]);
        scene.listed = listed;
        scene.pass(40 * BEAT);
        scene.shows(&logs.iter().collect::<Vec<_>>());
        assert!(scene.left.is_empty(), "{listed}: {:?}", scene.left);
    }
}

/// Nothing is closed yet, so that no inventory tells where the log begins. Some segments have no record at all.
#[test]
fn begins_in_the_first_segment_of_a_young_log() {
    for counts in [[20, 7, 30], [1, 0, 2], [2, 0, 0]] {
        let logs = segments(&counts);
        let member = Member::new(1, logs.iter().map(open).collect());
        for landing in [40, 72, 4096, 1 << 20] {
            let mut scene = Scene::new(1, landing, vec![member.clone()]);
            scene.pass(BEAT);
            scene.shows(&[&logs[0], &logs[1], &logs[2]]);
            assert!(scene.left.is_empty(), "{:?}", scene.left);
        }
    }
}

/// The group was deleted and recreated: nothing of its new log belongs behind what was handed out.
#[test]
fn another_log_ends_it() {
    let logs = segments(&[12]);
    let (log, other) = (identity().log, LogId(4711));
    for epoch in [1, 2, 9] {
        let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
        scene.pass(BEAT);
        scene.configure_for(other, epoch);
        assert_eq!(scene.parted, Some(Parted::OtherLog(other)), "epoch {epoch}");
        assert_eq!((scene.left.len(), scene.follower.wake_at()), (1, None));
        scene.configure_for(log, 10);
        assert_eq!(scene.left.len(), 1, "it is over");
    }
}

/// It may have been out of the set in between, without any beat there: others may have acknowledged something.
#[test]
fn beats_across_a_change_of_the_set_prove_nothing() {
    let logs = segments(&[12]);
    let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
    let behind = |scene: &Scene| scene.follower.lag(scene.now).behind;
    scene.pass(BEAT * 2);
    assert_eq!(behind(&scene), None);
    scene.members[0].progress.version = Version(7);
    scene.pass(BEAT * 2);
    assert_eq!(behind(&scene), None, "three beats, but not of one set");
    scene.pass(BEAT * 2);
    assert!(behind(&scene).is_some_and(|behind| behind <= BEAT * 5), "{:?}", behind(&scene));
}

#[test]
fn hands_out_nothing_behind_what_the_board_names() {
    let logs = segments(&[12]);
    let mut member = Member::new(1, vec![open(&logs[0])]);
    for appends in 0..=12 {
        member.ack(appends);
        let mut scene = Scene::new(1, 512, vec![member.clone()]);
        scene.pass(BEAT);
        let shown = Log { appends: logs[0].appends[..appends].to_vec(), ..logs[0].clone() };
        scene.shows(&[&shown]);
    }
}

#[test]
fn goes_on_as_the_board_moves() {
    let logs = segments(&[25, 10]);
    let mut before = Member::new(1, vec![open(&logs[0])]);
    before.ack(0);
    let mut scene = Scene::new(1, 1 << 20, vec![before]);
    for appends in 0..=25 {
        scene.members[0].ack(appends);
        scene.pass(IDLE_INTERVAL + LOOK_INTERVAL);
    }
    scene.shows(&[&logs[0]]);
    scene.members[0] =
        Member { progress: scene.members[0].progress, ..Member::new(1, vec![open(&logs[0]), open(&logs[1])]) };
    scene.members[0].ack(10);
    scene.pass(IDLE_INTERVAL * 2);
    scene.shows(&[&logs[0], &logs[1]]);
    assert!(scene.left.is_empty(), "{:?}", scene.left);
}

#[test]
fn hands_out_nothing_behind_a_closure() {
    let logs = segments(&[12, 3]);
    // The first segment is an older epoch's, and was closed after its fifth append when that epoch ended.
    let mut old = logs[0].clone();
    old.closures.truncate(6);
    old.appends.truncate(5);
    let identity = SegmentIdentity { epoch: Epoch(2), ..logs[1].identity };
    let new = Log::write_from(old.closures[5].last.next(), identity, appends(3, 50));
    // It is read where it is: the valid appends behind the closure are in its memory.
    let closed = Copy { log: old.clone(), closed: true, in_memory: true, unflushed: true, corrupt: false };
    let member = Member::new(1, vec![closed, open(&new)]);
    let mut scene = Scene::new(1, 256, vec![member]);
    scene.pass(BEAT);
    scene.shows(&[&old, &new]);
}

#[test]
fn begins_in_the_middle() {
    let logs = segments(&[9, 9, 9]);
    let copies = vec![on_disk(&logs[0]), on_disk(&logs[1]), open(&logs[2])];
    let all: Vec<Vec<u8>> = logs.iter().flat_map(|log| log.appends.concat()).collect();
    for next in 1..=all.len() {
        let mut scene = Scene::new(next as u64, 333, vec![Member::new(1, copies.clone())]);
        scene.pass(BEAT);
        let shown: Vec<Vec<u8>> = scene.shown.iter().map(|(_, payload)| payload.clone()).collect();
        assert_eq!(shown, all[next - 1..]);
        assert_eq!(scene.shown[0].0, Lsn(next as u64));
    }
}

#[test]
fn leaves_a_board_that_stands_still() {
    let logs = segments(&[5]);
    let members = vec![Member::new(1, vec![open(&logs[0])]), Member::new(2, vec![open(&logs[0])])];
    let mut scene = Scene::new(1, 4096, members);
    scene.pass(BEAT * 4);
    assert!(!scene.follower.lag(scene.now).is_stale());
    scene.members[0].lives = false;
    scene.pass(STALE_AFTER + BEAT * 4);
    assert_eq!((&scene.visits[..], &scene.left[..]), (&[0, 1][..], &["its board stands still".to_owned()][..]));
    scene.pass(BEAT * 4);
    assert!(!scene.follower.lag(scene.now).is_stale());
    scene.shows(&[&logs[0]]);
    // Nobody's board moves: it knows that it may lack something, and does not ask without end.
    scene.members[1].lives = false;
    scene.pass(Duration::from_secs(10));
    assert!(scene.follower.lag(scene.now).is_stale());
    assert!(scene.visits.len() < 40, "{} visits", scene.visits.len());
}

#[test]
fn never_goes_back() {
    let logs = segments(&[8]);
    let mut behind = Member::new(2, vec![open(&logs[0])]);
    behind.ack(3);
    let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])]), behind]);
    scene.pass(BEAT);
    scene.members[0].lives = false;
    scene.pass(STALE_AFTER + BEAT);
    assert_eq!(scene.visits, [0, 1]);
    scene.shows(&[&logs[0]]);
    // What the second one shows later is the same log.
    scene.members[1].ack(8);
    scene.pass(STALE_AFTER * 4);
    scene.shows(&[&logs[0]]);
}

#[test]
fn leaves_a_board_that_is_behind_and_stands_still() {
    let logs = segments(&[8]);
    let mut behind = Member::new(2, vec![open(&logs[0])]);
    behind.ack(3);
    behind.lives = false;
    let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])]), behind]);
    scene.pass(BEAT);
    scene.members[0].lives = false;
    scene.pass(STALE_AFTER + BEAT);
    scene.members[0].lives = true;
    scene.pass(STALE_AFTER * 2);
    assert_eq!(scene.visits, [0, 1, 0], "{:?}", scene.left);
}

#[test]
fn a_board_that_is_fresh_proves_that_a_record_is_beyond_the_end() {
    let logs = segments(&[8]);
    let last = logs[0].closures[8].last;
    for beyond in [2, 1000] {
        let mut scene = Scene::new(last.0 + beyond, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
        scene.pass(BEAT * 2);
        assert_eq!(scene.beyond, None, "the acks of a moment ago may not be on the board yet");
        scene.pass(BEAT * 4);
        assert_eq!((scene.beyond, scene.follower.wake_at()), (Some(last), None), "{:?}", scene.left);
    }
    let mut next = Scene::new(last.0 + 1, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
    next.pass(BEAT * 40);
    assert_eq!((next.beyond, next.caught_up), (None, 1), "{:?}", next.left);
}

#[test]
fn a_board_that_stands_still_proves_nothing() {
    let logs = segments(&[8]);
    let mut old = Member::new(1, vec![open(&logs[0])]);
    old.ack(3);
    old.lives = false;
    let last = logs[0].closures[8].last;
    let mut scene = Scene::new(last.0 + 1, 4096, vec![old, Member::new(2, vec![open(&logs[0])])]);
    scene.pass(STALE_AFTER * 2);
    assert_eq!((scene.beyond, scene.caught_up), (None, 1), "{:?}", scene.left);
}

/// An administrator has accepted the loss of what was shown.
#[test]
fn a_log_that_has_become_shorter_ends_it() {
    let logs = segments(&[8]);
    let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
    scene.pass(BEAT * 4);
    scene.shows(&[&logs[0]]);
    let mut shorter = Member::new(1, vec![open(&logs[0])]);
    (shorter.reference.boot, shorter.epoch) = (BootId(9), Epoch(3));
    shorter.ack(3);
    let last = shorter.progress.acked;
    scene.members = vec![shorter];
    scene.configure(3);
    scene.pass(BEAT * 8);
    assert_eq!(scene.beyond, Some(last), "{:?}", scene.left);
    scene.shows(&[&logs[0]]);
}

/// An administrator has accepted the loss of what was shown, and the log has grown past it since. A follower that was away
/// finds a board that names more than it has handed out.
#[test]
fn a_log_that_was_cut_ends_it_however_long_it_is_by_now() {
    let logs = segments(&[8, 8]);
    let mut scene = Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])])]);
    scene.pass(BEAT * 4);
    scene.shows(&[&logs[0]]);
    let shown = scene.follower.next().prev();
    // There is more, which it does not get to read.
    let lost = Lsn(shown.0 + 100);
    scene.members[0].progress.acked = lost;
    scene.members[0].progress.end = Position::new(SegmentId(2), Offset(0));
    scene.pass(BEAT * 4);
    scene.shows(&[&logs[0]]);
    assert_eq!(scene.follower.lag(scene.now).acked, lost);
    let reopened = SegmentIdentity { epoch: Epoch(9), ..logs[1].identity };
    let later = Log::write_from(shown.next(), reopened, appends(8, 50));
    let closed = Copy { log: logs[0].clone(), closed: true, in_memory: true, unflushed: true, corrupt: false };
    let grown = Member::new(2, vec![closed, open(&later)]);
    assert_eq!(grown.epoch, Epoch(9));
    scene.members = vec![grown];
    let cut = |last| Cut { epoch: Epoch(9), last, ordered: None };
    // The epoch is claimed, and its members already have boards of it.
    let claimed = Configuration { won: Epoch(1), ..scene.configuration(identity().log, 9) };
    scene.see(&claimed);
    scene.pass(BEAT * 8);
    scene.shows(&[&logs[0]]);
    let won = Configuration { cuts: vec![cut(shown.prev())], ..scene.configuration(identity().log, 9) };
    let won = Configuration { version: Version(10), ..won };
    let mut late = scene.clone();
    scene.see(&won);
    assert_eq!((scene.parted, scene.follower.wake_at()), (Some(Parted::Cut(shown.prev())), None));
    scene.pass(BEAT * 8);
    scene.shows(&[&logs[0]]);
    // It was cut behind what was shown: that is part of both histories.
    late.members.iter_mut().for_each(|member| member.answers = false);
    late.see(&Configuration { cuts: vec![cut(shown)], ..won });
    assert_eq!(late.follower.lag(late.now).acked, shown, "what was acknowledged behind the cut is lost");
    late.members.iter_mut().for_each(|member| member.answers = true);
    late.pass(STALE_AFTER * 2);
    assert_eq!(late.parted, None);
    late.shows(&[&logs[0], &later]);
    assert_eq!(late.follower.lag(late.now).acked, late.follower.next().prev());
}

/// It was read just before its member was fenced.
#[test]
fn a_board_from_before_a_cut_is_not_believed() {
    let logs = segments(&[8]);
    let mut scene = Scene::new(1, 4096, vec![Member { answers: false, ..Member::new(1, vec![open(&logs[0])]) }]);
    let cut = Cut { epoch: Epoch(9), last: Lsn(3), ordered: None };
    let won = Configuration { cuts: vec![cut], ..scene.configuration(identity().log, 9) };
    scene.see(&won);
    scene.members[0].answers = true;
    scene.pass(STALE_AFTER * 2);
    assert_eq!(scene.follower.lag(scene.now).acked, Lsn(0));
    assert!(scene.left.iter().any(|why| why == "its board is of epoch 1, before the log was cut"), "{:?}", scene.left);
    scene.shows(&[]);
}

#[test]
fn a_member_that_does_not_answer_is_left_soon() {
    let logs = segments(&[8, 8]);
    let whole = || Member::new(0, vec![open(&logs[0]), open(&logs[1])]);
    // When it is asked for a channel.
    let silent = Member { answers: false, reference: Member::new(1, whole().copies).reference, ..whole() };
    let mut scene = Scene::new(1, 4096, vec![silent, whole()]);
    scene.pass(STALE_AFTER + BEAT * 2);
    assert_eq!((&scene.visits[..], &scene.left[..]), (&[0, 1][..], &["it does not answer".to_owned()][..]));
    scene.shows(&[&logs[0], &logs[1]]);
    // When it is asked for a segment.
    let mut member = whole();
    member.copies.truncate(1);
    member.progress = Member::new(0, member.copies.clone()).progress;
    let other = Member { reference: Member::new(1, whole().copies).reference, ..whole() };
    let mut scene = Scene::new(1, 4096, vec![member, other]);
    scene.pass(BEAT);
    scene.members[0] = Member { answers: false, ..whole() };
    scene.pass(STALE_AFTER + BEAT * 4);
    scene.shows(&[&logs[0], &logs[1]]);
    // Nobody answers within the time that it waits at first: it waits longer.
    let mut scene = Scene::new(1, 4096, vec![Member { answers: false, ..whole() }]);
    scene.pass(Duration::from_secs(30));
    assert!((10..20).contains(&scene.visits.len()), "{} visits", scene.visits.len());
}

#[test]
fn a_board_of_an_older_epoch_is_not_believed_any_more() {
    let logs = segments(&[8]);
    let mut newer = logs[0].clone();
    newer.identity.epoch = Epoch(1);
    let mut first = Member::new(1, vec![open(&logs[0])]);
    first.epoch = Epoch(3);
    first.progress.end.segment = SegmentId(2);
    first.progress.end.offset = Offset(0);
    let mut scene = Scene::new(1, 4096, vec![first, Member::new(2, vec![open(&logs[0])])]);
    scene.pass(BEAT);
    assert_eq!(scene.follower.epoch(), Epoch(3));
    scene.members[0].lives = false;
    scene.pass(STALE_AFTER + BEAT);
    assert!(scene.left.iter().any(|why| why == "its board is of epoch 1, 3 is known"), "{:?}", scene.left);
}

#[test]
fn rot_is_not_handed_out() {
    let logs = segments(&[10]);
    for at in [3, 30, 100, logs[0].end() - 1] {
        let mut rotten = Member::new(1, vec![open(&logs[0])]);
        rotten.copies[0].log.bytes[at] ^= 4;
        let mut scene = Scene::new(1, 4096, vec![rotten, Member::new(2, vec![open(&logs[0])])]);
        scene.pass(BEAT * 8);
        scene.shows(&[&logs[0]]);
        assert_eq!(scene.visits, [0, 1], "byte {at}: {:?}", scene.left);
    }
}

#[test]
fn a_trimmed_record_ends_it() {
    let logs = segments(&[10, 10]);
    let first = logs[1].closures[0].first;
    let mut scene = Scene::new(first.0 - 1, 4096, vec![Member::new(1, vec![open(&logs[1])])]);
    scene.pass(BEAT);
    assert_eq!((scene.trimmed, scene.shown.len()), (Some(first), 0));
    assert_eq!(scene.follower.wake_at(), None);
}

/// The number after it would be 0, so that no record would be wanted, and the follow would wait for one.
#[test]
fn leaves_a_board_that_names_an_impossible_record() {
    let logs = segments(&[9, 4]);
    let mut member = Member::new(1, vec![on_disk(&logs[0]), open(&logs[1])]);
    member.progress.acked = Lsn(u64::MAX);
    let mut scene = Scene::new(1, 4096, vec![member]);
    scene.pass(STALE_AFTER + BEAT);
    assert_eq!((scene.fetched.as_slice(), scene.shown.len()), (&[][..], 0));
    assert_eq!(scene.left, ["its board shows nothing"]);
}

#[test]
fn begins_with_the_first_record_that_there_is() {
    let logs = segments(&[10, 10]);
    let mut scene = Scene::new(0, 4096, vec![Member::new(1, vec![open(&logs[1])])]);
    scene.pass(BEAT);
    scene.shows(&[&logs[1]]);
}

#[test]
fn a_member_that_shares_something_else_is_left() {
    let logs = segments(&[10]);
    let mut liar = Member::new(1, vec![open(&logs[0])]);
    liar.copies[0].log.identity.epoch = Epoch(9);
    let mut scene = Scene::new(1, 4096, vec![liar, Member::new(2, vec![open(&logs[0])])]);
    scene.members[0].epoch = Epoch(1);
    scene.pass(BEAT * 2);
    assert_eq!(scene.left, ["it shares another segment than 1 of this log"]);
    scene.shows(&[&logs[0]]);
}

#[test]
fn late_answers_are_ignored() {
    let logs = segments(&[10]);
    let mut scene =
        Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])]), Member::new(2, vec![open(&logs[0])])]);
    scene.pass(BEAT);
    scene.members[0].lives = false;
    scene.pass(STALE_AFTER + BEAT);
    let (old, bytes) = (Visit(1), logs[0].bytes.clone());
    scene.input(Input::Read(old, &bytes[..100]));
    scene.input(Input::Looked(old, scene.now, &bytes[..128]));
    scene.input(Input::Shared(old, Ok(None)));
    scene.input(Input::Fetched(old, Ok(())));
    scene.input(Input::Surveyed(old, Ok(&[])));
    scene.input(Input::Broken(old, "late".to_owned()));
    scene.pass(BEAT);
    scene.shows(&[&logs[0]]);
    assert_eq!(scene.visits, [0, 1]);
}

#[test]
fn a_new_configuration_ends_the_visit_to_who_is_not_in_it() {
    let logs = segments(&[10]);
    let mut scene =
        Scene::new(1, 4096, vec![Member::new(1, vec![open(&logs[0])]), Member::new(2, vec![open(&logs[0])])]);
    scene.pass(BEAT);
    scene.members[0].reference.boot = BootId(77);
    scene.configure(2);
    assert_eq!(scene.left, ["the configuration has changed"]);
    scene.pass(BEAT * 2);
    scene.shows(&[&logs[0]]);
}

proptest! {
    #[test]
    fn every_prefix_in_pieces_of_any_size(
        counts in prop::collection::vec(0_usize..12, 1..5),
        steps in prop::collection::vec(1_usize..6, 1..12),
        landing in 40_u32..3000,
        disk in 0_usize..4,
    ) {
        let logs = segments(&counts);
        let all: Vec<Vec<u8>> = logs.iter().flat_map(|log| log.appends.concat()).collect();
        // Every possible acknowledged end, in turn: each append of each segment.
        let ends = logs.iter().flat_map(|log| log.closures.iter().map(|closure| (log.identity.segment, *closure)));
        let mut ends = ends.skip(1).collect::<Vec<_>>().into_iter();
        let copy = |(i, log): (usize, &Log)| if i < disk && i + 1 < logs.len() { on_disk(log) } else { open(log) };
        let mut member = Member::new(1, logs.iter().enumerate().map(copy).collect());
        let Some(closed) = logs.iter().take(disk.min(logs.len() - 1)).next_back() else {
            member.ack(0);
            member.progress.acked = Lsn(0);
            member.progress.end = Position::new(SegmentId(1), logs[0].closures[0].end);
            return follow_steps(member, &mut ends, &steps, landing, &all);
        };
        // Closed segments are acknowledged.
        let at = closed.closures.last().unwrap();
        member.progress.acked = at.last;
        member.progress.end = Position::new(closed.identity.segment, at.end);
        let mut ends = ends.skip_while(|(segment, _)| *segment <= closed.identity.segment);
        follow_steps(member, &mut ends, &steps, landing, &all)?;
    }
}

fn follow_steps(
    member: Member,
    ends: &mut dyn Iterator<Item = (SegmentId, Closure)>,
    steps: &[usize],
    landing: u32,
    all: &[Vec<u8>],
) -> Result<(), TestCaseError> {
    let mut scene = Scene::new(1, landing, vec![member]);
    scene.pass(BEAT);
    for step in steps.iter().cycle() {
        let Some((segment, closure)) = ends.nth(step - 1) else { break };
        scene.members[0].progress.acked = closure.last;
        scene.members[0].progress.end = Position::new(segment, closure.end);
        scene.pass(IDLE_INTERVAL * 2);
        prop_assert_eq!(scene.shown.len() as u64, closure.last.0);
    }
    prop_assert!(scene.left.is_empty(), "{:?}", scene.left);
    for (i, (lsn, payload)) in scene.shown.iter().enumerate() {
        prop_assert_eq!((lsn.0, payload), (i as u64 + 1, &all[i]));
    }
    Ok(())
}
