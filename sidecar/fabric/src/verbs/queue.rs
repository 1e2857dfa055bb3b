//! Completion queues and queue pairs.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_setfl};

use super::device::{Context, mtu_of_bytes};
use super::memory::Domain;
use super::port::Port;
use super::{Tuning, check, ffi};
use crate::message::Endpoint;

/// How often IPv6 routers may pass a RoCE packet on.
const HOP_LIMIT: u8 = 64;
/// `min_rnr_timer`, 0.64 ms: never used, because writes need no receive, but the card wants one.
const RNR_TIMER: u8 = 12;
/// `rnr_retry`: as above.
const RNR_RETRY: u8 = 7;

/// Where a card reports what has completed, and a file descriptor that becomes readable then.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    /// Held for its lifetime.
    _context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe: ibv_open_device(3), ibv_poll_cq(3).
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Room for `entries` completions.
    pub(super) fn new(context: &Arc<Context>, entries: u32) -> io::Result<CompletionQueue> {
        // SAFETY: the context is open.
        let channel = unsafe { ffi::ibv_create_comp_channel(context.raw()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the context is open and the channel is of this context; no user context is needed.
        let raw = unsafe { ffi::ibv_create_cq(context.raw(), entries as i32, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            // SAFETY: created above and used by nothing.
            let _ = unsafe { ffi::ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let queue = CompletionQueue { raw, channel, _context: Arc::clone(context) };
        // Taking an event must never block.
        fcntl_setfl(queue.fd(), OFlags::NONBLOCK)?;
        Ok(queue)
    }

    /// Names the queue in events.
    pub(super) fn identity(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Readable when something has completed since [`CompletionQueue::notify`].
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`, and nobody changes its structure.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: open for as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes completions; how many. An error means that the queue is broken.
    pub(super) fn poll(&self, out: &mut [ffi::ibv_wc]) -> io::Result<usize> {
        // SAFETY: as for `fd`.
        let context = unsafe { self.raw.as_ref() }.context;
        // SAFETY: a queue's context is open for as long as the queue lives.
        let operation = unsafe { &(*context).ops }.poll_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the provider fills at most `out.len()` entries: ibv_poll_cq(3), whose body this is.
        let count = unsafe { operation(self.raw.as_ptr(), out.len() as i32, out.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue is broken"))
    }

    /// Has the next completion make [`CompletionQueue::fd`] readable, once.
    pub(super) fn notify(&self) -> io::Result<()> {
        // SAFETY: as for `fd`.
        let context = unsafe { self.raw.as_ref() }.context;
        // SAFETY: as for `poll`.
        let operation = unsafe { &(*context).ops }.req_notify_cq.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: ibv_req_notify_cq(3), whose body this is; 0: for completions of all kinds.
        check(unsafe { operation(self.raw.as_ptr(), 0) })
    }

    /// Takes one event from the file descriptor; false if there is none.
    pub(super) fn take_event(&self) -> bool {
        let (mut queue, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives; it does not block (set in `new`).
        let taken = unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut user) } == 0;
        if taken {
            // SAFETY: exactly the event that was taken; the channel serves this queue alone. Unacknowledged events would make
            // ibv_destroy_cq wait indefinitely.
            unsafe { ffi::ibv_ack_cq_events(self.raw.as_ptr(), 1) };
        }
        taken
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; its queue pairs hold an Arc and so are gone, and every event that was taken is
        // acknowledged.
        let _ = unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
        // SAFETY: its only queue is gone.
        let _ = unsafe { ffi::ibv_destroy_comp_channel(self.channel.as_ptr()) };
    }
}

/// One end of a reliable connection.
#[derive(Debug)]
pub(super) struct QueuePair {
    raw: NonNull<ffi::ibv_qp>,
    inline_max: u32,
    /// Held for their lifetimes.
    completions: Arc<CompletionQueue>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs is thread safe: ibv_open_device(3).
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair with room for `depth` work requests, of which the card copies up to `inline` bytes, or fewer if it has no
    /// room for so many. Nothing is ever received on it.
    pub(super) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: u32,
        inline: u32,
    ) -> io::Result<QueuePair> {
        let mut wanted = inline;
        loop {
            match QueuePair::create(domain, completions, depth, wanted) {
                // The largest inline size cannot be queried: ibv_create_qp(3) says to try.
                Err(_) if wanted > 0 => wanted /= 2,
                result => return result,
            }
        }
    }

    fn create(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        depth: u32,
        inline: u32,
    ) -> io::Result<QueuePair> {
        let queue = completions.raw.as_ptr();
        let mut attributes = ffi::ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            cap: ffi::ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: inline,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
            ..Default::default()
        };
        // SAFETY: domain and queue live, and stay alive as long as the queue pair: it holds both.
        let raw = unsafe { ffi::ibv_create_qp(domain.raw(), &mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let (completions, domain) = (Arc::clone(completions), Arc::clone(domain));
        Ok(QueuePair { raw, inline_max: attributes.cap.max_inline_data, completions, domain })
    }

    /// Its number on the wire.
    pub(super) fn number(&self) -> u32 {
        // SAFETY: libibverbs' structure lives as long as `self`, and its number never changes.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Names the queue pair in events.
    pub(super) fn identity(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Bytes that the card takes with the work request itself.
    pub(super) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// Where its completions go.
    pub(super) fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    /// The domain that its memory must be of.
    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// RESET → INIT.
    pub(super) fn initialise(&self, port: u8, access: u32) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: access,
            ..Default::default()
        };
        use ffi::ibv_qp_attr_mask as Mask;
        self.modify(
            &mut attributes,
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// INIT → RTR → RTS: connected to `remote`, with packets that count from `first_psn`, and with so many reads on the wire
    /// at a time (at least 1: some cards refuse 0).
    pub(super) fn connect(
        &self,
        port: &Port,
        remote: &Endpoint,
        first_psn: u32,
        reads: u8,
        tuning: Tuning,
    ) -> io::Result<()> {
        let mut address = ffi::ibv_ah_attr {
            grh: ffi::ibv_global_route {
                flow_label: 0,
                sgid_index: port.gid_index,
                hop_limit: HOP_LIMIT,
                traffic_class: tuning.traffic_class,
                ..Default::default()
            },
            dlid: remote.lid,
            sl: tuning.service_level,
            is_global: 1,
            port_num: port.number,
            ..Default::default()
        };
        address.grh.dgid.raw = remote.gid.octets();
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: mtu_of_bytes(port.mtu.min(remote.mtu)),
            dest_qp_num: remote.queue_pair,
            rq_psn: remote.first_psn,
            ah_attr: address,
            max_dest_rd_atomic: reads,
            min_rnr_timer: RNR_TIMER,
            ..Default::default()
        };
        use ffi::ibv_qp_attr_mask as Mask;
        self.modify(
            &mut attributes,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: first_psn,
            timeout: tuning.retry.exponent(),
            retry_cnt: tuning.retry.retries(),
            rnr_retry: RNR_RETRY,
            max_rd_atomic: reads,
            ..Default::default()
        };
        self.modify(
            &mut attributes,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Takes all remote rights away, in any state; the other side notices at its next packet.
    pub(super) fn refuse_all(&self) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr { qp_access_flags: 0, ..Default::default() };
        self.modify(&mut attributes, ffi::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS)
    }

    /// To ERROR, from any state: queued work requests are flushed, packets are dropped.
    pub(super) fn fail(&self) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr { qp_state: ffi::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut attributes, ffi::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// The barrier of `ibv_destroy_qp(3)`: when it returns without an error no packet for it is taken any more.
    pub(super) fn destroy(self) -> io::Result<()> {
        let this = ManuallyDrop::new(self);
        // SAFETY: created once, destroyed once: `drop` does not run.
        let result = check(unsafe { ffi::ibv_destroy_qp(this.raw.as_ptr()) });
        // SAFETY: `this` is not used any more, so that each Arc is taken out of it once.
        drop(unsafe { ptr::read(&this.completions) });
        // SAFETY: as above.
        drop(unsafe { ptr::read(&this.domain) });
        result
    }

    /// Whether the card places the bytes of one incoming write by rising address. Flags 0: of a whole message. Some cards
    /// know only once the queue pair is connected: `ibv_query_qp_data_in_order(3)`.
    pub(super) fn places_in_order(&self) -> bool {
        // SAFETY: the queue pair lives.
        unsafe { ffi::ibv_query_qp_data_in_order(self.raw.as_ptr(), ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0) == 1 }
    }

    /// Hands a chain of work requests to the card: one doorbell.
    ///
    /// # Safety
    /// Each request of the chain is valid, with at most one scatter-gather entry, whose memory is registered and stays so, and is
    /// not written, until the request has completed or the queue pair is gone.
    pub(super) unsafe fn post(&self, first: *mut ffi::ibv_send_wr) -> io::Result<()> {
        // SAFETY: as for `number`.
        let context = unsafe { self.raw.as_ref() }.context;
        // SAFETY: a queue pair's context is open for as long as it lives.
        let operation = unsafe { &(*context).ops }.post_send.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = ptr::null_mut();
        // SAFETY: ibv_post_send(3), whose body this is; the caller vouches for the chain.
        check(unsafe { operation(self.raw.as_ptr(), first, &mut bad) })
    }

    fn modify(&self, attributes: &mut ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair lives; libibverbs reads the fields that the mask names, all of which are initialised.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), attributes, mask.0 as i32) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once: `destroy` forgets itself. An error leaves it to the kernel, which destroys it
        // when the process ends; where it matters `destroy` is called instead.
        let _ = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
    }
}
