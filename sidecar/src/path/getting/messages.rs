//! What a getter and control send each other. Part of [`Getting`](super::Getting).

use std::ops::Range;

use tailwind_fabric::Readable;
use tailwind_protocol::config::{Configuration, MemberRef};
use tailwind_protocol::follower::Visit;
use tailwind_protocol::ids::{LogId, Lsn, SegmentId};
use tailwind_protocol::table::getter::{ACTIVE_MAX, GetId};
use tokio::sync::mpsc;

use super::reads::MirrorMemory;

/// What a visit may want of control at the same time: a fetch for each get that is read for, and a share.
pub(super) const WISHES_MAX: usize = ACTIVE_MAX + 1;

/// What a getter asks of control.
#[derive(Debug)]
pub enum GetterRequest {
    /// Open a read channel to this member of this log, have its board and its mirror shared, and answer with
    /// [`Brought::Connected`]. Then carry out what is wished, until nobody can wish any more: the visit is over.
    Visit(Visit, LogId, MemberRef, mpsc::Receiver<Wish>),
    /// Ask the primary for a position; [`Brought::Told`].
    Ask(u64),
    /// Close this channel.
    Close(Box<MirrorMemory>),
}

/// What is wished of the member that is visited.
#[derive(Debug)]
pub enum Wish {
    /// Share these segments; [`Brought::Shared`].
    Share(Vec<SegmentId>),
    /// Fetch these bytes of a closed segment, from it or another member; [`Brought::Fetched`].
    Fetch(GetId, SegmentId, Range<u32>),
}

/// What control brings a getter. Errors are for people.
#[derive(Debug)]
pub enum Brought {
    /// What the config store shows.
    Config(Box<Configuration>),
    /// The member that is visited can be read.
    Connected(Visit, Result<Box<MirrorMemory>, String>),
    /// The member that is visited was given no memory for a mirror.
    NoMemory(Visit),
    /// Of these segments, those are shared.
    Shared(Visit, Vec<SegmentId>, Result<Vec<(SegmentId, Readable)>, String>),
    /// The bytes that were wanted for this get.
    Fetched(Visit, GetId, Result<Vec<u8>, String>),
    /// How far the log is acknowledged.
    Told(u64, Result<Lsn, String>),
    /// The member does not know this reader any more.
    Broken(Visit, String),
}
