//! A Redis whose sidecar is frozen does not know that another one serves: only a lease keeps it from answering reads.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::exec::LOST;
use tailwind_e2e::processes::exec_faults::Service;
use tailwind_e2e::processes::group::Process;
use tailwind_e2e::processes::redis::Servers;
use tailwind_e2e::processes::steps::wait_for_standby;

#[test]
fn no_read_is_stale_with_a_lease() {
    assert!(!answers_stale_reads(&["--lease", "2000"]));
}

/// The check bites.
#[test]
fn without_a_lease_reads_may_be_stale() {
    assert!(answers_stale_reads(&[]));
}

/// Whether the Redis that was cut off still answers reads when the other one has answered a write.
fn answers_stale_reads(options: &[&str]) -> bool {
    let test = TestContext::start();
    let group = test.group("shm").unwrap();
    let servers = Servers::start_under(&group, options).unwrap();
    let primary = group.wait_for_primary().unwrap();
    let other = 1 - primary;
    let mut redis = servers.wait_until_serves(primary).unwrap();
    wait_for_standby(&group, other, primary).unwrap();
    let ends = servers.containers.ends(primary);
    group.freeze(Process::Sidecar(primary)).unwrap();
    let over = AtomicBool::new(false);
    let stale = std::thread::scope(|scope| {
        // Until a read is not answered.
        let reader = scope.spawn(|| {
            while redis.ask(&["GET", "served"]).is_ok() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        servers.wait_until_serves(other).unwrap();
        let stale = !reader.is_finished();
        over.store(true, Ordering::Relaxed);
        stale
    });
    if !stale {
        // It has not been told of anything yet.
        assert_eq!(servers.containers.wait_for_end(primary, ends).unwrap(), LOST);
    }
    group.signal(Process::Sidecar(primary), Signal::CONT).unwrap();
    assert_eq!(servers.containers.wait_for_end(primary, ends).unwrap(), LOST);
    stale
}
