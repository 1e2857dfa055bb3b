//! Reads the parts of a file that may differ, and finds those that do.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, SeekFrom};
use rustix::io::{Errno, pread};

use crate::blocks::{BLOCK, Blocks, Seed};
use crate::ranges::Ranges;

/// Bytes that are read at a time.
const CHUNK: usize = 256 * BLOCK;
/// What is shorter is read, even if it is a hole: that takes no longer than the question.
const HOLE_MIN: u64 = 16 * BLOCK as u64;

/// How a comparison ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The blocks say what the file has.
    Whole,
    /// The file has been cut while it was read: it ends no later than here. Compare again.
    Shorter(u64),
}

/// A part of a file that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed<'a> {
    /// Bytes that were read.
    Bytes(&'a [u8]),
    /// A hole of so many zeros.
    Zeros(u64),
}

/// What of a file has to be compared, and where it has holes.
///
/// A hole is not read. It counts as zeros as of the moment at which the kernel was asked for it, just as bytes count as what they
/// were when they were read. A write that fills it later is found in the same way as one that changes bytes behind the reader:
/// its call is still in doubt, or its position is read at the next comparison, or it is a store to a mapping, all of which is
/// compared at each sync. The kernel tells holes by its page cache, so that what was written and is on no disk yet is data.
#[derive(Clone, Default, Debug)]
pub struct Plan {
    /// In ascending order.
    parts: Vec<Part>,
    /// The file has been cut in the meantime.
    cut: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Bytes(u64, u64),
    Hole(u64, u64),
}

impl Plan {
    /// All bytes of `file` that may differ, and all beyond what the log has, up to `length`.
    pub fn new(file: BorrowedFd<'_>, blocks: &Blocks, doubts: &Ranges, length: u64) -> io::Result<Plan> {
        let mut ranges = doubts.blocks(BLOCK as u64, length);
        if length > blocks.length() {
            ranges.add((blocks.length() / BLOCK as u64 * BLOCK as u64, length));
        }
        let mut plan = Plan::default();
        for (start, end) in ranges.iter() {
            let end = end.min(length);
            let mut at = start;
            let mut step = HOLE_MIN;
            while at < end {
                if end - at >= HOLE_MIN {
                    let Some(data) = next_data(file, at)? else {
                        // No data up to the end, wherever that is by now: what has been cut off were no zeros.
                        let size = fs::fstat(file)?.st_size as u64;
                        if size < length {
                            plan.cut = Some(size);
                            return Ok(plan);
                        }
                        plan.parts.push(Part::Hole(at, end));
                        break;
                    };
                    let data = (data / BLOCK as u64 * BLOCK as u64).min(end);
                    if data - at >= HOLE_MIN {
                        plan.parts.push(Part::Hole(at, data));
                        at = data;
                        step = HOLE_MIN;
                    }
                }
                // The kernel is not asked where the data ends: to say so it walks through all of a file without holes.
                let next = at + step.min(end - at);
                plan.read(at, next);
                at = next;
                step = (2 * step).min(CHUNK as u64);
            }
        }
        Ok(plan)
    }

    fn read(&mut self, start: u64, end: u64) {
        match self.parts.last_mut() {
            Some(Part::Bytes(_, last)) if *last == start => *last = end,
            _ if start < end => self.parts.push(Part::Bytes(start, end)),
            _ => {}
        }
    }

    /// Bytes that are going to be read.
    pub fn size(&self) -> u64 {
        let size = |part: &Part| if let Part::Bytes(start, end) = part { end - start } else { 0 };
        self.parts.iter().map(size).sum()
    }
}

/// Where the next byte is that is in no hole. `None` if there is none before the file's end.
fn next_data(file: BorrowedFd<'_>, at: u64) -> io::Result<Option<u64>> {
    // No other code uses the position: the opener of the file reads at offsets.
    match fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A file is compared with what the log has of it.
pub struct Comparison {
    seed: Seed,
    buffer: Vec<u8>,
}

impl Comparison {
    /// With a seed of its own, which is that of all blocks that it compares.
    pub fn new() -> Result<Comparison, getrandom::Error> {
        Ok(Comparison { seed: Seed::random()?, buffer: Vec::new() })
    }

    /// The seed of all blocks.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Compares what `plan` says of `file` with its blocks. Calls `changed` with the offset of each run of bytes that the log does
    /// not have, in ascending order. The plan's length is no less than the blocks'.
    pub fn compare(
        &mut self,
        file: BorrowedFd<'_>,
        blocks: &mut Blocks,
        plan: &Plan,
        mut changed: impl FnMut(u64, Changed<'_>),
    ) -> io::Result<Compared> {
        if let Some(end) = plan.cut {
            return Ok(Compared::Shorter(end));
        }
        for part in &plan.parts {
            match *part {
                Part::Hole(start, end) => {
                    for (from, count) in blocks.update_zeros(self.seed, start, end - start) {
                        changed(start + from, Changed::Zeros(count));
                    }
                }
                Part::Bytes(start, end) => {
                    let mut at = start;
                    while at < end {
                        let size = CHUNK.min((end - at) as usize);
                        if self.buffer.len() < size {
                            self.buffer.resize(size, 0);
                        }
                        let read = read_full(file, &mut self.buffer[..size], at)?;
                        if read < size {
                            return Ok(Compared::Shorter(at + read as u64));
                        }
                        for (from, count) in blocks.update(self.seed, at, &self.buffer[..size]) {
                            let bytes = &self.buffer[from as usize..(from + count) as usize];
                            changed(at + from, Changed::Bytes(bytes));
                        }
                        at += size as u64;
                    }
                }
            }
        }
        Ok(Compared::Whole)
    }
}

fn read_full(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match rustix::io::retry_on_intr(|| pread(file, &mut buffer[read..], offset + read as u64))? {
            0 => break,
            count => read += count,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;

    const SIZE: u64 = 3 << 20;

    /// What a program may do to a file.
    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u8, usize),
        Cut(u64),
        Punch(u64, u64),
        Allocate(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..SIZE, any::<u8>(), 1usize..20_000).prop_map(|(at, byte, size)| Step::Write(at, byte, size)),
            1 => (0..SIZE, Just(0), Just(200_000)).prop_map(|(at, byte, size)| Step::Write(at, byte, size)),
            2 => (0..SIZE).prop_map(Step::Cut),
            1 => (0..SIZE, 1..SIZE).prop_map(|(at, size)| Step::Punch(at, size)),
            1 => (0..SIZE, 1..SIZE).prop_map(|(at, size)| Step::Allocate(at, size)),
        ]
    }

    fn take(step: &Step, file: &File) -> io::Result<()> {
        match *step {
            Step::Write(at, byte, size) => file.write_all_at(&vec![byte; size], at),
            Step::Cut(length) => file.set_len(length),
            Step::Punch(at, size) => {
                Ok(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, size)?)
            }
            Step::Allocate(at, size) => Ok(fallocate(file, FallocateFlags::empty(), at, size)?),
        }
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().expect("the length").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("read the file");
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// A copy that takes what has changed, and nothing else, is equal to the file, wherever that has holes.
        #[test]
        fn a_copy_becomes_equal_without_holes_being_read(
            rounds in prop::collection::vec(prop::collection::vec(step(), 1..4), 1..6),
            in_memory in any::<bool>(),
        ) {
            let folder = if in_memory { "/dev/shm".into() } else { std::env::temp_dir() };
            let file = tempfile::tempfile_in(folder).expect("a file");
            let mut comparison = Comparison::new().expect("a seed");
            let mut blocks = Blocks::default();
            let mut copy: Vec<u8> = Vec::new();
            let mut doubts = Ranges::default();
            doubts.add(Ranges::WHOLE);
            for steps in rounds {
                steps.iter().try_for_each(|step| take(step, &file)).expect("change the file");
                let wanted = content(&file);
                let length = wanted.len() as u64;
                if length < blocks.length() {
                    blocks.cut(length);
                }
                copy.resize(wanted.len(), 0);
                let plan = Plan::new(file.as_fd(), &blocks, &doubts, length).expect("a plan");
                let compared = comparison.compare(file.as_fd(), &mut blocks, &plan, |offset, changed| {
                    let at = offset as usize;
                    match changed {
                        Changed::Bytes(bytes) => copy[at..at + bytes.len()].copy_from_slice(bytes),
                        Changed::Zeros(count) => copy[at..at + count as usize].fill(0),
                    }
                });
                prop_assert_eq!(compared.expect("read"), Compared::Whole);
                prop_assert!(copy == wanted);
                prop_assert_eq!(blocks.length(), length);
                // And the blocks know it.
                let plan = Plan::new(file.as_fd(), &blocks, &doubts, length).expect("a plan");
                let again = comparison.compare(file.as_fd(), &mut blocks, &plan, |_, _| panic!("nothing is new"));
                prop_assert_eq!(again.expect("read"), Compared::Whole);
            }
        }
    }

    #[test]
    fn a_hole_is_not_read() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        file.set_len(1 << 40).expect("a large file");
        let (mut doubts, mut blocks) = (Ranges::default(), Blocks::default());
        doubts.add(Ranges::WHOLE);
        let plan = |blocks: &Blocks, length| Plan::new(file.as_fd(), blocks, &doubts, length).expect("a plan");
        assert_eq!(plan(&blocks, 1 << 40).size(), 0);
        let at = (1 << 39) + 5;
        file.write_all_at(b"bytes", at).expect("write");
        assert_eq!(plan(&blocks, 1 << 40).size(), HOLE_MIN);

        // With blocks, of a smaller one.
        let mut comparison = Comparison::new().expect("a seed");
        let plan = plan(&blocks, 1 << 30);
        let mut runs = Vec::new();
        let compared = comparison.compare(file.as_fd(), &mut blocks, &plan, |offset, changed| match changed {
            Changed::Zeros(count) => runs.push((offset, count)),
            Changed::Bytes(_) => panic!("bytes of a hole"),
        });
        assert_eq!((compared.expect("compare"), runs), (Compared::Whole, vec![(0, 1 << 30)]));
    }

    #[test]
    fn a_file_that_was_cut_has_no_hole_there() {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        file.write_all_at(&vec![1; 1 << 20], 0).expect("write");
        let mut doubts = Ranges::default();
        doubts.add(Ranges::WHOLE);
        file.set_len(100).expect("cut the file");
        let mut blocks = Blocks::default();
        let plan = Plan::new(file.as_fd(), &blocks, &doubts, 1 << 20).expect("a plan");
        let mut comparison = Comparison::new().expect("a seed");
        let compared = comparison.compare(file.as_fd(), &mut blocks, &plan, |_, changed| match changed {
            Changed::Zeros(_) => panic!("what was cut off were no zeros"),
            Changed::Bytes(bytes) => assert!(bytes.iter().all(|byte| *byte == 1)),
        });
        assert_eq!(compared.expect("compare"), Compared::Shorter(100));
    }
}
