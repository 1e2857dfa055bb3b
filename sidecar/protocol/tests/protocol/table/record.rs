//! The bytes of a keyed record, one by one, and what no bytes may do to the decoder. They lie in backups' memory and in files
//! that outlive a version: a change here is a change of the format and starts with a decision.

use proptest::collection::vec;
use proptest::prelude::*;
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::segment::Payload;
use tailwind_protocol::table::record::{
    BadKey, BadValue, KEY_SIZE_MAX, KEYED_SIZE_MAX, Key, KeyedRecord, NotKeyed, Revision, VALUE_SIZE_MAX, Value,
    payload_size_max,
};

/// LSN of the record where the number does not matter.
const LSN: Lsn = Lsn(0x0900_0000_0000_0000);

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes).unwrap()
}

fn value(bytes: &[u8]) -> Value<'_> {
    Value::new(bytes).unwrap()
}

fn encode(record: &KeyedRecord<'_>) -> Vec<u8> {
    let mut bytes = vec![0xAA; record.len()];
    record.copy_to(&mut bytes);
    bytes
}

fn assert_golden(record: KeyedRecord<'_>, golden: &[u8]) {
    assert_eq!(encode(&record), golden);
    assert_eq!(KeyedRecord::decode(golden, LSN), Ok(record));
}

#[test]
fn put_has_golden_bytes() {
    let golden = b"TWK1\x01\x00\x08\x00\0\0\0\0\0\0\0\0device/7online";
    assert_golden(KeyedRecord::Put { key: key(b"device/7"), value: value(b"online"), more: false }, golden);
    let golden = b"TWK1\x01\x01\x01\x00\0\0\0\0\0\0\0\0k";
    assert_golden(KeyedRecord::Put { key: key(b"k"), value: value(b""), more: true }, golden);
}

#[test]
fn delete_has_golden_bytes() {
    let golden = b"TWK1\x02\x00\x02\x00\0\0\0\0\0\0\0\0\x00\xff";
    assert_golden(KeyedRecord::Delete { key: key(b"\x00\xff"), more: false }, golden);
    let golden = b"TWK1\x02\x01\x01\x00\0\0\0\0\0\0\0\0k";
    assert_golden(KeyedRecord::Delete { key: key(b"k"), more: true }, golden);
}

#[test]
fn move_has_golden_bytes() {
    let golden = b"TWK1\x01\x00\x01\x00\x01\x02\x03\x04\x05\x06\x07\x08kv";
    let revision = Revision::of(Lsn(0x0807_0605_0403_0201)).unwrap();
    assert_golden(KeyedRecord::Move { key: key(b"k"), value: value(b"v"), revision }, golden);
}

#[test]
fn longest_key_and_value_are_taken() {
    let (longest, large) = (vec![b'k'; KEY_SIZE_MAX], vec![b'v'; VALUE_SIZE_MAX]);
    let record = KeyedRecord::Put { key: key(&longest), value: value(&large), more: false };
    assert_eq!(record.payload_size(), KEYED_SIZE_MAX);
    assert_eq!(KeyedRecord::decode(&encode(&record), LSN), Ok(record));
    assert_eq!(Key::new(&[0; KEY_SIZE_MAX + 1]), Err(BadKey(1025)));
    assert_eq!(Key::new(b""), Err(BadKey(0)));
    assert_eq!(Value::new(&[0; VALUE_SIZE_MAX + 1]), Err(BadValue(65_537)));
}

#[test]
fn what_is_wrong_is_named() {
    let good = encode(&KeyedRecord::Put { key: key(b"key"), value: value(b"value"), more: false });
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let gone = [&good[..6], &[0, 0], &good[8..]].concat();
    let mut moved = changed(8, 9);
    moved[5] = 1;
    let mut deleted = changed(4, 2);
    deleted[8] = 9;
    let large = [&good[..], &[0; VALUE_SIZE_MAX]].concat();
    for (bytes, why) in [
        (b"".to_vec(), NotKeyed::Foreign),
        (b"a plain record of an app".to_vec(), NotKeyed::Foreign),
        (good[..15].to_vec(), NotKeyed::Foreign),
        (changed(3, b'2'), NotKeyed::Foreign),
        (changed(4, 0), NotKeyed::Kind(0)),
        (changed(4, 3), NotKeyed::Kind(3)),
        (changed(5, 2), NotKeyed::Flags(2)),
        (changed(6, 9), NotKeyed::CutOff),
        (changed(7, 9), NotKeyed::CutOff),
        (gone, NotKeyed::Key(BadKey(0))),
        (large, NotKeyed::Value(BadValue(VALUE_SIZE_MAX + 5))),
        (changed(4, 2), NotKeyed::DeleteWithValue),
        (deleted, NotKeyed::DeleteMoved),
        (moved, NotKeyed::MoveInRequest),
    ] {
        assert_eq!(KeyedRecord::decode(&bytes, LSN), Err(why), "{}", bytes[..bytes.len().min(30)].escape_ascii());
    }
}

#[test]
fn a_move_is_younger_than_what_it_moves() {
    let revision = Revision::of(Lsn(41)).unwrap();
    let record = KeyedRecord::Move { key: key(b"k"), value: value(b"v"), revision };
    let bytes = encode(&record);
    for lsn in [Lsn(0), Lsn(40), Lsn(41)] {
        assert_eq!(KeyedRecord::decode(&bytes, lsn), Err(NotKeyed::Revision { revision: 41, lsn }));
    }
    assert_eq!(KeyedRecord::decode(&bytes, Lsn(42)), Ok(record));
    assert_eq!(record.revision(Lsn(42)), Some(revision));
    let put = KeyedRecord::Put { key: key(b"k"), value: value(b"v"), more: false };
    assert_eq!(KeyedRecord::decode(&encode(&put), Lsn(0)), Err(NotKeyed::Revision { revision: 0, lsn: Lsn(0) }));
    assert_eq!(put.revision(Lsn(42)), Revision::of(Lsn(42)));
    assert_eq!(KeyedRecord::Delete { key: key(b"k"), more: false }.revision(Lsn(42)), None);
}

#[test]
fn a_record_is_at_most_a_sixteenth_of_its_segment() {
    let max = |kib: u64| payload_size_max(SegmentSize::new(kib << 10).unwrap());
    assert_eq!((max(64), max(512), max(1024)), (4096 - 32, (32 << 10) - 32, (64 << 10) - 32));
    assert_eq!((max(2048), max(8192), max(64 << 10)), (KEYED_SIZE_MAX, KEYED_SIZE_MAX, KEYED_SIZE_MAX));
}

/// What a record is made of: kind, key, value, more, revision.
fn parts() -> impl Strategy<Value = (u8, Vec<u8>, Vec<u8>, bool, u64)> {
    (0..3_u8, vec(any::<u8>(), 1..40), vec(any::<u8>(), 0..60), any::<bool>(), 1..LSN.0)
}

fn record<'a>((kind, k, v, more, revision): &'a (u8, Vec<u8>, Vec<u8>, bool, u64)) -> KeyedRecord<'a> {
    let (key, value, more) = (key(k), value(v), *more);
    match kind {
        0 => KeyedRecord::Put { key, value, more },
        1 => KeyedRecord::Delete { key, more },
        _ => KeyedRecord::Move { key, value, revision: Revision::of(Lsn(*revision)).unwrap() },
    }
}

proptest! {
    #[test]
    fn records_come_back_as_written(parts in parts()) {
        let record = record(&parts);
        let bytes = encode(&record);
        prop_assert_eq!(KeyedRecord::decode(&bytes, LSN), Ok(record));
        prop_assert_eq!(record.has_more(), parts.3 && parts.0 != 2);
        prop_assert_eq!(record.size_in_log(), 32 + bytes.len().next_multiple_of(8));
    }

    #[test]
    fn a_prefix_is_no_record_or_has_less_value(parts in parts()) {
        let record = record(&parts);
        let bytes = encode(&record);
        for cut in 0..bytes.len() {
            // The length of the value is the rest of the record's, which the record header has.
            if let Ok(shorter) = KeyedRecord::decode(&bytes[..cut], LSN) {
                prop_assert_eq!(shorter.key(), record.key());
                prop_assert_eq!(encode(&shorter), &bytes[..cut]);
            }
        }
    }

    #[test]
    fn a_flipped_bit_never_decodes_to_the_same(parts in parts()) {
        let record = record(&parts);
        let bytes = encode(&record);
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = KeyedRecord::decode(&flipped, LSN) {
                prop_assert_ne!(other, record);
                prop_assert_eq!(encode(&other), flipped);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_record_or_none(bytes in vec(any::<u8>(), 0..100), lsn: u64) {
        prop_assert!(KeyedRecord::decode(&bytes, Lsn(lsn)).is_err());
        let plausible = [b"TWK1", &bytes[..]].concat();
        if let Ok(record) = KeyedRecord::decode(&plausible, Lsn(lsn)) {
            prop_assert_eq!(encode(&record), plausible);
        }
    }
}
