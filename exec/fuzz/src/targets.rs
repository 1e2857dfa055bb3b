//! What the fuzz target checks. One body for two drivers: cargo-fuzz (`fuzz_targets/`) and, on the stable toolchain,
//! `tests/fuzz_targets.rs`.

mod tree;

use tailwind_exec::image::{Image, Operation};
use tailwind_exec::record::{FACT_MAX, Fact, Record};

use tree::Tree;

/// An untrusted log, as a standby reads it: records, each after its size in two bytes. Asserts that everything that can be
/// decoded is encoded again as it was, that each operation which the fold asks for is possible when its turn comes, and
/// that the image is what the operations make of an empty directory.
pub fn records(data: &[u8]) {
    let mut image = Image::default();
    let mut tree = Tree::default();
    for bytes in (Records { data }) {
        let Some(record) = decode(bytes) else { continue };
        let before = image.clone();
        match image.fold(&record) {
            Ok(operations) => {
                check_ranges(&record, &operations);
                operations.iter().for_each(|operation| tree.carry_out(operation));
                tree.learn(&record, before.begun(), image.begun());
            }
            Err(_) => {
                tree.refused(&record);
                assert_eq!(Known::of(&image), Known::of(&before), "a refused record changed the image: {record:?}");
            }
        }
        tree.check(&image);
    }
    check_state(&image);
}

/// One record after another; the last one may break off.
struct Records<'a> {
    data: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.data.split_first_chunk()?;
        let (record, rest) = rest.split_at(usize::from(u16::from_le_bytes(*size)).min(rest.len()));
        self.data = rest;
        Some(record)
    }
}

fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    let record = Record::decode(bytes).ok()?;
    let again = record.encode();
    assert_eq!(Record::decode(&again).as_ref(), Ok(&record));
    assert_eq!(again.len(), bytes.len());
    // The smallest of what a record lists takes more bytes than two.
    let room = match &record {
        Record::Names { changes, .. } => changes.capacity(),
        Record::State { facts, .. } => facts.capacity(),
        _ => 0,
    };
    assert!(room <= bytes.len(), "room for {room} in a record of {} bytes", bytes.len());
    Some(record)
}

/// Bytes are only asked for by a record that has them, in the file and the range that it names.
fn check_ranges(record: &Record<'_>, operations: &[Operation<'_>]) {
    let expected = match *record {
        Record::Data { file, offset, bytes } => Some(Operation::Write { file, offset, bytes }),
        Record::Zero { file, offset, length } => Some(Operation::Zero { file, offset, length }),
        Record::Length { file, length } => Some(Operation::Resize { file, length }),
        _ => None,
    };
    let is_state = matches!(record, Record::State { .. });
    match expected {
        // Before the fold has begun nothing follows.
        Some(expected) => assert!(operations.is_empty() || operations == [expected], "{record:?}: {operations:?}"),
        None => assert!(
            operations.iter().all(|operation| match operation {
                Operation::Write { .. } | Operation::Zero { .. } => false,
                Operation::Resize { .. } => is_state,
                _ => true,
            }),
            "{record:?}: {operations:?}"
        ),
    }
}

/// All that an image says.
#[derive(PartialEq, Eq, Debug)]
struct Known {
    next: u64,
    size: u64,
    facts: Vec<Fact>,
}

impl Known {
    fn of(image: &Image) -> Known {
        Known { next: image.next().0, size: image.size(), facts: facts(&image.state(usize::MAX)) }
    }
}

fn facts(state: &[Record<'_>]) -> Vec<Fact> {
    let facts = |record: &Record<'_>| match record {
        Record::State { facts, .. } => facts.clone(),
        other => panic!("{other:?} in a state"),
    };
    state.iter().flat_map(facts).collect()
}

/// A fold that begins at the image's state, in many parts or in one, is as far as the image; and the image finds nothing new
/// in it.
fn check_state(image: &Image) {
    for record_max in [FACT_MAX, 3 * FACT_MAX, usize::MAX] {
        let mut late = Image::default();
        let mut known = image.clone();
        let mut tree = Tree::default();
        for record in image.state(record_max) {
            let bytes = record.encode();
            assert!(bytes.len() <= record_max || fact_count(&record) == 1, "{} bytes", bytes.len());
            let record = Record::decode(&bytes).expect("a state that was made here");
            let begun = late.begun();
            let operations = late.fold(&record).expect("a state is a fold's begin");
            operations.iter().for_each(|operation| tree.carry_out(operation));
            tree.learn(&record, begun, late.begun());
            if known.begun() {
                assert_eq!(known.fold(&record), Ok(Vec::new()));
            }
        }
        assert!(late.begun());
        tree.check(&late);
        assert_eq!(Known::of(&late), Known::of(image));
        assert!(late.nodes().eq(image.nodes()));
    }
}

fn fact_count(record: &Record<'_>) -> usize {
    facts(std::slice::from_ref(record)).len()
}
