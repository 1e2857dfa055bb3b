//! Whether backups can take what this sidecar writes: their fabric, and the size of their buffers.
//!
//! Asked by [`standby`](super::standby) and [`roles`](super) before an epoch is claimed, and by
//! [`member::survey`](super::member::survey) for backups that are to become members. A primary whose members cannot take its
//! writes loses them one after the other, steps down, and claims the next epoch to no other end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tailwind_fabric::FabricKind;
use tailwind_protocol::config::Configuration;
use tailwind_protocol::layout::{SegmentSize, readable_size};
use tailwind_report::readiness::WaitsFor;

use crate::control::Context;
use crate::logging::Repeats;
use crate::rpc::{BackupClient, BackupTraits};

/// The same misfit is logged at most so often.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// Pause before the members are asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What this sidecar needs of a backup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// What carries its writes.
    pub fabric: FabricKind,
    /// The size of the segments that it opens.
    pub segment_size: SegmentSize,
}

impl Needs {
    /// Why a backup that is so can take nothing from this sidecar, if it cannot.
    pub(super) fn misfit(&self, backup: &BackupTraits) -> Option<String> {
        let (fabric, size) = (self.fabric.to_string(), self.segment_size);
        if backup.fabric != fabric {
            let theirs = &backup.fabric;
            return Some(format!("it runs --fabric {theirs}, this sidecar --fabric {fabric}: give both the same"));
        }
        let buffers = backup.buffer_bytes;
        (size.bytes() > buffers).then(|| {
            let buffers = readable_size(u64::from(buffers));
            format!("its buffers are {buffers}, the segments of this sidecar {size}: give both the same --segment-size")
        })
    }
}

/// Whether the members of the last set can take this sidecar's writes; says once why not.
#[derive(Debug)]
pub(super) struct FitCheck {
    /// The last check has failed.
    failed: bool,
    said: Repeats<String>,
}

impl Default for FitCheck {
    fn default() -> FitCheck {
        FitCheck { failed: false, said: Repeats::every(SAY_AGAIN) }
    }
}

impl FitCheck {
    /// True if a term of this sidecar could write to enough members, as far as they answer. Members that do not answer are
    /// for a promotion to wait for. Otherwise it says why, once, and waits for a moment.
    pub(super) async fn passes(&mut self, context: &Context) -> bool {
        // Without a configuration a promotion asks all backups. A store that cannot be read keeps it waiting as well.
        let Ok(Some(config)) = context.store.read().await else { return true };
        match misfits(context, &config).await {
            Ok(()) => {
                if std::mem::take(&mut self.failed) {
                    tracing::info!("the members can take this sidecar's segments now");
                    context.waits.over();
                }
                true
            }
            Err(why) => {
                context.waits.wait(WaitsFor::Members, why.clone());
                self.failed = true;
                if self.said.is_due(why.clone(), Instant::now()) {
                    tracing::warn!(%why, "waiting");
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                false
            }
        }
    }
}

/// Returns once enough members have answered that fit, or none is left to ask.
async fn misfits(context: &Context, config: &Configuration) -> Result<(), String> {
    let needed = usize::from(context.desired().min_in_sync.max(1)).min(config.members.len());
    let mut answers: FuturesUnordered<_> = config
        .members
        .iter()
        .map(|member| async move {
            let client = context.backup(&member.id, Some(&member.control));
            let answered = client.answers(context.rules.heartbeat_silence).await.is_ok();
            (answered, context.misfit(&client))
        })
        .collect();
    let (mut fit, mut misfits) = (0, BTreeSet::new());
    while let Some((answered, misfit)) = answers.next().await {
        fit += usize::from(answered && misfit.is_none());
        misfits.extend(misfit);
        if fit >= needed {
            return Ok(());
        }
    }
    if config.members.len() - misfits.len() >= needed {
        return Ok(());
    }
    let (members, misfits) = (config.members.len(), misfits.into_iter().collect::<Vec<_>>().join("; "));
    Err(format!("cannot become primary: {needed} of {members} members must fit this sidecar's options; {misfits}"))
}

impl Context {
    /// Why a backup that has answered can take nothing from this sidecar, with its name.
    pub fn misfit(&self, backup: &BackupClient) -> Option<String> {
        let needs = Needs { fabric: self.sender.kind(), segment_size: self.rules.segment_size };
        let why = needs.misfit(&backup.traits()?)?;
        Some(format!("{}: {why}", backup.whom()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misfit_names_both_sides() {
        let segment_size = SegmentSize::new(128 << 10).unwrap();
        let needs = Needs { fabric: FabricKind::Tcp, segment_size };
        let backup = |fabric: &str, buffer_bytes| BackupTraits { fabric: fabric.to_owned(), buffer_bytes };
        assert_eq!(needs.misfit(&backup("tcp", 128 << 10)), None);
        assert_eq!(needs.misfit(&backup("tcp", 8 << 20)), None, "larger buffers take smaller segments");
        assert_eq!(
            needs.misfit(&backup("shm", 128 << 10)).unwrap(),
            "it runs --fabric shm, this sidecar --fabric tcp: give both the same"
        );
        assert_eq!(
            needs.misfit(&backup("tcp", 64 << 10)).unwrap(),
            "its buffers are 64 KiB, the segments of this sidecar 128 KiB: give both the same --segment-size"
        );
    }
}
