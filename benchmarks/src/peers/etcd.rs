//! etcd with three members, through the HTTP gateway that it has beside gRPC.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value;
use tailwind_e2e::processes::process::free_port;

use super::wire::{Protocol, Wire, excerpt, line};
use super::{Peer, Processes, find, version};
use crate::load::Connection;
use crate::results::Contestant;

const MEMBERS: usize = 3;
/// Keys are used again and again; more than are in flight at once, since a transaction may name a key once only.
const KEYS: u32 = 10_000;
const OPTIONS: &[&str] = &[
    "--max-txn-ops",
    "4096",
    "--snapshot-count",
    "1000000",
    "--auto-compaction-retention",
    "1m",
    "--auto-compaction-mode",
    "periodic",
    "--quota-backend-bytes",
    "8000000000",
    "--logger",
    "zap",
    "--log-level",
    "error",
];

struct Etcd {
    _processes: Processes,
    /// The leader's.
    port: u16,
    version: String,
}

pub(crate) fn start(memory: &Path) -> Result<Box<dyn Peer>> {
    let program = find("etcd", "etcd-server", &[])?;
    let mut processes = Processes::new(memory, "etcd-")?;
    let ports: Vec<(u16, u16)> = (0..MEMBERS).map(|_| Ok((free_port()?, free_port()?))).collect::<Result<_>>()?;
    let cluster: Vec<String> =
        ports.iter().enumerate().map(|(number, (_, peer))| format!("m{number}=http://127.0.0.1:{peer}")).collect();
    for (number, (client, peer)) in ports.iter().enumerate() {
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut command = Command::new(&program);
        command.args(["--name", &format!("m{number}"), "--data-dir"]).arg(processes.path(format!("data{number}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]).args(OPTIONS);
        processes.start(&format!("etcd{number}"), command)?;
    }
    let port = processes.wait("etcd has a leader", || {
        let leads = |port: &u16| {
            let status = post(*port, "/v3/maintenance/status", "{}").ok()?;
            let leader = status["leader"].as_str()?;
            (leader != "0" && status["header"]["member_id"] == leader).then_some(*port)
        };
        ports.iter().map(|(client, _)| client).find_map(leads).context("no leader yet")
    })?;
    Ok(Box::new(Etcd { _processes: processes, port, version: version(&program, "--version") }))
}

fn post(port: u16, path: &str, body: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = Vec::new();
    write_post(&mut request, path, body.as_bytes());
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let count = stream.read(&mut chunk)?;
        ensure!(count > 0, "etcd closed the connection");
        answer.extend_from_slice(&chunk[..count]);
        if let Some((head, body)) = response(&answer)? {
            return Ok(serde_json::from_slice(&answer[head..head + body])?);
        }
    }
}

fn write_post(out: &mut Vec<u8>, path: &str, body: &[u8]) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n", body.len());
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
}

/// Sizes of head and body of a response, once it is complete.
fn response(input: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(head) = input.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4) else { return Ok(None) };
    let text = std::str::from_utf8(&input[..head]).context("understand etcd")?;
    ensure!(text.starts_with("HTTP/1.1 200 "), "etcd answered {}", excerpt(input));
    let header = |wanted: &str| {
        let headers = text.lines().filter_map(|line| line.split_once(':'));
        headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    let body = match header("content-length") {
        Some(length) => Some(length.parse().context("understand etcd's length")?),
        None if header("transfer-encoding") == Some("chunked") => chunks(&input[head..])?,
        None => bail!("etcd answered without a length: {}", excerpt(input)),
    };
    Ok(body.filter(|body| input.len() >= head + body).map(|body| (head, body)))
}

/// Size of a chunked body, sizes of chunks included, once its last chunk has come.
fn chunks(input: &[u8]) -> Result<Option<usize>> {
    let mut at = 0;
    loop {
        let Some(head) = line(&input[at..]) else { return Ok(None) };
        let size =
            std::str::from_utf8(&input[at..at + head - 2]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let size = size.with_context(|| format!("etcd answered with a bad chunk: {}", excerpt(&input[at..])))?;
        at += head + size + 2;
        if size == 0 || at > input.len() {
            return Ok(Some(at));
        }
    }
}

impl Peer for Etcd {
    fn contestant(&self) -> Contestant {
        Contestant {
            name: "etcd".to_owned(),
            version: self.version.clone(),
            claim: format!("in the log of a majority of {MEMBERS} members, in tmpfs"),
            configuration: format!(
                "{}; Put over {KEYS} keys, several records sent together as one Txn; through the HTTP gateway of the leader, \
                 which forwards to gRPC within the process",
                OPTIONS.join(" ")
            ),
        }
    }

    fn connection(&self) -> Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).context("connect to etcd")?;
        Ok(Box::new(Wire::new(stream, Puts::default())?))
    }
}

#[derive(Default)]
struct Puts {
    key: u32,
    /// `{"key": …, "value": …}` of each record that is not sealed.
    unsealed: Vec<String>,
    groups: VecDeque<usize>,
}

impl Protocol for Puts {
    fn encode(&mut self, payload: &[u8], _out: &mut Vec<u8>) {
        self.key = (self.key + 1) % KEYS;
        let key = BASE64_STANDARD.encode(format!("{:08}", self.key));
        self.unsealed.push(format!("{{\"key\":\"{key}\",\"value\":\"{}\"}}", BASE64_STANDARD.encode(payload)));
    }

    fn seal(&mut self, out: &mut Vec<u8>) {
        let puts = std::mem::take(&mut self.unsealed);
        self.groups.push_back(puts.len());
        match &puts[..] {
            [put] => write_post(out, "/v3/kv/put", put.as_bytes()),
            puts => {
                let all: Vec<String> = puts.iter().map(|put| format!("{{\"requestPut\":{put}}}")).collect();
                write_post(out, "/v3/kv/txn", format!("{{\"success\":[{}]}}", all.join(",")).as_bytes());
            }
        }
    }

    fn groups(&self) -> usize {
        self.groups.len()
    }

    fn decode(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
        let Some((head, body)) = response(input)? else { return Ok(None) };
        Ok(Some((head + body, self.groups.pop_front().context("more answers than requests")?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_response_ends_with_its_last_chunk() {
        let answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n1\r\n{\r\n0\r\n\r\n";
        let head = answer.len() - 26;
        assert_eq!(response(answer).unwrap(), Some((head, 26)));
        for cut in head..answer.len() {
            assert_eq!(response(&answer[..cut]).unwrap(), None, "{cut}");
        }
        assert!(response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n").is_err());
    }

    #[test]
    fn several_records_are_one_transaction() {
        let mut puts = Puts::default();
        let mut out = Vec::new();
        puts.encode(b"foo", &mut out);
        puts.encode(b"f", &mut out);
        puts.seal(&mut out);
        puts.encode(b"f", &mut out);
        puts.seal(&mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("POST /v3/kv/txn HTTP/1.1\r\n") && text.contains("\"value\":\"Zm9v\""), "{text}");
        assert!(text.contains("POST /v3/kv/put HTTP/1.1\r\n"), "{text}");
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(puts.decode(&answer[..answer.len() - 1], &mut Vec::new()).unwrap(), None);
        assert_eq!(puts.decode(answer, &mut Vec::new()).unwrap(), Some((answer.len(), 2)));
        assert!(puts.decode(b"HTTP/1.1 503 Busy\r\n\r\n", &mut Vec::new()).is_err());
    }
}
