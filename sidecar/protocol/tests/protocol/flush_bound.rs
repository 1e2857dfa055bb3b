//! The bound on the flush folder: a log that is never trimmed makes appends wait, and nothing is lost (S9).

use tailwind_protocol::backup::{
    Backup, FlushResult, Found, Input, Limits, Output, Promise, Reply, Request, RequestId, Slot, TRIMMED_AT_ONCE,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, FOOTER_SIZE, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, DropRequest, FenceRequest, FetchRequest, OpenRequest, Purpose, Refusal, TrimRequest,
};

use crate::limits::limits;

const SLOT_SIZE: u64 = 64 << 10;
/// The file of a full segment.
const FULL: u64 = SLOT_SIZE + FOOTER_SIZE as u64;

struct Fixture {
    backup: Backup,
    epoch: u64,
    out: Vec<Output>,
}

impl Fixture {
    /// Fenced by epoch 5.
    fn new(found: Found, max: Option<u64>) -> Fixture {
        let limits = Limits { flush_bytes_max: max, ..limits(8) };
        let (backup, out) = Backup::start(caller(1).group, "m1".parse().expect("a name"), BootId(1), limits, found);
        let mut fixture = Fixture { backup, epoch: 0, out };
        fixture.fence(5);
        fixture
    }

    fn bound(max: u64) -> Fixture {
        Fixture::new(Found::default(), Some(max))
    }

    fn step(&mut self, input: Input) {
        let mut out = Vec::new();
        self.backup.step(input, &mut out);
        for output in out {
            self.out.push(output.clone());
            match output {
                Output::Scan(slot, _) => self.step(Input::Scanned(slot, tailwind_protocol::scan::Tail::default())),
                Output::Verify(slot, ..) => self.step(Input::Verified(slot, true)),
                Output::Lend(id, slot, _) => self.step(Input::Lent(id, slot, Ok(()))),
                _ => {}
            }
        }
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.out.clear();
        self.step(Input::Request(RequestId(1), request));
        let mut replies = self.out.iter().filter_map(|output| match output {
            Output::Reply(_, reply) => Some(reply.clone()),
            _ => None,
        });
        replies.next_back().expect("a reply")
    }

    fn fence(&mut self, epoch: u64) {
        self.epoch = epoch;
        let (caller, earlier) = (caller(epoch), (1..epoch).rev().map(Claim).collect());
        let request = FenceRequest { claim: Claim(epoch), earlier, caller, won: Epoch(0), joined: None, after: None };
        assert!(matches!(self.ask(Request::Fence(request)), Reply::Inventory(_)));
    }

    fn open(&mut self, segment: u64, purpose: Purpose) -> Result<Slot, String> {
        let (caller, durability) = (caller(self.epoch), Durability::Memory);
        let identity = identity(segment, self.epoch);
        match self.ask(Request::Open(OpenRequest { caller, identity, purpose, durability })) {
            Reply::Opened(slot) => Ok(slot),
            Reply::Refused(Refusal::RetryLater { why, .. }) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    fn append(&mut self, segment: u64) -> Result<Slot, String> {
        self.open(segment, Purpose::Append)
    }

    fn image(&mut self, segment: u64) -> Result<Slot, String> {
        self.open(segment, Purpose::Install)
    }

    /// Opens, closes and flushes a segment of ten records.
    fn store(&mut self, segment: u64) {
        let slot = self.append(segment).expect("lent");
        let (caller, identity) = (caller(self.epoch), identity(segment, self.epoch));
        let closure = closure(segment);
        assert_eq!(self.ask(Request::Close(CloseRequest { caller, identity, closure })), Reply::Done);
        self.step(Input::Flushed(slot, identity, FlushResult::Done));
    }

    fn trim(&mut self, below: u64) {
        let (caller, below) = (caller(self.epoch), Lsn(below));
        assert_eq!(self.ask(Request::Trim(TrimRequest { caller, below })), Reply::Done);
    }

    /// The files of what was trimmed are deleted.
    fn delete(&mut self, segments: &[u64]) {
        let segments: Vec<_> = segments.iter().map(|segment| SegmentId(*segment)).collect();
        assert!(self.out.contains(&Output::DeleteTrimmed(segments.clone())), "{:?}", self.out);
        self.step(Input::Deleted(segments));
    }
}

fn caller(epoch: u64) -> Caller {
    Caller { group: "g".parse().expect("a name"), log: LogId(1), epoch: Epoch(epoch) }
}

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    let (segment, epoch) = (SegmentId(segment), Epoch(epoch));
    SegmentIdentity { log: LogId(1), segment, epoch, generation: Generation(7), size: SegmentSize::MIN }
}

/// Ten records in each segment.
fn closure(segment: u64) -> Closure {
    let first = (segment - 1) * 10 + 1;
    Closure { first: Lsn(first), last: Lsn(first + 9), end: Offset(72 + 40 * 10), chain: Chain(1) }
}

/// The file of such a segment.
fn file() -> u64 {
    u64::from(closure(1).end.0) + FOOTER_SIZE as u64
}

#[test]
fn an_append_buffer_is_lent_up_to_the_bound() {
    // The buffer itself, and one for an image.
    for (max, lent) in [(2 * FULL - 1, false), (2 * FULL, true), (2 * FULL + 1, true)] {
        assert_eq!(Fixture::bound(max).append(1).is_ok(), lent, "{max}");
    }
    let mut fixture = Fixture::bound(3 * FULL);
    assert!(fixture.append(1).is_ok() && fixture.append(2).is_ok());
    let why = fixture.append(3).expect_err("full");
    assert!(why.contains("flush folder of backup m1 is full") && why.contains("--flush-bytes"), "{why}");
    assert!(fixture.append(2).is_ok(), "a repeated request gets its buffer again");
}

#[test]
fn without_a_bound_only_the_buffers_count() {
    let mut fixture = Fixture::new(Found { other_bytes: u64::MAX / 2, ..Found::default() }, None);
    assert!((1..=7).all(|segment| fixture.append(segment).is_ok()));
}

#[test]
fn a_flushed_segment_counts_as_much_as_its_file() {
    for (max, lent) in [(file() + 2 * FULL - 1, false), (file() + 2 * FULL, true)] {
        let mut fixture = Fixture::bound(max);
        fixture.store(1);
        assert_eq!(fixture.backup.flush_bytes(), file());
        assert_eq!(fixture.append(2).is_ok(), lent, "{max}");
    }
}

#[test]
fn a_trim_makes_room_again() {
    let mut fixture = Fixture::bound(2 * file() + 2 * FULL - 1);
    fixture.store(1);
    fixture.store(2);
    assert!(fixture.append(3).is_err());
    fixture.trim(11);
    fixture.delete(&[1]);
    assert!(fixture.append(3).is_ok());
}

#[test]
fn a_trimmed_file_counts_until_it_is_deleted() {
    let mut fixture = Fixture::bound(2 * file() + 2 * FULL - 1);
    fixture.store(1);
    fixture.store(2);
    fixture.trim(11);
    let trimmed = fixture.out.clone();
    assert_eq!(fixture.backup.flush_bytes(), 2 * file());
    assert!(fixture.append(3).is_err(), "it could be written before the file is gone");
    fixture.out = trimmed;
    fixture.delete(&[1]);
    assert_eq!(fixture.backup.flush_bytes(), file());
    assert!(fixture.append(3).is_ok());
}

/// A disk that fails for a while must not make the folder grow beyond its bound.
#[test]
fn a_file_that_was_not_deleted_counts_and_is_tried_again() {
    let mut fixture = Fixture::bound(2 * file() + 2 * FULL - 1);
    fixture.store(1);
    fixture.store(2);
    fixture.trim(11);
    fixture.out.clear();
    fixture.step(Input::NotDeleted(vec![SegmentId(1)]));
    assert_eq!(fixture.out, [], "not before a tick");
    assert_eq!(fixture.backup.flush_bytes(), 2 * file());
    assert!(fixture.append(3).is_err());
    fixture.out.clear();
    fixture.step(Input::Tick);
    fixture.delete(&[1]);
    assert_eq!(fixture.backup.flush_bytes(), file());
    fixture.out.clear();
    fixture.step(Input::Tick);
    assert_eq!(fixture.out, []);
    assert!(fixture.append(3).is_ok());
}

/// What has the segment's name now is no longer what was trimmed.
#[test]
fn a_copy_that_has_come_since_is_not_deleted() {
    let mut fixture = Fixture::bound(u64::MAX);
    fixture.store(1);
    fixture.store(2);
    fixture.trim(11);
    fixture.step(Input::NotDeleted(vec![SegmentId(1)]));
    let slot = fixture.image(1).expect("lent");
    let (caller, identity) = (caller(fixture.epoch), identity(1, fixture.epoch));
    fixture.ask(Request::Close(CloseRequest { caller, identity, closure: closure(1) }));
    fixture.step(Input::Flushed(slot, identity, FlushResult::Done));
    fixture.out.clear();
    fixture.step(Input::Tick);
    assert_eq!(fixture.out, []);
    assert_eq!(fixture.backup.flush_bytes(), 2 * file());
}

/// The process died before it had deleted what was trimmed.
#[test]
fn a_trimmed_file_found_at_start_counts_until_deleted() {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(4), trimmed: Lsn(21), ..Promise::default() };
    let files = (1..=3).map(|segment| (identity(segment, 4), closure(segment))).collect();
    let limits = Limits { flush_bytes_max: Some(1), ..limits(8) };
    let found = Found { promise, files, ..Found::default() };
    let (backup, out) = Backup::start(caller(1).group, "m1".parse().expect("a name"), BootId(1), limits, found);
    let mut fixture = Fixture { backup, epoch: 4, out };
    assert_eq!(fixture.backup.flush_bytes(), 3 * file());
    fixture.delete(&[1, 2]);
    assert_eq!(fixture.backup.flush_bytes(), file());
}

/// The ledger has room for so many on a full disk, and a trim is what makes more.
#[test]
fn a_large_trim_goes_on_as_files_are_deleted() {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(4), claim: Some(Claim(4)), ..Promise::default() };
    let closed: Vec<_> = (1..=300).map(|segment| (identity(segment, 4), closure(segment))).collect();
    let found = Found { promise, files: closed.clone(), owed: closed, ..Found::default() };
    let mut fixture = Fixture::new(found, None);
    fixture.trim(2961);
    let deleted = |fixture: &mut Fixture| {
        let settled = fixture.out.iter().find_map(|output| match output {
            Output::Settle(segments) => Some(segments.clone()),
            _ => None,
        });
        let segments = settled.unwrap_or_default();
        assert!(segments.is_empty() || fixture.out.contains(&Output::DeleteTrimmed(segments.clone())));
        segments
    };
    let mut sizes = Vec::new();
    loop {
        let slice = deleted(&mut fixture);
        if slice.is_empty() {
            break;
        }
        sizes.push(slice.len());
        // In parts, as the flusher does it.
        let (last, others) = slice.split_last().expect("not empty");
        fixture.out.clear();
        fixture.step(Input::Deleted(others.to_vec()));
        assert_eq!(fixture.out, [], "not before all of them are done");
        fixture.step(Input::NotDeleted(vec![*last]));
    }
    assert_eq!(sizes, [TRIMMED_AT_ONCE, TRIMMED_AT_ONCE, 296 - 2 * TRIMMED_AT_ONCE]);
    assert_eq!(fixture.backup.counts().on_disk, 4);
}

#[test]
fn a_fence_ends_a_trim_that_is_not_done() {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(4), claim: Some(Claim(4)), ..Promise::default() };
    let closed: Vec<_> = (1..=300).map(|segment| (identity(segment, 4), closure(segment))).collect();
    let found = Found { promise, files: closed.clone(), owed: closed, ..Found::default() };
    let mut fixture = Fixture::new(found, None);
    fixture.trim(2961);
    let first: Vec<u64> = (1..=TRIMMED_AT_ONCE as u64).collect();
    let trimmed = fixture.out.clone();
    fixture.fence(6);
    let left = fixture.backup.counts().on_disk;
    fixture.out = trimmed;
    fixture.delete(&first);
    assert_eq!(fixture.backup.counts().on_disk, left, "its caller has seen them");
    fixture.trim(2961);
    assert_eq!(fixture.backup.counts().on_disk, left - TRIMMED_AT_ONCE as u64);
}

/// The caller of an epoch in which a trim was lost keeps more than was ever trimmed here, and has installed it again.
#[test]
fn a_trim_goes_no_further_than_its_caller_says() {
    let promise =
        Promise { log: Some(LogId(1)), epoch: Epoch(4), claim: Some(Claim(4)), trimmed: Lsn(41), ..Promise::default() };
    let mut fixture = Fixture::new(Found { promise, ..Found::default() }, None);
    fixture.fence(6);
    for segment in 1..=5 {
        fixture.store(segment);
    }
    fixture.trim(11);
    assert!(fixture.out.contains(&Output::DeleteTrimmed(vec![SegmentId(1)])), "{:?}", fixture.out);
    assert_eq!(fixture.backup.counts().on_disk, 4);
}

#[test]
fn an_image_fits_when_appends_wait() {
    let mut fixture = Fixture::bound(3 * FULL);
    assert!(fixture.append(1).is_ok() && fixture.append(2).is_ok() && fixture.append(3).is_err());
    assert!(fixture.image(4).is_ok());
    assert!(fixture.image(5).is_err(), "there is room for one");
}

#[test]
fn a_fence_does_not_change_the_bound() {
    let mut fixture = Fixture::bound(2 * file() + 2 * FULL - 1);
    fixture.store(1);
    fixture.store(2);
    assert!(fixture.append(3).is_err());
    fixture.fence(6);
    assert!(fixture.append(3).is_err());
    fixture.trim(11);
    fixture.delete(&[1]);
    assert!(fixture.append(3).is_ok());
}

#[test]
fn other_files_count_in_whole_segments() {
    for (other, lent) in [(0, true), (1, true), (SLOT_SIZE, true), (SLOT_SIZE + 1, false)] {
        let found = Found { other_bytes: other, ..Found::default() };
        assert_eq!(Fixture::new(found, Some(SLOT_SIZE + 2 * FULL)).append(1).is_ok(), lent, "{other}");
    }
    let mut fixture = Fixture::bound(2 * FULL);
    fixture.step(Input::OtherFiles(1));
    assert!(fixture.append(1).is_err());
    fixture.step(Input::OtherFiles(0));
    assert!(fixture.append(1).is_ok(), "released");
}

#[test]
fn quarantined_files_count_before_the_next_count() {
    let mut fixture = Fixture::bound(20 * FULL);
    fixture.store(1);
    fixture.fence(6);
    let counted = |fixture: &mut Fixture| {
        fixture.step(Input::OtherFiles(file()));
        fixture.backup.flush_bytes()
    };
    let named = fixture.backup.clone();
    let mut out = Vec::new();
    fixture.backup.step(Input::Request(RequestId(2), Request::Inventory(None)), &mut out);
    let [Output::Reply(_, Reply::Inventory(inventory))] = out.as_slice() else { panic!("{out:?}") };
    let copies = inventory.copies.clone();
    assert_eq!(fixture.ask(Request::Drop(DropRequest { caller: caller(6), copies })), Reply::Done);
    assert!(fixture.backup.flush_bytes() >= named.flush_bytes(), "it stays in the folder");
    assert!(counted(&mut fixture) > file(), "this count may have missed it");
    assert_eq!(counted(&mut fixture), file());
}

#[test]
fn a_folder_beyond_its_bound_keeps_everything() {
    let promise = Promise { log: Some(LogId(1)), epoch: Epoch(4), claim: Some(Claim(4)), ..Promise::default() };
    let closed: Vec<_> = (1..=3).map(|segment| (identity(segment, 4), closure(segment))).collect();
    let mut fixture = Fixture::new(Found { promise, files: closed.clone(), owed: closed, ..Found::default() }, Some(1));
    assert!(fixture.append(4).is_err() && fixture.image(4).is_err());
    assert_eq!(fixture.backup.counts().on_disk, 3);
    let fetch = FetchRequest {
        group: caller(5).group,
        identity: identity(1, 4),
        closure: closure(1),
        check: true,
        range: None,
    };
    assert!(matches!(fixture.ask(Request::Fetch(fetch)), Reply::Fetch(..)));
    fixture.trim(21);
    assert_eq!(fixture.backup.counts().on_disk, 1);
}
