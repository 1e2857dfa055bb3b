//! How one get is read for: its entries, then its record, then the answer.

use std::time::Duration;

use crate::follower::{STALE_AFTER, Visit};
use crate::ids::Lsn;
use crate::planted::{self, Bug};
use crate::table::place::Window;
use crate::table::record::{Revision, Value};

use super::record::{Candidates, Checked, Reading};
use super::{Answer, GetId, Getter, Output, RECORD_WITHIN, Stage, Turn, UNSOUND_MAX};

impl Getter {
    /// Reads both buckets of the get's key.
    pub(super) fn read_entries(&mut self, at: usize, turn: &mut Turn<'_>) {
        let (Some(visit), Some(board)) = (self.visit(), self.board()) else { return };
        let mirror = board.mirror;
        let get = &mut self.gets[at];
        get.stage = Stage::Entries(turn.now, mirror.published);
        let buckets = mirror.buckets.of(mirror.hash_key.hash(get.key()));
        turn.out.push(Output::Buckets(visit, get.id, buckets.map(|bucket| mirror.part_size.bucket_at(bucket))));
    }

    pub(super) fn on_buckets(&mut self, visit: Visit, id: GetId, bytes: &[u8], turn: &mut Turn<'_>) {
        let (Some(at), Some(board)) = (self.awaiting(visit, id), self.board()) else { return };
        let hash_key = board.mirror.hash_key;
        let get = &mut self.gets[at];
        let Stage::Entries(posted, as_of) = get.stage else { return };
        if turn.now > posted + RECORD_WITHIN {
            return self.read_entries(at, turn);
        }
        let candidates = Candidates::of(bytes, hash_key.hash(get.key()).fingerprint(), hash_key.seed());
        self.try_next(at, posted, as_of, candidates, turn);
    }

    /// Reads the record of the next entry that may be the key's. Without one the key is absent, unless an entry does not verify.
    fn try_next(&mut self, at: usize, posted: Duration, as_of: Lsn, mut entries: Candidates, turn: &mut Turn<'_>) {
        let get = &mut self.gets[at];
        match entries.next() {
            Some(present) => self.read_record(at, Reading::new(posted, as_of, present, entries), turn),
            None if !entries.any_unsound => self.answer_absent(at, as_of, turn),
            None if get.unsound + 1 < UNSOUND_MAX => {
                get.unsound += 1;
                self.read_entries(at, turn);
            }
            None => self.member_failed(at, turn),
        }
    }

    fn read_record(&mut self, at: usize, reading: Reading, turn: &mut Turn<'_>) {
        let (Some(visit), Some(board)) = (self.visit(), self.board()) else { return };
        let window = Window::new(board.identity.segment_size);
        let place = reading.place(window, board.progress.end.segment);
        let get = &mut self.gets[at];
        get.stage = Stage::Record(reading);
        match place {
            Some((segment, bytes)) => turn.out.push(Output::Record(visit, get.id, segment, bytes)),
            None => self.record_failed(at, turn),
        }
    }

    pub(super) fn on_record(&mut self, visit: Visit, id: GetId, bytes: Option<&[u8]>, turn: &mut Turn<'_>) {
        let (Some(at), Some(board)) = (self.awaiting(visit, id), self.board()) else { return };
        let Stage::Record(reading) = &self.gets[at].stage else { return };
        let place = reading.place(Window::new(board.identity.segment_size), board.progress.end.segment);
        match (bytes, place) {
            (Some(bytes), _) if turn.now <= reading.posted + RECORD_WITHIN => self.take_record(at, bytes, turn),
            (None, Some((segment, range))) => turn.out.push(Output::Fetch(visit, id, segment, range)),
            _ => self.read_entries(at, turn),
        }
    }

    pub(super) fn on_fetched(&mut self, visit: Visit, id: GetId, bytes: Result<&[u8], &str>, turn: &mut Turn<'_>) {
        if let Some(at) = self.awaiting(visit, id) {
            // No bytes are no record.
            self.take_record(at, bytes.unwrap_or_default(), turn);
        }
    }

    /// The get that waits for an answer to what was asked at this visit.
    fn awaiting(&self, visit: Visit, id: GetId) -> Option<usize> {
        let at = self.gets.iter().position(|get| get.id == id && get.is_active())?;
        (self.visit() == Some(visit)).then_some(at)
    }

    fn take_record(&mut self, at: usize, bytes: &[u8], turn: &mut Turn<'_>) {
        let get = &self.gets[at];
        let Stage::Record(reading) = &get.stage else { return };
        match reading.check(bytes, get.key()) {
            Checked::Value(revision, value) => {
                if !reading.is_new() && !planted::has(Bug::OlderAsNew) {
                    let value = if get.no_value { Value::EMPTY } else { value };
                    return self.answer(at, Answer::Older(value), turn);
                }
                let as_of = reading.as_of.max(revision.lsn());
                self.answer_value(at, as_of, revision, value, turn);
            }
            Checked::Header(length) => self.read_record(at, reading.with_length(length), turn),
            Checked::OtherKey if reading.is_new() => {
                let (posted, as_of, others) = (reading.posted, reading.as_of, reading.candidates.clone());
                self.try_next(at, posted, as_of, others, turn);
            }
            Checked::OtherKey | Checked::Unsound => self.record_failed(at, turn),
        }
    }

    fn record_failed(&mut self, at: usize, turn: &mut Turn<'_>) {
        let get = &mut self.gets[at];
        let Stage::Record(reading) = &get.stage else { return };
        if !reading.is_new() {
            let why = "neither its record nor the one before can be read";
            return self.answer(at, Answer::Unavailable(why), turn);
        }
        let present = reading.present;
        match get.failed.replace(present) {
            Some(failed) if failed == present => self.member_failed(at, turn),
            _ => self.read_entries(at, turn),
        }
    }

    /// This member does not have what the get needs: the next one is visited. After all of them the record before will do, or
    /// nothing will.
    fn member_failed(&mut self, at: usize, turn: &mut Turn<'_>) {
        let members = self.config.as_ref().map_or(0, |config| config.members.len());
        let get = &mut self.gets[at];
        get.tried += 1;
        if get.tried < members {
            return self.leave("an entry or a record there does not verify", turn);
        }
        let before = match &get.stage {
            Stage::Record(reading) if get.older => reading.before(),
            _ => None,
        };
        match before {
            Some(before) => self.read_record(at, before, turn),
            None => self.answer(at, Answer::Unavailable("no member has a sound copy of it"), turn),
        }
    }

    fn answer_absent(&mut self, at: usize, as_of: Lsn, turn: &mut Turn<'_>) {
        let get = &self.gets[at];
        let as_of = if planted::has(Bug::AbsentWithoutPublished) { as_of.max(get.least) } else { as_of };
        let (connection, visit) = (get.connection, self.visit());
        if let Some(stale) = self.may_answer(at, as_of, turn) {
            self.connections.entry(connection).or_default().absent = visit.map(|visit| (visit, turn.now));
            self.answer(at, Answer::Absent { as_of, stale }, turn);
        }
    }

    fn answer_value(&mut self, at: usize, as_of: Lsn, revision: Revision, value: Value<'_>, turn: &mut Turn<'_>) {
        let value = if self.gets[at].no_value { Value::EMPTY } else { value };
        if let Some(stale) = self.may_answer(at, as_of, turn) {
            self.answer(at, Answer::Value { revision, value, as_of, stale }, turn);
        }
    }

    /// Raises the floor of the get's connection, and says whether the view is stale. `None`: the connection has been shown
    /// something later, so the get begins again.
    fn may_answer(&mut self, at: usize, as_of: Lsn, turn: &Turn<'_>) -> Option<bool> {
        let get = &mut self.gets[at];
        let shown = self.connections.entry(get.connection).or_default();
        if as_of < shown.floor.max(get.least) {
            get.stage = Stage::Waiting;
            return None;
        }
        shown.floor = as_of;
        let is_recent = |(moment, published)| moment + STALE_AFTER >= turn.now && as_of >= published;
        Some(!self.covers.is_some_and(is_recent))
    }

    fn answer(&mut self, at: usize, answer: Answer<'_>, turn: &mut Turn<'_>) {
        (turn.answer)(self.gets.remove(at).id, answer);
    }
}
