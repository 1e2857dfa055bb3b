//! This sidecar's role for its clients: how it changes, and how they learn of it.
//!
//! Part of [`AppendLoop`]; called when control commands it, or when the primary's machine steps down.

use std::sync::atomic::Ordering;

use tailwind_primary::Table;
use tailwind_protocol::ids::Epoch;
use tailwind_protocol::primary::Primary;
use tailwind_protocol::socket::{ErrorCode, Role};

use super::AppendLoop;
use super::connection::{KnownRole, ReadOnlyReason};
use super::leading::{Leading, Log};

/// The error message for each append that was in flight when this sidecar lost its role.
const LOST_ROLE: &str = "this sidecar lost its role before every backup had confirmed: the append may or may not be in \
                         the log; connect again and read from your last acknowledged LSN on to find out";

/// Primary with its log, or not primary.
pub(super) enum RoleState {
    Waiting { role: Role },
    Leading(Box<Leading>),
}

impl RoleState {
    /// Acts on the log, unless the term of this epoch is over.
    pub(super) fn in_term(&mut self, epoch: Epoch, act: impl FnOnce(&mut Log)) {
        match self {
            RoleState::Leading(leading) if leading.log.primary().config().epoch == epoch => act(&mut leading.log),
            _ => {}
        }
    }
}

impl AppendLoop {
    pub(super) fn role(&self) -> Role {
        match &self.state {
            RoleState::Leading(_) => Role::Primary,
            RoleState::Waiting { role } => *role,
        }
    }

    /// What clients are told of it.
    pub(super) fn known_role(&self) -> KnownRole {
        KnownRole { role: self.role(), epoch: self.epoch, losses: self.losses }
    }

    /// This sidecar is not, or no longer, primary: whatever waits will not be acknowledged here any more.
    pub(super) fn wait(&mut self, role: Role, epoch: u64, primary: String) {
        // Epochs only grow; 0 means that nothing new is known.
        let epoch = self.epoch.max(epoch);
        let changed = (self.role(), self.epoch, &self.primary_name) != (role, epoch, &primary);
        if let RoleState::Leading(ended) = std::mem::replace(&mut self.state, RoleState::Waiting { role }) {
            self.losses += 1;
            // Also those with nothing in flight: others may append meanwhile, and their apps do not know.
            for client in self.clients.iter_mut().filter(|client| client.outbox.greeted) {
                client.outbox.read_only = Some(ReadOnlyReason::RoleLost);
                client.outbox.read_after = None;
            }
            self.refuse_waiting(*ended, LOST_ROLE);
        }
        self.epoch = epoch;
        self.primary_name = primary;
        if changed {
            self.announce_role();
        }
    }

    pub(super) fn lead(&mut self, primary: Primary, last: u64, table: Option<Box<Table>>) {
        assert_eq!(table.is_some(), self.options.table, "a table is led with its index, and nothing else with one");
        self.epoch = primary.config().epoch.0;
        self.primary_name.clone_from(&self.me);
        self.counters.first.store(primary.first_readable().0, Ordering::Release);
        self.counters.acked.store(last, Ordering::Release);
        self.state = RoleState::Leading(Box::new(Leading::new(primary, table)));
        self.take_over_gets();
        self.announce_role();
        self.welcome_held();
    }

    /// Tells the clients that this sidecar is ending.
    pub(super) fn end(&mut self) {
        let role = self.role();
        if let RoleState::Leading(ended) = std::mem::replace(&mut self.state, RoleState::Waiting { role }) {
            self.refuse_waiting(*ended, "this sidecar is ending: the append may or may not be in the log");
        }
        for client in self.clients.iter_mut() {
            client.outbox.refuse(0, ErrorCode::ShuttingDown, true, 0, "this sidecar is ending");
        }
        self.send();
        self.ended = true;
    }

    fn announce_role(&mut self) {
        let (role, epoch, last) = (self.role(), self.epoch, self.counters.acked.load(Ordering::Relaxed));
        for client in self.clients.iter_mut().filter(|client| client.outbox.greeted) {
            client.outbox.announce_role(role, epoch, last, &self.primary_name);
        }
    }
}
