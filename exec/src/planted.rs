//! Bugs that a test can plant, to prove that the random programs of `tests/model` find them.
//!
//! Without the feature `planted-bugs`, which no released binary enables, [`has`] is a constant `false`. One bug for a process,
//! which its environment names: a supervisor is a process.

/// What can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What `pwrite` writes is not compared.
    RangeForgotten,
    /// A range counts as compared although its call may not have run yet.
    RangeCleanTooEarly,
    /// A sync is answered before its appends are acknowledged.
    AnsweredBeforeAck,
    /// A sync that finds nothing new does not wait for the captures of others.
    AnsweredAtOnce,
    /// A sync of a file logs the file's own names and no older ones.
    OwnNamesOnly,
    /// A removed name stays in the log.
    UnlinkLost,
    /// A file that was cut keeps its length in the log.
    LengthForgotten,
    /// A number is given to another file when its own is gone.
    NumberUsedTwice,
    /// An inode that is free again counts as the file that it was.
    InodeReused,
    /// A position that went back is taken for one that advanced.
    SeekForgotten,
    /// Nobody looks for the writers of a file that was opened.
    OpenForgotten,
    /// What a description wrote before it was closed is not compared.
    CloseForgotten,
    /// A number that now stands for another description is treated as before.
    DuplicateForgotten,
    /// A file that was opened and cut is compared before it is cut.
    CutByOpenForgotten,
    /// A file that is changed by stores is not compared.
    MapForgotten,
    /// A file that was cut by its path is not compared.
    TruncateForgotten,
    /// The log is trimmed to a state before all blocks are logged again.
    TrimmedBeforeCopied,
    /// Names are logged before the bytes that they need.
    NameBeforeBytes,
    /// A queue that was full counts as one that was not.
    OverflowIgnored,
    /// Two names that change places look like two renames.
    ExchangeForgotten,
}

impl Bug {
    /// Each of them.
    pub const ALL: &[Bug] = &[
        Bug::RangeForgotten,
        Bug::RangeCleanTooEarly,
        Bug::AnsweredBeforeAck,
        Bug::AnsweredAtOnce,
        Bug::OwnNamesOnly,
        Bug::UnlinkLost,
        Bug::LengthForgotten,
        Bug::NumberUsedTwice,
        Bug::InodeReused,
        Bug::SeekForgotten,
        Bug::OpenForgotten,
        Bug::CloseForgotten,
        Bug::DuplicateForgotten,
        Bug::CutByOpenForgotten,
        Bug::MapForgotten,
        Bug::TruncateForgotten,
        Bug::TrimmedBeforeCopied,
        Bug::NameBeforeBytes,
        Bug::OverflowIgnored,
        Bug::ExchangeForgotten,
    ];

    /// As the environment names it.
    pub fn name(self) -> &'static str {
        match self {
            Bug::RangeForgotten => "range-forgotten",
            Bug::RangeCleanTooEarly => "range-clean-too-early",
            Bug::AnsweredBeforeAck => "answered-before-ack",
            Bug::AnsweredAtOnce => "answered-at-once",
            Bug::OwnNamesOnly => "own-names-only",
            Bug::UnlinkLost => "unlink-lost",
            Bug::LengthForgotten => "length-forgotten",
            Bug::NumberUsedTwice => "number-used-twice",
            Bug::InodeReused => "inode-reused",
            Bug::SeekForgotten => "seek-forgotten",
            Bug::OpenForgotten => "open-forgotten",
            Bug::CloseForgotten => "close-forgotten",
            Bug::DuplicateForgotten => "duplicate-forgotten",
            Bug::CutByOpenForgotten => "cut-by-open-forgotten",
            Bug::MapForgotten => "map-forgotten",
            Bug::TruncateForgotten => "truncate-forgotten",
            Bug::TrimmedBeforeCopied => "trimmed-before-copied",
            Bug::NameBeforeBytes => "name-before-bytes",
            Bug::OverflowIgnored => "overflow-ignored",
            Bug::ExchangeForgotten => "exchange-forgotten",
        }
    }
}

/// True where this bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn has(bug: Bug) -> bool {
    static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("TAILWIND_EXEC_PLANTED").ok());
    planted.as_deref() == Some(bug.name())
}

/// True where this bug is planted: nowhere.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}
