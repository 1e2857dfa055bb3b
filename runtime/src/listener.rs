//! Binds TCP listeners: `[::]` takes IPv4 as well, and stands for `0.0.0.0` where the kernel has no IPv6.
//!
//! Used by [`http`](crate::http) for every HTTP endpoint, and by backups for their data port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

/// Connections that wait to be accepted. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Binds a listener.
pub fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    with_fallback(address, |address| match is_any_v6(address) {
        true => dual_stack(address),
        false => TcpListener::bind(address),
    })
}

fn is_any_v6(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// The default of `IPV6_V6ONLY` is a setting of the host (`net.ipv6.bindv6only`), so it is set here: ipv6(7).
fn dual_stack(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    // As the standard library does: a restarted process need not wait for connections of the one before to time out.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn with_fallback<T>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    // The first if the kernel was started with ipv6.disable=1, the second where only the addresses are missing.
    let has_no_v6 = |error: &io::Error| {
        [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    match open(address) {
        Err(error) if is_any_v6(address) && has_no_v6(&error) => open((Ipv4Addr::UNSPECIFIED, address.port()).into()),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpStream};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 7410);

    #[test]
    fn any_address_takes_both_families() {
        let listener = bind_listener((Ipv6Addr::UNSPECIFIED, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            TcpStream::connect((host, port)).unwrap_or_else(|error| panic!("{host}: {error}"));
        }
        let taken = bind_listener((Ipv4Addr::UNSPECIFIED, port).into()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn other_addresses_are_taken_as_they_are() {
        let listener = bind_listener((Ipv6Addr::LOCALHOST, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect(("::1", port)).is_ok() && TcpStream::connect(("127.0.0.1", port)).is_err());
    }

    #[test]
    fn without_ipv6_any_address_is_ipv4() {
        let open = |errno: Errno| {
            move |address: SocketAddr| if address.is_ipv6() { Err(errno.into()) } else { Ok(address.to_string()) }
        };
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            assert_eq!(with_fallback(ANY, open(errno)).unwrap(), "0.0.0.0:7410");
            let one = SocketAddr::from((Ipv6Addr::LOCALHOST, 7410));
            assert!(with_fallback(one, open(errno)).is_err(), "one address is not all of them");
        }
        let taken = with_fallback(ANY, open(Errno::ADDRINUSE)).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
