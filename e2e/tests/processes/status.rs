//! `status` answers whether the log is safe: which member is missing and why, what waits for what, and which standby could take
//! over.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tailwind_e2e::context::TestContext;
use tailwind_e2e::processes::group::{Group, Process};
use tailwind_e2e::processes::http;
use tailwind_e2e::processes::observer::TIMEOUT;
use tailwind_e2e::processes::process::run_to_end;
use tailwind_e2e::processes::steps::{OUTAGE, append, primary};

/// The fabric plays no part in these.
const FABRIC: &str = "shm";

fn command(group: &Group, index: usize, args: &[&str]) -> Command {
    let mut command = Command::new(&group.setup().program);
    command.arg("status").args(args).arg("--socket").arg(group.socket(index));
    command
}

/// What `status --check` prints, and its exit code.
fn status(group: &Group, index: usize) -> (String, i32) {
    let ended = run_to_end(&mut command(group, index, &["--check"])).unwrap();
    (ended.out, ended.code.unwrap())
}

/// Waits until the first line begins like this, with this exit code; the whole text.
fn wait_for_line(group: &Group, index: usize, begins: &str, code: i32) -> String {
    let found = group.wait_for(&format!("status to begin with {begins:?}"), |group| {
        let (text, ended) = status(group, index);
        (text.starts_with(begins) && ended == code).then_some(text)
    });
    found.unwrap_or_else(|error| panic!("{error:#}; last: {:?}", status(group, index)))
}

/// A program with a terminal of its own, which goes with the test.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process writes, as it comes.
struct Output {
    pieces: Receiver<String>,
    seen: String,
}

impl Output {
    fn of(process: &mut Child) -> Output {
        let (mut output, (sender, pieces)) = (process.stdout.take().unwrap(), mpsc::channel());
        thread::spawn(move || {
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                bytes.extend_from_slice(&buffer[..count]);
                // The end may be in the middle of a character.
                let whole = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
                let piece: Vec<u8> = bytes.drain(..whole).collect();
                if sender.send(String::from_utf8(piece).unwrap()).is_err() {
                    return;
                }
            }
        });
        Output { pieces, seen: String::new() }
    }

    /// Reads until this has been written, beyond what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let piece = self.pieces.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            self.seen += &piece.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.seen));
        }
    }
}

/// What a terminal shows that takes what `top` writes.
#[derive(Default)]
struct Grid {
    cells: BTreeMap<(usize, usize), char>,
    at: (usize, usize),
}

impl Grid {
    /// Takes what is written until the screen is such.
    fn wait_for(&mut self, output: &mut Output, such: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // The end may be half a sequence: it is kept for later.
            while let Some(rest) = self.take(&output.seen) {
                output.seen.drain(..output.seen.len() - rest);
            }
            let shown = self.text();
            if such(&shown) {
                return;
            }
            let piece = output.pieces.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            output.seen += &piece.unwrap_or_else(|_| panic!("the screen is still\n{shown}"));
        }
    }

    /// Takes one character or one whole sequence; how many bytes are left after it.
    fn take(&mut self, text: &str) -> Option<usize> {
        let rest = text.strip_prefix("\x1b[").map(|sequence| {
            let end = sequence.find(|c: char| c.is_ascii_alphabetic())?;
            let (numbers, rest) = sequence.split_at(end);
            match rest.chars().next() {
                Some('H') => {
                    let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(1));
                    self.at = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
                }
                Some('J') => self.cells.clear(),
                _ => {}
            }
            Some(rest.len() - 1)
        });
        if let Some(rest) = rest {
            return rest;
        }
        let c = text.chars().next().filter(|c| *c != '\x1b' || text.len() > 1)?;
        self.cells.insert(self.at, c);
        self.at.1 += 1;
        Some(text.len() - c.len_utf8())
    }

    fn text(&self) -> String {
        let line =
            |row| (1..=200).map(|column| self.cells.get(&(row, column)).copied().unwrap_or(' ')).collect::<String>();
        (1..=60).map(|row| line(row).trim_end().to_owned() + "\n").collect()
    }
}

/// A group of three copies without a spare.
fn three_copies(test: &TestContext) -> Group {
    let mut setup = test.setup(FABRIC).unwrap();
    setup.backups = 3;
    let group = test.start_group(setup).unwrap();
    group.wait_for_full_set().unwrap();
    group
}

#[test]
fn a_lost_backup_is_named_until_it_is_back() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    let well = wait_for_line(&group, 0, "OK 3 of 3 copies, standby ready\n", 0);
    assert!(well.contains("\nsidecar1  standby  ready to take over"), "{well}");
    let end = append(&mut primary(&group).unwrap(), &test.input(), 0, 2000).unwrap();

    group.kill_backup(1).unwrap();
    let lost = wait_for_line(&group, 0, "DEGRADED 2 of 3 copies (backup1 lost ", 3);
    let lines = || lost.lines();
    let first = lines().next().unwrap();
    assert!(
        first.contains("connection") && first.ends_with("), standby ready"),
        "how it was lost, or what it answers now: {lost}"
    );
    let row = lines().find(|line| line.starts_with("backup1 ")).unwrap_or_else(|| panic!("no row: {lost}"));
    let address = format!("127.0.0.1:{}", group.port(Process::Backup(1)));
    assert!(row.contains(" lost ") && row.contains("connection") && row.ends_with(&address), "{row}");
    assert!(lost.contains(&format!("LSN 1 to {end} can be read")), "{lost}");

    group.start_backup(1).unwrap();
    wait_for_line(&group, 0, "OK 3 of 3 copies, standby ready\n", 0);
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_standby_that_is_gone_is_missed() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    wait_for_line(&group, 0, "OK 3 of 3 copies, standby ready\n", 0);
    group.kill_sidecar(1).unwrap();
    let gone = wait_for_line(&group, 0, "DEGRADED 3 of 3 copies, no standby (sidecar1 was last heard ", 3);
    assert!(gone.contains("\nsidecar1  standby  silent: last heard "), "{gone}");
    group.start_sidecar(1).unwrap();
    wait_for_line(&group, 0, "OK 3 of 3 copies, standby ready\n", 0);

    // The one that takes over has none itself.
    group.kill_sidecar(0).unwrap();
    let alone = wait_for_line(&group, 1, "DEGRADED 3 of 3 copies, no standby\n", 3);
    assert!(alone.contains("sidecar1: primary, epoch 2, took over within "), "{alone}");
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn too_few_members_make_appends_wait() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    wait_for_line(&group, 0, "OK ", 0);
    wait_for_line(&group, 1, "OK standby of sidecar0, could take over\n", 0);
    group.kill_backup(0).unwrap();
    wait_for_line(&group, 0, "DEGRADED 2 of 3 copies (backup0 lost ", 3);
    group.kill_backup(1).unwrap();
    let waits = wait_for_line(&group, 0, "WAITING appends wait: 1 of 2 copies that they need (backup1 lost ", 4);
    let first = waits.lines().next().unwrap();
    assert!(
        first.contains("backup0 lost ") && first.contains("Bring back what is lost, or start another backup"),
        "{first}"
    );
    // It would find no more than the primary does.
    let standby = "DEGRADED standby of sidecar0, could not take over: 1 of 2 members answers, 2 needed (backup1: ";
    let unable = wait_for_line(&group, 1, standby, 3);
    assert!(unable.contains("\nbackup1  member  unreachable for "), "{unable}");
    group.start_backup(1).unwrap();
    group.start_backup(0).unwrap();
    // At either sidecar: the primary may have stepped down, and its standby may have taken over.
    let is_whole = |group: &Group, index| status(group, index).0.starts_with("OK 3 of 3 copies, standby ready\n");
    group.wait("the group to be whole", |group| (0..2).any(|index| is_whole(group, index))).unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// The worst of several sidecars counts. Without `--check` only a sidecar that does not answer is a failure.
#[test]
fn a_check_of_several_sidecars_tells_the_worst() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    wait_for_line(&group, 0, "OK ", 0);
    wait_for_line(&group, 1, "OK ", 0);
    let both = |group: &Group, args: &[&str]| {
        let mut command = command(group, 0, args);
        command.arg("--socket").arg(group.socket(1));
        run_to_end(&mut command).unwrap()
    };
    assert_eq!(both(&group, &["--check"]).code, Some(0));
    group.kill_backup(2).unwrap();
    wait_for_line(&group, 0, "DEGRADED ", 3);
    assert_eq!(both(&group, &["--check", "--json"]).code, Some(3));
    assert_eq!(both(&group, &[]).code, Some(0));
    group.kill_sidecar(1).unwrap();
    let ended = both(&group, &["--check"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.out.starts_with("DEGRADED ") && ended.errors.contains("append-1.sock"), "{ended:?}");
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn a_watch_shows_what_changes() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    wait_for_line(&group, 0, "OK ", 0);
    let mut watch = command(&group, 0, &["--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = Output::of(&mut watch);
    output.wait_for("OK 3 of 3 copies, standby ready\n");
    group.kill_backup(0).unwrap();
    output.wait_for("DEGRADED 2 of 3 copies (backup0 lost ");
    group.kill_sidecar(0).unwrap();
    output.wait_for("the sidecar has ended");
    group.start_sidecar(0).unwrap();
    output.wait_for("OK standby of sidecar1, could take over\n");
    watch.kill().unwrap();
    watch.wait().unwrap();
    group.check_logs(&OUTAGE).unwrap();
}

/// One type, one JSON: at the socket, at /status and at /report, which anybody may read and which has no addresses.
#[test]
fn a_report_is_the_same_wherever_it_is_asked_for() {
    let test = TestContext::start();
    let group = three_copies(&test);
    wait_for_line(&group, 0, "OK ", 0);
    // What differs from one moment to the next.
    let steady = |mut report: Value| {
        for passing in ["appends", "clients", "standbys"] {
            assert!(!report[passing].is_null(), "{report}");
            report[passing].take();
        }
        report
    };
    let socket = steady(group.status(0));
    let port = group.port(Process::Sidecar(0));
    let open = http::get(port, "/report").unwrap();
    assert_eq!(open.status, 200);
    assert!(!String::from_utf8_lossy(&open.body).contains("127.0.0.1"), "{:?}", open.json());
    let token = std::fs::read_to_string(group.token_file()).unwrap();
    let headers = format!("authorization: Bearer {}\r\n", token.trim());
    let guarded = http::request_with(&mut http::connect(port).unwrap(), "GET", "/status", &headers, b"").unwrap();
    assert_eq!(steady(guarded.json()), socket);
    let mut without = socket.clone();
    without["primary"].as_object_mut().unwrap().remove("address").unwrap();
    for member in without["members"].as_array_mut().unwrap() {
        member.as_object_mut().unwrap().remove("address").unwrap();
    }
    assert_eq!(steady(open.json()), without);
    group.check_logs(&[]).unwrap();
}

/// On a terminal of its own, which `script` gives it: drawn, and left as it was found when the user quits.
#[test]
fn top_draws_the_group_until_somebody_quits() {
    let test = TestContext::start();
    let mut group = three_copies(&test);
    wait_for_line(&group, 0, "OK 3 of 3 copies, standby ready\n", 0);
    let program = group.setup().program.display().to_string();
    let sockets = [0, 1].map(|index| format!("--socket {}", group.socket(index).display())).join(" ");
    let mut script = Command::new("script");
    script.args([
        "--quiet",
        "--return",
        "--command",
        &format!("{program} top --interval-ms 50 {sockets}"),
        "/dev/null",
    ]);
    script.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut top = Terminal(script.spawn().unwrap());
    let mut output = Output::of(&mut top.0);
    output.wait_for("\x1b[?1049h");
    let mut screen = Grid::default();
    let well = ["OK 3 of 3 copies, standby ready", "sidecar0  primary", "backup2", " what happened ", " q quits "];
    screen.wait_for(&mut output, |screen| well.iter().all(|text| screen.contains(text)));
    group.kill_backup(1).unwrap();
    screen.wait_for(&mut output, |screen| screen.contains("DEGRADED 2 of 3") && screen.contains(" s  backup1 lost"));
    group.kill_sidecar(0).unwrap();
    screen.wait_for(&mut output, |screen| screen.contains("sidecar1 is primary in epoch 2"));
    top.0.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    output.wait_for("\x1b[?1049l");
    assert!(top.0.wait().unwrap().success());
    group.check_logs(&OUTAGE).unwrap();
}

#[test]
fn top_needs_a_terminal() {
    let test = TestContext::start();
    let group = three_copies(&test);
    let ended =
        run_to_end(Command::new(&group.setup().program).arg("top").arg("--socket").arg(group.socket(0))).unwrap();
    assert_eq!(ended.code, Some(2));
    assert!(ended.errors.contains("`tailwind-sidecar status --watch`"), "{}", ended.errors);
    group.check_logs(&[]).unwrap();
}
