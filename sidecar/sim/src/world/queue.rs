//! Virtual time: what happens next, and when.
//!
//! Owned by [`World`](super::World). Two events of one moment happen in the order in which they were planned, so that a
//! seed has one story only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Microseconds since the world began, or between two moments of it.
pub(crate) type Micros = u64;

/// One millisecond.
pub(crate) const MS: Micros = 1000;

/// What is planned, by time.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    now: Micros,
    planned: BinaryHeap<Reverse<Planned<E>>>,
    count: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: Micros,
    number: u64,
    event: E,
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { now: 0, planned: BinaryHeap::new(), count: 0 }
    }

    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// Plans an event `after` microseconds from now.
    pub(crate) fn plan(&mut self, after: Micros, event: E) {
        self.plan_at(self.now + after, event);
    }

    /// Plans an event for a moment that has not passed.
    pub(crate) fn plan_at(&mut self, at: Micros, event: E) {
        self.count += 1;
        self.planned.push(Reverse(Planned { at: at.max(self.now), number: self.count, event }));
    }

    /// The next event; time moves on to it.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(planned) = self.planned.pop()?;
        self.now = self.now.max(planned.at);
        Some(planned.event)
    }

    /// The first event of this kind, ahead of everything before it; time does not go back.
    pub(crate) fn take(&mut self, wanted: impl Fn(&E) -> bool) -> Option<E> {
        let found = self.planned.iter().filter(|Reverse(planned)| wanted(&planned.event)).max()?.0.number;
        let mut taken = None;
        for Reverse(planned) in std::mem::take(&mut self.planned) {
            match planned.number == found {
                true => taken = Some(planned),
                false => self.planned.push(Reverse(planned)),
            }
        }
        let taken = taken?;
        self.now = self.now.max(taken.at);
        Some(taken.event)
    }

    /// Nothing of this kind happens any more.
    pub(crate) fn forget(&mut self, unwanted: impl Fn(&E) -> bool) {
        self.planned.retain(|Reverse(planned)| !unwanted(&planned.event));
    }

    /// When the first event of this kind is due.
    pub(crate) fn due(&self, wanted: impl Fn(&E) -> bool) -> Option<Micros> {
        self.planned.iter().filter(|Reverse(planned)| wanted(&planned.event)).map(|Reverse(planned)| planned.at).min()
    }

    /// Time passes; what is due by then stays planned.
    pub(crate) fn pass_to(&mut self, moment: Micros) {
        self.now = self.now.max(moment);
    }

    /// Events planned so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_run_in_time_then_insertion_order() {
        let mut queue = Queue::new();
        queue.plan(5, 'c');
        queue.plan(1, 'a');
        queue.plan(1, 'b');
        assert_eq!((queue.next(), queue.now()), (Some('a'), 1));
        queue.plan_at(0, 'x');
        assert_eq!((queue.next(), queue.next(), queue.next()), (Some('b'), Some('x'), Some('c')));
        assert_eq!((queue.next(), queue.now()), (None, 5));
    }
}
