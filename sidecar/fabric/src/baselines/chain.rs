//! `chain`: the sender writes to the first member, whose agent writes on to the second, and so on; the tail's answer is
//! everybody's.
//!
//! In the order in which bytes meet them:
//!
//! - `sender`: opens channels. Those of one chain share its state.
//! - `channel`: a write that several channels post is one message, with one copy of its bytes.
//! - `message`: what goes over a link.
//! - `agent`: a thread of each member for each chain. It writes what is for its member, and sends the rest on.
//! - `receiver`: the control calls, for shared memory. Over TCP they are those of [`tcp`](crate::tcp).
//!
//! Links are those of [`link`](super::link), between any two neighbours alike.
//!
//! # How a chain is made
//!
//! A channel is opened as ever: the receiver accepts the writer and answers with an address and a secret. The first channel's
//! sender connects there itself. For each further one it tells the tail, through the chain, where to connect and with what
//! secret, and the tail becomes the new one's predecessor. So each hop is a connection of the writer at the next member, whose
//! revocation ends it. A channel joins the newest whole chain of its sender that does not have its receiver yet; if there is
//! none it begins one.
//!
//! # Why revocation is a barrier
//!
//! 1. An agent writes a piece under the lending's lock, as with [`tcp`](crate::tcp), and sends it on afterwards. The tail
//!    answers a message when it has written its last byte. So what is answered has been written at every member that it was
//!    for (promise 3c).
//! 2. Revocation ends the writer's lendings at its member and joins the agent: no byte lands there afterwards (3b), and no
//!    answer passes (3a). The agent's end closes both its links, and so ends the chain: nothing completes at any other member
//!    either, although their lendings go on.
//! 3. It waits for nobody's bytes. An agent that waits for room at the next member also watches its own connection, which the
//!    revocation shuts down. Only an agent that is connecting to a new tail may hold it up, for as long as that may take.
//!
//! # What it does not do
//!
//! A chain is never mended. A hop that breaks and a channel that is dropped end all channels of the chain, and the sidecar
//! opens new ones.

mod agent;
mod channel;
mod message;
mod receiver;
mod sender;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;
use tailwind_ring::Sizes;

use crate::error::FabricError;
use crate::message::ChannelAnswer;
use crate::pool::Pool;
use crate::secret::Secret;
use crate::tcp::TcpReceiver;
use crate::tcp::sender::open;

use super::link::{Link, ShmLink, TcpLink};

pub use receiver::ChainReceiver;
pub use sender::ChainSender;

/// How long the next member may take to serve a connection. It listens when its answer arrives.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What carries a chain's messages from one member to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Memory that two processes of this host share.
    Shm,
    /// A connection.
    Tcp,
}

impl Carrier {
    /// Connects to a member, which waits for whoever presents this secret. Blocking, and bounded.
    fn connect(self, address: &str, secret: &Secret) -> io::Result<Box<dyn Link>> {
        match self {
            Carrier::Shm => connect_memory(address, secret),
            Carrier::Tcp => {
                let address: SocketAddr = address.parse().map_err(io::Error::other)?;
                let answer = ChannelAnswer::Tcp { address, secret: secret.clone() };
                Ok(Box::new(TcpLink(open(&answer, address.ip()).map_err(io::Error::other)?)))
            }
        }
    }
}

fn connect_memory(name: &str, secret: &Secret) -> io::Result<Box<dyn Link>> {
    let socket = UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?)?;
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    let digits = secret.digits().ok_or(io::ErrorKind::InvalidData)?;
    io::Write::write_all(&mut &socket, &digits)?;
    let (_, file) = tailwind_ring::receive(&socket, &mut [0], RecvFlags::empty())?;
    let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "the receiver refused the secret");
    let end = tailwind_ring::open_sized(file.ok_or_else(refused)?, Sizes::APPENDS)?;
    socket.set_nonblocking(true)?;
    Ok(Box::new(ShmLink::new(end, socket)))
}

/// The receiving half over TCP. It speaks the messages of [`tcp`](crate::tcp), and connections in the way of a chain.
pub fn chain_tcp_receiver(pool: Arc<Pool>, listener: TcpListener) -> Result<TcpReceiver, FabricError> {
    TcpReceiver::serving(pool, listener, agent::serve_tcp, Duration::ZERO)
}
