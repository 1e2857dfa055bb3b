//! The mirrors, input by input: what is written when, what a board says, and what happens to a channel that is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailwind_protocol::board::mirror::{MirrorLine, PartSize};
use tailwind_protocol::config::Time;
use tailwind_protocol::ids::{Lsn, Offset, Position, SegmentId};
use tailwind_protocol::layout::SegmentSize;
use tailwind_protocol::table::acked::LineId;
use tailwind_protocol::table::changed::ChangedLines;
use tailwind_protocol::table::hash::{Buckets, HashKey};
use tailwind_protocol::table::index::{Index, Limits};
use tailwind_protocol::table::mirror::{
    IN_FLIGHT_MAX, Input, LOST_AFTER_MS, MirrorId, Mirrors, Output, REFRESH_LINES, REFRESH_MS, State,
};
use tailwind_protocol::table::place::Window;
use tailwind_protocol::table::record::{Key, Value};
use tailwind_protocol::table::request::{Apply, Operation, Written};

const A: MirrorId = MirrorId(1);
const B: MirrorId = MirrorId(2);
/// Of 100 buckets.
const LINES: u32 = 400;

struct Table {
    index: Index,
    changed: Arc<ChangedLines>,
    mirrors: Mirrors,
    last: u64,
    now: Time,
}

impl Table {
    fn new() -> Table {
        let limits = Limits { buckets: Buckets::from_number(100).unwrap(), keys_max: 1000, live_bytes_max: 1 << 30 };
        let index = Index::new(HashKey([7; 16]), limits, Window::new(SegmentSize::MIN));
        let changed = Arc::new(ChangedLines::new(index.acked_view().lines(), Lsn(0)));
        let part_size = PartSize::new(4096).unwrap();
        let mirrors = Mirrors::new(Arc::clone(index.acked_view()), Arc::clone(&changed), part_size);
        Table { index, changed, mirrors, last: 0, now: Time(0) }
    }

    /// Puts a key and acknowledges it.
    fn put(&mut self, key: &str) -> Lsn {
        let value = Written::Value(Value::new(b"").unwrap());
        let operations = [Operation::Write { key: Key::new(key.as_bytes()).unwrap(), written: value, only_if: None }];
        let staged = self.index.stage(&Apply::new(&operations).unwrap(), |_| None).unwrap();
        self.last += 1;
        staged.appended(Lsn(self.last), Position::new(SegmentId(1), Offset(72 * self.last as u32)));
        self.index.acked(Lsn(self.last), |line| self.changed.set(line));
        self.changed.acked(Lsn(self.last));
        Lsn(self.last)
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.mirrors.step(self.now, input, &mut out);
        out
    }

    /// Lends a mirror and completes everything until nothing is to be done.
    fn filled(&mut self, id: MirrorId) {
        let out = self.step(Input::Lent(id));
        self.completed(id, out);
    }

    /// What was posted to this mirror completes, and what follows from that; returns it all.
    fn completed(&mut self, id: MirrorId, mut posted: Vec<Output>) -> Vec<Output> {
        let mut all = Vec::new();
        loop {
            posted.retain(|output| matches!(output, Output::Write(of, _) | Output::Publish(of, _) if *of == id));
            if posted.is_empty() {
                return all;
            }
            let writes = posted.len() as u32;
            all.append(&mut posted);
            posted = self.step(Input::Written(id, writes));
        }
    }
}

fn lines(out: &[Output], of: MirrorId) -> Vec<LineId> {
    let line = |output: &Output| match output {
        Output::Write(id, line) if *id == of => Some(*line),
        _ => None,
    };
    out.iter().filter_map(line).collect()
}

/// What boards are told: mirror, published, live.
fn published(out: &[Output]) -> Vec<(MirrorId, u64, bool)> {
    let line = |output: &Output| match output {
        Output::Publish(id, MirrorLine { published, live, .. }) => Some((*id, published.0, *live)),
        Output::Write(..) => None,
    };
    out.iter().filter_map(line).collect()
}

/// Without what is written again in turn.
fn table() -> Table {
    let mut table = Table::new();
    table.step(Input::Tick);
    table
}

#[test]
fn memory_that_is_zero_gets_what_is_not() {
    let mut table = table();
    table.put("a");
    table.put("b");
    let out = table.step(Input::Lent(A));
    assert_eq!(published(&out), [(A, 0, false)]);
    let written = lines(&out, A);
    assert_eq!((written.len(), table.mirrors.published(table.now)), (2, Some(Lsn(0))));
    let out = table.step(Input::Written(A, 3));
    assert_eq!(published(&out), [(A, 2, true)]);
    assert_eq!(table.mirrors.published(table.now), Some(Lsn(2)));
    assert_eq!(table.mirrors.states().collect::<Vec<_>>(), [(A, State::Live, Lsn(2))]);
}

#[test]
fn a_round_is_published_when_all_of_it_has_landed() {
    let mut table = table();
    table.filled(A);
    table.put("a");
    table.put("b");
    let out = table.step(Input::Tick);
    assert_eq!((lines(&out, A).len(), published(&out)), (2, vec![]));
    let out = table.step(Input::Written(A, 1));
    assert_eq!(out, []);
    let out = table.step(Input::Written(A, 1));
    assert_eq!(published(&out), [(A, 2, true)]);
    assert_eq!(table.step(Input::Tick), []);
    assert_eq!(table.step(Input::Written(A, 1)), [], "nothing has changed");
}

#[test]
fn mirrors_rest_when_all_has_landed() {
    let mut table = table();
    assert!(table.mirrors.rests(), "there is none");
    let out = table.step(Input::Lent(A));
    assert!(!table.mirrors.rests(), "it is being filled");
    let out = table.step(Input::Written(A, out.len() as u32));
    assert_eq!((out.len(), table.mirrors.rests()), (1, false), "the board's line is under way");
    table.step(Input::Written(A, 1));
    assert!(table.mirrors.rests());
    table.put("a");
    assert!(!table.mirrors.rests(), "a line has changed");
    table.step(Input::Tick);
    table.step(Input::Lost(A));
    assert!(table.mirrors.rests(), "nothing can be done");
}

#[test]
fn what_changes_during_a_round_is_of_the_next() {
    let mut table = table();
    table.filled(A);
    table.put("a");
    let first = table.step(Input::Tick);
    table.put("a");
    table.put("a");
    assert_eq!(table.step(Input::Tick), [], "the line is on its way");
    let out = table.step(Input::Written(A, 1));
    assert_eq!(published(&out), [(A, 1, true)]);
    assert_eq!(lines(&out, A), lines(&first, A), "and again, once");
    assert_eq!(published(&table.step(Input::Written(A, 2))), [(A, 3, true)]);
}

#[test]
fn a_board_is_told_even_if_no_line_has_changed() {
    let mut table = table();
    table.filled(A);
    table.changed.acked(Lsn(9));
    table.step(Input::Tick);
    let out = table.step(Input::Tick);
    assert_eq!(published(&out), [(A, 9, true)]);
    assert_eq!(lines(&out, A), []);
}

#[test]
fn so_many_writes_are_on_their_way_and_no_more() {
    let mut table = table();
    for key in 0..500 {
        table.put(&key.to_string());
    }
    let mut out = table.step(Input::Lent(A));
    assert_eq!(out.len(), IN_FLIGHT_MAX as usize);
    let (mut seen, mut in_flight) = (BTreeSet::new(), out.len() as u32);
    loop {
        for line in lines(&out, A) {
            assert!(seen.insert(line), "{line:?} twice in a round");
        }
        if published(&out).contains(&(A, 500, true)) {
            break;
        }
        let completed = in_flight.min(7);
        out = table.step(Input::Written(A, completed));
        in_flight = in_flight - completed + out.len() as u32;
        assert!(in_flight <= IN_FLIGHT_MAX);
    }
    assert!(seen.len() > LINES as usize / 2);
}

#[test]
fn a_slow_mirror_holds_up_no_other() {
    let mut table = table();
    table.filled(A);
    table.filled(B);
    table.put("a");
    let out = table.step(Input::Tick);
    assert_eq!((lines(&out, A).len(), lines(&out, B).len()), (1, 1));
    table.completed(A, out);
    for _ in 0..10 {
        table.put("a");
        let out = table.step(Input::Tick);
        assert_eq!(lines(&out, B), []);
        table.completed(A, out);
    }
    assert_eq!(table.mirrors.states().map(|(_, _, published)| published.0).collect::<Vec<_>>(), [11, 0]);
    assert_eq!(table.mirrors.published(table.now), Some(Lsn(0)), "the cleaner waits for the slow one");
    let out = table.step(Input::Written(B, 1));
    assert_eq!((published(&out), lines(&out, B).len()), (vec![(B, 1, true)], 1));
    assert_eq!(published(&table.step(Input::Written(B, 2))), [(B, 11, true)]);
}

#[test]
fn a_channel_that_was_lost_writes_all_lines_again() {
    let mut table = table();
    table.put("a");
    table.filled(A);
    table.put("b");
    assert_eq!(lines(&table.step(Input::Tick), A).len(), 1);
    assert_eq!(table.step(Input::Lost(A)), []);
    table.put("c");
    assert_eq!(table.step(Input::Tick), []);
    let out = table.step(Input::Reopened(A));
    assert_eq!(published(&out), [(A, 1, false)], "all that was published is still there");
    let all = table.completed(A, out);
    let round = all.iter().position(|output| published(&[*output]) == [(A, 3, true)]);
    let written = lines(&all[..round.expect("it is live again")], A);
    assert!(written.into_iter().eq((0..LINES).map(LineId)), "zeros too");
}

#[test]
fn some_lines_are_written_again_in_turn() {
    let mut table = table();
    table.filled(A);
    let mut seen = Vec::new();
    for _ in 0..=LINES / REFRESH_LINES {
        table.now = table.now.plus(REFRESH_MS - 1);
        assert_eq!(table.step(Input::Tick), []);
        table.now = table.now.plus(1);
        let out = table.step(Input::Tick);
        assert_eq!(out.len(), REFRESH_LINES as usize);
        seen.extend(lines(&out, A));
        let out = table.completed(A, out);
        assert_eq!(published(&out), [(A, 0, true)], "and the board's line");
    }
    let next = |number: u32| LineId((number + REFRESH_LINES) % LINES);
    assert!(seen.into_iter().eq((0..LINES + REFRESH_LINES).map(next)));
}

#[test]
fn the_cleaner_waits_for_a_lost_channel_for_a_while() {
    let mut table = table();
    assert_eq!(table.mirrors.published(table.now), None);
    table.filled(A);
    table.put("a");
    table.filled(B);
    let out = table.step(Input::Tick);
    assert_eq!((lines(&out, A).len(), table.mirrors.published(table.now)), (0, Some(Lsn(0))), "{out:?}");
    table.step(Input::Lost(A));
    table.now = table.now.plus(LOST_AFTER_MS - 1);
    assert_eq!(table.mirrors.published(table.now), Some(Lsn(0)));
    table.now = table.now.plus(1);
    assert_eq!(table.mirrors.published(table.now), Some(Lsn(1)));
    table.step(Input::Left(B));
    assert_eq!(table.mirrors.published(table.now), None, "none is written to");
    table.step(Input::Reopened(A));
    assert_eq!(table.mirrors.published(table.now), Some(Lsn(0)));
}
