//! A primary's term: executes what the primary machine wants done.
//!
//! Called by [`roles`](super) for as long as this sidecar is primary. The machine hands out only what may start
//! now, so everything runs side by side: for members in [`SeatTasks`], the rest in tasks of the term.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tailwind_fabric::{AppendBuffer, ChannelError, SharedBuffer};
use tailwind_protocol::config::{Configuration, MemberRef, SwapOutcome, Time};
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat, StepDown};
use tailwind_protocol::recovery::Reference;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::member::{MemberLink, Surveyed, survey};
use super::seat::SeatTasks;
use crate::control::Context;
use crate::control::clean;
use crate::control::desired::DesiredState;
use crate::control::log::{self, TermStart};
use crate::control::mirrors::{self, MirroredTerm};
use crate::control::rebuild::Rebuilt;
use crate::control::sources::Sources;
use crate::control::status::table::Work;
use crate::path::{Command, FromTerm};

/// Why a member is lost of which no call and no write has failed. "Segments" in `docs/protocol.md` says what it may hold up, and how
/// long.
const TOO_SLOW: &str = "it made no progress for too long";
/// Pause before a swap of unknown outcome is sent again.
const SWAP_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between two searches for a spare.
const RECRUIT_INTERVAL: Duration = Duration::from_millis(250);

/// A primary's term.
struct TermExecutor {
    context: Arc<Context>,
    config: Configuration,
    seats: HashMap<Seat, SeatTasks>,
    /// What concerns no seat: at most one swap, one step of a search, a preparation for each open segment, and the cleaner of a
    /// table.
    tasks: JoinSet<anyhow::Result<Done>>,
    /// Members to which there was a channel.
    connected: HashSet<Seat>,
    /// What the last search for a spare could not use, to be said when it changes.
    unfit: Vec<String>,
    /// The members of the set that have a seat, for the mirrors of a table.
    in_set: watch::Sender<Vec<Arc<MemberLink>>>,
}

/// How a term has ended.
pub(super) struct TermEnd {
    pub why: StepDown,
    /// It has never had channels to enough members. Another sidecar may have them.
    pub was_cut_off: bool,
}

/// What came of a task.
enum Done {
    Prepared(SegmentIdentity, AppendBuffer, SharedBuffer),
    Swapped(Configuration, SwapOutcome),
    Surveyed(Vec<Result<Surveyed, String>>),
    Other(Input),
}

/// Is primary until it steps down. An error means that this process cannot go on.
pub(super) async fn lead(
    context: &Arc<Context>,
    config: Configuration,
    reference: &Reference,
    table: Option<Rebuilt>,
    outputs: &mut mpsc::Receiver<FromTerm>,
) -> anyhow::Result<TermEnd> {
    let mut desired = context.desired();
    let rules = Rules {
        backups: desired.members,
        min_in_sync: desired.min_in_sync,
        durability: context.rules.durability,
        segment_size: context.rules.segment_size,
        open_timeout_ms: context.rules.open_timeout.as_millis() as u64,
        recruit_interval_ms: RECRUIT_INTERVAL.as_millis() as u64,
        swap_interval_ms: SWAP_INTERVAL.as_millis() as u64,
    };
    let mut first = Vec::new();
    let primary = Primary::new(config.clone(), rules, reference, getrandom::u64()?, Time(0), &mut first);
    let members: Vec<&str> = config.members.iter().map(|member| member.id.as_str()).collect();
    tracing::info!(epoch = %config.epoch, version = %config.version, ?members, "primary");
    context.contacts.forget_seats();
    let start = TermStart {
        term: log::Term {
            log: config.log,
            epoch: config.epoch,
            first: primary.first_readable(),
            last: reference.last(),
        },
        required: config.members.clone(),
        closed: primary.closed().clone(),
        cuts: config.cuts.clone(),
        sources: Sources::of(context, &config),
    };
    let (table, unkeyed) = table.map_or((None, None), |Rebuilt { table, unkeyed }| (Some(table), unkeyed));
    if let Some(table) = &table {
        context.shared.settled.store(primary.synced().0, Ordering::Release);
        context.shared.live_bytes.store(table.index().live_bytes(), Ordering::Relaxed);
    }
    let bounds = table.as_ref().map(|table| *table.bounds());
    let view = table.as_ref().map(|table| Arc::clone(table.index().acked_view()));
    let mirrored = view.map(|view| MirroredTerm { epoch: config.epoch, board: primary.board_identity(), view });
    let lead = Command::Lead(Box::new(primary), reference.last().0, table);
    context.log.begin(start, &context.shared, || context.path.send(lead));
    let mut term = TermExecutor {
        context: Arc::clone(context),
        config,
        seats: HashMap::new(),
        tasks: JoinSet::new(),
        connected: HashSet::new(),
        unfit: Vec::new(),
        in_set: watch::Sender::default(),
    };
    let served = term.config.clone();
    if context.primary_address.is_some() {
        let (context, served) = (Arc::clone(context), served.clone());
        term.tasks.spawn(async move {
            match &context.primary_address {
                Some(address) => match address.publish(&served).await {},
                None => std::future::pending().await,
            }
        });
    }
    if let Some(bounds) = bounds {
        let cleaner = clean::clean(Arc::clone(context), served.epoch, bounds, unkeyed);
        term.tasks.spawn(async move { match cleaner.await {} });
    }
    if let Some(mirrored) = mirrored {
        context.table.mirrors().begin(mirrored.epoch);
        let mirrors = mirrors::keep(Arc::clone(context), mirrored, term.in_set.subscribe());
        term.tasks.spawn(async move { match mirrors.await? {} });
    }
    first.into_iter().for_each(|output| term.execute(output));
    // Not the store itself, which may hang: a term goes on without it.
    let mut configuration = context.configuration.clone();
    let mut newest = served.epoch;
    let why = loop {
        tokio::select! {
            output = outputs.recv() => match output.ok_or_else(|| anyhow::anyhow!("the append path has ended"))? {
                FromTerm::Do(Output::StepDown(why)) => break why,
                FromTerm::Do(output) => term.execute(output),
                FromTerm::ChannelFailed(seat, why) => term.on_channel_failed(seat, &why),
            },
            Some(done) = term.tasks.join_next() => term.on_done(done??),
            () = context.desires(|now| !now.wants_the_same(&desired)) => {
                desired = context.desired();
                term.desire(&desired);
            }
            epoch = later_epoch(&mut configuration, newest) => {
                newest = epoch;
                term.tell(Input::Superseded(epoch));
            }
        }
    };
    context.log.end();
    context.table.set(Work::Nothing);
    context.table.mirrors().end();
    let was_cut_off =
        matches!(why, StepDown::TooFewMembers { needed, .. } if term.connected.len() < usize::from(needed));
    drop(term);
    context.contacts.forget_seats();
    withdraw(Arc::clone(context), served);
    Ok(TermEnd { why, was_cut_off })
}

impl TermExecutor {
    fn execute(&mut self, output: Output) {
        let context = Arc::clone(&self.context);
        match output {
            Output::Prepare(identity) => drop(self.tasks.spawn(prepare(context, identity))),
            Output::Swap(swap) => {
                context.log.propose(&swap.proposed.members);
                self.tasks.spawn(async move {
                    let proposed = swap.proposed.clone();
                    let outcome = context.store.swap(swap).await.settle(&proposed);
                    Ok(Done::Swapped(proposed, outcome))
                });
            }
            Output::Survey => drop(self.tasks.spawn(async move { Ok(Done::Surveyed(survey(&context, None).await)) })),
            Output::ReadConfig => drop(self.tasks.spawn(async move {
                let found = context.store.read().await;
                Ok(Done::Other(Input::Read(found)))
            })),
            Output::Fence(spare) => drop(self.tasks.spawn(fence(context, self.config.clone(), spare))),
            Output::Forget(segment, closure) => {
                tracing::debug!(%segment, last = %closure.last, "closed everywhere");
                self.context.log.closed(segment, closure);
            }
            Output::Disconnect(seat) => self.lose(seat),
            Output::StepDown(_) => unreachable!("handled by the caller"),
            output => self.execute_for_seat(output),
        }
    }

    fn execute_for_seat(&mut self, output: Output) {
        if let Output::Connect(seat, member) = &output {
            let tasks = SeatTasks::begin(&self.context, &self.config, *seat, member.clone());
            self.context.contacts.seat(&member.id);
            self.seats.insert(*seat, tasks);
            self.refresh_sources();
        }
        if let Output::Open(seat, _) = output {
            self.connected.insert(seat);
        }
        if let Output::Trim(_, below) = output {
            self.context.log.trim(below);
        }
        if let Some(tasks) = output.seat().and_then(|seat| self.seats.get_mut(&seat)) {
            tasks.execute(output);
        }
    }

    fn on_channel_failed(&self, seat: Seat, why: &ChannelError) {
        if let Some(tasks) = self.seats.get(&seat) {
            tasks.note_trouble(why.to_string());
        }
    }

    fn lose(&mut self, seat: Seat) {
        if let Some(tasks) = self.seats.remove(&seat) {
            let member = &tasks.link().member().id;
            let why = tasks.trouble().unwrap_or_else(|| TOO_SLOW.to_owned());
            tracing::warn!(%member, %why, "member lost");
            self.context.contacts.lose(member, &why);
        }
        self.refresh_sources();
        self.warn_if_short();
    }

    /// Says why acks stop, and for how long.
    fn warn_if_short(&self) {
        let in_set = |member: &&MemberRef| self.seats.values().any(|tasks| tasks.link().member() == *member);
        let (left, lost): (Vec<&MemberRef>, Vec<&MemberRef>) = self.config.members.iter().partition(in_set);
        let (left, lost) = (left.len(), lost.iter().map(|member| member.id.as_str()).collect::<Vec<_>>());
        let needed = usize::from(self.context.desired().min_in_sync).min(self.config.members.len());
        if (1..needed).contains(&left) {
            tracing::warn!(
                left,
                needed,
                ?lost,
                "too few members are left: appends wait until members return or are replaced"
            );
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Prepared(identity, fresh, shared) => {
                self.context.log.opened(identity, shared.clone());
                self.context.path.send(Command::Prepared(identity, fresh, shared));
            }
            Done::Swapped(proposed, outcome) => {
                if outcome == SwapOutcome::Applied {
                    self.adopt(proposed);
                }
                self.tell(Input::Swapped(outcome));
            }
            Done::Surveyed(found) => {
                let spares = self.fit(found);
                self.tell(Input::Surveyed(spares));
            }
            Done::Other(input) => self.tell(input),
        }
    }

    /// The backups that could take this primary's writes. The others are named when they change: spares are looked for several
    /// times a second.
    fn fit(&mut self, surveyed: Vec<Result<Surveyed, String>>) -> Vec<MemberRef> {
        let (mut spares, mut unfit) = (Vec::new(), Vec::new());
        for Surveyed { member, misfit, .. } in surveyed.into_iter().flatten() {
            match misfit {
                None => spares.push(member),
                Some(why) => unfit.push(why),
            }
        }
        if unfit != self.unfit {
            unfit.iter().for_each(|why| tracing::warn!(%why, "a backup cannot become a member"));
            self.unfit = unfit;
        }
        spares
    }

    fn adopt(&mut self, config: Configuration) {
        let members: Vec<&str> = config.members.iter().map(|member| member.id.as_str()).collect();
        tracing::info!(epoch = %config.epoch, version = %config.version, ?members, "member set changed");
        self.context.log.settle(config.members.clone());
        self.config = config;
        self.refresh_sources();
    }

    fn desire(&self, desired: &DesiredState) {
        let DesiredState { members, min_in_sync, fenced, .. } = *desired;
        tracing::info!(members, min_in_sync, fenced, "the group's desired state has changed");
        let input = if fenced { Input::Retire } else { Input::Wanted { backups: members, min_in_sync } };
        self.tell(input);
    }

    /// Closed segments are read from members of the set: a newcomer may not have them yet. Mirrors are kept at members alone.
    fn refresh_sources(&self) {
        let in_set = |tasks: &&SeatTasks| self.config.members.contains(tasks.link().member());
        let links: Vec<Arc<MemberLink>> =
            self.seats.values().filter(in_set).map(|tasks| Arc::clone(tasks.link())).collect();
        self.context.log.set_sources(Sources::new(links.iter().map(Arc::as_ref)));
        self.in_set.send_replace(links);
    }

    fn tell(&self, input: Input) {
        self.context.path.send(Command::Input(self.config.epoch, input));
    }
}

/// Returns once the config store shows a later epoch than `known`, with that epoch.
pub(in crate::control) async fn later_epoch(
    configuration: &mut watch::Receiver<Option<Configuration>>,
    known: Epoch,
) -> Epoch {
    let shown =
        |config: &Option<Configuration>| config.as_ref().map(|config| config.epoch).filter(|epoch| *epoch > known);
    match configuration.wait_for(|config| shown(config).is_some()).await.map(|config| shown(&config)) {
        Ok(Some(epoch)) => epoch,
        // The process ends with its watch.
        _ => std::future::pending().await,
    }
}

/// Clients need not wait for it: a successor writes over it.
fn withdraw(context: Arc<Context>, served: Configuration) {
    tokio::spawn(async move {
        if let Some(address) = &context.primary_address {
            address.withdraw(&served).await;
        }
    });
}

async fn prepare(context: Arc<Context>, identity: SegmentIdentity) -> anyhow::Result<Done> {
    let sender = Arc::clone(&context.sender);
    let size = identity.size.bytes();
    let (fresh, shared) = tokio::task::spawn_blocking(move || sender.allocate(size)).await??;
    Ok(Done::Prepared(identity, fresh, shared))
}

async fn fence(context: Arc<Context>, config: Configuration, spare: MemberRef) -> anyhow::Result<Done> {
    let result = MemberLink::new(&context, &config, spare.clone()).fence(config.epoch).await;
    match &result {
        Ok(inventory) => tracing::info!(member = %spare.id, segments = inventory.copies.len(), "spare found"),
        Err(why) => {
            tracing::info!(member = %spare.id, %why, "spare refused");
            context.contacts.refuse(&spare.id, &why.to_string());
        }
    }
    Ok(Done::Other(Input::Fenced(spare, result)))
}
