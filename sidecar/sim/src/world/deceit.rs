//! Who is believed on his word, and should not be: a member that lies, and an address that has a new owner.
//!
//! Random numbers of their own, so that seeds without deceit play as they did before there was any.

use tailwind_protocol::ids::{Epoch, Lsn, MemberId};
use tailwind_protocol::rpc::{Inventory, Refusal};

use super::network::{Answer, Silence};
use super::sidecar::{Process, Purpose};
use super::{HostNo, SidecarNo, World};
use crate::plan::Plan;
use crate::random::Random;
use crate::tally::Fault;
use crate::trace::trace;

/// Tells these random numbers from all others of a seed.
const SALT: u64 = 0x006c_6961_7273;

/// What is false in this seed.
#[derive(Debug)]
pub(crate) struct Deceit {
    random: Random,
    /// This backup lies, in every second answer.
    liar: Option<HostNo>,
    /// It lies although there are no faults.
    lies: bool,
    /// A member's folder comes back from before a failover.
    puts_back: bool,
    /// A sidecar that starts may have the address of one that is down.
    addresses: bool,
}

impl Deceit {
    /// In a quarter of the seeds one of three members or more lies, where one alone never decides; in a third, addresses change.
    pub(super) fn of(seed: u64, plan: &Plan) -> Deceit {
        let mut random = Random::new(seed ^ SALT);
        let outvoted = plan.backups >= 3 && plan.min_in_sync >= 2;
        let liar = (outvoted && random.one_in(4)).then(|| HostNo(random.below(u64::from(plan.backups)) as usize));
        Deceit { liar, lies: false, addresses: random.one_in(3), puts_back: random.one_in(2), random }
    }

    pub(super) fn none() -> Deceit {
        Deceit { random: Random::still(), liar: None, lies: false, addresses: false, puts_back: false }
    }

    pub(super) fn liar(&self) -> Option<HostNo> {
        self.liar
    }

    pub(super) fn puts_back(&self) -> bool {
        self.puts_back
    }

    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        self.random.pick(from)
    }

    pub(super) fn begin(&mut self) {
        self.lies = true;
    }

    pub(super) fn end(&mut self) {
        self.lies = false;
    }

    pub(super) fn within(&mut self, least: u64, most: u64) -> u64 {
        self.random.within(least, most)
    }
}

impl World {
    /// What a member answers to a fence is false now and then: it says that all that it holds, or more, has been trimmed. A person
    /// who orders the recovery from one disk believes that disk.
    pub(super) fn perhaps_lie(&mut self, inventory: &mut Inventory) {
        let Some(liar) = self.deceit.liar.filter(|liar| self.hosts[liar.0].name == inventory.member) else { return };
        if !self.faults_on || self.desired.recover_from_disk.is_some() || !self.deceit.random.one_in(2) {
            return;
        }
        let last = inventory.copies.iter().map(|copy| copy.closure.last).max().unwrap_or_default();
        inventory.trimmed = inventory.trimmed.max(Lsn(last.0 + self.deceit.random.below(2)));
        trace!(self, "{} lies: all below LSN {} is trimmed", self.hosts[liar.0].name, inventory.trimmed);
        self.tally.count(Fault::MemberLies);
    }

    /// Whatever a candidate or a primary wants of the liar, it refuses now and then: it says that it has promised a later epoch, or
    /// this one to another claim.
    pub(super) fn perhaps_refuse(
        &mut self,
        to: SidecarNo,
        purpose: &Purpose,
        answer: Result<Answer, Silence>,
    ) -> Result<Answer, Silence> {
        let asked = self.member_asked(to, purpose);
        let liar = self.deceit.liar.filter(|liar| asked == Some(&self.hosts[liar.0].name));
        let (Some(liar), true) = (liar, self.faults_on || self.deceit.lies) else { return answer };
        let seldom = if self.deceit.lies { 2 } else { 12 };
        if answer.is_err() || self.desired.recover_from_disk.is_some() || !self.deceit.random.one_in(seldom) {
            return answer;
        }
        let epoch = self.store.content().map_or(Epoch(0), |config| config.epoch);
        let refusal = match self.deceit.random.below(4) {
            0 => Refusal::ClaimedBefore { promised: Epoch(epoch.0 - self.deceit.random.below(epoch.0 + 1)) },
            1 => Refusal::Fenced { promised: Epoch(epoch.0 + self.deceit.random.below(1 << 50)) },
            ahead => Refusal::Fenced { promised: Epoch(epoch.0 + ahead) },
        };
        trace!(self, "{} lies: {refusal}", self.hosts[liar.0].name);
        self.tally.count(Fault::MemberLies);
        Ok(Answer::Refused(refusal))
    }

    fn member_asked<'a>(&'a self, by: SidecarNo, purpose: &'a Purpose) -> Option<&'a MemberId> {
        Some(match purpose {
            Purpose::Fence(_, member) => member,
            Purpose::Repair(_, task) => task.member(),
            Purpose::Recruit(member) => &member.id,
            Purpose::Seat(output) => &self.sidecars[by.0].lead()?.links.get(&output.seat()?)?.member.id,
            _ => return None,
        })
    }

    /// A sidecar that is about to start gets the address of another one that is down, which gets its own.
    pub(super) fn take_another_address(&mut self, of: SidecarNo) {
        if !self.deceit.addresses || !self.deceit.random.one_in(2) {
            return;
        }
        let down = |other: &&super::Sidecar| other.no != of && other.process == Process::Down;
        let Some(other) = self.sidecars.iter().find(down).map(|other| other.no) else { return };
        let (mine, its) = (self.sidecars[of.0].address, self.sidecars[other.0].address);
        (self.sidecars[of.0].address, self.sidecars[other.0].address) = (its, mine);
        trace!(self, "{} and {} change addresses", self.sidecars[of.0].name, self.sidecars[other.0].name);
        self.tally.count(Fault::AddressesChange);
    }
}
