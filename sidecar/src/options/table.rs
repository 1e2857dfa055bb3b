//! Options of a group that keeps a table: its size, checked against the segment size.
//!
//! Part of the options of [`run`](crate::run). Every sidecar of the group that may lead is given them.

use clap::Args;
use tailwind_protocol::config::Kind;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_protocol::table::bounds::{BadMemory, Bounds, SEGMENTS_MIN};
use tailwind_protocol::table::hash::{Buckets, KEYS_MAX};
use tailwind_protocol::table::index::Limits;
use tailwind_runtime::exit::UsageError;

use super::{number, parse_size};

/// Fewest keys.
const KEYS_MIN: u32 = 1000;
/// Bytes of log for each key, if the number of keys is not given.
const BYTES_PER_KEY: u64 = 1 << 10;

/// Whether the group keeps a table, and of which size.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct TableOptions {
    /// Keep a table, the last value of each key, in this much log, from 16 segments to 12GiB; half of it or less in live records
    /// keeps cleaning cheap. A group keeps a log or a table from its first start on: give this to all of its sidecars, readers
    /// included, or to none. Each backup needs the memory or the disk for it
    #[arg(long, env = "TAILWIND_TABLE", value_name = "SIZE", value_parser = parse_size)]
    pub table: Option<u64>,
    /// Most keys of the table, 1000 to 16777216. A sidecar that may lead takes 93 bytes of memory for each, used or not
    /// [default: one for each KiB of --table]
    #[arg(long, env = "TAILWIND_TABLE_KEYS", value_name = "N", requires = "table")]
    #[arg(value_parser = number::<u32>(KEYS_MIN.into(), KEYS_MAX.into()))]
    pub table_keys: Option<u32>,
}

impl TableOptions {
    /// The size of the table; `None`: the group keeps a log.
    ///
    /// # Errors
    /// The log has too few or too many segments of this size.
    pub fn size(&self, segment_size: SegmentSize) -> Result<Option<TableSize>, UsageError> {
        let Some(memory) = self.table else { return Ok(None) };
        let segment = u64::from(segment_size.bytes());
        let segments = u32::try_from(memory / segment).unwrap_or(u32::MAX);
        let bounds = Bounds::new(segment_size, segments).map_err(|BadMemory { most, .. }| {
            let [least, most, memory] =
                [u64::from(SEGMENTS_MIN) * segment, u64::from(most) * segment, memory].map(readable_size);
            UsageError::new(format!(
                "--table {memory}: must be from {least} to {most} with --segment-size {segment_size}"
            ))
        })?;
        let by_memory = u32::try_from(memory / BYTES_PER_KEY).unwrap_or(KEYS_MAX).clamp(KEYS_MIN, KEYS_MAX);
        Ok(Some(TableSize { bounds, keys: self.table_keys.unwrap_or(by_memory) }))
    }
}

/// The size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// The bounds of its log.
    pub bounds: Bounds,
    /// Most keys.
    pub keys: u32,
}

impl TableSize {
    /// What a group keeps in its log, if it has this size for a table.
    pub fn kind(size: Option<&TableSize>) -> Kind {
        if size.is_some() { Kind::Table } else { Kind::Log }
    }

    /// What an index of it is made for.
    pub fn limits(&self) -> Limits {
        Limits {
            buckets: Buckets::for_keys(self.keys),
            keys_max: self.keys,
            live_bytes_max: self.bounds.live_bytes_max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(table: u64, table_keys: Option<u32>, segment: u64) -> Result<Option<TableSize>, String> {
        let options = TableOptions { table: Some(table), table_keys };
        options.size(SegmentSize::new(segment).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn without_the_option_the_group_keeps_a_log() {
        assert_eq!(TableOptions::default().size(SegmentSize::MIN).unwrap(), None);
        assert_eq!(TableSize::kind(None), Kind::Log);
    }

    #[test]
    fn a_table_has_16_segments_to_12_gib() {
        let segments = |table, segment| size(table, None, segment).unwrap().unwrap().bounds.segments();
        assert_eq!(segments(16 * (8 << 20), 8 << 20), 16);
        assert_eq!(segments(12 << 30, 8 << 20), 1536);
        assert_eq!(segments((1 << 20) + 70_000, 64 << 10), 17, "a part of a segment is none");
        assert_eq!(
            size(100 << 20, None, 8 << 20).unwrap_err(),
            "--table 100 MiB: must be from 128 MiB to 12 GiB with --segment-size 8 MiB"
        );
        assert_eq!(
            size(13 << 30, None, 64 << 20).unwrap_err(),
            "--table 13 GiB: must be from 1 GiB to 12 GiB with --segment-size 64 MiB"
        );
        assert!(size(u64::MAX, None, 64 << 10).is_err());
    }

    #[test]
    fn keys_follow_from_the_memory_unless_they_are_given() {
        let keys = |table, given| size(table, given, 64 << 10).unwrap().unwrap().keys;
        assert_eq!(keys(2 << 30, None), 2 << 20);
        assert_eq!(keys(1 << 20, None), 1024);
        assert_eq!(keys(2 << 30, Some(5000)), 5000);
        assert_eq!(size(12 << 30, None, 8 << 20).unwrap().unwrap().keys, 12 << 20);
    }
}
