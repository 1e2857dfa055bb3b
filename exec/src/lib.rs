//! Runs an unmodified program, and makes its files survive the death of its host: each `fsync` returns only when every
//! backup has what was written. See `docs/exec.md`.

pub mod appends;
pub mod blocks;
pub mod call;
pub mod command_line;
pub mod compare;
pub mod container;
pub mod descriptors;
pub mod directory;
pub mod doctor;
pub mod dry_run;
mod ground;
pub mod image;
pub mod lease;
pub mod life;
pub mod logging;
mod no_log;
mod own_folder;
pub mod planted;
pub mod program;
pub mod ranges;
pub mod readiness;
pub mod record;
pub mod supervisor;
pub mod tally;
pub mod trap;
pub mod volume;
