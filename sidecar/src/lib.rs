//! The sidecar and the backup daemon: everything around the protocol core that touches the world.
//!
//! `run` is a primary or a standby: [`run`] wires it, [`path`] is the append path on its own thread, [`control`] moves
//! between the roles, [`store`] is where elections are decided. `backup` is the daemon that lends memory: [`backup`].
//! Both speak the control RPC: [`rpc`] asks, [`http`] and [`tls`] serve and guard. [`fabric`] chooses what moves the bytes,
//! [`preflight`] looks whether RDMA can, [`kubernetes`] is all that knows of the API server. [`commands`] are for people,
//! [`command_line`] has them all.

pub mod access;
pub mod address;
pub mod backup;
pub mod command_line;
pub mod commands;
pub mod control;
pub mod fabric;
pub mod http;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(not(feature = "kubernetes"))]
#[path = "no_kubernetes.rs"]
pub mod kubernetes;
pub mod logging;
pub mod lookup;
pub mod mirror;
pub mod options;
pub mod path;
pub mod preflight;
pub mod rpc;
pub mod run;
pub mod store;
mod thread;
pub mod tls;
