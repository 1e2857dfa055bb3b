//! Bugs that a test can plant in plans, to prove that the random worlds of `tests/operator/safety.rs` find them.
//!
//! Without the feature `planted-bugs`, which no released binary enables, [`has`] is a constant `false`. One bug at a time, and
//! for one thread.

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A member leaves a cordoned node although no other node is free.
    CordonIsDrain,
    /// The budget lets pods that are not ready be evicted even if no other is ready.
    EvictsUnready,
    /// A removal does not say what has to be created before it.
    LeavesUnreplaced,
    /// A backup is removed without proof that others hold what it holds.
    RemovesUnproved,
    /// A primary whose pod hangs in its end on a dead node counts as one.
    LostPrimaryLeads,
    /// A claim goes with a pod that has ended, because its files are on it.
    ClaimGoesWithPod,
    /// The budget lets one backup go while another is damaged.
    EvictsBesideDamage,
    /// The budget counts members that do not report what they hold as if they held the log.
    EvictsBesideSilence,
    /// A pod whose files are on no claim goes when its group hibernates, since others hold what it holds; and they go as well.
    HibernatesUnclaimed,
    /// A pod that is being evicted proves what it holds as long as it answers.
    TrustsEvicted,
    /// A pod that is not ready proves what it holds although it may be evicted: the budget has not been observed yet.
    TrustsUnobserved,
    /// A member leaves since it has reported that it holds nothing, before it was filled.
    TrustsOldReports,
    /// The budget lets a pod go with what is in quarantine there.
    EvictsQuarantined,
    /// The budget stays as it is while the operator removes a member.
    EvictsBesideRemoval,
    /// A pod leaves a cordoned node although it tolerates that.
    LeavesTolerated,
    /// Whether pods that are not ready may be evicted is left to admission.
    LeavesPolicyOpen,
    /// What is stored counts as what was written.
    TrustsAdmission,
    /// The set of a config store that went back counts as the one that holds the log.
    BelievesOldStore,
    /// Claims of which nobody says what is on them count as empty, if the config store knows of no log.
    ForgetsClaims,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in every plan that this thread makes from now on, or with `None` takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// True where this bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// True where this bug is planted: nowhere.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}
