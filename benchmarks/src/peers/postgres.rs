//! PostgreSQL with two synchronous standbys and `synchronous_commit = remote_write`: a commit answers once both standbys
//! have written it to their file system, which is in memory here.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tailwind_e2e::processes::process::{as_user, free_port};

use super::wire::{Protocol, Wire, excerpt};
use super::{Peer, Processes, find, version};
use crate::load::Connection;
use crate::results::Contestant;

const STANDBYS: usize = 2;
const SETTINGS: &[(&str, &str)] = &[
    ("synchronous_commit", "remote_write"),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("shared_buffers", "256MB"),
    ("max_connections", "100"),
    ("max_wal_size", "512MB"),
    ("autovacuum", "off"),
    ("dynamic_shared_memory_type", "mmap"),
];

struct Postgres {
    _processes: Stopped,
    port: u16,
    version: String,
}

pub(crate) fn start(memory: &Path) -> Result<Box<dyn Peer>> {
    let program = find("postgres", "postgresql", &folders())?;
    let tool = |name: &str| Ok::<_, anyhow::Error>(Command::new(find(name, "postgresql", &folders())?));
    let mut stopped = Stopped(Processes::new(memory, "postgresql-")?);
    let processes = &mut stopped.0;
    // It refuses to run as root, and wants folders of its own.
    let user = rustix::process::geteuid().is_root().then(postgres_user).transpose()?;
    if let Some((uid, gid)) = user {
        std::os::unix::fs::chown(processes.folder.path(), Some(uid), Some(gid)).context("give the folder away")?;
    }
    let as_it = |command: Command| match user {
        Some((uid, gid)) => as_user(&command, &uid.to_string(), &gid.to_string()),
        None => command,
    };
    let data = |number: usize, processes: &Processes| processes.path(format!("data{number}"));
    let mut initdb = tool("initdb")?;
    initdb.args(["--username", "postgres", "--auth", "trust", "--no-sync", "--pgdata"]).arg(data(0, processes));
    run(as_it(initdb))?;
    let port = free_port()?;
    let serve = |number: usize, port: u16, more: &[(&str, &str)], processes: &mut Processes| {
        let mut command = Command::new(&program);
        command.arg("-D").arg(data(number, processes)).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""]);
        for (name, value) in SETTINGS.iter().chain(more) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        processes.start(&format!("postgresql{number}"), as_it(command))
    };
    let names = format!("{STANDBYS} (*)");
    serve(0, port, &[("synchronous_standby_names", &names)], processes)?;
    processes.wait("PostgreSQL answers", || Session::open(port).map(|_| ()))?;
    for number in 1..=STANDBYS {
        let mut copy = tool("pg_basebackup")?;
        copy.args(["--username", "postgres", "--host", "127.0.0.1", "--port", &port.to_string()]);
        copy.args(["--checkpoint", "fast", "--no-sync", "--write-recovery-conf", "--wal-method", "stream", "--pgdata"]);
        copy.arg(data(number, processes));
        run(as_it(copy))?;
        serve(number, free_port()?, &[], processes)?;
    }
    processes.wait("both standbys of PostgreSQL are synchronous", || {
        let said = Session::open(port)?.query("select count(*) from pg_stat_replication where sync_state = 'sync'")?;
        ensure!(said.windows(1).any(|byte| byte == STANDBYS.to_string().as_bytes()), "not yet");
        Ok(())
    })?;
    Session::open(port)?.query("create table log (payload bytea)")?;
    Ok(Box::new(Postgres { _processes: stopped, port, version: version(&program, "--version") }))
}

/// Killed, it would leave shared memory behind. The primary ends last, so that nobody waits for it.
struct Stopped(Processes);

impl Drop for Stopped {
    fn drop(&mut self) {
        for mut daemon in self.0.daemons.drain(..).rev() {
            // An immediate shutdown.
            if daemon.signal(Signal::QUIT).is_ok() {
                let _ = daemon.wait_for_end();
            }
        }
    }
}

/// Debian keeps the programs of each version by themselves; the newest first.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> =
        versions.filter_map(|v| Some((v.file_name().to_str()?.parse().ok()?, v.path().join("bin")))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, folder)| folder).collect()
}

/// The user of the package, or else `nobody`.
fn postgres_user() -> Result<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let found = ["postgres", "nobody"].iter().find_map(|name| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    found.context("find a user for PostgreSQL, which refuses to run as root")
}

fn run(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("start {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

impl Peer for Postgres {
    fn contestant(&self) -> Contestant {
        let settings: Vec<String> = SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        Contestant {
            name: "PostgreSQL".to_owned(),
            version: self.version.clone(),
            claim: format!("in the WAL of the primary and {STANDBYS} standbys, in tmpfs"),
            configuration: format!(
                "{}, synchronous_standby_names = '{STANDBYS} (*)'; prepared INSERT into a table without index; records that are \
                 sent together are one transaction",
                settings.join(", ")
            ),
        }
    }

    fn connection(&self) -> Result<Box<dyn Connection>> {
        let mut session = Session::open(self.port)?;
        let mut parse = Vec::new();
        message(&mut parse, b'P', |out| {
            out.extend_from_slice(b"i\0insert into log values ($1)\0\0\x01");
            out.extend_from_slice(&17u32.to_be_bytes());
        });
        message(&mut parse, b'S', |_| ());
        session.stream.write_all(&parse).context("prepare the INSERT")?;
        session.until_ready()?;
        session.stream.set_read_timeout(None)?;
        Ok(Box::new(Wire::new(session.stream, Inserts::default())?))
    }

    fn rest(&self) -> Result<()> {
        Session::open(self.port)?.query("truncate log").map(|_| ())
    }
}

/// A message of the frontend/backend protocol: kind, length, body.
fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// A connection before it carries load.
struct Session {
    stream: TcpStream,
}

impl Session {
    fn open(port: u16) -> Result<Session> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect to PostgreSQL")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut hello = vec![0; 4];
        hello.extend_from_slice(&(3u32 << 16).to_be_bytes());
        hello.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
        let length = hello.len() as u32;
        hello[..4].copy_from_slice(&length.to_be_bytes());
        stream.write_all(&hello)?;
        let mut session = Session { stream };
        session.until_ready()?;
        Ok(session)
    }

    fn query(&mut self, text: &str) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        message(&mut out, b'Q', |out| {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        });
        self.stream.write_all(&out)?;
        self.until_ready()
    }

    /// The rows that came before it was ready again.
    fn until_ready(&mut self) -> Result<Vec<u8>> {
        let mut rows = Vec::new();
        loop {
            let mut head = [0; 5];
            self.stream.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut body = vec![0; length.checked_sub(4).context("understand PostgreSQL")?];
            self.stream.read_exact(&mut body)?;
            match head[0] {
                b'Z' => return Ok(rows),
                b'D' => rows.extend(body),
                b'E' => bail!("PostgreSQL answered {}", excerpt(&body).replace('\0', " ")),
                _ => {}
            }
        }
    }
}

#[derive(Default)]
struct Inserts {
    unsealed: usize,
    /// Records before each Sync that is not answered.
    groups: VecDeque<usize>,
}

impl Protocol for Inserts {
    fn encode(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.unsealed += 1;
        message(out, b'B', |out| {
            out.extend_from_slice(b"\0i\0\0\x01\0\x01\0\x01");
            out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
            out.extend_from_slice(payload);
            out.extend_from_slice(&[0; 2]);
        });
        message(out, b'E', |out| out.extend_from_slice(&[0; 5]));
    }

    fn seal(&mut self, out: &mut Vec<u8>) {
        self.groups.push_back(std::mem::take(&mut self.unsealed));
        message(out, b'S', |_| ());
    }

    fn groups(&self) -> usize {
        self.groups.len()
    }

    fn decode(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
        let Some(head) = input.first_chunk::<5>() else { return Ok(None) };
        let size = 1 + u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some(whole) = input.get(..size) else { return Ok(None) };
        match head[0] {
            b'Z' => Ok(Some((size, self.groups.pop_front().context("more answers than requests")?))),
            b'E' => bail!("PostgreSQL answered {}", excerpt(&whole[5..]).replace('\0', " ")),
            _ => Ok(Some((size, 0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_answers_the_records_before_it() {
        let mut inserts = Inserts::default();
        let mut out = Vec::new();
        inserts.encode(b"ab", &mut out);
        assert_eq!(out, b"B\0\0\0\x15\0i\0\0\x01\0\x01\0\x01\0\0\0\x02ab\0\0E\0\0\0\x09\0\0\0\0\0");
        inserts.encode(b"", &mut out);
        inserts.seal(&mut out);
        assert!(out.ends_with(b"S\0\0\0\x04"));
        assert_eq!(inserts.decode(b"2\0\0\0\x04C", &mut Vec::new()).unwrap(), Some((5, 0)));
        assert_eq!(inserts.decode(b"Z\0\0\0\x05", &mut Vec::new()).unwrap(), None);
        assert_eq!(inserts.decode(b"Z\0\0\0\x05I", &mut Vec::new()).unwrap(), Some((6, 2)));
        assert!(inserts.decode(b"E\0\0\0\x06no", &mut Vec::new()).is_err());
    }
}
