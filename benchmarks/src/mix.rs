//! Clients that read and write the keys of a table: a closed loop, as YCSB has it, and a thread for each client.
//!
//! Used by the comparison `tables`. A read waits for its answer in the calling thread, so one thread could not drive several
//! clients as [`load`](crate::load) does.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;

use crate::keys::{Random, Zipf, key};
use crate::load::Measured;
use crate::statistics::histogram;

/// One client.
pub(crate) trait KeyClient: Send {
    /// Reads a key, which is there; the size of its value.
    fn read(&mut self, key: &[u8]) -> Result<usize>;
    /// Gives a key this value, and waits until it has it.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// What clients do.
#[derive(Clone)]
pub(crate) struct Mix {
    /// Share of reads, in percent.
    pub(crate) reads: u64,
    pub(crate) value_size: usize,
    pub(crate) zipf: Arc<Zipf>,
}

/// What they did, together and apart.
pub(crate) struct Driven {
    pub(crate) all: Measured,
    pub(crate) reads: Measured,
    pub(crate) writes: Measured,
}

/// Has each client do one operation after the other for so long.
pub(crate) fn drive(clients: Vec<Box<dyn KeyClient>>, mix: &Mix, time: Duration) -> Result<Driven> {
    let together = Arc::new(Barrier::new(clients.len()));
    let started = Instant::now();
    let threads: Vec<_> = clients
        .into_iter()
        .zip(1..)
        .map(|(client, seed)| {
            let (mix, together) = (mix.clone(), Arc::clone(&together));
            std::thread::spawn(move || {
                together.wait();
                one(client, &mix, Random::new(seed), time)
            })
        })
        .collect();
    let (mut reads, mut writes) = (histogram(), histogram());
    for thread in threads {
        let (read, written) = thread.join().map_err(|_| anyhow!("a client panicked"))??;
        reads.add(read)?;
        writes.add(written)?;
    }
    let elapsed = started.elapsed();
    let measured = |latency: Histogram<u64>| Measured { records: latency.len(), latency, elapsed, due: 0 };
    let mut all = reads.clone();
    all.add(&writes)?;
    Ok(Driven { all: measured(all), reads: measured(reads), writes: measured(writes) })
}

/// Latencies of its reads and of its writes.
fn one(
    mut client: Box<dyn KeyClient>,
    mix: &Mix,
    mut random: Random,
    time: Duration,
) -> Result<(Histogram<u64>, Histogram<u64>)> {
    let (mut reads, mut writes) = (histogram(), histogram());
    let value = vec![7; mix.value_size];
    let end = Instant::now() + time;
    loop {
        let is_read = random.next() % 100 < mix.reads;
        let key = key(mix.zipf.key(random.share()));
        let began = Instant::now();
        if began >= end {
            return Ok((reads, writes));
        }
        if is_read {
            let size = client.read(key.as_bytes())?;
            anyhow::ensure!(size == mix.value_size, "key {key} has a value of {size} bytes");
        } else {
            client.write(key.as_bytes(), &value)?;
        }
        let latencies = if is_read { &mut reads } else { &mut writes };
        latencies.saturating_record(began.elapsed().as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    type Counts = Arc<Mutex<BTreeMap<bool, u64>>>;

    struct Fake {
        counts: Counts,
        size: usize,
    }

    impl Fake {
        fn count(&self, is_read: bool) {
            *self.counts.lock().unwrap().entry(is_read).or_default() += 1;
        }
    }

    impl KeyClient for Fake {
        fn read(&mut self, _: &[u8]) -> Result<usize> {
            self.count(true);
            Ok(self.size)
        }

        fn write(&mut self, _: &[u8], value: &[u8]) -> Result<()> {
            assert_eq!(value.len(), self.size);
            self.count(false);
            Ok(())
        }
    }

    fn fakes(counts: &Counts, size: usize) -> Vec<Box<dyn KeyClient>> {
        (0..3).map(|_| -> Box<dyn KeyClient> { Box::new(Fake { counts: Arc::clone(counts), size }) }).collect()
    }

    #[test]
    fn reads_and_writes_are_counted_apart() {
        let counts = Counts::default();
        let mix = Mix { reads: 50, value_size: 4, zipf: Arc::new(Zipf::new(100)) };
        let driven = drive(fakes(&counts, 4), &mix, Duration::from_millis(20)).unwrap();
        let counts = counts.lock().unwrap();
        assert_eq!((driven.reads.records, driven.writes.records), (counts[&true], counts[&false]));
        assert_eq!(driven.all.records, counts.values().sum::<u64>());
        let share = counts[&true] as f64 / driven.all.records as f64;
        assert!((0.3..0.7).contains(&share), "{share}");
    }

    #[test]
    fn a_value_of_another_size_is_noticed() {
        let mix = Mix { reads: 100, value_size: 4, zipf: Arc::new(Zipf::new(100)) };
        let wrong = drive(fakes(&Counts::default(), 5), &mix, Duration::from_millis(20));
        assert!(wrong.is_err_and(|error| error.to_string().contains("has a value of 5 bytes")));
    }
}
