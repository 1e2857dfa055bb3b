//! From the start of the container to its end: follow the log, take the turn, run the program, lose the role.
//!
//! After a loss it follows the log as a standby again: by itself if it is the first process of a container, since container
//! runtimes restart more slowly each time. Otherwise the process that started it must start it again, which a distinct exit
//! code asks for.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Epoch, Error, ErrorCode, FollowEvent, History, Lsn};
use tracing::{info, warn};

use crate::appends::Appends;
use crate::container::Place;
use crate::descriptors;
use crate::directory::{self, Directory};
use crate::ground::Ground;
use crate::image::{Image, Operation};
use crate::lease::{self, Barriers, Lease};
use crate::logging;
use crate::program::{self, Program, Signals};
use crate::readiness::Readiness;
use crate::record::Record;
use crate::supervisor::{Log, Loss, OnLoss, Outside, Supervisor};
use crate::volume::{Bounds, Refusal, Volume};

/// Exit code after a loss: nothing is wrong with this process, and the next one continues (`EX_TEMPFAIL`).
pub const LOST: i32 = 75;
/// Between two attempts to reach a sidecar that is not there yet.
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long nothing is said while something is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// For a program that is to end in order after a loss.
const TERM_TIME: Duration = Duration::from_secs(5);
/// Between two looks at the signals while others' leases run out.
const LEASE_PAUSE: Duration = Duration::from_millis(20);

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The sidecar's append socket.
    pub socket: PathBuf,
    /// The directory that is replicated.
    pub directory: PathBuf,
    /// What the volume may have; bytes of one record follow from the sidecar's limits.
    pub bounds: Bounds,
    /// Take the directory's files into an empty log.
    pub import: bool,
    /// Folders elsewhere whose files the kernel may sync.
    pub outside: Vec<PathBuf>,
    /// Names in the directory that are removed before the program starts.
    pub remove_at_start: Vec<PathBuf>,
    /// Start behind another PID 1 of the container.
    pub without_pid_1: bool,
    /// What the program gets after a loss.
    pub on_loss: OnLoss,
    /// How long a program that is cut off may answer reads from its memory.
    pub lease: Option<Duration>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// Runs until the program has ended, or must not continue. Returns the exit code.
pub fn run(options: &Options) -> Result<i32> {
    let place = Place::find().context("find out who is PID 1")?;
    if let Place::Behind(behind) = &place {
        ensure!(options.without_pid_1, "{behind}; or accept survivors: --without-pid-1");
        warn!("not PID 1: if tailwind-exec is killed, processes of the program may live on, and answer reads");
    }
    if let Some(missing) = descriptors::raise(options.bounds.files) {
        warn!("{missing}");
    }
    let mut signals = Signals::catch().context("catch signals")?;
    loop {
        let mut ground = Ground::claim(&options.directory, options.import)?;
        let mut standby = Standby::new(&ground)?;
        let (client, turn) = match standby.follow(options, &mut ground, &signals)? {
            Some(turn) => turn,
            None => return Ok(0),
        };
        let appends = Appends::new(options.socket.clone(), client, turn.epoch, turn.next);
        signals = match lead(options, &mut ground, standby, appends, &turn, signals)? {
            Led::Ended(code) => return Ok(code),
            Led::Lost(signals) if matches!(place, Place::First) => signals,
            Led::Lost(_) => return Ok(LOST),
        };
        info!("follows the log again, as a standby");
    }
}

/// How a turn ended.
enum Led {
    /// The program has ended, or was asked to end.
    Ended(i32),
    /// The role was lost.
    Lost(Signals),
}

/// The log's follower: keeps the directory as the log has it.
struct Standby {
    image: Image,
    directory: Directory,
    /// The log has a record, so that the directory has nothing but what the log has.
    begun: bool,
    /// Where the follow continues.
    next: Lsn,
    history: History,
    /// Bytes of log since its last state.
    logged: u64,
}

/// This sidecar is primary, and its log has no more than what was read.
struct Turn {
    epoch: Epoch,
    next: Lsn,
    /// By the lease's clock.
    at: Duration,
}

/// How a follow ended.
enum Followed {
    Turn(Turn),
    /// The records that were folded are not those of the log, or no longer all that it begins with.
    Anew(String),
    /// A signal asked this process to end.
    Stopped,
}

impl Standby {
    fn new(ground: &Ground) -> Result<Standby> {
        Ok(Standby {
            image: Image::default(),
            directory: ground.open()?,
            begun: false,
            next: Lsn(0),
            history: History::UNKNOWN,
            logged: 0,
        })
    }

    /// Until it is this sidecar's turn: the connection that may append. `None` if a signal came first.
    fn follow(&mut self, options: &Options, ground: &mut Ground, signals: &Signals) -> Result<Option<(Client, Turn)>> {
        loop {
            let Some(mut client) = connect(&options.socket, signals)? else { return Ok(None) };
            match self.follow_once(&mut client, ground, signals) {
                Ok(Followed::Turn(turn)) => return Ok(Some((client, turn))),
                Ok(Followed::Stopped) => return Ok(None),
                Ok(Followed::Anew(why)) => {
                    warn!(%why, "starts over: the log does not continue what was read");
                    *self = Standby::new(ground)?;
                }
                Err(Failure::Log(error)) => {
                    info!(%error, "the sidecar has gone; connects again");
                    std::thread::sleep(CONNECT_PAUSE);
                }
                Err(Failure::Other(error)) => return Err(error),
            }
        }
    }

    fn follow_once(
        &mut self,
        client: &mut Client,
        ground: &mut Ground,
        signals: &Signals,
    ) -> Result<Followed, Failure> {
        // Signals are looked at in between.
        client.set_timeout(Some(PATIENCE)).map_err(anyhow::Error::from)?;
        let mut progress = Progress::new();
        ground.tell(Readiness::Starts)?;
        let mut follow = client.follow((self.history, self.next))?;
        let turn = loop {
            if wants_to_end(signals) {
                return Ok(Followed::Stopped);
            }
            let event = match follow.next_event() {
                Ok(event) => event,
                Err(Error::TimedOut { .. }) => continue,
                Err(Error::Refused { code: ErrorCode::BeyondEnd, message }) | Err(Error::Trimmed { message }) => {
                    return Ok(Followed::Anew(message));
                }
                Err(error) => return Err(error.into()),
            };
            match event {
                Some(FollowEvent::Record(lsn, bytes)) => {
                    let (is_state, length) = (Record::is_state(bytes), bytes.len());
                    if self.begun {
                        self.fold(bytes, ground)
                    } else {
                        // Whose log it is can be asked once the record has been handed over.
                        let bytes = bytes.to_vec();
                        self.history = follow.history();
                        self.fold(&bytes, ground)
                    }
                    .with_context(|| format!("record {lsn} of the log"))?;
                    self.logged = if is_state { 0 } else { self.logged + length as u64 };
                    self.next = lsn.next();
                    progress.took(lsn, length);
                }
                Some(FollowEvent::CaughtUp { next }) => {
                    if progress.caught_up(next) {
                        ground.tell(Readiness::Follows)?;
                    }
                }
                Some(FollowEvent::Lag { acked, .. }) => progress.behind(acked),
                Some(FollowEvent::Turn { epoch, next }) => break Turn { epoch, next, at: lease::now() },
                None => return Err(Error::Disconnected { why: "the follow has ended".into() }.into()),
            }
            self.history = follow.history();
        };
        self.history = follow.history();
        drop(follow);
        client.set_timeout(None).map_err(anyhow::Error::from)?;
        Ok(Followed::Turn(turn))
    }

    /// Folds one record, and carries out what follows. What the directory has is removed once it is certain that the log is one of
    /// `tailwind-exec`, and that a directory can begin with it.
    fn fold(&mut self, bytes: &[u8], ground: &mut Ground) -> Result<()> {
        let Standby { image, directory, begun, history, .. } = self;
        let record = Record::decode(bytes)?;
        let operations: Vec<Operation<'_>> = image.fold(&record)?;
        ensure!(
            !ground.foreign || !image.has_names(),
            "--dir {} has files that are not the log's, and the log has files as well: move those of the directory away, and \
             leave out --import",
            ground.directory.display(),
        );
        if image.begun() && !std::mem::replace(begun, true) {
            ground.make_room(*history)?;
        }
        match directory.carry_out(image, &operations) {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => bail!(
                "{error}. The files of the log have {} bytes up to here: make room on the disk of --dir {}, and start again",
                image.size(),
                ground.directory.display(),
            ),
            carried_out => Ok(carried_out?),
        }
    }
}

/// Why a follow ended.
enum Failure {
    Log(Error),
    Other(anyhow::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            // Nothing changes by itself.
            Error::Refused { .. } | Error::Protocol { .. } | Error::Misuse(_) => Failure::Other(error.into()),
            error => Failure::Log(error),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}

fn wants_to_end(signals: &Signals) -> bool {
    let came = signals.take();
    if came.contains(&rustix::process::Signal::CHILD) {
        // PID 1 gets orphans also while it has no program: what was started by `kubectl exec`.
        program::reap_orphans();
    }
    program::ask_for_the_end(&came)
}

fn connect(socket: &Path, signals: &Signals) -> Result<Option<Client>> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match Client::connect(socket) {
            Ok(client) => return Ok(Some(client)),
            Err(error @ (Error::Connect { .. } | Error::Retry { .. } | Error::Disconnected { .. })) => {
                if !told && began.elapsed() > PATIENCE {
                    warn!(%error, "waits for the sidecar");
                    told = true;
                }
            }
            Err(error) => return Err(error.into()),
        }
        if wants_to_end(signals) {
            return Ok(None);
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Says on a terminal how far a long replay is, and once that it is over.
struct Progress {
    began: Instant,
    shown: Instant,
    bytes: u64,
    acked: Lsn,
    caught_up: bool,
    terminal: bool,
}

impl Progress {
    fn new() -> Progress {
        let now = Instant::now();
        let terminal = io::stderr().is_terminal();
        Progress { began: now, shown: now, bytes: 0, acked: Lsn(0), caught_up: false, terminal }
    }

    fn took(&mut self, lsn: Lsn, bytes: usize) {
        self.bytes += bytes as u64;
        let every = if self.terminal { PATIENCE } else { PATIENCE * 10 };
        if !self.caught_up && lsn.0.is_multiple_of(256) && self.shown.elapsed() > every {
            self.shown = Instant::now();
            let (mib, acked) = (self.bytes >> 20, self.acked);
            info!(%lsn, of = %acked, mib, "reads the log");
        }
    }

    fn behind(&mut self, acked: Lsn) {
        self.acked = acked;
    }

    /// True the first time.
    fn caught_up(&mut self, next: Lsn) -> bool {
        let first = !std::mem::replace(&mut self.caught_up, true);
        if first {
            let (ms, mib) = (self.began.elapsed().as_millis() as u64, self.bytes >> 20);
            info!(%next, mib, ms, "the directory is as the log has it; waits for its turn");
        }
        first
    }
}

/// The turn: what the log has is on disk, and this side alone appends.
fn lead(
    options: &Options,
    ground: &mut Ground,
    standby: Standby,
    mut appends: Appends,
    turn: &Turn,
    signals: Signals,
) -> Result<Led> {
    let began = Instant::now();
    ground.tell(Readiness::Starts)?;
    let lease = options.lease.map(|length| begin_lease(options, turn.epoch, length)).transpose()?;
    let Standby { mut image, mut directory, begun, history, logged, .. } = standby;
    if !begun && !ground.foreign && ground.has_files()? {
        ensure!(
            options.import,
            "the log is empty, and --dir {} has files of an earlier log, maybe the last copy of them: to take them into this \
             log, give --import; or empty it",
            ground.directory.display(),
        );
        ground.unmark()?;
    }
    ensure!(
        image.begun() || turn.next == Lsn(1),
        "the log has records, and none that a directory can begin with: it belongs to another program",
    );
    // What has no name, and groups that a death has cut short, are void.
    let begin = Record::Begin { next: image.next() };
    let operations = image.fold(&begin)?;
    directory.carry_out(&image, &operations)?;
    let left = directory.finish(&image).context("prepare the directory")?;
    let bounds = Bounds { record: appends.record_max(), ..options.bounds };
    let mut volume = Volume::new(bounds, image, left).context("watch the directory")?;
    // The log has them: only now is it seen that they go.
    for name in &options.remove_at_start {
        remove_at_start(&ground.directory, name)?;
    }
    let sent = appends.send(&[begin.encode()]).and_then(|()| take_directory(ground, &mut volume, &mut appends));
    let taken = match sent {
        Ok(Err(Refusal::Lost(why) | Refusal::Full(why))) => bail!("the directory cannot be taken into the log: {why}"),
        sent => sent.map(drop),
    };
    match taken.and_then(|()| appends.wait(&signals)) {
        Ok(true) => {}
        Ok(false) => return Ok(Led::Ended(0)),
        Err(loss) => {
            warn!(%loss, "the role is lost again before the program has started");
            return Ok(Led::Lost(signals));
        }
    }
    if ground.foreign || !begun {
        ground.mark(history)?;
    }
    let [program, arguments @ ..] = &options.program[..] else { bail!("no program to run") };
    let mut command = Command::new(program);
    command.args(arguments);
    if let (Some(lease), Some(length)) = (&lease, options.lease) {
        let start_at = lease::start_at(turn.at, length);
        while lease::now() < start_at {
            if wants_to_end(&signals) {
                return Ok(Led::Ended(0));
            }
            std::thread::sleep(LEASE_PAUSE.min(start_at.saturating_sub(lease::now())));
        }
        if !lease.is_held() {
            warn!("no barrier has passed in time: this sidecar may not be primary any more");
            return Ok(Led::Lost(signals));
        }
    }
    let mut program =
        Program::start_under(command, signals, &ground.lock).with_context(|| format!("start {}", program.display()))?;
    ground.tell(Readiness::Runs)?;
    info!(ms = began.elapsed().as_millis() as u64, "this sidecar is primary: the program runs");
    let outside = Outside { allowed: options.outside.clone() };
    let mut supervisor = Supervisor::new(&mut program, volume, appends, outside, logged);
    let result = supervisor.run();
    if let Err(loss) = &result {
        match options.on_loss {
            OnLoss::Kill => {
                warn!(%loss, "the program must not continue and is killed");
            }
            OnLoss::Term => {
                warn!(%loss, "the program must not continue and is asked to end");
                if let Err(error) = supervisor.wind_down(TERM_TIME) {
                    warn!(%error, "the program cannot end in order");
                }
            }
        }
    }
    // Its calls are no longer answered, so no process may be left that serves clients.
    let asked_to_end = program.was_asked_to_end();
    let signals = program.kill().context("kill the program")?;
    // The lease's thread may have killed it, and is about to end this process in the same way.
    let cut_off = lease.is_some_and(|lease| !lease.give_up());
    Ok(match result {
        Ok(exit) if !cut_off => Led::Ended(exit.code()),
        Err(Loss::Unfinished) => Led::Ended(LOST),
        _ if asked_to_end || cut_off => Led::Ended(LOST),
        _ => Led::Lost(signals),
    })
}

/// Takes what the directory has and the log does not. Files of others come with their names once all their bytes are taken: until
/// then they are tried again, and nobody removes them.
fn take_directory(ground: &Ground, volume: &mut Volume, appends: &mut Appends) -> Result<Result<(), Refusal>, Loss> {
    let mut taken = Ok(());
    if ground.foreign {
        taken = volume.import();
        taken = taken.and(volume.capture_files(|records| appends.send(records))?);
    }
    let mut records = Vec::new();
    let taken = taken.and_then(|()| volume.capture_names(&mut records));
    appends.send(&records)?;
    Ok(taken)
}

/// From now on the program may be killed at any time.
fn begin_lease(options: &Options, epoch: Epoch, length: Duration) -> Result<Lease> {
    let mut barriers = Barriers::new(options.socket.clone(), epoch, length);
    let end = || {
        let killed = program::kill_all();
        warn!("no barrier has passed for as long as the lease lasts: the program must not continue and is killed");
        if let Err(error) = killed {
            warn!(%error, "a process of the program is left");
        }
        logging::finish();
        std::process::exit(LOST);
    };
    Lease::begin(length, move || barriers.pass(), end).context("begin the lease")
}

/// A name in the directory, such as the file of a dead process's number.
pub(crate) fn remove_at_start(directory: &Path, name: &Path) -> Result<()> {
    let inside = name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    ensure!(inside, "--remove-at-start {}: give a path inside of --dir", name.display());
    directory::remove_beneath(directory, name).with_context(|| format!("remove {}", name.display()))
}
