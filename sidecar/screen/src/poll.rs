//! Asks sidecars for their reports through their append sockets, over connections that are kept.
//!
//! [`watch`] runs on a thread of its own for [`show`](crate::show): a sidecar that hangs holds up the next round, not the screen.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use tailwind_client::Options;
use tailwind_client::blocking::Client;
use tailwind_report::report::parse;

use crate::model::{Answer, Round};
use crate::show::Input;

/// Sidecars by their sockets.
pub struct Sidecars {
    clients: Vec<(PathBuf, Option<Client>)>,
    timeout: Duration,
}

impl Sidecars {
    /// Nobody is asked yet. A sidecar that takes longer to answer than `timeout` is shown as one that does not.
    pub fn new(sockets: Vec<PathBuf>, timeout: Duration) -> Sidecars {
        Sidecars { clients: sockets.into_iter().map(|socket| (socket, None)).collect(), timeout }
    }

    /// Asks each once.
    pub fn ask(&mut self) -> Round {
        let timeout = self.timeout;
        let ask = |(socket, client): &mut (PathBuf, _)| (socket.display().to_string(), ask(socket, client, timeout));
        Round { answers: self.clients.iter_mut().map(ask).collect() }
    }
}

fn ask(socket: &Path, kept: &mut Option<Client>, timeout: Duration) -> Answer {
    // A ring would be counted, and appends have the use of it.
    let options = Options { timeout: Some(timeout), socket_only: true, ..Options::default() };
    let mut client = match kept.take() {
        Some(client) => client,
        None => Client::connect_with(socket, &options).map_err(|error| why(&error))?,
    };
    let json = client.status().map_err(|error| why(&error))?;
    *kept = Some(client);
    parse(json.as_bytes())
}

/// Without the socket's path, which stands beside it.
fn why(error: &tailwind_client::Error) -> String {
    match error {
        tailwind_client::Error::Connect { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound => "its socket is not there".to_owned(),
            std::io::ErrorKind::ConnectionRefused => "it has ended".to_owned(),
            _ => source.to_string(),
        },
        tailwind_client::Error::Disconnected { .. } => "it has closed the connection".to_owned(),
        other => other.to_string(),
    }
}

/// Asks again after each interval, until nobody takes the answers or `end` is dropped.
pub fn watch(mut sidecars: Sidecars, interval: Duration, to: &Sender<Input>, end: &Receiver<()>) {
    while to.send(Input::Round(sidecars.ask())).is_ok() {
        if end.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
