//! How much of the log a backup may keep on its flush volume.
//!
//! Called by [`pod`](super::pod), the validity of a spec and the condition `LogFits`. A kubelet evicts a pod whose emptyDir is over
//! its limit, and the volume goes with it. All members hold the same segments, so all would be evicted at once. Each backup
//! therefore has a bound below that, at which appends wait. It looks at its disk and at the limit of its pod as well.
//! <https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#resource-emphemeralstorage-consumption>

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tailwind_crds::{FlushClaim, ReplicaGroupSpec};

use super::table;
use crate::quantity;

/// The resource that a pod's emptyDirs and logs count as.
pub(crate) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// One in so many bytes stays free: a file system needs some for itself.
const MARGIN: u64 = 20;
/// As the kubelet rotates a container's logs by default: five files of 10 MiB.
const LOG_BYTES: u64 = 64 << 20;
/// Fewest segments that a backup takes as its bound (`FLUSH_SEGMENTS_MIN` of the backup).
const SEGMENTS_MIN: u64 = 6;

/// What the spec asks for where each member has a claim for its flush folder. An emptyDir counts as ephemeral storage of its pod.
pub(crate) fn claim(spec: &ReplicaGroupSpec) -> Option<&FlushClaim> {
    spec.flush_volume.as_ref()?.claim.as_ref()
}

/// Whether there is such a claim.
pub(crate) fn has_claim(spec: &ReplicaGroupSpec) -> bool {
    claim(spec).is_some()
}

/// Bytes that a backup may keep by its spec; `None` where the spec tells of no size. Then it finds a bound of its own.
pub(crate) fn bound(spec: &ReplicaGroupSpec) -> Option<u64> {
    let volume = volume_bytes(spec)?;
    // A new file of a segment is whole before the older one goes.
    Some((volume - volume / MARGIN).saturating_sub(spec.segment_size.bytes()))
}

/// Smallest volume that a backup of this group can work with. A table's log is as long as its memory, and is trimmed once what is live
/// in it has been moved to its end: where backups lend no more before that, nothing is ever trimmed again.
pub(crate) fn volume_bytes_min(spec: &ReplicaGroupSpec) -> u64 {
    let bound = (SEGMENTS_MIN + 1) * spec.segment_size.bytes() + table::flush_bytes(spec);
    (bound * MARGIN).div_ceil(MARGIN - 1) + 1
}

/// Bytes of the flush volume: what the claim, the emptyDir's limit or the container's limit of ephemeral storage says.
pub(crate) fn volume_bytes(spec: &ReplicaGroupSpec) -> Option<u64> {
    if let Some(claim) = claim(spec) {
        return Some(quantity::whole(&claim.size));
    }
    let given = given(spec.backup_resources.as_ref()).map(|bytes| quantity::whole(bytes).saturating_sub(LOG_BYTES));
    [empty_dir_bytes(spec), given].into_iter().flatten().min()
}

/// Requests and limits the storage that an emptyDir with a limit may take, unless the spec says how much: so the scheduler
/// looks for a node that has it, and under disk pressure the kubelet evicts pods first that use more than they requested.
pub(crate) fn request_storage(spec: &ReplicaGroupSpec, resources: &mut ResourceRequirements) {
    if given(spec.backup_resources.as_ref()).is_some() {
        return;
    }
    let Some(bytes) = empty_dir_bytes(spec) else { return };
    for side in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
        side.insert(EPHEMERAL_STORAGE.to_owned(), quantity::bytes(bytes + LOG_BYTES));
    }
}

fn empty_dir_bytes(spec: &ReplicaGroupSpec) -> Option<u64> {
    spec.flush_volume.as_ref()?.empty_dir_size_limit.as_ref().map(quantity::whole)
}

fn given(resources: Option<&ResourceRequirements>) -> Option<&Quantity> {
    let ResourceRequirements { requests, limits, .. } = resources?;
    [limits, requests].into_iter().flatten().find_map(|side| side.get(EPHEMERAL_STORAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> ReplicaGroupSpec {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_bound_is_below_the_volume_by_a_margin() {
        const MI: u64 = 1 << 20;
        for (text, volume) in [
            (r#"{"flushVolume": {"emptyDirSizeLimit": "1000Mi"}}"#, 1000 * MI),
            (r#"{"flushVolume": {"claim": {"size": "1000Mi"}}}"#, 1000 * MI),
            (r#"{"backupResources": {"limits": {"ephemeral-storage": "1064Mi"}}}"#, 1000 * MI),
            (r#"{"backupResources": {"requests": {"ephemeral-storage": "1064Mi"}}}"#, 1000 * MI),
        ] {
            let spec = spec(text);
            assert_eq!(volume_bytes(&spec), Some(volume), "{text}");
            assert_eq!(bound(&spec), Some(942 * MI), "{text}");
        }
        assert_eq!(bound(&spec("{}")), None);
        let both = r#"{"flushVolume": {"emptyDirSizeLimit": "1Gi"}, "backupResources": {"limits": {"ephemeral-storage": "564Mi"}}}"#;
        assert_eq!(volume_bytes(&spec(both)), Some(500 * MI));
    }

    #[test]
    fn the_smallest_volume_has_room_for_six_segments() {
        let least = volume_bytes_min(&spec("{}"));
        let of = |bytes: u64| spec(&format!(r#"{{"flushVolume": {{"emptyDirSizeLimit": "{bytes}"}}}}"#));
        assert!(bound(&of(least)).unwrap() >= 6 * spec("{}").segment_size.bytes());
        assert!(bound(&of(least - 40)).unwrap() < 6 * spec("{}").segment_size.bytes());
    }

    #[test]
    fn a_table_has_room_on_the_smallest_volume() {
        let of = |bytes: u64| {
            spec(&format!(r#"{{"table": {{"memory": "1Gi"}}, "flushVolume": {{"emptyDirSizeLimit": "{bytes}"}}}}"#))
        };
        let needed = (1 << 30) + (64 << 20) + 6 * (8 << 20);
        let least = volume_bytes_min(&of(0));
        assert!(bound(&of(least)).unwrap() >= needed);
        assert!(bound(&of(least - 40)).unwrap() < needed);
    }
}
