//! What strikes: at random moments one of the seed's faults, and later its end.
//!
//! Faults that would leave nobody with the log are left out (S1 promises nothing then): the last member of a set that
//! still has its memory keeps it. See [`World::may_lose`].

use tailwind_protocol::backup::Input;
use tailwind_protocol::config::{Configuration, Durability};
use tailwind_protocol::ids::{MemberId, SegmentId};
use tailwind_protocol::layout::{FOOTER_SIZE, SEGMENT_OVERHEAD, Sealed, SegmentIdentity};

use super::fabric::ChannelId;
use super::files::Node;
use super::host::Running;
use super::queue::{MS, Micros};
use super::sidecar::{Process, Role};
use super::{Event, HostNo, SidecarNo, World};
use crate::tally::Fault;
use crate::trace::trace;

/// How long a host has power after it was told that the power is going.
const HOLD_UP: Micros = 2000 * MS;

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heal {
    Link(SidecarNo, HostNo),
    Peers(SidecarNo, SidecarNo),
    Backups(HostNo, HostNo),
    Store,
    StoreFor(SidecarNo),
    Watch(SidecarNo),
    Resume(SidecarNo),
    Start(SidecarNo),
    ResumeHost(HostNo),
    Disk(HostNo),
    Pool(HostNo),
    Channel(ChannelId),
}

impl World {
    /// True when this fault strikes now; then it is counted.
    pub(crate) fn fault_occurs(&mut self, fault: Fault, per_mille: u64) -> bool {
        let fault_occurs = self.faults_on && self.plan.has(fault) && self.random.per_mille(per_mille);
        if fault_occurs {
            self.tally.count(fault);
        }
        fault_occurs
    }

    /// True when this host's disk has no room for the file of this closed segment, of which it has one in two, while the faults
    /// strike; smaller writes pass.
    pub(super) fn has_no_room(&mut self, no: HostNo, identity: &SegmentIdentity) -> bool {
        let odd = (identity.generation.0.wrapping_add(no.0 as u64)) % 2 == 1;
        let fault_occurs = self.faults_on && odd && self.plan.has(Fault::ClosedFlushFails);
        if fault_occurs {
            self.tally.count(Fault::ClosedFlushFails);
        }
        fault_occurs
    }

    /// Something goes wrong.
    pub(crate) fn inject_fault(&mut self) {
        if !self.faults_on {
            return;
        }
        let pause = self.random.within(1, 2 * self.plan.fault_pause);
        self.queue.plan(pause, Event::InjectFault);
        if self.plan.faults.is_empty() {
            return;
        }
        self.see_who_is_whole();
        self.copy_files();
        let fault = *self.random.pick(&self.plan.faults);
        let host = HostNo(self.random.below(self.hosts.len() as u64) as usize);
        let sidecar = SidecarNo(self.random.below(self.sidecars.len() as u64) as usize);
        // Primaries are what it is about: half of what strikes sidecars strikes one.
        let leads = self.sidecars.iter().find(|sidecar| matches!(sidecar.role, Role::Primary(_)));
        let sidecar = leads.map(|lead| lead.no).filter(|_| self.random.one_in(2)).unwrap_or(sidecar);
        // Power that goes in the middle of a flush is what tears it.
        let flushing = self.hosts.iter().find(|host| host.flushing).map(|host| host.no);
        let host = flushing.filter(|_| fault == Fault::HostDies && self.random.one_in(2)).unwrap_or(host);
        if self.inject(fault, host, sidecar) {
            self.tally.count(fault);
        }
    }

    fn inject(&mut self, fault: Fault, host: HostNo, sidecar: SidecarNo) -> bool {
        let long = [20, 200, 800, 3000][self.random.below(4) as usize];
        let heal = self.random.within(1, long) * MS;
        match fault {
            Fault::SidecarDies => self.inject_sidecar_death(sidecar, heal),
            Fault::SidecarFreezes => self.inject_sidecar_freeze(sidecar, heal),
            Fault::BackupDies => self.inject_backup_crash(host),
            Fault::BackupFreezes => self.inject_backup_freeze(host, heal),
            Fault::HostDies => self.inject_power_loss(host),
            Fault::Blackout => self.inject_blackout(heal),
            Fault::VolumeLost => self.inject_volume_loss(host),
            Fault::BackupStops => {
                self.notify_host(host, Input::Shutdown);
                true
            }
            Fault::Cut if self.random.one_in(6) => {
                let other = SidecarNo((sidecar.0 + 1) % self.sidecars.len());
                self.cuts.peers.insert((sidecar.min(other), sidecar.max(other)));
                self.queue.plan(heal, Event::Heal(Heal::Peers(sidecar, other)));
                true
            }
            Fault::Cut => {
                self.cut(sidecar, host, true, true);
                self.queue.plan(heal, Event::Heal(Heal::Link(sidecar, host)));
                true
            }
            Fault::BackupsApart => {
                let other = HostNo((host.0 + 1) % self.hosts.len());
                if !self.plan.pulls || other == host {
                    return false;
                }
                self.cut_backups(host, other);
                self.queue.plan(heal, Event::Heal(Heal::Backups(host, other)));
                true
            }
            Fault::HalfCut => {
                let there = self.random.one_in(2);
                self.cut(sidecar, host, there, !there);
                self.queue.plan(heal, Event::Heal(Heal::Link(sidecar, host)));
                true
            }
            Fault::StoreDown if self.random.one_in(2) => {
                self.store.cut.push(sidecar);
                self.queue.plan(heal, Event::Heal(Heal::StoreFor(sidecar)));
                true
            }
            Fault::StoreDown => {
                trace!(self, "the store is down");
                self.store.down = true;
                self.queue.plan(heal, Event::Heal(Heal::Store));
                true
            }
            Fault::WatchStale => {
                self.sidecars[sidecar.0].watch_lag = heal;
                self.queue.plan(heal, Event::Heal(Heal::Watch(sidecar)));
                true
            }
            Fault::DiskFull | Fault::DiskSlow => {
                match fault {
                    Fault::DiskFull => self.hosts[host.0].files.set_full(true),
                    _ => self.hosts[host.0].slow_disk = true,
                }
                trace!(self, "{}: {fault}", self.hosts[host.0].name);
                self.queue.plan(heal, Event::Heal(Heal::Disk(host)));
                true
            }
            Fault::MirrorCut | Fault::MirrorRots | Fault::MirrorEntryLost | Fault::ShareEnds => {
                self.harm_mirror(fault, host, heal)
            }
            Fault::ResidentRots | Fault::ResidentLost => self.harm_resident(host, fault == Fault::ResidentLost),
            Fault::NoBuffer => {
                self.hosts[host.0].pool_empty = true;
                self.queue.plan(heal, Event::Heal(Heal::Pool(host)));
                true
            }
            Fault::ClosedBitFlip => self.flip_closed_bit(host),
            Fault::OpenBitFlip => self.flip_open_bit(host),
            Fault::FileLost
            | Fault::FileStale
            | Fault::NotesStale
            | Fault::PromiseStale
            | Fault::PromiseBitFlip
            | Fault::EndsBitFlip
            | Fault::StrangerInTheWay
            | Fault::SlotLost
            | Fault::TableZeroed => self.inject_folder_damage(fault, host),
            // These strike where messages, writes and calls are made.
            _ => false,
        }
    }

    fn inject_sidecar_death(&mut self, of: SidecarNo, heal: Micros) -> bool {
        if self.sidecars[of.0].process == Process::Down {
            return false;
        }
        self.kill_sidecar(of);
        self.queue.plan(heal, Event::Heal(Heal::Start(of)));
        true
    }

    fn inject_sidecar_freeze(&mut self, of: SidecarNo, heal: Micros) -> bool {
        let sidecar = &mut self.sidecars[of.0];
        if sidecar.process != Process::Up {
            return false;
        }
        sidecar.process = Process::Frozen;
        trace!(self, "{} freezes", self.sidecars[of.0].name);
        self.queue.plan(heal, Event::Heal(Heal::Resume(of)));
        true
    }

    fn inject_backup_crash(&mut self, host: HostNo) -> bool {
        if !self.hosts[host.0].is_up() {
            return false;
        }
        if self.random.one_in(2) {
            match self.random.one_in(2) {
                true => self.hosts[host.0].fuse = Some(self.random.below(10) as u32),
                false => self.hosts[host.0].files.light(self.random.below(40) as u32),
            }
            return true;
        }
        self.inject_backup_death(host);
        true
    }

    fn inject_backup_death(&mut self, host: HostNo) {
        trace!(self, "{} dies", self.hosts[host.0].name);
        self.kill_host(host);
        self.plan_restart(host);
    }

    fn inject_backup_freeze(&mut self, host: HostNo, heal: Micros) -> bool {
        if self.hosts[host.0].running != Running::Up {
            return false;
        }
        trace!(self, "{} freezes", self.hosts[host.0].name);
        self.hosts[host.0].running = Running::Frozen;
        self.queue.plan(heal, Event::Heal(Heal::ResumeHost(host)));
        true
    }

    fn inject_power_loss(&mut self, host: HostNo) -> bool {
        if self.hosts[host.0].is_off() || !(self.hosts[host.0].proves_everything() || self.may_lose(host)) {
            return false;
        }
        if self.plan.durability == Durability::Battery && self.random.one_in(2) {
            trace!(self, "{}: the power is going", self.hosts[host.0].name);
            self.hosts[host.0].power_goes = true;
            self.notify_host(host, Input::Shutdown);
            self.queue.plan(HOLD_UP, Event::PowerGone(host));
            return true;
        }
        trace!(self, "{} loses power", self.hosts[host.0].name);
        self.cut_power(host);
        self.plan_restart(host);
        true
    }

    /// Nothing is lost where the disks prove everything. Elsewhere, rarely, it is all gone, and the group must say so rather
    /// than go on without it.
    fn inject_blackout(&mut self, heal: Micros) -> bool {
        let proved = |set: &Configuration| {
            set.members.iter().all(|member| self.hosts[self.host_of(&member.id).0].proves_everything())
        };
        if !self.sets().all(proved) && !self.random.one_in(30) {
            return false;
        }
        trace!(self, "the power fails everywhere");
        for no in (0..self.hosts.len()).map(HostNo) {
            self.cut_power(no);
            self.plan_restart(no);
        }
        for no in (0..self.sidecars.len()).map(SidecarNo) {
            self.inject_sidecar_death(no, heal);
        }
        true
    }

    /// All hosts lose power, all sidecars die, and all members but some lose their disks too.
    pub(super) fn lose_all_memory(&mut self, config: &Configuration) {
        trace!(self, "the power fails everywhere");
        let heal = self.random.within(1, 800) * MS;
        for no in (0..self.sidecars.len()).map(SidecarNo) {
            self.inject_sidecar_death(no, heal);
        }
        for no in (0..self.hosts.len()).map(HostNo) {
            self.cut_power(no);
            self.plan_restart(no);
        }
        let left = self.random.below(config.members.len() as u64) as usize;
        for (at, member) in config.members.iter().enumerate() {
            if at != left && self.random.one_in(2) {
                self.replace_host(self.host_of(&member.id));
            }
        }
    }

    fn inject_volume_loss(&mut self, host: HostNo) -> bool {
        if !self.may_lose(host) {
            return false;
        }
        self.replace_host(host);
        true
    }

    pub(crate) fn replace_host(&mut self, host: HostNo) {
        trace!(self, "{} is replaced by an empty one", self.hosts[host.0].name);
        self.lose_channels(host);
        self.kill_host(host);
        self.hosts[host.0].running = Running::Off;
        self.hosts[host.0].lose_all();
        self.checks.forgets(host);
        self.plan_restart(host);
    }

    /// Every member but one is emptied under a primary that is well, if there is such a group; true if so.
    pub(crate) fn empty_all_but_one(&mut self) -> bool {
        let Some(config) = self.whole_group() else { return false };
        let left = self.random.below(config.members.len() as u64) as usize;
        for (_, member) in config.members.iter().enumerate().filter(|(at, _)| *at != left) {
            self.replace_host(self.host_of(&member.id));
        }
        self.tally.count(Fault::AllButOneEmptied);
        true
    }

    /// A group that is well, if there is one: its members are all whole, and a primary lives.
    pub(crate) fn whole_group(&self) -> Option<Configuration> {
        let leads = |sidecar: &super::Sidecar| sidecar.process == Process::Up && sidecar.lead().is_some();
        let settled = self.store.pending().next().is_none() && self.hosts.iter().all(|host| !host.is_damaged());
        let config = self.store.content().cloned().filter(|_| settled)?;
        let whole = config.members.len() > 1 && self.sound_members(&config, None) == config.members.len();
        (whole && self.sidecars.iter().any(leads)).then_some(config)
    }

    /// Every member but one of a group that is well is damaged at rest, each in a way of its own, and the primary dies; they
    /// come back in any order. True if there is such a group.
    pub(crate) fn damage_all_but_one(&mut self) -> bool {
        self.see_who_is_whole();
        let Some(config) = self.whole_group() else { return false };
        let left = self.random.below(config.members.len() as u64) as usize;
        for (at, member) in config.members.iter().enumerate() {
            let no = self.host_of(&member.id);
            if at == left {
                // The one that is left may be late.
                if self.random.one_in(2) {
                    self.inject_backup_death(no);
                }
            } else {
                let fault = *self.random.pick(&super::damage::AT_REST);
                self.damage_at_rest(fault, no);
            }
        }
        self.kill_primaries();
        self.tally.count(Fault::AllButOneDamaged);
        true
    }

    /// Whoever leads dies, and comes back soon.
    pub(crate) fn kill_primaries(&mut self) {
        let leads = |sidecar: &&super::Sidecar| sidecar.process == Process::Up && sidecar.lead().is_some();
        let leads: Vec<SidecarNo> = self.sidecars.iter().filter(leads).map(|sidecar| sidecar.no).collect();
        for no in leads {
            let heal = self.random.within(1, 800) * MS;
            self.inject_sidecar_death(no, heal);
        }
    }

    /// True when every set that may be the last committed one has another member with sound memory; mostly as many as the
    /// group needs to go on.
    pub(crate) fn may_lose(&mut self, host: HostNo) -> bool {
        let needed = if self.random.one_in(10) { 1 } else { usize::from(self.plan.min_in_sync) };
        let name = &self.hosts[host.0].name;
        self.sets().all(|set| self.sound_members(set, Some(name)) >= needed.min(set.members.len()))
    }

    /// Every set that the next promotion may find.
    fn sets(&self) -> impl Iterator<Item = &Configuration> {
        self.store.content().into_iter().chain(self.store.pending())
    }

    /// Members that still have the memory with which they joined, and nothing in it that a fault has hit.
    pub(crate) fn sound_members(&self, config: &Configuration, but: Option<&MemberId>) -> usize {
        let sound = |member: &&tailwind_protocol::config::MemberRef| {
            let host = &self.hosts[self.host_of(&member.id).0];
            Some(&member.id) != but && host.boot == member.boot && !host.is_damaged()
        };
        config.members.iter().filter(sound).count()
    }

    /// A bit flips in a closed segment, on disk or on its way there.
    pub(super) fn flip_closed_bit(&mut self, host: HostNo) -> bool {
        if !self.may_lose(host) {
            return false;
        }
        let files = self.hosts[host.0].files.closed();
        if files.is_empty() {
            return false;
        }
        let node = self.random.pick(&files).clone();
        self.flip_bit_of(host, &node)
    }

    /// The source of a pull may have a rotten copy of the very segment: nobody has looked at it for long.
    pub(super) fn rot_before_pull(&mut self, source: HostNo, segment: SegmentId) {
        const ONE_IN: u64 = 8;
        let strikes = self.faults_on && self.plan.has(Fault::ClosedBitFlip) && self.random.one_in(ONE_IN);
        if !strikes || !self.may_lose(source) {
            return;
        }
        let files = self.hosts[source.0].files.closed();
        let is_it = |node: &&Node| node.inode().identity().is_some_and(|identity| identity.segment == segment);
        let Some(node) = files.iter().find(is_it) else { return };
        if self.flip_bit_of(source, node) {
            self.tally.count(Fault::ClosedBitFlip);
        }
    }

    /// A bit flips among the records of a segment's file.
    fn flip_bit_of(&mut self, host: HostNo, node: &Node) -> bool {
        let mut inode = node.inode();
        // Bits of header and footer are flipped while the process is down: see `damage`.
        let records = SEGMENT_OVERHEAD as u64..inode.bytes().len().saturating_sub(FOOTER_SIZE) as u64;
        let (Some(identity), false) = (inode.identity(), records.is_empty()) else { return false };
        let at = self.random.within(records.start, records.end - 1) as usize;
        inode.flip(at, self.random.below(8) as u8);
        let host = &mut self.hosts[host.0];
        host.flips.push((identity, at as u32));
        let (name, segment) = (host.name.clone(), identity.segment);
        trace!(self, "a bit flips on the disk of {name}: segment {segment}, byte {at}");
        true
    }

    /// A bit flips in a buffer, written or yet to be written. Another member must be sound, and may be late: marks and entries
    /// behind the bit prove that something is missing, but for the last appends before them; see [`World::judge_win`].
    fn flip_open_bit(&mut self, host: HostNo) -> bool {
        let others = self.sets().map(|set| self.sound_members(set, Some(&self.hosts[host.0].name))).min();
        let slots: Vec<_> = self.hosts[host.0].rows.iter().map(|(slot, row)| (*slot, row.identity)).collect();
        if others.unwrap_or(0) < 1 || slots.is_empty() {
            return false;
        }
        let (slot, identity) = *self.random.pick(&slots);
        let at = self.random.below(2000) as usize;
        let bit = self.random.below(8) as u8;
        let host = &mut self.hosts[host.0];
        host.pool.flip(slot, at, bit);
        host.flips.push((identity, at as u32));
        let name = host.name.clone();
        trace!(self, "a bit flips in the memory of {name}: segment {}, byte {at}", identity.segment);
        true
    }

    /// This bit of a segment flips, in memory or else on disk; says where. `None`: the segment is not here.
    pub(crate) fn flip(&mut self, no: HostNo, segment: SegmentId, at: usize) -> Option<&'static str> {
        const BIT: u8 = 4;
        let host = &mut self.hosts[no.0];
        let row = host.rows.iter().find(|(_, row)| row.identity.segment == segment);
        if let Some((slot, identity)) = row.map(|(slot, row)| (*slot, row.identity)) {
            host.pool.flip(slot, at, BIT);
            host.flips.push((identity, at as u32));
            return Some("memory");
        }
        let node = host.files.segment(segment, Sealed::Closed)?;
        let identity = node.inode().identity()?;
        node.inode().flip(at, BIT);
        host.flips.push((identity, at as u32));
        Some("the file")
    }

    pub(crate) fn on_heal(&mut self, heal: Heal) {
        match heal {
            Heal::Link(sidecar, host) => self.cuts.heal(sidecar, host),
            Heal::Backups(a, b) => drop(self.cuts.backups.remove(&(a.min(b), a.max(b)))),
            Heal::Peers(a, b) => drop(self.cuts.peers.remove(&(a.min(b), a.max(b)))),
            Heal::Store => self.store.down = false,
            Heal::StoreFor(sidecar) => self.store.cut.retain(|cut| *cut != sidecar),
            Heal::Watch(sidecar) => self.sidecars[sidecar.0].watch_lag = 0,
            Heal::Resume(sidecar) => self.resume_sidecar(sidecar),
            Heal::Start(sidecar) => self.start_sidecar(sidecar),
            Heal::ResumeHost(host) => self.resume_host(host),
            Heal::Disk(host) => {
                let host = &mut self.hosts[host.0];
                host.files.set_full(false);
                host.slow_disk = false;
            }
            Heal::Pool(host) => self.hosts[host.0].pool_empty = false,
            Heal::Channel(channel) => self.cut_channel(channel, false),
        }
    }

    fn resume_host(&mut self, host: HostNo) {
        if self.hosts[host.0].running == Running::Frozen {
            self.hosts[host.0].running = Running::Up;
            self.wake_host(host);
        }
    }

    /// Everything that was broken works again.
    pub(crate) fn stop_faults(&mut self) {
        trace!(self, "the faults stop");
        self.faults_on = false;
        self.want_as_planned();
        self.cuts.clear();
        self.heal_channels();
        self.store.down = false;
        self.store.cut.clear();
        for no in (0..self.hosts.len()).map(HostNo) {
            let host = &mut self.hosts[no.0];
            host.files.stop_faults();
            (host.slow_disk, host.pool_empty, host.fuse) = (false, false, None);
            self.resume_host(no);
            self.restart_host(no);
        }
        for no in (0..self.sidecars.len()).map(SidecarNo) {
            self.sidecars[no.0].watch_lag = 0;
            self.resume_sidecar(no);
            self.start_sidecar(no);
        }
    }

    /// The hold-up time is over.
    pub(crate) fn on_power_gone(&mut self, no: HostNo) {
        if std::mem::take(&mut self.hosts[no.0].power_goes) {
            trace!(self, "{}: the hold-up time is over", self.hosts[no.0].name);
            self.cut_power(no);
            self.plan_restart(no);
        }
    }

    pub(crate) fn restart_host(&mut self, no: HostNo) {
        if !self.hosts[no.0].power_goes && matches!(self.hosts[no.0].running, Running::Down | Running::Off) {
            self.start_host(no);
        }
    }
}
