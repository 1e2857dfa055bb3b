//! The load generator of the tests in virtual machines and in a cluster, and the oracle that checks what it reports.
//!
//! `append` waits until its sidecar is primary, reads the whole log, and appends numbered records with many in flight; it may
//! be killed or frozen at any moment. It reports to an oracle in a pod (`oracle`), or to a file that
//! [`fleet`](tailwind_e2e::machines::fleet) reads. What is checked is in [`ack_oracle`](tailwind_e2e::cluster::ack_oracle).
//! [`register`] is an app for pods that only read.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that reports to people")]

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser};
use tailwind_client::blocking::Client;
use tailwind_client::{Ack, Error, Lsn, Options};
use tailwind_e2e::cluster::ack_oracle::{AckOracle, OracleRequest, OracleResponse, RecordId, Run, STOPPED, push};
use tailwind_e2e::processes::register;
use tokio::signal::unix::{SignalKind, signal};

/// Appends numbered records, reads them back, or keeps account of them.
#[derive(Parser)]
#[command(name = "loader", max_term_width = 100)]
enum Command {
    /// Append through the sidecar of this pod or host whenever it is primary
    Append(Append),
    /// Read the log once the sidecar is primary, and print which records it has, as JSON
    Read {
        /// The sidecar's
        #[arg(long)]
        socket: PathBuf,
        /// Longest record, without its id of 16 bytes
        #[arg(long, default_value_t = 200)]
        length_max: u64,
    },
    /// Keep one value in the log, and answer `GET key` and `SET key VALUE`
    Register {
        /// The sidecar's
        #[arg(long, env = "TAILWIND_SOCKET")]
        socket: PathBuf,
        /// Where clients connect
        #[arg(long)]
        listen: String,
    },
    /// Check what loaders report
    Oracle {
        /// Where
        #[arg(long, default_value = "0.0.0.0:7000")]
        listen: String,
    },
}

#[derive(Args)]
struct Append {
    /// The sidecar's
    #[arg(long, env = "TAILWIND_SOCKET", default_value = "/run/tailwind/log.sock")]
    socket: PathBuf,
    /// The oracle's HOST:PORT
    #[arg(long, env = "ORACLE", required_unless_present = "report", conflicts_with = "report")]
    oracle: Option<String>,
    /// The file to report to, instead of an oracle: for one session, which ends when FILE.stop appears
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Name to report under
    #[arg(long, env = "POD_NAME")]
    name: String,
    /// Records a second
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// Appends in flight
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    window: u32,
    /// Longest record, without its id of 16 bytes
    #[arg(long, default_value_t = 200)]
    length_max: u64,
}

/// How long the sidecar may take to answer before the loader looks for other things to do.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long it may take to become primary or read the log, before it is asked again.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Pause before the next attempt to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long the oracle may take to be reached, or to take bytes.
const ORACLE_TIMEOUT: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    exit_on_sigterm();
    match Command::parse() {
        Command::Append(options) => append(&options),
        Command::Read { socket, length_max } => {
            let (_, runs) = read_log(&mut connect(&socket)?, length_max)?.map_err(|what| anyhow!(what))?;
            println!("{}", serde_json::to_string(&runs)?);
            Ok(())
        }
        Command::Register { socket, listen } => register::serve(&socket, &listen),
        Command::Oracle { listen } => serve_oracle(&listen),
    }
}

/// As process 1 of a container this program would not notice SIGTERM.
fn exit_on_sigterm() {
    let ended = || -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async { signal(SignalKind::terminate())?.recv().await.map_or(Ok(()), |()| Ok(())) })
    };
    std::thread::spawn(move || match ended() {
        Ok(()) => std::process::exit(0),
        Err(error) => eprintln!("SIGTERM will not be noticed: {error}"),
    });
}

// ---- The loader -------------------------------------------------------------------------------------------------------

/// Waits until the sidecar is primary.
fn connect(socket: &Path) -> Result<Client, Error> {
    Client::connect_with(socket, &Options { hold: true, timeout: Some(TIMEOUT), ..Options::default() })
}

fn append(options: &Append) -> Result<()> {
    let mut reporter = Reporter::new(options)?;
    let mut last_error = String::new();
    loop {
        let mut client = match connect(&options.socket) {
            Ok(client) => client,
            Err(error) => {
                // Only once: a standby waits for long.
                let error = error.to_string();
                if error != last_error {
                    println!("not yet: {error}");
                    last_error = error;
                }
                std::thread::sleep(RETRY_PAUSE);
                continue;
            }
        };
        let ended = run_session(&mut client, options, &mut reporter);
        let why = ended.err().map_or_else(|| STOPPED.to_owned(), |error| format!("{error:#}"));
        println!("session ended: {why}");
        reporter.end_session(why);
        if options.report.is_some() {
            return Ok(());
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// One session: from the moment that the sidecar has proved to be primary until it is not, cannot be reached, or the loader
/// is to stop.
fn run_session(client: &mut Client, options: &Append, reporter: &mut Reporter) -> Result<()> {
    let (epoch, runs) = read_or_report(client, options, reporter)?;
    let session = getrandom::u64().map_err(|error| anyhow!("draw a random number: {error}"))?;
    println!(
        "primary: epoch {epoch}, {} records so far, session {session:x}",
        runs.last().map_or(0, |run| run.end() - 1)
    );
    reporter.begin_session(OracleRequest::Began { pod: options.name.clone(), epoch, session, runs }, session);
    let mut flow = Flow { session, submitted: 0, answered: 0, acked: Vec::new() };
    let (mut looked, mut replayed) = (Instant::now(), 0);
    // When the next record is due. After a pause without acks at most a window of records is made up for.
    let mut due = Instant::now();
    let interval = Duration::from_secs(1) / options.rate;
    loop {
        if looked.elapsed() > POLL_INTERVAL {
            looked = Instant::now();
            if reporter.is_stopped() {
                return flow.finish(client, reporter);
            }
        }
        let now = Instant::now();
        due = due.max(now.checked_sub(interval * options.window).unwrap_or(now));
        while due <= now && flow.in_flight() < u64::from(options.window) {
            match client.submit(&RecordId { session, number: flow.submitted + 1 }.payload(options.length_max)) {
                // It was not taken: what is in flight leaves no room in the ring.
                Err(Error::TimedOut { .. }) => break,
                submitted => submitted?,
            };
            flow.submitted += 1;
            due += interval;
        }
        client.pump()?;
        flow.report_acks(client, reporter)?;
        if reporter.requested() > replayed {
            let request = reporter.requested();
            flow.finish(client, reporter)?;
            let (_, runs) = read_or_report(client, options, reporter)?;
            reporter.report(OracleRequest::Replayed { request, session, runs });
            replayed = request;
        }
        if flow.in_flight() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads the log as [`read_log`] does. A record that no loader has made is a violation.
fn read_or_report(client: &mut Client, options: &Append, reporter: &mut Reporter) -> Result<(u64, Vec<Run>)> {
    client.set_timeout(Some(TIMEOUT)).context("set a timeout")?;
    let log = read_log(client, options.length_max)?;
    client.set_timeout(Some(POLL_INTERVAL)).context("set a timeout")?;
    log.or_else(|what| {
        reporter.report(OracleRequest::Violation { what: what.clone() });
        bail!(what)
    })
}

/// The epoch of a sidecar that was primary a moment ago, and the whole log; or what is wrong with a record.
fn read_log(client: &mut Client, length_max: u64) -> Result<Result<(u64, Vec<Run>), String>> {
    // Without it a deposed primary could answer, and what is absent there may be in the log.
    let barrier = client.barrier()?;
    let mut runs = Vec::new();
    let mut records = client.read(Lsn(1), 0)?;
    while let Some((lsn, payload)) = records.next_record()? {
        let Some(RecordId { session, number }) = RecordId::of_payload(payload, length_max) else {
            return Ok(Err(format!("record {lsn} is nothing that was submitted: {payload:x?}")));
        };
        push(&mut runs, Run { session, number, lsn: lsn.0, count: 1 });
    }
    Ok(Ok((barrier.epoch.0, runs)))
}

/// Appends in flight of a session.
struct Flow {
    session: u64,
    submitted: u64,
    answered: u64,
    /// Acknowledged and not reported yet.
    acked: Vec<Run>,
}

impl Flow {
    fn in_flight(&self) -> u64 {
        self.submitted - self.answered
    }

    /// Takes answers: all that are there, and if there is none, the first that comes soon. The first refusal, if any.
    fn take_acks(&mut self, client: &mut Client) -> Option<anyhow::Error> {
        let mut next = client.try_next_ack();
        if next.is_none() && self.in_flight() > 0 {
            next = match client.next_ack() {
                Err(Error::TimedOut { .. }) => None,
                Err(error) => return Some(error.into()),
                Ok(ack) => ack,
            };
        }
        let mut refused = None;
        while let Some(Ack { outcome, .. }) = next {
            // Answers come in the order of submission.
            self.answered += 1;
            match outcome {
                Ok(lsn) => {
                    push(&mut self.acked, Run { session: self.session, number: self.answered, lsn: lsn.0, count: 1 })
                }
                Err(error) => refused = refused.or(Some(anyhow::Error::from(error))),
            }
            next = client.try_next_ack();
        }
        refused
    }

    /// Takes answers and reports the acks. After a refusal others in flight may have been answered otherwise, and no ack
    /// may get lost: takes answers until the connection ends or none comes for a while, and fails.
    fn report_acks(&mut self, client: &mut Client, reporter: &mut Reporter) -> Result<()> {
        let refused = self.take_acks(client);
        reporter.report_acked(&mut self.acked);
        let Some(error) = refused else { return Ok(()) };
        let deadline = Instant::now() + TIMEOUT;
        while self.in_flight() > 0 && Instant::now() < deadline {
            let before = self.answered;
            let refused = self.take_acks(client);
            reporter.report_acked(&mut self.acked);
            if refused.is_some() && self.answered == before {
                break;
            }
        }
        Err(error)
    }

    /// Waits until everything is answered. The sidecar may take its time: it owes answers as long as the connection lives.
    fn finish(&mut self, client: &mut Client, reporter: &mut Reporter) -> Result<()> {
        while self.in_flight() > 0 {
            self.report_acks(client, reporter)?;
        }
        Ok(())
    }
}

// ---- Its reports ------------------------------------------------------------------------------------------------------

/// Reports to an oracle or to a file. When the connection to the oracle breaks, it may have missed something: everything of
/// this session is repeated.
struct Reporter {
    target: Target,
    stream: Option<TcpStream>,
    /// The beginning of a line.
    unread: Vec<u8>,
    requested: u64,
    reported: Option<Reported>,
}

enum Target {
    Oracle(String),
    File {
        file: File,
        /// Its appearance ends the session.
        stop: PathBuf,
    },
}

/// What has been reported of the present session.
struct Reported {
    session: u64,
    began: OracleRequest,
    acked: Vec<Run>,
}

impl Reporter {
    fn new(options: &Append) -> Result<Reporter> {
        let target = match (&options.report, &options.oracle) {
            (Some(path), _) => {
                let file = File::create(path).context("create the report")?;
                Target::File { file, stop: path.with_extension("stop") }
            }
            (None, oracle) => Target::Oracle(oracle.clone().context("--oracle or --report is needed")?),
        };
        Ok(Reporter { target, stream: None, unread: Vec::new(), requested: 0, reported: None })
    }

    fn is_stopped(&self) -> bool {
        matches!(&self.target, Target::File { stop, .. } if stop.exists())
    }

    fn begin_session(&mut self, began: OracleRequest, session: u64) {
        self.reported = Some(Reported { session, began: began.clone(), acked: Vec::new() });
        self.report(began);
    }

    fn end_session(&mut self, why: String) {
        if let Some(reported) = self.reported.take() {
            self.report(OracleRequest::Ended { session: reported.session, why });
        }
    }

    fn report_acked(&mut self, runs: &mut Vec<Run>) {
        for run in runs.drain(..) {
            if let Some(reported) = &mut self.reported {
                push(&mut reported.acked, run);
            }
            self.report(OracleRequest::Acked { run });
        }
    }

    /// Returns when it is on its way.
    fn report(&mut self, request: OracleRequest) {
        while let Err(error) = self.connect().and_then(|()| self.send(&request)) {
            println!("not reported yet: {error:#}");
            self.stream = None;
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn connect(&mut self) -> Result<()> {
        let Target::Oracle(oracle) = &self.target else { return Ok(()) };
        if self.stream.is_some() {
            return Ok(());
        }
        let mut addresses = oracle.to_socket_addrs().context("find the oracle")?;
        let address = addresses.next().context("the oracle has no address")?;
        let stream = TcpStream::connect_timeout(&address, ORACLE_TIMEOUT).context("connect to the oracle")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_micros(1)))?;
        self.stream = Some(stream);
        self.unread.clear();
        if let Some(Reported { began, acked, .. }) = &self.reported {
            let acked = acked.iter().map(|run| OracleRequest::Acked { run: *run });
            let again: Vec<_> = [began.clone()].into_iter().chain(acked).collect();
            again.iter().try_for_each(|request| self.send(request))?;
        }
        Ok(())
    }

    fn send(&mut self, request: &OracleRequest) -> Result<()> {
        match (&mut self.target, &mut self.stream) {
            (Target::File { file, .. }, _) => write_line(file, request),
            (Target::Oracle(_), stream) => write_line(stream.as_mut().context("connected")?, request),
        }
    }

    /// The newest replay that the oracle wants.
    fn requested(&mut self) -> u64 {
        let mut bytes = [0; 4096];
        while let Some(stream) = &mut self.stream {
            match stream.read(&mut bytes) {
                Ok(0) => self.stream = None,
                Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(_) => self.stream = None,
            }
        }
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if let Ok(OracleResponse::Replay { request }) = serde_json::from_slice(&line) {
                self.requested = self.requested.max(request);
            }
        }
        self.requested
    }
}

/// In one call, so that a reader seldom meets half a line.
fn write_line(to: &mut impl Write, value: &impl serde::Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value).context("encode a line")?;
    line.push(b'\n');
    to.write_all(&line).context("write a line")
}

// ---- The oracle -------------------------------------------------------------------------------------------------------

/// The oracle, and the connections to it.
struct OracleServer {
    oracle: AckOracle,
    started: Instant,
    connections: Vec<TcpStream>,
}

fn serve_oracle(listen: &str) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    println!("listening on {listen}");
    let server = OracleServer { oracle: AckOracle::default(), started: Instant::now(), connections: Vec::new() };
    let server = Arc::new(Mutex::new(server));
    for stream in listener.incoming() {
        let (stream, server) = (stream.context("accept a connection")?, Arc::clone(&server));
        std::thread::spawn(move || {
            // The other end was killed, or has its answer.
            let _ = serve(stream, &server);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, server: &Mutex<OracleServer>) -> Result<()> {
    stream.set_nodelay(true)?;
    // A loader whose node has lost its power must not hold up the others.
    stream.set_write_timeout(Some(ORACLE_TIMEOUT))?;
    {
        let mut server = lock(server);
        server.connections.push(stream.try_clone()?);
        let request = server.oracle.requested();
        write_line(&mut stream, &OracleResponse::Replay { request })?;
    }
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line.context("read a line")?;
        let request = serde_json::from_str(&line).with_context(|| format!("decode {line}"))?;
        let mut server = lock(server);
        let now_us = server.started.elapsed().as_micros() as u64;
        match server.oracle.take(request, now_us) {
            Some(replay @ OracleResponse::Replay { .. }) => {
                server.connections.retain_mut(|connection| write_line(connection, &replay).is_ok());
            }
            Some(report) => write_line(&mut stream, &report)?,
            None => {}
        }
    }
    Ok(())
}

fn lock(server: &Mutex<OracleServer>) -> MutexGuard<'_, OracleServer> {
    server.lock().unwrap_or_else(PoisonError::into_inner)
}
