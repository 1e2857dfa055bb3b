//! The fabric of RDMA network cards: one-sided writes on reliable-connected queue pairs, by libibverbs.
//!
//! The backup daemon makes a [`VerbsReceiver`], the sidecar a [`VerbsSender`], both over a [`SelectedPort`]. From the outside in:
//!
//! - `report` and `select`: what devices the host has, and which of them to use. `retry`: how long a write is repeated.
//!   These are in every build, so that options mean the same everywhere; the rest needs the feature `verbs`.
//! - `device`, `port`, `memory`, `queue`: libibverbs' objects, each destroyed once and in order.
//! - `events`: what a device reports outside of any work request.
//! - `sender` and its `channel`: staged work requests, one doorbell and one signalled completion for each batch.
//! - `receiver`: a protection domain for each writer, a registration for each lending. `writer_pairs`: their queue pairs.
//! - `reading`: the read side, with rights of its own.
//! - `measure`: what the preflight measures.
//!
//! # Why revocation is a barrier
//!
//! 1. A writer's queue pairs and registrations are in a protection domain of its own, and each lending has new `rkey`s. A work
//!    request needs both: it arrives on a queue pair and names a key of the same domain.
//! 2. Revocation takes the write right from each queue pair of the writer, which a living sender notices at once (the card
//!    answers with a NAK, `IBV_WC_REM_INV_REQ_ERR`). This is courtesy: the proof does not need it.
//! 3. It moves each queue pair to ERROR and destroys it. `ibv_destroy_qp(3)` returns when the card has let go of the
//!    queue pair: no packet for it is accepted afterwards, even one that is still on its way (promise 3b), and none is
//!    acknowledged (3a).
//! 4. Then it deregisters the writer's lendings. `ibv_dereg_mr(3)` returns when the card no longer uses their
//!    translations, and the kernel unpins the pages behind it: what the card had accepted is in memory (3c). Where a side slot of
//!    the writer is shared, that registration goes, too: a fence takes two of these calls for each part of a mirror that is read.
//! 5. A queue pair that is being connected, on another thread, is not among those of step 3: it may be able to receive for a
//!    while longer. No byte lands by it, because its domain has no registration left and gets none. An empty write names no
//!    key, so it could complete; but nobody can address it. Its number and its first packet number leave the process only
//!    after it has been taken in, under the lock that the revocation takes, and then it is not taken in any more.
//! 6. Each command to the device is synchronous and waits for no sender. If one fails, [`Receiver::revoke_below`]
//!    reports it and the daemon ends, which has the kernel destroy all of them.
//! 7. A later connection between the same queue-pair numbers starts at a random packet number (24 bits), so that stray
//!    packets of an earlier one fall outside its window.
//! 8. The kernel destroys what a dead process had before that process is gone, and [`Pool`] waits for the process
//!    that had it before (promise 7).
//!
//! [`Receiver::revoke_below`]: crate::Receiver::revoke_below
//! [`Pool`]: crate::Pool
#![allow(unsafe_code, reason = "libibverbs is C; each call is in a safe wrapper with its argument")]

#[cfg(feature = "verbs")]
mod channel;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod events;
#[cfg(feature = "verbs")]
mod measure;
#[cfg(feature = "verbs")]
mod memory;
#[cfg(feature = "verbs")]
mod port;
#[cfg(feature = "verbs")]
mod queue;
#[cfg(feature = "verbs")]
mod reading;
#[cfg(feature = "verbs")]
mod receiver;
mod report;
mod retry;
mod select;
#[cfg(feature = "verbs")]
mod sender;
#[cfg(feature = "verbs")]
mod writer_pairs;

#[cfg(feature = "verbs")]
use ibverbs_sys as ffi;

#[cfg(feature = "verbs")]
pub use device::list_devices;
#[cfg(feature = "verbs")]
pub use measure::{Measurements, measure};
#[cfg(feature = "verbs")]
pub use reading::VerbsReader;
#[cfg(feature = "verbs")]
pub use receiver::VerbsReceiver;
pub use report::{DeviceReport, GidKind, GidReport, LinkLayer, PortReport};
pub use retry::{InvalidRetryPolicy, RetryPolicy};
pub use select::{DeviceSelector, SelectError, SelectedPort, select};
#[cfg(feature = "verbs")]
pub use sender::VerbsSender;

/// How packets are marked and repeated; both ends may differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// How long a write is repeated.
    pub retry: RetryPolicy,
    /// The IP header's traffic class (DSCP and ECN bits) on RoCE, as the switches' lossless class wants it.
    pub traffic_class: u8,
    /// InfiniBand's service level, or the priority on RoCE: 0 to 15.
    pub service_level: u8,
}

/// A verbs call that returns 0 or an error number.
#[cfg(feature = "verbs")]
fn check(returned: i32) -> std::io::Result<()> {
    match returned {
        0 => Ok(()),
        // Some calls return -1 and set errno.
        -1 => Err(std::io::Error::last_os_error()),
        number => Err(std::io::Error::from_raw_os_error(number)),
    }
}
