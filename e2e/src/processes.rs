//! A group as child processes of this host.
//!
//! [`group`] starts and stops processes, [`observer`] looks at them from outside, [`app`] appends numbered records through
//! failovers (in a thread of its own: [`background`]), [`checker`] compares the log with them. [`steps`] are what many
//! tests do, [`damage`] spoils files, [`hosts`] can be cut off, [`kv`] starts the example app beside sidecars. [`counters`] is an
//! app that keeps snapshots in a plain log, [`register`] one for pods that only read.
//!
//! [`table_app`] changes a table and knows what each key must have; [`races`] judges what several of them change at once.
//!
//! [`exec`] starts unmodified programs beside sidecars: [`redis`], [`postgres`], and a service on [`sqlite`]. [`exec_client`]
//! knows what they have answered, [`exec_faults`] is what dies around them. For a million writes there are
//! [`writers`], each with a [`client_writes`].

pub mod app;
pub mod background;
pub mod checker;
pub mod client_writes;
pub mod counters;
pub mod damage;
pub mod exec;
pub mod exec_client;
pub mod exec_faults;
pub mod following;
pub mod group;
pub mod hosts;
pub mod http;
pub mod kv;
pub mod observer;
pub mod postgres;
pub mod process;
pub mod races;
pub mod redis;
pub mod register;
pub mod resp;
pub mod sqlite;
pub mod steps;
pub mod table_app;
pub mod writers;
