//! Bugs that a test can plant in the machines, to prove that the simulator's checkers find them.
//!
//! The machines call [`has`] where a bug can be planted. Without the feature `planted-bugs`, which no released binary enables,
//! it is a constant `false`, and the compiled product has no trace of it. One bug at a time, and for one thread.

macro_rules! bugs {
    ($($(#[$doc:meta])+ $bug:ident = $name:literal,)+) => {
        /// What can be planted. S1 to S21 are the safety rules of `docs/protocol.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])+ $bug,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: [Bug; [$(Bug::$bug),+].len()] = [$(Bug::$bug),+];

            /// Its name, for command lines and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name,)+
                }
            }
        }
    };
}

impl Bug {
    /// A bug of mirrors, or of who reads them: other tables do not have it.
    pub const fn is_of_mirrors(self) -> bool {
        matches!(
            self,
            Bug::EntryWithoutCrc
                | Bug::TrimWithoutGrace
                | Bug::PublishedBeforeComplete
                | Bug::RoundAfterBits
                | Bug::FillingIsLive
                | Bug::CrcMadeWhenPosted
                | Bug::AbsentWithoutPublished
                | Bug::KeyUnchecked
                | Bug::RevisionUnchecked
                | Bug::OlderAsNew
                | Bug::CleanerIgnoresMirrors
                | Bug::PartNotZeroed
                | Bug::PartsLentOnce
        )
    }

    /// A bug of tables: other groups do not have it.
    pub const fn is_of_tables(self) -> bool {
        self.is_of_mirrors()
            || matches!(
                self,
                Bug::IndexBeforeAck
                    | Bug::MoveWithoutRecheck
                    | Bug::MoveRenewsRevision
                    | Bug::TrimBeforeMoved
                    | Bug::DropsUnacked
                    | Bug::TrimBeforeSynced
                    | Bug::FoldIgnoresDeletes
                    | Bug::WarmIndexIsBelieved
                    | Bug::MismatchTellsUnacked
                    | Bug::MismatchWithoutBarrier
                    | Bug::PutsFillReserve
                    | Bug::MovesStayUnseen
                    | Bug::FreshWithoutBarrier
                    | Bug::RecordUnchecked
                    | Bug::GetNotLookedAgain
            )
    }
}

bugs! {
    /// Log bytes: the writer puts 0 where the payload's CRC belongs, and the scan does not look. Breaks S2.
    NoPayloadCrc = "no-payload-crc",
    /// Log bytes: the payload's CRC is written, but the scan does not check it. Breaks S2.
    HeaderCrcOnly = "header-crc-only",
    /// Log bytes: as in the paper, the chain knows types and lengths only and is not seeded by the segment header, and the
    /// scan checks neither LSN nor epoch. Breaks S2 wherever older bytes lie behind the end, so plant it in a world that
    /// does not zero its buffers.
    UnseededChain = "unseeded-chain",
    /// Log bytes: the scan skips an append with a bad payload and continues with the next. Breaks S2.
    ScanSkipsBadEntry = "scan-skips-bad-entry",
    /// Primary: an ack needs all required members but one. Breaks S1.
    AckAllButOne = "ack-all-but-one",
    /// Primary: while a swap is in flight an ack needs the old set only. Breaks S7.
    AckOldSetOnly = "ack-old-set-only",
    /// Primary: a lost member leaves the set at once, without a compare-and-swap. Breaks S7.
    ShrinkWithoutSwap = "shrink-without-swap",
    /// Primary: a newcomer is proposed before it holds what the group owes. Breaks S8.
    NewcomerTooEarly = "newcomer-too-early",
    /// Primary: appends never pause for a newcomer. Breaks liveness.
    NeverPauses = "never-pauses",
    /// Primary: a newcomer for which appends have paused in vain is proposed all the same. Breaks S8.
    PauseAdmits = "pause-admits",
    /// Primary: a newcomer joins without having synced what the members have. Breaks the promise of a sync.
    NewcomerUnsynced = "newcomer-unsynced",
    /// Backup: a sync is promised and answered before anything is flushed. Breaks the promise of a sync.
    SyncedBeforeFlushed = "synced-before-flushed",
    /// Primary: with too few members left it steps down, although those it lost will never be back. Breaks liveness.
    StepsDownAtOnce = "steps-down-at-once",
    /// Primary: a newcomer's segment counts when it has completed, though durability is `Flushed`. Breaks S8.
    NewcomerUnflushed = "newcomer-unflushed",
    /// Primary: a swap of unknown outcome is taken for refused and forgotten. Breaks S7.
    UnknownIsRefused = "unknown-is-refused",
    /// Backup: the inventory is sent before the older epochs are revoked, which only the next tick does. Breaks S4.
    FenceBeforeRevoke = "fence-before-revoke",
    /// Backup: a fence does not persist its promise. Breaks S5.
    EpochNotPersisted = "epoch-not-persisted",
    /// Backup: requests of an older epoch are served. Breaks S5.
    OldEpochAdmitted = "old-epoch-admitted",
    /// Promotion: drops, closes and images are requested, but the win does not wait for them. Breaks S3.
    TailExposedEarly = "tail-exposed-early",
    /// Promotion: a member whose boot identity has changed is a source. Breaks S1.
    StrangerTrusted = "stranger-trusted",
    /// Promotion: members that were not fenced are left out of the set without a compare-and-swap. Breaks S7.
    ShrinkAssumed = "shrink-assumed",
    /// Primary's log: a sidecar says where its log ends, and what is synced, without a barrier. Breaks S16.
    EndUnproved = "end-unproved",
    /// Follower: a returning client continues, although a cut has taken what was read. Breaks S15.
    CutIgnored = "cut-ignored",
    /// Backup: a damaged backup claims to be a witness. Breaks S12, and so S1.
    DamagedIsAWitness = "damaged-is-a-witness",
    /// Backup: what is owed is not written into the ledger. Breaks S12.
    LedgerNotWritten = "ledger-not-written",
    /// Backup: the ledger does not have the open segments that have files. Breaks S12.
    FileNotRecorded = "file-not-recorded",
    /// Backup: notes of flushes that are older than the ledger are believed. Breaks S12.
    OldNotesBelieved = "old-notes-believed",
    /// Backup: a file that is owed and missing is not missed. Breaks S12.
    OwedFileIgnored = "owed-file-ignored",
    /// Backup: an entry of the slot table that is zeros is free. Breaks S12.
    TableZeroIsFree = "table-zero-is-free",
    /// Backup: a buffer in use whose memory is gone is free. Breaks S12.
    LostBufferIsFree = "lost-buffer-is-free",
    /// Backup: entries and marks behind the end of a scan prove nothing. Breaks S12.
    MarksIgnored = "marks-ignored",
    /// Backup: a promise that is older than the segments is believed. Breaks S12.
    StalePromiseBelieved = "stale-promise-believed",
    /// Backup: an image is closed without a look at its bytes. Breaks S8, where a backup has pulled it from a rotten copy.
    ImageUnverified = "image-unverified",
    /// Backup: a copy whose file is gone or has rotted counts as whole while a resident holds its bytes. Breaks S12.
    ResidentIsEvidence = "resident-is-evidence",
    /// Primary: corrupt copies at a member are not repaired. There are fewer copies than reported.
    RotIsLeft = "rot-is-left",
    /// Primary: a copy is closed as soon as its segment is acknowledged, though its own writes are under way: while the set
    /// changes, an ack may come before they complete. Breaks S6.
    ClosedWhileWritten = "closed-while-written",
    /// Primary's log: an append is acknowledged as soon as anything in its segment is. Breaks S1.
    AckedBeforeWhole = "acked-before-whole",
    /// Primary's log: writes that were posted before a question count as its proof. Breaks S16.
    ProvedByOldPosts = "proved-by-old-posts",
    /// Primary's log: marks follow what was appended, acknowledged or not. Breaks S12.
    MarkedBeforeAck = "marked-before-ack",
    /// Primary's log: a sync asks for what is acknowledged, and answers for what is appended. Breaks the promise of a sync.
    SyncsAckedOnly = "syncs-acked-only",
    /// Primary's log: a board names what has been appended, acknowledged or not. Breaks S11.
    BoardBeforeAck = "board-before-ack",
    /// Primary: the beat of its boards grows with every line, whether or not barriers pass. Breaks S14.
    BeatWithoutBarrier = "beat-without-barrier",
    /// Follower: what lies behind the end that a board names is handed out too. Breaks S3.
    ReaderPastAcked = "reader-past-acked",
    /// Follower: with a board that is behind what it has handed out, it begins again there. Breaks S15.
    FollowerGoesBack = "follower-goes-back",
    /// Follower: it has caught up with a line that it has just found, however old that is. Breaks S14.
    AnyLineIsNew = "any-line-is-new",
    /// Standby: any process at the primary's address answers for it, in any role. Breaks liveness.
    BeatsInEveryRole = "beats-in-every-role",
    /// Recovery: what one member says was trimmed is trimmed, even if the others hold it. Breaks S1 beside a member that lies.
    OneTrimIsEnough = "one-trim-is-enough",
    /// Promotion: of two epochs that members name for one segment the later one counts, though the others hold what an earlier one
    /// wrote. Breaks S1 where a member lies.
    LaterEpochIsBelieved = "later-epoch-is-believed",
    /// Backup: a folder that was put back from before the last won epoch is believed. Breaks S2.
    PutBackIsBelieved = "put-back-is-believed",
    /// Promotion: what a member once said of a later epoch holds, even if it says otherwise now. Breaks liveness.
    WordIsLatched = "word-is-latched",
    /// Primary: a spare that says it has promised a later epoch deposes it. Breaks S17.
    SpareIsBelieved = "spare-is-believed",
    /// Table: the index shows a change when it is appended. A get would return what is not acknowledged.
    IndexBeforeAck = "index-before-ack",
    /// Table: an entry counts without a look at its CRC. A torn one names a record that is not its key's.
    EntryWithoutCrc = "entry-without-crc",
    /// Table: the append path moves what the cleaner offers, live or not. Breaks S18.
    MoveWithoutRecheck = "move-without-recheck",
    /// Table: a moved record gives its key a new revision. Breaks S18.
    MoveRenewsRevision = "move-renews-revision",
    /// Table: a cleaned segment is trimmed before what was moved out of it is acknowledged. Breaks S18.
    TrimBeforeMoved = "trim-before-moved",
    /// Table: a cleaned segment is trimmed once what was moved out of it is acknowledged, even if what has replaced its other
    /// records is not. Breaks S18.
    DropsUnacked = "drops-unacked",
    /// Table: a cleaned segment is trimmed once what was moved out of it is acknowledged, on disk or not. Breaks S18.
    TrimBeforeSynced = "trim-before-synced",
    /// Table: a cleaned segment is trimmed at once when no mirror names its records any more. Breaks S19.
    TrimWithoutGrace = "trim-without-grace",
    /// Table: a fold of the log ignores deletes. Breaks S18.
    FoldIgnoresDeletes = "fold-ignores-deletes",
    /// Table: what a standby has folded is kept without a look at the log that was recovered. Breaks S18.
    WarmIndexIsBelieved = "warm-index-is-believed",
    /// Primary's log: a mismatch is told although what it was judged by is not acknowledged. It may tell of what is lost.
    MismatchTellsUnacked = "mismatch-tells-unacked",
    /// Primary's log: a mismatch is told without a barrier, perhaps by a primary that is deposed. Breaks S16.
    MismatchWithoutBarrier = "mismatch-without-barrier",
    /// Primary's log: a put that fits the segment that takes appends is placed, even if that one is for moves alone. Breaks S9.
    PutsFillReserve = "puts-fill-reserve",
    /// Primary's log: a table's index does not hear that moves are acknowledged. It names records that are trimmed.
    MovesStayUnseen = "moves-stay-unseen",
    /// Primary's log: a fresh get is answered without a barrier, perhaps by a primary that is deposed. Breaks S20.
    FreshWithoutBarrier = "fresh-without-barrier",
    /// Table: the bytes that were fetched for a get are not compared with what the index says of the record. Breaks S20.
    RecordUnchecked = "record-unchecked",
    /// Primary's log: a get whose record has been fetched does not look its key up again. Breaks S20.
    GetNotLookedAgain = "get-not-looked-again",
    /// Mirror: a round is published when its lines have been posted, not when they have landed. Breaks S21.
    PublishedBeforeComplete = "published-before-complete",
    /// Mirror: a round is published up to what was acknowledged after its lines were taken. Breaks S21.
    RoundAfterBits = "round-after-bits",
    /// Mirror: a board says that a mirror shows the index when it begins to be filled. Breaks S21.
    FillingIsLive = "filling-is-live",
    /// Mirror: the CRC of an entry is made of what was copied, torn or not. Breaks S21.
    CrcMadeWhenPosted = "crc-made-when-posted",
    /// Getter: a key is said to be absent as of what was asked for, published or not. Breaks S20.
    AbsentWithoutPublished = "absent-without-published",
    /// Getter: the key in a record is not compared with the one that was asked for. Breaks S20.
    KeyUnchecked = "key-unchecked",
    /// Getter: the revision of a record is not compared with its entry's. Breaks S20.
    RevisionUnchecked = "revision-unchecked",
    /// Getter: the value before the one that cannot be read is given as the key's. Breaks S20.
    OlderAsNew = "older-as-new",
    /// Executor: a table's cleaner does not hear of mirrors. Breaks S19.
    CleanerIgnoresMirrors = "cleaner-ignores-mirrors",
    /// Environment: a part of a mirror's memory is lent as its last epoch left it. Breaks S6.
    PartNotZeroed = "part-not-zeroed",
    /// Environment: parts that are lent once more after a lost channel keep their keys and their bytes: what it had posted lands
    /// late. Breaks S21.
    PartsLentOnce = "parts-lent-once",
    /// Environment: a buffer is lent as its last user left it. Breaks S6.
    NoRezeroing = "no-rezeroing",
    /// Environment: a queue pair of a fenced epoch also serves the next one, late writes included. Breaks S4.
    QueuePairReused = "queue-pair-reused",
    /// Environment: a buffer is lent again under the key of its last lending. Breaks S4 and S6.
    RkeyReused = "rkey-reused",
    /// Environment: a backup that has lost its memory keeps its boot identity. Breaks S1.
    IdentityKept = "identity-kept",
    /// Environment: a write completes before its bytes are in the member's memory. Breaks S1.
    CompletionBeforePlacement = "completion-before-placement",
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything that this thread runs from now on, or with `None` takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// True where this bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// True where this bug is planted: nowhere.
#[cfg(not(feature = "planted-bugs"))]
pub const fn has(_: Bug) -> bool {
    false
}

/// True where any bug is planted: there a machine does not judge itself, so that the checkers must.
#[cfg(feature = "planted-bugs")]
pub(crate) fn any() -> bool {
    PLANTED.get().is_some()
}

/// True where any bug is planted: nowhere.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn any() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_variants_in_kebab_case() {
        for bug in Bug::ALL {
            let mut kebab = String::new();
            for letter in format!("{bug:?}").chars() {
                if letter.is_ascii_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(letter.to_ascii_lowercase());
            }
            assert_eq!(bug.name(), kebab);
        }
    }

    #[test]
    fn no_bug_is_planted_by_default() {
        assert!(!Bug::ALL.into_iter().any(has) && !any());
    }
}
