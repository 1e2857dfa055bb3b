//! Every bound of this program, with its arithmetic. What the log itself takes is in the sidecar's welcome.
//!
//! Together: [`CLIENTS_MAX`] clients with [`SMALL_COMMAND_SIZE`] and a read's worth each, and [`LARGE_COMMANDS_MAX`]
//! commands of [`COMMAND_SIZE_MAX`], are 1024 × 80 KiB + 16 × 4 MiB = 144 MiB beside the data.

use std::time::Duration;

/// Longest key.
pub const KEY_SIZE_MAX: usize = 64 << 10;
/// Longest value, also after an `APPEND`. A command that writes must fit into one record of the log as well.
pub const VALUE_SIZE_MAX: usize = 1 << 20;
/// Longest argument that is read from a client.
pub const ARGUMENT_SIZE_MAX: usize = VALUE_SIZE_MAX;
/// Most arguments of a command: an `MSET` of 32,768 pairs.
pub const ARGUMENTS_MAX: usize = 1 << 16;
/// What an argument costs beside its bytes: its handle.
pub const ARGUMENT_COST: usize = 32;
/// Largest command, [`ARGUMENT_COST`] included.
pub const COMMAND_SIZE_MAX: usize = 4 << 20;
/// Longest command that comes as a line of text.
pub const INLINE_SIZE_MAX: usize = 16 << 10;

/// Clients at a time. One more gets an error and is closed.
pub const CLIENTS_MAX: usize = 1024;
/// What is read from a client at once.
pub const READ_SIZE: usize = 16 << 10;
/// A command above this size needs one of the [`LARGE_COMMANDS_MAX`] places before the rest of it is read.
pub const SMALL_COMMAND_SIZE: usize = 64 << 10;
/// Large commands that are being received or carried out. Further ones wait, unread, in their sockets.
pub const LARGE_COMMANDS_MAX: usize = 16;
/// How long a client may take to send a command that it has begun, or to read a piece of its replies.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(30);
/// Replies are handed to the socket in pieces of about this size.
pub const REPLY_PIECE_SIZE: usize = 64 << 10;

/// Commands of one client that are carried out together. The next ones are read when these have been answered.
pub const BATCH_COMMANDS_MAX: usize = 1024;
/// Batches that wait for the primary's task: one from each client.
pub const BATCHES_WAITING_MAX: usize = CLIENTS_MAX;
/// Batches taken in one turn before acks are looked at again.
pub const BATCHES_PER_TURN: usize = 64;
/// Records on their way at which no further batch is taken: as many as a sidecar takes from one connection. With the last
/// batch there may be [`BATCH_COMMANDS_MAX`] more.
pub const RECORDS_IN_FLIGHT_MAX: usize = 8192;
/// Bytes on their way at which no further batch is taken; with the last batch there may be [`COMMAND_SIZE_MAX`] more.
pub const BYTES_IN_FLIGHT_MAX: usize = 32 << 20;

/// Keys that one step of a `SCAN` visits at most.
pub const SCAN_COUNT_MAX: u64 = 10_000;
/// Expired keys that are removed with each write: more than the one that it may add.
pub const SWEEP_PER_WRITE: usize = 4;
/// Expired keys that are removed with each tick of an idle primary: some milliseconds of work.
pub const SWEEP_PER_TICK: usize = 10_000;
/// The time between two such steps.
pub const TICK: Duration = Duration::from_millis(100);
/// What a key costs in memory beside its bytes and its value's: two nodes of trees, handles, the allocator's share.
pub const ENTRY_COST: usize = 192;

/// Bytes of a snapshot's record, if the log takes that much.
pub const CHUNK_SIZE: usize = 64 << 10;
/// Records of a snapshot that are on their way at a time: clients' writes go in between.
pub const CHUNKS_IN_FLIGHT: usize = 4;

/// How long a standby's strict read waits for the primary's position: a failover, and then it is asked again.
pub const POSITION_PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the sidecar is tried again.
pub const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often the sidecar is asked how many copies there are.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How long clients' last commands may take once the program is told to end; below Kubernetes' 30 s.
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
