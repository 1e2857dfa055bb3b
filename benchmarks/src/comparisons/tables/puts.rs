//! Puts beside plain appends, over each fabric and beside the two-sided enemies; and one put beside one of Redis and of etcd.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::clients::Puts;
use super::{BUFFERS, Keys, LARGE, SMALL, Size, case};
use crate::comparisons::baselines::{contestant, with_sums};
use crate::costs::{self, Appends};
use crate::keys::Zipf;
use crate::load::closed_loop;
use crate::ours::{Ours, Shape};
use crate::peers::{self, Peer};
use crate::run::Run;

pub(crate) const TAILWIND: &str = "Tailwind shm";
pub(crate) const RPC: &str = "rpc shm";
pub(crate) const RING: &str = "ring shm";
const TAILWIND_TCP: &str = "Tailwind tcp";

/// A contestant, and its fabric.
struct Entry {
    name: &'static str,
    fabric: &'static str,
    two_sided: bool,
    quick: bool,
}

const ENTRIES: &[Entry] = &[
    Entry { name: TAILWIND, fabric: "shm", two_sided: false, quick: true },
    Entry { name: RPC, fabric: "rpc-shm", two_sided: true, quick: true },
    Entry { name: "rpc pipelined shm", fabric: "rpc-pipelined-shm", two_sided: true, quick: false },
    Entry { name: RING, fabric: "ring-shm", two_sided: true, quick: true },
    Entry { name: TAILWIND_TCP, fabric: "tcp", two_sided: false, quick: true },
];

/// What is done, and how many clients do it.
const APPENDS: &str = "appends";
pub(super) const PUTS: &str = "puts";
pub(super) const CLIENTS: &[usize] = &[1, 30];
pub(crate) const ONE_PUT: &str = "one put, 128 B";
/// Bytes of key and value there, as the comparison `peers` has them.
const ONE_PUT_SIZE: usize = 128;
/// The peers that have keys.
const PEERS: &[&str] = &["Redis", "etcd"];

/// The groups, which take turns.
pub(super) struct Contest {
    pairs: Vec<Pair>,
    peers: Vec<(&'static str, Box<dyn Peer>)>,
    zipf: Arc<Zipf>,
}

/// A group that keeps a log, and one that keeps a table, over one fabric.
struct Pair {
    log: Ours,
    table: Ours,
}

impl Contest {
    /// Starts them. Without a program that knows the enemies these are left out.
    pub(super) fn start(run: &mut Run<'_>, two_sided: Option<&Path>, keys: &Keys) -> Result<Contest> {
        let quick = run.options.quick;
        let mut pairs = Vec::new();
        for entry in ENTRIES.iter().filter(|entry| entry.quick || !quick) {
            let program = if entry.two_sided { two_sided } else { Some(run.program.as_path()) };
            let Some(program) = program.map(Path::to_owned) else { continue };
            run.say(format!("starting {}", entry.name));
            let start = |shape: &Shape| Ours::start(entry.name, &program, &run.options.memory, shape);
            let log = start(&Shape { buffers: BUFFERS, ..Shape::new(entry.fabric, 3) })?;
            let table = start(&keys.shape(entry.fabric, 1, false, false))?;
            run.enter(contestant(&table, entry.fabric));
            pairs.push(Pair { log, table });
        }
        let mut started = Vec::new();
        for (name, start) in peers::ALL.into_iter().filter(|(name, _)| PEERS.contains(name)) {
            run.say(format!("starting {name}"));
            match start(&run.options.memory) {
                Ok(peer) => {
                    run.enter(peer.contestant());
                    started.push((name, peer));
                }
                Err(error) => run.absent(name, format!("{error:#}")),
            }
        }
        Ok(Contest { pairs, peers: started, zipf: Arc::clone(&keys.zipf) })
    }

    pub(super) fn round(&self, run: &mut Run<'_>) -> Result<()> {
        let sizes: &[Size] = if run.options.quick { &[SMALL] } else { &[SMALL, LARGE] };
        for size in sizes {
            for clients in CLIENTS {
                for pair in &self.pairs {
                    self.measure(run, pair, *size, *clients)
                        .with_context(|| format!("{}, {clients} clients", pair.log.name))?;
                }
            }
        }
        self.one_put(run)
    }

    fn measure(&self, run: &mut Run<'_>, pair: &Pair, size: Size, clients: usize) -> Result<()> {
        let load = Appends { clients, depth: 1, size: size.bytes };
        let (name, time, at) = (&pair.log.name, run.time() / 4, Some(clients as f64));
        let appends = case(APPENDS, size, clients);
        run.say(format!("{name}, {appends}"));
        let figures = costs::measure(&pair.log, &load, time)?;
        run.note(name, &appends, at, with_sums(figures));
        pair.log.trim()?;
        let puts = case(PUTS, size, clients);
        run.say(format!("{name}, {puts}"));
        let seed = Cell::new(1);
        let connect = || Puts::connect(&pair.table, &self.zipf, seed.replace(seed.get() + 1));
        let figures = costs::measure_on(&pair.table, connect, &load, time)?;
        run.note(name, &puts, at, with_sums(figures));
        Ok(())
    }

    fn one_put(&self, run: &mut Run<'_>) -> Result<()> {
        let ours = self.pairs.iter().filter(|pair| [TAILWIND, TAILWIND_TCP].contains(&pair.table.name.as_str()));
        for pair in ours {
            run.say(format!("{}, {ONE_PUT}", pair.table.name));
            let mut connection = [Puts::connect(&pair.table, &self.zipf, 1)?];
            let measured = closed_loop(&mut connection, 1, &[7; ONE_PUT_SIZE], run.time() / 2)?;
            run.note(&pair.table.name, ONE_PUT, None, measured.figures());
        }
        for (name, peer) in &self.peers {
            run.say(format!("{name}, {ONE_PUT}"));
            let mut connection = [peer.connection()?];
            let measured = closed_loop(&mut connection, 1, &[7; ONE_PUT_SIZE], run.time() / 2)?;
            run.note(name, ONE_PUT, None, measured.figures());
            peer.rest()?;
        }
        Ok(())
    }
}
