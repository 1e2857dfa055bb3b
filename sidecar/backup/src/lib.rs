//! What a backup does at its disk and in its memory: the shells around [`tailwind_protocol::backup`], without threads,
//! network or clock.
//!
//! Driven by the backup daemon, which adds threads and the control RPC, and by the simulator, which adds virtual time and
//! faults. In the order in which a start meets them: [`files`] and [`memory`] (the two narrow traits that a host
//! implements), [`start()`] (who am I, what is still here: [`disk`], [`promise`], [`ledger`], [`flushed`], [`table`]),
//! [`daemon`] (carries out what the machine decides, one output after the other), [`flusher`] (brings segments to disk, one
//! job after the other), [`fetch()`] (reads them for others). What goes into quarantine has the names of [`quarantine`].
//!
//! A process may die at every call of those traits. Nothing here relies on its own end.

mod blocks;
pub mod daemon;
pub mod disk;
mod fetch;
pub mod files;
pub mod flushed;
pub mod flusher;
pub mod ledger;
pub mod memory;
mod page_buffer;
pub mod promise;
pub mod quarantine;
pub mod start;
pub mod table;

pub use daemon::{Daemon, DaemonCounters, OutputResult};
pub use disk::{Disk, FileName, Listing, ReadError};
pub use fetch::{Unchecked, fetch, is_rot, scrub};
pub use files::{File, Folder, OsFolder, is_full};
pub use flushed::Flushed;
pub use flusher::{Flusher, Job};
pub use ledger::Ledger;
pub use memory::{Buffers, Lender, Mapped, Memory, Revocation};
pub use promise::{MemberState, PromiseError, PromiseFile};
pub use quarantine::{QuarantineFile, QuarantineName};
pub use start::{BackupConfig, Started, start};
pub use table::{Owner, SlotTable, TableError};
