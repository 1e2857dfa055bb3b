//! What a promotion asks for, and in which order.

use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef, Swap, SwapOutcome, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, MemberId, Offset, SegmentId, Version};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::promotion::{Input, Output, Promotion, Rules, Task};
use tailwind_protocol::rpc::{CopyReport, CopyState, Failure, Inventory};

fn primary(name: &str) -> PrimaryRef {
    PrimaryRef { id: name.parse().expect("a name"), control: String::new() }
}

fn member(number: u128) -> MemberRef {
    MemberRef { id: format!("m{number}").parse().expect("a name"), boot: BootId(number), control: String::new() }
}

fn config(members: u128) -> Configuration {
    Configuration {
        log: LogId(1),
        kind: Kind::Log,
        epoch: Epoch(5),
        claim: Claim(1),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(5),
        primary: primary("s2"),
        members: (1..=members).map(member).collect(),
    }
}

/// A promotion, and its latest outputs.
struct Fixture {
    machine: Promotion,
    now: Time,
    out: Vec<Output>,
}

impl Fixture {
    fn start(seed: u64) -> Fixture {
        Fixture::start_with(seed, 1)
    }

    fn start_with(seed: u64, min_in_sync: u8) -> Fixture {
        Fixture::of_kind(Kind::Log, seed, min_in_sync)
    }

    fn of_kind(kind: Kind, seed: u64, min_in_sync: u8) -> Fixture {
        let rules = Rules {
            kind,
            backups: 2,
            min_in_sync,
            fence_wait_ms: 100,
            retry_ms: 10,
            repair_timeout_ms: 1000,
            accept_loss: None,
            recover_from_disk: None,
        };
        let mut out = Vec::new();
        let machine = Promotion::start(primary("s1"), rules, LogId(9), seed, &mut out);
        Fixture { machine, now: Time(0), out }
    }

    fn step(&mut self, input: Input) -> &[Output] {
        self.out.clear();
        self.machine.step(self.now, input, &mut self.out);
        &self.out
    }

    fn wait(&mut self, ms: u64) -> &[Output] {
        self.now = self.now.plus(ms);
        self.step(Input::Tick)
    }

    /// Claims the next epoch, after `found`; the members to fence.
    fn claim(&mut self, found: &Configuration) -> Configuration {
        let swap = self.read(found);
        self.step(Input::Swapped(SwapOutcome::Applied));
        swap.proposed
    }

    fn fenced(&mut self, config: &Configuration, member: &MemberRef, copies: Vec<CopyReport>) -> Vec<Task> {
        let inventory = Inventory { promised: config.epoch, ..inventory(member, copies) };
        self.step(Input::Fenced(config.epoch, member.id.clone(), Ok(inventory)));
        self.tasks()
    }

    fn read(&mut self, found: &Configuration) -> Swap {
        match self.step(Input::Read(Ok(Some(found.clone())))) {
            [Output::Swap(swap)] => swap.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// The latest tasks: kind, member, segment.
    fn tasks(&self) -> Vec<Task> {
        self.out.iter().filter_map(Output::task).map(|(_, task)| task).collect()
    }

    /// The log is recovered: the config store learns of it first. Members of the set do not change.
    fn wins(&mut self, members: usize) -> Configuration {
        let [Output::Swap(swap)] = self.out.as_slice() else { panic!("{:?}", self.out) };
        let proposed = swap.proposed.clone();
        assert_eq!((proposed.won, proposed.members.len()), (proposed.epoch, members));
        assert_eq!(swap.expected.map(|expected| expected.version.next()), Some(proposed.version));
        self.step(Input::Swapped(SwapOutcome::Applied));
        assert!(matches!(self.out.as_slice(), [Output::Won(won, _)] if *won == proposed), "{:?}", self.out);
        proposed
    }

    fn done(&mut self, task: Task) -> Vec<Task> {
        self.step(Input::Repaired(Epoch(6), task, Ok(())));
        self.tasks()
    }
}

#[test]
fn restarted_sidecar_does_not_mistake_its_old_claim() {
    // It claims epoch 6, is primary, and dies.
    let mut first = Fixture::start(100);
    let old = first.read(&config(1));
    assert!(matches!(first.step(Input::Swapped(SwapOutcome::Applied)), [Output::Fence(..)]));
    // It comes back, and a config store that answers from the past shows it epoch 5 again.
    let mut second = Fixture::start(200);
    let new = second.read(&config(1));
    assert_eq!((old.expected, old.proposed.epoch), (new.expected, new.proposed.epoch));
    let found = SwapOutcome::Conflict(Some(old.proposed));
    assert_eq!(second.step(Input::Swapped(found)), [Output::Lost(Epoch(6))], "epoch 6 belongs to the life before");
}

#[test]
fn claim_names_its_claimant_and_keeps_the_set() {
    let known = config(2);
    let me = PrimaryRef { id: "s9".parse().expect("a name"), control: "h:9".to_owned() };
    let claimed = known.claimed_by(me.clone(), Claim(77));
    assert_eq!((claimed.primary, claimed.claim, claimed.epoch), (me, Claim(77), known.epoch.next()));
    assert_eq!((claimed.version, claimed.earlier.first()), (known.version.next(), Some(&known.claim)));
    assert_eq!((claimed.log, claimed.members), (known.log, known.members));
}

#[test]
fn unanswered_claim_is_recognised_as_ones_own() {
    let mut fixture = Fixture::start(100);
    let swap = fixture.read(&config(1));
    assert_eq!(fixture.step(Input::Swapped(SwapOutcome::Unknown)), []);
    assert_eq!(fixture.wait(10), [Output::Swap(swap.clone())]);
    let outcome = SwapOutcome::Conflict(Some(swap.proposed));
    assert!(matches!(fixture.step(Input::Swapped(outcome)), [Output::Fence(..)]));
}

#[test]
fn promotion_never_repeats_a_claim() {
    let mut fixture = Fixture::start(100);
    let first = fixture.read(&config(1));
    // A conflict that tells nothing new: it reads again.
    fixture.step(Input::Swapped(SwapOutcome::Conflict(Some(config(1)))));
    let mut out = Vec::new();
    fixture.machine.step(Time(10), Input::Tick, &mut out);
    assert_eq!(out, [Output::ReadConfig]);
    assert_ne!(first.proposed, fixture.read(&config(1)).proposed);
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
    CopyReport {
        identity,
        state,
        closure: Closure { first, last, end: Offset(1000), chain: Chain(7) },
        acked: Offset(0),
    }
}

fn inventory(member: &MemberRef, copies: Vec<CopyReport>) -> Inventory {
    Inventory {
        member: member.id.clone(),
        boot: member.boot,
        log: Some(LogId(1)),
        promised: Epoch(6),
        trimmed: Lsn(0),
        damage: Vec::new(),
        witness: true,
        synced: None,
        former: Vec::new(),
        copies,
        more: false,
    }
}

/// Power may go at any moment, and under durability `flushed` the disk is then all there is: a member that had a later
/// segment and not the one before would stop every recovery from it.
#[test]
fn each_member_is_repaired_oldest_segment_first() {
    let mut fixture = Fixture::start(100);
    fixture.read(&config(2));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    let open = |segments: &[u64]| segments.iter().map(|segment| copy(*segment, CopyState::Open)).collect();
    let (m1, m2) = (member(1), member(2));
    fixture.step(Input::Fenced(Epoch(6), m1.id.clone(), Ok(inventory(&m1, open(&[1, 2, 3])))));
    fixture.step(Input::Fenced(Epoch(6), m2.id.clone(), Ok(inventory(&m2, open(&[1])))));
    let close = |member: &MemberRef, segment: u64| Task::Close(member.id.clone(), SegmentId(segment));
    let install = |id: &MemberId, segment: u64| Task::Install(id.clone(), SegmentId(segment));
    assert_eq!(fixture.tasks(), [close(&m1, 1), close(&m2, 1)]);
    assert_eq!(fixture.done(close(&m1, 1)), [close(&m1, 2)]);
    assert_eq!(fixture.done(close(&m1, 2)), [close(&m1, 3)]);
    assert_eq!(fixture.done(close(&m1, 3)), [], "an image can be copied only once everything is closed");
    assert_eq!(fixture.done(close(&m2, 1)), [install(&m2.id, 2)]);
    assert_eq!(fixture.done(install(&m2.id, 2)), [install(&m2.id, 3)]);
    fixture.done(install(&m2.id, 3));
    fixture.wins(2);
}

/// A member that missed a trim, and is the only one left, would take the missing beginning for a loss.
#[test]
fn trim_is_sent_to_a_member_before_drops() {
    let mut fixture = Fixture::start(100);
    fixture.read(&config(3));
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    let m2 = member(2);
    for told in [member(1), member(3)] {
        let trimmed = Inventory { trimmed: Lsn(21), ..inventory(&told, vec![copy(3, CopyState::Closed)]) };
        fixture.step(Input::Fenced(Epoch(6), told.id, Ok(trimmed)));
    }
    let late = vec![copy(1, CopyState::Closed), copy(2, CopyState::Open), copy(3, CopyState::Closed)];
    fixture.step(Input::Fenced(Epoch(6), m2.id.clone(), Ok(inventory(&m2, late))));
    assert_eq!(fixture.tasks(), [Task::Trim(m2.id.clone())]);
    assert_eq!(fixture.done(Task::Trim(m2.id.clone())), [Task::Drop(m2.id.clone())], "closed ones go with the trim");
    fixture.done(Task::Drop(m2.id.clone()));
    fixture.wins(3);
}

fn ids(members: &[MemberRef]) -> Vec<&str> {
    members.iter().map(|member| member.id.as_str()).collect()
}

/// Two members whose only segment is open; m1 is repaired, m2 is not. The epoch of the tasks is returned.
fn half_repaired(min_in_sync: u8) -> (Fixture, Configuration) {
    let mut fixture = Fixture::start_with(100, min_in_sync);
    let config = fixture.claim(&config(2));
    fixture.fenced(&config, &member(1), vec![copy(1, CopyState::Open)]);
    let tasks = fixture.fenced(&config, &member(2), vec![copy(1, CopyState::Open)]);
    assert_eq!(tasks, [Task::Close(member(1).id, SegmentId(1)), Task::Close(member(2).id, SegmentId(1))]);
    fixture.now = fixture.now.plus(600);
    assert_eq!(fixture.done(Task::Close(member(1).id, SegmentId(1))), []);
    (fixture, config)
}

/// Goes back to the start and fences again; what it asks for once both members have answered.
fn again(fixture: &mut Fixture, config: &Configuration) -> (Configuration, Vec<Task>) {
    assert_eq!(fixture.wait(10), [Output::ReadConfig]);
    let config = fixture.claim(config);
    let early = fixture.fenced(&config, &member(2), vec![copy(1, CopyState::Open)]);
    assert_eq!(early, [], "one that is unfit is not recovered from while another may answer");
    let tasks = fixture.fenced(&config, &member(1), vec![copy(1, CopyState::Closed)]);
    (config, tasks)
}

/// Its disk is full under durability `flushed`: the close never ends.
#[test]
fn member_with_a_hung_repair_is_left_out() {
    let (mut fixture, config) = half_repaired(1);
    assert_eq!(fixture.wait(990), [], "the last piece of work was finished not so long ago");
    assert_eq!(fixture.wait(10), []);
    let (config, tasks) = again(&mut fixture, &config);
    assert_eq!(tasks, []);
    let [Output::Swap(swap)] = fixture.out.as_slice() else { panic!("{:?}", fixture.out) };
    assert_eq!((swap.proposed.epoch, ids(&swap.proposed.members)), (config.epoch, vec!["m1"]));
    let won = fixture.step(Input::Swapped(SwapOutcome::Applied));
    let [Output::Won(_, reference)] = won else { panic!("{won:?}") };
    assert_eq!(reference.segments[0].holders, [member(1).id], "a member outside the set is no source");
}

#[test]
fn member_with_a_failed_repair_is_left_out() {
    let (mut fixture, config) = half_repaired(1);
    let failed = Err(Failure::Unreachable("no answer".to_owned()));
    fixture.step(Input::Repaired(config.epoch, Task::Close(member(2).id, SegmentId(1)), failed));
    again(&mut fixture, &config);
    assert!(matches!(fixture.out.as_slice(), [Output::Swap(swap)] if ids(&swap.proposed.members) == ["m1"]));
}

#[test]
fn unfit_members_count_if_too_few_are_fit() {
    let (mut fixture, config) = half_repaired(2);
    assert_eq!(fixture.wait(1000), []);
    let (config, tasks) = again(&mut fixture, &config);
    assert_eq!(tasks, [Task::Close(member(2).id, SegmentId(1))]);
    fixture.step(Input::Repaired(config.epoch, tasks[0].clone(), Ok(())));
    assert_eq!(ids(&fixture.wins(2).members), ["m1", "m2"]);
}

/// The other one is gone by now: a member that may be repaired this time is better than none.
#[test]
fn unfit_member_counts_once_the_wait_for_others_is_over() {
    let (mut fixture, config) = half_repaired(1);
    fixture.wait(1000);
    fixture.wait(10);
    let config = fixture.claim(&config);
    assert_eq!(fixture.fenced(&config, &member(2), vec![copy(1, CopyState::Open)]), []);
    fixture.wait(100);
    assert_eq!(fixture.tasks(), [Task::Close(member(2).id, SegmentId(1))]);
}

#[test]
fn unfit_member_counts_if_the_others_lack_a_segment() {
    let (mut fixture, config) = half_repaired(1);
    fixture.wait(1000);
    fixture.wait(10);
    let config = fixture.claim(&config);
    // m1's copy has become corrupt in the meantime.
    fixture.fenced(&config, &member(1), vec![copy(1, CopyState::Corrupt)]);
    let tasks = fixture.fenced(&config, &member(2), vec![copy(1, CopyState::Open)]);
    assert_eq!(tasks, [Task::Close(member(2).id, SegmentId(1))], "{:?}", fixture.out);
}

/// The answers to a survey have one page. What is missing is far apart, and is looked for piece by piece.
#[test]
fn segments_that_no_member_has_are_searched_for_one_by_one() {
    const LAST: u64 = 9000;
    let missing = [3, 7000];
    let mut fixture = Fixture::start(100);
    let config = fixture.claim(&config(2));
    let held = |segment| copy(segment, if missing.contains(&segment) { CopyState::Corrupt } else { CopyState::Closed });
    for number in [1, 2] {
        assert_eq!(fixture.fenced(&config, &member(number), (1..=LAST).map(held).collect()), []);
    }
    for segment in [7000, 3] {
        let out = fixture.wait(10).to_vec();
        assert!(out.contains(&Output::Survey(Some(SegmentId(segment - 1)))), "{segment}: {:?}", out.first());
        let page: Vec<CopyReport> = (segment..segment + 1000).map(|at| copy(at, CopyState::Closed)).collect();
        let other = inventory(&member(9), page);
        fixture.step(Input::Surveyed(vec![(member(9), other)]));
    }
    // Neither member needs more than these two, and both are to be had from outside the set.
    let tasks = fixture.tasks();
    assert_eq!(tasks, [1, 2].map(|number| Task::Install(member(number).id, SegmentId(3))));
    let [Output::Install(_, _, _, _, holders), ..] = fixture.out.as_slice() else { panic!("{:?}", fixture.out) };
    assert_eq!(*holders, [member(9).id]);
    let next = fixture.done(Task::Install(member(1).id, SegmentId(3)));
    assert_eq!(next, [Task::Install(member(1).id, SegmentId(7000))]);
}

/// Two sidecars of a new group start at the same time. The one that finds the other first has lost the race: it has never heard
/// from that primary, and may not depose it without a reason.
#[test]
fn race_for_a_new_group_is_lost_to_its_creator() {
    let mut fixture = Fixture::start(1);
    assert_eq!(fixture.step(Input::Read(Ok(None))), [Output::Survey(None)]);
    let held = Inventory {
        member: member(1).id,
        boot: member(1).boot,
        log: Some(LogId(7)),
        promised: Epoch(1),
        trimmed: Lsn(0),
        damage: vec![],
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: vec![],
        more: false,
    };
    let out = fixture.step(Input::Surveyed(vec![(member(1), held)])).to_vec();
    assert!(matches!(out[..], [Output::Waiting(_)]), "{out:?}");
    assert_eq!(fixture.wait(10), [Output::ReadConfig]);
    let found = Configuration { epoch: Epoch(1), version: Version(1), ..config(1) };
    assert_eq!(fixture.step(Input::Read(Ok(Some(found)))), [Output::Lost(Epoch(1))]);
}

/// Between the look that found nothing and the first one of the promotion.
#[test]
fn race_for_a_new_group_may_be_lost_before_it_begins() {
    let mut fixture = Fixture::start(1);
    fixture.machine.expect_to_found();
    let found = Configuration { epoch: Epoch(1), version: Version(1), ..config(1) };
    assert_eq!(fixture.step(Input::Read(Ok(Some(found)))), [Output::Lost(Epoch(1))]);
}

/// At its own restart too: nobody else's epoch would ever pass it.
#[test]
fn a_group_of_another_kind_is_left_alone() {
    for (ours, theirs) in [(Kind::Log, Kind::Table), (Kind::Table, Kind::Log)] {
        let found = Configuration { kind: theirs, primary: primary("s1"), ..config(5) };
        let mut fixture = Fixture::of_kind(ours, 1, 1);
        assert_eq!(fixture.step(Input::Read(Ok(Some(found.clone())))), [Output::OtherKind(found.clone())]);
        assert_eq!(fixture.step(Input::Read(Ok(Some(config(6))))), []);
        let mut same = Fixture::of_kind(theirs, 1, 1);
        let out = same.step(Input::Read(Ok(Some(found))));
        assert!(matches!(out, [Output::Swap(swap)] if swap.proposed.kind == theirs), "{out:?}");
    }
}

/// Two candidates that say different kinds found a group at the same time.
#[test]
fn the_loser_of_a_race_does_not_lead_the_other_kind() {
    let mut fixture = Fixture::of_kind(Kind::Table, 1, 1);
    fixture.step(Input::Read(Ok(None)));
    let empty = |number| (member(number), Inventory { log: None, ..inventory(&member(number), vec![]) });
    let out = fixture.step(Input::Surveyed(vec![empty(1), empty(2)])).to_vec();
    let [Output::Swap(mine)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(mine.proposed.kind, Kind::Table);
    let theirs = Configuration { epoch: Epoch(1), version: Version(1), ..config(1) };
    let out = fixture.step(Input::Swapped(SwapOutcome::Conflict(Some(theirs.clone())))).to_vec();
    assert!(matches!(out[..], [Output::Lost(_)]), "{out:?}");
}

/// Its own earlier life made the group and died: nobody else would ever lead it.
#[test]
fn group_created_before_a_restart_is_claimed() {
    let mut fixture = Fixture::start(1);
    fixture.step(Input::Read(Ok(None)));
    fixture.step(Input::Surveyed(vec![]));
    fixture.wait(200);
    fixture.step(Input::Surveyed(vec![]));
    fixture.wait(10);
    let found = Configuration { primary: primary("s1"), ..config(1) };
    let out = fixture.step(Input::Read(Ok(Some(found)))).to_vec();
    assert!(matches!(out[..], [Output::Swap(_)]), "{out:?}");
}

/// It has claimed an epoch, as the store and all standbys know, and cannot win it: another sidecar may.
#[test]
fn candidate_that_the_store_does_not_answer_is_cut_off() {
    let mut fixture = Fixture::start(100);
    let [Output::Swap(swap)] = fixture.step(Input::Read(Ok(Some(config(1))))) else { panic!("no swap") };
    let swap = swap.clone();
    fixture.wait(3199);
    fixture.step(Input::Swapped(SwapOutcome::Unknown));
    assert!(!fixture.machine.is_cut_off(fixture.now));
    fixture.wait(1);
    assert!(fixture.machine.is_cut_off(fixture.now), "no answer is none");
    fixture.step(Input::Swapped(SwapOutcome::Conflict(Some(swap.proposed))));
    assert!(!fixture.machine.is_cut_off(fixture.now), "it has claimed the epoch after all, and fences");
}

/// Another sidecar may reach the members that it does not reach.
#[test]
fn candidate_that_reaches_too_few_members_is_cut_off() {
    let mut fixture = Fixture::start_with(100, 2);
    let config = fixture.claim(&config(3));
    fixture.fenced(&config, &member(1), vec![]);
    let silent = |fixture: &mut Fixture| {
        let silence = Err(Failure::Unreachable("no answer".to_owned()));
        fixture.step(Input::Fenced(config.epoch, member(2).id, silence));
    };
    silent(&mut fixture);
    fixture.wait(3199);
    assert!(!fixture.machine.is_cut_off(fixture.now));
    let reads = |out: &[Output]| out.iter().filter(|output| **output == Output::ReadConfig).count();
    assert_eq!(reads(fixture.wait(10)), 1, "nobody else tells it of a successor");
    assert!(fixture.machine.is_cut_off(fixture.now));
    assert_eq!(fixture.step(Input::Read(Ok(Some(config.clone())))), []);
    assert_eq!(reads(fixture.wait(3190)), 0);
    assert_eq!(reads(fixture.wait(10)), 1);
    let mut beaten = fixture.machine.clone();
    // A member answers, if only that it cannot help.
    let reborn = Inventory { boot: BootId(99), ..inventory(&member(2), vec![]) };
    fixture.step(Input::Fenced(config.epoch, member(2).id, Ok(reborn)));
    assert!(!fixture.machine.is_cut_off(fixture.now));
    let successor = Configuration { epoch: Epoch(7), primary: primary("s3"), ..config };
    fixture.out.clear();
    beaten.step(fixture.now, Input::Read(Ok(Some(successor))), &mut fixture.out);
    assert_eq!(fixture.out, [Output::Lost(Epoch(7))]);
}

/// It reaches the members by control RPC, and not their memory. Another sidecar may.
#[test]
fn candidate_whose_repairs_all_fail_is_cut_off() {
    let mut fixture = Fixture::start_with(100, 2);
    let mut config = config(3);
    let mut first_failure = None;
    while first_failure.is_none_or(|first: Time| fixture.now < first.plus(3200)) {
        assert!(!fixture.machine.is_cut_off(fixture.now));
        config = fixture.claim(&config);
        // The other two lack what the first one holds.
        fixture.fenced(&config, &member(1), vec![copy(1, CopyState::Closed)]);
        fixture.fenced(&config, &member(2), vec![]);
        fixture.fenced(&config, &member(3), vec![]);
        if fixture.tasks().is_empty() {
            fixture.wait(100);
        }
        let tasks = fixture.tasks();
        assert!(!tasks.is_empty(), "{:?}", fixture.out);
        for task in tasks {
            let failed = Err(Failure::Unreachable("no route to its memory".to_owned()));
            fixture.step(Input::Repaired(config.epoch, task, failed));
            first_failure.get_or_insert(fixture.now);
        }
        assert_eq!(fixture.wait(10), [Output::ReadConfig]);
    }
    assert!(fixture.machine.is_cut_off(fixture.now));
    let config = fixture.claim(&config);
    assert!(fixture.machine.is_cut_off(fixture.now), "a new epoch alone changes nothing");
    for number in 1..=3 {
        let copies = if number == 1 { vec![copy(1, CopyState::Closed)] } else { vec![] };
        fixture.fenced(&config, &member(number), copies);
    }
    let tasks = fixture.tasks();
    fixture.step(Input::Repaired(config.epoch, tasks[0].clone(), Ok(())));
    assert!(!fixture.machine.is_cut_off(fixture.now));
}
