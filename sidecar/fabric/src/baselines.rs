//! Two-sided replication under the contract of every fabric, for `./bench` to compare one-sided writes with.
//!
//! Everything above the fabric is the product's own. What differs is what puts the bytes into the slots: here the receiver's
//! processor does, told by messages. `docs/decisions/0040-two-sided-baselines.md` says which systems they stand for, why the
//! comparison is fair, and why they never ship. In the order in which bytes meet them:
//!
//! - `choice`: which of them a program has been told to run.
//! - `sender` and its `channel`: non-blocking, driven by the append path.
//! - `link`: what carries the bytes, shared memory or TCP; `meeting`: how its two ends find each other.
//! - `rpc`: a thread receives messages and hands them to a worker, which copies and answers (RAMCloud).
//! - `ring`: a thread polls a log in the receiver's memory and copies what it finds there (HydraDB).
//! - `receiver`: the control calls, for shared memory. Over TCP they are those of [`tcp`](crate::tcp).
//! - `asking`, `lookup` and `answering`: lookups over shared memory, and a thread for each reader that answers them.
//!
//! # Why revocation is a barrier
//!
//! With `rpc` a write completes when the worker has answered it, and it answers what it has copied under the lending's lock:
//! the proof is that of [`tcp`](crate::tcp).
//!
//! With `ring` a write completes when it is in the log, before the receiver has looked at it:
//!
//! 1. The sender publishes the write's bytes, passes a SeqCst fence, and counts the write if the log is not *closed*.
//!    Revocation marks the log as closed, passes such a fence, and applies what is published.
//! 2. If the sender's fence comes first, the revocation applies the write (promise 3c). If it comes second, the sender finds
//!    the log closed and does not count the write (3a).
//! 3. What is published at that time is at most one log full of bytes. The revocation applies it itself, under the lock of the
//!    polling thread, and waits for nobody (3).
//! 4. Then it ends the writer's lendings, as with `rpc`: no byte lands afterwards (3b).
//!
//! The end of a lending applies what is published too, so that all that has completed is readable.
//!
//! # What `ring` does not promise
//!
//! Completed writes that the receiver has not applied are in its process's memory and nowhere else at that backup. If the
//! process is killed they are gone, where the other fabrics lose nothing (promise 7 holds after an orderly end only). The
//! sender learns of the death when it next looks at the socket. This is a property of the design, not of this implementation.

mod answering;
mod asking;
mod channel;
mod choice;
mod frames;
mod link;
mod lookup;
mod meeting;
mod receiver;
mod ring;
mod rpc;
mod sender;

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::FabricError;
use crate::pool::Pool;
use crate::tcp::TcpReceiver;

pub use asking::MessageReader;
pub use choice::BaselineChoice;
pub use receiver::MessageReceiver;
pub use sender::{MessageSender, TcpMessageSender};

/// When a write counts as completed, and how many are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Baseline {
    /// When it is answered; one at a time.
    Rpc,
    /// When it is answered; several at a time.
    RpcPipelined,
    /// When it is in the receiver's log. Over shared memory only: see the decision.
    Ring,
}

/// The receiving half of `rpc` over TCP. It speaks the messages and the bytes of [`tcp`](crate::tcp).
pub fn tcp_receiver(pool: Arc<Pool>, listener: TcpListener) -> Result<TcpReceiver, FabricError> {
    TcpReceiver::serving(pool, listener, rpc::serve_tcp, Duration::ZERO)
}

/// How long a thread of the receiver looks for work before it sleeps: as long as a sidecar does by default.
const SPIN: Duration = Duration::from_micros(50);

/// Checks for a while whether it is so, and yields the processor in between: with more threads than processors, spinning would
/// keep away the very thread that is waited for.
fn spin_until(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if start.elapsed() >= SPIN {
            return false;
        }
        thread::yield_now();
    }
}
