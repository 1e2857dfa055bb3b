//! A service on SQLite under `tailwind-exec` beside each sidecar of a group, and clients that know what was committed.
//!
//! Used by `tests/processes/sqlite.rs`, whose folder has the service itself.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::exec::Containers;
use super::exec_client::{self, Client, Outage};
use super::exec_faults::{Connection, Service};
use super::group::Group;
use super::observer::TIMEOUT;
use super::process::{free_port, installed, run_to_end};
use crate::workload::Random;

/// After so long without a reply a client looks whether another service serves. One that was cut off answers never.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// As in the service: a client keeps its rows in so many tables, so many in each.
const TABLES: u64 = 8;
const ROWS: u64 = 20;
/// The longest text of a row: some pages.
const SIZE_MAX: u64 = 20_000;
/// The database's name in its directory.
const DATABASE: &str = "database.sqlite";

/// How SQLite keeps its journal, and what it syncs.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// `WAL`, `DELETE`, `TRUNCATE`.
    pub journal: &'static str,
    /// `OFF`, `NORMAL`, `FULL`, `EXTRA`.
    pub synchronous: &'static str,
}

/// A service beside each sidecar; only that of the primary runs.
#[derive(Debug)]
pub struct Services {
    /// The containers that they run in.
    pub containers: Containers,
    ports: Vec<u16>,
}

impl Services {
    /// Starts `tailwind-exec` beside each sidecar.
    pub fn start(group: &Group, mode: Mode) -> Result<Services> {
        Services::start_under(group, &[], mode)
    }

    /// The same, with more options of `tailwind-exec`.
    pub fn start_under(group: &Group, options: &[&str], mode: Mode) -> Result<Services> {
        let python = installed("python3", "python3")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/sqlite_service.py");
        let ports = (0..group.sidecars()).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        let command = |index: usize, directory: &Path| -> Vec<OsString> {
            let port = ports[index].to_string();
            // Without bytecode, and with a trace of errors at once.
            let words = [python.clone().into(), "-Bu".into(), script.clone().into(), directory.join(DATABASE).into()];
            let more = [&port, mode.journal, mode.synchronous];
            words.into_iter().chain(more.map(OsString::from)).collect()
        };
        let containers = Containers::start("sqlite", group, options, command)?;
        Ok(Services { containers, ports })
    }

    /// A client that writes in a thread of its own.
    pub fn client(&self, name: &str, seed: u64) -> Client<Writer> {
        let (name, ports) = (name.to_owned(), self.ports.clone());
        Client::start(Writer { name, ports, random: Random(seed), last: 0, sent: 0 })
    }

    /// What SQLite's own shell says of a copy of a standby's database, as it is on disk.
    pub fn check_copy(&self, index: usize, folder: &Path) -> Result<String> {
        let shell = installed("sqlite3", "sqlite3")?;
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(self.containers.directory(index))? {
            let path = entry?.path();
            std::fs::copy(&path, folder.join(path.file_name().unwrap_or_default()))?;
        }
        let database: PathBuf = folder.join(DATABASE);
        let words = "PRAGMA integrity_check; SELECT client, number FROM last ORDER BY client;";
        let ended = run_to_end(Command::new(shell).arg("-batch").arg(database).arg(words))?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(ended.out)
    }
}

impl Service for Services {
    type Connection = SqliteClient;

    fn containers(&self) -> &Containers {
        &self.containers
    }

    fn serves(&self, index: usize) -> bool {
        let client = SqliteClient::connect(self.ports[index], ANSWER_TIMEOUT);
        client.is_ok_and(|mut client| client.ask(&json!(["fence"])).is_ok())
    }

    fn connect(&self, index: usize) -> Result<SqliteClient> {
        SqliteClient::connect(self.ports[index], 2 * TIMEOUT)
    }
}

/// A connection to a service.
#[derive(Debug)]
pub struct SqliteClient {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Answer(Value),
    Error(String),
}

impl SqliteClient {
    fn connect(port: u16, answer_timeout: Duration) -> Result<SqliteClient> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(answer_timeout))?;
        stream.set_nodelay(true)?;
        Ok(SqliteClient { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Sends a request without waiting for its reply.
    pub fn send(&mut self, request: &Value) -> Result<()> {
        Ok(self.stream.write_all(format!("{request}\n").as_bytes())?)
    }

    /// The reply; an error if the connection has ended.
    pub fn reply(&mut self) -> Result<Result<Value, String>> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the connection has ended");
        Ok(match serde_json::from_str(&line)? {
            Reply::Answer(value) => Ok(value),
            Reply::Error(text) => Err(text),
        })
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, request: &Value) -> Result<Value> {
        self.send(request)?;
        self.reply()?.map_err(anyhow::Error::msg).with_context(|| request.to_string())
    }

    /// What `PRAGMA integrity_check` says.
    pub fn integrity(&mut self) -> Result<Value> {
        self.ask(&json!(["pragma", "integrity_check"]))
    }
}

impl Connection for SqliteClient {
    fn send_write(&mut self) -> Result<()> {
        self.send(&json!(["fence"]))
    }

    fn confirmed(&mut self) -> Result<()> {
        match self.reply()? {
            Ok(_) => Ok(()),
            Err(error) => panic!("a write is answered with {error}"),
        }
    }
}

/// A client that writes one row after the other. Its last row is `last` at least, and `sent` at most.
#[derive(Debug)]
pub struct Writer {
    name: String,
    ports: Vec<u16>,
    random: Random,
    last: u64,
    sent: u64,
}

#[derive(Deserialize)]
struct Rows {
    last: u64,
    numbers: Vec<u64>,
}

impl Writer {
    /// The number of its last row.
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl exec_client::Writer for Writer {
    type Connection = SqliteClient;

    fn name(&self) -> &str {
        &self.name
    }

    fn programs(&self) -> usize {
        self.ports.len()
    }

    fn connect(&mut self, index: usize) -> Result<Option<SqliteClient>> {
        let Ok(mut connection) = SqliteClient::connect(self.ports[index], ANSWER_TIMEOUT) else { return Ok(None) };
        if connection.send(&json!(["rows", self.name])).is_err() {
            return Ok(None);
        }
        let Ok(reply) = connection.reply() else { return Ok(None) };
        let rows = reply.map_err(|error| anyhow::anyhow!("{}: the rows cannot be read: {error}", self.name))?;
        let Rows { last, numbers } = serde_json::from_value(rows)?;
        ensure!(
            self.last <= last && last <= self.sent,
            "the last row of {} is {last}, known is {} of {}",
            self.name,
            self.last,
            self.sent
        );
        let first = (last / ROWS).saturating_sub(TABLES - 1) * ROWS;
        let expected: Vec<u64> = (first.max(1)..=last).collect();
        ensure!(numbers == expected, "{} has the rows {numbers:?} instead of {first} to {last}", self.name);
        self.last = last;
        Ok(Some(connection))
    }

    fn write(&mut self, connection: &mut SqliteClient) -> Result<Result<u64, Outage>> {
        let size = match self.random.below(20) {
            0 => self.random.below(SIZE_MAX),
            _ => self.random.below(200),
        };
        let number = self.last + 1;
        self.sent = number;
        if connection.send(&json!(["write", self.name, number, size])).is_err() {
            return Ok(Err(Outage));
        }
        match connection.reply() {
            Err(_) => Ok(Err(Outage)),
            Ok(Ok(answer)) if answer == number => {
                self.last = number;
                Ok(Ok(1))
            }
            Ok(other) => bail!("{}: row {number} is answered with {other:?}", self.name),
        }
    }
}
