//! One thing each that an administrator may want to know of a group.
//!
//! Chosen by [`conditions`](crate::plan::conditions).

use std::fmt;

use strum::{AsRefStr, EnumIter, VariantNames};

use super::Answer;
use crate::plan::count::Count;
use crate::plan::placement::Survey;
use crate::plan::trouble::NoReport;

condition! {
    FailoverSafe: "Whether a failover now would find everything that was acknowledged, and a standby to take over. No unless \
        shown.",
    yes: FailoverSafe::StandbyAndCopies(_),
    unknown: FailoverSafe::NoReport(..) | FailoverSafe::StandbyUnknown(..)
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum FailoverSafe {
    NoLog,
    ConfigStoreEmpty,
    ClaimsUnread(String),
    Fenced,
    NoCopy,
    NoStandby,
    StandbyUnable(String, String),
    #[strum(serialize = "NoReport")]
    StandbyUnknown(String, NoReport),
    PromotionWaits(String),
    MemberDamaged(String),
    MemberMissing {
        holders: usize,
        members: usize,
    },
    NoReport(String, NoReport),
    StandbyAndCopies(Count),
}

impl fmt::Display for FailoverSafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FailoverSafe::NoLog => f.write_str("there is no log yet"),
            FailoverSafe::ConfigStoreEmpty => {
                f.write_str("there is a log, and status.log is empty: nobody takes over until it is put back")
            }
            FailoverSafe::ClaimsUnread(claims) => {
                write!(f, "status.log is empty, and nobody has reported yet what is on {claims}")
            }
            FailoverSafe::Fenced => f.write_str("nobody takes over while the group is fenced"),
            FailoverSafe::NoCopy => {
                f.write_str("no member's pod is working: the log cannot be read until one comes back")
            }
            FailoverSafe::NoStandby => {
                f.write_str("no other pod of the app could take over: run two or more, on nodes that are well")
            }
            FailoverSafe::StandbyUnable(pod, why) => write!(f, "{pod} could not take over: {why}"),
            FailoverSafe::StandbyUnknown(pod, why) => write!(f, "{pod}: unknown whether it could take over: {why}"),
            FailoverSafe::PromotionWaits(pod) => {
                write!(f, "{pod} waits to become primary, and so would another: see condition Ready")
            }
            FailoverSafe::MemberDamaged(backup) => {
                write!(f, "{backup} lacks segments that it should hold, and is being repaired from the others")
            }
            FailoverSafe::MemberMissing { holders, members } => {
                write!(f, "{holders} of {members} members work: one more loss may be one too many")
            }
            FailoverSafe::NoReport(backup, why) => write!(f, "{backup}: damage unknown: {why}"),
            FailoverSafe::StandbyAndCopies(copies) => write!(f, "{copies}, and a standby"),
        }
    }
}

condition! {
    QuarantineEmpty: "Whether no backup keeps a copy that an administrator should examine. What is in quarantine harms nothing \
        that runs, so the group is not degraded by it.",
    yes: QuarantineEmpty::NothingKept,
    unknown: QuarantineEmpty::NoReport(..)
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum QuarantineEmpty {
    NothingKept,
    NoReport(String, NoReport),
    CopiesKept(String),
}

impl fmt::Display for QuarantineEmpty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuarantineEmpty::NothingKept => f.write_str("no backup reports a copy in quarantine"),
            QuarantineEmpty::NoReport(backup, why) => write!(f, "{backup}: quarantine unknown: {why}"),
            QuarantineEmpty::CopiesKept(backups) => write!(
                f,
                "{backups}. Such copies are not part of the log. They stay until an administrator has examined and \
                 released them: see TailwindQuarantine. Until then no backup is evicted, unless they are on claims"
            ),
        }
    }
}

condition! {
    LogFits: "Whether the backups' flush folders have room for more of the log.",
    yes: LogFits::RoomLeft,
    unknown: LogFits::NoReport(..)
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum LogFits {
    RoomLeft,
    NoReport(String, NoReport),
    NearlyFull(String),
}

impl fmt::Display for LogFits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFits::RoomLeft => f.write_str("no backup tells that its flush folder is nearly full"),
            LogFits::NoReport(backup, why) => write!(f, "{backup}: unknown how full it is: {why}"),
            LogFits::NearlyFull(folders) => write!(
                f,
                "{folders}. At the bound appends wait: trim the log, or enlarge spec.flushVolume; see \
                 TailwindFlushFolderFilling"
            ),
        }
    }
}

condition! {
    TableHasRoom: "Whether the group's table has room for more. Absent if the group keeps a log.",
    yes: TableHasRoom::RoomLeft,
    unknown: TableHasRoom::NoPrimary | TableHasRoom::NoReport(_)
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum TableHasRoom {
    RoomLeft,
    NoPrimary,
    NoReport(String),
    NearlyFull { live: u64, keys: u64 },
    NotCleaned(u64),
}

impl fmt::Display for TableHasRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableHasRoom::RoomLeft => f.write_str("the table has room for more keys and values"),
            TableHasRoom::NoPrimary => f.write_str("there is no primary that knows how full the table is"),
            TableHasRoom::NoReport(why) => write!(f, "unknown how full the table is: {why}"),
            TableHasRoom::NearlyFull { live, keys } => write!(
                f,
                "the table's live records take {live} % of the bytes, and its keys are {keys} % of the number that there may \
                 be. At 100 % it takes nothing that adds to them: delete keys, or enlarge spec.table; see \
                 TailwindTableNearlyFull"
            ),
            TableHasRoom::NotCleaned(segment) => write!(
                f,
                "segment {segment} has a record that is not keyed, so nothing from there on is cleaned. The log fills the \
                 table's memory, and then puts wait: see TailwindTableNearlyFull"
            ),
        }
    }
}

condition! {
    Fenced: "Whether nobody may append.",
    yes: Fenced::FencedBySpec
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum Fenced {
    FencedBySpec,
    NotFenced,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fenced::FencedBySpec => f.write_str("nobody may append; set spec.fenced to false to continue"),
            Fenced::NotFenced => f.write_str("spec.fenced is false"),
        }
    }
}

condition! {
    Paused: "Whether the operator leaves the group alone.",
    yes: Paused::PausedBySpec
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum Paused {
    PausedBySpec,
    NotPaused,
}

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Paused::PausedBySpec => f.write_str("the operator changes nothing; set spec.paused to false to continue"),
            Paused::NotPaused => f.write_str("spec.paused is false"),
        }
    }
}

condition! {
    Placeable: "Whether every backup has a node or can have one.",
    yes: Placeable::Placed | Placeable::NodesFree(..)
}

#[derive(Debug, AsRefStr, VariantNames)]
pub(crate) enum Placeable {
    Placed,
    NodesFree(Count, Count),
    NoFreeDevice(Count, Survey),
    NoNodeFits(Count, Survey),
}

impl fmt::Display for Placeable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placeable::Placed => f.write_str("every backup has a node"),
            Placeable::NodesFree(backups, nodes) => write!(f, "{backups} without a node yet, and {nodes} free"),
            Placeable::NoFreeDevice(backups, survey) | Placeable::NoNodeFits(backups, survey) => {
                write!(f, "{backups} without a node. {survey}")
            }
        }
    }
}

condition! {
    BackupsCurrent: "Whether the backups are as the spec and the operator would make them now.",
    yes: BackupsCurrent::Current
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum BackupsCurrent {
    Current,
    Outdated(Count),
    OnDelete(Count, String),
}

impl fmt::Display for BackupsCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupsCurrent::Current => f.write_str("every backup has the current spec and image"),
            BackupsCurrent::Outdated(backups) => write!(
                f,
                "{backups} of an older spec or image; condition Progressing says how far their replacement is"
            ),
            BackupsCurrent::OnDelete(backups, names) => write!(
                f,
                "{backups} of an older spec or image. With updateStrategy OnDelete a backup is replaced when it is \
                 deleted; delete one at a time, and wait for phase Ready before the next: {names}"
            ),
        }
    }
}

condition! {
    SidecarsCurrent: "Whether the pods of the app and of readers have the sidecar that they should have.",
    yes: SidecarsCurrent::Current
}

#[derive(Debug, AsRefStr, EnumIter, VariantNames)]
pub(crate) enum SidecarsCurrent {
    Missing(String),
    OtherKind(String),
    OtherSize(String),
    Current,
    Outdated(String, String),
}

impl fmt::Display for SidecarsCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SidecarsCurrent::Missing(pods) => write!(
                f,
                "these pods have no sidecar, perhaps because they were created while no operator was running: \
                 recreate {pods}"
            ),
            SidecarsCurrent::OtherKind(pods) => write!(
                f,
                "the sidecars of these pods were started for a log and the group keeps a table, or the other way round; they \
                 take no part: recreate {pods}"
            ),
            SidecarsCurrent::OtherSize(pods) => write!(
                f,
                "recreate these pods, in this order, to give their sidecars the size of spec.table, and the memory for it: \
                 {pods}"
            ),
            SidecarsCurrent::Current => f.write_str("every injected sidecar has the configured image"),
            SidecarsCurrent::Outdated(image, pods) => {
                write!(f, "restart these pods, in this order, to give them sidecars of {image}: {pods}")
            }
        }
    }
}
