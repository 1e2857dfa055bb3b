//! Gets off the primary: carries out what a [`Getter`] wants. Part of [`AppendLoop`](super::AppendLoop), called by `gets` and in
//! each turn.
//!
//! The getter's reads are posted and polled here, in `reads`, since its `clients` are here. What may wait is
//! [control's](crate::control): it opens channels, has segments shared, fetches closed ones, and asks for positions (`outputs`,
//! `messages`). A getter that nobody has asked for [`IDLE_AFTER`] visits nobody, and so does one whose sidecar is primary.

mod clients;
mod messages;
mod outputs;
mod reads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwind_protocol::config::Configuration;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::table::getter::{Answer, ConnectionId, GETS_MAX, Get, GetId, Getter, Input, Output};
use tailwind_protocol::table::record::Key;
use tokio::sync::mpsc;

use super::messages::{ClientId, ClientRequest, Counters};
use super::slots::ClientSlots;
use clients::Asked;
pub use messages::{Brought, GetterRequest, Wish};
use outputs::close;
use reads::{Found, Landed, Reads};
pub use reads::{LANDING, MirrorMemory};

/// So long after its last get a getter goes on looking at its member, for the next one.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// How often in a turn is looked at what has landed: over `shm` that is a look, two buckets and a record.
const ROUNDS_MAX: usize = 4;

/// The getter of a table, and what it is at.
pub(super) struct Getting {
    machine: Getter,
    /// The gets that wait, by their numbers.
    gets: BTreeMap<GetId, Asked>,
    last: u64,
    /// Of these, the ones that the machine does not know yet.
    arrived: Vec<GetId>,
    /// Connections that have ended since.
    gone: Vec<ClientId>,
    visiting: Option<Visiting>,
    /// When the last get came. `None`: nobody is visited.
    used: Option<Duration>,
    /// What waits for a share, or for a place to land.
    deferred: Vec<Output>,
    outputs: Vec<Output>,
    landed: Vec<Landed>,
    configuration: Option<Arc<Configuration>>,
}

/// The visit that is under way. Control ends it when this is dropped.
struct Visiting {
    visit: Visit,
    wishes: mpsc::Sender<Wish>,
    /// Once it is connected.
    reads: Option<Reads>,
}

/// What a step of the getter needs of the path.
pub(super) struct Surroundings<'a> {
    /// By the path's clock, which began then.
    pub(super) now: Duration,
    pub(super) started: Instant,
    pub(super) clients: &'a mut ClientSlots,
    pub(super) counters: &'a Counters,
    pub(super) control: &'a mpsc::Sender<ClientRequest>,
}

impl Getting {
    /// A getter that has been asked nothing. `turn`: which member it visits first.
    pub(super) fn new(turn: usize) -> Getting {
        Getting {
            machine: Getter::new(turn, Visit(0)),
            gets: BTreeMap::new(),
            last: 0,
            arrived: Vec::new(),
            gone: Vec::new(),
            visiting: None,
            used: None,
            deferred: Vec::new(),
            outputs: Vec::new(),
            landed: Vec::new(),
            configuration: None,
        }
    }

    /// What the config store has shown last.
    pub(super) fn configuration(&self) -> Option<&Arc<Configuration>> {
        self.configuration.as_ref()
    }

    /// The latest epoch of which anything may have been shown.
    pub(super) fn epoch(&self) -> Epoch {
        self.machine.epoch()
    }

    /// One more get may be taken.
    pub(super) fn may_take(&self) -> bool {
        self.machine.may_take() && self.machine.len() + self.arrived.len() < GETS_MAX
    }

    /// Takes a get, for the next turn of this.
    fn take(&mut self, asked: Asked) {
        self.last += 1;
        let id = GetId(self.last);
        self.gets.insert(id, asked);
        self.arrived.push(id);
    }

    /// This connection has ended, or is told nothing more: its gets that wait are returned.
    fn gone(&mut self, client: ClientId) -> Vec<Asked> {
        self.gone.push(client);
        self.gets.extract_if(.., |_, asked| asked.get.client == client).map(|(_, asked)| asked).collect()
    }

    /// Takes the gets that wait, in the order in which they came: somebody else answers them.
    fn give_up(&mut self) -> impl Iterator<Item = Asked> + use<> {
        self.arrived.clear();
        std::mem::take(&mut self.gets).into_values()
    }

    /// Nobody is visited until the next get comes.
    pub(super) fn rest(&mut self, around: &mut Surroundings<'_>) {
        self.used = None;
        if let Some(visit) = self.visiting.as_ref().map(|visiting| visiting.visit) {
            self.step(Input::Broken(visit, "nobody asks"), around);
        }
    }

    /// Before the path sleeps: true if there is something to do already.
    pub(super) fn arm(&mut self) -> bool {
        self.reads().is_some_and(Reads::arm)
    }

    /// When to turn next, by the path's clock.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        self.used.and_then(|_| self.machine.wake_at())
    }

    /// Takes what has come and what has landed. Returns true if there was anything that a get may wait for.
    pub(super) fn turn(&mut self, around: &mut Surroundings<'_>) -> bool {
        let waited = !self.gets.is_empty();
        let mut progress = !self.arrived.is_empty();
        for ClientId(client) in std::mem::take(&mut self.gone) {
            self.step(Input::Gone(ConnectionId(client)), around);
        }
        for id in std::mem::take(&mut self.arrived) {
            self.begin(id, around);
        }
        for _ in 0..ROUNDS_MAX {
            match self.take_landed(around) {
                true => progress = true,
                false => break,
            }
        }
        if self.wake_at().is_some_and(|at| at <= around.now) {
            progress = true;
            self.step(Input::Tick, around);
        }
        if self.used.is_some_and(|used| used + IDLE_AFTER <= around.now) && self.machine.is_empty() {
            self.rest(around);
        }
        waited && progress
    }

    /// True if there is nothing for a turn to do.
    pub(super) fn is_resting(&self) -> bool {
        self.used.is_none() && self.gone.is_empty() && self.arrived.is_empty()
    }

    fn begin(&mut self, id: GetId, around: &mut Surroundings<'_>) {
        let Some(asked) = self.gets.get(&id) else { return };
        let Some(client) = around.clients.get(asked.get.slot, asked.get.client) else { return };
        self.used = Some(around.now);
        let (key, floor) = (asked.key.clone(), client.outbox.shown.last);
        let get = Get {
            id,
            connection: ConnectionId(asked.get.client.0),
            key: Key::new(&key).expect("it was one when it came"),
            least: asked.least,
            floor,
            fresh: asked.fresh,
            older: asked.older,
            no_value: asked.no_value,
        };
        self.step(Input::Get(get), around);
    }

    /// Hands the machine what has landed. Returns false if nothing has.
    fn take_landed(&mut self, around: &mut Surroundings<'_>) -> bool {
        let Some(Visiting { visit, reads: Some(reads), .. }) = &mut self.visiting else { return false };
        if !reads.is_waiting() {
            return false;
        }
        let (visit, mut landed) = (*visit, std::mem::take(&mut self.landed));
        if let Err(error) = reads.poll(&mut landed) {
            self.broken(visit, &error, around);
            return true;
        }
        // Not before it was polled: a record counts from when its entry was asked for.
        around.now = around.started.elapsed();
        let some = !landed.is_empty();
        for landed in landed.drain(..) {
            // A step may have ended the visit.
            let Some(Visiting { visit: current, reads: Some(reads), .. }) = &mut self.visiting else { break };
            if *current != visit {
                break;
            }
            if let Landed::Look(_, range) = &landed {
                reads.look_ahead(range);
            }
            let answers = &mut Answers { gets: &mut self.gets, clients: around.clients, counters: around.counters };
            let channel = &reads.memory.channel;
            let input = match &landed {
                Landed::Look(posted, at) => Input::Looked(visit, *posted, channel.landed(at.clone())),
                Landed::Buckets(id, at, _) => Input::Buckets(visit, *id, channel.landed(at.clone())),
                Landed::Record(id, at) => Input::Record(visit, *id, Some(channel.landed(at.clone()))),
            };
            self.machine.step(around.now, input, &mut self.outputs, |id, answer| answers.give(id, &answer));
            // What it asks for now may have come with it.
            if let Landed::Buckets(id, _, Some(found)) = &landed
                && take_wanted(&mut self.outputs, visit, *id, found)
            {
                let input = Input::Record(visit, *id, Some(channel.landed(found.at.clone())));
                self.machine.step(around.now, input, &mut self.outputs, |id, answer| answers.give(id, &answer));
            }
        }
        self.landed = landed;
        // Only now: a read into a place overwrites what has landed there.
        self.carry_out(around);
        some
    }

    fn step(&mut self, input: Input<'_>, around: &mut Surroundings<'_>) {
        let answers = &mut Answers { gets: &mut self.gets, clients: around.clients, counters: around.counters };
        self.machine.step(around.now, input, &mut self.outputs, |id, answer| answers.give(id, &answer));
        self.carry_out(around);
    }

    /// Takes what control has brought.
    pub(super) fn take_brought(&mut self, brought: Brought, around: &mut Surroundings<'_>) {
        match brought {
            Brought::Config(config) => {
                let config: Arc<Configuration> = Arc::from(config);
                self.configuration = Some(Arc::clone(&config));
                self.step(Input::Config(&config), around);
            }
            Brought::Connected(visit, Ok(memory)) => match &mut self.visiting {
                Some(visiting) if visiting.visit == visit => {
                    visiting.reads = Some(Reads::new(*memory));
                    self.step(Input::Connected(visit, Ok(())), around);
                }
                _ => close(memory, around),
            },
            Brought::Connected(visit, Err(why)) => self.step(Input::Connected(visit, Err(&why)), around),
            Brought::NoMemory(visit) => self.step(Input::NoMemory(visit), around),
            Brought::Shared(visit, asked, shared) => match (shared, self.reads_of(visit)) {
                (Ok(shared), Some(reads)) => {
                    reads.shared(&asked, shared, around.now);
                    self.carry_out(around);
                }
                (Err(why), _) => self.step(Input::Broken(visit, &why), around),
                (Ok(_), None) => {}
            },
            Brought::Fetched(visit, id, bytes) => {
                self.step(Input::Fetched(visit, id, bytes.as_deref().map_err(String::as_str)), around);
            }
            Brought::Told(question, position) => {
                self.step(Input::Told(question, position.as_ref().map(|lsn| *lsn).map_err(String::as_str)), around);
            }
            Brought::Broken(visit, why) => self.step(Input::Broken(visit, &why), around),
        }
    }

    fn reads(&mut self) -> Option<&mut Reads> {
        self.visiting.as_mut()?.reads.as_mut()
    }

    fn reads_of(&mut self, visit: Visit) -> Option<&mut Reads> {
        reads_of(&mut self.visiting, visit)
    }
}

/// Takes the wish for exactly this record out of the outputs, if it is there.
fn take_wanted(outputs: &mut Vec<Output>, visit: Visit, get: GetId, found: &Found) -> bool {
    let wanted = Output::Record(visit, get, found.segment, found.bytes.clone());
    let at = outputs.iter().position(|output| *output == wanted);
    at.map(|at| outputs.remove(at)).is_some()
}

fn reads_of(visiting: &mut Option<Visiting>, visit: Visit) -> Option<&mut Reads> {
    visiting.as_mut().filter(|visiting| visiting.visit == visit)?.reads.as_mut()
}

/// Gives clients their answers.
struct Answers<'a> {
    gets: &'a mut BTreeMap<GetId, Asked>,
    clients: &'a mut ClientSlots,
    counters: &'a Counters,
}

impl Answers<'_> {
    fn give(&mut self, id: GetId, answer: &Answer<'_>) {
        let Some(asked) = self.gets.remove(&id) else { return };
        self.counters.get_times.observe(Instant::now().saturating_duration_since(asked.came), 1);
        asked.get.settle(answer, self.clients, self.counters);
    }
}
