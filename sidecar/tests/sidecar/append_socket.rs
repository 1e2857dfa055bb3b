//! What the append path promises to its clients, turn by turn: barriers and epochs, reads and dead clients, slots and memory.
//!
//! The path is turned by hand over real sockets and shared memory, so that every order of events is chosen, not hoped for.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::loop_harness::{Client, LoopHarness, ack};
use tailwind_protocol::board::BEATS;
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::primary::PUBLISH_INTERVAL;
use tailwind_protocol::socket::{
    Batch, ErrorCode, HELLO_HOLD, READ_ANYWHERE, Request, Response, Role, VERSION, append_header, batch_log_size,
    decode_response, encode_batch, put_batch_record,
};
use tailwind_sidecar::path::{CONNECTIONS_MAX, ClientRequest, Command, Options};

const READ: Request<'_> = Request::Read { from: 1, limit: 0, flags: 0, history: 0 };

fn append(payload: &[u8]) -> Request<'_> {
    Request::Append { payload }
}

/// An app that was welcomed in epoch 1 and missed epoch 2 must not be told that what it knows is up to date.
#[test]
fn a_barrier_has_the_epoch_of_its_connection() {
    let mut harness = LoopHarness::new();
    let mut old = harness.client();
    old.send(&[append(b"one"), Request::Barrier]);
    assert_eq!(harness.hear(&mut old), ack(1));
    assert_eq!(harness.hear(&mut old), "BarrierPassed { epoch: 1, last: 1 }");

    harness.stand_by(2);
    assert!(harness.hear(&mut old).starts_with("Role { role: Standby, epoch: 2"));
    harness.lead(3);
    assert!(harness.hear(&mut old).starts_with("Role { role: Primary, epoch: 3"));
    old.send(&[Request::Barrier]);
    let answer = harness.hear(&mut old);
    assert!(answer.starts_with("Error { code: NotPrimary, fatal: false"), "{answer}");
    assert!(answer.contains("connect again"), "{answer}");

    let mut new = harness.client();
    new.send(&[Request::Barrier]);
    assert_eq!(harness.hear(&mut new), "BarrierPassed { epoch: 3, last: 0 }");
}

/// Readers of other hosts ask for positions as often as they like. No client of this sidecar waits for a place because of that.
#[test]
fn positions_for_others_leave_room_for_barriers() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.settle();
    harness.shut.store(true, Ordering::Relaxed);
    let ask = |harness: &mut LoopHarness| -> Vec<_> {
        (0..100)
            .map(|_| {
                let (reply, position) = tokio::sync::oneshot::channel();
                harness.command(Command::TakePosition(reply));
                harness.settle();
                position
            })
            .collect()
    };
    let refused = |positions: &mut Vec<tokio::sync::oneshot::Receiver<_>>| {
        positions.retain_mut(|position| !matches!(position.try_recv(), Ok(Err(_))));
        100 - positions.len()
    };
    let mut first = ask(&mut harness);
    let full = refused(&mut first);
    assert!((1..100).contains(&full), "{full} of 100 are refused");
    drop(first);
    let mut second = ask(&mut harness);
    assert_eq!(refused(&mut second), full, "a client that is gone leaves its place to others");

    client.send(&[Request::Barrier, append(b"one")]);
    harness.settle();
    harness.shut.store(false, Ordering::Relaxed);
    let mut answers = [harness.hear(&mut client), harness.hear(&mut client)];
    answers.sort();
    assert_eq!(answers, [ack(1), "BarrierPassed { epoch: 1, last: 1 }".to_owned()]);
    harness.settle();
    assert!(second.iter_mut().all(|position| matches!(position.try_recv(), Ok(Ok(_)))));
}

/// Where each write costs a system call and a wake-up, appends wait for one that is on its way and go together.
#[test]
fn appends_are_gathered_up_to_the_channels_depth() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.settle();
    harness.depth.store(2, Ordering::Relaxed);
    harness.shut.store(true, Ordering::Relaxed);
    let before = harness.posts.load(Ordering::Relaxed);
    for payload in [b"one", b"two", b"six", b"ten"] {
        client.send(&[append(payload)]);
        harness.settle();
    }
    assert_eq!((harness.posts.load(Ordering::Relaxed) - before) / 3, 2, "to each of three backups");
    harness.shut.store(false, Ordering::Relaxed);
    for lsn in 1..=4 {
        assert_eq!(harness.hear(&mut client), ack(lsn));
    }
    assert_eq!((harness.posts.load(Ordering::Relaxed) - before) / 3, 3, "the others together");
}

/// The record that each member's board names; 0 where nothing has been written.
fn acked(harness: &LoopHarness) -> Vec<u64> {
    harness.boards().into_iter().map(|board| board.map_or(0, |(_, progress)| progress.acked.0)).collect()
}

/// Readers are told on every member's board, and never before the app.
#[test]
fn boards_show_what_is_acknowledged_and_beat() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.tell_followed(true);
    client.send(&[append(b"one"), append(b"two")]);
    assert_eq!((harness.hear(&mut client), harness.hear(&mut client)), (ack(1), ack(2)));
    harness.until("news for readers", |harness| (acked(harness) == [2, 2, 2]).then_some(()));
    let boards: Vec<_> = harness.boards().into_iter().flatten().collect();
    assert!(boards.iter().all(|board| *board == boards[0]), "the same everywhere");
    let (identity, before) = boards[0];
    assert_eq!((identity.epoch.0, before.first.0), (1, 1));
    assert!(before.end.offset <= harness.scan()[0].closure.end, "where the last append ends: marks may follow");

    harness.shut.store(true, Ordering::Relaxed);
    client.send(&[append(b"six")]);
    harness.settle();
    std::thread::sleep(PUBLISH_INTERVAL);
    harness.settle();
    assert_eq!(acked(&harness), [2, 2, 2], "written everywhere, and not confirmed");
    harness.shut.store(false, Ordering::Relaxed);
    assert_eq!(harness.hear(&mut client), ack(3));
    harness.until("news for readers", |harness| (acked(harness) == [3, 3, 3]).then_some(()));

    // Nobody appends: the beat continues, so that readers know that nothing is missing.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while harness.boards().into_iter().flatten().any(|(_, progress)| progress.beat < before.beat + BEATS) {
        assert!(std::time::Instant::now() < deadline, "{:?}", harness.boards());
        harness.settle();
    }
}

#[test]
fn boards_are_left_alone_where_nobody_looks() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    client.send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut client), ack(1));
    std::thread::sleep(PUBLISH_INTERVAL);
    harness.settle();
    assert_eq!(acked(&harness), [0; 3]);
    harness.tell_followed(true);
    harness.until("news for readers", |harness| (acked(harness) == [1; 3]).then_some(()));
    harness.tell_followed(false);
    client.send(&[append(b"two")]);
    assert_eq!(harness.hear(&mut client), ack(2));
    std::thread::sleep(PUBLISH_INTERVAL);
    harness.settle();
    assert_eq!(acked(&harness), [1; 3]);
}

/// Where a line costs the members' processors something.
#[test]
fn a_line_rides_with_the_next_append() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.lingers.store(true, Ordering::Relaxed);
    harness.tell_followed(true);
    let mut last = 0;
    while harness.ridden.load(Ordering::Relaxed) < 30 {
        last += 1;
        assert!(last < 100_000, "no line rides");
        client.send(&[append(b"record")]);
        assert_eq!(harness.hear(&mut client), ack(last));
        assert!(acked(&harness).iter().all(|acked| *acked < last), "it is for the next append");
    }
    harness.until("the last line, for which nothing comes", |harness| (acked(harness) == [last; 3]).then_some(()));
}

/// However long its ack took: no turn of `epoll` lies between the ack and the next append.
#[test]
fn an_app_that_was_answered_is_looked_at() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.shut.store(true, Ordering::Relaxed);
    client.send(&[append(b"one")]);
    harness.settle();
    for _ in 0..1000 {
        harness.path.turn().unwrap();
    }
    harness.shut.store(false, Ordering::Relaxed);
    harness.path.turn().unwrap();
    let before = harness.posts.load(Ordering::Relaxed);
    client.send(&[append(b"two")]);
    harness.path.turn().unwrap();
    assert_eq!(harness.posts.load(Ordering::Relaxed), before + 3);
    assert_eq!((harness.hear(&mut client), harness.hear(&mut client)), (ack(1), ack(2)));
}

/// The app dies with appends in flight and returns: its read must show all of them that will ever be in the log.
#[test]
fn a_read_waits_for_appends_of_a_dead_client() {
    let mut harness = LoopHarness::new();
    let mut dying = harness.client();
    harness.shut.store(true, Ordering::Relaxed);
    dying.send(&[append(b"one"), append(b"two")]);
    harness.settle();
    drop(dying);
    harness.settle();

    let mut returned = harness.client();
    returned.send(&[READ]);
    harness.settle();
    assert!(harness.handed_over().is_none(), "the read was served before the appends in flight");
    // Appends that arrive in the meantime are not waited for.
    let mut other = harness.client();
    other.send(&[append(b"three")]);
    harness.settle();
    harness.shut.store(false, Ordering::Relaxed);
    harness.until("the read", LoopHarness::handed_over);
    assert_eq!(harness.hear(&mut other), ack(3));
}

/// The dead one had the highest slot, and the reader the next one.
#[test]
fn a_read_that_waits_keeps_its_slot() {
    let mut harness = LoopHarness::new();
    let (mut reading, mut dying) = (harness.client(), harness.client());
    harness.shut.store(true, Ordering::Relaxed);
    dying.send(&[append(b"one")]);
    harness.settle();
    drop(dying);
    reading.send(&[READ]);
    // Without sleeping, the read itself finds out that the other is dead.
    harness.path.turn().unwrap();
    harness.settle();
    harness.shut.store(false, Ordering::Relaxed);
    harness.until("the read", LoopHarness::handed_over);
}

/// What the dead client's socket still holds when the read is requested never lands.
#[test]
fn unread_appends_of_a_dead_client_never_land() {
    let mut harness = LoopHarness::new();
    // Looked at before the other one in every turn.
    let mut returned = harness.client();
    let mut dying = harness.client();
    dying.send(&vec![append(b"late"); 1000]);
    drop(dying);
    returned.send(&[READ]);
    harness.until("the read", LoopHarness::handed_over);
    harness.settle();
    let mut next = harness.client();
    next.send(&[append(b"next")]);
    assert_eq!(harness.hear(&mut next), ack(1), "appends of the dead landed after the read");
}

/// It had not been accepted yet when the read was requested.
#[test]
fn appends_of_a_never_accepted_client_never_land() {
    let mut harness = LoopHarness::new();
    let mut returned = harness.client();
    let mut dying = harness.stranger();
    let hello = Request::Hello { version_min: VERSION, version_max: VERSION, flags: 0 };
    dying.send(&[hello, append(b"late")]);
    drop(dying);
    returned.send(&[READ]);
    // Without accepting, which sleeping does.
    harness.path.turn().unwrap();
    assert!(harness.handed_over().is_some());
    harness.settle();
    let mut next = harness.client();
    next.send(&[append(b"next")]);
    assert_eq!(harness.hear(&mut next), ack(1));
}

/// Nobody knows whether a dead client waits to be accepted.
#[test]
fn a_read_waits_while_clients_cannot_be_accepted() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    harness.refuse_clients();
    client.send(&[READ]);
    for _ in 0..1000 {
        harness.settle();
        assert!(harness.handed_over().is_none(), "the read was served");
    }
    client.send(&[append(b"behind it")]);
    harness.settle();
    assert_eq!(client.heard(), None);
}

/// A connection that comes back from the reader after its client has died is ignored.
#[test]
fn appends_after_a_dead_readers_stop_never_land() {
    let mut harness = LoopHarness::new();
    let mut dying = harness.client();
    dying.send(&[READ]);
    let ClientRequest::Read(detached, _) = harness.until("the read", LoopHarness::handed_over) else { unreachable!() };
    // The reader has answered the stop and gives the connection back; the append behind it is still in the socket.
    dying.send(&[append(b"late")]);
    drop(dying);
    let mut returned = harness.client();
    returned.send(&[READ]);
    harness.until("the other read", LoopHarness::handed_over);
    harness.command(Command::Adopt(detached));
    harness.settle();
    let mut next = harness.client();
    next.send(&[append(b"next")]);
    assert_eq!(harness.hear(&mut next), ack(1));
}

/// The role was lost and won again while the connection was with the reader.
#[test]
fn a_reader_with_a_stale_role_may_not_append() {
    let mut harness = LoopHarness::new();
    let mut old = harness.client();
    old.send(&[READ]);
    let ClientRequest::Read(detached, _) = harness.until("the read", LoopHarness::handed_over) else { unreachable!() };
    harness.stand_by(2);
    harness.settle();
    harness.lead(3);
    harness.command(Command::Adopt(detached));
    assert!(harness.hear(&mut old).starts_with("Role { role: Primary, epoch: 3"));
    for request in [Request::Barrier, append(b"no")] {
        old.send(&[request]);
        let answer = harness.hear(&mut old);
        assert!(answer.contains("NotPrimary") && answer.contains("has lost its role since"), "{answer}");
    }
}

fn fill_slots(harness: &mut LoopHarness) -> Vec<Client> {
    (0..CONNECTIONS_MAX).map(|_| harness.client()).collect()
}

#[test]
fn the_status_is_served_when_all_slots_are_in_use() {
    let mut harness = LoopHarness::new();
    let mut clients = fill_slots(&mut harness);
    let mut asking = harness.client();
    asking.send(&[Request::Status]);
    let question = harness.until("the question", |harness| harness.from_path.requests.try_recv().ok());
    let ClientRequest::Status(client, request) = question else { panic!("{question:?}") };
    // Clients that connect in the meantime do not push it out, however many there are.
    let silent: Vec<Client> = (0..20).map(|_| harness.stranger()).collect();
    harness.settle();
    harness.command(Command::Answer(client, request, "{}".to_owned()));
    assert_eq!(harness.hear(&mut asking), "StatusReport { json: \"{}\" }");
    // Nothing else is to be had there.
    asking.send(&[append(b"no")]);
    let refused = harness.hear(&mut asking);
    assert!(refused.starts_with("Error { code: Busy, fatal: true, retry_after_ms: 1000"), "{refused}");
    assert_eq!(harness.hear(&mut asking), "Closed");
    // Nor is there memory for a batch, whose number the refusal has.
    let mut batching = harness.client();
    batching.send_bytes(&large_batch(3 << 20)[..100]);
    harness.settle();
    let mut refused = [0; 256];
    let size = std::io::Read::read(&mut batching.stream, &mut refused).unwrap();
    let refused = decode_response(&refused[..size]).unwrap().unwrap();
    assert_eq!(refused.request, 9);
    assert!(matches!(refused.frame, Response::Error { code: ErrorCode::Busy, fatal: true, .. }), "{:?}", refused.frame);
    assert_eq!(harness.hear(&mut batching), "Closed");
    let mut holding = harness.stranger();
    holding.send(&[Request::Hello { version_min: VERSION, version_max: VERSION, flags: HELLO_HOLD }]);
    assert!(harness.hear(&mut holding).starts_with("Error { code: Busy, fatal: true"));
    // Clients that have a slot continue, and a slot that becomes free is used again.
    clients[0].send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut clients[0]), ack(1));
    clients.pop();
    drop(silent);
    harness.settle();
    let mut late = harness.client();
    late.send(&[append(b"two")]);
    assert_eq!(harness.hear(&mut late), ack(2));
}

#[test]
fn a_connection_keeps_its_slot_while_it_reads() {
    let mut harness = LoopHarness::new();
    let mut clients = fill_slots(&mut harness);
    clients[0].send(&[READ]);
    let ClientRequest::Read(detached, _) = harness.until("the read", LoopHarness::handed_over) else { unreachable!() };
    let mut late = harness.client();
    late.send(&[append(b"no")]);
    assert!(harness.hear(&mut late).starts_with("Error { code: Busy, fatal: true"));
    harness.command(Command::Adopt(detached));
    clients[0].send(&[append(b"one")]);
    assert_eq!(harness.hear(&mut clients[0]), ack(1));
    // A reader that ends gives its slot up.
    clients[0].send(&[READ]);
    let ClientRequest::Read(ended, _) = harness.until("the read", LoopHarness::handed_over) else { unreachable!() };
    harness.command(Command::Left(ended.id.unwrap()));
    harness.settle();
    let mut late = harness.client();
    late.send(&[append(b"two")]);
    assert_eq!(harness.hear(&mut late), ack(2));
}

/// A batch frame whose body is about `size` bytes.
fn large_batch(size: usize) -> Vec<u8> {
    let record = vec![7; size / 4 - 100];
    let mut bytes = Vec::new();
    encode_batch(9, [record.as_slice(); 4].into_iter(), &mut bytes);
    bytes
}

/// Sends bytes that may be more than the socket holds.
fn feed(harness: &mut LoopHarness, client: &mut Client, bytes: &[u8]) {
    let mut sent = 0;
    harness.until("the socket to take it", |_| {
        while let Ok(count) = std::io::Write::write(&mut client.stream, &bytes[sent..]) {
            sent += count;
            if sent == bytes.len() {
                return Some(());
            }
        }
        None
    });
}

/// Room for one large batch at a time, and clients that may take as long as they like unless `timeout` says otherwise.
fn tight(timeout: Duration) -> LoopHarness {
    let batch_memory = Options::batch_memory_min(SegmentSize::DEFAULT);
    LoopHarness::with(Options { batch_memory, client_timeout: timeout, ..LoopHarness::options() })
}

#[test]
fn large_batches_wait_for_memory_but_small_appends_do_not() {
    let mut harness = tight(Duration::from_secs(60));
    let batch = large_batch(3 << 20);
    let mut half = harness.client();
    feed(&mut harness, &mut half, &batch[..batch.len() - 1]);
    let mut waiting = harness.client();
    let mut fed = 0;
    // It is not read from any further, however often the path turns.
    for _ in 0..2000 {
        harness.settle();
        fed += std::io::Write::write(&mut waiting.stream, &batch[fed..]).unwrap_or(0);
    }
    assert!(fed < batch.len() * 2 / 3, "{fed} bytes were taken");
    let mut small = harness.client();
    small.send(&[append(b"small")]);
    assert_eq!(harness.hear(&mut small), ack(1));
    // The first one ends its batch: its memory goes to the second.
    half.send_bytes(&batch[batch.len() - 1..]);
    assert_eq!(harness.hear(&mut half), ack(5));
    feed(&mut harness, &mut waiting, &batch[fed..]);
    assert_eq!(harness.hear(&mut waiting), ack(9));
    // And back again, also when its owner dies with a batch half sent.
    feed(&mut harness, &mut half, &batch[..batch.len() - 1]);
    drop(half);
    feed(&mut harness, &mut waiting, &batch);
    assert_eq!(harness.hear(&mut waiting), ack(13));
}

#[test]
fn a_batch_that_stalls_halfway_is_refused() {
    let mut harness = tight(Duration::ZERO);
    let batch = large_batch(3 << 20);
    let mut half = harness.client();
    half.send_bytes(&batch[..100]);
    // Nobody waits: it may take its time.
    harness.settle();
    assert_eq!(half.heard(), None);
    let mut waiting = harness.client();
    waiting.send_bytes(&batch[..100]);
    let dismissed = harness.hear(&mut half);
    assert!(dismissed.starts_with("Error { code: Busy, fatal: true") && dismissed.contains("half sent"), "{dismissed}");
    assert_eq!(harness.hear(&mut half), "Closed");
}

/// Appends as long as there is room for acks that nobody reads. How many were taken.
fn append_unread(harness: &mut LoopHarness, client: &mut Client, most: usize) -> usize {
    let before = harness.counters.acked.load(Ordering::Relaxed);
    let taken = |harness: &LoopHarness| (harness.counters.acked.load(Ordering::Relaxed) - before) as usize;
    let mut sent = 0;
    while sent < most && taken(harness) == sent {
        let more = (most - sent).min(100);
        client.send(&vec![append(b"small"); more]);
        harness.settle();
        sent += more;
    }
    taken(harness)
}

#[test]
fn a_client_that_reads_no_acks_loses_its_batch() {
    let mut harness = tight(Duration::ZERO);
    let mut first = harness.client();
    let room = append_unread(&mut harness, &mut first, usize::MAX);
    drop(first);
    let mut deaf = harness.client();
    assert_eq!(append_unread(&mut harness, &mut deaf, room), room, "there is room for so many acks, and no more");
    let batch = large_batch(3 << 20);
    feed(&mut harness, &mut deaf, &batch);
    harness.settle();
    let taken = harness.counters.acked.load(Ordering::Relaxed);
    assert_eq!(taken, 2 * room as u64, "it waits for room for its ack, and nobody else for its memory");
    let mut waiting = harness.client();
    feed(&mut harness, &mut waiting, &batch);
    assert_eq!(harness.hear(&mut waiting), ack(taken + 4));
    let mut said = harness.hear(&mut deaf);
    while said.starts_with("Ack") {
        said = harness.hear(&mut deaf);
    }
    assert_eq!(said, "Closed", "its batch has no answer");
}

/// A ring client without room for another answer, which then does what ends its connection: it never reads that.
fn make_deaf(harness: &mut LoopHarness) -> Client {
    let mut deaf = harness.ring_client();
    // 24 bytes each, in the ring's 64 KiB.
    for _ in 0..30 {
        deaf.send(&vec![Request::Trim { below: 0 }; 100]);
        harness.settle();
    }
    deaf
}

fn break_rules(client: &mut Client) {
    std::io::Write::write_all(&mut client.stream, &append_header(9, 0)).unwrap();
}

#[test]
fn a_closing_client_does_not_wait_for_memory() {
    let mut harness = tight(Duration::from_secs(60));
    let batch = large_batch(3 << 20);
    let mut half = harness.client();
    feed(&mut harness, &mut half, &batch[..batch.len() - 1]);
    let mut deaf = make_deaf(&mut harness);
    deaf.send_bytes(&batch[..100]);
    harness.settle();
    let mut waiting = harness.client();
    waiting.send_bytes(&batch[..100]);
    harness.settle();
    break_rules(&mut deaf);
    harness.settle();
    assert_eq!(harness.counters.rings.load(Ordering::Relaxed), 1, "it is still connected");
    half.send_bytes(&batch[batch.len() - 1..]);
    assert_eq!(harness.hear(&mut half), ack(4));
    feed(&mut harness, &mut waiting, &batch[100..]);
    assert_eq!(harness.hear(&mut waiting), ack(8));
}

#[test]
fn a_client_that_does_not_read_its_end_loses_its_slot() {
    let mut harness = tight(Duration::ZERO);
    let mut deaf = make_deaf(&mut harness);
    harness.settle();
    assert_eq!(harness.counters.rings.load(Ordering::Relaxed), 1);
    break_rules(&mut deaf);
    harness.until("the end of the ring", |harness| (harness.counters.rings.load(Ordering::Relaxed) == 0).then_some(()));
}

#[test]
fn a_large_non_append_frame_is_refused_at_once() {
    let mut harness = LoopHarness::new();
    let header = |kind: u8| [&(3_u32 << 20).to_le_bytes()[..], &[kind, 0, 0, 0], &[0; 8]].concat();
    let mut stranger = harness.stranger();
    stranger.send_bytes(&header(3));
    assert!(harness.hear(&mut stranger).contains("BadFrame, fatal: true"));
    let mut client = harness.client();
    client.send_bytes(&header(5));
    assert!(harness.hear(&mut client).contains("BadFrame, fatal: true"));
}

fn hello(version_min: u16, version_max: u16, flags: u32) -> Request<'static> {
    Request::Hello { version_min, version_max, flags }
}

#[test]
fn the_newest_common_version_is_spoken() {
    let mut harness = LoopHarness::new();
    for (oldest, newest, expected) in
        [(1, 1, 1), (0, 1, 1), (1, 2, 2), (2, 2, 2), (2, 3, 3), (4, 4, 4), (2, 9, 4), (0, u16::MAX, 4)]
    {
        let mut client = harness.stranger();
        client.send(&[hello(oldest, newest, 0)]);
        let welcome = harness.hear(&mut client);
        assert!(welcome.starts_with(&format!("Welcome(Welcome {{ version: {expected}, ")), "{welcome}");
    }
    for (oldest, newest) in [(0, 0), (5, 5), (5, u16::MAX), (2, 1)] {
        let mut client = harness.stranger();
        client.send(&[hello(oldest, newest, 0)]);
        let refused = harness.hear(&mut client);
        assert!(refused.starts_with("Error { code: UnsupportedVersion, fatal: true"), "{refused}");
        assert!(refused.contains("this sidecar supports versions 1 to 4"), "{refused}");
        assert_eq!(harness.hear(&mut client), "Closed");
    }
}

/// What came with version 2 is as unknown to a connection of version 1 as to a sidecar of then.
#[test]
fn version_1_knows_nothing_of_version_2() {
    let mut harness = LoopHarness::new();
    for (request, kind) in [(Request::Follow { from: 1, history: 0 }, 10), (Request::Position, 11)] {
        for mut client in [harness.client_of(1), harness.stranger()] {
            client.send(std::slice::from_ref(&request));
            let refused = harness.hear(&mut client);
            assert!(refused.starts_with("Error { code: BadFrame, fatal: true"), "{refused}");
            assert!(refused.contains(&format!("unknown frame kind {kind}")), "{refused}");
            assert_eq!(harness.hear(&mut client), "Closed");
        }
    }
    harness.stand_by(2);
    harness.settle();
    let mut client = harness.client_of(1);
    client.send(&[Request::Read { from: 1, limit: 0, flags: READ_ANYWHERE, history: 0 }]);
    let refused = harness.hear(&mut client);
    assert!(refused.starts_with("Error { code: NotPrimary, fatal: false"), "the flag is ignored: {refused}");
}

#[test]
fn a_reader_is_a_standby_to_clients_of_version_1() {
    let mut harness = LoopHarness::new();
    let mut clients = [harness.client_of(1), harness.client_of(2)];
    // One of each is with a reader when the role changes.
    let mut reading = [harness.client_of(1), harness.client_of(2)];
    let detached = reading.each_mut().map(|client| {
        client.send(&[READ]);
        let ClientRequest::Read(detached, _) = harness.until("the read", LoopHarness::handed_over) else {
            unreachable!()
        };
        detached
    });
    harness.command(Command::Wait { role: Role::Reader, epoch: 2, primary: "b".to_owned() });
    for (client, role) in clients.iter_mut().zip(["Standby", "Reader"]) {
        let announced = harness.hear(client);
        assert!(announced.starts_with(&format!("Role {{ role: {role}, epoch: 2")), "{announced}");
    }
    for ((client, detached), role) in reading.iter_mut().zip(detached).zip(["Standby", "Reader"]) {
        harness.command(Command::Adopt(detached));
        let announced = harness.hear(client);
        assert!(announced.starts_with(&format!("Role {{ role: {role}, epoch: 2")), "{announced}");
    }
    for (version, role) in [(1, "Standby"), (2, "Reader")] {
        let mut client = harness.stranger();
        client.send(&[hello(version, version, 0)]);
        let welcome = harness.hear(&mut client);
        assert!(welcome.starts_with(&format!("Welcome(Welcome {{ version: {version}, role: {role}, ")), "{welcome}");
        // It never becomes primary: to wait for that would be in vain.
        let mut holding = harness.stranger();
        holding.send(&[hello(version, version, HELLO_HOLD)]);
        let refused = harness.hear(&mut holding);
        assert!(refused.starts_with("Error { code: NotPrimary, fatal: true"), "{refused}");
        assert!(refused.contains("is a reader and never becomes primary"), "{refused}");
    }
}

/// A client that computes by the document, to the byte.
#[test]
fn a_batch_within_the_welcome_limits_is_accepted() {
    let segment_size = SegmentSize::MIN;
    let mut harness = LoopHarness::with(Options { segment_size, ..LoopHarness::options() });
    let mut client = harness.stranger();
    client.send(&[Request::Hello { version_min: VERSION, version_max: VERSION, flags: 0 }]);
    let welcome = harness.hear(&mut client);
    for told in ["batch_size_max: 32768", "record_cost: 32", "batch_cost: 8"] {
        assert!(welcome.contains(told), "{told} is not in {welcome}");
    }
    let mut send = |lengths: &[usize]| {
        let mut records = Vec::new();
        lengths.iter().for_each(|length| put_batch_record(&mut records, &vec![7; *length]));
        client.send(&[Request::Batch(Batch::new(lengths.len() as u32, &records).unwrap())]);
        harness.hear(&mut client)
    };
    let exact = [16_384, 16_384 - 32 - 32 - 8];
    assert_eq!(batch_log_size(32, 8, exact.into_iter()), 32_768);
    assert_eq!(send(&exact), ack(2));
    assert!(send(&[16_384, exact[1] + 1]).starts_with("Error { code: TooLarge, fatal: false"));
    let empty = vec![0; (32_768 - 8) / 32];
    assert_eq!(send(&empty), ack(2 + empty.len() as u64));
    assert!(send(&vec![0; empty.len() + 1]).starts_with("Error { code: TooLarge, fatal: false"));
}

#[test]
fn refusals_say_what_to_do() {
    let mut harness = LoopHarness::new();
    let mut client = harness.client();
    let mut ask = |request: Request<'_>, words: &str| {
        client.send(&[request]);
        let answer = harness.hear(&mut client);
        assert!(answer.contains(words), "`{words}` is not in {answer}");
    };
    let read = Request::Read { from: 0, limit: 0, flags: 0, history: 0 };
    ask(read, "cannot read from LSN 0: the first record of a log is LSN 1");
    ask(Request::Trim { below: 2 }, "cannot trim below LSN 2: no record has been acknowledged yet");
    ask(append(b"one"), "lsn: 1");
    ask(Request::Trim { below: 3 }, "cannot trim below LSN 3: LSN 1 is the last acknowledged record");
    // An idle connection has had no append that was not taken: it hears what is so.
    harness.stand_by(2);
    harness.lead(3);
    harness.settle();
    client.heard_all();
    client.send(&[append(b"no")]);
    let answer = harness.hear(&mut client);
    assert!(answer.contains("this sidecar has lost its role since this connection was made"), "{answer}");
    harness.stand_by(4);
    let mut early = harness.client();
    early.send(&[append(b"no"), append(b"nor this")]);
    let answers = [harness.hear(&mut early), harness.hear(&mut early)];
    assert!(answers[0].contains("this sidecar is not primary; sidecar b is"), "{answers:?}");
    harness.lead(5);
    assert!(harness.hear(&mut early).starts_with("Role"));
    early.send(&[append(b"nor this")]);
    assert!(harness.hear(&mut early).contains("an earlier append of this connection was not taken"));
}

/// A client whose requests are answered at once takes no turn from the log either: a turn answers only some of them.
#[test]
fn a_turn_answers_some_requests_of_a_client() {
    let read = Request::Read { from: 0, limit: 0, flags: 0, history: 0 };
    for request in [read, Request::Trim { below: 1 }] {
        let mut harness = LoopHarness::new();
        let mut client = harness.client();
        client.send(&vec![request; 3000]);
        harness.path.turn().unwrap();
        let first = client.heard_all().len();
        assert!((1..200).contains(&first), "{first} in one turn");
        for nth in first..3000 {
            let answer = harness.hear(&mut client);
            assert!(answer.contains("BeyondEnd") || answer.contains("Trimmed"), "answer {nth}: {answer}");
        }
    }
}

/// A client that connects and closes in a loop takes no turn from the log: a turn accepts only a few.
#[test]
fn a_turn_accepts_a_few_connections() {
    let mut harness = LoopHarness::new();
    let accepted = |harness: &LoopHarness| *harness.counters.clients.borrow();
    let strangers: Vec<Client> = (0..CONNECTIONS_MAX).map(|_| harness.stranger()).collect();
    harness.path.sleep(Duration::ZERO).unwrap();
    let first = accepted(&harness);
    assert!((1..=20).contains(&first), "{first} in one turn");
    harness.until("all of them", |harness| (accepted(harness) == CONNECTIONS_MAX as u64).then_some(()));
    drop(strangers);
}
