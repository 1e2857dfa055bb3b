//! An in-memory key-value store that speaks RESP and keeps its writes in a Tailwind log: the example app.
//!
//! A command's way: [`server`] takes the connection, [`connection`] reads commands ([`resp`]) and understands them
//! ([`command`]), [`server_state`] knows where they go. On the primary that is the one task in [`turns`], for which [`term`] decides:
//! a write becomes a [`record`] of the log, and when that is acknowledged it is applied to the [`store`] and answered. A
//! standby holds nothing; when its turn comes, [`replay`] makes the store from the log.

pub mod command;
pub mod connection;
pub mod glob;
pub mod http;
pub mod limits;
pub mod options;
pub mod record;
pub mod replay;
pub mod resp;
pub mod run;
pub mod server;
pub mod server_state;
pub mod sidecar;
pub mod standby;
pub mod stats;
pub mod store;
pub mod term;
pub mod turns;
