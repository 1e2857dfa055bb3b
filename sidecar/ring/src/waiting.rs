//! How a side that sleeps is woken: the producer by room, the consumer by bytes. The same two functions serve both.
//!
//! Used by `ring`. A side that goes to sleep says so in a word of its own, and looks once more at the other side's position.
//! A side that moves its position looks at the other's word, and wakes it if it is set: with a frame through the socket, on
//! which the sleeper waits.
//!
//! # Why no wake-up is lost
//!
//! 1. `moved` stores the position, passes a SeqCst fence, and loads the word. `may_sleep` stores the word, passes a SeqCst
//!    fence, and loads the position.
//! 2. SeqCst fences have one order. If the fence in `moved` comes first, the load in `may_sleep` sees the new position, and its
//!    side does not sleep. If it comes second, the load in `moved` sees the word, and its side wakes the other.
//! 3. With release and acquire alone both loads could see old values, because a store may become visible after a later load:
//!    one side would sleep while the other relies on its being awake.
//!
//! The test below runs both functions in every order that the memory model allows.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A shared word; the test's words are not the machine's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fence();
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Publishes this side's position. True: the other side waits for that, and the caller has to wake it.
pub(crate) fn moved<W: Word>(position: &W, value: u64, waits: &W) -> bool {
    position.store(value, Ordering::Release);
    W::fence();
    waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0
}

/// Says that this side is about to sleep. True: it may, as the other side's position is still the one that it knows.
/// False: it must look again.
pub(crate) fn may_sleep<W: Word>(waits: &W, position: &W, known: u64) -> bool {
    waits.store(1, Ordering::Relaxed);
    W::fence();
    position.load(Ordering::Acquire) == known
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    impl Word for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }

        fn swap(&self, value: u64, order: Ordering) -> u64 {
            self.swap(value, order)
        }

        fn fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    #[test]
    fn no_order_of_events_loses_a_wake_up() {
        loom::model(|| {
            let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
            let others = Arc::clone(&words);
            let other = loom::thread::spawn(move || moved(&others.0, 1, &others.1));
            let sleeps = may_sleep(&words.1, &words.0, 0);
            let wakes = other.join().unwrap();
            assert!(wakes || !sleeps, "one side sleeps, and the other does not wake it");
        });
    }
}
