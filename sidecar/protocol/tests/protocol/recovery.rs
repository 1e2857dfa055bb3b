//! The recovered log, put together from hand-made inventories: what is chosen, what is repaired, what is refused.

use tailwind_protocol::ids::{BootId, Epoch, Generation, LogId, Lsn, MemberId, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::recovery::{Damage, Reference, RepairPlan};
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};

use CopyState::{Closed, Corrupt, Open};

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(segment),
        epoch: Epoch(epoch),
        generation: Generation(segment << 8 | epoch),
        size: SegmentSize::MIN,
    }
}

/// The closure that every copy of these records has, at any member.
fn closure(first: u64, last: u64) -> Closure {
    let records = last + 1 - first;
    let (first, last) = (Lsn(first), Lsn(last));
    Closure { first, last, end: Offset(72 + 48 * records as u32), chain: Chain(last.0 as u32) }
}

fn copy(segment: u64, epoch: u64, state: CopyState, first: u64, last: u64) -> CopyReport {
    CopyReport { identity: identity(segment, epoch), state, closure: closure(first, last), acked: Offset(0) }
}

/// A buffer whose segment header is there (`first` known) and no record.
fn empty(segment: u64, epoch: u64, first: u64) -> CopyReport {
    copy(segment, epoch, Open, first, first - 1)
}

fn member(name: &str) -> MemberId {
    name.parse().expect("a name")
}

fn holds(name: &str, copies: &[CopyReport]) -> Inventory {
    Inventory {
        member: member(name),
        boot: BootId(1),
        log: Some(LogId(1)),
        promised: Epoch(9),
        trimmed: Lsn(0),
        damage: Vec::new(),
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: copies.to_vec(),
        more: false,
    }
}

fn names(holders: &[MemberId]) -> String {
    holders.iter().map(MemberId::as_str).collect::<Vec<_>>().join(" ")
}

/// Each segment as (segment, epoch, first, last, holders).
fn segments(reference: &Reference) -> Vec<(u64, u64, u64, u64, String)> {
    let line = |s: &tailwind_protocol::recovery::ClosedSegment| {
        let (id, c) = (s.identity, s.closure);
        (id.segment.0, id.epoch.0, c.first.0, c.last.0, names(&s.holders))
    };
    reference.segments.iter().map(line).collect()
}

fn assembled(inventories: &[Inventory]) -> Vec<(u64, u64, u64, u64, String)> {
    segments(&Reference::assemble(inventories, &[]).expect("a whole log"))
}

fn missing(inventories: &[Inventory]) -> (u64, u64) {
    let Err(Damage::Missing { segment, last }) = Reference::assemble(inventories, &[]) else { panic!("a whole log") };
    (segment.0, last.0)
}

#[test]
fn new_log_is_empty() {
    let reference =
        Reference::assemble(&[holds("m1", &[]), holds("m2", &[empty(1, 1, 1)])], &[]).expect("an empty log");
    assert_eq!((reference.last(), reference.last_segment()), (Lsn(0), SegmentId(0)));
}

#[test]
fn the_furthest_valid_end_is_the_end() {
    let short = holds("m1", &[copy(1, 1, Open, 1, 3)]);
    let long = holds("m2", &[copy(1, 1, Open, 1, 5)]);
    assert_eq!(assembled(&[short, long]), [(1, 1, 1, 5, "m2".to_owned())]);
}

#[test]
fn holders_have_the_same_copy() {
    let sources = [
        holds("m1", &[copy(1, 1, Closed, 1, 5)]),
        holds("m2", &[copy(1, 1, Open, 1, 5)]),
        holds("m3", &[copy(1, 1, Open, 1, 6)]),
        holds("m4", &[copy(1, 1, Corrupt, 1, 5), copy(2, 2, Open, 6, 6)]),
    ];
    assert_eq!(assembled(&sources)[0], (1, 1, 1, 5, "m1 m2".to_owned()));
}

/// Two of three members have the same copy. One that says otherwise would have its bytes replace theirs.
#[test]
fn one_member_does_not_outvote_two() {
    let closed = copy(1, 1, Closed, 1, 5);
    let false_closures = [
        Closure { end: Offset(closed.closure.end.0 + 800), ..closed.closure },
        Closure { chain: Chain(99), ..closed.closure },
    ];
    let false_identities = [
        SegmentIdentity { generation: Generation(99), ..closed.identity },
        SegmentIdentity { size: SegmentSize::DEFAULT, ..closed.identity },
    ];
    let lies = false_closures.map(|closure| CopyReport { closure, ..closed }).into_iter();
    let lies = lies.chain(false_identities.map(|identity| CopyReport { identity, ..closed }));
    let honest = |name: &str, state| holds(name, &[CopyReport { state, ..closed }, copy(2, 1, Open, 6, 9)]);
    for lie in lies {
        let liar = |name: &str| holds(name, &[lie, copy(2, 1, Open, 6, 9)]);
        for [one, two, other] in [["m1", "m2", "m3"], ["m2", "m3", "m1"]] {
            // Whether its copy is closed or open at the others.
            for state in [Closed, Open] {
                let told = [honest(one, state), honest(two, state), liar(other)];
                let reference = Reference::assemble(&told, &[]).expect("a whole log");
                let first = &reference.segments[0];
                assert_eq!((first.identity, first.closure), (closed.identity, closed.closure), "{lie:?}");
                assert_eq!(names(&first.holders), format!("{one} {two}"));
            }
        }
    }
}

#[test]
fn later_epoch_beats_a_longer_tail() {
    // m1 was outrun: its segment 2 of epoch 1 goes far, but epoch 2 began after a log that ended at 5.
    let longer = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Closed, 6, 90)]);
    let later = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 2, Open, 6, 6)]);
    let doubtful = Inventory { witness: false, ..longer.clone() };
    assert_eq!(
        assembled(&[doubtful, later.clone()]),
        [(1, 1, 1, 5, "m1 m2".to_owned()), (2, 2, 6, 6, "m2".to_owned())]
    );
    // One that has not been outrun has dropped that segment. If it says that it has not, one of the two is wrong.
    let two_epochs = Damage::TwoEpochs { segment: SegmentId(2), earlier: Epoch(1), later: Epoch(2) };
    assert_eq!(Reference::assemble([&longer, &later], &[]), Err(two_epochs));
}

#[test]
fn later_epoch_without_records_decides_nothing() {
    let old = holds("m1", &[copy(1, 1, Open, 1, 5)]);
    let new = holds("m2", &[copy(1, 1, Open, 1, 4), empty(2, 2, 5)]);
    assert_eq!(assembled(&[old, new]), [(1, 1, 1, 5, "m1".to_owned())]);
}

#[test]
fn buffers_opened_ahead_are_not_part_of_the_log() {
    let inventory = holds("m1", &[copy(1, 1, Closed, 1, 5), empty(2, 1, 6), empty(3, 1, 6)]);
    assert_eq!(assembled(std::slice::from_ref(&inventory)).len(), 1);
}

#[test]
fn segment_is_taken_from_a_member_that_has_it_whole() {
    let sources = [
        holds("m1", &[copy(1, 1, Corrupt, 1, 5), copy(2, 1, Open, 6, 9)]),
        holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 7)]),
    ];
    assert_eq!(assembled(&sources), [(1, 1, 1, 5, "m2".to_owned()), (2, 1, 6, 9, "m1".to_owned())]);
}

#[test]
fn gap_is_a_loss_and_not_an_end() {
    let gap = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(3, 1, Open, 10, 12)]);
    assert_eq!(missing(std::slice::from_ref(&gap)), (2, 9));
    // A copy that was closed elsewhere, of another opening of the segment, does not fill it.
    let elsewhere = holds("m2", &[copy(2, 2, Closed, 6, 8), copy(3, 3, Closed, 10, 12)]);
    let elsewhere = Inventory { witness: false, ..elsewhere };
    assert_eq!(missing(&[gap.clone(), elsewhere]), (2, 9));
    let whole = holds("m2", &[copy(2, 1, Closed, 6, 9)]);
    assert_eq!(assembled(&[gap, whole]).len(), 3);
}

#[test]
fn corrupt_last_segment_is_not_cut_off() {
    let corrupt = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Corrupt, 6, 9)]);
    assert_eq!(missing(std::slice::from_ref(&corrupt)), (2, 9));
    let behind = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 7)]);
    assert_eq!(missing(&[corrupt.clone(), behind]), (2, 9));
    let sound = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 9)]);
    assert_eq!(assembled(&[corrupt, sound])[1], (2, 1, 6, 9, "m2".to_owned()));
}

#[test]
fn other_backups_may_supply_a_segment_no_member_has() {
    let members = [
        holds("m1", &[copy(1, 1, Corrupt, 1, 5), copy(2, 1, Open, 6, 9)]),
        holds("m2", &[copy(1, 1, Corrupt, 1, 5), copy(2, 1, Open, 6, 7)]),
    ];
    assert_eq!(missing(&members), (1, 5));
    let others = [
        holds("m3", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Closed, 6, 99)]),
        holds("m4", &[copy(1, 1, Corrupt, 1, 5)]),
        holds("m5", &[copy(1, 1, Closed, 1, 5)]),
    ];
    let reference = Reference::assemble(&members, &others).expect("a whole log");
    assert_eq!(segments(&reference), [(1, 1, 1, 5, "m3 m5".to_owned()), (2, 1, 6, 9, "m1".to_owned())]);
    assert_eq!(plan(&reference, &members[1]), (vec![], vec![1, 2], vec![]));
    // Another opening, another end, or not closed: nothing vouches for those bytes.
    for other in [copy(1, 2, Closed, 1, 5), copy(1, 1, Closed, 1, 6), copy(1, 1, Open, 1, 5)] {
        let other = [holds("m3", &[other])];
        assert!(matches!(Reference::assemble(&members, &other), Err(Damage::Missing { .. })));
    }
    // They say nothing of what no member has ever closed.
    let gap = holds("m1", &[copy(2, 1, Open, 6, 9)]);
    assert!(matches!(Reference::assemble([&gap], &others), Err(Damage::Missing { .. })));
}

/// A buffer of which not even the segment header has landed.
fn blank(segment: u64, epoch: u64) -> CopyReport {
    CopyReport { closure: Closure::default(), ..copy(segment, epoch, Open, 1, 0) }
}

#[test]
fn log_torn_across_segments_ends_at_the_furthest_open_end() {
    let before = copy(1, 1, Closed, 1, 5);
    let beyond = copy(3, 1, Open, 10, 12);
    let torn = holds("m1", &[before, copy(2, 1, Open, 6, 7), beyond]);
    assert_eq!(assembled(std::slice::from_ref(&torn))[1..], [(2, 1, 6, 7, "m1".to_owned())]);
    // The copy with more of it decides, and a whole copy saves what lies beyond.
    let more = holds("m2", &[before, copy(2, 1, Open, 6, 8)]);
    assert_eq!(assembled(&[torn.clone(), more])[1..], [(2, 1, 6, 8, "m2".to_owned())]);
    let whole = holds("m2", &[before, copy(2, 1, Open, 6, 9)]);
    assert_eq!(assembled(&[torn.clone(), whole]).len(), 3);
    // It must be open at some member.
    let absent = holds("m2", &[before, beyond]);
    assert_eq!(missing(std::slice::from_ref(&absent)), (2, 9));
    assert_eq!(assembled(&[torn, absent])[1..], [(2, 1, 6, 7, "m1".to_owned())]);
}

#[test]
fn first_of_several_holes_is_the_end() {
    let m1 = holds("m1", &[copy(1, 1, Open, 1, 3), copy(2, 1, Open, 6, 7), copy(3, 1, Open, 10, 12)]);
    assert_eq!(assembled(std::slice::from_ref(&m1)), [(1, 1, 1, 3, "m1".to_owned())]);
    let m2 = holds("m2", &[copy(1, 1, Closed, 1, 5), blank(2, 1)]);
    assert_eq!(assembled(&[m1, m2]), [(1, 1, 1, 5, "m2".to_owned()), (2, 1, 6, 7, "m1".to_owned())]);
}

#[test]
fn torn_segment_without_records_ends_the_log_before_it() {
    let beyond = copy(3, 1, Open, 10, 12);
    for nothing in [empty(2, 1, 6), blank(2, 1)] {
        let m1 = holds("m1", &[copy(1, 1, Open, 1, 5), nothing, beyond]);
        assert_eq!(assembled(std::slice::from_ref(&m1)), [(1, 1, 1, 5, "m1".to_owned())]);
        let corrupt = holds("m1", &[copy(1, 1, Corrupt, 1, 5), nothing, beyond]);
        assert_eq!(missing(std::slice::from_ref(&corrupt)), (1, 5));
    }
    // The header says where the one before ends: it may be torn too, but it must be there.
    let both = holds("m1", &[copy(1, 1, Open, 1, 4), empty(2, 1, 6), beyond]);
    assert_eq!(assembled(std::slice::from_ref(&both)), [(1, 1, 1, 4, "m1".to_owned())]);
    assert_eq!(missing(&[holds("m1", &[empty(2, 1, 6), beyond])]), (1, 5));
    assert_eq!(missing(&[holds("m1", &[blank(2, 1), beyond])]), (2, 9));
    // Nothing of the very first segment has landed.
    assert_eq!(assembled(&[holds("m1", &[blank(1, 1), copy(2, 1, Open, 6, 9)])]), []);
}

#[test]
fn several_consecutive_segments_may_be_unwritten() {
    let beyond = copy(4, 1, Open, 10, 12);
    let closed = copy(1, 1, Closed, 1, 5);
    let m1 = holds("m1", &[closed, blank(2, 1), blank(3, 1), beyond]);
    assert_eq!(assembled(std::slice::from_ref(&m1)), [(1, 1, 1, 5, "m1".to_owned())]);
    // Of the first of them, only the header has landed.
    let m1 = holds("m1", &[copy(1, 1, Open, 1, 4), empty(2, 1, 6), blank(3, 1), beyond]);
    assert_eq!(assembled(std::slice::from_ref(&m1)), [(1, 1, 1, 4, "m1".to_owned())]);
    let all = holds("m1", &[blank(1, 1), blank(2, 1), blank(3, 1), beyond]);
    assert_eq!(assembled(std::slice::from_ref(&all)), []);
    // One that is not even open was closed here, and is gone.
    assert_eq!(missing(&[holds("m1", &[closed, blank(3, 1), beyond])]), (3, 9));
    // Another member has closed what follows, so all of them were whole.
    let m1 = holds("m1", &[closed, blank(2, 1), blank(3, 1), beyond]);
    assert_eq!(missing(&[m1, holds("m2", &[closed, copy(4, 1, Closed, 10, 12)])]), (3, 9));
}

#[test]
fn closed_segment_is_not_cut_off() {
    let torn = copy(2, 1, Open, 6, 7);
    let open = holds("m1", &[copy(1, 1, Closed, 1, 5), torn, copy(3, 1, Open, 10, 12)]);
    let itself = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Corrupt, 6, 9)]);
    assert_eq!(missing(&[open.clone(), itself]), (2, 9));
    let later = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(3, 1, Closed, 10, 12)]);
    assert_eq!(missing(&[open, later]), (2, 9));
    // A segment that a later epoch follows was whole, too.
    let followed = holds("m1", &[copy(1, 1, Closed, 1, 5), torn, copy(3, 2, Open, 10, 12)]);
    assert_eq!(missing(std::slice::from_ref(&followed)), (2, 9));
    // And what was trimmed.
    let trimmed = Inventory { trimmed: Lsn(8), ..holds("m1", &[torn, copy(3, 1, Open, 10, 12)]) };
    assert_eq!(missing(std::slice::from_ref(&trimmed)), (2, 9));
}

#[test]
fn interrupted_promotion_may_have_cut_the_log_already() {
    // It had closed segment 2 at m2, where it found the furthest end, and not yet dropped segment 3 at m1.
    let undropped = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 7), copy(3, 1, Open, 10, 12)]);
    let cut = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Closed, 6, 8)]);
    assert_eq!(assembled(&[undropped.clone(), cut])[1..], [(2, 1, 6, 8, "m2".to_owned())]);
    let rotten = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Corrupt, 6, 8)]);
    assert_eq!(missing(&[undropped, rotten]), (2, 8));
}

#[test]
fn interrupted_promotion_may_have_closed_a_later_segment() {
    // Another member had segment 2 whole and is gone; at m1 segment 3 was closed before the image of segment 2 came.
    let m1 = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 7), copy(3, 1, Closed, 10, 12)]);
    assert_eq!(assembled(std::slice::from_ref(&m1))[1..], [(2, 1, 6, 7, "m1".to_owned())]);
    let reference = Reference::assemble([&m1], &[]).expect("a whole log");
    assert_eq!(plan(&reference, &m1), (vec![2], vec![], vec![3]));
}

#[test]
fn segments_beyond_a_torn_end_are_dropped() {
    let m1 = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 7), copy(3, 1, Open, 10, 12), blank(4, 1)]);
    let reference = Reference::assemble([&m1], &[]).expect("a whole log");
    assert_eq!(plan(&reference, &m1), (vec![2], vec![], vec![3, 4]));
    // The member that did not answer has it whole, and may have closed it.
    for state in [Open, Closed, Corrupt] {
        let late = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, state, 6, 9), copy(3, 1, state, 10, 11)]);
        let expected = if state == Open { (vec![2], vec![], vec![3]) } else { (vec![], vec![2], vec![3]) };
        assert_eq!(plan(&reference, &late), expected);
    }
}

#[test]
fn trimmed_beginning_is_no_loss() {
    let alone = holds("m1", &[copy(2, 1, Closed, 6, 9), copy(3, 1, Open, 10, 10)]);
    assert_eq!(missing(std::slice::from_ref(&alone)), (1, 5));
    let told = Inventory { trimmed: Lsn(6), ..alone };
    assert_eq!(assembled(std::slice::from_ref(&told)).len(), 2);
}

#[test]
fn segment_trimmed_at_one_member_is_not_required() {
    let trimmed = Inventory { trimmed: Lsn(6), ..holds("m1", &[copy(2, 1, Closed, 6, 9)]) };
    let deaf = holds("m2", &[copy(1, 1, Corrupt, 1, 5), copy(2, 1, Closed, 6, 9)]);
    assert_eq!(assembled(&[trimmed, deaf]), [(2, 1, 6, 9, "m1 m2".to_owned())]);
}

/// With three members one may lie: nothing goes that the two others hold.
#[test]
fn one_members_word_trims_nothing_that_others_hold() {
    let all = [copy(1, 1, Closed, 1, 5), copy(2, 1, Closed, 6, 9), copy(3, 1, Open, 10, 12)];
    let honest = || [holds("m1", &all), holds("m2", &all)];
    for (said, copies) in [(12, &all[2..]), (13, &all[2..]), (6, &all[1..]), (1 << 40, &all[..]), (10, &[])] {
        let liar = Inventory { trimmed: Lsn(said), ..holds("m0", copies) };
        let found = assembled(&[vec![liar.clone()], honest().to_vec()].concat());
        assert_eq!(found.iter().map(|segment| segment.0).collect::<Vec<_>>(), [1, 2, 3], "LSN {said}");
        let [one, _] = honest();
        assert_eq!(assembled(&[liar, one])[0].2, 1, "of two members neither is believed alone: LSN {said}");
    }
    // Two say so: it was trimmed, and the third has not heard of it.
    let told = |name| Inventory { trimmed: Lsn(10), ..holds(name, &all[2..]) };
    assert_eq!(assembled(&[told("m0"), told("m1"), holds("m2", &all)]).len(), 1);
}

/// What nobody holds may have been trimmed, if some member says so and nothing older is left.
#[test]
fn one_members_word_excuses_what_nobody_holds() {
    let told = Inventory { trimmed: Lsn(6), ..holds("m0", &[copy(2, 1, Closed, 6, 9)]) };
    let rotten = holds("m1", &[copy(1, 1, Corrupt, 1, 5), copy(2, 1, Closed, 6, 9)]);
    assert_eq!(assembled(&[told, rotten]).len(), 1);
    let told = Inventory { trimmed: Lsn(10), ..holds("m0", &[copy(3, 1, Closed, 10, 12)]) };
    let gap = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Corrupt, 6, 9), copy(3, 1, Closed, 10, 12)]);
    assert_eq!(missing(&[told, gap]), (2, 9));
}

/// Nobody holds the segment to the end at which the next one begins, but its beginning is there. The liar's copy of the next one
/// is of a log that an earlier epoch has cut.
#[test]
fn one_members_word_excuses_no_copy_that_ends_too_early() {
    let beginning = copy(1, 1, Closed, 1, 3);
    let liar = Inventory { trimmed: Lsn(10), ..holds("m0", &[beginning, copy(2, 1, Closed, 6, 9)]) };
    for witness in [true, false] {
        let liar = Inventory { witness, ..liar.clone() };
        assert_eq!(missing(&[liar, holds("m1", &[beginning, empty(2, 5, 4)])]), (1, 5));
    }
}

/// A member whose folder was put back has segments that the others have trimmed since, and lacks those in between.
#[test]
fn older_copy_does_not_call_for_what_was_trimmed() {
    let told = Inventory { trimmed: Lsn(10), ..holds("m0", &[copy(3, 1, Closed, 10, 12)]) };
    let older = |witness| Inventory { witness, ..holds("m1", &[copy(1, 1, Closed, 1, 5)]) };
    let damage =
        Reference::assemble(&[told.clone(), older(true)], &[]).expect_err("one of two witnesses has lost something");
    assert!(matches!(damage, Damage::Missing { .. }), "{damage}");
    assert_eq!(assembled(&[told, older(false)]), [(3, 1, 10, 12, "m0".to_owned())]);
    // One that was never closed outlives the trim at the very member that has trimmed it: its file could not be written.
    let left_over = holds("m0", &[copy(1, 1, Open, 1, 5), copy(3, 1, Closed, 10, 12)]);
    let left_over = Inventory { trimmed: Lsn(10), ..left_over };
    assert_eq!(assembled(&[left_over, older(false)]), [(3, 1, 10, 12, "m0".to_owned())]);
}

#[test]
fn trimmed_log_without_segments_is_lost() {
    let bare = Inventory { trimmed: Lsn(6), ..holds("m1", &[]) };
    assert_eq!(missing(std::slice::from_ref(&bare)), (0, 5));
}

/// Segments to close, to install, to drop.
type Plan = (Vec<u64>, Vec<u64>, Vec<u64>);

fn plan(reference: &Reference, inventory: &Inventory) -> Plan {
    let plan = RepairPlan::new(reference.segments.iter().map(|s| (&s.identity, &s.closure)), inventory);
    let numbers = |list: &[(SegmentIdentity, Closure)]| list.iter().map(|(id, _)| id.segment.0).collect();
    let dropped = plan.drop.iter().map(|copy| copy.identity.segment.0).collect();
    (numbers(&plan.close), numbers(&plan.install), dropped)
}

#[test]
fn plan_closes_copies_that_reach_the_end_and_installs_the_rest() {
    let whole = holds("m1", &[copy(1, 1, Closed, 1, 5), copy(2, 2, Open, 6, 9), empty(3, 2, 10)]);
    let reference = Reference::assemble([&whole], &[]).expect("a whole log");
    let table: [(&str, Inventory, Plan); 8] = [
        ("itself", whole.clone(), (vec![2], vec![], vec![3])),
        ("nothing", holds("m", &[]), (vec![], vec![1, 2], vec![])),
        ("all of it", holds("m", &[copy(1, 1, Closed, 1, 5), copy(2, 2, Closed, 6, 9)]), (vec![], vec![], vec![])),
        ("a shorter tail", holds("m", &[copy(1, 1, Closed, 1, 5), copy(2, 2, Open, 6, 7)]), (vec![], vec![2], vec![])),
        ("a longer one", holds("m", &[copy(1, 1, Closed, 1, 5), copy(2, 2, Open, 6, 11)]), (vec![2], vec![], vec![])),
        ("a corrupt one", holds("m", &[copy(1, 1, Corrupt, 1, 5), copy(2, 2, Open, 6, 9)]), (vec![2], vec![1], vec![])),
        (
            "another opening of segment 2, and 3",
            holds("m", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Open, 6, 12), copy(3, 1, Open, 13, 20)]),
            (vec![], vec![2], vec![3]),
        ),
        (
            "segment 1 closed elsewhere by a promotion that broke off",
            holds("m", &[copy(1, 1, Closed, 1, 4), copy(2, 2, Open, 6, 9)]),
            (vec![2], vec![1], vec![]),
        ),
    ];
    for (what, inventory, expected) in table {
        assert_eq!(plan(&reference, &inventory), expected, "{what}");
    }
}

#[test]
fn older_closed_segments_are_left_for_the_trim() {
    let trimmed = Inventory { trimmed: Lsn(6), ..holds("m1", &[copy(2, 1, Closed, 6, 9)]) };
    let reference = Reference::assemble([&trimmed], &[]).expect("a whole log");
    let deaf = holds("m2", &[copy(1, 1, Closed, 1, 5), copy(2, 1, Closed, 6, 9)]);
    assert_eq!(plan(&reference, &deaf), (vec![], vec![], vec![]));
    // But not if it reaches into what is still needed: then it is of another life of the log.
    let stray = holds("m2", &[copy(1, 1, Closed, 1, 7), copy(2, 1, Closed, 6, 9)]);
    assert_eq!(plan(&reference, &stray), (vec![], vec![], vec![1]));
}

#[test]
fn empty_log_drops_everything() {
    let reference = Reference::default();
    assert_eq!(plan(&reference, &holds("m1", &[empty(1, 1, 1), empty(2, 1, 1)])), (vec![], vec![], vec![1, 2]));
}
