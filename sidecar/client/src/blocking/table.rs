//! A client of a table, and a table in this process's memory: blocking.
//!
//! Part of [`blocking`](crate::blocking). What is asked and what is read is decided in [`Apply`] and in `local`; this waits.

use std::path::Path;

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::table::record::Revision;

use super::Client;
use crate::Result;
use crate::apply::{Applied, Apply};
use crate::content::{Change, Entry};
use crate::get::{Get, Got};
use crate::local::Local;
use crate::types::{Options, Ticket};

/// One connection to a sidecar of a group that keeps a table, to read keys, and at the primary to change them.
///
/// A change that is acknowledged is at every current backup, as an append is. The errors of every call that changes keys:
///
/// - [`Mismatch`](crate::Error::Mismatch): a condition did not hold. Get the key, and decide again.
/// - [`TableFull`](crate::Error::TableFull): a bound of the table has been reached. Deletes and smaller values are still taken.
/// - [`NotPrimary`](crate::Error::NotPrimary): nothing was done. Connect to the primary, or with [`Options::hold`].
/// - [`UnknownOutcome`](crate::Error::UnknownOutcome), [`Disconnected`](crate::Error::Disconnected): the change was carried out
///   as a whole or not at all. Connect again, and look; or repeat it with its conditions, which do not hold any more if it was.
///
/// ```no_run
/// use tailwind_client::{Apply, Error, blocking::Table};
///
/// # fn main() -> Result<(), Error> {
/// let mut table = Table::connect("/run/tailwind/default.sock")?;
/// let revision = table.put(b"device/7", b"online")?;
/// match table.put_if(b"device/7", b"offline", Some(revision)) {
///     Err(Error::Mismatch { revision, .. }) => println!("another app was here: {revision:?}"),
///     other => println!("revision {}", other?),
/// }
/// let lease = table.put_if(b"lease", b"me", None)?;
/// let applied = table.apply(Apply::new().require(b"lease", Some(lease)).put(b"a", b"1").delete(b"b"))?;
/// println!("a has revision {:?}", applied.revision(0));
///
/// // Many: submit without waiting, then wait for all.
/// for n in 0..1000_u32 {
///     table.submit(Apply::new().put(&n.to_le_bytes(), b"x"))?;
/// }
/// table.client().flush()?;
/// # Ok(())
/// # }
/// ```
pub struct Table {
    client: Client,
}

impl Table {
    /// Connects with the default options. Fails as [`Client::connect`] does, and with
    /// [`WrongKind`](crate::Error::WrongKind) if the group keeps no table.
    pub fn connect(path: impl AsRef<Path>) -> Result<Table> {
        Table::connect_with(path, &Options::default())
    }

    /// Connects.
    pub fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Table> {
        Table::over(Client::connect_with(path, options)?)
    }

    /// Over a connection that there is already.
    pub fn over(client: Client) -> Result<Table> {
        client.session.check_table()?;
        Ok(Table { client })
    }

    /// Gives the key this value, and returns its revision.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Revision> {
        self.apply(Apply::new().put(key, value))?.only()
    }

    /// The same, if the key has this revision, or with `None` if it is absent.
    pub fn put_if(&mut self, key: &[u8], value: &[u8], revision: Option<Revision>) -> Result<Revision> {
        self.apply(Apply::new().put_if(key, value, revision))?.only()
    }

    /// Gives the key the value that another key has, and returns the key's revision. Fails with
    /// [`Mismatch`](crate::Error::Mismatch) if the source is absent.
    pub fn copy(&mut self, key: &[u8], source: &[u8]) -> Result<Revision> {
        self.apply(Apply::new().copy(key, source))?.only()
    }

    /// Removes the key, which may be absent already; the LSN of the record that does.
    pub fn delete(&mut self, key: &[u8]) -> Result<Lsn> {
        Ok(self.apply(Apply::new().delete(key))?.last)
    }

    /// The same, if the key has this revision.
    pub fn delete_if(&mut self, key: &[u8], revision: Option<Revision>) -> Result<Lsn> {
        Ok(self.apply(Apply::new().delete_if(key, revision))?.last)
    }

    /// What the key has; `None`: it is absent. What is acknowledged is seen, and on one connection nothing older than what was
    /// seen before. The primary shows all of that; one that has been deposed and has not noticed shows what was true until
    /// then. Every other sidecar reads a backup's mirror of the index, which is a moment behind.
    ///
    /// Fails with [`Retry`](crate::Error::Retry) if it could not be read within 5 seconds, as off the primary of a group without
    /// mirrors: a [`LocalTable`] can be had there. With [`NotPrimary`](crate::Error::NotPrimary) if the sidecar has lost the
    /// role since: ask again.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.get_with(key, &Get::default())?.entry)
    }

    /// The same, with more to ask for, and more to learn.
    ///
    /// ```no_run
    /// use tailwind_client::{Get, blocking::Table};
    ///
    /// # fn example(table: &mut Table) -> Result<(), tailwind_client::Error> {
    /// let lease = table.get_with(b"lease", &Get { fresh: true, ..Get::default() })?.entry;
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_with(&mut self, key: &[u8], get: &Get) -> Result<Got> {
        self.client.ask(&get.request(key)?)?.value()
    }

    /// Carries out a request as a whole, and waits until every current backup has it.
    pub fn apply(&mut self, apply: impl AsRef<Apply>) -> Result<Applied> {
        let apply = apply.as_ref();
        let ticket = self.submit(apply)?;
        Ok(apply.applied(self.client.wait_for(ticket)?))
    }

    /// Takes a request without waiting for its answer: see [`Client::submit`]. Its ticket is for the [`Table::client`], and the
    /// LSN of its answer for [`Apply::applied`]. Answers come in the order of the requests, but for mismatches, which come later.
    pub fn submit(&mut self, apply: impl AsRef<Apply>) -> Result<Ticket> {
        self.client.make_room()?;
        self.client.session.submit_apply(apply.as_ref())
    }

    /// The connection, for answers that were not waited for, for its role, barriers and syncs, and to read the log.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// A table in this process's memory: the keys that have a prefix, kept up to date, at any sidecar of the group.
///
/// [`next_change`](LocalTable::next_change) returns what changes, and all else reads what it has returned. At first the table is
/// empty. With the first [`Change::CaughtUp`] or [`Change::Turn`] it is whole, and everything in it has been returned as a
/// [`Change::Put`] in front of that.
///
/// ```no_run
/// use tailwind_client::{Change, Error, blocking::LocalTable};
///
/// # fn main() -> Result<(), Error> {
/// let mut devices = LocalTable::follow("/run/tailwind/default.sock", b"device/")?;
/// while let Some(change) = devices.next_change()? {
///     match change {
///         Change::Put { key, entry } => println!("{key:?} is {:?} at {}", entry.value, entry.revision),
///         Change::Deleted { key } => println!("{key:?} is gone"),
///         Change::CaughtUp { .. } => println!("{} devices", devices.len()),
///         Change::Lag { .. } | Change::Turn { .. } => {}
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct LocalTable {
    client: Client,
    local: Local,
}

impl LocalTable {
    /// Connects, and follows the keys that begin with this prefix; with an empty one, all. Fails as [`Table::connect`] does.
    pub fn follow(path: impl AsRef<Path>, prefix: &[u8]) -> Result<LocalTable> {
        LocalTable::over(Client::connect(path)?, prefix)
    }

    /// Over a connection that there is already. [`Options::timeout`] bounds each wait for the next change.
    pub fn over(client: Client, prefix: &[u8]) -> Result<LocalTable> {
        client.session.check_table()?;
        Ok(LocalTable { client, local: Local::new(prefix) })
    }

    /// Continues over another connection, to any sidecar of the group, after [`Disconnected`](crate::Error::Disconnected).
    pub fn continue_over(&mut self, client: Client) -> Result<()> {
        client.session.check_table()?;
        self.client = client;
        self.local.reconnected();
        Ok(())
    }

    /// Waits for what comes next; `None` if the sidecar has ended the read, which the next call begins again. A time-out leaves
    /// the table as it was. If the log no longer has the records that come next, the table is read again from the first one on.
    /// What is different is returned once that has caught up; until then the table stays as it is.
    pub fn next_change(&mut self) -> Result<Option<Change>> {
        let local = &mut self.local;
        self.client.wait(|session| local.next_change(session))
    }

    /// A key's value and revision; `None`: it is absent.
    pub fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.local.content.shown().get(key)
    }

    /// The keys in their order, from this one on, with what they have.
    pub fn range(&self, from: &[u8]) -> impl Iterator<Item = (&[u8], &Entry)> {
        use std::ops::Bound::{Included, Unbounded};
        let range = self.local.content.shown().range::<[u8], _>((Included(from), Unbounded));
        range.map(|(key, entry)| (&**key, entry))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.local.content.shown().len()
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last record of the log that the table shows. At a revision, or the LSN of a delete, and later, it shows that change or
    /// one after it.
    pub fn seen(&self) -> Lsn {
        self.local.content.seen()
    }
}
