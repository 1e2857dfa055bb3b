//! The app beside a sidecar: appends while it is told that its sidecar is primary, reads everything back, asks for
//! barriers, trims. What it is told is the history that the checkers judge.

use std::rc::Rc;

use tailwind_protocol::backup::Request;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::primary::Input;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::scan::{Scanner, verify};

use super::lead::{About, Lead};
use super::network::{Answer, Silence};
use super::sidecar::{Purpose, Role};
use super::{HostNo, SidecarNo, World, group};
use crate::check::broken;
use crate::tally::Fault;
use crate::trace::trace;

/// Appends that wait for room, or for their ack, before the app waits too.
const PIPELINE_MAX: usize = 48;

/// The same while the app appends without a pause: more than it appends while a write is on its way.
const LOAD_PIPELINE_MAX: usize = 1000;
/// Pause of an app that appends without a pause, in microseconds: shorter than the lag of any slow link.
pub(super) const LOAD_PAUSE: u64 = 100;

/// An app.
#[derive(Debug, Default)]
pub(crate) struct App {
    /// The next record to read; 0: this sidecar is not primary.
    pub(crate) next_read: Lsn,
    /// Last record that was acknowledged, or recovered.
    pub(crate) acked: Lsn,
    /// A closed segment is being fetched, and so many backups have failed to give it.
    reading: Option<(SegmentIdentity, Closure, usize)>,
    /// Segments that nobody could give.
    pub(crate) unreadable: u64,
}

impl App {
    pub(crate) fn begin(&mut self, reference: &Reference) {
        self.next_read = reference.segments.first().map_or(reference.last().next(), |segment| segment.closure.first);
        (self.acked, self.reading) = (reference.last(), None);
    }

    pub(crate) fn lost_role(&mut self) {
        *self = App::default();
    }

    /// Everything that was acknowledged has been read.
    pub(crate) fn has_read_all(&self) -> bool {
        self.next_read > self.acked
    }
}

impl World {
    pub(crate) fn on_app_turn(&mut self, of: SidecarNo) {
        if self.sidecars[of.0].lead().is_none() {
            return;
        }
        let (asked, quiet) = (self.queue.now(), self.quiet);
        let asks_for_end = self.sidecars[of.0].app.has_read_all() && self.random.one_in(10);
        let barrier = self.random.one_in(40);
        // Drawn apart: seeds in which nobody syncs play as they did before.
        let sync = self.plan.has(Fault::SyncedAndDark) && self.random.one_in(60);
        let request = self.request(of);
        let (batch, most) = match (&request, self.load) {
            (Some(_), load) => (Vec::new(), if load { LOAD_PIPELINE_MAX } else { PIPELINE_MAX }),
            (None, true) => (vec![Rc::from(asked.to_le_bytes())], LOAD_PIPELINE_MAX),
            (None, false) => (self.batch(), PIPELINE_MAX),
        };
        self.with_lead(of, |_, lead| {
            if !quiet && lead.waiting() < most {
                match (&mut lead.table, request) {
                    (Some(table), Some(request)) => table.requests.push_back(request),
                    _ => lead.backlog.push_back(batch),
                }
            }
            if sync {
                lead.sync(asked);
            }
            if barrier {
                lead.prove(asked, About::Role);
            }
            if asks_for_end {
                lead.prove(asked, About::End);
            }
        });
        if !quiet {
            self.ask_get(of);
        }
        if self.random.one_in(60) {
            self.trim(of);
        }
        let reads = match self.load {
            true => self.random.one_in(40),
            false => self.sidecars[of.0].app.next_read < self.sidecars[of.0].app.acked || self.random.one_in(8),
        };
        if reads {
            self.read(of);
        }
    }

    /// Records that no other batch has.
    fn batch(&mut self) -> Vec<Rc<[u8]>> {
        let large = self.random.one_in(self.plan.large_one_in);
        let size_max = if large { 14_000 } else { self.plan.payload_max };
        let records = if self.random.one_in(4) { self.random.within(1, 5) } else { 1 };
        let records = if large { records.min(2) } else { records };
        (0..records)
            .map(|_| {
                let mut payload = vec![0; self.random.below(size_max + 1) as usize];
                let mut own = self.random.split();
                payload.chunks_mut(8).for_each(|chunk| {
                    let bytes = own.next().to_le_bytes();
                    chunk.copy_from_slice(&bytes[..chunk.len()]);
                });
                Rc::from(payload)
            })
            .collect()
    }

    fn trim(&mut self, of: SidecarNo) {
        let acked = self.sidecars[of.0].app.acked;
        // Of a table only the cleaner trims.
        if acked == Lsn(0) || self.keeps_all || self.plan.table.is_some() {
            return;
        }
        let below = Lsn(self.random.within(1, acked.0 + 1));
        trace!(self, "{} trims below {below}", self.sidecars[of.0].name);
        self.checks.trimmed(below);
        self.primary_input(of, Input::Trim(below));
    }

    /// Reads on: open segments from the primary's own memory, closed ones from whoever has them.
    pub(crate) fn read(&mut self, of: SidecarNo) {
        let Role::Primary(lead) = &self.sidecars[of.0].role else { return };
        let app = &self.sidecars[of.0].app;
        if app.reading.is_some() || app.has_read_all() {
            return;
        }
        let next = app.next_read.max(lead.machine().first_readable());
        if next > app.next_read
            && let Some(lost) = self.checks.owed().find(|record| record.lsn >= app.next_read && record.lsn < next)
        {
            broken("S1", format!("the log begins at {next}, and record {} is owed", lost.lsn));
        }
        let found = lead.machine().closed().iter().find(|(_, closure)| closure.last >= next).copied();
        self.sidecars[of.0].app.next_read = next;
        match found {
            Some((identity, closure)) => {
                self.sidecars[of.0].app.reading = Some((identity, closure, 0));
                self.fetch_next(of);
            }
            None => self.read_open(of),
        }
    }

    fn read_open(&mut self, of: SidecarNo) {
        let Role::Primary(lead) = &self.sidecars[of.0].role else { return };
        let (next, acked) = (self.sidecars[of.0].app.next_read, self.sidecars[of.0].app.acked);
        let records = open_records(lead, next, acked);
        let epoch = lead.epoch;
        for (lsn, payload) in records {
            self.heard(of, epoch, lsn, &payload);
        }
    }

    fn fetch_next(&mut self, of: SidecarNo) {
        let Some((identity, closure, tries)) = self.sidecars[of.0].app.reading else { return };
        let Role::Primary(lead) = &self.sidecars[of.0].role else { return };
        let config = lead.machine().config();
        let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).collect();
        sources.sort_by_key(|no| config.member(&self.hosts[no.0].name).is_none());
        let Some(source) = sources.get(tries).copied() else {
            // The app asks again later: a backup may come back.
            let app = &mut self.sidecars[of.0].app;
            (app.reading, app.unreadable) = (None, app.unreadable + 1);
            return;
        };
        let request = FetchRequest { group: group(), identity, closure, check: true, range: None };
        self.call(of, source, Request::Fetch(request), Purpose::Read);
    }

    pub(crate) fn on_read_answer(&mut self, of: SidecarNo, answer: Result<Answer, Silence>) {
        let Some((identity, closure, tries)) = self.sidecars[of.0].app.reading else { return };
        let bytes = match answer {
            Ok(Answer::Bytes(bytes)) if verify(&bytes, &identity, &closure) => bytes,
            _ => {
                self.sidecars[of.0].app.reading = Some((identity, closure, tries + 1));
                return self.fetch_next(of);
            }
        };
        self.sidecars[of.0].app.reading = None;
        let Some(epoch) = self.sidecars[of.0].lead().map(|lead| lead.epoch) else { return };
        let mut scanner = Scanner::new(&bytes, &identity).expect("verified a moment ago");
        while let Ok(append) = scanner.next_append() {
            for record in append.records() {
                if record.lsn >= self.sidecars[of.0].app.next_read {
                    self.heard(of, epoch, record.lsn, record.payload);
                }
            }
        }
    }

    fn heard(&mut self, of: SidecarNo, reader: tailwind_protocol::ids::Epoch, lsn: Lsn, payload: &[u8]) {
        self.tally.read += 1;
        let expected = self.sidecars[of.0].app.next_read;
        if lsn != expected {
            broken("S2", format!("the app of epoch {reader} reads {lsn}, {expected} is next"));
        }
        self.checks.read(reader, lsn, payload);
        self.sidecars[of.0].app.next_read = lsn.next();
    }
}

/// Acknowledged records of the open end, from `next` on.
fn open_records(lead: &Lead, next: Lsn, acked: Lsn) -> Vec<(Lsn, Vec<u8>)> {
    let mut records = Vec::new();
    for (identity, published) in lead.memory.values() {
        let bytes = published.bytes();
        let Ok(mut scanner) = Scanner::new(&bytes, identity) else { continue };
        while let Ok(append) = scanner.next_append() {
            let wanted = append.records().filter(|record| record.lsn >= next && record.lsn <= acked);
            records.extend(wanted.map(|record| (record.lsn, record.payload.to_vec())));
        }
    }
    records
}
