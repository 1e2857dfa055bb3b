//! What the group wants, where that may change while a sidecar lives.
//!
//! Fixed by options where the config store is a file; told by the `ReplicaGroup` where it is the Kubernetes API
//! ([`store`](crate::store)). Read by every role.

use tailwind_protocol::config::Kind;
use tailwind_protocol::ids::{Epoch, MemberId, SidecarId};
use tailwind_protocol::promotion::{AcceptedLoss, DiskRecovery};

/// What a sidecar that only reads says while it may not.
pub const READS_DISABLED: &str =
    "the ReplicaGroup has spec.reads: Disabled, so nobody may read here: delete this pod, or set the field to Enabled";

/// What the group wants now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredState {
    /// What the group is to keep, once it is founded. `None`: what the options of its founder say.
    pub kind: Option<Kind>,
    /// Members that the set shall have.
    pub members: u8,
    /// Members that it must have.
    pub min_in_sync: u8,
    /// Every backup that may be used: name and control endpoint.
    pub backups: Vec<(MemberId, String)>,
    /// The group is to have no primary.
    pub fenced: bool,
    /// Sidecars that only read may do so.
    pub may_read: bool,
    /// An administrator has accepted that the log may end early.
    pub accept_loss: Option<AcceptedLoss>,
    /// An administrator has ordered that this log is recovered from disks.
    pub recover_from_disk: Option<DiskRecovery>,
    /// A standby that shall take over from a primary that is well.
    pub switchover: Option<Switchover>,
}

impl DesiredState {
    /// Whether a machine that was started with the one would do the same with the other.
    pub fn wants_the_same(&self, other: &DesiredState) -> bool {
        let of = |desired: &DesiredState| {
            let by_a_person = (desired.accept_loss, desired.recover_from_disk);
            (desired.members, desired.min_in_sync, desired.fenced, by_a_person)
        };
        of(self) == of(other)
    }
}

/// Who shall take over from which epoch's primary. Once the epoch has passed it means nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switchover {
    /// The next primary.
    pub to: SidecarId,
    /// The epoch that shall end.
    pub from: Epoch,
}
