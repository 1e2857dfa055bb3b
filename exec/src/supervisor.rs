//! Runs the program: takes its stopped calls, appends what its syncs owe, and answers each sync once that is acknowledged.
//!
//! One thread and one loop. Each turn of it takes all calls that wait, lets those continue that only change something, makes
//! one capture for each file that is synced, and hands what there is to the sidecar. The answers follow the order of the acks:
//! a sync that finds nothing new appends an empty record, since only an ack proves that no other program runs by now.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tailwind_client::Lsn;
use tracing::warn;

use crate::call::{Call, Thread};
use crate::planted::{self, Bug};
use crate::program::{Exit, Program, Signals, ask_for_the_end};
use crate::record::{Number, Record};
use crate::tally::{Compared, Tally};
use crate::trap::{Answer, Stopped};
use crate::volume::{Mapped, Refusal, Target, Volume};

/// How long the loop looks for acks before it sleeps: an ack over shared memory takes less, and a wake-up as long again.
const SPIN: Duration = Duration::from_micros(50);
/// How often the loop looks for the program's end when nothing tells of it.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Exit code of a program that has ended with 0, and of whose files not all are in the log (`EX_IOERR`).
pub const INCOMPLETE: i32 = 74;
/// Stopped calls that are taken before any is answered: threads of a program, at most.
const CALLS_MAX: usize = 4096;
/// How long a signal waits for a call of the thread that takes it.
const SIGNAL_WAIT: Duration = Duration::from_millis(50);
/// Between two looks for one.
const SIGNAL_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Why the program must not continue.
#[derive(Debug, thiserror::Error)]
pub enum Loss {
    /// The role, the connection, or an append.
    #[error("{0}")]
    Log(#[from] tailwind_client::Error),
    /// Another sidecar leads.
    #[error("this sidecar is not primary any more")]
    Role,
    /// Another writer appends.
    #[error("the log has records of another writer: LSN {found} came where {expected} was to come")]
    Foreign {
        /// The LSN of the ack.
        found: Lsn,
        /// The LSN of the last record that was sent.
        expected: Lsn,
    },
    /// Nobody wants to wait for the acks of what the program has left.
    #[error("asked to end before what the program has left is acknowledged")]
    Unfinished,
    /// This side cannot go on.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The log, as the supervisor uses it: records go in and are acknowledged in order, and nobody else appends.
pub trait Log {
    /// The largest record that it takes.
    fn record_max(&self) -> usize;
    /// Sends records in as few batches as they fit into, in order.
    fn send(&mut self, records: &[Vec<u8>]) -> Result<(), Loss>;
    /// Hands on what has gathered, without waiting.
    fn hand_over(&mut self) -> Result<(), Loss>;
    /// The same before the caller sleeps: takes in what has come, too, and has `as_fd` polled readable when more does.
    fn pump(&mut self) -> Result<(), Loss>;
    /// Takes in what has come, without a system call if that can be.
    fn take_acks(&mut self) -> Result<(), Loss>;
    /// Waits until all that was sent is acknowledged. `false` if a signal asks for the end before.
    fn wait(&mut self, signals: &Signals) -> Result<bool, Loss> {
        loop {
            self.pump()?;
            if self.acked() == self.sent() {
                return Ok(true);
            }
            let mut descriptors = [
                PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut descriptors, Some(&LOOK_EVERY)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            if ask_for_the_end(&signals.take()) {
                return Ok(false);
            }
        }
    }
    /// The last record that was sent.
    fn sent(&self) -> Lsn;
    /// The last record that is acknowledged, as are all before it.
    fn acked(&self) -> Lsn;
    /// Lets go of the records before this one, some time soon.
    fn trim(&mut self, below: Lsn);
    /// Polls readable when an ack may have come.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

/// What the program gets after a loss. No sync is confirmed any more, either way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum OnLoss {
    /// All its processes are killed at once, so that none serves clients
    #[default]
    Kill,
    /// Its syncs fail with EIO and it gets SIGTERM; after 5 s it is killed
    Term,
}

/// What syncs of files outside of the volume get.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Folders whose files the kernel may sync.
    pub allowed: Vec<PathBuf>,
}

/// The program under supervision.
pub struct Supervisor<'a, L> {
    program: &'a mut Program,
    volume: Volume,
    log: L,
    outside: Outside,
    /// Calls that have been received and not answered, and their threads.
    open: BTreeMap<u64, Thread>,
    /// Syncs that wait for an append.
    waiting: VecDeque<(Lsn, u64)>,
    /// Why syncs of files elsewhere fail, said once for each.
    told: BTreeSet<PathBuf>,
    generation: Generation,
    tally: Tally,
}

/// What has woken the loop.
#[derive(Clone, Copy, Debug)]
struct Woken {
    /// A call waits to be received.
    call: bool,
    /// A signal has come, and may be that of a child's end.
    signal: bool,
}

/// How far the newest generation of the log is.
#[derive(Clone, Copy, Debug, Default)]
struct Generation {
    /// Bytes of log since its last state.
    logged: u64,
    /// The first record of its state, while older records are still needed.
    state: Option<Lsn>,
    /// The last record with a block that was older than the state, once all such blocks are logged again.
    copied: Option<Lsn>,
}

/// So often a file may leave the volume, and come back, while a sync of it is taken.
const LEAVES_MAX: usize = 16;
/// Bytes of old blocks that go with each sync at least, while there are any.
const COPY_MIN: u64 = 64 << 10;
/// And for each byte that a sync appends.
const COPY_FACTOR: u64 = 2;

impl<'a, L: Log> Supervisor<'a, L> {
    /// Nothing has been received from the program yet. The log has `logged` bytes since its last state.
    pub fn new(program: &'a mut Program, volume: Volume, log: L, outside: Outside, logged: u64) -> Supervisor<'a, L> {
        Supervisor {
            program,
            volume,
            log,
            outside,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            told: BTreeSet::new(),
            generation: Generation { logged, ..Generation::default() },
            tally: Tally::default(),
        }
    }

    /// What following the program has cost, from its start on.
    pub fn into_tally(mut self) -> (Tally, Compared) {
        (self.tally, self.volume.take_compared())
    }

    /// Until the program ends. Its end, if it was an orderly one, is a sync of the whole volume. After a loss nothing is
    /// answered any more: kill the program, or have it [wind down](Supervisor::wind_down) first.
    pub fn run(&mut self) -> Result<Exit, Loss> {
        let mut woken = Woken { call: false, signal: true };
        loop {
            let mut calls = if woken.call { self.receive(true)? } else { Vec::new() };
            if self.program.holds_signals().is_some() {
                calls.extend(self.pass_signals_on()?);
            }
            self.turn(calls)?;
            if woken.signal || self.program.has_signals() {
                self.program.take_signals();
                if let Some(exit) = self.program.look()? {
                    return self.end(exit);
                }
            }
            woken = self.sleep()?;
        }
    }

    /// Passes signals on when they interrupt no call: one that has been stopped and not yet received would fail with EINTR
    /// (seccomp_unotify(2)), which many programs do not expect of an fsync. So it is done while a call of the thread that takes
    /// them is held here; or, if it makes none, after a moment. Returns the calls that had to be received before.
    fn pass_signals_on(&mut self) -> io::Result<Vec<Stopped>> {
        let calls = self.receive(false)?;
        let is_held = self.open.values().any(|thread| self.program.is_first(*thread));
        if is_held || self.program.holds_signals() >= Some(SIGNAL_WAIT) {
            self.program.pass_signals_on();
            if is_held {
                self.program.await_notice();
            }
        }
        Ok(calls)
    }

    fn turn(&mut self, calls: Vec<Stopped>) -> Result<(), Loss> {
        let mut syncs = Vec::new();
        for stopped in calls {
            self.volume.stopped(stopped.thread);
            if stopped.call.is_sync() {
                syncs.push(stopped);
                continue;
            }
            self.volume.calls(stopped.thread, stopped.call);
            self.reply(stopped.id, Answer::Go)?;
        }
        self.sync(syncs)?;
        self.log.hand_over()
    }

    /// All calls that wait; one does if `any` says so.
    fn receive(&mut self, any: bool) -> io::Result<Vec<Stopped>> {
        let mut calls = Vec::new();
        if any {
            calls.extend(self.program.take()?);
        }
        while calls.len() < CALLS_MAX
            && let Some(stopped) = self.program.receive()?
        {
            calls.push(stopped);
        }
        self.open.extend(calls.iter().map(|stopped| (stopped.id, stopped.thread)));
        Ok(calls)
    }

    /// Takes what syncs owe. A file may leave the volume while it is taken: what its descriptor leads to is told again.
    fn sync(&mut self, mut syncs: Vec<Stopped>) -> Result<(), Loss> {
        for _ in 0..LEAVES_MAX {
            if syncs.is_empty() {
                return Ok(());
            }
            syncs = self.sync_once(syncs)?;
        }
        let ids: Vec<u64> = syncs.iter().map(|stopped| stopped.id).collect();
        let why = format!("its file has left the volume and come back {LEAVES_MAX} times while it was synced");
        self.refuse(&ids, &Refusal::Lost(why))
    }

    /// One capture for each file, no matter how many threads wait for it. Returns the syncs whose files have just left.
    fn sync_once(&mut self, syncs: Vec<Stopped>) -> Result<Vec<Stopped>, Loss> {
        let mut wanted: BTreeMap<Wanted, Vec<Stopped>> = BTreeMap::new();
        for stopped in syncs {
            match self.wants(&stopped) {
                Ok(wants) => wanted.entry(wants).or_default().push(stopped),
                Err(refusal) => self.refuse(&[stopped.id], &refusal)?,
            }
        }
        let (mut left, mut sent) = (Vec::new(), false);
        for (wants, syncs) in wanted {
            let ids: Vec<u64> = syncs.iter().map(|stopped| stopped.id).collect();
            let (mut records, logged, last, began) =
                (Vec::new(), self.generation.logged, self.log.sent(), Instant::now());
            let result = match &wants {
                Wanted::Files(numbers) => numbers.iter().try_fold(true, |are_here, number| {
                    self.volume.capture_file(*number, &mut records).map(|is_here| are_here && is_here)
                }),
                Wanted::Names => self.volume.capture_names(&mut records).map(|()| true),
                Wanted::All => self.capture_all()?.map(|()| true),
                Wanted::Kernel => {
                    self.answer_all(&ids, Answer::Go)?;
                    continue;
                }
                Wanted::Refused(path) => {
                    self.tally.failed(&format!("{} is not in the volume", path.display()), ids.len() as u64);
                    self.answer_all(&ids, Answer::Fail(Errno::IO))?;
                    continue;
                }
            };
            self.tally.captures.add(began.elapsed());
            // What was captured before a refusal is in the image, so it goes to the log.
            self.send(&records)?;
            let (is_new, appended) = (self.log.sent() > last, self.generation.logged - logged);
            sent |= is_new;
            match result {
                Ok(false) => left.extend(syncs),
                Ok(true) if !is_new && planted::has(Bug::AnsweredAtOnce) => self.answer_all(&ids, Answer::Done)?,
                Ok(true) => {
                    // What is in the log already may have been overwritten by a successor's program: an ack proves that there is
                    // none, if its append comes after the sync.
                    if !sent {
                        self.send(&[Record::Names { last: true, changes: Vec::new() }.encode()])?;
                        sent = true;
                    }
                    let last = self.log.sent();
                    self.waiting.extend(ids.into_iter().map(|id| (last, id)));
                }
                Err(refusal) => self.refuse(&ids, &refusal)?,
            }
            self.renew(appended)?;
        }
        Ok(left)
    }

    /// Takes the whole volume, and hands it to the log.
    fn capture_all(&mut self) -> Result<Result<(), Refusal>, Loss> {
        let Supervisor { volume, log, generation, .. } = self;
        volume.capture_all(|records| {
            generation.logged += size(records);
            log.send(records)
        })
    }

    fn wants(&mut self, stopped: &Stopped) -> Result<Wanted, Refusal> {
        let thread = stopped.thread;
        Ok(match stopped.call {
            Call::SyncMapping { address, length } => {
                let mapped = self.volume.mapped(thread, address, length)?;
                self.wanted_of(mapped)
            }
            Call::Sync(descriptor) => match self.volume.target(thread, descriptor)? {
                Target::File(number) => {
                    self.volume.uses(thread, descriptor, number);
                    Wanted::Files(BTreeSet::from([number]))
                }
                Target::Names => Wanted::Names,
                Target::Kernel => Wanted::Kernel,
                Target::Outside(path) => self.outside(path),
            },
            Call::SyncFileSystem(descriptor) if self.volume.is_on_its_file_system(thread, descriptor)? => Wanted::All,
            Call::SyncFileSystem(descriptor) => match self.volume.target(thread, descriptor)? {
                Target::File(_) | Target::Names => Wanted::All,
                Target::Kernel => Wanted::Kernel,
                Target::Outside(path) => self.outside(path),
            },
            _ => Wanted::All,
        })
    }

    fn send(&mut self, records: &[Vec<u8>]) -> Result<(), Loss> {
        self.generation.logged += size(records);
        if planted::has(Bug::NameBeforeBytes) && !records.iter().any(|record| Record::is_state(record)) {
            let is_name =
                |record: &&Vec<u8>| matches!(Record::decode(record), Ok(Record::Create { .. } | Record::Names { .. }));
            let (names, bytes): (Vec<_>, Vec<_>) = records.iter().partition(is_name);
            self.log.send(&names.into_iter().cloned().collect::<Vec<_>>())?;
            return self.log.send(&bytes.into_iter().cloned().collect::<Vec<_>>());
        }
        self.log.send(records)
    }

    /// Takes the log's next generation a step further, after a sync that has appended so many bytes.
    fn renew(&mut self, appended: u64) -> Result<(), Loss> {
        let mut records = Vec::new();
        let mut renewed = Ok(());
        if self.generation.state.is_none() && self.volume.must_trim(self.generation.logged) {
            let began = self.volume.begin_generation(&mut records);
            // Names come before the state, and belong to the last generation. If none has begun, it is tried again after as
            // much log.
            let names = records.iter().take_while(|record| !Record::is_state(record)).count() as u64;
            let state = Lsn(self.log.sent().0 + names + 1);
            let state = matches!(began, Ok(true)).then_some(state);
            self.generation = Generation { logged: 0, state, copied: None };
            renewed = began.map(drop);
        }
        if self.volume.is_copying() && renewed.is_ok() {
            renewed = self.volume.copy((appended * COPY_FACTOR).max(COPY_MIN), &mut records);
        }
        self.send(&records)?;
        if let Err(Refusal::Lost(why) | Refusal::Full(why)) = renewed {
            warn!(%why, "the log cannot be trimmed");
            self.generation.state = None;
        }
        let is_copying = self.volume.is_copying() && !planted::has(Bug::TrimmedBeforeCopied);
        if self.generation.state.is_some() && self.generation.copied.is_none() && !is_copying {
            self.generation.copied = Some(self.log.sent());
        }
        if let (Some(state), Some(copied)) = (self.generation.state, self.generation.copied)
            && copied <= self.log.acked()
        {
            (self.generation.state, self.generation.copied) = (None, None);
            self.log.trim(state);
        }
        Ok(())
    }

    /// Mappings may lie beside each other. The kernel syncs all of them or none.
    fn wanted_of(&mut self, Mapped { files, outside }: Mapped) -> Wanted {
        let mut wanted = Wanted::Files(files);
        for path in outside {
            let is_first = wanted == Wanted::Files(BTreeSet::new()) || wanted == Wanted::Kernel;
            wanted = if is_first { self.outside(path) } else { Wanted::Refused(path) };
        }
        wanted
    }

    fn outside(&mut self, path: PathBuf) -> Wanted {
        if self.outside.allowed.iter().any(|allowed| path.starts_with(allowed)) {
            return Wanted::Kernel;
        }
        if self.told.len() < CALLS_MAX && self.told.insert(path.clone()) {
            let path = path.display();
            warn!(%path, "a sync of a file that is not in the volume fails: allow it with --outside, or move it");
        }
        Wanted::Refused(path)
    }

    fn refuse(&mut self, ids: &[u64], refusal: &Refusal) -> Result<(), Loss> {
        let (errno, why) = match refusal {
            Refusal::Lost(why) => (Errno::IO, why),
            Refusal::Full(why) => (Errno::NOSPC, why),
        };
        warn!(%why, error = %errno, "a sync fails");
        self.tally.failed(why, ids.len() as u64);
        self.answer_all(ids, Answer::Fail(errno))
    }

    fn answer_all(&mut self, ids: &[u64], answer: Answer) -> Result<(), Loss> {
        Ok(ids.iter().try_for_each(|id| self.reply(*id, answer))?)
    }

    fn reply(&mut self, id: u64, answer: Answer) -> io::Result<()> {
        self.open.remove(&id);
        self.program.answer(id, answer)
    }

    /// Answers the syncs whose appends are acknowledged.
    fn answer(&mut self) -> Result<bool, Loss> {
        let mut any = false;
        while let Some((last, id)) = self.waiting.front().copied()
            && (last <= self.log.acked() || planted::has(Bug::AnsweredBeforeAck))
        {
            self.waiting.pop_front();
            self.reply(id, Answer::Done)?;
            self.tally.syncs += 1;
            any = true;
        }
        Ok(any)
    }

    /// Until something happens: a stopped call, an ack, a signal, the program's end.
    fn sleep(&mut self) -> Result<Woken, Loss> {
        if !self.waiting.is_empty() {
            let deadline = Instant::now() + SPIN;
            while Instant::now() < deadline {
                self.log.take_acks()?;
                if self.answer()? {
                    break;
                }
                // Where the sidecar has to run on this processor, it does so now, and not when the time is over.
                std::thread::yield_now();
            }
        }
        self.log.pump()?;
        self.answer()?;
        let mut descriptors = [
            PollFd::from_borrowed_fd(self.program.listener(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.program.signals(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.log.as_fd(), PollFlags::IN),
        ];
        let wait = if self.program.holds_signals().is_some() { &SIGNAL_LOOK } else { &LOOK_EVERY };
        match poll(&mut descriptors, Some(wait)) {
            Ok(0) => Ok(Woken { call: false, signal: true }),
            Ok(_) => {
                let [calls, signals, _] = descriptors.map(|descriptor| descriptor.revents());
                // The listener hangs up when no process is left.
                let signal = !signals.is_empty() || calls.contains(PollFlags::HUP);
                Ok(Woken { call: calls.contains(PollFlags::IN), signal })
            }
            Err(Errno::INTR) => Ok(Woken { call: false, signal: true }),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// After a loss: fails each sync from now on, and asks the program to end. Until it has, or the time is over.
    pub fn wind_down(&mut self, time: Duration) -> io::Result<()> {
        let deadline = Instant::now() + time;
        self.program.ask_to_end();
        for id in std::mem::take(&mut self.open).into_keys() {
            self.program.answer(id, Answer::Fail(Errno::IO))?;
        }
        while self.program.look()?.is_none() {
            self.program.take_signals();
            self.program.pass_signals_on();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            for stopped in self.receive(false)? {
                let answer = if stopped.call.is_sync() { Answer::Fail(Errno::IO) } else { Answer::Go };
                self.reply(stopped.id, answer)?;
            }
            let mut descriptors = [
                PollFd::from_borrowed_fd(self.program.listener(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.program.signals(), PollFlags::IN),
            ];
            match poll(&mut descriptors, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn end(&mut self, exit: Exit) -> Result<Exit, Loss> {
        if exit == Exit::Code(0) {
            let result = self.capture_all()?;
            if !self.log.wait(self.program.own_signals())? {
                return Err(Loss::Unfinished);
            }
            if let Err(Refusal::Lost(why) | Refusal::Full(why)) = result {
                warn!(%why, "the program has ended in order, and not all that it wrote is in the log");
                return Ok(Exit::Code(INCOMPLETE));
            }
        }
        Ok(exit)
    }
}

fn size(records: &[Vec<u8>]) -> u64 {
    records.iter().map(|record| record.len() as u64).sum()
}

/// What a sync asks for.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    Files(BTreeSet<Number>),
    Names,
    All,
    Kernel,
    Refused(PathBuf),
}
