//! The operations in the body of an `Apply`.
//!
//! Part of [`socket`](super). What they mean, and what the primary makes of them, is in
//! [`table::request`](crate::table::request).
//!
//! ```text
//!  0      1 put, 2 delete, 3 copy, 4 require
//!  1      flag 1: only if
//!  2..4   length of the key
//!  4..8   length of what follows the key: of a put its value, of a copy the key of its source
//!  8..16  revision that the key must have; 0: it must be absent, or, without the flag, any will do
//! 16..    key, then value or source
//! ```
//! Nothing follows the key of the others. A `require` has no flag.

use std::fmt;

use crate::table::record::{BadKey, BadValue, Key, Revision, Value};
use crate::table::request::{Apply, BadApply, Expected, OPERATIONS_MAX, Operation, Written};

/// Bytes of an operation before its key.
pub const OPERATION_HEADER_SIZE: usize = 16;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COPY: u8 = 3;
const REQUIRE: u8 = 4;
/// Flag: only if the key is what the revision says.
const ONLY_IF: u8 = 1;

/// Up to so many operations, most requests, need 448 bytes of the stack to be judged; more of them 14 KiB.
const FEW: usize = 8;

/// A run of operations, checked as a whole when decoded: 1 to [`OPERATIONS_MAX`], well-formed each and together. Only a value
/// may still be longer than a table takes: that is refused as too large, and the connection lives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Operations<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// What is wrong with the operations of an `Apply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOperations {
    /// One of them, counted from 0.
    #[error("operation {operation}: {why}")]
    One {
        /// Its number.
        operation: u16,
        /// What is wrong with it.
        why: BadOperation,
    },
    /// All of them together.
    #[error(transparent)]
    Together(#[from] BadApply),
    /// More bytes than they have.
    #[error("bytes left over after the last operation")]
    LeftOver,
}

/// What is wrong with one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOperation {
    /// The body ends within it.
    #[error("cut off")]
    CutOff,
    /// It is of a later version.
    #[error("unknown kind {0}")]
    Kind(u8),
    /// The length of the key that a copy takes its value from.
    #[error("source: {0}")]
    Source(BadKey),
    /// Flags of a later version, or one that does not belong to the kind.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// The length of its key.
    #[error(transparent)]
    Key(#[from] BadKey),
    /// A value where there can be none.
    #[error("a value, which only a put has")]
    Value,
    /// The condition would not be judged.
    #[error("a revision without the flag `only if`")]
    Revision,
}

/// A value that no table takes, in operations that are well-formed. To be refused as too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {operation}: {value}")]
pub struct LargeValue {
    /// The operation that puts it.
    pub operation: u16,
    /// Its length.
    pub value: BadValue,
}

impl<'a> Operations<'a> {
    /// Checks that `bytes` hold exactly `count` operations, which a primary could carry out in some state.
    pub fn new(count: u16, bytes: &'a [u8]) -> Result<Operations<'a>, BadOperations> {
        if !(1..=OPERATIONS_MAX).contains(&usize::from(count)) {
            return Err(BadApply::Operations(usize::from(count)).into());
        }
        let mut rest = bytes;
        for operation in 0..count {
            (_, rest) = Parts::split(rest).map_err(|why| BadOperations::One { operation, why })?;
        }
        if !rest.is_empty() {
            return Err(BadOperations::LeftOver);
        }
        let operations = Operations { count, bytes };
        // What is too large is refused as that, and then nothing else matters.
        operations.gather(|operations| Apply::new(operations).map(|_| ())).unwrap_or(Ok(()))?;
        Ok(operations)
    }

    /// Number of operations.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Their bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Acts on the request that they are. Fails if a value is longer than any table takes.
    pub fn act<R>(&self, act: impl FnOnce(&Apply<'_>) -> R) -> Result<R, LargeValue> {
        self.gather(|operations| act(&Apply::new(operations).expect("operations are checked when decoded")))
    }

    /// Lends the operations in a row. They are on the stack, because nothing here allocates for a request.
    fn gather<R>(&self, use_them: impl FnOnce(&[Operation<'_>]) -> R) -> Result<R, LargeValue> {
        if usize::from(self.count) <= FEW {
            self.gather_within::<FEW, R>(use_them)
        } else {
            self.gather_within::<OPERATIONS_MAX, R>(use_them)
        }
    }

    fn gather_within<const MOST: usize, R>(
        &self,
        use_them: impl FnOnce(&[Operation<'_>]) -> R,
    ) -> Result<R, LargeValue> {
        let mut row = [Parts::first(self.bytes).operation(0)?; MOST];
        let mut rest = self.bytes;
        for (number, place) in row.iter_mut().enumerate().take(usize::from(self.count)) {
            let parts = Parts::first(rest);
            rest = &rest[parts.size()..];
            *place = parts.operation(number as u16)?;
        }
        Ok(use_them(&row[..usize::from(self.count)]))
    }
}

impl fmt::Debug for Operations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operations({} in {} bytes)", self.count, self.bytes.len())
    }
}

/// One operation whose value may be too long.
#[derive(Clone, Copy)]
struct Parts<'a> {
    kind: u8,
    only_if: bool,
    revision: u64,
    key: Key<'a>,
    value: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Takes an operation apart, and returns the bytes behind it.
    fn split(bytes: &'a [u8]) -> Result<(Parts<'a>, &'a [u8]), BadOperation> {
        let (header, rest) = bytes.split_first_chunk::<OPERATION_HEADER_SIZE>().ok_or(BadOperation::CutOff)?;
        let [kind, flags, k0, k1, v0, v1, v2, v3, revision @ ..] = *header;
        let key = usize::from(u16::from_le_bytes([k0, k1]));
        let value = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
        let revision = u64::from_le_bytes(revision);
        match kind {
            PUT | DELETE | COPY | REQUIRE => {}
            unknown => return Err(BadOperation::Kind(unknown)),
        }
        if flags & !ONLY_IF != 0 || (kind == REQUIRE && flags != 0) {
            return Err(BadOperation::Flags(flags));
        }
        if kind != REQUIRE && flags == 0 && revision != 0 {
            return Err(BadOperation::Revision);
        }
        let (key, rest) = rest.split_at_checked(key).ok_or(BadOperation::CutOff)?;
        let (value, rest) = rest.split_at_checked(value).ok_or(BadOperation::CutOff)?;
        match kind {
            PUT => {}
            COPY => {
                Key::new(value).map_err(BadOperation::Source)?;
            }
            _ if value.is_empty() => {}
            _ => return Err(BadOperation::Value),
        }
        Ok((Parts { kind, only_if: flags & ONLY_IF != 0, revision, key: Key::new(key)?, value }, rest))
    }

    /// The first operation of bytes that are checked.
    fn first(bytes: &'a [u8]) -> Parts<'a> {
        Parts::split(bytes).expect("operations are checked when decoded").0
    }

    /// Its bytes.
    fn size(&self) -> usize {
        OPERATION_HEADER_SIZE + self.key.as_bytes().len() + self.value.len()
    }

    /// What it means, as the operation with this number.
    fn operation(self, operation: u16) -> Result<Operation<'a>, LargeValue> {
        let Parts { kind, only_if, revision, key, value } = self;
        let expected = Expected::from_number(revision);
        let written = match kind {
            REQUIRE => return Ok(Operation::Require { key, expected }),
            DELETE => Written::Nothing,
            COPY => Written::CopyOf(Key::new(value).expect("operations are checked when decoded")),
            _ => Written::Value(Value::new(value).map_err(|value| LargeValue { operation, value })?),
        };
        Ok(Operation::Write { key, written, only_if: only_if.then_some(expected) })
    }
}

/// Appends one operation's bytes to `out`.
pub fn put_operation(out: &mut Vec<u8>, operation: &Operation<'_>) {
    let (kind, value) = match operation {
        Operation::Write { written: Written::Value(value), .. } => (PUT, value.as_bytes()),
        Operation::Write { written: Written::Nothing, .. } => (DELETE, &[][..]),
        Operation::Write { written: Written::CopyOf(source), .. } => (COPY, source.as_bytes()),
        Operation::Require { .. } => (REQUIRE, &[][..]),
    };
    let only_if = matches!(operation, Operation::Write { only_if: Some(_), .. });
    let revision = match operation.condition() {
        Some(Expected::At(revision)) => Revision::number(Some(revision)),
        Some(Expected::Absent) | None => 0,
    };
    let key = operation.key().as_bytes();
    out.extend_from_slice(&[kind, if only_if { ONLY_IF } else { 0 }]);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&revision.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

pub(super) fn put_operations(out: &mut Vec<u8>, operations: &Operations<'_>) {
    out.extend_from_slice(&operations.count.to_le_bytes());
    out.extend_from_slice(&[0; 6]);
    out.extend_from_slice(operations.bytes);
}
