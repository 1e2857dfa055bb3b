//! What a backup says of itself when something that it owes is gone, rotten, foreign or newer than its promise; and that it
//! gives nothing up that may be the last copy.

use tailwind_protocol::backup::{
    Backup, EPOCH_JUMP_MAX, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, GroupName, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, CopyState, DropRequest, FenceRequest, Inventory, OpenRequest, Purpose, Refusal,
};
use tailwind_protocol::scan::Tail;

use crate::limits::limits;

const SLOTS: u32 = 4;

struct Fixture {
    backup: Backup,
    requests: u64,
    /// What scans find.
    tail: Tail,
    /// What verifications find.
    sound: bool,
    out: Vec<Output>,
}

impl Fixture {
    fn start(found: Found) -> Fixture {
        Fixture::start_with(found, Tail::default(), true)
    }

    fn start_with(found: Found, tail: Tail, sound: bool) -> Fixture {
        Fixture::start_within(SLOTS, found, tail, sound)
    }

    /// The fixture of a backup that may have so many buffers lent or not yet on disk.
    fn start_within(unflushed_slots_max: u32, found: Found, tail: Tail, sound: bool) -> Fixture {
        let unflushed_bytes_max = u64::from(unflushed_slots_max * SegmentSize::MIN.bytes());
        let limits = Limits { unflushed_bytes_max, ..limits(SLOTS) };
        let (backup, out) = Backup::start(group(), "m1".parse().expect("a name"), BootId(1), limits, found);
        let mut fixture = Fixture { backup, requests: 0, tail, sound, out: Vec::new() };
        fixture.carry(out);
        fixture
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        self.backup.step(input, &mut out);
        self.carry(out);
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            self.out.push(output.clone());
            match output {
                Output::Scan(slot, _) => self.step(Input::Scanned(slot, self.tail)),
                Output::Verify(slot, ..) => self.step(Input::Verified(slot, self.sound)),
                Output::Lend(id, slot, _) => self.step(Input::Lent(id, slot, Ok(()))),
                _ => {}
            }
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.out.clear();
        self.step(Input::Request(id, request));
        let reply = self.out.iter().find_map(|output| match output {
            Output::Reply(to, reply) if *to == id => Some(reply.clone()),
            _ => None,
        });
        reply.expect("an answer")
    }

    fn fence(&mut self, epoch: u64) -> Inventory {
        match self.ask(Request::Fence(fence(epoch))) {
            Reply::Inventory(inventory) => inventory,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, epoch: u64, identity: SegmentIdentity, purpose: Purpose) -> Reply {
        let durability = Durability::Memory;
        self.ask(Request::Open(OpenRequest { caller: caller(epoch), identity, purpose, durability }))
    }

    fn close(&mut self, epoch: u64, identity: SegmentIdentity, closure: Closure) -> Reply {
        self.ask(Request::Close(CloseRequest { caller: caller(epoch), identity, closure }))
    }

    fn states(&self) -> Vec<(u64, CopyState)> {
        let copies = self.backup.inventory().copies;
        copies.iter().map(|copy| (copy.identity.segment.0, copy.state)).collect()
    }
}

fn group() -> GroupName {
    "g".parse().expect("a name")
}

fn caller(epoch: u64) -> Caller {
    Caller { group: group(), log: LogId(1), epoch: Epoch(epoch) }
}

/// Each epoch has one claim here, ten times its number.
fn fence(epoch: u64) -> FenceRequest {
    let earlier = (1..epoch).rev().take(32).map(|epoch| Claim(epoch.wrapping_mul(10))).collect();
    FenceRequest {
        caller: caller(epoch),
        claim: Claim(epoch.wrapping_mul(10)),
        earlier,
        won: Epoch(0),
        joined: None,
        after: None,
    }
}

fn identity(segment: u64) -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(segment),
        epoch: Epoch(3),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    }
}

fn closure(segment: u64) -> Closure {
    let (first, last) = (Lsn(segment * 10 - 9), Lsn(segment * 10));
    Closure { first, last, end: Offset(72 + 480), chain: Chain(segment as u32) }
}

fn owed(segments: &[u64]) -> Vec<(SegmentIdentity, Closure)> {
    segments.iter().map(|segment| (identity(*segment), closure(*segment))).collect()
}

fn promise() -> Promise {
    Promise { log: Some(LogId(1)), epoch: Epoch(3), claim: Some(Claim(30)), ..Promise::default() }
}

fn lent(segment: u64) -> SlotRow {
    SlotRow { identity: identity(segment), purpose: Purpose::Append, lender: Epoch(3), closed: None }
}

#[test]
fn missing_owed_segment_is_reported_by_name() {
    let found = Found { promise: promise(), owed: owed(&[1, 2, 3]), files: owed(&[1, 3]), ..Found::default() };
    let mut fixture = Fixture::start(found);
    let inventory = fixture.fence(4);
    assert_eq!(fixture.states(), [(1, CopyState::Closed), (2, CopyState::Corrupt), (3, CopyState::Closed)]);
    assert_eq!(inventory.copies[1].closure, closure(2), "where it ended when it was closed");
    assert!(inventory.witness, "where the log ends is known");
    assert_eq!(inventory.damage.len(), 1);
}

#[test]
fn wrong_file_is_not_taken_for_an_owed_segment() {
    let older = SegmentIdentity { generation: Generation(77), ..identity(2) };
    let shorter = Closure { last: Lsn(15), ..closure(3) };
    let files = vec![(identity(1), closure(1)), (older, closure(2)), (identity(3), shorter)];
    let mut fixture = Fixture::start(Found { promise: promise(), owed: owed(&[1, 2, 3]), files, ..Found::default() });
    for segment in [2, 3] {
        assert!(fixture.out.contains(&Output::Quarantine(SegmentId(segment))), "{:?}", fixture.out);
    }
    fixture.fence(4);
    assert_eq!(fixture.states(), [(1, CopyState::Closed), (2, CopyState::Corrupt), (3, CopyState::Corrupt)]);
}

#[test]
fn unowed_files_are_copies_or_were_trimmed() {
    let trimmed = Promise { trimmed: Lsn(11), ..promise() };
    let fixture = Fixture::start(Found { promise: trimmed, files: owed(&[1, 2]), ..Found::default() });
    assert!(fixture.out.contains(&Output::DeleteTrimmed(vec![SegmentId(1)])), "a trim was under way");
    assert!(fixture.out.contains(&Output::Owe(owed(&[2]))), "from now on");
    assert_eq!(fixture.states(), [(2, CopyState::Closed)]);
    assert!(fixture.backup.is_witness());
}

/// The process died after a trim was promised and before it had forgotten how far the segment had been flushed.
#[test]
fn flush_note_of_a_trimmed_segment_is_no_doubt() {
    let trimmed = Promise { trimmed: Lsn(11), ..promise() };
    let flushed = vec![(identity(1), Offset(552)), (identity(2), Offset(0))];
    let fixture = Fixture::start(Found { promise: trimmed, files: owed(&[1]), flushed, ..Found::default() });
    assert!(fixture.backup.is_witness(), "{:?}", fixture.backup.damage());
}

/// Only its own memory or disk could tell what it lacks, and they are the older ones too.
#[test]
fn member_that_has_promised_less_than_was_won_is_no_witness() {
    let found = || Found { promise: promise(), owed: owed(&[1]), files: owed(&[1]), ..Found::default() };
    for (won, joined, put_back) in [(3, Some(1), false), (4, Some(1), true), (4, Some(2), false), (4, None, false)] {
        let mut fixture = Fixture::start(found());
        let joined = joined.map(BootId);
        let request = FenceRequest { won: Epoch(won), joined, ..fence(6) };
        let Reply::Inventory(inventory) = fixture.ask(Request::Fence(request.clone())) else { panic!("fenced") };
        assert_eq!(inventory.witness, !put_back, "won {won}, joined {joined:?}: {:?}", inventory.damage);
        let persisted = fixture.out.iter().find_map(|output| match output {
            Output::Persist(promise) => Some(promise.clone()),
            _ => None,
        });
        let promise = persisted.expect("a promise");
        assert_eq!((promise.epoch, promise.doubt.is_some()), (Epoch(6), put_back), "in one block");
        // The candidate dies, and the backup too.
        let mut fixture = Fixture::start(Found { promise, ..found() });
        let request = FenceRequest { caller: caller(7), claim: Claim(70), earlier: fence(7).earlier, ..request };
        let Reply::Inventory(inventory) = fixture.ask(Request::Fence(request)) else { panic!("fenced") };
        assert_eq!(inventory.witness, !put_back, "it is not forgotten");
    }
}

/// Each of these says nothing about which records it hit.
#[test]
fn unnamed_loss_is_a_doubt_that_survives_restarts() {
    let newer = SegmentIdentity { epoch: Epoch(8), ..identity(2) };
    let cases = [
        Found { missing: vec![(Slot(2), lent(1))], ..Found::default() },
        Found { doubts: vec!["the ledger is gone".to_owned()], ..Found::default() },
        Found { flushed: vec![(identity(1), Offset(552))], ..Found::default() },
        Found { not_understood: vec![SegmentId(2)], files: owed(&[1]), owed: owed(&[1]), ..Found::default() },
        Found { files: vec![(newer, closure(2))], ..Found::default() },
        Found { rows: vec![(Slot(0), SlotRow { identity: newer, ..lent(2) })], ..Found::default() },
    ];
    for case in cases {
        let mut fixture = Fixture::start(Found { promise: promise(), ..case });
        let Some(Output::Persist(remembered)) = fixture.out.first().cloned() else {
            panic!("before anything is tidied: {:?}", fixture.out);
        };
        assert_eq!(remembered.doubt.as_ref().map(|doubt| doubt.epoch), Some(Epoch(3)));
        let inventory = fixture.fence(4);
        assert!(!inventory.witness && !inventory.damage.is_empty());
        // The next process finds everything tidied.
        let mut fixture = Fixture::start(Found { promise: remembered, ..Found::default() });
        assert!(!fixture.backup.is_witness());
        // An open does not end the doubt if it comes from a caller that fenced the earlier process and knows nothing of it.
        assert!(matches!(fixture.open(3, identity(9), Purpose::Append), Reply::Opened(_)));
        assert!(!fixture.backup.is_witness());
        fixture.fence(5);
        let image = identity(7);
        assert!(matches!(fixture.open(5, image, Purpose::Install), Reply::Opened(_)));
        assert!(!fixture.backup.is_witness(), "an image is no proof yet");
        let active = SegmentIdentity { epoch: Epoch(5), ..identity(10) };
        assert!(matches!(fixture.open(5, active, Purpose::Append), Reply::Opened(_)));
        assert!(fixture.backup.is_witness(), "it holds the log, or is outside of the set");
        assert!(fixture.out.iter().any(|out| matches!(out, Output::Persist(promise) if promise.doubt.is_none())));
    }
}

#[test]
fn doubt_and_former_identities_end_together() {
    let promise = Promise { former: vec![BootId(7)], ..promise() };
    let doubts = vec!["the ledger is gone".to_owned()];
    let mut fixture = Fixture::start(Found { promise, doubts, ..Found::default() });
    fixture.fence(4);
    assert_eq!(fixture.backup.promise().former, [BootId(7)]);
    let active = SegmentIdentity { epoch: Epoch(4), ..identity(10) };
    assert!(matches!(fixture.open(4, active, Purpose::Append), Reply::Opened(_)));
    let promise = fixture.backup.promise();
    assert!(promise.doubt.is_none() && promise.former.is_empty(), "{promise:?}");
}

/// An older promise was put back, from before there was any log: it starts all the same, and keeps saying what it misses.
#[test]
fn flush_note_without_a_promised_log_is_a_lasting_doubt() {
    let found = |promise| Found { promise, flushed: vec![(identity(1), Offset(552))], ..Found::default() };
    let first = Fixture::start(found(Promise::default()));
    assert!(!first.backup.is_witness() && !first.out.contains(&Output::DeleteFile(SegmentId(1))), "{:?}", first.out);
    let again = Fixture::start(found(first.backup.promise().clone()));
    assert_eq!(again.backup.promise(), first.backup.promise(), "said once");
}

/// Nothing is changed before the doubt is on disk; and evidence that the log continues makes up for such a file.
#[test]
fn open_file_that_is_not_understood_is_moved_aside_and_missed_if_needed() {
    let found = |found: Found| Found { promise: promise(), not_understood: vec![SegmentId(2)], ..found };
    let fixture = Fixture::start(found(Found::default()));
    assert!(matches!(fixture.out[..], [Output::Persist(_), Output::MoveAside(SegmentId(2))]), "{:?}", fixture.out);
    let needless = [
        Found { owed: owed(&[2]), ..Found::default() },
        Found { owed: owed(&[3]), files: owed(&[3]), ..Found::default() },
        Found { rows: vec![(Slot(0), lent(2))], ..Found::default() },
    ];
    for needless in needless {
        let fixture = Fixture::start(found(needless));
        assert!(fixture.out.contains(&Output::MoveAside(SegmentId(2))), "{:?}", fixture.out);
        assert!(fixture.backup.is_witness(), "{:?}", fixture.backup.damage());
    }
}

/// With the doubt ends what raised it: the ledger says no longer that there must be a file.
#[test]
fn flush_record_of_a_lost_file_is_settled_with_the_doubt() {
    let flushed = vec![(identity(1), Offset(552))];
    let mut fixture = Fixture::start(Found { promise: promise(), flushed, ..Found::default() });
    fixture.fence(4);
    let active = SegmentIdentity { epoch: Epoch(4), ..identity(10) };
    assert!(matches!(fixture.open(4, active, Purpose::Append), Reply::Opened(_)));
    let at = |wanted: &Output| fixture.out.iter().position(|out| out == wanted).expect("it is done");
    assert!(at(&Output::Settle(vec![SegmentId(1)])) < at(&Output::DeleteFile(SegmentId(1))));
}

#[test]
fn new_backup_has_no_doubts() {
    let fixture = Fixture::start(Found::default());
    assert!(fixture.backup.is_witness() && fixture.out.is_empty());
}

#[test]
fn open_segment_must_reach_acked_and_flushed_bytes() {
    let tail = |acked: u32| Tail { closure: closure(1), acked: Offset(acked) };
    for (acked, flushed, damaged) in [(552, 552, false), (560, 0, true), (0, 560, true), (0, 0, false)] {
        let found = Found {
            promise: promise(),
            rows: vec![(Slot(0), lent(1))],
            flushed: vec![(identity(1), Offset(flushed))],
            ..Found::default()
        };
        let mut fixture = Fixture::start_with(found, tail(acked), true);
        let inventory = fixture.fence(4);
        assert_eq!(!inventory.witness, damaged, "acknowledged {acked}, flushed {flushed}");
        let state = if damaged { CopyState::Damaged } else { CopyState::Open };
        assert_eq!(fixture.states(), [(1, state)]);
    }
}

#[test]
fn flush_note_of_a_closed_segment_is_ignored() {
    let found = Found {
        promise: promise(),
        owed: owed(&[5]),
        files: owed(&[5]),
        flushed: vec![(identity(5), Offset(100)), (identity(4), Offset(100))],
        ..Found::default()
    };
    assert!(Fixture::start(found).backup.is_witness());
}

#[test]
fn segment_closed_in_memory_is_verified_before_reporting() {
    for sound in [true, false] {
        let row = SlotRow { closed: Some(closure(1)), ..lent(1) };
        let found = Found { promise: promise(), rows: vec![(Slot(0), row)], ..Found::default() };
        let fixture = Fixture::start_with(found, Tail::default(), sound);
        assert_eq!(fixture.states(), [(1, if sound { CopyState::Closed } else { CopyState::Corrupt })]);
    }
}

/// Closed, flushed open as a whole, and the power went before the closed file was there.
#[test]
fn owed_segment_is_found_in_its_open_file() {
    let found = Found { promise: promise(), rows: vec![(Slot(0), lent(1))], owed: owed(&[1]), ..Found::default() };
    let fixture = Fixture::start(found);
    assert_eq!(fixture.states(), [(1, CopyState::Closed)]);
    assert!(fixture.out.contains(&Output::StartFlush(Slot(0), identity(1), closure(1))));
}

#[test]
fn epoch_belongs_to_the_claim_it_was_promised_to() {
    let mut fixture = Fixture::start(Found { promise: promise(), ..Found::default() });
    let claimed = |claim, earlier: &[u64], epoch| {
        let earlier = earlier.iter().map(|claim| Claim(*claim)).collect();
        Request::Fence(FenceRequest {
            caller: caller(epoch),
            claim: Claim(claim),
            earlier,
            won: Epoch(0),
            joined: None,
            after: None,
        })
    };
    let before = Reply::Refused(Refusal::ClaimedBefore { promised: Epoch(3) });
    assert_eq!(fixture.ask(claimed(31, &[20], 3)), before, "another claim of the epoch");
    assert_eq!(fixture.ask(claimed(40, &[31, 20], 4)), before, "a successor of another claim");
    assert_eq!(fixture.ask(claimed(60, &[50, 40, 31], 6)), before, "however many epochs later");
    assert_eq!(fixture.out.len(), 1, "nothing was done: {:?}", fixture.out);
    assert!(matches!(fixture.ask(claimed(30, &[], 3)), Reply::Inventory(_)), "the same claim again");
    assert!(matches!(fixture.ask(claimed(60, &[50, 40, 30], 6)), Reply::Inventory(_)));
    assert!(matches!(fixture.ask(claimed(90, &[], 9)), Reply::Inventory(_)), "an administrator has skipped epochs");
}

#[test]
fn epoch_jump_beyond_the_bound_is_refused() {
    let mut fixture = Fixture::start(Found { promise: promise(), ..Found::default() });
    for epoch in [3 + EPOCH_JUMP_MAX + 1, u64::MAX / 2 + 1, u64::MAX] {
        let refused = fixture.ask(Request::Fence(FenceRequest { earlier: vec![], ..fence(epoch) }));
        assert!(matches!(refused, Reply::Refused(Refusal::BadRequest { .. })), "{epoch}: {refused:?}");
        assert_eq!(fixture.backup.promise().epoch, Epoch(3));
    }
    assert!(matches!(fixture.ask(Request::Fence(fence(3 + EPOCH_JUMP_MAX))), Reply::Inventory(_)));
}

#[test]
fn impossible_closure_is_refused() {
    let mut fixture = Fixture::start(Found { promise: promise(), ..Found::default() });
    assert!(matches!(fixture.open(3, identity(1), Purpose::Append), Reply::Opened(_)));
    for wrong in [
        Closure { end: Offset(200_000), ..closure(1) },
        Closure { end: Offset(64), ..closure(1) },
        Closure { end: Offset(555), ..closure(1) },
        Closure { last: Lsn(1 << 40), ..closure(1) },
        Closure { first: Lsn(0), ..closure(1) },
        Closure { first: Lsn(u64::MAX), last: Lsn(u64::MAX), ..closure(1) },
    ] {
        let reply = fixture.close(3, identity(1), wrong);
        assert!(matches!(reply, Reply::Refused(Refusal::BadRequest { .. })), "{wrong:?}: {reply:?}");
        assert_eq!(fixture.out.len(), 1);
    }
    assert_eq!(fixture.close(3, identity(1), closure(1)), Reply::Done);
}

#[test]
fn owed_segment_is_recorded_before_the_close_is_answered() {
    let mut fixture = Fixture::start(Found { promise: promise(), ..Found::default() });
    fixture.open(3, identity(1), Purpose::Append);
    fixture.close(3, identity(1), closure(1));
    let at = |wanted: fn(&Output) -> bool| fixture.out.iter().position(wanted).expect("it is done");
    let (recorded, answered) = (at(|out| matches!(out, Output::Owe(_))), at(|out| matches!(out, Output::Reply(..))));
    assert!(recorded < answered, "{:?}", fixture.out);
}

/// The promise that tells of the doubt may be lost in its turn. The process that starts after that must doubt again.
#[test]
fn lost_buffer_is_remembered_until_the_backup_is_trusted() {
    let found = Found { promise: promise(), missing: vec![(Slot(0), lent(1))], ..Found::default() };
    let mut fixture = Fixture::start(found);
    assert!(!fixture.out.contains(&Output::SaveSlot(Slot(0), None)), "{:?}", fixture.out);
    assert_eq!(fixture.fence(4).damage.len(), 1);
    assert!(matches!(
        fixture.open(4, SegmentIdentity { epoch: Epoch(4), ..identity(2) }, Purpose::Append),
        Reply::Opened(_)
    ));
    assert!(fixture.out.contains(&Output::SaveSlot(Slot(0), None)), "{:?}", fixture.out);
    assert!(fixture.backup.promise().doubt.is_none());
}

/// As for a lost buffer.
#[test]
fn lost_flushed_file_is_remembered_until_the_backup_is_trusted() {
    let gone = Output::DeleteFile(SegmentId(1));
    let found = Found { promise: promise(), flushed: vec![(identity(1), Offset(552))], ..Found::default() };
    let mut fixture = Fixture::start(found.clone());
    assert!(!fixture.out.contains(&gone), "{:?}", fixture.out);
    assert_eq!(fixture.fence(4).damage.len(), 1);
    let next = SegmentIdentity { epoch: Epoch(4), ..identity(2) };
    assert!(matches!(fixture.open(4, next, Purpose::Append), Reply::Opened(_)));
    assert!(fixture.out.contains(&gone), "{:?}", fixture.out);
    assert!(fixture.backup.promise().doubt.is_none());

    // An image has come in the meantime.
    let mut fixture = Fixture::start(found);
    fixture.fence(4);
    assert!(matches!(fixture.open(4, identity(1), Purpose::Install), Reply::Opened(_)));
    assert_eq!(fixture.close(4, identity(1), closure(1)), Reply::Done);
    assert!(matches!(fixture.open(4, next, Purpose::Append), Reply::Opened(_)));
    assert!(!fixture.out.contains(&gone), "{:?}", fixture.out);
    assert!(fixture.backup.promise().doubt.is_none());
}

/// A promotion may need this backup, and it cannot be repaired without a buffer.
#[test]
fn lost_buffers_are_lent_to_images_but_for_one() {
    let missing = vec![(Slot(2), lent(3)), (Slot(3), lent(2))];
    let found = Found { promise: promise(), missing, unreadable: vec![Slot(0), Slot(1)], ..Found::default() };
    let mut fixture = Fixture::start(found);
    assert!(
        matches!(fixture.out.first(), Some(Output::Persist(promise)) if promise.doubt.is_some()),
        "{:?}",
        fixture.out
    );
    fixture.fence(4);
    for segment in 1..SLOTS {
        assert!(
            matches!(fixture.open(4, identity(u64::from(segment)), Purpose::Install), Reply::Opened(_)),
            "{segment}"
        );
    }
    let reply = fixture.open(4, identity(u64::from(SLOTS)), Purpose::Install);
    assert!(matches!(reply, Reply::Refused(Refusal::RetryLater { .. })), "{reply:?}");
}

/// Nor without the bytes that it may have lent or not yet on disk: the buffer whose row remembers a loss is none of them.
#[test]
fn lost_buffer_leaves_room_for_an_image() {
    let found = Found {
        promise: promise(),
        rows: vec![(Slot(1), lent(1)), (Slot(2), lent(2))],
        missing: vec![(Slot(0), lent(3))],
        ..Found::default()
    };
    let tail = Tail { closure: closure(1), acked: Offset(0) };
    let mut fixture = Fixture::start_within(3, found, tail, true);
    fixture.fence(4);
    let reply = fixture.open(4, identity(1), Purpose::Install);
    assert!(matches!(reply, Reply::Opened(_)), "{reply:?}");
    let reply = fixture.open(4, identity(2), Purpose::Install);
    assert!(matches!(reply, Reply::Refused(Refusal::RetryLater { .. })), "{reply:?}");
}

/// A file of an open segment ends where it was last flushed. Only where the disk holds all that was acknowledged does it
/// stand in for the buffer.
#[test]
fn flushed_part_does_not_replace_a_lost_buffer() {
    for disk_suffices in [false, true] {
        let doubted = !disk_suffices;
        let fixture = Fixture::start_with(
            Found {
                disk_suffices,
                promise: promise(),
                rows: vec![(Slot(1), lent(1))],
                missing: vec![(Slot(0), lent(1))],
                flushed: vec![(identity(1), closure(1).end)],
                ..Found::default()
            },
            Tail { closure: closure(1), acked: Offset(0) },
            true,
        );
        assert_eq!(fixture.states(), [(1, CopyState::Open)], "{disk_suffices}");
        assert_eq!(fixture.backup.is_witness(), !doubted, "{disk_suffices}");
        assert_eq!(fixture.out.contains(&Output::SaveSlot(Slot(0), None)), !doubted, "{disk_suffices}");
    }
}

/// It was dropped, and its file not yet moved.
#[test]
fn copy_of_an_earlier_opening_does_not_replace_a_lost_buffer() {
    let earlier = SegmentIdentity { epoch: Epoch(identity(1).epoch.0 - 1), ..identity(1) };
    let found = Found {
        promise: promise(),
        files: vec![(earlier, closure(1))],
        missing: vec![(Slot(0), lent(1))],
        ..Found::default()
    };
    let fixture = Fixture::start(found);
    assert!(!fixture.backup.is_witness(), "{:?}", fixture.out);
}

/// Otherwise a process that dies between the two has forgotten what it held.
#[test]
fn missing_copy_is_owed_before_its_row_is_removed() {
    let row = SlotRow { closed: Some(closure(1)), ..lent(1) };
    let fixture = Fixture::start(Found { promise: promise(), missing: vec![(Slot(0), row)], ..Found::default() });
    let at = |wanted: &Output| fixture.out.iter().position(|out| out == wanted).expect("it is done");
    assert!(at(&Output::Owe(vec![(identity(1), closure(1))])) < at(&Output::SaveSlot(Slot(0), None)));
}

#[test]
fn dropped_copy_with_records_goes_into_quarantine() {
    let mut fixture = Fixture::start_with(
        Found { promise: promise(), rows: vec![(Slot(1), lent(2))], files: owed(&[1]), ..Found::default() },
        Tail { closure: closure(2), acked: Offset(0) },
        true,
    );
    let copies = fixture.fence(4).copies;
    assert_eq!(fixture.ask(Request::Drop(DropRequest { caller: caller(4), copies })), Reply::Done);
    assert!(fixture.states().is_empty(), "they count no longer");
    assert!(fixture.out.contains(&Output::Quarantine(SegmentId(1))), "{:?}", fixture.out);
    assert!(fixture.out.contains(&Output::StartQuarantine(Slot(1), identity(2), closure(2))));
    assert!(!fixture.out.iter().any(|out| matches!(out, Output::DeleteFile(_) | Output::Release(Slot(1)))));
    // The disk is full: the bytes stay where they are, and are tried again.
    fixture.out.clear();
    fixture.step(Input::Quarantined(Slot(1), Err("no space".to_owned())));
    fixture.step(Input::Tick);
    assert_eq!(fixture.out, [Output::StartQuarantine(Slot(1), identity(2), closure(2))]);
    fixture.step(Input::Quarantined(Slot(1), Ok(())));
    assert!(fixture.out.contains(&Output::Release(Slot(1))));
}

/// Its bytes were acknowledged here: with one bit wrong they may still be the last.
#[test]
fn dropped_corrupt_copy_always_goes_into_quarantine() {
    for caller_epoch in [3, 4] {
        let mut fixture = Fixture::start(Found { promise: promise(), files: owed(&[1]), ..Found::default() });
        fixture.fence(caller_epoch);
        fixture.step(Input::FoundCorrupt(identity(1), Place::Disk));
        let copies = fixture.backup.inventory().copies;
        assert_eq!(copies[0].state, CopyState::Corrupt);
        assert_eq!(fixture.ask(Request::Drop(DropRequest { caller: caller(caller_epoch), copies })), Reply::Done);
        assert!(fixture.out.contains(&Output::Quarantine(SegmentId(1))), "{:?}", fixture.out);
        assert!(!fixture.out.iter().any(|out| matches!(out, Output::DeleteFile(_))), "{:?}", fixture.out);
    }
}

/// A promotion that broke off may have closed it too early, or a later one may have; or its writer lies.
#[test]
fn whole_copy_survives_an_image_with_another_end() {
    for other in [Closure { last: Lsn(8), ..closure(1) }, Closure { last: Lsn(12), ..closure(1) }] {
        let mut fixture =
            Fixture::start(Found { promise: promise(), owed: owed(&[1]), files: owed(&[1]), ..Found::default() });
        fixture.fence(4);
        assert!(matches!(fixture.open(4, identity(1), Purpose::Install), Reply::Opened(_)));
        assert_eq!(fixture.close(4, identity(1), other), Reply::Done);
        assert_eq!(fixture.backup.inventory().copies[0].closure, other);
        assert!(fixture.out.contains(&Output::Quarantine(SegmentId(1))), "{:?}", fixture.out);
    }
    // The same bytes once more are no loss.
    let mut fixture =
        Fixture::start(Found { promise: promise(), owed: owed(&[1]), files: owed(&[1]), ..Found::default() });
    fixture.fence(4);
    assert!(matches!(fixture.open(4, identity(1), Purpose::Install), Reply::Opened(_)));
    assert_eq!(fixture.close(4, identity(1), closure(1)), Reply::Done);
    assert!(!fixture.out.contains(&Output::Quarantine(SegmentId(1))), "{:?}", fixture.out);
}

#[test]
fn records_missing_from_an_image_go_into_quarantine() {
    let other = SegmentIdentity { generation: Generation(99), ..identity(1) };
    let mut fixture = Fixture::start(Found { promise: promise(), files: owed(&[1]), ..Found::default() });
    fixture.fence(4);
    fixture.open(4, other, Purpose::Install);
    assert_eq!(fixture.close(4, other, closure(1)), Reply::Done);
    let quarantined = fixture.out.iter().position(|out| *out == Output::Quarantine(SegmentId(1)));
    let flushed = fixture.out.iter().position(|out| matches!(out, Output::StartFlush(..)));
    assert!(quarantined.is_some() && quarantined < flushed, "{:?}", fixture.out);
}

/// The process died between taking the image in and bringing the file to safety.
#[test]
fn restart_quarantines_a_file_the_image_does_not_hold() {
    for durability in [Durability::Memory, Durability::Flushed] {
        let image = Closure { first: Lsn(1), last: Lsn(0), ..closure(1) };
        let row = SlotRow { closed: Some(image), ..lent(1) };
        let promise = Promise { durability, ..promise() };
        let fixture =
            Fixture::start(Found { promise, rows: vec![(Slot(0), row)], files: owed(&[1]), ..Found::default() });
        let quarantined = fixture.out.iter().position(|out| *out == Output::Quarantine(SegmentId(1)));
        let flushed = fixture.out.iter().position(|out| matches!(out, Output::StartFlush(..)));
        assert!(quarantined.is_some() && quarantined < flushed, "{:?}", fixture.out);
    }
}

/// The process died after it had recorded the close of an image, and before it had recorded that the older copy leaves.
#[test]
fn open_copy_replaced_before_a_kill_goes_into_quarantine() {
    let older = SegmentIdentity { epoch: Epoch(2), generation: Generation(77), ..identity(1) };
    let row = |identity: SegmentIdentity, closed| SlotRow {
        identity,
        purpose: Purpose::Append,
        lender: identity.epoch,
        closed,
    };
    let rows = |open| vec![(Slot(0), row(open, None)), (Slot(1), row(identity(1), Some(closure(1))))];
    let found = |open, last: u64| {
        let closure = if last == 0 { Closure::default() } else { Closure { last: Lsn(last), ..closure(1) } };
        let tail = Tail { closure, ..Tail::default() };
        let found = Found { promise: promise(), rows: rows(open), ..Found::default() };
        (Fixture::start_with(found, tail, true), tail.closure)
    };
    let (mut fixture, closure) = found(older, 4);
    let leaving = SlotRow { purpose: Purpose::Install, ..row(older, Some(closure)) };
    assert!(fixture.out.contains(&Output::SaveSlot(Slot(0), Some(leaving))), "{:?}", fixture.out);
    assert!(fixture.out.contains(&Output::StartQuarantine(Slot(0), older, closure)));
    assert!(!fixture.out.contains(&Output::Release(Slot(0))), "not before it is in quarantine");
    assert_eq!(fixture.states(), [(1, CopyState::Closed)]);
    fixture.step(Input::Quarantined(Slot(0), Ok(())));
    assert!(fixture.out.contains(&Output::Release(Slot(0))));
    // Nothing is held there that the image lacks: an empty copy, or one of the same opening.
    for (open, last) in [(older, 0), (identity(1), 10)] {
        let (fixture, _) = found(open, last);
        assert!(fixture.out.contains(&Output::Release(Slot(0))), "{:?}", fixture.out);
        assert!(!fixture.out.iter().any(|out| matches!(out, Output::StartQuarantine(..))), "{:?}", fixture.out);
    }
}
