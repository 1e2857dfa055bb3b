//! The sending half: waits for the receiver's memory, or connects to it, and makes a channel.
//!
//! Called by the sidecar's control code, off the append path.

use std::net::IpAddr;

use crate::buffer::{AppendBuffer, BufferPool, SharedBuffer};
use crate::contract::{Channel, Opening, RemoteBuffer, Sender};
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer};
use crate::tcp::sender::open;

use super::Baseline;
use super::channel::MessageChannel;
use super::link::TcpLink;
use super::meeting::Meeting;

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
    meeting: Meeting,
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
        let meeting = Meeting::listen().map_err(FabricError::io("listen for the receiver's memory"))?;
        Ok(Box::new(MessageOpening { baseline: self.baseline, meeting }))
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
        self.meeting.offer(self.baseline)
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let link = self.meeting.connect(self.baseline, answer, self.baseline.sizes())?;
        Ok(Box::new(MessageChannel::new(link, self.baseline)))
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
