//! What befalls mirrors; and that all are well in the end.

use tailwind_protocol::table::mirror::State;

use super::super::faults::Heal;
use super::super::queue::Micros;
use super::super::sidecar::{Process, Sidecar, TICK};
use super::super::{Event, HostNo, RETURN_MAX, World};
use super::Stage;
use crate::check::broken;
use crate::tally::Fault;
use crate::trace::trace;

impl World {
    /// Nothing comes through the channel of one of the mirrors for a while, or it breaks.
    pub(in crate::world) fn cut_mirror(&mut self, host: HostNo, heal: Micros) -> bool {
        let leads = self.sidecars.iter().find_map(|sidecar| sidecar.lead().map(|lead| (sidecar.no, lead)));
        let Some((_, lead)) = leads else { return false };
        let mirroring = lead.table.as_ref().and_then(|table| table.mirroring.as_ref());
        let mirror = mirroring.and_then(|mirroring| mirroring.mirrors.values().find(|mirror| mirror.host == host));
        let Some(channel) = mirror.and_then(|mirror| mirror.channel) else { return false };
        trace!(self, "the channel of the mirror at {} is cut", self.hosts[host.0].name);
        if self.random.one_in(3) {
            self.break_channel(channel, true);
        } else {
            self.cut_channel(channel, true);
            self.queue.plan(heal, Event::Heal(Heal::Channel(channel)));
        }
        true
    }

    /// Everything is well: every mirror becomes live, and shows just what the log folds to.
    pub(in crate::world) fn mirrors_become_live(&mut self) {
        if self.plan.mirrors.is_none() {
            return;
        }
        let calm = self.queue.now();
        self.quiet = true;
        while let Some(why) = self.lacking_mirror() {
            if self.queue.now() > calm + RETURN_MAX {
                broken("S21", format!("a table is left alone, and {why}"));
            }
            self.play_for(TICK);
        }
        self.quiet = false;
    }

    fn lacking_mirror(&self) -> Option<String> {
        let epoch = self.store.content().map(|config| config.epoch);
        let mut leads = self.sidecars.iter().filter(|sidecar| sidecar.process == Process::Up);
        let Some(lead) = leads.find_map(|sidecar| sidecar.lead().filter(|lead| Some(lead.epoch) == epoch)) else {
            return Some("nobody leads".to_owned());
        };
        let mirroring = lead.table.as_ref().and_then(|table| table.mirroring.as_ref())?;
        for member in &lead.machine().config().members {
            let host = self.host_of(&member.id);
            if self.parts_at(host) < mirroring.parts {
                continue;
            }
            let name = &member.id;
            let known = mirroring.mirrors.iter().find(|(_, mirror)| mirror.member.is_same(member));
            let Some((id, mirror)) = known else { return Some(format!("{name} has no mirror")) };
            if mirror.stage == Stage::Barred {
                continue;
            }
            let state = mirroring.machine.states().find(|(state, ..)| state == id).map(|(_, state, _)| state);
            if state != Some(State::Live) {
                return Some(format!("the mirror at {name} is {state:?}"));
            }
            if let Some(why) = self.mirror_differs(host, lead.epoch) {
                return Some(format!("the mirror at {name}: {why}"));
            }
        }
        None
    }

    /// There is no mirror that a getter could read, and will be none in this epoch.
    pub(in crate::world) fn no_mirror_is_left(&self) -> bool {
        let leads = self.sidecars.iter().filter_map(Sidecar::lead);
        let Some(lead) = leads.max_by_key(|lead| lead.epoch) else { return true };
        let Some(mirroring) = lead.table.as_ref().and_then(|table| table.mirroring.as_ref()) else { return true };
        !mirroring.mirrors.values().any(|mirror| mirror.stage == Stage::Written)
    }

    /// A fault of mirrors strikes.
    pub(in crate::world) fn harm_mirror(&mut self, fault: Fault, host: HostNo, heal: Micros) -> bool {
        match fault {
            Fault::MirrorCut => self.cut_mirror(host, heal),
            Fault::ShareEnds => self.end_mirror_share(host),
            Fault::MirrorEntryLost => self.zero_entry(host),
            _ => self.flip_mirror_bit(host),
        }
    }
}
