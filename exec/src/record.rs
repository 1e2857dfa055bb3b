//! The bytes of the log: one record is one change of a file, or a group of changes of names.
//!
//! Made by the tracker, folded by [`crate::image`]. All integers are little-endian. A record begins with a version and a kind:
//!
//! | kind | name | body |
//! |---|---|---|
//! | 1 | begin | `u64` next number: the first record of each turn. An unfinished group of names before it is void |
//! | 2 | create | `u64` number, `u8` kind (1 file, 2 directory, 3 symbolic link), `u8` reserved, `u16` mode, then a link's target |
//! | 3 | data | `u64` file, `u64` offset, bytes |
//! | 4 | zero | `u64` file, `u64` offset, `u64` bytes |
//! | 5 | length | `u64` file, `u64` length |
//! | 6 | names | `u8` 1 if the group ends here, then changes |
//! | 7 | state | `u8` 1 if the state begins here, 2 if it ends here, 3 if both, `u64` next number, then facts |
//!
//! A change of names: `u8` kind (1 name, 2 unname, 3 mode), `u64` directory, or for a mode the number; then for a name `u64`
//! number, for both `u8` length and the name's bytes; for a mode `u16`.
//!
//! A fact of a state: `u8` kind (1 node, 2 name). A node: `u64` number, `u8` kind and `u8` reserved as in a create, `u16` mode,
//! `u64` length, then `u16` length of a link's target and the target. A name as in a change.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// The format that this build writes, and the only one that it reads.
const VERSION: u8 = 1;
/// Longest name in a directory (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link (`PATH_MAX` without its terminator).
const TARGET_MAX: usize = 4095;
/// Largest file: the kernel's offsets are signed.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of a data record before its bytes.
pub const DATA_HEADER: usize = 2 + 8 + 8;
/// Bytes of a record of a state before its facts.
pub const STATE_HEADER: usize = 2 + 1 + 8;
/// Most bytes that one fact of a state takes.
pub const FACT_MAX: usize = 1 + 8 + 1 + 1 + 2 + 8 + 2 + TARGET_MAX;
/// Most bytes that one change of names takes.
pub const CHANGE_MAX: usize = 1 + 8 + 8 + 1 + NAME_MAX;

/// What the log calls a file, a directory or a symbolic link: given once, and never again to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Number(pub u64);

impl Number {
    /// The directory that is replicated.
    pub const ROOT: Number = Number(0);
    /// The first that is given.
    pub const FIRST: Number = Number(1);
    /// Never given: the largest that a record can name, as the next one.
    pub(crate) const END: Number = Number(u64::MAX - 1);

    /// The number after this one.
    pub fn next(self) -> Number {
        Number(self.0 + 1)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A name in a directory: not empty, no longer than [`NAME_MAX`], without `/` and NUL, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// `None` if no directory can have it.
    pub fn new(bytes: &[u8]) -> Option<Name> {
        let fits = (1..=NAME_MAX).contains(&bytes.len()) && !bytes.iter().any(|&b| b == 0 || b == b'/');
        (fits && bytes != b"." && bytes != b"..").then(|| Name(bytes.into()))
    }

    /// For a moment, of what never had one.
    pub(crate) fn orphan() -> Name {
        Name(Box::from(*b"orphan"))
    }

    /// Before every name.
    pub(crate) fn least() -> Name {
        Name(Box::default())
    }

    /// For system calls.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_os_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_os_str().display(), f)
    }
}

/// What a number stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Link(Box<[u8]>),
}

/// Permission bits, with set-user-id, set-group-id and sticky.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u16);

impl Mode {
    /// The bits that are kept.
    pub const MASK: u16 = 0o7777;

    /// The mode in what `stat` returns.
    pub fn of(bits: u32) -> Mode {
        Mode(bits as u16 & Mode::MASK)
    }
}

/// One change in a group of names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The name stands for the number from now on, even if it stood for another one before.
    Name {
        /// Where.
        directory: Number,
        /// The name.
        name: Name,
        /// What it stands for.
        number: Number,
    },
    /// The name is gone.
    Unname {
        /// Where.
        directory: Number,
        /// The name.
        name: Name,
    },
    /// The mode is another one.
    Mode {
        /// The number of a file, or of a directory that is not the root.
        number: Number,
        /// The new one.
        mode: Mode,
    },
}

/// One fact of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// A number that was given and is still in use.
    Node {
        /// The number.
        number: Number,
        /// What it stands for.
        kind: Kind,
        /// Its mode.
        mode: Mode,
        /// Bytes of a file. They follow the state, but where they are zeros.
        length: u64,
    },
    /// A name.
    Name {
        /// Where.
        directory: Number,
        /// The name.
        name: Name,
        /// What it stands for.
        number: Number,
    },
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A turn begins.
    Begin {
        /// The next number that is given.
        next: Number,
    },
    /// A number is given. It has no name yet.
    Create {
        /// The number.
        number: Number,
        /// What it stands for.
        kind: Kind,
        /// Its mode.
        mode: Mode,
    },
    /// Bytes of a file, which grows if they lie beyond its end.
    Data {
        /// The file.
        file: Number,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Zeros in a file, which grows likewise.
    Zero {
        /// The file.
        file: Number,
        /// The offset of the first one.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// A file is cut or grows by zeros.
    Length {
        /// The file.
        file: Number,
        /// In bytes.
        length: u64,
    },
    /// Changes of names. All records of a group take effect together, at the one that ends it.
    Names {
        /// The group ends here.
        last: bool,
        /// In order.
        changes: Vec<Change>,
    },
    /// Everything there is, except for the bytes of files: a fold may begin here. A fold of the earlier records gives the same.
    State {
        /// The first record of a state.
        first: bool,
        /// The last one.
        last: bool,
        /// The next number that is given.
        next: Number,
        /// Nodes, then names.
        facts: Vec<Fact>,
    },
}

/// Why bytes are no record of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the version that this build knows.
    #[error("format {0}; this build reads format {VERSION}: the log belongs to another program, or to another release")]
    Version(u8),
    /// The bytes break off, or continue after the end.
    #[error("a record of kind {0} has the wrong length")]
    Size(u8),
    /// A number that stands for nothing.
    #[error("{0} is out of range")]
    Value(&'static str),
}

impl Record<'_> {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(VERSION);
        match self {
            Record::Begin { next } => {
                out.push(1);
                put(&mut out, next.0);
            }
            Record::Create { number, kind, mode } => {
                out.push(2);
                let target = put_node(&mut out, *number, kind, *mode);
                out.extend_from_slice(target);
            }
            Record::Data { file, offset, bytes } => {
                out.reserve_exact(DATA_HEADER + bytes.len());
                out.push(3);
                put(&mut out, file.0);
                put(&mut out, *offset);
                out.extend_from_slice(bytes);
            }
            Record::Zero { file, offset, length } => {
                out.push(4);
                put(&mut out, file.0);
                put(&mut out, *offset);
                put(&mut out, *length);
            }
            Record::Length { file, length } => {
                out.push(5);
                put(&mut out, file.0);
                put(&mut out, *length);
            }
            Record::Names { last, changes } => {
                out.push(6);
                out.push(u8::from(*last));
                changes.iter().for_each(|change| encode_change(&mut out, change));
            }
            Record::State { first, last, next, facts } => {
                out.push(7);
                out.push(u8::from(*first) | u8::from(*last) << 1);
                put(&mut out, next.0);
                facts.iter().for_each(|fact| encode_fact(&mut out, fact));
            }
        }
        out
    }
}

fn put(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_name(out: &mut Vec<u8>, name: &Name) {
    out.push(name.0.len() as u8);
    out.extend_from_slice(&name.0);
}

/// All of a node but a link's target, which comes last.
fn put_node<'k>(out: &mut Vec<u8>, number: Number, kind: &'k Kind, mode: Mode) -> &'k [u8] {
    put(out, number.0);
    let (kind, target): (u8, &[u8]) = match kind {
        Kind::File => (1, &[]),
        Kind::Directory => (2, &[]),
        Kind::Link(target) => (3, target),
    };
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&mode.0.to_le_bytes());
    target
}

fn encode_fact(out: &mut Vec<u8>, fact: &Fact) {
    match fact {
        Fact::Node { number, kind, mode, length } => {
            out.push(1);
            let target = put_node(out, *number, kind, *mode);
            put(out, *length);
            out.extend_from_slice(&(target.len() as u16).to_le_bytes());
            out.extend_from_slice(target);
        }
        Fact::Name { directory, name, number } => {
            out.push(2);
            put(out, directory.0);
            put(out, number.0);
            put_name(out, name);
        }
    }
}

fn encode_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Name { directory, name, number } => {
            out.push(1);
            put(out, directory.0);
            put(out, number.0);
            put_name(out, name);
        }
        Change::Unname { directory, name } => {
            out.push(2);
            put(out, directory.0);
            put_name(out, name);
        }
        Change::Mode { number, mode } => {
            out.push(3);
            put(out, number.0);
            out.extend_from_slice(&mode.0.to_le_bytes());
        }
    }
}

impl<'a> Record<'a> {
    /// Whether these bytes, which are a record, are part of a state.
    pub fn is_state(bytes: &[u8]) -> bool {
        bytes.get(1) == Some(&7)
    }

    /// The record in these bytes. Every record that it returns can be folded: names are names, offsets are within a file's
    /// bounds.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, DecodeError> {
        let [version, kind, body @ ..] = bytes else { return Err(DecodeError::Size(0)) };
        if *version != VERSION {
            return Err(DecodeError::Version(*version));
        }
        let mut body = Body { kind: *kind, rest: body };
        let record = match kind {
            1 => Record::Begin { next: body.number()? },
            2 => body.create()?,
            3 => {
                let (file, offset, bytes) = (body.number()?, body.integer()?, body.all());
                Record::Data { file, offset: within(offset, bytes.len() as u64)?, bytes }
            }
            4 => {
                let (file, offset, length) = (body.number()?, body.integer()?, body.integer()?);
                Record::Zero { file, offset: within(offset, length)?, length }
            }
            5 => {
                let (file, length) = (body.number()?, body.integer()?);
                Record::Length { file, length: within(length, 0)? }
            }
            6 => {
                let last = match body.byte()? {
                    0 => false,
                    1 => true,
                    _ => return Err(DecodeError::Value("the end of a group")),
                };
                let mut changes = Vec::new();
                while !body.rest.is_empty() {
                    changes.push(body.change()?);
                }
                Record::Names { last, changes }
            }
            7 => {
                let flags = body.byte()?;
                if flags > 3 {
                    return Err(DecodeError::Value("the bounds of a state"));
                }
                let next = body.number()?;
                let mut facts = Vec::new();
                while !body.rest.is_empty() {
                    facts.push(body.fact()?);
                }
                Record::State { first: flags & 1 != 0, last: flags & 2 != 0, next, facts }
            }
            _ => return Err(DecodeError::Value("a record's kind")),
        };
        if body.rest.is_empty() { Ok(record) } else { Err(DecodeError::Size(*kind)) }
    }
}

fn within(offset: u64, length: u64) -> Result<u64, DecodeError> {
    let end = offset.checked_add(length).filter(|&end| end <= FILE_SIZE_MAX);
    end.map(|_| offset).ok_or(DecodeError::Value("an offset"))
}

/// A kind before its target is known.
struct KindOf(u8);

impl KindOf {
    fn with(self, target: &[u8]) -> Result<Kind, DecodeError> {
        match (self.0, target) {
            (1, []) => Ok(Kind::File),
            (2, []) => Ok(Kind::Directory),
            (3, target) if (1..=TARGET_MAX).contains(&target.len()) && !target.contains(&0) => {
                Ok(Kind::Link(target.into()))
            }
            (3, _) => Err(DecodeError::Value("a link's target")),
            (1 | 2, _) => Err(DecodeError::Value("the target of what is no link")),
            _ => Err(DecodeError::Value("a file's kind")),
        }
    }
}

struct Body<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Size(self.kind))?;
        self.rest = rest;
        Ok(taken)
    }

    fn all(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    fn integer(&mut self) -> Result<u64, DecodeError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    fn number(&mut self) -> Result<Number, DecodeError> {
        // The last one has no successor.
        let number = self.integer()?;
        if number < u64::MAX { Ok(Number(number)) } else { Err(DecodeError::Value("a number")) }
    }

    fn mode(&mut self) -> Result<Mode, DecodeError> {
        let bytes = self.take(2)?;
        let mode = u16::from_le_bytes([bytes[0], bytes[1]]);
        if mode & !Mode::MASK == 0 { Ok(Mode(mode)) } else { Err(DecodeError::Value("a mode")) }
    }

    fn name(&mut self) -> Result<Name, DecodeError> {
        let length = self.byte()?;
        Name::new(self.take(usize::from(length))?).ok_or(DecodeError::Value("a name"))
    }

    fn create(&mut self) -> Result<Record<'a>, DecodeError> {
        let (number, kind, mode) = self.node()?;
        let kind = kind.with(self.all())?;
        Ok(Record::Create { number, kind, mode })
    }

    fn node(&mut self) -> Result<(Number, KindOf, Mode), DecodeError> {
        let number = self.number()?;
        let (kind, _) = (self.byte()?, self.byte()?);
        Ok((number, KindOf(kind), self.mode()?))
    }

    fn fact(&mut self) -> Result<Fact, DecodeError> {
        match self.byte()? {
            1 => {
                let (number, kind, mode) = self.node()?;
                let length = within(self.integer()?, 0)?;
                let size = self.take(2)?;
                let target = self.take(usize::from(u16::from_le_bytes([size[0], size[1]])))?;
                Ok(Fact::Node { number, kind: kind.with(target)?, mode, length })
            }
            2 => {
                let (directory, number) = (self.number()?, self.number()?);
                Ok(Fact::Name { directory, name: self.name()?, number })
            }
            _ => Err(DecodeError::Value("the kind of a fact")),
        }
    }

    fn change(&mut self) -> Result<Change, DecodeError> {
        match self.byte()? {
            1 => {
                let (directory, number) = (self.number()?, self.number()?);
                Ok(Change::Name { directory, name: self.name()?, number })
            }
            2 => Ok(Change::Unname { directory: self.number()?, name: self.name()? }),
            3 => Ok(Change::Mode { number: self.number()?, mode: self.mode()? }),
            _ => Err(DecodeError::Value("the kind of a change of names")),
        }
    }
}

#[cfg(test)]
mod tests;
