//! The judgement of a standby: is the primary gone, and may this sidecar claim the next epoch?
//!
//! Driven by the sidecar (and by the simulator). A claim deposes the primary, so a standby claims only when the primary is
//! silent, enough members answer to win, and its own network has not failed. Safety does not depend on this judgement: a
//! wrong one costs a failover but no record. See "Promotion" in `docs/protocol.md`.

use crate::config::{Configuration, PrimaryRef, Stamp, Time};
use crate::ids::{Epoch, MemberId};

/// Pause before a silent primary is judged again.
const LOOK_AGAIN_MS: u64 = 50;
/// Pause after a switchover that found too few members.
const SWITCHOVER_AGAIN_MS: u64 = 1000;
/// Pause before the config store is read again after it failed.
const STORE_AGAIN_MS: u64 = 200;
/// After so many silence periods of heartbeats the primary counts as well, and a wait to take its place is over.
const SETTLED_PERIODS: u64 = 3;
/// A primary that has fallen silent is asked for this part of a silence period: after a short cut its heartbeats may still wait to
/// be sent again, while a new connection gets through at once.
const LAST_CHANCE: u64 = 8;

/// Timing of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// A primary that is silent for this long counts as gone.
    pub heartbeat_silence_ms: u64,
    /// This standby's random delay of a few milliseconds. It spreads standbys that notice at the same moment, so that one of
    /// them usually wins at once.
    pub spread_ms: u64,
    /// While no app is connected to it, this standby waits for so much longer before it claims, so that a standby whose app can
    /// continue comes first. Once for each configuration: after that there seems to be no other.
    pub app_wait_ms: u64,
}

/// What the group wants of its standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Desired {
    /// Members that must answer before this sidecar claims an epoch: as many as a promotion needs.
    pub min_in_sync: u8,
    /// This sidecar should take over from the primary of this epoch, even if that one is well.
    pub takes_over_from: Option<Epoch>,
}

/// Numbers a standby's requests, so that late answers are recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

/// What happens to a standby. Errors are for people.
#[derive(Clone, Debug)]
pub enum Input {
    /// Answer to [`Output::ReadConfig`].
    Read(Result<Option<Configuration>, String>),
    /// The config store's watch reports this configuration.
    Changed(Configuration),
    /// A heartbeat of the primary, on the connection that [`Output::Listen`] opened.
    Heartbeat(Round),
    /// The connection of this round ended or could not be opened.
    Disconnected(Round, String),
    /// Answer to [`Output::AskMembers`], once for each member: it answers at all, or not within a silence period.
    MemberAnswered(Round, MemberId, Result<(), String>),
    /// Answer to [`Output::AskPrimary`]: it leads that term, or not, or nobody has answered within a silence period.
    PrimaryAnswered(Round, Result<(), String>),
    /// The desired state has changed.
    Desired(Desired),
    /// Whether an app is connected to this sidecar. At the start there is none.
    App(bool),
    /// Time passes. Expected at [`Standby::wake_at`]; more often does no harm.
    Tick,
}

/// What a standby wants done. Answers may come in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read the config store.
    ReadConfig,
    /// This sidecar stands by for this configuration's primary: listen to the heartbeats of its term only.
    Listen(Round, Configuration),
    /// Ask each member of this configuration for any answer.
    AskMembers(Round, Configuration),
    /// Ask the primary of this configuration whether it leads its term.
    AskPrimary(Round, Configuration),
    /// Log this.
    Report(Report),
    /// The primary is gone, and too few members answer to take its place; why, for people.
    Waiting(String),
    /// The wait is over: the primary is well, or has changed.
    WaitOver,
    /// This sidecar becomes a candidate. Always the last output.
    Claim(Reason),
}

/// Why a sidecar becomes a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no group yet.
    NoConfiguration,
    /// The config store names this sidecar: its previous process was primary.
    AlreadyNamed,
    /// The primary does not answer.
    PrimaryGone,
    /// A switchover to this sidecar was requested.
    Switchover,
}

/// What a standby notices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// The config store cannot be read.
    #[error("read the configuration: {0}")]
    ConfigStore(String),
    /// The config store names a primary of this sidecar's name, at another address.
    #[error(
        "the primary has this sidecar's name, {}, at {}: if it is another sidecar, give each a name of its own", .0.id, .0.control
    )]
    SameName(PrimaryRef),
    /// The primary does not answer. Reported once for each configuration.
    #[error("primary is gone: {0}")]
    PrimaryGone(String),
    /// Too few members answer for a switchover.
    #[error("cannot take over as requested: {0}")]
    CannotTakeOver(String),
}

/// What made a standby ask the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cause {
    /// The primary is silent. `heard`: it was heard before, on that connection. `closed`: the connection has ended.
    Silence { heard: bool, closed: bool },
    /// A switchover.
    Switchover,
}

/// What is left to compare with the config store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    /// The primary is gone, and enough members answer.
    Gone,
    /// The primary answers after all.
    Well,
    /// Too few members answer; why, for people.
    Alone(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The config store is being read; if that failed, it is read again at `again_at`.
    Reading {
        verdict: Option<(Configuration, Verdict)>,
        again_at: Option<Time>,
    },
    Listening(Listening),
    /// The primary is silent: this standby's part of the spread. While no app is connected it ends `without_app` later.
    Spreading {
        known: Configuration,
        cause: Cause,
        until: Time,
        without_app: Time,
    },
    /// There is no group yet: an app is waited for until then.
    AwaitingApp {
        until: Time,
    },
    AskingMembers(Asking),
    /// Checking whether the primary is well after all: asked again at `again_at`, and considered gone at `until`.
    AskingPrimary {
        known: Configuration,
        again_at: Option<Time>,
        until: Time,
    },
    /// Continues with that configuration then, or with what the config store says.
    Pausing {
        known: Option<Configuration>,
        until: Time,
    },
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Listening {
    known: Configuration,
    since: Time,
    heard_at: Option<Time>,
    /// It has been heard for long enough.
    settled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asking {
    known: Configuration,
    cause: Cause,
    since: Time,
    waiting: Vec<MemberId>,
    answered: usize,
    missing: Vec<String>,
}

/// The state of a standby.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standby {
    me: PrimaryRef,
    rules: Rules,
    desired: Desired,
    round: Round,
    /// Too few members answered the last time: this side may have been cut off, and the primary is well.
    alone: bool,
    /// The configuration whose primary has been reported gone.
    reported: Option<Stamp>,
    /// An app is connected.
    app: bool,
    /// The configuration, or that there is none, at which it has let standbys with an app go first.
    deferred: Option<Option<Stamp>>,
    state: State,
}

impl Standby {
    /// A sidecar begins to stand by.
    pub fn start(me: PrimaryRef, rules: Rules, desired: Desired, out: &mut Vec<Output>) -> Standby {
        out.push(Output::ReadConfig);
        let state = State::Reading { verdict: None, again_at: None };
        Standby { me, rules, desired, round: Round(0), alone: false, reported: None, app: false, deferred: None, state }
    }

    /// Takes one input; appends to `out` what to do. Late answers are ignored.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Read(result) => self.on_read(now, result, out),
            Input::Changed(found) => self.on_changed(now, found, out),
            Input::Heartbeat(round) if round == self.round => {
                if let State::Listening(listening) = &mut self.state {
                    listening.heard_at = Some(now);
                }
            }
            Input::Disconnected(round, why) if round == self.round => self.on_silence(now, true, why, out),
            Input::MemberAnswered(round, member, result) if round == self.round => {
                self.on_member(now, &member, result, out);
            }
            Input::PrimaryAnswered(round, result) if round == self.round => self.on_primary(now, result.is_ok(), out),
            Input::Heartbeat(_) | Input::Disconnected(..) | Input::MemberAnswered(..) | Input::PrimaryAnswered(..) => {}
            Input::Desired(desired) => {
                self.desired = desired;
                self.take_over_if_requested(now, out);
            }
            Input::App(app) => {
                self.app = app;
                self.on_tick(now, out);
            }
            Input::Tick => self.on_tick(now, out),
        }
    }

    /// When it wants to hear of time passing.
    pub fn wake_at(&self) -> Option<Time> {
        match &self.state {
            State::Reading { again_at, .. } => *again_at,
            State::Listening(listening) => {
                let settles = (!listening.settled).then(|| self.settles_at(listening));
                settles.into_iter().chain([self.silent_at(listening)]).min()
            }
            State::Spreading { until, without_app, .. } => Some(if self.app { *until } else { *without_app }),
            State::AwaitingApp { until } | State::Pausing { until, .. } => Some(*until),
            State::AskingPrimary { again_at, until, .. } => {
                Some(again_at.map_or(*until, |again_at| again_at.min(*until)))
            }
            State::AskingMembers(_) | State::Over => None,
        }
    }

    fn silent_at(&self, listening: &Listening) -> Time {
        listening.heard_at.unwrap_or(listening.since).plus(self.rules.heartbeat_silence_ms)
    }

    fn settles_at(&self, listening: &Listening) -> Time {
        listening.since.plus(self.rules.heartbeat_silence_ms * SETTLED_PERIODS)
    }

    fn on_read(&mut self, now: Time, result: Result<Option<Configuration>, String>, out: &mut Vec<Output>) {
        let State::Reading { verdict, again_at: again_at @ None } = &mut self.state else { return };
        let found = match result {
            Ok(found) => found,
            Err(why) => {
                *again_at = Some(now.plus(STORE_AGAIN_MS));
                return out.push(Output::Report(Report::ConfigStore(why)));
            }
        };
        let stamp = found.as_ref().map(Configuration::stamp);
        match verdict.take().filter(|(known, _)| Some(known.stamp()) == stamp) {
            None => return self.listen_or_claim(now, found, out),
            Some((_, Verdict::Gone)) => return self.claim(Reason::PrimaryGone, out),
            Some((_, Verdict::Well)) => {
                self.reported = None;
                out.push(Output::WaitOver);
            }
            Some((_, Verdict::Alone(why))) => out.push(Output::Waiting(why)),
        }
        self.state = State::Pausing { known: found, until: now.plus(LOOK_AGAIN_MS) };
    }

    fn on_changed(&mut self, now: Time, found: Configuration, out: &mut Vec<Output>) {
        if let State::Listening(Listening { known, .. }) | State::Spreading { known, .. } = &self.state
            && known.stamp() != found.stamp()
        {
            out.push(Output::WaitOver);
            self.listen_or_claim(now, Some(found), out);
        }
    }

    fn listen_or_claim(&mut self, now: Time, found: Option<Configuration>, out: &mut Vec<Output>) {
        let Some(known) = found else {
            let until = now.plus(self.wait_for_apps(None));
            if self.app || now >= until {
                return self.claim(Reason::NoConfiguration, out);
            }
            return self.state = State::AwaitingApp { until };
        };
        if known.primary == self.me {
            return self.claim(Reason::AlreadyNamed, out);
        }
        if known.primary.id == self.me.id {
            out.push(Output::Report(Report::SameName(known.primary.clone())));
        }
        out.push(Output::Listen(self.next_round(), known.clone()));
        self.state = State::Listening(Listening { known, since: now, heard_at: None, settled: false });
        self.take_over_if_requested(now, out);
    }

    fn take_over_if_requested(&mut self, now: Time, out: &mut Vec<Output>) {
        if let State::Listening(Listening { known, .. }) = &self.state
            && self.desired.takes_over_from == Some(known.epoch)
        {
            let known = known.clone();
            self.ask_members(now, known, Cause::Switchover, out);
        }
    }

    fn on_tick(&mut self, now: Time, out: &mut Vec<Output>) {
        match &mut self.state {
            State::Reading { again_at, .. } if again_at.is_some_and(|again_at| now >= again_at) => {
                *again_at = None;
                out.push(Output::ReadConfig);
            }
            State::Listening(_) => self.on_time_listening(now, out),
            State::AwaitingApp { until } if self.app || now >= *until => self.read(out),
            State::Spreading { known, cause, until, without_app }
                if now >= (if self.app { *until } else { *without_app }) =>
            {
                let (known, cause) = (known.clone(), *cause);
                self.ask_members(now, known, cause, out);
            }
            State::AskingPrimary { known, until, .. } if now >= *until => {
                let known = known.clone();
                self.compare(known, Verdict::Gone, out);
            }
            State::AskingPrimary { known, again_at, .. } if again_at.is_some_and(|again_at| now >= again_at) => {
                *again_at = None;
                let known = known.clone();
                out.push(Output::AskPrimary(self.next_round(), known));
            }
            State::Pausing { known, until } if now >= *until => match known.take() {
                Some(known) => self.listen_or_claim(now, Some(known), out),
                None => self.read(out),
            },
            _ => {}
        }
    }

    fn on_time_listening(&mut self, now: Time, out: &mut Vec<Output>) {
        let State::Listening(listening) = &self.state else { return };
        let silence = self.rules.heartbeat_silence_ms;
        if now >= self.silent_at(listening) {
            let PrimaryRef { id, control } = &listening.known.primary;
            let why = format!("{id} ({control}) has been silent for {silence} ms");
            return self.on_silence(now, false, why, out);
        }
        if !listening.settled && now >= self.settles_at(listening) {
            out.push(Output::WaitOver);
            if let State::Listening(listening) = &mut self.state {
                listening.settled = true;
            }
        }
    }

    fn on_silence(&mut self, now: Time, closed: bool, why: String, out: &mut Vec<Output>) {
        let State::Listening(Listening { known, heard_at, .. }) = &self.state else { return };
        let (known, cause) = (known.clone(), Cause::Silence { heard: heard_at.is_some(), closed });
        if self.reported.replace(known.stamp()) != Some(known.stamp()) {
            out.push(Output::Report(Report::PrimaryGone(why)));
        }
        let until = now.plus(self.rules.spread_ms);
        let without_app = until.plus(self.wait_for_apps(Some(known.stamp())));
        self.state = State::Spreading { known, cause, until, without_app };
    }

    /// How long it lets standbys with an app go first, in milliseconds.
    fn wait_for_apps(&mut self, known: Option<Stamp>) -> u64 {
        match self.deferred.replace(known) == Some(known) {
            true => 0,
            false => self.rules.app_wait_ms,
        }
    }

    /// A sidecar that reaches the config store but not the backups must not claim an epoch: it would depose one primary
    /// after the other and win nothing.
    fn ask_members(&mut self, now: Time, known: Configuration, cause: Cause, out: &mut Vec<Output>) {
        out.push(Output::AskMembers(self.next_round(), known.clone()));
        let waiting = known.members.iter().map(|member| member.id.clone()).collect();
        let asking = Asking { known, cause, since: now, waiting, answered: 0, missing: Vec::new() };
        self.state = State::AskingMembers(asking);
    }

    fn on_member(&mut self, now: Time, member: &MemberId, result: Result<(), String>, out: &mut Vec<Output>) {
        let State::AskingMembers(asking) = &mut self.state else { return };
        let Some(at) = asking.waiting.iter().position(|waiting| waiting == member) else { return };
        asking.waiting.swap_remove(at);
        match result {
            Ok(()) => asking.answered += 1,
            Err(why) => asking.missing.push(why),
        }
        let needed = usize::from(self.desired.min_in_sync.max(1)).min(asking.known.members.len());
        let enough = asking.answered >= needed;
        if !enough && !asking.waiting.is_empty() {
            return;
        }
        let (known, cause, since) = (asking.known.clone(), asking.cause, asking.since);
        // In an order that is the same each time: what is known already is not logged again.
        asking.missing.sort_unstable();
        let missing = format!(
            "{} of the last set's members answer, {needed} needed; missing: {}",
            asking.answered,
            asking.missing.join(", ")
        );
        match (cause, enough) {
            (Cause::Switchover, true) => self.claim(Reason::Switchover, out),
            (Cause::Switchover, false) => {
                out.push(Output::Report(Report::CannotTakeOver(missing)));
                self.state = State::Pausing { known: None, until: now.plus(SWITCHOVER_AGAIN_MS) };
            }
            (Cause::Silence { heard, closed }, true) => {
                // It may be this side that is, or has just been, cut off. Then it would depose a primary that is well.
                let silence = self.rules.heartbeat_silence_ms;
                let in_doubt = self.alone || !heard || now > since.plus(silence / 2);
                self.alone = false;
                let patience = match (in_doubt, closed) {
                    (true, _) => silence,
                    (false, false) => silence / LAST_CHANCE,
                    (false, true) => return self.compare(known, Verdict::Gone, out),
                };
                out.push(Output::AskPrimary(self.next_round(), known.clone()));
                self.state = State::AskingPrimary { known, again_at: None, until: now.plus(patience) };
            }
            (Cause::Silence { .. }, false) => {
                self.alone = true;
                self.compare(known, Verdict::Alone(missing), out);
            }
        }
    }

    /// A recovering network refuses connections for a moment, so the primary is asked until a silence period has passed.
    fn on_primary(&mut self, now: Time, answers: bool, out: &mut Vec<Output>) {
        let State::AskingPrimary { known, again_at, .. } = &mut self.state else { return };
        if !answers {
            return *again_at = Some(now.plus(LOOK_AGAIN_MS));
        }
        let known = known.clone();
        self.compare(known, Verdict::Well, out);
    }

    /// The verdict holds only if the config store still names that primary.
    fn compare(&mut self, known: Configuration, verdict: Verdict, out: &mut Vec<Output>) {
        self.read(out);
        self.state = State::Reading { verdict: Some((known, verdict)), again_at: None };
    }

    fn read(&mut self, out: &mut Vec<Output>) {
        self.state = State::Reading { verdict: None, again_at: None };
        out.push(Output::ReadConfig);
    }

    fn claim(&mut self, reason: Reason, out: &mut Vec<Output>) {
        self.state = State::Over;
        out.push(Output::Claim(reason));
    }

    fn next_round(&mut self) -> Round {
        self.round.0 += 1;
        self.round
    }
}
