//! Logs to test with, and the judge that the scan must agree with.
//!
//! Used by `log_bytes.rs` and `scan_properties.rs`. The judge knows nothing of headers or checksums: it kept the bytes as
//! they were written and compares.

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, Offset, SegmentId};
use tailwind_protocol::layout::{Closure, SegmentIdentity, SegmentSize};
use tailwind_protocol::scan::{Scanner, Stop, scan, verify};
use tailwind_protocol::segment::{SegmentWriter, append_size};

/// One record's bytes.
pub(crate) type Payload = Vec<u8>;
/// The records of one append.
pub(crate) type Payloads = Vec<Payload>;

/// The identity that these tests use where the numbers do not matter.
pub(crate) fn identity() -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
        segment: SegmentId(3),
        epoch: Epoch(2),
        generation: Generation(0x1122_3344_5566_7788),
        size: SegmentSize::MIN,
    }
}

/// LSN of the first record where the number does not matter.
pub(crate) const FIRST: Lsn = Lsn(41);

/// A segment as a primary wrote it, with where each append ended.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) identity: SegmentIdentity,
    /// The whole buffer.
    pub(crate) bytes: Vec<u8>,
    pub(crate) appends: Vec<Payloads>,
    /// Where the segment ended after its opening and after each append: one more than there are appends.
    pub(crate) closures: Vec<Closure>,
}

impl Log {
    /// Opens a segment and writes `appends`, which must fit.
    pub(crate) fn write(identity: SegmentIdentity, appends: Vec<Payloads>) -> Log {
        Log::write_from(FIRST, identity, appends)
    }

    /// The same, with another first LSN.
    pub(crate) fn write_from(first: Lsn, identity: SegmentIdentity, appends: Vec<Payloads>) -> Log {
        let mut bytes = vec![0; identity.size.bytes() as usize];
        let (mut writer, mut end) = SegmentWriter::open(identity, first, &mut bytes);
        let mut closures = vec![writer.closure()];
        for payloads in &appends {
            let size = append_size(payloads.iter().map(Vec::len));
            assert!(size <= writer.room(), "the test's appends must fit the segment");
            let written = writer.append(&mut bytes[end as usize..], payloads.iter().map(Vec::as_slice));
            assert_eq!(written as usize, size);
            end += written;
            closures.push(writer.closure());
            assert_eq!(writer.closure().end, Offset(end));
        }
        Log { identity, bytes, appends, closures }
    }

    /// Bytes written; zeros follow.
    pub(crate) fn end(&self) -> usize {
        self.end_of(self.appends.len())
    }

    /// Where the first `appends` end.
    pub(crate) fn end_of(&self, appends: usize) -> usize {
        self.closures[appends].end.0 as usize
    }

    /// The judge: how many appends have each of their bytes, and every byte before them, in place.
    /// `None` when not even the opening has.
    pub(crate) fn intact(&self, damaged: &[u8]) -> Option<usize> {
        let in_place = |closure: &&Closure| {
            let end = closure.end.0 as usize;
            damaged.get(..end) == Some(&self.bytes[..end])
        };
        self.closures.iter().take_while(in_place).count().checked_sub(1)
    }

    /// Asserts that of `damaged` the scan accepts what the judge calls intact, exactly, and that `verify` agrees.
    /// Returns where and why it stopped.
    pub(crate) fn check(&self, damaged: &[u8]) -> Stop {
        let intact = self.intact(damaged);
        let report = scan(damaged, &self.identity);
        let expected = intact.map_or(Closure::default(), |appends| self.closures[appends]);
        assert_eq!(report.closure, expected, "intact: {intact:?}, stopped: {:?}", report.stop);
        assert_eq!(report.closure.records(), self.appends[..intact.unwrap_or(0)].concat().len() as u64);
        assert_eq!(read(damaged, &self.identity), self.appends[..intact.unwrap_or(0)]);
        assert!(verify(damaged, &self.identity, &report.closure));
        for (appends, closure) in self.closures.iter().enumerate() {
            let whole = intact.is_some_and(|intact| appends <= intact);
            assert_eq!(verify(damaged, &self.identity, closure), whole, "verify up to append {appends}");
        }
        report.stop
    }
}

/// Every append that the scan accepts; asserts that its LSNs have no gap.
pub(crate) fn read(bytes: &[u8], identity: &SegmentIdentity) -> Vec<Payloads> {
    let Ok(mut scanner) = Scanner::new(bytes, identity) else { return vec![] };
    let mut appends = vec![];
    let mut next = scanner.closure().first;
    while let Ok(append) = scanner.next_append() {
        let mut payloads = vec![];
        for record in append.records() {
            assert_eq!(record.lsn, next);
            next = next.next();
            payloads.push(record.payload.to_vec());
        }
        assert_eq!(scanner.closure().last, next.prev());
        appends.push(payloads);
    }
    appends
}
