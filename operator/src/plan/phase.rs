//! The phase of a group, and why it is in that phase.
//!
//! Called by [`status`](super::status).

use std::fmt;

use kube::ResourceExt;
use strum::EnumIter;
use tailwind_crds::Phase;
use tailwind_report::readiness::{AppendsWait, AppendsWaitFor, WaitsFor};
use tailwind_report::verdict::why_copies_are_missing;

use super::candidate::{Candidate, candidate};
use super::count::Count;
use super::group_state::GroupState;
use super::licence::{Forgotten, forgotten};
use super::primary::{Leading, Primary};
use super::trouble::NoReport;

/// Why a group is in its phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, EnumIter)]
pub(crate) enum PhaseReason {
    Unreadable(String),
    DeletionWaits(Count),
    #[default]
    Deletion,
    Paused,
    Fenced,
    Hibernates(Count),
    HibernatesUnread(Count),
    ClaimsMissing {
        claims: usize,
        members: usize,
        floor: usize,
    },
    CandidateWaits(Candidate),
    ConfigStoreEmpty(Forgotten),
    BackupsStarting {
        ready: usize,
        wanted: usize,
    },
    NoApp(String),
    NoPrimaryYet(Count),
    PrimaryGone(String),
    BelowMinInSync {
        copies: usize,
        floor: usize,
    },
    NodeSilent(String, String),
    NotPrimary(String, String),
    NoReport {
        pod: String,
        why: NoReport,
        copies: usize,
        wanted: usize,
    },
    AppendsWait {
        pod: String,
        what: AppendsWaitFor,
        why: String,
    },
    FewerCopies {
        copies: usize,
        wanted: usize,
        why: String,
    },
    AllCopies(String, Count),
}

impl fmt::Display for PhaseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PhaseReason::Unreadable(why) => {
                write!(f, "the object cannot be read: {why}. Correct it, or delete it and create it again")
            }
            PhaseReason::DeletionWaits(pods) => write!(
                f,
                "waiting until no pod of the app belongs to the group (spec.deletion: AfterApp): remove {pods}"
            ),
            PhaseReason::Deletion => f.write_str("everything that belongs to it is being removed"),
            PhaseReason::Paused => f.write_str("spec.paused is true: nothing is changed until it is false"),
            PhaseReason::Fenced => f.write_str("spec.fenced is true: nobody may append until it is false"),
            PhaseReason::Hibernates(claims) => {
                write!(f, "spec.hibernate is true: the log is on {claims}. Set it to false to resume")
            }
            PhaseReason::HibernatesUnread(claims) => write!(
                f,
                "spec.hibernate is true, status.log is empty, and nobody reports what is on {claims}. Put status.log \
                 back, or set spec.hibernate to false to see what the backups report"
            ),
            PhaseReason::ClaimsMissing { claims, members, floor } => write!(
                f,
                "spec.hibernate is true, and disks are claimed for only {claims} of {members} members, fewer than \
                 minInSync {floor}: look for the others, or restore them, before you set it to false"
            ),
            PhaseReason::CandidateWaits(candidate) => candidate.fmt(f),
            PhaseReason::ConfigStoreEmpty(forgotten) => forgotten.fmt(f),
            PhaseReason::BackupsStarting { ready, wanted } => write!(f, "{ready} of {wanted} backups are ready"),
            PhaseReason::NoApp(group) => write!(
                f,
                "no pod has the label replication.tailwind.dev/group: {group}; give it to the pods of the app"
            ),
            PhaseReason::NoPrimaryYet(pods) => write!(f, "{pods} of the app, and none has become primary yet"),
            PhaseReason::PrimaryGone(pod) => write!(f, "primary {pod} is gone, and no standby has taken over yet"),
            PhaseReason::BelowMinInSync { copies, floor } => {
                write!(f, "{copies} of minInSync {floor} copies: appends wait for backups to come back or catch up")
            }
            PhaseReason::NodeSilent(pod, node) => write!(
                f,
                "{pod} was primary when its node {node} was heard last: whether the app can append is not known"
            ),
            PhaseReason::NotPrimary(pod, role) => write!(f, "{pod} should be primary, and reports that it is {role}"),
            PhaseReason::NoReport { pod, why, copies, wanted } => write!(
                f,
                "whether {pod} can append is not known: {why}. As far as the members' pods show, there are {copies} \
                 of {wanted} copies"
            ),
            PhaseReason::AppendsWait { pod, what, why } => write!(f, "appends wait for {what} at {pod}: {why}"),
            PhaseReason::FewerCopies { copies, wanted, why } => {
                write!(f, "{copies} of {wanted} copies: appends continue{why}")
            }
            PhaseReason::AllCopies(pod, copies) => write!(f, "{pod} is primary, with {copies}"),
        }
    }
}

pub(crate) fn phase(state: &GroupState<'_>) -> (Phase, PhaseReason) {
    let (group, app) = (&state.observed.group, state.observed.app.len());
    let spec = &group.spec;
    let (wanted, floor) = (usize::from(spec.backups), usize::from(spec.min_in_sync().max(1)));
    if state.is_deleting() {
        let waits = state.observed.waits_for_app();
        let reason = if waits > 0 { PhaseReason::DeletionWaits(Count(waits, "pod")) } else { PhaseReason::Deletion };
        return (Phase::Deleting, reason);
    }
    if spec.paused {
        return (Phase::Paused, PhaseReason::Paused);
    }
    if spec.fenced {
        return (Phase::Fenced, PhaseReason::Fenced);
    }
    if spec.hibernate && state.backups.is_empty() {
        let members = state.observed.log().map_or(0, |log| log.members.len());
        let is_member = |name: &str| state.observed.log().is_none_or(|log| log.has_member(name));
        let claims = state.orphans.iter().filter(|claim| claim.has_files() && is_member(&claim.member)).count();
        return match claims {
            claims if claims < floor.min(members) => {
                (Phase::Unavailable, PhaseReason::ClaimsMissing { claims, members, floor })
            }
            claims if claims > 0 && state.observed.log().is_none() => {
                (Phase::Hibernated, PhaseReason::HibernatesUnread(Count(claims, "claim")))
            }
            claims => (Phase::Hibernated, PhaseReason::Hibernates(Count(claims, "claim"))),
        };
    }
    if let Some(reason) = config_store_empty(state) {
        return (Phase::Unavailable, reason);
    }
    let candidate = candidate(state);
    let Some(log) = state.observed.log() else {
        let ready = state.alive().filter(|backup| backup.ready).count();
        return match candidate {
            _ if ready < wanted => (Phase::Pending, PhaseReason::BackupsStarting { ready, wanted }),
            Some(candidate) => (Phase::WaitingForApp, PhaseReason::CandidateWaits(candidate)),
            None if app == 0 => (Phase::WaitingForApp, PhaseReason::NoApp(group.name_any())),
            None => (Phase::WaitingForApp, PhaseReason::NoPrimaryYet(Count(app, "pod"))),
        };
    };
    if let Some(candidate) = candidate {
        return (Phase::Unavailable, PhaseReason::CandidateWaits(candidate));
    }
    if let Primary::Gone(name) = &state.primary {
        return (Phase::Unavailable, PhaseReason::PrimaryGone(name.clone()));
    }
    let (copies, pod) = (state.copies(), log.primary.name.clone());
    if let Leading::Other(role) = state.leading {
        return (Phase::Unavailable, PhaseReason::NotPrimary(pod, role.to_owned()));
    }
    if copies < floor {
        return (Phase::Unavailable, PhaseReason::BelowMinInSync { copies, floor });
    }
    let report = match &state.leading {
        Leading::Primary(report) => report,
        Leading::Unknown(why) => return (Phase::Degraded, unknown(state, pod, why.clone(), (copies, wanted))),
        Leading::Nobody | Leading::Other(_) => unreachable!("a primary that is gone, or is none, is told above"),
    };
    if let Some(AppendsWait { what, why }) = report.appends_wait.clone() {
        return (Phase::Unavailable, PhaseReason::AppendsWait { pod, what, why });
    }
    if copies < wanted {
        // Without times: a reason that differed at every look would be written at every look.
        let why = why_copies_are_missing(report, false).map(|why| format!("; {why}"));
        let why = why.unwrap_or_else(|| ", and a backup is catching up or missing".to_owned());
        return (Phase::Degraded, PhaseReason::FewerCopies { copies, wanted, why });
    }
    (Phase::Ready, PhaseReason::AllCopies(pod, Count(copies, "copy")))
}

/// What shows that there is a log, although the config store knows of none: a candidate's own words, or else what is known of the
/// backups, since the app may be gone.
pub(crate) fn config_store_empty(state: &GroupState<'_>) -> Option<PhaseReason> {
    let candidate = candidate(state).filter(|candidate| candidate.what == WaitsFor::ForgottenLog);
    let forgotten = || forgotten(state.observed).map(PhaseReason::ConfigStoreEmpty);
    candidate.map(PhaseReason::CandidateWaits).or_else(forgotten)
}

/// Why it is unknown whether this primary can append.
fn unknown(state: &GroupState<'_>, pod: String, why: NoReport, (copies, wanted): (usize, usize)) -> PhaseReason {
    let mut named = state.observed.app.iter().filter(|named| named.name_any() == pod);
    match named.find_map(|named| state.observed.silent_node(named)) {
        Some(node) => PhaseReason::NodeSilent(pod, node.to_owned()),
        None => PhaseReason::NoReport { pod, why, copies, wanted },
    }
}
