//! Runs the fuzz target on the stable toolchain, over committed inputs and random ones, so that it cannot rot.

#[allow(unreachable_pub, reason = "cargo-fuzz has it as a crate of its own")]
#[path = "../fuzz/src/targets.rs"]
mod targets;

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tailwind_exec::image::Image;
use tailwind_exec::record::{Change, FILE_SIZE_MAX, Fact, Kind, Mode, Name, Number, Record};

#[test]
fn seeds_of_records() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/records");
    let mut files = 0;
    for entry in folder.read_dir().expect("list the seeds") {
        let path = entry.expect("list the seeds").path();
        let seed = std::fs::read(&path).expect("read a seed");
        let passed = std::panic::catch_unwind(|| targets::records(&seed));
        assert!(passed.is_ok(), "{} fails, see above", path.display());
        files += 1;
    }
    assert!(files > 0, "the seeds are missing");
}

/// A record of small numbers, most of which make sense.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    BeginAt(u64),
    Create(Kind, u16),
    CreateAs(u64, Kind),
    Data {
        file: u64,
        offset: u64,
        size: usize,
    },
    Zero {
        file: u64,
        offset: u64,
        length: u64,
    },
    Length {
        file: u64,
        length: u64,
    },
    Names {
        last: bool,
        changes: Vec<Change>,
    },
    /// The state of the image, in records of so many bytes.
    State(usize),
    /// Any other.
    FalseState {
        first: bool,
        last: bool,
        next: u64,
        facts: Vec<Fact>,
    },
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![30 => 0u64..8, 1 => Just(u64::MAX - 1)]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![10 => 0u64..9000, 1 => (0u64..3).prop_map(|less| FILE_SIZE_MAX - less)]
}

fn at() -> impl Strategy<Value = (Number, Name)> {
    // Most directories of any number are not there.
    (prop_oneof![2 => Just(0), 1 => number()], select(vec!["a", "b", "c"]))
        .prop_map(|(directory, name)| (Number(directory), Name::new(name.as_bytes()).expect("a name")))
}

fn kind() -> impl Strategy<Value = Kind> {
    let target = prop_oneof![5 => 1usize..5, 1 => Just(4095)];
    prop_oneof![
        3 => Just(Kind::File),
        3 => Just(Kind::Directory),
        1 => target.prop_map(|size| Kind::Link(vec![b'a'; size].into())),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (at(), number())
            .prop_map(|((directory, name), number)| Change::Name { directory, name, number: Number(number) }),
        2 => at().prop_map(|(directory, name)| Change::Unname { directory, name }),
        1 => (number(), 0u16..=Mode::MASK)
            .prop_map(|(number, mode)| Change::Mode { number: Number(number), mode: Mode(mode) }),
    ]
}

fn fact() -> impl Strategy<Value = Fact> {
    prop_oneof![
        (number(), kind(), offset()).prop_map(|(number, kind, length)| {
            let length = if kind == Kind::File { length } else { 0 };
            Fact::Node { number: Number(number), kind, mode: Mode(0o600), length }
        }),
        (at(), number()).prop_map(|((directory, name), number)| Fact::Name { directory, name, number: Number(number) }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Begin),
        1 => number().prop_map(Step::BeginAt),
        6 => (kind(), 0u16..=Mode::MASK).prop_map(|(kind, mode)| Step::Create(kind, mode)),
        1 => (number(), kind()).prop_map(|(number, kind)| Step::CreateAs(number, kind)),
        2 => (number(), offset(), 0usize..3).prop_map(|(file, offset, size)| Step::Data { file, offset, size }),
        1 => (number(), offset(), offset()).prop_map(|(file, offset, length)| Step::Zero { file, offset, length }),
        1 => (number(), offset()).prop_map(|(file, length)| Step::Length { file, length }),
        16 => (prop::bool::weighted(0.8), vec(change(), 0..4)).prop_map(|(last, changes)| Step::Names { last, changes }),
        1 => (1usize..20_000).prop_map(Step::State),
        1 => (any::<bool>(), any::<bool>(), number(), vec(fact(), 0..6))
            .prop_map(|(first, last, next, facts)| Step::FalseState { first, last, next, facts }),
    ]
}

/// The log of some steps, as the target reads it.
fn log(steps: Vec<Step>) -> Vec<u8> {
    let mut image = Image::default();
    let mut log = Vec::new();
    // Without a begin nothing that follows means anything; a quarter of the logs has to wait for a state, as one that was trimmed has.
    let begin = (!steps.len().is_multiple_of(4)).then_some(Step::Begin);
    for step in begin.into_iter().chain(steps) {
        let records = match step {
            Step::Begin => vec![Record::Begin { next: image.next() }],
            Step::BeginAt(next) => vec![Record::Begin { next: Number(next) }],
            Step::Create(kind, mode) => vec![Record::Create { number: image.next(), kind, mode: Mode(mode) }],
            Step::CreateAs(number, kind) => {
                vec![Record::Create { number: Number(number), kind, mode: Mode(0o700) }]
            }
            Step::Data { file, offset, size } => {
                vec![Record::Data { file: Number(file), offset, bytes: &b"ab"[..size] }]
            }
            Step::Zero { file, offset, length } => vec![Record::Zero { file: Number(file), offset, length }],
            Step::Length { file, length } => vec![Record::Length { file: Number(file), length }],
            Step::Names { last, changes } => vec![Record::Names { last, changes }],
            Step::State(record_max) => image.state(record_max),
            Step::FalseState { first, last, next, facts } => {
                vec![Record::State { first, last, next: Number(next), facts }]
            }
        };
        for record in records {
            // What is refused stays in the log all the same.
            let _ = image.fold(&record);
            let bytes = record.encode();
            log.extend((bytes.len() as u16).to_le_bytes());
            log.extend(bytes);
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_at_random(data in vec(any::<u8>(), 0..300)) {
        targets::records(&data);
    }

    #[test]
    fn plausible_records(steps in vec(step(), 0..60)) {
        targets::records(&log(steps));
    }

    #[test]
    fn plausible_records_with_wrong_bytes(
        steps in vec(step(), 1..20),
        wrong in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut log = log(steps);
        for (at, with) in wrong {
            let at = at.index(log.len());
            log[at] = with;
        }
        targets::records(&log);
    }
}
