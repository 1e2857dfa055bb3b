//! Scenarios with real processes: starts groups on this machine, kills parts of them, and checks what apps saw.
//!
//! [`group`] starts and stops processes, [`view`] looks at them from outside, [`workload`] appends numbered records through
//! failovers (in a thread of its own: [`background`]), [`checker`] compares the log with them. [`scene`] gives each test its
//! turn and its seed, [`steps`] are what many tests do. [`damage`] spoils files. [`machine`] boots virtual machines with
//! soft-RoCE, [`fleet`] a group over several of them; [`kv`] starts the example app beside sidecars. `cluster` (behind the
//! feature of that name) drives a Kubernetes cluster, where loaders report to a [`ledger`]. Used by the `quickstart` program
//! and by the tests in `tests/`; `docs/testing.md` says what is tested where.

pub mod background;
pub mod checker;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod damage;
pub mod fleet;
pub mod group;
pub mod http;
pub mod kv;
pub mod ledger;
pub mod machine;
pub mod process;
pub mod scene;
pub mod steps;
pub mod view;
pub mod workload;
