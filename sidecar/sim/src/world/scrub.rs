//! Scrub and repair: each backup reads its own closed copies, primaries ask what is corrupt; and whether all of it is
//! mended in the end.
//!
//! In worlds where copies rot. The reads are the production ones ([`tailwind_backup::scrub`]); so many that in calm
//! times every copy is read within seconds.

use tailwind_backup::{is_rot, scrub};
use tailwind_protocol::backup::{Input, Request};
use tailwind_protocol::ids::SegmentId;
use tailwind_protocol::layout::{Closure, Sealed, SegmentIdentity};
use tailwind_protocol::primary::{self, Seat};
use tailwind_protocol::scan::verify;

use super::host::{Host, Running};
use super::network::{Answer, Silence};
use super::queue::{MS, Micros};
use super::sidecar::{Process, Purpose};
use super::{HostNo, SidecarNo, World};
use crate::check::broken;
use crate::tally::Fault;
use crate::trace::trace;

/// Pause between two questions what is corrupt.
const ASK: Micros = 500 * MS;
/// Without faults everything is mended within this time: a pass over some hundred copies at ten a second, and the six
/// seconds after which a primary tries again what could not be mended.
const REPAIR_TIME_MAX: Micros = 60_000 * MS;

impl World {
    /// A backup reads its next closed copy, at one moment: it does not move meanwhile.
    pub(super) fn scrub_one(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let Some(process) = host.process.as_ref().filter(|_| host.running == Running::Up) else { return };
        if !self.plan.has(Fault::ClosedBitFlip) {
            return;
        }
        let machine = process.daemon.machine();
        let next = machine.closed_behind(host.scrubbed).filter(|(_, next, _)| next.segment <= host.scrub_until);
        let Some((place, identity, closure)) = next else {
            (host.scrubbed, host.scrub_until) = (SegmentId(0), machine.newest_closed());
            return;
        };
        host.scrubbed = identity.segment;
        let found = scrub(process.daemon.disk(), &host.pool, place, &identity, &closure);
        if found.is_err_and(|error| is_rot(&error)) {
            trace!(self, "{} scrubs segment {}: corrupt", self.hosts[no.0].name, identity.segment);
            self.notify_host(no, Input::FoundCorrupt(identity, place));
        }
    }

    /// A backup reads all its closed copies.
    pub(crate) fn scrub_all(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let newest = host.process.as_ref().map(|process| process.daemon.machine().newest_closed());
        (host.scrubbed, host.scrub_until) = (SegmentId(0), newest.unwrap_or_default());
        self.scrub_one(no);
        while self.hosts[no.0].scrubbed > SegmentId(0) {
            self.scrub_one(no);
        }
    }

    /// A primary asks its members what is corrupt there.
    pub(super) fn ask_for_damage(&mut self, of: SidecarNo) {
        let now = self.queue.now();
        // An open buffer that has rotted is found corrupt when it is closed.
        let asks = self.plan.has(Fault::ClosedBitFlip) || self.plan.has(Fault::OpenBitFlip);
        self.with_lead(of, |world, lead| {
            if !asks || now < lead.asked + ASK {
                return;
            }
            lead.asked = now;
            for (seat, link) in lead.links.iter().filter(|(_, link)| link.channel.is_some()) {
                world.call(of, link.host, Request::Damage, Purpose::Damage(*seat));
            }
        });
    }

    pub(super) fn on_damage_answer(&mut self, of: SidecarNo, seat: Seat, answer: Result<Answer, Silence>) {
        if let Ok(Answer::Damage(copies)) = answer {
            self.primary_input(of, primary::Input::Damaged(seat, copies));
        }
    }

    /// A bit flips at each backup whose loss the group would survive, under a primary that lives; then plays on until no
    /// member of the set has a rotten copy of a closed segment that somebody else can give. Meanwhile apps trim nothing: a
    /// trim would excuse what nobody mends.
    pub(super) fn repair_all(&mut self) {
        if !self.plan.has(Fault::ClosedBitFlip) {
            return;
        }
        self.keeps_all = true;
        for no in (0..self.hosts.len()).map(HostNo) {
            if self.flip_closed_bit(no) {
                self.tally.count(Fault::ClosedBitFlip);
            }
        }
        let calm = self.queue.now();
        while let Some(why) = self.unrepaired() {
            if self.queue.now() > calm + REPAIR_TIME_MAX {
                broken("Repair", why);
            }
            // Looking at every byte takes longer than most steps.
            self.play_for(ASK);
        }
        self.keeps_all = false;
    }

    fn unrepaired(&self) -> Option<String> {
        let leads = self.sidecars.iter().filter(|sidecar| sidecar.process == Process::Up);
        let Some(lead) = leads.filter_map(super::Sidecar::lead).find(|lead| !lead.machine().is_over()) else {
            return Some("nobody leads".to_owned());
        };
        for member in &lead.machine().config().members {
            let host = &self.hosts[self.host_of(&member.id).0];
            for (identity, closure) in lead.machine().closed() {
                let elsewhere = || self.hosts.iter().any(|other| has_sound(other, identity, closure));
                if host.boot == member.boot && !has_sound(host, identity, closure) && elsewhere() {
                    return Some(format!("segment {} stays corrupt at {}", identity.segment, member.id));
                }
            }
        }
        None
    }
}

/// Looks at the bytes, never at what the machine believes.
pub(super) fn has_sound(host: &Host, identity: &SegmentIdentity, closure: &Closure) -> bool {
    let end = closure.end.0 as usize;
    let in_file = || {
        let node = host.files.segment(identity.segment, Sealed::Closed)?;
        let inode = node.inode();
        Some(verify(inode.bytes().get(..end)?, identity, closure))
    };
    let closed = host.rows.iter().filter(|(_, row)| row.identity == *identity && row.closed == Some(*closure));
    let mut slots = closed.map(|(slot, _)| host.bytes(*slot, 0..end));
    slots.any(|bytes| verify(bytes, identity, closure)) || in_file().unwrap_or(false)
}
