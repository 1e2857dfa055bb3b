//! The steps from candidate to primary: claim the epoch, fence the members, choose the log, repair every member, and swap
//! unreachable members out of the set.
//!
//! Driven by the sidecar (and by the simulator). Every step can be repeated: after any failure the machine goes back to
//! reading the configuration and runs the ordinary path again under a higher epoch; there are no repair branches.
//! Nothing of the recovered log may be shown to the app before [`Output::Won`]. See "Promotion" in `docs/protocol.md`.

use std::collections::{BTreeMap, BTreeSet};

use crate::backup::{EPOCH_JUMP_MAX, Request};
use crate::config::{Configuration, Cut, MEMBERS_MAX, MemberRef, PrimaryRef, Swap, SwapOutcome, Time};
use crate::ids::{Claim, Epoch, GroupName, LogId, Lsn, MemberId, SegmentId, Version};
use crate::layout::{Closure, SegmentIdentity};
use crate::planted::{self, Bug};
use crate::recovery::{Damage, Reference, RepairPlan};
use crate::rpc::{
    Caller, CloseRequest, CopyReport, CopyState, DropRequest, Failure, FenceRequest, Inventory, TrimRequest,
};

/// How long a recovery from disk waits for members that have not answered, in units of `fence_wait_ms`: 32 × 150 ms = 4.8 s.
/// Their hosts may be booting, and what another disk alone holds is left behind once the log has ended before it. Whoever has given
/// its word, or come late with evidence, is waited for as long, and a candidate that reaches too few members for as long is cut off.
const DISK_PATIENCE: u64 = 32;

/// What the group wants of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Members that a new group should have.
    pub backups: u8,
    /// Members that must be fenced, and hold the log, before there is a primary.
    pub min_in_sync: u8,
    /// How long to wait for the slower members once enough have been fenced.
    pub fence_wait_ms: u64,
    /// Pause before a failed step is retried.
    pub retry_ms: u64,
    /// How long repairs may continue without finishing any task before the promotion tries to continue without the members that
    /// it waits for.
    pub repair_timeout_ms: u64,
    /// An administrator has accepted that this log may end at this LSN, even if more was acknowledged.
    pub accept_loss: Option<AcceptedLoss>,
    /// An administrator has ordered that this log be recovered from disks, even if more was acknowledged since it was last
    /// synced.
    pub recover_from_disk: Option<DiskRecovery>,
}

/// An administrator's explicit acceptance that a log may end early. Valid for that log only, for no end before the LSN, and
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AcceptedLoss {
    /// The log.
    pub log: LogId,
    /// Records up to here must be there.
    pub last: Lsn,
}

impl AcceptedLoss {
    /// Whether it is for this log, and has not been used.
    pub fn is_for(&self, config: &Configuration) -> bool {
        self.log == config.log && config.cuts.iter().all(|cut| cut.ordered != Some(self.last))
    }
}

/// An administrator's order to recover a log from disks. It ends by itself: the next primary has another epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskRecovery {
    /// The log.
    pub log: LogId,
    /// The last epoch that had a primary: [`Configuration::won`].
    pub after: Epoch,
}

impl DiskRecovery {
    /// Whether it is for this log as it is.
    pub fn is_for(&self, config: &Configuration) -> bool {
        self.log == config.log && self.after == config.won
    }
}

impl std::fmt::Display for DiskRecovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.log, self.after)
    }
}

impl std::str::FromStr for DiskRecovery {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskRecovery, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(log, after)| Some(DiskRecovery { log: log.parse().ok()?, after: Epoch(after.parse().ok()?) }));
        parsed.ok_or_else(|| {
            format!(
                "`{text}`: must be LOG/EPOCH, the log's 32 hexadecimal digits and the last epoch that had a primary: the log and \
                 `won` in the config store, status.log.id and status.log.wonEpoch of the ReplicaGroup"
            )
        })
    }
}

impl std::fmt::Display for AcceptedLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.log, self.last)
    }
}

impl std::str::FromStr for AcceptedLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<AcceptedLoss, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(log, last)| Some(AcceptedLoss { log: log.parse().ok()?, last: Lsn(last.parse().ok()?) }));
        parsed
            .ok_or_else(|| format!("`{text}`: must be LOG/LSN, the log's 32 hexadecimal digits and a record's number"))
    }
}

/// What happens to a promotion.
#[derive(Clone, Debug)]
pub enum Input {
    /// Answer to [`Output::ReadConfig`]; the error is for people.
    Read(Result<Option<Configuration>, String>),
    /// Answer to [`Output::Survey`]: every backup that answered.
    Surveyed(Vec<(MemberRef, Inventory)>),
    /// Answer to [`Output::Swap`].
    Swapped(SwapOutcome),
    /// Answer to [`Output::Fence`].
    Fenced(Epoch, MemberId, Result<Inventory, Failure>),
    /// Answer to [`Output::Trim`], [`Output::Drop`], [`Output::Close`] and [`Output::Install`].
    Repaired(Epoch, Task, Result<(), Failure>),
    /// Time passes; expected every few milliseconds.
    Tick,
}

/// One task at one member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Record that the beginning of the log is trimmed.
    Trim(MemberId),
    /// Drop what is not part of the log.
    Drop(MemberId),
    /// Close the copy that is there.
    Close(MemberId, SegmentId),
    /// Copy the closed image from another member.
    Install(MemberId, SegmentId),
}

impl Task {
    /// The member that does such work piece by piece.
    fn ordered(&self) -> Option<&MemberId> {
        match self {
            Task::Drop(_) => None,
            Task::Trim(member) | Task::Close(member, _) | Task::Install(member, _) => Some(member),
        }
    }

    /// The member that is repaired by it.
    pub fn member(&self) -> &MemberId {
        match self {
            Task::Trim(member) | Task::Drop(member) | Task::Close(member, _) | Task::Install(member, _) => member,
        }
    }
}

/// What a promotion wants done. Answers may come in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read the config store.
    ReadConfig,
    /// Ask all known backups what they hold, without changing anything: their identities, because there is no configuration
    /// yet; or as many copies as a page has behind this segment, because no member has a sound copy of the next one.
    Survey(Option<SegmentId>),
    /// Compare-and-swap. After [`SwapOutcome::Unknown`] the same swap is repeated.
    Swap(Swap),
    /// Fence this member under the configuration's epoch.
    Fence(Configuration, MemberRef),
    /// Inform this member that records below are no longer needed.
    Trim(Configuration, MemberRef, Lsn),
    /// Drop these copies.
    Drop(Configuration, MemberRef, Vec<CopyReport>),
    /// Close this copy where the recovered log says.
    Close(Configuration, MemberRef, SegmentIdentity, Closure),
    /// Copy a closed segment to this member from one of the holders, or from any backup if none of them can serve it.
    Install(Configuration, MemberRef, SegmentIdentity, Closure, Vec<MemberId>),
    /// Something is missing that only time or an administrator can supply; the promotion keeps trying.
    Waiting(Waiting),
    /// This sidecar is primary: every member of the configuration holds the recovered log. The last output.
    Won(Configuration, Reference),
    /// Another sidecar has claimed a newer epoch. The last output.
    Lost(Epoch),
}

impl Output {
    /// The task that the output gives a member, if it does: its answer is [`Input::Repaired`].
    pub fn task(&self) -> Option<(Epoch, Task)> {
        Some(match self {
            Output::Trim(config, member, _) => (config.epoch, Task::Trim(member.id.clone())),
            Output::Drop(config, member, _) => (config.epoch, Task::Drop(member.id.clone())),
            Output::Close(config, member, identity, _) => {
                (config.epoch, Task::Close(member.id.clone(), identity.segment))
            }
            Output::Install(config, member, identity, ..) => {
                (config.epoch, Task::Install(member.id.clone(), identity.segment))
            }
            _ => return None,
        })
    }

    /// The request to a member, if the output is carried out by one request.
    pub fn request(&self, group: GroupName) -> Option<(&MemberRef, Request)> {
        let caller = |config: &Configuration, group| Caller { group, log: config.log, epoch: config.epoch };
        Some(match *self {
            Output::Fence(ref config, ref member) => {
                (member, Request::Fence(FenceRequest::of(group, config, &member.id)))
            }
            Output::Trim(ref config, ref member, below) => {
                (member, Request::Trim(TrimRequest { caller: caller(config, group), below }))
            }
            Output::Drop(ref config, ref member, ref copies) => {
                (member, Request::Drop(DropRequest { caller: caller(config, group), copies: copies.clone() }))
            }
            Output::Close(ref config, ref member, identity, closure) => {
                (member, Request::Close(CloseRequest { caller: caller(config, group), identity, closure }))
            }
            _ => return None,
        })
    }
}

/// What a promotion waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Waiting {
    /// The config store does not answer.
    #[error("the config store cannot be read: {0}")]
    ConfigStore(String),
    /// A new group needs empty backups.
    #[error("cannot start the group: {empty} empty backups are ready, {needed} needed")]
    Backups {
        /// Backups that answer and are bound to no log.
        empty: u8,
        /// Backups needed.
        needed: u8,
    },
    /// The config store is empty, but a backup holds a log.
    #[error(
        "the config store is empty, but backup {member} holds log {log}: give this sidecar the group and the config store \
         (--group, --config) of that log. Delete nothing: the folders of {member} may be the only copy. If that log's group \
         is well without {member}, start {member} with a new --pool and --flush-dir"
    )]
    StoreForgot {
        /// The backup.
        member: MemberId,
        /// The log it holds.
        log: LogId,
    },
    /// Too few members of the last set answer with their memory.
    #[error("{fenced} of the last set's members hold their log, {needed} needed; missing: {missing}")]
    Members {
        /// Members fenced.
        fenced: u8,
        /// Members needed.
        needed: u8,
        /// The members that are missing, and why.
        missing: String,
    },
    /// The fenced members' copies do not make up a whole log; a missing member may have the rest.
    #[error("the log cannot be put together yet: {0}")]
    Damage(Damage),
    /// Members answer but cannot tell where the log ends, because they have lost something or it is damaged.
    #[error(
        "damaged: {damaged}; {witnesses} of the last set's members can tell where the log ends, {needed} needed; missing: \
         {missing} (docs/runbooks/TailwindMemberDamaged.md)"
    )]
    Witnesses {
        /// Members that can.
        witnesses: u8,
        /// Members needed, as long as others may come back.
        needed: u8,
        /// The members that cannot, and why.
        damaged: String,
        /// The members that have not answered, and why.
        missing: String,
    },
    /// A member says that it has promised an epoch that is not in the config store, or is there with another claim.
    #[error(
        "the config store is older than the log: it is at epoch {epoch}, and member {member} has promised epoch {promised} to a \
         claim that the store does not know; bring the newer content back, or decide as docs/config-store.md says"
    )]
    StoreIsOlder {
        /// The store's epoch.
        epoch: Epoch,
        /// The member that says so.
        member: MemberId,
        /// The epoch that it has promised.
        promised: Epoch,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Reading,
    /// Until the next try.
    Pausing(Time),
    Surveying(Survey),
    Claiming(Swap),
    Fencing(Fencing),
    Repairing(Repairing),
    /// Every member of the proposed set holds the log; the config store is to say so.
    Winning(Recovered, Swap),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Survey {
    since: Time,
    /// When to ask again after too few answers.
    retry_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fencing {
    config: Configuration,
    since: Time,
    retry_at: Time,
    /// The answer of each member that has answered.
    answers: BTreeMap<MemberId, Result<Inventory, Absence>>,
    /// What members that have lost their memory hold on disk, if an administrator has ordered that it counts.
    from_disk: BTreeMap<MemberId, Inventory>,
    /// The log could not be put together from these answers.
    damage: Option<Damage>,
    /// A survey of all backups for missing segments is under way.
    surveying: bool,
    /// The config store is being read, because of a member's word, or because no member says what has become of this epoch.
    comparing: bool,
    /// When it is read next if too few members answer.
    look_at: Time,
    /// What the surveys have found: closed copies that other backups have, of segments of which a member has a corrupt one.
    others: Vec<Inventory>,
}

/// A member's word that it has promised an epoch to another claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word {
    promised: Epoch,
    /// When it was last given. A member that stands by its word repeats it.
    heard: Time,
}

/// Why a member does not take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Absence {
    /// It does not answer, or could not be fenced so far.
    Silent(String),
    /// It refuses, because it has promised this epoch to another claimant.
    Promised(Epoch),
    /// It answers with other memory: what it held as a member is gone, but for what may be on its disk. If that is the disk
    /// of the member, up to where it was synced.
    Reborn(Option<Lsn>),
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absence::Silent(why) => f.write_str(why),
            Absence::Promised(epoch) => write!(f, "it has promised epoch {epoch} to another sidecar"),
            Absence::Reborn(None) => f.write_str("its memory is new"),
            Absence::Reborn(Some(Lsn(0))) => {
                f.write_str("its memory is new, and nothing was synced to its disk; see docs/operations.md")
            }
            Absence::Reborn(Some(synced)) => {
                write!(f, "its memory is new; its disk was synced up to LSN {synced}, see docs/operations.md")
            }
        }
    }
}

impl Fencing {
    /// True when every member has reported what it holds, or has lost its memory.
    fn nobody_is_missing(&self) -> bool {
        self.config.members.iter().all(|member| self.has_reported(member))
    }

    /// Members that answer, whatever they say.
    fn reached(&self) -> usize {
        self.answers.values().filter(|answer| !matches!(answer, Err(Absence::Silent(_)))).count()
    }

    fn has_reported(&self, member: &MemberRef) -> bool {
        matches!(self.answers.get(&member.id), Some(Ok(_) | Err(Absence::Reborn(_))))
    }

    /// Remembers which of the corrupt copies others have. A survey is of one page behind one segment, so what an earlier one has
    /// found counts too.
    fn take_others(&mut self, found: impl Iterator<Item = Inventory>) {
        let inventories = self.answers.values().flatten().chain(self.from_disk.values());
        let copies = inventories.flat_map(|inventory| &inventory.copies);
        let corrupt = copies.filter(|copy| copy.state == CopyState::Corrupt);
        let corrupt: BTreeMap<SegmentId, Vec<&CopyReport>> = corrupt.fold(BTreeMap::new(), |mut corrupt, copy| {
            corrupt.entry(copy.identity.segment).or_insert_with(Vec::new).push(copy);
            corrupt
        });
        let wanted = |copy: &CopyReport| {
            let known = corrupt.get(&copy.identity.segment).map(Vec::as_slice).unwrap_or_default();
            let same = |known: &&CopyReport| (known.identity, known.closure) == (copy.identity, copy.closure);
            copy.state == CopyState::Closed && known.iter().any(same)
        };
        for mut news in found {
            news.copies.retain(wanted);
            match self.others.iter_mut().find(|known| known.member == news.member) {
                Some(known) => {
                    news.copies.retain(|copy| !known.copies.contains(copy));
                    known.copies.append(&mut news.copies);
                }
                None => self.others.push(news),
            }
        }
    }

    /// What the fenced members hold, apart from these.
    fn fenced_without(&self, unfit: &BTreeSet<MemberId>) -> Vec<&Inventory> {
        self.answers.values().flatten().filter(|inventory| !unfit.contains(&inventory.member)).collect()
    }

    /// The one member whose report contradicts those of all others, who agree and can tell where the log ends. Members that are
    /// right never contradict each other: it is this one that is wrong. What is missing, or short, shows nobody who is.
    fn odd_one_out(&self, damage: &Damage, needed: usize) -> Option<MemberId> {
        if !matches!(damage, Damage::Contradiction { .. } | Damage::TwoEpochs { .. }) {
            return None;
        }
        let agree_without = |odd: &MemberId| {
            let others = self.fenced_without(&BTreeSet::from([odd.clone()]));
            let enough = others.len() >= needed.max(2) && others.iter().all(|other| other.witness);
            enough && Reference::assemble(others.iter().copied(), &self.others).is_ok()
        };
        let fenced = self.answers.values().flatten().map(|inventory| &inventory.member);
        let mut odd = fenced.filter(|member| agree_without(member));
        let found = odd.next().cloned();
        found.filter(|_| odd.next().is_none())
    }

    /// True when no member is left to wait for, apart from these.
    fn has_all_without(&self, unfit: &BTreeSet<MemberId>) -> bool {
        let wanted = self.config.members.iter().filter(|member| !unfit.contains(&member.id)).count();
        self.fenced_without(unfit).len() == wanted
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Repairing {
    recovered: Recovered,
    /// Under way.
    tasks: Vec<Task>,
    /// When the last task was finished, or the first was handed out.
    progress: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Recovered {
    config: Configuration,
    /// Members that were fenced in time, and are fit.
    fenced: Vec<MemberRef>,
    reference: Reference,
    plans: Vec<(MemberRef, RepairPlan)>,
    /// An administrator's order has decided where it ends.
    by_order: Option<Order>,
}

/// What an administrator has ordered, as far as a recovery has made use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    AcceptLoss(Lsn),
    FromDisk,
}

impl Recovered {
    /// The log that these members are to hold. A member that counts by its disk has the identity that it has now.
    fn new(config: &Configuration, reference: Reference, fenced: &[&Inventory], by_order: Option<Order>) -> Recovered {
        let reference = reference.of_members(fenced.iter().copied());
        let plan = |inventory: &&Inventory| {
            let member = config.member(&inventory.member)?;
            let member = MemberRef { boot: inventory.boot, ..member.clone() };
            Some((member, reference.plan_for(inventory)))
        };
        let plans: Vec<(MemberRef, RepairPlan)> = fenced.iter().filter_map(plan).collect();
        let fenced = plans.iter().map(|(member, _)| member.clone()).collect();
        Recovered { config: config.clone(), fenced, reference, plans, by_order }
    }

    /// What the config store is to hold once these members hold the log.
    fn won(&self) -> Configuration {
        let Recovered { config, fenced, reference, by_order, .. } = self;
        let cut = by_order.map(|order| Cut {
            epoch: config.epoch,
            last: reference.last(),
            ordered: match order {
                Order::AcceptLoss(last) => Some(last),
                Order::FromDisk => None,
            },
        });
        let members = config.members.iter().filter_map(|member| fenced.iter().find(|fenced| fenced.id == member.id));
        config.won_with(members.cloned().collect(), cut)
    }

    /// Gives each idle member its next task. The trim comes first: after the drops a member could no longer tell a trimmed
    /// beginning from a loss. Then closes and images, oldest segment first: if a loss of power leaves only the disk, no member
    /// may have a later segment without the one before. Images come after all members' closes, because only a closed copy can
    /// be copied.
    fn hand_out(&mut self, tasks: &mut Vec<Task>, out: &mut Vec<Output>) {
        let Recovered { config, reference, plans, .. } = self;
        let is_busy =
            |tasks: &[Task], id: &MemberId| tasks.iter().any(|task| task.ordered().is_some_and(|busy| busy == id));
        for (member, plan) in plans.iter_mut() {
            if let Some(below) = plan.trim.take() {
                tasks.push(Task::Trim(member.id.clone()));
                out.push(Output::Trim(config.clone(), member.clone(), below));
            }
            if !is_busy(tasks, &member.id) && !plan.drop.is_empty() {
                tasks.push(Task::Drop(member.id.clone()));
                out.push(Output::Drop(config.clone(), member.clone(), std::mem::take(&mut plan.drop)));
            }
            if !is_busy(tasks, &member.id) && !plan.close.is_empty() {
                let (identity, closure) = plan.close.remove(0);
                tasks.push(Task::Close(member.id.clone(), identity.segment));
                out.push(Output::Close(config.clone(), member.clone(), identity, closure));
            }
        }
        if tasks.iter().any(|task| !matches!(task, Task::Install(..))) {
            return;
        }
        for (member, plan) in plans.iter_mut() {
            if !is_busy(tasks, &member.id) && !plan.install.is_empty() {
                let (identity, closure) = plan.install.remove(0);
                let known = reference.segments.iter().find(|s| s.identity.segment == identity.segment);
                let holders = known.map(|segment| segment.holders.clone()).unwrap_or_default();
                tasks.push(Task::Install(member.id.clone(), identity.segment));
                out.push(Output::Install(config.clone(), member.clone(), identity, closure, holders));
            }
        }
    }
}

/// The state of a promotion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promotion {
    me: PrimaryRef,
    rules: Rules,
    /// The log's identity, for a new group.
    new_log: LogId,
    /// The claim to use next.
    next_claim: Claim,
    state: State,
    /// When a swap of unknown outcome is sent again.
    swap_again: Option<Time>,
    /// Since when the config store has not answered what it was asked.
    unanswered_since: Option<Time>,
    /// The epoch that this candidate last claimed; a later one of another claimant means that the race is lost.
    claimed: Option<Epoch>,
    /// What members have said last, of those that refused this candidate because of an epoch that the store does not have.
    words: BTreeMap<MemberId, Word>,
    /// Epochs up to here are skipped: members have promised them, and an administrator has accepted a store without them.
    skipped: Epoch,
    /// There was no configuration yet: this candidate races for a new group. Once another sidecar has created one, the race is
    /// lost, and a standby judges whether its primary is alive.
    founding: bool,
    /// Members that were fenced and could not be repaired. They are left out of the set as long as enough others remain: each
    /// of those holds everything that was acknowledged.
    unfit: BTreeSet<MemberId>,
    /// Members that have shown, after the others were fenced, that more was acknowledged than those hold. The promotion has started
    /// again for each of them, once.
    late: BTreeSet<MemberId>,
}

/// True where another claimant has taken this candidate's place, by what the config store has now.
fn is_beaten(mine: &Configuration, found: &Configuration) -> bool {
    found.epoch > mine.epoch || found.epoch == mine.epoch && found.claim != mine.claim
}

impl Promotion {
    /// Starts a promotion. `new_log` names the log if there is none yet; `seed` generates the claims. Both are drawn at random
    /// for each promotion.
    pub fn start(me: PrimaryRef, rules: Rules, new_log: LogId, seed: u64, out: &mut Vec<Output>) -> Promotion {
        out.push(Output::ReadConfig);
        let (state, next_claim, unfit, late) = (State::Reading, Claim(seed), BTreeSet::new(), BTreeSet::new());
        let (swap_again, claimed, founding) = (None, None, false);
        let (words, skipped) = (BTreeMap::new(), Epoch(0));
        let unanswered_since = None;
        Promotion {
            me,
            rules,
            new_log,
            next_claim,
            state,
            swap_again,
            unanswered_since,
            claimed,
            words,
            skipped,
            founding,
            unfit,
            late,
        }
    }

    /// The caller has seen no configuration. If there is one by now, the race for the new group is lost.
    pub fn expect_to_found(&mut self) {
        self.founding = true;
    }

    /// Takes one input; appends to `out` what to do. Answers to requests of an earlier attempt are ignored.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match &input {
            Input::Read(Ok(_)) => self.unanswered_since = None,
            Input::Swapped(outcome) if *outcome != SwapOutcome::Unknown => self.unanswered_since = None,
            _ => {}
        }
        let before = out.len();
        self.take(now, input, out);
        if out[before..].iter().any(|output| matches!(output, Output::ReadConfig | Output::Swap(_))) {
            self.unanswered_since.get_or_insert(now);
        }
    }

    fn take(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Read(result) => self.on_read(now, result, out),
            Input::Surveyed(found) => self.on_surveyed(now, found, out),
            Input::Swapped(outcome) => self.on_swapped(now, outcome, out),
            Input::Fenced(epoch, member, result) => self.on_fenced(now, epoch, member, result, out),
            Input::Repaired(epoch, task, result) => self.on_repaired(now, epoch, &task, result, out),
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// True if too few members, or the config store, have not answered this candidate for too long: it may be cut off, and a
    /// standby that reaches them must not take it for a primary that is well. It goes on trying.
    pub fn is_cut_off(&self, now: Time) -> bool {
        let is_too_long = |since: Time| now >= since.plus(DISK_PATIENCE * self.rules.fence_wait_ms);
        self.unanswered_since.is_some_and(is_too_long) || self.misses_members(now)
    }

    fn misses_members(&self, now: Time) -> bool {
        let State::Fencing(fencing) = &self.state else { return false };
        let needed = if self.rules.recover_from_disk.is_some() { 1 } else { self.needed() };
        let needed = needed.min(fencing.config.members.len());
        let patience_over = now >= fencing.since.plus(DISK_PATIENCE * self.rules.fence_wait_ms);
        patience_over && fencing.reached() < needed
    }

    fn on_read(&mut self, now: Time, result: Result<Option<Configuration>, String>, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Reading => {}
            State::Fencing(fencing) => {
                fencing.comparing = false;
                let config = fencing.config.clone();
                return self.compare(now, &config, result, out);
            }
            // Because of a late word.
            State::Repairing(Repairing { recovered, .. }) => {
                if let Ok(Some(found)) = result
                    && is_beaten(&recovered.config, &found)
                {
                    self.lose(found.epoch, out);
                }
                return;
            }
            _ => return,
        }
        match result {
            Err(why) => self.wait(now, Waiting::ConfigStore(why), out),
            Ok(None) => {
                self.founding = true;
                self.state = State::Surveying(Survey { since: now, retry_at: None });
                out.push(Output::Survey(None));
            }
            Ok(Some(found)) => {
                let beaten = self.claimed.is_some_and(|claimed| found.epoch > claimed);
                if (beaten || self.founding) && found.primary != self.me {
                    return self.lose(found.epoch, out);
                }
                let claim = self.draw_claim();
                let mut proposed = found.claimed_by(self.me.clone(), claim);
                // Skips every promised epoch, and with it every claim.
                if self.skipped >= proposed.epoch {
                    (proposed.epoch, proposed.earlier) = (self.skipped.next().next(), Vec::new());
                }
                self.swap(Some(&found), proposed, out);
            }
        }
    }

    /// A member of the set that is being fenced has given its word. Every epoch that a member promises was in the config store
    /// before: either the store has it now, and another sidecar leads or will, or the store has gone back, and its set may be an
    /// old one, or the word is false. As long as it stands, the promotion waits.
    fn compare(
        &mut self,
        now: Time,
        mine: &Configuration,
        result: Result<Option<Configuration>, String>,
        out: &mut Vec<Output>,
    ) {
        let word = self.standing_word(now);
        match (result, word) {
            (Err(why), _) => out.push(Output::Waiting(Waiting::ConfigStore(why))),
            (Ok(Some(found)), _) if is_beaten(mine, &found) => self.lose(found.epoch, out),
            (Ok(Some(found)), Some((member, promised))) if found.epoch == mine.epoch => {
                out.push(Output::Waiting(Waiting::StoreIsOlder { epoch: found.epoch, member, promised }));
            }
            (Ok(Some(found)), _) if found.epoch == mine.epoch => {}
            (Ok(_), _) => self.pause(now),
        }
    }

    /// Notes a member's word. False if no backup can have reason to give it.
    fn note_word(&mut self, now: Time, mine: Epoch, member: &MemberId, failure: &Failure) -> bool {
        let (promised, possible) = match failure {
            Failure::Superseded(promised) => (*promised, *promised > mine && promised.0 - mine.0 <= EPOCH_JUMP_MAX),
            Failure::ClaimedBefore(promised) => (*promised, *promised <= mine),
            Failure::Unreachable(_) => return false,
        };
        if possible {
            self.words.insert(member.clone(), Word { promised, heard: now });
        }
        possible
    }

    /// A member that stands by its word, and the latest epoch that any member names. A word that is not repeated for as long as
    /// a host may need to come back counts no more than that of a member that was silent all the time.
    fn standing_word(&mut self, now: Time) -> Option<(MemberId, Epoch)> {
        let patience = DISK_PATIENCE * self.rules.fence_wait_ms;
        self.words.retain(|_, word| now < word.heard.plus(patience) || planted::has(Bug::WordIsLatched));
        let latest = self.words.iter().max_by_key(|(_, word)| word.promised);
        latest.map(|(member, word)| (member.clone(), word.promised))
    }

    /// Starts again at once, and claims an epoch beyond these.
    fn skip(&mut self, promised: Epoch, out: &mut Vec<Output>) {
        self.skipped = self.skipped.max(promised);
        self.words.clear();
        self.state = State::Reading;
        out.push(Output::ReadConfig);
    }

    fn on_surveyed(&mut self, now: Time, found: Vec<(MemberRef, Inventory)>, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Surveying(Survey { since, .. }) => {
                let since = *since;
                self.found(now, since, &found, out);
            }
            State::Fencing(fencing) if fencing.surveying => {
                fencing.surveying = false;
                fencing.take_others(found.into_iter().map(|(_, inventory)| inventory));
                self.choose(now, out);
            }
            _ => {}
        }
    }

    /// Founds a new group: its first members are backups that have never belonged to a log.
    fn found(&mut self, now: Time, since: Time, found: &[(MemberRef, Inventory)], out: &mut Vec<Output>) {
        if let Some((member, log)) = found.iter().find_map(|(member, i)| Some((member, i.log?))) {
            return self.wait(now, Waiting::StoreForgot { member: member.id.clone(), log }, out);
        }
        let patient = now < since.plus(self.rules.fence_wait_ms);
        let needed = if patient { self.rules.backups } else { self.needed() as u8 };
        if found.len() < usize::from(needed) {
            if !patient {
                return self.wait(now, Waiting::Backups { empty: found.len() as u8, needed }, out);
            }
            // The backups of a new group start one after the other.
            self.state = State::Surveying(Survey { since, retry_at: Some(now.plus(self.rules.retry_ms)) });
            return;
        }
        let wanted = usize::from(self.rules.backups).min(MEMBERS_MAX);
        let proposed = Configuration {
            log: self.new_log,
            epoch: Epoch(1),
            claim: self.draw_claim(),
            earlier: Vec::new(),
            won: Epoch(0),
            cuts: Vec::new(),
            version: Version(1),
            primary: self.me.clone(),
            members: found.iter().map(|(member, _)| member.clone()).take(wanted).collect(),
        };
        self.swap(None, proposed, out);
    }

    fn draw_claim(&mut self) -> Claim {
        let next = Claim(self.next_claim.0.wrapping_add(1));
        std::mem::replace(&mut self.next_claim, next)
    }

    fn swap(&mut self, found: Option<&Configuration>, proposed: Configuration, out: &mut Vec<Output>) {
        let swap = Swap { expected: found.map(Configuration::stamp), proposed };
        self.state = State::Claiming(swap.clone());
        out.push(Output::Swap(swap));
    }

    fn on_swapped(&mut self, now: Time, outcome: SwapOutcome, out: &mut Vec<Output>) {
        let swap = match &self.state {
            State::Claiming(swap) | State::Winning(_, swap) => swap.clone(),
            _ => return,
        };
        match outcome.settle(&swap.proposed) {
            SwapOutcome::Unknown => {
                self.swap_again = Some(now.plus(self.rules.retry_ms));
                self.on_tick(now, out);
            }
            SwapOutcome::Conflict(Some(found)) if found.epoch >= swap.proposed.epoch => self.lose(found.epoch, out),
            SwapOutcome::Conflict(_) => self.pause(now),
            SwapOutcome::Applied => match std::mem::replace(&mut self.state, State::Over) {
                State::Winning(recovered, swap) => out.push(Output::Won(swap.proposed, recovered.reference)),
                _ => self.fence(now, swap.proposed, out),
            },
        }
    }

    fn fence(&mut self, now: Time, config: Configuration, out: &mut Vec<Output>) {
        self.claimed = Some(config.epoch);
        out.extend(config.members.iter().map(|member| Output::Fence(config.clone(), member.clone())));
        let retry_at = now.plus(self.rules.retry_ms);
        self.state = State::Fencing(Fencing {
            config,
            since: now,
            retry_at,
            answers: BTreeMap::new(),
            from_disk: BTreeMap::new(),
            damage: None,
            surveying: false,
            comparing: false,
            look_at: now,
            others: Vec::new(),
        });
    }

    fn on_fenced(
        &mut self,
        now: Time,
        epoch: Epoch,
        member: MemberId,
        result: Result<Inventory, Failure>,
        out: &mut Vec<Output>,
    ) {
        if matches!(self.state, State::Repairing(_)) {
            return self.on_fenced_late(epoch, &member, result, now, out);
        }
        let State::Fencing(fencing) = &mut self.state else { return };
        let Some(known) = fencing.config.member(&member).filter(|_| fencing.config.epoch == epoch) else { return };
        let answer = match result {
            Err(Failure::Unreachable(why)) => Err(Absence::Silent(why)),
            Err(failure) => return self.on_refused(now, epoch, member, &failure, out),
            // It has come back with other memory, so it may lack acknowledged records.
            Ok(inventory) if inventory.boot != known.boot && !planted::has(Bug::StrangerTrusted) => {
                let was_member = inventory.former.contains(&known.boot) && inventory.log == Some(fencing.config.log);
                let synced = inventory.synced.map_or(Lsn(0), |synced| synced.last);
                if was_member && self.rules.recover_from_disk.is_some_and(|order| order.is_for(&fencing.config)) {
                    fencing.from_disk.insert(member.clone(), inventory);
                }
                Err(Absence::Reborn(was_member.then_some(synced)))
            }
            Ok(inventory) => Ok(inventory),
        };
        // It has promised this epoch, so it had promised no later one.
        if answer.is_ok() && !planted::has(Bug::WordIsLatched) {
            self.words.remove(&member);
        }
        fencing.answers.insert(member, answer);
        fencing.damage = None;
        self.choose(now, out);
    }

    /// A member of the set has promised an epoch to another claimant, or says so: the config store tells which.
    fn on_refused(&mut self, now: Time, mine: Epoch, member: MemberId, failure: &Failure, out: &mut Vec<Output>) {
        let possible = self.note_word(now, mine, &member, failure);
        let promised = self.words.get(&member).map(|word| word.promised).filter(|_| possible);
        let State::Fencing(fencing) = &mut self.state else { return };
        let accepted = self.rules.accept_loss.is_some_and(|accepted| accepted.is_for(&fencing.config));
        let answer = match promised {
            Some(promised) => Absence::Promised(promised),
            None => Absence::Silent(format!("it refuses epoch {mine}, and what it says of others cannot be true")),
        };
        fencing.answers.insert(member, Err(answer));
        match promised {
            Some(promised) if accepted => self.skip(promised.max(mine), out),
            Some(_) if std::mem::replace(&mut fencing.comparing, true) => {}
            Some(_) => out.push(Output::ReadConfig),
            None => self.choose(now, out),
        }
    }

    /// A member of the set was fenced late, while the others are being repaired. It stays in the set if it holds the log in
    /// time, as any member does. If it holds evidence of more than was recovered, the promotion starts again, once, and waits for
    /// it. A refusal only has the config store read: had the member been silent, nobody would have waited for it either. So one
    /// that lies, always too late, does not keep the others from going on.
    fn on_fenced_late(
        &mut self,
        epoch: Epoch,
        member: &MemberId,
        result: Result<Inventory, Failure>,
        now: Time,
        out: &mut Vec<Output>,
    ) {
        let accepted = self.rules.accept_loss;
        let State::Repairing(Repairing { recovered, .. }) = &mut self.state else { return };
        let Recovered { config, fenced, reference, plans, .. } = recovered;
        let known = config.member(member).filter(|known| config.epoch == epoch && !fenced.contains(known)).cloned();
        let (known, inventory) = match (known, result) {
            (Some(known), Ok(inventory)) => (known, inventory),
            (Some(_), Err(Failure::Superseded(_) | Failure::ClaimedBefore(_))) => return out.push(Output::ReadConfig),
            _ => return,
        };
        if inventory.boot != known.boot || self.unfit.contains(member) {
            return;
        }
        let short = accepted.is_none_or(|accepted| !accepted.is_for(config))
            && inventory.copies.iter().any(|copy| reference.falls_short_of(copy));
        if short {
            if self.late.insert(known.id) {
                self.pause(now);
            }
            return;
        }
        reference.synced = reference.synced.min(reference.synced_at(&inventory));
        plans.push((known.clone(), reference.plan_for(&inventory)));
        fenced.push(known);
        self.go_on_repairing(out);
    }

    /// Continues once every member is fenced, or enough are and the patience has run out. Unfit members count as not fenced,
    /// unless the others are too few or lack a part of the log: then all members count again.
    ///
    /// Only witnesses can tell where the log ends. As long as another member may still answer, as many witnesses are needed as
    /// members must be fenced. Once every member has answered, one is enough: each holds everything that was acknowledged.
    fn choose(&mut self, now: Time, out: &mut Vec<Output>) {
        let needed = self.needed();
        if self.standing_word(now).is_some() {
            return;
        }
        let State::Fencing(fencing) = &mut self.state else { return };
        let needed = needed.min(fencing.config.members.len());
        let is_late = |member: &MemberRef| self.late.contains(&member.id) && !fencing.has_reported(member);
        let patience = if fencing.config.members.iter().any(is_late) { DISK_PATIENCE } else { 1 };
        let patience_over = now >= fencing.since.plus(patience * self.rules.fence_wait_ms);
        let accepted = self.rules.accept_loss.filter(|accepted| accepted.is_for(&fencing.config));
        let enough = |unfit: &BTreeSet<MemberId>| {
            let fenced = fencing.fenced_without(unfit);
            let witnesses = fenced.iter().filter(|inventory| inventory.witness).count();
            let end_is_known = match accepted {
                Some(_) => true,
                None if fencing.nobody_is_missing() => witnesses >= 1,
                None => witnesses >= needed,
            };
            fenced.len() >= needed && end_is_known && (patience_over || fencing.has_all_without(unfit))
        };
        if !enough(&self.unfit) {
            if !enough(&BTreeSet::new()) {
                let late = now >= fencing.since.plus(DISK_PATIENCE * self.rules.fence_wait_ms);
                let all_known = fencing.nobody_is_missing() && patience_over;
                if (all_known || late) && !fencing.from_disk.is_empty() {
                    self.choose_from_disk(now, out);
                }
                return;
            }
            self.unfit.clear();
        }
        let fenced = fencing.fenced_without(&self.unfit);
        let assembled = match accepted {
            Some(accepted) => Reference::assemble_at_least(fenced.iter().copied(), &fencing.others, accepted.last),
            None => Reference::assemble(fenced.iter().copied(), &fencing.others),
        };
        let reference = match assembled {
            Ok(reference) => reference,
            Err(_) if !self.unfit.is_empty() => {
                self.unfit.clear();
                return self.choose(now, out);
            }
            Err(damage) => {
                if let Some(odd) = fencing.odd_one_out(&damage, needed) {
                    self.unfit.insert(odd);
                    return self.choose(now, out);
                }
                // Keep asking all members, even those that have answered: an administrator may restore what one of them has lost.
                return fencing.damage = Some(damage);
            }
        };
        let by_order = accepted.map(|accepted| Order::AcceptLoss(accepted.last));
        let recovered = Recovered::new(&fencing.config, reference, &fenced, by_order);
        self.repair(now, recovered, out);
    }

    /// Too few members have their memory, and an administrator has ordered that the disks of those that have lost it count. One
    /// member is enough: every member of the last set holds on its disk what was ever synced. The log must reach that.
    fn choose_from_disk(&mut self, now: Time, out: &mut Vec<Output>) {
        let State::Fencing(fencing) = &mut self.state else { return };
        let all: Vec<&Inventory> = fencing.answers.values().flatten().chain(fencing.from_disk.values()).collect();
        let fit: Vec<&Inventory> = all.iter().copied().filter(|one| !self.unfit.contains(&one.member)).collect();
        let fenced = if fit.is_empty() { all } else { fit };
        let synced = fenced.iter().filter_map(|inventory| inventory.synced).max().map_or(Lsn(0), |synced| synced.last);
        let accepted = self.rules.accept_loss.filter(|accepted| accepted.is_for(&fencing.config));
        let least = accepted.map_or(synced, |accepted| accepted.last);
        match Reference::assemble_at_least(fenced.iter().copied(), &fencing.others, least) {
            Ok(reference) => {
                let by_order = accepted.map_or(Order::FromDisk, |accepted| Order::AcceptLoss(accepted.last));
                let recovered = Recovered::new(&fencing.config, reference, &fenced, Some(by_order));
                self.repair(now, recovered, out);
            }
            Err(_) if !self.unfit.is_empty() => self.unfit.clear(),
            Err(_) if synced > Lsn(0) && accepted.is_none() => fencing.damage = Some(Damage::Unsynced { synced }),
            Err(damage) => fencing.damage = Some(damage),
        }
    }

    fn repair(&mut self, now: Time, recovered: Recovered, out: &mut Vec<Output>) {
        self.state = State::Repairing(Repairing { recovered, tasks: Vec::new(), progress: now });
        self.go_on_repairing(out);
    }

    fn on_repaired(
        &mut self,
        now: Time,
        epoch: Epoch,
        task: &Task,
        result: Result<(), Failure>,
        out: &mut Vec<Output>,
    ) {
        let State::Repairing(repairing) = &mut self.state else { return };
        if repairing.recovered.config.epoch != epoch {
            return;
        }
        match result {
            Ok(()) => {
                repairing.tasks.retain(|waiting| waiting != task);
                repairing.progress = now;
                self.go_on_repairing(out);
            }
            Err(failure) => {
                let is_word = self.note_word(now, epoch, task.member(), &failure);
                self.try_without([task.member().clone()], now);
                // Another sidecar may lead by now: there is nothing to wait for.
                if is_word {
                    self.state = State::Reading;
                    out.push(Output::ReadConfig);
                }
            }
        }
    }

    /// These members answer but cannot be repaired: start again, without them if enough others remain.
    fn try_without(&mut self, unfit: impl IntoIterator<Item = MemberId>, now: Time) {
        self.unfit.extend(unfit);
        self.pause(now);
    }

    /// Starts the next tasks of all members. After the last one the config store learns of the win, and of the set that holds the log;
    /// then it is won.
    fn go_on_repairing(&mut self, out: &mut Vec<Output>) {
        let State::Repairing(Repairing { recovered, tasks, .. }) = &mut self.state else { return };
        recovered.hand_out(tasks, out);
        if !tasks.is_empty() && !planted::has(Bug::TailExposedEarly) {
            return;
        }
        let State::Repairing(Repairing { recovered, .. }) = std::mem::replace(&mut self.state, State::Over) else {
            return;
        };
        let proposed = recovered.won();
        if planted::has(Bug::ShrinkAssumed) {
            return out.push(Output::Won(proposed, recovered.reference));
        }
        let swap = Swap { expected: Some(recovered.config.stamp()), proposed };
        out.push(Output::Swap(swap.clone()));
        self.state = State::Winning(recovered, swap);
    }

    fn on_tick(&mut self, now: Time, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Claiming(swap) | State::Winning(_, swap) if self.swap_again.take_if(|at| now >= *at).is_some() => {
                out.push(Output::Swap(swap.clone()));
            }
            State::Pausing(until) if now >= *until => {
                self.state = State::Reading;
                out.push(Output::ReadConfig);
            }
            State::Surveying(survey) if survey.retry_at.is_some_and(|retry_at| now >= retry_at) => {
                survey.retry_at = None;
                out.push(Output::Survey(None));
            }
            State::Fencing(fencing) if now >= fencing.retry_at => {
                fencing.retry_at = now.plus(self.rules.retry_ms);
                if let Some(damage) = &fencing.damage {
                    out.push(Output::Waiting(Waiting::Damage(damage.clone())));
                    if let Damage::Missing { segment, .. } = damage
                        && !std::mem::replace(&mut fencing.surveying, true)
                    {
                        out.push(Output::Survey(Some(SegmentId(segment.0.saturating_sub(1)))));
                    }
                }
                let damaged = fencing.damage.is_some();
                let failed = |member: &&MemberRef| match fencing.answers.get(&member.id) {
                    Some(Ok(_)) => damaged,
                    Some(Err(_)) => true,
                    None => false,
                };
                let again: Vec<MemberRef> = fencing.config.members.iter().filter(failed).cloned().collect();
                for member in again {
                    out.push(Output::Fence(fencing.config.clone(), member));
                }
                self.choose(now, out);
                self.report_missing(now, out);
                self.look_for_a_successor(now, out);
            }
            State::Fencing(fencing) if fencing.damage.is_none() => self.choose(now, out),
            State::Repairing(repairing) if now >= repairing.progress.plus(self.rules.repair_timeout_ms) => {
                let stuck: Vec<MemberId> = repairing.tasks.iter().map(|task| task.member().clone()).collect();
                self.try_without(stuck, now);
            }
            _ => {}
        }
    }

    /// Another sidecar may have claimed a later epoch, and the members that know of it are out of reach.
    fn look_for_a_successor(&mut self, now: Time, out: &mut Vec<Output>) {
        let misses_members = self.misses_members(now);
        let State::Fencing(fencing) = &mut self.state else { return };
        if misses_members && now >= fencing.look_at && !std::mem::replace(&mut fencing.comparing, true) {
            fencing.look_at = now.plus(DISK_PATIENCE * self.rules.fence_wait_ms);
            out.push(Output::ReadConfig);
        }
    }

    fn report_missing(&mut self, now: Time, out: &mut Vec<Output>) {
        let State::Fencing(fencing) = &self.state else { return };
        let waits = now < fencing.since.plus(self.rules.fence_wait_ms);
        if waits || fencing.damage.is_some() || !self.words.is_empty() {
            return;
        }
        let needed = self.needed().min(fencing.config.members.len());
        let fenced: Vec<&Inventory> = fencing.answers.values().flatten().collect();
        let missing = fencing.config.members.iter().filter_map(|member| match fencing.answers.get(&member.id) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("{} ({why})", member.id)),
            None => Some(format!("{} (no answer yet)", member.id)),
        });
        let missing = missing.collect::<Vec<_>>().join(", ");
        let damaged = fenced.iter().filter(|inventory| !inventory.witness);
        let damaged: Vec<String> =
            damaged.map(|inventory| format!("{} ({})", inventory.member, inventory.damage.join("; "))).collect();
        let why = if fenced.len() < needed {
            Waiting::Members { fenced: fenced.len() as u8, needed: needed as u8, missing }
        } else if damaged.is_empty() {
            return;
        } else {
            let witnesses = (fenced.len() - damaged.len()) as u8;
            Waiting::Witnesses { witnesses, needed: needed as u8, damaged: damaged.join(", "), missing }
        };
        out.push(Output::Waiting(why));
    }

    /// Members that must be fenced.
    fn needed(&self) -> usize {
        usize::from(self.rules.min_in_sync.max(1))
    }

    fn wait(&mut self, now: Time, why: Waiting, out: &mut Vec<Output>) {
        out.push(Output::Waiting(why));
        self.pause(now);
    }

    /// Back to the start, after a pause.
    fn pause(&mut self, now: Time) {
        self.state = State::Pausing(now.plus(self.rules.retry_ms));
    }

    fn lose(&mut self, epoch: Epoch, out: &mut Vec<Output>) {
        self.state = State::Over;
        out.push(Output::Lost(epoch));
    }
}
