//! A record that its app fills in where it is sent from. Made by `reserve` of both clients.

use crate::session::Session;
use crate::types::Ticket;

/// Room for one record. [`submit`](Reserved::submit) sends it; dropped, it is as if it had not been reserved.
///
/// What it contains at first is not defined: earlier records of this app, or zeros.
#[must_use = "a reserved record is sent by `submit`"]
pub struct Reserved<'c> {
    pub(crate) session: &'c mut Session,
    pub(crate) length: usize,
}

impl Reserved<'_> {
    /// The record, to be filled in.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.session.reserved_mut(self.length)
    }

    /// Takes the record without waiting for its ack, as the client's `submit` does.
    pub fn submit(self) -> Ticket {
        self.session.submit_reserved(self.length)
    }
}
