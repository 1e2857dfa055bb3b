//! A primary that was stopped and deposed while requests waited in its sockets: it must not say where the log ends.

use std::thread;

use rustix::process::Signal;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, FollowEvent};
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::group::Process;
use tailwind_e2e::processes::steps::{OUTAGE, append};
use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::ErrorCode;

/// The fabric plays no part in these.
const FABRIC: &str = "shm";
/// Where the log ended when the primary was stopped.
const KNOWN: u64 = 5;
/// And where it ends when it resumes.
const NOW: u64 = 25;

/// What a request asks, and what of its answer is false; `None` if nothing is.
type Question = (&'static str, fn(&mut Client) -> Option<String>);

const QUESTIONS: [Question; 9] = [
    ("follow from the next", |client| false_follow(client, NOW + 1)),
    ("follow from what was the next", |client| false_follow(client, KNOWN + 1)),
    ("read from the next", |client| false_read(client, NOW + 1, false)),
    ("read anywhere from the next", |client| false_read(client, NOW + 1, true)),
    ("trim up to the next", |client| client.trim(Lsn(NOW + 1)).err().as_ref().and_then(beyond_end)),
    ("read all", |client| false_read(client, 1, false)),
    ("barrier", |client| client.barrier().ok().map(|passed| format!("passed in epoch {}", passed.epoch))),
    ("position", |client| too_early(client.position().ok()?.last)),
    ("sync", |client| too_early(client.sync().ok()?)),
];

/// The first event that is no record. Nothing was lost, and it is not this sidecar's turn.
fn false_follow(client: &mut Client, from: u64) -> Option<String> {
    let mut follow = match client.follow(Lsn(from)) {
        Ok(follow) => follow,
        Err(error) => return beyond_end(&error),
    };
    loop {
        match follow.next_event() {
            Ok(Some(FollowEvent::Record(..))) => {}
            Ok(Some(FollowEvent::Turn { epoch, next })) => {
                return Some(format!("turn in epoch {epoch}, next is {next}"));
            }
            Ok(_) => return None,
            Err(error) => return beyond_end(&error),
        }
    }
}

/// A read that ends without an error has returned everything acknowledged.
fn false_read(client: &mut Client, from: u64, anywhere: bool) -> Option<String> {
    let records = if anywhere { client.read_anywhere(Lsn(from), 0) } else { client.read(Lsn(from), 0) };
    let mut records = match records {
        Ok(records) => records,
        Err(error) => return beyond_end(&error),
    };
    let mut last = from - 1;
    loop {
        match records.next_record() {
            Ok(Some((lsn, _))) => last = lsn.0,
            Ok(None) => return (last < NOW).then(|| format!("the log ends at LSN {last}")),
            Err(error) => return beyond_end(&error),
        }
    }
}

/// A position that acknowledged records are behind.
fn too_early(last: Lsn) -> Option<String> {
    (last.0 < NOW).then(|| format!("record {last} is the last"))
}

fn beyond_end(error: &Error) -> Option<String> {
    matches!(error, Error::Refused { code: ErrorCode::BeyondEnd, .. }).then(|| error.to_string())
}

#[test]
fn a_deposed_primary_says_nothing_of_the_logs_end() {
    let mut test = TestContext::start();
    let mut setup = test.setup_with_default_timeouts(FABRIC).unwrap();
    // Clients must have been welcomed before it is stopped.
    setup.sidecar_options.push(("--rings", "0".into()));
    for _ in 0..rounds(3) {
        let group = test.start_group(setup.clone()).unwrap();
        let old = group.wait_for_primary().unwrap();
        let (new, input) = (1 - old, test.next_input());
        append(&mut group.client(old, true).unwrap(), &input, 0, KNOWN).unwrap();
        let clients = QUESTIONS.map(|_| group.client(old, true).unwrap());
        group.freeze(Process::Sidecar(old)).unwrap();
        group.wait("the standby to take over", |group| group.role(new) == "primary").unwrap();
        append(&mut group.client(new, true).unwrap(), &input, KNOWN, NOW - KNOWN).unwrap();
        let asked: Vec<_> = QUESTIONS
            .into_iter()
            .zip(clients)
            .map(|((what, ask), mut client)| (what, thread::spawn(move || ask(&mut client))))
            .collect();
        // What they ask is in its sockets, or comes right after.
        thread::yield_now();
        group.signal(Process::Sidecar(old), Signal::CONT).unwrap();
        for (what, answer) in asked {
            assert_eq!(answer.join().unwrap(), None, "{what}");
        }
        group.check_logs(&OUTAGE).unwrap();
    }
}
