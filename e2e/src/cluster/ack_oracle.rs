//! Checks what loaders report: every acknowledged record, and every replay of the log.
//!
//! A loader (the app in a pod) reports to an oracle in a pod of its own, which no test kills; both are the program `loader`.
//! An ack counts once it is here, because only then an app could rely on it. [`AckOracle`] compares each report with
//! the earlier ones: a record acknowledged and missing in a later replay was lost, two records with one LSN mean two
//! primaries. The checks know nothing of segments and members.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::workload::Random;

/// Which record it is: the loader's session (one connection to a primary) and its number in there, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    /// Drawn at random for each connection.
    pub session: u64,
    /// Counted from 1 in each session.
    pub number: u64,
}

/// The bytes of a record's id.
const ID_BYTES: usize = 16;

impl RecordId {
    /// The record's payload: its id, and up to `length_max` bytes made from it.
    pub fn payload(self, length_max: u64) -> Vec<u8> {
        let mut random = Random(self.session ^ self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let length = random.below(length_max + 1);
        let id = self.session.to_le_bytes().into_iter().chain(self.number.to_le_bytes());
        id.chain((0..length).map(|_| random.next() as u8)).collect()
    }

    /// The record with this payload, if every byte of it is as it should be.
    pub fn of_payload(payload: &[u8], length_max: u64) -> Option<RecordId> {
        let (session, rest) = payload.split_first_chunk()?;
        let number = rest.first_chunk()?;
        debug_assert!(payload.len() >= ID_BYTES);
        let record = RecordId { session: u64::from_le_bytes(*session), number: u64::from_le_bytes(*number) };
        (record.payload(length_max) == payload).then_some(record)
    }
}

/// Records of one session with consecutive numbers and consecutive LSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The session that they belong to.
    pub session: u64,
    /// Number of the first.
    pub number: u64,
    /// LSN of the first.
    pub lsn: u64,
    /// The number of records.
    pub count: u64,
}

impl Run {
    /// LSN after the last.
    pub fn end(&self) -> u64 {
        self.lsn + self.count
    }

    fn record_at(&self, lsn: u64) -> RecordId {
        RecordId { session: self.session, number: self.number + (lsn - self.lsn) }
    }

    /// True if `next` continues where this one ends.
    fn is_followed_by(&self, next: &Run) -> bool {
        next.session == self.session && next.lsn == self.end() && next.number == self.number + self.count
    }
}

/// Puts a run after the last one, or makes the last one longer.
pub fn push(runs: &mut Vec<Run>, next: Run) {
    match runs.last_mut() {
        Some(last) if last.is_followed_by(&next) => last.count += next.count,
        _ => runs.push(next),
    }
}

/// Why a session has ended whose loader was asked to stop.
pub const STOPPED: &str = "stopped";

/// From a loader or a test. One line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum OracleRequest {
    /// A sidecar is primary and has proved it; the loader has read the whole log and continues after it.
    Began {
        /// The loader's pod.
        pod: String,
        /// The sidecar's epoch.
        epoch: u64,
        /// The session whose records follow.
        session: u64,
        /// The whole log.
        runs: Vec<Run>,
    },
    /// Records of a session that has begun were acknowledged. May be repeated.
    Acked {
        /// Which.
        run: Run,
    },
    /// A session has ended.
    Ended {
        /// Which.
        session: u64,
        /// The error, or [`STOPPED`].
        why: String,
    },
    /// The whole log, because a test asked for it.
    Replayed {
        /// The number of the request.
        request: u64,
        /// The session that has read it.
        session: u64,
        /// The whole log.
        runs: Vec<Run>,
    },
    /// The loader has read a record that was never submitted.
    Violation {
        /// What.
        what: String,
    },
    /// Answered with [`OracleResponse::Report`].
    Report,
    /// Asks the primary's loader to read the log; loaders get the same [`OracleResponse::Replay`].
    Replay,
}

/// To a loader or a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum OracleResponse {
    /// Read the log and report it, unless done; higher numbers are newer.
    Replay {
        /// The number of the request.
        request: u64,
    },
    /// The state of the oracle.
    Report(OracleReport),
}

/// What the oracle knows. Times are microseconds since it started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OracleReport {
    /// Now.
    pub now_us: u64,
    /// Records acknowledged.
    pub acked: u64,
    /// The newest of them.
    pub last_ack_us: u64,
    /// The newest replay that was asked for and reported.
    pub replayed: u64,
    /// Each session that has begun, in this order.
    pub sessions: Vec<AppSession>,
    /// Times of more than [`PAUSE_US`] without any ack, between two acks.
    pub pauses: Vec<Pause>,
    /// What is wrong with the log.
    pub violations: Vec<String>,
}

impl OracleReport {
    /// For each change of epoch: from the last ack of all before to the first ack of the new one, in microseconds.
    pub fn failovers(&self) -> Vec<Failover> {
        let mut sessions: Vec<&AppSession> = self.sessions.iter().filter(|session| session.acked > 0).collect();
        sessions.sort_by_key(|session| session.epoch);
        let pairs = sessions.windows(2).filter(|pair| pair[0].epoch < pair[1].epoch);
        pairs
            .map(|pair| Failover {
                epoch: pair[1].epoch,
                pod: pair[1].pod.clone(),
                gap_us: pair[1].first_ack_us.saturating_sub(pair[0].last_ack_us),
            })
            .collect()
    }
}

/// A change of primary, as apps see it.
#[derive(Clone, Debug)]
pub struct Failover {
    /// The new epoch.
    pub epoch: u64,
    /// The new primary's pod.
    pub pod: String,
    /// The time without acks.
    pub gap_us: u64,
}

/// A loader's connection to a primary.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AppSession {
    /// Its name.
    pub session: u64,
    /// The loader's pod.
    pub pod: String,
    /// The primary's.
    pub epoch: u64,
    /// When it began.
    pub begun_us: u64,
    /// First ack.
    pub first_ack_us: u64,
    /// Last ack.
    pub last_ack_us: u64,
    /// Records acknowledged.
    pub acked: u64,
    /// Why it has ended, if it has.
    pub ended: Option<String>,
}

/// A time without acks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pause {
    /// The ack before.
    pub from_us: u64,
    /// The ack after.
    pub to_us: u64,
}

/// Shortest time without acks that is reported: an append takes less, and a failover more.
pub(crate) const PAUSE_US: u64 = 50_000;
/// Violations that are kept: one is enough to look for the cause.
const VIOLATIONS_MAX: usize = 100;
/// Pauses that are kept, of 50 ms and more each: more than any test lasts.
const PAUSES_MAX: usize = 100_000;

/// The state of an oracle: takes messages and times, decides what is wrong.
#[derive(Debug, Default)]
pub struct AckOracle {
    sessions: Vec<AppSession>,
    /// Acknowledged records by the LSN of their run's first.
    acked: BTreeMap<u64, Run>,
    /// The newest replays: of each epoch the longest.
    replays: BTreeMap<u64, Vec<Run>>,
    requested: u64,
    replayed: u64,
    last_ack_us: u64,
    pauses: Vec<Pause>,
    violations: Vec<String>,
}

impl AckOracle {
    /// Takes a request that came at this time; what to answer.
    pub fn take(&mut self, request: OracleRequest, now_us: u64) -> Option<OracleResponse> {
        match request {
            OracleRequest::Began { pod, epoch, session, runs } => self.on_began(pod, epoch, session, runs, now_us),
            OracleRequest::Acked { run } => self.on_acked(run, now_us),
            OracleRequest::Ended { session, why } => {
                if let Some(session) = self.session_mut(session) {
                    session.ended = Some(why);
                }
            }
            OracleRequest::Replayed { request, session, runs } => {
                match self.session_mut(session).map(|session| session.epoch) {
                    Some(epoch) => {
                        self.on_replay(epoch, runs);
                        self.replayed = self.replayed.max(request);
                    }
                    None => self.violate(format!("session {session:x} replays the log and has not begun")),
                }
            }
            OracleRequest::Violation { what } => self.violate(what),
            OracleRequest::Report => return Some(OracleResponse::Report(self.report(now_us))),
            OracleRequest::Replay => {
                self.requested += 1;
                return Some(OracleResponse::Replay { request: self.requested });
            }
        }
        None
    }

    /// The newest replay that was asked for.
    pub fn requested(&self) -> u64 {
        self.requested
    }

    fn report(&self, now_us: u64) -> OracleReport {
        OracleReport {
            now_us,
            acked: self.sessions.iter().map(|session| session.acked).sum(),
            last_ack_us: self.last_ack_us,
            replayed: self.replayed,
            sessions: self.sessions.clone(),
            pauses: self.pauses.clone(),
            violations: self.violations.clone(),
        }
    }

    fn on_began(&mut self, pod: String, epoch: u64, session: u64, runs: Vec<Run>, now_us: u64) {
        // A loader whose connection to the oracle broke repeats everything.
        if self.session_mut(session).is_some() {
            return;
        }
        if let Some(other) = self.sessions.iter().find(|other| other.epoch == epoch && other.pod != pod) {
            self.violate(format!("two primaries: epoch {epoch} is {}'s and {pod}'s", other.pod));
        }
        self.sessions.push(AppSession { session, pod, epoch, begun_us: now_us, ..AppSession::default() });
        self.on_replay(epoch, runs);
    }

    fn on_acked(&mut self, run: Run, now_us: u64) {
        let Some(epoch) = self.session_mut(run.session).map(|session| session.epoch) else {
            return self.violate(format!("{run:?} is acknowledged to a session that has not begun"));
        };
        let Some(new) = self.remember(run) else { return };
        // A primary that began later must have found it.
        let later: Vec<String> = self
            .replays
            .range(epoch + 1..)
            .filter_map(|(later, replay)| Some(format!("epoch {later} does not have it: {}", missing(&new, replay)?)))
            .collect();
        later.into_iter().for_each(|what| self.violate(format!("acknowledged in epoch {epoch}, {what}")));
        if self.last_ack_us > 0 && now_us - self.last_ack_us > PAUSE_US && self.pauses.len() < PAUSES_MAX {
            self.pauses.push(Pause { from_us: self.last_ack_us, to_us: now_us });
        }
        self.last_ack_us = now_us;
        if let Some(session) = self.session_mut(run.session) {
            if session.acked == 0 {
                session.first_ack_us = now_us;
            }
            session.last_ack_us = now_us;
            session.acked += new.count;
        }
    }

    /// Keeps what is new of a run; `None` if nothing is, or if it contradicts what is known.
    fn remember(&mut self, run: Run) -> Option<Run> {
        let mut new = run;
        let before = self.acked.range(..run.end()).next_back().map(|(_, before)| *before);
        if let Some(before) = before.filter(|before| before.end() > run.lsn) {
            let at = before.lsn.max(run.lsn);
            let (old, reported) = (before.record_at(at), run.record_at(at));
            if old != reported {
                self.violate(format!("two records are acknowledged as LSN {at}: {old:x?} and {reported:x?}"));
                return None;
            }
            // Reported before, at least in part.
            if before.end() >= run.end() {
                return None;
            }
            let known = before.end() - run.lsn;
            new = Run { number: run.number + known, lsn: run.lsn + known, count: run.count - known, ..run };
        }
        let elsewhere = self.acked.values().find(|other| {
            other.session == new.session
                && other.number < new.number + new.count
                && new.number < other.number + other.count
        });
        if let Some(other) = elsewhere {
            self.violate(format!("one record is acknowledged twice: {other:x?} and {new:x?}"));
            return None;
        }
        match self.acked.range_mut(..new.lsn).next_back() {
            Some((_, before)) if before.is_followed_by(&new) => before.count += new.count,
            _ => drop(self.acked.insert(new.lsn, new)),
        }
        Some(new)
    }

    /// The primary of an epoch has read the whole log.
    fn on_replay(&mut self, epoch: u64, runs: Vec<Run>) {
        let mut wrong: Vec<String> = disorder(&runs).into_iter().collect();
        for run in self.acked.values() {
            // What newer epochs have acknowledged it cannot know.
            let known = self.sessions.iter().any(|session| session.session == run.session && session.epoch <= epoch);
            let lost = known.then(|| missing(run, &runs)).flatten();
            wrong.extend(lost.map(|what| format!("acknowledged, and not in epoch {epoch}'s log: {what}")));
        }
        for (older, replay) in self.replays.range(..=epoch) {
            let lost = replay.iter().find_map(|run| missing(run, &runs));
            wrong.extend(lost.map(|what| format!("read in epoch {older}, and not in epoch {epoch}'s log: {what}")));
        }
        wrong.into_iter().for_each(|what| self.violate(what));
        self.replays.insert(epoch, runs);
    }

    fn session_mut(&mut self, name: u64) -> Option<&mut AppSession> {
        self.sessions.iter_mut().find(|session| session.session == name)
    }

    fn violate(&mut self, what: String) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        }
    }
}

/// What is wrong with a log by itself: it starts at 1 without gaps, and each session's records are a gap-free beginning of
/// what it submitted, in order.
fn disorder(runs: &[Run]) -> Option<String> {
    let (mut next_lsn, mut next_number) = (1, BTreeMap::new());
    for run in runs {
        if run.lsn != next_lsn {
            return Some(format!("the log has {run:x?} where LSN {next_lsn} is expected"));
        }
        let number = next_number.entry(run.session).or_insert(1);
        if run.number != *number {
            return Some(format!("the log has {run:x?} where record {number} of that session is expected"));
        }
        *number += run.count;
        next_lsn = run.end();
    }
    None
}

/// What of a run is not in a log, at least in the same place.
fn missing(run: &Run, log: &[Run]) -> Option<String> {
    let mut lsn = run.lsn;
    let first = log.partition_point(|other| other.end() <= lsn);
    for other in &log[first..] {
        if lsn >= run.end() {
            break;
        }
        if other.lsn > lsn || other.record_at(lsn) != run.record_at(lsn) {
            return Some(format!("LSN {lsn} must be {:x?}, not {:x?}", run.record_at(lsn), other));
        }
        lsn = other.end();
    }
    (lsn < run.end()).then(|| format!("LSN {lsn} to {}, {:x?}", run.end() - 1, run.record_at(lsn)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xa;
    const B: u64 = 0xb;

    fn run(session: u64, number: u64, lsn: u64, count: u64) -> Run {
        Run { session, number, lsn, count }
    }

    fn began(pod: &str, epoch: u64, session: u64, runs: &[Run]) -> OracleRequest {
        OracleRequest::Began { pod: pod.to_owned(), epoch, session, runs: runs.to_vec() }
    }

    fn acked(session: u64, number: u64, lsn: u64, count: u64) -> OracleRequest {
        OracleRequest::Acked { run: run(session, number, lsn, count) }
    }

    fn report(messages: impl IntoIterator<Item = OracleRequest>) -> OracleReport {
        let mut oracle = AckOracle::default();
        for (second, message) in messages.into_iter().enumerate() {
            oracle.take(message, (second as u64 + 1) * 1_000_000);
        }
        oracle.report(100_000_000)
    }

    /// A failover with two records in flight, of which one survives.
    fn failover() -> Vec<OracleRequest> {
        vec![
            began("app-1", 1, A, &[]),
            acked(A, 1, 1, 5),
            acked(A, 6, 6, 3),
            began("app-2", 2, B, &[run(A, 1, 1, 9)]),
            acked(B, 1, 10, 7),
        ]
    }

    #[test]
    fn failover_is_measured_between_acks() {
        let report = report(failover());
        assert_eq!(report.violations, [""; 0]);
        assert_eq!(report.acked, 15);
        let gaps: Vec<u64> = report.failovers().iter().map(|failover| failover.gap_us).collect();
        assert_eq!(gaps, [2_000_000]);
        assert_eq!(report.pauses.len(), 2, "each ack is a second after the one before");
    }

    #[test]
    fn acks_may_be_repeated_and_late() {
        let mut messages = failover();
        messages.extend([began("app-1", 1, A, &[]), acked(A, 1, 1, 8), acked(A, 4, 4, 6), acked(B, 8, 17, 1)]);
        let report = report(messages);
        assert_eq!(report.violations, [""; 0]);
        assert_eq!(report.acked, 17);
    }

    #[test]
    fn all_violations_are_detected() {
        let after = |more: &[OracleRequest]| {
            let report = report(failover().into_iter().chain(more.iter().cloned()));
            report.violations.first().cloned().unwrap_or_default()
        };
        let replay = |runs: &[Run]| OracleRequest::Replayed { request: 1, session: B, runs: runs.to_vec() };
        let whole = [run(A, 1, 1, 9), run(B, 1, 10, 7)];
        assert_eq!(after(&[replay(&whole)]), "");
        assert!(after(&[replay(&[run(A, 1, 1, 9), run(B, 1, 10, 6)])]).contains("LSN 16 to 16"), "the end is lost");
        assert!(after(&[replay(&[run(A, 1, 1, 7)])]).contains("not in epoch 2's log"), "more is lost");
        let gap = [run(A, 1, 1, 3), run(A, 5, 4, 5), run(B, 1, 9, 7)];
        assert!(after(&[replay(&gap)]).contains("record 4 of that session"), "a gap that others have moved into");
        let swapped = [run(A, 1, 1, 8), run(B, 1, 9, 8)];
        assert!(after(&[replay(&swapped)]).contains("must be"), "read before, and gone");
        assert!(after(&[acked(A, 10, 10, 1)]).contains("two records"), "a zombie has acknowledged");
        assert!(after(&[acked(A, 10, 17, 1)]).contains("epoch 2 does not have it"), "a zombie is ahead");
        assert!(after(&[acked(B, 7, 17, 1)]).contains("twice"), "a record with two LSNs");
        assert!(after(&[began("app-3", 2, 3, &whole)]).contains("two primaries"));
        assert!(after(&[began("app-3", 3, 3, &[run(A, 1, 1, 9)])]).contains("not in epoch 3's log"));
        assert!(after(&[acked(7, 1, 17, 1)]).contains("has not begun"));
    }

    #[test]
    fn payload_identifies_its_record() {
        let record = RecordId { session: 7, number: 9 };
        let payload = record.payload(100);
        assert_eq!(RecordId::of_payload(&payload, 100), Some(record));
        for at in 0..payload.len() {
            let mut other = payload.clone();
            other[at] ^= 1;
            assert_ne!(RecordId::of_payload(&other, 100), Some(record));
        }
        assert_eq!(RecordId::of_payload(&payload[..payload.len() - 1], 100), None);
    }
}
