//! An app that keeps its state over a plain log: counters, of which it writes snapshots into the log, and then trims it.
//!
//! One follows beside each sidecar until its turn, and continues with what it has. What is acknowledged must be counted then, at
//! whichever sidecar: [`Known`] judges that. Every snapshot that a follower is shown must be what it has counted itself.

use std::collections::VecDeque;
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tailwind_client::blocking::Client;
use tailwind_client::{Error, FollowEvent, Lsn, Start};

use super::app::is_outage;
use super::observer::Observer;
use crate::workload::Random;

/// Counters of an app.
const COUNTERS: usize = 50;
/// Increments between two snapshots.
const SNAPSHOT_AFTER: u64 = 300;
/// Size of an increment's record: with segments of 64 KiB a segment is full after one snapshot or two.
const INCREMENT_SIZE: usize = 120;
/// Pause before it connects again.
const AGAIN: Duration = Duration::from_millis(5);

/// What the log says.
#[derive(Clone, Debug)]
pub struct Counters {
    /// `None` until there is a snapshot, if the log does not begin with its first record any more.
    values: Option<[u64; COUNTERS]>,
    /// The record to come.
    next: Start,
}

impl Default for Counters {
    /// Before the first record.
    fn default() -> Counters {
        Counters { values: Some([0; COUNTERS]), next: Lsn(1).into() }
    }
}

impl Counters {
    /// The sum, if it is known.
    pub fn sum(&self) -> Option<u64> {
        Some(self.values?.iter().sum())
    }

    fn apply(&mut self, lsn: Lsn, record: &[u8]) -> Result<()> {
        ensure!(self.next.from.0 == 0 || lsn == self.next.from, "record {lsn} instead of {:?}", self.next);
        match record {
            [b'+', counter, ..] => {
                if let Some(values) = &mut self.values {
                    values[usize::from(*counter)] += 1;
                }
            }
            [b'=', snapshot @ ..] => {
                let (values, _) = snapshot.as_chunks();
                let values: Vec<u64> = values.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
                let values: [u64; COUNTERS] = values.try_into().ok().context("a snapshot of another length")?;
                let counted = *self.values.get_or_insert(values);
                ensure!(counted == values, "snapshot {lsn} has {values:?}, counted are {counted:?}");
            }
            other => bail!("record {lsn} is {}", other.escape_ascii()),
        }
        self.next.from = lsn.next();
        Ok(())
    }

    /// Follows over this connection until a record, or until its turn with `None`; true then.
    pub fn follow(&mut self, client: &mut Client, until: Option<Lsn>) -> Result<bool> {
        let mut follow = client.follow(self.next)?;
        while until.is_none_or(|until| self.next.from <= until) {
            match follow.next_event()? {
                Some(FollowEvent::Record(lsn, record)) => self.apply(lsn, record)?,
                Some(FollowEvent::Turn { next, .. }) => {
                    ensure!(next == self.next.from, "the turn is at record {next}: {:?}", self.next);
                    return Ok(true);
                }
                Some(FollowEvent::CaughtUp { .. } | FollowEvent::Lag { .. }) => {}
                None => return Ok(false),
            }
            self.next.history = follow.history();
        }
        Ok(false)
    }

    /// Follows at a sidecar until its turn, through outages and trims; the connection over which it may append then.
    fn take_turn(&mut self, observer: &Observer, index: usize) -> Result<Client> {
        loop {
            let followed = observer.client(index, false).and_then(|mut client| {
                let is_its_turn = self.follow(&mut client, None)?;
                Ok(is_its_turn.then_some(client))
            });
            match followed {
                Ok(Some(client)) => return Ok(client),
                Err(error) if matches!(error.downcast_ref(), Some(Error::Trimmed { .. })) => {
                    *self = Counters { values: None, next: Lsn(0).into() };
                }
                Err(error) if !is_outage(&error) => return Err(error.context(format!("follow at sidecar{index}"))),
                _ => sleep(AGAIN),
            }
        }
    }
}

/// Starts an app beside a sidecar. It ends at its turn.
pub fn start_app(observer: Observer, index: usize) -> JoinHandle<Result<Leader>> {
    std::thread::spawn(move || {
        let mut counters = Counters::default();
        let client = counters.take_turn(&observer, index)?;
        Ok(Leader { client, counters, in_flight: VecDeque::new(), unsaved: 0 })
    })
}

/// An app that has its turn. Dropped, it has died with everything that is in flight.
pub struct Leader {
    client: Client,
    /// With what is in flight.
    counters: Counters,
    /// The counter of an increment; `None` is a snapshot.
    in_flight: VecDeque<Option<usize>>,
    /// Increments since the last snapshot.
    unsaved: u64,
}

impl Leader {
    /// Submits so many increments, with snapshots between them, and takes answers until `awaited` are acknowledged.
    pub fn increment(&mut self, known: &mut Known, random: &mut Random, count: u64, awaited: u64) -> Result<()> {
        let values = self.counters.values.as_mut().context("a turn without a snapshot")?;
        for _ in 0..count {
            let counter = random.below(COUNTERS as u64) as usize;
            let mut record = [0; INCREMENT_SIZE];
            (record[0], record[1]) = (b'+', counter as u8);
            self.client.submit(&record)?;
            self.in_flight.push_back(Some(counter));
            (values[counter], known.0[counter].sent) = (values[counter] + 1, known.0[counter].sent + 1);
            self.unsaved += 1;
            if self.unsaved == SNAPSHOT_AFTER {
                self.unsaved = 0;
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                self.client.submit(&[b'='].into_iter().chain(bytes).collect::<Vec<u8>>())?;
                self.in_flight.push_back(None);
            }
        }
        let mut acked = 0;
        while acked < awaited {
            let lsn = self.client.next_ack()?.context("nothing is in flight")?.outcome?;
            match self.in_flight.pop_front().context("an ack for nothing")? {
                Some(counter) => (acked, known.0[counter].acked) = (acked + 1, known.0[counter].acked + 1),
                None => drop(self.client.trim(lsn)?),
            }
        }
        Ok(())
    }

    /// The connection to its sidecar.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// What is known of the counters: each has at least what was acknowledged, and at most what was sent.
#[derive(Debug)]
pub struct Known([Bounds; COUNTERS]);

#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    acked: u64,
    sent: u64,
}

impl Default for Known {
    fn default() -> Known {
        Known([Bounds::default(); COUNTERS])
    }
}

impl Known {
    /// Judges an app that has its turn. What was in flight at a death is counted by now, or never will be.
    pub fn check(&mut self, leader: &Leader) -> Result<()> {
        let values = leader.counters.values.context("a turn without a snapshot")?;
        for (counter, (value, bounds)) in values.into_iter().zip(&mut self.0).enumerate() {
            ensure!((bounds.acked..=bounds.sent).contains(&value), "counter {counter} is {value}: {bounds:?}");
            *bounds = Bounds { acked: value, sent: value };
        }
        Ok(())
    }
}
