//! What the metrics of a sidecar are read from: the parts of a [`Context`] that need no group, so that the reference can be made
//! from an example of them.
//!
//! Read by [`status`](super).

use tailwind_protocol::config::PrimaryRef;
use tailwind_protocol::ids::{Epoch, GroupName, Lsn};
use tailwind_protocol::table::mirror::MirrorId;
use tailwind_runtime::metrics::Snapshot;

use super::mirrors::{KeptMirrors, MirrorRow};
use super::snapshot;
use super::times::PromotionTimes;
use super::waits::Waits;
use crate::control::Context;
use crate::control::log::LogView;
use crate::control::reads::follows::Follows;
use crate::path::Counters;
use crate::tls::CertificateState;

/// Named as in the [`Context`].
pub(super) struct Measured<'a> {
    pub(super) group: &'a GroupName,
    pub(super) me: &'a PrimaryRef,
    pub(super) shared: &'a Counters,
    pub(super) log: &'a LogView,
    pub(super) follows: &'a Follows,
    pub(super) waits: &'a Waits,
    pub(super) times: &'a PromotionTimes,
    pub(super) mirrors: &'a KeptMirrors,
    pub(super) segment_bytes: u64,
    /// `None` without TLS.
    pub(super) certificate: Option<CertificateState>,
}

impl Measured<'_> {
    pub(super) fn of(context: &Context) -> Measured<'_> {
        Measured {
            group: &context.group,
            me: &context.me,
            shared: &context.shared,
            log: &context.log,
            follows: &context.follows,
            waits: &context.waits,
            times: &context.times,
            mirrors: context.table.mirrors(),
            segment_bytes: context.rules.segment_size.bytes().into(),
            certificate: context.access.certificate(),
        }
    }
}

/// Every metric of a sidecar, with numbers that mean nothing: for the reference.
///
/// # Errors
/// The system has no random numbers.
pub fn example_metrics() -> anyhow::Result<Snapshot> {
    let follows = Follows::new()?;
    // The lag is a metric only while somebody follows.
    let _seat = follows.take(Lsn(1));
    // So is what a member's mirror lacks while there is one.
    let mirrors = KeptMirrors::default();
    mirrors.begin(Epoch(1));
    mirrors.set(Epoch(1), vec![MirrorRow { member: "b0".parse()?, mirror: Some(MirrorId(1)), why: None }]);
    let measured = Measured {
        group: &"orders".parse()?,
        me: &PrimaryRef { id: "app-0".parse()?, control: String::new() },
        shared: &Counters::default(),
        log: &LogView::default(),
        follows: &follows,
        waits: &Waits::default(),
        times: &PromotionTimes::default(),
        mirrors: &mirrors,
        segment_bytes: 0,
        certificate: Some(CertificateState { reload_fails: false, expires: Some(0) }),
    };
    Ok(snapshot(&measured, None))
}
