//! Names and numbers with a type each, so that two bare integers never sit side by side in a signature.
//!
//! Used by every other module; see the glossary in `docs/protocol.md`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Raised at every change of primary; the fencing number. The first primary runs in epoch 1; 0 means "none yet".
    Epoch(u64)
}
number! {
    /// Raised at every change of the member set, within and across epochs.
    Version(u64)
}
number! {
    /// A segment's place in its log, from 1, without gaps, across epochs.
    SegmentId(u64)
}
number! {
    /// A record's number in the log, from 1, without gaps. 0 stands before the first record.
    Lsn(u64)
}
number! {
    /// A byte's place in a segment.
    Offset(u32)
}
number! {
    /// 64 random bits that a primary draws for each segment it opens; part of the seed of the checksum chain.
    Generation(u64)
}

number! {
    /// 64 random bits that a candidate draws for each claim of an epoch, so that nobody takes another's claim for its own.
    Claim(u64)
}

/// Last epoch. The remaining numbers are headroom, so that counting on from an epoch cannot overflow.
pub const EPOCH_MAX: Epoch = Epoch(u64::MAX >> 1);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }

    /// The epoch before this one; 0 stays 0.
    #[must_use]
    pub fn before(self) -> Epoch {
        Epoch(self.0.saturating_sub(1))
    }
}

impl Version {
    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl SegmentId {
    /// The segment after this one.
    #[must_use]
    pub fn next(self) -> SegmentId {
        SegmentId(self.0 + 1)
    }
}

impl Lsn {
    /// The record after this one.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }

    /// The record before this one; 0 stays 0.
    #[must_use]
    pub fn prev(self) -> Lsn {
        Lsn(self.0.saturating_sub(1))
    }

    /// This LSN plus `records`.
    #[must_use]
    pub fn plus(self, records: u64) -> Lsn {
        Lsn(self.0 + records)
    }
}

/// A byte's place in the log: segments first, then offsets. Ordered as the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The segment.
    pub segment: SegmentId,
    /// The offset in it.
    pub offset: Offset,
}

impl Position {
    /// The place `offset` in `segment`.
    pub fn new(segment: SegmentId, offset: Offset) -> Position {
        Position { segment, offset }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

/// 128 random bits that name one log permanently. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LogId(pub u128);

/// 128 random bits that a backup draws when its memory is new. A backup that comes back with the same identity still
/// holds what it held; with another identity it has lost its buffers. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BootId(pub u128);

/// An invalid text; the message says what is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(String);

macro_rules! hex128 {
    ($name:ident, $what:literal) => {
        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
                digits
                    .then(|| u128::from_str_radix(text, 16).ok().map($name))
                    .flatten()
                    .ok_or_else(|| BadName(format!("{} `{text}`: must be 32 hexadecimal digits", $what)))
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
    };
}

hex128!(LogId, "log id");
hex128!(BootId, "boot identity");

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                check_name($what, text).map(|text| $name(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                check_name($what, &text).map(|text| $name(text.into()))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a group.
    GroupName, "group name"
}
name! {
    /// The name of a backup, one to a group.
    MemberId, "backup name"
}
name! {
    /// The name of a sidecar (primary or standby), one to a group.
    SidecarId, "sidecar name"
}

/// Longest name, as for Kubernetes object names (RFC 1123 subdomain).
pub const NAME_LENGTH_MAX: usize = 253;

fn check_name(what: &str, text: &str) -> Result<String, BadName> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
    let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    if bytes.len() <= NAME_LENGTH_MAX && bytes.iter().all(|b| good(*b)) && ends(bytes.first()) && ends(bytes.last()) {
        return Ok(text.to_owned());
    }
    Err(BadName(format!(
        "{what} `{text}`: must be 1 to {NAME_LENGTH_MAX} of a-z, 0-9, `-` and `.`, with a letter or digit at both ends"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_when_parsed() {
        assert!("db-0.east".parse::<GroupName>().is_ok());
        for bad in ["", "-a", "a-", "A", "a b", "a/b", "ü", &"a".repeat(254)] {
            let error = bad.parse::<GroupName>().unwrap_err().to_string();
            assert!(error.contains("group name"), "{error}");
        }
    }

    #[test]
    fn identities_round_trip_as_hexadecimal() {
        let id = LogId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string().parse::<LogId>().unwrap(), id);
        assert!("+0123456789abcdef001122334455667".parse::<LogId>().is_err());
    }

    #[test]
    fn positions_order_by_segment_then_offset() {
        let at = |s, o| Position::new(SegmentId(s), Offset(o));
        assert!(at(1, 9) < at(2, 0) && at(2, 0) < at(2, 1));
    }
}
