//! What a primary does with its memory and its channels: the shell around [`tailwind_protocol::primary`], without threads,
//! sockets or clock.
//!
//! Driven by the sidecar's append path, which adds clients, real channels and time, and by the simulator, which adds virtual
//! time and faults. In the order in which a record meets them: [`fabric`] (the two narrow traits that a host implements),
//! `segments` (places it in the open segment), `members` (posts it, collects completions), `waits` (who waits for what), and
//! [`PrimaryLog::turn`], which does all of it once. Beside them: `board` (what readers are told), `table` (a log of keyed
//! records: requests are judged before they are placed), `copies` (requests
//! that take over values), and `gets` (what is read of it).
//!
//! Nothing here allocates per record, locks, logs or blocks.

mod board;
mod copies;
pub mod fabric;
mod gets;
mod log;
mod members;
mod segments;
mod table;
mod waits;

pub use copies::{COPIES_MAX, Copies, Given, Taken};
pub use fabric::{Channel, Fabric};
pub use gets::{Answer, FETCHES_MAX, GETS_MAX, Gets, Getter, PATIENCE};
pub use log::{Listener, Moment, PrimaryLog, Proof, Turned};
pub use segments::Placed;
pub use table::{Applied, Moved, Table, Unapplied};
