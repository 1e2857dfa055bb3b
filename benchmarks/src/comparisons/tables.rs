//! `tables`: what it costs that a group keeps the last value of each key, and how fast keys are read and written.
//!
//! In the order of a round: [`puts`], [`mixes`], [`readers`], [`cleaning`], [`takeover`]. Groups that are measured in turn
//! live as long as the comparison; those of `cleaning` and `takeover` begin empty in each round. [`written`] is a comparison of its
//! own, because it is one of counts: it takes a minute, and may be made beside other work.

mod cleaning;
mod clients;
mod mirrors;
mod mixes;
mod puts;
mod readers;
mod takeover;
pub(crate) mod written;

pub(crate) use cleaning::{GETS_CLEANED, GETS_IDLE, PUTS_CLEANED, PUTS_IDLE};
pub(crate) use mixes::{AT_PRIMARY, AT_STANDBY, LOOKUPS, RPC_AT_PRIMARY};
pub(crate) use puts::{ONE_PUT, RING, RPC, TAILWIND};
pub(crate) use readers::{FOUR_GET, NOBODY_GETS, READ};
pub(crate) use takeover::{COLD, LOG, WARM};

use std::sync::Arc;

use anyhow::Result;

use crate::keys::{KEY_SIZE, Zipf};
use crate::ours::{Shape, TableShape};
use crate::run::Run;

use super::baselines;

pub(crate) const ABOUT: &str = "Groups that keep a table, with 3 backups. Keys have 30 B and are drawn by Zipf 0.99, \
    of 100,000; the sizes are those of key and value together. *Puts*: clients of the sidecar, each of which sends the \
    next once the last is answered, beside plain appends of as many bytes by another group of the same fabric. `rpc` and \
    `ring` are the two-sided enemies of the comparison `baselines`. The logs of tables are cleaned as they grow, which \
    is in the figures. *One put* is by one client, beside one put of Redis with WAIT 2 and of etcd. *Update-only*, *A*, \
    *B* and *C* are mixes of YCSB, with 0, 50, 95 and 100 % of reads; each client is a thread, which waits for each \
    answer. They read *at the primary*, by gets; *at a standby*, by gets that its sidecar answers from a backup's \
    memory, one-sidedly; or in the *local table* of their own process, which follows at a standby. *Lookups* are the \
    two-sided enemy of gets at a standby: in place of two reads its sidecar sends one message with the key's hash, which \
    a thread of the backup answers with the record, and puts go over `rpc`. Over `rpc` backups have more to do at rest, \
    since lines of mirrors are written again in turn; what gets take of backups is also given *beyond rest*. The backups \
    of these groups keep closed segments in memory. *Pipelined* puts by one client, while nobody and while 4 clients get keys at \
    a standby, which has one processor to itself, with them. CPU is that of the primary's sidecar and of the backups, \
    until they have come to rest. *Cleaning*: the same mix A, with values of 1 KiB, before the table's log is long \
    enough to be cleaned, and while it is cleaned. *Takeover*: the primary is killed (SIGKILL), and the time counts \
    until the first ack of a client that waits at the standby, whose index is complete (*warm*) or which has just been \
    started (*cold*); beside that of a group whose log has as many records of the same size, where the client reads the \
    whole log after its ack. Mirrors are *live* when each backup's memory shows the whole index.";

/// Keys of the tables, and with --quick.
const KEYS: u64 = 100_000;
const KEYS_QUICK: u64 = 10_000;
/// Bytes of a table's log for each key: four times what the larger records take.
const TABLE_PER_KEY: u64 = 4 << 10;
/// Fewest bytes of a table's log.
const TABLE_MIN: u64 = 256 << 20;
/// Buffers of a backup: with so many groups at a time, no more than a closed loop needs.
const BUFFERS: usize = 8;

/// Bytes of key and value together.
#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    bytes: usize,
}

impl Size {
    fn value(self) -> usize {
        self.bytes - KEY_SIZE
    }
}

/// As in `baselines`.
const SMALL: Size = Size { name: "130 B", bytes: 130 };
const LARGE: Size = Size { name: "1 KiB", bytes: 1024 };

/// How many keys there are, and how they are drawn.
struct Keys {
    count: u64,
    zipf: Arc<Zipf>,
}

impl Keys {
    fn new(quick: bool) -> Keys {
        let count = if quick { KEYS_QUICK } else { KEYS };
        Keys { count, zipf: Arc::new(Zipf::new(count)) }
    }

    /// The shape of a group that keeps them.
    fn shape(&self, fabric: &'static str, sidecars: usize, resident: bool, mirror: bool) -> Shape {
        let size = TABLE_MIN.max(self.count * TABLE_PER_KEY);
        let table = TableShape { size, keys: self.count, resident, mirror };
        Shape { sidecars, buffers: BUFFERS, table: Some(table), ..Shape::new(fabric, 3) }
    }
}

pub(crate) fn run(run: &mut Run<'_>) -> Result<()> {
    let two_sided = baselines::two_sided(run, "the two-sided enemies");
    let keys = Keys::new(run.options.quick);
    let puts = puts::Contest::start(run, two_sided.as_deref(), &keys)?;
    let mixes = mixes::Contest::start(run, two_sided.as_deref(), &keys)?;
    let readers = readers::Contest::start(run, &keys)?;
    let takeovers = takeover::lengths(run);
    run.rounds(|run| {
        puts.round(run)?;
        mixes.round(run)?;
        readers.iter().try_for_each(|readers| readers.round(run))?;
        cleaning::round(run)?;
        takeovers.iter().try_for_each(|length| takeover::round(run, length))
    })
}

/// The case of some clients.
fn case(what: &str, size: Size, clients: usize) -> String {
    format!("{what}, {}: {clients} {}", size.name, if clients == 1 { "client" } else { "clients" })
}
