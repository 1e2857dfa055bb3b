//! What control and the append path send each other, and the numbers that the path publishes.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tailwind_fabric::{AppendBuffer, Channel, ChannelError, RemoteBuffer, SharedBuffer};
use tailwind_primary::{COPIES_MAX, FETCHES_MAX, Moved, Table};
use tailwind_protocol::history::History;
use tailwind_protocol::ids::{Epoch, Lsn, SegmentId};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::primary::{Input, Output, Primary, Seat};
use tailwind_protocol::rpc::PositionReply;
use tailwind_protocol::socket::Role;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::get::Wanted;
use tailwind_runtime::histogram::Histogram;
use tokio::sync::{mpsc, oneshot, watch};

use super::connection::DetachedConnection;
use super::description::Description;
use super::getting::{Brought, GetterRequest};
use super::moves::MoveBatch;
use super::slots::SLOTS;
use crate::mirror::Bell;

/// From control to the path.
pub enum Command {
    /// This sidecar is not primary now.
    Wait {
        /// Standby, recovering or reader.
        role: Role,
        /// The epoch as far as known.
        epoch: u64,
        /// Who is primary, if known.
        primary: String,
    },
    /// This sidecar is primary from now on; everything up to this record is acknowledged. In a group that keeps a table, with its
    /// index; in any other, without.
    Lead(Box<Primary>, u64, Option<Box<Table>>),
    /// Judge these records of a table's oldest segment in the term of this epoch, and append again what is live. Nobody hears of it
    /// if that term is over.
    Move(Epoch, MoveBatch, oneshot::Sender<Moved>),
    /// For the get with this number in the term of this epoch: the value of the record that it needs, which has been checked; or
    /// why nobody could give it, for people.
    Record(Epoch, u64, Result<Vec<u8>, String>),
    /// The same for copies, under this number in the term of this epoch: the values of the records that were wanted, in their order.
    Sources(Epoch, u64, Result<Vec<Vec<u8>>, String>),
    /// What has been appended to the table that is led in this epoch is to be on disk at every member.
    SyncTable(Epoch),
    /// The log of the table that is led in this epoch is to begin with this record.
    TrimTable(Epoch, Lsn),
    /// Note from now on which lines of the index change that is led in this epoch, and ring the bell when they do; then reply. Not
    /// at all if that term is over.
    NoteChanges(Epoch, Arc<ChangedLines>, Arc<Bell>, oneshot::Sender<()>),
    /// Feed the machine of this epoch. What comes late, from a term that is over, is not for the next one: there the same
    /// seat may be another member's, and another swap may be under way.
    Input(Epoch, Input),
    /// Local memory for a segment, of whose epoch's term it is.
    Prepared(SegmentIdentity, AppendBuffer, SharedBuffer),
    /// A member that had no memory for its board when it was connected has lent it.
    BoardLent(Epoch, Seat, RemoteBuffer),
    /// A member's data channel, in the term of this epoch; and its board, if it has lent one.
    Connected(Epoch, Seat, Box<dyn Channel>, Option<RemoteBuffer>),
    /// A member's buffer for a segment, in the term of this epoch.
    Opened(Epoch, Seat, SegmentId, RemoteBuffer),
    /// A connection comes back from a read.
    Adopt(DetachedConnection),
    /// A connection that a read had has ended.
    Left(ClientId),
    /// The answer to a client's status request.
    Answer(ClientId, u64, String),
    /// Take a position of this primary's log, and prove it; an error says why there is none, for people.
    TakePosition(oneshot::Sender<Result<PositionReply, String>>),
    /// The answer to a client's request for a position.
    AnswerPosition(ClientId, u64, Result<PositionReply, String>),
    /// For the getter of a table, which reads it while this sidecar is not primary.
    Getter(Brought),
    /// Report the path's state.
    Describe(oneshot::Sender<Description>),
    /// Inform the clients and stop.
    End,
}

/// Commands on their way to the path. It drains them every turn and never waits for control, so whoever finds no room waits a
/// moment. More than control can have under way at once: for each of [`MEMBERS_MAX`](tailwind_protocol::config::MEMBERS_MAX)
/// seats a few answers, one for each client, and those of the term.
pub const COMMANDS_MAX: usize = 1024;

/// Requests of clients on their way to control: a read, or a few questions for the status or a position, from each slot; records
/// for gets and copies; and what the getter asks. What finds no room stays in its client's inbox, or waits as a get.
const CLIENT_REQUESTS_MAX: usize = SLOTS * 4 + FETCHES_MAX + COPIES_MAX + GETTER_REQUESTS_MAX;

/// A visit, a question and a few channels to be closed: the getter does without if there is no room.
const GETTER_REQUESTS_MAX: usize = 8;

/// From the path's machine to control.
#[derive(Debug)]
pub enum FromTerm {
    /// The machine wants this done.
    Do(Output),
    /// The data channel of this seat has failed, for this reason. Comes before what the machine wants done about it.
    ChannelFailed(Seat, ChannelError),
}

/// Outputs on their way to control. A term that begins or loses a member wants some dozens at once; what finds no room stays
/// with the machine.
const OUTPUTS_MAX: usize = 256;

/// A new pair of channels from the path to control.
pub fn control_channels() -> (ControlSenders, ControlReceivers) {
    let (outputs, output_receiver) = mpsc::channel(OUTPUTS_MAX);
    let (requests, request_receiver) = mpsc::channel(CLIENT_REQUESTS_MAX);
    (ControlSenders { outputs, requests }, ControlReceivers { outputs: output_receiver, requests: request_receiver })
}

/// The path's end of the channels to control.
#[derive(Debug)]
pub struct ControlSenders {
    pub(super) outputs: mpsc::Sender<FromTerm>,
    pub(super) requests: mpsc::Sender<ClientRequest>,
}

/// Control's end.
#[derive(Debug)]
pub struct ControlReceivers {
    /// What the machine wants done, and why it does.
    pub outputs: mpsc::Receiver<FromTerm>,
    /// What clients ask.
    pub requests: mpsc::Receiver<ClientRequest>,
}

/// What a client asks that the path does not answer itself.
#[derive(Debug)]
pub enum ClientRequest {
    /// A client wants to read: the read takes the connection over.
    Read(DetachedConnection, ReadRequest),
    /// A client asked for the status.
    Status(ClientId, u64),
    /// A client asked for a position of the primary's log, which is not here.
    Position(ClientId, u64),
    /// In the term of this epoch, the get with this number needs a record of a segment that is closed, or about to be.
    Record(Epoch, u64, Box<Wanted>),
    /// In the term of this epoch, a request with copies needs these records, under this number.
    Sources(Epoch, u64, Vec<Wanted>),
    /// What the getter of a table asks.
    Getter(GetterRequest),
}

/// A client's request to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Its number.
    pub request: u64,
    /// Where the read begins.
    pub start: Start,
    /// Up to where, and from where.
    pub kind: ReadKind,
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// First record wanted; 0 for the first that there is.
    pub from: Lsn,
    /// The history that what the client has read before it belongs to.
    pub history: History,
}

/// What a client wants to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// What there is.
    Read {
        /// Most records; 0 for no limit.
        limit: u64,
        /// Go on after the end.
        tail: bool,
        /// Also where this sidecar is not primary.
        anywhere: bool,
    },
    /// The same in any role, going on after the end until this sidecar is primary.
    Follow,
}

impl ReadKind {
    /// True when the sidecar need not be primary.
    pub fn is_anywhere(self) -> bool {
        matches!(self, ReadKind::Follow | ReadKind::Read { anywhere: true, .. })
    }
}

/// Names a connection; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(pub(super) u64);

/// Numbers that others read while the path runs.
#[derive(Debug, Default)]
pub struct Counters {
    /// LSN of the last acknowledged record.
    pub acked: AtomicU64,
    /// First record that can be read.
    pub first: AtomicU64,
    /// Grows with every turn, so that a path that hangs is noticed.
    pub turns: AtomicU64,
    /// Records appended by clients.
    pub records: AtomicU64,
    /// Appends (records or batches) taken.
    pub appends: AtomicU64,
    /// Bytes of log taken, headers included.
    pub bytes: AtomicU64,
    /// Bytes of log that were posted to members, those for each of them counted.
    pub posted_log_bytes: AtomicU64,
    /// Of lines of boards.
    pub posted_board_bytes: AtomicU64,
    /// Of lines of mirrors, and of what boards say of these.
    pub posted_mirror_bytes: AtomicU64,
    /// Clients connected now. A standby watches it: without an app it lets others go first.
    pub clients: watch::Sender<u64>,
    /// Clients that have a ring.
    pub rings: AtomicU64,
    /// Bytes of closed segments that were copied to members from here.
    pub image_bytes: AtomicU64,
    /// Of a table: everything up to this record is on disk at every member, so a trim may rest on it.
    pub settled: AtomicU64,
    /// Bytes of a table's live records, by what was appended.
    pub live_bytes: AtomicU64,
    /// Gets that were answered with a value, or a revision.
    pub gets_found: AtomicU64,
    /// Gets that were answered with an older value.
    pub gets_older: AtomicU64,
    /// Gets that were answered with the absence of their key.
    pub gets_absent: AtomicU64,
    /// Gets that could not be answered in their time.
    pub gets_unavailable: AtomicU64,
    /// Bytes of log that a table's cleaner has had appended again.
    pub moved_bytes: AtomicU64,
    /// Segments that it has emptied and trimmed.
    pub cleaned_segments: AtomicU64,
    /// Frames refused.
    pub refused: AtomicU64,
    /// From the taking of a get, where this sidecar is not primary, to its answer.
    pub get_times: Histogram,
    /// From the turn in which an append was received to its ack.
    pub append_times: Histogram,
    /// From the posting of a part of the log to its completion at the last member that acks need.
    pub replication_times: Histogram,
    /// Pauses of appends in which a newcomer could join.
    pub join_pauses: Histogram,
    /// Readers that wait for new records, and their wake-up.
    pub tailing: AtomicU64,
    /// Woken once per turn in which records were acknowledged, if anybody waits.
    pub news: tokio::sync::Notify,
}
