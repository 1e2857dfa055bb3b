//! From the death of a primary's pod to the first write that the other Redis answers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use tailwind_e2e::processes::redis::Servers;
use tailwind_e2e::processes::resp::{RespClient, RespValue};
use tailwind_e2e::wait::poll;

use super::{COPIES, SHM, SIZE};
use crate::cpu::settle;
use crate::load::closed_loop;
use crate::ours::{Ours, Shape};
use crate::peers::redis;
use crate::results::{Figures, Metric};

/// Bytes of Redis's file.
const FILE: u64 = 100 << 20;
/// Values in flight while it is filled, and for how long at a time.
const DEPTH: usize = 1000;
const FILL: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(program: &Path, memory: &Path) -> Result<Figures> {
    let shape = Shape { sidecars: 2, default_timeouts: true, ..Shape::new("shm", COPIES) };
    let mut ours = Ours::start(SHM, program, memory, &shape)?;
    let servers = Servers::start_with(&ours.group, &["--auto-aof-rewrite-percentage", "0"])?;
    let [first, second] = *servers.ports() else { anyhow::bail!("a group of two has two ports") };
    servers.containers.wait("Redis to serve", || redis::synced(first).ok().map(drop))?;
    let mut connections = [redis::synced(first)?];
    while redis::file_size(first)? < FILE {
        closed_loop(&mut connections, DEPTH, &[b'x'; SIZE], FILL)?;
    }
    settle(&ours.backups()?)?;
    let client = std::thread::spawn(move || {
        poll(PATIENCE, Duration::from_millis(1), || {
            let mut client = RespClient::connect(second, PATIENCE).ok()?;
            matches!(client.ask(&["SET", "taken", "over"]), Ok(RespValue::Simple(_))).then(Instant::now)
        })
    });
    let killed = Instant::now();
    ours.group.kill_sidecar(0)?;
    servers.containers.signal(0, Signal::KILL)?;
    let answered = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))?;
    let answered = answered.context("the other Redis answers no write")?;
    Ok(Figures::from([(Metric::FirstAck, (answered - killed).as_secs_f64() * 1000.0)]))
}
