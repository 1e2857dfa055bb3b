//! The bytes of the log, one by one. They lie in other machines' memory and in files that outlive a version: a change
//! here is a change of the format and starts with a decision. The CRCs were computed by an independent program.

use crate::logs::{FIRST, Log, identity};
use tailwind_protocol::ids::{Lsn, Offset};
use tailwind_protocol::layout::{
    CHECKSUM_SIZE, Chain, Closure, END_MARK, Footer, Lag, RecordHeader, SEGMENT_HEADER_SIZE, SEGMENT_OVERHEAD, Sealed,
    SegmentIdentity, SegmentSize, record_size,
};
use tailwind_protocol::scan::{Scanner, scan};
use tailwind_protocol::segment::SegmentWriter;

/// Asserts bytes written as lines of hexadecimal pairs, each with its meaning after a `|`.
fn assert_bytes(found: &[u8], golden: &str) {
    let pairs = golden.lines().flat_map(|line| line.split('|').next().unwrap_or_default().split_whitespace());
    let expected: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("a hexadecimal pair")).collect();
    let rows = |bytes: &[u8]| -> Vec<String> { bytes.chunks(8).map(|row| format!("{row:02x?}")).collect() };
    assert_eq!(rows(found), rows(&expected));
}

#[test]
fn segment_header() {
    let golden = "
        54 57 53 45 47 4d 54 32 | magic: TWSEGMT, format 2
        00 01 02 03 04 05 06 07 | log id, low half
        08 09 0a 0b 0c 0d 0e 0f | log id, high half
        03 00 00 00 00 00 00 00 | segment 3
        02 00 00 00 00 00 00 00 | epoch 2
        88 77 66 55 44 33 22 11 | generation
        29 00 00 00 00 00 00 00 | first LSN 41
        00 00 01 00             | 64 KiB
                    00 00 00 00 | reserved";
    assert_bytes(&identity().header(FIRST), golden);
    assert_eq!(SegmentIdentity::from_header(&identity().header(FIRST)), Some((identity(), FIRST)));
}

#[test]
fn record_header() {
    let header = RecordHeader { length: 11, payload_crc: 0x13b2_313c, lsn: Lsn(41), epoch: identity().epoch };
    let golden = "
        52                      | type: record
           00                   | flags
              00 00             | reserved
                    0b 00 00 00 | 11 bytes of payload
        f4 ff ff ff             | and the complement of 11
                    3c 31 b2 13 | CRC-32 of `hello, log!`
        29 00 00 00 00 00 00 00 | LSN 41
        02 00 00 00 00 00 00 00 | epoch 2";
    assert_bytes(&header.to_bytes(), golden);
}

#[test]
fn checksum_entry() {
    let golden = "
        43                      | type: checksum
           fc 05 2f f4          | the chain, over the lag as well
                       34 12    | lag: acknowledged up to 0x1234 × 8 bytes before this entry
                             e7 | end mark, never zero";
    let (chain, entry) = Chain(0x0102_0304).seal(Lag(0x1234));
    assert_bytes(&entry, golden);
    assert_eq!(Chain::from_entry(&entry), Some((chain, Lag(0x1234))));
}

#[test]
fn lag_never_claims_too_much() {
    for (acked, at, lag) in [
        (0, 0, 0),
        (72, 72, 0),
        (71, 72, 1),
        (0, 8, 1),
        (0, 9, 2),
        (0, 0x7fff * 8, 0x7fff),
        (0, 0x8000 * 8, 0x8000 | 512),
        (0, 0x8000 * 8 + 1, 0x8000 | 513),
        (0, 0x7ffe * 512, 0xfffe),
    ] {
        assert_eq!(Lag::between(Offset(acked), Offset(at)), Lag(lag), "{acked} {at}");
        assert!(Lag(lag).acked(Offset(at)) <= Offset(acked));
    }
    assert_eq!(Lag::between(Offset(0), Offset(0x7ffe * 512 + 1)), Lag::UNKNOWN);
    assert_eq!(Lag::UNKNOWN.acked(Offset(u32::MAX)), Offset(0), "nothing is claimed");
    assert_eq!(Lag(9).acked(Offset(64)), Offset(0));
}

#[test]
fn segment_with_one_append_and_a_batch() {
    let log = Log::write(identity(), vec![vec![b"hello, log!".to_vec()], vec![b"".to_vec(), b"12345678".to_vec()]]);
    let golden = "
        54 57 53 45 47 4d 54 32 | segment header
        00 01 02 03 04 05 06 07 |
        08 09 0a 0b 0c 0d 0e 0f |
        03 00 00 00 00 00 00 00 |
        02 00 00 00 00 00 00 00 |
        88 77 66 55 44 33 22 11 |
        29 00 00 00 00 00 00 00 |
        00 00 01 00 00 00 00 00 |
        43 97 7e de 05 ff ff e7 | checksum entry: the chain begins with the segment header, the lag is unknown

        52 00 00 00 0b 00 00 00 | an append of one record
        f4 ff ff ff 3c 31 b2 13 |
        29 00 00 00 00 00 00 00 |
        02 00 00 00 00 00 00 00 |
        68 65 6c 6c 6f 2c 20 6c | hello, l
        6f 67 21 00 00 00 00 00 | og! and padding
        43 7e 82 e0 f1 0f 00 e7 | checksum entry at 120: nothing in this segment is acknowledged

        52 00 00 00 00 00 00 00 | a batch of two: an empty record
        ff ff ff ff 00 00 00 00 |
        2a 00 00 00 00 00 00 00 |
        02 00 00 00 00 00 00 00 |
        52 00 00 00 08 00 00 00 | and one without padding
        f7 ff ff ff af da e0 9a |
        2b 00 00 00 00 00 00 00 |
        02 00 00 00 00 00 00 00 |
        31 32 33 34 35 36 37 38 | 12345678
        43 fc 44 96 13 19 00 e7 | one checksum entry for both";
    assert_bytes(&log.bytes[..log.end()], golden);
    assert!(log.bytes[log.end()..].iter().all(|byte| *byte == 0), "nothing is written beyond the end");
    assert_eq!(log.closures[2], Closure { first: FIRST, last: Lsn(43), end: Offset(208), chain: Chain(0x1396_44fc) });
}

#[test]
fn marks_after_the_acknowledged_end() {
    let mut bytes = vec![0; identity().size.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity(), FIRST, &mut bytes);
    end += writer.append(&mut bytes[end as usize..], std::iter::once(b"hello, log!".as_slice()));
    end += writer.append(&mut bytes[end as usize..], [b"".as_slice(), b"12345678"].into_iter());
    writer.acknowledged(Offset(128));
    assert!(!writer.wants_marks(), "the second append is not acknowledged");
    writer.acknowledged(Offset(208));
    assert!(writer.wants_marks());
    assert_eq!(writer.mark(&mut bytes[end as usize..]), 16);
    assert!(!writer.wants_marks(), "once");
    let golden = "
        43 51 2a 61 88 00 00 e7 | everything before this entry is acknowledged
        43 1c 0e d9 20 01 00 e7 | so is everything before the entry before";
    assert_bytes(&bytes[208..224], golden);
    let (last, chain) = (Lsn(43), Chain(0x20d9_0e1c));
    assert_eq!(writer.closure(), Closure { first: FIRST, last, end: Offset(224), chain });
    let report = scan(&bytes, &identity());
    assert_eq!((report.closure, report.acked), (writer.closure(), Offset(208)));
}

#[test]
fn footers_of_closed_and_open_segments() {
    let closure = Closure { first: FIRST, last: Lsn(43), end: Offset(208), chain: Chain(0x149e_cb47) };
    let closed = Footer { sealed: Sealed::Closed, closure };
    let golden = "
        46 57 53 45 47 4d 54 31 | magic: FWSEGMT, format 1
        43                      | closed
           00 00 00 00 00 00 00 | reserved
        d0 00 00 00             | end: 208
                    47 cb 9e 14 | chain at the end
        29 00 00 00 00 00 00 00 | first LSN 41
        2b 00 00 00 00 00 00 00 | last LSN 43
        00 00 00 00             | reserved
                    0e 33 62 42 | CRC-32 of the 44 bytes before";
    assert_bytes(&closed.to_bytes(), golden);

    let open = Footer { sealed: Sealed::Open, closure };
    let golden = "
        46 57 53 45 47 4d 54 31 |
        4f 00 00 00 00 00 00 00 | open
        d0 00 00 00 47 cb 9e 14 |
        29 00 00 00 00 00 00 00 |
        2b 00 00 00 00 00 00 00 |
        00 00 00 00 b7 da 92 0a |";
    assert_bytes(&open.to_bytes(), golden);

    for footer in [closed, open] {
        assert_eq!(Footer::from_bytes(&footer.to_bytes()), Some(footer));
        for bit in 0..footer.to_bytes().len() * 8 {
            let mut flipped = footer.to_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Footer::from_bytes(&flipped), None, "bit {bit}");
        }
    }
}

#[test]
fn impossible_header_is_rejected() {
    let good = identity().header(FIRST);
    let with = |at: usize, bytes: &[u8]| {
        let mut header = good;
        header[at..at + bytes.len()].copy_from_slice(bytes);
        SegmentIdentity::from_header(&header)
    };
    assert_eq!(with(7, b"1"), None, "another format");
    assert_eq!(with(24, &0_u64.to_le_bytes()), None, "segments count from 1");
    assert_eq!(with(32, &0_u64.to_le_bytes()), None, "epochs count from 1");
    assert_eq!(with(48, &0_u64.to_le_bytes()), None, "LSNs count from 1");
    assert_eq!(with(48, &u64::MAX.to_le_bytes()), None, "LSNs would overflow within the segment");
    assert_eq!(with(56, &(3_u32 << 20).to_le_bytes()), None, "3 MiB is no power of two");
    assert_eq!(with(60, &[1]), None, "a reserved byte");
    assert_eq!(SegmentIdentity::from_header(&[0; SEGMENT_HEADER_SIZE]), None, "zeros");
}

/// The paper says that a checksum torn off ends in a zero byte, "which is disallowed"; but a CRC may well end in zero.
/// Here the end mark follows the chain, even if that ends in a zero byte.
#[test]
fn entry_without_its_end_mark_is_rejected() {
    let mut seen = [false; 256];
    let mut number = 0_u32;
    while seen.contains(&false) {
        number += 1;
        let mut log = Log::write(identity(), vec![vec![number.to_le_bytes().to_vec()]]);
        let [.., last_chain_byte] = log.closures[1].chain.0.to_le_bytes();
        if std::mem::replace(&mut seen[usize::from(last_chain_byte)], true) {
            continue;
        }
        let end = log.end();
        assert_eq!(log.bytes[end - 4..end], [last_chain_byte, 14, 0, END_MARK]);
        assert_eq!(log.intact(&log.bytes), Some(1));
        log.check(&log.bytes);
        for lost in 1..=CHECKSUM_SIZE {
            log.bytes[end - lost] = 0;
            let mut scanner = Scanner::new(&log.bytes, &log.identity).unwrap();
            assert!(scanner.next_append().is_err(), "chain ends in {last_chain_byte:02x}, {lost} bytes missing");
        }
    }
    assert_ne!(END_MARK, 0);
}

#[test]
fn sizes_are_displayed_with_their_unit() {
    assert_eq!(SEGMENT_OVERHEAD, 72);
    assert_eq!([0, 1, 7, 8, 9, 100, 128].map(record_size), [32, 40, 40, 40, 48, 136, 160]);
    for (bytes, good) in [(32 << 10, false), (64 << 10, true), (3 << 20, false), (64 << 20, true), (128 << 20, false)] {
        assert_eq!(SegmentSize::new(bytes).is_ok(), good, "{bytes}");
    }
    let record_max = |bytes| SegmentSize::new(bytes).map(SegmentSize::record_size_max);
    assert_eq!([64 << 10, 4 << 20, 64 << 20].map(record_max), [Ok(16 << 10), Ok(1 << 20), Ok(1 << 20)]);
    assert_eq!(Lsn(3).plus(4), Lsn(7));
    let error = SegmentSize::new(3 << 20).unwrap_err().to_string();
    assert_eq!(error, "segment size 3 MiB: must be a power of two between 64 KiB and 64 MiB");
    assert_eq!(SegmentSize::new(1 << 40).unwrap_err().to_string().split(':').next(), Some("segment size 1024 GiB"));
}

/// A closure comes from the wire with any numbers in it.
#[test]
fn closure_must_fit_its_segment() {
    let closure = |first, last, end| Closure { first: Lsn(first), last: Lsn(last), end: Offset(end), chain: Chain(0) };
    let fits = |first, last, end| closure(first, last, end).fits(SegmentSize::MIN);
    assert!(fits(1, 0, 72) && fits(11, 11, 104) && fits(u64::MAX / 2, u64::MAX / 2, 104) && fits(1, 2045, 65_536 - 24));
    for (first, last, end) in [
        (1, u64::MAX, 104),
        (u64::MAX, u64::MAX, 104),
        (0, 0, 104),
        (11, 9, 104),
        (0, u64::MAX, 65_536),
        (1, 2, 104),
        (1, 1, 0),
        (1, 1, 105),
        (1, 1, 200_000),
        (1, 1, u32::MAX),
    ] {
        assert!(!fits(first, last, end), "{first} to {last} up to byte {end}");
    }
}

/// The lag goes into the chain byte by byte, and the headers in one piece: it is the same CRC-32.
#[test]
fn chain_with_lags_is_one_crc() {
    let mut bytes = Vec::new();
    let mut chain = Chain::default();
    for nth in 0..=u8::MAX {
        let entry = [b'C', 0, 0, 0, 0, nth, !nth, 0xE7];
        let (_, lag) = Chain::from_entry(&entry).unwrap();
        chain = chain.extend(b"header").seal(lag).0;
        bytes.extend_from_slice(b"header");
        bytes.extend_from_slice(&[nth, !nth]);
        assert_eq!(chain.0, crc32fast::hash(&bytes));
    }
}
