//! Records in files and pipes: how `append` takes its input apart, and how `read`, `tail` and `scan` write records down.

use std::io::{self, Read, Write};
use std::ops::Range;

use clap::ValueEnum;
use tailwind_client::Lsn;

/// Bytes read at a time, when there are so many.
const CHUNK_SIZE: usize = 256 << 10;
/// Bytes of a length.
const PREFIX_SIZE: usize = 4;

/// How records stand in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFraming {
    /// One record per line, without its newline
    Lines,
    /// Each record after its length, 4 bytes, little-endian
    Length,
}

impl InputFraming {
    /// What one record of the input is called.
    pub(super) fn noun(self) -> &'static str {
        match self {
            InputFraming::Lines => "line",
            InputFraming::Length => "record",
        }
    }
}

/// How records stand in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFraming {
    /// Each record and a newline
    Lines,
    /// Each record after its length, 4 bytes, little-endian; `append` accepts it
    Length,
    /// Each record as hexadecimal digits and a newline
    Hex,
}

/// Input that cannot be taken apart any further. What came before it has been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInput {
    /// Above what the sidecar takes, or the framing is another.
    #[error(
        "{noun} {number} of the input is larger than a record may be ({max} bytes): split it, or give the right --framing"
    )]
    TooLarge {
        /// What a record is called.
        noun: &'static str,
        /// Which one, from 1.
        number: u64,
        /// The limit.
        max: usize,
    },
    /// The last record is not whole.
    #[error(
        "the input ends within record {number}, {missing} bytes short: it was cut off, or give the right --framing"
    )]
    CutOff {
        /// Which one, from 1.
        number: u64,
        /// How much of it, or of its length, is missing.
        missing: usize,
    },
}

/// Takes input apart into records, as it comes in.
pub struct Splitter {
    framing: InputFraming,
    record_size_max: usize,
    bytes: Vec<u8>,
    /// What has been read and not handed out.
    unread: Range<usize>,
    /// How many of the unread bytes are known not to be a newline.
    searched: usize,
    ended: bool,
    /// Records handed out.
    taken: u64,
}

impl Splitter {
    /// Nothing read yet.
    pub fn new(framing: InputFraming, record_size_max: usize) -> Splitter {
        Splitter { framing, record_size_max, bytes: Vec::new(), unread: 0..0, searched: 0, ended: false, taken: 0 }
    }

    /// True when the input has ended: then [`next_record`](Splitter::next_record) gives what is left.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Reads once. Memory stays within two chunks and the largest record.
    pub fn fill(&mut self, input: &mut impl Read) -> io::Result<()> {
        let Range { start, end } = self.unread;
        self.bytes.copy_within(start..end, 0);
        self.unread = 0..end - start;
        self.bytes.resize(self.unread.end + CHUNK_SIZE, 0);
        match input.read(&mut self.bytes[self.unread.end..]) {
            Ok(size) => {
                self.unread.end += size;
                self.ended = size == 0;
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next record; `None` when more input is needed, or when there is none left.
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, BadInput> {
        let found = match self.framing {
            InputFraming::Lines => self.find_line()?,
            InputFraming::Length => self.find_prefixed()?,
        };
        let Some((record, size)) = found else { return Ok(None) };
        let start = self.unread.start;
        self.unread.start += size;
        self.searched = 0;
        self.taken += 1;
        Ok(Some(&self.bytes[start + record.start..start + record.end]))
    }

    /// Where in the unread bytes the next line stands, and how many of them it takes.
    fn find_line(&mut self) -> Result<Option<(Range<usize>, usize)>, BadInput> {
        let unread = &self.bytes[self.unread.clone()];
        let newline = unread[self.searched..].iter().position(|byte| *byte == b'\n');
        let length = newline.map_or(unread.len(), |at| self.searched + at);
        self.check_size(length)?;
        match newline {
            Some(_) => Ok(Some((0..length, length + 1))),
            None if self.ended && length > 0 => Ok(Some((0..length, length))),
            None => {
                self.searched = length;
                Ok(None)
            }
        }
    }

    /// The same for a record after its length.
    fn find_prefixed(&self) -> Result<Option<(Range<usize>, usize)>, BadInput> {
        let unread = &self.bytes[self.unread.clone()];
        let wanted = match unread.first_chunk::<PREFIX_SIZE>() {
            Some(length) => {
                let length = u32::from_le_bytes(*length) as usize;
                self.check_size(length)?;
                PREFIX_SIZE + length
            }
            None => PREFIX_SIZE,
        };
        if unread.len() >= wanted {
            return Ok(Some((PREFIX_SIZE..wanted, wanted)));
        }
        if self.ended && !unread.is_empty() {
            return Err(BadInput::CutOff { number: self.taken + 1, missing: wanted - unread.len() });
        }
        Ok(None)
    }

    fn check_size(&self, size: usize) -> Result<(), BadInput> {
        if size <= self.record_size_max {
            return Ok(());
        }
        Err(BadInput::TooLarge { noun: self.framing.noun(), number: self.taken + 1, max: self.record_size_max })
    }
}

/// Writes records down.
pub struct RecordWriter<W> {
    out: W,
    framing: OutputFraming,
    print_lsn: bool,
    written: u64,
    /// A record as it is written: as a whole, so that output which ends early ends with a whole record.
    whole: Vec<u8>,
}

impl<W: Write> RecordWriter<W> {
    /// With `print_lsn`, each line begins with the record's LSN and a tab.
    pub fn new(out: W, framing: OutputFraming, print_lsn: bool) -> RecordWriter<W> {
        RecordWriter { out, framing, print_lsn, written: 0, whole: Vec::new() }
    }

    /// Writes one record.
    pub fn write(&mut self, lsn: Lsn, payload: &[u8]) -> io::Result<()> {
        let whole = &mut self.whole;
        whole.clear();
        if self.print_lsn {
            write!(whole, "{lsn}\t")?;
        }
        match self.framing {
            OutputFraming::Lines => {
                whole.extend_from_slice(payload);
                whole.push(b'\n');
            }
            OutputFraming::Length => {
                whole.extend_from_slice(&(payload.len() as u32).to_le_bytes());
                whole.extend_from_slice(payload);
            }
            OutputFraming::Hex => {
                payload.iter().try_for_each(|byte| write!(whole, "{byte:02x}"))?;
                whole.push(b'\n');
            }
        }
        self.out.write_all(whole)?;
        self.written += 1;
        Ok(())
    }

    /// How many records it has written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Hands on what has been gathered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;
