//! What is on its way moves: control messages and their answers, calls to the config store, flushes, and time.

use tailwind_protocol::backup;
use tailwind_protocol::config::SwapOutcome;
use tailwind_protocol::ids::{MemberId, SidecarId};
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::promotion;

use super::host::Answer;
use super::network::{Ask, Call, Message, Reply, Silence, Then, name as request_name};
use super::sidecar::Role;
use super::{World, tale};

/// Moves after which a world that still moves is taken to be running in circles.
const MOVES_MAX: u32 = 20_000;

impl World {
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
    pub(super) fn answered(&mut self, by: &MemberId, answers: Vec<(backup::RequestId, Answer)>) {
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
    pub(super) fn forget_the_dead(&mut self) {
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

    pub(super) fn hand_over(&mut self, to: &SidecarId, life: u32, reply: Reply) {
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
                Then::Damage(seat) => self.on_damage_answer(&message, seat, answer),
                Then::Recruit(_) => self.on_recruit_answer(*message, answer),
                Then::Seat(_) => self.on_seat_answer(*message, answer),
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

    pub(super) fn call_store(&mut self, from: &SidecarId, what: Ask) {
        let life = self.sidecar(from).life;
        self.network.calls.push_back(Call { from: from.clone(), life, what });
    }

    /// Moves the oldest call to the config store; false when there is none.
    pub(crate) fn move_call(&mut self) -> bool {
        let Some(call) = self.network.calls.pop_front() else { return false };
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
        self.hand_over(&call.from, call.life, reply);
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
        self.move_message(None) || self.move_call() || self.move_write() || self.move_hidden() || self.move_flush(None)
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
        let mut later = Vec::new();
        for sidecar in self.sidecars.values_mut() {
            let name = sidecar.name.clone();
            let channels = sidecar.lead_mut().into_iter().flat_map(|lead| lead.channels.values_mut());
            later.extend(channels.flat_map(|channel| channel.later.drain(..)).map(|output| (name.clone(), output)));
        }
        for (name, output) in later {
            self.carry_primary_output(&name, output);
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
}
