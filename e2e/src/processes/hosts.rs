//! Hosts that a test can cut off: network namespaces on one switch, a bridge, to which this machine itself is connected too.
//!
//! Needs root, and `ip` of iproute2.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::group::{Process, Setup};
use super::process::in_namespace;
use crate::certificates::Authority;

/// A network that is reserved for tests of devices (RFC 2544). Each switch has 256 addresses of it.
const NETWORK: [u8; 2] = [198, 19];

/// Switches that this process has made.
static SWITCHES: AtomicU8 = AtomicU8::new(0);

/// A host for each process of a group, and the certificates by which the processes know each other. All go when this is
/// dropped; the processes must be gone.
#[derive(Debug)]
pub struct Hosts {
    switch: String,
    hosts: Vec<Host>,
    certificates: TempDir,
}

#[derive(Debug)]
struct Host {
    process: Process,
    namespace: String,
    address: IpAddr,
}

impl Hosts {
    /// Gives each process of a setup its host.
    pub fn provide(setup: Setup) -> Result<Setup> {
        let certificates = tempfile::tempdir().context("make a folder for certificates")?;
        Authority::generate()?.issue_group(certificates.path(), 0..setup.sidecars, 0..setup.backups)?;

        let (pid, number) = (std::process::id(), SWITCHES.fetch_add(1, Ordering::Relaxed));
        let [a, b] = NETWORK;
        // Other processes may have switches of their own.
        let block = (pid as u8).wrapping_add(number.wrapping_mul(61));
        let host = |(index, process): (usize, Process)| Host {
            process,
            namespace: format!("tailwind-{pid}-{number}-{index}"),
            address: Ipv4Addr::new(a, b, block, index as u8 + 2).into(),
        };
        let processes = (0..setup.sidecars).map(Process::Sidecar).chain((0..setup.backups).map(Process::Backup));
        let hosts = processes.enumerate().map(host).collect();
        let hosts = Hosts { switch: format!("tw{pid}-{number}"), hosts, certificates };
        let here = Ipv4Addr::new(a, b, block, 1);
        hosts.connect_all(here)?;
        Ok(Setup {
            host: here.into(),
            certificates: Some(hosts.certificates.path().to_owned()),
            hosts: Some(Arc::new(hosts)),
            ..setup
        })
    }

    fn connect_all(&self, here: Ipv4Addr) -> Result<()> {
        let Hosts { switch, hosts, .. } = self;
        run(&format!("ip link add {switch} type bridge"))?;
        run(&format!("ip address add {here}/24 dev {switch}"))?;
        run(&format!("ip link set {switch} up"))?;
        for (index, Host { namespace, address, .. }) in hosts.iter().enumerate() {
            let cable = self.cable(index);
            run(&format!("ip netns add {namespace}"))?;
            run(&format!("ip link add {cable} type veth peer name eth0 netns {namespace}"))?;
            run(&format!("ip link set {cable} master {switch} up"))?;
            run(&format!("ip -n {namespace} address add {address}/24 dev eth0"))?;
            run(&format!("ip -n {namespace} link set lo up"))?;
            run(&format!("ip -n {namespace} link set eth0 up"))?;
        }
        Ok(())
    }

    /// Pulls the cable of a process's host: nothing comes or goes, and no connection ends by that.
    pub fn cut_off(&self, process: Process) -> Result<()> {
        self.set(process, "down")
    }

    /// Plugs it in again.
    pub fn connect(&self, process: Process) -> Result<()> {
        self.set(process, "up")
    }

    /// The command, run on the host of this process.
    pub(super) fn place(&self, process: Process, command: &Command) -> Result<Command> {
        Ok(in_namespace(command, &self.hosts[self.find(process)?].namespace))
    }

    pub(super) fn address(&self, process: Process) -> Option<IpAddr> {
        Some(self.hosts[self.find(process).ok()?].address)
    }

    fn set(&self, process: Process, state: &str) -> Result<()> {
        run(&format!("ip link set {} {state}", self.cable(self.find(process)?)))
    }

    fn find(&self, process: Process) -> Result<usize> {
        let index = self.hosts.iter().position(|host| host.process == process);
        index.with_context(|| format!("{process:?} has no host"))
    }

    /// The switch's end.
    fn cable(&self, index: usize) -> String {
        format!("{}-{index}", self.switch)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for Host { namespace, .. } in &self.hosts {
            // The cable goes with it.
            let _ = run(&format!("ip netns delete {namespace}"));
        }
        let _ = run(&format!("ip link delete {}", self.switch));
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
