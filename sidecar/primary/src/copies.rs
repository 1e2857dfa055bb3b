//! Copies: requests to a table that take over values of other keys, and what they wait for.
//!
//! [`PrimaryLog::apply`] reads the sources that are in this primary's own memory. The others are fetched by the host, while the
//! request stays where its client has put it; then it is judged again, with what has come. [`Copies`] keeps that, for the sidecar's
//! append path and for the simulator. A request that has an answer, or whose client is gone, leaves nothing here.

use tailwind_protocol::config::Time;
use tailwind_protocol::layout::{RECORD_HEADER_SIZE, RecordHeader};
use tailwind_protocol::table::entry::Present;
use tailwind_protocol::table::get::Wanted;
use tailwind_protocol::table::hash::{HashKey, KeyHash};
use tailwind_protocol::table::index::Index;
use tailwind_protocol::table::record::{Key, Revision, Value};
use tailwind_protocol::table::request::{Apply, OPERATIONS_MAX, Written};
use tailwind_protocol::table::staged::Source;

use crate::fabric::Fabric;
use crate::gets::{AGAIN, PATIENCE};
use crate::log::PrimaryLog;

/// Requests whose sources are fetched, or have been. Each may have half a segment of them: 64 MiB in all, with segments of 8 MiB.
pub const COPIES_MAX: usize = 16;

/// Values that were fetched for one request.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(Wanted, Vec<u8>)>);

impl Given {
    /// These values of these records.
    pub fn new(values: impl IntoIterator<Item = (Wanted, Vec<u8>)>) -> Given {
        Given(values.into_iter().collect())
    }

    fn find(&self, hash: KeyHash, revision: Revision) -> Option<&[u8]> {
        let found = self.0.iter().find(|(wanted, _)| wanted.hash == hash && wanted.revision == revision);
        found.map(|(_, value)| &value[..])
    }
}

/// The values that the request which is being judged takes over. Its memory is there from the start.
#[derive(Debug)]
pub(crate) struct Copied {
    hash_key: HashKey,
    bytes: Vec<u8>,
    sources: Vec<Known>,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: KeyHash,
    source: Source,
    /// Where its value begins in the bytes, if it is there.
    at: Option<usize>,
}

impl Copied {
    pub(crate) fn new(index: &Index) -> Copied {
        let most = index.window().segment_size().append_size_max() as usize;
        let hash_key = *index.acked_view().hash_key();
        Copied { hash_key, bytes: Vec::with_capacity(most), sources: Vec::with_capacity(OPERATIONS_MAX) }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sources.clear();
    }

    fn find(&self, source: Key<'_>) -> Option<&Known> {
        let hash = self.hash_key.hash(source);
        self.sources.iter().find(|known| known.hash == hash)
    }

    /// Bytes of the source's value; 0 if it is absent.
    pub(crate) fn length(&self, source: Key<'_>) -> usize {
        self.find(source).map_or(0, |known| known.source.length as usize)
    }

    /// The source, if its value is here.
    pub(crate) fn source(&self, source: Key<'_>) -> Option<Source> {
        self.find(source).filter(|known| known.at.is_some()).map(|known| known.source)
    }

    /// The source's value, which is here.
    pub(crate) fn value(&self, source: Key<'_>) -> Value<'_> {
        let known = self.find(source).expect("a request is placed with all its sources");
        let at = known.at.expect("a request is placed with all its sources");
        Value::new(&self.bytes[at..at + known.source.length as usize]).expect("a value of the table")
    }

    /// More than one request may take over is left out: its length alone has the request refused.
    fn add(&mut self, hash: KeyHash, revision: Revision, value: &[u8]) {
        let fits = self.bytes.len() + value.len() <= self.bytes.capacity();
        let at = fits.then_some(self.bytes.len());
        if fits {
            self.bytes.extend_from_slice(value);
        }
        self.sources.push(Known { hash, source: Source { revision, length: value.len() as u32 }, at });
    }
}

/// Where the last record of a source is, acknowledged or not.
enum At {
    /// In this primary's own memory.
    Here(Wanted),
    /// In a closed segment.
    There(Wanted),
}

impl<F: Fabric, A, Q> PrimaryLog<F, A, Q> {
    /// Gathers the values of a request's sources, as far as they are in memory or were given. Of the others their lengths.
    pub(crate) fn gather(&self, index: &Index, copied: &mut Copied, apply: &Apply<'_>, given: &Given) {
        copied.clear();
        for source in sources(apply) {
            if copied.find(source).is_some() {
                continue;
            }
            match self.locate(index, source) {
                None => {}
                Some(At::Here(wanted)) => self.read(&wanted, |value| {
                    let value = value.expect("what was appended is sound in this process's memory");
                    copied.add(wanted.hash, wanted.revision, value);
                }),
                Some(At::There(wanted)) => match given.find(wanted.hash, wanted.revision) {
                    Some(value) => copied.add(wanted.hash, wanted.revision, value),
                    None => {
                        let length = wanted.value_size(source) as u32;
                        let source = Source { revision: wanted.revision, length };
                        copied.sources.push(Known { hash: wanted.hash, source, at: None });
                    }
                },
            }
        }
    }

    /// The records that a request needs for its copies and that have to be fetched, each once.
    pub fn sources(&self, apply: &Apply<'_>, given: &Given) -> Vec<Wanted> {
        let mut missing: Vec<Wanted> = Vec::new();
        let Some(table) = &self.table else { return missing };
        for source in sources(apply) {
            if let Some(At::There(wanted)) = self.locate(table.index(), source)
                && given.find(wanted.hash, wanted.revision).is_none()
                && !missing.contains(&wanted)
            {
                missing.push(wanted);
            }
        }
        missing
    }

    fn locate(&self, index: &Index, source: Key<'_>) -> Option<At> {
        let latest = index.latest(source)?;
        let hash = index.hash(source);
        let end = self.primary.positions().appended.segment;
        let at = index.window().position(latest.place, end).expect("the index names a place within the log");
        let wanted = |length| {
            let hash_key = *index.acked_view().hash_key();
            Wanted { at, length, revision: latest.revision, hash, hash_key }
        };
        if let Some(open) = self.segments.iter().find(|open| open.identity.segment == at.segment) {
            let header = F::published(&open.shared, |published| {
                let header = published.get(at.offset.0 as usize..)?.first_chunk::<RECORD_HEADER_SIZE>()?;
                RecordHeader::from_bytes(header)
            });
            let header = header.expect("what was appended is sound in this process's memory");
            return Some(At::Here(wanted(header.length)));
        }
        // Of a closed segment everything is acknowledged, so both views name this record.
        let Present { length, .. } = index.acknowledged_of(hash).expect("what is closed is acknowledged");
        Some(At::There(wanted(length)))
    }
}

/// The keys whose values a request takes over.
fn sources<'a>(apply: &Apply<'a>) -> impl Iterator<Item = Key<'a>> + use<'a> {
    apply.writes().filter_map(|write| match write.written {
        Written::CopyOf(source) => Some(source),
        Written::Value(_) | Written::Nothing => None,
    })
}

/// True if a request takes over any value.
pub(crate) fn copies(apply: &Apply<'_>) -> bool {
    sources(apply).next().is_some()
}

/// Requests whose sources have to be fetched. `C` names one.
#[derive(Debug)]
pub struct Copies<C> {
    requests: Vec<Copying<C>>,
    /// Of the last fetch.
    number: u64,
}

#[derive(Debug)]
struct Copying<C> {
    request: C,
    given: Given,
    stage: Stage,
    /// When it is given up.
    until: Time,
    /// Why nobody could give a source.
    why: Option<String>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// These records are on their way, under this number.
    Fetching(u64, Vec<Wanted>),
    /// Nobody could give them: again from then on.
    Pausing(Time),
    /// They have come.
    Here,
}

impl<C: Copy + PartialEq> Copies<C> {
    /// None yet.
    pub fn new() -> Copies<C> {
        Copies { requests: Vec::with_capacity(COPIES_MAX), number: 0 }
    }

    /// True while it need not be judged: what it needs is on its way.
    pub fn waits(&self, request: C, now: Time) -> bool {
        let found = self.requests.iter().find(|copying| copying.request == request);
        found.is_some_and(|copying| match copying.stage {
            Stage::Fetching(..) => true,
            Stage::Pausing(until) => now < until,
            Stage::Here => false,
        })
    }

    /// Takes what has been fetched for a request. It is to be judged with that now, and then to be [kept](Copies::keep) or
    /// [wanted](Copies::want) again, if it has no answer.
    pub fn take(&mut self, request: C) -> Option<Taken> {
        let at = self.requests.iter().position(|copying| copying.request == request)?;
        let Copying { given, until, why, .. } = self.requests.swap_remove(at);
        Some(Taken { given, until, why })
    }

    /// There is no room for the request now: what was fetched for it stays.
    pub fn keep(&mut self, request: C, taken: Taken) {
        let Taken { given, until, why } = taken;
        self.requests.push(Copying { request, given, stage: Stage::Here, until, why });
    }

    /// The request needs these records. `fetch` is to bring them, and to tell [`Copies::fetched`]; false: not now, and then
    /// nothing is kept. The error says why the request is given up, for people.
    pub fn want(
        &mut self,
        request: C,
        taken: Option<Taken>,
        wanted: Vec<Wanted>,
        now: Time,
        fetch: impl FnOnce(u64, &[Wanted]) -> bool,
    ) -> Result<(), String> {
        let taken = taken.unwrap_or_else(|| Taken::new(now));
        if taken.until <= now {
            let why = taken.why.unwrap_or_else(|| "it changes all the time".to_owned());
            return Err(format!("the value of a source could not be read within {} s: {why}", PATIENCE / 1000));
        }
        if self.requests.len() < COPIES_MAX && fetch(self.number + 1, &wanted) {
            self.number += 1;
            let stage = Stage::Fetching(self.number, wanted);
            self.requests.push(Copying { request, given: taken.given, stage, until: taken.until, why: taken.why });
        }
        Ok(())
    }

    /// What was fetched under this number has come: the values of those records, in their order; or nobody could give one.
    pub fn fetched(&mut self, number: u64, values: Result<Vec<Vec<u8>>, String>, now: Time) {
        let is_that = |copying: &&mut Copying<C>| matches!(copying.stage, Stage::Fetching(its, _) if its == number);
        let Some(copying) = self.requests.iter_mut().find(is_that) else { return };
        let stage = std::mem::replace(&mut copying.stage, Stage::Here);
        let Stage::Fetching(_, wanted) = stage else { unreachable!("it was just looked at") };
        match values {
            Ok(values) => copying.given.0.extend(wanted.into_iter().zip(values)),
            Err(why) => (copying.stage, copying.why) = (Stage::Pausing(Time(now.0 + AGAIN)), Some(why)),
        }
    }

    /// Forgets those that fail the test.
    pub fn retain(&mut self, mut keep: impl FnMut(&C) -> bool) {
        self.requests.retain(|copying| keep(&copying.request));
    }
}

impl<C: Copy + PartialEq> Default for Copies<C> {
    fn default() -> Copies<C> {
        Copies::new()
    }
}

/// What has been fetched for a request that is being judged.
#[derive(Debug)]
pub struct Taken {
    /// The values.
    pub given: Given,
    until: Time,
    why: Option<String>,
}

impl Taken {
    fn new(now: Time) -> Taken {
        Taken { given: Given::default(), until: Time(now.0 + PATIENCE), why: None }
    }
}
