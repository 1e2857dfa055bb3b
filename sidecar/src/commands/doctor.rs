//! `doctor`: prints what the [`preflight`](crate::preflight) finds.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use tailwind_protocol::layout::SegmentSize;

use crate::fabric::RdmaOptions;
use crate::options::{heading, parse_segment_size};
use crate::preflight::{CheckStatus, examine};

/// Check whether RDMA works on this host, with advice if it does not.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  Where the pool will be on huge pages:\n    tailwind-sidecar doctor --pool /dev/hugepages\n\n\
                  Exit codes: 0 if RDMA works here; 1 if not; 2 if the command line is invalid"
)]
pub struct DoctorOptions {
    /// The folder for the test buffer; choose the file system that the pool will be on
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pool: PathBuf,
    /// Size of the test buffer: the group's segment size
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_segment_size)]
    segment_size: SegmentSize,
    /// Write JSON instead of lines
    #[arg(long)]
    json: bool,
    /// Which device, and how.
    #[command(flatten, next_help_heading = heading::RDMA)]
    rdma: RdmaOptions,
}

/// Looks and prints. An error if RDMA does not work here.
pub fn run(options: &DoctorOptions) -> anyhow::Result<()> {
    let findings = examine(&options.rdma, &options.pool, options.segment_size);
    let lines: Vec<String> = match options.json {
        true => vec![serde_json::to_string_pretty(&findings)?],
        false => findings.iter().map(ToString::to_string).collect(),
    };
    super::print(&lines)?;
    let bad = findings.iter().filter(|finding| finding.status == CheckStatus::Bad).count();
    if bad > 0 {
        bail!("RDMA does not work here: see the {bad} lines marked FAIL; --fabric tcp works without RDMA");
    }
    Ok(())
}
