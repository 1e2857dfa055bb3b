//! A group as child processes of this host.
//!
//! [`group`] starts and stops processes, [`observer`] looks at them from outside, [`app`] appends numbered records through
//! failovers (in a thread of its own: [`background`]), [`checker`] compares the log with them. [`steps`] are what many
//! tests do, [`damage`] spoils files, [`kv`] starts the example app beside sidecars,
//! [`exec`] unmodified programs; [`redis`] is one, with clients that know what it has answered.

pub mod app;
pub mod background;
pub mod checker;
pub mod damage;
pub mod exec;
pub mod following;
pub mod group;
pub mod http;
pub mod kv;
pub mod observer;
pub mod process;
pub mod redis;
pub mod resp;
pub mod steps;
