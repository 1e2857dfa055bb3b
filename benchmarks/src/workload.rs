//! The workloads of the paper, put on the example app: reads and writes of keys that follow a Zipf distribution.
//!
//! Used by the comparison `baselines`, and the store itself by `followers`.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tailwind_e2e::processes::kv::Servers;
use tailwind_e2e::processes::resp::{RespClient, RespValue};

use crate::keys::{self, KEY_SIZE, Random, Zipf, key};
use crate::load::Connection;
use crate::ours::{Ours, Shape, TableShape};
use crate::peers::wire::{Protocol, Wire, excerpt, line};

/// Keys in the store. The paper has 20 million.
const KEYS: u64 = 100_000;
/// Bytes of a value, as in the paper.
pub(crate) const VALUE_SIZE: usize = 100;
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
        let size = TABLE_MIN.max(keys * TABLE_PER_KEY);
        Shape { table: Some(TableShape { size, keys, resident: false, mirror: false }), ..shape }
    }

    /// Starts the app beside all sidecars of a group that keeps a table, and fills that. Each server has all keys then.
    pub(crate) fn start(ours: Ours) -> Result<Store> {
        let keys = ours.table().context("the example app needs a table")?.keys;
        let servers = Servers::start(&ours.group).context("start the example app")?;
        servers.wait_for_primary(0)?;
        keys::fill(&ours, keys, VALUE_SIZE)?;
        for server in 0..ours.group.sidecars() {
            let all = RespValue::Integer(keys as i64);
            let has_all = || (servers.connect(server).ok()?.ask(&["DBSIZE"]).ok()? == all).then_some(());
            servers.wait("a server to have all keys", has_all)?;
        }
        Ok(Store { servers, ours, zipf: Arc::new(Zipf::new(keys)) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_those_of_the_mix() {
        let operations = |reads| {
            let mut all = Operations { zipf: Arc::new(Zipf::new(KEYS)), reads, random: Random::new(7) };
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
        let mut all = Operations { zipf: Arc::new(Zipf::new(1)), reads: 0, random: Random::new(7) };
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
