//! The recovered log, and the tasks by which each member comes to hold it.
//!
//! Part of the [`Promotion`](super::Promotion).

use crate::config::{Configuration, Cut, MemberRef, Time};
use crate::ids::{Lsn, MemberId};
use crate::recovery::{Reference, RepairPlan};
use crate::rpc::Inventory;

use super::messages::{Output, Task};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Repairing {
    pub(super) recovered: Recovered,
    /// Under way.
    pub(super) tasks: Vec<Task>,
    /// When the last task was finished, or the first was handed out.
    pub(super) progress: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recovered {
    pub(super) config: Configuration,
    /// Members that were fenced in time, and are fit.
    pub(super) fenced: Vec<MemberRef>,
    pub(super) reference: Reference,
    pub(super) plans: Vec<(MemberRef, RepairPlan)>,
    /// An administrator's order has decided where it ends.
    pub(super) by_order: Option<Order>,
}

/// What an administrator has ordered, as far as a recovery has made use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    AcceptLoss(Lsn),
    FromDisk,
}

impl Recovered {
    /// The log that these members are to hold. A member that counts by its disk has the identity that it has now.
    pub(super) fn new(
        config: &Configuration,
        reference: Reference,
        fenced: &[&Inventory],
        by_order: Option<Order>,
    ) -> Recovered {
        let reference = reference.of_members(fenced.iter().copied());
        let plan = |inventory: &&Inventory| {
            let member = config.member(&inventory.member)?;
            let member = MemberRef { boot: inventory.boot, ..member.clone() };
            Some((member, reference.plan_for(inventory)))
        };
        let plans: Vec<(MemberRef, RepairPlan)> = fenced.iter().filter_map(plan).collect();
        let fenced = plans.iter().map(|(member, _)| member.clone()).collect();
        Recovered { config: config.clone(), fenced, reference, plans, by_order }
    }

    /// What the config store is to hold once these members hold the log.
    pub(super) fn won(&self) -> Configuration {
        let Recovered { config, fenced, reference, by_order, .. } = self;
        let cut = by_order.map(|order| Cut {
            epoch: config.epoch,
            last: reference.last(),
            ordered: match order {
                Order::AcceptLoss(last) => Some(last),
                Order::FromDisk => None,
            },
        });
        let members = config.members.iter().filter_map(|member| fenced.iter().find(|fenced| fenced.id == member.id));
        config.won_with(members.cloned().collect(), cut)
    }

    /// Gives each idle member its next task. The trim comes first: after the drops a member could no longer tell a trimmed
    /// beginning from a loss. Then closes and images, oldest segment first: if a loss of power leaves only the disk, no member
    /// may have a later segment without the one before. Images come after all members' closes, because only a closed copy can
    /// be copied.
    pub(super) fn hand_out(&mut self, tasks: &mut Vec<Task>, out: &mut Vec<Output>) {
        let Recovered { config, reference, plans, .. } = self;
        let is_busy =
            |tasks: &[Task], id: &MemberId| tasks.iter().any(|task| task.ordered().is_some_and(|busy| busy == id));
        for (member, plan) in plans.iter_mut() {
            if let Some(below) = plan.trim.take() {
                tasks.push(Task::Trim(member.id.clone()));
                out.push(Output::Trim(config.clone(), member.clone(), below));
            }
            if !is_busy(tasks, &member.id) && !plan.drop.is_empty() {
                tasks.push(Task::Drop(member.id.clone()));
                out.push(Output::Drop(config.clone(), member.clone(), std::mem::take(&mut plan.drop)));
            }
            if !is_busy(tasks, &member.id) && !plan.close.is_empty() {
                let (identity, closure) = plan.close.remove(0);
                tasks.push(Task::Close(member.id.clone(), identity.segment));
                out.push(Output::Close(config.clone(), member.clone(), identity, closure));
            }
        }
        if tasks.iter().any(|task| !matches!(task, Task::Install(..))) {
            return;
        }
        for (member, plan) in plans.iter_mut() {
            if !is_busy(tasks, &member.id) && !plan.install.is_empty() {
                let (identity, closure) = plan.install.remove(0);
                let known = reference.segments.iter().find(|s| s.identity.segment == identity.segment);
                let holders = known.map(|segment| segment.holders.clone()).unwrap_or_default();
                tasks.push(Task::Install(member.id.clone(), identity.segment));
                out.push(Output::Install(config.clone(), member.clone(), identity, closure, holders));
            }
        }
    }
}
