//! Descriptors that the runtime watches.
//!
//! Used by [`alarm`](super::alarm) and [`visit`](super::visit).

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the runtime tell when this becomes readable. Called within the runtime.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for owners whose descriptor may change: this one's does not"
)]
pub(super) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
