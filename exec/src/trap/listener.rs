//! Receives stopped calls and answers them. See seccomp_unotify(2).
//!
//! Used by the supervisor's one loop, which waits for the descriptor and then receives all that is there.
#![allow(unsafe_code, reason = "the ioctls of a seccomp listener, which no crate wraps")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{
    SECCOMP_GET_NOTIF_SIZES, SECCOMP_IOCTL_NOTIF_ID_VALID, SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND,
    SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FLAG_CONTINUE, SYS_seccomp, seccomp_data, seccomp_notif,
    seccomp_notif_resp, seccomp_notif_sizes,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};

use super::refused::{Counts, Refused};
use super::{Answer, Refusals, Stopped, cannot, rules};
use crate::call::Thread;

const SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP: u64 = 1;

/// Where the stopped calls of a program arrive, and of all that descends from it. When it is dropped, every call that is
/// stopped, then and later, waits indefinitely: the program has one too. Where it has closed that, they fail with ENOSYS.
///
/// Its descriptor polls readable while a call waits to be received, and hung up when no process is left; in older kernels
/// only when the last one has been waited for, too.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
    /// The kernel knows `SYNC_WAKE_UP`.
    wakes_at_once: bool,
    /// What it has refused itself, if that is its task.
    refused: Option<Counts>,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Listener {
    /// The other end of a filter, as seccomp(2) gave it.
    pub(super) fn new(descriptor: OwnedFd, refusals: Refusals) -> Listener {
        let refused = (refusals == Refusals::Counted).then(Counts::default);
        let mut listener = Listener { descriptor, wakes_at_once: false, refused };
        // The waiting thread is woken on the processor of the thread that wakes it (since Linux 6.6). Older kernels do not know
        // the request, and their wake-ups take longer.
        let set = || listener.ioctl(Request::SetFlags(SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP));
        listener.wakes_at_once = retry_on_intr(set).is_ok();
        listener
    }

    /// Whether the waiting thread is woken on the processor of the thread that wakes it.
    pub fn wakes_at_once(&self) -> bool {
        self.wakes_at_once
    }

    /// The next stopped call. `None` if none waits, or if it has gone again: its thread was killed, or caught a signal.
    ///
    /// From here on only its death interrupts the thread. Before, a signal with a handler does, and its call is stopped again
    /// or fails with EINTR, as `SA_RESTART` says: so receive soon.
    pub fn receive(&self) -> io::Result<Option<Stopped>> {
        while self.readable()? {
            if let Some(stopped) = self.take()? {
                return Ok(Some(stopped));
            }
        }
        Ok(None)
    }

    /// The same for a caller that has polled the descriptor readable. It blocks if nothing was stopped since the last call that
    /// was taken.
    pub fn take(&self) -> io::Result<Option<Stopped>> {
        let Some(seccomp_notif { id, pid, data, .. }) = self.notification()? else { return Ok(None) };
        if let Some(counts) = &self.refused
            && let Some(refused) = Refused::find(&data)
        {
            self.answer(id, Answer::Fail(refused.errno()))?;
            counts.add(refused);
            return Ok(None);
        }
        let call = rules::decode(data.nr.cast_unsigned(), &data.args).ok_or_else(|| {
            let what = format!("call {} of thread {pid} was stopped, and no rule says so: {:?}", data.nr, data.args);
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?;
        Ok(Some(Stopped { id, thread: Thread(pid), call }))
    }

    /// What the program was refused, and how often: if that is counted.
    pub fn refused(&self) -> BTreeMap<Refused, u64> {
        self.refused.as_ref().map(Counts::get).unwrap_or_default()
    }

    fn notification(&self) -> io::Result<Option<seccomp_notif>> {
        // Zeros, or the kernel refuses it.
        let mut notification = seccomp_notif {
            id: 0,
            pid: 0,
            flags: 0,
            data: seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] },
        };
        match self.ioctl(Request::Receive(&mut notification)) {
            Ok(()) => Ok(Some(notification)),
            // The call has gone, or the last process has.
            Err(Errno::NOENT | Errno::NOTCONN | Errno::INTR) => Ok(None),
            Err(errno) => Err(cannot("receive a stopped call", errno)),
        }
    }

    /// Lets a stopped thread continue. `false` if it is no longer there.
    pub fn answer(&self, id: u64, answer: Answer) -> io::Result<bool> {
        let (error, flags) = match answer {
            Answer::Go => (0, SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Done => (0, 0),
            Answer::Fail(errno) => (-errno.raw_os_error(), 0),
        };
        let response = seccomp_notif_resp { id, val: 0, error, flags };
        still_there(|| self.ioctl(Request::Send(&response)), "answer a stopped call")
    }

    /// Whether the thread still waits for its answer. What was read of it in `/proc` before is its own only if so: numbers of
    /// threads are used again.
    pub fn waits(&self, id: u64) -> io::Result<bool> {
        still_there(|| self.ioctl(Request::IsValid(&id)), "look for a stopped call")
    }

    /// Whether a call waits. To receive without one would block.
    fn readable(&self) -> io::Result<bool> {
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        retry_on_intr(|| poll(&mut descriptors, Some(&at_once)))?;
        Ok(descriptors[0].revents().contains(PollFlags::IN))
    }

    fn ioctl(&self, request: Request<'_>) -> Result<(), Errno> {
        let listener = self.descriptor.as_raw_fd();
        let result = match request {
            // SAFETY: the descriptor is open as long as `self`; the request takes a number and no pointer.
            Request::SetFlags(flags) => unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, flags) },
            // SAFETY: the descriptor is open as long as `self`; the kernel writes one such struct, no larger than this one
            // (`check_sizes`), and any bytes are valid for its integers.
            Request::Receive(received) => unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, received) },
            // SAFETY: the descriptor is open as long as `self`; the kernel reads one such struct, no larger than this one
            // (`check_sizes`).
            Request::Send(response) => unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, response) },
            // SAFETY: the descriptor is open as long as `self`; the kernel reads one number of 64 bits.
            Request::IsValid(id) => unsafe { libc::ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, id) },
        };
        if result < 0 { Err(last_error()) } else { Ok(()) }
    }
}

/// One for each of the listener's ioctls.
enum Request<'a> {
    SetFlags(u64),
    Receive(&'a mut seccomp_notif),
    Send(&'a seccomp_notif_resp),
    IsValid(&'a u64),
}

/// The kernel takes a lock before it does anything, and a signal to this process interrupts that.
fn still_there(request: impl FnMut() -> Result<(), Errno>, what: &str) -> io::Result<bool> {
    match retry_on_intr(request) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(cannot(what, errno)),
    }
}

/// Refuses a kernel whose notifications are larger than those that this program knows.
pub(super) fn check_sizes() -> io::Result<()> {
    let mut sizes = seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one such struct, whose layout never changes, and any bytes are valid for its integers.
    let result = unsafe { libc::syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    if result < 0 {
        return Err(cannot("learn the size of seccomp's notifications", last_error()));
    }
    let pairs = [
        ("seccomp_notif", sizes.seccomp_notif, size_of::<seccomp_notif>()),
        ("seccomp_notif_resp", sizes.seccomp_notif_resp, size_of::<seccomp_notif_resp>()),
        ("seccomp_data", sizes.seccomp_data, size_of::<seccomp_data>()),
    ];
    for (name, kernel, ours) in pairs {
        if usize::from(kernel) > ours {
            let what =
                format!("{name} has {kernel} bytes in this kernel, and this program knows {ours}: use a newer one");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
    }
    Ok(())
}

pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

// One set of structs for all machines.
const _: () = assert!(size_of::<seccomp_notif>() == 80 && size_of::<seccomp_notif_resp>() == 24);
