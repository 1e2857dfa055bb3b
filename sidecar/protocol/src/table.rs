//! Tables: a group that keeps the last value of each key in its log, instead of plain records. The pure parts.
//!
//! Driven by a primary's log (`tailwind_primary`), which judges, appends and acknowledges; and by the sidecar's control, which
//! folds a recovered log and cleans. The log stays the only truth; all else here is made from it and can be made again. See
//! "Tables" in `docs/protocol.md`.
//!
//! Files, in the order in which data meets them: [`request`] (operations, and whether their conditions hold), [`record`] (the
//! bytes of a put or a delete), [`hash`] and [`place`] (where a key belongs, and where a record is), [`entry`] and [`acked`] (what
//! is acknowledged, in bytes that can be copied), [`index`] (both views of each key) with [`staged`] (what changes them), [`fold`]
//! (the index of a log that is there) and [`warm`] (of one that a standby may lead), [`get`] (the record of a key that is read),
//! [`bounds`], [`moves`] and [`cleaner`] (how a log stays short). Then how others read it: [`changed`] and [`mirror`] (the
//! acknowledged view in members' memory), [`getter`] (one key, out of there).

pub mod acked;
pub mod bounds;
pub mod changed;
pub mod cleaner;
pub mod entry;
pub mod fold;
pub mod get;
pub mod getter;
pub mod hash;
pub mod index;
mod lines;
pub mod mirror;
pub mod moves;
pub mod place;
pub mod record;
pub mod request;
pub mod staged;
pub mod warm;
