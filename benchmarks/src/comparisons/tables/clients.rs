//! Clients of a table: puts without a pause, for the driver of [`load`](crate::load); and gets and puts in turns, for
//! [`mix`](crate::mix).

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tailwind_client::blocking::{LocalTable, Table};
use tailwind_client::{Apply, Change, Error};

use crate::keys::{KEY_SIZE, Random, Zipf, key};
use crate::load::Connection;
use crate::mix::KeyClient;
use crate::ours::Ours;

/// How long a local table may take to have all keys.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often its thread looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// Puts keys; a record is key and value together.
pub(super) struct Puts {
    table: Table,
    /// Another descriptor of its socket, to be polled.
    socket: OwnedFd,
    zipf: Arc<Zipf>,
    random: Random,
}

impl Puts {
    /// Clients with different seeds put different keys.
    pub(super) fn connect(ours: &Ours, zipf: &Arc<Zipf>, seed: u64) -> Result<Box<dyn Connection>> {
        let client = ours.client(Duration::ZERO)?;
        let socket = client.as_fd().try_clone_to_owned().context("duplicate a socket")?;
        Ok(Box::new(Puts { table: Table::over(client)?, socket, zipf: Arc::clone(zipf), random: Random::new(seed) }))
    }

    fn take(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some(ack) = self.table.client().try_next_ack() {
            ack.outcome?;
            count += 1;
        }
        Ok(count)
    }
}

impl Connection for Puts {
    fn submit(&mut self, record: &[u8]) -> Result<()> {
        let key = key(self.zipf.key(self.random.share()));
        self.table.submit(Apply::new().put(key.as_bytes(), &record[KEY_SIZE..]))?;
        Ok(())
    }

    fn answers(&mut self, wait: bool) -> Result<usize> {
        if !wait {
            self.table.client().pump()?;
            return self.take();
        }
        if let Some(ack) = self.table.client().next_ack()? {
            ack.outcome?;
        }
        Ok(1 + self.take()?)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// As with appends: what it has sent is answered, then the rest goes out.
    fn unsent(&self) -> bool {
        false
    }
}

/// Gets and puts at the primary.
pub(super) struct AtPrimary(Table);

impl AtPrimary {
    pub(super) fn connect(ours: &Ours) -> Result<AtPrimary> {
        Ok(AtPrimary(Table::over(ours.client(Duration::ZERO)?)?))
    }
}

impl KeyClient for AtPrimary {
    fn read(&mut self, key: &[u8]) -> Result<usize> {
        Ok(self.0.get(key)?.context("a key is missing")?.value.len())
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.put(key, value)?;
        Ok(())
    }
}

/// Gets at a standby, puts at the primary.
pub(super) struct AtStandby {
    gets: Table,
    puts: AtPrimary,
}

impl AtStandby {
    pub(super) fn connect(ours: &Ours) -> Result<AtStandby> {
        let client = ours.group.observer().client(1, false).context("connect to the standby")?;
        Ok(AtStandby { gets: Table::over(client)?, puts: AtPrimary::connect(ours)? })
    }
}

impl KeyClient for AtStandby {
    fn read(&mut self, key: &[u8]) -> Result<usize> {
        Ok(self.gets.get(key)?.context("a key is missing")?.value.len())
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.puts.write(key, value)
    }
}

/// Reads what this process has of the table; puts go to the primary.
pub(super) struct Locally {
    values: Arc<RwLock<Values>>,
    table: Table,
}

impl KeyClient for Locally {
    fn read(&mut self, key: &[u8]) -> Result<usize> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        Ok(values.get(key).context("a key is missing")?.len())
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.table.put(key, value)?;
        Ok(())
    }
}

type Values = HashMap<Arc<[u8]>, Arc<[u8]>>;

/// A table in this process's memory, for all clients: a thread follows at the standby. Ends when dropped.
pub(super) struct View {
    values: Arc<RwLock<Values>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl View {
    /// Has all keys when this returns.
    pub(super) fn start(ours: &Ours) -> Result<View> {
        let mut client = ours.group.observer().client(1, false).context("connect to the standby")?;
        client.set_timeout(Some(LOOK))?;
        let local = LocalTable::over(client, b"")?;
        let (values, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (ready, is_ready) = channel();
        let (shared, stopping) = (Arc::clone(&values), Arc::clone(&stop));
        let thread = std::thread::spawn(move || follow(local, &shared, &stopping, &ready));
        let mut view = View { values, stop, thread: Some(thread) };
        if is_ready.recv_timeout(PATIENCE).is_err() {
            view.end()?;
            return Err(anyhow!("a local table has not caught up within {PATIENCE:?}"));
        }
        Ok(view)
    }

    pub(super) fn client(&self, ours: &Ours) -> Result<Locally> {
        let table = Table::over(ours.client(Duration::ZERO)?)?;
        Ok(Locally { values: Arc::clone(&self.values), table })
    }

    /// Says what has gone wrong, if anything has.
    pub(super) fn end(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).map_err(|_| anyhow!("a local table panicked"))?.context("a local table")
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn follow(mut local: LocalTable, values: &RwLock<Values>, stop: &AtomicBool, ready: &Sender<()>) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let change = match local.next_change() {
            Ok(change) => change,
            Err(Error::TimedOut { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        match change {
            Some(Change::Put { key, entry }) => {
                values.write().unwrap_or_else(PoisonError::into_inner).insert(key, entry.value);
            }
            Some(Change::Deleted { key }) => {
                values.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
            }
            // Nobody may wait for it any more.
            Some(Change::CaughtUp { .. }) => drop(ready.send(())),
            Some(Change::Lag { .. } | Change::Turn { .. }) | None => {}
        }
    }
    Ok(())
}
