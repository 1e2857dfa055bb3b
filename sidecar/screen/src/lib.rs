//! A group on a terminal: its members and how far they are, the log, rates and times, and what happened when.
//!
//! Used by `tailwind-sidecar top` and by `./quickstart`. [`poll`] asks the sidecars' sockets; [`model`] keeps what they reported and
//! derives what happened from the [`changes`] between two rounds; [`draw`] draws that on any ratatui frame; [`terminal`] is the
//! terminal, which is left as it was found however the process ends; [`show`] is the loop around these.

pub mod changes;
pub mod draw;
pub mod model;
pub mod poll;
pub mod show;
pub mod terminal;
