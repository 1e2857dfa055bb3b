//! Tailwind's core: log bytes, the scan, messages and the state machines that decide.
//!
//! No clock, socket, disk, thread or `unsafe`: inputs in, outputs out, time as an argument. The sidecar and the backup
//! daemon carry the outputs out; a simulator can drive the very same code.

pub mod backup;
pub mod board;
pub mod config;
pub mod follower;
pub mod history;
pub mod ids;
pub mod inventory;
pub mod layout;
pub mod planted;
pub mod primary;
pub mod promotion;
pub mod pull;
pub mod recovery;
pub mod rpc;
pub mod scan;
pub mod segment;
pub mod socket;
pub mod standby;
pub mod table;
