//! The cleaner, input by input: what is due, what is asked for, and when a segment may go. And the bounds that it keeps.

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::bounds::{BadMemory, Bounds};
use tailwind_protocol::table::cleaner::{
    Cleaner, Doing, FETCH_AGAIN_MS, GRACE_MS, Input, Output, Progress, SegmentRecords,
};

fn bounds() -> Bounds {
    Bounds::new(SegmentSize::MIN, 16).unwrap()
}

/// The segment with the records from 100 · n on.
fn closed(segment: u64) -> SegmentRecords {
    let first = Lsn(100 * segment);
    SegmentRecords { segment: SegmentId(segment), first, last: Lsn(first.0 + 99) }
}

const S1: SegmentId = SegmentId(1);
const S2: SegmentId = SegmentId(2);
const S3: SegmentId = SegmentId(3);

/// So many live bytes that only a log near its bound is cleaned.
const LIVE: u64 = 5 * (64 << 10);

struct Fixture {
    cleaner: Cleaner,
    now: Time,
    progress: Progress,
}

impl Fixture {
    /// With segments 1 to `count` closed, and so many live bytes.
    fn new(count: u64, live_bytes: u64) -> (Fixture, Vec<Output>) {
        Fixture::with(count, live_bytes, None)
    }

    fn with(count: u64, live_bytes: u64, stop: Option<SegmentId>) -> (Fixture, Vec<Output>) {
        let cleaner = Cleaner::new(bounds(), (1..=count).map(closed), stop);
        // A mirror shows everything.
        let progress = Progress { synced: Lsn(2000), published: Some(Lsn(2000)), live_bytes };
        let mut fixture = Fixture { cleaner, now: Time(0), progress };
        let out = fixture.step(Input::Progress(progress));
        (fixture, out)
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.cleaner.step(self.now, input, &mut out);
        out
    }

    fn moved(&mut self, segment: SegmentId, next: u64, moved: u32, appended: u64) -> Vec<Output> {
        self.step(Input::Moved { segment, next: Lsn(next), moved, appended: Lsn(appended) })
    }

    fn synced(&mut self, synced: u64, published: Option<u64>) -> Vec<Output> {
        self.progress = Progress { synced: Lsn(synced), published: published.map(Lsn), ..self.progress };
        self.step(Input::Progress(self.progress))
    }

    fn after(&mut self, ms: u64) -> Vec<Output> {
        self.now = self.now.plus(ms);
        self.step(Input::Tick)
    }

    /// All of segment 1 is judged; its records are 100 to 199.
    fn judged(live: u64, moved: u32, appended: u64) -> Fixture {
        let (mut fixture, _) = Fixture::new(10, live);
        fixture.step(Input::Fetched(S1));
        assert_eq!(fixture.moved(S1, 200, moved, appended), [Output::Forget(S1), Output::Sync]);
        assert_eq!(fixture.cleaner.settling(), 1);
        fixture
    }
}

#[test]
fn a_log_near_its_bound_is_cleaned() {
    let (mut fixture, out) = Fixture::new(9, LIVE);
    assert_eq!((out, fixture.cleaner.doing()), (vec![], Doing::Idle));
    // 16 segments, of which 3 are for moves; 4 early.
    assert_eq!(fixture.step(Input::Closed(closed(10))), [Output::Fetch(S1)]);
    assert_eq!(fixture.cleaner.doing(), Doing::Fetching(S1));
    assert_eq!(fixture.step(Input::Closed(closed(11))), [Output::Fetch(S2)], "one ahead");
    assert_eq!(fixture.step(Input::Closed(closed(12))), [], "two at most");
}

#[test]
fn a_log_with_little_live_data_is_cleaned_early() {
    let quarter = 9 * (64 << 10) / 4;
    assert_eq!(Fixture::new(9, quarter).1, []);
    assert_eq!(Fixture::new(9, quarter - 1).1, [Output::Fetch(S1)]);
    assert_eq!(Fixture::new(8, 0).1, [], "eight segments are left alone");
}

#[test]
fn a_segment_is_judged_batch_by_batch() {
    let (mut fixture, _) = Fixture::new(11, LIVE);
    assert_eq!(fixture.step(Input::Fetched(S2)), [], "in order");
    assert_eq!(fixture.step(Input::Fetched(S1)), [Output::Move(S1, Lsn(100))]);
    assert_eq!(fixture.cleaner.doing(), Doing::Moving(S1));
    assert_eq!(fixture.after(10_000), [], "one batch at a time");
    assert_eq!(fixture.moved(S1, 150, 7, 1300), [Output::Move(S1, Lsn(150))]);
    assert_eq!(fixture.moved(S1, 150, 0, 1300), [Output::Move(S1, Lsn(150))], "there was no room");
    assert_eq!(fixture.moved(S1, 200, 0, 1301), [Output::Forget(S1), Output::Move(S2, Lsn(200))]);
    assert_eq!(fixture.moved(S2, 300, 0, 1301), [Output::Forget(S2)]);
    assert_eq!(fixture.cleaner.doing(), Doing::Idle);
}

#[test]
fn a_segment_that_cannot_be_fetched_is_asked_for_again() {
    let (mut fixture, _) = Fixture::new(10, LIVE);
    assert_eq!(fixture.step(Input::NotFetched(S1)), []);
    assert_eq!(fixture.after(FETCH_AGAIN_MS - 1), []);
    assert_eq!(fixture.after(1), [Output::Fetch(S1)]);
    assert_eq!(fixture.step(Input::Fetched(S1)), [Output::Move(S1, Lsn(100))]);
}

#[test]
fn an_empty_segment_is_trimmed_too() {
    let empty = SegmentRecords { segment: S1, first: Lsn(200), last: Lsn(199) };
    let mut cleaner = Cleaner::new(bounds(), std::iter::once(empty).chain((2..=10).map(closed)), None);
    let mut out = Vec::new();
    let progress = Progress { published: Some(Lsn(0)), ..Progress::default() };
    cleaner.step(Time(0), Input::Progress(progress), &mut out);
    assert_eq!(out, [Output::Fetch(S1), Output::Fetch(S2)], "no data is live");
    out.clear();
    cleaner.step(Time(0), Input::Fetched(S1), &mut out);
    assert_eq!(out, [Output::Move(S1, Lsn(200))]);
    out.clear();
    cleaner.step(Time(0), Input::Moved { segment: S1, next: Lsn(200), moved: 0, appended: Lsn(0) }, &mut out);
    assert_eq!(out, [Output::Forget(S1)]);
    out.clear();
    cleaner.step(Time(GRACE_MS), Input::Tick, &mut out);
    assert_eq!(out, [Output::Trim(Lsn(200))]);
}

#[test]
fn a_segment_goes_once_moves_are_synced_and_readers_are_gone() {
    let mut fixture = Fixture::judged(LIVE, 5, 2005);
    assert_eq!(fixture.after(10_000), [], "record 2005 is not on every disk");
    assert_eq!(fixture.synced(2004, None), []);
    assert_eq!(fixture.after(10_000), []);
    assert_eq!(fixture.synced(2005, None), []);
    assert_eq!(fixture.after(GRACE_MS - 1), []);
    assert_eq!(fixture.after(1), [Output::Trim(Lsn(200))]);
    assert_eq!((fixture.after(10_000), fixture.cleaner.settling()), (vec![], 0));
}

/// Nobody reads what a mirror has named.
#[test]
fn without_mirrors_a_segment_goes_once_moves_are_synced() {
    let mut cleaner = Cleaner::new(bounds(), (1..=10).map(closed), None);
    let mut out = Vec::new();
    let mut step = |now, input| {
        out.clear();
        cleaner.step(Time(now), input, &mut out);
        out.clone()
    };
    let progress = |synced| Input::Progress(Progress { synced: Lsn(synced), published: None, live_bytes: LIVE });
    assert_eq!(step(0, progress(2000)), [Output::Fetch(S1)]);
    step(0, Input::Fetched(S1));
    let moved = Input::Moved { segment: S1, next: Lsn(200), moved: 5, appended: Lsn(2005) };
    assert_eq!(step(0, moved), [Output::Forget(S1), Output::Sync]);
    assert_eq!(step(GRACE_MS, progress(2004)), []);
    assert_eq!(step(GRACE_MS, progress(2005)), [Output::Trim(Lsn(200))]);
}

#[test]
fn a_segment_waits_for_every_mirror() {
    let mut fixture = Fixture::judged(LIVE, 5, 2050);
    assert_eq!(fixture.synced(2100, Some(2049)), []);
    fixture.judge_nothing_until(GRACE_MS * 3);
    assert_eq!(fixture.synced(2100, Some(2050)), []);
    assert_eq!(fixture.after(GRACE_MS), [Output::Trim(Lsn(200))]);
}

#[test]
fn what_replaced_a_dropped_record_is_waited_for() {
    // Nothing was moved: the keys were put again by record 2010, which is not on every disk.
    let mut fixture = Fixture::judged(LIVE, 0, 2010);
    fixture.judge_nothing_until(GRACE_MS * 3);
    assert_eq!(fixture.synced(2010, None), []);
    assert_eq!(fixture.after(GRACE_MS), [Output::Trim(Lsn(200))]);
}

#[test]
fn several_segments_settle_and_go_together() {
    let (mut fixture, out) = Fixture::new(12, LIVE);
    assert_eq!(out, [Output::Fetch(S1), Output::Fetch(S2)]);
    fixture.step(Input::Fetched(S1));
    fixture.step(Input::Fetched(S2));
    let out = fixture.moved(S1, 200, 1, 1990);
    assert_eq!(out, [Output::Forget(S1), Output::Fetch(S3), Output::Move(S2, Lsn(200))]);
    fixture.moved(S2, 300, 1, 2001);
    assert_eq!((fixture.cleaner.settling(), fixture.cleaner.doing()), (2, Doing::Fetching(S3)));
    assert_eq!(fixture.after(GRACE_MS), [Output::Trim(Lsn(200))], "the second is not on every disk");
    fixture.step(Input::Fetched(S3));
    fixture.moved(S3, 400, 0, 2001);
    fixture.synced(2001, None);
    assert_eq!(fixture.after(GRACE_MS), [Output::Trim(Lsn(400))]);
}

#[test]
fn nothing_is_cleaned_from_an_unkeyed_record_on() {
    let (mut fixture, out) = Fixture::with(12, LIVE, Some(S2));
    assert_eq!(out, [Output::Fetch(S1)]);
    fixture.step(Input::Fetched(S1));
    assert_eq!(fixture.moved(S1, 200, 0, 1300), [Output::Forget(S1)]);
    assert_eq!(fixture.cleaner.doing(), Doing::Stopped(S2));
    assert_eq!(fixture.after(GRACE_MS), [Output::Trim(Lsn(200))]);
}

#[test]
fn an_unkeyed_record_found_late_stops_the_cleaner_too() {
    let (mut fixture, _) = Fixture::new(12, LIVE);
    assert_eq!(fixture.step(Input::Fetched(S2)), []);
    assert_eq!(fixture.step(Input::Unkeyed(S1)), [Output::Forget(S2)]);
    assert_eq!(fixture.cleaner.doing(), Doing::Stopped(S1));
    let (mut fixture, _) = Fixture::new(12, LIVE);
    assert_eq!(fixture.step(Input::Unkeyed(S1)), []);
    assert_eq!(fixture.step(Input::Fetched(S2)), [Output::Forget(S2)], "it was on its way");
    let (mut fixture, _) = Fixture::new(12, LIVE);
    assert_eq!(fixture.step(Input::Unkeyed(S2)), []);
    assert_eq!(fixture.step(Input::Fetched(S1)), [Output::Move(S1, Lsn(100))], "what is before it is cleaned");
}

#[test]
fn bounds_follow_from_memory_and_segment_size() {
    let of = |kib: u64, segments| Bounds::new(SegmentSize::new(kib << 10).unwrap(), segments);
    let reserve = |kib, segments| of(kib, segments).map(|bounds| bounds.reserve()).unwrap();
    assert_eq!((reserve(64, 16), reserve(64, 100), reserve(8192, 16)), (3, 8, 3));
    assert_eq!((reserve(8192, 256), reserve(8192, 1536), reserve(64 << 10, 192)), (4, 13, 3));
    assert_eq!(of(8192, 15), Err(BadMemory { segments: 15, most: 1536 }));
    assert_eq!(of(8192, 1537), Err(BadMemory { segments: 1537, most: 1536 }));
    assert_eq!(of(64, 126_977), Err(BadMemory { segments: 126_977, most: 126_976 }), "what a backup lists");
    assert_eq!(of(64, 16).unwrap().live_bytes_max(), 7 * (65_536 - 88) * 4 / 5);
}

#[test]
fn puts_leave_the_last_segments_to_moves() {
    let bounds = bounds();
    assert!(bounds.may_put(13) && !bounds.may_put(14));
    assert!(bounds.may_move(16, 5) && !bounds.may_move(17, 5));
    // Failovers have left more than there may be.
    assert!(bounds.may_move(18, 15) && !bounds.may_move(19, 15));
}

#[test]
fn live_data_at_its_bound_can_be_cleaned() {
    for (kib, segments) in [(64, 16), (64, 17), (64, 100), (64, 126_976), (1024, 12_288), (8192, 1536), (65_536, 192)] {
        let size = SegmentSize::new(kib << 10).unwrap();
        let bounds = Bounds::new(size, segments).unwrap();
        // Packed as badly as moves ever pack: a record of the largest size is missing in each segment.
        let record = (size.bytes() / 16).min(66_616);
        let packed = bounds.live_bytes_max().div_ceil(u64::from(size.bytes() - 88 - record - 8)) as u32;
        assert!(!bounds.is_due(packed + 2, bounds.live_bytes_max()), "{kib} KiB, {segments} segments");
        assert!(bounds.is_due(segments - bounds.reserve() - 1, bounds.live_bytes_max()));
    }
}

impl Fixture {
    fn judge_nothing_until(&mut self, ms: u64) {
        assert_eq!(self.after(ms), []);
    }
}
