//! What can be seen of a group without owning its processes: its append sockets and its logs.
//!
//! Cheap to clone, so that an app can run in a thread of its own while [`Group`](crate::group::Group) kills and restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tailwind_client::Options;
use tailwind_client::blocking::Client;

/// How long a condition may take to come true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a sidecar may take to answer before it counts as hanging; it is asked again.
const ANSWER: Duration = Duration::from_millis(500);

/// A group from outside.
#[derive(Clone, Debug)]
pub struct View {
    sockets: Vec<PathBuf>,
    logs: Vec<(String, PathBuf)>,
}

impl View {
    /// The sidecars' append sockets; each process's name and log.
    pub fn new(sockets: Vec<PathBuf>, logs: Vec<(String, PathBuf)>) -> View {
        View { sockets, logs }
    }

    /// The append socket of a sidecar.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.sockets[index].clone()
    }

    /// A client of a sidecar; with `hold` it waits until that one is primary.
    pub fn client(&self, index: usize, hold: bool) -> Result<Client> {
        self.client_with(index, hold, PATIENCE)
    }

    /// A client that waits no longer than `timeout` for any answer.
    pub fn client_with(&self, index: usize, hold: bool, timeout: Duration) -> Result<Client> {
        let options = Options { hold, timeout: Some(timeout), ..Options::default() };
        Ok(Client::connect_with(self.socket(index), &options)?)
    }

    /// A sidecar's status; `Null` if it does not answer.
    pub fn status(&self, index: usize) -> Value {
        let status = self.client_with(index, false, ANSWER).and_then(|mut client| Ok(client.status()?));
        status.ok().and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }

    /// A sidecar's role; empty if it does not answer.
    pub fn role(&self, index: usize) -> String {
        self.status(index)["role"].as_str().unwrap_or_default().to_owned()
    }

    /// The sidecar that is primary and answers. Of two that say so the one with the newer epoch is right.
    pub fn primary(&self) -> Option<usize> {
        let standing = |index: usize| {
            let status = self.status(index);
            (status["role"] == "primary").then(|| status["epoch"].as_u64().unwrap_or_default())
        };
        let primaries = (0..self.sockets.len()).filter_map(|index| Some((standing(index)?, index)));
        primaries.max().map(|(_, index)| index)
    }

    /// Names of the members that acks need, as the primary sees them.
    pub fn members(&self) -> Vec<String> {
        let Some(primary) = self.primary() else { return Vec::new() };
        let status = self.status(primary);
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let in_set = members.iter().filter(|member| member["standing"] == "in set");
        in_set.filter_map(|member| Some(member["name"].as_str()?.to_owned())).collect()
    }

    /// A process's log file.
    pub fn log_file(&self, name: &str) -> PathBuf {
        let known = self.logs.iter().find(|(known, _)| known == name);
        known.map(|(_, path)| path.clone()).unwrap_or_default()
    }

    /// A process's log.
    pub fn log(&self, name: &str) -> String {
        read(&self.log_file(name))
    }

    /// The last lines of every log.
    pub fn logs(&self, lines: usize) -> String {
        let mut text = String::new();
        for (name, path) in &self.logs {
            let log = read(path);
            let all: Vec<&str> = log.lines().collect();
            let tail = &all[all.len().saturating_sub(lines)..];
            text.push_str(&format!("--- {name} ({} lines)\n{}\n", all.len(), tail.join("\n")));
        }
        text
    }

    /// Lines that a healthy group does not write: errors, panics and whatever is not a log line; and warnings, unless
    /// they contain one of `expected`.
    pub fn unexpected(&self, expected: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        for (name, path) in &self.logs {
            for line in read(path).lines() {
                let level = line.split_whitespace().nth(1).unwrap_or_default();
                let fine = match level {
                    "INFO" | "DEBUG" => true,
                    "WARN" => expected.iter().any(|words| line.contains(words)),
                    _ => line.is_empty(),
                };
                if !fine {
                    found.push(format!("{name}: {line}"));
                }
            }
        }
        found
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
