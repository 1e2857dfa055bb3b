//! Gets in every role: at the primary, a standby and a reader, out of mirrors, while primaries and members are killed. Each is
//! judged: on a connection nothing is older than before, and with `least` an app reads what it has written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tailwind_client::blocking::Table;
use tailwind_client::{Error, Get, Lsn, Revision};
use tailwind_e2e::context::TestContext;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::damage;
use tailwind_e2e::processes::group::{Group, Process, Setup};
use tailwind_e2e::processes::observer::Observer;
use tailwind_e2e::processes::process::{python, run_to_end};
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};
use tailwind_e2e::processes::table_app::table;

use crate::tables::with_table;

on_every_fabric!(gets_in_every_role_never_go_back, records_that_left_memory_are_fetched, python_gets_in_every_role);

const KEY: &[u8] = b"counter";
/// Backups keep closed segments in memory.
const RESIDENT: &[(&str, &str)] = &[("--resident", "2MiB")];
/// The sidecar that only reads.
const READER: usize = 2;
/// Between two faults each sidecar that runs answers so many gets.
const GETS: u64 = 60;
/// And so many times the counter counts.
const PUTS: u64 = 20;
/// Pause before an app connects or asks again.
const AGAIN: Duration = Duration::from_millis(5);

/// A group with a table, a reader, and backups that keep mirrors and have these options.
fn group_with_mirrors(test: &mut TestContext, fabric: &str, options: &[(&'static str, &str)]) -> Group {
    let setup = with_table(test.setup_with_default_timeouts(fabric).unwrap(), "1000");
    let mut setup = Setup { sidecars: 3, readers: 1, ..setup };
    setup.reader_options.clone_from(&setup.sidecar_options);
    setup.backup_options.push(("--mirror", "8MiB".to_owned()));
    setup.backup_options.extend(options.iter().map(|(flag, value)| (*flag, (*value).to_owned())));
    let group = test.start_group(setup).unwrap();
    let primary = group.wait_for_primary().unwrap();
    wait_for_standby(&group, 1 - primary, primary).unwrap();
    group
}

/// What the writer knows to be acknowledged: the last record, and the count in it.
#[derive(Default)]
struct Written {
    last: Mutex<(Lsn, u64)>,
    ends: AtomicBool,
}

/// Counts in one key, and writes others beside it so that the log is cleaned.
fn write(observer: &Observer, written: &Written) {
    let (mut count, mut table): (u64, Option<Table>) = (0, None);
    while !written.ends.load(Ordering::Relaxed) {
        count += 1;
        let text = count.to_string();
        loop {
            let put = connected(&mut table, observer, observer.primary()).and_then(|table| {
                table.put(&text.as_bytes()[text.len() - 1..], &[7; 1000])?;
                table.put(KEY, text.as_bytes())
            });
            match put {
                Ok(revision) => break *written.last.lock().unwrap() = (revision.lsn(), count),
                Err(error) => after(&mut table, &error),
            }
            if written.ends.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// The connection to this sidecar, which is made if there is none.
fn connected<'t>(
    table: &'t mut Option<Table>,
    observer: &Observer,
    index: Option<usize>,
) -> Result<&'t mut Table, Error> {
    if table.is_none() {
        let index = index.ok_or(Error::Misuse("there is no primary"))?;
        *table = Some(self::table(observer, index)?);
    }
    Ok(table.as_mut().expect("it was made"))
}

/// An outage, after which an app connects again, unless the connection is as good as before.
fn after(table: &mut Option<Table>, error: &Error) {
    match error {
        Error::Retry { .. } => {}
        Error::Connect { .. }
        | Error::NotPrimary { .. }
        | Error::UnknownOutcome { .. }
        | Error::TimedOut { .. }
        | Error::Disconnected { .. }
        | Error::Misuse("there is no primary") => *table = None,
        other => panic!("{other:?}"),
    }
    std::thread::sleep(AGAIN);
}

/// An app that gets the counter at one sidecar, in a thread of its own.
struct Getting {
    answered: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Getting {
    fn start(observer: Observer, index: usize, written: Arc<Written>) -> Getting {
        let answered = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&answered);
        let thread = std::thread::spawn(move || {
            let (mut table, mut seen) = (None, Seen::default());
            while !written.ends.load(Ordering::Relaxed) {
                let (least, count) = *written.last.lock().unwrap();
                let nth = counts.load(Ordering::Relaxed);
                // In turn: read what was written, fresh, and without either.
                let (least, fresh) = match nth % 3 {
                    0 => (Some(least), false),
                    1 => (None, true),
                    _ => (None, false),
                };
                let get = Get { fresh, least, ..Get::default() };
                let got = match connected(&mut table, &observer, Some(index)).and_then(|it| it.get_with(KEY, &get)) {
                    Ok(got) => got,
                    // A get that waits while its sidecar loses the role is asked again on the same connection.
                    Err(Error::NotPrimary { .. }) => continue,
                    Err(error) => {
                        after(&mut table, &error);
                        if table.is_none() {
                            seen = Seen::default();
                        }
                        continue;
                    }
                };
                let now = Seen {
                    as_of: got.as_of.unwrap(),
                    revision: got.entry.as_ref().map(|entry| entry.revision),
                    count: got.entry.map_or(0, |entry| String::from_utf8_lossy(&entry.value).parse().unwrap()),
                };
                assert!(now.as_of >= seen.as_of && now.revision >= seen.revision, "{seen:?}, then {now:?}");
                assert!(now.count >= seen.count, "{seen:?}, then {now:?}");
                if let Some(least) = least {
                    assert!(now.as_of >= least && now.count >= count, "{now:?} is less than {count} at {least}");
                }
                if fresh {
                    assert!(now.count >= count, "{now:?} is less than {count}, which was acknowledged before");
                }
                seen = now;
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        Getting { answered, thread }
    }
}

/// What a connection has seen.
#[derive(Debug, Default)]
struct Seen {
    as_of: Lsn,
    revision: Option<Revision>,
    count: u64,
}

fn gets_in_every_role_never_go_back(fabric: &str) {
    let mut test = TestContext::start();
    let mut group = group_with_mirrors(&mut test, fabric, RESIDENT);
    let written = Arc::new(Written::default());
    let observer = group.observer().clone();
    let writer = {
        let (observer, written) = (observer.clone(), Arc::clone(&written));
        std::thread::spawn(move || write(&observer, &written))
    };
    let apps: Vec<Getting> =
        (0..3).map(|index| Getting::start(observer.clone(), index, Arc::clone(&written))).collect();
    let go_on = |group: &Group| {
        let counts = || apps.iter().map(|app| app.answered.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let count = || written.last.lock().unwrap().1;
        let (before, count_before) = (counts(), count());
        let enough = |group: &Group| {
            // What one has found wrong is told when it is joined.
            let ended = writer.is_finished() || apps.iter().any(|app| app.thread.is_finished());
            let has_written = ended || count() >= count_before + PUTS;
            let mut all = counts().into_iter().zip(&before).enumerate();
            ended
                || has_written
                    && all.all(|(index, (now, before))| now >= before + GETS || !group.runs(Process::Sidecar(index)))
        };
        group.wait("gets at every sidecar", enough).unwrap();
    };
    go_on(&group);
    for round in 0..2 {
        let victim = group.wait_for_primary().unwrap();
        group.kill_sidecar(victim).unwrap();
        let primary = group.wait_for_primary().unwrap();
        go_on(&group);
        group.start_sidecar(victim).unwrap();
        wait_for_standby(&group, victim, primary).unwrap();
        let members = group.wait_for_full_set().unwrap();
        group.kill_backup(members[round]).unwrap();
        go_on(&group);
        group.start_backup(members[round]).unwrap();
        group.wait_for_full_set().unwrap();
    }
    go_on(&group);
    written.ends.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    apps.into_iter().for_each(|app| app.thread.join().unwrap());
    // Off the primary they came out of mirrors, and not from the primary by another way.
    let found = group.metric::<u64>(Process::Sidecar(READER), "tailwind_table_get_seconds_count");
    assert!(found > Some(GETS), "{found:?}");
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}

/// Closed segments are on disk alone: their records are fetched, and compared like any others.
fn records_that_left_memory_are_fetched(fabric: &str) {
    let mut test = TestContext::start();
    let group = group_with_mirrors(&mut test, fabric, &[]);
    let primary = group.wait_for_primary().unwrap();
    let mut writer = table(group.observer(), primary).unwrap();
    let value = |number: u32| [&number.to_le_bytes()[..], &[7; 1500]].concat();
    let revisions: Vec<Revision> =
        (0..200).map(|number: u32| writer.put(&number.to_be_bytes(), &value(number)).unwrap()).collect();
    let least = Some(revisions[199].lsn());
    let members = group.wait_for_full_set().unwrap();
    let have_left = |group: &Group| {
        members.iter().all(|member| {
            let folder = group.flush_folder(*member);
            damage::closed(&folder).is_ok_and(|closed| closed.len() >= 4)
                && !damage::is_in_memory(&group.pool(*member), &folder)
        })
    };
    group.wait("closed segments to leave the members' memory", have_left).unwrap();
    for index in [1 - primary, READER] {
        let mut table = table(group.observer(), index).unwrap();
        for (number, revision) in (0_u32..).zip(&revisions) {
            let got = table.get_with(&number.to_be_bytes(), &Get { least, ..Get::default() }).unwrap();
            let entry = got.entry.unwrap_or_else(|| panic!("key {number} is absent"));
            assert_eq!((&*entry.value, entry.revision), (&value(number)[..], *revision));
        }
    }
    group.check_logs(&OUTAGE).unwrap();
}

/// What the Python tables promise of gets off the primary.
fn python_gets_in_every_role(fabric: &str) {
    let mut test = TestContext::start();
    let group = group_with_mirrors(&mut test, fabric, RESIDENT);
    for kind in ["blocking", "asyncio"] {
        let mut command = python("e2e/tests/processes/gets.py");
        let primary = group.wait_for_primary().unwrap();
        command.arg(kind).args([primary, 1 - primary, READER].map(|index| group.socket(index)));
        let ended = run_to_end(&mut command).unwrap();
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ok\n"), "{}", ended.errors);
    }
    group.check_logs(&OUTAGE).unwrap();
}
