//! Options of `tailwind-sidecar backup`: each has a flag, an environment variable and, but for two names, a default.
//!
//! Parsed by `main`, taken apart by [`run`](super::run).

use std::net::SocketAddr;
use std::path::PathBuf;

use tailwind_protocol::ids::{GroupName, MemberId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::rpc::BUFFERS_MAX;
use tailwind_runtime::logging::LogOptions;

use crate::access::TokenOptions;
use crate::address::AdvertiseOptions;
use crate::fabric::{DataOptions, FabricOption, RdmaOptions};
use crate::options::{address, heading, number, parse_segment_size, parse_size};
use crate::tls::TlsOptions;

const EXAMPLES: &str = "\
Examples:
  One of three backups on one host, for the group `default`:
    tailwind-sidecar backup --name b0 --listen 127.0.0.1:7420
  On a host of its own, where sidecars reach it over TCP:
    tailwind-sidecar backup --group orders --listen [::]:7420 --advertise-ip 10.0.0.7 --fabric tcp \\
      --tls-ca ca.pem --tls-cert backup.pem --tls-key backup.key

Every option can also be set by an environment variable. Exit codes: 0 if ended by SIGTERM, SIGINT or SIGPWR with everything on \
disk; 1 if it failed; 2 if the command line is invalid";

/// Lend memory to a group's log, and keep its closed segments on disk
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BackupOptions {
    /// The group to serve. A backup and its folders belong to one group
    #[arg(long, env = "TAILWIND_GROUP", default_value = "default")]
    pub group: GroupName,
    /// This backup's name, unique in the group; keep it across restarts, because the folders are bound to it
    /// [default: the host's name]
    #[arg(long, env = "TAILWIND_NAME")]
    pub name: Option<MemberId>,

    /// Address of the control RPC. Any address but loopback needs TLS. `[::]` means every address, IPv4 included; if the kernel
    /// has no IPv6, it means 0.0.0.0. Port 0 takes any free port, see --port-file
    #[arg(long, env = "TAILWIND_LISTEN", default_value = "127.0.0.1:7420", value_name = "IP:PORT", value_parser = address)]
    #[arg(help_heading = heading::NETWORK)]
    pub listen: SocketAddr,
    /// Where sidecars reach this backup; shown in /status.
    #[command(flatten, next_help_heading = heading::NETWORK)]
    pub advertise: AdvertiseOptions,
    /// Write the control address to this file once the backup is ready: for scripts that use port 0
    #[arg(long, env = "TAILWIND_PORT_FILE", value_name = "FILE", help_heading = heading::NETWORK)]
    pub port_file: Option<PathBuf>,
    /// Serve /healthz, /readyz, /metrics and /report here without TLS: kubelets, Prometheus and the operator have no
    /// certificate
    #[arg(long, env = "TAILWIND_METRICS_LISTEN", value_name = "IP:PORT", value_parser = address)]
    #[arg(help_heading = heading::NETWORK)]
    pub metrics_listen: Option<SocketAddr>,
    /// Guards the control RPC between pods.
    #[command(flatten, next_help_heading = heading::ACCESS)]
    pub tls: TlsOptions,
    /// Guards the control RPC on one host.
    #[command(flatten, next_help_heading = heading::ACCESS)]
    pub token: TokenOptions,

    /// Fabric that delivers the records; the same for every process of the group
    #[arg(long, env = "TAILWIND_FABRIC", value_enum, default_value_t = FabricOption::Shm)]
    #[arg(help_heading = heading::FABRIC)]
    pub fabric: FabricOption,
    /// Used with --fabric tcp.
    #[command(flatten, next_help_heading = heading::FABRIC)]
    pub data: DataOptions,
    /// Used with --fabric verbs and auto.
    #[command(flatten, next_help_heading = heading::RDMA)]
    pub rdma: RdmaOptions,

    /// Folder for the buffers. Put it on a memory-backed file system (tmpfs, hugetlbfs) that outlives this process
    /// [default: /dev/shm/tailwind-GROUP-NAME]
    #[arg(long, env = "TAILWIND_POOL", value_name = "DIR", help_heading = heading::MEMORY)]
    pub pool: Option<PathBuf>,
    /// Number of buffers to lend: at least three (one being filled, one ready, one for images that repair a copy), and more
    /// for segments that wait for the disk
    #[arg(long, env = "TAILWIND_BUFFERS", default_value_t = 16, value_name = "N", value_parser = parse_buffers)]
    #[arg(help_heading = heading::MEMORY)]
    pub buffers: u32,
    /// Memory for closed segments that stay readable without the disk, such as 2GiB: as many buffers beside those of --buffers,
    /// which are lent when no other is free. 0: a segment's buffer is given back once the segment is on disk
    #[arg(long, env = "TAILWIND_RESIDENT", default_value = "0", value_name = "SIZE", value_parser = parse_size)]
    #[arg(help_heading = heading::MEMORY)]
    pub resident: u64,
    /// Memory for the mirror of a table's index, in which others look keys up one-sidedly: 54 bytes for each key that the table
    /// may have, such as 128MiB. Lent in parts of the buffer size, at least 8MiB. 0: none
    #[arg(long, env = "TAILWIND_MIRROR", default_value = "0", value_name = "SIZE", value_parser = parse_size)]
    #[arg(help_heading = heading::MEMORY)]
    pub mirror: u64,
    /// Buffer size, such as 8MiB or 64KiB: a power of two, at least the group's segment size
    #[arg(long, env = "TAILWIND_SEGMENT_SIZE", default_value = "8MiB", value_name = "SIZE")]
    #[arg(help_heading = heading::MEMORY)]
    #[arg(value_parser = parse_segment_size)]
    pub segment_size: SegmentSize,

    /// Folder for closed segments and this backup's promises. Put it on a disk that survives a reboot of the host
    /// [default: /var/lib/tailwind/GROUP/NAME]
    #[arg(long, env = "TAILWIND_FLUSH_DIR", value_name = "DIR", help_heading = heading::DISK)]
    pub flush_dir: Option<PathBuf>,
    /// Write bandwidth of the flush folder per second, such as 200MiB; measured at the start if not given
    #[arg(long, env = "TAILWIND_FLUSH_BANDWIDTH", value_parser = parse_size, value_name = "SIZE")]
    #[arg(help_heading = heading::DISK)]
    pub flush_bandwidth: Option<u64>,
    /// Bytes that the flush folder may hold, such as 20GiB: a backup that could go beyond lends no more buffers, and appends
    /// wait until the log is trimmed. At least six segments. Where the disk has less room, or the pod a lower limit, that counts
    #[arg(long, env = "TAILWIND_FLUSH_BYTES", value_parser = parse_size, value_name = "SIZE")]
    #[arg(help_heading = heading::DISK)]
    pub flush_bytes: Option<u64>,
    /// The pod's limit of ephemeral-storage, if the flush folder counts as such: an emptyDir. The operator sets it by the
    /// downward API
    #[arg(long, env = "TAILWIND_EPHEMERAL_STORAGE", value_parser = parse_size, value_name = "SIZE")]
    #[arg(help_heading = heading::DISK)]
    pub ephemeral_storage: Option<u64>,
    /// Bytes of closed segments to read and verify per second, such as 16MiB, so that corruption is found while another
    /// member has a sound copy; 0 turns the scrub off
    #[arg(long, env = "TAILWIND_SCRUB_RATE", default_value = "16MiB", value_parser = parse_size, value_name = "SIZE")]
    #[arg(help_heading = heading::DISK)]
    pub scrub_rate: u64,
    /// Seconds that this host keeps running after a power failure, or that a stop may take: the backup lends no more than it
    /// can flush in that time
    #[arg(long, env = "TAILWIND_HOLD_UP", default_value_t = 30, value_name = "SECONDS", help_heading = heading::DISK)]
    #[arg(value_parser = number::<u64>(1, 86_400))]
    pub hold_up: u64,

    /// Interval between heartbeats: a shorter one detects dead hosts sooner and sends more packets. 40 times as long over
    /// verbs, where the cards detect dead hosts
    #[arg(long, env = "TAILWIND_HEARTBEAT_INTERVAL_MS", default_value_t = 25, value_name = "MS")]
    #[arg(help_heading = heading::TIMING)]
    #[arg(value_parser = number::<u64>(1, 10_000))]
    pub heartbeat_interval_ms: u64,

    /// What it logs.
    #[command(flatten)]
    pub log: LogOptions,
}

/// The flush folder of a backup that was given none.
pub fn default_flush_dir(group: &GroupName, name: &MemberId) -> PathBuf {
    PathBuf::from(format!("/var/lib/tailwind/{group}/{name}"))
}

/// Fewest buffers: one is filled, one is ready, and one is for images. A backup with two works until it loses its memory: a
/// newcomer lends both for appends, never gets an image, and is given up again and again.
const BUFFERS_MIN: u32 = 3;

fn parse_buffers(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|buffers| (BUFFERS_MIN..=BUFFERS_MAX).contains(buffers)).ok_or_else(|| {
        format!(
            "must be a number from {BUFFERS_MIN} to {BUFFERS_MAX}: one buffer is being filled, one is ready, and one is for \
             images"
        )
    })
}
