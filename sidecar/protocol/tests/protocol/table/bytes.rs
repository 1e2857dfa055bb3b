//! What an index hashes and writes: published vectors of the hash, places at the edges of their window, golden entries, and that
//! no torn, foreign or damaged entry is believed.

use std::num::NonZeroU64;

use proptest::prelude::*;
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::{SEGMENT_MAX, SegmentSize};
use tailwind_protocol::table::entry::{ENTRY_SIZE, Entry, EntryBytes, Present, Unsound, Word};
use tailwind_protocol::table::hash::{Buckets, Fingerprint, HashKey, KEYS_MAX, KeyHash};
use tailwind_protocol::table::place::{Place, TABLE_SIZE_MAX, Window};
use tailwind_protocol::table::record::{KEYED_SIZE_MAX, Key, Revision};

const KEY: HashKey = HashKey([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);

/// `vectors_sip128` of the authors' reference implementation, for the inputs 00, 00 01, and so on.
#[test]
fn the_hash_is_siphash_2_4_with_128_bits() {
    for (length, expected) in [
        (1, 0xda87_c1d8_6b99_af44_3476_5911_9b22_fc45_u128),
        (2, 0x8177_228d_a4a4_5dc7_fca3_8bde_f60a_ffe4),
        (3, 0x9c70_b60c_5267_a94e_5f33_b6b0_2985_ed51),
        (8, 0x3b62_a9ba_6258_f561_0f83_e264_f314_97b4),
    ] {
        let input: Vec<u8> = (0..length).collect();
        let hash = KEY.hash(Key::new(&input).unwrap());
        let bytes = [hash.h0.to_le_bytes(), hash.h1.to_le_bytes()].concat();
        assert_eq!(bytes, expected.to_be_bytes(), "{length} bytes");
    }
}

#[test]
fn a_fingerprint_is_never_zero() {
    let of = |h1| KeyHash { h0: 0, h1 }.fingerprint().0.get();
    assert_eq!((of(0), of(1), of(u64::MAX)), (1, 1, u64::MAX));
}

#[test]
fn a_key_has_two_different_buckets() {
    let buckets = Buckets::from_number(10).unwrap();
    let of = |low: u32, high: u32| buckets.of(KeyHash { h0: u64::from(high) << 32 | u64::from(low), h1: 0 });
    assert_eq!(of(0, u32::MAX), [0, 9]);
    assert_eq!(of(u32::MAX / 10, u32::MAX / 10 + 1), [0, 1]);
    assert_eq!(of(0, 0), [0, 1], "the next one");
    assert_eq!(of(u32::MAX, u32::MAX), [9, 0], "the first follows the last");
    assert_eq!(Buckets::MIN.of(KeyHash { h0: u64::MAX, h1: 0 }), [1, 0]);
}

#[test]
fn three_fifths_of_the_entries_are_for_keys() {
    assert_eq!(Buckets::for_keys(0), Buckets::MIN);
    assert_eq!(Buckets::for_keys(48).number(), 10);
    assert_eq!(Buckets::for_keys(49).number(), 11);
    assert_eq!(Buckets::for_keys(KEYS_MAX).entries(), 27_962_032);
    assert_eq!(Buckets::from_number(1), None);
    assert_eq!(Buckets::from_number(Buckets::for_keys(KEYS_MAX).number() + 1), None);
}

fn window(bytes: u64) -> Window {
    Window::new(SegmentSize::new(bytes).unwrap())
}

fn at(segment: u64, offset: u32) -> Position {
    Position::new(SegmentId(segment), Offset(offset))
}

#[test]
fn a_window_is_16_gib_of_any_segments() {
    assert_eq!(
        (window(64 << 10).segments(), window(8 << 20).segments(), window(64 << 20).segments()),
        (262_144, 2048, 256)
    );
    for size in [64 << 10, 8 << 20, 64 << 20] {
        assert_eq!(window(size).segments() * 3 / 4 * size, TABLE_SIZE_MAX);
    }
}

#[test]
fn places_have_golden_bits() {
    let bits = |size, position| Place::bits(window(size).place(position));
    assert_eq!(bits(8 << 20, at(1, 72)), (1 << 20) + 9);
    assert_eq!(bits(8 << 20, at(2047, (8 << 20) - 8)), (1 << 31) - 1, "the last one of a window");
    assert_eq!(bits(8 << 20, at(2048, 72)), 9, "the first one of the next");
    assert_eq!(bits(64 << 10, at(262_143, 80)), 262_143 * 8192 + 10);
    assert_eq!(bits(64 << 20, at(257, 4096)), 8_388_608 + 512);
}

#[test]
fn no_record_begins_in_a_header_or_between_units() {
    let window = window(64 << 10);
    for (segment, offset) in [(1, 0), (1, 64), (1, 71), (1, 73), (1, 64 << 10), (1, u32::MAX), (0, 72)] {
        assert_eq!(window.place(at(segment, offset)), None, "{segment}/{offset}");
    }
    // Bits that name the header of a segment, or a segment before the first one.
    assert_eq!(window.position(Place::from_bits(8192 + 8).unwrap(), SegmentId(1)), None);
    assert_eq!(window.position(Place::from_bits(9).unwrap(), SegmentId(5)), None, "segment 0");
    assert_eq!((Place::from_bits(0), Place::from_bits(1 << 31)), (None, None));
}

#[test]
fn a_place_means_the_segment_near_the_end() {
    let window = window(64 << 20);
    let seen = |segment: u64, end: u64| {
        let place = window.place(at(segment, 72)).unwrap();
        window.position(place, SegmentId(end)).map(|position| position.segment.0)
    };
    // W is 256: of (e - 192, e + 64].
    assert_eq!(seen(1000, 1000), Some(1000));
    assert_eq!(seen(1000 - 191, 1000), Some(809), "the oldest");
    assert_eq!(seen(1000 - 192, 1000), Some(1064), "taken for one that is to come");
    assert_eq!(seen(1000 + 64, 1000), Some(1064), "the reader's view is old");
    assert_eq!(seen(1000 + 65, 1000), Some(809));
    assert_eq!(seen(1, 1), Some(1));
    assert_eq!(seen(65, 1), Some(65));
    assert_eq!(seen(66, 1), None, "there are no segments before the first");
    assert_eq!(seen(200, 192), Some(200));
    assert_eq!(seen(1, 192), Some(1));
    assert_eq!(seen(1, 193), Some(257));
    assert_eq!(seen(SEGMENT_MAX.0 - 5, SEGMENT_MAX.0), Some(SEGMENT_MAX.0 - 5));
    let place = window.place(at(1, 72)).unwrap();
    assert!(window.position(place, SegmentId(u64::MAX)).is_some_and(|at| at.segment <= SegmentId(SEGMENT_MAX.0 + 64)));
}

fn place(bits: u32) -> Place {
    Place::from_bits(bits).unwrap()
}

fn places(word: Word) -> (Option<u32>, Option<u32>) {
    let bits = |place: Option<Place>| place.map(|place| Place::bits(Some(place)));
    (bits(word.new_place()), bits(word.old_place()))
}

#[test]
fn a_publication_keeps_the_place_before() {
    let mut word = Word::first(place(5));
    assert_eq!((word.bits(), places(word)), (1 << 63 | 5 << 32, (Some(5), None)));
    word = word.publish(place(0x7fff_ffff));
    assert_eq!((word.bits(), places(word)), (5 << 32 | 0x7fff_ffff, (Some(0x7fff_ffff), Some(5))));
    word = word.publish(place(7));
    assert_eq!((word.bits(), places(word)), (1 << 63 | 7 << 32 | 0x7fff_ffff, (Some(7), Some(0x7fff_ffff))));
    for wrong in [0, 1 << 63, 5 << 32, 1 << 63 | 5, 1 << 31 | 5, u64::MAX] {
        assert_eq!(Word::from_bits(wrong), None, "{wrong:x}");
    }
}

fn entry() -> Entry {
    let word = Word::first(place(0x1413_1211)).publish(place(0x2423_2221));
    let present = Present { word, revision: Revision::of(Lsn(0x3837_3635_3433_3231)).unwrap(), length: 0x4342 };
    Entry { fingerprint: Fingerprint(NonZeroU64::new(0x0807_0605_0403_0201).unwrap()), present: Some(present) }
}

const GOLDEN_CRC: u32 = 0xf81b_e7b7;
const GOLDEN_ABSENT_CRC: u32 = 0x37ff_520d;

#[test]
fn entries_have_golden_bytes() {
    let mut expected = *b"\x01\x02\x03\x04\x05\x06\x07\x08\
        \x21\x22\x23\x24\x11\x12\x13\x14\
        \x31\x32\x33\x34\x35\x36\x37\x38\
        \x42\x43\0\0\
        crc!";
    // One CRC over both pieces.
    let crc = |bytes: &EntryBytes| crc32fast::hash(&[&KEY.0[..], &bytes[..28]].concat());
    assert_eq!(crc(&expected), GOLDEN_CRC);
    expected[28..].copy_from_slice(&GOLDEN_CRC.to_le_bytes());
    assert_eq!(entry().encode(KEY.seed()), expected);
    assert_eq!(Entry::decode(&expected, KEY.seed()), Ok(Some(entry())));

    let absent = Entry { present: None, ..entry() };
    let mut expected = *b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0crc!";
    assert_eq!(crc(&expected), GOLDEN_ABSENT_CRC);
    expected[28..].copy_from_slice(&GOLDEN_ABSENT_CRC.to_le_bytes());
    assert_eq!(absent.encode(KEY.seed()), expected);
    assert_eq!(Entry::decode(&expected, KEY.seed()), Ok(Some(absent)));
    assert_eq!(Entry::decode(&[0; ENTRY_SIZE], KEY.seed()), Ok(None));
}

#[test]
fn impossible_entries_are_unsound_even_with_a_right_crc() {
    let good = entry().encode(KEY.seed());
    for (at, with, why) in [
        (0, vec![0; 8], "no fingerprint"),
        (8, vec![0; 8], "no word"),
        (11, vec![0xa4], "bit 31"),
        (8, vec![0; 4], "no new place"),
        (16, vec![0; 8], "no revision"),
        (24, vec![16, 0], "no key"),
        (24, (KEYED_SIZE_MAX as u32 + 1).to_le_bytes().to_vec(), "too long"),
    ] {
        let mut bytes = good;
        bytes[at..at + with.len()].copy_from_slice(&with);
        let crc = crc32fast::hash(&[&KEY.0[..], &bytes[..28]].concat());
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Entry::decode(&bytes, KEY.seed()), Err(Unsound), "{why}");
    }
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let bits = || 1..1_u32 << 31;
    let present = (bits(), prop::option::of(bits()), 1..=u64::MAX, 17..=KEYED_SIZE_MAX as u32);
    (1..=u64::MAX, prop::option::of(present)).prop_map(|(fingerprint, present)| Entry {
        fingerprint: Fingerprint(NonZeroU64::new(fingerprint).unwrap()),
        present: present.map(|(first, second, revision, length)| {
            let word = Word::first(place(first));
            let word = second.map_or(word, |second| word.publish(place(second)));
            Present { word, revision: Revision::of(Lsn(revision)).unwrap(), length }
        }),
    })
}

proptest! {
    #[test]
    fn entries_come_back_as_written(entry in any_entry(), key: [u8; 16]) {
        let seed = HashKey(key).seed();
        prop_assert_eq!(Entry::decode(&entry.encode(seed), seed), Ok(Some(entry)));
        prop_assert_eq!(Entry::decode(&entry.encode(seed), KEY.seed()).is_ok(), key == KEY.0, "of another index");
    }

    #[test]
    fn a_torn_entry_is_one_of_both_or_unsound(
        old in any_entry(),
        new in any_entry(),
        same_key: bool,
        choices in prop::collection::vec(any::<bool>(), ENTRY_SIZE),
        grain in prop::sample::select(vec![1, 8]),
    ) {
        let new = if same_key { Entry { fingerprint: old.fingerprint, ..new } } else { new };
        let (before, after) = (old.encode(KEY.seed()), new.encode(KEY.seed()));
        for (before, after) in [(before, after), ([0; ENTRY_SIZE], after), (before, [0; ENTRY_SIZE])] {
            let torn: EntryBytes = std::array::from_fn(|at| if choices[at / grain] { after[at] } else { before[at] });
            let found = Entry::decode(&torn, KEY.seed());
            prop_assert_eq!(found.is_ok(), torn == before || torn == after);
        }
    }

    #[test]
    fn a_flipped_bit_of_an_entry_is_noticed(entry in any_entry()) {
        for bit in 0..8 * ENTRY_SIZE {
            let mut bytes = entry.encode(KEY.seed());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Entry::decode(&bytes, KEY.seed()), Err(Unsound));
        }
    }

    #[test]
    fn any_bytes_are_an_entry_or_none(bytes: EntryBytes) {
        let mut sealed = bytes;
        let crc = crc32fast::hash(&[&KEY.0[..], &bytes[..28]].concat());
        sealed[28..].copy_from_slice(&crc.to_le_bytes());
        for bytes in [bytes, sealed] {
            if let Ok(Some(entry)) = Entry::decode(&bytes, KEY.seed()) {
                prop_assert_eq!(entry.encode(KEY.seed()), bytes);
            }
        }
    }

    #[test]
    fn positions_within_three_quarters_come_back(
        shift in 16..27_u32, end in 1..1_u64 << 40, back: u64, ahead: u64, forward: bool, offset: u32,
    ) {
        let window = window(1 << shift);
        let quarter = window.segments() / 4;
        let segment = if forward { end + ahead % (quarter + 1) } else { end - (back % (3 * quarter)).min(end - 1) };
        let offset = 72 + offset % ((1 << shift) - 72) / 8 * 8;
        let place = window.place(at(segment, offset)).unwrap();
        prop_assert_eq!(window.position(place, SegmentId(end)), Some(at(segment, offset)));
    }

    #[test]
    fn any_place_is_a_position_that_has_it_or_none(shift in 16..27_u32, bits in 1..1_u32 << 31, end: u64) {
        let window = window(1 << shift);
        if let Some(position) = window.position(place(bits), SegmentId(end)) {
            prop_assert_eq!(window.place(position), Some(place(bits)));
        }
    }
}
