//! Keys that are drawn as YCSB draws them, and a table that has all of them.
//!
//! Used by the comparison `tables`, and by [`workload`](crate::workload). The distribution is that of Gray et al., *Quickly Generating
//! Billion-Record Synthetic Databases*, SIGMOD 1994, without the scrambling of YCSB: tables hash their keys anyway.

use std::time::Duration;

use anyhow::{Context, Result};
use tailwind_client::Apply;
use tailwind_client::blocking::Table;

use crate::ours::Ours;

/// Bytes of a key, as in the paper.
pub(crate) const KEY_SIZE: usize = 30;
/// Skew, as in YCSB.
const THETA: f64 = 0.99;

/// The key of this number.
pub(crate) fn key(number: u64) -> String {
    format!("{number:0KEY_SIZE$}")
}

/// Puts every key once.
pub(crate) fn fill(ours: &Ours, keys: u64, value_size: usize) -> Result<()> {
    let mut table = Table::over(ours.client(Duration::ZERO)?)?;
    let value = vec![7; value_size];
    for number in 0..keys {
        table.submit(Apply::new().put(key(number).as_bytes(), &value))?;
        while let Some(ack) = table.client().try_next_ack() {
            ack.outcome?;
        }
    }
    table.client().flush().map(drop).context("fill the table")
}

/// Numbers from 0 on, the smaller ones more often.
pub(crate) struct Zipf {
    keys: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(keys: u64) -> Zipf {
        let theta = THETA;
        let zeta = |count: u64| (1..=count).map(|n| (n as f64).powf(-theta)).sum::<f64>();
        let (all, two, keys) = (zeta(keys), zeta(2), keys as f64);
        let eta = (1.0 - (2.0 / keys).powf(1.0 - theta)) / (1.0 - two / all);
        Zipf { keys, theta, zeta: all, eta }
    }

    /// The key at this share of the distribution, 0 to 1.
    pub(crate) fn key(&self, share: f64) -> u64 {
        let scaled = share * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let key = self.keys * (self.eta * share - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (key as u64).min(self.keys as u64 - 1)
    }
}

/// Small, fast, and the same for the same seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        // Neighbouring seeds would begin alike.
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.next();
        });
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// 0 to 1, without 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 32) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_distribution() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 1000];
        const DRAWN: u32 = 200_000;
        (0..DRAWN).for_each(|_| counts[zipf.key(random.share()) as usize] += 1);
        for (rank, tolerance) in [(1, 0.05), (2, 0.05), (10, 0.4), (100, 0.4)] {
            let expected = f64::from(DRAWN) / (f64::from(rank).powf(THETA) * zipf.zeta);
            let found = f64::from(counts[rank as usize - 1]);
            assert!((found - expected).abs() <= expected * tolerance, "rank {rank}: {found} of {expected}");
        }
        assert_eq!((zipf.key(0.0), zipf.key(1.0)), (0, 999));
    }
}
