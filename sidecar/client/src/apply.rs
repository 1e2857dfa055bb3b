//! A request to a table, and what its answer says.
//!
//! Made by apps; [`Session`](crate::session::Session) checks and sends it. The bytes of its operations are those of
//! [`put_operation`], so they are made once.

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::socket::{BadOperations, Operations, put_operation};
use tailwind_protocol::table::record::{Key, Revision, Value};
use tailwind_protocol::table::request::{BadApply, Expected, OPERATIONS_MAX, Operation, Written};

use crate::{Error, Result};

/// A request to a table: operations of which all are carried out, or none. See [`Table`](crate::blocking::Table).
///
/// Conditions are judged against the state before the request. A key may be written once, and at least one is.
///
/// ```
/// use tailwind_client::{Apply, Revision};
///
/// # fn example(lease: Revision) -> Apply {
/// Apply::new().require(b"lease", Some(lease)).put(b"job/7", b"done").delete(b"job/6")
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Apply {
    bytes: Vec<u8>,
    operations: usize,
    writes: u16,
    /// What is wrong with the first operation that is none.
    wrong: Option<Wrong>,
}

/// Why something is no operation.
#[derive(Clone, Debug)]
enum Wrong {
    EmptyKey,
    TooLarge(String),
}

/// What an acknowledged [`Apply`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last record that it became.
    pub last: Lsn,
    writes: u16,
}

impl Apply {
    /// A request without an operation yet.
    pub fn new() -> Apply {
        Apply::default()
    }

    /// The key gets this value: 1 to 1,024 bytes, and up to 65,536.
    pub fn put(self, key: &[u8], value: &[u8]) -> Apply {
        self.write(key, Some(value), None)
    }

    /// The same, if the key has this revision, or with `None` if it is absent.
    pub fn put_if(self, key: &[u8], value: &[u8], revision: Option<Revision>) -> Apply {
        self.write(key, Some(value), Some(expected(revision)))
    }

    /// The key gets the value that another key has before the request. Nothing of the request is done if that key is absent.
    pub fn copy(self, key: &[u8], source: &[u8]) -> Apply {
        self.copy_of(key, source, None)
    }

    /// The same, if the key, not the source, has this revision, or with `None` if it is absent.
    pub fn copy_if(self, key: &[u8], source: &[u8], revision: Option<Revision>) -> Apply {
        self.copy_of(key, source, Some(expected(revision)))
    }

    /// The key is removed; it may be absent already.
    pub fn delete(self, key: &[u8]) -> Apply {
        self.write(key, None, None)
    }

    /// The same, if the key has this revision, or with `None` if it is absent.
    pub fn delete_if(self, key: &[u8], revision: Option<Revision>) -> Apply {
        self.write(key, None, Some(expected(revision)))
    }

    /// Nothing of the request is done unless the key has this revision, or with `None` is absent.
    pub fn require(mut self, key: &[u8], revision: Option<Revision>) -> Apply {
        if let Some(key) = self.key(key) {
            put_operation(&mut self.bytes, &Operation::Require { key, expected: expected(revision) });
        }
        self.operations += 1;
        self
    }

    fn copy_of(mut self, key: &[u8], source: &[u8], only_if: Option<Expected>) -> Apply {
        match self.key(source).map(Written::CopyOf) {
            Some(written) => self.add(key, written, only_if),
            None => self.add(key, Written::Nothing, only_if),
        }
    }

    fn write(mut self, key: &[u8], value: Option<&[u8]>, only_if: Option<Expected>) -> Apply {
        let written = match value.map(Value::new) {
            Some(Ok(value)) => Written::Value(value),
            Some(Err(bad)) => {
                self.refuse(Wrong::TooLarge(bad.to_string()));
                Written::Nothing
            }
            None => Written::Nothing,
        };
        self.add(key, written, only_if)
    }

    fn add(mut self, key: &[u8], written: Written<'_>, only_if: Option<Expected>) -> Apply {
        if let Some(key) = self.key(key) {
            put_operation(&mut self.bytes, &Operation::Write { key, written, only_if });
        }
        self.operations += 1;
        self.writes = self.writes.saturating_add(1);
        self
    }

    fn key<'k>(&mut self, key: &'k [u8]) -> Option<Key<'k>> {
        match Key::new(key) {
            Ok(key) => Some(key),
            Err(bad) => {
                self.refuse(if bad.0 == 0 { Wrong::EmptyKey } else { Wrong::TooLarge(bad.to_string()) });
                None
            }
        }
    }

    fn refuse(&mut self, wrong: Wrong) {
        let wrong = match wrong {
            Wrong::TooLarge(why) => Wrong::TooLarge(format!("operation {}: {why}", self.operations)),
            empty => empty,
        };
        self.wrong.get_or_insert(wrong);
    }

    /// What is sent, if a table could carry it out.
    pub(crate) fn checked(&self) -> Result<Operations<'_>> {
        match &self.wrong {
            None => {}
            Some(Wrong::EmptyKey) => return Err(Error::Misuse("an empty key: a key has at least one byte")),
            Some(Wrong::TooLarge(message)) => return Err(Error::TooLarge { message: message.clone() }),
        }
        if self.operations > OPERATIONS_MAX {
            let message = format!("apply of {} operations: the limit is {OPERATIONS_MAX}", self.operations);
            return Err(Error::TooLarge { message });
        }
        Operations::new(self.operations as u16, &self.bytes).map_err(|bad| match bad {
            BadOperations::Together(BadApply::WrittenTwice(..)) => Error::Misuse("an apply that writes a key twice"),
            BadOperations::Together(BadApply::NothingWritten | BadApply::Operations(_)) => {
                Error::Misuse("an apply that writes no key")
            }
            BadOperations::One { why, .. } => unreachable!("an operation that was just written is well-formed: {why}"),
            BadOperations::LeftOver => unreachable!("operations are counted as they are written"),
        })
    }

    /// What the request has done, if `last` is the LSN that it was acknowledged with.
    pub fn applied(&self, last: Lsn) -> Applied {
        Applied { last, writes: self.writes }
    }
}

impl AsRef<Apply> for Apply {
    fn as_ref(&self) -> &Apply {
        self
    }
}

impl Applied {
    /// The revision of the key that was put, of a request with one write.
    pub(crate) fn only(&self) -> Result<Revision> {
        self.revision(0).ok_or_else(|| Error::Protocol { what: "an ack of record 0".to_owned() })
    }

    /// The revision that the write with this number has given its key: puts, copies and deletes count from 0, a `require` does not. Of a
    /// delete, which leaves its key without one, it is its record's LSN. `None` if there is no such write.
    pub fn revision(&self, write: usize) -> Option<Revision> {
        let after = u64::from(self.writes).checked_sub(write as u64 + 1)?;
        Revision::of(Lsn(self.last.0.checked_sub(after)?))
    }

    /// [`Applied::revision`] of each write, in their order.
    pub fn revisions(&self) -> impl Iterator<Item = Revision> {
        let applied = *self;
        (0..usize::from(self.writes)).filter_map(move |write| applied.revision(write))
    }
}

fn expected(revision: Option<Revision>) -> Expected {
    revision.map_or(Expected::Absent, Expected::At)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_end_with_the_acknowledged_record() {
        let apply = Apply::new().put(b"a", b"1").require(b"b", None).delete(b"c");
        let applied = apply.applied(Lsn(9));
        assert_eq!(applied.revisions().map(Revision::lsn).collect::<Vec<_>>(), [Lsn(8), Lsn(9)]);
        assert_eq!(
            [0, 1, 2].map(|write| applied.revision(write).map(Revision::lsn)),
            [Some(Lsn(8)), Some(Lsn(9)), None]
        );
    }

    #[test]
    fn what_no_table_takes_is_not_sent() {
        let (key, value) = ([b'k'; 1025], vec![7; 65_537]);
        let too_large = [
            (Apply::new().delete(b"a").put(&key, b""), "operation 1: key of 1025 bytes: must be 1 to 1024"),
            (Apply::new().put(b"a", &value), "operation 0: value of 65537 bytes: must be at most 65536"),
            ((0..257).fold(Apply::new(), |apply, n: u16| apply.delete(&n.to_le_bytes())), "apply of 257 operations"),
        ];
        for (apply, words) in too_large {
            let error = apply.checked().unwrap_err();
            assert!(matches!(error, Error::TooLarge { .. }) && error.to_string().contains(words), "{error}");
        }
        let misused = [
            (Apply::new(), "writes no key"),
            (Apply::new().require(b"a", None), "writes no key"),
            (Apply::new().put(b"a", b"").delete(b"a"), "writes a key twice"),
            (Apply::new().put(b"", b"1").put(&key, b""), "an empty key"),
        ];
        for (apply, words) in misused {
            let error = apply.checked().unwrap_err();
            assert!(matches!(error, Error::Misuse(_)) && error.to_string().contains(words), "{error}");
        }
        let most = (0..256).fold(Apply::new(), |apply, n: u16| apply.put(&n.to_le_bytes(), b"1"));
        assert_eq!(most.checked().map(|operations| operations.count()).ok(), Some(256));
    }
}
