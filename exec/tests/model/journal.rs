//! What a player writes down: one atomic append for each entry.

use std::collections::BTreeMap;

use crate::{block, read_blocks};

/// A file of the player: its own number, never used again.
pub(crate) type FileId = u64;

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leads {
    File(FileId),
    Directory,
    Link(String),
}

/// Every path of the directory.
pub(crate) type Paths = BTreeMap<String, Leads>;

/// What a sync covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Covers {
    File(FileId),
    Names,
    All,
}

/// One entry. Its place in the journal is its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A file's bytes after a step.
    Content(FileId, Vec<u8>),
    /// All paths after a step.
    Names(Paths),
    /// A sync is called now.
    Calls { sync: u64, covers: Covers },
    /// It has returned 0, and so many batches were acknowledged then.
    Returned { sync: u64, acked: u64 },
    /// Something that must not be.
    Trouble(String),
}

impl Entry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let put = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_le_bytes());
        match self {
            Entry::Content(file, bytes) => {
                out.push(1);
                put(&mut out, *file);
                out.extend_from_slice(bytes);
            }
            Entry::Names(paths) => {
                out.push(2);
                for (path, leads) in paths {
                    let line = match leads {
                        Leads::File(file) => format!("{path}\tf{file}\n"),
                        Leads::Directory => format!("{path}\td\n"),
                        Leads::Link(target) => format!("{path}\tl{target}\n"),
                    };
                    out.extend_from_slice(line.as_bytes());
                }
            }
            Entry::Calls { sync, covers } => {
                out.push(3);
                put(&mut out, *sync);
                let (kind, file) = match covers {
                    Covers::File(file) => (0, *file),
                    Covers::Names => (1, 0),
                    Covers::All => (2, 0),
                };
                put(&mut out, kind);
                put(&mut out, file);
            }
            Entry::Returned { sync, acked } => {
                out.push(4);
                put(&mut out, *sync);
                put(&mut out, *acked);
            }
            Entry::Trouble(what) => {
                out.push(5);
                out.extend_from_slice(what.as_bytes());
            }
        }
        block(&out)
    }

    fn decode(bytes: &[u8]) -> Entry {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        match bytes[0] {
            1 => Entry::Content(number(1), bytes[9..].to_vec()),
            2 => {
                let text = std::str::from_utf8(&bytes[1..]).expect("paths are text");
                let path = |line: &str| {
                    let (path, leads) = line.split_once('\t').expect("two fields");
                    let leads = match leads.split_at(1) {
                        ("f", file) => Leads::File(file.parse().expect("a number")),
                        ("d", _) => Leads::Directory,
                        (_, target) => Leads::Link(target.to_owned()),
                    };
                    (path.to_owned(), leads)
                };
                Entry::Names(text.lines().map(path).collect())
            }
            3 => Entry::Calls {
                sync: number(1),
                covers: match number(9) {
                    0 => Covers::File(number(17)),
                    1 => Covers::Names,
                    _ => Covers::All,
                },
            },
            4 => Entry::Returned { sync: number(1), acked: number(9) },
            _ => Entry::Trouble(String::from_utf8_lossy(&bytes[1..]).into_owned()),
        }
    }

    pub(crate) fn read(path: &std::path::Path) -> Vec<Entry> {
        read_blocks(path).iter().map(|bytes| Entry::decode(bytes)).collect()
    }
}
