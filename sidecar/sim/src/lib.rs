//! A simulator that tries to break the protocol: whole groups in one thread and virtual time, moved by one seed.
//!
//! The production machines of `tailwind-protocol` run unchanged; everything around them is made here and misbehaves as
//! hardware, kernels and networks do. Checkers that share no code with the machines judge every step. Run by `./check`
//! and by `cargo run -p tailwind-sim`; see `docs/testing.md`.

mod check;
pub mod model;
pub mod plan;
pub mod random;
pub mod runner;
pub mod scripted;
pub mod tally;
mod trace;
pub mod world;
