//! Starts a program under the filter, and brings the listener back.
//!
//! The filter binds the process that installs it, so that is done in the child, between fork and exec. It sends the listener
//! over a pair of sockets; or, if a step fails, the number of that step.
#![allow(
    unsafe_code,
    reason = "the child between fork and exec, and seccomp(2), which no crate offers with a listener"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use libc::{
    CLOSE_RANGE_CLOEXEC, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
    SECCOMP_SET_MODE_FILTER, SYS_close_range, SYS_seccomp, sock_filter, sock_fprog,
};
use rustix::io::{Errno, FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, set_parent_process_death_signal, setrlimit};
use rustix::thread::set_no_new_privs;

use super::listener::{check_sizes, last_error};
use super::{Listener, Refusals, cannot, filter};

/// What the child does before it becomes the program, in this order.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Step {
    DieWithParent,
    CloseDescriptors,
    LimitDescriptors,
    NoNewPrivileges,
    InstallFilter,
    SendListener,
}

impl Step {
    const ALL: [Step; 6] = [
        Step::DieWithParent,
        Step::CloseDescriptors,
        Step::LimitDescriptors,
        Step::NoNewPrivileges,
        Step::InstallFilter,
        Step::SendListener,
    ];

    fn explain(self, error: io::Error) -> io::Error {
        let what = match (self, error.raw_os_error()) {
            (Step::DieWithParent, _) => "let the program die with its parent",
            (Step::CloseDescriptors, _) => "keep descriptors from the program",
            (Step::LimitDescriptors, _) => "give the program its own limit of descriptors",
            (Step::NoNewPrivileges, _) => "set no_new_privs",
            (Step::InstallFilter, Some(libc::EINVAL)) => {
                "install the seccomp filter (it needs Linux 5.19 or newer, and not gVisor)"
            }
            (Step::InstallFilter, Some(libc::EBUSY)) => {
                "install the seccomp filter (the container's runtime has a seccomp listener of its own)"
            }
            (Step::InstallFilter, _) => "install the seccomp filter",
            (Step::SendListener, _) => "pass the seccomp listener on",
        };
        cannot(what, error)
    }
}

/// How a program is started.
#[derive(Clone, Copy, Default, Debug)]
pub struct Settings {
    /// What refuses the calls that the table refuses.
    pub refusals: Refusals,
    /// The program's limit of descriptors, if it is not that of this process.
    pub descriptors: Option<Rlimit>,
    /// A descriptor of this process that the program inherits. It stays open until the program has started.
    pub inherited: Option<RawFd>,
}

/// [`spawn_with`] the default settings.
pub fn spawn(command: Command) -> io::Result<(Child, Listener)> {
    spawn_with(command, Settings::default())
}

/// Starts a program under the filter, with `no_new_privs`. It gets SIGKILL when the thread that called this ends, and inherits
/// no descriptors but 0, 1, 2, the one that the settings name, and one of the listener, so that its calls wait when the supervisor
/// is gone.
///
/// The filter also covers what the program executes, and all its descendants, and cannot be removed.
pub fn spawn_with(mut command: Command, settings: Settings) -> io::Result<(Child, Listener)> {
    check_sizes()?;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let (filter, parent) = (filter::assemble_with(settings.refusals), getpid());
    let prepare = move || {
        become_trapped(&filter, settings, parent, theirs.as_fd()).map_err(|(step, errno)| {
            // If it cannot be told which step it was, the error stays.
            let _ = sendmsg(&theirs, &[IoSlice::new(&[step as u8])], &mut Default::default(), SendFlags::NOSIGNAL);
            errno.into()
        })
    };
    // SAFETY: in the child, `prepare` and what it calls only make system calls and use the stack and memory that was there
    // before the fork. They neither allocate nor free nor lock, and do not panic.
    unsafe { command.pre_exec(prepare) };
    let spawned = command.spawn();
    // Their end, or the receipt could not tell that nothing comes.
    drop(command);
    let received = receive(ours.as_fd());
    match (spawned, received) {
        (Ok(child), Ok(Message::Listener(listener))) => Ok((child, Listener::new(listener, settings.refusals))),
        (Ok(mut child), received) => {
            child.kill()?;
            child.wait()?;
            let error = received.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
            Err(cannot("receive the seccomp listener", error))
        }
        (Err(error), Ok(Message::Failed(step))) => Err(step.explain(error)),
        (Err(error), _) => Err(error),
    }
}

/// The child's part.
fn become_trapped(
    filter: &[sock_filter],
    settings: Settings,
    parent: Pid,
    socket: BorrowedFd<'_>,
) -> Result<(), (Step, Errno)> {
    let at = |step| move |errno| (step, errno);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(Step::DieWithParent))?;
    if getppid() != Some(parent) {
        // It died before it would have been noticed.
        return Err((Step::DieWithParent, Errno::SRCH));
    }
    keep_descriptors(settings.inherited).map_err(at(Step::CloseDescriptors))?;
    if let Some(limit) = settings.descriptors {
        setrlimit(Resource::Nofile, limit).map_err(at(Step::LimitDescriptors))?;
    }
    set_no_new_privs(true).map_err(at(Step::NoNewPrivileges))?;
    let listener = install(filter).map_err(at(Step::InstallFilter))?;
    // From here on no call may be made that the filter stops: nobody would answer.
    send(socket, &listener).map_err(at(Step::SendListener))?;
    // The program keeps one as well. When the supervisor is killed, its descriptors are closed before the parent-death signal
    // is sent: without this one, stopped calls would fail with ENOSYS in between, and a program that takes an error of `fsync`
    // lightly would confirm.
    fcntl_setfd(&listener, FdFlags::empty()).map_err(at(Step::SendListener))?;
    let _ = listener.into_raw_fd();
    Ok(())
}

/// Has all descriptors but the first three, and this one, closed when the program begins.
fn keep_descriptors(inherited: Option<RawFd>) -> Result<(), Errno> {
    // SAFETY: closes nothing yet, and takes no pointers.
    let result = unsafe { libc::syscall(SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    if result < 0 {
        return Err(last_error());
    }
    // SAFETY: the settings promise that it is open; and if it is not, this fails.
    let inherited = inherited.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) });
    inherited.map_or(Ok(()), |descriptor| fcntl_setfd(descriptor, FdFlags::empty()))
}

/// Puts this thread, the only one of its process, under the filter. What comes back is closed on exec.
fn install(filter: &[sock_filter]) -> Result<OwnedFd, Errno> {
    let flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // The pointer is for reading only, although its type says otherwise.
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: `program` and the instructions that it points to, as many as it says (`assemble` keeps them below 2¹⁶), are alive
    // during the call, and the kernel only reads them.
    let result = unsafe { libc::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if result < 0 {
        return Err(last_error());
    }
    // SAFETY: with the flag for a listener the result is a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Without allocation.
fn send(socket: BorrowedFd<'_>, listener: &OwnedFd) -> Result<(), Errno> {
    let descriptors = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let byte = [IoSlice::new(&[u8::MAX])];
    retry_on_intr(|| sendmsg(socket, &byte, &mut control, SendFlags::NOSIGNAL)).map(drop)
}

/// What the child had to say.
enum Message {
    Listener(OwnedFd),
    Failed(Step),
}

/// The child's message: it is there, or will never be, once `Command::spawn` has come back.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Message> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let listener = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let step = || Step::ALL.into_iter().find(|step| *step as u8 == byte[0]);
    let message = listener.map(Message::Listener).or_else(|| step().map(Message::Failed));
    message.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
