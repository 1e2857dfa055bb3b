//! A table's cleaner, as its primary's control drives it: closed segments are fetched, their live records are moved, and the log
//! is trimmed.

use std::collections::BTreeMap;

use tailwind_protocol::backup::Request;
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity};
use tailwind_protocol::planted::{self, Bug};
use tailwind_protocol::primary;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::FetchRequest;
use tailwind_protocol::scan::{Scanner, verify};
use tailwind_protocol::table::bounds::Bounds;
use tailwind_protocol::table::cleaner::{Cleaner, Doing, Input, Output, Progress, SegmentRecords};
use tailwind_protocol::table::fold::positioned;
use tailwind_protocol::table::moves::{Candidate, batch};

use super::lead::Lead;
use super::network::{Answer, Silence};
use super::sidecar::Purpose;
use super::{HostNo, SidecarNo, World, group};
use crate::check::broken;
use crate::trace::{records, trace};

/// A cleaner, and what it waits for.
#[derive(Debug)]
pub(crate) struct Cleaning {
    cleaner: Cleaner,
    /// What it wants done, in its order.
    wanted: Vec<Output>,
    fetched: BTreeMap<SegmentId, (SegmentIdentity, Vec<u8>)>,
    /// The most segments that the log may have in this term.
    pub(super) segments_max: u32,
}

/// A closed segment that is fetched: so many backups have failed to give it.
#[derive(Clone, Debug)]
pub(crate) struct CleanerFetch {
    identity: SegmentIdentity,
    closure: Closure,
    sources: Vec<HostNo>,
}

impl Cleaning {
    /// Of a term that begins with this log, of which segments from `stop` on have records that are not keyed.
    pub(super) fn new(bounds: Bounds, reference: &Reference, stop: Option<SegmentId>) -> Cleaning {
        let closed = reference.segments.iter().map(|segment| closed(segment.identity.segment, segment.closure));
        let at_first = reference.segments.len() as u32 + 1;
        Cleaning {
            cleaner: Cleaner::new(bounds, closed, stop),
            wanted: Vec::new(),
            fetched: BTreeMap::new(),
            segments_max: bounds.segments().max(at_first + bounds.reserve()),
        }
    }

    /// Nothing is due, and nothing waits.
    pub(super) fn rests(&self) -> bool {
        self.wanted.is_empty() && self.cleaner.doing() == Doing::Idle && self.cleaner.settling() == 0
    }

    /// For people.
    pub(super) fn doing(&self) -> (Doing, usize) {
        (self.cleaner.doing(), self.cleaner.settling())
    }
}

fn closed(segment: SegmentId, closure: Closure) -> SegmentRecords {
    SegmentRecords { segment, first: closure.first, last: closure.last }
}

impl World {
    fn cleaner_input(&mut self, of: SidecarNo, lead: &mut Lead, input: Input) {
        let now = self.time(of);
        if let Some(table) = &mut lead.table {
            table.cleaning.cleaner.step(now, input, &mut table.cleaning.wanted);
        }
    }

    /// A segment is closed at every member.
    pub(super) fn cleaner_hears_of(&mut self, of: SidecarNo, lead: &mut Lead, segment: SegmentId, closure: Closure) {
        self.cleaner_input(of, lead, Input::Closed(closed(segment, closure)));
    }

    /// Tells the cleaner how far the table is, and carries out some of what it wants.
    pub(super) fn clean(&mut self, of: SidecarNo) {
        if self.plan.table.is_none() || self.keeps_all {
            return;
        }
        self.with_lead(of, |world, lead| {
            let Some(table) = lead.log.table() else { return };
            let (synced, live_bytes) = (lead.log.settled(), table.index().live_bytes());
            let mirroring = lead.table.as_ref().and_then(|table| table.mirroring.as_ref());
            let waits = mirroring.filter(|_| !planted::has(Bug::CleanerIgnoresMirrors));
            let published = waits.and_then(|mirroring| mirroring.published(world.time(of)));
            world.cleaner_input(of, lead, Input::Progress(Progress { synced, published, live_bytes }));
            world.cleaner_input(of, lead, Input::Tick);
            let wanted = lead.table.as_mut().map(|table| std::mem::take(&mut table.cleaning.wanted));
            for output in wanted.into_iter().flatten() {
                if world.random.one_in(3) {
                    lead.table.as_mut().expect("of a table").cleaning.wanted.push(output);
                } else {
                    world.execute_cleaner(of, lead, output);
                }
            }
        });
    }

    fn execute_cleaner(&mut self, of: SidecarNo, lead: &mut Lead, output: Output) {
        let name = self.sidecars[of.0].name.clone();
        let table = lead.table.as_mut().expect("of a table");
        match output {
            Output::Fetch(segment) => {
                let closed = lead.log.primary().closed();
                let found = closed.iter().find(|(identity, _)| identity.segment == segment).copied();
                let (identity, closure) = found.expect("what is not cleaned is not trimmed");
                let members = &lead.log.primary().config().members;
                let mut sources: Vec<HostNo> = self.hosts.iter().map(|host| host.no).collect();
                sources.sort_by_key(|no| members.iter().any(|member| member.id == self.hosts[no.0].name));
                // Now and then nobody can be reached.
                if self.random.one_in(10) {
                    sources.clear();
                }
                self.fetch_for_cleaner(of, lead, CleanerFetch { identity, closure, sources });
            }
            Output::Move(segment, from) => {
                let (identity, bytes) = table.cleaning.fetched.remove(&segment).expect("moved once it is here");
                let moved = self.judge_candidates(of, lead, &identity, &bytes, from);
                let cleaning = &mut lead.table.as_mut().expect("of a table").cleaning;
                cleaning.fetched.insert(segment, (identity, bytes));
                match moved {
                    Some(input) => self.cleaner_input(of, lead, input),
                    None => cleaning.wanted.push(output),
                }
            }
            Output::Forget(segment) => drop(table.cleaning.fetched.remove(&segment)),
            Output::Sync => lead.log.sync_table(),
            Output::Trim(below) => {
                trace!(self, "{name} has cleaned the log below {below}");
                self.tally.cleaned += 1;
                self.checks.trimmed(below);
                self.judge_named(of, lead, below);
                lead.log.step(self.time(of), primary::Input::Trim(below));
                self.judge_trimmed_table(lead);
            }
        }
    }

    /// What is left of the log has every key's acknowledged state (S18).
    pub(super) fn judge_trimmed_table(&self, lead: &Lead) {
        let machine = lead.machine();
        let closed = machine
            .closed()
            .iter()
            .flat_map(|(identity, closure)| (closure.first.0..=closure.last.0).map(|lsn| (identity.epoch, Lsn(lsn))));
        let next = machine.closed().back().map_or(machine.first(), |(_, closure)| closure.last.next());
        let open = (next.0..=lead.log.acked().0.0).map(|lsn| (lead.epoch, Lsn(lsn)));
        self.checks.table_trimmed(lead.epoch, closed.chain(open));
    }

    fn fetch_for_cleaner(&mut self, of: SidecarNo, lead: &mut Lead, mut fetch: CleanerFetch) {
        let CleanerFetch { identity, closure, ref mut sources } = fetch;
        match sources.pop() {
            Some(source) => {
                let request =
                    Request::Fetch(FetchRequest { group: group(), identity, closure, check: true, range: None });
                self.call(of, source, request, Purpose::Clean(Box::new(fetch)));
            }
            None => self.cleaner_input(of, lead, Input::NotFetched(identity.segment)),
        }
    }

    pub(super) fn on_cleaner_answer(&mut self, of: SidecarNo, fetch: CleanerFetch, answer: Result<Answer, Silence>) {
        self.with_lead(of, |world, lead| match answer {
            Ok(Answer::Bytes(bytes)) if verify(&bytes, &fetch.identity, &fetch.closure) => {
                let segment = fetch.identity.segment;
                let cleaning = &mut lead.table.as_mut().expect("of a table").cleaning;
                cleaning.fetched.insert(segment, (fetch.identity, bytes));
                world.cleaner_input(of, lead, Input::Fetched(segment));
            }
            _ => world.fetch_for_cleaner(of, lead, fetch),
        });
    }

    /// Offers a batch of a segment's records to the primary's log. `None`: it has no room for them now.
    fn judge_candidates(
        &mut self,
        of: SidecarNo,
        lead: &mut Lead,
        identity: &SegmentIdentity,
        bytes: &[u8],
        from: Lsn,
    ) -> Option<Input> {
        let mut scanner = Scanner::new(bytes, identity).expect("verified when it came");
        let (mut all, mut after) = (Vec::new(), from);
        loop {
            let start = scanner.closure().end;
            let Ok(append) = scanner.next_append() else { break };
            for (at, record) in positioned(identity.segment, start, &append).filter(|(_, record)| record.lsn >= from) {
                after = record.lsn.next();
                all.extend(Candidate::of(at, record));
            }
        }
        let at_once = *self.random.pick(&[usize::MAX, 1, 5]);
        let offered: Vec<Candidate<'_>> = batch(all.iter().copied()).take(at_once).collect();
        let before = lead.log.primary().positions().appended;
        let moved = lead.log.move_live(offered.iter().copied())?;
        self.tally.judged += moved.judged as u64;
        self.tally.moved += u64::from(moved.moved);
        self.tally.moved_bytes += moved.bytes;
        if moved.moved > 0 {
            self.note_moves(of, lead, before.segment, moved.appended, moved.moved);
        }
        let next = all.get(moved.judged).map_or(after, |candidate| candidate.lsn);
        let (segment, moved, appended) = (identity.segment, moved.moved, moved.appended);
        Some(Input::Moved { segment, next, moved, appended })
    }

    /// What was moved is in the log now: the checkers see its bytes.
    fn note_moves(&mut self, of: SidecarNo, lead: &Lead, before: SegmentId, last: Lsn, count: u32) {
        let first = Lsn(last.0 + 1 - u64::from(count));
        let identity = lead.log.primary().active().expect("moves were placed in it");
        let (_, published) = &lead.memory[&identity.segment];
        let bytes = published.bytes();
        let mut scanner = Scanner::new(&bytes, &identity).expect("a segment that is appended to");
        let (mut payloads, mut at) = (Vec::new(), None);
        loop {
            let start = scanner.closure().end;
            let Ok(append) = scanner.next_append() else { break };
            for record in append.records().filter(|record| record.lsn >= first) {
                at.get_or_insert(start.0);
                payloads.push(record.payload.into());
            }
        }
        let name = &self.sidecars[of.0].name;
        if payloads.len() != count as usize {
            broken("Table", format!("{name} says that it has moved {count} records, and {} are there", payloads.len()));
        }
        let from = at.expect("an append begins somewhere");
        if before != identity.segment {
            trace!(self, "{name} rolls to segment {}", identity.segment);
        }
        trace!(self, "{name} moves {} at {}:{from}", records(first, last), identity.segment);
        self.checks.table_moved(identity, first, from, &payloads);
    }
}
