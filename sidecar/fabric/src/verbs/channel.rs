//! The sending end of one channel: work requests are staged, chained and posted together.
//!
//! Called by the append path. All memory is there from the start: no call allocates, blocks or locks.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::epoll;

use crate::buffer::SharedBuffer;
use crate::contract::{Channel, POSTED_BYTES_MAX, RemoteBuffer, check_bytes};
use crate::error::ChannelError;

use super::device::status_text;
use super::events::Health;
use super::ffi;
use super::memory::{Access, Domain, Region};
use super::queue::QueuePair;

/// Work requests handed over with one doorbell at most.
const STAGED_MAX: usize = 32;
/// Completions taken at once; more wait for the next round.
const TAKEN_MAX: usize = 16;
/// A channel with nothing on its way sends an empty write after so long: only an unanswered packet shows that the other side
/// is gone. Cards answer it, so that the other side's processor has no part in this heartbeat either.
const KEEP_ALIVE: Duration = Duration::from_millis(50);
/// Names that write among the completions; the others are numbered from 1.
const PROBE: u64 = u64::MAX;

/// One ordered stream of writes over one queue pair.
#[derive(Debug)]
pub(super) struct VerbsChannel {
    /// First, so that it goes before the memory that its work requests name, which `in_flight` and `copies` hold.
    pair: QueuePair,
    staged: Staged,
    /// What each write that has not completed is from, oldest first. Its capacity is the depth of the send queue, and is
    /// never exceeded.
    in_flight: VecDeque<Source>,
    /// A place for the bytes of each such write that were copied.
    copies: Copies,
    depth: usize,
    message_max: u32,
    /// Writes so far; the number of the last one. `posted - in_flight.len()` have completed.
    posted: u64,
    /// Completed and not yet reported.
    unreported: u32,
    /// An empty write of the channel's own is on its way.
    probing: bool,
    /// When there was last a sign of life.
    alive: Instant,
    /// The next completion will make `readiness` readable.
    armed: bool,
    health: Arc<Health>,
    /// Readable when the completion queue's file descriptor or that of `health` is.
    readiness: OwnedFd,
    failure: Option<ChannelError>,
}

/// Where a write takes its bytes from.
#[derive(Debug)]
enum Source {
    /// Published memory, which must live until then.
    Shared { _buffer: SharedBuffer },
    /// The place of the write's number among the copies.
    Copied,
}

/// Registered memory with [`POSTED_BYTES_MAX`] bytes for each write of a send queue. The registration goes before the mapping.
pub(super) struct Copies {
    region: Region,
    map: MmapRaw,
}

impl Copies {
    /// Copies for a send queue that holds `depth` writes.
    pub(super) fn new(domain: &Arc<Domain>, depth: usize) -> io::Result<Copies> {
        let map = MmapRaw::from(MmapOptions::new().len(depth * POSTED_BYTES_MAX).populate().map_anon()?);
        // SAFETY: the map goes after the region, and a card only reads what is registered for local use.
        let region = unsafe { Region::register(domain, map.as_mut_ptr(), map.len(), Access::Local) }?;
        Ok(Copies { region, map })
    }

    /// Copies bytes to the place of write `number`; where that is, and its key. No write on its way has the same place.
    fn put(&mut self, number: u64, bytes: &[u8]) -> (u64, u32) {
        let places = self.map.len() / POSTED_BYTES_MAX;
        let at = (number % places as u64) as usize * POSTED_BYTES_MAX;
        assert!(bytes.len() <= POSTED_BYTES_MAX, "a place is as large as what is copied");
        // SAFETY: at + POSTED_BYTES_MAX ≤ places × POSTED_BYTES_MAX ≤ the mapping's length.
        let target = unsafe { self.map.as_mut_ptr().add(at) };
        // SAFETY: the target has room (asserted; the line above), and does not overlap the source: no slice of this mapping is
        // ever made. The card reads other places only: fewer than `places` writes are on their way, with numbers in sequence.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        (target as u64, self.region.local_key())
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copies").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Work requests in the making. Two arrays, chained by address when the doorbell rings.
struct Staged {
    requests: Box<[ffi::ibv_send_wr; STAGED_MAX]>,
    pieces: Box<[ffi::ibv_sge; STAGED_MAX]>,
    count: usize,
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged").field("count", &self.count).finish_non_exhaustive()
    }
}

// SAFETY: the pointers in it are set, used and forgotten within `VerbsChannel::post_staged`.
unsafe impl Send for Staged {}

impl VerbsChannel {
    /// Over a connected queue pair whose send queue holds `depth` work requests, and one more, of at most `message_max` bytes.
    pub(super) fn new(
        pair: QueuePair,
        health: Arc<Health>,
        depth: usize,
        message_max: u32,
    ) -> io::Result<VerbsChannel> {
        let copies = Copies::new(pair.domain(), depth)?;
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (completed, failed) = (pair.completions().fd(), health.fd());
        epoll::add(&readiness, completed, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        epoll::add(&readiness, failed, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(VerbsChannel {
            pair,
            staged: Staged {
                requests: Box::new([ffi::ibv_send_wr::default(); STAGED_MAX]),
                pieces: Box::new([ffi::ibv_sge::default(); STAGED_MAX]),
                count: 0,
            },
            in_flight: VecDeque::with_capacity(depth),
            copies,
            depth,
            message_max,
            posted: 0,
            unreported: 0,
            probing: false,
            alive: Instant::now(),
            armed: false,
            health,
            readiness,
            failure: None,
        })
    }

    /// Hands what is staged to the card: one doorbell, and a completion for the last of them, which speaks for all.
    fn post_staged(&mut self) -> Result<(), ChannelError> {
        let Staged { requests, pieces, count } = &mut self.staged;
        let Some(last) = count.checked_sub(1) else { return Ok(()) };
        for at in (0..=last).rev() {
            let next = if at == last { ptr::null_mut() } else { ptr::from_mut(&mut requests[at + 1]) };
            requests[at].next = next;
            requests[at].sg_list = ptr::from_mut(&mut pieces[at]);
        }
        requests[last].send_flags |= ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
        *count = 0;
        // SAFETY: the chain was made just now, of requests that `stage` filled in, with one piece each. A piece lies within
        // published bytes of a registered buffer (asserted in `post`), which never change again, and of which `in_flight`
        // holds a clone until the write has completed; or it is the write's own place in `copies`, which is written again only
        // when it has completed. Both go after the queue pair.
        unsafe { self.pair.post(requests.as_mut_ptr()) }.map_err(|_| ChannelError::Disconnected)
    }

    fn stage(&mut self, number: u64, remote: (u64, u32), local: (u64, u32), length: u32) {
        let Staged { requests, pieces, count } = &mut self.staged;
        let (request, piece) = (&mut requests[*count], &mut pieces[*count]);
        *piece = ffi::ibv_sge { addr: local.0, length, lkey: local.1 };
        let inline = length > 0 && length <= self.pair.inline_max();
        *request = ffi::ibv_send_wr {
            wr_id: number,
            num_sge: i32::from(length > 0),
            opcode: ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: if inline { ffi::ibv_send_flags::IBV_SEND_INLINE.0 } else { 0 },
            ..Default::default()
        };
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: remote.0, rkey: remote.1 };
        *count += 1;
    }

    /// Stages the write that has just been numbered.
    fn write(
        &mut self,
        remote: &RemoteBuffer,
        at: u32,
        local: (u64, u32),
        length: u32,
        source: Source,
    ) -> Result<(), ChannelError> {
        // An rkey has 32 bits: `attach` has widened it.
        let target = (remote.address + u64::from(at), remote.key as u32);
        self.stage(self.posted, target, local, length);
        self.in_flight.push_back(source);
        if self.staged.count == STAGED_MAX {
            self.post_staged().inspect_err(|failure| self.fail(*failure))?;
        }
        Ok(())
    }

    /// Takes what has completed.
    fn take(&mut self) -> Result<(), ChannelError> {
        let mut taken = [ffi::ibv_wc::default(); TAKEN_MAX];
        loop {
            let count = self.pair.completions().poll(&mut taken).map_err(|_| ChannelError::Disconnected)?;
            for completion in &taken[..count] {
                if let Some((status, _)) = completion.error() {
                    return Err(failure_of(status));
                }
                if completion.wr_id() == PROBE {
                    self.probing = false;
                    continue;
                }
                // It speaks for all before it: a reliable connection completes in order.
                let open = self.posted - completion.wr_id();
                while self.in_flight.len() as u64 > open {
                    self.in_flight.pop_front();
                    self.unreported += 1;
                }
            }
            if count < taken.len() {
                return Ok(());
            }
        }
    }

    /// Asks for a sign of life if it is time.
    fn keep_alive(&mut self) {
        let now = Instant::now();
        if !self.in_flight.is_empty() || self.probing {
            self.alive = now;
        } else if now.duration_since(self.alive) >= KEEP_ALIVE && self.failure.is_none() {
            (self.probing, self.alive) = (true, now);
            self.stage(PROBE, (0, 0), (0, 0), 0);
        }
    }

    fn fail(&mut self, failure: ChannelError) {
        self.staged.count = 0;
        self.failure.get_or_insert(failure);
    }

    /// Posts what is staged, and takes what has completed.
    fn work(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let result = if self.health.has_failed() { Err(ChannelError::Disconnected) } else { self.post_staged() };
        // What had completed before something broke counts.
        if let Err(failure) = self.take().and(result) {
            self.fail(failure);
        }
    }
}

/// What the receiver's NAKs mean; the rest is the network's or the card's. See docs/rdma.md.
fn failure_of(status: ffi::ibv_wc_status::Type) -> ChannelError {
    use ffi::ibv_wc_status as Status;
    let failure = match status {
        Status::IBV_WC_REM_ACCESS_ERR | Status::IBV_WC_REM_INV_REQ_ERR | Status::IBV_WC_REM_OP_ERR => {
            ChannelError::Revoked
        }
        _ => ChannelError::Disconnected,
    };
    // Once in the life of a channel.
    tracing::info!(status = %status_text(status), "a queue pair has failed");
    failure
}

impl Channel for VerbsChannel {
    fn post(&mut self, remote: &RemoteBuffer, local: &SharedBuffer, range: Range<u32>) -> Result<(), ChannelError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        assert!(range.start <= range.end && range.end <= local.len(), "a write lies within what is published");
        assert!(range.end <= remote.length, "a write lies within its slot");
        let size = range.end - range.start;
        assert!(size <= self.message_max, "a write is no longer than the device takes");
        let local_key = local.key_in(self.pair.domain().id());
        let local_key = local_key.expect("a verbs channel posts memory that its own sender has allocated");
        if self.in_flight.len() == self.depth {
            return Err(ChannelError::QueueFull);
        }
        self.posted += 1;
        let source = (local.address() + u64::from(range.start), local_key);
        self.write(remote, range.start, source, size, Source::Shared { _buffer: local.clone() })
    }

    fn post_bytes(&mut self, remote: &RemoteBuffer, at: u32, bytes: &[u8]) -> Result<(), ChannelError> {
        check_bytes(remote, at, bytes);
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.in_flight.len() == self.depth {
            return Err(ChannelError::QueueFull);
        }
        self.posted += 1;
        let source = self.copies.put(self.posted, bytes);
        self.write(remote, at, source, bytes.len() as u32, Source::Copied)
    }

    fn poll(&mut self) -> Result<u32, ChannelError> {
        self.work();
        match (std::mem::take(&mut self.unreported), self.failure) {
            (0, Some(failure)) => Err(failure),
            (completed, _) => Ok(completed),
        }
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn arm(&mut self) -> bool {
        self.keep_alive();
        if !self.armed || self.pair.completions().take_event() {
            self.armed = self.pair.completions().notify().is_ok();
        }
        // What completed before it was armed does not wake the path. True also where it cannot be armed: then the path must not sleep.
        self.work();
        self.unreported > 0 || self.failure.is_some() || !self.armed
    }
}
