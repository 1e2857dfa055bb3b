//! The config store: one configuration, changed by compare-and-swap, and the ways in which asking for that can fail.

use tailwind_protocol::config::{Configuration, Stamp, Swap, SwapOutcome};

/// How the store treats its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Answers.
    #[default]
    Well,
    /// Neither does nor says anything.
    Down,
    /// Does what is asked, and the answer gets lost.
    Mute,
}

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) content: Option<Configuration>,
    pub(crate) mood: Mood,
}

impl Store {
    pub(crate) fn read(&self) -> Result<Option<Configuration>, String> {
        match self.mood {
            Mood::Well => Ok(self.content.clone()),
            Mood::Down | Mood::Mute => Err("no answer".to_owned()),
        }
    }

    pub(crate) fn swap(&mut self, swap: &Swap) -> SwapOutcome {
        if self.mood == Mood::Down {
            return SwapOutcome::Unknown;
        }
        let expected = self.stamp() == swap.expected;
        if expected {
            self.content = Some(swap.proposed.clone());
        }
        match (self.mood, expected) {
            (Mood::Mute, _) => SwapOutcome::Unknown,
            (_, true) => SwapOutcome::Applied,
            (_, false) => SwapOutcome::Conflict(self.content.clone()),
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        self.content.as_ref().map(Configuration::stamp)
    }
}
