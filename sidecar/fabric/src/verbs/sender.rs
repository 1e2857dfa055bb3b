//! The sending half: registers local memory, prepares queue pairs and connects them.
//!
//! Called by the sidecar's control code, off the append path; makes a `VerbsChannel` for it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::Tuning;
use super::channel::VerbsChannel;
use super::device::Context;
use super::events::{Health, Watcher};
use super::memory::{Access, Domain, Region};
use super::port::Port;
use super::queue::{CompletionQueue, QueuePair};
use super::select::SelectedPort;
use crate::buffer::{AppendBuffer, BufferPool, Registration, SharedBuffer};
use crate::contract::{Channel, Opening, RemoteBuffer, Sender};
use crate::error::FabricError;
use crate::message::{ChannelAnswer, Endpoint, FabricKind, Grant, Offer};
use crate::secret;

/// Writes posted and not completed, if the device has room for so many: at some KB each about 1 MB on the way, more than a
/// 100 Gbit/s network holds in 50 µs.
const DEPTH: u32 = 256;
/// Bytes requested as inline data of a work request. Twice a cache line or two: a record of 128 bytes with
/// its header and checksum; cards grant some 200 at most.
const INLINE: u32 = 256;

/// Makes channels to receivers on the same fabric of cards and switches.
#[derive(Debug)]
pub struct VerbsSender {
    /// Before the device: what is registered there goes first.
    buffers: BufferPool,
    device: Arc<OpenDevice>,
}

/// A device, as the sending and the reading half of the fabric use it.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) domain: Arc<Domain>,
    pub(super) port: Port,
    pub(super) tuning: Tuning,
    /// Writes that a send queue holds.
    depth: u32,
    pub(super) watcher: Watcher,
}

impl OpenDevice {
    pub(super) fn open(selected: &SelectedPort, tuning: Tuning) -> io::Result<OpenDevice> {
        let context = Arc::new(Context::open(&selected.device)?);
        let port = Port::find(&context, selected)?;
        // The channel's own probe needs an entry too.
        let depth = DEPTH.min(context.attributes()?.max_qp_wr.max(2) as u32 - 1);
        let watcher = Watcher::start(&context)?;
        let domain = Arc::new(Domain::new(context)?);
        Ok(OpenDevice { domain, port, tuning, depth, watcher })
    }

    fn queue_pair(&self) -> io::Result<QueuePair> {
        // Each write may leave a completion when the queue pair fails.
        let completions = Arc::new(CompletionQueue::new(self.domain.context(), self.depth + 1)?);
        QueuePair::new(&self.domain, &completions, self.depth + 1, INLINE)
    }
}

/// One queue pair, initialised, whose other side is not known yet.
struct VerbsOpening {
    device: Arc<OpenDevice>,
    pair: QueuePair,
    health: Arc<Health>,
    endpoint: Endpoint,
}

impl VerbsSender {
    /// Opens the device.
    pub fn open(selected: &SelectedPort, tuning: Tuning) -> Result<VerbsSender, FabricError> {
        let device = OpenDevice::open(selected, tuning);
        let device = device.map_err(FabricError::io(format!("open RDMA device {selected}")))?;
        Ok(VerbsSender { buffers: BufferPool::default(), device: Arc::new(device) })
    }

    /// Bytes that the device takes with a work request itself, found by trying.
    pub(super) fn inline_max(&self) -> Result<u32, FabricError> {
        self.device.queue_pair().map(|pair| pair.inline_max()).map_err(FabricError::io("make a queue pair"))
    }
}

impl Sender for VerbsSender {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn allocate(&self, length: u32) -> Result<(AppendBuffer, SharedBuffer), FabricError> {
        let register = |address, length| {
            // SAFETY: the buffer keeps the memory mapped until the region is gone (see `AppendBuffer::registered`), and a card
            // only reads what is registered for local use.
            let region = unsafe { Region::register(&self.device.domain, address, length, Access::Local) }?;
            let (local_key, domain) = (region.local_key(), self.device.domain.id());
            Ok(Registration { local_key, domain, _region: Box::new(region) })
        };
        self.buffers
            .allocate_registered(length, register)
            .map_err(FabricError::io(format!("allocate and register a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        let begin = || {
            let first_psn = secret::packet_number()?;
            let OpenDevice { port, watcher, .. } = &*self.device;
            let pair = self.device.queue_pair()?;
            pair.initialise(port.number, Access::Local.flags())?;
            let health = watcher.watch(&pair, port.number)?;
            let endpoint = port.endpoint(pair.number(), first_psn);
            Ok(VerbsOpening { device: Arc::clone(&self.device), pair, health, endpoint })
        };
        let opening = begin().map_err(FabricError::io("make a queue pair"))?;
        Ok(Box::new(opening))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        let Grant::Verbs { address, key, length } = *grant else {
            return Err(FabricError::mismatch(FabricKind::Verbs, grant.kind()));
        };
        Ok(RemoteBuffer { address, key: key.into(), length, memory: None })
    }
}

impl Opening for VerbsOpening {
    fn offer(&self) -> Offer {
        Offer::Verbs { endpoint: self.endpoint }
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let ChannelAnswer::Verbs { endpoint: remote, .. } = answer else {
            return Err(FabricError::mismatch(FabricKind::Verbs, answer.kind()));
        };
        let VerbsOpening { device, pair, health, endpoint } = *self;
        let connect = || {
            pair.connect(&device.port, remote, endpoint.first_psn, 1, device.tuning)?;
            VerbsChannel::new(pair, health, device.depth as usize, device.port.message_max)
        };
        let channel = connect().map_err(FabricError::io(format!("connect a queue pair to {}", remote.gid)))?;
        Ok(Box::new(channel))
    }
}
