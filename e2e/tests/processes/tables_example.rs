//! The example of `docs/tables.md`, word for word. The test beside it runs it, and compares it with the page.
#![allow(clippy::print_stdout, reason = "an example shows what it finds")]

use std::path::Path;

use tailwind_client::blocking::{LocalTable, Table};
use tailwind_client::{Apply, Change, Error, Revision};

// The page shows what follows.
pub(super) fn change(socket: &Path) -> Result<Revision, Error> {
    let mut table = Table::connect(socket)?;
    let online = table.put(b"device/7", b"online")?; // at every current backup now
    table.put_if(b"device/7", b"offline", Some(online))?; // only if nobody has changed it
    match table.put_if(b"device/7", b"lost", Some(online)) {
        Err(Error::Mismatch { revision, .. }) => println!("device/7 has revision {revision:?} by now"),
        other => println!("revision {}", other?),
    }
    let lease = table.put_if(b"lease", b"app-0", None)?; // only if there is no such key
    let both = Apply::new().require(b"lease", Some(lease)).put(b"job/1", b"done").delete(b"job/0");
    table.apply(both)?; // all of it, or nothing
    Ok(lease)
}

pub(super) fn look(socket: &Path, prefix: &[u8]) -> Result<usize, Error> {
    let mut local = LocalTable::follow(socket, prefix)?;
    while let Some(change) = local.next_change()? {
        match change {
            Change::Put { key, entry } => println!("{key:?} is {:?} at {}", entry.value, entry.revision),
            Change::Deleted { key } => println!("{key:?} is gone"),
            Change::CaughtUp { .. } | Change::Turn { .. } => break, // everything is here: an app continues
            Change::Lag { .. } => {}
        }
    }
    Ok(local.len()) // and local.get(key), local.range(from): this process's memory
}
// The page ends here.
