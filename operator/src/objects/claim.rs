//! The claim of a member's flush volume. It belongs to the member, not to its pod: it outlives the pod, and the next pod of that
//! name takes it up, with all that is on it. So a node that is deleted and comes back, or a pod that is evicted, loses no disk.
//!
//! Rendered for [`plan`](crate::plan), which also reads what is there.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use tailwind_crds::names::{ANNOTATION_ATTEMPT, ANNOTATION_TEMPLATE, CLAIM_SUFFIX, LABEL_BACKUP_OF, flush_claim};
use tailwind_crds::{ReplicaGroup, ReplicaGroupSpec, WhenRemoved};

use super::{Kind, LABEL_INSTANCE, Owned, flush, is_owned};
use crate::digest::sha256;
use crate::observed::Observed;
use crate::quantity;
use crate::server_version::ServerVersion;

/// A claim and its first pod are created one right after the other.
const MADE_TOGETHER: SignedDuration = SignedDuration::from_secs(10);

/// What is known of a member's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberClaim {
    /// The member's name, which is that of its pod.
    pub(crate) member: String,
    pub(crate) uid: String,
    /// It has a volume, so something may have been written to it.
    pub(crate) bound: bool,
    /// Its volume is gone, and with it what was written. Pods that have it mounted go on.
    lost: bool,
    /// It has been deleted, and goes when no pod uses it any more.
    pub(crate) ending: bool,
    /// It was made for another size or storage class.
    outdated: bool,
    /// It goes with its group, as spec.flushVolume.claim.whenRemoved may ask.
    pub(crate) owned: bool,
    /// How many pods before the next one have failed one after the other.
    pub(crate) attempt: u32,
    created: Option<Timestamp>,
}

impl MemberClaim {
    /// The next pod of the member can take it up.
    pub(crate) fn is_kept(&self) -> bool {
        !self.ending
    }

    /// An earlier pod than one that was created then may have written to it.
    pub(crate) fn is_older_than(&self, created: Timestamp) -> bool {
        self.has_files() && self.created.is_none_or(|claimed| claimed + MADE_TOGETHER < created)
    }

    /// True if its content outlives a pod.
    pub(crate) fn has_files(&self) -> bool {
        self.bound && !self.lost && !self.ending
    }

    /// It was made for another size or storage class than the spec asks for now.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated
    }
}

/// What is done to a claim when its pod is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStep {
    /// Which of that name.
    pub uid: String,
    /// What.
    pub end: ClaimEnd,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEnd {
    /// It is deleted with all that is on it.
    Delete,
    /// It stays, and is no longer the group's.
    Retain,
    /// The next pod of its member takes it up.
    Keep {
        /// How many pods before the next one have failed one after the other.
        attempt: u32,
    },
}

impl fmt::Display for ClaimEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClaimEnd::Delete => f.write_str("delete"),
            ClaimEnd::Retain => f.write_str("retain"),
            ClaimEnd::Keep { .. } => f.write_str("keep"),
        }
    }
}

impl Default for ClaimEnd {
    fn default() -> ClaimEnd {
        ClaimEnd::Keep { attempt: 0 }
    }
}

impl ClaimEnd {
    /// This end for the given claim.
    pub(crate) fn of(self, claim: &MemberClaim) -> ClaimStep {
        ClaimStep { uid: claim.uid.clone(), end: self }
    }
}

/// The claim of this member, if the group's backups have claims.
pub fn claim(group: &ReplicaGroup, server: ServerVersion, member: &str) -> Option<Owned> {
    let claim = flush::claim(&group.spec)?;
    let spec = template(&group.spec)?;
    let content = json!({"metadata": {"labels": {LABEL_BACKUP_OF: group.name_any()}}, "spec": spec});
    let mut owned = Owned::new(Kind::Claim, &flush_claim(member), group, server, content);
    // A claim may have no owner, or lose it.
    owned.object.labels_mut().remove(LABEL_INSTANCE);
    owned.object.annotations_mut().insert(ANNOTATION_TEMPLATE.to_owned(), hash(&group.spec)?);
    if claim.when_removed == WhenRemoved::Retain {
        owned.object.metadata.owner_references = None;
    }
    Some(owned)
}

/// What every claim of a group asks for.
pub(crate) fn template(spec: &ReplicaGroupSpec) -> Option<Value> {
    let claim = flush::claim(spec)?;
    let mut asked = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": claim.size}}});
    if let Some(class) = &claim.storage_class_name {
        asked["storageClassName"] = json!(class);
    }
    Some(asked)
}

/// Tells apart what claims are made for. The size is hashed as a number: one that is only written in another way replaces no disk.
fn hash(spec: &ReplicaGroupSpec) -> Option<String> {
    let mut asked = template(spec)?;
    let size = quantity::milli(&flush::claim(spec)?.size);
    asked["resources"]["requests"]["storage"] = json!(size.to_string());
    Some(sha256(asked.to_string().as_bytes()))
}

/// The claims of a group's members, in the order of their names.
pub(crate) fn claims(observed: &Observed) -> Vec<MemberClaim> {
    let current = hash(&observed.group.spec);
    let claims = observed.objects.iter().filter(|owned| owned.kind == Kind::Claim);
    let mut claims: Vec<MemberClaim> = claims
        .filter_map(|Owned { object, .. }| {
            let owned = is_owned(&observed.group, &object.metadata);
            // Without an owner it is one that was to be retained. A label is easily copied, so the name has to fit as well.
            let is_ours = owned || object.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
            let name = object.name_any();
            let member = name.strip_suffix(CLAIM_SUFFIX)?;
            let has_name = member.strip_prefix(&format!("{}-backup-", observed.group.name_any())).is_some();
            (is_ours && has_name).then(|| MemberClaim {
                member: member.to_owned(),
                uid: object.uid().unwrap_or_default(),
                bound: object.data["spec"]["volumeName"].as_str().is_some_and(|volume| !volume.is_empty()),
                lost: object.data["status"]["phase"] == "Lost",
                ending: object.metadata.deletion_timestamp.is_some(),
                outdated: current.is_some() && object.annotations().get(ANNOTATION_TEMPLATE) != current.as_ref(),
                owned,
                created: object.metadata.creation_timestamp.as_ref().map(|time| time.0),
                attempt: object.annotations().get(ANNOTATION_ATTEMPT).and_then(|text| text.parse().ok()).unwrap_or(0),
            })
        })
        .collect();
    claims.sort_by(|a, b| a.member.cmp(&b.member));
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_in_another_unit_is_the_same_claim() {
        let hashed = |claim: Value| {
            let spec: ReplicaGroupSpec = serde_json::from_value(json!({"flushVolume": {"claim": claim}})).unwrap();
            hash(&spec).unwrap()
        };
        let sized = |size: &str| hashed(json!({"size": size}));
        assert_eq!(sized("1Gi"), sized("1024Mi"));
        assert_eq!(sized("1Gi"), sized("1073741824"));
        assert_ne!(sized("1Gi"), sized("1G"));
        assert_ne!(sized("1Gi"), hashed(json!({"size": "1Gi", "storageClassName": "fast"})));
    }
}
