//! The example app: its processes, each beside a sidecar of a group that keeps a table.
//!
//! Used by `tests/processes/kv.rs`, and by benchmarks.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::group::Group;
use super::http::{self, HttpResponse};
use super::observer::TIMEOUT;
use super::process::{Daemon, POLL_INTERVAL, free_port, kv_program};
use super::resp::{RespClient, RespValue};
use crate::logs::last_lines;
use crate::wait::poll;

/// How long a connection may take to answer a command.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// One server of the app for each sidecar of a group.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    daemon: Daemon,
    port: u16,
    probes: u16,
    socket: PathBuf,
}

impl Servers {
    /// Starts them all.
    pub fn start(group: &Group) -> Result<Servers> {
        let server = |index: usize| {
            Ok(Server {
                daemon: Daemon::new(&format!("kv{index}"), group.folder().join(format!("kv{index}.log"))),
                port: free_port()?,
                probes: free_port()?,
                socket: group.socket(index),
            })
        };
        let mut servers = Servers { servers: (0..group.sidecars()).map(server).collect::<Result<_>>()? };
        (0..servers.servers.len()).try_for_each(|index| servers.start_one(index))?;
        Ok(servers)
    }

    /// Starts (or starts again) one.
    pub fn start_one(&mut self, index: usize) -> Result<()> {
        let Server { daemon, port, probes, socket } = &mut self.servers[index];
        let mut command = Command::new(kv_program()?);
        command.arg("--listen").arg(format!("127.0.0.1:{port}")).arg("--socket").arg(socket);
        command.arg("--probes-listen").arg(format!("127.0.0.1:{probes}"));
        daemon.start(command)
    }

    /// Kills one and waits until it is gone.
    pub fn kill(&mut self, index: usize) -> Result<()> {
        self.servers[index].daemon.kill()
    }

    /// Kills one, and does not wait until its memory has been freed.
    pub fn kill_at_once(&mut self, index: usize) -> Result<()> {
        self.servers[index].daemon.signal(Signal::KILL)
    }

    /// Asks one to end (SIGTERM) and waits; its exit code.
    pub fn terminate(&mut self, index: usize) -> Result<Option<i32>> {
        self.servers[index].daemon.signal(Signal::TERM)?;
        let ended = self.servers[index].daemon.wait_for_end();
        ended.with_context(|| self.logs())
    }

    /// Waits until one has ended by itself; its exit code, and its log.
    pub fn wait_for_end(&mut self, index: usize) -> Result<(Option<i32>, String)> {
        let ended = self.servers[index].daemon.wait_for_end();
        Ok((ended.with_context(|| self.logs())?, self.servers[index].daemon.log()))
    }

    /// Where one listens, on loopback.
    pub fn port(&self, index: usize) -> u16 {
        self.servers[index].port
    }

    /// A connection to one.
    pub fn connect(&self, index: usize) -> Result<RespClient> {
        RespClient::connect(self.servers[index].port, ANSWER_TIMEOUT).with_context(|| format!("connect to kv{index}"))
    }

    /// Waits until one serves as primary; a connection to it.
    pub fn wait_for_primary(&self, index: usize) -> Result<RespClient> {
        self.wait_for_role(index, "primary")
    }

    /// Waits until one has this role; a connection to it.
    pub fn wait_for_role(&self, index: usize, role: &str) -> Result<RespClient> {
        let line = format!("role:{role}\r\n");
        self.wait(&format!("kv{index} to be {role}"), || {
            let mut client = self.connect(index).ok()?;
            let RespValue::Bulk(info) = client.ask(&["INFO"]).ok()? else { return None };
            String::from_utf8(info).ok()?.contains(&line).then_some(client)
        })
    }

    /// Waits until there is something to find.
    pub fn wait<T>(&self, what: &str, find: impl Fn() -> Option<T>) -> Result<T> {
        let found = poll(TIMEOUT, POLL_INTERVAL, find);
        found.with_context(|| format!("waited {TIMEOUT:?} for {what}\n{}", self.logs()))
    }

    /// What a probe of one is answered with.
    pub fn probe(&self, index: usize, path: &str) -> Option<HttpResponse> {
        http::get(self.servers[index].probes, path).ok()
    }

    fn logs(&self) -> String {
        let logs =
            self.servers.iter().map(|Server { daemon, .. }| last_lines(&daemon.name, daemon.log().lines(), usize::MAX));
        logs.collect()
    }
}

impl Drop for Servers {
    #[allow(clippy::print_stderr, reason = "a failing test reports to people")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}
