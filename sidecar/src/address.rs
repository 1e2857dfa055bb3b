//! Addresses of the control RPC, as options give them and others dial them.
//!
//! Used by [`options`](crate::options), [`run`](crate::run) and [`backup`](crate::backup).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// `HOST:PORT`: a name, an IPv4 address, or an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort(String);

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<HostPort, String> {
        let (host, port) = text.rsplit_once(':').ok_or("must be HOST:PORT")?;
        let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
        if let Ok(address) = text.parse::<SocketAddr>() {
            // One form for each address, so that texts can be compared.
            return if is_port {
                Ok(HostPort(address.to_string()))
            } else {
                Err("the port must be 1 to 65535".to_owned())
            };
        }
        if text.parse::<Ipv6Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() {
            return Err("an IPv6 address needs brackets, such as [2001:db8::1]:7420".to_owned());
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || !host.chars().all(is_name) {
            return Err("must be HOST:PORT".to_owned());
        }
        if !is_port {
            return Err(format!("port `{port}`: must be 1 to 65535"));
        }
        Ok(HostPort(text.to_owned()))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where others reach this process, if not at --listen.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AdvertiseOptions {
    /// IP address at which others reach this process, at the port of --listen. Needed if --listen is `[::]` or 0.0.0.0; in a pod
    /// use $(POD_IP), which has no brackets if it is an IPv6 address
    #[arg(long, env = "TAILWIND_ADVERTISE_IP", value_name = "IP", value_parser = parse_reachable)]
    #[arg(conflicts_with = "advertise")]
    pub advertise_ip: Option<IpAddr>,
    /// The same with a name or another port, such as those of a Service or NAT: `HOST:PORT` or `[IPv6]:PORT`
    #[arg(long, env = "TAILWIND_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<HostPort>,
}

fn parse_reachable(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| "must be an IP address without a port")?;
    match ip.is_unspecified() || ip.is_multicast() {
        true => Err("nobody can connect to this address: give the one of this host".to_owned()),
        false => Ok(ip.to_canonical()),
    }
}

impl AdvertiseOptions {
    /// Where others reach a process that listens on `bound`; none if that is every address and the options do not say.
    pub fn control(&self, bound: SocketAddr) -> Option<String> {
        let named = self.advertise.as_ref().map(HostPort::to_string);
        named.or_else(|| {
            let ip = self.advertise_ip.or_else(|| (!bound.ip().is_unspecified()).then_some(bound.ip()));
            ip.map(|ip| SocketAddr::new(ip, bound.port()).to_string())
        })
    }

    /// This host's address in the group's network: that of `bound`, or else of --advertise-ip.
    pub fn own_ip(&self, bound: SocketAddr) -> IpAddr {
        self.advertise_ip.filter(|_| bound.ip().is_unspecified()).unwrap_or(bound.ip())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_both_needed() {
        let parse = |text: &str| text.parse::<HostPort>().map(|parsed| parsed.to_string());
        for text in ["127.0.0.1:7420", "[fd00::1]:7420", "backup-0.shop.svc:1"] {
            assert_eq!(parse(text), Ok(text.to_owned()));
        }
        assert_eq!(parse("[FD00:0:0::1]:7420"), Ok("[fd00::1]:7420".to_owned()));
        for bad in [
            "",
            "host",
            "host:",
            "host:0",
            "host:65536",
            ":1",
            "[fd00::1]",
            "[fd00::1]:0",
            "1.2.3.4:0",
            "a b:1",
            "a/b:1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        // What Kubernetes makes of $(POD_IP):7420.
        for bare in ["fd00::1:7420", "::1:7420", "fd00::1", "1:2:3:4:5:6:7:8:7420"] {
            assert!(parse(bare).unwrap_err().contains("brackets"), "{bare}");
        }
    }

    #[test]
    fn a_process_is_reached_where_it_listens_unless_told() {
        let every: SocketAddr = "[::]:7410".parse().unwrap();
        let one: SocketAddr = "[fd00::2]:7410".parse().unwrap();
        let ip = |text: &str| AdvertiseOptions { advertise_ip: Some(parse_reachable(text).unwrap()), advertise: None };
        let named = AdvertiseOptions { advertise: Some("nat:1".parse().unwrap()), advertise_ip: None };
        assert_eq!(AdvertiseOptions::default().control(every), None);
        assert_eq!(AdvertiseOptions::default().control(one).unwrap(), "[fd00::2]:7410");
        assert_eq!(ip("fd00::1").control(every).unwrap(), "[fd00::1]:7410");
        assert_eq!(ip("10.0.0.1").control(every).unwrap(), "10.0.0.1:7410");
        assert_eq!(ip("::ffff:10.0.0.1").control(every).unwrap(), "10.0.0.1:7410");
        assert_eq!(named.control(every).unwrap(), "nat:1");
        assert_eq!(ip("fd00::1").own_ip(every).to_string(), "fd00::1");
        assert_eq!(ip("fd00::1").own_ip(one).to_string(), "fd00::2", "a NAT's address is not this host's");
        for bad in ["", "::", "0.0.0.0", "ff02::1", "[fd00::1]", "10.0.0.1:7410", "host"] {
            assert!(parse_reachable(bad).is_err(), "{bad}");
        }
    }
}
