use super::*;

/// Hands out its bytes `step` at a time.
struct Trickle<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let size = self.step.min(self.bytes.len()).min(out.len());
        let (now, later) = self.bytes.split_at(size);
        out[..size].copy_from_slice(now);
        self.bytes = later;
        Ok(size)
    }
}

fn split(framing: InputFraming, max: usize, bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Result<(), BadInput>) {
    let mut input = Trickle { bytes, step };
    let mut splitter = Splitter::new(framing, max);
    let mut records = Vec::new();
    loop {
        let has_ended = splitter.has_ended();
        match splitter.next_record() {
            Ok(Some(record)) => records.push(record.to_vec()),
            Ok(None) if has_ended => return (records, Ok(())),
            Ok(None) => splitter.fill(&mut input).unwrap(),
            Err(error) => return (records, Err(error)),
        }
    }
}

/// What a signal leaves of the output ends with a whole record.
#[test]
fn each_record_is_written_as_a_whole() {
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);
    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for (framing, wholes) in [
        (OutputFraming::Lines, [&b"7\tab\n"[..], b"8\t\n"]),
        (OutputFraming::Hex, [b"7\t6162\n", b"8\t\n"]),
        (OutputFraming::Length, [b"7\t\x02\0\0\0ab", b"8\t\0\0\0\0"]),
    ] {
        let mut writer = RecordWriter::new(Writes::default(), framing, true);
        writer.write(Lsn(7), b"ab").unwrap();
        writer.write(Lsn(8), b"").unwrap();
        assert_eq!(writer.out.0, wholes);
    }
}

#[test]
fn a_line_is_a_record_without_its_newline() {
    let stories: [(&[u8], &[&[u8]]); 6] = [
        (b"", &[]),
        (b"\n", &[b""]),
        (b"one\ntwo\n", &[b"one", b"two"]),
        (b"one\ntwo", &[b"one", b"two"]),
        (b"one\r\n\n\nfour\n", &[b"one\r", b"", b"", b"four"]),
        (b"\0\xff\n", &[b"\0\xff"]),
    ];
    for (input, expected) in stories {
        for step in 1..=input.len().max(1) {
            let (records, end) = split(InputFraming::Lines, 100, input, step);
            assert_eq!(
                (records.as_slice(), end),
                (expected.iter().map(|r| r.to_vec()).collect::<Vec<_>>().as_slice(), Ok(()))
            );
        }
    }
}

#[test]
fn an_overlong_line_is_an_error_after_earlier_records() {
    let expected = BadInput::TooLarge { noun: "line", number: 2, max: 4 };
    for input in ["1234\n12345\n", "1234\n12345", "1234\n1234567890123"] {
        for step in 1..=input.len() {
            let (records, end) = split(InputFraming::Lines, 4, input.as_bytes(), step);
            assert_eq!((records.as_slice(), end), ([b"1234".to_vec()].as_slice(), Err(expected.clone())));
        }
    }
}

#[test]
fn an_endless_line_is_refused_within_bounded_memory() {
    let mut splitter = Splitter::new(InputFraming::Lines, CHUNK_SIZE);
    let mut input = io::repeat(b'x');
    let refused = (0..3).any(|_| {
        splitter.fill(&mut input).unwrap();
        splitter.next_record().is_err()
    });
    assert!(refused && splitter.bytes.len() <= 4 * CHUNK_SIZE);
}

#[test]
fn length_prefixed_records_round_trip() {
    let records: [&[u8]; 4] = [b"", b"with\nnewline", b"\0", &[7; 300]];
    let mut written = RecordWriter::new(Vec::new(), OutputFraming::Length, false);
    records.iter().for_each(|record| written.write(Lsn(1), record).unwrap());
    for step in 1..=written.out.len() {
        let (read, end) = split(InputFraming::Length, 300, &written.out, step);
        assert_eq!((read.as_slice(), end), (records.map(<[u8]>::to_vec).as_slice(), Ok(())));
    }
}

#[test]
fn a_truncated_record_is_distinguished_from_the_end() {
    let whole = [3, 0, 0, 0, b'a', b'b', b'c', 2, 0, 0, 0, b'd', b'e'];
    for cut in 0..whole.len() {
        let (records, end) = split(InputFraming::Length, 10, &whole[..cut], 2);
        let missing = match cut {
            0 | 7 => None,
            1..=3 => Some(4 - cut),
            4..=6 => Some(7 - cut),
            8..=10 => Some(11 - cut),
            _ => Some(13 - cut),
        };
        let number = records.len() as u64 + 1;
        assert_eq!(end, missing.map_or(Ok(()), |missing| Err(BadInput::CutOff { number, missing })), "{cut}");
    }
    let (_, end) = split(InputFraming::Length, 10, b"some text, no length", 3);
    assert_eq!(end, Err(BadInput::TooLarge { noun: "record", number: 1, max: 10 }));
}

#[test]
fn records_are_written_in_three_formats() {
    let write = |framing, print_lsn| {
        let mut writer = RecordWriter::new(Vec::new(), framing, print_lsn);
        writer.write(Lsn(41), b"a\n").unwrap();
        writer.write(Lsn(42), b"").unwrap();
        writer.out
    };
    assert_eq!(write(OutputFraming::Lines, false), b"a\n\n\n");
    assert_eq!(write(OutputFraming::Length, false), b"\x02\0\0\0a\n\0\0\0\0");
    assert_eq!(write(OutputFraming::Hex, true), b"41\t610a\n42\t\n");
}
