//! Damage is never absence (S12), nor is anything sound given up by itself (S13): what a promotion believes of members that
//! have lost something, that come late, or that know more than the config store.

use tailwind_protocol::config::{CUTS_KEPT, Configuration, Cut, Kind, MemberRef, PrimaryRef, SwapOutcome, Time};
use tailwind_protocol::history::{History, Parted};
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, SegmentId, Version};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::promotion::{AcceptedLoss, DiskRecovery, Input, Output, Promotion, Rules, Waiting};
use tailwind_protocol::rpc::{CopyReport, CopyState, Failure, Inventory, Synced};

use CopyState::{Closed, Corrupt, Damaged, Open};

fn sidecar(name: &str) -> PrimaryRef {
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
        claim: Claim(55),
        earlier: vec![Claim(44)],
        won: Epoch(4),
        cuts: Vec::new(),
        version: Version(5),
        primary: sidecar("s2"),
        members: (1..=members).map(member).collect(),
    }
}

/// Segment 1 is whole, records 1 to 10; segment 2 goes from 11 on, 48 bytes for each record.
fn copy(segment: u64, state: CopyState, last: u64) -> CopyReport {
    let first = segment * 10 - 9;
    let identity = SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(segment),
        epoch: Epoch(5),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    };
    let end = Offset(72 + 48 * (last + 1 - first) as u32);
    let closure = Closure { first: Lsn(first), last: Lsn(last), end, chain: Chain(last as u32) };
    CopyReport { identity, state, closure, acked: Offset(0) }
}

/// A copy that ends at `last`, of which everything up to `acked` was acknowledged.
fn cut(last: u64, acked: u64) -> CopyReport {
    CopyReport { acked: copy(2, Open, acked).closure.end, ..copy(2, Damaged, last) }
}

fn sound(number: u128, last: u64) -> Inventory {
    Inventory {
        member: member(number).id,
        boot: BootId(number),
        log: Some(LogId(1)),
        promised: Epoch(6),
        trimmed: Lsn(0),
        damage: Vec::new(),
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: vec![copy(1, Closed, 10), copy(2, Open, last)],
        more: false,
    }
}

fn damaged(number: u128, copies: Vec<CopyReport>) -> Inventory {
    Inventory { damage: vec!["something is gone".to_owned()], witness: false, copies, ..sound(number, 11) }
}

/// A promotion of s1, and its latest outputs.
#[derive(Clone)]
struct Fixture {
    machine: Promotion,
    now: Time,
    epoch: Epoch,
    out: Vec<Output>,
}

impl Fixture {
    /// It has claimed epoch 6 and is fencing the members.
    fn fencing(members: u128, min_in_sync: u8, accept_loss: Option<AcceptedLoss>) -> Fixture {
        Fixture::with(members, min_in_sync, accept_loss, None)
    }

    /// The same after an administrator has ordered that this log be recovered from disks.
    fn from_disk(members: u128, log: u128, accept_loss: Option<AcceptedLoss>) -> Fixture {
        Fixture::with(members, 2, accept_loss, Some(LogId(log)))
    }

    fn with(
        members: u128,
        min_in_sync: u8,
        accept_loss: Option<AcceptedLoss>,
        recover_from_disk: Option<LogId>,
    ) -> Fixture {
        let rules = Rules {
            kind: Kind::Log,
            backups: members as u8,
            min_in_sync,
            fence_wait_ms: 100,
            retry_ms: 10,
            repair_timeout_ms: 1000,
            accept_loss,
            recover_from_disk: recover_from_disk.map(|log| DiskRecovery { log, after: Epoch(4) }),
        };
        let mut out = Vec::new();
        let machine = Promotion::start(sidecar("s1"), rules, LogId(9), 7, &mut out);
        let mut fixture = Fixture { machine, now: Time(0), epoch: Epoch(6), out };
        fixture.step(Input::Read(Ok(Some(config(members)))));
        fixture.step(Input::Swapped(SwapOutcome::Applied));
        assert_eq!(fixture.out.len(), members as usize, "each is fenced: {:?}", fixture.out);
        fixture
    }

    /// It reads the configuration of its last claim and claims the next epoch; members 1 and 2 hold what they held.
    fn claim_again(&mut self) {
        let [Output::Swap(swap)] = self.step(Input::Read(Ok(Some(claimed(3))))) else { panic!("{:?}", self.out) };
        self.epoch = swap.proposed.epoch;
        self.step(Input::Swapped(SwapOutcome::Applied));
        for (number, last) in [(1, 18), (2, 12)] {
            self.fenced(Inventory { promised: self.epoch, ..sound(number, last) });
        }
        assert_eq!(self.wait(), []);
    }

    fn step(&mut self, input: Input) -> &[Output] {
        self.out.clear();
        self.machine.step(self.now, input, &mut self.out);
        &self.out
    }

    fn fenced(&mut self, inventory: Inventory) -> &[Output] {
        let epoch = self.epoch;
        self.step(Input::Fenced(epoch, inventory.member.clone(), Ok(inventory)))
    }

    fn refused(&mut self, number: u128, failure: Failure) -> &[Output] {
        let epoch = self.epoch;
        self.step(Input::Fenced(epoch, member(number).id, Err(failure)))
    }

    /// Patience for disks runs out.
    fn wait_for_disks(&mut self) -> &[Output] {
        self.now = self.now.plus(DISK_WAIT_MS);
        self.step(Input::Tick)
    }

    /// Patience runs out.
    fn wait(&mut self) -> &[Output] {
        self.now = self.now.plus(200);
        self.step(Input::Tick)
    }

    fn waiting(&self) -> Option<&Waiting> {
        self.out.iter().find_map(|output| match output {
            Output::Waiting(why) => Some(why),
            _ => None,
        })
    }

    /// Carries every task out until there is none, and says how it ended: the set, and the last record.
    fn repair(&mut self) -> (usize, Lsn) {
        let mut todo = std::mem::take(&mut self.out);
        loop {
            let mut next = Vec::new();
            for output in todo.drain(..) {
                let (epoch, task) = match output {
                    Output::Swap(_) => {
                        next.extend(self.step(Input::Swapped(SwapOutcome::Applied)).to_vec());
                        continue;
                    }
                    Output::Won(config, reference) => return (config.members.len(), reference.last()),
                    other => match other.task() {
                        Some(given) => given,
                        None => continue,
                    },
                };
                next.extend(self.step(Input::Repaired(epoch, task, Ok(()))).to_vec());
            }
            assert!(!next.is_empty(), "it continues until it wins");
            todo = next;
        }
    }
}

/// Longer than a recovery from disk waits for those that have not answered.
const DISK_WAIT_MS: u64 = 3300;

fn lost(number: u128) -> Inventory {
    Inventory { boot: BootId(99), ..sound(number, 11) }
}

#[test]
fn damaged_member_alone_never_decides_the_end() {
    for copies in [vec![copy(1, Closed, 10), cut(12, 20)], vec![copy(1, Closed, 10)], vec![]] {
        let mut fixture = Fixture::fencing(2, 1, None);
        assert_eq!(fixture.fenced(damaged(1, copies)), []);
        fixture.wait();
        let Some(Waiting::Witnesses { witnesses: 0, needed: 1, damaged, missing }) = fixture.waiting() else {
            panic!("{:?}", fixture.out);
        };
        assert!(damaged.contains("m1 (something is gone)") && missing.contains("m2"), "{damaged}; {missing}");
        // The sound one comes at last; the other one is repaired from it.
        fixture.fenced(sound(2, 20));
        assert_eq!(fixture.repair(), (2, Lsn(20)));
    }
}

#[test]
fn two_damaged_members_of_three_wait_for_the_third() {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.fenced(damaged(1, vec![copy(1, Closed, 10), cut(12, 15)]));
    fixture.fenced(damaged(3, vec![copy(1, Closed, 10)]));
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Witnesses { witnesses: 0, needed: 2, .. })), "{:?}", fixture.out);
    fixture.fenced(sound(2, 18));
    assert_eq!(fixture.repair(), (3, Lsn(18)), "everybody has answered, and one witness tells");
}

#[test]
fn member_without_its_memory_is_not_waited_for() {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.fenced(lost(3));
    fixture.fenced(damaged(1, vec![copy(1, Closed, 10)]));
    fixture.fenced(sound(2, 18));
    fixture.wait();
    assert_eq!(fixture.repair(), (2, Lsn(18)));
}

#[test]
fn min_in_sync_witnesses_are_needed_while_a_member_may_answer() {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.fenced(damaged(1, vec![copy(1, Closed, 10)]));
    fixture.fenced(sound(2, 18));
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Witnesses { witnesses: 1, needed: 2, .. })), "{:?}", fixture.out);
}

/// A closed segment that it can name leaves a member a witness: it knows where its log ends, and another copy fills the gap.
#[test]
fn member_lacking_a_closed_segment_is_still_a_witness() {
    let lacking = Inventory { copies: vec![copy(1, Corrupt, 10), copy(2, Open, 18)], ..sound(1, 18) };
    let mut fixture = Fixture::fencing(2, 1, None);
    fixture.fenced(lacking);
    fixture.wait();
    assert!(matches!(fixture.waiting(), None | Some(Waiting::Damage(_))), "{:?}", fixture.out);
    fixture.fenced(sound(2, 12));
    assert_eq!(fixture.repair(), (2, Lsn(18)));
}

#[test]
fn contradicted_witness_is_not_enough() {
    let mut fixture = Fixture::fencing(2, 1, None);
    fixture.fenced(damaged(1, vec![copy(1, Closed, 10), cut(12, 20)]));
    fixture.fenced(sound(2, 15));
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Damage(_))), "acknowledged up to 20: {:?}", fixture.out);
}

#[test]
fn operator_may_accept_an_earlier_end() {
    let accepted = |last| Some(AcceptedLoss { log: LogId(1), last: Lsn(last) });
    for (last, wins) in [(12, true), (10, true), (13, false)] {
        let mut fixture = Fixture::fencing(2, 1, accepted(last));
        fixture.fenced(damaged(1, vec![copy(1, Closed, 10), cut(12, 20)]));
        fixture.wait();
        match wins {
            true => assert_eq!(fixture.repair(), (1, Lsn(12)), "as far as anything whole goes"),
            false => assert!(matches!(fixture.waiting(), None | Some(Waiting::Damage(_))), "{last}: {:?}", fixture.out),
        }
    }
    let other = Some(AcceptedLoss { log: LogId(2), last: Lsn(1) });
    let mut fixture = Fixture::fencing(2, 1, other);
    fixture.fenced(damaged(1, vec![]));
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Witnesses { .. })), "of another log: {:?}", fixture.out);
}

#[test]
fn accepted_loss_is_parsed_from_one_argument() {
    let text = "000102030405060708090a0b0c0d0e0f/4711";
    let accepted: AcceptedLoss = text.parse().expect("log and LSN");
    assert_eq!((accepted.last, accepted.to_string().as_str()), (Lsn(4711), text));
    for bad in ["", "4711", "xyz/1", "000102030405060708090a0b0c0d0e0f/", "000102030405060708090a0b0c0d0e0f/-1"] {
        assert!(bad.parse::<AcceptedLoss>().is_err(), "{bad}");
    }
}

#[test]
fn member_fenced_during_repairs_stays_in_the_set() {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.fenced(sound(1, 18));
    fixture.fenced(sound(2, 12));
    let first = fixture.wait().to_vec();
    assert!(first.iter().any(|output| matches!(output, Output::Close(..))), "{first:?}");
    let late = fixture.fenced(sound(3, 12)).to_vec();
    fixture.out = [first, late].concat();
    assert_eq!(fixture.repair(), (3, Lsn(18)));
}

#[test]
fn late_member_with_a_longer_log_restarts_the_promotion() {
    let noted = CopyReport { acked: copy(2, Open, 20).closure.end, ..copy(2, Open, 20) };
    for proof in [noted, copy(2, Closed, 20)] {
        late_member_is_waited_for(proof);
    }
}

fn late_member_is_waited_for(proof: CopyReport) {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.fenced(sound(1, 18));
    fixture.fenced(sound(2, 12));
    fixture.wait();
    let longer = Inventory { copies: vec![copy(1, Closed, 10), proof], ..sound(3, 20) };
    assert_eq!(fixture.fenced(longer.clone()), []);
    fixture.now = fixture.now.plus(10);
    assert_eq!(fixture.step(Input::Tick), [Output::ReadConfig]);
    // This time it is waited for.
    let mut in_time = fixture.clone();
    in_time.claim_again();
    in_time.fenced(Inventory { promised: in_time.epoch, ..longer.clone() });
    assert_eq!(in_time.repair(), (3, Lsn(20)));
    // If it is late again, the others do without it.
    fixture.claim_again();
    let repairs = fixture.wait_for_disks().to_vec();
    assert_eq!(fixture.fenced(Inventory { promised: fixture.epoch, ..longer }), []);
    fixture.out = repairs;
    assert_eq!(fixture.repair(), (2, Lsn(18)));
}

/// Its silence would have been tolerated, so its word costs no epoch.
#[test]
fn late_word_of_a_member_has_the_store_read() {
    for failure in [Failure::Superseded(Epoch(9)), Failure::ClaimedBefore(Epoch(5))] {
        let mut fixture = Fixture::fencing(3, 2, None);
        fixture.fenced(sound(1, 18));
        fixture.fenced(sound(2, 12));
        let repairs = fixture.wait().to_vec();
        assert_eq!(fixture.refused(3, failure), [Output::ReadConfig]);
        let mut beaten = fixture.clone();
        assert_eq!(fixture.step(Input::Read(Ok(Some(claimed(3))))), []);
        fixture.out = repairs;
        assert_eq!(fixture.repair(), (2, Lsn(18)));
        let newer = Configuration { epoch: Epoch(9), claim: Claim(99), ..config(3) };
        assert_eq!(beaten.step(Input::Read(Ok(Some(newer)))), [Output::Lost(Epoch(9))]);
    }
}

/// Two members that are right never contradict each other. Against two that agree, the third is wrong.
#[test]
fn member_that_contradicts_two_others_is_left_out() {
    let other_first =
        CopyReport { closure: Closure { first: Lsn(12), ..copy(2, Open, 15).closure }, ..copy(2, Open, 15) };
    let other_epoch =
        CopyReport { identity: SegmentIdentity { epoch: Epoch(4), ..copy(2, Open, 15).identity }, ..copy(2, Open, 15) };
    for false_copy in [other_first, other_epoch] {
        let lying = |number| Inventory { copies: vec![copy(1, Closed, 10), false_copy], ..sound(number, 15) };
        for liar in 1..=3 {
            let mut fixture = Fixture::fencing(3, 2, None);
            for number in 1..=3 {
                fixture.fenced(if number == liar { lying(number) } else { sound(number, 12 + number as u64) });
            }
            let last = if liar == 3 { 14 } else { 15 };
            assert!(fixture.out.iter().filter_map(Output::task).all(|(_, task)| *task.member() != member(liar).id));
            assert_eq!(fixture.repair(), (2, Lsn(last)));
        }
        // Of two nobody knows which one is wrong; nor where one of the others cannot tell where its log ends.
        for third in [lost(3), damaged(3, vec![copy(1, Closed, 10)])] {
            let mut fixture = Fixture::fencing(3, 2, None);
            fixture.fenced(sound(1, 15));
            fixture.fenced(lying(2));
            fixture.fenced(third);
            fixture.wait();
            fixture.wait();
            assert!(matches!(fixture.waiting(), Some(Waiting::Damage(_))), "{:?}", fixture.out);
        }
    }
}

/// What the config store holds once this candidate has claimed epoch 6.
fn claimed(members: u128) -> Configuration {
    config(members).claimed_by(sidecar("s1"), Claim(7))
}

#[test]
fn unknown_promise_shows_that_the_store_went_back() {
    let mut fixture = Fixture::fencing(2, 1, None);
    for _ in 0..3 {
        assert_eq!(fixture.refused(1, Failure::Superseded(Epoch(9))), [Output::ReadConfig]);
        fixture.step(Input::Read(Ok(Some(claimed(2)))));
        let older = Waiting::StoreIsOlder { epoch: Epoch(6), member: member(1).id, promised: Epoch(9) };
        assert_eq!(fixture.out, [Output::Waiting(older)], "and nothing is claimed");
        fixture.now = fixture.now.plus(10);
        assert_eq!(fixture.step(Input::Tick), [Output::Fence(claimed(2), member(1))], "it may take its word back");
    }
    fixture.refused(1, Failure::Superseded(Epoch(9)));
    let newer = Configuration { epoch: Epoch(9), claim: Claim(99), ..config(2) };
    assert_eq!(fixture.step(Input::Read(Ok(Some(newer)))), [Output::Lost(Epoch(9))], "it is back");
}

#[test]
fn epoch_claimed_twice_is_not_skipped() {
    let mut fixture = Fixture::fencing(2, 1, None);
    assert_eq!(fixture.refused(1, Failure::ClaimedBefore(Epoch(5))), [Output::ReadConfig]);
    fixture.step(Input::Read(Ok(Some(claimed(2)))));
    assert!(matches!(fixture.waiting(), Some(Waiting::StoreIsOlder { .. })), "{:?}", fixture.out);
}

/// Both others are fenced and hold the log; nothing is recovered as long as the word stands.
fn held_up_by_a_word(failure: Failure) -> Fixture {
    let mut fixture = Fixture::fencing(3, 2, None);
    fixture.refused(1, failure);
    fixture.step(Input::Read(Ok(Some(claimed(3)))));
    fixture.fenced(sound(2, 15));
    assert_eq!(fixture.fenced(sound(3, 15)), []);
    fixture.wait();
    assert!(fixture.out.iter().all(|output| matches!(output, Output::Fence(..))), "{:?}", fixture.out);
    fixture
}

#[test]
fn member_may_take_its_word_back() {
    for failure in [Failure::Superseded(Epoch(9)), Failure::ClaimedBefore(Epoch(5))] {
        let mut fixture = held_up_by_a_word(failure);
        fixture.fenced(sound(1, 15));
        assert_eq!(fixture.repair(), (3, Lsn(15)));
    }
}

#[test]
fn word_that_nobody_repeats_ends() {
    for failure in [Failure::Superseded(Epoch(9)), Failure::ClaimedBefore(Epoch(5))] {
        let mut fixture = held_up_by_a_word(failure);
        assert_eq!(fixture.refused(1, Failure::Unreachable("it is gone".to_owned())), []);
        fixture.wait_for_disks();
        assert_eq!(fixture.repair(), (2, Lsn(15)));
    }
}

#[test]
fn word_that_is_repeated_holds() {
    let mut fixture = held_up_by_a_word(Failure::Superseded(Epoch(9)));
    for _ in 0..10 {
        fixture.now = fixture.now.plus(DISK_WAIT_MS / 2);
        assert_eq!(fixture.refused(1, Failure::Superseded(Epoch(9))), [Output::ReadConfig]);
        assert_eq!(fixture.refused(1, Failure::Superseded(Epoch(9))), [], "one read at a time");
        fixture.step(Input::Read(Ok(Some(claimed(3)))));
        assert!(matches!(fixture.waiting(), Some(Waiting::StoreIsOlder { .. })), "{:?}", fixture.out);
        fixture.step(Input::Tick);
        assert!(matches!(fixture.out[..], [Output::Fence(..)]), "{:?}", fixture.out);
    }
}

#[test]
fn word_that_cannot_be_true_is_silence() {
    for failure in
        [Failure::Superseded(Epoch(6)), Failure::Superseded(Epoch(1 << 40)), Failure::ClaimedBefore(Epoch(7))]
    {
        let mut fixture = Fixture::fencing(3, 2, None);
        assert_eq!(fixture.refused(1, failure), []);
        fixture.fenced(sound(2, 15));
        fixture.fenced(sound(3, 15));
        fixture.wait();
        assert_eq!(fixture.repair(), (2, Lsn(15)));
    }
}

#[test]
fn member_that_gives_its_word_when_to_be_repaired_is_left_out() {
    let mut fixture = Fixture::fencing(3, 2, None);
    (1..=3).for_each(|number| drop(fixture.fenced(sound(number, 15)).to_vec()));
    let (epoch, task) = fixture.out.iter().find_map(Output::task).expect("there is something to repair");
    let liar: u128 = task.member().as_str()[1..].parse().expect("a number");
    let refused = Input::Repaired(epoch, task, Err(Failure::Superseded(Epoch(9))));
    assert_eq!(fixture.step(refused), [Output::ReadConfig]);
    let [Output::Swap(swap)] = fixture.step(Input::Read(Ok(Some(claimed(3))))) else { panic!("{:?}", fixture.out) };
    fixture.epoch = swap.proposed.epoch;
    fixture.step(Input::Swapped(SwapOutcome::Applied));
    for number in 1..=3 {
        fixture.fenced(Inventory { promised: fixture.epoch, ..sound(number, 15) });
    }
    assert!(fixture.out.iter().filter_map(Output::task).all(|(_, task)| *task.member() != member(liar).id));
    assert_eq!(fixture.repair(), (2, Lsn(15)));
}

#[test]
fn accepting_the_older_store_skips_every_promised_epoch() {
    let mut fixture = Fixture::fencing(2, 1, Some(AcceptedLoss { log: LogId(1), last: Lsn(10) }));
    assert_eq!(fixture.refused(1, Failure::Superseded(Epoch(9))), [Output::ReadConfig]);
    let [Output::Swap(swap)] = fixture.step(Input::Read(Ok(Some(claimed(2))))) else { panic!("{:?}", fixture.out) };
    assert_eq!((swap.proposed.epoch, swap.proposed.earlier.len()), (Epoch(11), 0));
}

/// A member that has lost its memory. Its disk has the log up to `last`, and was synced up to `synced`.
fn on_disk(number: u128, last: u64, synced: u64) -> Inventory {
    let former = vec![BootId(77), BootId(number), BootId(78)];
    let synced = Some(Synced { epoch: Epoch(5), last: Lsn(synced) });
    Inventory { boot: BootId(99 + number), synced, former, ..sound(number, last) }
}

/// The set and cuts that the config store gets.
fn cuts(fixture: &mut Fixture) -> Vec<Cut> {
    loop {
        if let Some(Output::Swap(swap)) = fixture.out.iter().find(|output| matches!(output, Output::Swap(_))) {
            assert_eq!(swap.proposed.won, swap.proposed.epoch);
            return swap.proposed.cuts.clone();
        }
        let tasks: Vec<_> = fixture.out.iter().filter_map(Output::task).collect();
        assert!(!tasks.is_empty(), "{:?}", fixture.out);
        let mut out = Vec::new();
        for (epoch, task) in tasks {
            out.extend(fixture.step(Input::Repaired(epoch, task, Ok(()))).to_vec());
        }
        fixture.out = out;
    }
}

#[test]
fn config_store_remembers_where_a_person_has_ended_the_log() {
    let mut fixture = Fixture::fencing(2, 2, None);
    fixture.fenced(sound(1, 15));
    fixture.fenced(sound(2, 15));
    assert_eq!(cuts(&mut fixture), []);

    let accepted = Some(AcceptedLoss { log: LogId(1), last: Lsn(11) });
    let mut fixture = Fixture::fencing(2, 2, accepted);
    fixture.fenced(damaged(1, vec![copy(1, Closed, 10), cut(12, 20)]));
    fixture.fenced(damaged(2, vec![copy(1, Closed, 10), cut(13, 20)]));
    assert_eq!(cuts(&mut fixture), [Cut { epoch: Epoch(6), last: Lsn(13), ordered: Some(Lsn(11)) }]);

    let mut fixture = Fixture::from_disk(2, 1, None);
    fixture.fenced(on_disk(1, 15, 12));
    fixture.fenced(on_disk(2, 14, 12));
    if fixture.out.is_empty() {
        fixture.wait_for_disks();
    }
    assert_eq!(cuts(&mut fixture), [Cut { epoch: Epoch(6), last: Lsn(15), ordered: None }]);
}

#[test]
fn order_ends_with_what_it_has_done() {
    let accepted = AcceptedLoss { log: LogId(1), last: Lsn(11) };
    let recovery = DiskRecovery { log: LogId(1), after: Epoch(4) };
    let before = config(2);
    assert!(accepted.is_for(&before) && recovery.is_for(&before));
    let claimed = before.claimed_by(sidecar("s1"), Claim(7));
    assert!(accepted.is_for(&claimed) && recovery.is_for(&claimed), "until somebody wins");
    let by_acceptance = Cut { epoch: claimed.epoch, last: Lsn(13), ordered: Some(Lsn(11)) };
    for cut in [by_acceptance, Cut { ordered: None, ..by_acceptance }] {
        let won = claimed.won_with(claimed.members.clone(), Some(cut));
        assert_eq!((accepted.is_for(&won), recovery.is_for(&won)), (cut.ordered.is_none(), false));
        let again = AcceptedLoss { last: Lsn(12), ..accepted };
        assert!(again.is_for(&won), "another order");
    }
    assert_eq!("0000000000000000000000000000000a/7".parse(), Ok(DiskRecovery { log: LogId(10), after: Epoch(7) }));
    for bad in ["0000000000000000000000000000000a", "a/x", "/7", "0000000000000000000000000000000a/"] {
        assert!(bad.parse::<DiskRecovery>().is_err(), "{bad}");
    }
}

/// A position of an earlier history names the same record as long as no cut since has taken it.
#[test]
fn histories_have_their_beginning_in_common() {
    let log = LogId(0x0102_0304_0506_0708_1112_1314_2122_2324);
    let cut = |epoch, last| Cut { epoch: Epoch(epoch), last: Lsn(last), ordered: None };
    let go_on = |history: History, next, cuts: &[Cut]| {
        let mut known = history;
        let gone_on = known.go_on(Lsn(next), log, cuts);
        assert_eq!(known, if gone_on.is_ok() { History::of(log, cuts) } else { history });
        gone_on
    };
    let mut histories = vec![History::of(log, &[])];
    assert_eq!(histories[0].to_string(), "2122232400000001");
    assert_eq!(go_on(histories[0], 500, &[]), Ok(()));
    let mut won = config(2);
    for (epoch, last) in [(6, 400), (9, 900), (12, 300)] {
        won = Configuration { epoch: Epoch(epoch), ..won.clone() }.won_with(Vec::new(), Some(cut(epoch, last)));
        histories.push(History::of(log, &won.cuts));
    }
    for history in &histories[..3] {
        assert_eq!(go_on(*history, 301, &won.cuts), Ok(()), "record 300 is the same in all of them");
        assert_eq!(go_on(*history, 302, &won.cuts), Err(Parted::Cut(Lsn(300))));
    }
    for history in [histories[3], History::UNKNOWN] {
        assert_eq!(go_on(history, 1000, &won.cuts), Ok(()));
    }
    let before = &won.cuts[..2];
    assert_eq!(go_on(histories[1], 901, before), Ok(()));
    assert_eq!(go_on(histories[1], 902, before), Err(Parted::Cut(Lsn(900))));
    assert_eq!(go_on(histories[3], 1, before), Err(Parted::NotKnown), "the cut of epoch 12 has not been read here");
    let another = LogId(log.0 ^ 1);
    assert_eq!(histories[0].clone().go_on(Lsn(1), another, &[]), Err(Parted::OtherLog(another)));
    for epoch in 13..40 {
        won = Configuration { epoch: Epoch(epoch), ..won.clone() }.won_with(Vec::new(), Some(cut(epoch, epoch * 100)));
    }
    assert_eq!(won.cuts.len(), CUTS_KEPT);
    let forgotten = go_on(histories[0], 302, &won.cuts);
    assert_eq!(forgotten, Err(Parted::Cut(Lsn(300))), "what is forgotten is not given back");
}

#[test]
fn disk_counts_only_by_a_persons_order() {
    for ordered in [None, Some(LogId(2)), Some(LogId(1))] {
        let mut fixture = Fixture::with(3, 2, None, ordered);
        fixture.fenced(on_disk(2, 15, 12));
        assert_eq!(fixture.fenced(lost(1)), [], "others may answer yet");
        fixture.wait_for_disks();
        if ordered == Some(LogId(1)) {
            assert_eq!(fixture.repair(), (1, Lsn(15)), "one disk suffices, and the set gets its new identity");
        } else {
            let Some(Waiting::Members { fenced: 0, missing, .. }) = fixture.waiting() else {
                panic!("{:?}", fixture.out)
            };
            assert!(missing.contains("m2 (its memory is new; its disk was synced up to LSN 12"), "{missing}");
        }
    }
}

#[test]
fn recovery_from_disk_reaches_what_was_synced() {
    let mut fixture = Fixture::from_disk(3, 1, None);
    fixture.fenced(on_disk(1, 13, 14));
    fixture.wait_for_disks();
    fixture.wait();
    let told = fixture.waiting().map(ToString::to_string).unwrap_or_default();
    assert!(told.contains("does not reach LSN 14, up to which it was synced"), "{told}");
    // Another member's disk reaches it.
    fixture.fenced(on_disk(2, 14, 14));
    assert_eq!(fixture.repair(), (2, Lsn(14)));
}

/// Hosts boot one after the other, and a disk that is left out goes into quarantine.
#[test]
fn disk_that_reaches_furthest_decides_though_it_comes_later() {
    let mut fixture = Fixture::from_disk(3, 1, None);
    fixture.fenced(on_disk(1, 13, 12));
    fixture.wait();
    fixture.wait();
    fixture.fenced(on_disk(2, 20, 12));
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Members { .. })), "{:?}", fixture.out);
    fixture.fenced(on_disk(3, 15, 12));
    assert_eq!(fixture.repair(), (3, Lsn(20)), "all have answered");
}

#[test]
fn person_may_accept_less_than_was_synced() {
    let mut fixture = Fixture::from_disk(2, 1, Some(AcceptedLoss { log: LogId(1), last: Lsn(10) }));
    fixture.fenced(on_disk(1, 12, 14));
    fixture.wait_for_disks();
    assert_eq!(fixture.repair(), (1, Lsn(12)));
}

#[test]
fn empty_backup_with_a_members_name_does_not_count() {
    let mut fixture = Fixture::from_disk(2, 1, None);
    fixture.fenced(Inventory { copies: vec![], former: vec![BootId(77)], ..on_disk(1, 11, 0) });
    fixture.wait();
    assert!(matches!(fixture.waiting(), Some(Waiting::Members { fenced: 0, .. })), "{:?}", fixture.out);
}

#[test]
fn enough_members_with_their_memory_need_no_disk() {
    let mut fixture = Fixture::from_disk(3, 1, None);
    fixture.fenced(on_disk(1, 20, 20));
    fixture.fenced(sound(2, 18));
    fixture.fenced(sound(3, 18));
    fixture.wait();
    assert_eq!(fixture.repair(), (2, Lsn(18)), "what they hold is the log, as always");
}
