//! The operator of Tailwind: keeps every `ReplicaGroup` as it is asked to be.
//!
//! One reconcile, read top to bottom: [`controller`] is woken by a watch, [`observe`] reads what is there, [`plan`] decides
//! (pure), [`apply`] does it. Beside it the [`webhook`] gives app pods their sidecar, and [`lease`] lets one replica of
//! several write.

pub mod apply;
pub mod authority;
pub mod capacity;
pub mod commands;
pub mod context;
pub mod controller;
pub mod digest;
pub mod error;
pub mod events;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod observe;
pub mod observed;
pub mod options;
pub mod permissions;
pub mod plan;
pub mod probe;
pub mod quantity;
pub mod run;
pub mod secrets;
pub mod server_version;
pub mod webhook;
pub mod x509;
