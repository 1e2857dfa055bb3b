//! Scenarios with real processes: starts groups on this machine, kills parts of them, and checks what apps saw.
//!
//! [`group`] starts and stops processes, [`workload`] appends numbered records through failovers and reads them back.
//! Used by the `quickstart` program and by the tests in `tests/`.

pub mod group;
pub mod workload;
