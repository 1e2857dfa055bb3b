//! Which device, port and GID to use: never "the first one".
//!
//! Pure: from what [`list_devices`](super::list_devices) found and what the administrator or the device plugin asks for.
//! Called at the start of sidecars and backups, and by the preflight.

use std::fmt;
use std::net::IpAddr;

use super::report::{DeviceReport, GidKind, GidReport, LinkLayer, PortReport};

/// Which ports are acceptable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSelector {
    /// A device by name.
    pub device: Option<String>,
    /// A port of it.
    pub port: Option<u8>,
    /// An index of the port's GID table.
    pub gid_index: Option<u8>,
    /// PCI addresses that a device plugin has given to this pod: see [`DeviceSelector::pci_from`].
    pub pci: Vec<String>,
    /// This host's address in the group's network: of several ports, the one with this address.
    pub address: Option<IpAddr>,
}

/// One port of one device, and the GID to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedPort {
    /// The device's name.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// In the port's table.
    pub gid_index: u8,
}

/// Why no port was selected. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The host has none, or the container may not see it.
    #[error(
        "this host has no RDMA device: in a pod, request one from the device plugin; on a host, load the card's driver"
    )]
    NoDevice,
    /// The wanted device is not there.
    #[error("there is no RDMA device {wanted}: found {found}")]
    NotFound {
        /// The wanted device.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// Devices, but none with an active port and an address of ours.
    #[error("no RDMA device can be used: {0}")]
    Unusable(String),
    /// More than one is acceptable.
    #[error("several RDMA devices are usable ({0}): choose one with --rdma-device NAME or NAME/PORT")]
    Ambiguous(String),
}

impl fmt::Display for SelectedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} GID {}", self.device, self.port, self.gid_index)
    }
}

impl DeviceSelector {
    /// The PCI addresses in variables `PCIDEVICE_*`, which the SR-IOV device plugin sets: lists parted by commas. Variables
    /// that end in `_INFO` hold JSON instead.
    pub fn pci_from(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
        let ours = variables.filter(|(name, _)| name.starts_with("PCIDEVICE_") && !name.ends_with("_INFO"));
        let mut found: Vec<String> = ours
            .flat_map(|(_, value)| value.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>())
            .filter(|one| !one.is_empty())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Selects a port: of several acceptable ones the one with the wanted address, if there is exactly one.
pub fn select(devices: &[DeviceReport], selector: &DeviceSelector) -> Result<SelectedPort, SelectError> {
    if devices.is_empty() {
        return Err(SelectError::NoDevice);
    }
    let candidates: Vec<&DeviceReport> = devices.iter().filter(|device| is_candidate(device, selector)).collect();
    if candidates.is_empty() {
        let wanted = selector.device.clone().unwrap_or_else(|| format!("at PCI {}", selector.pci.join(" or ")));
        return Err(SelectError::NotFound { wanted, found: names(devices.iter()) });
    }
    let ports = candidates.iter().flat_map(|device| device.ports.iter().map(move |port| (*device, port)));
    let ports = ports.filter(|(_, port)| selector.port.is_none_or(|wanted| port.number == wanted));
    let usable: Vec<_> = ports.filter_map(|(device, port)| Some((device, port, best_gid(port, selector)?))).collect();
    let of_address: Vec<_> =
        usable.iter().filter(|(_, _, gid)| selector.address == Some(gid.address())).copied().collect();
    match (&usable[..], &of_address[..]) {
        ([(device, port, gid)], _) | (_, [(device, port, gid)]) => {
            Ok(SelectedPort { device: device.name.clone(), port: port.number, gid_index: gid.index })
        }
        ([], _) => Err(SelectError::Unusable(why_not(&candidates, selector))),
        _ => {
            let found =
                usable.iter().map(|(device, port, gid)| format!("{}/{} {}", device.name, port.number, gid.address()));
            Err(SelectError::Ambiguous(found.collect::<Vec<_>>().join(", ")))
        }
    }
}

/// A device named by the administrator takes precedence over those of a plugin.
fn is_candidate(device: &DeviceReport, selector: &DeviceSelector) -> bool {
    match &selector.device {
        Some(name) => device.name == *name,
        None => selector.pci.is_empty() || device.pci.as_ref().is_some_and(|pci| selector.pci.contains(pci)),
    }
}

/// The entry of the table that packets can come from: on RoCE version 2 only, with an address of ours; routable ones
/// before those of the link.
fn best_gid<'a>(port: &'a PortReport, selector: &DeviceSelector) -> Option<&'a GidReport> {
    if !port.is_active {
        return None;
    }
    if let Some(index) = selector.gid_index {
        return port.gids.iter().find(|gid| gid.index == index);
    }
    let fits = |gid: &&GidReport| match port.link {
        LinkLayer::Ethernet => gid.kind == GidKind::RoceV2 && gid.is_ours,
        LinkLayer::InfiniBand => gid.kind == GidKind::InfiniBand,
        LinkLayer::Other => false,
    };
    let rank = |gid: &&GidReport| {
        let link_local = gid.gid.is_unicast_link_local();
        (selector.address != Some(gid.address()), link_local, gid.gid.to_ipv4_mapped().is_none(), gid.index)
    };
    port.gids.iter().filter(fits).min_by_key(rank)
}

fn why_not(devices: &[&DeviceReport], selector: &DeviceSelector) -> String {
    let reasons = devices.iter().flat_map(|device| {
        if let Some(problem) = &device.problem {
            return vec![format!("{} cannot be opened ({problem})", device.name)];
        }
        let ports = device.ports.iter().filter(|port| selector.port.is_none_or(|wanted| port.number == wanted));
        let reasons: Vec<String> =
            ports.map(|port| format!("{}/{} {}", device.name, port.number, problem_of(port, selector))).collect();
        if reasons.is_empty() {
            vec![format!("{} has no port {}", device.name, selector.port.unwrap_or(1))]
        } else {
            reasons
        }
    });
    reasons.collect::<Vec<_>>().join("; ")
}

/// Why a port cannot be used.
fn problem_of(port: &PortReport, selector: &DeviceSelector) -> String {
    if !port.is_active {
        return "is not active: check cable, switch port and `ip link`".to_owned();
    }
    if let Some(index) = selector.gid_index {
        return format!("has no GID {index}");
    }
    match port.link {
        LinkLayer::Ethernet if port.gids.iter().any(|gid| gid.kind == GidKind::RoceV2) => {
            "has no RoCE v2 GID with an address of this network namespace: give the pod the interface that belongs to the \
             device (Multus), or an address on it"
                .to_owned()
        }
        LinkLayer::Ethernet => "has no RoCE v2 GID: give its interface an IP address".to_owned(),
        LinkLayer::InfiniBand => "has no GID: is a subnet manager running?".to_owned(),
        LinkLayer::Other => "is neither RoCE nor InfiniBand: iWARP and EFA are not supported".to_owned(),
    }
}

fn names<'a>(devices: impl Iterator<Item = &'a DeviceReport>) -> String {
    let one = |device: &DeviceReport| match &device.pci {
        Some(pci) => format!("{} at {pci}", device.name),
        None => device.name.clone(),
    };
    devices.map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, gid: &str, kind: GidKind, is_ours: bool) -> GidReport {
        GidReport { index, gid: gid.parse().unwrap(), kind, is_ours }
    }

    fn port(number: u8, gids: Vec<GidReport>) -> PortReport {
        let link = LinkLayer::Ethernet;
        PortReport { number, is_active: true, link, mtu: 4096, lid: 0, message_max: 1 << 30, gids }
    }

    fn device(name: &str, pci: Option<&str>, ports: Vec<PortReport>) -> DeviceReport {
        let (guid, pci) = (String::new(), pci.map(str::to_owned));
        DeviceReport { name: name.to_owned(), guid, pci, ports, problem: None }
    }

    /// A table as pods see it: link-local and both versions of each address, holes, and an address of another pod.
    fn table(address: &str) -> Vec<GidReport> {
        vec![
            gid(0, "fe80::1", GidKind::RoceV1, false),
            gid(1, "fe80::1", GidKind::RoceV2, false),
            gid(5, "::ffff:10.9.0.77", GidKind::RoceV2, false),
            gid(8, address, GidKind::RoceV1, true),
            gid(9, address, GidKind::RoceV2, true),
            gid(11, "fd00::1", GidKind::RoceV2, true),
        ]
    }

    fn selected(device: &str, port: u8, gid_index: u8) -> Result<SelectedPort, SelectError> {
        Ok(SelectedPort { device: device.to_owned(), port, gid_index })
    }

    #[test]
    fn selects_roce_v2_with_a_local_address() {
        let devices = [device("mlx5_0", None, vec![port(1, table("::ffff:10.9.0.1"))])];
        assert_eq!(select(&devices, &DeviceSelector::default()), selected("mlx5_0", 1, 9));
        let selector = DeviceSelector { address: Some("fd00::1".parse().unwrap()), ..DeviceSelector::default() };
        assert_eq!(select(&devices, &selector), selected("mlx5_0", 1, 11), "the wanted address wins");
        let selector = DeviceSelector { gid_index: Some(5), ..DeviceSelector::default() };
        assert_eq!(select(&devices, &selector), selected("mlx5_0", 1, 5), "an explicit index wins");
    }

    #[test]
    fn an_ipv6_pod_uses_its_own_address() {
        let gids = ["fe80::1", "fd00::2", "fd00::1"];
        let gids = gids.iter().enumerate().map(|(index, ip)| gid(index as u8, ip, GidKind::RoceV2, true)).collect();
        let devices = [device("mlx5_0", None, vec![port(1, gids)])];
        let selector = DeviceSelector { address: Some("fd00::1".parse().unwrap()), ..DeviceSelector::default() };
        assert_eq!(select(&devices, &selector), selected("mlx5_0", 1, 2));
        assert_eq!(select(&devices, &DeviceSelector::default()), selected("mlx5_0", 1, 1), "routable first");
    }

    #[test]
    fn only_devices_from_the_plugin_are_selected() {
        let devices = [
            device("mlx5_0", Some("0000:03:00.0"), vec![port(1, table("::ffff:10.9.0.1"))]),
            device("mlx5_3", Some("0000:03:00.5"), vec![port(1, table("::ffff:10.9.0.2"))]),
        ];
        let selector = |pci: &str| DeviceSelector { pci: vec![pci.to_owned()], ..DeviceSelector::default() };
        assert_eq!(select(&devices, &selector("0000:03:00.5")), selected("mlx5_3", 1, 9));
        let error = select(&devices, &selector("0000:81:00.1")).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no RDMA device at PCI 0000:81:00.1: found mlx5_0 at 0000:03:00.0, mlx5_3 at 0000:03:00.5"
        );
        let named = DeviceSelector { device: Some("mlx5_0".into()), ..selector("0000:03:00.5") };
        assert_eq!(select(&devices, &named), selected("mlx5_0", 1, 9), "an explicit name wins");
    }

    #[test]
    fn the_address_selects_among_several_ports() {
        let devices = [
            device("mlx5_0", None, vec![port(1, table("::ffff:10.9.0.1"))]),
            device("mlx5_1", None, vec![port(1, table("::ffff:10.8.0.1"))]),
        ];
        let selector = DeviceSelector { address: Some("10.8.0.1".parse().unwrap()), ..DeviceSelector::default() };
        assert_eq!(select(&devices, &selector), selected("mlx5_1", 1, 9));
        let error = select(&devices, &DeviceSelector::default()).unwrap_err().to_string();
        assert_eq!(
            error,
            "several RDMA devices are usable (mlx5_0/1 10.9.0.1, mlx5_1/1 10.8.0.1): choose one with --rdma-device NAME or \
             NAME/PORT"
        );
    }

    #[test]
    fn the_error_lists_the_problem_with_every_port() {
        let mut down = port(1, table("::ffff:10.9.0.1"));
        down.is_active = false;
        let foreign = port(2, vec![gid(5, "::ffff:10.9.0.77", GidKind::RoceV2, false)]);
        let closed = DeviceReport { problem: Some("Permission denied".into()), ..device("mlx5_1", None, vec![]) };
        let devices = [device("mlx5_0", None, vec![down, foreign, port(3, vec![])]), closed];
        let error = select(&devices, &DeviceSelector::default()).unwrap_err().to_string();
        assert_eq!(
            error,
            "no RDMA device can be used: mlx5_0/1 is not active: check cable, switch port and `ip link`; mlx5_0/2 has no RoCE \
             v2 GID with an address of this network namespace: give the pod the interface that belongs to the device \
             (Multus), or an address on it; mlx5_0/3 has no RoCE v2 GID: give its interface an IP address; mlx5_1 cannot be \
             opened (Permission denied)"
        );
        assert_eq!(select(&[], &DeviceSelector::default()), Err(SelectError::NoDevice));
    }

    #[test]
    fn infiniband_needs_no_address() {
        let mut port = port(1, vec![gid(0, "fe80::2:c903:0:1", GidKind::InfiniBand, false)]);
        port.link = LinkLayer::InfiniBand;
        assert_eq!(select(&[device("mlx5_0", None, vec![port])], &DeviceSelector::default()), selected("mlx5_0", 1, 0));
    }

    #[test]
    fn reads_variables_of_device_plugins() {
        let variables = [
            ("PCIDEVICE_NVIDIA_COM_CX6", "0000:03:00.5,0000:03:00.2"),
            ("PCIDEVICE_NVIDIA_COM_CX6_INFO", "{\"0000:03:00.5\":{}}"),
            ("PATH", "/bin"),
            ("PCIDEVICE_OTHER", "0000:03:00.2"),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
        assert_eq!(DeviceSelector::pci_from(variables), ["0000:03:00.2", "0000:03:00.5"]);
    }
}
