//! The workloads of the paper, put on the example app: reads and writes of keys that follow a Zipf distribution.
//!
//! Used by the comparison `baselines`, and the store itself by `followers`. The distribution is that of YCSB (Gray et al., *Quickly
//! Generating Billion-Record Synthetic Databases*, SIGMOD 1994), without its scrambling: the table hashes its keys anyway.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tailwind_client::Apply;
use tailwind_client::blocking::Table;
use tailwind_e2e::processes::kv::Servers;
use tailwind_e2e::processes::resp::{RespClient, RespValue};

use crate::load::Connection;
use crate::ours::{Ours, Shape, TableShape};
use crate::peers::wire::{Protocol, Wire, excerpt, line};

/// Keys in the store. The paper has 20 million.
const KEYS: u64 = 100_000;
/// Bytes of a key and of a value, as in the paper.
const KEY_SIZE: usize = 30;
pub(crate) const VALUE_SIZE: usize = 100;
/// Skew, as in YCSB.
const THETA: f64 = 0.99;
/// Bytes of a table's log for each key: its record takes less than half of them, so the cleaner has little to move.
const TABLE_PER_KEY: u64 = 512;
/// Bytes of log of the smallest table: cleaned often enough that disks do not fill, and rarely.
const TABLE_MIN: u64 = 256 << 20;
/// How long a server may take to become primary and read the log, and how often it is tried.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY: Duration = Duration::from_micros(500);

/// The example app beside a group's sidecar, with all keys in it.
pub(crate) struct Store {
    pub(crate) servers: Servers,
    pub(crate) ours: Ours,
    zipf: Arc<Zipf>,
}

impl Store {
    /// The shape of a group for the app.
    pub(crate) fn shape(shape: Shape) -> Shape {
        Store::shape_of_keys(shape, KEYS)
    }

    /// The same for so many keys.
    pub(crate) fn shape_of_keys(shape: Shape, keys: u64) -> Shape {
        Shape { table: Some(TableShape { size: TABLE_MIN.max(keys * TABLE_PER_KEY), keys }), ..shape }
    }

    /// Starts the app beside all sidecars of a group that keeps a table, and fills that. Each server has all keys then.
    pub(crate) fn start(ours: Ours) -> Result<Store> {
        let keys = ours.table().context("the example app needs a table")?.keys;
        let servers = Servers::start(&ours.group).context("start the example app")?;
        servers.wait_for_primary(0)?;
        fill(&ours, keys)?;
        for server in 0..ours.group.sidecars() {
            let all = RespValue::Integer(keys as i64);
            let has_all = || (servers.connect(server).ok()?.ask(&["DBSIZE"]).ok()? == all).then_some(());
            servers.wait("a server to have all keys", has_all)?;
        }
        Ok(Store { servers, ours, zipf: Arc::new(Zipf::new(keys, THETA)) })
    }

    /// Writes to a server until it takes the write, which it does once it is primary and has the log; when that was.
    pub(crate) fn first_write(&self, server: usize) -> Result<Instant> {
        let give_up = Instant::now() + PATIENCE;
        let key = key(0);
        let mut client = None::<RespClient>;
        while Instant::now() < give_up {
            // One that has not started yet refuses connections; one that is not primary, the write.
            client = client.or_else(|| self.servers.connect(server).ok());
            match client.as_mut().map(|client| client.ask(&["SET", &key, "value"])) {
                Some(Ok(RespValue::Simple(_))) => return Ok(Instant::now()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => client = None,
            }
            std::thread::sleep(RETRY);
        }
        bail!("server {server} of the example app takes no write within {PATIENCE:?} of the kill")
    }

    /// A client of which so many percent of the operations are reads. Clients with different seeds ask for different keys.
    pub(crate) fn connection(&self, reads: u64, seed: u64) -> Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(("127.0.0.1", self.servers.port(0))).context("connect to the example app")?;
        let operations = Operations { zipf: Arc::clone(&self.zipf), reads, random: Random::new(seed) };
        Ok(Box::new(Wire::new(stream, operations)?))
    }
}

/// Puts every key once, without the app.
fn fill(ours: &Ours, keys: u64) -> Result<()> {
    let mut table = Table::over(ours.client(Duration::ZERO)?)?;
    for number in 0..keys {
        table.submit(Apply::new().put(key(number).as_bytes(), &[7; VALUE_SIZE]))?;
        while let Some(ack) = table.client().try_next_ack() {
            ack.outcome?;
        }
    }
    table.client().flush().map(drop).context("fill the table")
}

pub(crate) fn key(number: u64) -> String {
    format!("{number:0KEY_SIZE$}")
}

/// What a client asks for: keys by the distribution.
struct Operations {
    zipf: Arc<Zipf>,
    /// In percent.
    reads: u64,
    random: Random,
}

impl Protocol for Operations {
    fn encode(&mut self, value: &[u8], out: &mut Vec<u8>) {
        let read = self.random.next() % 100 < self.reads;
        let key = key(self.zipf.key(self.random.share()));
        if read {
            out.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n${KEY_SIZE}\r\n{key}\r\n").as_bytes());
        } else {
            let head = format!("*3\r\n$3\r\nSET\r\n${KEY_SIZE}\r\n{key}\r\n${}\r\n", value.len());
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    fn decode(&mut self, input: &[u8], _out: &mut Vec<u8>) -> Result<Option<(usize, usize)>> {
        let Some(size) = line(input) else { return Ok(None) };
        match &input[..size - 2] {
            b"+OK" => Ok(Some((size, 1))),
            b"$100" => {
                let whole = size + VALUE_SIZE + 2;
                Ok((input.len() >= whole).then_some((whole, 1)))
            }
            other => bail!("the example app answered {}", excerpt(other)),
        }
    }
}

const _: () = assert!(VALUE_SIZE == 100, "as `decode` expects it");

/// Numbers from 0 on, the smaller ones more often.
struct Zipf {
    keys: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(keys: u64, theta: f64) -> Zipf {
        let zeta = |count: u64| (1..=count).map(|n| (n as f64).powf(-theta)).sum::<f64>();
        let (all, two, keys) = (zeta(keys), zeta(2), keys as f64);
        let eta = (1.0 - (2.0 / keys).powf(1.0 - theta)) / (1.0 - two / all);
        Zipf { keys, theta, zeta: all, eta }
    }

    /// The key at this share of the distribution, 0 to 1.
    fn key(&self, share: f64) -> u64 {
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
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        // Neighbouring seeds would begin alike.
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| {
            random.next();
        });
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// 0 to 1, without 1.
    fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 32) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_distribution() {
        let zipf = Zipf::new(1000, THETA);
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

    #[test]
    fn operations_are_those_of_the_mix() {
        let operations = |reads| {
            let mut all = Operations { zipf: Arc::new(Zipf::new(KEYS, THETA)), reads, random: Random::new(7) };
            let mut out = Vec::new();
            (0..10_000).for_each(|_| all.encode(&[b'v'; VALUE_SIZE], &mut out));
            let text = String::from_utf8(out).unwrap();
            (text.matches("GET").count(), text.matches("SET").count())
        };
        assert_eq!(operations(0), (0, 10_000));
        let (reads, writes) = operations(95);
        assert!((9300..9700).contains(&reads) && reads + writes == 10_000, "{reads} reads of 95 %");
    }

    #[test]
    fn answers_are_counted_when_they_are_whole() {
        let mut all = Operations { zipf: Arc::new(Zipf::new(1, THETA)), reads: 0, random: Random::new(7) };
        let mut out = Vec::new();
        all.encode(b"v", &mut out);
        let key = "0".repeat(30);
        assert_eq!(String::from_utf8(out).unwrap(), format!("*3\r\n$3\r\nSET\r\n$30\r\n{key}\r\n$1\r\nv\r\n"));
        let mut decode = |input: &[u8]| all.decode(input, &mut Vec::new());
        assert_eq!(decode(b"+OK\r\n+OK").unwrap(), Some((5, 1)));
        let value = [&b"$100\r\n"[..], &[7; 100], b"\r\n"].concat();
        assert_eq!(decode(&value).unwrap(), Some((108, 1)));
        assert_eq!(decode(&value[..107]).unwrap(), None);
        assert!(decode(b"$-1\r\n").is_err(), "every key is in the store");
        assert!(decode(b"-READONLY\r\n").is_err());
    }
}
