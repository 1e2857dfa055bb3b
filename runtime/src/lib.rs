//! What the programs of this workspace need around their own work: exit codes, logs, signals, listeners, the HTTP server, metrics.
//!
//! Used by the sidecar, the backup daemon, the operator and the example app. It knows nothing of logs, groups or Kubernetes.

pub mod exit;
pub mod histogram;
pub mod http;
pub mod listener;
pub mod logging;
pub mod metrics;
pub mod process;
