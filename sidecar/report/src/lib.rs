//! What sidecars and backups say about themselves: a [`report`], their [`readiness`], and their roles.
//!
//! Written by sidecars and backups; read by the operator, and by people's commands. Knows nobody, so that a program
//! that only reads reports needs neither Kubernetes' types nor the protocol.

pub mod readiness;
pub mod report;

use serde::{Deserialize, Serialize};

/// The role of the sidecar that may append.
pub const ROLE_PRIMARY: &str = "primary";
/// The role of a sidecar that would take over.
pub const ROLE_STANDBY: &str = "standby";
/// The role of a sidecar that only reads.
pub const ROLE_READER: &str = "reader";

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Positions {
    /// LSN of the first record that can be read.
    pub first: u64,
    /// LSN of the last record acknowledged.
    pub acked: u64,
}
