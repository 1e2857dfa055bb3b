//! Words for what happens, so that a script's output reads like prose.

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::Closure;
use tailwind_protocol::recovery::Reference;
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};
use tailwind_protocol::scan::{Stop, StopReason};

/// `records 1..3`, `record 4` or `no record`.
pub(crate) fn records(closure: &Closure) -> String {
    range(closure.first, closure.last)
}

/// `records 1..3`, `record 4` or `no record`.
pub(crate) fn range(first: Lsn, last: Lsn) -> String {
    match last.0.checked_sub(first.0) {
        Some(0) if first > Lsn(0) => format!("record {first}"),
        Some(_) if first > Lsn(0) => format!("records {first}..{last}"),
        _ => "no record".to_owned(),
    }
}

/// Where and why a scan stopped, if that is worth a word.
pub(crate) fn stopped(stop: &Stop) -> Option<String> {
    match stop.why {
        StopReason::Unwritten | StopReason::Full => None,
        why => Some(format!("stops at byte {}: {why}", stop.at)),
    }
}

fn copy(copy: &CopyReport) -> String {
    let state = match copy.state {
        CopyState::Open => "open",
        CopyState::Closed => "closed",
        CopyState::Corrupt => "corrupt",
        CopyState::Damaged => "damaged",
    };
    let (segment, epoch) = (copy.identity.segment, copy.identity.epoch);
    format!("segment {segment} of epoch {epoch}, {state}, {}", records(&copy.closure))
}

/// What a backup holds.
pub(crate) fn inventory(inventory: &Inventory) -> String {
    // Buffers that were lent ahead and never got a record are left out.
    let copies: Vec<String> = inventory.copies.iter().filter(|copy| copy.closure.records() > 0).map(copy).collect();
    let trimmed =
        if inventory.trimmed > Lsn(1) { format!(", trimmed below {}", inventory.trimmed) } else { String::new() };
    let holds = if copies.is_empty() { "no record".to_owned() } else { copies.join("; ") };
    format!("{}, promised to epoch {}{trimmed}, lists {holds}", inventory.member, inventory.promised)
}

/// The recovered log.
pub(crate) fn reference(reference: &Reference) -> String {
    let first = reference.segments.first().map_or(Lsn(0), |segment| segment.closure.first);
    range(first, reference.last())
}

/// Names with spaces between.
pub(crate) fn names<'a, T: std::fmt::Display + 'a>(names: impl IntoIterator<Item = &'a T>) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
}

/// A payload, without the padding that made it large.
pub(crate) fn payload(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let short: String = text.trim_end_matches('.').chars().take(12).collect();
    match bytes.len() - short.len() {
        0 => format!("{short:?}"),
        _ => format!("{short:?} ({} bytes)", bytes.len()),
    }
}
