//! Residents: a backup that has some answers as one that has none, but for where a fetch reads; and how they come and go.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tailwind_protocol::backup::{
    Backup, Counts, FlushResult, Found, Input, Limits, Output, Place, Promise, Reply, Request, RequestId, Slot, SlotRow,
};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::rpc::{
    Caller, CloseRequest, CopyState, DropRequest, FenceRequest, FetchRequest, OpenRequest, Purpose, TrimRequest,
};
use tailwind_protocol::scan::Tail;

use crate::limits::limits;

const SLOTS: u32 = 5;
const RESIDENTS: u32 = 3;

type Segment = (SegmentIdentity, Closure);

/// A backup, and what its process would keep for it. Scans, verifications, lendings and loads are answered at once.
struct Side {
    backup: Backup,
    limits: Limits,
    promise: Promise,
    rows: BTreeMap<Slot, SlotRow>,
    files: BTreeMap<SegmentId, Segment>,
    owed: BTreeMap<SegmentId, Segment>,
    jobs: Vec<(Slot, SegmentIdentity, Closure)>,
    requests: u64,
    replies: Vec<String>,
    /// Loads are refused.
    no_room: bool,
    loads: u32,
}

impl Side {
    fn new(residents: u32) -> Side {
        let limits = Limits { residents, ..limits(SLOTS) };
        let mut side = Side {
            backup: Backup::start("g".parse().unwrap(), "m1".parse().unwrap(), BootId(1), limits, Found::default()).0,
            limits,
            promise: Promise::default(),
            rows: BTreeMap::new(),
            files: BTreeMap::new(),
            owed: BTreeMap::new(),
            jobs: Vec::new(),
            requests: 0,
            replies: Vec::new(),
            no_room: false,
            loads: 0,
        };
        side.ask(Request::Fence(fence(1)));
        side
    }

    fn tell(&mut self, input: Input) {
        let mut out = Vec::new();
        self.backup.step(input, &mut out);
        self.carry(out);
    }

    fn ask(&mut self, request: Request) {
        self.requests += 1;
        self.tell(Input::Request(RequestId(self.requests), request));
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Persist(promise) => self.promise = promise,
                Output::SaveSlot(slot, row) => {
                    self.rows.remove(&slot);
                    self.rows.extend(row.map(|row| (slot, row)));
                }
                Output::Lend(id, slot, _) => {
                    assert!(!self.rows.contains_key(&slot), "what is lent has no row yet");
                    self.tell(Input::Lent(id, slot, Ok(())));
                }
                Output::Scan(slot, identity) => {
                    let closure = closure(identity.segment.0, 3);
                    self.tell(Input::Scanned(slot, Tail { closure, acked: Offset(0) }));
                }
                Output::Verify(slot, ..) => self.tell(Input::Verified(slot, true)),
                Output::Load(slot) => {
                    assert!(!self.rows.contains_key(&slot), "a slot to spare has no row");
                    let result = if self.no_room { Err("no room".to_owned()) } else { Ok(()) };
                    self.loads += u32::from(result.is_ok());
                    self.tell(Input::Loaded(slot, result));
                }
                Output::StartFlush(slot, identity, closure) => self.jobs.push((slot, identity, closure)),
                Output::Release(slot) => {
                    assert!(!self.rows.contains_key(&slot), "the row goes first");
                    self.jobs.retain(|(of, ..)| *of != slot);
                }
                Output::Owe(segments) => self.owed.extend(segments.into_iter().map(|own| (own.0.segment, own))),
                Output::Settle(segments) => self.owed.retain(|segment, _| !segments.contains(segment)),
                Output::DeleteTrimmed(segments) => {
                    self.files.retain(|segment, _| !segments.contains(segment));
                    self.tell(Input::Deleted(segments));
                }
                Output::DeleteFile(segment) | Output::Quarantine(segment) => drop(self.files.remove(&segment)),
                Output::StartQuarantine(slot, ..) => self.tell(Input::Quarantined(slot, Ok(()))),
                // Where it lies is what may differ.
                Output::Reply(id, Reply::Opened(_)) => self.replies.push(format!("{id:?} opened")),
                Output::Reply(id, Reply::Fetch(_, identity, closure)) => {
                    self.replies.push(format!("{id:?} {identity:?} {closure:?}"));
                }
                Output::Reply(id, reply) => self.replies.push(format!("{id:?} {reply:?}")),
                _ => {}
            }
        }
    }

    /// A flush ends.
    fn flush(&mut self, result: FlushResult) {
        if self.jobs.is_empty() {
            return;
        }
        let (slot, identity, closure) = self.jobs.remove(0);
        if result == FlushResult::Done {
            self.files.insert(identity.segment, (identity, closure));
        }
        self.tell(Input::Flushed(slot, identity, result));
    }

    fn load(&mut self) -> Option<SegmentId> {
        let (identity, closure) = self.backup.loadable()?;
        self.tell(Input::Load(identity, closure));
        Some(identity.segment)
    }

    fn resident_rows(&self) -> Vec<(Slot, SlotRow)> {
        self.rows.iter().filter(|(_, row)| row.is_resident()).map(|(slot, row)| (*slot, *row)).collect()
    }

    fn residents(&self) -> Vec<u64> {
        let mut residents: Vec<u64> = self.resident_rows().iter().map(|(_, row)| row.identity.segment.0).collect();
        residents.sort_unstable();
        residents
    }

    /// The process starts again; the memory of so many residents is gone.
    fn restart(&mut self, lost: usize) {
        let residents: Vec<_> = self.resident_rows().into_iter().skip(lost).collect();
        let rows = self.rows.iter().filter(|(_, row)| !row.is_resident()).map(|(slot, row)| (*slot, *row)).collect();
        self.rows.retain(|slot, row| !row.is_resident() || residents.iter().any(|(kept, _)| kept == slot));
        let found = Found {
            promise: self.promise.clone(),
            rows,
            residents,
            files: self.files.values().copied().collect(),
            owed: self.owed.values().copied().collect(),
            ..Found::default()
        };
        self.jobs.clear();
        let (backup, out) = Backup::start("g".parse().unwrap(), "m1".parse().unwrap(), BootId(1), self.limits, found);
        self.backup = backup;
        self.carry(out);
    }

    /// A closed segment whose bytes are on disk.
    fn write(&mut self, epoch: u64, segment: u64) -> Segment {
        let identity = identity(segment, epoch);
        self.ask(open(identity, epoch, Purpose::Append));
        self.ask(close(identity, epoch));
        self.flush(FlushResult::Done);
        (identity, closure(segment, 9))
    }

    fn place(&mut self, segment: Segment) -> Option<Place> {
        let mut out = Vec::new();
        self.backup.step(Input::Request(RequestId(0), fetch(segment)), &mut out);
        out.into_iter().find_map(|output| match output {
            Output::Reply(_, Reply::Fetch(place, ..)) => Some(place),
            _ => None,
        })
    }
}

fn caller(epoch: u64) -> Caller {
    Caller { group: "g".parse().unwrap(), log: LogId(1), epoch: Epoch(epoch) }
}

fn fence(epoch: u64) -> FenceRequest {
    let earlier = (1..epoch).rev().map(Claim).collect();
    FenceRequest { claim: Claim(epoch), earlier, caller: caller(epoch), won: Epoch(0), joined: None, after: None }
}

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    let (segment, epoch, generation) = (SegmentId(segment), Epoch(epoch), Generation(segment << 8 | epoch));
    SegmentIdentity { log: LogId(1), segment, epoch, generation, size: SegmentSize::MIN }
}

fn closure(segment: u64, records: u64) -> Closure {
    let first = segment * 10;
    let (last, chain) = (first + records - 1, Chain((segment * 100 + records) as u32));
    Closure { first: Lsn(first), last: Lsn(last), end: Offset(72 + 48 * records as u32), chain }
}

fn open(identity: SegmentIdentity, epoch: u64, purpose: Purpose) -> Request {
    Request::Open(OpenRequest { caller: caller(epoch), identity, purpose, durability: Durability::Memory })
}

fn close(identity: SegmentIdentity, epoch: u64) -> Request {
    Request::Close(CloseRequest { caller: caller(epoch), identity, closure: closure(identity.segment.0, 9) })
}

fn fetch((identity, closure): Segment) -> Request {
    Request::Fetch(FetchRequest { group: "g".parse().unwrap(), identity, closure, check: false, range: None })
}

fn trim(epoch: u64, segment: u64) -> Request {
    Request::Trim(TrimRequest { caller: caller(epoch), below: Lsn(segment * 10) })
}

/// Both take the same input.
fn both(sides: &mut [Side; 2], act: impl Fn(&mut Side)) {
    sides.iter_mut().for_each(act);
}

/// One of the things that can happen, by a number; the second says to which segment.
fn happens(sides: &mut [Side; 2], epoch: &mut u64, next: &mut u64, (what, which): (u8, u8)) {
    let files: Vec<Segment> = sides[0].files.values().copied().collect();
    let file = files.get(usize::from(which) % files.len().max(1)).copied();
    let lent = sides[0].rows.values().find(|row| row.closed.is_none() && row.purpose == Purpose::Append).copied();
    match what % 14 {
        0 | 1 => {
            let (identity, epoch) = (identity(*next, *epoch), *epoch);
            *next += 1;
            both(sides, |side| side.ask(open(identity, epoch, Purpose::Append)));
        }
        2 | 3 => {
            let Some(row) = lent else { return };
            both(sides, |side| side.ask(close(row.identity, *epoch)));
        }
        4 | 5 => both(sides, |side| side.flush(FlushResult::Done)),
        6 => both(sides, |side| side.flush(FlushResult::Failed)),
        7 => both(sides, |side| side.ask(trim(*epoch, next.saturating_sub(u64::from(which % 8))))),
        8 => {
            *epoch += 1;
            both(sides, |side| side.ask(Request::Fence(fence(*epoch))));
            let copies = sides[0].backup.inventory().copies;
            let open = copies.into_iter().filter(|copy| copy.state == CopyState::Open).collect();
            let request = DropRequest { caller: caller(*epoch), copies: open };
            both(sides, |side| side.ask(Request::Drop(request.clone())));
        }
        9 => {
            let Some((identity, _)) = file.filter(|_| which < 60) else { return };
            both(sides, |side| side.tell(Input::FoundCorrupt(identity, Place::Disk)));
        }
        10 => {
            let Some((identity, _)) = file else { return };
            both(sides, |side| side.ask(open(identity, *epoch, Purpose::Install)));
            both(sides, |side| side.ask(close(identity, *epoch)));
        }
        11 => both(sides, |side| side.tell(Input::Tick)),
        12 => {
            let Some(file) = file else { return };
            both(sides, |side| side.ask(fetch(file)));
            // Only one of them has any.
            if let Some(place @ Place::Both(_)) = sides[1].place(file) {
                sides[1].tell(Input::FoundCorrupt(file.0, place));
            }
        }
        _ if which < 40 => both(sides, |side| side.restart(usize::from(which % 3))),
        _ => {
            sides[1].no_room = which % 4 == 0;
            sides[1].load();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn residents_change_no_answer(events in prop::collection::vec((any::<u8>(), any::<u8>()), 1..120)) {
        let mut sides = [Side::new(0), Side::new(RESIDENTS)];
        let (mut epoch, mut next) = (1, 1);
        for event in events {
            happens(&mut sides, &mut epoch, &mut next, event);
            let [plain, resident] = &sides;
            prop_assert_eq!(&plain.replies, &resident.replies);
            prop_assert_eq!(plain.backup.inventory(), resident.backup.inventory());
            prop_assert_eq!(plain.backup.damage(), resident.backup.damage());
            prop_assert_eq!(plain.backup.promise(), resident.backup.promise());
            prop_assert_eq!((&plain.files, &plain.owed), (&resident.files, &resident.owed));
            prop_assert_eq!(plain.backup.counts(), Counts { resident: 0, ..resident.backup.counts() });
            // Each resident has its file, and none is left over.
            for (_, row) in resident.resident_rows() {
                let file = resident.files.get(&row.identity.segment);
                prop_assert_eq!(file.map(|(_, closure)| *closure), row.closed);
            }
            prop_assert_eq!(resident.residents().len() as u64, resident.backup.counts().resident);
            prop_assert!(plain.resident_rows().is_empty());
        }
    }
}

#[test]
fn a_flushed_segment_stays_and_the_oldest_gives_way() {
    let mut side = Side::new(RESIDENTS);
    let written: Vec<Segment> = (1..=4).map(|segment| side.write(1, segment)).collect();
    assert_eq!(side.residents(), [2, 3, 4]);
    assert_eq!(side.place(written[0]), Some(Place::Disk));
    assert!(matches!(side.place(written[3]), Some(Place::Both(_))));
    let counts = side.backup.counts();
    assert_eq!((counts.resident, counts.on_disk, counts.unflushed_bytes), (3, 4, 0));
    let shared = side.backup.shareable(&[1, 2, 4].map(SegmentId)).unwrap();
    assert_eq!(shared.iter().map(|(_, identity, _)| identity.segment.0).collect::<Vec<_>>(), [2, 4]);
}

#[test]
fn residents_are_lent_when_no_other_slot_is_free() {
    let mut side = Side::new(RESIDENTS);
    for segment in 1..=3 {
        side.write(1, segment);
    }
    for (segment, residents) in [(4, vec![1, 2, 3]), (5, vec![1, 2, 3]), (6, vec![2, 3]), (7, vec![3])] {
        side.ask(open(identity(segment, 1), 1, Purpose::Append));
        assert_eq!(side.residents(), residents, "segment {segment} is lent");
    }
    side.ask(open(identity(8, 1), 1, Purpose::Append));
    assert!(side.replies.last().is_some_and(|reply| reply.contains("all 4 buffers")), "{:?}", side.replies.last());
    assert_eq!(side.residents(), [3], "what is kept for an image is nobody's, so a resident may have it");
    side.ask(open(identity(1, 1), 1, Purpose::Install));
    assert!(side.residents().is_empty());
    assert_eq!(side.load(), None, "no slot to spare");
}

#[test]
fn what_is_trimmed_or_corrupt_is_not_resident() {
    let mut side = Side::new(RESIDENTS);
    let written: Vec<Segment> = (1..=3).map(|segment| side.write(1, segment)).collect();
    side.ask(trim(1, 2));
    assert_eq!(side.residents(), [2, 3]);
    side.tell(Input::FoundCorrupt(written[1].0, Place::Disk));
    assert_eq!((side.residents(), side.place(written[1])), (vec![3], None));
    assert_eq!(side.load(), None, "the corrupt one is no candidate");
    side.ask(open(written[1].0, 1, Purpose::Install));
    side.ask(close(written[1].0, 1));
    assert_eq!(side.residents(), [3]);
    side.flush(FlushResult::Done);
    assert_eq!(side.residents(), [2, 3], "repaired");
}

#[test]
fn the_newest_copy_is_loaded_first() {
    let mut side = Side::new(RESIDENTS);
    let written: Vec<Segment> = (1..=4).map(|segment| side.write(1, segment)).collect();
    side.restart(3);
    assert!(side.residents().is_empty());
    side.no_room = true;
    assert_eq!((side.load(), side.residents()), (Some(SegmentId(4)), vec![]), "the pool has no memory");
    side.no_room = false;
    let loaded: Vec<_> = std::iter::from_fn(|| side.load()).map(|segment| segment.0).collect();
    assert_eq!((loaded, side.residents(), side.loads), (vec![4, 3, 2], vec![2, 3, 4], 3));
    // A load that comes late, of a copy that is gone, or resident, or of another end.
    let (gone, resident) = (written[0], written[3]);
    side.ask(trim(1, 3));
    for (identity, closure) in [gone, resident, (resident.0, closure(4, 8))] {
        side.tell(Input::Load(identity, closure));
        assert_eq!((side.residents(), side.loads), (vec![3, 4], 3));
    }
}

#[test]
fn a_resident_of_another_end_is_freed_at_a_start() {
    let mut side = Side::new(RESIDENTS);
    side.write(1, 1);
    let (slot, row) = side.resident_rows()[0];
    side.rows.insert(slot, SlotRow { closed: Some(closure(1, 8)), ..row });
    side.restart(0);
    assert_eq!((side.residents(), side.backup.damage()), (vec![], Vec::new()));
}

#[test]
fn without_the_option_every_slot_is_freed_by_its_flush() {
    let mut side = Side::new(0);
    side.write(1, 1);
    assert_eq!((side.rows.len(), side.backup.counts().resident, side.load()), (0, 0, None));
}
