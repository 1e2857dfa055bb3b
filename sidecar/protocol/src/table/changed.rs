//! Which lines of the acknowledged view have changed, and up to which record: from the thread that appends to the mirror's thread.
//!
//! Set by the append path with each acknowledgement, right after the [view](super::acked::AckedView) has changed; taken by
//! [`Mirrors`](super::mirror::Mirrors) when a round begins. A set of bits in words of 64, over them words that say which of those are
//! not zero, and so on up to one word. No lock: neither thread waits for the other, and nothing is allocated after construction.
//!
//! # Why a round holds every change up to its record
//!
//! 1. The append path changes the view, then sets the bits, and then stores the record ([`ChangedLines::acked`], release). The mirror
//!    loads the record first (acquire) and then takes the bits. So for each change up to that record, its bit was set before.
//! 2. A bit that was set is taken, by this round or by one before. When a word turns from zero to not zero, the setter marks it in
//!    the word above. If the word was not zero, it has been marked since it last was, and either the mark is still there, or a taker
//!    has taken the mark and not yet the word: it takes marks before words, and after it has taken the word that is zero.
//! 3. Words are changed by read-modify-writes with acquire and release. So who takes a bit sees the view as it was when the bit
//!    was set, or later.
//!
//! One thread sets: with two, one could find a word not zero whose mark the other is about to set. The test below runs both sides
//! in every order that the memory model allows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::Lsn;

use super::acked::LineId;

/// Bits of a word.
pub(super) const FAN: usize = 64;

/// A shared word; the test's words are not the machine's.
trait Word {
    fn zero() -> Self;
    fn get(&self) -> u64;
    fn put(&self, value: u64);
    fn take(&self) -> u64;
    fn add(&self, bits: u64) -> u64;
}

macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            fn zero() -> $atomic {
                <$atomic>::new(0)
            }

            fn get(&self) -> u64 {
                self.load(Ordering::Acquire)
            }

            fn put(&self, value: u64) {
                self.store(value, Ordering::Release);
            }

            fn take(&self) -> u64 {
                self.swap(0, Ordering::AcqRel)
            }

            fn add(&self, bits: u64) -> u64 {
                self.fetch_or(bits, Ordering::AcqRel)
            }
        }
    };
}

word!(AtomicU64);

/// The lines that have changed.
#[derive(Debug)]
pub struct ChangedLines(Changed<AtomicU64, FAN>);

impl ChangedLines {
    /// None of so many lines, of a view in which everything up to this record is acknowledged.
    pub fn new(lines: u32, acked: Lsn) -> ChangedLines {
        let changed: Changed<AtomicU64, FAN> = Changed::new(lines);
        changed.acked.put(acked.0);
        ChangedLines(changed)
    }

    /// This line of the view has changed. Called by one thread.
    pub fn set(&self, line: LineId) {
        self.0.set(line.0 as usize);
    }

    /// All changes up to this record are in the view, and their lines are set. Called by the same thread.
    pub fn acked(&self, acked: Lsn) {
        self.0.acked.put(acked.0);
    }

    /// The last record of which that was said.
    pub fn last(&self) -> Lsn {
        Lsn(self.0.acked.get())
    }

    /// Takes all lines out, 64 at a time with the number of the first one divided by 64. Every change up to the record that it
    /// returns is in one of the lines that have been taken so far. Called by one other thread.
    pub fn take(&self, take: impl FnMut(usize, u64)) -> Lsn {
        Lsn(self.0.take(take))
    }
}

#[derive(Debug)]
struct Changed<W, const FAN: usize> {
    acked: W,
    /// Lines; then, level by level, which words of the level before are not zero; one word at last.
    levels: Vec<Box<[W]>>,
}

impl<W: Word, const FAN: usize> Changed<W, FAN> {
    fn new(lines: u32) -> Changed<W, FAN> {
        let words = |count: usize| (0..count).map(|_| W::zero()).collect();
        Changed { acked: W::zero(), levels: level_sizes(lines, FAN).map(words).collect() }
    }

    fn set(&self, line: usize) {
        let mut at = line;
        for level in &self.levels {
            let bit = 1 << (at % FAN);
            at /= FAN;
            if level[at].add(bit) != 0 {
                return;
            }
        }
    }

    fn take(&self, mut take: impl FnMut(usize, u64)) -> u64 {
        let acked = self.acked.get();
        self.take_word(self.levels.len() - 1, 0, &mut take);
        acked
    }

    fn take_word(&self, level: usize, at: usize, take: &mut impl FnMut(usize, u64)) {
        let mut bits = self.levels[level][at].take();
        if level == 0 {
            if bits != 0 {
                take(at, bits);
            }
            return;
        }
        while bits != 0 {
            self.take_word(level - 1, at * FAN + bits.trailing_zeros() as usize, take);
            bits &= bits - 1;
        }
    }
}

/// Words of each level of a set of so many lines, with so many bits in a word.
pub(super) fn level_sizes(lines: u32, fan: usize) -> impl Iterator<Item = usize> {
    let words = (lines as usize).div_ceil(fan).max(1);
    std::iter::successors(Some(words), move |words| (*words > 1).then(|| words.div_ceil(fan)))
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    word!(AtomicU64);

    /// Changes of these lines, one for each record, while the other thread takes twice: words of two bits, so three levels.
    fn takes_what_was_acked(lines: &'static [usize]) {
        loom::model(move || {
            let changed: Arc<Changed<AtomicU64, 2>> = Arc::new(Changed::new(5));
            let view: Arc<Vec<AtomicU64>> = Arc::new((0..5).map(|_| AtomicU64::new(0)).collect());
            let (setter, written) = (Arc::clone(&changed), Arc::clone(&view));
            let appends = loom::thread::spawn(move || {
                for (lsn, line) in (1..).zip(lines) {
                    written[*line].store(lsn, Ordering::Relaxed);
                    setter.set(*line);
                    setter.acked.put(lsn);
                }
            });
            // What a mirror shows of each line: the view as it was when the line was last taken.
            let mut shown = [0; 5];
            let mut round = || {
                let through = changed.take(|at, bits| {
                    for line in (0..2).filter(|bit| bits >> bit & 1 == 1).map(|bit| 2 * at + bit) {
                        shown[line] = view[line].load(Ordering::Relaxed);
                    }
                });
                for (lsn, line) in (1..).zip(lines).take_while(|(lsn, _)| *lsn <= through) {
                    assert!(shown[*line] >= lsn, "record {lsn} is not shown through {through}: {shown:?}");
                }
                through
            };
            round();
            round();
            appends.join().unwrap();
            assert_eq!(round(), lines.len() as u64);
        });
    }

    #[test]
    fn a_round_shows_all_up_to_its_record() {
        takes_what_was_acked(&[0, 4]);
        takes_what_was_acked(&[0, 1]);
    }

    #[test]
    fn a_line_that_changes_twice_is_taken_again() {
        takes_what_was_acked(&[2, 2]);
    }

    #[test]
    fn levels_end_in_one_word() {
        let sizes = |lines| level_sizes(lines, FAN).collect::<Vec<_>>();
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(64), [1]);
        assert_eq!(sizes(65), [2, 1]);
        assert_eq!(sizes(64 * 64 + 1), [65, 2, 1]);
        // Of the largest table.
        assert_eq!(sizes(13_981_016), [218_454, 3414, 54, 1]);
    }
}
