//! Who is believed on his word, and should not be: a member that lies, and an address that has a new owner.
//!
//! Random numbers of their own, so that seeds without deceit play as they did before there was any.

use tailwind_protocol::ids::{BootId, Epoch, Generation, LogId, Lsn, MemberId, Offset, SegmentId};
use tailwind_protocol::layout::{Chain, Closure, SegmentSize};
use tailwind_protocol::rpc::CopyState::{Closed, Corrupt, Damaged, Open};
use tailwind_protocol::rpc::{CopyReport, Inventory, Refusal, Synced};

use super::network::{Answer, Silence};
use super::sidecar::{Process, Purpose};
use super::{HostNo, SidecarNo, World};
use crate::plan::Plan;
use crate::random::Random;
use crate::tally::Fault;
use crate::trace::trace;

/// Tells these random numbers from all others of a seed.
const SALT: u64 = 0x006c_6961_7273;

/// What a member lies about more often than about anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A segment behind which the log goes on is of the latest epoch that had a primary.
    LaterEpoch,
}

/// What is false in this seed.
#[derive(Debug)]
pub(crate) struct Deceit {
    random: Random,
    /// What the liar likes to say.
    favourite: Option<Lie>,
    /// This backup lies, in every second inventory, and now and then in other answers.
    liar: Option<HostNo>,
    /// It lies although there are no faults.
    lies: bool,
    /// A member's folder comes back from before a failover.
    puts_back: bool,
    /// A sidecar that starts may have the address of one that is down.
    addresses: bool,
}

impl Deceit {
    /// Where one alone never decides, in half of the seeds one of three members or more lies; in a third, addresses change.
    pub(super) fn of(seed: u64, plan: &Plan) -> Deceit {
        let mut random = Random::new(seed ^ SALT);
        let outvoted = plan.backups >= 3 && plan.min_in_sync >= 2;
        let liar = (outvoted && random.one_in(2)).then(|| HostNo(random.below(u64::from(plan.backups)) as usize));
        let (addresses, puts_back) = (random.one_in(3), random.one_in(2));
        Deceit { liar, favourite: None, lies: false, addresses, puts_back, random }
    }

    pub(super) fn none() -> Deceit {
        let (liar, favourite) = (None, None);
        Deceit { random: Random::still(), liar, favourite, lies: false, addresses: false, puts_back: false }
    }

    /// A member lies, and likes this lie.
    pub(super) fn prefer(&mut self, lie: Lie, plan: &Plan) {
        self.favourite = Some(lie);
        self.liar = self.liar.or(Some(HostNo(self.random.below(u64::from(plan.backups)) as usize)));
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

    /// Makes something in an answer false, and says what.
    fn falsify(&mut self, answer: Answer, boots: Vec<BootId>) -> (Option<String>, Answer) {
        let Deceit { random, .. } = self;
        match answer {
            Answer::Inventory(mut inventory) => {
                let lie = self.lie_in(&mut inventory, boots);
                (Some(lie), Answer::Inventory(inventory))
            }
            Answer::Bytes(mut bytes) if !bytes.is_empty() => {
                let at = random.below(bytes.len() as u64) as usize;
                if random.one_in(2) {
                    bytes[at] ^= 1 << random.below(8);
                } else {
                    bytes.truncate(at);
                }
                (Some(format!("a segment with a false byte {at}")), Answer::Bytes(bytes))
            }
            Answer::Damage(mut corrupt) => {
                for copy in &mut corrupt {
                    lie_about(copy, random);
                }
                (Some(format!("{} are corrupt", corrupt.len())), Answer::Damage(corrupt))
            }
            Answer::Connected(_, channel, board) => {
                let boot = *random.pick(&boots);
                (Some(format!("it is {boot}")), Answer::Connected(boot, channel, board))
            }
            Answer::Flushed(end) => {
                let end = Offset(end.0 / 2 + random.below(u64::from(end.0) + 1) as u32 / 8 * 8);
                (Some(format!("flushed up to {end}")), Answer::Flushed(end))
            }
            Answer::Refused(why @ Refusal::NoSuchCopy { .. }) => (Some(format!("done, and not: {why}")), Answer::Done),
            honest => (None, honest),
        }
    }

    /// Makes one field false; what is false then.
    fn lie_in(&mut self, inventory: &mut Inventory, boots: Vec<BootId>) -> String {
        let Deceit { random, favourite, .. } = self;
        if *favourite == Some(Lie::LaterEpoch)
            && random.one_in(2)
            && let Some(lie) = name_a_later_epoch(inventory, random)
        {
            return lie;
        }
        let last = inventory.copies.iter().map(|copy| copy.closure.last).max().unwrap_or_default();
        match random.below(10) {
            0 | 1 => {
                inventory.trimmed = inventory.trimmed.max(Lsn(last.0 + random.below(2)));
                format!("all below LSN {} is trimmed", inventory.trimmed)
            }
            2 => {
                inventory.boot = *random.pick(&boots);
                format!("it is {}", inventory.boot)
            }
            3 => {
                (inventory.witness, inventory.damage) = (!inventory.witness, Vec::new());
                format!("witness: {}", inventory.witness)
            }
            4 => {
                let (epoch, last) = (Epoch(random.below(inventory.promised.0 + 1)), Lsn(random.below(last.0 + 1000)));
                inventory.synced = Some(Synced { epoch, last });
                format!("synced up to {last} in epoch {epoch}")
            }
            5 => {
                inventory.former = boots;
                "it was everybody once".to_owned()
            }
            6 => {
                inventory.promised = Epoch(random.below(inventory.promised.0 + 3));
                format!("it has promised epoch {}", inventory.promised)
            }
            7 => {
                let log = LogId(random.next().into());
                inventory.log = Some(log);
                format!("it is bound to log {log}")
            }
            _ if inventory.copies.is_empty() => "nothing, since it has nothing".to_owned(),
            8 => {
                let lost = random.below(inventory.copies.len() as u64) as usize;
                let lost = if random.one_in(2) { lost..lost + 1 } else { lost..inventory.copies.len() };
                let copies: Vec<SegmentId> = inventory.copies.drain(lost).map(|copy| copy.identity.segment).collect();
                format!("it does not have segments {copies:?}")
            }
            _ => {
                let place = random.below(inventory.copies.len() as u64) as usize;
                // Mostly the newest: where the log ends.
                let place = if random.one_in(3) { place } else { inventory.copies.len() - 1 };
                let copy = &mut inventory.copies[place];
                lie_about(copy, random);
                format!("it has {copy:?}")
            }
        }
    }
}

/// A segment that another one follows is of the epoch that had the last primary; what is false then.
fn name_a_later_epoch(inventory: &mut Inventory, random: &mut Random) -> Option<String> {
    let latest = inventory.promised.before();
    let (_, followed) = inventory.copies.split_last_mut()?;
    let older = followed.iter().filter(|copy| copy.identity.epoch < latest).count();
    let wanted = random.below(older.max(1) as u64) as usize;
    let copy = followed.iter_mut().filter(|copy| copy.identity.epoch < latest).nth(wanted)?;
    copy.identity.epoch = latest;
    Some(format!("it has {copy:?}"))
}

fn lie_about(copy: &mut CopyReport, random: &mut Random) {
    let some = 1 + random.below(30);
    match random.below(11) {
        0 => copy.state = *random.pick(&[Open, Closed, Corrupt, Damaged]),
        1 => copy.closure = Closure { last: Lsn(copy.closure.last.0 + some), ..copy.closure },
        2 => copy.closure = Closure { last: Lsn(copy.closure.last.0.saturating_sub(some)), ..copy.closure },
        3 => copy.closure.end = Offset(random.below(u64::from(copy.closure.end.0) + 1) as u32 / 8 * 8),
        4 => copy.closure.chain = Chain(random.next() as u32),
        5 => copy.acked = Offset(random.below(copy.identity.size.bytes().into()) as u32),
        6 => copy.identity.epoch = Epoch(1 + random.below(copy.identity.epoch.0 + 1)),
        7 => copy.identity.generation = Generation(random.next()),
        8 => copy.identity.size = SegmentSize::DEFAULT,
        9 => copy.closure.first = Lsn(1 + random.below(copy.closure.last.0 + some)),
        _ => copy.identity.segment = SegmentId(copy.identity.segment.0 + some),
    }
}

impl World {
    /// What a member answers is false now and then, in one field. Where a recovery from one disk was ordered, that disk is believed.
    pub(super) fn perhaps_lie(&mut self, by: HostNo, answer: Answer) -> Answer {
        let lies = self.faults_on || self.deceit.lies;
        if self.deceit.liar != Some(by) || !lies || self.desired.recover_from_disk.is_some() {
            return answer;
        }
        // Many small answers are given for each inventory.
        let seldom = if matches!(answer, Answer::Inventory(_)) { 2 } else { 16 };
        if !self.deceit.random.one_in(seldom) {
            return answer;
        }
        let boots = self.hosts.iter().map(|host| host.boot).collect();
        let (lie, answer) = self.deceit.falsify(answer, boots);
        if let Some(lie) = lie {
            trace!(self, "{} lies: {lie}", self.hosts[by.0].name);
            self.tally.count(Fault::MemberLies);
        }
        answer
    }

    pub(super) fn is_liar(&self, member: &MemberId) -> bool {
        self.deceit.liar.is_some_and(|liar| self.hosts[liar.0].name == *member)
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
