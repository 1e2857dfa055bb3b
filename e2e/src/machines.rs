//! A group over virtual machines: [`machine`] boots them, [`fleet`] runs a sidecar and a backup in each.

pub mod fleet;
pub mod machine;
