//! Carries out what the judgement of a [`Standby`] asks for: every output becomes a call, every answer an input.
//!
//! Called by [`roles`](super); decides nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::config::{Configuration, Time};
use tailwind_protocol::rpc::TermRequest;
use tailwind_protocol::socket::Role;
use tailwind_protocol::standby::{Desired, Input, Output, Reason, Report, Round, Rules, Standby};
use tailwind_report::readiness::WaitsFor;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::other_kind;
use crate::control::desired::DesiredState;
use crate::control::{Context, random_below};
use crate::logging::Repeats;
use crate::path::Command;
use crate::rpc::BackupClient;
use crate::thread::result;

/// Standbys that notice at the same moment spread over this time.
const SPREAD_MS: u64 = 8;
/// News of whom it follows that wait to be judged: the next is not taken before there is room.
const NEWS_MAX: usize = 4;

/// A sidecar's turn to try to become primary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Since when it has missed the primary whose place it takes.
    pub missed: Option<Instant>,
    /// Enough members have answered that can take what this sidecar writes.
    pub has_asked: bool,
    /// It has seen no configuration: it is to found the group.
    pub founding: bool,
}

/// Why this sidecar's turn does not come.
#[derive(Clone, Debug)]
pub(super) enum NoTurn {
    /// Nobody shall become primary.
    Fenced,
    /// The group keeps something else than this sidecar's options say, or is to keep it, if it is not founded yet.
    OtherKind(Option<Configuration>),
}

/// Returns when this sidecar should try to become primary, or when it should not.
pub(super) async fn wait_for_turn(context: &Arc<Context>) -> Result<Turn, NoTurn> {
    let started = Instant::now();
    let now = || Time(started.elapsed().as_millis() as u64);
    let rules = Rules {
        heartbeat_silence_ms: context.rules.heartbeat_silence.as_millis() as u64,
        spread_ms: random_below(SPREAD_MS),
        app_wait_ms: context.rules.app_wait.as_millis() as u64,
    };
    let mut clients = context.shared.clients.subscribe();
    let mut app = false;
    let mut desired = desired(context, &context.desired());
    let mut outputs = Vec::new();
    let mut machine = Standby::start(context.me.clone(), rules, desired, &mut outputs);
    let mut shell = Shell::new(context);
    loop {
        for output in outputs.drain(..) {
            if let Output::Listen(_, found) = &output
                && found.kind != context.rules.kind()
            {
                return Err(NoTurn::OtherKind(Some(found.clone())));
            }
            if let Output::Claim(reason) = output {
                if reason == Reason::NoConfiguration && other_kind::is_wanted(context) {
                    return Err(NoTurn::OtherKind(None));
                }
                if reason == Reason::Switchover {
                    tracing::info!("taking over as requested");
                }
                let missed = shell.missed.filter(|_| reason == Reason::PrimaryGone);
                let has_asked = matches!(reason, Reason::PrimaryGone | Reason::Switchover);
                return Ok(Turn { missed, has_asked, founding: reason == Reason::NoConfiguration });
            }
            shell.carry_out(output);
        }
        // A heartbeat that has come while this process was stopped counts before the time that has passed.
        let input = tokio::select! {
            biased;
            () = context.desires(|state| state.fenced) => return Err(NoTurn::Fenced),
            input = shell.next() => input,
            () = context.desires(|state| self::desired(context, state) != desired) => {
                desired = self::desired(context, &context.desired());
                Input::Desired(desired)
            }
            Ok(_) = clients.wait_for(|clients| (*clients > 0) != app) => {
                app = !app;
                Input::App(app)
            }
            () = sleep_until(started, machine.wake_at()) => Input::Tick,
        };
        machine.step(now(), input, &mut outputs);
    }
}

fn desired(context: &Context, state: &DesiredState) -> Desired {
    let switchover = state.switchover.as_ref().filter(|switchover| switchover.to == context.me.id);
    // For a recovery from disk one member is enough.
    let min_in_sync = if state.recover_from_disk.is_some() { 1 } else { state.min_in_sync };
    Desired { min_in_sync, takes_over_from: switchover.map(|switchover| switchover.from) }
}

async fn sleep_until(started: Instant, at: Option<Time>) {
    match at {
        Some(Time(ms)) => tokio::time::sleep_until((started + Duration::from_millis(ms)).into()).await,
        None => std::future::pending().await,
    }
}

/// The calls that are under way; they end with it.
struct Shell<'a> {
    context: &'a Arc<Context>,
    /// Questions: one for each member, or one.
    asked: JoinSet<Input>,
    /// Whom it follows.
    listening: JoinSet<()>,
    news: mpsc::Receiver<Input>,
    /// What has been logged.
    said: Said,
    /// Since when the primary has been silent.
    missed: Option<Instant>,
}

#[derive(Default)]
struct Said {
    config_store: Repeats<String>,
    same_name: Repeats<String>,
    cannot_take_over: Repeats<String>,
    waiting: Repeats<String>,
}

impl Shell<'_> {
    fn new(context: &Arc<Context>) -> Shell<'_> {
        let (asked, listening, news) = (JoinSet::new(), JoinSet::new(), mpsc::channel(NEWS_MAX).1);
        Shell { context, asked, listening, news, said: Said::default(), missed: None }
    }

    /// What happens next. Nothing is lost when it is not waited for to the end.
    async fn next(&mut self) -> Input {
        tokio::select! {
            biased;
            Some(input) = self.news.recv() => input,
            Some(answer) = self.asked.join_next() => result(answer).await,
            else => std::future::pending().await,
        }
    }

    fn carry_out(&mut self, output: Output) {
        let context = self.context;
        let silence = context.rules.heartbeat_silence;
        match output {
            Output::ReadConfig => {
                let store = context.store.clone();
                self.asked.spawn(async move { Input::Read(store.read().await) });
            }
            Output::Listen(round, config) => self.listen(round, &config),
            Output::AskMembers(round, config) => {
                for member in config.members {
                    let context = Arc::clone(context);
                    let client = context.backup(&member.id, Some(&member.control));
                    self.asked.spawn(async move {
                        let answer = client.answers(silence).await;
                        let answer = answer.map_err(|error| format!("{} ({})", member.id, client.at_address(&error)));
                        let answer = answer.and_then(|()| context.misfit(&client).map_or(Ok(()), Err));
                        Input::MemberAnswered(round, member.id, answer)
                    });
                }
            }
            Output::AskPrimary(round, config) => {
                let client = BackupClient::of_primary(&config.primary, &context.access);
                let request = TermRequest::of(context.group.clone(), &config);
                self.asked.spawn(async move {
                    let answer = client.leads(&request, silence).await;
                    Input::PrimaryAnswered(round, answer.map_err(|error| error.to_string()))
                });
            }
            Output::Waiting(why) => {
                if self.said.waiting.is_due(why.clone(), Instant::now()) {
                    tracing::warn!(%why, "waiting");
                }
                context.waits.wait(WaitsFor::Members, why);
            }
            Output::WaitOver => {
                self.missed = None;
                context.waits.over();
            }
            Output::Report(report) => self.report(&report),
            Output::Claim(_) => unreachable!("handled by the caller"),
        }
    }

    fn listen(&mut self, round: Round, config: &Configuration) {
        let context = self.context;
        context.path.send(Command::Wait {
            role: Role::Standby,
            epoch: config.epoch.0,
            primary: config.primary.id.to_string(),
        });
        let (news, receiver) = mpsc::channel(NEWS_MAX);
        (self.news, self.listening) = (receiver, JoinSet::new());
        let (store, stamp, changes) = (context.store.clone(), config.stamp(), news.clone());
        self.listening.spawn(async move {
            // Whoever does not listen any more follows somebody else.
            drop(changes.send(Input::Changed(store.changed(Some(stamp)).await)).await);
        });
        let client = BackupClient::of_primary(&config.primary, &context.access);
        let request = TermRequest::of(context.group.clone(), config);
        let (context, primary) = (Arc::clone(context), config.primary.clone());
        self.listening.spawn(async move {
            let why = match client.heartbeats_of(&request).await {
                // That it leads this term was its first sign of life.
                Ok(mut heartbeats) => loop {
                    context.peers.hear_primary(&primary);
                    if news.send(Input::Heartbeat(round)).await.is_err() {
                        return;
                    }
                    if let Err(why) = heartbeats.next().await {
                        break why;
                    }
                },
                Err(error) => error.to_string(),
            };
            drop(news.send(Input::Disconnected(round, why)).await);
        });
    }

    fn report(&mut self, report: &Report) {
        let (said, now) = (report.to_string(), Instant::now());
        if let Report::PrimaryGone(_) = report {
            self.missed = Some(now);
        }
        let is_due = match report {
            Report::PrimaryGone(_) => true,
            Report::CannotTakeOver(_) => self.said.cannot_take_over.is_due(said.clone(), now),
            Report::ConfigStore(_) => self.said.config_store.is_due(said.clone(), now),
            Report::SameName(_) => self.said.same_name.is_due(said.clone(), now),
        };
        if is_due {
            tracing::warn!("{said}");
        }
    }
}
