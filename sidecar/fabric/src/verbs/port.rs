//! This side's port, as both halves of the fabric use it.

use std::io;
use std::net::Ipv6Addr;

use super::device::Context;
use super::report::PortReport;
use super::select::SelectedPort;
use crate::message::Endpoint;

/// An active port of an open device, with the GID that its packets carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) mtu: u16,
    pub(super) message_max: u32,
    gid: Ipv6Addr,
    lid: u16,
}

impl Port {
    /// Queries the port again: it may have changed since it was selected.
    pub(super) fn find(context: &Context, selected: &SelectedPort) -> io::Result<Port> {
        let PortReport { number, mtu, lid, message_max, gids, .. } = context.port(selected.port)?;
        let gid_index = selected.gid_index;
        let gid = gids.iter().find(|gid| gid.index == gid_index);
        let gid = gid.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the GID has gone"))?.gid;
        Ok(Port { number, gid_index, mtu, message_max, gid, lid })
    }

    /// One end of a connection, as the other side must know it.
    pub(super) fn endpoint(&self, queue_pair: u32, first_psn: u32) -> Endpoint {
        Endpoint { queue_pair, gid: self.gid, lid: self.lid, first_psn, mtu: self.mtu, reads: 1 }
    }
}
