//! inotify: tells which names have changed, and which files were opened and closed. An event is queued before the call that
//! causes it returns.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::{Errno, ioctl_fionread};

use super::tree::{At, What};
use crate::record::{Name, Number};

/// Room for a few hundred events.
const BUFFER: usize = 16 << 10;

/// Bytes of an event at least: `struct inotify_event` without a name.
const EVENT_MIN: u64 = 16;

pub(crate) struct Watch {
    inotify: OwnedFd,
    directories: HashMap<i32, Number>,
    buffer: Box<[MaybeUninit<u8>]>,
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
        let buffer = vec![MaybeUninit::uninit(); BUFFER].into();
        Ok(Watch { inotify, directories: HashMap::new(), buffer, events: Vec::new() })
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
        let mut left = ioctl_fionread(&self.inotify)? / EVENT_MIN;
        let mut reader = inotify::Reader::new(self.inotify.as_fd(), &mut self.buffer);
        while left > 0 || !reader.is_buffer_empty() {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            left = left.saturating_sub(1);
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.events.push(Event::Overflow);
                continue;
            }
            if flags.contains(ReadFlags::UNMOUNT) {
                self.events.push(Event::Unmounted);
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                // The directory is gone. Its number of a watch is not used again.
                self.directories.remove(&event.wd());
                continue;
            }
            let Some(what) = what(flags, event.cookie()) else { continue };
            // An event of a directory itself has no name: its parent's watch has the same one.
            let name = event.file_name().and_then(|name| Name::new(name.to_bytes()));
            if let (Some(&directory), Some(name)) = (self.directories.get(&event.wd()), name) {
                self.events.push(Event::At((directory, name), what));
            }
        }
        Ok(())
    }
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
