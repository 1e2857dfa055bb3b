//! What [`list_devices`](super::list_devices) finds.

use std::net::{IpAddr, Ipv6Addr};

/// One RDMA device as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Such as `mlx5_2` or `rxe0`.
    pub name: String,
    /// Node GUID, 16 hexadecimal digits.
    pub guid: String,
    /// PCI address such as `0000:03:02.1`; none for software devices.
    pub pci: Option<String>,
    /// Its ports, from 1.
    pub ports: Vec<PortReport>,
    /// Why it cannot be opened, if it cannot; there are no ports then.
    pub problem: Option<String>,
}

/// One port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// From 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub is_active: bool,
    /// Ethernet (RoCE) or InfiniBand.
    pub link: LinkLayer,
    /// Bytes of a packet: 256 to 4096.
    pub mtu: u16,
    /// Local identifier on InfiniBand.
    pub lid: u16,
    /// Bytes of one write at most.
    pub message_max: u32,
    /// The entries of its GID table that are filled: the table has holes, above all in pods.
    pub gids: Vec<GidReport>,
}

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Neither: not supported.
    Other,
}

/// One entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidReport {
    /// Its index in the table.
    pub index: u8,
    /// On RoCE the IP address, IPv4 as `::ffff:a.b.c.d`.
    pub gid: Ipv6Addr,
    /// How packets from it look.
    pub kind: GidKind,
    /// Whether the address belongs to this network namespace. In a pod the tables hold those of others too.
    pub is_ours: bool,
}

/// What `ibv_query_gid_ex(3)` calls the GID's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet frames that no router passes on: not used.
    RoceV1,
    /// UDP packets.
    RoceV2,
}

impl GidReport {
    /// The IP address that it represents on RoCE.
    pub fn address(&self) -> IpAddr {
        self.gid.to_ipv4_mapped().map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_gid_is_shown_as_ipv4() {
        let report =
            |gid: &str| GidReport { index: 0, gid: gid.parse().unwrap(), kind: GidKind::RoceV2, is_ours: true };
        assert_eq!(report("::ffff:10.0.0.1").address(), "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(report("fd00::1").address(), "fd00::1".parse::<IpAddr>().unwrap());
    }
}
