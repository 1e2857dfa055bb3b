//! Pulls: a backup's process copies a closed segment from another backup, driven by the production [`Pull`].
//!
//! Its buffer is lent and closed by its own daemon, whose requests are asked here; the bytes come by a one-sided read out of the
//! source's memory, or from its process, and are written piece by piece. The source may die, freeze, rot or be cut off
//! during the pull, the buffer may be taken back, and the caller may give up: then the pull ends, sooner or later.

use std::collections::{BTreeMap, BTreeSet};

use tailwind_protocol::backup::{self, Request, RequestId, Slot};
use tailwind_protocol::pull::{CopyError, Input, Output, Pull, Way, filled_by_others};
use tailwind_protocol::rpc::{FetchRequest, PullRequest, Refusal};

use super::fabric::Key;
use super::host::{HostEvent, Running};
use super::network::Answer;
use super::queue::{MS, Micros};
use super::reading::ReadFor;
use super::{Event, HostNo, World, group};
use crate::tally::Fault;
use crate::trace::{records, trace};

/// Pulls of one process at a time.
const PULLS_MAX: usize = 3;
/// Bytes written at a time.
const PIECE: usize = 16 << 10;
/// How long a source may take: as all time-outs here, a fifth of the production default.
const SOURCE_SILENCE: Micros = 200 * MS;
/// How long a process that is stopped keeps something waiting before it is looked at again.
const THAW: Micros = 5 * MS;

/// Names a pull of a backup's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PullNo(u64);

/// What happens to a pull, on its so-manieth try of a source.
#[derive(Clone, Debug)]
pub(crate) enum PullEvent {
    /// The question reaches the source.
    Ask(u32, HostNo, Way),
    /// Its bytes are here, or the reason why not.
    Bytes(u32, Result<Vec<u8>, String>),
    /// The bytes from here on are written.
    Write(u32, usize),
    /// The source has taken too long.
    Late(u32),
    /// The caller's connection has ended.
    CallerGone,
}

impl PullEvent {
    /// The try that it is about; none if it is about all of them.
    fn attempt(&self) -> Option<u32> {
        match self {
            PullEvent::Ask(attempt, ..)
            | PullEvent::Bytes(attempt, _)
            | PullEvent::Write(attempt, _)
            | PullEvent::Late(attempt) => Some(*attempt),
            PullEvent::CallerGone => None,
        }
    }
}

/// The pulls of a process, and what it gives to those of others.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    count: u64,
    under_way: BTreeMap<PullNo, Pulling>,
    /// Requests to the own daemon.
    asked: BTreeMap<RequestId, PullNo>,
    /// Requests for pulls of other processes.
    served: BTreeMap<RequestId, Served>,
    /// Which pull fills a slot.
    filled: BTreeMap<Slot, PullNo>,
    /// Slots whose lending the caller may write.
    granted: BTreeSet<Slot>,
}

/// A fetch for a try of a pull, of this life of another process. Without `check` its bytes are sent as they are.
#[derive(Clone, Copy, Debug)]
struct Served {
    to: HostNo,
    life: u32,
    pull: PullNo,
    attempt: u32,
    check: bool,
}

#[derive(Debug)]
struct Pulling {
    machine: Pull,
    request: PullRequest,
    /// The caller's.
    id: RequestId,
    buffer: Option<(Slot, Key)>,
    bytes: Vec<u8>,
    attempt: u32,
    /// The source has answered on this try, and its memory is being read.
    reads: bool,
    /// Nothing of this try is awaited any more.
    copied: bool,
}

impl Pulls {
    /// The slot's lending is over, or a new one begins.
    pub(super) fn release(&mut self, slot: Slot) {
        self.filled.remove(&slot);
        self.granted.remove(&slot);
    }

    /// True for a fetch whose bytes nobody here shall look at.
    pub(super) fn is_unchecked(&self, id: RequestId) -> bool {
        self.served.get(&id).is_some_and(|served| !served.check)
    }

    /// Nobody fills anything any more.
    pub(super) fn stop_filling(&mut self) {
        self.filled.clear();
    }
}

impl World {
    pub(super) fn begin_pull(&mut self, no: HostNo, id: RequestId, request: PullRequest) {
        let Some(machine) = self.hosts[no.0].machine() else { return };
        let full = self.hosts[no.0].pulls.under_way.len() >= PULLS_MAX;
        let admitted = match full {
            true => Err(Refusal::RetryLater { after_ms: 100, why: "too many pulls".to_owned() }),
            false => machine.admit_pull(&request),
        };
        let is_here = match admitted {
            Ok(is_here) => is_here,
            Err(refusal) => return self.answer(no, id, Answer::Refused(refusal)),
        };
        let (machine, next) = Pull::start(request.clone(), is_here);
        let pulls = &mut self.hosts[no.0].pulls;
        pulls.count += 1;
        let pull = PullNo(pulls.count);
        let pulling =
            Pulling { machine, request, id, buffer: None, bytes: Vec::new(), attempt: 0, reads: false, copied: true };
        pulls.under_way.insert(pull, pulling);
        if self.fault_occurs(Fault::MessageLost, 100) {
            let (life, later) = (self.hosts[no.0].life, self.random.within(1, 300) * MS);
            self.queue.plan(later, Event::Pull(no, life, pull, PullEvent::CallerGone));
        }
        self.go_on(no, pull, next);
    }

    fn step_pull(&mut self, no: HostNo, pull: PullNo, input: Input) {
        let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
        let next = pulling.machine.step(input);
        self.go_on(no, pull, next);
    }

    fn go_on(&mut self, no: HostNo, pull: PullNo, next: Output) {
        match next {
            Output::Open(request) => self.ask_own_daemon(no, pull, Request::Open(request)),
            Output::Close(request) => self.ask_own_daemon(no, pull, Request::Close(request)),
            Output::Copy(source, way) => {
                let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
                pulling.attempt += 1;
                (pulling.reads, pulling.copied) = (false, false);
                let (attempt, segment) = (pulling.attempt, pulling.request.identity.segment);
                let how = match way {
                    Way::Memory => "out of its memory",
                    Way::Fetch => "by a fetch",
                    Way::CheckedFetch => "by a checked fetch",
                };
                trace!(self, "{} pulls segment {segment} from {}, {how}", self.hosts[no.0].name, source.member);
                let (life, from) = (self.hosts[no.0].life, self.host_of(&source.member));
                let delay = self.message_delay();
                self.queue.plan(delay, Event::Pull(no, life, pull, PullEvent::Ask(attempt, from, way)));
                self.queue.plan(SOURCE_SILENCE, Event::Pull(no, life, pull, PullEvent::Late(attempt)));
            }
            Output::End(result) => self.end_pull(no, pull, result),
        }
    }

    /// Takes a pull that has ended off the list, and gives its buffer up unless that is `kept`.
    fn take_pull(&mut self, no: HostNo, pull: PullNo, kept: bool) -> Option<Pulling> {
        let pulling = self.hosts[no.0].pulls.under_way.remove(&pull)?;
        let filled = self.hosts[no.0].pulls.filled.extract_if(.., |_, by| *by == pull).map(|(slot, _)| slot);
        let given_up: Vec<Slot> = filled.filter(|_| !kept).collect();
        for slot in given_up {
            self.step_host(no, backup::Input::GivenUp(slot));
            self.wake_host(no);
        }
        Some(pulling)
    }

    fn end_pull(&mut self, no: HostNo, pull: PullNo, result: Result<(), Refusal>) {
        let Some(pulling) = self.take_pull(no, pull, result.is_ok()) else { return };
        let (name, segment) = (&self.hosts[no.0].name, pulling.request.identity.segment);
        let answer = match result {
            Ok(()) => {
                let closure = pulling.request.closure;
                self.judge_pull(no, &pulling.request.identity);
                trace!(self, "{name} has pulled segment {segment}, {}", records(closure.first, closure.last));
                self.tally.pulls += 1;
                Answer::Done
            }
            Err(refusal) => {
                trace!(self, "{name} has not pulled segment {segment}: {refusal}");
                self.tally.pulls_failed += 1;
                Answer::Refused(refusal)
            }
        };
        self.answer(no, pulling.id, answer);
    }

    fn ask_own_daemon(&mut self, no: HostNo, pull: PullNo, request: Request) {
        let id = self.ask_daemon(no, request);
        self.hosts[no.0].pulls.asked.insert(id, pull);
    }

    /// Behind what waits there already. The process looks at it once what it does now is done.
    fn ask_daemon(&mut self, no: HostNo, request: Request) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        let life = self.hosts[no.0].life;
        self.queue.plan(1, Event::Host(no, life, HostEvent::Asked(id, request)));
        id
    }

    /// A close of a pull is left out if somebody else has filled its buffer since; then the pull ends.
    pub(super) fn is_filled_by_others(&mut self, no: HostNo, id: RequestId, request: &Request) -> bool {
        let pulls = &self.hosts[no.0].pulls;
        let (Some(pull), Request::Close(request)) = (pulls.asked.get(&id).copied(), request) else { return false };
        let Some(buffer) = pulls.under_way.get(&pull).map(|pulling| pulling.buffer) else { return true };
        let over = buffer.is_some_and(|(slot, _)| pulls.filled.get(&slot) != Some(&pull));
        if over {
            self.hosts[no.0].pulls.asked.remove(&id);
            self.step_pull(no, pull, Input::Closed(Err(filled_by_others(request.identity.segment))));
        }
        over
    }

    /// Whoever has opened a slot's lending fills it from now on; false for a pull, if the caller may be filling it.
    pub(super) fn takes_slot(&mut self, no: HostNo, id: RequestId, slot: Slot) -> bool {
        let pulls = &mut self.hosts[no.0].pulls;
        pulls.filled.remove(&slot);
        match pulls.asked.get(&id) {
            None => drop(pulls.granted.insert(slot)),
            Some(_) if pulls.granted.contains(&slot) => return false,
            Some(pull) => drop(pulls.filled.insert(slot, *pull)),
        }
        true
    }

    /// True if the answer was for a pull: of this process, or of another one that has fetched here.
    pub(super) fn on_answer_to_pull(&mut self, by: HostNo, id: RequestId, answer: &Answer) -> bool {
        if let Some(pull) = self.hosts[by.0].pulls.asked.remove(&id) {
            self.on_own_answer(by, pull, answer);
            return true;
        }
        let Some(Served { to, life, pull, attempt, .. }) = self.hosts[by.0].pulls.served.remove(&id) else {
            return false;
        };
        let bytes = match answer {
            Answer::Bytes(bytes) => Ok(bytes.clone()),
            Answer::Refused(refusal) => Err(refusal.to_string()),
            other => Err(format!("it answers {other:?}")),
        };
        if !self.cuts.are_backups_apart(by, to) {
            let delay = self.message_delay();
            self.queue.plan(delay, Event::Pull(to, life, pull, PullEvent::Bytes(attempt, bytes)));
        }
        true
    }

    fn on_own_answer(&mut self, no: HostNo, pull: PullNo, answer: &Answer) {
        let input = match answer {
            Answer::Granted(slot, key, _) => {
                let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
                pulling.buffer = Some((*slot, *key));
                Input::Opened(Ok(()))
            }
            Answer::Done => {
                if let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) {
                    pulling.buffer = None;
                }
                Input::Closed(Ok(()))
            }
            Answer::Refused(refusal) => {
                let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
                // What was opened is asked to be closed next.
                match pulling.buffer.take() {
                    Some(_) if pulling.copied => Input::Closed(Err(refusal.clone())),
                    _ => Input::Opened(Err(refusal.clone())),
                }
            }
            other => unreachable!("{other:?} to an open or a close"),
        };
        self.step_pull(no, pull, input);
    }

    pub(crate) fn on_pull_event(&mut self, no: HostNo, life: u32, pull: PullNo, event: PullEvent) {
        let host = &mut self.hosts[no.0];
        if host.life != life || !host.is_up() {
            return;
        }
        if host.running == Running::Frozen && !matches!(event, PullEvent::Ask(..)) {
            return self.queue.plan(THAW, Event::Pull(no, life, pull, event));
        }
        let current = |pulling: &&mut Pulling| match event.attempt() {
            Some(attempt) => pulling.attempt == attempt && !pulling.copied,
            None => true,
        };
        let Some(pulling) = host.pulls.under_way.get_mut(&pull).filter(current) else { return };
        match event {
            PullEvent::Ask(attempt, source, way) => self.ask_source(no, pull, attempt, source, way),
            PullEvent::Bytes(attempt, Ok(bytes)) => {
                pulling.bytes = bytes;
                self.write_piece(no, pull, attempt, 0);
            }
            PullEvent::Bytes(_, Err(why)) => self.copied(no, pull, Err(why)),
            PullEvent::Write(attempt, at) => self.write_piece(no, pull, attempt, at),
            PullEvent::CallerGone => {
                let segment = pulling.request.identity.segment;
                trace!(self, "{}: nobody waits for segment {segment} any more", self.hosts[no.0].name);
                self.take_pull(no, pull, false);
            }
            PullEvent::Late(_) if pulling.reads => self.copied(no, pull, Err("no read in time".to_owned())),
            PullEvent::Late(_) => self.end_copy(no, pull, Err(CopyError::Silent("no answer in time".to_owned()))),
        }
    }

    fn copied(&mut self, no: HostNo, pull: PullNo, result: Result<(), String>) {
        self.end_copy(no, pull, result.map_err(CopyError::Failed));
    }

    fn end_copy(&mut self, no: HostNo, pull: PullNo, result: Result<(), CopyError>) {
        let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
        (pulling.copied, pulling.bytes) = (true, Vec::new());
        self.step_pull(no, pull, Input::Copied(result));
    }

    fn ask_source(&mut self, no: HostNo, pull: PullNo, attempt: u32, source: HostNo, way: Way) {
        let (life, running) = (self.hosts[no.0].life, self.hosts[source.0].running);
        if self.cuts.are_backups_apart(no, source) || matches!(running, Running::Off | Running::Frozen) {
            return;
        }
        let Some(pulling) = self.hosts[no.0].pulls.under_way.get_mut(&pull) else { return };
        pulling.reads = way == Way::Memory;
        let PullRequest { identity, closure, .. } = pulling.request;
        let Some(machine) = self.hosts[source.0].machine() else {
            return self.copied(no, pull, Err("nobody listens there".to_owned()));
        };
        if way != Way::Memory {
            self.rot_before_pull(source, identity.segment);
            let check = way == Way::CheckedFetch;
            let fetch = FetchRequest { group: group(), identity, closure, check, range: None };
            let id = self.ask_daemon(source, Request::Fetch(fetch));
            self.hosts[source.0].pulls.served.insert(id, Served { to: no, life, pull, attempt, check });
            return;
        }
        let shared = machine.shareable(&[identity.segment]).unwrap_or_default().pop();
        match shared.filter(|(_, found, end)| (*found, *end) == (identity, Some(closure))) {
            Some((slot, ..)) => {
                self.tally.from_residents += u64::from(self.hosts[source.0].residents.contains_key(&slot));
                let share = self.share_memory(source, slot);
                let reader = ReadFor::Pull(no, life, pull, attempt);
                self.begin_read(source, slot, share, 0..closure.end.0, reader);
            }
            None => self.copied(no, pull, Err("not in memory".to_owned())),
        }
    }

    fn write_piece(&mut self, no: HostNo, pull: PullNo, attempt: u32, at: usize) {
        let host = &mut self.hosts[no.0];
        let Some(pulling) = host.pulls.under_way.get(&pull) else { return };
        let lent = |(slot, key): &(Slot, Key)| {
            host.pulls.filled.get(slot) == Some(&pull)
                && host.lendings.get(slot).is_some_and(|lending| lending.key == *key)
        };
        let Some((slot, key)) = pulling.buffer.filter(lent) else {
            return self.copied(no, pull, Err("the lending is over".to_owned()));
        };
        let end = pulling.bytes.len().min(at + PIECE);
        let (piece, epoch) = (pulling.bytes[at..end].to_vec(), pulling.request.caller.epoch);
        let whole = end == pulling.bytes.len();
        self.checks.lands(host, slot, key, epoch);
        host.write(slot, at, &piece);
        let life = host.life;
        match whole {
            true => self.copied(no, pull, Ok(())),
            false => {
                let pause = self.random.within(1, 2 * MS);
                self.queue.plan(pause, Event::Pull(no, life, pull, PullEvent::Write(attempt, end)));
            }
        }
    }
}
