//! The sending half: registers local memory, prepares queue pairs and connects them.
//!
//! Called by the sidecar's control code, off the append path; makes a [`VerbsChannel`] for it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::Tuning;
use super::channel::VerbsChannel;
use super::choice::Choice;
use super::device::Context;
use super::events::{Health, Watcher};
use super::memory::{Access, Domain, Region};
use super::queue::{CompletionQueue, LocalPort, QueuePair};
use super::report::PortReport;
use crate::buffer::{AppendBuffer, SharedBuffer};
use crate::contract::{
    Channel, ChannelAnswer, Endpoint, FabricError, FabricKind, Grant, Offer, Opening, RemoteBuffer, Sender,
};
use crate::secret;

/// Writes posted and not completed, if the device has room for so many: at some KB each about 1 MB on the way, more than a
/// 100 Gbit/s network holds in 50 µs.
const DEPTH: u32 = 256;
/// Bytes that the card is asked to take with the work request itself. Twice a cache line or two: a record of 128 bytes with
/// its header and checksum; cards grant some 200 at most.
const INLINE: u32 = 256;

/// Makes channels to receivers on the same fabric of cards and switches.
#[derive(Debug)]
pub struct VerbsSender {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    domain: Arc<Domain>,
    port: OpenPort,
    tuning: Tuning,
    depth: u32,
    watcher: Watcher,
}

impl Shared {
    fn queue_pair(&self) -> io::Result<QueuePair> {
        // Each write may leave a completion when the queue pair fails.
        let completions = Arc::new(CompletionQueue::new(self.domain.context(), self.depth + 1)?);
        QueuePair::new(&self.domain, &completions, self.depth + 1, INLINE)
    }
}

/// A port as both halves of the fabric hold it.
#[derive(Clone, Debug)]
pub(super) struct OpenPort {
    pub(super) local: LocalPort,
    gid: std::net::Ipv6Addr,
    lid: u16,
    pub(super) message_max: u32,
}

impl OpenPort {
    /// Looks again: the choice was made on what a survey saw.
    pub(super) fn find(context: &Context, choice: &Choice) -> io::Result<OpenPort> {
        let PortReport { number, mtu, lid, message_max, gids, .. } = context.port(choice.port)?;
        let gid = gids.iter().find(|gid| gid.index == choice.gid_index);
        let gid = gid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the GID has gone"))?.gid;
        let local = LocalPort { number, gid_index: choice.gid_index, mtu };
        Ok(OpenPort { local, gid, lid, message_max })
    }

    /// One end of a connection, as the other side must know it.
    pub(super) fn endpoint(&self, pair: &QueuePair, first_psn: u32) -> Endpoint {
        Endpoint { queue_pair: pair.number(), gid: self.gid, lid: self.lid, first_psn, mtu: self.local.mtu }
    }
}

/// One queue pair, initialised, whose other side is not known yet.
struct VerbsOpening {
    shared: Arc<Shared>,
    pair: QueuePair,
    health: Arc<Health>,
    endpoint: Endpoint,
}

impl VerbsSender {
    /// Opens the device.
    pub fn open(choice: &Choice, tuning: Tuning) -> Result<VerbsSender, FabricError> {
        let open = || {
            let context = Arc::new(Context::open(&choice.device)?);
            let port = OpenPort::find(&context, choice)?;
            // The channel's own probe takes a place too.
            let depth = DEPTH.min(context.attributes()?.max_qp_wr.max(2) as u32 - 1);
            let watcher = Watcher::start(&context)?;
            let domain = Arc::new(Domain::new(context)?);
            Ok(Shared { domain, port, tuning, depth, watcher })
        };
        let shared = open().map_err(FabricError::io(format!("open RDMA device {choice}")))?;
        Ok(VerbsSender { shared: Arc::new(shared) })
    }

    /// Bytes that the device takes with a work request itself, found by trying.
    pub(super) fn inline_max(&self) -> Result<u32, FabricError> {
        self.shared.queue_pair().map(|pair| pair.inline_max()).map_err(FabricError::io("make a queue pair"))
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
            unsafe { Region::register(&self.shared.domain, address, length, Access::Local) }
        };
        AppendBuffer::registered(length, register)
            .map_err(FabricError::io(format!("allocate and register a buffer of {length} bytes")))
    }

    fn begin(&self) -> Result<Box<dyn Opening>, FabricError> {
        let first_psn = secret::packet_number()?;
        let begin = || {
            let Shared { port, watcher, .. } = &*self.shared;
            let pair = self.shared.queue_pair()?;
            pair.initialise(port.local.number, Access::Local.flags())?;
            let health = watcher.watch(&pair, port.local.number)?;
            let endpoint = port.endpoint(&pair, first_psn);
            Ok(VerbsOpening { shared: Arc::clone(&self.shared), pair, health, endpoint })
        };
        let opening = begin().map_err(FabricError::io("make a queue pair"))?;
        Ok(Box::new(opening))
    }

    fn attach(&self, grant: &Grant) -> Result<RemoteBuffer, FabricError> {
        match *grant {
            Grant::Verbs { address, key, length } => Ok(RemoteBuffer::Verbs { address, key, length }),
            ref other => Err(mismatch(other.kind())),
        }
    }
}

impl Opening for VerbsOpening {
    fn offer(&self) -> Offer {
        Offer::Verbs { endpoint: self.endpoint }
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn Channel>, FabricError> {
        let ChannelAnswer::Verbs { endpoint: remote, .. } = answer else { return Err(mismatch(answer.kind())) };
        let VerbsOpening { shared, pair, health, endpoint } = *self;
        let connect = || {
            pair.connect(shared.port.local, remote, endpoint.first_psn, shared.tuning)?;
            VerbsChannel::new(pair, health, shared.depth as usize, shared.port.message_max)
        };
        let channel = connect().map_err(FabricError::io(format!("connect a queue pair to {}", remote.gid)))?;
        Ok(Box::new(channel))
    }
}

fn mismatch(theirs: FabricKind) -> FabricError {
    FabricError::Mismatch { ours: FabricKind::Verbs, theirs }
}
