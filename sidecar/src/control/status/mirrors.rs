//! The mirrors of a table's index that this primary keeps, and what is told of them.
//!
//! Part of [`TableWork`](super::table::TableWork). Written by [`mirrors`](crate::control::mirrors), read by
//! [`clean`](crate::control::clean), told by [`status`](super).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tailwind_protocol::ids::{Epoch, Lsn, MemberId};
use tailwind_protocol::table::mirror::{MirrorId, State};
use tailwind_report::table::{MirrorReport, MirrorState};

use crate::mirror::ShownMirrors;

/// A member of the set, and its mirror.
#[derive(Clone, Debug)]
pub struct MirrorRow {
    /// The member.
    pub member: MemberId,
    /// The mirror, if there is one.
    pub mirror: Option<MirrorId>,
    /// Why there is none.
    pub why: Option<String>,
}

/// The mirrors of the term, if there are any.
#[derive(Debug, Default)]
pub struct KeptMirrors(Mutex<Term>);

#[derive(Debug, Default)]
struct Term {
    /// What comes late, from a term that is over, is not of this one.
    epoch: Epoch,
    shown: Option<Arc<ShownMirrors>>,
    rows: Vec<MirrorRow>,
}

impl KeptMirrors {
    /// A term begins, without mirrors.
    pub fn begin(&self, epoch: Epoch) {
        *self.term() = Term { epoch, ..Term::default() };
    }

    /// In the term of this epoch there is a thread that writes them.
    pub fn written(&self, epoch: Epoch, shown: Arc<ShownMirrors>) {
        self.in_term(epoch, |term| term.shown = Some(shown));
    }

    /// In the term of this epoch, these are the members.
    pub fn set(&self, epoch: Epoch, rows: Vec<MirrorRow>) {
        self.in_term(epoch, |term| term.rows = rows);
    }

    /// The term is over.
    pub fn end(&self) {
        *self.term() = Term::default();
    }

    /// Up to which record every mirror that is written to shows the index; `None`: there is none.
    pub fn published(&self) -> Option<Lsn> {
        self.term().shown.as_ref()?.published()
    }

    /// What is told of them, if this record is the last one that is acknowledged.
    pub fn report(&self, acked: Lsn) -> Vec<MirrorReport> {
        let Term { shown, rows, .. } = &*self.term();
        let report = |row: &MirrorRow| {
            let known = |mirror| shown.as_ref().and_then(|shown| shown.state(mirror));
            // One that the thread has not seen yet shows nothing.
            let seen = row.mirror.map(|mirror| known(mirror).unwrap_or((State::Filling, Lsn(0))));
            let state = match seen {
                None => MirrorState::None,
                Some((State::Filling, _)) => MirrorState::Filling,
                Some((State::Live, _)) => MirrorState::Live,
                Some((State::Lost(_), _)) => MirrorState::Lost,
            };
            let published = seen.map(|(_, published)| published.0);
            let behind = published.map(|published| acked.0.saturating_sub(published));
            MirrorReport { member: row.member.to_string(), state, published, behind, why: row.why.clone() }
        };
        rows.iter().map(report).collect()
    }

    fn in_term(&self, epoch: Epoch, change: impl FnOnce(&mut Term)) {
        let mut term = self.term();
        if term.epoch == epoch {
            change(&mut term);
        }
    }

    fn term(&self) -> MutexGuard<'_, Term> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_a_mirror_says_why() {
        let kept = KeptMirrors::default();
        let row = |name: &str, mirror, why: Option<&str>| MirrorRow {
            member: name.parse().unwrap(),
            mirror,
            why: why.map(str::to_owned),
        };
        kept.begin(Epoch(2));
        kept.set(Epoch(2), vec![row("b0", None, Some("no memory")), row("b1", Some(MirrorId(1)), None)]);
        kept.set(Epoch(1), Vec::new());
        let told = kept.report(Lsn(9));
        assert_eq!((told[0].state, told[0].why.as_deref()), (MirrorState::None, Some("no memory")));
        assert_eq!(
            (told[1].state, told[1].published),
            (MirrorState::Filling, Some(0)),
            "the thread has not seen it yet"
        );
        assert_eq!(kept.published(), None);
        kept.end();
        assert_eq!(kept.report(Lsn(9)), []);
    }
}
