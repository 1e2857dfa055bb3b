//! What `/proc` tells of the program's processes: which descriptors may write to which file, and how far they have come.
//!
//! Of `/proc` only `fd`, `fdinfo`, `maps` and `stat` are read: what the default profiles of container runtimes leave alone.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use rustix::io::Errno;

use crate::call::{Descriptor, Thread};

/// A file, as a descriptor or a name leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) links: u32,
}

/// What a descriptor is, by `fdinfo`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Info {
    pub(crate) position: u64,
    pub(crate) inode: u64,
    pub(crate) mount: u64,
    pub(crate) writable: bool,
}

/// A descriptor of a process that may write to a regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Writer {
    pub(crate) process: u32,
    pub(crate) descriptor: i32,
    pub(crate) info: Info,
}

/// A process of the program whose descriptors cannot be seen: what it writes is unknown.
#[derive(Debug, thiserror::Error)]
#[error(
    "process {process} of the program cannot be looked at in /proc ({source}): it runs as another user than tailwind-exec, \
     or a security profile forbids it"
)]
pub(crate) struct Hidden {
    process: u32,
    source: io::Error,
}

/// What a file's status says.
pub(crate) fn identity(
    at: impl rustix::path::Arg,
    directory: impl std::os::fd::AsFd,
    flags: AtFlags,
) -> Result<Identity, Errno> {
    let found = statx(directory, at, flags, StatxFlags::BASIC_STATS)?;
    Ok(Identity {
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        kind: FileType::from_raw_mode(found.stx_mode.into()),
        mode: found.stx_mode.into(),
        links: found.stx_nlink,
    })
}

/// The file behind a descriptor of a thread; `None` if there is none.
pub(crate) fn descriptor(thread: Thread, descriptor: Descriptor) -> Option<Identity> {
    identity(format!("/proc/{thread}/fd/{}", descriptor.0), CWD, AtFlags::empty()).ok()
}

/// Whether the descriptors of a thread can be seen.
pub(crate) fn can_look(thread: Thread) -> bool {
    fs::read_dir(format!("/proc/{thread}/fd")).is_ok()
}

/// What a descriptor of a process or thread is now; `None` if it is closed.
pub(crate) fn info(process: u32, descriptor: i32) -> Option<Info> {
    parse_info(&fs::read_to_string(format!("/proc/{process}/fdinfo/{descriptor}")).ok()?)
}

fn parse_info(text: &str) -> Option<Info> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    // O_WRONLY and O_RDWR.
    let access = u32::from_str_radix(field("flags")?, 8).ok()? & 3;
    Some(Info {
        position: field("pos")?.parse().ok()?,
        inode: field("ino")?.parse().ok()?,
        mount: field("mnt_id")?.parse().ok()?,
        writable: access != 0,
    })
}

/// When a thread began, in ticks since the machine did: with its number, that names it for good.
pub(crate) fn began(thread: Thread) -> Option<u64> {
    Some(stat(thread.0)?.1)
}

/// The parent of a process, and when it began.
fn stat(process: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program stands in brackets, and may have any of them itself.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let began = fields.nth(17)?.parse().ok()?;
    Some((parent, began))
}

/// Tries to read a list of processes in which no parent is missing.
const TRIES: usize = 8;

/// All processes that descend from this one, but for itself.
pub(crate) fn descendants() -> io::Result<Vec<u32>> {
    let own = std::process::id();
    let mut tries = TRIES;
    loop {
        tries -= 1;
        let parents = parents()?;
        let others = || parents.keys().copied().filter(|&process| process != own);
        let broken = others().any(|process| lineage(&parents, process, own) == Lineage::Broken);
        if !broken || tries == 0 {
            return Ok(others().filter(|&process| lineage(&parents, process, own) != Lineage::Foreign).collect());
        }
    }
}

fn parents() -> io::Result<HashMap<u32, u32>> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some((parent, _)) = stat(process) {
            parents.insert(process, parent);
        }
    }
    Ok(parents)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lineage {
    Ours,
    Foreign,
    /// An ancestor has ended while the list was read, and its children have another parent now.
    Broken,
}

fn lineage(parents: &HashMap<u32, u32>, process: u32, own: u32) -> Lineage {
    let mut at = process;
    // No line is longer than the list; one that changed while it was read may be a circle.
    for _ in 0..=parents.len() {
        match parents.get(&at) {
            Some(&parent) if parent == own => return Lineage::Ours,
            // The first process, and the kernel's own threads.
            Some(0) => return Lineage::Foreign,
            Some(&parent) => at = parent,
            None => return Lineage::Broken,
        }
    }
    Lineage::Broken
}

/// All descriptors of the program that may write to a regular file of a device.
pub(crate) fn writers(device: u64) -> Result<Vec<Writer>, Hidden> {
    let mut found = Vec::new();
    let processes = descendants().map_err(|source| Hidden { process: std::process::id(), source })?;
    for process in processes {
        let directory = match fs::read_dir(format!("/proc/{process}/fd")) {
            Ok(directory) => directory,
            Err(error) if has_ended(&error) => continue,
            // One that has ended and was not waited for has no descriptors, and nobody may look.
            Err(_) if is_zombie(process) => continue,
            Err(source) => return Err(Hidden { process, source }),
        };
        for entry in directory {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if has_ended(&error) => break,
                Err(source) => return Err(Hidden { process, source }),
            };
            let Some(descriptor) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let is_file = |identity: &Identity| identity.device == device && identity.kind == FileType::RegularFile;
            if self::descriptor(Thread(process), Descriptor(descriptor)).filter(is_file).is_none() {
                continue;
            }
            if let Some(info) = info(process, descriptor).filter(|info| info.writable) {
                found.push(Writer { process, descriptor, info });
            }
        }
    }
    Ok(found)
}

fn has_ended(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH))
}

fn is_zombie(process: u32) -> bool {
    let state = |text: String| text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().next().map(str::to_owned);
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok();
    // Gone by now will do as well.
    text.and_then(state).is_none_or(|state| state == "Z" || state == "X")
}

/// The inodes of a device that a thread has mapped in `address..address + length`.
pub(crate) fn mapped(thread: Thread, device: u64, address: u64, length: u64) -> io::Result<Vec<u64>> {
    let text = fs::read_to_string(format!("/proc/{thread}/maps"))?;
    let end = address.saturating_add(length);
    Ok(text.lines().filter_map(|line| parse_mapping(line, device, address, end)).collect())
}

/// `start-end flags offset major:minor inode path`, all but the inode in hexadecimal digits.
fn parse_mapping(line: &str, device: u64, address: u64, end: u64) -> Option<u64> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut fields = line.split_ascii_whitespace();
    let (first, last) = fields.next()?.split_once('-')?;
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let inode = fields.next()?.parse().ok()?;
    let on_device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32) == device;
    (on_device && inode != 0 && hex(first)? < end && hex(last)? > address).then_some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_is_read() {
        let text = "pos:\t42\nflags:\t0102002\nmnt_id:\t31\nino:\t77\nlock:\t1: POSIX\n";
        assert_eq!(parse_info(text), Some(Info { position: 42, inode: 77, mount: 31, writable: true }));
        assert_eq!(parse_info(&text.replace("0102002", "0100000")).map(|info| info.writable), Some(false));
        assert_eq!(parse_info("pos:\t1\n"), None);
    }

    #[test]
    fn mappings_are_found_by_address() {
        let line = "7f00-8000 rw-s 00000000 08:01 4711   /vol/data/a file";
        let device = rustix::fs::makedev(8, 1);
        assert_eq!(parse_mapping(line, device, 0x7f80, 0x7f81), Some(4711));
        assert_eq!(parse_mapping(line, device, 0x8000, 0x9000), None);
        assert_eq!(parse_mapping(line, device + 1, 0x7f80, 0x7f81), None);
        assert_eq!(parse_mapping("7f00-8000 rw-p 00000000 00:00 0", device, 0, u64::MAX), None);
    }

    #[test]
    fn own_children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("start sleep");
        let found = descendants().expect("list processes");
        child.kill().expect("kill sleep");
        child.wait().expect("wait for sleep");
        assert!(found.contains(&child.id()));
        assert!(!found.contains(&std::process::id()));
    }
}
