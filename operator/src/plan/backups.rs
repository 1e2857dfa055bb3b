//! Which backup pods to make and which to remove. The heart of the operator, and the part that could lose a log.
//!
//! Called by [`plan`](super) with what [`backup_pod`](super::backup_pod) has read.
//!
//! 1. What has failed and is in no set goes, and another takes its place; each failure in a row waits longer.
//! 2. Whoever works and shall leave (its node is drained, its template is old, there are too many) leaves alone, one at a
//!    time. A member leaves only when more members than wanted are in the set, for which one more pod is made first where
//!    a node is free; or, where none is, when the others are all in the set and enough of them to go on.
//! 3. What is missing is made. A member whose pod or node is dead counts as missing, and stays until the set has let it go.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::backup_pod::{BackupPod, Health, Leave};
use super::objects::pod::{Creation, backup};
use super::placement::{Survey, survey};
use crate::observed::Observed;

/// Most members that a log has: seven, and one more while a backup moves.
const MEMBERS_MAX: u8 = 8;
/// The wait after a second failure in a row; it doubles with each.
const BACKOFF_FIRST: SignedDuration = SignedDuration::from_secs(10);
/// The longest wait.
const BACKOFF_MAX: SignedDuration = SignedDuration::from_mins(5);

/// What is to be done about backup pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Pods to make.
    pub creations: Vec<Creation>,
    /// Pods to remove.
    pub removals: Vec<Removal>,
    /// Copies that the primary shall recruit up to.
    pub members_wanted: u8,
    /// What is under way, if something is.
    pub moving: Option<String>,
    /// What should be done and cannot be, and why.
    pub waiting: Option<String>,
    /// Where another backup could go.
    pub survey: Survey,
    /// Pods without a node, those to be made included.
    pub unplaced: usize,
    /// When a pod that failed may be replaced, if not yet.
    pub retry_at: Option<Timestamp>,
    /// How a backup would leave now.
    pub exit: Exit,
}

/// How a backup leaves that has to, such as when its node is drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exit {
    /// Once its successor has its copy: there is a primary to fill one, and a node for it.
    AfterSuccessor,
    /// Its successor is filled afterwards.
    #[default]
    BeforeSuccessor,
    /// It may stay without a successor: there is no node for one, or backups that were made fail one after the other.
    Alone,
}

/// A pod to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Its name.
    pub name: String,
    /// Which of that name.
    pub uid: String,
    /// Why, for people.
    pub why: String,
}

/// Decides.
pub fn decide(observed: &Observed, backups: &[BackupPod], has_primary: bool) -> Decision {
    let mut planner = Planner::new(observed, backups, has_primary);
    planner.remove_failed();
    planner.remove_one();
    planner.create_missing();
    planner.decision.exit = planner.exit();
    planner.decision
}

struct Planner<'a> {
    observed: &'a Observed,
    backups: &'a [BackupPod],
    /// Those that work and are not told to leave in this round.
    alive: Vec<&'a BackupPod>,
    /// Failed ones whose turn to be replaced has not come; each keeps its place.
    held: usize,
    has_log: bool,
    has_primary: bool,
    wanted: usize,
    floor: usize,
    /// One more pod than wanted, for a member that leaves.
    surge: bool,
    /// Failures before each of the pods to be made, and nodes to keep off.
    attempts: Vec<u32>,
    avoid: BTreeSet<String>,
    decision: Decision,
}

impl<'a> Planner<'a> {
    fn new(observed: &'a Observed, backups: &'a [BackupPod], has_primary: bool) -> Planner<'a> {
        let spec = &observed.group.spec;
        let occupied: BTreeSet<&str> = backups
            .iter()
            .filter(|backup| backup.is_alive() || backup.health == Health::Ending)
            .filter_map(|backup| backup.node.as_deref())
            .collect();
        let sample =
            backup(&observed.group, &observed.settings, &Creation { name: String::new(), avoid: vec![], attempt: 0 });
        let survey = survey(&sample, &observed.nodes, &occupied);
        let log = observed.group.status.as_ref().and_then(|status| status.log.as_ref());
        Planner {
            observed,
            backups,
            alive: backups.iter().filter(|backup| backup.is_alive()).collect(),
            held: 0,
            has_log: log.is_some(),
            has_primary,
            wanted: usize::from(spec.backups),
            floor: usize::from(spec.min_in_sync().max(1)),
            surge: false,
            attempts: Vec::new(),
            avoid: BTreeSet::new(),
            decision: Decision { survey, members_wanted: spec.backups, ..Decision::default() },
        }
    }

    /// Members whose pods work: copies that are sure to be there.
    fn holders(&self) -> usize {
        self.alive.iter().filter(|backup| backup.member).count()
    }

    /// A member that is on its way out, by itself or told to.
    fn has_leaving_member(&self) -> bool {
        self.backups.iter().any(|backup| backup.member && !backup.is_alive())
    }

    /// A pod that will leave room before long, since its kubelet can be reached.
    fn ends_soon(&self, backup: &BackupPod) -> bool {
        let is_told = self.decision.removals.iter().any(|removal| removal.name == backup.name);
        let nodes = &self.observed.nodes;
        let is_ready = |name: &str| nodes.iter().any(|node| node.name == name && node.not_ready_since.is_none());
        (backup.health == Health::Ending || is_told) && backup.node.as_deref().is_some_and(is_ready)
    }

    fn remove(&mut self, backup: &BackupPod, why: String) {
        self.alive.retain(|other| other.name != backup.name);
        self.decision.removals.push(Removal { name: backup.name.clone(), uid: backup.uid.clone(), why });
    }

    /// Removes what has failed and is in no set. What has failed in the set stays until the set has let it go: the primary
    /// decides about that, and the pod tells people why.
    fn remove_failed(&mut self) {
        for backup in self.backups {
            let Health::Failed { why, since, refused } = &backup.health else { continue };
            if backup.member {
                continue;
            }
            let turn = *since + backoff(backup.attempt);
            if turn > self.observed.now {
                self.held += 1;
                let earliest = self.decision.retry_at.map_or(turn, |retry_at| retry_at.min(turn));
                self.decision.retry_at = Some(earliest);
                continue;
            }
            self.attempts.push(backup.attempt + 1);
            if *refused || backup.attempt > 0 {
                self.avoid.extend(backup.node.clone());
            }
            self.remove(backup, format!("it has failed: {why}"));
        }
    }

    /// Lets one leave that works.
    fn remove_one(&mut self) {
        self.remove_outsiders();
        let leaving = self.alive.iter().filter(|backup| backup.member && backup.leave.is_some());
        match leaving.min_by_key(|backup| (backup.leave, backup.name.clone())).copied() {
            Some(backup) => self.move_member(backup),
            None => self.shrink(),
        }
    }

    /// Those outside the set hold nothing that is needed. Without a log all are outside; then ready ones leave one by one, so
    /// that an app that starts now finds backups.
    fn remove_outsiders(&mut self) {
        let leaving: Vec<&BackupPod> =
            self.alive.iter().copied().filter(|backup| !backup.member && backup.leave.is_some()).collect();
        for backup in leaving {
            let others_ready = self.alive.iter().all(|other| other.ready || other.name == backup.name);
            let gently = !self.has_log && backup.ready && backup.leave == Some(Leave::Outdated);
            if gently && !(others_ready && self.decision.removals.is_empty() && self.alive.len() >= self.wanted) {
                continue;
            }
            self.remove(backup, reason_to_leave(backup));
            self.decision.moving = Some(format!("replacing {}, because {}", backup.name, reason_to_leave(backup)));
        }
    }

    /// A member that shall leave: another one first, where there is a node for it.
    fn move_member(&mut self, backup: &'a BackupPod) {
        let why = reason_to_leave(backup);
        let name = &backup.name;
        let node = backup.node.as_deref().unwrap_or("its node");
        let holders = self.holders();
        if self.has_leaving_member() {
            self.surge = self.alive.len() > self.wanted;
            self.decision.moving = Some(format!("{name} leaves next ({why}), when the set has let go the one before"));
            return;
        }
        if holders > self.wanted {
            self.remove(backup, why.clone());
            self.decision.moving = Some(format!("{name} leaves, because {why}; its successor is in the set"));
            return;
        }
        if !self.has_primary {
            self.decision.waiting = Some(format!(
                "{name} should leave {node}, because {why}, but there is no primary that could give its copy to another: start \
                 the app"
            ));
            return;
        }
        let spares: Vec<&&BackupPod> = self.alive.iter().filter(|other| !other.member).collect();
        if spares.iter().any(|spare| spare.health != Health::Unplaced) {
            self.surge = self.alive.len() > self.wanted;
            self.decision.moving = Some(match self.surge {
                true => format!("a successor of {name} is catching up ({why})"),
                false => format!("{name} leaves next ({why}), when the others are in the set"),
            });
            return;
        }
        if let Some(ending) = self.backups.iter().find(|other| self.ends_soon(other)).map(|other| &other.name) {
            self.decision.moving =
                Some(format!("{name} leaves next ({why}), when {ending} has ended and its node is free"));
            return;
        }
        if spares.is_empty() && !self.decision.survey.free.is_empty() && self.held == 0 {
            self.surge = true;
            self.decision.moving = Some(format!("making a successor of {name} ({why})"));
            return;
        }
        let others_in = holders >= self.wanted && spares.iter().all(|spare| spare.health == Health::Unplaced);
        if holders > self.floor && others_in {
            self.remove(backup, format!("{why}, and no other node can take a backup before it has gone"));
            self.decision.moving = Some(format!("{name} leaves first, because {why} and no other node is free"));
            return;
        }
        let copies = if others_in {
            format!("without it {} of minInSync {} copies would be left", holders - 1, self.floor)
        } else {
            "not every other backup is in the set".to_owned()
        };
        self.decision.waiting = Some(format!(
            "{name} should leave {node}, because {why}. No other node can take a backup and {copies}: free or add a node{}. {}",
            if self.floor > 1 { ", or lower minInSync" } else { "" },
            self.decision.survey.explain()
        ));
    }

    /// More than wanted, and nobody else on the move: a group that was made smaller, or a move that is no longer needed.
    fn shrink(&mut self) {
        let outsiders = |backup: &&&BackupPod| !backup.member;
        while self.alive.len() > self.wanted {
            // Of those that hold nothing the one that is least far; it is the youngest that is.
            let outsider = self.alive.iter().filter(outsiders).max_by_key(|backup| {
                (backup.health == Health::Unplaced, !backup.ready, backup.created, backup.name.clone())
            });
            let Some(outsider) = outsider.copied() else { break };
            self.remove(outsider, "there are more backups than spec.backups".to_owned());
        }
        let holders = self.holders();
        if self.alive.len() <= self.wanted || holders <= self.wanted || self.has_leaving_member() {
            return;
        }
        let Some(victim) = self.alive.iter().max_by_key(|backup| (self.crowd(backup), backup.created)).copied() else {
            return;
        };
        self.remove(victim, "there are more backups than spec.backups".to_owned());
        self.decision.moving = Some(format!("{} leaves, since spec.backups is {}", victim.name, self.wanted));
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
        let missing = target.saturating_sub(self.alive.len() + self.held);
        let free = &self.decision.survey.free;
        let elsewhere = free.iter().any(|node| !self.avoid.contains(node));
        let avoid: Vec<String> = if elsewhere { self.avoid.iter().cloned().collect() } else { Vec::new() };
        let group = self.observed.group.name_any();
        let taken: BTreeSet<&str> = self.backups.iter().map(|backup| backup.name.as_str()).collect();
        let names = self.observed.names.iter().map(|suffix| format!("{group}-backup-{suffix}"));
        let names = names.filter(|name| !taken.contains(name.as_str()));
        let attempts = self.attempts.iter().copied().chain(std::iter::repeat(0));
        let creations = names.zip(attempts).take(missing);
        self.decision.creations =
            creations.map(|(name, attempt)| Creation { name, avoid: avoid.clone(), attempt }).collect();

        self.decision.unplaced =
            self.decision.creations.len() + self.alive.iter().filter(|backup| backup.node.is_none()).count();
        // Whoever takes the place of a member on its way out is recruited beside it.
        if self.surge || self.has_leaving_member() {
            self.decision.members_wanted = (self.decision.members_wanted + 1).min(MEMBERS_MAX);
        }
    }

    /// A fenced group recruits nobody.
    fn exit(&self) -> Exit {
        let leaves_room = |backup: &&BackupPod| self.ends_soon(backup) && backup.leave != Some(Leave::Drained);
        let free = self.decision.survey.free.len() + self.backups.iter().filter(leaves_room).count();
        let unplaced = self.decision.unplaced;
        let has_successor = self.alive.len() + self.decision.creations.len() > self.wanted;
        if unplaced > free || self.held > 0 {
            Exit::Alone
        } else if self.has_primary && !self.observed.group.spec.fenced && (has_successor || free > unplaced) {
            Exit::AfterSuccessor
        } else {
            Exit::BeforeSuccessor
        }
    }
}

fn reason_to_leave(backup: &BackupPod) -> String {
    let node = backup.node.as_deref().unwrap_or("none");
    match backup.leave {
        Some(Leave::Drained) => format!("node {node} is being drained"),
        Some(Leave::Outdated) => "it was made from an older spec or image".to_owned(),
        None => "it is not needed".to_owned(),
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
    fn waits_grow_and_end() {
        let waits: Vec<i64> = [0, 1, 2, 5, 6, 100].map(|attempt| backoff(attempt).as_secs()).to_vec();
        assert_eq!(waits, [0, 10, 20, 160, 300, 300]);
    }
}
