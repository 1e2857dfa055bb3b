//! What a table adds to a group's sidecars and backups, and how much disk these need for it.
//!
//! Called by the webhook, by [`pod`](super::pod), by [`flush`](super::flush) and by the plan. A backup has memory for residents and
//! for a mirror, so that gets in every pod are answered without its processor: see "Tables" in `docs/protocol.md`.

use tailwind_crds::ReplicaGroupSpec;
use tailwind_report::memory;

/// One in so many bytes of the table's memory is needed once more on a backup's disk: a failover ends a segment early, and moves may
/// then exceed the memory by the segments that are for them alone (`Bounds` of the protocol: 2, and up to 5.7 % of all).
const MOVES: u64 = 16;

/// Options of a sidecar.
pub(crate) fn flags(spec: &ReplicaGroupSpec) -> Vec<String> {
    let Some(table) = &spec.table else { return Vec::new() };
    vec![format!("--table={}", table.memory_bytes()), format!("--table-keys={}", table.keys_max())]
}

/// Options of a backup.
pub(crate) fn backup_flags(spec: &ReplicaGroupSpec) -> Vec<String> {
    let Some(table) = &spec.table else { return Vec::new() };
    let resident = residents(spec) * spec.segment_size.bytes();
    vec![format!("--resident={resident}"), format!("--mirror={}", memory::mirrored_index(table.keys_max().into()))]
}

/// Closed segments that a backup keeps in memory, each in a buffer beside those of the spec. There may be fewer than asked for: a
/// backup has only so many buffers.
pub(crate) fn residents(spec: &ReplicaGroupSpec) -> u64 {
    let asked = spec.table.as_ref().map_or(0, |table| table.resident_bytes() / spec.segment_size.bytes());
    asked.min(memory::BUFFERS_MAX.saturating_sub(spec.buffers.into()))
}

/// Bytes that a mirror takes of a backup's pool, in a file system with blocks of `block` bytes.
pub(crate) fn mirror_in_pool(spec: &ReplicaGroupSpec, block: u64) -> u64 {
    let mirror = spec.table.as_ref().map_or(0, |table| memory::mirrored_index(table.keys_max().into()));
    let part = memory::mirror_part(spec.segment_size.bytes());
    memory::mirror(mirror.div_ceil(part), part, block)
}

/// Bytes of memory that a backup takes beside its pool, in whole MiB, where it has residents.
pub(crate) fn loading_bytes(spec: &ReplicaGroupSpec) -> u64 {
    if residents(spec) == 0 { 0 } else { memory::loading(spec.segment_size.bytes()).next_multiple_of(1 << 20) }
}

/// Bytes of memory that a sidecar takes which may lead, in whole MiB: the index, and what it cleans. One of a reader keeps none of this.
pub(crate) fn index_bytes(spec: &ReplicaGroupSpec) -> u64 {
    let table = spec.table.as_ref();
    let bytes = table.map(|table| memory::table_index(table.keys_max().into(), spec.segment_size.bytes()));
    bytes.map_or(0, |bytes| bytes.next_multiple_of(1 << 20))
}

/// Bytes that a backup has to have room for on its disk beside six segments.
pub(crate) fn flush_bytes(spec: &ReplicaGroupSpec) -> u64 {
    spec.table.as_ref().map_or(0, |table| table.memory_bytes() + table.memory_bytes() / MOVES)
}

/// Bytes of the table's log, in whole segments: what a sidecar makes of its option.
pub(crate) fn memory_bytes(spec: &ReplicaGroupSpec) -> u64 {
    let segment = spec.segment_size.bytes();
    spec.table.as_ref().map_or(0, |table| table.memory_bytes() / segment * segment)
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use tailwind_crds::ReplicaGroup;
    use tailwind_crds::names::ANNOTATION_TEMPLATE;

    use super::*;
    use crate::objects::pod::{Creation, backup};
    use crate::options::Settings;
    use crate::quantity;

    fn spec(json: &str) -> ReplicaGroupSpec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn backups_have_residents_and_a_mirror() {
        for (json, resident, mirror) in [
            (r#"{"table": {"memory": "1Gi"}}"#, 1 << 30, 1_048_576_u64 * 10 / 6 / 8),
            (r#"{"table": {"memory": "1Gi", "keys": 6000}}"#, 1 << 30, 1249),
            (r#"{"table": {"memory": "1Gi", "keys": 6000, "resident": "100Mi"}}"#, 96 << 20, 1249),
            (r#"{"table": {"memory": "1Gi", "keys": 6000, "resident": "7Mi"}}"#, 0, 1249),
            (r#"{"table": {"memory": "1Gi", "keys": 6000, "resident": "0Mi"}}"#, 0, 1249),
            (r#"{"segmentSize": "64Ki", "buffers": 96, "table": {"memory": "1Gi", "keys": 6000}}"#, 250 << 20, 1249),
            (r#"{"buffers": 4096, "table": {"memory": "1Gi", "keys": 6000}}"#, 0, 1249),
        ] {
            let flags = [format!("--resident={resident}"), format!("--mirror={}", (mirror + 1) * 256)];
            assert_eq!(backup_flags(&spec(json)), flags, "{json}");
        }
        assert_eq!(backup_flags(&spec("{}")), Vec::<String>::new());
        assert_eq!((residents(&spec("{}")), mirror_in_pool(&spec("{}"), 4096), loading_bytes(&spec("{}"))), (0, 0, 0));
    }
    fn pod(json: &str) -> k8s_openapi::api::core::v1::Pod {
        backup(&ReplicaGroup::new("orders", spec(json)), &Settings::default(), &Creation::default())
    }

    /// What a backup may use of each kind of memory, and how large its pool may be, in MiB.
    fn memory_of(json: &str) -> [Option<u64>; 3] {
        let spec = pod(json).spec.unwrap();
        let limits = spec.containers[0].resources.clone().unwrap().limits.unwrap();
        let pool = spec.volumes.unwrap()[0].empty_dir.clone().unwrap().size_limit;
        [limits.get("memory").cloned(), limits.get("hugepages-2Mi").cloned(), pool]
            .map(|amount| amount.map(|amount| quantity::whole(&amount) >> 20))
    }

    /// Buffers of 8 MiB and a page: 18, then 32 residents, and two for a mirror of 11 MB. What is loaded has 9 MiB beside them.
    #[test]
    fn a_backup_has_memory_for_its_table() {
        let table = r#""table": {"memory": "256Mi", "keys": 200000"#;
        assert_eq!(memory_of("{}"), [Some(224 + 146), None, Some(146)]);
        assert_eq!(memory_of(&format!("{{{table}, \"resident\": \"0Mi\"}}}}")), [Some(224 + 162), None, Some(162)]);
        assert_eq!(memory_of(&format!("{{{table}}}}}")), [Some(224 + 418 + 9), None, Some(418)]);
        let rdma = r#""rdma": {"resourceClaimTemplateName": "nic", "hugepages": "2Mi"}"#;
        assert_eq!(memory_of(&format!("{{{rdma}, {table}}}}}")), [Some(224 + 9), Some(522), Some(522)]);
    }

    #[test]
    fn backups_are_replaced_for_a_table_of_another_size() {
        let made = |table: &str| pod(&format!(r#"{{"table": {table}}}"#)).annotations()[ANNOTATION_TEMPLATE].clone();
        let before = made(r#"{"memory": "1Gi", "keys": 5000}"#);
        assert_eq!(before, made(r#"{"memory": "1024Mi", "keys": 5000, "resident": "1Gi"}"#));
        for other in [
            r#"{"memory": "2Gi", "keys": 5000}"#,
            r#"{"memory": "1Gi", "keys": 6000}"#,
            r#"{"memory": "1Gi", "keys": 5000, "resident": "512Mi"}"#,
        ] {
            assert_ne!(before, made(other), "{other}");
        }
    }
}
