//! Compares a log with what was submitted: no record lost, no gap, no reorder, no duplicate.
//!
//! Not the code under test: it knows LSNs and the input, and nothing of segments or epochs.

use anyhow::Result;
use tailwind_client::Lsn;
use tailwind_client::blocking::Client;

use crate::workload::Input;

/// What reading the log back has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Records read.
    pub read: u64,
    /// Acknowledged records that are not in the log, or not what was submitted.
    pub lost: u64,
    /// Records beyond what was submitted, or in the log twice.
    pub duplicated: u64,
}

impl Comparison {
    /// Every record is there once, in order, as it was submitted.
    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicated == 0
    }
}

/// Compares a log, record by record, with what was submitted.
#[derive(Debug)]
struct Checker<'a, I: Input> {
    input: &'a I,
    /// LSN that must come next.
    expected: u64,
    result: Comparison,
}

impl<'a, I: Input> Checker<'a, I> {
    /// The log is read from record `first` on.
    fn new(input: &'a I, first: u64) -> Checker<'a, I> {
        Checker { input, expected: first, result: Comparison::default() }
    }

    /// Takes the next record of the log.
    fn take(&mut self, lsn: u64, payload: &[u8]) {
        self.result.read += 1;
        if lsn < self.expected {
            self.result.duplicated += 1;
            return;
        }
        self.result.lost += lsn - self.expected + u64::from(payload != self.input.record(lsn));
        self.expected = lsn + 1;
    }

    /// The log has ended; records up to `acked` must have been in it, and no others.
    fn finish(mut self, acked: u64) -> Comparison {
        self.result.lost += (acked + 1).saturating_sub(self.expected);
        self.result.duplicated += self.expected.saturating_sub(acked + 1);
        self.result
    }
}

/// Reads the log from record `first` on and compares it with the input: the records up to `acked` must be there, each once,
/// in order.
pub fn compare<I: Input>(
    client: &mut Client,
    input: &I,
    first: u64,
    acked: u64,
    mut on_progress: impl FnMut(u64),
) -> Result<Comparison> {
    let mut checker = Checker::new(input, first);
    let mut records = client.read(Lsn(first), 0)?;
    while let Some((lsn, payload)) = records.next_record()? {
        checker.take(lsn.0, payload);
        if checker.result.read.is_multiple_of(4096) {
            on_progress(checker.result.read);
        }
    }
    Ok(checker.finish(acked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Numbered;

    const INPUT: Numbered = Numbered { seed: 7, length_max: 40 };

    type Log = Vec<(u64, Vec<u8>)>;

    fn check(log: &Log, acked: u64) -> Comparison {
        let mut checker = Checker::new(&INPUT, 1);
        log.iter().for_each(|(lsn, payload)| checker.take(*lsn, payload));
        checker.finish(acked)
    }

    fn log() -> Log {
        (1..=100).map(|number| (number, INPUT.record(number))).collect()
    }

    #[test]
    fn matching_log_is_clean() {
        assert_eq!(check(&log(), 100), Comparison { read: 100, lost: 0, duplicated: 0 });
    }

    #[test]
    fn checker_detects_all_damage() {
        let damaged = |damage: &dyn Fn(&mut Log)| {
            let mut log = log();
            damage(&mut log);
            check(&log, 100)
        };
        assert_eq!(damaged(&|log| drop(log.remove(50))).lost, 1, "a gap");
        assert_eq!(damaged(&|log| log.truncate(97)).lost, 3, "acknowledged records missing at the end");
        assert_eq!(
            damaged(&|log| log.push((101, INPUT.record(101)))).duplicated,
            1,
            "a record that was never submitted"
        );
        assert_eq!(damaged(&|log| log.insert(51, log[50].clone())).duplicated, 1, "a record twice");
        assert!(!damaged(&|log| log.swap(50, 51)).is_clean(), "two records in the wrong order");
        assert_eq!(damaged(&|log| log[50].1.push(0)).lost, 1, "a record that is longer");
        let renumbered = damaged(&|log| {
            log.remove(50);
            log[50..].iter_mut().for_each(|(lsn, _)| *lsn -= 1);
        });
        assert!(renumbered.lost > 40, "records that have moved up into a gap");
    }
}
