//! The primary dies, and its successor folds the log that is left.

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::table::acked::LineId;
use tailwind_protocol::table::cleaner::Cleaner;
use tailwind_protocol::table::fold::{Fold, FoldError};
use tailwind_protocol::table::hash::HashKey;
use tailwind_protocol::table::index::Index;
use tailwind_protocol::table::place::Window;

use super::{World, unless};
use crate::table::log::SIZE;

impl World {
    /// The primary dies; the log is recovered up to any append that may have survived.
    pub(super) fn crash(&mut self) -> Result<(), String> {
        self.tally.crashes += 1;
        let ends = self.log.ends();
        let cut = self.random.pick(&ends);
        self.log.crash(cut);
        self.model.crash(cut);
        self.check_log(cut)?;
        let (index, last) = loop {
            let hash_key = HashKey(std::array::from_fn(|_| self.random.next() as u8));
            match self.fold(hash_key) {
                Ok(folded) => break folded,
                Err(FoldError::NoRoom(_)) => {}
                Err(gap) => return Err(format!("S18: {gap}")),
            }
        };
        unless(last.is_none_or(|last| last == Lsn(cut)), || format!("S18: {last:?} is the last, not {cut}"))?;
        self.index = index;
        self.index.check(self.log.open().id());
        let open = self.log.open().id();
        let closed = self.log.segments.iter_mut().filter(|segment| segment.id() < open).map(|segment| {
            segment.told = true;
            segment.closed()
        });
        let closed: Vec<_> = closed.collect();
        self.cleaner = Cleaner::new(self.bounds, closed.into_iter(), None);
        (self.at_first, self.pending) = (self.log.len(), Vec::new());
        self.lines =
            (0..self.index.acked_view().lines()).map(|line| self.index.acked_view().line(LineId(line))).collect();
        // Mirrors are of one epoch: nothing is read from those of the last one.
        self.published = self.published.map(|_| 0);
        self.mirror.clear();
        self.named.clear();
        self.end_epoch();
        self.check_views(true)
    }

    fn fold(&self, hash_key: HashKey) -> Result<(Index, Option<Lsn>), FoldError> {
        let mut fold = Fold::new(Index::new(hash_key, self.limits, Window::new(SIZE)));
        for segment in &self.log.segments {
            for (at, record) in segment.records(segment.closed().last.0) {
                fold.record(at, record)?;
            }
        }
        let folded = fold.finish();
        assert_eq!(folded.unkeyed, None);
        Ok((folded.index, folded.last))
    }
}
