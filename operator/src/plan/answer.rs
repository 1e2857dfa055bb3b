//! The answers of a group's conditions: each condition is a type, each of its answers a variant. The variant's name is the
//! reason, a word for machines; its text is the message, a sentence that says what to do.
//!
//! Chosen by [`conditions`](super::conditions).

use std::fmt;

use displaydoc::Display;
use strum::{AsRefStr, EnumIter, VariantNames};
use tailwind_report::Positions;

use super::backup_pod::PodFailure;
use super::candidate::Candidate;
use super::count::Count;
use super::phase::PhaseReason;
use super::placement::Survey;
use super::removal::Replacement;
use super::trouble::{Damage, NoReport, Trouble};

/// An answer to a condition's question.
pub(crate) trait Answer: fmt::Display + AsRef<str> + VariantNames {
    /// The condition.
    const CONDITION: &'static str;

    /// What it asks, as the reference says it.
    const QUESTION: &'static str;

    /// `True`, `False` or, where what it rests on cannot be known now, `Unknown`.
    fn status(&self) -> &'static str;

    /// In one word.
    fn reason(&self) -> &str {
        self.as_ref()
    }

    /// Every reason that there is; one that several answers have, several times.
    fn reasons() -> impl Iterator<Item = &'static str> {
        Self::VARIANTS.iter().copied()
    }
}

/// A condition, for the reference.
#[derive(Debug)]
pub struct Question {
    /// Its name.
    pub condition: &'static str,
    /// What it asks.
    pub text: &'static str,
    /// The reasons of its answers.
    pub reasons: Vec<&'static str>,
}

/// Every condition, in the order of the status.
pub fn questions() -> [Question; 11] {
    fn question<A: Answer>() -> Question {
        let mut reasons: Vec<&'static str> = Vec::new();
        for reason in A::reasons() {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        Question { condition: A::CONDITION, text: A::QUESTION, reasons }
    }
    [
        question::<Ready>(),
        question::<Progressing>(),
        question::<Degraded>(),
        question::<FailoverSafe>(),
        question::<QuarantineEmpty>(),
        question::<LogFits>(),
        question::<Fenced>(),
        question::<Paused>(),
        question::<Placeable>(),
        question::<BackupsCurrent>(),
        question::<SidecarsCurrent>(),
    ]
}

/// Says what a condition asks, which answers mean yes, and which that nobody knows.
macro_rules! condition {
    ($condition:ident: $question:literal, yes: $yes:pat $(, unknown: $unknown:pat)?) => {
        impl Answer for $condition {
            const CONDITION: &'static str = stringify!($condition);
            const QUESTION: &'static str = $question;

            fn status(&self) -> &'static str {
                match self {
                    $yes => "True",
                    $($unknown => "Unknown",)?
                    _ => "False",
                }
            }
        }
    };
}

condition! {
    Ready: "Whether the app can append.",
    yes: Ready::AllCopies(_) | Ready::FewerCopies(_),
    unknown: Ready::NodeSilent(_) | Ready::NoReport(_)
}

#[derive(Debug, Display, AsRefStr, VariantNames)]
pub(crate) enum Ready {
    /// {0}
    AllCopies(PhaseReason),
    /// {0}
    FewerCopies(PhaseReason),
    /// {0}
    NodeSilent(PhaseReason),
    /// {0}
    NoReport(PhaseReason),
    /// {0}. Nothing is lost, and the log can be read and trimmed: see TailwindGroupUnavailable
    AppendsWait(PhaseReason),
    /// {0}
    InvalidSpec(String),
    /// {0}
    BackupsStarting(PhaseReason),
    /// {0}
    WaitingForApp(PhaseReason),
    /// {0}
    Unavailable(PhaseReason),
    /// {0}
    Fenced(PhaseReason),
    /// {0}
    Paused(PhaseReason),
    /// {0}
    Hibernated(PhaseReason),
    /// {0}
    Deleting(PhaseReason),
    /// {0}. The API server must answer: see TailwindNoPrimary
    ConfigStoreUnreadable(Candidate),
    /// {0}. The backup pods must come up: see TailwindGroupPending
    WaitsForBackups(Candidate),
    /// {0}. Bring back the members that are missing, and delete none: see TailwindGroupUnavailable
    WaitsForMembers(Candidate),
    /// {0}. Bring back what it names, and delete no backup. If that is impossible, an administrator ends the wait with
    /// spec.acceptLossUpTo: {1}/LSN, where LSN is the last record that must be there; later records may be lost ({2}). See
    /// TailwindMemberDamaged
    WaitsForEvidence(Candidate, String, Acked),
    /// {0}. Put status.log back, and delete no backup: see TailwindConfigStoreWentBack
    ConfigStoreEmpty(Candidate),
    /// {0}. Put the newer status.log back, and delete no backup: see TailwindConfigStoreWentBack. If there is none, an
    /// administrator decides where the log ends, as explained there, with spec.acceptLossUpTo: {1}/LSN
    ConfigStoreWentBack(Candidate, String),
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

#[derive(Debug, Display, AsRefStr, VariantNames)]
pub(crate) enum Progressing {
    /// {0}
    InvalidSpec(String),
    /// paused
    #[strum(serialize = "Settled")]
    Paused,
    /// {0} of an older spec or image: to be replaced as soon as fewer groups are being updated (--max-concurrent-rollouts)
    Queued(Count),
    /// {0} of an older spec or image to be replaced
    Updating(Count),
    /// {0}. As long as that gets nowhere, other groups are updated
    Stalled(Replacement),
    /// {0}
    Waiting(Replacement),
    /// {0}
    Moving(Replacement),
    /// creating {0}
    Creating(Count),
    /// a backup that failed several times is replaced after a pause
    BackingOff,
    /// {0} not ready yet
    Starting(Count),
    /// {0} is catching up
    CatchingUp(String),
    /// nothing is under way
    Settled,
}

#[derive(Debug, Display, AsRefStr, VariantNames)]
pub(crate) enum Degraded {
    /// {0}
    NodeSilent(PhaseReason),
    /// {0}
    ApiRefused(String),
    /// {0} exists and has another owner, so it is left alone. Remove it, or give the group another name
    NameTaken(String),
    /// {0}: {1}
    Reported(String, Trouble),
    /// {0}: {1}
    BackupFailed(String, PodFailure),
    /// {0}: {1}
    MemberDamaged(String, Damage),
    /// {0}
    FewerCopies(PhaseReason),
    /// {0}
    Unavailable(PhaseReason),
    /// {0}
    MoveWaits(Replacement),
    /// {0}: damage unknown: {1}
    NoReport(String, NoReport),
    /// {0}
    #[strum(serialize = "NoReport")]
    PrimaryUnknown(PhaseReason),
    /// nothing is worse than specified
    AsWanted,
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

    /// In place of `Reported`, what can be reported. That a backup has no node yet is the question of [`Placeable`].
    fn reasons() -> impl Iterator<Item = &'static str> {
        let reported = || Trouble::VARIANTS.iter().filter(|trouble| **trouble != "Unscheduled").copied();
        Degraded::VARIANTS.iter().flat_map(move |reason| match *reason {
            "Reported" => reported().collect(),
            reason => vec![reason],
        })
    }
}

condition! {
    FailoverSafe: "Whether a failover now would find everything that was acknowledged, and a standby to take over. No unless \
        shown.",
    yes: FailoverSafe::StandbyAndCopies(_),
    unknown: FailoverSafe::NoReport(..) | FailoverSafe::StandbyUnknown(..)
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum FailoverSafe {
    /// there is no log yet
    NoLog,
    /// nobody takes over while the group is fenced
    Fenced,
    /// no member's pod is working: the log cannot be read until one comes back
    NoCopy,
    /// no other pod of the app could take over: run two or more, on nodes that are well
    NoStandby,
    /// {0} could not take over: {1}
    StandbyUnable(String, String),
    /// {0}: unknown whether it could take over: {1}
    #[strum(serialize = "NoReport")]
    StandbyUnknown(String, NoReport),
    /// {0} waits to become primary, and so would another: see condition Ready
    PromotionWaits(String),
    /// {0} lacks segments that it should hold, and is being repaired from the others
    MemberDamaged(String),
    /// {holders} of {members} members work: one more loss may be one too many
    MemberMissing { holders: usize, members: usize },
    /// {0}: damage unknown: {1}
    NoReport(String, NoReport),
    /// {0}, and a standby
    StandbyAndCopies(Count),
}

condition! {
    QuarantineEmpty: "Whether no backup keeps a copy that an administrator should examine. What is in quarantine harms nothing \
        that runs, so the group is not degraded by it.",
    yes: QuarantineEmpty::NothingKept,
    unknown: QuarantineEmpty::NoReport(..)
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum QuarantineEmpty {
    /// no backup reports a copy in quarantine
    NothingKept,
    /// {0}: quarantine unknown: {1}
    NoReport(String, NoReport),
    /// {0}. Such copies are not part of the log. They stay until an administrator has examined and released them: see
    /// TailwindQuarantine. Until then no backup is evicted, unless they are on claims
    CopiesKept(String),
}

condition! {
    LogFits: "Whether the backups' flush folders have room for more of the log.",
    yes: LogFits::RoomLeft,
    unknown: LogFits::NoReport(..)
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum LogFits {
    /// no backup tells that its flush folder is nearly full
    RoomLeft,
    /// {0}: unknown how full it is: {1}
    NoReport(String, NoReport),
    /// {0}. At the bound appends wait: trim the log, or enlarge spec.flushVolume; see TailwindFlushFolderFilling
    NearlyFull(String),
}

condition! {
    Fenced: "Whether nobody may append.",
    yes: Fenced::FencedBySpec
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum Fenced {
    /// nobody may append; set spec.fenced to false to continue
    FencedBySpec,
    /// spec.fenced is false
    NotFenced,
}

condition! {
    Paused: "Whether the operator leaves the group alone.",
    yes: Paused::PausedBySpec
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum Paused {
    /// the operator changes nothing; set spec.paused to false to continue
    PausedBySpec,
    /// spec.paused is false
    NotPaused,
}

condition! {
    Placeable: "Whether every backup has a node or can have one.",
    yes: Placeable::Placed | Placeable::NodesFree(..)
}

#[derive(Debug, Display, AsRefStr, VariantNames)]
pub(crate) enum Placeable {
    /// every backup has a node
    Placed,
    /// {0} without a node yet, and {1} free
    NodesFree(Count, Count),
    /// {0} without a node. {1}
    NoFreeDevice(Count, Survey),
    /// {0} without a node. {1}
    NoNodeFits(Count, Survey),
}

condition! {
    BackupsCurrent: "Whether the backups are as the spec and the operator would make them now.",
    yes: BackupsCurrent::Current
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum BackupsCurrent {
    /// every backup has the current spec and image
    Current,
    /// {0} of an older spec or image; condition Progressing says how far their replacement is
    Outdated(Count),
    /// {0} of an older spec or image. With updateStrategy OnDelete a backup is replaced when it is deleted; delete one at a
    /// time, and wait for phase Ready before the next: {1}
    OnDelete(Count, String),
}

condition! {
    SidecarsCurrent: "Whether the pods of the app and of readers have the sidecar that they should have.",
    yes: SidecarsCurrent::Current
}

#[derive(Debug, Display, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum SidecarsCurrent {
    /// these pods have no sidecar, perhaps because they were created while no operator was running: recreate {0}
    Missing(String),
    /// every injected sidecar has the configured image
    Current,
    /// restart these pods, in this order, to give them sidecars of {0}: {1}
    Outdated(String, String),
}
