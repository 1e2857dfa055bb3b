//! The sending half: opens channels, and takes grants as they are.
//!
//! Called by the sidecar's control code, off the append path; makes a `TcpChannel` for it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::buffer::{AppendBuffer, BufferPool, SharedBuffer};
use crate::contract::{Channel, Opening, RemoteBuffer, Sender};
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer};
use crate::secret::Secret;

use super::channel::TcpChannel;
use super::wire::{READY, Side, hello};

/// Longest time from the first packet to the receiver's first answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes channels to receivers anywhere on the network.
#[derive(Debug, Default)]
pub struct TcpSender {
    buffers: BufferPool,
}

/// A channel that is being opened: the receiver chooses the address and the secret.
#[derive(Debug)]
struct TcpOpening;

impl Sender for TcpSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        self.buffers.allocate(length).map_err(FabricError::io(format!("allocate a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        Ok(Box::new(TcpOpening))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        let Grant::Tcp { key, length } = *grant else { return Err(FabricError::mismatch(self.kind(), grant.kind())) };
        Ok(RemoteBuffer { address: 0, key, length, memory: None })
    }
}

impl Opening for TcpOpening {
    fn offer(&self) -> Offer {
        Offer::Tcp
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        Ok(Box::new(TcpChannel::new(open(answer, peer)?)))
    }
}

/// Opens the data connection that the receiver has answered with; non-blocking from then on.
pub(crate) fn open(answer: &ChannelAnswer, peer: IpAddr) -> Result<TcpStream, FabricError> {
    let ChannelAnswer::Tcp { address, secret } = answer else {
        return Err(FabricError::mismatch(FabricKind::Tcp, answer.kind()));
    };
    let host = if address.ip().is_unspecified() { peer } else { address.ip() };
    let address = SocketAddr::new(host, address.port());
    connect(address, secret, Side::Writing).map_err(FabricError::io(format!("open a data connection to {address}")))
}

/// Connects, presents the secret and waits until the receiver is ready; blocking, and bounded. The stream does not block.
pub(super) fn connect(address: SocketAddr, secret: &Secret, side: Side) -> io::Result<TcpStream> {
    let invalid = |message| io::Error::new(io::ErrorKind::InvalidData, message);
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let secret = secret.digits().ok_or_else(|| invalid("the secret has the wrong length"))?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    super::tune(&stream)?;
    // An empty socket buffer takes a hello at once.
    stream.write_all(&hello(side, &secret))?;

    let mut ready = [1; READY.len()];
    let mut filled = 0;
    while filled < ready.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut ready[filled..]) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the receiver refused the secret")),
            Ok(count) => filled += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    if ready != READY {
        return Err(invalid("the peer is not a receiver of tailwind data"));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}
