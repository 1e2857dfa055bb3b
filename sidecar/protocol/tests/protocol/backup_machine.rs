//! A backup's decisions where a script would be clumsy: which callers are admitted, what a restart finds, bounds.

use tailwind_protocol::backup::{
    Backup, Counts, FlushResult, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, GroupName, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, CopyReport, CopyState, DropRequest, FenceRequest, FetchRequest, FlushRequest, OpenPart,
    OpenRequest, PullRequest, PullSource, Purpose, Refusal, SOURCES_MAX, SyncPoint, SyncRequest, Synced, TrimRequest,
};

use tailwind_protocol::scan::Tail;

use crate::limits::limits;

const SLOT_SIZE: u32 = 64 << 10;

/// A backup whose scans, verifications and lendings are answered at once.
struct Fixture {
    backup: Backup,
    requests: u64,
    scanned: Tail,
    sound: bool,
    out: Vec<Output>,
}

impl Fixture {
    fn start(found: Found, slots: u32) -> Fixture {
        Fixture::bounded(found, slots, None)
    }

    fn bounded(found: Found, slots: u32, flush_bytes_max: Option<u64>) -> Fixture {
        let unflushed_bytes_max = u64::from(slots) * u64::from(SLOT_SIZE);
        let limits = Limits { unflushed_bytes_max, flush_bytes_max, ..limits(slots) };
        let (backup, out) = Backup::start(group("g"), "m1".parse().expect("a name"), BootId(1), limits, found);
        let mut fixture = Fixture { backup, requests: 0, scanned: Tail::default(), sound: true, out: Vec::new() };
        fixture.carry(out);
        fixture
    }

    fn fresh() -> Fixture {
        Fixture::start(Found::default(), 4)
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
                Output::Scan(slot, _) => self.step(Input::Scanned(slot, self.scanned)),
                Output::Verify(slot, ..) => self.step(Input::Verified(slot, self.sound)),
                Output::Lend(id, slot, _) => self.step(Input::Lent(id, slot, Ok(()))),
                _ => {}
            }
        }
    }

    /// The reply to this request, if it came at once.
    fn ask(&mut self, request: Request) -> Option<Reply> {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.out.clear();
        self.step(Input::Request(id, request));
        self.reply_to(id)
    }

    /// A request that is not answered at once.
    fn send(&mut self, request: Request) -> RequestId {
        assert_eq!(self.ask(request), None);
        RequestId(self.requests)
    }

    /// What follows from this alone is in `out`.
    fn tell(&mut self, input: Input) {
        self.out.clear();
        self.step(input);
    }

    fn reply_to(&self, wanted: RequestId) -> Option<Reply> {
        let replies = self.out.iter().filter_map(|output| match output {
            Output::Reply(id, reply) if *id == wanted => Some(reply.clone()),
            _ => None,
        });
        let replies: Vec<Reply> = replies.collect();
        assert!(replies.len() <= 1, "a request is answered once: {replies:?}");
        replies.into_iter().next()
    }

    fn fence(&mut self, epoch: u64) {
        let reply = self.ask(Request::Fence(fence(caller(epoch))));
        assert!(matches!(reply, Some(Reply::Inventory(_))), "{reply:?}");
    }
}

fn group(name: &str) -> GroupName {
    name.parse().expect("a name")
}

fn caller(epoch: u64) -> Caller {
    Caller { group: group("g"), log: LogId(1), epoch: Epoch(epoch) }
}

/// Each epoch has one claim here, its own number.
fn fence(caller: Caller) -> FenceRequest {
    let earlier = (1..caller.epoch.0).rev().map(Claim).collect();
    FenceRequest { claim: Claim(caller.epoch.0), earlier, caller, won: Epoch(0), joined: None, after: None }
}

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(segment),
        epoch: Epoch(epoch),
        generation: Generation(segment << 8 | epoch),
        size: SegmentSize::MIN,
    }
}

fn tail(last: u64) -> Tail {
    Tail { closure: closure(last), acked: Offset(0) }
}

fn closure(last: u64) -> Closure {
    Closure { first: Lsn(1), last: Lsn(last), end: Offset(72 + 48 * last as u32), chain: Chain(last as u32) }
}

fn open(caller: Caller, identity: SegmentIdentity, purpose: Purpose) -> Request {
    Request::Open(OpenRequest { caller, identity, purpose, durability: Durability::Memory })
}

fn close(caller: Caller, identity: SegmentIdentity, last: u64) -> Request {
    Request::Close(CloseRequest { caller, identity, closure: closure(last) })
}

/// Every request that changes something, by this caller.
fn requests(caller: &Caller) -> Vec<Request> {
    let caller = || caller.clone();
    vec![
        Request::Connect(caller()),
        open(caller(), SegmentIdentity { log: caller().log, ..identity(2, caller().epoch.0) }, Purpose::Append),
        open(caller(), SegmentIdentity { log: caller().log, ..identity(3, 1) }, Purpose::Install),
        close(caller(), identity(1, 5), 1),
        Request::Flush(FlushRequest { caller: caller(), identity: identity(1, 5), end: Offset(72) }),
        Request::Sync(SyncRequest {
            caller: caller(),
            point: SyncPoint { before: SegmentId(1), open: None, last: Lsn(0) },
        }),
        Request::Trim(TrimRequest { caller: caller(), below: Lsn(1) }),
        Request::Drop(DropRequest { caller: caller(), copies: vec![] }),
    ]
}

/// A backup that has promised epoch 5 and lent segment 1 to it.
fn promised() -> Fixture {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    assert!(matches!(fixture.ask(open(caller(5), identity(1, 5), Purpose::Append)), Some(Reply::Opened(_))));
    fixture
}

#[test]
fn only_the_promised_epoch_of_the_right_log_is_admitted() {
    let (older, equal, newer) = (caller(4), caller(5), caller(6));
    let other_log = Caller { log: LogId(2), ..caller(5) };
    let other_group = Caller { group: group("h"), ..caller(5) };
    for (who, caller) in [("older", older), ("newer", newer), ("log", other_log), ("group", other_group)] {
        for request in requests(&caller) {
            let mut fixture = promised();
            let before = fixture.backup.counts();
            let reply = fixture.ask(request.clone());
            let right = match (who, &reply) {
                ("older", Some(Reply::Refused(Refusal::Fenced { promised }))) => *promised == Epoch(5),
                ("newer", Some(Reply::Refused(Refusal::NotFenced { promised }))) => *promised == Epoch(5),
                ("log" | "group", Some(Reply::Refused(Refusal::WrongLog { .. }))) => true,
                _ => false,
            };
            assert!(right, "{who}: {request:?} got {reply:?}");
            assert_eq!(fixture.out.len(), 1, "{who}: {request:?} did {:?}", fixture.out);
            assert_eq!(fixture.backup.counts(), before);
        }
    }
    for request in requests(&equal) {
        let reply = promised().ask(request.clone());
        assert!(!matches!(reply, Some(Reply::Refused(_))), "{request:?} got {reply:?}");
    }
}

#[test]
fn fence_never_lowers_the_promise() {
    let mut fixture = promised();
    let older = fixture.ask(Request::Fence(fence(caller(4))));
    assert_eq!(older, Some(Reply::Refused(Refusal::Fenced { promised: Epoch(5) })));
    for wrong in [Caller { log: LogId(2), ..caller(9) }, Caller { group: group("h"), ..caller(9) }] {
        let reply = fixture.ask(Request::Fence(fence(wrong)));
        assert!(matches!(reply, Some(Reply::Refused(Refusal::WrongLog { .. }))), "{reply:?}");
    }
    assert_eq!(fixture.backup.promise().epoch, Epoch(5));
    // Asked again under the same epoch, nothing is revoked: the caller's own buffers stay lent.
    fixture.fence(5);
    assert_eq!(fixture.out.len(), 1);
    assert_eq!(fixture.backup.counts().lent, 1);
}

#[test]
fn fence_persists_revokes_and_scans_before_it_replies() {
    let mut fixture = promised();
    fixture.fence(6);
    let kinds: Vec<&str> = fixture
        .out
        .iter()
        .map(|output| match output {
            Output::Persist(promise) => {
                assert_eq!(promise.epoch, Epoch(6));
                "persist"
            }
            Output::RevokeBelow(Epoch(6)) => "revoke",
            Output::Scan(..) => "scan",
            Output::Reply(..) => "reply",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["persist", "revoke", "scan", "reply"]);
}

#[test]
fn segment_of_a_later_epoch_is_not_lent() {
    let reply = promised().ask(open(caller(5), identity(2, 6), Purpose::Append));
    assert!(matches!(reply, Some(Reply::Refused(Refusal::BadRequest { .. }))), "{reply:?}");
}

#[test]
fn segment_larger_than_the_buffers_is_refused() {
    let large = SegmentIdentity { size: SegmentSize::DEFAULT, ..identity(2, 5) };
    let reply = promised().ask(open(caller(5), large, Purpose::Append));
    assert!(matches!(reply, Some(Reply::Refused(Refusal::BadRequest { .. }))), "{reply:?}");
}

#[test]
fn fetch_serves_closed_segments_only() {
    let mut fixture = promised();
    let fetch = |identity, last| {
        Request::Fetch(FetchRequest { group: group("g"), identity, closure: closure(last), check: true, range: None })
    };
    assert!(matches!(fixture.ask(fetch(identity(1, 5), 3)), Some(Reply::Refused(Refusal::NoSuchCopy { .. }))));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert!(matches!(fixture.ask(fetch(identity(1, 5), 3)), Some(Reply::Fetch(..))));
    assert!(matches!(fixture.ask(fetch(identity(1, 5), 2)), Some(Reply::Refused(Refusal::NoSuchCopy { .. }))));
    assert!(matches!(fixture.ask(fetch(identity(1, 4), 3)), Some(Reply::Refused(Refusal::NoSuchCopy { .. }))));
    let end = closure(3).end.0;
    let range = |range| match fetch(identity(1, 5), 3) {
        Request::Fetch(whole) => Request::Fetch(FetchRequest { range: Some(range), ..whole }),
        other => other,
    };
    for good in [0..end, 0..1, end - 1..end] {
        assert!(matches!(fixture.ask(range(good)), Some(Reply::Fetch(..))));
    }
    let backwards = std::ops::Range { start: 9, end: 8 };
    for bad in [0..0, end..end, backwards, 0..end + 1, end..end + 8, 0..u32::MAX, u32::MAX..u32::MAX] {
        let reply = fixture.ask(range(bad.clone()));
        assert!(matches!(reply, Some(Reply::Refused(Refusal::BadRequest { .. }))), "{bad:?}: {reply:?}");
    }
    fixture.step(Input::FoundCorrupt(identity(1, 5), Place::Memory(Slot(0))));
    assert!(matches!(fixture.ask(fetch(identity(1, 5), 3)), Some(Reply::Refused(Refusal::Corrupt { .. }))));
}

#[test]
fn repeated_close_reports_the_current_state() {
    let mut fixture = promised();
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert!(matches!(
        fixture.ask(close(caller(5), identity(1, 5), 2)),
        Some(Reply::Refused(Refusal::NoSuchCopy { .. }))
    ));
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    // On disk, and found corrupt there: no longer whole, although an earlier close succeeded.
    fixture.step(Input::FoundCorrupt(identity(1, 5), Place::Disk));
    assert_eq!(
        fixture.ask(close(caller(5), identity(1, 5), 3)),
        Some(Reply::Refused(Refusal::Corrupt { segment: SegmentId(1) }))
    );
}

#[test]
fn bytes_changed_after_the_scan_are_scanned_again() {
    let mut fixture = promised();
    fixture.scanned = tail(7);
    fixture.fence(6);
    (fixture.sound, fixture.scanned) = (false, tail(4));
    let reply = fixture.ask(close(caller(6), identity(1, 5), 7));
    assert_eq!(reply, Some(Reply::Refused(Refusal::Corrupt { segment: SegmentId(1) })));
    // The next candidate sees what is left, copies the segment from another member, and does not try this close again.
    let copy = fixture.backup.inventory().copies[0];
    assert_eq!((copy.state, copy.closure), (CopyState::Open, closure(4)));
}

/// Its request came a second time, late: nobody writes it, and nobody closes it.
#[test]
fn unclosed_image_gives_its_buffer_to_an_append() {
    let mut fixture = promised();
    assert!(matches!(fixture.ask(open(caller(5), identity(9, 5), Purpose::Install)), Some(Reply::Opened(Slot(1)))));
    let next = |segment| open(caller(5), identity(segment, 5), Purpose::Append);
    assert!(matches!(fixture.ask(next(2)), Some(Reply::Opened(Slot(2)))));
    let refused = |reply| matches!(reply, Some(Reply::Refused(Refusal::RetryLater { .. })));
    assert!(refused(fixture.ask(next(3))) && !fixture.out.contains(&Output::Release(Slot(1))), "it may be on its way");
    for _ in 0..30 {
        fixture.step(Input::Tick);
    }
    fixture.out.clear();
    assert!(refused(fixture.ask(next(3))));
    assert!(fixture.out.contains(&Output::Release(Slot(1))));
    assert!(!fixture.out.contains(&Output::EndLending(Slot(1))), "nobody has said that its writer is finished");
    assert!(matches!(fixture.ask(next(3)), Some(Reply::Opened(Slot(1)))));
    assert!(matches!(
        fixture.ask(close(caller(5), identity(9, 5), 7)),
        Some(Reply::Refused(Refusal::NoSuchCopy { .. }))
    ));
}

#[test]
fn bad_image_keeps_the_older_copy() {
    let mut fixture = promised();
    fixture.scanned = tail(4);
    fixture.fence(6);
    assert!(matches!(fixture.ask(open(caller(6), identity(1, 5), Purpose::Install)), Some(Reply::Opened(Slot(1)))));
    fixture.sound = false;
    let reply = fixture.ask(close(caller(6), identity(1, 5), 7));
    assert_eq!(reply, Some(Reply::Refused(Refusal::Corrupt { segment: SegmentId(1) })));
    assert!(fixture.out.contains(&Output::Release(Slot(1))) && !fixture.out.contains(&Output::Release(Slot(0))));
    assert_eq!(fixture.backup.inventory().copies[0].closure, closure(4));
}

#[test]
fn longer_of_two_buffers_for_one_segment_counts() {
    let row = |purpose, lender, closed| SlotRow { identity: identity(1, 5), purpose, lender: Epoch(lender), closed };
    let old = (Slot(3), row(Purpose::Append, 5, None));
    let image = (Slot(1), row(Purpose::Append, 6, Some(closure(7))));
    let unfinished = (Slot(2), row(Purpose::Install, 6, None));
    for rows in [vec![image, unfinished, old], vec![old, image, unfinished]] {
        let promise = Promise { log: Some(LogId(1)), epoch: Epoch(6), ..Promise::default() };
        let fixture = Fixture::start(Found { promise, rows, ..Found::default() }, 4);
        let copies = fixture.backup.inventory().copies;
        assert_eq!((copies.len(), copies[0].state, copies[0].closure), (1, CopyState::Closed, closure(7)));
        assert_eq!(fixture.backup.unflushed_bytes(), u64::from(SLOT_SIZE), "the other buffers are free");
        let flushes = fixture.out.iter().filter(|output| matches!(output, Output::StartFlush(..))).count();
        assert_eq!(flushes, 1, "two flushes of one segment would race for its file");
    }
}

#[test]
fn flushed_image_counts_once_it_is_on_disk() {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    let flushed = |purpose| {
        let caller = caller(5);
        Request::Open(OpenRequest { caller, identity: identity(1, 4), purpose, durability: Durability::Flushed })
    };
    assert!(matches!(fixture.ask(flushed(Purpose::Install)), Some(Reply::Opened(Slot(0)))));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 4), 3)), None);
    let first = RequestId(fixture.requests);
    assert_eq!(fixture.backup.inventory().copies[0].state, CopyState::Open, "in memory alone it is not closed yet");
    // Asked again, one waits: a full disk must not pile up callers.
    assert_eq!(fixture.ask(close(caller(5), identity(1, 4), 3)), None);
    assert!(matches!(fixture.reply_to(first), Some(Reply::Refused(Refusal::RetryLater { .. }))));
    let second = RequestId(fixture.requests);
    fixture.step(Input::Flushed(Slot(0), identity(1, 4), FlushResult::Failed));
    assert_eq!(fixture.reply_to(second), None);
    fixture.step(Input::Tick);
    fixture.step(Input::Flushed(Slot(0), identity(1, 4), FlushResult::Done));
    assert_eq!(fixture.reply_to(second), Some(Reply::Done));
    assert_eq!(fixture.backup.inventory().copies[0].state, CopyState::Closed);
}

fn open_flushed(caller: Caller, identity: SegmentIdentity, purpose: Purpose) -> Request {
    Request::Open(OpenRequest { caller, identity, purpose, durability: Durability::Flushed })
}

/// From the raise on it keeps its identity after a loss of power, so everything that it holds must be on its disk by then.
#[test]
fn flushed_durability_waits_until_all_is_on_disk() {
    let mut fixture = promised();
    fixture.scanned = tail(3);
    fixture.fence(6);
    let next = || open_flushed(caller(6), identity(2, 6), Purpose::Append);
    let refused = |fixture: &mut Fixture, why: &str| {
        let reply = fixture.ask(next());
        assert!(matches!(reply, Some(Reply::Refused(Refusal::RetryLater { .. }))), "{why}: {reply:?}");
        assert_eq!(fixture.out.len(), 1, "{why}: {:?}", fixture.out);
        assert_eq!(fixture.backup.promise().durability, Durability::Memory, "{why}");
    };
    refused(&mut fixture, "recovered, in memory only");
    assert_eq!(fixture.ask(close(caller(6), identity(1, 5), 3)), Some(Reply::Done));
    refused(&mut fixture, "closed, in memory only");
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert!(matches!(fixture.ask(next()), Some(Reply::Opened(_))));
    assert_eq!(fixture.backup.promise().durability, Durability::Flushed);
    // What is lent to the caller itself is covered by its flushes.
    assert!(matches!(fixture.ask(open_flushed(caller(6), identity(3, 6), Purpose::Append)), Some(Reply::Opened(_))));
}

/// An image may be what replaces the copy that is in memory only: it is let in, but raises nothing.
#[test]
fn image_is_accepted_before_durability_is_raised() {
    let mut fixture = promised();
    fixture.scanned = tail(3);
    fixture.fence(6);
    let image = fixture.ask(open_flushed(caller(6), identity(1, 5), Purpose::Install));
    assert!(matches!(image, Some(Reply::Opened(Slot(1)))), "{image:?}");
    assert_eq!(fixture.backup.promise().durability, Durability::Memory, "the tail would be lost with the power");
    assert_eq!(fixture.ask(close(caller(6), identity(1, 5), 7)), Some(Reply::Done));
    let next = || open_flushed(caller(6), identity(2, 6), Purpose::Append);
    assert!(matches!(fixture.ask(next()), Some(Reply::Refused(Refusal::RetryLater { .. }))));
    fixture.step(Input::Flushed(Slot(1), identity(1, 5), FlushResult::Done));
    assert!(matches!(fixture.ask(next()), Some(Reply::Opened(_))));
    assert_eq!(fixture.backup.promise().durability, Durability::Flushed);
}

#[test]
fn replaced_copy_keeps_its_file_until_the_flush() {
    let mut fixture = promised();
    fixture.fence(6);
    assert!(matches!(fixture.ask(open(caller(6), identity(1, 5), Purpose::Install)), Some(Reply::Opened(_))));
    assert_eq!(fixture.ask(close(caller(6), identity(1, 5), 7)), Some(Reply::Done));
    assert!(fixture.out.contains(&Output::Release(Slot(0))));
    assert!(!fixture.out.contains(&Output::DeleteFile(SegmentId(1))), "it may be all that a restart finds");
}

#[test]
fn lending_is_bounded_by_pool_and_flush_bandwidth() {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    for segment in 1..=3 {
        assert!(matches!(fixture.ask(open(caller(5), identity(segment, 5), Purpose::Append)), Some(Reply::Opened(_))));
    }
    let fourth = || open(caller(5), identity(4, 5), Purpose::Append);
    assert!(matches!(fixture.ask(fourth()), Some(Reply::Refused(Refusal::RetryLater { .. }))));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert!(matches!(fixture.ask(fourth()), Some(Reply::Refused(Refusal::RetryLater { .. }))), "closed is not flushed");
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert_eq!(fixture.ask(fourth()), Some(Reply::Opened(Slot(0))));
}

/// However many buffers appends hold, one image always finds a buffer; a second one waits.
#[test]
fn last_buffer_is_reserved_for_images() {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    for segment in 1..=3 {
        assert!(matches!(fixture.ask(open(caller(5), identity(segment, 5), Purpose::Append)), Some(Reply::Opened(_))));
    }
    fixture.scanned = tail(3);
    fixture.fence(6);
    let image = |segment| open(caller(6), identity(segment, 5), Purpose::Install);
    assert_eq!(fixture.ask(image(1)), Some(Reply::Opened(Slot(3))));
    assert!(matches!(fixture.ask(image(2)), Some(Reply::Refused(Refusal::RetryLater { .. }))));
    assert_eq!(fixture.ask(close(caller(6), identity(1, 5), 7)), Some(Reply::Done));
    assert_eq!(
        fixture.ask(image(2)),
        Some(Reply::Opened(Slot(0))),
        "the copy that was replaced has given its buffer back"
    );
}

/// None of its sources could give the segment.
#[test]
fn a_failed_pull_gives_its_buffer_back_at_once() {
    let mut fixture = promised();
    fixture.fence(6);
    let before = fixture.backup.counts().lent;
    let image = || open(caller(6), identity(1, 5), Purpose::Install);
    let Some(Reply::Opened(slot)) = fixture.ask(image()) else { panic!("{:?}", fixture.out) };
    assert_eq!(fixture.backup.counts().lent, before + 1);
    fixture.step(Input::GivenUp(slot));
    assert!(fixture.out.contains(&Output::Release(slot)), "{:?}", fixture.out);
    assert_eq!(fixture.backup.counts().lent, before);
    assert!(matches!(fixture.ask(image()), Some(Reply::Opened(_))), "it can be tried again");
    // An image that is closed, or a buffer of anything else, is not given up.
    assert_eq!(fixture.ask(close(caller(6), identity(1, 5), 7)), Some(Reply::Done));
    fixture.out.clear();
    (0..4).for_each(|slot| fixture.step(Input::GivenUp(Slot(slot))));
    assert_eq!(fixture.out, []);
}

/// A pool that is too small for both serves appends.
#[test]
fn pool_of_two_reserves_no_buffer_for_images() {
    let mut fixture = Fixture::start(Found::default(), 2);
    fixture.fence(5);
    for segment in 1..=2 {
        assert!(matches!(fixture.ask(open(caller(5), identity(segment, 5), Purpose::Append)), Some(Reply::Opened(_))));
    }
    let third = open(caller(5), identity(3, 5), Purpose::Append);
    assert!(matches!(fixture.ask(third), Some(Reply::Refused(Refusal::RetryLater { .. }))));
}

/// It was lost in the middle of segment 1 and came back later: segment 2 it got as an image, and 1 has been trimmed.
#[test]
fn trim_frees_an_unclosed_older_segment() {
    let trim = |below| Request::Trim(TrimRequest { caller: caller(5), below: Lsn(below) });
    for (restarts, later_epoch) in [(false, 5), (true, 5), (false, 4)] {
        let mut fixture = Fixture::fresh();
        fixture.fence(5);
        let later = identity(2, later_epoch);
        assert_eq!(fixture.ask(open(caller(5), identity(1, 5), Purpose::Append)), Some(Reply::Opened(Slot(0))));
        assert_eq!(fixture.ask(open(caller(5), later, Purpose::Install)), Some(Reply::Opened(Slot(1))));
        let closure = Closure { first: Lsn(4), ..closure(6) };
        let close = Request::Close(CloseRequest { caller: caller(5), identity: later, closure });
        assert_eq!(fixture.ask(close), Some(Reply::Done));
        if restarts {
            let (promise, row) = (fixture.backup.promise().clone(), |identity, closed| SlotRow {
                identity,
                purpose: Purpose::Append,
                lender: Epoch(5),
                closed,
            });
            let rows = vec![(Slot(0), row(identity(1, 5), None)), (Slot(1), row(later, Some(closure)))];
            fixture = Fixture::start(Found { promise, rows, ..Found::default() }, 4);
        }
        assert_eq!(fixture.ask(trim(3)), Some(Reply::Done));
        assert!(!fixture.out.contains(&Output::Release(Slot(0))), "record 3 may be in it");
        assert_eq!(fixture.ask(trim(4)), Some(Reply::Done));
        let same_log = later_epoch == 5;
        assert_eq!(
            fixture.out.contains(&Output::Release(Slot(0))),
            same_log,
            "another epoch's segment 2 says nothing of it"
        );
    }
}

/// The same, and it came back in a later epoch. Nothing waits for segment 1 to come to disk.
#[test]
fn trim_frees_an_unclosed_older_segment_of_an_earlier_epoch() {
    for (closed_in, is_free) in [(6, true), (5, false)] {
        let mut fixture = Fixture::fresh();
        fixture.fence(4);
        assert_eq!(fixture.ask(open(caller(4), identity(1, 4), Purpose::Append)), Some(Reply::Opened(Slot(0))));
        fixture.fence(closed_in);
        let later = identity(2, 5);
        assert_eq!(fixture.ask(open(caller(closed_in), later, Purpose::Install)), Some(Reply::Opened(Slot(1))));
        let closure = Closure { first: Lsn(4), ..closure(6) };
        let close = Request::Close(CloseRequest { caller: caller(closed_in), identity: later, closure });
        assert_eq!(fixture.ask(close), Some(Reply::Done));
        fixture.step(Input::Flushed(Slot(1), later, FlushResult::Done));
        fixture.fence(6);
        let sync = || sync(caller(6), 3, None, 6);
        let waits = |reply| matches!(reply, Some(Reply::Refused(Refusal::RetryLater { .. })));
        assert!(waits(fixture.ask(sync())), "segment 1 may be needed");
        let trim = Request::Trim(TrimRequest { caller: caller(6), below: Lsn(4) });
        assert_eq!(fixture.ask(trim), Some(Reply::Done));
        assert_eq!(fixture.out.contains(&Output::Release(Slot(0))), is_free, "closed in epoch {closed_in}");
        assert_eq!(waits(fixture.ask(sync())), !is_free, "closed in epoch {closed_in}");
    }
}

#[test]
fn shutdown_waits_for_flushes_and_refuses_requests() {
    let mut fixture = promised();
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    fixture.out.clear();
    fixture.step(Input::Shutdown);
    assert!(!fixture.out.iter().any(|output| matches!(output, Output::Finish { .. })));
    let reply = fixture.ask(Request::Fence(fence(caller(6))));
    assert!(matches!(reply, Some(Reply::Refused(Refusal::Failed { .. }))), "{reply:?}");
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert!(fixture.out.contains(&Output::Finish { complete: true }));
    assert_eq!(fixture.backup.promise().epoch, Epoch(5), "revoking everybody is not a promise");
    assert_eq!(fixture.backup.counts(), Counts { closed: 1, on_disk: 1, flush_bytes: 264, ..Counts::default() });
}

/// Under `Flushed` a copy that is whole in memory is reported as open. A drop of what was here before, of the same segment with
/// the same end, may come late: after the segment has been lent, written and closed again in the same epoch.
#[test]
fn late_drop_spares_copies_closed_in_this_epoch() {
    let promise =
        Promise { log: Some(LogId(1)), epoch: Epoch(1), durability: Durability::Flushed, ..Promise::default() };
    let row = SlotRow { identity: identity(1, 1), purpose: Purpose::Append, lender: Epoch(1), closed: None };
    let mut fixture = Fixture::start(Found { promise, rows: vec![(Slot(0), row)], ..Found::default() }, 4);
    fixture.step(Input::Scanned(Slot(0), tail(5)));
    let seen = fixture.backup.inventory().copies;
    assert_eq!(seen.len(), 1);
    let drop = Request::Drop(DropRequest { caller: caller(1), copies: seen.clone() });
    assert_eq!(fixture.ask(drop.clone()), Some(Reply::Done));
    assert_eq!(fixture.backup.inventory().copies, []);
    let lend = OpenRequest {
        caller: caller(1),
        identity: identity(1, 1),
        purpose: Purpose::Append,
        durability: Durability::Flushed,
    };
    assert!(matches!(fixture.ask(Request::Open(lend)), Some(Reply::Opened(_))));
    assert_eq!(fixture.ask(close(caller(1), identity(1, 1), 5)), Some(Reply::Done));
    assert_eq!(fixture.backup.inventory().copies, seen, "it looks the same");
    assert_eq!(fixture.ask(drop), Some(Reply::Done));
    assert_eq!(fixture.backup.inventory().copies, seen, "and is a part of the log now");
}

/// A scrub may come late with what it has read: by then an image has replaced the copy.
#[test]
fn corruption_is_reported_until_an_image_replaces_the_copy() {
    let mut fixture = promised();
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert_eq!(fixture.backup.closed_behind(SegmentId(0)).map(|(place, ..)| place), Some(Place::Memory(Slot(0))));
    assert_eq!((fixture.backup.closed_behind(SegmentId(1)), fixture.backup.newest_closed()), (None, SegmentId(1)));
    fixture.step(Input::FoundCorrupt(identity(1, 5), Place::Disk));
    assert_eq!(fixture.ask(Request::Damage), Some(Reply::Damage(vec![])));
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    fixture.step(Input::FoundCorrupt(identity(1, 5), Place::Disk));
    assert_eq!(fixture.backup.closed_behind(SegmentId(0)), None, "nobody reads it any more");
    let Some(Reply::Damage(reported)) = fixture.ask(Request::Damage) else { panic!("no report") };
    assert_eq!(
        reported.iter().map(|copy| (copy.identity, copy.state)).collect::<Vec<_>>(),
        [(identity(1, 5), CopyState::Corrupt)]
    );
    let open = OpenRequest {
        caller: caller(5),
        identity: identity(1, 5),
        purpose: Purpose::Install,
        durability: Durability::Memory,
    };
    assert!(matches!(fixture.ask(Request::Open(open)), Some(Reply::Opened(_))));
    assert_eq!(fixture.backup.counts().corrupt, 1, "until the image is whole");
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 3)), Some(Reply::Done));
    assert_eq!(fixture.ask(Request::Damage), Some(Reply::Damage(vec![])));
    // What was read on disk before the image came.
    fixture.step(Input::FoundCorrupt(identity(1, 5), Place::Disk));
    assert_eq!((fixture.backup.counts().corrupt, fixture.backup.damage().len()), (0, 0));
}

/// Everything that is here, or is owed, was written under an epoch that was promised: otherwise the promise is an older copy of
/// itself, even one from before there was any log.
#[test]
fn promise_older_than_the_owed_segments_is_doubted() {
    let row = SlotRow { identity: identity(2, 4), purpose: Purpose::Append, lender: Epoch(4), closed: None };
    let older = Promise { log: Some(LogId(1)), epoch: Epoch(3), ..Promise::default() };
    for promise in [Promise::default(), older] {
        let owed = Found { owed: vec![(identity(1, 4), closure(2))], ..Found::default() };
        let here = Found { rows: vec![(Slot(0), row)], ..Found::default() };
        let gone = Found { missing: vec![(Slot(0), row)], ..Found::default() };
        for found in [owed, here, gone] {
            let fixture = Fixture::start(Found { promise: promise.clone(), ..found.clone() }, 4);
            let doubt = fixture.backup.promise().doubt.as_ref();
            assert!(doubt.is_some_and(|doubt| doubt.why.contains("older than the segments")), "{found:?}");
            assert!(!fixture.backup.is_witness(), "{found:?}");
        }
    }
}

/// What was dropped is settled before anything of it goes, so that a process that dies in between misses nothing.
#[test]
fn an_interrupted_drop_of_a_flushed_segment_is_no_doubt() {
    let leaving =
        SlotRow { identity: identity(1, 4), purpose: Purpose::Install, lender: Epoch(4), closed: Some(closure(3)) };
    let promise =
        Promise { log: Some(LogId(1)), epoch: Epoch(5), durability: Durability::Flushed, ..Promise::default() };
    let flushed = vec![(identity(1, 4), closure(3).end)];
    let mut found = Found { promise, rows: vec![(Slot(0), leaving)], flushed, ..Found::default() };
    let fixture = Fixture::start(found.clone(), 4);
    assert!(fixture.backup.is_witness(), "{:?}", fixture.backup.damage());
    let quarantined = |fixture: &Fixture| fixture.out.contains(&Output::Quarantine(SegmentId(1)));
    assert!(quarantined(&fixture), "its file goes too: {:?}", fixture.out);
    let successor = SlotRow { identity: identity(1, 5), purpose: Purpose::Append, lender: Epoch(5), closed: None };
    found.rows.push((Slot(1), successor));
    let fixture = Fixture::start(found, 4);
    assert!(fixture.backup.is_witness() && !quarantined(&fixture), "the file is the successor's: {:?}", fixture.out);
}

/// The last marks of a segment need not be on disk when it is closed: the file is owed once it is written, and until then a
/// loss of power leaves an open segment with every record, not a closed one that has lost its end.
#[test]
fn flushed_segment_is_owed_once_it_is_on_disk() {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    assert!(matches!(fixture.ask(open_flushed(caller(5), identity(1, 5), Purpose::Append)), Some(Reply::Opened(_))));
    assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 2)), Some(Reply::Done));
    let owes = |fixture: &Fixture| fixture.out.contains(&Output::Owe(vec![(identity(1, 5), closure(2))]));
    assert!(!owes(&fixture), "{:?}", fixture.out);
    fixture.out.clear();
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert!(owes(&fixture), "{:?}", fixture.out);
}

/// After a loss of power a later segment whose predecessor is missing would keep the log from being put together.
#[test]
fn flushed_shutdown_writes_nothing_after_a_gap() {
    for (durability, written) in [(Durability::Flushed, 0), (Durability::Memory, 1)] {
        let mut fixture = Fixture::fresh();
        fixture.fence(5);
        for number in [1, 2] {
            let identity = identity(number, 5);
            let open = OpenRequest { caller: caller(5), identity, purpose: Purpose::Append, durability };
            assert!(matches!(fixture.ask(Request::Open(open)), Some(Reply::Opened(_))));
        }
        assert_eq!(fixture.ask(close(caller(5), identity(1, 5), 2)), Some(Reply::Done));
        fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Failed));
        fixture.out.clear();
        fixture.step(Input::Shutdown);
        fixture.step(Input::Scanned(Slot(1), tail(3)));
        fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Failed));
        let last = fixture.out.iter().filter(|output| matches!(output, Output::FlushOpen(..))).count();
        assert_eq!(last, written, "{durability}: {:?}", fixture.out);
        assert!(fixture.out.contains(&Output::Finish { complete: false }), "{:?}", fixture.out);
    }
}

/// Its writer has read an older inventory: of that segment something else is here by now.
#[test]
fn drop_removes_only_the_copy_its_caller_saw() {
    let mut fixture = promised();
    fixture.scanned = tail(3);
    fixture.fence(6);
    let here = fixture.backup.inventory().copies;
    let [seen] = here[..] else { panic!("{here:?}") };
    let older = SegmentIdentity { epoch: Epoch(4), ..seen.identity };
    let shorter = Closure { last: Lsn(2), ..seen.closure };
    for other in [CopyReport { identity: older, ..seen }, CopyReport { closure: shorter, ..seen }] {
        let drop = Request::Drop(DropRequest { caller: caller(6), copies: vec![other] });
        assert_eq!(fixture.ask(drop), Some(Reply::Done));
        assert_eq!(fixture.backup.inventory().copies, here, "{other:?}");
    }
    let drop = Request::Drop(DropRequest { caller: caller(6), copies: here.clone() });
    assert_eq!(fixture.ask(drop), Some(Reply::Done));
    assert_eq!(fixture.backup.inventory().copies, []);
}

#[test]
fn fence_frees_the_buffers_of_images() {
    let mut fixture = promised();
    let image = open(caller(5), identity(1, 4), Purpose::Install);
    let Some(Reply::Opened(slot)) = fixture.ask(image) else { panic!("{:?}", fixture.out) };
    fixture.out.clear();
    fixture.fence(6);
    assert!(fixture.out.contains(&Output::Release(slot)), "{:?}", fixture.out);
    assert_eq!(fixture.backup.counts().lent, 0);
}

/// A backup that comes back while the primary lives holds the beginning of what the primary is about to write to it again.
#[test]
fn dropped_copy_of_the_current_epoch_is_not_quarantined() {
    for (written, kept) in [(5, false), (4, true)] {
        let promise = Promise { log: Some(LogId(1)), epoch: Epoch(5), ..Promise::default() };
        let row = SlotRow { identity: identity(1, written), purpose: Purpose::Append, lender: Epoch(5), closed: None };
        let mut fixture = Fixture::start(Found { promise, rows: vec![(Slot(0), row)], ..Found::default() }, 4);
        fixture.step(Input::Scanned(Slot(0), tail(3)));
        let copies = fixture.backup.inventory().copies;
        assert_eq!(copies.len(), 1);
        fixture.out.clear();
        assert_eq!(fixture.ask(Request::Drop(DropRequest { caller: caller(5), copies })), Some(Reply::Done));
        let quarantined = |output: &Output| matches!(output, Output::Quarantine(_) | Output::StartQuarantine(..));
        assert_eq!(fixture.out.iter().any(quarantined), kept, "{:?}", fixture.out);
    }
}

fn sync(caller: Caller, before: u64, end: Option<u32>, last: u64) -> Request {
    let open = end.map(|end| OpenPart { identity: identity(before, 5), end: Offset(end) });
    Request::Sync(SyncRequest { caller, point: SyncPoint { before: SegmentId(before), open, last: Lsn(last) } })
}

#[test]
fn sync_is_promised_once_the_open_part_is_on_disk() {
    let mut fixture = promised();
    let id = fixture.send(sync(caller(5), 1, Some(120), 1));
    assert!(matches!(fixture.out[..], [Output::StartOpenFlush(_, Slot(0), _, Offset(120))]), "{:?}", fixture.out);
    fixture.tell(Input::OpenFlushed(id, identity(1, 5), Ok(Offset(120))));
    let [Output::RecordOpen(of, Offset(120)), Output::Persist(promise), Output::Reply(_, Reply::Done)] =
        &fixture.out[..]
    else {
        panic!("{:?}", fixture.out)
    };
    assert_eq!(*of, identity(1, 5));
    assert_eq!(promise.synced, Some(Synced { epoch: Epoch(5), last: Lsn(1) }));
}

#[test]
fn sync_is_not_promised_for_what_cannot_be_seen_yet() {
    for result in [Ok(Offset(72)), Err("no space".to_owned())] {
        let mut fixture = promised();
        let id = fixture.send(sync(caller(5), 1, Some(120), 1));
        fixture.tell(Input::OpenFlushed(id, identity(1, 5), result));
        let retry = |reply: &Output| matches!(reply, Output::Reply(_, Reply::Refused(Refusal::RetryLater { .. })));
        assert!(fixture.out.last().is_some_and(retry), "{:?}", fixture.out);
        assert!(!fixture.out.iter().any(|output| matches!(output, Output::Persist(_))), "{:?}", fixture.out);
    }
}

/// Older notes of flushes would not show that its file is gone.
#[test]
fn first_flush_of_an_open_segment_is_recorded_before_it_is_answered() {
    let mut fixture = promised();
    let flush = |end| Request::Flush(FlushRequest { caller: caller(5), identity: identity(1, 5), end: Offset(end) });
    let mut flushed = |result: Result<Offset, String>| {
        let id = fixture.send(flush(200));
        fixture.tell(Input::OpenFlushed(id, identity(1, 5), result));
        fixture.out.clone()
    };
    let recorded = |out: &[Output]| out.iter().any(|output| matches!(output, Output::RecordOpen(..)));
    assert!(!recorded(&flushed(Ok(Offset(0)))), "there is no file yet");
    assert!(!recorded(&flushed(Err("no space".to_owned()))));
    let out = flushed(Ok(Offset(120)));
    let [Output::RecordOpen(of, Offset(120)), Output::Reply(_, Reply::Flushed(Offset(120)))] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!(*of, identity(1, 5));
    assert!(!recorded(&flushed(Ok(Offset(200)))), "once");
    // So is what the end of the process writes.
    let mut fixture = promised();
    fixture.scanned = tail(3);
    fixture.out.clear();
    fixture.step(Input::Shutdown);
    let [.., Output::FlushOpen(_, _, found), Output::RecordOpen(of, end), Output::Finish { .. }] = &fixture.out[..]
    else {
        panic!("{:?}", fixture.out)
    };
    assert_eq!((*of, *end), (identity(1, 5), found.closure.end));
}

/// What proves that more was acknowledged stands behind what is sound, and does not come to disk.
#[test]
fn the_last_process_records_how_far_a_damaged_segment_reached() {
    let acked = Offset(tail(3).closure.end.0 + 800);
    for found in [Tail { acked, ..tail(3) }, Tail { acked, ..Tail::default() }] {
        let mut fixture = promised();
        fixture.scanned = found;
        fixture.out.clear();
        fixture.step(Input::Shutdown);
        let [.., Output::FlushOpen(_, _, written), Output::RecordOpen(of, end), Output::Finish { .. }] =
            &fixture.out[..]
        else {
            panic!("{:?}", fixture.out)
        };
        assert_eq!((*written, *of, *end), (found, identity(1, 5), acked));
    }
}

#[test]
fn sync_waits_for_closed_segments() {
    let mut fixture = promised();
    assert!(matches!(
        fixture.ask(sync(caller(5), 2, None, 1)),
        Some(Reply::Refused(Refusal::RetryLater { why, .. })) if why.contains("not closed yet")
    ));
    fixture.ask(close(caller(5), identity(1, 5), 1));
    assert!(matches!(
        fixture.ask(sync(caller(5), 2, None, 1)),
        Some(Reply::Refused(Refusal::RetryLater { why, .. })) if why.contains("not on disk yet")
    ));
    fixture.step(Input::Flushed(Slot(0), identity(1, 5), FlushResult::Done));
    assert_eq!(fixture.ask(sync(caller(5), 2, None, 1)), Some(Reply::Done));
    assert!(fixture.out.iter().any(|output| matches!(output, Output::Persist(_))), "{:?}", fixture.out);
    // A late repetition of an earlier one takes nothing back.
    assert_eq!(fixture.ask(sync(caller(5), 2, None, 0)), Some(Reply::Done));
    assert!(!fixture.out.iter().any(|output| matches!(output, Output::Persist(_))), "{:?}", fixture.out);
}

#[test]
fn sync_of_a_fenced_epoch_is_not_promised() {
    let mut fixture = promised();
    let id = fixture.send(sync(caller(5), 1, Some(120), 1));
    fixture.fence(6);
    fixture.tell(Input::OpenFlushed(id, identity(1, 5), Ok(Offset(120))));
    let fenced = |output: &Output| matches!(output, Output::Reply(_, Reply::Refused(Refusal::Fenced { .. })));
    assert!(fixture.out.iter().any(fenced), "{:?}", fixture.out);
    assert!(!fixture.out.iter().any(|output| matches!(output, Output::Persist(_))), "{:?}", fixture.out);
}

fn pull(epoch: u64, segment: u64, sources: &[&str]) -> PullRequest {
    let source = |name: &&str| PullSource { member: name.parse().expect("a name"), control: vec!["x:1".to_owned()] };
    PullRequest {
        caller: caller(epoch),
        identity: identity(segment, 5),
        closure: closure(2),
        durability: Durability::Memory,
        sources: sources.iter().map(source).collect(),
    }
}

/// A pull may do what its caller may do, and what has been trimmed does not come back.
#[test]
fn pulls_are_admitted_like_closes() {
    let mut fixture = Fixture::fresh();
    fixture.fence(5);
    fixture.fence(6);
    assert_eq!(fixture.backup.admit_pull(&pull(6, 1, &["m2"])), Ok(false));
    assert!(matches!(fixture.backup.admit_pull(&pull(5, 1, &["m2"])), Err(Refusal::Fenced { .. })));
    assert!(matches!(fixture.backup.admit_pull(&pull(7, 1, &["m2"])), Err(Refusal::NotFenced { .. })));
    let mut beyond = pull(6, 1, &["m2"]);
    beyond.closure.end = Offset(SLOT_SIZE + 8);
    let mut elsewhere = pull(6, 1, &["m2"]);
    elsewhere.sources[0].control = vec!["x:1".to_owned(); 5];
    let many = pull(6, 1, &["m2"; SOURCES_MAX + 1]);
    for odd in [beyond, elsewhere, many, pull(6, 1, &["m1"])] {
        assert!(matches!(fixture.backup.admit_pull(&odd), Err(Refusal::BadRequest { .. })), "{odd:?}");
    }
    // Here already, as wanted or not.
    fixture.ask(open(caller(6), identity(1, 5), Purpose::Install));
    let close = CloseRequest { caller: caller(6), identity: identity(1, 5), closure: closure(2) };
    assert_eq!(fixture.backup.admit_pull(&pull(6, 1, &["m2"])), Ok(false), "an image is no copy");
    assert_eq!(fixture.ask(Request::Close(close)), Some(Reply::Done));
    assert_eq!(fixture.backup.admit_pull(&pull(6, 1, &["m2"])), Ok(true));
    let mut longer = pull(6, 1, &["m2"]);
    longer.closure = closure(3);
    assert_eq!(fixture.backup.admit_pull(&longer), Ok(false));
    fixture.ask(Request::Trim(TrimRequest { caller: caller(6), below: Lsn(3) }));
    assert!(matches!(fixture.backup.admit_pull(&pull(6, 1, &["m2"])), Err(Refusal::NoSuchCopy { .. })));
}
