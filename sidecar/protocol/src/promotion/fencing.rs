//! The answers of the members that a promotion fences, and what they show.
//!
//! Part of the [`Promotion`](super::Promotion), which decides by it when to choose the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::config::{Configuration, MemberRef, Time};
use crate::ids::{Epoch, Lsn, MemberId, SegmentId};
use crate::recovery::{Damage, Reference};
use crate::rpc::{CopyReport, CopyState, Inventory};

use super::messages::Waiting;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fencing {
    pub(super) config: Configuration,
    pub(super) since: Time,
    pub(super) retry_at: Time,
    /// The answer of each member that has answered.
    pub(super) answers: BTreeMap<MemberId, Result<Inventory, Absence>>,
    /// What members that have lost their memory hold on disk, if an administrator has ordered that it counts.
    pub(super) from_disk: BTreeMap<MemberId, Inventory>,
    /// The log could not be put together from these answers.
    pub(super) damage: Option<Damage>,
    /// A survey of all backups for missing segments is under way.
    pub(super) surveying: bool,
    /// The config store is being read, because of a member's word, or because no member says what has become of this epoch.
    pub(super) comparing: bool,
    /// When it is read next if too few members answer.
    pub(super) look_at: Time,
    /// What the surveys have found: closed copies that other backups have, of segments of which a member has a corrupt one.
    pub(super) others: Vec<Inventory>,
}

/// Why a member does not take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Absence {
    /// It does not answer, or could not be fenced so far.
    Silent(String),
    /// It refuses, because it has promised this epoch to another claimant.
    Promised(Epoch),
    /// It answers with other memory: what it held as a member is gone, but for what may be on its disk. If that is the disk
    /// of the member, up to where it was synced.
    Reborn(Option<Lsn>),
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// Nothing is known yet. Members that fail are asked again at `retry_at`.
    pub(super) fn start(config: Configuration, now: Time, retry_at: Time) -> Fencing {
        Fencing {
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
        }
    }

    /// Members that have failed. Where the log is damaged, all that have answered: an administrator may have restored what one of
    /// them has lost.
    pub(super) fn to_ask_again(&self) -> impl Iterator<Item = &MemberRef> {
        self.config.members.iter().filter(|member| match self.answers.get(&member.id) {
            Some(Ok(_)) => self.damage.is_some(),
            Some(Err(_)) => true,
            None => false,
        })
    }

    /// Whom the promotion waits for; `None` if enough members have answered and none is damaged.
    pub(super) fn missing(&self, needed: usize) -> Option<Waiting> {
        let needed = needed.min(self.config.members.len());
        let fenced: Vec<&Inventory> = self.answers.values().flatten().collect();
        let missing = self.config.members.iter().filter_map(|member| match self.answers.get(&member.id) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("{} ({why})", member.id)),
            None => Some(format!("{} (no answer yet)", member.id)),
        });
        let missing = missing.collect::<Vec<_>>().join(", ");
        if fenced.len() < needed {
            return Some(Waiting::Members { fenced: fenced.len() as u8, needed: needed as u8, missing });
        }
        let damaged = fenced.iter().filter(|inventory| !inventory.witness);
        let damaged: Vec<String> =
            damaged.map(|inventory| format!("{} ({})", inventory.member, inventory.damage.join("; "))).collect();
        if damaged.is_empty() {
            return None;
        }
        let witnesses = (fenced.len() - damaged.len()) as u8;
        Some(Waiting::Witnesses { witnesses, needed: needed as u8, damaged: damaged.join(", "), missing })
    }

    /// True when every member has reported what it holds, or has lost its memory.
    pub(super) fn nobody_is_missing(&self) -> bool {
        self.config.members.iter().all(|member| self.has_reported(member))
    }

    /// Members that answer, no matter what.
    pub(super) fn reached(&self) -> usize {
        self.answers.values().filter(|answer| !matches!(answer, Err(Absence::Silent(_)))).count()
    }

    pub(super) fn has_reported(&self, member: &MemberRef) -> bool {
        matches!(self.answers.get(&member.id), Some(Ok(_) | Err(Absence::Reborn(_))))
    }

    /// Remembers which of the corrupt copies others have. A survey is of one page behind one segment, so what an earlier one has
    /// found counts too.
    pub(super) fn take_others(&mut self, found: impl Iterator<Item = Inventory>) {
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
    pub(super) fn fenced_without(&self, unfit: &BTreeSet<MemberId>) -> Vec<&Inventory> {
        self.answers.values().flatten().filter(|inventory| !unfit.contains(&inventory.member)).collect()
    }

    /// The one member whose report contradicts those of all others, who agree and can tell where the log ends. Members that are
    /// right never contradict each other: it is this one that is wrong. What is missing, or short, shows nobody who is.
    pub(super) fn odd_one_out(&self, damage: &Damage, needed: usize) -> Option<MemberId> {
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
    pub(super) fn has_all_without(&self, unfit: &BTreeSet<MemberId>) -> bool {
        let wanted = self.config.members.iter().filter(|member| !unfit.contains(&member.id)).count();
        self.fenced_without(unfit).len() == wanted
    }
}
