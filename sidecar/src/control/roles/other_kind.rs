//! What a sidecar does whose options say another kind of group than its config store: it takes no part, and says so.
//!
//! Entered by [`roles`](super) when a standby or a promotion finds such a configuration; [`read_only`](super::read_only) says the
//! same. A log led as a table, or the other way round, would take requests that its records do not fit.

use std::time::Duration;

use tailwind_protocol::config::{Configuration, Kind};
use tailwind_protocol::socket::Role;
use tailwind_report::readiness::WaitsFor;

use crate::control::Context;
use crate::path::Command;

/// Pause before the config store is read again: the group may be removed and founded again, of the other kind.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Returns once the config store has no group, or one of this sidecar's kind.
pub(super) async fn stay_apart(context: &Context, mut found: Configuration) {
    let why = why(found.kind);
    tracing::warn!(%why, "waiting");
    let mut announced = None;
    loop {
        let primary = (found.epoch, found.primary.id.clone());
        if announced.as_ref() != Some(&primary) {
            let (epoch, primary) = (found.epoch.0, found.primary.id.to_string());
            context.path.send(Command::Wait { role: Role::Standby, epoch, primary });
        }
        announced = Some(primary);
        context.waits.wait(WaitsFor::OtherKind, why.to_owned());
        tokio::time::sleep(LOOK_AGAIN).await;
        match context.store.read().await {
            Ok(Some(config)) if config.kind != context.rules.kind() => found = config,
            Ok(_) => break,
            // Nothing says that it has changed.
            Err(_) => {}
        }
    }
    context.waits.over();
}

/// In words: what the group keeps, and what to do.
pub(super) fn why(found: Kind) -> &'static str {
    match found {
        Kind::Table => {
            "this group keeps a table, and this sidecar was started without --table: start it with the --table SIZE and \
             --table-keys N of the group's other sidecars"
        }
        Kind::Log => {
            "this group keeps a log, and this sidecar was started with --table: start it without --table and --table-keys. A \
             table needs a group of its own, with other backups and another --config"
        }
    }
}
