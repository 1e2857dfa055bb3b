//! What a getter needs of others than the member that it visits, and what is false in what it is given.

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::ids::{Lsn, SegmentId};
use tailwind_protocol::rpc::{CopyState, FetchRequest, TermRequest};
use tailwind_protocol::table::getter::Input;

use super::super::lead::About;
use super::super::network::{Answer, Silence};
use super::super::sidecar::{Notice, Process, Purpose, Sidecar};
use super::super::{Event, HostNo, SidecarNo, World, group};
use super::{GetterFetch, GetterNotice};
use crate::tally::Fault;
use crate::trace::trace;

impl World {
    /// A getter's question for a position has come to the primary, if there is one and it can be reached.
    pub(in crate::world) fn on_ask_position(&mut self, of: SidecarNo, life: u32, question: u64) {
        let asked = self.queue.now();
        let Some(view) = self.sidecars[of.0].view.clone().filter(|_| self.sidecars[of.0].life == life) else { return };
        let owner = self.sidecars.iter().find(|other| other.reference().control == view.primary.control);
        let leads = |other: &&Sidecar| TermRequest::of(group(), &view).is_for(&other.name, other.tenure);
        let up = owner.filter(leads).filter(|other| other.process == Process::Up && other.lead().is_some());
        let Some(no) = up.map(|other| other.no).filter(|no| !self.cuts.are_peers_apart(of, *no)) else { return };
        self.with_lead(no, |_, lead| lead.prove(asked, About::Position(of, life, question)));
    }

    /// The primary has proved that it was that after the question.
    pub(in crate::world) fn tell_position(&mut self, of: SidecarNo, life: u32, question: u64, last: Lsn) {
        let delay = self.message_delay();
        let told = Notice::Getter(GetterNotice::Told(question, Ok(last)));
        self.queue.plan(delay, Event::Sidecar(of, life, told));
    }

    pub(in crate::world) fn segment_in(&self, no: HostNo, slot: Slot) -> Option<SegmentId> {
        let host = &self.hosts[no.0];
        host.rows.get(&slot).or(host.residents.get(&slot)).map(|row| row.identity.segment)
    }

    /// Asks one backup after the other whether it has the segment closed, and then for the bytes.
    pub(in crate::world) fn fetch_for_getter(&mut self, of: SidecarNo, mut fetch: GetterFetch) {
        let Some(source) = fetch.sources.pop() else {
            let (visit, get) = (fetch.visit, fetch.get);
            return self.getter_input(of, Input::Fetched(visit, get, Err("nobody has it")));
        };
        fetch.copy = None;
        self.call(of, source, Request::Inventory(None), Purpose::GetterFetch(Box::new(fetch), source));
    }

    pub(in crate::world) fn on_getter_fetch(
        &mut self,
        of: SidecarNo,
        mut fetch: GetterFetch,
        source: HostNo,
        answer: Result<Answer, Silence>,
    ) {
        match (answer, &fetch.copy) {
            (Ok(Answer::Inventory(inventory)), None) => {
                let segment = fetch.segment;
                let found = inventory.copies.iter().find(|copy| {
                    copy.identity.segment == segment
                        && copy.state == CopyState::Closed
                        && copy.closure.end.0 >= fetch.bytes.end
                });
                let Some((identity, closure)) = found.map(|copy| (copy.identity, copy.closure)) else {
                    return self.fetch_for_getter(of, fetch);
                };
                self.rot_before_pull(source, segment);
                fetch.copy = Some((identity, closure));
                let range = Some(fetch.bytes.clone());
                let request = FetchRequest { group: group(), identity, closure, check: false, range };
                let purpose = Purpose::GetterFetch(Box::new(fetch), source);
                self.call(of, source, Request::Fetch(request), purpose);
            }
            (Ok(Answer::Bytes(bytes)), Some(_)) => {
                self.getter_input(of, Input::Fetched(fetch.visit, fetch.get, Ok(&bytes)));
            }
            _ => self.fetch_for_getter(of, fetch),
        }
    }

    /// What a getter is given of a member's memory is false in one bit or one field, now and then.
    pub(in crate::world) fn perhaps_falsify(&mut self, from: HostNo, bytes: &mut [u8]) {
        if bytes.is_empty() || !self.fault_occurs(Fault::ReadIsFalse, 30) {
            return;
        }
        // A field, or one byte of it.
        let size = *self.random.pick(&[1, 2, 4, 8, 16]);
        let at = self.random.below(bytes.len() as u64) as usize / size * size;
        let field = at..(at + size).min(bytes.len());
        match self.random.below(3) {
            0 => bytes[field.start] ^= 1 << self.random.below(8),
            1 => bytes[field].fill(0xff),
            _ => bytes[field].iter_mut().for_each(|byte| *byte = self.random.next() as u8),
        }
        trace!(self, "{} gives a getter false bytes", self.hosts[from.0].name);
    }

    /// Which segment is shared when this one is asked for: now and then another.
    pub(in crate::world) fn perhaps_another(&mut self, no: HostNo, segment: SegmentId) -> SegmentId {
        let another = SegmentId((segment.0 + self.random.below(3)).max(2) - 1);
        if another == segment || !self.fault_occurs(Fault::ShareIsFalse, 300) {
            return segment;
        }
        trace!(self, "{} shares segment {another}, asked for {segment}", self.hosts[no.0].name);
        another
    }
}
