//! The sending half: makes a chain of the receivers to which channels are opened.
//!
//! Called by the sidecar's control code, off the append path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::buffer::{AppendBuffer, BufferPool, SharedBuffer};
use crate::contract::{Channel, Opening, RemoteBuffer, Sender};
use crate::error::{ChannelError, FabricError};
use crate::message::{ChannelAnswer, FabricKind, Grant, Offer};
use crate::secret::Secret;

use super::channel::{Chain, ChainChannel, lock};
use super::message::EXTENSION_MAX;
use super::{CONNECT_TIMEOUT, Carrier};

/// Pause between two looks for the answer to an extension.
const LOOK: Duration = Duration::from_micros(100);

/// Makes channels of chains.
#[derive(Debug)]
pub struct ChainSender {
    carrier: Carrier,
    buffers: BufferPool,
    chains: Arc<Chains>,
}

/// Those that have a channel, the newest last.
type Chains = Mutex<Vec<Weak<Mutex<Chain>>>>;

/// A channel that is being opened.
#[derive(Debug)]
struct ChainOpening {
    carrier: Carrier,
    chains: Arc<Chains>,
}

impl Carrier {
    fn kind(self) -> FabricKind {
        match self {
            Carrier::Shm => FabricKind::Chain,
            Carrier::Tcp => FabricKind::Tcp,
        }
    }

    /// Who has answered, where it listens, and what to present there.
    fn place(self, answer: &ChannelAnswer, peer: IpAddr) -> Result<(String, String, Secret), FabricError> {
        match (self, answer) {
            (Carrier::Shm, ChannelAnswer::Chain { receiver, socket, secret }) => {
                Ok((format!("{receiver:x}"), socket.clone(), secret.clone()))
            }
            (Carrier::Tcp, ChannelAnswer::Tcp { address, secret }) => {
                let host = if address.ip().is_unspecified() { peer } else { address.ip() };
                let address = SocketAddr::new(host, address.port()).to_string();
                Ok((address.clone(), address, secret.clone()))
            }
            _ => Err(FabricError::mismatch(self.kind(), answer.kind())),
        }
    }
}

impl ChainSender {
    /// For receivers that are reached in the same way.
    pub fn new(carrier: Carrier) -> ChainSender {
        ChainSender { carrier, buffers: BufferPool::default(), chains: Arc::default() }
    }
}

impl Sender for ChainSender {
    fn kind(&self) -> FabricKind {
        self.carrier.kind()
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        self.buffers.allocate(length).map_err(FabricError::io(format!("allocate a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        Ok(Box::new(ChainOpening { carrier: self.carrier, chains: Arc::clone(&self.chains) }))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        match (self.carrier, grant) {
            (Carrier::Shm, Grant::Chain { key, length }) | (Carrier::Tcp, Grant::Tcp { key, length }) => {
                Ok(RemoteBuffer { address: 0, key: *key, length: *length, memory: None })
            }
            _ => Err(FabricError::mismatch(self.kind(), grant.kind())),
        }
    }
}

impl Opening for ChainOpening {
    fn offer(&self) -> Offer {
        match self.carrier {
            Carrier::Shm => Offer::Chain,
            Carrier::Tcp => Offer::Tcp,
        }
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let (receiver, address, secret) = self.carrier.place(answer, peer)?;
        // Held all the time: chains grow by one member after the other.
        let mut chains = self.chains.lock().unwrap_or_else(PoisonError::into_inner);
        chains.retain(|chain| chain.strong_count() > 0);
        let found = chains.iter().rev().filter_map(Weak::upgrade).find(|chain| lock(chain).takes(&receiver));
        let failed = FabricError::io(format!("bring {address} into a chain"));
        let channel = match found {
            Some(chain) => extend(&chain, receiver, &address, &secret).and_then(|()| ChainChannel::to_tail(&chain)),
            None => self.carrier.connect(&address, &secret).and_then(|link| {
                let chain = Arc::new(Mutex::new(Chain::new(link, receiver)));
                chains.push(Arc::downgrade(&chain));
                ChainChannel::to_tail(&chain)
            }),
        };
        Ok(Box::new(channel.map_err(failed)?))
    }
}

/// Has the tail connect to one more member. Blocking, and bounded.
fn extend(chain: &Mutex<Chain>, receiver: String, address: &str, secret: &Secret) -> io::Result<()> {
    let digits = secret.digits().ok_or(io::ErrorKind::InvalidData)?;
    let text = [address.as_bytes(), b" ", &digits].concat();
    if text.len() > EXTENSION_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (mut buffer, shared) = BufferPool::default().allocate(text.len() as u32)?;
    buffer.tail_mut().copy_from_slice(&text);
    buffer.publish(text.len() as u32);
    let number = lock(chain).extend(receiver, shared).map_err(io::Error::other)?;
    let deadline = Instant::now() + 2 * CONNECT_TIMEOUT;
    while !lock(chain).await_answer(number).map_err(io::Error::other)? {
        if Instant::now() > deadline {
            // Nobody knows who is the tail now.
            lock(chain).fail(ChannelError::Disconnected);
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
