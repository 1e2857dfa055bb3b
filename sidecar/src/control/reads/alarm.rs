//! An alarm clock with a finer grain than the runtime's timers, which count in milliseconds: boards are looked at five
//! thousand times a second.
//!
//! Used by [`follow`](super::follow). One `timerfd_create(2)` descriptor; the runtime tells when it is readable, as it does for
//! the read channel of a [`visit`](super::visit).

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Rings once for each time that it is set.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: AsyncFd<OwnedFd>,
    /// When it rings next.
    at: Option<Instant>,
}

impl Alarm {
    /// An alarm that is not set. Called within the runtime.
    pub(super) fn new() -> io::Result<Alarm> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Alarm { timer: watch(timer)?, at: None })
    }

    /// Rings at this moment, and not when it would have before; with `None` not at all.
    pub(super) fn set(&mut self, at: Option<Instant>) -> io::Result<()> {
        if at == self.at {
            return Ok(());
        }
        if let Some(at) = at {
            // Zero would disarm it.
            let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let it_value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        }
        self.at = at;
        Ok(())
    }

    /// Returns when it rings. Loses nothing if it is not waited for to the end.
    pub(super) async fn rings(&mut self) -> io::Result<()> {
        let Some(at) = self.at else { return std::future::pending().await };
        while Instant::now() < at {
            // Perhaps it is readable from the time for which it was set before.
            self.timer.readable().await?.clear_ready();
        }
        self.at = None;
        Ok(())
    }
}

/// Has the runtime tell when this becomes readable. Called within the runtime.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for owners whose descriptor may change: this one's does not"
)]
pub(super) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_rings_at_the_time_it_was_set_for_last() {
        let mut alarm = Alarm::new().unwrap();
        let began = Instant::now();
        alarm.set(Some(began + Duration::from_micros(100))).unwrap();
        let last = began + Duration::from_millis(3);
        alarm.set(Some(last)).unwrap();
        alarm.rings().await.unwrap();
        assert!(Instant::now() >= last);
        // In the past.
        alarm.set(Some(began)).unwrap();
        alarm.rings().await.unwrap();
        alarm.set(Some(began + Duration::from_secs(3600))).unwrap();
        alarm.set(None).unwrap();
        let rings = alarm.rings();
        assert!(tokio::time::timeout(Duration::from_millis(20), rings).await.is_err());
    }
}
