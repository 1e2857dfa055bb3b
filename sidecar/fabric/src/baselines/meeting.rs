//! How the two ends of a channel over shared memory meet: the receiver makes the memory, and passes it through a Unix socket to
//! the other end, which waits there under a name that only the control RPC has carried.
//!
//! Used by [`sender`](super::sender) and [`asking`](super::asking), and by [`receiver`](super::receiver) for both.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::io::retry_on_intr;
use rustix::net::RecvFlags;
use tailwind_ring::{SidecarEnd, Sizes};

use crate::error::FabricError;
use crate::message::{ChannelAnswer, FabricKind, Offer};
use crate::secret::{SECRET_SIZE, Secret};

use super::Baseline;
use super::link::{ShmLink, next_connection};

/// How long the receiver's connection may take. It has been made when the answer to the offer arrives.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The end that waits.
#[derive(Debug)]
pub(super) struct Meeting {
    name: String,
    listener: UnixListener,
}

impl Meeting {
    /// Waits under a new name.
    pub(super) fn listen() -> io::Result<Meeting> {
        let random = Secret::random()?.digits().ok_or(io::ErrorKind::InvalidData)?;
        let name = format!("tailwind-{}", String::from_utf8_lossy(&random));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Meeting { name, listener })
    }

    /// What the receiver is told: the name.
    pub(super) fn offer(&self, baseline: Baseline) -> Offer {
        Offer::Baseline { baseline, socket: self.name.clone() }
    }

    /// The memory that the receiver passes which has answered this.
    pub(super) fn connect(
        &self,
        baseline: Baseline,
        answer: &ChannelAnswer,
        sizes: Sizes,
    ) -> Result<ShmLink, FabricError> {
        match answer {
            ChannelAnswer::Baseline { baseline: of, secret } if *of == baseline => {
                self.receive(secret, sizes).map_err(FabricError::io("receive the receiver's memory"))
            }
            _ => Err(FabricError::mismatch(FabricKind::Baseline(baseline), answer.kind())),
        }
    }

    /// Of the processes that connect, the one that presents the secret is the receiver. Blocking, and bounded.
    fn receive(&self, secret: &Secret, sizes: Sizes) -> io::Result<ShmLink> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            let Some((socket, left)) = next_connection(&self.listener, deadline)? else { continue };
            if let Some(link) = greet(socket, secret, sizes, left)? {
                return Ok(link);
            }
        }
    }
}

/// The link, if it is the receiver.
fn greet(socket: UnixStream, secret: &Secret, sizes: Sizes, longest: Duration) -> io::Result<Option<ShmLink>> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(longest))?;
    let mut presented = [0; SECRET_SIZE];
    // Sent in one piece, and with it the file.
    let (count, file) = retry_on_intr(|| tailwind_ring::receive(&socket, &mut presented, RecvFlags::empty()))?;
    match file {
        Some(file) if count == SECRET_SIZE && secret.matches(&presented) => {
            let end = tailwind_ring::open_sized(file, sizes)?;
            socket.set_nonblocking(true)?;
            Ok(Some(ShmLink::new(end, socket)))
        }
        _ => Ok(None),
    }
}

/// Passes new memory to the end that waits under this name.
pub(super) fn pass(name: &str, secret: &Secret, sizes: Sizes) -> io::Result<(UnixStream, SidecarEnd)> {
    let address = SocketAddr::from_abstract_name(name)?;
    let socket = UnixStream::connect_addr(&address)?;
    let (file, end) = tailwind_ring::create_sized(sizes)?;
    let digits = secret.digits().ok_or(io::ErrorKind::InvalidData)?;
    if tailwind_ring::send(&socket, &digits, file)? != digits.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok((socket, end))
}
