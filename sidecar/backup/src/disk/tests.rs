use std::fs;
use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tailwind_protocol::ids::{Epoch, Generation, Lsn};
use tailwind_protocol::segment::SegmentWriter;

use super::*;
use crate::files::OsFolder;
use crate::files::testing::TestFolder;

const LOG: LogId = LogId(1);

fn identity(segment: u64) -> SegmentIdentity {
    SegmentIdentity {
        log: LOG,
        segment: SegmentId(segment),
        epoch: Epoch(2),
        generation: Generation(segment),
        size: SegmentSize::MIN,
    }
}

/// A segment of two records.
fn segment(identity: SegmentIdentity) -> (Closure, Vec<u8>) {
    let mut bytes = vec![0; identity.size.bytes() as usize];
    let (mut writer, mut end) = SegmentWriter::open(identity, Lsn(1), &mut bytes);
    for payload in [b"one".as_slice(), b"two"] {
        end += writer.append(&mut bytes[end as usize..], [payload].into_iter());
    }
    bytes.truncate(end as usize);
    (writer.closure(), bytes)
}

fn promise() -> Promise {
    Promise { log: Some(LOG), epoch: Epoch(2), ..Promise::default() }
}

struct Folder {
    _dir: tempfile::TempDir,
    disk: Disk,
}

fn folder() -> Folder {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::new(Box::new(OsFolder::open(&dir.path().join("flush")).unwrap()));
    Folder { _dir: dir, disk }
}

impl Folder {
    fn write_closed(&self, identity: SegmentIdentity) -> Closure {
        let (closure, bytes) = segment(identity);
        self.disk.write_closed(&identity, &closure, &bytes).unwrap();
        closure
    }

    fn list(&self) -> Listing {
        self.disk.list(&promise(), &[]).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        change(&mut bytes);
        fs::write(self.path(name), bytes).unwrap();
    }
}

#[test]
fn a_closed_segment_is_listed_and_read_back() {
    let folder = folder();
    let closure = folder.write_closed(identity(7));
    assert!(folder.path("segment-0000000000000007.closed").exists());
    assert_eq!(folder.list().closed, [(identity(7), closure)]);
    assert!(folder.disk.is_closed(&identity(7)));
    let bytes = folder.disk.read_closed(&identity(7), &closure).unwrap();
    assert_eq!(bytes, segment(identity(7)).1);
}

#[test]
fn an_open_segment_is_read_up_to_its_valid_end() {
    let folder = folder();
    let (closure, bytes) = segment(identity(1));
    folder.disk.write_open(&identity(1), &closure, &bytes).unwrap();
    assert_eq!(folder.disk.read_open(&identity(1)).unwrap(), bytes, "its footer is not part of it");
    // While it grows it has no footer; the scan finds the end.
    folder.disk.start_open(&identity(2), &segment(identity(2)).1).unwrap();
    assert_eq!(folder.disk.read_open(&identity(2)).unwrap(), segment(identity(2)).1);
    let mut open = folder.list().open;
    open.sort_by_key(|identity| identity.segment);
    assert_eq!(open, [identity(1), identity(2)]);
}

#[test]
fn closing_a_segment_removes_its_open_file() {
    let folder = folder();
    let (closure, bytes) = segment(identity(1));
    folder.disk.write_open(&identity(1), &closure, &bytes).unwrap();
    folder.write_closed(identity(1));
    let listing = folder.list();
    assert_eq!((listing.closed.len(), listing.open.len()), (1, 0));
}

#[test]
fn leftovers_of_a_crash_during_close_are_removed() {
    let folder = folder();
    folder.write_closed(identity(1));
    let (closure, bytes) = segment(identity(1));
    folder.disk.write_open(&identity(1), &closure, &bytes).unwrap();
    fs::write(folder.path("segment-0000000000000003.closed.tmp"), "half made").unwrap();
    let listing = folder.list();
    assert_eq!((listing.closed.len(), listing.open.len(), listing.unexpected), (1, 0, 0));
    assert!(!folder.path("segment-0000000000000001.open").exists());
    assert!(!folder.path("segment-0000000000000003.closed.tmp").exists());
}

#[test]
fn unexpected_files_are_counted_and_quarantined() {
    let folder = folder();
    folder.write_closed(identity(1));
    folder.write_closed(SegmentIdentity { log: LogId(2), ..identity(2) });
    folder.write_closed(identity(4));
    folder.change("segment-0000000000000004.closed", |bytes| *bytes.last_mut().unwrap() ^= 1);
    folder.write_closed(identity(5));
    folder.change("segment-0000000000000005.closed", |bytes| bytes[0] ^= 1);
    folder.write_closed(identity(6));
    folder.change("segment-0000000000000006.closed", |bytes| bytes.truncate(10));
    fs::copy(folder.path("segment-0000000000000001.closed"), folder.path("segment-0000000000000009.closed")).unwrap();
    fs::write(folder.path("segment-0000000000000010.closed"), "").unwrap();
    // Its generation.
    folder.write_closed(identity(11));
    folder.change("segment-0000000000000011.closed", |bytes| bytes[42] ^= 1);
    fs::write(folder.path("notes.txt"), "somebody's").unwrap();
    fs::write(folder.path("segment-1.closed"), "not a name of ours").unwrap();
    let names = || {
        let mut names: Vec<_> = fs::read_dir(folder.disk.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let listing = folder.list();
    let segments: Vec<u64> = listing.closed.iter().map(|(identity, _)| identity.segment.0).collect();
    assert_eq!(segments, [1]);
    assert_eq!(listing.unexpected, 7);
    let after = names();
    assert_eq!(after.len(), before.len(), "nothing is gone");
    assert_eq!(after.iter().filter(|name| name.to_string_lossy().ends_with(".aside")).count(), 7);
    assert_eq!(folder.list().unexpected, 0, "once");
}

#[test]
fn a_segment_with_a_corrupt_footer_is_identified_by_its_bytes() {
    let folder = folder();
    let owed = [(identity(4), folder.write_closed(identity(4)))];
    let name = "segment-0000000000000004.closed";
    let whole = fs::read(folder.path(name)).unwrap();
    folder.change(name, |bytes| *bytes.last_mut().unwrap() ^= 1);
    let listing = folder.disk.list(&promise(), &owed).unwrap();
    assert_eq!((listing.closed, listing.unexpected), (owed.to_vec(), 0));
    assert_eq!(fs::read(folder.path(name)).unwrap(), whole, "mended");
    folder.change(name, |bytes| {
        bytes[120] ^= 1;
        *bytes.last_mut().unwrap() ^= 1;
    });
    let listing = folder.disk.list(&promise(), &owed).unwrap();
    assert_eq!((listing.closed, listing.unexpected), (vec![], 1), "not by its bytes either");
}

/// A disk that fails for a while says nothing about its files.
#[test]
fn files_that_cannot_be_opened_keep_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let failing = TestFolder::open(&dir.path().join("flush"));
    let disk = Disk::new(Box::new(failing.clone()));
    let (closure, bytes) = segment(identity(4));
    let owed = [(identity(4), closure)];
    disk.write_closed(&identity(4), &closure, &bytes).unwrap();
    failing.set_unreadable(true);
    assert!(disk.list(&promise(), &owed).is_err());
    failing.set_unreadable(false);
    let listing = disk.list(&promise(), &owed).unwrap();
    assert_eq!((listing.closed, listing.unexpected), (owed.to_vec(), 0));
}

/// The next start has the file rewritten.
#[test]
fn on_a_full_disk_files_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let full = TestFolder::open(&dir.path().join("flush"));
    let disk = Disk::new(Box::new(full.clone()));
    let (closure, bytes) = segment(identity(4));
    let owed = [(identity(4), closure)];
    disk.write_closed(&identity(4), &closure, &bytes).unwrap();
    let path = disk.path().join("segment-0000000000000004.closed");
    let mut rotten = fs::read(&path).unwrap();
    let whole = rotten.clone();
    *rotten.last_mut().unwrap() ^= 1;
    fs::write(&path, &rotten).unwrap();
    let list = || {
        let listing = disk.list(&promise(), &owed).unwrap();
        assert_eq!((listing.closed, listing.open, listing.unexpected), (owed.to_vec(), vec![], 0));
    };
    full.set_full(true);
    list();
    assert_eq!(fs::read(&path).unwrap(), rotten);
    full.set_full(false);
    list();
    assert_eq!(fs::read(&path).unwrap(), whole);
    // And where the process died before it had removed the open file.
    disk.write_open(&identity(4), &closure, &bytes).unwrap();
    for is_full in [true, false] {
        full.set_full(is_full);
        list();
        assert_eq!(disk.read_open(&identity(4)).is_ok(), is_full);
    }
}

#[test]
fn conflicting_files_are_kept_aside_not_overwritten() {
    let folder = folder();
    let name = "segment-0000000000000001.closed";
    for identity in [identity(1), SegmentIdentity { epoch: Epoch(1), ..identity(1) }] {
        let before = fs::read(folder.path(name)).ok();
        let closure = folder.write_closed(identity);
        assert_eq!(folder.list().closed, [(identity, closure)]);
        if let Some(before) = before {
            let kept = folder.path(&quarantined(&super::tests::identity(1), Sealed::Closed));
            assert_eq!(fs::read(kept).unwrap(), before);
        }
    }
    fs::write(folder.path(name), "of a newer version, say").unwrap();
    folder.write_closed(identity(1));
    assert_eq!(fs::read(folder.path(&format!("{name}.aside"))).unwrap(), b"of a newer version, say");
}

#[test]
fn dropped_files_get_new_names_in_quarantine() {
    let folder = folder();
    for _ in 0..2 {
        folder.write_closed(identity(1));
        folder.disk.quarantine(SegmentId(1), LOG).unwrap();
    }
    let (closure, bytes) = segment(identity(1));
    folder.disk.write_quarantine(&identity(1), &closure, &bytes).unwrap();
    let listing = folder.list();
    assert_eq!((listing.closed.len(), listing.open.len(), listing.unexpected), (0, 0, 0));
    let mut kept: Vec<_> =
        folder.disk.folder().names().unwrap().iter().filter_map(|name| QuarantineName::parse(name)).collect();
    kept.sort_by_key(QuarantineName::to_string);
    let (closed, open) =
        (QuarantineName::new(&identity(1), Sealed::Closed), QuarantineName::new(&identity(1), Sealed::Open));
    assert_eq!(kept, [closed, QuarantineName { nth: 1, ..closed }, open]);
}

#[test]
fn files_of_another_log_are_never_deleted_or_overwritten() {
    let folder = folder();
    let foreign = SegmentIdentity { log: LogId(2), ..identity(1) };
    folder.write_closed(foreign);
    let name = "segment-0000000000000001.closed";
    let before = fs::read(folder.path(name)).unwrap();
    folder.disk.delete(&[SegmentId(1)], LOG).unwrap();
    assert_eq!(fs::read(folder.path(name)).unwrap(), before);
    folder.write_closed(identity(1));
    assert!(folder.disk.is_closed(&identity(1)));
    let aside = folder.path(&format!("{name}.of-log-{}", foreign.log));
    assert_eq!(fs::read(aside).unwrap(), before);
}

#[test]
fn reading_a_closed_segment_detects_every_damaged_byte() {
    let folder = folder();
    let closure = folder.write_closed(identity(1));
    for at in 0..closure.end.0 as usize {
        folder.change("segment-0000000000000001.closed", |bytes| bytes[at] ^= 0x10);
        assert!(matches!(folder.disk.read_closed(&identity(1), &closure), Err(ReadError::Corrupt)), "byte {at}");
        folder.change("segment-0000000000000001.closed", |bytes| bytes[at] ^= 0x10);
    }
    assert!(folder.disk.read_closed(&identity(1), &closure).is_ok());
    assert!(matches!(folder.disk.read_closed(&identity(2), &closure), Err(ReadError::Missing)));
}

/// As when a scrub has read its bytes, and a trim is faster than the look at its footer.
#[test]
fn the_footer_of_a_deleted_file_is_missing() {
    let folder = folder();
    let closure = folder.write_closed(identity(1));
    assert!(folder.disk.has_footer(SegmentId(1), &closure).unwrap());
    folder.disk.delete(&[SegmentId(1)], LOG).unwrap();
    assert!(matches!(folder.disk.has_footer(SegmentId(1), &closure), Err(ReadError::Missing)));
}

#[test]
fn delete_removes_both_files_and_is_idempotent() {
    let folder = folder();
    folder.write_closed(identity(1));
    let (closure, bytes) = segment(identity(1));
    folder.disk.write_open(&identity(1), &closure, &bytes).unwrap();
    folder.disk.delete(&[SegmentId(1)], LOG).unwrap();
    folder.disk.delete(&[SegmentId(1)], LOG).unwrap();
    let listing = folder.list();
    assert_eq!((listing.closed.len(), listing.open.len()), (0, 0));
}

/// Opening a FIFO waits for a writer: a start must not.
#[test]
fn special_files_are_unexpected_and_do_not_block() {
    let folder = folder();
    folder.write_closed(identity(1));
    for name in ["segment-0000000000000002.closed", "segment-0000000000000003.open"] {
        mknodat(CWD, folder.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    fs::create_dir(folder.path("segment-0000000000000004.closed")).unwrap();
    fs::create_dir(folder.path("segment-0000000000000005.open.tmp")).unwrap();
    let listing = folder.list();
    assert_eq!((listing.closed.len(), listing.open.len(), listing.unexpected), (1, 0, 4));
    assert!(!folder.disk.is_closed(&identity(2)));
    // What the absence of an open segment's file would hide is remembered before it goes.
    assert_eq!(listing.not_understood, [SegmentId(3)]);
    assert!(folder.path("segment-0000000000000002.closed.aside").exists());
    for _ in 0..2 {
        folder.disk.move_aside(SegmentId(3)).unwrap();
    }
    assert!(folder.path("segment-0000000000000003.open.aside").exists());
}
