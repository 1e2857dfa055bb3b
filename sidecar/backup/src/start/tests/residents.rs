//! Residents on a disk and through restarts: reads need no file, and a resident never stands for one.

use tailwind_protocol::backup::Place;
use tailwind_protocol::rpc::FetchRequest;

use super::*;
use crate::disk::ReadError;
use crate::fetch::{Unchecked, fetch, scrub};

const RESIDENTS: u32 = 2;
const KERNEL: &str = "a boot";

fn closed(segment: u64) -> String {
    format!("segment-{segment:016}.closed")
}

impl Process {
    fn start_here(folder: &Path, pool: Pool) -> Process {
        Process::start_resident(folder, pool, KERNEL, BUFFERS, RESIDENTS)
    }

    fn write_segment(&mut self, segment: u64) -> (SegmentIdentity, Closure) {
        let identity = self.open(segment);
        self.flush(identity, 20);
        self.close(identity, 20);
        (identity, super::segment(identity, 20).1)
    }

    fn place(&mut self, (identity, closure): (SegmentIdentity, Closure)) -> Place {
        let group = "g".parse().unwrap();
        match self.ask(Request::Fetch(FetchRequest { group, identity, closure, check: true, range: None })) {
            Reply::Fetch(place, ..) => place,
            other => panic!("{other:?}"),
        }
    }

    fn resident(&self) -> u64 {
        self.daemon.machine().counts().resident
    }

    fn load_next(&mut self) -> SegmentId {
        let (identity, closure) = self.daemon.machine().loadable().expect("something to load");
        let bytes = self.daemon.disk().read_closed(&identity, &closure).unwrap();
        self.daemon.load(identity, closure, bytes);
        self.work();
        identity.segment
    }
}

/// A backup that has written segments 1 to 3, and keeps two of them in memory.
fn backup(folder: &Path) -> (Process, [(SegmentIdentity, Closure); 3]) {
    let mut process = Process::start_here(folder, Pool::default());
    process.fence(1);
    let written = [1, 2, 3].map(|segment| process.write_segment(segment));
    (process, written)
}

#[test]
fn a_resident_is_read_without_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, [oldest, _, newest]) = backup(folder.path());
    assert_eq!((process.place(oldest), process.resident()), (Place::Disk, 2));
    let (place, (identity, closure)) = (process.place(newest), newest);
    assert!(matches!(place, Place::Both(_)), "{place:?}");
    // Nothing is read from disk: there is nothing to read.
    fs::remove_file(folder.path().join(closed(3))).unwrap();
    let disk = Arc::clone(process.daemon.disk());
    let bytes = segment(identity, 20).0;
    assert_eq!(fetch(&disk, &process.pool, place, &identity, &closure).unwrap(), bytes);
    let unchecked = Unchecked::open(&disk, place, &identity, &closure).unwrap();
    let mut read = vec![0; unchecked.len() as usize];
    unchecked.read(&process.pool, 0, &mut read).unwrap();
    assert_eq!(read, bytes);
    // What looks for rot looks there all the same.
    assert!(matches!(scrub(&disk, &process.pool, place, &identity, &closure), Err(ReadError::Missing)));
}

#[test]
fn a_resident_that_rots_is_read_from_disk_again() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, [.., newest]) = backup(folder.path());
    let (identity, closure) = newest;
    let place @ Place::Both(slot) = process.place(newest) else { panic!("a resident") };
    if let Some(memory) = &mut locked(&process.pool.slots)[slot.0 as usize] {
        memory[closure.end.0 as usize - 3] ^= 1;
    }
    let disk = Arc::clone(process.daemon.disk());
    assert!(matches!(fetch(&disk, &process.pool, place, &identity, &closure), Err(ReadError::Corrupt)));
    process.daemon.tell(Input::FoundCorrupt(identity, place));
    process.work();
    assert_eq!((process.place(newest), process.resident(), process.damage()), (Place::Disk, 1, Vec::new()));
    assert_eq!(process.load_next(), SegmentId(3));
    let place = process.place(newest);
    assert!(fetch(&disk, &process.pool, place, &identity, &closure).is_ok() && place != Place::Disk, "{place:?}");
    assert_eq!(process.daemon.tallies.resident_loads, 1);
}

/// A reader takes its time over an unchecked read; the slot is lent in the meantime.
#[test]
fn a_read_goes_on_in_the_file_when_the_slot_is_lent() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, [_, oldest, _]) = backup(folder.path());
    let (identity, closure) = oldest;
    let place = process.place(oldest);
    let disk = Arc::clone(process.daemon.disk());
    let unchecked = Unchecked::open(&disk, place, &identity, &closure).unwrap();
    let (bytes, half) = (segment(identity, 20).0, closure.end.0 / 2);
    let mut read = vec![0; bytes.len()];
    unchecked.read(&process.pool, 0, &mut read[..half as usize]).unwrap();
    // Two of four buffers are free, then the oldest resident's is next.
    for segment in [4, 5, 6] {
        process.open(segment);
    }
    assert_eq!((process.place(oldest), process.resident()), (Place::Disk, 1));
    unchecked.read(&process.pool, half, &mut read[half as usize..]).unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn residents_survive_a_restart_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let (process, [_, middle, newest]) = backup(folder.path());
    let mut process = Process::start_here(folder.path(), process.end());
    assert_eq!((process.resident(), process.damage()), (2, Vec::new()));
    assert!([middle, newest].map(|copy| process.place(copy)).iter().all(|place| matches!(place, Place::Both(_))));
    // Without the option every slot is free again.
    let process = Process::start(folder.path(), process.end(), KERNEL);
    assert_eq!((process.resident(), process.damage()), (0, Vec::new()));
    assert!(locked(&process.pool.slots).iter().all(Option::is_none));
}

#[test]
fn a_resident_does_not_stand_for_a_lost_file() {
    let folder = tempfile::tempdir().unwrap();
    let (process, _) = backup(folder.path());
    fs::remove_file(folder.path().join(closed(3))).unwrap();
    let process = Process::start_here(folder.path(), process.end());
    assert_eq!((process.resident(), process.damage().len()), (1, 1), "{:?}", process.damage());
}

#[test]
fn a_resident_without_memory_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, [.., newest]) = backup(folder.path());
    let Place::Both(slot) = process.place(newest) else { panic!("a resident") };
    let pool = process.end();
    locked(&pool.slots)[slot.0 as usize] = None;
    let mut process = Process::start_here(folder.path(), pool);
    assert_eq!((process.resident(), process.damage()), (1, Vec::new()));
    assert_eq!(process.load_next(), SegmentId(3), "the newest first");
    assert!(process.daemon.machine().loadable().is_none(), "there are as many as may be");
}

/// The power goes: the disk has everything, and memory is filled from there.
#[test]
fn residents_are_loaded_after_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let (process, _) = backup(folder.path());
    drop(process);
    let mut process = Process::start_resident(folder.path(), Pool::default(), "another boot", BUFFERS, RESIDENTS);
    assert_eq!(process.resident(), 0);
    assert_eq!([process.load_next(), process.load_next()], [SegmentId(3), SegmentId(2)]);
    assert!(process.daemon.machine().loadable().is_none());
}

/// The buffer of an open segment is lost, but not its file: it needs one, and there is none but a resident's.
#[test]
fn an_open_segment_takes_a_residents_buffer_at_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let (mut process, [_, oldest, newest]) = backup(folder.path());
    let open = [4, 5].map(|segment| process.open(segment));
    open.iter().for_each(|identity| process.flush(*identity, 1));
    let slot = (0..BUFFERS).map(Slot).find(|slot| process.daemon.segment_in(*slot) == Some(SegmentId(4))).unwrap();
    let pool = process.end();
    // As if the process had died between the end of the lending and that of the row: the slot is free, the file is there.
    SlotTable::open(Box::new(TableFile(Arc::clone(&pool.table))), Path::new("pool")).unwrap().save(slot, None).unwrap();
    let blocked = SlotRow { identity: identity(9, 1), purpose: Purpose::Install, lender: Epoch(1), closed: None };
    SlotTable::open(Box::new(TableFile(Arc::clone(&pool.table))), Path::new("pool"))
        .unwrap()
        .save(slot, Some(&blocked))
        .unwrap();
    let mut process = Process::start_here(folder.path(), pool);
    assert_eq!((process.resident(), process.damage()), (1, Vec::new()));
    assert_eq!((process.place(oldest), process.place(newest) == Place::Disk), (Place::Disk, false));
    let inventory = process.fence(2);
    assert_eq!(inventory.copies.iter().map(|copy| copy.identity.segment.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}
