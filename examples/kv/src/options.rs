//! The command line. Every option can be given as an environment variable too.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser};
use tailwind_runtime::logging::LogOptions;

/// A key-value store in memory that speaks RESP, the protocol of Redis, and keeps every write in a Tailwind log.
#[derive(Clone, Debug, Parser)]
#[command(name = "tailwind-kv", version, about, max_term_width = 100)]
pub struct Options {
    /// How to serve.
    #[command(flatten)]
    pub serve: ServeOptions,
    /// How to log.
    #[command(flatten)]
    pub log: LogOptions,
}

/// How to serve.
#[derive(Args, Clone, Debug)]
pub struct ServeOptions {
    /// Where clients connect. There are no passwords: everybody who can reach it can read and write
    #[arg(long, env = "TAILWIND_KV_LISTEN", default_value = "127.0.0.1:6379", value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// The sidecar's append socket. Nothing but this program may append there
    #[arg(long, env = "TAILWIND_SOCKET", default_value = "/run/tailwind/log.sock", value_name = "PATH")]
    pub socket: PathBuf,
    /// Serve /healthz, /readyz and /metrics here, if anywhere
    #[arg(long, env = "TAILWIND_KV_METRICS_LISTEN", value_name = "IP:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Prove with each read that no other server has become primary. Without it a server that has been cut off, and does not
    /// know that it has been replaced, may answer from what it held; it costs each read about as long as a write
    #[arg(long, env = "TAILWIND_KV_STRICT_READS")]
    pub strict_reads: bool,
    /// Bytes of records after which a snapshot is written and the log trimmed; more if there is more data than that
    #[arg(long, env = "TAILWIND_KV_COMPACT_AT", default_value = "64MiB", value_parser = parse_size, value_name = "SIZE")]
    pub compact_at: u64,
    /// Bytes that keys and values may take; beyond, writes that need more are refused. While a snapshot is written or read,
    /// up to twice as much is used
    #[arg(long, env = "TAILWIND_KV_MEMORY_MAX", default_value = "1GiB", value_parser = parse_size, value_name = "SIZE")]
    pub memory_max: u64,
}

/// `64MiB`, `512KiB`, `1GiB` or plain bytes.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "B" => 0,
        "KiB" | "Ki" => 10,
        "MiB" | "Mi" => 20,
        "GiB" | "Gi" => 30,
        unit => return Err(format!("unit `{unit}`: use KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size such as 64MiB"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_with_units() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1 Gi"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        for bad in ["", "MiB", "8MB", "8.5MiB", "-1", "99999999999999GiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
