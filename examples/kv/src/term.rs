//! One turn as primary: clients' commands in, records for the log out, replies when the acks are there.
//!
//! Pure: [`turns`](crate::turns) tells it of commands, acks and the time, and carries out its [`Output`]s. Everything that must
//! happen in order stands in one queue: a write is applied and answered when its record is acknowledged, a read behind it
//! after that. So the order of the log is the order in which writes take effect, and nobody sees what is not acknowledged.
//!
//! A batch of reads alone is answered at once, unless reads are strict: then each waits for a barrier that began after it
//! came, which proves that no other primary had taken over until then. One barrier serves all reads that wait for it.
//!
//! # Compaction
//! When the log has grown by as much as there is data (and by [`Rules::compact_at`] at least), a snapshot is written into it between
//! other records. Once its end mark is acknowledged, the log is trimmed below the snapshot's beginning.

use std::collections::VecDeque;

use crate::command::{Read, Write};
use crate::limits::{BYTES_IN_FLIGHT_MAX, CHUNKS_IN_FLIGHT, RECORDS_IN_FLIGHT_MAX, SWEEP_PER_TICK};
use crate::record::{self, Record};
use crate::resp::Reply;
use crate::store::Store;

/// How this primary works.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Largest record that the log takes.
    pub record_size_max: usize,
    /// Bytes of a snapshot that go into one record.
    pub chunk_size: usize,
    /// Bytes of records after which a snapshot is worth its while.
    pub compact_at: u64,
    /// Bytes of keys and values at which writes that need more are refused.
    pub memory_max: usize,
    /// Whether reads wait for a barrier.
    pub strict_reads: bool,
}

/// One of a batch's commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Answered already; its reply waits for those before it.
    Ready(Reply),
    /// Looks at keys.
    Read(Read),
    /// Changes keys.
    Write(Write),
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<R> {
    /// Submit a record. Acks come in the order of these.
    Submit(Vec<u8>),
    /// Answer a batch.
    Answer(R, Vec<Reply>),
    /// Ask for a barrier, and say when it has passed.
    Barrier,
    /// Let go of records below this LSN, and say when it is done.
    Trim(u64),
}

/// Records of another writer lie between this primary's own: what it holds in memory is not what the log says.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {found} was acknowledged where {expected} was next: another process appends to the same log, or did until a moment ago"
)]
pub struct Gap {
    expected: u64,
    found: u64,
}

/// What the queue holds. Log positions: `applied ≤ acked ≤ submitted`.
#[derive(Debug)]
enum Pending<R> {
    /// To be applied when its record is acknowledged.
    Write {
        lsn: u64,
        stamp: u64,
        size: usize,
        write: Write,
    },
    /// To be answered when that barrier has passed.
    Read {
        barrier: u64,
        read: Read,
    },
    Ready(Reply),
    /// The replies since the last such mark go to this client.
    Finish(R),
    Snapshot {
        lsn: u64,
        size: usize,
        step: Step,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin,
    Chunk,
    End,
}

/// The snapshot that is being written.
#[derive(Clone, Copy, Debug)]
struct Compaction {
    /// LSN of its beginning.
    id: u64,
    /// The bytes that had been logged by then.
    logged: u64,
    chunks_in_flight: usize,
    ending: bool,
}

/// Barriers by number.
#[derive(Debug, Default)]
struct Barriers {
    wanted: u64,
    started: u64,
    passed: u64,
}

/// One turn as primary. `R` names the client to be answered.
#[derive(Debug)]
pub struct Term<R> {
    store: Store,
    rules: Rules,
    queue: VecDeque<Pending<R>>,
    /// Replies of the batch that the queue's front belongs to.
    replies: Vec<Reply>,
    submitted: u64,
    acked: u64,
    applied: u64,
    bytes_in_flight: usize,
    /// Time of the last record.
    stamp: u64,
    /// Bytes of records since the last snapshot's beginning.
    logged: u64,
    compaction: Option<Compaction>,
    /// A trim has been asked for.
    trimming: bool,
    snapshots: u64,
    barriers: Barriers,
    copies: usize,
    outputs: VecDeque<Output<R>>,
}

impl<R> Term<R> {
    /// A turn that continues after record `last`, with what the log held until then in `store`; `logged` bytes of it.
    pub fn new(rules: Rules, store: Store, last: u64, logged: u64) -> Term<R> {
        let stamp = store.clock();
        Term {
            store,
            rules,
            queue: VecDeque::new(),
            replies: Vec::new(),
            submitted: last,
            acked: last,
            applied: last,
            bytes_in_flight: 0,
            stamp,
            logged,
            compaction: None,
            trimming: false,
            snapshots: 0,
            barriers: Barriers::default(),
            copies: 0,
            outputs: VecDeque::new(),
        }
    }

    /// False while so much is on its way that no further batch should be taken.
    pub fn has_room(&self) -> bool {
        ((self.submitted - self.applied) as usize) < RECORDS_IN_FLIGHT_MAX && self.bytes_in_flight < BYTES_IN_FLIGHT_MAX
    }

    /// The keys and values.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Snapshots that were completed.
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// LSN of the last record that has been applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The next thing to be done.
    pub fn next_output(&mut self) -> Option<Output<R>> {
        self.outputs.pop_front()
    }

    /// Commands of one client. `now`: milliseconds since 1970, here and below.
    pub fn on_batch(&mut self, now: u64, operations: Vec<Operation>, client: R) {
        let writes = operations.iter().any(|operation| matches!(operation, Operation::Write(_)));
        if !writes && !self.rules.strict_reads {
            self.set_clock(now);
            let replies = operations.into_iter().map(|operation| match operation {
                Operation::Ready(reply) => reply,
                Operation::Read(read) => self.store.read(&read, self.store.clock(), self.copies),
                Operation::Write(_) => unreachable!("looked for a moment ago"),
            });
            let replies = replies.collect();
            self.outputs.push_back(Output::Answer(client, replies));
            return;
        }
        for operation in operations {
            let pending = match operation {
                Operation::Ready(reply) => Pending::Ready(reply),
                Operation::Read(read) => Pending::Read { barrier: self.next_barrier(), read },
                Operation::Write(write) => self.take_write(now, write),
            };
            self.queue.push_back(pending);
        }
        self.queue.push_back(Pending::Finish(client));
        self.compact(now);
        self.advance(now);
    }

    /// The oldest record that was submitted and not acknowledged is in the log now, as record `lsn`.
    pub fn on_ack(&mut self, now: u64, lsn: u64) -> Result<(), Gap> {
        let expected = self.acked + 1;
        if lsn != expected {
            return Err(Gap { expected, found: lsn });
        }
        assert!(lsn <= self.submitted, "an ack for nothing");
        self.acked = lsn;
        self.advance(now);
        Ok(())
    }

    /// The barrier that was asked for has passed.
    pub fn on_barrier(&mut self, now: u64) {
        self.barriers.passed = self.barriers.started;
        if self.barriers.wanted > self.barriers.started {
            self.start_barrier();
        }
        self.advance(now);
    }

    /// The trim that was asked for is done.
    pub fn on_trimmed(&mut self) {
        self.trimming = false;
    }

    /// Takes in how many backups hold what is acknowledged.
    pub fn on_copies(&mut self, copies: usize) {
        self.copies = copies;
    }

    /// Time goes by.
    pub fn on_tick(&mut self, now: u64) {
        self.set_clock(now);
        self.store.sweep(SWEEP_PER_TICK);
    }

    /// The turn is over: what every client is told that still waits. `refusal` is for reads; writes may or may not be in
    /// the log.
    pub fn abandon(mut self, refusal: &Reply) -> Vec<(R, Vec<Reply>)> {
        let mut answers = Vec::new();
        for output in self.outputs {
            if let Output::Answer(client, replies) = output {
                answers.push((client, replies));
            }
        }
        for pending in self.queue {
            match pending {
                Pending::Write { .. } => self.replies.push(unknown_outcome()),
                Pending::Read { .. } => self.replies.push(refusal.clone()),
                Pending::Ready(reply) => self.replies.push(reply),
                Pending::Finish(client) => answers.push((client, std::mem::take(&mut self.replies))),
                Pending::Snapshot { .. } => {}
            }
        }
        answers
    }

    fn take_write(&mut self, now: u64, write: Write) -> Pending<R> {
        let memory = self.store.bytes() + self.bytes_in_flight;
        if write.may_grow() && memory > self.rules.memory_max {
            let max = self.rules.memory_max;
            return Pending::Ready(Reply::error(format!(
                "OOM command not allowed: keys and values take {memory} bytes, the limit is {max} (--memory-max)"
            )));
        }
        let stamp = self.next_stamp(now);
        let record = Record::Write(write);
        let bytes = record::encode(stamp, &record);
        let Record::Write(write) = record else { unreachable!("made above") };
        let (size, max) = (bytes.len(), self.rules.record_size_max);
        if size > max {
            let text =
                format!("ERR the command takes a record of {size} bytes, and the log's limit is {max}: split it");
            return Pending::Ready(Reply::error(text));
        }
        let lsn = self.submit(bytes);
        Pending::Write { lsn, stamp, size, write }
    }

    /// Times of records never go back, even if the clock does.
    fn next_stamp(&mut self, now: u64) -> u64 {
        self.stamp = now.max(self.stamp).max(self.store.clock());
        self.stamp
    }

    fn submit(&mut self, bytes: Vec<u8>) -> u64 {
        self.logged += bytes.len() as u64;
        self.bytes_in_flight += bytes.len();
        self.submitted += 1;
        self.outputs.push_back(Output::Submit(bytes));
        self.submitted
    }

    fn submit_step(&mut self, now: u64, step: Step, record: &Record) {
        let bytes = record::encode(self.next_stamp(now), record);
        let size = bytes.len();
        let lsn = self.submit(bytes);
        self.queue.push_back(Pending::Snapshot { lsn, size, step });
    }

    /// See "Time" in `store`: while a record is on its way, it may be older than `now`.
    fn set_clock(&mut self, now: u64) {
        if self.applied == self.submitted {
            self.store.set_clock(now);
        }
    }

    /// The number of a barrier that has not begun yet. 0, which has passed, where reads need none.
    fn next_barrier(&mut self) -> u64 {
        if !self.rules.strict_reads {
            return 0;
        }
        self.barriers.wanted = self.barriers.started + 1;
        if self.barriers.passed == self.barriers.started {
            self.start_barrier();
        }
        self.barriers.wanted
    }

    fn start_barrier(&mut self) {
        self.barriers.started += 1;
        self.outputs.push_back(Output::Barrier);
    }

    /// Takes from the queue's front what waits for nothing any more.
    fn advance(&mut self, now: u64) {
        while let Some(front) = self.queue.front() {
            let ready = match front {
                Pending::Write { lsn, .. } | Pending::Snapshot { lsn, .. } => *lsn <= self.acked,
                Pending::Read { barrier, .. } => *barrier <= self.barriers.passed,
                Pending::Ready(_) | Pending::Finish(_) => true,
            };
            if !ready {
                return;
            }
            match self.queue.pop_front() {
                Some(Pending::Write { lsn, stamp, size, write }) => {
                    let reply = self.store.apply(stamp, &write);
                    self.replies.push(reply);
                    self.on_applied(lsn, size);
                }
                Some(Pending::Snapshot { lsn, size, step }) => {
                    self.on_applied(lsn, size);
                    self.on_step(now, lsn, step);
                }
                Some(Pending::Read { read, .. }) => {
                    self.set_clock(now);
                    self.replies.push(self.store.read(&read, self.store.clock(), self.copies));
                }
                Some(Pending::Ready(reply)) => self.replies.push(reply),
                Some(Pending::Finish(client)) => {
                    let replies = std::mem::take(&mut self.replies);
                    self.outputs.push_back(Output::Answer(client, replies));
                }
                None => unreachable!("looked at a moment ago"),
            }
        }
    }

    fn on_applied(&mut self, lsn: u64, size: usize) {
        self.applied += 1;
        self.bytes_in_flight -= size;
        assert!(lsn == self.applied && self.applied <= self.acked, "out of the log's order");
    }

    /// Begins a snapshot if the log has grown enough.
    fn compact(&mut self, now: u64) {
        let idle = self.compaction.is_none() && !self.trimming;
        if idle && self.logged >= self.rules.compact_at.max(self.store.bytes() as u64) {
            self.submit_step(now, Step::Begin, &Record::SnapshotBegin);
            let (id, logged) = (self.submitted, self.logged);
            self.compaction = Some(Compaction { id, logged, chunks_in_flight: 0, ending: false });
        }
    }

    fn on_step(&mut self, now: u64, lsn: u64, step: Step) {
        let Some(mut compaction) = self.compaction.take() else { unreachable!("one step follows the other") };
        match step {
            // The store holds exactly what the records before this one have made.
            Step::Begin => self.store.begin_snapshot(),
            Step::Chunk => compaction.chunks_in_flight -= 1,
            Step::End => {
                self.logged -= compaction.logged;
                self.snapshots += 1;
                self.trimming = true;
                self.outputs.push_back(Output::Trim(compaction.id));
                return;
            }
        }
        assert!(step != Step::Begin || lsn == compaction.id, "a snapshot is named after its beginning");
        self.write_snapshot(now, &mut compaction);
        self.compaction = Some(compaction);
    }

    fn write_snapshot(&mut self, now: u64, compaction: &mut Compaction) {
        let id = compaction.id;
        while compaction.chunks_in_flight < CHUNKS_IN_FLIGHT && !compaction.ending {
            match self.store.next_chunk(self.rules.chunk_size) {
                Some(bytes) => {
                    self.submit_step(now, Step::Chunk, &Record::SnapshotChunk { id, bytes });
                    compaction.chunks_in_flight += 1;
                }
                None => {
                    let entries = self.store.end_snapshot();
                    self.submit_step(now, Step::End, &Record::SnapshotEnd { id, entries });
                    compaction.ending = true;
                }
            }
        }
    }
}

/// The replies to a batch of which nothing is done: what is answered already keeps its reply.
pub fn refuse_all(operations: Vec<Operation>, refusal: &Reply) -> Vec<Reply> {
    let reply = |operation| match operation {
        Operation::Ready(reply) => reply,
        Operation::Read(_) | Operation::Write(_) => refusal.clone(),
    };
    operations.into_iter().map(reply).collect()
}

/// What a client is told whose write was on its way when the turn ended.
pub fn unknown_outcome() -> Reply {
    Reply::error(
        "UNKNOWNOUTCOME this server is primary no more, and the write may or may not have been made: read at the new primary",
    )
}

#[cfg(test)]
mod tests;
