//! The send window of `append`: what waits to be sent, what is in flight, and what has been acknowledged. No I/O.
//!
//! Bundles go through it in the order of the input and never pass each other: waiting → sent → acknowledged. A refusal moves
//! what was sent back to waiting; so does a lost connection, except for what the log turns out to hold.

use std::collections::VecDeque;

use tailwind_client::Lsn;

/// Most records waiting and in window. Eight times what a sidecar takes from one connection before it wants acks.
const RECORDS_MAX: usize = 64 << 10;
/// Most bytes of payload waiting and in flight, give or take one bundle.
const BYTES_MAX: usize = 8 << 20;

/// What is appended in one go: a record, or the records of a batch. Keeps its memory when it is used again.
#[derive(Default)]
pub(super) struct Bundle {
    records: Vec<Vec<u8>>,
    used: usize,
    payload_size: usize,
    /// Number in the input of its last record.
    through: u64,
}

impl Bundle {
    /// Adds the record that is number `place` of the input.
    pub(super) fn push(&mut self, record: &[u8], place: u64) {
        if self.used == self.records.len() {
            self.records.push(Vec::new());
        }
        let slot = &mut self.records[self.used];
        slot.clear();
        slot.extend_from_slice(record);
        self.used += 1;
        self.payload_size += record.len();
        self.through = place;
    }

    pub(super) fn records(&self) -> &[Vec<u8>] {
        &self.records[..self.used]
    }

    fn clear(&mut self) {
        (self.used, self.payload_size, self.through) = (0, 0, 0);
    }
}

/// What has been acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) records: u64,
    pub(super) payload_size: u64,
    /// LSN of the first and of the last record.
    pub(super) lsns: Option<(Lsn, Lsn)>,
    /// Number in the input of the last record.
    pub(super) through: u64,
}

/// Why the log does not continue with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Mismatch {
    /// Another record stands there.
    #[error("LSN {0} holds a record that this command did not send")]
    Record(Lsn),
    /// The log ends within a batch, which must be whole or absent.
    #[error("the log ends at LSN {0} within a batch")]
    HalfBatch(Lsn),
}

/// `T` names an append on its connection.
pub(super) struct SendWindow<T> {
    waiting: VecDeque<Bundle>,
    sent: VecDeque<(T, Bundle)>,
    spare: Vec<Bundle>,
    records: usize,
    payload_size: usize,
    acked: Acked,
}

impl<T: PartialEq> SendWindow<T> {
    pub(super) fn new() -> SendWindow<T> {
        SendWindow {
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            spare: Vec::new(),
            records: 0,
            payload_size: 0,
            acked: Acked::default(),
        }
    }

    /// True when acks must come before more input is taken.
    pub(super) fn is_full(&self) -> bool {
        self.records >= RECORDS_MAX || self.payload_size >= BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(super) fn acked(&self) -> &Acked {
        &self.acked
    }

    /// Records that were sent and not answered, and the number in the input of the last of them.
    pub(super) fn unanswered(&self) -> Option<(usize, u64)> {
        let (_, last) = self.sent.back()?;
        Some((self.sent.iter().map(|(_, bundle)| bundle.used).sum(), last.through))
    }

    /// A bundle to fill.
    pub(super) fn blank(&mut self) -> Bundle {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a filled bundle in.
    pub(super) fn push(&mut self, bundle: Bundle) {
        self.records += bundle.used;
        self.payload_size += bundle.payload_size;
        self.waiting.push_back(bundle);
    }

    /// What is to be sent next.
    pub(super) fn next_to_send(&self) -> Option<&Bundle> {
        self.waiting.front()
    }

    /// What was to be sent next has been, as `ticket`.
    pub(super) fn mark_sent(&mut self, ticket: T) {
        let bundle = self.waiting.pop_front().expect("something was to be sent");
        self.sent.push_back((ticket, bundle));
    }

    /// The append `ticket` is acknowledged, its last record as `last`. `None`: not the oldest one in flight, so that an earlier
    /// one has failed and this one proves nothing of use.
    pub(super) fn acknowledge(&mut self, ticket: &T, last: Lsn) -> Option<(Lsn, Lsn)> {
        let (_, bundle) = self.sent.pop_front_if(|(sent, _)| sent == ticket)?;
        Some(self.on_acked(bundle, last))
    }

    /// The append `ticket` was not taken, and so nothing that was sent after it: all of that is to be sent again.
    pub(super) fn refuse(&mut self, ticket: &T) {
        if let Some(place) = self.sent.iter().position(|(sent, _)| sent == ticket) {
            self.send_again_from(place);
        }
    }

    /// Compares what the log holds behind the last acknowledged record with what was sent, in order. Call for each record.
    pub(super) fn compare(&self, found: &mut MatchedPrefix, lsn: Lsn, payload: &[u8]) -> Result<(), Mismatch> {
        let bundle = self.sent.get(found.bundles).map(|(_, bundle)| bundle).ok_or(Mismatch::Record(lsn))?;
        if bundle.records()[found.records] != payload {
            return Err(Mismatch::Record(lsn));
        }
        found.last = lsn;
        found.records += 1;
        if found.records == bundle.used {
            (found.bundles, found.records) = (found.bundles + 1, 0);
        }
        Ok(())
    }

    /// After a lost connection: what was found in the log counts as acknowledged, the rest is to be sent again.
    pub(super) fn resolve(&mut self, found: &MatchedPrefix) -> Result<Option<(Lsn, Lsn)>, Mismatch> {
        if found.records > 0 {
            return Err(Mismatch::HalfBatch(found.last));
        }
        let total: usize = self.sent.iter().take(found.bundles).map(|(_, bundle)| bundle.used).sum();
        let before = Lsn(found.last.0 - total as u64);
        let mut last = before;
        for _ in 0..found.bundles {
            let (_, bundle) = self.sent.pop_front().expect("found among what was sent");
            last = last.plus(bundle.used as u64);
            self.on_acked(bundle, last);
        }
        self.send_again_from(0);
        Ok((total > 0).then_some((before.next(), last)))
    }

    fn send_again_from(&mut self, place: usize) {
        self.sent.drain(place..).rev().for_each(|(_, bundle)| self.waiting.push_front(bundle));
    }

    fn on_acked(&mut self, mut bundle: Bundle, last: Lsn) -> (Lsn, Lsn) {
        let first = Lsn(last.next().0.saturating_sub(bundle.used as u64));
        self.records -= bundle.used;
        self.payload_size -= bundle.payload_size;
        let acked = &mut self.acked;
        acked.records += bundle.used as u64;
        acked.payload_size += bundle.payload_size as u64;
        acked.lsns = Some((acked.lsns.map_or(first, |(first, _)| first), last));
        acked.through = bundle.through;
        bundle.clear();
        self.spare.push(bundle);
        (first, last)
    }
}

/// How far the log agrees with what was sent.
#[derive(Debug, Default)]
pub(super) struct MatchedPrefix {
    /// Whole bundles.
    bundles: usize,
    /// Records of the next bundle.
    records: usize,
    last: Lsn,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bundles of these sizes, sent as tickets 0, 1, ...; record n of the input is the text of n.
    fn window(sizes: &[usize]) -> SendWindow<usize> {
        let mut window = SendWindow::new();
        let mut place = 0;
        for (ticket, size) in sizes.iter().enumerate() {
            let mut bundle = window.blank();
            for _ in 0..*size {
                place += 1;
                bundle.push(place.to_string().as_bytes(), place);
            }
            window.push(bundle);
            window.mark_sent(ticket);
        }
        window
    }

    fn look(window: &SendWindow<usize>, from: u64, log: &[&str]) -> Result<MatchedPrefix, Mismatch> {
        let mut found = MatchedPrefix::default();
        for (lsn, record) in (from..).zip(log) {
            window.compare(&mut found, Lsn(lsn), record.as_bytes())?;
        }
        Ok(found)
    }

    #[test]
    fn acks_must_arrive_in_order() {
        let mut window = window(&[1, 3, 1]);
        assert_eq!(window.acknowledge(&0, Lsn(10)), Some((Lsn(10), Lsn(10))));
        assert_eq!(window.acknowledge(&2, Lsn(14)), None, "an earlier one has failed");
        assert_eq!(window.acknowledge(&1, Lsn(13)), Some((Lsn(11), Lsn(13))));
        let acked = Acked { records: 4, payload_size: 4, lsns: Some((Lsn(10), Lsn(13))), through: 4 };
        assert_eq!((window.acked(), window.unanswered()), (&acked, Some((1, 5))));
    }

    #[test]
    fn a_refusal_applies_to_all_later_records() {
        let mut window = window(&[1, 1, 1, 1]);
        window.refuse(&2);
        window.refuse(&3);
        assert_eq!(window.unanswered(), Some((2, 2)));
        assert_eq!(window.next_to_send().map(|bundle| bundle.through), Some(3));
        assert_eq!(window.acknowledge(&0, Lsn(1)), Some((Lsn(1), Lsn(1))));
        assert_eq!(window.acknowledge(&1, Lsn(2)), Some((Lsn(2), Lsn(2))));
        assert_eq!((window.unanswered(), window.is_empty()), (None, false));
    }

    #[test]
    fn after_failover_only_missing_records_are_resent() {
        for held in 0..=4_usize {
            let mut window = window(&[1, 1, 1, 1]);
            let found = look(&window, 7, &["1", "2", "3", "4"][..held]).unwrap();
            let span = window.resolve(&found).unwrap();
            assert_eq!(span, (held > 0).then_some((Lsn(7), Lsn(6 + held as u64))));
            assert_eq!((window.acked().records, window.acked().through), (held as u64, held as u64));
            assert_eq!(window.unanswered(), None);
            let next = window.next_to_send().map(|bundle| bundle.through);
            assert_eq!(next, (held < 4).then_some(held as u64 + 1));
            assert_eq!(window.is_empty(), held == 4);
        }
    }

    #[test]
    fn a_batch_is_atomic_in_the_log() {
        let mut window = window(&[2, 3]);
        let found = look(&window, 1, &["1", "2", "3"]).unwrap();
        assert_eq!(window.resolve(&found), Err(Mismatch::HalfBatch(Lsn(3))));
        let found = look(&window, 1, &["1", "2"]).unwrap();
        assert_eq!(window.resolve(&found), Ok(Some((Lsn(1), Lsn(2)))));
        assert_eq!(window.next_to_send().map(|bundle| bundle.through), Some(5));
    }

    #[test]
    fn records_of_another_writer_are_detected() {
        let window = window(&[1, 1]);
        assert_eq!(look(&window, 1, &["1", "other"]).unwrap_err(), Mismatch::Record(Lsn(2)));
        assert_eq!(look(&window, 1, &["1", "2", "3"]).unwrap_err(), Mismatch::Record(Lsn(3)));
    }

    #[test]
    fn the_ledger_is_bounded_and_reuses_memory() {
        let mut window = SendWindow::new();
        while !window.is_full() {
            let mut bundle = window.blank();
            bundle.push(b"", window.records as u64 + 1);
            window.push(bundle);
            window.mark_sent(window.records as u64);
        }
        assert_eq!(window.records, RECORDS_MAX);
        (1..=RECORDS_MAX as u64).for_each(|n| assert!(window.acknowledge(&n, Lsn(n)).is_some()));
        assert!(window.is_empty() && window.spare.len() == RECORDS_MAX && window.blank().records().is_empty());
    }
}
