//! The app of the tests in a cluster, and the ledger that it reports to.
//!
//! `append` waits until its sidecar is primary, reads the whole log, and appends numbered records with many in flight; it may
//! be killed or frozen at any moment. `ledger` keeps what it is told, in a pod that nobody kills. What is checked is in
//! [`ledger`](tailwind_e2e::ledger).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that tells people what it does")]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Parser};
use tailwind_client::blocking::Client;
use tailwind_client::{Ack, Error, Lsn};
use tailwind_e2e::ledger::{Answer, Ledger, Message, Record, Run, push};
use tokio::signal::unix::{SignalKind, signal};

/// Appends numbered records, or keeps account of them.
#[derive(Parser)]
#[command(name = "loader", max_term_width = 100)]
enum Command {
    /// Append through the sidecar of this pod whenever it is primary
    Append(Append),
    /// Take what loaders tell, and answer questions
    Ledger {
        /// Where
        #[arg(long, default_value = "0.0.0.0:7000")]
        listen: String,
    },
    /// Do nothing: the program of a pod that only has to be there
    Idle,
}

#[derive(Args)]
struct Append {
    /// The sidecar's
    #[arg(long, env = "TAILWIND_SOCKET", default_value = "/run/tailwind/log.sock")]
    socket: PathBuf,
    /// The ledger's HOST:PORT
    #[arg(long, env = "LEDGER")]
    ledger: String,
    /// Name to report under
    #[arg(long, env = "POD_NAME")]
    name: String,
    /// Records a second
    #[arg(long, default_value_t = 2000)]
    rate: u64,
    /// Appends in flight
    #[arg(long, default_value_t = 256)]
    window: u64,
    /// Longest record, without its name of 16 bytes
    #[arg(long, default_value_t = 200)]
    length_max: u64,
}

/// How long the sidecar may take to answer before the loader looks for other things to do.
const LOOK: Duration = Duration::from_millis(20);
/// How long it may take to become primary or read the log, before it is asked anew.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the next attempt to reach somebody.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the ledger may take to be reached, or to take bytes.
const LEDGER_PATIENCE: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    end_when_told();
    match Command::parse() {
        Command::Append(options) => append(&options),
        Command::Ledger { listen } => keep(&listen),
        Command::Idle => loop {
            std::thread::park();
        },
    }
}

/// As process 1 of a container this program would not notice SIGTERM.
fn end_when_told() {
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

fn append(options: &Append) -> Result<()> {
    let mut reporter =
        Reporter { ledger: options.ledger.clone(), stream: None, unread: Vec::new(), requested: 0, told: None };
    let mut said = String::new();
    loop {
        let connect = tailwind_client::Options { hold: true, timeout: Some(PATIENCE), ..Default::default() };
        // A standby waits in here for its turn.
        let mut client = match Client::connect_with(&options.socket, &connect) {
            Ok(client) => client,
            Err(error) => {
                // Not every time: a standby waits for long.
                let why = error.to_string();
                if why != said {
                    println!("not yet: {why}");
                    said = why;
                }
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let ended = live(&mut client, options, &mut reporter);
        let why = ended.err().map_or_else(|| "ended".to_owned(), |error| format!("{error:#}"));
        println!("lost: {why}");
        reporter.end_life(why);
        std::thread::sleep(PAUSE);
    }
}

/// One life: from the moment that the sidecar has proved to be primary until it is not, or cannot be reached.
fn live(client: &mut Client, options: &Append, reporter: &mut Reporter) -> Result<()> {
    client.set_timeout(Some(PATIENCE)).context("set a timeout")?;
    let (epoch, runs) = read_log(client, options.length_max, reporter)?;
    let life = getrandom::u64().map_err(|error| anyhow!("draw a random number: {error}"))?;
    println!("primary: epoch {epoch}, {} records so far, life {life:x}", runs.last().map_or(0, |run| run.end() - 1));
    reporter.begin_life(Message::Began { pod: options.name.clone(), epoch, life, runs }, life);
    client.set_timeout(Some(LOOK)).context("set a timeout")?;
    let mut flow = Flow { life, submitted: 0, answered: 0, acked: Vec::new() };
    let (started, mut replayed) = (Instant::now(), 0);
    loop {
        let due = started.elapsed().as_micros() as u64 * options.rate / 1_000_000;
        while flow.submitted < due && flow.in_flight() < options.window {
            client.submit(&Record { life, number: flow.submitted + 1 }.payload(options.length_max))?;
            flow.submitted += 1;
        }
        client.pump()?;
        let refused = flow.take_acks(client);
        reporter.tell_acked(&mut flow.acked);
        if let Some(error) = refused {
            // Others in flight may have been answered otherwise, and none of it may get lost.
            flow.drain(client, reporter);
            return Err(error);
        }
        if reporter.requested() > replayed {
            let request = reporter.requested();
            flow.finish(client, reporter)?;
            client.set_timeout(Some(PATIENCE)).context("set a timeout")?;
            let (_, runs) = read_log(client, options.length_max, reporter)?;
            client.set_timeout(Some(LOOK)).context("set a timeout")?;
            reporter.tell(Message::Replayed { request, life, runs });
            replayed = request;
        }
        if flow.in_flight() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The epoch of a sidecar that was primary a moment ago, and the whole log.
fn read_log(client: &mut Client, length_max: u64, reporter: &mut Reporter) -> Result<(u64, Vec<Run>)> {
    // Without it the answer could be a zombie's, and what is absent there may be in the log.
    let passed = client.barrier()?;
    let mut runs = Vec::new();
    let mut records = client.read(Lsn(1), 0)?;
    while let Some((lsn, payload)) = records.next_record()? {
        match Record::of_payload(payload, length_max) {
            Some(Record { life, number }) => push(&mut runs, Run { life, number, lsn: lsn.0, count: 1 }),
            None => {
                reporter.tell(Message::Broken {
                    what: format!("record {lsn} is nothing that was submitted: {payload:x?}"),
                });
                bail!("record {lsn} is broken");
            }
        }
    }
    Ok((passed.epoch.0, runs))
}

/// What is under way in a life.
struct Flow {
    life: u64,
    submitted: u64,
    answered: u64,
    /// Acknowledged and not told yet.
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
                Ok(lsn) => push(&mut self.acked, Run { life: self.life, number: self.answered, lsn: lsn.0, count: 1 }),
                Err(error) => refused = refused.or(Some(anyhow::Error::from(error))),
            }
            next = client.try_next_ack();
        }
        refused
    }

    /// Waits until everything is answered. The sidecar may take its time: as long as the connection lives it owes answers.
    fn finish(&mut self, client: &mut Client, reporter: &mut Reporter) -> Result<()> {
        while self.in_flight() > 0 {
            let refused = self.take_acks(client);
            reporter.tell_acked(&mut self.acked);
            if let Some(error) = refused {
                self.drain(client, reporter);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes what is answered still, until the connection ends or nothing more comes for a while.
    fn drain(&mut self, client: &mut Client, reporter: &mut Reporter) {
        let deadline = Instant::now() + PATIENCE;
        while self.in_flight() > 0 && Instant::now() < deadline {
            let before = self.answered;
            let refused = self.take_acks(client);
            reporter.tell_acked(&mut self.acked);
            if refused.is_some() && self.answered == before {
                break;
            }
        }
    }
}

// ---- Its connection to the ledger -------------------------------------------------------------------------------------

/// Tells the ledger. When the connection breaks, what the ledger may have missed is told again: all of this life.
struct Reporter {
    ledger: String,
    stream: Option<TcpStream>,
    /// The beginning of a line.
    unread: Vec<u8>,
    requested: u64,
    told: Option<Told>,
}

/// What has been told of the present life.
struct Told {
    life: u64,
    began: Message,
    acked: Vec<Run>,
}

impl Reporter {
    fn begin_life(&mut self, began: Message, life: u64) {
        self.told = Some(Told { life, began: began.clone(), acked: Vec::new() });
        self.tell(began);
    }

    fn end_life(&mut self, why: String) {
        if let Some(told) = self.told.take() {
            self.tell(Message::Lost { life: told.life, why });
        }
    }

    fn tell_acked(&mut self, runs: &mut Vec<Run>) {
        for run in runs.drain(..) {
            if let Some(told) = &mut self.told {
                push(&mut told.acked, run);
            }
            self.tell(Message::Acked { run });
        }
    }

    /// Returns when it is on its way.
    fn tell(&mut self, message: Message) {
        while let Err(error) = self.connect().and_then(|()| self.send(&message)) {
            println!("no ledger: {error:#}");
            self.stream = None;
            std::thread::sleep(PAUSE);
        }
    }

    fn connect(&mut self) -> Result<()> {
        if self.stream.is_some() {
            return Ok(());
        }
        let mut addresses = self.ledger.to_socket_addrs().context("find the ledger")?;
        let address = addresses.next().context("the ledger has no address")?;
        let stream = TcpStream::connect_timeout(&address, LEDGER_PATIENCE).context("connect to the ledger")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_micros(1)))?;
        self.stream = Some(stream);
        self.unread.clear();
        if let Some(Told { began, acked, .. }) = &self.told {
            let again: Vec<Message> =
                [began.clone()].into_iter().chain(acked.iter().map(|run| Message::Acked { run: *run })).collect();
            for message in &again {
                self.send(message)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message).context("write a message")?;
        line.push(b'\n');
        let stream = self.stream.as_mut().context("connected")?;
        stream.write_all(&line).context("tell the ledger")
    }

    /// The newest replay that the ledger wants.
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
            if let Ok(Answer::Replay { request }) = serde_json::from_slice(&line) {
                self.requested = self.requested.max(request);
            }
        }
        self.requested
    }
}

// ---- The ledger -------------------------------------------------------------------------------------------------------

/// The state, and everybody who is connected.
struct Office {
    ledger: Ledger,
    started: Instant,
    loaders: Vec<TcpStream>,
}

fn keep(listen: &str) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    println!("listening on {listen}");
    let office = Office { ledger: Ledger::default(), started: Instant::now(), loaders: Vec::new() };
    let office = Arc::new(Mutex::new(office));
    for stream in listener.incoming() {
        let (stream, office) = (stream.context("accept a connection")?, Arc::clone(&office));
        std::thread::spawn(move || {
            // Whoever was connected has been killed, or knows what was asked.
            let _ = serve(stream, &office);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, office: &Mutex<Office>) -> Result<()> {
    stream.set_nodelay(true)?;
    // A loader whose node has lost its power must not hold up the others.
    stream.set_write_timeout(Some(LEDGER_PATIENCE))?;
    {
        let mut office = lock(office);
        office.loaders.push(stream.try_clone()?);
        let request = office.ledger.requested();
        answer(&mut stream, &Answer::Replay { request })?;
    }
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line.context("read a line")?;
        let message = serde_json::from_str(&line).with_context(|| format!("understand {line}"))?;
        let mut office = lock(office);
        let now_us = office.started.elapsed().as_micros() as u64;
        match office.ledger.take(message, now_us) {
            Some(wanted @ Answer::Replay { .. }) => office.loaders.retain_mut(|loader| answer(loader, &wanted).is_ok()),
            Some(report) => answer(&mut stream, &report)?,
            None => {}
        }
    }
    Ok(())
}

fn answer(stream: &mut TcpStream, answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer).context("write an answer")?;
    line.push(b'\n');
    stream.write_all(&line).context("answer")
}

fn lock(office: &Mutex<Office>) -> MutexGuard<'_, Office> {
    office.lock().unwrap_or_else(PoisonError::into_inner)
}
