//! What can be seen of a group without owning its processes: its append sockets and its logs.
//!
//! Cheap to clone, so that an app can run in a thread of its own while [`Group`](super::group::Group) kills and restarts.

use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use tailwind_client::Options;
use tailwind_client::blocking::Client;

use crate::logs::Logs;

/// How long a condition may take to come true on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a sidecar may take to answer before it counts as hanging; it is asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// A group from outside. It has the processes' [`Logs`].
#[derive(Clone, Debug)]
pub struct Observer {
    sockets: Vec<PathBuf>,
    logs: Logs,
}

impl Deref for Observer {
    type Target = Logs;

    fn deref(&self) -> &Logs {
        &self.logs
    }
}

impl Observer {
    /// With the sidecars' append sockets.
    pub fn new(sockets: Vec<PathBuf>, logs: Logs) -> Observer {
        Observer { sockets, logs }
    }

    /// The append socket of a sidecar.
    pub fn socket(&self, index: usize) -> PathBuf {
        self.sockets[index].clone()
    }

    /// A client of a sidecar; with `hold` it waits until that one is primary.
    pub fn client(&self, index: usize, hold: bool) -> Result<Client> {
        self.client_with(index, hold, TIMEOUT)
    }

    /// A client that waits no longer than `timeout` for any answer.
    pub(crate) fn client_with(&self, index: usize, hold: bool, timeout: Duration) -> Result<Client> {
        let options = Options { hold, timeout: Some(timeout), ..Options::default() };
        Ok(Client::connect_with(self.socket(index), &options)?)
    }

    /// A sidecar's status; `Null` if it does not answer.
    pub fn status(&self, index: usize) -> Value {
        // A ring of its own would count among those that the status tells of.
        let options = Options { timeout: Some(ANSWER_TIMEOUT), socket_only: true, ..Options::default() };
        let client = Client::connect_with(self.socket(index), &options);
        let status = client.and_then(|mut client| client.status());
        status.ok().and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
    }

    /// A sidecar's role; empty if it does not answer.
    pub fn role(&self, index: usize) -> String {
        self.status(index)["role"].as_str().unwrap_or_default().to_owned()
    }

    /// The sidecar that is primary and answers. Of two that say so the one with the newer epoch is right.
    pub fn primary(&self) -> Option<usize> {
        let epoch = |index: usize| {
            let status = self.status(index);
            (status["role"] == "primary").then(|| status["epoch"].as_u64().unwrap_or_default())
        };
        let primaries = (0..self.sockets.len()).filter_map(|index| Some((epoch(index)?, index)));
        primaries.max().map(|(_, index)| index)
    }

    /// Names of the members that acks need, as the primary sees them.
    pub fn members(&self) -> Vec<String> {
        let Some(primary) = self.primary() else { return Vec::new() };
        let status = self.status(primary);
        let members = status["members"].as_array().cloned().unwrap_or_default();
        // Builds from before the report say it in two words, and the benchmark compares with one of them.
        let in_set = members.iter().filter(|member| member["state"] == "in-set" || member["state"] == "in set");
        in_set.filter_map(|member| Some(member["name"].as_str()?.to_owned())).collect()
    }
}
