//! Carries out what the judgement of a [`Standby`] asks for and brings it the answers; decides nothing, but for alarms that
//! are false on purpose.

use tailwind_protocol::backup::Request;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::MemberId;
use tailwind_protocol::rpc::TermRequest;
use tailwind_protocol::standby::{Desired, Input, Output, Report, Round, Rules, Standby};

use super::network::{Answer, Silence};
use super::queue::{MS, Micros};
use super::sidecar::{Again, HEARTBEAT_SILENCE, Process, Purpose, Role};
use super::store::Ask;
use super::{SidecarNo, World, group};
use crate::tally::Fault;
use crate::trace::trace;

/// Standbys that notice at the same moment spread over this time.
const SPREAD_MS: u64 = 40;
/// One to which no app is connected lets others go first for up to so long.
const APP_WAIT_MS: u64 = 300;
/// Who follows a primary hears of it so often.
const HEARTBEAT: Micros = 25 * MS;

/// A standby.
#[derive(Debug)]
pub(crate) struct Following {
    machine: Standby,
    /// Whose heartbeats it listens to, and the configuration that named that one.
    primary: Option<(Round, Configuration)>,
}

impl World {
    /// A sidecar that has lost a race, or its role, stands by after a pause of its own.
    pub(crate) fn rest(&mut self, of: SidecarNo, ms_max: u64) {
        let until = self.queue.now() + self.random.below(ms_max + 1) * MS;
        self.change_role(of, Role::Resting(until));
    }

    pub(crate) fn stand_by(&mut self, of: SidecarNo) {
        let rules = Rules {
            heartbeat_silence_ms: HEARTBEAT_SILENCE / MS,
            spread_ms: self.random.below(SPREAD_MS),
            app_wait_ms: self.random.below(APP_WAIT_MS),
        };
        let mut out = Vec::new();
        let desired = self.desired_of_standbys();
        let machine = Standby::start(self.sidecars[of.0].reference(), rules, desired, &mut out);
        self.change_role(of, Role::Standby(Box::new(Following { machine, primary: None })));
        self.execute_standby(of, out);
        if self.random.one_in(2) {
            self.standby_input(of, Input::App(true));
        }
    }

    fn desired_of_standbys(&self) -> Desired {
        let min_in_sync = if self.desired.recover_from_disk.is_some() { 1 } else { self.desired.min_in_sync };
        Desired { min_in_sync, takes_over_from: None }
    }

    /// The group wants something else.
    pub(super) fn notify_standby(&mut self, of: SidecarNo) {
        self.standby_input(of, Input::Desired(self.desired_of_standbys()));
    }

    pub(crate) fn standby_input(&mut self, of: SidecarNo, input: Input) {
        let now = self.time(of);
        let Role::Standby(following) = &mut self.sidecars[of.0].role else { return };
        let mut out = Vec::new();
        following.machine.step(now, input, &mut out);
        self.execute_standby(of, out);
    }

    fn execute_standby(&mut self, of: SidecarNo, out: Vec<Output>) {
        for output in out {
            match output {
                Output::ReadConfig => self.ask_store(of, Ask::Read),
                Output::Listen(round, config) => {
                    if let Role::Standby(following) = &mut self.sidecars[of.0].role {
                        following.primary = Some((round, config));
                    }
                    self.plan_again(of, HEARTBEAT, Again::Listen(round));
                }
                Output::AskMembers(round, config) => {
                    for member in config.members {
                        let host = self.host_of(&member.id);
                        self.call(of, host, Request::Damage, Purpose::Judge(round, member.id));
                    }
                }
                Output::AskPrimary(round, _) => self.plan_again(of, MS, Again::AskPrimary(round)),
                Output::Report(Report::PrimaryGone(why)) => {
                    trace!(self, "{}: the primary is gone: {why}", self.sidecars[of.0].name);
                }
                Output::Report(_) | Output::Waiting(_) | Output::WaitOver => {}
                Output::Claim(reason) => {
                    trace!(self, "{} is a candidate: {reason:?}", self.sidecars[of.0].name);
                    return self.become_candidate(of);
                }
            }
        }
    }

    pub(super) fn on_standby_tick(&mut self, of: SidecarNo) {
        let Role::Standby(following) = &self.sidecars[of.0].role else { return };
        let stamp = following.primary.as_ref().map(|(_, config)| config.stamp());
        if stamp.is_some() && self.fault_occurs(Fault::FalseAlarm, 1) {
            trace!(self, "{} is a candidate by a false alarm", self.sidecars[of.0].name);
            return self.become_candidate(of);
        }
        // Its watch shows what is newer than what it follows, whenever that was seen first.
        let newer = self.sidecars[of.0].view.as_ref().filter(|view| stamp.is_some_and(|stamp| view.stamp() > stamp));
        if let Some(newer) = newer.cloned() {
            self.standby_input(of, Input::Changed(newer));
        }
        self.standby_input(of, Input::Tick);
    }

    /// A heartbeat of the primary that it follows is due.
    pub(super) fn listen(&mut self, of: SidecarNo, round: Round) {
        let Role::Standby(following) = &self.sidecars[of.0].role else { return };
        if following.primary.as_ref().is_none_or(|(followed, ..)| *followed != round) {
            return;
        }
        match self.link_to_primary(of) {
            Some(Link::Ends) => {
                return self.standby_input(of, Input::Disconnected(round, "connection closed".to_owned()));
            }
            Some(Link::Carries) => self.standby_input(of, Input::Heartbeat(round)),
            Some(Link::Silent) | None => {}
        }
        self.plan_again(of, HEARTBEAT, Again::Listen(round));
    }

    /// The primary that it follows is asked whether it lives; a silent one is waited for until the judgement is made.
    pub(super) fn ask_primary(&mut self, of: SidecarNo, round: Round) {
        match self.link_to_primary(of) {
            Some(Link::Carries) => self.standby_input(of, Input::PrimaryAnswered(round, Ok(()))),
            Some(Link::Ends) => {
                self.standby_input(of, Input::PrimaryAnswered(round, Err("connection refused".to_owned())));
            }
            Some(Link::Silent) | None => {}
        }
    }

    fn link_to_primary(&self, of: SidecarNo) -> Option<Link> {
        let Role::Standby(following) = &self.sidecars[of.0].role else { return None };
        let (_, config) = following.primary.as_ref()?;
        // Whoever has that address now.
        let owner = self.sidecars.iter().find(|other| other.reference().control == config.primary.control)?;
        let leads = TermRequest::of(group(), config).is_for(&owner.name, owner.tenure);
        Some(match owner.process {
            _ if self.cuts.are_peers_apart(of, owner.no) => Link::Silent,
            Process::Up if leads => Link::Carries,
            Process::Up => Link::Ends,
            Process::Frozen => Link::Silent,
            Process::Down => Link::Ends,
        })
    }

    pub(super) fn on_member_judged(
        &mut self,
        of: SidecarNo,
        round: Round,
        member: MemberId,
        answer: Result<Answer, Silence>,
    ) {
        let answer = answer.map(|_| ()).map_err(|silence| format!("{member}: {silence:?}"));
        self.standby_input(of, Input::MemberAnswered(round, member, answer));
    }
}

/// What the way to the primary does.
enum Link {
    Carries,
    Silent,
    Ends,
}
