//! The follows that run in this process: how many there may be, what backups know them as, and how far each has come.
//!
//! A [`follow`](super::follow) takes a [`FollowSlot`] for as long as it reads from members;
//! [`status`](crate::control::status) tells how far they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tailwind_fabric::ReaderId;
use tailwind_protocol::follower::STALE_AFTER;
use tailwind_protocol::ids::{Epoch, LogId, Lsn, MemberId};
use tailwind_report::sidecar::FollowReport;

use crate::control::log::Term;

/// Follows at once. A backup admits [32](tailwind_fabric::reading::READERS_MAX) readers: even if all follows and the getters of
/// three sidecars visit the same one, none is refused.
pub(super) const FOLLOWS_MAX: usize = 8;

/// The follows of a process.
#[derive(Debug)]
pub struct Follows {
    /// Random: slot n is reader `first + n` to the backups. They remember a reader for a while, so the slots are few and stay the
    /// same.
    first: u64,
    slots: Mutex<[Option<Progress>; FOLLOWS_MAX]>,
    /// Records that have been handed out.
    records: AtomicU64,
    /// The log that was followed last, and the latest epoch of it whose records may have been handed out.
    seen: Mutex<Option<(LogId, Epoch)>>,
}

/// How far a follow is.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// The member that it reads from.
    pub(super) from: Option<MemberId>,
    /// The last record that it has handed out.
    pub(super) lsn: Lsn,
    /// Everything that was acknowledged before has been handed out; unknown at first.
    pub(super) covers: Option<Instant>,
    /// When it began.
    pub(super) began: Instant,
}

impl Progress {
    /// How long ago everything that it has handed out was all that was acknowledged, at most; while that is unknown, for how
    /// long it has been.
    fn behind(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.covers.unwrap_or(self.began))
    }
}

/// One of the follows. Free again when this is dropped.
#[derive(Debug)]
pub(in crate::control) struct FollowSlot {
    follows: Arc<Follows>,
    index: usize,
}

impl Follows {
    /// None yet.
    pub fn new() -> Result<Arc<Follows>, getrandom::Error> {
        let slots = Mutex::new(std::array::from_fn(|_| None));
        Ok(Arc::new(Follows { first: getrandom::u64()?, slots, records: AtomicU64::new(0), seen: Mutex::default() }))
    }

    /// What backups know the getter of this process as.
    pub(in crate::control) fn getter(&self) -> ReaderId {
        ReaderId(self.first.wrapping_add(FOLLOWS_MAX as u64))
    }

    /// A slot, if one is free.
    pub(in crate::control) fn take(self: &Arc<Follows>, next: Lsn) -> Option<FollowSlot> {
        let mut slots = self.lock();
        let index = slots.iter().position(Option::is_none)?;
        slots[index] = Some(Progress { from: None, lsn: next.prev(), covers: None, began: Instant::now() });
        Some(FollowSlot { follows: Arc::clone(self), index })
    }

    /// A follower has believed a board of this epoch.
    pub(in crate::control) fn note(&self, log: LogId, epoch: Epoch) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *seen {
            Some((known, latest)) if *known == log => *latest = epoch.max(*latest),
            other => *other = Some((log, epoch)),
        }
    }

    /// True for a term that has ended, whoever may still believe in it: records of a later epoch have been handed out here, and
    /// its log may lack them.
    pub(in crate::control) fn have_outlived(&self, term: &Term) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_some_and(|(log, epoch)| log == term.log && epoch > term.epoch)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().iter().flatten().count()
    }

    /// Records that have been handed out.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// How far the one is that is furthest behind; `None` while there is none.
    pub fn lag(&self, now: Instant) -> Option<Duration> {
        self.lock().iter().flatten().map(|progress| progress.behind(now)).max()
    }

    /// The one that is furthest behind.
    pub fn report(&self, now: Instant) -> Option<FollowReport> {
        let slots = self.lock();
        let worst = slots.iter().flatten().max_by_key(|progress| progress.behind(now))?;
        let lag = worst.covers.map(|covers| now.saturating_duration_since(covers));
        Some(FollowReport {
            from: worst.from.as_ref().map(ToString::to_string).unwrap_or_default(),
            lsn: worst.lsn.0,
            lag_ms: lag.map(|lag| lag.as_millis().try_into().unwrap_or(u64::MAX)),
            stale: lag.is_none_or(|lag| lag > STALE_AFTER),
        })
    }

    fn lock(&self) -> MutexGuard<'_, [Option<Progress>; FOLLOWS_MAX]> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FollowSlot {
    /// What backups know it as.
    pub(super) fn reader(&self) -> ReaderId {
        ReaderId(self.follows.first.wrapping_add(self.index as u64))
    }

    /// It has come further, and has handed out so many records more.
    pub(super) fn update(&self, records: u64, change: impl FnOnce(&mut Progress)) {
        self.follows.records.fetch_add(records, Ordering::Relaxed);
        if let Some(progress) = &mut self.follows.lock()[self.index] {
            change(progress);
        }
    }
}

impl Drop for FollowSlot {
    fn drop(&mut self) {
        self.follows.lock()[self.index] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_bounded_and_free_again() {
        let follows = Follows::new().unwrap();
        let mut slots: Vec<FollowSlot> = (0..FOLLOWS_MAX).map(|_| follows.take(Lsn(1)).unwrap()).collect();
        assert!(follows.take(Lsn(1)).is_none());
        let freed = slots.swap_remove(3).reader();
        let again = follows.take(Lsn(1)).unwrap();
        assert_eq!(again.reader(), freed, "backups know few readers of a process, however often it follows");
        assert!(slots.iter().all(|slot| slot.reader() != freed));
    }

    #[test]
    fn terms_older_than_what_was_handed_out_are_over() {
        let follows = Follows::new().unwrap();
        let term = |log, epoch| Term { log: LogId(log), epoch: Epoch(epoch), first: Lsn(1), last: Lsn(0) };
        assert!(!follows.have_outlived(&term(1, 1)));
        follows.note(LogId(1), Epoch(2));
        follows.note(LogId(1), Epoch(1));
        assert!(follows.have_outlived(&term(1, 1)));
        assert!(!follows.have_outlived(&term(1, 2)) && !follows.have_outlived(&term(1, 3)));
        assert!(!follows.have_outlived(&term(2, 1)), "the group has been made anew");
        follows.note(LogId(2), Epoch(1));
        assert!(!follows.have_outlived(&term(2, 1)));
    }

    #[test]
    fn the_one_furthest_behind_is_reported() {
        let follows = Follows::new().unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        assert_eq!((follows.lag(now), follows.report(now)), (None, None));
        let (near, far) = (follows.take(Lsn(1)).unwrap(), follows.take(Lsn(5)).unwrap());
        let report = follows.report(now).unwrap();
        assert_eq!((report.lag_ms, report.stale), (None, true), "nothing is known yet");
        let ago = |millis| Some(now - Duration::from_millis(millis));
        near.update(7, |progress| (progress.lsn, progress.covers) = (Lsn(7), ago(20)));
        far.update(1, |progress| {
            (progress.lsn, progress.covers, progress.from) = (Lsn(5), ago(30), "b0".parse().ok());
        });
        let report = FollowReport { from: "b0".to_owned(), lsn: 5, lag_ms: Some(30), stale: false };
        assert_eq!(follows.report(now), Some(report));
        assert_eq!((follows.records(), follows.count()), (8, 2));
        drop(far);
        assert_eq!(follows.lag(now), Some(Duration::from_millis(20)));
    }
}
