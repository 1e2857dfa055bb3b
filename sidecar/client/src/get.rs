//! How one key of a table is read at its primary.
//!
//! Made by apps; sent by both tables as a [`Request::Get`].

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{GET_FRESH, GET_NO_VALUE, Request};
use tailwind_protocol::table::record::Key;

use crate::{Error, Result};

/// What a get asks for, beside the key: by default what is acknowledged, and on one connection nothing older than before.
/// See [`Table::get_with`](crate::blocking::Table::get_with).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// Everything that was acknowledged to anybody before the call, and proof that the sidecar was still primary then.
    pub fresh: bool,
    /// The state after this record or later. With the LSN of an acknowledged change, from any connection, that change is seen.
    pub least: Option<Lsn>,
    /// Leave the value out, and return it empty: for large values of which only the revision matters.
    pub no_value: bool,
}

impl Get {
    /// Asks for this key.
    pub(crate) fn request<'k>(&self, key: &'k [u8]) -> Result<Request<'k>> {
        let key = Key::new(key).map_err(|bad| match bad.0 {
            0 => Error::Misuse("an empty key: a key has at least one byte"),
            _ => Error::TooLarge { message: bad.to_string() },
        })?;
        let flags = if self.fresh { GET_FRESH } else { 0 } | if self.no_value { GET_NO_VALUE } else { 0 };
        Ok(Request::Get { key, least: self.least.unwrap_or_default().0, flags })
    }
}
