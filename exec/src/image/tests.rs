//! What is folded is what a directory becomes: random groups of names, carried out on a real directory.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::directory::Directory;
use crate::volume::{Bounds, Volume};

fn open(path: &Path) -> OwnedFd {
    std::fs::create_dir_all(path).expect("make a folder");
    std::fs::File::open(path).expect("open a folder").into()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

/// A change by small numbers, most of which make sense.
#[derive(Clone, Debug)]
enum Step {
    Create { directory: bool },
    Data { file: u64, offset: u64, length: u8 },
    Length { file: u64, length: u64 },
    Names(Vec<Change>),
    Begin,
}

fn change() -> impl Strategy<Value = Change> {
    let at = (0u64..8, prop::sample::select(vec!["a", "b", "c"]));
    prop_oneof![
        3 => (at.clone(), 1u64..8).prop_map(|((directory, text), number)| Change::Name {
            directory: Number(directory),
            name: name(text),
            number: Number(number)
        }),
        2 => at.prop_map(|(directory, text)| Change::Unname { directory: Number(directory), name: name(text) }),
        1 => (1u64..8, 0u16..0o1000).prop_map(|(number, mode)| Change::Mode { number: Number(number), mode: Mode(mode) }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<bool>().prop_map(|directory| Step::Create { directory }),
        2 => (1u64..8, 0u64..9000, 1u8..).prop_map(|(file, offset, length)| Step::Data { file, offset, length }),
        1 => (1u64..8, 0u64..9000).prop_map(|(file, length)| Step::Length { file, length }),
        6 => prop::collection::vec(change(), 1..5).prop_map(Step::Names),
        1 => Just(Step::Begin),
    ]
}

fn record<'a>(step: &Step, image: &Image, bytes: &'a [u8]) -> Record<'a> {
    match step {
        Step::Create { directory } => Record::Create {
            number: image.next(),
            kind: if *directory { Kind::Directory } else { Kind::File },
            mode: Mode(if *directory { 0o700 } else { 0o600 }),
        },
        Step::Data { file, offset, length } => {
            Record::Data { file: Number(*file), offset: *offset, bytes: &bytes[..usize::from(*length)] }
        }
        Step::Length { file, length } => Record::Length { file: Number(*file), length: *length },
        Step::Names(changes) => Record::Names { last: true, changes: changes.clone() },
        Step::Begin => Record::Begin { next: image.next() },
    }
}

/// Every path below the root, with the inode's number and the bytes of files.
fn list(at: &Path, below: &Path, into: &mut BTreeMap<String, Option<Vec<u8>>>) {
    for entry in std::fs::read_dir(at).expect("list a folder") {
        let path = entry.expect("an entry").path();
        let key = path.strip_prefix(below).expect("is below").display().to_string();
        if path.is_dir() {
            into.insert(key, None);
            list(&path, below, into);
        } else {
            into.insert(key, Some(std::fs::read(&path).expect("read a file")));
        }
    }
}

fn path_of(image: &Image, (directory, name): &(Number, Name)) -> String {
    match image.node(*directory).and_then(|node| node.names.first()) {
        Some(at) => format!("{}/{name}", path_of(image, at)),
        None => name.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_directory_becomes_what_was_folded(steps in prop::collection::vec(step(), 1..60)) {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, stage) = (folder.path().join("root"), folder.path().join("stage"));
        let mut directory = Directory::new(open(&root), open(&stage)).expect("a directory");
        let mut image = Image::default();
        image.fold(&Record::Begin { next: Number::FIRST }).expect("a turn begins");
        // The bytes of each file, by a model of its own.
        let mut model: BTreeMap<Number, Vec<u8>> = BTreeMap::new();
        for (count, step) in steps.iter().enumerate() {
            let bytes = [count as u8 + 1; 256];
            let record = record(step, &image, &bytes);
            let before = image.clone();
            let Ok(operations) = image.fold(&record) else {
                prop_assert_eq!(&image, &before, "a refused record changed the image");
                continue;
            };
            directory.carry_out(&image, &operations).map_err(|e| TestCaseError::fail(format!("{e}: {operations:?}")))?;
            match record {
                Record::Data { file, offset, bytes } => {
                    let (content, end) = (model.entry(file).or_default(), offset as usize + bytes.len());
                    content.resize(content.len().max(end), 0);
                    content[offset as usize..end].copy_from_slice(bytes);
                }
                Record::Length { file, length } => model.entry(file).or_default().resize(length as usize, 0),
                _ => {}
            }
        }
        let mut found = BTreeMap::new();
        list(&root, &root, &mut found);
        let mut wanted = BTreeMap::new();
        for (number, node) in image.nodes() {
            for at in &node.names {
                let bytes = (node.kind == Kind::File).then(|| model.get(&number).cloned().unwrap_or_default());
                wanted.insert(path_of(&image, at), bytes);
            }
        }
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(image.size(), image.nodes().map(|(_, node)| node.length).sum::<u64>());

        image.fold(&Record::Begin { next: image.next() }).map(|operations| directory.carry_out(&image, &operations))
            .expect("a turn begins").expect("what has no name goes");
        prop_assert_eq!(std::fs::read_dir(&stage).expect("list the stage").count(), 0, "the stage is not empty");
        let left = directory.finish(&image).expect("the turn");
        for (number, node) in image.nodes().filter(|(_, node)| node.kind == Kind::File) {
            prop_assert_eq!(left.blocks[&number].length(), node.length);
        }
        let bounds = Bounds { bytes: u64::MAX, files: 100, scan: u64::MAX, record: 1 << 20, trim: u64::MAX };
        Volume::new(bounds, image.clone(), left).expect("a volume");
        for (_, node) in image.nodes().filter(|(_, node)| node.kind == Kind::File) {
            let path = root.join(path_of(&image, node.names.first().expect("a name")));
            // Root enters every directory, regardless of its mode.
            if let Ok(metadata) = std::fs::metadata(path) {
                prop_assert_eq!(metadata.permissions().mode() as u16 & Mode::MASK, node.mode.0);
            }
        }
    }
}

#[test]
fn directories_may_change_places() {
    let mut image = Image::default();
    image.fold(&Record::Begin { next: Number::FIRST }).expect("begin");
    for number in [1, 2] {
        let create = Record::Create { number: Number(number), kind: Kind::Directory, mode: Mode(0o700) };
        image.fold(&create).expect("create");
    }
    let to = |directory, text: &str, number| Change::Name {
        directory: Number(directory),
        name: name(text),
        number: Number(number),
    };
    let from = |directory, text: &str| Change::Unname { directory: Number(directory), name: name(text) };
    let group = |changes: Vec<Change>| Record::Names { last: true, changes };
    image.fold(&group(vec![to(0, "a", 1), to(1, "b", 2)])).expect("a/b");
    image.fold(&group(vec![from(1, "b"), to(0, "b", 2), from(0, "a"), to(2, "a", 1)])).expect("b/a");
    assert_eq!(path_of(&image, image.node(Number(1)).expect("1").names.first().expect("a name")), "b/a");
    // Into itself it cannot.
    let error = image.fold(&group(vec![from(0, "b"), to(1, "b", 2)])).expect_err("a circle");
    assert!(matches!(error, FoldError::Name { .. }), "{error}");
}

#[test]
fn a_group_that_a_death_cut_short_is_void() {
    let mut image = Image::default();
    image.fold(&Record::Begin { next: Number::FIRST }).expect("begin");
    image.fold(&Record::Create { number: Number(1), kind: Kind::File, mode: Mode(0o600) }).expect("create");
    let change = Change::Name { directory: Number::ROOT, name: name("a"), number: Number(1) };
    image.fold(&Record::Names { last: false, changes: vec![change] }).expect("a part");
    let operations = image.fold(&Record::Begin { next: Number(2) }).expect("the next turn");
    assert_eq!(operations, [Operation::Discard { number: Number(1), kind: Kind::File }]);
    assert_eq!(image.fold(&Record::Names { last: true, changes: vec![] }), Ok(vec![]));
    assert_eq!(image.nodes().count(), 1);
}

#[test]
fn a_fold_begins_at_a_state() {
    let mut whole = Image::default();
    let name = |text: &str, number| Change::Name { directory: Number::ROOT, name: name(text), number: Number(number) };
    let create = |number, kind| Record::Create { number: Number(number), kind, mode: Mode(0o640) };
    for record in [
        Record::Begin { next: Number::FIRST },
        create(1, Kind::File),
        create(2, Kind::Link(b"a".as_slice().into())),
        create(3, Kind::File),
        Record::Data { file: Number(1), offset: 7, bytes: b"abc" },
        Record::Names { last: true, changes: vec![name("a", 1), name("b", 1), name("c", 2), name("d", 3)] },
        Record::Names {
            last: true,
            changes: vec![Change::Unname { directory: Number::ROOT, name: super::tests::name("d") }],
        },
    ] {
        whole.fold(&record).expect("a record");
    }
    // One fact in each record.
    let state = whole.state(FACT_MAX);
    assert!(state.len() > 3, "{state:?}");
    assert_eq!(state.len(), whole.fact_count());
    let mut late = Image::default();
    // What is left of an earlier generation means nothing.
    late.fold(&Record::Data { file: Number(1), offset: 0, bytes: b"x" }).expect("skipped");
    late.fold(&state[2]).expect("the end of a state that began before");
    assert!(!late.begun());
    for record in &state {
        late.fold(record).expect("a part of the state");
        whole.fold(record).expect("nothing new");
    }
    assert!(late.begun());
    assert_eq!(late.state(usize::MAX), whole.state(usize::MAX));
    assert_eq!(late.next(), Number(4));

    late.fold(&create(4, Kind::File)).expect("create");
    let error = state.iter().try_for_each(|record| late.fold(record).map(drop));
    assert_eq!(error, Err(FoldError::Differs));
}

#[test]
fn a_state_of_more_facts_than_files_have_is_refused() {
    let facts = |count| {
        let name = |number: usize| name(&number.to_string());
        let fact = |number| Fact::Name { directory: Number::ROOT, name: name(number), number: Number(1) };
        (0..count).map(fact).collect()
    };
    let part = |facts: Vec<Fact>, first| Record::State { first, last: false, next: Number(2), facts };
    let mut image = Image::default();
    image.fold(&part(facts(STATE_FACTS_MAX - 1), true)).expect("the first part");
    image.fold(&part(facts(1), false)).expect("as many as there may be");
    assert_eq!(image.fold(&part(facts(1), false)), Err(FoldError::Group));
}

fn begun() -> Image {
    let mut image = Image::default();
    image.fold(&Record::Begin { next: Number::FIRST }).expect("a turn begins");
    image
}

/// Folds what an image says into another one.
fn again(image: &Image) -> Image {
    let mut late = Image::default();
    for record in image.state(usize::MAX) {
        late.fold(&record).expect("a state");
    }
    late
}

#[test]
fn what_gets_a_name_and_loses_it_within_a_group_is_gone() {
    let mut image = begun();
    let create = |number| Record::Create { number, kind: Kind::File, mode: Mode(0o600) };
    let named = |number| Change::Name { directory: Number::ROOT, name: name("orphan"), number };
    let group = |changes| Record::Names { last: true, changes };
    let (kept, orphan) = (Number(1), Number(2));
    for record in [create(kept), create(orphan), group(vec![named(kept)])] {
        image.fold(&record).expect("a record");
    }
    let operations = image.fold(&group(vec![named(orphan), named(kept)])).expect("a group");
    assert_eq!(operations, [Operation::Discard { number: orphan, kind: Kind::File }]);
    assert_eq!(image.entry(&(Number::ROOT, name("orphan"))), Some(kept), "whoever had the name has it");
}

#[test]
fn the_root_has_no_mode_of_its_own() {
    let mut image = begun();
    let group = Record::Names { last: true, changes: vec![Change::Mode { number: Number::ROOT, mode: Mode(0) }] };
    assert!(image.fold(&group).is_err(), "a state would not have it");
    assert!(again(&image).nodes().eq(image.nodes()));
}

#[test]
fn each_number_has_a_next_one() {
    let mut image = begun();
    let create = |number| Record::Create { number: Number(number), kind: Kind::File, mode: Mode(0o600) };
    assert!(image.fold(&create(u64::MAX - 1)).is_err());
    image.fold(&create(u64::MAX - 2)).expect("the last number");
    let begin = Record::Begin { next: image.next() }.encode();
    image.fold(&Record::decode(&begin).expect("a record")).expect("the next turn begins");
}

#[test]
fn parts_of_a_state_are_as_large_as_they_may_be() {
    let mut image = begun();
    for number in 1..4 {
        let kind = Kind::Link(vec![b'a'; 4095].into());
        image.fold(&Record::Create { number: Number(number), kind, mode: Mode(0o777) }).expect("create");
    }
    for (bound, parts) in [(2 * FACT_MAX, 3), (2 * FACT_MAX + 11, 2)] {
        let sizes: Vec<usize> = image.state(bound).iter().map(|record| record.encode().len()).collect();
        assert!(sizes.len() == parts && sizes.iter().all(|size| *size <= bound), "{sizes:?}, at most {bound}");
    }
}

#[test]
fn a_deep_directory_may_move_into_another() {
    const DEPTH: u64 = 1500;
    let mut image = begun();
    let mut to = |directory: u64, text: &str, number: u64| {
        if image.node(Number(number)).is_none() {
            let create = Record::Create { number: Number(number), kind: Kind::Directory, mode: Mode(0o700) };
            image.fold(&create).expect("create");
        }
        let mut changes = vec![Change::Name { directory: Number(directory), name: name(text), number: Number(number) }];
        if directory == DEPTH {
            changes.push(Change::Unname { directory: Number::ROOT, name: name("b") });
        }
        image.fold(&Record::Names { last: true, changes }).expect("a name");
    };
    for number in 1..=DEPTH {
        to(number - 1, "a", number);
    }
    to(0, "b", DEPTH + 1);
    for number in DEPTH + 2..=2 * DEPTH {
        to(number - 1, "b", number);
    }
    to(DEPTH, "b", DEPTH + 1);
    to(2 * DEPTH, "b", 2 * DEPTH + 1);
    assert!(again(&image).nodes().eq(image.nodes()), "what was folded step by step is folded at once");
}
