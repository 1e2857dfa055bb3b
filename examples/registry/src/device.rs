//! What the table has of a device: its key, and the bytes of its value.

use std::time::{Duration, SystemTime};

/// Begins the keys of all devices.
pub(crate) const PREFIX: &str = "device/";

/// A device, as its last report has left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// When that was, by the clock of the host that put it: since 1970, to the nanosecond. So no two puts have the same value.
    pub(crate) reported: Duration,
    /// Number of reports.
    pub(crate) reports: u64,
    /// What the device has told of itself.
    pub(crate) state: String,
}

impl Device {
    /// A device after this many reports, of which this is the last.
    pub(crate) fn now(reports: u64, state: &str) -> Device {
        Device { reported: now(), reports, state: state.to_owned() }
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        format!("{} {} {}", self.reported.as_nanos(), self.reports, self.state).into_bytes()
    }

    /// `None` for what this app has not put.
    pub(crate) fn from_value(value: &[u8]) -> Option<Device> {
        let mut words = str::from_utf8(value).ok()?.splitn(3, ' ');
        let reported = Duration::from_nanos(words.next()?.parse().ok()?);
        Some(Device { reported, reports: words.next()?.parse().ok()?, state: words.next()?.to_owned() })
    }
}

/// Since 1970, by this host's clock.
pub(crate) fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// The key of the device with this name.
pub(crate) fn key(id: &str) -> Vec<u8> {
    format!("{PREFIX}{id}").into_bytes()
}

/// The name of the device with this key.
pub(crate) fn id(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(PREFIX.as_bytes()).unwrap_or(key)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written() {
        for state in ["on", "", "two words, 21 °C"] {
            let device = Device::now(7, state);
            assert_eq!(Device::from_value(&device.to_value()), Some(device));
        }
        assert_eq!(id(&key("lamp/1")), "lamp/1");
    }

    #[test]
    fn values_of_other_apps_are_no_devices() {
        for value in ["", "on", "1 on", "-1 2 on", "1 x on", "1 2", "99999999999999999999 2 on"] {
            assert_eq!(Device::from_value(value.as_bytes()), None, "{value}");
        }
        assert_eq!(Device::from_value(b"1 2 \xff"), None);
    }
}
