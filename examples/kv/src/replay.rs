//! From the log's records back to the keys and values.
//!
//! A log that begins with its first record is applied as it is, and snapshots in it tell nothing new. One that has been
//! trimmed begins somewhere before a snapshot: what stands before that is passed over, its chunks are gathered, the writes
//! between them put aside, and once its end mark is there these are applied to it. A snapshot without an end mark is as good as
//! none: its writer died, and did not trim. Pure; called by [`turns`](crate::turns).

use bytes::Bytes;

use crate::command::Write;
use crate::record::{self, Record, Unreadable};
use crate::store::{Gather, Store};

/// Why a log cannot be replayed. An administrator must look.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Another program wrote into the log, or a newer version of this one.
    #[error(
        "record {lsn} of the log cannot be read: {why}. Does another app append to this group's log, or did a newer version?"
    )]
    Unreadable {
        /// Which record.
        lsn: u64,
        /// What is wrong with it.
        why: Unreadable,
    },
    /// The log has been trimmed by another program.
    #[error(
        "the log begins with record {first} and holds no whole snapshot: records before it have been trimmed by something other than this program"
    )]
    NoSnapshot {
        /// Its first record.
        first: u64,
    },
}

/// A log that is being replayed.
#[derive(Debug)]
pub struct Replay {
    first: u64,
    bytes: u64,
    /// The snapshot that may become whole, and what there was before its beginning.
    snapshot: Option<(u64, u64)>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Everything so far is in the store.
    Whole(Box<Store>),
    /// No base to apply writes to yet.
    Lost,
    /// A snapshot may become the base.
    Gathering { id: u64, gather: Box<Gather>, clock: u64, since: Vec<(u64, Write)> },
}

impl Replay {
    /// The replay of a log whose first record has this LSN.
    pub fn new(first: u64) -> Replay {
        let state = if first <= 1 { State::Whole(Box::default()) } else { State::Lost };
        Replay { first, bytes: 0, snapshot: None, state }
    }

    /// Takes the next record.
    pub fn take(&mut self, lsn: u64, payload: &[u8]) -> Result<(), ReplayError> {
        let before = self.bytes;
        self.bytes += payload.len() as u64;
        let (stamp, record) = record::decode(payload).map_err(|why| ReplayError::Unreadable { lsn, why })?;
        match record {
            Record::Open => self.on_time(stamp),
            Record::Write(write) => self.on_write(stamp, write),
            Record::SnapshotBegin => {
                self.snapshot = Some((lsn, before));
                self.on_begin(lsn, stamp);
            }
            Record::SnapshotChunk { id, bytes } => self.on_chunk(id, &bytes),
            Record::SnapshotEnd { id, entries } => self.on_end(id, entries),
        }
        Ok(())
    }

    /// Whether there are keys and values to look at: the beginning of the log has been seen, or a whole snapshot.
    pub fn is_whole(&self) -> bool {
        matches!(self.state, State::Whole(_))
    }

    /// The keys and values after the last record, unless the log begins before a snapshot that has not come whole yet.
    pub fn store(&self) -> Option<&Store> {
        match &self.state {
            State::Whole(store) => Some(store),
            State::Lost | State::Gathering { .. } => None,
        }
    }

    /// Bytes of the records since the last whole snapshot's beginning, or since the log's.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The keys and values after the last record.
    pub fn finish(self) -> Result<Store, ReplayError> {
        match self.state {
            State::Whole(store) => Ok(*store),
            State::Lost | State::Gathering { .. } => Err(ReplayError::NoSnapshot { first: self.first }),
        }
    }

    fn on_time(&mut self, stamp: u64) {
        if let State::Whole(store) = &mut self.state {
            store.set_clock(stamp);
        }
    }

    fn on_write(&mut self, stamp: u64, write: Write) {
        match &mut self.state {
            State::Whole(store) => drop(store.apply(stamp, &write)),
            State::Lost => {}
            State::Gathering { since, .. } => since.push((stamp, write)),
        }
    }

    /// A snapshot that began earlier will not end: only one primary writes at a time.
    fn on_begin(&mut self, lsn: u64, stamp: u64) {
        match &mut self.state {
            State::Whole(store) => store.set_clock(stamp),
            State::Lost | State::Gathering { .. } => {
                self.state = State::Gathering { id: lsn, gather: Box::default(), clock: stamp, since: Vec::new() };
            }
        }
    }

    fn on_chunk(&mut self, of: u64, bytes: &Bytes) {
        if let State::Gathering { id, gather, .. } = &mut self.state
            && *id == of
        {
            gather.take(bytes);
        }
    }

    fn on_end(&mut self, of: u64, entries: u64) {
        if let Some((_, before)) = self.snapshot.take_if(|(id, _)| *id == of) {
            self.bytes -= before;
        }
        if !matches!(self.state, State::Gathering { id, .. } if id == of) {
            return;
        }
        let State::Gathering { gather, clock, since, .. } = std::mem::replace(&mut self.state, State::Lost) else {
            unreachable!("looked at a moment ago")
        };
        let Some(mut store) = gather.finish(entries) else { return };
        store.set_clock(clock);
        for (stamp, write) in since {
            store.apply(stamp, &write);
        }
        self.state = State::Whole(Box::new(store));
    }
}
