//! Tailwind as a contestant: a group of real processes, and connections by the client library.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailwind_client::{Lsn, Options, blocking::Client};
use tailwind_e2e::processes::group::{Group, Process, Setup};

use crate::load::Connection;
use crate::machine;
use crate::results::Contestant;

/// No processor may be so busy that a process of ours counts as dead.
const SILENCE_MS: &str = "10000";
/// Size of a segment, so of a buffer.
const SEGMENT_MIB: f64 = 8.0;
/// Bytes of a mirror for each key.
const MIRRORED_KEY: u64 = 54;
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// How a group is made.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) fabric: &'static str,
    pub(crate) copies: usize,
    pub(crate) sidecars: usize,
    pub(crate) buffers: usize,
    /// With the time-outs that users get, for measuring failovers.
    pub(crate) default_timeouts: bool,
    /// Clients use the ring, not the socket.
    pub(crate) ring: bool,
    /// The group keeps a table, not a log.
    pub(crate) table: Option<TableShape>,
}

/// How large a table is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableShape {
    /// Bytes of its log.
    pub(crate) size: u64,
    pub(crate) keys: u64,
    /// Whether backups keep its closed segments in memory.
    pub(crate) resident: bool,
    /// Whether they have memory for mirrors of its index.
    pub(crate) mirror: bool,
}

impl TableShape {
    fn resident_mebibytes(self) -> u64 {
        if self.resident { self.size >> 20 } else { 0 }
    }

    fn mirror_mebibytes(self) -> u64 {
        if self.mirror { (self.keys * MIRRORED_KEY).div_ceil(1 << 20) } else { 0 }
    }

    /// As the report says it.
    fn options(self) -> String {
        let mut text = format!("; --table {}MiB --table-keys {}", self.size >> 20, self.keys);
        for (flag, number) in [("--resident", self.resident_mebibytes()), ("--mirror", self.mirror_mebibytes())] {
            if number > 0 {
                text.push_str(&format!(", {flag} {number}MiB"));
            }
        }
        text
    }
}

impl Shape {
    pub(crate) fn new(fabric: &'static str, copies: usize) -> Shape {
        Shape { fabric, copies, sidecars: 1, buffers: 16, default_timeouts: false, ring: false, table: None }
    }

    /// The same, by the ring.
    pub(crate) fn by_ring(self) -> Shape {
        Shape { ring: true, ..self }
    }
}

/// A running group of ours. Ends when dropped.
pub(crate) struct Ours {
    pub(crate) name: String,
    pub(crate) group: Group,
    shape: Shape,
}

impl Ours {
    /// Starts a group and waits until all copies are in the set.
    pub(crate) fn start(name: &str, program: &Path, memory: &Path, shape: &Shape) -> Result<Ours> {
        // A quarter more, for what else lies there. Without room a write into the mapped memory would end a process.
        let of_table = shape.table.map_or(0, |table| table.resident_mebibytes() + table.mirror_mebibytes()) as f64;
        let of_backup = shape.buffers as f64 * SEGMENT_MIB + of_table;
        let needed = shape.copies as f64 * of_backup * 1.25 / 1024.0;
        let free = machine::free_gib(memory);
        ensure!(
            free >= needed,
            "{name} needs {needed:.1} GiB in {}, and {free:.1} GiB are free: make room, or name another folder in memory by \
             --memory",
            memory.display()
        );
        let mut setup = Setup::new(program.to_owned(), shape.fabric);
        setup.backups = shape.copies;
        setup.copies = shape.copies;
        setup.sidecars = shape.sidecars;
        setup.segment_size = format!("{SEGMENT_MIB}MiB");
        setup.buffers = shape.buffers;
        setup.memory = memory.to_owned();
        if !shape.default_timeouts {
            let flags = ["--heartbeat-silence-ms", "--fence-wait-ms", "--rpc-timeout-ms"];
            setup.sidecar_options = flags.map(|flag| (flag, SILENCE_MS.to_owned())).to_vec();
        }
        if let Some(table) = shape.table {
            let mebibytes = |number: u64| format!("{number}MiB");
            let (size, keys) = (mebibytes(table.size >> 20), table.keys.to_string());
            setup.sidecar_options.extend([("--table", size), ("--table-keys", keys)]);
            let backup =
                [("--resident", table.resident_mebibytes()), ("--mirror", table.mirror_mebibytes())].into_iter();
            let given = backup.filter(|(_, number)| *number > 0).map(|(flag, number)| (flag, mebibytes(number)));
            setup.backup_options.extend(given);
        }
        let group = Group::start(setup).with_context(|| format!("start {name}"))?;
        group.wait_for_full_set().with_context(|| format!("start {name}"))?;
        let all_answer = |group: &Group| (0..group.sidecars()).all(|index| !group.status(index).is_null());
        group.wait("all sidecars to answer", all_answer).with_context(|| format!("start {name}"))?;
        Ok(Ours { name: name.to_owned(), group, shape: shape.clone() })
    }

    /// Its table, if it keeps one.
    pub(crate) fn table(&self) -> Option<TableShape> {
        self.shape.table
    }

    /// Its entry in the report.
    pub(crate) fn contestant(&self) -> Contestant {
        let program = self.group.setup().program.clone();
        let version = std::process::Command::new(&program).arg("--version").output();
        let version = version.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
        let Shape { fabric, copies, buffers, default_timeouts, ring, table, .. } = self.shape;
        let way = if ring { "ring" } else { "socket" };
        let timeouts = if default_timeouts {
            String::new()
        } else {
            format!("; --heartbeat-silence-ms, --fence-wait-ms, --rpc-timeout-ms {SILENCE_MS}")
        };
        Contestant {
            name: self.name.clone(),
            version,
            claim: format!("in the memory of all {copies} backups"),
            configuration: format!(
                "--fabric {fabric} --backups {copies} --segment-size {SEGMENT_MIB}MiB --durability memory, {buffers} buffers a backup; \
                 control by token; appends by the {way}{timeouts}{}",
                table.map(|table| table.options()).unwrap_or_default()
            ),
        }
    }

    pub(crate) fn client(&self, spin: Duration) -> Result<Client> {
        self.client_by(self.shape.ring, spin)
    }

    /// By the ring if it is offered, or by the socket.
    pub(crate) fn client_by(&self, ring: bool, spin: Duration) -> Result<Client> {
        let options = Options { hold: true, timeout: Some(ANSWER), spin, socket_only: !ring };
        Client::connect_with(self.group.socket(0), &options).with_context(|| format!("connect to {}", self.name))
    }

    /// A connection, by the socket or the ring.
    pub(crate) fn connection(&self) -> Result<Box<dyn Connection>> {
        self.connection_by(self.shape.ring)
    }

    pub(crate) fn connection_by(&self, ring: bool) -> Result<Box<dyn Connection>> {
        Ok(Box::new(OurConnection { client: self.client_by(ring, Duration::ZERO)? }))
    }

    pub(crate) fn sidecar(&self) -> Result<u32> {
        self.group.pid(Process::Sidecar(0))
    }

    pub(crate) fn backups(&self) -> Result<Vec<u32>> {
        (0..self.group.backups()).map(|index| self.group.pid(Process::Backup(index))).collect()
    }

    /// Bytes of log that a record of this size takes, appended alone.
    pub(crate) fn record_cost(&self, size: usize) -> Result<usize> {
        Ok(self.client(Duration::ZERO)?.welcome().limits.batch_size(std::iter::once(size)))
    }

    /// Lets go of all records, so that the next measurement finds room on the disks. The last of them may stay.
    pub(crate) fn trim(&self) -> Result<()> {
        let mut client = self.client(Duration::ZERO)?;
        let last = client.barrier()?.last;
        client.trim(Lsn(last.0 + 1)).map(|_| ()).with_context(|| format!("trim the log of {}", self.name))
    }
}

struct OurConnection {
    client: Client,
}

impl OurConnection {
    fn take(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some(ack) = self.client.try_next_ack() {
            ack.outcome?;
            count += 1;
        }
        Ok(count)
    }
}

impl Connection for OurConnection {
    fn submit(&mut self, payload: &[u8]) -> Result<()> {
        self.client.submit(payload)?;
        Ok(())
    }

    fn answers(&mut self, wait: bool) -> Result<usize> {
        if !wait {
            self.client.pump()?;
            return self.take();
        }
        if let Some(ack) = self.client.next_ack()? {
            ack.outcome?;
        }
        Ok(1 + self.take()?)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }

    /// What it has sent is answered, then the descriptor becomes readable, and the rest goes out.
    fn unsent(&self) -> bool {
        false
    }
}
