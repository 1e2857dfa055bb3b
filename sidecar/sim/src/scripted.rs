//! A group that moves only on command: what golden scripts drive.
//!
//! The world of the simulator without its faults. Requests, calls to the config store, writes and flushes wait until a
//! command moves them; what follows from them at once happens with them. [`ScriptedGroup::settle`] moves everything, and
//! [`ScriptedGroup::wait`] lets time pass. The checkers judge every step, and after every command what each member holds. Names:
//! `m1`, `m2`, … are backups, `s1`, `s2`, … are sidecars.

mod table;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::rc::Rc;

use tailwind_protocol::backup::{Input, Request};
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::primary;

use crate::plan::Shape;
use crate::trace::{self, names, trace};
use crate::world::fabric::{ChannelId, LINE};
use crate::world::host::HostEvent;
use crate::world::network::{Ask, Envelope};
use crate::world::queue::{MS, Micros};
use crate::world::sidecar::{Process, Role};
use crate::world::{Event, HostNo, SidecarNo, World};

/// What happens within this time happens at once. Longer than the time between two ticks of a sidecar, and than all that
/// a process does for one request; shorter than every pause before something is tried again.
const ROUND: Micros = 12 * MS;
/// Rounds after which a world that still moves is taken to be running in circles.
const ROUNDS_MAX: u32 = 2000;

/// A group, and what was sent to its backups.
#[derive(Debug)]
pub struct ScriptedGroup {
    world: World,
    sent: Vec<Envelope>,
}

/// What a backup has lost when it starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its memory and its disk are as they were.
    Nothing,
    /// The host lost power.
    Memory,
    /// Another host, another disk.
    All,
}

/// How much of a write lands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tear {
    /// All of it, and the sender learns of it.
    Whole,
    /// All of it; the completion is still on its way.
    Unseen,
    /// The card has all of it, and the sender learns of it; the host's processor does not see it yet.
    Early,
    /// The first bytes.
    Bytes(u32),
    /// These 64-byte lines of it.
    Lines(Vec<u32>),
}

/// How the config store treats its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// It answers.
    Well,
    /// It neither does nor says anything.
    Down,
    /// It does what is asked, and the answer gets lost.
    Mute,
    /// Another store is there in its place, and empty.
    Empty,
}

/// Fails where a command makes no sense, such as an unknown name.
type Result<T = ()> = std::result::Result<T, String>;

impl ScriptedGroup {
    /// A group of this shape. Backups are up, sidecars stand by.
    pub fn new(shape: Shape) -> ScriptedGroup {
        ScriptedGroup { world: World::still(shape), sent: Vec::new() }
    }

    /// What happened since the last call, line by line. Panics where a member of the set does not hold what it should.
    pub fn story(&mut self) -> String {
        self.world.judge_members();
        self.world.trace.take()
    }

    /// A standby becomes a candidate.
    pub fn promote(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        if !matches!(self.world.sidecars[no.0].role, Role::Resting(_)) {
            return Err(format!("{sidecar} is no standby"));
        }
        self.trace(format!("{sidecar} is a candidate"));
        self.world.become_candidate(no);
        self.run_consequences();
        Ok(())
    }

    /// A sidecar judges its primary as it does where nobody tells it what to do.
    pub fn stand_by(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        self.trace(format!("{sidecar} stands by"));
        self.world.stand_by(no);
        self.run_consequences();
        Ok(())
    }

    /// Moves everything until all is quiet, but for the writes of sidecars that are stopped: these lie in the fabric.
    pub fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if !self.play(ROUND) {
                return;
            }
        }
        panic!("the world runs in circles:\n{}", self.world.trace.take());
    }

    /// So many milliseconds pass, and everything moves.
    pub fn wait(&mut self, ms: u64) {
        self.play(ms * MS);
        self.settle();
    }

    /// The same where it is never quiet: somebody listens to heartbeats.
    pub fn run_for(&mut self, ms: u64) {
        self.play(ms * MS);
    }

    /// So many milliseconds pass, and what waits for commands still waits.
    pub fn tick(&mut self, ms: u64) {
        let end = self.world.queue.now() + ms * MS;
        self.play_until(end, |event| !waits(event));
    }

    /// An app appends these payloads as one batch.
    pub fn append(&mut self, sidecar: &str, payloads: Vec<Vec<u8>>) -> Result {
        let no = self.sidecar(sidecar)?;
        if self.world.sidecars[no.0].lead().is_none() {
            self.trace(format!("{sidecar} refuses: not primary"));
            return Ok(());
        }
        let batch = payloads.into_iter().map(Rc::from).collect();
        match self.world.sidecars[no.0].process {
            Process::Up => self.world.with_lead(no, |_, lead| lead.backlog.push_back(batch)),
            _ => return Err(format!("{sidecar} is not running")),
        }
        self.run_consequences();
        Ok(())
    }

    /// Lands writes on their way to these backups, or to all; at each so many at most, the oldest first, but for so many still
    /// older ones: memory knows no order, only completions do.
    pub fn deliver(&mut self, from: Option<&str>, to: &[&str], tear: &Tear, count: usize, older: usize) -> Result {
        let from = from.map(|name| self.sidecar(name)).transpose()?;
        let to = to.iter().map(|name| self.host(name)).collect::<Result<Vec<_>>>()?;
        for host in (0..self.world.hosts.len()).map(HostNo).filter(|no| to.is_empty() || to.contains(no)) {
            for sidecar in (0..self.world.sidecars.len()).map(SidecarNo) {
                if from.is_none_or(|from| from == sidecar) {
                    self.deliver_between(sidecar, host, tear, count, older);
                }
            }
        }
        Ok(())
    }

    fn deliver_between(&mut self, from: SidecarNo, to: HostNo, tear: &Tear, count: usize, older: usize) {
        let mut done = BTreeSet::new();
        for _ in 0..count {
            let completes = matches!(tear, Tear::Whole | Tear::Early);
            let writes = self.world.in_flight(from, to).into_iter();
            let wanted = |(channel, number, placed): &(ChannelId, u64, bool)| {
                !done.contains(&(*channel, *number)) && (completes || !placed)
            };
            let Some((channel, number, _)) = writes.filter(wanted).nth(older) else { return };
            done.insert((channel, number));
            match tear {
                Tear::Whole => {
                    self.land_write(channel, number);
                    self.arrive(channel, number);
                }
                Tear::Unseen => self.land_write(channel, number),
                Tear::Early => self.arrive(channel, number),
                Tear::Bytes(end) => self.world.place_piece(channel, number, 0..*end),
                Tear::Lines(lines) => {
                    for line in lines {
                        self.world.place_piece(channel, number, line * LINE..(line + 1) * LINE);
                    }
                }
            }
            self.run_consequences();
        }
    }

    fn land_write(&mut self, channel: ChannelId, number: u64) {
        self.happens(|event| matches!(event, Event::Land(of, nth, _) if (*of, *nth) == (channel, number)));
    }

    fn arrive(&mut self, channel: ChannelId, number: u64) {
        self.happens(|event| matches!(event, Event::Arrive(of, nth) if (*of, *nth) == (channel, number)));
    }

    /// What this backup's card has taken becomes visible to its processor.
    pub fn show(&mut self, backup: &str) -> Result {
        let no = self.host(backup)?;
        for sidecar in (0..self.world.sidecars.len()).map(SidecarNo) {
            for (channel, number) in self.world.unplaced(sidecar, no) {
                self.land_write(channel, number);
            }
        }
        Ok(())
    }

    /// So many requests at most reach this backup, or any; the oldest first.
    pub fn messages(&mut self, to: Option<&str>, count: usize) -> Result {
        let to = to.map(|name| self.host(name)).transpose()?;
        for _ in 0..count {
            if !self.happens(|event| is_request(event, to)) {
                break;
            }
            self.run_consequences();
        }
        Ok(())
    }

    /// The oldest request to this backup gets lost, or the answer to it.
    pub fn lose(&mut self, to: &str, answer: bool) -> Result {
        let no = self.host(to)?;
        let lost = self.world.queue.take(|event| is_request(event, Some(no)));
        let Some(Event::Request(envelope)) = lost else { return Err("nothing is on its way".to_owned()) };
        let what = format!("{}{}", if answer { "answer to the " } else { "" }, request_name(&envelope.request));
        self.trace(format!("the {what} to {to} is lost"));
        self.sent.push((*envelope).clone());
        if answer {
            self.world.on_request(envelope.unanswered());
            self.run_consequences();
        }
        Ok(())
    }

    /// A request of this name that was sent to a backup arrives once more, the last one or an earlier one. Nobody waits for
    /// the answer.
    pub fn repeat(&mut self, to: &str, name: &str, nth: usize) -> Result {
        let no = self.host(to)?;
        let same = |envelope: &&Envelope| envelope.to == no && request_name(&envelope.request) == name;
        let again = self.sent.iter().filter(same).nth_back(nth).cloned();
        let again = again.ok_or_else(|| format!("no {name} was sent to {to}"))?;
        self.world.on_request(again.unanswered());
        self.run_consequences();
        Ok(())
    }

    /// So many steps of pulls at most are taken, the first ones due: a question reaches a source, bytes come, a piece is written.
    pub fn pull(&mut self, count: usize) {
        for _ in 0..count {
            if !self.happens(|event| matches!(event, Event::Pull(..))) {
                break;
            }
            self.run_consequences();
        }
    }

    /// The oldest call to the config store is carried out.
    pub fn call(&mut self) {
        self.happens(|event| matches!(event, Event::Store(_)));
        self.run_consequences();
    }

    /// Backups flush until they have nothing to flush.
    pub fn flush(&mut self) {
        while self.happens(|event| matches!(event, Event::Host(_, _, HostEvent::Flushed))) {
            self.run_consequences();
        }
    }

    /// From now on the config store treats its callers like this.
    pub fn store(&mut self, mood: StoreState) {
        let store = &mut self.world.store;
        (store.down, store.mute) = (mood == StoreState::Down, mood == StoreState::Mute);
        if mood == StoreState::Empty {
            store.replaced = store.history.len();
        }
    }

    /// A sidecar's process dies, and all that it had on its way with it; or a backup's, perhaps only after so many outputs.
    pub fn crash(&mut self, name: &str, after: Option<u32>) -> Result {
        match self.sidecar(name) {
            Ok(no) => {
                self.world.kill_sidecar(no);
                self.world.queue.forget(|event| match event {
                    Event::Request(envelope) => envelope.from == no,
                    Event::Store(call) => call.from == no,
                    _ => false,
                });
            }
            Err(_) => {
                let no = self.host(name)?;
                match after {
                    Some(outputs) => self.world.hosts[no.0].fuse = Some(outputs),
                    None => {
                        self.trace(format!("{name} dies"));
                        self.world.kill_host(no);
                    }
                }
            }
        }
        Ok(())
    }

    /// A process starts again.
    pub fn restart(&mut self, name: &str, loss: Loss) -> Result {
        if let Ok(no) = self.sidecar(name) {
            self.world.start_sidecar(no);
            return Ok(());
        }
        let no = self.host(name)?;
        match loss {
            Loss::Nothing => self.world.kill_host(no),
            Loss::Memory => self.world.cut_power(no),
            Loss::All => self.world.replace_host(no),
        }
        self.world.start_host(no);
        self.run_consequences();
        Ok(())
    }

    /// A sidecar is stopped in mid-air.
    pub fn pause(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        self.world.sidecars[no.0].process = Process::Frozen;
        Ok(())
    }

    /// It goes on with what has come in meanwhile.
    pub fn resume(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        self.world.resume_sidecar(no);
        Ok(())
    }

    /// Nothing passes between a sidecar and a backup.
    pub fn cut(&mut self, sidecar: &str, backup: &str) -> Result {
        let (sidecar, host) = (self.sidecar(sidecar)?, self.host(backup)?);
        self.world.cut(sidecar, host, true, true);
        Ok(())
    }

    /// Nothing passes between two backups.
    pub fn cut_backups(&mut self, one: &str, other: &str) -> Result {
        let (one, other) = (self.host(one)?, self.host(other)?);
        self.world.cut_backups(one, other);
        Ok(())
    }

    /// All links are whole again.
    pub fn heal(&mut self) {
        self.world.cuts.clear();
    }

    /// A backup reads all its closed copies.
    pub fn scrub(&mut self, backup: &str) -> Result {
        let no = self.host(backup)?;
        self.world.scrub_all(no);
        self.run_consequences();
        Ok(())
    }

    /// A bit flips in this byte of a segment.
    pub fn flip(&mut self, backup: &str, segment: u64, at: usize) -> Result {
        let no = self.host(backup)?;
        let place = self.world.flip(no, SegmentId(segment), at);
        let place = place.ok_or_else(|| format!("{backup} does not have segment {segment}"))?;
        self.trace(format!("a bit flips in {place} of {backup}, segment {segment}, byte {at}"));
        Ok(())
    }

    /// A backup's disk has no room, or has again.
    pub fn disk(&mut self, backup: &str, full: bool) -> Result {
        let no = self.host(backup)?;
        self.world.hosts[no.0].files.set_full(full);
        Ok(())
    }

    /// A backup's pool has no memory to lend, or has again.
    pub fn pool(&mut self, backup: &str, empty: bool) -> Result {
        let no = self.host(backup)?;
        self.world.hosts[no.0].pool_empty = empty;
        Ok(())
    }

    /// A backup is told to end.
    pub fn shut_down(&mut self, backup: &str) -> Result {
        let no = self.host(backup)?;
        self.world.notify_host(no, Input::Shutdown);
        self.run_consequences();
        Ok(())
    }

    /// An app needs its records below this one no longer.
    pub fn trim(&mut self, sidecar: &str, below: u64) -> Result {
        let no = self.sidecar(sidecar)?;
        self.world.primary_input(no, primary::Input::Trim(Lsn(below)));
        let first = self.world.sidecars[no.0].lead().map(|lead| lead.machine().first_readable());
        let first = first.ok_or_else(|| format!("{sidecar} is not primary"))?;
        self.world.checks.trimmed(first);
        self.trace(format!("{sidecar}: the first record that can be read is {first}"));
        Ok(())
    }

    /// An app wants everything that it has appended on disk at every member.
    pub fn sync(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        let (mut asked, now) = (false, self.world.queue.now());
        self.world.with_lead(no, |_, lead| asked = lead.sync(now));
        self.run_consequences();
        if asked { Ok(()) } else { Err(format!("{sidecar} has not begun to append")) }
    }

    /// A person orders that the log is recovered from disks.
    pub fn recover_from_disk(&mut self) {
        self.world.order_recovery_from_disk();
    }

    /// Tells what a backup holds.
    pub fn inventory(&mut self, backup: &str) -> Result {
        let no = self.host(backup)?;
        let machine = self.world.hosts[no.0].machine();
        let held = machine.map_or_else(|| "is down".to_owned(), |machine| trace::inventory(&machine.inventory()));
        self.trace(format!("{backup} {held}"));
        Ok(())
    }

    /// Tells what a sidecar is, and of a primary how far it is.
    pub fn status(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        let status = match (&self.world.sidecars[no.0].role, self.world.sidecars[no.0].process) {
            (_, Process::Down) => format!("{sidecar} is down"),
            (Role::Primary(lead), _) => {
                let (p, config) = (lead.machine().positions(), lead.machine().config());
                let set = names(config.members.iter().map(|member| &member.id));
                format!(
                    "{sidecar}: epoch {}, version {}, set {set}; flushed {} ≤ acked {} ≤ completed {} ≤ posted {} ≤ appended {}",
                    config.epoch, config.version, p.flushed, p.acked, p.completed, p.posted, p.appended
                )
            }
            (Role::Candidate(_), _) => format!("{sidecar} is candidate"),
            _ => format!("{sidecar} is standby"),
        };
        self.trace(status);
        Ok(())
    }

    /// Tells every record that was acknowledged or read so far, and not trimmed.
    pub fn read(&mut self) {
        let record = |lsn: Lsn, payload: &[u8]| {
            let text = String::from_utf8_lossy(payload);
            let short = text.trim_end_matches('.');
            match payload.len() - short.len() {
                0 => format!("{lsn} {short:?}"),
                _ => format!("{lsn} {short:?} ({} bytes)", payload.len()),
            }
        };
        let owed: Vec<String> = self.world.checks.owed().map(|owed| record(owed.lsn, &owed.payload)).collect();
        self.trace(if owed.is_empty() { "nothing".to_owned() } else { owed.join(", ") });
    }

    /// An app reads all that it has not read yet, through its sidecar, and everything moves.
    pub fn read_back(&mut self, sidecar: &str) -> Result {
        let no = self.sidecar(sidecar)?;
        let first = self.world.sidecars[no.0].app.next_read;
        while !self.world.sidecars[no.0].app.has_read_all() {
            let next = self.world.sidecars[no.0].app.next_read;
            self.world.read(no);
            self.settle();
            if self.world.sidecars[no.0].app.next_read == next {
                break;
            }
        }
        let read = self.world.sidecars[no.0].app.next_read;
        self.trace(format!("{sidecar} gives its app {}", trace::records(first, Lsn(read.0.saturating_sub(1)))));
        Ok(())
    }

    /// What follows at once from what has just happened, but for what waits for commands.
    fn run_consequences(&mut self) {
        let follows = |event: &Event| !waits(event) && !ticks(event);
        while self.world.queue.due(follows).is_some_and(|due| due <= self.world.queue.now() + ROUND) {
            self.happens(follows);
        }
    }

    /// The first such event happens; false when there is none.
    fn happens(&mut self, wanted: impl Fn(&Event) -> bool) -> bool {
        let event = self.world.queue.take(wanted);
        event.map(|event| self.run(event)).is_some()
    }

    fn run(&mut self, event: Event) {
        if let Event::Request(envelope) = &event {
            self.sent.push((**envelope).clone());
        }
        self.world.happens(event);
    }

    /// Plays for so long; true if more happened than ticks.
    fn play(&mut self, time: Micros) -> bool {
        let stopped = self.world.sidecars.iter().filter(|sidecar| sidecar.process == Process::Frozen);
        let lying: Vec<ChannelId> = stopped.flat_map(|sidecar| self.world.fabric.channels_of(sidecar.no)).collect();
        let moves = |event: &Event| match event {
            Event::Land(channel, ..) | Event::Arrive(channel, _) => !lying.contains(channel),
            _ => true,
        };
        self.play_until(self.world.queue.now() + time, moves)
    }

    /// Plays all such events until this moment; true if more happened than ticks.
    fn play_until(&mut self, end: Micros, wanted: impl Fn(&Event) -> bool) -> bool {
        let mut moved = false;
        while self.world.queue.due(&wanted).is_some_and(|due| due <= end) {
            let Some(event) = self.world.queue.take(&wanted) else { break };
            moved |= !ticks(&event);
            self.run(event);
        }
        self.world.queue.pass_to(end);
        moved
    }

    fn trace(&mut self, what: impl Display) {
        let world = &mut self.world;
        trace!(world, "{what}");
    }

    fn sidecar(&self, name: &str) -> Result<SidecarNo> {
        let found = self.world.sidecars.iter().find(|sidecar| sidecar.name.as_str() == name).map(|sidecar| sidecar.no);
        found.ok_or_else(|| format!("no sidecar {name}"))
    }

    fn host(&self, name: &str) -> Result<HostNo> {
        let found = self.world.hosts.iter().find(|host| host.name.as_str() == name).map(|host| host.no);
        found.ok_or_else(|| format!("no backup {name}"))
    }
}

/// True for what a command moves.
fn waits(event: &Event) -> bool {
    matches!(
        event,
        Event::Request(_)
            | Event::Store(_)
            | Event::Land(..)
            | Event::Arrive(..)
            | Event::Pull(..)
            | Event::Host(_, _, HostEvent::Flushed)
    )
}

/// True for what happens all the time.
fn ticks(event: &Event) -> bool {
    matches!(event, Event::HostTick(_) | Event::SidecarTick(_))
}

fn is_request(event: &Event, to: Option<HostNo>) -> bool {
    matches!(event, Event::Request(envelope) if to.is_none_or(|to| to == envelope.to))
}

/// The name of a request, as scripts say it.
fn request_name(request: &Ask) -> &'static str {
    let request = match request {
        Ask::Machine(request) => request,
        Ask::Pull(_) => return "pull",
    };
    match request {
        Request::Fence(_) => "fence",
        Request::Inventory(_) => "inventory",
        Request::Damage => "damage",
        Request::Connect(_) => "connect",
        Request::Open(_) => "open",
        Request::Close(_) => "close",
        Request::Flush(_) => "flush",
        Request::Sync(_) => "sync",
        Request::Fetch(_) => "fetch",
        Request::Trim(_) => "trim",
        Request::Drop(_) => "drop",
    }
}
