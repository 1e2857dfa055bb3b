//! The table that a group may keep in its log: how much memory, how many keys, and how much of it stays in backups' memory.
//!
//! Part of the [spec](crate::spec). The bounds are those of a sidecar's `--table` and `--table-keys`; a test of the sidecar compares
//! them.

use std::ops::RangeInclusive;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::spec::SegmentSize;

/// Fewest keys.
pub const KEYS_MIN: u32 = 1000;
/// Most keys.
pub const KEYS_MAX: u32 = 16 << 20;
/// Bytes of log for each key, if the number of keys is not given.
const BYTES_PER_KEY: u64 = 1 << 10;

/// Fewest segments of a table's log.
const SEGMENTS_MIN: u64 = 16;
/// Most bytes of it, and most with the smallest segments, of which a backup can list no more.
const MEMORY_MAX: u64 = 12 << 30;
const MEMORY_MAX_OF_SMALLEST: u64 = 7936 << 20;

/// Bytes of memory that a table may have in segments of this size. The rules say the same: [`Table`] and the spec have them.
pub fn memory_bounds(segment: SegmentSize) -> RangeInclusive<u64> {
    let most = if segment == SegmentSize::Ki64 { MEMORY_MAX_OF_SMALLEST } else { MEMORY_MAX };
    SEGMENTS_MIN * segment.bytes()..=most
}

/// The last value of each key, in place of a log that the app trims.
// Sizes are compared in MiB: 2Gi is 2048.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("int(self.memory.substring(0, self.memory.size() - 2)) * (self.memory.endsWith('Gi') ? 1024 : 1) <= 12288")
        .message("table.memory must be at most 12Gi"),
    validation = Rule::new("!has(self.resident) || int(self.resident.substring(0, self.resident.size() - 2)) * (self.resident.endsWith('Gi') ? 1024 : 1) <= int(self.memory.substring(0, self.memory.size() - 2)) * (self.memory.endsWith('Gi') ? 1024 : 1)")
        .message("table.resident must be at most table.memory: no more is used"),
    validation = Rule::new("int(self.memory.substring(0, self.memory.size() - 2)) * (self.memory.endsWith('Gi') ? 1024 : 1) >= int(oldSelf.memory.substring(0, oldSelf.memory.size() - 2)) * (oldSelf.memory.endsWith('Gi') ? 1024 : 1)")
        .message("table.memory cannot be made smaller: make a new group and put the table's keys into it"),
    validation = Rule::new("(has(self.keys) ? self.keys : int(self.memory.substring(0, self.memory.size() - 2)) * (self.memory.endsWith('Gi') ? 1048576 : 1024)) >= (has(oldSelf.keys) ? oldSelf.keys : int(oldSelf.memory.substring(0, oldSelf.memory.size() - 2)) * (oldSelf.memory.endsWith('Gi') ? 1048576 : 1024))")
        .message("table.keys cannot be made smaller: make a new group and put the table's keys into it. If it is not given, it is one for each KiB of table.memory")
)]
pub struct Table {
    /// Memory of the table's log, such as 512Mi or 2Gi: 16 segments to 12Gi. Live records, the last ones of their keys, should take
    /// half of it or less. It may grow, and cannot be made smaller. Closed segments are on the backups' disks: flushVolume has to have
    /// room for all of it. By default, they are also in the backups' memory: see resident.
    #[schemars(with = "String", length(min = 3, max = 7), regex(pattern = r"^[1-9][0-9]*(Mi|Gi)$"))]
    pub memory: TableMemory,

    /// Most keys that there may be. The sidecar of each app pod has 93 bytes of memory for each, used or not, and each backup 54. It
    /// may grow, and cannot be made smaller. One for each KiB of memory if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000, max = 16_777_216))]
    pub keys: Option<u32>,

    /// How much of each backup's memory keeps closed segments, the newest ones, such as 512Mi; 0Mi: none. Gets of what is not there
    /// wait for a disk. Apps that read from local tables need none of it. All of the table's memory if not given, but not more than
    /// 4096 buffers together with spec.buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 3, max = 7), regex(pattern = r"^(0|[1-9][0-9]*)(Mi|Gi)$"))]
    pub resident: Option<ResidentMemory>,
}

impl Table {
    /// Bytes of the table's log.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Most keys.
    pub fn keys_max(&self) -> u32 {
        let by_memory = u32::try_from(self.memory_bytes() / BYTES_PER_KEY).unwrap_or(KEYS_MAX);
        self.keys.unwrap_or(by_memory.clamp(KEYS_MIN, KEYS_MAX))
    }

    /// Bytes of closed segments that each backup keeps in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.as_ref().map_or(self.memory_bytes(), |resident| resident.bytes)
    }
}

/// An amount of memory in whole Mi or Gi, so that rules can compare it: servers before 1.29 have no quantities in rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TableMemory {
    text: String,
    bytes: u64,
}

impl TableMemory {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl TryFrom<String> for TableMemory {
    type Error = String;

    fn try_from(text: String) -> Result<TableMemory, String> {
        match bytes(&text) {
            Some(bytes) if bytes > 0 => Ok(TableMemory { text, bytes }),
            _ => Err(format!("table.memory {text:?}: must be a number with Mi or Gi, such as 512Mi or 2Gi")),
        }
    }
}

impl From<TableMemory> for String {
    fn from(memory: TableMemory) -> String {
        memory.text
    }
}

/// The same, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResidentMemory {
    text: String,
    bytes: u64,
}

impl TryFrom<String> for ResidentMemory {
    type Error = String;

    fn try_from(text: String) -> Result<ResidentMemory, String> {
        match bytes(&text) {
            Some(bytes) => Ok(ResidentMemory { text, bytes }),
            None => Err(format!("table.resident {text:?}: must be a number with Mi or Gi, such as 512Mi or 0Mi")),
        }
    }
}

impl From<ResidentMemory> for String {
    fn from(memory: ResidentMemory) -> String {
        memory.text
    }
}

fn bytes(text: &str) -> Option<u64> {
    [("Mi", 20_u32), ("Gi", 30)].into_iter().find_map(|(unit, shift)| {
        let number = text.strip_suffix(unit).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(json: &str) -> Result<Table, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn memory_is_read_and_written_as_people_write_it() {
        for (text, bytes) in [("16Mi", 16 << 20), ("2Gi", 2 << 30), ("12288Mi", 12 << 30)] {
            let memory = TableMemory::try_from(text.to_owned()).unwrap();
            assert_eq!((memory.bytes(), String::from(memory)), (bytes, text.to_owned()));
        }
        for text in ["", "Gi", "0Gi", "2G", "1.5Gi", "+2Gi", "2 Gi", "512Ki", "2147483648", "99999999999999Gi"] {
            let why = TableMemory::try_from(text.to_owned()).unwrap_err();
            assert!(why.contains("such as 512Mi or 2Gi"), "{text}: {why}");
        }
        assert!(table(r#"{"memory": 2147483648}"#).is_err());
    }

    #[test]
    fn residents_take_all_of_the_memory_unless_they_are_given() {
        let resident = |json| table(json).unwrap().resident_bytes();
        assert_eq!(resident(r#"{"memory": "2Gi"}"#), 2 << 30);
        assert_eq!(resident(r#"{"memory": "2Gi", "resident": "300Mi"}"#), 300 << 20);
        let none = table(r#"{"memory": "2Gi", "resident": "0Mi"}"#).unwrap();
        assert_eq!(none.resident_bytes(), 0);
        assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"memory":"2Gi","resident":"0Mi"}"#);
        for bad in ["0", "Mi", "-1Mi", "1Ki", "1.5Gi"] {
            let why = table(&format!(r#"{{"memory": "2Gi", "resident": "{bad}"}}"#)).unwrap_err();
            assert!(why.contains("such as 512Mi or 0Mi"), "{bad}: {why}");
        }
    }

    #[test]
    fn keys_follow_from_the_memory_unless_they_are_given() {
        let keys = |json| table(json).unwrap().keys_max();
        assert_eq!(keys(r#"{"memory": "2Gi"}"#), 2 << 20);
        assert_eq!(keys(r#"{"memory": "1Mi"}"#), 1024);
        assert_eq!(keys(r#"{"memory": "2Gi", "keys": 5000}"#), 5000);
    }
}
