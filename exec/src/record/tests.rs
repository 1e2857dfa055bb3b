//! Golden bytes, and that no bytes make trouble.

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// The bytes of each kind, as logs have them: to change one, change [`VERSION`].
#[test]
fn bytes_are_as_documented() {
    let golden: Vec<(Record<'_>, &str)> = vec![
        (Record::Begin { next: Number(5) }, "0101 0500000000000000"),
        (Record::Create { number: Number(2), kind: Kind::File, mode: Mode(0o640) }, "0102 0200000000000000 0100 a001"),
        (
            Record::Create { number: Number(3), kind: Kind::Link(b"to".as_slice().into()), mode: Mode(0o777) },
            "0102 0300000000000000 0300 ff01 746f",
        ),
        (Record::Data { file: Number(2), offset: 258, bytes: b"abc" }, "0103 0200000000000000 0201000000000000 616263"),
        (
            Record::Zero { file: Number(2), offset: 1, length: 2 },
            "0104 0200000000000000 0100000000000000 0200000000000000",
        ),
        (Record::Length { file: Number(2), length: 9 }, "0105 0200000000000000 0900000000000000"),
        (
            Record::Names {
                last: true,
                changes: vec![
                    Change::Name { directory: Number::ROOT, name: name("a"), number: Number(2) },
                    Change::Unname { directory: Number(1), name: name("bc") },
                    Change::Mode { number: Number(1), mode: Mode(0o700) },
                ],
            },
            "0106 01 01 0000000000000000 0200000000000000 01 61  02 0100000000000000 02 6263  03 0100000000000000 c001",
        ),
        (
            Record::State {
                first: true,
                last: false,
                next: Number(4),
                facts: vec![
                    Fact::Node { number: Number(2), kind: Kind::File, mode: Mode(0o600), length: 258 },
                    Fact::Node {
                        number: Number(3),
                        kind: Kind::Link(b"to".as_slice().into()),
                        mode: Mode(0o777),
                        length: 0,
                    },
                    Fact::Name { directory: Number::ROOT, name: name("a"), number: Number(2) },
                ],
            },
            "0107 01 0400000000000000 01 0200000000000000 0100 8001 0201000000000000 0000 \
             01 0300000000000000 0300 ff01 0000000000000000 0200 746f  02 0000000000000000 0200000000000000 01 61",
        ),
    ];
    for (record, hex) in golden {
        let hex: String = hex.split_whitespace().collect();
        let bytes = record.encode();
        assert_eq!(bytes.iter().map(|b| format!("{b:02x}")).collect::<String>(), hex, "{record:?}");
        assert_eq!(Record::decode(&bytes), Ok(record));
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'a'; 256]] {
        assert_eq!(Name::new(bad), None, "{bad:?}");
    }
    for good in [&b"..."[..], b".a", b"\xff", &[b'a'; 255]] {
        assert!(Name::new(good).is_some(), "{good:?}");
    }
}

proptest! {
    /// Bytes are refused, or are exactly the encoding of what they decode to (but for reserved bytes).
    #[test]
    fn any_bytes_decode_or_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0u8..9) {
        if bytes.len() > 1 {
            bytes[0] = 1;
            bytes[1] = kind;
        }
        if let Ok(record) = Record::decode(&bytes) {
            let again = record.encode();
            prop_assert_eq!(Record::decode(&again), Ok(record));
            prop_assert_eq!(again.len(), bytes.len());
        }
    }
}
