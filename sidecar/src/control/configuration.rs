//! What the config store shows, for code that reads or asks elsewhere: who is primary, and who are the members.
//!
//! Run by [`run`](crate::run) for as long as the process lives; seen by [`reads`](super::reads), [`status`](super::status), a
//! primary, for its successor, and a sidecar that only reads. Otherwise the roles ask the store: what they change depends on it.

use std::convert::Infallible;

use tailwind_protocol::config::Configuration;
use tokio::sync::watch;

use crate::store::Store;

/// Keeps `seen` at the store's content.
pub async fn watch(store: Store, seen: watch::Sender<Option<Configuration>>) -> Infallible {
    let mut known = None;
    loop {
        let config = store.news(known).await;
        known = Some((config.log, config.stamp()));
        seen.send_if_modified(|seen| {
            // A reader may meet an older content, as on a network file system.
            let is_news = seen.as_ref().is_none_or(|seen| seen.log != config.log || seen.stamp() < config.stamp());
            if is_news {
                *seen = Some(config);
            }
            is_news
        });
    }
}
