//! The scenarios: what may go wrong in each, and how often; and the environments that are wrong on purpose.
//!
//! Used by [`explore`](super::explore). Each scenario is exhaustive within its budget; together they fit into a test.

/// How often each thing may still happen. Part of the state: what is spent is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Records that the apps append, both together.
    pub appends: u8,
    /// Sidecars that die.
    pub crashes: u8,
    /// Backup processes that die, between two requests or between two outputs of one, and may come back with their memory.
    pub kills: u8,
    /// Backup processes that die and come back without their memory.
    pub memory_losses: u8,
    /// Requests or answers whose sender hears nothing; the request may still arrive at any later time.
    pub silences: u8,
    /// Calls to the config store whose caller hears nothing; the call may still be carried out at any later time.
    pub unknowns: u8,
    /// Writes of which a part is visible before the rest.
    pub tears: u8,
    /// Times that a primary loses patience with members that have not lent in time.
    pub impatience: u8,
    /// Visits of the follower to members.
    pub visits: u8,
}

/// One run of the model.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name, as the command line takes it.
    pub name: &'static str,
    /// What it tries, for people.
    pub about: &'static str,
    /// What may happen in it.
    pub budget: Budget,
    /// Claims beyond this epoch are not carried out: the bound of the model.
    pub epoch_max: u64,
    /// Records after which a segment counts as full.
    pub segment_records: u64,
    /// Starts with an empty config store; otherwise with `s1` as primary of epoch 1 and both buffers lent.
    pub from_nothing: bool,
    /// Records that are acknowledged before it starts.
    pub acked: u8,
    /// The second sidecar may stand at any time, not only when the first is gone.
    pub rival: bool,
    /// Writes of one queue land in any order.
    pub reorder: bool,
    /// Every answer travels on its own. Otherwise those that only let a sidecar go on arrive as soon as they are given;
    /// the answers to fences, recruits and changes of the set travel in any case.
    pub slow_answers: bool,
    /// Completions travel on their own. Otherwise the sender learns at once that its write has landed or is refused.
    pub slow_completions: bool,
    /// How the environment lies, if it does.
    pub wrong: Wrong,
}

/// An environment that breaks what the machines rest on. The model must find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrong {
    /// It does not.
    #[default]
    Nothing,
    /// A fence is reported, but the writers are not revoked.
    FenceWithoutRevoke,
    /// A restarted backup finds the promise before the one that it had persisted last.
    PromiseForgotten,
    /// The completion of one member is reported for all.
    OneCompletionForAll,
    /// A write is reported complete before it is in the member's memory.
    CompletionBeforeLanding,
    /// The config store swaps without comparing.
    SwapWithoutCompare,
    /// The scan believes headers without their checksums.
    ScanWithoutChecksums,
    /// A board names what has been appended, acknowledged or not.
    BoardBeforeAck,
    /// A backup that has lost its memory comes back with the identity it had.
    MemoryLossUnnoticed,
}

const QUIET: Budget = Budget {
    appends: 2,
    crashes: 0,
    kills: 0,
    memory_losses: 0,
    silences: 0,
    unknowns: 0,
    tears: 0,
    impatience: 0,
    visits: 0,
};

const PLAIN: Scenario = Scenario {
    name: "plain",
    about: "one primary, nothing goes wrong",
    budget: QUIET,
    epoch_max: 2,
    segment_records: 2,
    from_nothing: false,
    acked: 0,
    rival: false,
    reorder: true,
    slow_answers: false,
    slow_completions: true,
    wrong: Wrong::Nothing,
};

/// All of them, in the order in which they run.
pub const SCENARIOS: &[Scenario] = &[
    PLAIN,
    Scenario {
        name: "birth",
        about: "two sidecars start a group at once and race for its epochs",
        budget: Budget { appends: 0, ..QUIET },
        from_nothing: true,
        rival: true,
        ..PLAIN
    },
    Scenario {
        name: "crash",
        about: "the primary dies at any moment; its writes in flight land, or land in part, or do not",
        budget: Budget { crashes: 1, tears: 1, ..QUIET },
        slow_answers: true,
        ..PLAIN
    },
    Scenario {
        name: "zombie",
        about: "a rival stands at any moment while the old primary goes on, arbitrarily late",
        budget: Budget { tears: 1, ..QUIET },
        rival: true,
        slow_answers: true,
        ..PLAIN
    },
    Scenario {
        name: "zombie rolls",
        about: "the same where each record has a segment of its own, so that segments close meanwhile",
        rival: true,
        segment_records: 1,
        ..PLAIN
    },
    Scenario {
        name: "crash rolls",
        about: "the primary dies at any moment; each record has a segment of its own",
        budget: Budget { crashes: 1, ..QUIET },
        segment_records: 1,
        ..PLAIN
    },
    Scenario {
        name: "backup restarts",
        about: "a backup's process dies at any moment and comes back with its memory; it is swapped out and in again",
        budget: Budget { kills: 1, ..QUIET },
        ..PLAIN
    },
    Scenario {
        name: "backup restarts, crash",
        about: "one record is acknowledged; then a backup restarts and the primary dies, both at any moment",
        budget: Budget { appends: 0, crashes: 1, kills: 1, ..QUIET },
        acked: 1,
        slow_completions: false,
        ..PLAIN
    },
    Scenario {
        name: "backup restarts, zombie",
        about: "one record is acknowledged; then a backup restarts and a rival stands, both at any moment",
        budget: Budget { appends: 0, kills: 1, ..QUIET },
        acked: 1,
        rival: true,
        slow_completions: false,
        ..PLAIN
    },
    Scenario {
        name: "memory lost",
        about: "a backup comes back without its memory",
        budget: Budget { memory_losses: 1, ..QUIET },
        ..PLAIN
    },
    Scenario {
        name: "memory lost, crash",
        about: "one record is acknowledged; then a backup loses its memory and the primary dies, both at any moment",
        budget: Budget { appends: 0, crashes: 1, memory_losses: 1, ..QUIET },
        acked: 1,
        slow_completions: false,
        ..PLAIN
    },
    Scenario {
        name: "silence",
        about: "a request or an answer gets lost, or the request comes late, while a rival stands at any moment",
        budget: Budget { appends: 1, silences: 1, ..QUIET },
        rival: true,
        ..PLAIN
    },
    Scenario {
        name: "unknown claim",
        about: "the config store's answer gets lost, or the swap comes late, while a rival stands at any moment",
        budget: Budget { appends: 1, unknowns: 1, ..QUIET },
        rival: true,
        ..PLAIN
    },
    Scenario {
        name: "unknown set",
        about: "the answer to a change of the set gets lost, or the change comes late",
        budget: Budget { appends: 1, kills: 1, unknowns: 1, ..QUIET },
        ..PLAIN
    },
    Scenario {
        name: "followed, crash",
        about: "a follower reads while a record is appended and the primary dies, both at any moment",
        budget: Budget { appends: 1, crashes: 1, visits: 1, ..QUIET },
        slow_completions: false,
        reorder: false,
        ..PLAIN
    },
    Scenario {
        name: "followed, zombie",
        about: "one record is acknowledged; a follower reads from both members in turn, while a rival stands at any moment",
        budget: Budget { appends: 0, visits: 2, ..QUIET },
        acked: 1,
        rival: true,
        slow_completions: false,
        reorder: false,
        ..PLAIN
    },
    Scenario {
        name: "member swapped out",
        about: "the primary loses patience with a member, swaps it out and recruits it again",
        budget: Budget { impatience: 1, ..QUIET },
        segment_records: 1,
        ..PLAIN
    },
];

impl Scenario {
    /// The scenario of this name.
    pub fn named(name: &str) -> Option<Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }

    /// The same scenario in a wrong environment.
    #[must_use]
    pub fn with(self, wrong: Wrong) -> Scenario {
        Scenario { wrong, ..self }
    }
}
