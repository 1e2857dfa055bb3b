//! The pods that read the log, and how far each is: what the status says of them, and nothing that is decided from.
//!
//! Called by [`status`](super::status). A reader is no member and no standby: what becomes of it changes nothing in the group.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tailwind_crds::names::ROLE_READER;
use tailwind_crds::{ReaderStatus, Reads};
use tailwind_report::sidecar::FollowReport;

use crate::observed::{Observed, has_sidecar, is_running};

/// Most readers that are asked and shown. Each takes some hundred bytes of the group's object, which every sidecar watches.
pub(crate) const SHOWN_MAX: usize = 32;
/// The least lag that is told apart: a primary without appends is heard of every 25 ms.
const LAG_MS_MIN: u64 = 100;

/// Integers of Kubernetes are signed: it refuses a status with a larger one, and a reader may report anything.
const INTEGER_MAX: u64 = i64::MAX as u64;

/// How many there are, if there are any.
pub(super) fn count(observed: &Observed) -> Option<u32> {
    let count = u32::try_from(observed.readers.len()).unwrap_or(u32::MAX);
    (count > 0).then_some(count)
}

/// The first of them, by name.
pub(super) fn readers(observed: &Observed) -> Vec<ReaderStatus> {
    observed.readers.iter().take(SHOWN_MAX).map(|pod| reader(observed, pod)).collect()
}

fn may_read(observed: &Observed) -> bool {
    observed.group.spec.reads == Reads::Enabled
}

/// How many readers the status shows as stale. Where reading is disabled these are all of them, so that their owner notices
/// that they still run. `None` if there are no readers.
pub(crate) fn stale(observed: &Observed) -> Option<u64> {
    let stale = match may_read(observed) {
        true => readers(observed).iter().filter(|reader| reader.stale).count(),
        false => observed.readers.len(),
    };
    (!observed.readers.is_empty()).then_some(stale as u64)
}

fn reader(observed: &Observed, pod: &Pod) -> ReaderStatus {
    let name = pod.name_any();
    let silent = |why: &str| ReaderStatus { stale: true, message: Some(why.to_owned()), ..nothing_read(&name) };
    if !may_read(observed) {
        return silent(
            "spec.reads is Disabled, and it is refused what it asks for: delete it, or set the field to Enabled",
        );
    }
    if !has_sidecar(pod) {
        return silent("it has no sidecar, perhaps because no operator ran when it was created: recreate it");
    }
    if !is_running(pod) {
        return silent("it is not running");
    }
    let report = match observed.reader_sidecars.get(&name) {
        Some(Ok(report)) => report,
        Some(Err(why)) => return silent(why),
        // An operator that has just started knows no better than the one before it.
        None => return before(observed, &name).unwrap_or_else(|| silent("it has not been asked yet")),
    };
    if report.role != ROLE_READER {
        return silent(&format!(
            "its sidecar is {} and no reader: it was not injected for this pod's label",
            report.role
        ));
    }
    let Some(FollowReport { from, lsn, lag_ms, stale }) = &report.follow else {
        let message = "nobody follows the log through its socket".to_owned();
        return ReaderStatus { message: Some(message), ..nothing_read(&name) };
    };
    ReaderStatus {
        from: (!from.is_empty()).then(|| from.clone()),
        lsn: Some((*lsn).min(INTEGER_MAX)),
        lag_ms: lag_ms.map(|lag| rounded_up(lag).min(INTEGER_MAX)),
        stale: *stale,
        ..nothing_read(&name)
    }
}

fn nothing_read(pod: &str) -> ReaderStatus {
    ReaderStatus { pod: pod.to_owned(), from: None, lsn: None, lag_ms: None, stale: false, message: None }
}

fn before(observed: &Observed, pod: &str) -> Option<ReaderStatus> {
    let before = observed.group.status.as_ref()?;
    before.readers.iter().find(|reader| reader.pod == pod).cloned()
}

/// The next of 100, 200, 500, 1000 and so on. A status that differed with each millisecond would be written at every look.
fn rounded_up(lag_ms: u64) -> u64 {
    let mut unit = LAG_MS_MIN;
    loop {
        let mut steps = [1, 2, 5].into_iter().map(|step| unit.saturating_mul(step));
        if let Some(rounded) = steps.find(|rounded| lag_ms <= *rounded) {
            return rounded;
        }
        unit = unit.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lags_are_rounded_up_to_few_figures() {
        let cases = [(0, 100), (100, 100), (101, 200), (201, 500), (501, 1000), (1001, 2000), (60_000, 100_000)];
        for (lag, rounded) in cases {
            assert_eq!(rounded_up(lag), rounded, "{lag}");
        }
        assert_eq!(rounded_up(u64::MAX), u64::MAX);
    }
}
