//! Options of `tailwind-sidecar run`, and what options of several commands share.
//!
//! Every option has a flag, an environment variable and a sentence on how to choose it.

mod table;
mod values;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use tailwind_protocol::config::{Durability, MEMBERS_MAX};
use tailwind_protocol::ids::{GroupName, MemberId, SidecarId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::promotion::{AcceptedLoss, DiskRecovery};
use tailwind_runtime::logging::LogOptions;

use crate::access::TokenOptions;
use crate::address::{AdvertiseOptions, HostPort};
use crate::fabric::{FabricOption, RdmaOptions};
use crate::kubernetes::GroupPath;
use crate::path::Allowed;
use crate::tls::TlsOptions;

pub use table::{TableOptions, TableSize};
pub use values::{address, number, own_name, writable};

/// A backup that a sidecar may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupAddress {
    /// Its name.
    pub name: MemberId,
    /// [`HostPort`] of its control RPC.
    pub control: String,
}

impl FromStr for BackupAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<BackupAddress, String> {
        let (name, control) = text.split_once('=').ok_or("must be NAME=HOST:PORT")?;
        let control: HostPort = control.parse()?;
        let name = name.parse().map_err(|error: tailwind_protocol::ids::BadName| error.to_string())?;
        Ok(BackupAddress { name, control: control.to_string() })
    }
}

/// The users that may connect to the socket, as an option names them.
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
    /// The users that a list of these allows.
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

/// The headings of the help, in the order in which one meets what is under them.
pub mod heading {
    /// Where others reach this process, and where it is observed.
    pub const NETWORK: &str = "Network";
    /// What carries records.
    pub const FABRIC: &str = "Fabric";
    /// How RDMA is used where it is.
    pub const RDMA: &str = "RDMA (--fabric verbs and auto)";
    /// Options for access to the control RPC.
    pub const ACCESS: &str = "Access to the control RPC";
    /// Memory that a backup lends.
    pub const MEMORY: &str = "Memory";
    /// Where a backup keeps segments.
    pub const DISK: &str = "Disk";
    /// The apps of a sidecar.
    pub const APPS: &str = "Apps";
    /// How long to wait for what.
    pub const TIMING: &str = "Timing";
    /// A group that is a `ReplicaGroup`.
    pub const KUBERNETES: &str = "Kubernetes";
    /// Orders that give something up.
    pub const DISASTER: &str = "After a disaster";
}

/// Most copies. A set has room for one member more, so that a newcomer can join before another leaves.
pub const COPIES_MAX: u64 = MEMBERS_MAX as u64 - 1;

const RUN_EXAMPLES: &str = "\
Examples:
  The first sidecar of a group on one host, with three backups (see `tailwind-sidecar backup --help`):
    tailwind-sidecar run --backup b0=127.0.0.1:7420,b1=127.0.0.1:7421,b2=127.0.0.1:7422
  A standby beside it:
    tailwind-sidecar run --name second --listen 127.0.0.1:7411 --socket /run/tailwind/second.sock \\
      --backup b0=127.0.0.1:7420,b1=127.0.0.1:7421,b2=127.0.0.1:7422
  For apps that only read:
    tailwind-sidecar run --reader --name reader --listen 127.0.0.1:7412 --socket /run/tailwind/reader.sock

Every option can also be set by an environment variable. Exit codes: 0 if ended by SIGTERM or SIGINT; 1 if it failed; 2 if the \
command line is invalid";

/// Run a sidecar: primary, or a standby that takes over when the primary dies.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunOptions {
    /// The group that this sidecar belongs to; the same for its standbys and backups
    #[arg(long, env = "TAILWIND_GROUP", default_value = "default")]
    pub group: GroupName,
    /// This sidecar's name, unique in the group; in Kubernetes the pod's name [default: the host's name]
    #[arg(long, env = "TAILWIND_NAME")]
    pub name: Option<SidecarId>,
    /// A backup that may be used; repeat for each one, spares included. Required unless --replica-group or --reader is given
    #[arg(long, env = "TAILWIND_BACKUP", value_name = "NAME=HOST:PORT", value_delimiter = ',')]
    #[arg(required_unless_present_any = ["replica_group", "reader"])]
    pub backup: Vec<BackupAddress>,
    /// Number of copies, 1 to 7: with r copies the log survives r - 1 failures at once. Three is the usual choice
    #[arg(long, env = "TAILWIND_BACKUPS", default_value_t = 3, value_name = "N", value_parser = number::<u8>(1, COPIES_MAX))]
    pub backups: u8,
    /// Fewest copies for appends: a smaller number favours availability, a larger one safety [default: half of --backups,
    /// rounded up]
    #[arg(long, env = "TAILWIND_MIN_IN_SYNC", value_name = "N", value_parser = number::<u8>(1, COPIES_MAX))]
    pub min_in_sync: Option<u8>,
    /// What an ack promises. `memory`: the record is in the memory of every member; `battery`: the same, with attested hold-up
    /// power; `flushed`: it is also on the disk of every member
    #[arg(long, env = "TAILWIND_DURABILITY", default_value = "memory")]
    pub durability: Durability,
    /// Segment size, a power of two from 64KiB to 64MiB, and at most the backups' segment size. Larger segments take more
    /// memory (8 of them in this process, and 3 for each reader), smaller ones more control calls
    #[arg(long, env = "TAILWIND_SEGMENT_SIZE", default_value = "8MiB", value_name = "SIZE", value_parser = parse_segment_size)]
    pub segment_size: SegmentSize,
    /// Whether it keeps a table.
    #[command(flatten)]
    pub table: TableOptions,
    /// The config store's file, on a file system that all sidecars of the group share, such as NFS: it must support
    /// hard links, but not locks. Later versions are numbered files beside it. With --reader it is only read
    /// [default: /var/lib/tailwind/GROUP/config.json]
    #[arg(long, env = "TAILWIND_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only read: serve reads and follows of the log to apps on this host, and never become primary. Needs no --backup, since the
    /// config store names the members
    #[arg(long, env = "TAILWIND_READER")]
    pub reader: bool,

    /// The socket that apps append to; at most 107 bytes, in a folder that only the app can reach
    /// [default: /run/tailwind/GROUP.sock]
    #[arg(long, env = "TAILWIND_SOCKET", value_name = "PATH", help_heading = heading::APPS)]
    pub socket: Option<PathBuf>,
    /// Users that may connect to the socket, or `any` for a pod that nothing else can reach [default: root and the
    /// sidecar's own user]
    #[arg(long, env = "TAILWIND_ALLOW_UID", value_name = "UID", value_delimiter = ',', help_heading = heading::APPS)]
    pub allow_uid: Vec<AllowedUid>,
    /// Number of clients that may append through shared memory at the same time. Each takes 384 KiB, and makes no system calls
    /// while both sides are busy. All other clients use the socket
    #[arg(long, env = "TAILWIND_RINGS", default_value_t = 64, value_name = "N", value_parser = number::<u64>(0, 64))]
    #[arg(help_heading = heading::APPS)]
    pub rings: u64,
    /// Memory for batches in transit from clients, over all connections: the more there is, the more large batches arrive in
    /// parallel. At least half of --segment-size plus 16 bytes, so that the largest batch fits
    #[arg(long, env = "TAILWIND_BATCH_MEMORY", default_value = "64MiB", value_parser = parse_size, value_name = "SIZE")]
    #[arg(help_heading = heading::APPS)]
    pub batch_memory: u64,
    /// A client is disconnected after this time if it reads none of its data, or leaves a batch half sent while others wait
    /// for its memory: a longer time tolerates stopped processes, a shorter one frees their slots sooner
    #[arg(long, env = "TAILWIND_CLIENT_TIMEOUT_MS", default_value_t = 30_000, value_name = "MS")]
    #[arg(value_parser = number::<u64>(1, u64::MAX), help_heading = heading::APPS)]
    pub client_timeout_ms: u64,

    /// Address of the control RPC, for heartbeats and status. Any address but loopback needs TLS. `[::]` means every address,
    /// IPv4 included; if the kernel has no IPv6, it means 0.0.0.0
    #[arg(long, env = "TAILWIND_LISTEN", default_value = "127.0.0.1:7410", value_name = "IP:PORT", value_parser = address)]
    #[arg(help_heading = heading::NETWORK)]
    pub listen: SocketAddr,
    /// Where other sidecars reach this one.
    #[command(flatten, next_help_heading = heading::NETWORK)]
    pub advertise: AdvertiseOptions,
    /// Write the control address to this file once it is bound: for scripts that use port 0
    #[arg(long, env = "TAILWIND_PORT_FILE", value_name = "PATH", help_heading = heading::NETWORK)]
    pub port_file: Option<PathBuf>,
    /// Serve /healthz, /readyz, /metrics and /report here without TLS, for kubelets, Prometheus and the operator; they
    /// expose no records
    #[arg(long, env = "TAILWIND_METRICS_LISTEN", value_name = "IP:PORT", value_parser = address)]
    #[arg(help_heading = heading::NETWORK)]
    pub metrics_listen: Option<SocketAddr>,

    /// Guards the control RPC between pods.
    #[command(flatten, next_help_heading = heading::ACCESS)]
    pub tls: TlsOptions,
    /// Guards the control RPC on one host.
    #[command(flatten, next_help_heading = heading::ACCESS)]
    pub token: TokenOptions,

    /// Fabric that carries bytes to the backups; the same for every process of the group
    #[arg(long, env = "TAILWIND_FABRIC", value_enum, default_value_t = FabricOption::Shm)]
    #[arg(help_heading = heading::FABRIC)]
    pub fabric: FabricOption,
    /// How long the append path polls before it sleeps: a longer time uses more CPU and saves wake-ups
    #[arg(long, env = "TAILWIND_SPIN_US", default_value_t = 50, value_name = "US")]
    #[arg(value_parser = number::<u64>(0, 1_000_000), help_heading = heading::FABRIC)]
    pub spin_us: u64,
    /// Used with --fabric verbs and auto.
    #[command(flatten, next_help_heading = heading::RDMA)]
    pub rdma: RdmaOptions,

    /// Interval between heartbeats; a tenth of --heartbeat-silence-ms is plenty
    #[arg(long, env = "TAILWIND_HEARTBEAT_INTERVAL_MS", default_value_t = 25, value_name = "MS")]
    #[arg(value_parser = number::<u64>(1, 10_000), help_heading = heading::TIMING)]
    pub heartbeat_interval_ms: u64,
    /// A peer that is silent for this time counts as dead: a shorter time detects dead hosts faster, a longer one tolerates
    /// pauses of busy machines. 40 times as long for backups over verbs, where the cards detect dead hosts (--rdma-retry)
    #[arg(long, env = "TAILWIND_HEARTBEAT_SILENCE_MS", default_value_t = 300, value_name = "MS")]
    #[arg(value_parser = number::<u64>(1, 3_600_000), help_heading = heading::TIMING)]
    pub heartbeat_silence_ms: u64,
    /// How long a standby without a connected app waits before it tries to become primary, so that standbys with an app win.
    /// Use 2000 if apps may be missing on some hosts, as in Kubernetes; with 0, all standbys are alike
    #[arg(long, env = "TAILWIND_APP_WAIT_MS", default_value_t = 0, value_name = "MS")]
    #[arg(value_parser = number::<u64>(0, 3_600_000), help_heading = heading::TIMING)]
    pub app_wait_ms: u64,
    /// How long a promotion waits for slower members once enough are fenced; late members are re-replicated
    #[arg(long, env = "TAILWIND_FENCE_WAIT_MS", default_value_t = 150, value_name = "MS")]
    #[arg(value_parser = number::<u64>(0, 3_600_000), help_heading = heading::TIMING)]
    pub fence_wait_ms: u64,
    /// How long a backup that has no free buffer or confirms nothing may delay the group before it is replaced
    #[arg(long, env = "TAILWIND_OPEN_TIMEOUT_MS", default_value_t = 2000, value_name = "MS")]
    #[arg(value_parser = number::<u64>(1, 3_600_000), help_heading = heading::TIMING)]
    pub open_timeout_ms: u64,
    /// Timeout of a control call; must exceed a backup's fsync
    #[arg(long, env = "TAILWIND_RPC_TIMEOUT_MS", default_value_t = 2000, value_name = "MS")]
    #[arg(value_parser = number::<u64>(10, 3_600_000), help_heading = heading::TIMING)]
    pub rpc_timeout_ms: u64,

    /// Accept that the log with this id ends at this record, even if later records were acknowledged. It holds once. Use it only when the
    /// sidecar reports that it waits for damaged members or for a newer config store (docs/runbooks)
    #[arg(long, env = "TAILWIND_ACCEPT_LOSS", value_name = "LOG/LSN", help_heading = heading::DISASTER)]
    pub accept_loss: Option<AcceptedLoss>,
    /// Recover the log with this id from disks, as it was after this epoch, the last that had a primary: all members of its set have
    /// lost their memory. The order ends with the recovery. What was acknowledged after the last sync may be lost. One member's disk suffices. Use it only when the sidecar reports that members are missing whose
    /// memory is new, and no member with its memory will come back (docs/runbooks/TailwindGroupUnavailable.md)
    #[arg(long, env = "TAILWIND_RECOVER_FROM_DISK", value_name = "LOG/EPOCH", help_heading = heading::DISASTER)]
    pub recover_from_disk: Option<DiskRecovery>,

    /// The ReplicaGroup that this sidecar belongs to. Its status.log is the config store; its spec gives the backups, the
    /// number of copies and the fabric
    #[arg(long, env = "TAILWIND_REPLICA_GROUP", value_name = "NAMESPACE/NAME", help_heading = heading::KUBERNETES)]
    #[arg(conflicts_with_all = ["group", "config", "backup", "backups", "min_in_sync", "accept_loss", "recover_from_disk", "durability", "segment_size", "fabric"])]
    pub replica_group: Option<GroupPath>,
    /// Service that leads to the primary: while this sidecar is primary, it keeps its address in the EndpointSlice of this name.
    /// The operator creates both, and sets this option
    #[arg(long, env = "TAILWIND_PRIMARY_SERVICE", value_name = "NAME", requires = "replica_group")]
    #[arg(help_heading = heading::KUBERNETES)]
    pub primary_service: Option<String>,

    /// What it logs.
    #[command(flatten)]
    pub log: LogOptions,
}

impl RunOptions {
    /// The group's name.
    pub fn group(&self) -> &GroupName {
        self.replica_group.as_ref().map_or(&self.group, |path| &path.name)
    }
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
    // Of this process: others may write such files beside it.
    let mut fresh = path.to_owned().into_os_string();
    fresh.push(format!(".{}.new", std::process::id()));
    let fresh = PathBuf::from(fresh);
    std::fs::write(&fresh, format!("{address}\n")).with_context(|| format!("write {}", fresh.display()))?;
    std::fs::rename(&fresh, path).with_context(|| format!("rename to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_files_whose_names_differ_behind_a_dot_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let (first, second) = (folder.path().join("port.first"), folder.path().join("port.second"));
        // What another process has left, or is writing.
        std::fs::create_dir(folder.path().join("port.new")).unwrap();
        write_port_file(&first, address(1)).unwrap();
        write_port_file(&second, address(2)).unwrap();
        assert_eq!(std::fs::read_to_string(first).unwrap(), "127.0.0.1:1\n");
        assert_eq!(std::fs::read_to_string(second).unwrap(), "127.0.0.1:2\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    }

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
        let backup: BackupAddress = "b0=[::1]:7420".parse().unwrap();
        assert_eq!(backup.control.as_str(), "[::1]:7420");
        for bad in ["b0", "b0=", "b0=host", "b0=host:0", "B0=host:1", "b0=host:99999", "=host:1", "b0=::1:7420"] {
            assert!(bad.parse::<BackupAddress>().is_err(), "{bad}");
        }
    }

    /// The headings in the order of the help, without the first one, and the options under each.
    fn headings(command: &clap::Command) -> Vec<(String, Vec<String>)> {
        let mut found: Vec<(String, Vec<String>)> = Vec::new();
        for arg in command.get_arguments() {
            let (Some(long), heading) = (arg.get_long(), arg.get_help_heading().unwrap_or_default()) else { continue };
            match found.iter_mut().find(|(known, _)| known == heading) {
                Some((_, options)) => options.push(long.to_owned()),
                None => found.push((heading.to_owned(), vec![long.to_owned()])),
            }
        }
        found
    }

    #[test]
    fn options_stand_under_their_headings() {
        let run = headings(&RunOptions::augment_args(clap::Command::new("run")));
        let backup = headings(&crate::backup::BackupOptions::augment_args(clap::Command::new("backup")));
        let doctor = headings(&crate::commands::doctor::DoctorOptions::augment_args(clap::Command::new("doctor")));
        for (command, name) in [(&run, "run"), (&backup, "backup"), (&doctor, "doctor")] {
            let (_, rdma) = command.iter().find(|(heading, _)| heading == heading::RDMA).unwrap();
            assert!(rdma.iter().all(|option| option.starts_with("rdma-")) && rdma.len() == 5, "{name}: {rdma:?}");
        }
        let order: Vec<&str> = run.iter().map(|(heading, _)| heading.as_str()).collect();
        assert_eq!(
            order,
            [
                "",
                "Apps",
                "Network",
                "Access to the control RPC",
                "Fabric",
                "RDMA (--fabric verbs and auto)",
                "Timing",
                "After a disaster",
                "Kubernetes",
                "Logging"
            ]
        );
        let order: Vec<&str> = backup.iter().map(|(heading, _)| heading.as_str()).collect();
        assert_eq!(
            order,
            [
                "",
                "Network",
                "Access to the control RPC",
                "Fabric",
                "RDMA (--fabric verbs and auto)",
                "Memory",
                "Disk",
                "Timing",
                "Logging"
            ]
        );
        assert_eq!(run[0].1[..3], ["group", "name", "backup"]);
        assert_eq!(backup[0].1, ["group", "name"]);
        assert_eq!(run.last().unwrap().1, ["log", "log-format"]);
    }

    #[test]
    fn group_and_name_follow_one_rule() {
        #[derive(clap::Parser)]
        struct Run {
            #[command(flatten)]
            options: RunOptions,
        }
        #[derive(clap::Parser)]
        struct Backup {
            #[command(flatten)]
            options: crate::backup::BackupOptions,
        }
        let run = <Run as clap::Parser>::parse_from(["run", "--backup", "b0=127.0.0.1:1"]).options;
        let backup = <Backup as clap::Parser>::parse_from(["backup"]).options;
        assert_eq!((run.group.as_str(), backup.group.as_str()), ("default", "default"));
        assert!(run.name.is_none() && backup.name.is_none(), "the host's name is found when it starts");
    }
}
