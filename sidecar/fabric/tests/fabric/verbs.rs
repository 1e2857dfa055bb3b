//! What only `verbs` promises. Needs an RDMA device: `./check` runs it in a virtual machine that has one.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tailwind_fabric::verbs::{
    DeviceSelector, SelectedPort, Tuning, VerbsReader, VerbsReceiver, VerbsSender, list_devices, select,
};
use tailwind_fabric::{FabricError, Offer, Pool, Reader, ReaderId, Receiver, Sender, Sharer, SlotId, Writer};

/// Within this time everything that must happen has happened, on the slowest machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A receiver of one slot, on the first device, and what it goes with.
fn receiver() -> (VerbsReceiver, SelectedPort, tempfile::TempDir) {
    let port = select(&list_devices().unwrap(), &DeviceSelector::default()).unwrap();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let pool = Pool::open(dir.path().join("pool"), 1, 1 << 16).unwrap();
    (VerbsReceiver::open(pool, &port, Tuning::default()).unwrap(), port, dir)
}

/// A path that has nothing to write arms its channels every few milliseconds, and that is enough.
#[test]
#[ignore = "needs an RDMA device"]
fn an_idle_channel_detects_a_dead_peer() {
    let (mut receiver, port, _dir) = receiver();
    let sender = VerbsSender::open(&port, Tuning::default()).unwrap();
    let opening = sender.begin().unwrap();
    let answer = receiver.accept(Writer(1), &opening.offer()).unwrap().complete().unwrap();
    let mut channel = opening.connect(&answer, Ipv4Addr::LOCALHOST.into()).unwrap();

    // It lives through many signs of life, none of which is told as a completion.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        channel.arm();
        assert_eq!(channel.poll(), Ok(0));
        std::thread::sleep(Duration::from_millis(5));
    }

    drop(receiver);
    let start = Instant::now();
    while channel.poll().is_ok() {
        assert!(start.elapsed() < DEADLINE, "within {DEADLINE:?} the silence is noticed");
        channel.arm();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel looks for the way to a peer's address for a second. It does so where nobody but that reader waits.
#[test]
#[ignore = "needs an RDMA device"]
fn a_reader_that_cannot_be_reached_holds_up_nobody() {
    let (mut receiver, port, _dir) = receiver();
    let reader = VerbsReader::open(&port, Tuning::default()).unwrap();
    let opening = reader.begin(100).unwrap();
    let mut lost = serde_json::to_value(opening.offer()).unwrap();
    // There is no way to it here. A neighbour that does not answer takes a second; this fails at once, in the same call.
    lost["endpoint"]["gid"] = "2001:db8::1".into();
    let lost: Offer = serde_json::from_value(lost).unwrap();

    let admission = receiver.admit(ReaderId(1), &lost).expect("it is not connected yet");
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    receiver.revoke_below(Writer(2)).unwrap();
    let error = admission.complete().unwrap_err().to_string();
    assert!(error.contains("2001:db8::1"), "{error}");

    // The place is still its own, and another end of it can be reached.
    let answer = receiver.admit(ReaderId(1), &opening.offer()).unwrap().complete().unwrap();
    opening.connect(&answer, Ipv4Addr::LOCALHOST.into()).unwrap();

    let opening = reader.begin(100).unwrap();
    let late = receiver.admit(ReaderId(1), &opening.offer()).unwrap();
    receiver.dismiss(ReaderId(1));
    let error = late.complete().unwrap_err().to_string();
    assert!(error.contains("dismissed"), "{error}");
}

/// As of a reader, and nobody fences more slowly for it. What is completed after the revocation is not kept.
#[test]
#[ignore = "needs an RDMA device"]
fn a_writer_that_cannot_be_reached_holds_up_nobody() {
    let (mut receiver, port, _dir) = receiver();
    let sender = VerbsSender::open(&port, Tuning::default()).unwrap();
    let opening = sender.begin().unwrap();
    let mut lost = serde_json::to_value(opening.offer()).unwrap();
    lost["endpoint"]["gid"] = "2001:db8::1".into();
    let lost: Offer = serde_json::from_value(lost).unwrap();

    let unreachable = receiver.accept(Writer(1), &lost).expect("it is not connected yet");
    let late = receiver.accept(Writer(1), &opening.offer()).unwrap();
    receiver.lend(Writer(1), SlotId(0)).unwrap();
    receiver.revoke_below(Writer(2)).unwrap();
    let error = unreachable.complete().unwrap_err().to_string();
    assert!(error.contains("2001:db8::1"), "{error}");
    assert!(matches!(late.complete().unwrap_err(), FabricError::Revoked(Writer(1))));

    let answer = receiver.accept(Writer(2), &opening.offer()).unwrap().complete().unwrap();
    opening.connect(&answer, Ipv4Addr::LOCALHOST.into()).unwrap();
}
