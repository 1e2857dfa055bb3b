//! Algorithm 1 of ATC'18, hardened: finds where a buffer's valid log ends by looking at nothing but its bytes.
//!
//! Called by backups on fenced memory and on files, by the sidecar on fetched segments, and by the `scan` command.
//! See "Log bytes" and "The scan" in `docs/protocol.md`.

use std::fmt;

use crate::ids::{Epoch, Lsn, Offset};
use crate::layout::{
    ALIGNMENT, CHECKSUM_SIZE, Chain, Closure, FIRST_LSN_MAX, Lag, RECORD_HEADER_SIZE, RECORD_SIZE_MIN,
    SEGMENT_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity, TYPE_CHECKSUM, TYPE_RECORD, TYPE_UNWRITTEN, padded,
};
use crate::planted::{self, Bug};

/// Why a scan stopped where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The buffer is full to the last entry.
    Full,
    /// Zero where the next entry's type would be: nothing was written there.
    Unwritten,
    /// The first bytes are not the header of the segment that was expected.
    SegmentHeader,
    /// A type byte that no entry has.
    UnknownType(u8),
    /// Bytes of a record header that must be zero are not.
    Reserved,
    /// Length and its complement disagree.
    LengthEcho,
    /// The entry would reach beyond the buffer.
    Bounds,
    /// Not the next LSN.
    Lsn {
        /// The one in the header.
        found: Lsn,
        /// The next one.
        expected: Lsn,
    },
    /// Not the segment's epoch.
    Epoch {
        /// The one in the header.
        found: Epoch,
        /// The segment's.
        expected: Epoch,
    },
    /// The payload does not have the CRC in its header.
    PayloadCrc,
    /// Padding after the payload is not zero.
    Padding,
    /// The checksum entry is not the chain over all headers so far (or has not landed whole).
    Checksum,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::Full => f.write_str("the buffer is full"),
            StopReason::Unwritten => f.write_str("nothing was written here"),
            StopReason::SegmentHeader => f.write_str("not the expected segment header"),
            StopReason::UnknownType(byte) => write!(f, "unknown entry type 0x{byte:02x}"),
            StopReason::Reserved => f.write_str("reserved bytes of the record header are not zero"),
            StopReason::LengthEcho => f.write_str("record length and its complement disagree"),
            StopReason::Bounds => f.write_str("the entry reaches beyond the buffer"),
            StopReason::Lsn { found, expected } => write!(f, "record has LSN {found}, expected {expected}"),
            StopReason::Epoch { found, expected } => write!(f, "record has epoch {found}, expected {expected}"),
            StopReason::PayloadCrc => f.write_str("payload CRC does not match"),
            StopReason::Padding => f.write_str("padding is not zero"),
            StopReason::Checksum => f.write_str("checksum entry does not match the chain"),
        }
    }
}

/// Where and why a scan stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The entry that was not accepted.
    pub at: Offset,
    /// Why the scan stopped there.
    pub why: StopReason,
}

/// One accepted record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number.
    pub lsn: Lsn,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// One accepted append: its records are in the log together or not at all. A mark is one without records.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    first: Lsn,
    entries: &'a [u8],
}

impl<'a> Append<'a> {
    /// The records, checked already.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> + use<'a> {
        let mut rest = self.entries;
        let mut lsn = self.first;
        std::iter::from_fn(move || {
            let (header, body) = rest.split_first_chunk::<RECORD_HEADER_SIZE>()?;
            let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
            let record = Record { lsn, payload: &body[..length] };
            rest = &body[padded(length)..];
            lsn = lsn.next();
            Some(record)
        })
    }
}

/// Reads a segment append by append and stops at the first entry that is not perfect. Never skips forward.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    /// Where in the segment `bytes` begin.
    base: usize,
    epoch: Epoch,
    closure: Closure,
    /// Everything before was acknowledged, by what the accepted entries say.
    acked: Offset,
}

impl<'a> Scanner<'a> {
    /// Checks that `bytes` begin with the header of `identity`. `bytes` may be shorter than the segment.
    pub fn new(bytes: &'a [u8], identity: &SegmentIdentity) -> Result<Scanner<'a>, Stop> {
        let bytes = &bytes[..bytes.len().min(identity.size.bytes() as usize)];
        let Some(header) = bytes.first_chunk::<SEGMENT_HEADER_SIZE>() else {
            return Err(Stop { at: Offset(0), why: StopReason::Bounds });
        };
        let Some((_, first)) = SegmentIdentity::from_header(header).filter(|(found, _)| found == identity) else {
            let unwritten = header.iter().all(|byte| *byte == 0);
            let why = if unwritten { StopReason::Unwritten } else { StopReason::SegmentHeader };
            return Err(Stop { at: Offset(0), why });
        };
        let chain = Chain::default().extend(header);
        let Some((chain, _)) = sealed(&bytes[SEGMENT_HEADER_SIZE..], chain) else {
            return Err(Stop { at: Offset(SEGMENT_HEADER_SIZE as u32), why: StopReason::Checksum });
        };
        let closure = Closure { first, last: first.prev(), end: Offset(SEGMENT_OVERHEAD as u32), chain };
        Ok(Scanner { bytes, base: 0, epoch: identity.epoch, closure, acked: Offset(0) })
    }

    /// Resumes where an earlier scan of the same segment, perhaps of fewer bytes, stopped.
    pub fn resume(bytes: &'a [u8], identity: &SegmentIdentity, closure: Closure) -> Scanner<'a> {
        let bytes = &bytes[..bytes.len().min(identity.size.bytes() as usize)];
        Scanner { bytes, base: 0, epoch: identity.epoch, closure, acked: Offset(0) }
    }

    /// Resumes where an earlier scan of the same segment stopped, with only the bytes from there on: `tail` begins at
    /// `closure.end`, which is not the default.
    pub fn resume_tail(tail: &'a [u8], identity: &SegmentIdentity, closure: Closure) -> Scanner<'a> {
        let base = closure.end.0 as usize;
        assert!(base >= SEGMENT_OVERHEAD, "the segment header was accepted before");
        let room = (identity.size.bytes() as usize).saturating_sub(base);
        Scanner { bytes: &tail[..tail.len().min(room)], base, epoch: identity.epoch, closure, acked: Offset(0) }
    }

    /// Where the accepted log ends so far.
    pub fn closure(&self) -> Closure {
        self.closure
    }

    /// The next append, or where and why there is none. After a stop it stops there again.
    pub fn next_append(&mut self) -> Result<Append<'a>, Stop> {
        let start = self.closure.end.0 as usize - self.base;
        let first = self.closure.last.next();
        let mut at = start;
        let mut chain = self.closure.chain;
        let mut next = first;
        loop {
            let stop = |why| Stop { at: Offset((self.base + at) as u32), why };
            let rest = &self.bytes[at..];
            let Some(kind) = rest.first() else {
                return Err(stop(if at == start { StopReason::Full } else { StopReason::Bounds }));
            };
            match *kind {
                TYPE_RECORD => {
                    let (header, body) = rest.split_first_chunk().ok_or_else(|| stop(StopReason::Bounds))?;
                    at += self.check_record(header, body, next).map_err(stop)?;
                    chain = chain.extend(header);
                    next = next.next();
                }
                TYPE_CHECKSUM => {
                    let (chain, lag) = sealed(rest, chain).ok_or_else(|| stop(StopReason::Checksum))?;
                    let entries = &self.bytes[start..at];
                    let here = (self.base + at) as u32;
                    let end = Offset(here + CHECKSUM_SIZE as u32);
                    self.acked = self.acked.max(lag.acked(Offset(here)));
                    self.closure = Closure { last: next.prev(), end, chain, ..self.closure };
                    return if skips(entries) { self.next_append() } else { Ok(Append { first, entries }) };
                }
                TYPE_UNWRITTEN if at == start => return Err(stop(StopReason::Unwritten)),
                TYPE_UNWRITTEN => return Err(stop(StopReason::Checksum)),
                unknown => return Err(stop(StopReason::UnknownType(unknown))),
            }
        }
    }

    /// Everything that a record must be, before its append's checksum. Returns the bytes it takes.
    fn check_record(&self, header: &[u8; RECORD_HEADER_SIZE], body: &[u8], expected: Lsn) -> Result<usize, StopReason> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        if header[1..4] != [0; 3] {
            return Err(StopReason::Reserved);
        }
        if u32_at(4) != !u32_at(8) {
            return Err(StopReason::LengthEcho);
        }
        let length = u32_at(4) as usize;
        let (payload, rest) = body.split_at_checked(length).ok_or(StopReason::Bounds)?;
        let padding = rest.get(..padded(length) - length).ok_or(StopReason::Bounds)?;
        let found = Lsn(u64_at(16));
        if found != expected && !planted::has(Bug::UnseededChain) {
            return Err(StopReason::Lsn { found, expected });
        }
        let found = Epoch(u64_at(24));
        if found != self.epoch && !planted::has(Bug::UnseededChain) {
            return Err(StopReason::Epoch { found, expected: self.epoch });
        }
        let unchecked = [Bug::NoPayloadCrc, Bug::HeaderCrcOnly, Bug::ScanSkipsBadEntry].into_iter().any(planted::has);
        if !unchecked && crc32fast::hash(payload) != u32_at(12) {
            return Err(StopReason::PayloadCrc);
        }
        if padding.iter().any(|b| *b != 0) {
            return Err(StopReason::Padding);
        }
        Ok(RECORD_HEADER_SIZE + padded(length))
    }
}

/// True for an append that [`Bug::ScanSkipsBadEntry`] skips: its bounds are checked, one of its payloads is bad.
fn skips(mut entries: &[u8]) -> bool {
    while planted::has(Bug::ScanSkipsBadEntry)
        && let Some((header, body)) = entries.split_first_chunk::<RECORD_HEADER_SIZE>()
    {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let length = u32_at(4) as usize;
        if crc32fast::hash(&body[..length]) != u32_at(12) {
            return true;
        }
        entries = &body[padded(length)..];
    }
    false
}

/// The chain after the checksum entry that `bytes` begin with, and its lag. `None`: it does not end an append with `chain`.
fn sealed(bytes: &[u8], chain: Chain) -> Option<(Chain, Lag)> {
    let entry = bytes.first_chunk::<CHECKSUM_SIZE>()?;
    let (found, lag) = Chain::from_entry(entry)?;
    (found == chain.seal(lag).0).then_some((found, lag))
}

/// Scans a segment whose bytes come in pieces, the first from its beginning. Keeps only what is not part of a whole append.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PiecewiseScanner {
    identity: SegmentIdentity,
    /// What has been accepted; the default before the segment header is.
    known: Closure,
    /// Bytes from there on.
    rest: Vec<u8>,
    /// It is worth looking again once there are so many of them: an append in many pieces is not scanned from its beginning with
    /// each.
    look_at: usize,
}

impl PiecewiseScanner {
    /// A scanner of this segment.
    pub fn new(identity: SegmentIdentity) -> PiecewiseScanner {
        PiecewiseScanner { identity, known: Closure::default(), rest: Vec::new(), look_at: 0 }
    }

    /// Takes the bytes that follow, and hands out the records of appends that are whole now.
    pub fn push(&mut self, piece: &[u8], each: impl FnMut(Record<'_>)) {
        if self.rest.is_empty() {
            let taken = self.scan(piece, each);
            self.rest.extend_from_slice(&piece[taken..]);
        } else {
            self.rest.extend_from_slice(piece);
            if self.rest.len() < self.look_at {
                return;
            }
            self.look(each);
        }
        self.look_at = 2 * self.rest.len();
    }

    /// True when the segment's header has been accepted, and nothing was written behind what has been accepted so far.
    pub fn is_at_zeros(&self) -> bool {
        self.known.end > Offset(0) && self.rest.first() == Some(&TYPE_UNWRITTEN)
    }

    /// Nothing follows: where the valid log ends.
    pub fn finish(mut self, each: impl FnMut(Record<'_>)) -> Closure {
        self.look(each);
        self.known
    }

    /// Hands out what is whole now, also if little has come since the last look.
    pub fn look(&mut self, each: impl FnMut(Record<'_>)) {
        let mut rest = std::mem::take(&mut self.rest);
        let taken = self.scan(&rest, each);
        rest.drain(..taken);
        self.rest = rest;
    }

    /// Accepts what is whole at the beginning of these bytes, which follow what is known. Returns how many were accepted.
    fn scan(&mut self, bytes: &[u8], mut each: impl FnMut(Record<'_>)) -> usize {
        let before = self.known.end.0;
        let mut scanner = match self.known.end {
            Offset(0) => match Scanner::new(bytes, &self.identity) {
                Ok(scanner) => scanner,
                Err(_) => return 0,
            },
            _ => Scanner::resume_tail(bytes, &self.identity, self.known),
        };
        while let Ok(append) = scanner.next_append() {
            append.records().for_each(&mut each);
        }
        self.known = scanner.closure();
        (self.known.end.0 - before) as usize
    }
}

/// What a scan of a whole buffer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanReport {
    /// Where the valid log ends.
    pub closure: Closure,
    /// Where and why the scan stopped.
    pub stop: Stop,
    /// Everything before this offset was acknowledged: what entries say that are valid, or that stand behind the stop and
    /// verify by themselves. Where it lies beyond the valid end, what is missing between has been lost or damaged.
    pub acked: Offset,
}

impl ScanReport {
    /// The report reduced to the segment's tail.
    pub fn tail(&self) -> Tail {
        Tail { closure: self.closure, acked: self.acked }
    }
}

/// Where an open segment's valid bytes end, and where they must at least end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tail {
    /// Where the valid log ends.
    pub closure: Closure,
    /// Everything before this offset was acknowledged.
    pub acked: Offset,
}

impl Tail {
    /// True when acknowledged bytes are no longer valid: this is not where the log ends.
    pub fn is_damaged(&self) -> bool {
        self.acked > self.closure.end
    }

    /// How far the segment reached at least, even if its bytes have been damaged since.
    pub fn reached(&self) -> Offset {
        self.acked.max(self.closure.end)
    }
}

/// Scans a whole buffer. The bytes after the first bad entry matter in one respect only: they may prove that the bad entry
/// was acknowledged.
pub fn scan(bytes: &[u8], identity: &SegmentIdentity) -> ScanReport {
    let report = match Scanner::new(bytes, identity) {
        Ok(scanner) => run(scanner),
        Err(stop) => ScanReport { closure: Closure::default(), stop, acked: Offset(0) },
    };
    let behind = acked_behind(bytes, identity, &report.closure);
    ScanReport { acked: report.acked.max(behind), ..report }
}

/// Most bytes that the search after a bad entry verifies, for each byte of the segment. Payloads that look like entries must
/// not slow a failover down.
const SEARCH_FACTOR: usize = 2;

/// How far the log was acknowledged, by entries after `known.end` that verify by themselves: a checksum entry whose chain the
/// next append continues. It is not known where they begin, so every aligned word is tried.
///
/// Only this log's primary writes here, and what it wrote is true, so bytes that landed out of order prove nothing false. An
/// app that puts such entries into its payloads harms only its own group, which then waits for an administrator.
fn acked_behind(bytes: &[u8], identity: &SegmentIdentity, known: &Closure) -> Offset {
    let bytes = &bytes[..bytes.len().min(identity.size.bytes() as usize)];
    let mut acked = Offset(0);
    let mut budget = SEARCH_FACTOR * bytes.len();
    let mut at = (known.end.0 as usize).max(SEGMENT_HEADER_SIZE);
    while let Some(entry) = bytes.get(at..).and_then(<[u8]>::first_chunk::<CHECKSUM_SIZE>) {
        at += ALIGNMENT;
        let Some((chain, _)) = Chain::from_entry(entry) else { continue };
        let last = match bytes.get(at) {
            Some(&TYPE_RECORD) => next_lsn(&bytes[at..]).prev(),
            Some(&TYPE_CHECKSUM) => known.last,
            _ => continue,
        };
        let plausible = known.last.0 + ((at - known.end.0 as usize) / RECORD_SIZE_MIN) as u64;
        let bound = if *known == Closure::default() { FIRST_LSN_MAX } else { Lsn(plausible) };
        if !(known.last..=bound).contains(&last) {
            continue;
        }
        let closure = Closure { first: last.next(), last, end: Offset(at as u32), chain };
        let mut scanner = Scanner { bytes, base: 0, epoch: identity.epoch, closure, acked: Offset(0) };
        while budget > 0 {
            let before = scanner.closure.end.0;
            let reached = match scanner.next_append() {
                Ok(_) => scanner.closure.end.0,
                Err(stop) => stop.at.0,
            };
            budget = budget.saturating_sub(reached.saturating_sub(before) as usize + CHECKSUM_SIZE);
            if scanner.closure.end.0 == before {
                break;
            }
        }
        acked = acked.max(scanner.acked);
        at = at.max(scanner.closure.end.0 as usize - CHECKSUM_SIZE);
    }
    acked
}

/// The number in what looks like a record header; 0 where there is not enough of it.
fn next_lsn(bytes: &[u8]) -> Lsn {
    let lsn = bytes.get(16..24).and_then(<[u8]>::first_chunk::<8>);
    Lsn(lsn.map_or(0, |lsn| u64::from_le_bytes(*lsn)))
}

/// Resumes an earlier scan of this segment: `tail` begins at `known.end`. With the default closure, that of a scan that has
/// found nothing yet, it starts from the beginning.
pub fn scan_on(tail: &[u8], identity: &SegmentIdentity, known: Closure) -> ScanReport {
    match known.end {
        Offset(0) => scan(tail, identity),
        _ => run(Scanner::resume_tail(tail, identity, known)),
    }
}

fn run(mut scanner: Scanner<'_>) -> ScanReport {
    loop {
        if let Err(stop) = scanner.next_append() {
            return ScanReport { closure: scanner.closure(), stop, acked: scanner.acked };
        }
    }
}

/// True when `bytes` hold the segment up to `closure` and every byte of it verifies. What lies beyond does not matter.
pub fn verify(bytes: &[u8], identity: &SegmentIdentity, closure: &Closure) -> bool {
    let Some(bytes) = bytes.get(..closure.end.0 as usize) else { return false };
    scan(bytes, identity).closure == *closure
}
