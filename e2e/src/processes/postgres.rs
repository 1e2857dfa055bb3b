//! PostgreSQL as Debian has it, under `tailwind-exec` beside each sidecar of a group, and clients that know what was committed.
//!
//! Used by `tests/processes/postgres.rs`. It refuses to run as root, and its processes are in sessions of their own: so each is
//! in a container of its own kind, see [`Containers::start_as_nobody`].

use std::ffi::OsString;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::exec::Containers;
use super::exec_client::{self, Client, Outage};
use super::exec_faults::{Connection, Service};
use super::group::Group;
use super::observer::TIMEOUT;
use super::process::{Daemon, free_port};
use crate::workload::Random;

/// After so long without a reply a client looks whether another server serves. One that was cut off answers never.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a client pauses that is refused: the server starts a process for each attempt, also while it recovers.
const PAUSE: Duration = Duration::from_millis(200);
/// The database's user; every connection is trusted.
const USER: &str = "tester";
/// Makes the database if there is none, and becomes the server: programs, directory, port, log, and options. Files of POSIX
/// shared memory would be on the volume's file system, which is in memory here, and each look at one would list the volume
/// again.
const SCRIPT: &str = r#"
set -e
programs=$1 data=$2/cluster port=$3
exec >>"$4" 2>&1
if [ ! -d "$data" ]; then
    rm -rf "$data.new"
    "$programs/initdb" --auth trust --username tester --no-locale --encoding UTF8 --pgdata "$data.new"
    mv "$data.new" "$data"
    sync "$2"
fi
shift 4
exec "$programs/postgres" -D "$data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c wal_sync_method=fdatasync -c max_wal_size=32MB -c checkpoint_timeout=30s \
    -c dynamic_shared_memory_type=sysv "$@"
"#;

/// Where Debian keeps PostgreSQL's programs.
pub fn programs() -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin")).find(|folder| folder.join("postgres").is_file());
    found.context("there is no PostgreSQL here; as root: apt-get install --no-install-recommends postgresql")
}

/// A server beside each sidecar; only that of the primary runs.
#[derive(Debug)]
pub struct Servers {
    /// The containers that they run in.
    pub containers: Containers,
    programs: PathBuf,
    ports: Vec<u16>,
}

impl Servers {
    /// Starts `tailwind-exec` beside each sidecar. Needs root, and a group whose sidecars let anybody connect.
    pub fn start(group: &Group, options: &[&str]) -> Result<Servers> {
        let programs = programs()?;
        let ports = (0..group.sidecars()).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
        let command = |index: usize, directory: &Path| -> Vec<OsString> {
            let log = group.folder().join("logs").join(format!("postgres{index}.log"));
            let mut command: Vec<OsString> = ["sh", "-c", SCRIPT, "sh"].map(OsString::from).to_vec();
            command.extend([programs.clone().into(), directory.into(), ports[index].to_string().into(), log.into()]);
            command.extend(options.iter().map(OsString::from));
            command
        };
        let stale = ["--remove-at-start", "cluster/postmaster.pid"];
        let containers = Containers::start_as_nobody("postgres", group, &stale, command)?;
        Ok(Servers { containers, programs, ports })
    }

    /// A client that writes in a thread of its own.
    pub fn client(&self, name: &str, seed: u64) -> Client<Writer> {
        let (name, ports) = (name.to_owned(), self.ports.clone());
        Client::start(Writer { name, ports, random: Random(seed), last: 0, sent: 0 })
    }

    /// One of PostgreSQL's own programs, which connects to a server.
    pub fn tool(&self, name: &str, index: usize) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.args(["-h", "127.0.0.1", "-U", USER, "-p", &self.ports[index].to_string()]);
        command
    }

    /// Starts pgbench, which ends when its server does.
    pub fn bench(&self, index: usize, log: PathBuf) -> Result<Daemon> {
        let mut daemon = Daemon::new("pgbench", log);
        let mut command = self.tool("pgbench", index);
        command.args(["--client=4", "--time=100000", "--no-vacuum", "postgres"]);
        daemon.start(command)?;
        Ok(daemon)
    }
}

impl Service for Servers {
    type Connection = PostgresClient;

    fn containers(&self) -> &Containers {
        &self.containers
    }

    fn termination(&self) -> Signal {
        // With SIGTERM it waits for its clients.
        Signal::INT
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn serves(&self, index: usize) -> bool {
        let write = "CREATE TABLE IF NOT EXISTS fence (time timestamptz); INSERT INTO fence VALUES (now())";
        let client = PostgresClient::connect(self.ports[index], ANSWER_TIMEOUT);
        client.is_ok_and(|mut client| matches!(client.ask(write), Ok(Ok(_))))
    }

    fn connect(&self, index: usize) -> Result<PostgresClient> {
        PostgresClient::connect(self.ports[index], 2 * TIMEOUT)
    }
}

/// An error that the server has answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlError {
    code: String,
    message: String,
}

/// Rows of texts.
type Rows = Vec<Vec<Option<String>>>;

/// A connection that speaks PostgreSQL's protocol, version 3, as far as simple queries go.
#[derive(Debug)]
pub struct PostgresClient {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl PostgresClient {
    fn connect(port: u16, answer_timeout: Duration) -> Result<PostgresClient> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(answer_timeout))?;
        stream.set_nodelay(true)?;
        let mut client = PostgresClient { reader: BufReader::new(stream.try_clone()?), stream };
        let parameters = format!("user\0{USER}\0database\0postgres\0\0");
        let length = 8 + parameters.len() as u32;
        let mut startup = length.to_be_bytes().to_vec();
        startup.extend(196_608_u32.to_be_bytes());
        startup.extend(parameters.as_bytes());
        client.stream.write_all(&startup)?;
        let ready = client.reply()?;
        ensure!(ready.is_ok(), "{ready:?}");
        Ok(client)
    }

    /// Sends statements, which are one transaction, without waiting for their end.
    pub fn send(&mut self, statements: &str) -> Result<()> {
        let mut message = vec![b'Q'];
        message.extend((statements.len() as u32 + 5).to_be_bytes());
        message.extend(statements.as_bytes());
        message.push(0);
        Ok(self.stream.write_all(&message)?)
    }

    /// All rows, once the transaction is committed; an error if the connection has ended.
    pub fn reply(&mut self) -> Result<Result<Rows, SqlError>> {
        let (mut rows, mut failed) = (Rows::new(), None);
        loop {
            let mut header = [0; 5];
            self.reader.read_exact(&mut header)?;
            let [kind, length @ ..] = header;
            let length = (u32::from_be_bytes(length) as usize).checked_sub(4).context("a message without a length")?;
            let mut body = vec![0; length];
            self.reader.read_exact(&mut body)?;
            match kind {
                b'D' => rows.push(row(&body)?),
                b'E' => {
                    let field = |kind: u8| {
                        let fields = body.split(|byte| *byte == 0);
                        let found = fields.filter_map(|field| field.split_first()).find(|(first, _)| **first == kind);
                        found.map(|(_, text)| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
                    };
                    let error = SqlError { code: field(b'C'), message: field(b'M') };
                    // The server says so, and ends the connection.
                    if matches!(&error.code[..], "57P01" | "57P02" | "57P03") {
                        bail!("the server does not serve: {}", error.message);
                    }
                    failed = Some(error);
                }
                b'Z' => return Ok(failed.map_or(Ok(rows), Err)),
                _ => {}
            }
        }
    }

    /// Sends statements and waits for their end.
    pub fn ask(&mut self, statements: &str) -> Result<Result<Rows, SqlError>> {
        self.send(statements)?;
        self.reply()
    }

    /// The same, where an error is a fault.
    pub fn rows(&mut self, statements: &str) -> Result<Rows> {
        self.ask(statements)?.map_err(|SqlError { code, message }| anyhow::anyhow!("{statements}: {code} {message}"))
    }
}

fn row(body: &[u8]) -> Result<Vec<Option<String>>> {
    let short = "a row that is cut off";
    let (count, mut rest) = body.split_at_checked(2).context(short)?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(count.try_into()?) {
        let (length, after) = rest.split_at_checked(4).context(short)?;
        rest = after;
        row.push(match i32::from_be_bytes(length.try_into()?) {
            -1 => None,
            length => {
                let (text, after) = rest.split_at_checked(length as usize).context(short)?;
                rest = after;
                Some(String::from_utf8(text.to_vec())?)
            }
        });
    }
    Ok(row)
}

impl Connection for PostgresClient {
    fn send_write(&mut self) -> Result<()> {
        self.send("INSERT INTO fence VALUES (now())")
    }

    fn confirmed(&mut self) -> Result<()> {
        match self.reply()? {
            Ok(_) => Ok(()),
            Err(error) => panic!("a write is answered with {error:?}"),
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

impl exec_client::Writer for Writer {
    type Connection = PostgresClient;
    const PAUSE: Duration = PAUSE;

    fn name(&self) -> &str {
        &self.name
    }

    fn programs(&self) -> usize {
        self.ports.len()
    }

    fn connect(&mut self, index: usize) -> Result<Option<PostgresClient>> {
        let Ok(mut connection) = PostgresClient::connect(self.ports[index], ANSWER_TIMEOUT) else { return Ok(None) };
        let name = &self.name;
        let statements = format!(
            "INSERT INTO fence VALUES (now());
            SELECT count(*), coalesce(min(number), 1), coalesce(max(number), 0),
                coalesce((SELECT number FROM lasts WHERE client = '{name}'), 0) FROM rows WHERE client = '{name}'"
        );
        let Ok(reply) = connection.ask(&statements) else { return Ok(None) };
        let rows = reply.map_err(|error| anyhow::anyhow!("{name}: the rows cannot be read: {error:?}"))?;
        let numbers = rows.into_iter().flatten().flatten().map(|text| text.parse::<u64>());
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let [count, first, last, noted] = numbers[..] else { bail!("{name}: {numbers:?}") };
        let known = format!("known is {} of {}", self.last, self.sent);
        ensure!(self.last <= last && last <= self.sent, "the last row of {name} is {last}, {known}");
        let all = (count, first, noted) == (last, 1, last);
        ensure!(all, "{name} has {count} rows from {first} to {last}, and noted {noted}; {known}");
        self.last = last;
        Ok(Some(connection))
    }

    fn write(&mut self, connection: &mut PostgresClient) -> Result<Result<u64, Outage>> {
        let size = match self.random.below(20) {
            0 => self.random.below(20_000),
            _ => self.random.below(200),
        };
        let (name, number) = (&self.name, self.last + 1);
        self.sent = number;
        let statements = format!(
            "INSERT INTO rows SELECT '{name}', {number}, string_agg(md5(random()::text), '')
                FROM generate_series(0, {size} / 32) ON CONFLICT DO NOTHING;
            INSERT INTO lasts VALUES ('{name}', {number})
                ON CONFLICT (client) DO UPDATE SET number = greatest(lasts.number, excluded.number)"
        );
        match connection.ask(&statements) {
            Err(_) => Ok(Err(Outage)),
            Ok(Ok(_)) => {
                self.last = number;
                Ok(Ok(1))
            }
            Ok(Err(error)) => bail!("{name}: row {number} is answered with {error:?}"),
        }
    }
}
