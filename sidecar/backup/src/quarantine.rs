//! Files in quarantine: copies that are not part of the log. Their names, and which of them a folder has.
//!
//! Named by [`disk`](crate::disk), which never reads, writes over or deletes them; listed for administrators, who alone release
//! them.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use tailwind_protocol::ids::{Epoch, Generation, SegmentId};
use tailwind_protocol::layout::{Sealed, SegmentIdentity};

/// How names of files in quarantine begin, those included that somebody has given a longer name.
pub const PREFIX: &str = "quarantined-";

/// The name of a file in quarantine: `quarantined-SEGMENT.epoch-E.GENERATION.closed` or `.open`, with `-1`, `-2` and so on
/// behind it where the name was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineName {
    /// The segment in it.
    pub segment: SegmentId,
    /// The epoch that opened it.
    pub epoch: Epoch,
    /// The generation of that opening.
    pub generation: Generation,
    /// Whether it was a closed segment's file.
    pub sealed: Sealed,
    /// How many copies of the same opening came before it; 0 for most.
    pub nth: u64,
}

impl QuarantineName {
    /// The name for a copy of this opening.
    pub fn new(identity: &SegmentIdentity, sealed: Sealed) -> QuarantineName {
        let SegmentIdentity { segment, epoch, generation, .. } = *identity;
        QuarantineName { segment, epoch, generation, sealed, nth: 0 }
    }

    /// Reads a name; `None`: it is not of a file in quarantine. No other spelling of the same is taken.
    pub fn parse(text: &str) -> Option<QuarantineName> {
        let mut parts = text.strip_prefix(PREFIX)?.split('.');
        let (segment, epoch, generation, end) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (kind, nth) = end.split_once('-').unwrap_or((end, "0"));
        let name = QuarantineName {
            segment: SegmentId(segment.parse().ok()?),
            epoch: Epoch(epoch.strip_prefix("epoch-")?.parse().ok()?),
            generation: Generation(u64::from_str_radix(generation, 16).ok()?),
            sealed: if kind == "open" { Sealed::Open } else { Sealed::Closed },
            nth: nth.parse().ok()?,
        };
        (name.to_string() == text).then_some(name)
    }
}

impl fmt::Display for QuarantineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.sealed {
            Sealed::Closed => "closed",
            Sealed::Open => "open",
        };
        let (segment, epoch, generation) = (self.segment.0, self.epoch, self.generation.0);
        write!(f, "{PREFIX}{segment:016}.epoch-{epoch}.{generation:016x}.{kind}")?;
        match self.nth {
            0 => Ok(()),
            nth => write!(f, "-{nth}"),
        }
    }
}

/// A file in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineFile {
    /// Its name.
    pub name: QuarantineName,
    /// Bytes in it.
    pub bytes: u64,
}

/// The files in quarantine in this folder, in any order. Each name there is read once, and only of these files the length.
/// Files that vanish during the listing, and those that are no regular files, are left out.
pub fn files(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<QuarantineFile>> + use<>> {
    Ok(fs::read_dir(folder)?.filter_map(|entry| entry.and_then(|entry| file(&entry)).transpose()))
}

fn file(entry: &fs::DirEntry) -> io::Result<Option<QuarantineFile>> {
    let Some(name) = entry.file_name().to_str().and_then(QuarantineName::parse) else { return Ok(None) };
    match entry.metadata() {
        Ok(metadata) => Ok(metadata.is_file().then_some(QuarantineFile { name, bytes: metadata.len() })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quarantined_files_of_one_folder_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let name = |segment: u64| format!("quarantined-{segment:016}.epoch-3.00000000000000af.closed");
        for (name, bytes) in [(name(1), 7), (name(2), 0), ("segment-0000000000000001.closed".to_owned(), 9)] {
            fs::write(folder.path().join(name), vec![0; bytes]).unwrap();
        }
        fs::create_dir(folder.path().join(name(3))).unwrap();
        std::os::unix::fs::symlink(folder.path().join(name(1)), folder.path().join(name(4))).unwrap();
        let found = files(folder.path()).unwrap().map(Result::unwrap);
        let mut found: Vec<_> = found.map(|file| (file.name.segment.0, file.bytes)).collect();
        found.sort_unstable();
        assert_eq!(found, [(1, 7), (2, 0)]);
        assert!(files(&folder.path().join("nothing")).is_err());
    }

    #[test]
    fn names_round_trip() {
        for text in [
            "quarantined-0000000000000007.epoch-3.00000000000000af.closed",
            "quarantined-0000000000000007.epoch-3.00000000000000af.open",
            "quarantined-0000000000000007.epoch-18446744073709551615.ffffffffffffffff.open-12",
        ] {
            assert_eq!(QuarantineName::parse(text).map(|name| name.to_string()).as_deref(), Some(text));
        }
    }

    #[test]
    fn other_names_are_not_quarantined_files() {
        let name = "quarantined-0000000000000007.epoch-3.00000000000000af.closed";
        for text in [
            "",
            "promise",
            "quarantine.tmp",
            "quarantined-",
            "segment-0000000000000007.closed",
            "quarantined-7.epoch-3.00000000000000af.closed",
            "quarantined-0000000000000007.epoch-03.00000000000000af.closed",
            "quarantined-0000000000000007.epoch-3.00000000000000AF.closed",
            "quarantined-0000000000000007.epoch-3.00000000000000af.aside",
            &format!("{name}-0"),
            &format!("{name}-01"),
            &format!("{name}.saved"),
            &format!("./{name}"),
            &format!("../{name}"),
            &format!("{name}/"),
            &format!("{name}\n"),
        ] {
            assert_eq!(QuarantineName::parse(text), None, "{text}");
        }
    }
}
