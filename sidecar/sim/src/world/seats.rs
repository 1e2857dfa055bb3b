//! A primary's members: what their answers and silences mean.
//!
//! Called by [`lead`](super::lead) and [`sidecar`](super::sidecar).

use tailwind_protocol::backup::Slot;
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::ids::{Offset, SegmentId};
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::rpc::{Failure, Refusal};

use super::fabric::{ChannelId, Key};
use super::host::Running;
use super::image::RETRY_LATER;
use super::network::{Answer, Silence};
use super::queue::Micros;
use super::sidecar::{Again, HEARTBEAT_SILENCE, Role, failure};
use super::{HostNo, SidecarNo, World};
use crate::trace::trace;

/// The way to one member.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) member: MemberRef,
    pub(super) host: HostNo,
    /// The backup's process when it took its seat: with another one its connections have ended.
    pub(super) life: u32,
    pub(super) heard: Micros,
    /// What its last heartbeat said: whether readers look at its board.
    pub(super) followed: bool,
    pub(super) channel: Option<ChannelId>,
    /// It has lent its board.
    board: bool,
}

impl World {
    pub(super) fn link_to(&self, member: MemberRef) -> Link {
        let host = self.host_of(&member.id);
        let (life, heard) = (self.hosts[host.0].life, self.queue.now());
        Link { member, host, life, heard, followed: false, channel: None, board: false }
    }

    /// A member has answered what it was asked for an output.
    pub(crate) fn on_seat_answer(&mut self, of: SidecarNo, output: Output, answer: Result<Answer, Silence>) {
        if let (Ok(Answer::Granted(slot, key, board)), Output::Open(seat, identity)) = (&answer, &output) {
            return self.on_lent(of, *seat, identity.segment, (*slot, *key), *board);
        }
        let Some(link) = output.seat().and_then(|seat| self.link(of, seat)) else { return };
        let mut flushed = Offset(0);
        match (answer, &output) {
            (Ok(Answer::Connected(boot, channel, board)), Output::Connect(seat, _)) if boot == link.member.boot => {
                (link.channel, link.board) = (Some(channel), board.is_some());
                let (seat, now) = (*seat, self.time(of));
                return self.with_lead(of, |world, lead| {
                    let sender = world.sender(channel, &lead.wire);
                    lead.log.connected(seat, sender, board, now);
                });
            }
            // Other memory behind the name: this is not the member that was meant.
            (Ok(Answer::Connected(_, channel, _)), _) => {
                self.close_sender(channel);
                return self.seat_failed(of, &output, &Failure::Unreachable("it has restarted".to_owned()));
            }
            (Ok(Answer::Flushed(end)), _) => flushed = end,
            // An answer of another kind than was asked for fails, as in production.
            (Ok(Answer::Done), output)
                if !matches!(output, Output::Connect(..) | Output::Open(..) | Output::Flush(..)) => {}
            (
                Ok(Answer::Refused(Refusal::RetryLater { .. })),
                Output::Open(..) | Output::Close(..) | Output::Sync(..),
            ) => {
                return self.plan_again(of, RETRY_LATER, Again::Output(Box::new(output)));
            }
            (other, _) => return self.seat_failed(of, &output, &failure(other)),
        }
        if let Some(done) = output.done(flushed) {
            self.primary_input(of, done);
        }
    }

    /// A member has lent a buffer, and perhaps its board: also one whose seat another has now. The log knows.
    fn on_lent(
        &mut self,
        of: SidecarNo,
        seat: Seat,
        segment: SegmentId,
        buffer: (Slot, Key),
        board: Option<(Slot, Key)>,
    ) {
        let news = board.filter(|_| self.link(of, seat).is_none_or(|link| !std::mem::replace(&mut link.board, true)));
        let now = self.time(of);
        self.with_lead(of, |_, lead| {
            if let Some(board) = news {
                lead.log.board_lent(seat, board);
            }
            lead.log.opened(seat, segment, buffer, now);
        });
    }

    pub(super) fn seat_failed(&mut self, of: SidecarNo, output: &Output, failure: &Failure) {
        if let Some(input) = output.failed(failure) {
            self.primary_input(of, input);
        }
    }

    /// Asks once more, if the member still has its seat.
    pub(crate) fn execute_again(&mut self, of: SidecarNo, output: Output) {
        self.with_lead(of, |world, lead| world.execute_one(of, lead, output));
    }

    fn link(&mut self, of: SidecarNo, seat: Seat) -> Option<&mut Link> {
        match &mut self.sidecars[of.0].role {
            Role::Primary(lead) => lead.links.get_mut(&seat),
            _ => None,
        }
    }

    /// The channel is that of a member's seat.
    fn has_seat(&self, of: SidecarNo, channel: ChannelId) -> bool {
        let lead = self.sidecars[of.0].lead();
        lead.is_some_and(|lead| lead.links.values().any(|link| link.channel == Some(channel)))
    }

    pub(crate) fn on_completed(&mut self, of: SidecarNo, channel: ChannelId) {
        match self.has_seat(of, channel) {
            true => self.with_lead(of, |world, lead| {
                lead.wire.complete(channel);
                world.step_mirrors_torn(of, lead);
            }),
            false if self.on_mirror_written(of, channel) => {}
            false => {
                self.on_image_written(of, channel);
            }
        }
    }

    pub(crate) fn on_broken(&mut self, of: SidecarNo, channel: ChannelId) {
        self.note_failed_channel(channel);
        match self.has_seat(of, channel) {
            true => self.with_lead(of, |_, lead| lead.wire.break_channel(channel)),
            false if self.on_mirror_broken(of, channel) => {}
            false => {
                self.on_image_broken(of, channel);
            }
        }
    }

    /// The watch has shown another configuration.
    pub(crate) fn on_newer_configuration(&mut self, of: SidecarNo, seen: &Configuration) {
        if self.sidecars[of.0].lead().is_some_and(|lead| seen.epoch > lead.epoch) {
            self.primary_input(of, Input::Superseded(seen.epoch));
        }
    }

    pub(crate) fn on_primary_tick(&mut self, of: SidecarNo) {
        let (silent, changed) = self.listen_to_members(of);
        for seat in silent {
            self.primary_input(of, Input::Lost(seat));
        }
        for (seat, followed) in changed {
            self.primary_input(of, Input::Followed(seat, followed));
        }
        self.tick_lead(of);
        self.tick_mirrors(of);
        self.clean(of);
        self.ask_for_damage(of);
    }

    /// Members whose process has ended, or whose heartbeats have not come for too long; and those that are followed now and were
    /// not before, or the other way round.
    fn listen_to_members(&mut self, of: SidecarNo) -> (Vec<Seat>, Vec<(Seat, bool)>) {
        let now = self.queue.now();
        let (mut silent, mut changed) = (Vec::new(), Vec::new());
        let Role::Primary(lead) = &mut self.sidecars[of.0].role else { return (silent, changed) };
        for (seat, link) in &mut lead.links {
            let host = &self.hosts[link.host.0];
            let reachable = self.cuts.is_whole(of, link.host) && !host.is_off();
            if reachable && host.running == Running::Up && host.life == link.life {
                link.heard = now;
                let followed = now < host.followed_until;
                if std::mem::replace(&mut link.followed, followed) != followed {
                    changed.push((*seat, followed));
                }
            }
            let ended = reachable && (host.life != link.life || host.running == Running::Down);
            if ended || now > link.heard + HEARTBEAT_SILENCE {
                silent.push(*seat);
            }
        }
        (silent, changed)
    }

    pub(crate) fn on_spare_answer(&mut self, of: SidecarNo, member: MemberRef, answer: Result<Answer, Silence>) {
        let Some(epoch) = self.sidecars[of.0].lead().map(|lead| lead.machine().config().epoch) else { return };
        let result = match answer {
            Ok(Answer::Inventory(inventory)) => self.believe(inventory, epoch, epoch),
            other => Err(failure(other)),
        };
        if result.is_ok() {
            trace!(self, "{} recruits {}", self.sidecars[of.0].name, member.id);
        }
        self.primary_input(of, Input::Fenced(member, result));
    }
}
