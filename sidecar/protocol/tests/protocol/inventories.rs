//! Inventories: page by page, and what of them is believed. No answer of a member causes a panic or cuts the log.

use std::time::Instant;

use proptest::prelude::*;
use tailwind_protocol::backup::{Backup, Found, Input, Limits, Output, Promise, Reply, Request, RequestId};
use tailwind_protocol::config::{Configuration, Durability, Kind, MemberRef, PrimaryRef, SwapOutcome, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, Generation, LogId, Lsn, MemberId, Offset, SegmentId, Version};
use tailwind_protocol::inventory::{PAGES_MAX, RESTARTS_MAX, Reading, Unbelievable, check_page};
use tailwind_protocol::layout::{Chain, Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::primary::{self, Primary};
use tailwind_protocol::promotion::{self, Promotion};
use tailwind_protocol::recovery::{Damage, Reference, RepairPlan};
use tailwind_protocol::rpc::{
    BUFFERS_MAX, COPY_JSON_SIZE_MAX, Caller, CopyReport, CopyState, DAMAGE_DESCRIPTIONS_MAX, DAMAGE_LENGTH_MAX,
    Failure, FenceRequest, INVENTORY_FOR_IMAGES, INVENTORY_MAX, INVENTORY_PAGE_MAX, Inventory, OpenRequest, Purpose,
    Refusal, TrimRequest,
};

use crate::limits::limits;

const LOG: LogId = LogId(1);
/// Epoch of the log's end, and the one that fences.
const LED: Epoch = Epoch(5);
const FENCED: Epoch = Epoch(6);

fn identity(segment: u64, epoch: u64) -> SegmentIdentity {
    let (segment, epoch) = (SegmentId(segment), Epoch(epoch));
    SegmentIdentity { log: LOG, segment, epoch, generation: Generation(segment.0), size: SegmentSize::MIN }
}

fn closure(first: u64, last: u64) -> Closure {
    let end = Offset(72 + 40 * (last + 1 - first) as u32);
    Closure { first: Lsn(first), last: Lsn(last), end, chain: Chain(last as u32) }
}

fn closed(segment: u64, first: u64, last: u64) -> CopyReport {
    let (identity, closure) = (identity(segment, LED.0), closure(first, last));
    CopyReport { identity, state: CopyState::Closed, closure, acked: Offset(0) }
}

fn name(member: &str) -> MemberId {
    member.parse().expect("a name")
}

/// In a buffer that was never written.
fn blank(segment: u64) -> CopyReport {
    let (state, closure) = (CopyState::Open, Closure::default());
    CopyReport { identity: identity(segment, LED.0), state, closure, acked: Offset(0) }
}

fn inventory(member: &str, copies: Vec<CopyReport>) -> Inventory {
    Inventory {
        member: name(member),
        boot: BootId(1),
        log: Some(LOG),
        promised: FENCED,
        trimmed: Lsn(0),
        damage: vec![],
        witness: true,
        synced: None,
        former: Vec::new(),
        copies,
        more: false,
    }
}

fn reading() -> Reading {
    Reading::new(LOG, FENCED, LED)
}

fn caller() -> Caller {
    Caller { group: "g".parse().expect("a name"), log: LOG, epoch: FENCED }
}

/// A backup that holds so many closed segments of one record each.
fn large(copies: u64) -> Backup {
    bounded(copies, INVENTORY_MAX)
}

/// The same, with memory for so many.
fn bounded(copies: u64, copies_max: usize) -> Backup {
    let promise = Promise { log: Some(LOG), epoch: LED, claim: Some(Claim(5)), ..Promise::default() };
    let files: Vec<_> = (1..=copies).map(|n| (identity(n, LED.0), closure(n, n))).collect();
    let found = Found { promise, owed: files.clone(), files, ..Found::default() };
    Backup::start(caller().group, name("m1"), BootId(1), Limits { copies_max, ..limits(4) }, found).0
}

/// The page of a fence, and what else the backup has done for it.
fn page(backup: &mut Backup, after: Option<SegmentId>) -> (Inventory, Vec<Output>) {
    let mut out = Vec::new();
    let request =
        FenceRequest { caller: caller(), claim: Claim(6), earlier: vec![Claim(5)], won: Epoch(0), joined: None, after };
    backup.step(Input::Request(RequestId(1), Request::Fence(request)), &mut out);
    match out.pop() {
        Some(Output::Reply(_, Reply::Inventory(inventory))) => (inventory, out),
        other => panic!("{other:?}"),
    }
}

#[test]
fn largest_inventory_is_read_in_pages() {
    const COPIES: u64 = INVENTORY_MAX as u64;
    let mut backup = large(COPIES);
    let (mut reading, mut sizes) = (reading(), Vec::new());
    let whole = loop {
        let (page, done) = page(&mut backup, reading.after());
        assert_eq!(done.is_empty(), !sizes.is_empty(), "the first page fences, the others only tell");
        sizes.push(page.copies.len());
        if let Some(whole) = reading.take(page).expect("an honest member") {
            break whole;
        }
    };
    assert_eq!(sizes, [INVENTORY_PAGE_MAX; PAGES_MAX]);
    assert_eq!(whole.copies.len() as u64, COPIES);
    assert!(!whole.more && whole.copies.windows(2).all(|two| two[0].identity.segment < two[1].identity.segment));

    let started = Instant::now();
    let reference = Reference::assemble([&whole], &[]).expect("a whole log");
    let assembled = started.elapsed();
    assert_eq!(reference.last(), Lsn(COPIES));
    assert_eq!(reference.plan_for(&whole), RepairPlan::default());
    assert_eq!(reference.plan_for(&inventory("m2", vec![])).install.len() as u64, COPIES);
    println!("{COPIES} copies: assembled in {assembled:?}, with two plans in {:?}", started.elapsed());
}

/// Asks for a buffer. If there is none, the backup says why.
fn open(backup: &mut Backup, segment: u64, epoch: u64, purpose: Purpose) -> Result<(), String> {
    let (mut out, identity) = (Vec::new(), identity(segment, epoch));
    let request = OpenRequest { caller: caller(), identity, purpose, durability: Durability::Memory };
    backup.step(Input::Request(RequestId(1), Request::Open(request)), &mut out);
    match out.pop() {
        Some(Output::Lend(..)) => Ok(()),
        Some(Output::Reply(_, Reply::Refused(Refusal::RetryLater { why, .. }))) => Err(why),
        other => panic!("{other:?}"),
    }
}

/// A backup that is killed for memory takes its buffers with it, and all members hold the same segments.
#[test]
fn backup_lends_no_more_than_its_memory_has_room_for() {
    const COPIES_MAX: usize = INVENTORY_FOR_IMAGES + 10;
    let mut backup = bounded(9, COPIES_MAX);
    page(&mut backup, None);
    assert_eq!(open(&mut backup, 10, FENCED.0, Purpose::Append), Ok(()));
    let why = open(&mut backup, 11, FENCED.0, Purpose::Append).unwrap_err();
    assert!(why.contains("holds 10 segments and has, by its memory limit, room for 4106, with 4096 kept"), "{why}");
    assert!(why.contains("trim the log, or give it more memory"), "{why}");
    assert_eq!(open(&mut backup, 11, LED.0, Purpose::Install), Ok(()), "what repairs has places of its own");
}

/// More than it can list could not be recovered from it: appends wait until the log is trimmed, and what repairs has some places
/// of its own.
#[test]
fn backup_lends_no_more_than_its_inventory_can_list() {
    const APPENDED: u64 = (INVENTORY_MAX - INVENTORY_FOR_IMAGES) as u64;
    let mut backup = large(APPENDED - 1);
    page(&mut backup, None);
    assert_eq!(open(&mut backup, APPENDED, FENCED.0, Purpose::Append), Ok(()));
    let refused = open(&mut backup, APPENDED + 1, FENCED.0, Purpose::Append);
    assert!(refused.as_ref().is_err_and(|why| why.contains("can list 131072")), "{refused:?}");
    assert_eq!(open(&mut backup, APPENDED + 1, LED.0, Purpose::Install), Ok(()));

    let mut backup = large(INVENTORY_MAX as u64);
    page(&mut backup, None);
    assert!(open(&mut backup, INVENTORY_MAX as u64 + 1, LED.0, Purpose::Install).is_err());
    assert_eq!(open(&mut backup, 7, LED.0, Purpose::Install), Ok(()), "it replaces one");
    let mut out = Vec::new();
    let trim = TrimRequest { caller: caller(), below: Lsn(6000) };
    backup.step(Input::Request(RequestId(2), Request::Trim(trim)), &mut out);
    while let Some(Output::DeleteTrimmed(gone)) =
        out.iter().find(|out| matches!(out, Output::DeleteTrimmed(_))).cloned()
    {
        out.clear();
        backup.step(Input::Deleted(gone), &mut out);
    }
    assert_eq!(open(&mut backup, INVENTORY_MAX as u64 + 1, FENCED.0, Purpose::Append), Ok(()));
}

/// A few megabytes of JSON do not become many.
#[test]
fn lists_that_are_too_long_are_not_even_read() {
    let page = |damage: usize, copies: usize| Inventory {
        damage: vec![String::new(); damage],
        ..inventory("m1", vec![closed(1, 1, 1); copies])
    };
    let read = |page: &Inventory| serde_json::from_slice::<Inventory>(&serde_json::to_vec(page).expect("JSON"));
    let most = page(DAMAGE_DESCRIPTIONS_MAX, INVENTORY_PAGE_MAX);
    assert_eq!(read(&most).ok(), Some(most));
    for long in [page(DAMAGE_DESCRIPTIONS_MAX + 1, 1), page(1, INVENTORY_PAGE_MAX + 1)] {
        let error = read(&long).expect_err("too long").to_string();
        assert!(error.contains("a list of at most"), "{error}");
    }
}

#[test]
fn inventory_that_fills_one_page_is_complete() {
    let (page, _) = page(&mut large(INVENTORY_PAGE_MAX as u64), None);
    assert!(!page.more && page.copies.len() == INVENTORY_PAGE_MAX);
    assert!(reading().take(page).is_ok_and(|whole| whole.is_some()));
}

#[test]
fn copy_report_fits_its_size_bound() {
    let most = CopyReport {
        identity: SegmentIdentity {
            log: LogId(u128::MAX),
            segment: SegmentId(u64::MAX),
            epoch: Epoch(u64::MAX),
            generation: Generation(u64::MAX),
            size: SegmentSize::MAX,
        },
        state: CopyState::Corrupt,
        closure: Closure { first: Lsn(u64::MAX), last: Lsn(u64::MAX), end: Offset(u32::MAX), chain: Chain(u32::MAX) },
        acked: Offset(u32::MAX),
    };
    let size = serde_json::to_vec(&most).expect("JSON").len() + 1;
    assert!(size <= COPY_JSON_SIZE_MAX, "{size}");
}

/// Two pages of three copies each.
fn two_pages() -> (Inventory, Inventory) {
    let first = Inventory { more: true, ..inventory("m1", vec![closed(1, 1, 10), closed(2, 11, 20)]) };
    (first, inventory("m1", vec![closed(3, 21, 30)]))
}

#[test]
fn inventory_that_changes_between_pages_is_read_again() {
    let (first, second) = two_pages();
    let changed = [
        Inventory { boot: BootId(2), ..second.clone() },
        Inventory { trimmed: Lsn(5), ..second.clone() },
        Inventory { witness: false, ..second.clone() },
        Inventory { damage: vec!["segment 2 is gone".to_owned()], ..second.clone() },
    ];
    for changed in changed {
        let mut reading = reading();
        assert_eq!(reading.take(first.clone()), Ok(None));
        assert_eq!(reading.after(), Some(SegmentId(2)));
        assert_eq!(reading.take(changed), Ok(None));
        assert_eq!(reading.after(), None, "from the beginning");
        assert_eq!(reading.take(first.clone()), Ok(None));
        let whole = reading.take(second.clone()).expect("believed").expect("whole");
        assert_eq!(whole, inventory("m1", vec![closed(1, 1, 10), closed(2, 11, 20), closed(3, 21, 30)]));
    }
    let mut reading = reading();
    for _ in 0..RESTARTS_MAX {
        assert_eq!(reading.take(first.clone()), Ok(None));
        assert_eq!(reading.take(Inventory { trimmed: Lsn(5), ..second.clone() }), Ok(None));
    }
    assert_eq!(reading.take(first), Ok(None));
    assert_eq!(reading.take(Inventory { trimmed: Lsn(5), ..second }), Err(Unbelievable::Unsteady));
}

#[test]
fn paging_ends() {
    let mut endless = reading();
    for n in 1..PAGES_MAX as u64 {
        let page = Inventory { more: true, ..inventory("m1", vec![closed(n, n, n)]) };
        assert_eq!(endless.take(page), Ok(None));
    }
    let n = PAGES_MAX as u64;
    let page = Inventory { more: true, ..inventory("m1", vec![closed(n, n, n)]) };
    assert!(matches!(endless.take(page), Err(Unbelievable::Nonsense(_))));
    let empty = Inventory { more: true, ..inventory("m1", vec![]) };
    assert!(matches!(reading().take(empty), Err(Unbelievable::Nonsense(_))));
    let full = inventory("m1", vec![closed(1, 1, 1); INVENTORY_PAGE_MAX + 1]);
    assert!(matches!(check_page(&full), Err(Unbelievable::Nonsense(_))));
}

#[test]
fn impossible_inventory_is_refused_with_a_reason() {
    let honest = closed(2, 11, 20);
    let of = |copies: Vec<CopyReport>| inventory("m1", copies);
    let with = |change: &dyn Fn(&mut CopyReport)| {
        let mut copy = honest;
        change(&mut copy);
        of(vec![copy])
    };
    let unled = |epoch| with(&|copy| copy.identity.epoch = Epoch(epoch));
    let table: Vec<(&str, Inventory)> = vec![
        ("to 18446744073709551615", with(&|copy| copy.closure.last = Lsn(u64::MAX))),
        ("LSN 0 to 20", with(&|copy| copy.closure.first = Lsn(0))),
        ("byte 65544", with(&|copy| copy.closure.end = Offset((64 << 10) + 8))),
        ("up to byte 65537", with(&|copy| copy.acked = Offset((64 << 10) + 1))),
        ("ending at byte 0", with(&|copy| copy.closure = Closure::default())),
        ("segment 18446744073709551615", with(&|copy| copy.identity.segment = SegmentId(u64::MAX))),
        ("segment 0", with(&|copy| copy.identity.segment = SegmentId(0))),
        ("segment 2 of log 0000", with(&|copy| copy.identity.log = LogId(2))),
        ("epoch 0", unled(0)),
        ("had no primary yet", unled(FENCED.0)),
        ("of epoch 18446744073709551615", unled(u64::MAX)),
        ("segment 2 behind segment 2", of(vec![honest, honest])),
        ("segment 1 behind segment 2", of(vec![honest, closed(1, 1, 10)])),
        ("begins with LSN 20", of(vec![honest, closed(3, 20, 30)])),
        ("begins with LSN 20", of(vec![honest, closed(3, 21, 21), closed(4, 20, 30)])),
        ("begins with LSN 20", {
            let empty = CopyReport { state: CopyState::Open, closure: Closure::default(), ..closed(3, 1, 1) };
            of(vec![honest, empty, closed(4, 20, 30)])
        }),
        ("no log", Inventory { log: None, ..of(vec![]) }),
        ("has promised epoch 5", Inventory { promised: LED, ..of(vec![]) }),
        ("epoch 18446744073709551615", Inventory { promised: Epoch(u64::MAX), ..of(vec![]) }),
        ("trimmed below LSN 18446744073709551615", Inventory { trimmed: Lsn(u64::MAX), ..of(vec![]) }),
        ("words", Inventory { damage: vec![String::new(); DAMAGE_DESCRIPTIONS_MAX + 1], ..of(vec![]) }),
        ("words", Inventory { damage: vec!["x".repeat(DAMAGE_LENGTH_MAX + 1)], ..of(vec![]) }),
    ];
    for (words, inventory) in table {
        match reading().take(inventory) {
            Err(Unbelievable::Nonsense(why)) => assert!(why.contains(words), "`{why}` does not say `{words}`"),
            other => panic!("{words}: {other:?}"),
        }
    }
    let open = |state, closure| CopyReport { state, closure, ..honest };
    let header_only = Closure { first: Lsn(11), last: Lsn(10), end: Offset(72), chain: Chain(1) };
    for fine in [
        of(vec![]),
        of(vec![honest]),
        of(vec![open(CopyState::Open, Closure::default()), closed(3, 21, 30)]),
        of(vec![open(CopyState::Damaged, header_only), closed(3, 11, 30)]),
        with(&|copy| copy.acked = Offset(64 << 10)),
        Inventory { damage: vec!["x".repeat(DAMAGE_LENGTH_MAX); DAMAGE_DESCRIPTIONS_MAX], ..of(vec![]) },
        // Left behind by an epoch whose end was never acknowledged.
        of(vec![CopyReport { identity: identity(2, 4), ..honest }, closed(3, 11, 30)]),
    ] {
        assert_eq!(reading().take(fine.clone()), Ok(Some(fine)));
    }
}

/// Leading an epoch twice would give its numbers out twice: the config store must know of every epoch.
#[test]
fn segment_of_a_later_epoch_shows_that_the_store_went_back() {
    let later = CopyReport { identity: identity(2, 9), ..closed(2, 11, 20) };
    let why = reading().take(inventory("m1", vec![closed(1, 1, 10), later])).expect_err("not believed");
    assert_eq!(why, Unbelievable::Ahead(Epoch(9)));
    assert_eq!(Failure::from(why), Failure::Superseded(Epoch(9)));
    assert!(matches!(Failure::from(Unbelievable::Unsteady), Failure::Unreachable(_)));
}

/// Each of them alone could be true.
#[test]
fn contradictory_members_do_not_shorten_the_log() {
    let honest = inventory("m1", vec![closed(1, 1, 10), closed(2, 11, 20), closed(3, 21, 30)]);
    let later = inventory("m2", vec![closed(9, 1, 3)]);
    let contradiction = Damage::Contradiction { segment: SegmentId(9), epoch: LED, first: Lsn(1) };
    assert_eq!(Reference::assemble([&honest, &later], &[]), Err(contradiction));
    // One primary opens a segment once, with one first record.
    for generation in [3, 4] {
        let mut other = CopyReport { state: CopyState::Open, ..closed(3, 32, 32) };
        other.identity.generation = Generation(generation);
        let contradiction = Damage::Contradiction { segment: SegmentId(3), epoch: LED, first: Lsn(32) };
        assert_eq!(Reference::assemble([&honest, &inventory("m2", vec![other])], &[]), Err(contradiction));
    }
    // Nor does a member's word that its copy is of a later epoch, while others hold what the earlier one wrote behind it.
    let mut later = closed(2, 11, 20);
    later.identity.epoch = LED.next();
    let two_epochs = Damage::TwoEpochs { segment: SegmentId(2), earlier: LED, later: LED.next() };
    assert_eq!(Reference::assemble([&honest, &inventory("m2", vec![later])], &[]), Err(two_epochs));
    // What is trimmed was acknowledged, if two members say so.
    let trimmed = |name, below| Inventory { trimmed: Lsn(below), ..inventory(name, vec![]) };
    let assembled = |others: &[Inventory]| {
        let all = std::iter::once(&honest).chain(others);
        Reference::assemble(all, &[]).map(|reference| (reference.segments[0].closure.first, reference.last()))
    };
    let missing = Damage::Missing { segment: SegmentId(3), last: Lsn(31) };
    assert_eq!(assembled(&[trimmed("m2", 32), trimmed("m3", 32)]), Err(missing));
    assert_eq!(assembled(&[trimmed("m2", 31), trimmed("m3", 31)]), Ok((Lsn(21), Lsn(30))));
    for below in [31, 32, 1 << 40] {
        assert_eq!(assembled(&[trimmed("m2", below)]), Ok((Lsn(1), Lsn(30))), "one alone, LSN {below}");
        assert_eq!(assembled(&[trimmed("m2", below), trimmed("m3", 0)]), Ok((Lsn(1), Lsn(30))));
    }
}

/// Numbers that break things, and those around the honest ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => 0..40_u64,
        1 => prop::sample::select(vec![u64::MAX, u64::MAX - 1, u64::MAX / 2, u64::MAX / 2 + 1, 1 << 32]),
    ]
}

fn lie() -> impl Strategy<Value = CopyReport> {
    let state = prop::sample::select(vec![CopyState::Open, CopyState::Closed, CopyState::Corrupt, CopyState::Damaged]);
    let ids = (1..8_u64, prop_oneof![6 => 3..=5_u64, 1 => number()], 0..3_u64, any::<bool>());
    let ends = (number(), 0..12_u64, prop_oneof![4 => Just(true), 1 => Just(false)], number());
    (state, ids, ends, 0..2000_u32).prop_map(|(state, (segment, epoch, generation, odd), ends, acked)| {
        let (first, records, plausible, any) = ends;
        let segment = if odd && !plausible { any } else { segment };
        let last = if plausible { first.saturating_add(records).saturating_sub(1) } else { any };
        let end = if plausible { Offset(72 + 40 * records as u32) } else { Offset(any as u32) };
        CopyReport {
            identity: SegmentIdentity {
                generation: Generation(segment.wrapping_add(generation)),
                ..identity(segment, epoch)
            },
            state,
            closure: Closure { first: Lsn(first), last: Lsn(last), end, chain: Chain(last as u32) },
            acked: Offset(acked),
        }
    })
}

fn liar() -> impl Strategy<Value = Inventory> {
    let copies = prop::collection::vec(lie(), 0..8);
    let trimmed = prop_oneof![4 => Just(0_u64), 1 => number()];
    (copies, trimmed, any::<bool>(), any::<bool>()).prop_map(|(mut copies, trimmed, witness, sorted)| {
        if sorted {
            copies.sort_by_key(|copy| copy.identity.segment);
            copies.dedup_by_key(|copy| copy.identity.segment);
        }
        Inventory { trimmed: Lsn(trimmed), witness, ..inventory("m2", copies) }
    })
}

fn set() -> Configuration {
    let member = |id: &str| MemberRef { id: name(id), boot: BootId(1), control: "h:1".to_owned() };
    Configuration {
        log: LOG,
        kind: Kind::Log,
        epoch: LED,
        claim: Claim(5),
        earlier: vec![],
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(5),
        primary: PrimaryRef { id: "s0".parse().expect("a name"), control: "h:2".to_owned() },
        members: vec![member("m1"), member("m2")],
    }
}

/// Both answer the fence of a promotion.
fn promoted(honest: &Inventory, liar: &Inventory) -> Option<Lsn> {
    let rules = promotion::Rules {
        kind: Kind::Log,
        backups: 2,
        min_in_sync: 1,
        fence_wait_ms: 10,
        retry_ms: 10,
        repair_timeout_ms: 10,
        accept_loss: None,
        recover_from_disk: None,
    };
    let mut out = Vec::new();
    let me = PrimaryRef { id: "s1".parse().expect("a name"), control: "h:3".to_owned() };
    let mut machine = Promotion::start(me, rules, LOG, 7, &mut out);
    let mut won = None;
    for _ in 0..10_000 {
        let Some(output) = (!out.is_empty()).then(|| out.remove(0)) else { break };
        use promotion::{Input, Output};
        let input = match output {
            Output::ReadConfig => Input::Read(Ok(Some(set()))),
            Output::Swap(_) => Input::Swapped(SwapOutcome::Applied),
            Output::Fence(config, member) => {
                let told = if member.id == honest.member { honest } else { liar };
                Input::Fenced(config.epoch, member.id, Ok(told.clone()))
            }
            Output::Won(_, reference) => {
                won = Some(reference.last());
                break;
            }
            other => match other.task() {
                Some((epoch, task)) => Input::Repaired(epoch, task, Ok(())),
                None => continue,
            },
        };
        machine.step(Time(1), input, &mut out);
    }
    won
}

/// A primary takes it in as a spare.
fn recruited(reference: &Reference, spare: &Inventory) {
    let mut config = set();
    (config.epoch, config.members) = (FENCED, vec![config.members[0].clone()]);
    let rules = primary::Rules {
        backups: 2,
        min_in_sync: 1,
        durability: Durability::Memory,
        segment_size: SegmentSize::MIN,
        open_timeout_ms: 100,
        recruit_interval_ms: 10,
        swap_interval_ms: 10,
    };
    let mut out = Vec::new();
    let mut machine = Primary::new(config.clone(), rules, reference, 7, Time(0), &mut out);
    let newcomer = MemberRef { id: name("m2"), boot: BootId(1), control: "h:4".to_owned() };
    for segment in [reference.last_segment().next(), reference.last_segment().next().next()] {
        machine.step(Time(1), primary::Input::Prepared(segment), &mut out);
        let seats: Vec<_> = out.iter().filter_map(primary::Output::seat).collect();
        for seat in seats {
            machine.step(Time(1), primary::Input::Connected(seat), &mut out);
            machine.step(Time(1), primary::Input::Opened(seat, segment), &mut out);
        }
    }
    machine.step(Time(20), primary::Input::Tick, &mut out);
    assert!(out.contains(&primary::Output::Survey), "{out:?}");
    machine.step(Time(20), primary::Input::Surveyed(vec![newcomer.clone()]), &mut out);
    machine.step(Time(20), primary::Input::Fenced(newcomer, Ok(spare.clone())), &mut out);
    machine.step(Time(30), primary::Input::Tick, &mut out);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30_000, ..ProptestConfig::default() })]

    #[test]
    fn no_inventory_shortens_the_log_of_another_member(lies in liar()) {
        let honest = inventory("m1", vec![closed(1, 1, 10), closed(2, 11, 20), closed(3, 21, 30)]);
        // Read under the epoch by which it was fenced, and as a spare of that epoch's primary.
        for newest in [LED, FENCED] {
            let Ok(Some(believed)) = Reading::new(LOG, FENCED, newest).take(lies.clone()) else { continue };
            let alone = Reference::assemble([&honest], &[]).expect("a whole log");
            recruited(&alone, &believed);
            if newest == FENCED {
                continue;
            }
            if let Ok(reference) = Reference::assemble([&honest, &believed], &[]) {
                prop_assert!(reference.last() >= Lsn(30), "{reference:?}");
                recruited(&reference, &believed);
            }
            for least in [0, 20, u64::MAX] {
                drop(Reference::assemble_at_least([&honest, &believed], &[], Lsn(least)));
            }
            prop_assert!(promoted(&honest, &believed).is_none_or(|last| last >= Lsn(30)));
        }
    }
}

/// One lying member says that it has so many buffers open behind the end of the log.
#[test]
fn endless_open_copies_are_rejected_and_any_number_ends() {
    let buffers = u64::from(BUFFERS_MAX);
    let liar = |open: u64| {
        let last = CopyReport { state: CopyState::Open, ..closed(1 + open, 900, 901) };
        let copies = (2..1 + open).map(blank).chain([last]).collect();
        inventory("c", copies)
    };
    let mut reading = Reading::new(LOG, FENCED, LED);
    let Inventory { copies, .. } = liar(buffers + 1);
    let (first, rest) = copies.split_at(INVENTORY_PAGE_MAX);
    let page = Inventory { more: true, ..inventory("c", first.to_vec()) };
    assert_eq!(reading.take(page), Ok(None));
    let error = reading.take(inventory("c", rest.to_vec())).expect_err("one too many");
    assert!(error.to_string().contains("4097 open copies"), "{error}");
    // A thread whose stack has no room for a call for each of them.
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
        let honest = ["a", "b"].map(|name| inventory(name, vec![closed(1, 1, 10)]));
        let members = [&honest[0], &honest[1], &liar(buffers)];
        Reference::assemble(members, &[]).map(|reference| reference.last())
    });
    assert_eq!(thread.expect("a thread").join().expect("it ends"), Ok(Lsn(10)));
}
