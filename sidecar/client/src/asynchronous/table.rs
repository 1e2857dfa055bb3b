//! A client of a table, and a table in this process's memory: asynchronous. The same functions as in
//! [`blocking`](crate::blocking), where they are described.
//!
//! Part of [`asynchronous`](crate::asynchronous). Every future may be dropped early, as there.

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

/// One connection to a sidecar of a group that keeps a table: see [`blocking::Table`](crate::blocking::Table).
///
/// ```no_run
/// use tailwind_client::asynchronous::Table;
///
/// # async fn example() -> Result<(), tailwind_client::Error> {
/// let mut table = Table::connect("/run/tailwind/default.sock").await?;
/// let revision = table.put(b"device/7", b"online").await?;
/// table.put_if(b"device/7", b"offline", Some(revision)).await?;
/// # Ok(())
/// # }
/// ```
pub struct Table {
    client: Client,
}

impl Table {
    /// Connects with the default options. Fails as [`Client::connect`] does, and with
    /// [`WrongKind`](crate::Error::WrongKind) if the group keeps no table.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Table> {
        Table::connect_with(path, &Options::default()).await
    }

    /// Connects.
    pub async fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Table> {
        Table::over(Client::connect_with(path, options).await?)
    }

    /// Over a connection that there is already.
    pub fn over(client: Client) -> Result<Table> {
        client.session.check_table()?;
        Ok(Table { client })
    }

    /// Gives the key this value, and returns its revision.
    pub async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Revision> {
        self.apply(Apply::new().put(key, value)).await?.only()
    }

    /// The same, if the key has this revision, or with `None` if it is absent.
    pub async fn put_if(&mut self, key: &[u8], value: &[u8], revision: Option<Revision>) -> Result<Revision> {
        self.apply(Apply::new().put_if(key, value, revision)).await?.only()
    }

    /// Gives the key the value that another key has, and returns the key's revision. Fails with
    /// [`Mismatch`](crate::Error::Mismatch) if the source is absent.
    pub async fn copy(&mut self, key: &[u8], source: &[u8]) -> Result<Revision> {
        self.apply(Apply::new().copy(key, source)).await?.only()
    }

    /// Removes the key, which may be absent already; the LSN of the record that does.
    pub async fn delete(&mut self, key: &[u8]) -> Result<Lsn> {
        Ok(self.apply(Apply::new().delete(key)).await?.last)
    }

    /// The same, if the key has this revision.
    pub async fn delete_if(&mut self, key: &[u8], revision: Option<Revision>) -> Result<Lsn> {
        Ok(self.apply(Apply::new().delete_if(key, revision)).await?.last)
    }

    /// What the key has; `None`: it is absent.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Entry>> {
        Ok(self.get_with(key, &Get::default()).await?.entry)
    }

    /// The same, with more to ask for, and more to learn.
    pub async fn get_with(&mut self, key: &[u8], get: &Get) -> Result<Got> {
        self.client.ask(&get.request(key)?).await?.value()
    }

    /// Carries out a request as a whole, and waits until every current backup has it.
    pub async fn apply(&mut self, apply: impl AsRef<Apply>) -> Result<Applied> {
        let apply = apply.as_ref();
        let ticket = self.submit(apply).await?;
        Ok(apply.applied(self.client.wait_for(ticket).await?))
    }

    /// Takes a request without waiting for its answer: see [`Client::submit`]. Its ticket is for the [`Table::client`], and the
    /// LSN of its answer for [`Apply::applied`]. Answers come in the order of the requests, but for mismatches, which come later.
    pub async fn submit(&mut self, apply: impl AsRef<Apply>) -> Result<Ticket> {
        self.client.make_room().await?;
        self.client.session.submit_apply(apply.as_ref())
    }

    /// The connection, for answers that were not waited for, for its role, barriers and syncs, and to read the log.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// A table in this process's memory: see [`blocking::LocalTable`](crate::blocking::LocalTable).
///
/// ```no_run
/// use tailwind_client::{Change, asynchronous::LocalTable};
///
/// # async fn example() -> Result<(), tailwind_client::Error> {
/// let mut devices = LocalTable::follow("/run/tailwind/default.sock", b"device/").await?;
/// while let Some(change) = devices.next_change().await? {
///     if let Change::CaughtUp { .. } = change {
///         println!("{} devices", devices.len());
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
    pub async fn follow(path: impl AsRef<Path>, prefix: &[u8]) -> Result<LocalTable> {
        LocalTable::over(Client::connect(path).await?, prefix)
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
    pub async fn next_change(&mut self) -> Result<Option<Change>> {
        let local = &mut self.local;
        self.client.wait(|session| local.next_change(session)).await
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
