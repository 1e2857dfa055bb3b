//! What a sidecar does whose options say another kind of group than its config store: it takes no part, and says so.
//!
//! Entered by [`roles`](super) when a standby or a promotion finds such a configuration, or is about to found a group that is to keep
//! something else; [`read_only`](super::read_only) says the same. A log led as a table, or the other way round, would take requests
//! that its records do not fit.

use std::time::Duration;

use tailwind_protocol::config::{Configuration, Kind};
use tailwind_protocol::socket::Role;
use tailwind_report::readiness::WaitsFor;

use crate::control::Context;
use crate::path::Command;

/// Pause before the config store is read again: the group may be removed and founded again, of the other kind.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Whether the group, once it is founded, is to keep something else than this sidecar's options say.
pub(super) fn is_wanted(context: &Context) -> bool {
    context.desired().kind.is_some_and(|kind| kind != context.rules.kind())
}

/// Returns once the config store has a group of this sidecar's kind, or none and one of that kind may be founded.
pub(super) async fn stay_apart(context: &Context, mut found: Option<Configuration>) {
    let other = match context.rules.kind() {
        Kind::Log => Kind::Table,
        Kind::Table => Kind::Log,
    };
    let why = why(context, other);
    tracing::warn!(%why, "waiting");
    let mut announced = None;
    loop {
        let primary =
            found.as_ref().map_or((0, String::new()), |config| (config.epoch.0, config.primary.id.to_string()));
        if announced.as_ref() != Some(&primary) {
            let (epoch, primary) = primary.clone();
            context.path.send(Command::Wait { role: Role::Standby, epoch, primary });
        }
        announced = Some(primary);
        context.waits.wait(WaitsFor::OtherKind, why.to_owned());
        tokio::time::sleep(LOOK_AGAIN).await;
        match context.store.read().await {
            Ok(Some(config)) if config.kind == other => found = Some(config),
            Ok(None) if is_wanted(context) => found = None,
            Ok(_) => break,
            // Nothing says that it has changed.
            Err(_) => {}
        }
    }
    context.waits.over();
}

/// In words: what the group keeps, and what to do.
pub(super) fn why(context: &Context, found: Kind) -> &'static str {
    match (found, context.store.is_a_file()) {
        (Kind::Table, true) => {
            "this group keeps a table, and this sidecar was started without --table: start it with the --table SIZE and \
             --table-keys N of the group's other sidecars"
        }
        (Kind::Log, true) => {
            "this group keeps a log, and this sidecar was started with --table: start it without --table and --table-keys. A \
             table needs a group of its own, with other backups and another --config"
        }
        (Kind::Table, false) => {
            "this ReplicaGroup keeps a table, and this sidecar was started without --table: recreate its pod, so that the \
             operator gives it the size of spec.table"
        }
        (Kind::Log, false) => {
            "this ReplicaGroup keeps a log, and this sidecar was started with --table: recreate its pod. A table needs a \
             ReplicaGroup of its own"
        }
    }
}
