use tailwind_protocol::ids::{Epoch, Generation, LogId, SegmentId};
use tailwind_protocol::segment::SegmentWriter;

use super::*;

const SIZE: usize = 64 << 10;

fn identity() -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        segment: SegmentId(3),
        epoch: Epoch(2),
        generation: Generation(0xfeed),
        size: SegmentSize::MIN,
    }
}

/// A buffer with these appends, from LSN 10 on, its flag page, and where it ends.
fn buffer(appends: &[&[&str]]) -> (Vec<u8>, Closure) {
    let mut bytes = vec![0; SIZE + FLAG_PAGE_SIZE];
    bytes[SIZE] = 1;
    let (mut writer, mut end) = SegmentWriter::open(identity(), Lsn(10), &mut bytes[..SIZE]);
    for append in appends {
        end += writer.append(&mut bytes[end as usize..SIZE], append.iter().map(|record| record.as_bytes()));
    }
    (bytes, writer.closure())
}

fn file(sealed: Sealed, appends: &[&[&str]]) -> Vec<u8> {
    let (mut bytes, closure) = buffer(appends);
    bytes.truncate(closure.end.0 as usize);
    bytes.extend_from_slice(&Footer { sealed, closure }.to_bytes());
    bytes
}

fn report<'a>(name: &str, bytes: &'a [u8]) -> SegmentReport<'a> {
    match examine(name, bytes).unwrap() {
        Content::Segment(report) => *report,
        Content::Unwritten => panic!("nothing found"),
    }
}

fn damaged(why: &str) -> State {
    State::Damaged(why.to_owned())
}

const APPENDS: &[&[&str]] = &[&["one"], &["two", "three"], &[""]];

/// An idle primary writes two checksums that hold no records.
#[test]
fn marks_are_no_appends() {
    let mut bytes = vec![0; SIZE + FLAG_PAGE_SIZE];
    let (mut writer, mut end) = SegmentWriter::open(identity(), Lsn(10), &mut bytes[..SIZE]);
    end += writer.append(&mut bytes[end as usize..SIZE], [&b"one"[..]].into_iter());
    writer.acknowledged(Offset(end));
    end += writer.mark(&mut bytes[end as usize..SIZE]);
    end += writer.append(&mut bytes[end as usize..SIZE], [&b"two"[..]].into_iter());
    let report = report("slot-0000.buf", &bytes);
    assert_eq!((report.count(), report.appends, report.closure.end), (2, 2, Offset(end)));
}

#[test]
fn a_buffer_shows_its_segment_and_records() {
    let (bytes, closure) = buffer(APPENDS);
    let report = report("slot-0000.buf", &bytes);
    assert_eq!((report.kind, report.identity, report.closure), (FileKind::Buffer, identity(), closure));
    assert_eq!((report.count(), report.appends, report.payload_size), (4, 3, 11));
    assert_eq!((report.stop.at, report.stop.why, report.tail), (closure.end, StopReason::Unwritten, None));
    assert_eq!((report.footer, report.sound()), (None, State::Open));
    let records: Vec<_> = report.records().map(|r| (r.lsn.0, r.offset.0, r.payload, r.crc)).collect();
    let crc = |text: &str| crc32fast::hash(text.as_bytes());
    let expected = [
        (10, 72, b"one".as_slice(), crc("one")),
        (11, 72 + 40 + 8, b"two", crc("two")),
        (12, 120 + 40, b"three", crc("three")),
        (13, 160 + 40 + 8, b"", crc("")),
    ];
    assert_eq!(records, expected);
    assert_eq!(
        report.to_string(),
        "\
buffer
  log       0123456789abcdef0123456789abcdef
  segment   3, epoch 2, generation 000000000000feed, 64 KiB
  records   4 in 3 appends, LSN 10 to 13
  payload   11 B (11 bytes)
  valid     248 of 65536 bytes, chain CHAIN
  stopped   at offset 248: nothing was written here
  tail      nothing behind the valid bytes
  footer    none
  verdict   open: valid up to where the scan stopped; other members may hold more"
            .replace("CHAIN", &format!("{:08x}", closure.chain.0))
    );
}

#[test]
fn a_closed_file_is_sound_when_footer_and_scan_agree() {
    let bytes = file(Sealed::Closed, APPENDS);
    for name in ["segment-3.closed", "a copy of it"] {
        let report = report(name, &bytes);
        assert_eq!((report.kind, report.sound(), report.count()), (FileKind::Closed, State::Closed, 4));
        assert_eq!(report.why_stopped(), "the end of the segment's bytes in this file");
        assert!(report.to_string().contains("footer    closed; agrees with the scan"));
    }
}

#[test]
fn a_file_under_the_name_of_another_segment_is_damaged() {
    let closed = file(Sealed::Closed, APPENDS);
    let open = file(Sealed::Open, APPENDS);
    let (growing, _) = buffer(APPENDS);
    for (name, bytes) in [
        ("segment-99.closed", &closed),
        ("segment-0000000000000099.closed", &closed),
        ("segment-0000000000000099.closed.old", &closed),
        ("segment-0000000000000099.open", &open),
        ("segment-0000000000000099.open", &growing),
    ] {
        let why = "the name says segment 99, the header says segment 3";
        assert_eq!(report(name, bytes).sound(), damaged(why), "{name}");
    }
    assert_eq!(report("segment-3.closed", &open).sound(), damaged("the name says closed, the footer says open"));
    assert_eq!(report("segment-3.open", &closed).sound(), damaged("the name says open, the footer says closed"));
}

#[test]
fn segment_file_names_are_parsed() {
    let named = |name| SegmentFileName::parse(name).map(|named| (named.segment.0, named.kind, named.is_in_place));
    assert_eq!(named("segment-0000000000000003.closed"), Some((3, FileKind::Closed, true)));
    assert_eq!(named("segment-0000000000000003.open"), Some((3, FileKind::Open, true)));
    assert_eq!(named("segment-3.closed"), Some((3, FileKind::Closed, false)));
    assert_eq!(named("segment-0000000000000003.closed.tmp"), Some((3, FileKind::Closed, false)));
    for other in ["promise", "segment-.closed", "segment-3", "segment-3.shut", "segment-99999999999999999999.closed"] {
        assert_eq!(named(other), None, "{other}");
    }
}

#[test]
fn a_torn_append_is_shown_as_a_tail() {
    let (mut bytes, closure) = buffer(&[&["one"]]);
    let (whole, whole_closure) = buffer(&[&["one"], &["never sealed"]]);
    let end = closure.end.0 as usize;
    // All of the second append but its checksum entry.
    let torn = whole_closure.end.0 as usize - 8;
    bytes[end..torn].copy_from_slice(&whole[end..torn]);
    let report = report("slot-0000.buf", &bytes);
    assert_eq!((report.count(), report.closure), (1, closure));
    assert_eq!((report.stop.at, report.stop.why), (Offset(torn as u32), StopReason::Checksum));
    let tail = report.tail.unwrap();
    assert!(tail.first == end && tail.last < torn && tail.bytes > 12);
    assert_eq!(report.sound(), State::Open);
}

#[test]
fn every_damaged_byte_of_a_closed_file_is_detected() {
    let sound = file(Sealed::Closed, APPENDS);
    for place in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[place] ^= 0x40;
        match examine("segment-3.closed", &bytes) {
            Ok(Content::Segment(report)) => assert!(matches!(report.sound(), State::Damaged(_)), "byte {place}"),
            Ok(Content::Unwritten) => panic!("byte {place}"),
            Err(_) => assert!(place < SEGMENT_HEADER_SIZE, "byte {place}"),
        }
    }
    for size in SEGMENT_HEADER_SIZE..sound.len() {
        let report = report("segment-3.closed", &sound[..size]);
        assert!(matches!(report.sound(), State::Damaged(_)), "cut to {size} bytes");
    }
}

#[test]
fn an_open_file_is_valid_up_to_its_end() {
    let bytes = file(Sealed::Open, APPENDS);
    assert_eq!(report("segment-3.open", &bytes).sound(), State::Open);
    // Still growing: no footer yet, and the last append on its way.
    let growing = report("segment-3.open", &bytes[..bytes.len() - FOOTER_SIZE - 8]);
    assert_eq!(
        (growing.kind, growing.footer, growing.count(), growing.sound()),
        (FileKind::Open, None, 3, State::Open)
    );
    assert!(growing.tail.is_some());
    let renamed = report("segment-3.closed", &bytes);
    assert_eq!(renamed.sound(), damaged("the name says closed, the footer says open"));
}

#[test]
fn a_footer_beyond_the_scanned_end_is_a_mismatch() {
    let mut bytes = file(Sealed::Closed, APPENDS);
    bytes[248 - 8 - 32 - 8 - 8] ^= 1;
    let report = report("segment-3.closed", &bytes);
    assert_eq!(report.sound(), damaged("footer and scan disagree"));
    assert!(
        report.to_string().contains("footer    closed; disagrees with the scan: it claims LSN 10 to 13, 248 bytes")
    );
}

#[test]
fn files_without_a_segment_are_classified() {
    let foreign = |bytes: &[u8]| examine("slot-0000.buf", bytes).map(|_| ()).unwrap_err();
    let (bytes, _) = buffer(APPENDS);
    assert_eq!(foreign(b""), InvalidFile::Empty);
    assert_eq!(foreign(b"\x7fELF and more"), InvalidFile::Magic("\\x7fELF and".to_owned()));
    assert_eq!(foreign(b"TWSEGMT1"), InvalidFile::Magic("TWSEGMT1".to_owned()));
    assert_eq!(foreign(&[0; 100]), InvalidFile::Magic("\\x00".to_owned()));
    let altered = |place: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[place] = byte;
        foreign(&bytes)
    };
    for version in [b'1', b'3'] {
        assert_eq!(altered(7, version), InvalidFile::Version { found: version.into() });
    }
    assert_eq!(altered(24, 0), InvalidFile::Header);
    let mut headless = bytes;
    headless[..SEGMENT_HEADER_SIZE].fill(0);
    assert!(matches!(foreign(&headless), InvalidFile::NoHeader(1..)));
    headless[..SIZE].fill(0);
    assert!(matches!(examine("slot-0000.buf", &headless), Ok(Content::Unwritten)), "the flag page does not count");
}

#[test]
fn an_empty_segment_is_valid() {
    let (bytes, _) = buffer(&[]);
    let report = report("slot-0000.buf", &bytes);
    assert_eq!((report.count(), report.records().count(), report.sound()), (0, 0, State::Open));
    assert!(report.to_string().contains("records   none; the first is to be LSN 10"));
}
