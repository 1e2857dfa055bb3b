//! The apps beside a sidecar that does not lead: which keys they get, on which connection, and what they are told.
//!
//! Part of [`getter`](super::getter).

use std::collections::BTreeMap;
use std::rc::Rc;

use tailwind_protocol::backup::Slot;
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::table::get;
use tailwind_protocol::table::getter::{Answer, ConnectionId, Get, GetId, Input, PATIENCE, RECORD_WITHIN};
use tailwind_protocol::table::record::{Key, Revision};

use super::getter::Elsewhere;
use super::lead::Lead;
use super::queue::{MS, Micros};
use super::sidecar::{Process, TICK};
use super::{HostNo, RETURN_MAX, SidecarNo, World};
use crate::check::{AskedElsewhere, Shown, ToldElsewhere, broken};
use crate::trace::trace;

/// Connections to each sidecar.
const CONNECTIONS: u64 = 2;
/// Once in so many ticks one of them ends while there are faults, and another begins.
const CONNECTION_ENDS: u64 = 200;
/// A sidecar's apps ask for keys in one tick of so many.
const ASKS_ONE_IN: u64 = 5;
/// Gets of one sidecar that wait, at most.
const GETS_MAX: usize = 24;
/// So many gets each getter answers once all is well.
const ANSWERS: u64 = 10;
/// A getter that is late by no more than this is on time: its thread is woken now and then only.
const LATE_MAX: Micros = 30 * MS;

/// The apps of one sidecar.
#[derive(Debug)]
pub(crate) struct Apps {
    connections: Vec<u64>,
    pub(super) asked: BTreeMap<GetId, Asked>,
    /// Gets that were answered with what their keys have.
    answered: u64,
}

/// A get that is not answered.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    get: AskedElsewhere,
    asked: Micros,
    /// When its entries were last asked for.
    entries: Micros,
    /// They have shown zeros where its key's entry was: that has rotted.
    zeros: bool,
}

/// What an app is told.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Shown(ToldElsewhere),
    Nothing(String),
}

impl Told {
    pub(super) fn of(answer: &Answer<'_>) -> Told {
        Told::Shown(match *answer {
            Answer::Value { revision, value, as_of, stale } => {
                let shown: Shown = (Revision::number(Some(revision)), Rc::from(value.as_bytes()));
                ToldElsewhere::Now { as_of, stale, shown: Some(shown) }
            }
            Answer::Absent { as_of, stale } => ToldElsewhere::Now { as_of, stale, shown: None },
            Answer::Older(value) => ToldElsewhere::Older(Rc::from(value.as_bytes())),
            Answer::Unavailable(why) => return Told::Nothing(why.to_owned()),
        })
    }
}

impl World {
    pub(super) fn new_apps(&mut self) -> Apps {
        let connections = (0..CONNECTIONS).map(|_| self.new_connection()).collect();
        Apps { connections, asked: BTreeMap::new(), answered: 0 }
    }

    fn new_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// The apps of a sidecar ask for some keys, or one of them ends.
    pub(super) fn ask_elsewhere(&mut self, of: SidecarNo) {
        if self.faults_on && self.random.one_in(CONNECTION_ENDS) {
            let ends = self.random.below(CONNECTIONS) as usize;
            self.end_connection(of, ends);
        }
        if self.load || !self.random.one_in(ASKS_ONE_IN) {
            return;
        }
        for _ in 0..self.random.within(1, 3) {
            self.ask_one(of);
        }
    }

    fn end_connection(&mut self, of: SidecarNo, ends: usize) {
        let new = self.new_connection();
        let Some(getting) = &mut self.sidecars[of.0].elsewhere else { return };
        let old = std::mem::replace(&mut getting.apps.connections[ends], new);
        getting.apps.asked.retain(|_, asked| asked.get.connection != old);
        self.checks.connection_ends(old);
        self.getter_input(of, Input::Gone(ConnectionId(old)));
    }

    /// What was shown to the apps is lost, with an excuse: they begin again.
    pub(super) fn end_connections(&mut self) {
        for of in (0..self.sidecars.len()).map(SidecarNo) {
            (0..CONNECTIONS as usize).for_each(|ends| self.end_connection(of, ends));
        }
    }

    fn ask_one(&mut self, of: SidecarNo) {
        let Some(plan) = self.plan.table.clone() else { return };
        let names = if self.random.one_in(3) { plan.names } else { plan.hot };
        let key: Rc<[u8]> = Rc::from(format!("key/{}", self.random.below(names)).into_bytes());
        let (fresh, older, no_value) = (self.random.one_in(4), self.random.one_in(4), self.random.one_in(6));
        let (ahead, some) = (self.random.below(8), self.random.below(CONNECTIONS) as usize);
        let reached = self.checks.table_reached();
        let followed = self.sidecars[of.0].follow.as_ref().map_or(Lsn(0), |follow| follow.shown());
        let floor = if self.random.one_in(4) { followed.min(reached) } else { Lsn(0) };
        // Of a record that was acknowledged a moment ago, or will be.
        let least = if ahead < 3 { Lsn(reached.0 + ahead) } else { Lsn(0) };
        let Some(getting) = self.sidecars[of.0].elsewhere.as_mut().filter(|own| own.apps.asked.len() < GETS_MAX) else {
            return;
        };
        self.gets += 1;
        let (id, connection) = (GetId(self.gets), getting.apps.connections[some]);
        let since = fresh.then_some(reached);
        let get = AskedElsewhere { key: Rc::clone(&key), connection, least: least.max(floor), since, older, no_value };
        let asked = self.queue.now();
        getting.apps.asked.insert(id, Asked { get, asked, entries: asked, zeros: false });
        let (key, connection) = (Key::new(&key).expect("a key"), ConnectionId(connection));
        self.getter_input(of, Input::Get(Get { id, connection, key, least, floor, fresh, older, no_value }));
    }

    /// The entries of a get are about to be read.
    pub(super) fn begin_to_read_entries(&mut self, of: SidecarNo, get: GetId) {
        let now = self.queue.now();
        let Some(getting) = &mut self.sidecars[of.0].elsewhere else { return };
        if let Some(asked) = getting.apps.asked.get_mut(&get) {
            (asked.entries, asked.zeros) = (now, false);
        }
    }

    /// A read of a get's bucket takes bytes: is its key's entry among those that have become zeros?
    pub(super) fn note_zeros(
        &mut self,
        of: SidecarNo,
        visit: Visit,
        get: GetId,
        (no, slot): (HostNo, Slot),
        range: std::ops::Range<u32>,
    ) {
        let is_now = |getting: &&Elsewhere| getting.is_visit(visit);
        let Some(getting) = self.sidecars[of.0].elsewhere.as_deref().filter(is_now) else { return };
        let Some(asked) = getting.apps.asked.get(&get) else { return };
        let mut here = self.hosts[no.0].zeroed.range((slot, range.start)..(slot, range.end));
        let zeros = here.any(|((_, at), key)| {
            let entry = *at as usize..*at as usize + 32;
            *key == asked.get.key && self.settled_bytes(no, slot, entry).iter().all(|byte| *byte == 0)
        });
        if zeros {
            let getting = self.sidecars[of.0].elsewhere.as_mut().expect("it was looked at");
            getting.apps.asked.entry(get).and_modify(|asked| asked.zeros = true);
        }
    }

    /// An app is told what a key has.
    pub(super) fn judge_told(&mut self, of: SidecarNo, getting: &mut Elsewhere, get: GetId, told: Told) {
        let Some(asked) = getting.apps.asked.remove(&get) else { broken("S20", format!("{get:?} is answered twice")) };
        let (name, key) = (self.sidecars[of.0].name.clone(), asked.get.key.escape_ascii().to_string());
        let now = self.queue.now();
        let told = match told {
            Told::Shown(told) => told,
            Told::Nothing(why) => {
                self.tally.got_nothing += 1;
                return trace!(self, "{name} cannot get {key}: {why}");
            }
        };
        match &told {
            ToldElsewhere::Now { as_of, shown, .. } => {
                let told = shown.as_ref().map_or_else(|| "absent".to_owned(), |(revision, _)| format!("at {revision}"));
                trace!(self, "{name} gets {key} as of {as_of}: {told}");
                getting.apps.answered += 1;
                match (shown, asked.zeros) {
                    (Some(_), _) => self.tally.got += 1,
                    (None, false) => self.tally.got_absent += 1,
                    (None, true) => self.tally.got_zeros += 1,
                }
            }
            ToldElsewhere::Older(_) => {
                trace!(self, "{name} gets an older value of {key}");
                self.tally.got_older += 1;
            }
        }
        self.checks.table_told(now, getting.won, &asked.get, &told, asked.zeros);
    }

    /// A getter has read a record one-sidedly (S19): its segment is not trimmed while it may rest on an entry of the mirror
    /// there.
    pub(super) fn judge_record_read(
        &self,
        of: SidecarNo,
        visit: Visit,
        get: GetId,
        (from, segment): (HostNo, Option<tailwind_protocol::ids::SegmentId>),
    ) {
        let is_now = |getting: &&Elsewhere| getting.is_visit(visit);
        let Some(getting) = self.sidecars[of.0].elsewhere.as_deref().filter(is_now) else { return };
        let Some(asked) = getting.apps.asked.get(&get).filter(|asked| !asked.get.older) else { return };
        let in_time = self.queue.now() <= asked.entries + RECORD_WITHIN.as_micros() as Micros;
        if let (Some(segment), true) = (segment, in_time) {
            self.checks.record_is_read(from, segment, &self.hosts[from.0].name);
        }
    }

    /// No get may wait for longer than getters have patience.
    pub(super) fn judge_patience(&self, of: SidecarNo) {
        let Some(getting) = &self.sidecars[of.0].elsewhere else { return };
        let most = PATIENCE.as_micros() as Micros + LATE_MAX;
        let late = getting.apps.asked.values().find(|asked| self.queue.now() > asked.asked + most);
        if let Some(late) = late {
            let key = late.get.key.escape_ascii();
            broken("S20", format!("{} does not answer a get of {key} for {} ms", self.sidecars[of.0].name, most / MS));
        }
    }

    /// The sidecar leads from now on: what its apps wait for is answered there, on the same connections.
    pub(super) fn hand_gets_over(&mut self, of: SidecarNo, lead: &mut Lead) {
        let Some(getting) = self.sidecars[of.0].elsewhere.take() else { return };
        let now = self.time(of);
        let (Some(table), Some(index)) = (&mut lead.table, lead.log.table().map(|table| table.index())) else { return };
        let floors = getting.apps.connections.iter().map(|connection| self.checks.shown_to(*connection));
        table.getting.show_nothing_before(floors.max().unwrap_or_default());
        for asked in getting.apps.asked.into_values() {
            let AskedElsewhere { key, least, since, no_value, .. } = asked.get;
            let hash = index.hash(Key::new(&key).expect("a key"));
            let what = get::Get { hash, least, fresh: since.is_some(), no_value };
            self.tally.handed_over += 1;
            table.getting.take_over(key, what, asked.asked, since.unwrap_or_default(), now);
        }
        getting.apps.connections.iter().for_each(|connection| self.checks.connection_ends(*connection));
    }

    /// Everything is well: each getter answers gets with what their keys have.
    pub(super) fn gets_are_answered(&mut self) {
        if self.plan.mirrors.is_none() || self.no_mirror_is_left() {
            return;
        }
        let calm = self.queue.now();
        let answered: Vec<Option<u64>> = self.sidecars.iter().map(answered_by).collect();
        let lacks = |world: &World| {
            let both = world.sidecars.iter().zip(&answered);
            let waits = |(sidecar, before): (&super::Sidecar, &Option<u64>)| {
                let (now, before) = (answered_by(sidecar)?, (*before)?);
                (now < before + ANSWERS).then(|| sidecar.name.clone())
            };
            both.into_iter().find_map(waits)
        };
        while let Some(name) = lacks(self) {
            // A loss of before may be told only now.
            if self.no_mirror_is_left() {
                return;
            }
            if self.queue.now() > calm + RETURN_MAX {
                broken("Liveness", format!("{name} does not answer gets, and all is well"));
            }
            self.play_for(TICK);
        }
    }
}

/// How many gets its getter has answered, if its process is up and has one.
fn answered_by(sidecar: &super::Sidecar) -> Option<u64> {
    let getting = sidecar.elsewhere.as_ref().filter(|_| sidecar.process == Process::Up)?;
    Some(getting.apps.answered)
}
