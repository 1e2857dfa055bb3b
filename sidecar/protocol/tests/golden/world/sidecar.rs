//! One sidecar pod: standby, candidate or primary, and what it keeps for that.

use std::collections::{BTreeMap, VecDeque};

use tailwind_protocol::backup::Slot;
use tailwind_protocol::config::{MemberRef, PrimaryRef};
use tailwind_protocol::ids::{Epoch, Lsn, MemberId, Position, SegmentId, SidecarId};
use tailwind_protocol::primary::{Output, Primary, Seat};
use tailwind_protocol::promotion::Promotion;
use tailwind_protocol::segment::SegmentWriter;

use super::host::Key;
use super::network::Reply;

/// What a sidecar is now.
#[derive(Debug)]
pub(crate) enum Role {
    /// Not running.
    Down,
    Standby,
    Candidate(Box<Promotion>),
    Primary(Box<Lead>),
}

/// One sidecar pod.
#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) name: SidecarId,
    pub(crate) role: Role,
    /// Counts the roles: answers meant for an earlier one are not for this one.
    pub(crate) life: u32,
    /// Stopped in mid-air (SIGSTOP): answers wait, nothing is noticed.
    pub(crate) paused: bool,
    pub(crate) inbox: VecDeque<Reply>,
    /// What the last `Waiting` said, so that it is told once.
    pub(crate) waiting: String,
    /// What each backup answered to its last fence.
    pub(crate) heard: BTreeMap<MemberId, String>,
}

impl Sidecar {
    pub(crate) fn new(name: &str) -> Sidecar {
        Sidecar {
            name: name.parse().expect("a name of the script"),
            role: Role::Standby,
            life: 0,
            paused: false,
            inbox: VecDeque::new(),
            waiting: String::new(),
            heard: BTreeMap::new(),
        }
    }

    pub(crate) fn reference(&self) -> PrimaryRef {
        PrimaryRef { id: self.name.clone(), control: format!("{}:7301", self.name) }
    }

    pub(crate) fn become_role(&mut self, role: Role) {
        self.role = role;
        self.life += 1;
        self.waiting.clear();
        self.heard.clear();
    }

    pub(crate) fn lead(&self) -> Option<&Lead> {
        match &self.role {
            Role::Primary(lead) => Some(lead),
            _ => None,
        }
    }

    pub(crate) fn lead_mut(&mut self) -> Option<&mut Lead> {
        match &mut self.role {
            Role::Primary(lead) => Some(lead),
            _ => None,
        }
    }
}

/// A primary: the machine, the log's open end in local memory, a channel to each member.
#[derive(Debug)]
pub(crate) struct Lead {
    pub(crate) machine: Primary,
    pub(crate) epoch: Epoch,
    pub(crate) memory: BTreeMap<SegmentId, Vec<u8>>,
    pub(crate) writer: Option<SegmentWriter>,
    pub(crate) channels: BTreeMap<Seat, Channel>,
    /// Appends that wait for room.
    pub(crate) backlog: VecDeque<Vec<Vec<u8>>>,
    /// Appends that wait for their ack: where each ends, and its records.
    pub(crate) unacked: VecDeque<(Position, Lsn, Lsn)>,
    pub(crate) said_waiting: bool,
}

/// The way to one member.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) member: MemberRef,
    /// The member's process that accepted the channel.
    pub(crate) life: Option<u32>,
    /// What the member wants to be asked again, at the next tick.
    pub(crate) later: Vec<Output>,
    pub(crate) lendings: BTreeMap<SegmentId, (Slot, Key)>,
}
