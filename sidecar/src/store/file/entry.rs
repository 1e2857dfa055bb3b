//! The bytes of one file of the store: a line of JSON with format and CRC, then a body of JSON that the CRC covers.
//!
//! Written and read by [`file`](super), which says what tags are for.

use serde::{Deserialize, Serialize};
use tailwind_protocol::config::Configuration;
use tailwind_protocol::ids::GroupName;

/// The format that this version writes. It reads 1 as well, where the body is the configuration and nothing else.
pub(super) const FORMAT: u32 = 2;

/// Names one file permanently: drawn at random when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tag(pub(super) u64);

/// All that files of format 1 have for a tag. There is at most one of them, since this version writes none.
const OLD: Tag = Tag(0);

/// What one file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// This file's.
    pub(super) tag: Tag,
    /// The tag of the number before, which this file replaces. None in number 0.
    pub(super) after: Option<Tag>,
    /// Whose configuration it is. None in files of earlier versions.
    #[serde(default)]
    pub(super) group: Option<GroupName>,
    /// None: this file only keeps the place of number 0, and numbered ones have the configuration.
    pub(super) configuration: Option<Configuration>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    tailwind_config: u32,
    crc32: u32,
}

/// Why bytes are no entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ConfigFileError {
    /// A newer version has written them, in this format.
    Newer(u32),
    /// They are not what was written.
    Damaged(String),
}

impl ConfigFile {
    /// As it lies in its file.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let mut body = serde_json::to_string_pretty(self)?;
        body.push('\n');
        let header = Header { tailwind_config: FORMAT, crc32: crc32fast::hash(body.as_bytes()) };
        Ok(format!("{}\n{body}", serde_json::to_string(&header)?).into_bytes())
    }

    /// What a file's bytes say.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<ConfigFile, ConfigFileError> {
        let damaged = |why: &str| ConfigFileError::Damaged(why.to_owned());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let (header, body) = text.split_once('\n').ok_or_else(|| damaged("no header"))?;
        let header: Header = serde_json::from_str(header).map_err(|_| damaged("not a header"))?;
        if header.tailwind_config > FORMAT {
            return Err(ConfigFileError::Newer(header.tailwind_config));
        }
        if crc32fast::hash(body.as_bytes()) != header.crc32 {
            return Err(damaged("its CRC does not match"));
        }
        let entry = match header.tailwind_config {
            FORMAT => serde_json::from_str(body),
            _ => serde_json::from_str(body).map(|old| ConfigFile {
                tag: OLD,
                after: None,
                group: None,
                configuration: Some(old),
            }),
        };
        entry.map_err(|error| damaged(&error.to_string()))
    }
}
