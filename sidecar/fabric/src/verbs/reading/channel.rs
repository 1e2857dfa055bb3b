//! The reader's end of one channel: one work request and one completion for each read.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::Arc;

use rustix::event::epoll;

use super::reader::Landing;
use crate::error::ReadError;
use crate::reading::{READS_MAX, ReadChannel, Readable, check_read, check_settled};
use crate::verbs::device::status_text;
use crate::verbs::events::Health;
use crate::verbs::ffi;
use crate::verbs::queue::QueuePair;

/// Completions taken at once; more wait for the next round.
const TAKEN_MAX: usize = 16;

/// One ordered stream of reads over one queue pair.
pub(super) struct VerbsReadChannel {
    /// First, so that it goes before the memory that its work requests name.
    pair: QueuePair,
    landing: Landing,
    /// Where the reads on their way land, oldest first. Its capacity is [`READS_MAX`], and is never exceeded.
    open: VecDeque<Range<u32>>,
    message_max: u32,
    /// The next completion will make `readiness` readable.
    armed: bool,
    health: Arc<Health>,
    /// Readable when the completion queue's file descriptor or that of `health` is.
    readiness: OwnedFd,
    /// Completed and not yet reported.
    unreported: u32,
    failure: Option<ReadError>,
}

impl fmt::Debug for VerbsReadChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerbsReadChannel { pair, open, failure, .. } = self;
        let mut text = f.debug_struct("VerbsReadChannel");
        text.field("pair", pair).field("open", open).field("failure", failure).finish_non_exhaustive()
    }
}

impl VerbsReadChannel {
    /// Over a connected queue pair whose send queue holds [`READS_MAX`] work requests of at most `message_max` bytes.
    pub(super) fn new(
        pair: QueuePair,
        landing: Landing,
        health: Arc<Health>,
        message_max: u32,
    ) -> io::Result<VerbsReadChannel> {
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (completed, failed) = (pair.completions().fd(), health.fd());
        epoll::add(&readiness, completed, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(&readiness, failed, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let open = VecDeque::with_capacity(READS_MAX);
        let (armed, unreported, failure) = (false, 0, None);
        Ok(VerbsReadChannel { pair, landing, open, message_max, armed, health, readiness, unreported, failure })
    }

    /// Takes what has completed.
    fn work(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let mut taken = [ffi::ibv_wc::default(); TAKEN_MAX];
        loop {
            let Ok(count) = self.pair.completions().poll(&mut taken) else {
                return self.failure = Some(ReadError::Disconnected);
            };
            for completion in &taken[..count] {
                if let Some((status, _)) = completion.error() {
                    return self.failure = Some(failure_of(status));
                }
                // A reliable connection completes in order.
                self.open.pop_front();
                self.unreported += 1;
            }
            if count < taken.len() {
                break;
            }
        }
        if self.health.has_failed() {
            self.failure = Some(ReadError::Disconnected);
        }
    }
}

/// What the receiver's NAKs mean; the rest is the network's or the card's. See docs/rdma.md.
fn failure_of(status: ffi::ibv_wc_status::Type) -> ReadError {
    use ffi::ibv_wc_status as Status;
    // Once in the life of a channel.
    tracing::info!(status = %status_text(status), "a reader's queue pair has failed");
    match status {
        Status::IBV_WC_REM_ACCESS_ERR | Status::IBV_WC_REM_INV_REQ_ERR | Status::IBV_WC_REM_OP_ERR => ReadError::Ended,
        _ => ReadError::Disconnected,
    }
}

impl ReadChannel for VerbsReadChannel {
    fn read(&mut self, from: &Readable, at: Range<u32>, place: u32) -> Result<(), ReadError> {
        let place = check_read(from, &at, place, self.landing.length as usize);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        check_settled(&place, self.open.iter());
        let length = at.end - at.start;
        assert!(length <= self.message_max, "a read is no longer than the device takes");
        if self.open.len() == READS_MAX {
            return Err(ReadError::QueueFull);
        }
        let local = self.landing.region.address() + u64::from(place.start);
        let mut piece = ffi::ibv_sge { addr: local, length, lkey: self.landing.region.local_key() };
        let mut request = ffi::ibv_send_wr {
            num_sge: 1,
            sg_list: &raw mut piece,
            opcode: ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
            send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        let remote_addr = from.address + u64::from(at.start);
        // An rkey has 32 bits: `attach` has widened it.
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey: from.key as u32 };
        self.open.push_back(place);
        // SAFETY: one request with one piece, which lies within the landing (checked), of which `landed` makes no reference
        // while its place is in `open`; and it stays there until the read has completed. The landing goes after the queue
        // pair. The call copies both structures into the send queue.
        let posted = unsafe { self.pair.post(&raw mut request) };
        posted.map_err(|_| *self.failure.insert(ReadError::Disconnected))
    }

    fn poll(&mut self) -> Result<u32, ReadError> {
        self.work();
        match (std::mem::take(&mut self.unreported), self.failure) {
            (0, Some(failure)) => Err(failure),
            (completed, _) => Ok(completed),
        }
    }

    fn landed(&self, range: Range<u32>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.landing.length, "a range lies within the landing");
        check_settled(&range, self.open.iter());
        // SAFETY: range.start ≤ length ≤ the mapping's length.
        let start = unsafe { self.landing.map.as_ptr().add(range.start as usize) };
        // SAFETY: the bytes lie in one mapping (asserted above), initialised by the kernel, which `self` keeps alive. The card
        // writes only to the places of reads on their way, none of which overlaps (checked above); none can be posted into
        // them while this borrow of `self` lives.
        unsafe { slice::from_raw_parts(start, range.len()) }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn arm(&mut self) -> bool {
        if !self.armed || self.pair.completions().take_event() {
            self.armed = self.pair.completions().notify().is_ok();
        }
        // What completed before it was armed does not wake. True also where it cannot be armed: then nobody must sleep.
        self.work();
        self.unreported > 0 || self.failure.is_some() || !self.armed
    }
}
