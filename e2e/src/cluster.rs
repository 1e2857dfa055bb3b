//! A group in a Kubernetes cluster: one on this machine that tests may break, or any other by its `KUBECONFIG`.
//!
//! `kubernetes` drives the cluster. `namespace` gives each test a namespace, an oracle and loaders, `container_logs` keeps what
//! containers write. `bare` is a group without an operator, `operated` one with the chart's; `reports` asks programs how they
//! are. The [`ack_oracle`] checks what loaders report; it is part of the program `loader`, and so needs no cluster.

pub mod ack_oracle;
#[cfg(feature = "cluster")]
pub mod bare;
#[cfg(feature = "cluster")]
mod container_logs;
#[cfg(feature = "cluster")]
pub mod kubernetes;
#[cfg(feature = "cluster")]
pub mod namespace;
#[cfg(feature = "cluster")]
pub mod operated;
#[cfg(feature = "cluster")]
pub mod reports;
#[cfg(feature = "cluster")]
mod storage;
