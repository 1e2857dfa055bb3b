//! The fabric for any network: writes travel over TCP and the receiver's CPU copies them into the slot.
//!
//! The backup daemon makes a [`TcpReceiver`], the sidecar a [`TcpSender`]. In the order in which bytes meet them:
//!
//! - `sender` and its `channel`: non-blocking, driven by the append path.
//! - `wire`: the bytes of hellos, frames and acknowledgements.
//! - `acceptor`: accepts connections and drops those that do not present a secret.
//! - `connection_reader`: one thread for each channel; reads frames and writes them into slots.
//! - `registry`: secrets, lendings and connections; what the control calls share with the two above.
//! - `receiver`: the control calls.
//! - `secrets`: what connections are admitted by.
//! - `reading`: the read side, from the reader's channel to the shared slot.
//!
//! # Why revocation is a barrier
//!
//! 1. A connection reader reaches a slot's memory only through its lending, and holds the lending's lock while it copies.
//!    It never waits for the network with that lock held.
//! 2. Revocation takes the memory out of every lending of a revoked writer, under the same lock. So no byte lands
//!    afterwards (promise 3b), and it waits for no sender: at most for one copy of what has already arrived.
//! 3. A connection reader counts a write only after its last byte has been copied under the lock. So every write that was
//!    acknowledged is in the memory (3c), and later ones are refused, empty ones too (3a).
//! 4. Before that, revocation removes the writer's secrets, under the lock under which the acceptor spends them. So a
//!    connection in the middle of its hello is either refused or already registered; and it is shut down like all
//!    others, and its thread joined: the sender learns at once, and nothing of a revoked writer runs on.
//! 5. The writers of an earlier process life died with that process, because the receiver's own threads did the writing
//!    (promise 7).

mod acceptor;
mod channel;
mod connection_reader;
pub(crate) mod reading;
mod receiver;
pub(crate) mod registry;
mod secrets;
pub(crate) mod sender;
pub(crate) mod wire;

pub use reading::TcpReader;
pub use receiver::TcpReceiver;
pub use sender::TcpSender;

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// Bytes that an answering thread copies at a time, with the lock of the share held: some 10 µs.
pub const PIECE_SIZE: usize = 64 * 1024;
/// Idle time after which the kernel starts to ask whether the other host still lives, and the time between two such
/// questions.
const KEEPALIVE: Duration = Duration::from_secs(2);
/// Questions without an answer before the connection counts as lost: idle, that is 2 s + 3 × 2 s = 8 s.
const KEEPALIVE_PROBES: u32 = 3;
/// The same for bytes that were sent and are not acknowledged by the other kernel. Heartbeats of the control RPC find a
/// dead host in a fraction of this; here it only bounds how long a dead connection holds a thread and a socket.
const UNACKNOWLEDGED: Duration = Duration::from_secs(8);

/// What both ends want of their socket: no waiting for more bytes to send, and an end when the other host is dead.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED.as_millis() as u32)?;
    Ok(())
}
