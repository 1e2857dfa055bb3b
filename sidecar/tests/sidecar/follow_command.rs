//! The commands that write records, mostly `follow` and `read --anywhere`, as a shell sees them, against a scripted sidecar: so
//! each turn of events is chosen. With real groups they are tested in `e2e`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tailwind_protocol::socket::{
    BEHIND_UNKNOWN, Batch, ErrorCode, FRAME_BODY_MAX, HELLO_HOLD, HELLO_RING, READ_ANYWHERE, READ_TAIL, Request,
    Response, Role, VERSION, VERSION_MIN, Welcome, decode_request, put_batch_record,
};

/// A command that says nothing for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A sidecar with one connection, or a few after one another, whose answers are scripted.
pub(crate) struct Sidecar {
    folder: tempfile::TempDir,
    script: JoinHandle<()>,
}

/// What happens on one connection.
type Script = Box<dyn FnOnce(&mut Peer) + Send>;

impl Sidecar {
    fn new(version: u16, script: impl FnOnce(&mut Peer) + Send + 'static) -> Sidecar {
        Sidecar::with(version, false, Role::Standby, script)
    }

    /// One of a group that keeps a table.
    pub(crate) fn of_table(script: impl FnOnce(&mut Peer) + Send + 'static) -> Sidecar {
        Sidecar::with(VERSION, true, Role::Standby, script)
    }

    /// The same of a primary.
    pub(crate) fn of_primary(script: impl FnOnce(&mut Peer) + Send + 'static) -> Sidecar {
        Sidecar::with(VERSION, true, Role::Primary, script)
    }

    /// One of a group that keeps a table, to which the command connects twice.
    pub(crate) fn of_table_twice(
        first: impl FnOnce(&mut Peer) + Send + 'static,
        second: impl FnOnce(&mut Peer) + Send + 'static,
    ) -> Sidecar {
        Sidecar::with_all(VERSION, true, Role::Standby, vec![Box::new(first), Box::new(second)])
    }

    fn with(version: u16, table: bool, role: Role, script: impl FnOnce(&mut Peer) + Send + 'static) -> Sidecar {
        Sidecar::with_all(version, table, role, vec![Box::new(script)])
    }

    fn with_all(version: u16, table: bool, role: Role, scripts: Vec<Script>) -> Sidecar {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("append.sock")).unwrap();
        let script = std::thread::spawn(move || {
            for script in scripts {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let mut peer = Peer { stream, received: Vec::new() };
                peer.welcome(version, table, role);
                script(&mut peer);
            }
        });
        Sidecar { folder, script }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("append.sock")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
        command.args(args).arg("--socket").arg(self.socket());
        command
    }

    /// Runs a command to its end; the script's assertions count.
    pub(crate) fn run(self, args: &[&str]) -> Ended {
        let output = self.command(args).output().unwrap();
        self.join();
        Ended::from(output)
    }

    pub(crate) fn join(self) {
        if let Err(panic) = self.script.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code(), out: text(output.stdout), errors: text(output.stderr) }
    }
}

pub(crate) struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Peer {
    /// Takes the next request, which must be this one, and returns its number.
    pub(crate) fn expect(&mut self, expected: Request<'_>) -> u64 {
        self.next(|request, frame| {
            assert_eq!(*frame, expected);
            request
        })
    }

    fn next<T>(&mut self, take: impl FnOnce(u64, &Request<'_>) -> T) -> T {
        loop {
            if let Some(decoded) = decode_request(&self.received, VERSION, FRAME_BODY_MAX).unwrap() {
                let (taken, size) = (take(decoded.request, &decoded.frame), decoded.size);
                self.received.drain(..size);
                return taken;
            }
            let mut bytes = [0; 4096];
            let size = self.stream.read(&mut bytes).unwrap();
            assert_ne!(size, 0, "the command has gone");
            self.received.extend_from_slice(&bytes[..size]);
        }
    }

    pub(crate) fn send(&mut self, request: u64, response: Response<'_>) {
        let mut bytes = Vec::new();
        response.encode(request, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    fn records(&mut self, request: u64, first: u64, records: &[&str]) {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| put_batch_record(&mut bytes, record.as_bytes()));
        self.send(request, Response::Records { first, records: Batch::new(records.len() as u32, &bytes).unwrap() });
    }

    /// Returns once the command has gone.
    pub(crate) fn wait_for_end(&mut self) {
        let mut bytes = [0; 4096];
        while matches!(self.stream.read(&mut bytes), Ok(1..)) {}
    }

    fn lag(&mut self, request: u64, acked: u64, behind_ms: u32, stale: bool) {
        self.send(request, Response::Lag { acked, behind_ms, stale });
    }

    /// A standby that does not know the log's end.
    fn welcome(&mut self, version: u16, table: bool, role: Role) {
        let hello = Request::Hello { version_min: VERSION_MIN, version_max: VERSION, flags: HELLO_RING };
        let request = self.expect(hello);
        let welcome = Welcome {
            version,
            role,
            ring: false,
            table,
            record_size_max: 1 << 20,
            batch_size_max: 4 << 20,
            batch_records_max: 65_536,
            inflight_max: 1000,
            record_cost: 32,
            batch_cost: 8,
            epoch: 4,
            first: 0,
            last: 0,
            primary: "db-1",
        };
        self.send(request, Response::Welcome(welcome));
    }
}

#[test]
fn follow_ends_with_the_turn() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Follow { from: 5, history: 0 });
        peer.lag(request, 0, BEHIND_UNKNOWN, true);
        peer.records(request, 5, &["five", ""]);
        peer.send(request, Response::End { next: 7, tailing: true });
        peer.lag(request, 6, 1, false);
        peer.lag(request, 6, 2, false);
        peer.records(request, 7, &["seven"]);
        peer.send(request, Response::End { next: 8, tailing: true });
        peer.send(request, Response::Turn { epoch: 5, next: 8 });
    });
    let ended = sidecar.run(&["follow", "--from", "5", "--print-lsn"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.out, "5\tfive\n6\t\n7\tseven\n");
    let lines = [
        "lag: stale, behind by an unknown time; LSN 0 is known to be acknowledged",
        "caught up: LSN 7 is next",
        "lag: fresh, 1 ms behind at most; LSN 6 is known to be acknowledged",
        "turn: this sidecar is primary in epoch 5, and LSN 8 is next",
    ];
    assert_eq!(ended.errors.lines().collect::<Vec<_>>(), lines);
}

/// It hangs, so it cannot say that its view grows old.
#[test]
fn a_silent_sidecar_is_reported_as_stale() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Follow { from: 1, history: 0 });
        peer.lag(request, 6, 1, false);
        std::thread::sleep(Duration::from_secs(5));
        peer.send(request, Response::Turn { epoch: 5, next: 1 });
    });
    let ended = sidecar.run(&["follow", "--from", "1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.errors.matches("lag: stale: the sidecar has been silent for 2s").count(), 1, "{}", ended.errors);
}

#[test]
fn each_lag_is_reported_on_demand() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.lag(request, 6, 1, false);
        peer.lag(request, 6, 2, false);
        peer.send(request, Response::Turn { epoch: 5, next: 1 });
    });
    let ended = sidecar.run(&["follow", "--print-lag"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.errors.matches("lag: fresh").count(), 2, "{}", ended.errors);
}

/// From the end of the log, which only the primary knows; then through a turn, and the loss of the role.
#[test]
fn follow_goes_on_through_turns() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Position);
        peer.send(request, Response::Position { epoch: 4, last: 9 });
        let request = peer.expect(Request::Follow { from: 10, history: 0 });
        peer.send(request, Response::Turn { epoch: 5, next: 10 });
        let request = peer.expect(Request::Read { from: 10, limit: 0, flags: READ_TAIL, history: 0 });
        peer.records(request, 10, &["ten"]);
        let code = ErrorCode::NotPrimary;
        let (fatal, retry_after_ms) = (false, 0);
        peer.send(request, Response::Error { code, fatal, retry_after_ms, message: "no longer" });
        let request = peer.expect(Request::Follow { from: 11, history: 0 });
        peer.records(request, 11, &["eleven"]);
        let code = ErrorCode::ShuttingDown;
        peer.send(0, Response::Error { code, fatal: true, retry_after_ms, message: "this sidecar is ending" });
    });
    let ended = sidecar.run(&["follow", "--from", "end", "--go-on"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.out, "ten\neleven\n");
    for words in [
        "turn: this sidecar is primary in epoch 5, and LSN 10 is next\nrole lost: following\n",
        "follow: written: 2 records, up to LSN 11; resume with --from 12",
        "this sidecar is ending",
    ] {
        assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
    }
}

#[test]
fn follow_ends_when_nobody_reads_its_output() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Follow { from: 0, history: 0 });
        peer.records(request, 1, &["one"]);
        peer.send(request, Response::End { next: 2, tailing: true });
        // A command that hears of the lag all the time has no time-out in which to look.
        let mut bytes = Vec::new();
        Response::Lag { acked: 1, behind_ms: 1, stale: false }.encode(request, &mut bytes);
        while peer.stream.write_all(&bytes).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let mut follow = sidecar.command(&["follow"]);
    let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = [0; 4];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"one\n");
    drop(out);
    assert!(child.wait().unwrap().success());
    sidecar.join();
}

#[test]
fn read_anywhere_asks_a_standby() {
    let sidecar = Sidecar::new(VERSION, |peer| {
        let request = peer.expect(Request::Read { from: 0, limit: 2, flags: READ_ANYWHERE, history: 0 });
        peer.records(request, 1, &["one", "two"]);
        peer.send(request, Response::End { next: 3, tailing: false });
    });
    let ended = sidecar.run(&["read", "--anywhere", "--limit", "2"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.errors.as_str()), (Some(0), "one\ntwo\n", ""));
}

/// `first` is not an LSN: what was written is counted.
#[test]
fn a_failure_reports_how_many_records_were_written() {
    let read = Request::Read { from: 0, limit: 0, flags: READ_ANYWHERE, history: 0 };
    for (args, requested) in
        [(&["follow"][..], Request::Follow { from: 0, history: 0 }), (&["read", "--anywhere"], read)]
    {
        for (first, words) in [
            (Some(1), "written: 5 records, up to LSN 5; resume with --from 6"),
            (Some(1000), "written: 5 records, up to LSN 1004; resume with --from 1005"),
            (None, "no record was read from the first one on"),
        ] {
            let requested = requested.clone();
            let sidecar = Sidecar::new(VERSION, move |peer| {
                let request = peer.expect(requested);
                first.into_iter().for_each(|first| peer.records(request, first, &["a", "b", "c", "d", "e"]));
                let (code, message) = (ErrorCode::ShuttingDown, "this sidecar is ending");
                peer.send(0, Response::Error { code, fatal: true, retry_after_ms: 0, message });
            });
            let ended = sidecar.run(args);
            assert_eq!(ended.code, Some(1), "{ended:?}");
            assert_eq!(ended.out.lines().count(), if first.is_some() { 5 } else { 0 });
            assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
        }
    }
}

#[test]
fn an_older_sidecar_is_named_as_such() {
    for args in [&["follow"][..], &["read", "--anywhere"], &["follow", "--from", "end"]] {
        let ended = Sidecar::new(1, |_| {}).run(args);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.errors.contains("needs version 2 of the append socket"), "{}", ended.errors);
        assert!(ended.errors.contains("this sidecar speaks version 1: update it"), "{}", ended.errors);
    }
}

#[test]
fn a_missing_sidecar_is_named_with_its_socket() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar")).args(args).output().unwrap();
        Ended::from(output)
    };
    let ended = run(&["follow", "--socket", "/nonexistent/a.sock"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.errors.contains("/nonexistent/a.sock") && ended.errors.contains("start the sidecar"), "{ended:?}");
    let ended = run(&["read", "--anywhere", "--socket", "/nonexistent/a.sock,/nonexistent/b.sock"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    for words in ["no sidecar answers", "/nonexistent/a.sock", "/nonexistent/b.sock"] {
        assert!(ended.errors.contains(words), "`{words}` is not in:\n{}", ended.errors);
    }
    let ended = run(&["follow", "--framing", "length", "--print-lsn", "--socket", "/nonexistent/a.sock"]);
    assert!(ended.code == Some(2) && ended.errors.contains("--print-lsn goes with"), "{ended:?}");
    let help = run(&["follow", "--help"]);
    assert!(help.out.contains("Exit codes: 0 once the sidecar is primary"), "{}", help.out);
}

/// It would be in vain; among several sockets another one may become primary.
#[test]
fn a_reader_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("append.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let script = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Peer { stream, received: Vec::new() };
        let flags = HELLO_HOLD | HELLO_RING;
        let request = peer.expect(Request::Hello { version_min: VERSION_MIN, version_max: VERSION, flags });
        let (code, fatal, message) = (ErrorCode::NotPrimary, true, "this sidecar is a reader");
        peer.send(request, Response::Error { code, fatal, retry_after_ms: 0, message });
    });
    let mut barrier = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    let ended = Ended::from(barrier.args(["barrier", "--wait", "--socket"]).arg(&socket).output().unwrap());
    script.join().unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.errors.contains("this sidecar is a reader"), "{}", ended.errors);
}

/// The first socket of several that answers is taken, primary or not; with --wait, once there is one.
#[test]
fn follow_waits_for_a_sidecar() {
    let folder = tempfile::tempdir().unwrap();
    let late = folder.path().join("late.sock");
    let mut follow = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
    follow.args(["follow", "--wait", "--socket", "/nonexistent/a.sock", "--socket"]).arg(&late);
    let child = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let listener = UnixListener::bind(&late).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut peer = Peer { stream, received: Vec::new() };
    peer.welcome(VERSION, false, Role::Standby);
    let request = peer.expect(Request::Follow { from: 0, history: 0 });
    peer.send(request, Response::Turn { epoch: 5, next: 1 });
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

fn interrupt(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for a command whose output nobody reads.
fn end_of(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if Instant::now() > deadline => {
                child.kill().unwrap();
                panic!("it has not ended");
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

#[test]
fn an_interrupted_command_says_how_to_resume() {
    const NONE: &[&str] = &[];
    const TWO: &[&str] = &["one", "two"];
    let read = |flags| Request::Read { from: 1, limit: 0, flags, history: 0 };
    let follow = Request::Follow { from: 1, history: 0 };
    for (name, requested) in [("read", read(0)), ("tail", read(READ_TAIL)), ("follow", follow)] {
        for (records, out, words) in [
            (TWO, "one\ntwo\n", "written: 2 records, up to LSN 2; resume with --from 3"),
            (NONE, "", "written: nothing; resume with --from 1"),
        ] {
            for signal in [Signal::INT, Signal::TERM] {
                let (asks, asked) = mpsc::channel();
                let requested = requested.clone();
                let sidecar = Sidecar::new(VERSION, move |peer| {
                    let request = peer.expect(requested);
                    if !records.is_empty() {
                        peer.records(request, 1, records);
                    }
                    asks.send(()).unwrap();
                    peer.wait_for_end();
                });
                let mut command = sidecar.command(&[name, "--from", "1"]);
                let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
                asked.recv_timeout(PATIENCE).unwrap();
                interrupt(&child, signal);
                let ended = Ended::from(child.wait_with_output().unwrap());
                sidecar.join();
                assert_eq!((ended.code, ended.out.as_str()), (Some(1), out), "{ended:?}");
                assert_eq!(ended.errors, format!("{name}: interrupted\n{words}\n"));
            }
        }
    }
}

#[test]
fn a_command_that_waits_says_how_to_resume() {
    let nothing_written = |from| format!("written: nothing; resume with --from {from}\n");
    for (name, words) in [
        ("append", "acknowledged: nothing\nnothing is in flight; resume with --skip 0\n".to_owned()),
        ("read", nothing_written("first")),
        ("tail", nothing_written("end")),
        ("follow", nothing_written("first")),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwind-sidecar"));
        command.args([name, "--wait", "--socket", "/nonexistent/a.sock"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut rest) = (String::new(), String::new());
        errors.read_line(&mut line).unwrap();
        interrupt(&child, Signal::INT);
        errors.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{line}{rest}");
        assert!(line.starts_with("waiting for a ") && line.contains("/nonexistent/a.sock"), "{line}");
        assert_eq!(rest, format!("{name}: interrupted\n{words}"));
    }
}

/// It has more to write than its buffer and a pipe hold, and nobody reads.
#[test]
fn an_interrupted_command_does_not_wait_for_a_reader() {
    let record = "x".repeat(1 << 10);
    let (asks, asked) = mpsc::channel();
    let sidecar = Sidecar::new(VERSION, move |peer| {
        let request = peer.expect(Request::Read { from: 1, limit: 0, flags: READ_TAIL, history: 0 });
        for first in [1, 51, 101, 151] {
            peer.records(request, first, &[record.as_str(); 50]);
        }
        asks.send(()).unwrap();
        peer.wait_for_end();
    });
    let mut command = sidecar.command(&["tail", "--from", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    asked.recv_timeout(PATIENCE).unwrap();
    interrupt(&child, Signal::TERM);
    let status = end_of(&mut child);
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    sidecar.join();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("tail: interrupted, and the output cannot be written: "), "{errors}");
}
