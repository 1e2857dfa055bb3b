//! Which term this sidecar leads, or is about to: what it answers to standbys that ask whether their primary is there.
//!
//! Set by a [promotion](super::promote) when it claims an epoch, and kept until that is lost or the term is over. A candidate that
//! is cut off from the members says nothing meanwhile.

use std::sync::{Mutex, PoisonError};

use tailwind_protocol::rpc::{Refusal, TermId, TermRequest};

use crate::control::Context;

/// The term.
#[derive(Debug, Default)]
pub struct Tenure(Mutex<Claimed>);

#[derive(Clone, Copy, Debug, Default)]
struct Claimed {
    term: Option<TermId>,
    is_cut_off: bool,
}

impl Tenure {
    /// It claims this term.
    pub fn begin(&self, term: TermId) {
        self.change(|claimed| *claimed = Claimed { term: Some(term), is_cut_off: false });
    }

    /// Whether it is a candidate that does not reach the members: then standbys hear nothing, so that one that reaches them may take
    /// its place.
    pub fn cut_off(&self, is_cut_off: bool) {
        self.change(|claimed| claimed.is_cut_off = is_cut_off);
    }

    /// It leads nothing.
    pub fn end(&self) {
        self.change(|claimed| *claimed = Claimed::default());
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
        let claimed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.term.filter(|_| !claimed.is_cut_off)
    }

    fn change(&self, change: impl FnOnce(&mut Claimed)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
