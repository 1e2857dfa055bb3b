//! Carries out what the primary machine wants done: buffers, closes, images, swaps, spares.
//!
//! Called by [`control::run`](super::run) for as long as this sidecar is primary. Every seat has a task of its own that
//! takes its orders one by one; images and flushes run beside it, since an append must never wait for them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tailwind_protocol::config::{Configuration, MemberRef, SwapOutcome, Time};
use tailwind_protocol::ids::{MemberId, Position, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::{Input, Output, Primary, Rules, Seat, StepDown};
use tailwind_protocol::promotion::Failure;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::Purpose;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::desired::DesiredState;
use super::member::{MemberLink, survey};
use super::{Context, PathHandle};
use crate::path::Command;

/// Pause before a swap of unknown outcome is sent again.
const SWAP_AGAIN: Duration = Duration::from_millis(100);
/// Pause between two searches for a spare.
const RECRUIT_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two questions to a member what is corrupt there.
const DAMAGE_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time for one copy to be mended. The member may have no buffer to lend for it.
const MEND_PATIENCE: Duration = Duration::from_secs(30);
/// Copies mended at once, beside the images for newcomers, which must not wait for them.
const MENDS_MAX: usize = 1;
/// Images copied at once: each holds a segment in memory twice, and shares the wire with appends.
const INSTALLS_MAX: usize = 2;

/// A primary's term.
struct Term {
    context: Arc<Context>,
    config: Configuration,
    seats: HashMap<Seat, SeatTask>,
    /// Members lost in this term, the latest last: as spares they come after all others.
    lost: Vec<MemberId>,
    installs: Arc<Semaphore>,
    mends: Arc<Semaphore>,
    /// Swaps and searches; ended with the term.
    tasks: JoinSet<()>,
    /// Configurations that were swapped in.
    swapped: mpsc::UnboundedSender<Configuration>,
}

/// One member's task, ended when dropped.
struct SeatTask {
    link: Arc<MemberLink>,
    orders: mpsc::UnboundedSender<Output>,
    _tasks: JoinSet<()>,
}

/// Is primary until it steps down. An error means that this process cannot go on.
pub async fn lead(
    context: &Arc<Context>,
    config: Configuration,
    reference: &Reference,
    outputs: &mut mpsc::UnboundedReceiver<Output>,
) -> anyhow::Result<StepDown> {
    let mut desired = context.desired();
    let rules = Rules {
        backups: desired.members,
        min_in_sync: desired.min_in_sync,
        durability: context.rules.durability,
        segment_size: context.rules.segment_size,
        open_patience_ms: context.rules.open_patience.as_millis() as u64,
        recruit_interval_ms: RECRUIT_INTERVAL.as_millis() as u64,
    };
    let mut first = Vec::new();
    let primary = Primary::new(config.clone(), rules, reference, getrandom::u64()?, Time(0), &mut first);
    let members: Vec<&str> = config.members.iter().map(|member| member.id.as_str()).collect();
    tracing::info!(group = %context.group, epoch = %config.epoch, version = %config.version, ?members, "primary");
    context.log.begin(primary.closed().clone());
    // Every member holds the log: who reads at once need not wait until they have taken their seats.
    let holders = config.members.iter().map(|member| Arc::new(MemberLink::new(context, &config, member.clone())));
    context.log.set_sources(holders.collect());
    context.path.send(Command::Lead(Box::new(primary), reference.last().0));
    let (swapped, mut configs) = mpsc::unbounded_channel();
    let mut term = Term {
        context: Arc::clone(context),
        config,
        seats: HashMap::new(),
        lost: Vec::new(),
        installs: Arc::new(Semaphore::new(INSTALLS_MAX)),
        mends: Arc::new(Semaphore::new(MENDS_MAX)),
        tasks: JoinSet::new(),
        swapped,
    };
    for output in first {
        term.carry_out(output).await?;
    }
    let why = loop {
        let output = tokio::select! {
            output = outputs.recv() => output.ok_or_else(|| anyhow::anyhow!("the append path has ended"))?,
            Some(config) = configs.recv() => {
                term.adopt(config);
                continue;
            }
            Some(_) = term.tasks.join_next() => continue,
            () = context.desires(|now| !now.wants_the_same(&desired)) => {
                desired = context.desired();
                term.wish(&desired);
                continue;
            }
            changed = context.store.changed(Some(term.config.stamp())) => {
                if changed.epoch > term.config.epoch {
                    context.path.send(Command::Input(term.config.epoch, Input::Superseded(changed.epoch)));
                }
                term.rest_after_news(&changed).await;
                continue;
            }
        };
        match output {
            Output::StepDown(why) => break why,
            other => term.carry_out(other).await?,
        }
    };
    context.log.end();
    Ok(why)
}

impl Term {
    async fn carry_out(&mut self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Connect(seat, member) => self.connect(seat, member),
            Output::Prepare(identity) => {
                let sender = Arc::clone(&self.context.sender);
                let size = identity.size.bytes();
                let (fresh, shared) = tokio::task::spawn_blocking(move || sender.allocate(size)).await??;
                self.context.log.opened(identity, shared.clone());
                self.context.path.send(Command::Prepared(identity, fresh, shared));
            }
            Output::Forget(segment, closure) => {
                tracing::debug!(%segment, last = %closure.last, "closed everywhere");
                self.context.log.closed(segment, closure);
            }
            Output::Disconnect(seat) => {
                if let Some(task) = self.seats.remove(&seat) {
                    let id = &task.link.member().id;
                    tracing::warn!(member = %id, "member lost");
                    self.lost.retain(|known| known != id);
                    self.lost.push(id.clone());
                }
                self.refresh_sources();
                self.warn_if_short();
            }
            Output::Swap(swap) => {
                let (context, swapped) = (Arc::clone(&self.context), self.swapped.clone());
                let epoch = self.config.epoch;
                self.tasks.spawn(async move {
                    let proposed = swap.proposed.clone();
                    let outcome = context.store.swap(swap).await.settle(&proposed);
                    match &outcome {
                        SwapOutcome::Unknown => tokio::time::sleep(SWAP_AGAIN).await,
                        SwapOutcome::Applied => drop(swapped.send(proposed)),
                        SwapOutcome::Conflict(_) => {}
                    }
                    context.path.send(Command::Input(epoch, Input::Swapped(outcome)));
                });
            }
            Output::Recruit => {
                let (context, config, lost) = (Arc::clone(&self.context), self.config.clone(), self.lost.clone());
                self.tasks.spawn(async move {
                    for input in recruit(&context, &config, &lost).await {
                        context.path.send(Command::Input(config.epoch, input));
                    }
                });
            }
            Output::Trim(seat, below) => {
                self.context.log.trim(below);
                self.order(seat, Output::Trim(seat, below));
            }
            Output::Open(seat, _)
            | Output::Close(seat, ..)
            | Output::Install(seat, ..)
            | Output::Mend(seat, ..)
            | Output::Drop(seat, _)
            | Output::Flush(seat, ..) => self.order(seat, output),
            Output::StepDown(_) => unreachable!("handled by the caller"),
        }
        Ok(())
    }

    /// Says why acks stop, and for how long.
    fn warn_if_short(&self) {
        let in_set = |member: &&MemberRef| self.seats.values().any(|task| task.link.member() == *member);
        let left = self.config.members.iter().filter(in_set).count();
        let needed = usize::from(self.context.desired().min_in_sync).min(self.config.members.len());
        if (1..needed).contains(&left) {
            tracing::warn!(
                group = %self.context.group, left, needed,
                "too few members are left: appends wait until members return or are replaced"
            );
        }
    }

    fn order(&self, seat: Seat, output: Output) {
        if let Some(task) = self.seats.get(&seat) {
            // Its task ends only with the seat.
            drop(task.orders.send(output));
        }
    }

    fn connect(&mut self, seat: Seat, member: MemberRef) {
        let link = Arc::new(MemberLink::new(&self.context, &self.config, member));
        let (orders, inbox) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let worker = Worker {
            seat,
            link: Arc::clone(&link),
            context: Arc::clone(&self.context),
            installs: Arc::clone(&self.installs),
            mends: Arc::clone(&self.mends),
            unmended: Arc::default(),
        };
        tasks.spawn(worker.clone().watch());
        tasks.spawn(worker.clone().ask_for_damage());
        tasks.spawn(worker.work(inbox));
        self.seats.insert(seat, SeatTask { link, orders, _tasks: tasks });
        self.refresh_sources();
    }

    fn adopt(&mut self, config: Configuration) {
        let members: Vec<&str> = config.members.iter().map(|member| member.id.as_str()).collect();
        tracing::info!(group = %self.context.group, epoch = %config.epoch, version = %config.version, ?members, "member set changed");
        self.config = config;
        self.refresh_sources();
    }

    fn wish(&self, desired: &DesiredState) {
        let DesiredState { members, min_in_sync, fenced, .. } = *desired;
        tracing::info!(group = %self.context.group, members, min_in_sync, fenced, "the group's desired state has changed");
        let input = if fenced { Input::Retire } else { Input::Wanted { backups: members, min_in_sync } };
        self.context.path.send(Command::Input(self.config.epoch, input));
    }

    /// Closed segments are read from members of the set first: a newcomer may not have them yet.
    fn refresh_sources(&self) {
        let in_set = |task: &&SeatTask| self.config.members.contains(task.link.member());
        self.context.log.set_sources(self.seats.values().filter(in_set).map(|task| Arc::clone(&task.link)).collect());
    }

    /// The watch reports a change that this term may have made itself: let its own report come first.
    async fn rest_after_news(&self, changed: &Configuration) {
        if changed.epoch == self.config.epoch {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What one seat's tasks share.
#[derive(Clone)]
struct Worker {
    seat: Seat,
    link: Arc<MemberLink>,
    context: Arc<Context>,
    installs: Arc<Semaphore>,
    mends: Arc<Semaphore>,
    /// Copies here that could not be mended: said once, and tried again.
    unmended: Arc<Mutex<BTreeSet<SegmentId>>>,
}

impl Worker {
    async fn watch(self) {
        let factor = crate::fabric::heartbeat_factor(self.context.sender.kind());
        let why = self.link.watch(self.context.rules.heartbeat_silence * factor).await;
        tracing::warn!(member = %self.link.member().id, %why, "no heartbeat");
        self.tell(Input::Lost(self.seat));
    }

    /// The backup finds rot by itself, or when somebody reads. A question that fails says nothing of the member: its
    /// heartbeats do.
    async fn ask_for_damage(self) {
        let member = &self.link.member().id;
        let mut known = 0;
        loop {
            tokio::time::sleep(DAMAGE_INTERVAL).await;
            let corrupt = match self.link.damage().await {
                Ok(corrupt) => corrupt,
                Err(why) => {
                    tracing::debug!(%member, %why, "failed to ask a member for its corrupt copies");
                    continue;
                }
            };
            if let Some(first) = corrupt.first().filter(|_| corrupt.len() > known) {
                let segment = first.identity.segment;
                tracing::warn!(%member, corrupt = corrupt.len(), first = %segment, "a member has corrupt closed copies");
            }
            if known > 0 || !corrupt.is_empty() {
                known = corrupt.len();
                self.tell(Input::Damaged(self.seat, corrupt));
            }
        }
    }

    async fn work(self, mut orders: mpsc::UnboundedReceiver<Output>) {
        match self.link.connect().await {
            Ok(channel) => self.path().send(Command::Connected(self.link.epoch(), self.seat, channel)),
            Err(failure) => return self.fail("connect", failure),
        }
        let mut beside = JoinSet::new();
        let (openings, to_open) = mpsc::unbounded_channel();
        beside.spawn(self.clone().open_in_order(to_open));
        while let Some(order) = orders.recv().await {
            while beside.try_join_next().is_some() {}
            match order {
                Output::Install(_, identity, closure) => {
                    let worker = self.clone();
                    beside.spawn(async move {
                        let result = worker.install(&worker.installs, identity, closure).await;
                        worker.report("install", result, Input::Installed(worker.seat, identity.segment));
                    });
                }
                Output::Mend(_, identity, closure) => {
                    let worker = self.clone();
                    beside.spawn(async move { worker.mend(identity, closure).await });
                }
                Output::Flush(_, identity, end) => {
                    let worker = self.clone();
                    beside.spawn(async move {
                        match worker.link.flush(identity, end).await {
                            Ok(end) => worker.tell(Input::Flushed(worker.seat, Position::new(identity.segment, end))),
                            Err(failure) => worker.fail("flush", failure),
                        }
                    });
                }
                // The opener ends only with the seat, or after it has reported the seat lost.
                Output::Open(_, identity) => drop(openings.send(identity)),
                Output::Close(_, identity, closure) => {
                    let result = self.link.close(identity, closure).await;
                    self.report("close", result, Input::Closed(self.seat, identity.segment));
                }
                Output::Drop(_, copies) => {
                    let result = self.link.drop_copies(copies).await;
                    self.report("drop", result, Input::Tidied(self.seat));
                }
                // A member that does not know of a trim takes the missing beginning for a loss when it is the last one left.
                Output::Trim(_, below) => {
                    let result = self.link.trim(below).await;
                    self.report("trim", result, Input::Tidied(self.seat));
                }
                _ => unreachable!("not an order for a seat"),
            }
        }
    }

    /// One opening after the other: the machine takes a later one as proof of all before. Beside the other orders,
    /// because "retry later" may take long, and the closes that free the buffers it waits for must not wait behind it.
    async fn open_in_order(self, mut wanted: mpsc::UnboundedReceiver<SegmentIdentity>) {
        while let Some(identity) = wanted.recv().await {
            match self.link.open(identity, Purpose::Append).await {
                Ok(remote) => {
                    self.path().send(Command::Opened(self.link.epoch(), self.seat, identity.segment, remote));
                }
                Err(failure) => return self.fail("open", failure),
            }
        }
    }

    /// Whatever comes of it, the member stays.
    async fn mend(&self, identity: SegmentIdentity, closure: Closure) {
        let (member, segment) = (&self.link.member().id, identity.segment);
        let late = |_| Err(Failure::Unreachable(format!("not done within {MEND_PATIENCE:?}")));
        let result = tokio::time::timeout(MEND_PATIENCE, self.install(&self.mends, identity, closure)).await;
        let mut unmended = self.unmended.lock().unwrap_or_else(PoisonError::into_inner);
        match result.unwrap_or_else(late) {
            Ok(()) => {
                unmended.remove(&segment);
                tracing::info!(%member, %segment, "closed copy reinstalled");
                self.tell(Input::Mended(self.seat, segment));
            }
            Err(Failure::Superseded(epoch)) => self.tell(Input::Superseded(epoch)),
            Err(why @ (Failure::ClaimedBefore(_) | Failure::Unreachable(_))) => {
                if unmended.insert(segment) {
                    tracing::warn!(%member, %segment, %why, "failed to repair a closed copy: will retry");
                }
                self.tell(Input::Unmended(self.seat, segment));
            }
        }
    }

    async fn install(&self, turns: &Semaphore, identity: SegmentIdentity, closure: Closure) -> Result<(), Failure> {
        let _turn = turns.acquire().await.map_err(|error| Failure::Unreachable(error.to_string()))?;
        let sources =
            self.context.log.sources().ok_or_else(|| Failure::Unreachable("no member to copy from".into()))?;
        let image = sources.fetch(&self.context, identity, closure).await.map_err(Failure::Unreachable)?;
        self.link.install(identity, closure, &image).await
    }

    fn report(&self, action: &'static str, result: Result<(), Failure>, done: Input) {
        match result {
            Ok(()) => self.tell(done),
            Err(failure) => self.fail(action, failure),
        }
    }

    fn fail(&self, action: &'static str, failure: Failure) {
        match failure {
            Failure::Superseded(epoch) => self.tell(Input::Superseded(epoch)),
            // Only a promotion can see to that: of a member that nobody has fenced, nothing is known.
            failure @ Failure::ClaimedBefore(_) => {
                tracing::error!(member = %self.link.member().id, action, %failure, "member refused");
                self.tell(Input::Lost(self.seat));
            }
            Failure::Unreachable(why) => {
                tracing::warn!(member = %self.link.member().id, action, %why, "member failed");
                self.tell(Input::Lost(self.seat));
            }
        }
    }

    fn tell(&self, input: Input) {
        self.path().send(Command::Input(self.link.epoch(), input));
    }

    fn path(&self) -> &PathHandle {
        &self.context.path
    }
}

/// Finds a backup outside the set that answers, and fences it under our epoch. One with a full disk answers well: if it
/// were always asked first, nobody else would ever take its place. A member's name with other memory behind it is outside
/// the set. One that was lost in this term and has its memory still is only reported: it may be needed as it is.
async fn recruit(context: &Arc<Context>, config: &Configuration, lost: &[MemberId]) -> Vec<Input> {
    let found = survey(context).await;
    let is_member = |found: &MemberRef| config.member(&found.id).is_some_and(|known| known.is_same(found));
    let (members, mut found): (Vec<_>, Vec<_>) =
        found.into_iter().map(|(member, _)| member).partition(|member| is_member(member));
    let returned = members.into_iter().filter(|member| lost.contains(&member.id));
    let mut inputs: Vec<Input> = returned.map(Input::Returned).collect();
    found.sort_by_key(|member| lost.iter().position(|id| *id == member.id));
    inputs.push(spare(context, config, found).await);
    inputs
}

async fn spare(context: &Arc<Context>, config: &Configuration, found: Vec<MemberRef>) -> Input {
    for member in found {
        match MemberLink::new(context, config, member.clone()).fence(config.epoch).await {
            Ok(inventory) => {
                tracing::info!(member = %member.id, segments = inventory.copies.len(), "spare found");
                let boot = inventory.boot;
                return Input::Recruited(MemberRef { boot, ..member }, inventory);
            }
            Err(Failure::Superseded(epoch)) => return Input::Superseded(epoch),
            Err(why @ (Failure::ClaimedBefore(_) | Failure::Unreachable(_))) => {
                tracing::info!(member = %member.id, %why, "spare refused");
            }
        }
    }
    Input::NoSpare
}
