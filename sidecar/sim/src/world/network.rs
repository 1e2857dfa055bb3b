//! The control network between sidecars and backups: requests and answers that get lost, come late, or come twice.
//!
//! Used by [`sidecar`](super::sidecar), [`candidate`](super::candidate) and [`lead`](super::lead) to ask, by
//! [`host`](super::host) to answer.

use std::collections::BTreeSet;

use tailwind_protocol::backup::{Request, RequestId, Slot};
use tailwind_protocol::ids::{BootId, Offset};
use tailwind_protocol::pull::patience_ms;
use tailwind_protocol::rpc::{CopyReport, Inventory, PullRequest, Refusal};

use super::fabric::{ChannelId, Key};
use super::host::HostEvent;
use super::lead::OPEN_TIMEOUT_MS;
use super::queue::{MS, Micros};
use super::sidecar::{Notice, Purpose};
use super::{Event, HostNo, SidecarNo, World};
use crate::tally::Fault;
use crate::trace::trace;

/// How long a control RPC may take.
pub(crate) const RPC_TIMEOUT: Micros = 1000 * MS;
/// How long a backup may take to pull a segment.
const PULL_TIMEOUT: Micros = patience_ms(OPEN_TIMEOUT_MS) * MS;
/// A request that meets a cut link is sent again after so long, as TCP does, for as long as its connection lives.
const RESEND_PAUSE: Micros = 40 * MS;

/// Pairs a call with its answer; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallId(pub(crate) u64);

/// Who waits for the answer to a request that arrives once more.
const NOBODY: CallId = CallId(u64::MAX);

/// What a backup is asked: by its machine's words, or to pull.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Machine(Request),
    Pull(Box<PullRequest>),
}

impl From<Request> for Ask {
    fn from(request: Request) -> Ask {
        Ask::Machine(request)
    }
}

/// A request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: SidecarNo,
    pub(crate) life: u32,
    pub(crate) call: CallId,
    pub(crate) to: HostNo,
    pub(crate) request: Ask,
    sent: Micros,
}

impl Envelope {
    /// The same once more, for an answer that reaches nobody.
    pub(crate) fn unanswered(self) -> Box<Envelope> {
        Box::new(Envelope { call: NOBODY, ..self })
    }
}

/// What a backup answers.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Inventory(Inventory),
    Damage(Vec<CopyReport>),
    Connected(BootId, ChannelId, Option<(Slot, Key)>),
    /// A buffer, and for appends the board.
    Granted(Slot, Key, Option<(Slot, Key)>),
    Bytes(Vec<u8>),
    Flushed(Offset),
    Done,
    Refused(Refusal),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// None came in time.
    Late,
    /// Nobody listens there.
    Gone,
}

/// Links that carry nothing.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    /// From the sidecar to the backup.
    pub(crate) there: BTreeSet<(SidecarNo, HostNo)>,
    /// From the backup to the sidecar.
    pub(crate) back: BTreeSet<(SidecarNo, HostNo)>,
    /// The same two for the fabric, which has a network of its own.
    pub(crate) data_there: BTreeSet<(SidecarNo, HostNo)>,
    pub(crate) data_back: BTreeSet<(SidecarNo, HostNo)>,
    /// Between backups, the smaller number first.
    pub(crate) backups: BTreeSet<(HostNo, HostNo)>,
    /// Between sidecars, the smaller number first.
    pub(crate) peers: BTreeSet<(SidecarNo, SidecarNo)>,
}

impl Cuts {
    /// True when heartbeats get through.
    pub(crate) fn is_whole(&self, sidecar: SidecarNo, host: HostNo) -> bool {
        !self.there.contains(&(sidecar, host)) && !self.back.contains(&(sidecar, host))
    }

    pub(crate) fn are_peers_apart(&self, a: SidecarNo, b: SidecarNo) -> bool {
        self.peers.contains(&(a.min(b), a.max(b)))
    }

    pub(crate) fn are_backups_apart(&self, a: HostNo, b: HostNo) -> bool {
        self.backups.contains(&(a.min(b), a.max(b)))
    }

    pub(crate) fn heal(&mut self, sidecar: SidecarNo, host: HostNo) {
        for set in [&mut self.there, &mut self.back, &mut self.data_there, &mut self.data_back] {
            set.remove(&(sidecar, host));
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Cuts::default();
    }
}

impl World {
    /// Sends a request; exactly one answer, or silence, is brought to `purpose`.
    pub(crate) fn call(&mut self, from: SidecarNo, to: HostNo, request: impl Into<Ask>, purpose: Purpose) {
        let sidecar = &mut self.sidecars[from.0];
        let (call, life) = (CallId(self.queue.count()), sidecar.life);
        sidecar.calls.insert(call, purpose);
        let request = request.into();
        let timeout = if matches!(request, Ask::Pull(_)) { PULL_TIMEOUT } else { RPC_TIMEOUT };
        self.queue.plan(timeout, Event::Sidecar(from, life, Notice::Answer(call, Err(Silence::Late))));
        let envelope = Envelope { from, life, call, to, request, sent: self.queue.now() };
        if self.fault_occurs(Fault::MessageTwice, 15) {
            let later = self.random.within(1, 3000) * MS;
            self.queue.plan(later, Event::Request(Box::new(envelope.clone())));
        }
        if self.fault_occurs(Fault::MessageLost, 10) {
            return;
        }
        let delay = self.message_delay();
        self.queue.plan(delay, Event::Request(Box::new(envelope)));
    }

    pub(super) fn message_delay(&mut self) -> Micros {
        let (least, most) = self.plan.latency;
        // Two ends and a process that must be woken.
        let delay = 30 + 2 * self.random.within(least, most);
        if self.fault_occurs(Fault::MessageLate, 20) { delay + self.random.within(1, 600) * MS } else { delay }
    }

    /// A request has come as far as the backup's host.
    pub(crate) fn on_request(&mut self, envelope: Box<Envelope>) {
        let (from, to) = (envelope.from, envelope.to);
        if self.cuts.there.contains(&(from, to)) {
            if self.queue.now() < envelope.sent + 3 * RPC_TIMEOUT && self.random.one_in(2) {
                self.queue.plan(RESEND_PAUSE, Event::Request(envelope));
            }
            return;
        }
        let host = &mut self.hosts[to.0];
        if host.is_off() {
            return;
        }
        if !host.is_up() {
            return self.send_back(to, from, envelope.life, envelope.call, Err(Silence::Gone));
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        host.asked.insert(id, (from, envelope.life, envelope.call));
        host.inbox.push_back(match envelope.request {
            Ask::Machine(request) => HostEvent::Asked(id, request),
            Ask::Pull(request) => HostEvent::AskedToPull(id, request),
        });
        self.wake_host(to);
    }

    /// A backup answers.
    pub(crate) fn answer(&mut self, by: HostNo, id: RequestId, answer: Answer) {
        let answer = self.perhaps_lie(by, answer);
        if self.on_answer_to_pull(by, id, &answer) {
            return;
        }
        let Some((to, life, call)) = self.hosts[by.0].asked.remove(&id) else { return };
        if let (NOBODY, Answer::Refused(why)) = (call, &answer) {
            trace!(self, "{} refuses the late request: {why}", self.hosts[by.0].name);
        }
        self.send_back(by, to, life, call, Ok(answer));
    }

    fn send_back(&mut self, by: HostNo, to: SidecarNo, life: u32, call: CallId, answer: Result<Answer, Silence>) {
        if self.cuts.back.contains(&(to, by)) || self.fault_occurs(Fault::MessageLost, 10) {
            return;
        }
        let delay = self.message_delay();
        self.queue.plan(delay, Event::Sidecar(to, life, Notice::Answer(call, answer)));
    }

    pub(crate) fn cut_backups(&mut self, one: HostNo, other: HostNo) {
        trace!(self, "the link {} {} is cut", self.hosts[one.0].name, self.hosts[other.0].name);
        self.cuts.backups.insert((one.min(other), one.max(other)));
    }

    pub(crate) fn cut(&mut self, sidecar: SidecarNo, host: HostNo, there: bool, back: bool) {
        // Mostly one cable carries both; a card or a switch port may fail alone.
        let (control, data) = *self.random.pick(&[(true, true), (true, true), (true, false), (false, true)]);
        trace!(
            self,
            "the link {} {} is cut{}{}",
            self.sidecars[sidecar.0].name,
            self.hosts[host.0].name,
            if there && back { "" } else { " one way" },
            match (control, data) {
                (true, false) => ", for control only",
                (false, true) => ", for data only",
                _ => "",
            }
        );
        let link = (sidecar, host);
        let cuts = &mut self.cuts;
        for (set, cut) in [
            (&mut cuts.there, there && control),
            (&mut cuts.back, back && control),
            (&mut cuts.data_there, there && data),
            (&mut cuts.data_back, back && data),
        ] {
            if cut {
                set.insert(link);
            }
        }
    }
}
