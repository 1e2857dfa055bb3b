//! A link of limited bandwidth between sidecars and backups: the sidecars get a network namespace of their own, and what they
//! send passes a token bucket (tc-tbf(8)).
//!
//! Used by the comparison `chain`. Needs root, and the programs `ip` and `tc` of iproute2. `./bench` removes the namespace of a
//! run that was killed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tailwind_e2e::processes::group::NetworkHost;

/// The two ends, in the network that is reserved for benchmarks (RFC 2544).
const THIS_SIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 73, 1);
const FAR_SIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 73, 2);
/// What may wait for the link: as much as it carries in this time.
const QUEUE: &str = "100ms";
/// What it carries at once: several of the largest packets that the kernel hands over.
const BURST: &str = "256kb";

/// The link. Goes with its namespace when dropped; processes there must be gone.
#[derive(Debug)]
pub(crate) struct Uplink {
    namespace: String,
    device: String,
}

impl Uplink {
    /// A link that carries `rate`, in the words of tc(8), towards this side.
    pub(crate) fn open(rate: &str) -> Result<Uplink> {
        let number = std::process::id();
        let uplink = Uplink { namespace: format!("tailwind-bench-{number}"), device: format!("twb-{number}") };
        let Uplink { namespace, device } = &uplink;
        for command in [
            format!("ip netns add {namespace}"),
            format!("ip link add {device} type veth peer name uplink netns {namespace}"),
            format!("ip address add {THIS_SIDE}/30 dev {device}"),
            format!("ip link set {device} up"),
            format!("ip -n {namespace} address add {FAR_SIDE}/30 dev uplink"),
            format!("ip -n {namespace} link set lo up"),
            format!("ip -n {namespace} link set uplink up"),
            format!("tc -n {namespace} qdisc add dev uplink root tbf rate {rate} burst {BURST} latency {QUEUE}"),
        ] {
            run(&command)?;
        }
        Ok(uplink)
    }

    /// Where the backups are.
    pub(crate) fn this_side(&self) -> IpAddr {
        THIS_SIDE.into()
    }

    /// Where the sidecars are.
    pub(crate) fn far_side(&self) -> NetworkHost {
        NetworkHost { namespace: self.namespace.clone(), address: FAR_SIDE.into() }
    }

    /// Bytes that the sidecars have sent, headers and control included.
    pub(crate) fn carried(&self) -> Result<f64> {
        let path = format!("/sys/class/net/{}/statistics/rx_bytes", self.device);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        text.trim().parse().with_context(|| format!("understand {path}"))
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // The pair of devices goes with it.
        let _ = run(&format!("ip netns delete {}", self.namespace));
    }
}

fn run(command: &str) -> Result<()> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().with_context(|| format!("run `{command}`"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{command}`: {}", error.trim());
    Ok(())
}
