//! Tests of the protocol's bytes, bounds and machines: one program, because each program takes long to compile and to link.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

#[macro_use]
#[path = "../support/scripts.rs"]
mod scripts;

mod apply_frames;
mod backup_bounds;
mod backup_machine;
mod board;
mod damaged_backup;
mod damaged_members;
mod flush_bound;
mod follower;
mod fuzz_targets;
mod get_frames;
mod group;
mod inventories;
mod limits;
mod log_bytes;
mod logs;
mod mirror_line;
#[cfg(feature = "planted-bugs")]
mod planted_log_bytes;
mod primary_board;
mod primary_lanes;
mod primary_machine;
mod promotion_machine;
mod pull;
mod recovery;
mod residents;
mod scan_evidence;
mod scan_properties;
mod socket_frames;
mod standby;
mod table;
