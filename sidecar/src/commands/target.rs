//! Which sidecar a command talks to: the options that all of them share, and connecting.
//!
//! Called by every command but `scan`.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::FalseyValueParser;
use tailwind_client::blocking::Client;
use tailwind_client::{Error, Options, Role, Welcome};
use tailwind_protocol::ids::GroupName;

use super::notice::Notice;
use crate::options::number;

/// How long one socket among several is held before the next one is looked at.
const HOLD_EACH: Duration = Duration::from_millis(100);
/// Where the options stand in the help.
const HEADING: &str = "Sidecar";
/// What a command can do instead of giving up.
const ADVICE: &str = "; --wait waits for it";
/// Pause between attempts while no sidecar listens.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The sidecars to talk to.
#[derive(Args, Clone, Debug)]
pub struct Sockets {
    /// The sidecar's socket. If several sidecars of the group are on this host, give all their sockets
    /// [default: /run/tailwind/GROUP.sock]
    #[arg(long, env = "TAILWIND_SOCKET", value_name = "PATH", value_delimiter = ',', help_heading = HEADING)]
    socket: Vec<PathBuf>,
    /// The group of the log; gives the socket's default path
    #[arg(long, env = "TAILWIND_GROUP", default_value = "default", value_name = "NAME", help_heading = HEADING)]
    group: GroupName,
    /// Timeout for a reply; must exceed a failover of the group
    #[arg(long, env = "TAILWIND_TIMEOUT_MS", default_value_t = 10_000, value_name = "MS", help_heading = HEADING)]
    #[arg(value_parser = number::<u64>(1, u64::MAX))]
    timeout_ms: u64,
}

/// The sidecar to talk to, which may have to be waited for.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("socket", |socket| socket.help(PRIMARY_OF_SOCKETS)))]
pub struct Target {
    /// Where it is.
    #[command(flatten)]
    sockets: Sockets,
    /// Wait until the sidecar runs and is primary, without a time limit: for scripts that may start first
    #[arg(long, env = "TAILWIND_WAIT", value_parser = FalseyValueParser::new(), help_heading = HEADING)]
    wait: bool,
}

/// What `--socket` says for commands that the primary answers.
const PRIMARY_OF_SOCKETS: &str = "The sidecar's socket. If several sidecars of the group are on this host, give all their \
                                  sockets: the primary's is used [default: /run/tailwind/GROUP.sock]";
/// And for commands that any sidecar answers.
pub(super) const FIRST_OF_SOCKETS: &str = "The sidecar's socket. If several sidecars of the group are on this host, their sockets \
                                           may all be given: the first that answers is used [default: /run/tailwind/GROUP.sock]";
/// What `--wait` says for commands that any sidecar answers.
pub(super) const WAIT_FOR_ANY: &str =
    "Wait until the sidecar runs, in any role, without a time limit: for scripts that may start first";
/// And where an option decides.
pub(super) const WAIT_ANYWHERE: &str = "Wait until the sidecar runs and is primary, or with --anywhere until it runs, without a \
                                        time limit: for scripts that may start first";

/// A connection to a sidecar, and where it was made.
pub(super) struct Primary {
    pub(super) client: Client,
    socket: PathBuf,
}

impl Primary {
    /// Where it listens.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl fmt::Display for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.display().fmt(f)
    }
}

impl Sockets {
    /// The sockets, at least one.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        match self.socket.as_slice() {
            [] => vec![PathBuf::from(format!("/run/tailwind/{}.sock", self.group))],
            given => given.to_vec(),
        }
    }

    /// Longest wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    /// Connects to the sidecar behind one socket, in any role, to ask for its status: without a ring, which the status would
    /// count.
    pub(super) fn connect_to(&self, socket: &Path) -> anyhow::Result<Client> {
        let options = Options { timeout: Some(self.timeout()), socket_only: true, ..Options::default() };
        connect_with(socket, &options).map_err(|error| explain(socket, error, ""))
    }
}

impl Target {
    /// Longest wait for an answer.
    pub(super) fn timeout(&self) -> Duration {
        self.sockets.timeout()
    }

    /// Connects to the primary. With a single socket and without `--wait`, to the sidecar there in any role: it refuses by
    /// itself what it cannot do.
    pub(super) fn connect(&self) -> anyhow::Result<Primary> {
        if self.wait {
            return self.wait_for_primary();
        }
        let sockets = self.sockets.paths();
        let is_single = sockets.len() == 1;
        let mut others = String::new();
        for socket in sockets {
            match connect(&socket, false, Some(self.timeout())).map_err(|error| explain(&socket, error, ADVICE)) {
                Ok(client) if is_single || client.role_info().role == Role::Primary => {
                    return Ok(Primary { client, socket });
                }
                Err(error) if is_single => return Err(error),
                Ok(client) => others += &format!("\n  {}: {}", socket.display(), client.role_info().role),
                Err(error) => {
                    others += &format!("\n  {}: {}", socket.display(), tailwind_runtime::logging::explain(&error))
                }
            }
        }
        bail!("no sidecar is primary; use --wait to wait for one:{others}")
    }

    /// Connects to the first sidecar that answers, in any role.
    pub(super) fn connect_to_any(&self) -> anyhow::Result<Client> {
        let sockets = self.sockets.paths();
        let _notice = self.wait.then(|| Notice::of_sockets("a sidecar", sockets.clone()));
        loop {
            let mut others = String::new();
            for socket in &sockets {
                match connect(socket, false, Some(self.timeout())) {
                    Ok(client) => return Ok(client),
                    Err(error) if self.wait && is_passing(&error) => {}
                    Err(error) if self.wait || sockets.len() == 1 => {
                        return Err(explain(socket, error, ADVICE));
                    }
                    Err(error) => others += &format!("\n  {}", explain(socket, error, ADVICE)),
                }
            }
            if !self.wait {
                bail!("no sidecar answers; use --wait to wait for one:{others}");
            }
            sleep(LOOK_AGAIN_AFTER);
        }
    }

    /// Connects to the primary once there is one.
    pub(super) fn wait_for_primary(&self) -> anyhow::Result<Primary> {
        let sockets = self.sockets.paths();
        let _notice = Notice::of_sockets("a primary", sockets.clone());
        // A single sidecar is held for as long as it lives; among several, another one may be promoted first.
        let hold_each = (sockets.len() > 1).then_some(HOLD_EACH);
        loop {
            let mut has_held = false;
            for socket in &sockets {
                match connect(socket, true, hold_each) {
                    Ok(mut client) => {
                        client.set_timeout(Some(self.timeout())).context("set the socket's time-out")?;
                        return Ok(Primary { client, socket: socket.clone() });
                    }
                    Err(Error::TimedOut { .. }) => has_held = true,
                    // A reader, which never becomes primary: only another sidecar could.
                    Err(error @ Error::NotPrimary { .. }) if sockets.len() == 1 => {
                        return Err(explain(socket, error, ""));
                    }
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(explain(socket, error, "")),
                }
            }
            if !has_held {
                sleep(LOOK_AGAIN_AFTER);
            }
        }
    }

    /// A primary of a later epoch than `primary`'s behind another socket, if there is one now: proof that `primary` is
    /// over, even if it does not answer any more.
    pub(super) fn successor(&self, primary: &Primary) -> Option<Primary> {
        let epoch = primary.client.welcome().epoch;
        self.sockets.paths().into_iter().filter(|socket| *socket != primary.socket).find_map(|socket| {
            let mut client = connect(&socket, false, Some(HOLD_EACH)).ok()?;
            let Welcome { role, epoch: found, .. } = *client.welcome();
            let follows = role == Role::Primary && found > epoch;
            (follows && client.set_timeout(Some(self.timeout())).is_ok()).then_some(Primary { client, socket })
        })
    }
}

/// True when the same attempt may succeed later, with this sidecar or another one, without any repair.
pub(super) fn is_passing(error: &Error) -> bool {
    match error {
        Error::Connect { source, .. } => matches!(
            source.kind(),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::WouldBlock
        ),
        Error::NotPrimary { .. } | Error::UnknownOutcome { .. } | Error::Disconnected { .. } => true,
        Error::Retry { .. } | Error::TimedOut { .. } => true,
        _ => false,
    }
}

fn connect(socket: &Path, hold: bool, timeout: Option<Duration>) -> Result<Client, Error> {
    connect_with(socket, &Options { hold, timeout, ..Options::default() })
}

fn connect_with(socket: &Path, options: &Options) -> Result<Client, Error> {
    // For these the system returns the same error as for a socket without a listener, where waiting would help.
    let kind = std::fs::metadata(socket).map(|found| found.file_type());
    let mistaken = match &kind {
        Ok(kind) if kind.is_dir() => Some(ErrorKind::IsADirectory),
        Ok(kind) if !kind.is_socket() => Some(ErrorKind::InvalidInput),
        _ => None,
    };
    if let Some(kind) = mistaken {
        return Err(Error::Connect { path: socket.to_owned(), source: kind.into() });
    }
    Client::connect_with(socket, options)
}

/// Says what to do about a socket that does not open. `waiting`: [`ADVICE`], of a command that can wait and does not.
fn explain(socket: &Path, error: Error, waiting: &str) -> anyhow::Error {
    let advice = match &error {
        Error::Connect { source, .. } => match source.kind() {
            ErrorKind::NotFound => {
                return anyhow!("{error}; start the sidecar, or give its --socket or its --group{waiting}");
            }
            ErrorKind::ConnectionRefused => return anyhow!("{error}; the sidecar has ended: start it again{waiting}"),
            ErrorKind::IsADirectory => "give the path of the socket in it",
            ErrorKind::InvalidInput => "this is no socket; give the path of a sidecar's",
            ErrorKind::PermissionDenied => "be the socket's owner or in its group",
            _ => "is this the append socket of a sidecar?",
        },
        Error::TimedOut { .. } => "the sidecar takes connections and says nothing: is it stopped, or overloaded?",
        Error::Protocol { .. } => "is this the append socket of a sidecar?",
        _ => return anyhow::Error::new(error).context(format!("connect to {}", socket.display())),
    };
    anyhow!("{error}; {advice}")
}
