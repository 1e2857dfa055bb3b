//! Trimming: a new generation of the log, which has all that is alive. What is older can go then.
//!
//! A generation begins with a state, which owes all names. From then on each block counts as old until it is logged again:
//! because it has changed, or because the supervisor asks for a few more with each sync.

use std::collections::VecDeque;

use super::{Refusal, Volume};
use crate::blocks::BLOCK;
use crate::image::STATE_FACTS_MAX;
use crate::ranges::Ranges;
use crate::record::{Kind, Number};

/// What is still to be logged again.
#[derive(Default, Debug)]
pub(super) struct Copying {
    files: VecDeque<Number>,
    /// Where to continue in the first one.
    block: usize,
}

impl Volume {
    /// Whether so much log since the last state is too much.
    pub fn must_trim(&self, logged: u64) -> bool {
        logged > self.bounds.trim && logged > self.image.size().saturating_mul(2)
    }

    /// Whether blocks are still to be logged again.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Logs the state. Returns whether a generation has begun: it cannot while a file cannot be followed, of whose bytes the log
    /// may have the only ones.
    pub fn begin_generation(&mut self, records: &mut Vec<Vec<u8>>) -> Result<bool, Refusal> {
        if self.fault.is_some() || self.files.values().any(|file| file.fault.is_some()) {
            return Ok(false);
        }
        self.capture_names(records)?;
        if self.image.fact_count() > STATE_FACTS_MAX {
            return Err(Refusal::Full(format!("files and their names are more than {STATE_FACTS_MAX}")));
        }
        let files = self.image.nodes().filter(|(_, node)| node.kind == Kind::File && node.length > 0);
        let files: VecDeque<Number> = files.map(|(number, _)| number).collect();
        for file in self.files.values_mut() {
            file.blocks.begin_generation(self.comparison.seed());
        }
        for record in self.image.state(self.bounds.record) {
            self.log(records, &record)?;
        }
        self.copying = Some(Copying { files, block: 0 });
        Ok(true)
    }

    /// Logs up to so many bytes of old blocks, as they are in the file now. That may be newer than the file's last sync, which no
    /// program can tell from a write-back that the system has made by itself. What may differ elsewhere in the file, and what lies
    /// behind the end that the log has, is left to its syncs.
    pub fn copy(&mut self, bytes: u64, records: &mut Vec<Vec<u8>>) -> Result<(), Refusal> {
        // A file that is being cut takes a block more; both may be compared at once.
        let mut left = (bytes.min(self.bounds.scan / 2) / BLOCK as u64).max(1) as usize;
        while let Some(Copying { files, block }) = &mut self.copying {
            let Some(&number) = files.front() else {
                self.copying = None;
                break;
            };
            if left == 0 {
                break;
            }
            // One that is not there any more is gone in the log too.
            let (up_to, taken) = match self.files.get_mut(&number) {
                Some(file) => (file.blocks.length(), file.blocks.forget_old(*block, left)),
                None => Default::default(),
            };
            match taken.next {
                Some(next) => *block = next,
                None => {
                    files.pop_front();
                    *block = 0;
                }
            }
            if taken.ranges.is_empty() {
                continue;
            }
            left -= taken.ranges.len();
            let mut ranges = Ranges::default();
            ranges.extend(taken.ranges);
            if let Err(refusal) = self.compare_ranges(number, &mut ranges, up_to, records) {
                self.copying = None;
                return Err(refusal);
            }
        }
        Ok(())
    }
}
