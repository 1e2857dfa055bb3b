//! What is wrong with a spec: the rules of its definition, and those that need to know the server or the log's pods.
//!
//! Called by [`plan`](super) before anything else: an invalid group is left as it is.

use kube::ResourceExt;
use tailwind_crds::names::ANNOTATION_SHAPE;

use super::objects::pod::shape;
use crate::observed::Observed;

/// Sentences for the person who wrote the spec; none if all is well.
pub fn problems(observed: &Observed) -> Vec<String> {
    let group = &observed.group;
    let spec = &group.spec;
    let mut problems = tailwind_crds::problems(group, None);
    // Servers without CEL let anybody change what cannot be changed; the pods remember what it was.
    let now = shape(spec);
    let shapes = observed.backups.iter().filter_map(|pod| pod.annotations().get(ANNOTATION_SHAPE));
    if let Some(before) = shapes.into_iter().find(|before| **before != now) {
        problems.push(format!(
            "durability, transport and segmentSize cannot be changed: they are {now}, and the log was made with {before}. \
             Change them back, or make a new group and copy the log into it"
        ));
    }
    let server = observed.server;
    let by_claim = spec.rdma.as_ref().is_some_and(|rdma| rdma.resource_claim_template_name.is_some());
    if by_claim && !server.has_resource_claims() {
        problems.push(format!(
            "rdma.resourceClaimTemplateName needs Kubernetes 1.31 or later, and this is {server}: use rdma.extendedResource"
        ));
    }
    let claims_disk = spec.flush_volume.as_ref().is_some_and(|volume| volume.claim.is_some());
    if claims_disk && !server.has_ephemeral_claims() {
        problems.push(format!(
            "flushVolume.claim needs Kubernetes 1.21 or later, and this is {server}: use flushVolume.emptyDirSizeLimit"
        ));
    }
    problems
}
