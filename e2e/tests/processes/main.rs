//! Groups as processes of this host: what they do when processes die, files are damaged, and input is wrong.
//!
//! One module for each topic; `docs/testing.md` says what each must show. One program, so that it is linked once.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod access;
mod addresses;
mod bad_input;
mod bad_options;
mod clients;
mod commands;
mod damaged_reads;
mod deposed;
mod disk;
mod evidence;
mod evidence_fixture;
mod examples;
mod follows;
mod gets;
mod killed_tables;
mod kills;
mod kv;
mod lease;
mod messages;
mod mirrors;
mod pods;
mod postgres;
mod pulls;
mod readme;
mod redis;
mod register;
mod registry;
mod residents;
mod ring;
mod silent_connections;
mod snapshots;
mod sqlite;
mod status;
mod tables;
mod tables_example;
