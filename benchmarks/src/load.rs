//! Puts load on something that takes records: a closed loop (the next record once an earlier one is answered) and an open
//! loop (records at fixed times, regardless of the answers).
//!
//! One thread drives all connections, so that one driver measures every contestant alike. In the open loop a latency
//! counts from the time at which its record was due: a contestant that stalls is charged with every record that came due during
//! the stall (no coordinated omission).

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::results::{Figures, Metric};
use crate::statistics::{histogram, percentiles};

/// A connection that answers records in the order in which they were submitted.
pub(crate) trait Connection {
    /// Takes one record; need not send it before [`answers`](Connection::answers).
    fn submit(&mut self, payload: &[u8]) -> Result<()>;
    /// Sends what has been submitted and receives, as far as either goes without waiting; how many records were answered
    /// since the last call. With `wait`, sleeps until there is one at least; something must be in flight.
    fn answers(&mut self, wait: bool) -> Result<usize>;
    /// What to poll: it becomes readable with an answer.
    fn fd(&self) -> BorrowedFd<'_>;
    /// True while something could not be sent.
    fn unsent(&self) -> bool;
}

/// How long to wait after the last record for missing answers, and how long an answer may take at all.
const PATIENCE: Duration = Duration::from_secs(10);
/// Open loop: unanswered records at which the contestant has lost the race, and no more are submitted. A tenth of the most
/// that our client allows.
const BACKLOG_MAX: usize = 100_000;

/// What the load showed.
pub(crate) struct Measured {
    pub(crate) latency: Histogram<u64>,
    pub(crate) records: u64,
    pub(crate) elapsed: Duration,
    /// Open loop: records that were due.
    pub(crate) due: u64,
}

impl Measured {
    /// Rate and percentiles.
    pub(crate) fn figures(&self) -> Figures {
        let mut figures = percentiles(&self.latency);
        figures.insert(Metric::Rate, self.rate());
        if self.due > 0 {
            figures.insert(Metric::Kept, 100.0 * self.records as f64 / self.due as f64);
        }
        figures
    }

    /// Records per second.
    pub(crate) fn rate(&self) -> f64 {
        self.records as f64 / self.elapsed.as_secs_f64()
    }
}

/// Records in flight on all connections, each with the time from which its latency counts.
struct Flight {
    waiting: Vec<VecDeque<Instant>>,
    latency: Histogram<u64>,
    records: u64,
}

impl Flight {
    fn new(connections: usize) -> Flight {
        Flight { waiting: vec![VecDeque::new(); connections], latency: histogram(), records: 0 }
    }

    fn land(&mut self, connection: usize, answers: usize) -> Result<()> {
        if answers == 0 {
            return Ok(());
        }
        let now = Instant::now();
        ensure!(answers <= self.waiting[connection].len(), "more answers than records");
        for since in self.waiting[connection].drain(..answers) {
            self.latency.saturating_record((now - since).as_nanos() as u64);
        }
        self.records += answers as u64;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    fn count(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn measured(self, started: Instant, due: u64) -> Measured {
        Measured { latency: self.latency, records: self.records, elapsed: started.elapsed(), due }
    }
}

/// Keeps `depth` records in flight on each connection for so long.
pub(crate) fn closed_loop<C: Connection + ?Sized>(
    connections: &mut [Box<C>],
    depth: usize,
    payload: &[u8],
    time: Duration,
) -> Result<Measured> {
    let mut flight = Flight::new(connections.len());
    let started = Instant::now();
    let end = started + time;
    // A quarter at least, so that several records share a system call.
    let top_up = |flight: &mut Flight, index: usize, connection: &mut C| {
        let (now, room) = (Instant::now(), depth - flight.waiting[index].len());
        if now < end && room >= depth.div_ceil(4) {
            (0..room).try_for_each(|_| connection.submit(payload))?;
            flight.waiting[index].extend(std::iter::repeat_n(now, room));
            return anyhow::Ok(true);
        }
        Ok(false)
    };
    if let [connection] = connections {
        // Alone, it can sleep in the receiving call itself.
        loop {
            top_up(&mut flight, 0, connection)?;
            if flight.is_empty() {
                return Ok(flight.measured(started, 0));
            }
            let answers = connection.answers(true)?;
            flight.land(0, answers)?;
        }
    }
    let mut ready = vec![true; connections.len()];
    loop {
        for (index, connection) in connections.iter_mut().enumerate().filter(|(index, _)| ready[*index]) {
            // What was submitted is sent by the next call, and no answer stays unseen in the connection.
            loop {
                let answers = connection.answers(false)?;
                flight.land(index, answers)?;
                if !top_up(&mut flight, index, connection)? {
                    break;
                }
            }
        }
        if flight.is_empty() {
            return Ok(flight.measured(started, 0));
        }
        ensure!(wait(connections, &mut ready, PATIENCE)? > 0, "no answer within {PATIENCE:?}");
    }
}

/// One record at a time, and nothing between two of them but the clock: for latencies near the floor.
pub(crate) fn one_at_a_time(time: Duration, mut exchange: impl FnMut() -> Result<()>) -> Result<Measured> {
    let mut latency = histogram();
    let started = Instant::now();
    let mut last = started;
    while last - started < time {
        exchange()?;
        let now = Instant::now();
        latency.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
    Ok(Measured { records: latency.len(), latency, elapsed: started.elapsed(), due: 0 })
}

/// Submits `rate` records a second for so long, at even intervals, no matter how many are unanswered. A contestant that cannot
/// keep up has fewer answers than were due.
pub(crate) fn open_loop<C: Connection + ?Sized>(
    connections: &mut [Box<C>],
    rate: f64,
    payload: &[u8],
    time: Duration,
) -> Result<Measured> {
    let mut flight = Flight::new(connections.len());
    let due = (rate * time.as_secs_f64()).max(1.0) as u64;
    let started = Instant::now();
    let at = |number: u64| started + Duration::from_secs_f64(number as f64 / rate);
    let mut ready = vec![true; connections.len()];
    let (mut submitted, mut lost) = (0, false);
    loop {
        let now = Instant::now();
        while submitted < due && !lost && at(submitted) <= now {
            let index = (submitted % connections.len() as u64) as usize;
            connections[index].submit(payload)?;
            flight.waiting[index].push_back(at(submitted));
            ready[index] = true;
            submitted += 1;
        }
        lost |= flight.count() > BACKLOG_MAX;
        for (index, connection) in connections.iter_mut().enumerate().filter(|(index, _)| ready[*index]) {
            let answers = connection.answers(false)?;
            flight.land(index, answers)?;
        }
        let over = submitted == due || lost;
        if (over && flight.is_empty()) || now > started + time + PATIENCE {
            return Ok(flight.measured(started, due));
        }
        let pause = if over { PATIENCE } else { at(submitted).saturating_duration_since(Instant::now()) };
        if pause.is_zero() {
            ready.fill(true);
        } else {
            wait(connections, &mut ready, pause)?;
        }
    }
}

/// Sleeps until a connection can continue; returns which ones, and how many.
fn wait<C: Connection + ?Sized>(connections: &[Box<C>], ready: &mut [bool], longest: Duration) -> Result<usize> {
    let wanted = |connection: &C| if connection.unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<PollFd<'_>> =
        connections.iter().map(|c| PollFd::from_borrowed_fd(c.fd(), wanted(c.as_ref()))).collect();
    let timeout = Timespec::try_from(longest)?;
    let count = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
    for (ready, fd) in ready.iter_mut().zip(&fds) {
        *ready = !fd.revents().is_empty();
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    /// What was seen of all connections.
    #[derive(Default)]
    struct Seen {
        submitted: u64,
        most_in_flight: usize,
    }

    /// Answers everything at the next call, after a stall if it has one.
    struct Fake {
        stream: UnixStream,
        waiting: usize,
        stall: Duration,
        seen: Rc<RefCell<Seen>>,
    }

    impl Connection for Fake {
        fn submit(&mut self, _: &[u8]) -> Result<()> {
            self.waiting += 1;
            let mut seen = self.seen.borrow_mut();
            seen.submitted += 1;
            seen.most_in_flight = seen.most_in_flight.max(self.waiting);
            Ok(())
        }

        fn answers(&mut self, _: bool) -> Result<usize> {
            std::thread::sleep(std::mem::take(&mut self.stall));
            Ok(std::mem::take(&mut self.waiting))
        }

        fn fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn unsent(&self) -> bool {
            false
        }
    }

    fn fakes(count: usize, stall: Duration) -> (Vec<Box<dyn Connection>>, Rc<RefCell<Seen>>) {
        let seen = Rc::new(RefCell::new(Seen::default()));
        let fake = |_| -> Box<dyn Connection> {
            let (stream, _) = UnixStream::pair().unwrap();
            Box::new(Fake { stream, waiting: 0, stall, seen: Rc::clone(&seen) })
        };
        ((0..count).map(fake).collect(), seen)
    }

    #[test]
    fn a_closed_loop_keeps_to_its_depth() {
        for clients in [1, 3] {
            let (mut connections, seen) = fakes(clients, Duration::ZERO);
            let measured = closed_loop(&mut connections, 4, b"x", Duration::from_millis(5)).unwrap();
            let seen = seen.borrow();
            assert_eq!((measured.records, measured.latency.len()), (seen.submitted, seen.submitted));
            assert_eq!(seen.most_in_flight, 4);
        }
    }

    #[test]
    fn an_open_loop_charges_a_stall_to_all_records_due() {
        const MILLISECOND: Duration = Duration::from_millis(1);
        let (mut connections, seen) = fakes(1, 50 * MILLISECOND);
        let measured = open_loop(&mut connections, 1000.0, b"x", 100 * MILLISECOND).unwrap();
        assert_eq!((measured.due, measured.records, seen.borrow().submitted), (100, 100, 100));
        // One record comes due each millisecond: those of the stall's first 40 wait for at least 10 more.
        let charged = measured.latency.count_between((10 * MILLISECOND).as_nanos() as u64, u64::MAX);
        assert!(charged >= 40, "{charged} records were charged for a stall of 50 ms");
    }
}
