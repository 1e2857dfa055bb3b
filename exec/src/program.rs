//! The program as a process: its start, its signals, its children, its end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper, wait};
use tracing::info;

use crate::call::Thread;
use crate::descriptors;
use crate::trap::{self, Answer, Listener, Refusals, Refused, Settings, Stopped};
use crate::volume::{descendants, sleeps_uninterruptibly};

/// Signals that are passed on to the program.
const PASSED_ON: [Signal; 8] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];
/// How long the last descendants may take to die. SIGKILL is certain, but a process that waits for a device ends late.
const KILL_TIME: Duration = Duration::from_secs(60);

/// How long a thread may take to notice a signal. One that it blocks or ignores it never notices.
const NOTICE_TIME: Duration = Duration::from_millis(2);
const NOTICE_PAUSE: Duration = Duration::from_micros(50);

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl Exit {
    /// The exit code that says the same, as shells have it.
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(0)),
        }
    }
}

/// Signals of this process, as flags, and a socket that wakes the waiting thread.
pub struct Signals {
    wake: UnixStream,
    flags: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    /// From now on the signals that are passed on do nothing to this process.
    pub fn catch() -> io::Result<Signals> {
        let (wake, write) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let mut flags = Vec::new();
        for signal in PASSED_ON.into_iter().chain([Signal::CHILD]) {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag first: a woken thread must find it set.
            signal_hook::flag::register(signal.as_raw(), flag.clone())?;
            signal_hook::low_level::pipe::register(signal.as_raw(), write.try_clone()?)?;
            flags.push((signal, flag));
        }
        Ok(Signals { wake, flags })
    }

    /// Whether one has come since the last call of `take`.
    fn any(&self) -> bool {
        self.flags.iter().any(|(_, flag)| flag.load(Ordering::Acquire))
    }

    /// The signals that have come since the last call.
    pub fn take(&self) -> Vec<Signal> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut &self.wake, &mut bytes), Ok(count) if count == bytes.len()) {}
        let came = |(signal, flag): &(Signal, Arc<AtomicBool>)| flag.swap(false, Ordering::AcqRel).then_some(*signal);
        self.flags.iter().filter_map(came).collect()
    }

    /// Polls readable when a signal has come.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Takes in children that have ended while there is no program.
pub(crate) fn reap_orphans() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// The program and all that descends from it.
pub struct Program {
    child: Child,
    pid: Pid,
    listener: Listener,
    signals: Signals,
    /// Signals that are still to be passed on, and when they came.
    held: Vec<(Signal, Instant)>,
    /// A signal has asked for the end.
    asked_to_end: bool,
}

/// Signals that ask a process to end.
const ENDINGS: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::QUIT];

/// Whether one of these asks for the end.
pub(crate) fn ask_for_the_end(signals: &[Signal]) -> bool {
    signals.iter().any(|signal| ENDINGS.contains(signal))
}

impl Program {
    /// Starts it.
    pub fn start(command: Command, signals: Signals) -> io::Result<Program> {
        Program::start_with(command, signals, Settings::default())
    }

    /// Starts it with a lock that it inherits: if this process is killed, the lock is held until the last process of the program
    /// has ended, too.
    pub fn start_under(command: Command, signals: Signals, lock: &OwnedFd) -> io::Result<Program> {
        Program::start_with(command, signals, Settings { inherited: Some(lock.as_raw_fd()), ..Settings::default() })
    }

    /// Starts it, and counts what it is refused.
    pub fn start_counted(command: Command, signals: Signals) -> io::Result<Program> {
        Program::start_with(command, signals, Settings { refusals: Refusals::Counted, ..Settings::default() })
    }

    fn start_with(command: Command, signals: Signals, settings: Settings) -> io::Result<Program> {
        // Orphans come to this process, so that none is left when the program has to end.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let settings = Settings { descriptors: descriptors::before(), ..settings };
        let (child, listener) = trap::spawn_with(command, settings)?;
        let pid = Pid::from_child(&child);
        Ok(Program { child, pid, listener, signals, held: Vec::new(), asked_to_end: false })
    }

    /// The next stopped call, if one waits.
    pub fn receive(&self) -> io::Result<Option<Stopped>> {
        self.listener.receive()
    }

    /// The stopped call that the [listener](Program::listener) was polled readable for.
    pub fn take(&self) -> io::Result<Option<Stopped>> {
        self.listener.take()
    }

    /// What it was refused, and how often: if that is counted.
    pub fn refused(&self) -> BTreeMap<Refused, u64> {
        self.listener.refused()
    }

    /// Lets a stopped thread continue.
    pub fn answer(&self, id: u64, answer: Answer) -> io::Result<()> {
        // One that is not there any more needs no answer.
        self.listener.answer(id, answer).map(drop)
    }

    /// Where stopped calls arrive.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Polls readable when `take_signals` or `look` has something to do.
    pub fn signals(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Those of this process. What is taken here is not passed on.
    pub fn own_signals(&self) -> &Signals {
        &self.signals
    }

    /// Whether signals have come that nobody has looked at, without a system call.
    pub fn has_signals(&self) -> bool {
        self.signals.any()
    }

    /// Takes in the signals that have come.
    pub fn take_signals(&mut self) {
        let came = self.signals.take();
        self.asked_to_end |= ask_for_the_end(&came);
        let now = Instant::now();
        self.held.extend(came.into_iter().filter(|signal| *signal != Signal::CHILD).map(|signal| (signal, now)));
    }

    /// How long signals have been waiting to be passed on. `None`: there are none.
    pub fn holds_signals(&self) -> Option<Duration> {
        self.held.first().map(|(_, came)| came.elapsed())
    }

    /// Passes on the signals that were taken in.
    pub fn pass_signals_on(&mut self) {
        let held = std::mem::take(&mut self.held);
        for (signal, _) in &held {
            // It may just have ended.
            let _ = kill_process(self.pid, *signal);
        }
        for (signal, _) in held {
            info!(signal = signal.as_raw(), "passed a signal on to the program");
        }
    }

    /// A call of the first thread is held, and signals were passed on: waits until that thread has noticed, and sleeps on until it
    /// is answered. Before Linux 6.18 an answer that comes earlier lets the call fail with EINTR.
    pub fn await_notice(&self) {
        let deadline = Instant::now() + NOTICE_TIME;
        while !sleeps_uninterruptibly(self.child.id()) && Instant::now() < deadline {
            std::thread::sleep(NOTICE_PAUSE);
        }
    }

    /// Whether this is the thread that the kernel prefers for a signal to the program (signal(7)): its first one.
    pub fn is_first(&self, thread: Thread) -> bool {
        thread.0 == self.pid.as_raw_pid().cast_unsigned()
    }

    /// Reaps the processes that have ended. Returns how the program itself ended, if it has.
    pub fn look(&mut self) -> io::Result<Option<Exit>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status.into()));
        }
        // Orphans; the program itself has not ended.
        self.reap()
    }

    fn reap(&mut self) -> io::Result<Option<Exit>> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                return Ok(Some(ExitStatus::from_raw(status.as_raw()).into()));
            }
        }
        Ok(None)
    }

    /// Sends it SIGTERM.
    pub fn ask_to_end(&self) {
        // It may just have ended.
        let _ = kill_process(self.pid, Signal::TERM);
    }

    /// Whether a signal has asked it to end.
    pub fn was_asked_to_end(&self) -> bool {
        self.asked_to_end
    }

    /// Kills the program and all that descends from it, and waits until nobody is left. The signals are this process's again.
    pub fn kill(mut self) -> io::Result<Signals> {
        kill_until(|| {
            let _ = self.child.try_wait();
            self.reap().map(drop)
        })?;
        Ok(self.signals)
    }
}

/// The same from another thread than the program's: processes that have ended are reaped here.
pub(crate) fn kill_all() -> io::Result<()> {
    kill_until(|| {
        reap_orphans();
        Ok(())
    })
}

/// Kills all that descends from this process, until nobody is left.
fn kill_until(mut reap: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + KILL_TIME;
    loop {
        if rustix::process::getpid() == Pid::INIT {
            // "Group 1" is every process of the namespace but this one, at one stroke: kill(2) with -1.
            let _ = kill_process_group(Pid::INIT, Signal::KILL);
        }
        // Parents first, by their numbers: nobody is to act on the death of another.
        let mut left = match descendants() {
            Ok(left) => left,
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        left.sort_unstable();
        for process in &left {
            if let Some(pid) = Pid::from_raw(*process as i32) {
                // One that has ended in the meantime is fine, too.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        reap()?;
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("processes {left:?} do not end")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
