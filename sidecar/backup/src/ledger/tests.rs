use std::fs;
use std::path::PathBuf;

use super::*;
use crate::files::testing::TestFolder;

fn segment(number: u64) -> (SegmentIdentity, Closure) {
    let identity = SegmentIdentity {
        log: LogId(7),
        segment: SegmentId(number),
        epoch: Epoch(2),
        generation: Generation(number * 3),
        size: SegmentSize::MIN,
    };
    let closure = Closure { first: Lsn(number * 10), last: Lsn(number * 10 + 9), end: Offset(8000), chain: Chain(5) };
    (identity, closure)
}

struct Fixture {
    _dir: tempfile::TempDir,
    folder: TestFolder,
    path: PathBuf,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flush");
    Fixture { folder: TestFolder::open(&path), path: path.join(LEDGER), _dir: dir }
}

impl Fixture {
    fn open(&self) -> Ledger {
        Ledger::open(&self.folder, false, Entries::default(), Newest::default()).unwrap().0
    }

    /// What a process finds that expects a ledger.
    fn read(&self) -> LedgerContents {
        self.read_with(0)
    }

    /// What it finds where so many entries are noted.
    fn read_with(&self, noted: u64) -> LedgerContents {
        Ledger::open(&self.folder, true, Entries::new(noted), Newest::default()).unwrap().1
    }

    fn owes(&self, segments: &[u64]) {
        let contents = self.read();
        let expected: Vec<_> = segments.iter().map(|number| segment(*number)).collect();
        assert_eq!((contents.owed, contents.doubts), (expected, vec![]));
    }
}

#[test]
fn owed_segments_are_read_back_until_settled() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=6 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
    }
    fixture.owes(&[1, 2, 3, 4, 5, 6]);
    ledger.settle(&fixture.folder, &[SegmentId(2), SegmentId(9), SegmentId(4)]).unwrap();
    fixture.owes(&[1, 3, 5, 6]);
    let (identity, closure) = segment(3);
    let longer = Closure { last: Lsn(40), ..closure };
    ledger.owe(&fixture.folder, &[(identity, longer)]).unwrap();
    assert_eq!(fixture.read().owed[1], (identity, longer), "the last word counts");
    ledger.clear(&fixture.folder).unwrap();
    fixture.owes(&[]);
}

#[test]
fn an_open_segment_has_a_file_until_it_is_owed_or_settled() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=4 {
        ledger.record_open(&fixture.folder, &segment(number).0, Offset(72)).unwrap();
    }
    // Said once, and of what is owed already nothing less is said.
    ledger.owe(&fixture.folder, &[segment(5)]).unwrap();
    let entries = ledger.entries.count();
    ledger.record_open(&fixture.folder, &segment(4).0, Offset(800)).unwrap();
    ledger.record_open(&fixture.folder, &segment(5).0, Offset(800)).unwrap();
    assert_eq!(ledger.entries.count(), entries);
    ledger.owe(&fixture.folder, &[segment(1)]).unwrap();
    ledger.settle(&fixture.folder, &[SegmentId(2)]).unwrap();
    let reopened = SegmentIdentity { epoch: Epoch(3), ..segment(3).0 };
    ledger.record_open(&fixture.folder, &reopened, Offset(144)).unwrap();
    let open = [(reopened, Offset(144)), (segment(4).0, Offset(72))];
    let contents = fixture.read();
    assert_eq!((contents.owed, contents.doubts), (vec![segment(1), segment(5)], vec![]));
    assert_eq!(contents.open, open);
    // So does a file that is rewritten.
    assert!(fixture.open().rewrite(&fixture.folder).unwrap());
    assert_eq!(fixture.read().open, open);
    fixture.open().clear(&fixture.folder).unwrap();
    let contents = fixture.read();
    assert!(contents.owed.is_empty() && contents.open.is_empty(), "{contents:?}");
}

#[test]
fn older_notes_are_reported_until_the_doubt_is_recorded_elsewhere() {
    let fixture = fixture();
    let notes = Newest::new(5);
    let open = |notes: &Newest| Ledger::open(&fixture.folder, false, Entries::default(), notes.clone()).unwrap();
    let mut ledger = open(&notes).0;
    ledger.owe(&fixture.folder, &[segment(1)]).unwrap();
    assert!(!open(&Newest::new(5)).1.notes_are_older && !open(&Newest::new(6)).1.notes_are_older);
    for _ in 0..2 {
        assert!(open(&Newest::new(4)).1.notes_are_older);
    }
    let notes = Newest::new(3);
    let mut ledger = open(&notes).0;
    ledger.owe(&fixture.folder, &[segment(2)]).unwrap();
    assert!(open(&Newest::new(4)).1.notes_are_older, "what is recorded since hides nothing");
    assert!(notes.is_behind());
    ledger.mend(&fixture.folder).unwrap();
    assert!(!notes.is_behind());
    assert_eq!(notes.sequence(), 5, "the next notes are newer than those that are gone");
}

/// A trim makes room on a full disk, so it must not need any.
#[test]
fn on_a_full_disk_the_ledger_goes_on_in_its_space() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    let all: Vec<_> = (1..=60).map(segment).collect();
    ledger.owe(&fixture.folder, &all[..50]).unwrap();
    fixture.folder.set_full(true);
    let gone: Vec<_> = (1..=40).map(SegmentId).collect();
    ledger.settle(&fixture.folder, &gone).unwrap();
    fixture.owes(&(41..=50).collect::<Vec<_>>());
    ledger.owe(&fixture.folder, &all[20..60]).unwrap();
    fixture.owes(&(21..=60).collect::<Vec<_>>());
    let names = fixture.folder.names().unwrap();
    assert_eq!(names.iter().filter(|name| name.starts_with(LEDGER)).count(), 1, "{names:?}");
    ledger.clear(&fixture.folder).unwrap();
    fixture.owes(&[]);
    // With room it is short again.
    fixture.folder.set_full(false);
    ledger.owe(&fixture.folder, &all[..20]).unwrap();
    assert_eq!(ledger.next, 21);
    fixture.owes(&(1..=20).collect::<Vec<_>>());
}

#[test]
fn a_damaged_ledger_on_a_full_disk_is_repaired_later() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    (1..=5).for_each(|number| ledger.owe(&fixture.folder, &[segment(number)]).unwrap());
    let mut rotten = fs::read(&fixture.path).unwrap();
    rotten[2 * ENTRY_SIZE + 50] ^= 1;
    fs::write(&fixture.path, rotten).unwrap();
    let mut ledger = fixture.open();
    fixture.folder.set_full(true);
    ledger.mend(&fixture.folder).unwrap();
    ledger.owe(&fixture.folder, &[segment(6)]).unwrap();
    let LedgerContents { owed, doubts, .. } = fixture.read();
    assert_eq!((owed.len(), doubts.len()), (5, 1), "it continues, and says what it cannot say");
    fixture.folder.set_full(false);
    ledger.mend(&fixture.folder).unwrap();
    fixture.owes(&[1, 3, 4, 5, 6]);
}

#[test]
fn golden_entry_and_header() {
    let fixture = fixture();
    let (entries, notes) = (Entries::default(), Newest::new(0x0102));
    let mut ledger = Ledger::open(&fixture.folder, false, entries, notes).unwrap().0;
    ledger.owe(&fixture.folder, &[segment(3)]).unwrap();
    ledger.record_open(&fixture.folder, &segment(4).0, Offset(72)).unwrap();
    let bytes = fs::read(&fixture.path).unwrap();
    assert_eq!(&bytes[..12], b"TWLEDGER\x02\0\0\0");
    let entry = &bytes[ENTRY_SIZE..2 * ENTRY_SIZE];
    let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    assert_eq!((entry[0], number(8), number(16), number(24)), (b'O', 0, 7, 0));
    assert_eq!((number(32), number(40), number(48)), (3, 2, 9));
    assert_eq!((number(56), number(64)), (8000 << 32 | 65536, 5));
    assert_eq!((number(72), number(80)), (30, 39));
    assert_eq!(number(88), 0x0102);
    assert!(entry[96..124].iter().all(|byte| *byte == 0));
    assert_eq!(entry[124..], crc32fast::hash(&entry[..124]).to_le_bytes());
    let entry = &bytes[2 * ENTRY_SIZE..3 * ENTRY_SIZE];
    let number = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    assert_eq!((entry[0], number(8), number(32), number(56), number(88)), (b'F', 1, 4, 72 << 32 | 65536, 0x0102));
    assert!(entry[64..88].iter().all(|byte| *byte == 0));
    assert!(bytes[3 * ENTRY_SIZE..].iter().all(|byte| *byte == 0), "zeros are the end");
}

#[test]
fn corruption_anywhere_is_detected() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=5 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
    }
    let whole = fs::read(&fixture.path).unwrap();
    // All but the last entry, which may be a write that failed.
    for bit in 0..5 * ENTRY_SIZE * 8 {
        let mut rotten = whole.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        fs::write(&fixture.path, rotten).unwrap();
        assert!(!fixture.read().doubts.is_empty(), "bit {bit}");
    }
    let mut failed = whole.clone();
    failed[5 * ENTRY_SIZE + 50] ^= 1;
    fs::write(&fixture.path, failed).unwrap();
    fixture.owes(&[1, 2, 3, 4]);
    fixture.open().owe(&fixture.folder, &[segment(5)]).unwrap();
    fixture.owes(&[1, 2, 3, 4, 5]);
    // A sector that reads as zeros, in the middle.
    let mut rotten = whole.clone();
    rotten[2 * ENTRY_SIZE..4 * ENTRY_SIZE].fill(0);
    fs::write(&fixture.path, rotten).unwrap();
    assert!(!fixture.read().doubts.is_empty());
}

#[test]
fn a_missing_or_newer_ledger_is_reported() {
    let fixture = fixture();
    fixture.open().owe(&fixture.folder, &[segment(1)]).unwrap();
    let mut newer = fs::read(&fixture.path).unwrap();
    newer[8] = 3;
    fs::write(&fixture.path, &newer).unwrap();
    assert_eq!(fixture.read().doubts.len(), 1);
    assert_eq!(fs::read(fixture.path.with_extension("unreadable")).unwrap(), newer, "nothing is written over");
    fs::remove_file(&fixture.path).unwrap();
    assert_eq!(fixture.read().doubts, ["the ledger of what is owed is gone"]);
    let (_, contents) = Ledger::open(&fixture.folder, false, Entries::default(), Newest::default()).unwrap();
    assert_eq!(contents.doubts, [""; 0], "a new backup has none");
}

/// What was noted was on disk: neither rot nor zeros at the end, nor an older ledger, go unnoticed.
#[test]
fn missing_entries_are_reported() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=5 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
    }
    assert_eq!(ledger.entries.count(), 5);
    let whole = fs::read(&fixture.path).unwrap();
    for lost in 0..=5 {
        for byte in [0, 0xee] {
            let mut shorter = whole.clone();
            shorter[(6 - lost) * ENTRY_SIZE..6 * ENTRY_SIZE].fill(byte);
            fs::write(&fixture.path, &shorter).unwrap();
            let doubts = fixture.read_with(5).doubts;
            let expected = format!("{lost} entries of the ledger of what is owed are gone or cannot be read");
            assert_eq!(doubts, if lost == 0 { vec![] } else { vec![expected] });
        }
    }
    fs::write(&fixture.path, &whole).unwrap();
    assert_eq!(fixture.read_with(3).doubts, [""; 0], "what was added since");
}

#[test]
fn the_count_continues_past_missing_entries() {
    let fixture = fixture();
    let (mut ledger, _) = Ledger::open(&fixture.folder, true, Entries::new(9), Newest::default()).unwrap();
    ledger.owe(&fixture.folder, &[segment(1)]).unwrap();
    assert_eq!(ledger.entries.count(), 10);
    assert_eq!(fixture.read_with(10).doubts, [""; 0]);
    let (mut ledger, contents) = Ledger::open(&fixture.folder, true, Entries::new(20), Newest::default()).unwrap();
    assert_eq!((contents.owed, contents.doubts.len()), (vec![segment(1)], 1));
    ledger.mend(&fixture.folder).unwrap();
    assert_eq!(ledger.entries.count(), 21);
    assert_eq!((fixture.read_with(21).owed, fixture.read_with(21).doubts), (vec![segment(1)], vec![]));
}

#[test]
fn a_ledger_rewritten_to_empty_keeps_its_count() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    let is_empty = |ledger: &Ledger| {
        let LedgerContents { owed, open, doubts, .. } = fixture.read_with(ledger.entries.count());
        assert_eq!((owed, open, doubts), (vec![], vec![], vec![]));
    };
    for number in 1..=5 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
    }
    ledger.clear(&fixture.folder).unwrap();
    assert_eq!(fixture.read_with(5).doubts, [""; 0]);
    is_empty(&ledger);
    // More than are appended.
    let all: Vec<_> = (1..=20).map(segment).collect();
    ledger.owe(&fixture.folder, &all).unwrap();
    let gone: Vec<_> = (1..=20).map(SegmentId).collect();
    ledger.settle(&fixture.folder, &gone).unwrap();
    assert_eq!(ledger.next, 2);
    is_empty(&ledger);
    // A file whose entries are gone raises a doubt until that is repaired.
    let mut cut = fs::read(&fixture.path).unwrap();
    cut[ENTRY_SIZE..].fill(0);
    fs::write(&fixture.path, cut).unwrap();
    let noted = ledger.entries.count();
    let open = || Ledger::open(&fixture.folder, true, Entries::new(noted), Newest::default()).unwrap();
    assert_eq!(open().1.doubts.len(), 1);
    let (mut ledger, contents) = open();
    assert_eq!(contents.doubts.len(), 1, "it is not repaired before the doubt is recorded");
    ledger.mend(&fixture.folder).unwrap();
    is_empty(&ledger);
    assert_eq!(fixture.read_with(noted).doubts, [""; 0]);
    // And where the whole file was gone.
    fs::remove_file(&fixture.path).unwrap();
    for _ in 0..2 {
        assert_eq!(open().1.doubts.len(), 1);
    }
    fs::remove_file(&fixture.path).unwrap();
    let (mut ledger, contents) = open();
    assert_eq!(contents.doubts.len(), 1);
    ledger.mend(&fixture.folder).unwrap();
    assert_eq!(open().1.doubts, [""; 0]);
}

#[test]
fn a_doubt_recorded_elsewhere_is_repaired() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=5 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
    }
    let mut rotten = fs::read(&fixture.path).unwrap();
    rotten[2 * ENTRY_SIZE + 40] ^= 1;
    fs::write(&fixture.path, rotten).unwrap();
    fixture.open().mend(&fixture.folder).unwrap();
    fixture.owes(&[1, 3, 4, 5]);
}

#[test]
fn the_ledger_does_not_grow_without_bound() {
    let fixture = fixture();
    let mut ledger = fixture.open();
    for number in 1..=3000 {
        ledger.owe(&fixture.folder, &[segment(number)]).unwrap();
        ledger.settle(&fixture.folder, &[SegmentId(number)]).unwrap();
    }
    ledger.owe(&fixture.folder, &(1..=40).map(segment).collect::<Vec<_>>()).unwrap();
    fixture.owes(&(1..=40).collect::<Vec<_>>());
    let bound = (REWRITE_MIN + GROWTH + SPARE) * ENTRY_SIZE as u64;
    assert!(fs::metadata(&fixture.path).unwrap().len() <= bound);
}
