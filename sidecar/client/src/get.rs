//! How one key of a table is read, and what is found.
//!
//! [`Get`] is made by apps, and sent by both tables as a [`Request::Get`]; its answer becomes a [`Got`].

use std::sync::Arc;

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{GET_FRESH, GET_NO_VALUE, GET_OLDER, Request};
use tailwind_protocol::table::record::{Key, Revision};

use crate::content::Entry;
use crate::{Error, Result};

/// What a get asks for, beside the key: by default what is acknowledged, and on one connection nothing older than before.
/// See [`Table::get_with`](crate::blocking::Table::get_with).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// Everything that was acknowledged to anybody before the call. The primary has proved then that it still is.
    pub fresh: bool,
    /// The state after this record or later. With the LSN of an acknowledged change, from any connection, that change is seen.
    pub least: Option<Lsn>,
    /// Off the primary: if no member has a sound copy of the key's newest value, the one before will do.
    pub older: bool,
    /// Leave the value out, and return it empty: for large values of which only the revision matters.
    pub no_value: bool,
}

/// What a get has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// The key's value and revision. `None`: the key is absent, or only an older value can be had.
    pub entry: Option<Entry>,
    /// A value that the key had some time before the one that cannot be had; which revision it had is not known. Only where
    /// [`Get::older`] allows it.
    pub older: Option<Arc<[u8]>>,
    /// The entry, or that there is none, is the state after this record or after a later one. A get of another connection sees
    /// nothing older if it asks for this [`least`](Get::least) record. `None` with an older value.
    pub as_of: Option<Lsn>,
    /// What was acknowledged in the last 300 ms may be missing, or nobody knows how much. Never at the primary.
    pub stale: bool,
}

impl Get {
    /// Asks for this key.
    pub(crate) fn request<'k>(&self, key: &'k [u8]) -> Result<Request<'k>> {
        let key = Key::new(key).map_err(|bad| match bad.0 {
            0 => Error::Misuse("an empty key: a key has at least one byte"),
            _ => Error::TooLarge { message: bad.to_string() },
        })?;
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(self.fresh, GET_FRESH) | flag(self.older, GET_OLDER) | flag(self.no_value, GET_NO_VALUE);
        Ok(Request::Get { key, least: self.least.unwrap_or_default().0, flags })
    }
}

impl Got {
    /// What a `Value` says.
    pub(crate) fn new(revision: Option<Revision>, as_of: Lsn, value: &[u8], older: bool, stale: bool) -> Got {
        Got {
            entry: revision.map(|revision| Entry { value: value.into(), revision }),
            older: older.then(|| value.into()),
            as_of: (!older).then_some(as_of),
            stale,
        }
    }
}
