//! Secrets that have been handed out and wait for the connection that presents them.
//!
//! Held by [`registry`](super::registry) for writers and by [`shares`](super::reading::shares) for readers: one of a reader
//! opens nothing to write with, and the other way round.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::secret::{SECRET_SIZE, Secret};

/// How long a secret waits for its connection: the answer's way to the sender, and the sender's way here.
pub(super) const SECRET_LIFETIME: Duration = Duration::from_secs(10);
/// Secrets that wait at the same time; one more and the oldest is forgotten. A group has a handful of channels, each
/// with one secret.
pub(super) const SECRETS_MAX: usize = 1024;

/// Secrets of one side, each with the one it was given to. Oldest first.
#[derive(Debug)]
pub(super) struct Secrets<Owner>(VecDeque<Admission<Owner>>);

/// A secret that has been handed out and not yet presented.
#[derive(Debug)]
struct Admission<Owner> {
    owner: Owner,
    secret: Secret,
    until: Instant,
}

impl<Owner: Copy> Secrets<Owner> {
    pub(super) fn new() -> Secrets<Owner> {
        Secrets(VecDeque::new())
    }

    /// Lets a peer that presents `secret` in time open one channel of `owner`.
    pub(super) fn expect(&mut self, owner: Owner, secret: Secret, now: Instant) {
        self.0.retain(|admission| now < admission.until);
        if self.0.len() == SECRETS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Admission { owner, secret, until: now + SECRET_LIFETIME });
    }

    /// The owner of the secret that was presented. It is valid once.
    pub(super) fn spend(&mut self, presented: &[u8; SECRET_SIZE], now: Instant) -> Option<Owner> {
        self.0.retain(|admission| now < admission.until);
        let index = self.0.iter().position(|admission| admission.secret.matches(presented))?;
        self.0.remove(index).map(|admission| admission.owner)
    }

    /// Forgets all secrets of owners that are over.
    pub(super) fn forget(&mut self, is_over: impl Fn(Owner) -> bool) {
        self.0.retain(|admission| !is_over(admission.owner));
    }
}
