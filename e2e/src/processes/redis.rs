//! Redis as Debian has it, under `tailwind-exec` beside each sidecar of a group, and clients that know what was answered.
//!
//! Used by `tests/processes/redis.rs`, and by `./quickstart --app redis`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::exec::Containers;
use super::exec_client::{self, Client, Outage};
use super::exec_faults::{Connection, Service};
use super::group::Group;
use super::observer::TIMEOUT;
use super::process::{Daemon, POLL_INTERVAL, free_port, installed};
use super::resp::{RespClient, RespValue};
use crate::logs::last_lines;
use crate::wait::poll;
use crate::workload::Random;

/// After so long without a reply a client looks whether another Redis serves. One that was cut off answers never.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Keys of each kind that a client has.
const KEYS: usize = 4;
/// The longest value: more than a record of the log takes, if segments are of 256 KiB.
const VALUE_MAX: u64 = 100_000;

/// A Redis beside each sidecar; only that of the primary runs.
#[derive(Debug)]
pub struct Servers {
    /// The containers that they run in.
    pub containers: Containers,
    ports: Vec<u16>,
    logs: Vec<PathBuf>,
}

impl Servers {
    /// Starts `tailwind-exec` beside each sidecar.
    pub fn start(group: &Group) -> Result<Servers> {
        Servers::launch(group, &[], &[])
    }

    /// The same, with more options of Redis, or other values.
    pub fn start_with(group: &Group, options: &[&str]) -> Result<Servers> {
        Servers::launch(group, &[], options)
    }

    /// The same, with more options of `tailwind-exec`.
    pub fn start_under(group: &Group, options: &[&str]) -> Result<Servers> {
        Servers::launch(group, options, &[])
    }

    fn launch(group: &Group, exec: &[&str], options: &[&str]) -> Result<Servers> {
        let program = installed("redis-server", "redis-server")?;
        let ports = (0..group.sidecars()).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        let log = |index: usize| group.folder().join("logs").join(format!("redis{index}.log"));
        let command = |index: usize, directory: &Path| {
            let mut command = arguments(&program, ports[index], directory, &log(index));
            // The last value counts.
            command.extend(options.iter().map(OsString::from));
            command
        };
        let containers = Containers::start("redis", group, exec, command)?;
        let logs = (0..group.sidecars()).map(log).collect();
        Ok(Servers { containers, ports, logs })
    }

    /// Where they listen.
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// A client that writes in a thread of its own, `depth` requests at a time.
    pub fn client(&self, name: &str, seed: u64, depth: u64) -> Client<Writer> {
        Client::start(Writer::new(name, self.ports.clone(), seed, depth))
    }

    /// How long one took to load its file when it was started last, by its own log.
    pub fn loading(&self, index: usize) -> Result<Duration> {
        let log = fs::read_to_string(&self.logs[index])?;
        let (_, rest) = log.rsplit_once("DB loaded from append only file: ").context("no file was loaded")?;
        let seconds = rest.split(' ').next().unwrap_or_default();
        Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
    }
}

impl Service for Servers {
    type Connection = RespClient;

    fn containers(&self) -> &Containers {
        &self.containers
    }

    fn serves(&self, index: usize) -> bool {
        let client = RespClient::connect(self.ports[index], ANSWER_TIMEOUT);
        client.is_ok_and(|mut client| matches!(client.ask(&["SET", "served", "yes"]), Ok(RespValue::Simple(_))))
    }

    fn connect(&self, index: usize) -> Result<RespClient> {
        RespClient::connect(self.ports[index], TIMEOUT).with_context(|| format!("connect to redis{index}"))
    }

    fn last_lines(&self) -> String {
        let lines = |path: &PathBuf| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            last_lines(&name, fs::read_to_string(path).unwrap_or_default().lines(), 40)
        };
        self.logs.iter().map(lines).collect()
    }
}

impl Connection for RespClient {
    fn send_write(&mut self) -> Result<()> {
        self.send(&["INCR", "written"])
    }

    fn confirmed(&mut self) -> Result<()> {
        match self.reply()? {
            RespValue::Integer(_) => Ok(()),
            other => panic!("a write is answered with {other:?}"),
        }
    }
}

impl Drop for Servers {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.last_lines());
        }
    }
}

/// The command line of a Redis that answers a write when it is synced.
fn arguments(program: &Path, port: u16, directory: &Path, log: &Path) -> Vec<OsString> {
    let mut command: Vec<OsString> = vec![program.into()];
    command.extend(["--bind", "127.0.0.1", "--port", &port.to_string()].map(OsString::from));
    command.extend(["--dir".into(), directory.into(), "--logfile".into(), log.into()]);
    command.extend(["--appendonly", "yes", "--appendfsync", "always", "--save", ""].map(OsString::from));
    command.extend(["--no-appendfsync-on-rewrite", "no", "--enable-debug-command", "yes"].map(OsString::from));
    command
}

/// The same Redis with nothing around it, and its files in the group's folder in memory.
#[derive(Debug)]
pub struct Alone {
    /// Where it listens.
    pub port: u16,
    _daemon: Daemon,
}

impl Alone {
    /// Starts it, and waits until it serves.
    pub fn start(group: &Group) -> Result<Alone> {
        let program = installed("redis-server", "redis-server")?;
        let (port, directory) = (free_port()?, group.memory().join("redis-alone"));
        fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
        let log = group.folder().join("logs").join("redis-alone.log");
        let arguments = arguments(&program, port, &directory, &log);
        let mut command = Command::new(&arguments[0]);
        // A search for the processes that use the folder finds it.
        command.args(&arguments[1..]).args(["--set-proc-title", "no"]);
        let mut daemon = Daemon::new("redis-alone", log);
        daemon.start(command)?;
        let serves = poll(TIMEOUT, POLL_INTERVAL, || RespClient::connect(port, TIMEOUT).ok());
        serves.with_context(|| format!("redis-alone does not serve\n{}", daemon.log()))?;
        Ok(Alone { port, _daemon: daemon })
    }
}

/// A field of what `INFO` says of a section.
pub fn info(client: &mut RespClient, section: &str, field: &str) -> Result<String> {
    let RespValue::Bulk(text) = client.ask(&["INFO", section])? else { bail!("INFO is not answered with a text") };
    let text = String::from_utf8(text)?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("INFO {section} has no {field}"))?.trim().to_owned())
}

/// What a client knows of one counter: its value is `answered` at least, and `sent` at most.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    answered: i64,
    sent: i64,
}

/// What it knows of one value: it is the last that was answered, or one of those whose outcome is open.
#[derive(Clone, Debug, Default)]
struct Setting {
    answered: Option<String>,
    open: Vec<(u64, String)>,
}

/// A write on its way.
enum Write {
    Increment(usize),
    Set(usize, String),
}

/// A client that writes to keys of its own, at whichever Redis serves.
///
/// A request that was given up may still be carried out while the process lives to which it was sent, and never afterwards.
#[derive(Debug)]
pub struct Writer {
    name: String,
    ports: Vec<u16>,
    random: Random,
    depth: u64,
    counters: Vec<Counter>,
    settings: Vec<Setting>,
    /// The process to which all that is open was sent.
    process: String,
    connections: u64,
    values: u64,
}

impl exec_client::Writer for Writer {
    type Connection = RespClient;

    fn name(&self) -> &str {
        &self.name
    }

    fn programs(&self) -> usize {
        self.ports.len()
    }

    /// Reads all keys together with a write: what one that was cut off has read, it can never answer.
    fn connect(&mut self, index: usize) -> Result<Option<RespClient>> {
        let Ok(mut connection) = RespClient::connect(self.ports[index], ANSWER_TIMEOUT) else { return Ok(None) };
        self.connections += 1;
        let Ok(process) = info(&mut connection, "server", "run_id") else { return Ok(None) };
        let keys: Vec<String> = (0..KEYS).flat_map(|key| [self.counter(key), self.setting(key)]).collect();
        let read: Vec<&str> = std::iter::once("MGET").chain(keys.iter().map(String::as_str)).collect();
        let fence = format!("{}:fence", self.name);
        let commands: [&[&str]; 4] = [&["MULTI"], &["INCR", &fence], &read, &["EXEC"]];
        for command in commands {
            if connection.send(command).is_err() {
                return Ok(None);
            }
        }
        let mut values = Vec::new();
        for _ in commands {
            match connection.reply() {
                Err(_) => return Ok(None),
                Ok(reply) if reply.is_error("LOADING") => return Ok(None),
                Ok(RespValue::Simple(_)) => {}
                Ok(RespValue::Array(replies)) => match &replies[..] {
                    [RespValue::Integer(_), RespValue::Array(read)] => values.clone_from(read),
                    other => bail!("{}: the transaction is answered with {other:?}", self.name),
                },
                Ok(other) => bail!("{}: the transaction is answered with {other:?}", self.name),
            }
        }
        self.compare(values, process)?;
        Ok(Some(connection))
    }

    /// Sends some writes, then waits for their replies.
    fn write(&mut self, connection: &mut RespClient) -> Result<Result<u64, Outage>> {
        let mut writes = Vec::new();
        for _ in 0..self.depth {
            let key = self.random.below(KEYS as u64) as usize;
            let (write, sent) = if self.random.below(2) == 0 {
                self.counters[key].sent += 1;
                (Write::Increment(key), connection.send(&["INCR", &self.counter(key)]))
            } else {
                let value = self.value();
                self.settings[key].open.push((self.connections, value.clone()));
                let sent = connection.send(&["SET", &self.setting(key), &value]);
                (Write::Set(key, value), sent)
            };
            if sent.is_err() {
                return Ok(Err(Outage));
            }
            writes.push(write);
        }
        for write in writes {
            match (connection.reply(), write) {
                (Err(_), _) => return Ok(Err(Outage)),
                (Ok(RespValue::Integer(value)), Write::Increment(key)) => {
                    let counter = self.counters[key];
                    let possible = counter.answered < value && value <= counter.sent;
                    ensure!(possible, "{} is answered {value}, known is {counter:?}", self.counter(key));
                    self.counters[key].answered = value;
                }
                (Ok(RespValue::Simple(ok)), Write::Set(key, value)) if ok == "OK" => {
                    let Setting { answered, open } = &mut self.settings[key];
                    // Those before it on this connection were carried out before it.
                    let at = open.iter().position(|(_, open)| *open == value).unwrap_or(open.len());
                    let mut position = 0;
                    open.retain(|(connection, _)| {
                        position += 1;
                        position > at + 1 || *connection != self.connections
                    });
                    *answered = Some(value);
                }
                (Ok(other), _) => bail!("{}: a write is answered with {other:?}", self.name),
            }
        }
        Ok(Ok(self.depth))
    }
}

impl Writer {
    fn new(name: &str, ports: Vec<u16>, seed: u64, depth: u64) -> Writer {
        Writer {
            name: name.to_owned(),
            ports,
            random: Random(seed),
            depth,
            counters: vec![Counter::default(); KEYS],
            settings: vec![Setting::default(); KEYS],
            process: String::new(),
            connections: 0,
            values: 0,
        }
    }

    fn compare(&mut self, values: Vec<RespValue>, process: String) -> Result<()> {
        ensure!(values.len() == 2 * KEYS, "{}: {} values", self.name, values.len());
        let others = std::mem::replace(&mut self.process, process) != self.process;
        let texts = values.into_iter().map(|value| match value {
            RespValue::Nil => Ok(None),
            RespValue::Bulk(bytes) => Ok(Some(String::from_utf8(bytes)?)),
            other => bail!("a value is {other:?}"),
        });
        let mut texts = texts.collect::<Result<Vec<_>>>()?.into_iter();
        for key in 0..KEYS {
            let number = texts.next().flatten().map_or(Ok(0), |text| text.parse::<i64>())?;
            let counter = self.counters[key];
            let possible = counter.answered <= number && number <= counter.sent;
            ensure!(possible, "{} is {number}, known is {counter:?}", self.counter(key));
            let text = texts.next().flatten();
            let setting = &self.settings[key];
            let possible = text == setting.answered || setting.open.iter().any(|(_, open)| Some(open) == text.as_ref());
            ensure!(possible, "{} is {:?}, known is {}", self.setting(key), short(&text), describe(setting));
            if others {
                // What was open has been done, or never will be.
                self.counters[key] = Counter { answered: number, sent: number };
                self.settings[key] = Setting { answered: text, open: Vec::new() };
            }
        }
        Ok(())
    }

    /// A value that no other write has: mostly short, now and then long.
    fn value(&mut self) -> String {
        self.values += 1;
        let length = match self.random.below(200) {
            0 => self.random.below(VALUE_MAX),
            _ => self.random.below(100),
        };
        let letter = char::from(b'a' + (self.values % 26) as u8);
        format!("{}:{}", self.values, String::from(letter).repeat(length as usize))
    }

    fn counter(&self, key: usize) -> String {
        format!("{}:counter{key}", self.name)
    }

    fn setting(&self, key: usize) -> String {
        format!("{}:setting{key}", self.name)
    }
}

fn short(value: &Option<String>) -> Option<&str> {
    value.as_deref().map(|text| &text[..text.len().min(20)])
}

fn describe(setting: &Setting) -> String {
    let open: Vec<String> = setting.open.iter().map(|(_, open)| open[..open.len().min(20)].to_owned()).collect();
    format!("{:?} answered, {open:?} open", short(&setting.answered))
}
