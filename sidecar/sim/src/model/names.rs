//! Names and rules of the model's group, made once.
//!
//! Used by [`step`](super::step) and [`start`](super::explore).

use tailwind_protocol::config::{Durability, Kind, PrimaryRef};
use tailwind_protocol::ids::{GroupName, LogId, MemberId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::{primary, promotion};

use super::state::{HOSTS, SIDES};

/// The log's name; the model never starts a second one.
pub(super) const LOG: LogId = LogId(1);

/// Names that everything else refers to.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) group: GroupName,
    pub(super) sidecars: [PrimaryRef; SIDES],
    pub(super) members: [MemberId; HOSTS],
}

impl Names {
    pub(super) fn new() -> Names {
        let sidecar =
            |at: usize| PrimaryRef { id: format!("s{}", at + 1).parse().expect("a good name"), control: String::new() };
        Names {
            group: "g".parse().expect("a good name"),
            sidecars: std::array::from_fn(sidecar),
            members: std::array::from_fn(|at| format!("m{}", at + 1).parse().expect("a good name")),
        }
    }
}

/// There are two moments: [`SOON`](super::act::SOON), when no patience has run out, and later, when all of it has. Pauses
/// before a retry are over at once. Patience with repairs never runs out: here every request is answered or fails.
pub(super) const PROMOTION: promotion::Rules = promotion::Rules {
    kind: Kind::Log,
    accept_loss: None,
    recover_from_disk: None,
    backups: HOSTS as u8,
    min_in_sync: 1,
    fence_wait_ms: 1,
    retry_ms: 0,
    repair_timeout_ms: u64::MAX / 2,
};

/// As for [`PROMOTION`].
pub(super) const PRIMARY: primary::Rules = primary::Rules {
    backups: HOSTS as u8,
    min_in_sync: 1,
    durability: Durability::Memory,
    segment_size: SegmentSize::MIN,
    open_timeout_ms: 1,
    recruit_interval_ms: 0,
    swap_interval_ms: 0,
};
