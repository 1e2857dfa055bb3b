//! What sidecars and backups say about themselves: a [`report`], their [`readiness`], and their roles.
//!
//! [`report`] is the page and what a backup says; [`sidecar`] is what a sidecar says of its group, with its [`table`] if it has
//! one, and ends in a [`verdict`]; [`rows`] lists those who take part, for people; [`peer`] is what a standby or a reader tells its primary;
//! [`memory`] says how much of it a backup needs.
//!
//! Written by sidecars and backups; read by the operator, and by people's commands. Depends on no other crate of the workspace,
//! so that a program that only reads reports needs neither Kubernetes' types nor the protocol.

pub mod memory;
pub mod peer;
pub mod readiness;
pub mod report;
pub mod rows;
pub mod sidecar;
pub mod table;
pub mod verdict;

use serde::{Deserialize, Serialize};

/// The role of the sidecar that may append.
pub const ROLE_PRIMARY: &str = "primary";
/// The role of a sidecar that would take over.
pub const ROLE_STANDBY: &str = "standby";
/// The role of a sidecar that is putting the log together, to lead it.
pub const ROLE_RECOVERING: &str = "recovering";
/// The role of a sidecar that only reads.
pub const ROLE_READER: &str = "reader";

/// How far a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Positions {
    /// LSN of the first record that can be read.
    pub first: u64,
    /// LSN of the last record acknowledged.
    pub acked: u64,
}
