//! One sidecar pod: its process, its role, its view of the config store, and what it waits for.
//!
//! Moves between [`standby`](super::standby), [`candidate`](super::candidate) and [`primary`](super::lead) as the
//! production sidecar's control does. What reaches a frozen process waits in its inbox.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::Slot;
use tailwind_protocol::config::{Configuration, MemberRef, PrimaryRef, Time};
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{Epoch, MemberId, SegmentId, SidecarId};
use tailwind_protocol::inventory::{Reading, Unbelievable};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::promotion::Task;
use tailwind_protocol::rpc::{Failure, Inventory, TermId};
use tailwind_protocol::standby::{Input, Round};
use tailwind_protocol::table::mirror::MirrorId;
use tailwind_protocol::table::warm::Warm;

use super::app::App;
use super::candidate::Candidacy;
use super::cleaning::CleanerFetch;

use super::fabric::{ChannelId, Key};
use super::follow::{Follow, FollowFetch, FollowNotice};
use super::getter::{Elsewhere, GetterFetch, GetterNotice};
use super::getting::RecordFetch;
use super::image::{Image, ImageId};
use super::lead::Lead;
use super::network::{Answer, CallId, Silence};
use super::queue::{MS, Micros};
use super::standby::Following;
use super::store::StoreReply;
use super::{Event, HostNo, SidecarNo, World};
use crate::trace::trace;

/// How often a sidecar hears of time passing.
pub(crate) const TICK: Micros = 10 * MS;
/// A peer silent for so long is dead.
pub(crate) const HEARTBEAT_SILENCE: Micros = 300 * MS;

/// What a sidecar is now.
#[derive(Debug)]
pub(crate) enum Role {
    /// Not before this moment a standby.
    Resting(Micros),
    Standby(Box<Following>),
    Candidate(Box<Candidacy>),
    Primary(Box<Lead>),
    /// Its lead is in somebody's hands at this moment.
    Busy,
}

/// What its process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Up,
    Frozen,
    Down,
}

/// What reaches a sidecar.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    Answer(CallId, Result<Answer, Silence>),
    Store(u32, u64, Box<StoreReply>),
    /// One write request has completed; acknowledged by the receiver at that moment.
    Completed(ChannelId, Micros),
    Broken(ChannelId),
    Again(u32, Again),
    Follow(FollowNotice),
    Getter(GetterNotice),
    /// The parts for a mirror of this epoch, if its member lends them.
    PartsLent(MirrorId, Epoch, Option<Vec<(Slot, Key)>>),
    Tick,
    App,
}

/// What is tried again after a pause.
#[derive(Clone, Debug)]
pub(crate) enum Again {
    /// What a member asked to hear later.
    Output(Box<primary::Output>),
    /// Local memory is ready.
    Prepared(SegmentIdentity),
    Image(ImageId),
    /// So many writes were left at the last look.
    ImageIdle(ImageId, usize),
    Survey(Option<SegmentId>),
    /// The next heartbeat of the primary that a standby follows.
    Listen(Round),
    /// The answer of that primary.
    AskPrimary(Round),
}

/// What an answer is for.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    Survey(MemberRef),
    Fence(Epoch, MemberId),
    Repair(Epoch, Task),
    Recruit(MemberRef),
    Damage(Seat),
    Seat(Box<primary::Output>),
    Image(ImageId),
    Read,
    /// A table's cleaner fetches a segment.
    Clean(Box<CleanerFetch>),
    /// A get or a copy needs a record.
    Record(Box<RecordFetch>),
    /// A standby asks whether enough members answer.
    Judge(Round, MemberId),
    FollowSurvey(Visit),
    FollowFetch(Visit, FollowFetch),
    /// A channel for a mirror.
    Mirror(MirrorId),
    /// A getter asks this backup where a segment ends, or for a record of it.
    GetterFetch(Box<GetterFetch>, HostNo),
}

/// Asking every backup what it holds.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) waiting: usize,
    pub(crate) found: Vec<(MemberRef, Inventory)>,
}

/// One sidecar pod.
#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) no: SidecarNo,
    pub(crate) name: SidecarId,
    /// The address that it has now: at first its own, later perhaps one that another has had.
    pub(crate) address: usize,
    /// The term that it leads, or has claimed.
    pub(crate) tenure: Option<TermId>,
    pub(crate) process: Process,
    /// Counts the processes.
    pub(crate) life: u32,
    /// Counts the roles: answers meant for an earlier one are not for this one.
    pub(crate) term: u32,
    pub(crate) role: Role,
    pub(crate) inbox: VecDeque<Notice>,
    pub(crate) calls: BTreeMap<CallId, Purpose>,
    pub(crate) store_calls: Vec<u64>,
    pub(crate) images: BTreeMap<ImageId, Image>,
    pub(crate) survey: Option<Survey>,
    /// What the watch has shown last.
    pub(crate) view: Option<Configuration>,
    /// How far the watch lags behind.
    pub(crate) watch_lag: Micros,
    /// Its clock: an offset in milliseconds, and how many of its milliseconds pass in a thousand.
    pub(crate) clock: (u64, u64),
    pub(crate) app: App,
    /// While it does not lead.
    pub(crate) follow: Option<Box<Follow>>,
    /// Its getter, while it does not lead.
    pub(super) elsewhere: Option<Box<Elsewhere>>,
    /// What it has folded of a table, while it does not lead.
    pub(super) warm: Option<Warm>,
    /// The latest epoch whose records its app may have been shown.
    pub(crate) followed: Epoch,
    /// Until then its app does not follow.
    pub(super) follows_from: Micros,
}

impl Sidecar {
    pub(crate) fn new(no: SidecarNo, clock: (u64, u64)) -> Sidecar {
        Sidecar {
            no,
            name: format!("s{}", no.0 + 1).parse().expect("a name"),
            address: no.0,
            tenure: None,
            process: Process::Up,
            life: 0,
            term: 0,
            role: Role::Resting(0),
            inbox: VecDeque::new(),
            calls: BTreeMap::new(),
            store_calls: Vec::new(),
            images: BTreeMap::new(),
            survey: None,
            view: None,
            watch_lag: 0,
            clock,
            app: App::default(),
            follow: None,
            elsewhere: None,
            warm: None,
            followed: Epoch(0),
            follows_from: 0,
        }
    }

    pub(crate) fn reference(&self) -> PrimaryRef {
        PrimaryRef { id: self.name.clone(), control: format!("s{}:7301", self.address + 1) }
    }

    pub(crate) fn lead(&self) -> Option<&Lead> {
        match &self.role {
            Role::Primary(lead) => Some(lead),
            _ => None,
        }
    }

    /// Another role: nothing that was asked before is awaited any more.
    fn become_role(&mut self, role: Role) {
        if matches!(role, Role::Resting(_) | Role::Standby(_)) {
            self.tenure = None;
        }
        self.role = role;
        self.term += 1;
        // Followers and getters go on through all roles but the primary's.
        let goes_on = |purpose: &Purpose| {
            matches!(purpose, Purpose::FollowSurvey(_) | Purpose::FollowFetch(..) | Purpose::GetterFetch(..))
        };
        self.calls.retain(|_, purpose| goes_on(purpose));
        self.store_calls.clear();
        self.images.clear();
        self.survey = None;
    }
}

impl World {
    /// This sidecar's own clock.
    pub(crate) fn time(&self, of: SidecarNo) -> Time {
        let (offset, rate) = self.sidecars[of.0].clock;
        Time(offset + self.queue.now() * rate / 1_000_000)
    }

    pub(crate) fn on_notice(&mut self, to: SidecarNo, life: u32, notice: Notice) {
        let sidecar = &mut self.sidecars[to.0];
        if sidecar.life != life {
            return;
        }
        match sidecar.process {
            Process::Down => {}
            Process::Frozen => match notice {
                Notice::Tick | Notice::App => {}
                other => sidecar.inbox.push_back(other),
            },
            Process::Up => self.notice(to, notice),
        }
    }

    fn notice(&mut self, to: SidecarNo, notice: Notice) {
        let sidecar = &mut self.sidecars[to.0];
        match notice {
            Notice::Answer(call, answer) => {
                if let Some(purpose) = sidecar.calls.remove(&call) {
                    self.on_answer(to, purpose, answer);
                }
            }
            Notice::Store(term, number, reply) => {
                let Some(at) = sidecar.store_calls.iter().position(|known| *known == number) else { return };
                if sidecar.term == term {
                    sidecar.store_calls.swap_remove(at);
                    self.on_store_reply(to, *reply);
                }
            }
            Notice::Completed(channel, acked_at) => {
                if !self.holds_up_completion(channel, acked_at) {
                    self.on_completed(to, channel);
                }
            }
            Notice::Broken(channel) => self.on_broken(to, channel),
            Notice::Again(term, again) if sidecar.term == term => self.try_again(to, again),
            Notice::Again(..) => {}
            Notice::Follow(notice) => self.on_follow_notice(to, notice),
            Notice::Getter(notice) => self.on_getter_notice(to, notice),
            Notice::PartsLent(mirror, epoch, parts) => self.on_parts_lent(to, mirror, epoch, parts),
            Notice::Tick => self.on_tick(to),
            Notice::App => self.on_app_turn(to),
        }
    }

    fn on_answer(&mut self, to: SidecarNo, purpose: Purpose, answer: Result<Answer, Silence>) {
        let answer = self.perhaps_refuse(to, &purpose, answer);
        match purpose {
            Purpose::Survey(member) => self.on_survey_answer(to, member, answer),
            Purpose::Fence(epoch, member) => self.on_fence_answer(to, epoch, member, answer),
            Purpose::Repair(epoch, task) => self.on_repair_answer(to, epoch, task, answer),
            Purpose::Recruit(member) => self.on_spare_answer(to, member, answer),
            Purpose::Damage(seat) => self.on_damage_answer(to, seat, answer),
            Purpose::Seat(output) => self.on_seat_answer(to, *output, answer),
            Purpose::Image(image) => self.on_image_answer(to, image, answer),
            Purpose::Read => self.on_read_answer(to, answer),
            Purpose::Clean(fetch) => self.on_cleaner_answer(to, *fetch, answer),
            Purpose::Record(fetch) => self.on_record_answer(to, *fetch, answer),
            Purpose::Judge(round, member) => self.on_member_judged(to, round, member, answer),
            Purpose::FollowSurvey(visit) => self.on_follow_survey(to, visit, answer),
            Purpose::FollowFetch(visit, fetch) => self.on_follow_fetch(to, visit, fetch, answer),
            Purpose::Mirror(mirror) => self.on_mirror_answer(to, mirror, answer),
            Purpose::GetterFetch(fetch, source) => self.on_getter_fetch(to, *fetch, source, answer),
        }
    }

    fn on_store_reply(&mut self, to: SidecarNo, reply: StoreReply) {
        match (&self.sidecars[to.0].role, reply) {
            (Role::Standby(_), StoreReply::Read(result)) => self.standby_input(to, Input::Read(result)),
            (Role::Candidate(_), reply) => self.on_candidate_store_reply(to, reply),
            (Role::Primary(_), StoreReply::Swapped(outcome)) => {
                self.primary_input(to, primary::Input::Swapped(outcome));
            }
            (Role::Primary(_), StoreReply::Read(result)) => self.primary_input(to, primary::Input::Read(result)),
            _ => {}
        }
    }

    fn try_again(&mut self, to: SidecarNo, again: Again) {
        match again {
            Again::Output(output) => self.execute_again(to, *output),
            Again::Prepared(identity) => self.on_prepared(to, identity),
            Again::Image(image) => self.move_image(to, image),
            Again::ImageIdle(image, writes) => self.give_up_idle_image(to, image, writes),
            Again::Survey(after) => self.survey(to, after),
            Again::Listen(round) => self.listen(to, round),
            Again::AskPrimary(round) => self.ask_primary(to, round),
        }
    }

    pub(crate) fn plan_again(&mut self, of: SidecarNo, after: Micros, again: Again) {
        let sidecar = &self.sidecars[of.0];
        self.queue.plan(after, Event::Sidecar(of, sidecar.life, Notice::Again(sidecar.term, again)));
    }

    fn on_tick(&mut self, of: SidecarNo) {
        self.watch(of);
        match self.sidecars[of.0].role {
            Role::Resting(until) if self.queue.now() >= until && !self.by_hand => self.stand_by(of),
            Role::Resting(_) => {}
            Role::Standby(_) => self.on_standby_tick(of),
            Role::Candidate(_) => self.on_candidate_tick(of),
            Role::Primary(_) => self.on_primary_tick(of),
            Role::Busy => {}
        }
        if self.sidecars[of.0].lead().is_none() {
            self.follow(of);
            self.get_elsewhere(of);
            self.fold_ahead(of);
        }
    }

    /// The watch shows what the store held some time ago.
    fn watch(&mut self, of: SidecarNo) {
        let lag = self.sidecars[of.0].watch_lag;
        if self.store.down || self.store.cut.contains(&of) {
            return;
        }
        let moment = self.queue.now().saturating_sub(lag);
        let Some(seen) = self.store.content_at(moment) else { return };
        let view = &mut self.sidecars[of.0].view;
        if view.as_ref().is_some_and(|view| view.stamp() >= seen.stamp()) {
            return;
        }
        let seen = seen.clone();
        *view = Some(seen.clone());
        self.on_newer_configuration(of, &seen);
    }

    /// Another role, with the queue pairs of the old one closed.
    pub(crate) fn change_role(&mut self, of: SidecarNo, role: Role) {
        self.close_all_senders(of);
        self.sidecars[of.0].become_role(role);
        self.sidecars[of.0].app.lost_role();
    }

    pub(crate) fn kill_sidecar(&mut self, of: SidecarNo) {
        trace!(self, "{} dies", self.sidecars[of.0].name);
        self.change_role(of, Role::Resting(0));
        let sidecar = &mut self.sidecars[of.0];
        sidecar.process = Process::Down;
        sidecar.inbox.clear();
        sidecar.view = None;
        (sidecar.follow, sidecar.followed) = (None, Epoch(0));
        (sidecar.warm, sidecar.elsewhere) = (None, None);
        sidecar.life += 1;
    }

    pub(crate) fn start_sidecar(&mut self, of: SidecarNo) {
        if self.sidecars[of.0].process == Process::Down {
            trace!(self, "{} starts", self.sidecars[of.0].name);
            self.take_another_address(of);
            self.sidecars[of.0].process = Process::Up;
        }
    }

    /// A frozen process goes on with what has come in meanwhile.
    pub(crate) fn resume_sidecar(&mut self, of: SidecarNo) {
        if self.sidecars[of.0].process != Process::Frozen {
            return;
        }
        trace!(self, "{} goes on", self.sidecars[of.0].name);
        self.sidecars[of.0].process = Process::Up;
        // Its timers fire together with what is in its sockets; which comes first is anybody's guess.
        if self.random.one_in(2) {
            self.notice(of, Notice::Tick);
        }
        while let Some(notice) = self.sidecars[of.0].inbox.pop_front() {
            self.notice(of, notice);
        }
    }

    /// Asks every backup what it holds.
    pub(crate) fn survey(&mut self, of: SidecarNo, after: Option<SegmentId>) {
        let hosts: Vec<(HostNo, MemberRef)> = self.hosts.iter().map(|host| (host.no, host.reference())).collect();
        self.sidecars[of.0].survey = Some(Survey { waiting: hosts.len(), found: Vec::new() });
        for (host, member) in hosts {
            self.call(of, host, tailwind_protocol::backup::Request::Inventory(after), Purpose::Survey(member));
        }
    }

    fn on_survey_answer(&mut self, of: SidecarNo, member: MemberRef, answer: Result<Answer, Silence>) {
        let Some(survey) = &mut self.sidecars[of.0].survey else { return };
        survey.waiting -= 1;
        if let Ok(Answer::Inventory(inventory)) = answer {
            survey.found.push((MemberRef { boot: inventory.boot, ..member }, inventory));
        }
        if survey.waiting == 0
            && let Some(Survey { mut found, .. }) = self.sidecars[of.0].survey.take()
        {
            found.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
            match self.sidecars[of.0].role {
                Role::Candidate(_) => self.on_candidate_surveyed(of, found),
                _ => {
                    let found = found.into_iter().map(|(member, _)| member).collect();
                    self.primary_input(of, primary::Input::Surveyed(found));
                }
            }
        }
    }

    /// What a sidecar believes of an answer to its fence. An honest member's inventory must pass every check, even if its disk was
    /// damaged.
    pub(crate) fn believe(&self, inventory: Inventory, epoch: Epoch, newest: Epoch) -> Result<Inventory, Failure> {
        let log = inventory.log.expect("a backup that was fenced is bound to a log");
        let lies = self.is_liar(&inventory.member);
        match Reading::new(log, epoch, newest).take(inventory) {
            Ok(whole) => Ok(whole.expect("no story has more copies than fit on a page")),
            Err(why @ Unbelievable::Nonsense(_)) if !lies => panic!("an honest member is not believed: {why}"),
            Err(why) => Err(why.into()),
        }
    }

    pub(crate) fn host_of(&self, member: &MemberId) -> HostNo {
        self.hosts.iter().find(|host| host.name == *member).expect("a backup of this world").no
    }
}

/// What a failed call means.
pub(crate) fn failure(answer: Result<Answer, Silence>) -> Failure {
    match answer {
        Ok(Answer::Refused(refusal)) => refusal.into(),
        Ok(_) => Failure::Unreachable("not an answer to this".to_owned()),
        Err(Silence::Late) => Failure::Unreachable("no answer in time".to_owned()),
        Err(Silence::Gone) => Failure::Unreachable("no connection".to_owned()),
    }
}
