//! A sender in another process, stopped by a signal wherever it happens to be, revoked, and woken again.
//!
//! The test binary starts itself as that sender. It writes counters up the slot, prints how many bytes have completed,
//! and ends when it learns that it has been revoked.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use tailwind_fabric::shm::{ShmReceiver, ShmSender};
use tailwind_fabric::{ChannelError, Grant, Pool, Receiver, Sender, SlotId, Writer};

const SLOT_SIZE: u32 = 1 << 20;
/// Large writes, so that the signal mostly arrives in the middle of a copy.
const STEP: u32 = 64 * 1024;
const ROUNDS: u64 = 20;
/// Carries the grant to the child.
const GRANT: &str = "TAILWIND_TEST_GRANT";

/// What the child writes in its `lap`-th way up the slot, from 1: no two laps alike, no byte zero.
fn lap_bytes(lap: u8) -> Vec<u8> {
    (0..SLOT_SIZE).map(|at| (at / 8 % 127) as u8 ^ lap | 0x80).collect()
}

/// Not a test but the sender's process, when the test below starts it.
#[test]
fn sender_process() {
    let Ok(grant) = env::var(GRANT) else { return };
    let grant: Grant = serde_json::from_str(&grant).unwrap();
    let remote = ShmSender::default().attach(&grant).unwrap();
    let mut channel = ShmSender::default()
        .begin()
        .unwrap()
        .connect(&tailwind_fabric::ChannelAnswer::Shm, [127, 0, 0, 1].into())
        .unwrap();
    let mut out = std::io::stdout().lock();
    for lap in (1..0x80).cycle() {
        let (mut writer, local) = ShmSender::default().allocate(SLOT_SIZE).unwrap();
        writer.tail_mut().copy_from_slice(&lap_bytes(lap));
        writer.publish(SLOT_SIZE);
        for start in (0..SLOT_SIZE).step_by(STEP as usize) {
            match channel.post(&remote, &local, start..start + STEP) {
                Ok(()) => assert_eq!(channel.poll(), Ok(1)),
                Err(error) => {
                    assert_eq!(error, ChannelError::Revoked);
                    writeln!(out, "revoked 0 0").unwrap();
                    return;
                }
            }
            writeln!(out, "completed {lap} {}", start + STEP).unwrap();
        }
    }
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(grant: &Grant) -> Process {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "shm_processes::sender_process", "--nocapture", "--test-threads=1"])
            .env(GRANT, serde_json::to_string(grant).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next thing it says: lap and bytes completed, or that it has been revoked.
    fn heard(&mut self) -> Option<(u8, u32)> {
        loop {
            let line = self.lines.next().expect("it says that it has been revoked before it ends").unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [.., "completed", lap, bytes] => return Some((lap.parse().unwrap(), bytes.parse().unwrap())),
                [.., "revoked", _, _] => return None,
                _ => {}
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_stopped_in_a_write_is_revoked() {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let pool = Pool::open(dir.path(), 1, SLOT_SIZE).unwrap();
    let mut receiver = ShmReceiver::new(Arc::clone(&pool)).unwrap();
    for round in 1..=ROUNDS {
        let grant = receiver.lend(Writer(round), SlotId(0)).unwrap();
        let mut process = Process::start(&grant);
        let mut last = process.heard();
        for _ in 0..round * 7 {
            last = process.heard();
        }
        process.signal(Signal::STOP);
        receiver.revoke_below(Writer(round + 1)).unwrap();
        let contents = || {
            let mut bytes = vec![0; SLOT_SIZE as usize];
            pool.read(SlotId(0), 0, &mut bytes).unwrap();
            bytes
        };
        let first = contents();
        process.signal(Signal::CONT);
        while let Some(completed) = process.heard() {
            last = Some(completed);
        }
        assert!(process.child.wait().unwrap().success());
        let second = contents();

        let (lap, bytes) = last.unwrap();
        // A write that has not completed may follow: with a full slot, it is the next lap's first, over these bytes.
        let completed = if bytes == SLOT_SIZE { STEP as usize..bytes as usize } else { 0..bytes as usize };
        assert!(first[completed.clone()] == lap_bytes(lap)[completed], "round {round}: what completed is there");
        assert!(first == second, "round {round}: nothing lands afterwards");
    }
}
