//! The configuration of a group's log: its primary and its members. Changed by compare-and-swap only.
//!
//! Kept in the config store; proposed by [`promotion`](crate::promotion) and [`primary`](crate::primary).

use serde::{Deserialize, Serialize};

use crate::ids::{BootId, Claim, Epoch, LogId, Lsn, MemberId, SidecarId, Version};

/// Most members in a set, and so most copies of a record: twice the replication factor that anyone runs in practice,
/// and small enough for fixed arrays on the append path.
pub const MEMBERS_MAX: usize = 8;

/// Earlier claims in a configuration: a member that has missed fewer epochs notices a store that went back. 32 × 8 bytes,
/// beside a few hundred for the rest.
pub const CLAIMS_KEPT: usize = 32;

/// Cuts in a configuration. Each needs an administrator's order; of older ones the shortest log is kept.
pub const CUTS_KEPT: usize = 8;

/// The primary, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrimaryRef {
    /// Its name.
    pub id: SidecarId,
    /// `host:port` of its control endpoint, where standbys listen for heartbeats.
    pub control: String,
}

/// A backup in the set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRef {
    /// Its name.
    pub id: MemberId,
    /// Its memory's identity when it joined: with another identity it no longer holds what it held.
    pub boot: BootId,
    /// `host:port` of its control RPC.
    pub control: String,
}

/// What the config store holds for one log. (epoch, version) grows with every change and names the content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The log; drawn at random when the group is first started.
    pub log: LogId,
    /// What the log keeps. Left out for plain records: earlier builds, which know nothing else, refuse a field that they do not
    /// know.
    #[serde(default, skip_serializing_if = "Kind::is_log")]
    pub kind: Kind,
    /// The epoch of the current primary.
    pub epoch: Epoch,
    /// Drawn at random for the claim of this epoch. A conflict with an equal configuration is success (see
    /// [`SwapOutcome::settle`]), so no two claims may be equal, not even those of a sidecar that died as primary and reads an
    /// old configuration after its restart.
    pub claim: Claim,
    /// The claims of the earlier epochs, the latest first, at most [`CLAIMS_KEPT`]. Empty in the first epoch, and after an
    /// administrator has accepted a store that went back. They show a member that promised one of those epochs to another claim
    /// that the store has gone back and its set may be an old one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Claim>,
    /// The last epoch that had a primary; 0 before there was any. Written before anything is acknowledged in that epoch: a member
    /// of the set that has promised less has an older copy of what it held.
    #[serde(default)]
    pub won: Epoch,
    /// Where an administrator's order has ended the log, the latest last, at most [`CUTS_KEPT`]. Earlier positions may name
    /// records that are gone; see [`History`](crate::history::History).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Cut>,
    /// Raised at every change of the member set.
    pub version: Version,
    /// The primary of this epoch.
    pub primary: PrimaryRef,
    /// The set: an ack needs every one of them.
    pub members: Vec<MemberRef>,
}

/// A recovery that may have ended the log before its last acknowledged record, because an administrator accepted that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The epoch that began with it.
    pub epoch: Epoch,
    /// The last record that was kept.
    pub last: Lsn,
    /// The LSN that the administrator named, if the order names one: it holds once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Lsn>,
}

/// Names one content of the config store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The epoch.
    pub epoch: Epoch,
    /// The version.
    pub version: Version,
}

impl MemberRef {
    /// True for the same backup with the same memory, wherever it can be reached now.
    pub fn is_same(&self, other: &MemberRef) -> bool {
        (&self.id, self.boot) == (&other.id, other.boot)
    }
}

impl Configuration {
    /// What a compare-and-swap compares.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, version: self.version }
    }

    /// The same log under a new primary, in the next epoch.
    #[must_use]
    pub fn claimed_by(&self, primary: PrimaryRef, claim: Claim) -> Configuration {
        let earlier = std::iter::once(self.claim).chain(self.earlier.iter().copied()).take(CLAIMS_KEPT).collect();
        Configuration {
            epoch: self.epoch.next(),
            claim,
            earlier,
            version: self.version.next(),
            primary,
            ..self.clone()
        }
    }

    /// The same epoch with another member set.
    #[must_use]
    pub fn with_members(&self, members: Vec<MemberRef>) -> Configuration {
        Configuration { version: self.version.next(), members, ..self.clone() }
    }

    /// The same epoch once these members hold the recovered log, with the cut that it took, if any.
    #[must_use]
    pub fn won_with(&self, members: Vec<MemberRef>, cut: Option<Cut>) -> Configuration {
        let mut cuts: Vec<Cut> = self.cuts.iter().copied().chain(cut).collect();
        while cuts.len() > CUTS_KEPT {
            let oldest = cuts.remove(0);
            cuts[0].last = cuts[0].last.min(oldest.last);
        }
        Configuration { won: self.epoch, cuts, ..self.with_members(members) }
    }

    /// The member of this name.
    pub fn member(&self, id: &MemberId) -> Option<&MemberRef> {
        self.members.iter().find(|m| m.id == *id)
    }
}

/// A compare-and-swap: replace the content named `expected` (`None`: no content yet) by `proposed`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Swap {
    /// The stamp of the content that must be there now.
    pub expected: Option<Stamp>,
    /// The content that replaces it.
    pub proposed: Configuration,
}

impl Swap {
    /// Whether the content that was found is the one that this swap expects. Stamps alone do not tell: a group that was deleted
    /// and created again counts its epochs from the beginning.
    pub fn expects(&self, found: Option<&Configuration>) -> bool {
        found.map(Configuration::stamp) == self.expected && found.is_none_or(|found| found.log == self.proposed.log)
    }
}

/// How a swap ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SwapOutcome {
    /// `proposed` is stored.
    Applied,
    /// The stored content was not `expected`. It may be `proposed` itself, if an earlier try was applied.
    Conflict(Option<Configuration>),
    /// No answer: it may have been applied, or may still be. Only the same swap may be tried next.
    Unknown,
}

impl SwapOutcome {
    /// Turns a conflict with an equal configuration, written by an earlier try, into `Applied`.
    #[must_use]
    pub fn settle(self, proposed: &Configuration) -> SwapOutcome {
        match self {
            SwapOutcome::Conflict(Some(found)) if found == *proposed => SwapOutcome::Applied,
            other => other,
        }
    }
}

/// What an ack promises; see "What an ack promises" in the README.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In the memory of every member.
    #[default]
    Memory,
    /// As `Memory`; the administrator attests that every backup has power for its hold-up time.
    Battery,
    /// On the disk of every member.
    Flushed,
}

impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Durability::Memory => "memory",
            Durability::Battery => "battery",
            Durability::Flushed => "flushed",
        })
    }
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Durability, String> {
        let all = [Durability::Memory, Durability::Battery, Durability::Flushed];
        all.into_iter()
            .find(|durability| durability.to_string() == text)
            .ok_or_else(|| format!("must be one of {}", all.map(|durability| durability.to_string()).join(" | ")))
    }
}

/// What a group keeps in its log. Said by who founds it, and the same for as long as the group is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Records, for its apps to read and to trim.
    #[default]
    Log,
    /// Keyed records, of which the last one of each key counts; see [`table`](crate::table).
    Table,
}

impl Kind {
    /// True for records of any content.
    pub fn is_log(&self) -> bool {
        *self == Kind::Log
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Log => "log",
            Kind::Table => "table",
        })
    }
}

/// Milliseconds since any fixed moment, from a monotonic clock. The protocol never uses wall-clock time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// This moment plus `ms`.
    #[must_use]
    pub fn plus(self, ms: u64) -> Time {
        Time(self.0 + ms)
    }
}
