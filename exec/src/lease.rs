//! The lease: a program that was cut off answers reads from its memory no longer than this.
//!
//! A barrier proves that this sidecar was primary when it was sent. While barriers pass, the lease is held until its length
//! after the sending of the last one. The next primary starts its program only once every lease of an earlier epoch has run
//! out: see [`start_at`]. Begun by `life` at the turn.
//!
//! Two threads beside the supervisor, which may be busy or wait for the log: one sends barriers, the other does nothing but
//! wait for the end of the lease.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, read, retry_on_intr};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tailwind_client::blocking::Client;
use tailwind_client::{Epoch, Options};
use tracing::warn;

/// Barriers in the length of a lease: several may be late before it runs out.
const BARRIERS: u32 = 6;
/// A new primary waits so much longer than its own lease: clocks of two hosts may differ in their rates by less.
const START_FACTOR: (u32, u32) = (6, 5);

/// A clock that keeps running while the host is suspended.
pub fn now() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Boottime);
    Duration::new(tv_sec.unsigned_abs(), tv_nsec as u32)
}

/// When a program may start whose turn came at `turn`: nobody holds an earlier lease any more.
pub fn start_at(turn: Duration, length: Duration) -> Duration {
    turn + length * START_FACTOR.0 / START_FACTOR.1
}

/// A lease that is held as long as barriers pass.
pub struct Lease {
    shared: Arc<Shared>,
}

struct Shared {
    /// Fires at `until`, once that is set.
    timer: OwnedFd,
    until: Mutex<Option<Duration>>,
    over: AtomicBool,
    /// Nobody needs it any more. Changes under the lock of `until`, as `over` does.
    given_up: AtomicBool,
}

impl Lease {
    /// Begins. `pass` sends a barrier and returns whether it has passed, after `length` at the latest if that can be. The lease
    /// is not held before the first one has. When it runs out, `end` is called, once, by a thread of its own.
    pub fn begin(
        length: Duration,
        mut pass: impl FnMut() -> bool + Send + 'static,
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Lease> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        let (until, over, given_up) = (Mutex::new(None), AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { timer, until, over, given_up });
        let (renewing, waiting) = (shared.clone(), shared.clone());
        thread::Builder::new().name("lease-end".into()).spawn(move || {
            if waiting.wait() {
                end();
            }
        })?;
        thread::Builder::new().name("lease-barriers".into()).spawn(move || {
            while !renewing.is_over() && !renewing.given_up.load(Ordering::Acquire) {
                let sent = now();
                if pass() {
                    renewing.extend(sent + length);
                }
                thread::sleep((sent + length / BARRIERS).saturating_sub(now()));
            }
        })?;
        Ok(Lease { shared })
    }

    /// Whether the program may run.
    pub fn is_held(&self) -> bool {
        let until = *self.shared.until();
        until.is_some_and(|until| now() < until) && !self.shared.is_over()
    }

    /// Ends it before it runs out: from here on `end` is not called. `false` if it has expired already, and `end` is being
    /// called.
    pub fn give_up(&self) -> bool {
        let _until = self.shared.until();
        if self.shared.is_over() {
            return false;
        }
        self.shared.given_up.store(true, Ordering::Release);
        // Wakes the thread that waits for its end; otherwise that waits for good, and does nothing.
        let _ = self.shared.set_timer(now());
        true
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Shared {
    fn until(&self) -> std::sync::MutexGuard<'_, Option<Duration>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A barrier that was sent a lease before `until` has passed.
    fn extend(&self, until: Duration) {
        let mut held_until = self.until();
        if self.given_up.load(Ordering::Acquire) {
            return;
        }
        // Once it has expired it stays expired, even if a barrier passes later.
        if held_until.is_none_or(|held_until| now() < held_until) && now() < until {
            *held_until = Some(until);
            if let Err(errno) = self.set_timer(until) {
                // It ends at the time that is set.
                warn!(error = %errno, "cannot extend the lease");
            }
        }
    }

    fn set_timer(&self, at: Duration) -> Result<(), Errno> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: at.as_secs() as i64, tv_nsec: at.subsec_nanos().into() };
        let once = Itimerspec { it_interval: zero, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once).map(drop)
    }

    /// Until it has run out; or `false` once it was given up.
    fn wait(&self) -> bool {
        loop {
            // If the timer cannot be read, the clock is looked at all the time.
            let _ = retry_on_intr(|| read(&self.timer, &mut [0; 8]));
            let until = self.until();
            if self.given_up.load(Ordering::Acquire) {
                return false;
            }
            if until.is_some_and(|until| now() >= until) {
                self.over.store(true, Ordering::Release);
                return true;
            }
        }
    }
}

/// Barriers over a connection of their own: one that waits must not hold up appends.
///
/// They prove the same as those of the connection that appends if they pass in the epoch of its turn: the sidecar was still its
/// primary then, so nobody has had the turn of a later one.
pub struct Barriers {
    socket: PathBuf,
    epoch: Epoch,
    timeout: Duration,
    client: Option<Client>,
}

impl Barriers {
    /// Barriers for the epoch of a turn.
    pub fn new(socket: PathBuf, epoch: Epoch, timeout: Duration) -> Barriers {
        Barriers { socket, epoch, timeout, client: None }
    }

    /// Sends one, and returns whether it has passed.
    pub fn pass(&mut self) -> bool {
        match self.try_pass() {
            Ok(epoch) => epoch == self.epoch,
            Err(_) => {
                // What has ended it shows where the program appends, or the lease runs out.
                self.client = None;
                false
            }
        }
    }

    fn try_pass(&mut self) -> tailwind_client::Result<Epoch> {
        let client = match &mut self.client {
            Some(client) => client,
            none => {
                let options = Options { timeout: Some(self.timeout), socket_only: true, ..Options::default() };
                none.insert(Client::connect_with(&self.socket, &options)?)
            }
        };
        Ok(client.barrier()?.epoch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    /// So long that a busy machine sends barriers in time.
    const LENGTH: Duration = Duration::from_secs(1);
    const DEADLINE: Duration = Duration::from_secs(60);

    /// A lease whose barriers pass while `passes`, and the time of its end.
    fn begin(passes: Arc<AtomicBool>) -> (Lease, Receiver<Duration>) {
        let (send, ended) = mpsc::channel();
        let lease = Lease::begin(LENGTH, move || passes.load(Ordering::SeqCst), move || send.send(now()).unwrap());
        (lease.unwrap(), ended)
    }

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let deadline = now() + DEADLINE;
        while !holds() {
            assert!(now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_is_held_while_barriers_pass_and_ends_in_time() {
        let passes = Arc::new(AtomicBool::new(true));
        let (lease, ended) = begin(passes.clone());
        wait_until(|| lease.is_held());
        // For longer than one barrier would last.
        assert!(ended.recv_timeout(LENGTH * 2).is_err() && lease.is_held());
        let last = now();
        passes.store(false, Ordering::SeqCst);
        let end = ended.recv_timeout(DEADLINE).unwrap();
        assert!(!lease.give_up() && !lease.is_held());
        assert!(end > last, "that barrier may have been sent before");
        // It does not come back.
        passes.store(true, Ordering::SeqCst);
        thread::sleep(LENGTH);
        assert!(!lease.is_held());
    }

    #[test]
    fn it_counts_from_the_sending_of_a_barrier() {
        let (send, ended) = mpsc::channel();
        let (mut first, passed) = (true, Arc::new(Mutex::new(None)));
        let answered = passed.clone();
        // The first one passes, late.
        let pass = move || {
            thread::sleep(LENGTH / 4);
            answered.lock().unwrap().get_or_insert_with(now);
            std::mem::take(&mut first)
        };
        let begun = now();
        let lease = Lease::begin(LENGTH, pass, move || send.send(now()).unwrap()).unwrap();
        let end = ended.recv_timeout(DEADLINE).unwrap();
        let until = lease.shared.until().unwrap();
        assert!(begun + LENGTH <= until && until <= passed.lock().unwrap().unwrap() + LENGTH - LENGTH / 4);
        assert!(end >= until);
    }

    #[test]
    fn it_is_not_held_before_a_barrier_has_passed() {
        let (lease, ended) = begin(Arc::default());
        assert!(ended.recv_timeout(LENGTH * 2).is_err());
        assert!(!lease.is_held() && lease.give_up());
    }

    #[test]
    fn one_that_is_given_up_ends_nothing() {
        let (lease, ended) = begin(Arc::new(AtomicBool::new(true)));
        wait_until(|| lease.is_held());
        assert!(lease.give_up());
        // Both threads end, and nobody has called.
        assert_eq!(ended.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Disconnected));
        assert!(lease.give_up(), "it has not run out");
    }

    #[test]
    fn a_program_starts_after_every_earlier_lease() {
        let second = Duration::from_secs(1);
        assert_eq!(start_at(second, second), Duration::from_millis(2200));
    }
}
