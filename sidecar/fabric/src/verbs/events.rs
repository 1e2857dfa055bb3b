//! What a device reports outside of any work request: a broken queue, a port that went down, its own death.
//!
//! One thread for each open device waits for events and marks what they concern. A marked channel fails at its next poll and
//! wakes a path that sleeps on it: so each of these becomes the loss of a member, never the end of the process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::device::{Context, event_text};
use super::ffi;
use super::queue::QueuePair;

/// Whether something still works, and a file descriptor that is readable once it does not.
#[derive(Debug)]
pub(super) struct Health {
    failed: AtomicBool,
    event: OwnedFd,
}

impl Health {
    fn new() -> io::Result<Health> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Health { failed: AtomicBool::new(false), event })
    }

    /// True once it has failed, for good.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Readable once it has failed.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        // A full counter means that it is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

/// A queue pair that is watched.
#[derive(Debug)]
struct WatchedQueuePair {
    queue_pair: usize,
    completions: usize,
    port: u8,
    health: Weak<Health>,
}

/// What an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    QueuePair(usize),
    CompletionQueue(usize),
    Port(u8),
    Device,
    /// Information only.
    Nothing,
}

/// Waits for the events of one device, until it is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    events: Arc<EventLoop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct EventLoop {
    context: Arc<Context>,
    watched: Mutex<Vec<WatchedQueuePair>>,
    device: Health,
    stop: OwnedFd,
}

impl Watcher {
    /// Starts the thread.
    pub(super) fn start(context: &Arc<Context>) -> io::Result<Watcher> {
        let events = Arc::new(EventLoop {
            context: Arc::clone(context),
            watched: Mutex::default(),
            device: Health::new()?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        fcntl_setfl(events.fd(), OFlags::NONBLOCK)?;
        let span = tracing::Span::current();
        let thread = std::thread::Builder::new().name("fabric-events".into()).spawn({
            let events = Arc::clone(&events);
            move || span.in_scope(|| events.run())
        })?;
        Ok(Watcher { events, thread: Some(thread) })
    }

    /// Watches a queue pair and its completion queue for as long as the result lives.
    pub(super) fn watch(&self, pair: &QueuePair, port: u8) -> io::Result<Arc<Health>> {
        let health = Arc::new(Health::new()?);
        let entry = WatchedQueuePair {
            queue_pair: pair.identity(),
            completions: pair.completions().identity(),
            port,
            health: Arc::downgrade(&health),
        };
        let mut watched = self.events.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|entry| entry.health.strong_count() > 0);
        watched.push(entry);
        Ok(health)
    }

    /// True once the device itself has failed: only a new process can use it again.
    pub(super) fn device_has_failed(&self) -> bool {
        self.events.device.has_failed()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // An eventfd takes at least one.
        let _ = rustix::io::write(&self.events.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did there is nothing left to do for it.
            let _ = thread.join();
        }
    }
}

impl EventLoop {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: an open context's structure is valid, and nobody changes this field.
        let fd = unsafe { &*self.context.raw() }.async_fd;
        // SAFETY: open for as long as the context.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn run(&self) {
        loop {
            let mut ready =
                [PollFd::new(&self.stop, PollFlags::IN), PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(device = self.context.name(), %error, "failed to wait for events of the device");
                    return self.fail(Scope::Device);
                }
            }
            if !ready[0].revents().is_empty() {
                return;
            }
            // A device that has gone leaves its file descriptor permanently readable.
            let gone = ready[1].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            while let Some((text, scope)) = self.take() {
                match scope {
                    Scope::Nothing => tracing::info!(device = self.context.name(), event = %text, "RDMA device"),
                    _ => tracing::warn!(device = self.context.name(), event = %text, "RDMA device"),
                }
                self.fail(scope);
            }
            if gone {
                tracing::error!(device = self.context.name(), "the RDMA device is gone");
                return self.fail(Scope::Device);
            }
        }
    }

    /// One event; `None` if there is none.
    fn take(&self) -> Option<(String, Scope)> {
        let mut event = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: the context is open, does not block (set in `start`), and `event` is a valid place.
        if unsafe { ffi::ibv_get_async_event(self.context.raw(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: filled by the call above; zeroes are valid for every field besides.
        let mut event = unsafe { event.assume_init() };
        let scope = scope(&event);
        let text = event_text(event.event_type);
        // SAFETY: the event that was taken, once. Until then the object that it names cannot be destroyed: so this thread
        // holds it no longer than it takes to read its address.
        unsafe { ffi::ibv_ack_async_event(&mut event) };
        Some((text, scope))
    }

    fn fail(&self, scope: Scope) {
        if scope == Scope::Device {
            self.device.fail();
        }
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let concerned = |entry: &&WatchedQueuePair| match scope {
            Scope::QueuePair(identity) => entry.queue_pair == identity,
            Scope::CompletionQueue(identity) => entry.completions == identity,
            Scope::Port(number) => entry.port == number,
            Scope::Device => true,
            Scope::Nothing => false,
        };
        watched.iter().filter(concerned).filter_map(|entry| entry.health.upgrade()).for_each(|health| health.fail());
    }
}

/// Which member of the event's union is set depends on its type: ibv_get_async_event(3).
fn scope(event: &ffi::ibv_async_event) -> Scope {
    match event.event_type {
        ffi::IBV_EVENT_QP_FATAL | ffi::IBV_EVENT_QP_REQ_ERR | ffi::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: these types set the queue pair. Only its address is used.
            Scope::QueuePair(unsafe { event.element.qp } as usize)
        }
        ffi::IBV_EVENT_CQ_ERR => {
            // SAFETY: this type sets the completion queue. Only its address is used.
            Scope::CompletionQueue(unsafe { event.element.cq } as usize)
        }
        ffi::IBV_EVENT_PORT_ERR => {
            // SAFETY: this type sets the port's number.
            Scope::Port(unsafe { event.element.port_num } as u8)
        }
        ffi::IBV_EVENT_DEVICE_FATAL => Scope::Device,
        _ => Scope::Nothing,
    }
}
