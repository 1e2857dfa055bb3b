use std::fs::OpenOptions;
use std::sync::mpsc;
use std::time::Duration;

use tailwind_fabric::{Receiver as _, Writer, shm};
use tailwind_protocol::ids::{Epoch, Generation, Lsn};
use tailwind_protocol::layout::{SEGMENT_OVERHEAD, SegmentSize};
use tailwind_protocol::segment::SegmentWriter;

use super::*;

const SLOT: Slot = Slot(0);
const PATIENCE: Duration = Duration::from_secs(30);

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

/// A flusher over one lent buffer, which the test fills past the fabric.
struct Desk {
    flusher: Flusher,
    answers: mpsc::Receiver<Input>,
    disk: Arc<Disk>,
    pool: Arc<Pool>,
    requests: u64,
    _receiver: shm::ShmReceiver,
    _dirs: [tempfile::TempDir; 2],
}

impl Desk {
    fn start() -> Desk {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let pool = Pool::open(dirs[0].path().join("pool"), 1, SegmentSize::MIN.bytes()).unwrap();
        let mut receiver = shm::ShmReceiver::new(Arc::clone(&pool)).unwrap();
        receiver.lend(Writer(2), SlotId(SLOT.0)).unwrap();
        let disk = Arc::new(Disk::open(&dirs[1].path().join("flush")).unwrap());
        let (sender, answers) = mpsc::channel();
        let answer = move |input| drop(sender.send(input));
        let flusher = Flusher::start(Arc::clone(&pool), Arc::clone(&disk), answer).unwrap();
        Desk { flusher, answers, disk, pool, requests: 0, _receiver: receiver, _dirs: dirs }
    }

    /// These bytes of the segment become visible.
    fn show(&self, range: std::ops::Range<u32>) {
        let (bytes, _) = segment();
        let file = OpenOptions::new().write(true).open(self.pool.path(SlotId(SLOT.0))).unwrap();
        file.write_all_at(&bytes[range.start as usize..range.end as usize], range.start.into()).unwrap();
    }

    fn flush(&mut self, end: u32) -> u32 {
        self.requests += 1;
        let id = RequestId(self.requests);
        self.flusher.queue(Job::Open(id, SLOT, identity(), Offset(end))).unwrap();
        match self.answers.recv_timeout(PATIENCE).unwrap() {
            Input::OpenFlushed(answered, result) if answered == id => result.unwrap().0,
            other => panic!("{other:?}"),
        }
    }

    fn assert_on_disk(&self, end: u32) {
        assert_eq!(self.disk.read_open(&identity()).unwrap(), segment().0[..end as usize]);
    }
}

#[test]
fn what_is_not_visible_yet_is_not_written_and_comes_with_the_next_flush() {
    let mut desk = Desk::start();
    let ends = segment().1;
    assert_eq!(desk.flush(ends[1]), 0, "not even the header is there");
    assert!(desk.disk.read_open(&identity()).is_err(), "nor a file");
    desk.show(0..ends[1]);
    assert_eq!(desk.flush(ends[3]), ends[1]);
    desk.assert_on_disk(ends[1]);
    // The third append is there before the second, and half of the second.
    desk.show(ends[2]..ends[3]);
    desk.show(ends[1]..ends[1] + 16);
    assert_eq!(desk.flush(ends[3]), ends[1]);
    desk.assert_on_disk(ends[1]);
    desk.show(ends[1]..ends[2]);
    assert_eq!(desk.flush(ends[3]), ends[3]);
    desk.assert_on_disk(ends[3]);
}

#[test]
fn a_flush_up_to_the_middle_of_an_append_ends_before_it() {
    let mut desk = Desk::start();
    let ends = segment().1;
    desk.show(0..ends[3]);
    assert_eq!(desk.flush(SEGMENT_OVERHEAD as u32 - 8), 0);
    assert_eq!(desk.flush(ends[1] - 1), ends[0]);
    desk.assert_on_disk(ends[0]);
    assert_eq!(desk.flush(ends[2] + 8), ends[2]);
    desk.assert_on_disk(ends[2]);
    assert_eq!(desk.flush(ends[1]), ends[2], "what is on disk stays there");
    desk.assert_on_disk(ends[2]);
}

#[test]
fn a_closed_segment_on_disk_is_flushed_as_far_as_was_asked() {
    let mut desk = Desk::start();
    let (bytes, ends) = segment();
    desk.show(0..ends[3]);
    assert_eq!(desk.flush(ends[2]), ends[2]);
    let closure = scan::scan(&bytes, &identity()).closure;
    desk.flusher.queue(Job::Closed(SLOT, identity(), closure)).unwrap();
    let answer = desk.answers.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(answer, Input::Flushed(_, _, FlushResult::Done)), "{answer:?}");
    desk.pool.release(SlotId(SLOT.0)).unwrap();
    assert_eq!(desk.flush(ends[3]), ends[3]);
}
