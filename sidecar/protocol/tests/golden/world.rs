//! A small deterministic world in one thread, made of the production machines: backups, sidecars, a config store, and a
//! network whose every message and write waits until it is told to move.
//!
//! Golden scripts move it command by command; the chaos test at random. After every move [`World::check`] judges it.

mod candidate;
mod checker;
mod fabric;
mod host;
mod image;
mod lead;
mod moves;
mod network;
mod sidecar;
mod store;
pub(crate) mod tale;

use std::collections::{BTreeMap, BTreeSet};

use tailwind_protocol::backup;
use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, Durability, Time};
use tailwind_protocol::ids::{Epoch, GroupName, LogId, MemberId, SidecarId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary;
use tailwind_protocol::promotion;
use tailwind_protocol::rpc::Caller;

use checker::Checker;
pub(crate) use fabric::Tear;
pub(crate) use host::Host;
use network::{Message, Network, Then};
pub(crate) use sidecar::{Role, Sidecar};
pub(crate) use store::Mood;
use store::Store;

/// How the group is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) backups: u8,
    pub(crate) spares: u8,
    pub(crate) sidecars: u8,
    pub(crate) min_in_sync: u8,
    pub(crate) durability: Durability,
    pub(crate) slots: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { backups: 3, spares: 0, sidecars: 2, min_in_sync: 1, durability: Durability::Memory, slots: 8 }
    }
}

impl Options {
    fn primary_rules(&self) -> primary::Rules {
        primary::Rules {
            backups: self.backups,
            min_in_sync: self.min_in_sync,
            durability: self.durability,
            segment_size: SegmentSize::MIN,
            open_timeout_ms: 1000,
            recruit_interval_ms: 500,
            swap_interval_ms: 100,
        }
    }

    fn promotion_rules(&self) -> promotion::Rules {
        promotion::Rules {
            backups: self.backups,
            min_in_sync: self.min_in_sync,
            fence_wait_ms: 1000,
            retry_ms: 100,
            repair_timeout_ms: 5000,
            accept_loss: None,
        }
    }
}

/// What a backup has lost when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    Memory,
    All,
}

/// The world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) now: Time,
    pub(crate) hosts: BTreeMap<MemberId, Host>,
    pub(crate) sidecars: BTreeMap<SidecarId, Sidecar>,
    pub(crate) store: Store,
    network: Network,
    checker: Checker,
    /// Pairs that cannot reach each other.
    pub(crate) cuts: BTreeSet<(SidecarId, MemberId)>,
    story: Vec<String>,
    /// Promotions so far.
    claims: u64,
}

impl World {
    pub(crate) fn new(options: Options) -> World {
        let hosts = (1..=options.backups + options.spares).map(|n| Host::new(&format!("m{n}"), options.slots));
        let sidecars = (1..=options.sidecars).map(|n| Sidecar::new(&format!("s{n}")));
        World {
            options,
            now: Time(0),
            hosts: hosts.map(|host| (host.name.clone(), host)).collect(),
            sidecars: sidecars.map(|sidecar| (sidecar.name.clone(), sidecar)).collect(),
            store: Store::default(),
            network: Network::default(),
            checker: Checker::default(),
            cuts: BTreeSet::new(),
            story: Vec::new(),
            claims: 0,
        }
    }

    pub(crate) fn tell(&mut self, what: String) {
        self.story.push(what);
    }

    /// What happened since the last call.
    pub(crate) fn story(&mut self) -> String {
        self.gather();
        let mut story = String::new();
        for line in self.story.drain(..) {
            story.push_str(&line);
            story.push('\n');
        }
        story
    }

    fn gather(&mut self) {
        for host in self.hosts.values_mut() {
            self.story.append(&mut host.events);
        }
    }

    pub(crate) fn group(&self) -> GroupName {
        "g".parse().expect("a group name")
    }

    fn caller(&self, log: LogId, epoch: Epoch) -> Caller {
        Caller { group: self.group(), log, epoch }
    }

    pub(crate) fn host(&self, name: &MemberId) -> &Host {
        &self.hosts[name]
    }

    pub(crate) fn host_mut(&mut self, name: &MemberId) -> &mut Host {
        self.hosts.get_mut(name).expect("a backup of this world")
    }

    pub(crate) fn sidecar(&self, name: &SidecarId) -> &Sidecar {
        &self.sidecars[name]
    }

    pub(crate) fn sidecar_mut(&mut self, name: &SidecarId) -> &mut Sidecar {
        self.sidecars.get_mut(name).expect("a sidecar of this world")
    }

    fn is_cut(&self, from: &SidecarId, to: &MemberId) -> bool {
        self.cuts.contains(&(from.clone(), to.clone()))
    }

    fn send(&mut self, from: &SidecarId, to: &MemberId, request: Request, then: Then) {
        let life = self.sidecar(from).life;
        self.network.send(Message { from: from.clone(), life, to: to.clone(), request, then });
    }

    /// A backup's process starts anew, with what is left of its memory and its disk.
    pub(crate) fn start_host(&mut self, name: &MemberId, lost: Loss) {
        self.host_mut(name).kill();
        self.forget_the_dead();
        let host = self.host_mut(name);
        match lost {
            Loss::Nothing => {}
            Loss::Memory => host.lose_memory(),
            Loss::All => host.lose_all(),
        }
        host.start();
    }

    /// A sidecar's process dies; what it had posted may still arrive.
    pub(crate) fn crash_sidecar(&mut self, name: &SidecarId) {
        let sidecar = self.sidecar_mut(name);
        sidecar.become_role(Role::Down);
        sidecar.paused = false;
        sidecar.inbox.clear();
        self.network.messages.retain(|message| message.from != *name);
        self.network.calls.retain(|call| call.from != *name);
    }

    /// The config store is replaced by an empty one.
    pub(crate) fn empty_store(&mut self) {
        self.store = Store::default();
        self.checker.forget_store();
    }

    /// What a sidecar had posted never arrives.
    pub(crate) fn lose_writes(&mut self, from: &SidecarId) {
        self.network.writes.retain(|(sender, _), _| sender != from);
    }

    /// What must be true after every move.
    pub(crate) fn check(&mut self) {
        self.checker.check_store(self.store.content.as_ref());
        if let Some(config) = &self.store.content {
            self.checker.check_members(config, self.options.durability, self.hosts.values());
        }
        for lead in self.sidecars.values().filter_map(Sidecar::lead) {
            let positions = lead.machine.positions();
            assert!(positions.hold(), "the ladder is broken: {positions:?}");
        }
    }

    pub(crate) fn trim(&mut self, name: &SidecarId, below: tailwind_protocol::ids::Lsn) {
        self.primary_input(name, primary::Input::Trim(below));
        if let Some(lead) = self.sidecar(name).lead() {
            let first = lead.machine.first_readable();
            self.checker.trimmed(first);
            self.tell(format!("{name}: the first record that can be read is {first}"));
        }
    }

    /// A backup is told to end (SIGTERM).
    pub(crate) fn shut_down(&mut self, name: &MemberId) {
        let answers = self.host_mut(name).drive(backup::Input::Shutdown);
        self.answered(name, answers);
    }

    /// Everything that the app may count on, for people.
    pub(crate) fn owed(&self) -> String {
        self.checker.owed_in_words()
    }

    /// Records that the app may count on.
    pub(crate) fn records_owed(&self) -> usize {
        self.checker.records_owed()
    }

    /// Every member of the committed set is up with the memory it joined with.
    pub(crate) fn set_is_intact(&self) -> bool {
        let intact = |config: &Configuration| {
            config.members.iter().all(|member| {
                let host = self.host(&member.id);
                host.is_up() && host.boot == member.boot
            })
        };
        self.store.content.as_ref().is_none_or(intact)
    }

    /// Without this backup's memory nobody would hold what is owed.
    pub(crate) fn is_last_intact(&self, name: &MemberId) -> bool {
        let Some(config) = &self.store.content else { return false };
        let intact = config.members.iter().filter(|member| self.host(&member.id).boot == member.boot);
        intact.filter(|member| member.id != *name).count() == 0
    }

    pub(crate) fn promote_if_standby(&mut self, name: &SidecarId) {
        if matches!(self.sidecar(name).role, Role::Standby) {
            self.promote(name);
        }
    }

    pub(crate) fn restart_sidecar(&mut self, name: &SidecarId) {
        if matches!(self.sidecar(name).role, Role::Down) {
            self.sidecar_mut(name).become_role(Role::Standby);
        }
    }

    /// Candidates as they are now, to look into.
    pub(crate) fn candidates(&self) -> Vec<&Role> {
        self.sidecars.values().map(|sidecar| &sidecar.role).filter(|role| matches!(role, Role::Candidate(_))).collect()
    }
}
