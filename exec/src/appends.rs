//! The program's appends through the sidecar's socket: in order, counted, and without those of other writers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use tailwind_client::blocking::Client;
use tailwind_client::{Ack, Epoch, Limits, Lsn, Role, Ticket};

use tracing::{info, warn};

use crate::supervisor::{Log, Loss};

/// A connection that may append.
pub struct Appends {
    socket: PathBuf,
    trimming: Option<JoinHandle<()>>,
    client: Client,
    epoch: Epoch,
    limits: Limits,
    /// The last record of each batch that is not acknowledged.
    in_flight: VecDeque<(Ticket, Lsn)>,
    sent: Lsn,
    acked: Lsn,
}

impl Appends {
    /// After a turn in this epoch, whose next LSN is `next`.
    pub fn new(socket: PathBuf, client: Client, epoch: Epoch, next: Lsn) -> Appends {
        let limits = client.welcome().limits;
        let last = Lsn(next.0.saturating_sub(1));
        Appends { socket, trimming: None, client, epoch, limits, in_flight: VecDeque::new(), sent: last, acked: last }
    }

    /// How many of `records` fit into one batch: one at least, or the sidecar says why not.
    fn batch(&self, records: &[Vec<u8>]) -> usize {
        let fits = |count: usize| {
            let size = self.limits.batch_size(records[..count].iter().map(Vec::len));
            size <= self.limits.batch_size_max as usize
        };
        // Sizes grow with the count.
        let (mut some, mut too_many) = (1, records.len().min(self.limits.batch_records_max as usize) + 1);
        while too_many - some > 1 {
            let middle = some + (too_many - some) / 2;
            if fits(middle) { some = middle } else { too_many = middle }
        }
        some
    }

    fn take(&mut self, ack: Ack) -> Result<(), Loss> {
        let found = ack.outcome?;
        match self.in_flight.pop_front() {
            Some((ticket, expected)) if ticket == ack.ticket && expected == found => {
                self.acked = found;
                Ok(())
            }
            Some((_, expected)) => Err(Loss::Foreign { found, expected }),
            None => Err(Loss::Foreign { found, expected: self.sent }),
        }
    }
}

impl Log for Appends {
    fn record_max(&self) -> usize {
        let around = self.limits.batch_size([0].into_iter());
        // What is behind a record is padded.
        (self.limits.record_size_max as usize).min((self.limits.batch_size_max as usize).saturating_sub(around + 8))
    }

    fn send(&mut self, mut records: &[Vec<u8>]) -> Result<(), Loss> {
        while !records.is_empty() {
            let (batch, others) = records.split_at(self.batch(records));
            let ticket = match batch {
                [record] => self.client.submit(record)?,
                batch => self.client.submit_batch(batch)?,
            };
            self.sent = Lsn(self.sent.0 + batch.len() as u64);
            self.in_flight.push_back((ticket, self.sent));
            records = others;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Loss> {
        Ok(self.client.hand_over()?)
    }

    fn pump(&mut self) -> Result<(), Loss> {
        self.client.pump()?;
        // It may have lost the role and got it again: another program has run in between.
        let now = self.client.role_info();
        if now.role != Role::Primary || now.epoch != self.epoch {
            return Err(Loss::Role);
        }
        self.take_acks()
    }

    fn take_acks(&mut self) -> Result<(), Loss> {
        while let Some(ack) = self.client.try_next_ack() {
            self.take(ack)?;
        }
        Ok(())
    }

    fn sent(&self) -> Lsn {
        self.sent
    }

    fn acked(&self) -> Lsn {
        self.acked
    }

    fn trim(&mut self, below: Lsn) {
        if self.trimming.as_ref().is_some_and(|thread| !thread.is_finished()) {
            // The next state does it.
            return;
        }
        // Over a connection of its own: what waits for the answer must not hold up acks.
        let socket = self.socket.clone();
        let trim = move || match Client::connect(socket).and_then(|mut client| client.trim(below)) {
            Ok(first) => info!(%below, %first, "trimmed the log"),
            Err(error) => warn!(%error, "cannot trim the log; tries again with its next state"),
        };
        self.trimming = std::thread::Builder::new().name("trim".into()).spawn(trim).ok();
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.as_fd()
    }
}
