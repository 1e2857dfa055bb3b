//! What backups say of later epochs, until the config store has been asked.
//!
//! Part of [`Primary`]. A later epoch was claimed in the store before any backup could promise it, so the store decides. What it
//! does not know is a false word, or a promise from before the store went back; a backup that stands by it is useless to this
//! primary, and no reason to step down. See "Whom we believe" in `docs/protocol.md`.

use crate::config::{Configuration, Time};
use crate::ids::Epoch;

use super::membership::Search;
use super::{Output, Primary, Seat};

/// This many members of the set are believed without the store, if the set has that many: one alone may lie.
const WITNESSES: usize = 2;

/// The members that have spoken, and the state of the question to the store. A spare that has spoken is in
/// [`Search::Comparing`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Hearsay {
    words: Vec<(Seat, Epoch)>,
    /// The store is being read.
    reading: bool,
    /// When it is read again after a read that failed.
    again: Option<Time>,
}

impl Primary {
    pub(super) fn on_refused(&mut self, seat: Seat, epoch: Epoch, out: &mut Vec<Output>) {
        if self.member_mut(seat).is_none() || self.hearsay.words.iter().any(|(by, _)| *by == seat) {
            return;
        }
        self.hearsay.words.push((seat, epoch));
        let said = |seat| self.hearsay.words.iter().find(|(by, _)| *by == seat).map(|(_, epoch)| *epoch);
        let by_members: Vec<Epoch> = self.seats_in_set().filter_map(said).collect();
        // The lowest epoch that any of them names.
        let least = by_members.iter().copied().min().filter(|least| *least > self.config.epoch);
        if let Some(least) = least.filter(|_| by_members.len() >= WITNESSES.min(self.config.members.len())) {
            return self.on_superseded(least, out);
        }
        self.read_config(out);
    }

    pub(super) fn read_config(&mut self, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.hearsay.reading, true) {
            out.push(Output::ReadConfig);
        }
    }

    pub(super) fn on_read(&mut self, now: Time, found: &Result<Option<Configuration>, String>, out: &mut Vec<Output>) {
        self.hearsay.reading = false;
        let Ok(Some(found)) = found else {
            self.hearsay.again = Some(now.plus(self.rules.swap_interval_ms));
            return;
        };
        if found.epoch > self.config.epoch {
            return self.on_superseded(found.epoch, out);
        }
        for (seat, _) in std::mem::take(&mut self.hearsay.words) {
            let refusing = self.member_mut(seat).map(|member| member.reference.clone());
            refusing.into_iter().for_each(|member| self.note_refusal(member, now));
            self.on_lost(seat, out);
        }
        match std::mem::take(&mut self.search) {
            Search::Comparing { spare, others } => self.turn_down(now, spare, others, out),
            other => self.search = other,
        }
    }

    pub(super) fn read_again(&mut self, now: Time, out: &mut Vec<Output>) {
        if self.hearsay.again.take_if(|at| now >= *at).is_some() {
            self.read_config(out);
        }
    }
}
