//! The operator of Tailwind: keeps every `ReplicaGroup` as its spec says.
//!
//! One reconcile, read top to bottom: [`controller`] is woken by a watch, [`observe`] reads what is there, [`plan`] decides
//! (pure), [`apply`] does it. Beside it the [`webhook`] gives app pods their sidecar, and [`lease`] lets one replica of
//! several write.

mod api_requests;
mod apply;
mod authority;
mod cache;
mod capacity;
pub mod command_line;
pub mod commands;
mod context;
mod controller;
mod digest;
mod error;
mod events;
pub mod health;
pub mod installation;
mod last_look;
mod lease;
pub mod metrics;
pub mod objects;
mod observe;
pub mod observed;
pub mod options;
pub mod permissions;
pub mod plan;
pub mod planted;
pub mod platform;
mod probe;
pub mod quantity;
mod rollout_turns;
pub mod run;
mod secrets;
mod server_clock;
pub mod server_version;
#[cfg(test)]
mod test_api;
mod tolerations;
mod wake;
pub mod webhook;
mod x509;
