//! Gets: what is read of a table at its primary, by what is acknowledged.
//!
//! [`PrimaryLog::look`] says what the index knows of a key, and lends the value if its record is in this primary's own memory.
//! [`Gets`] are the gets that could not be answered at once: for a record that is not acknowledged yet, for proof that this still
//! is the primary, for bytes of a closed segment, which its host fetches. Driven by the sidecar's append path and by the
//! simulator. See "Gets" in `docs/protocol.md`.
//!
//! Each get is answered by what the index says at that moment, also if its record had to be fetched: so answers never go back.

use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, Position};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::table::entry::Present;
use tailwind_protocol::table::get::{Found, Get, Wanted};
use tailwind_protocol::table::hash::KeyHash;
use tailwind_protocol::table::record::Revision;

use crate::fabric::Fabric;
use crate::log::PrimaryLog;

/// Gets that may wait. Each turn looks at all of them.
pub const GETS_MAX: usize = 1024;
/// Records that are fetched at the same time: with 66 KiB each they take 2 MiB.
pub const FETCHES_MAX: usize = 32;
/// So long a get waits, in milliseconds. Then it is answered that it cannot be.
pub const PATIENCE: u64 = 5000;
/// Pause, in milliseconds, before a record that nobody could give is asked for again.
pub(crate) const AGAIN: u64 = 100;

/// What a get is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The key has this revision and value; empty if none was asked for.
    Value(Revision, &'a [u8]),
    /// The key is absent.
    Absent,
    /// Not within [`PATIENCE`]; why, for people.
    Unavailable(&'a str),
}

/// Carries out what gets want. `G` names one.
pub trait Getter<G> {
    /// Answers it, as of this record: the last one that is acknowledged.
    fn answer(&mut self, get: G, as_of: Lsn, answer: Answer<'_>);
    /// Fetches a record of a closed segment, and tells [`Gets::fetched`] of it. False: not now.
    fn fetch(&mut self, number: u64, wanted: Wanted) -> bool;
}

/// Gets that wait.
#[derive(Debug)]
pub struct Gets<G> {
    waiting: Vec<Waiting<G>>,
    /// Of the last get.
    number: u64,
    /// Of the last question that was asked for fresh gets.
    question: u64,
    /// Records on their way, also for gets that have ended.
    fetches: usize,
}

#[derive(Debug)]
struct Waiting<G> {
    get: G,
    what: Get,
    number: u64,
    stage: Stage,
    /// When it is given up.
    until: Time,
    /// Why nobody could give its record.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A question is to be asked for it.
    Unproved,
    /// This question has been asked.
    Asked(u64),
    /// To be looked up once its least record is acknowledged.
    Due,
    /// This record is on its way.
    Fetching(Wanted),
    /// Nobody could give the record: again from then on.
    Pausing(Time),
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// What is acknowledged of a key of the table, as of [`PrimaryLog::acked`].
    pub fn look<R>(&self, hash: KeyHash, no_value: bool, look: impl FnOnce(Found<'_>) -> R) -> R {
        let table = self.table.as_ref().expect("a get comes to a table");
        let Some(present) = table.index().acknowledged_of(hash) else { return look(Found::Absent) };
        if no_value {
            return look(Found::Here(present.revision, &[]));
        }
        let wanted = self.wanted(hash, present);
        self.read(&wanted, |value| match value {
            Some(value) => look(Found::Here(present.revision, value)),
            None => look(Found::There(wanted)),
        })
    }

    /// The record that an entry of the index names.
    fn wanted(&self, hash: KeyHash, Present { word, revision, length }: Present) -> Wanted {
        let index = self.table.as_ref().expect("it was looked up there").index();
        let end = self.primary.positions().appended.segment;
        let at: Option<Position> = word.new_place().and_then(|place| index.window().position(place, end));
        let at = at.expect("an entry names a place within the log");
        Wanted { at, length, revision, hash, hash_key: *index.acked_view().hash_key() }
    }

    /// Lends the value of a record if it is in this primary's own memory.
    pub(crate) fn read<R>(&self, wanted: &Wanted, read: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let Some(open) = self.segments.iter().find(|open| open.identity.segment == wanted.at.segment) else {
            return read(None);
        };
        let bytes = wanted.bytes();
        F::published(&open.shared, |published| {
            let record = published.get(bytes.start as usize..bytes.end as usize);
            read(record.and_then(|record| wanted.value(record)).map(|value| value.as_bytes()))
        })
    }
}

impl<G: Copy> Gets<G> {
    /// Room for as many as may wait.
    pub fn new() -> Gets<G> {
        Gets { waiting: Vec::with_capacity(GETS_MAX), number: 0, question: 0, fetches: 0 }
    }

    /// One more may wait.
    pub fn may_take(&self) -> bool {
        self.waiting.len() < GETS_MAX
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes one, which is answered in a turn. It needs the room that [`Gets::may_take`] tells of.
    pub fn take(&mut self, get: G, what: Get, now: Time) {
        self.number += 1;
        let proved = !what.fresh || planted::has(Bug::FreshWithoutBarrier);
        let stage = if proved { Stage::Due } else { Stage::Unproved };
        let until = Time(now.0 + PATIENCE);
        self.waiting.push(Waiting { get, what, number: self.number, stage, until, why: None });
    }

    /// True if a question is to be asked for fresh gets: behind all that was appended, by [`PrimaryLog::ask_behind`].
    pub fn want_proof(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.stage == Stage::Unproved)
    }

    /// The question that is asked now, for all fresh gets that were taken since the last one.
    pub fn ask(&mut self) -> u64 {
        self.question += 1;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.stage == Stage::Unproved) {
            waiting.stage = Stage::Asked(self.question);
        }
        self.question
    }

    /// This question is answered: this was the primary after it was asked.
    pub fn proved(&mut self, question: u64) {
        for waiting in &mut self.waiting {
            if waiting.stage == Stage::Asked(question) {
                waiting.stage = Stage::Due;
            }
        }
    }

    /// Looks at all that wait: answers those that can be, has records fetched, gives up those whose time is over.
    pub fn turn<F: Fabric, A, Q>(&mut self, log: &PrimaryLog<F, A, Q>, now: Time, getter: &mut impl Getter<G>) {
        let as_of = log.acked().0;
        let fetches = &mut self.fetches;
        self.waiting.retain_mut(|waiting| {
            if matches!(waiting.stage, Stage::Pausing(until) if until <= now) {
                waiting.stage = Stage::Due;
            }
            if waiting.stage == Stage::Due && waiting.what.least <= as_of {
                let wanted = log.look(waiting.what.hash, waiting.what.no_value, |found| {
                    let answer = match found {
                        Found::Absent => Answer::Absent,
                        Found::Here(revision, value) => Answer::Value(revision, value),
                        Found::There(wanted) => return Some(wanted),
                    };
                    getter.answer(waiting.get, as_of, answer);
                    None
                });
                let Some(wanted) = wanted else { return false };
                if *fetches < FETCHES_MAX && getter.fetch(waiting.number, wanted) {
                    *fetches += 1;
                    waiting.stage = Stage::Fetching(wanted);
                }
            }
            if waiting.until <= now {
                let why = waiting.why(as_of);
                getter.answer(waiting.get, as_of, Answer::Unavailable(&why));
                return false;
            }
            true
        });
    }

    /// A record has come: the bytes of its value, which have been checked; or why nobody could give it. Its get is answered
    /// if the key still has the revision, and otherwise looked up again in the next turn.
    pub fn fetched<F: Fabric, A, Q>(
        &mut self,
        number: u64,
        value: Result<&[u8], String>,
        log: &PrimaryLog<F, A, Q>,
        now: Time,
        getter: &mut impl Getter<G>,
    ) {
        self.fetches -= 1;
        let Some(at) = self.waiting.iter().position(|waiting| waiting.number == number) else { return };
        let waiting = &mut self.waiting[at];
        let Stage::Fetching(wanted) = waiting.stage else { unreachable!("a record comes once") };
        waiting.stage = Stage::Due;
        let present = log.table().and_then(|table| table.index().acknowledged_of(wanted.hash));
        let is_same = present.is_some_and(|present| present.revision == wanted.revision);
        match value {
            Ok(value) if is_same || planted::has(Bug::GetNotLookedAgain) => {
                let get = self.waiting.remove(at).get;
                getter.answer(get, log.acked().0, Answer::Value(wanted.revision, value));
            }
            // It has been moved, and perhaps trimmed.
            Err(_) if present.is_none_or(|present| log.wanted(wanted.hash, present) != wanted) => {}
            Err(why) => (waiting.stage, waiting.why) = (Stage::Pausing(Time(now.0 + AGAIN)), Some(why)),
            Ok(_) => {}
        }
    }

    /// Forgets those that fail the test.
    pub fn retain(&mut self, mut keep: impl FnMut(&G) -> bool) {
        self.waiting.retain(|waiting| keep(&waiting.get));
    }

    /// The end of the term: those that still wait are not answered here.
    pub fn end(self) -> impl Iterator<Item = G> {
        self.waiting.into_iter().map(|waiting| waiting.get)
    }
}

impl<G: Copy> Default for Gets<G> {
    fn default() -> Gets<G> {
        Gets::new()
    }
}

impl<G> Waiting<G> {
    /// Why it has not been answered.
    fn why(&self, acked: Lsn) -> String {
        let least = self.what.least;
        match (self.stage, &self.why) {
            (Stage::Unproved | Stage::Asked(_), _) => {
                format!("it could not be proved within {} s that this sidecar still is primary", PATIENCE / 1000)
            }
            _ if least > acked => {
                format!("LSN {least} is not acknowledged within {} s: LSN {acked} is the last", PATIENCE / 1000)
            }
            (_, Some(why)) => format!("the value could not be read within {} s: {why}", PATIENCE / 1000),
            (_, None) => format!("the value could not be read within {} s", PATIENCE / 1000),
        }
    }
}
