//! The example app: its processes, each beside a sidecar of a group, and a client that speaks RESP.
//!
//! Used by `tests/kv.rs`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::group::Group;
use crate::http;
use crate::process::{free_port, kv_program};
use crate::view::PATIENCE;

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a connection may take to answer a command.
const ANSWER: Duration = Duration::from_secs(10);

/// One server of the app for each sidecar of a group.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    port: u16,
    probes: u16,
    socket: PathBuf,
    log: PathBuf,
    options: Vec<String>,
    child: Option<Child>,
}

impl Servers {
    /// Starts them all, with these options beside where to listen.
    pub fn start(group: &Group, options: &[&str]) -> Result<Servers> {
        let server = |index: usize| {
            Ok(Server {
                port: free_port()?,
                probes: free_port()?,
                socket: group.socket(index),
                log: group.folder().join(format!("kv{index}.log")),
                options: options.iter().map(|option| (*option).to_owned()).collect(),
                child: None,
            })
        };
        let mut servers = Servers { servers: (0..group.sidecars()).map(server).collect::<Result<_>>()? };
        (0..servers.servers.len()).try_for_each(|index| servers.start_one(index))?;
        Ok(servers)
    }

    /// Starts (or starts again) one.
    pub fn start_one(&mut self, index: usize) -> Result<()> {
        let Server { port, probes, socket, log, options, child } = &mut self.servers[index];
        let file = File::options().create(true).append(true).open(log).context("open a log")?;
        let mut command = Command::new(kv_program()?);
        command.arg("--listen").arg(format!("127.0.0.1:{port}")).arg("--socket").arg(socket);
        command.arg("--metrics-listen").arg(format!("127.0.0.1:{probes}")).args(&*options);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        *child = Some(command.spawn().context("start tailwind-kv")?);
        Ok(())
    }

    /// Kills one and waits until it is gone.
    pub fn kill(&mut self, index: usize) -> Result<()> {
        if let Some(mut child) = self.servers[index].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Asks one to end (SIGTERM) and waits; its exit code.
    pub fn terminate(&mut self, index: usize) -> Result<Option<i32>> {
        let mut child = self.servers[index].child.take().context("it runs")?;
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = child.try_wait()? {
                return Ok(status.code());
            }
            std::thread::sleep(LOOK);
        }
        child.kill()?;
        bail!("it does not end\n{}", self.logs())
    }

    /// A connection.
    pub fn connect(&self, index: usize) -> Result<Connection> {
        let port = self.servers[index].port;
        let stream = TcpStream::connect(("127.0.0.1", port)).with_context(|| format!("connect to kv{index}"))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        Ok(Connection { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Waits until one serves; a connection to it.
    pub fn wait_for_primary(&self, index: usize) -> Result<Connection> {
        self.wait("a server to serve", || {
            let mut connection = self.connect(index).ok()?;
            matches!(connection.ask(&["DBSIZE"]), Ok(Answer::Integer(_))).then_some(connection)
        })
    }

    /// Waits until there is something to find.
    pub fn wait<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(found) = find() {
                return Ok(found);
            }
            std::thread::sleep(LOOK);
        }
        bail!("waited {PATIENCE:?} for {what}\n{}", self.logs())
    }

    /// What a probe of one is answered with.
    pub fn probe(&self, index: usize, path: &str) -> Option<http::Reply> {
        http::get(self.servers[index].probes, path).ok()
    }

    /// A number among the metrics of one.
    pub fn metric(&self, index: usize, name: &str) -> Option<u64> {
        let text = String::from_utf8(self.probe(index, "/metrics")?.body).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("tailwind_kv_{name} ")))?;
        line.parse().ok()
    }

    /// What they have logged.
    pub fn logs(&self) -> String {
        let log = |server: &Server| std::fs::read_to_string(&server.log).unwrap_or_default();
        let all = self.servers.iter().enumerate();
        all.map(|(index, server)| format!("--- kv{index}\n{}", log(server))).collect()
    }
}

impl Drop for Servers {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        for index in 0..self.servers.len() {
            // Nobody to tell if it cannot be.
            let _ = self.kill(index);
        }
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`
    Nil,
    /// `*`
    Array(Vec<Answer>),
}

impl Answer {
    /// A text as bytes.
    pub fn text(text: &str) -> Answer {
        Answer::Bulk(text.as_bytes().to_vec())
    }

    /// True for an error that begins with this word.
    pub fn is_error(&self, word: &str) -> bool {
        matches!(self, Answer::Error(text) if text.split(' ').next() == Some(word))
    }
}

/// A client.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Sends a command without waiting for its reply.
    pub fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.send_bytes(bytes.as_bytes())
    }

    /// Sends any bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// The next reply.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the connection has ended")?;
        let (kind, rest) = line.split_at_checked(1).context("an empty line")?;
        Ok(match kind {
            "+" => Answer::Simple(rest.to_owned()),
            "-" => Answer::Error(rest.to_owned()),
            ":" => Answer::Integer(rest.parse()?),
            "$" if rest == "-1" => Answer::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.reader.read_exact(&mut bytes)?;
                ensure!(bytes.ends_with(b"\r\n"), "a bulk that does not end where it should");
                bytes.truncate(bytes.len() - 2);
                Answer::Bulk(bytes)
            }
            "*" => Answer::Array((0..rest.parse::<usize>()?).map(|_| self.answer()).collect::<Result<_>>()?),
            other => bail!("a reply of kind {other:?}"),
        })
    }

    /// Sends a command and waits for its reply.
    pub fn ask(&mut self, words: &[&str]) -> Result<Answer> {
        self.send(words)?;
        self.answer()
    }

    /// True once the server has closed the connection.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.reader.fill_buf(), Ok([]))
    }
}
