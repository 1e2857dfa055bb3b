//! The fabric: writes in flight, one queue from each sidecar to each backup, landing when they are told to.

use tailwind_protocol::ids::{MemberId, SidecarId};
use tailwind_protocol::primary::Seat;

use super::World;
use super::network::{Reply, Write};

/// How much of a write lands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tear {
    /// All of it, and the sender learns of it.
    Whole,
    /// All of it; the completion is still on its way.
    Unseen,
    /// The card has all of it, and the sender learns of it; the host's processor does not see it yet.
    Early,
    /// The first bytes.
    Bytes(usize),
    /// These 64-byte lines of it.
    Lines(Vec<usize>),
}

/// What a network card writes at once.
const LINE_SIZE: usize = 64;

impl World {
    /// Lands the oldest write to this backup that has not landed; false when there is none.
    pub(crate) fn land(&mut self, from: &SidecarId, to: &MemberId, tear: &Tear) -> bool {
        self.land_beyond(0, from, to, tear)
    }

    /// Lets so many older writes lie and lands the next one: memory knows no order, only completions do.
    pub(crate) fn land_beyond(&mut self, older: usize, from: &SidecarId, to: &MemberId, tear: &Tear) -> bool {
        assert!(older == 0 || !matches!(tear, Tear::Whole | Tear::Early), "completions come in order");
        let queue = self.network.writes.entry((from.clone(), to.clone())).or_default();
        let completes = matches!(tear, Tear::Whole | Tear::Early);
        let wanted = |write: &Write| completes || !write.landed;
        let Some((at, _)) = queue.iter().enumerate().filter(|(_, write)| wanted(write)).nth(older) else {
            return false;
        };
        let mut write = queue[at].clone();
        let (slot, key) = write.lending;
        let host = self.hosts.get_mut(to).expect("a backup of this world");
        let mut put =
            |part: std::ops::Range<usize>| host.land(slot, key, write.from.0 as usize + part.start, &write.bytes[part]);
        let length = write.bytes.len();
        let channel = (from.clone(), write.life, write.seat);
        let reachable = !self.cuts.contains(&(from.clone(), to.clone())) && !self.network.broken.contains(&channel);
        let landed = reachable
            && (write.landed
                || match tear {
                    Tear::Whole | Tear::Unseen => put(0..length),
                    Tear::Early => {
                        put(0..length) && {
                            let from = write.from.0 as usize;
                            host.hide(slot, from..from + length);
                            true
                        }
                    }
                    Tear::Bytes(count) => put(0..length.min(*count)),
                    Tear::Lines(lines) => {
                        let ends = |line: usize| (length.min(line * LINE_SIZE), length.min((line + 1) * LINE_SIZE));
                        lines.iter().map(|line| ends(*line)).all(|(start, end)| put(start..end))
                    }
                });
        if !landed {
            self.network.broken.insert(channel);
        }
        match tear {
            Tear::Whole | Tear::Early => {
                let queue = self.network.writes.get_mut(&(from.clone(), to.clone())).expect("just seen");
                queue.remove(at);
                self.tell_write(from, to, &write, landed);
                if landed && !write.landed && *tear == Tear::Early {
                    self.tell(format!("{to} does not see it yet"));
                }
                self.hand_over(from, write.life, Reply::Written(write.seat, landed));
            }
            _ => {
                write.landed = landed && *tear == Tear::Unseen;
                let part = if write.landed { "" } else { "a part of " };
                let unseen = if write.landed { "; the completion is on its way" } else { "" };
                let from_to = format!("{}:{}..{}", write.segment, write.from, write.from.0 as usize + length);
                let verb = if landed { "takes" } else { "refuses" };
                self.tell(format!("{to} {verb} {part}{from_to} from {from}{unseen}"));
                let queue = self.network.writes.get_mut(&(from.clone(), to.clone())).expect("just seen");
                queue[at] = write;
            }
        }
        true
    }

    fn tell_write(&mut self, from: &SidecarId, to: &MemberId, write: &Write, landed: bool) {
        let end = write.from.0 as usize + write.bytes.len();
        let what = format!("{}:{}..{end}", write.segment, write.from);
        if landed && write.landed {
            return self.tell(format!("{from} learns that {to} has {what}"));
        }
        let verb = if landed { "takes" } else { "refuses" };
        self.tell(format!("{to} {verb} {what} from {from}"));
    }

    pub(crate) fn on_written(&mut self, by: &SidecarId, seat: Seat, landed: bool) {
        let Some(lead) = self.sidecar_mut(by).lead_mut() else { return };
        // The channel is gone: what it still brings is not awaited.
        if !lead.channels.contains_key(&seat) {
            return;
        }
        if !landed {
            return self.lose_seat(by, seat, "its fabric refused a write");
        }
        lead.machine.completed(usize::from(seat.index), 1);
        self.pump(by);
    }

    /// Lands one write of anyone to anyone.
    pub(crate) fn move_write(&mut self) -> bool {
        let pairs: Vec<(SidecarId, MemberId)> = self.pairs_with_writes();
        // A stopped sidecar's card goes on by itself; a dead one's does not.
        pairs.into_iter().any(|(from, to)| {
            !self.sidecar(&from).paused && self.is_running(&from) && self.land(&from, &to, &Tear::Whole)
        })
    }

    /// What one backup's card has taken becomes visible to its processor.
    pub(crate) fn move_hidden(&mut self) -> bool {
        let hides = self.hosts.values().find(|host| host.hides()).map(|host| host.name.clone());
        hides.map(|name| self.show(&name)).is_some()
    }

    /// What this backup's card has taken becomes visible to its processor.
    pub(crate) fn show(&mut self, name: &MemberId) {
        self.host_mut(name).show();
        self.tell(format!("{name} sees all that it has taken"));
    }

    fn is_running(&self, name: &SidecarId) -> bool {
        !matches!(self.sidecar(name).role, super::Role::Down)
    }

    pub(crate) fn pairs_with_writes(&self) -> Vec<(SidecarId, MemberId)> {
        self.network.writes.iter().filter(|(_, queue)| !queue.is_empty()).map(|(pair, _)| pair.clone()).collect()
    }
}
