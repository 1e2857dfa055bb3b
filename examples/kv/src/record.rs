//! The bytes that this program puts into the log: one record for each write, and records that make up a snapshot.
//!
//! Written by [`term`](crate::term), read by [`replay`](crate::replay). A record outlives the program that wrote it: a change
//! of meaning is a new kind. All integers are little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | `K` |
//! | 1 | kind |
//! | 2 | flags, 0 unless the kind says otherwise |
//! | 3 | 0 |
//! | 4..12 | time of the write in milliseconds since 1970; see "Time" in [`store`](crate::store) |
//! | 12.. | fields of the kind; texts with a `u32` length before them |

use bytes::Bytes;

use crate::command::{Condition, Write};

const MAGIC: u8 = b'K';
/// Bytes before the fields.
pub const HEADER_SIZE: usize = 12;
/// Bytes of a chunk's record beside the chunk.
pub const CHUNK_OVERHEAD: usize = HEADER_SIZE + 8 + 4;

const OPEN: u8 = 1;
const SET: u8 = 2;
const SET_MANY: u8 = 3;
const DELETE: u8 = 4;
const ADD: u8 = 5;
const APPEND: u8 = 6;
const EXPIRE: u8 = 7;
const PERSIST: u8 = 8;
const FLUSH: u8 = 9;
const SNAPSHOT_BEGIN: u8 = 16;
const SNAPSHOT_CHUNK: u8 = 17;
const SNAPSHOT_END: u8 = 18;

const IF_ABSENT: u8 = 1;
const IF_PRESENT: u8 = 2;
const GET: u8 = 4;
const KEEP_DEADLINE: u8 = 8;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A primary begins its turn. Its ack proves that what was read before it was whole.
    Open,
    /// A client's write.
    Write(Write),
    /// A snapshot of everything before this record follows. Its LSN is the snapshot's name.
    SnapshotBegin,
    /// A part of a snapshot.
    SnapshotChunk {
        /// Which snapshot.
        id: u64,
        /// The next bytes of it.
        bytes: Bytes,
    },
    /// The snapshot is whole.
    SnapshotEnd {
        /// Which snapshot.
        id: u64,
        /// Keys in it.
        entries: u64,
    },
}

/// A record that this program cannot have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// The bytes of a record.
pub fn encode(stamp: u64, record: &Record) -> Vec<u8> {
    let mut out = Encoder(Vec::with_capacity(64));
    out.head(stamp, record);
    match record {
        Record::Open | Record::SnapshotBegin => {}
        Record::Write(write) => out.write(write),
        Record::SnapshotChunk { id, bytes } => {
            out.number(*id);
            out.text(bytes);
        }
        Record::SnapshotEnd { id, entries } => {
            out.number(*id);
            out.number(*entries);
        }
    }
    out.0
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn head(&mut self, stamp: u64, record: &Record) {
        let (kind, flags) = match record {
            Record::Open => (OPEN, 0),
            Record::Write(write) => kind_of(write),
            Record::SnapshotBegin => (SNAPSHOT_BEGIN, 0),
            Record::SnapshotChunk { .. } => (SNAPSHOT_CHUNK, 0),
            Record::SnapshotEnd { .. } => (SNAPSHOT_END, 0),
        };
        self.0.extend_from_slice(&[MAGIC, kind, flags, 0]);
        self.number(stamp);
    }

    fn write(&mut self, write: &Write) {
        match write {
            Write::Set { key, value, deadline, .. } => {
                self.number(deadline.unwrap_or(0));
                self.text(key);
                self.text(value);
            }
            Write::SetMany(pairs) => {
                self.length(pairs.len());
                for (key, value) in pairs {
                    self.text(key);
                    self.text(value);
                }
            }
            Write::Delete(keys) => {
                self.length(keys.len());
                keys.iter().for_each(|key| self.text(key));
            }
            Write::Add { key, amount } => {
                self.0.extend_from_slice(&amount.to_le_bytes());
                self.text(key);
            }
            Write::Append { key, value } => {
                self.text(key);
                self.text(value);
            }
            Write::Expire { key, deadline } => {
                self.number(*deadline);
                self.text(key);
            }
            Write::Persist(key) => self.text(key),
            Write::Flush => {}
        }
    }

    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn length(&mut self, length: usize) {
        let length = u32::try_from(length).expect("limits are far below 4 GiB");
        self.0.extend_from_slice(&length.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.length(text.len());
        self.0.extend_from_slice(text);
    }
}

fn kind_of(write: &Write) -> (u8, u8) {
    match write {
        Write::Set { keep_deadline, condition, get, .. } => {
            let condition = match condition {
                Condition::Always => 0,
                Condition::IfAbsent => IF_ABSENT,
                Condition::IfPresent => IF_PRESENT,
            };
            let flag = |is: bool, flag: u8| if is { flag } else { 0 };
            (SET, condition | flag(*get, GET) | flag(*keep_deadline, KEEP_DEADLINE))
        }
        Write::SetMany(_) => (SET_MANY, 0),
        Write::Delete(_) => (DELETE, 0),
        Write::Add { .. } => (ADD, 0),
        Write::Append { .. } => (APPEND, 0),
        Write::Expire { .. } => (EXPIRE, 0),
        Write::Persist(_) => (PERSIST, 0),
        Write::Flush => (FLUSH, 0),
    }
}

/// A record's time and what it says.
pub fn decode(payload: &[u8]) -> Result<(u64, Record), Unreadable> {
    let mut fields = Decoder(payload);
    let [magic, kind, flags, reserved] = fields.array()?;
    if magic != MAGIC || reserved != 0 {
        return Err(Unreadable("it does not begin like a record of this program".to_owned()));
    }
    let stamp = fields.number()?;
    let record = fields.record(kind, flags)?;
    if !fields.0.is_empty() {
        return Err(Unreadable(format!("{} bytes too many behind kind {kind}", fields.0.len())));
    }
    Ok((stamp, record))
}

/// Takes fields from the front.
struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn record(&mut self, kind: u8, flags: u8) -> Result<Record, Unreadable> {
        if flags != 0 && kind != SET {
            return Err(Unreadable(format!("flags {flags} of kind {kind}: a newer program wrote it")));
        }
        Ok(match kind {
            OPEN => Record::Open,
            SNAPSHOT_BEGIN => Record::SnapshotBegin,
            SNAPSHOT_CHUNK => Record::SnapshotChunk { id: self.number()?, bytes: self.text()? },
            SNAPSHOT_END => Record::SnapshotEnd { id: self.number()?, entries: self.number()? },
            SET => Record::Write(self.set(flags)?),
            SET_MANY => Record::Write(Write::SetMany(self.list(|fields| Ok((fields.text()?, fields.text()?)))?)),
            DELETE => Record::Write(Write::Delete(self.list(Decoder::text)?)),
            ADD => {
                let amount = i64::from_le_bytes(self.array()?);
                Record::Write(Write::Add { key: self.text()?, amount })
            }
            APPEND => Record::Write(Write::Append { key: self.text()?, value: self.text()? }),
            EXPIRE => {
                let deadline = self.number()?;
                Record::Write(Write::Expire { key: self.text()?, deadline })
            }
            PERSIST => Record::Write(Write::Persist(self.text()?)),
            FLUSH => Record::Write(Write::Flush),
            kind => return Err(Unreadable(format!("kind {kind} is unknown: a newer program wrote it"))),
        })
    }

    fn set(&mut self, flags: u8) -> Result<Write, Unreadable> {
        let condition = match flags & (IF_ABSENT | IF_PRESENT) {
            0 => Condition::Always,
            IF_ABSENT => Condition::IfAbsent,
            IF_PRESENT => Condition::IfPresent,
            _ => return Err(Unreadable("a set under two conditions".to_owned())),
        };
        if flags & !(IF_ABSENT | IF_PRESENT | GET | KEEP_DEADLINE) != 0 {
            return Err(Unreadable(format!("flags {flags} of a set: a newer program wrote it")));
        }
        let deadline = Some(self.number()?).filter(|deadline| *deadline != 0);
        let (get, keep_deadline) = (flags & GET != 0, flags & KEEP_DEADLINE != 0);
        Ok(Write::Set { key: self.text()?, value: self.text()?, deadline, keep_deadline, condition, get })
    }

    fn take(&mut self, size: usize) -> Result<&[u8], Unreadable> {
        let Some((taken, rest)) = self.0.split_at_checked(size) else {
            return Err(Unreadable(format!("it ends {} bytes too early", size - self.0.len())));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn length(&mut self) -> Result<usize, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn text(&mut self) -> Result<Bytes, Unreadable> {
        let size = self.length()?;
        Ok(Bytes::copy_from_slice(self.take(size)?))
    }

    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, Unreadable>) -> Result<Vec<T>, Unreadable> {
        // Not reserved by the announced length: that may be wrong.
        (0..self.length()?).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests;
