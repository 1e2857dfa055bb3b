//! What goes into a promotion and what comes out of it.
//!
//! Used by the [`Promotion`](super::Promotion), its executors in the sidecar and the simulator, and their tests.

use crate::backup::Request;
use crate::config::{Configuration, MemberRef, Swap, SwapOutcome};
use crate::ids::{Epoch, GroupName, LogId, Lsn, MemberId, SegmentId};
use crate::layout::{Closure, SegmentIdentity};
use crate::recovery::{Damage, Reference};
use crate::rpc::{Caller, CloseRequest, CopyReport, DropRequest, Failure, FenceRequest, Inventory, TrimRequest};

/// What happens to a promotion.
#[derive(Clone, Debug)]
pub enum Input {
    /// Answer to [`Output::ReadConfig`]; the error is for people.
    Read(Result<Option<Configuration>, String>),
    /// Answer to [`Output::Survey`]: every backup that answered.
    Surveyed(Vec<(MemberRef, Inventory)>),
    /// Answer to [`Output::Swap`].
    Swapped(SwapOutcome),
    /// Answer to [`Output::Fence`].
    Fenced(Epoch, MemberId, Result<Inventory, Failure>),
    /// Answer to [`Output::Trim`], [`Output::Drop`], [`Output::Close`] and [`Output::Install`].
    Repaired(Epoch, Task, Result<(), Failure>),
    /// Time passes; expected every few milliseconds.
    Tick,
}

/// One task at one member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Record that the beginning of the log is trimmed.
    Trim(MemberId),
    /// Drop what is not part of the log.
    Drop(MemberId),
    /// Close the copy that is there.
    Close(MemberId, SegmentId),
    /// Copy the closed image from another member.
    Install(MemberId, SegmentId),
}

impl Task {
    /// The member that does such work piece by piece.
    pub(super) fn ordered(&self) -> Option<&MemberId> {
        match self {
            Task::Drop(_) => None,
            Task::Trim(member) | Task::Close(member, _) | Task::Install(member, _) => Some(member),
        }
    }

    /// The member that is repaired by it.
    pub fn member(&self) -> &MemberId {
        match self {
            Task::Trim(member) | Task::Drop(member) | Task::Close(member, _) | Task::Install(member, _) => member,
        }
    }
}

/// What a promotion wants done. Answers may come in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read the config store.
    ReadConfig,
    /// Ask all known backups what they hold, without changing anything: their identities, because there is no configuration
    /// yet; or as many copies as a page has behind this segment, because no member has a sound copy of the next one.
    Survey(Option<SegmentId>),
    /// Compare-and-swap. After [`SwapOutcome::Unknown`] the same swap is repeated.
    Swap(Swap),
    /// Fence this member under the configuration's epoch.
    Fence(Configuration, MemberRef),
    /// Inform this member that records below are no longer needed.
    Trim(Configuration, MemberRef, Lsn),
    /// Drop these copies.
    Drop(Configuration, MemberRef, Vec<CopyReport>),
    /// Close this copy where the recovered log says.
    Close(Configuration, MemberRef, SegmentIdentity, Closure),
    /// Copy a closed segment to this member from one of the holders, or from any backup if none of them can serve it.
    Install(Configuration, MemberRef, SegmentIdentity, Closure, Vec<MemberId>),
    /// Something is missing that only time or an administrator can supply; the promotion keeps trying.
    Waiting(Waiting),
    /// This sidecar is primary: every member of the configuration holds the recovered log. The last output.
    Won(Configuration, Reference),
    /// Another sidecar has claimed a newer epoch. The last output.
    Lost(Epoch),
    /// The group keeps something else than this candidate's rules say: it is not this candidate's to lead.
    OtherKind(Configuration),
}

impl Output {
    /// The task that the output gives a member, if it does: its answer is [`Input::Repaired`].
    pub fn task(&self) -> Option<(Epoch, Task)> {
        Some(match self {
            Output::Trim(config, member, _) => (config.epoch, Task::Trim(member.id.clone())),
            Output::Drop(config, member, _) => (config.epoch, Task::Drop(member.id.clone())),
            Output::Close(config, member, identity, _) => {
                (config.epoch, Task::Close(member.id.clone(), identity.segment))
            }
            Output::Install(config, member, identity, ..) => {
                (config.epoch, Task::Install(member.id.clone(), identity.segment))
            }
            _ => return None,
        })
    }

    /// The request to a member, if the output is carried out by one request.
    pub fn request(&self, group: GroupName) -> Option<(&MemberRef, Request)> {
        let caller = |config: &Configuration, group| Caller { group, log: config.log, epoch: config.epoch };
        Some(match *self {
            Output::Fence(ref config, ref member) => {
                (member, Request::Fence(FenceRequest::of(group, config, &member.id)))
            }
            Output::Trim(ref config, ref member, below) => {
                (member, Request::Trim(TrimRequest { caller: caller(config, group), below }))
            }
            Output::Drop(ref config, ref member, ref copies) => {
                (member, Request::Drop(DropRequest { caller: caller(config, group), copies: copies.clone() }))
            }
            Output::Close(ref config, ref member, identity, closure) => {
                (member, Request::Close(CloseRequest { caller: caller(config, group), identity, closure }))
            }
            _ => return None,
        })
    }
}

/// `1 empty backup is ready`.
fn ready(empty: u8) -> String {
    match empty {
        1 => "1 empty backup is ready".to_owned(),
        _ => format!("{empty} empty backups are ready"),
    }
}

/// What a promotion waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Waiting {
    /// The config store does not answer.
    #[error("the config store cannot be read: {0}")]
    ConfigStore(String),
    /// A new group needs empty backups.
    #[error("cannot start the group: {}, {needed} needed", ready(*empty))]
    Backups {
        /// Backups that answer and are bound to no log.
        empty: u8,
        /// Backups needed.
        needed: u8,
    },
    /// The config store is empty, but a backup holds a log.
    #[error(
        "the config store is empty, but backup {member} holds log {log}: give this sidecar the group and the config store \
         (--group, --config) of that log. Delete nothing: the folders of {member} may be the only copy. If that log's group \
         is well without {member}, start {member} with a new --pool and --flush-dir"
    )]
    StoreForgot {
        /// The backup.
        member: MemberId,
        /// The log it holds.
        log: LogId,
    },
    /// Too few members of the last set answer with their memory.
    #[error("{fenced} of the last set's members hold their log, {needed} needed; missing: {missing}")]
    Members {
        /// Members fenced.
        fenced: u8,
        /// Members needed.
        needed: u8,
        /// The members that are missing, and why.
        missing: String,
    },
    /// The fenced members' copies do not make up a whole log; a missing member may have the rest.
    #[error("the log cannot be put together yet: {0}")]
    Damage(Damage),
    /// Members answer but cannot tell where the log ends, because they have lost something or it is damaged.
    #[error(
        "damaged: {damaged}; {witnesses} of the last set's members can tell where the log ends, {needed} needed; missing: \
         {missing} (docs/runbooks/TailwindMemberDamaged.md)"
    )]
    Witnesses {
        /// Members that can.
        witnesses: u8,
        /// Members needed, as long as others may come back.
        needed: u8,
        /// The members that cannot, and why.
        damaged: String,
        /// The members that have not answered, and why.
        missing: String,
    },
    /// A member says that it has promised an epoch that is not in the config store, or is there with another claim.
    #[error(
        "the config store is older than the log: it is at epoch {epoch}, and member {member} has promised epoch {promised} to a \
         claim that the store does not know; bring the newer content back, or decide as docs/config-store.md says"
    )]
    StoreIsOlder {
        /// The store's epoch.
        epoch: Epoch,
        /// The member that says so.
        member: MemberId,
        /// The epoch that it has promised.
        promised: Epoch,
    },
}
