//! Executes a promotion: every output of the machine becomes a call, every answer an input.
//!
//! Called by [`roles`](super); decides nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tailwind_protocol::config::{Configuration, MemberRef, Time};
use tailwind_protocol::ids::{BootId, Epoch, LogId, Lsn, MemberId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::promotion::{Input, Output, Promotion, Rules, Task};
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{Failure, Inventory, TermId};
use tokio::task::JoinSet;

use super::member::{MemberLink, Surveyed, survey};
use crate::control::Context;
use crate::control::sources::Sources;
use crate::control::status::times::Steps;
use crate::control::status::waits::{self, Orders};
use crate::logging::Repeats;
use crate::thread::result;

/// How often the machine hears of time passing.
const TICK: Duration = Duration::from_millis(5);
/// Pause between two tries of what failed.
const RETRY: Duration = Duration::from_millis(50);
/// Patience with members whose repair gets no further: an image of 64 MiB, the largest, takes less than a second, and the
/// flush of one a few.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause after a repair that has failed: once the cause is mended, nobody should wait for long.
const REPAIR_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The same trouble is logged at most so often: the first line is the news, the others are for those who look later.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// How a promotion ended.
pub(super) enum Outcome {
    /// This sidecar is primary; every member holds the log.
    Won(Configuration, Reference),
    /// Another sidecar claimed a newer epoch.
    Lost(Epoch),
    /// The group keeps something else than this sidecar's options say.
    OtherKind(Configuration),
    /// The group wants something else than when the promotion began: it is as if this sidecar had died in the middle.
    Disturbed,
}

/// Tries until it is won or lost. `founding`: there was no configuration yet.
pub(super) async fn promote(context: &Arc<Context>, founding: bool) -> Outcome {
    let started = Instant::now();
    let now = || Time(started.elapsed().as_millis() as u64);
    let desired = context.desired();
    let rules = Rules {
        kind: context.rules.kind(),
        backups: desired.members,
        min_in_sync: desired.min_in_sync,
        fence_wait_ms: context.rules.fence_wait.as_millis() as u64,
        retry_ms: RETRY.as_millis() as u64,
        repair_timeout_ms: REPAIR_TIMEOUT.as_millis() as u64,
        accept_loss: desired.accept_loss,
        recover_from_disk: desired.recover_from_disk,
    };
    if let Some(accepted) = &rules.accept_loss {
        tracing::warn!(%accepted, "ordered: the log may end early, even if later records were acknowledged");
    }
    if let Some(order) = &rules.recover_from_disk {
        tracing::warn!(%order, "ordered: recover the log from disk");
    }
    // A few for each member; what is under way when the promotion ends ends with it.
    let mut tasks: JoinSet<Answer> = JoinSet::new();
    let mut outputs = Vec::new();
    let mut orders = Orders::new(rules.accept_loss, rules.recover_from_disk);
    // What came back from the backups that no group can be founded with.
    let mut unfounded = Vec::new();
    let mut machine = Promotion::start(context.me.clone(), rules, LogId(random()), random() as u64, &mut outputs);
    if founding {
        machine.expect_to_found();
    }
    let mut ticks = tokio::time::interval(TICK);
    let mut said = Repeats::every(SAY_AGAIN);
    let links = Links::default();
    let fences = Arc::new(FenceLog::default());
    let repairs = Arc::new(RepairLog::default());
    let mut steps = Steps::begin(started);
    loop {
        for output in outputs.drain(..) {
            steps.note(&output, Instant::now());
            match output {
                Output::Won(config, reference) => {
                    let took_ms = started.elapsed().as_millis() as u64;
                    let (epoch, last) = (config.epoch, reference.last());
                    tracing::info!(%epoch, %last, took_ms, "recovered the log");
                    steps.end(Instant::now(), &context.times);
                    return Outcome::Won(config, reference);
                }
                Output::Lost(epoch) => return Outcome::Lost(epoch),
                Output::OtherKind(found) => return Outcome::OtherKind(found),
                Output::Waiting(waiting) => {
                    let why = orders.explain(&waiting, &desired, &unfounded);
                    context.waits.wait(waits::word(&waiting), why.clone());
                    if said.is_due(why.clone(), Instant::now()) {
                        tracing::warn!(%why, "waiting");
                    }
                }
                other => {
                    // Asking again is part of the wait; anything else comes after it.
                    if !matches!(other, Output::ReadConfig | Output::Survey(_) | Output::Fence(..)) {
                        context.waits.over();
                    }
                    execute(context, &links, &fences, &repairs, other, &mut tasks);
                }
            }
        }
        let input = tokio::select! {
            Some(done) = tasks.join_next() => match result(done).await {
                Answer::Input(input) => input,
                Answer::Surveyed(found) => {
                    let founders: Vec<_> = found.into_iter().map(founder).collect();
                    unfounded = founders.iter().filter_map(|founder| founder.as_ref().err().cloned()).collect();
                    Input::Surveyed(founders.into_iter().flatten().collect())
                }
            },
            _ = ticks.tick() => Input::Tick,
            () = context.desires(|now| !now.wants_the_same(&desired)) => return Outcome::Disturbed,
        };
        if let Input::Read(Ok(Some(found))) = &input {
            orders.compare(found);
        }
        machine.step(now(), input, &mut outputs);
        context.tenure.cut_off(machine.is_cut_off(now()));
    }
}

/// What comes of a task.
enum Answer {
    Input(Input),
    Surveyed(Vec<Result<Surveyed, String>>),
}

/// What a survey found of one backup, for the machine; or why no group can be founded with it. One that holds a log is for the
/// machine to judge, whether or not it could take this sidecar's segments.
fn founder(surveyed: Result<Surveyed, String>) -> Result<(MemberRef, Inventory), String> {
    let Surveyed { member, inventory, misfit } = surveyed?;
    match misfit.filter(|_| inventory.log.is_none()) {
        Some(why) => Err(why),
        None => Ok((member, inventory)),
    }
}

/// One link for each member and epoch, shared by the calls of a promotion.
#[derive(Default)]
struct Links(Mutex<Vec<Arc<MemberLink>>>);

impl Links {
    fn get(&self, context: &Arc<Context>, config: &Configuration, member: &MemberRef) -> Arc<MemberLink> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.epoch() == config.epoch);
        if let Some(link) = links.iter().find(|link| link.member() == member) {
            return Arc::clone(link);
        }
        let link = Arc::new(MemberLink::new(context, config, member.clone()));
        links.push(Arc::clone(&link));
        link
    }
}

fn execute(
    context: &Arc<Context>,
    links: &Links,
    fences: &Arc<FenceLog>,
    repairs: &Arc<RepairLog>,
    output: Output,
    tasks: &mut JoinSet<Answer>,
) {
    let (context, repairs) = (Arc::clone(context), Arc::clone(repairs));
    match output {
        Output::ReadConfig => drop(tasks.spawn(async move { Answer::Input(Input::Read(context.store.read().await)) })),
        Output::Survey(after) => drop(tasks.spawn(async move {
            let found = survey(&context, after).await;
            // The next survey, if one is needed, comes at the pace of the answers.
            tokio::time::sleep(RETRY).await;
            Answer::Surveyed(found)
        })),
        Output::Swap(swap) => {
            // From now on the store may name it, whether or not that is ever answered.
            context.tenure.begin(TermId::of(&swap.proposed));
            tasks.spawn(async move { Answer::Input(Input::Swapped(context.store.swap(swap).await)) });
        }
        Output::Fence(config, member) => {
            let link = links.get(&context, &config, &member);
            let fences = Arc::clone(fences);
            tasks.spawn(async move {
                let result = link.fence(config.epoch.before()).await;
                fences.log(config.epoch, &member, &result);
                Answer::Input(Input::Fenced(config.epoch, member.id, result))
            });
        }
        Output::Trim(config, member, below) => {
            let link = links.get(&context, &config, &member);
            tasks.spawn(async move {
                let result = link.trim(below).await;
                repairs.answer(config.epoch, Task::Trim(member.id), result).await
            });
        }
        Output::Drop(config, member, copies) => {
            let link = links.get(&context, &config, &member);
            tasks.spawn(async move {
                let result = link.drop_copies(copies).await;
                repairs.answer(config.epoch, Task::Drop(member.id), result).await
            });
        }
        Output::Close(config, member, identity, closure) => {
            let link = links.get(&context, &config, &member);
            tasks.spawn(async move {
                let result = link.close(identity, closure).await;
                repairs.answer(config.epoch, Task::Close(member.id, identity.segment), result).await
            });
        }
        Output::Install(config, member, identity, closure, holders) => {
            let link = links.get(&context, &config, &member);
            let holders = config.members.iter().filter(|member| holders.contains(&member.id));
            let holders: Vec<_> = holders.map(|holder| links.get(&context, &config, holder)).collect();
            let sources = Sources::new(holders.iter().map(Arc::as_ref));
            tasks.spawn(async move {
                let result = install(&context, &link, &sources, identity, closure).await;
                repairs.answer(config.epoch, Task::Install(member.id, identity.segment), result).await
            });
        }
        Output::Waiting(_) | Output::Won(..) | Output::Lost(_) | Output::OtherKind(_) => {
            unreachable!("handled by the caller")
        }
    }
}

async fn install(
    context: &Context,
    link: &MemberLink,
    sources: &Sources,
    identity: SegmentIdentity,
    closure: Closure,
) -> Result<(), Failure> {
    let image = sources.fetch(context, identity, closure).await.map_err(Failure::Unreachable)?;
    link.install(identity, closure, &image).await
}

/// Logs repairs that fail, and slows them down. A promotion starts again after one, in a new epoch: over a member that can never
/// be repaired it would do so many times a second.
#[derive(Default)]
struct RepairLog {
    failures: AtomicU32,
    said: Mutex<Repeats<String>>,
}

impl RepairLog {
    async fn answer(&self, epoch: Epoch, task: Task, result: Result<(), Failure>) -> Answer {
        if let Err(failure) = &result {
            let member = task.member();
            // What a later epoch's claim does to this one is no news.
            if let Failure::Unreachable(why) = failure
                && self.is_news(format!("{member} {why}"))
            {
                tracing::warn!(%member, %why, "failed to repair a member: will retry");
            }
            tokio::time::sleep(self.pause()).await;
        }
        Answer::Input(Input::Repaired(epoch, task, result))
    }

    fn is_news(&self, failure: String) -> bool {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).is_due(failure, Instant::now())
    }

    /// None the first time: a member that has just died keeps nobody waiting.
    fn pause(&self) -> Duration {
        match self.failures.fetch_add(1, Ordering::Relaxed) {
            0 => Duration::ZERO,
            failures => (RETRY * 2_u32.pow(failures.min(5))).min(REPAIR_PAUSE_MAX),
        }
    }
}

/// Logs what members answer to a fence. While a promotion waits, it fences the same members many times a second, perhaps in
/// one epoch after the other: an answer is logged when it differs from that member's last one in more than that.
#[derive(Default)]
struct FenceLog(Mutex<BTreeMap<MemberId, FenceNews>>);

/// What is worth a line when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FenceNews {
    epoch: Epoch,
    boot: BootId,
    segments: usize,
    last: Lsn,
    witness: bool,
    synced: Option<Lsn>,
}

impl FenceNews {
    fn of(epoch: Epoch, inventory: &Inventory) -> FenceNews {
        FenceNews {
            epoch,
            boot: inventory.boot,
            segments: inventory.copies.len(),
            last: inventory.copies.iter().map(|copy| copy.closure.last).max().unwrap_or_default(),
            witness: inventory.witness,
            synced: inventory.synced.map(|synced| synced.last),
        }
    }
}

impl FenceLog {
    fn log(&self, epoch: Epoch, member: &MemberRef, result: &Result<Inventory, Failure>) {
        match result {
            Ok(inventory) => {
                let news = FenceNews::of(epoch, inventory);
                if self.is_news(&member.id, &news) {
                    let (member, new_memory) = (&member.id, member.boot != news.boot);
                    let FenceNews { segments, last, .. } = news;
                    tracing::info!(%member, %epoch, segments, %last, new_memory, "fenced");
                }
            }
            Err(failure) => tracing::debug!(member = %member.id, %epoch, ?failure, "failed to fence"),
        }
    }

    fn is_news(&self, member: &MemberId, news: &FenceNews) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = logged.insert(member.clone(), news.clone());
        last.is_none_or(|last| FenceNews { epoch: news.epoch, ..last } != *news)
    }
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random numbers");
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine starts again at each of them, with a new epoch.
    #[test]
    fn repairs_that_fail_again_are_slow_and_silent() {
        let repairs = RepairLog::default();
        let pauses: Vec<Duration> = (0..8).map(|_| repairs.pause()).collect();
        assert_eq!(pauses[..3], [Duration::ZERO, 2 * RETRY, 4 * RETRY]);
        assert_eq!(pauses[5..], [REPAIR_PAUSE_MAX; 3]);
        let news = (0..100).filter(|nth| repairs.is_news(format!("b{}: full", nth % 2))).count();
        assert_eq!(news, 2);
    }

    #[test]
    fn a_repeated_fence_is_logged_when_its_answer_changes() {
        let (fences, b0, b1) = (FenceLog::default(), "b0".parse().unwrap(), "b1".parse().unwrap());
        let lost =
            FenceNews { epoch: Epoch(2), boot: BootId(7), segments: 0, last: Lsn(0), witness: false, synced: None };
        assert!(fences.is_news(&b0, &lost));
        for _ in 0..100 {
            assert!(!fences.is_news(&b0, &lost), "it is asked 20 times a second");
        }
        assert!(fences.is_news(&b1, &lost), "another member");
        for changed in
            [FenceNews { boot: BootId(8), ..lost.clone() }, FenceNews { segments: 3, last: Lsn(9), ..lost.clone() }]
        {
            assert!(fences.is_news(&b0, &changed), "{changed:?}");
            assert!(!fences.is_news(&b0, &changed), "{changed:?}");
        }
        for epoch in 4..100 {
            assert!(!fences.is_news(&b1, &FenceNews { epoch: Epoch(epoch), ..lost.clone() }), "it tries again");
        }
    }
}
