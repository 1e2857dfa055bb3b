//! End-to-end tests with real processes: starts groups, kills parts of them, and checks what apps saw.
//!
//! Folders by what they run on: [`processes`] of this host, [`machines`] with soft-RoCE, and (behind the feature of that
//! name) a Kubernetes [`cluster`]. Checkers are beside what they check. [`context`] gives each test its turn and its seed,
//! [`workload`] the records, [`logs`] searches what programs have logged. Used by the programs in `bin/` and the tests in
//! `tests/`; `docs/testing.md` says what is tested where.

pub mod certificates;
pub mod cluster;
pub mod context;
pub mod logs;
pub mod machines;
pub mod processes;
pub mod wait;
pub mod workload;
