//! The story of a run: one line for each thing that somebody did.
//!
//! Written by every part of the [`World`](crate::world::World); told when a seed is replayed. Without a listener nothing
//! is formatted.

use std::fmt::Write;

use tailwind_protocol::ids::Lsn;
use tailwind_protocol::layout::Closure;
use tailwind_protocol::rpc::{CopyReport, CopyState, Inventory};

/// What happened so far, if anybody listens.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    story: Option<String>,
    /// Whether each line begins with its moment.
    timed: bool,
}

impl Trace {
    pub(crate) fn new(listening: bool) -> Trace {
        Trace { story: listening.then(String::new), timed: true }
    }

    /// The lines alone: what golden scripts compare.
    pub(crate) fn untimed() -> Trace {
        Trace { story: Some(String::new()), timed: false }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.story.is_some()
    }

    pub(crate) fn line(&mut self, now: u64, what: std::fmt::Arguments<'_>) {
        if let Some(story) = &mut self.story {
            let (ms, micros) = (now / 1000, now % 1000);
            let moment = if self.timed { format!("{ms:>7}.{micros:03} ") } else { String::new() };
            writeln!(story, "{moment}{what}").expect("a string takes everything");
        }
    }

    /// The story since the last call.
    pub(crate) fn take(&mut self) -> String {
        self.story.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// `trace!(world, "{} dies", name)`: a line of the story, formatted only if somebody listens.
macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.trace.is_on() {
            let now = $world.queue.now();
            $world.trace.line(now, format_args!($($what)*));
        }
    };
}
pub(crate) use trace;

/// `records 1..3`, `record 4` or `no record`.
pub(crate) fn records(first: Lsn, last: Lsn) -> String {
    match last.0.checked_sub(first.0) {
        Some(0) if first > Lsn(0) => format!("record {first}"),
        Some(_) if first > Lsn(0) => format!("records {first}..{last}"),
        _ => "no record".to_owned(),
    }
}

/// `records 1..3 up to 512`.
pub(crate) fn closure(closure: &Closure) -> String {
    format!("{} up to {}", records(closure.first, closure.last), closure.end)
}

/// What a backup holds.
pub(crate) fn inventory(inventory: &Inventory) -> String {
    let copy = |copy: &CopyReport| {
        let state = match copy.state {
            CopyState::Open => "open",
            CopyState::Closed => "closed",
            CopyState::Damaged => "damaged",
            CopyState::Corrupt => "corrupt",
        };
        let (segment, epoch) = (copy.identity.segment, copy.identity.epoch);
        format!("{segment} of epoch {epoch}, {state}, {}", closure(&copy.closure))
    };
    let copies: Vec<String> = inventory.copies.iter().map(copy).collect();
    let holds = if copies.is_empty() { "nothing".to_owned() } else { copies.join("; ") };
    format!("promised epoch {}, trimmed below {}, holds {holds}", inventory.promised, inventory.trimmed)
}

/// Names with spaces between.
pub(crate) fn names<'a, T: std::fmt::Display + 'a>(names: impl IntoIterator<Item = &'a T>) -> String {
    names.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}
