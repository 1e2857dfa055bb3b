//! The registry of the examples: conditions decide races, and every report is counted once through the death of sidecars.

use std::process::Command;

use rustix::process::Signal;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::registry_program;
use tailwind_e2e::processes::steps::{OUTAGE, UNACKNOWLEDGED, wait_for_standby};

use crate::examples::App;
use crate::tables::{group_with_table, with_table};

/// Reports that an app is given at once.
const REPORTS: u64 = 1000;

fn registry(group: &Group, sidecar: usize) -> App {
    App::start(Command::new(registry_program().unwrap()), &group.socket(sidecar))
}

/// One that watches an empty table.
fn watcher(group: &Group, sidecar: usize) -> App {
    let mut command = Command::new(registry_program().unwrap());
    command.arg("watch");
    let watcher = App::start(command, &group.socket(sidecar));
    assert_eq!(watcher.next_line(), "devices 0");
    watcher
}

/// The next change that a watcher shows.
fn change(watcher: &App) -> String {
    std::iter::repeat_with(|| watcher.next_line()).find(|line| !line.starts_with("devices ")).unwrap()
}

fn expect<const N: usize>(app: &mut App, command: &str, answer: [&str; N]) {
    app.send(command);
    assert_eq!(answer.map(|_| app.next_line()), answer, "{command}");
}

#[test]
fn reports_win_against_sweeps_of_older_views() {
    let (_test, group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let watcher = watcher(&group, 1 - primary);
    let (mut one, mut two) = (registry(&group, primary), registry(&group, primary));
    expect(&mut one, "register lamp on", ["registered lamp"]);
    expect(&mut two, "register lamp off", ["known lamp"]);
    expect(&mut two, "report lamp off", ["reported lamp 1"]);
    // This one has not seen that report.
    expect(&mut one, "report lamp half on", ["reported lamp 2"]);
    expect(&mut one, "report pump on", ["unknown pump"]);
    expect(&mut two, "register pump off", ["registered pump"]);
    expect(&mut one, "report pump on", ["reported pump 1"]);
    expect(&mut two, "list", ["device lamp 2 half on", "device pump 1 on", "devices 2"]);
    expect(&mut one, "report lamp on", ["reported lamp 3"]);
    // And this one has not seen that one: to its sweep both devices are old.
    expect(&mut two, "expire 0", ["reported lamp", "expired pump", "swept 2"]);
    expect(&mut two, "expire 3600", ["swept 0"]);
    expect(&mut two, "list", ["device lamp 3 on", "devices 1"]);
    expect(&mut one, "report pump on", ["unknown pump"]);
    expect(&mut one, "register pump off", ["registered pump"]);
    let refused = one.ask(&format!("register {} on", "l".repeat(2000)));
    assert!(refused.starts_with("refused: too large: "), "{refused}");
    let commands = one.ask("expire soon");
    assert!(commands.starts_with("commands: "), "{commands}");
    let changes = [
        "device lamp 0 on",
        "device lamp 1 off",
        "device lamp 2 half on",
        "device pump 0 off",
        "device pump 1 on",
        "device lamp 3 on",
        "gone pump",
        "device pump 0 off",
    ];
    assert_eq!(changes.map(|_| change(&watcher)), changes);
    group.check_logs(&[]).unwrap();
}

#[test]
fn reports_count_once_through_failovers() {
    let (_test, mut group) = group_with_table("1000");
    let primary = group.wait_for_primary().unwrap();
    let standby = 1 - primary;
    let watchers = [watcher(&group, primary), watcher(&group, standby)];
    let (mut leads, mut waits) = (registry(&group, primary), registry(&group, standby));
    expect(&mut leads, "register lamp on", ["registered lamp"]);
    let count = |line: String| line.strip_prefix("reported lamp ").expect(&line).parse::<u64>().unwrap();

    // Killed with most reports to come, and perhaps one without an answer.
    for _ in 0..REPORTS {
        leads.send("report lamp first");
    }
    let mut counts: Vec<u64> = (0..REPORTS / 20).map(|_| count(leads.next_line())).collect();
    group.kill_sidecar(primary).unwrap();
    for _ in 0..REPORTS / 20 {
        counts.push(count(waits.ask("report lamp second")));
    }
    group.start_sidecar(primary).unwrap();
    wait_for_standby(&group, primary, standby).unwrap();
    // Back to the first one, which has the rest to do.
    group.kill_sidecar(standby).unwrap();
    counts.extend((counts.len() as u64..REPORTS + REPORTS / 20).map(|_| count(leads.next_line())));
    group.start_sidecar(standby).unwrap();

    let total = counts.len() as u64;
    let second = counts[REPORTS as usize / 20];
    assert!(second < REPORTS, "all had been reported before the kill");
    counts.sort_unstable();
    assert!(counts.iter().copied().eq(1..=total), "{counts:?}");
    let lamp = format!("device lamp {total} first");
    expect(&mut leads, "list", [&lamp, "devices 1"]);
    for watcher in watchers {
        for expected in 0..=total {
            let line = change(&watcher);
            assert!(line.starts_with(&format!("device lamp {expected} ")), "{line} instead of report {expected}");
        }
    }
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}

#[test]
fn a_report_whose_answer_is_lost_counts_once() {
    let test = TestContext::start();
    // Over TCP a frozen backup confirms nothing, so the report is in the log and is not answered.
    let mut setup = with_table(test.setup("tcp").unwrap(), "1000");
    setup.backups = 3;
    setup.sidecar_options.push(("--open-timeout-ms", "60000".to_owned()));
    let mut group = test.start_group(setup).unwrap();
    let primary = group.wait_for_primary().unwrap();
    let standby = 1 - primary;
    wait_for_standby(&group, standby, primary).unwrap();
    let (mut leads, mut waits) = (registry(&group, primary), registry(&group, standby));
    expect(&mut leads, "register lamp on", ["registered lamp"]);
    expect(&mut leads, "report lamp on", ["reported lamp 1"]);
    group.freeze(Process::Backup(0)).unwrap();
    leads.send("report lamp on");
    let pending = |group: &Group| group.status(primary)["appends"]["pending"].as_u64() > Some(0);
    group.wait("the report to be taken", pending).unwrap();
    group.kill_sidecar(primary).unwrap();
    group.signal(Process::Backup(0), Signal::CONT).unwrap();
    expect(&mut waits, "report lamp on", ["reported lamp 3"]);
    group.start_sidecar(primary).unwrap();
    wait_for_standby(&group, primary, standby).unwrap();
    group.kill_sidecar(standby).unwrap();
    // Another report has taken its place by now; it is recognized all the same.
    assert_eq!(leads.next_line(), "reported lamp 2");
    group.start_sidecar(standby).unwrap();
    expect(&mut leads, "report lamp on", ["reported lamp 4"]);
    group.check_logs(&[&OUTAGE[..], &[UNACKNOWLEDGED]].concat()).unwrap();
}
