//! A whole group in one thread and virtual time: backups, sidecars with their apps, a config store, a control network and
//! a fabric, moved by one seed.
//!
//! Made and run by [`runner`](crate::runner). The production machines decide; everything else here carries out, delays,
//! loses and breaks. [`Checks`] judges. Follow one append: [`app`] → [`lead`] → [`fabric`] → [`host`] → back to [`lead`];
//! one failover: [`faults`] → [`sidecar`] → [`candidate`] → [`store`] and [`network`] → [`host`] → [`lead`].

pub(crate) mod app;
mod asking;
mod candidate;
mod cleaning;
mod daemon;
mod damage;
mod deceit;
mod desired;
pub(crate) mod fabric;
mod faults;
mod files;
mod follow;
mod getter;
mod getting;
pub(crate) mod host;
mod image;
mod judge;
mod lead;
mod memory;
mod mirror_memory;
mod mirroring;
pub(crate) mod network;
pub(crate) mod pull;
pub(crate) mod queue;
mod reading;
mod residents;
mod scrub;
mod seats;
mod sender;
pub(crate) mod sidecar;
mod sides;
mod standby;
mod store;
mod table;
mod warm;

use tailwind_protocol::config::Durability;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::GroupName;
use tailwind_protocol::table::mirror::MirrorId;

use crate::check::{Checks, broken};
use crate::plan::{Fixed, MirrorPlan, Plan, ResidentPlan, Shape, TablePlan};
use crate::random::Random;
use crate::tally::{Fault, Tally};
use crate::trace::{Trace, trace};

use deceit::Deceit;
pub use deceit::Lie;
use desired::DesiredState;
pub(crate) use fabric::Key;
use fabric::{ChannelId, Fabric, StaleWrite};
use faults::Heal;
use follow::FollowAsk;
use getter::GetterAsk;
pub(crate) use host::Host;
use host::HostEvent;
use network::{Cuts, Envelope};
use pull::{PullEvent, PullNo};
use queue::{MS, Micros, Queue};
pub(crate) use reading::BOARD;
use reading::Reading;
use sidecar::{Notice, Process, Sidecar, TICK};
use store::{Store, StoreCall};

/// Once the faults have stopped and a sound member is there, an append is acknowledged within this time: claims race and
/// back off (up to a second), opens wait for flushes (two seconds of patience each), images are copied.
const RETURN_MAX: Micros = 60_000 * MS;
/// By then every call that was made while faults struck has been answered or given up.
const SETTLED: Micros = 3000 * MS;
/// The slowest link to a newcomer that is as well as a slow disk, in milliseconds.
const SLOW_LINK_MAX: u64 = 30;
/// How often a backup's machine hears of time passing.
const HOST_TICK: Micros = 100 * MS;
/// Pause between two looks for queue pairs that nobody has any more.
const SWEEP: Micros = 500 * MS;

/// A backup of this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostNo(pub(crate) usize);

/// A sidecar of this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SidecarNo(pub(crate) usize);

/// Everything that can happen.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request reaches a backup's host.
    Request(Box<Envelope>),
    /// To a backup's process of this life.
    Host(HostNo, u32, HostEvent),
    HostTick(HostNo),
    Restart(HostNo),
    PowerGone(HostNo),
    /// To a sidecar's process of this life.
    Sidecar(SidecarNo, u32, Notice),
    SidecarTick(SidecarNo),
    AppTurn(SidecarNo),
    /// A part of a write reaches memory.
    Land(ChannelId, u64, usize),
    StaleWrite(Box<StaleWrite>),
    /// All of a write has reached the receiver's card.
    Arrive(ChannelId, u64),
    /// A read takes some of its bytes.
    Sample(u64, usize),
    /// The reader looks at a board.
    Look,
    /// To a pull of a backup's process of this life.
    Pull(HostNo, u32, PullNo, PullEvent),
    /// A follower's question reaches a backup's host.
    FollowAsk(SidecarNo, u32, Visit, FollowAsk),
    /// A getter's question reaches a backup's host.
    GetterAsk(SidecarNo, u32, Visit, GetterAsk),
    /// A getter's question for a position reaches the primary.
    AskPosition(SidecarNo, u32, u64),
    /// A request for a mirror's parts, of this epoch and so many, reaches a backup's host.
    LendParts(SidecarNo, u32, MirrorId, HostNo, (sides::PartsLending, u32)),
    Sweep,
    Store(Box<StoreCall>),
    InjectFault,
    Edit,
    Heal(Heal),
}

/// The world.
#[derive(Debug)]
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) queue: Queue<Event>,
    pub(crate) random: Random,
    pub(crate) hosts: Vec<Host>,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) store: Store,
    pub(crate) fabric: Fabric,
    reading: Reading,
    pub(crate) cuts: Cuts,
    pub(crate) checks: Checks,
    pub(crate) trace: Trace,
    pub(crate) tally: Tally,
    /// What the group wants now.
    pub(crate) desired: DesiredState,
    deceit: Deceit,
    /// Faults strike.
    pub(crate) faults_on: bool,
    /// Who claims an epoch, scrubs or starts again is told to.
    pub(crate) by_hand: bool,
    /// Apps trim nothing now.
    pub(crate) keeps_all: bool,
    /// No app appends.
    pub(crate) quiet: bool,
    /// Apps append without a pause.
    pub(crate) load: bool,
    /// Requests that backups have taken.
    pub(crate) requests: u64,
    /// Followers that have begun.
    followers: u64,
    /// Getters that have begun.
    getters: u64,
    /// Connections to them.
    connections: u64,
    /// What was asked there.
    gets: u64,
    /// Those of apps that have ended.
    positions: Vec<follow::Position>,
    /// When a record was acknowledged last.
    last_ack: Micros,
    /// Acks since the faults stopped.
    acks_without_faults: u64,
}

/// The name of the only group.
pub(crate) fn group() -> GroupName {
    "g".parse().expect("a group name")
}

impl World {
    /// The world of this seed, but for what is fixed. `listening`: whether its story is wanted.
    pub fn new(seed: u64, listening: bool, fixed: Fixed) -> World {
        let table = TablePlan::draw(seed, fixed.kind);
        let mirrors = MirrorPlan::draw(seed, table.is_some(), fixed.mirrors);
        let ResidentPlan { count: residents, faults: mut more } = ResidentPlan::draw(seed, fixed.residents);
        more.extend(mirrors.iter().flat_map(|mirrors| mirrors.faults.iter().copied()));
        World::drawn(seed, listening, |plan| Plan {
            durability: fixed.durability.unwrap_or(plan.durability),
            table,
            mirrors,
            residents,
            faults: plan.faults.iter().copied().chain(more).collect(),
            ..plan
        })
    }

    fn drawn(seed: u64, listening: bool, change: impl FnOnce(Plan) -> Plan) -> World {
        let mut random = Random::new(seed);
        let plan = change(Plan::draw(&mut random.split()));
        let desired = DesiredState::new(seed, plan.backups, plan.min_in_sync);
        let mut world = World::of(plan, random, desired, Trace::new(listening));
        world.deceit = Deceit::of(seed, &world.plan);
        world.faults_on = true;
        world.begin();
        world.queue.plan(SWEEP, Event::Sweep);
        if world.plan.read_grain.is_some() {
            world.queue.plan(20 * MS, Event::Look);
        }
        world.queue.plan(60 * MS, Event::InjectFault);
        world.plan_edits();
        let plan = &world.plan;
        trace!(
            world,
            "{}{}{}{} members of {} backups, {} sidecars, {} in sync at least, durability {}, placement {:?}; {} kinds of faults",
            if plan.table.is_some() { "a table: " } else { "" },
            if plan.mirrors.is_some() { "with mirrors: " } else { "" },
            if plan.residents > 0 { "with residents: " } else { "" },
            plan.backups,
            world.hosts.len(),
            plan.sidecars,
            plan.min_in_sync,
            plan.durability,
            plan.placement,
            plan.faults.len()
        );
        world
    }

    /// The world of this seed, in a group in which a member lies, likes this lie, and may be outvoted.
    pub fn lying(seed: u64, lie: Lie) -> World {
        let outvoted = |plan| Plan { backups: 3, min_in_sync: 2, ..plan };
        let mut world = World::drawn(seed, false, outvoted);
        world.deceit.prefer(lie, &world.plan);
        world
    }

    /// A world in which nothing happens that nobody asks for: see [`ScriptedGroup`](crate::scripted::ScriptedGroup).
    pub(crate) fn still(shape: Shape) -> World {
        let desired = DesiredState::new(0, shape.backups, shape.min_in_sync);
        let mut world = World::of(Plan::still(shape), Random::still(), desired, Trace::untimed());
        world.by_hand = true;
        world.begin();
        world.trace.take();
        world
    }

    fn of(plan: Plan, mut random: Random, desired: DesiredState, trace: Trace) -> World {
        let hosts = (0..usize::from(plan.backups + plan.spares)).map(HostNo);
        let hosts = hosts.map(|no| Host::new(no, &plan, random.split())).collect();
        World {
            queue: Queue::new(),
            hosts,
            sidecars: Vec::new(),
            store: Store::default(),
            fabric: Fabric::default(),
            reading: Reading::default(),
            cuts: Cuts::default(),
            checks: Checks::default(),
            trace,
            tally: Tally { seeds: 1, ..Tally::default() },
            desired,
            deceit: Deceit::none(),
            faults_on: false,
            by_hand: false,
            keeps_all: false,
            quiet: false,
            load: false,
            requests: 0,
            followers: 0,
            getters: 0,
            connections: 0,
            gets: 0,
            positions: Vec::new(),
            last_ack: 0,
            acks_without_faults: 0,
            plan,
            random,
        }
    }

    /// Sidecars and backups start.
    fn begin(&mut self) {
        for no in (0..usize::from(self.plan.sidecars)).map(SidecarNo) {
            let drifts = self.plan.has(Fault::ClockDrifts);
            let rate = if drifts { self.random.within(700, 1500) } else { 1000 };
            if drifts {
                self.tally.count(Fault::ClockDrifts);
            }
            let clock = (self.random.below(1 << 40), rate);
            self.sidecars.push(Sidecar::new(no, clock));
            let (tick, turn) = (self.random.below(TICK), self.random.below(self.plan.app_pause));
            self.queue.plan(tick, Event::SidecarTick(no));
            if !self.by_hand {
                self.queue.plan(turn, Event::AppTurn(no));
            }
        }
        for no in (0..self.hosts.len()).map(HostNo) {
            self.start_host(no);
            self.queue.plan(HOST_TICK, Event::HostTick(no));
        }
    }

    /// Plays the seed to its end. Panics where a rule is broken.
    pub fn play(&mut self) -> Tally {
        while self.queue.now() < self.plan.fault_time {
            self.step();
        }
        self.stop_faults();
        match self.wait_for_service() {
            Some(after) => {
                self.tally.return_max = after;
                self.followers_catch_up();
                self.rest_table();
                self.mirrors_become_live();
                self.gets_are_answered();
                self.repair_all();
                self.grow();
                self.refill();
                self.outlast_the_liar();
                self.survive_a_folder_put_back();
                self.survive_damage();
                self.survive_darkness();
            }
            None => self.check_outage(),
        }
        self.tally.simulated = self.queue.now();
        self.tally.events = self.queue.count();
        trace!(self, "the end: {} records acknowledged, {} read", self.tally.acked, self.tally.read);
        self.tally.clone()
    }

    /// Plays on until the group serves again; how long that took, if it does.
    fn wait_for_service(&mut self) -> Option<Micros> {
        let calm = self.queue.now();
        while !self.serves() && self.queue.now() < calm + RETURN_MAX {
            self.step();
        }
        self.serves().then(|| self.queue.now() - calm)
    }

    /// The same once more, after a blow; false if it does not.
    fn serves_again(&mut self) -> bool {
        self.acks_without_faults = 0;
        let after = self.wait_for_service();
        self.tally.return_max = self.tally.return_max.max(after.unwrap_or_default());
        after.is_some()
    }

    /// Goes on until no call is left that the faults have swallowed.
    fn let_calls_end(&mut self) {
        self.play_for(SETTLED);
    }

    fn play_for(&mut self, time: Micros) {
        let end = self.queue.now() + time;
        while self.queue.now() < end {
            self.step();
        }
    }

    /// A member is replaced by an empty one while the app appends without a pause, and the links to all backups outside the set
    /// are slow: the group has its full size again all the same.
    fn grow(&mut self) {
        if !self.plan.has(Fault::MemberEmptiedUnderLoad) {
            return;
        }
        self.let_calls_end();
        let Some(config) = self.whole_group() else { return };
        self.tally.count(Fault::MemberEmptiedUnderLoad);
        let emptied = self.random.pick(&config.members).id.clone();
        self.replace_host(self.host_of(&emptied));
        let lag = self.random.within(2, SLOW_LINK_MAX);
        for no in (0..self.hosts.len()).map(HostNo) {
            let stays = self.hosts[no.0].name != emptied && config.member(&self.hosts[no.0].name).is_some();
            self.hosts[no.0].link_lag = if stays { 0 } else { lag * MS };
        }
        trace!(self, "the app appends without a pause; {lag} ms to newcomers");
        self.load = true;
        let calm = self.queue.now();
        while !self.has_full_size() && self.queue.now() < calm + RETURN_MAX {
            self.step();
        }
        self.load = false;
        self.hosts.iter_mut().for_each(|host| host.link_lag = 0);
        self.tally.grown_max = self.queue.now() - calm;
        if !self.has_full_size() {
            broken("Liveness", format!("under load no newcomer joins in {} s", RETURN_MAX / MS / 1000));
        }
    }

    /// True when the set has all members that are wanted, with the memory that they had when they joined.
    fn has_full_size(&self) -> bool {
        let Some(config) = self.store.content() else { return false };
        let present = config.members.iter().filter(|member| self.hosts[self.host_of(&member.id).0].boot == member.boot);
        present.count() >= usize::from(self.desired.backups)
    }

    /// A primary that is well refills all members but one from what that one has: here nothing excuses an absence.
    fn refill(&mut self) {
        if !self.plan.has(Fault::AllButOneEmptied) {
            return;
        }
        // A swallowed call would cost the member that is left its seat.
        self.let_calls_end();
        if !self.empty_all_but_one() {
            return;
        }
        if !self.serves_again() {
            broken("Liveness", "members that were emptied are not refilled from the one that is left".to_owned());
        }
    }

    /// A failover in the middle of a member's lies: once it is honest, or dies, there is a primary all the same.
    fn outlast_the_liar(&mut self) {
        let Some(liar) = self.deceit.liar() else { return };
        self.let_calls_end();
        if self.whole_group().is_none() {
            return;
        }
        self.deceit.begin();
        self.kill_primaries();
        let lies = self.deceit.within(100, 1500) * MS;
        self.play_for(lies);
        self.deceit.end();
        if self.deceit.within(0, 1) == 0 {
            self.kill_host(liar);
            self.plan_restart(liar);
        }
        if !self.serves_again() {
            broken("Liveness", "a member that no longer lies holds up the group".to_owned());
        }
    }

    /// A member's folder is put back from before the last failover, and the other members are late: what has been acknowledged since
    /// is theirs alone.
    fn survive_a_folder_put_back(&mut self) {
        if !self.deceit.puts_back() || self.plan.durability != Durability::Flushed {
            return;
        }
        self.let_calls_end();
        let Some(config) = self.whole_group().filter(|config| config.members.len() >= 2) else { return };
        let victim = self.deceit.pick(&config.members).id.clone();
        let no = self.host_of(&victim);
        let folder = self.hosts[no.0].files.copy();
        self.kill_primaries();
        let calm = self.queue.now();
        while self.whole_group().is_none_or(|now| now.epoch == config.epoch) && self.queue.now() < calm + RETURN_MAX {
            self.step();
        }
        let more = self.deceit.within(100, 1000) * MS;
        self.play_for(more);
        self.let_calls_end();
        let Some(config) = self.whole_group() else { return };
        if config.member(&victim).is_none_or(|member| member.boot != self.hosts[no.0].boot) {
            return;
        }
        self.put_back(no, folder);
        self.kill_primaries();
        let others: Vec<HostNo> =
            config.members.iter().map(|member| self.host_of(&member.id)).filter(|other| *other != no).collect();
        others.iter().for_each(|other| self.kill_host(*other));
        self.start_host(no);
        let late = self.deceit.within(50, 3000) * MS;
        self.play_for(late);
        others.into_iter().for_each(|other| self.restart_host(other));
        if !self.serves_again() {
            self.check_outage();
        }
    }

    /// Whatever is damaged at all members but one, in whatever order they return: nothing is lost that the one holds.
    fn survive_damage(&mut self) {
        if !self.plan.has(Fault::AllButOneDamaged) {
            return;
        }
        self.let_calls_end();
        // Now and then the log has just been recovered, so that nothing follows its last segment.
        if self.random.one_in(2) {
            self.quiet = true;
            self.kill_primaries();
            let calm = self.queue.now();
            while self.whole_group().is_none() && self.queue.now() < calm + RETURN_MAX {
                self.step();
            }
            self.let_calls_end();
        }
        let hit = self.damage_all_but_one();
        self.quiet = false;
        if !hit {
            return;
        }
        if !self.serves_again() {
            self.check_outage();
        }
    }

    /// All memory is lost after a sync, and all disks but those of some members: nothing synced is.
    fn survive_darkness(&mut self) {
        if !self.plan.has(Fault::SyncedAndDark) || self.plan.durability == Durability::Flushed {
            return;
        }
        self.let_calls_end();
        if self.whole_group().is_none() || !self.sync_now() {
            return;
        }
        // Sometimes one member is new since the sync.
        if self.random.one_in(2) {
            let Some(config) = self.whole_group() else { return };
            let emptied = self.random.pick(&config.members).id.clone();
            self.replace_host(self.host_of(&emptied));
            let calm = self.queue.now();
            while !self.has_full_size() && self.queue.now() < calm + RETURN_MAX {
                self.step();
            }
        }
        let more = self.random.within(1, 300) * MS;
        self.play_for(more);
        let Some(config) = self.whole_group() else { return };
        self.tally.count(Fault::SyncedAndDark);
        self.apps_leave();
        self.lose_all_memory(&config);
        self.order_recovery_from_disk();
        if !self.serves_again() {
            broken("Liveness", "a synced log is not recovered from the disks that are left".to_owned());
        }
        self.desired.recover_from_disk = None;
        self.outgrow_the_apps_that_left();
        self.followers_catch_up();
    }

    /// The log goes on until it is longer than anything that was shown before the loss: no LSN betrays who comes back late.
    fn outgrow_the_apps_that_left(&mut self) {
        self.load = true;
        let calm = self.queue.now();
        while self.positions_beyond(self.checks.last_owed()) && self.queue.now() < calm + RETURN_MAX {
            self.step();
        }
        self.load = false;
        self.apps_return();
    }

    /// An app syncs, and is answered.
    fn sync_now(&mut self) -> bool {
        let calm = self.queue.now();
        let leads = |sidecar: &&Sidecar| sidecar.process == Process::Up && sidecar.lead().is_some();
        let Some(of) = self.sidecars.iter().find(leads).map(|sidecar| sidecar.no) else { return false };
        let (mut asked, before) = (false, self.tally.syncs);
        self.with_lead(of, |_, lead| asked = lead.sync(calm));
        while asked && self.tally.syncs == before {
            if self.queue.now() > calm + RETURN_MAX {
                broken("Liveness", "a sync is not answered".to_owned());
            }
            self.step();
        }
        asked
    }

    /// What a line of the kept seeds says of the group after the number; see [`kept`](crate::runner::kept).
    pub fn kind_words(&self) -> impl Iterator<Item = &'static str> {
        let (plan, words) = (&self.plan, ["table:", "residents:", "mirrors:"]);
        let is_said = [plan.table.is_some(), plan.residents > 0, plan.mirrors.is_some()];
        words.into_iter().zip(is_said).filter_map(|(word, is_said)| is_said.then_some(word))
    }

    /// The story so far.
    pub fn story(&mut self) -> String {
        self.trace.take()
    }

    pub(crate) fn step(&mut self) {
        let event = self.queue.next().expect("somebody always ticks");
        self.happens(event);
    }

    pub(crate) fn happens(&mut self, event: Event) {
        match event {
            Event::Request(envelope) => self.on_request(envelope),
            Event::Host(no, life, event) => self.on_host_event(no, life, event),
            Event::HostTick(no) => {
                self.notify_host(no, tailwind_protocol::backup::Input::Tick);
                self.let_flusher_rest(no);
                if !self.by_hand {
                    self.scrub_one(no);
                    self.load_one(no);
                }
                self.queue.plan(HOST_TICK, Event::HostTick(no));
            }
            Event::Restart(no) => self.restart_host(no),
            Event::PowerGone(no) => self.on_power_gone(no),
            Event::Sidecar(no, life, notice) => self.on_notice(no, life, notice),
            Event::SidecarTick(no) => {
                self.on_notice(no, self.sidecars[no.0].life, Notice::Tick);
                let pause = TICK + self.random.below(MS);
                self.queue.plan(pause, Event::SidecarTick(no));
            }
            Event::AppTurn(no) => {
                self.on_notice(no, self.sidecars[no.0].life, Notice::App);
                let app_pause = if self.load { app::LOAD_PAUSE } else { self.plan.app_pause };
                let pause = app_pause / 2 + self.random.below(app_pause);
                self.queue.plan(pause, Event::AppTurn(no));
            }
            Event::Land(channel, number, nth) => self.on_land(channel, number, nth),
            Event::StaleWrite(stale) => self.on_stale_write(&stale),
            Event::Arrive(channel, number) => self.on_arrive(channel, number),
            Event::Sample(read, nth) => self.on_sample(read, nth),
            Event::Look => self.look(),
            Event::Pull(no, life, pull, event) => self.on_pull_event(no, life, pull, event),
            Event::FollowAsk(of, life, visit, ask) => self.on_follow_ask(of, life, visit, ask),
            Event::GetterAsk(of, life, visit, ask) => self.on_getter_ask(of, life, visit, ask),
            Event::AskPosition(of, life, question) => self.on_ask_position(of, life, question),
            Event::LendParts(of, life, mirror, host, asks) => self.on_lend_parts((of, life, mirror), host, asks),
            Event::Sweep => {
                self.sweep_channels();
                self.queue.plan(SWEEP, Event::Sweep);
            }
            Event::Store(call) => self.on_store_call(*call),
            Event::InjectFault => self.inject_fault(),
            Event::Edit => self.on_edit(),
            Event::Heal(heal) => self.on_heal(heal),
        }
    }

    /// Records were acknowledged.
    pub(crate) fn acked_now(&mut self) {
        let now = self.queue.now();
        match self.faults_on {
            true => self.tally.outage_max = self.tally.outage_max.max(now - self.last_ack),
            false => self.acks_without_faults += 1,
        }
        self.last_ack = now;
    }

    /// The group serves again: somebody has acknowledged since the faults stopped and has read everything back. One whose epoch has
    /// passed may learn late what was completed before.
    fn serves(&self) -> bool {
        let epoch = self.store.content().map(|config| config.epoch);
        let leads = |sidecar: &Sidecar| sidecar.lead().is_some_and(|lead| Some(lead.epoch) == epoch);
        let reads = |sidecar: &&Sidecar| leads(sidecar) && sidecar.app.has_read_all();
        self.acks_without_faults >= 3
            && self.sidecars.iter().filter(|sidecar| sidecar.process == Process::Up).any(|sidecar| reads(&sidecar))
    }

    /// The group did not come back in time: is there anything that excuses it?
    fn check_outage(&mut self) {
        let config = self.store.content().cloned();
        let Some(config) = config else { broken("Liveness", "the group never started".to_owned()) };
        // One that lies may be as good as one that is lost.
        let present = config.members.iter().filter(|member| {
            let host = &self.hosts[self.host_of(&member.id).0];
            host.boot == member.boot && !self.is_liar(&member.id)
        });
        let present = present.count();
        let needed = usize::from(self.plan.min_in_sync).min(config.members.len());
        let rotten = self.hosts.iter().any(|host| !host.flips.is_empty());
        if present < needed {
            self.tally.lost_for_good = 1;
        } else if rotten {
            self.tally.rotten_for_good = 1;
        } else if self.all_are_damaged(&config) {
            self.tally.damaged_for_good = 1;
        } else {
            let seconds = RETURN_MAX / MS / 1000;
            broken(
                "Liveness",
                format!(
                    "no service {seconds} s after the faults stopped; {present} of {} members kept their memory, {needed} \
                     are needed; {} acks in that time",
                    config.members.len(),
                    self.acks_without_faults
                ),
            );
        }
    }
}
