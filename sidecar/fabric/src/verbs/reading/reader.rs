//! The reader's half: opens the device, prepares queue pairs and connects them.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use super::channel::VerbsReadChannel;
use super::reads_on_wire;
use crate::error::FabricError;
use crate::message::{ChannelAnswer, Endpoint, FabricKind, Offer, ReadGrant};
use crate::reading::{READS_MAX, ReadChannel, ReadOpening, Readable, Reader};
use crate::secret;
use crate::verbs::Tuning;
use crate::verbs::events::Health;
use crate::verbs::memory::{Access, Region};
use crate::verbs::queue::{CompletionQueue, QueuePair};
use crate::verbs::select::SelectedPort;
use crate::verbs::sender::OpenDevice;

/// Makes read channels to receivers on the same fabric of cards and switches.
#[derive(Debug)]
pub struct VerbsReader {
    device: Arc<OpenDevice>,
}

/// One queue pair, initialised, whose other side is not known yet.
struct VerbsReadOpening {
    device: Arc<OpenDevice>,
    pair: QueuePair,
    landing: Landing,
    health: Arc<Health>,
    endpoint: Endpoint,
}

/// Memory that reads land in. The registration goes before the mapping.
pub(super) struct Landing {
    pub(super) region: Region,
    pub(super) map: MmapRaw,
    /// Bytes asked for; at least one is mapped.
    pub(super) length: u32,
}

impl VerbsReader {
    /// Opens the device.
    pub fn open(selected: &SelectedPort, tuning: Tuning) -> Result<VerbsReader, FabricError> {
        let device = OpenDevice::open(selected, tuning);
        let device = device.map_err(FabricError::io(format!("open RDMA device {selected}")))?;
        Ok(VerbsReader { device: Arc::new(device) })
    }
}

impl Landing {
    fn new(device: &OpenDevice, length: u32) -> io::Result<Landing> {
        let map = MmapRaw::from(MmapOptions::new().len((length as usize).max(1)).populate().map_anon()?);
        // SAFETY: the map goes after the region. A card writes to a part of it while a read into that part is on its way, and
        // then the channel makes no reference to it.
        let region = unsafe { Region::register(&device.domain, map.as_mut_ptr(), map.len(), Access::LocalWrite) }?;
        Ok(Landing { region, map, length })
    }
}

impl Reader for VerbsReader {
    fn kind(&self) -> FabricKind {
        FabricKind::Verbs
    }

    fn begin(&self, landing: u32) -> Result<Box<dyn ReadOpening>, FabricError> {
        let begin = || {
            let device = Arc::clone(&self.device);
            let (port, context) = (device.port, device.domain.context());
            let landing = Landing::new(&device, landing)?;
            let first_psn = secret::packet_number()?;
            let entries = READS_MAX as u32 + 1;
            let completions = Arc::new(CompletionQueue::new(context, entries)?);
            let pair = QueuePair::new(&device.domain, &completions, entries, 0)?;
            pair.initialise(port.number, Access::Local.flags())?;
            let health = device.watcher.watch(&pair, port.number)?;
            let endpoint = port.endpoint(pair.number(), first_psn);
            Ok(VerbsReadOpening { device, pair, landing, health, endpoint })
        };
        let opening = begin().map_err(FabricError::io("make a queue pair for reading"))?;
        Ok(Box::new(opening))
    }

    fn attach(&self, grant: &ReadGrant) -> Result<Readable, FabricError> {
        let ReadGrant::Verbs { address, key, length } = *grant else {
            return Err(FabricError::mismatch(FabricKind::Verbs, grant.kind()));
        };
        // Reads name the sum of the address and an offset.
        if address.checked_add(length.into()).is_none() {
            let error = io::Error::new(io::ErrorKind::InvalidData, "it reaches beyond the last address");
            return Err(FabricError::io("attach a share")(error));
        }
        Ok(Readable { address, key: key.into(), length, file: None })
    }
}

impl ReadOpening for VerbsReadOpening {
    fn offer(&self) -> Offer {
        Offer::Verbs { endpoint: self.endpoint }
    }

    fn connect(self: Box<Self>, answer: &ChannelAnswer, _peer: IpAddr) -> Result<Box<dyn ReadChannel>, FabricError> {
        let ChannelAnswer::Verbs { endpoint: remote, .. } = answer else {
            return Err(FabricError::mismatch(FabricKind::Verbs, answer.kind()));
        };
        let VerbsReadOpening { device, pair, landing, health, endpoint } = *self;
        let connect = || {
            let allowed = device.domain.context().attributes()?.max_qp_init_rd_atom;
            let reads = reads_on_wire(allowed).min(remote.reads.max(1));
            pair.connect(&device.port, remote, endpoint.first_psn, reads, device.tuning)?;
            VerbsReadChannel::new(pair, landing, health, device.port.message_max)
        };
        let channel = connect().map_err(FabricError::io(format!("connect a queue pair to {}", remote.gid)))?;
        Ok(Box::new(channel))
    }
}
