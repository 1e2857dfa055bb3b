//! Which fabric moves the bytes: from options to its two halves.
//!
//! Called by [`run`](crate::run) for the halves that write and read, by [`backup`](crate::backup) for the receiving one, and by the
//! preflight.

// Without RDMA no port can be selected.
#[cfg(not(feature = "verbs"))]
use std::convert::Infallible as SelectedPort;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use tailwind_fabric::baselines::BaselineChoice;
use tailwind_fabric::shm::{ShmReader, ShmReceiver, ShmSender};
use tailwind_fabric::tcp::{TcpReader, TcpReceiver, TcpSender};
use tailwind_fabric::verbs::{DeviceSelector, RetryPolicy, Tuning};
#[cfg(feature = "verbs")]
use tailwind_fabric::verbs::{SelectedPort, VerbsReader, VerbsReceiver, VerbsSender};
use tailwind_fabric::{FabricKind, Pool, Reader, Receiver, SLOT_SIZE_MAX, Sender};
use tailwind_protocol::layout::SegmentSize;
use tailwind_runtime::ensure_usage;
use tailwind_runtime::listener::bind_listener;

use crate::http;
use crate::options::{address, number};
use crate::tls::Tls;

const _: () = assert!(SLOT_SIZE_MAX == SegmentSize::MAX.bytes(), "every segment has slots that it fits into");

/// Over verbs the cards notice dead hosts (an idle channel sends an empty write every 50 ms) and no processor has to: control
/// heartbeats, which tell of backups that hang, are so many times slower. 25 and 300 ms become 1 and 12 s.
const SLOWER_OVER_VERBS: u32 = 40;

/// How many times slower control heartbeats of backups are over this fabric.
pub fn heartbeat_factor(fabric: FabricKind) -> u32 {
    if fabric == FabricKind::Verbs { SLOWER_OVER_VERBS } else { 1 }
}

/// Which fabric moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricOption {
    /// `Verbs` if there is an RDMA device, else `Tcp`.
    Auto,
    /// One-sided RDMA writes.
    Verbs,
    /// Memory of the same host.
    Shm,
    /// TCP, on any network.
    Tcp,
    /// One that `./bench` compares with. Nothing that ships has any.
    Baseline(BaselineChoice),
}

impl ValueEnum for FabricOption {
    fn value_variants<'a>() -> &'a [FabricOption] {
        static ALL: LazyLock<Vec<FabricOption>> = LazyLock::new(|| {
            let baselines = BaselineChoice::ALL.iter().copied().map(FabricOption::Baseline);
            [FabricOption::Auto, FabricOption::Verbs, FabricOption::Shm, FabricOption::Tcp]
                .into_iter()
                .chain(baselines)
                .collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            FabricOption::Auto => ("auto", "verbs if there is an RDMA device, else tcp with a warning"),
            FabricOption::Verbs => ("verbs", "One-sided RDMA writes (RoCE v2 or InfiniBand): backups spend no CPU"),
            FabricOption::Shm => {
                ("shm", "Memory of the same host, written directly: one machine, for development and tests")
            }
            FabricOption::Tcp => ("tcp", "TCP, on any network: backups spend CPU on copying"),
            FabricOption::Baseline(baseline) => return Some(PossibleValue::new(baseline.name()).hide(true)),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// An RDMA device, and perhaps one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    name: String,
    port: Option<u8>,
}

impl FromStr for DeviceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<DeviceName, &'static str> {
        let (name, port) = match text.split_once('/') {
            Some((name, port)) => (name, Some(port.parse().map_err(|_| "must be NAME or NAME/PORT")?)),
            None => (text, None),
        };
        if name.is_empty() || port == Some(0) {
            return Err("must be NAME or NAME/PORT, with ports from 1");
        }
        Ok(DeviceName { name: name.to_owned(), port })
    }
}

/// How RDMA is used where it is.
#[derive(Args, Clone, Debug)]
pub struct RdmaOptions {
    /// The RDMA device. By default the one in a device plugin's PCIDEVICE_* variables, else the only usable one, or the one
    /// whose port has the address of --listen
    #[arg(long, env = "TAILWIND_RDMA_DEVICE", value_name = "NAME[/PORT]")]
    pub rdma_device: Option<DeviceName>,
    /// Index in the port's GID table. By default a RoCE v2 entry with an address of this network namespace
    #[arg(long, env = "TAILWIND_RDMA_GID_INDEX", value_name = "INDEX", value_parser = number::<u8>(0, 255))]
    pub rdma_gid_index: Option<u8>,
    /// Retry policy of writes: 1 + RETRIES attempts, 4.096 µs × 2^EXPONENT apart (a card may take four times as long). 11/6
    /// detects a dead host within 59 to 235 ms; `doctor` measures it
    #[arg(long, env = "TAILWIND_RDMA_RETRY", value_name = "EXPONENT/RETRIES", default_value_t = RetryPolicy::default())]
    pub rdma_retry: RetryPolicy,
    /// Traffic class of RoCE packets, DSCP × 4: that of the switches' lossless class, often 106
    #[arg(long, env = "TAILWIND_RDMA_TRAFFIC_CLASS", value_name = "0-255", default_value_t = 0)]
    #[arg(value_parser = number::<u8>(0, 255))]
    pub rdma_traffic_class: u8,
    /// InfiniBand's service level; on RoCE the priority
    #[arg(long, env = "TAILWIND_RDMA_SERVICE_LEVEL", value_name = "0-15", default_value_t = 0)]
    #[arg(value_parser = number::<u8>(0, 15))]
    pub rdma_service_level: u8,
}

impl RdmaOptions {
    /// How packets are marked and repeated.
    pub fn tuning(&self) -> Tuning {
        let RdmaOptions { rdma_retry, rdma_traffic_class, rdma_service_level, .. } = *self;
        Tuning { retry: rdma_retry, traffic_class: rdma_traffic_class, service_level: rdma_service_level }
    }

    /// What narrows the choice of a device down; `address` is this host's in the group's network, if it says any.
    pub fn selector(&self, address: Option<IpAddr>) -> DeviceSelector {
        DeviceSelector {
            device: self.rdma_device.as_ref().map(|device| device.name.clone()),
            port: self.rdma_device.as_ref().and_then(|device| device.port),
            gid_index: self.rdma_gid_index,
            // A variable that is not text cannot be a list of PCI addresses.
            pci: DeviceSelector::pci_from(
                std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
            ),
            address: address.filter(|address| !address.is_unspecified()),
        }
    }
}

/// How records arrive over tcp.
#[derive(Args, Clone, Debug)]
pub struct DataOptions {
    /// Address of the tcp fabric [default: the address of --listen and any free port]
    #[arg(long, env = "TAILWIND_DATA_LISTEN", value_name = "IP:PORT", value_parser = address)]
    pub data_listen: Option<SocketAddr>,
    /// How long the thread that copies records from a connection of the tcp fabric busy-waits after the last byte, before it
    /// sleeps. Saves a wake-up per record, and takes a whole CPU while records arrive
    #[arg(long, env = "TAILWIND_DATA_SPIN_US", default_value_t = 0, value_name = "US")]
    #[arg(value_parser = number::<u64>(0, 1_000_000))]
    pub data_spin_us: u64,
}

impl DataOptions {
    fn spin(&self) -> Duration {
        Duration::from_micros(self.data_spin_us)
    }

    /// An address on a fabric that has no use for one is a mistake.
    fn refuse(&self, why: &str) -> anyhow::Result<()> {
        ensure_usage!(self.data_listen.is_none(), "--data-listen is for --fabric tcp: {why}");
        Ok(())
    }
}

/// The fabric that an option has selected.
enum SelectedFabric {
    Verbs(SelectedPort),
    Shm,
    Tcp,
    Baseline(BaselineChoice),
}

fn select(fabric: FabricOption, rdma: &RdmaOptions, address: IpAddr) -> anyhow::Result<SelectedFabric> {
    match fabric {
        FabricOption::Shm => Ok(SelectedFabric::Shm),
        FabricOption::Tcp => Ok(SelectedFabric::Tcp),
        FabricOption::Verbs => {
            let port = find_device(&rdma.selector(Some(address)))
                .map_err(|why| anyhow!("{why}; run `tailwind-sidecar doctor` for details, or use --fabric tcp"))?;
            Ok(SelectedFabric::Verbs(port))
        }
        FabricOption::Auto => match find_device(&rdma.selector(Some(address))) {
            Ok(port) => Ok(SelectedFabric::Verbs(port)),
            Err(why) => {
                tracing::warn!(%why, "no RDMA: records travel by tcp, which costs backups CPU time");
                Ok(SelectedFabric::Tcp)
            }
        },
        FabricOption::Baseline(baseline) => {
            tracing::warn!(
                fabric = baseline.name(),
                "replication by messages, for ./bench only: keep no data here that matters"
            );
            Ok(SelectedFabric::Baseline(baseline))
        }
    }
}

/// What a sidecar needs of a fabric.
pub struct SidecarFabric {
    /// Writes to backups.
    pub sender: Arc<dyn Sender>,
    /// Reads what they share.
    pub reader: Arc<dyn Reader>,
}

impl SidecarFabric {
    fn new(sender: impl Sender + 'static, reader: impl Reader + 'static) -> SidecarFabric {
        SidecarFabric { sender: Arc::new(sender), reader: Arc::new(reader) }
    }
}

/// A sidecar's half. `address` is this host's in the group's network.
pub fn sidecar(fabric: FabricOption, rdma: &RdmaOptions, address: IpAddr) -> anyhow::Result<SidecarFabric> {
    match select(fabric, rdma, address)? {
        SelectedFabric::Shm => Ok(SidecarFabric::new(ShmSender::default(), ShmReader)),
        SelectedFabric::Tcp => Ok(SidecarFabric::new(TcpSender::default(), TcpReader)),
        SelectedFabric::Baseline(baseline) => {
            Ok(SidecarFabric { sender: baseline.sender(), reader: baseline.reader() })
        }
        #[cfg(feature = "verbs")]
        SelectedFabric::Verbs(port) => {
            let sender = VerbsSender::open(&port, rdma.tuning())?;
            let reader = VerbsReader::open(&port, rdma.tuning())?;
            tracing::info!(device = %port, retry = %rdma.rdma_retry, "RDMA");
            Ok(SidecarFabric::new(sender, reader))
        }
    }
}

/// The reading half alone, for a backup that copies from others. `own_ip` is this host's address in the group's network.
pub fn reader(fabric: FabricOption, rdma: &RdmaOptions, own_ip: IpAddr) -> anyhow::Result<Arc<dyn Reader>> {
    Ok(match select(fabric, rdma, own_ip)? {
        SelectedFabric::Shm => Arc::new(ShmReader),
        SelectedFabric::Tcp => Arc::new(TcpReader),
        SelectedFabric::Baseline(baseline) => baseline.reader(),
        #[cfg(feature = "verbs")]
        SelectedFabric::Verbs(port) => Arc::new(VerbsReader::open(&port, rdma.tuning())?),
    })
}

/// The receiving half. Making it is the barrier for every writer of an earlier life of this process. `control` is where this
/// backup listens, and tcp too unless `data` says otherwise; `own_ip` is this host's address in the group's network.
pub fn receiver(
    fabric: FabricOption,
    rdma: &RdmaOptions,
    pool: &Arc<Pool>,
    data: &DataOptions,
    control: SocketAddr,
    own_ip: IpAddr,
    tls: Option<&Tls>,
) -> anyhow::Result<Box<dyn Receiver>> {
    match select(fabric, rdma, own_ip)? {
        SelectedFabric::Tcp => {
            let listener = data_listener(data.data_listen, control, tls)?;
            let receiver = TcpReceiver::polling(Arc::clone(pool), listener, data.spin())?;
            tracing::info!(address = %receiver.address(), "listening for records");
            Ok(Box::new(receiver))
        }
        SelectedFabric::Baseline(baseline) => {
            let listener = if baseline.is_over_tcp() {
                Some(data_listener(data.data_listen, control, tls)?)
            } else {
                data.refuse("shared memory needs no port")?;
                None
            };
            Ok(baseline.receiver(Arc::clone(pool), listener)?)
        }
        SelectedFabric::Shm => {
            data.refuse("shm needs no port")?;
            Ok(Box::new(ShmReceiver::new(Arc::clone(pool))?))
        }
        #[cfg(feature = "verbs")]
        SelectedFabric::Verbs(port) => {
            if fabric == FabricOption::Verbs {
                data.refuse("verbs needs no port")?;
            }
            let receiver = VerbsReceiver::open(Arc::clone(pool), &port, rdma.tuning())?;
            tracing::info!(device = %port, retry = %rdma.rdma_retry, "RDMA");
            Ok(Box::new(receiver))
        }
    }
}

/// Where records arrive over TCP. Without TLS the secrets that guard this port would travel in the clear.
fn data_listener(
    data_listen: Option<SocketAddr>,
    control: SocketAddr,
    tls: Option<&Tls>,
) -> anyhow::Result<TcpListener> {
    let address = data_listen.unwrap_or_else(|| SocketAddr::new(control.ip(), 0));
    http::check_guarded(address, tls)?;
    bind_listener(address).with_context(|| format!("listen for data on {address}"))
}

/// The device to use; the error says why there is none and what to do.
#[cfg(feature = "verbs")]
pub fn find_device(selector: &DeviceSelector) -> Result<SelectedPort, String> {
    let devices =
        tailwind_fabric::verbs::list_devices().map_err(|error| format!("RDMA devices cannot be listed: {error}"))?;
    tailwind_fabric::verbs::select(&devices, selector).map_err(|error| error.to_string())
}

/// There is none.
#[cfg(not(feature = "verbs"))]
pub fn find_device(_selector: &DeviceSelector) -> Result<SelectedPort, String> {
    Err("this program was built without RDMA (cargo feature `verbs`)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_name_and_an_optional_port() {
        let device = |name: &str, port| Ok(DeviceName { name: name.to_owned(), port });
        assert_eq!("mlx5_0".parse(), device("mlx5_0", None));
        assert_eq!("mlx5_0/2".parse(), device("mlx5_0", Some(2)));
        for bad in ["", "/1", "mlx5_0/", "mlx5_0/0", "mlx5_0/x", "mlx5_0/256"] {
            assert!(bad.parse::<DeviceName>().is_err(), "{bad}");
        }
    }
}
