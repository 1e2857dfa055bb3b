//! The group's table: how full it is, and which sidecars were started for another one.
//!
//! Called by [`status`](super::status), [`conditions`](super::conditions) and [`validity`](super::validity). The primary's sidecar
//! reports how full it is; what is decided from is nothing.

use tailwind_crds::{LogKind, ReplicaGroupSpec, TableStatus};
use tailwind_report::sidecar::SidecarReport;
use tailwind_report::table::{CleanerReport, CleanerState, MirrorState, TableReport};

use super::answer::TableHasRoom;
use super::group_state::GroupState;
use super::primary::Leading;
use crate::objects::table::memory_bytes;

/// Above this the status advises to delete keys or to enlarge the table. Puts cost more than twice their bytes there: 2.3 where live
/// bytes are at this bound, 5 where they are at 100 %.
const NEARLY_FULL_PERCENT: u64 = 70;

/// What the spec asks the group to keep.
pub(super) fn kind(spec: &ReplicaGroupSpec) -> LogKind {
    if spec.table.is_some() { LogKind::Table } else { LogKind::Log }
}

/// The table as the primary reports it, or as it did last.
pub(super) fn status(state: &GroupState<'_>) -> Option<TableStatus> {
    state.observed.group.spec.table.as_ref()?;
    let reported = match &state.leading {
        Leading::Primary(SidecarReport { table: Some(table), .. }) => of_report(table),
        _ => None,
    };
    reported.or_else(|| state.before()?.table)
}

fn of_report(table: &TableReport) -> Option<TableStatus> {
    let &TableReport { keys, keys_max, live_bytes, live_bytes_max, log_bytes, memory_bytes, .. } = table;
    let (keys, live_bytes, log_bytes) = (keys?, live_bytes?, log_bytes?);
    let live = table.mirrors.iter().filter(|mirror| mirror.state == MirrorState::Live).count();
    let mirrors = (!table.mirrors.is_empty()).then_some(live as u32);
    Some(TableStatus { keys, keys_max, live_bytes, live_bytes_max, log_bytes, memory_bytes, mirrors })
}

/// Nothing where the group keeps a log.
pub(super) fn has_room(state: &GroupState<'_>) -> Option<TableHasRoom> {
    state.observed.group.spec.table.as_ref()?;
    Some(match &state.leading {
        Leading::Nobody => TableHasRoom::NoPrimary,
        Leading::Other(role) => TableHasRoom::NoReport(format!("the sidecar of the primary is {role}")),
        Leading::Unknown(why) => TableHasRoom::NoReport(why.to_string()),
        Leading::Primary(report) => room_in(report.table.as_ref()),
    })
}

fn room_in(table: Option<&TableReport>) -> TableHasRoom {
    let Some((table, status)) = table.and_then(|table| Some((table, of_report(table)?))) else {
        return TableHasRoom::NoReport("the primary's sidecar reports no table".to_owned());
    };
    if let Some(CleanerReport { state: CleanerState::NotCleaned, segment }) = table.cleaner {
        return TableHasRoom::NotCleaned(segment.unwrap_or_default());
    }
    let percent = |has: u64, max: u64| has.saturating_mul(100).checked_div(max).unwrap_or(100);
    let live = percent(status.live_bytes, status.live_bytes_max);
    let keys = percent(status.keys, status.keys_max);
    match live > NEARLY_FULL_PERCENT || keys > NEARLY_FULL_PERCENT {
        true => TableHasRoom::NearlyFull { live, keys },
        false => TableHasRoom::RoomLeft,
    }
}

/// How a sidecar's options differ from the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// It was started for a log and the group keeps a table, or the other way round.
    Kind,
    /// It was started for a table of another size.
    Size,
}

/// What a sidecar reports, compared with the spec.
pub(super) fn difference(spec: &ReplicaGroupSpec, report: &SidecarReport) -> Option<Difference> {
    match (&spec.table, &report.table) {
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => Some(Difference::Kind),
        (Some(asked), Some(has)) => {
            let is_same = has.memory_bytes == memory_bytes(spec) && has.keys_max == u64::from(asked.keys_max());
            (!is_same).then_some(Difference::Size)
        }
    }
}
