use std::cell::RefCell;

use tailwind_protocol::ids::{Epoch, Generation, Lsn};
use tailwind_protocol::layout::{SEGMENT_OVERHEAD, SegmentSize};
use tailwind_protocol::segment::SegmentWriter;

use super::*;
use crate::files::testing::TestFolder;
use crate::flushed;
use crate::ledger::Ledger;

const SLOT: Slot = Slot(0);

fn identity() -> SegmentIdentity {
    SegmentIdentity {
        log: LogId(1),
        segment: SegmentId(1),
        epoch: Epoch(2),
        generation: Generation(3),
        size: SegmentSize::MIN,
    }
}

/// A segment of three appends, and where the header and each append end.
fn segment() -> (Vec<u8>, Vec<u32>) {
    let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity(), Lsn(1), &mut bytes);
    let mut ends = vec![end];
    for payload in [b"one".as_slice(), b"two", b"three"] {
        end += writer.append(&mut bytes[end as usize..], [payload].into_iter());
        ends.push(end);
    }
    (bytes, ends)
}

/// A flusher over one buffer, which the test fills past the fabric.
struct Fixture {
    flusher: Flusher,
    disk: Arc<Disk>,
    buffer: RefCell<Vec<u8>>,
    requests: u64,
    folder: TestFolder,
    _dir: tempfile::TempDir,
}

impl Buffers for RefCell<Vec<u8>> {
    fn read(&self, slot: Slot, offset: u32, out: &mut [u8]) -> io::Result<()> {
        assert_eq!(slot, SLOT);
        out.copy_from_slice(&self.borrow()[offset as usize..][..out.len()]);
        Ok(())
    }
}

impl Fixture {
    fn start() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let folder = TestFolder::open(&dir.path().join("flush"));
        let disk = Arc::new(Disk::new(Box::new(folder.clone())));
        let buffer = RefCell::new(vec![0; SegmentSize::MIN.bytes() as usize]);
        let (flushed, ..) = Flushed::open(disk.folder(), false).unwrap();
        Fixture { flusher: Flusher::new(Arc::clone(&disk), flushed), disk, buffer, requests: 0, folder, _dir: dir }
    }

    /// These bytes of the segment become visible.
    fn show(&self, range: std::ops::Range<u32>) {
        let range = range.start as usize..range.end as usize;
        self.buffer.borrow_mut()[range.clone()].copy_from_slice(&segment().0[range]);
    }

    fn ask(&mut self, end: u32) -> RequestId {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.flusher.queue(Job::Open(id, SLOT, identity(), Offset(end)));
        id
    }

    fn flush(&mut self, end: u32) -> u32 {
        let id = self.ask(end);
        match &self.flusher.work(&self.buffer)[..] {
            [Input::OpenFlushed(answered, _, result)] if *answered == id => result.clone().unwrap().0,
            other => panic!("{other:?}"),
        }
    }

    /// The file of another segment, closed while it was empty.
    fn put(&self, segment: u64) {
        let other = SegmentIdentity { segment: SegmentId(segment), ..identity() };
        let mut bytes = vec![0; SegmentSize::MIN.bytes() as usize];
        let (_, end) = SegmentWriter::open(other, Lsn(1), &mut bytes);
        let closure = scan::scan(&bytes, &other).closure;
        self.disk.write_closed(&other, &closure, &bytes[..end as usize]).unwrap();
    }

    fn trim(&mut self, segments: std::ops::RangeInclusive<u64>) {
        self.flusher.queue(Job::DeleteTrimmed(segments.map(SegmentId).collect(), LogId(1)));
    }

    /// Trims these, all at once: which are deleted, and which are not.
    fn delete(&mut self, segments: std::ops::RangeInclusive<u64>) -> (Vec<u64>, Vec<u64>) {
        self.trim(segments);
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        for input in self.flusher.work(&self.buffer) {
            match input {
                Input::Deleted(segments) => gone.extend(segments.into_iter().map(|segment| segment.0)),
                Input::NotDeleted(segments) => left.extend(segments.into_iter().map(|segment| segment.0)),
                other => panic!("{other:?}"),
            }
        }
        (gone, left)
    }

    fn files(&self) -> usize {
        self.disk.folder().names().unwrap().iter().filter(|name| name.starts_with("segment-")).count()
    }

    /// How far open segments reached, by the notes on disk.
    fn noted(&self) -> flushed::Open {
        Flushed::open(self.disk.folder(), true).unwrap().1
    }

    fn assert_on_disk(&self, end: u32) {
        assert_eq!(self.disk.read_open(&identity()).unwrap(), segment().0[..end as usize]);
    }
}

#[test]
fn bytes_not_yet_visible_wait_for_the_next_flush() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    assert_eq!(fixture.flush(ends[1]), 0, "not even the header is there");
    assert!(fixture.disk.read_open(&identity()).is_err(), "nor a file");
    fixture.show(0..ends[1]);
    assert_eq!(fixture.flush(ends[3]), ends[1]);
    fixture.assert_on_disk(ends[1]);
    // The third append is there before the second, and half of the second.
    fixture.show(ends[2]..ends[3]);
    fixture.show(ends[1]..ends[1] + 16);
    assert_eq!(fixture.flush(ends[3]), ends[1]);
    fixture.assert_on_disk(ends[1]);
    fixture.show(ends[1]..ends[2]);
    assert_eq!(fixture.flush(ends[3]), ends[3]);
    fixture.assert_on_disk(ends[3]);
}

#[test]
fn a_flush_up_to_the_middle_of_an_append_ends_before_it() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[3]);
    assert_eq!(fixture.flush(SEGMENT_OVERHEAD as u32 - 8), 0);
    assert_eq!(fixture.flush(ends[1] - 1), ends[0]);
    fixture.assert_on_disk(ends[0]);
    assert_eq!(fixture.flush(ends[2] + 8), ends[2]);
    fixture.assert_on_disk(ends[2]);
    assert_eq!(fixture.flush(ends[1]), ends[2], "what is on disk stays there");
    fixture.assert_on_disk(ends[2]);
}

#[test]
fn a_closed_segment_on_disk_satisfies_a_flush() {
    let mut fixture = Fixture::start();
    let (bytes, ends) = segment();
    fixture.show(0..ends[3]);
    assert_eq!(fixture.flush(ends[2]), ends[2]);
    let closure = scan::scan(&bytes, &identity()).closure;
    fixture.flusher.queue(Job::Closed(SLOT, identity(), closure));
    let answers = fixture.flusher.work(&fixture.buffer);
    assert!(matches!(answers[..], [Input::Flushed(_, _, FlushResult::Done)]), "{answers:?}");
    fixture.buffer.borrow_mut().fill(0);
    assert_eq!(fixture.flush(ends[3]), ends[3]);
}

#[test]
fn one_write_completes_all_flushes_of_a_segment() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[3]);
    let first = fixture.ask(ends[2]);
    fixture.flusher.queue(Job::Delete(SegmentId(9), LogId(1)));
    let second = fixture.ask(ends[1]);
    let answers = fixture.flusher.work(&fixture.buffer);
    let served = |id, answer: &Input| matches!(answer, Input::OpenFlushed(of, _, Ok(Offset(end))) if (*of, *end) == (id, ends[2]));
    assert!(served(first, &answers[0]) && served(second, &answers[1]), "{answers:?}");
    assert!(matches!(fixture.flusher.due(), Some(Job::Delete(SegmentId(9), _))));
}

#[test]
fn a_flush_waits_for_one_slice_of_a_large_trim() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[3]);
    (2..=101).for_each(|segment| fixture.put(segment));
    fixture.trim(2..=1001);
    let id = fixture.ask(ends[1]);
    let before = fixture.folder.syncs();
    let deleted = fixture.flusher.work(&fixture.buffer);
    assert!(matches!(&deleted[..], [Input::Deleted(segments)] if segments.len() == DELETED_AT_ONCE), "{deleted:?}");
    assert_eq!(fixture.files(), 100 - DELETED_AT_ONCE);
    assert_eq!(fixture.folder.syncs(), before + 1, "one for all of them");
    let answers = fixture.flusher.work(&fixture.buffer);
    assert!(matches!(&answers[..], [Input::OpenFlushed(of, _, Ok(_))] if *of == id), "{answers:?}");
    // Others that wait take turns with the deletions, which come to an end all the same.
    let (before, mut gone) = (fixture.folder.syncs(), DELETED_AT_ONCE);
    while gone < 1000 {
        fixture.ask(ends[1]);
        for input in fixture.flusher.work(&fixture.buffer) {
            gone += if let Input::Deleted(segments) = input { segments.len() } else { 0 };
        }
    }
    assert_eq!(fixture.files(), 1, "what is flushed is there");
    assert_eq!(fixture.folder.syncs(), before + (100 - DELETED_AT_ONCE).div_ceil(DELETED_AT_ONCE));
}

#[test]
fn jobs_for_one_segment_keep_their_order_around_a_trim() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[3]);
    let closure = scan::scan(&segment().0, &identity()).closure;
    // The first slice of many has its turn before the job, which must wait for the last: it is for the same segment.
    fixture.flusher.queue(Job::DeleteTrimmed((1..=40).rev().map(SegmentId).collect(), LogId(1)));
    fixture.flusher.queue(Job::Closed(SLOT, identity(), closure));
    for _ in 0..3 {
        assert!(matches!(fixture.flusher.work(&fixture.buffer)[..], [Input::Deleted(_)]));
    }
    // And what is trimmed while it waits for its flush is deleted after that.
    fixture.trim(1..=20);
    let mut order = Vec::new();
    while fixture.flusher.due().is_some() {
        order.extend(fixture.flusher.work(&fixture.buffer));
    }
    let written = order.iter().position(|input| matches!(input, Input::Flushed(_, _, FlushResult::Done)));
    let gone = |input: &Input| matches!(input, Input::Deleted(segments) if segments.contains(&SegmentId(1)));
    assert!(written.is_some() && written < order.iter().position(gone), "{order:?}");
    assert_eq!(fixture.files(), 0);
}

#[test]
fn closed_files_go_even_if_notes_cannot_be_written() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[1]);
    fixture.flush(ends[1]);
    (2..=3).for_each(|segment| fixture.put(segment));
    fixture.folder.set_unwritable(true);
    assert_eq!(fixture.delete(1..=3), (vec![2, 3], vec![1]));
    assert_eq!(fixture.delete(1..=1), (vec![], vec![1]), "its note is still on disk");
    assert_eq!(Flushed::open(fixture.disk.folder(), true).unwrap().1, [(identity(), Offset(ends[1]))]);
    assert_eq!(fixture.files(), 1);
    fixture.folder.set_unwritable(false);
    assert_eq!(fixture.delete(1..=1), (vec![1], vec![]));
    assert_eq!(fixture.files(), 0);
}

#[test]
fn a_file_that_cannot_be_read_does_not_count_as_deleted() {
    let mut fixture = Fixture::start();
    (2..=3).for_each(|segment| fixture.put(segment));
    fixture.folder.set_unreadable(true);
    assert_eq!(fixture.delete(2..=3), (vec![], vec![2, 3]));
    fixture.folder.set_unreadable(false);
    assert_eq!(fixture.delete(2..=3), (vec![2, 3], vec![]));
    assert_eq!(fixture.files(), 0);
}

#[test]
fn notes_that_cannot_be_written_are_retried() {
    let mut fixture = Fixture::start();
    fixture.flusher.flushed.note(&identity(), Offset(72));
    fixture.folder.set_unwritable(true);
    assert!(!fixture.flusher.rest() && fixture.flusher.is_restless());
    fixture.folder.set_unwritable(false);
    assert!(fixture.flusher.rest() && !fixture.flusher.is_restless());
}

/// Renamed, and the name was never brought to disk: after a loss of power only the open file is there.
#[test]
fn a_closed_file_counts_only_once_its_name_is_durable() {
    let mut fixture = Fixture::start();
    let (bytes, ends) = segment();
    fixture.show(0..ends[3]);
    assert_eq!(fixture.flush(ends[2]), ends[2]);
    let closure = scan::scan(&bytes, &identity()).closure;
    fixture.disk.write_closed(&identity(), &closure, &bytes[..closure.end.0 as usize]).unwrap();
    fixture.flusher.tried(&identity(), Err(io::Error::other("the folder cannot be synced")));
    fixture.flusher.files.clear();
    assert_eq!(fixture.flush(ends[3]), ends[3]);
    fixture.assert_on_disk(ends[3]);
}

#[test]
fn a_file_longer_than_its_corrupt_buffer_is_kept() {
    let mut fixture = Fixture::start();
    let ends = segment().1;
    fixture.show(0..ends[3]);
    assert_eq!(fixture.flush(ends[3]), ends[3]);
    fixture.buffer.borrow_mut()[ends[1] as usize] ^= 1;
    let rotten = scan::scan(&fixture.buffer.borrow(), &identity()).closure;
    assert_eq!(rotten.end, Offset(ends[1]));
    // Recreated after a failure, or when the process ends.
    fixture.flusher.files.clear();
    fixture.ask(ends[3]);
    let answers = fixture.flusher.work(&fixture.buffer);
    assert!(
        matches!(&answers[..], [Input::OpenFlushed(_, _, Err(why))] if why.contains("its file up to")),
        "{answers:?}"
    );
    for closure in [rotten, Closure::default()] {
        let tail = Tail { closure, acked: Offset(ends[2]) };
        fixture.flusher.flush_last(&fixture.buffer, SLOT, &identity(), &tail).unwrap();
        fixture.assert_on_disk(ends[3]);
        assert_eq!(fixture.noted(), [(identity(), Offset(ends[3]))]);
    }
}

#[test]
fn a_flush_is_recorded_before_its_reply() {
    let (mut fixture, ends) = (Fixture::start(), segment().1);
    for end in [ends[0], ends[1], ends[3]] {
        fixture.show(0..end);
        fixture.flush(end);
        assert_eq!(fixture.noted(), [(identity(), Offset(end))]);
    }
    assert!(!fixture.flusher.is_restless());
}

#[test]
fn notes_older_than_the_ledger_stay_until_the_doubt_is_recorded() {
    let fixture = Fixture::start();
    let folder = fixture.disk.folder();
    let (mut flushed, ..) = Flushed::open(folder, true).unwrap();
    flushed.newest().recorded(57);
    flushed.note(&identity(), Offset(72));
    flushed.write().unwrap();
    assert_eq!(Flushed::open(folder, true).unwrap().1, [], "older notes are evidence");
    flushed.newest().catch_up();
    flushed.write().unwrap();
    flushed.note(&identity(), Offset(144));
    flushed.write().unwrap();
    let (found, notes, _) = Flushed::open(folder, true).unwrap();
    assert_eq!((found.newest().sequence(), notes), (59, vec![(identity(), Offset(144))]));
    // Whichever sequence comes next, the newest notes are not written over.
    flushed.newest().recorded(70);
    flushed.newest().catch_up();
    flushed.write().unwrap();
    let (found, notes, _) = Flushed::open(folder, true).unwrap();
    assert_eq!((found.newest().sequence(), notes), (71, vec![(identity(), Offset(144))]));
    let path = folder.path().join(crate::flushed::FLUSHED);
    let mut bytes = std::fs::read(&path).unwrap();
    let newest = bytes.chunks(4096).position(|block| block[16] == 71).unwrap();
    bytes[newest * 4096 + 100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (found, notes, _) = Flushed::open(folder, true).unwrap();
    assert_eq!((found.newest().sequence(), notes), (59, vec![(identity(), Offset(144))]));
}

/// The next process reads them from the cache of the kernel, and nobody knows whether they are on disk.
#[test]
fn notes_whose_sync_failed_are_written_again() {
    let fixture = Fixture::start();
    let folder = fixture.disk.folder();
    let (mut flushed, ..) = Flushed::open(folder, true).unwrap();
    flushed.note(&identity(), Offset(72));
    fixture.folder.set_unsyncable(true);
    flushed.write().unwrap_err();
    fixture.folder.set_unsyncable(false);
    let (mut flushed, notes, _) = Flushed::open(folder, true).unwrap();
    assert_eq!(notes, [(identity(), Offset(72))]);
    let (sequence, syncs) = (flushed.newest().sequence(), fixture.folder.file_syncs());
    flushed.note(&identity(), Offset(72));
    flushed.write().unwrap();
    assert_eq!(fixture.folder.file_syncs(), syncs + 1);
    flushed.write().unwrap();
    assert_eq!(fixture.folder.file_syncs(), syncs + 1, "once is enough");
    let (found, notes, _) = Flushed::open(folder, true).unwrap();
    assert_eq!((found.newest().sequence(), notes), (sequence + 1, vec![(identity(), Offset(72))]));
}

#[test]
fn an_empty_open_segment_is_remembered() {
    let mut fixture = Fixture::start();
    fixture.flusher.flush_last(&fixture.buffer, SLOT, &identity(), &Tail::default()).unwrap();
    let (_, notes, doubts) = Flushed::open(fixture.disk.folder(), true).unwrap();
    assert_eq!((notes, doubts), (vec![(identity(), Offset(0))], vec![]));
}

/// Only what is sound comes to disk: the rest, which proves it, is in memory alone.
#[test]
fn how_far_a_damaged_segment_reached_is_remembered() {
    for sound in [0, 1] {
        let (mut fixture, ends) = (Fixture::start(), segment().1);
        fixture.show(0..ends[3]);
        let damaged = [27, ends[1] as usize][sound];
        fixture.buffer.borrow_mut()[damaged] ^= 1;
        let closure = scan::scan(&fixture.buffer.borrow(), &identity()).closure;
        let tail = Tail { closure, acked: Offset(ends[2]) };
        assert_eq!(closure.end, Offset([0, ends[1]][sound]));
        fixture.flusher.flush_last(&fixture.buffer, SLOT, &identity(), &tail).unwrap();
        assert_eq!(fixture.noted(), [(identity(), tail.acked)]);
    }
}

#[test]
fn a_new_ledger_entry_is_recorded() {
    let mut fixture = Fixture::start();
    let (flushed, ..) = Flushed::open(fixture.disk.folder(), true).unwrap();
    let (mut ledger, _) = Ledger::open(fixture.disk.folder(), false, flushed.entries(), flushed.newest()).unwrap();
    fixture.flusher = Flusher::new(Arc::clone(&fixture.disk), flushed);
    fixture.flusher.rest();
    assert!(!fixture.flusher.is_restless());
    ledger.owe(fixture.disk.folder(), &[(identity(), Closure::default())]).unwrap();
    assert!(fixture.flusher.is_restless());
    fixture.flusher.rest();
    assert!(!fixture.flusher.is_restless());
    let (flushed, ..) = Flushed::open(fixture.disk.folder(), true).unwrap();
    assert_eq!(flushed.entries().count(), 1);
}
