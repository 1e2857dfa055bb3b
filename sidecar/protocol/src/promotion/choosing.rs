//! Which log the fenced members hold: whether enough of them have answered, and what their answers make together.
//!
//! Part of the [`Promotion`](super::Promotion), which asks after each answer and with time.

use std::collections::BTreeSet;

use crate::config::{MemberRef, Time};
use crate::ids::{Lsn, MemberId};
use crate::recovery::{Damage, Reference};
use crate::rpc::Inventory;

use super::fencing::Fencing;
use super::repairing::{Order, Recovered};
use super::rules::{AcceptedLoss, Rules};

impl Fencing {
    /// The log, once every member is fenced, or enough are and the patience has run out. Unfit members count as not fenced,
    /// unless the others are too few or lack a part of the log: then all members count again.
    ///
    /// Only witnesses can tell where the log ends. As long as another member may still answer, as many witnesses are needed as
    /// members must be fenced. Once every member has answered, one is enough: each holds everything that was acknowledged.
    pub(super) fn choose(
        &mut self,
        now: Time,
        rules: &Rules,
        unfit: &mut BTreeSet<MemberId>,
        late: &BTreeSet<MemberId>,
    ) -> Option<Recovered> {
        let needed = rules.needed().min(self.config.members.len());
        let is_late = |member: &MemberRef| late.contains(&member.id) && !self.has_reported(member);
        let patience = if self.config.members.iter().any(is_late) { rules.long_wait_ms() } else { rules.fence_wait_ms };
        let patience_over = now >= self.since.plus(patience);
        let accepted = self.accepted_loss(rules);
        let enough = |unfit: &BTreeSet<MemberId>| {
            let fenced = self.fenced_without(unfit);
            let witnesses = fenced.iter().filter(|inventory| inventory.witness).count();
            let end_is_known = match accepted {
                Some(_) => true,
                None if self.nobody_is_missing() => witnesses >= 1,
                None => witnesses >= needed,
            };
            fenced.len() >= needed && end_is_known && (patience_over || self.has_all_without(unfit))
        };
        if !enough(unfit) {
            if !enough(&BTreeSet::new()) {
                let waited_long = now >= self.since.plus(rules.long_wait_ms());
                let all_known = self.nobody_is_missing() && patience_over;
                let may_count_disks = (all_known || waited_long) && !self.from_disk.is_empty();
                return if may_count_disks { self.choose_from_disk(rules, unfit) } else { None };
            }
            unfit.clear();
        }
        let fenced = self.fenced_without(unfit);
        let assembled = match accepted {
            Some(accepted) => Reference::assemble_at_least(fenced.iter().copied(), &self.others, accepted.last),
            None => Reference::assemble(fenced.iter().copied(), &self.others),
        };
        let damage = match assembled {
            Ok(reference) => {
                let by_order = accepted.map(|accepted| Order::AcceptLoss(accepted.last));
                return Some(Recovered::new(&self.config, reference, &fenced, by_order));
            }
            Err(damage) => damage,
        };
        if !unfit.is_empty() {
            unfit.clear();
            return self.choose(now, rules, unfit, late);
        }
        if let Some(odd) = self.odd_one_out(&damage, needed) {
            unfit.insert(odd);
            return self.choose(now, rules, unfit, late);
        }
        self.damage = Some(damage);
        None
    }

    /// Too few members have their memory, and an administrator has ordered that the disks of those that have lost it count. One
    /// member is enough: every member of the last set holds on its disk what was ever synced. The log must reach that.
    fn choose_from_disk(&mut self, rules: &Rules, unfit: &mut BTreeSet<MemberId>) -> Option<Recovered> {
        let all: Vec<&Inventory> = self.answers.values().flatten().chain(self.from_disk.values()).collect();
        let fit: Vec<&Inventory> = all.iter().copied().filter(|one| !unfit.contains(&one.member)).collect();
        let fenced = if fit.is_empty() { all } else { fit };
        let synced = fenced.iter().filter_map(|inventory| inventory.synced).max().map_or(Lsn(0), |synced| synced.last);
        let accepted = self.accepted_loss(rules);
        let least = accepted.map_or(synced, |accepted| accepted.last);
        match Reference::assemble_at_least(fenced.iter().copied(), &self.others, least) {
            Ok(reference) => {
                let by_order = accepted.map_or(Order::FromDisk, |accepted| Order::AcceptLoss(accepted.last));
                return Some(Recovered::new(&self.config, reference, &fenced, Some(by_order)));
            }
            Err(_) if !unfit.is_empty() => unfit.clear(),
            Err(_) if synced > Lsn(0) && accepted.is_none() => self.damage = Some(Damage::Unsynced { synced }),
            Err(damage) => self.damage = Some(damage),
        }
        None
    }

    fn accepted_loss(&self, rules: &Rules) -> Option<AcceptedLoss> {
        rules.accept_loss.filter(|accepted| accepted.is_for(&self.config))
    }
}
