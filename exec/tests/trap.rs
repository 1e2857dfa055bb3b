//! Programs under the filter, for real: which calls arrive, as what, and what their callers get.
#![allow(unsafe_code, reason = "system calls as no library would make them")]

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libc::{EBADF, EIO, SIGUSR1, SYS_tgkill};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tailwind_exec::call::{Call, Descriptor, Thread};
use tailwind_exec::trap::{Answer, Listener, Outcome, RULES, Stopped, spawn};

use self::cases::int;
use self::program::{DIRECTORY, MARK, call, part};

#[path = "trap/cases.rs"]
mod cases;
#[path = "trap/program.rs"]
mod program;

const DEADLINE: Duration = Duration::from_secs(60);

/// Under the filter, with its output in a pipe.
fn start(mut command: Command) -> (Child, Listener) {
    command.stdout(Stdio::piped());
    spawn(command).expect("start under the filter")
}

/// The next stopped call.
fn next(listener: &Listener) -> Stopped {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(stopped) = listener.receive().expect("receive") {
            return stopped;
        }
        assert!(Instant::now() < deadline, "a call is stopped in time");
        wait(listener);
    }
}

/// The next sync. Calls before it continue.
fn next_sync(listener: &Listener) -> Stopped {
    loop {
        let stopped = next(listener);
        if stopped.call.is_sync() {
            return stopped;
        }
        listener.answer(stopped.id, Answer::Go).expect("answer");
    }
}

/// Until something is there, or for a tenth of a second.
fn wait(listener: &Listener) {
    let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&tenth)).expect("poll");
}

/// Answers all calls until the program has ended well. The calls, and what it wrote.
fn supervise(
    (mut child, listener): (Child, Listener),
    mut answer: impl FnMut(&Stopped) -> Answer,
) -> (Vec<Stopped>, String) {
    let deadline = Instant::now() + DEADLINE;
    let mut calls = Vec::new();
    let status = loop {
        while let Some(stopped) = listener.receive().expect("receive") {
            assert!(listener.waits(stopped.id).expect("look"));
            assert!(listener.answer(stopped.id, answer(&stopped)).expect("answer"));
            calls.push(stopped);
        }
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("kill");
            panic!("the program ends in time; until now it called {calls:?}");
        }
        wait(&listener);
    };
    let output = output(&mut child);
    assert!(status.success(), "{status}: {output}");
    (calls, output)
}

/// All that it wrote, once it has ended.
fn output(child: &mut Child) -> String {
    io::read_to_string(child.stdout.take().expect("a pipe")).expect("read its output")
}

/// What it wrote behind `key: `.
fn said<'a>(output: &'a str, key: &str) -> Vec<&'a str> {
    output.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).collect()
}

/// Syncs are done, all else continues.
fn done_or_go(stopped: &Stopped) -> Answer {
    if stopped.call.is_sync() { Answer::Done } else { Answer::Go }
}

#[test]
fn each_call_is_stopped_refused_or_unseen() {
    let directory = tempfile::tempdir().expect("make a directory");
    let mut command = part("calls");
    command.env(DIRECTORY, directory.path());
    let (calls, output) = supervise(start(command), done_or_go);
    assert_eq!(said(&output, "all cases"), ["done"]);

    // For each case, exactly the calls arrived that the program reports: its thread made a mark before each, and at the end.
    let is_mark = |call: &Call| *call == Call::Seek { descriptor: Descriptor(MARK), target: Some(0) };
    let caller = calls.iter().find(|stopped| is_mark(&stopped.call)).expect("a mark").thread;
    let calls: Vec<Call> =
        calls.into_iter().filter(|stopped| stopped.thread == caller).map(|stopped| stopped.call).collect();
    let arrived: Vec<&[Call]> = calls.split(is_mark).skip(1).collect();
    let cases: Vec<(u32, &str)> = said(&output, "case")
        .into_iter()
        .filter_map(|case| case.split_once(' '))
        .map(|(number, fate)| (number.parse().expect("a number"), fate))
        .collect();
    assert_eq!(arrived.len(), cases.len() + 1);
    for ((number, fate), arrived) in cases.iter().zip(arrived) {
        let arrived: Vec<String> = arrived.iter().map(|call| format!("Stopped({call:?})")).collect();
        let wanted = if fate.starts_with("Stopped") { vec![*fate] } else { vec![] };
        assert_eq!(arrived, wanted, "call {number}: {fate}");
    }

    // No call of the table was left out.
    for rule in RULES {
        let fate = match rule.outcome {
            Outcome::Stop(_) => "Stopped".to_owned(),
            Outcome::Refuse(errno) => format!("Refused({})", errno.raw_os_error()),
            Outcome::Pass => "Unseen(Ok".to_owned(),
        };
        for name in rule.calls {
            let tried = cases.iter().any(|(number, tried)| *number == name.number && tried.starts_with(&fate));
            assert!(tried, "{} {}: {}", name.name(), rule.when, rule.outcome);
        }
    }
}

#[test]
fn fsync_returns_what_was_answered() {
    let mut answers = [Answer::Done, Answer::Fail(Errno::IO), Answer::Go].into_iter();
    let (calls, output) = supervise(start(part("fsyncs")), |stopped| match stopped.call {
        Call::Sync(_) => answers.next().expect("three calls"),
        _ => Answer::Go,
    });
    assert_eq!(said(&output, "fsync"), ["Ok(0)", &format!("Err({EIO})"), &format!("Err({EBADF})")]);
    let mut syncs = calls.iter().filter(|stopped| stopped.call.is_sync());
    assert!(syncs.all(|stopped| stopped.call == Call::Sync(Descriptor(-1))));
}

#[test]
fn descendants_and_callers_without_libc_are_stopped() {
    let (calls, output) = supervise(start(part("descendants")), done_or_go);
    assert_eq!(said(&output, "fsync"), ["Ok(0)"; 3]);
    assert_eq!(said(&output, "thread"), ["0"]);
    let syncs = calls.iter().filter(|stopped| stopped.call.is_sync());
    let mut threads: Vec<Thread> = syncs.map(|stopped| stopped.thread).collect();
    assert_eq!(threads.len(), 4);
    threads.dedup();
    assert_eq!(threads.len(), 2, "the child's and the program's own");
}

#[test]
fn call_is_answered_once() {
    let (mut child, listener) = start(part("fsyncs"));
    let stopped = next_sync(&listener);
    assert!(listener.waits(stopped.id).expect("look"));
    assert_eq!(listener.receive().expect("receive"), None, "it has been received");
    assert!(listener.answer(stopped.id, Answer::Done).expect("answer"));
    assert!(!listener.waits(stopped.id).expect("look"));
    // An error while the thread has not run yet.
    assert!(!listener.answer(stopped.id, Answer::Done).is_ok_and(|answered| answered));
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn signal_does_not_interrupt_a_received_call() {
    let (_, output) = supervise(start(part("signal")), |stopped| {
        if let (Call::Sync(_), Thread(thread)) = (stopped.call, stopped.thread) {
            let status = || fs::read_to_string(format!("/proc/{thread}/status")).expect("read its status");
            let process: u64 = field(&status(), "Tgid").parse().expect("a number");
            call(SYS_tgkill, [process, u64::from(thread), int(SIGUSR1), 0, 0, 0]).expect("send a signal");
            let deadline = Instant::now() + DEADLINE;
            while field(&status(), "State") != "D (disk sleep)" {
                assert!(Instant::now() < deadline, "it falls asleep again, uninterruptibly");
                thread::yield_now();
            }
            let pending = format!("{:016x}", 1 << (SIGUSR1 - 1));
            assert_eq!(field(&status(), "SigPnd"), pending, "the signal waits for the answer");
        }
        done_or_go(stopped)
    });
    assert_eq!(said(&output, "fsync"), ["Ok(0), caught 1"]);
}

/// A line of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("such a line").trim()
}

#[test]
fn thread_that_was_killed_is_not_answered() {
    let (mut child, listener) = start(part("fsyncs"));
    let received = next_sync(&listener);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert!(!listener.waits(received.id).expect("look"));
    assert!(!listener.answer(received.id, Answer::Done).expect("answer"));
    assert_eq!(listener.receive().expect("receive"), None);
}

#[test]
fn call_that_has_gone_is_not_received() {
    let (mut child, listener) = start(part("fsyncs"));
    let ended = || {
        let mut descriptors = [PollFd::new(&listener, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).expect("poll");
        descriptors[0].revents().contains(PollFlags::HUP)
    };
    assert!(!ended(), "a call waits");
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(listener.receive().expect("receive"), None);
    assert!(ended(), "no process is left");
}

#[test]
fn program_dies_with_its_supervisor_and_sees_no_error() {
    // Some thirty times, because it is a race in the kernel: without the program's own listener one in eight saw an error.
    for _ in 0..32 {
        let mut supervisor = part("supervisor").stdout(Stdio::piped()).spawn().expect("start");
        let mut lines =
            BufReader::new(supervisor.stdout.take().expect("a pipe")).lines().map(|line| line.expect("read"));
        let program = lines.find_map(|line| Some(line.strip_prefix("supervised: ")?.to_owned()));
        let program = Pid::from_raw(program.expect("such a line").parse().expect("a number")).expect("not zero");
        let program = pidfd_open(program, PidfdFlags::empty()).expect("open the process");
        let ended = |tv_sec| {
            poll(&mut [PollFd::new(&program, PollFlags::IN)], Some(&Timespec { tv_sec, tv_nsec: 0 })).expect("poll")
                == 1
        };
        assert!(!ended(0));
        supervisor.kill().expect("kill");
        assert!(ended(60), "it dies as well");
        supervisor.wait().expect("wait");
        assert_eq!(lines.collect::<Vec<_>>().concat(), "", "it has nothing to say");
    }
}

#[test]
fn program_inherits_three_descriptors_and_a_listener_and_gets_no_new_privileges() {
    let left_open = File::open("/dev/null").expect("open");
    fcntl_setfd(&left_open, FdFlags::empty()).expect("leave it open on exec");
    let (_, output) = supervise(start(part("descriptors")), done_or_go);
    let descriptors = said(&output, "descriptors")[0];
    assert_eq!(descriptors.split(", ").count(), 5, "0, 1, 2, the listener, and what lists them: {descriptors}");
    assert_eq!(field(&output, "NoNewPrivs"), "1");
    assert_eq!(field(&output, "Seccomp"), "2");
}

#[test]
fn errors_say_what_could_not_be_done() {
    let missing = spawn(Command::new("/nowhere/program")).expect_err("no such program");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let (_, output) = supervise(start(part("nested")), done_or_go);
    let nested = said(&output, "nested")[0];
    assert!(nested.starts_with("cannot install the seccomp filter (the container's runtime has"), "{nested}");
}
