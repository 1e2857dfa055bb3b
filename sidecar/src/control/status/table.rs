//! What control does for a group's table, and what is told of the table.
//!
//! Written by [`warm`](crate::control::warm), [`rebuild`](crate::control::rebuild) and [`clean`](crate::control::clean), told by
//! [`status`](super).

use std::sync::{Mutex, PoisonError};

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::cleaner::Doing;
use tailwind_report::table::{CleanerReport, CleanerState, RebuildReport, TableReport};

use super::mirrors::KeptMirrors;
use crate::options::TableSize;
use crate::path::TableDescription;

/// What is being done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// Nothing: this sidecar does not lead, and has folded nothing ahead of a promotion.
    #[default]
    Nothing,
    /// It does not lead. Its index has every record up to this one.
    Warm {
        /// The last record of a closed segment.
        last: Lsn,
    },
    /// The index is made from the log.
    Folding {
        /// Segments that are done.
        folded: usize,
        /// Segments in all.
        segments: usize,
    },
    /// This sidecar leads, and its cleaner does this.
    Cleaning(Doing),
}

/// The present work, and the mirrors of the index.
#[derive(Debug, Default)]
pub struct TableWork {
    work: Mutex<Work>,
    mirrors: KeptMirrors,
}

impl TableWork {
    /// It is this now.
    pub fn set(&self, work: Work) {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = work;
    }

    pub(in crate::control) fn get(&self) -> Work {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mirrors that this primary keeps.
    pub fn mirrors(&self) -> &KeptMirrors {
        &self.mirrors
    }

    /// What to tell of a table of this size. `path` knows it while this sidecar leads; `acked` is the last
    /// acknowledged record.
    pub(super) fn report(
        &self,
        size: &TableSize,
        segment_size: SegmentSize,
        path: Option<&TableDescription>,
        acked: Lsn,
    ) -> TableReport {
        let in_bytes = |segments: u32| u64::from(segments) * u64::from(segment_size.bytes());
        let (mut cleaner, mut rebuild, mut warm) = (None, None, None);
        match self.get() {
            Work::Nothing => {}
            Work::Warm { last } => warm = Some(last.0),
            Work::Folding { folded, segments } => {
                rebuild = Some(RebuildReport { folded: folded as u64, segments: segments as u64 });
            }
            Work::Cleaning(doing) => cleaner = Some(cleaner_report(doing)),
        }
        TableReport {
            keys: path.map(|table| table.keys.into()),
            keys_max: size.keys.into(),
            live_bytes: path.map(|table| table.live_bytes),
            live_bytes_max: size.bounds.live_bytes_max(),
            log_bytes: path.map(|table| in_bytes(table.log_segments)),
            memory_bytes: in_bytes(size.bounds.segments()),
            cleaner: cleaner.filter(|_| path.is_some()),
            rebuild,
            warm,
            mirrors: path.map_or_else(Vec::new, |_| self.mirrors.report(acked)),
        }
    }
}

fn cleaner_report(doing: Doing) -> CleanerReport {
    let (state, segment) = match doing {
        Doing::Idle => (CleanerState::Idle, None),
        Doing::Fetching(segment) => (CleanerState::Fetching, Some(segment)),
        Doing::Moving(segment) => (CleanerState::Moving, Some(segment)),
        Doing::Stopped(segment) => (CleanerState::NotCleaned, Some(segment)),
    };
    CleanerReport { state, segment: segment.map(|segment| segment.0) }
}
