//! The append ring between real processes: an app that dies in mid-record, a sidecar that gives no ring, one that dies.
//!
//! All other tests' Rust clients append through rings as well.

use std::fs;
use std::process::{Command, Stdio};

use tailwind_client::blocking::Client;
use tailwind_client::{Options, asynchronous};
use tailwind_e2e::context::{TestContext, rounds};
use tailwind_e2e::processes::group::Group;
use tailwind_e2e::processes::process::run_to_end;
use tailwind_e2e::processes::steps::primary;

/// The fabric plays no part.
const FABRIC: &str = "shm";

fn rings(group: &Group) -> Option<u64> {
    group.status(0)["clients"]["rings"].as_u64()
}

/// Its records are larger than the ring, so that they pass in pieces; it is killed at any moment, again and again.
#[test]
fn an_app_is_killed_in_mid_record() {
    let mut test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    setup.segment_size = "2MiB".into();
    let group = test.start_group(setup).unwrap();
    let mut honest = primary(&group).unwrap();
    assert!(honest.welcome().ring);
    let lines: Vec<String> = (0..200).map(|n| format!("{n:05}").repeat(80_000)).collect();
    let path = group.folder().join("input");
    fs::write(&path, lines.join("\n")).unwrap();
    let mut appended = 0;
    for _ in 0..rounds(10) {
        let before = group.status(0)["positions"]["acked"].as_u64().unwrap();
        let mut append = Command::new(&group.setup().program);
        append.arg("append").arg("--file").arg(&path).arg("--socket").arg(group.socket(0));
        let mut child = append.stderr(Stdio::null()).spawn().unwrap();
        let some = before + test.random.below(20) + 1;
        group.wait("some records", |group| group.status(0)["positions"]["acked"].as_u64() >= Some(some)).unwrap();
        for _ in 0..20 {
            honest.append(b"honest").unwrap();
            appended += 1;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        group.wait("the end of its ring", |group| rings(group) == Some(1)).unwrap();
    }
    let mut read = primary(&group).unwrap();
    let mut records = read.read(honest.welcome().first, 0).unwrap();
    let (mut next, mut found) = (0, 0);
    while let Some((lsn, record)) = records.next_record().unwrap() {
        if record == b"honest" {
            found += 1;
        } else {
            // Each run's records are a prefix of its input.
            next = if record == lines[0].as_bytes() { 0 } else { next };
            assert!(record == lines[next].as_bytes(), "record {lsn}, of {} bytes, is not line {next}", record.len());
            next += 1;
        }
    }
    assert_eq!(found, appended);
    group.check_logs(&[]).unwrap();
}

#[test]
fn clients_do_without_a_ring() {
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (1, 1, 1);
    setup.sidecar_options.push(("--rings", "1".into()));
    let group = test.start_group(setup).unwrap();
    let mut with = primary(&group).unwrap();
    assert!(with.welcome().ring);
    let mut without = primary(&group).unwrap();
    assert!(!without.welcome().ring, "one more than the sidecar gives");
    let options = Options { socket_only: true, ..Options::default() };
    let mut unasked = Client::connect_with(group.socket(0), &options).unwrap();
    let mut lsn = 0;
    for _ in 0..100 {
        for client in [&mut with, &mut without, &mut unasked] {
            lsn += 1;
            assert_eq!(client.append(b"record").unwrap().0, lsn);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = asynchronous::Client::connect(group.socket(0)).await.unwrap();
        assert!(!client.welcome().ring);
        assert_eq!(client.append(b"record").await.unwrap().0, lsn + 1);
    });
    let mut status = Command::new(&group.setup().program);
    let status = run_to_end(status.arg("status").arg("--socket").arg(group.socket(0))).unwrap();
    assert!(status.out.contains("; through shared memory: 1\n"), "{}", status.out);
    drop(with);
    group.wait("the end of the ring", |group| rings(group) == Some(0)).unwrap();
    assert!(primary(&group).unwrap().welcome().ring);
    group.check_logs(&[]).unwrap();
}
