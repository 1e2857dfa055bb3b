//! Tests of the fabrics: one program, because each program takes long to compile and to link.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod baselines_do_not_ship;
mod contract;
mod grants;
mod pool;
mod shm_processes;
mod suite;
mod tcp;
#[cfg(feature = "verbs")]
mod verbs;
