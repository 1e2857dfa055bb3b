//! The primary's ack rule against a deliberately dumb model, and its bounds.

use std::collections::{BTreeMap, BTreeSet};

use crate::group::{config, holds_nothing, member};
use proptest::prelude::*;
use tailwind_protocol::config::{Configuration, Durability, MemberRef, Stamp, Swap, SwapOutcome, Time};
use tailwind_protocol::ids::{BootId, Epoch, Lsn, MemberId, Offset, Position, SegmentId, Version};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{
    INFLIGHT_MAX, Input, LINES_MAX, Output, Post, Primary, REPAIRS_MAX, Rules, SEGMENTS_MAX, Seat, StepDown,
};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{CopyReport, CopyState, Failure, Inventory};

fn rules(backups: u8) -> Rules {
    Rules {
        backups,
        min_in_sync: 1,
        durability: Durability::Memory,
        segment_size: SegmentSize::MIN,
        open_timeout_ms: 1000,
        recruit_interval_ms: 0,
        swap_interval_ms: 0,
    }
}

/// A primary whose members lend and close at once, except for those in `hung` and `full`.
struct Fixture {
    primary: Primary,
    now: Time,
    seats: BTreeMap<MemberId, Seat>,
    swap: Option<Swap>,
    recruits: bool,
    over: bool,
    segments: Vec<SegmentIdentity>,
    /// Members that do not answer a close.
    hung: BTreeSet<MemberId>,
    /// Members without a free buffer.
    full: BTreeSet<MemberId>,
    lost: Vec<MemberId>,
    closes: Vec<SegmentId>,
    /// Repairs under way.
    repairs: Vec<(Seat, SegmentId)>,
    /// The sources of the last repair.
    sources: Vec<MemberId>,
    /// Flushes that wait for an answer, and up to where.
    flushes: BTreeMap<MemberId, Position>,
}

impl Fixture {
    fn start(members: usize, backups: u8) -> Fixture {
        Fixture::start_with(members, rules(backups))
    }

    fn start_with(members: usize, rules: Rules) -> Fixture {
        let mut out = Vec::new();
        let now = Time(0);
        let primary = Primary::new(config(members), rules, &Reference::default(), 1, now, &mut out);
        let (seats, segments, hung, full, lost, closes, repairs, flushes) = Default::default();
        let (swap, recruits, over) = (None, false, false);
        let mut fixture = Fixture {
            primary,
            now,
            seats,
            swap,
            recruits,
            over,
            segments,
            hung,
            full,
            lost,
            closes,
            repairs,
            flushes,
            sources: Vec::new(),
        };
        fixture.carry(out);
        fixture
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        self.primary.step(self.now, input, &mut out);
        self.carry(out);
    }

    fn turn(&mut self) {
        let mut out = Vec::new();
        self.primary.turn(&mut out);
        self.carry(out);
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Connect(seat, member) => {
                    self.seats.insert(member.id, seat);
                    self.step(Input::Connected(seat));
                }
                Output::Prepare(identity) => {
                    self.segments.push(identity);
                    self.step(Input::Prepared(identity.segment));
                }
                Output::Open(seat, identity) if !self.is_among(&self.full, seat) => {
                    self.step(Input::Opened(seat, identity.segment));
                }
                Output::Close(seat, identity, _) if !self.is_among(&self.hung, seat) => {
                    self.closes.push(identity.segment);
                    self.step(Input::Closed(seat, identity.segment));
                }
                Output::Disconnect(seat) => {
                    self.lost.extend(self.seats.iter().find(|(_, s)| **s == seat).map(|(id, _)| id.clone()));
                    self.seats.retain(|_, known| *known != seat);
                }
                Output::Swap(swap) => self.swap = Some(swap),
                Output::Flush(seat, identity, end) => {
                    let id = self.seats.iter().find(|(_, known)| **known == seat).map(|(id, _)| id.clone());
                    let earlier = self.flushes.insert(id.expect("a member"), Position::new(identity.segment, end));
                    assert_eq!(earlier, None, "one flush at a time");
                }
                Output::Repair(seat, identity, _, sources) => {
                    self.repairs.push((seat, identity.segment));
                    self.sources = sources.into_iter().map(|source| source.id).collect();
                }
                Output::Survey => self.recruits = true,
                Output::StepDown(_) => self.over = true,
                _ => {}
            }
        }
    }

    fn is_among(&self, members: &BTreeSet<MemberId>, seat: Seat) -> bool {
        self.seats.iter().any(|(id, known)| *known == seat && members.contains(id))
    }

    fn recruit(&mut self, number: usize) -> Seat {
        self.recruit_as(member(number), holds_nothing(&member(number)));
        self.seats[&member(number).id]
    }

    /// The search for a spare finds this one.
    fn recruit_as(&mut self, spare: MemberRef, inventory: Inventory) {
        if !std::mem::take(&mut self.recruits) {
            self.step(Input::Tick);
            self.recruits = false;
        }
        self.step(Input::Surveyed(vec![spare.clone()]));
        self.step(Input::Fenced(spare, Ok(inventory)));
    }

    fn append(&mut self, end: u32) {
        self.primary.appended(Offset(end));
        self.turn();
    }

    fn post(&mut self, id: &MemberId) -> Option<Position> {
        let index = usize::from(self.seats.get(id)?.index);
        let (segment, _, to) = self.primary.next_post(index, u32::MAX)?;
        Some(Position::new(segment, to))
    }

    /// Answers the flush under way: on disk up to here.
    fn flushed(&mut self, id: &MemberId, end: u32) {
        let flush = self.flushes.remove(id).expect("a flush is under way");
        self.step(Input::Flushed(self.seats[id], Position::new(flush.segment, Offset(end))));
    }

    fn complete(&mut self, id: &MemberId, count: u32) {
        let index = usize::from(self.seats[id].index);
        self.primary.completed(index, count);
        self.turn();
    }
}

/// The ack rule, written without regard to speed: every member of the set, and while a swap is in flight also of the
/// proposed set, has completed it.
#[derive(Debug, Default)]
struct Model {
    completed: BTreeMap<MemberId, Position>,
    in_flight: BTreeMap<MemberId, Vec<Position>>,
    set: Vec<MemberId>,
    proposed: Option<Vec<MemberId>>,
    acked: Position,
}

impl Model {
    fn advance(&mut self) {
        let needed = self.set.iter().chain(self.proposed.iter().flatten());
        let least = needed.map(|id| self.completed.get(id).copied().unwrap_or_default()).min();
        self.acked = self.acked.max(least.unwrap_or_default());
    }
}

#[derive(Clone, Debug)]
enum Move {
    Append,
    Post(usize),
    Complete(usize, u32),
    Lose(usize),
    Recruit,
    Settle(Settling),
    Tick,
}

#[derive(Clone, Copy, Debug)]
enum Settling {
    Applied,
    Unknown,
    DoneBefore,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let settling = prop_oneof![
        3 => Just(Settling::Applied),
        2 => Just(Settling::Unknown),
        1 => Just(Settling::DoneBefore)
    ];
    let one = prop_oneof![
        6 => Just(Move::Append),
        8 => (1..7usize).prop_map(Move::Post),
        8 => (1..7usize, 1..3u32).prop_map(|(member, count)| Move::Complete(member, count)),
        1 => (1..7usize).prop_map(Move::Lose),
        2 => Just(Move::Recruit),
        2 => settling.prop_map(Move::Settle),
        1 => Just(Move::Tick),
    ];
    prop::collection::vec(one, 1..200)
}

proptest! {
    #[test]
    fn acks_match_a_naive_model(members in 1..4usize, moves in moves()) {
        let mut fixture = Fixture::start(members, 4);
        let mut model = Model { set: (1..=members).map(|n| member(n).id).collect(), ..Model::default() };
        for id in &model.set {
            model.completed.insert(id.clone(), Position::new(SegmentId(1), Offset(0)));
        }
        let (mut end, mut next) = (0, members + 1);
        for one in moves {
            if fixture.over {
                break;
            }
            match one {
                Move::Append if end < 60_000 => {
                    end += 72;
                    fixture.append(end);
                }
                Move::Post(number) => {
                    let id = member(number).id;
                    if let Some(to) = fixture.post(&id) {
                        model.in_flight.entry(id).or_default().push(to);
                    }
                }
                Move::Complete(number, count) => {
                    let id = member(number).id;
                    let in_flight = model.in_flight.entry(id.clone()).or_default();
                    if count as usize <= in_flight.len() && fixture.seats.contains_key(&id) {
                        let done: Vec<Position> = in_flight.drain(..count as usize).collect();
                        model.completed.insert(id.clone(), done[done.len() - 1]);
                        fixture.complete(&id, count);
                    }
                }
                Move::Lose(number) => {
                    let id = member(number).id;
                    if let Some(seat) = fixture.seats.get(&id).copied() {
                        model.in_flight.remove(&id);
                        fixture.step(Input::Lost(seat));
                    }
                }
                Move::Recruit if fixture.recruits => {
                    let spare = member(next);
                    next += 1;
                    model.completed.insert(spare.id.clone(), Position::new(SegmentId(1), Offset(0)));
                    let inventory = holds_nothing(&spare);
                    fixture.recruit_as(spare, inventory);
                }
                Move::Settle(settling) => {
                    let Some(swap) = fixture.swap.take() else { continue };
                    let applied = SwapOutcome::Applied;
                    let outcome = match settling {
                        Settling::Applied => applied,
                        Settling::Unknown => SwapOutcome::Unknown,
                        Settling::DoneBefore => SwapOutcome::Conflict(Some(swap.proposed.clone())),
                    };
                    if !matches!(settling, Settling::Unknown) {
                        model.proposed = None;
                        model.set = swap.proposed.members.iter().map(|member| member.id.clone()).collect();
                    }
                    model.advance();
                    fixture.step(Input::Swapped(outcome));
                }
                Move::Tick => {
                    fixture.now = fixture.now.plus(10);
                    fixture.step(Input::Tick);
                }
                _ => {}
            }
            model.advance();
            prop_assert_eq!(fixture.primary.acked(), model.acked);
            prop_assert!(fixture.primary.positions().hold());
            if let Some(swap) = &fixture.swap {
                let proposed: Vec<MemberId> = swap.proposed.members.iter().map(|member| member.id.clone()).collect();
                for id in proposed.iter().filter(|id| !model.set.contains(id) && model.proposed.is_none()) {
                    prop_assert!(model.completed[id] >= model.acked, "{} is proposed before it has caught up (S8)", id);
                }
                prop_assert_eq!(swap.expected, Some(Stamp { epoch: Epoch(1), version: fixture.primary.config().version }));
                model.proposed = Some(proposed);
            }
        }
    }
}

#[test]
fn swap_outcome_is_judged_by_the_stored_configuration() {
    let proposed = config(2);
    let other = config(3);
    let newer = Configuration { epoch: Epoch(2), ..config(2) };
    let table = [
        (SwapOutcome::Applied, SwapOutcome::Applied),
        (SwapOutcome::Unknown, SwapOutcome::Unknown),
        (SwapOutcome::Conflict(Some(proposed.clone())), SwapOutcome::Applied),
        (SwapOutcome::Conflict(Some(other.clone())), SwapOutcome::Conflict(Some(other))),
        (SwapOutcome::Conflict(Some(newer.clone())), SwapOutcome::Conflict(Some(newer))),
        (SwapOutcome::Conflict(None), SwapOutcome::Conflict(None)),
    ];
    for (outcome, settled) in table {
        assert_eq!(outcome.clone().settle(&proposed), settled, "{outcome:?}");
    }
}

#[test]
fn posts_in_flight_are_bounded() {
    let mut fixture = Fixture::start(1, 1);
    let id = member(1).id;
    let most = (INFLIGHT_MAX - LINES_MAX) as u32;
    for post in 1..=most {
        fixture.append(72 * post);
        assert!(fixture.post(&id).is_some());
    }
    fixture.append(72 * (most + 2));
    assert_eq!(fixture.post(&id), None, "the rest is for the board");
    fixture.complete(&id, 1);
    let rest = Offset(72 * (most + 2));
    assert_eq!(fixture.post(&id), Some(Position::new(SegmentId(1), rest)), "one request carries everything since");
}

/// Fills the active segment and rolls; false when there is no next one.
fn fill(fixture: &mut Fixture, segment: u64) -> bool {
    let end = 60_000;
    fixture.append(end);
    let (first, last) = (Lsn(segment * 10 - 9), Lsn(segment * 10));
    let mut out = Vec::new();
    let closure = Closure { first, last, end: Offset(end), chain: Chain(0) };
    let rolled = fixture.primary.roll(closure, &mut out).is_some();
    fixture.carry(out);
    for id in fixture.seats.keys().cloned().collect::<Vec<_>>() {
        while fixture.post(&id).is_some() {
            fixture.complete(&id, 1);
        }
    }
    rolled
}

#[test]
fn member_that_never_closes_is_dropped_at_the_segment_bound() {
    let mut fixture = Fixture::start(2, 2);
    fixture.hung.insert(member(2).id);
    for segment in 1..SEGMENTS_MAX as u64 {
        assert!(fill(&mut fixture, segment), "segment {segment}");
    }
    assert!(!fill(&mut fixture, SEGMENTS_MAX as u64), "the open end is full: back-pressure");
    assert_eq!(fixture.segments.len(), SEGMENTS_MAX);
    fixture.step(Input::Tick);
    fixture.now = fixture.now.plus(1000);
    fixture.step(Input::Tick);
    assert_eq!(fixture.lost, [member(2).id], "only this member stalls the open end");
    assert!(fixture.swap.is_some());
}

#[test]
fn unclosed_segment_is_not_forgotten() {
    let mut fixture = Fixture::start(2, 2);
    fixture.append(60_000);
    let mut out = Vec::new();
    let closure = Closure { first: Lsn(1), last: Lsn(10), end: Offset(60_000), chain: Chain(0) };
    assert!(fixture.primary.roll(closure, &mut out).is_some());
    fixture.carry(out);
    // m1 is lost, and m2 before the swap is answered. Only the primary still has segment 1.
    for number in [1, 2] {
        let seat = fixture.seats[&member(number).id];
        let mut out = Vec::new();
        fixture.primary.step(fixture.now, Input::Lost(seat), &mut out);
        assert!(!out.iter().any(|output| matches!(output, Output::Forget(..))), "{out:?}");
        fixture.carry(out);
    }
    assert!(fixture.primary.closed().is_empty());
}

#[test]
fn barrier_needs_a_later_post_at_every_member() {
    let mut fixture = Fixture::start(2, 2);
    let ids = [member(1).id, member(2).id];
    fixture.append(72);
    for id in &ids {
        assert!(fixture.post(id).is_some());
    }
    let barrier = fixture.primary.barrier();
    for id in &ids {
        fixture.complete(id, 1);
    }
    assert!(!fixture.primary.passed(barrier), "these were posted before it");
    for (id, passed) in ids.iter().zip([false, true]) {
        let index = usize::from(fixture.seats[id].index);
        assert_eq!(fixture.primary.probe(index, barrier), Some(SegmentId(1)));
        assert_eq!(fixture.primary.probe(index, barrier), None, "one is enough");
        fixture.complete(id, 1);
        assert_eq!(fixture.primary.passed(barrier), passed);
    }
}

#[test]
fn close_waits_for_a_barriers_empty_write() {
    let mut fixture = Fixture::start(1, 1);
    let id = member(1).id;
    fixture.append(60_000);
    assert!(fixture.post(&id).is_some());
    let index = usize::from(fixture.seats[&id].index);
    assert_eq!(fixture.primary.probe(index, fixture.primary.barrier()), Some(SegmentId(1)));
    let mut out = Vec::new();
    let closure = Closure { first: Lsn(1), last: Lsn(10), end: Offset(60_000), chain: Chain(0) };
    assert!(fixture.primary.roll(closure, &mut out).is_some());
    fixture.carry(out);
    fixture.complete(&id, 1);
    assert_eq!(fixture.primary.acked(), Position::new(SegmentId(1), Offset(60_000)));
    assert_eq!(
        fixture.closes,
        [],
        "the empty write would meet a buffer that is no longer lent, and fail its queue pair"
    );
    fixture.complete(&id, 1);
    assert_eq!(fixture.closes, [SegmentId(1)]);
}

/// Two members that flush, and appends that end at each of these offsets, completed everywhere.
fn flushing(ends: &[u32]) -> (Fixture, [MemberId; 2]) {
    let mut fixture = Fixture::start_with(2, Rules { durability: Durability::Flushed, ..rules(2) });
    let ids = [member(1).id, member(2).id];
    for end in ends {
        complete_everywhere(&mut fixture, &ids, *end);
    }
    (fixture, ids)
}

fn complete_everywhere(fixture: &mut Fixture, ids: &[MemberId], end: u32) {
    fixture.append(end);
    for id in ids {
        assert!(fixture.post(id).is_some());
        fixture.complete(id, 1);
    }
}

fn first(end: u32) -> Position {
    Position::new(SegmentId(1), Offset(end))
}

#[test]
fn incomplete_flush_is_requested_again() {
    let (mut fixture, [one, two]) = flushing(&[144, 300]);
    assert_eq!(fixture.flushes[&one], first(144), "the rest has completed since");
    fixture.flushed(&one, 144);
    fixture.flushed(&two, 72);
    assert_eq!(fixture.primary.acked(), first(72), "no further than the slowest member");
    assert_eq!(fixture.flushes[&two], first(300), "progress: the rest is requested at once");
    fixture.flushed(&one, 300);
    fixture.flushed(&two, 72);
    assert_eq!(fixture.flushes.get(&two), None, "no progress: it is not requested again yet");
    fixture.turn();
    assert_eq!(fixture.flushes.get(&two), None);
    fixture.step(Input::Tick);
    assert_eq!(fixture.flushes[&two], first(300));
    fixture.flushed(&two, 72);
    complete_everywhere(&mut fixture, &[one.clone(), two.clone()], 400);
    assert_eq!(fixture.flushes[&two], first(400), "more has completed");
    fixture.flushed(&two, 300);
    assert_eq!(fixture.primary.acked(), first(300));
    fixture.flushed(&one, 400);
    fixture.flushed(&two, 400);
    assert_eq!((fixture.primary.acked(), fixture.flushes.len()), (first(400), 0));
    assert!(fixture.primary.positions().hold());
}

/// Lets this much time pass; each flush in flight gets the same answer each time.
fn wait(fixture: &mut Fixture, ms: u64, answers: &[(&MemberId, u32)]) {
    for _ in 0..ms / 100 {
        fixture.now = fixture.now.plus(100);
        fixture.step(Input::Tick);
        for (id, end) in answers {
            if fixture.flushes.contains_key(*id) {
                fixture.flushed(id, *end);
            }
        }
    }
}

#[test]
fn member_that_flushes_nothing_is_dropped() {
    let (mut fixture, [one, two]) = flushing(&[144]);
    fixture.flushed(&one, 144);
    // A bit has flipped behind its first 72 bytes.
    wait(&mut fixture, 900, &[(&two, 72)]);
    assert_eq!(fixture.lost, []);
    wait(&mut fixture, 300, &[(&two, 72)]);
    assert_eq!(fixture.lost, [two], "only this member stalls the acks");
    let swap = fixture.swap.take().expect("it is swapped out");
    assert_eq!(swap.proposed.members.len(), 1);
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert_eq!(fixture.primary.acked(), first(144));
}

#[test]
fn member_with_a_hung_disk_is_dropped_but_a_slow_one_is_not() {
    let (mut fixture, [one, two]) = flushing(&[]);
    for end in [144, 200, 300] {
        complete_everywhere(&mut fixture, &[one.clone(), two.clone()], end);
        fixture.flushed(&one, end);
        wait(&mut fixture, 900, &[]);
        fixture.flushed(&two, end);
        assert_eq!(fixture.lost, [], "acks continue, if slowly");
    }
    complete_everywhere(&mut fixture, &[one.clone(), two.clone()], 400);
    fixture.flushed(&one, 400);
    wait(&mut fixture, 1200, &[]);
    assert_eq!(fixture.lost, [two]);
}

#[test]
fn no_member_is_dropped_if_none_flushes() {
    let (mut fixture, [one, two]) = flushing(&[144]);
    wait(&mut fixture, 5000, &[(&one, 0), (&two, 0)]);
    assert_eq!(fixture.lost, []);
    assert!(!fixture.over);
    for id in [&one, &two] {
        if !fixture.flushes.contains_key(id) {
            fixture.step(Input::Tick);
        }
        fixture.flushed(id, 144);
    }
    assert_eq!(fixture.primary.acked(), first(144));
    wait(&mut fixture, 5000, &[]);
    assert_eq!(fixture.lost, [], "idle is not slow");
}

/// Its connection takes writes and answers none; its heartbeats go another way.
#[test]
fn member_that_never_confirms_is_dropped() {
    let mut fixture = Fixture::start(3, 3);
    let [one, two, three] = [member(1).id, member(2).id, member(3).id];
    fixture.append(144);
    for id in [&one, &two, &three] {
        assert!(fixture.post(id).is_some());
    }
    fixture.complete(&one, 1);
    fixture.complete(&two, 1);
    wait(&mut fixture, 1000, &[]);
    assert_eq!(fixture.lost, []);
    wait(&mut fixture, 200, &[]);
    assert_eq!(fixture.lost, std::slice::from_ref(&three));
    let swap = fixture.swap.take().expect("it is swapped out");
    assert_eq!(swap.proposed.members.len(), 2);
    assert_eq!(swap.proposed.member(&three), None);
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert_eq!(fixture.primary.acked(), first(144));
}

#[test]
fn no_member_is_dropped_if_too_few_others_confirm() {
    let mut fixture = Fixture::start_with(3, Rules { min_in_sync: 2, ..rules(3) });
    let ids = [member(1).id, member(2).id, member(3).id];
    fixture.append(144);
    for id in &ids {
        assert!(fixture.post(id).is_some());
    }
    fixture.complete(&ids[0], 1);
    wait(&mut fixture, 5000, &[]);
    assert_eq!(fixture.lost, []);
    // The time of the last begins when enough others have it.
    fixture.complete(&ids[1], 1);
    wait(&mut fixture, 1000, &[]);
    assert_eq!(fixture.lost, []);
    fixture.complete(&ids[2], 1);
    wait(&mut fixture, 5000, &[]);
    assert_eq!(fixture.lost, [], "idle is not slow");
    assert_eq!(fixture.primary.acked(), first(144));
}

/// Three members that have confirmed an append, each with an empty write in flight, and the barrier that these are for.
fn probed(min_in_sync: u8) -> (Fixture, [MemberId; 3], Post) {
    let mut fixture = Fixture::start_with(3, Rules { min_in_sync, ..rules(3) });
    let ids = [member(1).id, member(2).id, member(3).id];
    complete_everywhere(&mut fixture, &ids, 144);
    let barrier = fixture.primary.barrier();
    for id in &ids {
        assert!(fixture.primary.probe(usize::from(fixture.seats[id].index), barrier).is_some());
    }
    (fixture, ids, barrier)
}

/// Otherwise no barrier would pass until somebody appends.
#[test]
fn idle_member_that_confirms_no_barrier_is_dropped() {
    for slow in 0..3 {
        let (mut fixture, ids, barrier) = probed(1);
        wait(&mut fixture, 5000, &[]);
        assert_eq!(fixture.lost, [], "no other member has confirmed more");
        for id in ids.iter().filter(|id| **id != ids[slow]) {
            fixture.complete(id, 1);
        }
        wait(&mut fixture, 1000, &[]);
        assert_eq!((fixture.lost.as_slice(), fixture.primary.passed(barrier)), (&[][..], false));
        wait(&mut fixture, 200, &[]);
        assert_eq!(fixture.lost, std::slice::from_ref(&ids[slow]));
        fixture.step(Input::Swapped(SwapOutcome::Applied));
        assert!(fixture.primary.passed(barrier));
    }
}

#[test]
fn idle_member_stays_if_too_few_others_confirm() {
    let (mut fixture, ids, barrier) = probed(2);
    fixture.complete(&ids[0], 1);
    wait(&mut fixture, 5000, &[]);
    assert_eq!(fixture.lost, []);
    fixture.complete(&ids[1], 1);
    wait(&mut fixture, 1000, &[]);
    assert_eq!(fixture.lost, [], "its time begins when enough others have confirmed");
    fixture.complete(&ids[2], 1);
    wait(&mut fixture, 5000, &[]);
    assert_eq!((fixture.lost.as_slice(), fixture.primary.passed(barrier)), (&[][..], true));
}

/// The log could not be recovered from it alone: what it drops lies where the log was trimmed.
#[test]
fn newcomer_is_proposed_after_its_drops() {
    let mut fixture = Fixture::start(1, 2);
    fixture.step(Input::Tick);
    let spare = member(2);
    let identity = SegmentIdentity { segment: SegmentId(7), ..fixture.segments[0] };
    let closure = Closure { first: Lsn(50), last: Lsn(60), end: Offset(500), chain: Chain(1) };
    let alien = CopyReport { identity, state: CopyState::Open, closure, acked: Offset(0) };
    let inventory = Inventory { copies: vec![alien], ..holds_nothing(&spare) };
    fixture.recruit_as(spare.clone(), inventory);
    assert_eq!(fixture.swap, None);
    fixture.step(Input::Tidied(fixture.seats[&spare.id]));
    assert!(fixture.swap.as_ref().is_some_and(|swap| swap.proposed.members.contains(&spare)));
}

/// A later epoch was in the config store before any backup could promise it (S17).
#[test]
fn spare_that_names_a_later_epoch_deposes_nobody_without_the_store() {
    let mut fixture = Fixture::start_with(1, Rules { recruit_interval_ms: 250, ..rules(2) });
    fixture.step(Input::Tick);
    let mut step = |at, input| {
        let mut out = Vec::new();
        fixture.primary.step(Time(at), input, &mut out);
        out
    };
    let (liar, other, mine) = (member(2), member(3), config(1));
    assert_eq!(step(0, Input::Surveyed(vec![liar.clone(), other.clone()])), [Output::Fence(liar.clone())]);
    let later = Epoch(mine.epoch.0 + 9);
    let word = || Input::Fenced(liar.clone(), Err(Failure::Superseded(later)));
    assert_eq!(step(0, word()), [Output::ReadConfig]);
    let unknown = || Input::Read(Ok(Some(mine.clone())));
    assert_eq!(step(0, unknown()), [Output::Fence(other.clone())], "the next one is tried");
    assert_eq!(step(0, Input::Fenced(other, Err(Failure::Unreachable("no answer".to_owned())))), []);
    assert_eq!(step(250, Input::Tick), [Output::Survey]);
    assert_eq!(step(250, Input::Surveyed(vec![liar.clone()])), [Output::Fence(liar.clone())]);
    assert_eq!(step(250, word()), [Output::ReadConfig]);
    assert_eq!(step(250, unknown()), []);
    assert_eq!(step(500, Input::Tick), [Output::Survey]);
    assert_eq!(step(500, Input::Surveyed(vec![liar.clone()])), [], "it is left alone for longer each time");
    // A deposed primary that has lost nobody may learn it from a spare alone.
    assert_eq!(step(5000, Input::Tick), [Output::Survey]);
    assert_eq!(step(5000, Input::Surveyed(vec![liar.clone()])), [Output::Fence(liar.clone())]);
    assert_eq!(step(5000, word()), [Output::ReadConfig]);
    let successor = Configuration { epoch: later, version: Version(mine.version.0 + 9), ..mine.clone() };
    let superseded = Output::StepDown(StepDown::Superseded(later));
    assert!(step(5000, Input::Read(Ok(Some(successor)))).contains(&superseded));
}

/// A group of one with two closed segments, looking for more members.
fn with_two_closed(backups: u8) -> Fixture {
    let mut fixture = Fixture::start(1, backups);
    assert!(fill(&mut fixture, 1) && fill(&mut fixture, 2));
    assert_eq!(fixture.primary.closed().len(), 2);
    fixture.step(Input::Tick);
    fixture
}

/// Its pool is in use, so it refuses every open for now.
#[test]
fn newcomer_that_lends_nothing_is_given_up() {
    let mut fixture = Fixture::start(1, 2);
    fixture.full.insert(member(2).id);
    fixture.step(Input::Tick);
    fixture.recruit(2);
    wait(&mut fixture, 2000, &[]);
    assert_eq!(fixture.lost, []);
    fixture.recruits = false;
    wait(&mut fixture, 100, &[]);
    assert_eq!(fixture.lost, [member(2).id]);
    assert!(fixture.recruits && !fixture.over, "there may be a better one");
}

#[test]
fn newcomer_without_an_image_is_given_up_but_a_slow_one_is_not() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.recruit(2);
    for segment in [1, 2] {
        wait(&mut fixture, 1900, &[]);
        assert_eq!((fixture.lost.as_slice(), &fixture.swap), (&[][..], &None));
        fixture.step(Input::Installed(seat, SegmentId(segment)));
    }
    // Now it waits for the config store.
    assert!(fixture.swap.is_some());
    wait(&mut fixture, 5000, &[]);
    assert_eq!(fixture.lost, []);
    fixture.step(Input::Swapped(SwapOutcome::Applied));

    let mut fixture = with_two_closed(2);
    let seat = fixture.recruit(2);
    fixture.step(Input::Installed(seat, SegmentId(1)));
    wait(&mut fixture, 2100, &[]);
    assert_eq!(fixture.lost, [member(2).id]);
}

/// Few images are copied at once over all newcomers, so a newcomer may have to wait.
#[test]
fn newcomer_may_wait_for_images_of_another() {
    let mut fixture = with_two_closed(3);
    let (two, _) = (fixture.recruit(2), fixture.recruit(3));
    for segment in [1, 2] {
        wait(&mut fixture, 1900, &[]);
        fixture.step(Input::Installed(two, SegmentId(segment)));
    }
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    wait(&mut fixture, 1900, &[]);
    assert_eq!(fixture.lost, []);
    wait(&mut fixture, 200, &[]);
    assert_eq!(fixture.lost, [member(3).id]);
}

/// The group is edited: more copies are recruited, and lost ones beyond a smaller number are not replaced.
#[test]
fn changed_number_of_copies_takes_effect_at_once() {
    let mut fixture = Fixture::start(2, 2);
    wait(&mut fixture, 100, &[]);
    assert!(!fixture.recruits, "two of two");
    fixture.step(Input::Wanted { backups: 3, min_in_sync: 2 });
    wait(&mut fixture, 100, &[]);
    assert!(fixture.recruits);
    fixture.recruit(3);
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert_eq!(fixture.primary.config().members.len(), 3);

    fixture.recruits = false;
    fixture.step(Input::Wanted { backups: 2, min_in_sync: 2 });
    fixture.step(Input::Lost(fixture.seats[&member(1).id]));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    wait(&mut fixture, 100, &[]);
    assert_eq!((fixture.primary.config().members.len(), fixture.recruits), (2, false));
    fixture.swap = None;
    fixture.step(Input::Lost(fixture.seats[&member(2).id]));
    assert_eq!(fixture.swap, None, "one is left, and two are needed now");
}

/// Three members of which two are needed: m2 and m3 are lost, and the swap without m2 has no answer.
fn short() -> Fixture {
    let mut fixture = Fixture::start_with(3, Rules { min_in_sync: 2, ..rules(3) });
    fixture.append(72);
    for number in 1..=3 {
        assert!(fixture.post(&member(number).id).is_some());
        fixture.complete(&member(number).id, 1);
    }
    fixture.append(144);
    for number in 2..=3 {
        fixture.step(Input::Lost(fixture.seats[&member(number).id]));
        fixture.swap.take_if(|_| number == 2);
    }
    fixture
}

/// The swap to two members has no answer yet when the next one is lost.
#[test]
fn primary_with_too_few_members_waits_before_stepping_down() {
    let mut fixture = short();
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert!(!fixture.over && fixture.primary.config().members.len() == 2);
    assert!(fixture.post(&member(1).id).is_some());
    fixture.complete(&member(1).id, 1);
    wait(&mut fixture, 15_000, &[]);
    assert_eq!((fixture.over, fixture.primary.acked()), (false, first(72)), "the lost member is still required");
    wait(&mut fixture, 200, &[]);
    assert!(fixture.over, "another sidecar may reach it");
}

/// More are wanted than the set has. A sidecar that reaches the whole set must not take itself to be cut off.
#[test]
fn primary_needs_no_more_members_than_the_set_has() {
    let mut fixture = Fixture::start_with(2, Rules { min_in_sync: 3, ..rules(3) });
    let mut out = Vec::new();
    for number in [1, 2] {
        fixture.primary.step(fixture.now, Input::Lost(fixture.seats[&member(number).id]), &mut out);
    }
    let why = out.iter().find(|output| matches!(output, Output::StepDown(_)));
    assert_eq!(why, Some(&Output::StepDown(StepDown::TooFewMembers { left: 0, needed: 2 })));
}

#[test]
fn returned_member_with_its_memory_ends_the_wait() {
    let mut fixture = short();
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.step(Input::Tick);
    let mut out = Vec::new();
    fixture.primary.step(fixture.now, Input::Surveyed(vec![member(3), member(2)]), &mut out);
    assert!(out.iter().any(|output| matches!(output, Output::StepDown(_))), "{out:?}");
    let asked = |output: &Output| matches!(output, Output::Fence(found) if *found == member(3));
    assert!(!out.iter().any(asked), "it is not fenced: a promotion may need all that it holds");
}

/// The swap may have been applied, or may still be: a primary that takes this for a refusal acknowledges without members that
/// a promotion will ask.
#[test]
fn conflict_with_an_older_configuration_is_no_refusal() {
    for found in [None, Some(config(1)), Some(config(0))] {
        let mut fixture = Fixture::start(3, 3);
        fixture.append(72);
        fixture.step(Input::Lost(fixture.seats[&member(3).id]));
        assert!(fixture.swap.is_some() && !fixture.over);
        fixture.step(Input::Swapped(SwapOutcome::Conflict(found.clone())));
        assert!(fixture.over, "{found:?}");
    }
}

/// The same name with other memory.
fn emptied(number: usize) -> MemberRef {
    MemberRef { boot: BootId(100 + number as u128), ..member(number) }
}

#[test]
fn member_without_its_memory_is_refilled_in_one_swap() {
    let mut fixture = short();
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.recruit_as(emptied(3), holds_nothing(&emptied(3)));
    let id = member(3).id;
    assert!(fixture.post(&id).is_some(), "from the beginning of the segment");
    assert_eq!(fixture.swap, None, "it has not completed what is acknowledged");
    fixture.complete(&id, 1);
    let swap = fixture.swap.clone().expect("it has caught up");
    assert_eq!(swap.proposed.members, [member(1), emptied(3)]);
    assert_eq!(fixture.primary.acked(), first(72), "the old set is required until the swap has happened");
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert!(fixture.post(&member(1).id).is_some());
    fixture.complete(&member(1).id, 1);
    assert_eq!(fixture.primary.acked(), first(144));
    assert!(!fixture.over && fixture.primary.roster().count() == 2);
}

#[test]
fn primary_stays_if_a_promotion_could_not_win() {
    let mut fixture = short();
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.full.insert(member(3).id);
    fixture.recruit_as(emptied(3), holds_nothing(&emptied(3)));
    wait(&mut fixture, 60_000, &[]);
    assert!(!fixture.over, "what m3 held is gone");
    fixture.full.clear();
    fixture.recruit_as(emptied(3), holds_nothing(&emptied(3)));
    assert!(fixture.post(&member(3).id).is_some());
    fixture.complete(&member(3).id, 1);
    assert!(fixture.swap.is_some());
}

/// Segment 1 is sealed and not fully acknowledged when acks stop: it cannot be closed, so it cannot come as an image.
#[test]
fn newcomer_is_posted_the_segment_that_cannot_close_yet() {
    let mut fixture = short();
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    let mut out = Vec::new();
    let closure = Closure { first: Lsn(1), last: Lsn(2), end: Offset(144), chain: Chain(0) };
    assert!(fixture.primary.roll(closure, &mut out).is_some());
    fixture.carry(out);
    fixture.append(72);
    fixture.recruit_as(emptied(3), holds_nothing(&emptied(3)));
    let id = member(3).id;
    assert_eq!(fixture.post(&id), Some(first(144)));
    assert_eq!(fixture.post(&id), Some(Position::new(SegmentId(2), Offset(72))));
    fixture.complete(&id, 1);
    assert!(fixture.swap.take().is_some_and(|swap| swap.proposed.members.contains(&emptied(3))));
    assert_eq!(fixture.closes, []);
}

#[test]
fn flushed_newcomer_counts_by_its_disk_only() {
    let (mut fixture, [one, two]) = flushing(&[]);
    fixture.step(Input::Lost(fixture.seats[&two]));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    complete_everywhere(&mut fixture, std::slice::from_ref(&one), 144);
    fixture.flushed(&one, 144);
    fixture.swap = None;
    fixture.recruit_as(emptied(2), holds_nothing(&emptied(2)));
    complete_everywhere(&mut fixture, &[one.clone(), two.clone()], 60_000);
    let mut out = Vec::new();
    let closure = Closure { first: Lsn(1), last: Lsn(10), end: Offset(60_000), chain: Chain(0) };
    assert!(fixture.primary.roll(closure, &mut out).is_some());
    fixture.carry(out);
    fixture.flushed(&one, 60_000);
    assert_eq!(
        (fixture.primary.acked(), fixture.closes.len()),
        (first(60_000), 1),
        "acks do not wait for the newcomer"
    );
    assert!(fixture.primary.closed().is_empty(), "the newcomer has it in memory only, and would never flush it");
    fixture.flushed(&two, 60_000);
    assert_eq!((fixture.closes.len(), fixture.primary.closed().len()), (2, 1));
    assert!(fixture.swap.is_some());
}

/// A backup that lent a segment earlier in this epoch frees that buffer at a trim once it has a later segment.
#[test]
fn trim_is_sent_again_after_the_newcomers_last_image() {
    let mut fixture = with_two_closed(2);
    fixture.step(Input::Trim(Lsn(11)));
    let spare = member(2);
    let mut out = Vec::new();
    fixture.step(Input::Surveyed(vec![spare.clone()]));
    fixture.primary.step(fixture.now, Input::Fenced(spare.clone(), Ok(holds_nothing(&spare))), &mut out);
    let seat = out.iter().find_map(Output::seat).expect("it takes a seat");
    fixture.primary.step(fixture.now, Input::Connected(seat), &mut out);
    let is_trim = |output: &Output| matches!(output, Output::Trim(..));
    assert_eq!(out.iter().filter(|output| is_trim(output)).count(), 1);
    fixture.carry(out);
    fixture.step(Input::Tidied(seat));
    let mut out = Vec::new();
    fixture.primary.step(fixture.now, Input::Installed(seat, SegmentId(2)), &mut out);
    assert!(out.contains(&Output::Trim(seat, Lsn(11))), "{out:?}");
}

#[test]
fn retired_primary_steps_down() {
    let mut fixture = Fixture::start(2, 2);
    fixture.step(Input::Retire);
    assert!(fixture.over && fixture.primary.is_over());
}

/// A report that these closed segments of epoch 1 are corrupt.
fn corrupt(fixture: &Fixture, segments: &[u64]) -> Vec<CopyReport> {
    let copy = |(identity, closure): &(SegmentIdentity, Closure)| CopyReport {
        identity: *identity,
        state: CopyState::Corrupt,
        closure: *closure,
        acked: Offset(0),
    };
    fixture.primary.closed().iter().filter(|(at, _)| segments.contains(&at.segment.0)).map(copy).collect()
}

#[test]
fn corrupt_copy_is_repaired_at_its_member() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.seats[&member(1).id];
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1, 2])));
    assert_eq!((fixture.repairs.clone(), fixture.primary.damaged(&member(1))), (vec![(seat, SegmentId(1))], 2));
    // A repeated report starts no second repair.
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1, 2])));
    assert_eq!(fixture.repairs.len(), REPAIRS_MAX);
    fixture.step(Input::Repaired(seat, SegmentId(1)));
    assert_eq!(fixture.repairs, [(seat, SegmentId(1)), (seat, SegmentId(2))]);
    fixture.step(Input::Repaired(seat, SegmentId(2)));
    assert_eq!((fixture.primary.damaged(&member(1)), fixture.repairs.len()), (0, 2));
    assert_eq!((fixture.lost.as_slice(), fixture.over), (&[][..], false));
    // Open segments are not repaired, nor are those that are not part of the log.
    let mut open = corrupt(&fixture, &[1]);
    open[0].identity.segment = SegmentId(3);
    fixture.step(Input::Damaged(seat, open));
    assert_eq!((fixture.primary.damaged(&member(1)), fixture.repairs.len()), (0, 2));
}

/// Without a sound copy the member stays, its other copies are repaired, and the repair is retried later.
#[test]
fn failed_repair_loses_no_member() {
    let mut fixture = with_two_closed(1);
    let seat = fixture.seats[&member(1).id];
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1, 2])));
    fixture.step(Input::RepairFailed(seat, SegmentId(1)));
    assert_eq!(fixture.repairs, [(seat, SegmentId(1)), (seat, SegmentId(2))]);
    fixture.step(Input::Repaired(seat, SegmentId(2)));
    for _ in 0..14 {
        wait(&mut fixture, 1000, &[]);
        fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1])));
    }
    assert_eq!((fixture.repairs.len(), fixture.primary.damaged(&member(1))), (2, 1));
    wait(&mut fixture, 1100, &[]);
    assert_eq!(fixture.repairs.last(), Some(&(seat, SegmentId(1))));
    assert_eq!((fixture.repairs.len(), fixture.lost.as_slice(), fixture.over), (3, &[][..], false));
}

#[test]
fn damage_ends_with_a_trim_or_the_loss_of_the_member() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.seats[&member(1).id];
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1])));
    assert_eq!(fixture.primary.damaged(&member(1)), 1);
    let first = fixture.primary.closed()[1].1.first;
    fixture.step(Input::Trim(first));
    assert_eq!(fixture.primary.damaged(&member(1)), 0);
    fixture.step(Input::RepairFailed(seat, SegmentId(1)));
    wait(&mut fixture, 20_000, &[]);
    fixture.step(Input::Lost(seat));
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[2])));
    assert_eq!((fixture.repairs.len(), fixture.primary.damaged(&member(1))), (1, 0));
}

/// Otherwise it would count as a holder of a segment that it does not hold.
#[test]
fn newcomer_with_a_corrupt_copy_does_not_join() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.recruit(2);
    fixture.step(Input::Installed(seat, SegmentId(1)));
    fixture.step(Input::Damaged(seat, corrupt(&fixture, &[1])));
    fixture.step(Input::Installed(seat, SegmentId(2)));
    assert_eq!((fixture.repairs.as_slice(), &fixture.swap), (&[(seat, SegmentId(1))][..], &None));
    fixture.step(Input::Repaired(seat, SegmentId(1)));
    assert!(fixture.swap.is_some());
}

/// Only members that should have a sound copy, and not always the same one first.
#[test]
fn repair_names_sound_sources() {
    let mut fixture = Fixture::start(3, 3);
    assert!(fill(&mut fixture, 1) && fill(&mut fixture, 2));
    assert_eq!(fixture.primary.closed().len(), 2);
    let [one, two, three] = [1, 2, 3].map(|number| fixture.seats[&member(number).id]);
    fixture.step(Input::Damaged(one, corrupt(&fixture, &[1, 2])));
    let first = fixture.sources.clone();
    assert_eq!(first.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&member(2).id, &member(3).id]));
    fixture.step(Input::Repaired(one, SegmentId(1)));
    assert_eq!(fixture.sources, [first[1].clone(), first[0].clone()], "the next segment begins with another one");
    fixture.step(Input::Damaged(two, corrupt(&fixture, &[1])));
    fixture.step(Input::Repaired(one, SegmentId(2)));
    assert_eq!(fixture.repairs.last(), Some(&(two, SegmentId(1))));
    fixture.step(Input::Repaired(two, SegmentId(1)));
    fixture.step(Input::Damaged(three, corrupt(&fixture, &[1])));
    fixture.step(Input::Damaged(one, corrupt(&fixture, &[1])));
    fixture.step(Input::Repaired(three, SegmentId(1)));
    assert_eq!(fixture.repairs.last(), Some(&(one, SegmentId(1))));
    fixture.step(Input::Repaired(one, SegmentId(1)));
    fixture.step(Input::Damaged(two, corrupt(&fixture, &[2])));
    fixture.step(Input::Damaged(one, corrupt(&fixture, &[2])));
    assert_eq!(fixture.repairs.last(), Some(&(two, SegmentId(2))));
    fixture.step(Input::RepairFailed(two, SegmentId(2)));
    assert_eq!(fixture.sources, [member(3).id], "no copy that is known to be corrupt");
}

/// What the app no longer needs, a newcomer does not either, however little of the log it has by then.
#[test]
fn trim_passes_what_a_newcomer_lacks() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.recruit(2);
    fixture.step(Input::Trim(fixture.primary.closed()[1].1.first));
    fixture.step(Input::InstallFailed(seat, SegmentId(1)));
    assert_eq!(fixture.lost, [], "no source has segment 1 any more");
    fixture.step(Input::Installed(seat, SegmentId(2)));
    assert_eq!(fixture.swap, None, "alone, it would take what was trimmed for a loss");
    fixture.step(Input::Tidied(seat));
    assert!(fixture.swap.is_some(), "it lacks nothing");
}

/// Earlier trims are answered first, and trims that wait are merged.
#[test]
fn newcomer_joins_once_it_knows_of_the_trim_of_what_it_lacked() {
    let mut fixture = Fixture::start(1, 2);
    assert!((1..=4).all(|segment| fill(&mut fixture, segment)));
    fixture.step(Input::Tick);
    fixture.step(Input::Trim(fixture.primary.closed()[1].1.first));
    let seat = fixture.recruit(2);
    // One trim is under way since it took its seat; two more wait, and become one.
    for segment in [1, 1] {
        fixture.step(Input::Trim(fixture.primary.closed()[segment].1.first));
    }
    for segment in [2, 3, 4] {
        fixture.step(Input::Installed(seat, SegmentId(segment)));
    }
    fixture.step(Input::Tidied(seat));
    assert_eq!(fixture.swap, None, "it knows of the first trim only");
    fixture.step(Input::Tidied(seat));
    assert!(fixture.swap.is_some());
}

#[test]
fn newcomer_whose_image_fails_is_lost() {
    let mut fixture = with_two_closed(2);
    let seat = fixture.recruit(2);
    fixture.step(Input::InstallFailed(seat, SegmentId(1)));
    assert_eq!(fixture.lost, [member(2).id]);
}

/// Its disk is full, so it may never sync, and holds a seat that a sound spare could take.
#[test]
fn newcomer_that_cannot_sync_is_given_up() {
    let mut fixture = with_two_closed(2);
    fixture.primary.sync(fixture.primary.acked(), Lsn(20));
    fixture.turn();
    let one = fixture.seats[&member(1).id];
    fixture.step(Input::Synced(one, Lsn(20)));
    assert_eq!(fixture.primary.synced(), Lsn(20));
    let seat = fixture.recruit(2);
    for segment in [1, 2] {
        fixture.step(Input::Installed(seat, SegmentId(segment)));
    }
    wait(&mut fixture, 14_000, &[]);
    assert_eq!((fixture.lost.as_slice(), &fixture.swap), (&[][..], &None), "a slow disk has its time");
    fixture.recruits = false;
    wait(&mut fixture, 2000, &[]);
    assert_eq!(fixture.lost, [member(2).id]);
    assert!(fixture.recruits && !fixture.over, "there may be a better one");
}
