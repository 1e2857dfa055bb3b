//! Values of options: parsers whose errors say what is valid, in our words instead of a library's; and names that are not given.
//!
//! Used by every module that declares options.

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::anyhow;
use tailwind_protocol::ids::BadName;
use tailwind_runtime::exit::UsageError;
use tailwind_runtime::logging::explain;

/// A number within these bounds, both included.
pub fn number<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number: Option<u64> = text.trim().parse().ok();
        number.filter(|number| (least..=most).contains(number)).and_then(|number| number.try_into().ok()).ok_or_else(
            || match most {
                u64::MAX => format!("must be a number, {least} or more"),
                _ => format!("must be a number from {least} to {most}"),
            },
        )
    }
}

/// An address to listen on.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "must be IP:PORT, such as 127.0.0.1:7420 or [::1]:7420; host names are not looked up".to_owned())
}

/// The name of a sidecar or backup that was given none: the host's, up to its first dot.
pub fn own_name<N: FromStr<Err = BadName>>(given: Option<N>) -> Result<N, UsageError> {
    match given {
        Some(name) => Ok(name),
        None => name_of_host(&rustix::system::uname().nodename().to_string_lossy()),
    }
}

fn name_of_host<N: FromStr<Err = BadName>>(host: &str) -> Result<N, UsageError> {
    let name = host.split('.').next().unwrap_or_default().to_ascii_lowercase();
    name.parse().map_err(|error| {
        UsageError::new(format!("the name of this host, {host}, cannot be used ({error}): give --name"))
    })
}

/// The error of a place that this user may not write to names the option that chooses another, unless that chose it.
pub fn writable<T, E: Into<anyhow::Error>>(result: Result<T, E>, is_given: bool, option: &str) -> anyhow::Result<T> {
    result.map_err(|error| {
        let error = error.into();
        let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let denied = error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::PermissionDenied));
        match denied && !is_given {
            true => anyhow!("{}: give {option} in a folder that this user may write to", explain(&error)),
            false => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use tailwind_protocol::ids::MemberId;

    use super::*;

    #[test]
    fn a_bad_number_says_which_are_valid() {
        let copies = number::<u8>(1, 7);
        assert_eq!(copies("7"), Ok(7));
        for bad in ["0", "8", "-1", "", "seven", "256", "99999999999999999999"] {
            assert_eq!(copies(bad), Err("must be a number from 1 to 7".to_owned()), "{bad}");
        }
        let batch = number::<usize>(1, u64::MAX);
        assert_eq!((batch("4096"), batch("0")), (Ok(4096), Err("must be a number, 1 or more".to_owned())));
    }

    #[test]
    fn a_bad_address_shows_a_good_one() {
        assert!(address("127.0.0.1:0").is_ok() && address("[::]:7410").is_ok());
        for bad in ["localhost:7410", "7410", "127.0.0.1", "::1:7410"] {
            assert!(address(bad).unwrap_err().contains("such as 127.0.0.1:7420"), "{bad}");
        }
    }

    #[test]
    fn a_name_that_is_not_given_is_the_hosts() {
        assert_eq!(own_name(Some("b0".parse::<MemberId>().unwrap())).unwrap().as_str(), "b0");
        assert_eq!(name_of_host::<MemberId>("Node-7.rack2.example.com").unwrap().as_str(), "node-7");
        for bad in ["", "my_host", ".example"] {
            let why = name_of_host::<MemberId>(bad).unwrap_err().to_string();
            assert!(why.ends_with(": give --name"), "{why}");
        }
    }

    #[test]
    fn a_default_that_may_not_be_written_names_its_option() {
        let tell = |kind: io::ErrorKind, is_given| {
            let result: Result<(), _> =
                Err(anyhow::Error::new(io::Error::from(kind)).context("create folder /var/lib/x"));
            explain(&writable(result, is_given, "--config FILE").unwrap_err())
        };
        let plain = "create folder /var/lib/x: permission denied";
        assert_eq!(
            tell(io::ErrorKind::PermissionDenied, false),
            format!("{plain}: give --config FILE in a folder that this user may write to")
        );
        assert_eq!(tell(io::ErrorKind::PermissionDenied, true), plain);
        assert_eq!(tell(io::ErrorKind::NotFound, false), "create folder /var/lib/x: entity not found");
    }
}
