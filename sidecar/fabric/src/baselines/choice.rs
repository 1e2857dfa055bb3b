//! Which baseline, over which carrier: from a name to its halves.
//!
//! Called by the sidecar's options. In a build without baselines, `no_baselines.rs` stands in the place of this type.

use std::net::TcpListener;
use std::sync::Arc;

use crate::contract::{Receiver, Sender};
use crate::error::FabricError;
use crate::pool::Pool;
use crate::reading::Reader;
use crate::shm::ShmReader;
use crate::tcp::TcpReader;

use super::{Baseline, MessageReader, MessageReceiver, MessageSender, TcpMessageSender, tcp_receiver};

/// A baseline over a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaselineChoice {
    name: &'static str,
    baseline: Baseline,
    over_tcp: bool,
}

impl BaselineChoice {
    /// All that there are.
    pub const ALL: &[BaselineChoice] = &[
        BaselineChoice { name: "rpc-shm", baseline: Baseline::Rpc, over_tcp: false },
        BaselineChoice { name: "rpc-pipelined-shm", baseline: Baseline::RpcPipelined, over_tcp: false },
        BaselineChoice { name: "ring-shm", baseline: Baseline::Ring, over_tcp: false },
        BaselineChoice { name: "rpc-tcp", baseline: Baseline::Rpc, over_tcp: true },
        BaselineChoice { name: "rpc-pipelined-tcp", baseline: Baseline::RpcPipelined, over_tcp: true },
    ];

    /// Its name, as an option's value.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether its receiver needs a listener.
    pub fn is_over_tcp(self) -> bool {
        self.over_tcp
    }

    /// The sending half.
    pub fn sender(self) -> Arc<dyn Sender> {
        if self.over_tcp {
            Arc::new(TcpMessageSender::new(self.baseline))
        } else {
            Arc::new(MessageSender::new(self.baseline))
        }
    }

    /// The reading half.
    pub fn reader(self) -> Arc<dyn Reader> {
        match self.baseline {
            _ if self.over_tcp => Arc::new(TcpReader),
            Baseline::Rpc | Baseline::RpcPipelined => Arc::new(MessageReader::new(self.baseline)),
            // Its receiver shares nothing, and tells readers so.
            Baseline::Ring => Arc::new(ShmReader),
        }
    }

    /// The receiving half, over TCP if there is a listener.
    pub fn receiver(self, pool: Arc<Pool>, listener: Option<TcpListener>) -> Result<Box<dyn Receiver>, FabricError> {
        Ok(match listener {
            Some(listener) => Box::new(tcp_receiver(pool, listener)?),
            None => Box::new(MessageReceiver::new(pool, self.baseline)?),
        })
    }
}
