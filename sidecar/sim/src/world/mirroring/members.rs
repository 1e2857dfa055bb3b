//! Which members have mirrors: each of the set is asked for a channel and for its parts, again after a loss.

use std::sync::Arc;

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::board::mirror::{MirrorLine, PartSize};
use tailwind_protocol::ids::{Epoch, Lsn};
use tailwind_protocol::table::mirror::{Input, MirrorId};

use super::super::fabric::Key;
use super::super::host::Running;
use super::super::lead::Lead;
use super::super::network::{Answer, RPC_TIMEOUT, Silence};
use super::super::sidecar::{Notice, Purpose};
use super::super::sides::{PART, PartsLending};
use super::super::{Event, HostNo, SidecarNo, World};
use super::{ASK_AGAIN, Mirror, Posted, Stage};
use crate::trace::trace;

impl World {
    /// Members have come or gone, or are to be asked once more.
    pub(in crate::world) fn see_members(&mut self, of: SidecarNo) {
        let now = self.queue.now();
        let mut asks = Vec::new();
        self.with_lead(of, |world, lead| {
            let members = lead.machine().config().members.clone();
            let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
            let here = |mirror: &Mirror| members.iter().any(|member| member.is_same(&mirror.member));
            let gone: Vec<MirrorId> =
                mirroring.mirrors.iter().filter(|(_, mirror)| !here(mirror)).map(|(id, _)| *id).collect();
            for member in members {
                if !mirroring.mirrors.values().any(|mirror| mirror.member.is_same(&member)) {
                    mirroring.count += 1;
                    let mut mirror = Mirror::new(member, world);
                    if mirroring.barred.iter().any(|barred| barred.is_same(&mirror.member)) {
                        mirror.stage = Stage::Barred;
                    }
                    mirroring.mirrors.insert(MirrorId(mirroring.count), mirror);
                }
            }
            for (id, mirror) in &mut mirroring.mirrors {
                if mirror.channel.is_none() && mirror.ask_at <= now && mirror.stage != Stage::Barred {
                    mirror.ask_at = now + RPC_TIMEOUT + ASK_AGAIN;
                    asks.push((*id, mirror.host, lead.caller.clone()));
                }
            }
            for id in gone {
                world.leave_mirror(of, lead, id);
            }
        });
        for (id, host, caller) in asks {
            self.call(of, host, Request::Connect(caller), Purpose::Mirror(id));
        }
    }

    pub(super) fn leave_mirror(&mut self, of: SidecarNo, lead: &mut Lead, id: MirrorId) {
        let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
        let Some(mirror) = mirroring.mirrors.remove(&id) else { return };
        let is_known = mirror.is_known;
        if mirror.stage == Stage::Barred || mirror.posted.contains(&Posted::Board) {
            mirroring.barred.push(mirror.member);
        }
        if let Some(channel) = mirror.channel {
            self.close_sender(channel);
        }
        if is_known {
            self.mirror_input(of, lead, Input::Left(id), false);
        }
    }

    /// A member has answered that it takes a mirror's channel.
    pub(in crate::world) fn on_mirror_answer(&mut self, of: SidecarNo, id: MirrorId, answer: Result<Answer, Silence>) {
        let now = self.queue.now();
        let connected =
            if let Ok(Answer::Connected(boot, channel, board)) = answer { Some((boot, channel, board)) } else { None };
        self.with_lead(of, |world, lead| {
            let mirroring = lead.table.as_mut().and_then(|table| table.mirroring.as_mut());
            let view = mirroring.as_ref().map(|mirroring| Arc::clone(&mirroring.view));
            let mirror = mirroring.and_then(|mirroring| mirroring.mirrors.get_mut(&id));
            match (mirror, connected) {
                (Some(mirror), Some((boot, channel, Some(board))))
                    if boot == mirror.member.boot && mirror.channel.is_none() =>
                {
                    (mirror.channel, mirror.board) = (Some(channel), Some(board));
                    let view = view.expect("there are mirrors");
                    let filling = MirrorLine {
                        published: Lsn(0),
                        hash_key: *view.hash_key(),
                        buckets: view.buckets(),
                        part_size: PartSize::new(PART).expect("a size"),
                        live: false,
                    };
                    world.post_mirror_line(lead, id, &filling, Posted::Filling);
                }
                (mirror, Some((_, channel, _))) => {
                    world.close_sender(channel);
                    mirror.into_iter().for_each(|mirror| mirror.ask_at = now + ASK_AGAIN);
                }
                (Some(mirror), None) => mirror.ask_at = now + ASK_AGAIN,
                (None, None) => {}
            }
        });
    }

    /// Its board says that the mirror is being filled: now its member is asked for memory.
    pub(super) fn ask_for_parts(&mut self, of: SidecarNo, lead: &Lead, id: MirrorId) {
        let Some(mirroring) = lead.table.as_ref().and_then(|table| table.mirroring.as_ref()) else { return };
        let Some(mirror) = mirroring.mirrors.get(&id) else { return };
        // One that was lent and never written to is asked for again.
        let (host, asks) = (mirror.host, ((lead.epoch, mirroring.count), mirroring.parts));
        let delay = self.message_delay();
        let life = self.sidecars[of.0].life;
        self.queue.plan(delay, Event::LendParts(of, life, id, host, asks));
    }

    /// The request for a mirror's parts has come to the backup's host.
    pub(in crate::world) fn on_lend_parts(
        &mut self,
        (of, life, id): (SidecarNo, u32, MirrorId),
        host: HostNo,
        (lending, parts): (PartsLending, u32),
    ) {
        let reached = self.cuts.is_whole(of, host) && self.hosts[host.0].running == Running::Up;
        let lent = if reached { self.lend_parts(host, lending, parts) } else { None };
        let delay = self.message_delay();
        self.queue.plan(delay, Event::Sidecar(of, life, Notice::PartsLent(id, lending.0, lent)));
    }

    pub(in crate::world) fn on_parts_lent(
        &mut self,
        of: SidecarNo,
        id: MirrorId,
        epoch: Epoch,
        lent: Option<Vec<(Slot, Key)>>,
    ) {
        let now = self.queue.now();
        if self.sidecars[of.0].lead().is_none_or(|lead| lead.epoch != epoch) {
            return;
        }
        self.with_lead(of, |world, lead| {
            let Some(mirroring) = lead.table.as_mut().and_then(|table| table.mirroring.as_mut()) else { return };
            let Some(mirror) = mirroring.mirrors.get_mut(&id) else { return };
            let Some(channel) = mirror.channel.filter(|_| mirror.stage != Stage::Written) else { return };
            let Some(parts) = lent else {
                (mirror.channel, mirror.ask_at) = (None, now + ASK_AGAIN);
                return world.close_sender(channel);
            };
            let mut mirror = mirroring.mirrors.remove(&id).expect("it was looked at");
            let was_lost = mirror.stage == Stage::Lost;
            (mirror.parts, mirror.stage, mirror.is_known) = (parts, Stage::Written, true);
            mirroring.count += 1;
            let new = MirrorId(mirroring.count);
            trace!(world, "{} fills a mirror at {}", world.sidecars[of.0].name, world.hosts[mirror.host.0].name);
            mirroring.mirrors.insert(new, mirror);
            world.tally.reopened += u64::from(was_lost);
            if was_lost {
                world.mirror_input(of, lead, Input::Left(id), false);
            }
            world.mirror_input(of, lead, Input::Lent(new), false);
        });
    }
}
