//! Client of the append socket: how an app writes to, and reads from, the log that its sidecar replicates.
//!
//! Two clients with the same functions: [`blocking`] on the standard library alone, and [`asynchronous`] on `tokio`
//! (feature `async`, on by default). Both are thin: they wait for the socket, and everything else happens in one core
//! without I/O. The bytes are in `docs/append-socket.md`.
//!
//! If the sidecar agrees, requests and answers go through memory that both share ([`Welcome::ring`]), and the socket only wakes
//! the side that sleeps. Nothing else changes; [`Options::socket_only`] does without.
//!
//! ```no_run
//! use tailwind_client::{Lsn, blocking::Client};
//!
//! # fn main() -> Result<(), tailwind_client::Error> {
//! let mut client = Client::connect("/run/tailwind/default.sock")?;
//!
//! // One record: back once every current backup has it.
//! let lsn = client.append(b"one")?;
//! println!("record {lsn} is replicated");
//!
//! // Many: submit without waiting, then wait for all.
//! for n in 0..1_000_000u32 {
//!     client.submit(&n.to_le_bytes())?;
//!     while let Some(ack) = client.try_next_ack() {
//!         ack.outcome?;
//!     }
//! }
//! client.flush()?;
//!
//! // Read back; what has been read never disappears in a later failover.
//! let mut records = client.read(Lsn(1), 0)?;
//! while let Some((lsn, payload)) = records.next_record()? {
//!     println!("{lsn}: {} bytes", payload.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Warm standbys and readers
//! A follow shows acknowledged records in any role of the sidecar, and ends when this sidecar is primary and its app has every
//! record: what a standby app does all its life, so that it need not read the log when it takes over. `docs/readers.md` says
//! what a follower may see.
//!
//! ```no_run
//! use tailwind_client::{FollowEvent, History, Lsn, blocking::Client};
//!
//! # struct State { history: History, next: Lsn, ready: bool, stale: bool }
//! # impl State { fn apply(&mut self, lsn: Lsn, _: &[u8]) { self.next = lsn.next(); } }
//! # fn serve(client: &mut Client, state: &mut State) -> Result<(), tailwind_client::Error> { Ok(()) }
//! # fn live(state: &mut State) -> Result<(), tailwind_client::Error> {
//! let mut client = Client::connect("/run/tailwind/default.sock")?;
//! let mut follow = client.follow((state.history, state.next))?;
//! while let Some(event) = follow.next_event()? {
//!     match event {
//!         FollowEvent::Record(lsn, record) => state.apply(lsn, record),
//!         FollowEvent::CaughtUp { .. } => state.ready = true,
//!         FollowEvent::Lag { stale, .. } => state.stale = stale,
//!         FollowEvent::Turn { .. } => {} // the last event
//!     }
//!     state.history = follow.history();
//! }
//! drop(follow);
//! serve(&mut client, state)
//! # }
//! ```
//!
//! # Tables
//! A group may keep a table, the last value of each key, instead of plain records. [`blocking::Table`] changes keys at the
//! primary, with conditions on their revisions if need be, and reads them there; [`blocking::LocalTable`] keeps the keys that have a prefix in the
//! app's own memory, at any sidecar. Both exist with `.await` in [`asynchronous`].
//!
//! # After a failover
//! [`Error::UnknownOutcome`] and [`Error::Disconnected`] leave open whether the appends in flight are in the log. Connect to
//! the new primary (with [`Options::hold`], to be answered once there is one), read from the last acknowledged LSN + 1, compare
//! with what was in flight, in order, and submit the rest again.

mod apply;
#[cfg(feature = "async")]
pub mod asynchronous;
pub mod blocking;
mod buffer;
mod content;
mod error;
mod get;
mod local;
mod reserved;
mod ring;
mod session;
mod types;

pub use apply::{Applied, Apply};
pub use content::{Change, Entry};
pub use error::Error;
pub use get::{Get, Got};
pub use reserved::Reserved;
pub use tailwind_protocol::history::History;
pub use tailwind_protocol::ids::{Epoch, Lsn};
pub use tailwind_protocol::socket::{ErrorCode, Role};
pub use tailwind_protocol::table::record::Revision;
pub use types::{Ack, Event, FollowEvent, Limits, Options, PassedBarrier, Position, RoleInfo, Start, Ticket, Welcome};

/// What the client's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Appends that may be in flight or answered without their answers having been taken: 24 bytes each, so 24 MiB.
/// At the bound `submit` refuses with [`Error::Misuse`]: take answers with `next_ack`, `wait` or `flush`.
pub const OUTSTANDING_APPENDS_MAX: usize = 1 << 20;
