//! The bytes of records: golden ones, and that any bytes are either a record or refused.

use proptest::prelude::*;

use super::*;

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn every_kind() -> Vec<Record> {
    let set = |deadline, keep_deadline, condition, get| {
        Record::Write(Write::Set { key: text("k"), value: text("v"), deadline, keep_deadline, condition, get })
    };
    vec![
        Record::Open,
        set(None, false, Condition::Always, false),
        set(Some(0x0102), true, Condition::IfAbsent, true),
        set(None, false, Condition::IfPresent, false),
        Record::Write(Write::SetMany(vec![(text("a"), text("1")), (text("b"), text(""))])),
        Record::Write(Write::Delete(vec![text("a"), text("b")])),
        Record::Write(Write::Add { key: text("k"), amount: -2 }),
        Record::Write(Write::Append { key: text("k"), value: text("v") }),
        Record::Write(Write::Expire { key: text("k"), deadline: 3 }),
        Record::Write(Write::Persist(text("k"))),
        Record::Write(Write::Flush),
        Record::SnapshotBegin,
        Record::SnapshotChunk { id: 7, bytes: text("xyz") },
        Record::SnapshotEnd { id: 7, entries: 9 },
    ]
}

/// Logs that were written once must stay readable: if this fails, the bytes need a new kind.
#[test]
fn record_bytes_are_stable() {
    let hex = |record: &Record| {
        let bytes = encode(0x0a0b, record);
        assert_eq!(bytes[4..12], [0x0b, 0x0a, 0, 0, 0, 0, 0, 0], "the time");
        let pick = bytes[..4].iter().chain(&bytes[12..]);
        pick.map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let found: Vec<String> = every_kind().iter().map(hex).collect();
    let expected = [
        "4b010000",
        "4b0200000000000000000000010000006b0100000076",
        "4b020d000201000000000000010000006b0100000076",
        "4b0202000000000000000000010000006b0100000076",
        "4b03000002000000010000006101000000310100000062000000 00",
        "4b0400000200000001000000610100000062",
        "4b050000feffffffffffffff010000006b",
        "4b060000010000006b0100000076",
        "4b0700000300000000000000010000006b",
        "4b080000010000006b",
        "4b090000",
        "4b100000",
        "4b110000070000000000000003000000 78797a",
        "4b12000007000000000000000900000000000000",
    ];
    let expected: Vec<String> = expected.iter().map(|line| line.replace(' ', "")).collect();
    assert_eq!(found, expected);
}

#[test]
fn records_round_trip_and_truncated_ones_are_refused() {
    for record in every_kind() {
        let bytes = encode(77, &record);
        assert_eq!(decode(&bytes), Ok((77, record)));
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err());
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode(&longer).is_err());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_record_or_refused(kind in 0u8..20, flags in any::<u8>(), rest in proptest::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = vec![MAGIC, kind, flags, 0];
        bytes.extend(rest);
        if let Ok((stamp, record)) = decode(&bytes) {
            prop_assert_eq!(encode(stamp, &record), bytes);
        }
    }
}
