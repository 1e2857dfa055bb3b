//! Options of `tailwind-sidecar run`, and what options of several commands share.
//!
//! Every option has a flag, an environment variable and a sentence on how to choose it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, value_parser};
use tailwind_protocol::config::Durability;
use tailwind_protocol::ids::{GroupName, MemberId, SidecarId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::promotion::AcceptedLoss;

use crate::access::TokenOptions;
use crate::fabric::{FabricOption, RdmaOptions};
use crate::path::Allowed;
use crate::store::kubernetes::GroupPath;
use crate::tls::TlsOptions;

/// A backup that a sidecar may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupAddress {
    /// Its name.
    pub name: MemberId,
    /// `host:port` of its control RPC.
    pub control: String,
}

impl FromStr for BackupAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<BackupAddress, String> {
        let (name, control) = text.split_once('=').ok_or("must be NAME=HOST:PORT")?;
        let (host, port) = control.rsplit_once(':').ok_or("must be NAME=HOST:PORT")?;
        let port: u16 = port.parse().map_err(|_| format!("port `{port}`: must be 1 to 65535"))?;
        if host.is_empty() || port == 0 {
            return Err("must be NAME=HOST:PORT".to_owned());
        }
        let name = name.parse().map_err(|error: tailwind_protocol::ids::BadName| error.to_string())?;
        Ok(BackupAddress { name, control: control.to_owned() })
    }
}

/// Who may connect to the socket, as an option says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedUid {
    /// This user.
    Uid(u32),
    /// Everybody.
    Any,
}

impl FromStr for AllowedUid {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<AllowedUid, &'static str> {
        match text {
            "any" => Ok(AllowedUid::Any),
            number => number.parse().map(AllowedUid::Uid).map_err(|_| "must be a user's number, or any"),
        }
    }
}

impl AllowedUid {
    /// What a list of them comes to.
    pub fn all(listed: &[AllowedUid]) -> Allowed {
        let uid = |allowed: &AllowedUid| match allowed {
            AllowedUid::Uid(uid) => Some(*uid),
            AllowedUid::Any => None,
        };
        match (listed, listed.iter().map(uid).collect::<Option<Vec<u32>>>()) {
            ([], _) => Allowed::Own,
            (_, Some(uids)) => Allowed::Listed(uids),
            (_, None) => Allowed::Anybody,
        }
    }
}

/// Be a sidecar: primary, or a standby that takes over when the primary dies.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// In Kubernetes: the ReplicaGroup that this sidecar belongs to. Its status.log is the config store, and it says which
    /// backups there are, how many copies are wanted, and how bytes reach them
    #[arg(long, env = "TAILWIND_REPLICA_GROUP", value_name = "NAMESPACE/NAME")]
    #[arg(conflicts_with_all = ["group", "config", "backup", "backups", "min_in_sync", "accept_loss", "durability", "segment_size", "fabric"])]
    pub replica_group: Option<GroupPath>,
    /// The group that this sidecar belongs to; the same for its standbys and backups
    #[arg(long, env = "TAILWIND_GROUP", default_value = "default")]
    pub group: GroupName,
    /// This sidecar's name, unique in the group; in Kubernetes the pod's name
    #[arg(long, env = "TAILWIND_NAME", default_value = "sidecar-0")]
    pub name: SidecarId,
    /// The socket that apps append to; at most 107 bytes, in a folder that only the app can reach
    /// [default: /run/tailwind/GROUP.sock]
    #[arg(long, env = "TAILWIND_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Where standbys listen to heartbeats and people ask for the status; beyond loopback it needs TLS
    #[arg(long, env = "TAILWIND_LISTEN", default_value = "127.0.0.1:7410", value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// How other sidecars reach this one, if not by --listen: with port 0 or 0.0.0.0 in --listen, the address as others see it
    #[arg(long, env = "TAILWIND_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Write the control address to this file once it listens: for scripts that use port 0
    #[arg(long, env = "TAILWIND_PORT_FILE", value_name = "PATH")]
    pub port_file: Option<PathBuf>,
    /// Serve /healthz, /readyz and /metrics without TLS here: for kubelets and Prometheus; they tell no records
    #[arg(long, env = "TAILWIND_METRICS_LISTEN", value_name = "IP:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// The config store's file, on a file system that all sidecars of the group share, such as NFS: it must have hard links;
    /// locks that reach other hosts are not needed. Later contents are numbered files beside it
    /// [default: /var/lib/tailwind/GROUP/config.json]
    #[arg(long, env = "TAILWIND_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A backup that may be used; give one for each, spares included
    #[arg(long, env = "TAILWIND_BACKUP", value_name = "NAME=HOST:PORT", value_delimiter = ',')]
    #[arg(required_unless_present = "replica_group")]
    pub backup: Vec<BackupAddress>,
    /// Copies wanted: with r copies the log survives r - 1 deaths at once. Three is the usual choice
    #[arg(long, env = "TAILWIND_BACKUPS", default_value_t = 3)]
    pub backups: u8,
    /// Copies needed to go on: fewer keep appends going longer, more keep each record safer. [default: half of --backups,
    /// rounded up]
    #[arg(long, env = "TAILWIND_MIN_IN_SYNC")]
    pub min_in_sync: Option<u8>,
    /// A person's word that the log of this id may end at this record, whatever was acknowledged beyond. Only where the
    /// sidecar waits for damaged members or for a newer config store, and says so (docs/runbooks)
    #[arg(long, env = "TAILWIND_ACCEPT_LOSS", value_name = "LOG/LSN")]
    pub accept_loss: Option<AcceptedLoss>,
    /// What an ack promises: memory of every member; battery, the same with hold-up power attested; flushed, also disk
    #[arg(long, env = "TAILWIND_DURABILITY", default_value = "memory")]
    pub durability: Durability,
    /// Unit of opening and closing, a power of two from 64KiB to 64MiB: larger ones cost memory (6 of them here), smaller
    /// ones more control calls. At most the backups' own
    #[arg(long, env = "TAILWIND_SEGMENT_SIZE", default_value = "8MiB", value_parser = parse_segment_size)]
    pub segment_size: SegmentSize,
    /// How bytes reach the backups; the same for every process of the group
    #[arg(long, env = "TAILWIND_FABRIC", value_enum, default_value_t = FabricOption::Shm)]
    pub fabric: FabricOption,
    /// Used with --fabric verbs and auto.
    #[command(flatten)]
    pub rdma: RdmaOptions,
    /// Users that may connect to the socket, or `any`, for a pod that nothing else can reach; none listed: root and the
    /// sidecar's own user
    #[arg(long, env = "TAILWIND_ALLOW_UID", value_name = "UID", value_delimiter = ',')]
    pub allow_uid: Vec<AllowedUid>,
    /// Memory for batches that clients are sending, over all connections: more lets more large ones come at once, the others
    /// wait. At least half of --segment-size and 16 bytes, so that the largest batch fits
    #[arg(long, env = "TAILWIND_BATCH_MEMORY", default_value = "64MiB", value_parser = parse_size, value_name = "SIZE")]
    pub batch_memory: u64,
    /// A client that takes nothing of its read for so long is disconnected, and so is one that leaves a batch half sent while
    /// others wait for its memory: longer forgives stopped processes, shorter frees their places sooner
    #[arg(long, env = "TAILWIND_CLIENT_PATIENCE_MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub client_patience_ms: u64,
    /// How often this sidecar shows that it lives; a tenth of --heartbeat-silence-ms is plenty
    #[arg(long, env = "TAILWIND_HEARTBEAT_INTERVAL_MS", default_value_t = 25)]
    #[arg(value_parser = value_parser!(u64).range(1..=10_000))]
    pub heartbeat_interval_ms: u64,
    /// A peer silent for so long is dead: shorter finds dead hosts faster, longer forgives pauses of busy machines. For backups
    /// over verbs 40 times as much, since cards notice dead hosts (--rdma-patience)
    #[arg(long, env = "TAILWIND_HEARTBEAT_SILENCE_MS", default_value_t = 300)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    pub heartbeat_silence_ms: u64,
    /// How long a promotion waits for slower members once enough are fenced; those that miss it are re-replicated
    #[arg(long, env = "TAILWIND_FENCE_PATIENCE_MS", default_value_t = 150)]
    #[arg(value_parser = value_parser!(u64).range(0..=3_600_000))]
    pub fence_patience_ms: u64,
    /// How long one backup without free buffers may hold up the group before it is replaced
    #[arg(long, env = "TAILWIND_OPEN_PATIENCE_MS", default_value_t = 2000)]
    #[arg(value_parser = value_parser!(u64).range(1..=3_600_000))]
    pub open_patience_ms: u64,
    /// How long a control call may take; longer than a backup's fsync
    #[arg(long, env = "TAILWIND_RPC_TIMEOUT_MS", default_value_t = 2000)]
    #[arg(value_parser = value_parser!(u64).range(10..=3_600_000))]
    pub rpc_timeout_ms: u64,
    /// How long the append path looks for work before it sleeps: more microseconds cost CPU and save wake-ups
    #[arg(long, env = "TAILWIND_SPIN_US", default_value_t = 50)]
    #[arg(value_parser = value_parser!(u64).range(0..=1_000_000))]
    pub spin_us: u64,
    /// Guards the control RPC between pods.
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Guards the control RPC on one host.
    #[command(flatten)]
    pub token: TokenOptions,
}

/// `8MiB`, `64 KiB`, `1GiB` or plain bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim();
    let shift = match unit {
        "" | "B" => 0,
        "KiB" | "Ki" => 10,
        "MiB" | "Mi" => 20,
        "GiB" | "Gi" => 30,
        _ => return Err(format!("unit `{unit}`: use KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size such as 8MiB"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

/// A segment size, see [`SegmentSize`].
pub fn parse_segment_size(text: &str) -> Result<SegmentSize, String> {
    SegmentSize::new(parse_size(text)?).map_err(|error| error.to_string())
}

/// Writes an address so that a reader sees all of it or nothing.
pub fn write_port_file(path: &Path, address: SocketAddr) -> anyhow::Result<()> {
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, format!("{address}\n")).with_context(|| format!("write {}", fresh.display()))?;
    std::fs::rename(&fresh, path).with_context(|| format!("rename to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_binary_suffixes() {
        assert_eq!(parse_size("8MiB"), Ok(8 << 20));
        assert_eq!(parse_size("64 KiB"), Ok(64 << 10));
        assert_eq!(parse_size("1Gi"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        for bad in ["", "MiB", "8MB", "8.5MiB", "-1", "99999999999999GiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        let error = parse_segment_size("3MiB").unwrap_err();
        assert_eq!(error, "segment size 3 MiB: must be a power of two between 64 KiB and 64 MiB");
    }

    #[test]
    fn users_are_a_list_or_all() {
        let allowed = |texts: &[&str]| {
            let listed: Vec<AllowedUid> = texts.iter().map(|text| text.parse().unwrap()).collect();
            AllowedUid::all(&listed)
        };
        assert_eq!(allowed(&[]), Allowed::Own);
        assert_eq!(allowed(&["0", "1000"]), Allowed::Listed(vec![0, 1000]));
        assert_eq!(allowed(&["0", "any"]), Allowed::Anybody);
        assert!("everyone".parse::<AllowedUid>().is_err());
        assert!(Allowed::Listed(vec![7]).admits(7) && !Allowed::Listed(vec![7]).admits(0) && Allowed::Own.admits(0));
    }

    #[test]
    fn backups_are_pairs_of_name_and_address() {
        let backup: BackupAddress = "b0=127.0.0.1:7420".parse().unwrap();
        assert_eq!((backup.name.as_str(), backup.control.as_str()), ("b0", "127.0.0.1:7420"));
        for bad in ["b0", "b0=", "b0=host", "b0=host:0", "B0=host:1", "b0=host:99999", "=host:1"] {
            assert!(bad.parse::<BackupAddress>().is_err(), "{bad}");
        }
    }
}
