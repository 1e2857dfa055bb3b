//! Errors, named by what the caller does next.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tailwind_protocol::socket::ErrorCode;
use tailwind_protocol::table::record::Revision;

use crate::Ticket;

/// Pause before another attempt when the sidecar gives no advice.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_millis(100);

/// Why a call failed, by what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No sidecar behind this path (yet): try again later.
    #[error("connect to append socket {}: {source}", path.display())]
    Connect {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Nothing was appended or read: go to the primary, or wait here for the role.
    #[error("nothing was done: {message}")]
    NotPrimary {
        /// The primary, if known.
        primary: Option<String>,
        /// The sidecar's message.
        message: String,
    },
    /// The append may or may not be in the log: read from the last acknowledged LSN + 1 to find out. The connection lives.
    #[error("whether the append is in the log is unknown: {message}")]
    UnknownOutcome {
        /// The sidecar's message.
        message: String,
    },
    /// Nothing was appended: split the record or batch.
    #[error("too large: {message}")]
    TooLarge {
        /// What the limit is.
        message: String,
    },
    /// The records requested for have been trimmed away: start from a later one.
    #[error("{message}")]
    Trimmed {
        /// The sidecar's message.
        message: String,
    },
    /// Nothing was done, because a condition of a table's request did not hold: look at the key, and decide again.
    #[error("operation {operation} did not find its key as expected: {}", match revision {
        Some(revision) => format!("it has revision {revision}"),
        None => "it is absent".to_owned(),
    })]
    Mismatch {
        /// The first operation whose condition did not hold; they count from 0.
        operation: u16,
        /// The revision that its key has instead; `None`: it is absent.
        revision: Option<Revision>,
    },
    /// Nothing was done, because the table has no room for what the request adds: delete keys, or have the table enlarged.
    #[error("the table is full: {message}")]
    TableFull {
        /// Which bound was reached.
        message: String,
    },
    /// Nothing was done, because the group keeps a table and this is a call for a log, or the other way round.
    #[error("{message}")]
    WrongKind {
        /// The sidecar's message.
        message: String,
    },
    /// Not now: the same call may succeed `after` a pause.
    #[error("try again in {} ms: {message}", after.as_millis())]
    Retry {
        /// The pause.
        after: Duration,
        /// Why it is refused now.
        code: ErrorCode,
        /// The sidecar's message.
        message: String,
    },
    /// [`Options::timeout`](crate::Options::timeout) went by without an answer. Nothing is lost: what was in
    /// flight still is, and `next_ack` or `flush` returns its outcome; a read or tail continues with its next call.
    #[error("no answer within {} ms", after.as_millis())]
    TimedOut {
        /// The time-out.
        after: Duration,
        /// The append that the call waited for, which is in flight. `None` for every other call, and if there was no room to take
        /// the record: then it is not in flight, and will not be in the log.
        in_flight: Option<Ticket>,
    },
    /// The connection is over. Appends in flight have an unknown outcome: connect again, then as for `UnknownOutcome`.
    #[error("disconnected: {why}")]
    Disconnected {
        /// What ended the connection.
        why: String,
    },
    /// The sidecar will not do this, now or later: an administrator must look.
    #[error("refused ({code:?}): {message}")]
    Refused {
        /// Why.
        code: ErrorCode,
        /// The sidecar's message.
        message: String,
    },
    /// The other end does not keep to the protocol; the connection is over. Outcomes as for `Disconnected`.
    #[error("protocol violated by the sidecar: {what}")]
    Protocol {
        /// How.
        what: String,
    },
    /// The call is not allowed here: correct the program. Nothing was sent.
    #[error("misuse: {0}")]
    Misuse(&'static str),
}

impl Error {
    /// The error of a call that has waited for the answer to this append.
    pub(crate) fn of_append(self, ticket: Ticket) -> Error {
        match self {
            Error::TimedOut { after, .. } => Error::TimedOut { after, in_flight: Some(ticket) },
            error => error,
        }
    }

    /// The error that the sidecar's error frame stands for.
    pub(crate) fn from_frame(code: ErrorCode, retry_after_ms: u32, message: &str, primary: Option<String>) -> Error {
        let message = message.to_owned();
        match code {
            ErrorCode::NotPrimary => Error::NotPrimary { primary, message },
            ErrorCode::UnknownOutcome => Error::UnknownOutcome { message },
            ErrorCode::TooLarge => Error::TooLarge { message },
            ErrorCode::Trimmed => Error::Trimmed { message },
            ErrorCode::TableFull => Error::TableFull { message },
            ErrorCode::WrongKind => Error::WrongKind { message },
            ErrorCode::Busy | ErrorCode::Unavailable => {
                let advice = Duration::from_millis(u64::from(retry_after_ms));
                Error::Retry { after: if advice.is_zero() { RETRY_AFTER_DEFAULT } else { advice }, code, message }
            }
            ErrorCode::ShuttingDown => Error::Disconnected { why: message },
            ErrorCode::BadFrame
            | ErrorCode::UnsupportedVersion
            | ErrorCode::BeyondEnd
            | ErrorCode::NotAllowed
            | ErrorCode::Reading => Error::Refused { code, message },
        }
    }
}
