//! The registry: what it asks of the table, and how it continues after failures. Called by the commands of `main.rs`.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use tailwind_client::blocking::{Client, LocalTable, Table};
use tailwind_client::{Change, Error, Revision};

use crate::device::{Device, PREFIX, id, key, now};

/// The devices, at the primary.
pub(crate) struct Registry {
    socket: String,
    /// To change devices.
    table: Table,
    /// All of them in this process's memory, up to the last change that was read.
    devices: LocalTable,
    /// The value that was put last, until it is among the changes.
    unseen: Option<Vec<u8>>,
}

impl Registry {
    /// Connects, and waits for the turn of this sidecar.
    pub(crate) fn connect(socket: &str) -> Result<Registry, Error> {
        let (table, devices) = (Table::over(connect(socket)?)?, follow(socket)?);
        let mut registry = Registry { socket: socket.to_owned(), table, devices, unseen: None };
        registry.wait_for_turn()?;
        Ok(registry)
    }

    /// Adds a device; false if it is there already.
    pub(crate) fn register(&mut self, id: &str, state: &str) -> Result<bool, Error> {
        self.put(id, None, &Device::now(0, state))
    }

    /// Notes what a device reports, and returns the number of its reports; `None` if it is not registered.
    pub(crate) fn report(&mut self, id: &str, state: &str) -> Result<Option<u64>, Error> {
        let mut caught_up = false;
        loop {
            match self.read(id) {
                Some((revision, device)) => {
                    let reports = device.reports + 1;
                    if self.put(id, Some(revision), &Device::now(reports, state))? {
                        return Ok(Some(reports));
                    }
                    // Another report was faster, or a sweep. What it has left has been read.
                }
                None if caught_up => return Ok(None),
                None => self.catch_up()?,
            }
            caught_up = true;
        }
    }

    /// All devices, as they are after everything that was acknowledged before the call.
    pub(crate) fn list(&mut self) -> Result<Vec<(String, Device)>, Error> {
        self.catch_up()?;
        let devices = self.devices.range(b"");
        Ok(devices.filter_map(|(key, entry)| Some((id(key), Device::from_value(&entry.value)?))).collect())
    }

    /// Removes the devices whose last report is at least so old; with each, whether it is gone. Devices that have not been read
    /// yet wait for the next sweep. One that has reported since it was read stays, because its revision is another one.
    pub(crate) fn expire(&mut self, age: Duration) -> Result<Vec<(String, bool)>, Error> {
        let latest = now().saturating_sub(age);
        let is_old = |value: &[u8]| Device::from_value(value).is_some_and(|device| device.reported <= latest);
        let old = self.devices.range(b"").filter(|(_, entry)| is_old(&entry.value));
        let old: Vec<_> = old.map(|(key, entry)| (key.to_vec(), entry.revision)).collect();
        let mut swept = Vec::new();
        for (key, revision) in old {
            swept.push((id(&key), self.delete(&key, revision)?));
        }
        self.catch_up()?;
        Ok(swept)
    }

    /// A device as far as changes have been read, and its revision.
    fn read(&self, id: &str) -> Option<(Revision, Device)> {
        let entry = self.devices.get(&key(id))?;
        Some((entry.revision, Device::from_value(&entry.value)?))
    }

    /// Puts a device if it has this revision, or with `None` if it is absent; false if not. If an answer is lost, the table tells
    /// whether the device was put.
    fn put(&mut self, id: &str, revision: Option<Revision>, device: &Device) -> Result<bool, Error> {
        let value = device.to_value();
        self.unseen = Some(value.clone());
        loop {
            match self.table.put_if(&key(id), &value, revision) {
                Ok(_) => return self.catch_up().map(|()| true),
                Err(Error::Mismatch { .. }) => return self.catch_up().map(|()| self.unseen.is_none()),
                Err(error) => self.recover(error)?,
            }
            self.catch_up()?;
            if self.unseen.is_none() {
                return Ok(true);
            }
        }
    }

    /// Deletes a key if it has this revision; false if it has another. It may be absent already, also by an earlier attempt.
    fn delete(&mut self, key: &[u8], revision: Revision) -> Result<bool, Error> {
        loop {
            match self.table.delete_if(key, Some(revision)) {
                Ok(_) | Err(Error::Mismatch { revision: None, .. }) => return Ok(true),
                Err(Error::Mismatch { .. }) => return Ok(false),
                Err(error) => self.recover(error)?,
            }
        }
    }

    /// Reads changes up to everything that was acknowledged before the call.
    fn catch_up(&mut self) -> Result<(), Error> {
        let end = loop {
            match self.table.client().barrier() {
                Ok(passed) => break passed.last,
                Err(error) => self.recover(error)?,
            }
        };
        while self.devices.seen() < end {
            self.next_change()?;
        }
        Ok(())
    }

    /// After an error that passes: once it has. Any other is returned.
    fn recover(&mut self, error: Error) -> Result<(), Error> {
        match error {
            Error::Retry { after, .. } => sleep(after),
            Error::UnknownOutcome { .. } => {}
            Error::NotPrimary { .. } | Error::Disconnected { .. } => {
                self.table = Table::over(connect(&self.socket)?)?;
                self.devices.continue_over(connect(&self.socket)?)?;
                self.wait_for_turn()?;
            }
            error => return Err(error),
        }
        Ok(())
    }

    /// Reads changes until this sidecar is primary: at once if it is already. Then all earlier ones have been read.
    fn wait_for_turn(&mut self) -> Result<(), Error> {
        while !matches!(self.next_change()?, Change::Turn { .. }) {}
        Ok(())
    }

    fn next_change(&mut self) -> Result<Change, Error> {
        let change = next_change(&mut self.devices, &self.socket)?;
        if let Change::Put { entry, .. } = &change {
            self.unseen.take_if(|value| **value == *entry.value);
        }
        Ok(change)
    }
}

/// The devices at any sidecar, primary or not.
pub(crate) fn follow(socket: &str) -> Result<LocalTable, Error> {
    LocalTable::over(connect(socket)?, PREFIX.as_bytes())
}

/// Waits for the next change, through all failures.
pub(crate) fn next_change(devices: &mut LocalTable, socket: &str) -> Result<Change, Error> {
    loop {
        match devices.next_change() {
            Ok(Some(change)) => return Ok(change),
            Ok(None) => {}
            Err(Error::Retry { after, .. }) => sleep(after),
            Err(Error::Disconnected { .. }) => devices.continue_over(connect(socket)?)?,
            Err(error) => return Err(error),
        }
    }
}

/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until this sidecar is there, primary or not.
fn connect(socket: &str) -> Result<Client, Error> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    loop {
        match Client::connect(socket) {
            Err(Error::Connect { source, .. }) if matches!(source.kind(), NotFound | ConnectionRefused) => sleep(PAUSE),
            Err(Error::Disconnected { .. } | Error::Retry { .. }) => sleep(PAUSE),
            connected => return connected,
        }
    }
}
