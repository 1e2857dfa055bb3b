//! inotify: tells which names have changed, and which files were opened and closed. An event is queued before the call that
//! causes it returns.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::{Errno, ioctl_fionread};

use super::tree::{At, What};
use crate::record::{Name, Number};

/// Room for a few hundred events.
const BUFFER: usize = 16 << 10;

/// `struct inotify_event` before the name, which ends in zeros.
const HEADER: usize = 16;
const EVENT_MAX: usize = HEADER + 256;

pub(crate) struct Watch {
    inotify: OwnedFd,
    directories: HashMap<i32, Number>,
    buffer: Box<[u8]>,
    /// What has been read and not taken.
    events: Vec<Event>,
}

/// One event.
pub(crate) enum Event {
    At(At, What),
    /// The queue was full: anything may have happened.
    Overflow,
    /// The file system is gone.
    Unmounted,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Watch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|errno| match errno {
            Errno::MFILE => io::Error::other(
                "no inotify instance is left: this user has /proc/sys/fs/inotify/max_user_instances of them already",
            ),
            errno => errno.into(),
        })?;
        Ok(Watch { inotify, directories: HashMap::new(), buffer: vec![0; BUFFER].into(), events: Vec::new() })
    }

    /// Watches a directory from now on. What happened in it before is for a list to tell.
    pub(crate) fn add(&mut self, directory: BorrowedFd<'_>, number: Number) -> io::Result<()> {
        let mask = WatchFlags::OPEN
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, path, mask).map_err(|errno| match errno {
            Errno::NOSPC => io::Error::other(
                "no inotify watch is left: this user has /proc/sys/fs/inotify/max_user_watches of them already",
            ),
            errno => errno.into(),
        })?;
        self.directories.insert(watch, number);
        Ok(())
    }

    /// The events that have been read, in their order.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What the next [`take`](Watch::take) returns.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Reads what is queued now. A program may queue more without end.
    pub(crate) fn read(&mut self) -> io::Result<()> {
        let mut queued = None;
        loop {
            let read = match rustix::io::read(&self.inotify, &mut self.buffer[..]) {
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let mut rest = &self.buffer[..read];
            while let Some((event, after)) = split_event(rest) {
                rest = after;
                self.events.extend(take(&mut self.directories, &event));
            }
            if read + EVENT_MAX <= self.buffer.len() {
                // It would have taken another one.
                return Ok(());
            }
            queued = match queued {
                None => Some(ioctl_fionread(&self.inotify)? as usize),
                Some(queued) => Some(queued.saturating_sub(read)),
            };
            if queued == Some(0) {
                return Ok(());
            }
        }
    }
}

struct Read<'a> {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: &'a [u8],
}

fn split_event(bytes: &[u8]) -> Option<(Read<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
    let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (name, rest) = rest.split_at_checked(word(12) as usize)?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let flags = ReadFlags::from_bits_retain(word(4));
    Some((Read { watch: word(0).cast_signed(), flags, cookie: word(8), name: &name[..end] }, rest))
}

fn take(directories: &mut HashMap<i32, Number>, event: &Read<'_>) -> Option<Event> {
    if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(Event::Overflow);
    }
    if event.flags.contains(ReadFlags::UNMOUNT) {
        return Some(Event::Unmounted);
    }
    if event.flags.contains(ReadFlags::IGNORED) {
        // The directory is gone. Its number of a watch is not used again.
        directories.remove(&event.watch);
        return None;
    }
    let what = what(event.flags, event.cookie)?;
    // An event of a directory itself has no name: its parent's watch has the same one.
    let name = Name::new(event.name)?;
    Some(Event::At((*directories.get(&event.watch)?, name), what))
}

fn what(flags: ReadFlags, cookie: u32) -> Option<What> {
    let directory = flags.contains(ReadFlags::ISDIR);
    let kinds = [
        (ReadFlags::OPEN, What::Opened),
        (ReadFlags::CLOSE_WRITE, What::Closed),
        (ReadFlags::CREATE, What::Created),
        (ReadFlags::DELETE, What::Deleted),
        (ReadFlags::MOVED_FROM, What::MovedFrom { cookie }),
        (ReadFlags::MOVED_TO, What::MovedTo { cookie }),
        (ReadFlags::ATTRIB, What::Attributes),
    ];
    let (_, what) = kinds.into_iter().find(|(flag, _)| flags.contains(*flag))?;
    (!directory || !matches!(what, What::Opened | What::Closed)).then_some(what)
}
