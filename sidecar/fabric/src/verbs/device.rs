//! Devices, their ports and GIDs: what the host has, and an open device.
//!
//! [`list_devices`] is called by the preflight and before a port is selected; everything else needs a [`Context`].

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use super::report::{DeviceReport, GidKind, GidReport, LinkLayer, PortReport};
use super::{check, ffi};

/// GIDs looked at for each port: `sgid_index` is one byte.
const GIDS_MAX: u32 = 256;

/// Every RDMA device of the host that this process can see. Empty without any, also where the kernel has no RDMA at all.
pub fn list_devices() -> io::Result<Vec<DeviceReport>> {
    let devices = match Devices::list() {
        Ok(devices) => devices,
        // No RDMA in this kernel: ibv_get_device_list(3).
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(devices.as_slice().iter().map(report).collect())
}

fn report(raw: &*mut ffi::ibv_device) -> DeviceReport {
    let device = ibverbs::Device::from(raw);
    let name = device.name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let guid = device.guid().map(|guid| format!("{:016x}", u64::from(guid))).unwrap_or_default();
    let empty = DeviceReport { pci: pci(&name), guid, name, ports: Vec::new(), problem: None };
    let opened = Context::of(*raw, empty.name.clone()).and_then(|context| {
        let numbers = 1..=context.attributes()?.phys_port_cnt;
        numbers.map(|number| context.port(number)).collect::<io::Result<_>>()
    });
    match opened {
        Ok(ports) => DeviceReport { ports, ..empty },
        Err(error) => DeviceReport { problem: Some(error.to_string()), ..empty },
    }
}

/// The PCI address behind a device, from sysfs.
fn pci(device: &str) -> Option<String> {
    let link = std::fs::read_link(Path::new("/sys/class/infiniband").join(device).join("device")).ok()?;
    let name = link.file_name()?.to_str()?.to_owned();
    // Software devices hang below /sys/devices/virtual and have no address such as 0000:03:02.1.
    (name.matches(':').count() == 2 && name.contains('.')).then_some(name)
}

/// libibverbs' list of devices.
struct Devices {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl Devices {
    fn list() -> io::Result<Devices> {
        let mut count = 0;
        // SAFETY: `count` is a valid place for an int.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        let list = NonNull::new(list).ok_or_else(io::Error::last_os_error)?;
        Ok(Devices { list, count: count.max(0) as usize })
    }

    fn as_slice(&self) -> &[*mut ffi::ibv_device] {
        // SAFETY: libibverbs returned an array of `count` device pointers, which lives until it is freed in `drop`.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed once. Opened devices stay valid: ibv_free_device_list(3).
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) }
    }
}

/// An open device. Everything that is made from it holds an `Arc` of it, so that it closes last.
#[derive(Debug)]
pub(super) struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
}

// SAFETY: libibverbs is thread safe; its objects may be used from any thread: ibv_open_device(3), "libibverbs thread safety".
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device by its name.
    pub(super) fn open(name: &str) -> io::Result<Context> {
        let devices = Devices::list()?;
        let named = |device: &&*mut ffi::ibv_device| {
            ibverbs::Device::from(*device).name().is_some_and(|found| found.to_bytes() == name.as_bytes())
        };
        let device = devices.as_slice().iter().find(named);
        let device = device.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such device"))?;
        Context::of(*device, name.to_owned())
    }

    fn of(device: *mut ffi::ibv_device, name: String) -> io::Result<Context> {
        // SAFETY: the device is from a list that has not been freed: both callers hold it.
        let raw = unsafe { ffi::ibv_open_device(device) };
        // Not every provider sets errno.
        let refused = || match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(0) => io::Error::other("ibv_open_device failed without a reason"),
            error => error,
        };
        Ok(Context { raw: NonNull::new(raw).ok_or_else(refused)?, name })
    }

    /// For calls of this module's siblings.
    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Limits of the device.
    pub(super) fn attributes(&self) -> io::Result<ffi::ibv_device_attr> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the context is open and `attributes` is a valid place to write to.
        check(unsafe { ffi::ibv_query_device(self.raw(), &mut attributes) })?;
        Ok(attributes)
    }

    /// One port and its GIDs.
    pub(super) fn port(&self, number: u8) -> io::Result<PortReport> {
        let mut attributes = ffi::ibv_port_attr::default();
        // SAFETY: the context is open. The exported symbol fills the older and shorter form of the same structure, so that it
        // stays within `attributes`; what it leaves out is zero.
        check(unsafe { ffi::ibv_query_port(self.raw(), number, ptr::from_mut(&mut attributes).cast()) })?;
        let link = match u32::from(attributes.link_layer) {
            ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            ffi::IBV_LINK_LAYER_INFINIBAND | ffi::IBV_LINK_LAYER_UNSPECIFIED => LinkLayer::InfiniBand,
            _ => LinkLayer::Other,
        };
        let indexes = 0..(attributes.gid_tbl_len.max(0) as u32).min(GIDS_MAX);
        Ok(PortReport {
            number,
            is_active: attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            link,
            mtu: bytes_of_mtu(attributes.active_mtu),
            lid: attributes.lid,
            message_max: attributes.max_msg_sz,
            gids: indexes.filter_map(|index| self.gid(number, index as u8)).collect(),
        })
    }

    /// One entry of a GID table; `None` for a hole.
    fn gid(&self, port: u8, index: u8) -> Option<GidReport> {
        let mut entry = ffi::ibv_gid_entry::default();
        // SAFETY: the context is open and `entry` is a valid place of the given size.
        let returned = unsafe {
            ffi::_ibv_query_gid_ex(
                self.raw(),
                port.into(),
                index.into(),
                &mut entry,
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        check(returned).ok()?;
        // SAFETY: all bytes of the union are initialised, and any bytes are an array of bytes.
        let gid = Ipv6Addr::from(unsafe { entry.gid.raw });
        let kind = match entry.gid_type {
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::InfiniBand,
        };
        let report = GidReport { index, gid, kind, is_ours: false };
        let is_ours = kind != GidKind::InfiniBand && is_local(report.address());
        (!gid.is_unspecified()).then_some(GidReport { is_ours, ..report })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; all that was made from it holds an Arc and so is gone. An error leaves the file
        // descriptor open until the process ends, which is harmless.
        let _ = unsafe { ffi::ibv_close_device(self.raw()) };
    }
}

/// Whether an address belongs to this network namespace: only then can a socket be bound to it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// `enum ibv_mtu` counts powers of two from 256 = 1.
fn bytes_of_mtu(mtu: ffi::ibv_mtu) -> u16 {
    128_u16.checked_shl(mtu).unwrap_or(0)
}

/// And back: the largest that fits.
pub(super) fn mtu_of_bytes(bytes: u16) -> ffi::ibv_mtu {
    (ffi::IBV_MTU_256..=ffi::IBV_MTU_4096).rev().find(|mtu| bytes_of_mtu(*mtu) <= bytes).unwrap_or(ffi::IBV_MTU_256)
}

/// libibverbs' words for a status.
pub(super) fn status_text(status: ffi::ibv_wc_status::Type) -> String {
    // SAFETY: returns a constant string for every number: ibv_poll_cq(3).
    let text = unsafe { ffi::ibv_wc_status_str(status) };
    // SAFETY: as above, a zero-terminated constant.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// libibverbs' words for an event.
pub(super) fn event_text(event: ffi::ibv_event_type) -> String {
    // SAFETY: returns a constant string for every number: ibv_get_async_event(3).
    let text = unsafe { ffi::ibv_event_type_str(event) };
    // SAFETY: as above, a zero-terminated constant.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_as_large_as_the_mtu_allows() {
        let mtus =
            [(0, 256), (255, 256), (256, 256), (1023, 512), (1024, 1024), (1500, 1024), (4096, 4096), (9000, 4096)];
        for (bytes, fits) in mtus {
            assert_eq!(bytes_of_mtu(mtu_of_bytes(bytes)), fits, "{bytes}");
        }
    }

    #[test]
    fn loopback_is_local_and_documentation_addresses_are_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()) && is_local("::1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()) && !is_local("2001:db8::1".parse().unwrap()));
    }
}
