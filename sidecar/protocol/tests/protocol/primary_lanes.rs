//! What a primary hands out, and what it keeps back until something else has been answered.

use crate::group::{config, holds_nothing, member};
use tailwind_protocol::config::{Durability, MemberRef, SwapOutcome, Time};
use tailwind_protocol::ids::{BootId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentSize};
use tailwind_protocol::primary::{INSTALLS_MAX, Input, Output, Primary, Rules, Seat};
use tailwind_protocol::recovery::Reference;

const SWAP_INTERVAL_MS: u64 = 100;

const RULES: Rules = Rules {
    backups: 3,
    min_in_sync: 1,
    durability: Durability::Memory,
    segment_size: SegmentSize::MIN,
    open_timeout_ms: 60_000,
    recruit_interval_ms: 0,
    swap_interval_ms: SWAP_INTERVAL_MS,
};

/// A primary, and the outputs that nobody has looked at yet.
struct Fixture {
    primary: Primary,
    now: Time,
    out: Vec<Output>,
}

impl Fixture {
    fn start(members: usize, backups: u8) -> Fixture {
        Fixture::start_with(members, Rules { backups, ..RULES })
    }

    fn start_with(members: usize, rules: Rules) -> Fixture {
        let mut out = Vec::new();
        let primary = Primary::new(config(members), rules, &Reference::default(), 1, Time(0), &mut out);
        Fixture { primary, now: Time(0), out }
    }

    /// One that has its channels, its memory and its first two segments.
    fn ready(members: usize, backups: u8) -> (Fixture, Vec<Seat>) {
        Fixture::ready_with(members, Rules { backups, ..RULES })
    }

    fn ready_with(members: usize, rules: Rules) -> (Fixture, Vec<Seat>) {
        let mut fixture = Fixture::start_with(members, rules);
        let seats = fixture.seats();
        for segment in [1, 2] {
            fixture.step(Input::Prepared(SegmentId(segment)));
        }
        for seat in &seats {
            fixture.step(Input::Connected(*seat));
            for segment in [1, 2] {
                fixture.step(Input::Opened(*seat, SegmentId(segment)));
            }
        }
        fixture.out.clear();
        (fixture, seats)
    }

    /// One with so many closed segments, and a newcomer that has its channel and lacks them all.
    fn with_newcomer(closed: u64) -> (Fixture, Seat) {
        let (mut fixture, seats) = Fixture::ready(1, 2);
        for segment in 1..=closed {
            fixture.fill(segment);
            fixture.lend_everywhere(&seats, segment + 2);
            fixture.close_everywhere(&seats, segment);
        }
        let spare = member(2);
        fixture.step(Input::Tick);
        fixture.step(Input::Surveyed(vec![spare.clone()]));
        fixture.look();
        fixture.step(Input::Fenced(spare.clone(), Ok(holds_nothing(&spare))));
        let newcomer = fixture.seats()[0];
        fixture.look();
        fixture.step(Input::Connected(newcomer));
        (fixture, newcomer)
    }

    fn seats(&self) -> Vec<Seat> {
        let connects = self.out.iter().filter(|output| matches!(output, Output::Connect(..)));
        connects.filter_map(Output::seat).collect()
    }

    fn step(&mut self, input: Input) {
        self.primary.step(self.now, input, &mut self.out);
    }

    /// Everything handed out since the last look.
    fn look(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// Fills the active segment at every member, so that it can be closed. It has ten records for each segment.
    fn fill(&mut self, segment: u64) {
        let end = Offset(60_000);
        self.primary.appended(end);
        for index in 0..8 {
            if self.primary.next_post(index, u32::MAX).is_some() {
                self.primary.completed(index, 1);
            }
        }
        let (first, last) = (Lsn(10 * segment - 9), Lsn(10 * segment));
        let closure = Closure { first, last, end, chain: Chain(0) };
        assert!(self.primary.roll(closure, &mut self.out).is_some(), "segment {segment} is followed by another");
        self.primary.turn(&mut self.out);
    }

    fn close_everywhere(&mut self, seats: &[Seat], segment: u64) {
        for seat in seats {
            self.step(Input::Closed(*seat, SegmentId(segment)));
        }
    }

    fn lend_everywhere(&mut self, seats: &[Seat], segment: u64) {
        self.step(Input::Prepared(SegmentId(segment)));
        for seat in seats {
            self.step(Input::Opened(*seat, SegmentId(segment)));
        }
    }
}

fn opened(outputs: &[Output]) -> Vec<u64> {
    let opens = outputs.iter().filter_map(|output| match output {
        Output::Open(_, identity) => Some(identity.segment.0),
        _ => None,
    });
    opens.collect()
}

fn closed(outputs: &[Output]) -> Vec<u64> {
    let closes = outputs.iter().filter_map(|output| match output {
        Output::Close(_, identity, _) => Some(identity.segment.0),
        _ => None,
    });
    closes.collect()
}

fn installed(outputs: &[Output]) -> Vec<u64> {
    let installs = outputs.iter().filter_map(|output| match output {
        Output::Install(_, identity, ..) => Some(identity.segment.0),
        _ => None,
    });
    installs.collect()
}

#[test]
fn requests_wait_for_the_channel() {
    let mut fixture = Fixture::start(1, 1);
    fixture.step(Input::Prepared(SegmentId(1)));
    let seat = fixture.seats()[0];
    assert!(opened(&fixture.look()).is_empty());
    fixture.step(Input::Connected(seat));
    assert_eq!(opened(&fixture.look()), [1]);
}

#[test]
fn open_waits_for_local_memory() {
    let mut fixture = Fixture::start(1, 1);
    let seat = fixture.seats()[0];
    fixture.step(Input::Connected(seat));
    assert!(opened(&fixture.look()).is_empty());
    fixture.step(Input::Prepared(SegmentId(2)));
    assert!(opened(&fixture.look()).is_empty(), "the first one comes first");
    fixture.step(Input::Prepared(SegmentId(1)));
    assert_eq!(opened(&fixture.look()), [1]);
}

#[test]
fn opens_go_one_at_a_time() {
    let mut fixture = Fixture::start(1, 1);
    let seat = fixture.seats()[0];
    for input in [Input::Prepared(SegmentId(1)), Input::Prepared(SegmentId(2)), Input::Connected(seat)] {
        fixture.step(input);
    }
    assert_eq!(opened(&fixture.look()), [1]);
    fixture.step(Input::Opened(seat, SegmentId(1)));
    assert_eq!(opened(&fixture.look()), [2]);
}

#[test]
fn close_overtakes_a_waiting_open() {
    let (mut fixture, seats) = Fixture::ready(1, 1);
    fixture.fill(1);
    fixture.step(Input::Prepared(SegmentId(3)));
    let out = fixture.look();
    assert_eq!((opened(&out), closed(&out)), (vec![3], vec![1]), "both are under way");
    assert_eq!(out.iter().filter_map(Output::seat).collect::<Vec<_>>(), [seats[0], seats[0]]);
}

#[test]
fn closes_go_one_at_a_time_and_in_order() {
    let (mut fixture, seats) = Fixture::ready(1, 1);
    fixture.fill(1);
    fixture.lend_everywhere(&seats, 3);
    fixture.fill(2);
    assert_eq!(closed(&fixture.look()), [1]);
    fixture.step(Input::Closed(seats[0], SegmentId(1)));
    assert_eq!(closed(&fixture.look()), [2]);
}

#[test]
fn waiting_trims_are_merged() {
    let (mut fixture, seats) = Fixture::ready(1, 1);
    for segment in 1..=4 {
        fixture.fill(segment);
        fixture.lend_everywhere(&seats, segment + 2);
        fixture.close_everywhere(&seats, segment);
    }
    fixture.look();
    for below in [11, 21, 31] {
        fixture.step(Input::Trim(Lsn(below)));
    }
    assert_eq!(fixture.look(), [Output::Trim(seats[0], Lsn(11))]);
    fixture.step(Input::Tidied(seats[0]));
    assert_eq!(fixture.look(), [Output::Trim(seats[0], Lsn(31))]);
    fixture.step(Input::Tidied(seats[0]));
    assert_eq!(fixture.look(), []);
}

#[test]
fn few_images_are_copied_at_once() {
    let (mut fixture, newcomer) = Fixture::with_newcomer(4);
    let mut waiting = vec![4, 3, 2, 1];
    let mut under_way = Vec::new();
    loop {
        under_way.extend(installed(&fixture.look()));
        let Some(segment) = under_way.pop() else { break };
        assert!(under_way.len() < INSTALLS_MAX, "{under_way:?}");
        assert!(waiting.contains(&segment), "{segment} comes once");
        waiting.retain(|known| *known != segment);
        fixture.step(Input::Installed(newcomer, SegmentId(segment)));
    }
    assert_eq!(waiting, [] as [u64; 0]);
}

#[test]
fn former_seat_gets_no_output() {
    let (mut fixture, seats) = Fixture::ready(2, 2);
    fixture.fill(1);
    fixture.lend_everywhere(&seats, 3);
    fixture.fill(2);
    fixture.look();
    fixture.step(Input::Lost(seats[0]));
    fixture.step(Input::Closed(seats[0], SegmentId(1)));
    let out = fixture.look();
    let asked = |output: &&Output| output.seat() == Some(seats[0]) && !matches!(output, Output::Disconnect(_));
    assert_eq!(out.iter().find(asked), None);
}

#[test]
fn swap_of_unknown_outcome_is_repeated_after_a_pause() {
    let (mut fixture, seats) = Fixture::ready(2, 2);
    fixture.step(Input::Lost(seats[1]));
    let swap = |out: &[Output]| out.iter().find(|output| matches!(output, Output::Swap(_))).cloned();
    let first = swap(&fixture.look()).expect("the lost member is swapped out");
    fixture.step(Input::Swapped(SwapOutcome::Unknown));
    fixture.step(Input::Tick);
    assert_eq!(swap(&fixture.look()), None);
    fixture.now = fixture.now.plus(SWAP_INTERVAL_MS);
    fixture.step(Input::Tick);
    assert_eq!(swap(&fixture.look()), Some(first));
    fixture.step(Input::Tick);
    assert_eq!(swap(&fixture.look()), None, "once for each pause");
}

#[test]
fn next_spare_is_tried_after_a_refusal() {
    let (mut fixture, seats) = Fixture::ready(2, 2);
    fixture.step(Input::Lost(seats[1]));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.step(Input::Tick);
    assert!(fixture.look().contains(&Output::Survey));
    // With other memory a lost member is a spare, but the last one to be tried.
    let emptied = MemberRef { boot: BootId(99), ..member(2) };
    fixture.step(Input::Surveyed(vec![member(1), emptied.clone(), member(3)]));
    assert_eq!(fixture.look(), [Output::Fence(member(3))]);
    let refused = tailwind_protocol::rpc::Failure::Unreachable("another group's".to_owned());
    fixture.step(Input::Fenced(member(3), Err(refused.clone())));
    assert_eq!(fixture.look(), [Output::Fence(emptied.clone())]);
    fixture.step(Input::Fenced(emptied, Err(refused)));
    assert_eq!(fixture.look(), []);
    fixture.step(Input::Tick);
    assert_eq!(fixture.look(), [Output::Survey], "and all over again");
}

/// Its answer may be from before the loss: a primary that takes it for a return steps down for a promotion that finds nothing
/// there.
#[test]
fn survey_does_not_count_for_a_member_lost_meanwhile() {
    let (mut fixture, seats) = Fixture::ready_with(3, Rules { min_in_sync: 2, ..RULES });
    // The second member is lost and comes back as a newcomer.
    fixture.step(Input::Lost(seats[1]));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.step(Input::Tick);
    fixture.step(Input::Surveyed(vec![member(2)]));
    fixture.look();
    fixture.step(Input::Fenced(member(2), Ok(holds_nothing(&member(2)))));
    let again = fixture.seats()[0];
    fixture.step(Input::Connected(again));
    for segment in [1, 2] {
        fixture.step(Input::Opened(again, SegmentId(segment)));
    }
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    assert_eq!(fixture.primary.config().members.len(), 3);
    // The third one is lost, and while a spare is looked for the second once more.
    fixture.step(Input::Lost(seats[2]));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    fixture.look();
    fixture.step(Input::Tick);
    assert!(fixture.look().contains(&Output::Survey));
    fixture.step(Input::Lost(again));
    fixture.step(Input::Surveyed(vec![member(1), member(2)]));
    let out = fixture.look();
    assert!(!out.iter().any(|output| matches!(output, Output::StepDown(_))), "{out:?}");
}

/// They wait behind those under way, or behind a trim, and nobody needs them any more.
#[test]
fn images_of_trimmed_segments_are_not_handed_out() {
    let (mut fixture, newcomer) = Fixture::with_newcomer(5);
    assert_eq!(installed(&fixture.look()), [1, 2]);
    fixture.step(Input::Trim(Lsn(41)));
    fixture.step(Input::Tidied(newcomer));
    fixture.step(Input::InstallFailed(newcomer, SegmentId(1)));
    fixture.step(Input::Installed(newcomer, SegmentId(2)));
    assert_eq!(installed(&fixture.look()), [5]);
}
