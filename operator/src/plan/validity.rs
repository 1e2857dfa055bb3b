//! What is wrong with a spec: the rules of its definition, and those that need to know the server or the log's pods.
//!
//! Called by [`plan`](super) before anything else: an invalid group is left as it is.

use std::fmt;

use kube::ResourceExt;
use strum::EnumIter;
use tailwind_crds::names::ANNOTATION_SHAPE;

use crate::objects::flush;
use crate::objects::pod::shape;
use crate::observed::Observed;
use crate::quantity;

/// A problem, for the author of the spec.
#[derive(Clone, Debug, PartialEq, Eq, EnumIter)]
pub(crate) enum Problem {
    BreaksRule(String),
    ShapeChanged { now: String, before: String },
    NoResourceClaims(String),
    FlushVolumeTooSmall { has: String, needs: String },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::BreaksRule(rule) => rule.fmt(f),
            Problem::ShapeChanged { now, before } => write!(
                f,
                "durability, transport and segmentSize cannot be changed: they are {now}, and the log was created \
                 with {before}. Change them back, or create a new group and copy the log into it"
            ),
            Problem::NoResourceClaims(server) => write!(
                f,
                "rdma.resourceClaimTemplateName needs Kubernetes 1.31 or later, and this is {server}: use \
                 rdma.extendedResource"
            ),
            Problem::FlushVolumeTooSmall { has, needs } => write!(
                f,
                "the flush volume has {has}, and a backup with segments of this size needs at least {needs}: enlarge \
                 flushVolume or backupResources' ephemeral-storage"
            ),
        }
    }
}

/// All problems; none if the spec is valid.
pub(crate) fn problems(observed: &Observed) -> Vec<Problem> {
    let (spec, server) = (&observed.group.spec, observed.server);
    let rules = tailwind_crds::problems(&observed.group, None);
    let mut problems: Vec<Problem> = rules.into_iter().map(Problem::BreaksRule).collect();
    // Servers without CEL let anybody change what cannot be changed; the pods remember what it was.
    let now = shape(spec);
    let mut shapes = observed.backups.iter().filter_map(|pod| pod.annotations().get(ANNOTATION_SHAPE));
    if let Some(before) = shapes.find(|before| **before != now) {
        problems.push(Problem::ShapeChanged { now, before: before.clone() });
    }
    let by_claim = spec.rdma.as_ref().is_some_and(|rdma| rdma.resource_claim_template_name.is_some());
    if by_claim && !server.has_resource_claims() {
        problems.push(Problem::NoResourceClaims(server.to_string()));
    }
    let needs = flush::volume_bytes_min(spec);
    if let Some(has) = flush::volume_bytes(spec).filter(|has| *has < needs) {
        let needs = needs.next_multiple_of(1 << 20);
        let [has, needs] = [has, needs].map(|bytes| quantity::bytes(bytes).0);
        problems.push(Problem::FlushVolumeTooSmall { has, needs });
    }
    problems
}
