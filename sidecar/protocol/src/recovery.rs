//! Assembles the log from the inventories of fenced members, and plans what each member must change to hold it.
//!
//! Called by [`promotion`](crate::promotion) for the whole set and by [`primary`](crate::primary) for each newcomer. All
//! decisions about a copy stand in one table, [`REPAIR`]. See "Promotion" in `docs/protocol.md`.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{Epoch, Lsn, MemberId, Offset, SegmentId};
use crate::layout::{Closure, SEGMENT_OVERHEAD, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::rpc::{CopyReport, CopyState, Inventory};

/// A segment of the recovered log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClosedSegment {
    /// The segment.
    pub identity: SegmentIdentity,
    /// Where it ends.
    pub closure: Closure,
    /// Backups with this segment up to this end: fenced members, or other backups if no fenced member has a sound copy. Never
    /// empty.
    pub holders: Vec<MemberId>,
}

/// The recovered log: segments in order, records without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The segments.
    pub segments: Vec<ClosedSegment>,
    /// Records below are no longer needed.
    pub trimmed: Lsn,
    /// Every fenced member has promised that its disk holds the log up to here.
    pub synced: Lsn,
}

/// Why no log can be assembled from these members. Another member may still have what is missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Damage {
    /// None of these members has a valid copy of a segment that the log needs.
    #[error("segment {segment}: no fenced member holds a valid copy that ends at LSN {last}")]
    Missing {
        /// The segment.
        segment: SegmentId,
        /// Where it must end.
        last: Lsn,
    },
    /// A member has evidence that more was acknowledged than can be assembled.
    #[error(
        "segment {segment} was acknowledged up to byte {acked}, and no fenced member that can tell where its log ends \
         holds that much"
    )]
    Short {
        /// The segment.
        segment: SegmentId,
        /// Where the acknowledged part ends.
        acked: Offset,
    },
    /// After the loss of all memory: nothing that can be put together from these disks reaches what was synced.
    #[error("what the disks at hand hold does not reach LSN {synced}, up to which it was synced")]
    Unsynced {
        /// The last record that must be there.
        synced: Lsn,
    },
    /// Two members contradict each other: a primary opens each segment once, and numbers its records in the order of its
    /// segments.
    #[error(
        "segment {segment} of epoch {epoch} begins with LSN {first} at one member, and another has that record in an earlier \
         segment of the same epoch, or a different first record in this one: what the members hold contradicts itself"
    )]
    Contradiction {
        /// The segment, or the later of two.
        segment: SegmentId,
        /// The epoch that wrote it.
        epoch: Epoch,
        /// Its first record, at one of the members.
        first: Lsn,
    },
    /// Two members that can tell where the log ends have one segment of different epochs: before a primary opens a
    /// segment that an older epoch had opened, every member of its set has dropped what was left of it.
    #[error(
        "segment {segment} is of epoch {earlier} at one member and of epoch {later} at another, and both say that they can tell \
         where the log ends: what the members hold contradicts itself"
    )]
    TwoEpochs {
        /// The segment.
        segment: SegmentId,
        /// The epoch that wrote one of them.
        earlier: Epoch,
        /// The epoch that wrote the other.
        later: Epoch,
    },
}

impl ClosedSegment {
    /// The segment of this copy, and those of `copies` that are the same.
    fn new<'a>(of: &CopyReport, copies: impl Iterator<Item = (&'a MemberId, &'a CopyReport)>) -> ClosedSegment {
        let same = |copy: &CopyReport| {
            copy.identity == of.identity && copy.closure == of.closure && copy.state != CopyState::Corrupt
        };
        let holders = copies.filter(|(_, copy)| same(copy)).map(|(member, _)| member.clone()).collect();
        ClosedSegment { identity: of.identity, closure: of.closure, holders }
    }

    /// The same where the copy is corrupt, if any of `others` has the segment.
    fn elsewhere(corrupt: &CopyReport, others: &Copies<'_>) -> Option<ClosedSegment> {
        let copies = others.get(&corrupt.identity.segment)?.iter().copied();
        Some(ClosedSegment::new(corrupt, copies)).filter(|segment| !segment.holders.is_empty())
    }
}

impl Reference {
    /// Assembles the log: the furthest valid end among the fenced members, then backwards, for each segment a valid copy that
    /// ends where the next one begins.
    ///
    /// A corrupt copy is not a source, but it was whole once: the log reaches at least to its end, and its closure verifies
    /// every byte that `others` supply, which decide nothing. Trimmed records are not needed. Where no copy reaches the next
    /// segment, the log may end there: see [`torn_end`].
    ///
    /// Only witnesses can tell where the log ends; of other members only closed copies count. A log that is shorter than what
    /// any member has evidence of as acknowledged is not accepted (S12). What a member says was trimmed deletes nothing that
    /// others hold, unless another one says so too: see [`Trims`].
    ///
    /// "Furthest" compares the epoch of the last segment first: a segment of a later epoch is opened only after the
    /// whole set holds the log before it, so it can only follow what an older epoch left. See S2 in `docs/protocol.md`.
    pub fn assemble<'a>(
        inventories: impl IntoIterator<Item = &'a Inventory>,
        others: &[Inventory],
    ) -> Result<Reference, Damage> {
        let inventories: Vec<&Inventory> = inventories.into_iter().collect();
        let counts = |inventory: &Inventory, copy: &CopyReport| match copy.state {
            CopyState::Closed | CopyState::Corrupt => true,
            CopyState::Open => inventory.witness,
            CopyState::Damaged => false,
        };
        let (trims, copies) = (Trims::of(&inventories), gather(&inventories, counts));
        // If the wrong one of them were believed, it could end the log before what the others hold.
        if let Some(damage) = contradiction(&copies).or_else(|| two_epochs(&inventories)) {
            return Err(damage);
        }
        let reference = Reference::from_copies(&trims, &copies, &closed_copies(others), None)?;
        // What is trimmed was acknowledged, so it was part of the log.
        if trims.believed > reference.last().next() {
            return Err(Damage::Missing { segment: reference.last_segment(), last: trims.believed.prev() });
        }
        let reported = || inventories.iter().flat_map(|inventory| &inventory.copies);
        match reported().find(|copy| reference.falls_short_of(copy)) {
            Some(copy) => Err(Damage::Short { segment: copy.identity.segment, acked: copy.acked }),
            None => Ok(reference),
        }
    }

    /// The same after an administrator has accepted that the log may end at `least`, even if more was acknowledged: the
    /// furthest end from there on at which a whole log can be assembled, from copies of any member.
    pub fn assemble_at_least<'a>(
        inventories: impl IntoIterator<Item = &'a Inventory>,
        others: &[Inventory],
        least: Lsn,
    ) -> Result<Reference, Damage> {
        let inventories: Vec<&Inventory> = inventories.into_iter().collect();
        let (trims, copies) = (Trims::of(&inventories), gather(&inventories, |_, _| true));
        let others = closed_copies(others);
        let mut limit = None;
        loop {
            let found = Reference::from_copies(&trims, &copies, &others, limit);
            if let Ok(reference) = &found
                && reference.last() >= least
            {
                return found;
            }
            // No whole log ends there: try the next shorter end.
            let ends = copies.values().flatten().map(|(_, copy)| *copy).filter(|copy| is_sound(copy));
            let below = |copy: &&CopyReport| limit.is_none_or(|limit| copy.closure.last < limit);
            match ends.filter(below).map(|copy| copy.closure.last).filter(|last| *last >= least).max() {
                Some(last) => limit = Some(last),
                None => {
                    let missing = Damage::Missing { segment: SegmentId(0), last: least };
                    return Err(found.err().unwrap_or(missing));
                }
            }
        }
    }

    /// How much of this log a member has promised to hold on its disk. A promise to an earlier epoch says nothing of records that
    /// a later one has written: an administrator may have shortened the log in between.
    pub fn synced_at(&self, inventory: &Inventory) -> Lsn {
        let Some(synced) = inventory.synced else { return Lsn(0) };
        let written = self.segments.iter().take_while(|segment| segment.identity.epoch <= synced.epoch).last();
        let before = self.segments.first().map_or(Lsn(0), |segment| segment.closure.first.prev());
        synced.last.min(written.map_or(before, |segment| segment.closure.last))
    }

    /// The log of these members, each of which has it.
    pub fn of_members<'a>(self, inventories: impl Iterator<Item = &'a Inventory>) -> Reference {
        let synced = inventories.map(|inventory| self.synced_at(inventory)).min().unwrap_or_default();
        Reference { synced, ..self }
    }

    /// True when a copy proves that more was acknowledged than this log holds.
    pub fn falls_short_of(&self, copy: &CopyReport) -> bool {
        let CopyReport { identity, acked, closure, .. } = copy;
        let ends_before = self.segments.last().is_none_or(|last| last.identity.epoch <= identity.epoch);
        // Even where only its header is acknowledged, everything before the segment is.
        if ends_before && *acked >= Offset(SEGMENT_OVERHEAD as u32) && closure.first.prev() > self.last() {
            return true;
        }
        let records = *acked > Offset(SEGMENT_OVERHEAD as u32);
        let Some(first) = self.segments.first().filter(|_| records) else { return records };
        let at = identity.segment.0.checked_sub(first.identity.segment.0);
        match at.map(|at| self.segments.get(at as usize)) {
            // Trimmed.
            None => false,
            Some(Some(here)) if here.identity == *identity => here.closure.end < *acked,
            // A later epoch has opened the segment again: it decided what the log is.
            Some(Some(here)) => here.identity.epoch < identity.epoch,
            // A copy left by an older epoch is not part of the log, unless nothing has followed it.
            Some(None) => ends_before,
        }
    }

    /// True when a member has closed a copy behind the end of this log. A primary closes what is acknowledged to its end; only
    /// a promotion that failed closes what need not be.
    pub fn ends_before(&self, copy: &CopyReport) -> bool {
        let is_later = self.segments.last().is_none_or(|last| last.identity.epoch <= copy.identity.epoch);
        copy.state == CopyState::Closed && is_later && copy.closure.last > self.last()
    }

    /// The furthest end, or the one at `limit`, and back from there.
    fn from_copies(
        trims: &Trims<'_>,
        copies: &Copies<'_>,
        others: &Copies<'_>,
        limit: Option<Lsn>,
    ) -> Result<Reference, Damage> {
        let mut trimmed = trims.believed;
        let furthest = |copy: &&CopyReport| (copy.identity.epoch, copy.identity.segment, copy.closure.last);
        let sound = |copy: &CopyReport| copy.state != CopyState::Corrupt;
        let written = copies.values().flatten().map(|(_, copy)| *copy).filter(|copy| holds_records(copy));
        let written = written.filter(|copy| limit.is_none_or(|limit| sound(copy) && copy.closure.last == limit));
        let Some(tail) = written.max_by_key(furthest) else {
            // A trim never takes the last segment, so a trimmed log without any has been lost, not emptied.
            let lost = Damage::Missing { segment: SegmentId(0), last: trimmed.prev() };
            return if trimmed > Lsn(1) { Err(lost) } else { Ok(Reference { trimmed, ..Reference::default() }) };
        };
        let mut segments = Vec::new();
        // Seldom needed.
        let closed = LazyCell::new(|| closed_ends(copies, tail.identity.epoch));
        let (mut segment, mut last) = (tail.identity.segment, tail.closure.last);
        while last > Lsn(0) {
            let candidates = copies.get(&segment).map(Vec::as_slice).unwrap_or_default();
            let reaching = || candidates.iter().map(|(_, copy)| *copy).filter(|copy| copy.closure.last == last);
            let whole = || reaching().filter(|copy| holds_records(copy) && sound(copy));
            // If one member is wrong, what most have is right; its bytes would replace those of the others.
            let same = |copy: &CopyReport| {
                let same = |other: &&CopyReport| (other.identity, other.closure) == (copy.identity, copy.closure);
                whole().filter(same).count()
            };
            // Some copies of the last segment may have marks after the same last record.
            let best = |copy: &&CopyReport| {
                let CopyReport { identity, closure, state, .. } = copy;
                (identity.epoch, same(copy), *state == CopyState::Closed, closure.end)
            };
            let found = whole().max_by_key(best).map(|best| ClosedSegment::new(best, candidates.iter().copied()));
            let corrupt = || reaching().filter(|copy| !sound(copy));
            let found = found.or_else(|| corrupt().find_map(|copy| ClosedSegment::elsewhere(copy, others)));
            let Some(found) = found else {
                if last < trims.said && !segments.is_empty() && !trims.any_sound_up_to(copies, segment) {
                    trimmed = last.next();
                    break;
                }
                let end = torn_end(copies, &closed, tail.identity.epoch, segment, last);
                let end = end.filter(|(_, last)| trimmed <= Lsn(1) || *last >= trimmed);
                (segment, last) = end.ok_or(Damage::Missing { segment, last })?;
                segments.clear();
                continue;
            };
            let first = found.closure.first;
            segments.push(found);
            if first <= trimmed.max(Lsn(1)) {
                break;
            }
            (segment, last) = (SegmentId(segment.0 - 1), first.prev());
        }
        segments.reverse();
        Ok(Reference { segments, trimmed, synced: Lsn(0) })
    }

    /// What a member must do to hold this log.
    pub fn plan_for(&self, inventory: &Inventory) -> RepairPlan {
        RepairPlan::new(self.segments.iter().map(|segment| (&segment.identity, &segment.closure)), inventory)
    }

    /// Last record of the log; 0 when there is none.
    pub fn last(&self) -> Lsn {
        self.segments.last().map_or(Lsn(0), |s| s.closure.last)
    }

    /// Last segment of the log; 0 when there is none.
    pub fn last_segment(&self) -> SegmentId {
        self.segments.last().map_or(SegmentId(0), |s| s.identity.segment)
    }
}

/// What the fenced members hold, by segment.
type Copies<'a> = BTreeMap<SegmentId, Vec<(&'a MemberId, &'a CopyReport)>>;

/// The record from which on the log is needed, as members say.
#[derive(Clone, Debug)]
struct Trims<'a> {
    /// Two members say so, or the only one: what is older may be deleted. One member's word would delete what the others hold.
    believed: Lsn,
    /// Some member says so. That excuses what nobody holds, and deletes nothing.
    said: Lsn,
    /// Those whose copies show that what lies before a gap is needed, and what each has trimmed itself: witnesses, if there are any.
    /// Another member may hold an older copy of what has long been trimmed, as any may below what it has trimmed.
    counting: BTreeMap<&'a MemberId, Lsn>,
}

impl<'a> Trims<'a> {
    fn of(inventories: &[&'a Inventory]) -> Trims<'a> {
        let any = inventories.iter().any(|inventory| inventory.witness);
        let counting = inventories.iter().filter(|inventory| inventory.witness || !any);
        let counting = counting.map(|inventory| (&inventory.member, inventory.trimmed)).collect();
        let mut said: Vec<Lsn> = inventories.iter().map(|inventory| inventory.trimmed).collect();
        said.sort_unstable_by(|a, b| b.cmp(a));
        let believed = said.get(usize::from(!planted::has(Bug::OneTrimIsEnough))).or(said.first());
        let (believed, said) = (believed.copied().unwrap_or_default(), said.first().copied().unwrap_or_default());
        Trims { believed, said, counting }
    }

    /// True if some member that counts holds records of this segment, where none reaches the next one, or of one before it.
    fn any_sound_up_to(&self, copies: &Copies<'_>, segment: SegmentId) -> bool {
        let below = copies.range(..=segment).flat_map(|(_, copies)| copies);
        let needs =
            |member, copy: &CopyReport| self.counting.get(member).is_some_and(|trimmed| copy.closure.last >= *trimmed);
        below.into_iter().any(|(member, copy)| needs(*member, copy) && is_sound(copy))
    }
}

/// The copies that count.
fn gather<'a>(inventories: &[&'a Inventory], counts: impl Fn(&Inventory, &CopyReport) -> bool) -> Copies<'a> {
    let mut copies: Copies<'a> = BTreeMap::new();
    for inventory in inventories {
        for copy in inventory.copies.iter().filter(|copy| counts(inventory, copy)) {
            copies.entry(copy.identity.segment).or_default().push((&inventory.member, copy));
        }
    }
    copies
}

/// The segments that backups other than the fenced members can supply.
fn closed_copies(others: &[Inventory]) -> Copies<'_> {
    let others: Vec<&Inventory> = others.iter().collect();
    gather(&others, |_, copy| copy.state == CopyState::Closed)
}

/// A segment that one primary would have begun with two different records, or with a record that it had put into an earlier
/// one, if every member were right.
fn contradiction(copies: &Copies<'_>) -> Option<Damage> {
    // For each epoch, the last record in the segments before.
    let mut written: BTreeMap<Epoch, Lsn> = BTreeMap::new();
    for copies in copies.values() {
        let begun = || copies.iter().map(|(_, copy)| *copy).filter(|copy| copy.closure.end > Offset(0));
        let taken =
            |copy: &&CopyReport| written.get(&copy.identity.epoch).is_some_and(|last| copy.closure.first <= *last);
        let mut first: BTreeMap<Epoch, Lsn> = BTreeMap::new();
        let differs =
            |copy: &&CopyReport| *first.entry(copy.identity.epoch).or_insert(copy.closure.first) != copy.closure.first;
        if let Some(CopyReport { identity, closure, .. }) = begun().find(taken).or_else(|| begun().find(differs)) {
            let SegmentIdentity { segment, epoch, .. } = *identity;
            return Some(Damage::Contradiction { segment, epoch, first: closure.first });
        }
        for copy in begun() {
            let last = written.entry(copy.identity.epoch).or_default();
            *last = copy.closure.last.max(*last);
        }
    }
    None
}

/// A segment with records that witnesses have of different epochs.
fn two_epochs(inventories: &[&Inventory]) -> Option<Damage> {
    if planted::has(Bug::LaterEpochIsBelieved) {
        return None;
    }
    let witnesses: Vec<&Inventory> = inventories.iter().copied().filter(|inventory| inventory.witness).collect();
    gather(&witnesses, |_, copy| holds_records(copy)).into_iter().find_map(|(segment, copies)| {
        let epochs = || copies.iter().map(|(_, copy)| copy.identity.epoch);
        let (earlier, later) = (epochs().min()?, epochs().max()?);
        (earlier != later).then_some(Damage::TwoEpochs { segment, earlier, later })
    })
}

fn is_sound(copy: &CopyReport) -> bool {
    copy.state != CopyState::Corrupt && holds_records(copy)
}

/// Where the log ends if `segment`, which no copy brings up to `last`, was torn when the primary of `epoch` died: at the
/// furthest end that a copy of it has, or, where no record of it has landed, with the last segment before of which one has.
/// `None` if that cannot be: no member at hand has it open, or a member has closed what is there only after all of it was.
///
/// Nothing acknowledged lies beyond: see "A log torn across segments" in `docs/protocol.md`.
fn torn_end(
    copies: &Copies<'_>,
    closed: &ClosedEnds<'_>,
    epoch: Epoch,
    segment: SegmentId,
    last: Lsn,
) -> Option<(SegmentId, Lsn)> {
    let at = |segment: SegmentId| copies.get(&segment).into_iter().flatten().copied();
    let mut segment = segment;
    loop {
        let here = || at(segment).filter(|(_, copy)| copy.identity.epoch == epoch);
        // A primary closes its segments in order: at a member with this one open, only a promotion can have closed later ones.
        let has_it_open = |member: &MemberId| here().any(|(of, copy)| of == member && copy.is_open());
        let was_whole = |(member, (closed, end)): (&&MemberId, &(SegmentId, Lsn))| {
            *closed >= segment && *end >= last && !has_it_open(member)
        };
        if closed.iter().any(was_whole) {
            return None;
        }
        let shorter = || here().map(|(_, copy)| copy).filter(|copy| copy.closure.last < last);
        if let Some(end) = shorter().filter(|copy| holds_records(copy)).map(|copy| copy.closure.last).max() {
            return Some((segment, end));
        }
        // Opened, but empty. Its header, where that has landed, says where the segment before ends.
        let first = shorter().map(|copy| copy.closure.first).max()?;
        let before = SegmentId(segment.0 - 1);
        if first > Lsn(0) || before == SegmentId(0) {
            return Some((before, first.prev()));
        }
        let written = at(before).map(|(_, copy)| copy).filter(|copy| holds_records(copy));
        let written = written.max_by_key(|copy| (copy.identity.epoch, copy.closure.last));
        if let Some(copy) = written {
            return Some((before, copy.closure.last));
        }
        // No record of that one has landed either: it is torn as well.
        segment = before;
    }
}

/// Of each member the copy of an epoch that is not open and reaches furthest: its segment, and its last record.
type ClosedEnds<'a> = BTreeMap<&'a MemberId, (SegmentId, Lsn)>;

fn closed_ends<'a>(copies: &Copies<'a>, epoch: Epoch) -> ClosedEnds<'a> {
    let mut ends = ClosedEnds::new();
    let closed = copies.values().flatten().filter(|(_, copy)| copy.identity.epoch == epoch && !copy.is_open());
    for (member, copy) in closed {
        let end = ends.entry(*member).or_insert((copy.identity.segment, copy.closure.last));
        if copy.closure.last >= end.1 {
            *end = (copy.identity.segment, copy.closure.last);
        }
    }
    ends
}

/// A buffer opened ahead that never received a record is not part of the log.
fn holds_records(copy: &CopyReport) -> bool {
    copy.closure.records() > 0
}

/// How the identity of a member's copy relates to the recovered log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The member has no copy.
    Absent,
    /// A copy with the same identity.
    Same,
    /// A copy of another opening of the segment.
    Other,
}

/// How the end of a copy with the same identity relates to the recovered log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// It ends earlier, if only by marks.
    Shorter,
    /// Same end, same chain.
    Equal,
    /// It ends later, if only by marks.
    Longer,
    /// Same end, another chain.
    Divergent,
}

/// What to do about a member's copy of a segment of the recovered log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: the copy is as it should be.
    Keep,
    /// Close it where the recovered log ends; its bytes reach there.
    Close,
    /// Copy the closed image from a holder; it replaces what is there.
    Install,
}

/// One line of the table: the cases it covers, and the decision.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    presences: &'static [Presence],
    states: &'static [CopyState],
    extents: &'static [Extent],
    /// The decision.
    pub repair: Repair,
}

impl Rule {
    /// True when the line covers this case.
    pub fn matches(&self, presence: Presence, state: CopyState, extent: Extent) -> bool {
        self.presences.contains(&presence) && self.states.contains(&state) && self.extents.contains(&extent)
    }
}

const ANY_STATE: &[CopyState] = &[CopyState::Open, CopyState::Closed, CopyState::Corrupt, CopyState::Damaged];
const NEVER_CLOSED: &[CopyState] = &[CopyState::Open, CopyState::Damaged];
const ANY_EXTENT: &[Extent] = &[Extent::Shorter, Extent::Equal, Extent::Longer, Extent::Divergent];

const fn rule(
    presences: &'static [Presence],
    states: &'static [CopyState],
    extents: &'static [Extent],
    repair: Repair,
) -> Rule {
    Rule { presences, states, extents, repair }
}

/// Every decision about a copy. A test demands that each case matches exactly one line.
///
/// `Open` and `Longer`: the copy has unacknowledged records that the recovered log has not; its first part is the same,
/// because one primary wrote both from one buffer, and the backup verifies the chain there before it closes.
/// `Damaged` is open: its valid part is worth as much as that of any open copy.
#[rustfmt::skip]
pub const REPAIR: [Rule; 6] = [
    rule(&[Presence::Absent, Presence::Other], ANY_STATE,            ANY_EXTENT,                            Repair::Install),
    rule(&[Presence::Same],                    &[CopyState::Corrupt], ANY_EXTENT,                           Repair::Install),
    rule(&[Presence::Same],                    &[CopyState::Closed], &[Extent::Equal],                      Repair::Keep),
    rule(&[Presence::Same],                    &[CopyState::Closed],
         &[Extent::Shorter, Extent::Longer, Extent::Divergent],                                             Repair::Install),
    rule(&[Presence::Same],                    NEVER_CLOSED,         &[Extent::Equal, Extent::Longer],      Repair::Close),
    rule(&[Presence::Same],                    NEVER_CLOSED,         &[Extent::Shorter, Extent::Divergent], Repair::Install),
];

/// Looks a case up in the table.
pub fn decide(presence: Presence, state: CopyState, extent: Extent) -> Repair {
    let rule = REPAIR.iter().find(|rule| rule.matches(presence, state, extent));
    rule.expect("the table covers every case").repair
}

/// What one member must do to hold the recovered log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RepairPlan {
    /// Segments to close in place.
    pub close: Vec<(SegmentIdentity, Closure)>,
    /// Segments to copy from a holder, oldest first.
    pub install: Vec<(SegmentIdentity, Closure)>,
    /// Records below are gone, and the member does not know it: without that, it would take its missing beginning for a
    /// loss when it is the last one left.
    pub trim: Option<Lsn>,
    /// Copies to forget, after the trim.
    pub drop: Vec<CopyReport>,
}

impl RepairPlan {
    /// Compares a member's inventory with the recovered log.
    pub fn new<'a>(
        segments: impl IntoIterator<Item = (&'a SegmentIdentity, &'a Closure)>,
        inventory: &Inventory,
    ) -> RepairPlan {
        let mut plan = RepairPlan::default();
        let mut kept = BTreeSet::new();
        let mut first = None;
        let copies: BTreeMap<SegmentId, &CopyReport> =
            inventory.copies.iter().map(|copy| (copy.identity.segment, copy)).collect();
        for (identity, closure) in segments {
            first.get_or_insert(closure.first);
            kept.insert(identity.segment);
            let copy = copies.get(&identity.segment).copied();
            let decision = match copy {
                None => decide(Presence::Absent, CopyState::Open, Extent::Shorter),
                Some(copy) if copy.identity != *identity => decide(Presence::Other, copy.state, Extent::Shorter),
                Some(copy) => decide(Presence::Same, copy.state, extent(&copy.closure, closure)),
            };
            match decision {
                Repair::Keep => {}
                Repair::Close => plan.close.push((*identity, *closure)),
                Repair::Install => plan.install.push((*identity, *closure)),
            }
        }
        let alien = |copy: &&CopyReport| !kept.contains(&copy.identity.segment) && !is_before(first, copy);
        plan.drop = inventory.copies.iter().filter(alien).copied().collect();
        plan.trim = first.filter(|first| *first > Lsn(1) && *first > inventory.trimmed);
        plan
    }

    /// True when the member holds the log already.
    pub fn is_empty(&self) -> bool {
        self.close.is_empty() && self.install.is_empty() && self.drop.is_empty() && self.trim.is_none()
    }
}

/// True for a closed copy of records before the log's first. They were trimmed elsewhere, and a trim takes them here too:
/// dropped without one they would look like a loss.
fn is_before(first: Option<Lsn>, copy: &CopyReport) -> bool {
    copy.state == CopyState::Closed && first.is_some_and(|first| copy.closure.last < first)
}

fn extent(copy: &Closure, reference: &Closure) -> Extent {
    match (copy.last, copy.end).cmp(&(reference.last, reference.end)) {
        std::cmp::Ordering::Less => Extent::Shorter,
        std::cmp::Ordering::Greater => Extent::Longer,
        std::cmp::Ordering::Equal if copy == reference => Extent::Equal,
        std::cmp::Ordering::Equal => Extent::Divergent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_matches_exactly_one_rule() {
        for presence in [Presence::Absent, Presence::Same, Presence::Other] {
            for state in ANY_STATE {
                for extent in ANY_EXTENT {
                    let matching = REPAIR.iter().filter(|rule| rule.matches(presence, *state, *extent)).count();
                    assert_eq!(matching, 1, "{presence:?} {state:?} {extent:?}");
                }
            }
        }
    }

    #[test]
    fn only_an_equal_closed_copy_is_kept() {
        for presence in [Presence::Absent, Presence::Same, Presence::Other] {
            for state in ANY_STATE {
                for extent in ANY_EXTENT {
                    let equal = (presence, *state, *extent) == (Presence::Same, CopyState::Closed, Extent::Equal);
                    assert_eq!(decide(presence, *state, *extent) == Repair::Keep, equal);
                }
            }
        }
    }
}
