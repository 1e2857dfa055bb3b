//! Redis with two replicas: each group of records is followed by `WAIT 2`, which answers once both replicas have it. And Redis
//! alone, for the comparison `exec`: it syncs its file before it answers.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use tailwind_e2e::processes::process::free_port;
use tailwind_e2e::wait::poll;

use super::wire::{Protocol, Wire, excerpt, line};
use super::{Peer, Processes, find, version};
use crate::load::Connection;
use crate::results::Contestant;

const REPLICAS: usize = 2;
/// Keys are used again and again, so that memory is bounded.
const KEYS: u32 = 10_000;
const OPTIONS: &[&str] =
    &["--save", "", "--appendonly", "no", "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];

struct Redis {
    _processes: Processes,
    port: u16,
    version: String,
}

pub(crate) fn start(memory: &Path) -> Result<Box<dyn Peer>> {
    let program = find("redis-server", "redis-server", &[])?;
    let mut processes = Processes::new(memory, "redis-")?;
    let port = free_port()?;
    for number in 0..=REPLICAS {
        let mut command = Command::new(&program);
        let own = if number == 0 { port } else { free_port()? };
        command.args(["--port", &own.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(processes.folder.path());
        command.args(["--dbfilename", &format!("{number}.rdb")]).args(OPTIONS);
        if number > 0 {
            command.args(["--replicaof", &format!("127.0.0.1 {port}")]);
        }
        processes.start(&format!("redis{number}"), command)?;
    }
    processes.wait("Redis has both replicas", || {
        let said = ask(port, "INFO replication\r\n")?;
        let online = said.matches("state=online").count();
        ensure!(online == REPLICAS, "{online} of {REPLICAS} replicas are online");
        Ok(())
    })?;
    Ok(Box::new(Redis { _processes: processes, port, version: version(&program, "--version") }))
}

/// A Redis alone.
pub(crate) struct Alone {
    _processes: Processes,
    pub(crate) port: u16,
    pub(crate) version: String,
}

/// What has Redis sync its file before it answers, and rewrite it only when asked.
pub(crate) const ALWAYS: &[&str] =
    &["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];

/// Starts one with its file in this folder.
pub(crate) fn start_alone(folder: &Path) -> Result<Alone> {
    let program = find("redis-server", "redis-server", &[])?;
    let mut processes = Processes::new(folder, "redis-alone-")?;
    let port = free_port()?;
    let mut command = Command::new(&program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(processes.folder.path());
    command.args(ALWAYS);
    processes.start("redis-alone", command)?;
    processes.wait("Redis serves", || ask(port, "PING\r\n"))?;
    Ok(Alone { _processes: processes, port, version: version(&program, "--version") })
}

/// A connection to a Redis whose answer to a SET says that it is in its file.
pub(crate) fn synced(port: u16) -> Result<Box<dyn Connection>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).context("connect to Redis")?;
    Ok(Box::new(Wire::new(stream, Resp { alone: true, ..Resp::default() })?))
}

/// Has a Redis rewrite its file, so that it stays small, and waits for it.
pub(crate) fn rewrite(port: u16) -> Result<()> {
    let begun = ask(port, "BGREWRITEAOF\r\n")?;
    ensure!(begun.starts_with('+'), "Redis answered {}", excerpt(begun.as_bytes()));
    let over = || {
        let said = ask(port, "INFO persistence\r\n").ok()?;
        let idle = ["aof_rewrite_in_progress:0\r", "aof_rewrite_scheduled:0\r"];
        idle.iter().all(|line| said.contains(line)).then_some(())
    };
    poll(super::START, super::LOOK, over).context("Redis still rewrites its file")
}

/// Bytes of a Redis's file.
pub(crate) fn file_size(port: u16) -> Result<u64> {
    let said = ask(port, "INFO persistence\r\n")?;
    let size = said.lines().find_map(|line| line.strip_prefix("aof_current_size:"));
    Ok(size.context("Redis has no file")?.trim().parse()?)
}

fn ask(port: u16, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(super::LOOK * 20))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = vec![0; 16 << 10];
    let count = stream.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
}

impl Peer for Redis {
    fn contestant(&self) -> Contestant {
        Contestant {
            name: "Redis".to_owned(),
            version: self.version.split(' ').take(3).collect::<Vec<_>>().join(" "),
            claim: format!("in the memory of the master and {REPLICAS} replicas"),
            configuration: format!(
                "{}; SET over {KEYS} keys, then WAIT {REPLICAS} 0 after each group of records that is sent together",
                OPTIONS.join(" ").replace("--save  ", "--save '' ")
            ),
        }
    }

    fn connection(&self) -> Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).context("connect to Redis")?;
        Ok(Box::new(Wire::new(stream, Resp::default())?))
    }
}

#[derive(Default)]
struct Resp {
    /// Without `WAIT`.
    alone: bool,
    key: u32,
    unsealed: usize,
    /// Records before each `WAIT` that is not answered.
    groups: VecDeque<usize>,
}

impl Protocol for Resp {
    fn encode(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        self.key = (self.key + 1) % KEYS;
        self.unsealed += 1;
        let head = format!("*3\r\n$3\r\nSET\r\n$8\r\n{:08}\r\n${}\r\n", self.key, payload.len());
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }

    fn seal(&mut self, out: &mut Vec<u8>) {
        if self.alone {
            return;
        }
        self.groups.push_back(std::mem::take(&mut self.unsealed));
        out.extend_from_slice(format!("*3\r\n$4\r\nWAIT\r\n$1\r\n{REPLICAS}\r\n$1\r\n0\r\n").as_bytes());
    }

    fn groups(&self) -> usize {
        self.groups.len()
    }

    fn decode(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
        let Some(size) = line(input) else { return Ok(None) };
        match &input[..size - 2] {
            b"+OK" => Ok(Some((size, usize::from(self.alone)))),
            b":2" => Ok(Some((size, self.groups.pop_front().context("more answers than requests")?))),
            other => bail!("Redis answered {}", excerpt(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alone_each_set_is_answered_by_itself() {
        let mut resp = Resp { alone: true, ..Resp::default() };
        let mut out = Vec::new();
        resp.encode(b"ab", &mut out);
        let length = out.len();
        resp.seal(&mut out);
        assert_eq!((out.len(), resp.groups()), (length, 0));
        assert_eq!(resp.decode(b"+OK\r\n+OK", &mut Vec::new()).unwrap(), Some((5, 1)));
        assert!(resp.decode(b"-MISCONF disk\r\n", &mut Vec::new()).is_err());
    }

    #[test]
    fn a_wait_answers_the_records_before_it() {
        let mut resp = Resp::default();
        let mut out = Vec::new();
        resp.encode(b"ab", &mut out);
        resp.encode(b"", &mut out);
        resp.seal(&mut out);
        let text = "*3\r\n$3\r\nSET\r\n$8\r\n00000001\r\n$2\r\nab\r\n*3\r\n$3\r\nSET\r\n$8\r\n00000002\r\n$0\r\n\r\n\
                    *3\r\n$4\r\nWAIT\r\n$1\r\n2\r\n$1\r\n0\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), text);
        assert_eq!(resp.decode(b"+OK\r\n+OK", &mut Vec::new()).unwrap(), Some((5, 0)));
        assert_eq!(resp.decode(b"+OK", &mut Vec::new()).unwrap(), None);
        assert_eq!(resp.decode(b":2\r\n", &mut Vec::new()).unwrap(), Some((4, 2)));
        assert!(resp.decode(b":1\r\n", &mut Vec::new()).is_err(), "one replica is not what was asked for");
    }
}
