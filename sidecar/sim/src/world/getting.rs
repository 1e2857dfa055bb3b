//! Gets and copies of a table: what its app asks for, the records that they need from members, and what the app is told.
//!
//! Part of [`table`](super::table). The machines are production's ([`Gets`], [`Copies`]); this carries out what they want.

use std::collections::BTreeMap;
use std::rc::Rc;

use tailwind_primary::{Answer as Got, Copies, Gets, Getter, Given, Taken};
use tailwind_protocol::backup::Request as ToBackup;
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::table::get::{Get, Wanted};
use tailwind_protocol::table::record::{Key, Revision};
use tailwind_protocol::table::request::Apply;

use super::lead::{About, Lead, Question};
use super::network::{Answer, Silence};
use super::queue::Micros;
use super::sidecar::Purpose;
use super::{HostNo, SidecarNo, World, group};
use crate::check::Shown;
use crate::trace::trace;

/// Gets of the app that wait.
const GETS_MAX: usize = 16;

/// Gets and copies of one term, on one connection of the app.
#[derive(Debug, Default)]
pub(crate) struct Getting {
    pub(super) gets: Gets<u64>,
    asked: BTreeMap<u64, Asked>,
    /// How many there have been.
    count: u64,
    /// What the app has been shown is as of this record.
    floor: Lsn,
    pub(super) copies: Copies<u64>,
    /// Values of a copy's sources, as they come.
    bringing: BTreeMap<u64, Vec<Option<Vec<u8>>>>,
}

impl Getting {
    /// The connection has been shown this elsewhere.
    pub(super) fn show_nothing_before(&mut self, floor: Lsn) {
        self.floor = floor;
    }

    /// A get that was asked for before the sidecar led.
    pub(super) fn take_over(&mut self, key: Rc<[u8]>, what: Get, asked: Micros, since: Lsn, now: Time) {
        self.count += 1;
        self.asked.insert(self.count, Asked { key, what, asked, since });
        self.gets.take(self.count, what, now);
    }
}

/// A get, as the app has asked.
#[derive(Clone, Debug)]
struct Asked {
    key: Rc<[u8]>,
    what: Get,
    asked: Micros,
    /// What was acknowledged by then.
    since: Lsn,
}

/// What a record is fetched for.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// The get with this number.
    Get(u64),
    /// A copy with this number: the source with that one.
    Copy(u64, usize),
}

/// A record that is fetched: these backups have not been asked yet.
#[derive(Clone, Debug)]
pub(crate) struct RecordFetch {
    whose: Whose,
    wanted: Wanted,
    identity: SegmentIdentity,
    closure: Closure,
    sources: Vec<HostNo>,
}

/// What a turn of the gets has brought.
#[derive(Debug, Default)]
struct Heard {
    answers: Vec<(u64, Lsn, Result<Option<Shown>, String>)>,
    wanted: Vec<(u64, Wanted)>,
}

impl Getter<u64> for Heard {
    fn answer(&mut self, get: u64, as_of: Lsn, answer: Got<'_>) {
        let shown = match answer {
            Got::Value(revision, value) => Ok(Some((Revision::number(Some(revision)), Rc::from(value)))),
            Got::Absent => Ok(None),
            Got::Unavailable(why) => Err(why.to_owned()),
        };
        self.answers.push((get, as_of, shown));
    }

    fn fetch(&mut self, number: u64, wanted: Wanted) -> bool {
        self.wanted.push((number, wanted));
        true
    }
}

impl World {
    /// The app gets a key, if it gets any in this seed.
    pub(super) fn ask_get(&mut self, of: SidecarNo) {
        let Some(plan) = self.plan.table.clone().filter(|plan| plan.reads) else { return };
        if self.load || self.random.one_in(2) {
            return;
        }
        let names = if self.random.one_in(3) { plan.names } else { plan.hot };
        let key: Rc<[u8]> = Rc::from(format!("key/{}", self.random.below(names)).into_bytes());
        let (fresh, no_value) = (self.random.one_in(3), self.random.one_in(6));
        let ahead = if self.random.one_in(6) { self.random.below(4) } else { 0 };
        let (now, asked, since) = (self.time(of), self.queue.now(), self.checks.table_reached());
        self.with_lead(of, |_, lead| {
            let acked = lead.log.acked().0;
            let (Some(table), Some(index)) = (&mut lead.table, lead.log.table().map(|table| table.index())) else {
                return;
            };
            let getting = &mut table.getting;
            if getting.gets.len() < GETS_MAX {
                let hash = index.hash(Key::new(&key).expect("a key"));
                let least = if ahead == 0 { Lsn(0) } else { Lsn(acked.0 + ahead) };
                let what = Get { hash, least, fresh, no_value };
                getting.count += 1;
                getting.asked.insert(getting.count, Asked { key, what, asked, since });
                getting.gets.take(getting.count, what, now);
            }
        });
    }

    /// Has fresh gets proved, and looks at all of them.
    pub(super) fn turn_gets(&mut self, of: SidecarNo, lead: &mut Lead) {
        let now = self.time(of);
        let Some(table) = &mut lead.table else { return };
        let gets = &mut table.getting.gets;
        if gets.want_proof() && lead.log.is_ready() && lead.log.may_ask_behind() {
            let about = About::Gets(gets.ask());
            lead.log.ask_behind(Question { asked: self.queue.now(), about });
        }
        let mut heard = Heard::default();
        gets.turn(&lead.log, now, &mut heard);
        self.carry_out_gets(of, lead, heard);
    }

    fn carry_out_gets(&mut self, of: SidecarNo, lead: &mut Lead, heard: Heard) {
        for (number, as_of, shown) in heard.answers {
            self.judge_get(of, lead, number, as_of, shown);
        }
        for (number, wanted) in heard.wanted {
            self.begin_fetch(of, lead, Whose::Get(number), wanted);
        }
    }

    fn judge_get(
        &mut self,
        of: SidecarNo,
        lead: &mut Lead,
        number: u64,
        as_of: Lsn,
        shown: Result<Option<Shown>, String>,
    ) {
        let getting = &mut lead.table.as_mut().expect("of a table").getting;
        let Asked { key, what, asked, since } = getting.asked.remove(&number).expect("answered once");
        let name = &self.sidecars[of.0].name;
        let shown = match shown {
            Ok(shown) => shown,
            Err(why) => {
                self.tally.gets_unavailable += 1;
                return trace!(self, "{name} cannot get {}: {why}", key.escape_ascii());
            }
        };
        let told = shown.as_ref().map_or_else(|| "absent".to_owned(), |(revision, _)| format!("at {revision}"));
        trace!(self, "{name} gets {} as of {as_of}: {told}", key.escape_ascii());
        self.tally.gets += 1;
        let floor = std::mem::replace(&mut getting.floor, as_of).max(what.least);
        self.checks.table_got(lead.epoch, &key, (as_of, floor), shown.as_ref(), what.no_value);
        if what.fresh {
            self.checks.table_got_fresh(lead.epoch, asked, since, as_of);
        }
    }

    /// The sources of a request's copies, which waits in front, are to be brought. False: it is given up.
    pub(super) fn want_sources(
        &mut self,
        of: SidecarNo,
        lead: &mut Lead,
        request: u64,
        apply: &Apply<'_>,
        taken: Option<Taken>,
    ) -> bool {
        let now = self.time(of);
        let wanted = lead.log.sources(apply, taken.as_ref().map_or(&Given::default(), |taken| &taken.given));
        let getting = &mut lead.table.as_mut().expect("of a table").getting;
        let mut begun = None;
        let given_up = getting.copies.want(request, taken, wanted, now, |number, wanted| {
            begun = Some((number, wanted.to_vec()));
            true
        });
        if let Err(why) = given_up {
            self.tally.copies_given_up += 1;
            trace!(self, "{} cannot copy: {why}", self.sidecars[of.0].name);
            return false;
        }
        if let Some((number, wanted)) = begun {
            self.tally.copies_fetched += 1;
            getting.bringing.insert(number, vec![None; wanted.len()]);
            for (nth, wanted) in wanted.into_iter().enumerate() {
                self.begin_fetch(of, lead, Whose::Copy(number, nth), wanted);
            }
        }
        true
    }

    /// Asks one backup after the other for a record, members first.
    fn begin_fetch(&mut self, of: SidecarNo, lead: &mut Lead, whose: Whose, wanted: Wanted) {
        let closed = lead.log.primary().closed();
        let found = closed.iter().find(|(identity, _)| identity.segment == wanted.at.segment).copied();
        let Some((identity, closure)) = found else {
            return self.bring(of, lead, whose, Err("it is trimmed".to_owned()));
        };
        let members = &lead.log.primary().config().members;
        let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).collect();
        sources.sort_by_key(|no| members.iter().any(|member| member.id == self.hosts[no.0].name));
        self.fetch_record(of, lead, RecordFetch { whose, wanted, identity, closure, sources });
    }

    fn fetch_record(&mut self, of: SidecarNo, lead: &mut Lead, mut fetch: RecordFetch) {
        let RecordFetch { whose, wanted, identity, closure, .. } = fetch;
        let Some(source) = fetch.sources.pop() else {
            return self.bring(of, lead, whose, Err("nobody has it".to_owned()));
        };
        self.tally.records_fetched += 1;
        self.rot_before_pull(source, identity.segment);
        let range = Some(wanted.bytes());
        let request = FetchRequest { group: group(), identity, closure, check: false, range };
        self.call(of, source, ToBackup::Fetch(request), Purpose::Record(Box::new(fetch)));
    }

    pub(super) fn on_record_answer(&mut self, of: SidecarNo, fetch: RecordFetch, answer: Result<Answer, Silence>) {
        self.with_lead(of, |world, lead| {
            let value = match &answer {
                Ok(Answer::Bytes(bytes)) => fetch.wanted.value(bytes).map(|value| value.as_bytes().to_vec()),
                _ => None,
            };
            match value {
                Some(value) => world.bring(of, lead, fetch.whose, Ok(value)),
                None => {
                    world.tally.records_refused += u64::from(matches!(answer, Ok(Answer::Bytes(_))));
                    world.fetch_record(of, lead, fetch);
                }
            }
        });
    }

    /// A record has come, or nobody could give it.
    fn bring(&mut self, of: SidecarNo, lead: &mut Lead, whose: Whose, value: Result<Vec<u8>, String>) {
        let now = self.time(of);
        let getting = &mut lead.table.as_mut().expect("of a table").getting;
        match (whose, value) {
            (Whose::Get(number), value) => {
                let mut heard = Heard::default();
                let value = value.as_deref().map_err(Clone::clone);
                getting.gets.fetched(number, value, &lead.log, now, &mut heard);
                self.carry_out_gets(of, lead, heard);
            }
            (Whose::Copy(number, nth), Ok(value)) => {
                let Some(values) = getting.bringing.get_mut(&number) else { return };
                values[nth] = Some(value);
                if values.iter().all(Option::is_some) {
                    let values = getting.bringing.remove(&number).into_iter().flatten().flatten().collect();
                    getting.copies.fetched(number, Ok(values), now);
                }
            }
            (Whose::Copy(number, _), Err(why)) => {
                if getting.bringing.remove(&number).is_some() {
                    getting.copies.fetched(number, Err(why), now);
                }
            }
        }
    }
}
