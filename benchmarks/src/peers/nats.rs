//! NATS JetStream: a stream of three replicas in memory, on three servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tailwind_e2e::processes::process::free_port;

use super::wire::{Protocol, Wire, excerpt, line};
use super::{Peer, Processes, find, version};
use crate::load::Connection;
use crate::results::Contestant;

const SERVERS: usize = 3;
/// Older messages go, so that memory is bounded.
const BYTES_MAX: u64 = 256 << 20;
const HELLO: &str =
    "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"bench\",\"version\":\"0\"}\r\nSUB _INBOX.bench.%d 1\r\n";

struct Nats {
    _processes: Processes,
    /// The port of the stream's leader.
    port: u16,
    version: String,
}

pub(crate) fn start(memory: &Path) -> Result<Box<dyn Peer>> {
    let program = find("nats-server", "nats-server", &["/usr/sbin".into()])?;
    let mut processes = Processes::new(memory, "nats-")?;
    let ports: Vec<(u16, u16)> = (0..SERVERS).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<_>>()?;
    let routes: Vec<String> = ports.iter().map(|(_, route)| format!("nats-route://127.0.0.1:{route}")).collect();
    for (number, (port, route)) in ports.iter().enumerate() {
        let config = processes.path(format!("{number}.conf"));
        let store = processes.path(format!("{number}"));
        let text = format!(
            "server_name: n{number}\nlisten: 127.0.0.1:{port}\n\
             jetstream {{ store_dir: \"{}\", max_mem: 1G, max_file: 1G }}\n\
             cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
            store.display(),
            routes.join(", ")
        );
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new(&program);
        command.arg("-c").arg(config);
        processes.start(&format!("nats{number}"), command)?;
    }
    let leader = processes.wait("NATS makes a stream of three replicas", || make_stream(ports[0].0))?;
    let number: usize = leader.trim_start_matches('n').parse().context("understand the leader's name")?;
    let port = ports.get(number).context("find the leader")?.0;
    Ok(Box::new(Nats { _processes: processes, port, version: version(&program, "--version") }))
}

/// The name of the stream's leader.
fn make_stream(port: u16) -> Result<String> {
    let config = json!({
        "name": "LOG", "subjects": ["log"], "storage": "memory", "num_replicas": SERVERS, "retention": "limits",
        "max_consumers": -1, "max_msgs": -1, "max_bytes": BYTES_MAX, "max_age": 0, "discard": "old",
    });
    let mut made = request(port, "$JS.API.STREAM.CREATE.LOG", &config.to_string())?;
    if made["error"].is_object() {
        // Made by an earlier attempt, or not possible yet.
        made = request(port, "$JS.API.STREAM.INFO.LOG", "")?;
    }
    let cluster = &made["cluster"];
    let current = cluster["replicas"].as_array().map_or(0, |all| all.iter().filter(|r| r["current"] == true).count());
    ensure!(current == SERVERS - 1, "{current} replicas are current: {made}");
    Ok(cluster["leader"].as_str().context("the stream has no leader")?.to_owned())
}

fn hello(number: usize) -> String {
    HELLO.replace("%d", &number.to_string())
}

fn request(port: u16, subject: &str, body: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "{}PUB {subject} _INBOX.bench.0 {}\r\n{body}\r\n", hello(0), body.len())?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        ensure!(reader.read_line(&mut head)? > 0, "NATS closed the connection");
        ensure!(!head.starts_with("-ERR"), "NATS answered {head}");
        let Some(size) = head.strip_prefix("MSG ").and_then(|rest| rest.trim().rsplit(' ').next()) else { continue };
        let mut answer = vec![0; size.parse()?];
        reader.read_exact(&mut answer)?;
        return Ok(serde_json::from_slice(&answer)?);
    }
}

impl Peer for Nats {
    fn contestant(&self) -> Contestant {
        Contestant {
            name: "NATS JetStream".to_owned(),
            version: self.version.clone(),
            claim: format!("in the memory of a majority of {SERVERS} servers"),
            configuration: format!(
                "a stream with storage memory, num_replicas {SERVERS}, max_bytes {} MiB; Raft's own log in tmpfs; clients \
                 connect to the stream's leader",
                BYTES_MAX >> 20
            ),
        }
    }

    fn connection(&self) -> Result<Box<dyn Connection>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).context("connect to NATS")?;
        // Inboxes of one server must differ, or all connections hear all acks.
        let number = usize::from(stream.local_addr()?.port());
        stream.write_all(hello(number).as_bytes()).context("greet NATS")?;
        Ok(Box::new(Wire::new(stream, Publisher { inbox: format!("_INBOX.bench.{number}") })?))
    }
}

struct Publisher {
    inbox: String,
}

impl Protocol for Publisher {
    fn encode(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("PUB log {} {}\r\n", self.inbox, payload.len()).as_bytes());
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }

    fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
        let Some(head) = line(input) else { return Ok(None) };
        let text = std::str::from_utf8(&input[..head - 2]).context("understand NATS")?;
        match text.split(' ').next() {
            Some("PING") => out.extend_from_slice(b"PONG\r\n"),
            Some("MSG") => {
                let size: usize = text.rsplit(' ').next().unwrap_or_default().parse().context("understand MSG")?;
                let Some(body) = input.get(head..head + size + 2) else { return Ok(None) };
                ensure!(body.windows(5).any(|w| w == b"\"seq\""), "NATS answered {}", excerpt(body));
                return Ok(Some((head + size + 2, 1)));
            }
            Some("INFO" | "PONG" | "+OK") => {}
            _ => bail!("NATS answered {}", excerpt(text.as_bytes())),
        }
        Ok(Some((head, 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_are_counted_and_pings_answered() {
        let mut publisher = Publisher { inbox: "i".to_owned() };
        let mut out = Vec::new();
        publisher.encode(b"ab", &mut out);
        assert_eq!(out, b"PUB log i 2\r\nab\r\n");
        out.clear();
        assert_eq!(publisher.decode(b"PING\r\nMSG", &mut out).unwrap(), Some((6, 0)));
        assert_eq!(out, b"PONG\r\n");
        let ack = b"MSG i 1 9\r\n{\"seq\":7}\r\n";
        assert_eq!(publisher.decode(ack, &mut out).unwrap(), Some((ack.len(), 1)));
        assert_eq!(publisher.decode(&ack[..ack.len() - 1], &mut out).unwrap(), None);
        assert!(publisher.decode(b"MSG i 1 12\r\n{\"error\":{ }}\r\n", &mut out).is_err());
        assert!(publisher.decode(b"-ERR 'no'\r\n", &mut out).is_err());
    }
}
