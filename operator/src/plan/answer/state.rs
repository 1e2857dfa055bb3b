//! How a group is: whether the app can append, whether something is under way, whether something is worse than specified.
//!
//! Chosen by [`conditions`](crate::plan::conditions).

use std::fmt;

use strum::{AsRefStr, VariantNames};
use tailwind_report::Positions;

use super::Answer;
use crate::plan::backup_pod::PodFailure;
use crate::plan::candidate::Candidate;
use crate::plan::count::Count;
use crate::plan::phase::PhaseReason;
use crate::plan::removal::Replacement;
use crate::plan::trouble::{Damage, NoReport, Trouble};

condition! {
    Ready: "Whether the app can append.",
    yes: Ready::AllCopies(_) | Ready::FewerCopies(_),
    unknown: Ready::NodeSilent(_) | Ready::NoReport(_)
}

#[derive(Debug, AsRefStr, VariantNames)]
pub(crate) enum Ready {
    AllCopies(PhaseReason),
    FewerCopies(PhaseReason),
    NodeSilent(PhaseReason),
    NoReport(PhaseReason),
    AppendsWait(PhaseReason),
    InvalidSpec(String),
    BackupsStarting(PhaseReason),
    WaitingForApp(PhaseReason),
    Unavailable(PhaseReason),
    Fenced(PhaseReason),
    Paused(PhaseReason),
    Hibernated(PhaseReason),
    Deleting(PhaseReason),
    ConfigStoreUnreadable(Candidate),
    WaitsForBackups(Candidate),
    WaitsForMembers(Candidate),
    WaitsForEvidence(Candidate, String, Acked),
    ConfigStoreEmpty(PhaseReason),
    ConfigStoreWentBack(Candidate, String),
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ready::AllCopies(reason)
            | Ready::FewerCopies(reason)
            | Ready::NodeSilent(reason)
            | Ready::NoReport(reason)
            | Ready::BackupsStarting(reason)
            | Ready::WaitingForApp(reason)
            | Ready::Unavailable(reason)
            | Ready::Fenced(reason)
            | Ready::Paused(reason)
            | Ready::Hibernated(reason)
            | Ready::Deleting(reason) => reason.fmt(f),
            Ready::AppendsWait(reason) => write!(
                f,
                "{reason}. Nothing is lost, and the log can be read and trimmed: see TailwindGroupUnavailable"
            ),
            Ready::InvalidSpec(problems) => problems.fmt(f),
            Ready::ConfigStoreUnreadable(candidate) => {
                write!(f, "{candidate}. The API server must answer: see TailwindNoPrimary")
            }
            Ready::WaitsForBackups(candidate) => {
                write!(f, "{candidate}. The backup pods must come up: see TailwindGroupPending")
            }
            Ready::WaitsForMembers(candidate) => write!(
                f,
                "{candidate}. Bring back the members that are missing, and delete none: see TailwindGroupUnavailable"
            ),
            Ready::WaitsForEvidence(candidate, log, acked) => write!(
                f,
                "{candidate}. Bring back what it names, and delete no backup. If that is impossible, an \
                 administrator ends the wait with spec.acceptLossUpTo: {log}/LSN, where LSN is the last record that \
                 must be there; later records may be lost ({acked}). See TailwindMemberDamaged"
            ),
            Ready::ConfigStoreEmpty(reason) => {
                write!(f, "{reason}. Put status.log back, and delete no backup: see TailwindConfigStoreWentBack")
            }
            Ready::ConfigStoreWentBack(candidate, log) => write!(
                f,
                "{candidate}. Put the newer status.log back, and delete no backup: see TailwindConfigStoreWentBack. \
                 If there is none, an administrator decides where the log ends, as explained there, with \
                 spec.acceptLossUpTo: {log}/LSN"
            ),
        }
    }
}

/// How far the log was, for the administrator who has to choose an LSN.
#[derive(Debug, Default)]
pub(crate) struct Acked(pub(crate) Option<Positions>);

impl fmt::Display for Acked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, "LSN {} was acknowledged when the operator last looked", at.acked),
            None => f.write_str("the operator does not know how much was acknowledged"),
        }
    }
}

condition! {
    Progressing: "Whether something about the backups is under way.",
    yes: Progressing::Updating(_)
        | Progressing::Moving(_)
        | Progressing::Creating(_)
        | Progressing::BackingOff
        | Progressing::Starting(_)
        | Progressing::CatchingUp(_)
}

#[derive(Debug, AsRefStr, VariantNames)]
pub(crate) enum Progressing {
    InvalidSpec(String),
    #[strum(serialize = "Settled")]
    Paused,
    Queued(Count),
    Updating(Count),
    Stalled(Replacement),
    Waiting(Replacement),
    Moving(Replacement),
    Creating(Count),
    BackingOff,
    Starting(Count),
    CatchingUp(String),
    Settled,
}

impl fmt::Display for Progressing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progressing::InvalidSpec(problems) => problems.fmt(f),
            Progressing::Paused => f.write_str("paused"),
            Progressing::Queued(backups) => write!(
                f,
                "{backups} of an older spec or image: to be replaced as soon as fewer groups are being updated \
                 (--max-concurrent-rollouts)"
            ),
            Progressing::Updating(backups) => write!(f, "{backups} of an older spec or image to be replaced"),
            Progressing::Stalled(replacement) => {
                write!(f, "{replacement}. As long as that gets nowhere, other groups are updated")
            }
            Progressing::Waiting(replacement) | Progressing::Moving(replacement) => replacement.fmt(f),
            Progressing::Creating(pods) => write!(f, "creating {pods}"),
            Progressing::BackingOff => f.write_str("a backup that failed several times is replaced after a pause"),
            Progressing::Starting(backups) => write!(f, "{backups} not ready yet"),
            Progressing::CatchingUp(backups) => write!(f, "{backups} is catching up"),
            Progressing::Settled => f.write_str("nothing is under way"),
        }
    }
}

#[derive(Debug, AsRefStr, VariantNames)]
pub(crate) enum Degraded {
    NodeSilent(PhaseReason),
    ApiRefused(String),
    NameTaken(String),
    Reported(String, Trouble),
    BackupFailed(String, PodFailure),
    MemberDamaged(String, Damage),
    FewerCopies(PhaseReason),
    Unavailable(PhaseReason),
    MoveWaits(Replacement),
    NoReport(String, NoReport),
    #[strum(serialize = "NoReport")]
    PrimaryUnknown(PhaseReason),
    AsWanted,
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Degraded::NodeSilent(reason)
            | Degraded::FewerCopies(reason)
            | Degraded::Unavailable(reason)
            | Degraded::PrimaryUnknown(reason) => reason.fmt(f),
            Degraded::ApiRefused(failures) => failures.fmt(f),
            Degraded::NameTaken(objects) => write!(
                f,
                "{objects} exists and has another owner, so it is left alone. Remove it, or give the group another \
                 name"
            ),
            Degraded::Reported(backup, trouble) => write!(f, "{backup}: {trouble}"),
            Degraded::BackupFailed(backup, failure) => write!(f, "{backup}: {failure}"),
            Degraded::MemberDamaged(backup, damage) => write!(f, "{backup}: {damage}"),
            Degraded::MoveWaits(replacement) => replacement.fmt(f),
            Degraded::NoReport(backup, why) => write!(f, "{backup}: damage unknown: {why}"),
            Degraded::AsWanted => f.write_str("nothing is worse than specified"),
        }
    }
}

impl Answer for Degraded {
    const CONDITION: &'static str = "Degraded";
    const QUESTION: &'static str = "Whether something is worse than specified.";

    fn status(&self) -> &'static str {
        match self {
            Degraded::AsWanted => "False",
            Degraded::NoReport(..) | Degraded::PrimaryUnknown(_) => "Unknown",
            _ => "True",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Degraded::Reported(_, trouble) => trouble.as_ref(),
            answer => answer.as_ref(),
        }
    }

    /// In place of `Reported`, what can be reported. That a backup has no node yet is the question of condition `Placeable`.
    fn reasons() -> impl Iterator<Item = &'static str> {
        let reported = || Trouble::VARIANTS.iter().filter(|trouble| **trouble != "Unscheduled").copied();
        Degraded::VARIANTS.iter().flat_map(move |reason| match *reason {
            "Reported" => reported().collect(),
            reason => vec![reason],
        })
    }
}
