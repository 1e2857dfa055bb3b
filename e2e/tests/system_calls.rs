//! What the kernel is asked for by a lone append: system calls of the sidecar and of its backups, counted by strace(1).
//!
//! Over a network they are most of what an append costs, and unlike times they are the same on a busy machine. One client appends
//! one record at a time and sleeps until its ack; the sidecar does not spin. The trace is cut where the client's frames arrive,
//! and a cheap piece counts: what each append needs is in all of them, and timers, marks and heartbeats only add to some.
//!
//! The committed figures are in `system_calls.txt`; `scripts/system_calls.sh` compares and writes them.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tailwind_client::Options;
use tailwind_client::blocking::Client;
use tailwind_e2e::context::{TestContext, cannot_run, note};
use tailwind_e2e::processes::group::{Group, Process};

const FIGURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system_calls.txt");
/// Writes the figures instead of comparing them.
const ACCEPT: &str = "TAILWIND_ACCEPT";
const APPENDS: usize = 400;
/// How many of these are not counted, at the start.
const WARM_UP: usize = 50;
/// No other frame to the sidecar has the size of one with such a payload.
const PAYLOAD: usize = 1234;
const FRAME: i64 = 16 + PAYLOAD as i64;
const BACKUPS: usize = 3;
/// What the path waits for in milliseconds while nothing is due: such a turn is not the append's.
const TICK: &str = ", 5, NULL";

/// What a system call is to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// It handed something out.
    Sends,
    /// It brought something.
    Receives,
    /// It slept until something came.
    Wakes,
    /// It found nothing, or slept in vain.
    Polls,
    /// None of these.
    Others,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Sends, Kind::Receives, Kind::Wakes, Kind::Polls, Kind::Others];

    fn name(self) -> &'static str {
        match self {
            Kind::Sends => "sends",
            Kind::Receives => "receives",
            Kind::Wakes => "wakes",
            Kind::Polls => "polls",
            Kind::Others => "others",
        }
    }
}

/// A system call that has returned.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    /// The number of the thread.
    id: u32,
    /// Seconds.
    at: f64,
    kind: Kind,
    result: i64,
    /// A sleep to the next tick that brought nothing.
    ticks: bool,
}

impl Call {
    /// Reads a line of `strace -f -ttt`; `None` for one that shows no return.
    fn parse(line: &str) -> Option<Call> {
        let (id, rest) = line.split_once(' ')?;
        let (at, call) = rest.trim_start().split_once(' ')?;
        let (_, result) = call.rsplit_once(" = ")?;
        let result: i64 = result.split(' ').next()?.parse().ok().or_else(|| result.starts_with("0x").then_some(0))?;
        let call = call.strip_prefix("<... ").unwrap_or(call);
        let name = call.split(['(', ' ']).next()?;
        let kind = match name {
            "sendto" | "sendmsg" | "sendmmsg" | "write" | "writev" | "pwrite64" => Kind::Sends,
            "recvfrom" | "recvmsg" | "recvmmsg" | "read" | "readv" | "pread64" if result >= 0 => Kind::Receives,
            "epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "poll" | "ppoll" | "select" | "pselect6" if result > 0 => {
                Kind::Wakes
            }
            "futex" if result == 0 && !call.contains("WAKE") => Kind::Wakes,
            "recvfrom" | "recvmsg" | "recvmmsg" | "read" | "readv" | "pread64" | "epoll_wait" | "epoll_pwait"
            | "epoll_pwait2" | "poll" | "ppoll" | "select" | "pselect6" | "nanosleep" | "clock_nanosleep" => {
                Kind::Polls
            }
            _ => Kind::Others,
        };
        let ticks = name.starts_with("epoll") && result == 0 && call.contains(TICK);
        Some(Call { id: id.parse().ok()?, at: at.parse().ok()?, kind, result, ticks })
    }
}

/// The calls of a process, in the order in which they returned; without the polls of turns that a tick began, up to the first
/// call that is another.
fn calls(trace: &str) -> Vec<Call> {
    let mut ticking = BTreeMap::new();
    let counts = |call: &Call| {
        let ticks = ticking.entry(call.id).or_insert(false);
        *ticks = call.ticks || (*ticks && call.kind == Kind::Polls);
        !*ticks
    };
    trace.lines().filter_map(Call::parse).filter(counts).collect()
}

/// How often each kind of call is in the pieces that begin at these moments: no more often than in nine of ten.
fn cheap_piece(calls: &[Call], begins: &[f64]) -> BTreeMap<Kind, usize> {
    let cheap = |kind| {
        let mut counts = vec![0; begins.len()];
        for call in calls.iter().filter(|call| call.kind == kind) {
            if let Some(piece) = begins.partition_point(|begin| *begin <= call.at).checked_sub(1) {
                counts[piece] += 1;
            }
        }
        // The last piece has no end.
        counts.pop();
        counts.sort_unstable();
        counts[counts.len() / 10]
    };
    Kind::ALL.map(|kind| (kind, cheap(kind))).into()
}

/// True for a call that brings the sidecar an append.
fn arrives(call: &Call) -> bool {
    call.kind == Kind::Receives && call.result == FRAME
}

/// True where this user may trace own processes.
fn can_trace(test: &str) -> bool {
    match Command::new("strace").args(["-D", "-f", "-o", "/dev/null", "true"]).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            cannot_run(test, &format!("strace: {}", String::from_utf8_lossy(&output.stderr).trim()));
            false
        }
        Err(error) => {
            cannot_run(test, &format!("strace: {error}"));
            false
        }
    }
}

/// A program that is the sidecar's, and has its system calls written into the folder. It keeps its process id.
fn traced(program: &Path, folder: &Path) -> std::path::PathBuf {
    let (script, traces) = (folder.join("traced"), folder.join("trace"));
    let (program, traces) = (program.display(), traces.display());
    let text = format!("#!/bin/sh\nexec strace -D -f -qq -ttt -s 0 -o '{traces}'.$$ '{program}' \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// Counts the calls of a lone append, by process and kind. Wakes and polls are as many as there are at most, or more.
fn count(test: &TestContext, fabric: &str) -> BTreeMap<(&'static str, Kind), usize> {
    let folder = tempfile::tempdir().unwrap();
    let mut setup = test.setup(fabric).unwrap();
    setup.program = traced(&setup.program, folder.path());
    (setup.backups, setup.copies, setup.sidecars) = (BACKUPS, BACKUPS, 1);
    setup.segment_size = "8MiB".into();
    setup.buffers = 4;
    // Periodic messages are made rare.
    setup.backup_options.push(("--heartbeat-interval-ms", "1000".into()));
    setup.sidecar_options.extend([("--spin-us", "0".to_owned()), ("--heartbeat-silence-ms", "60000".to_owned())]);
    let mut group = test.start_group(setup).unwrap();
    let options =
        Options { hold: true, timeout: Some(Duration::from_secs(60)), spin: Duration::ZERO, socket_only: true };
    let mut client = Client::connect_with(group.socket(0), &options).unwrap();
    for _ in 0..APPENDS {
        client.append(&[7; PAYLOAD]).unwrap();
    }
    drop(client);
    let trace = |group: &Group, process| {
        let path = folder.path().join(format!("trace.{}", group.pid(process).unwrap()));
        calls(&fs::read_to_string(path).unwrap())
    };
    let sidecar = |group: &Group| trace(group, Process::Sidecar(0));
    // The tracer writes as the calls return; of the client's end it hears last.
    let arrived = |calls: &[Call]| calls.iter().filter(|call| arrives(call)).count();
    group.wait("the trace", |group| arrived(&sidecar(group)) == APPENDS).unwrap();
    let mut sidecar = sidecar(&group);
    // What the path hands to another thread costs it a call. The other threads have timers of their own, and where the machine is
    // so busy that an append takes as long as these, they are in every piece.
    let path = sidecar.iter().find(|call| arrives(call)).unwrap().id;
    sidecar.retain(|call| call.id == path);
    let backups: Vec<Call> = (0..BACKUPS).flat_map(|index| trace(&group, Process::Backup(index))).collect();
    group.kill_all().unwrap();
    let begins: Vec<f64> = sidecar.iter().filter(|call| arrives(call)).map(|call| call.at).skip(WARM_UP).collect();
    let mut counted = BTreeMap::new();
    for (name, calls) in [("sidecar", sidecar), ("backups", backups)] {
        counted.extend(cheap_piece(&calls, &begins).into_iter().map(|(kind, count)| ((name, kind), count)));
    }
    // Acks may come one by one, and each then wakes the sidecar, which looks at all its sockets: on another machine they do.
    let sockets = if fabric == "tcp" { 1 + BACKUPS } else { 1 };
    let mut at_least = |kind, least: usize| {
        let count: &mut usize = counted.get_mut(&("sidecar", kind)).unwrap();
        *count = least.max(*count);
        *count
    };
    let receives = at_least(Kind::Receives, 0);
    let wakes = at_least(Kind::Wakes, receives);
    at_least(Kind::Polls, wakes * sockets);
    counted
}

/// The committed figures: lines of fabric, process, kind and count.
fn committed() -> BTreeMap<(String, String, String), usize> {
    let text = fs::read_to_string(FIGURES).unwrap();
    let figure = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let mut word = || words.next().unwrap();
        ((word(), word(), word()), word().parse().unwrap())
    };
    text.lines().map(figure).collect()
}

#[test]
fn a_lone_append_asks_no_more_of_the_kernel() {
    let test = TestContext::start();
    if !can_trace("a_lone_append_asks_no_more_of_the_kernel") {
        return;
    }
    let (mut figures, mut more) = (String::new(), String::new());
    let accept = std::env::var_os(ACCEPT).is_some();
    let committed = if accept { BTreeMap::new() } else { committed() };
    for fabric in ["shm", "tcp"] {
        for ((process, kind), count) in count(&test, fabric) {
            let name = kind.name();
            writeln!(figures, "{fabric} {process} {name} {count}").unwrap();
            let Some(before) = committed.get(&(fabric.to_owned(), process.to_owned(), name.to_owned())) else {
                continue;
            };
            if count > *before {
                writeln!(more, "{fabric}: {process}: {count} {name} for each append, {before} are committed").unwrap();
            }
        }
    }
    note(&format!("system calls of a lone append:\n{figures}"));
    if accept {
        return fs::write(FIGURES, figures).unwrap();
    }
    assert_eq!(committed.len(), figures.lines().count(), "{FIGURES} has other lines: scripts/system_calls.sh --accept");
    assert!(
        more.is_empty(),
        "{more}a lone append asks more of the kernel than before: find out why, or accept it with a reason in the commit: \
         scripts/system_calls.sh --accept"
    );
}

#[test]
fn a_trace_is_cut_where_appends_arrive() {
    let trace = "\
7 1.000000 epoll_pwait(13, [{events=EPOLLIN}], 32, 5, NULL, 0) = 1
7 1.000001 recvfrom(23, \"\"..., 262144, 0, NULL, NULL) = 1250
7 1.000002 sendmsg(21, {msg_iov=[...]}, MSG_DONTWAIT) = 176
7 1.000003 recvfrom(21, 0x7f6a, 512, MSG_DONTWAIT, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
7 1.000004 epoll_pwait(13, [], 32, 5, NULL, 0) = 0
7 1.000005 recvfrom(21, 0x7f6a, 512, MSG_DONTWAIT, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
8 1.000006 futex(0x7f6a, FUTEX_WAIT_BITSET_PRIVATE, 1, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
7 1.000007 epoll_pwait(13,  <unfinished ...>
8 1.000008 <... futex resumed>)            = 0
7 1.000009 <... epoll_pwait resumed>[{events=EPOLLIN}], 32, 5, NULL, 0) = 1
7 1.000010 recvfrom(21, \"\"..., 512, MSG_DONTWAIT, NULL, NULL) = 8
7 1.000011 sendto(23, \"\"..., 24, MSG_NOSIGNAL, NULL, 0) = 24
7 1.000012 mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f6a
7 2.000001 recvfrom(23, \"\"..., 262144, 0, NULL, NULL) = 1250
8 2.000002 +++ exited with 0 +++
";
    let calls = calls(trace);
    let begins: Vec<f64> = calls.iter().filter(|call| arrives(call)).map(|call| call.at).collect();
    assert_eq!(begins, [1.000001, 2.000001]);
    let counts: Vec<usize> = cheap_piece(&calls, &begins).into_values().collect();
    assert_eq!(counts, [2, 2, 2, 1, 1], "sends, receives, wakes, polls without those of the tick, others");
}
