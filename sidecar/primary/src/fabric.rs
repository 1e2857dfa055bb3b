//! What moves a primary's bytes, as narrow as this crate needs it: implemented over `tailwind_fabric` by the sidecar, and by
//! the simulator.
//!
//! What a channel promises is for `tailwind_fabric` to say (`contract.rs`).

use std::fmt;
use std::ops::Range;

/// The kinds of memory and channels, and how memory is written.
pub trait Fabric {
    /// The writing side of a segment's memory in this process.
    type Append: fmt::Debug;
    /// The same memory, to post from.
    type Shared: fmt::Debug;
    /// A buffer or a board that a member has lent.
    type Remote: fmt::Debug;
    /// Why a channel failed.
    type Error: fmt::Debug;
    /// The way to one member.
    type Channel: Channel<Self> + fmt::Debug;

    /// The bytes that are not published yet: zero, or what was written before without being published.
    fn tail(append: &mut Self::Append) -> &mut [u8];
    /// The first `count` bytes of the tail may be posted from now on.
    fn publish(append: &mut Self::Append, count: u32);
    /// Lends the bytes that are published.
    fn published<R>(shared: &Self::Shared, read: impl FnOnce(&[u8]) -> R) -> R;
}

/// One ordered stream of writes to one member. No call blocks.
pub trait Channel<F: Fabric + ?Sized> {
    /// Posts one write of `range` of `local` to the same offsets of `remote`. After an error the channel is of no more use.
    fn post(&mut self, remote: &F::Remote, local: &F::Shared, range: Range<u32>) -> Result<(), F::Error>;
    /// Posts one write of `bytes` to `remote` from offset `at` on. They are copied, and may linger until the next post or a
    /// [push](Channel::push).
    fn post_bytes(&mut self, remote: &F::Remote, at: u32, bytes: &[u8]) -> Result<(), F::Error>;
    /// True while bytes linger.
    fn lingers(&self) -> bool;
    /// Sends bytes that linger. The next poll reports it if that fails.
    fn push(&mut self);
    /// How many further writes have completed, in the order in which they were posted.
    fn poll(&mut self) -> Result<u32, F::Error>;
    /// How many writes of the log it is worth having on their way. A hint.
    fn depth(&self) -> u32;
    /// To be called before sleeping. True when there is something to poll already.
    fn arm(&mut self) -> bool;
}
