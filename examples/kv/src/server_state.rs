//! What clients' connections know of this server's turn: where to send commands, or with which words to refuse them.
//!
//! Set by [`turns`](crate::turns), looked at by every [`connection`](crate::connection) for each batch, and by the probes.

use tokio::sync::{mpsc, oneshot, watch};

use crate::resp::Reply;
use crate::term::Operation;

/// Commands of one client, and where their replies go.
#[derive(Debug)]
pub struct Batch {
    /// The commands, in order.
    pub operations: Vec<Operation>,
    /// One reply for each.
    pub answer: oneshot::Sender<Vec<Reply>>,
}

/// What this server is at the moment.
#[derive(Clone, Debug)]
pub enum ServerState {
    /// No sidecar answers on the socket.
    Alone {
        /// What is wrong.
        why: String,
    },
    /// Another server is primary, or none. This one follows the log, and answers reads.
    Standby {
        /// Its sidecar never becomes primary.
        is_reader: bool,
        /// It has read the log up to its end, and answers reads. Until then it refuses them.
        is_warm: bool,
        /// The primary's name, if known.
        primary: Option<String>,
        /// The way to the task that answers reads.
        work: mpsc::Sender<Batch>,
    },
    /// The sidecar is primary, and the rest of the log is being read.
    Loading {
        /// Records so far.
        records: u64,
    },
    /// Serving.
    Primary {
        /// The sidecar's epoch.
        epoch: u64,
        /// The way to the task that serves.
        work: mpsc::Sender<Batch>,
    },
}

/// The way to look at it.
pub type StateWatch = watch::Receiver<ServerState>;

impl ServerState {
    /// The refusal for clients that want keys, or at a standby to change them. Both words make clients try again elsewhere or
    /// later.
    pub fn refusal(&self) -> Reply {
        Reply::error(match self {
            ServerState::Alone { why } => format!("LOADING this server has no log: {why}"),
            ServerState::Standby { primary: Some(primary), .. } => {
                format!("READONLY this server is a {}, and takes no writes: go to the primary, {primary}", self.role())
            }
            ServerState::Standby { primary: None, .. } => {
                format!(
                    "READONLY this server is a {}, and who is primary is not known yet: try again soon",
                    self.role()
                )
            }
            ServerState::Loading { records } => {
                format!("LOADING this server has become primary and reads the log: {records} records so far")
            }
            ServerState::Primary { .. } => {
                "LOADING this server has just ceased to be primary: try again soon".to_owned()
            }
        })
    }

    /// One word for `INFO` and metrics.
    pub fn role(&self) -> &'static str {
        match self {
            ServerState::Alone { .. } => "alone",
            ServerState::Standby { is_reader: true, .. } => "reader",
            ServerState::Standby { .. } => "standby",
            ServerState::Loading { .. } => "loading",
            ServerState::Primary { .. } => "primary",
        }
    }

    /// Whether a pod in this state is as it should be: it serves, or is warm and would if it had to. Why not, otherwise.
    pub fn readiness(&self) -> Result<(), String> {
        match self {
            ServerState::Primary { .. } | ServerState::Standby { primary: Some(_), is_warm: true, .. } => Ok(()),
            ServerState::Alone { why } => Err(format!("no log: {why}")),
            ServerState::Standby { primary: None, .. } => Err(format!("{}, and no primary is known", self.role())),
            ServerState::Standby { .. } => Err(format!("{}, and has not read the log up to its end yet", self.role())),
            ServerState::Loading { records } => Err(format!("reading the log: {records} records so far")),
        }
    }
}
