//! The command line: what one command writes another one reads, through failovers and from files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::on_every_fabric;
use tailwind_e2e::processes::damage;
use tailwind_e2e::processes::group::Group;
use tailwind_e2e::processes::process::{ProcessOutput, run_to_end};
use tailwind_e2e::processes::steps::{OUTAGE, append, primary, wait_for_standby};

#[test]
fn interrupted_append_says_how_far_it_came() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    group.wait_for_primary().unwrap();
    let start = |group: &Group, options: &[&str]| {
        let mut append = command(group, 0, &[&["append", "--print-lsn"], options].concat());
        append.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut append = append.spawn().unwrap();
        let mut input = append.stdin.take().unwrap();
        input.write_all(b"a\nb\nc\n").unwrap();
        let mut acked = BufReader::new(append.stdout.take().unwrap()).lines();
        (0..3).for_each(|_| drop(acked.next().unwrap().unwrap()));
        (append, input)
    };
    let interrupt = |append: &Child| kill_process(Pid::from_child(append), Signal::INT).unwrap();
    let check = |append: Child, lsns: &str| {
        let ended = append.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{errors}");
        let acked = format!("append: interrupted\nacknowledged: 3 records, LSN {lsns}, up to line 3 of the input\n");
        let expected = acked + "nothing is in flight; resume with --skip 3\n";
        assert!(errors.ends_with(&expected), "{errors}");
    };

    // While the input is silent.
    let (append, _input) = start(&group, &[]);
    interrupt(&append);
    check(append, "1 to 3");

    // While there is no primary.
    let (mut append, _input) = start(&group, &["--reconnect"]);
    let mut errors = BufReader::new(append.stderr.take().unwrap());
    group.kill_sidecar(0).unwrap();
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.ends_with("waiting for a primary\n"), "{line}");
    interrupt(&append);
    let mut rest = String::new();
    errors.read_to_string(&mut rest).unwrap();
    assert_eq!(append.wait().unwrap().code(), Some(1), "{rest}");
    assert!(rest.contains("append: interrupted\nacknowledged: 3 records, LSN 4 to 6"), "{rest}");
}

on_every_fabric!(appended_records_can_be_read, append_continues_through_a_failover);

/// The fabric plays no part in the others.
const FABRIC: &str = "shm";

/// A command at this sidecar.
fn command(group: &Group, index: usize, args: &[&str]) -> Command {
    let mut command = Command::new(&group.setup().program);
    command.args(args).arg("--socket").arg(group.socket(index));
    command
}

fn run(group: &Group, args: &[&str]) -> ProcessOutput {
    run_to_end(&mut command(group, 0, args)).unwrap()
}

/// Standard output of a command that must succeed.
fn output(group: &Group, args: &[&str]) -> String {
    let ended = run(group, args);
    assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.errors);
    ended.out
}

/// A file of lines, one of them empty.
fn lines(group: &Group, count: usize) -> (PathBuf, String) {
    let text: String =
        (1..=count).map(|n| if n == 7 { "\n".to_owned() } else { format!("line {n} of the input\n") }).collect();
    let path = group.folder().join("input");
    fs::write(&path, &text).unwrap();
    (path, text)
}

fn appended_records_can_be_read(fabric: &str) {
    let test = TestContext::start();
    let group = test.group(fabric).unwrap();
    let (path, text) = lines(&group, 5000);
    let ended = run(&group, &["append", "--file", path.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.errors.contains("5,000 records") && ended.errors.contains("LSN 1 to 5000"), "{ended:?}");
    assert_eq!(output(&group, &["read"]), text);
    let some = output(&group, &["read", "--from", "4999", "--limit", "1", "--print-lsn"]);
    assert_eq!(some, "4999\tline 4999 of the input\n");
    assert_eq!(
        output(&group, &["read", "--from", "7", "--limit", "2", "--framing", "hex"]),
        "\n6c696e652038206f662074686520696e707574\n"
    );

    // Any bytes, by their length: what comes out goes in again.
    let records = [&b"two\nlines"[..], b"", &[0; 3000]];
    let framed: Vec<u8> = records.iter().flat_map(|r| [&(r.len() as u32).to_le_bytes()[..], r].concat()).collect();
    let path = group.folder().join("framed");
    fs::write(&path, &framed).unwrap();
    let args = ["append", "--framing", "length", "--batch", "2", "--print-lsn", "--file", path.to_str().unwrap()];
    assert_eq!(output(&group, &args), "5001\n5002\n5003\n");
    let back = command(&group, 0, &["read", "--framing", "length", "--from", "5001"]).output().unwrap();
    assert_eq!(back.stdout, framed);

    assert_eq!(output(&group, &["barrier"]), "primary in epoch 1, last acknowledged LSN 5003\n");
    let status: Value = output(&group, &["status", "--json"]).parse().unwrap();
    assert_eq!((&status["role"], &status["positions"]["acked"]), (&"primary".into(), &5003.into()));
    let status = output(&group, &["status"]);
    assert!(status.contains("sidecar0: primary, epoch 1") && status.contains("LSN 1 to 5003"), "{status}");
    let trimmed = output(&group, &["trim", "--below", "4000"]);
    let first: u64 =
        trimmed.strip_prefix("the log begins at LSN ").unwrap().split([';', '\n']).next().unwrap().parse().unwrap();
    assert!(first > 1 && first <= 4000, "{trimmed}");
    assert!(output(&group, &["read", "--limit", "1", "--print-lsn"]).starts_with(&format!("{first}\t")));
    let two = group.folder().join("two");
    fs::write(&two, "one\ntwo\n").unwrap();
    let skipped = run(&group, &["append", "--skip", "10", "--file", two.to_str().unwrap()]);
    assert_eq!(skipped.code, Some(1), "{skipped:?}");
    assert!(skipped.errors.contains("append: --skip 10: the input has only 2 lines"), "{}", skipped.errors);
    let gone = run(&group, &["read", "--from", "1"]);
    assert_eq!(gone.code, Some(1));
    assert!(gone.errors.contains("has been trimmed: the log begins at"), "{}", gone.errors);
    group.check_logs(&[]).unwrap();
}

fn append_continues_through_a_failover(fabric: &str) {
    let test = TestContext::start();
    let mut group = test.group(fabric).unwrap();
    let (path, text) = lines(&group, 200_000);
    let mut append = command(&group, 0, &["append", "--reconnect", "--file", path.to_str().unwrap()]);
    append.arg("--socket").arg(group.socket(1));
    let child = append.stderr(Stdio::piped()).spawn().unwrap();
    group.wait("some records", |group| group.status(0)["positions"]["acked"].as_u64() > Some(1000)).unwrap();
    group.kill_sidecar(0).unwrap();
    let ended = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}");
    let read = run_to_end(&mut command(&group, 1, &["read", "--wait"])).unwrap();
    assert!(read.out == text, "{} bytes were read, {} appended; {errors}", read.out.len(), text.len());
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn tail_prints_new_records() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    primary(&group).unwrap().append(b"before").unwrap();
    let mut tail =
        command(&group, 0, &["tail", "--from", "first", "--print-lsn"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "1\tbefore");
    for number in 2..5 {
        primary(&group).unwrap().append(format!("record {number}").as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap(), format!("{number}\trecord {number}"));
    }
    kill_process(Pid::from_child(&tail), Signal::TERM).unwrap();
    assert_eq!(tail.wait().unwrap().code(), Some(1));
    group.check_logs(&[]).unwrap();
}

/// Beside a standby, until it takes over: then the reader of the output can continue where that ends.
#[test]
fn follow_prints_records_until_the_turn() {
    let test = TestContext::start();
    let mut group = test.group(FABRIC).unwrap();
    primary(&group).unwrap().append(b"before").unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let mut follow = command(&group, 1, &["follow", "--print-lsn"]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "1\tbefore");
    for number in 2..5 {
        primary(&group).unwrap().append(format!("record {number}").as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap(), format!("{number}\trecord {number}"));
    }
    let anywhere = ["read", "--anywhere", "--from", "2", "--limit", "2"];
    let anywhere = run_to_end(&mut command(&group, 1, &anywhere)).unwrap();
    assert_eq!((anywhere.code, anywhere.out.as_str()), (Some(0), "record 2\nrecord 3\n"), "{}", anywhere.errors);

    group.kill_sidecar(0).unwrap();
    assert_eq!(lines.next(), None);
    let ended = follow.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{errors}");
    assert!(
        errors.contains("caught up: LSN ") && errors.contains("turn: this sidecar is primary in epoch "),
        "{errors}"
    );
    assert!(errors.ends_with(" and LSN 5 is next\n"), "{errors}");
    assert_eq!(group.client(1, false).unwrap().append(b"after").unwrap().0, 5);
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn standby_names_the_primary() {
    let test = TestContext::start();
    let group = test.group(FABRIC).unwrap();
    wait_for_standby(&group, 1, 0).unwrap();
    let refused = run_to_end(&mut command(&group, 1, &["barrier"])).unwrap();
    assert_eq!(refused.code, Some(1));
    assert!(refused.errors.contains("sidecar0"), "{}", refused.errors);
    let status = run_to_end(&mut command(&group, 1, &["status"])).unwrap();
    assert!(status.out.contains("\nsidecar    sidecar1: standby, epoch 1\nprimary    sidecar0 at "), "{}", status.out);
    let unreachable =
        run_to_end(Command::new(&group.setup().program).args(["status", "--socket", "/nonexistent/socket"])).unwrap();
    assert_eq!(unreachable.code, Some(1));
    assert!(unreachable.errors.contains("/nonexistent/socket"), "{}", unreachable.errors);
    group.check_logs(&[]).unwrap();
}

#[test]
fn scan_describes_a_file() {
    let test = TestContext::start();
    let input = test.input();
    let group = test.group(FABRIC).unwrap();
    append(&mut primary(&group).unwrap(), &input, 0, 1000).unwrap();
    let member = group.wait_for_full_set().unwrap()[0];
    let closed = |group: &Group| damage::closed(&group.flush_folder(member)).unwrap().into_iter().next();
    let file = group.wait_for("a segment on disk", closed).unwrap();
    let scan = |args: &[&str], path: &Path| {
        run_to_end(Command::new(&group.setup().program).arg("scan").args(args).arg(path)).unwrap()
    };
    let sound = scan(&[], &file);
    assert_eq!(sound.code, Some(0), "{sound:?}");
    for words in ["file of a closed segment", "segment   1, epoch 1", "LSN 1 to ", "agrees with the scan", "sound"] {
        assert!(sound.out.contains(words), "`{words}` is not in:\n{}", sound.out);
    }
    // The copy of a buffer that is being written to.
    let open = fs::read_dir(group.pool(member)).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
        let is_buffer = path.extension().is_some_and(|extension| extension == "buf");
        is_buffer && scan(&[], path).out.contains("LSN")
    });
    let copy = group.folder().join("slot-copy.buf");
    fs::copy(open.unwrap(), &copy).unwrap();
    let open = scan(&[], &copy);
    assert_eq!(open.code, Some(0), "{open:?}");
    assert!(open.out.contains("buffer") && open.out.contains("1000"), "{}", open.out);
    let records = scan(&["--records"], &copy);
    assert!(records.out.contains("PAYLOAD"), "{}", records.out);

    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let flipped = group.folder().join("segment-0000000000000001.closed");
    fs::write(&flipped, &bytes).unwrap();
    let corrupt = scan(&[], &flipped);
    assert_eq!(corrupt.code, Some(1));
    assert!(corrupt.out.contains("DAMAGED") && corrupt.out.contains("stopped"), "{}", corrupt.out);
    let foreign = group.folder().join("foreign");
    fs::write(&foreign, "other notes").unwrap();
    let foreign = scan(&[], &foreign);
    assert_eq!(foreign.code, Some(1));
    assert!(foreign.errors.contains("neither a buffer nor a segment file"), "{}", foreign.errors);
    let misnamed = group.folder().join("segment-99.closed");
    fs::copy(&file, &misnamed).unwrap();
    let misnamed = scan(&[], &misnamed);
    assert_eq!(misnamed.code, Some(1));
    let words = "DAMAGED: the name says segment 99, the header says segment 1";
    assert!(misnamed.out.contains(words), "{}", misnamed.out);
    group.check_logs(&[]).unwrap();
}

/// The folder of a member that is down.
#[test]
fn scan_of_a_folder_names_damaged_and_missing_segments() {
    let test = TestContext::start();
    let input = test.input();
    let mut group = test.group(FABRIC).unwrap();
    append(&mut primary(&group).unwrap(), &input, 0, 3000).unwrap();
    let member = group.wait_for_full_set().unwrap()[0];
    let disk = group.flush_folder(member);
    let segment = |number: u64| disk.join(format!("segment-{number:016}.closed"));
    group.wait("four segments on disk", |_| segment(4).exists()).unwrap();
    group.kill_backup(member).unwrap();
    let program = group.setup().program.clone();
    let scan = |args: &[&str]| run_to_end(Command::new(&program).arg("scan").args(args).arg(&disk)).unwrap();

    let sound = scan(&[]);
    assert_eq!(sound.code, Some(0), "{sound:?}");
    for words in ["segment-0000000000000001.closed  sound ", "segments  1 to ", "total ", "verdict   sound: "] {
        assert!(sound.out.contains(words), "`{words}` is not in:\n{}", sound.out);
    }
    let records = scan(&["--records"]);
    assert_eq!(records.code, Some(0), "{records:?}");
    assert!(records.out.matches("OFFSET    LENGTH").count() >= 4, "each segment has its list:\n{}", records.out);
    for own in ["promise  ", "ledger  ", "lock  "] {
        let line = sound.out.lines().find(|line| line.trim_start().starts_with(own));
        assert!(line.is_some_and(|line| !line.contains("neither")), "{own}: {line:?}");
    }
    let payloads = scan(&["--payloads", "lines", segment(1).to_str().unwrap()]);
    assert!(payloads.code == Some(2) && payloads.errors.contains("--payloads takes files"), "{payloads:?}");
    assert_eq!(payloads.out, "", "a command line that is refused has done nothing");

    // In place of a file there is a FIFO, which must not be waited for.
    fs::remove_file(segment(2)).unwrap();
    fs::remove_file(segment(3)).unwrap();
    mkfifoat(CWD, segment(3), Mode::RUSR | Mode::WUSR).unwrap();
    let damaged = scan(&[]);
    assert_eq!(damaged.code, Some(1), "{damaged:?}");
    for words in [
        "DAMAGED  a FIFO, not a regular file",
        "segments 2 to 3 are missing or damaged (1 damaged): LSN ",
        "verdict   DAMAGED: ",
    ] {
        assert!(damaged.out.contains(words), "`{words}` is not in:\n{}", damaged.out);
    }
    // Its verdict is the same if nobody reads the rest.
    let mut command = Command::new(&program);
    command.args(["scan", "--records"]).arg(&disk).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut unread = command.spawn().unwrap();
    drop(unread.stdout.take());
    assert_eq!(unread.wait().unwrap().code(), Some(1));
    for (path, words) in [
        (segment(3), "a FIFO, not a regular file"),
        (PathBuf::from("/dev/null"), "a device, not a regular file"),
        (group.socket(0), "a socket, not a regular file"),
        (group.folder().join("nothing"), "find the file: No such file"),
    ] {
        let refused = run_to_end(Command::new(&program).arg("scan").arg(&path)).unwrap();
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.errors.contains(words), "`{words}` is not in:\n{}", refused.errors);
    }
    let help = run_to_end(Command::new(&program).args(["scan", "--help"])).unwrap();
    assert!(help.out.contains("Exit codes: 0 if all is sound"), "{}", help.out);
    group.check_logs(&OUTAGE).unwrap();
}

/// Bash reads the script, and completes with it a command, an option and a value.
#[test]
fn bash_completes_the_command_line() {
    let test = TestContext::start();
    let program = test.setup(FABRIC).unwrap().program;
    let ended = run_to_end(Command::new(&program).args(["completions", "bash"])).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tailwind-sidecar.bash");
    fs::write(&script, &ended.out).unwrap();
    let bash = |args: &[&str]| run_to_end(Command::new("bash").arg("--norc").args(args)).unwrap();
    let parsed = bash(&["-n", script.to_str().unwrap()]);
    assert_eq!((parsed.code, parsed.errors.as_str()), (Some(0), ""));
    // What bash does on the tab key: words and their number in variables, then the function that is registered.
    let complete = "source $1; shift; COMP_WORDS=(tailwind-sidecar \"$@\"); COMP_CWORD=$#; \
                    set -- $(complete -p tailwind-sidecar); while [ $1 != -F ]; do shift; done; \
                    $2 tailwind-sidecar \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
                    echo ${COMPREPLY[*]}";
    let completed = |words: &[&str]| {
        let ended = bash(&[&["-c", complete, "bash", script.to_str().unwrap()], words].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.trim().to_owned()
    };
    assert_eq!(completed(&["quar"]), "quarantine");
    assert_eq!(completed(&["quarantine", "rel"]), "release");
    assert_eq!(completed(&["run", "--min"]), "--min-in-sync");
    assert_eq!(completed(&["run", "--fabric", "ver"]), "verbs");
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        let ended = run_to_end(Command::new(&program).args(["completions", shell])).unwrap();
        assert!(ended.code == Some(0) && ended.out.contains("quarantine"), "{shell}: {ended:?}");
    }
}
