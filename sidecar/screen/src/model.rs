//! What is drawn: the last round of reports, what led up to it, and what happened on the way.
//!
//! Fed by [`show`](crate::show) with rounds of answers and the time; it has no clock and sends no requests.

use std::collections::VecDeque;
use std::time::Duration;

use tailwind_report::report::Report;
use tailwind_report::rows::Tone;
use tailwind_report::sidecar::SidecarReport;

use crate::changes::{Change, changes};

/// What is remembered of rates and times: more than a terminal has columns.
const SAMPLES_MAX: usize = 400;
/// What is remembered of what happened.
const EVENTS_MAX: usize = 200;

/// What one sidecar answered: its report, or why there is none.
pub type Answer = Result<Report<SidecarReport>, String>;

/// One round of answers.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// By the sidecars' labels, in the order in which they were given.
    pub answers: Vec<(String, Answer)>,
}

impl Round {
    /// The primary's report. Of two that say so, the one with the newer epoch is right.
    pub fn leader(&self) -> Option<&Report<SidecarReport>> {
        self.reports().filter(|report| report.content.is_primary()).max_by_key(|report| report.content.epoch)
    }

    /// The report that says most: the primary's, or else one of a sidecar that knows the group.
    pub fn best(&self) -> Option<&Report<SidecarReport>> {
        self.leader()
            .or_else(|| self.reports().max_by_key(|report| (report.content.log.is_some(), report.content.epoch)))
    }

    /// All reports.
    pub fn reports(&self) -> impl Iterator<Item = &Report<SidecarReport>> {
        self.answers.iter().filter_map(|(_, answer)| answer.as_ref().ok())
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Since the model began.
    pub at: Duration,
    /// In words.
    pub text: String,
    /// Whether that was good.
    pub tone: Tone,
}

/// The progress of a job that runs at the same time: `./quickstart` shows its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done.
    pub what: String,
    /// How much of it is done.
    pub done: u64,
    /// All of it.
    pub total: u64,
}

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The last round.
    pub round: Round,
    /// Records in a second, between two rounds each; the latest last.
    pub rates: VecDeque<u64>,
    /// Microseconds within which 99 of 100 appends were acknowledged. `None` while nobody appends.
    pub times: VecDeque<Option<u64>>,
    /// What happened, the latest last.
    pub events: VecDeque<Event>,
    /// A job beside.
    pub progress: Option<Progress>,
    /// When the last round came.
    pub at: Duration,
    begun: bool,
}

impl Model {
    /// Takes a round of answers that came at this time since the model began.
    pub fn take(&mut self, at: Duration, round: Round) {
        if self.begun {
            for Change { text, tone } in changes(&self.round, &round) {
                self.event(at, text, tone);
            }
            let between = at.saturating_sub(self.at);
            push(&mut self.rates, rate(&self.round, &round, between), SAMPLES_MAX);
            let p99 = round.leader().and_then(|leader| leader.content.appends?.p99_us);
            push(&mut self.times, p99, SAMPLES_MAX);
        }
        (self.round, self.at, self.begun) = (round, at, true);
    }

    /// Something happened that no report tells.
    pub fn event(&mut self, at: Duration, text: String, tone: Tone) {
        push(&mut self.events, Event { at, text, tone }, EVENTS_MAX);
    }
}

fn push<T>(queue: &mut VecDeque<T>, value: T, max: usize) {
    if queue.len() == max {
        queue.pop_front();
    }
    queue.push_back(value);
}

/// Records that the primary has taken in a second. While nobody leads, and in the first round of another process, it is 0 or what
/// that process has taken since.
fn rate(before: &Round, after: &Round, between: Duration) -> u64 {
    let Some(leader) = after.leader() else { return 0 };
    let records = |report: &Report<SidecarReport>| report.content.appends.map_or(0, |appends| appends.records);
    let same = before.reports().find(|report| report.name == leader.name);
    // A process that was started again counts from zero.
    let since = same.map_or(0, records);
    let taken = records(leader).checked_sub(since).unwrap_or_else(|| records(leader));
    match between.as_secs_f64() {
        none if none <= 0.0 => 0,
        seconds => (taken as f64 / seconds) as u64,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tailwind_report::sidecar::AppendsReport;

    use super::*;

    pub(crate) fn report(name: &str, role: &str, epoch: u64) -> Report<SidecarReport> {
        let content = SidecarReport { role: role.to_owned(), epoch, ..SidecarReport::default() };
        Report::new("db", name, content)
    }

    pub(crate) fn round(answers: Vec<Answer>) -> Round {
        let label = |at: usize| format!("/run/{at}.sock");
        Round { answers: answers.into_iter().enumerate().map(|(at, answer)| (label(at), answer)).collect() }
    }

    fn appended(name: &str, epoch: u64, records: u64) -> Report<SidecarReport> {
        let appends = Some(AppendsReport { records, p99_us: (records > 0).then_some(64), ..AppendsReport::default() });
        report(name, "primary", epoch).map(|content| SidecarReport { appends, ..content })
    }

    #[test]
    fn the_newest_primary_leads() {
        let both = round(vec![Ok(report("a", "primary", 2)), Ok(report("b", "primary", 3)), Err("gone".to_owned())]);
        assert_eq!(both.leader().unwrap().name, "b");
        let none = round(vec![Ok(report("a", "standby", 2)), Ok(report("b", "standby", 3))]);
        assert_eq!((none.leader(), none.best().unwrap().name.as_str()), (None, "b"));
        assert!(round(vec![Err("gone".to_owned())]).best().is_none());
    }

    #[test]
    fn rates_are_between_rounds_and_fall_to_zero_without_a_primary() {
        let mut model = Model::default();
        let second = Duration::from_secs;
        model.take(second(0), round(vec![Ok(appended("a", 1, 1000)), Ok(report("b", "standby", 1))]));
        assert!(model.rates.is_empty(), "one round has no rate");
        model.take(second(2), round(vec![Ok(appended("a", 1, 5000)), Ok(report("b", "standby", 1))]));
        model.take(second(3), round(vec![Err("gone".to_owned()), Ok(report("b", "recovering", 1))]));
        model.take(second(4), round(vec![Err("gone".to_owned()), Ok(appended("b", 2, 300))]));
        model.take(second(4), round(vec![Err("gone".to_owned()), Ok(appended("b", 2, 300))]));
        assert_eq!(model.rates, [2000, 0, 300, 0]);
        assert_eq!(model.times, [Some(64), None, Some(64), Some(64)]);
        model.take(second(6), round(vec![Ok(appended("a", 3, 40)), Ok(report("b", "standby", 3))]));
        assert_eq!(model.rates.back(), Some(&20), "it has been started again, and counts from zero");
    }

    #[test]
    fn memory_is_bounded() {
        let mut model = Model::default();
        for n in 0..1000_u64 {
            model.take(Duration::from_secs(n), round(vec![Ok(appended("a", n, n))]));
        }
        assert_eq!((model.rates.len(), model.times.len(), model.events.len()), (SAMPLES_MAX, SAMPLES_MAX, EVENTS_MAX));
    }
}
