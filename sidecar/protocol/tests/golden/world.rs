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
mod network;
mod sidecar;
mod store;
pub(crate) mod tale;

use std::collections::{BTreeMap, BTreeSet};

use tailwind_protocol::backup;
use tailwind_protocol::backup::Request;
use tailwind_protocol::config::{Configuration, Durability, SwapOutcome, Time};
use tailwind_protocol::ids::{Epoch, GroupName, LogId, MemberId, SidecarId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::promotion;
use tailwind_protocol::rpc::Caller;

use checker::Checker;
pub(crate) use fabric::Tear;
use host::Answer;
pub(crate) use host::Host;
pub(crate) use network::name as request_name;
use network::{Ask, Call, Message, Network, Reply, Silence, Then};
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
            open_patience_ms: 1000,
            recruit_interval_ms: 500,
        }
    }

    fn promotion_rules(&self) -> promotion::Rules {
        promotion::Rules {
            backups: self.backups,
            min_in_sync: self.min_in_sync,
            fence_patience_ms: 1000,
            retry_ms: 100,
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

/// Pause before a call to the store that had no answer is made again.
const STORE_PAUSE_MS: u64 = 100;

/// Moves after which a world that still moves is taken to be running in circles.
const MOVES_MAX: u32 = 20_000;

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

    /// Moves the oldest control message, to this backup or to any; false when there is none.
    pub(crate) fn move_message(&mut self, to: Option<&MemberId>) -> bool {
        let Some(message) = self.take_message(to) else { return false };
        if !self.host(&message.to).is_up() || self.is_cut(&message.from, &message.to) {
            self.hand_back(Reply::Backup(Box::new(message), Err(Silence::Gone)));
            return true;
        }
        self.ask(message);
        true
    }

    /// Loses the oldest control message to this backup.
    pub(crate) fn lose_message(&mut self, to: Option<&MemberId>) -> Option<&'static str> {
        let message = self.take_message(to)?;
        let name = request_name(&message.request);
        self.hand_back(Reply::Backup(Box::new(message), Err(Silence::Lost)));
        Some(name)
    }

    /// The backup gets the oldest control message; its answer is lost.
    pub(crate) fn lose_answer(&mut self, to: Option<&MemberId>) -> Option<&'static str> {
        let message = self.take_message(to)?;
        let name = request_name(&message.request);
        if self.host(&message.to).is_up() && !self.is_cut(&message.from, &message.to) {
            self.ask(Message { then: Then::Nothing, ..message.clone() });
        }
        self.hand_back(Reply::Backup(Box::new(message), Err(Silence::Lost)));
        Some(name)
    }

    /// A message that was sent before arrives once more; nobody waits for the answer.
    pub(crate) fn repeat(&mut self, to: &MemberId, name: &str, nth: usize) -> bool {
        let same = |message: &&Message| message.to == *to && request_name(&message.request) == name;
        let Some(message) = self.network.sent.iter().filter(same).rev().nth(nth).cloned() else { return false };
        self.ask(Message { then: Then::Nothing, ..message });
        true
    }

    /// Number of messages that were ever sent to a backup.
    pub(crate) fn repeat_any(&mut self, pick: u64) {
        let count = self.network.sent.len() as u64;
        if count > 0 {
            let message = self.network.sent[(pick % count) as usize].clone();
            self.ask(Message { then: Then::Nothing, ..message });
        }
    }

    fn take_message(&mut self, to: Option<&MemberId>) -> Option<Message> {
        let at = self.network.messages.iter().position(|message| to.is_none_or(|to| message.to == *to))?;
        self.network.messages.remove(at)
    }

    fn ask(&mut self, message: Message) {
        let id = self.network.next_request();
        let (to, request) = (message.to.clone(), message.request.clone());
        self.network.asked.insert((to.clone(), id), message);
        let answers = self.host_mut(&to).ask(id, request);
        self.answered(&to, answers);
    }

    /// Brings a backup's answers to those who asked.
    fn answered(&mut self, by: &MemberId, answers: Vec<(backup::RequestId, Answer)>) {
        self.gather();
        for (id, answer) in answers {
            let message = self.network.asked.remove(&(by.clone(), id)).expect("a request is answered once");
            if let (Then::Nothing, Answer::Refused(refusal)) = (&message.then, &answer) {
                self.tell(format!("{by} refuses the late {}: {refusal}", request_name(&message.request)));
            }
            self.hand_back(Reply::Backup(Box::new(message), Ok(answer)));
        }
        self.forget_the_dead();
    }

    /// A dead backup answers nobody.
    fn forget_the_dead(&mut self) {
        let dead = |(member, _): &(MemberId, backup::RequestId)| !self.hosts[member].is_up();
        let unanswered: Vec<_> = self.network.asked.keys().filter(|key| dead(key)).cloned().collect();
        for key in unanswered {
            let message = self.network.asked.remove(&key).expect("just seen");
            self.hand_back(Reply::Backup(Box::new(message), Err(Silence::Gone)));
        }
    }

    fn hand_back(&mut self, reply: Reply) {
        let to = match &reply {
            Reply::Backup(message, _) if matches!(message.then, Then::Nothing) => return,
            Reply::Backup(message, _) => (message.from.clone(), message.life),
            Reply::Read(..) | Reply::Swapped(..) | Reply::Written(..) => unreachable!("handed over directly"),
        };
        self.hand_over(&to.0, to.1, reply);
    }

    fn hand_over(&mut self, to: &SidecarId, life: u32, reply: Reply) {
        let sidecar = self.sidecar_mut(to);
        if sidecar.life != life {
            return;
        }
        if sidecar.paused {
            return sidecar.inbox.push_back(reply);
        }
        match reply {
            Reply::Backup(message, answer) => match message.then {
                Then::Fence(_) => self.on_fence_answer(*message, answer),
                Then::Repair(..) => self.on_repair_answer(*message, answer),
                Then::Recruit(_) => self.on_recruit_answer(*message, answer),
                Then::Channel(_) => self.on_channel_answer(*message, answer),
                Then::Fetched(_) | Then::Granted(_) | Then::Sealed(_) => self.on_image_answer(*message, answer),
                Then::Nothing => {}
            },
            Reply::Read(found) => self.promotion_input(to, promotion::Input::Read(found)),
            Reply::Swapped(outcome) => {
                if matches!(self.sidecar(to).role, Role::Candidate(_)) {
                    self.promotion_input(to, promotion::Input::Swapped(outcome));
                } else {
                    self.primary_input(to, primary::Input::Swapped(outcome));
                }
            }
            Reply::Written(seat, landed) => self.on_written(to, seat, landed),
        }
    }

    fn call_store(&mut self, from: &SidecarId, what: Ask) {
        // The same swap again means that there was no answer: make it after a pause.
        let again = self.sidecar(from).unanswered;
        let due = if again { self.now.plus(STORE_PAUSE_MS) } else { self.now };
        let life = self.sidecar(from).life;
        self.network.calls.push_back(Call { from: from.clone(), life, due, what });
    }

    /// Moves the oldest call to the config store that is due; false when there is none.
    pub(crate) fn move_call(&mut self) -> bool {
        let Some(at) = self.network.calls.iter().position(|call| call.due <= self.now) else { return false };
        let call = self.network.calls.remove(at).expect("just seen");
        let reply = match call.what {
            Ask::Read => Reply::Read(self.store.read()),
            Ask::Swap(swap) => {
                let outcome = self.store.swap(&swap);
                let set = tale::names(swap.proposed.members.iter().map(|member| &member.id));
                let wish = format!("epoch {}, version {}, set {set}", swap.proposed.epoch, swap.proposed.version);
                let settled = outcome.clone().settle(&swap.proposed);
                let end = match (&settled, &outcome) {
                    (SwapOutcome::Applied, SwapOutcome::Applied) => "done",
                    (SwapOutcome::Applied, _) => "done before",
                    (SwapOutcome::Conflict(_), _) => "refused, something else is there",
                    (SwapOutcome::Unknown, _) => "no answer",
                };
                self.tell(format!("{} swaps to {wish}: {end}", call.from));
                Reply::Swapped(outcome)
            }
        };
        let unanswered = matches!(reply, Reply::Swapped(SwapOutcome::Unknown));
        self.sidecar_mut(&call.from).unanswered = unanswered;
        self.hand_over(&call.from, call.life, reply);
        self.sidecar_mut(&call.from).unanswered = false;
        true
    }

    /// Runs one flush at this backup, or at any; false when there is none.
    pub(crate) fn move_flush(&mut self, at: Option<&MemberId>) -> bool {
        let names: Vec<MemberId> = self.hosts.keys().filter(|name| at.is_none_or(|at| at == *name)).cloned().collect();
        for name in names {
            if let Some(answers) = self.host_mut(&name).flush_one() {
                self.answered(&name, answers);
                return true;
            }
        }
        false
    }

    /// Connections to dead processes and over cut lines break at once, for everyone who is awake.
    pub(crate) fn notice_losses(&mut self) {
        let awake: Vec<SidecarId> = self.sidecars.values().filter(|s| !s.paused).map(|s| s.name.clone()).collect();
        for name in awake {
            let Some(lead) = self.sidecar(&name).lead() else { continue };
            let broken = |member: &MemberId, life: u32| {
                let host = self.host(member);
                !host.is_up() || host.life != life || self.is_cut(&name, member)
            };
            let lost: Vec<Seat> = lead
                .channels
                .iter()
                .filter(|(_, channel)| channel.life.is_some_and(|life| broken(&channel.member.id, life)))
                .map(|(seat, _)| *seat)
                .collect();
            for seat in lost {
                self.lose_seat(&name, seat, "its connection broke");
            }
        }
    }

    /// One move of anything that can move; false when all is quiet.
    pub(crate) fn move_anything(&mut self) -> bool {
        self.forget_the_dead();
        self.notice_losses();
        self.move_message(None) || self.move_call() || self.move_write() || self.move_flush(None)
    }

    /// Moves until all is quiet. Time stands still.
    pub(crate) fn settle(&mut self) {
        for _ in 0..MOVES_MAX {
            if !self.move_anything() {
                return;
            }
        }
        panic!("the world runs in circles:\n{}", self.story());
    }

    /// Time passes for everyone who is awake.
    pub(crate) fn tick(&mut self, ms: u64) {
        self.now = self.now.plus(ms);
        self.notice_losses();
        for lead in self.sidecars.values_mut().filter_map(Sidecar::lead_mut) {
            lead.channels.values_mut().for_each(|channel| channel.no_buffer = false);
        }
        let hosts: Vec<MemberId> = self.hosts.keys().cloned().collect();
        for name in hosts {
            let answers = self.host_mut(&name).drive(backup::Input::Tick);
            self.answered(&name, answers);
        }
        let awake: Vec<SidecarId> = self.sidecars.values().filter(|s| !s.paused).map(|s| s.name.clone()).collect();
        for name in awake {
            self.promotion_input(&name, promotion::Input::Tick);
            self.primary_input(&name, primary::Input::Tick);
        }
    }

    /// A sidecar that was stopped goes on with what has come in meanwhile.
    pub(crate) fn resume(&mut self, name: &SidecarId) {
        let sidecar = self.sidecar_mut(name);
        sidecar.paused = false;
        let (life, inbox) = (sidecar.life, std::mem::take(&mut sidecar.inbox));
        for reply in inbox {
            self.hand_over(name, life, reply);
        }
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
            self.checker.check_members(config, self.hosts.values());
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
