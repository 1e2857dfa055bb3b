//! The answers of a group's conditions: each condition is a type, each of its answers a variant. The variant's name is the
//! reason, a word for machines; its text is the message, a sentence that says what to do. [`state`] has the conditions that say
//! how the group is, [`particulars`] those that each look at one thing.
//!
//! Chosen by [`conditions`](super::conditions). Reasons and questions are listed in `docs/reference/kubernetes.md`.

use std::fmt;

use strum::VariantNames;

/// Says what a condition asks, which answers mean yes, and which that nobody knows.
macro_rules! condition {
    ($condition:ident: $question:literal, yes: $yes:pat $(, unknown: $unknown:pat)?) => {
        impl Answer for $condition {
            const CONDITION: &'static str = stringify!($condition);
            const QUESTION: &'static str = $question;

            fn status(&self) -> &'static str {
                match self {
                    $yes => "True",
                    $($unknown => "Unknown",)?
                    _ => "False",
                }
            }
        }
    };
}

mod particulars;
mod state;

pub(crate) use particulars::{
    BackupsCurrent, FailoverSafe, Fenced, LogFits, Paused, Placeable, QuarantineEmpty, SidecarsCurrent, TableHasRoom,
};
pub(crate) use state::{Acked, Degraded, Progressing, Ready};

/// An answer to a condition's question.
pub(crate) trait Answer: fmt::Display + AsRef<str> + VariantNames {
    /// The condition.
    const CONDITION: &'static str;

    /// What it asks, as the reference says it.
    const QUESTION: &'static str;

    /// `True`, `False` or, where what it rests on cannot be known now, `Unknown`.
    fn status(&self) -> &'static str;

    /// In one word.
    fn reason(&self) -> &str {
        self.as_ref()
    }

    /// Every reason that there is; one that several answers have, several times.
    fn reasons() -> impl Iterator<Item = &'static str> {
        Self::VARIANTS.iter().copied()
    }
}

/// A condition, for the reference.
#[derive(Debug)]
pub struct Question {
    /// Its name.
    pub condition: &'static str,
    /// What it asks.
    pub text: &'static str,
    /// The reasons of its answers.
    pub reasons: Vec<&'static str>,
}

/// Every condition, in the order of the status.
pub fn questions() -> [Question; 12] {
    fn question<A: Answer>() -> Question {
        let mut reasons: Vec<&'static str> = Vec::new();
        for reason in A::reasons() {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        Question { condition: A::CONDITION, text: A::QUESTION, reasons }
    }
    [
        question::<Ready>(),
        question::<Progressing>(),
        question::<Degraded>(),
        question::<FailoverSafe>(),
        question::<QuarantineEmpty>(),
        question::<LogFits>(),
        question::<TableHasRoom>(),
        question::<Fenced>(),
        question::<Paused>(),
        question::<Placeable>(),
        question::<BackupsCurrent>(),
        question::<SidecarsCurrent>(),
    ]
}
