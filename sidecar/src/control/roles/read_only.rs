//! The role of a sidecar that only reads: its clients are told who is primary, as it changes.
//!
//! Run by [`roles`](super) instead of the other roles.

use std::time::Duration;

use tailwind_protocol::socket::Role;
use tailwind_report::readiness::WaitsFor;

use super::other_kind;
use crate::control::Context;
use crate::control::desired::READS_DISABLED;
use crate::path::Command;

/// How often a reader looks whether the config store tells it anything.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Stays in that role. Returns only with an error.
pub(super) async fn stay(context: &Context) -> anyhow::Result<()> {
    let mut configurations = context.configuration.clone();
    let mut desired = context.desired.clone();
    configurations.mark_changed();
    desired.mark_changed();
    let (mut said, mut may_read) = (None, true);
    let mut trouble = StoreTrouble::default();
    loop {
        tokio::select! {
            () = trouble.looks_again(), if said.is_none() || context.store.is_a_file() => {
                trouble.tell(context).await;
                continue;
            }
            Ok(()) = desired.changed() => {
                let before = std::mem::replace(&mut may_read, desired.borrow_and_update().may_read);
                match (before, may_read) {
                    (true, false) => tracing::warn!("{READS_DISABLED}"),
                    (false, true) => tracing::info!("reads are enabled again"),
                    _ => {}
                }
                continue;
            }
            changed = configurations.changed() => if changed.is_err() { break },
        }
        let Some(found) = configurations.borrow_and_update().clone() else { continue };
        let known = Some((found.epoch, found.primary.id.clone()));
        let Some((epoch, primary)) = known.clone().filter(|_| known != said) else { continue };
        context.waits.over();
        // Its clients would take one kind of records for the other.
        if found.kind != context.rules.kind() {
            let why = other_kind::why(context, found.kind);
            context.waits.wait(WaitsFor::OtherKind, why.to_owned());
            tracing::warn!(%why, "waiting");
        }
        tracing::info!(%epoch, %primary, "reader");
        context.path.send(Command::Wait { role: Role::Reader, epoch: epoch.0, primary: primary.to_string() });
        said = known;
    }
    anyhow::bail!("the watch of the config store has ended")
}

/// A config store that tells a reader nothing: the group has not started, the reader looks in the wrong place, or the file is damaged
/// or out of reach. The Kubernetes API is asked only until it has told something: each look would be a request.
#[derive(Default)]
struct StoreTrouble {
    said: Option<String>,
}

impl StoreTrouble {
    /// Between two looks. The first one comes after as long: a group may start its sidecars in any order.
    async fn looks_again(&self) {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }

    /// Says what is wrong, when that changes.
    async fn tell(&mut self, context: &Context) {
        let why = match context.store.read().await {
            Ok(Some(_)) => {
                if self.said.take().is_some() {
                    context.waits.over();
                    tracing::info!("the config store answers");
                }
                return;
            }
            Ok(None) => context.store.nothing_yet(),
            Err(why) => why,
        };
        context.waits.wait(WaitsFor::ConfigStore, why.clone());
        if self.said.as_ref() != Some(&why) {
            tracing::warn!(%why, "waiting");
            self.said = Some(why);
        }
    }
}
