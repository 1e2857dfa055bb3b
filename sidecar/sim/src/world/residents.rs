//! Residents: closed copies that keep a buffer after their flush. What reads them back from disk, and what befalls them.
//!
//! They are a cache: what happens to one excuses nothing, and no checker takes one for a copy.

use tailwind_backup::is_rot;
use tailwind_protocol::backup::{Input, Place, Slot};

use super::host::{HostEvent, Running};
use super::queue::MS;
use super::{Event, HostNo, World};
use crate::trace::trace;

impl World {
    /// A backup reads the closed copy that is to be a resident next. Until its process has the bytes, anything may happen to it.
    pub(super) fn load_one(&mut self, no: HostNo) {
        let host = &mut self.hosts[no.0];
        let Some(process) = host.process.as_ref().filter(|_| host.running == Running::Up) else { return };
        let Some((identity, closure)) = process.daemon.machine().loadable() else { return };
        match process.daemon.disk().read_closed(&identity, &closure) {
            Ok(bytes) => {
                let life = host.life;
                let takes = self.random.within(1, 40) * MS;
                self.queue.plan(takes, Event::Host(no, life, HostEvent::Read(identity, closure, bytes)));
            }
            Err(error) if is_rot(&error) => {
                trace!(self, "{} loads segment {}: corrupt", self.hosts[no.0].name, identity.segment);
                self.notify_host(no, Input::FoundCorrupt(identity, Place::Disk));
            }
            Err(_) => {}
        }
    }

    /// A bit flips in a resident, or its memory is gone.
    pub(super) fn harm_resident(&mut self, no: HostNo, is_lost: bool) -> bool {
        let slots: Vec<Slot> = self.hosts[no.0].residents.keys().copied().collect();
        let Some(slot) = self.random.pick_one(&slots).copied() else { return false };
        let (at, bit) = (self.random.below(2000) as usize, self.random.below(8) as u8);
        let host = &mut self.hosts[no.0];
        let segment = host.residents[&slot].identity.segment;
        match is_lost {
            true => host.pool.forget(slot),
            false => host.pool.flip(slot, at, bit),
        }
        let how = if is_lost { "is lost" } else { "rots" };
        trace!(self, "the resident of segment {segment} {how} at {}", self.hosts[no.0].name);
        true
    }
}
