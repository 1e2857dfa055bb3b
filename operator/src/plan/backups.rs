//! Which backup pods to make and which to remove. The heart of the operator, and the part that could lose a log.
//!
//! Called by [`plan`](super) with what [`backup_pod`](super::backup_pod) has read.
//!
//! 1. What has failed and is in no set goes, and another takes its place; each failure in a row waits longer.
//! 2. Working backups that are to leave (the node is being emptied, the template is old, there are too many) leave one at a
//!    time. A member leaves only when more members than wanted are in the set, for which one more pod is made first where a
//!    node is free. Where none is, one of an old template leaves when the others are all in the set and enough for appends to
//!    continue; and one whose node is to be emptied stays until it is evicted, which the budget allows.
//! 3. What is missing is made. A member whose pod or node is dead counts as missing, and stays until the set has let it go.
//!
//! A pod is removed only with a [`Licence`](super::licence::Licence): the proof that it does not hold what nobody else does. What
//! becomes of the members' disks is decided in [`claims`].

mod claims;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tailwind_crds::OnCordon;

use super::backup_pod::{BackupPod, Health, Leave, PodFailure};
use super::count::Count;
use super::group_state::GroupState;
use super::licence::{claim_licence, is_any_damaged, is_any_quarantined, is_damaged, licence, proves};
use super::placement::{Survey, survey};
use super::removal::{Advice, Removal, RemovalReason, Replacement};
use super::rollout::Rollout;
use crate::objects::claim::ClaimEnd;
use crate::objects::disruption::Exit;
use crate::objects::flush;
use crate::objects::pod::{Creation, backup};
use crate::observed::{Observed, has_ended};
use crate::planted::{self, Bug};

/// Most members that a log has: seven, and one more while a backup moves.
const MEMBERS_MAX: u8 = 8;
/// The wait after a second failure in a row; it doubles with each.
const BACKOFF_FIRST: SignedDuration = SignedDuration::from_secs(10);
/// The longest wait.
const BACKOFF_MAX: SignedDuration = SignedDuration::from_mins(5);

/// What is to be done about backup pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackupPlan {
    /// Each after its claim, where the group's backups have claims.
    pub(crate) creations: Vec<Creation>,
    pub(crate) removals: Vec<Removal>,
    /// Copies that the primary shall recruit up to.
    pub(crate) members_wanted: u8,
    /// The pod that is replaced, or should be and cannot.
    pub(crate) replacement: Option<Replacement>,
    /// The member on a cordoned node that would move, were another node free.
    pub(crate) stays: Option<Replacement>,
    /// Where another backup could go.
    pub(crate) survey: Survey,
    /// Pods without a node, those to be made included.
    pub(crate) unplaced: usize,
    /// When a pod that failed may be replaced, if not yet.
    pub(crate) retry_at: Option<Timestamp>,
    /// How a backup would leave now.
    pub(crate) exit: Exit,
    /// How far the replacement of outdated backups is.
    pub(crate) rollout: Rollout,
}

pub(crate) fn decide(state: &GroupState<'_>) -> BackupPlan {
    let mut planner = Planner::new(state);
    let waits = match (asked_to_hibernate(state), planner.hibernation()) {
        (None, _) => None,
        (Some(0), Ok(hibernates)) => return hibernates,
        (Some(app), Ok(_)) => Some(Replacement::HibernatesAfter(Count(app, "pod"))),
        (Some(0), Err((pod, withheld))) => Some(Replacement::Kept(pod, withheld)),
        // Meanwhile those without claims are replaced.
        (Some(_), Err(_)) => None,
    };
    planner.remove_failed();
    planner.remove_one();
    planner.create_missing();
    planner.remove_claims();
    planner.plan.exit = planner.exit();
    planner.plan.replacement = planner.plan.replacement.take().or(waits);
    planner.plan
}

/// Where a group is to hibernate, the pods of its app that it waits for.
fn asked_to_hibernate(state: &GroupState<'_>) -> Option<usize> {
    let app = state.observed.app.iter().filter(|pod| !has_ended(pod)).count();
    state.observed.group.spec.hibernate.then_some(app)
}

struct Planner<'a> {
    state: &'a GroupState<'a>,
    observed: &'a Observed,
    backups: &'a [BackupPod],
    /// The backups that work and are not removed in this round.
    alive: Vec<&'a BackupPod>,
    /// Failed ones whose turn to be replaced has not come; each keeps its place.
    held: usize,
    /// Pods on their way out whose claims stay: the next pods of their names take their places.
    returning: usize,
    /// Failed ones that may hold what nobody else does; others take their places, as many as there shall be in all.
    kept: usize,
    has_log: bool,
    has_primary: bool,
    wanted: usize,
    floor: usize,
    /// One more pod than wanted, for a member that leaves.
    surge: bool,
    /// Failures before each of the pods to be made, and nodes to keep off.
    attempts: Vec<u32>,
    avoid: BTreeSet<String>,
    plan: BackupPlan,
}

impl<'a> Planner<'a> {
    fn new(state: &'a GroupState<'_>) -> Planner<'a> {
        let (observed, spec) = (state.observed, &state.observed.group.spec);
        let takes_room = |backup: &&BackupPod| backup.is_alive() || backup.health == Health::Ending;
        let occupied: BTreeSet<&str> =
            state.backups.iter().filter(takes_room).filter_map(|backup| backup.node.as_deref()).collect();
        let sample = backup(&observed.group, &observed.settings, &Creation::default());
        let mut survey = survey(&sample, &observed.nodes, &occupied);
        let refused = |backup: &&BackupPod| backup.unschedulable.is_some();
        survey.refusal = state.alive().find(refused).and_then(BackupPod::refusal);
        // One of an older template may have asked for something else, and one that came back to its disk can go nowhere else.
        let is_like_another = |backup: &BackupPod| !backup.outdated && !backup.is_stuck();
        let unplaced = |backup: &BackupPod| backup.health == Health::Unplaced && is_like_another(backup);
        if state.alive().filter(refused).any(unplaced) {
            survey.overrule();
        }
        Planner {
            state,
            observed,
            backups: &state.backups,
            alive: state.alive().collect(),
            held: 0,
            returning: state.backups.iter().filter(|backup| claims::returns(observed, backup)).count(),
            kept: 0,
            has_log: observed.log().is_some(),
            has_primary: state.primary.is_here(),
            wanted: usize::from(spec.backups),
            floor: usize::from(spec.min_in_sync().max(1)),
            surge: false,
            attempts: Vec::new(),
            avoid: BTreeSet::new(),
            plan: BackupPlan { survey, members_wanted: spec.backups, ..BackupPlan::default() },
        }
    }

    /// Members whose pods work, and that do not report that something is missing.
    fn holders(&self) -> usize {
        self.alive.iter().filter(|backup| self.is_holder(backup)).count()
    }

    /// How many other backups hold the log.
    fn other_holders(&self, backup: &BackupPod) -> usize {
        self.holders() - usize::from(self.is_holder(backup))
    }

    /// How many backups prove that they hold the log, without this one.
    fn proved(&self, beside: Option<&BackupPod>) -> usize {
        let others = self.alive.iter().filter(|other| beside.is_none_or(|beside| other.name != beside.name));
        others.filter(|other| self.is_holder(other) && proves(self.observed, other)).count()
    }

    fn is_holder(&self, backup: &BackupPod) -> bool {
        backup.member && !backup.is_stuck() && !is_damaged(self.observed, backup)
    }

    /// Those that may join the set, once they have a node.
    fn spares(&self) -> impl Iterator<Item = &'a BackupPod> {
        self.alive.iter().copied().filter(|other| !other.member && !other.is_stuck())
    }

    /// A spare that has a node and should have joined the set by now, if no other is on its way.
    fn late_spare(&self) -> Option<&'a BackupPod> {
        let mut placed = self.spares().filter(|spare| spare.health != Health::Unplaced).peekable();
        let first = placed.peek().copied();
        // Before a member had to leave its node nobody was to join in its place.
        let wanted = self.alive.iter().filter_map(|backup| backup.leaves_since).max();
        first.filter(|_| placed.all(|spare| spare.is_late(self.observed.now, wanted)))
    }

    /// Whether a member should leave its node, and its successor does not join.
    fn is_drain_waiting(&self) -> bool {
        let leaves = |backup: &&BackupPod| backup.member && backup.leaves_node();
        self.late_spare().is_some() && self.alive.iter().any(leaves)
    }

    /// Pods that no node takes, although others may be taken: somebody else has to take their places.
    fn stuck(&self) -> usize {
        self.alive.iter().filter(|backup| backup.is_stuck()).count()
    }

    /// Whether a member has failed or is being deleted.
    fn has_leaving_member(&self) -> bool {
        self.backups.iter().any(|backup| backup.member && !backup.is_alive())
    }

    /// A pod that will leave room before long, since its kubelet can be reached and its end does not hang.
    fn ends_soon(&self, backup: &BackupPod) -> bool {
        let is_removed = self.plan.removals.iter().any(|removal| removal.name == backup.name);
        let is_heard = backup.node.as_deref().is_some_and(|node| self.observed.is_node_ready(node));
        (backup.ends_in_time(self.observed.now) || is_removed) && is_heard
    }

    /// True if it goes. Otherwise the plan says why it stays.
    fn remove(&mut self, backup: &BackupPod, reason: RemovalReason) -> bool {
        let claim = backup.claim.as_ref().filter(|claim| claim.is_kept());
        let failed = matches!(reason, RemovalReason::Failed(_));
        let mut licence = licence(self.state, backup, &self.plan.removals);
        // A backup that leaves leaves for good, with what is on its disk. One that keeps failing may do better with another
        // disk.
        if let (Some(claim), Ok(found)) = (claim, &licence)
            && !found.covers(claim)
        {
            match claim_licence(self.state, claim, &self.plan.removals) {
                Ok(better) => licence = Ok(better),
                Err(_) if failed => {}
                Err(withheld) => licence = Err(withheld),
            }
        }
        let licence = match licence {
            Ok(licence) => licence,
            Err(withheld) => {
                self.plan.replacement.get_or_insert(Replacement::Kept(backup.name.clone(), withheld));
                return false;
            }
        };
        self.alive.retain(|other| other.name != backup.name);
        let claim = claim.map(|claim| {
            let goes = licence.covers(claim) && !(failed && self.returns_to(claim, backup));
            self.returning += usize::from(!goes);
            if goes { self.end_of(claim, Some(backup)) } else { ClaimEnd::Keep { attempt: backup.attempt + 1 } }
                .of(claim)
        });
        let (name, pod) = (backup.name.clone(), Some(backup.uid.clone()));
        self.plan.removals.push(Removal { name, pod, claim, reason, after: Vec::new(), licence, stay: None });
        true
    }

    /// Removes what has failed and is in no set. What has failed in the set stays until the set has let it go: the primary
    /// decides about that, and the pod tells people why.
    fn remove_failed(&mut self) {
        for backup in self.backups {
            let Health::Failed { failure, since } = &backup.health else { continue };
            // A member whose files stay comes back with them.
            if backup.member && !(backup.ended && backup.leaves_files()) {
                continue;
            }
            // Nothing fails again on a node that is gone; and since when it is gone, nobody knows.
            let is_node_gone = matches!(failure, PodFailure::NodeGone(_));
            let turn = *since + if is_node_gone { SignedDuration::ZERO } else { backoff(backup.attempt) };
            if turn > self.observed.now {
                self.held += 1;
                let earliest = self.plan.retry_at.map_or(turn, |retry_at| retry_at.min(turn));
                self.plan.retry_at = Some(earliest);
                continue;
            }
            let returning = self.returning;
            if !self.remove(backup, RemovalReason::Failed(failure.clone())) {
                self.kept += 1;
                if self.kept > self.wanted {
                    self.held += 1;
                    continue;
                }
            }
            if matches!(failure, PodFailure::Refused(_)) || backup.attempt > 0 {
                self.avoid.extend(backup.node.clone());
            }
            if self.returning == returning {
                self.attempts.push(backup.attempt + 1);
            }
        }
    }

    /// Lets one leave that works: of members that shall leave first those whose nodes are about to go. A cordon is no drain: it
    /// moves a member only where that is easy.
    fn remove_one(&mut self) {
        self.remove_outsiders();
        let leaving = self.alive.iter().filter(|backup| backup.member);
        let leaving: Vec<_> = leaving.filter_map(|backup| Some((*backup, backup.leave.as_ref()?))).collect();
        let next = leaving
            .iter()
            .filter(|(backup, why)| !matches!(why, Leave::Cordoned(_)) || self.may_leave_cordoned(backup));
        match next.min_by_key(|(backup, why)| (!matches!(why, Leave::Drained(_)), &backup.name)) {
            Some((backup, why)) => self.replace(backup, why),
            None => {
                // Other conditions report everything else that keeps members on cordoned nodes.
                if self.has_primary && self.plan.survey.free.is_empty() {
                    let first = leaving.first();
                    self.plan.stays = first.map(|(backup, why)| self.no_node(backup, (*why).clone()));
                }
                self.shrink();
            }
        }
    }

    fn no_node(&self, member: &BackupPod, why: Leave) -> Replacement {
        let advice = match why {
            _ if self.floor >= self.wanted => self.advice(),
            Leave::Cordoned(_) if !is_any_damaged(self.state) => Advice::OrDrain,
            _ => Advice::AddNode,
        };
        let (pod, node) = (member.name.clone(), member.node_name());
        Replacement::NoNode { pod, node, why, advice, survey: self.plan.survey.clone() }
    }

    /// The advice for a member without which too few copies would be left.
    fn advice(&self) -> Advice {
        if self.floor > 1 { Advice::OrLowerMinInSync } else { Advice::AddNode }
    }

    /// All copies are proved, and there is a node for one more, or that one is there already. Where it is in the set, so are all
    /// copies without this one.
    fn may_leave_cordoned(&self, member: &BackupPod) -> bool {
        let is_drain = planted::has(Bug::CordonIsDrain);
        let free = !self.plan.survey.free.is_empty() || self.alive.len() > self.wanted || is_drain;
        let goes_now = self.other_holders(member) >= self.wanted && !is_drain;
        let beside = goes_now.then_some(member);
        self.has_primary && free && self.proved(beside) >= self.wanted && self.held == 0
    }

    /// Those outside the set hold nothing that is needed. Without a log all are outside; then ready ones leave one by one, so
    /// that an app that starts now finds backups.
    fn remove_outsiders(&mut self) {
        for backup in self.alive.clone() {
            let Some(why) = backup.leave.as_ref().filter(|_| !backup.member) else { continue };
            let others_ready = self.alive.iter().all(|other| other.ready || other.name == backup.name);
            let gently = !self.has_log && backup.ready && *why == Leave::Outdated;
            if gently && !(others_ready && self.plan.removals.is_empty() && self.alive.len() >= self.wanted) {
                continue;
            }
            if self.remove(backup, RemovalReason::Leaves(why.clone())) {
                self.plan.replacement = Some(Replacement::OutsideSet(backup.name.clone(), why.clone()));
            }
        }
    }

    /// A member that shall leave: another one first, where there is a node for it.
    fn replace(&mut self, member: &BackupPod, why: &Leave) {
        let replacement = self.next_step(member, why.clone());
        let (kept, reason) = match &replacement {
            Replacement::AfterSuccessor(..) => (true, Some(RemovalReason::Leaves(why.clone()))),
            // Without random bytes there is no name for one, and the next plan has some.
            Replacement::BeforeSuccessor(..) if self.observed.names.is_empty() => (false, None),
            Replacement::BeforeSuccessor(..) => (false, Some(RemovalReason::LeavesFirst(why.clone()))),
            Replacement::CreatesSuccessor(..) | Replacement::SuccessorCatchesUp(..) => (true, None),
            Replacement::AfterLeavingMember(..) | Replacement::NeverJoins(..) => (self.alive.len() > self.wanted, None),
            _ => (false, None),
        };
        match reason {
            None => self.surge = kept,
            Some(reason) => {
                self.plan.replacement = None;
                if !self.remove(member, reason) {
                    // Its successor stays as well.
                    self.surge = kept;
                    return;
                }
            }
        }
        self.plan.replacement = Some(replacement);
    }

    fn next_step(&self, member: &BackupPod, why: Leave) -> Replacement {
        let pod = member.name.clone();
        let node = member.node_name();
        if self.has_leaving_member() {
            return Replacement::AfterLeavingMember(pod, why);
        }
        if self.other_holders(member) >= self.wanted {
            return Replacement::AfterSuccessor(pod, why);
        }
        if !self.has_primary {
            return Replacement::NoPrimary { pod, node, why };
        }
        if let Some(late) = self.late_spare() {
            return Replacement::NeverJoins(pod, why, late.name.clone());
        }
        let spares: Vec<_> = self.spares().collect();
        if spares.iter().any(|spare| spare.health != Health::Unplaced) {
            return match self.alive.len() > self.wanted {
                true => Replacement::SuccessorCatchesUp(pod, why),
                false => Replacement::AfterOthersJoin(pod, why),
            };
        }
        // The next attempt of one that has failed comes on another node, if there is one.
        let is_next =
            |other: &BackupPod| matches!(other.health, Health::Failed { .. }) && !self.plan.survey.free.is_empty();
        if let Some(ending) = self.backups.iter().find(|other| self.ends_soon(other) && !is_next(other)) {
            return Replacement::AfterEndingPod(pod, why, ending.name.clone());
        }
        if spares.is_empty() && !self.plan.survey.free.is_empty() && self.held == 0 {
            return Replacement::CreatesSuccessor(pod, why);
        }
        // Nobody leaves first for a successor that does not start anyway.
        if self.held > 0 {
            return Replacement::AfterPause(pod, why);
        }
        if matches!(why, Leave::Drained(_) | Leave::Cordoned(_)) && !planted::has(Bug::CordonIsDrain) {
            return self.no_node(member, why);
        }
        // Whether they are whole, the licence asks.
        let members = self.alive.iter().filter(|backup| backup.member).count();
        let others_joined = members >= self.wanted;
        if members > self.floor && others_joined {
            return Replacement::BeforeSuccessor(pod, why);
        }
        let (floor, advice, survey) = (self.floor, self.advice(), self.plan.survey.clone());
        match others_joined {
            true => Replacement::TooFewCopies { pod, node, why, left: members - 1, floor, advice, survey },
            false => Replacement::OthersOutsideSet { pod, node, why, advice, survey },
        }
    }

    /// More than wanted, and nobody else on the move: a group that was made smaller, or a move that is no longer needed.
    fn shrink(&mut self) {
        // A stuck backup stays until others hold the log in its place.
        let spares_stuck = self.holders() < self.wanted;
        let stays = |backup: &BackupPod| backup.member || spares_stuck && backup.is_stuck();
        let outsiders = |backup: &&&BackupPod| !stays(backup);
        let spared = |planner: &Planner<'_>| if spares_stuck { planner.stuck() } else { 0 };
        while self.alive.len() - spared(self) > self.wanted {
            // Of those outside the set, the one that has come least far.
            let outsider = self.alive.iter().filter(outsiders).max_by_key(|backup| {
                (backup.health == Health::Unplaced, !backup.ready, backup.created, backup.name.clone())
            });
            let Some(outsider) = outsider.copied() else { break };
            if !self.remove(outsider, RemovalReason::Surplus) {
                break;
            }
        }
        if self.alive.len() <= self.wanted || self.has_leaving_member() {
            return;
        }
        let first = |backup: &&&BackupPod| (!self.is_holder(backup), self.crowd(backup), backup.created);
        let Some(surplus) = self.alive.iter().max_by_key(first).copied() else { return };
        // There is no hurry: none leaves before all others that shall stay have said what they hold.
        if self.proved(Some(surplus)) < self.wanted {
            return;
        }
        if self.remove(surplus, RemovalReason::Surplus) {
            self.plan.replacement = Some(Replacement::ScaledDown(surplus.name.clone(), self.wanted));
        }
    }

    /// How many share a zone with it: the rest shall be spread well.
    fn crowd(&self, backup: &BackupPod) -> usize {
        let zone = |backup: &BackupPod| {
            let node = self.observed.nodes.iter().find(|node| Some(&node.name) == backup.node.as_ref())?;
            node.labels.get("topology.kubernetes.io/zone")
        };
        let own = zone(backup);
        self.alive.iter().filter(|other| own.is_some() && zone(other) == own).count()
    }

    /// Makes what is missing.
    fn create_missing(&mut self) {
        let target = self.wanted + usize::from(self.surge);
        let replaced = if self.plan.survey.free.is_empty() { 0 } else { self.stuck() };
        let missing = target.saturating_sub(self.alive.len() - replaced + self.held + self.returning);
        let free = &self.plan.survey.free;
        let elsewhere = free.iter().any(|node| !self.avoid.contains(node));
        let avoid: Vec<String> = if elsewhere { self.avoid.iter().cloned().collect() } else { Vec::new() };
        let group = self.observed.group.name_any();
        let taken: BTreeSet<&str> = self.backups.iter().map(|backup| backup.name.as_str()).collect();
        let names = self.observed.names.iter().map(|suffix| format!("{group}-backup-{suffix}"));
        let names = names.filter(|name| !taken.contains(name.as_str()));
        // Members come back to their claims: those of the set in any case, since what they have may be needed.
        // A group that has no claims any more leaves those that are there alone.
        let claimed = flush::has_claim(&self.observed.group.spec);
        let kept = self.state.orphans.iter().filter(|claim| {
            claimed && claim.is_kept() && self.backups.iter().all(|backup| backup.name != claim.member)
        });
        let kept = kept.map(|claim| (claim.member.clone(), claim.attempt));
        let is_member = |(name, _): &(String, u32)| self.observed.log().is_some_and(|log| log.has_member(name));
        let (members, others): (Vec<_>, Vec<_>) = kept.partition(is_member);
        let missing = missing.max(members.len());
        let attempts = self.attempts.iter().copied().chain(std::iter::repeat(0));
        // A disk may be on the very node that others are kept off.
        let returning = members.into_iter().chain(others);
        let returning = returning.map(|(name, attempt)| Creation { name, avoid: Vec::new(), attempt });
        let fresh = names.zip(attempts).map(|(name, attempt)| Creation { name, avoid: avoid.clone(), attempt });
        self.plan.creations = returning.chain(fresh).take(missing).collect();
        // One that works is not given up for another that the API server does not take. What has failed is: it may be what
        // leaves no room in a quota.
        for removal in &mut self.plan.removals {
            let works = matches!(removal.reason, RemovalReason::Leaves(_) | RemovalReason::LeavesFirst(_));
            if works && !planted::has(Bug::LeavesUnreplaced) {
                removal.after = self.plan.creations.iter().map(|creation| creation.name.clone()).collect();
            }
        }

        self.plan.unplaced =
            self.plan.creations.len() + self.alive.iter().filter(|backup| backup.node.is_none()).count();
        // The successor of a leaving member is recruited while that member is still in the set.
        if self.surge || self.has_leaving_member() {
            self.plan.members_wanted = (self.plan.members_wanted + 1).min(MEMBERS_MAX);
        }
    }

    /// Whether a member leaves since others hold what it holds, or is ending. Until the disruption controller has noticed that, it
    /// counts the pod among those that are left.
    fn is_one_leaving(&self) -> bool {
        let leaves = |backup: &BackupPod| {
            let mut removals = self.plan.removals.iter().filter(|removal| !removal.licence.holders().is_empty());
            removals.any(|removal| removal.name == backup.name) || backup.ends_in_time(self.observed.now)
        };
        let counts = |backup: &&BackupPod| backup.member || backup.counted;
        self.backups.iter().filter(counts).any(leaves) && !planted::has(Bug::EvictsBesideRemoval)
    }

    /// A fenced group recruits nobody.
    fn exit(&self) -> Exit {
        let leaves_room = |backup: &&BackupPod| self.ends_soon(backup) && !backup.node_closed;
        let free = self.plan.survey.free.len() + self.backups.iter().filter(leaves_room).count();
        let unplaced = self.plan.unplaced;
        // Those that have a node, or find one: of more pods than nodes, some may be left without.
        let placeable = (self.alive.len() + self.plan.creations.len()).saturating_sub(unplaced.saturating_sub(free));
        // The only copy waits for somebody to fill a successor, where there is a node for one; fenced, it is not let go at all.
        let (is_fenced, is_only) = (self.observed.group.spec.fenced, self.wanted == 1);
        let is_led = self.has_primary && !is_fenced || is_only;
        // A pod too many that finds no node leaves the others as they are.
        let too_many = (self.alive.len() + self.plan.creations.len()).saturating_sub(self.wanted);
        // The drain of a cordoned node would wait for the operator without end.
        let all_stay = self.observed.group.spec.node_maintenance.on_cordon == OnCordon::Stay;
        let stays = |backup: &&BackupPod| all_stay && backup.node_closed && !backup.leaves_node();
        // While another one moves, its successor comes first; and a single backup is never let go for that.
        let moves = self.alive.iter().any(|backup| backup.member && backup.leaves_node());
        let tolerates = self.alive.iter().any(|backup| backup.member && backup.tolerates_node);
        let stays = tolerates && !moves && self.wanted > 1 || self.alive.iter().any(stays);
        match () {
            () if is_any_damaged(self.state) && !planted::has(Bug::EvictsBesideDamage) => Exit::Never,
            () if is_any_quarantined(self.state) && !planted::has(Bug::EvictsQuarantined) => Exit::Never,
            () if self.is_one_leaving() => Exit::Never,
            () if is_fenced && is_only => Exit::AfterSuccessor,
            () if stays => Exit::BeforeSuccessor,
            () if self.held > 0 => Exit::Alone,
            // Whoever drains a node does not wait without end for a successor that does not come.
            () if self.is_drain_waiting() => Exit::BeforeSuccessor,
            () if is_led && (placeable > self.wanted || free > unplaced) => Exit::AfterSuccessor,
            () if unplaced.saturating_sub(too_many) > free => Exit::Alone,
            () => Exit::BeforeSuccessor,
        }
    }
}

/// Nothing after a first failure: most have causes that are gone with the pod.
fn backoff(attempt: u32) -> SignedDuration {
    match attempt {
        0 => SignedDuration::ZERO,
        n => BACKOFF_FIRST.saturating_mul(1 << (n - 1).min(10)).min(BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_maximum() {
        let waits: Vec<i64> = [0, 1, 2, 5, 6, 100].map(|attempt| backoff(attempt).as_secs()).to_vec();
        assert_eq!(waits, [0, 10, 20, 160, 300, 300]);
    }
}
