//! What a client may ask, as types that cannot be wrong.
//!
//! [`mod@parse`] makes them of arguments; connections answer [`Command::Local`] themselves, on every server; the primary's task
//! carries out reads and writes. A [`Write`] is also what the log holds: it says everything that its outcome depends on,
//! beside the state before it.

mod number;
mod parse;
mod table;

use bytes::Bytes;

pub use number::number;
pub use parse::parse;
pub use table::{COMMANDS, Spec};

use crate::resp::Reply;

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Answered without looking at keys.
    Local(Local),
    /// Looks at keys.
    Read(Read),
    /// Changes keys.
    Write(Write),
}

/// Commands that need no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// The answer is known already.
    Answer(Reply),
    /// Facts about this server.
    Info,
    /// The last command of its connection.
    Quit,
}

/// Commands that look at keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A value.
    Get(Bytes),
    /// Values.
    GetMany(Vec<Bytes>),
    /// How many of these keys there are.
    Exists(Vec<Bytes>),
    /// Length of a value.
    Length(Bytes),
    /// What is left of a key's life.
    TimeLeft {
        /// The key.
        key: Bytes,
        /// In milliseconds instead of seconds.
        millis: bool,
    },
    /// Kind of a value.
    Type(Bytes),
    /// All keys that a pattern describes.
    Keys(Bytes),
    /// Some keys, and where to continue.
    Scan {
        /// Where to continue; 0 at first.
        cursor: u64,
        /// Which keys.
        pattern: Option<Bytes>,
        /// Keys to visit.
        count: u64,
        /// False: another kind than strings is wanted, of which there are none.
        strings: bool,
    },
    /// How many keys there are.
    Size,
    /// How many backups have what this client has written.
    Copies,
}

/// When a key is to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    #[default]
    Always,
    /// `NX`.
    IfAbsent,
    /// `XX`.
    IfPresent,
}

/// A change, with absolute times: milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// `SET`.
    Set {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// When it goes.
        deadline: Option<u64>,
        /// Keep the deadline that it has.
        keep_deadline: bool,
        /// When to set it.
        condition: Condition,
        /// Answer with the old value.
        get: bool,
    },
    /// `MSET`.
    SetMany(Vec<(Bytes, Bytes)>),
    /// `DEL`.
    Delete(Vec<Bytes>),
    /// `INCRBY`.
    Add {
        /// The key.
        key: Bytes,
        /// May be negative.
        amount: i64,
    },
    /// `APPEND`.
    Append {
        /// The key.
        key: Bytes,
        /// The bytes that are appended to the old value.
        value: Bytes,
    },
    /// `PEXPIREAT`.
    Expire {
        /// The key.
        key: Bytes,
        /// When it goes.
        deadline: u64,
    },
    /// `PERSIST`.
    Persist(Bytes),
    /// `FLUSHALL`.
    Flush,
}

impl Write {
    /// True for what may take more memory than before.
    pub fn may_grow(&self) -> bool {
        matches!(self, Write::Set { .. } | Write::SetMany(_) | Write::Add { .. } | Write::Append { .. })
    }
}
