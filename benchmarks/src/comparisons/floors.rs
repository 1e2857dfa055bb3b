//! `floors`: one client at a time beside what no replication can beat on this machine.

use std::hint::{black_box, spin_loop};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::load::{Measured, one_at_a_time};
use crate::ours::Shape;
use crate::results::{Contestant, Metric};
use crate::run::Run;

pub(crate) const ABOUT: &str = "One record of 128 B at a time, 3 backups, beside bare ping-pongs of the same bytes: a frame \
    of 144 bytes there, an ack of 24 bytes back. *Blocking* sides sleep in `read`, *spinning* sides poll. The ping-pong \
    through shared memory is one of two threads, each polling the other's cache lines; whether two threads or two \
    processes share memory makes no difference to the processor. Copying and the CRC of 128 bytes are what any \
    replication must do at least once. The sidecar spins for at most 50 µs; `spin` is a client that does as well.";

const THERE: usize = 144;
const BACK: usize = 24;
const PAYLOAD: usize = 128;
/// Buffers of a backup: one record at a time fills few.
const BUFFERS: usize = 8;
pub(crate) const CASE: &str = "one at a time, 128 B";
/// A client that never sleeps.
pub(crate) const SPIN: Duration = Duration::from_secs(3600);

pub(crate) const BLOCKING: &str = "ping-pong, Unix socket, blocking";
const SPINNING: &str = "ping-pong, Unix socket, spinning";
const MEMORY: &str = "ping-pong, shared memory, spinning";
const COPY: &str = "memcpy of the record";
const CRC: &str = "CRC-32 of the record";

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let floors = [BLOCKING, SPINNING, MEMORY, COPY, CRC];
    for name in floors {
        run.enter(Contestant {
            name: name.to_owned(),
            version: String::new(),
            claim: "nothing".to_owned(),
            configuration: String::new(),
        });
    }
    run.absent(
        "RDMA (`ib_write_lat`, and Tailwind over `verbs`)",
        "it takes a card: what soft-RoCE needs says nothing about one",
    );
    let shape = |fabric| Shape { buffers: BUFFERS, ..Shape::new(fabric, 3) };
    let ours = [
        ("Tailwind shm", shape("shm")),
        ("Tailwind shm by ring", shape("shm").by_ring()),
        ("Tailwind tcp", shape("tcp")),
    ];
    let groups = ours.iter().map(|(name, shape)| run.ours(name, shape)).collect::<Result<Vec<_>>>()?;
    run.rounds(|run| {
        let time = run.time();
        run.say(BLOCKING);
        run.note(BLOCKING, CASE, None, unix_socket(time, false)?.figures());
        run.say(SPINNING);
        run.note(SPINNING, CASE, None, unix_socket(time, true)?.figures());
        run.say(MEMORY);
        run.note(MEMORY, CASE, None, shared_memory(time)?.figures());
        note_work(run, COPY, |from, to| to.copy_from_slice(black_box(from)));
        note_work(run, CRC, |from, _| {
            black_box(crc32fast::hash(black_box(from)));
        });
        for ours in &groups {
            for (name, spin) in [(ours.name.clone(), Duration::ZERO), (spinning(&ours.name), SPIN)] {
                run.say(&name);
                let mut client = ours.client(spin)?;
                let measured = one_at_a_time(time, || Ok(client.append(&[7; PAYLOAD]).map(|_| ())?))?;
                run.note(&name, CASE, None, measured.figures());
            }
            ours.trim()?;
        }
        Ok(())
    })
}

fn spinning(name: &str) -> String {
    format!("{name}, spin")
}

/// Ping-pong with another process of this program.
fn unix_socket(time: Duration, spin: bool) -> Result<Measured> {
    let folder = tempfile::tempdir().context("make a folder for the ping-pong's socket")?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).context("listen for the ping-pong's other side")?;
    let mut other = Command::new(std::env::current_exe()?);
    other.arg("--echo").arg(&path).args(spin.then_some("--spin"));
    let _other = Killed(other.spawn().context("start the ping-pong's other side")?);
    let (mut stream, _) = listener.accept().context("wait for the ping-pong's other side")?;
    stream.set_nonblocking(spin)?;
    let mut frame = [7; THERE];
    one_at_a_time(time, || {
        stream.write_all(&frame)?;
        read_exactly(&mut stream, &mut frame[..BACK])
    })
}

/// The other side: answers each frame until the connection ends.
pub(crate) fn echo(path: &Path, spin: bool) -> Result<()> {
    let mut stream = UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
    stream.set_nonblocking(spin)?;
    let mut frame = [0; THERE];
    while read_exactly(&mut stream, &mut frame).is_ok() {
        stream.write_all(&frame[..BACK])?;
    }
    Ok(())
}

/// Polls if the stream does not block.
fn read_exactly(stream: &mut UnixStream, mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => bail!("the other side of the ping-pong has gone"),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A child that does not outlive its use.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes of one direction, and the turn on a cache line of its own. A turn of `u64::MAX` ends the other thread.
#[repr(align(128))]
struct Lines {
    turn: AtomicU64,
    bytes: [AtomicU64; THERE / 8],
}

impl Lines {
    fn new() -> Lines {
        Lines { turn: AtomicU64::new(0), bytes: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn send(&self, turn: u64, size: usize) {
        for word in &self.bytes[..size / 8] {
            word.store(turn, Ordering::Relaxed);
        }
        self.turn.store(turn, Ordering::Release);
    }

    /// Waits for the turn and reads the bytes; false at the end.
    fn receive(&self, turn: u64, size: usize) -> bool {
        loop {
            match self.turn.load(Ordering::Acquire) {
                u64::MAX => return false,
                found if found == turn => break,
                _ => spin_loop(),
            }
        }
        for word in &self.bytes[..size / 8] {
            black_box(word.load(Ordering::Relaxed));
        }
        true
    }
}

fn shared_memory(time: Duration) -> Result<Measured> {
    let lines = Arc::new([Lines::new(), Lines::new()]);
    let shared = Arc::clone(&lines);
    let other = std::thread::spawn(move || {
        let mut turn = 1;
        while shared[0].receive(turn, THERE) {
            shared[1].send(turn, BACK);
            turn += 1;
        }
    });
    let mut turn = 0;
    let measured = one_at_a_time(time, || {
        turn += 1;
        lines[0].send(turn, THERE);
        lines[1].receive(turn, BACK);
        Ok(())
    });
    lines[0].turn.store(u64::MAX, Ordering::Release);
    if other.join().is_err() {
        bail!("the other side of the ping-pong has failed");
    }
    measured
}

/// What a record's bytes cost one processor, the mean over many: a clock is too slow to time one.
fn note_work(run: &mut Run<'_>, name: &str, mut work: impl FnMut(&[u8; PAYLOAD], &mut [u8; PAYLOAD])) {
    const TIMES: u32 = 100_000;
    run.say(name);
    let (from, mut to) = ([7; PAYLOAD], [0; PAYLOAD]);
    let started = Instant::now();
    for _ in 0..TIMES {
        work(&from, &mut to);
        black_box(&to);
    }
    let each = started.elapsed().as_nanos() as f64 / f64::from(TIMES);
    let figures = [(Metric::P50, each / 1000.0), (Metric::PerByte, each / PAYLOAD as f64)];
    run.note(name, CASE, None, figures.into());
}
