//! The fabric: posted writes land whole or in part, complete, or can land no more.
//!
//! Called by [`act`](super::act).

use tailwind_protocol::layout::RECORD_HEADER_SIZE;

use super::scenario::Wrong;
use super::state::{Lane, Write, WriteState};
use super::step::Step;

/// Which part of a write is visible before the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tear {
    /// Its first header, and nothing of what the header promises.
    Header,
    /// All but its last word: header and payload without the checksum.
    NoChecksum,
    /// All but its first header: payload and checksum without what they belong to.
    NoHeader,
}

impl Tear {
    /// All of them.
    pub(super) const ALL: [Tear; 3] = [Tear::Header, Tear::NoChecksum, Tear::NoHeader];

    fn part(self, length: usize) -> std::ops::Range<usize> {
        match self {
            Tear::Header => 0..RECORD_HEADER_SIZE,
            Tear::NoChecksum => 0..length - 8,
            Tear::NoHeader => RECORD_HEADER_SIZE..length,
        }
    }
}

impl Step<'_> {
    /// Lands a write, or a part of it.
    pub(super) fn land(&mut self, side: usize, host: usize, at: usize, tear: Option<Tear>) {
        let write = self.state.writes[side][host][at].clone();
        let range = tear.map_or(0..write.bytes.len(), |tear| tear.part(write.bytes.len()));
        let (_, slot, _) = write.lending;
        let from = write.from.0 as usize;
        let broken = self.state.hosts[host].land(slot, from + range.start, &write.bytes[range]);
        let (what, member, name) = (place(&write), self.names.members[host].clone(), self.side_name(side).clone());
        self.trace(|| match tear {
            None => format!("{member} takes {what} from {name}"),
            Some(tear) => format!("{member} takes a part of {what} from {name}: {tear:?}"),
        });
        if let Some(rule) = broken {
            self.breaks(rule);
        }
        if tear.is_none() {
            self.state.writes[side][host][at].flight = WriteState::Landed;
        }
    }

    /// The sender learns how a write has ended.
    pub(super) fn complete(&mut self, side: usize, host: usize, at: usize) {
        let queue = &mut self.state.writes[side][host];
        // Only a wrong environment reports what is still flying; then the write goes on, and is not reported again.
        let early = queue[at].flight == WriteState::Flying;
        queue[at].counted |= early;
        let write = if early { Some(queue[at].clone()) } else { queue.remove(at) };
        let write = write.expect("an action speaks of a write in flight");
        let landed = write.flight != WriteState::Refused;
        let (what, member, name) = (place(&write), self.names.members[host].clone(), self.side_name(side).clone());
        let verb = if landed { "has" } else { "refuses" };
        self.trace(|| format!("{name} learns that {member} {verb} {what}"));
        match write.lane {
            Lane::Image(image) => self.on_image_written(side, *image, landed),
            Lane::Post(_) if write.counted && !early => {}
            Lane::Post(seat) => {
                let Some(lead) = self.state.sides[side].lead_mut() else { return };
                if !lead.channels.contains_key(&seat) {
                    return;
                }
                if !landed {
                    return self.lose_seat(side, seat, "its fabric refused a write");
                }
                lead.machine.completed(usize::from(seat.index), 1);
                if self.scenario.wrong == Wrong::OneCompletionForAll {
                    self.complete_elsewhere(side, host);
                }
                self.pump(side);
            }
        }
    }

    /// The sender learns at once of everything that has landed in its turn.
    pub(super) fn complete_all(&mut self, side: usize, host: usize) {
        loop {
            let queue = &self.state.writes[side][host];
            let landed = |at: &usize| {
                let earlier = || queue.iter().take(*at).any(|earlier| earlier.lane.same(&queue[*at].lane));
                let awaited = queue[*at].life == self.state.sides[side].life && !queue[*at].counted;
                queue[*at].flight == WriteState::Landed && awaited && !earlier()
            };
            let Some(at) = (0..queue.len()).find(landed) else { return };
            self.complete(side, host, at);
        }
    }

    /// Wrong on purpose: every other member's oldest write counts as complete too.
    fn complete_elsewhere(&mut self, side: usize, host: usize) {
        for other in (0..self.names.members.len()).filter(|other| *other != host) {
            let queue = &mut self.state.writes[side][other];
            let Some(write) = queue.iter_mut().find(|write| !write.counted) else { continue };
            let Lane::Post(seat) = write.lane else { continue };
            write.counted = true;
            if let Some(lead) = self.state.sides[side].lead_mut() {
                lead.machine.completed(usize::from(seat.index), 1);
            }
        }
    }
}

fn place(write: &Write) -> String {
    let end = write.from.0 as usize + write.bytes.len();
    format!("{}:{}..{end}", write.segment, write.from)
}
