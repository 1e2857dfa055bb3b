//! Cost of the two things that are done to every record: placing it in a segment and scanning it back.
//!
//! `cargo bench -p tailwind-protocol`. Times come first; they drift with the machine. The ratios of design section 11 follow,
//! each measured in turns in one run: the scan against reading and CRC-ing the same payload and header bytes in the same
//! pieces, and against one CRC over all bytes at once, which no log of records can reach.
//!
//! Instructions per record, counted by valgrind: take the difference of a long and a short run, so that start-up does not
//! count, and divide it by the records that the long one has more (each run prints its own):
//!
//! ```text
//! cargo bench -p tailwind-protocol --bench log --no-run       # names the binary
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null BINARY --count place 100 1     # also: scan; 128 for 128 B
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null BINARY --count place 100 11
//! ```

#![allow(clippy::print_stdout, reason = "a benchmark reports to people")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tailwind_protocol::ids::{Epoch, Generation, LogId, Lsn, SegmentId};
use tailwind_protocol::layout::{
    CHECKSUM_SIZE, Chain, RECORD_HEADER_SIZE, SEGMENT_OVERHEAD, SegmentIdentity, SegmentSize, record_size,
};
use tailwind_protocol::scan::scan;
use tailwind_protocol::segment::{SegmentWriter, append_size};

/// Bytes of a record in the paper's experiments and in the scan's figures.
const RECORD: usize = 100;
/// Times that each side of a ratio runs, in turns, and that a segment is filled.
const ROUNDS: usize = 101;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--count", what, length, segments] = arguments[..] {
        return count(what, length.parse().expect("a length"), segments.parse().expect("a number of segments"));
    }
    print_placing();
    print_scanning();
}

/// A segment that is filled again and again, so that the figures include the memory that a real one touches.
struct Segment {
    bytes: Vec<u8>,
    writer: SegmentWriter,
    end: usize,
}

impl Segment {
    fn open() -> Segment {
        let mut bytes = vec![0; SegmentSize::DEFAULT.bytes() as usize];
        let (writer, end) = SegmentWriter::open(identity(), Lsn(1), &mut bytes);
        Segment { bytes, writer, end: end as usize }
    }

    fn full_of(length: usize) -> Segment {
        let mut segment = Segment::open();
        segment.fill(length);
        segment
    }

    /// Places records of `length` bytes until there is no room.
    fn fill(&mut self, length: usize) {
        let payload = vec![0xa5; length];
        while self.has_room(&[&payload]) {
            self.append(black_box(&[&payload]));
        }
    }

    fn reopen(&mut self) {
        let (writer, end) = SegmentWriter::open(identity(), Lsn(1), &mut self.bytes);
        (self.writer, self.end) = (writer, end as usize);
    }

    fn has_room(&self, payloads: &[&[u8]]) -> bool {
        append_size(payloads.iter().map(|payload| payload.len())) <= self.writer.room()
    }

    fn append(&mut self, payloads: &[&[u8]]) {
        self.end += self.writer.append(&mut self.bytes[self.end..], payloads.iter().copied()) as usize;
    }

    fn records(&self) -> u64 {
        self.writer.closure().records()
    }
}

fn identity() -> SegmentIdentity {
    let (log, segment, epoch) = (LogId(1), SegmentId(1), Epoch(1));
    SegmentIdentity { log, segment, epoch, generation: Generation(7), size: SegmentSize::DEFAULT }
}

fn print_placing() {
    for length in [100, 128] {
        let mut segment = Segment::open();
        let times = (0..ROUNDS).map(|_| {
            segment.reopen();
            let start = Instant::now();
            segment.fill(length);
            start.elapsed()
        });
        let time = median(times.collect());
        println!("place one record of {length} B: {:.1} ns", time.as_nanos() as f64 / segment.records() as f64);
    }
}

fn scan_all(segment: &Segment) {
    let report = scan(black_box(&segment.bytes), &identity());
    assert_eq!(report.closure, segment.writer.closure());
}

/// The work that the format makes unavoidable: the CRC of each payload, the chain over each header. No check, no bound.
fn crc_pieces(segment: &Segment) {
    let mut chain = Chain::default();
    let mut sum = 0_u32;
    for append in black_box(&segment.bytes)[SEGMENT_OVERHEAD..segment.end].chunks(record_size(RECORD) + CHECKSUM_SIZE) {
        let (header, body) = append.split_at(RECORD_HEADER_SIZE);
        sum ^= crc32fast::hash(&body[..RECORD]);
        chain = chain.extend(header);
    }
    black_box((chain, sum));
}

fn crc_all(segment: &Segment) {
    black_box(crc32fast::hash(black_box(&segment.bytes[..segment.end])));
}

fn print_scanning() {
    let segment = Segment::full_of(RECORD);
    let mut times = [const { vec![] }; 3];
    for _ in 0..ROUNDS {
        for (work, times) in [scan_all, crc_pieces, crc_all].iter().zip(&mut times) {
            let start = Instant::now();
            work(&segment);
            times.push(start.elapsed());
        }
    }
    let [scan, pieces, all] = times.map(median);
    let rate = |time: Duration| segment.end as f64 / time.as_secs_f64() / 1e9;
    println!("scan {:.2} GB/s, read and CRC {:.2} GB/s, one CRC {:.2} GB/s", rate(scan), rate(pieces), rate(all));
    println!("scan ÷ read and CRC of the same pieces: {:.2} (wanted: at most 1.5)", ratio(scan, pieces));
    println!("scan ÷ one CRC over all bytes: {:.2}", ratio(scan, all));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

/// Work for valgrind to count.
fn count(what: &str, length: usize, segments: u64) {
    let records = match what {
        "place" => (0..segments).map(|_| Segment::full_of(length).records()).sum(),
        "scan" => {
            let segment = Segment::full_of(length);
            (0..segments).for_each(|_| scan_all(&segment));
            segments * segment.records()
        }
        unknown => panic!("{unknown}: must be place or scan"),
    };
    println!("{what}: {records} records of {length} B");
}
