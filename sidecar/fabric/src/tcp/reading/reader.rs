//! The reader's half: opens read channels, and takes grants as they are.

use std::net::{IpAddr, SocketAddr};

use super::channel::TcpReadChannel;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Offer, ReadGrant};
use crate::reading::{ReadChannel, ReadOpening, Readable, Reader};
use crate::tcp::sender::connect;
use crate::tcp::wire::Side;

/// Makes read channels to receivers anywhere on the network.
#[derive(Debug, Default)]
pub struct TcpReader;

/// A read channel that is being opened: the receiver chooses the address and the secret.
#[derive(Debug)]
struct TcpReadOpening {
    landing: u32,
}

impl Reader for TcpReader {
    fn kind(&self) -> FabricKind {
        FabricKind::Tcp
    }

    fn begin(&self, landing: u32) -> Result<Box<dyn ReadOpening>, FabricError> {
        Ok(Box::new(TcpReadOpening { landing }))
    }

    fn attach(&self, grant: &ReadGrant) -> Result<Readable, FabricError> {
        let ReadGrant::Tcp { key, length } = *grant else {
            return Err(FabricError::mismatch(self.kind(), grant.kind()));
        };
        Ok(Readable { address: 0, key, length, file: None })
    }
}

impl ReadOpening for TcpReadOpening {
    fn offer(&self) -> Offer {
        Offer::Tcp
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn ReadChannel>, FabricError> {
        let ChannelAnswer::Tcp { address, secret } = answer else {
            return Err(FabricError::mismatch(FabricKind::Tcp, answer.kind()));
        };
        let host = if address.ip().is_unspecified() { peer } else { address.ip() };
        let address = SocketAddr::new(host, address.port());
        let stream = connect(address, secret, Side::Reading);
        let stream = stream.map_err(FabricError::io(format!("open a read connection to {address}")))?;
        Ok(Box::new(TcpReadChannel::new(stream, self.landing)))
    }
}
