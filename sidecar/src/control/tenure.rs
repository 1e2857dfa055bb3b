//! Which term this sidecar leads, or is about to: what it answers to standbys that ask whether their primary is there.
//!
//! Set by a [promotion](super::promote) when it claims an epoch, and kept until that is lost or the term is over.

use std::sync::{Mutex, PoisonError};

use tailwind_protocol::rpc::{Refusal, TermId, TermRequest};

use super::Context;

/// The term.
#[derive(Debug, Default)]
pub struct Tenure(Mutex<Option<TermId>>);

impl Tenure {
    /// It claims this term.
    pub fn begin(&self, term: TermId) {
        self.set(Some(term));
    }

    /// It leads nothing.
    pub fn end(&self) {
        self.set(None);
    }

    /// Whether it is this term.
    pub fn is_of(&self, term: TermId) -> bool {
        self.get() == Some(term)
    }

    /// Refuses whoever asks after another sidecar, or after another term.
    pub fn check(&self, context: &Context, asked: &TermRequest) -> Result<(), Refusal> {
        let (me, term) = (&context.me.id, self.get());
        if asked.group == context.group && asked.is_for(me, term) {
            return Ok(());
        }
        let why = match term {
            _ if asked.group != context.group => {
                format!("this is a sidecar of group {}, not {}", context.group, asked.group)
            }
            _ if asked.primary != *me => format!("this is sidecar {me}, not {}", asked.primary),
            Some(term) => format!("sidecar {me} has epoch {}, not {}", term.epoch, asked.term.epoch),
            None => format!("sidecar {me} does not lead"),
        };
        Err(Refusal::OtherTerm { why })
    }

    fn get(&self) -> Option<TermId> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, term: Option<TermId>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }
}
