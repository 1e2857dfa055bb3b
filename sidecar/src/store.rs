//! The config store: where epoch, version, primary and members live, changed by compare-and-swap only.
//!
//! Asked by [`control`](crate::control). One implementation so far: a [`mod@file`], for one host or several that share a
//! folder. The Kubernetes API joins as another variant.

pub mod file;

use std::time::Duration;

use tailwind_protocol::config::{Configuration, Stamp, Swap, SwapOutcome};

use file::FileStore;

/// How often a watch looks for a new content.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// A config store.
#[derive(Clone, Debug)]
pub enum Store {
    /// A file, and its numbered successors.
    File(FileStore),
}

impl Store {
    /// The content; the error is for people.
    pub async fn read(&self) -> Result<Option<Configuration>, String> {
        let Store::File(store) = self.clone();
        let read = tokio::task::spawn_blocking(move || store.read()).await;
        read.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
    }

    /// Compare-and-swap.
    pub async fn swap(&self, swap: Swap) -> SwapOutcome {
        let Store::File(store) = self.clone();
        match tokio::task::spawn_blocking(move || store.swap(&swap)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => {
                tracing::warn!(%error, "swap the configuration");
                SwapOutcome::Unknown
            }
            Err(_) => SwapOutcome::Unknown,
        }
    }

    /// Returns once the content is another than `known`, with that content.
    pub async fn changed(&self, known: Option<Stamp>) -> Configuration {
        loop {
            match self.read().await {
                Ok(Some(config)) if Some(config.stamp()) != known => return config,
                _ => tokio::time::sleep(WATCH_INTERVAL).await,
            }
        }
    }
}
