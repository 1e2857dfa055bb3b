//! Numbers from the wire that no honest sidecar sends: a backup refuses them, says why, and is as it was before.

use tailwind_protocol::backup::{
    Backup, EPOCH_JUMP_MAX, Found, Input, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::{CLAIMS_KEPT, Durability};
use tailwind_protocol::ids::{BootId, Claim, EPOCH_MAX, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, FIRST_LSN_MAX, SEGMENT_MAX, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, CopyReport, CopyState, DROP_MAX, DropRequest, FenceRequest, FlushRequest, OpenRequest,
    Purpose, Refusal, TrimRequest,
};

use crate::limits::limits;

fn caller(epoch: u64) -> Caller {
    Caller { group: "g".parse().expect("a name"), log: LogId(1), epoch: Epoch(epoch) }
}

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    let (segment, epoch) = (SegmentId(segment), Epoch(epoch));
    SegmentIdentity { log: LogId(1), segment, epoch, generation: Generation(7), size: SegmentSize::MIN }
}

fn closure(first: u64, last: u64) -> Closure {
    Closure { first: Lsn(first), last: Lsn(last), end: Offset(72 + 40 * (last + 1 - first) as u32), chain: Chain(1) }
}

fn started(found: Found) -> Backup {
    start(found).0
}

fn start(found: Found) -> (Backup, Vec<Output>) {
    Backup::start(caller(1).group, "m1".parse().expect("a name"), BootId(1), limits(4), found)
}

/// Bound to the log, at epoch 5, with segment 1 closed on its disk.
fn bound() -> Backup {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(5), claim: Some(Claim(5)), ..Promise::default() };
    let closed = vec![(identity(1, 4), closure(1, 10))];
    let mut backup = started(Found { promise, files: closed.clone(), owed: closed, ..Found::default() });
    assert!(matches!(ask(&mut backup, fence(5)).as_slice(), [Output::Reply(_, Reply::Inventory(_)), ..]));
    backup
}

fn ask(backup: &mut Backup, request: Request) -> Vec<Output> {
    let mut out = Vec::new();
    backup.step(Input::Request(RequestId(1), request), &mut out);
    out
}

fn fence(epoch: u64) -> Request {
    Request::Fence(FenceRequest {
        caller: caller(epoch),
        claim: Claim(epoch),
        earlier: Vec::new(),
        won: Epoch(0),
        joined: None,
        after: None,
    })
}

fn open(identity: SegmentIdentity) -> Request {
    let (caller, durability) = (caller(5), Durability::Memory);
    Request::Open(OpenRequest { caller, identity, purpose: Purpose::Append, durability })
}

fn refused(backup: &mut Backup, request: Request) -> String {
    let before = backup.clone();
    let out = ask(backup, request.clone());
    assert_eq!(*backup, before, "{request:?}");
    match out.as_slice() {
        [Output::Reply(_, Reply::Refused(Refusal::BadRequest { why }))] => why.clone(),
        other => panic!("{request:?}: {other:?}"),
    }
}

#[test]
fn epoch_0_changes_nothing_at_a_backup_without_a_log() {
    let new = || started(Found::default());
    for request in [
        fence(0),
        Request::Connect(caller(0)),
        Request::Trim(TrimRequest { caller: caller(0), below: Lsn(100) }),
        Request::Drop(DropRequest { caller: caller(0), copies: vec![] }),
    ] {
        assert!(refused(&mut new(), request).contains("epoch 0"));
    }
}

#[test]
fn unreachable_epoch_is_refused() {
    assert!(refused(&mut bound(), fence(5 + EPOCH_JUMP_MAX + 1)).contains("too far"));
    assert!(refused(&mut bound(), fence(u64::MAX)).contains("too far"));
    assert!(matches!(ask(&mut bound(), fence(5 + EPOCH_JUMP_MAX)).as_slice(), [Output::Persist(_), ..]));
    let promise = |epoch| Promise { log: Some(LogId(1)), epoch: Epoch(epoch), ..Promise::default() };
    let mut last = started(Found { promise: promise(EPOCH_MAX.0), ..Found::default() });
    assert!(refused(&mut last, fence(EPOCH_MAX.0 + 1)).contains("too far"));
}

#[test]
fn lists_are_bounded() {
    let with_claims = |count| {
        Request::Fence(FenceRequest {
            caller: caller(6),
            claim: Claim(6),
            earlier: vec![Claim(5); count],
            won: Epoch(0),
            joined: None,
            after: None,
        })
    };
    assert!(refused(&mut bound(), with_claims(CLAIMS_KEPT + 1)).contains("earlier claims"));
    assert!(matches!(ask(&mut bound(), with_claims(CLAIMS_KEPT)).as_slice(), [Output::Persist(_), ..]));

    let identity = identity(2, 4);
    let copy = CopyReport { identity, state: CopyState::Closed, closure: closure(11, 12), acked: Offset(0) };
    let drop = |count| Request::Drop(DropRequest { caller: caller(5), copies: vec![copy; count] });
    assert!(refused(&mut bound(), drop(DROP_MAX + 1)).contains("copies in one drop"));
    assert!(matches!(ask(&mut bound(), drop(DROP_MAX)).as_slice(), [Output::Reply(_, Reply::Done)]));
}

#[test]
fn offsets_and_lsns_beyond_the_segment_are_refused() {
    let flush = |segment, end| {
        let identity = identity(segment, if segment == 1 { 4 } else { 5 });
        Request::Flush(FlushRequest { caller: caller(5), identity, end: Offset(end) })
    };
    let size = SegmentSize::MIN.bytes();
    assert!(refused(&mut bound(), flush(1, size + 1)).contains("byte 65537"));
    let end = Reply::Flushed(Offset(size));
    assert_eq!(ask(&mut bound(), flush(1, size)), [Output::Reply(RequestId(1), end)]);

    let mut lent = bound();
    ask(&mut lent, open(identity(2, 5)));
    assert!(refused(&mut lent, flush(2, u32::MAX)).contains("byte 4294967295"));
    for closure in [
        Closure { end: Offset(size + 8), ..closure(11, 12) },
        Closure { end: Offset(75), ..closure(11, 11) },
        Closure { end: Offset(64), ..closure(11, 10) },
        Closure { last: Lsn(u64::MAX), ..closure(11, 12) },
        Closure { first: Lsn(0), ..closure(11, 12) },
        Closure { first: Lsn(u64::MAX), last: Lsn(u64::MAX), ..closure(11, 12) },
        Closure { last: Lsn(3), ..closure(11, 12) },
    ] {
        let request = CloseRequest { caller: caller(5), identity: identity(2, 5), closure };
        assert!(refused(&mut lent, Request::Close(request)).contains("cannot hold"), "{closure:?}");
    }

    let trim = Request::Trim(TrimRequest { caller: caller(5), below: FIRST_LSN_MAX.next() });
    assert!(refused(&mut bound(), trim).contains("beyond the last"));
    for segment in [0, SEGMENT_MAX.0 + 1, u64::MAX] {
        refused(&mut bound(), open(identity(segment, 5)));
    }
    for epoch in [0, 6, u64::MAX] {
        refused(&mut bound(), open(identity(2, epoch)));
    }
}

#[test]
fn drop_removes_newest_first_and_each_copy_once() {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(5), claim: Some(Claim(5)), ..Promise::default() };
    let closed: Vec<_> = (1..=3).map(|n| (identity(n, 4), closure(10 * n, 10 * n + 9))).collect();
    let mut backup = started(Found { promise, files: closed.clone(), owed: closed, ..Found::default() });
    let copies = backup.inventory().copies;
    let copies = [&copies[1..], &copies[1..]].concat();
    let out = ask(&mut backup, Request::Drop(DropRequest { caller: caller(5), copies }));
    assert_eq!(out[0], Output::Settle(vec![SegmentId(3), SegmentId(2)]));
    assert_eq!(backup.inventory().copies.len(), 1);
}

/// A slot with a closed segment, dropped by epoch 5, and what the table says of it then.
fn dropped() -> (Backup, SlotRow) {
    let (slot, promise) =
        (Slot(0), Promise { log: Some(LogId(1)), epoch: Epoch(4), claim: Some(Claim(4)), ..Promise::default() });
    let (identity, closed) = (identity(1, 4), closure(1, 10));
    let row = SlotRow { identity, purpose: Purpose::Append, lender: Epoch(4), closed: Some(closed) };
    let mut backup =
        started(Found { promise, rows: vec![(slot, row)], owed: vec![(identity, closed)], ..Found::default() });
    backup.step(Input::Verified(slot, true), &mut Vec::new());
    let fenced = FenceRequest {
        caller: caller(5),
        claim: Claim(5),
        earlier: vec![Claim(4)],
        won: Epoch(0),
        joined: None,
        after: None,
    };
    ask(&mut backup, Request::Fence(fenced));
    let copies = backup.inventory().copies;
    let out = ask(&mut backup, Request::Drop(DropRequest { caller: caller(5), copies }));
    let mut rows = out.iter().filter_map(|output| match output {
        Output::SaveSlot(_, row) => *row,
        _ => None,
    });
    let row = rows.next_back().expect("it stays in the table");
    assert!(out.contains(&Output::StartQuarantine(slot, identity, closed)), "{out:?}");
    (backup, row)
}

/// Whether another copy of the segment has been lent since, or has come to the disk: what was dropped goes into quarantine.
#[test]
fn quarantine_continues_after_restart() {
    let (before, row) = dropped();
    let promise = before.promise().clone();
    let lent = SlotRow { identity: identity(1, 5), purpose: Purpose::Append, lender: Epoch(5), closed: None };
    let file = (identity(1, 5), closure(1, 12));
    for (rows, files) in [
        (vec![(Slot(0), row)], vec![]),
        (vec![(Slot(0), row), (Slot(1), lent)], vec![]),
        (vec![(Slot(0), row)], vec![file]),
    ] {
        let found = Found { promise: promise.clone(), rows, owed: files.clone(), files, ..Found::default() };
        let (backup, out) = start(found);
        assert!(out.contains(&Output::StartQuarantine(Slot(0), row.identity, closure(1, 10))), "{out:?}");
        assert!(!out.contains(&Output::Release(Slot(0))), "{out:?}");
        assert!(backup.inventory().copies.iter().all(|copy| copy.identity == file.0), "it counts no longer");
    }
    let missing = vec![(Slot(0), row)];
    let (backup, _) = start(Found { promise, missing, ..Found::default() });
    assert!(backup.damage().is_empty(), "what was dropped is not owed: {:?}", backup.damage());
}

#[test]
fn only_closed_copies_are_marked_corrupt() {
    let mut backup = bound();
    ask(&mut backup, open(identity(2, 5)));
    backup.step(Input::FoundCorrupt(identity(2, 5), Place::Memory(Slot(0))), &mut Vec::new());
    backup.step(Input::FoundCorrupt(identity(1, 3), Place::Disk), &mut Vec::new());
    assert_eq!(backup.counts().corrupt, 0);
    backup.step(Input::FoundCorrupt(identity(1, 4), Place::Disk), &mut Vec::new());
    assert_eq!(backup.counts().corrupt, 1);
}
