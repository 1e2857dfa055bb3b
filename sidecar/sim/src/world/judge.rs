//! Shows the checkers what they need to see: what each member physically holds at the moments that matter.
//!
//! Called at every ack, every win and every change of the member set. Looks at memory, cards and disks, never at what
//! the machines believe.

use tailwind_protocol::config::{Configuration, Durability, MemberRef};
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::layout::{FOOTER_MAGIC, FOOTER_SIZE, RECORD_HEADER_SIZE, Sealed, SegmentIdentity};
use tailwind_protocol::primary::StepDown;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{CopyReport, CopyState, Purpose};

use super::files::Node;
use super::host::Host;
use super::{HostNo, World};
use crate::check::{Submitted, broken};

/// Appends behind a flipped bit in an open segment that nothing proves yet: an entry tells what was acknowledged when it was
/// written, which is at most the append before, and a mark comes with the second tick that sees nothing new.
const UNPROVED_APPENDS_MAX: usize = 2;

impl World {
    /// An epoch tells its app that a record is safe (S1, S4, S7, and what the durability mode adds).
    pub(crate) fn judge_ack(&mut self, epoch: Epoch, lsn: Lsn, believed: &Configuration) {
        self.tally.acked += 1;
        self.judge_origin(believed);
        let mut checks = std::mem::take(&mut self.checks);
        // Nothing that was written by then tells that it would be acknowledged: a flipped bit cuts it off without a trace.
        let rotten = |late: &Submitted| {
            let in_its_way = |(identity, at): &(_, u32)| *identity == late.identity && *at < range(late).end as u32;
            self.hosts.iter().any(|host| host.flips.iter().any(in_its_way))
        };
        let is_news = checks.acked(epoch, lsn, rotten);
        self.checks = checks;
        if !is_news {
            // Late news of an epoch that is over: its log was recovered, and lives on elsewhere.
            return;
        }
        let Some(config) = self.store.last_of(epoch) else {
            broken("S7", format!("epoch {epoch} acknowledges and was never claimed"));
        };
        let record = self.checks.truth(epoch, lsn);
        for (member, host) in self.present(config) {
            if !self.holds(host, record) {
                let version = config.version;
                broken("S7", format!("{lsn} is acknowledged, {} of version {version} does not hold it", member.id));
            }
            if self.plan.durability == Durability::Flushed && !on_disk(host, record) {
                broken("S1", format!("{lsn} is acknowledged as flushed and is not on the disk of {}", member.id));
            }
        }
    }

    /// An epoch tells its app that everything up to a record is on disk at every member.
    pub(crate) fn judge_sync(&mut self, epoch: Epoch, last: Lsn) {
        self.checks.synced(last);
        let Some(config) = self.store.last_of(epoch) else {
            broken("S7", format!("epoch {epoch} syncs and was never claimed"));
        };
        for record in self.checks.owed().filter(|record| record.lsn <= last) {
            if let Some((member, _)) = self.present(config).find(|(_, host)| !on_disk(host, record)) {
                broken("Sync", format!("{} is synced and is not on the disk of {}", record.lsn, member.id));
            }
        }
    }

    /// A candidate becomes primary and shows its app the recovered log (S1, S2, S3, S7).
    pub(crate) fn judge_win(&mut self, config: &Configuration, reference: &Reference) {
        self.judge_origin(config);
        if config.epoch > Epoch(1) {
            self.tally.failovers += 1;
        }
        let mut checks = std::mem::take(&mut self.checks);
        let rotten = |lost: &Submitted, appends: usize| {
            let in_its_way = |(identity, at): &(_, u32)| *identity == lost.identity && *at < range(lost).end as u32;
            let window = appends <= UNPROVED_APPENDS_MAX
                && self.present(config).any(|(_, host)| host.flips.iter().any(in_its_way));
            let cut_short = |host: &Host| {
                let before = |(identity, _): &(tailwind_protocol::layout::SegmentIdentity, u32)| {
                    identity.segment <= lost.identity.segment
                };
                host.flips.iter().any(before)
            };
            // Nobody with the memory of a member is no excuse.
            let all = self.present(config).next().is_some() && self.present(config).all(|(_, host)| cut_short(host));
            window || all
        };
        let excused = checks.won(self.queue.now(), config, reference, rotten);
        self.checks = checks;
        if excused {
            self.tally.rotten_for_good = 1;
        }
        if excused || config.cuts.last().is_some_and(|cut| cut.epoch == config.epoch) {
            self.end_connections();
        }
        let cut = config.cuts.last().filter(|cut| cut.epoch == config.epoch);
        if let Some(cut) = cut {
            self.cut_followers(cut.last);
        } else if self.checks.excuses_before(config.epoch) {
            self.forget_followers();
        }
        for segment in &reference.segments {
            for lsn in (segment.closure.first.0..=segment.closure.last.0).map(Lsn) {
                if lsn < self.checks.trimmed_below() {
                    continue;
                }
                let record = self.checks.truth(segment.identity.epoch, lsn);
                for (member, host) in self.present(config) {
                    if !self.keeps(host, record) {
                        broken("S3", format!("{lsn} is shown to the app, and {} does not hold it", member.id));
                    }
                }
            }
        }
    }

    /// A primary steps down for a later epoch only if there is one (S17).
    pub(super) fn judge_step_down(&self, why: StepDown) {
        let latest = self.store.content().map_or(Epoch(0), |config| config.epoch);
        if let StepDown::Superseded(epoch) = why
            && epoch > latest
        {
            broken("S17", format!("a primary steps down for epoch {epoch}, and the store is at epoch {latest}"));
        }
    }

    /// The config store changes (S7, S8).
    pub(crate) fn judge_swap(&self, before: Option<&Configuration>, after: &Configuration) {
        let Some(before) = before else { return };
        if after.stamp() <= before.stamp() || after.log != before.log {
            broken("S7", format!("the configuration goes from {:?} to {:?}", before.stamp(), after.stamp()));
        }
        if after.epoch > before.epoch && after.members != before.members {
            broken("S7", format!("the claim of epoch {} changes the member set", after.epoch));
        }
        if self.checks.forgives_unsynced() {
            return;
        }
        let joins = |member: &&MemberRef| !before.members.contains(member);
        for member in after.members.iter().filter(joins) {
            let host = &self.hosts[self.host_of(&member.id).0];
            if host.boot != member.boot {
                continue;
            }
            for record in self.checks.owed() {
                if !self.keeps(host, record) {
                    broken("S8", format!("{} joins the set and does not hold record {}", member.id, record.lsn));
                }
            }
        }
    }

    /// A backup says that it has pulled a segment (S8): it holds what is owed of it.
    pub(super) fn judge_pull(&self, no: HostNo, identity: &SegmentIdentity) {
        if self.checks.forgives_unsynced() {
            return;
        }
        let host = &self.hosts[no.0];
        for record in self.checks.owed().filter(|record| record.identity == *identity) {
            if !self.keeps(host, record) {
                let (name, segment) = (&host.name, identity.segment);
                broken("S8", format!("{name} has pulled segment {segment} and does not hold record {}", record.lsn));
            }
        }
    }

    /// Every member that still has the memory with which it joined holds all that is owed (S7, S8), on its disk where that was
    /// promised (S1).
    pub(crate) fn judge_members(&self) {
        let Some(config) = self.store.content() else { return };
        for (member, host) in self.present(config).filter(|(_, host)| !host.is_damaged()) {
            for record in self.checks.owed() {
                if !self.keeps(host, record) {
                    broken(
                        "S8",
                        format!("{} is a member and does not hold record {}, which is owed", member.id, record.lsn),
                    );
                }
            }
        }
    }

    /// Nobody may act on a set that never was in the store (S7).
    fn judge_origin(&self, believed: &Configuration) {
        if !self.store.history.iter().rev().any(|(_, config)| config == believed) {
            let (epoch, version) = (believed.epoch, believed.version);
            broken("S7", format!("epoch {epoch}, version {version} was never in the config store"));
        }
    }

    /// True when everybody at hand was damaged, or cannot tell whether what a damaged member once held is part of the log.
    pub(super) fn all_are_damaged(&self, config: &Configuration) -> bool {
        let lost_copies = || {
            let damaged =
                self.present(config).filter(|(_, host)| host.is_damaged()).filter_map(|(_, host)| host.machine());
            let copies = damaged.flat_map(|machine| machine.inventory().copies);
            copies.filter(|copy| copy.state == CopyState::Corrupt && copy.closure.last > Lsn(0))
        };
        self.present(config).all(|(_, host)| {
            let holds = |CopyReport { identity, closure, .. }: CopyReport| {
                let mut records = (closure.first.0..=closure.last.0).map(Lsn);
                records.all(|lsn| self.holds_bytes(host, self.checks.truth(identity.epoch, lsn)))
            };
            host.is_damaged() || !lost_copies().all(holds)
        })
    }

    /// Members that still have the memory with which they joined, and have said so. One that lies may be left without what it says
    /// it has: the others hold it.
    fn present<'a>(&'a self, config: &'a Configuration) -> impl Iterator<Item = (&'a MemberRef, &'a Host)> {
        let members = config.members.iter().map(|member| (member, &self.hosts[self.host_of(&member.id).0]));
        members.filter(|(member, host)| host.boot == member.boot && !self.is_liar(&member.id))
    }

    /// True when a backup holds a record where a loss of power leaves it with its identity: where it has promised `flushed`,
    /// on its disk. With an older promise put back it has not, until it takes part again.
    fn keeps(&self, host: &Host, record: &Submitted) -> bool {
        let promised = host.files.member_state().map(|member_state| member_state.promise.durability);
        match promised.filter(|_| host.doubtful).unwrap_or(self.plan.durability) {
            Durability::Flushed => on_disk(host, record),
            Durability::Memory | Durability::Battery => self.holds(host, record),
        }
    }

    /// True when a backup's memory (after a barrier) or disk has exactly this record where its primary put it. A flipped
    /// bit excuses what it hit.
    fn holds(&self, host: &Host, record: &Submitted) -> bool {
        host.lost.contains(&record.identity) || self.holds_bytes(host, record)
    }

    /// The same, with no excuse for what was damaged at rest.
    pub(super) fn is_here(&self, host: &Host, record: &Submitted) -> bool {
        match self.plan.durability {
            Durability::Flushed => bytes_on_disk(host, record),
            Durability::Memory | Durability::Battery => self.holds_bytes(host, record),
        }
    }

    fn holds_bytes(&self, host: &Host, record: &Submitted) -> bool {
        let range = range(record);
        let hit = |(identity, at): &(_, u32)| *identity == record.identity && range.contains(&(*at as usize));
        if bytes_on_disk(host, record) || host.flips.iter().any(hit) {
            return true;
        }
        let counts = |row: &tailwind_protocol::backup::SlotRow| {
            row.identity == record.identity && (row.purpose == Purpose::Append || row.closed.is_some())
        };
        let slots = host.rows.iter().filter(|(_, row)| counts(row)).map(|(slot, _)| *slot);
        slots.into_iter().any(|slot| is_record(&self.settled_bytes(host.no, slot, range.clone()), record))
    }
}

fn range(record: &Submitted) -> std::ops::Range<usize> {
    record.at as usize..record.at as usize + RECORD_HEADER_SIZE + record.payload.len()
}

/// True when this backup's volume has this record for certain, whatever happens to the power: name, bytes and, in a file
/// that stands for a whole segment, the footer.
fn on_disk(host: &Host, record: &Submitted) -> bool {
    host.lost.contains(&record.identity) || bytes_on_disk(host, record)
}

/// The same, with no excuse for what was damaged at rest.
pub(super) fn bytes_on_disk(host: &Host, record: &Submitted) -> bool {
    let range = range(record);
    let hit = |(identity, at): &(_, u32)| *identity == record.identity && range.contains(&(*at as usize));
    let holds = |node: &Option<Node>, sealed: Sealed| {
        let Some(node) = node else { return false };
        let inode = node.inode();
        let length = inode.bytes().len();
        let whole = || {
            let footer = length.checked_sub(FOOTER_SIZE).and_then(|at| inode.on_disk(at..length));
            footer.is_some_and(|footer| footer[..8] == FOOTER_MAGIC)
        };
        let here = inode.on_disk(range.clone()).is_some_and(|bytes| is_record(bytes, record));
        here && inode.identity() == Some(record.identity) && (sealed == Sealed::Open || whole())
    };
    // While a name changes it may stand for the old file or the new one.
    let in_file = |sealed: Sealed| {
        let files = host.files.segment_after_power_loss(record.identity.segment, sealed);
        files.iter().all(|node| holds(node, sealed))
    };
    in_file(Sealed::Closed) || in_file(Sealed::Open) || host.flips.iter().any(hit)
}

/// Looks at the bytes as `docs/protocol.md` lays them out, without the code that reads or writes them.
fn is_record(bytes: &[u8], record: &Submitted) -> bool {
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    bytes[0] == b'R'
        && number(16) == record.lsn.0
        && number(24) == record.identity.epoch.0
        && bytes[RECORD_HEADER_SIZE..] == record.payload[..]
}
