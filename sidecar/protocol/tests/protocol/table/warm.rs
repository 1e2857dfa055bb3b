//! A standby's index: what it needs next, and that the index of a win is the fold of the recovered log, no matter what the standby
//! has folded before.
//!
//! Logs of one-record segments are enumerated; longer ones are drawn. The fold of the recovered log alone is the judge.

use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::{BootId, Epoch, Generation, LogId, Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};
use tailwind_protocol::scan::Record;
use tailwind_protocol::table::fold::{Fold, Folded};
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::Key;
use tailwind_protocol::table::warm::{Next, Segment, Warm};

/// Keys of these logs.
const NAMES: u8 = 2;
const SIZE: SegmentSize = SegmentSize::MIN;

/// A record of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Does {
    Put(u8),
    Delete(u8),
    /// Puts the key again, as the cleaner does: under an earlier revision.
    Move(u8),
    Unkeyed,
}

const ALL: [Does; 7] =
    [Does::Put(0), Does::Put(1), Does::Delete(0), Does::Delete(1), Does::Move(0), Does::Move(1), Does::Unkeyed];

/// A segment of a log, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    segment: Segment,
    records: Vec<Does>,
}

impl Written {
    /// What follows `before`; `epoch` wrote it.
    fn after(before: Option<&Written>, epoch: u64, records: &[Does]) -> Written {
        let (number, first) = before.map_or((1, Lsn(1)), |before| {
            let (identity, closure) = &before.segment;
            (identity.segment.0 + 1, closure.last.next())
        });
        let generation = Generation(epoch * 1000 + number);
        let (log, segment) = (LogId(1), SegmentId(number));
        let identity = SegmentIdentity { log, segment, epoch: Epoch(epoch), generation, size: SIZE };
        let mut written = Written { segment: (identity, Closure::default()), records: records.to_vec() };
        written.close(first);
        written
    }

    /// The chain is of all that the records are.
    fn close(&mut self, first: Lsn) {
        let count = self.records.len() as u64;
        let mut hasher = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&(self.segment.0, &self.records), &mut hasher);
        let chain = Chain(std::hash::Hasher::finish(&hasher) as u32);
        let end = Offset(72 + 64 * self.records.len() as u32);
        self.segment.1 = Closure { first, last: Lsn(first.0 + count).prev(), end, chain };
    }

    /// Only its first records were recovered.
    fn cut(mut self, kept: usize) -> Written {
        self.records.truncate(kept);
        self.close(self.segment.1.first);
        self
    }

    fn fold(&self, fold: &mut Fold) -> Result<(), tailwind_protocol::table::fold::FoldError> {
        let (identity, closure) = &self.segment;
        for (nth, does) in self.records.iter().enumerate() {
            let (lsn, payload) = (Lsn(closure.first.0 + nth as u64), does.payload());
            let at = Position::new(identity.segment, Offset(72 + 64 * nth as u32));
            fold.record(at, Record { lsn, payload: &payload })?;
        }
        Ok(())
    }
}

impl Does {
    fn payload(self) -> Vec<u8> {
        let keyed =
            |kind, revision: u64, name| [b"TWK1", &[kind, 0, 1, 0][..], &revision.to_le_bytes(), &[name]].concat();
        match self {
            Does::Put(name) => keyed(1, 0, name),
            Does::Delete(name) => keyed(2, 0, name),
            // No log of these tests begins with a move.
            Does::Move(name) => keyed(1, 1, name),
            Does::Unkeyed => b"plain".to_vec(),
        }
    }
}

fn empty() -> Warm {
    let limits = Limits { buckets: Buckets::MIN, keys_max: 16, live_bytes_max: 1 << 20 };
    Warm::new(Index::new(HashKey([3; 16]), limits, Window::new(SIZE)))
}

fn folded(warm: Warm, written: &Written) -> Warm {
    warm.take(written.segment, |fold| written.fold(fold)).unwrap()
}

/// What a member says of these segments.
fn page(log: &[Written], trimmed: u64, after: Option<SegmentId>) -> Inventory {
    let report = |written: &Written| CopyReport {
        identity: written.segment.0,
        state: CopyState::Closed,
        closure: written.segment.1,
        acked: Offset(0),
    };
    let listed = log.iter().filter(|written| after.is_none_or(|after| written.segment.0.segment > after));
    Inventory {
        member: "b0".parse().unwrap(),
        boot: BootId(1),
        log: Some(LogId(1)),
        promised: Epoch(1),
        trimmed: Lsn(trimmed),
        damage: Vec::new(),
        witness: true,
        synced: None,
        former: Vec::new(),
        copies: listed.map(report).collect(),
        more: false,
    }
}

/// Revision, place and length of each key in both views, what is counted, and what is not keyed.
fn told(folded: &Folded) -> impl PartialEq + std::fmt::Debug + use<> {
    let index = &folded.index;
    let of = |name: u8| {
        let name = [name];
        let key = Key::new(&name).unwrap();
        let shown = index.acknowledged(key).map(|shown| (shown.revision, shown.word.new_place(), shown.length));
        (index.latest(key).map(|latest| (latest.revision, latest.place)), shown)
    };
    let keys: Vec<_> = (0..NAMES).map(of).collect();
    (keys, index.keys(), index.live_bytes(), folded.last, folded.unkeyed)
}

/// The index of this recovered log, by a winner that has folded this; and whether that was of use.
fn win(warm: Warm, log: &[Written]) -> (Folded, bool) {
    let segments: Vec<Segment> = log.iter().map(|written| written.segment).collect();
    let led = warm.lead(&segments);
    let was_led = led.is_some();
    let (mut fold, rest) = led.unwrap_or_else(|| cold(log));
    for segment in rest {
        log.iter().find(|written| written.segment == segment).unwrap().fold(&mut fold).unwrap();
    }
    (fold.finish(), was_led)
}

fn cold(log: &[Written]) -> (Fold, Vec<Segment>) {
    let limits = Limits { buckets: Buckets::MIN, keys_max: 16, live_bytes_max: 1 << 20 };
    let fold = Fold::new(Index::new(HashKey([9; 16]), limits, Window::new(SIZE)));
    (fold, log.iter().map(|written| written.segment).collect())
}

fn fold_of(log: &[Written]) -> Folded {
    let (mut fold, _) = cold(log);
    log.iter().for_each(|written| written.fold(&mut fold).unwrap());
    fold.finish()
}

/// Every log of up to four segments with one record each, of two keys; folded up to each segment; trimmed up to each, in accord
/// with S18 or not; recovered as it is, or cut anywhere and continued by another epoch with each record: 2,000 logs and 1,065,557 wins, of which
/// 258,256 have use for what was folded.
#[test]
fn the_index_of_each_win_is_the_fold_of_its_log() {
    let (mut logs, mut wins, mut led) = (0_u64, 0_u64, 0_u64);
    let mut stack: Vec<Vec<Written>> = vec![Vec::new()];
    while let Some(log) = stack.pop() {
        if log.len() < 4 {
            let longer = |does| log.iter().cloned().chain([Written::after(log.last(), 1, &[does])]).collect();
            stack.extend(ALL.into_iter().filter(|does| !log.is_empty() || !matches!(does, Does::Move(_))).map(longer));
        }
        logs += u64::from(!log.is_empty());
        for kept in 0..=log.len() {
            let continued = |does| log[..kept].iter().cloned().chain([Written::after(log[..kept].last(), 2, &[does])]);
            let recovered = ALL.into_iter().map(|does| continued(does).collect()).chain([log[..kept].to_vec()]);
            for recovered in recovered.collect::<Vec<Vec<Written>>>() {
                for trimmed in 0..recovered.len() {
                    let recovered = &recovered[trimmed..];
                    let right = told(&fold_of(recovered));
                    for ahead in 0..=log.len() {
                        let warm = log[..ahead].iter().fold(empty(), folded);
                        let (found, was_led) = win(warm, recovered);
                        assert_eq!(told(&found), right, "{ahead} of {log:?} folded, then {recovered:?}");
                        // Never in vain: each of its segments that is not trimmed is in the log.
                        let is_needed = trimmed < ahead && ahead <= kept;
                        let is_odd =
                            log[..trimmed.min(ahead)].iter().any(|written| written.records[0] == Does::Unkeyed);
                        assert_eq!(was_led, is_needed && !is_odd);
                        (wins, led) = (wins + 1, led + u64::from(was_led));
                    }
                }
            }
        }
    }
    assert_eq!((logs, wins, led), (2000, 1_065_557, 258_256));
}

#[test]
fn the_segments_of_a_log_come_one_after_the_other() {
    let mut log: Vec<Written> = Vec::new();
    for epoch in [1, 1, 2, 2, 3] {
        let next = Written::after(log.last(), epoch, &[Does::Put(0), Does::Put(1)]);
        log.push(next);
    }
    // Nothing was appended in the fourth.
    log[3] = Written::after(Some(&log[2]), 2, &[]);
    log[4] = Written::after(Some(&log[3]), 3, &[Does::Delete(0)]);
    let mut warm = empty();
    assert_eq!((warm.after(), warm.last(), warm.log()), (None, None, None));
    for nth in [0, 1, 2, 4] {
        let page = page(&log, 0, warm.after());
        assert_eq!(warm.next(&page), Next::Fold(log[nth].segment));
        warm = folded(warm, &log[nth]);
    }
    let page = page(&log, 0, warm.after());
    assert_eq!(page.copies.len(), 1, "the last one, to be compared");
    assert_eq!(warm.next(&page), Next::Nothing);
    assert_eq!((warm.last(), warm.keys(), warm.log()), (Some(Lsn(7)), 1, Some(LogId(1))));
}

#[test]
fn a_member_that_lacks_a_segment_gives_nothing() {
    let mut log: Vec<Written> = Vec::new();
    (0..4).for_each(|_| log.push(Written::after(log.last(), 1, &[Does::Put(0)])));
    let mut warm = empty();
    assert_eq!(warm.next(&page(&log[1..], 0, None)), Next::Nothing, "the log does not begin there");
    assert_eq!(warm.next(&page(&log[1..], 2, None)), Next::Fold(log[1].segment), "but this one does");
    warm = folded(warm, &log[1]);
    let gap = [log[1].clone(), log[3].clone()];
    assert_eq!(warm.next(&page(&gap, 0, warm.after())), Next::Nothing);
    for change in [
        |copy: &mut CopyReport| copy.state = CopyState::Corrupt,
        |copy: &mut CopyReport| copy.state = CopyState::Open,
        |copy: &mut CopyReport| copy.identity.size = SegmentSize::DEFAULT,
        |copy: &mut CopyReport| copy.identity.log = LogId(2),
    ] {
        let mut page = page(&log[..3], 0, warm.after());
        change(&mut page.copies[1]);
        assert_eq!(warm.next(&page), Next::Nothing);
    }
    assert_eq!(warm.next(&page(&log[..3], 0, warm.after())), Next::Fold(log[2].segment));
}

#[test]
fn another_log_is_folded_from_its_beginning() {
    let mut log: Vec<Written> = Vec::new();
    (0..4).for_each(|_| log.push(Written::after(log.last(), 1, &[Does::Put(0), Does::Put(1)])));
    let warm = || log[..2].iter().fold(empty(), folded);
    let again = |log: &[Written], trimmed| {
        let mut warm = warm();
        let page = page(log, trimmed, warm.after());
        warm.next(&page)
    };
    assert_eq!(again(&log[2..], 5), Next::Again, "all that was folded is trimmed");
    assert_eq!(again(&log, 4), Next::Fold(log[2].segment), "a part of it is");
    let mut cut = log[..1].to_vec();
    cut.push(log[1].clone().cut(1));
    assert_eq!(again(&cut, 0), Next::Again, "the last one ends elsewhere");
    let other = [log[0].clone(), Written::after(log.first(), 2, &[Does::Put(0)])];
    assert_eq!(again(&other, 0), Next::Again, "the last one is of another epoch");
    let behind = Written::after(Some(&log[0].clone().cut(1)), 2, &[Does::Put(0)]);
    let mut skipped = Written::after(Some(&log[2]), 2, &[Does::Put(0)]);
    skipped.close(behind.segment.1.first);
    assert_eq!(again(&[log[0].clone(), skipped], 0), Next::Again, "what follows has other numbers");
    let mut warm = warm();
    let founded = Inventory { log: Some(LogId(2)), copies: Vec::new(), ..page(&log, 0, None) };
    assert_eq!(warm.next(&founded), Next::Again, "the group was made again");
}

/// A put, its delete, and a cut that takes the delete after the put was trimmed: nothing of the key is left.
#[test]
fn a_key_of_which_no_record_is_left_is_removed() {
    let put = Written::after(None, 1, &[Does::Put(0), Does::Put(1)]);
    let kept = Written::after(Some(&put), 1, &[Does::Move(1)]);
    let deleted = Written::after(Some(&kept), 1, &[Does::Delete(0)]);
    let warm = [&put, &kept].into_iter().fold(empty(), folded);
    assert_eq!(warm.keys(), 2);
    let (found, was_led) = win(warm, std::slice::from_ref(&kept));
    assert!(was_led);
    assert_eq!((found.index.keys(), told(&found)), (1, told(&fold_of(std::slice::from_ref(&kept)))));
    found.index.check(kept.segment.0.segment);
    let warm = [&put, &kept, &deleted].into_iter().fold(empty(), folded);
    assert!(!win(warm, std::slice::from_ref(&kept)).1, "the delete is not in the log");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn an_index_that_is_believed_unseen_is_not_the_fold() {
    use tailwind_protocol::planted::{Bug, plant};

    let put = Written::after(None, 1, &[Does::Put(0)]);
    let lost = Written::after(Some(&put), 1, &[Does::Put(1)]);
    let warm = [&put, &lost].into_iter().fold(empty(), folded);
    plant(Some(Bug::WarmIndexIsBelieved));
    let (found, _) = win(warm, std::slice::from_ref(&put));
    plant(None);
    assert_ne!(told(&found), told(&fold_of(&[put])));
}

fn does() -> impl Strategy<Value = Does> {
    (0..ALL.len() - 1).prop_map(|nth| ALL[nth])
}

proptest! {
    /// A standby that follows for long, trims included: places do not come again under another meaning, and what it remembers is
    /// bounded.
    #[test]
    fn a_long_follow_is_the_fold_of_what_is_left(
        mut segments in vec(vec(does(), 1..4), 30..60),
        jump in 1_u64..4,
        back in 1_usize..8,
    ) {
        let window = Window::new(SIZE).segments();
        segments[0].insert(0, Does::Put(0));
        let mut log: Vec<Written> = Vec::new();
        let mut warm = empty();
        for (nth, records) in segments.iter().enumerate() {
            let mut next = Written::after(log.last(), 1, records);
            // As if many segments had come between, all of them without records.
            next.segment.0.segment.0 += if nth % 10 == 9 { jump * window / 9 } else { 0 };
            next.close(next.segment.1.first);
            log.push(next);
            let first = log.len().saturating_sub(back);
            loop {
                let page = page(&log[first..], log[first].segment.1.first.0, warm.after());
                match warm.next(&page) {
                    Next::Fold(segment) => {
                        let next = log.iter().find(|written| written.segment == segment).unwrap();
                        warm = folded(warm, next);
                    }
                    Next::Again => warm = empty(),
                    Next::Nothing => break,
                }
            }
            prop_assert_eq!(warm.last(), Some(log[nth].segment.1.last));
        }
        let left = &log[log.len() - back..];
        let (found, was_led) = win(warm, left);
        prop_assert!(was_led);
        prop_assert_eq!(told(&found), told(&fold_of(left)));
    }
}
