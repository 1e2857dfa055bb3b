//! Passing the shared file over the socket: it goes with the bytes of one frame.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Sends bytes, and the file with the first of them. Does not block.
pub fn send(socket: impl AsFd, bytes: &[u8], file: impl AsFd) -> io::Result<usize> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(&files));
    assert!(fits, "the space is for one file");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))?)
}

/// Receives bytes, and a file if one comes with them. A signal may interrupt it (`EINTR`): only the caller knows how long it
/// waits in all.
pub fn receive(socket: impl AsFd, room: &mut [u8], flags: RecvFlags) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(&socket, &mut [IoSliceMut::new(room)], &mut control, flags)?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes, file))
}
