//! What a promotion asks for, and in which order.

use tailwind_protocol::config::{Configuration, MemberRef, PrimaryRef, Swap, SwapOutcome, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, MemberId, Offset, SegmentId, Version};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::promotion::{Input, Output, Promotion, Rules, Task};
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};

fn primary(name: &str) -> PrimaryRef {
    PrimaryRef { id: name.parse().expect("a name"), control: String::new() }
}

fn member(number: u128) -> MemberRef {
    MemberRef { id: format!("m{number}").parse().expect("a name"), boot: BootId(number), control: String::new() }
}

fn config(members: u128) -> Configuration {
    Configuration {
        log: LogId(1),
        epoch: Epoch(5),
        claim: Claim(1),
        version: Version(5),
        primary: primary("s2"),
        members: (1..=members).map(member).collect(),
    }
}

/// A promotion, and what it has asked for last.
struct Desk {
    machine: Promotion,
    out: Vec<Output>,
}

impl Desk {
    fn start(seed: u64) -> Desk {
        let rules = Rules { backups: 2, min_in_sync: 1, fence_patience_ms: 100, retry_ms: 10 };
        let mut out = Vec::new();
        let machine = Promotion::start(primary("s1"), rules, LogId(9), seed, &mut out);
        Desk { machine, out }
    }

    fn step(&mut self, input: Input) -> &[Output] {
        self.out.clear();
        self.machine.step(Time(0), input, &mut self.out);
        &self.out
    }

    fn read(&mut self, found: &Configuration) -> Swap {
        match self.step(Input::Read(Ok(Some(found.clone())))) {
            [Output::Swap(swap)] => swap.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Tasks asked for last: kind, member, segment.
    fn tasks(&self) -> Vec<Task> {
        let tasks = self.out.iter().filter_map(|output| match output {
            Output::Trim(_, member, _) => Some(Task::Trim(member.id.clone())),
            Output::Drop(_, member, _) => Some(Task::Drop(member.id.clone())),
            Output::Close(_, member, identity, _) => Some(Task::Close(member.id.clone(), identity.segment)),
            Output::Install(_, member, identity, ..) => Some(Task::Install(member.id.clone(), identity.segment)),
            _ => None,
        });
        tasks.collect()
    }

    fn done(&mut self, task: Task) -> Vec<Task> {
        self.step(Input::Repaired(Epoch(6), task, Ok(())));
        self.tasks()
    }
}

#[test]
fn a_sidecar_that_comes_back_does_not_take_its_old_claim_for_its_new_one() {
    // It claims epoch 6, is primary, and dies.
    let mut first = Desk::start(100);
    let old = first.read(&config(1));
    assert!(matches!(first.step(Input::Swapped(SwapOutcome::Applied)), [Output::Fence(..)]));
    // It comes back, and a config store that answers from the past shows it epoch 5 again.
    let mut second = Desk::start(200);
    let new = second.read(&config(1));
    assert_eq!((old.expected, old.proposed.epoch), (new.expected, new.proposed.epoch));
    let found = SwapOutcome::Conflict(Some(old.proposed));
    assert_eq!(second.step(Input::Swapped(found)), [Output::Lost(Epoch(6))], "epoch 6 belongs to the life before");
}

#[test]
fn a_claim_that_got_no_answer_is_still_ones_own() {
    let mut desk = Desk::start(100);
    let swap = desk.read(&config(1));
    assert_eq!(desk.step(Input::Swapped(SwapOutcome::Unknown)), [Output::Swap(swap.clone())]);
    let outcome = SwapOutcome::Conflict(Some(swap.proposed));
    assert!(matches!(desk.step(Input::Swapped(outcome)), [Output::Fence(..)]));
}

#[test]
fn no_claim_is_made_twice_by_one_promotion() {
    let mut desk = Desk::start(100);
    let first = desk.read(&config(1));
    // A conflict that tells nothing new: it reads again.
    desk.step(Input::Swapped(SwapOutcome::Conflict(Some(config(1)))));
    let mut out = Vec::new();
    desk.machine.step(Time(10), Input::Tick, &mut out);
    assert_eq!(out, [Output::ReadConfig]);
    assert_ne!(first.proposed, desk.read(&config(1)).proposed);
}

fn copy(segment: u64, state: CopyState) -> CopyReport {
    let (first, last) = (Lsn(segment * 10 - 9), Lsn(segment * 10));
    let identity = SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(segment),
        epoch: Epoch(5),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    };
    CopyReport { identity, state, closure: Closure { first, last, end: Offset(1000), chain: Chain(7) } }
}

fn inventory(member: &MemberRef, copies: Vec<CopyReport>) -> Inventory {
    Inventory {
        member: member.id.clone(),
        boot: member.boot,
        log: Some(LogId(1)),
        promised: Epoch(6),
        trimmed: Lsn(0),
        copies,
    }
}

/// Power may go at any moment, and under durability `flushed` the disk is then all there is: a member that had a later
/// segment and not the one before would stop every recovery from it.
#[test]
fn each_member_is_repaired_oldest_segment_first() {
    let mut desk = Desk::start(100);
    desk.read(&config(2));
    desk.step(Input::Swapped(SwapOutcome::Applied));
    let open = |segments: &[u64]| segments.iter().map(|segment| copy(*segment, CopyState::Open)).collect();
    let (m1, m2) = (member(1), member(2));
    desk.step(Input::Fenced(Epoch(6), m1.id.clone(), Ok(inventory(&m1, open(&[1, 2, 3])))));
    desk.step(Input::Fenced(Epoch(6), m2.id.clone(), Ok(inventory(&m2, open(&[1])))));
    let close = |member: &MemberRef, segment: u64| Task::Close(member.id.clone(), SegmentId(segment));
    let install = |id: &MemberId, segment: u64| Task::Install(id.clone(), SegmentId(segment));
    assert_eq!(desk.tasks(), [close(&m1, 1), close(&m2, 1)]);
    assert_eq!(desk.done(close(&m1, 1)), [close(&m1, 2)]);
    assert_eq!(desk.done(close(&m1, 2)), [close(&m1, 3)]);
    assert_eq!(desk.done(close(&m1, 3)), [], "an image can be copied only once everything is closed");
    assert_eq!(desk.done(close(&m2, 1)), [install(&m2.id, 2)]);
    assert_eq!(desk.done(install(&m2.id, 2)), [install(&m2.id, 3)]);
    desk.done(install(&m2.id, 3));
    assert!(matches!(desk.out.as_slice(), [Output::Won(..)]), "{:?}", desk.out);
}

/// A member that missed a trim, and is the only one left, would take the missing beginning for a loss.
#[test]
fn a_member_learns_of_a_trim_before_it_drops_anything() {
    let mut desk = Desk::start(100);
    desk.read(&config(2));
    desk.step(Input::Swapped(SwapOutcome::Applied));
    let (m1, m2) = (member(1), member(2));
    let trimmed = Inventory { trimmed: Lsn(21), ..inventory(&m1, vec![copy(3, CopyState::Closed)]) };
    desk.step(Input::Fenced(Epoch(6), m1.id.clone(), Ok(trimmed)));
    let late = vec![copy(1, CopyState::Closed), copy(2, CopyState::Open), copy(3, CopyState::Closed)];
    desk.step(Input::Fenced(Epoch(6), m2.id.clone(), Ok(inventory(&m2, late))));
    assert_eq!(desk.tasks(), [Task::Trim(m2.id.clone())]);
    assert_eq!(desk.done(Task::Trim(m2.id.clone())), [Task::Drop(m2.id.clone())], "closed ones go with the trim");
    desk.done(Task::Drop(m2.id.clone()));
    assert!(matches!(desk.out.as_slice(), [Output::Won(..)]), "{:?}", desk.out);
}
