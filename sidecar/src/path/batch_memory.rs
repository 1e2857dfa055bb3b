//! Memory for frames that are larger than a connection's own inbox, shared by all connections: batches, that is.
//!
//! Used by [`AppendLoop`] when a frame announces its size. A client without room is not read from until others are done: first
//! come, first served. A grant stays with its connection after the batch, for the next one, until another needs it.

use std::collections::VecDeque;

use super::connection::{ClientConnection, Inbox};
use super::slots::SLOTS;
use super::{AppendLoop, ClientId};

/// How much of the shared memory is taken. The bytes are in the inboxes.
#[derive(Debug)]
pub(super) struct BatchMemory {
    size: usize,
    taken: usize,
    /// Connections whose next batch finds no room, the first to come first.
    waiting: VecDeque<ClientId>,
}

impl BatchMemory {
    pub(super) fn new(size: usize) -> BatchMemory {
        BatchMemory { size, taken: 0, waiting: VecDeque::with_capacity(SLOTS) }
    }

    /// True while a client waits for memory that others hold.
    pub(super) fn is_short(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A connection ends or goes to a read: it gives back what it has and waits no more.
    pub(super) fn leave(&mut self, client: ClientId, inbox: &Inbox) {
        self.taken -= inbox.granted();
        self.stop_waiting(client);
    }

    /// A connection takes no further frame: those behind it must not wait for its turn, which does not come.
    pub(super) fn stop_waiting(&mut self, client: ClientId) {
        self.waiting.retain(|waiting| *waiting != client);
    }

    fn is_next(&self, client: ClientId) -> bool {
        self.waiting.front().is_none_or(|first| *first == client)
    }

    fn fits(&self, more: usize) -> bool {
        self.taken + more <= self.size
    }
}

impl AppendLoop {
    /// Gives the frame that this client has begun to send its room, or lets the client wait for it.
    pub(super) fn make_room(&mut self, client: &mut ClientConnection, size: usize) {
        let inbox = &mut client.inbox;
        if size > inbox.granted() {
            let more = size - inbox.granted();
            if self.batch_memory.is_next(client.id) && !self.batch_memory.fits(more) {
                // Grants of connections that are not in the middle of a batch are taken back.
                self.clients.iter_mut().for_each(|other| self.batch_memory.taken -= other.inbox.give_back());
            }
            if !self.batch_memory.is_next(client.id) || !self.batch_memory.fits(more) {
                if !self.batch_memory.waiting.contains(&client.id) {
                    self.batch_memory.waiting.push_back(client.id);
                }
                return;
            }
            self.batch_memory.stop_waiting(client.id);
            self.batch_memory.taken += more;
        }
        inbox.begin_large(size);
    }
}
