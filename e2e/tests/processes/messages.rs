//! What people are told while something is missing or wrong: which processes are waited for, what came back, and what to do;
//! once, and again when it changes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::process::{Daemon, free_port, run_to_end, with_options};
use tailwind_e2e::processes::steps::{append, primary, wait_for_standby};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";

/// What a sidecar says that it waits for.
pub(crate) fn waiting(group: &Group, index: usize) -> String {
    group.status(index)["waiting"]["why"].as_str().unwrap_or_default().to_owned()
}

/// A command of the program, in the background, with its errors in a file.
fn begin(group: &Group, name: &str, args: &[&str]) -> Daemon {
    let mut command = Command::new(&group.setup().program);
    command.args(args);
    let mut daemon = Daemon::new(name, group.folder().join(format!("{name}.log")));
    daemon.start(command).unwrap();
    daemon
}

#[test]
fn backups_that_cannot_found_a_group_are_named() {
    let test = TestContext::start();
    let mut setup = test.setup_with_default_timeouts(FABRIC).unwrap();
    (setup.backups, setup.sidecars) = (3, 1);
    let mut group = Group::prepare(setup).unwrap();
    let address = |group: &Group, index| format!("127.0.0.1:{}", group.port(Process::Backup(index)));
    let addresses: Vec<String> = (0..3).map(|index| address(&group, index)).collect();
    group.start_sidecar(0).unwrap();
    let refused =
        addresses.iter().enumerate().map(|(index, address)| format!("backup{index} {address}: connection refused"));
    let all = refused.collect::<Vec<_>>().join("; ");
    let words = format!("cannot start the group: 0 of 3 backups are ready, 2 needed. {all}");
    group.wait("each backup to be named", |group| waiting(group, 0) == words).unwrap();

    // The one that comes is another one.
    let mut other = Daemon::new("other", group.folder().join("other.log"));
    other.start(with_options(&group.backup_command(1), [("--name", "q0")])).unwrap();
    let words = format!("backup1 {}: the backup there is named q0; backup2", addresses[1]);
    group.wait("the wrong name", |group| waiting(group, 0).contains(&words)).unwrap();
    group.wait("the log to say so as well", |group| group.log("sidecar0").contains(&words)).unwrap();
    other.kill().unwrap();
    fs::remove_dir_all(group.flush_folder(1)).unwrap();
    fs::remove_dir_all(group.pool(1)).unwrap();

    (0..3).for_each(|index| group.start_backup(index).unwrap());
    append(&mut primary(&group).unwrap(), &test.input(), 0, 100).unwrap();
    assert_eq!(waiting(&group, 0), "");
}

/// All members have lost their memory, and the recovery is ordered for another log.
#[test]
fn a_hopeless_wait_is_logged_once_and_names_the_log() {
    let test = TestContext::start();
    let mut setup = test.setup_with_default_timeouts(FABRIC).unwrap();
    (setup.backups, setup.sidecars) = (3, 1);
    let mut group = test.start_group(setup).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), 0, 500).unwrap();
    let config = fs::read_to_string(group.newest_config().unwrap()).unwrap();
    let config: serde_json::Value = serde_json::from_str(config.split_once('\n').unwrap().1).unwrap();
    let (log, won) =
        (config["configuration"]["log"].as_str().unwrap(), config["configuration"]["won"].as_u64().unwrap());
    group.kill_all().unwrap();
    (0..3).for_each(|index| fs::remove_dir_all(group.pool(index)).unwrap());
    let other = "0123456789abcdef0123456789abcdef";
    group.setup_mut().sidecar_options.push(("--recover-from-disk", format!("{other}/{won}")));
    let before = group.log("sidecar0").len();
    (0..3).for_each(|index| group.start_backup(index).unwrap());
    group.start_sidecar(0).unwrap();
    let words = format!("the recovery from disk is ordered for {other}/{won}, but the log of this group is {log}");
    group.wait("the right id", |group| waiting(group, 0).contains(&words)).unwrap();
    // It asks 20 times a second: what happens to one member shows, and the others are fenced all the while.
    let is_gone = |group: &Group| waiting(group, 0).contains("connection refused");
    for _ in 0..3 {
        group.kill_backup(1).unwrap();
        group.wait("a member to be missed", is_gone).unwrap();
        group.start_backup(1).unwrap();
        group.wait("it to be back", |group| !is_gone(group)).unwrap();
    }
    let told = group.log("sidecar0")[before..].to_owned();
    // One line for each member, and one if a restart has changed its answer.
    assert!((3..=6).contains(&told.matches(" fenced ").count()), "{told}");
    assert_eq!(told.matches("an order has no effect").count(), 1, "{told}");
}

#[test]
fn a_reader_without_a_config_file_names_it() {
    let test = TestContext::start();
    let mut setup = test.setup_with_default_timeouts(FABRIC).unwrap();
    (setup.sidecars, setup.readers) = (2, 1);
    let mut group = Group::prepare(setup).unwrap();
    group.start_sidecar(1).unwrap();
    let words = format!("there is no config file {}", group.config().display());
    group.wait("it to say what is missing", |group| waiting(group, 1).contains(&words)).unwrap();
    assert_eq!(group.log("sidecar1").matches(&words).count(), 1);
    (0..group.backups()).for_each(|index| group.start_backup(index).unwrap());
    group.start_sidecar(0).unwrap();
    group.wait("the wait to be over", |group| group.role(1) == "reader" && waiting(group, 1).is_empty()).unwrap();

    // A disk that loses it, or a mount that goes away.
    let numbered = (1..).map(|number| PathBuf::from(format!("{}.{number}", group.config().display())));
    let newest = numbered.take_while(|path| path.exists()).last().unwrap_or(group.config());
    let content = fs::read(&newest).unwrap();
    fs::write(&newest, "damaged").unwrap();
    let words = format!("config file {} is damaged", newest.display());
    group.wait("it to say what is damaged", |group| waiting(group, 1).contains(&words)).unwrap();
    fs::write(&newest, content).unwrap();
    group.wait("the wait to be over", |group| waiting(group, 1).is_empty()).unwrap();
}

#[test]
fn append_names_the_role_that_it_waits_for() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    let leads = group.wait_for_primary().unwrap();
    let other = (0..group.sidecars()).find(|index| *index != leads).unwrap();
    wait_for_standby(&group, other, leads).unwrap();
    let socket = group.socket(other);
    let shown = socket.to_str().unwrap();
    let appends = begin(&group, "append", &["append", "--wait", "--file", "/dev/null", "--socket", shown]);
    let words = format!("waiting for a primary: {shown}: sidecar{other} is a standby; the primary is sidecar{leads}");
    group.wait("append to say what it waits for", |_| appends.log().contains(&words)).unwrap();
    assert_eq!(appends.log().matches("waiting for a primary").count(), 1, "{}", appends.log());
}

/// With one member of two needed, appends wait: the command and the status say for which one.
#[test]
fn appends_below_min_in_sync_name_who_is_lost() {
    let test = TestContext::start();
    let mut setup = test.setup(FABRIC).unwrap();
    (setup.backups, setup.copies, setup.sidecars) = (2, 2, 1);
    setup.sidecar_options.push(("--min-in-sync", "2".into()));
    let mut group = test.start_group(setup).unwrap();
    append(&mut primary(&group).unwrap(), &test.input(), 0, 100).unwrap();
    group.kill_backup(1).unwrap();
    let input = group.folder().join("input");
    fs::write(&input, "one\ntwo\n").unwrap();
    let (socket, input) = (group.socket(0), input.to_str().unwrap().to_owned());
    let mut appends = begin(
        &group,
        "append",
        &["append", "--timeout-ms", "4000", "--file", &input, "--socket", socket.to_str().unwrap()],
    );
    let words = "1 of 2 members are left, 2 needed (min-in-sync): backup1 lost: ";
    group.wait("append to say why", |_| appends.log().contains(&format!("the primary waits: {words}"))).unwrap();
    let why = group.status(0)["appends_wait"]["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with(words) && why.contains(". Bring them back, or start other backups"), "{why}");
    assert_eq!(appends.wait_for_end().unwrap(), Some(1), "it gives up after its time-out");
    let errors = appends.log();
    assert!(errors.contains(&format!("append: timed out after 4 s: the primary waits: {words}")), "{errors}");
    assert!(errors.contains("2 records were sent but not acknowledged"), "{errors}");
}

#[test]
fn mistakes_of_the_command_line_end_with_2() {
    let test = TestContext::start();
    let group = Group::prepare(test.setup(FABRIC).unwrap()).unwrap();
    let folder = group.folder().to_str().unwrap().to_owned();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let sidecar = |flag: &str, value: &str| with_options(&group.sidecar_command(0), [(flag, value)]);
    let backup = |flag: &str, value: &str| with_options(&group.backup_command(0), [(flag, value)]);
    let people = |args: &[&str]| {
        let mut command = Command::new(&group.setup().program);
        command.args(args);
        command
    };
    for (mut command, words) in [
        (sidecar("--backups", "8"), "must be a number from 1 to 7"),
        (sidecar("--backups", "three"), "must be a number from 1 to 7"),
        (sidecar("--min-in-sync", "4"), "--min-in-sync 4: must be 1 to --backups (3)"),
        (sidecar("--listen", "localhost:7410"), "must be IP:PORT, such as 127.0.0.1:7420"),
        (sidecar("--listen", "0.0.0.0:0"), "refusing to listen on 0.0.0.0:0 without TLS"),
        (sidecar("--socket", &folder), "is a folder: give the path of a socket in it"),
        (sidecar("--batch-memory", "32KiB"), "--batch-memory 32 KiB: must be at least"),
        (sidecar("--heartbeat-silence-ms", "50"), "must be more than twice --heartbeat-interval-ms"),
        (backup("--flush-bytes", "128KiB"), "--flush-bytes 128 KiB: must be at least 384 KiB"),
        (backup("--data-listen", &listen), "--data-listen is for --fabric tcp"),
        (people(&["append", "--batch", "0"]), "must be a number, 1 or more"),
        (people(&["read", "--print-lsn", "--framing", "length"]), "--print-lsn goes with --framing lines or hex"),
        (people(&["scan", "--payloads", "lines", &folder]), "--payloads takes files"),
        (people(&["status", "--wait"]), "unexpected argument '--wait'"),
    ] {
        let ended = run_to_end(&mut command).unwrap();
        assert_eq!(ended.code, Some(2), "{command:?}: {ended:?}");
        assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
    }
}

#[test]
fn a_signal_ends_a_daemon_with_0() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    group.signal(Process::Sidecar(0), Signal::TERM).unwrap();
    assert_eq!(group.wait_for_end(Process::Sidecar(0)).unwrap(), Some(0));
}
