//! Tests of the clients: one program, because each program takes long to compile and to link.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[cfg(feature = "async")]
mod asynchronous;
mod blocking;
mod fake;
mod follow;
mod python;
mod table;
