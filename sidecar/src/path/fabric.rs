//! The fabric's channels and buffers as [`tailwind_primary`] wants them.

use std::ops::Range;

use tailwind_fabric::{AppendBuffer, ChannelError, RemoteBuffer, SharedBuffer};
use tailwind_primary::{Channel, Fabric};

/// `tailwind_fabric`, whichever kind runs.
#[derive(Debug)]
pub(super) struct SidecarFabric;

impl Fabric for SidecarFabric {
    type Append = AppendBuffer;
    type Shared = SharedBuffer;
    type Remote = RemoteBuffer;
    type Error = ChannelError;
    type Channel = Box<dyn tailwind_fabric::Channel>;

    fn tail(append: &mut AppendBuffer) -> &mut [u8] {
        append.tail_mut()
    }

    fn publish(append: &mut AppendBuffer, count: u32) {
        append.publish(count);
    }

    fn published<R>(shared: &SharedBuffer, read: impl FnOnce(&[u8]) -> R) -> R {
        read(shared.published())
    }
}

impl Channel<SidecarFabric> for Box<dyn tailwind_fabric::Channel> {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        (**self).post(remote, local, range)
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        (**self).post_bytes(remote, at, bytes)
    }

    fn lingers(&self) -> bool {
        (**self).lingers()
    }

    fn push(&mut self) {
        (**self).push();
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        (**self).poll()
    }

    fn depth(&self) -> u32 {
        (**self).depth()
    }

    fn arm(&mut self) -> bool {
        (**self).arm()
    }
}
