//! The thread that brings segments to disk: a [`tailwind_backup::Flusher`], one job after the other.
//!
//! Fed by the [`actor`](super::actor) in the order in which the protocol decided.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Context;
use tailwind_backup::{Flusher, Job};
use tailwind_protocol::backup::{Input, Slot};
use tailwind_protocol::layout::SegmentIdentity;
use tailwind_protocol::scan::Tail;
use tokio::sync::oneshot;

use super::memory::PoolBuffers;
use crate::thread::spawn_owned;

/// With nothing to do for so long it is noted how far open segments are flushed.
const REST_AFTER: Duration = Duration::from_millis(50);
/// And where the disk refused that, it is tried again after this time.
const REST_AGAIN_AFTER: Duration = Duration::from_secs(1);

enum Task {
    Do(Job),
    /// Write an open segment as it is, when all before is done, and say so.
    Last(Slot, SegmentIdentity, Tail, Sender<io::Result<()>>),
}

/// The thread, seen from the actor. Dropping it lets the thread do what is queued, and end.
#[derive(Debug)]
pub(super) struct FlusherThread {
    tasks: Sender<Task>,
    ended: oneshot::Receiver<()>,
}

impl FlusherThread {
    /// Starts the thread. It calls `answer` with what the protocol waits for.
    pub(super) fn start(
        flusher: Flusher,
        buffers: PoolBuffers,
        answer: impl Fn(Input) + Send + 'static,
    ) -> anyhow::Result<FlusherThread> {
        let (tasks, queue) = channel();
        let worker = Worker { flusher, buffers, answer };
        let ended = spawn_owned("flusher", move || worker.work(&queue)).context("start the flusher thread")?;
        Ok(FlusherThread { tasks, ended })
    }

    /// Queues a job.
    pub(super) fn queue(&self, job: Job) -> anyhow::Result<()> {
        self.send(Task::Do(job))
    }

    /// Writes an open segment after everything that is queued, and waits for it.
    pub(super) fn flush_last(&self, slot: Slot, identity: SegmentIdentity, tail: Tail) -> anyhow::Result<()> {
        let (done, result) = channel();
        self.send(Task::Last(slot, identity, tail, done))?;
        let result = result.recv().context("the flusher thread has ended")?;
        result.with_context(|| format!("flush open segment {}", identity.segment))
    }

    /// Waits until everything that is queued is done.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        drop(self.tasks);
        self.ended.blocking_recv().context("the flusher thread has panicked")
    }

    /// True while the thread lives.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.ended.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    fn send(&self, task: Task) -> anyhow::Result<()> {
        self.tasks.send(task).ok().context("the flusher thread has ended")
    }
}

struct Worker<A> {
    flusher: Flusher,
    buffers: PoolBuffers,
    answer: A,
}

impl<A: Fn(Input)> Worker<A> {
    fn work(mut self, queue: &Receiver<Task>) {
        let mut rest_after = REST_AFTER;
        loop {
            if self.flusher.due().is_none() {
                match queue.recv_timeout(if self.flusher.is_restless() { rest_after } else { Duration::MAX }) {
                    Ok(task) => self.take(task),
                    Err(RecvTimeoutError::Timeout) => {
                        rest_after = if self.flusher.rest() { REST_AFTER } else { REST_AGAIN_AFTER };
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        self.flusher.rest();
                        return;
                    }
                }
            }
            // Take everything else that waits: flushes of the same segment are done together.
            queue.try_iter().for_each(|task| self.take(task));
            self.next_job();
        }
    }

    fn take(&mut self, task: Task) {
        match task {
            Task::Do(job) => self.flusher.queue(job),
            Task::Last(slot, identity, tail, done) => {
                while self.flusher.due().is_some() {
                    self.next_job();
                }
                // The actor waits for this; if it is gone, so is the process.
                let _ = done.send(self.flusher.flush_last(&self.buffers, slot, &identity, &tail));
            }
        }
    }

    fn next_job(&mut self) {
        self.flusher.work(&self.buffers).into_iter().for_each(&self.answer);
    }
}
