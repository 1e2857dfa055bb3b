//! The sending half: waits for the receiver's memory, or connects to it, and makes a channel.
//!
//! Called by the sidecar's control code, off the append path.

use std::io;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::RecvFlags;

use crate::buffer::{AppendBuffer, BufferPool, SharedBuffer};
use crate::contract::{Channel, Opening, RemoteBuffer, Sender};
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer};
use crate::secret::{SECRET_SIZE, Secret};
use crate::tcp::sender::open;

use super::Baseline;
use super::channel::MessageChannel;
use super::link::{ShmLink, TcpLink, next_connection};

/// How long the receiver's connection may take. It has been made when the answer to the offer arrives.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes channels to receivers on this host.
#[derive(Debug)]
pub struct MessageSender {
    baseline: Baseline,
    buffers: BufferPool,
}

/// Makes channels of `rpc` to receivers anywhere on the network.
#[derive(Debug)]
pub struct TcpMessageSender {
    baseline: Baseline,
    buffers: BufferPool,
}

/// A channel that is being opened.
#[derive(Debug)]
struct MessageOpening {
    baseline: Baseline,
    name: String,
    listener: UnixListener,
}

/// The same over TCP: the receiver chooses the address and the secret.
#[derive(Debug)]
struct TcpMessageOpening(Baseline);

impl MessageSender {
    /// For receivers of the same baseline.
    pub fn new(baseline: Baseline) -> MessageSender {
        MessageSender { baseline, buffers: BufferPool::default() }
    }
}

impl TcpMessageSender {
    /// For receivers that [`tcp_receiver`](super::tcp_receiver) has made.
    ///
    /// # Panics
    /// With [`Baseline::Ring`]: what a socket has taken is not in the receiver's memory.
    pub fn new(baseline: Baseline) -> TcpMessageSender {
        assert!(baseline != Baseline::Ring, "over TCP only an answer says that bytes have arrived");
        TcpMessageSender { baseline, buffers: BufferPool::default() }
    }
}

impl Sender for MessageSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Baseline(self.baseline)
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        self.buffers.allocate(length).map_err(FabricError::io(format!("allocate a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        let listen = || {
            let random = Secret::random()?.digits().ok_or(io::ErrorKind::InvalidData)?;
            let name = format!("tailwind-{}", String::from_utf8_lossy(&random));
            let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
            listener.set_nonblocking(true)?;
            Ok(Box::new(MessageOpening { baseline: self.baseline, name, listener }))
        };
        Ok(listen().map_err(FabricError::io("listen for the receiver's memory"))?)
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        match *grant {
            Grant::Baseline { baseline, key, length } if baseline == self.baseline => {
                Ok(RemoteBuffer { address: 0, key, length, memory: None })
            }
            _ => Err(FabricError::mismatch(self.kind(), grant.kind())),
        }
    }
}

impl Opening for MessageOpening {
    fn offer(&self) -> Offer {
        Offer::Baseline { baseline: self.baseline, socket: self.name.clone() }
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let secret = match answer {
            ChannelAnswer::Baseline { baseline, secret } if *baseline == self.baseline => secret,
            _ => return Err(FabricError::mismatch(FabricKind::Baseline(self.baseline), answer.kind())),
        };
        let link = self.receive(secret).map_err(FabricError::io("receive the receiver's memory"))?;
        Ok(Box::new(MessageChannel::new(link, self.baseline)))
    }
}

impl MessageOpening {
    /// Of the processes that connect, the one that presents the secret is the receiver. Blocking, and bounded.
    fn receive(&self, secret: &Secret) -> io::Result<ShmLink> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            let Some((socket, left)) = next_connection(&self.listener, deadline)? else { continue };
            if let Some(link) = self.greet(socket, secret, left)? {
                return Ok(link);
            }
        }
    }

    /// The link, if it is the receiver.
    fn greet(&self, socket: UnixStream, secret: &Secret, longest: Duration) -> io::Result<Option<ShmLink>> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(longest))?;
        let mut presented = [0; SECRET_SIZE];
        // Sent in one piece, and with it the file.
        let (count, file) = retry_on_intr(|| tailwind_ring::receive(&socket, &mut presented, RecvFlags::empty()))?;
        match file {
            Some(file) if count == SECRET_SIZE && secret.matches(&presented) => {
                let end = tailwind_ring::open_sized(file, self.baseline.sizes())?;
                socket.set_nonblocking(true)?;
                Ok(Some(ShmLink::new(end, socket)))
            }
            _ => Ok(None),
        }
    }
}

impl Sender for TcpMessageSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        self.buffers.allocate(length).map_err(FabricError::io(format!("allocate a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        Ok(Box::new(TcpMessageOpening(self.baseline)))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        let Grant::Tcp { key, length } = *grant else { return Err(FabricError::mismatch(self.kind(), grant.kind())) };
        Ok(RemoteBuffer { address: 0, key, length, memory: None })
    }
}

impl Opening for TcpMessageOpening {
    fn offer(&self) -> Offer {
        Offer::Tcp
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        Ok(Box::new(MessageChannel::new(TcpLink(open(answer, peer)?), self.0)))
    }
}
