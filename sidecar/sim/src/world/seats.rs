//! A primary's members: what is asked of each, one after the other, and what their answers and silences mean.
//!
//! As the production sidecar's seat tasks do: each seat takes its orders one by one, asks for buffers beside them; images
//! and flushes run beside both. Called by [`lead`](super::lead) and [`sidecar`](super::sidecar).

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::{Request, Slot};
use tailwind_protocol::config::{Configuration, MemberRef, SwapOutcome};
use tailwind_protocol::ids::{MemberId, Position, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Seat};
use tailwind_protocol::promotion::Failure;
use tailwind_protocol::rpc::{
    CloseRequest, DropRequest, FenceRequest, Inventory, OpenRequest, Purpose as Lent, Refusal, TrimRequest,
};

use super::fabric::{ChannelId, Key};
use super::host::Running;
use super::image::RETRY_LATER;
use super::lead::Lead;
use super::network::{Answer, Silence};
use super::queue::Micros;
use super::sidecar::{Again, HEARTBEAT_SILENCE, Purpose, Role, believed, failure};
use super::{HostNo, SidecarNo, World, group};
use crate::trace::tell;

/// The way to one member.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) member: MemberRef,
    pub(super) host: HostNo,
    /// The backup's process when it took its seat: with another one its connections have ended.
    pub(super) life: u32,
    pub(super) heard: Micros,
    pub(super) channel: Option<ChannelId>,
    /// What is asked of the member, one after the other; the first one is under way while `ordering`.
    pub(super) orders: VecDeque<Output>,
    pub(super) ordering: bool,
    pub(super) openings: VecDeque<SegmentIdentity>,
    pub(super) opening: bool,
    pub(super) remotes: BTreeMap<SegmentId, (Slot, Key)>,
}

impl World {
    pub(super) fn ask_open(&mut self, of: SidecarNo, lead: &mut Lead, seat: Seat) {
        let durability = self.plan.durability;
        let Some(link) = lead.links.get_mut(&seat).filter(|link| !link.opening) else { return };
        let Some(identity) = link.openings.front().copied() else { return };
        link.opening = true;
        let request = OpenRequest { caller: lead.caller.clone(), identity, purpose: Lent::Append, durability };
        self.call(of, link.host, Request::Open(request), Purpose::Open(seat, identity));
    }

    pub(super) fn ask_order(&mut self, of: SidecarNo, lead: &mut Lead, seat: Seat) {
        let Some(link) = lead.links.get_mut(&seat).filter(|link| !link.ordering) else { return };
        let caller = lead.caller.clone();
        let request = match link.orders.front() {
            Some(Output::Close(_, identity, closure)) => {
                Request::Close(CloseRequest { caller, identity: *identity, closure: *closure })
            }
            Some(Output::Drop(_, copies)) => Request::Drop(DropRequest { caller, copies: copies.clone() }),
            Some(Output::Trim(_, below)) => Request::Trim(TrimRequest { caller, below: *below }),
            _ => return,
        };
        link.ordering = true;
        self.call(of, link.host, request, Purpose::Order(seat));
    }

    pub(crate) fn ask_next_open(&mut self, of: SidecarNo, seat: Seat) {
        self.with_lead(of, |world, lead| {
            if let Some(link) = lead.links.get_mut(&seat) {
                link.opening = false;
            }
            world.ask_open(of, lead, seat);
        });
    }

    pub(crate) fn ask_next_order(&mut self, of: SidecarNo, seat: Seat) {
        self.with_lead(of, |world, lead| {
            if let Some(link) = lead.links.get_mut(&seat) {
                link.ordering = false;
            }
            world.ask_order(of, lead, seat);
        });
    }

    pub(crate) fn on_connect_answer(&mut self, of: SidecarNo, seat: Seat, answer: Result<Answer, Silence>) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Connected(boot, channel)) if boot == link.member.boot => {
                link.channel = Some(channel);
                self.ask_next_open(of, seat);
                self.ask_next_order(of, seat);
            }
            // Other memory behind the name: this is not the member that was meant.
            Ok(Answer::Connected(_, channel)) => {
                self.close_sender(channel);
                self.primary_input(of, Input::Lost(seat));
            }
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_open_answer(
        &mut self,
        of: SidecarNo,
        seat: Seat,
        identity: SegmentIdentity,
        answer: Result<Answer, Silence>,
    ) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Granted(slot, key)) => {
                link.remotes.insert(identity.segment, (slot, key));
                link.openings.pop_front();
                self.primary_input(of, Input::Opened(seat, identity.segment));
                self.ask_next_open(of, seat);
            }
            Ok(Answer::Refused(Refusal::RetryLater { .. })) => self.plan_again(of, RETRY_LATER, Again::Open(seat)),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_order_answer(&mut self, of: SidecarNo, seat: Seat, answer: Result<Answer, Silence>) {
        let Some(link) = self.link(of, seat) else { return };
        match answer {
            Ok(Answer::Done) => {
                let done = match link.orders.pop_front() {
                    Some(Output::Close(_, identity, _)) => Input::Closed(seat, identity.segment),
                    _ => Input::Tidied(seat),
                };
                self.primary_input(of, done);
                self.ask_next_order(of, seat);
            }
            Ok(Answer::Refused(Refusal::RetryLater { .. })) => self.plan_again(of, RETRY_LATER, Again::Order(seat)),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    pub(crate) fn on_flush_answer(
        &mut self,
        of: SidecarNo,
        seat: Seat,
        segment: SegmentId,
        answer: Result<Answer, Silence>,
    ) {
        match answer {
            Ok(Answer::Flushed(end)) => self.primary_input(of, Input::Flushed(seat, Position::new(segment, end))),
            other => self.seat_failed(of, seat, failure(other)),
        }
    }

    fn seat_failed(&mut self, of: SidecarNo, seat: Seat, failure: Failure) {
        match failure {
            Failure::Superseded(epoch) => self.primary_input(of, Input::Superseded(epoch)),
            Failure::ClaimedBefore(_) | Failure::Unreachable(_) => self.primary_input(of, Input::Lost(seat)),
        }
    }

    fn link(&mut self, of: SidecarNo, seat: Seat) -> Option<&mut Link> {
        match &mut self.sidecars[of.0].role {
            Role::Primary(lead) => lead.links.get_mut(&seat),
            _ => None,
        }
    }

    fn seat_of(&self, of: SidecarNo, channel: ChannelId) -> Option<Seat> {
        let lead = self.sidecars[of.0].lead()?;
        lead.links.iter().find(|(_, link)| link.channel == Some(channel)).map(|(seat, _)| *seat)
    }

    pub(crate) fn on_completed(&mut self, of: SidecarNo, channel: ChannelId) {
        if let Some(seat) = self.seat_of(of, channel) {
            self.with_lead(of, |_, lead| lead.machine.completed(usize::from(seat.index), 1));
        } else {
            self.on_image_written(of, channel);
        }
    }

    pub(crate) fn on_broken(&mut self, of: SidecarNo, channel: ChannelId) {
        self.tell_broken(channel);
        if let Some(seat) = self.seat_of(of, channel) {
            self.primary_input(of, Input::Lost(seat));
        } else {
            self.on_image_broken(of, channel);
        }
    }

    pub(crate) fn on_primary_swapped(&mut self, of: SidecarNo, outcome: SwapOutcome) {
        if let Role::Primary(lead) = &mut self.sidecars[of.0].role {
            lead.unanswered = outcome == SwapOutcome::Unknown;
        }
        self.primary_input(of, Input::Swapped(outcome));
    }

    /// The watch has shown another configuration.
    pub(crate) fn on_primary_news(&mut self, of: SidecarNo, seen: &Configuration) {
        if self.sidecars[of.0].lead().is_some_and(|lead| seen.epoch > lead.epoch) {
            self.primary_input(of, Input::Superseded(seen.epoch));
        }
    }

    pub(crate) fn on_primary_tick(&mut self, of: SidecarNo) {
        for seat in self.silent_seats(of) {
            self.primary_input(of, Input::Lost(seat));
        }
        if let Role::Primary(lead) = &mut self.sidecars[of.0].role {
            lead.mark();
        }
        self.primary_input(of, Input::Tick);
        self.ask_for_damage(of);
    }

    /// Members whose process has ended, or whose heartbeats have not come for too long.
    fn silent_seats(&mut self, of: SidecarNo) -> Vec<Seat> {
        let now = self.queue.now();
        let Role::Primary(lead) = &mut self.sidecars[of.0].role else { return Vec::new() };
        let mut silent = Vec::new();
        for (seat, link) in &mut lead.links {
            let host = &self.hosts[link.host.0];
            let reachable = self.cuts.is_whole(of, link.host) && !host.is_dark();
            if reachable && host.running == Running::Up && host.life == link.life {
                link.heard = now;
            }
            let ended = reachable && (host.life != link.life || host.running == Running::Down);
            if ended || now > link.heard + HEARTBEAT_SILENCE {
                silent.push(*seat);
            }
        }
        silent
    }

    /// Backups that answered the search for a spare: the first one outside the set is fenced under our epoch. Members that
    /// were lost in this term and have their memory still are only reported.
    pub(crate) fn on_spares_found(&mut self, of: SidecarNo, found: Vec<(MemberRef, Inventory)>, lost: &[MemberId]) {
        let Some(lead) = self.sidecars[of.0].lead() else { return };
        let config = lead.machine.config();
        let is_member = |(found, _): &(MemberRef, Inventory)| {
            config.member(&found.id).is_some_and(|known| known.boot == found.boot)
        };
        let (members, mut found): (Vec<_>, Vec<_>) = found.into_iter().partition(is_member);
        let returned: Vec<_> = members.into_iter().filter(|(member, _)| lost.contains(&member.id)).collect();
        for (member, _) in returned {
            self.primary_input(of, Input::Returned(member));
        }
        let Some(lead) = self.sidecars[of.0].lead() else { return };
        let fence = FenceRequest::of(group(), lead.machine.config());
        if found.is_empty() {
            return self.primary_input(of, Input::NoSpare);
        }
        found.sort_by_key(|(member, _)| lead.lost.iter().position(|id| *id == member.id));
        let (member, _) = found.remove(0);
        let host = self.host_of(&member.id);
        self.call(of, host, Request::Fence(fence), Purpose::Recruit(member));
    }

    pub(crate) fn on_recruit_answer(&mut self, of: SidecarNo, member: MemberRef, answer: Result<Answer, Silence>) {
        let Some(epoch) = self.sidecars[of.0].lead().map(|lead| lead.machine.config().epoch) else { return };
        let fenced = match answer {
            // What an earlier term of this sidecar has asked for.
            Ok(Answer::Inventory(inventory)) if inventory.promised != epoch => {
                Err(Failure::Unreachable("an answer to another epoch".to_owned()))
            }
            Ok(Answer::Inventory(inventory)) => believed(inventory, epoch, epoch),
            other => Err(failure(other)),
        };
        let input = match fenced {
            Ok(inventory) => {
                tell!(self, "{} recruits {}", self.sidecars[of.0].name, member.id);
                Input::Recruited(MemberRef { boot: inventory.boot, ..member }, inventory)
            }
            Err(failure) => match failure {
                Failure::Superseded(epoch) => Input::Superseded(epoch),
                Failure::ClaimedBefore(_) | Failure::Unreachable(_) => Input::NoSpare,
            },
        };
        self.primary_input(of, input);
    }
}
