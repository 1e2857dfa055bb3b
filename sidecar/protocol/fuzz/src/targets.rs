//! What the fuzz targets check. One body for two drivers: cargo-fuzz (`fuzz_targets/`) and, on the stable toolchain,
//! `tests/protocol/fuzz_targets.rs`.

mod backup;
mod table;

pub use backup::{backup_machine, http_body};
pub use table::{entry, keyed_record, line_2};

use tailwind_protocol::board::{BoardIdentity, LINE_SIZE, Progress, decode};
use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{Chain, Lag, RecordHeader, SEGMENT_HEADER_SIZE, SegmentIdentity, SegmentSize, padded};
use tailwind_protocol::scan::{Scanner, StopReason, scan as scan_whole, verify};
use tailwind_protocol::segment::SegmentWriter;
use tailwind_protocol::socket::{
    self, Batch, Decoded, FRAME_HEADER_SIZE, FrameError, Request, Response, VERSION, VERSION_MIN,
};

/// Limit that the request decoder gets; small, so that inputs beyond it are found.
const BODY_MAX: usize = 512;

const FIRST: Lsn = Lsn(1);

/// Builds a buffer as the input directs and asserts what must hold for any bytes: the scan does not panic, and what
/// it accepts is byte by byte what a writer of the accepted records would have written.
pub fn scan(data: &[u8]) {
    raw_header(data);
    let identity = identity();
    let bytes = forge(data, &identity);
    let report = scan_whole(&bytes, &identity);

    let mut rewritten = Vec::new();
    if let Ok(mut scanner) = Scanner::new(&bytes, &identity) {
        let header = identity.header(scanner.closure().first);
        let mut chain = Chain::default().extend(&header);
        rewritten.extend_from_slice(&header);
        let seal = |chain: Chain, rewritten: &mut Vec<u8>| {
            let (_, lag) =
                bytes[rewritten.len()..].first_chunk().and_then(Chain::from_entry).expect("a checksum entry");
            let (chain, entry) = chain.seal(lag);
            rewritten.extend_from_slice(&entry);
            chain
        };
        chain = seal(chain, &mut rewritten);
        let mut lsn = scanner.closure().first;
        while let Ok(append) = scanner.next_append() {
            for record in append.records() {
                assert_eq!(record.lsn, lsn);
                chain = put_record(&mut rewritten, chain, lsn, record.payload, |_| {});
                lsn = lsn.next();
            }
            chain = seal(chain, &mut rewritten);
        }
        assert_eq!((scanner.closure(), chain), (report.closure, report.closure.chain));
    }
    let end = report.closure.end.0 as usize;
    assert!(bytes[..end] == rewritten[..], "accepted bytes that no writer writes");
    assert!(report.stop.at.0 as usize >= end && report.stop.at.0 as usize <= bytes.len());
    assert_eq!(report.stop.why == StopReason::Full, end == bytes.len() && end > 0);
    assert!(verify(&bytes, &identity, &report.closure));
    assert!(verify(&bytes[..end], &identity, &report.closure));
    assert!(report.acked.0 as usize <= bytes.len());
}

/// Any bytes as a board: what is believed is byte by byte what a primary would have written. Half of the inputs get right
/// CRCs, or none would ever come past them.
pub fn board(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let mut lines = [0; 2 * LINE_SIZE];
    let count = data.len().min(lines.len());
    lines[..count].copy_from_slice(&data[..count]);
    if choice % 2 == 1 {
        lines[..8].copy_from_slice(b"TWBOARD1");
        seal(&mut lines, 0, 0);
        let seed = crc32fast::hash(&lines[8..40]);
        seal(&mut lines, LINE_SIZE, seed);
    }
    if let Some((identity, progress)) = decode(&lines) {
        assert_eq!([identity.encode(), progress.encode(&identity)].concat(), lines);
        assert!(progress.first.0 >= 1 && progress.first.0 - 1 <= progress.acked.0);
        assert!(progress.end.offset.0 <= identity.segment_size.bytes());
    }
    // Lines that verify apart verify together.
    let line = |at: usize| lines[at..].first_chunk().expect("a line");
    let identity = BoardIdentity::decode(line(0));
    let apart = identity.and_then(|identity| Some((identity, Progress::decode(line(LINE_SIZE), &identity)?)));
    assert_eq!(apart, decode(&lines));
}

fn seal(lines: &mut [u8], at: usize, seed: u32) {
    let mut hasher = crc32fast::Hasher::new_with_initial(seed);
    hasher.update(&lines[at..at + LINE_SIZE - 4]);
    lines[at + LINE_SIZE - 4..at + LINE_SIZE].copy_from_slice(&hasher.finalize().to_le_bytes());
}

/// The input as a file of which nothing is known: a header in it must say what its bytes say.
fn raw_header(data: &[u8]) {
    let Some(header) = data.first_chunk::<SEGMENT_HEADER_SIZE>() else { return };
    let Some((identity, first)) = SegmentIdentity::from_header(header) else { return };
    assert_eq!(identity.header(first), *header);
    let report = scan_whole(data, &identity);
    assert!(verify(data, &identity, &report.closure));
}

fn identity() -> SegmentIdentity {
    let size = SegmentSize::MIN;
    let (log, segment, epoch) = (LogId(1), SegmentId(1), Epoch(1));
    SegmentIdentity { log, segment, epoch, generation: Generation(7), size }
}

/// A segment under a forger's hand: good entries, entries right in all but one thing, and raw bytes, as `data` directs.
/// Chains and CRCs are right unless the input says otherwise, or no input would ever come past them.
fn forge(data: &[u8], identity: &SegmentIdentity) -> Vec<u8> {
    let mut bytes = vec![0; identity.size.bytes() as usize];
    let (_, end) = SegmentWriter::open(*identity, FIRST, &mut bytes);
    bytes.truncate(end as usize);
    let mut chain = Chain::default().extend(&identity.header(FIRST)).seal(Lag::UNKNOWN).0;
    let mut lsn = FIRST;
    let mut input = Input(data);
    while let Some(step) = input.byte() {
        let length = usize::from(input.byte().unwrap_or(0));
        match step % 8 {
            // A record, good.
            0..=2 => {
                chain = put_record(&mut bytes, chain, lsn, input.take(length), |_| {});
                lsn = lsn.next();
            }
            // A record with one byte of its header changed before the chain goes over it.
            3 => {
                let (at, with) = (usize::from(step / 8), input.byte().unwrap_or(0));
                chain = put_record(&mut bytes, chain, lsn, input.take(length), |header| header[at] = with);
                lsn = lsn.next();
            }
            // A checksum entry, good, with any lag.
            4 | 5 => {
                let entry;
                (chain, entry) = chain.seal(Lag(u16::from(step) << 8 | length as u16));
                bytes.extend_from_slice(&entry);
            }
            // Raw bytes.
            6 => bytes.extend_from_slice(input.take(length)),
            // A byte somewhere changed.
            _ => {
                let at = usize::from(step / 8) << 8 | length;
                let with = input.byte().unwrap_or(0);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = with;
                }
            }
        }
    }
    // Half of all inputs end where their bytes end, the others in zeros, as a buffer does.
    let whole = identity.size.bytes() as usize;
    bytes.resize(if data.len().is_multiple_of(2) { whole } else { bytes.len().min(whole) }, 0);
    bytes
}

fn put_record(
    bytes: &mut Vec<u8>,
    chain: Chain,
    lsn: Lsn,
    payload: &[u8],
    change: impl FnOnce(&mut [u8; 32]),
) -> Chain {
    let length = payload.len() as u32;
    let mut header = RecordHeader { length, payload_crc: crc32fast::hash(payload), lsn, epoch: Epoch(1) }.to_bytes();
    change(&mut header);
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + padded(payload.len()) - payload.len(), 0);
    chain.extend(&header)
}

/// The fuzzer's bytes, taken from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        head
    }
}

/// A stream of requests, as a sidecar gets them from an app that it must not trust, in each version.
pub fn socket_request(data: &[u8]) {
    for version in VERSION_MIN..=VERSION {
        requests_in(version, data);
    }
}

fn requests_in(version: u16, mut data: &[u8]) {
    while let Some(decoded) = decode_one(data, |bytes| socket::decode_request(bytes, version, BODY_MAX)) {
        match &decoded.frame {
            Request::Batch(batch) => check_batch(batch),
            Request::Apply(operations) => table::check_operations(operations),
            _ => {}
        }
        let mut encoded = vec![];
        decoded.frame.encode(decoded.request, &mut encoded);
        // A read may end with a history of 0, which stands for none and is left out here.
        let names_none = matches!(decoded.frame, Request::Read { history: 0, .. });
        let size = if names_none { encoded.len() } else { decoded.size };
        assert!(encoded.len() == size && size <= decoded.size);
        let again = Decoded { size, ..decoded.clone() };
        assert_eq!(socket::decode_request(&encoded, version, BODY_MAX), Ok(Some(again)));
        data = &data[decoded.size..];
    }
}

/// A stream of responses, as a client gets them.
pub fn socket_response(mut data: &[u8]) {
    while let Some(decoded) = decode_one(data, socket::decode_response) {
        if let Response::Records { records, .. } = &decoded.frame {
            check_batch(records);
        }
        let mut encoded = vec![];
        decoded.frame.encode(decoded.request, &mut encoded);
        assert_eq!(encoded.len(), decoded.size);
        assert_eq!(socket::decode_response(&encoded), Ok(Some(decoded.clone())));
        data = &data[decoded.size..];
    }
}

/// Decodes the first frame and asserts that the answer does not depend on how the stream was cut: with fewer bytes the
/// decoder asks for more, or knows an error already, and it is the same error; bytes behind the frame do not matter.
fn decode_one<'a, T: PartialEq + std::fmt::Debug>(
    bytes: &'a [u8],
    decode: impl Fn(&'a [u8]) -> Result<Option<Decoded<T>>, FrameError>,
) -> Option<Decoded<T>> {
    let whole = decode(bytes);
    let needed = match &whole {
        Ok(Some(decoded)) => {
            assert!((FRAME_HEADER_SIZE..=bytes.len()).contains(&decoded.size));
            assert_eq!(decode(&bytes[..decoded.size]), whole);
            decoded.size
        }
        _ => bytes.len(),
    };
    for cut in (0..needed).filter(|cut| *cut <= FRAME_HEADER_SIZE || needed - cut < 4) {
        let early = decode(&bytes[..cut]);
        assert!(early == Ok(None) || (early.is_err() && early == whole), "{cut} of {needed} bytes: {early:?}");
    }
    whole.ok().flatten()
}

fn check_batch(batch: &Batch<'_>) {
    assert_eq!(batch.iter().count(), batch.len() as usize);
    assert_eq!(batch.iter().map(<[u8]>::len).sum::<usize>(), batch.payload_size());
    assert_eq!(Batch::new(batch.len(), batch.as_bytes()).as_ref(), Ok(batch));
}
