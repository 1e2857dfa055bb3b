//! Tells what a command waits for, once it has waited for a second, and again when that changes.
//!
//! Used by [`target`](super::target), which waits for a sidecar, and by [`append`](super::append) and [`ask`](super::ask), which
//! wait for answers. It asks on a thread and a connection of its own, so that it never holds up what is waited for.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Options, Role};

use super::tell;

/// A shorter wait is nothing to speak of.
const FIRST_AFTER: Duration = Duration::from_secs(1);
/// Then it is looked again so often.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long a sidecar may take to tell.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A wait, from the moment at which it begins. Dropped when it is over.
pub(super) struct Notice {
    /// Its end is the thread's.
    _wait: mpsc::Sender<()>,
    told: Arc<Mutex<String>>,
}

impl Notice {
    /// Begins to wait. `look` says what for, if there is anything to say; lines go to `say`.
    pub(super) fn begin(
        mut look: impl FnMut() -> Option<String> + Send + 'static,
        say: impl Fn(&str) + Send + 'static,
    ) -> Notice {
        let (wait, waits) = mpsc::channel();
        let told = Arc::new(Mutex::new(String::new()));
        let shared = Arc::clone(&told);
        thread::spawn(move || {
            let mut pause = FIRST_AFTER;
            while waits.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                pause = AGAIN_AFTER;
                let Some(found) = look() else { continue };
                let mut told = shared.lock().unwrap_or_else(PoisonError::into_inner);
                // The wait may have ended in the meantime.
                if *told != found && waits.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    say(&found);
                    *told = found;
                }
            }
        });
        Notice { _wait: wait, told }
    }

    /// Waits for a sidecar behind one of these sockets to be `what`.
    pub(super) fn of_sockets(what: &'static str, sockets: Vec<PathBuf>) -> Notice {
        let look = move || {
            let found: Vec<String> = sockets.iter().map(|socket| who_is_there(socket)).collect();
            Some(format!("waiting for {what}: {}", found.join("; ")))
        };
        Notice::begin(look, |line| tell(line))
    }

    /// Waits for an answer of the primary behind this socket.
    pub(super) fn of_answer(command: &'static str, socket: PathBuf) -> Notice {
        let look = move || Some(format!("{command}: the primary waits: {}", why_appends_wait(&socket)?));
        Notice::begin(look, |line| tell(line))
    }

    /// What was told last; empty if nothing was.
    pub(super) fn told(&self) -> String {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a sidecar says that appends wait for, if they have waited for a while.
pub(super) fn why_appends_wait(socket: &Path) -> Option<String> {
    why(&status(&mut connect(socket).ok()?)?, "appends_wait")
}

fn connect(socket: &Path) -> Result<Client, Error> {
    // A ring of its own would be for nothing.
    let options = Options { timeout: Some(ANSWER_TIMEOUT), socket_only: true, ..Options::default() };
    Client::connect_with(socket, &options)
}

fn status(client: &mut Client) -> Option<Value> {
    serde_json::from_str(&client.status().ok()?).ok()
}

fn why(status: &Value, what: &str) -> Option<String> {
    status[what]["why"].as_str().map(str::to_owned)
}

/// Which sidecar listens on a socket, and why it is not primary.
fn who_is_there(socket: &Path) -> String {
    let shown = socket.display();
    match connect(socket) {
        Err(Error::Connect { source, .. }) => match source.kind() {
            std::io::ErrorKind::NotFound => format!("{shown} is not there: no sidecar has been started with it"),
            std::io::ErrorKind::ConnectionRefused => format!("{shown}: its sidecar has ended"),
            _ => format!("{shown}: {source}"),
        },
        Err(error) => format!("{shown}: {error}"),
        Ok(mut client) => {
            let (role, primary) = (client.role_info().role, client.role_info().primary.clone());
            let status = status(&mut client).unwrap_or_default();
            describe(&shown.to_string(), role, primary.as_deref().filter(|name| !name.is_empty()), &status)
        }
    }
}

fn describe(socket: &str, role: Role, primary: Option<&str>, status: &Value) -> String {
    let name = status["name"].as_str().unwrap_or("the sidecar");
    let role = match role {
        Role::Standby => "a standby",
        Role::Reader => "a reader",
        Role::Recovering => "recovering",
        Role::Primary => "primary",
    };
    match (primary, why(status, "waiting")) {
        (_, Some(why)) => format!("{socket}: {name} is {role}: {why}"),
        (Some(primary), None) => {
            format!("{socket}: {name} is {role}; the primary is {primary}: give its --socket if it is on this host")
        }
        (None, None) => format!("{socket}: {name} is {role}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_is_told_once_for_each_reason() {
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let (lines, heard) = mpsc::channel();
        let look = move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => None,
            1 | 2 => Some("b1 is lost".to_owned()),
            _ => Some("its disk is full".to_owned()),
        };
        let notice = Notice::begin(look, move |line| drop(lines.send(line.to_owned())));
        let patience = Duration::from_secs(20);
        assert_eq!(heard.recv_timeout(patience).unwrap(), "b1 is lost");
        assert_eq!(heard.recv_timeout(patience).unwrap(), "its disk is full");
        assert!(looks.load(Ordering::Relaxed) > 3);
        drop(notice);
        // The thread ends, and with it the sender.
        assert_eq!(heard.recv_timeout(patience), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_sidecar_is_described_by_what_keeps_it_from_leading() {
        let status = json!({"name": "s1", "waiting": {"for": "members", "why": "b1 is missing"}});
        assert_eq!(describe("/s", Role::Recovering, None, &status), "/s: s1 is recovering: b1 is missing");
        let status = json!({"name": "s1"});
        assert_eq!(
            describe("/s", Role::Standby, Some("s0"), &status),
            "/s: s1 is a standby; the primary is s0: give its --socket if it is on this host"
        );
        assert_eq!(describe("/s", Role::Recovering, None, &Value::Null), "/s: the sidecar is recovering");
    }

    #[test]
    fn an_absent_socket_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("none.sock");
        let shown = socket.display();
        assert_eq!(who_is_there(&socket), format!("{shown} is not there: no sidecar has been started with it"));
        assert_eq!(why_appends_wait(&socket), None);
    }
}
