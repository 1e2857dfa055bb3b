//! The clients against a real group: Rust blocking and asynchronous, and Python; what they promise, through role changes.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Event, Lsn, Role, asynchronous};
use tailwind_e2e::context::TestContext;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::{python, resident_memory, run_to_end};
use tailwind_e2e::processes::steps::{OUTAGE, append, check_whole, primary, wait_for_standby};
use tailwind_e2e::workload::{Input, Numbered};

on_every_fabric!(
    blocking_client,
    asynchronous_client,
    python_client,
    log_larger_than_the_primarys_memory,
    tailing_while_appending,
);

/// The fabric plays no part in the others.
const FABRIC: &str = "shm";

fn blocking_client(fabric: &str) {
    let test = TestContext::start();
    let group = test.group(fabric).unwrap();
    let mut client = primary(&group).unwrap();
    assert_eq!((client.welcome().role, client.welcome().primary.as_deref()), (Role::Primary, Some("sidecar0")));
    assert_eq!(client.append(b"one").unwrap(), Lsn(1));
    assert_eq!(client.append_batch(&[&b"two"[..], b"", b"four"]).unwrap(), Lsn(4));
    for number in 5..=50_000 {
        client.submit(format!("record {number}").as_bytes()).unwrap();
    }
    assert_eq!(client.flush().unwrap(), Some(Lsn(50_000)));
    let few: Vec<_> = client.read(Lsn(1), 5).unwrap().map(|record| record.unwrap().1).collect();
    assert_eq!(few, [&b"one"[..], b"two", b"", b"four", b"record 5"]);
    let mut expected = 5;
    for record in client.read(Lsn(5), 0).unwrap() {
        assert_eq!(record.unwrap(), (Lsn(expected), format!("record {expected}").into_bytes()));
        expected += 1;
    }
    assert_eq!(expected, 50_001);
    assert_eq!(client.barrier().unwrap().last, Lsn(50_000));
    let status: Value = client.status().unwrap().parse().unwrap();
    assert_eq!((&status["role"], &status["positions"]["acked"]), (&"primary".into(), &50_000.into()));

    let large = vec![0; client.welcome().limits.record_size_max as usize + 1];
    assert!(matches!(client.append(&large), Err(Error::TooLarge { .. })));
    assert!(matches!(client.read(Lsn(50_002), 0).unwrap().next(), Some(Err(Error::Refused { .. }))));
    let first = client.trim(Lsn(40_000)).unwrap();
    assert!(first > Lsn(1) && first <= Lsn(40_000), "{first}");
    assert!(matches!(client.read(first.prev(), 0).unwrap().next(), Some(Err(Error::Trimmed { .. }))));
    assert_eq!(client.read(first, 1).unwrap().next().unwrap().unwrap().0, first);

    let mut tail = client.tail(Lsn(49_999)).unwrap();
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(49_999), b"record 49999")));
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(50_000), b"record 50000")));
    assert_eq!(tail.next_event().unwrap(), Some(Event::CaughtUp { next: Lsn(50_001) }));
    primary(&group).unwrap().append(b"new").unwrap();
    assert_eq!(tail.next_event().unwrap(), Some(Event::Record(Lsn(50_001), b"new")));
    assert_eq!(tail.next_event().unwrap(), Some(Event::CaughtUp { next: Lsn(50_002) }));
    assert_eq!(tail.stop().unwrap(), Lsn(50_002));
    assert_eq!(client.append(b"after the tail").unwrap(), Lsn(50_002));

    // Batches as large as the welcome allows, and one record more.
    let limits = client.welcome().limits;
    let mut end = 50_002;
    for record in [0_usize, 1, 100] {
        let fitting = (limits.batch_size_max as usize - 8) / (32 + record.next_multiple_of(8));
        let many = vec![vec![7; record]; fitting + 1];
        assert!(matches!(client.submit_batch(&many), Err(Error::TooLarge { .. })), "{fitting} and one more");
        end += fitting as u64;
        assert_eq!(client.append_batch(&many[1..]).unwrap(), Lsn(end));
    }
    group.check_logs(&[]).unwrap();
}

fn asynchronous_client(fabric: &str) {
    let test = TestContext::start();
    let group = test.group(fabric).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = asynchronous::Client::connect(group.socket(0)).await.unwrap();
        assert_eq!(client.append(b"one").await.unwrap(), Lsn(1));
        assert_eq!(client.append_batch(&[&b"two"[..], b"", b"four"]).await.unwrap(), Lsn(4));
        for number in 5..=50_000 {
            client.submit(format!("record {number}").as_bytes()).await.unwrap();
        }
        assert_eq!(client.flush().await.unwrap(), Some(Lsn(50_000)));
        let mut records = client.read(Lsn(5), 0).await.unwrap();
        let mut expected = 5;
        while let Some((lsn, record)) = records.next_record().await.unwrap() {
            assert_eq!((lsn, record), (Lsn(expected), format!("record {expected}").as_bytes()));
            expected += 1;
        }
        drop(records);
        assert_eq!(expected, 50_001);
        assert_eq!(client.barrier().await.unwrap().last, Lsn(50_000));
        let status: Value = client.status().await.unwrap().parse().unwrap();
        assert_eq!(status["role"], "primary");
        let first = client.trim(Lsn(40_000)).await.unwrap();
        let mut records = client.read(first.prev(), 0).await.unwrap();
        assert!(matches!(records.next_record().await, Err(Error::Trimmed { .. })));
        drop(records);

        let mut other = asynchronous::Client::connect(group.socket(0)).await.unwrap();
        let mut tail = client.tail(Lsn(50_000)).await.unwrap();
        assert_eq!(tail.next_event().await.unwrap(), Some(Event::Record(Lsn(50_000), b"record 50000")));
        assert_eq!(tail.next_event().await.unwrap(), Some(Event::CaughtUp { next: Lsn(50_001) }));
        let (event, lsn) = tokio::join!(tail.next_event(), other.append(b"new"));
        assert_eq!((event.unwrap(), lsn.unwrap()), (Some(Event::Record(Lsn(50_001), b"new")), Lsn(50_001)));
        assert_eq!(tail.stop().await.unwrap(), Lsn(50_002));
        assert_eq!(client.append(b"after the tail").await.unwrap(), Lsn(50_002));
    });
    group.check_logs(&[]).unwrap();
}

fn python_client(fabric: &str) {
    use_every_function_in_python(fabric, "blocking");
}

#[test]
fn python_asyncio_client() {
    use_every_function_in_python(FABRIC, "asyncio");
}

fn use_every_function_in_python(fabric: &str, client: &str) {
    let test = TestContext::start();
    let group = test.group(fabric).unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let mut command = python("e2e/tests/processes/client.py");
    let ended = run_to_end(command.arg(client).arg(group.socket(0)).arg(group.socket(1))).unwrap();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ok\n"), "{}", ended.errors);
    group.check_logs(&[]).unwrap();
}

/// What the Python package's README shows runs as it stands there, but for the socket.
#[test]
fn python_readme_runs() {
    let test = TestContext::start();
    let log = test.group(FABRIC).unwrap();
    primary(&log).unwrap().append(b"before").unwrap();
    let table = table_group(&test);
    let readme = include_str!("../../../sidecar/client/python/README.md");
    let blocks: Vec<_> = readme.split("```python\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let (tables, logs): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.contains("Table"));
    assert!(logs.len() >= 4 && tables.len() >= 2, "{} and {}", logs.len(), tables.len());
    for (group, blocks) in [(&log, logs), (&table, tables)] {
        for block in blocks {
            let file = group.folder().join("readme.py");
            let socket = group.socket(0);
            assert!(block.contains("/run/tailwind/default.sock"), "{block}");
            std::fs::write(&file, block.replace("/run/tailwind/default.sock", socket.to_str().unwrap())).unwrap();
            let ended = run_to_end(&mut python(&file)).unwrap();
            assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""), "{block}");
            assert!(!ended.out.is_empty(), "{block}");
        }
        group.check_logs(&[]).unwrap();
    }
}

/// A group that keeps a small table, of which the log is cleaned soon.
fn table_group(test: &TestContext) -> Group {
    let mut setup = test.setup(FABRIC).unwrap();
    setup.sidecar_options.extend([("--table", "2MiB".to_owned()), ("--table-keys", "1000".to_owned())]);
    test.start_group(setup).unwrap()
}

/// What the Python tables promise, and a local table at the primary and at a standby, while the log is written over many times.
fn use_tables_in_python(kind: &str) {
    let test = TestContext::start();
    let group = table_group(&test);
    wait_for_standby(&group, 1, 0).unwrap();
    let mut command = python("e2e/tests/processes/table.py");
    let ended = run_to_end(command.arg(kind).arg(group.socket(0)).arg(group.socket(1))).unwrap();
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ok\n"), "{}", ended.errors);
    group.check_logs(&[]).unwrap();
}

#[test]
fn python_table() {
    use_tables_in_python("blocking");
}

#[test]
fn python_asyncio_table() {
    use_tables_in_python("asyncio");
}

#[test]
fn standby_reports_the_primary_and_its_own_promotion() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    primary(&group).unwrap().append(b"before").unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let mut client = group.client(1, false).unwrap();
    for answer in [client.append(b"no").map(drop), client.barrier().map(drop), client.trim(Lsn(1)).map(drop)] {
        let Err(Error::NotPrimary { primary, message }) = answer else { panic!("{answer:?}") };
        assert_eq!(primary.as_deref(), Some("sidecar0"));
        assert!(message.contains("sidecar0"), "{message}");
    }
    let socket = group.socket(1);
    let held = thread::spawn(move || {
        let options = tailwind_client::Options { hold: true, ..Default::default() };
        Client::connect_with(socket, &options)
    });
    group.kill_sidecar(0).unwrap();
    // Recovering comes first, unless it is over before the client asks.
    let role = loop {
        let status = client.next_role().unwrap();
        if status.role != Role::Recovering && status.role != Role::Standby {
            break status;
        }
    };
    assert_eq!((role.role, role.primary.as_deref(), role.last), (Role::Primary, Some("sidecar1"), Lsn(1)));
    let mut held = held.join().unwrap().unwrap();
    assert_eq!((held.welcome().role, held.welcome().last), (Role::Primary, Lsn(1)));
    assert_eq!(held.append(b"after").unwrap(), Lsn(2));
    // After one refused append, none may be accepted.
    assert!(matches!(client.append(b"no"), Err(Error::NotPrimary { .. })));
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn connections_cannot_append_after_a_step_down() {
    let test = TestContext::start();
    // Over TCP a frozen backup confirms nothing; in shared memory it is written to all the same.
    let mut setup = test.setup("tcp").unwrap();
    (setup.backups, setup.sidecars) = (3, 1);
    // The primary waits 15 times as long for the two to return, which must end before the client's own timeout.
    setup.sidecar_options.push(("--open-timeout-ms", "500".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let mut busy = primary(&group).unwrap();
    let mut idle = primary(&group).unwrap();
    busy.append(b"one").unwrap();
    idle.append(b"two").unwrap();
    // With two of three frozen nothing is acknowledged; then they die.
    for index in 0..2 {
        group.freeze(Process::Backup(index)).unwrap();
    }
    for number in 0..100 {
        busy.submit(format!("in flight {number}").as_bytes()).unwrap();
    }
    busy.pump().unwrap();
    for index in 0..2 {
        group.kill_backup(index).unwrap();
    }
    let mut unknown = 0;
    while let Some(ack) = busy.next_ack().unwrap() {
        assert!(matches!(ack.outcome, Err(Error::UnknownOutcome { .. })), "{ack:?}");
        unknown += 1;
    }
    assert_eq!(unknown, 100);
    assert_ne!(busy.next_role().unwrap().role, Role::Primary);
    assert_ne!(idle.next_role().unwrap().role, Role::Primary);
    for index in 0..2 {
        group.start_backup(index).unwrap();
    }
    while busy.next_role().unwrap().role != Role::Primary {}
    while idle.next_role().unwrap().role != Role::Primary {}
    for client in [&mut busy, &mut idle] {
        let refused = client.append(b"late");
        assert!(matches!(refused, Err(Error::NotPrimary { .. })), "{refused:?}");
        // Nor is what the app knew before the step-down proved to be current.
        let refused = client.barrier();
        assert!(matches!(refused, Err(Error::NotPrimary { .. })), "{refused:?}");
    }
    // But they read, and see a prefix of what was submitted.
    let log: Vec<_> = idle.read(Lsn(3), 0).unwrap().map(|record| record.unwrap().1).collect();
    assert!(log.len() <= 100);
    for (number, record) in log.iter().enumerate() {
        assert_eq!(*record, format!("in flight {number}").into_bytes());
    }
    drop(busy.read(Lsn(1), 1).unwrap());
    for client in [&mut busy, &mut idle] {
        assert!(
            matches!(client.append(b"late"), Err(Error::NotPrimary { .. })),
            "a read has made the connection usable"
        );
    }
    let next = log.len() as u64 + 3;
    assert_eq!(primary(&group).unwrap().append(b"new").unwrap(), Lsn(next));
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn restarted_app_reads_all_of_its_earlier_appends() {
    let test = TestContext::start();
    // Over TCP a frozen backup confirms nothing.
    let mut setup = test.setup("tcp").unwrap();
    (setup.backups, setup.sidecars) = (3, 1);
    setup.sidecar_options.extend([("--heartbeat-silence-ms", "60000".into()), ("--open-timeout-ms", "60000".into())]);
    let group = test.start_group(setup).unwrap();
    let mut earlier = primary(&group).unwrap();
    earlier.append(b"acknowledged").unwrap();
    group.freeze(Process::Backup(0)).unwrap();
    for number in 0..100 {
        earlier.submit(format!("in flight {number}").as_bytes()).unwrap();
    }
    earlier.pump().unwrap();
    group.wait("the appends to be taken", |group| group.status(0)["appends"]["pending"].as_u64() > Some(0)).unwrap();
    drop(earlier);

    let mut returned = primary(&group).unwrap();
    let reader = thread::spawn(move || returned.read(Lsn(2), 0).unwrap().map(Result::unwrap).count() as u64);
    // The read request has arrived when so many others have their answers.
    (0..50).for_each(|_| assert_eq!(group.status(0)["role"], "primary"));
    group.signal(Process::Backup(0), Signal::CONT).unwrap();
    let read = reader.join().unwrap();
    let next = primary(&group).unwrap().append(b"new").unwrap();
    assert_eq!(next, Lsn(read + 2), "earlier appends landed after the read");
    group.check_logs(&[]).unwrap();
}

#[test]
fn each_client_keeps_its_own_order() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    const COUNT: u64 = 20_000;
    let appenders: Vec<_> = (0..2_u8)
        .map(|me| {
            let mut client = primary(&group).unwrap();
            thread::spawn(move || {
                for number in 0..COUNT {
                    client.submit(&[&[me], &number.to_le_bytes()[..]].concat()).unwrap();
                }
                let mut last = Lsn(0);
                while let Some(ack) = client.next_ack().unwrap() {
                    let lsn = ack.outcome.unwrap();
                    assert!(lsn > last, "acks out of order");
                    last = lsn;
                }
            })
        })
        .collect();
    appenders.into_iter().for_each(|appender| appender.join().unwrap());
    let mut next = [0, 0];
    for record in primary(&group).unwrap().read(Lsn(1), 0).unwrap() {
        let (_, record) = record.unwrap();
        let number = u64::from_le_bytes(record[1..].try_into().unwrap());
        assert_eq!(number, next[usize::from(record[0])]);
        next[usize::from(record[0])] += 1;
    }
    assert_eq!(next, [COUNT, COUNT]);
    group.check_logs(&[]).unwrap();
}

/// Records of one length, told apart by their number.
struct Large;

impl Input for Large {
    fn record(&self, number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(1024)
    }
}

fn log_larger_than_the_primarys_memory(fabric: &str) {
    /// Seven of these records fill a segment.
    const SEGMENTS: u64 = 600;
    /// What the primary may keep beyond what it had at the start: six segments, three more for the reader and what it
    /// fetches ahead, a client's inbox and outbox of a megabyte, an entry for each closed segment, and the allocator's slack.
    const BOUND: u64 = 16 << 20;
    let test = TestContext::start();
    let group = test.group(fabric).unwrap();
    let pid = group.pid(Process::Sidecar(0)).unwrap();
    let mut client = primary(&group).unwrap();
    let mut end = append(&mut client, &Large, 0, 70).unwrap();
    check_whole(&group, &Large, end).unwrap();
    let before = resident_memory(pid).unwrap();
    let bounded = |when: &str| {
        let grown = resident_memory(pid).unwrap().saturating_sub(before);
        assert!(grown < BOUND, "grown by {grown} bytes {when}");
    };
    for _ in 0..10 {
        end = append(&mut client, &Large, end, SEGMENTS * 7 / 10).unwrap();
        bounded("while appending");
    }
    let mut expected = 1;
    let mut records = client.read(Lsn(1), 0).unwrap();
    while let Some((lsn, record)) = records.next_record().unwrap() {
        assert_eq!(lsn, Lsn(expected));
        assert!(record == Large.record(expected), "record {expected}");
        expected += 1;
        if expected.is_multiple_of(1000) {
            bounded("while reading");
        }
    }
    assert_eq!(expected, end + 1);
    let closed = group.status(0)["segments"]["closed"].as_u64().unwrap();
    assert!(closed >= SEGMENTS, "{closed} segments are not that many");
    // On a busy machine the disks may not keep up with the appends: then members lend no buffer for a while.
    group.check_logs(&["member lost", "lends no buffer"]).unwrap();
}

fn tailing_while_appending(fabric: &str) {
    const COUNT: u64 = 20_000;
    let test = TestContext::start();
    let input = test.input();
    let group = test.group(fabric).unwrap();
    let readers: Vec<_> = (0..3).map(|_| follow(&group, input, COUNT)).collect();
    append(&mut primary(&group).unwrap(), &input, 0, COUNT).unwrap();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    check_whole(&group, &input, COUNT).unwrap();
    group.check_logs(&[]).unwrap();
}

/// A reader that tails the log from its beginning until it has seen `until`.
fn follow(group: &Group, input: Numbered, until: u64) -> thread::JoinHandle<()> {
    let mut client = primary(group).unwrap();
    thread::spawn(move || {
        let mut tail = client.tail(Lsn(1)).unwrap();
        let mut next = 1;
        while next <= until {
            match tail.next_event().unwrap().unwrap() {
                Event::Record(lsn, record) => {
                    assert_eq!(lsn, Lsn(next));
                    assert!(record == input.record(next), "record {next}");
                    next += 1;
                }
                Event::CaughtUp { next: lsn } => assert_eq!(lsn, Lsn(next)),
            }
        }
        assert_eq!(tail.stop().unwrap(), Lsn(until + 1));
    })
}

/// Twice the silence after which a primary is gone.
const STORM: Duration = Duration::from_secs(4);

/// A user who may connect may do so in a loop, from several processes. Heartbeats and appends continue.
#[test]
fn storm_of_connections_takes_no_role_away() {
    let test = TestContext::start();
    let input = test.input();
    let mut setup = test.setup(FABRIC).unwrap();
    // Longer than a busy machine takes, and shorter than the storm.
    setup.sidecar_options.push(("--heartbeat-silence-ms", "2000".to_owned()));
    let group = test.start_group(setup).unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let socket = group.socket(0).to_owned();
    let over = AtomicBool::new(false);
    let end = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(UnixStream::connect(&socket));
                }
            });
        }
        // At its end the storm ends, however this goes.
        let appended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut client = primary(&group).unwrap();
            let mut end = 0;
            let until = Instant::now() + STORM;
            while Instant::now() < until {
                end = append(&mut client, &input, end, 10).unwrap();
            }
            end
        }));
        over.store(true, Ordering::Relaxed);
        appended
    });
    let end = end.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    check_whole(&group, &input, end).unwrap();
    assert_eq!(group.primary(), Some(0));
    let standby = group.log("sidecar1");
    assert!(!standby.contains("primary is gone"), "{standby}");
}

/// Apps find the sidecar by the socket's name: another process may have taken it since.
#[test]
fn socket_of_another_process_is_left_alone() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let socket = group.socket(1).to_owned();
    std::fs::remove_file(&socket).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    group.signal(Process::Sidecar(1), Signal::TERM).unwrap();
    assert_eq!(group.wait_for_end(Process::Sidecar(1)).unwrap(), Some(0));
    drop(UnixStream::connect(&socket).expect("the other process's socket is still there"));
    drop(other);

    let socket = group.socket(0).to_owned();
    group.signal(Process::Sidecar(0), Signal::TERM).unwrap();
    assert_eq!(group.wait_for_end(Process::Sidecar(0)).unwrap(), Some(0));
    assert!(!socket.exists(), "its own it takes away");
}
