//! Clients that write to whichever Redis serves, many writes at a time, until they are told that it is enough.
//!
//! Used by `./quickstart --app redis`. What each of them knows is in its [`ClientWrites`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::client_writes::{ClientWrites, Difference, Write};
use super::observer::TIMEOUT;
use super::resp::{RespClient, RespValue};
use crate::workload::Random;

/// How long a client pauses that has nothing to do.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it pauses when no Redis serves: one that loads its file answers each attempt, and has better things to do.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Values that one command reads.
const VALUES_READ: usize = 500;

/// The clients, each in a thread of its own. Stopped when dropped.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<ClientWrites>>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// answered ≤ taken ≤ allowed
    answered: AtomicU64,
    taken: AtomicU64,
    allowed: AtomicU64,
    over: AtomicBool,
}

impl Shared {
    /// Takes so many writes, or as many as are left for now.
    fn take(&self, wanted: u64) -> u64 {
        let allowed = self.allowed.load(Ordering::Acquire);
        let left = |taken| allowed.saturating_sub(taken).min(wanted);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| Some(taken + left(taken)));
        taken.map_or(0, left)
    }
}

impl Writers {
    /// Clients of the Redis at these ports that have up to `depth` writes in flight each. They wait until they are allowed some.
    pub fn start(ports: &[u16], clients: usize, depth: u64, seed: u64) -> Writers {
        let shared = Arc::new(Shared::default());
        let start = |number: usize| {
            let random = Random(seed.wrapping_add(number as u64));
            let writer = Writer { ports: ports.to_vec(), at: 0, depth, random, sent: ClientWrites::new(number) };
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || writer.run(&shared))
        };
        let threads = (0..clients).map(start).collect();
        Writers { shared, threads }
    }

    /// Lets them continue until so many of their writes are answered.
    pub fn allow(&self, goal: u64) {
        self.shared.allowed.fetch_max(goal, Ordering::AcqRel);
    }

    /// Writes that were answered.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Acquire)
    }

    /// Waits until so many writes are answered, and reports the count until then.
    ///
    /// # Errors
    /// A client has seen what must not be, or for too long none got an answer.
    pub fn wait_until(&mut self, goal: u64, told: impl Fn(u64)) -> Result<()> {
        let (mut seen, mut since) = (self.answered(), Instant::now());
        while seen < goal {
            if let Some(ended) = self.threads.iter().position(JoinHandle::is_finished) {
                join(self.threads.swap_remove(ended))?;
                bail!("a client has ended early");
            }
            std::thread::sleep(PAUSE);
            let now = self.answered();
            told(now);
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            ensure!(since.elapsed() < TIMEOUT, "for {TIMEOUT:?} no write was answered after write {seen}");
        }
        Ok(())
    }

    /// Lets them finish what they have begun; what they know.
    pub fn finish(mut self) -> Result<Vec<ClientWrites>> {
        self.shared.over.store(true, Ordering::Release);
        std::mem::take(&mut self.threads).into_iter().map(join).collect()
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A caller that wants the result has called `finish`.
            let _ = thread.join();
        }
    }
}

fn join(thread: JoinHandle<Result<ClientWrites>>) -> Result<ClientWrites> {
    thread.join().map_err(|_| anyhow!("a client panicked"))?
}

struct Writer {
    ports: Vec<u16>,
    /// Which Redis served last.
    at: usize,
    depth: u64,
    random: Random,
    sent: ClientWrites,
}

impl Writer {
    fn run(mut self, shared: &Shared) -> Result<ClientWrites> {
        let mut connection = None;
        while !shared.over.load(Ordering::Acquire) {
            let Some(served) = &mut connection else {
                connection = self.connect();
                continue;
            };
            let count = shared.take(self.depth);
            if count == 0 {
                std::thread::sleep(PAUSE);
                continue;
            }
            let answered = self.write(served, count, &shared.answered)?;
            if answered < count {
                // The next writer makes others in their place.
                shared.taken.fetch_sub(count - answered, Ordering::AcqRel);
                connection = None;
            }
        }
        Ok(self.sent)
    }

    fn connect(&mut self) -> Option<RespClient> {
        for _ in 0..self.ports.len() {
            if let Some(connection) = connect(self.ports[self.at]) {
                return Some(connection);
            }
            self.at = (self.at + 1) % self.ports.len();
        }
        std::thread::sleep(CONNECT_PAUSE);
        None
    }

    /// Makes some writes at once; how many were answered before the connection ended.
    fn write(&mut self, connection: &mut RespClient, count: u64, total: &AtomicU64) -> Result<u64> {
        let writes: Vec<Write> = (0..count).map(|_| self.sent.next(&mut self.random)).collect();
        let mut commands = Vec::new();
        for write in &writes {
            self.sent.encode(*write, &mut commands);
        }
        let mut lives = connection.send_bytes(&commands).is_ok();
        let mut answered = 0;
        for write in writes {
            match lives.then(|| connection.reply()) {
                Some(Ok(reply)) => {
                    self.sent.answered(write, &reply)?;
                    answered += 1;
                    total.fetch_add(1, Ordering::AcqRel);
                }
                Some(Err(_)) | None => {
                    lives = false;
                    self.sent.gave_up(write);
                }
            }
        }
        Ok(answered)
    }
}

/// A connection to a Redis that has loaded its data.
pub fn connect(port: u16) -> Option<RespClient> {
    let mut connection = RespClient::connect(port, TIMEOUT).ok()?;
    matches!(connection.ask(&["PING"]), Ok(RespValue::Simple(_))).then_some(connection)
}

/// Writes one by one; how long each took, in nanoseconds.
pub fn write_alone(
    connection: &mut RespClient,
    sent: &mut ClientWrites,
    random: &mut Random,
    count: u64,
) -> Result<Vec<u64>> {
    let mut command = Vec::new();
    let mut write = || {
        let write = sent.next(random);
        command.clear();
        sent.encode(write, &mut command);
        let began = Instant::now();
        connection.send_bytes(&command)?;
        let reply = connection.reply()?;
        let took = began.elapsed().as_nanos() as u64;
        sent.answered(write, &reply)?;
        Ok(took)
    };
    (0..count).map(|_| write()).collect()
}

/// Reads everything that was written, and compares.
pub fn compare(connection: &mut RespClient, clients: &[ClientWrites], told: impl Fn(u64)) -> Result<Difference> {
    let mut sum = Difference::default();
    let mut read = 0;
    for sent in clients {
        let names: Vec<String> = sent.names().collect();
        let mut values = Vec::with_capacity(names.len());
        for names in names.chunks(VALUES_READ) {
            let command: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
            let reply = connection.ask(&command).context("read the values")?;
            let RespValue::Array(found) = reply else { bail!("MGET is answered {reply:?}") };
            read += found.len() as u64;
            values.extend(found);
            told(read);
        }
        sum += sent.compare(&values)?;
    }
    Ok(sum)
}
