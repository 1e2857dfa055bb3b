//! Tests of the append path, of the backup daemon and of commands: one program, because each program takes long to compile and to link.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a test may fail by panicking, and says why")]

#[allow(dead_code, reason = "unit tests use the rest")]
#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/loop_harness.rs"]
mod loop_harness;
#[path = "../support/mirrored_members.rs"]
mod mirrored_members;

mod allocations;
mod append_socket;
mod backup_daemon;
mod daemon;
mod ending;
mod follow_command;
mod gets;
mod getting;
mod inventories;
mod kind;
mod measures;
mod mirror;
mod reader;
mod ring;
mod table_command;
mod tables;
mod terms;
