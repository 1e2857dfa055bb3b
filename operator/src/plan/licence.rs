//! Leave to remove a backup pod. One rule decides every removal: a copy leaves only if what it alone may hold is somewhere
//! else, proved by the reports of those that hold it. How pods look to Kubernetes is never that proof.
//!
//! Called by [`backups`](super::backups), whose removals each need a [`Licence`], and once more by [`apply`](crate::apply)
//! right before a pod is deleted. A licence is made here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use strum::EnumIter;
use tailwind_crds::names::{GATE_CAUGHT_UP, flush_claim};
use tailwind_crds::{LogMember, LogStatus};
use tailwind_report::report::BackupReport;

use super::backup_pod::{BackupPod, Health, PodFailure};
use super::count::Count;
use super::group_state::GroupState;
use super::removal::Removal;
use super::trouble::{NoReport, quarantined};
use crate::objects::claim::MemberClaim;
use crate::observed::{Observed, has_ended, is_leaving, is_true};
use crate::planted::{self, Bug};

/// Leave to remove a pod, and what shows that it may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Licence(Evidence);

impl fmt::Display for Licence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What shows that nothing goes with a pod which it alone may hold.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Evidence {
    NeverRan,
    OnClaim(String),
    HoldsNothing,
    NoLog,
    HeldBy(Names),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::NeverRan => f.write_str("its container has never run"),
            Evidence::OnClaim(claim) => write!(f, "it has ended, and its files stay on claim {claim}"),
            Evidence::HoldsNothing => f.write_str("it reports that it holds nothing"),
            Evidence::NoLog => f.write_str("no backup of the group belongs to a log"),
            Evidence::HeldBy(holders) => write!(f, "others report that they hold the whole log: {holders}"),
        }
    }
}

/// Names of pods, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Why a pod stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub(crate) enum Withheld {
    Unreported(NoReport),
    Quarantined(Count),
    ForgottenLog(String),
    StoreWentBack(LaterEpoch),
    #[default]
    WasMember,
    NoClaim,
    TooFewHolders {
        held: usize,
        needed: usize,
        others: Others,
    },
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Withheld::Unreported(why) => write!(f, "it does not say what it holds: {why}"),
            Withheld::Quarantined(copies) => write!(
                f,
                "it keeps {copies} in quarantine: look at them and release them (tailwind-sidecar quarantine)"
            ),
            Withheld::ForgottenLog(log) => {
                write!(f, "it holds a copy of log {log}, which the config store does not know")
            }
            Withheld::StoreWentBack(later) => later.fmt(f),
            Withheld::WasMember => f.write_str("it was in the set of a log that the config store does not know"),
            Withheld::NoClaim => f.write_str(
                "its files are on no claim: the group hibernates once those of every backup are. Let the app run \
                 until then",
            ),
            Withheld::TooFewHolders { held, needed, others } => write!(
                f,
                "of {needed} other members that have to prove that they hold the whole log, {held} did. {others}"
            ),
        }
    }
}

impl Withheld {
    /// Whether it will be known in a moment.
    pub(crate) fn is_brief(&self) -> bool {
        matches!(self, Withheld::Unreported(NoReport::NotAsked))
    }
}

/// What shows that the config store was restored from an older copy: a backup has promised a later epoch. What the store names as
/// the set may lack everything since then, and a backup outside of it may hold that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaterEpoch {
    backup: String,
    promised: u64,
    stored: u64,
}

impl fmt::Display for LaterEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaterEpoch { backup, promised, stored } = self;
        write!(
            f,
            "{backup} has promised epoch {promised}, and the config store is at epoch {stored}, so it was restored from \
             an older copy. Put the newer status.log back, and delete no backup: see TailwindConfigStoreWentBack"
        )
    }
}

/// Looks for that in these reports. An epoch is stored before any backup is asked to promise it.
fn later_epoch(log: &LogStatus, reports: &BTreeMap<String, Result<BackupReport, String>>) -> Option<LaterEpoch> {
    let reports = reports.iter().filter_map(|(backup, report)| Some((backup, report.as_ref().ok()?)));
    let mut of_log = reports.filter(|(_, report)| report.log.as_ref() == Some(&log.id));
    let (backup, report) = of_log.find(|(_, report)| report.epoch > log.epoch)?;
    let found = LaterEpoch { backup: backup.clone(), promised: report.epoch, stored: log.epoch };
    (!planted::has(Bug::BelievesOldStore)).then_some(found)
}

/// Whether the config store was restored from an older copy, as far as backups report.
pub(crate) fn went_back(observed: &Observed) -> bool {
    observed.log().is_some_and(|log| later_epoch(log, &observed.reports).is_some())
}

/// Members that do not prove that they hold the log, each with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Others(Vec<(String, NotWhole)>);

impl fmt::Display for Others {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|(name, why)| format!("{name} {why}")).collect();
        f.write_str(if texts.is_empty() { "There is no other member" } else { "" })?;
        f.write_str(&texts.join("; "))
    }
}

/// Why a member does not prove that it holds the whole log.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum NotWhole {
    Gone,
    Leaves,
    Evictable,
    Unreported(NoReport),
    OtherBoot,
    OtherLog,
    Stale(u64, u64),
    Damaged(Count),
}

impl fmt::Display for NotWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotWhole::Gone => f.write_str("does not run"),
            NotWhole::Leaves => f.write_str("leaves as well"),
            NotWhole::Evictable => f.write_str("is not ready, and may be evicted until its budget has been observed"),
            NotWhole::Unreported(why) => write!(f, "does not report: {why}"),
            NotWhole::OtherBoot => f.write_str("has lost its memory since it joined the set"),
            NotWhole::OtherLog => f.write_str("belongs to another log"),
            NotWhole::Stale(promised, won) => write!(
                f,
                "has promised epoch {promised}, and epoch {won} had a primary: what it holds is an older copy"
            ),
            NotWhole::Damaged(segments) => write!(f, "is damaged: {segments} missing"),
        }
    }
}

impl NotWhole {
    fn unreadable(why: &str) -> NotWhole {
        NotWhole::Unreported(NoReport::Unreadable(why.to_owned()))
    }
}

/// What is known right before a pod is deleted.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// What those report that the licence rests on.
    pub reports: BTreeMap<String, Result<BackupReport, String>>,
    /// Pods that the API server is about to delete, since the budget has let them be evicted.
    pub evicted: BTreeSet<String>,
    /// The disruption controller has not observed the newest budget. By the one before it, pods that are not ready may be evicted: for
    /// these the API server asks only whether the budget that was observed last is met.
    pub unobserved: bool,
    /// The group's backup pods. They were read after the reports: a pod that ends reports until it has flushed.
    pub pods: Vec<Pod>,
}

impl Look {
    /// Whether a member still proves that it holds the log, and its pod is the one that was seen and stays.
    fn holds(&self, name: &str, seen: &Observed) -> Result<(), String> {
        let log = seen.log().ok_or("there is no log any more")?;
        let member = log.members.iter().find(|member| member.name == *name);
        let member = member.ok_or_else(|| format!("{name} has left the set"))?;
        let proved = self.reports.get(name).map_or(Err(NotWhole::Gone), |report| prove(log, member, report));
        let stays = || if planted::has(Bug::TrustsEvicted) { Ok(()) } else { self.stays(name, seen) };
        proved.and_then(|()| stays()).map_err(|why| format!("{name} {why}"))
    }

    fn stays(&self, name: &str, seen: &Observed) -> Result<(), NotWhole> {
        let uid = seen.backups.iter().find(|pod| pod.name_any() == name).and_then(ResourceExt::uid);
        match self.pods.iter().find(|pod| pod.name_any() == name) {
            Some(pod) if pod.uid() != uid || has_ended(pod) => Err(NotWhole::Gone),
            Some(pod) if pod.metadata.deletion_timestamp.is_some() || self.evicted.contains(name) => {
                Err(NotWhole::Leaves)
            }
            Some(pod) if is_leaving(pod) => Err(NotWhole::Leaves),
            Some(pod) if self.unobserved && !is_true(pod, "Ready") && !planted::has(Bug::TrustsUnobserved) => {
                Err(NotWhole::Evictable)
            }
            Some(_) => Ok(()),
            None => Err(NotWhole::Gone),
        }
    }

    /// Whether nobody who is asked has promised a later epoch than the log had when it was seen.
    fn is_current(&self, seen: &Observed) -> Result<(), String> {
        let later = seen.log().and_then(|log| later_epoch(log, &self.reports));
        later.map_or(Ok(()), |later| Err(later.to_string()))
    }

    /// Whether the one that leaves keeps nothing in quarantine, if it answers. One that is in no set and not ready may not have
    /// answered before.
    fn keeps_nothing(&self, leaver: &str) -> Result<(), String> {
        match self.reports.get(leaver) {
            Some(Ok(report)) if report.quarantined != Some(0) => {
                let copies = report.quarantined.map_or("what it cannot read".to_owned(), |copies| {
                    Count(usize::try_from(copies).unwrap_or(usize::MAX), "copy").to_string()
                });
                Err(format!("{leaver} keeps {copies} in quarantine"))
            }
            _ => Ok(()),
        }
    }

    /// Whether still no backup belongs to a log: those that have said so say it again, and none was taken into a set.
    fn has_no_log(&self, seen: &Observed) -> Result<(), String> {
        for (name, report) in &self.reports {
            let has_said = matches!(seen.reports.get(name), Some(Ok(_)));
            match report {
                Ok(BackupReport { log: Some(log), .. }) => return Err(format!("{name} holds a copy of log {log}")),
                Err(why) if has_said => return Err(format!("{name} {}", NotWhole::unreadable(why))),
                _ => {}
            }
        }
        let member = self.pods.iter().find(|pod| was_member(pod));
        member.map_or(Ok(()), |pod| Err(format!("{} was in the set of a log", pod.name_any())))
    }
}

impl Licence {
    /// The backups whose reports it rests on.
    pub fn holders(&self) -> &[String] {
        match &self.0 {
            Evidence::HeldBy(names) => &names.0,
            Evidence::NeverRan | Evidence::OnClaim(_) | Evidence::HoldsNothing | Evidence::NoLog => &[],
        }
    }

    /// The claim that it rests on.
    pub(crate) fn claim(&self) -> Option<&str> {
        match &self.0 {
            Evidence::OnClaim(claim) => Some(claim),
            Evidence::NeverRan | Evidence::HoldsNothing | Evidence::NoLog | Evidence::HeldBy(_) => None,
        }
    }

    /// Whether nothing is lost with the claim either.
    pub(crate) fn covers(&self, claim: &MemberClaim) -> bool {
        match self.0 {
            Evidence::HoldsNothing | Evidence::HeldBy(_) => true,
            Evidence::NeverRan | Evidence::NoLog => !claim.bound,
            Evidence::OnClaim(_) => planted::has(Bug::ClaimGoesWithPod),
        }
    }

    /// Whether this backup is asked right before `leaver` is deleted: the licence rests on its report, or it is the leaver, which may
    /// keep something in quarantine.
    pub(crate) fn asks(&self, backup: &str, leaver: &str) -> bool {
        match &self.0 {
            Evidence::HeldBy(names) => backup == leaver || names.0.iter().any(|name| name == backup),
            Evidence::HoldsNothing => backup == leaver,
            Evidence::NoLog => true,
            Evidence::NeverRan | Evidence::OnClaim(_) => false,
        }
    }

    /// Looks once more, right before the pod is deleted: at what was `seen` when that was decided, and at what there is now.
    ///
    /// # Errors
    /// Who does not prove it any more, for people.
    pub fn holds_still(&self, leaver: &str, seen: &Observed, now: &Look) -> Result<(), String> {
        match &self.0 {
            Evidence::NeverRan | Evidence::OnClaim(_) => Ok(()),
            Evidence::HoldsNothing if planted::has(Bug::TrustsOldReports) => Ok(()),
            Evidence::HoldsNothing => match now.reports.get(leaver) {
                Some(Ok(report)) if holds_nothing(report) => Ok(()),
                Some(Ok(_)) => Err(format!("{leaver} reports that it holds something")),
                Some(Err(why)) => Err(format!("{leaver} {}", NotWhole::unreadable(why))),
                None => Err(format!("{leaver} {}", NotWhole::Gone)),
            },
            Evidence::NoLog => now.has_no_log(seen).and_then(|()| now.keeps_nothing(leaver)),
            Evidence::HeldBy(Names(names)) => {
                let held = names.iter().try_for_each(|name| now.holds(name, seen));
                held.and_then(|()| now.is_current(seen)).and_then(|()| now.keeps_nothing(leaver))
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Licence {
        Licence(Evidence::NoLog)
    }
}

/// Whether this pod may be removed, beside those that are removed already.
///
/// # Errors
/// Why it has to stay.
pub(crate) fn licence(state: &GroupState<'_>, backup: &BackupPod, leaving: &[Removal]) -> Result<Licence, Withheld> {
    if planted::has(Bug::RemovesUnproved) {
        return Ok(Licence(Evidence::HoldsNothing));
    }
    let observed = state.observed;
    let pod = observed.backups.iter().find(|pod| pod.name_any() == backup.name);
    if pod.is_some_and(|pod| has_never_run(state, pod, backup)) {
        return Ok(Licence(Evidence::NeverRan));
    }
    // No container of the pod starts again, so its memory is gone in any case. The pod is in the way of the next one of its name.
    if backup.ended && backup.leaves_files() {
        return Ok(Licence(Evidence::OnClaim(flush_claim(&backup.name))));
    }
    let report = observed.reports.get(&backup.name).and_then(|report| report.as_ref().ok());
    // What a member has reported may be from before it was filled.
    if report.is_some_and(holds_nothing) && (!backup.member || planted::has(Bug::TrustsOldReports)) {
        return Ok(Licence(Evidence::HoldsNothing));
    }
    match quarantined(state, backup) {
        Ok(None) => {}
        Ok(Some(files)) => {
            let files = usize::try_from(files).unwrap_or(usize::MAX);
            return Err(Withheld::Quarantined(Count(files, "copy")));
        }
        Err(why) => return Err(Withheld::Unreported(why)),
    }
    let own = report.and_then(|report| report.log.as_ref());
    let Some(log) = observed.log() else { return without_log(observed, own) };
    if let Some(other) = own.filter(|own| **own != log.id) {
        return Err(Withheld::ForgottenLog(other.clone()));
    }
    held_by(state, log, &backup.name, leaving)
}

/// Whether the claim of a member whose pod is gone may be removed.
///
/// # Errors
/// Why it has to stay.
pub(crate) fn claim_licence(
    state: &GroupState<'_>,
    claim: &MemberClaim,
    leaving: &[Removal],
) -> Result<Licence, Withheld> {
    match state.observed.log() {
        _ if !claim.bound => Ok(Licence(Evidence::NeverRan)),
        // It may be all that is left of a log whose config store was emptied, or that came with another group.
        None => Err(Withheld::WasMember),
        Some(log) => held_by(state, log, &claim.member, leaving),
    }
}

/// Whether a group can do without this pod for as long as it hibernates: all that was acknowledged is on its claim, since the
/// group's durability is `Flushed`; or it has nothing that could be lost. What others hold is no reason, since they go as well.
///
/// # Errors
/// Why it has to stay.
pub(crate) fn hibernation_licence(state: &GroupState<'_>, backup: &BackupPod) -> Result<Licence, Withheld> {
    if backup.leaves_files() {
        return Ok(Licence(Evidence::OnClaim(flush_claim(&backup.name))));
    }
    let is_own = |licence: &Licence| matches!(licence.0, Evidence::NeverRan | Evidence::HoldsNothing);
    let own = licence(state, backup, &[]).ok();
    own.filter(|found| is_own(found) || planted::has(Bug::HibernatesUnclaimed)).ok_or(Withheld::NoClaim)
}

/// Whether a member is known not to hold all of the log. Then no other may be evicted: which one, a budget cannot say.
pub(crate) fn is_any_damaged(state: &GroupState<'_>) -> bool {
    state.alive().any(|backup| is_damaged(state.observed, backup))
}

/// Whether a backup keeps copies in quarantine that would go with its pod. They may be the last ones of their records, and which pod
/// goes, a budget cannot say.
pub(crate) fn is_any_quarantined(state: &GroupState<'_>) -> bool {
    let keeps = |backup: &BackupPod| matches!(quarantined(state, backup), Ok(Some(_)));
    state.alive().any(|backup| !backup.leaves_files() && keeps(backup))
}

/// Pods that a budget counts although they do not prove that they hold the log. Members whose reports cannot be read, or are not
/// there yet, may be damaged; one that is not ready may be counted before it is asked again, and come back without its memory. What has
/// left the set has nothing that counts; and what is lost, or is not the group's, proves nothing.
pub(crate) fn unproved(state: &GroupState<'_>) -> usize {
    if planted::has(Bug::EvictsBesideSilence) {
        return 0;
    }
    let says = |backup: &BackupPod| matches!(state.observed.reports.get(&backup.name), Some(Ok(_)));
    let lost = state.backups.iter().filter(|backup| !backup.is_alive() && backup.counted_lost);
    let counts = |backup: &&BackupPod| if backup.member { !says(backup) } else { backup.counted };
    state.alive().filter(counts).chain(lost).count() + state.observed.strangers
}

/// Whether one of those has not been asked yet what it holds. It will be in a moment.
pub(crate) fn is_any_unasked(state: &GroupState<'_>) -> bool {
    counted(state).any(|backup| !state.observed.reports.contains_key(&backup.name))
}

/// Whether a backup that has run does not say, or not yet, what it holds.
pub(crate) fn is_any_silent(state: &GroupState<'_>) -> bool {
    state.alive().any(|backup| {
        let pod = state.observed.backups.iter().find(|pod| pod.name_any() == backup.name);
        let says = matches!(state.observed.reports.get(&backup.name), Some(Ok(_)));
        !says && pod.is_some_and(|pod| !has_never_run(state, pod, backup))
    })
}

fn counted<'a>(state: &'a GroupState<'_>) -> impl Iterator<Item = &'a BackupPod> {
    state.alive().filter(|backup| backup.counted)
}

/// Whether this is a member that reports that it does not hold all of the log.
pub(crate) fn is_damaged(observed: &Observed, backup: &BackupPod) -> bool {
    let Some(log) = observed.log() else { return false };
    let member = log.members.iter().find(|member| member.name == backup.name);
    let report = observed.reports.get(&backup.name).and_then(|report| report.as_ref().ok());
    member.zip(report).is_some_and(|(member, report)| is_whole(log, member, report).is_err())
}

/// Whether this is a member that proves that it holds all of the log.
pub(crate) fn proves(observed: &Observed, backup: &BackupPod) -> bool {
    let Some(log) = observed.log() else { return false };
    let member = log.members.iter().find(|member| member.name == backup.name);
    member.zip(observed.reports.get(&backup.name)).is_some_and(|(member, report)| prove(log, member, report).is_ok())
}

/// What shows that a config store which knows of no log was emptied: a backup holds one, or was in the set of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgotten {
    backup: String,
    log: Option<String>,
}

impl fmt::Display for Forgotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forgotten { backup, log } = self;
        match log {
            Some(log) => write!(f, "status.log is empty, but {backup} holds a copy of log {log}"),
            None => write!(f, "status.log is empty, but {backup} was in the set of a log"),
        }
    }
}

/// Looks for that.
pub(crate) fn forgotten(observed: &Observed) -> Option<Forgotten> {
    if observed.log().is_some() {
        return None;
    }
    let held = |(backup, report): (&String, &Result<BackupReport, String>)| {
        Some(Forgotten { backup: backup.clone(), log: Some(report.as_ref().ok()?.log.clone()?) })
    };
    let was_member = || observed.backups.iter().find(|pod| was_member(pod));
    let of_set = || was_member().map(|pod| Forgotten { backup: pod.name_any(), log: None });
    observed.reports.iter().find_map(held).or_else(of_set)
}

/// Claims that may hold a log of which the config store knows nothing: nobody says what is on them. What was made with its pod holds
/// nothing from before, and of any other the backup on it reports what it has found. While a group hibernates, there is none.
pub(crate) fn unread_claims<'a>(state: &'a GroupState<'_>) -> impl Iterator<Item = &'a MemberClaim> {
    let is_silent = move |backup: &&BackupPod| !matches!(state.observed.reports.get(&backup.name), Some(Ok(_)));
    let of_pods = state.backups.iter().filter(is_silent).filter_map(|backup| {
        let is_older = |claim: &&MemberClaim| backup.was_in_set() || claim.is_older_than(backup.created);
        backup.claim.as_ref().filter(is_older)
    });
    let has_log = state.observed.log().is_some() || planted::has(Bug::ForgetsClaims);
    state.orphans.iter().chain(of_pods).filter(move |claim| claim.has_files() && !has_log)
}

/// A config store that knows of no log may have been emptied.
fn without_log(observed: &Observed, own: Option<&String>) -> Result<Licence, Withheld> {
    match (own, forgotten(observed)) {
        (Some(log), _) => Err(Withheld::ForgottenLog(log.clone())),
        (None, Some(Forgotten { log: Some(log), .. })) => Err(Withheld::ForgottenLog(log)),
        (None, Some(Forgotten { log: None, .. })) => Err(Withheld::WasMember),
        (None, None) => Ok(Licence(Evidence::NoLog)),
    }
}

/// What a member has, all others of the set have as well if they are whole. As many have to be left as an append needs.
fn held_by(state: &GroupState<'_>, log: &LogStatus, leaver: &str, leaving: &[Removal]) -> Result<Licence, Withheld> {
    if let Some(later) = later_epoch(log, &state.observed.reports) {
        return Err(Withheld::StoreWentBack(later));
    }
    let needed = usize::from(state.observed.group.spec.min_in_sync().max(1));
    let (mut names, mut others) = (Vec::new(), Vec::new());
    for member in log.members.iter().filter(|member| member.name != leaver) {
        let is_alive = state.alive().any(|other| other.name == member.name);
        let found = match state.observed.reports.get(&member.name) {
            _ if !is_alive => Err(NotWhole::Gone),
            _ if leaving.iter().any(|removal| removal.name == member.name) => Err(NotWhole::Leaves),
            _ if loses_claim(state, &member.name) => Err(NotWhole::Leaves),
            None => Err(NotWhole::Unreported(NoReport::NotAsked)),
            Some(report) => prove(log, member, report),
        };
        match found {
            Ok(()) => names.push(member.name.clone()),
            Err(why) => others.push((member.name.clone(), why)),
        }
    }
    if names.len() >= needed {
        return Ok(Licence(Evidence::HeldBy(Names(names))));
    }
    if others.iter().any(|(_, why)| *why == NotWhole::Unreported(NoReport::NotAsked)) {
        return Err(Withheld::Unreported(NoReport::NotAsked));
    }
    Err(Withheld::TooFewHolders { held: names.len(), needed, others: Others(others) })
}

/// Whether the disk of a member has been deleted, and goes with its pod.
fn loses_claim(state: &GroupState<'_>, member: &str) -> bool {
    let claims = state.backups.iter().filter_map(|backup| backup.claim.as_ref());
    claims.into_iter().any(|claim| claim.member == member && claim.ending)
}

/// Whether a member that was asked proves that it holds all of the log.
fn prove(log: &LogStatus, member: &LogMember, report: &Result<BackupReport, String>) -> Result<(), NotWhole> {
    match report {
        Ok(report) => is_whole(log, member, report),
        Err(why) => Err(NotWhole::unreadable(why)),
    }
}

/// Whether a member reports that it holds all of the log: under the identity with which it joined the set, promised to no older
/// epoch than the last that had a primary, and undamaged.
fn is_whole(log: &LogStatus, member: &LogMember, report: &BackupReport) -> Result<(), NotWhole> {
    match report {
        BackupReport { log: own, .. } if own.as_ref() != Some(&log.id) => Err(NotWhole::OtherLog),
        BackupReport { boot, .. } if *boot != member.boot => Err(NotWhole::OtherBoot),
        BackupReport { epoch, .. } if *epoch < log.won_epoch => Err(NotWhole::Stale(*epoch, log.won_epoch)),
        BackupReport { damaged: 0, .. } => Ok(()),
        BackupReport { damaged, .. } => {
            Err(NotWhole::Damaged(Count(usize::try_from(*damaged).unwrap_or(usize::MAX), "segment")))
        }
    }
}

/// No address, so no sidecar has ever reached it, and no container that has run. What the status of a pod that has ended leaves
/// out tells nothing, unless its kubelet refused it at its start. After a reboot a kubelet may also refuse a pod that has run,
/// and then writes the same; but such a pod may have been in a set, or have reported what it keeps in quarantine.
fn has_never_run(state: &GroupState<'_>, pod: &Pod, backup: &BackupPod) -> bool {
    let Some(status) = &pod.status else { return true };
    let has_worked = || backup.was_in_set() || matches!(quarantined(state, backup), Ok(Some(_)));
    let refused = matches!(&backup.health, Health::Failed { failure: PodFailure::Refused(_), .. }) && !has_worked();
    let ran = status.container_statuses.iter().flatten().any(|container| {
        let now = container.state.as_ref();
        container.restart_count > 0
            || container.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
            || now.is_some_and(|now| now.running.is_some() || now.terminated.is_some())
    });
    let is_early = refused || !matches!(status.phase.as_deref(), Some("Failed" | "Succeeded" | "Running"));
    is_early && !ran && status.pod_ip.is_none()
}

/// Whether it was in a set, as its gate says. That outlives the config store.
fn was_member(pod: &Pod) -> bool {
    is_true(pod, GATE_CAUGHT_UP)
}

/// Whether this backup reports that it holds nothing.
pub(crate) fn reports_nothing(observed: &Observed, backup: &str) -> bool {
    matches!(observed.reports.get(backup), Some(Ok(report)) if holds_nothing(report))
}

fn holds_nothing(report: &BackupReport) -> bool {
    let BackupReport { log, copies, damaged, quarantined, .. } = report;
    log.is_none() && (*copies, *damaged, *quarantined) == (0, 0, Some(0))
}
